"""Which cluster a placement means, on machines whose kubeconfigs differ. Nothing is asked of any cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.values import UNKNOWN, Freed
from kinetic_orchestration.platforms.kubernetes.api.kubeconfig_clusters import KubeconfigClusters
from kinetic_orchestration.platforms.kubernetes.backend import KubernetesBackend
from tests.core.platforms.kubernetes.attempts import attempt_of, plan_of

pytestmark = pytest.mark.fast


def configure(path: Path, monkeypatch: pytest.MonkeyPatch, **servers: str) -> KubernetesBackend:
    """The backend of a machine whose kubeconfig has a context for each server; nobody listens there."""
    named = [{"name": name, "cluster": {"server": server}} for name, server in servers.items()]
    contexts = [{"name": name, "context": {"cluster": name, "namespace": "team"}} for name in servers]
    path.write_text(json.dumps({"current-context": next(iter(servers)), "clusters": named, "contexts": contexts}))
    monkeypatch.setenv("KUBECONFIG", str(path))
    return KubernetesBackend(settings.load(), KubeconfigClusters())


@pytest.fixture
def placement(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Where the submitter's machine placed an attempt."""
    monkeypatch.setenv("KINETIC_STORE", "gs://bucket/kinetic")
    monkeypatch.setenv("KINETIC_DEPLOYMENT", "prod")
    backend = configure(tmp_path / "theirs", monkeypatch, default="https://127.0.0.1:1")
    return backend.place(plan_of("v5e-4", zone="default/team"), "job-0123456789ab", 1)


def test_a_context_of_the_same_name_for_another_cluster_is_not_taken_for_it(
    placement: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every k3s is called default. Nothing follows from what another one lacks."""
    backend = configure(tmp_path / "ours", monkeypatch, default="https://127.0.0.1:2")
    [seen] = backend.observe([placement])
    assert (seen.state, seen.cause) == (UNKNOWN, "") and "is another one here" in seen.message
    assert backend.release(placement) is Freed.REFUSED
    asked = attempt_of(plan_of("v5e-4", zone="default/team"))
    asked = replace(asked, intent=asked.intent._replace(placement=placement))
    assert "waiting for a process that reaches the cluster default/team" in backend.submit(asked)


def test_a_machine_without_that_context_waits_for_one_that_has_it(
    placement: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = configure(tmp_path / "ours", monkeypatch, other="https://127.0.0.1:1")
    [seen] = backend.observe([placement])
    assert (seen.state, seen.cause) == (UNKNOWN, "")
    assert backend.release(placement) is Freed.REFUSED


def test_an_untrusted_record_leads_to_no_place_but_our_own(
    placement: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = configure(tmp_path / "ours", monkeypatch, default="https://127.0.0.1:1", prod="https://127.0.0.1:3")
    assert backend.names_place(placement)
    assert not backend.names_place({**placement, "zone": "prod/team"})
    assert not backend.names_place({**placement, "zone": "default/kube-system"})
    assert not backend.names_place({**placement, "name": ""})


def test_what_is_left_in_a_cluster_that_is_not_known_is_told(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = configure(tmp_path / "ours", monkeypatch, default="https://127.0.0.1:1")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    [unread] = backend.leftovers()
    assert unread["unread"]
