"""`init --kubernetes` and `deinit --kubernetes`, on the emulated API server and on a real control plane."""

from __future__ import annotations

import json
import re
import secrets
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kinetic_orchestration.cli import codes, main
from kinetic_orchestration.platforms.kubernetes import rights, setup
from kinetic_orchestration.platforms.kubernetes.api import client
from tests.support.kubernetes.control_plane import ControlPlane
from tests.support.kubernetes.emulated import EmulatedPlane
from tests.support.kubernetes.fixtures import Lingering, on_both, only_real
from tests.support.waits import wait_until

both = on_both(pytest.mark.slow, pytest.mark.turn(3))

RBAC = "/apis/rbac.authorization.k8s.io/v1"
GOOGLE = "trainer@my-project.iam.gserviceaccount.com"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    plane: ControlPlane | EmulatedPlane,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Run:
    """Runs a command as an administrator; its code and what it printed on both streams."""
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    monkeypatch.setenv("KINETIC_BACKEND", "kubernetes")
    monkeypatch.setenv("KINETIC_STORE", str(tmp_path / "store"))

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([words[0], "--kubernetes", *words[1:]])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def name(plane: ControlPlane | EmulatedPlane) -> Iterator[str]:
    """A name for a namespace that is not there, nor afterwards."""
    found = f"setup-{secrets.token_hex(4)}"
    yield found
    path = f"/api/v1/namespaces/{found}"
    if plane.api.found(path):
        plane.api.delete(path)
    wait_until(lambda: plane.api.found(path) is None, f"{found} is gone")


def exchanges(run: Run, *words: str) -> tuple[int, str, list[str]]:
    """The code, the output and the requests of a command."""
    heard: list[client.Exchange] = []
    with client.listening(heard.append):
        code, out, err = run(*words)
    return code, out + err, [f"{one.method} {one.target.partition('?')[0]}" for one in heard]


def may(plane: ControlPlane | EmulatedPlane, kubeconfig: Path, namespace: str, right: rights.Right) -> bool:
    """True if the user of a kubeconfig has a right, as the server says."""
    from tests.support.kubernetes.api import Api

    resource, _, below = right.resource.partition("/")
    asked = {
        "namespace": namespace,
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": below,
    }
    body = {
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": asked},
    }  # fmt: skip
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    return bool(Api(kubeconfig).create(path, body)["status"]["allowed"])


@both
def test_a_namespace_is_made_found_again_and_taken_back(
    plane: ControlPlane | EmulatedPlane, run: Run, name: str
) -> None:
    where = ("--namespace", name)
    code, out, first = exchanges(run, "init", *where, "--queue", "--google-account", GOOGLE, "--yes")
    assert code == codes.OK, out
    assert [line.split()[0] for line in first].count("PATCH") == 0
    assert len(first) <= 12, first
    assert f"KINETIC_NAMESPACE={name}" in out
    assert f'service_account="{setup.HOSTS}"' in out

    hosts = plane.api.get(f"/api/v1/namespaces/{name}/serviceaccounts/{setup.HOSTS}")
    assert hosts["automountServiceAccountToken"] is False
    assert hosts["metadata"]["annotations"]["iam.gke.io/gcp-service-account"] == GOOGLE
    submitter = plane.account_kubeconfig(name, rights.ROLE)
    wanted, others = rights.of(secrets=False, queue=True), rights.of(secrets=True, queue=True)
    wait_until(lambda: all(may(plane, submitter, name, right) for right in wanted), "the submitter may")
    assert {right for right in others if may(plane, submitter, name, right)} == set(wanted)
    assert not may(plane, submitter, "default", wanted[0])
    assert not may(plane, plane.account_kubeconfig(name, setup.HOSTS), name, wanted[0])

    code, out, second = exchanges(run, "init", *where, "--queue", "--google-account", GOOGLE)  # and asks nothing
    assert (code, {line.split()[0] for line in second}) == (codes.OK, {"GET"}), out
    assert "nothing was left to do" in out

    code, out, read = exchanges(run, "deinit", *where, "--dry-run")
    assert (code, {line.split()[0] for line in read}) == (codes.OK, {"GET"}), out
    code, out, _ = exchanges(run, "deinit", *where, "--yes")
    assert code == codes.OK
    assert "all of it is removed" in out
    wait_until(lambda: plane.api.found(f"/api/v1/namespaces/{name}") is None, "it is gone")
    code, out, _ = exchanges(run, "deinit", *where)
    assert (code, "nothing to remove" in out) == (codes.OK, True)


