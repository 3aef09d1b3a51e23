"""Reads attempts' sets: little of those that run, and all of the others, with what explains their wait.

An object of ours has 15 to 50 KB, most of them the program of its container. So a look reads a row of each set and of
each pod, as kubectl prints them: 0.25 KB for both. Sets are read whole if their rows have changed, or if they do not
run and what explains that is old. This module knows no meaning of what it reads: `states` and `waiting` have that.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kinetic_orchestration.plan.configuration import resource_labels
from kinetic_orchestration.plan.values import PRESENT, Observation
from kinetic_orchestration.platforms.kubernetes import manifest
from kinetic_orchestration.platforms.kubernetes.api import answers, kueue
from kinetic_orchestration.platforms.kubernetes.api.answers import ApiError
from kinetic_orchestration.platforms.kubernetes.api.client import Api
from kinetic_orchestration.platforms.kubernetes.observing import states, waiting
from kinetic_orchestration.platforms.kubernetes.observing.states import Seen, namespace_of
from kinetic_orchestration.platforms.shared import ownership
from kinetic_orchestration.protocol import names

Object = Mapping[str, Any]
Placement = Mapping[str, Any]

EXPLAINED_SECONDS = 5.0  # for which an explanation stands, of a few sets
EXPLAINED_PER_SECOND = 10  # of many
TOGETHER = 100  # sets that are named in one request: their names have 2 KB
MOST = 10_000  # sets that are kept besides those that are asked for
JOBSET = "jobset.sigs.k8s.io/jobset-name"  # label of all that a JobSet makes
KUEUE_JOB = "kueue.x-k8s.io/job-uid"  # label of a workload
_CREATION = ("reason=FailedCreate", "reason=JobCreationFailed")  # events of the controllers of Jobs and of JobSets
_AUTOSCALER = "source=cluster-autoscaler"


class Observer:
    """Observes the sets of one deployment in any clusters, for any threads.

    It keeps little of each set, since a process may follow thousands: a checksum of its rows, what followed from its
    objects when they were last read, and when that was unless all pods ran, which needs no explanation.
    The observation of a set stays while it has no rows.
    """

    def __init__(self, mark: str) -> None:
        self._mark = f"{ownership.MARK}={mark}"
        self._lock = threading.Lock()
        self._rows: dict[str, int] = {}
        self._observations: dict[str, Observation] = {}
        self._explained: dict[str, float] = {}
        # A collection and which of its events → when they were read, and they.
        self._events: dict[tuple[str, str, str], tuple[float, Sequence[Object]]] = {}

    def observe(
        self, api: Api, placements: Sequence[Placement], judge: Callable[[Placement, Seen], Observation]
    ) -> list[Observation]:
        """Return what is seen of placements in one namespace. Raises KineticError.

        Two requests for any number of sets that run; two more, and those for explanations, for each hundred of others.

        Args:
            api: Of their cluster.
            placements: At least one.
            judge: What follows from all that was read of a placement.
        """
        now = time.monotonic()
        rows = self._read_rows(api, placements)
        with self._lock:
            waits = sum(one["name"] in self._explained for one in placements)
            explained_by = now - max(EXPLAINED_SECONDS, waits / EXPLAINED_PER_SECOND)
            found = {
                name: self._observations[name]
                for name in (one["name"] for one in placements)
                if name in rows  # else it may just have been created
                and rows[name] == self._rows.get(name)
                and self._explained.get(name, math.inf) > explained_by
            }
        for some in _groups([one for one in placements if one["name"] not in found]):
            seen = self._read(api, some, now)
            for placement in some:
                name = placement["name"]
                found[name] = judge(placement, seen[name])
                is_steady = found[name].state == PRESENT and states.all_run(placement, seen[name])
                with self._lock:
                    self._explained.pop(name, None)
                    self._rows.pop(name, None)  # else what comes back with the same rows would count as read
                    if name in rows:
                        self._rows[name], self._observations[name] = rows[name], found[name]
                        if not is_steady:
                            self._explained[name] = now
        with self._lock:
            spare = len(self._observations) - len(found) - MOST
            for name in [name for name in self._observations if name not in found][:spare] if spare > 0 else ():
                self._drop(name)
        return [found[placement["name"]] for placement in placements]

    def has_seen(self, name: str) -> bool:
        """Return True if a set was there at an earlier look."""
        return name in self._observations

    def forget(self, name: str) -> None:
        """Drop what is known of a set."""
        with self._lock:
            self._drop(name)

    def _drop(self, name: str) -> None:
        self._rows.pop(name, None)
        self._observations.pop(name, None)
        self._explained.pop(name, None)

    def _selector(self, placements: Sequence[Placement]) -> str:
        """Return what selects the sets and pods of placements; of many, all of the deployment's."""
        if len(placements) > TOGETHER:
            return self._mark
        jobs = (resource_labels.label(names.job_of_slice(one["name"])) for one in placements)
        return f"{self._mark},{_within(ownership.JOB, jobs)}"

    def _read_rows(self, api: Api, placements: Sequence[Placement]) -> dict[str, int]:
        """Return a checksum of the rows of each set. They may be a moment old, and lack what was just created."""
        where, labels = namespace_of(placements[0]), self._selector(placements)
        found: dict[str, int] = {}
        for row in api.rows(jobsets(where), labels=labels, cached=True):
            found[row.name] = found.get(row.name, 0) ^ hash(row)
        for row in api.rows(_pods(where), labels=labels, cached=True):
            name = names.set_of(row.name)
            found[name] = found.get(name, 0) ^ hash(row)
        return found

    def _read(self, api: Api, placements: Sequence[Placement], now: float) -> dict[str, Seen]:
        where, labels = namespace_of(placements[0]), self._selector(placements)
        sets = {found["metadata"]["name"]: found for found in api.list(jobsets(where), labels=labels)}
        pods = _by_set(api.list(_pods(where), labels=labels))
        told = api.now()
        seen = {one["name"]: Seen(sets.get(one["name"]), pods.get(one["name"], ()), now=told) for one in placements}
        _read_jobs(api, where, seen)
        _read_queue(api, where, seen)
        self._read_events(api, where, seen, placements, now)
        return seen

    def _read_events(
        self, api: Api, where: str, seen: dict[str, Seen], placements: Sequence[Placement], now: float
    ) -> None:
        """Add the events that keep controllers from creating pods, and those of autoscalers for pods without a node."""
        lacking = [
            placement
            for placement in placements
            if (one := seen[placement["name"]]).set is not None
            and not one.set["spec"].get("suspend")
            and not waiting.condition(one.set, "Failed")
            and (len(one.pods) < placement["hosts"] or any(map(waiting.is_unscheduled, one.pods)))
        ]
        if not lacking:
            return
        fields = list(_CREATION)
        if any(waiting.is_unscheduled(pod) for placement in lacking for pod in seen[placement["name"]].pods):
            fields.append(_AUTOSCALER)
        events = [event for field in fields for event in self._events_of(api, where, field, now)]
        for placement in lacking:
            name = placement["name"]
            own = [event for event in events if _is_about(event, name)]
            seen[name] = seen[name]._replace(events=own)

    def _events_of(self, api: Api, where: str, field: str, now: float) -> Sequence[Object]:
        """Return the events of a namespace with this field, as read in the last seconds; none without the right to."""
        key = (api.access.server, where, field)
        read, events = self._events.get(key, (-math.inf, ()))
        if now - read >= EXPLAINED_SECONDS:
            try:
                events = api.list(f"/api/v1/namespaces/{where}/events", fields=field)
            except ApiError as error:
                if error.kind != answers.FORBIDDEN:
                    raise
                events = ()
            self._events[key] = (now, events)
        return events


