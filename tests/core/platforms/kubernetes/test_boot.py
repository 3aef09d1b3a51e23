"""The program in a pod's manifest."""

from __future__ import annotations

import pytest

from kinetic_orchestration.platforms.kubernetes import boot

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("store", ["gs://bucket/prefix", "s3://bucket/prefix"])
def test_it_has_no_letter_that_kubernetes_expands(store: str) -> None:
    """In a container's command `$$` becomes `$`, and `$(NAME)` a variable's value."""
    assert "$" not in boot.LOADER + boot.program(store)
