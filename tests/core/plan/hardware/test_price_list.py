"""List prices: a table with the date and the source of each, renewed from Google's Billing Catalog, or left as it is."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration import cli
from kinetic_orchestration.errors import BackendError, UsageError
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.limits import Limits
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.hardware import cost, machines, price_list
from kinetic_orchestration.plan.hardware.accelerators import parse
from kinetic_orchestration.plan.hardware.machine_parts import core, memory
from kinetic_orchestration.plan.hardware.price_list import (
    BUILT_IN,
    FLEX_START,
    ON_DEMAND,
    SPOT,
    PriceList,
    Rate,
)
from kinetic_orchestration.plan.hardware.prices import Price, Purchase, Unknown, price
from kinetic_orchestration.plan.planner import describe, make_plan
from kinetic_orchestration.plan.values import Plan, Retry
from kinetic_orchestration.platforms.google.rest import billing_catalog
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.api_servers.billing_skus import sku, skus

pytestmark = pytest.mark.fast


@pytest.fixture
def cloud(tpu_cloud: Emulator, home: Path, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """The cloud whose catalogue is requested; `home` has removed its variables."""
    for name, value in tpu_cloud.environ().items():
        monkeypatch.setenv(name, value)
    return tpu_cloud


def shown(capsys: pytest.CaptureFixture[str], *more: str, code: int = 0) -> tuple[str, str]:
    assert cli.main(["prices", *more]) == code
    return capsys.readouterr()


def test_the_table_names_the_date_and_the_source_of_each_price(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_PRICES", "v5e/us-west4=0.9")
    out, err = shown(capsys)
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["PRICE", "OF", "REGION", "MODEL", "$/HOUR", "DATE", "FROM"]
    assert ["v6e", "us-east5", "spot", "1.403", "2026-08", "the", "package,"] in [row[:7] for row in rows]
    assert ["v5e/us-west4", "0.9", "KINETIC_PRICES"] in rows
    assert "kinetic-orchestration prices --refresh" in err


def test_a_refresh_reads_googles_catalogue_and_every_estimate_uses_it(
    cloud: Emulator, home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, err = shown(capsys, "--refresh")
    assert f"54 prices of {len(skus())} SKUs" in err and str(home / "prices.json") in err
    told = json.loads(shown(capsys, "--json")[0])
    by = {(row["generation"], row["region"], row["model"]): row for row in told["prices"]}
    assert (by["v6e", "us-east5", SPOT]["usd"], by["v6e", "us-east5", SPOT]["date"]) == (1.4033, "2026-08-11")
    assert by["v6e", "us-east5", SPOT]["source"].startswith("Google's Billing Catalog, SKU ")
    assert by["v6e", "asia-northeast1", ON_DEMAND]["date"] == "2026-08", "what it does not say stays, with its date"
    here = settings.load()
    found = price(Purchase(parse("v6e-8:spot")), "us-east5-a", here.prices, here.listed)
    assert isinstance(found, Price) and found.source == "spot list price of 2026-08-11"
    cli.main(["accelerators"])
    assert "list prices of 2024-12-23 to 2026-08-11" in capsys.readouterr().out
    (tmp_path / "train.py").write_text(
        "import kinetic_orchestration as kinetic\n\n"
        "@kinetic.run(accelerator='v6e-8', spot=True, cloud=kinetic.TpuVm(zones=['us-east5-a']))\ndef train():\n    pass\n"
    )
    cli.main(["plan", str(tmp_path / "train.py")])
    assert "$11.23 an hour while READY in us-east5-a (8 × spot list price of 2026-08-11)" in capsys.readouterr().out


def test_plan_shows_the_price_of_the_first_zone_and_of_the_dearest_by_which_money_is_limited(
    cloud: Emulator, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        "import kinetic_orchestration as kinetic\n\n"
        "@kinetic.run(accelerator='v6e-8', cloud=kinetic.TpuVm(zones=['us-east5-a', 'europe-west4-a']), "
        "limits=kinetic.Limits(cost=47.52))\ndef train():\n    pass\n"
    )
    cli.main(["plan", str(tmp_path / "train.py")])
    told = " ".join(capsys.readouterr().out.split())
    assert "$21.60 an hour while READY in us-east5-a (8 × list price of 2026-08); $23.76 in europe-west4, " in told
    assert "cost $47.52 (pays for 2.00 h in the dearest of its zones)" in told


def test_a_jobs_own_estimate_has_the_date(home: Path, tmp_path: Path) -> None:
    rate = Rate("v5e", "us-central1", ON_DEMAND, 1.1, "2026-10-01", "a test")
    price_list.write(home, price_list.to_bytes([rate], "2026-10-02T00:00:00Z"))
    (tmp_path / "program").mkdir()
    job = kinetic.command(["true"], accelerator="v5e-1", cwd=tmp_path / "program")
    job.result()
    assert job.cost().note == "list price of 2026-10-01"


def test_pages_are_followed(cloud: Emulator, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(billing_catalog, "PAGE", 5)
    assert billing_catalog.fetch(settings.load(), BUILT_IN).read == len(skus())
    assert cloud.count("ListSkus") == -(-len(skus()) // 5)


def test_a_refusal_is_told_and_the_table_stays(cloud: Emulator, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cloud.disable("cloudbilling.googleapis.com")
    _, err = shown(capsys, "--refresh", code=cli.codes.ENVIRONMENT)
    assert "gcloud services enable cloudbilling.googleapis.com" in err and f"prices of {BUILT_IN.dates()} stay" in err
    assert not (home / "prices.json").exists()


def changed(description: str, **given: Any) -> list[Any]:
    """The catalogue with one row in another way."""
    rows = skus()
    [at] = [index for index, row in enumerate(rows) if row["description"] == description]
    was = rows[at]
    price = was["pricingInfo"][0]["pricingExpression"]["tieredRates"][0]["unitPrice"]
    usd = f"{price['units']}.{price['nanos']:09d}"
    rows[at] = sku(description, given.pop("usd", usd), was["serviceRegions"], was["category"]["usageType"], **given)
    return rows


V6E = "TpuV6e running in Columbus"


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([], "none of its 0 SKUs is a TPU on demand"),
        (changed(V6E, usd=0), r"at \$0 for a chip-hour: no chip costs that"),
        (changed(V6E, usd=270), r"at \$270 for a chip-hour: no chip costs that"),
        (changed(V6E, usd=21.6), "more than 4 times apart"),  # a host of eight taken for a chip
        (changed("TpuV6e attached to Spot Preemptible VMs running in Columbus", usd=2.8), "dearer than on demand"),
        (changed(V6E, unit="mo"), "charged by 'mo', not by the hour"),
        (changed(V6E, currency="EUR"), "in 'EUR', not in dollars"),
        (changed(V6E, effective="soon"), "its date is 'soon'"),
        ([*skus(), "no object"], "is no object"),
        ([*skus(), {**sku("TpuV6e running in Ohio", 2.7, ["us-east1"]), "pricingInfo": []}], "TpuV6e running in Ohio"),
    ],
)  # fmt: skip
def test_what_is_not_plausible_is_refused_whole(rows: list[Any], why: str) -> None:
    with pytest.raises(BackendError, match=rf"not plausible, and nothing of it was taken: .*{why}"):
        billing_catalog.rates_of(rows, BUILT_IN)


def test_an_implausible_answer_over_the_wire_changes_nothing(
    cloud: Emulator, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown(capsys, "--refresh")
    kept = (home / "prices.json").read_bytes()
    cloud.neighbours.skus = changed(V6E, usd=270)
    _, err = shown(capsys, "--refresh", code=cli.codes.ENVIRONMENT)
    assert "not plausible" in err and (home / "prices.json").read_bytes() == kept


def test_discounts_are_no_prices_and_rows_in_unknown_words_are_told(
    cloud: Emulator, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Several rows of a generation and region say OnDemand: only the whole form of the description tells them apart."""
    cloud.neighbours.skus = [*skus(), sku("Nightly TpuV6e running in Columbus", 1, ["us-east5"])]
    _, err = shown(capsys, "--refresh")
    assert "left out: Nightly TpuV6e running in Columbus" in err
    rate = settings.load().listed.rate("v6e", "us-east5", ON_DEMAND)
    assert rate is not None and rate.usd == 2.7
    assert settings.load().listed.rate("tpu7x", "us-central1", ON_DEMAND) is None


