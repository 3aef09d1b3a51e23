"""Asks a model server a few questions through the cluster's API server, before it counts as deployed.

What a server says is foreign: its answers are bounded, escaped where they are shown, and never interpreted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

from kinetic_orchestration.errors import DeploymentFailed
from kinetic_orchestration.models.serving.declaration import SmokeTest
from kinetic_orchestration.plan.configuration.settings import seconds
from kinetic_orchestration.platforms.kubernetes.api import answers
from kinetic_orchestration.platforms.kubernetes.api.answers import ApiError, Reply
from kinetic_orchestration.platforms.kubernetes.api.client import Api

PAUSE: Final = 0.5
_LATER: Final = (answers.BUSY, answers.UNREACHABLE)
_SHOWN: Final = 200  # letters of an answer
_USUAL: Final = "The capital of France is"


def proxy_path(namespace: str, service: str, port: int, *, tls: bool = False) -> str:
    """Return where the API server passes requests on to a Service."""
    named = f"https:{service}:{port}" if tls else f"{service}:{port}"
    return f"/api/v1/namespaces/{namespace}/services/{named}/proxy"


def test(api: Api, path: str, name: str, questions: SmokeTest, between: Callable[[], object]) -> str:
    """Ask the server behind a path, and return a sentence about its answers.

    Args:
        api: The cluster.
        path: As `proxy_path` has it.
        name: The model's name in requests.
        questions: What to ask.
        between: Called again and again meanwhile.

    Raises:
        DeploymentFailed: It does not have the model, answers otherwise or too slowly, or not at all.
    """
    _await_model(api, path, name, seconds("patience", questions.patience) or 0.0, between)
    longest = seconds("latency", questions.latency) or 0.0
    expected = dict(questions.expected) or {_USUAL: ""}
    agreed: list[float] = []
    slowest, worst = 0.0, ("", "", 2.0)
    for prompt, answer in expected.items():
        between()
        began = time.monotonic()
        said = _completion(api, path, name, prompt, questions.max_tokens if answer else 1, longest)
        slowest = max(slowest, time.monotonic() - began)
        if slowest > longest:
            raise _too_slow(name, prompt, slowest, longest)
        share = agreement(answer, said) if answer else 1.0
        agreed.append(share)
        worst = min(worst, (prompt, said, share), key=lambda each: each[2])
    met = sum(agreed) / len(agreed)
    if met < 1 - questions.tolerance:
        raise DeploymentFailed(
            f"the model {name} answers otherwise than expected: {met:.0%} of the answers agree, and "
            f"{1 - questions.tolerance:.0%} have to. To {_short(worst[0])} it said {_short(worst[1])}, where "
            f"{_short(expected[worst[0]])} was expected. Is it the same model, in the same precision?"
        )
    asked = f"{len(expected)} of {len(expected)} prompts, {met:.0%} agree" if questions.expected else "answers"
    return f"smoke test of {name}: {asked}, the slowest in {slowest:.2f} s"


def agreement(expected: str, said: str) -> float:
    """Return the share of an answer before its first letter that differs."""
    both = zip(expected, said, strict=False)
    same = next((at for at, (one, other) in enumerate(both) if one != other), min(len(expected), len(said)))
    return same / max(len(expected), len(said), 1)


def _await_model(api: Api, path: str, name: str, patience: float, between: Callable[[], object]) -> None:
    deadline = time.monotonic() + patience
    while True:
        between()
        try:
            reply = api.through(f"{path}/v1/models")
        except ApiError as error:
            if error.kind not in _LATER:
                raise
            said = str(error)
        else:
            served = _served(reply)
            if name in served:
                return
            said = f"it serves {', '.join(map(_short, served))}" if served else _quoted(reply)
        if time.monotonic() > deadline:
            raise DeploymentFailed(
                f"the model {name} was not in the list of the server's models ({path}/v1/models) in {patience:g} s: "
                f"{said}"
            )
        time.sleep(PAUSE)


def _served(reply: Reply) -> list[str]:
    found = _json(reply)
    data = found.get("data")
    listed = data if reply.status == 200 and isinstance(data, list) else []
    return [str(one["id"]) for one in listed[:50] if isinstance(one, dict) and "id" in one]


def _too_slow(name: str, prompt: str, took: float, longest: float) -> DeploymentFailed:
    return DeploymentFailed(
        f"the model {name} took {took:.1f} s to answer {_short(prompt)}, and {longest:g} s are allowed "
        "(SmokeTest(latency=…))"
    )


def _completion(api: Api, path: str, name: str, prompt: str, tokens: int, longest: float) -> str:
    asked = {"model": name, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    began = time.monotonic()
    try:
        reply = api.through(f"{path}/v1/completions", asked, within=longest)
    except ApiError as error:
        took = time.monotonic() - began
        if error.kind != answers.UNREACHABLE or took <= longest:
            raise
        raise _too_slow(name, prompt, took, longest) from error
    choices = _json(reply).get("choices")
    first = choices[0] if reply.status == 200 and isinstance(choices, list) and choices else None
    if not isinstance(first, dict) or not isinstance(first.get("text"), str):
        raise DeploymentFailed(f"the model {name} did not answer {_short(prompt)}: {_quoted(reply)}")
    return str(first["text"])


def _json(reply: Reply) -> dict[str, Any]:
    try:
        found = json.loads(reply.body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _quoted(reply: Reply) -> str:
    return f"status {reply.status}, {_short(reply.body[:_SHOWN].decode('utf-8', 'replace'))}"


def _short(text: str) -> str:
    return repr(answers.escaped(text[:_SHOWN]))
