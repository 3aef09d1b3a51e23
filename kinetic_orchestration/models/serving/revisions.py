"""Keeps in a cluster the sets of a server that were applied, which one counts, and who has its turn now.

It is kept in ConfigMaps of the namespace: one for each set, and a head that only one client at a time may change. A
turn ends by itself soon after its client does. It does not know what a set is for.
"""

from __future__ import annotations

import getpass
import json
import socket
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from kinetic_orchestration.errors import DeploymentBusy, ServingError
from kinetic_orchestration.models.serving.manifests import PLURALS, SERVING, Key, Object, collection, digest, key_of
from kinetic_orchestration.platforms.kubernetes.api import answers
from kinetic_orchestration.platforms.kubernetes.api.answers import ApiError
from kinetic_orchestration.platforms.kubernetes.api.client import Api

MANAGER: Final = "kinetic-serving"  # in whose name fields are held
LEASE: Final = 60.0  # seconds of a turn, by the server's clock
KEPT: Final = 10  # sets
REVISION: Final = "kinetic-revision"  # annotation of what was applied, and of its record
_TRIES: Final = 20


class Head(NamedTuple):
    """Which set counts.

    Attributes:
        current: The revision that serves; 0: none.
        history: Revisions that served before it, the last one last.
        pending: Revisions that were begun since, of which nobody knows how much was applied.
        holder: Who has the turn; "": nobody.
        by: The same for people.
        until: When the turn ends, by the server's clock.
        version: The server's, of this head.
    """

    current: int = 0
    history: tuple[int, ...] = ()
    pending: tuple[int, ...] = ()
    holder: str = ""
    by: str = ""
    until: float = 0.0
    version: str = ""


