"""What Airflow asks of a provider: a plain dict. Airflow reads it while it starts, so nothing is imported here."""

from __future__ import annotations

from typing import Any

_NAME = "Kinetic Orchestration"


def get_provider_info() -> dict[str, Any]:
    return {
        "package-name": "kinetic-orchestration",
        "name": _NAME,
        "description": "Python training steps on TPUs, without a server, a cluster or an image build.",
        "integrations": [{"integration-name": _NAME, "tags": ["software"]}],
        "operators": [{"integration-name": _NAME, "python-modules": ["airflow_kinetic.operators.kinetic"]}],
        "triggers": [{"integration-name": _NAME, "python-modules": ["airflow_kinetic.triggers.kinetic"]}],
        "task-decorators": [{"name": "kinetic", "class-name": "airflow_kinetic.decorators.kinetic.kinetic_task"}],
    }