@both
def test_what_others_have_there_is_kept(plane: ControlPlane | EmulatedPlane, run: Run, namespace: str) -> None:
    """Somebody granted a part of it by hand, to somebody else."""
    part = rights.role(rights.of(secrets=True, queue=False)[-2:], namespace, "user:ada@example.com")
    for each, plural in zip(part, ("roles", "rolebindings"), strict=True):
        plane.api.create(f"{RBAC}/namespaces/{namespace}/{plural}", each)
    code, out, err = run("init", "--namespace", namespace, "--submitter", "group:research", "--json", "--yes")
    assert code == codes.OK, err
    states = {each["object"]: each["state"] for each in json.loads(out)["objects"]}
    assert states == {
        f"Namespace {namespace}": "there", f"ServiceAccount {setup.HOSTS}": "made",
        f"Role {rights.ROLE}": "changed", f"RoleBinding {rights.ROLE}": "changed",
    }  # fmt: skip
    binding = plane.api.get(f"{RBAC}/namespaces/{namespace}/rolebindings/{rights.ROLE}")
    assert [each["name"] for each in binding["subjects"]] == ["ada@example.com", "research"]
    rules = plane.api.get(f"{RBAC}/namespaces/{namespace}/roles/{rights.ROLE}")["rules"]
    assert all(rights.is_granted(right, rules) for right in rights.of(secrets=True, queue=False))

    _, _, second = exchanges(run, "init", "--namespace", namespace, "--submitter", "group:research")
    assert {line.split()[0] for line in second} == {"GET"}
    code, out, err = run("deinit", "--namespace", namespace, "--json", "--yes")
    assert code == codes.OK, err
    rows = {each["object"]: each["stays"] for each in json.loads(out)["objects"]}
    assert rows == {
        f"ServiceAccount {setup.HOSTS}": "", f"Namespace {namespace}": "it was there before, and others may use it"
    }  # fmt: skip
    assert plane.api.found(f"{RBAC}/namespaces/{namespace}/roles/{rights.ROLE}")


@both
def test_a_namespace_of_ours_stays_while_others_have_something_in_it(
    plane: ControlPlane | EmulatedPlane, run: Run, name: str
) -> None:
    assert run("init", "--namespace", name, "--yes")[0] == codes.OK
    maps = f"/api/v1/namespaces/{name}/configmaps"
    plane.api.create(maps, {"metadata": {"name": "theirs"}})
    code, out, _ = run("deinit", "--namespace", name, "--yes")
    assert code == codes.OK
    assert "stays: it has 1 configmaps of others (theirs)" in " ".join(out.split())
    assert plane.api.found(f"{maps}/theirs")
    assert not plane.api.found(f"{RBAC}/namespaces/{name}/roles/{rights.ROLE}")
    plane.api.delete(f"{maps}/theirs")
    assert run("deinit", "--namespace", name, "--yes")[0] == codes.OK
    wait_until(lambda: plane.api.found(f"/api/v1/namespaces/{name}") is None, "it is gone")


@both
def test_the_printed_yaml_is_what_is_made(plane: ControlPlane | EmulatedPlane, run: Run, name: str) -> None:
    code, out, sent = exchanges(run, "init", "--namespace", name, "--submitter", "serviceaccount:a", "--dry-run")
    assert (code, sent) == (codes.OK, [])
    assert [line for line in out.splitlines() if line.startswith("# kubectl --context=")]
    for each in yaml.safe_load_all(out):
        inside = f"/namespaces/{name}" if each["kind"] != "Namespace" else ""
        top = "/api/v1" if each["apiVersion"] == "v1" else f"/apis/{each['apiVersion']}"
        plane.api.create(f"{top}{inside}/{each['kind'].lower()}s", each)
    _, out, second = exchanges(run, "init", "--namespace", name, "--submitter", "serviceaccount:a")
    assert {line.split()[0] for line in second} == {"GET"}, out


