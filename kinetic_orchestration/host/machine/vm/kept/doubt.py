"""Names the doubts for which a VM cannot be kept, and tells an emulated VM from a real one."""

from __future__ import annotations

import os

from kinetic_orchestration.host.machine import bootstrap


class Unclean(Exception):
    """The reason for which this VM cannot be kept."""


def is_emulated() -> bool:
    """Return True for a VM that is a folder and some processes of a machine that others use as well: what its kernel
    has is not the VM's own, so that none of it is compared or removed."""
    return bool(os.environ.get("KINETIC_ROOT"))


def real_root() -> str:
    return os.path.realpath(bootstrap.root())


def is_below(path: str, root: str) -> bool:
    return path.startswith(root.rstrip("/") + "/")
