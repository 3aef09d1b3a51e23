"""Shows a Keras sweep: many widths and learning rates at once, a curve for each of them, and the best one promoted.

    python example_pipelines/training_keras_sweep.py

Each trial is a job with a chip of its own, and no more than AT_ONCE of them run at the same time. One that fails is a
row of the table, and the others go on. What each of them tells while it learns is in its log (`kinor logs ID -f`).

For a real slice: give a project and a bucket (KINETIC_PROJECT, KINETIC_STORE=gs://…, KINETIC_DEPLOYMENT=…), and take
`spot=True`: a trial whose chip is taken back goes on at its last checkpoint.
"""

from __future__ import annotations

from typing import Any

import keras_rings

import kinetic_orchestration as kinetic

WEEK, AT_ONCE = "2026-01-04", 2
TRIALS = [
    {"width": 2, "rate": 0.02},
    {"width": 32, "rate": 0.02},
    {"width": 32, "rate": 1e30},  # its loss is soon no number any more
]


@kinetic.run(accelerator="v5e-1")
def trial(width: int, rate: float) -> dict[str, Any]:
    return keras_rings.evaluate(keras_rings.train(WEEK, width, rate, epochs=4))


def main() -> None:
    batch = trial.run_async_map(TRIALS, max_concurrent=AT_ONCE, name="widths and rates")
    found = batch.results(return_exceptions=True)
    print("\n  width   rate  accuracy  loss")
    for setting, result in zip(TRIALS, found, strict=True):
        told = f"{type(result).__name__}: {result}" if isinstance(result, Exception) else row(result)
        print(f"  {setting['width']:5} {setting['rate']:6g}  {told}")
    good = [result for result in found if not isinstance(result, Exception)]
    best = keras_rings.promote(max(good, key=lambda result: result["accuracy"]))
    print(
        f"\nresult   the best so far has a width of {best['width']}, a rate of {best['rate']:g} and an accuracy of "
        f"{best['accuracy']:.1%}; it is number {best['number']}"
    )


def row(result: dict[str, Any]) -> str:
    """The accuracy, and how the loss fell."""
    losses = result["losses"] or [0.0]  # none if its chip was taken back after its last epoch
    curve = "".join("▁▂▃▄▅▆▇█"[round(7 * loss / (max(losses) or 1))] for loss in losses)
    return f"{result['accuracy']:8.1%}  {curve} {losses[-1]:.3f}"


if __name__ == "__main__":
    main()
