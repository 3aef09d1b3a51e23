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
from kinetic_orchestration.plan.hardware import cost, price_list
from kinetic_orchestration.plan.hardware.accelerators import parse
from kinetic_orchestration.plan.hardware.price_list import BUILT_IN, ON_DEMAND, PRICES_DATE, SPOT, Rate
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
    assert rows[0] == ["CHIP", "REGION", "MODEL", "$/CHIP-HOUR", "OF", "FROM"]
    assert ["v6e", "us-east5", "spot", "1.89", PRICES_DATE, "the", "package"] in rows
    assert ["v5e/us-west4", "0.9", "KINETIC_PRICES"] in rows
    assert "kinetic-orchestration prices --refresh" in err


def test_a_refresh_reads_googles_catalogue_and_every_estimate_uses_it(
    cloud: Emulator, home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, err = shown(capsys, "--refresh")
    assert f"8 prices of {len(skus())} SKUs" in err and str(home / "prices.json") in err
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
    assert [line for line in out.splitlines() if re.match(r"tpu7x-8 .* gke  ", line)]
    assert "ends at v6e, and Google gives it fixes only" in out and f"list prices of {PRICES_DATE}" in out
    cli.main(["accelerators", "tpu7x-8"])
    assert "On Google Cloud: gke." in capsys.readouterr().out
