"""The activity of a job's devices as Dagster shows it."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import dagster as dg
import pytest

from dagster_kinetic import HostContext, KineticResource, kinetic_asset

pytestmark = pytest.mark.usefixtures("shared_home")
END = ""
SVG = "{http://www.w3.org/2000/svg}"


@kinetic_asset(accelerator="v5p-8", distributed=False)
def steady(host: HostContext):
    step = 0
    while not Path(END).exists():
        step += 1
        host.log_metrics(step=step, loss=1 / step)
        time.sleep(0.1)
    return step


def observed(instance: dg.DagsterInstance) -> list[Mapping[str, dg.MetadataValue]]:
    return [
        entry.dagster_event.asset_observation_data.asset_observation.metadata
        for run in instance.get_runs()
        for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_OBSERVATION)
    ]


@pytest.mark.slow
@pytest.mark.turn(5)
def test_the_devices_are_observed_with_the_metrics_and_drawn_beside_them(instance, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "END", str(tmp_path / "end"))

    def end_when_seen() -> None:
        give_up = time.monotonic() + 60
        while not any("~device/cpu_cores" in each for each in observed(instance)) and time.monotonic() < give_up:
            time.sleep(0.2)
        (tmp_path / "end").touch()

    watch = threading.Thread(target=end_when_seen)
    watch.start()
    result = dg.materialize([steady], instance=instance, resources={"kinetic": KineticResource()})
    watch.join()
    seen = observed(instance)
    measured = [each for each in seen if "~device/cpu_cores" in each]
    assert measured
    assert all(0 <= each["~device/cpu_cores"].value < 2 for each in measured)
    assert all(0.01 < each["~device/memory_gib"].value < 1 for each in measured)
    assert "loss" in measured[-1]
    first = next(number for number, each in enumerate(seen) if "loss" in each)  # a slow host is measured before
    assert all("loss" in each for each in seen[first:]), "they come with the metrics, and add no rows"
    [made] = result.asset_materializations_for_node("steady")
    assert not [name for name in made.metadata if "device" in name or "cpu" in name], "they are no metrics"
    picture = made.metadata["kinetic/curves"].value.partition("base64,")[2].rstrip(")")
    said = [element.text for element in ElementTree.fromstring(base64.b64decode(picture)).iter(f"{SVG}text")]
    assert [panel for panel in said if panel in ("loss", "CPU, cores", "memory, GiB")] == [
        "loss",
        "CPU, cores",
        "memory, GiB",
    ]
    assert "curves_url" not in str(made.metadata), "a job on this machine has no pages"
