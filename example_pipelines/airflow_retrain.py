"""Shows a weekly retraining in Airflow: data → training on a TPU slice → evaluation.

The slice is emulated on this machine. For a real one: name the project in the connection `google_cloud_default`, set
KINETIC_STORE and KINETIC_DEPLOYMENT for Airflow's workers and triggerers, and give `zones=[…]` to the decorator.
Nothing else changes.

To run it once, with this folder as Airflow's DAGs folder and a migrated database: python airflow_retrain.py
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag, task


@dag(schedule="@weekly", catchup=False)
def airflow_retrain():
    @task
    def data() -> list[list[float]]:
        """Points near the line y = 3 x + 1."""
        return [[x / 32, 3 * x / 32 + 1 + (-1) ** x * 0.01] for x in range(64)]

    @task.kinetic(accelerator="v5e-8", deferrable=True, retries=2, retry_delay=timedelta(minutes=1))
    def train(points: list[list[float]], day: str, learning_rate: float = 0.2) -> dict[str, float]:
        """Runs on every host of the slice, and sees all its devices."""
        import jax
        import jax.numpy as jnp

        import kinetic_orchestration as kinetic

        host = kinetic.current()
        print(f"training for {day} on {jax.device_count()} devices, of which {jax.local_device_count()} are here")
        x, y = jnp.asarray(points).T

        def loss(line: jax.Array) -> jax.Array:
            return jnp.mean((line[0] * x + line[1] - y) ** 2)

        step = jax.jit(lambda line: line - learning_rate * jax.grad(loss)(line))
        line = jnp.zeros(2)
        for epoch in range(1, 6):
            for _ in range(50):
                line = step(line)
            if host.host_index == 0:
                host.log_metrics(step=epoch, loss=float(loss(line)))
                host.progress(epoch, 5, unit="epoch")
        return {"slope": float(line[0]), "intercept": float(line[1])}

    @task
    def evaluate(model: dict[str, float]) -> float:
        error = abs(model["slope"] - 3) + abs(model["intercept"] - 1)
        print(f"the line is {model['slope']:.3f} x + {model['intercept']:.3f}, off by {error:.4f}")
        return error

    evaluate(train(data(), day="{{ run_id }}"))


retrain = airflow_retrain()

if __name__ == "__main__":
    retrain.test()
