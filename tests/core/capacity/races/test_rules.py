"""The rules of races: what follows from the places of an attempt."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.capacity.races import backend, records, rules
from kinetic_orchestration.capacity.races.rules import Failed
from kinetic_orchestration.capacity.shares import line
from kinetic_orchestration.plan.values import (
    ABSENT,
    GONE,
    PARTIAL,
    PRESENT,
    PROVISIONING,
    QUEUED,
    UNKNOWN,
    WOUNDED,
    Freed,
    Intent,
    Observation,
    Staged,
)
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.local.store import open_local
from kinetic_orchestration.protocol import names, wire
from tests.support import choices

FIRST = {"backend": "tpu-vm", "zone": "a", "name": "k-1", "wait": 3.0, "since": 5.0, "tried": ["x"], "dropped": []}
SECOND = {"backend": "tpu-vm", "zone": "b", "name": "k-1r1", "wait": 0.0, "since": 0.0, "tried": [], "dropped": []}


def intent(*rivals: dict[str, Any]) -> Intent:
    return Intent(1, "boot", rules.entered(FIRST, rivals), 0.0, 0.0)


def joined(*seen: Observation, failed: dict[int, Failed] | None = None) -> Observation:
    return rules.joined([FIRST, SECOND][: len(seen)], seen, failed or {})


def test_all_places_wait_alike_and_have_numbers_and_one_place_is_no_race() -> None:
    assert rules.entered(FIRST, []) == FIRST
    raced = intent(SECOND)
    assert raced.races
    assert [(one["zone"], one["rival"], one["wait"], one["since"]) for one in raced.places] == [
        ("a", 0, 3.0, 5.0), ("b", 1, 3.0, 5.0),
    ]  # fmt: skip


def test_the_place_that_has_won_is_the_attempts_with_the_history_of_the_first() -> None:
    won = rules.decided(intent(SECOND), 1)
    assert not won.races
    assert (won.placement["zone"], won.placement["name"], won.placement["tried"]) == ("b", "k-1r1", ["x"])
    assert [one["zone"] for one in won.placement["rivals"]] == ["a"]
    assert [one["zone"] for one in won.places] == ["a", "b"]
    assert rules.decided(won, 0) == won  # once
    assert rules.decided(intent(SECOND), 2) == intent(SECOND)  # nobody


@pytest.mark.parametrize(
    ("one", "other", "state", "lacks"),
    [
        (QUEUED, PRESENT, PRESENT, False),
        (PRESENT, ABSENT, PRESENT, False),  # what has hosts needs no other place any more
        (PROVISIONING, QUEUED, PROVISIONING, False),
        (QUEUED, ABSENT, QUEUED, True),
        (ABSENT, ABSENT, ABSENT, False),  # by which it is asked for
        (UNKNOWN, QUEUED, QUEUED, False),
        (GONE, QUEUED, QUEUED, False),
        (WOUNDED, QUEUED, QUEUED, False),  # none of its programs has begun
        (PARTIAL, QUEUED, PARTIAL, True),
        (GONE, GONE, GONE, False),
        (WOUNDED, GONE, GONE, False),
    ],
)
def test_the_best_of_those_that_may_still_win_stands_for_all(one: str, other: str, state: str, lacks: bool) -> None:
    for seen in ((one, other), (other, one)):
        found = joined(*(Observation(each, each) for each in seen))
        assert (found.state, found.lacks) == (state, lacks)


def test_one_that_failed_for_good_is_out_and_told() -> None:
    found = joined(Observation(ABSENT), Observation(QUEUED, "waits"), failed={0: Failed(wire.STOCKOUT, "a: nothing")})
    assert (found.state, found.lacks, found.message) == (QUEUED, False, "b: waits; stockout: a: nothing")


def test_a_race_has_ended_once_all_have_with_the_answer_of_each_and_the_gravest_cause() -> None:
    found = joined(
        Observation(GONE, "refused", wire.CONFIGURATION), Observation(ABSENT), failed={1: Failed(wire.STOCKOUT, "none")}
    )
    assert (found.state, found.cause) == (GONE, wire.CONFIGURATION)
    assert found.message == "a: configuration: refused; b: stockout: none"
    assert (
        rules.ended([FIRST, SECOND], {0: Failed(wire.QUOTA, "q"), 1: Failed(wire.STOCKOUT, "s")}).cause == wire.STOCKOUT
    )


def test_it_was_charged_for_since_the_first_of_them_was() -> None:
    assert joined(Observation(PRESENT, charged=20.0), Observation(GONE, charged=10.0)).charged == 10.0


def test_the_worst_release_is_that_of_all() -> None:
    assert rules.freed([Freed.DONE, Freed.REFUSED, Freed.PARTLY]) is Freed.REFUSED
    assert rules.freed([]) is Freed.DONE
    assert rules.freed([Freed.KEPT, Freed.REFUSED]) is Freed.REFUSED, "what is left has to be asked for again"
    assert rules.freed([Freed.UNDER_WAY, Freed.KEPT, Freed.DONE]) is Freed.KEPT


def test_money_is_kept_back_for_the_others_and_never_all_of_it() -> None:
    assert rules.affordable(0.0, 2, 300.0) == 0.0
    assert rules.affordable(3600.0, 1, 300.0) == 3600.0
    assert rules.affordable(3600.0, 3, 300.0) == 3000.0
    assert rules.affordable(3600.0, 3, 900.0) == 1800.0
    assert rules.affordable(400.0, 2, 300.0) == 200.0


def test_four_requests_are_made_at_a_time_and_the_next_one_says_that_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real threads, of which each holds its request until all are there."""
    monkeypatch.setattr(backend, "A_MOMENT", 0.05)
    full, go, said = threading.Barrier(backend.CREATIONS + 1), threading.Event(), list[str]()

    class Slow:
        kind, charges, shared, parallel = "slow", True, True, 1

        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

        def submit(self, _asked: Any) -> str:
            full.wait(30)
            assert go.wait(30)
            return ""

    racing = backend.Racing(Slow(), None)  # type: ignore[arg-type]
    asked: Any = None
    threads = [threading.Thread(target=lambda: said.append(racing._ask(asked))) for _ in range(backend.CREATIONS)]
    for thread in threads:
        thread.start()
    full.wait(30)
    assert racing._ask(asked).startswith("waiting: 4 other requests")
    go.set()
    for thread in threads:
        thread.join(30)
    assert said == [""] * backend.CREATIONS