class Revisions:
    """The records of one server in one namespace."""

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        self._api, self._namespace, self._name = api, namespace, name
        self._maps = collection("v1", "ConfigMap", namespace)
        self._labels = {SERVING: name, "app.kubernetes.io/managed-by": "kinetic-orchestration"}
        self.holder = uuid.uuid4().hex

    def head(self) -> Head:
        """Return the head as it is; an empty one without a version if there is none."""
        try:
            found = self._api.get(f"{self._maps}/{self._head}")
        except ApiError as error:
            if error.kind != answers.ABSENT:
                raise
            return Head()
        return self._read(found)

    def take(self) -> Head:
        """Take the turn. Raises DeploymentBusy if another client has it, or took it at the same moment."""
        head = self.head()
        if not head.version:
            with suppress(_Taken):
                self._create(self._head, {})
            head = self.head()
        now = self._api.now()
        if head.holder and head.until > now:
            raise DeploymentBusy(
                f"{answers.escaped(head.by) or 'another client'} deploys {self._name} in {self._namespace} now. Wait "
                "until "
                f"it is done; if it was killed, its turn ends in {max(1.0, head.until - now):.0f} s, and the next "
                "deploy "
                "finishes what it left"
            )
        return self.write(head._replace(holder=self.holder, by=_who(), until=now + LEASE))

    def hold(self) -> Head:
        """Return the head, with the turn prolonged if that is due. Raises DeploymentBusy if it is another's by now."""
        head = self.head()
        if head.holder != self.holder:
            raise DeploymentBusy(
                f"{answers.escaped(head.by) or 'another client'} has taken over the deployment of {self._name}, as "
                "this one "
                f"was not heard of for {LEASE:.0f} s: nothing more is changed here. Look at what serves now, and "
                "deploy again"
            )
        now = self._api.now()
        return self.write(head._replace(until=now + LEASE)) if head.until - now < LEASE / 2 else head

    def release(self) -> None:
        """Give the turn back, if it is still this client's."""
        with suppress(DeploymentBusy, ApiError):
            head = self.head()
            if head.holder == self.holder:
                self.write(head._replace(holder="", by="", until=0.0))

    def write(self, head: Head) -> Head:
        """Replace the head that was read. Raises DeploymentBusy if it has changed since."""
        state = json.dumps({name: value for name, value in head._asdict().items() if name != "version"})
        metadata = {"name": self._head, "namespace": self._namespace, "resourceVersion": head.version}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"state": state}}
        try:
            return self._read(self._api.apply(f"{self._maps}/{self._head}", body, manager=MANAGER))
        except ApiError as error:
            if error.kind != answers.CONFLICT:
                raise
            found = self.head()
            if found._replace(version=head.version) == head:  # written by a request whose answer was lost
                return found
            raise DeploymentBusy(
                f"another client began to deploy {self._name} in {self._namespace} at the same moment: deploy again "
                "when "
                "it is done"
            ) from error

    def keep(self, objects: Sequence[Object], model: str) -> int:
        """Record a set as a new revision, and return its number."""
        known = self.numbers()
        for number in range(max(known, default=0) + 1, max(known, default=0) + 1 + _TRIES):
            data = {"set": json.dumps(list(objects), ensure_ascii=False), "digest": digest(objects), "model": model}
            with suppress(_Taken):
                self._create(f"{self._head}-{number}", data, {REVISION: str(number)})
                return number
        raise ServingError(f"no revision of {self._name} could be recorded in {self._namespace}: all numbers are taken")

    def numbers(self) -> list[int]:
        """Return the numbers of all sets that are recorded, in their order."""
        found = self._api.list(self._maps, labels=f"{SERVING}={self._name}")
        marks = ((one["metadata"].get("annotations") or {}).get(REVISION, "") for one in found)
        return sorted(int(mark) for mark in marks if mark.isdecimal() and len(mark) < 10)

    def objects(self, number: int) -> tuple[Object, ...]:
        """Return a recorded set. Raises ServingError if there is none, or it is not what this package writes."""
        try:
            found = self._api.get(f"{self._maps}/{self._head}-{number}")
        except ApiError as error:
            if error.kind != answers.ABSENT:
                raise
            raise ServingError(f"revision {number} of {self._name} is recorded no more in {self._namespace}") from error
        data = found.get("data") or {}
        try:
            objects = tuple(json.loads(data["set"]))
            keys = [key_of(one) for one in objects]
            sound = data["digest"] == digest(objects) and all(self._is_ours(one) for one in objects) and keys
        except (KeyError, TypeError, ValueError, RecursionError):
            sound = False
        if not sound:
            raise ServingError(
                f"the record {self._head}-{number} in {self._namespace} is not what was written there: somebody "
                "changed it. "
                "It is not applied. Deploy again, which records a new one"
            )
        return objects

    def keys(self, numbers: Iterable[int]) -> set[Key]:
        """Return the keys of all objects of sets; of one that is recorded no more, none."""
        found: set[Key] = set()
        for number in numbers:
            with suppress(ServingError):
                found |= {key_of(one) for one in self.objects(number)}
        return found

    def prune(self, kept: Iterable[int]) -> None:
        """Delete the oldest records beyond `KEPT`, but for these."""
        for number in [one for one in self.numbers()[:-KEPT] if one not in set(kept)]:
            with suppress(ApiError):
                self._api.delete(f"{self._maps}/{self._head}-{number}")

    @property
    def _head(self) -> str:
        return f"{self._name}-serving"

    def _is_ours(self, found: Mapping[str, Any]) -> bool:
        metadata = found["metadata"]
        is_named = metadata["name"] == self._name or metadata["name"].startswith(f"{self._name}-")
        return found["kind"] in PLURALS and metadata["namespace"] == self._namespace and is_named

    def _create(self, name: str, data: Mapping[str, str], annotations: Mapping[str, str] | None = None) -> None:
        metadata = {"name": name, "labels": self._labels, **({"annotations": dict(annotations)} if annotations else {})}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **({"data": dict(data)} if data else {})}
        try:
            self._api.create(self._maps, body)
        except ApiError as error:
            if error.kind == answers.EXISTS:
                raise _Taken from error
            raise

    def _read(self, found: Mapping[str, Any]) -> Head:
        version = found["metadata"]["resourceVersion"]
        if (text := (found.get("data") or {}).get("state")) is None:
            return Head(version=version)
        try:
            told = json.loads(text)
            history, pending = (tuple(map(int, told[name])) for name in ("history", "pending"))
            holder, by = (str(told[name])[:200] for name in ("holder", "by"))
            return Head(int(told["current"]), history, pending, holder, by, float(told["until"]), version)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ServingError(
                f"the ConfigMap {self._head} in {self._namespace} is not what this package writes there: somebody "
                "changed "
                "it. Restore it, or delete it, after which the next deploy knows of no set before it"
            ) from error


class _Taken(Exception):
    """There is an object of this name."""


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        user = "somebody"
    return f"{user} on {socket.gethostname()}"[:100]
