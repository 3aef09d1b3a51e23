"""Two places at once: the first that has its hosts runs the program, and the other is released before it does."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.capacity import records as facts
from kinetic_orchestration.capacity.facts import GOT, STOCKOUT
from kinetic_orchestration.capacity.races import backend as racing
from kinetic_orchestration.cli import main
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.jobs import lifecycle, trust
from kinetic_orchestration.jobs.cleanup import reaper
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.values import Change, Event
from kinetic_orchestration.platforms.registry import open_backend, open_store
from kinetic_orchestration.platforms.shared import places
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.schema import Wrong
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.cloud.conftest import ZONES
from tests.support.jobs import placements, verdicts, wait_running
from tests.support.waits import wait_until


@pytest.fixture(autouse=True)
def _hurry(cloud: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "FIRST_WAIT", 0.5)
    monkeypatch.setattr(places, "PAUSE", 0.2)


def run(function: Any, *arguments: Any, zones: Sequence[str] = ZONES[:2], **options: Any) -> JobHandle[Any]:
    """A job of one way that asks two of these zones at once."""
    cloud = kinetic.TpuVm(zones=list(zones))
    asked = {"accelerator": "v5e-1", "race": 2, "cloud": cloud, **options}
    return kinetic.run(**asked)(function).run_async(*arguments)


def winner(job: JobHandle[Any], attempt: int = 1) -> int:
    record = job._job.store.read(names.won(job.job_id, attempt))
    assert record is not None
    return int(wire.decode(record.data)["rival"])


def requested(cloud: Emulator, job: JobHandle[Any]) -> list[str]:
    """The zones in which something of the job is there."""
    own = job.job_id.removeprefix("job-")
    return sorted(str(one["name"]).split("/")[3] for one in cloud.queued_resources() if own in str(one["name"]))


@contextmanager
def following(job: JobHandle[Any], within: float = 150.0) -> Iterator[list[str]]:
    """Somebody who follows the job beside the test, and is told how it goes on."""
    said: list[str] = []

    def hear(event: Event) -> None:
        if isinstance(event, Change):
            said.append(f"{event.phase}: {event.message}")

    thread = threading.Thread(target=lambda: job.follow(hear, timeout=within))
    thread.start()
    try:
        yield said
    finally:
        thread.join(within + 30.0)
        assert not thread.is_alive()


def starts(job: JobHandle[Any]) -> list[str]:
    found = job._job.store.list(f"{names.job(job.job_id)}out/")
    return [one.name for one in found if one.name.endswith("started.json")]


def test_the_second_zone_has_hosts_while_the_first_waits_and_the_first_is_withdrawn(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    cloud.stockout(ZONES[0], "wait")
    go = tmp_path / "go"
    job = run(jobs.until, str(go))
    with following(job) as said:
        wait_running(job)
        (placement,) = placements(job)
        assert [placement["zone"], *(one["zone"] for one in placement["rivals"])] == list(ZONES[:2])
        assert winner(job) == 1
        wait_until(lambda: requested(cloud, job) == [ZONES[1]], "the loser is released", pause=0.2)
        assert job.zone == ZONES[1]
        go.touch()
    assert job.result(timeout=60) == 1
    assert any(ZONES[0] in one and ZONES[1] in one for one in said), said
    assert len(starts(job)) == 1
    assert [one.kind for one in verdicts(job)] == [wire.COMMITTED]
    cloud.wait_until_empty(60)


def test_of_two_that_have_their_hosts_at_once_one_runs_the_program_and_the_other_leaves_nothing(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    job = run(jobs.leaves_mark, str(tmp_path / "marks"))
    job.result(timeout=150)
    assert len((tmp_path / "marks").read_text().splitlines()) == 1
    assert len(starts(job)) == 1
    assert [one.kind for one in verdicts(job)] == [wire.COMMITTED]
    assert job.attempts() == 1
    cloud.wait_until_empty(60)


@pytest.mark.slow
@pytest.mark.turn
def test_one_that_is_ready_after_the_other_runs_deletes_itself_though_nobody_follows(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    """Its host 0 finds that another place has won: no client has to live for that."""
    cloud.stockout(ZONES[0], "wait")
    job = run(jobs.until, str(tmp_path / "go"))
    wait_running(job)
    assert requested(cloud, job) == sorted(ZONES[:2])
    cloud.restock(ZONES[0])
    wait_until(lambda: requested(cloud, job) == [ZONES[1]], "the late one has gone", pause=0.2)
    wait_running(job)
    (tmp_path / "go").touch()
    assert job.result(timeout=60) == 1
    assert len(starts(job)) == 1
    cloud.wait_until_empty(60)


@pytest.mark.slow
@pytest.mark.turn
def test_a_place_that_refuses_is_not_asked_again_and_the_other_goes_on(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    cloud.stockout(ZONES[0], "refuse")
    cloud.stockout(ZONES[1], "wait")
    job = run(jobs.attempt)
    with following(job):
        wait_until(lambda: requested(cloud, job) == [ZONES[1]], "the second waits", pause=0.1)
        record = job._job.store.read(names.lost(job.job_id, 1, 0))
        assert record is not None
        assert wire.Verdict.decode(record.data).cause == wire.STOCKOUT
        cloud.restock(ZONES[1])
    assert job.result(timeout=100) == 1
    assert len(placements(job)) == 1
    cloud.wait_until_empty(60)


@pytest.mark.slow
@pytest.mark.turn
def test_an_attempt_ends_once_all_its_places_have_refused_with_the_answer_of_each(cloud: Emulator, jobs: Any) -> None:
    for zone in ZONES[:2]:
        cloud.stockout(zone, "refuse")
    job = run(jobs.attempt, zones=ZONES)
    assert job.result(timeout=150) == 1
    first, second = placements(job)
    assert (second["zone"], second.get("rivals", [])) == (ZONES[2], [])
    assert first["rivals"][0]["zone"] == ZONES[1]
    reason = verdicts(job)[0].reason
    assert ZONES[0] in reason
    assert ZONES[1] in reason
    assert verdicts(job)[0].cause == wire.STOCKOUT
    cloud.wait_until_empty(60)


@pytest.mark.slow
@pytest.mark.turn
def test_a_few_create_calls_are_made_at_a_time_and_the_others_wait_for_a_moment(
    cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if other races of this process were making theirs just now."""
    turns = threading.BoundedSemaphore(racing.CREATIONS)
    monkeypatch.setattr(racing, "_creations", turns)
    monkeypatch.setattr(racing, "A_MOMENT", 0.1)
    assert racing.CREATIONS <= 8, "of 100 at once thousands failed: marin#6138 caps them at 8"
    for _ in range(racing.CREATIONS):
        turns.acquire()
    job = run(jobs.attempt)
    with following(job) as said:
        wait_until(
            lambda: any("4 other requests of races are being made" in one for one in said), "it waits", within=60.0
        )
        assert requested(cloud, job) == []
        turns.release()
        assert job.result(timeout=100) == 1
    assert len(starts(job)) == 1
    cloud.wait_until_empty(60)
    for _ in range(racing.CREATIONS - 1):
        turns.release()  # raises if one was given back twice
    assert all(turns.acquire(blocking=False) for _ in range(racing.CREATIONS))


