"""Batch inference as a task of real DAGs, run by Airflow's own `dag.test()`."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from airflow_kinetic import KineticEvaluateOperator, KineticServeBatchOperator
from airflow_kinetic.operators.inference import RENAMED
from kinetic_orchestration.api.steps.asked import Batch, Judging, Served
from kinetic_orchestration.errors import UsageError
from tests.airflow_kinetic.conftest import Airflow
from tests.support import openai_server

pytestmark = pytest.mark.timeout(300)  # the first one starts Airflow


def lines(folder: Path) -> dict[str, str]:
    found = [json.loads(line) for part in sorted(folder.iterdir()) for line in part.read_text("utf-8").splitlines()]
    return {one["prompt"]: one["text"] for one in found}


def test_a_deferred_task_answers_what_another_task_gives_and_a_later_run_asks_nothing_again(
    airflow: Airflow, home: Path, tmp_path: Path
) -> None:
    output = tmp_path / "answers"

    def run(on: str) -> dict[str, Any]:
        return airflow("run_dag", home, dag_id="answers_prompts", conf={"output": str(output), "on": on})

    done = run("v5e-1")
    assert done["states"] == {"prompts": "success", "batch": "success", "rows": "success"}
    report = done["xcoms"]["batch/return_value"]
    assert (report["answered"], report["reused"], report["tokens_in"], report["tokens_out"]) == (3, 0, 9, 6)
    assert (report["output"], done["xcoms"]["rows/return_value"]) == (str(output), 3)
    assert lines(output / "parts") == {"one": "eno", "two": "owt", "three": "eerht"}
    cost = kinetic.attach(done["xcoms"]["batch/kinetic_job_id"]).cost().usd
    assert (report["usd"], report["usd_per_million_tokens"]) == (cost, cost / 15 * 1e6) > (0, 0)
    assert report["emulated"], "a processor stands in for the hardware whose price this is"
    again = run("cpu")["xcoms"]["batch/return_value"]
    assert (again["answered"], again["reused"], again["tokens_in"]) == (3, 3, 0)
    assert (again["usd"], again["emulated"]) == (None, False), "no price is known of it"


def test_a_mapped_task_is_one_batch_for_each_list_of_prompts(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="answers_each_language")
    assert done["states"] == {"batch[0]": "success", "batch[1]": "success"}
    assert [done["xcoms"][f"batch[{index}]/return_value"]["answered"] for index in (0, 1)] == [1, 2]


@pytest.mark.parametrize(
    ("operator", "kind", "own"),
    [
        (KineticServeBatchOperator, Batch, {"model", "prompts"}),
        (KineticEvaluateOperator, Judging, {"model", "tasks", "on_low"}),
    ],
)
def test_an_operator_states_the_keywords_of_its_step_with_the_same_defaults(
    operator: type, kind: type[Served], own: set[str]
) -> None:
    stated = inspect.signature(operator).parameters.values()
    found = {one.name: one.default for one in stated if one.kind is one.KEYWORD_ONLY and one.name not in own}
    assert found == {RENAMED.get(entry.name, entry.name): entry.default for entry in fields(kind)}


def test_answers_that_would_end_with_their_hosts_are_refused_before_anything_is_asked_for(
    airflow: Airflow, home: Path, tmp_path: Path
) -> None:
    cloud = {
        "STORAGE_EMULATOR_HOST": "http://127.0.0.1:1",  # nobody answers there
        "KINETIC_STORE": "gs://bucket/kinetic", "KINETIC_DEPLOYMENT": "test",
        "AIRFLOW_CONN_OF_THE_CLOUD": json.dumps(
            {"conn_type": "google_cloud_platform", "extra": {"is_anonymous": True, "project": "project"}}
        ),
    }  # fmt: skip
    conf = {"model": "gs://bucket/model", "script": openai_server.__file__, "state": str(tmp_path)}
    done = airflow("run_dag", home, environ=cloud, dag_id="answers_where_no_host_is", conf=conf)
    assert done["states"] == {"answer": "failed"}
    assert not any(done["xcoms"].values()), "there is no job"
    told = r"(\w+): the output /nowhere/answers is a folder of a machine .*\(gs://… or s3://…\), a folder in a volume"
    assert set(re.findall(told, done["log"])) == {"UsageError", "AirflowFailException"}, "no other try is made"


TASK = """
task: words
dataset_path: json
dataset_kwargs:
  data_files:
    test: words.json
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs:
  until: ["END"]
metric_list:
  - metric: exact_match
"""


@pytest.mark.slow
@pytest.mark.turn(9)
@pytest.mark.timeout(900)  # lm-eval is half a gigabyte, and three servers are asked
def test_a_model_is_judged_and_one_that_is_too_bad_fails_for_good_or_is_skipped(
    airflow: Airflow, home: Path, tmp_path: Path
) -> None:
    """By a server of the tests, which says the words of a prompt backwards: three of four rows want that."""
    model, folder, state = (tmp_path / name for name in ("model", "tasks", "state"))
    for made in (model, folder, state):
        made.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (model / name).write_text("{}")
    (folder / "words.yaml").write_text(TASK)
    wanted = {"a b c": "c b a", "one two": "two one", "x": "x", "yes no": "yes no"}
    rows = [{"question": question, "answer": answer} for question, answer in wanted.items()]
    (folder / "words.json").write_text(json.dumps(rows))
    conf = {"model": str(model), "folder": str(folder), "state": str(state), "script": openai_server.__file__}
    done = airflow("run_dag", home, dag_id="judges_a_model", conf=conf)

    assert done["states"] == {
        "good": "success", "promoted": "success", "skipped": "skipped", "never": "skipped", "failed": "failed",
    }  # fmt: skip
    good, low = done["xcoms"]["good/return_value"], done["xcoms"]["failed/evaluation"]
    assert (good["passed"], good["reasons"], low["passed"]) == (True, [], False)
    assert [(one["task"], one["metric"], one["value"], one["samples"]) for one in good["scores"]] == [
        ("words", "exact_match", 0.75, 4)
    ]
    assert low["reasons"] == ["words: exact_match is 0.75, and at least 0.76 is required"]
    assert low["reasons"][0] in done["log"]
    samples = Path(good["samples"]["words"]).read_text("utf-8").splitlines()
    assert {one["doc"]["question"]: one["exact_match"] for one in map(json.loads, samples)} == {
        question: float(question != "yes no") for question in wanted
    }
    prompts = [json.loads(line)["prompt"] for line in (state / "asked").read_text().splitlines()]
    assert sorted(prompts) == sorted([*wanted] * 3), "a model that is too bad is not judged again"


def test_a_function_of_its_own_a_missing_way_or_bound_is_refused_while_the_dag_is_parsed() -> None:
    given: dict[str, Any] = {"task_id": "t", "model": None, "prompts": ["one"], "accelerator": "cpu"}
    with pytest.raises(UsageError, match="KineticServeBatchOperator takes no python_callable"):
        KineticServeBatchOperator(**given, python_callable=print)
    with pytest.raises(UsageError, match="accelerator"):
        KineticServeBatchOperator(**{**given, "accelerator": "v5e-3000000"})
    judged: dict[str, Any] = {"task_id": "t", "model": "/m", "tasks": ["sums"]}
    with pytest.raises(UsageError, match="on_low is 'stop': it can be 'fail', 'skip', 'return'"):
        KineticEvaluateOperator(**judged, on_low="stop")
    with pytest.raises(UsageError, match="at_least is"):
        KineticEvaluateOperator(**judged, at_least={"sums": 0.5})
