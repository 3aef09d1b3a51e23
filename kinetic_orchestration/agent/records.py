"""The plain record store on a file system."""

from __future__ import annotations

from typing import NamedTuple


class Record(NamedTuple):
    """What a read returns."""

    data: bytes
    generation: int
    updated: float


class Entry(NamedTuple):
    """What a listing returns."""

    name: str
    size: int
    generation: int
    updated: float
