"""A step's job is refused if it could only be emulated though Google Cloud is meant; else it is said where it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_kinetic import HostContext, KineticResource, kinetic_asset
from kinetic_orchestration.errors import NotEmulated

from .stored import made_of

MISSING = r"KINETIC_STORE=gs://my-bucket/kinetic \(or store=\)"


@kinetic_asset(accelerator="v5e-1")
def ranker(host: HostContext) -> int:
    return host.host_count


@kinetic_asset(accelerator="v5e-1", spot=True)
def cheap(host: HostContext) -> int:
    return host.host_count


@pytest.mark.parametrize(
    ("asset", "given", "named"),
    [
        (ranker, {"project": "p"}, "project='p'"),
        (ranker, {"zones": ["us-west4-a"]}, "zones="),
        (ranker, {"cloud": {"service_account": "vm@p"}}, "service_account='vm@p'"),
        (ranker, {"spot": True}, "spot=True"),
        (cheap, {}, "spot=True"),
    ],
)
def test_a_step_that_means_the_cloud_is_not_trained_on_its_worker(
    asset: dg.AssetsDefinition, given: dict[str, Any], named: str, home: Path
) -> None:
    with pytest.raises(NotEmulated, match=MISSING) as refused:
        dg.materialize([asset], resources={"kinetic": KineticResource(**given)})
    assert named in str(refused.value)
    assert not (home / "store").exists()


def test_many_jobs_of_one_step_are_refused_as_one(home: Path) -> None:
    @dg.asset
    def sweep(kinetic: KineticResource) -> int:
        return len(kinetic.map(len, ["a", "bc"], accelerator="v5e-1", input_mode="single"))

    with pytest.raises(NotEmulated, match=MISSING):
        dg.materialize([sweep], resources={"kinetic": KineticResource(project="p")})


@pytest.mark.filterwarnings("ignore:.*no meaning")
def test_an_emulated_step_says_so_in_its_metadata_and_its_log(home: Path, new_instance: Any) -> None:
    resource = KineticResource(project="p", backend="local")
    with new_instance() as instance:
        result = dg.materialize([ranker], instance=instance, resources={"kinetic": resource})
        said = [entry.user_message for entry in instance.all_logs(result.run_id)]
    made = made_of(result, "ranker")
    assert made["kinetic/where"] == "emulated on this machine's CPU" and made["kinetic/emulated"] is True
    assert made["kinetic/cost_prices"].startswith("list price of 20")
    [first] = [text for text in said if " runs ranker on " in text]
    assert first.endswith("emulated on this machine's CPU") and "Cloud TPU" not in first


@pytest.mark.filterwarnings("ignore:.*no meaning")
def test_required_hardware_refuses_a_step(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_REQUIRE_HARDWARE", "true")
    with pytest.raises(NotEmulated, match="hardware is required"):
        dg.materialize([ranker], resources={"kinetic": KineticResource(backend="local")})
