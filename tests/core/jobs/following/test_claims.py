"""An attempt that is placed on a kept slice, claims it or loses it, and what follows; on a cloud without hosts."""

from __future__ import annotations

import pytest

from kinetic_orchestration.capacity.warm import releasing
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.following.verdicts import glimpse
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.jobs.watching.cache import AttemptCache
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.planner import make_plan
from kinetic_orchestration.plan.values import ABSENT, GONE, PRESENT, Freed, Retry
from kinetic_orchestration.program.checkpoints import commits
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records import leases
from kinetic_orchestration.protocol.wire.lease import CLAIMED, ENDED, FREE
from tests.support.kept_slices import TRUST, Here, intent_of, submit
from tests.support.on_cloud import IDENTITY

ZONES = ("us-east5-a", "us-east5-b")


def verdict_of(job: Job, attempt: int = 1) -> wire.Verdict | None:
    record = job.store.read(names.verdict(job.job_id, attempt))
    return None if record is None else wire.Verdict.decode(record.data)


def test_before_its_claim_nothing_of_the_slice_is_the_attempts_and_after_it_all(here: Here) -> None:
    first, name = here.kept()
    here.lease(first, name)
    job, cache = here.admit(), AttemptCache()
    actions.intend(job, 1)
    intent = intent_of(job)
    assert intent.placement["lease"] == {"slice": name, "epoch": 1}
    seen = glimpse(job, 1, cache)
    assert (seen.observation.state, seen.since, seen.shown, seen.charged) == (ABSENT, 0.0, 0.0, 0.0)
    assert name in seen.observation.message
    assert submit(job) == ""
    assert verdict_of(job) is None
    seen = glimpse(job, 1, cache)
    assert seen.observation.state == PRESENT
    assert seen.charged >= intent.created, "what it was there before is not charged to it"
    assert submit(job) == "", "and may be done again"
    held = leases.read(here.store, name)
    assert held is not None
    assert (held.lease.epoch, held.lease.is_of(job.job_id, 1)) == (1, True)
    orders = held.lease.orders_for_hosts(TRUST.slice_key(here.store, first.job_id, 1))
    assert orders is not None
    assert (orders["job"], orders["attempt"], orders["resource"].rpartition("/")[2]) == (job.job_id, 1, name)
    assert "lease_key" not in orders
    assert len(here.left()) == 1


def test_an_attempt_lists_once_what_it_can_resume_whatever_slices_are_kept(here: Here) -> None:
    other, name = here.kept()
    here.lease(other, name, shape="0" * 64)
    asked = Options(["v6e-8", "v6e-16"], backend="tpu-vm", regions=["us-east5"], keep="10m")
    here.plan = make_plan(JobSpec("train", asked, argv=("x",)), here.settings, {})
    job, place = here.admit(), names.checkpoint_dir(IDENTITY)
    record = commits.Commit(5, commits.folder(5, "writer-1"), 4, 16, (commits.Part(1, "ab" * 32),) * 4, {})
    here.store.put(f"{place}/training/{commits.commit(record.folder)}", record.encode())
    for number in range(3):
        here.store.put(f"{place}/own/{number}/array", b"")

    def listed(under: str) -> int:
        return sum(call.verb == "list" and f"/{under}" in call.where for call in here.cloud.storage.calls)

    here.cloud.storage.forget()
    actions.intend(job, 1)
    assert intent_of(job).choice == 1, "the one of as many hosts"
    assert (listed(place), listed(names.SLICES)) == (1, 1)
    (entry,) = here.store.list(place, last=commits.COMMIT)
    assert entry.name.endswith(f"/{commits.commit(record.folder)}") and len(list(here.store.list(place))) == 4
    here.cloud.storage.forget()
    here.store.create(
        names.verdict(job.job_id, 1), wire.Verdict(wire.CLOSED, "test", 0.0, cause=wire.STOCKOUT).encode()
    )
    actions.intend(job, 2)
    assert intent_of(job, 2).choice == 1
    assert listed(place) == 1, "the next attempt looks again: the one before may have saved more"


def test_a_slice_that_is_gone_when_it_is_claimed_ends_the_attempt_instead_of_being_asked_for_again(here: Here) -> None:
    first, name = here.kept()
    here.lease(first, name)
    job, cache = here.admit(), AttemptCache()
    actions.intend(job, 1)
    placement = here.backend.place(here.plan, first.job_id, 1)
    here.cloud.wait_until(lambda: here.backend.release(placement) is Freed.DONE)
    assert submit(job) == ""
    seen = glimpse(job, 1, cache)
    assert (seen.observation.state, seen.observation.message) == (GONE, f"the warm slice {name} is gone")


def test_after_two_claims_that_others_won_hosts_are_created_as_if_there_had_been_none(here: Here) -> None:
    slices = [here.kept() for _ in range(3)]
    for job, name in slices:
        here.lease(job, name)
    late = here.admit()
    for attempt in (1, 2):
        actions.intend(late, attempt)
        taken = intent_of(late, attempt).placement
        assert taken["lease"].get("lost", 0) == attempt - 1
        (of,) = [job for job, name in slices if name == taken["name"]]
        other = here.admit()
        here.claimed(of, taken["name"], other)
        assert submit(late, attempt) == ""
        verdict = verdict_of(late, attempt)
        assert verdict is not None
        assert (verdict.kind, verdict.cause) == (wire.CLOSED, wire.INTERNAL)
        assert f"{other.job_id} took it first" in verdict.reason
        assert actions.release(late, attempt) is Freed.KEPT, "it is the other's"
    actions.intend(late, 3)
    fresh = intent_of(late, 3)
    assert "lease" not in fresh.placement
    assert (fresh.placement["zone"], fresh.wait) == (ZONES[0], 0.0), "no place has refused anything"
    actions.close(late, 3, wire.STOCKOUT, "nothing there")
    actions.intend(late, 4)
    assert intent_of(late, 4).placement["lease"]["slice"] in [name for _, name in slices], "later it may try again"
    assert len(here.left()) == 3


