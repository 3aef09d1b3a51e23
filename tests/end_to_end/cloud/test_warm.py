"""Slices that stay warm (`keep=`): the next job of the same shape takes one, and nobody deletes what another holds."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.capacity.shares import records as shares
from kinetic_orchestration.capacity.warm import releasing
from kinetic_orchestration.errors import JobError
from kinetic_orchestration.host.process.standby import NAME
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.jobs.cleanup.reaper import reap
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.job import ME
from kinetic_orchestration.jobs.watching import usage
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.values import Freed
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.protocol.wire.lease import CLAIMED, ENDED, FREE, Lease
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.cloud.cases import free, here, leases, run
from tests.end_to_end.cloud.conftest import ZONES
from tests.support.faults import KILLED
from tests.support.jobs import placements, verdicts, wait_running
from tests.support.waits import wait_until

WITHIN = 150.0
CLAIM = "kinetic_orchestration.jobs.following.actions._claim"  # after the intent, before the claim

pytestmark = pytest.mark.usefixtures("nothing_kept")


def release(lease: Lease, *, force: bool = False) -> Freed:
    return releasing.release_slice(*here(), lease.slice, "the test wants it gone", writer=ME, force=force)


def made(cloud: Emulator) -> int:
    """Return the number of slices that were ever created."""
    return cloud.ledger.count("created", "queued resource")


def leave(jobs: Any, **options: Any) -> Lease:
    """Run a job that leaves a warm slice."""
    job = run(jobs.index, **{"keep": "10m", **options})
    assert job.result(timeout=WITHIN) == 0
    return free()


def leave_two(jobs: Any) -> list[Lease]:
    """Run two jobs at once that leave a warm slice each."""
    both = [run(jobs.index, keep="10m") for _ in range(2)]
    assert [job.result(timeout=WITHIN) for job in both] == [0, 0]
    free(2)
    return [one for one in leases() if one.state == FREE]


def test_the_second_of_two_jobs_takes_the_slice_of_the_first(cloud: Emulator, jobs: Any) -> None:
    first = run(jobs.hardware, keep="10m")
    assert first.result(timeout=WITHIN) == (1, 1)
    offered = free()
    assert (offered.epoch, offered.job) == (0, first.job_id)
    second = run(jobs.hardware, keep="10m")
    (placement,) = placements(second)
    assert placement["name"] == offered.slice and placement["lease"] == {"slice": offered.slice, "epoch": 1}
    assert second.result(timeout=WITHIN) == (1, 1)
    assert f"it is warm: {first.job_id} has left it" in second.chosen
    assert made(cloud) == 1
    again = free()
    assert (again.epoch, again.job, len(again.idle)) == (1, second.job_id, 1)
    assert release(again) is not Freed.REFUSED
    (ended,) = leases()
    assert (ended.state, ended.why) == (ENDED, "the test wants it gone")
    cloud.wait_until_empty(60)


def test_a_call_that_is_waited_for_returns_when_the_next_one_finds_its_slice(cloud: Emulator, jobs: Any) -> None:
    kept, last = (kinetic.run(accelerator="v5e-1", keep=keep) for keep in ("10m", "0s"))
    assert kept(jobs.hardware)() == (1, 1)
    with pytest.raises(ValueError, match="the learning rate is negative"):
        kept(jobs.fails_first)()
    assert last(jobs.index)() == 0
    assert made(cloud) == 1


@pytest.mark.slow
@pytest.mark.turn
def test_a_job_that_may_race_takes_the_slice_of_the_place_that_won(cloud: Emulator, jobs: Any) -> None:
    lease = leave(jobs, race=2)
    asked = made(cloud)
    second = run(jobs.hardware, keep="0s", race=2)
    assert second.result(timeout=WITHIN) == (1, 1)
    (placement,) = placements(second)
    assert placement["name"] == lease.slice and "rivals" not in placement
    assert made(cloud) == asked


@pytest.mark.slow
@pytest.mark.turn
def test_a_job_without_keep_neither_takes_nor_leaves_a_slice_and_one_of_no_time_takes_one(
    cloud: Emulator, jobs: Any
) -> None:
    lease = leave(jobs)
    assert run(jobs.index).result(timeout=WITHIN) == 0
    assert made(cloud) == 2
    assert [(one.slice, one.state, one.epoch) for one in leases()] == [(lease.slice, FREE, 0)]
    assert run(jobs.index, keep="0s").result(timeout=WITHIN) == 0
    assert made(cloud) == 2
    assert [one.why for one in leases()] == ["its last job leaves none (keep is 0)"]
    cloud.wait_until_empty(60)


@pytest.mark.slow
@pytest.mark.turn
def test_a_retry_takes_the_slice_that_its_failed_attempt_has_left(cloud: Emulator, jobs: Any) -> None:
    job = run(jobs.fails_first, keep="10m", retry=kinetic.Retry(user=1))
    assert job.result(timeout=WITHIN) == 2
    assert made(cloud) == 1
    assert [one.cause for one in verdicts(job)] == ["user", ""]


@pytest.mark.slow
@pytest.mark.turn(1)
def test_a_training_goes_on_from_the_copies_on_a_kept_slice_which_the_next_job_does_not_find(
    cloud: Emulator, jobs: Any
) -> None:
    job = run(jobs.trains_and_fails_first, keep="10m", retry=kinetic.Retry(user=1))
    assert job.result(timeout=WITHIN) == [5, 5]
    for where in ("disk", "memory"):
        assert f"{where}: restored the checkpoint of step 5: 0.2 MB from this machine, in " in (job.logs() or "")
    free()
    assert len(copies(cloud)) == 2
    assert run(jobs.index, keep="10m").result(timeout=WITHIN) == 0
    assert made(cloud) == 1
    assert copies(cloud) == []


def copies(cloud: Emulator) -> list[Path]:
    """The copies of checkpoints on the disk, and in the memory, of the only machine that there is."""
    (node,) = cloud.nodes()
    (machine,) = cloud.vms(str(node["name"]))
    assert machine is not None
    kept = [*machine.root.glob("var/lib/kinetic/tier/*/*/slot-*/*"), *machine.root.glob("dev/shm/*/*/*/slot-*/*")]
    return [path for path in kept if len(path.name) == 64]


@pytest.mark.slow
@pytest.mark.turn
@pytest.mark.parametrize(
    ("at", "attempts"),
    [
        ("kinetic_orchestration.jobs.following.actions.intend", 1),
        (CLAIM, 1),
        ("kinetic_orchestration.capacity.warm.records.claim", 1),
        ("kinetic_orchestration.jobs.cleanup.reaper.reap_now_and_then", 1),
    ],
    ids=["before the intent", "after the intent", "before the claim", "after the claim"],
)
def test_a_submitter_is_killed_and_the_next_one_goes_on_with_the_slice(
    cloud: Emulator, jobs: Any, submitters: Any, tmp_path: Path, at: str, attempts: int
) -> None:
    leave(jobs)
    marks = tmp_path / "marks"
    assert submitters.do("submit", key="one", marks=str(marks), at=at, keep="10m") == KILLED
    assert submitters.do("submit", key="one", marks=str(marks), keep="10m") == 0
    assert len(marks.read_text().split()) == 1, "it ran once"
    assert made(cloud) == attempts
    assert free().epoch == 1


@pytest.mark.slow
@pytest.mark.turn
def test_of_two_that_want_one_slice_the_second_gets_fresh_hardware(
    cloud: Emulator, jobs: Any, submitters: Any, tmp_path: Path
) -> None:
    lease = leave(jobs)
    marks, value = tmp_path / "marks", tmp_path / "value"
    assert submitters.do("submit", key="slow", marks=str(marks), at=CLAIM, keep="10m") == KILLED
    quick = run(jobs.until, str(tmp_path / "go"), keep="0s")
    wait_running(quick)
    assert made(cloud) == 1
    slow = submitters.start("submit", report=value, key="slow", marks=str(marks), keep="0s")
    assert submitters.wait(slow) == 0
    assert made(cloud) == 2
    (held,) = [one for one in leases() if one.slice == lease.slice]
    assert (held.state, held.job, held.epoch) == (CLAIMED, quick.job_id, 1), "the loser has left it alone"
    every = {entry.name.split("/")[1] for entry in here()[0].list(names.JOBS)}
    (lost,) = every - {quick.job_id, lease.made_for}
    attempts = kinetic.attach(lost)
    assert [("lease" in one, one["name"] == lease.slice) for one in placements(attempts)] == [
        (True, True),
        (False, False),
    ]
    assert [one.cause for one in verdicts(attempts)] == [wire.INTERNAL, ""]
    assert f"{quick.job_id} took it first" in verdicts(attempts)[0].reason
    assert attempts.attempts() == 1, "as its user counts them"
    (tmp_path / "go").touch()
    assert quick.result(timeout=WITHIN) == 1


def test_two_processes_that_ask_at_once_have_one_slice_each(
    cloud: Emulator, jobs: Any, submitters: Any, tmp_path: Path
) -> None:
    lease, go = leave(jobs), tmp_path / "go"
    marks = [tmp_path / name for name in ("one", "two")]
    ask = [submitters.start("submit", key=one.name, marks=str(one), keep="0s", go=str(go)) for one in marks]
    go.touch()
    assert [submitters.wait(child) for child in ask] == [0, 0]
    assert [len(one.read_text().split()) for one in marks] == [1, 1], "each ran once"
    assert made(cloud) == 2
    assert [one.epoch for one in leases() if one.slice == lease.slice] == [1]


@pytest.mark.slow
@pytest.mark.turn
def test_a_slice_whose_lease_ends_at_the_moment_of_the_claim_is_followed_by_fresh_hardware(
    cloud: Emulator, jobs: Any, submitters: Any, tmp_path: Path
) -> None:
    lease = leave(jobs)
    marks = tmp_path / "marks"
    assert submitters.do("submit", key="late", marks=str(marks), at=CLAIM, keep="0s") == KILLED
    release(lease)
    assert submitters.do("submit", key="late", marks=str(marks), keep="0s") == 0
    assert made(cloud) == 2
    assert len(marks.read_text().split()) == 1


@pytest.mark.slow
@pytest.mark.turn
def test_nothing_of_the_first_job_deletes_the_slice_that_serves_the_second(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    first = run(jobs.index, keep="10m")
    assert first.result(timeout=WITHIN) == 0
    free()
    second = run(jobs.until, str(tmp_path / "go"), keep="0s")
    wait_running(second)
    first.cleanup()
    first.cancel("it is not needed any more")
    assert actions.release(first._job, 1) is Freed.KEPT
    store, backend = here()
    assert actions.abandon(store, backend, first.job_id, "its spec is gone", ME, patience=0.0)
    assert release(leases()[0]) is Freed.KEPT, "unless it is forced"
    reap(store, backend, settings.load(), patience=0.0)
    assert [one.state for one in leases()] == [CLAIMED]
    (tmp_path / "go").touch()
    assert second.result(timeout=WITHIN) == 1
    assert made(cloud) == 1 and len(verdicts(second)) == 1


@pytest.mark.slow
@pytest.mark.turn
def test_a_slice_that_is_released_by_force_ends_the_work_and_the_job_goes_on_elsewhere(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    leave(jobs)
    second = run(jobs.until, str(tmp_path / "go"), keep="0s")
    wait_running(second)
    assert release(leases()[0], force=True) is not Freed.KEPT
    (tmp_path / "go").touch()
    assert second.result(timeout=WITHIN) == 2
    assert verdicts(second)[0].cause == wire.INFRASTRUCTURE
    assert made(cloud) == 2


def test_a_cancelled_job_leaves_nothing_also_after_a_claim(cloud: Emulator, jobs: Any, tmp_path: Path) -> None:
    leave(jobs)
    second = run(jobs.until, str(tmp_path / "go"), keep="10m")
    wait_running(second)
    second.cancel("no longer needed")
    with pytest.raises(JobError, match="no longer needed"):
        second.result(timeout=WITHIN)
    cloud.wait_until_empty(90)
    assert [one.state for one in leases()] == [ENDED]


@pytest.mark.slow
@pytest.mark.turn
def test_a_process_without_the_key_leaves_a_slice_alone_and_the_signing_key_opens_it_to_all(
    cloud: Emulator, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(jobs)
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "another home"))
    assert run(jobs.index, keep="0s").result(timeout=WITHIN) == 0
    assert made(cloud) == 2
    assert [one.state for one in leases()] == [FREE], "it still waits for those who can have it"
    monkeypatch.setenv("KINETIC_SIGNING_KEY", "a key that several processes have")
    signed = run(jobs.index, keep="10m")
    assert signed.result(timeout=WITHIN) == 0
    offered = free(2)
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "a third home"))
    third = run(jobs.index, keep="0s")
    assert third.result(timeout=WITHIN) == 0
    assert placements(third)[0]["name"] == offered.slice
    assert made(cloud) == 3


@pytest.mark.slow
@pytest.mark.turn
def test_the_hosts_of_a_taken_slice_get_the_secrets_of_their_new_job(
    cloud: Emulator, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(jobs)
    monkeypatch.setenv("LAB_TOKEN", "of-the-second-job")
    (tmp_path / "go").touch()
    job = run(jobs.fingerprint, ["LAB_TOKEN"], str(tmp_path / "go"), keep="0s", capture_env_vars=["LAB_TOKEN"])
    assert job.result(timeout=WITHIN) == {"LAB_TOKEN": hashlib.sha256(b"of-the-second-job").hexdigest()}
    assert made(cloud) == 1


@pytest.mark.slow
@pytest.mark.turn
@pytest.mark.parametrize(
    "other",
    [
        {"accelerator": "v5e-4"},
        {"spot": True},
        {"cloud": kinetic.TpuVm(tags=["trainers"])},
        {"zone": ZONES[1]},
        {"deployment": "another"},
    ],
    ids=["shape", "way", "tags", "zone", "deployment"],
)
def test_what_is_not_exactly_wanted_is_not_taken(cloud: Emulator, jobs: Any, other: dict[str, Any]) -> None:
    lease = leave(jobs)
    job = run(jobs.index, keep="0s", **other)
    assert job.result(timeout=WITHIN) == 0
    assert made(cloud) == 2 and "lease" not in placements(job)[0]
    assert [(one.slice, one.state) for one in leases()] == [(lease.slice, FREE)]


@pytest.mark.slow
@pytest.mark.turn
def test_a_warm_slice_of_any_choice_comes_before_all_that_would_be_created(cloud: Emulator, jobs: Any) -> None:
    lease = leave(jobs, accelerator="v5e-1")
    job = kinetic.run(accelerator=["v5e-4", "v5e-1"], keep="0s")(jobs.hardware).run_async()
    assert job.result(timeout=WITHIN) == (1, 1)
    (placement,) = placements(job)
    assert (placement["choice"], placement["name"]) == (1, lease.slice)
    assert f"it is warm: {lease.job} has left it" in job.chosen
    assert made(cloud) == 1


def test_what_was_idle_is_not_charged_to_the_job_that_comes_next(cloud: Emulator, jobs: Any) -> None:
    """Nor counted against its limit of cost, by what is seen of the machines, which are older than its claim."""
    lease = leave(jobs)
    wait_until(lambda: here()[0].now() - lease.since > 8.0, "idle time", within=30.0)
    job = run(jobs.index, keep="0s", limits=kinetic.Limits(cost=5.0))
    assert job.result(timeout=WITHIN) == 0
    store, id_ = job._job.store, job.job_id
    intent, verdict = store.read(names.intent(id_, 1)), store.read(names.verdict(id_, 1))
    assert intent is not None and verdict is not None
    most = verdict.updated - intent.updated + 4.0
    assert all(held < most for held in job._job.trust.held(store, id_).values())
    (stay,) = usage.stays(store, id_)
    assert 0.0 < stay.ready < most
    assert made(cloud) == 1


@pytest.mark.slow
@pytest.mark.turn
def test_a_spot_slice_that_is_taken_away_while_it_is_idle_is_followed_by_fresh_hardware(
    cloud: Emulator, jobs: Any
) -> None:
    lease = leave(jobs, spot=True)
    (node,) = [str(node["name"]) for node in cloud.nodes()]
    cloud.preempt(node)
    job = run(jobs.index, keep="0s", spot=True)
    assert job.result(timeout=WITHIN) == 0
    assert made(cloud) == 2
    assert [one.state for one in leases() if one.slice == lease.slice] == [ENDED] or placements(job)[0][
        "name"
    ] == lease.slice


def most_at_once(cloud: Emulator) -> int:
    """The most slices that were ever there at the same time."""
    there = most = 0
    for entry in cloud.ledger.entries:
        if entry.kind == "node":
            there += (entry.what == "created") - (entry.what == "deleted")
            most = max(most, there)
    return most


@pytest.mark.slow
@pytest.mark.turn
def test_where_chips_are_shared_an_idle_slice_has_those_of_its_job_until_the_next_takes_it(
    cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_CHIPS", "v5e=1")
    lease = leave(jobs)
    (grant,) = shares.read(here()[0]).book.grants
    assert grant.want.key == (lease.job, 1)
    job = run(jobs.index, keep="0s")
    assert job.result(timeout=WITHIN) == 0
    assert made(cloud) == 1


@pytest.mark.slow
@pytest.mark.turn
def test_an_idle_slice_is_released_before_a_job_has_its_chips_that_cannot_take_it(
    cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices that are kept never exceed a share."""
    monkeypatch.setenv("KINETIC_CHIPS", "v5e=1")
    lease = leave(jobs)
    job = run(jobs.index)
    assert job.result(timeout=WITHIN) == 0
    assert (made(cloud), most_at_once(cloud)) == (2, 1)
    (ended,) = leases()
    assert (ended.slice, ended.state, ended.why) == (lease.slice, ENDED, f"{job.job_id} waits for its chips")
    assert (lease.job, 1) not in shares.wants(here()[0])
    cloud.wait_until_empty(60)


