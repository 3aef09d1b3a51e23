"""The provider information that Airflow reads while it starts: a plain dict, so nothing is imported here."""

from __future__ import annotations

from typing import Any

SECTION = "kinetic"
# A triggerer can write six times as many lines, and then does nothing else.
DEFAULTS = {"xcom_limit": "49152", "log_lines_per_second": "200", "defer_after": "3"}
_NAME = "Kinetic Orchestration"


def get_provider_info() -> dict[str, Any]:
    return {
        "package-name": "kinetic-orchestration",
        "name": _NAME,
        "description": "Python training steps on TPUs, without a server, a cluster or an image build.",
        "integrations": [{"integration-name": _NAME, "tags": ["software"]}],
        "hooks": _modules("hooks"),
        "operators": [
            each for name in ("kinetic", "inference", "reap", "release") for each in _modules("operators", name)
        ],
        "sensors": _modules("sensors"),
        "triggers": _modules("triggers"),
        "extra-links": [f"airflow_kinetic.links.kinetic.{name}" for name in _LINKS],
        "task-decorators": [{"name": "kinetic", "class-name": "airflow_kinetic.decorators.kinetic.kinetic_task"}],
        "config": {
            SECTION: {
                "description": "Kinetic jobs as Airflow tasks.",
                "options": {
                    "xcom_limit": _option(
                        "The most bytes of JSON that a job's value may have to go to XCom itself. A larger one, or one "
                        "that is no JSON, stays in the job's store, and XCom has its URI.",
                        "integer",
                        DEFAULTS["xcom_limit"],
                    ),
                    "log_lines_per_second": _option(
                        "How many lines of its jobs one triggerer writes to the logs of all its tasks together. What "
                        "is beyond is counted, and stays in the job's own log.",
                        "float",
                        DEFAULTS["log_lines_per_second"],
                    ),
                    "defer_after": _option(
                        "So many seconds a deferrable task waits on its worker for a job on this machine before it is "
                        "deferred: to defer one that ends in a moment takes longer than the job.",
                        "float",
                        DEFAULTS["defer_after"],
                        since="0.2.0",
                    ),
                },
            }
        },
    }


_LINKS = ("KineticJobLink", "KineticLogLink", "KineticConsoleLink", "KineticCurvesLink", "KineticProfileLink")


def _option(description: str, kind: str, default: str, since: str = "0.1.0") -> dict[str, Any]:
    return {"description": description, "version_added": since, "type": kind, "example": None, "default": default}


def _modules(kind: str, name: str = "kinetic") -> list[dict[str, Any]]:
    return [{"integration-name": _NAME, "python-modules": [f"airflow_kinetic.{kind}.{name}"]}]
