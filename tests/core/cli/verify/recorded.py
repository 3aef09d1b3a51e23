"""The emulator's answers as `kinor verify` ships them, recorded anew: a whole verification, and a tour of the states that
a quick one does not see: capacity that is waited for, that never comes, that is taken away.

    KINETIC_TEST_BASELINE=write python -m pytest -m slow tests/core/cli/verify/test_{baseline,on_compute}.py

writes them; without that, the test holds what is shipped against what is answered now.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from google.cloud import tpu_v2
from google.protobuf import json_format

from kinetic_orchestration.cli.verify import comparison, runner
from kinetic_orchestration.cli.verify.clouds.cloud import MISSING
from kinetic_orchestration.cli.verify.comparison import Facts
from kinetic_orchestration.cli.verify.recording import Recorder
from kinetic_orchestration.cli.verify.redaction import Redactor
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.platforms.google.rest import call_listeners
from kinetic_orchestration.platforms.google.tpu.client import Tpus, client
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.model.lifecycle import Timing

ZONE = "us-west4-a"
SLOWLY = Timing(accept=0.4, provision=0.6, suspend=0.4, delete=0.4)  # so that no state is missed
OURS = "kinetic-tour-"
WITHIN = 20.0


@contextmanager
def emulated(**options: Any) -> Iterator[Emulator]:
    with Emulator(**{"zones": (ZONE,), "python": sys.executable, "timing": SLOWLY, **options}) as cloud:
        yield cloud
        cloud.clear_faults()
        cloud.wait_until_empty(60)
        cloud.ledger.assert_nothing_left()


def verified(
    cloud: Emulator, folder: Path, *arguments: str, within: float = 400.0, **environ: str
) -> tuple[Any, dict[str, Any], str]:
    """One `kinor verify`: its process, its document and its page."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "kinetic_orchestration.cli", "verify", "--yes", "--output", str(folder), *arguments],
        env={**os.environ, **cloud.environ(), **environ}, capture_output=True, text=True, timeout=within, check=False,
    )  # fmt: skip
    (document,), (page,) = list(folder.glob("verify-*.json")), list(folder.glob("verify-*.md"))
    return done, json.loads(document.read_text()), page.read_text()


def tour(environ: dict[str, str]) -> Facts:
    """Record what the API shows of slices that wait, fail and are taken away, on demand and spot."""
    with Emulator(zones=(ZONE,), timing=SLOWLY._replace(provision=0.8, suspend=0.8), hosts=False) as cloud:
        here = settings.load({**environ, **cloud.environ()}, deployment="verify-tour")
        recorder = Recorder(Redactor(runner.placeholders(here)), OURS)
        with call_listeners.listening(recorder.record):
            for spot in (False, True):
                _Traveller(cloud, here, recorder, spot).travel()
        return comparison.facts(recorder.entries, recorder.seen, recorder.echoes)


