"""Shows a language model that goes all the way in Dagster: data → pre-training (MaxText) → the hub's layout → LoRA
fine-tuning (PEFT) → answers by batch inference → a check that blocks → promotion → deployment → smoke test.

    python example_pipelines/whole_llm_dagster.py                      all the way, on this machine
    TUNING_STEPS=0 python example_pipelines/whole_llm_dagster.py       a model that has learned too little is held back
    ENGINE=vllm python example_pipelines/whole_llm_dagster.py          answers by vLLM's build for CPUs
    dagster dev -d example_pipelines -f example_pipelines/whole_llm_dagster.py

The steps are those of whole_llm.py, each in an environment of its own, which are installed once (8 GB). What they leave
is in the folder PLACE. SERVING_CLUSTER names a cluster, by its context in your kubeconfig, to which the model is
deployed and in which it is asked; without it, nothing is applied: the manifests are printed, and a server that runs
as the batch did is asked. MLFLOW names an MLflow server that registers the version.

For a real slice: ON = `KineticResource(project="my-project", store="gs://my-bucket/kinetic", require_hardware=True)`,
PLACE=gs://my-bucket/language-model and ENGINE=vllm; and in whole_llm.py the options at its top: PRETRAIN with "v5e-16",
FINETUNE with a GPU ("a100x1"), ANSWER with "v6e-4" and `["vllm-tpu==0.32.0"]` (with Dagster in Python 3.12, for which
that is), ENGINE_OPTIONS["vllm"] and ENVIRONMENT empty, SERVING with your accelerator and image; below them MODEL
without its overrides, TRAINING and STEPS as your data take them, and data and questions of yours in place of
`make_data` and QUESTIONS. DATA and CONVERT stay on the CPU of the machine that runs Dagster, unless you name a slice
and leave out `backend`, as for a model that this machine cannot hold.
"""

import os
import sys

import dagster as dg
import whole_llm as steps

import kinetic_orchestration as core
from dagster_kinetic import KineticResource, PipesKineticClient

PLACE = os.environ.get("PLACE", "whole_llm_results")
CLUSTER = os.environ.get("SERVING_CLUSTER", "")
ENGINE = os.environ.get("ENGINE", "transformers")
TUNING_STEPS = int(os.environ.get("TUNING_STEPS", steps.TUNING_STEPS))
REQUIRED = 0.9  # share of right answers
ON = KineticResource()  # where all jobs run, those of commands too


@dg.asset
def data(context: dg.AssetExecutionContext, kinetic: KineticResource) -> str:
    """Text, questions and a tokenizer."""
    return kinetic.run(steps.make_data, context=context, **steps.DATA)


@dg.asset
def pretrained(context: dg.AssetExecutionContext, pipes: PipesKineticClient, data: str) -> dg.MaterializeResult:
    """Checkpoints of MaxText. A run that is executed again from its failure goes on at the last of them."""
    folder = steps.address_in(PLACE, "pretrained", context.run.root_run_id or context.run.run_id)
    command = steps.pretrain_command(data, folder, steps.STEPS)
    done = pipes.run(context=context, command=command, cwd=steps.HERE, metrics="maxtext", **steps.PRETRAIN)
    return dg.MaterializeResult(value=folder, metadata=done.metadata)


@dg.asset
def base(
    context: dg.AssetExecutionContext, pipes: PipesKineticClient, data: str, pretrained: str
) -> dg.MaterializeResult:
    """The pre-trained model in the layout that transformers, PEFT and vLLM load."""
    folder = steps.address_in(PLACE, "base", context.run.run_id)
    done = pipes.run(
        context=context, command=steps.convert_command(data, pretrained, folder), cwd=steps.HERE, **steps.CONVERT
    )
    return dg.MaterializeResult(value=folder, metadata=done.metadata)


@dg.asset
def tuned(context: dg.AssetExecutionContext, kinetic: KineticResource, data: str, base: str) -> str:
    """The model that answers, with the adapters merged into it."""
    given = (core.Data(f"{base}/"), core.Data(f"{data}/"), TUNING_STEPS)
    return kinetic.run(steps.finetune, given, context=context, **steps.FINETUNE)


@dg.asset
def answers(context: dg.AssetExecutionContext, kinetic: KineticResource, tuned: str) -> dg.MaterializeResult:
    """Its answers to all questions, beside it. A step that is tried again asks only what has none."""
    os.environ.update(steps.ENVIRONMENT)
    return kinetic.serve_batch(
        tuned, list(steps.QUESTIONS), output=f"{tuned}-answers", context=context, **steps.batch_options(ENGINE)
    )


