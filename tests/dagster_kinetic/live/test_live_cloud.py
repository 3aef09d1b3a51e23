"""Jobs on slices and VMs of a cloud, as Dagster's UI has them: while they queue, while they train, and what they cost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.model.compute.resources import Instance
from tests.dagster_kinetic.live.browser import chromium, page_of, picture
from tests.dagster_kinetic.live.dagster_server import DagsterDev
from tests.dagster_kinetic.live.dagster_server import dagster_dev as started
from tests.support.on_compute import free_rest

DEFINITIONS = Path(__file__).parent / "cloud_definitions.py"
FULL, FREE = "us-west4-a", "us-central1-a"
WITHIN = 300.0  # for whatever has to come: the machine may be busy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def cloud() -> Iterator[Emulator]:
    with Emulator(provision_seconds=3.0) as cloud:
        yield cloud
        free_rest(cloud, cloud.environ(backend="compute"))
        cloud.ledger.assert_nothing_left()


@pytest.fixture(scope="module")
def dagster_dev(cloud: Emulator, shared_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterDev]:
    environment = {**cloud.environ(), "KINETIC_ZONE_PATIENCE": "2s", "KINETIC_PRICES": "l4=0.8,l4:spot=0.3"}
    del environment["KINETIC_BACKEND"]  # which follows from the hardware
    with started(tmp_path_factory.mktemp("dagster"), DEFINITIONS, environment=environment) as server:
        yield server


@pytest.mark.turn(5)
def test_a_training_on_a_cloud_is_seen_from_its_queue_over_a_preemption_to_its_bill(
    dagster_dev: DagsterDev, cloud: Emulator, pictures: Path
) -> None:
    cloud.stockout(FULL)
    run = dagster_dev.launch(assets=["ranker"])

    def joined() -> bool:
        said = dagster_dev.captured(run, "ranker")[0]
        return all(f"[host {host}] host {host} of 4 joined" in said for host in range(4))

    dagster_dev.until(joined, WITHIN)
    assert dagster_dev.status(run) == "STARTED"  # its lines came by the bucket while it ran
    dagster_dev.wait_for_message(run, "running: 4 hosts", WITHIN)
    [node] = cloud.nodes()
    assert (node["labels"]["owner"], node["labels"]["asset"], node["labels"]["run"]) == ("ranking", "ranker", run)
    cloud.preempt(node["name"], notice=30.0)
    dagster_dev.wait(run, "SUCCESS", within=WITHIN)
    cloud.wait_until_empty(WITHIN)

    said = dagster_dev.messages(run)
    story = (  # what is provisioned for a moment may not be seen so
        f"queued: stockout: {FULL}",
        "running: 4 hosts",
        "preempted: attempt 1 ended (preemption on host",
        "resumed: 4 hosts",
        "succeeded; tearing down: 4 hosts of v5e-16",
        "cost: $",
    )
    places = [[line.startswith(begin) for line in said].index(True) for begin in story]
    assert places == sorted(places), "\n".join(said)
    for host in range(4):
        assert dagster_dev.captured(run, f"ranker [host {host}]")[0].count(f"host {host} of 4 joined\n") == 2

    found = dagster_dev.asset("ranker")
    assert {"loss", "step"} <= {entry["label"] for entry in found["assetObservations"][0]["metadataEntries"]}
    [made] = found["assetMaterializations"]
    values = {entry["label"].removeprefix("~").removeprefix("kinetic/"): entry for entry in made["metadataEntries"]}
    assert (values["zone"]["text"], values["attempts"]["intValue"]) == (FREE, 2)
    assert values["cost_usd_estimate"]["floatValue"] == 0 and values["chip_hours"]["floatValue"] > 0
    on_a_real_one = r"on Cloud TPU v5litepod-16 in us-central1 about \$\d+\.\d\d"
    assert re.search(on_a_real_one, values["cost"]["text"])
    assert values["queued_seconds"]["floatValue"] >= 3.0
    links = {name: values[f"{name}_url"] for name in ("tpus", "records", "output")}
    assert {link["__typename"] for link in links.values()} == {"UrlMetadataEntry"}
    assert links["tpus"]["url"] == "https://console.cloud.google.com/compute/tpus?project=emulated"
    assert values["job_id"]["text"] in links["records"]["url"]
    if chromium():
        with page_of(f"{dagster_dev.url}/runs/{run}") as page:
            for shown in ("preempted: attempt 1 ended", "resumed: 4 hosts"):
                page.get_by_placeholder("Filter…").fill(shown)  # only rows that are in view are in the page
                page.get_by_text(shown).first.wait_for()
                picture(page, pictures, f"run-that-was-{shown.partition(':')[0]}")
        with page_of(f"{dagster_dev.url}/assets/ranker?view=events") as page:
            page.get_by_text("kinetic/tpus_url").first.wait_for()
            page.get_by_role("link", name=links["tpus"]["url"]).first.wait_for()
            picture(page, pictures, "asset-on-a-cloud")


@pytest.mark.turn(1)
def test_assets_on_a_gpu_and_on_a_slice_of_vms_survive_preemptions_and_end_with_their_runs(
    dagster_dev: DagsterDev, cloud: Emulator
) -> None:
    """What comes after has their values. Another run of the first, at the same time, is terminated."""
    run, other = dagster_dev.launch(assets=["on_a_gpu", "on_vms", "report"]), dagster_dev.launch(assets=["on_a_gpu"])
    hosts = {"on_a_gpu": 1, "on_vms": 4}
    for name, count in hosts.items():
        first = begun(dagster_dev, cloud, run, name, count)
        for vm in first:
            assert (vm.labels["asset"], vm.labels["run"]) == (name, run)
            assert vm.scheduling["provisioningModel"] == "SPOT"
        cloud.compute.preempt(first[-1].name, notice=2.0)
    begun(dagster_dev, cloud, other, "on_a_gpu", 1)
    dagster_dev.terminate(other)
    dagster_dev.wait(other, "CANCELED", within=WITHIN)
    dagster_dev.wait(run, "SUCCESS", within=WITHIN)
    cloud.wait_until(lambda: not vms_of(cloud, run) + vms_of(cloud, other), WITHIN, "the end of all VMs")

    said = dagster_dev.messages(run)
    for name, count in hosts.items():
        for host in range(count):
            log = f"{name} [host {host}]" if count > 1 else name
            joined = f"host {host} of {count} joined\n"
            assert dagster_dev.captured(run, log)[0].count(joined) == 2, f"{log} of the UI"
        of_hosts = "1 host" if count == 1 else f"{count} hosts"
        for change in ("running", "resumed"):
            assert any(line.startswith(f"{change}: {of_hosts}") for line in said), "\n".join(said)
        [made] = dagster_dev.asset(name)["assetMaterializations"]
        values = {entry["label"].removeprefix("~").removeprefix("kinetic/"): entry for entry in made["metadataEntries"]}
        assert values["attempts"]["intValue"] == 2
        assert values["vms_url"]["url"] == "https://console.cloud.google.com/compute/instances?project=emulated"
        assert values["chip_hours"]["floatValue"] > 0
    assert sum(line.startswith("preempted: attempt 1 ended (preemption on host") for line in said) == 2
    [made] = dagster_dev.asset("report")["assetMaterializations"]
    assert {entry["label"]: entry.get("intValue") for entry in made["metadataEntries"]}["hosts"] == sum(hosts.values())


def vms_of(cloud: Emulator, run: str, asset: str = "") -> list[Instance]:
    """The VMs of a run, or of one of its assets."""
    found = [vm for vm in cloud.compute.instances.values() if vm.labels.get("run") == run]
    return sorted((vm for vm in found if asset in ("", vm.labels.get("asset"))), key=lambda vm: vm.name)


def begun(dagster_dev: DagsterDev, cloud: Emulator, run: str, asset: str, hosts: int) -> list[Instance]:
    """Wait until each host of an asset's job has said that it joined, while the run goes on; the VMs."""

    def joined() -> bool:
        said = dagster_dev.captured(run, asset)[0]
        return all(f"host {host} of {hosts} joined" in said for host in range(hosts))

    dagster_dev.until(joined, WITHIN, lambda: "\n".join(dagster_dev.messages(run)))
    assert dagster_dev.status(run) == "STARTED"
    found = vms_of(cloud, run, asset)
    assert len(found) == hosts
    return found
