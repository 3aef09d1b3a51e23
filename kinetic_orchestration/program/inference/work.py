"""The parts that a host has in hand: their rows go to lanes as those get free, and a part is written once all its rows
have answers.

What is answered is journaled meanwhile, by a thread of its own: whatever there is as soon as what was there before is
kept. Parts are written by threads of their own, too: a lane that waited for the disk would leave its place at the
server empty. Knows neither servers nor models.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kinetic_orchestration.program.inference import output
from kinetic_orchestration.program.inference.client import Answer
from kinetic_orchestration.program.inference.output import Output, Plan
from kinetic_orchestration.program.inference.report import Counts
from kinetic_orchestration.program.inference.rows import Row

PACE_IN_BUCKET, PACE = 1.0, 0.05  # seconds between two writes of the journal
WRITERS_IN_BUCKET, WRITERS = 16, 2  # threads that write parts
WAITING = 32  # whole parts that may wait for them; then lanes wait, too


class Part:
    """A part in hand."""

    def __init__(self, number: int, rows: Sequence[Row]) -> None:
        self.number, self.rows = number, rows
        self.lines: dict[str, bytes] = {}
        self.failed = 0

    def is_whole(self) -> bool:
        return len(self.lines) == len(self.rows)


class Journal:
    """Keeps answers of parts that are not whole yet. `failed` is called with an error, once, on its own thread."""

    def __init__(self, place: Output, failed: Callable[[BaseException], object]) -> None:
        self._place, self._failed = place, failed
        self._pace = PACE_IN_BUCKET if place.in_bucket else PACE
        self._waiting: list[tuple[int, bytes]] = []
        self._pieces: list[tuple[str, set[int]]] = []  # names, and the parts of which they have answers
        self._written: set[int] = set()
        self._number = 0
        self._changed = threading.Condition()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kinetic-journal", daemon=True)
        self._thread.start()

    def add(self, part: int, line: bytes) -> None:
        with self._changed:
            self._waiting.append((part, line))
            self._changed.notify()

    def written(self, part: int) -> None:
        """A part is whole in the output: its answers here are needed no more."""
        with self._changed:
            self._written.add(part)
            self._changed.notify()

    def close(self) -> None:
        """Keep what is left."""
        with self._changed:
            self._over.set()
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    while not (self._waiting or self._over.is_set() or self._superfluous()):
                        self._changed.wait()
                    some, self._waiting = [one for one in self._waiting if one[0] not in self._written], []
                    old, over = self._superfluous(), self._over.is_set()
                    self._pieces = [one for one in self._pieces if one[0] not in old]
                if some:
                    self._number += 1
                    name = self._place.journal(self._number, [line for _, line in some])
                    with self._changed:
                        self._pieces.append((name, {part for part, _ in some}))
                self._place.remove(old)
                if over:
                    return
                self._over.wait(self._pace)  # no answer wakes it meanwhile
        except BaseException as error:
            self._failed(error)

    def _superfluous(self) -> list[str]:
        return [name for name, parts in self._pieces if parts <= self._written]


class Feed:
    """The rows of this host, for its lanes. Every method is for any thread."""

    def __init__(
        self,
        place: Output,
        plan: Plan,
        rows: Sequence[Row],
        known: Mapping[str, bytes],
        counts: Counts,
        failed: Callable[[BaseException], object],
    ) -> None:
        """`rows`: of the batch, in its order. `known`: lines of answers that earlier attempts have journaled."""
        self._place, self._plan, self._known, self._counts = place, plan, known, counts
        chosen = plan.chosen()
        self._parts = [
            [rows[at] for at in chosen[start : start + plan.size]] for start in range(0, len(chosen), plan.size)
        ]
        self._whole = place.whole(plan)
        self._next = 0
        self._ready: deque[tuple[Part, Row]] = deque()
        self._lock = threading.Lock()
        self._claiming = threading.Lock()
        self._suspects: list[tuple[Part, Row]] = []
        self._failed = failed
        self._refused = threading.Event()
        self._room = threading.Semaphore(WAITING)
        self._writers = ThreadPoolExecutor(WRITERS_IN_BUCKET if place.in_bucket else WRITERS, "kinetic-parts")
        self.journal = Journal(place, failed)

    def take(self, most: int) -> list[tuple[Part, Row]]:
        """Return up to so many rows; none if all parts are in hand somewhere."""
        with self._lock:
            if len(self._ready) >= most:
                return [self._ready.popleft() for _ in range(most)]
        with self._claiming:  # one lane takes the next part, the others wait for it
            while len(self._ready) < most and self._claim() is not None:
                pass
            with self._lock:
                return [self._ready.popleft() for _ in range(min(most, len(self._ready)))]

    def answered(self, part: Part, row: Row, answer: Answer) -> None:
        """Keep a row's answer; with the last one of a part it is written."""
        line = output.encode(answer.line(row))
        self._counts.add(answer)
        with self._lock:
            part.lines[row.key] = line
            part.failed += bool(answer.error)
            whole = part.is_whole()
        if whole:
            self._write(part)
        else:
            self.journal.add(part.number, line)

    def suspect(self, part: Part, row: Row) -> None:
        """Put a row back that is to be asked alone, once all others have answers."""
        with self._lock:
            self._suspects.append((part, row))

    def suspects(self) -> Iterable[tuple[Part, Row]]:
        with self._lock:
            found, self._suspects = self._suspects, []
        return found

    def close(self) -> None:
        """Write what is left."""
        self._writers.shutdown()
        self.journal.close()

    def _claim(self) -> Part | None:
        while True:
            while self._next in self._whole:
                self._next += 1
            number = self._place.claim(self._plan, self._next)
            if number is None:
                return None
            self._next = number + 1
            if number in self._whole:
                continue
            part = Part(number, self._parts[number])
            left = []
            for row in part.rows:
                if (line := self._known.get(row.key)) is not None:
                    part.lines[row.key] = line
                    part.failed += "error" in json.loads(line)
                    self._counts.reused += 1
                elif row.error:
                    answer = Answer(error=row.error)
                    part.lines[row.key] = output.encode(answer.line(row))
                    part.failed += 1
                    self._counts.add(answer)
                else:
                    left.append((part, row))
            if not left:
                self._write(part)
                continue
            with self._lock:
                self._ready.extend(left)
            return part

    def _write(self, part: Part) -> None:
        """Have a whole part written, soon."""
        self._room.acquire()
        self._writers.submit(self._commit, part)

    def _commit(self, part: Part) -> None:
        """Write a whole part, unless another one could not be written: a full disk is waited for once, and not by each
        part in turn.
        """
        try:
            if self._refused.is_set():
                return
            lines = [part.lines[row.key] for row in part.rows]
            if self._place.commit(self._plan, part.number, lines, [row.key for row in part.rows]):
                self._counts.wrote(part.number, len(lines), part.failed)
            self.journal.written(part.number)
        except BaseException as error:
            self._refused.set()
            self._failed(error)
        finally:
            self._room.release()


