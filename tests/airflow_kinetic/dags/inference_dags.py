"""DAGs of batch inference and evaluation."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from airflow.sdk import dag, task

from airflow_kinetic import KineticEvaluateOperator, KineticServeBatchOperator
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
        task_id="batch", model=None, prompts=prompts(), engine=reversing, accelerator="cpu",
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


answers_prompts()
answers_each_language()
judges_a_model()
