"""Tasks of real DAGs, run by Airflow's own `dag.test()`."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.capacity.shares import records
from tests.airflow_kinetic.conftest import Airflow
from tests.support.waits import wait_until

pytestmark = pytest.mark.timeout(300)  # the first one starts Airflow


def test_a_task_waits_on_its_worker_and_its_templates_are_rendered(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="waits_on_a_worker")
    assert done["states"] == {"train": "success"}
    value = done["xcoms"]["train/return_value"]
    assert value["day"] == "waits_on_a_worker"
    assert value["run"].startswith("manual__")
    assert value["same"] == "True"  # run_id came from the context, by its name alone
    assert "one line for waits_on_a_worker" in done["log"]
    assert "DEFERRED" not in done["log"]


def test_a_task_on_this_machine_takes_what_is_said_of_money_and_secrets_for_the_cloud(
    airflow: Airflow, home: Path
) -> None:
    told = {"STORY_TOKEN": "of-the-worker", "NO_GCE_CHECK": "true", "CLOUDSDK_CONFIG": str(home)}
    done = airflow("run_dag", home, environ=told, dag_id="has_a_secret_and_a_cost_limit")
    assert done["xcoms"]["train/return_value"] == "rekrow-eht-fo"
    ranks = re.findall(r"local rank (\d) of 2.*?host=(\d)", done["log"])
    assert sorted(ranks) == [("0", "0"), ("1", "1")], "processes= of a decorated task"
    assert "1 host, 2 processes" in done["log"] and "2 hosts" not in done["log"]


def test_a_task_may_ask_for_several_processes(airflow: Airflow, home: Path) -> None:
    assert airflow("run_dag", home, dag_id="runs_two_processes")["xcoms"]["train/return_value"] == 2


@kinetic.run(accelerator="v5e-4")
def holds(path: str) -> None:
    import os
    import time

    while not os.path.exists(path):
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.turn(1)
def test_a_task_that_waits_for_its_share_of_chips_tells_its_place_in_the_line_in_its_log(
    airflow: Airflow, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting is not a failure and says its place in the line: while the task is deferred, too."""
    monkeypatch.setenv("KINETIC_CHIPS", "v5e=16")
    job = holds.run_async(str(tmp_path / "go"))

    def make_room() -> None:
        wait_until(lambda: records.read(job._job.store).book.line, "the task to wait", within=200.0)
        (tmp_path / "go").touch()
        job.result(timeout=60.0)

    thread = threading.Thread(target=make_room)
    thread.start()
    try:
        done = airflow("run_dag", home, environ={"KINETIC_CHIPS": "v5e=16"}, dag_id="waits_on_a_triggerer")
    finally:
        (tmp_path / "go").touch()
        thread.join()
    assert done["states"] == {"train": "success", "after": "success"}
    assert "queued: 1st in line for 16 of v5e=16 chips (4 in use)" in done["log"]


EACH_HOST = "first line of {}; same; same; done"


def test_a_deferred_task_shows_the_lines_of_all_hosts_and_hands_its_value_on(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="waits_on_a_triggerer")
    assert done["states"] == {"train": "success", "after": "success"}
    assert "DEFERRED" in done["log"]
    lines = [line for line in done["log"].splitlines() if "kinetic.host" in line]
    for host in range(4):
        mine = [line for line in lines if f"host={host}" in line]
        texts = [re.split(r"\s{2,}|\s\[kinetic", line.split("] ", 1)[1])[0] for line in mine]
        metrics = texts.index("metrics step 1: loss=0.25")  # by another way than what is printed
        assert [*texts[:metrics], *texts[metrics + 1 :]] == [f"first line of {host}", "same", "same", "done"]
        times = [line.split()[0] for line in mine]
        assert times == sorted(set(times)), "each line has a later time than the one before, its own"
    begin, end = done["log"].index("::group::The last 16 lines of job"), done["log"].rindex("::endgroup::")
    again = done["log"][begin:end]
    assert begin > done["log"].rindex("host=3"), "on the worker, whatever becomes of what the trigger has written"
    for host in range(4):
        assert re.findall(rf"Z \[host {host}\] (.*?)(?:\s{{2,}}|\s\[kinetic|$)", again, re.M) == EACH_HOST.format(
            host
        ).split("; ")
    # The function used its file's globals and a module beside it: 2 * 4 + 100.
    assert done["xcoms"]["train/value"] == 108
    assert done["xcoms"]["train/hosts"] == 4
    assert done["xcoms"]["after/return_value"] == 109


