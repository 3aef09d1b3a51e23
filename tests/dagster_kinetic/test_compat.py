"""The undocumented names of Dagster: a list that fails when a release moves one, and the behaviour without each."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.output import OutputDefinition

import dagster_kinetic
import kinetic_orchestration
from dagster_kinetic import KineticResource, _compat, kinetic_asset, kinetic_multi_asset
from dagster_kinetic.step.ticket import LOGGED, tickets_of
from kinetic_orchestration import attach
from kinetic_orchestration.errors import UsageError
from tests.dagster_kinetic import pipelines
from tests.dagster_kinetic.resource import keywords
from tests.dagster_kinetic.stored import logs_of, messages

pytestmark = pytest.mark.usefixtures("shared_home")
RESOURCES = {"kinetic": KineticResource()}
CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
OURS = [
    path for package in (dagster_kinetic, kinetic_orchestration) for path in Path(package.__path__[0]).rglob("*.py")
]
PACKAGE = Path(dagster_kinetic.__path__[0])
SOURCES = sorted(PACKAGE.rglob("*.py"))
OF_INSTANCES = {_compat.IS_REQUIRED: OutputDefinition}
# Names that are asked for, and whose lack is no sign of a release that has moved them.
PERHAPS = {
    "_poll_for_local_upload",  # of a log manager in a cloud,
    "complete_artifact_path",  # or of a local one: only without both something is said
    "metadata",  # of an observation that is not there any more: that is said before
    "buffer",  # of a stream
    "__name__",
}
# Names at the end of `PRIVATE` that what is public, or our own, has too.
COMMON = {"metadata", "location_name", "step", "resolve"}
# What Dagster does not call public, has no stand-in, and is that of whole classes: their fields, and how they are found.
RELIED_ON: dict[type, str] = {
    dg.DagsterInstance: "add_run_tags all_logs get_records_for_run get_run_by_id get_run_records get_runs is_ephemeral",
    dg.DagsterRun: "asset_selection execution_plan_snapshot_id parent_run_id root_run_id step_keys_to_execute",
    dg.AssetsDefinition: "keys_by_output_name node_def",
    dg.OpDefinition: "output_def_named output_defs",
    dg.OpExecutionContext: "has_assets_def op_handle selected_output_names",
    dg.EventLogRecord: "event_log_entry",
    dg.AssetKey: "from_user_string to_user_string",
}


@pytest.fixture(autouse=True)
def unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinetic_orchestration.plan.messages._shown", set())


@pytest.mark.parametrize("where", _compat.PRIVATE)
def test_the_installed_dagster_has_each_private_name(where: str) -> None:
    owner, _, name = where.rpartition(".")
    if where in OF_INSTANCES:
        assert hasattr(OF_INSTANCES[where](), name)
    else:
        with warnings.catch_warnings(action="error"):  # a field is in instances alone
            is_field = "." in where.partition(":")[2] and name in _fields(_compat._private(owner))
            assert is_field or _compat._private(where) is not None


def _fields(owner: type) -> set[str]:
    return {
        *inspect.signature(owner).parameters,
        *(name for kind in owner.__mro__ for name in inspect.get_annotations(kind)),
    }


@pytest.mark.parametrize("owner", RELIED_ON, ids=lambda owner: owner.__name__)
def test_the_installed_dagster_has_what_is_relied_on(owner: type) -> None:
    assert not set(RELIED_ON[owner].split()) - {*dir(owner), *_fields(owner)}


def test_nothing_private_is_imported_that_is_not_in_the_list() -> None:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not [name for name in names if name.startswith("dagster.")], path
    named = {value for name, value in vars(_compat).items() if name.isupper() and str(value).startswith("dagster")}
    assert {value for value in named if ":" in value} == set(_compat.PRIVATE)


@pytest.mark.slow
@pytest.mark.turn(0)
def test_no_attribute_is_asked_for_that_is_not_in_the_list() -> None:
    """Checks attributes of objects: with a default for a missing one, with an underscore, or without a mark."""
    listed = {where.rpartition(".")[2] for where in _compat.PRIVATE if "." in where.partition(":")[2]}
    trees = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}
    ours = {path: ast.parse(path.read_text(encoding="utf-8")) for path in OURS}
    own = {
        name
        for tree in ours.values()
        for node in ast.walk(tree)
        for name in (
            [node.attr] if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            else [node.name] if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            else [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            else []
        )
    }  # fmt: skip
    for name, tree in trees.items():
        read = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        private = {each for each in read if each.startswith("_") and not each.startswith("__")} - own
        assert private <= {"_is_required"} & listed, name
        if name != "_compat.py":
            assert not read & (listed - COMMON), name
    asked = {
        node.args[1].value
        for node in ast.walk(trees["_compat.py"])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr")
        if isinstance(node.args[1], ast.Constant)
    }
    assert asked == PERHAPS | {"_is_required"}


def test_the_keywords_that_editors_know_are_those_of_the_installed_dagster(capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m tests.dagster_kinetic.resource.keywords` writes them anew. A newer Dagster than the one that this project is
    developed with may have more: then that is told.
    """
    written, now = keywords.PATH.read_text(encoding="utf-8"), keywords.generated()
    if written != now and f"\ndagster=={dg.__version__}\n" not in CONSTRAINTS.read_text(encoding="utf-8"):
        lines = difflib.unified_diff(written.splitlines(), now.splitlines(), "written", dg.__version__, "", "", 0, "")
        with capsys.disabled():
            print("\nwarning: the keywords of this Dagster are others:", *lines, sep="\n")
        return
    assert written == now


