"""`@kinetic_asset`, `@kinetic_multi_asset`, `@kinetic_op`: what Dagster sees, what hosts get, and what is refused."""

import functools
import inspect
import io
import sqlite3
import sys
import threading
import types
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import IO, Any

import dagster as dg
import pytest
from pydantic import PrivateAttr, SecretStr

import kinetic_orchestration as kinetic
from dagster_kinetic import (
    HostContext,
    KineticResource,
    build_kinetic_completion_sensor,
    kinetic_asset,
    kinetic_multi_asset,
    kinetic_op,
)
from dagster_kinetic.assets.parameters import why_not_resource, why_not_type
from kinetic_orchestration.errors import ConflictingSettings, NotAFunction, UnknownAccelerator, UsageError
from tests.dagster_kinetic import pipelines
from tests.dagster_kinetic.assets import many_assets
from tests.dagster_kinetic.assets.many_assets import KEPT, Believed, Client, Kept, Model, Normalizer, Opened
from tests.dagster_kinetic.stored import made_of

pytestmark = pytest.mark.usefixtures("shared_home")
KINETIC = {"kinetic": KineticResource()}


# ---- what runs ---------------------------------------------------------------------------------------------


def test_many_assets_of_one_job_with_values_checks_and_io_managers_on_this_side():
    result = dg.materialize([many_assets.base, many_assets.trained], resources={**KINETIC, "kept": Kept()})
    assert KEPT[("weights",)] == [10, 11]
    assert result.asset_value("score") == 0.5
    assert made_of(result, "score")["loss"] == 0.25
    [check] = result.get_asset_check_evaluations()
    assert (check.asset_key, check.check_name, check.passed) == (dg.AssetKey("score"), "positive", True)
    jobs = {made_of(result, name)["kinetic/job_id"] for name in ("weights", "score")}
    assert len(jobs) == 1


@pytest.mark.slow
@pytest.mark.turn(8)
@pytest.mark.parametrize("result", [dg.MaterializeResult, dg.Output], ids=["MaterializeResult", "Output"])
def test_a_part_that_gives_one_result_gives_that_one(result):
    def gives(selected):
        [name] = selected
        if result is dg.Output:
            return dg.Output(1, output_name=name)
        return dg.MaterializeResult(asset_key=name, metadata={"rows": 3})

    outs = {"east": dg.AssetOut(is_required=False), "west": dg.AssetOut(is_required=False)}
    asset = kinetic_multi_asset(accelerator="cpu", outs=outs, can_subset=True)(gives)
    if result is dg.MaterializeResult:
        specs = [dg.AssetSpec(name) for name in outs]
        asset = kinetic_multi_asset(accelerator="cpu", specs=specs, can_subset=True)(gives)
    made = dg.materialize([asset], selection=["west"], resources={"kinetic": KineticResource()})
    assert [event.asset_key.to_user_string() for event in made.get_asset_materialization_events()] == ["west"]
    if result is dg.MaterializeResult:
        assert made_of(made, "west")["rows"] == 3


def test_only_the_selected_part_of_a_multi_asset_is_made():
    result = dg.materialize([many_assets.base, many_assets.regions], selection=["east", "west"], resources=KINETIC)
    made = {each.asset_key.to_user_string() for each in result.get_asset_materialization_events()}
    assert made == {"east", "west"}
    assert made_of(result, "east")["of"] == 2


def test_a_range_of_partitions_in_one_run_names_its_ends():
    tags = {"dagster/asset_partition_range_start": "2024-01-02", "dagster/asset_partition_range_end": "2024-01-04"}
    result = dg.materialize([many_assets.daily], resources=KINETIC, tags=tags)
    assert {each.materialization.metadata["days"].value for each in result.get_asset_materialization_events()} == {
        "2024-01-02...2024-01-04"
    }
    assert len(result.get_asset_materialization_events()) == 3