def test_a_task_whose_job_ends_in_a_moment_is_not_deferred(airflow: Airflow, home: Path, tmp_path: Path) -> None:
    done = airflow("ends_soon_or_outlasts", home, file=str(tmp_path / "count"), marker=str(tmp_path / "begun"))
    assert done["value"] == 1
    assert done["deferred"], "of a job that outlasts that"
    assert done["status"] == "CANCELLED"


def test_a_try_loads_its_settings_once_in_each_process(airflow: Airflow, home: Path, tmp_path: Path) -> None:
    done = airflow("loads_of_a_try", home, marker=str(tmp_path / "begun"))
    assert done["is deferred"] == done["is resumed"] == 1
    assert done["waits"] == 2, "the second one is for the prices, in the report at its end"


def test_fields_that_hold_nothing_are_no_fields_of_a_run(airflow: Airflow, home: Path) -> None:
    done = airflow("fields_of_a_run", home)
    assert done["shown"] == {
        "op_args": ["monday"], "zone": "us-west4-a", "accelerator": "cpu", "gcp_conn_id": "google_cloud_default"
    }  # fmt: skip
    assert len(done["all"]) == 29, "while the DAG is parsed all of them may be templates"


def test_a_mapped_task_is_one_job_for_each_index(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="is_mapped")
    assert done["state"] == "success"
    assert done["xcoms"]["total/return_value"] == 11 + 14 + 19
    assert len(set(re.findall(r"Job (job-\w+)\.", done["log"]))) == 3 + 1  # and one for their sum


def test_a_failure_is_the_users_own_exception_with_the_traceback_of_the_host(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="fails")
    assert done["states"] == {"train": "failed"}
    assert "ValueError: the learning rate exploded" in done["log"]
    assert "deep_inside()" in done["log"]
    assert "Raised on host 0 of job job-" in done["log"]
    record = done["log"].partition(" [error ")[2].partition("All of it:")[0]
    assert re.match(r"\s*\] ValueError: the learning rate exploded\s*\n +File .*, in deep_inside\n +raise", record), (
        record
    )
    assert "RemoteTraceback: on host 0 of job job-" in done["log"], "and the page shows causes, and no notes"


def test_what_a_module_needs_that_uses_airflow_on_a_host_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host has no database of Airflow's: what SQLAlchemy says of that helps nobody."""
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "nothing://at-all")

    def asks() -> None:
        from airflow import settings

        settings.initialize()

    with pytest.raises(Exception, match=r"sqlalchemy\.dialects:nothing") as raised:
        kinetic.run(accelerator="cpu", capture_env_vars=["AIRFLOW__*"])(asks)()
    notes = "\n".join(raised.value.__notes__)
    assert "uses Airflow, of which a host has no configuration, no connections and no database" in notes
    assert "hand the function what it needs of it as arguments" in notes


def test_a_value_that_is_no_small_json_stays_in_the_store_and_its_uri_is_in_xcom(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="returns_more_than_json")
    assert done["state"] == "success"
    uri = done["xcoms"]["train/return_value"]
    assert uri.startswith("file://")
    assert Path(uri.removeprefix("file://")).is_file()
    assert done["xcoms"]["where/return_value"] == uri


def test_a_retry_runs_a_failed_job_again(airflow: Airflow, home: Path, tmp_path: Path) -> None:
    marker = tmp_path / "tries"
    marker.touch()
    done = airflow("run_dag", home, dag_id="is_retried", conf={"marker": str(marker)})
    assert done["states"] == {"train": "success"}
    assert done["xcoms"]["train/return_value"] == "xx"


