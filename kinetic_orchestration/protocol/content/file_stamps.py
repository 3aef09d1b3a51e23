"""The rule by which a file counts as unchanged since it was read, for the stat index and for verified blobs."""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself costs an agent a tenth of its start
if TYPE_CHECKING:
    import os

# st_mode, st_size, st_mtime_ns, st_ino, st_ctime_ns
Stamp = tuple[int, int, int, int, int]

# A file that is changed after it was read, but in the same tick of its file system's clock and without a
# change of size, keeps its stamp. So a content is believed only if its file was left alone for longer than a
# tick before the read: git's racy rule, but from the read and not from the index's own time.
TICK = 50_000_000
LOCAL_TICK = 20_000_000  # of file systems that this kernel keeps itself: its own tick has 10 ms at most
_COARSE_TICK = 2_000_000_000  # of file systems that keep whole seconds, or every second one
_RACY = -1


def stamp_of(status: os.stat_result) -> Stamp:
    return (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)


def settled(stamp: Stamp, tick: int = TICK) -> int:
    """Returns the moment (nanoseconds) after which every further change of the file shows in its stamp."""
    _, _, modified, _, changed = stamp
    return max(modified, changed) + (tick if changed % 1_000_000_000 else _COARSE_TICK)


def believable(stamp: Stamp, began: int, tick: int = TICK) -> Stamp:
    """Returns the stamp to remember for a file that was read from `began` on (nanoseconds): one that never fits, if the
    file may have changed since without a visible sign.
    """
    if settled(stamp, tick) < began:
        return stamp
    mode, size, _, inode, changed = stamp
    return (mode, size, _RACY, inode, changed)
