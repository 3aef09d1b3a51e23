"""Facts in a store: what one process learns others know, at few requests, and no damage is a job's error."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.capacity import choosing, facts, records
from kinetic_orchestration.capacity.facts import (
    AGE,
    AGED,
    GOT,
    PREEMPTED_YOUNG,
    PROBED,
    STOCKOUT,
    WINDOW,
    Attempted,
    Fact,
    FactKey,
)
from kinetic_orchestration.errors import StoreError, Unreachable
from kinetic_orchestration.platforms.local.store import LocalStore, open_local
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records.base import Entry, Record
from tests.support import choices
from tests.support.choices import candidate

KEY = FactKey("tpu-vm", "us-east5-a", "v6e", 16, "spot")
OTHERS = [KEY._replace(place=f"us-east{number}-a") for number in range(20)]


class Counted(LocalStore):
    """A store that counts what it is asked, and can be disturbed."""

    def __init__(self, root: str, deployment: str) -> None:
        super().__init__(root, deployment)
        self.asked: list[str] = []
        self.lost = 0  # answers to writes that were made
        self.away = False

    def _ask(self, verb: str) -> None:
        self.asked.append(verb)
        if self.away:
            raise Unreachable("the store does not answer")

    def list(self, prefix: str) -> Iterator[Entry]:
        self._ask("list")
        return super().list(prefix)

    def read(self, name: str, start: int = 0, end: int | None = None, *, limit: int | None = None) -> Record | None:
        self._ask("read")
        return super().read(name, start, end, limit=limit)

    def read_all(self, names: Sequence[str]) -> list[Record | None]:
        self._ask("read_all")
        return [super(Counted, self).read(name) for name in names]

    def create(self, name: str, data: bytes) -> int | None:
        self._ask("create")
        return self._answer(super().create(name, data))

    def swap(self, name: str, data: bytes, generation: int) -> int | None:
        self._ask("swap")
        return self._answer(super().swap(name, data, generation))

    def _answer(self, generation: int | None) -> int | None:
        """A write that was made, sent again because its answer was lost, and then refused by itself."""
        if generation is not None and self.lost:
            self.lost -= 1
            return None
        return generation


@pytest.fixture
def store(tmp_path: Path) -> Counted:
    return Counted(open_local(tmp_path, "main").root, "main")


def age(store: Counted, seconds: float) -> None:
    """Make every fact look that old."""
    for path in (Path(store.root) / "facts").rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - seconds,) * 2)


def attempts(store: Counted, key: FactKey = KEY) -> list[tuple[str, str]]:
    found = records.known(store, [key])
    return [(one.outcome, one.token) for one in found[key].attempts] if key in found else []


def test_what_one_process_learns_others_know(store: Counted, tmp_path: Path) -> None:
    now = store.now()
    records.learn(store, KEY, STOCKOUT, now, "job-1-1")
    other = open_local(tmp_path, "main")
    assert records.known(other, [KEY]) == {KEY: Fact((Attempted(now, STOCKOUT, "job-1-1"),))}
    records.learn(other, KEY, GOT, now + 1, "job-2-1")
    assert attempts(store) == [(STOCKOUT, "job-1-1"), (GOT, "job-2-1")]


def test_an_attempt_counts_once_whichever_processes_report_it(store: Counted) -> None:
    for _ in range(3):
        records.learn(store, KEY, GOT, store.now(), "job-1-1")
    records.learn(store, KEY, PREEMPTED_YOUNG, store.now(), "job-1-1")
    assert attempts(store) == [(PREEMPTED_YOUNG, "job-1-1")]
    assert store.asked.count("swap") == 1, "what is known is not written again"


def test_a_flex_start_that_waits_is_no_stockout(store: Counted) -> None:
    flex = KEY._replace(way="flex-start")
    records.learn(store, flex, STOCKOUT, store.now(), "job-1-1")
    assert store.asked == []
    records.learn(store, flex, GOT, store.now(), "job-1-2")
    assert attempts(store, flex) == [(GOT, "job-1-2")]


def test_nothing_is_read_where_nothing_is_known(store: Counted) -> None:
    assert records.known(store, OTHERS) == {}
    assert store.asked == ["list"]


def test_of_many_facts_only_those_are_read_that_say_something_of_the_plan(store: Counted) -> None:
    small, large, old = KEY._replace(size=4), KEY._replace(size=256), OTHERS[0]
    records.learn(store, old, STOCKOUT, store.now(), "job-1-1")
    age(store, WINDOW + 60)
    for key in (*OTHERS[1:], KEY, small, large, KEY._replace(way="on-demand")):
        records.learn(store, key, STOCKOUT, store.now(), "job-1-1")
    store.asked.clear()
    assert set(records.known(store, [KEY, old])) == {KEY, small}
    assert store.asked == ["list", "read_all"]
    assert len(records.everything(store)) == len(OTHERS) + 3


def test_a_lost_race_is_read_once_more_and_then_left(store: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    records.learn(store, KEY, STOCKOUT, store.now(), "job-1-1")
    swap = LocalStore.swap
    rivals, lost = iter(range(2, 9)), 1

    def raced(self: LocalStore, name: str, data: bytes, generation: int) -> int | None:
        if (number := next(rivals, None)) is not None and number <= lost + 1:
            fact = records.known(self, [KEY])[KEY]
            rival = facts.after(fact, Attempted(self.now(), STOCKOUT, f"job-{number}-1"))
            swap(self, name, records.encoded(KEY, rival), generation)
        return swap(self, name, data, generation)

    monkeypatch.setattr(LocalStore, "swap", raced)
    records.learn(store, KEY, GOT, store.now(), "job-50-1")
    assert [token for _, token in attempts(store)] == ["job-1-1", "job-50-1", "job-2-1"], "by their times"
    lost, rivals = 8, iter(range(2, 9))
    store.asked.clear()
    records.learn(store, KEY, GOT, store.now(), "job-51-1")
    assert "job-51-1" not in [token for _, token in attempts(store)], "it is a hint, and not worth a third try"
    assert store.asked.count("swap") == 2


@pytest.mark.parametrize("known", [False, True])
def test_a_write_that_seems_refused_and_was_made_is_recognised(store: Counted, known: bool) -> None:
    if known:
        records.learn(store, KEY, STOCKOUT, store.now() - AGE, "job-0-1")
    store.lost = 1
    records.learn(store, KEY, STOCKOUT, store.now() - AGE, "job-1-1")
    assert [token for _, token in attempts(store)][-1] == "job-1-1"
    store.asked.clear()
    store.lost = 1
    assert records.claim(store, KEY, "job-2-1", store.now())
    assert store.asked.count("swap") == 1


def test_an_aged_place_is_tried_by_the_first_that_claims_it(store: Counted) -> None:
    now = store.now() - facts.PROBE_LASTS
    records.learn(store, KEY, STOCKOUT, now - AGE, "job-1-1")
    assert records.claim(store, KEY, "job-2-1", now)
    assert records.claim(store, KEY, "job-2-1", now), "another process of the same attempt"
    assert not records.claim(store, KEY, "job-3-1", now)
    states = [
        facts.judge(records.known(store, [KEY]), [KEY], now, token)[KEY].state for token in ("job-2-1", "job-3-1")
    ]
    assert states == [AGED, PROBED]
    assert records.claim(store, KEY, "job-3-1", now + facts.PROBE_LASTS)
    records.learn(store, KEY, STOCKOUT, now + facts.PROBE_LASTS, "job-3-1")
    assert not records.claim(store, KEY, "job-4-1", now + facts.PROBE_LASTS), "it is known again"


def test_a_probe_that_first_waits_is_held_for_as_long(store: Counted) -> None:
    now = store.now()
    records.learn(store, KEY, STOCKOUT, now - AGE, "job-1-1")
    assert records.claim(store, KEY, "job-2-1", now, 300.0)
    assert not records.claim(store, KEY, "job-3-1", now + facts.PROBE_LASTS + 299.0)


def test_a_larger_size_is_claimed_though_only_a_smaller_one_is_known(store: Counted) -> None:
    now, small = store.now(), KEY._replace(size=4)
    records.learn(store, small, STOCKOUT, now - AGE, "job-1-1")
    assert records.claim(store, KEY, "job-2-1", now)
    assert not records.claim(store, KEY, "job-3-1", now)
    judged = facts.judge(records.known(store, [KEY]), [KEY], now, "job-3-1")[KEY]
    assert (judged.state, judged.size) == (PROBED, 4)


def test_one_of_several_that_decide_at_once_tries_and_the_others_go_elsewhere(store: Counted) -> None:
    plan = choices.plan(candidate("v6e-16", "spot", ("us-east5-a", "us-east5-b")))
    now = store.now()
    records.learn(store, KEY, STOCKOUT, now - AGE, "job-0-1")
    before = records.known(store, [KEY])

    def decided(token: str) -> str:
        def choose(known: Any, at: float) -> choosing.Selection:
            merged = known if known.get(KEY, Fact()).probe is not None else before  # all have read at the same time
            return choosing.first(plan, merged, at, seed=token)

        return records.decide(store, plan, token, choose).place

    assert [decided(f"job-{number}-1") for number in range(1, 6)] == ["us-east5-a", *["us-east5-b"] * 4]


@pytest.mark.parametrize(
    "damage",
    [
        b"", b"{", b"[]", b'{"wire":1}', os.urandom(100), b"x" * (1 << 17),
        wire.encode({**KEY._asdict(), "attempts": [{"at": float("nan"), "outcome": GOT, "token": ""}]}),
        wire.encode({**KEY._asdict(), "attempts": [{"at": 1.0, "outcome": "\x1b[2J", "token": ""}]}),
        wire.encode({**KEY._asdict(), "place": "us-east5-b", "attempts": []}),
    ],
    ids=range(9),
)  # fmt: skip
def test_a_damaged_fact_is_ignored_and_replaced_and_hides_no_other(store: Counted, damage: bytes) -> None:
    other = KEY._replace(size=4)
    records.learn(store, other, STOCKOUT, store.now(), "job-1-1")
    store.put(records.name_of(KEY), damage)
    assert set(records.known(store, [KEY])) == {other}
    assert set(records.everything(store)) == {other}
    records.learn(store, KEY, GOT, store.now(), "job-2-1")
    assert attempts(store) == [(GOT, "job-2-1")]


def test_attempts_that_lie_ahead_of_their_record_crowd_no_others_out(store: Counted) -> None:
    """Anybody who can write to the store can write a fact, with a clock of its own."""
    ahead = [Attempted(store.now() + 86400.0 + number, GOT, f"job-a-{number + 1}") for number in range(facts.MOST)]
    store.create(records.name_of(KEY), records.encoded(KEY, Fact(tuple(ahead))))
    records.learn(store, KEY, STOCKOUT, store.now(), "job-1-1")
    assert [one.token for one in records.known(store, [KEY])[KEY].attempts] == ["job-1-1"]


def test_a_newer_versions_fact_is_left_as_it_is(store: Counted) -> None:
    newer = json.dumps({**json.loads(records.encoded(KEY, Fact())), "wire": wire.WIRE + 1}).encode()
    fields = json.loads(newer)
    fields.pop("sum")
    store.put(records.name_of(KEY), json.dumps(fields).encode())
    assert records.known(store, [KEY]) == {}
    records.learn(store, KEY, GOT, store.now(), "job-2-1")
    record = store.read(records.name_of(KEY))
    assert record is not None and json.loads(record.data) == fields


def test_a_store_that_does_not_answer_is_no_error_of_a_job(store: Counted) -> None:
    plan = choices.plan(candidate("v6e-16", "spot", ("us-east5-a",)))
    records.learn(store, KEY, STOCKOUT, store.now() - AGE, "job-1-1")
    store.away = True
    records.learn(store, KEY, STOCKOUT, store.now(), "job-2-1")
    assert not records.claim(store, KEY, "job-2-1", store.now())
    chosen = records.decide(store, plan, "job-2-1", lambda known, now: choosing.first(plan, known, now, seed="job-2-1"))
    assert chosen.place == "us-east5-a"
    with pytest.raises(StoreError):
        records.everything(store)


def test_facts_that_nobody_changed_for_a_day_are_named_for_removal(store: Counted) -> None:
    records.learn(store, KEY, STOCKOUT, store.now(), "job-1-1")
    age(store, records.FORGOTTEN - 60)
    assert records.expired(store) == []
    age(store, records.FORGOTTEN + 60)
    records.learn(store, OTHERS[0], STOCKOUT, store.now(), "job-1-1")
    assert records.expired(store) == [records.name_of(KEY)]


def test_each_place_has_an_object_of_its_own_with_a_name_that_every_store_takes(store: Counted) -> None:
    strange = KEY._replace(backend="kubernetes", place=f"gke_p_us_c/{'n' * 63}:queue")
    keys = [KEY, strange, *(KEY._replace(size=size) for size in (4, 256)), KEY._replace(way="on-demand"), *OTHERS]
    assert len({records.name_of(key) for key in keys}) == len(keys) - (KEY in OTHERS)
    for key in keys:
        records.learn(store, key, GOT, store.now(), "job-1-1")
        assert attempts(store, key) == [(GOT, "job-1-1")]
    assert all(names.limit_of(records.name_of(key)) == 64 << 10 for key in keys)
