"""What Airflow asks of a provider: a plain dict. Airflow reads it while it starts, so nothing is imported here."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    return {
        "package-name": "kinetic-orchestration",
        "name": "Kinetic Orchestration",
        "description": "Python functions as training steps on TPUs, and on this machine.",
        "integrations": [
            {
                "integration-name": "Kinetic Orchestration",
                "external-doc-url": "https://github.com/",
                "tags": ["software"],
            }
        ],
        "operators": [
            {
                "integration-name": "Kinetic Orchestration",
                "python-modules": ["airflow_kinetic.operators.kinetic"],
            }
        ],
        "triggers": [
            {
                "integration-name": "Kinetic Orchestration",
                "python-modules": ["airflow_kinetic.triggers.kinetic"],
            }
        ],
        "task-decorators": [
            {"name": "kinetic", "class-name": "airflow_kinetic.decorators.kinetic.kinetic_task"},
        ],
    }
