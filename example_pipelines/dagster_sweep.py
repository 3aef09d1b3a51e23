"""Many trials at once from one step, and the best of them promoted.

    python example_pipelines/dagster_sweep.py             here and now, on the terminal
    dagster dev -f example_pipelines/dagster_sweep.py     the same in Dagster's own pages

`trials` starts a job for each setting, so many at a time, from one step of one worker. A trial that fails is a row with
its error, and the others go on. `promoted` takes the best, and is refused by its blocking check if that is not good
enough.

To change for a real slice: the one line at the end of this file,
    KineticResource(project="my-project", store="gs://my-bucket/kinetic", require_hardware=True, spot=True)
"""

import sys

import dagster as dg
import numpy as np

from dagster_kinetic import KineticResource
from kinetic_orchestration import current

RATES = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
AT_ONCE = 3
GOOD_ENOUGH = 0.3


def trial(rate: float) -> dict[str, float]:
    """One setting, on hosts of its own."""
    if rate > 2:
        raise ArithmeticError(f"a learning rate of {rate} diverges")
    random = np.random.default_rng(0)
    x = random.normal(size=(512, 8))
    y = x @ np.arange(8) + random.normal(0, 0.5, 512)
    weights, loss = np.zeros(8), 0.0
    for step in range(40):
        error = x @ weights - y
        loss = float(np.mean(error**2))
        weights -= rate * x.T @ error / len(y)
        current().log_metrics(step=step, loss=loss)
    return {"rate": rate, "loss": loss}


@dg.asset
def trials(context: dg.AssetExecutionContext, kinetic: KineticResource) -> dg.MaterializeResult[list[dict[str, float]]]:
    """All settings, and what became of each."""
    found = kinetic.map(trial, RATES, accelerator="v5e-1", context=context, max_concurrent=AT_ONCE)
    rows = [
        f"| {each.input:g} | {each.value['loss']:.3f} |" if each.ok else f"| {each.input:g} | {each.error} |"
        for each in found
    ]
    table = "\n".join(["| learning rate | loss |", "|---|---|", *rows])
    good = [each.value for each in found if each.ok]
    return dg.MaterializeResult(
        value=good, metadata={"trials": dg.MetadataValue.md(table), "failed": len(found) - len(good)}
    )


@dg.asset(check_specs=[dg.AssetCheckSpec("good_enough", asset="promoted", blocking=True)])
def promoted(trials: list[dict[str, float]]):
    """The best trial."""
    best = min(trials, key=lambda each: each["loss"])
    passed = best["loss"] <= GOOD_ENOUGH
    return dg.MaterializeResult(
        value=best, metadata=best, check_results=[dg.AssetCheckResult(check_name="good_enough", passed=passed)]
    )


defs = dg.Definitions(
    assets=[trials, promoted],
    jobs=[dg.define_asset_job("sweep")],
    resources={"kinetic": KineticResource()},
)


def main() -> None:
    result = defs.resolve_job_def("sweep").execute_in_process()
    made = result.asset_materializations_for_node("trials")[0].metadata
    best = result.output_for_node("promoted")
    print(
        f"\n{made['trials'].value}\n\nresult   a learning rate of {best['rate']:g}, with a loss of {best['loss']:.3f}"
        f"\nthe UI   dagster dev -f {sys.argv[0]}"
    )


if __name__ == "__main__":
    main()
