"""Zones are those of the bucket's location, and alone; others only when somebody names them, and told what that bills."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration import cli
from kinetic_orchestration.errors import BackendError, NoPlace
from kinetic_orchestration.jobs import launch, request
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.cloud import TpuVm
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.hardware import regions
from kinetic_orchestration.plan.hardware.accelerators import parse, zones
from kinetic_orchestration.plan.hardware.regions import Location
from kinetic_orchestration.platforms.google import preflight
from kinetic_orchestration.platforms.google.storage import location as bucket_location
from kinetic_orchestration.testing import Emulator

V6E = zones(parse("v6e-8"))


@pytest.mark.parametrize(
    ("fields", "accelerator", "wanted"),
    [
        ({"location": "US-EAST5"}, "v6e-8", ("us-east5-a", "us-east5-b")),
        ({"location": "EUROPE-WEST4"}, "v5e-8", ("europe-west4-b",)),
        ({"location": "US"}, "v6e-8", tuple(zone for zone in V6E if zone.startswith("us-"))),
        ({"location": "EU"}, "v6e-8", ("europe-west4-a",)),
        ({"location": "ASIA"}, "v6e-8", ("asia-northeast1-b",)),
        ({"location": "NAM4"}, "v6e-8", ("us-central1-b", "us-east1-d")),
        ({"location": "EUR4"}, "v5p-8", ("europe-west4-b",)),
        (
            {"location": "US", "customPlacementConfig": {"dataLocations": ["US-EAST5", "US-SOUTH1"]}},
            "v6e-8", ("us-east5-a", "us-east5-b", "us-south1-ai1b"),
        ),
    ],
)  # fmt: skip
def test_which_zones_are_near(fields: dict[str, Any], accelerator: str, wanted: tuple[str, ...]) -> None:
    bucket = regions.location("b", fields)
    assert bucket is not None
    assert regions.near(zones(parse(accelerator)), bucket, accelerator) == wanted


def test_the_eu_leaves_out_what_google_leaves_out() -> None:
    assert not any(Location("b", "EU").holds(zone) for zone in ("europe-west2-a", "europe-west6-b", "us-east1-a"))


def test_a_location_that_is_not_known_is_none() -> None:
    assert [regions.location("b", fields) for fields in ({"location": "MARS1"}, {}, {"location": "XYZ"})] == [None] * 3


@pytest.mark.parametrize(
    ("zones", "bucket", "told"),
    [
        (("us-east5-a",), Location("b", "US-EAST5", ("us-east5",)), "none: all zones are in the bucket's US-EAST5"),
        (("us-east5-a",), Location("b", "US"), "all zones are in the bucket's US, a multi-region: reading it is billed"),
        (
            ("us-east5-a", "us-west4-a"), Location("b", "US-EAST5", ("us-east5",)),
            "us-west4-a outside the bucket's US-EAST5: data is billed as inter-region egress",
        ),
    ],
)  # fmt: skip
def test_what_is_billed_is_told_without_a_price(zones: tuple[str, ...], bucket: Location, told: str) -> None:
    assert regions.egress(zones, bucket).startswith(told) and "$" not in told


# ---- over the wire -----------------------------------------------------------------------------------------


@pytest.fixture
def place(tpu_cloud: Emulator, home: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The environment of a job whose bucket lies somewhere; `home` has taken the cloud's own away."""

    def go(location: str = "US-CENTRAL1", bucket: str = "placed") -> Emulator:
        for name, value in tpu_cloud.environ(store=f"gs://{bucket}/k", location=location).items():
            monkeypatch.setenv(name, value)
        return tpu_cloud

    return go


def asks_of(cloud: Emulator) -> list[str]:
    """Requests for the metadata of a bucket, from here."""
    return [call.where for call in cloud.storage.calls if call.verb == "bucket" and not call.caller]


def asked(accelerator: str = "v6e-8", **options: Any) -> tuple[str, ...]:
    spec = JobSpec("train", Options(accelerator=accelerator, **options))
    return request.located(request.draft(spec)).plan.zones


def test_a_job_runs_in_its_buckets_region_alone(place: Any, tmp_path: Path) -> None:
    cloud = place("US-EAST5", "in-east5")
    (tmp_path / "program").mkdir()
    nothing: dict[str, Any] = {"cwd": tmp_path / "program", "accelerator": "v6e-1", "requirements": []}
    job = kinetic.command(["true"], **nothing)
    job.result()
    assert job._job.plan().zones == ("us-east5-a", "us-east5-b") and job.zones() == ["us-east5-a"]
    assert len(asks_of(cloud)) == 1, "asked once in a process"
    kinetic.command(["true"], **nothing).result()
    assert len(asks_of(cloud)) == 1


