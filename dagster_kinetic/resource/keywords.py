"""The keywords of the decorators, for editors and type checkers alone: nothing imports this while it runs.

Written by `python -m tests.dagster_kinetic.resource.keywords`; a test compares it with the Dagster that is installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import dagster as dg

from kinetic_orchestration.api.keywords import OfBatch, OfJob, OfJudging


class OfCall(OfJob, total=False):
    """The options of a job that is no asset of its own."""

    partition_key: str | None


class OfAsset(OfJob, total=False):
    """The keywords of `dagster.asset`, and the options of its job."""

    name: str | None
    key_prefix: str | Sequence[str] | None
    ins: Mapping[str, dg.AssetIn] | None
    deps: Iterable[dg.AssetKey | str | Sequence[str] | dg.AssetSpec | dg.AssetsDefinition | dg.AssetDep] | None
    metadata: Mapping[str, Any] | None
    tags: Mapping[str, str] | None
    description: str | None
    config_schema: Any | None
    resource_defs: Mapping[str, object] | None
    hooks: AbstractSet[dg.HookDefinition] | None
    io_manager_def: object | None
    io_manager_key: str | None
    dagster_type: dg.DagsterType | None
    partitions_def: dg.PartitionsDefinition[str] | None
    op_tags: Mapping[str, Any] | None
    group_name: str | None
    output_required: bool
    automation_condition: dg.AutomationCondition[dg.AssetKey] | dg.AutomationCondition[dg.AssetOrCheckKey] | None
    freshness_policy: dg.FreshnessPolicy | None
    backfill_policy: dg.BackfillPolicy | None
    retry_policy: dg.RetryPolicy | None
    code_version: str | None
    key: dg.AssetKey | str | Sequence[str] | None
    check_specs: Sequence[dg.AssetCheckSpec] | None
    owners: Sequence[str] | None
    kinds: AbstractSet[str] | None
    pool: str | None
    is_virtual: bool
    auto_materialize_policy: Any
    compute_kind: Any
    legacy_freshness_policy: Any
    non_argument_deps: Any


class OfMultiAsset(OfJob, total=False):
    """The keywords of `dagster.multi_asset`, and the options of its job."""

    outs: Mapping[str, dg.AssetOut] | None
    name: str | None
    ins: Mapping[str, dg.AssetIn] | None
    deps: Iterable[dg.AssetKey | str | Sequence[str] | dg.AssetSpec | dg.AssetsDefinition | dg.AssetDep] | None
    description: str | None
    config_schema: Any | None
    internal_asset_deps: Mapping[str, set[dg.AssetKey]] | None
    partitions_def: dg.PartitionsDefinition[str] | None
    hooks: AbstractSet[dg.HookDefinition] | None
    backfill_policy: dg.BackfillPolicy | None
    op_tags: Mapping[str, Any] | None
    can_subset: bool
    resource_defs: Mapping[str, object] | None
    group_name: str | None
    retry_policy: dg.RetryPolicy | None
    code_version: str | None
    specs: Sequence[dg.AssetSpec] | None
    check_specs: Sequence[dg.AssetCheckSpec] | None
    pool: str | None
    allow_arbitrary_check_specs: Any
    compute_kind: Any
    non_argument_deps: Any


class OfOp(OfJob, total=False):
    """The keywords of `dagster.op`, and the options of its job."""

    name: str | None
    description: str | None
    ins: Mapping[str, dg.In] | None
    out: dg.Out | Mapping[str, dg.Out] | None
    config_schema: Any | None
    tags: Mapping[str, Any] | None
    version: str | None
    retry_policy: dg.RetryPolicy | None
    code_version: str | None
    pool: str | None


class OfBatchCall(OfBatch, OfCall, total=False):
    """The same, and the keywords of the step."""


class OfJudgingCall(OfJudging, OfCall, total=False):
    """The same, and the keywords of the step."""
