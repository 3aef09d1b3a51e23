"""All objects of an emulated cluster, and the order in which they changed.

An object that is stored is never modified: a change stores another one. It knows what every object has, and no kind's
own rules.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Sequence

from kinetic_orchestration.testing.kubernetes.api.answers import Object
from kinetic_orchestration.testing.kubernetes.api.kinds import Kind
from kinetic_orchestration.testing.kubernetes.api.objects import name_of, namespace_of, stamp, uid_of, with_meta

_GONE = 1000  # objects that were removed, and that who watches may not have heard of
_Place = tuple[str, str]  # a namespace, and a name in it


class Store:
    """Every method holds its lock, which whoever reads several objects of one moment holds as well."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.version = 0
        self._objects: dict[Kind, dict[_Place, Object]] = {}
        self.forgotten = 0  # what was removed at this version or before is not known any more
        self._gone: deque[tuple[int, Kind, Object]] = deque()

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        with self.changed:
            return self._objects.get(kind, {}).get((namespace, name))

    def list(self, kind: Kind, namespace: str = "") -> Sequence[Object]:
        """Return all objects of a kind, of one namespace if it is named, by their names."""
        with self.changed:
            found = self._objects.get(kind, {})
            places = sorted(place for place in found if not namespace or place[0] == namespace)
            return [found[place] for place in places]

    def has(self, uid: str) -> bool:
        """Return True if there is an object with that UID."""
        with self.changed:
            return any(uid_of(one) == uid for found in self._objects.values() for one in found.values())

    def dependents(self, uid: str) -> Sequence[tuple[Kind, Object]]:
        """Return all objects that another one owns."""
        with self.changed:
            return [
                (kind, one)
                for kind, found in self._objects.items()
                for one in found.values()
                if any(owner["uid"] == uid for owner in one["metadata"].get("ownerReferences") or ())
            ]

    def everything(self) -> Sequence[tuple[Kind, Object]]:
        with self.changed:
            return [(kind, one) for kind, found in self._objects.items() for one in found.values()]

    def create(self, kind: Kind, found: Object) -> Object:
        """Store an object whose place is free, and return it as it is stored."""
        with self.changed:
            return self._put(kind, fresh(kind, found))

    def replace(self, kind: Kind, found: Object) -> Object:
        """Store another version of an object, unless nothing has changed. Nothing is stored of what is gone."""
        with self.changed:
            before = self.get(kind, namespace_of(found), name_of(found))
            if before is None or before == found or uid_of(before) != uid_of(found):
                return found
            if "generation" in found["metadata"] and before.get("spec") != found.get("spec"):
                found = with_meta(found, generation=before["metadata"]["generation"] + 1)
            return self._put(kind, found)

    def remove(self, kind: Kind, found: Object) -> None:
        with self.changed:
            if self._objects.get(kind, {}).pop((namespace_of(found), name_of(found)), None) is not None:
                self.version += 1
                self._gone.append((self.version, kind, found))
                if len(self._gone) > _GONE:
                    self.forgotten = self._gone.popleft()[0]
                self.changed.notify_all()

    def gone(self, kind: Kind, namespace: str, since: int) -> Sequence[Object]:
        """Return the objects of a kind, of one namespace if it is named, that were removed after a version."""
        with self.changed:
            late = [found for version, each, found in self._gone if version > since and each is kind]
            return [found for found in late if not namespace or namespace_of(found) == namespace]

    def _put(self, kind: Kind, found: Object) -> Object:
        self.version += 1
        found = with_meta(found, resourceVersion=str(self.version))
        self._objects.setdefault(kind, {})[namespace_of(found), name_of(found)] = found
        self.changed.notify_all()
        return found


_COUNTED = (
    "Pod",
    "Job",
    "JobSet",
    "LocalQueue",
    "ClusterQueue",
    "Workload",
    "ResourceFlavor",
    "WorkloadPriorityClass",
    "AdmissionCheck",
    "ProvisioningRequestConfig",
    "ProvisioningRequest",
)


def fresh(kind: Kind, found: Object) -> Object:
    """Return an object as it begins: of its kind, with a UID and the time."""
    counted = {"generation": 1} if kind.name in _COUNTED else {}
    metadata = {**found["metadata"], "uid": str(uuid.uuid4()), "creationTimestamp": stamp(), **counted}
    return {**found, "apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata}