def test_a_cancel_withdraws_both_that_wait(cloud: Emulator, jobs: Any) -> None:
    for zone in ZONES[:2]:
        cloud.stockout(zone, "wait")
    job = run(jobs.attempt)
    wait_until(lambda: requested(cloud, job) == sorted(ZONES[:2]), "both are asked", pause=0.1)
    job.cancel()
    assert job.status().value == "CANCELLED"
    cloud.wait_until_empty(60)


@pytest.mark.slow
@pytest.mark.turn
def test_what_only_one_place_has_is_no_race(cloud: Emulator, jobs: Any) -> None:
    with pytest.raises(UsageError, match=f"one place to ask, {ZONES[0]}"):
        run(jobs.attempt, zones=ZONES[:1])


RACES = "kinetic_orchestration.capacity.races.backend"


@pytest.mark.slow
@pytest.mark.turn
@pytest.mark.parametrize(
    ("at", "nth"),
    [
        pytest.param(f"{RACES}.submit", 1, id="after the intent"),
        pytest.param(f"{RACES}._ask", 1, id="before the first create call"),
        pytest.param(f"{RACES}._ask", 2, id="between the create calls"),
        pytest.param("kinetic_orchestration.jobs.following.drivers.follow", 1, id="after both"),
        pytest.param(f"{RACES}.release_losers", 1, id="before it releases the loser"),
        pytest.param(f"{RACES}.release", 1, id="before it releases both"),
    ],
)
def test_a_submitter_of_a_race_is_killed_and_the_next_one_goes_on(
    cloud: Emulator, submitters: Any, tmp_path: Path, at: str, nth: int
) -> None:
    marks, value = tmp_path / "marks", tmp_path / "value"
    ended = submitters.do("submit", key="one", marks=str(marks), at=at, nth=nth, race=2)
    assert ended == -9 or (ended == 0 and "release_losers" in at)  # the loser may have been gone before
    assert submitters.do("submit", report=value, key="one", marks=str(marks), race=2) == 0
    assert marks.read_text().splitlines() == [json.loads(value.read_text())]
    cloud.wait_until_empty(60)