# ---- machines with GPUs

ON_L4 = 0.5608 + 4 * 0.02498 + 16 * 0.00293 + 100 * 0.1 / 730
SPOT_L4 = 0.3359 + 4 * 0.01499 + 16 * 0.001756 + 100 * 0.1 / 730


@pytest.mark.parametrize(
    ("name", "given", "usd", "said"),
    [
        ("l4", {}, ON_L4, "list price of 2026-08-11, with 4 cores, 16 GiB of memory and a boot disk of 100 GiB"),
        ("l4", {"spot": True}, SPOT_L4, "spot list price of 2026-08-11, with 4 cores,"),
        ("l4x2", {}, 0.5608 + (24 * 0.02498 + 96 * 0.00293 + 100 * 0.1 / 730) / 2, "with its share of 24 cores,"),
        (
            "a100", {"flex_start": True}, 1.61 + 12 * 0.0174 + 85 * 0.00424 + 100 * 0.1 / 730,
            "flex-start list price of 2026-08-11, in part on demand and so at most, as none is known for flex-start, with 12 cores,",
        ),
        (
            "a100-80gb", {}, 3.93 + 12 * 0.03161 + 170 * 0.00424 + 375 * 0.08 / 730 + 100 * 0.1 / 730,
            "375 GiB of local SSDs and a boot disk of 100 GiB",
        ),
        ("h100-megax8", {}, 10.344276 + (208 * 0.026924 + 1872 * 0.002344 + 6000 * 0.08 / 730 + 200 * 0.1 / 730) / 8, ""),
        ("b200x8", {}, 16.11 + 200 * 0.08 / 730 / 8, "with its share of a boot disk of 200 GiB"),
        ("b200x8", {"spot": True}, 4.9542 + 200 * 0.08 / 730 / 8, "spot list price"),
        ("rtx-pro-6000", {}, 1.09565 + 48 * 0.04891 + 180 * 0.00587 + 100 * 0.08 / 730, ""),
    ],
)  # fmt: skip
def test_a_gpu_has_its_share_of_its_machine_of_what_way_it_is_got(
    name: str, given: dict[str, bool], usd: float, said: str
) -> None:
    listed = BUILT_IN.with_rates(billing_catalog.rates_of(skus(), BUILT_IN).rates, "")
    found = price(Purchase(parse(name), **given), "us-central1-a", listed=listed)
    assert isinstance(found, Price)
    assert found.usd_per_chip_hour == pytest.approx(usd)
    assert said in found.source


