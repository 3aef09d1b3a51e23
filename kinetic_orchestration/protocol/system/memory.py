"""How much memory there is for this process, and how much it has of its own. Linux only: elsewhere nobody tells."""

from __future__ import annotations

import contextlib


def free() -> int:
    """Bytes, of this machine and of its container, if that has a limit; 0 where nobody tells."""
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
    """Bytes that this process has and no file has; 0 where nobody tells."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        return _line("/proc/self/status", "RssAnon:") << 10
    return 0


def _line(path: str, begins: str) -> int:
    """The number in a line that begins so."""
    return next(int(line.split()[1]) for line in _read(path).splitlines() if line.startswith(begins))


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()