def test_what_cannot_travel_is_refused_by_name(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="asks_for_its_task_instance")
    assert done["states"] == {"train": "failed"}
    assert "asks for 'ti' of the task's context, which cannot travel" in done["log"]


def test_what_is_no_json_after_rendering_is_refused_by_its_path(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="is_given_no_json")
    assert done["states"]["train"] == "failed"
    assert Path(home, "tries-of-train").read_text() == "1", "each try would be refused"
    assert re.search(r"AirflowFailException: op_args\[0\].*Once that is repaired, clear the task", done["log"])
    assert (
        "UsageError: op_args[0]['data'][0]['since'] is a datetime.datetime after rendering, which is no JSON. Pass text, "
        "numbers, lists and dicts of them, or Data(…) for files; make anything else of them in the function itself"
    ) in done["log"]


def test_a_keyword_argument_that_is_no_json_is_refused_by_its_path(airflow: Airflow, home: Path) -> None:
    done = airflow(
        "rendered_arguments", home, params={"given": [1]},
        options={"op_kwargs": {"data": ["{{ params.given }}", {"when": "{{ macros.datetime(2025, 6, 1) }}"}]}}, native=True,
    )  # fmt: skip
    assert done["refused"] == (
        "UsageError: op_kwargs['data'][1]['when'] is a datetime.datetime after rendering, which is no JSON. Pass text, "
        "numbers, lists and dicts of them, or Data(…) for files; make anything else of them in the function itself"
    )


def test_whole_calls_are_mapped(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="expands_whole_calls")
    assert done["states"] == {"scale[0]": "success", "scale[1]": "success"}
    assert [done["xcoms"][f"scale[{index}]/return_value"] for index in (0, 1)] == [10, 21]


def test_a_script_runs_with_its_arguments_and_variables(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="runs_a_script")
    assert done["states"] == {"train": "success"}
    assert "told: --rate runs_a_script 3 templated" in done["log"]
    assert "metrics step 3: loss=0.25" in done["log"]
    log = done["log"].partition("::group::The last")[0]  # in which they are once more
    assert sorted(re.findall(r"rank (\d) is local (\d)", log)) == [("0", "0"), ("1", "1")], "processes="
    assert "train/return_value" not in done["xcoms"]
    output = done["xcoms"]["train/kinetic_output_dir"]
    assert output == kinetic.attach(done["xcoms"]["train/kinetic_job_id"]).output_dir


def test_functions_of_a_bundle_and_of_plain_modules_travel(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="in_a_folder")
    assert done["states"] == {"train": "success", "plain": "success"}
    assert (done["xcoms"]["train/return_value"], done["xcoms"]["plain/return_value"]) == (42, 7)


def test_an_asset_event_tells_the_metrics_and_a_task_without_logs_no_lines(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="makes_an_asset")
    assert done["states"] == {"train": "success"}
    (extra,) = done["events"]
    assert extra["metrics"] == {"step": 2, "loss": 0.25, "gap": "inf"}
    assert "profile" not in extra
    assert not done["xcoms"].get("train/kinetic_profile_link")
    assert extra["job_id"].startswith("job-")
    assert extra["accelerator"] == "cpu"
    assert "this line is not asked for" not in done["log"]


@pytest.mark.slow
@pytest.mark.turn(7)
def test_links_lead_to_the_records_the_whole_log_and_a_profile_that_was_asked_for(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="makes_an_asset", conf={"framework": "jax", "profile": "2 steps"})
    job = done["events"][0]["job_id"]
    place = Path(done["xcoms"]["train/kinetic_profile_link"].removeprefix("file://"))
    assert (place / f"plugins/profile/{job}-1/host-0000.xplane.pb").is_file()
    assert str(place) == done["events"][0]["profile"]
    assert f"The profile of job {job}: xprof --logdir {place}" in done["log"]
    folder = Path(done["xcoms"]["train/kinetic_job_link"].removeprefix("file://"))
    assert folder.name == job
    assert (folder / "in" / "spec.json").is_file()
    assert Path(done["xcoms"]["train/kinetic_log_link"].removeprefix("file://")).is_dir()
    assert not done["xcoms"]["train/kinetic_console_link"], "what leads nowhere is no button"