def listed_without(*gone: str) -> PriceList:
    """The catalogue's prices, but for those parts."""
    rates = billing_catalog.rates_of(skus(), BUILT_IN).rates
    return BUILT_IN.with_rates([rate for rate in rates if rate.generation not in gone], "")


@pytest.mark.parametrize(
    ("name", "gone", "told"),
    [
        ("a100x8", core("a2"), "96 cores ('a2 core')"),
        ("a100x8", memory("a2"), "680 GiB of memory ('a2 memory')"),
        ("a100-80gb", "local-ssd", "375 GiB of local SSDs ('local-ssd')"),
        ("b200x8", "hyperdisk-balanced", "a boot disk of 200 GiB ('hyperdisk-balanced')"),
    ],
)
def test_a_machine_of_which_a_part_has_no_price_has_none_and_no_limit_of_money_lets_it_run(
    name: str, gone: str, told: str
) -> None:
    """A part without a row would count as nothing, and the limit let several times as much through."""
    listed, of = listed_without(gone), Purchase(parse(name))
    found = price(of, "us-central1-a", listed=listed)
    assert isinstance(found, Unknown)
    assert told in found.of and f"of {name} in us-central1" in found.of
    assert "prices --refresh`" in found.fix and f"KINETIC_PRICES={of.slice.generation}/us-central1=…" in found.fix
    with pytest.raises(UsageError, match=r"limits\.cost is \$10\.00 and cannot be kept, as no price is known of "):
        cost.affordable(10.0, of, ["us-central1-a"], listed=listed)
    estimated = cost.estimate(of, 3600, zone="us-central1-a", listed=listed)
    assert estimated.usd is None and str(estimated).startswith(f"cost: unknown for {name} (")
    own = {of.slice.generation: 3.0}
    assert cost.affordable(3.0 * of.chips, of, ["us-central1-a"], own, listed) == pytest.approx(3600)


