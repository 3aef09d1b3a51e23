"""DAGs whose task runs on a cluster, which the connection names. Its program says its steps on every host until a file lets it go."""

from __future__ import annotations

from airflow.sdk import dag, task

from kinetic_orchestration import Kubernetes


def training(*, deferrable: bool) -> None:
    @task.kinetic(
        accelerator="v4-8",
        backend="kubernetes",
        namespace="{{ dag_run.conf['namespace'] }}",
        container_image="registry.example.com/ours/train:7",  # its Python is the node's, which has all that is imported
        cloud=Kubernetes(labels={"team": "ranking"}),
        deferrable=deferrable,
        retries=0,
    )
    def train(folder: str) -> dict[str, int]:
        import time
        from pathlib import Path

        import kinetic_orchestration as kinetic

        host = kinetic.current()
        for step in range(6000):
            print(f"step {step} of host {host.host_index}", flush=True)
            if (Path(folder) / "go").exists():
                break
            time.sleep(0.1)
        return {"hosts": host.host_count}

    train("{{ dag_run.conf['folder'] }}")


@dag(schedule=None)
def nightly_training():
    training(deferrable=True)


@dag(schedule=None)
def training_on_a_worker():
    training(deferrable=False)


nightly_training()
training_on_a_worker()
