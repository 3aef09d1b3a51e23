"""The same work on several threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from kinetic_orchestration.protocol.system.parallel import at_once, is_given_up, side_by_side

PATIENCE = 60.0


def test_what_comes_is_in_the_order_of_the_items_however_long_each_takes() -> None:
    second = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert second.wait(PATIENCE)
        elif item == 1:
            second.set()
        return item * item

    assert side_by_side(work, range(5), 2) == [0, 1, 4, 9, 16]
    assert at_once([lambda: "a", lambda: "b"], 2) == ["a", "b"]
    assert side_by_side(work, [], 2) == []


def test_after_a_failure_nothing_more_is_begun_and_what_was_begun_is_waited_for() -> None:
    begun: list[int] = []
    over: list[int] = []
    failing: list[threading.Thread] = []
    both = threading.Barrier(2)

    def work(item: int) -> None:
        begun.append(item)
        if item == 0:
            failing.append(threading.current_thread())
        both.wait(PATIENCE)
        if item == 0:
            raise ValueError("the first of them")
        failing[0].join(PATIENCE)
        over.append(item)

    with pytest.raises(ValueError, match="the first of them"):
        side_by_side(work, range(100), 2)
    assert (sorted(begun), over) == ([0, 1], [1])


def test_ctrl_c_is_heard_by_what_was_begun_however_deep_it_is() -> None:
    heard: list[int] = []
    all_wait = threading.Barrier(4)

    def work(item: int) -> None:
        all_wait.wait(PATIENCE)
        if item == 0:
            os.kill(os.getpid(), signal.SIGINT)
        deadline = time.monotonic() + PATIENCE
        while not is_given_up() and time.monotonic() < deadline:
            time.sleep(0.01)
        if is_given_up():
            heard.append(item)

    with pytest.raises(KeyboardInterrupt):
        side_by_side(lambda first: side_by_side(work, (first, first + 1)), (0, 2))
    assert sorted(heard) == [0, 1, 2, 3]
    assert not is_given_up()
    with pytest.raises(ValueError, match="not so"):
        side_by_side(fails, (1, 2))


def fails(item: int) -> None:
    raise ValueError("given up" if is_given_up() else "not so")


LATE = """
import threading
from kinetic_orchestration.protocol.system.parallel import side_by_side

def late():
    threading.main_thread().join()
    print(side_by_side(lambda item: item * item, range(5), 4))

threading.Thread(target=late).start()
"""


def test_threads_that_outlive_the_main_one_still_have_their_work_done() -> None:
    """A batch that is still submitted when its program has come to its end. An executor would refuse."""
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.stdout, done.returncode) == ("[0, 1, 4, 9, 16]\n", 0), done.stderr