# ---- without one of them -----------------------------------------------------------------------------------


def without(monkeypatch: pytest.MonkeyPatch, *wheres: str) -> None:
    """Act like a release that has moved them. Dagster's own code has them by other names already."""
    private, of = _compat._private, _compat._of

    def found(owner: Any, *names: str) -> Any:
        for name in names:
            owner = _compat._gone(name) if owner is not None and name in wheres else of(owner, name)
        return owner

    monkeypatch.setattr(_compat, "_private", lambda where: _compat._gone(where) if where in wheres else private(where))
    monkeypatch.setattr(_compat, "_of", found)


def says(where: str) -> Any:
    name, lost = (re.escape(text) for text in (where.replace(":", "."), _compat.PRIVATE[where]))
    return pytest.warns(UserWarning, match=rf"has no {name} any more.*: {lost}\. Everything else goes on")


@pytest.mark.parametrize("where", [_compat.ENGINE_EVENT, _compat.REPORT])
def test_without_the_events_of_the_engine_a_ticket_is_an_observation(instance, monkeypatch, where) -> None:
    @kinetic_asset(accelerator="cpu", detached=True)
    def far() -> int:
        return 1

    without(monkeypatch, where)
    with says(where):
        result = dg.materialize([far], instance=instance, resources=RESOURCES)
    [ticket] = tickets_of(instance, result.run_id).values()
    assert attach(ticket.job).result() == 1
    assert LOGGED in result.get_asset_observation_events()[0].asset_observation_data.asset_observation.metadata
    without(monkeypatch, _compat.OBSERVED)
    with says(_compat.OBSERVED):
        assert tickets_of(instance, result.run_id) == {}


LOGS = [_compat.FROM_JOB, _compat.LOG_DATA, _compat.LOG_STREAM, _compat.IO_TYPE, _compat.LOG_KEY, _compat.LOG_MANAGER]


@pytest.mark.slow
@pytest.mark.turn(9)
@pytest.mark.parametrize("where", LOGS)
def test_without_captured_logs_the_lines_are_in_the_steps_own(instance, monkeypatch, where) -> None:
    without(monkeypatch, where)
    with says(where):
        result = dg.materialize([pipelines.slice_of_four], instance=instance, resources=RESOURCES)
    assert result.success and not [name for name in logs_of(instance, result) if "[host" in name]


@pytest.mark.slow
@pytest.mark.turn(3)
@pytest.mark.parametrize("where", [_compat.LEFT_BY, _compat.PLAN_OF_RUN, _compat.KNOWN_STATE])
def test_without_the_state_of_a_parent_a_run_by_from_failure_begins_anew(instance, monkeypatch, where) -> None:
    job = dg.Definitions(
        [pipelines.broken], resources=RESOURCES, executor=dg.in_process_executor
    ).resolve_implicit_global_asset_job_def()
    first = job.execute_in_process(instance=instance, raise_on_error=False)
    run = instance.get_run_by_id(first.run_id)
    again = instance.create_run_for_job(job, parent_run_id=run.run_id, root_run_id=run.run_id)
    plan = instance.get_execution_plan_snapshot(again.execution_plan_snapshot_id)
    known = plan.initial_known_state._replace(parent_state=_some_parent(run))
    monkeypatch.setattr(instance, "get_execution_plan_snapshot", lambda _: plan._replace(initial_known_state=known))
    assert _compat.is_resumed(again, instance)
    without(monkeypatch, where)
    with says(where):
        assert not _compat.is_resumed(again, instance)


