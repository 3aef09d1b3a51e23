"""The prices of a deployment: one list in its store, which all count with, and which nobody has to believe."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration import cli
from kinetic_orchestration.capacity import prices
from kinetic_orchestration.errors import StoreError
from kinetic_orchestration.jobs.request import draft
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.hardware import price_list
from kinetic_orchestration.plan.hardware.price_list import BUILT_IN, LARGEST, ON_DEMAND, PriceList, Rate, staleness
from kinetic_orchestration.platforms.local.store import LocalStore, open_local
from kinetic_orchestration.platforms.registry import open_store
from kinetic_orchestration.protocol import names
from kinetic_orchestration.testing import Emulator

pytestmark = pytest.mark.fast

AT = "2026-10-02T00:00:00Z"
V5P = Rate("v5p", "us-east5", ON_DEMAND, 4.0, "2026-10-01", "a test")


def document(usd: float = 4.0, refreshed: str = AT) -> bytes:
    return price_list.to_bytes([V5P._replace(usd=usd)], refreshed)


def usd_of(listed: PriceList | None) -> float | None:
    rate = listed.rate("v5p", "us-east5", ON_DEMAND) if listed is not None else None
    return rate.usd if rate is not None else None


@pytest.fixture(autouse=True)
def another_process() -> Iterator[None]:
    """What a process has read it does not read again for a while: a test begins as another process."""
    prices._read.clear()
    yield
    prices._read.clear()


@pytest.fixture
def cloud(tpu_cloud: Emulator, home: Path, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    for name, value in tpu_cloud.environ().items():
        monkeypatch.setenv(name, value)
    return tpu_cloud


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return open_local(str(tmp_path / "store"), "prod")


def v5p(cost: float | None = None) -> JobSpec:
    limits = kinetic.Limits(run="1h", cost=cost)
    return JobSpec("f", Options("v5p-8", limits=limits, cloud=kinetic.TpuVm(zones=["us-east5-a"])), argv=("x",))


def test_who_refreshes_does_it_for_all_of_the_deployment(
    cloud: Emulator, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A scheduler on another machine plans, limits and reports with the same prices, and has refreshed nothing."""
    assert cli.main(["prices", "--refresh"]) == 0
    here = settings.load()
    assert f"and for all of the deployment in {here.store}/{here.deployment}/prices.json" in capsys.readouterr().err
    prices._read.clear()
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "another machine"))
    there = settings.load()
    assert there.listed == BUILT_IN
    listed = prices.in_force(there).listed
    assert listed.refreshed and listed.rate("l4", "us-central1", ON_DEMAND) is not None
    cli.main(["prices", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["refreshed"] == listed.refreshed and len(told["prices"]) == len(listed.rates)
    assert prices.in_force(replace(there, deployment="another")).listed == BUILT_IN


def test_a_limit_of_money_counts_with_the_deployments_prices(cloud: Emulator) -> None:
    here = settings.load()
    prices.keep(open_store(here.store, here.deployment), document(2.1))
    assert draft(v5p(cost=2.1 * 8)).plan.affordable == pytest.approx(3600)


def test_an_orchestrators_own_settings_count_with_the_deployments_prices_too(cloud: Emulator) -> None:
    """Airflow and Dagster plan by settings that they have read themselves."""
    here = settings.load()
    prices.keep(open_store(here.store, here.deployment), document(2.1))
    drafted = draft(v5p(cost=2.1 * 8), here)
    assert drafted.plan.affordable == pytest.approx(3600)
    assert usd_of(drafted.settings.listed) == 2.1


def test_a_choices_own_limit_of_money_and_a_budget_count_with_the_deployments_prices(
    cloud: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = settings.load()
    prices.keep(open_store(here.store, here.deployment), document(2.1))
    at = kinetic.TpuVm(zones=["us-east5-a"])
    limited = kinetic.Choice("v5p-8", limits=kinetic.Limits(run="1h", cost=2.1 * 4))
    several = JobSpec("f", Options([limited, "v5p-16"], limits=kinetic.Limits(run="1h"), cloud=at), argv=("x",))
    assert draft(several).plan.affordable == pytest.approx(1800)
    monkeypatch.setenv("KINETIC_BUDGETS", "*=100USD")
    assert usd_of(draft(v5p()).settings.listed) == 2.1
    assert usd_of(draft(v5p(), dry=True).settings.listed) != 2.1


def test_a_launch_that_needs_no_price_makes_no_request_for_one(
    cloud: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    real = prices.of_store
    monkeypatch.setattr(prices, "of_store", lambda store: reads.append(store.url) or real(store))  # type: ignore[func-returns-value]
    draft(v5p())
    assert reads == []
    draft(v5p(cost=100.0))
    assert len(reads) == 1


class Counting:
    """A store that counts what is read of it."""

    def __init__(self, store: Any) -> None:
        self._store, self.reads = store, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, *given: Any, **named: Any) -> Any:
        self.reads += 1
        return self._store.read(*given, **named)


def test_a_process_reads_the_list_once_in_ten_minutes_also_where_there_is_none(
    store: LocalStore, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting: Any = Counting(store)
    for _ in range(100):
        assert prices.in_force(settings.load(), counting).listed == BUILT_IN
    assert counting.reads == 1
    store.create(names.PRICES, document())
    monkeypatch.setattr(prices, "KEPT", 0.0)
    assert usd_of(prices.in_force(settings.load(), counting).listed) == 4.0


def test_a_store_that_does_not_answer_costs_nobody_a_job(store: LocalStore, home: Path) -> None:
    class Silent(Counting):
        def read(self, *given: Any, **named: Any) -> Any:
            self.reads += 1
            raise StoreError("it does not answer")

    silent: Any = Silent(store)
    price_list.write(settings.load().home, document(3.0))
    here = settings.load()
    with pytest.warns(UserWarning, match="cannot be read, so this machine's are taken: it does not answer"):
        assert usd_of(prices.in_force(here, silent).listed) == 3.0
    assert usd_of(prices.in_force(here, silent).listed) == 3.0 and silent.reads == 1


def test_the_newer_list_wins_whoever_writes_last(store: LocalStore) -> None:
    assert usd_of(prices.keep(store, document(4.0, "2026-10-02T00:00:00Z"))) == 4.0
    assert usd_of(prices.keep(store, document(3.0, "2026-10-01T00:00:00Z"))) == 4.0
    assert usd_of(prices.keep(store, document(5.0, "2026-10-03T00:00:00Z"))) == 5.0
    prices._read.clear()
    assert usd_of(prices.of_store(store)) == 5.0


def test_of_many_who_write_at_once_the_newest_is_left_and_none_is_refused(store: LocalStore) -> None:
    failed: list[BaseException] = []
    start = threading.Barrier(4)

    def write(day: int) -> None:
        start.wait(10)
        try:
            prices.keep(store, document(day / 2, f"2026-10-{day:02}T00:00:00Z"))
        except BaseException as error:
            failed.append(error)

    writers = [threading.Thread(target=write, args=(day,)) for day in (3, 9, 5, 7)]
    for one in writers:
        one.start()
    for one in writers:
        one.join(20)
    prices._read.clear()
    assert (failed, usd_of(prices.of_store(store))) == ([], 4.5)


def test_a_swap_that_won_and_was_answered_by_a_refusal_is_ones_own(store: LocalStore) -> None:
    """A retried conditional write is refused by what its own first try wrote."""

    class Retried(Counting):
        def create(self, name: str, data: bytes) -> int | None:
            self._store.create(name, data)
            return None

    retried: Any = Retried(store)
    assert usd_of(prices.keep(retried, document())) == 4.0
    assert retried.reads == 2


FOREIGN = [
    b"{", b"[]", b"\xff", b"null", b'{"version":1}', b"[" * 100_000,
    document().replace(b'"usd":4.0', b'"usd":0'),
    document().replace(b'"usd":4.0', b'"usd":0.0001'),
    document().replace(b'"usd":4.0', b'"usd":1e9'),
    document().replace(b'"usd":4.0', b'"usd":NaN'),
    document().replace(b'"usd":4.0', b'"usd":Infinity'),
    document().replace(b'"usd":4.0', b'"usd":null'),
    document().replace(b'"usd":4.0', b'"usd":true'),
    document().replace(b'"usd":4.0', b'"usd":"4"'),
    document().replace(b'"on demand"', b'"for free"'),
    document().replace(b'"2026-10-01"', b'"soon"'),
    document().replace(b'"a test"', b'"\\u001b[2J"'),
    document().replace(b'"model"', b'"mode"'),
    document().replace(b'"version":1', b'"version":2'),
    document().replace(b"2026-10-02T", b"9999-10-02T"),
    document().replace(AT.encode(), b"yesterday"),
]  # fmt: skip


@pytest.mark.parametrize("data", FOREIGN)
def test_what_is_no_list_of_prices_is_told_and_nothing_of_it_is_taken(
    store: LocalStore, home: Path, data: bytes
) -> None:
    """Whoever can write to the bucket could let a limit of money pay for a thousand times as much."""
    store.create(names.PRICES, data)
    with pytest.warns(UserWarning, match=r"prices\.json is no table of prices .*to write it anew, "):
        assert prices.of_store(store) is None
    assert usd_of(prices.keep(store, document())) == 4.0, "the next refresh mends it"


def test_a_list_larger_than_any_is_not_read(store: LocalStore, home: Path) -> None:
    store.create(names.PRICES, document() + b" " * LARGEST)
    with pytest.warns(UserWarning, match="cannot be read, so this machine's are taken"):
        assert prices.in_force(settings.load(), store).listed == BUILT_IN


# ---- its age


def test_a_list_of_more_than_thirty_days_is_told_with_the_command_that_renews_it() -> None:
    listed = price_list.parse(document())
    read_at = datetime(2026, 10, 2, tzinfo=UTC)
    assert staleness(listed, read_at + timedelta(days=30, hours=23)) == ""
    told = staleness(listed, read_at + timedelta(days=31))
    assert told.startswith("the list prices were read on 2026-10-02, 31 days ago; to read today's from Google: ")
    assert told.endswith("prices --refresh")
    assert "are of 2024-12-23 to 2026-08-11, as the package has them" in staleness(BUILT_IN)


@pytest.mark.parametrize(("age", "is_told"), [(3, False), (40, True)])
def test_plan_prices_and_cost_tell_an_old_list(
    cloud: Emulator, capsys: pytest.CaptureFixture[str], tmp_path: Path, age: int, is_told: bool
) -> None:
    here = settings.load()
    read_at = (datetime.now(UTC) - timedelta(days=age)).strftime("%Y-%m-%dT%H:%M:%SZ")
    prices.keep(open_store(here.store, here.deployment), document(refreshed=read_at))
    (tmp_path / "train.py").write_text(
        "import kinetic_orchestration as kinetic\n\n"
        "@kinetic.run(accelerator='v5p-8', cloud=kinetic.TpuVm(zones=['us-east5-a']))\ndef train():\n    pass\n"
    )
    for command in (["plan", str(tmp_path / "train.py")], ["prices"]):
        assert cli.main(command) == 0
        assert (f"{age} days ago; to read today's" in capsys.readouterr().err) == is_told
    assert "4.00" not in capsys.readouterr().out
