"""The ledger of a month: what counts once, how large it gets, and what is believed of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinetic_orchestration.capacity import ledger
from kinetic_orchestration.capacity.ledger import Account, Entry, Ledger
from kinetic_orchestration.errors import Corrupt
from kinetic_orchestration.plan.configuration.budgets import TOTAL, Spent
from kinetic_orchestration.platforms.local.store import LocalStore, open_local
from kinetic_orchestration.protocol import names, wire

ACCOUNT = Account("2026-11", "retrain/é, 'x'")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return open_local(tmp_path / "store", "prod")


def job(number: int) -> str:
    return f"job-{number:012x}"


def test_a_ledger_is_read_as_it_was_written_and_of_its_own_account_alone(store: LocalStore) -> None:
    assert ledger.read(store, ACCOUNT) is None
    made = Ledger().with_ended({job(1): Entry(1.5, 10.0), job(2): Entry(None, 11.0)})
    assert ledger.write(store, ACCOUNT, None, made)
    assert not ledger.write(store, ACCOUNT, None, made), "another one was first"
    kept = ledger.read(store, ACCOUNT)
    assert kept is not None
    assert kept.ledger == made and kept.ledger.spent == Spent(1.5, 2, 1)
    assert ledger.read(store, Account("2026-11", TOTAL)) is None
    assert len({Account(month, of).folder for month in ("2026-11", "2026-12") for of in ("a", "b", TOTAL)}) == 6
    store.put(Account("2026-12", "b").name, made.encode(ACCOUNT))
    with pytest.raises(Corrupt, match="somebody has put it there"):
        ledger.read(store, Account("2026-12", "b"))


def test_a_job_that_is_settled_again_counts_once() -> None:
    once = Ledger().with_ended({job(1): Entry(1.0, 10.0)})
    assert once.with_ended({job(1): Entry(1.0, 10.0)}) == once
    assert once.with_ended({job(1): Entry(3.0, 10.0)}).spent == Spent(3.0, 1)


def test_a_ledger_stays_small_and_loses_nothing(store: LocalStore) -> None:
    found = Ledger()
    for number in range(3 * ledger.MOST):
        price = None if number % 10 == 0 else 0.25
        found = found.with_ended({job(number): Entry(price, float(number))}, opened=[job(0), job(number)])
        assert len(found.ended) <= ledger.MOST
    assert found.spent == Spent(pytest.approx(0.25 * 2.7 * ledger.MOST), 3 * ledger.MOST, 3 * ledger.MOST // 10)
    assert job(0) in found.ended, "it is open, and may be settled once more"
    assert found.before.until >= ledger.MOST
    late = found.with_ended({job(1 << 40 | number): Entry(1.0, 0.5) for number in range(ledger.MOST)})  # ran for long
    assert late.before.until >= found.before.until, "of whom there is no entry, that one is in the sum"
    assert len(found.encode(ACCOUNT)) < names.limit_of(ACCOUNT.name) / 8
    ledger.write(store, ACCOUNT, None, found)
    kept = ledger.read(store, ACCOUNT)
    assert kept is not None and kept.ledger == found


@pytest.mark.parametrize(
    "change",
    [
        {"ended": {"job-1": [1.0]}},
        {"ended": {"job-1": [-1.0, 0.0]}},
        {"ended": {"job-1": [float("inf"), 0.0]}},
        {"ended": {"job-1": ["1", 0.0]}},
        {"ended": {"../x": [1.0, 0.0]}},
        {"ended": []},
        {"before": {"usd": -5.0, "jobs": 0, "unpriced": 0, "until": 0.0}},
        {"before": {"usd": 1.0}},
        {"pipeline": 7},
    ],
)
def test_a_ledger_that_says_what_none_can_say_is_refused(store: LocalStore, change: dict[str, object]) -> None:
    fields = wire.decode(Ledger().encode(ACCOUNT))
    store.put(ACCOUNT.name, wire.encode({**fields, **change}))
    with pytest.raises(Corrupt, match=r"budgets/2026-11/.*ledger\.json"):
        ledger.read(store, ACCOUNT)


def test_open_jobs_are_marks_of_their_own(store: LocalStore) -> None:
    ledger.open_job(store, ACCOUNT, job(1))
    ledger.open_job(store, ACCOUNT, job(1))
    ledger.open_job(store, ACCOUNT, job(2))
    assert set(ledger.opened(store, ACCOUNT)) == {job(1), job(2)}
    ledger.close_jobs(store, ACCOUNT, [job(1), job(3)])
    assert set(ledger.opened(store, ACCOUNT)) == {job(2)}
    assert not ledger.opened(store, Account("2026-12", ACCOUNT.pipeline))
    for nobodys in ("x", "job-a/b", "job-É"):
        store.put(ACCOUNT.opened + nobodys, b"")
    assert set(ledger.opened(store, ACCOUNT)) == {job(2)}, "no ledger could have them"