def test_an_h200_has_the_local_ssds_of_its_machine_at_the_price_of_others() -> None:
    made = {
        "h200": 10.0,
        core("a3ultra"): 0.03,
        memory("a3ultra"): 0.003,
        "local-ssd": 1e-4,
        "hyperdisk-balanced": 1e-4,
    }
    rates = [Rate(name, "us-east5", ON_DEMAND, usd, "2026-08-01", "x") for name, usd in made.items()]
    found = price(Purchase(parse("h200x8")), "us-east5-a", listed=BUILT_IN.with_rates(rates, ""))
    assert isinstance(found, Price)
    share = 224 * 0.03 + 2952 * 0.003 + 12000 * 1e-4 + 200 * 1e-4
    assert found.usd_per_chip_hour == pytest.approx(10.0 + share / 8)


def test_a_region_that_is_not_listed_never_gets_the_price_of_one_where_a_part_is_missing() -> None:
    """An H100 is listed in us-east5, and no part of its machine."""
    listed = listed_without()
    told = price(Purchase(parse("h100x8")), "us-west1-a", listed=listed)
    assert isinstance(told, Unknown)
    assert "208 cores ('a3 core')" in told.of and "KINETIC_PRICES=h100/us-west1=…" in told.fix


MONTH = 730  # hours


@pytest.mark.parametrize(
    ("name", "zone", "kind", "usual", "each"),
    [
        ("l4", "us-central1-a", "", 100, 0.1 / MONTH), ("l4", "us-central1-a", "pd-ssd", 100, 0.17 / MONTH),
        ("v6e-8", "us-east5-a", "", 0, 0.08 / MONTH / 8), ("v5p-4", "us-east5-a", "", 0, 0.1 / MONTH / 4),
        ("v5p-4", "us-east5-a", "hyperdisk-balanced", 0, 0.08 / MONTH / 4),
    ],
)  # fmt: skip
def test_a_boot_disk_is_in_the_price_by_its_type_and_its_size(
    name: str, zone: str, kind: str, usual: int, each: float
) -> None:
    """GPUs have the usual disk, and TPUs that of a VM of Compute Engine."""
    listed = listed_without().with_rates(
        [
            Rate("hyperdisk-balanced", "us-east5", ON_DEMAND, 0.08 / MONTH, "2026-08-11", "x"),
            Rate("pd-balanced", "us-east5", ON_DEMAND, 0.1 / MONTH, "2026-08-11", "x"),
        ],
        "",
    )
    of, machine = Purchase(parse(name)), machines.machine_of(parse(name))
    alone = price(of, zone, listed=listed)
    large = price(replace(of, disk=machines.boot_disk(machine, type=kind, gib=5000)), zone, listed=listed)
    assert isinstance(alone, Price) and isinstance(large, Price)
    less = usual * 0.1 / MONTH if usual else 0.0
    assert large.usd_per_chip_hour == pytest.approx(alone.usd_per_chip_hour - less + 5000 * each)
    assert "a boot disk of 5000 GiB" in large.source
    without = PriceList(tuple(rate for rate in listed.rates if not rate.generation.startswith(("pd-", "hyperdisk"))))
    missing = price(replace(of, disk=machines.boot_disk(machine, gib=5000)), zone, listed=without)
    assert isinstance(missing, Unknown) and "a boot disk of 5000 GiB" in missing.of
    assert "prices --refresh`" in missing.fix
    assert f"with its share of the {'machine' if name == 'l4' else 'boot disk'}, with KINETIC_PRICES=" in missing.fix


