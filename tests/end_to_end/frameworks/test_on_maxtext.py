"""MaxText as a command on this machine: on one host and on two, killed in the middle, and its model for the hub."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.plan.values import Metrics, Output, Progress
from kinetic_orchestration.program.trainers.maxtext_export import tensors_in
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.frameworks.curves import BOUNDED
from tests.support.interpreters import required
from tests.support.pages import SOURCE

EXAMPLE = Path(__file__).parents[3] / "example_pipelines" / "pretrain_maxtext.py"
STEPS, DIES_AT = 10, 6


class Killed(NamedTuple):
    """A training that has gone on after a kill: its job, its losses by step, and what it has written."""

    job: kinetic.JobHandle[None]
    losses: dict[int, float]
    text: str


pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(autouse=True)
def python_of_maxtext(monkeypatch: pytest.MonkeyPatch) -> None:
    """MaxText wants Python 3.12, which uv finds on PATH."""
    monkeypatch.setenv("PATH", os.path.dirname(required("3.12")) + os.pathsep + os.environ["PATH"])


# MaxText itself, whose process is killed in the first attempt once it has reported a step after its checkpoint.
DIES = f"""
    import os, signal
    os.environ["DECOUPLE_GCLOUD"] = "TRUE"
    os.environ["JAX_NUM_CPU_DEVICES"] = "1"  # fewer connections, which a busy machine does not make in time
    import kinetic_orchestration as kinetic
    from kinetic_orchestration.program.trainers import maxtext
    import jax
    from maxtext.common import metric_logger

    host, write = kinetic.current(), metric_logger.MetricLogger.log_metrics

    def write_or_die(self, metrics, step, *more):
        if host.attempt == 1 and host.host_index == host.host_count - 1 and step == {DIES_AT}:
            os.kill(os.getpid(), signal.SIGKILL)
        write(self, metrics, step, *more)

    metric_logger.MetricLogger.log_metrics = write_or_die
    print("joined", jax.process_count(), os.getpid(), flush=True)
    maxtext.main()
"""


def trained_but_killed_once(folder: Path, monkeypatch: pytest.MonkeyPatch, hosts: int, **options: Any) -> Killed:
    """Train, with the last host's process killed on the way, and check that the next attempt has gone on."""
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    import pretrain_maxtext as example

    (folder / "dies.py").write_text(textwrap.dedent(DIES), encoding="utf-8")
    words = [*example.MODEL, *example.TRAINING, f"steps={STEPS}", "async_checkpointing=false"]
    environment: dict[str, Any] = {**example.ENVIRONMENT, "cwd": folder, "limits": BOUNDED}
    retry = kinetic.Retry(user=3, infra=1)
    job = kinetic.command(["python", "dies.py", *words], metrics="maxtext", retry=retry, **environment, **options)
    events: list[Any] = []
    job.follow(events.append)
    assert job.status() is kinetic.JobStatus.SUCCEEDED, (job.logs() or "")[-3000:]
    assert (
        job.attempts() >= 2
    )  # on a busy machine the transport that stands in for the chips' links may give up once more
    losses: dict[int, dict[int, float]] = {1: {}, 2: {}}
    for event in events:
        if isinstance(event, Metrics):
            losses[min(event.attempt, 2)][event.step] = event.values["loss"]
            assert event.values["tokens_per_second_per_device"] > 0 and event.values["tflops_per_second_per_device"] > 0
    assert sorted(losses[2]) == list(range(5, STEPS)), "after the checkpoint of step 4"
    again = sorted(losses[1].keys() & losses[2].keys())
    assert again and min(losses[1]) == 0
    for step in again:
        assert losses[2][step] == pytest.approx(losses[1][step], rel=1e-4)
    done = [event for event in events if isinstance(event, Progress)][-1]
    assert (done.done, done.total) == (STEPS, STEPS)
    text = b"".join(event.text for event in events if isinstance(event, Output)).decode()
    said = re.findall(r"joined (\d+) (\d+)", text)
    assert {joined for joined, _ in said} == {str(hosts)} and len(said) >= 2 * hosts
    assert hosts == 1 or "Jax distributed system is already initialized" in text
    end = time.monotonic() + 30
    while (left := [pid for _, pid in said if Path("/proc", pid).exists()]) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left, "no process of it is left, also not the one that waited"
    return Killed(job, losses[1] | losses[2], text)