@pytest.mark.slow
@pytest.mark.turn(7)
def test_a_deferred_task_that_is_out_of_time_ends_and_so_does_its_job(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="is_out_of_time")
    assert done["states"] == {"train": "failed"}
    assert "AirflowTaskTimeout: the task was out of time after 0:00:40, its execution_timeout; job job-" in done["log"]
    (job,) = set(re.findall(r"Job (job-\w+)\.", done["log"]))
    assert airflow("ends", home, job_id=job)["status"] == "CANCELLED"


def test_sensors_wait_for_the_jobs_of_others(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="senses")
    assert done["xcoms"]["deferred/return_value"] == 102
    assert done["xcoms"]["poked/return_value"] == 104
    assert done["states"]["of_a_failure"] == "failed"
    assert "JobFailed: job job-" in done["log"]


CONFLICT = (
    "ConflictingSettings: deferrable=True and durable=False exclude each other: between two of its legs a deferred task "
    "is only found again by what durable keeps. Leave durable out, or wait on a worker with deferrable=False"
)

WRONG = {
    "no such slice": ({"accelerator": "v5e-17"}, "UnknownAccelerator.*v5e-16"),
    "exclusive flags": ({"deferrable": True, "durable": False}, re.escape(CONFLICT)),
    "no flag": ({"durable": "yes"}, "durable is 'yes', and should be True or False"),
    "nothing to run": ({"python_callable": None}, "python_callable= or script=: give one of them"),
    "two things to run": ({"script": "train.py"}, "python_callable= or script=: give one of them"),
    "an option that is gone": ({"data_disks": ["corpus"]}, r"data_disks=….: no disk is mounted.*Data\('gs://"),
    "no way to take a clear": ({"on_clear": "keep"}, "on_clear is 'keep': it can be 'rerun' or 'adopt'"),
    "what nothing keeps": (
        {"on_clear": "adopt", "durable": False},
        "on_clear='adopt' and durable=False exclude each other",
    ),
    "an event of what is not made yet": ({"wait": False, "outlets": ["model"]}, "Give them to the KineticJobSensor"),
    "no pace": ({"poll_interval": -1}, "poll_interval is -1"),
    "no dict": ({"op_kwargs": [1]}, r"op_kwargs is \[1\], which is no dict"),
    "no variables": ({"env": ["A"]}, r"env is \['A'\], which is no dict: write env="),
    "numbers of a function": ({"metrics": "torchrun"}, r"metrics= reads the numbers of a script: a function calls"),
    "a script's names": ({"python_callable": None, "script": "a.py", "op_kwargs": {"lr": 1}}, r"op_args=\['--lr'"),
}


