"""Rows of Google's Billing Catalog: each form by its whole description, none twice, and an API key is enough."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration import cli
from kinetic_orchestration.cli.doctor import examine
from kinetic_orchestration.errors import BackendError, CredentialsError, UsageError
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.hardware.accelerators import parse
from kinetic_orchestration.plan.hardware.price_list import BUILT_IN, FLEX_START, ON_DEMAND, SPOT
from kinetic_orchestration.plan.hardware.prices import Price, Purchase, Unknown, price
from kinetic_orchestration.platforms.google import credentials
from kinetic_orchestration.platforms.google.rest import billing_catalog
from kinetic_orchestration.platforms.google.rest.billing_catalog import rates_of
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.api_servers.billing_skus import sku, skus

pytestmark = pytest.mark.fast

BILLING = "cloudbilling.googleapis.com"
A_TPU = sku("TpuV5e running in Las Vegas", "1.2", ["us-west4"])


@pytest.fixture
def cloud(tpu_cloud: Emulator, home: Path, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    for name, value in tpu_cloud.environ().items():
        monkeypatch.setenv(name, value)
    return tpu_cloud


SPOT_VMS = "attached to Spot Preemptible VMs running in"
TAKEN = [
    ("TpuV5e running in Las Vegas", "OnDemand", "TPU", ("v5e", ON_DEMAND)),
    ("TpuV5p running in Columbus", "OnDemand", "TPU", ("v5p", ON_DEMAND)),
    ("TpuV6e running in Columbus", "OnDemand", "TPU", ("v6e", ON_DEMAND)),
    (f"TpuV6e {SPOT_VMS} Columbus", "Preemptible", "TPU", ("v6e", SPOT)),
    ("DWS Defined Duration V6e running in Columbus", "OnDemand", "TPU", ("v6e", FLEX_START)),
    ("DWS Defined Duration V5e running in Las Vegas", "OnDemand", "TPU", ("v5e", FLEX_START)),
    ("Nvidia Tesla A100 GPU running in Americas", "OnDemand", "GPU", ("a100", ON_DEMAND)),
    ("Nvidia Tesla A100 80GB GPU running in Iowa", "OnDemand", "GPU", ("a100-80gb", ON_DEMAND)),
    ("Nvidia H100 80GB GPU running in Columbus", "OnDemand", "GPU", ("h100", ON_DEMAND)),
    ("Nvidia H100 80GB Mega GPU running in Iowa", "OnDemand", "GPU", ("h100-mega", ON_DEMAND)),
    ("H100 80GB Mega GPU running in Iowa", "OnDemand", "GPU", ("h100-mega", ON_DEMAND)),
    ("Nvidia H100 Mega 80GB GPU attached to DWS Defined Duration VMs running in Iowa", "OnDemand", "GPU",
     ("h100-mega", FLEX_START)),
    ("Nvidia H100 80GB Plus GPU running in Americas", "OnDemand", "GPU", ("h100-mega", ON_DEMAND)),
    ("H200 141GB GPU running in Iowa", "OnDemand", "GPU", ("h200", ON_DEMAND)),
    ("A4 Nvidia B200 (1 gpu slice) running in Iowa", "OnDemand", "GPU", ("b200", ON_DEMAND)),
    ("Nvidia B200 (1 gpu slice) running in Iowa", "OnDemand", "GPU", ("b200", ON_DEMAND)),
    ("Spot Preemptible A4 Nvidia B200 (1 gpu slice) running in Iowa", "OnDemand", "GPU", ("b200", SPOT)),
]  # fmt: skip
KNOWN_TO_BE_NONE = [
    ("Reserved TpuV5p in Delhi in Calendar Mode", "OnDemand", "TPU"),
    ("Reserved V6e TPU in Columbus in Calendar Mode", "OnDemand", "TPU"),
    ("Reserved TPU7x in Americas in Calendar Mode", "OnDemand", "TPU"),
    ("Capacity Optimized TpuV6e running in Columbus", "OnDemand", "TPU"),
    ("Commitment v1: TpuV6e running in Columbus for 1 Year", "Commit1Yr", "TPU"),
    ("Commitment v1: TpuV6e running in Columbus for 3 Years", "Commit3Yr", "TPU"),
    ("TPU-v2 Accelerator USA", "OnDemand", "TPU"),
    ("Tpu-v4 Pod Preemptible USA", "OnDemand", "TPU"),
    ("DWS Calendar Mode A4 Nvidia B200 (1 gpu slice) running in Iowa", "OnDemand", "GPU"),
    ("Reserved Nvidia H100 80GB Mega GPU in Americas in Calendar Mode", "OnDemand", "GPU"),
    ("Reserved Nvidia L4 GPU in Iowa", "OnDemand", "GPU"),
    ("Commitment v1: Nvidia H100 80GB GPU running in Iowa for 1 Year", "Commit1Yr", "GPU"),
]
REPORTED = [
    ("Nightly TpuV6e running in Columbus", "OnDemand", "TPU"),
    ("TpuV6e running in Columbus at night", "Preemptible", "TPU"),
    ("Capacity Optimized TpuV9 running in Columbus", "OnDemand", "TPU"),
    ("Reserved TpuV6e in Columbus", "OnDemand", "TPU"),
    ("Nvidia H100 80GB GPU, by the rack, in Iowa", "OnDemand", "GPU"),
    (f"TpuV6e {SPOT_VMS} Columbus", "OnDemand", "TPU"),
]


def read(*rows: Any) -> tuple[dict[tuple[str, str, str], float], list[str]]:
    found = rates_of([A_TPU, *rows], BUILT_IN)
    rates = {(rate.generation, rate.region, rate.model): rate.usd for rate in found.rates}
    return {key: usd for key, usd in rates.items() if key != ("v5e", "us-west4", ON_DEMAND)}, list(found.unknown)


@pytest.mark.parametrize(("text", "usage", "group", "row"), TAKEN)
def test_a_row_is_taken_by_its_whole_description(text: str, usage: str, group: str, row: tuple[str, str]) -> None:
    rates, told = read(sku(text, 2, ["us-east4"], usage, group=group))
    assert (rates, told) == ({(row[0], "us-east4", row[1]): 2.0}, [])
    longer = f"{text.partition(' running')[0]} and more running in Iowa"
    rates, told = read(sku(longer, 2, ["us-east4"], usage, group=group))
    assert (rates, told) == ({}, [longer]), "a prefix is none"


@pytest.mark.parametrize(("text", "usage", "group"), KNOWN_TO_BE_NONE)
def test_what_is_bought_in_another_way_has_no_row_of_ours_though_it_says_on_demand(
    text: str, usage: str, group: str
) -> None:
    assert read(sku(text, 1.89, ["us-east5"], usage, group=group)) == ({}, [])


@pytest.mark.parametrize(("text", "usage", "group"), REPORTED)
def test_a_row_that_names_a_tpu_or_a_gpu_in_unknown_words_is_reported(text: str, usage: str, group: str) -> None:
    assert read(sku(text, 1.89, ["us-east5"], usage, group=group)) == ({}, [text])


def test_a_row_of_tpu7x_is_reported_with_the_reason_and_prices_nothing() -> None:
    forms = ["TPU7x running in Americas", f"TPU7x {SPOT_VMS} Americas"]
    for text, usage in zip(forms, ("OnDemand", "Preemptible"), strict=True):
        rates, told = read(sku(text, 12, ["us-central1"], usage))
        assert rates == {}
        why = "as Google's list has it by the hour, and not whether of a chip or of the four of a host"
        assert told == [f"{text}: {why}; KINETIC_PRICES=tpu7x=… names its price"]
    found = price(Purchase(parse("tpu7x-8")), "us-central1-c", {"tpu7x": 3.0})
    assert isinstance(found, Price) and found.usd_per_chip_hour == 3.0


@pytest.mark.parametrize(
    ("rows", "key"),
    [
        ([sku("TpuV6e running in Ohio", 2.7, ["us-east5"])], ("v6e", "us-east5", ON_DEMAND)),
        ([sku("TpuV6e running in Ohio", 2.8, ["us-east5"])], ("v6e", "us-east5", ON_DEMAND)),
        ([sku("DWS Defined Duration V6e running in Ohio", 1.35, ["us-east5"])], ("v6e", "us-east5", FLEX_START)),
        ([sku("Nvidia H100 80GB Mega GPU running in Iowa", 10.344276, ["us-central1"], group="GPU")],
         ("h100-mega", "us-central1", ON_DEMAND)),
    ],
)  # fmt: skip
def test_of_two_rows_of_one_thing_neither_is_taken_and_both_are_named(
    rows: list[Any], key: tuple[str, str, str]
) -> None:
    """One of both would be a guess, also where they say the same; all other prices are taken."""
    usual, found = rates_of(skus(), BUILT_IN), rates_of([*skus(), *rows], BUILT_IN)
    assert {tuple(rate[:3]) for rate in usual.rates} - {tuple(rate[:3]) for rate in found.rates} == {key}
    [told] = set(found.unknown) - set(usual.unknown)
    assert told.startswith(f"{' '.join(key)}: of ") and told.endswith("none is taken")
    assert all(row["skuId"] in told for row in rows) and told.count("SKU ") == 2


def test_regions_are_those_that_a_row_lists_and_never_those_of_its_words() -> None:
    several = sku("TpuV6e running in Americas", 2.7, ["us-east1", "us-central1"])
    rates, told = read(several)
    assert sorted(region for _, region, _ in rates) == ["us-central1", "us-east1"] and told == []
    everywhere = {**sku("TpuV6e running in Columbus", 2.7, ["global"]), "geoTaxonomy": {"type": "GLOBAL"}}
    assert read(everywhere) == ({}, ["TpuV6e running in Columbus: it is of no region, but of global"])
    assert read(sku("TpuV6e running in Columbus", 2.7, []))[0] == {}


def test_a_reservation_has_no_price_but_ones_own() -> None:
    """That of any other way would be a guess: its rate is in its contract."""
    listed = BUILT_IN.with_rates(rates_of(skus(), BUILT_IN).rates, "")
    of = Purchase(parse("v6e-8"), reserved=True)
    for own in ({}, {"v6e": 2.0, "v6e:spot": 1.0, "v6e:flex-start": 1.5}):
        found = price(of, "us-east5-a", own, listed)
        assert isinstance(found, Unknown)
        assert "v6e-8 in us-east5 from a reservation, which has no list price" in found.of
        assert found.fix.endswith("KINETIC_PRICES=v6e/us-east5:reservation=…") and "--refresh" not in found.fix
    named = price(of, "us-east5-a", {"v6e:reservation": 1.89}, listed)
    assert isinstance(named, Price) and named.usd_per_chip_hour == 1.89


def test_a_price_of_ones_own_is_for_the_way_that_it_names(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("KINETIC_PRICES", "v6e=2.5,v6e/us-east5:flex-start=1.3")
    own = settings.load().prices

    def usd(zone: str, **way: bool) -> float:
        found = price(Purchase(parse("v6e-8"), **way), zone, own)
        assert isinstance(found, Price)
        return found.usd_per_chip_hour

    assert (usd("us-east5-a"), usd("us-east5-a", flex_start=True)) == (2.5, 1.3)
    assert usd("europe-west4-a", flex_start=True) == 2.5
    assert usd("us-east5-a", spot=True) == 1.4033
    monkeypatch.setenv("KINETIC_PRICES", "v6e:sopt=1")
    with pytest.raises(UsageError, match="has 'v6e:sopt=1': behind ':' comes spot, flex-start, reservation"):
        settings.load()


# ---- an API key


def refreshed(capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    assert cli.main(["prices", "--refresh"]) == code
    out, err = capsys.readouterr()
    return out + err


def test_an_api_key_is_enough_and_is_never_shown(
    cloud: Emulator, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> Any:
        raise CredentialsError("Google Cloud does not know who you are.")

    monkeypatch.setattr(credentials, "anonymous", nobody)
    for name in ("KINETIC_STORE", "KINETIC_DEPLOYMENT"):  # a store would take a login, too
        monkeypatch.delenv(name)
    told = refreshed(capsys, cli.codes.ENVIRONMENT)
    assert "does not know who you are. Or set KINETIC_BILLING_KEY: an API key is enough to read prices." in told
    key = cloud.neighbours.keys.add("keys-project", BILLING)
    monkeypatch.setenv("KINETIC_BILLING_KEY", key)
    here = settings.load()
    assert billing_catalog.fetch(here, BUILT_IN).read == len(skus())
    assert key not in refreshed(capsys) and key not in repr(here)
    assert key not in (home / "prices.json").read_text()
    assert key not in f"{examine(os.environ)}"


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda cloud: "AIza-that-nobody-made", "API key not valid.*KINETIC_BILLING_KEY is no key that Google knows"),
        (lambda cloud: cloud.neighbours.keys.add("p", "maps.googleapis.com"),
         r"are blocked.*restricted to other APIs: add the Cloud Billing API to it at console\.cloud\.google\.com"),
        (lambda cloud: cloud.neighbours.keys.add("p", elsewhere=True), "may be used from other addresses or programs"),
    ],
)  # fmt: skip
def test_a_key_that_google_does_not_take_is_refused_with_what_to_change(
    cloud: Emulator, monkeypatch: pytest.MonkeyPatch, made: Any, words: str
) -> None:
    key = made(cloud)
    monkeypatch.setenv("KINETIC_BILLING_KEY", key)
    with pytest.raises(BackendError, match=rf"(?s)Billing Catalog gave none: .*{words}.*prices of .* stay") as raised:
        billing_catalog.fetch(settings.load(), BUILT_IN)
    assert key not in str(raised.value)


def test_the_api_is_enabled_in_the_project_of_the_key(cloud: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_BILLING_KEY", cloud.neighbours.keys.add("keys-project"))
    cloud.disable(BILLING)
    with pytest.raises(BackendError, match=rf"gcloud services enable {BILLING} --project keys-project"):
        billing_catalog.fetch(settings.load(), BUILT_IN)


@pytest.mark.parametrize("key", ["AIza secret", "AIzasecret\r\nX-Evil: 1", "AIzasecretü"])
def test_a_key_that_no_header_can_have_is_refused_unseen(monkeypatch: pytest.MonkeyPatch, home: Path, key: str) -> None:
    """The library that sends it would show it in its error."""
    monkeypatch.setenv("KINETIC_BILLING_KEY", key)
    with pytest.raises(UsageError, match=r"^KINETIC_BILLING_KEY has a character that no API key has") as raised:
        settings.load()
    assert "secret" not in str(raised.value)


def test_the_key_is_in_no_address(cloud: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    from kinetic_orchestration.platforms.google.rest import call_listeners

    key = cloud.neighbours.keys.add("p")
    monkeypatch.setenv("KINETIC_BILLING_KEY", key)
    calls: list[Any] = []
    with call_listeners.listening(calls.append):
        billing_catalog.fetch(settings.load(), BUILT_IN)
    assert calls and key not in json.dumps([call._asdict() for call in calls])
