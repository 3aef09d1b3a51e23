"""Trainers of PyTorch that are killed and preempted on slices, as their users write them: example_pipelines/train_torch.py.

Each is compared with the same training undisturbed: on two hosts every step's loss, and the weights, to all digits.
"""

from __future__ import annotations

import math
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from tests.end_to_end.frameworks.test_resumed import EXAMPLES, digest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
LIMITS = kinetic.Limits(run="900s")
EPOCHS = 2  # of 6 steps on two hosts, and checkpoints after every third


def disturbed(plan: list[tuple[str, int, str]]) -> None:
    """Have this host be killed, or its machine taken back, as the plan says: in the n-th attempt, in that training,
    once so many steps are done. And note each step's loss."""
    from kinetic_orchestration.program.trainers.file_checkpoints import FileCheckpoints

    host, reached, report = kinetic.current(), FileCheckpoints.reached, FileCheckpoints.report
    Path(host.output_dir, "checkpoints").write_text(host.checkpoint_dir)
    name, step, how = plan[host.attempt - 1] if host.attempt <= len(plan) else ("", 0, "")

    def note(name: str, done: int, loss: Any) -> None:
        with Path(host.output_dir, f"{name}-{host.host_index}").open("a") as file:
            file.write(f"{done} {float(loss.detach() if hasattr(loss, 'detach') else loss)!r}\n")

    def noted(self: Any, done: int, metrics: Any, *more: Any) -> None:
        if "loss" in metrics:
            note(self._given, done, metrics["loss"])
        report(self, done, metrics, *more)

    def disturbing(self: Any, done: int, metrics: Any) -> bool:
        if "loss" in metrics:
            note(self._given, done, metrics["loss"])
        if self._given == name and done == step and host.host_index == host.host_count - 1:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            os.kill(os.getppid(), signal.SIGTERM)  # its agent: the machine is taken back
            self._agreed.wait(100)  # else more steps are done until all hosts know which is the last, on a busy machine
        return reached(self, done, metrics)

    FileCheckpoints.reached, FileCheckpoints.report = disturbing, noted  # type: ignore[method-assign]


def weights(model: Any) -> str:
    tensors = [value.detach() for value in model.parameters()]
    return digest(*(value.to_local() if hasattr(value, "to_local") else value for value in tensors))


def losses(job: Any, name: str, host: int) -> dict[int, str]:
    """Return the last note of each step."""
    lines = Path(job.output_dir, f"{name}-{host}").read_text().splitlines()
    return dict(line.split() for line in lines)  # type: ignore[misc]


def trained(trainers: dict[str, Any], plan: list[tuple[str, int, str]], slice_: str, requirements: Any) -> Any:
    def program() -> dict[str, list[str]]:
        import torch

        disturbed(plan)
        cut = {name: weights(train(EPOCHS, name)) for name, train in trainers.items()}
        found = {name: [cut[name], weights(train(EPOCHS, f"{name}-whole"))] for name, train in trainers.items()}
        torch.distributed.barrier()
        return found

    options: dict[str, Any] = {"requirements": requirements, "limits": LIMITS, "retry": kinetic.Retry(user=9, infra=9)}
    return kinetic.run(accelerator=slice_, **options)(program).run_async()


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import train_torch

    return train_torch


@pytest.mark.turn(3)
def test_each_trainer_comes_to_the_same_losses_killed_and_preempted_as_undisturbed(
    frameworks: Path, example: Any
) -> None:
    plan = [
        ("trainer", 5, "killed"), ("trainer", 7, "preempted"), ("lightning", 5, "killed"), ("lightning", 7, "preempted"),
        ("accelerate", 5, "killed"), ("fsdp", 4, "preempted"),
    ]  # fmt: skip
    job = trained(example.TRAINERS, plan, "v4-8", example.REQUIREMENTS)
    found = job.result()
    log = job.logs() or ""
    for name, (cut, whole) in found.items():
        assert cut == whole, name
        for host in range(2):
            assert losses(job, name, host) == losses(job, f"{name}-whole", host), name
    for name, step in (("trainer", 3), ("lightning", 3), ("accelerate", 3)):
        assert log.count(f"{name}: goes on after step {step}\n") == 2, "of both hosts"
    for name, steps in (("trainer", "78"), ("lightning", "78"), ("fsdp", "45")):  # the other host may be a step ahead
        ended = re.findall(rf"{name}: ends at step (\d), asked to \(preemption\); its state is kept", log)
        assert len(ended) == 2 and len(set(ended)) == 1 and ended[0] in steps, (name, ended)
        assert log.count(f"{name}: goes on after step {ended[0]}\n") == 2
    assert "train a model each" not in log
    kept = Path(Path(job.output_dir, "checkpoints").read_text(), "trainer-files")
    assert sorted(path.name for path in kept.glob("*/checkpoint-*")) == ["checkpoint-12", "checkpoint-9"]


@pytest.mark.turn(3)
def test_four_hosts_of_each_trainer_go_on_after_one_was_killed(frameworks: Path, example: Any) -> None:
    """DDP groups gradients anew after its first step, and gloo then adds those of four hosts in another order: the last
    bit of a weight may differ.

    An epoch is three steps here, so that each goes on at the last step of one. Lightning does so twice: once Accelerate is
    killed it begins again at its own end, with the epoch before counted, or it would train steps 7 to 9.
    """
    trainers = {name: example.TRAINERS[name] for name in ("trainer", "lightning", "accelerate")}
    job = trained(trainers, [(name, 5, "killed") for name in trainers], "v5e-16", example.REQUIREMENTS)
    found = job.result()
    log = job.logs() or ""
    assert found.keys() == trainers.keys()
    for name in trainers:
        for host in range(4):
            cut, whole = (losses(job, each, host) for each in (name, f"{name}-whole"))
            assert cut.keys() == whole.keys() == set("123456"), (name, host)
            for step, loss in cut.items():
                assert math.isclose(float(loss), float(whole[step]), rel_tol=1e-5), (name, host, step)
        assert log.count(f"{name}: goes on after step 3\n") == 4, name
    assert "train a model each" not in log