def test_inputs_of_other_names_and_all_keywords_reach_dagster():
    asset = many_assets.upper
    [spec] = asset.specs
    assert spec.key == dg.AssetKey(["deep", "er", "upper"])
    assert {dep.asset_key.to_user_string() for dep in spec.deps} == {"base", "second", "elsewhere"}
    assert (spec.code_version, spec.owners, spec.kinds) == ("7", ["team:models"], {"keras"})
    assert spec.automation_condition is not None
    assert (asset.op.pool, asset.op.tags["tag"]) == ("tpu", "of the op")
    assert asset.op.retry_policy == dg.RetryPolicy(max_retries=1)
    assert (spec.metadata["own"], spec.metadata["kinetic/accelerator"]) == ("kept", "cpu")
    result = dg.materialize([many_assets.base, many_assets.second, asset], resources=KINETIC)
    assert result.asset_value(spec.key) == 30


def test_an_asset_keeps_what_dagster_knows_of_it():
    spec = pipelines.total.specs_by_key[dg.AssetKey("total")]
    assert (spec.description, spec.group_name, spec.owners) == ("Adds them up.", "sums", ["team:numbers"])
    assert spec.tags == {"of": "tests"}
    assert [dep.asset_key for dep in spec.deps] == [dg.AssetKey("numbers")]
    assert pipelines.total.required_resource_keys == {"kinetic", "io_manager"}
    assert pipelines.total.check_keys == {dg.AssetCheckKey(dg.AssetKey("total"), "enough")}


def test_an_op_with_several_outputs_and_a_default_input():
    @dg.job(resource_defs=KINETIC)
    def halving():
        many_assets.halves()

    result = halving.execute_in_process()
    assert (result.output_for_node("halves", "half"), result.output_for_node("halves", "twice")) == (2, 8)


def test_a_resource_of_plain_settings_is_made_anew_on_the_host():
    normalizer = Normalizer(scale=0.5, names=["x", "y"], threshold=many_assets.Threshold(low=7))
    result = dg.materialize([many_assets.base, many_assets.normalized], resources={**KINETIC, "normalizer": normalizer})
    assert result.output_for_node("normalized") == (7, ["x", "y"], "Normalizer")


@pytest.mark.slow
@pytest.mark.turn(8)
def test_callables_of_every_kind_are_taken():
    def plus(base, more):
        return base + more

    @kinetic.run(accelerator="cpu", labels={"of": "tests"})
    def decorated(base):
        return base + 5

    partial = functools.partial(plus, more=1)
    assets = [
        kinetic_asset(accelerator="cpu", name="called")(Model(3)),
        kinetic_asset(accelerator="cpu", name="part")(lambda base: base + 2),
        kinetic_asset(name="of_kinetic")(decorated),
        kinetic_asset(accelerator="cpu", name="partial")(partial),
    ]
    result = dg.materialize([many_assets.base, *assets], resources=KINETIC)
    values = [result.output_for_node(name) for name in ("called", "part", "of_kinetic", "partial")]
    assert values == [30, 12, 15, 11]


def test_a_function_that_keras_kinetic_decorated_is_taken(monkeypatch):
    """Its decorator leaves an object of its own, with the function inside (kinetic 0.0.1: `_func`)."""

    class RemoteFunction:
        def __init__(self, function):
            self._func = function

        def __call__(self, *args):
            raise AssertionError("this would go to their cluster")

    RemoteFunction.__module__ = "kinetic.core.core"

    def train(base):
        return base + 1

    asset = kinetic_asset(accelerator="cpu", name="theirs")(RemoteFunction(train))
    assert dg.materialize([many_assets.base, asset], resources=KINETIC).output_for_node("theirs") == 11


# ---- in unit tests -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.turn(4)
def test_direct_invocation_with_the_resource_as_an_argument_or_in_the_context():
    assert many_assets.upper(dg.build_asset_context(), 1, again=2, kinetic=KineticResource()) == 3
    assert many_assets.upper(None, lower=4, again=2, kinetic=KineticResource()) == 6
    day = many_assets.daily(dg.build_asset_context(partition_key="2024-01-03"), kinetic=KineticResource())
    assert day.metadata == {"days": "2024-01-03"}
    assert many_assets.halves(dg.build_op_context(resources=KINETIC), 6)[0] == 3
    values, score = many_assets.trained(dg.build_asset_context(resources={**KINETIC, "kept": Kept()}), 1)
    assert (values, score.value) == ([1, 2], 0.5)
    made = many_assets.regions(dg.build_asset_context(resources=KINETIC))
    assert [each.asset_key.to_user_string() for each in made] == ["east", "north", "west"]