def test_no_place_is_asked_once_another_one_has_won(tmp_path: Path) -> None:
    """The first one's hosts win while the others are still being asked."""
    store, asked = open_local(tmp_path, "test"), list[str]()

    class Platform:
        kind, charges, shared, parallel = "platform", True, True, 1

        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

        def observe(self, placements: list[Any]) -> list[Observation]:
            return [Observation(ABSENT) for _ in placements]

        def submit(self, one: Any) -> str:
            asked.append(one.intent.placement["name"])
            store.create(names.won("job-1", 1), wire.encode({"rival": 0, "writer": "host"}))
            return ""

    plan = choices.plan(choices.candidate("v6e-16"))
    submission = Submission(plan, Staged(None, "", "", (), (), (), (), None, ""), "job-1", "0" * 64, intent(SECOND), {})
    assert backend.Racing(Platform(), store).submit(submission) == ""  # type: ignore[arg-type]
    assert asked == ["k-1"]


@pytest.mark.parametrize(
    ("given_up", "asked", "released"),
    [("looks", ["k-1"], []), ("asks", ["k-1", "k-1r1"], ["k-1r1"]), ("wins", ["k-1", "k-1r1"], [])],
)
def test_a_place_that_another_follower_gives_up_is_not_asked_again_or_is_withdrawn_at_once(
    tmp_path: Path, given_up: str, asked: list[str], released: list[str]
) -> None:
    """It records that and releases the place between two reads of this one: before it looks what is there, or while it
    makes its call. What has won by then is the attempt's, and stays."""
    store, calls, gone = open_local(tmp_path, "test"), list[str](), list[str]()

    def give_up(when: str) -> None:
        if when == given_up:
            records.fail(store, "job-1", 1, 1, Failed(wire.INFRASTRUCTURE, "silent"), "another")

    class Platform:
        kind, charges, shared, parallel = "platform", True, True, 1

        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

        def observe(self, placements: list[Any]) -> list[Observation]:
            give_up("looks")
            return [Observation(ABSENT) for _ in placements]

        def submit(self, one: Any) -> str:
            calls.append(one.intent.placement["name"])
            if len(calls) > 1:
                give_up(given_up)
            if len(calls) > 1 and given_up == "wins":
                store.create(names.won("job-1", 1), wire.encode({"rival": 1, "writer": "host"}))
            return ""

        def release(self, place: Any) -> Freed:
            gone.append(place["name"])
            return Freed.DONE

    plan = choices.plan(choices.candidate("v6e-16"))
    submission = Submission(plan, Staged(None, "", "", (), (), (), (), None, ""), "job-1", "0" * 64, intent(SECOND), {})
    assert backend.Racing(Platform(), store).submit(submission) == ""  # type: ignore[arg-type]
    assert (calls, gone) == (asked, released)


def test_all_places_count_where_chips_are_shared() -> None:
    """Its turn is for the chips of all; a turn for those of one place covers no race."""
    turn = {"shares": "v6e=64", "weight": 1.0}
    alone = replace(choices.plan(choices.candidate("v6e-16")), choices=(), turn=turn)
    raced = replace(alone, race=2)
    each = [line.line_of(None, one, "job-1", 1, 0.0, 60.0) for one in (alone, raced)]  # type: ignore[arg-type]
    assert [one.want.chips for one in each if one is not None] == [16, 32]
    one, both = (found.want for found in each if found is not None)
    assert line.is_covered(raced, both)
    assert not line.is_covered(raced, one)
    assert line.is_exactly(raced, both)


def test_it_is_told_whose_hosts_are_there_and_which_have_failed_and_why() -> None:
    found = joined(Observation(PRESENT), Observation(GONE, "died", wire.PREEMPTION))
    assert (found.there, found.lost) == ((0,), ((1, wire.PREEMPTION, "died"),))
    assert (
        joined(Observation(PRESENT), Observation(QUEUED), failed={0: Failed(wire.INFRASTRUCTURE, "silent")}).there == ()
    )
