"""The kept slice that an attempt takes, by the leases of all, and that one of any number of claims has it."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.capacity.warm import records
from kinetic_orchestration.capacity.warm.choosing import Warm, best, fitting, lost_claims
from kinetic_orchestration.capacity.warm.records import OTHER_KEY, Claim, claim, lately_offered, slices
from kinetic_orchestration.capacity.warm.shape import shape_of
from kinetic_orchestration.errors import Corrupt
from kinetic_orchestration.plan import planner
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.records import intent_of, within
from kinetic_orchestration.plan.values import Past, Plan
from kinetic_orchestration.platforms.local.store import open_local
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records import leases
from kinetic_orchestration.protocol.records.base import Record
from kinetic_orchestration.protocol.records.leases import Held
from kinetic_orchestration.protocol.schema import Wrong
from kinetic_orchestration.protocol.wire.lease import CLAIMED, ENDED, FREE, Lease, key_name

pytestmark = pytest.mark.fast
SETTINGS = Settings(
    home=Path("/home"), store="gs://runs/kinetic", deployment="test", backend="", project="tpus",
    zones=("us-east5-a", "us-east5-b"),
)  # fmt: skip
NOW = 1_800_000_000.0
RUN = {"orchestrator": "airflow", "run": "monday"}
KEY = "5e" * 32


def plan_of(**given: Any) -> Plan:
    return planner.make_plan(JobSpec("train", Options(**{"accelerator": "v6e-8", "keep": "10m", **given})), SETTINGS)


PLAN = plan_of()


def lease(number: int = 1, plan: Plan = PLAN, **changes: Any) -> Lease:
    job = f"job-{number:012x}"
    name = names.slice_of(plan.store, plan.deployment, job, 1)
    placement = {
        "backend": plan.backend, "project": "tpus", "zone": "us-east5-a", "name": name, "hosts": plan.machines,
        "slices": plan.slices, "wait": 30.0, "tried": ["us-east5-b"],
    }  # fmt: skip
    placement |= changes.pop("placement", {})
    found = Lease(name, 0, FREE, shape_of(plan.at(0)), placement, job, 1, job, 1, NOW + 600.0, "host", since=NOW - 5.0)
    return found._replace(**changes)


def chosen(*found: Lease, plan: Plan = PLAN, **given: Any) -> Warm | None:
    known = {
        "job_id": "job-ffffffffffff", "attempt": 1, "origin": {}, "fits": lambda number: True,
        "lasts": lambda one: 3600.0, "has_key": lambda lease: True,
    }  # fmt: skip
    known |= given
    fits = {name: known[name] for name in ("job_id", "attempt", "origin", "fits", "lasts")}
    fit = fitting([Held(one, 1, one.since) for one in found], plan, within(plan), NOW, **fits)
    return best(fit, known["job_id"], known["attempt"], known["origin"], known["has_key"])


def name_of(warm: Warm | None) -> str:
    return "" if warm is None else warm.lease.slice


def test_a_free_slice_of_the_shape_is_taken_with_a_placement_that_the_plan_allows() -> None:
    warm = chosen(lease())
    assert warm is not None
    placement = warm.placement(None)
    assert placement == {
        "backend": "tpu-vm", "project": "tpus", "zone": "us-east5-a", "name": lease().slice, "hosts": 1, "slices": 1,
        "why": "it is warm: job-000000000001 has left it 5s ago", "wait": 0.0, "since": 0.0, "moved": 0,
        "lease": {"slice": lease().slice, "epoch": 1},
    }  # fmt: skip
    assert intent_with(placement, PLAN).placement["name"] == lease().slice


NOT_TAKEN = {
    "claimed": {"state": CLAIMED},
    "ended": {"state": ENDED},
    "about to end": {"until": NOW + 1.0},
    "past its end": {"until": NOW - 1.0},
    "another shape": {"shape": "cd" * 32},
    "machines that are taken away too soon": {"last": NOW + 3599.0},
    "a zone that the plan does not have": {"placement": {"zone": "europe-west4-a"}},
    "another project": {"placement": {"project": "theirs"}},
    "another name than its own": {"placement": {"name": "kinetic-00000000-000000000009-1"}},
    "another deployment's name": {"slice": "kinetic-00000000-000000000001-1"},
    "more hosts": {"placement": {"hosts": 2}},
}


@pytest.mark.parametrize("change", NOT_TAKEN.values(), ids=NOT_TAKEN)
def test_what_cannot_serve_is_not_taken(change: dict[str, Any]) -> None:
    one = lease(**change)
    if "slice" in change:
        one = one._replace(placement={**one.placement, "name": change["slice"]})
    assert chosen(one) is None


def test_nor_is_one_without_its_key_or_for_a_choice_that_does_not_fit() -> None:
    assert chosen(lease(), has_key=lambda one: False) is None
    assert chosen(lease(), fits=lambda number: False) is None
    assert chosen(lease(last=NOW + 3600.0)) is not None


def test_those_of_the_own_run_come_first_then_the_youngest_and_many_jobs_begin_at_different_ones() -> None:
    others = [lease(number, since=NOW - number) for number in range(1, 5)]
    own = lease(9, since=NOW - 500.0, origin=RUN)
    warm = chosen(*others, own, origin=RUN)
    assert name_of(warm) == own.slice and "its run has left it" in warm.why  # type: ignore[union-attr]
    assert name_of(chosen(*others, own, origin={})) in {one.slice for one in (*others, own)}
    taken = {name_of(chosen(*others, job_id=f"job-{number:012x}")) for number in range(40)}
    assert taken == {one.slice for one in others}
    assert name_of(chosen(others[2])) == others[2].slice


def test_a_slice_of_any_choice_is_taken_and_of_two_equal_choices_the_first() -> None:
    plan = plan_of(accelerator=["v5e-8", "v6e-8"])
    second = lease(2, plan=plan, shape=shape_of(plan.at(1)), placement={"backend": "tpu-vm"})
    warm = chosen(second, plan=plan)
    assert warm is not None
    assert (warm.choice, warm.placement(None)["choice"]) == (1, 1)
    intent_with(warm.placement(None), plan)
    assert chosen(second, plan=plan, fits=lambda number: number == 0) is None


def test_two_claims_that_were_lost_in_a_row_are_counted_and_the_history_of_waiting_goes_on() -> None:
    stockout = Past({"zone": "us-east5-b", "since": 50.0, "moved": 3}, wire.STOCKOUT, "", 60.0)
    warm = chosen(lease())
    assert warm is not None
    assert (lost_claims(stockout), warm.placement(stockout)["since"], warm.placement(stockout)["moved"]) == (0, 50.0, 4)
    first = warm.placement(stockout)
    lost = Past(first, wire.INTERNAL, "", 70.0)
    assert (lost_claims(lost), warm.placement(lost)["lease"]["lost"]) == (1, 1)
    twice = Past(warm.placement(lost), wire.INTERNAL, "", 80.0)
    assert (lost_claims(twice), warm.placement(twice)["since"]) == (2, 50.0)
    assert lost_claims(Past(first, wire.PREEMPTION, "", 70.0)) == 0, "it had the slice"


def intent_with(placement: dict[str, Any], plan: Plan) -> Any:
    fields = {"attempt": 1, "boot": "0" * 16, "placement": placement, "allowed": 3600.0}
    return intent_of(Record(wire.encode(fields), 1, NOW), "job-ffffffffffff", 1, within(plan))


def test_an_intent_leads_to_a_kept_slice_of_this_deployment_alone_and_only_with_keep() -> None:
    placement = chosen(lease()).placement(None)  # type: ignore[union-attr]
    with pytest.raises(Corrupt, match="the job's plan keeps no slices"):
        intent_with(placement, replace(PLAN, keep=None))
    for forged in ("kinetic-00000000-000000000001-1", "kinetic-x", "somebody-elses-1"):
        with pytest.raises(Corrupt, match="no slice of this deployment"):
            intent_with({**placement, "name": forged, "lease": {"slice": forged, "epoch": 1}}, PLAN)
    with pytest.raises(Corrupt, match=r"placement\.name"):
        intent_with({**placement, "name": "kinetic-00000000-000000000009-1"}, PLAN)
    with pytest.raises(Corrupt, match=r"placement\.zone"):
        intent_with({**placement, "zone": "europe-west4-a"}, PLAN)


def test_a_slice_of_any_place_of_a_race_is_taken_by_its_whole_name_and_no_other() -> None:
    def named(end: str) -> str:
        return f"{names.slice_of(PLAN.store, PLAN.deployment, 'job-000000000001', 1).removesuffix('-1')}-{end}"

    place = lease().placement
    taken = chosen(lease(slice=named("1r1"), placement={**place, "name": named("1r1")}))
    assert taken is not None and taken.lease.slice == named("1r1")
    for end in ("1r0", "1r01", "01r1", "1r", "r1", "0", "0r1", "1r3", "1r1r1", "1r-1", "1\u0661"):
        forged = lease(slice=named(end), placement={**place, "name": named(end)})
        assert chosen(forged) is None, end


def test_a_kept_slice_is_in_no_race() -> None:
    plan = plan_of(race=2)
    taken = chosen(lease(plan=plan), plan=plan)
    assert taken is not None
    placement = taken.placement(None)
    assert within(plan).checked(placement, "job-ffffffffffff", 1)["name"] == taken.lease.slice
    own = names.slice_of(plan.store, plan.deployment, "job-ffffffffffff", 1, 1)
    rival = {**placement, "zone": "us-east5-b", "name": own, "rival": 1}
    for forged in (
        {**placement, "rival": 0, "rivals": [{**rival, "lease": None}]},
        {**placement, "rival": 0, "rivals": [rival]},
        {**placement, "lease": None, "rival": 0, "rivals": [rival]},
    ):
        with pytest.raises(Wrong, match="a kept slice is in no race"):
            within(plan).checked(forged, "job-ffffffffffff", 1)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("kinetic-0-1-12", (12, 0)),
        ("kinetic-0-1-12r2", (12, 2)),
        ("kinetic", (0, 0)),
        ("a-1r2r3", (0, 0)),
        ("", (0, 0)),
    ],
)
def test_the_name_of_a_slice_tells_its_attempt_and_its_place(name: str, found: tuple[int, int]) -> None:
    assert names.attempt_of_slice(name) == found


# ---- claims, at a real store


def claim_of(job: str = "job-ffffffffffff", attempt: int = 1, writer: str = "me") -> Claim:
    return Claim(job, attempt, NOW + 3600.0, RUN, {"job": job, "attempt": attempt, "key": "0f" * 32}, KEY, writer)


def offered(store: Any, one: Lease) -> Lease:
    now = store.now()
    one = one._replace(until=now + 600.0, since=now, key=key_name(KEY))
    assert leases.write(store, one, leases.read(store, one.slice))
    return one


def test_a_claim_is_made_once_and_is_found_when_it_is_made_again(tmp_path: Path) -> None:
    store = open_local(tmp_path, "test")
    one = offered(store, lease())
    assert claim(store, one.slice, 1, claim_of()) == ""
    (held,) = slices(store)
    assert (held.lease.state, held.lease.epoch, held.lease.origin) == (CLAIMED, 1, RUN)
    assert held.lease.is_of("job-ffffffffffff", 1)
    orders = held.lease.orders_for_hosts(KEY)
    assert orders is not None and orders["key"] == "0f" * 32
    assert claim(store, one.slice, 1, claim_of(writer="another process")) == ""
    assert slices(store) == [held], "nothing was written"


def test_nobody_claims_with_a_key_that_another_home_has_made_for_the_same_slice(tmp_path: Path) -> None:
    """Two processes that submit an attempt at once have each made a key, and the slice was made with one of them."""
    store = open_local(tmp_path, "test")
    one = offered(store, lease())
    assert claim(store, one.slice, 1, claim_of()._replace(key="ab" * 32)) == OTHER_KEY
    assert [held.lease.state for held in slices(store)] == [FREE]
    assert claim(store, one.slice, 1, claim_of()) == ""


def test_claims_that_are_lost_say_why(tmp_path: Path) -> None:
    store = open_local(tmp_path, "test")
    assert "no lease" in claim(store, lease().slice, 1, claim_of())
    one = offered(store, lease())
    assert claim(store, one.slice, 1, claim_of("job-aaaaaaaaaaaa")) == ""
    assert claim(store, one.slice, 1, claim_of()) == "job-aaaaaaaaaaaa took it first"
    (held,) = slices(store)
    assert leases.write(store, held.lease.offered(until=store.now() + 9.0, writer="host", now=store.now()), held)
    assert claim(store, one.slice, 1, claim_of()) == "job-aaaaaaaaaaaa took it first", "of an epoch before"
    (held,) = slices(store)
    assert leases.write(store, held.lease._replace(until=store.now() - 1.0), held)
    assert claim(store, one.slice, 2, claim_of()) == "its lease ends now"
    assert leases.end(store, one.slice, "in doubt", writer="host", now=store.now(), may=lambda _: True)
    assert claim(store, one.slice, 2, claim_of()) == "its lease has ended: in doubt"
    store.put(names.lease(one.slice), b"{")
    assert "not a whole record" in claim(store, one.slice, 2, claim_of())


def test_of_many_claims_at_once_one_wins_and_all_know_whose_it_is(tmp_path: Path) -> None:
    store = open_local(tmp_path, "test")
    one = offered(store, lease())
    told: dict[str, str] = {}
    go = threading.Barrier(8)

    def take(job: str) -> None:
        go.wait(30)
        told[job] = claim(store, one.slice, 1, claim_of(job))

    threads = [threading.Thread(target=take, args=(f"job-{number:012x}",)) for number in range(16, 24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (winner,) = [job for job, lost in told.items() if not lost]
    assert {lost for lost in told.values() if lost} == {f"{winner} took it first"}
    assert leases.read(store, one.slice).lease.is_of(winner, 1)  # type: ignore[union-attr]


def test_what_is_read_to_choose_is_bounded_and_damaged_leases_hide_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_local(tmp_path, "test")
    for number in range(1, 6):
        offered(store, lease(number))
    store.put(names.lease("kinetic-damaged"), b"{}")
    renamed = lease(7)
    store.put(names.lease("kinetic-another-name"), renamed.encode())
    assert len(slices(store)) == 5, "nor one that lies where another one belongs"
    monkeypatch.setattr(records, "MOST_READ", 3)
    assert 0 < len(lately_offered(store)) <= 3
    monkeypatch.setattr(records, "LONGEST_KEEP", -60.0)
    assert lately_offered(store) == []
