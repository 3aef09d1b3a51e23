"""The options of `run`, and the keywords of steps, for type checkers alone.

Written by `python -m tests.project.names.keywords` from `plan/declare/spec.py` and
`api/steps/asked.py`; a test compares them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

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


class OfServed(TypedDict, total=False):
    """The keywords of a step that asks a server."""

    engine: Any
    engine_options: Mapping[str, Any] | None
    output: str | os.PathLike[str] | None
    patience: float | None


class OfBatch(OfServed, total=False):
    """The keywords of `serve_batch` alone."""

    parameters: Mapping[str, Any] | None
    concurrency: int
    on_bad_row: str
    retry_failed: bool


class OfServeBatch(OfBatch, OfCommand, total=False):
    """The keywords of `serve_batch`."""


class OfJudging(OfServed, total=False):
    """The keywords of `evaluate` alone."""

    folder: str | os.PathLike[str] | Data | None
    at_least: Mapping[str, Mapping[str, float]] | None
    at_most: Mapping[str, Mapping[str, float]] | None
    chat: bool
    limit: float | None
    few_shot: int | None
    concurrency: int
    harness_options: Mapping[str, Any] | None


class OfEvaluate(OfJudging, OfCommand, total=False):
    """The keywords of `evaluate`."""
