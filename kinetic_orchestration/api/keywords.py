"""The options of `run` as keywords, for type checkers alone.

Written by `python -m tests.project.names.keywords` from `plan/declare/spec.py`; a test compares them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TypedDict

from kinetic_orchestration.plan.declare.choices import Choice
from kinetic_orchestration.plan.declare.cloud import CloudOptions
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.plan.declare.limits import Limits, Retry
from kinetic_orchestration.plan.declare.profile import Profile


class OfTask(TypedDict, total=False):
    """The options of a job that Airflow's operator takes as well."""

    container_image: str | None
    zone: str | None
    capture_env_vars: Sequence[str] | None
    cluster: str | None
    backend: str | None
    namespace: str | None
    volumes: Mapping[str, Data] | None
    spot: bool
    output_dir: str | None
    cloud: CloudOptions | None
    limits: Limits
    retry: Retry
    requirements: str | os.PathLike[str] | Sequence[str] | None
    python: str | None
    first_party: Sequence[str]
    secrets: Mapping[str, str] | None
    on_conflict: str
    store: str | None
    deployment: str | None
    distributed: bool | None
    keras_backend: str | None
    processes: int | str | None
    profile: Profile | int | str | None
    labels: Mapping[str, str] | None
    regions: str | Sequence[str] | None
    capacity: str | Sequence[str] | None
    keep: float | str | None


class OfJob(OfTask, total=False):
    """The options of a job."""

    base_image_repo: str | None
    project: str | None
    debug: bool
    by: str
    reshard: bool
    global_batch: int
    race: int
    priority: int | None


class OfCommand(OfJob, total=False):
    """The options of `command`."""

    accelerator: str | Choice | Sequence[str | Choice]
    key: str | None
    partition_key: str | None
