"""A thousand attempts that wait for chips at a real store, in a folder, with a clock that moves at once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from kinetic_orchestration.capacity.shares import line, records
from kinetic_orchestration.capacity.shares.line import Line
from kinetic_orchestration.capacity.shares.rules import Want
from kinetic_orchestration.plan.configuration.chip_shares import parse
from kinetic_orchestration.platforms.local.store import LocalStore, open_local

WAITING, MINUTES = 1000, 2


class Counted:
    """A store that counts its requests, with a clock of its own: the files keep the real time of their writes."""

    def __init__(self, store: LocalStore) -> None:
        self._store, self.ahead, self.asked = store, 0.0, Counter[str]()
        self.by = ""

    def now(self) -> float:
        return self._store.now() + self.ahead

    def read_all(self, several: list[str]) -> Any:
        return [self.read(name) for name in several]

    def __getattr__(self, verb: str) -> Any:
        if verb in ("read", "list", "create", "swap", "put", "delete"):
            self.asked[self.by] += 1
            self.asked[f"every {verb}"] += 1
        return getattr(self._store, verb)


class Rates(NamedTuple):
    """Requests a minute: of the one who decides, and the most of one in front, in the middle, and of the others."""

    holder: float
    front: float
    middle: float
    back: float
    behind: int  # how many these others are
    writes: float  # of the book, by all


def lines(store: Any, count: int, shares: str, chips: int = 4, first: int = 0) -> list[Line]:
    """Return attempts that want their turn, each of which came a moment after the one before."""
    made = []
    for number in range(first, first + count):
        want = Want(f"job-{number:x}", 1, "v5e", chips, user=f"u{number % 7}", since=store.now() + number / 1000)
        made.append(Line(store, want, parse("shares", shares), 1.0))
    return made


def rates(folder: Path) -> Rates:
    """Let a thousand wait behind four that hold all chips."""
    store: Any = Counted(open_local(folder, "test"))
    assert all(one.turn().granted for one in lines(store, 4, "v5e=16"))
    waiting = lines(store, WAITING, "v5e=16", first=16)
    due = {one.want.job: one.turn().again for one in waiting}
    store.asked.clear()
    for _ in range(MINUTES * 60):
        store.ahead += 1.0
        now = store.now()
        for one in waiting:
            if due[one.want.job] <= now:
                store.by = one.want.job
                due[one.want.job] = one.turn().again
    place = {waited.job: number for number, waited in enumerate(records.read(store).book.line)}
    holder = max((one.want.job for one in waiting), key=lambda job: store.asked[job])
    each = {one.want.job: store.asked[one.want.job] / MINUTES for one in waiting if one.want.job != holder}
    front = [count for job, count in each.items() if place.get(job, WAITING) < line.FRONT]
    middle = [count for job, count in each.items() if line.FRONT * 4 < place.get(job, WAITING) < WAITING]
    back = [count for job, count in each.items() if job not in place]
    writes = (store.asked["every swap"] + store.asked["every create"]) / MINUTES
    return Rates(store.asked[holder] / MINUTES, max(front), max(middle), max(back), len(back), writes)