@only_real
@pytest.mark.slow
@pytest.mark.turn(3)
def test_kubectl_makes_what_is_printed_by_the_lines_above_it(
    plane: ControlPlane, built: Path, run: Run, name: str
) -> None:
    code, printed, _ = run(
        "init", "--namespace", name, "--submitter", "user:ada", "--submitter", "group:lab", "--dry-run"
    )
    assert code == codes.OK
    apply, *asked = [
        shlex.split(line.removeprefix("# ")) for line in printed.splitlines() if line.startswith("# kubectl")
    ]
    made = plane.kubectl(*apply[1:], given=printed)
    assert made.count("serverside-applied") == len(list(yaml.safe_load_all(printed)))

    def may_all() -> bool:
        called = ([str(built / "kubectl"), f"--kubeconfig={plane.kubeconfig}", *words[1:]] for words in asked)
        return all(not subprocess.run(words, stdout=subprocess.DEVNULL, timeout=60).returncode for words in called)

    assert len(asked) == 2
    wait_until(may_all, "both may")
    code, out, second = exchanges(
        run, "init", "--namespace", name, "--submitter", "user:ada", "--submitter", "group:lab"
    )
    assert (code, {line.split()[0] for line in second}) == (codes.OK, {"GET"}), out


@both
def test_who_may_not_is_told_before_anything_is_made(
    plane: ControlPlane | EmulatedPlane, run: Run, name: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(plane.user_kubeconfig("ada", namespace=namespace)))
    code, _, err = run("init", "--namespace", name, "--yes")
    assert code == codes.ENVIRONMENT
    assert "is forbidden" in err
    _grant(plane, namespace, "ada", ["get"])
    wait_until(lambda: "may not create" in run("init", "--namespace", namespace, "--yes")[2], "ada may look")
    code, _, err = run("init", "--namespace", namespace, "--yes")
    assert code == codes.ENVIRONMENT
    assert "may not create serviceaccounts, create roles, create rolebindings" in err
    assert "--dry-run" in err
    assert not plane.api.found(f"/api/v1/namespaces/{namespace}/serviceaccounts/{setup.HOSTS}")

    _grant(plane, namespace, "ada", ["create"])
    wait_until(
        lambda: "rights that you do not have yourself" in run("init", "--namespace", namespace, "--yes")[2], "told"
    )
    assert not plane.api.found(f"{RBAC}/namespaces/{namespace}/roles/{rights.ROLE}")
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    assert run("init", "--namespace", namespace, "--yes")[0] == codes.OK  # which mends what was left half made


def _grant(plane: ControlPlane | EmulatedPlane, namespace: str, user: str, verbs: list[str]) -> None:
    name = f"{user}-{'-'.join(verbs)}"
    rules = [
        {"apiGroups": [""], "resources": ["namespaces", "serviceaccounts"], "verbs": verbs},
        {"apiGroups": [RBAC.split("/")[2]], "resources": ["roles", "rolebindings"], "verbs": verbs},
    ]
    metadata = {"name": name, "namespace": namespace}
    plane.api.create(f"{RBAC}/namespaces/{namespace}/roles", {"metadata": metadata, "rules": rules})
    bound = {
        "metadata": metadata, "subjects": [{"kind": "User", "apiGroup": RBAC.split("/")[2], "name": user}],
        "roleRef": {"apiGroup": RBAC.split("/")[2], "kind": "Role", "name": name},
    }  # fmt: skip
    plane.api.create(f"{RBAC}/namespaces/{namespace}/rolebindings", bound)


@both
def test_what_stands_in_the_way_is_named(
    plane: ControlPlane | EmulatedPlane, run: Run, namespace: str, lingering: Lingering
) -> None:
    lingering.delete()
    code, _, err = run("init", "--namespace", lingering.name, "--yes")
    assert (code, "is being deleted" in err) == (codes.ENVIRONMENT, True), err

    other = {"apiGroup": RBAC.split("/")[2], "kind": "ClusterRole", "name": "view"}
    bound: dict[str, Any] = {"metadata": {"name": rights.ROLE}, "subjects": [], "roleRef": other}
    plane.api.create(f"{RBAC}/namespaces/{namespace}/rolebindings", bound)
    code, _, err = run("init", "--namespace", namespace, "--yes")
    assert (code, "to the ClusterRole view" in err) == (codes.ENVIRONMENT, True), err

    for words, told in (
        (("--namespace", "No_Name"), "a namespace has small letters"),
        (("--submitter", "ada"), "user:NAME, group:NAME"),
        (("--google-account", "me@example.com"), "iam.gserviceaccount.com"),
    ):
        code, _, err = run("init", "--namespace", namespace, *words, "--yes")
        assert (code, bool(re.search(told, err))) == (codes.USAGE, True), err
    code, _, err = run("init", "--namespace", f"{namespace}-new")
    assert (code, "add --yes" in err) == (codes.USAGE, True), err
