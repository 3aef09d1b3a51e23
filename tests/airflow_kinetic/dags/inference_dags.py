"""DAGs of batch inference and evaluation."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

from airflow_kinetic import KineticData, KineticEvaluateOperator, KineticHook, KineticServeBatchOperator
from kinetic_orchestration import Server


def reversing(model: str | None) -> Callable[[list[dict[str, Any]]], list[Any]]:
    """An engine that is a function: it answers a prompt by its letters from the last to the first."""

    def answer(rows: list[dict[str, Any]]) -> list[Any]:
        return [{"text": row["prompt"][::-1], "tokens_in": 3, "tokens_out": 2} for row in rows]

    return answer


@dag(schedule=None)
def answers_prompts():
    @task
    def prompts() -> list[str]:
        return ["one", "two", "three"]

    batch = KineticServeBatchOperator(
        task_id="batch", model=None, prompts=prompts(), engine=reversing, accelerator="{{ dag_run.conf['on'] }}",
        output_path="{{ dag_run.conf['output'] }}", parameters={"max_tokens": 4}, deferrable=True,
    )  # fmt: skip

    @task
    def rows(report: dict[str, Any]) -> int:
        return report["rows"]

    rows(batch.output)


@dag(schedule=None)
def answers_each_language():
    KineticServeBatchOperator.partial(task_id="batch", model=None, engine=reversing, accelerator="cpu").expand(
        prompts=[["eins"], ["un", "deux"]]
    )


SCRIPT = "import runpy, sys; at = sys.argv.index('--script'); path = sys.argv[at + 1]; del sys.argv[at:at + 2]; "
SCRIPT += "runpy.run_path(path, run_name='__main__')"
SERVER = Server(argv=["{python}", "-c", SCRIPT, "--model", "{model}", "--port", "{port}"], name="of the tests")


def judged(task_id: str, least: float, **more: Any) -> KineticEvaluateOperator:
    return KineticEvaluateOperator(
        task_id=task_id, model="{{ dag_run.conf['model'] }}", tasks=["words"], folder="{{ dag_run.conf['folder'] }}",
        at_least={"words": {"exact_match": least}}, engine=SERVER, accelerator="cpu",
        engine_options={"script": "{{ dag_run.conf['script'] }}", "state": "{{ dag_run.conf['state'] }}"},
        requirements=["lm-eval[api]==0.4.13"], **more,
    )  # fmt: skip


@dag(schedule=None)
def judges_a_model():
    @task
    def promoted(report: dict[str, Any]) -> str:
        return report["output"]

    promoted(judged("good", 0.75, deferrable=True).output)
    promoted.override(task_id="never")(judged("skipped", 0.76, on_low="skip").output)
    judged("failed", 0.76, retries=3, retry_delay=timedelta(0))


CLOUD: dict[str, Any] = {
    "accelerator": "v5e-1", "requirements": [], "deferrable": True, "gcp_conn_id": "of_the_cloud",
}  # fmt: skip


def asked_in_the_cloud(model: Any, output: str) -> KineticServeBatchOperator:
    return KineticServeBatchOperator(
        task_id="answer", model=model, prompts=["one two", "three"], engine=SERVER, output_path=output,
        engine_options={"script": "{{ dag_run.conf['script'] }}", "state": "{{ dag_run.conf['state'] }}"}, **CLOUD,
    )  # fmt: skip


@dag(schedule=None)
def goes_from_one_bucket_to_another():
    @task
    def trained(model: str) -> str:
        return model

    @task.kinetic(**CLOUD)
    def read(model: str) -> list[str]:
        return sorted(path.name for path in Path(model).iterdir())

    @task
    def promote(model: str, output: str, place: str) -> dict[str, Any]:
        import kinetic_orchestration as kinetic

        with KineticHook("of_the_cloud").acting_at(model, place):
            answers = {str(row["prompt"]): str(row["text"]) for row in kinetic.read_answers(output)}
            version = kinetic.promote(model, place, alias="champion", check=lambda _: len(answers) == 2)
        return {"uri": version.uri, "answers": answers}

    place = "{{ dag_run.conf['place'] }}"
    model = trained("{{ dag_run.conf['model'] }}")
    asked = asked_in_the_cloud(model, f"{place}/answers")
    read(KineticData(model, folder=True)) >> asked
    asked >> promote(model, f"{place}/answers", f"{place}/models")


@dag(schedule=None)
def answers_where_no_host_is():
    asked_in_the_cloud("{{ dag_run.conf['model'] }}", "/nowhere/answers")


goes_from_one_bucket_to_another()
answers_where_no_host_is()
answers_prompts()
answers_each_language()
judges_a_model()
