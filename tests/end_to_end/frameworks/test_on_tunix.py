"""Tests what the examples of Tunix do on one host and on two: they learn, and go on at their last checkpoint."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import Unsupported
from kinetic_orchestration.plan.values import Metrics

EXAMPLES = Path(__file__).parents[3] / "example_pipelines"
LIMITS = kinetic.Limits(run="1000s")
OFTEN = kinetic.Retry(user=3, infra=3)
TWO_HOSTS = "v4-8"

pytestmark = [pytest.mark.offline, pytest.mark.timeout(1500)]  # an environment of a gigabyte, and many compilations


@pytest.fixture
def examples(frameworks: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The functions that the examples run, by their names, and what their jobs need."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import training_tunix
    import training_tunix_rl
    import training_tunix_vision

    found = {**vars(training_tunix), **vars(training_tunix_rl), **vars(training_tunix_vision)}
    ways = {name: one.__kinetic_function__ for name, one in found.items() if hasattr(one, "__kinetic_function__")}
    return {**ways, "options": {"requirements": training_tunix.REQUIREMENTS, "limits": LIMITS}}


def metrics(job: kinetic.JobHandle[Any]) -> list[Metrics]:
    return [event for event in job.events() if isinstance(event, Metrics)]


def dies_at(numbers: Any, step: int) -> None:
    """Kill this process once the class of the examples' numbers hears of a step."""
    logs = numbers.log_scalar

    def dies(self: Any, event: str, value: Any, **more: Any) -> None:
        logs(self, event, value, **more)
        if int(more.get("step", 0)) >= step:
            os.kill(os.getpid(), signal.SIGKILL)

    numbers.log_scalar = dies


def test_an_agent_on_two_hosts_is_refused_once_with_the_reason(examples: dict[str, Any]) -> None:
    options = {**examples["options"], "retry": kinetic.Retry(user=3)}
    job = kinetic.run(accelerator=TWO_HOSTS, **options)(examples["converse"]).run_async()
    with pytest.raises(Unsupported, match="runs on one host, and this slice has 2: each host calls the model as"):
        job.result()
    assert job.attempts() == 1


def test_a_student_and_a_policy_learn_and_go_on_where_they_were_cut_off(examples: dict[str, Any]) -> None:
    """With what they had learned: what the policy says is sampled from its restored weights."""
    distill, reinforce = examples["distill"], examples["reinforce"]

    def cut() -> list[dict[str, Any]]:
        return [distill(20), distill(40), reinforce(4), reinforce(12)]

    job = kinetic.run(accelerator="v5e-4", **examples["options"])(cut).run_async()
    student, taught, policy, better = job.result()
    assert (student["first"], taught["first"], policy["first"], better["first"]) == (0, 20, 0, 4)
    assert len(taught["loss"]) == 20
    assert taught["loss"][0] < 0.6 * student["loss"][0]
    assert taught["loss"][-1] < 0.2 * student["loss"][0]
    assert len(better["reward"]) == 8
    assert min(better["reward"]) > 2 * policy["reward"][0]
    told = {name for event in metrics(job) for name in event.values}
    assert told == {"teacher_loss", "loss", "reward", "kl"}


def test_an_agent_learns_to_call_its_tool_and_goes_on_after_it_was_killed(examples: dict[str, Any]) -> None:
    converse = examples["converse"]

    def program() -> dict[str, Any]:
        kept = converse.__globals__["kept_and_told"].__globals__
        kept["KEEP_EVERY"] = 2
        if kinetic.current().attempt == 1:
            dies_at(converse.__globals__["Numbers"], 6)
        found: dict[str, Any] = converse(20)
        return found

    job = kinetic.run(accelerator="v5e-4", retry=OFTEN, **examples["options"])(program).run_async()
    found = job.result()
    assert job.attempts() >= 2
    assert found["first"] >= 4, "at a checkpoint"
    rewards = {event.step: event.values["reward"] for event in metrics(job) if "reward" in event.values}
    assert sorted(rewards) == list(range(min(rewards), min(rewards) + 20)), "each step of the questions"
    assert sum(found["reward"][-4:]) / 4 > 2 * rewards[min(rewards)]


def test_a_model_learns_to_name_what_it_sees_and_goes_on(examples: dict[str, Any]) -> None:
    describe = examples["describe"]

    def cut() -> list[dict[str, Any]]:
        return [describe(10), describe(40)]

    sees, named = kinetic.run(accelerator="v5e-4", **examples["options"])(cut).run_async().result()
    assert (sees["first"], named["first"]) == (0, 10)
    assert sees["loss"][0] > 1 and named["loss"][0] < sees["loss"][0]
    assert named["loss"][-1] < 0.1


def test_on_two_hosts_they_learn_as_one_and_go_on_after_a_host_was_killed(examples: dict[str, Any]) -> None:
    prefer, finetune, distill, reinforce, describe = (
        examples[name] for name in ("prefer", "finetune", "distill", "reinforce", "describe")
    )

    def program() -> dict[str, Any]:
        host = kinetic.current()
        if host.attempt == 1 and host.host_index == 0:  # the only one that Tunix tells its numbers
            dies_at(prefer.__globals__["Numbers"], 25)  # a checkpoint begins when the one before is whole
        found = {"prefer": prefer(40), "reinforce": reinforce(8), "distill": distill(20), "finetune": finetune(60)}
        here = host.checkpoint_dir
        os.environ["KINETIC_CHECKPOINT_DIR"] = f"{here}/pictures"
        return {**found, "describe": describe(30)}

    job = kinetic.run(accelerator=TWO_HOSTS, retry=OFTEN, **examples["options"])(program).run_async()
    found = job.result()
    assert job.attempts() >= 2
    assert {way["devices"] for way in found.values()} == {8}
    first = found["prefer"]["first"]
    assert first in (10, 20), "at a checkpoint of both hosts"
    assert len(found["prefer"]["loss"]) == 40 - first
    assert found["prefer"]["accuracy"][-1] > 0.9 and found["prefer"]["loss"][-1] < 0.5
    margins: dict[int, dict[int, float]] = {1: {}, 2: {}}
    for event in metrics(job):
        if "margin" in event.values:
            margins[min(event.attempt, 2)][event.step] = event.values["margin"]
    again = sorted(margins[1].keys() & margins[2].keys())
    assert again and again[0] == first + 1
    for step in again:
        assert margins[2][step] == pytest.approx(margins[1][step], rel=1e-3, abs=1e-3)
    for name, times in (("finetune", 0.95), ("distill", 0.6), ("describe", 0.5)):
        assert found[name]["loss"][-1] < times * found[name]["loss"][0], name
    rewards = found["reinforce"]["reward"]
    assert rewards[-1] > 2 * rewards[0]

    def on_one() -> list[list[float]]:
        return [prefer(6)["loss"], reinforce(2)["reward"]]

    losses, same = kinetic.run(accelerator="v5e-4", **examples["options"])(on_one).run_async().result()
    told = {event.step: event.values["loss"] for event in metrics(job) if event.attempt == 1 and "loss" in event.values}
    assert [told[step] for step in range(1, 7)] == pytest.approx(losses, rel=1e-3)
    assert rewards[:2] == pytest.approx(same, rel=0.05), "what one host would have said"
