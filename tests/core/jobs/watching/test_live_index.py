"""The roll of jobs that have not ended: what lists them asks of no job that has."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.api.opening import place_of
from kinetic_orchestration.cli import main
from kinetic_orchestration.jobs.following.drivers import follow
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.watching import live_index
from kinetic_orchestration.platforms.local.store import LocalStore
from kinetic_orchestration.protocol import names
from kinetic_orchestration.testing import Emulator


@kinetic.run(accelerator="cpu")
def number() -> int:
    return 7


@kinetic.run(accelerator="cpu")
def wait_for(path: str) -> str:
    import os
    import time

    open(path + ".began", "w").close()  # noqa: PTH123 - it has no Path
    for _ in range(600):
        if os.path.exists(path):
            return "seen"
        time.sleep(0.05)
    raise TimeoutError(path)


def on_the_roll() -> list[str]:
    store, _, _ = place_of()
    return [entry.name for entry in store.list(names.LIVE)]


def test_a_job_is_on_the_roll_from_before_it_exists_until_it_was_followed_to_its_end(home: Path) -> None:
    flag = home / "go"
    job = wait_for.run_async(str(flag))
    assert on_the_roll() == [names.live(job.job_id)]
    assert [each.job_id for each in kinetic.list_jobs()] == [job.job_id]
    assert not job.status().final
    flag.touch()
    while not job.status().final:
        time.sleep(0.05)
    assert on_the_roll() == []
    assert kinetic.list_jobs() == [] and job.result() == "seen"


def test_a_job_that_has_ended_is_struck_off_once(monkeypatch: pytest.MonkeyPatch) -> None:
    job, deleted = number.run_async(), list[str]()
    delete = LocalStore.delete

    def counted(store: LocalStore, name: str) -> bool:
        deleted.append(name)
        return delete(store, name)

    monkeypatch.setattr(LocalStore, "delete", counted)
    follower = Follower(job._job)
    assert not follower.saw_live
    assert follow(follower, timeout=60) is not None
    assert deleted == [names.live(job.job_id)] * follower.saw_live  # it may have ended before the first look
    deleted.clear()
    for _ in range(2):
        later: JobHandle[int] = kinetic.attach(job.job_id)
        assert later.status().final and later.result() == 7
    assert deleted == []


def test_a_listing_reads_no_job_that_has_ended(home: Path) -> None:
    flag = home / "go"
    ended, lives = number.run_async(), wait_for.run_async(str(flag))
    assert ended.result() == 7
    assert [each.job_id for each in kinetic.list_jobs()] == [lives.job_id]  # the first one makes the roll whole
    spec = home / "store" / "local" / names.spec(ended.job_id)
    spec.write_bytes(b"this would be told as damaged")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [each.job_id for each in kinetic.list_jobs()] == [lives.job_id]
    flag.touch()
    assert lives.result() == "seen"


def test_a_job_that_ended_while_nobody_looked_is_struck_off_by_the_next_listing(home: Path) -> None:
    job = number.run_async()
    deadline = time.monotonic() + 60
    while not job.peek().status.final:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert on_the_roll() == [names.live(job.job_id)]
    assert kinetic.list_jobs() == []
    assert on_the_roll() == []
    assert job.result() == 7


def test_a_store_of_an_earlier_release_is_read_through_once(home: Path) -> None:
    flag = home / "go"
    ended, lives = number.run_async(), wait_for.run_async(str(flag))
    assert ended.result() == 7
    store, _, _ = place_of()
    for name in (*on_the_roll(), names.ROLL):
        store.delete(name)
    assert [each.job_id for each in kinetic.list_jobs()] == [lives.job_id]
    assert on_the_roll() == [names.live(lives.job_id)]
    assert store.read(names.ROLL) is not None
    flag.touch()
    assert lives.result() == "seen"


def test_what_was_never_submitted_stays_on_the_roll_for_a_day(home: Path) -> None:
    store, _, _ = place_of()
    live_index.add(store, "job-000000000000")
    assert kinetic.list_jobs() == [] and len(on_the_roll()) == 1
    path = home / "store" / "local" / names.live("job-000000000000")
    before = time.time() - live_index.NEVER_SUBMITTED - 60
    os.utime(path, (before, before))
    assert kinetic.list_jobs() == [] and on_the_roll() == []


def test_a_damaged_job_is_named_by_every_listing(home: Path) -> None:
    flag = home / "go"
    job = wait_for.run_async(str(flag))
    store, _, _ = place_of()
    spec = home / "store" / "local" / names.spec(job.job_id)
    deadline = time.monotonic() + 60.0
    while not (home / "go.began").exists():  # its host has read what is damaged now
        assert time.monotonic() < deadline
        time.sleep(0.02)
    whole = spec.read_bytes()
    spec.write_bytes(b"damaged")
    for _ in range(2):
        with pytest.warns(UserWarning, match=f"{job.job_id} is left out"):
            assert kinetic.list_jobs() == []
        store.delete(names.ROLL)  # as it would be of an earlier release
    spec.write_bytes(whole)
    flag.touch()
    assert job.result() == "seen"


def test_requests_of_a_listing_grow_with_the_jobs_that_live(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Emulator(python=sys.executable, hosts=False, zones=("us-west4-a",)) as cloud:
        for name, value in cloud.environ().items():
            monkeypatch.setenv(name, value)
        asked: list[str] = []
        meet = cloud.storage.meet

        def met(request: Any) -> Any:
            asked.append(request.target)
            return meet(request)

        monkeypatch.setattr(cloud.storage, "meet", met)
        lives = kinetic.run(accelerator="v5e-1", zone="us-west4-a")(abs).run_async(-1)
        store, _, _ = place_of()

        def requests() -> int:
            asked.clear()
            assert [each.job_id for each in kinetic.list_jobs()] == [lives.job_id]
            return len(asked)

        requests()
        few = requests()
        for index in range(40):
            store.put(names.spec(f"job-{index:012x}"), b"of a job that has ended")
        assert requests() == few


def test_all_jobs_are_listed_page_by_page(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [number.run_async() for _ in range(3)]
    assert [job.result() for job in jobs] == [7, 7, 7]
    newest, middle, oldest = (job.job_id for job in reversed(jobs))

    def listed(*more: str) -> tuple[list[str], str]:
        assert main(["jobs", "--all", *more]) == 0
        shown = capsys.readouterr()
        return [line.split()[0] for line in shown.out.splitlines()[1:]], shown.err

    assert listed()[0] == [newest, middle, oldest]
    ids, told = listed("--limit", "2")
    assert ids == [newest, middle] and f"jobs --all --after {middle}" in told
    ids, told = listed("--limit", "2", "--after", middle)
    assert ids == [oldest] and "--after" not in told
    assert main(["jobs", "--all", "--json", "--limit", "1"]) == 0
    assert [each["job_id"] for each in json.loads(capsys.readouterr().out)] == [newest]
