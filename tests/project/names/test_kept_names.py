"""Names that others keep: Airflow's and Dagster's databases, installed metadata, records in a store, user code.

A module may move and a class may be renamed; a name in this file may not, or what was written by an older version, or
imports a name of an older version, is not understood any more.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import airflow_kinetic
import dagster_kinetic
from airflow_kinetic.get_provider_info import get_provider_info
from dagster_kinetic.resource.config import TAG
from dagster_kinetic.step import ticket as tickets
from kinetic_orchestration import testing
from kinetic_orchestration.protocol import names

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[3]
PLACE = {
    "store": "gs://models/runs", "deployment": "production", "backend": "tpu-vm", "project": "tpus",
    "gcp_conn_id": "google_cloud_default", "impersonation_chain": None, "cluster": "prod", "namespace": "training",
}  # fmt: skip
PIN = {
    "epoch": 2, "max_tries": 3, "job_id": "train-1", "place": PLACE, "tried": 1, "clears": 0, "life": "0123abcd",
}  # fmt: skip
PIN_IN_A_STORE = {**PIN, "begun": "2026-01-25T03:00:00.250000+00:00"}  # of Airflow before 3.3
KEPT_BY_A_TRIGGER = {
    "job_id": "train-1", "place": PLACE, "cursor": [1, "", [], [0, 0, 0], "", ""], "deferred": 12.5, "deadline": None,
    "poll_interval": 0.0, "get_logs": True, "keeps": True, "metrics": None, "limit": None,
}  # fmt: skip
TICKET = {
    "job": "train-1", "assets": ["far"], "run": "a run", "step": "far", "partition": "2026-01-25", "call": "1",
    "spec": "0123", "store": "gs://models/runs", "deployment": "production",
}  # fmt: skip


# ---- installed metadata ------------------------------------------------------------------------------------


def test_the_entry_points_are_where_airflow_dagster_and_pytest_look_for_them() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(project["scripts"]) == {"kinetic-orchestration", "kinor", "ko"}
    assert project["entry-points"] == {
        "apache_airflow_provider": {"provider_info": "airflow_kinetic.get_provider_info:get_provider_info"},
        "dagster_dg_cli.registry_modules": {"dagster_kinetic": "dagster_kinetic"},
        "pytest11": {"kinetic": "kinetic_orchestration.testing.fixtures"},
    }


def test_the_provider_names_the_modules_and_classes_that_it_always_named() -> None:
    info = get_provider_info()
    distribution = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["name"]
    assert info["package-name"] == distribution == "kinetic-orchestration", "or Airflow does not register it"
    kinds = ("hooks", "operators", "sensors", "triggers")
    assert {kind: [module for entry in info[kind] for module in entry["python-modules"]] for kind in kinds} == {
        "hooks": ["airflow_kinetic.hooks.kinetic"],
        "operators": [
            "airflow_kinetic.operators.kinetic",
            "airflow_kinetic.operators.inference",
            "airflow_kinetic.operators.reap",
            "airflow_kinetic.operators.release",
        ],
        "sensors": ["airflow_kinetic.sensors.kinetic"],
        "triggers": ["airflow_kinetic.triggers.kinetic"],
    }
    assert info["extra-links"] == [
        "airflow_kinetic.links.kinetic.KineticJobLink",
        "airflow_kinetic.links.kinetic.KineticLogLink",
        "airflow_kinetic.links.kinetic.KineticConsoleLink",
        "airflow_kinetic.links.kinetic.KineticCurvesLink",
        "airflow_kinetic.links.kinetic.KineticProfileLink",
    ]
    assert info["task-decorators"] == [
        {"name": "kinetic", "class-name": "airflow_kinetic.decorators.kinetic.kinetic_task"}
    ]
    assert {section: set(entry["options"]) for section, entry in info["config"].items()} == {
        "kinetic": {"xcom_limit", "log_lines_per_second", "defer_after"}
    }


# ---- public names ------------------------------------------------------------------------------------------


def test_the_public_names_of_each_package_are_there() -> None:
    assert set(airflow_kinetic.__all__) == {
        "KineticData", "KineticEvaluateOperator", "KineticHook", "KineticJobSensor", "KineticJobTrigger", "KineticReapOperator",
        "KineticReleaseOperator", "KineticServeBatchOperator", "KineticTPUOperator", "kinetic_task",
    }  # fmt: skip
    assert set(dagster_kinetic.__all__) == {
        "HostContext", "KineticJobComponent", "KineticResource", "KineticRunConfig", "MapResult", "PipesKineticClient",
        "build_kinetic_completion_sensor", "build_kinetic_reaper_sensor", "dagster_plus_branches", "evaluation_check",
        "kinetic_asset", "kinetic_multi_asset", "kinetic_op",
    }  # fmt: skip
    assert set(testing.__all__) == {
        "BackendContract", "Cloud", "Cluster", "Emulator", "Ledger", "Machine", "NodePool", "Refusal", "StoreContract",
        "Timing", "random_faults",
    }  # fmt: skip
    assert testing.refusals.no_capacity("us-west4-a", 1).__class__ is testing.Refusal
    for package in (dagster_kinetic, testing):
        assert all(getattr(package, name) is not None for name in package.__all__)


def test_the_exceptions_of_a_task_are_there() -> None:
    exceptions = importlib.import_module("airflow_kinetic.exceptions")
    assert set(exceptions.__all__) == {
        "DeploymentBusy", "DeploymentFailed", "EngineLost", "EngineNotStarted", "ManifestRefused", "NotAModel",
        "PromotionRefused", "RegistryError", "ScoresTooLow", "ServingError",
        "BackendError", "BudgetExceeded", "CredentialsError", "Denied", "JobCancelled", "JobError", "JobFailed", "JobLost", "JobNotFound",
        "JobTimedOut", "KineticError", "NoPlace", "RequirementsError", "ResultNotPicklable", "ResultNotTrusted",
        "StoreError", "Unreachable", "UsageError",
    }  # fmt: skip
    assert all(issubclass(getattr(exceptions, name), Exception) for name in exceptions.__all__)


def test_the_fixtures_of_the_plugin_are_there() -> None:
    fixtures = importlib.import_module("kinetic_orchestration.testing.fixtures")
    assert {"tpu_cloud", "tpu_cloud_session"} <= set(vars(fixtures))


# ---- Airflow's database ------------------------------------------------------------------------------------

AIRFLOWS_SIDE = """
import asyncio, json, sys

