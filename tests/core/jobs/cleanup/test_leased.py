"""The reaper judges a kept slice by its lease, whatever its labels say; and leases themselves go in time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kinetic_orchestration.capacity.warm import releasing
from kinetic_orchestration.capacity.warm.records import slices
from kinetic_orchestration.jobs.cleanup import leased
from kinetic_orchestration.jobs.cleanup.reaper import reap
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.job import ME
from kinetic_orchestration.plan.values import Freed
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records import leases
from kinetic_orchestration.protocol.wire.lease import ENDED
from tests.support.kept_slices import ENDED_WELL, Here

ZONES = ("us-east5-a", "us-east5-b")

pytestmark = pytest.mark.usefixtures("nothing_is_young")


def test_hosts_that_are_cleaning_are_left_at_it_and_then_their_offer_is_refused_first(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, name = here.kept()
    assert here.reap() == []
    monkeypatch.setattr(releasing, "CLEANED", -1.0)
    assert here.reap() == ["its attempt has its verdict"]
    (held,) = slices(here.store)
    assert (held.lease.slice, held.lease.state) == (name, ENDED), "so that no host can offer it now"
    assert here.left() == []


def test_after_another_verdict_and_without_keep_nothing_is_waited_for(here: Here) -> None:
    job = here.admit()
    actions.intend(job, 1)
    here.make(job.job_id, 1)
    actions.close(job, 1, wire.CANCELLED, "enough")
    here.kept(keep=None)
    assert here.reap() == ["its attempt has its verdict"] * 2
    assert here.left() == [] and slices(here.store) == []


def test_a_free_slice_stays_within_its_time_and_goes_after_it(here: Here) -> None:
    job, name = here.kept()
    here.lease(job, name)
    assert here.reap() == []
    here.lease(job, name, until=here.store.now() - leased.OVERDUE + 60.0)
    assert here.reap() == [], "its hosts are about to delete it"
    here.lease(job, name, until=here.store.now() - leased.OVERDUE - 60.0)
    (why,) = here.reap()
    assert why.startswith("nobody took it, and its lease ended ")
    assert [held.lease.state for held in slices(here.store)] == [ENDED]
    assert here.left() == []


def test_a_free_slice_whose_labels_are_past_their_deadline_stays(here: Here) -> None:
    job = here.admit()
    actions.intend(job, 1)
    name = here.make(job.job_id, 1, deadline=here.store.now() - 3600.0)
    here.lease(job, name)
    assert here.reap() == []
    assert here.left() == [name]


def test_a_claimed_slice_is_that_of_its_new_job_alive_or_dead(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    job, name = here.kept()
    second = here.admit()
    here.claimed(job, name, second)
    assert here.reap() == [], "its attempt runs"
    here.store.create(names.verdict(second.job_id, 1), ENDED_WELL.encode())
    assert here.reap() == [], "its hosts are cleaning"
    monkeypatch.setattr(releasing, "CLEANED", -1.0)
    assert here.reap() == ["its attempt has its verdict"]
    assert [held.lease.state for held in slices(here.store)] == [ENDED]
    assert here.left() == []


def test_an_attempt_that_is_past_the_deadline_of_its_claim_is_closed_and_its_slice_goes(here: Here) -> None:
    job, name = here.kept()
    second = here.admit()
    actions.intend(second, 1)
    here.claimed(job, name, second)
    here.claimed(job, name, second)
    held = leases.read(here.store, name)
    assert held is not None
    assert leases.write(here.store, held.lease._replace(until=here.store.now() - 3600.0), held)
    (why,) = here.reap()
    assert why.startswith("its deadline passed")
    record = here.store.read(names.verdict(second.job_id, 1))
    assert record is not None and wire.Verdict.decode(record.data).cause == wire.DEADLINE
    assert here.left() == []


def test_an_ended_slice_goes_once_whoever_ended_it_had_time_to_delete_it(here: Here) -> None:
    job, name = here.kept()
    here.lease(job, name, state=ENDED, why="host 0 is not clean")
    assert here.reap() == []
    here.lease(job, name, state=ENDED, since=here.store.now() - 2 * leased.SETTLED, why="host 0 is not clean")
    assert here.reap() == ["its lease has ended: host 0 is not clean"]
    assert here.left() == []


def test_a_lease_that_cannot_be_read_leaves_the_decision_to_the_deadline_of_the_labels(here: Here) -> None:
    job, name = here.kept()
    here.store.put(names.lease(name), b"{")
    assert here.reap() == []
    assert here.left() == [name]
    late = here.admit()
    actions.intend(late, 1)
    other = here.make(late.job_id, 1, deadline=here.store.now() - 3600.0)
    here.store.put(names.lease(other), b"{")
    (why,) = here.reap()
    assert why.startswith("its deadline passed")
    assert here.left() == [name]
    assert actions.release(job, 1) is Freed.REFUSED, "nor does its own job delete what may be another's"
    here.store.delete(names.lease(name))


def test_what_somebody_takes_while_it_is_judged_stays(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    job, name = here.kept()
    free = here.lease(job, name, until=here.store.now() - leased.OVERDUE - 60.0)
    second, ended = here.admit(), leased.ended

    def late(*about: Any) -> bool:
        monkeypatch.setattr(leased, "ended", ended)
        held = leases.read(here.store, name)
        assert leases.write(here.store, free.claimed(
            second.job_id, 1, deadline=here.store.now() + 600.0, origin={}, writer="other", now=here.store.now(),
        ), held)  # fmt: skip
        return ended(*about)

    monkeypatch.setattr(leased, "ended", late)
    assert here.reap() == []
    assert here.left() == [name]
    assert leases.read(here.store, name).lease.is_of(second.job_id, 1)  # type: ignore[union-attr]


def test_leases_of_slices_that_are_gone_are_ended_and_old_ones_forgotten(here: Here) -> None:
    job, name = here.kept()
    placement = here.backend.place(here.plan, job.job_id, 1)
    here.cloud.wait_until(lambda: here.backend.release(placement) is Freed.DONE)
    here.lease(job, name, until=here.store.now() - 2 * leased.OVERDUE)
    here.store.create(names.clean(name, 0, 0), b"{}")
    late = [one.why for one in reap(here.store, here.backend, here.settings) if one.what == "leases"]
    assert late == ["their slices were not seen to end"]
    (held,) = slices(here.store)
    assert (held.lease.state, held.lease.why) == (ENDED, "nobody has ended it in time")
    kept = replace(here.settings, retention=0.0)
    old = [one.why for one in reap(here.store, here.backend, kept) if one.what == "leases"]
    assert len(old) == 1
    assert list(here.store.list(names.SLICES)) == []


def test_what_is_damaged_of_a_job_that_has_ended_does_not_end_the_one_that_its_slice_serves(here: Here) -> None:
    job, name = here.kept()
    here.claimed(job, name, here.admit())
    here.store.put(names.verdict(job.job_id, 1), b"{")
    assert actions.release(job, 1) is Freed.KEPT
    here.store.delete(names.verdict(job.job_id, 1))
    assert actions.release(job, 1) is Freed.KEPT
    here.store.delete(names.spec(job.job_id))
    assert actions.release(job, 1) is Freed.KEPT
    actions.release_all(job, 5)
    assert here.left() == [name]


def test_marks_of_epochs_that_are_over_are_removed(here: Here) -> None:
    job, name = here.kept()
    here.claimed(job, name, here.admit())
    for epoch in (0, 1):
        here.store.create(names.clean(name, epoch, 0), b"{}")
    reap(here.store, here.backend, here.settings)
    found = [entry.name for entry in here.store.list(names.SLICES)]
    assert sorted(found) == sorted([names.clean(name, 1, 0), names.lease(name)])


def test_a_slice_or_all_of_a_run_is_released_by_name_but_never_what_serves_a_job(here: Here) -> None:
    job, name = here.kept()
    origin = {"orchestrator": "airflow", "run": "monday"}
    here.lease(job, name, origin=origin)
    assert releasing.release_run(here.store, here.backend, "airflow", "tuesday", writer=ME) == 0
    second = here.admit()
    here.claimed(job, name, second, origin=origin)
    assert releasing.release_run(here.store, here.backend, "airflow", "monday", writer=ME) == 0
    assert releasing.release_slice(here.store, here.backend, name, "enough", writer=ME) is Freed.KEPT
    here.lease(job, name, origin=origin)
    assert releasing.release_run(here.store, here.backend, "airflow", "monday", writer=ME) == 1
    assert releasing.release_slice(here.store, here.backend, "kinetic-nowhere", "enough", writer=ME) is Freed.DONE
    forged = here.lease(
        job, "kinetic-forged", placement={"project": "theirs", "zone": ZONES[0], "name": "kinetic-forged"}
    )
    assert releasing.release_slice(here.store, here.backend, forged.slice, "enough", writer=ME) is Freed.REFUSED
    here.cloud.wait_until(lambda: not here.left())