def test_a_chip_that_googles_list_does_not_price_is_not_looked_for_there() -> None:
    """Nobody knows of how many chips its rows count an hour, so a refresh brings none."""
    of = Purchase(parse("tpu7x-4"), disk=machines.boot_disk(machines.machine_of(parse("tpu7x-4"))))
    found = price(of, "us-central1-a")
    assert isinstance(found, Unknown)
    assert found.of == (
        "tpu7x-4 in us-central1, as Google's list has it by the hour, and not whether of a chip or of the four of a host"
    )
    assert found.fix == (
        "name the price of a chip for an hour, with its share of the boot disk, with KINETIC_PRICES=tpu7x/us-central1=…"
    )


@pytest.mark.parametrize(
    ("name", "zone", "chip", "month"),
    [
        ("v6e-16", "us-east5-a", 2.70, 0.17), ("v6e-8", "europe-west4-a", 2.97, 0.187),
        ("v6e-1", "asia-northeast1-b", 3.24, 0.221), ("v5p-4", "us-east5-a", 4.20, 0.17),
    ],
)  # fmt: skip
def test_a_tpu_vm_of_compute_engine_has_its_boot_disk_in_the_price_and_one_of_cloud_tpu_has_none(
    name: str, zone: str, chip: float, month: float, home: Path
) -> None:
    """The package has no dated price of these disks, and counts them as a dearer type: a limit rests on the number."""
    here = settings.load(store="gs://b/p", deployment="d", project="p")
    cloud = kinetic.Compute(zones=[zone])
    options = Options(name, backend="compute", cloud=cloud, limits=Limits(cost=100.0))
    plan = make_plan(JobSpec("f", options, argv=("x",)), here)
    found = price(plan.purchase, zone)
    assert isinstance(found, Price)
    disk = 100 * month / MONTH / plan.slice.chips_per_host
    assert found.usd_per_chip_hour == pytest.approx(chip + disk)
    assert found.source == (
        f"list price of {price_list.DISKS_DATE} to 2026-08, with "
        f"{'its share of ' if plan.slice.chips_per_host > 1 else ''}a boot disk of 100 GiB"
    )
    assert plan.affordable == pytest.approx(100 * 3600 / ((chip + disk) * plan.slice.chips))
    on_cloud_tpu = price(Purchase(parse(name)), zone)
    assert isinstance(on_cloud_tpu, Price) and on_cloud_tpu.usd_per_chip_hour == chip


def test_a_refresh_replaces_the_prices_of_disks_that_the_package_has(home: Path) -> None:
    of = Purchase(parse("v6e-8"), disk=machines.boot_disk(machines.machine_of(parse("v6e-8"))))
    row = sku("Hyperdisk Balanced Capacity in Columbus", 0.08, ["us-east5"], group="SSD", unit="GiBy.mo")
    found = billing_catalog.rates_of([*skus(), row], BUILT_IN)
    assert "Hyperdisk" not in "\n".join(found.unknown)
    v6e = next(rate.usd for rate in found.rates if rate[:3] == ("v6e", "us-east5", ON_DEMAND))
    known = price(of, "us-east5-a", listed=BUILT_IN.with_rates(found.rates, ""))
    assert isinstance(known, Price) and known.usd_per_chip_hour == pytest.approx(v6e + 100 * 0.08 / MONTH / 8)


