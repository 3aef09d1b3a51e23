"""The reports of a kubelet to its API server: the statuses of pods, and events."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

from kinetic_orchestration.testing.kubernetes.api.answers import Object, Refused
from kinetic_orchestration.testing.kubernetes.api.objects import event_name, stamp
from kinetic_orchestration.testing.kubernetes.pods.pod import Pod

FINAL = ("Succeeded", "Failed")


class Api(Protocol):
    """The API server, as a kubelet speaks to it. Each verb raises Refused, and OSError if there is no server."""

    def get(self, path: str) -> Object: ...
    def found(self, path: str) -> Object | None: ...
    def create(self, path: str, body: Object) -> Object: ...
    def patch(self, path: str, body: Object) -> Object: ...
    def delete(self, path: str, grace: float | None = None, **options: object) -> Object: ...


class Reports:
    def __init__(self, api: Api) -> None:
        self._api = api

    def times(self, pod: Pod) -> dict[str, str]:
        moment = stamp()
        return {"startedAt": pod.started or moment, "finishedAt": moment}

    def report(self, pod: Pod, status: Object, state: Object) -> None:
        started = "running" in state
        running = started and pod.probes.ready
        why = (
            ""
            if running
            else {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(status["phase"], "ContainersNotReady")
        )
        conditions = [
            condition("PodReadyToStartContainers", status["phase"] not in FINAL),
            condition("Initialized", True),
            condition("ContainersReady", running, why),
            condition("Ready", running, why),
        ]
        container = {
            "name": pod.spec["name"], "image": pod.spec["image"], "imageID": "", "ready": running,
            "started": started and pod.probes.started, "restartCount": pod.restarts, "state": state,
            "lastState": pod.last,
        }  # fmt: skip
        told = {**status, "conditions": conditions + status.get("conditions", []), "containerStatuses": [container]}
        with contextlib.suppress(Refused):  # it was deleted by force
            self._api.patch(f"{pod.path}/status", {"metadata": {"uid": pod.uid}, "status": told})

    def tell(self, pod: Pod, kind: str, reason: str, message: str) -> None:
        """Post an event, as a kubelet does where somebody can act on it."""
        moment = stamp()
        event = {
            "metadata": {"name": event_name(pod.name), "namespace": pod.namespace},
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid,
                "fieldPath": f"spec.containers{{{pod.spec['name']}}}",
            },
            "type": kind, "reason": reason, "message": message, "count": 1,
            "firstTimestamp": moment, "lastTimestamp": moment,
            "source": {"component": "kubelet", "host": pod.node}, "reportingComponent": "kubelet",
            "reportingInstance": pod.node,
        }  # fmt: skip
        with contextlib.suppress(Refused):  # its namespace is about to go
            self._api.create(f"/api/v1/namespaces/{pod.namespace}/events", event)


def condition(kind: str, met: bool, reason: str = "", message: str = "") -> dict[str, Any]:
    """Return a condition as a patch has it: None takes an earlier value away."""
    told = {"type": kind, "status": "True" if met else "False", "lastTransitionTime": stamp()}
    return told | {"reason": reason or None, "message": message or None}