def jobsets(namespace: str) -> str:
    """Return the path of the sets in a namespace."""
    return f"/apis/{manifest.API}/namespaces/{namespace}/jobsets"


def _pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def _read_jobs(api: Api, where: str, seen: dict[str, Seen]) -> None:
    """Add the Jobs of sets that have failed: only their conditions tell of what."""
    failed = [name for name, one in seen.items() if one.set is not None and waiting.condition(one.set, "Failed")]
    if not failed:
        return
    jobs = _by_set(api.list(f"/apis/batch/v1/namespaces/{where}/jobs", labels=_within(JOBSET, failed)))
    for name in failed:
        seen[name] = seen[name]._replace(jobs=jobs.get(name, ()))


def _read_queue(api: Api, where: str, seen: dict[str, Seen]) -> None:
    """Add the workloads of suspended sets, and their places in the queue where these are shown."""
    held = {name: one.set for name, one in seen.items() if one.set is not None and one.set["spec"].get("suspend")}
    if not held:
        return
    by_uid = {found["metadata"]["uid"]: name for name, found in held.items()}
    labels = _within(KUEUE_JOB, by_uid)
    try:
        workloads = kueue.ask(
            api, lambda version: api.list(f"/apis/{kueue.GROUP}/{version}/namespaces/{where}/workloads", labels=labels)
        )
    except ApiError as error:
        if error.kind not in (answers.UNSERVED, answers.FORBIDDEN):
            raise
        for one in held:  # without Kueue, or the right to read from it, only the suspension is known
            seen[one] = seen[one]._replace(unread=error)
        return
    positions = _positions(api, where, workloads)
    for workload in workloads:
        for owner in workload["metadata"].get("ownerReferences", ()):
            if (name := by_uid.get(owner.get("uid"))) is not None:
                position = positions.get(workload["metadata"]["name"])
                seen[name] = seen[name]._replace(workload=workload, position=position)


def _positions(api: Api, where: str, workloads: Sequence[Object]) -> dict[str, int]:
    found: dict[str, int] = {}
    for queue in {workload["spec"].get("queueName", "") for workload in workloads} - {""}:
        shown = f"/apis/{kueue.VISIBILITY}/{kueue.version(api)}"
        try:
            pending = api.get(f"{shown}/namespaces/{where}/localqueues/{queue}/pendingworkloads").get("items", ())
        except ApiError:  # it is not shown, or not to us
            continue
        found |= {one["metadata"]["name"]: int(one.get("positionInLocalQueue", 0)) + 1 for one in pending}
    return found


def _by_set(objects: Sequence[Object]) -> dict[str, list[Object]]:
    """Return the objects of each set, by its name."""
    found: dict[str, list[Object]] = {}
    for one in objects:
        found.setdefault(one["metadata"]["labels"].get(JOBSET, ""), []).append(one)
    return found


def _within(key: str, values: Iterable[str]) -> str:
    """Return a selector of the objects whose label has one of the values."""
    return f"{key} in ({','.join(dict.fromkeys(values))})"


def _groups(placements: Sequence[Placement]) -> Iterator[Sequence[Placement]]:
    for at in range(0, len(placements), TOGETHER):
        yield placements[at : at + TOGETHER]


def _is_about(event: Object, name: str) -> bool:
    about = str(event.get("involvedObject", {}).get("name", ""))
    return about == name or about.startswith(f"{name}-{names.JOBS_OF_SET}-")
