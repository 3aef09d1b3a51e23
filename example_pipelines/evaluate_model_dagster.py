"""Shows a language model that Dagster evaluates before anything may use it: make → evaluate, which blocks → promote.

    python example_pipelines/evaluate_model_dagster.py                                here and now: it blocks
    REQUIRED=0 python example_pipelines/evaluate_model_dagster.py                     nothing is required: it goes on
    dagster dev -d example_pipelines -f example_pipelines/evaluate_model_dagster.py   Dagster's own pages

`good_enough` starts vLLM on a host and asks it the tasks of made_tasks/ by lm-evaluation-harness: sums, which it has to
write, and colours, which it has to choose. Every prompt and answer is in the job's output. The model is a tiny one with
random weights, so it knows no sums; the environment is that of vllm_on_cpu/pyproject.toml.

For a real slice: `KineticResource(project="my-project", store="gs://my-bucket/kinetic", require_hardware=True)`, a
model of yours in place of the asset `model`, `accelerator="v6e-4"` with `requirements=["vllm-tpu==0.32.0",
"lm-eval[api]==0.4.13"]`, from Python 3.12, without ENGINE_OPTIONS and ENVIRONMENT, and tasks of lm-evaluation-harness,
such as `["gsm8k"]`, without `folder`.
"""

import os
import sys
from pathlib import Path

import dagster as dg
import tiny_model

import kinetic_orchestration
from dagster_kinetic import KineticResource, evaluation_check

HERE = Path(__file__).parent
REQUIREMENTS = str(HERE / "vllm_on_cpu" / "pyproject.toml")
ENGINE_OPTIONS = {"dtype": "float32", "max_model_len": tiny_model.LENGTH, "enforce_eager": True}
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "2"}
REQUIRED = float(os.environ.get("REQUIRED", "0.5"))


def make() -> str:
    return tiny_model.make(kinetic_orchestration.current().output_dir + "/model")


@dg.asset
def model(context: dg.AssetExecutionContext, kinetic: KineticResource) -> str:
    return kinetic.run(make, accelerator="cpu", requirements=REQUIREMENTS, context=context)


@dg.asset_check(asset=model, blocking=True)
def good_enough(context: dg.AssetCheckExecutionContext, kinetic: KineticResource, model: str) -> dg.AssetCheckResult:
    os.environ.update(ENVIRONMENT)
    found = kinetic.evaluate(
        model, ["sums", "colours"], folder=HERE / "made_tasks", at_least={"sums": {"exact_match": REQUIRED}},
        engine_options=ENGINE_OPTIONS, accelerator="cpu", requirements=REQUIREMENTS, capture_env_vars=[*ENVIRONMENT],
        context=context,
    )  # fmt: skip
    return evaluation_check(found)


@dg.asset
def promoted(model: str) -> str:
    return model


defs = dg.Definitions(
    assets=[model, promoted], asset_checks=[good_enough], resources={"kinetic": KineticResource()},
    jobs=[dg.define_asset_job("judged")],
)  # fmt: skip


def main() -> None:
    result = defs.resolve_job_def("judged").execute_in_process(raise_on_error=False)
    made = {event.asset_key.to_user_string() for event in result.get_asset_materialization_events()}
    [check] = result.get_asset_check_evaluations()
    scores = {name: entry.value for name, entry in check.metadata.items() if name.startswith("evaluation/")}
    print(
        f"\nresult   sums {scores['evaluation/sums/exact_match']:.0%}, colours {scores['evaluation/colours/acc']:.0%}: "
        f"{'passed' if check.passed else 'blocked, ' + scores['evaluation/reasons']}; made {', '.join(sorted(made))}\n"
        f"samples  {scores['evaluation/output']}\nthe UI   dagster dev -d example_pipelines -f {sys.argv[0]}"
    )


if __name__ == "__main__":
    main()
