"""Tests what a month's jobs have cost, by their records and the ledger, and which job a budget lets begin."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.capacity import ledger
from kinetic_orchestration.capacity.ledger import Account
from kinetic_orchestration.errors import BudgetExceeded, StoreError
from kinetic_orchestration.jobs.watching import spending
from kinetic_orchestration.plan.configuration import budgets, settings
from kinetic_orchestration.plan.configuration.budgets import TOTAL, Spent
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.hardware.accelerators import parse
from kinetic_orchestration.plan.values import Before, Limits, Plan, Retry
from kinetic_orchestration.platforms.local.store import LocalStore, open_local
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records.base import Record
from tests.support.wire_tasks import in_spec

NOW = budgets.began("2026-11") + 14 * 86400.0
ZONE = "us-east5-a"
STAGED: dict[str, list[Any]] = {"path": [], "extra_path": [], "data": [], "packages": []}
RETRAIN = Account("2026-11", "retrain")
HOUR = 3600.0


class Clocked(LocalStore):
    """A store at a fixed time, which counts what is read of it."""

    time = NOW

    def __init__(self, root: Path) -> None:
        super().__init__(root, "prod")
        self.asked: Counter[str] = Counter()

    def now(self) -> float:
        return self.time

    def read(self, name: str, *args: Any, **how: Any) -> Record | None:
        self.asked["read"] += 1
        return super().read(name, *args, **how)

    def list(self, prefix: str) -> Iterator[Any]:
        self.asked["list"] += 1
        return super().list(prefix)


@pytest.fixture
def store(tmp_path: Path) -> Clocked:
    spending._checked.clear()
    return Clocked(Path(open_local(tmp_path / "store é", "prod").root))


@pytest.fixture
def load(home: Path) -> Callable[[str], Settings]:
    """Settings with these budgets, of which a chip costs a dollar an hour."""
    return lambda text: settings.load({"KINETIC_BUDGETS": text, "KINETIC_PRICES": "v5e=1"}, home=str(home))


def plan_of(slice_: str = "v5e-1", **changes: Any) -> Plan:
    plain = Plan("train", parse(slice_), "tpu-vm", "gs://b/p", "prod", Limits(), Retry(), emulated=False, zones=(ZONE,))
    return replace(plain, **changes)


def job_id(number: int) -> str:
    return f"job-{number:012x}"


def write(store: LocalStore, record: str, at: float, **fields: Any) -> None:
    store.put(record, wire.encode(fields))
    os.utime(Path(store.root) / record, (at, at))


def ran(
    store: LocalStore, number: int, hours: float, *, at: float = NOW - 100 * HOUR, live: bool = False, plan: Plan | None = None,
    **origin: str,
) -> str:  # fmt: skip
    """Write the records of a job that had its slice for so long, or has it since then."""
    job, began = job_id(number), store.now() - hours * HOUR if live else at
    spec = {"name": "train", "plan": (plan or plan_of()).to_json(), "staged": STAGED, "task": in_spec()}
    write(
        store, names.spec(job), at, **spec, origin=origin or {"orchestrator": "airflow", "dag": "retrain", "run": job}
    )
    placement = {"backend": "tpu-vm", "zone": ZONE, "name": names.slice_of("gs://b/p", "prod", job, 1)}
    write(store, names.intent(job, 1), began, attempt=1, boot="b", placement=placement, allowed=0.0)
    write(store, names.host(job, 1, 0, "started.json"), began, boot="b", up=0.0)
    if live:
        store.put(names.live(job), b"")
    else:
        end(store, job, began + hours * HOUR)
    return job


def end(store: LocalStore, job: str, at: float) -> None:
    write(store, names.verdict(job, 1), at, kind=wire.COMMITTED, writer="w", time=at, cause="")
    store.delete(names.live(job))


def in_ledger(store: LocalStore, account: Account = RETRAIN) -> set[str]:
    kept = ledger.read(store, account)
    return set() if kept is None else set(kept.ledger.ended)


def test_a_month_costs_what_its_ended_jobs_and_its_live_ones_until_now_have(store: Clocked, load: Any) -> None:
    here = load("retrain=10")
    assert spending.standing(store, RETRAIN, here) == Spent()
    for number, hours in enumerate((1.0, 2.0)):
        ledger.open_job(store, RETRAIN, ran(store, number, hours))
    live = ran(store, 2, 0.5, live=True)
    ledger.open_job(store, RETRAIN, live)
    assert spending.standing(store, RETRAIN, here) == Spent(pytest.approx(3.5), 3)
    assert in_ledger(store) == {job_id(0), job_id(1)}
    assert set(ledger.opened(store, RETRAIN)) == {live}
    store.time += HOUR
    assert spending.standing(store, RETRAIN, here) == Spent(pytest.approx(4.5), 3)
    end(store, live, store.now())
    store.time += HOUR
    assert spending.standing(store, RETRAIN, here) == Spent(pytest.approx(4.5), 3)
    assert not ledger.opened(store, RETRAIN)


@pytest.mark.parametrize(
    ("kind", "cause", "retry", "ends"),
    [
        (wire.COMMITTED, "", Retry(), True),
        (wire.ABORTED, wire.USER, Retry(), True),
        (wire.ABORTED, wire.USER, Retry(user=1), False),
        (wire.CLOSED, wire.PREEMPTION, Retry(), False),
        (wire.CLOSED, wire.PREEMPTION, Retry(preemption=0), True),
        (wire.CLOSED, wire.STOCKOUT, Retry(), False),
        (wire.CLOSED, wire.CANCELLED, Retry(), True),
    ],
)
def test_a_job_that_nobody_followed_to_its_end_is_settled_all_the_same(
    store: Clocked, load: Any, kind: str, cause: str, retry: Retry, ends: bool
) -> None:
    here = load("retrain=10")
    spending.standing(store, RETRAIN, here)
    job = ran(store, 1, 1.0, at=NOW - HOUR, plan=plan_of(retry=retry))
    write(store, names.verdict(job, 1), NOW, kind=kind, writer="w", time=NOW, cause=cause)
    intent = wire.decode(store.read(names.intent(job, 1)).data)  # type: ignore[union-attr]
    write(store, names.intent(job, 1), NOW - HOUR, **{**intent, "before": Before()._asdict()})
    store.put(names.live(job), b"")
    ledger.open_job(store, RETRAIN, job)
    for later, settled in ((1.0, False), (300.0, ends)):
        store.time = NOW + later
        assert spending.standing(store, RETRAIN, here) == Spent(pytest.approx(1.0), 1)
        assert (in_ledger(store) == {job}) is settled


def test_hosts_that_could_not_be_freed_go_on_costing_after_their_job(store: Clocked, load: Any) -> None:
    here = load("retrain=10")
    spending.standing(store, RETRAIN, here)
    job = ran(store, 1, 1.0, at=NOW - HOUR)
    ledger.open_job(store, RETRAIN, job)
    write(store, names.refused(job, 1), NOW)
    store.time += HOUR
    assert spending.standing(store, RETRAIN, here).usd == pytest.approx(2.0)
    assert set(ledger.opened(store, RETRAIN)) == {job}
    write(store, names.freed(job, 1), NOW + 2 * HOUR)
    store.time += 5 * HOUR
    assert spending.standing(store, RETRAIN, here).usd == pytest.approx(3.0)
    assert not ledger.opened(store, RETRAIN)


def test_a_check_reads_what_is_open_however_many_jobs_the_month_had(store: Clocked, load: Any) -> None:
    here = load("retrain=10")
    for number in range(60):
        ran(store, number, 0.01)
    spending.standing(store, RETRAIN, here)  # counts the month once
    ledger.open_job(store, RETRAIN, ran(store, 100, 0.5, live=True))
    asked = []
    for more in (0, 60):
        for number in range(more):
            ledger.open_job(store, RETRAIN, ran(store, 1000 + number, 0.01))
        spending.standing(store, RETRAIN, here)
        store.asked.clear()
        assert spending.standing(store, RETRAIN, here).jobs == 61 + more
        asked.append(dict(store.asked))
    assert asked[0] == asked[1]
    assert sum(asked[0].values()) < 20


def test_a_ledger_that_is_gone_or_not_there_yet_is_made_of_the_records(store: Clocked, load: Any) -> None:
    here = load("retrain=10,total=10")
    ran(store, 1, 1.0)
    ran(store, 2, 2.0, dag="another")
    ran(store, 3, 4.0, at=budgets.began("2026-11") - 1)  # of the month before
    ran(store, 4, 8.0, plan=plan_of(backend="local"))  # on this machine
    live = ran(store, 5, 0.5, live=True)  # submitted by a process without budgets
    for _ in range(2):
        assert spending.standing(store, RETRAIN, here) == Spent(pytest.approx(1.5), 2)
        assert set(ledger.opened(store, RETRAIN)) == {live}
        assert spending.standing(store, Account("2026-11", TOTAL), here) == Spent(pytest.approx(3.5), 3)
        store.delete(RETRAIN.name)


@pytest.mark.parametrize("by", ["a submission", "kinor cost"])
def test_a_damaged_ledger_is_told_of_put_aside_and_made_again(store: Clocked, load: Any, by: str) -> None:
    here = load("retrain=10")
    ran(store, 1, 1.0)
    spending.standing(store, RETRAIN, here)
    store.put(RETRAIN.name, b'{"wire": 1, "usd": 0}')
    with pytest.warns(
        UserWarning, match=r"ledger\.json cannot be read .*ledger\.json\.damaged. What 2026-11 has cost is"
    ):
        if by == "kinor cost":
            spending.correct(store, RETRAIN, spending.of_all(store, here, budgets.began("2026-11")))
        else:
            assert spending.standing(store, RETRAIN, here) == Spent(pytest.approx(1.0), 1)
    assert in_ledger(store) == {job_id(1)}
    assert store.read(f"{RETRAIN.name}.damaged") is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert spending.standing(store, RETRAIN, here).jobs == 1


def test_a_job_whose_records_are_damaged_is_told_as_one_of_unknown_cost(store: Clocked, load: Any) -> None:
    here = load("retrain=10")
    spending.standing(store, RETRAIN, here)
    job = ran(store, 1, 1.0)
    ledger.open_job(store, RETRAIN, job)
    store.put(names.spec(job), b"{}")
    os.utime(Path(store.root) / names.spec(job), (NOW, NOW))
    assert spending.standing(store, RETRAIN, here) == Spent(0.0, 1, 1)
    with pytest.raises(BudgetExceeded, match="the cost of 1 job of 2026-11 is not known, for want of a price or"):
        spending.admit(store, plan_of(), "retrain", here, job_id(7))


class Dies(Clocked):
    """A store of a process that dies just before it removes a mark."""

    def delete(self, name: str) -> bool:
        if "/open/" in name:
            raise StoreError("killed")
        return super().delete(name)


def test_a_process_that_dies_while_it_settles_lets_nothing_count_twice_or_not_at_all(
    store: Clocked, tmp_path: Path, load: Any
) -> None:
    here = load("retrain=10")
    spending.standing(store, RETRAIN, here)
    ledger.open_job(store, RETRAIN, ran(store, 1, 1.0))
    with pytest.raises(StoreError, match="killed"):
        spending.standing(Dies(Path(store.root)), RETRAIN, here)
    assert in_ledger(store) == set(ledger.opened(store, RETRAIN)) == {job_id(1)}
    for _ in range(2):
        assert spending.standing(store, RETRAIN, here) == Spent(pytest.approx(1.0), 1)
    assert not ledger.opened(store, RETRAIN)


class Raced(Clocked):
    """A store in which another process settles the same jobs just before this one does."""

    def __init__(self, root: Path, other: Callable[[], object]) -> None:
        super().__init__(root)
        self.other: Callable[[], object] | None = other

    def swap(self, name: str, data: bytes, generation: int) -> int | None:
        if self.other is not None:
            other, self.other = self.other, None
            other()
        return super().swap(name, data, generation)


def test_two_that_settle_at_once_agree(store: Clocked, load: Any) -> None:
    here = load("retrain=10")
    spending.standing(store, RETRAIN, here)
    for number in range(3):
        ledger.open_job(store, RETRAIN, ran(store, number, 1.0))
    found = []

    def other() -> None:
        ledger.open_job(store, RETRAIN, ran(store, 3, 1.0))
        found.append(spending.standing(store, RETRAIN, here))

    raced = Raced(Path(store.root), other)
    assert spending.standing(raced, RETRAIN, here) == Spent(pytest.approx(3.0), 3)
    assert found == [Spent(pytest.approx(4.0), 4)]
    assert spending.standing(store, RETRAIN, here) == found[0]
    assert in_ledger(store) == {job_id(number) for number in range(4)}


def test_a_job_that_was_submitted_as_the_month_ended_is_of_the_next_one(store: Clocked, load: Any) -> None:
    here = load("retrain=10")
    store.time = budgets.began("2026-12") + HOUR
    ledger.open_job(store, RETRAIN, ran(store, 1, 1.0, at=budgets.began("2026-12") + 1))
    assert spending.standing(store, RETRAIN, here) == Spent()
    assert not ledger.opened(store, RETRAIN)
    assert spending.standing(store, RETRAIN._replace(month="2026-12"), here) == Spent(pytest.approx(1.0), 1)


def test_a_mark_of_a_job_that_was_never_submitted_goes_after_a_day(store: Clocked, load: Any) -> None:
    here = load("retrain=10")
    ledger.open_job(store, RETRAIN, job_id(1))
    mark = Path(store.root) / RETRAIN.opened / job_id(1)
    for age, left in ((3600.0, 1), (2 * 86400.0, 0)):
        os.utime(mark, (NOW - age, NOW - age))
        assert spending.standing(store, RETRAIN, here) == Spent()
        assert len(ledger.opened(store, RETRAIN)) == left


def admit(store: LocalStore, here: Settings, number: int = 99, plan: Plan | None = None) -> None:
    spending._checked.clear()  # as another process
    spending.admit(store, plan or plan_of(), "retrain", here, job_id(number))


def test_a_job_is_refused_once_its_pipeline_or_all_have_spent_their_budget(store: Clocked, load: Any) -> None:
    ran(store, 1, 3.0)
    ran(store, 2, 3.0, dag="another")
    admit(store, load("retrain=3.01,total=6.01"), 10)
    assert set(ledger.opened(store, RETRAIN)) == {job_id(10)} == set(ledger.opened(store, Account("2026-11", TOTAL)))
    for text, of in (
        ("retrain=3,total=9", "pipeline retrain"),
        ("*=3", "pipeline retrain"),
        ("total=6", "all pipelines"),
    ):
        with pytest.raises(BudgetExceeded, match=f"nothing was submitted: the budget of {of}.*is used up"):
            admit(store, load(text), 11)
    assert job_id(11) not in ledger.opened(store, RETRAIN)
    with pytest.warns(UserWarning, match="is used up"):
        admit(store, load("retrain=3:warn"), 12)
    assert job_id(12) in ledger.opened(store, RETRAIN)
    admit(store, load("another=1"), 13)
    assert job_id(13) not in ledger.opened(store, RETRAIN)
    store.time = budgets.began("2026-12")
    admit(store, load("retrain=3"), 14)


class Overtaken(Raced):
    """A store in which another process submits a job after this one has looked at the budget, and before it begins."""

    def create(self, name: str, data: bytes | bytearray | memoryview) -> int | None:
        if "/open/" in name and self.other is not None:
            other, self.other = self.other, None
            other()
        return super().create(name, data)


def test_two_that_begin_at_the_last_of_a_budget_are_both_counted(store: Clocked, load: Any) -> None:
    """Tests that what is left is looked at, not reserved: either may begin, and none is lost."""
    here = load("retrain=3.01")
    ran(store, 1, 3.0)
    spending.standing(store, RETRAIN, here)
    admit(Overtaken(Path(store.root), lambda: admit(store, here, 21)), here, 20)
    assert set(ledger.opened(store, RETRAIN)) == {job_id(20), job_id(21)}
    for number in (20, 21):
        ran(store, number, 0.5, at=NOW - HOUR)
    assert spending.standing(store, RETRAIN, here) == Spent(pytest.approx(4.0), 3)
    with pytest.raises(BudgetExceeded):
        admit(store, here, 30)


def test_a_job_that_may_cost_more_than_is_left_begins_with_a_warning(store: Clocked, load: Any) -> None:
    here = load("retrain=10")
    ran(store, 1, 4.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        admit(store, here, 2)
        admit(store, here, 3, plan_of(limits=Limits(run=6 * HOUR)))
        admit(store, here, 4, plan_of(limits=Limits(run=24 * HOUR, cost=6.0)))
        admit(store, here, 5, plan_of(limits=Limits(run=24 * HOUR, total=5 * HOUR)))
    with pytest.warns(UserWarning, match=r"may cost up to \$7\.00 by its limits, and \$6\.00 are left"):
        admit(store, here, 6, plan_of(limits=Limits(run=7 * HOUR)))
    assert job_id(6) in ledger.opened(store, RETRAIN)


def test_a_price_that_is_not_known_is_told_before_and_never_counts_as_nothing(store: Clocked, load: Any) -> None:
    here = load("retrain=10")
    unknown = plan_of("v2-4")
    with pytest.raises(BudgetExceeded, match=r"cannot be judged: no price is known of v2-4.*KINETIC_PRICES"):
        admit(store, here, 1, unknown)
    with pytest.warns(UserWarning, match="cannot be judged"):
        admit(store, load("retrain=10:warn"), 2, unknown)
    ran(store, 2, 1.0, plan=unknown)
    assert spending.standing(store, RETRAIN, here) == Spent(0.0, 1, 1)
    with pytest.raises(BudgetExceeded, match="the cost of 1 job of 2026-11 is not known"):
        admit(store, here, 3)
    priced = replace(here, prices={"v5e": 1.0, "v2": 0.5})
    jobs = spending.of_all(store, priced, budgets.began("2026-11"))
    spending.correct(store, RETRAIN, jobs)  # as `kinor cost --by pipeline` does
    assert spending.standing(store, RETRAIN, priced) == Spent(pytest.approx(4 * 0.5), 1)
    admit(store, priced, 4)


def test_the_records_correct_the_ledger_and_what_has_none_stays_in_it(store: Clocked, load: Any) -> None:
    here = load("retrain=10")
    for number in range(3):
        ran(store, number, 1.0)
    spending.standing(store, RETRAIN, here)
    for entry in list(store.list(names.job(job_id(0)))):  # past its retention
        store.delete(entry.name)
    ran(store, 1, 2.0)  # was charged for longer than it was known
    ran(store, 7, 1.0)  # of a process without budgets
    spending.correct(store, RETRAIN, spending.of_all(store, here, budgets.began("2026-11")))
    assert spending.standing(store, RETRAIN, here) == Spent(pytest.approx(5.0), 4)


def test_what_a_check_took_long_for_holds_for_a_while_in_this_process(
    store: Clocked, load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand submissions at once must not read the same thousand records each."""
    here, clock = load("retrain=10"), [100.0]
    monkeypatch.setattr(spending.time, "monotonic", lambda: clock[0])
    counted = []

    def slowly(*_: Any) -> Spent:
        clock[0] += 2.0
        counted.append(clock[0])
        return Spent()

    monkeypatch.setattr(spending, "standing", slowly)
    for _ in range(100):
        spending.admit(store, plan_of(), "retrain", here, job_id(len(counted)))
        clock[0] += 1.0
    assert 2 <= len(counted) <= 4


def test_budgets_of_long_ago_are_forgotten(store: Clocked, load: Any) -> None:
    for month in ("2025-09", "2026-10", "2026-11"):
        ledger.open_job(store, Account(month, "a"), job_id(1))
    assert spending.forget_before(store, NOW - 400 * 86400.0, dry_run=True) == 1
    assert spending.forget_before(store, NOW - 400 * 86400.0) == 1
    assert [entry.name.split("/")[1] for entry in store.list(names.BUDGETS)] == ["2026-10", "2026-11"]