import airflow_kinetic
from airflow_kinetic.shared.tries import ownership, task_identity
from airflow_kinetic.decorators.kinetic import KineticDecoratedOperator
from airflow_kinetic.links import kinetic as links
from airflow_kinetic.shared.outcome import JOB_KEY, OUTPUT_KEY, WHERE_KEY
from kinetic_orchestration.platforms.registry import open_store

given, folder = json.loads(sys.argv[1]), sys.argv[2]
Trigger = airflow_kinetic.KineticJobTrigger
there = {**given["place"], "store": folder, "backend": "local", "project": ""}
store = open_store(folder, there["deployment"])
ownership.take_ownership(store, "train-1", "a token", within=9.0)


async def first(trigger):
    async for event in trigger.run():
        return event.payload


kept, in_store = (task_identity.Pin.from_json(given[name]) for name in ("pin", "in_store"))
new = ("clears", "life", "cluster", "namespace")
past = {name: value for name, value in given["pin"].items() if name not in new}
past["place"] = {name: value for name, value in past["place"].items() if name not in new}
older = task_identity.Pin.from_json(past)
print(json.dumps({
    "trigger": Trigger(**given["trigger"]).serialize(),
    "heard": Trigger(**given["trigger"], heard=True).serialize()[1]["heard"],
    "event": asyncio.run(first(Trigger(**{**given["trigger"], "place": there}))),
    "pin": [kept.to_json(), in_store.to_json(), in_store._fields, older.life, older.clears, older.place.cluster, older.place.namespace],
    "keys": [task_identity.KEY, JOB_KEY, WHERE_KEY, OUTPUT_KEY],
    "links": {kind.__name__: [kind().xcom_key, kind.__module__] for kind in vars(links).values()
              if isinstance(kind, type) and issubclass(kind, links._Link) and kind is not links._Link},
    "urls": airflow_kinetic.KineticTPUOperator.kinetic_urls == {},
    "classes": [f"{kind.__module__}.{kind.__qualname__}" for kind in (
        *(getattr(airflow_kinetic, name) for name in airflow_kinetic.__all__), KineticDecoratedOperator)],
}))
"""


@pytest.fixture(scope="module")
def airflows_side(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The names in a process of Airflow's, with an empty home."""
    folder = tmp_path_factory.mktemp("airflow")
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW_", "KINETIC_"))}
    given = json.dumps({"place": PLACE, "pin": PIN, "in_store": PIN_IN_A_STORE, "trigger": KEPT_BY_A_TRIGGER})
    done = subprocess.run(
        [sys.executable, "-c", AIRFLOWS_SIDE, given, str(folder / "store")],
        env=outside | {"AIRFLOW_HOME": str(folder / "home"), "KINETIC_HOME": str(folder / "kinetic")},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    [record] = folder.rglob(names.keeper("train-1"))
    found["keeper"] = json.loads(record.read_bytes().splitlines()[0])
    return found


def test_a_trigger_is_kept_by_its_path_and_by_these_arguments(airflows_side: dict[str, Any]) -> None:
    path, kept = airflows_side["trigger"]
    assert path == "airflow_kinetic.triggers.kinetic.KineticJobTrigger"
    assert kept == KEPT_BY_A_TRIGGER
    assert airflows_side["heard"] is True


def test_the_event_of_a_trigger_has_these_fields(airflows_side: dict[str, Any]) -> None:
    event = airflows_side["event"]
    assert set(event) == {
        "job_id", "place", "cursor", "spec_digest", "ended", "how", "message", "limit", "metrics",
    }  # fmt: skip
    assert event["how"] == "unreachable" and set(event["place"]) == set(PLACE)


def test_the_other_two_ends_of_a_trigger_have_the_names_that_tasks_know() -> None:
    text = (ROOT / "airflow_kinetic" / "triggers" / "kinetic.py").read_text("utf-8")
    assert 'ENDED, OUT_OF_TIME, UNREACHABLE = "ended", "out of time", "unreachable"' in text


def test_what_a_task_keeps_of_its_job_is_read_again(airflows_side: dict[str, Any]) -> None:
    kept, in_store, fields, *older = airflows_side["pin"]
    assert (kept, in_store) == (PIN, PIN_IN_A_STORE), (
        "one in Airflow's database, one where its DAG run does not take it with it"
    )
    assert fields == list(PIN_IN_A_STORE)
    assert older == ["", None, "", ""], "as an older version wrote it"


def test_the_keys_of_a_tasks_state_and_of_its_xcoms(airflows_side: dict[str, Any]) -> None:
    assert airflows_side["keys"] == ["kinetic", "kinetic_job_id", "kinetic_where", "kinetic_output_dir"]
    module = "airflow_kinetic.links.kinetic"
    assert airflows_side["links"] == {
        "KineticJobLink": ["kinetic_job_link", module],
        "KineticLogLink": ["kinetic_log_link", module],
        "KineticConsoleLink": ["kinetic_console_link", module],
        "KineticCurvesLink": ["kinetic_curves_link", module],
        "KineticProfileLink": ["kinetic_profile_link", module],
    }
    assert airflows_side["urls"] is True


def test_a_serialised_dag_finds_the_classes_that_it_names(airflows_side: dict[str, Any]) -> None:
    assert set(airflows_side["classes"]) == {
        "airflow_kinetic.decorators.kinetic.KineticDecoratedOperator",
        "airflow_kinetic.decorators.kinetic.kinetic_task",
        "airflow_kinetic.hooks.kinetic.KineticHook",
        "airflow_kinetic.operators.inference.KineticEvaluateOperator",
        "airflow_kinetic.operators.inference.KineticServeBatchOperator",
        "airflow_kinetic.operators.kinetic.KineticTPUOperator",
        "airflow_kinetic.operators.reap.KineticReapOperator",
        "airflow_kinetic.operators.release.KineticReleaseOperator",
        "airflow_kinetic.sensors.kinetic.KineticJobSensor",
        "airflow_kinetic.shared.parameters.later_data.KineticData",
        "airflow_kinetic.triggers.kinetic.KineticJobTrigger",
    }


# ---- a store -----------------------------------------------------------------------------------------------


def test_the_record_of_who_looks_after_a_job_has_these_fields(airflows_side: dict[str, Any]) -> None:
    assert names.keeper("train-1") == "jobs/train-1/in/keeper.json"
    kept = airflows_side["keeper"]
    assert (kept["keeper"], kept["within"]) == ("a token", 9.0)


# ---- Dagster's storage -------------------------------------------------------------------------------------


def test_the_tags_of_runs_and_the_key_of_an_event() -> None:
    assert (tickets.WAITS, tickets.ASSET_WAITS, TAG) == (
        "kinetic/detached", "kinetic/detached", "dagster-kinetic/config"
    )  # fmt: skip
    assert (tickets.WAITING, tickets.FINISHED, tickets.LOGGED) == ("waiting", "finished", "kinetic/ticket")
    kinds = (tickets.TICKET, tickets.ENDED, tickets.FINISHES)
    assert [tickets.tag_of(kind, "far away") for kind in kinds] == [
        "kinetic/detached.far_away", "kinetic/ended.far_away", "kinetic/finishes.far_away"
    ]  # fmt: skip


def test_a_ticket_is_kept_by_the_names_of_its_fields() -> None:
    ticket = tickets.Ticket.from_text(json.dumps({**TICKET, "newer": "a field of a later version"}))
    assert json.loads(ticket.to_text()) == TICKET
    few = {"job": "train-1", "assets": ["far"], "run": "a run", "step": "far"}
    assert json.loads(tickets.Ticket.from_text(json.dumps(few)).to_text()) == few


def test_dagster_knows_the_package_and_yaml_names_the_component() -> None:
    from dagster_shared.libraries import DagsterLibraryRegistry

    assert "dagster-kinetic" in DagsterLibraryRegistry.get()
    assert dagster_kinetic.KineticJobComponent.__name__ == "KineticJobComponent"


def test_a_result_of_a_map_that_was_pickled_before_is_read_again() -> None:
    """A filesystem I/O manager stores such a pickle for an op that returns the result of `map`."""
    assert pickle.loads(b"cdagster_kinetic.fleet\nMapResult\n.") is dagster_kinetic.MapResult
    pickled = pickle.dumps(dagster_kinetic.MapResult(1, None, value=2))
    assert b"dagster_kinetic\x94" in pickled, "by the package's own name, which stays"
    result = pickle.loads(pickled)
    assert (result.ok, result.get()) == (True, 2)


@pytest.mark.parametrize(
    "old", ["job.JobHandle", "job._attached", "batch.BatchError", "values.JobStatus", "values.Attempt", "values.Peek"]
)
def test_what_was_pickled_by_a_program_before_names_modules_that_are_there(old: str) -> None:
    module, _, name = f"kinetic_orchestration.{old}".rpartition(".")
    found = pickle.loads(f"c{module}\n{name}\n.".encode())
    assert found is getattr(importlib.import_module(found.__module__), name)
