"""Faults that hosts of every kind have, the same tests for VMs of Cloud TPU and of Compute Engine: a suite of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.errors import JobError
from kinetic_orchestration.jobs.cleanup import reaper
from kinetic_orchestration.jobs.following import actions, held_time
from kinetic_orchestration.plan.values import JobStatus, Output
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.content import tree
from kinetic_orchestration.testing import Emulator
from tests.support.faults import CHANGED
from tests.support.jobs import ALL_OF_THE_AGENT, WITHIN, beats, changes, lines, placements, told, verdicts, wait_running
from tests.support.waits import wait_until

NONE = kinetic.Retry(infra=0, preemption=0)
Break = Callable[[str], None]
Job = JobHandle[Any]


class FaultsOfHosts:
    """The facts about an API that its subclass gives.

    Attributes:
        run: A job of a function, its arguments and options, that has been submitted.
        machines: What the API shows of a job: slices, or VMs.
        vm: One machine of a job, by default that of host 0.
        several: Options of a job on several hosts.
        hosts: Their number.
        waits: Options of a job that waits in a zone without capacity.
        deletion: The call by which a host deletes, and the number of such calls that delete several.
        notice: Seconds between the notice of a preemption and the end.
        patience: What hosts run before all else, so that they leave programs the time of a notice.
    """

    run: Callable[..., Job]
    machines: Callable[[Emulator, Job], list[str]]
    vm: Callable[..., Any]
    several: Mapping[str, Any]
    hosts: int
    waits: Mapping[str, Any] = MappingProxyType({})
    deletion: tuple[str, int]
    notice: float
    patience = ""

    def reboot(self, cloud: Emulator, job: Job, host: int) -> None:
        raise NotImplementedError

    def preempt(self, cloud: Emulator, job: Job, notice: float) -> None:
        raise NotImplementedError

    def skew(self, cloud: Emulator, host: int, seconds: float) -> None:
        """Have the clock of a host that boots from now on be off."""
        raise NotImplementedError

    def stockout(self, cloud: Emulator) -> None:
        raise NotImplementedError

    def restock(self, cloud: Emulator) -> None:
        raise NotImplementedError

    @property
    def other(self) -> int:
        """A host that is not the first."""
        return min(2, self.hosts - 1)

    def test_f14_a_host_that_reboots_in_mid_run_ends_the_attempt_and_the_next_one_finishes(
        self, cloud: Emulator, jobs: Any, tmp_path: Path
    ) -> None:
        job = self.run(jobs.until, str(tmp_path / "go"), **self.several)
        wait_running(job)
        machine = self.vm(cloud, job, self.other)
        boots = machine.boots
        self.reboot(cloud, job, self.other)
        wait_until(lambda: machine.boots > boots, "its new start")
        (tmp_path / "go").touch()
        assert job.result(timeout=WITHIN) == 2
        first = verdicts(job)[0]
        assert (first.kind, first.cause, first.host) == (wire.ABORTED, wire.INFRASTRUCTURE, self.other)
        assert first.reason == "this machine was restarted in mid-run (another boot id)"

    @pytest.mark.parametrize("pause", [2.0, -1.0], ids=["later", "earlier"])
    def test_f15_the_failure_shown_is_that_of_the_host_that_failed_and_not_its_siblings(
        self, cloud: Emulator, jobs: Any, tmp_path: Path, pause: float, hosts_break: Break
    ) -> None:
        """Even when its siblings lose their connections, and end, before it has said so itself."""
        hosts_break("attempt_rules.ECHO = 30.0")
        job = self.run(jobs.echoes, str(tmp_path), self.other, pause, **self.several)
        with pytest.raises(ValueError, match="the learning rate is negative") as caught:
            job.result(timeout=WITHIN)
        assert f"on host {self.other}" in caught.value.__notes__[0]

    def test_f17_a_preemption_during_the_upload_of_the_result_does_not_lose_it(
        self, cloud: Emulator, jobs: Any
    ) -> None:
        cloud.storage.delay("insert *result*", 4.0)
        job = self.run(jobs.attempt, spot=True)
        wait_until(lambda: [beat.exit for beat in beats(job).values()] == [0], "the program's end")
        self.preempt(cloud, job, 30.0)
        assert job.result(timeout=WITHIN) == 1
        assert [verdict.kind for verdict in verdicts(job)] == [wire.COMMITTED]

    def test_f18_a_zombie_attempt_cannot_commit_late(
        self, cloud: Emulator, jobs: Any, tmp_path: Path, hosts_break: Break
    ) -> None:
        """It was frozen at its commit and wakes when its attempt was closed: it stops and deletes, and one result is."""
        asleep, awake = tmp_path / "asleep", tmp_path / "awake"
        hosts_break(f"""
            def commit(self, *about, real=outcome.Outcome._commit):
                if self.at.attempt == 1:
                    open({str(asleep)!r}, "w").close()
                    while not os.path.exists({str(awake)!r}):
                        time.sleep(0.02)
                real(self, *about)
            outcome.Outcome._commit = commit
        """)
        job = self.run(jobs.attempt)
        wait_until(asleep.exists, "the commit")
        zombie = self.vm(cloud, job)
        zombie.freeze()
        actions.close(job._job, 1, wire.INFRASTRUCTURE, "given up")
        awake.touch()
        zombie.thaw()
        wait_until(lambda: not self.machines(cloud, job), "the deletion by the zombie itself", within=WITHIN)
        assert job.status() is not JobStatus.SUCCEEDED
        assert job.result(timeout=WITHIN) == 2
        assert [verdict.kind for verdict in verdicts(job)] == [wire.CLOSED, wire.COMMITTED]

    @pytest.mark.parametrize("how", ["preempted", "cancelled"])
    def test_f21_the_last_lines_on_sigterm_arrive(
        self, cloud: Emulator, jobs: Any, how: str, hosts_break: Break
    ) -> None:
        hosts_break(self.patience)
        job = self.run(jobs.has_last_words, retry=NONE, spot=True)
        wait_running(job)
        wait_until(lambda: "ready" in (job.logs() or ""), "its first line")
        if how == "preempted":
            self.preempt(cloud, job, self.notice)
        else:
            actions.cancel(job._job, "enough", "a test")
        expected = "ready\n" + "".join(f"last word {number}\n" for number in range(100)) + "and the very last"
        assert lines(told(job)) == expected

    def test_f24_host_0_loses_its_power_before_it_deletes_and_host_1_does(
        self, cloud: Emulator, jobs: Any, hosts_break: Break
    ) -> None:
        hosts_break("self_delete.FIRST_TURN, self_delete.TURN = 1.0, 0.5")
        self.check_host_1_deletes(cloud, jobs, hosts_break)

    def check_host_1_deletes(self, cloud: Emulator, jobs: Any, hosts_break: Break) -> None:
        hosts_break("""
            def end(at, real=self_delete.delete_own_slice):
                if at.host == 0:
                    os.kill(-1, signal.SIGKILL)  # all of this machine
                    os.kill(os.getpid(), signal.SIGKILL)
                real(at)
            self_delete.delete_own_slice = end
        """)
        job = self.run(jobs.attempt, **self.several)
        wait_until(lambda: job.history()[-1].verdict, "the verdict", within=WITHIN)
        cloud.wait_until_empty(WITHIN)
        call, times = self.deletion
        assert cloud.count(call, "vm") >= times
        assert cloud.count(call, "client") == 0
        assert job.result(timeout=WITHIN) == 1

    @pytest.mark.parametrize("store", [0.0, -600.0], ids=["the hosts' clocks", "the store's clock, too"])
    def test_f27_clocks_that_are_off_by_ten_minutes_change_nothing(
        self, cloud: Emulator, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: float
    ) -> None:
        """Ages and deadlines are the store's: nobody is taken for dead, stuck or late, and all lines lie in one time."""
        monkeypatch.setattr(held_time, "DEADLINE_ALLOWANCE", 0.0)
        cloud.storage.skew = store
        self.skew(cloud, 0, -600.0)
        self.skew(cloud, self.other, 600.0)
        limits = kinetic.Limits(provision=60.0, run=60.0, stall=30.0)
        job = self.run(jobs.until, str(tmp_path / "go"), retry=NONE, limits=limits, **self.several)
        began = job._job.store.now()
        wait_running(job)
        skews = [self.vm(cloud, job, host).machine.clock_skew for host in (0, self.other)]
        assert skews == [-600.0, 600.0]
        (tmp_path / "go").touch()
        events = told(job)
        assert job.result(timeout=WITHIN) == 1
        times = {event.host: event.time for event in events if isinstance(event, Output)}
        assert len(times) == self.hosts
        assert all(began - 30 < moment < job._job.store.now() + 30 for moment in times.values()), (began, times)

    def test_f27_the_deadline_passes_by_the_stores_clock_on_a_host_that_is_ten_minutes_behind(
        self, cloud: Emulator, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With no agent left there, and nobody who looks."""
        monkeypatch.setattr(held_time, "DEADLINE_ALLOWANCE", 0.0)
        self.skew(cloud, 0, -600.0)
        job = self.run(jobs.until, str(tmp_path / "never"), limits=kinetic.Limits(provision=15.0, run=15.0))
        wait_running(job)
        assert self.vm(cloud, job).kill(ALL_OF_THE_AGENT)
        cloud.wait_until_empty(WITHIN)
        intent = job.history()[0].began
        assert intent is not None
        assert 29.0 < job._job.store.now() - intent < WITHIN  # and not 600
        with pytest.raises(JobError, match="deadline"):
            job.result(timeout=WITHIN)

    @pytest.mark.parametrize("what", list(CHANGED))
    def test_f29_what_was_changed_in_the_bucket_is_refused_on_the_host_and_not_tried_again(
        self, cloud: Emulator, jobs: Any, tmp_path: Path, what: str
    ) -> None:
        """It is named, nothing of it runs, and what anybody may send again is removed, so that the next job works."""
        self.stockout(cloud)
        job = self.run(jobs.contents, str(tmp_path / "ran"), **self.waits)
        store = job._job.store
        name = _name_of(job, what)
        record = store.read(name)
        assert record is not None
        data = bytearray(record.data)
        data[len(data) // 2] ^= 1
        store.put(name, bytes(data))
        self.restock(cloud)
        with pytest.raises(JobError, match=CHANGED[what]) as caught:
            job.result(timeout=WITHIN)
        assert caught.value.cause == wire.CONFIGURATION
        assert job.attempts() == 1
        assert not (tmp_path / "ran").exists()
        if what != "spec":
            assert store.read(name) is None
            assert self.run(jobs.attempt).result(timeout=WITHIN) == 1

    @pytest.mark.parametrize("says_so", [False, True], ids=["raised", "in the log"])
    def test_f33_a_device_that_is_busy_is_the_machines_fault_and_new_hosts_follow(
        self, cloud: Emulator, jobs: Any, says_so: bool
    ) -> None:
        job = self.run(jobs.driver_is_busy_at_first, says_so)
        events = told(job)
        assert job.result(timeout=WITHIN) == 2
        assert verdicts(job)[0].cause == wire.INFRASTRUCTURE
        assert len({placement["name"] for placement in placements(job)}) == 2
        assert any("the accelerator's driver failed" in line for line in changes(events))


def _name_of(job: Job, what: str) -> str:
    """The object in which a job has its spec, or something that this names."""
    staged = job._job.spec()["staged"]
    if what == "payload":
        return names.blob(staged["payload"]["digest"])
    if what == "agent":
        return names.blob(staged["agent"])
    if what == "spec":
        return names.spec(job.job_id)
    manifest = job._job.store.read(names.tree(staged["tree"]))
    assert manifest is not None
    return names.blob(tree.packs_of(json.loads(manifest.data))[0].id)


def check_the_reaper_leaves_alone(
    run: Callable[..., Job], jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    *, make_by_hand: Callable[[], object], there: Callable[[], set[str]], reap: Callable[..., list[reaper.Reaped]],
) -> None:  # fmt: skip
    """Assert that the reaper deletes nothing that lives, is of others or is no job of ours, however old it all is. A
    job that the store does not know lives until its deadline, too.
    """
    for patience in ("SETTLED", "UNCLAIMED"):
        monkeypatch.setattr(reaper, patience, -1e6)
    live = run(jobs.until, str(tmp_path / "go"))
    unknown = run(jobs.until, str(tmp_path / "go"), key="unknown")
    foreign = run(jobs.until, str(tmp_path / "go"), deployment="theirs")
    for job in (live, unknown, foreign):
        wait_running(job)
    forgotten = unknown._job.store
    for record in list(forgotten.list(names.job(unknown.job_id))):
        if record.name.endswith(("spec.json", "intent.json")):
            forgotten.delete(record.name)
    make_by_hand()
    before = there()
    assert len(before) == 4
    for deployment in ("test", "theirs", "somebody-elses"):
        assert [found for found in reap(deployment=deployment) if found.what == "placement"] == []
    assert there() == before
    (tmp_path / "go").touch()
    assert (live.result(timeout=WITHIN), foreign.result(timeout=WITHIN)) == (1, 1)
