"""GKE's answers to ProvisioningRequests of queued provisioning: all machines at once, later, never, or taken back.

What it says in which words, where a script says none: assumed, but for those that users report.
"""

from __future__ import annotations

from collections.abc import Iterator

from kinetic_orchestration.testing.kubernetes.api import kinds
from kinetic_orchestration.testing.kubernetes.api.answers import Object
from kinetic_orchestration.testing.kubernetes.api.objects import (
    condition,
    holds,
    is_deleting,
    namespace_of,
    uid_of,
    with_condition,
)
from kinetic_orchestration.testing.kubernetes.controllers.changes import Change, Join, Leave, Replace, View
from kinetic_orchestration.testing.kubernetes.controllers.scaling import Autoscaler
from kinetic_orchestration.testing.kubernetes.pods.nodes import Node

CLASS = "queued-provisioning.gke.io"
WAITING, FAILED = "Waiting", "Failed"
TAKEN_BACK = (BOOKING_EXPIRED, CAPACITY_REVOKED) = ("BookingExpired", "CapacityRevoked")
_WORDS = {  # where a script has none
    WAITING: "Provisioning Request wasn't provisioned.",
    FAILED: "GCE out of resources",
    BOOKING_EXPIRED: "Capacity is no longer booked for the request.",
    CAPACITY_REVOKED: "Capacity was revoked.",
}
_ACCEPTED = ("Accepted", "True", "SuccessfullyQueued", "Provisioning Request was successfully queued.")
_PROVISIONED = ("Provisioned", "True", "Provisioned", "Provisioning Request was successfully provisioned.")


class QueuedMachines:
    """The answers. It remembers which nodes are whose.

    Args:
        scaler: Makes the nodes.
    """

    def __init__(self, scaler: Autoscaler) -> None:
        self._scaler = scaler
        self._script = ("", "")  # what becomes of requests, and in which words
        self._accepted: dict[str, float] = {}
        self._nodes: dict[str, list[str]] = {}

    def say(self, answer: str, message: str) -> None:
        """Answer requests so from now on, in such words; "": with machines. Raises ValueError for an unknown answer."""
        known = (WAITING, FAILED, *TAKEN_BACK)
        if answer and answer not in known:
            raise ValueError(f"no request is answered with {answer}: there are {', '.join(known)}")
        self._script = (answer, message)

    def step(self, view: View) -> Iterator[Change]:
        requests = {uid_of(one): one for one in view.all(kinds.PROVISIONING_REQUESTS)}
        self._accepted = {uid: since for uid, since in self._accepted.items() if uid in requests}
        for uid in self._nodes.keys() - requests.keys():  # no other request may have them
            yield from (Leave(name) for name in self._nodes.pop(uid))
        if not self._scaler.pools and not self._scaler.provisions:
            return
        for request in requests.values():
            if request["spec"]["provisioningClassName"] == CLASS and not is_deleting(request):
                yield from self._answered(request, view)

    def _answered(self, request: Object, view: View) -> Iterator[Change]:
        what, words = self._script
        words = words or _WORDS.get(what, "")
        if not holds(request, "Accepted"):
            self._accepted[uid_of(request)] = view.now
            yield _told(request, _ACCEPTED)
        elif holds(request, "Provisioned"):
            if what in TAKEN_BACK and condition(request, what) is None:
                yield _told(request, (what, "True", what, words))
                yield from (Leave(name) for name in self._nodes.pop(uid_of(request), ()))
        elif not holds(request, "Failed") and view.now >= self._due(request):
            if what == FAILED:
                yield _told(request, (what, "True", "OutOfResources", words))
            elif what == WAITING:
                yield _told(request, ("Provisioned", "False", "NotProvisioned", words))
            elif what == BOOKING_EXPIRED:  # before anybody could use what was there
                yield _told(request, _PROVISIONED, (what, "True", what, words))
            else:
                yield from self._made(request, view)

    def _due(self, request: Object) -> float:
        return self._accepted.get(uid_of(request), 0.0) + self._scaler.provision

    def _made(self, request: Object, view: View) -> Iterator[Change]:
        nodes: list[Node] = []
        for pods in request["spec"]["podSets"]:
            template = view.get(kinds.POD_TEMPLATES, namespace_of(request), pods["podTemplateRef"]["name"])
            if template is None:
                return
            made = self._scaler.order(template["template"], pods["count"], view)
            if isinstance(made, str):
                yield _told(request, ("Provisioned", "False", "NotProvisioned", f"{_WORDS[WAITING]} {made}"))
                return
            nodes += made
        self._nodes[uid_of(request)] = [node.name for node in nodes]
        yield from map(Join, nodes)
        yield _told(request, _PROVISIONED)


def _told(request: Object, *conditions: tuple[str, str, str, str]) -> Replace:
    for kind, status, reason, message in conditions:
        request = with_condition(request, kind, status, reason, message, observedGeneration=1)
    return Replace(kinds.PROVISIONING_REQUESTS, request)
