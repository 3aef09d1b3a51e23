"""A large checkpoint is written beside the training that goes on, from a copy: what a step waits for is the copy.

Decides whether that pays and whether there is room, and runs it. Does not know what is written.
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
from kinetic_orchestration.program.checkpoints.trees import Apart, Piece
from kinetic_orchestration.protocol.system import memory

LARGE = 32 << 20  # bytes; less is written before a thread would have begun
SPARE = 2  # the memory that is free has to be so many copies
ALIGNED = 64


def is_copied(found: Apart, room: Room) -> bool:
    """Makes its bytes nobody else's; False if they are few, or there is no room, and all is as it was."""
    if sum(len(piece.data) for piece in found.pieces) < LARGE:
        return False
    shared = [piece for piece in found.pieces if not piece.fresh]
    sizes = [len(piece.data) for piece in shared]
    if SPARE * sum(sizes) > memory.free():
        return False
    try:
        copies = room.take(sizes)
    except (MemoryError, OSError):  # a limit of which nothing was told
        return False
    trees.copy_all([(copy, piece.data) for copy, piece in zip(copies, shared, strict=True)])
    made = iter(copies)
    found.pieces = [
        piece if piece.fresh else Piece(piece.path, piece.start, piece.shape, next(made), fresh=True)
        for piece in found.pieces
    ]
    return True


class Room:
    """Memory for the copies of one checkpoint after another. Between two of them the system takes it whenever it needs
    it (MADV_FREE); what it did not need is there at once, where new memory would have to be found and cleared.
    """

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._is_taken = False

    def take(self, sizes: Sequence[int]) -> list[memoryview]:
        """Return memory for so many bytes each, with anything in it."""
        places = list(itertools.accumulate((-(-size // ALIGNED) * ALIGNED for size in sizes), initial=0))
        if self._is_taken or not hasattr(mmap, "MADV_FREE"):  # by one that was given up, and still is written
            return [trees.room(size) for size in sizes]
        if self._memory is None or len(self._memory) != max(1, places[-1]):
            self._memory = None
            self._memory = mmap.mmap(-1, max(1, places[-1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with contextlib.suppress(OSError, AttributeError):
                self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._is_taken = True
        view = memoryview(self._memory)
        return [view[at : at + size] for at, size in zip(places, sizes, strict=False)]

    def leave(self) -> None:
        """What was taken is needed no more."""
        if self._is_taken and self._memory is not None:
            with contextlib.suppress(OSError):
                self._memory.madvise(mmap.MADV_FREE)
            self._is_taken = False


class Writing:
    """The checkpoint of a step that is being written. Who has waited for it in vain has given it up."""

    def __init__(self, step: int, place: str, patience: float, work: Callable[[], None]) -> None:
        """`patience`: at the program's end, if nobody has waited for it until then."""
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
        except BaseException as error:  # raised where the training hears of it
            self.error = error


_under_way: list[Writing] = []  # or over, and nobody has asked yet


def left_at(place: str) -> Writing | None:
    """What a loop over the same checkpoints has left behind, which an exception ended in this program."""
    return next((writing for writing in _under_way if writing.place == place), None)


def finish() -> None:
    """The program is at its end, or its function has failed: nobody else is left who would wait."""
    for writing in _under_way.copy():
        if not writing.wait(writing.patience):
            _say(writing, f"was not written in {writing.patience:.0f} s, and is given up")
        elif writing.error is not None:
            _say(writing, f"could not be written: {writing.error}")


def _say(writing: Writing, what: str) -> None:
    with contextlib.suppress(Exception):  # the program may have closed it
        sys.stderr.write(f"{writing.place.rpartition('/')[2]}: the checkpoint of step {writing.step} {what}\n")
        sys.stderr.flush()
