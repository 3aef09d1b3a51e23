"""Jobs on slices of several TPU hosts, and on several slices, of an emulated Compute Engine: from submit to a policy
that is gone."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.jobs.cleanup import reaper
from kinetic_orchestration.jobs.following.follower import LATE
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.platforms.registry import open_backend, open_store
from kinetic_orchestration.protocol import names
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.compute.conftest import ZONES, Break, instances, run
from tests.support.jobs import WITHIN, changes, lines, placements, told, wait_running
from tests.support.on_compute import KEPT, free_rest, left
from tests.support.waits import wait_until

FOUR_HOSTS, TWO_HOSTS = "v6e-16", "tpu7x-8"
TWO_SLICES = kinetic.Compute(num_slices=2)
PATIENCE = 5.0  # seconds for which a zone may keep a job waiting while there are others
SURVIVES = 30.0  # seconds, for which the rest of a slice is paid for after one of its hosts was lost


def reap() -> list[reaper.Reaped]:
    here = settings.load()
    return reaper.reap(open_store(here.store, here.deployment), open_backend("compute", here), here, patience=WITHIN)


def test_a_job_on_a_slice_of_four_hosts_is_followed_and_nothing_of_it_is_left(cloud: Emulator, jobs: Any) -> None:
    job = run(jobs.writes_lines, 5, accelerator=FOUR_HOSTS)
    events = told(job)
    assert [lines(events, host) for host in range(4)] == [
        "".join(f"line {number} of host {host}\n" for number in range(5)) for host in range(4)
    ]
    assert job.result(timeout=30) == 5
    free_rest(cloud)
    kinds = [entry.kind for entry in cloud.ledger.entries if entry.what == "created"]
    assert [kinds.count(kind) for kind in ("resource policy", "instance template", "instance group", "instance")] == [
        1, 1, 1, 4,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "lacking", [(), ("accelerator-type", "agent-worker-number", "tpu-env", "worker-id", "worker-network-endpoints")],
    ids=["told", "not told"],
)  # fmt: skip
def test_a_vm_of_eight_chips_is_one_host_whether_its_metadata_tell_of_them_or_not(
    cloud: Emulator, jobs: Any, lacking: tuple[str, ...]
) -> None:
    """No source says which metadata a TPU VM of Compute Engine without a slice has."""
    cloud.furnish({"lacking": lacking})
    job = run(jobs.prints_topology, accelerator="v6e-8")
    found = json.loads(lines(told(job), 0))
    assert not [name for name in found if name.startswith(("TPU_WORKER", "JAX_PROCESS", "MEGASCALE"))], found
    job.result(timeout=30)
    cloud.wait_until_empty(WITHIN)
    kinds = {entry.kind for entry in cloud.ledger.entries if entry.what == "created"}
    assert kinds == {"instance", "disk"}


@pytest.mark.slow
@pytest.mark.turn
def test_whoever_comes_back_while_the_vms_shut_down_changes_nothing_of_what_the_job_is_said_to_have_cost(
    cloud: Emulator, jobs: Any
) -> None:
    """Google lets VMs shut down for minutes, and charges for none of it."""
    cloud.compute.stuck_delete()
    job = run(jobs.attempt, accelerator=TWO_HOSTS)  # and nobody follows it
    store, end = job._job.store, names.verdict(job.job_id, 1)
    wait_until(lambda: {vm.status for vm in cloud.compute.instances.values()} == {"STOPPING"}, "it ends", within=WITHIN)
    wait_until(lambda: store.read(names.left(job.job_id, 1)) is not None, "its host has said so", within=WITHIN)
    wait_until(lambda: store.now() - store.read(end).updated > 2 * LATE, "a while goes by", within=WITHIN)
    told = job.cost().ready_seconds
    assert kinetic.attach(job.job_id).result(timeout=60) == 1
    assert job.cost().ready_seconds == told
    cloud.compute.unstick()


@pytest.mark.slow
@pytest.mark.turn(4)
def test_two_slices_of_two_hosts_are_joined_in_the_order_of_their_hosts(cloud: Emulator, jobs: Any) -> None:
    job = run(jobs.prints_topology, accelerator=TWO_HOSTS, cloud=TWO_SLICES)
    events = told(job)
    found = [json.loads(lines(events, host)) for host in range(4)]
    assert [one["MEGASCALE_SLICE_ID"] for one in found] == ["0", "0", "1", "1"]
    assert {(one["MEGASCALE_NUM_SLICES"], one["JAX_NUM_PROCESSES"]) for one in found} == {("2", "4")}
    assert [one["JAX_PROCESS_ID"] for one in found] == ["0", "1", "2", "3"]
    assert not [name for one in found for name in one if name.startswith("TPU_WORKER")]
    job.result(timeout=30)
    free_rest(cloud)
    assert sum(entry.what == "created" and entry.kind == "instance group" for entry in cloud.ledger.entries) == 2


@pytest.mark.slow
@pytest.mark.turn(1)
@pytest.mark.parametrize("notice", [0.0, 2.0])
def test_a_slice_that_loses_one_host_ends_as_preempted_and_the_next_one_has_the_result(
    cloud: Emulator, jobs: Any, tmp_path: Path, notice: float
) -> None:
    end = tmp_path / "end"
    job = run(jobs.until, str(end), accelerator=FOUR_HOSTS, spot=True)
    wait_running(job)
    first = sorted(instances(cloud, job))
    with ThreadPoolExecutor(1) as follower:
        following = follower.submit(told, job)
        try:
            cloud.compute.preempt(first[2], notice=notice)
            wait_until(lambda: not set(first) & set(instances(cloud, job)), "the first slice is gone", within=SURVIVES)
        finally:
            end.touch()
        events = following.result()
    assert job.result(timeout=60) == 2
    verdict = job.history()[0].verdict
    assert verdict is not None and verdict.cause == "preemption"
    assert any("preempt" in line for line in changes(events))


@pytest.mark.slow
@pytest.mark.turn(2)
@pytest.mark.parametrize("slices", [1, 2])
def test_with_all_clients_dead_hosts_free_their_groups_and_the_reaper_what_they_were_made_of(
    cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch, slices: int
) -> None:
    monkeypatch.setattr(reaper, "SETTLED", -60.0)  # so old a verdict has to be
    job = run(jobs.attempt, accelerator=TWO_HOSTS, cloud=kinetic.Compute(num_slices=slices))  # and nobody follows it
    wait_until(lambda: job._job.store.read(names.verdict(job.job_id, 1)) is not None, "the attempt ends", within=WITHIN)
    wait_until(lambda: left(cloud) == KEPT, lambda: f"hosts free their groups: {left(cloud)}", within=WITHIN)
    (name,) = {placement["name"] for placement in placements(job)}
    assert (name, reaper.REMOVED) in [(one.name, one.result) for one in reap() if one.what == reaper.PLACEMENT]
    cloud.wait_until_empty(60)
    assert job.result(timeout=60) == 1


@pytest.mark.slow
@pytest.mark.turn(7)
@pytest.mark.parametrize("slices", [1, 2])
def test_a_wait_that_is_over_while_nobody_follows_is_told_as_a_stockout_by_whoever_comes_and_all_of_it_is_freed(
    cloud: Emulator, jobs: Any, hosts_break: Break, monkeypatch: pytest.MonkeyPatch, slices: int
) -> None:
    """Also if the hosts of another slice had to say so, which free no more than their groups."""
    monkeypatch.setenv("KINETIC_ZONE_PATIENCE", f"{PATIENCE:g}s")
    hosts_break("""
        from kinetic_orchestration.host.machine.vm import awaited, member
        awaited.OVER, member.PACE = 0.5, 0.5
        host.Opening.shares_machine = lambda self: False  # as on a real cloud
    """)
    cloud.compute.slow_grant("*-1-1" if slices == 2 else "*-1", 3600.0)
    job = run(jobs.attempt, accelerator=TWO_HOSTS, cloud=kinetic.Compute(num_slices=slices))
    asked = time.monotonic()
    if slices == 2:
        wait_until(lambda: job._job.store.read(names.verdict(job.job_id, 1)), "the hosts' verdict", within=WITHIN)
        wait_until(lambda: left(cloud) == KEPT, lambda: f"hosts free their groups: {left(cloud)}", within=WITHIN)
    else:
        wait_until(lambda: time.monotonic() > asked + PATIENCE, "the end of the request", within=WITHIN)
    (first,) = {placement["name"] for placement in placements(job)}
    assert job.result(timeout=WITHIN) == 1  # that attempt had no hosts
    verdict = job.history()[0].verdict
    assert verdict is not None and verdict.cause == "stockout", verdict
    assert "could wait for them" in verdict.reason if slices == 2 else "while the request for" in verdict.reason
    assert placements(job)[1]["zone"] == ZONES[1]
    assert not [leak for leak in cloud.ledger.leaks() if leak.endswith(first)]
    free_rest(cloud)


@pytest.mark.slow
@pytest.mark.turn(7)
def test_a_slice_that_finds_no_capacity_leaves_nothing_in_that_zone_and_is_made_in_the_next(
    cloud: Emulator, jobs: Any
) -> None:
    cloud.compute.stockout(ZONES[0])
    job = run(jobs.attempt, accelerator=TWO_HOSTS)
    events = told(job)
    assert job.result(timeout=60) == 1
    assert placements(job)[0]["zone"] == ZONES[0]
    assert any("does not have enough resources" in line for line in changes(events))
    free_rest(cloud)
