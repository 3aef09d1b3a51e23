"""An attempt that raced, and whose winner may be kept: who may go, and when; on a cloud without hosts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kinetic_orchestration.capacity.races.backend import Racing
from kinetic_orchestration.capacity.races.records import fail, failures
from kinetic_orchestration.capacity.races.rules import Failed, ended
from kinetic_orchestration.capacity.warm import releasing
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.following.placing import past_of
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.jobs.trust import Trust
from kinetic_orchestration.jobs.watching import attempts
from kinetic_orchestration.plan.values import Freed
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records import leases
from kinetic_orchestration.protocol.wire.lease import ENDED, Lease
from tests.support.kept_slices import ENDED_WELL, TRUST, Here, intent_of, submit

ZONES = ("us-east5-a", "us-east5-b")

pytestmark = pytest.mark.usefixtures("nothing_is_young")


def raced(here: Here, winner: int | None = 1, *, has_ended: bool = True) -> tuple[Job, str, str]:
    """A job that asked two places, which both have their hosts, and the names of its slices: of the first place, and of
    the second."""
    job = here.admit(race=2)
    assert isinstance(job.backend, Racing)
    actions.intend(job, 1)
    assert submit(job) == ""
    first, second = (str(place["name"]) for place in intent_of(job).places)
    here.cloud.wait_until(lambda: [here.state(name) for name in (first, second)] == ["ACTIVE", "ACTIVE"])
    if winner is not None:
        here.store.create(names.won(job.job_id, 1), wire.encode({"rival": winner}))
    if has_ended:
        here.store.create(names.verdict(job.job_id, 1), ENDED_WELL.encode())
    return job, first, second


def offer(here: Here, job: Job, name: str) -> Lease:
    """The lease of the second place."""
    return here.lease(
        job, name, placement={**here.backend.place(here.plan, job.job_id, 1), "name": name, "zone": ZONES[1]}
    )


def wait_left(here: Here, *left: str) -> None:
    here.cloud.wait_until(lambda: here.left() == [*left])


@pytest.mark.parametrize("known", [True, False], ids=["as it was decided", "as it was written"])
def test_losers_go_at_once_and_the_winner_stays_whatever_is_known(here: Here, known: bool) -> None:
    job, first, second = raced(here)
    intent = intent_of(job) if known else None
    assert intent is None or intent.placement["name"] == second
    assert actions.release(job, 1, intent) is Freed.KEPT, "its hosts are cleaning"
    wait_left(here, second)
    assert leases.read(here.store, first) is None
    offer(here, job, second)
    assert actions.release(job, 1, intent) is Freed.KEPT
    actions.release_all(job, 5)
    assert here.left() == [second]


def test_a_winner_that_offers_nothing_in_time_may_not_any_more_and_goes(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, first, second = raced(here, 0)
    monkeypatch.setattr(releasing, "CLEANED", -1.0)
    actions.release(job, 1)
    wait_left(here)
    held = leases.read(here.store, first)
    assert held is not None and held.lease.state == ENDED
    assert leases.read(here.store, second) is None


def test_without_a_known_winner_each_place_is_judged_by_its_own_lease(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, first, second = raced(here, None)
    assert actions.release(job, 1) is Freed.KEPT
    assert here.left() == [first, second]
    offer(here, job, second)
    monkeypatch.setattr(releasing, "CLEANED", -1.0)
    assert actions.release(job, 1) is Freed.KEPT
    wait_left(here, second)


def test_a_forged_winner_of_a_signed_job_does_not_delete_the_slice_that_the_real_one_cleans(here: Here) -> None:
    """Whoever writes to the bucket may write who has won; without the hosts' seal that counts for nobody."""
    job, first, second = raced(here, 0)
    trust = Trust(signing_key="a key that others do not have")
    job = replace(job, trust=trust, signed=trust.key_id)
    assert job.is_sealed
    assert actions.release(job, 1) is Freed.KEPT
    assert [here.state(name) for name in (first, second)] == ["ACTIVE", "ACTIVE"]


def test_an_attempt_that_ended_badly_leaves_no_place(here: Here) -> None:
    job, *_ = raced(here, has_ended=False)
    actions.close(job, 1, wire.CANCELLED, "enough")
    actions.release(job, 1)
    wait_left(here)


def test_a_damaged_intent_is_found_by_labels_and_deletes_no_winner(here: Here) -> None:
    job, _, second = raced(here)
    offer(here, job, second)
    here.store.put(names.intent(job.job_id, 1), b"{")
    assert actions.release(job, 1) is Freed.KEPT
    wait_left(here, second)