class _Traveller:
    def __init__(self, cloud: Emulator, here: Settings, recorder: Recorder, spot: bool) -> None:
        self.cloud, self.here, self.recorder, self.spot = cloud, here, recorder, spot
        self.tpus = Tpus(here)
        self.parent = f"projects/{here.project}/locations/{ZONE}"
        self.queued = self.node = ""

    def travel(self) -> None:
        self.cloud.stockout(ZONE, "wait")
        self.ask("waits")
        self.see("WAITING_FOR_RESOURCES")
        self.cloud.restock(ZONE)
        self.see("PROVISIONING", "ACTIVE")
        self.cloud.preempt(self.node.rpartition("/")[2])
        self.see("SUSPENDING", "SUSPENDED")
        self.remove()
        self.ask("accepted", validAfterDuration="2s")
        self.see("ACCEPTED", "PROVISIONING", "ACTIVE")
        self.tpus.delete_node(self.node)
        self.see("SUSPENDING", "SUSPENDED")
        self.remove()
        self.cloud.stockout(ZONE, "fail", times=1)
        self.ask("fails")
        self.see("FAILED")
        self.remove()
        self.cloud.restock(ZONE)

    def ask(self, name: str, **policy: str) -> None:
        ident = f"{OURS}{'spot' if self.spot else 'demand'}-{name}"
        self.queued, self.node = f"{self.parent}/queuedResources/{ident}", f"{self.parent}/nodes/{ident}"
        labels = {f"kinetic-{label}": "1" for label in ("deployment", "job", "attempt", "expires", "spec")}
        node = {
            "acceleratorType": "v5litepod-1", "runtimeVersion": "v2-alpha-tpuv5-lite", "labels": labels,
            "networkConfig": {"enableExternalIps": True}, "metadata": {"startup-script": "true", "kinetic": "{}"},
            "serviceAccount": {"scope": ["https://www.googleapis.com/auth/cloud-platform"]},
        }  # fmt: skip
        queued: dict[str, Any] = {
            "tpu": {"nodeSpec": [{"parent": self.parent, "nodeId": ident, "node": node}]},
            "queueingPolicy": policy or {"validUntilDuration": "600s"},
        }
        if self.spot:
            queued["spot"] = {}
        message = tpu_v2.CreateQueuedResourceRequest()
        request = {"parent": self.parent, "queuedResourceId": ident, "queuedResource": queued}
        json_format.ParseDict(request, type(message).pb(message))
        client(self.here).create_queued_resource(request=message, timeout=20)

    def see(self, *states: str) -> None:
        """Look again and again until each was shown, in this order, and once at a listing."""
        for state in states:
            deadline = time.monotonic() + WITHIN
            while not self._looked(state):
                assert time.monotonic() < deadline, f"{self.queued} never showed {state}"
        self.tpus.queued_resources(self.here.project, "-")
        self.tpus.nodes(self.here.project, "-")

    def remove(self) -> None:
        self.tpus.delete(self.queued)
        self.see(MISSING)

    def _looked(self, state: str) -> bool:
        before = len(self.recorder.seen)
        self.tpus.queued_resource(self.queued)
        self.tpus.node(self.node)
        time.sleep(0.02)
        return any(seen.word == state for seen in self.recorder.seen[before:] if seen.kind == "queued resource")


def differences(one: Facts, other: Facts) -> list[str]:
    """Both ways: what either has and the other has not."""
    return [
        f"{name}: {each.call}: {each.where}: {each.emulator} | {each.real}"
        for name, real, known in (("now", one, other), ("shipped", other, one))
        for each in comparison.differences(real, known)
    ]


def merged(one: Facts, other: Facts) -> Facts:
    """The first recording, and what else may be answered by the second."""
    return Facts(
        lists_of(one.calls, other.calls),
        {
            key: both_of(one.fields.get(key), other.fields.get(key))
            for key in sorted({*one.fields, *other.fields})
        },
        tables_of(one.values, other.values),
        tables_of(one.echoes, other.echoes),
        {
            kind: sorted({*map(tuple, one.orders.get(kind, ())), *map(tuple, other.orders.get(kind, ()))})
            for kind in sorted({*one.orders, *other.orders})
        },
        {**one.moments, **other.moments},
    )  # fmt: skip


def lists_of(one: Mapping[str, Sequence[str]], other: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    return {key: sorted({*one.get(key, ()), *other.get(key, ())}) for key in sorted({*one, *other})}


def tables_of(
    one: Mapping[str, Mapping[str, Sequence[str]]], other: Mapping[str, Mapping[str, Sequence[str]]]
) -> dict[str, dict[str, list[str]]]:
    return {key: lists_of(one.get(key, {}), other.get(key, {})) for key in sorted({*one, *other})}


def both_of(one: Mapping[str, str] | None, other: Mapping[str, str] | None) -> dict[str, str]:
    if one is None or other is None:
        return dict(one or other or {})
    return {path: one.get(path, comparison.SOMETIMES) for path in sorted({*one, *other})}