def test_a_named_disk_is_in_the_limit_of_a_job() -> None:
    here = replace(settings.load(store="gs://b/p", deployment="d", project="p"), listed=listed_without())
    cloud = kinetic.Compute(zones=["us-central1-a"], disk_gib=5000)
    options = Options("l4", backend="compute", cloud=cloud, limits=Limits(cost=1.0))
    plan = make_plan(JobSpec("f", options, argv=("x",)), here)
    assert plan.affordable == pytest.approx(3600 / (ON_L4 + 4900 * 0.1 / 730))
    assert "cost $1.00 (pays for 0.72 h in the dearest of its zones)" in describe(plan)


@pytest.mark.parametrize(
    ("backend", "known"), [("compute", True), ("gke", True), ("kubernetes", False), ("local", True)]
)
def test_the_list_has_prices_of_gpus_in_googles_machines_alone(backend: str, known: bool) -> None:
    """A cluster may be of another cloud, or of one's own machines; for a job on this machine it is what it stands for."""
    plan = Plan("f", parse("l4"), backend, "gs://b/p", "prod", Limits(), Retry())
    found = price(plan.purchase, "", listed=listed_without())
    assert isinstance(found, Price) == known
    tpu = price(replace(plan, slice=parse("v6e-8")).purchase, "", listed=listed_without())
    assert isinstance(tpu, Price), "Google alone has them"
    if isinstance(found, Unknown):
        assert found.of == "l4 on machines that are not Google's"
        assert found.fix.endswith("with KINETIC_PRICES=l4=…") and "--refresh" not in found.fix


def test_a_limit_of_money_on_another_cluster_takes_a_price_of_ones_own() -> None:
    here = replace(settings.load(store="gs://b/p", deployment="d"), listed=listed_without())
    options = Options("l4", backend="kubernetes", limits=Limits(cost=1.0))
    with pytest.raises(UsageError, match=r"l4 on machines that are not Google's: name the price of a GPU"):
        make_plan(JobSpec("f", options, argv=("x",)), here)
    plan = make_plan(JobSpec("f", options, argv=("x",)), replace(here, prices={"l4": 2.0}))
    assert plan.affordable == 1800
    assert "cost $1.00 (pays for 0.50 h in the dearest of its places)" in describe(plan)


def test_limits_and_estimates_use_the_same_number_for_a_gpu() -> None:
    listed = listed_without()
    for spot, hourly in ((False, ON_L4), (True, SPOT_L4)):
        of = Purchase(parse("l4"), spot=spot)
        seconds = cost.affordable(1.0, of, ["us-central1-a"], listed=listed)
        assert seconds == pytest.approx(3600 / hourly)
        assert cost.estimate(of, seconds, zone="us-central1-a", listed=listed).usd == pytest.approx(1.0)


