"""Shows a weekly retraining that takes whichever slice there is, bought in whichever way, within a month's money.

Either accelerator of the DAG's parameter will do, and a run may be triggered with others. Each attempt takes one of
them in one zone, by the ways of buying that the connection names: as spot first, and on demand when it must be. A run
whose hosts are taken away goes on where it was, on whatever slice it gets, with the same batch.

To change for a real slice: leave out `backend="local"`, give the connection `google_cloud_default` the extra
    {"project": "my-project", "capacity": ["spot", "on-demand"]}
and set for Airflow's workers and triggerers KINETIC_STORE, KINETIC_DEPLOYMENT, KINETIC_REQUIRE_HARDWARE=true, and the
most that this DAG may cost in a month, and the chips that all jobs of the deployment share, and each DAG at most:
KINETIC_BUDGETS=capacity_airflow=400USD and KINETIC_CHIPS=total=64,pipeline:*=32

To run it once, with this folder as Airflow's DAGs folder and a migrated database:
    python example_pipelines/capacity_airflow.py
"""

from __future__ import annotations

from airflow.sdk import Param, dag, task

from kinetic_orchestration import Limits, Training


@dag(schedule="@weekly", catchup=False, params={"slices": Param(["v6e-8", "v5e-8"], type="array")})
def capacity_airflow():
    @task.kinetic(
        accelerator="{{ params.slices | tojson }}",
        limits=Limits(run="2h", cost=40),
        reshard=True,
        backend="local",
        deferrable=True,
    )
    def train(day: str) -> dict[str, float]:
        """The slope of a line, learned step by step on all devices of the slice that was had."""
        import jax
        import jax.numpy as jnp

        print(f"training for {day} on {jax.device_count()} devices")
        x = jnp.linspace(0.0, 1.0, 64)
        step = jax.jit(lambda slope: slope - 0.5 * jax.grad(lambda s: jnp.mean((s * x - 3 * x) ** 2))(slope))
        training = Training(every=20, total=100)  # goes on with the checkpoint of another number of hosts, too: reshard
        slope, done = training.restore(jnp.zeros(()))
        for number in range(done, 100):
            slope = step(slope)
            training.step(number + 1, slope, off=abs(slope - 3))
        training.finish(slope)
        return {"slope": float(slope)}

    @task
    def evaluated(model: dict[str, float]) -> float:
        print(f"the slope is {model['slope']:.2f}, and should be 3")
        return abs(model["slope"] - 3)

    evaluated(train(day="{{ run_id }}"))


retrain = capacity_airflow()

if __name__ == "__main__":
    retrain.test()