def _some_parent(run: dg.DagsterRun) -> Any:
    from dagster._core.execution.plan.state import PastExecutionState

    return PastExecutionState(run_id=run.run_id, produced_outputs=set(), parent_state=None)


def test_without_hidden_keywords_an_asset_is_made_all_the_same(monkeypatch) -> None:
    for where in (_compat.DEPRECATED, _compat.HAS_DEPRECATED):
        with monkeypatch.context() as patch:
            without(patch, where)
            with says(where):
                assert kinetic_asset(accelerator="cpu", compute_kind="jax")(pipelines.how_many).op.tags


def test_without_the_flag_of_an_output_a_detached_asset_is_made_all_the_same() -> None:
    class Output:
        name, is_required = "result", True

    class Assets:
        class op:
            output_defs = (Output(),)

        keys_by_output_name = {"result": dg.AssetKey("far")}  # noqa: RUF012

    with says(_compat.IS_REQUIRED):
        assert _compat.make_optional(Assets()) == {"result"}


def test_without_the_page_of_code_an_asset_is_made_all_the_same(monkeypatch) -> None:
    without(monkeypatch, _compat.REFERENCE)
    with says(_compat.REFERENCE):
        [spec] = kinetic_multi_asset(accelerator="cpu", specs=[dg.AssetSpec("far")])(pipelines.how_many).specs
    assert spec.metadata["kinetic/accelerator"] == "cpu" and "dagster/code_references" not in spec.metadata


def test_what_a_run_a_job_and_a_step_may_lack_is_told_and_borne(monkeypatch) -> None:
    class Bare:
        run_id, job_name, asset_selection, op_handle = "run", "job", None, "step"

        def get_job(self, _: str) -> Bare:
            return self

    bare: Any = Bare()
    context: Any = type("Context", (), {"run": bare, "run_id": "run", "op_handle": "step"})()
    for name, where in {
        "remote_job_origin": _compat.ORIGIN,
        "repository_origin": _compat.REPOSITORY,
        "code_location_origin": _compat.LOCATION,
        "location_name": _compat.LOCATION_NAME,
    }.items():
        with says(where):
            assert _compat.location_of_run(bare) == ""
        setattr(bare, name, bare)
    bare.location_name = "mine"
    assert _compat.location_of_run(bare) == _compat.location_of_sensor(bare) == "mine"
    with says(_compat.OF_SENSOR):
        assert _compat.location_of_sensor(context) == ""
    with says(_compat.ASSET_LAYER):
        assert _compat.assets_of(bare, bare) == set()
    bare.asset_layer = bare
    with says(_compat.OF_LAYER):
        assert _compat.assets_of(bare, bare) == set()
    with says(_compat.IMPLICIT_JOB):
        _compat.check_config(bare, [], {})
    bare.get_implicit_job_def_for_assets = lambda _: bare
    with says(_compat.PART_OF_JOB):
        _compat.check_config(bare, [], {})
    context.instance = context.job_def = bare.executor_def = bare
    bare.name = "in_process"
    with says(_compat.LAUNCHER):
        assert not _compat.is_contained(context)
    with says(_compat.INFO):
        assert _compat.execution_info(context) == {"dagster/run-id": "run", "dagster/job": "job"}
    with says(_compat.STEP_CONTEXT):
        assert _compat.step_key(context) == "step"