@pytest.mark.slow
@pytest.mark.turn
def test_a_race_of_four_hosts_each_is_won_by_one_slice(cloud: Emulator, jobs: Any) -> None:
    job = run(jobs.writes_lines, 3, accelerator="v5e-16")
    assert job.result(timeout=150) == 3
    assert len(starts(job)) == 4
    assert [one.kind for one in verdicts(job)] == [wire.COMMITTED]
    cloud.wait_until_empty(100)


@pytest.mark.slow
@pytest.mark.turn
def test_the_reaper_alone_deletes_a_loser_that_waits(cloud: Emulator, jobs: Any, tmp_path: Path) -> None:
    cloud.stockout(ZONES[0], "wait")
    job = run(jobs.until, str(tmp_path / "go"))
    wait_running(job)
    assert requested(cloud, job) == sorted(ZONES[:2])
    here = settings.load()
    store = open_store(here.store, here.deployment)
    reaped = reaper.reap(store, open_backend("tpu-vm", here), here, patience=60.0)
    assert [one.why for one in reaped if one.what == reaper.PLACEMENT] == [
        "another place has won the race of its attempt"
    ]
    assert requested(cloud, job) == [ZONES[1]]
    wait_running(job)
    (tmp_path / "go").touch()
    assert job.result(timeout=60) == 1
    cloud.wait_until_empty(60)


