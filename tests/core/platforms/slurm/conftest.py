"""The Slurm that the tests of this folder share, file by file."""

from __future__ import annotations

from tests.support.slurm.fixtures import on_slurm, programs, slurm

__all__ = ["on_slurm", "programs", "slurm"]