@pytest.mark.parametrize(("options", "told"), WRONG.values(), ids=WRONG)
def test_bad_input_is_refused_while_the_dag_is_parsed(
    airflow: Airflow, tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    assert re.search(told, airflow("declare", tmp_path / "home", options=options)["refused"])


UNKNOWN = "UnknownAccelerator: No accelerator 'v5e-17': v5e has no slice of 17 chips"
MAPPED: dict[str, tuple[dict[str, Any], str]] = {
    "a slice": ({"options": {"accelerator": "v5e-17"}}, UNKNOWN),
    "a slice among others": ({"mapped": {"accelerator": ["v5e-8", "v5e-17"]}}, UNKNOWN),
    "a slice of a whole call": ({"calls": [{"accelerator": "v5e-8"}, {"accelerator": "v5e-17"}]}, UNKNOWN),
    "flags": ({"options": {"deferrable": True, "durable": False}}, CONFLICT),
    "a flag of one index": ({"options": {"durable": False}, "mapped": {"deferrable": [False, True]}}, CONFLICT),
    "a flag of the DAG": ({"options": {"durable": False}, "default_args": {"deferrable": True}}, CONFLICT),
    "events": (
        {"options": {"wait": False, "outlets": ["model"]}},
        "ConflictingSettings: wait=False and outlets exclude",
    ),
    "no flag": ({"options": {"get_logs": "no"}}, "UsageError: get_logs is 'no', and should be True or False"),
}


@pytest.mark.parametrize(("declared", "told"), MAPPED.values(), ids=MAPPED)
def test_a_mapped_task_is_refused_while_the_dag_is_parsed(
    airflow: Airflow, tmp_path: Path, declared: dict[str, Any], told: str
) -> None:
    ways = ("operator",) if {"mapped", "calls"} & declared.keys() else ("operator", "decorator", "overridden")
    refused = airflow("declare_mapped", tmp_path / "home", ways=ways, **declared)["refused"]
    assert [text[: len(told)] for text in refused] == [told] * len(ways)


def test_a_generator_is_refused_while_the_dag_is_parsed(airflow: Airflow, tmp_path: Path) -> None:
    told = "NotAFunction: yields is a generator, which cannot give its values from another machine: return them"
    refused = airflow("declare_generators", tmp_path / "home")["refused"]
    assert [text[: len(told)] for text in refused] == [told] * 4


def test_what_a_mapped_task_is_given_by_another_one_is_not_refused_before(airflow: Airflow, tmp_path: Path) -> None:
    given: dict[str, Any] = {"accelerator": "{{ params.slice }}", "durable": False, "deferrable": False}
    ways = ["operator", "decorator", "overridden", "of_another", "of_a_subclass", "in_a_mapped_group"]
    assert airflow("declare_mapped", tmp_path / "home", ways=ways, options=given)["refused"] == [None] * len(ways)


@pytest.mark.parametrize(
    "options",
    [
        {"accelerator": "{{ params.slice }}"},
        {"accelerator": "{{ params.gpus }}", "processes": "gpu"},
        {"backend": "tpu-vm", "store": "{{ var.value.store }}"},
        {"labels": "{{ params.labels }}", "zones": "{{ params.zones }}", "op_args": "{{ params.args }}"},
    ],
    ids=str,
)
def test_what_is_known_only_when_it_is_rendered_is_not_refused_before(
    airflow: Airflow, tmp_path: Path, options: dict[str, Any]
) -> None:
    assert "refused" not in airflow("declare", tmp_path / "home", options=options)


@pytest.mark.parametrize(
    "zones", ["{{ params.zones }}", "{{ params.zones | join(', ') }}", ["{{ params.zones[0] }}", "b-2"]]
)
def test_zones_are_a_list_or_a_template_of_one(airflow: Airflow, home: Path, zones: Any) -> None:
    done = airflow("rendered_zones", home, zones=zones, params={"zones": ["a-1", "b-2"]})
    assert done["zones"] == ["a-1", "b-2"]


@pytest.mark.parametrize("name", ["op_args", "op_kwargs", "env", "labels"])
def test_a_template_of_a_whole_list_or_dict_is_refused_with_the_fix(airflow: Airflow, home: Path, name: str) -> None:
    done = airflow("rendered_arguments", home, options={name: "{{ params.given }}"}, params={"given": [1]})
    assert re.match(
        rf"UsageError: {name} is the text '\[1\]' after .*render_template_as_native_obj=True", done["refused"]
    )


@pytest.mark.slow
@pytest.mark.turn(7)  # with others that need this module's Airflow
def test_the_example_runs_as_it_stands(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="airflow_retrain")
    assert done["state"] == "success"
    assert "on 8 devices" in done["log"]
    assert done["xcoms"]["evaluate/return_value"] < 0.1


def test_the_reaper_runs_as_it_stands(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="airflow_reaper")
    assert done["state"] == "success"
    assert done["xcoms"]["reap/return_value"] == []