def test_direct_invocation_without_the_resource_says_which_is_missing():
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="kinetic"):
        many_assets.upper(dg.build_asset_context(), 1, 2)


def test_direct_invocation_raises_what_the_body_raised():
    def wrong(number):
        raise LookupError(f"no {number}")

    with pytest.raises(LookupError, match="no 3"):
        kinetic_asset(accelerator="cpu")(wrong)(dg.build_asset_context(), 3, kinetic=KineticResource())


# ---- where the code is -------------------------------------------------------------------------------------


def place_of(asset: dg.AssetsDefinition) -> list[tuple[str, int]]:
    [spec] = asset.specs
    references = spec.metadata["dagster/code_references"].code_references
    return [(reference.file_path, reference.line_number) for reference in references]


def line_of(text: str) -> int:
    lines = Path(many_assets.__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().startswith(text))


def test_code_references_lead_to_the_users_function():
    [(file, line)] = place_of(many_assets.daily)
    assert file == many_assets.__file__
    assert line == line_of('@kinetic_asset(accelerator="cpu", partitions_def=DAYS')


@pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.BetaWarning")
def test_dagsters_own_code_references_and_git_links_lead_there_too():
    plain = dg.with_source_code_references([many_assets.daily])[0]
    assert set(place_of(plain)) == set(place_of(many_assets.daily))
    mapping = dg.AnchorBasedFilePathMapping(Path(many_assets.__file__).parent, "pipelines")
    [linked] = dg.link_code_references_to_git(
        [many_assets.daily], git_url="https://github.com/me/mine", git_branch="main", file_path_mapping=mapping
    )
    [spec] = linked.specs
    [reference] = spec.metadata["dagster/code_references"].code_references
    assert reference.url.startswith("https://github.com/me/mine/tree/main/pipelines/many_assets.py#L")


def test_a_traceback_shows_the_decorated_function_and_none_of_its_other_lines():
    function = many_assets.daily.op.compute_fn.decorated_fn
    lines = {line for _, _, line in function.__code__.co_lines() if line is not None}
    assert lines == {inspect.getsourcelines(function)[1]}
    assert inspect.getsourcefile(function) == many_assets.__file__


# ---- what is refused, where it is written ------------------------------------------------------------------


class Stateful(dg.ConfigurableResource):
    name: str
    _session: Any = PrivateAttr(None)


class Nested(dg.ConfigurableResource):
    client: Client


class Hidden(dg.ConfigurableResource):
    word: SecretStr = SecretStr("x")


def takes(kind: Any, name: str = "given") -> Callable[..., None]:
    def asset(given): ...

    asset.__annotations__ = {"given": kind}
    if name != "given":
        asset.__signature__ = inspect.Signature([inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)])
        asset.__annotations__ = {name: kind}
    return asset


def returns(kind: Any) -> Callable[..., None]:
    def asset(): ...

    asset.__annotations__ = {"return": kind}
    return asset


@pytest.mark.parametrize(
    "kind",
    [
        Iterator[int],
        AsyncIterator[bytes],
        list[Iterator[int]],
        Iterator[int] | None,
        sqlite3.Connection,
        type(threading.Lock()),
        io.TextIOWrapper,
        IO[bytes],
        types.GeneratorType,
    ],
    ids=str,
)
def test_an_input_or_a_value_whose_type_cannot_travel_is_refused(kind):
    with pytest.raises(UsageError, match=r"takes 'given' as .* which cannot travel to the hosts.*let it load a list"):
        kinetic_asset(accelerator="cpu")(takes(kind))
    with pytest.raises(UsageError, match=r"returns .* which cannot travel back.*return a list"):
        kinetic_asset(accelerator="cpu")(returns(kind))


