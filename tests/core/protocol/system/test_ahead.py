"""Work on threads of its own: how many there are, in which order it comes back, and what a failure ends."""

from __future__ import annotations

import threading
import time

import pytest

from kinetic_orchestration.protocol.system.parallel import Several

pytestmark = pytest.mark.fast


def test_many_things_are_done_by_few_threads_and_come_back_in_their_order() -> None:
    full = threading.Barrier(4)  # none goes on before four are at it
    looked = threading.Event()
    at_it, most = [], []

    def work(thing: int) -> int:
        at_it.append(thing)
        most.append(len(at_it))
        if thing < 4:
            full.wait(60)
        if thing == 39:
            looked.wait(60)
        time.sleep(0.002)
        at_it.remove(thing)
        return thing * thing

    several = Several(work, range(40), most=4)
    pending = [several.pending]
    looked.set()
    assert several.result() == [thing * thing for thing in range(40)]
    assert [*pending, several.pending] == [True, False]
    assert max(most) == 4


def test_without_threads_all_is_done_when_it_is_asked_for() -> None:
    done: list[int] = []
    several = Several(done.append, range(3), most=8, in_background=False)
    assert done == []
    assert not several.pending
    several.result()
    assert done == [0, 1, 2]
    assert Several(done.append, [], most=8).result() == []


def test_what_failed_is_raised_and_nothing_more_is_begun() -> None:
    begun: list[int] = []

    def work(thing: int) -> None:
        begun.append(thing)
        if thing == 1:
            raise LookupError("the second one")
        time.sleep(0.01)

    with pytest.raises(LookupError, match="the second one"):
        Several(work, range(1000), most=2).result()
    assert len(begun) < 1000


def test_what_failed_is_raised_while_others_are_still_at_work() -> None:
    enough = threading.Event()

    def work(thing: int) -> None:
        if thing == 1:
            raise LookupError("the second one")
        enough.wait(20)

    several = Several(work, range(2), most=2)
    began = time.monotonic()
    with pytest.raises(LookupError, match="the second one"):
        several.result()
    assert time.monotonic() - began < 10
    assert not several.pending
    enough.set()
