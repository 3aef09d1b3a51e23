"""Dagster Pipes on a slice. The first part is what Dagster asks of its own client for processes, in our words."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster_pipes import DagsterPipesError, open_dagster_pipes

from dagster_kinetic import KineticResource, PipesKineticClient
from dagster_kinetic._compat import PipesExecutionError
from dagster_kinetic.pipes import parts, readable, within
from kinetic_orchestration import Limits
from kinetic_orchestration.errors import UsageError
from tests.dagster_kinetic.stored import captured, messages

pytestmark = [
    pytest.mark.usefixtures("shared_home"),
    pytest.mark.filterwarnings("ignore:.*expected_writer_count"),  # Dagster's own readers, asked by Dagster
]

Script = Callable[[str], list[str]]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """The command that runs this program, in a project of its own."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> list[str]:
        (tmp_path / "train.py").write_text(textwrap.dedent(text), encoding="utf-8")
        return ["python", "train.py"]

    return write


def made_by(
    instance: dg.DagsterInstance, command: list[str], client: PipesKineticClient | None = None,
    *, raise_on_error: bool = True, partitions: dg.PartitionsDefinition[str] | None = None, partition: str | None = None,
    check: str = "", **given: Any,
) -> dg.ExecuteInProcessResult:  # fmt: skip
    """The run of one asset that is this command."""

    @dg.asset(
        partitions_def=partitions, check_specs=[dg.AssetCheckSpec(check, asset="model")] if check else None
    )  # fmt: skip
    def model(context: dg.AssetExecutionContext, pipes: PipesKineticClient):
        return pipes.run(context=context, command=command, **given).get_results()

    resources = {"pipes": client or PipesKineticClient(accelerator="cpu")}
    return dg.materialize(
        [model], instance=instance, resources=resources, partition_key=partition, raise_on_error=raise_on_error
    )


def values(metadata: Any) -> dict[str, Any]:
    return {name: entry.value for name, entry in metadata.items() if not name.startswith(("kinetic/", "~kinetic/"))}