def test_dagsters_own_types_are_looked_at_as_well():
    opened = dg.PythonObjectDagsterType(sqlite3.Connection)
    for decorate in (
        lambda: kinetic_asset(accelerator="cpu", ins={"given": dg.AssetIn(dagster_type=opened)})(takes(Any)),
        lambda: kinetic_asset(accelerator="cpu", dagster_type=opened)(returns(Any)),
        lambda: kinetic_op(accelerator="cpu", ins={"given": dg.In(sqlite3.Connection)})(takes(Any)),
        lambda: kinetic_op(accelerator="cpu", out={"made": dg.Out(opened)})(returns(Any)),
        lambda: kinetic_multi_asset(accelerator="cpu", outs={"made": dg.AssetOut(dagster_type=opened)})(returns(Any)),
    ):
        with pytest.raises(UsageError, match="Connection, which cannot travel"):
            decorate()


def test_every_usual_type_may_travel():
    import array
    import collections
    import datetime
    import decimal
    import pathlib
    import re
    import uuid

    kinds = [
        *(int, str, bytes, list, dict[str, list[int]], set, tuple[int, ...], Any, None, object, type, Exception),
        *(datetime.datetime, decimal.Decimal, pathlib.Path, uuid.UUID, re.Pattern, array.array),
        *(collections.OrderedDict, collections.deque, collections.Counter, many_assets.Colour, Normalizer),
        *(Callable[[int], Iterator[int]], int | Iterator[int], dg.Output[int], dg.MaterializeResult, range, slice),
    ]
    if "numpy" in sys.modules:
        kinds += [sys.modules["numpy"].ndarray, sys.modules["numpy"].float32]
    assert {kind: reason for kind in kinds if (reason := why_not_type(kind))} == {}


@pytest.mark.parametrize(
    "kind, why",
    [
        (Client, "'api_key' looks like a secret"),
        (Hidden, "'word' looks like a secret"),
        (Opened, r"setup_for_execution\(\)"),
        (Stateful, "a state besides its settings, _session"),
        (Nested, "'client' is no plain setting|looks like a secret"),
        (Kept, "I/O managers load and store here"),
        (KineticResource, "cannot travel"),
    ],
)
def test_a_resource_that_cannot_travel_is_refused_with_the_reason_and_the_way_out(kind, why):
    with pytest.raises(UsageError, match=why) as caught:
        kinetic_asset(accelerator="cpu")(takes(kind))
    assert "capture_env_vars" in str(caught.value) and "kinetic_travels" in str(caught.value)


def test_a_resource_that_says_that_it_travels_is_believed():
    assert why_not_resource(Believed) == ""
    kinetic_asset(accelerator="cpu")(takes(Believed))


def takes_context(context, host): ...
def takes_client(host, client: KineticResource): ...
def takes_injected(host, s3: dg.ResourceParam[str]): ...
def takes_positions(*values): ...
def takes_two(one: HostContext, two: HostContext): ...
def takes_nothing(): ...


