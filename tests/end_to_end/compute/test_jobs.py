"""Jobs on VMs of an emulated Compute Engine: submit, follow, collect, and nothing left."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import JobCancelled, JobError, JobTimedOut
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.values import JobStatus
from kinetic_orchestration.platforms.google.compute.client import Instances
from kinetic_orchestration.platforms.google.rest import retries
from kinetic_orchestration.protocol import attempt_rules, wire
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.compute.conftest import ZONES, instances, run, vm, where
from tests.support.jobs import changes, lines, told, verdicts, wait_running
from tests.support.waits import wait_until

SURVIVES = 16.0  # seconds, within which a host ends its program, and sees that the other is gone
SAVES = attempt_rules.GRACE["preemption"] + 4.0  # seconds
JOINED = "ignore:the 2 hosts of l4 are joined over plain TCP"


def test_a_function_runs_on_a_vm_with_a_gpu_and_its_value_comes_back(cloud: Emulator, jobs: Any) -> None:
    job = run(jobs.until, "/")
    events = told(job)
    assert lines(events) == "running\n"
    assert job.result(timeout=60) == 1
    assert job.status() is JobStatus.SUCCEEDED
    cloud.wait_until_empty(60)
    assert cloud.ledger.chip_seconds() > 0


@pytest.mark.filterwarnings(JOINED)
def test_two_hosts_are_two_vms_and_every_hosts_lines_arrive(cloud: Emulator, jobs: Any) -> None:
    job = run(jobs.writes_lines, 20, cloud=kinetic.Compute(hosts=2))
    events = told(job)
    for host in range(2):
        assert lines(events, host) == "".join(f"line {number} of host {host}\n" for number in range(20))
    assert job.result(timeout=30) == 20


def test_the_users_exception_comes_back_as_itself(cloud: Emulator, jobs: Any, tmp_path: Path) -> None:
    job = run(jobs.echoes, str(tmp_path), 0, 0.0)
    with pytest.raises(ValueError, match="the learning rate is negative"):
        job.result(timeout=60)


@pytest.mark.slow
@pytest.mark.turn(9)
def test_a_job_that_runs_is_cancelled(cloud: Emulator, jobs: Any, tmp_path: Path) -> None:
    job = run(jobs.until, str(tmp_path / "never"))
    wait_running(job)
    job.cancel()
    with pytest.raises(JobCancelled):
        job.result(timeout=60)


# ---- capacity


@pytest.mark.parametrize("shows", [False, True])
def test_f05_two_zones_without_capacity_and_the_third_has_some(cloud: Emulator, jobs: Any, shows: bool) -> None:
    """Nothing is left in the first two, nothing is spent, and people see one attempt."""
    for zone in ZONES[:2]:
        cloud.compute.stockout(zone, shows=shows)
    job = run(jobs.attempt)
    events = told(job)
    assert job.result(timeout=60) == 1
    assert where(job) == list(ZONES)
    assert any("does not have enough resources" in line for line in changes(events))
    assert not any("attempt" in line for line in changes(events))


def test_f05_when_no_zone_has_capacity_until_the_limit_its_error_ends_with_the_last_answer(
    cloud: Emulator, jobs: Any
) -> None:
    """Whoever reads the error alone has not seen the changes that told of each."""
    for zone in ZONES:
        cloud.compute.stockout(zone)
    for seconds in (3.0, 30.0):  # a busy machine may need longer for the first answer
        job = run(jobs.attempt, limits=kinetic.Limits(provision=seconds))
        with pytest.raises(JobTimedOut, match=f"no host started within {seconds:g} s") as ended:
            job.result(timeout=90)
        if len(where(job)) > 1:
            break
    said = str(ended.value).partition("; the last answer was: ")[2]
    assert any(said.startswith(f"{zone}: ") for zone in ZONES), ended.value
    assert "does not have enough resources" in said


def test_f05_a_zone_that_the_api_says_has_some_is_tried_next(cloud: Emulator, jobs: Any) -> None:
    cloud.compute.stockout(ZONES[0], available=[ZONES[2]])
    job = run(jobs.attempt)
    assert job.result(timeout=60) == 1
    assert where(job) == [ZONES[0], ZONES[2]]


@pytest.mark.slow
@pytest.mark.turn(8)
@pytest.mark.filterwarnings(JOINED)
def test_f05_of_two_vms_one_alone_is_not_kept(cloud: Emulator, jobs: Any) -> None:
    """The second finds no capacity: the first is freed, and both are made in the next zone."""
    cloud.compute.quota("NVIDIA_L4_GPUS", 1, "us-central1")
    job = run(jobs.attempt, cloud=kinetic.Compute(hosts=2))
    told(job)
    assert job.result(timeout=60) == 1
    assert where(job)[-1] == ZONES[2]
    cloud.wait_until(lambda: not [path for path in cloud.compute.instances if "/us-central1-" in path], 60.0)


def test_f06_a_quota_of_0_drops_its_region_and_names_the_metric(cloud: Emulator, jobs: Any) -> None:
    cloud.compute.quota("NVIDIA_L4_GPUS", 0, "us-central1")
    job = run(jobs.attempt)
    events = told(job)
    assert job.result(timeout=60) == 1
    assert where(job) == [ZONES[0], ZONES[2]]
    assert any("NVIDIA_L4_GPUS" in line for line in changes(events))


def test_f06_a_quota_of_0_in_one_zone_leaves_the_other_zones_of_its_region(cloud: Emulator, jobs: Any) -> None:
    cloud.compute.quota("NVIDIA_L4_GPUS", 0, ZONES[0])
    job = run(jobs.attempt)
    events = told(job)
    assert job.result(timeout=60) == 1
    assert where(job) == list(ZONES[:2])
    assert any(f"is limited to 0 in {ZONES[0]}: ask for some" in line for line in changes(events))


def test_a_job_on_a_reservation_for_a_time_runs_in_its_zone_and_ends_with_it(
    cloud: Emulator, jobs: Any, home: Path
) -> None:
    cloud.compute.add_reservation("owner", ZONES[2], "theirs", "g2-standard-4", 1, bound=True)
    path = f"projects/owner/zones/{ZONES[2]}/reservations/theirs"
    job = run(jobs.until, str(home / "go"), cloud=kinetic.Compute(reservation=path, reservation_bound=True))
    wait_running(job)
    (name,) = instances(cloud, job)
    body = cloud.compute.instance(name)
    assert body is not None
    assert body["scheduling"]["provisioningModel"] == "RESERVATION_BOUND"
    assert body["scheduling"]["instanceTerminationAction"] == "DELETE"
    (home / "go").touch()
    assert job.result(timeout=60) == 1
    assert where(job) == [ZONES[2]]


@pytest.mark.slow
@pytest.mark.turn
def test_a_reservation_that_nobody_may_read_says_by_its_refusal_how_its_vms_are_asked_for(
    cloud: Emulator, jobs: Any
) -> None:
    """It is asked again meanwhile, in its zone alone: here it becomes one whose VMs need not end with it."""
    cloud.deny("client", "compute.reservations.get")
    cloud.compute.add_reservation("emulated", ZONES[0], "mine", "g2-standard-4", 1, bound=True)
    job = run(jobs.attempt, cloud=kinetic.Compute(reservation="mine"))
    with pytest.raises(TimeoutError):
        job.result(timeout=4)
    cloud.compute.add_reservation("emulated", ZONES[0], "mine", "g2-standard-4", 1)
    assert job.result(timeout=60) == 1
    assert set(where(job)) == {ZONES[0]} and len(where(job)) > 1
    assert "say cloud=Compute(reservation_bound=True)" in verdicts(job)[0].reason


def test_f06_without_any_gpu_in_all_regions_the_job_ends_and_names_the_quota(cloud: Emulator, jobs: Any) -> None:
    """Beforehand it could not be read: then the job is refused at once."""
    cloud.deny("client", "compute.projects.get")
    cloud.compute.quota("GPUS_ALL_REGIONS", 0)
    job = run(jobs.attempt)
    with pytest.raises(
        JobError, match=r"(?s)no place is left to try.*GPUS_ALL_REGIONS.*is limited to 0 in all regions"
    ):
        job.result(timeout=60)
    assert where(job) == [ZONES[0]]


def test_f06_a_zone_that_is_none_is_left_for_the_next(
    cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_ZONES", f"us-east5-x,{ZONES[0]}")
    job = run(jobs.attempt)
    events = told(job)
    assert job.result(timeout=60) == 1
    assert where(job) == ["us-east5-x", ZONES[0]]
    assert any("there is no such zone" in line for line in changes(events))


@pytest.mark.slow
@pytest.mark.turn(9)
@pytest.mark.parametrize("at", ["call", "provision"])
def test_f07_an_internal_error_twice_and_then_fine_stays_in_its_zone(cloud: Emulator, jobs: Any, at: Any) -> None:
    """The refusal is the call's own, or its operation's, behind an answer of 200."""
    cloud.fail("instances.insert", 13, times=2, at=at)
    job = run(jobs.attempt)
    assert job.result(timeout=60) == 1
    assert set(where(job)) == {ZONES[0]}


@pytest.mark.slow
@pytest.mark.turn(9)
def test_f07_an_internal_error_that_stays_moves_to_the_next_zone(cloud: Emulator, jobs: Any) -> None:
    cloud.fail("instances.insert", 13, times=None, at="provision", zone=ZONES[0])
    job = run(jobs.attempt)
    assert job.result(timeout=60) == 1
    assert where(job) == [ZONES[0]] * 3 + [ZONES[1]]


@pytest.mark.slow
@pytest.mark.turn(5)
def test_f08_waiting_and_then_a_state_that_nobody_knows(cloud: Emulator, jobs: Any) -> None:
    cloud.compute.stockout(ZONES[0])
    job = run(jobs.attempt, cloud=kinetic.Compute(flex_start=True), limits=kinetic.Limits(run=3600))
    (name,) = instances(cloud, job)
    wait_until(lambda: cloud.compute.chosen(name).status == "PENDING", "it waits")
    assert job.status() is JobStatus.PENDING
    cloud.deviate("instances.get", answer=lambda answer: answer | {"status": "TRANSMOGRIFYING"})
    with pytest.raises(TimeoutError):
        job.result(timeout=3)
    assert job.status() is JobStatus.PENDING
    cloud.clear_faults()
    cloud.compute.restock(ZONES[0])
    assert job.result(timeout=60) == 1
    assert where(job) == [ZONES[0]]


@pytest.mark.slow
@pytest.mark.turn(9)
def test_f09_a_flex_start_request_that_vanishes_after_its_wait_is_made_in_the_next_zone(
    cloud: Emulator, jobs: Any
) -> None:
    cloud.compute.speed_up(300.0)
    cloud.compute.stockout(ZONES[0])
    job = run(jobs.attempt, cloud=kinetic.Compute(flex_start=True), limits=kinetic.Limits(run=3600))
    events = told(job)
    assert job.result(timeout=60) == 1
    assert where(job) == list(ZONES[:2])
    said = changes(events)
    assert any("waiting for capacity until" in line for line in said)
    assert any("nothing became free in us-central1-a while the request" in line for line in said)


# ---- hosts


@pytest.mark.slow
@pytest.mark.turn(9)
@pytest.mark.parametrize(("notice", "grace"), [(0.0, 0.0), (2.0, 0.0), (0.0, 5.0)])
def test_f17_a_spot_vm_that_is_preempted_is_followed_by_another_attempt(
    cloud: Emulator, jobs: Any, tmp_path: Path, notice: float, grace: float
) -> None:
    """Without a notice ahead its guest is told as it is shut down, or its power is cut and only its zone knows why."""
    end = tmp_path / "end"
    job = run(jobs.until, str(end), spot=True)
    wait_running(job)
    (name,) = instances(cloud, job)
    cloud.compute.preempt(name, notice=notice, grace=grace)
    wait_until(lambda: not instances(cloud, job), "the VM is gone", within=60)
    end.touch()
    events = told(job)
    assert job.result(timeout=60) == 2
    first = job.history()[0]
    assert first.verdict is not None and first.verdict.cause == "preemption"
    assert any("preempt" in line for line in changes(events))


def verdict_once_taken_back(cloud: Emulator, job: Any, folder: Path, hosts: int, notice: float) -> wire.Verdict:
    """Preempt the first VM while all programs run, and return how the attempt ended once all of them had saved."""
    wait_running(job)
    wait_until(lambda: len(list(folder.glob("runs-*"))) == hosts, "all programs run", within=60)
    cloud.compute.preempt(sorted(instances(cloud, job))[0], notice=notice)
    assert job.result(timeout=90) == 2
    assert {path.name for path in folder.glob("saved-*")} == {f"saved-{host}" for host in range(hosts)}
    first = job.history()[0].verdict
    assert first is not None
    return first


@pytest.mark.slow
@pytest.mark.turn(9)
@pytest.mark.filterwarnings(JOINED)
@pytest.mark.parametrize("hosts", [1, 2])
def test_a_program_on_spot_vms_gets_the_time_to_save_that_the_notice_gives(
    cloud: Emulator, jobs: Any, tmp_path: Path, hosts: int
) -> None:
    """Longer than a machine that is shut down has; also where another host had the notice."""
    job = run(jobs.saves_slowly, str(tmp_path), SAVES, spot=True, cloud=kinetic.Compute(hosts=hosts))
    first = verdict_once_taken_back(cloud, job, tmp_path, hosts, SAVES + 10.0)
    assert (first.cause, first.grace) == ("preemption", 90.0)


@pytest.mark.slow
@pytest.mark.turn(9)
@pytest.mark.filterwarnings(JOINED)
@pytest.mark.parametrize("hosts", [1, 2])
def test_a_vm_that_is_not_spot_and_is_taken_back_counts_as_failed_and_all_programs_save(
    cloud: Emulator, jobs: Any, tmp_path: Path, hosts: int
) -> None:
    """Its host says so first, or the operations of its zone do."""
    job = run(jobs.saves_slowly, str(tmp_path), 1.0, cloud=kinetic.Compute(hosts=hosts), retry=kinetic.Retry(infra=1))
    first = verdict_once_taken_back(cloud, job, tmp_path, hosts, 30.0)
    assert (first.cause, first.kind) == ("infrastructure", "aborted")
    assert first.reason.startswith("Google takes the machine of this VM back, which is no spot VM")


@pytest.mark.slow
@pytest.mark.turn(8)
@pytest.mark.filterwarnings(JOINED)
@pytest.mark.parametrize("taken", [0, 1])
def test_of_two_vms_one_is_preempted_and_the_other_is_not_paid_for_while_it_waits_for_the_dead(
    cloud: Emulator, jobs: Any, tmp_path: Path, taken: int
) -> None:
    """Each VM is preempted for itself, and without notice it leaves no last word that could be waited for."""
    end = tmp_path / "end"
    job = run(jobs.until, str(end), spot=True, cloud=kinetic.Compute(hosts=2))
    wait_running(job)
    names = sorted(instances(cloud, job))
    with ThreadPoolExecutor(1) as follower:
        value = follower.submit(job.result, timeout=90)
        began = time.time()
        cloud.compute.preempt(names[taken], notice=0.0)
        try:
            cloud.wait_until(lambda: not any(path.endswith(names[1 - taken]) for path in cloud.compute.instances), 60.0)
            assert time.time() - began < SURVIVES
        finally:
            end.touch()
        assert value.result() == 2


@pytest.mark.slow
@pytest.mark.turn(0)
@pytest.mark.parametrize("kind", ["compute.instances.hostError", "compute.instances.terminateOnHostMaintenance"])
def test_f11_a_machine_that_fails_is_told_by_name_and_new_hosts_follow(
    cloud: Emulator, jobs: Any, tmp_path: Path, kind: str
) -> None:
    end = tmp_path / "end"
    job = run(jobs.until, str(end))
    wait_running(job)
    (name,) = instances(cloud, job)
    cloud.compute.host_error(name, kind)
    end.touch()
    assert job.result(timeout=60) == 2
    first = job.history()[0]
    assert first.verdict is not None and first.verdict.cause == "infrastructure"
    assert kind.rpartition(".")[2] in first.verdict.reason


@pytest.mark.slow
@pytest.mark.turn(9)
def test_f10_a_vm_that_is_shut_down_from_inside_stays_neither_as_a_disk_nor_as_a_job_that_waits(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    """It would stay TERMINATED: it is deleted, and new hosts follow."""
    end = tmp_path / "end"
    job = run(jobs.until, str(end))
    wait_running(job)
    (name,) = instances(cloud, job)
    machine = vm(cloud, job)
    machine.freeze()  # else its agent says first that the machine goes
    cloud.compute.shut_down(name)
    end.touch()
    assert job.result(timeout=60) == 2
    first = verdicts(job)[0]
    assert first.cause == "infrastructure"
    assert "it was shut down from inside (guestTerminate)" in first.reason
    wait_until(lambda: name not in instances(cloud, job), "its deletion")


def test_f12_an_operation_that_never_ends_keeps_nobody_from_working(cloud: Emulator, jobs: Any) -> None:
    cloud.compute.stuck_operations("insert")
    assert run(jobs.attempt).result(timeout=60) == 1


@pytest.mark.slow
@pytest.mark.turn(8)
@pytest.mark.filterwarnings(JOINED)
@pytest.mark.parametrize(("hosts", "did"), [(1, "deleted"), (2, "deleted"), (1, "stopped")])
def test_f31_whoever_ends_the_vm_of_a_running_job_ends_it_and_is_named(
    cloud: Emulator, jobs: Any, tmp_path: Path, hosts: int, did: str
) -> None:
    """Its guest is shut down first, so that its agent knows before anybody else that the machine goes, and not why."""
    job = run(jobs.until, str(tmp_path / "never"), cloud=kinetic.Compute(hosts=hosts))
    wait_running(job)
    name = sorted(instances(cloud, job))[-1]
    with ThreadPoolExecutor(1) as follower:
        value = follower.submit(job.result, timeout=90)
        _end(cloud, name, did)
        with pytest.raises(JobCancelled, match=rf"{name} in {ZONES[0]} is .*: user@emulated\.example {did} it"):
            value.result()


@pytest.mark.slow
@pytest.mark.turn(5)
def test_f31_whoever_deleted_the_vm_is_named_also_if_nobody_followed_the_job_then(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    job = run(jobs.until, str(tmp_path / "never"))
    wait_running(job)
    (name,) = instances(cloud, job)
    _end(cloud, name, "deleted")
    cloud.wait_until_empty(60)
    with pytest.raises(JobCancelled, match=r"is gone: user@emulated\.example deleted it"):
        job.result(timeout=60)


@pytest.mark.slow
@pytest.mark.turn(9)
def test_a_vm_that_is_shut_down_from_inside_is_followed_by_another_attempt(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    """It deletes itself all the same: as a stopped VM it would be billed for its disk."""
    end = tmp_path / "end"
    job = run(jobs.until, str(end))
    wait_running(job)
    (name,) = instances(cloud, job)
    cloud.compute.shut_down(name, 5.0)
    wait_until(lambda: not instances(cloud, job), "the VM is gone", within=60)
    end.touch()
    assert job.result(timeout=60) == 2
    first = job.history()[0]
    assert first.verdict is not None and first.verdict.cause == "infrastructure"


def _end(cloud: Emulator, name: str, did: str) -> None:
    """Delete or stop a VM, as a person would at the console."""
    if did == "stopped":
        cloud.compute.stop(name)
        return
    (path,) = [path for path in cloud.compute.instances if path.endswith(f"/{name}")]
    Instances(settings.load()).delete(path)


@pytest.mark.slow
@pytest.mark.turn(9)
@pytest.mark.parametrize("told_by", ["unreachables", "warning"])
def test_f32_a_zone_that_does_not_answer_ends_no_attempt(
    cloud: Emulator, jobs: Any, tmp_path: Path, told_by: Any
) -> None:
    end = tmp_path / "end"
    batch = [run(jobs.until, str(end)) for _ in range(2)]
    for job in batch:
        wait_running(job)
    cloud.compute.silence(ZONES[0], told_by)
    with pytest.raises(TimeoutError):
        batch[0].result(timeout=3)
    cloud.compute.hear(ZONES[0])
    end.touch()
    assert [job.result(timeout=60) for job in batch] == [1, 1]


@pytest.mark.slow
@pytest.mark.turn(9)
def test_f06_a_rate_limit_waits_until_the_next_minute_and_never_changes_the_zone(cloud: Emulator, jobs: Any) -> None:
    cloud.compute.request_rate(0)
    job = run(jobs.attempt)
    wait_until(lambda: retries._throttled, "the rate was refused", within=60)
    cloud.compute.request_rate(None)
    retries._throttled.clear()  # as if the minute were over
    assert job.result(timeout=60) == 1
    assert where(job) == [ZONES[0]]


@pytest.mark.slow
@pytest.mark.turn(0)
def test_f13_a_vm_that_never_boots_is_given_up_with_the_end_of_its_serial_log(
    cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "SILENT_START", 3.0)
    cloud.compute.never_boots()
    job = run(jobs.attempt)
    assert job.result(timeout=60) == 2
    first = job.history()[0]
    assert first.verdict is not None and first.verdict.cause == "infrastructure"
    assert "none of them has started its agent" in first.verdict.reason
    assert "the serial log of kinetic-" in first.verdict.reason
    assert "Booting from Hard Disk 0..." in first.verdict.reason


# ---- the submitter


@pytest.mark.slow
@pytest.mark.turn(9)
def test_f02_the_answer_of_the_create_call_is_lost_and_there_is_one_vm(cloud: Emulator, jobs: Any) -> None:
    cloud.lose_answer("instances.insert")
    job = run(jobs.attempt)
    assert job.result(timeout=60) == 1
    assert len(where(job)) == 1
