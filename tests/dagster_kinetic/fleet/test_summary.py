"""The summary of many jobs that one step ran."""

import math

import dagster as dg
import pytest

from dagster_kinetic import KineticResource
from dagster_kinetic.fleet.summary import FleetSummary
from kinetic_orchestration import current
from kinetic_orchestration.plan.values import Metrics
from tests.dagster_kinetic.stored import plotted

pytestmark = pytest.mark.usefixtures("shared_home")


def trial(rate):
    host = current()
    for step in range(3):
        host.log_metrics(step=step, loss=rate / (step + 1))
    if rate == 2:
        raise ValueError("a rate | of <2>")
    return rate


@dg.asset
def sweep(context: dg.AssetExecutionContext, kinetic: KineticResource):
    results = kinetic.map(trial, [{"rate": rate} for rate in (1, 2, 3)], accelerator="cpu", context=context)
    return [result.ok for result in results]


@pytest.mark.slow
@pytest.mark.turn(0)
def test_a_step_of_many_jobs_has_one_table_one_picture_and_their_cost_together(instance):
    result = dg.materialize([sweep], instance=instance, resources={"kinetic": KineticResource()})
    assert result.output_for_node("sweep") == [True, False, True]
    [made] = result.asset_materializations_for_node("sweep")
    values = {name: entry.value for name, entry in made.metadata.items()}
    assert (values["~kinetic/jobs"], values["~kinetic/jobs_failed"], values["kinetic/accelerator"]) == (3, 1, "cpu")
    assert values["~kinetic/cost_usd_estimate"] == 0 and values["~kinetic/held_seconds"] > 0
    rows = values["kinetic/table"].splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| 1", "| 0", "| 2"]  # the failed one first
    assert r"ValueError: a rate \| of &lt;2>" in rows[0] and "loss 0.6667" in rows[0]
    assert "succeeded" in rows[1] and "loss 0.3333" in rows[1]
    assert values["kinetic/curves"].startswith("![metrics](data:image/svg+xml;base64,")
    seen = [
        entry.dagster_event.asset_observation_data.asset_observation.metadata
        for entry in instance.all_logs(result.run_id)
        if entry.is_dagster_event and entry.dagster_event.is_asset_observation
    ]
    assert {"~jobs", "~kinetic/cost_usd_estimate"} < set(plotted(result))
    assert all(name.startswith("~") for name in plotted(result)), "none of these is a metric of the user's"
    last = {name: entry.value for name, entry in seen[-1].items()}
    assert last == {"~jobs": 3, "~jobs ended": 3, "~jobs failed": 1}


def test_thousands_of_jobs_are_told_in_few_words():
    summary = FleetSummary(None, "trial", "", 5000)
    for index in range(5000):
        for step in range(100):
            if index % 50 == 0:
                summary.reported(index, Metrics(0, 0.0, step, {"loss": math.sin(step)}, 1))
        summary.ended(index, None, OSError("no") if index == 4999 else None)
    values = summary.metadata()
    assert values["kinetic/table"].value.splitlines()[2].startswith("| 4999 | - | OSError: no")
    assert "and 4900 more" in values["kinetic/table"].value
    assert sum(len(value.value) for value in values.values() if isinstance(value, dg.MarkdownMetadataValue)) < 70_000