def test_without_what_tells_of_the_graph_a_sensor_finishes_the_assets_alone(monkeypatch) -> None:
    @dg.asset
    def first() -> None: ...

    @dg.asset(deps=[first])
    def second() -> None: ...

    @dg.asset_check(asset=first)
    def sound() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    repository = dg.Definitions([first, second], asset_checks=[sound]).get_repository_def()
    target, one, other = dg.AssetSelection.all(), first.key, second.key

    def told() -> list[Any]:
        known = _compat.assets_in(target, repository)
        return [known, set(_compat.children_of(one, repository)), _compat.steps_of([one], repository)]

    whole = [{one, other}, {other}, {"first", "first_sound"}]
    assert told() == whole
    for where, what in {
        _compat.GRAPH: [None, set(), {"first"}],
        _compat.RESOLVED: [None, *whole[1:]],
        _compat.CHILDREN: [whole[0], set(), whole[2]],
        _compat.CHECKS: [*whole[:2], {"first"}],
    }.items():
        with monkeypatch.context() as patch:
            without(patch, where)
            with says(where):
                assert told() == what


def test_without_what_assets_share_with_ops_their_own_context_is_asked(instance, monkeypatch) -> None:
    @dg.asset
    def asks(context):
        return _compat.step_key(context)

    without(monkeypatch, _compat.OF_ASSETS, _compat.STEP)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert dg.materialize([asks], instance=instance).output_for_node("asks") == "asks"
    texts = [str(each.message) for each in said]
    assert all(any(_compat.PRIVATE[where] in text for text in texts) for where in (_compat.OF_ASSETS, _compat.STEP))


def test_without_what_resolves_a_component_its_function_needs_its_whole_name(monkeypatch) -> None:
    without(monkeypatch, _compat.RESOLVING)
    with says(_compat.RESOLVING), pytest.raises(UsageError, match="needs its whole name"):
        _compat.module_of_component(None)


def test_without_the_mark_of_no_value_its_name_tells(monkeypatch) -> None:
    without(monkeypatch, _compat.NO_VALUE)
    with says(_compat.NO_VALUE):
        assert not _compat.has_value(dg.MaterializeResult())
    assert _compat.has_value(dg.MaterializeResult(value=1))


WITHOUT_ANY = """
import warnings
import dagster as dg
import dagster._utils.interrupts, dagster._core.execution.context.compute
import dagster._core.definitions.resource_annotation, dagster._core.errors

HOMES = {
    dagster._utils.interrupts: "capture_interrupts",
    dagster._core.execution.context.compute: "current_execution_context",
    dagster._core.definitions.resource_annotation: "TreatAsResourceParam",
    dagster._core.errors: "DagsterPipesExecutionError",
}
moved = {home: vars(home).pop(name) for home, name in HOMES.items()}
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    from dagster_kinetic import KineticResource, PipesKineticClient, kinetic_asset
for home, value in moved.items():  # where Dagster's own code needs them
    setattr(home, HOMES[home], value)
print(sum("Everything else goes on" in str(each.message) for each in said), "warnings")


@kinetic_asset(accelerator="cpu")
def far() -> int:
    return 1


@dg.asset
def told(context: dg.AssetExecutionContext, pipes: dg.ResourceParam[PipesKineticClient]):
    code = "from dagster_pipes import open_dagster_pipes\\nwith open_dagster_pipes(): pass"
    return pipes.run(context=context, command=["python", "-c", code], accelerator="cpu").get_materialize_result()


if __name__ == "__main__":
    resources = {"kinetic": KineticResource(), "pipes": PipesKineticClient()}
    print(dg.materialize([far, told], resources=resources).output_for_node("far"), "is the value")
"""


@pytest.mark.slow
@pytest.mark.turn(9)
def test_without_what_is_read_at_the_import_runs_go_on(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(WITHOUT_ANY), encoding="utf-8")
    command = [sys.executable, str(tmp_path / "program.py")]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=150)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[0] == "4 warnings" and ran.stdout.splitlines()[-1] == "1 is the value", ran.stdout


@pytest.mark.slow
@pytest.mark.turn(3)
def test_a_log_manager_without_its_own_ways_still_keeps_each_hosts_log(instance, monkeypatch) -> None:
    def told() -> dg.ExecuteInProcessResult:
        return dg.materialize([pipelines.slice_of_four], instance=instance, resources=RESOURCES)

    with monkeypatch.context() as patch:
        patch.delattr(type(instance.compute_log_manager), "complete_artifact_path")
        patch.setattr(instance.compute_log_manager, "is_capture_complete", lambda _: True, raising=False)
        with says(_compat.UPLOADS), says(_compat.COMPLETE):
            result = told()
    assert "here is 2 of 4\n" in logs_of(instance, result)["slice_of_four [host 2]"]
    assert any("Capturing the log of" in line for line in messages(instance, result))
