"""Kueue's admission checks that ask for machines: a ProvisioningRequest for each, and what its answer means. Pure.

A check is Pending, Ready, Rejected for good, or to be tried again (Retry) after the workload has given its quota back:
what then becomes of the workload is its queue's matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kinetic_orchestration.testing.kubernetes.api import kinds
from kinetic_orchestration.testing.kubernetes.api.answers import Object
from kinetic_orchestration.testing.kubernetes.api.objects import (
    annotations_of,
    condition,
    holds,
    is_deleting,
    name_of,
    namespace_of,
    owner_of,
    reference_to,
    stamp,
    uid_of,
    with_condition,
    with_status,
)
from kinetic_orchestration.testing.kubernetes.api.rules.defaults import pod_spec
from kinetic_orchestration.testing.kubernetes.controllers.changes import Change, Create, Delete, Replace, Tell, View

PENDING, READY, RETRY, REJECTED = "Pending", "Ready", "Retry", "Rejected"
PARAMETERS = "provreq.kueue.x-k8s.io/"  # prefix of annotations
OF_REQUESTS = f"{kinds.PROVISIONING_REQUESTS.group}/"  # as well, of pods
REQUEST = f"{OF_REQUESTS}consume-provisioning-request"
_CONTROLLER = "kueue.x-k8s.io/provisioning-request"
_COMPONENT = "kueue-provisioning-request-controller"
_OF_SETS = "jobset.x-k8s.io/jobset-kueue-controller"
_AGAIN = {"Failed": "Retrying after failure: ", "BookingExpired": "Retrying after booking expired: "}


def checks_of(queue: Object) -> list[str]:
    """Return the names of the admission checks of a cluster queue."""
    strategy = queue["spec"].get("admissionChecksStrategy") or {}
    return [one["name"] for one in strategy.get("admissionChecks") or ()]


def inactive(view: View, queue: Object) -> tuple[str, str] | None:
    """Return why a cluster queue admits nothing because of its checks, a reason and a message; None if it may."""
    checks = {name: view.get(kinds.ADMISSION_CHECKS, "", name) for name in checks_of(queue)}
    missing = [name for name, found in checks.items() if found is None]
    asleep = [name for name, found in checks.items() if found is not None and not holds(found, "Active")]
    for reason, word, names in (
        ("AdmissionCheckNotFound", "missing", missing), ("AdmissionCheckInactive", "inactive", asleep),
    ):  # fmt: skip
        if names:
            return reason, f"Can't admit new workloads: references {word} AdmissionCheck(s): {','.join(names)}."
    return None


def states_of(workload: Object) -> list[Object]:
    return list((workload.get("status") or {}).get("admissionChecks") or ())


def with_checks(workload: Object, names: Sequence[str]) -> Object:
    """Return a workload with a state of each check, Pending where it has none."""
    before = {state["name"]: state for state in states_of(workload)}
    fresh = [before.get(name) or _moved({"name": name, "message": ""}, PENDING) for name in sorted(names)]
    return with_status(workload, admissionChecks=fresh or None)


def reset(workload: Object) -> Object:
    """Return a workload that is evicted: all checks are Pending, and say what they were."""
    told = "Reset to Pending after eviction. Previously: "
    states = [_moved({**state, "message": f"{told}{state['state']}"}, PENDING) for state in states_of(workload)]
    return with_status(workload, admissionChecks=states or None)


def _moved(state: Object, to: str) -> Object:
    return {**state, "state": to, "lastTransitionTime": stamp()}


def step(view: View) -> Iterator[Change]:
    ours: dict[str, Object | None] = {}
    for check in view.all(kinds.ADMISSION_CHECKS):
        if check["spec"].get("controllerName") == _CONTROLLER:
            ours[name_of(check)] = config = _config(view, check)
            yield Replace(kinds.ADMISSION_CHECKS, _activity(check, config))
    requests = view.controlled(kinds.PROVISIONING_REQUESTS)
    for workload in view.all(kinds.WORKLOADS):
        if holds(workload, "QuotaReserved") and not holds(workload, "Finished") and not holds(workload, "Evicted"):
            yield from _synced(view, workload, ours, requests.get(uid_of(workload), []))


def _config(view: View, check: Object) -> Object | None:
    return view.get(kinds.PROVISIONING_CONFIGS, "", (check["spec"].get("parameters") or {}).get("name", ""))


def _activity(check: Object, config: Object | None) -> Object:
    if config is not None:
        return with_condition(
            check, "Active", "True", "Active", "The admission check is active", observedGeneration=1
        )  # fmt: skip
    name = (check["spec"].get("parameters") or {}).get("name", "")
    told = f'{kinds.PROVISIONING_CONFIGS.full_name} "{name}" not found'
    return with_condition(check, "Active", "False", "BadParametersRef", told, observedGeneration=1)


def _synced(
    view: View, workload: Object, ours: Mapping[str, Object | None], requests: Sequence[Object]
) -> Iterator[Change]:
    states: list[Object] = []
    for before in states_of(workload):
        name = before["name"]
        if name not in ours:
            states.append(before)
            continue
        attempts = {_attempt(one): one for one in requests if _is_of(one, workload, name)}
        last = max(attempts, default=0)
        after = _state(workload, before, ours[name], attempts.get(last), last)
        states.append(after)
        yield from (Delete(kinds.PROVISIONING_REQUESTS, one) for number, one in attempts.items() if number != last)
        yield from _told(view, workload, before, after)
        config = ours[name]
        if config is None or after["state"] == READY or not _is_needed(workload, config):
            continue
        request = attempts.get(last)
        if request is None or (after["state"] == PENDING and _has_ended(workload, request)):
            yield from _asked(workload, name, config, last + 1)
        else:
            yield from _with_templates(view, workload, request)
    if states != states_of(workload):
        yield Replace(kinds.WORKLOADS, with_status(workload, admissionChecks=states))


def _state(workload: Object, before: Object, config: Object | None, request: Object | None, attempt: int) -> Object:
    """Return the state of a check after a look at its last request."""
    if config is None:
        return _told_as(before, PENDING, "the check is not active")
    if not _is_needed(workload, config):
        return _told_as(before, READY, "the provisioning request is not needed")
    if request is None:
        return before
    ended = next((kind for kind in ("Failed", "CapacityRevoked", "BookingExpired") if holds(request, kind)), "")
    if ended == "CapacityRevoked":
        return _told_as(before, REJECTED, _said(request, ended))
    if ended:
        return _tried_again(before, config, attempt, request, ended) if _has_ended(workload, request) else before
    return _going_on(workload, before, request)


def _tried_again(before: Object, config: Object, attempt: int, request: Object, ended: str) -> Object:
    strategy, said = config["spec"]["retryStrategy"], _said(request, ended)
    if attempt > strategy["backoffLimitCount"]:
        return _told_as(before, REJECTED, said)
    if attempt <= before.get("retryCount", 0):  # which was because of it
        return _told_as(before, before["state"], _AGAIN[ended] + said)
    pause = min(strategy["backoffBaseSeconds"] * 2 ** (attempt - 1), strategy["backoffMaxSeconds"])
    again = {**before, "retryCount": before.get("retryCount", 0) + 1, "requeueAfterSeconds": pause}
    return _told_as(again, RETRY, _AGAIN[ended] + said)


def _going_on(workload: Object, before: Object, request: Object) -> Object:
    said = _said(request, "Provisioned")
    if not holds(request, "Provisioned"):
        return _told_as(before, PENDING, said if holds(request, "Accepted") else "")
    if before["state"] == READY:
        return before
    updates = [_update(pods, request) for pods in workload["spec"]["podSets"]]
    return {**_told_as(before, READY, said), "podSetUpdates": updates}


def _said(request: Object, kind: str) -> str:
    return str((condition(request, kind) or {}).get("message", ""))


def _told_as(before: Object, state: str, message: str) -> Object:
    told = {**before, "message": message or before["message"]}
    return told if before["state"] == state else _moved(told, state)


def _update(pods: Object, request: Object) -> Object:
    notes = {REQUEST: name_of(request)}
    notes[f"{OF_REQUESTS}provisioning-class-name"] = request["spec"]["provisioningClassName"]
    return {"name": pods["name"], "annotations": notes}


def _told(view: View, workload: Object, before: Object, after: Object) -> Iterator[Change]:
    message = after["message"]
    if before["state"] != after["state"]:
        words = f"Admission check {after['name']} updated state from {before['state']} to {after['state']}"
        told = f"{words} with message: {message}" if message else words
        yield Tell(workload, "Normal", "AdmissionCheckUpdated", told, _COMPONENT)
    elif before["message"] != message and (owner := owner_of(workload)) is not None:
        found = view.get(kinds.JOBSETS, namespace_of(workload), owner["name"])
        if found is not None:
            yield Tell(found, "Normal", "UpdatedAdmissionCheck", f"{after['name']}: {message}", _OF_SETS)


def _has_ended(workload: Object, request: Object) -> bool:
    return holds(request, "Failed") or (holds(request, "BookingExpired") and not holds(workload, "Admitted"))


def _is_needed(workload: Object, config: Object) -> bool:
    managed = set(config["spec"].get("managedResources") or ())
    containers = [one for pods in workload["spec"]["podSets"] for one in pods["template"]["spec"]["containers"]]
    used = {name for one in containers for each in (one.get("resources") or {}).values() for name in each or ()}
    return not managed or bool(managed & used)


# ---- its requests


def _is_of(request: Object, workload: Object, check: str) -> bool:
    return name_of(request).rpartition("-")[0] == f"{name_of(workload)}-{check}"


def _attempt(request: Object) -> int:
    number = name_of(request).rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _asked(workload: Object, check: str, config: Object, attempt: int) -> Iterator[Change]:
    name = f"{name_of(workload)}-{check}-{attempt}"
    notes = {key.removeprefix(PARAMETERS): value for key, value in annotations_of(workload).items()}
    request = {
        "metadata": _metadata(name, workload),
        "spec": {
            "provisioningClassName": config["spec"]["provisioningClassName"],
            "parameters": {**(config["spec"].get("parameters") or {}), **notes},
            "podSets": [
                {"podTemplateRef": {"name": f"ppt-{name}-{pods['name']}"}, "count": pods["count"]}
                for pods in workload["spec"]["podSets"]
            ],
        },
    }  # fmt: skip
    told = "ProvisioningRequestCreated", f'Created ProvisioningRequest: "{name}"'
    refused = "FailedCreate", f'Error creating ProvisioningRequest "{name}": '
    yield Create(kinds.PROVISIONING_REQUESTS, request, workload, told, refused, _COMPONENT)


def _with_templates(view: View, workload: Object, request: Object) -> Iterator[Change]:
    """Have the templates of the pods that a request is for."""
    if is_deleting(request):
        return
    for pods, asked in zip(workload["spec"]["podSets"], request["spec"]["podSets"], strict=False):
        name = asked["podTemplateRef"]["name"]
        if view.get(kinds.POD_TEMPLATES, namespace_of(request), name) is None:
            template = {**pods["template"], "spec": pod_spec(pods["template"]["spec"])}
            yield Create(kinds.POD_TEMPLATES, {"metadata": _metadata(name, request), "template": template}, request)


def _metadata(name: str, owner: Object) -> dict[str, Any]:
    return {
        "name": name, "namespace": namespace_of(owner), "labels": {"kueue.x-k8s.io/managed": "true"},
        "ownerReferences": [reference_to(owner)],
    }  # fmt: skip
