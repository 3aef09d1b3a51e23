"""Shows one Airflow pipeline from a laptop to production: not a line of it changes on the way.

    python example_pipelines/environments_airflow.py     once, here and now, with this folder as Airflow's DAGs folder
                                                         and a migrated database

Nothing here says where it runs; variables do, and those of Airflow's workers and triggerers alike:

    local        none: the hosts are processes of this machine
    staging      what `kinor emulator` prints: a whole cloud on one machine, which can run out of capacity and preempt
    production   KINETIC_PROFILE_FILE=example_pipelines/environments.toml KINETIC_PROFILE=production
    on VMs       those two and KINETIC_BACKEND=compute: VMs of Compute Engine instead of Cloud TPU's

In production the connection `google_cloud_default` says as whom the cloud is asked; an emulated one asks nobody.
What would be asked of production, and what it costs, is told without an account, with these variables and
    kinor plan example_pipelines/environments_airflow.py:fit --accelerator v6e-8

For a real slice: write your own project, bucket and zones into `environments.toml`.
"""

from __future__ import annotations

from airflow.sdk import dag, task

import kinetic_orchestration as kinetic

Points = list[tuple[float, float]]


def fit(points: Points, epochs: int = 10) -> dict[str, float]:
    """With nothing but Python itself, so that the hosts of an emulated cloud need not install anything."""
    host = kinetic.current()
    slope = intercept = loss = 0.0
    for epoch in range(1, epochs + 1):
        for x, y in points:
            error = slope * x + intercept - y
            slope, intercept, loss = slope - 0.2 * error * x, intercept - 0.2 * error, error**2
        host.log_metrics(step=epoch, loss=loss)
    return {"slope": slope, "intercept": intercept}


@dag(schedule=None)
def environments_airflow():
    @task
    def points() -> Points:
        """Near the line y = 3 x + 1."""
        return [(x / 32, 3 * x / 32 + 1 + (-1) ** x * 0.01) for x in range(64)]

    @task
    def report(line: dict[str, float]) -> str:
        return f"y = {line['slope']:.2f} x + {line['intercept']:.2f}"

    report(task.kinetic(accelerator="v6e-8", deferrable=True)(fit)(points()))


environments = environments_airflow()

if __name__ == "__main__":
    environments.test()
