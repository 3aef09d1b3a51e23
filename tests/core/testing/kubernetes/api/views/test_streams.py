"""A watch tells each change since a version, or that too much has been forgotten."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kinetic_orchestration.testing.kubernetes.api import kinds, store
from kinetic_orchestration.testing.kubernetes.api.answers import Object
from kinetic_orchestration.testing.kubernetes.api.objects import name_of
from kinetic_orchestration.testing.kubernetes.api.store import Store
from kinetic_orchestration.testing.kubernetes.api.views import streams

pytestmark = pytest.mark.fast


class Watched:
    """ConfigMaps of which those are watched whose names begin with `a`."""

    def __init__(self) -> None:
        self.store = Store()

    def add(self, name: str) -> Object:
        return self.store.create(kinds.CONFIG_MAPS, {"metadata": {"name": name, "namespace": "n"}})

    def watch(self, **query: str) -> Iterator[bytes]:
        def select(found: Any) -> list[Object]:
            return [one for one in found if name_of(one).startswith("a")]

        return streams.changes(self.store, kinds.CONFIG_MAPS, "n", select, query, lambda one: one)


def told(lines: Iterator[bytes], number: int) -> list[tuple[str, str]]:
    """Return the next events: what has happened, and to what."""
    events = [json.loads(next(lines)) for _ in range(number)]
    return [(one["type"], one["object"]["metadata"].get("name", "")) for one in events]


def test_a_watch_tells_what_has_changed_since_a_version_and_what_changes_then() -> None:
    scene = Watched()
    old, changed, gone = scene.add("a-old"), scene.add("a-changed"), scene.add("a-gone")
    since = str(scene.store.version)
    scene.store.replace(kinds.CONFIG_MAPS, {**changed, "data": {"x": "1"}})
    scene.store.remove(kinds.CONFIG_MAPS, gone)
    scene.add("b")
    lines = scene.watch(resourceVersion=since)
    assert told(lines, 2) == [("DELETED", "a-gone"), ("ADDED", "a-changed")]
    assert next(lines) == b""
    scene.store.replace(kinds.CONFIG_MAPS, {**old, "data": {"x": "1"}})
    assert told(lines, 1) == [("MODIFIED", "a-old")]
    scene.store.remove(kinds.CONFIG_MAPS, old)
    assert told(lines, 1) == [("DELETED", "a-old")]


def test_a_watch_may_begin_with_all_that_there_is_and_says_where_that_ends() -> None:
    scene = Watched()
    scene.add("a-one")
    lines = scene.watch(sendInitialEvents="true", timeoutSeconds="5")
    assert told(lines, 1) == [("ADDED", "a-one")]
    mark = json.loads(next(lines))
    assert mark["type"] == "BOOKMARK"
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert list(scene.watch(timeoutSeconds="0.001"))[1:] in ([], [b""])


def test_a_watch_from_before_what_is_remembered_has_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_GONE", 1)
    scene = Watched()
    for name in ("a-one", "a-two", "a-three"):
        scene.store.remove(kinds.CONFIG_MAPS, scene.add(name))
    [line] = scene.watch(resourceVersion="1")
    event = json.loads(line)
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    assert told(scene.watch(resourceVersion="4"), 1) == [("DELETED", "a-three")]
