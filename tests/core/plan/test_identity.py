"""The pipeline that a job is of."""

from __future__ import annotations

import pytest

from kinetic_orchestration.plan.identity import pipeline_of


@pytest.mark.parametrize(
    ("origin", "pipeline"),
    [
        ({}, "train"),
        ({"orchestrator": "airflow", "dag": "nightly", "task": "train", "run": "r"}, "nightly"),
        ({"orchestrator": "dagster", "asset": "model", "run": "r"}, "model"),
        ({"orchestrator": "dagster", "asset": "model, report and 3 more", "run": "r"}, "model"),
        ({"orchestrator": "dagster", "op": "fit", "run": "r"}, "fit"),
    ],
)
def test_a_pipeline_has_the_name_that_people_know(origin: dict[str, str], pipeline: str) -> None:
    assert pipeline_of(origin, "train") == pipeline
