"""Shows three tasks of one run that share a slice: it is requested once, and the next task finds it warm.

`keep="10m"` is all of it: after its task the slice is cleaned and waits for ten minutes at most, the next task of the
run takes it, and the last one leaves none. A task that fails by its own code goes on there, from the copy of its
checkpoint that the machine has. The teardown task is for runs that fail before their last task. On this machine there
is nothing to keep.

To change for a real slice: nothing here. Set for Airflow's workers and triggerers KINETIC_PROJECT, KINETIC_STORE,
KINETIC_DEPLOYMENT, KINETIC_REQUIRE_HARDWARE=true and KINETIC_SIGNING_KEY, by which they may take each other's slices.
`kinor slices` shows those that are kept, and `kinor cost` what their idle time costs.

To run it once, with this folder as Airflow's DAGs folder and a migrated database:
    python example_pipelines/warm_airflow.py
"""

from __future__ import annotations

from airflow.sdk import dag, task

from airflow_kinetic import KineticReleaseOperator
from kinetic_orchestration import Retry, Training

ON_A_WARM_SLICE = {"accelerator": "v5e-4", "keep": "10m", "deferrable": True}


@dag(schedule="@daily", catchup=False)
def warm_airflow():
    @task.kinetic(**ON_A_WARM_SLICE)
    def prepare() -> list[float]:
        """Prepared on the hosts, which are near the bucket."""
        import jax.numpy as jnp

        return [float(x) for x in jnp.linspace(0.0, 1.0, 64)]

    @task.kinetic(**ON_A_WARM_SLICE, retry=Retry(user=1))
    def train(points: list[float]) -> float:
        """The slope of a line, learned on the slice that the task before has left."""
        import jax
        import jax.numpy as jnp

        x = jnp.asarray(points)
        step = jax.jit(lambda slope: slope - 0.5 * jax.grad(lambda s: jnp.mean((s * x - 3 * x) ** 2))(slope))
        training = Training(every=20, total=100)
        slope, done = training.restore(jnp.zeros(()))
        for number in range(done, 100):
            slope = step(slope)
            training.step(number + 1, slope, off=abs(slope - 3))
        training.finish(slope)
        return float(slope)

    @task.kinetic(**ON_A_WARM_SLICE)
    def evaluate(slope: float) -> float:
        """Return by how much the slope is off; the last such task of the run, after which the slice is deleted."""
        return abs(slope - 3)

    evaluate(train(prepare())) >> KineticReleaseOperator(task_id="release")


trained = warm_airflow()

if __name__ == "__main__":
    trained.test()