@pytest.mark.parametrize(("flex_start", "hourly"), [(False, 3.6874), (True, 2.1929)])
def test_plan_shows_the_price_of_the_way_in_which_a_gpu_is_got_and_limits_its_job_by_it(
    cloud: Emulator, home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, flex_start: bool, hourly: float
) -> None:
    (tmp_path / "train.py").write_text(
        "import kinetic_orchestration as kinetic\n\n"
        f"@kinetic.run(accelerator='a100', backend='compute', cloud=kinetic.Compute(flex_start={flex_start}, "
        "zones=['us-central1-a']), limits=kinetic.Limits(run='1h'))\ndef train():\n    pass\n"
    )
    cli.main(["plan", str(tmp_path / "train.py")])
    assert re.search(
        r"price +unknown: no price is known of a100 in us-central1: read .*prices --refresh`, .*KINETIC_PRICES=a100/us-",
        capsys.readouterr().out,
    )
    shown(capsys, "--refresh")
    cli.main(["plan", str(tmp_path / "train.py")])
    told = " ".join(capsys.readouterr().out.split())
    assert (
        f"${hourly:.2f} an hour while READY in us-central1-a (1 × {'flex-start ' * flex_start}list price of 2026"
        in told
    )
    assert "with 12 cores, 85 GiB of memory and a boot disk of 100 GiB" in told
    cloud_ = kinetic.Compute(flex_start=flex_start, zones=["us-central1-a"])
    options = Options("a100", backend="compute", cloud=cloud_, limits=Limits(run="1h", cost=1.0))
    plan = make_plan(JobSpec("f", options), settings.load())
    assert plan.affordable == pytest.approx(3600 / hourly, rel=1e-4)


def test_rows_of_machines_are_told_apart_and_a_strange_one_costs_the_others_nothing() -> None:
    """Spot, flex-start, calendars, commitments and replicated disks are rows beside those on demand."""
    by = {
        (rate.generation, rate.region, rate.model): rate.usd
        for rate in billing_catalog.rates_of(skus(), BUILT_IN).rates
    }
    assert by["h100-mega", "us-central1", ON_DEMAND] == 10.344276
    assert by["h100-mega", "us-central1", FLEX_START] == 4.423936
    assert (by["a100", "us-central1", ON_DEMAND], by["a100-80gb", "us-central1", ON_DEMAND]) == (2.934, 3.93)
    assert by["v6e", "us-east5", FLEX_START] == 1.35
    assert by[memory("g2"), "us-east1", SPOT] == 0.001756
    assert by["pd-balanced", "us-central1", ON_DEMAND] == pytest.approx(0.1 / 730)
    assert by["local-ssd", "us-central1", SPOT] == pytest.approx(0.05 / 730)
    strange = [
        sku("G2 Instance Core running in Japan", 5, ["asia-northeast1"], group="CPU"),
        sku("Nvidia L4 GPU in another word", 1, ["us-central1"], group="GPU"),
        sku("Nvidia H100 80GB Mega GPU running in Iowa", 9, ["us-central1"], group="GPU"),
        sku("A2 Instance Ram running in Delhi", 1, ["asia-south2"], group="RAM", unit="GiBy.s"),
    ]
    found = billing_catalog.rates_of([*skus(), *strange], BUILT_IN)
    left = {key: usd for key, usd in by.items() if key != ("h100-mega", "us-central1", ON_DEMAND)}
    assert {(rate.generation, rate.region, rate.model): rate.usd for rate in found.rates} == left
    told = "\n".join(found.unknown)
    for words in (
        "g2 core in asia-northeast1, on demand, at $5 for an hour of a core: no core costs that",
        "Nvidia L4 GPU in another word", "h100-mega us-central1 on demand: of Google's Billing Catalog, SKU ",
        "(A2 Instance Ram running in Delhi): it is charged by 'GiBy.s'",
    ):  # fmt: skip
        assert words in told


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (sku("DWS Defined Duration V6e running in Netherlands", 9, ["europe-west4"]), "dearer than on demand"),
        (
            sku("DWS Defined Duration V5p running in Columbus", 0, ["us-east5"]),
            "at $0 for a chip-hour: no chip costs that",
        ),
        (sku("DWS Defined Duration V5p running in Columbus", 1, ["us-east5"], unit="mo"), "charged by 'mo'"),
        (sku("DWS Defined Duration V6e running in Ohio", 1.5, ["us-east5"]), "v6e us-east5 flex-start: of Google"),
    ],
)
def test_a_strange_row_of_flex_start_is_left_out_and_named_and_the_others_are_taken(row: Any, why: str) -> None:
    usual, found = (billing_catalog.rates_of(rows, BUILT_IN) for rows in (skus(), [*skus(), row]))
    assert why in "\n".join(found.unknown)
    assert {rate for rate in usual.rates if rate.model != FLEX_START} <= set(found.rates)
    assert len(found.rates) >= len(usual.rates) - 1