@pytest.mark.parametrize(
    ("location", "wanted"),
    [
        ("US", tuple(z for z in V6E if z.startswith("us-"))),
        ("EU", ("europe-west4-a",)),
        ("US-CENTRAL1", ("us-central1-b",)),
    ],
)
def test_the_buckets_own_word_decides(place: Any, location: str, wanted: tuple[str, ...]) -> None:
    place(location, f"b-{location.lower()}")
    assert asked() == wanted


def test_a_dual_region_of_its_owners_making(place: Any) -> None:
    place().storage.make_bucket("a-pair", location="US", regions=["us-east5", "us-south1"])
    place(bucket="a-pair")
    assert asked() == ("us-east5-a", "us-east5-b", "us-south1-ai1b")


def test_named_zones_are_taken_as_they_are_and_nobody_is_asked(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = place("US-EAST5", "named")
    assert asked(cloud=TpuVm(zones=["europe-west4-a"])) == ("europe-west4-a",)
    monkeypatch.setenv("KINETIC_ZONES", "us-central1-b,us-east5-a")
    assert asked() == ("us-central1-b", "us-east5-a")
    assert asks_of(cloud) == []


def test_a_location_without_such_hardware_is_refused_with_both_ways_out(place: Any) -> None:
    place("US-WEST2", "far-away")
    told = r"v5p-8 is not known to be in US-WEST2, where the bucket far-away lies.*bucket in us-central1, us-east5, europe-"
    with pytest.raises(NoPlace, match=told) as refused:
        asked("v5p-8")
    assert "KINETIC_ZONES=us-central1-a,us-east5-a,europe-west4-b" in str(refused.value)


def test_a_location_that_cannot_be_read_is_said_and_no_zone_is_chosen(place: Any) -> None:
    cloud = place("US-EAST5", "closed")
    cloud.storage.forbid("bucket closed*")
    with pytest.raises(BackendError, match=r"bucket closed lies is not known.*KINETIC_ZONES=.*legacyBucketReader"):
        asked()
    assert cloud.count("CreateQueuedResource") == 0
    assert asked(cloud=TpuVm(zones=["us-east5-a"])) == ("us-east5-a",)
    cloud.storage.heal()
    assert asked() == ("us-east5-a", "us-east5-b"), "a failure is asked again"


def test_plan_and_doctor_tell_the_egress(
    place: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    place("US-EAST5", "told")
    (tmp_path / "train.py").write_text(
        "import kinetic_orchestration as kinetic\n\n@kinetic.run(accelerator='v6e-1')\ndef train():\n    pass\n"
    )

    def egress() -> tuple[str, preflight.Finding]:
        assert cli.main(["plan", str(tmp_path / "train.py"), "--json"]) == 0
        here = settings.load()
        [found] = [finding for finding in preflight.examine(here) if finding.name == "egress"]
        return json.loads(capsys.readouterr().out)["egress"], found

    told, found = egress()
    assert told == "none: all zones are in the bucket's US-EAST5" and found.state == preflight.OK
    monkeypatch.setenv("KINETIC_ZONES", "us-east5-a,us-central1-b")
    told, found = egress()
    assert told == found.found == "us-central1-b outside the bucket's US-EAST5: data is billed as inter-region egress"
    assert found.state == preflight.WARNING and "zones of the bucket's location alone" in found.fix


def test_places_of_a_cluster_are_no_zones_and_nobody_is_asked_where_the_bucket_lies(
    place: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cloud = place("US-EAST5", "of-pods")
    monkeypatch.setenv("KINETIC_BACKEND", "gke")
    monkeypatch.setenv("KINETIC_CLUSTER", "prod")
    monkeypatch.setenv("KINETIC_SIGNING_KEY", "0123456789abcdef")
    (tmp_path / "train.py").write_text(
        "import kinetic_orchestration as kinetic\n\n@kinetic.run(accelerator='v6e-1')\ndef train():\n    pass\n"
    )
    assert cli.main(["plan", str(tmp_path / "train.py"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["egress"], told["plan"]["zones"]) == (None, ["prod/default"])
    assert asks_of(cloud) == []


def test_what_a_job_that_is_there_already_says_is_no_other_zone(place: Any, tmp_path: Path) -> None:
    place("US-EAST5", "again")
    (tmp_path / "program").mkdir()
    options = Options(accelerator="v6e-1", key="k", requirements=[])
    spec = JobSpec("true", options, argv=("true",), cwd=str(tmp_path / "program"))
    asked = request.draft(spec).open()
    first = launch.launch(asked)
    kinetic.attach(first.job_id).result()
    assert not request.differences(asked, launch.launch(asked))


def test_the_location_is_cached_for_each_bucket(place: Any) -> None:
    place("US-EAST5", "one")
    first = bucket_location.location_of(settings.load())
    place("EU", "two")
    assert (first.name, bucket_location.location_of(settings.load()).name) == ("US-EAST5", "EU")
