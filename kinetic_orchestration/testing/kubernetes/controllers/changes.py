"""The view that a controller has of a cluster, and the changes that it wants: values. Nothing is done here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kinetic_orchestration.testing.kubernetes.api.answers import Object
from kinetic_orchestration.testing.kubernetes.api.kinds import Kind
from kinetic_orchestration.testing.kubernetes.api.objects import owner_of
from kinetic_orchestration.testing.kubernetes.api.store import Store
from kinetic_orchestration.testing.kubernetes.pods.nodes import Node


class Create(NamedTuple):
    """Make an object. If that is refused, an event about `about` says so, with this reason and these first words."""

    kind: Kind
    found: Object
    about: Object
    done: tuple[str, str] = ("", "")  # reason and words of an event about it, once it is made
    refused: tuple[str, str] = ("", "")
    component: str = ""


class Replace(NamedTuple):
    """Store another version of an object."""

    kind: Kind
    found: Object


class Delete(NamedTuple):
    """Delete an object, as a client asks for it."""

    kind: Kind
    found: Object
    propagation: str = "Background"
    grace: float | None = None


class LetGo(NamedTuple):
    """Store an object that holds itself less; it goes if nothing holds it any more."""

    kind: Kind
    found: Object


class Tell(NamedTuple):
    """Say something of an object by an event."""

    about: Object
    kind: str  # Normal or Warning
    reason: str
    message: str
    component: str


class Join(NamedTuple):
    """Have another node."""

    node: Node


class Leave(NamedTuple):
    """Take a node away, with all that runs there."""

    name: str


Controlled = dict[str, list[Object]]
Change = Create | Replace | Delete | LetGo | Tell | Join | Leave


class View:
    """The objects of one moment. Its owner holds the store's lock.

    Attributes:
        store: All objects.
        now: The time.
    """

    def __init__(self, store: Store, now: float) -> None:
        self.store = store
        self.now = now

    def all(self, kind: Kind, namespace: str = "") -> Sequence[Object]:
        return self.store.list(kind, namespace)

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        return self.store.get(kind, namespace, name)

    def controlled(self, kind: Kind) -> Controlled:
        """Return all objects of a kind that have a controller, by its UID."""
        found: Controlled = {}
        for one in self.all(kind):
            owner = owner_of(one)
            if owner is not None:
                found.setdefault(owner["uid"], []).append(one)
        return found
