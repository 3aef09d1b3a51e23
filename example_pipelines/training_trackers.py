"""Shows TensorBoard and W&B from host 0: one run each, in which every step is once, however often its slice is lost.

    python example_pipelines/training_trackers.py     here and now, with an accident on the way

The runs are named after the job, whose id is the same in every attempt. What they were told is a part of the training's
state: it is kept with the weights and given back with them, and the next attempt tells it anew to files of its own. So
nothing is missing that a killed process had not written yet, and nothing is there twice that was trained twice.

W&B is offline here, and `wandb sync` of the newest folder sends the whole run. For a real slice: give a project and a
bucket (KINETIC_PROJECT, KINETIC_STORE=gs://…, KINETIC_DEPLOYMENT=…), in which both then keep their files. To be online,
take `mode="online"` and `secrets={"WANDB_API_KEY": "wandb-api-key"}`: the server knows the run, and is told of what it
does not have yet.
"""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import kinetic_orchestration as kinetic

REQUIREMENTS = Path(__file__).with_name("training_trackers.txt")
KEEP_EVERY, BATCH = 8, 64


class Trackers:
    """TensorBoard and W&B, and all that they were told: its state is restored like that of an optimizer."""

    each_hosts_own = False  # another number of hosts takes host 0's

    def __init__(self, host: kinetic.HostContext, **config: Any) -> None:
        self.host = host
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.board: Any = None
        if host.host_index > 0:
            return
        import wandb
        from tensorboardX import SummaryWriter

        self.board = SummaryWriter(
            f"{host.output_dir}/tensorboard",
            purge_step=0,  # of what is in files of attempts before, nothing counts
            filename_suffix=f".{host.attempt}",
        )
        self.folder = tempfile.TemporaryDirectory(prefix="wandb-", ignore_cleanup_errors=True)
        self.run = wandb.init(
            project="examples",
            id=host.job_id or None,
            resume="allow",
            mode="offline",
            dir=self.folder.name if "://" in host.output_dir else host.output_dir,
            config=config,
            settings=wandb.Settings(console="off", silent=True),  # the orchestrator shows what is printed
        )
        self.first = self.run.step  # 0, or the one after the last that a server knows

    def tell(self, step: int, **values: float) -> None:
        self.rows.append((step, values))
        if self.board is None:
            return
        for name, value in values.items():
            self.board.add_scalar(name, value, step)
        if step >= self.first:
            self.run.log(values, step=step)

    def get_state(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def set_state(self, state: dict[str, Any]) -> None:
        for step, values in state["rows"]:
            self.tell(step, **values)

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self.board is None:
            return
        import wandb

        self.board.close()
        self.run.finish(exit_code=0 if kind is None else 1)
        wandb.teardown()  # it waits for the file of an offline run, and `finish` does not
        if "://" in self.host.output_dir:
            keep(Path(self.run.dir).parent, f"{self.host.output_dir}/wandb")
        self.folder.cleanup()


def keep(folder: Path, address: str) -> None:
    """A folder of this machine, which does not outlive the job, into the bucket."""
    from google.cloud import storage

    client = storage.Client()
    for path in folder.rglob("*"):
        if path.is_file():
            name = f"{address}/{folder.name}/{path.relative_to(folder)}"
            storage.Blob.from_uri(name, client=client).upload_from_filename(str(path))


@kinetic.run(accelerator="v4-8", requirements=REQUIREMENTS, retry=kinetic.Retry(user=1))
def train(steps: int, rate: float, lose_power_at: int = 0) -> dict[str, Any]:
    """A linear regression, with nothing but numpy. `lose_power_at`: where host 0's first attempt ends; 0: nowhere."""
    import numpy as np

    host = kinetic.current()
    truth = np.array([1.0, -2.0, 3.0, 0.5])
    with Trackers(host, steps=steps, rate=rate) as trackers:
        training = kinetic.Training(every=KEEP_EVERY, total=steps)
        state, done = training.restore({"weights": np.zeros(4), "trackers": trackers})
        weights = state["weights"]
        for number in range(done, steps):
            x = np.random.default_rng(number).normal(size=(BATCH, 4))
            error = x @ (weights - truth)
            weights = weights - rate * x.T @ error / BATCH
            trackers.tell(number + 1, loss=float(np.mean(error**2)), largest=float(np.abs(error).max()))
            if (number + 1, host.attempt, host.host_index) == (lose_power_at, 1, 0):
                os.kill(os.getpid(), signal.SIGKILL)
            training.step(number + 1, {"weights": weights, "trackers": trackers}, loss=np.mean(error**2))
        training.finish({"weights": weights, "trackers": trackers})
    return {"steps": len(trackers.rows), "attempts": host.attempt, "after": done, "output": host.output_dir}


def main() -> None:
    found = train(steps=20, rate=0.2, lose_power_at=13)
    print(
        f"\nresult   {found['steps']} steps in {found['attempts']} attempts; the last one went on after step "
        f"{found['after']}\nto look  tensorboard --logdir {found['output']}/tensorboard"
        f"\nto send  wandb sync, of the newest folder in {found['output']}/wandb"
    )


if __name__ == "__main__":
    main()
