"""Removes a folder with all that is in it, also where its program took away the right to write there."""

from __future__ import annotations

import os
import stat


def remove_tree(folder: str) -> None:
    """Remove a folder with all that is in it, folders without the right to write included. Raises nothing."""
    try:
        _remove(folder)
    except OSError:
        _remove_by_force(folder)


def _remove(folder: str) -> None:
    """Remove as shutil does, which takes longer to import than most folders take to go."""
    with os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            _remove(entry.path)
        else:
            os.unlink(entry.path)
    os.rmdir(folder)


def _remove_by_force(folder: str) -> None:
    import contextlib
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        for path, _, _ in os.walk(folder):
            with contextlib.suppress(OSError):
                os.chmod(path, stat.S_IRWXU)
        shutil.rmtree(folder, ignore_errors=True)