def test_a_job_takes_the_slice_of_a_second_place_and_another_race_is_not_begun(here: Here) -> None:
    job, _, second = raced(here)
    offer(here, job, second)
    actions.release(job, 1)
    taker = here.admit(race=2)
    actions.intend(taker, 1)
    placement = intent_of(taker).placement
    assert placement["lease"] == {"slice": second, "epoch": 1}
    assert "rivals" not in placement
    assert submit(taker) == ""
    held = leases.read(here.store, second)
    assert held is not None and held.lease.is_of(taker.job_id, 1)
    assert held.lease.orders_for_hosts(TRUST.slice_key(here.store, job.job_id, 1)) is not None
    assert actions.release(job, 1) is Freed.KEPT, "it is the other's"
    assert here.reap() == []
    wait_left(here, second)
    actions.close(taker, 1, wire.CANCELLED, "enough")
    actions.release(taker, 1)
    wait_left(here)


def test_a_retry_waits_for_the_slice_that_has_won_and_no_longer(here: Here) -> None:
    job, _, second = raced(here, has_ended=False)
    failed = wire.Verdict(wire.ABORTED, "host", here.store.now(), cause=wire.USER, host=0, reason="no")
    here.store.create(names.verdict(job.job_id, 1), failed.encode())
    assert "being cleaned" in actions._cleaning(job, 1, here.store.now())
    offer(here, job, second)
    assert actions._cleaning(job, 1, here.store.now()) == ""


def test_the_reaper_deletes_losers_at_once_and_charges_the_attempt_for_none(here: Here) -> None:
    job, _, second = raced(here)
    assert here.reap(dry_run=True) == ["its attempt has its verdict"]
    assert here.reap() == ["its attempt has its verdict"]
    assert here.left() == [second], "whose hosts are cleaning"
    assert here.store.read(names.gone(job.job_id, 1, 0)) is not None
    times = attempts.times(here.store, job.job_id)[1]
    assert (times.freed, times.refused) == (None, False)
    offer(here, job, second)
    assert here.reap() == []
    assert here.left() == [second]


def test_the_reaper_deletes_the_loser_of_a_race_that_goes_on(here: Here) -> None:
    job, _, second = raced(here, has_ended=False)
    assert here.reap() == ["another place has won the race of its attempt"]
    assert here.left() == [second]
    times = attempts.times(here.store, job.job_id)[1]
    assert (times.freed, times.refused) == (None, False), "the attempt still has its hosts"


def test_with_a_signing_key_no_place_goes_by_a_winner_of_a_job_whose_spec_nobody_vouches_for(here: Here) -> None:
    """Whoever writes to the bucket may write who has won, and remove or replace the spec that says who signs it."""
    job, first, second = raced(here, has_ended=False)
    here.settings = replace(here.settings, signing_key="a key that others do not have")
    assert here.reap() == []
    here.store.delete(names.spec(job.job_id))
    assert here.reap() == []
    assert here.left() == [first, second]


def test_the_end_of_its_run_refuses_the_offer_of_the_winner(here: Here) -> None:
    job, first, second = raced(here)
    actions.release(job, 1)
    assert releasing.release_run(here.store, here.backend, "airflow", "monday", writer="me", jobs=[job.job_id]) == 1
    wait_left(here)
    held = leases.read(here.store, second)
    assert held is not None and held.lease.state == ENDED
    assert leases.read(here.store, first) is None


def test_the_end_of_its_run_refuses_the_offers_of_all_places_if_nobody_is_known_to_have_won(here: Here) -> None:
    job, first, second = raced(here, None)
    assert releasing.release_run(here.store, here.backend, "airflow", "monday", writer="me", jobs=[job.job_id]) == 1
    wait_left(here)
    held = [leases.read(here.store, name) for name in (first, second)]
    assert [one is not None and one.lease.state for one in held] == [ENDED, ENDED]


def test_the_reaper_ends_a_race_with_the_answers_of_all_its_places_and_each_is_recorded(here: Here) -> None:
    job, first, second = raced(here, None, has_ended=False)
    here.cloud.preempt(first)
    assert len(here.reap()) == 1, "the other place may still win"
    assert here.store.read(names.verdict(job.job_id, 1)) is None
    here.cloud.preempt(second)
    here.reap()
    record = here.store.read(names.verdict(job.job_id, 1))
    assert record is not None
    verdict = wire.Verdict.decode(record.data)
    assert verdict.cause == wire.PREEMPTION
    assert all(zone in verdict.reason for zone in ZONES)
    assert sorted(failures(here.store, job.job_id, 1, range(2))) == [0, 1]


def test_what_one_place_has_refused_for_good_is_not_said_of_another_that_was_lost(here: Here) -> None:
    job, *_ = raced(here, None, has_ended=False)
    intent, zone = intent_of(job), f"{ZONES[1]} (RESOURCE_EXHAUSTED): there is none at all"
    refused = Failed(
        wire.QUOTA, f"Quota limit 'TPUV5sLitepodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0 in zone {zone}"
    )
    fail(here.store, job.job_id, 1, 0, Failed(wire.CANCELLED, f"somebody deleted the slice in {ZONES[0]}"), "me")
    fail(here.store, job.job_id, 1, 1, refused, "me")
    past = past_of(job, intent, *ended(intent.places, failures(here.store, job.job_id, 1, range(2))))
    assert job.backend.place(job.plan(), job.job_id, 2, past)["dropped"] == [ZONES[1]]
