"""A program written for Keras Kinetic runs with only its import changed.

The programs here have the shape of those in its documentation and use every public name and keyword; each runs as a
process of its own on the local backend as it stands.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

CHANGED = {
    "import kinetic": "import kinetic_orchestration as kinetic",
    "from kinetic import BatchError, Data": "from kinetic_orchestration import BatchError, Data",
}

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(shared_home: Path, tmp_path: Path) -> Run:
    def run(source: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        lines = textwrap.dedent(source).splitlines()
        assert any(line in CHANGED for line in lines)
        program = tmp_path / "program.py"
        program.write_text("\n".join(CHANGED.get(line, line) for line in lines), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(program), *arguments],
            cwd=tmp_path,
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done

    return run


def test_a_blocking_call(run: Run) -> None:
    done = run("""
        import os

        os.environ["KERAS_BACKEND"] = "jax"

        import kinetic


        @kinetic.run(accelerator="cpu")
        def train_simple_model():
          print(f"backend: {os.environ['KERAS_BACKEND']}")
          return {"loss": [0.5, 0.25]}


        if __name__ == "__main__":
          history = train_simple_model()
          print("final:", history["loss"][-1])
    """)
    assert "backend: jax\n" in done.stdout and done.stdout.endswith("final: 0.25\n")


def test_detached_jobs(run: Run) -> None:
    done = run("""
        import time

        import kinetic


        @kinetic.run(accelerator="cpu")
        def train_model_a():
          print("Training model A...")
          return 0.1


        @kinetic.run(accelerator="cpu")
        def train_model_b(steps):
          for step in range(steps):
            print(f"step {step}")
          return 0.2


        @kinetic.run(accelerator="cpu")
        def never():
          while True:
            time.sleep(0.01)


        def demo_submit_and_monitor():
          job_a = train_model_a.run_async()
          job_b = train_model_b.run_async(steps=30)
          print(f"Job A: id={job_a.job_id}")
          for _ in range(300):
            sa = job_a.status()
            sb = job_b.status()
            if sa.value in ("RUNNING", "SUCCEEDED") and sb.value in ("RUNNING", "SUCCEEDED"):
              break
            time.sleep(0.05)
          loss_a = job_a.result(cleanup=False)
          loss_b = job_b.result(timeout=600, cleanup=False, cleanup_timeout=180, cleanup_poll_interval=2,
                                stream_logs=True, on_status_change=lambda status: print("status", status.value))
          print(job_b.tail(n=2))
          print(job_a.logs())
          return job_a, job_b, [loss_a, loss_b]


        def demo_reattach(job_id):
          job = kinetic.attach(job_id)
          print(f"Status: {job.status().value}")
          print(f"Function: {job.func_name}")
          print(f"Backend:  {job.backend}")
          print(f"Accelerator: {job.accelerator} {job.created_at}")
          return job.result()


        def demo_list_jobs():
          return [(j.job_id, j.func_name, j.accelerator, j.status().value) for j in kinetic.list_jobs()]


        if __name__ == "__main__":
          job_a, job_b, losses = demo_submit_and_monitor()
          print("losses", losses, demo_reattach(job_a.job_id))
          job = never.run_async()
          try:
            job.result(timeout=0.1)
          except TimeoutError:
            print("listed", [entry[1:3] for entry in demo_list_jobs()])
          job.cancel(cleanup_timeout=180, cleanup_poll_interval=2)
          job.cleanup(k8s=True, gcs=False)
          job_a.cleanup(k8s=True, gcs=True)
          job_b.cleanup(k8s=True, gcs=True, cleanup_timeout=180, cleanup_poll_interval=2)
          print("left", demo_list_jobs())
          job_b.logs(follow=True)
    """)
    out = done.stdout
    assert "step 28\nstep 29\n" in out and "Training model A...\n" in out
    assert "status SUCCEEDED\n" in out and "losses [0.1, 0.2] 0.1\n" in out
    assert "Status: SUCCEEDED\nFunction: train_model_a\nBackend:  local\nAccelerator: cpu 20" in out
    assert "listed [('never', 'cpu')]\n" in out and "left []\n" in out


def test_batches(run: Run) -> None:
    done = run("""
        import kinetic
        from kinetic import BatchError, Data


        @kinetic.run(accelerator="cpu")
        def train(lr, epochs=3):
          if lr > 1.0:
            raise ValueError(f"Learning rate {lr} is too high!")
          return {"lr": lr, "epochs": epochs}


        configs = [{"lr": 0.001, "epochs": 5}, {"lr": 0.005, "epochs": 10}, {"lr": 0.01}]
        batch = train.run_async_map(configs, max_concurrent=2, name="sweep", tags={"team": "me"}, input_mode="kwargs",
                                    retries=0, fail_fast=False, cancel_running_on_fail=False, project=None, cluster=None)
        results = batch.results(timeout=600, cleanup=False)
        print([r["epochs"] for r in results], batch.name, batch.tags)

        batch = kinetic.attach_batch(batch.group_id, poll_interval=10.0, poll_timeout=60)
        print(len(batch.jobs), batch.status_counts(), [status.value for _, status in batch.statuses()])
        for job in batch.as_completed(poll_interval=1.0, timeout=600):
          job.result(cleanup=False)
        print(min(results, key=lambda r: r["lr"]))

        batch = train.run_async_map([0.01, 5.0, 0.5], max_concurrent=None)
        batch.wait(timeout=600)
        for job in batch.failures():
          print("failed:", job.tail(n=20) == "", job.status().value)
        for i, r in enumerate(batch.results(ordered=True, return_exceptions=True, cleanup=False)):
          print(f"Job {i}: FAILED - {r}" if isinstance(r, Exception) else f"Job {i}: {r['lr']}")
        try:
          batch.results()
        except BatchError as error:
          print(error.group_id == batch.group_id, len(error.failures), error.partial_results, error.submission_failures)
        print(batch.submission_failures)
        batch.cancel()
        batch.cleanup(k8s=True, gcs=True)
    """)
    assert done.stdout.splitlines() == [
        "[5, 10, 3] sweep {'team': 'me'}",
        "3 {'SUCCEEDED': 3} ['SUCCEEDED', 'SUCCEEDED', 'SUCCEEDED']",
        "{'lr': 0.001, 'epochs': 5}",
        "failed: True FAILED",
        "Job 0: 0.01",
        "Job 1: FAILED - Learning rate 5.0 is too high!",
        "Job 2: 0.5",
        "True 1 [{'lr': 0.01, 'epochs': 3}, None, {'lr': 0.5, 'epochs': 3}] {}",
        "{}",
    ]


def test_data(run: Run, tmp_path: Path) -> None:
    done = run(
        """
        import json
        import os
        import sys
        import tempfile

        import kinetic
        from kinetic import BatchError, Data


        @kinetic.run(accelerator="cpu")
        def test_data_arg(data_dir):
          with open(f"{data_dir}/train.csv") as f:
            return {"files": sorted(os.listdir(data_dir)), "content": f.read()}


        @kinetic.run(accelerator="cpu")
        def test_file_arg(config_path):
          with open(config_path) as f:
            return json.load(f)


        def make_mixed_test(dataset_dir, mount):
          @kinetic.run(accelerator="cpu", volumes={mount: Data(dataset_dir, fuse=False)})
          def test_mixed(config_path, lr=0.001):
            with open(config_path) as f:
              cfg = json.load(f)
            return {"config": cfg, "lr": lr, "weights": sorted(os.listdir(mount))}

          return test_mixed


        @kinetic.run(accelerator="cpu")
        def test_nested(datasets):
          return [sorted(os.listdir(d)) for d in datasets]


        def main():
          tmp_dir = tempfile.mkdtemp(prefix="kn-data-example-")
          dataset_dir = os.path.join(tmp_dir, "dataset")
          os.makedirs(dataset_dir, exist_ok=True)
          with open(os.path.join(dataset_dir, "train.csv"), "w") as f:
            f.write("feature,label\\n1,100\\n")
          config_json = os.path.join(tmp_dir, "config.json")
          with open(config_json, "w") as f:
            json.dump({"lr": 0.01, "epochs": 10}, f)

          result = test_data_arg(Data(dataset_dir))
          assert result["files"] == ["train.csv"] and "1,100" in result["content"]
          for _ in range(2):
            assert test_file_arg(Data(config_json))["lr"] == 0.01
          result = make_mixed_test(dataset_dir, sys.argv[1])(Data(config_json), lr=0.01)
          assert result == {"config": {"lr": 0.01, "epochs": 10}, "lr": 0.01, "weights": ["train.csv"]}
          assert test_nested(datasets=[Data(dataset_dir), Data(dataset_dir, fuse=True)]) == [["train.csv"]] * 2
          print("All E2E tests passed!")


        if __name__ == "__main__":
          main()
        """,
        str(tmp_path / "weights"),
        TMPDIR=str(tmp_path),
    )
    assert done.stdout.endswith("All E2E tests passed!\n")


def test_kinetics_own_options_are_warned_about_once_and_not_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "dataset").mkdir()
    done = run(
        """
        import os
        import sys

        import kinetic
        from kinetic import BatchError, Data


        @kinetic.run(
          accelerator="tpu-v5litepod-4",
          container_image="gcr.io/my/image:0",
          base_image_repo="mycompany/kinetic",
          zone="us-central1-a",
          project="my-project",
          capture_env_vars=["KAGGLE_USERNAME", "KAGGLE_KEY", "WANDB_*"],
          cluster="my-cluster",
          backend="pathways",
          namespace="team",
          volumes={sys.argv[1]: Data("./dataset/")},
          spot=True,
          output_dir=sys.argv[2],
          debug=False,
        )
        def train_model(epochs):
          user = os.environ.get("KAGGLE_USERNAME")
          with open(os.path.join(os.environ["KINETIC_OUTPUT_DIR"], "model.txt"), "w") as f:
            f.write("weights")
          return user, os.environ["KAGGLE_KEY"][::-1], os.environ["WANDB_MODE"], epochs


        @kinetic.run("gpu-a100", "gcr.io/my/image:1", backend="gke")
        def evaluate():
          return "evaluated"


        for epochs in range(2):
          print(train_model(epochs))
        print(evaluate(), kinetic.list_jobs(project="my-project", zone=None, cluster="my-cluster", namespace="team"))
        job = train_model.run_async(7)
        print(kinetic.attach(job.job_id, project="my-project", cluster="my-cluster").result(), job.accelerator)
        """,
        str(tmp_path / "mounted"),
        str(tmp_path / "out"),
        KAGGLE_USERNAME="me",
        KAGGLE_KEY="yek",
        WANDB_MODE="offline",
        KINETIC_CLUSTER="c",
        KINETIC_NAMESPACE="n",
        KINETIC_BACKEND="local",
        KINETIC_BASE_IMAGE_REPO="r",
        KINETIC_LOG_LEVEL="DEBUG",
    )
    assert done.stdout.splitlines() == [
        "('me', 'key', 'offline', 0)", "('me', 'key', 'offline', 1)", "evaluated []", "('me', 'key', 'offline', 7) v5e-4"
    ]  # fmt: skip
    assert (tmp_path / "out" / "model.txt").read_text(encoding="utf-8") == "weights"
    warned = re.findall(r"UserWarning: (.*)", done.stderr)
    all_of_one = (
        "container_image=, base_image_repo=, cluster=, namespace=, project=, zone=, spot= have no meaning on the "
    )
    assert [text for text in warned if "no meaning" in text] == [
        f"{all_of_one}local backend and are ignored there",
        "container_image= has no meaning on the local backend and is ignored there",
    ]
    for variable in ("KINETIC_CLUSTER", "KINETIC_NAMESPACE", "KINETIC_BASE_IMAGE_REPO", "KINETIC_LOG_LEVEL"):
        assert [text for text in warned if text.startswith(f"{variable} is set, and has no effect here: ")] != []
    assert len(warned) == len(set(warned)) == 8
    assert {"backend='pathways': no cluster of GKE is named", "backend='gke': no cluster of GKE is named"} <= {
        text.partition(",")[0] for text in warned
    }


def test_its_settings_mean_the_cloud_unless_emulation_is_asked_for(run: Run) -> None:
    """In Keras Kinetic they say where to run, so here they do, too: without a store such a program is refused."""
    source = """
        import kinetic


        @kinetic.run(accelerator="v5litepod-1")
        def train():
          return "trained"


        try:
          print(train())
        except ValueError as error:
          print(error)
    """
    there = {"KINETIC_PROJECT": "other-project", "KINETIC_ZONE": "europe-west4-b"}
    refused = run(source, **there).stdout
    assert "KINETIC_PROJECT, KINETIC_ZONE mean Google Cloud" in refused and "KINETIC_STORE=gs://" in refused
    assert run(source, KINETIC_BACKEND="local", **there).stdout == "trained\n"


def test_resuming_from_the_output_directory(run: Run, tmp_path: Path) -> None:
    source = """
        import os

        import kinetic


        @kinetic.run(accelerator="cpu")
        def train(epochs):
          output_dir = os.environ.get("KINETIC_OUTPUT_DIR", "/tmp/local_checkpoints")
          checkpoints = os.path.join(output_dir, "checkpoints")
          os.makedirs(checkpoints, exist_ok=True)
          start = len(os.listdir(checkpoints))
          for epoch in range(start, epochs):
            open(os.path.join(checkpoints, str(epoch)), "w").close()
          return start, f"saved to {output_dir}"


        print(*train(3))
    """
    assert run(source, KINETIC_OUTPUT_DIR=str(tmp_path / "fixed")).stdout == f"0 saved to {tmp_path / 'fixed'}\n"
    assert run(source, KINETIC_OUTPUT_DIR=str(tmp_path / "fixed")).stdout == f"3 saved to {tmp_path / 'fixed'}\n"
    assert "/outputs/job-" in run(source).stdout  # by default a new one for each job


def test_methods_partials_callable_objects_and_decoration_time_errors(run: Run) -> None:
    done = run("""
        import functools

        import kinetic


        class Trainer:
          def __init__(self, lr):
            self.lr = lr

          @kinetic.run(accelerator="tpu-v6e-1")
          def fit(self, epochs):
            return self.lr * epochs

          def __call__(self, epochs):
            return self.lr + epochs


        def scale(factor, x):
          return factor * x


        print(Trainer(0.5).fit(4), Trainer(0.5).fit.run_async(6).result())
        print(kinetic.run(accelerator="cpu")(functools.partial(scale, 3))(2))
        print(kinetic.run(accelerator="cpu")(Trainer(1))(2))
        print(isinstance(kinetic.run()(scale), kinetic.RemoteCallable))
        for wrong in (classmethod(scale), staticmethod(scale), functools.lru_cache(scale), "scale"):
          try:
            kinetic.run(accelerator="cpu")(wrong)
          except TypeError as error:
            print("TypeError", str(error).split(":")[0].split(",")[0])
        for volumes in ({"data": kinetic.Data(".")},):
          try:
            kinetic.run(accelerator="cpu", volumes=volumes)
          except ValueError as error:
            print("ValueError", error)
    """)
    first, second, third, fourth, *errors = done.stdout.splitlines()
    assert (first, second, third, fourth) == ("2.0 3.0", "6", "3", "True")
    assert len(errors) == 5 and all(error.startswith("TypeError run() ") for error in errors[:4])
    assert errors[4].startswith("ValueError the volume path 'data' is not absolute")


def test_a_job_keeps_an_exception_of_the_program_itself(run: Run) -> None:
    done = run("""
        import kinetic


        class DivergedError(Exception):
          pass


        @kinetic.run(accelerator="cpu")
        def train():
          raise DivergedError("loss is nan")


        job = train.run_async()
        try:
          job.result()
        except DivergedError as error:
          print("caught", error, any("raise DivergedError" in note for note in error.__notes__))
          print(job.status().value)
    """)
    assert done.stdout == "caught loss is nan True\nFAILED\n"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_keras_on_jax(run: Run) -> None:
    if importlib.util.find_spec("keras") is None:
        pytest.skip("keras is not installed")
    done = run("""
        import os

        os.environ["KERAS_BACKEND"] = "jax"

        import keras
        import numpy as np

        import kinetic


        @kinetic.run(accelerator="cpu")
        def train_keras_jax_model():
          import jax

          print(f"Keras backend: {keras.config.backend()}, devices: {jax.device_count()}")
          model = keras.Sequential([keras.Input(shape=(4,)), keras.layers.Dense(1)])
          model.compile(optimizer="adam", loss="mse")
          history = model.fit(np.ones((32, 4)), np.ones((32, 1)), epochs=2, batch_size=16, verbose=0)
          model.save(os.path.join(os.environ["KINETIC_OUTPUT_DIR"], "model.keras"))
          return history.history


        if __name__ == "__main__":
          print("epochs", len(train_keras_jax_model()["loss"]))
    """)
    assert "Keras backend: jax, devices: 1\n" in done.stdout and done.stdout.endswith("epochs 2\n")
