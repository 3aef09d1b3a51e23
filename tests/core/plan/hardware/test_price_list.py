"""List prices: a table with the date and the source of each, renewed from Google's Billing Catalog, or left as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration import cli
from kinetic_orchestration.errors import BackendError
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.limits import Limits
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.hardware import cost, price_list
from kinetic_orchestration.plan.hardware.accelerators import parse
from kinetic_orchestration.plan.hardware.machine_parts import core, memory
from kinetic_orchestration.plan.hardware.price_list import BUILT_IN, FLEX_START, ON_DEMAND, PRICES_DATE, SPOT, Rate
from kinetic_orchestration.plan.planner import make_plan
from kinetic_orchestration.platforms.google.rest import billing_catalog
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.api_servers.billing_skus import sku, skus

pytestmark = pytest.mark.fast

Price = Callable[..., cost.Price | None]


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
    assert ["v6e", "us-east5", "spot", "1.89", PRICES_DATE, "the", "package"] in rows
    assert ["v5e/us-west4", "0.9", "KINETIC_PRICES"] in rows
    assert "kinetic-orchestration prices --refresh" in err


def test_a_refresh_reads_googles_catalogue_and_every_estimate_uses_it(
    cloud: Emulator, home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, err = shown(capsys, "--refresh")
    assert f"50 prices of {len(skus())} SKUs" in err and str(home / "prices.json") in err
    told = json.loads(shown(capsys, "--json")[0])
    by = {(row["generation"], row["region"], row["model"]): row for row in told["prices"]}
    assert (by["v6e", "us-east5", SPOT]["usd"], by["v6e", "us-east5", SPOT]["date"]) == (1.4033, "2026-08-11")
    assert by["v6e", "us-east5", SPOT]["source"].startswith("Google's Billing Catalog, SKU ")
    assert by["v6e", "asia-northeast1", ON_DEMAND]["date"] == PRICES_DATE, "what it does not say stays, with its date"
    here = settings.load()
    found = cost.price(parse("v6e-8:spot"), "us-east5-a", overrides=here.prices, listed=here.listed)
    assert found is not None and found.source == "spot list price of 2026-08-11"
    cli.main(["accelerators"])
    assert "list prices of 2024-12-23 to 2026-08-11" in capsys.readouterr().out
    (tmp_path / "train.py").write_text(
        "import kinetic_orchestration as kinetic\n\n"
        "@kinetic.run(accelerator='v6e-8', spot=True, cloud=kinetic.TpuVm(zones=['us-east5-a']))\ndef train():\n    pass\n"
    )
    cli.main(["plan", str(tmp_path / "train.py")])
    assert "$11.23 an hour while READY in us-east5-a (8 × spot list price of 2026-08-11)" in capsys.readouterr().out


def test_a_jobs_own_estimate_has_the_date(home: Path, tmp_path: Path) -> None:
    price_list.write(home, [Rate("v5e", "us-central1", ON_DEMAND, 1.1, "2026-10-01", "a test")], "2026-10-02T00:00:00Z")
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
    assert "gcloud services enable cloudbilling.googleapis.com" in err and f"prices of {PRICES_DATE} stay" in err
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
        (changed(V6E, usd=0), "has no price above 0"),
        (changed(V6E, usd=270), r"at \$270 for a chip-hour: no chip costs that"),
        (changed(V6E, usd=21.6), "more than 4 times apart"),  # a host of eight taken for a chip
        (changed("TpuV6e attached to Spot Preemptible VMs running in Columbus", usd=2.8), "dearer than on demand"),
        (changed(V6E, unit="mo"), "charged by 'mo', not by the hour"),
        (changed(V6E, currency="EUR"), "in 'EUR', not in dollars"),
        (changed(V6E, effective="soon"), "no known kind, or has no date"),
        ([*skus(), sku("TpuV6e running in Ohio", 2.7, ["us-east5"])], "two SKUs are v6e us-east5 on demand"),
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
    assert "left out, since it is not known what it is: Nightly TpuV6e running in Columbus" in err
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
            "flex-start list price of 2026-08-11, in part on demand, as none is known for flex-start, with 12 cores,",
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
    found = cost.price(parse(name), "us-central1-a", listed=listed, **given)
    assert found is not None
    assert found.usd_per_chip_hour == pytest.approx(usd)
    assert said in found.source
    assert "without" not in found.source


def test_what_no_row_has_the_price_of_is_named_and_not_made_up() -> None:
    rates = [
        Rate("h200", "us-east5", ON_DEMAND, 10.0, "2026-08-01", "x"),
        Rate(core("a3ultra"), "us-east5", ON_DEMAND, 0.03, "2026-07-01", "x"),
    ]
    listed = BUILT_IN.with_rates(rates, "")
    found = cost.price(parse("h200x8"), "us-east5-a", listed=listed)
    assert found is not None
    assert found.usd_per_chip_hour == pytest.approx(10.0 + 224 * 0.03 / 8)
    assert found.source == (
        "list price of 2026-07-01 to 2026-08-01, with its share of 224 cores, without 2952 GiB of memory, its local SSDs "
        "and a boot disk of 200 GiB, for which none is known"
    )
    assert found.date == "2026-07-01"
    assert cost.price(parse("l4"), "us-east5-a", listed=listed) is None, "its GPU has none"
    assert cost.price(parse("v100"), listed=BUILT_IN.with_rates([rates[0]._replace(generation="v100")], "")) is None


def test_limits_and_estimates_use_the_same_number_for_a_gpu() -> None:
    listed = BUILT_IN.with_rates(billing_catalog.rates_of(skus(), BUILT_IN).rates, "")
    for spot, hourly in ((False, ON_L4), (True, SPOT_L4)):
        seconds = cost.affordable(1.0, parse("l4"), ["us-central1-a"], spot=spot, listed=listed)
        assert seconds == pytest.approx(3600 / hourly)
        assert cost.estimate(parse("l4"), seconds, zone="us-central1-a", spot=spot, listed=listed).usd == pytest.approx(
            1.0
        )


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
        r"price +none known; name one with KINETIC_PRICES, or read .*prices --refresh", capsys.readouterr().out
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
        "Nvidia L4 GPU in another word", "h100-mega us-central1 on demand: two SKUs have two prices",
        "A2 Instance Ram running in Delhi (SKU",
    ):  # fmt: skip
        assert words in told


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
    assert "ends at v6e, and Google gives it fixes only" in out and f"list prices of {PRICES_DATE}" in out
    cli.main(["accelerators", "tpu7x-8"])
    told = "On Google Cloud: compute, gke. On compute each host is a VM of tpu7x-standard-4t "
    assert f"{told}(on-demand, spot, flex-start, reservation), all linked by one group." in capsys.readouterr().out
    cli.main(["accelerators", "tpu7x-192"])
    assert "On Google Cloud: gke." in capsys.readouterr().out
