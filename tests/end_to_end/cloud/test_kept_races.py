"""`race=` and `keep=` together: the place that has won may be kept, and those that have not are deleted as ever."""

from __future__ import annotations

import urllib.parse
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.errors import JobError
from kinetic_orchestration.jobs.cleanup import kept_slices, reaper
from kinetic_orchestration.jobs.watching import usage
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.platforms.shared import places
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.wire.lease import CLAIMED, ENDED, FREE
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.cloud.cases import free, here, leases
from tests.end_to_end.cloud.conftest import ZONES
from tests.support.jobs import placements, verdicts, wait_running
from tests.support.waits import wait_until

WITHIN = 150.0


@pytest.fixture(autouse=True)
def _hurry(nothing_kept: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits between two places."""
    monkeypatch.setattr(places, "FIRST_WAIT", 0.5)
    monkeypatch.setattr(places, "PAUSE", 0.2)


def run(function: Any, *arguments: Any, **options: Any) -> JobHandle[Any]:
    """A job that asks two zones at once, and keeps the slice of the one that wins."""
    cloud = kinetic.TpuVm(zones=list(ZONES[:2]))
    asked = {"accelerator": "v5e-1", "race": 2, "keep": "10m", "cloud": cloud, **options}
    return kinetic.run(**asked)(function).run_async(*arguments)


def won_by_the_second(cloud: Emulator, function: Any, *arguments: Any, **options: Any) -> JobHandle[Any]:
    """A job of which the first place waits for capacity until all is over."""
    cloud.stockout(ZONES[0], "wait")
    job = run(function, *arguments, **options)
    wait_until(lambda: job._job.store.read(names.won(job.job_id, 1)) is not None, "a winner", within=90.0)
    return job


def requested(cloud: Emulator) -> list[str]:
    """The slices that are there or were asked for."""
    return sorted(str(one["name"]).rpartition("/")[2] for one in cloud.queued_resources())


def test_the_next_job_takes_the_slice_that_the_second_place_of_a_race_has_left(cloud: Emulator, jobs: Any) -> None:
    first = won_by_the_second(cloud, jobs.index)
    assert first.result(timeout=WITHIN) == 0
    offered = free()
    raced = placements(first)[0]["rivals"][0]
    assert (offered.slice, offered.placement["zone"]) == (raced["name"], ZONES[1])
    assert offered.slice.endswith("-1r1")
    assert not {"rival", "rivals", "won"} & {*offered.placement}, "it is one place for whoever takes it"
    wait_until(lambda: requested(cloud) == [offered.slice], "the loser is gone", within=60.0)
    second = run(jobs.index)
    assert second.result(timeout=WITHIN) == 0
    (placement,) = placements(second)
    assert (placement["name"], placement["lease"]) == (offered.slice, {"slice": offered.slice, "epoch": 1})
    assert "rivals" not in placement, "what is warm is taken before any race"
    assert second._job.store.read(names.won(second.job_id, 1)) is None
    wait_until(lambda: leases()[0].epoch == 1 and leases()[0].state == FREE, lambda: str(leases()), within=90.0)
    (stay,) = usage.stays(first._job.store, first.job_id, kept=True)
    assert (stay.zone, stay.is_offered) == (ZONES[1], False)
    assert len(leases()[0].idle) == 1, "told in whole seconds of the store, so that it may be none"
    assert stay.idle == sum(one.ended - one.began for one in leases()[0].idle)
    assert usage.stays(first._job.store, second.job_id, kept=True)[0].is_offered
    third = run(jobs.index, keep="0s", race=1, cloud=kinetic.TpuVm(zones=[ZONES[1]]))
    assert third.result(timeout=WITHIN) == 0, "nor does it matter to one that does not race"
    assert cloud.ledger.count("created", "queued resource") == 2
    cloud.wait_until_empty(90)


@pytest.mark.slow
@pytest.mark.turn
def test_a_retry_takes_what_its_own_race_has_left(cloud: Emulator, jobs: Any) -> None:
    job = won_by_the_second(cloud, jobs.fails_first, keep="10m", retry=kinetic.Retry(user=1))
    assert job.result(timeout=WITHIN) == 2
    raced, taken = placements(job)
    assert taken["lease"]["slice"] == raced["rivals"][0]["name"]
    assert [one.cause for one in verdicts(job)] == [wire.USER, ""]
    assert cloud.ledger.count("created", "queued resource") == 2


@pytest.mark.slow
@pytest.mark.turn
def test_the_reaper_alone_deletes_the_loser_and_leaves_what_is_kept(
    cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody follows the job to its end."""
    job = won_by_the_second(cloud, jobs.index)
    store, backend = here()
    wait_until(lambda: store.read(names.verdict(job.job_id, 1)) is not None, "its verdict", within=90.0)
    kept = free().slice
    loser = kept.removesuffix("r1")
    assert requested(cloud) == [loser, kept]
    monkeypatch.setattr(reaper, "SETTLED", -600.0)
    found = settings.load()
    for dry_run in (True, False):
        reaped = reaper.reap(store, backend, found, patience=60.0, dry_run=dry_run)
        assert [one.name for one in reaped if one.what == reaper.PLACEMENT] == [loser]
    assert requested(cloud) == [kept]
    assert [one.state for one in leases()] == [FREE]
    taken = run(jobs.index, keep="0s")
    assert taken.result(timeout=WITHIN) == 0
    assert placements(taken)[0]["name"] == kept
    cloud.wait_until_empty(90)


@pytest.mark.slow
@pytest.mark.turn
def test_nothing_of_the_race_deletes_what_serves_another_job_by_now(cloud: Emulator, jobs: Any, tmp_path: Path) -> None:
    first = won_by_the_second(cloud, jobs.index)
    assert first.result(timeout=WITHIN) == 0
    kept = free().slice
    second = run(jobs.until, str(tmp_path / "go"), keep="0s")
    wait_running(second)
    first.cleanup()
    first.cancel("it is not needed any more")
    store, backend = here()
    reaper.reap(store, backend, settings.load())
    wait_until(lambda: requested(cloud) == [kept], "the loser is gone", within=60.0)
    assert [(one.slice, one.state) for one in leases()] == [(kept, CLAIMED)]
    (tmp_path / "go").touch()
    assert second.result(timeout=WITHIN) == 1
    assert len(verdicts(second)) == 1
    cloud.wait_until_empty(90)


@pytest.mark.slow
@pytest.mark.turn
def test_a_cancel_while_it_runs_on_a_kept_slice_of_a_race_leaves_nothing(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    first = won_by_the_second(cloud, jobs.index)
    assert first.result(timeout=WITHIN) == 0
    free()
    second = run(jobs.until, str(tmp_path / "go"))
    wait_running(second)
    second.cancel("no longer needed")
    with pytest.raises(JobError, match="no longer needed"):
        second.result(timeout=WITHIN)
    cloud.wait_until_empty(90)
    assert [one.state for one in leases()] == [ENDED]


@pytest.mark.slow
@pytest.mark.turn
def test_the_end_of_a_run_releases_what_its_race_has_left_or_is_about_to(cloud: Emulator, jobs: Any) -> None:
    job = won_by_the_second(cloud, jobs.index)
    assert job.result(timeout=WITHIN) == 0
    (name,) = [place["name"] for place in placements(job)[0]["rivals"]]
    run_ = ("tests", "", "a run")
    assert kept_slices.release_run(here()[0], settings.load(), run_, [job.job_id]) == 1
    cloud.wait_until_empty(90)
    assert [(one.slice, one.state) for one in leases()] == [(name, ENDED)]


def test_a_job_with_neither_asks_nothing_about_races_and_kept_slices(
    cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do its hosts."""
    targets, meet = list[str](), cloud.storage.meet

    def heard(request: Any) -> Any:
        targets.append(urllib.parse.unquote(request.target))
        return meet(request)

    monkeypatch.setattr(cloud.storage, "meet", heard)
    job = run(jobs.fails_first, race=1, keep=None, retry=kinetic.Retry(user=1))
    assert job.result(timeout=WITHIN) == 2
    cloud.wait_until_empty(60)
    assert any(names.verdict(job.job_id, 1) in target for target in targets), "what hosts and clients ask is heard"
    of_others = ("won.json", "/lost-", "/held-", "/gone-", names.SLICES)
    assert [target for target in targets if any(word in target for word in of_others)] == []
