"""A large checkpoint is written in the background from a copy, while the training continues: a step waits for the copy
only.

Decides if that is worthwhile and if there is memory, and runs it. Does not know the contents.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import mmap
import sys
import threading
from collections.abc import Callable, Sequence

from kinetic_orchestration.program.checkpoints import trees
from kinetic_orchestration.program.checkpoints.trees import HostPart, Piece
from kinetic_orchestration.protocol.system import kernel

LARGE = 32 << 20  # bytes; less is written before a thread would have begun
SPARE = 2  # the free memory has to hold this many copies
ALIGNED = 64


def is_copied(found: HostPart, buffers: CopyBuffers) -> bool:
    """Copy the bytes, so that they are not shared; False, without a change, if they are few or there is no memory."""
    if sum(len(piece.data) for piece in found.pieces) < LARGE and not found.apart:
        return False
    shared = [piece for piece in found.pieces if not piece.fresh]
    sizes = [len(piece.data) for piece in shared]
    if SPARE * sum(sizes) > kernel.free_memory():
        return False
    try:
        copies = buffers.take(sizes)
    except (MemoryError, OSError):  # an unknown limit
        return False
    trees.copy_all([(copy, piece.data) for copy, piece in zip(copies, shared, strict=True)])
    made = iter(copies)
    found.pieces = [
        piece if piece.fresh else Piece(piece.path, piece.start, piece.shape, next(made), fresh=True)
        for piece in found.pieces
    ]
    return True


class CopyBuffers:
    """Memory for the copies of one checkpoint after another. Between two of them the system takes it whenever it needs
    it (MADV_FREE); what it did not need is there at once, where new memory would have to be found and cleared.
    """

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._is_taken = False

    def take(self, sizes: Sequence[int]) -> list[memoryview]:
        """Return memory of the given sizes, uninitialised."""
        places = list(itertools.accumulate((-(-size // ALIGNED) * ALIGNED for size in sizes), initial=0))
        if self._is_taken or not hasattr(mmap, "MADV_FREE"):  # by one that was given up, and still is written
            return [trees.new_buffer(size) for size in sizes]
        if self._memory is None or len(self._memory) != max(1, places[-1]):
            self._memory = None
            self._memory = mmap.mmap(-1, max(1, places[-1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with contextlib.suppress(OSError, AttributeError):
                self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._is_taken = True
        view = memoryview(self._memory)
        return [view[at : at + size] for at, size in zip(places, sizes, strict=False)]

    def leave(self) -> None:
        """Release the memory that was taken."""
        if self._is_taken and self._memory is not None:
            with contextlib.suppress(OSError):
                self._memory.madvise(mmap.MADV_FREE)
            self._is_taken = False


class Writing:
    """The writing of a step's checkpoint. A caller whose wait for it times out has given it up."""

    def __init__(self, step: int, place: str, patience: float, work: Callable[[], None]) -> None:
        """`patience`: the wait at the program's end, if there was none before."""
        self.step = step
        self.place = place
        self.patience = patience
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), name="kinetic-checkpoint", daemon=True)
        self._thread.start()
        _under_way.append(self)
        atexit.unregister(finish)
        atexit.register(finish)  # last, and so before the farewells of the frameworks

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def wait(self, patience: float | None = None) -> bool:
        self._thread.join(patience)
        with contextlib.suppress(ValueError):
            _under_way.remove(self)
        return self.is_over

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # raised in the training's thread
            self.error = error


_under_way: list[Writing] = []  # or over, but not yet reported


def unfinished_at(place: str) -> Writing | None:
    """The writing of an earlier loop over the same checkpoints, which an exception ended in this program."""
    return next((writing for writing in _under_way if writing.place == place), None)


def finish() -> None:
    """Wait for all writings at the program's end, or after its function has failed: no other caller will."""
    for writing in _under_way.copy():
        if not writing.wait(writing.patience):
            _say(writing, f"was not written in {writing.patience:.0f} s, and is given up")
        elif writing.error is not None:
            _say(writing, f"could not be written: {writing.error}")


def _say(writing: Writing, what: str) -> None:
    with contextlib.suppress(Exception):  # the program may have closed it
        sys.stderr.write(f"{writing.place.rpartition('/')[2]}: the checkpoint of step {writing.step} {what}\n")
        sys.stderr.flush()