def of_pipes(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> list[str]:
    return [line for line in messages(instance, result) if line.startswith("[pipes]")]


WHOLE = """
    from dagster_pipes import open_dagster_pipes
    with open_dagster_pipes() as pipes:
        pipes.log.info("hello world")
        pipes.report_asset_materialization(
            metadata={"bar": {"raw_value": pipes.get_extra("bar"), "type": "md"}}, data_version="alpha"
        )
        pipes.report_asset_check(
            "sound", passed=True, severity="WARN", metadata={"one": 1, "two": {"raw_value": "foo", "type": "text"}}
        )
    print("an ordinary line")
"""


@pytest.mark.parametrize(
    "injector, reader",
    [
        (None, None),
        (dg.PipesTempFileContextInjector(), dg.PipesTempFileMessageReader()),
        (dg.PipesEnvContextInjector(), None),
    ],
    ids=["default", "files", "variable"],
)
def test_context_materialization_check_and_log_with_every_injector_and_reader(script, instance, injector, reader):
    client = PipesKineticClient(accelerator="cpu", context_injector=injector, message_reader=reader)
    result = made_by(instance, script(WHOLE), client, check="sound", extras={"bar": "baz"})
    [made] = result.asset_materializations_for_node("model")
    assert isinstance(made.metadata["bar"], dg.MarkdownMetadataValue) and made.metadata["bar"].value == "baz"
    assert made.metadata["kinetic/job_id"].value.startswith("job-")
    assert not [name for name in made.metadata if name.startswith("kinetic/pipes")]  # each once
    assert made.tags["dagster/data_version"] == "alpha"
    [checked] = result.get_asset_check_evaluations()
    assert (checked.passed, checked.severity) == (True, dg.AssetCheckSeverity.WARN)
    assert values(checked.metadata) == {"one": 1, "two": "foo"}
    assert "hello world" in messages(instance, result)
    text = captured(instance, result)
    assert "an ordinary line\n" in text and "__dagster_pipes_version" not in text


def test_results_that_are_not_returned_are_missed(script):
    @dg.asset
    def model(context: dg.AssetExecutionContext, pipes: PipesKineticClient):
        pipes.run(context=context, command=command)

    command = script("from dagster_pipes import open_dagster_pipes\nwith open_dagster_pipes(): pass\n")
    with pytest.raises(dg.DagsterInvariantViolationError, match="did not yield or return expected outputs"):
        dg.materialize([model], resources={"pipes": PipesKineticClient(accelerator="cpu")})


def test_one_program_makes_several_assets(script, instance):
    command = script(
        """
        from dagster_pipes import open_dagster_pipes
        with open_dagster_pipes() as pipes:
            pipes.report_asset_materialization({"loss": 0.5}, data_version="a", asset_key="model")
            pipes.report_asset_materialization(data_version="b", asset_key="folder/picture")
        """
    )

    @dg.multi_asset(specs=[dg.AssetSpec("model"), dg.AssetSpec(["folder", "picture"])])
    def both(context: dg.AssetExecutionContext, pipes: PipesKineticClient):
        return pipes.run(context=context, command=command).get_results()

    result = dg.materialize([both], instance=instance, resources={"pipes": PipesKineticClient(accelerator="cpu")})
    made = {event.asset_key.to_user_string(): event for event in result.asset_materializations_for_node("both")}
    assert values(made["model"].metadata) == {"loss": 0.5}
    assert made["folder/picture"].tags["dagster/data_version"] == "b"


def test_a_partition_reaches_the_program_and_is_what_is_made(script, instance):
    command = script(
        """
        import os
        from dagster_pipes import open_dagster_pipes
        with open_dagster_pipes() as pipes:
            pipes.report_asset_materialization({"key": pipes.partition_key, "host": os.environ["KINETIC_PARTITION_KEY"]})
        """
    )
    instance.add_dynamic_partitions("weeks", ["2026-02"])
    weeks = dg.DynamicPartitionsDefinition(name="weeks")
    result = made_by(instance, command, partitions=weeks, partition="2026-02")
    [made] = result.asset_materializations_for_node("model")
    assert made.partition == "2026-02"
    assert values(made.metadata) == {"key": "2026-02", "host": "2026-02"}


TYPED: dict[str, tuple[Any, type]] = {
    "text": ("bar", dg.TextMetadataValue),
    "url": ("http://bar.com", dg.UrlMetadataValue),
    "path": ("/bar", dg.PathMetadataValue),
    "notebook": ("/bar.ipynb", dg.NotebookMetadataValue),
    "json": (["bar", {"ä": None}], dg.JsonMetadataValue),
    "md": ("**bar**", dg.MarkdownMetadataValue),
    "float": (1.5, dg.FloatMetadataValue),
    "int": (7, dg.IntMetadataValue),
    "bool": (True, dg.BoolMetadataValue),
    "dagster_run": ("foo", dg.DagsterRunMetadataValue),
    "asset": ("bar/baz", dg.DagsterAssetMetadataValue),
    "null": (None, dg.NullMetadataValue),
}


def test_every_type_of_metadata_arrives_as_itself(script, instance):
    given = {kind: {"raw_value": value, "type": kind} for kind, (value, _) in TYPED.items()}
    command = script(
        f"""
        import json
        from dagster_pipes import open_dagster_pipes
        with open_dagster_pipes() as pipes:
            pipes.report_asset_materialization(metadata=json.loads({json.dumps(given)!r}))
        """
    )
    [made] = made_by(instance, command).asset_materializations_for_node("model")
    for kind, (value, wanted) in TYPED.items():
        assert isinstance(made.metadata[kind], wanted), kind
        assert made.metadata[kind].value == (dg.AssetKey(["bar", "baz"]) if kind == "asset" else value)


def test_a_program_that_fails_fails_the_step_with_its_last_lines(script):
    @dg.asset
    def model(context: dg.AssetExecutionContext, pipes: PipesKineticClient):
        return pipes.run(context=context, command=command).get_results()

    command = script("print('this far')\nraise ValueError('the grapes are sour')\n")
    with pytest.raises(PipesExecutionError, match="the grapes are sour"):
        dg.materialize([model], resources={"pipes": PipesKineticClient(accelerator="cpu")})


def test_direct_invocation(script):
    @dg.asset
    def model(context: dg.AssetExecutionContext, pipes: PipesKineticClient):
        yield from pipes.run(context=context, command=command).get_results()

    command = script(WHOLE)
    client = PipesKineticClient(accelerator="cpu")
    with pytest.raises(PipesExecutionError, match="bar"):  # there are no extras
        list(model(context=dg.build_asset_context(), pipes=client))
    command = script(
        "from dagster_pipes import open_dagster_pipes\nwith open_dagster_pipes() as p: p.log.info('hello')\n"
    )
    [made] = list(model(context=dg.build_asset_context(), pipes=client))
    assert isinstance(made, dg.MaterializeResult)


def test_a_program_that_forgets_to_close_gives_its_results_and_a_warning(script, instance):
    command = script(
        """
        from dagster_pipes import open_dagster_pipes
        pipes = open_dagster_pipes()
        pipes.report_asset_materialization(data_version="alpha")
        """
    )
    result = made_by(instance, command)
    [made] = result.asset_materializations_for_node("model")
    assert made.tags["dagster/data_version"] == "alpha"
    first, second = of_pipes(instance, result)
    assert "successfully opened" in first and "did not receive closed message" in second


def test_a_program_that_closes_by_itself(script, instance):
    command = script(
        """
        from dagster_pipes import open_dagster_pipes
        pipes = open_dagster_pipes()
        pipes.report_asset_materialization(data_version="alpha")
        pipes.close()
        """
    )
    assert [line for line in of_pipes(instance, made_by(instance, command)) if "did not" in line] == []


def test_a_program_without_pipes_is_an_implicit_materialization_and_says_so(script, instance):
    result = made_by(instance, script("print('nothing to tell')\n"))
    assert len(result.asset_materializations_for_node("model")) == 1
    assert any("did not receive any messages" in line and "stderr" in line for line in of_pipes(instance, result))


def test_variables_of_the_call_come_before_those_of_the_client(script, instance):
    command = script(
        """
        import os
        from dagster_pipes import open_dagster_pipes
        with open_dagster_pipes() as pipes:
            pipes.report_asset_materialization({name: os.environ[name] for name in "BC"})
        """
    )
    client = PipesKineticClient(accelerator="cpu", env={"B": "client", "C": "client"})
    [made] = made_by(instance, command, client, env={"C": "call"}).asset_materializations_for_node("model")
    assert values(made.metadata) == {"B": "client", "C": "call"}


def test_an_exception_in_the_session_is_shown_as_one(script, instance):
    command = script(
        """
        from dagster_pipes import open_dagster_pipes
        with open_dagster_pipes() as pipes:
            raise KeyError("no such column")
        """
    )
    result = made_by(instance, command, raise_on_error=False)
    assert not result.success
    first, second = of_pipes(instance, result)
    assert "successfully opened" in first and "closed with exception" in second
    [event] = [entry for entry in instance.all_logs(result.run_id) if entry.user_message == second]
    assert "no such column" in event.dagster_event.engine_event_data.error.message


def test_a_message_that_is_no_json_fails_where_it_is_sent(script, instance):
    command = script(
        """
        from dagster_pipes import open_dagster_pipes
        with open_dagster_pipes() as pipes:
            pipes.report_custom_message(object())
        """
    )
    result = made_by(instance, command, raise_on_error=False)
    assert not result.success
    assert "not JSON serializable" in result.get_step_failure_events()[0].step_failure_data.error.to_string()


def test_in_an_op(script):
    @dg.op
    def only_runs(context: dg.OpExecutionContext, pipes: PipesKineticClient):
        pipes.run(context=context, command=command)

    @dg.job
    def work():
        only_runs()

    command = script(
        "from dagster_pipes import open_dagster_pipes\nwith open_dagster_pipes() as p: p.log.info('hello')\n"
    )
    assert work.execute_in_process(resources={"pipes": PipesKineticClient(accelerator="cpu")}).success


def test_no_implicit_materialization_where_none_is_wanted(script, instance):
    @dg.asset
    def model(context: dg.AssetExecutionContext, pipes: PipesKineticClient):
        return pipes.run(context=context, command=command).get_materialize_result(implicit_materialization=False)

    command = script("pass\n")
    with pytest.raises(DagsterPipesError, match="No materialization results received"):
        dg.materialize([model], instance=instance, resources={"pipes": PipesKineticClient(accelerator="cpu")})


def test_custom_messages_arrive_in_their_order_whatever_they_are(script):
    sent = [{"some": "junk"}, "a text", 2, None, [1.5, {"ä": "🦭"}], "x" * 300_000, "a\nb\u2028c"]
    told: list[Any] = []

    @dg.asset
    def model(context: dg.AssetExecutionContext, pipes: PipesKineticClient):
        invocation = pipes.run(context=context, command=command)
        told.extend(invocation.get_custom_messages())
        return invocation.get_materialize_result()

    command = script(
        f"""
        import json
        from dagster_pipes import open_dagster_pipes
        with open_dagster_pipes() as pipes:
            for message in json.loads({json.dumps(sent)!r}):
                pipes.report_custom_message(message)
        """
    )
    dg.materialize([model], resources={"pipes": PipesKineticClient(accelerator="cpu")})
    assert told == sent


def test_parameters_given_on_the_command_line(script, instance):
    @dg.asset
    def model(context: dg.AssetExecutionContext, pipes: PipesKineticClient):
        with dg.open_pipes_session(
            context.op_execution_context, dg.PipesTempFileContextInjector(), dg.PipesTempFileMessageReader()
        ) as session:
            arguments = [part for pair in session.get_bootstrap_cli_arguments().items() for part in pair]
            return pipes.run(context=context, command=[*command, *arguments]).get_materialize_result()

    command = script(
        """
        from dagster_pipes import PipesCliArgsParamsLoader, open_dagster_pipes
        with open_dagster_pipes(params_loader=PipesCliArgsParamsLoader()) as pipes:
            assert pipes.asset_key == "model"
        """
    )
    assert dg.materialize(
        [model], instance=instance, resources={"pipes": PipesKineticClient(accelerator="cpu")}
    ).success


def test_every_level_of_the_log(script, instance):
    command = script(
        """
        from dagster_pipes import open_dagster_pipes
        with open_dagster_pipes() as pipes:
            for level in ("debug", "info", "warning", "error", "critical"):
                getattr(pipes.log, level)(f"a {level} message")
        """
    )
    result = made_by(instance, command)
    levels = {entry.user_message: entry.level for entry in instance.all_logs(result.run_id)}
    assert [levels[f"a {name} message"] for name in ("debug", "info", "warning", "error", "critical")] == [
        10,
        20,
        30,
        40,
        50,
    ]


# ---- what a slice adds ---------------------------------------------------------------------------------------


EVERY_HOST = """
    import os, sys
    from dagster_pipes import open_dagster_pipes
    host = os.environ["KINETIC_HOST_INDEX"]
    with open_dagster_pipes() as pipes:
        pipes.log.info("here I am")
        sys.stderr.write("a bar without an end")
        pipes.report_asset_materialization(metadata={"host": host})
"""


def test_every_hosts_log_is_shown_and_host_0_speaks_for_the_job(script, instance):
    result = made_by(instance, script(EVERY_HOST), accelerator="v5e-16", distributed=False)
    [made] = result.asset_materializations_for_node("model")
    assert values(made.metadata) == {"host": "0"}
    lines = messages(instance, result)
    assert sorted(line for line in lines if line.endswith("here I am")) == [
        *(f"[host {host}] here I am" for host in (1, 2, 3)), "here I am",
    ]  # fmt: skip
    assert any(line.startswith("3 reports of other hosts") for line in lines)
    assert [line for line in of_pipes(instance, result) if "opened" not in line] == []
    assert "[host 2] a bar without an end" in captured(instance, result)


def test_what_an_attempt_reported_that_did_not_come_to_its_end_is_void(script, instance):
    command = script(
        """
        import os
        from dagster_pipes import open_dagster_pipes
        attempt = int(os.environ["KINETIC_ATTEMPT"])
        with open_dagster_pipes() as pipes:
            pipes.log.info(f"attempt {attempt}")
            pipes.report_asset_materialization(metadata={"attempt": attempt})
            if attempt == 1:
                raise OSError("the first one fails")
        """
    )
    from kinetic_orchestration import Retry

    result = made_by(instance, command, retry=Retry(user=1))
    [made] = result.asset_materializations_for_node("model")
    assert values(made.metadata) == {"attempt": 2}
    assert [line for line in messages(instance, result) if line.startswith("attempt ")] == ["attempt 1", "attempt 2"]
    assert len(of_pipes(instance, result)) == 1


def test_messages_and_lines_of_a_busy_program_are_all_there_though_they_are_mixed(script, instance):
    """Four threads print to both streams without any care, while a fifth one reports."""
    command = script(
        """
        import sys, threading
        from dagster_pipes import open_dagster_pipes
        def babble(stream, name):
            for number in range(400):
                print(f"{name} {number} " + "." * (number % 50), file=stream)
        with open_dagster_pipes() as pipes:
            streams = (sys.stdout, sys.stderr, sys.stdout, sys.stderr)
            threads = [threading.Thread(target=babble, args=(stream, f"thread-{i}")) for i, stream in enumerate(streams)]
            [thread.start() for thread in threads]
            for number in range(200):
                pipes.report_custom_message({"number": number, "text": "y" * (number * 7)})
            [thread.join() for thread in threads]
        """
    )
    told: list[Any] = []

    @dg.asset
    def model(context: dg.AssetExecutionContext, pipes: PipesKineticClient):
        invocation = pipes.run(context=context, command=command)
        told.extend(invocation.get_custom_messages())
        return invocation.get_materialize_result()

    result = dg.materialize([model], instance=instance, resources={"pipes": PipesKineticClient(accelerator="cpu")})
    assert [message["number"] for message in told] == list(range(200))
    text = captured(instance, result)
    for thread in range(4):
        for number in (0, 123, 399):
            assert f"thread-{thread} {number} " in text
    assert "__dagster_pipes" not in text


MESSAGE = '{"__dagster_pipes_version": "0.1", "method": "log", "params": {"a": {}}}'


@pytest.mark.parametrize(
    "line, wanted",
    [
        (MESSAGE + "\n", ["", "log", "\n"]),
        ('50%|███ {"a": ' + MESSAGE + "I0000 xla\n", ['50%|███ {"a": ', "log", "I0000 xla\n"]),
        (MESSAGE + MESSAGE, ["", "log", "", "log", ""]),
        ('{"__dagster_pipes_ver' + MESSAGE + "\n", ['{"__dagster_pipes_ver', "log", "\n"]),
        ('{"__dagster_pipes_version": "0.1", "m' + MESSAGE, ['{"__dagster_pipes_version": "0.1", "m', "log", ""]),
        ('{"method": "closed", "params": {"x": 1}, "__dagster_pipes_version": "0.1"}', ["", "closed", ""]),
        ('{"__dagster_pipes_version": "0.1", "meth', ['{"__dagster_pipes_version": "0.1", "meth']),
        ("{}}{ __dagster_pipes_version\n", ["{}}{ __dagster_pipes_version\n"]),
    ],
)
def test_a_message_is_found_wherever_it_stands_in_a_line(line, wanted):
    assert [part if isinstance(part, str) else part["method"] for part in parts(line)] == wanted


def test_the_last_lines_of_a_failure_are_shown_without_messages():
    assert readable(f"one\n{MESSAGE}\ntwo{MESSAGE}\n\nthree") == "one\ntwo\n\nthree"


def test_a_report_that_was_torn_is_no_success(script, instance):
    command = script(
        """
        import sys
        from dagster_pipes import open_dagster_pipes
        with open_dagster_pipes() as pipes:
            sys.stderr.write('{"__dagster_pipes_version": "0.1", "method": "report_asset_mat#### another process\\n')
        """
    )
    result = made_by(instance, command, raise_on_error=False)
    assert not result.success
    text = result.get_step_failure_events()[0].step_failure_data.error.to_string()
    assert "could not be read" in text and "another process" in text


def test_lines_and_logs_appear_while_the_program_runs(script, instance, tmp_path):
    command = script(
        f"""
        import pathlib, time
        from dagster_pipes import open_dagster_pipes
        with open_dagster_pipes() as pipes:
            pipes.log.info("still running")
            end = time.monotonic() + 60
            while not pathlib.Path({str(tmp_path / "go")!r}).exists() and time.monotonic() < end:
                time.sleep(0.02)
        """
    )
    seen: list[bool] = []

    def watch() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not seen:
            with contextlib.suppress(Exception):  # its database may not be there yet
                runs = instance.get_runs(limit=1)
                if runs and any(entry.user_message == "still running" for entry in instance.all_logs(runs[0].run_id)):
                    seen.append(not runs[0].is_finished)
            time.sleep(0.05)
        (tmp_path / "go").touch()

    thread = threading.Thread(target=watch)
    thread.start()
    made_by(instance, command)
    thread.join()
    assert seen == [True]


def trains(factor: float) -> None:
    from kinetic_orchestration import current

    with open_dagster_pipes() as pipes:
        if current().host_index == 0:
            pipes.report_asset_materialization({"loss": factor * pipes.get_extra("loss")})


def test_a_function_speaks_pipes_too(instance):
    @dg.asset
    def model(context: dg.AssetExecutionContext, pipes: PipesKineticClient):
        return pipes.run(context=context, function=trains, args=(3,), extras={"loss": 0.5}).get_materialize_result()

    client = PipesKineticClient(KineticResource(), accelerator="v5e-16")
    result = dg.materialize([model], instance=instance, resources={"pipes": client})
    [made] = result.asset_materializations_for_node("model")
    assert values(made.metadata) == {"loss": 1.5} and made.metadata["kinetic/accelerator"].value == "v5e-16"


def test_two_sessions_in_one_step_are_two_jobs_and_none_loses_its_messages(script, instance):
    command = script(
        """
        import sys
        from dagster_pipes import open_dagster_pipes
        with open_dagster_pipes() as pipes:
            pipes.report_custom_message(sys.argv[1])
        """
    )
    told: list[Any] = []

    @dg.asset
    def model(context: dg.AssetExecutionContext, pipes: PipesKineticClient, kinetic: KineticResource):
        told.append(kinetic.run(pow, (2, 3), accelerator="cpu", context=context))
        for name in ("first", "second"):
            invocation = pipes.run(context=context, command=[*command, name])
            told.extend(invocation.get_custom_messages())
        return invocation.get_materialize_result()

    resources = {"pipes": PipesKineticClient(accelerator="cpu"), "kinetic": KineticResource()}
    dg.materialize([model], instance=instance, resources=resources)
    assert told == [8, "first", "second"]


def test_settings_may_come_from_the_environment(script, instance, monkeypatch, tmp_path):
    monkeypatch.setenv("MY_STORE", str(tmp_path / "store-of-mine"))
    client = PipesKineticClient(KineticResource(store=dg.EnvVar("MY_STORE")), accelerator="cpu")
    made_by(instance, script("pass\n"), client)
    assert (tmp_path / "store-of-mine").is_dir()


@pytest.mark.parametrize(
    "given, says",
    [
        ({}, "either command="),
        ({"command": ["python"], "function": trains}, "either command="),
        ({"command": []}, "a list of strings"),
        ({"command": ["python"], "cwd": "/no/such/folder"}, "does not exist"),
        ({"command": ["python"], "spott": True}, "did you mean spot"),
        ({"command": ["python"], "extras": {"a": os.urandom(200_000).hex()}}, "large extras"),
        ({"command": ["python"], "timeout": "soon"}, "limits.total"),
    ],
)
def test_what_cannot_be_is_refused_with_the_fix(given, says):
    @dg.op
    def refused(context: dg.OpExecutionContext, pipes: PipesKineticClient):
        pipes.run(context=context, accelerator="cpu", **given)

    with pytest.raises(UsageError) as caught:
        refused(dg.build_op_context(), pipes=PipesKineticClient())
    assert says in str(caught.value)


def test_a_wrong_option_of_the_client_is_refused_where_it_is_written():
    with pytest.raises(UsageError, match="did you mean spot"):
        PipesKineticClient(accelerator="cpu", spott=True)


@pytest.mark.parametrize(
    "timeout, total, resources, wanted",
    [
        ("1h", None, None, "1h"), ("1h", "2h", None, 3600.0), ("3h", "2h", None, 7200.0), (60, "2h", None, 60.0),
        ("3h", None, "2h", 7200.0), ("1h", None, "2h", 3600.0), ("3h", "4h", "1h", 10800.0), (None, "2h", "1h", "2h"),
    ],
)  # fmt: skip
def test_of_a_timeout_and_a_limit_the_smaller_one_holds(timeout, total, resources, wanted):
    found = within({"limits": Limits(run="1h", total=total)}, timeout, resources)["limits"]
    assert found == Limits(run="1h", total=wanted)


def test_a_timeout_ends_the_job(script, instance):
    command = script("import time\ntime.sleep(60)\n")
    result = made_by(instance, command, raise_on_error=False, timeout=1.5)
    assert "passed a limit" in result.get_step_failure_events()[0].step_failure_data.error.to_string()


def test_numbers_of_a_command_are_metrics_of_the_step_and_its_messages_stay_whole(script, instance):
    command = script(
        """
        from dagster_pipes import open_dagster_pipes
        with open_dagster_pipes() as pipes:
            for step in range(3):
                print(f"step: {step}/3, loss: {1 / (step + 1)}")
            pipes.report_asset_materialization(metadata={"bar": 1})
        """
    )
    [made] = made_by(instance, command, metrics="torchrun").asset_materializations_for_node("model")
    assert made.metadata["kinetic/metrics/loss"].value == 1 / 3 and made.metadata["bar"].value == 1


def test_a_function_has_no_lines_to_read():
    @dg.asset
    def model(context: dg.AssetExecutionContext, pipes: PipesKineticClient):
        return pipes.run(context=context, function=print, metrics="torchrun").get_results()

    with pytest.raises(UsageError, match=r"a function calls current\(\)\.log_metrics"):
        dg.materialize([model], resources={"pipes": PipesKineticClient(accelerator="cpu")})


INTERRUPTED = """
import sys
import dagster as dg
from dagster_kinetic import PipesKineticClient

@dg.op
def train(context: dg.OpExecutionContext, pipes: PipesKineticClient):
    pipes.run(context=context, command=["python", "train.py"], accelerator="cpu")

@dg.job(resource_defs={"pipes": PipesKineticClient()})
def work():
    train()

work.execute_in_process(raise_on_error=False)
"""


@pytest.mark.slow
@pytest.mark.turn(4)
def test_the_program_ends_with_its_run(script, tmp_path):
    """A run of its own, outside of any instance: nobody could come back for its job."""
    script(
        "import os, pathlib, time\npathlib.Path(os.environ['PIDS'], 'pid').write_text(str(os.getpid()))\ntime.sleep(90)\n"
    )
    (tmp_path / "work.py").write_text(INTERRUPTED)
    pids = tmp_path / "pids"
    pids.mkdir()
    process = subprocess.Popen([sys.executable, "work.py"], cwd=tmp_path, env=os.environ | {"PIDS": str(pids)})
    deadline = time.monotonic() + 90
    while not (pids / "pid").exists() or not (pids / "pid").read_text():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=60)
    assert not Path(f"/proc/{(pids / 'pid').read_text()}").exists()
