"""More definitions as users write them, without annotations as text; hosts unpickle what they send."""

import enum
import warnings
from collections.abc import Iterator
from typing import Any, ClassVar

import dagster as dg
import pydantic

from dagster_kinetic import HostContext, kinetic_asset, kinetic_multi_asset, kinetic_op

DAYS = dg.DailyPartitionsDefinition(start_date="2024-01-01", end_date="2024-01-06")


@dg.asset
def base() -> int:
    return 10


@dg.asset
def second() -> int:
    return 20


@kinetic_multi_asset(
    accelerator="cpu",
    outs={
        "weights": dg.AssetOut(metadata={"kind": "array"}, io_manager_key="kept"),
        "score": dg.AssetOut(code_version="2"),
    },
    group_name="models",
    check_specs=[dg.AssetCheckSpec("positive", asset="score")],
)
def trained(host: HostContext, base: int):
    print("training on", host.host_count)
    return [base, base + 1], dg.MaterializeResult(
        asset_key="score",
        value=0.5,
        metadata={"loss": 0.25},
        check_results=[dg.AssetCheckResult(check_name="positive", passed=True, asset_key="score")],
    )


@kinetic_multi_asset(
    accelerator="cpu",
    specs=[dg.AssetSpec(name, skippable=True, deps=["base"]) for name in ("east", "west", "north")],
    can_subset=True,
)
def regions(host, selected):
    return [dg.MaterializeResult(asset_key=name, metadata={"of": len(selected)}) for name in selected]


with warnings.catch_warnings(action="ignore"):  # Dagster calls backfill policies, and much else, beta

    @kinetic_asset(accelerator="cpu", partitions_def=DAYS, backfill_policy=dg.BackfillPolicy.single_run())
    def daily(host: HostContext) -> dg.MaterializeResult:
        return dg.MaterializeResult(metadata={"days": host.partition_key})


@kinetic_asset(
    accelerator="cpu",
    key_prefix=["deep", "er"],
    ins={"lower": dg.AssetIn(key="base"), "again": dg.AssetIn("second", metadata={"how": "twice"})},
    deps=["elsewhere"],
    code_version="7",
    op_tags={"tag": "of the op"},
    pool="tpu",
    kinds={"keras"},
    owners=["team:models"],
    automation_condition=dg.AutomationCondition.eager(),
    retry_policy=dg.RetryPolicy(max_retries=1),
    metadata={"own": "kept"},
)
def upper(lower: int, again: int) -> int:
    return lower + again


@kinetic_op(
    accelerator="cpu",
    ins={"number": dg.In(int, default_value=4)},
    out={"half": dg.Out(int), "twice": dg.Out(int)},
    tags={"of": "an op"},
)
def halves(number):
    return number // 2, dg.Output(number * 2, output_name="twice", metadata={"doubled": True})


class Threshold(dg.Config):
    low: float = 0.25


class Normalizer(dg.ConfigurableResource):
    """A resource of settings only, so it can be recreated anywhere."""

    scale: float
    names: list[str] = pydantic.Field(default=["a"])
    threshold: Threshold = Threshold()

    def scaled(self, value: float) -> float:
        return max(value * self.scale, self.threshold.low)


@kinetic_asset(accelerator="cpu")
def normalized(base: int, normalizer: Normalizer):
    return normalizer.scaled(base), normalizer.names, type(normalizer).__name__


class Client(dg.ConfigurableResource):
    api_key: str


class Opened(dg.ConfigurableResource):
    path: str

    def setup_for_execution(self, context: dg.InitResourceContext) -> None: ...


class Believed(Opened):
    kinetic_travels: ClassVar[bool] = True


class Kept(dg.IOManager):
    """Remembers what it was given, in this process alone."""

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        KEPT[tuple(context.asset_key.path)] = obj

    def load_input(self, context: dg.InputContext) -> Any:
        return KEPT[tuple(context.asset_key.path)]


KEPT: dict[tuple[str, ...], Any] = {}


class Colour(enum.Enum):
    RED = 1


class Model:
    """Called, it trains: an object with a method, as some write their steps."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, base: int) -> int:
        return base * self.factor


def takes_stream(rows: Iterator[int]): ...
def returns_stream(rows) -> Iterator[int]: ...