@dg.asset_check(asset=answers, blocking=True)
def good_enough(answers: dict) -> dg.AssetCheckResult:
    """Hold a model back that answers too little rightly: nothing behind this is made of it."""
    share, said = steps.score(answers["output"])
    return dg.AssetCheckResult(passed=share >= REQUIRED, metadata={"right": share, "answers": said})


@dg.asset
def promoted(tuned: str, answers: dict) -> dg.MaterializeResult:
    """The version that serving takes, with where it comes from."""
    share, _ = steps.score(answers["output"])
    place, registry = steps.address_in(PLACE, "models", "counting"), os.environ.get("MLFLOW", "")
    version = steps.promote(tuned, share, place, required=REQUIRED, registry=registry)
    return dg.MaterializeResult(value=version.uri, metadata=version.metadata)


@dg.asset
def served(context: dg.AssetExecutionContext, promoted: str, answers: dict) -> dg.MaterializeResult:
    """The server in the cluster, which has answered as the batch did; or its manifests, where no cluster is given."""
    declared = steps.serving(steps.score(answers["output"])[1], cluster=CLUSTER)
    address = steps.address_for_pods(promoted)
    if not CLUSTER:
        context.log.warning("SERVING_CLUSTER is not set: the manifests are rendered, and nothing is applied")
        shown = core.deploy(address, declared, dry_run=True)
        return dg.MaterializeResult(value="", metadata={"manifests": dg.MetadataValue.md(f"```yaml\n{shown}\n```")})
    deployed = core.deploy(address, declared)
    told = {"revision": deployed.revision, "smoke test": deployed.smoke, "path in the cluster": deployed.proxy_path}
    return dg.MaterializeResult(value=deployed.url, metadata=told)


@dg.asset_check(asset=served, additional_ins={"promoted": dg.AssetIn("promoted"), "answers": dg.AssetIn("answers")})
def answers_as_before(
    context: dg.AssetCheckExecutionContext, kinetic: KineticResource, served: str, promoted: str, answers: dict
) -> dg.AssetCheckResult:
    """Ask the version that was promoted. In a cluster its deployment has done that, or it had failed."""
    if served:
        return dg.AssetCheckResult(passed=True, metadata={"asked": served})
    os.environ.update(steps.ENVIRONMENT)
    asked = list(steps.QUESTIONS)[:4]
    report = kinetic.serve_batch(promoted, asked, context=context, **steps.batch_options(ENGINE)).value
    before, now = steps.score(answers["output"])[1], steps.score(report["output"])[1]
    same = all(now[prompt] == before[prompt] for prompt in asked)
    where = f"a server on {steps.ANSWER['accelerator']}"
    return dg.AssetCheckResult(passed=same, metadata={"asked": where, "answers": now})


defs = dg.Definitions(
    assets=[data, pretrained, base, tuned, answers, promoted, served],
    asset_checks=[good_enough, answers_as_before],
    resources={"kinetic": ON, "pipes": PipesKineticClient(ON)},
    jobs=[dg.define_asset_job("whole")],
)  # fmt: skip


def main() -> int:
    result = defs.resolve_job_def("whole").execute_in_process(raise_on_error=False)
    made = {each.asset_key.to_user_string(): each for each in result.get_asset_materialization_events()}
    checks = {each.check_name: each for each in result.get_asset_check_evaluations()}
    if "good_enough" in checks:
        share = checks["good_enough"].metadata["right"].value
        print(f"\nresult   {share:.0%} of the answers are right; made {', '.join(made)}")
        if not checks["good_enough"].passed:
            print("held     the check blocks: nothing was promoted, nothing was deployed")
    if "served" in made:
        shown = made["served"].materialization.metadata
        print(shown["manifests"].value if "manifests" in shown else f"serves   {shown['smoke test'].value}")
        if not CLUSTER:
            print("served   nowhere: SERVING_CLUSTER names no cluster, and the manifests above were not applied")
        asked = checks["answers_as_before"]
        said = "answers as before" if asked.passed else "answers otherwise"
        print(f"smoke    {said}: {asked.metadata['asked'].value}\nversion  {result.output_for_node('promoted')}")
    return 0 if result.success and all(each.passed for each in checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