def test_a_refresh_names_rows_of_machines_in_new_words_and_what_has_no_price_for_want_of_them(
    cloud: Emulator, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row for row in skus() if not row["description"].startswith("G2 Instance")]
    new = ["G2 Instance vCPU running in Americas", "Instance Memory of A2, Americas", "N1 Predefined Thread in Iowa"]
    more = [
        "Sole Tenancy Premium for G2 Core",
        "Commitment v1: A2 Ram in Americas for 1 Year",
        "N2 Instance Core in Iowa",
    ]
    groups = ["CPU", "RAM", "N1Standard"]
    for words in (new, more):
        rows += [sku(text, 0.1, ["us-central1"], group=group) for text, group in zip(words, groups, strict=True)]
    cloud.neighbours.skus = rows
    _, err = shown(capsys, "--refresh")
    assert [text for text in new if f"left out: {text}" in err] == new
    assert [text for text in more if text in err] == []
    assert "no price of l4 in us-central1, as the list has none of g2 core and g2 memory there" in err
    assert "no price of h100 in us-east5, as the list has none of a3 core, a3 memory and local-ssd there" in err


def test_a_refresh_names_the_prices_of_which_it_found_no_row_and_what_becomes_of_them(
    cloud: Emulator, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows are reported when none matches: also what a list has had, and has no longer."""
    gone = "TpuV6e running in Sao Paulo"
    cloud.neighbours.skus = [*skus(), sku(gone, 3.1, ["southamerica-east1"])]
    _, err = shown(capsys, "--refresh")
    assert "no row has the price of v6e in asia-northeast1, on demand: that of 2026-08 stays" in err
    assert "no row has the price of v6e in us-east1, on demand: that of 2024-12-23 stays" in err
    assert "southamerica-east1" not in err
    cloud.neighbours.skus = skus()
    _, err = shown(capsys, "--refresh")
    assert "no row has the price of v6e in southamerica-east1, on demand: it is not known any more" in err
    told = json.loads(shown(capsys, "--json")[0])
    assert not [row for row in told["prices"] if row["region"] == "southamerica-east1"]


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", '{"version": 2, "rates": [], "refreshed": ""}', '{"version": 1, "refreshed": "", "rates": [{}]}',
        json.dumps({"version": 1, "refreshed": "x", "rates": [Rate("v5e", "r", ON_DEMAND, -1, "2026-01-01", "")._asdict()]}),
    ],
)  # fmt: skip
def test_a_damaged_table_is_told_and_the_packages_own_is_taken(text: str, tmp_path: Path) -> None:
    (tmp_path / "prices.json").write_text(text, encoding="utf-8")
    with pytest.warns(UserWarning, match="is no table of prices"):
        assert price_list.read(tmp_path) == BUILT_IN


def test_accelerators_say_what_is_not_reached(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["accelerators"])
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if re.match(r"tpu7x-8 .* compute, gke  ", line)]
    assert [line for line in out.splitlines() if re.match(r"tpu7x-192 .*  gke  ", line)]
    assert "no Cloud TPU API: VMs with backend='compute', or a cluster with backend='gke'" in out
    assert "ends at v6e, and Google gives it fixes only" in out and f"list prices of {BUILT_IN.dates()}" in out
    cli.main(["accelerators", "tpu7x-8"])
    told = "On Google Cloud: compute, gke. On compute each host is a VM of tpu7x-standard-4t "
    assert f"{told}(on-demand, spot, flex-start, reservation), all linked by one group." in capsys.readouterr().out
    cli.main(["accelerators", "tpu7x-192"])
    assert "On Google Cloud: gke." in capsys.readouterr().out
