"""Processes that end with the one that starts them, however that ends."""

from __future__ import annotations

import shutil


def tied(*command: str) -> list[str]:
    """Return a command whose process is killed when the thread that starts it ends; as it is where no `setpriv` is."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", *command] if setpriv else [*command]
