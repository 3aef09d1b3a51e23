"""Amounts in words, for people."""

from __future__ import annotations


def size(count: float) -> str:
    if count < 1000:
        return f"{count:.0f} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"