@pytest.mark.parametrize(
    "decorate, kind, says",
    [
        (lambda: kinetic_asset(accelerator="v5e-17")(takes_nothing), UnknownAccelerator, "v5e-16"),
        (lambda: kinetic_asset()(takes_nothing), UsageError, "say which accelerator"),
        (lambda: kinetic_asset(takes_nothing), UsageError, "@kinetic_asset(accelerator="),
        (lambda: kinetic_op(takes_nothing), UsageError, "@kinetic_op(accelerator="),
        (lambda: kinetic_asset(accelerator="cpu", volumes={"data": 1})(takes_nothing), UsageError, "not absolute"),
        (lambda: kinetic_asset(accelerator="cpu")(generates), NotAFunction, "return them, as list(...)"),
        (lambda: kinetic_asset(accelerator="cpu")(takes_context), UsageError, "host: HostContext"),
        (lambda: kinetic_asset(accelerator="cpu")(takes_client), UsageError, "'client', which cannot travel"),
        (lambda: kinetic_asset(accelerator="cpu")(takes_injected), UsageError, "'s3', which cannot travel"),
        (lambda: kinetic_asset(accelerator="cpu")(takes_positions), UsageError, "by their names"),
        (lambda: kinetic_asset(accelerator="cpu")(takes_two), UsageError, "keep one"),
        (lambda: KineticResource().run(takes_nothing), UsageError, "say which accelerator"),
        (lambda: KineticResource().run(takes_nothing, accelerator="cpu", spott=True), UsageError, "did you mean spot"),
        (lambda: kinetic_asset(accelerator="cpu")(takes(int, "kinetic")), UsageError, "choose another"),
        (lambda: kinetic_asset(accelerator="cpu")(takes(int, "host")), UsageError, "not the host's context"),
        (lambda: kinetic_asset(accelerator="cpu", spott=True)(takes(int)), UsageError, "did you mean spot"),
        (lambda: kinetic_asset(accelerator="cpu", polo="x")(takes(int)), UsageError, "did you mean pool"),
        (lambda: kinetic_asset(accelerator="cpu", nonsense=1)(takes(int)), TypeError, "nonsense"),
        (
            lambda: kinetic_asset(accelerator="v5e-8", backend="tpu-vm", store="/data/kinetic")(takes(int)),
            ConflictingSettings,
            "name a bucket",
        ),
        (
            lambda: kinetic_multi_asset(accelerator="cpu", specs=[dg.AssetSpec("a")], can_subset=True)(returns(Any)),
            UsageError,
            "take a parameter 'selected'",
        ),
        (lambda: kinetic_multi_asset(takes(int)), UsageError, "@kinetic_multi_asset(accelerator="),
        (
            lambda: kinetic_asset(accelerator="cpu")(functools.partial(generates, 1)),
            NotAFunction,
            "return them, as list(...)",
        ),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(decorate, kind, says):
    with pytest.raises(kind) as caught:
        decorate()
    assert says in str(caught.value)


def generates(host):
    yield 1


def test_a_host_parameter_may_have_any_name_with_its_annotation():
    def where(number, here: HostContext):
        return here.host_count + number

    asset = kinetic_asset(accelerator="cpu")(where)
    assert asset(dg.build_asset_context(), 2, kinetic=KineticResource()) == 3


# ---- kinds and tags ----------------------------------------------------------------------------------------


def plain_body(): ...


def trains_with_torch():
    return _with_torch()


def _with_torch():
    import torch.nn  # never run

    return torch.nn


def trains_with_keras():
    import keras

    return keras


@pytest.mark.parametrize(
    "body, given, kinds",
    [
        (trains_with_torch, {"accelerator": "v5e-8"}, {"tpu", "pytorch"}),
        (trains_with_keras, {"accelerator": "cpu", "keras_backend": "jax"}, {"keras", "jax"}),
        (plain_body, {"accelerator": "v5e-8", "requirements": ["flax>=0.8", "optax"]}, {"tpu", "jax"}),
        (plain_body, {"accelerator": "cpu"}, set()),
        (trains_with_torch, {"accelerator": "v5e-8", "kinds": {"mine"}}, {"mine"}),
    ],
)
def test_kinds_are_the_accelerator_and_the_frameworks_that_are_known_unless_the_user_names_some(body, given, kinds):
    [spec] = kinetic_asset(**given, tags={"of": "tests"})(body).specs
    assert spec.kinds == kinds and spec.tags["of"] == "tests" and "kinetic/detached" not in spec.tags


def test_a_detached_asset_has_a_tag_and_the_completion_sensor_targets_such_assets_and_what_comes_after_them_alone():
    @kinetic_asset(accelerator="cpu", detached=True)
    def far() -> int:
        return 1

    @dg.asset
    def after(far: int) -> int:
        return far

    @dg.asset
    def else_where() -> int:
        return 1

    sensor = build_kinetic_completion_sensor()
    graph = dg.Definitions([far, after, else_where], sensors=[sensor], resources={"kinetic": KineticResource()})
    keys = sensor.asset_selection.resolve(graph.get_repository_def().asset_graph)
    assert {key.to_user_string() for key in keys} == {"far", "after"}
    assert far.specs_by_key[dg.AssetKey("far")].tags == {"kinetic/detached": "true"}
