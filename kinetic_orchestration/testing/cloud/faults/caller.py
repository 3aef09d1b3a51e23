"""The caller of a method of the emulated cloud."""

from __future__ import annotations

from typing import NamedTuple


class Caller(NamedTuple):
    """The caller of an API: a client, or the service account of a VM."""

    kind: str = "client"
    node: str = ""
    worker: int = 0


CLIENT = Caller()
