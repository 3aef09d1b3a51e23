"""The first program of a pod, as far as it needs no pod."""

from __future__ import annotations

import pytest

from kinetic_orchestration.host.machine.pod import start as pod_start
from kinetic_orchestration.protocol import wire

pytestmark = pytest.mark.fast


def test_its_exit_codes_are_those_of_the_wire() -> None:
    assert {cause: wire.EXIT_CODES[cause] for cause in pod_start.CODES} == pod_start.CODES
    causes = {failed.cause for failed in (pod_start.bootstrap.Failed, *pod_start.bootstrap.Failed.__subclasses__())}
    assert causes <= pod_start.CODES.keys()
