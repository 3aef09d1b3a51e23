"""Shows the whole way of a language model in Airflow: data → pre-training with MaxText → conversion → fine-tuning with
PEFT → answers by batch inference → a check that blocks → promotion → deployment on Kubernetes → smoke test.

The steps are those of whole_llm.py, which whole_llm_dagster.py puts together in Dagster. Put that file beside this one
in Airflow's DAGs folder, with pretrain_maxtext.txt, training_peft.txt and vllm_on_cpu/. A task whose job takes long is
deferred; one that is tried again finds its job, and pre-training goes on at its last checkpoint. If the model answers
too few questions, `check` fails for good, with what it has answered in its log, and nothing after it runs.

PLACE is the folder or bucket of all that runs make. With the parameter "cluster" (or SERVING_CLUSTER) the model is
deployed to a cluster and asked in it; without it nothing is applied: the manifests are in the log of `deploy`, and a
server that runs as the batch did is asked. Each run may be triggered with other parameters.

For a real slice: change whole_llm.py as the docstring of whole_llm_dagster.py says; and set for Airflow's workers and
triggerers PLACE=gs://my-bucket/counting, ENGINE=vllm, KINETIC_STORE, KINETIC_DEPLOYMENT and
KINETIC_REQUIRE_HARDWARE=true. The connection `google_cloud_default` has the project, and says as whom all is asked.

To run it once, with this folder as Airflow's DAGs folder and a migrated database:
    PLACE=/tmp/counting python example_pipelines/whole_llm_airflow.py             all the way, on this machine
    python example_pipelines/whole_llm_airflow.py '{"tuning_steps": 0}'           held back by its check
"""

from __future__ import annotations

import json
import os
import re
import sys
from datetime import timedelta
from typing import Any

import whole_llm as steps
from airflow.sdk import Asset, ExceptionRetryPolicy, Param, RetryAction, RetryRule, dag, task
from airflow.sdk.exceptions import AirflowFailException

import kinetic_orchestration as kinetic
from airflow_kinetic import KineticData, KineticHook, KineticServeBatchOperator, KineticTPUOperator
from airflow_kinetic.exceptions import DeploymentFailed, ManifestRefused, PromotionRefused

MODEL = Asset("counting_model")  # DAGs may be scheduled by its promotion
PARAMS = {
    "place": Param(os.environ.get("PLACE", os.path.expanduser("~/whole_llm_results")), type="string", minLength=1),
    "pretrain_steps": Param(steps.STEPS, type="integer", minimum=1),
    "tuning_steps": Param(steps.TUNING_STEPS, type="integer", minimum=0),
    "required": Param(0.9, type="number", description="share of right answers that promotes a model"),
    "registry": Param("", type="string", description="address of an MLflow server"),
    "cluster": Param(os.environ.get("SERVING_CLUSTER", ""), type="string", description="context of the kubeconfig"),
    "serving": Param({}, type="object", description="fields of Serving, over SERVING of whole_llm.py"),
}
# What would be refused again is not tried again.
PATIENT: dict[str, Any] = {
    "retries": 2,
    "retry_delay": timedelta(minutes=1),
    "retry_policy": ExceptionRetryPolicy(
        rules=[RetryRule(exception=[PromotionRefused, ManifestRefused, DeploymentFailed], action=RetryAction.FAIL)]
    ),
}
ENGINE = os.environ.get("ENGINE", "transformers")
SCRIPT = "whole_llm.py"


def answering(prompts: list[str]) -> dict[str, Any]:
    """Return the keywords of a batch, whose variables are named here instead of taken from the worker."""
    options = steps.batch_options(ENGINE)
    del options["capture_env_vars"]
    return {**options, "prompts": prompts, "env": steps.ENVIRONMENT, "deferrable": True}