def test_what_waited_before_a_lost_claim_goes_on_where_it_was(here: Here) -> None:
    job = here.admit()
    actions.intend(job, 1)
    actions.close(job, 1, wire.STOCKOUT, f"{ZONES[0]}: there is no more capacity")
    first, name = here.kept()
    here.lease(first, name)
    actions.intend(job, 2)
    assert intent_of(job, 2).since == intent_of(job, 1).created
    here.claimed(first, name, here.admit())
    submit(job, 2)
    actions.intend(job, 3)
    third = intent_of(job, 3)
    assert (third.placement["zone"], third.since) == (ZONES[1], intent_of(job, 1).created)


def test_a_job_without_keep_takes_nothing(here: Here) -> None:
    first, name = here.kept()
    here.lease(first, name)
    plain = here.admit(keep=None)
    actions.intend(plain, 1)
    assert "lease" not in intent_of(plain).placement
    held = leases.read(here.store, name)
    assert held is not None and held.lease.state == FREE


def test_a_slice_of_an_attempt_that_ended_badly_is_ended_first_and_then_deleted(here: Here) -> None:
    first, name = here.kept()
    here.lease(first, name)
    job = here.admit()
    actions.intend(job, 1)
    submit(job)
    actions.close(job, 1, wire.INFRASTRUCTURE, "its hosts are silent")
    assert actions.release(job, 1) in (Freed.UNDER_WAY, Freed.DONE)
    held = leases.read(here.store, name)
    assert held is not None and held.lease.state != CLAIMED
    here.cloud.wait_until(lambda: not here.left())


def test_a_retry_does_not_wait_for_a_slice_that_somebody_has_deleted(here: Here) -> None:
    job = here.admit(retry=Retry(user=1))
    actions.intend(job, 1)
    name = here.make(job.job_id, 1)
    failed = wire.Verdict(wire.ABORTED, "host", here.store.now(), cause=wire.USER, host=0, reason="no")
    here.store.create(names.verdict(job.job_id, 1), failed.encode())

    def intends() -> str:
        return actions.perform(lifecycle.Intend(), job, 2, glimpse(job, 2), {})

    assert "being cleaned" in intends()
    assert here.store.read(names.intent(job.job_id, 2)) is None
    placement = here.backend.place(here.plan, job.job_id, 1)
    here.cloud.wait_until(lambda: here.backend.release(placement) is Freed.DONE)
    here.cloud.wait_until(lambda: not intends(), 20.0)
    assert "lease" not in intent_of(job, 2).placement
    held = leases.read(here.store, name)
    assert held is not None
    assert (held.lease.state, held.lease.why) == (ENDED, "its hosts were gone before they could offer it")


def makes_way(here: Here, name: str) -> bool:
    opened = {here.plan.backend}
    return releasing.make_way(here.store, here.backend, name, "chips", writer="me", opened=opened)


def test_a_slice_of_another_platform_makes_way_by_its_hosts_and_no_call_of_this_one_names_it(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never above the share, and never stuck: nobody here sees it gone, and nobody else may be there to decide."""
    first, name = here.kept()
    lease = here.lease(first, name)
    here.lease(first, name, placement={**lease.placement, "backend": "compute"})
    assert [makes_way(here, name) for _ in range(2)] == [False, False]
    held = leases.read(here.store, name)
    assert held is not None
    assert (held.lease.state, held.lease.why) == (ENDED, "chips")
    assert here.left() == [name]
    monkeypatch.setattr(releasing, "RELEASED", -1.0)
    assert makes_way(here, name)
    assert here.left() == [name]


def test_a_slice_that_cannot_be_released_here_keeps_nobody_waiting_for_ever(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, name = here.kept()
    lease = here.lease(first, name)
    here.lease(first, name, placement={**lease.placement, "project": "another"})
    assert [makes_way(here, name) for _ in range(2)] == [False, False]
    monkeypatch.setattr(releasing, "RELEASED", -1.0)
    assert makes_way(here, name)


def test_a_damaged_lease_keeps_nobody_waiting_for_ever_either(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here.store.put(names.lease("kinetic-a-b-1"), b"no lease")
    assert not makes_way(here, "kinetic-a-b-1")
    monkeypatch.setattr(releasing, "RELEASED", -1.0)
    assert makes_way(here, "kinetic-a-b-1")
    assert makes_way(here, "kinetic-none-b-1"), "there is none"


def test_all_slices_that_yield_to_an_attempt_make_way_but_the_one_that_it_takes_and_it_waits_for_them(
    here: Here,
) -> None:
    """Each of them may yield for a share of its own: taken beside another one it would exceed that."""
    (one, first), (another, second) = here.kept(), here.kept()
    taker = here.admit()
    here.lease(one, first)
    actions.intend(taker, 1)
    intent = intent_of(taker)
    assert intent.placement["lease"]["slice"] == first
    here.lease(another, second)
    assert f"the chips of {second}" in actions._make_way(taker, intent, [first, second])
    here.cloud.wait_until(lambda: not actions._make_way(taker, intent, [first, second]))
    assert here.left() == [first]
    held = leases.read(here.store, first)
    assert held is not None and held.lease.state == FREE


def test_a_slice_that_serves_a_job_again_has_the_chips_of_that(here: Here) -> None:
    first, name = here.kept()
    here.claimed(first, name, by=here.admit())
    assert makes_way(here, name)
    assert here.left() == [name]
