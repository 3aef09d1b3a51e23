"""Leftovers of jobs on an emulated Compute Engine, and their end by the next reaper."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from unittest.mock import patch

from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.platforms.registry import open_backend
from kinetic_orchestration.testing import Emulator
from tests.support.waits import wait_until

GONE_WITHIN = 150.0  # the second host deletes after 55 s, should the first be dead
KEPT = {"instance template", "resource policy"}  # what the end of a job may leave: it costs nothing


def left(cloud: Emulator) -> set[str]:
    """The kinds of what is there."""
    return {leak.partition(" projects")[0] for leak in cloud.ledger.leaks()}


def free_rest(cloud: Emulator, environ: Mapping[str, str] = MappingProxyType({}), within: float = GONE_WITHIN) -> None:
    """Do what whoever reaps next does: a job does not wait until what costs nothing is free for its deletion.

    `environ`: variables of a client of this cloud, if this process is none.
    """
    cloud.wait_until(lambda: left(cloud) <= KEPT, within, "an end of all that costs")
    with patch.dict(os.environ, environ):
        backend = open_backend("compute", settings.load())
        wait_until(lambda: all(map(backend.release, list(backend.leftovers()))), "all that is left is freed")
    cloud.wait_until_empty(within)