@pytest.mark.parametrize(
    "hosts", [pytest.param(1, marks=pytest.mark.offline), pytest.param(2, marks=pytest.mark.turn(7))]
)
def test_a_killed_training_goes_on_at_its_checkpoint_with_the_same_losses(
    hosts: int, frameworks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two hosts is killed; the other, which waits for it for ever, is ended."""
    accelerator = "v5e-4" if hosts == 1 else "v4-8"
    trained_but_killed_once(tmp_path, monkeypatch, hosts, accelerator=accelerator)


@pytest.mark.offline
def test_two_slices_train_on_the_mesh_of_two_networks_with_the_losses_of_one(
    frameworks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them is killed on the way. MaxText refuses `dcn_data_parallelism=2`, which it was given, on one slice."""
    slices = {"cloud": kinetic.TpuVm(num_slices=2), "backend": "local"}
    two = trained_but_killed_once(tmp_path, monkeypatch, 2, accelerator="v5e-4", **slices)
    assert "Num_devices: 2, shape (1, 2, 1, 1, " in two.text, "the batch is shared between slices, the model within one"
    import pretrain_maxtext as example

    words = [*example.MODEL, *example.TRAINING, f"steps={STEPS}", "enable_checkpointing=false"]
    options: dict[str, Any] = {**example.ENVIRONMENT, "limits": BOUNDED}
    one = kinetic.command([*example.MAXTEXT, *words], metrics="maxtext", accelerator="cpu:2", **options)
    one.result()
    assert "Num_devices: 2, shape (1, 1, 1, 2, " in (one.logs() or "")
    losses = {event.step: event.values["loss"] for event in one.events() if isinstance(event, Metrics)}
    assert two.losses == pytest.approx(losses, rel=1e-3)


@pytest.mark.offline
def test_a_training_of_two_slices_has_its_checkpoints_in_an_emulated_bucket(
    frameworks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the two VMs' programs is killed, and the next attempt restores on both what both have written."""
    with Emulator(zones=("us-west4-a",), python=required("3.12")) as cloud:
        for name, value in cloud.environ().items():
            monkeypatch.setenv(name, value)
        slices = kinetic.TpuVm(num_slices=2)
        trained = trained_but_killed_once(tmp_path, monkeypatch, 2, accelerator="v5e-4", cloud=slices)
        assert "Num_devices: 2, shape (1, 2, 1, 1, " in trained.text
        place = trained.job.checkpoint_dir.removeprefix("gs://emulated/kinetic/test/")
        steps = f"{place}/run/checkpoints/"
        written = [entry.name.removeprefix(steps) for entry in trained.job._job.store.list(steps)]
        for host in range(2):
            assert [name for name in written if name.startswith(f"{STEPS - 1}/items/ocdbt.process_{host}/")], written
        cloud.wait_until_empty(60)
        cloud.ledger.assert_nothing_left()


@pytest.mark.offline
def test_the_example_ends_with_a_model_that_the_hub_and_its_tokenizer_agree_on(
    frameworks: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], cwd=tmp_path, env=os.environ | {"PYTHONWARNINGS": "ignore"},
        capture_output=True, text=True, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert not list(tmp_path.iterdir()), "it left something in its folder"
    found = re.search(r"^result +loss ([\d.]+) → ([\d.]+) on 8 devices, and a model in (.*)$", done.stdout, re.M)
    assert found is not None and float(found[2]) < float(found[1]), done.stdout[-3000:]
    model = Path(found[3])
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    assert config["layer_types"] == ["full_attention"] * 2 and config["num_hidden_layers"] == 2
    assert (config["bos_token_id"], config["eos_token_id"], config["dtype"]) == (0, 2, "float32")
    tensors = tensors_in(model)
    assert tensors["model.embed_tokens.weight"] == ("F32", (512, 64))
    assert len(tensors) == 24 or config["tie_word_embeddings"] is False
    check = f"""
        import transformers
        config = transformers.AutoConfig.from_pretrained({str(model)!r})
        tokenizer = transformers.AutoTokenizer.from_pretrained({str(model)!r})
        assert config.vocab_size >= len(tokenizer) and tokenizer.eos_token_id == config.eos_token_id
        assert tokenizer.decode(tokenizer("any text: ü").input_ids) == "any text: ü"
    """
    (tmp_path / "loads.py").write_text(textwrap.dedent(check), encoding="utf-8")
    requirements = ["transformers==5.24.0"]
    kinetic.command(
        ["python", "loads.py"], cwd=tmp_path, accelerator="cpu", requirements=requirements, limits=BOUNDED
    ).result()


def test_the_example_says_what_it_shows_and_what_to_change_and_is_on_its_page() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    begin = text.partition('"""')[2].partition('"""')[0]
    assert begin.startswith("Shows ") and f"python example_pipelines/{EXAMPLE.name}" in begin
    assert re.search(r"(?i)for a real slice", begin)
    pages = "".join(
        path.read_text(encoding="utf-8") for path in (EXAMPLE.parents[1] / "docs" / "training").rglob("*.md")
    )
    assert f"({SOURCE}/blob/main/example_pipelines/{EXAMPLE.name})" in pages
