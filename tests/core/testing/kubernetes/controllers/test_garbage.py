"""Events are collected an hour after they were last told."""

from __future__ import annotations

import time

import pytest

from kinetic_orchestration.testing.kubernetes.api import kinds
from kinetic_orchestration.testing.kubernetes.api.objects import stamp
from kinetic_orchestration.testing.kubernetes.api.store import Store
from kinetic_orchestration.testing.kubernetes.controllers import garbage
from kinetic_orchestration.testing.kubernetes.controllers.changes import Delete, View

pytestmark = pytest.mark.fast


def test_events_go_an_hour_after_they_were_last_told() -> None:
    store, now = Store(), time.time()
    for name, last in (("once", None), ("of long ago", stamp(now - 7200)), ("again", stamp(now + 1800))):
        store.create(kinds.EVENTS, {"metadata": {"name": name, "namespace": "n"}, "lastTimestamp": last})

    def gone(after: float) -> list[str]:
        changes = garbage.step(View(store, now + after))
        return [change.found["metadata"]["name"] for change in changes if isinstance(change, Delete)]

    assert gone(3500) == []
    assert gone(3700) == ["of long ago", "once"]
    assert gone(5500) == ["again", "of long ago", "once"]
