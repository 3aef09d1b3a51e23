"""The parameters of the operator as keywords of its decorator.

Written by `python -m tests.project.names.keywords` from `operators/kinetic.py`; a test compares them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TypedDict

from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.plan.declare.limits import Limits, Retry
from kinetic_orchestration.plan.declare.profile import Profile
from kinetic_orchestration.plan.declare.spec import TpuVm


class KineticOptions(TypedDict, total=False):
    """Keywords of `KineticTPUOperator` other than its function."""

    accelerator: str
    name: str | None
    env: Mapping[str, str] | None
    gcp_conn_id: str | None
    impersonation_chain: str | Sequence[str] | None
    project_id: str | None
    deferrable: bool
    durable: bool
    cancel_on_kill: bool
    poll_interval: float
    get_logs: bool
    on_clear: str
    wait: bool
    zone: str | None
    zones: str | Sequence[str]
    spot: bool
    backend: str | None
    store: str | None
    deployment: str | None
    cloud: TpuVm | None
    container_image: str | None
    limits: Limits
    retry: Retry
    requirements: str | os.PathLike[str] | Sequence[str] | None
    python: str | None
    first_party: Sequence[str]
    capture_env_vars: Sequence[str] | None
    secrets: Mapping[str, str] | None
    volumes: Mapping[str, Data] | None
    output_dir: str | None
    distributed: bool | None
    keras_backend: str | None
    processes: int | str | None
    profile: Profile | int | str | None
    partition_key: str | None
    labels: Mapping[str, str] | None
    on_conflict: str
