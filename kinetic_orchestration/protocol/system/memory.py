"""The memory available to this process, and the memory of its own. Linux only: elsewhere unknown."""

from __future__ import annotations

import contextlib


def free() -> int:
    """Bytes, of this machine and of its container, if that has a limit; 0 if unknown."""
    found = 0
    with contextlib.suppress(OSError, StopIteration, ValueError):
        found = _line("/proc/meminfo", "MemAvailable:") << 10
        limit = _read("/sys/fs/cgroup/memory.max").strip()
        if limit != "max":
            used = int(_read("/sys/fs/cgroup/memory.current"))
            cached = _line("/sys/fs/cgroup/memory.stat", "inactive_file ")  # of files written before: it is given up
            found = min(found, int(limit) - used + cached)
    return found


def own() -> int:
    """The bytes of this process that are not backed by a file; 0 if unknown."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        return _line("/proc/self/status", "RssAnon:") << 10
    return 0


def _line(path: str, begins: str) -> int:
    """The number in a line that begins so."""
    return next(int(line.split()[1]) for line in _read(path).splitlines() if line.startswith(begins))


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()