@pytest.mark.slow
@pytest.mark.turn
def test_what_the_loser_has_cost_is_part_of_the_cost_and_told_apart(
    cloud: Emulator, jobs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both get their hosts, and that which loses is deleted as soon as it knows."""

    def ready() -> list[str]:
        return [entry.name for entry in cloud.ledger.entries if entry.what == "ready"]

    job = run(jobs.until, str(tmp_path / "go"), limits=kinetic.Limits(cost=5.0))
    wait_until(lambda: len(ready()) == 2, "both have hosts", pause=0.05)
    both = ready()
    with following(job):
        wait_running(job)
        wait_until(lambda: len(requested(cloud, job)) == 1, "the loser is gone", pause=0.1)
        (tmp_path / "go").touch()
    assert job.result(timeout=60) == 1
    cloud.wait_until_empty(60)
    cost, charged = job.cost(), {node: cloud.ledger.chip_seconds(node) for node in both}
    winning = [node for node in both if f"/{job.zone}/" in node]
    assert len(winning) == 1
    (lost,) = (seconds for node, seconds in charged.items() if node not in winning)
    assert lost - 1.0 < cost.beside_seconds < lost + 5.0
    assert cost.beside_seconds > 0.0
    assert cost.ready_seconds == pytest.approx(charged[winning[0]], abs=5.0)
    assert cost.usd is not None
    assert cost.beside_usd is not None
    assert cost.usd > cost.beside_usd > 0.0
    assert "of places that did not win their race" in str(cost)
    assert main(["cost", job.job_id]) == 0
    [row] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("races")]
    assert re.search(r" of places that did not win, nothing here, (<?\$\d+\.\d\d) on Cloud TPU ", row), row
    record = job._job.store.read(names.intent(job.job_id, 1))
    assert record is not None
    whole = job._job.plan().affordable
    assert wire.decode(record.data)["affordable"] == pytest.approx(whole - lifecycle.SILENT_START, abs=1.0)
    cloud.wait_until_empty(60)


@pytest.mark.slow
@pytest.mark.turn
def test_a_place_whose_hosts_stay_silent_is_released_alone_and_the_other_wins(
    cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine of the first never boots; the second has no hosts before that has been given up."""
    cloud.never_boots(0)
    cloud.stockout(ZONES[1], "wait")
    monkeypatch.setattr(lifecycle, "SILENT_START", 2.0)
    job = run(jobs.attempt)
    with following(job):
        wait_until(lambda: requested(cloud, job) == [ZONES[1]], "the silent one is released", within=60, pause=0.2)
        lost = job._job.store.read(names.lost(job.job_id, 1, 0))
        assert lost is not None
        assert wire.Verdict.decode(lost.data).cause == wire.INFRASTRUCTURE
        assert "none of them has started its agent" in wire.Verdict.decode(lost.data).reason
        monkeypatch.setattr(lifecycle, "SILENT_START", 900.0)
        cloud.restock(ZONES[1])
    assert job.result(timeout=100) == 1
    assert winner(job) == 1
    assert [one.kind for one in verdicts(job)] == [wire.COMMITTED]
    cloud.wait_until_empty(60)


@pytest.mark.slow
@pytest.mark.turn
def test_with_a_signing_key_a_forged_winner_is_not_believed_and_what_runs_stays(
    cloud: Emulator, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who can write to the bucket says that the other place has won: nobody releases the one that runs."""
    monkeypatch.setenv("KINETIC_SIGNING_KEY", "a key that several processes have")
    cloud.stockout(ZONES[0], "wait")
    job = run(jobs.until, str(tmp_path / "go"))
    wait_running(job)
    store, name = job._job.store, names.won(job.job_id, 1)
    true = store.read(name)
    assert true is not None
    store.put(name, wire.encode({"rival": 0, "writer": "somebody"}))
    here = settings.load()
    reaped = list(reaper._placements(store, job._job.backend, dry_run=False, believed=trust.of(here)))
    assert [one for one in reaped if "won the race" in one.why] == []
    follower = Follower(job._job)
    for _ in range(3):
        assert follower.step() is None
    assert requested(cloud, job) == sorted(ZONES[:2])  # neither is known to have lost
    store.put(name, true.data)
    with following(job):
        wait_until(lambda: requested(cloud, job) == [ZONES[1]], "the loser is released", pause=0.2)
        (tmp_path / "go").touch()
    assert job.result(timeout=60) == 1
    cloud.wait_until_empty(60)


@pytest.mark.slow
@pytest.mark.turn
def test_two_choices_of_two_services_race(cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The TPU waits, so the VM with a GPU has the job; everything that is told is of that one."""
    monkeypatch.delenv("KINETIC_BACKEND", raising=False)
    cloud.stockout(ZONES[0], "wait")
    ways = [
        kinetic.Choice("v5e-4", cloud=kinetic.TpuVm(zones=[ZONES[0]])),
        kinetic.Choice("l4", cloud=kinetic.Compute(zones=[ZONES[1]])),
    ]
    job = kinetic.run(accelerator=ways, race=2)(jobs.hardware).run_async()
    assert job.result(timeout=150)[0] == 1
    assert (job.backend, job.accelerator, job.zone) == ("compute", "l4", ZONES[1])
    assert job.chosen.startswith(f"l4 on-demand in {ZONES[1]}, ")
    assert f"it won against v5e-4 on-demand in {ZONES[0]}" in job.chosen
    assert len(placements(job)) == 1
    cloud.wait_until_empty(60)


@pytest.mark.slow
@pytest.mark.turn
def test_a_forged_rival_leads_nowhere(cloud: Emulator, jobs: Any) -> None:
    job = run(jobs.attempt)
    (placement,) = placements(job)
    allowed = job._job.within
    assert allowed is not None
    assert allowed.checked(placement, job.job_id, 1)["rivals"][0]["zone"] == ZONES[1]
    (rival,) = placement["rivals"]
    another = {**rival, "rival": 2, "name": rival["name"].replace("r1", "r2"), "zone": ZONES[2]}
    for forged in (
        {"rivals": []}, {"rivals": [{**rival, "zone": "us-east1-a"}]}, {"rivals": [{**rival, "zone": ZONES[0]}]},
        {"rivals": [{**rival, "name": placement["name"]}]}, {"rivals": [{**rival, "rival": 0}]},
        {"rivals": [rival, another]}, {"rivals": [{**rival, "project": "another"}]},
    ):  # fmt: skip
        with pytest.raises(Wrong):
            allowed.checked({**placement, **forged}, job.job_id, 1)
    assert job.result(timeout=120) == 1
    cloud.wait_until_empty(60)


@pytest.mark.slow
@pytest.mark.turn
def test_what_each_place_has_met_is_learned(cloud: Emulator, jobs: Any, tmp_path: Path) -> None:
    """One has nothing, which its queued resource says later; the other has hosts."""
    cloud.stockout(ZONES[0], "fail")
    ways = [
        kinetic.Choice(name, cloud=kinetic.TpuVm(zones=[zone]))
        for name, zone in zip(("v5e-4", "v5e-8"), ZONES, strict=False)
    ]
    job = kinetic.run(accelerator=ways, race=2)(jobs.until).run_async(str(tmp_path / "go"))
    with following(job):
        wait_running(job)
        wait_until(lambda: requested(cloud, job) == [ZONES[1]], "the loser is released", pause=0.2)
        (tmp_path / "go").touch()
    assert job.result(timeout=60) == 1
    found = facts.everything(job._job.store)
    assert {key.place: [one.outcome for one in fact.attempts] for key, fact in found.items()} == {
        ZONES[0]: [STOCKOUT], ZONES[1]: [GOT],
    }  # fmt: skip
    cloud.wait_until_empty(60)
