"""Applies the set of a server to a cluster, waits until it serves, and puts the set before it back if it does not.

One client at a time has the turn (`revisions`). Before each change it looks whether it still has, and changes the very
object that it saw before that look, so one that was away for a while changes nothing of its successor's. What was begun
and never ended is known to whoever comes next, who removes what neither set has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from kinetic_orchestration.errors import DeploymentBusy, DeploymentFailed, KineticError, ServingError, UsageError
from kinetic_orchestration.models.serving import admission, manifests, smoke, waiting
from kinetic_orchestration.models.serving.declaration import Serving
from kinetic_orchestration.models.serving.manifests import SERVING, SET, WORKLOADS, Key, Object, key_of
from kinetic_orchestration.models.serving.revisions import MANAGER, REVISION, Head, Revisions
from kinetic_orchestration.models.serving.waiting import Limits, Verdict
from kinetic_orchestration.plan.configuration.settings import seconds
from kinetic_orchestration.platforms.kubernetes.api import answers
from kinetic_orchestration.platforms.kubernetes.api.answers import ApiError
from kinetic_orchestration.platforms.kubernetes.api.client import Api

PAUSE: Final = 1.0
_TRIES: Final = 50  # to change an object that its controllers change as well
_GONE_SECONDS: Final = 120.0  # for an object to go, besides what its servers may take to end
_PREVIEW: Final = "-next"
_NODES_SHOWN: Final = 500


class Done(NamedTuple):
    """A set that serves.

    Attributes:
        revision: Its number.
        previous: The number of the set before it; 0: there was none.
        says: What the smoke test found; "" without one.
        service: The Service, in whose namespace requests are answered.
        port: Its port, as this set has it.
        tls: That one speaks TLS.
    """

    revision: int
    previous: int
    says: str
    service: str
    port: int
    tls: bool = False


class Rollout:
    """The sets of one server.

    Args:
        api: Its cluster.
        given: Its declaration.
        say: Called with what happens, in words.
        force: Take fields that others hold.
    """

    def __init__(self, api: Api, given: Serving, say: Callable[[str], object], *, force: bool = False) -> None:
        self._api, self._given, self._say, self._force = api, given, say, force
        node = seconds("wait", given.wait) or 0.0
        self._limits = Limits(node, waiting.CONTROLLER_SECONDS, waiting.PULL_SECONDS)
        self._revisions = Revisions(api, given.namespace, given.name)

    def deploy(self, objects: Sequence[Object], model: str) -> Done:
        """Apply a set, and return once it serves.

        Raises:
            ManifestRefused: The cluster refuses a part of it. Nothing was changed.
            DeploymentBusy: Another client has the turn, or took it. What it does counts.
            DeploymentFailed: It does not serve, and the set before it was put back, or the message says why not.
        """
        admission.check(self._api, self._given, objects, force=self._force)
        with self._turn() as before:
            number = self._revisions.keep(objects, model)
            head = self._revisions.write(self._revisions.hold()._replace(pending=(*before.pending, number)))
            self._say(f"revision {number} of {self._given.name}: {len(objects)} objects in {self._given.namespace}")
            try:
                done = self._roll(objects, number, head)
            except DeploymentBusy:
                raise  # the other one's set counts: nothing of it is undone here
            except BaseException as error:
                self._undo(number, error)
                raise  # an interruption, as itself
            self._end(number, (*head.history, head.current) if head.current else head.history)
            return done._replace(revision=number, previous=head.current)

    def rollback(self) -> Done:
        """Put the set before the one that serves back; of a deployment that never ended, the one that serves.

        Raises:
            UsageError: There is none.
            DeploymentBusy: Another client has the turn.
            DeploymentFailed: It does not serve again; it stays applied.
        """
        with self._turn() as head:
            history = head.history if head.pending else head.history[:-1]
            number = head.current if head.pending else (head.history[-1] if head.history else 0)
            if not number:
                raise UsageError(
                    f"there is no set of {self._given.name} before the one that serves in {self._given.namespace}: "
                    "deploy "
                    "another model, or delete the objects with the label "
                    f"{SERVING}={self._given.name}"
                )
            objects = self._revisions.objects(number)
            self._say(f"revision {number} of {self._given.name} is applied again")
            self._restore(objects, number, {*head.pending, head.current})
            self._end(number, history)
            self._await(objects, since=self._api.now())
            return Done(number, history[-1] if history else 0, "", *self._where(objects))

    def serves(self) -> Done | None:
        """Return the set that counts; None if nothing was deployed."""
        head = self._revisions.head()
        if not head.current:
            return None
        previous = head.history[-1] if head.history else 0
        return Done(head.current, previous, "", *self._where(self._revisions.objects(head.current)))

    # ---- a turn ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _turn(self) -> Iterator[Head]:
        head = self._revisions.take()
        if head.pending:
            self._say(
                f"revision {', '.join(map(str, head.pending))} of {self._given.name} was left unfinished by a client "
                "that "
                "ended: it is replaced, and "
                f"{f'revision {head.current} counts' if head.current else 'none was before it'}"
            )
        try:
            yield head
        finally:
            self._revisions.release()

    def _end(self, number: int, history: tuple[int, ...]) -> None:
        kept = history[-20:]
        self._revisions.write(self._revisions.hold()._replace(current=number, history=kept, pending=()))
        self._revisions.prune((number, *kept[-1:]))

    # ---- one set ---------------------------------------------------------------------------------------------------

    def _roll(self, objects: Sequence[Object], number: int, head: Head) -> Done:
        left = self._left(objects, {*head.pending, head.current})
        since = self._api.now()
        if self._given.strategy == "blue_green":
            self._narrow(head.current, number)
            says = self._beside(objects, number, since)
        else:
            self._remove(key for key in left if key.kind in WORKLOADS)  # they hold what the new ones need
            for one in objects:
                self._apply(one, number)
            self._await(objects, since)
            says = self._ask(*self._where(objects))
        self._remove(left)
        self._settle(objects, number)
        return Done(number, head.current, says, *self._where(objects))

    def _narrow(self, current: int, number: int) -> None:
        """Have requests go to the servers of the set that counts alone, also if it was no blue/green one."""
        before: Sequence[Object] = ()
        with suppress(ServingError):  # there is none, or its record was changed: then it is replaced as it is
            before = self._revisions.objects(current) if current else ()
        for one in manifests.narrowed(before):
            self._apply(one, number)

    def _beside(self, objects: Sequence[Object], number: int, since: float) -> str:
        """Start the new servers beside the old, ask them, and then give them the requests."""
        first = [one for one in objects if one["kind"] in WORKLOADS]
        preview = manifests.service(self._given, first[0], self._preview)
        for one in (*first, preview):
            self._apply(one, number)
        self._await(first, since)
        says = self._ask(self._preview, self._given.port, False)
        for one in objects:
            if one not in first:
                self._apply(one, number)
        self._await(objects, self._api.now())
        return says

    @property
    def _preview(self) -> str:
        return f"{self._given.name}{_PREVIEW}"

    def _settle(self, objects: Sequence[Object], number: int) -> None:
        """See to it that all objects are of this set: a client that had lost its turn may have written once more."""
        for one in objects:
            found = self._found(key_of(one)) or {}
            marks = found.get("metadata", {}).get("annotations") or {}
            if marks.get(REVISION) != str(number):
                self._apply(one, number)

    def _left(self, objects: Sequence[Object], numbers: Iterable[int]) -> list[Key]:
        """Return what other sets have and this one has not, with what a switch left."""
        known = self._revisions.keys(number for number in numbers if number)
        known.add(Key("v1", "Service", self._preview))
        return sorted(known - {key_of(one) for one in objects})

    def _undo(self, number: int, error: BaseException) -> None:
        """Put back what was there before, and raise what is to be known of it; an interruption is not replaced."""
        try:
            head = self._revisions.hold()
            objects = self._revisions.objects(head.current) if head.current else ()
            self._restore(objects, head.current, {*head.pending, head.current})
            self._revisions.write(self._revisions.hold()._replace(pending=()))
        except KineticError as second:
            raise DeploymentFailed(
                f"{_sentence(error)} Nor could what was there before be put back: {_sentence(second)} The next "
                "deploy, or "
                "rollback(), begins there",
                revision=number,
                clean=False,
            ) from error
        now = f"revision {head.current} is applied again" if head.current else "all of it is removed again"
        self._say(f"{self._given.name}: {now}")
        if isinstance(error, KineticError):
            raise DeploymentFailed(
                f"{_sentence(error)} The deployment of {self._given.name} (revision {number}) was undone: {now}",
                revision=number,
                restored=head.current,
            ) from error

    def _restore(self, objects: Sequence[Object], number: int, numbers: Iterable[int]) -> None:
        """Apply a set that was recorded, and remove what other sets have besides."""
        left = self._left(objects, numbers)
        if any(self._found(key_of(one)) is None for one in objects if one["kind"] in WORKLOADS):
            self._remove(key for key in left if key.kind in WORKLOADS)
        for one in objects:
            self._apply(one, number)
        self._remove(left)

    # ---- one object ------------------------------------------------------------------------------------------------

    def _found(self, key: Key) -> Object | None:
        try:
            return self._api.get(key.path(self._given.namespace))
        except ApiError as error:
            if error.kind in (answers.ABSENT, answers.UNSERVED):
                return None
            raise

    def _apply(self, body: Object, number: int) -> None:
        key = key_of(body)
        for _ in range(_TRIES):
            found = self._found(key)
            self._revisions.hold()
            admission.check_owner(self._given, key, found)
            metadata = {**body["metadata"], "annotations": {REVISION: str(number)}}
            if found is not None:
                metadata["resourceVersion"] = found["metadata"]["resourceVersion"]
            try:
                self._api.apply(
                    key.path(self._given.namespace), {**body, "metadata": metadata}, manager=MANAGER, force=self._force
                )
            except ApiError as error:
                if error.kind == answers.CONFLICT and not answers.rivals(error):
                    continue  # its controller, or another client, was quicker
                raise admission.refused(self._given, key, error) from error
            if found is None:
                self._check_turn(key)
            return
        raise DeploymentFailed(f"{key} in {self._given.namespace} changes faster than it can be written")

    def _check_turn(self, key: Key) -> None:
        """Look whether the turn is still this client's after it has written what was not there before, for which no
        version could be asked for: what a successor may have made meanwhile is written as it was."""
        try:
            self._revisions.hold()
        except DeploymentBusy:
            head = self._revisions.head()
            number = head.pending[-1] if head.pending else head.current
            for one in self._revisions.objects(number) if number else ():
                if key_of(one) == key:
                    metadata = {**one["metadata"], "annotations": {REVISION: str(number)}}
                    path = key.path(self._given.namespace)
                    self._api.apply(path, {**one, "metadata": metadata}, manager=MANAGER, force=self._force)
            raise

    def _remove(self, keys: Iterable[Key]) -> None:
        """Delete objects, and wait until they are gone with all that is theirs."""
        gone: list[Key] = []
        for key in keys:
            found = self._found(key)
            self._revisions.hold()
            if found is None or (found["metadata"].get("labels") or {}).get(SERVING) != self._given.name:
                continue
            try:
                self._api.delete(
                    key.path(self._given.namespace), uid=found["metadata"]["uid"], propagation="Foreground"
                )
            except ApiError as error:
                if error.kind not in (answers.ABSENT, answers.CONFLICT):
                    raise
            gone.append(key)
        deadline = time.monotonic() + _GONE_SECONDS + (seconds("", self._given.longest_request) or 0.0)
        while gone := [key for key in gone if self._found(key) is not None]:
            if time.monotonic() > deadline:
                raise DeploymentFailed(
                    f"{gone[0]} in {self._given.namespace} was deleted and does not go: see its finalizers"
                )
            self._revisions.hold()
            time.sleep(PAUSE / 4)

    # ---- until it serves -------------------------------------------------------------------------------------------

    def _await(self, objects: Sequence[Object], since: float) -> None:
        deadline = time.monotonic() + manifests.deadline(self._given) + waiting.CONTROLLER_SECONDS
        told = ""
        for one in objects:
            while not (verdict := self._look(one, since)).ready:
                if verdict.failed:
                    raise DeploymentFailed(verdict.failed)
                if time.monotonic() > deadline:
                    raise DeploymentFailed(f"{key_of(one)} does not serve in time: {verdict.says}")
                if verdict.says != told:
                    told = verdict.says
                    self._say(f"{key_of(one)}: {told}")
                self._revisions.hold()
                time.sleep(PAUSE)

    def _look(self, one: Object, since: float) -> Verdict:
        found, now = self._found(key_of(one)), self._api.now()
        if found is None:
            return Verdict(failed=f"{key_of(one)} is gone: somebody deleted it")
        if one["kind"] == "Deployment":
            return self._look_at_pods(one, found, now, since)
        if one["kind"] == "LLMInferenceService":
            return waiting.of_llm_inference_service(found, now, since, self._limits)
        if one["kind"] in ("InferencePool", "HTTPRoute"):
            return waiting.of_parents(found, now, since, self._limits)
        return Verdict(ready=True)

    def _look_at_pods(self, one: Object, found: Object, now: float, since: float) -> Verdict:
        mark = one["spec"]["template"]["metadata"]["labels"][SET]
        labels = f"{SERVING}={self._given.name},{SET}={mark}"
        pods = self._api.list(f"/api/v1/namespaces/{self._given.namespace}/pods", labels=labels)
        verdict = waiting.of_deployment(found, pods, now, since, self._limits)
        if not verdict.lacks_node:
            return verdict
        words = waiting.lacking(one["spec"]["template"]["spec"], self._nodes(), self._limits.node)
        return verdict._replace(failed=f"{verdict.failed}: {words}")

    def _nodes(self) -> Sequence[Any] | None:
        try:
            return self._api.list("/api/v1/nodes", limit=_NODES_SHOWN, cached=True)
        except ApiError:
            return None

    def _ask(self, service: str, port: int, tls: bool) -> str:
        if self._given.smoke is None:
            return ""
        if not service:
            return "no smoke test: KServe names no Service of it"
        path = smoke.proxy_path(self._given.namespace, service, port, tls=tls)
        says = smoke.test(self._api, path, self._given.model_name, self._given.smoke, self._revisions.hold)
        self._say(says)
        return says

    def _where(self, objects: Sequence[Object]) -> tuple[str, int, bool]:
        """Return the Service that answers for a set, its port, and True if it speaks TLS, as KServe's do."""
        if objects and objects[0]["kind"] == "LLMInferenceService":
            found = self._found(key_of(objects[0])) or {}
            workloads = (found.get("status") or {}).get("workloads") or {}
            return str((workloads.get("service") or {}).get("name", "")), self._given.port, True
        own = next((one["spec"]["ports"][0]["port"] for one in objects if one["kind"] == "Service"), self._given.port)
        return self._given.name, own, False


def _sentence(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text if text.endswith((".", "!", "?", "\n")) else f"{text}."
