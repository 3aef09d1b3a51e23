"""A program refuses what it was given."""

from __future__ import annotations

from pathlib import Path

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import Unsupported


def test_what_a_program_refuses_ends_the_job_with_the_reason_and_is_not_tried_again(home: Path) -> None:
    def program() -> None:
        host = kinetic.current()
        if host.host_count == 1:
            host.refuse("this takes two hosts: ask for v5e-16")

    job = kinetic.run(accelerator="cpu", retry=kinetic.Retry(user=3))(program).run_async()
    with pytest.raises(Unsupported, match="this takes two hosts: ask for v5e-16"):
        job.result()
    assert job.attempts() == 1