class Lanes:
    """Threads that answer rows until there are none, or one of them fails: then all stop, and it is raised."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def failed(self, error: BaseException) -> None:
        with self._lock:
            if self._error is None:
                self._error = error
        self._over.set()

    def over(self, seconds: float = 0.0) -> bool:
        """Wait for a time; returns True if the lanes stop."""
        return self._over.wait(seconds)

    def run(self, lane: Callable[[], None], count: int, beside: Callable[[], object], pace: float) -> None:
        """Run `lane` on so many threads, and meanwhile `beside` on this one, every `pace` seconds."""

        def guarded() -> None:
            try:
                lane()
            except BaseException as error:
                self.failed(error)

        threads = [threading.Thread(target=guarded, name=f"kinetic-lane-{n}", daemon=True) for n in range(count)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive() and not self._over.is_set():
                    thread.join(pace)
                    beside()
        except BaseException as error:
            self.failed(error)
            raise
        self.check()

    def check(self) -> None:
        """Raise what failed."""
        with self._lock:
            error = self._error
        if error is not None:
            with contextlib.suppress(BaseException):
                self._over.set()
            raise error


def lines_by_key(answers: Iterable[Mapping[str, Any]], keys: frozenset[str]) -> dict[str, bytes]:
    """Return the lines of answers to these rows."""
    return {answer["key"]: output.encode(answer) for answer in answers if answer["key"] in keys}
