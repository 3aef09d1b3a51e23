"""The parameters of the operator as keywords of its decorator.

Written by `python -m tests.project.names.keywords` from `operators/kinetic.py`; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kinetic_orchestration.api.keywords import OfTask
from kinetic_orchestration.plan.declare.choices import Choice
from kinetic_orchestration.program.trainers.parsers import Parser


class KineticOptions(OfTask, total=False):
    """Keywords of `KineticTPUOperator` other than its function."""

    metrics: str | Parser | type | None
    metrics_file: str | None
    accelerator: str | Choice | Sequence[str | Choice]
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
    zones: str | Sequence[str]
    by: str | None
    race: int | str | None
    priority: int | str | None
    reshard: bool | str | None
    global_batch: int | str | None
    partition_key: str | None
