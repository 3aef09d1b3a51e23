"""A large checkpoint is written beside the training that goes on, from a copy: what a step waits for is the copy.

Decides whether that pays and whether there is room, and runs it. Does not know what is written.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
from collections.abc import Callable

from kinetic_orchestration.agent import memory
from kinetic_orchestration.training import trees
from kinetic_orchestration.training.trees import Apart, Piece

LARGE = 32 << 20  # bytes; less is written before a thread would have begun
SPARE = 2  # the memory that is free has to be so many copies


def is_copied(found: Apart) -> bool:
    """Makes its bytes nobody else's; False if they are few, or there is no room, and all is as it was."""
    if sum(len(piece.data) for piece in found.pieces) < LARGE:
        return False
    shared = sum(len(piece.data) for piece in found.pieces if not piece.fresh)
    if SPARE * shared > memory.free():
        return False
    try:
        found.pieces = [piece if piece.fresh else _copy(piece) for piece in found.pieces]
    except MemoryError:  # a limit of which nothing was told
        return False
    return True


def _copy(piece: Piece) -> Piece:
    data = trees.room(len(piece.data))
    data[:] = piece.data
    return Piece(piece.path, piece.start, piece.shape, data, fresh=True)


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
