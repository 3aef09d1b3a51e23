"""A cloud that is not as the emulator has it: `kinor verify` finds each thing, and names it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.cli import codes
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.api_rules.refusals import Refusal
from tests.core.cli.verify import recorded

INFO = {
    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
    "reason": "RESOURCE_ALREADY_EXISTS",
    "domain": "tpu.googleapis.com",
}
UNKNOWN_FIELD = b"\xb8\x3e\x01"  # number 999, a varint

Line = tuple[str, str, str, str]


def lines(document: dict[str, Any]) -> list[Line]:
    return [(each["call"], each["where"], each["emulator"], each["real"]) for each in document["differences"]]


def found(lines: list[Line], *words: str) -> list[Line]:
    return [line for line in lines if all(any(word in cell for cell in line) for word in words)]


def plant(cloud: Emulator) -> dict[str, tuple[str, ...]]:
    """Deviations that let all steps pass, each with the words by which its line is known."""
    ready: Counter[str] = Counter()
    deleted: Counter[str] = Counter()

    def renamed(answer: dict[str, Any]) -> dict[str, Any]:
        state = answer.get("state", {})
        return {**answer, "state": {**state, "state": 42}} if state.get("state") == "PROVISIONING" else answer

    def node(answer: dict[str, Any]) -> dict[str, Any]:
        labels = {key: value for key, value in answer["labels"].items() if key != "kinetic-deployment"}
        other = {key: value for key, value in answer.items() if key != "createTime"} | {
            "labels": labels,
            "description": "x",
        }
        if other["state"] == "READY":
            ready[answer["name"]] += 1
            other["health"] = 17
            if ready[answer["name"]] == 4:
                other["state"] = "CREATING"
        return other

    def taken(refused: Refusal) -> Refusal:
        return Refusal(6, "An entity of that name is already there", INFO) if refused.code == 6 else refused

    def unheard(request: dict[str, Any]) -> dict[str, Any] | None:
        if not request.get("force") or "never" in request["name"]:
            return None
        deleted[request["name"]] += 1
        place = request["name"].partition("/queuedResources/")[0]
        return {"name": f"{place}/operations/operation-1-unheard"} if deleted[request["name"]] == 1 else None

    def endless(answer: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in answer.items() if key != "expireTime"}

    cloud.deviate("GetQueuedResource", answer=renamed)
    cloud.deviate("GetNode", answer=node, unknown=UNKNOWN_FIELD)
    cloud.deviate("CreateQueuedResource", refusal=taken)
    cloud.deviate("DeleteQueuedResource", instead=unheard)
    cloud.deviate("POST /v1/projects/*/secrets", answer=endless)
    cloud.furnish({"lacking": ("agent-worker-number",)})
    return {
        "a renamed state": ("tpu GetQueuedResource", "state.state", "42"),
        "a missing field": ("tpu GetNode", "READY", "createTime", "nothing"),
        "an unknown value": ("tpu GetNode", "health", "17"),
        "a new field that has a name": ("tpu GetNode", "the field description"),
        "a new field that has none": ("tpu GetNode", "Node.999"),
        "a label that is dropped": ("tpu GetNode", "labels.kinetic-deployment of the request", "absent"),
        "an order that cannot be": ("the states of a node", "after READY", "CREATING"),
        "another refusal": ("tpu CreateQueuedResource", "error.message", "already there"),
        "other details of it": ("tpu CreateQueuedResource", "details", "the field"),
        "a deletion that takes two calls": ("the states of a queued resource", "after delete: OK", "ACTIVE"),
        "an attribute that is absent": ("metadata attributes", "agent-worker-number", "nothing"),
        "a secret without an end": ("secretmanager", "expireTime", "nothing"),
    }


@pytest.mark.slow
@pytest.mark.turn(3)
@pytest.mark.timeout(300)
def test_each_planted_difference_is_a_line_and_every_step_passes(home: Path, tmp_path: Path) -> None:
    with recorded.emulated() as cloud:
        planted = plant(cloud)
        done, document, page = recorded.verified(cloud, tmp_path)
    told = lines(document)
    assert {name for name, words in planted.items() if not found(told, *words)} == set(), told
    assert [step["name"] for step in document["steps"] if step["state"] == "failed"] == [], done.stderr
    assert done.returncode == codes.DIFFERENT
    for call, where, _, _ in told:
        assert call.partition(" · ")[0] in page and where in page
    # What else follows from the same plants.
    echoes_of = (
        "DeleteQueuedResource · OK", "error.details", "the states of a queued resource", "labels.kinetic-deployment",
    )  # fmt: skip
    unplanned = [line for line in told if not any(found([line], *words) for words in planted.values())]
    assert [line for line in unplanned if not any(word in " ".join(line) for word in echoes_of)] == []


@pytest.mark.slow
def test_another_error_for_what_is_not_there_fails_its_step_and_is_a_line(home: Path, tmp_path: Path) -> None:
    def denied(refused: Refusal) -> Refusal:
        return Refusal(7, f"Permission 'tpu.nodes.get' denied on '{refused.message}'") if refused.code == 5 else refused

    with recorded.emulated() as cloud:
        cloud.deviate("GetNode", refusal=denied)
        done, document, page = recorded.verified(cloud, tmp_path, "--only", "api")
    told = lines(document)
    assert found(told, "tpu GetNode", "status", "PERMISSION_DENIED"), told
    assert found(told, "a question", "get a node that never was", "PERMISSION_DENIED"), told
    states = {step["name"]: step["state"] for step in document["steps"]}
    assert (states["api"], states["job"], states["reap"]) == ("failed", "not run", "passed")
    assert done.returncode == codes.FAILED
    assert "get a node that never was" in page


@pytest.mark.slow
@pytest.mark.turn(0)
def test_ctrl_c_removes_what_was_made_and_writes_the_report(home: Path, tmp_path: Path) -> None:
    with recorded.emulated() as cloud:
        running = subprocess.Popen(
            [sys.executable, "-m", "kinetic_orchestration.cli", "verify", "--yes", "--output", str(tmp_path)],
            env={**os.environ, **cloud.environ()}, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            cloud.wait_until(lambda: any(node["state"] == "READY" for node in cloud.nodes()), 60.0)
            running.send_signal(signal.SIGINT)
            _, told = running.communicate(timeout=90)
        finally:
            running.kill()
        assert running.returncode == codes.INTERRUPTED, told
        began = time.monotonic()
        cloud.wait_until_empty(10)
        assert time.monotonic() - began < 10
        assert list(cloud.neighbours.secrets()) == []
    (page,) = tmp_path.glob("verify-*.md")
    assert "interrupted" in page.read_text()