@dag(schedule="@weekly", catchup=False, max_active_runs=1, params=PARAMS, default_args={"retries": 1})
def whole_llm_airflow():
    @task
    def begin(run_id: Any = None, params: Any = None) -> dict[str, Any]:
        """Name the folder of this run, which is the same for all tries and clears of the tasks after it."""
        folder = steps.address_in(params["place"], "runs", re.sub(r"[^A-Za-z0-9]+", "-", run_id))
        return {"folder": folder, **{name: params[name] for name in ("pretrain_steps", "tuning_steps")}}

    run = begin()
    data = task.kinetic(task_id="data", deferrable=True, **steps.DATA)(steps.make_data)()
    checkpoints = f"{run['folder']}/checkpoints"
    pretrain = KineticTPUOperator(
        task_id="pretrain",
        script=SCRIPT,
        op_args=steps.pretrain_command(str(data), checkpoints, str(run["pretrain_steps"]))[2:],
        metrics="maxtext",
        deferrable=True,
        **steps.PRETRAIN,
    )
    convert = KineticTPUOperator(
        task_id="convert",
        script=SCRIPT,
        op_args=steps.convert_command(str(data), checkpoints, "model")[2:],
        deferrable=True,
        **steps.CONVERT,
    )
    converted = "{{ ti.xcom_pull(task_ids='convert', key='kinetic_output_dir') }}"  # of the job that this try has
    tuned = task.kinetic(task_id="finetune", deferrable=True, **steps.FINETUNE)(steps.finetune)(
        KineticData(f"{converted}/model", folder=True), KineticData(data, folder=True), steps=run["tuning_steps"]
    )
    answers = KineticServeBatchOperator(
        task_id="answer", model=tuned, output_path=f"{run['folder']}/answers", **answering(list(steps.QUESTIONS))
    )

    @task
    def check(report: dict[str, Any], params: Any = None) -> dict[str, Any]:
        """Return the share of right answers and all answers; fail, without another try, if there are too few."""
        with KineticHook().acting_at(report["output"]):
            share, told = steps.score(report["output"])
        said = "; ".join(f"{prompt!r} → {told.get(prompt, '')!r}" for prompt in steps.QUESTIONS)
        print(f"{share:.0%} of the answers are right: {said}")
        if share < params["required"]:
            raise AirflowFailException(
                f"{share:.0%} of the questions are answered rightly, and at least {params['required']:.0%} are "
                f"required, so this model is not promoted. All answers: {report['parts']}"
            )
        return {"right": share, "answers": told}

    @task(outlets=[MODEL], **PATIENT)
    def promote(model: str, checked: dict[str, Any], params: Any = None, outlet_events: Any = None) -> str:
        """Return the address of the version. Its lineage is in the event of its asset."""
        place = steps.address_in(params["place"], "models", "counting")
        with KineticHook().acting_at(model, place):
            version = steps.promote(
                model, checked["right"], place, required=params["required"], registry=params["registry"]
            )
        outlet_events[MODEL].extra = version.metadata
        return version.uri

    @task(**PATIENT)
    def deploy(version: str, checked: dict[str, Any], params: Any = None) -> str:
        """Have the version served, and ask its server what the batch was asked: if it answers otherwise, or never
        begins, the set that served before is there again, and the task fails. Return its address for pods.
        """
        cluster, address = params["cluster"], steps.address_for_pods(version)
        serving = steps.serving(checked["answers"], **{"cluster": cluster, **params["serving"]})
        if not cluster:
            print(f"no cluster is named, so nothing is applied:\n{kinetic.deploy(address, serving, dry_run=True)}")
            return ""
        with KineticHook().acting_at(version):
            deployed = kinetic.deploy(address, serving)
        print(f"revision {deployed.revision} serves: {deployed.smoke}")
        return deployed.url

    @task.short_circuit
    def is_nowhere(served: str) -> bool:
        """Go on only if no server was asked yet: in the cluster the deployment did that."""
        return not served

    @task
    def smoke_test(report: dict[str, Any], checked: dict[str, Any]) -> dict[str, str]:
        """Return what a server of the version has answered; fail if that differs from what was evaluated."""
        with KineticHook().acting_at(report["output"]):
            _, told = steps.score(report["output"])
        if other := {prompt: text for prompt, text in told.items() if text != checked["answers"][prompt]}:
            raise AirflowFailException(f"the version answers otherwise than the model that was checked: {other}")
        return told

    [run, data] >> pretrain >> convert >> tuned
    checked = check(answers.output)
    version = promote(tuned, checked)
    asked = KineticServeBatchOperator(
        task_id="ask", model=version, output_path=f"{run['folder']}/asked", **answering(list(steps.QUESTIONS)[:4])
    )
    is_nowhere(deploy(version, checked)) >> asked
    smoke_test(asked.output, checked)


whole = whole_llm_airflow()

if __name__ == "__main__":
    ended = whole.test(run_conf=json.loads(sys.argv[1]) if sys.argv[1:] else None)
    sys.exit(0 if ended.state == "success" else 1)
