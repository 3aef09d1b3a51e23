"""The identity of a job. An identity is reused after a crash; a generation is one run of it after a failure."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """Deterministic inside an orchestrator; outside, random unless the user gives a key."""

    deployment: str
    orchestrator: str = ""
    run: str = ""
    step: str = ""
    index: str = ""
    epoch: int = 0

    def labels(self) -> dict[str, str]:
        """The labels that identify the origin of the job's resources, to group bills by; none for a call by itself."""
        if self.orchestrator in ("key", "random"):
            return {}
        pipeline, _, step = self.step.rpartition("/")
        return {"pipeline": pipeline or self.orchestrator, "step": step or self.index, "run": self.run}

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(astuple(self), ensure_ascii=False).encode()).hexdigest()[:32]


def pipeline_of(origin: Mapping[str, str], name: str) -> str:
    """Return the pipeline of a job, for budgets, shares and forecasts.

    Args:
        origin: What launched it; {} for a call by itself.
        name: That of its function or command.

    Returns:
        Airflow's DAG, Dagster's asset (of a step that makes several, the first) or op, and elsewhere the job's name.
    """
    return origin.get("dag") or origin.get("asset", "").partition(",")[0] or origin.get("op") or name


def of(deployment: str, key: str | None) -> Identity:
    """The identity of a job that no orchestrator names."""
    return Identity(deployment, "key", key) if key else Identity(deployment, "random", secrets.token_hex(16))


def job_id(identity: Identity, generation: int) -> str:
    return job_of(identity.key, generation)


def job_of(key: str, generation: int) -> str:
    return "job-" + hashlib.sha256(f"{key}/{generation}".encode()).hexdigest()[:12]
