"""Slices of Compute Engine that are kept after their jobs: single VMs, several, and the members of groups."""

from __future__ import annotations

from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.capacity.warm import releasing
from kinetic_orchestration.capacity.warm.records import slices
from kinetic_orchestration.jobs.job import ME
from kinetic_orchestration.protocol.wire.lease import ENDED, FREE, Lease
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.compute.conftest import ZONES, instances, made, run
from tests.support.jobs import WITHIN, lines, placements, told
from tests.support.on_compute import free_rest
from tests.support.waits import wait_until


def lease_of(job: JobHandle[Any]) -> Lease:
    (held,) = slices(job._job.store)
    return held.lease


def offered(job: JobHandle[Any]) -> Lease:
    """Wait until the slice of a job is free."""
    wait_until(lambda: [held.lease.state for held in slices(job._job.store)] == [FREE], "an offer", within=WITHIN)
    return lease_of(job)


@pytest.mark.filterwarnings("ignore:the 2 hosts of l4 are joined over plain TCP")
@pytest.mark.parametrize(
    ("accelerator", "cloud_", "hosts"),
    [
        ("l4", None, 1),
        pytest.param("l4", kinetic.Compute(hosts=2), 2, marks=[pytest.mark.slow, pytest.mark.turn(3)]),
        pytest.param("v6e-16", None, 4, marks=[pytest.mark.slow, pytest.mark.turn(2)]),
    ],
    ids=["one VM", "two VMs", "a group of four"],
)
def test_the_next_job_takes_the_vms_of_the_one_before(
    cloud: Emulator, jobs: Any, accelerator: str, cloud_: Any, hosts: int
) -> None:
    options = {"accelerator": accelerator, "keep": "10m", **({"cloud": cloud_} if cloud_ else {})}
    first = run(jobs.writes_lines, 1, **options)
    first.result(timeout=WITHIN)
    free = offered(first)
    count = made(cloud)
    assert count == hosts
    second = run(jobs.writes_lines, 2, **options)
    events = told(second)
    assert second.result(timeout=WITHIN) == 2
    assert [lines(events, host) for host in range(hosts)] == [
        f"line 0 of host {host}\nline 1 of host {host}\n" for host in range(hosts)
    ]
    (placement,) = placements(second)
    assert placement["lease"] == {"slice": free.slice, "epoch": 1}
    again = offered(second)
    assert (again.epoch, again.job, made(cloud)) == (1, second.job_id, count)
    releasing.release_slice(second._job.store, second._job.backend, again.slice, "the test is over", writer=ME)
    free_rest(cloud)


@pytest.mark.slow
@pytest.mark.turn
def test_a_vm_that_has_won_a_race_in_the_second_zone_is_kept_and_taken_by_its_own_name(
    cloud: Emulator, jobs: Any
) -> None:
    cloud.compute.stockout(ZONES[0])
    options: dict[str, Any] = {"race": 2, "cloud": kinetic.Compute(zones=list(ZONES[:2]))}
    first = run(jobs.attempt, keep="10m", **options)
    assert first.result(timeout=WITHIN) == 1
    free, count = offered(first), made(cloud)
    assert free.slice == placements(first)[0]["rivals"][0]["name"]
    second = run(jobs.attempt, keep="0s", **options)
    assert second.result(timeout=WITHIN) == 1
    assert placements(second)[0]["lease"]["slice"] == free.slice
    assert made(cloud) == count
    free_rest(cloud)


@pytest.mark.slow
@pytest.mark.turn
def test_a_kept_vm_that_nobody_takes_deletes_itself_and_the_ledger_counts_it_until_then(
    cloud: Emulator, jobs: Any
) -> None:
    job = run(jobs.attempt, keep="2s")
    assert job.result(timeout=WITHIN) == 1
    cloud.wait_until_empty(WITHIN)
    lease = lease_of(job)
    assert (lease.state, lease.why) == (ENDED, "nobody took it in time")
    (created,) = (entry for entry in cloud.ledger.entries if (entry.what, entry.kind) == ("created", "instance"))
    (deleted,) = (entry for entry in cloud.ledger.entries if (entry.what, entry.kind) == ("deleted", "instance"))
    idle = lease.idle[0].ended - lease.idle[0].began
    assert idle >= 2.0 and deleted.time - created.time > idle


@pytest.mark.slow
@pytest.mark.turn
def test_a_kept_vm_that_is_preempted_while_idle_is_free_no_longer(cloud: Emulator, jobs: Any) -> None:
    job = run(jobs.attempt, keep="10m", spot=True)
    assert job.result(timeout=WITHIN) == 1
    offered(job)
    cloud.compute.preempt(sorted(instances(cloud, job))[0], notice=30.0)
    cloud.wait_until_empty(WITHIN)
    assert lease_of(job).state == ENDED
