"""Tests what attempts tell the deployment about capacity, on this machine."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.capacity import facts, records
from kinetic_orchestration.errors import JobError, Unreachable
from kinetic_orchestration.jobs.following import placing
from kinetic_orchestration.jobs.following.drivers import follow
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.plan.records import intent_of
from kinetic_orchestration.plan.values import Glimpse, Past
from kinetic_orchestration.program.checkpoints import commits
from kinetic_orchestration.protocol import names, wire
from tests.support.jobs import placements
from tests.support.waits import wait_until


class Silent:
    """A store that answers for a while, and then no more."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def read(self, *given: Any, **named: Any) -> Any:
        raise Unreachable("the store does not answer")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_what_others_could_learn_is_no_error_of_the_job_that_met_it(home: Path) -> None:
    job = kinetic.command(["true"], accelerator=["cpu", "cpu:2"])
    job.result(timeout=60)
    own, plan = job._job, job._job.plan()
    record = own.store.read(names.intent(own.job_id, 1))
    assert record is not None
    intent = intent_of(record, own.job_id, 1, own.within)
    silent: Any = Silent(own.store)
    placing.learn_start(replace(own, store=silent), Glimpse(record.updated, intent), was="queued", now="running")
    past = Past(intent.placement, wire.PREEMPTION, "gone", intent.created)
    placing.learn_from_end(replace(own, store=silent), plan, 1, past)
    placing.learn_from_end(own, plan, 1, past)
    assert [fact.attempts[-1].outcome for fact in records.everything(own.store).values()] == ["preempted-young"]


@pytest.mark.parametrize("program", ["true", "false"])
def test_hosts_of_a_job_that_is_over_at_the_first_look_are_learned_once(home: Path, program: str) -> None:
    """Its phase was never seen to be that it runs."""
    job = kinetic.command([program], accelerator=["cpu", "cpu:2"])
    own = job._job
    wait_until(lambda: own.store.read(names.verdict(own.job_id, 1)) is not None, "its verdict")
    assert records.everything(own.store) == {}
    assert follow(Follower(own), timeout=60.0) is not None
    (name,) = [entry.name for entry in own.store.list(names.FACTS)]
    written = own.store.read(name)
    assert written is not None
    (fact,) = records.everything(own.store).values()
    assert ([one.outcome for one in fact.attempts], fact.attempts[0].job) == (["got"], own.job_id)
    follow(Follower(own), timeout=60.0)
    assert own.store.read(name) == written, "whoever comes later adds nothing"
    started = own.store.read(names.host(own.job_id, 1, 0, "started.json"))
    assert started is not None and fact.attempts[0].at == started.updated


def test_hosts_that_were_there_long_ago_are_nothing_to_learn_from(home: Path) -> None:
    job = kinetic.command(["true"], accelerator=["cpu", "cpu:2"])
    own = job._job
    wait_until(lambda: own.store.read(names.verdict(own.job_id, 1)) is not None, "its verdict")
    verdict = Path(own.store.address) / names.verdict(own.job_id, 1)
    long_ago = verdict.stat().st_mtime - facts.WINDOW - 1.0
    os.utime(verdict, (long_ago, long_ago))
    assert follow(Follower(own), timeout=60.0) is not None
    assert records.everything(own.store) == {}


def written(job: Any, step: int, hosts: int, devices: int, **more: Any) -> None:
    """A checkpoint in the place of a job, as its hosts commit it."""
    own = job._job
    folder = commits.folder(step, "0123456789abcdef-1")
    parts = (commits.Part(1, "ab" * 32),) * hosts
    record = commits.Commit(step, folder, hosts, devices, parts, {}, **more)
    place = names.checkpoint_dir(str(own.spec()["identity"]))
    own.store.put(f"{place}/training/{commits.commit(folder)}", record.encode())


def failed(*accelerators: str, **options: Any) -> Any:
    job = kinetic.command(["false"], accelerator=list(accelerators), key="again", **options)
    with pytest.raises(JobError):
        job.result(timeout=60)
    return job


@pytest.mark.slow
@pytest.mark.turn
def test_the_next_job_of_a_key_takes_no_shape_that_its_checkpoint_cannot_be_resumed_on(home: Path) -> None:
    """Its first attempt knows what hosts of an earlier job wrote: a retry of Airflow is such a job."""
    first = failed("cpu", "cpu:2")
    assert placements(first)[0]["choice"] == 0
    written(first, 5, hosts=1, devices=2)
    (line,) = [line for line in first.choices() if line.choice == 0]
    assert line.reason == "cannot resume the checkpoint: it has 1 device, and 2 devices wrote it"
    second = failed("cpu", "cpu:2")
    assert second.job_id != first.job_id
    assert [one["choice"] for one in placements(second)] == [1]
    assert [one["choice"] for one in placements(failed("cpu", "cpu:2", reshard=True))] == [0]
    written(first, 10, hosts=4, devices=0)
    with pytest.raises(
        JobError, match="cpu on-demand: cannot resume the checkpoint: it has 1 host, and 4 hosts wrote it"
    ):
        kinetic.command(["false"], accelerator=["cpu", "cpu:2"], key="again").result(timeout=60)
    written(first, 15, hosts=1, devices=0, slice_hosts=4)
    assert [one["choice"] for one in placements(failed("cpu", "cpu:2"))] == [0]


def test_a_record_of_a_checkpoint_that_cannot_be_read_keeps_no_job_waiting(home: Path) -> None:
    first = failed("cpu", "cpu:2")
    written(first, 5, hosts=1, devices=2)
    place = names.checkpoint_dir(str(first._job.spec()["identity"]))
    for number, data in enumerate((b"", b"[]", b'{"wire":1}', b"\xff" * 100), 1):
        name = f"{place}/training/{commits.commit(commits.folder(10 * number, '0123456789abcdef-1'))}"
        first._job.store.put(name, data)
    assert [one["choice"] for one in placements(failed("cpu", "cpu:2"))] == [1], "the one before them is read"