@pytest.mark.slow
@pytest.mark.turn
def test_the_end_of_a_run_releases_what_its_steps_have_left(cloud: Emulator, jobs: Any) -> None:
    """Also what hosts are still cleaning, so that it has no lease yet."""
    job = run(jobs.index, keep="10m")
    assert job.result(timeout=WITHIN) == 0
    assert releasing.release_run(*here(), "tests", "a run", writer=ME, jobs=[job.job_id]) == 1
    cloud.wait_until_empty(90)
    assert [one.state for one in leases()] == [ENDED]


def standing_by(cloud: Emulator) -> list[processes.Process]:
    """The first of the processes that stand by on each VM, of those that this cloud has."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environ = (entry / "environ").read_bytes()
            if (entry / "comm").read_text().strip() == NAME and f"KINETIC_ROOT={cloud.root}".encode() in environ:
                found.append(processes.find(int(entry.name)))
    standing = [one for one in found if one is not None and not one.zombie]
    return [one for one in standing if one.parent not in {other.pid for other in standing}]


@pytest.mark.slow
@pytest.mark.turn
def test_the_processes_of_the_next_attempt_stand_by_and_are_the_ones_that_run_it(cloud: Emulator, jobs: Any) -> None:
    lease = leave(jobs)
    wait_until(lambda: len(standing_by(cloud)) == 1, lambda: "nothing stands by", within=60.0)
    (ready,) = standing_by(cloud)
    wait_until(lambda: processes.descendants(ready.pid), lambda: "it has no agent", within=60.0)
    (agent,) = [one.pid for one in processes.descendants(ready.pid) if one.parent == ready.pid]
    status = Path(f"/proc/{agent}/status").read_text()
    names_of_it = [int(pid) for line in re.findall(r"(?m)^NSpid:(.*)$", status) for pid in line.split()]
    assert run(jobs.parent, keep="0s").result(timeout=WITHIN) == names_of_it[-1]
    assert (lease.epoch, leases()[0].epoch) == (0, 1)
    cloud.wait_until_empty(60)
    assert not standing_by(cloud)


@pytest.mark.slow
@pytest.mark.turn
def test_a_machine_whose_processes_were_ended_while_they_stood_by_starts_others(cloud: Emulator, jobs: Any) -> None:
    leave(jobs)
    wait_until(lambda: len(standing_by(cloud)) == 1, lambda: "nothing stands by", within=60.0)
    (ready,) = standing_by(cloud)
    os.kill(ready.pid, signal.SIGKILL)
    assert run(jobs.index, keep="10m").result(timeout=WITHIN) == 0
    assert made(cloud) == 1
    assert free().epoch == 1


@pytest.mark.slow
@pytest.mark.turn
def test_a_slice_that_nobody_takes_leaves_no_process_that_stands_by(cloud: Emulator, jobs: Any) -> None:
    lease = leave(jobs)
    wait_until(lambda: len(standing_by(cloud)) == 1, lambda: "nothing stands by", within=60.0)
    release(lease)
    wait_until(lambda: not standing_by(cloud), lambda: "they still stand by", within=60.0)
    cloud.wait_until_empty(60)


@pytest.mark.slow
@pytest.mark.turn
@pytest.mark.parametrize("killed", ["", "kinetic-guard"], ids=["all of its processes", "its guard"])
def test_a_slice_whose_hosts_died_while_it_was_free_is_given_up_soon_after_its_claim(
    cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    """Neither ends its lease: a client cannot know that nobody follows its claim."""
    dead, other = leave_two(jobs)
    monkeypatch.setattr(lifecycle, "SILENT_CLAIM", 4.0)
    for lease in (dead, other):
        (node,) = [str(found["name"]) for found in cloud.nodes() if lease.slice in str(found["name"])]
        (vm,) = cloud.vms(node)
        assert vm is not None and vm.kill(killed)
    job = run(jobs.index, keep="0s")
    assert job.result(timeout=WITHIN) == 0
    first, second = placements(job)
    assert first["lease"]["slice"] in (dead.slice, other.slice)
    assert "lease" not in second, "others that are kept may be as dead"
    lost, kept = verdicts(job)
    assert (lost.cause, kept.cause) == (wire.INTERNAL, "")
    assert "no host of this warm slice has followed its claim" in lost.reason
    assert job.attempts() == 1, "as its user counts them"
    claim, own = usage.stays(here()[0], job.job_id)
    assert claim.ready >= 4.0 and own.ready > 0.0, "whoever has claimed it pays for it, also for nothing"
    (ended,) = [one for one in leases() if one.slice == first["name"]]
    assert (ended.state, ended.job) == (ENDED, job.job_id)
    wait_until(lambda: not any(ended.slice in str(found["name"]) for found in cloud.queued_resources()))
