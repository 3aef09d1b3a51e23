"""Kubeconfigs as kubectl reads them: files, merged files, programs that give credentials, the files of a pod."""

from __future__ import annotations

import base64
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.errors import CredentialsError
from kinetic_orchestration.platforms.kubernetes.api import exec_plugin, kubeconfig
from kinetic_orchestration.platforms.shared.cluster_access import Access, Pair

PEM = "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n"
DATA = base64.b64encode(PEM.encode()).decode()


def config(
    user: Any, *, name: str = "one", cluster: dict[str, Any] | None = None, context: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A kubeconfig with one context."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, **(context or {})}}],
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}.example:6443", **(cluster or {})}}],
        "users": [{"name": name, "user": user}],
    }


@pytest.fixture
def load(tmp_path: Path) -> Any:
    """Writes a kubeconfig and reads it."""

    def load(user: Any = None, environ: dict[str, str] | None = None, **parts: Any) -> Access:
        file = tmp_path / "config"
        file.write_text(json.dumps(config(user or {}, **parts)))
        return kubeconfig.load({"PATH": "/usr/bin:/bin", **(environ or {})}, path=str(file))

    return load


# ---- which file ------------------------------------------------------------------------------------------------


def test_a_yaml_file_as_kubectl_writes_it(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text(
        f"""
apiVersion: v1
kind: Config
preferences: {{}}
current-context: yes
contexts:
- name: yes
  context: {{cluster: 1e3, user: 2024-01-01, namespace: null}}
- name: other
  context:
    cluster: 1e3
    user:
    namespace: training
clusters:
- cluster:
    certificate-authority-data: {DATA}
    server: https://10.0.0.1
    insecure-skip-tls-verify: false
  name: 1e3
users:
- name: 2024-01-01
  user:
    token: 0123456789
"""
    )
    access = kubeconfig.load({"HOME": str(tmp_path)})
    assert (access.server, access.namespace, access.authority) == ("https://10.0.0.1", "default", PEM)
    assert access.token(False) == "0123456789"  # what else in YAML would be a number
    assert access.insecure is False
    other = kubeconfig.load({"HOME": str(tmp_path)}, context="other")
    assert (other.namespace, other.token(False)) == ("training", "")
    assert other.find is not None
    assert other.find().namespace == "training"


def test_of_several_files_the_first_that_has_a_name_counts(tmp_path: Path) -> None:
    first, second, empty = tmp_path / "first", tmp_path / "second", tmp_path / "empty"
    shared = config({"token": "first"}, name="shared")
    first.write_text(json.dumps({**shared, "current-context": ""}))
    late = config({"token": "second"}, name="shared")
    mine = config({"token": "mine"}, name="mine", context={"user": "shared"})
    second.write_text(json.dumps({**mine, "users": late["users"] + mine["users"]}))
    empty.write_text("contexts: null\nusers: ~\n")
    environ = {"KUBECONFIG": f"{tmp_path}/missing:{empty}:{first}::{second}", "HOME": "/nowhere"}
    access = kubeconfig.load(environ)
    assert (access.server, access.token(False)) == ("https://mine.example:6443", "first")
    assert kubeconfig.load(environ, context="shared").server == "https://shared.example:6443"
    assert access.origin == f"context 'mine' of {second}"
    with pytest.raises(CredentialsError, match=r"no context 'none'. There are: mine, shared"):
        kubeconfig.load(environ, context="none")


def test_paths_are_relative_to_their_own_file(tmp_path: Path) -> None:
    for name in ("ca.crt", "me.crt", "me.key"):
        (tmp_path / name).write_text(name)
    (tmp_path / "token").write_text("one\n")
    user = {"client-certificate": "me.crt", "client-key": "me.key", "tokenFile": "token", "token": "old"}
    (tmp_path / "config").write_text(json.dumps(config(user, cluster={"certificate-authority": "ca.crt"})))
    access = kubeconfig.load({"KUBECONFIG": str(tmp_path / "config")})
    assert (access.authority, access.pair()) == ("ca.crt", Pair("me.crt", "me.key"))
    assert access.token(False) == "one"
    (tmp_path / "token").write_text("two")
    (tmp_path / "me.crt").write_text("renewed")
    assert access.token(False) == "two"
    assert access.pair() == Pair("renewed", "me.key")
    (tmp_path / "token").unlink()
    with pytest.raises(CredentialsError, match=r"token \(tokenFile of .*config\) cannot be read: No such file"):
        access.token(False)


def test_data_count_more_than_files(load: Any) -> None:
    user = {"client-certificate-data": DATA, "client-certificate": "missing", "client-key-data": DATA}
    assert load(user).pair() == Pair(PEM, PEM)


def test_a_pod_has_its_service_account(tmp_path: Path) -> None:
    for name, text in {"ca.crt": PEM, "namespace": "training\n", "token": "one\n"}.items():
        (tmp_path / name).write_text(text)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443", "HTTPS_PROXY": "proxy:1"}
    access = kubeconfig.in_cluster(environ, tmp_path)
    assert (access.server, access.namespace, access.authority) == ("https://[fd00::1]:443", "training", PEM)
    assert access.proxy == ""
    (tmp_path / "token").write_text("two\n")
    assert access.token(False) == "two"
    (tmp_path / "ca.crt").unlink()
    with pytest.raises(CredentialsError, match="service account of this pod"):
        kubeconfig.in_cluster(environ, tmp_path)
    with pytest.raises(CredentialsError, match="this is no pod"):
        kubeconfig.in_cluster({}, tmp_path)


# ---- what is refused -------------------------------------------------------------------------------------------


def test_no_kubeconfig_at_all(tmp_path: Path) -> None:
    for found in (kubeconfig.load, kubeconfig.current):
        with pytest.raises(CredentialsError, match=r"no kubeconfig at .*/\.kube/config, and this is no pod\. For GKE"):
            found({"HOME": str(tmp_path)})
    with pytest.raises(CredentialsError, match="No such file"):
        kubeconfig.load({}, path=str(tmp_path / "named"))


def test_a_pod_without_a_token_has_no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOME": str(tmp_path)}
    monkeypatch.setattr(kubeconfig, "SERVICE_ACCOUNT", tmp_path)
    for found in (kubeconfig.load, kubeconfig.current):
        with pytest.raises(CredentialsError, match=r"no kubeconfig .* this pod has no token .*token does not exist"):
            found(environ)
    (tmp_path / "token").write_text("one")
    assert kubeconfig.current(environ) == ""
    with pytest.raises(CredentialsError, match="so no context 'prod' is known"):
        kubeconfig.load(environ, context="prod")


def test_a_file_that_is_named_and_missing_never_means_the_cluster_of_this_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubeconfig, "SERVICE_ACCOUNT", tmp_path)
    (tmp_path / "token").write_text("one")
    environ = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOME": str(tmp_path), "KUBECONFIG": f"{tmp_path}/typo"}
    for found in (kubeconfig.load, kubeconfig.current):
        with pytest.raises(CredentialsError, match=r"KUBECONFIG names .*/typo, which does not exist"):
            found(environ)


def test_without_a_current_context_those_there_are_are_named(tmp_path: Path) -> None:
    document = config({}, name="b")
    document["contexts"].append({"name": "a", "context": {"cluster": "b"}})
    del document["current-context"]
    (tmp_path / "config").write_text(json.dumps(document))
    environ = {"KUBECONFIG": str(tmp_path / "config"), "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    for found in (kubeconfig.load, kubeconfig.current):
        with pytest.raises(CredentialsError, match=r"config has no current-context; it has: a, b\. .* KINETIC_CLUSTER"):
            found(environ)
    assert kubeconfig.load(environ, context="a").server == "https://b.example:6443"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("contexts:\n  - token: secret\n }", "is no YAML at line 3"),
        ("- 1", "holds no mapping"),
        ("{}", "no current-context; it has: none"),
        (json.dumps({"current-context": "a"}), "no context 'a'. There are: none"),
        ("\x00", "is no YAML"),
        ("&a [*a]", "is no YAML"),
    ],
)
def test_a_file_that_is_none_is_told_without_its_secrets(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(CredentialsError, match=says) as caught:
        kubeconfig.load({}, path=str(tmp_path / "config"))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("user", "says"),
    [
        ({"username": "me", "password": "secret"}, "a user name with a password"),
        ({"auth-provider": {"name": "gcp"}}, "an auth-provider.*get-credentials"),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}}, "speaks.*v1alpha1"),
        (
            {"exec": {"apiVersion": exec_plugin.VERSIONS[0], "command": "x", "interactiveMode": "Always"}},
            "asks its user",
        ),
    ],
)
def test_identities_that_cannot_work_are_refused(load: Any, user: dict[str, Any], says: str) -> None:
    with pytest.raises(CredentialsError, match=says) as caught:
        load(user)
    assert "secret" not in str(caught.value)


def test_a_half_of_a_certificate(load: Any) -> None:
    with pytest.raises(CredentialsError, match="both are needed"):
        load({"client-certificate-data": DATA}).pair()
    with pytest.raises(CredentialsError, match="is not base64"):
        load({"client-certificate-data": "%%%", "client-key-data": DATA}).pair()


@pytest.mark.parametrize("server", ["", "http://10.0.0.1:8080", "ftp://x", "10.0.0.1"])
def test_a_server_that_would_read_tokens_in_clear(load: Any, server: str) -> None:
    with pytest.raises(CredentialsError, match="only https://"):
        load(cluster={"server": server})


def test_kubectls_own_proxy_needs_no_tls(load: Any) -> None:
    assert load(cluster={"server": "http://127.0.0.1:8001/"}).server == "http://127.0.0.1:8001"


# ---- other fields ----------------------------------------------------------------------------------------------


def test_whom_the_user_acts_for_is_kept(load: Any) -> None:
    access = load({"as": "them", "as-uid": "7", "as-groups": ["a", "b"], "as-user-extra": {"Scopes/x": ["v"]}})
    assert access.headers == (
        ("Impersonate-User", "them"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-Scopes%2Fx", "v"),
    )


def test_the_certificates_name_and_its_check(load: Any) -> None:
    access = load(cluster={"tls-server-name": "kubernetes", "insecure-skip-tls-verify": True})
    assert (access.server_name, access.insecure) == ("kubernetes", True)


@pytest.mark.parametrize(
    ("server", "exceptions", "proxied"),
    [
        ("https://one.example:6443", "", True),
        ("https://one.example:6443", "other.example, example.org", True),
        ("https://one.example:6443", "example", False),
        ("https://one.example:6443", ".example", False),
        ("https://one.example:6443", "*.example", False),
        ("https://one.example:6443", "one.example:6443", False),
        ("https://one.example:6443", "one.example:443", True),
        ("https://one.example:6443", "*", False),
        ("https://10.1.2.3", "10.0.0.0/8", False),
        ("https://10.1.2.3", "10.2.0.0/16", True),
        ("https://127.0.0.1:6443", "", False),
    ],
)
def test_the_environments_proxy_and_its_exceptions(load: Any, server: str, exceptions: str, proxied: bool) -> None:
    environ = {"https_proxy": "proxy.example:3128", "NO_PROXY": exceptions}
    assert load(environ=environ, cluster={"server": server}).proxy == ("http://proxy.example:3128" if proxied else "")


def test_a_proxy_of_the_kubeconfig_counts_and_may_be_of_no_other_kind(load: Any) -> None:
    environ = {"HTTPS_PROXY": "http://other:1", "NO_PROXY": "*"}
    assert load(environ=environ, cluster={"proxy-url": "http://p:2"}).proxy == "http://p:2"
    with pytest.raises(CredentialsError, match="of the kind socks5"):
        load(cluster={"proxy-url": "socks5://p:2"})


def test_an_access_is_shown_without_secrets(load: Any) -> None:
    access = load({"token": "secret"}, cluster={"proxy-url": "http://me:secret@p:2"})
    assert "secret" not in repr(access)
    assert "secret" not in repr(Pair("certificate", "secret"))


# ---- programs that give credentials ----------------------------------------------------------------------------

PROGRAM = """#!/bin/sh
'''exec' "{python}" "$0" "$@"  # the path may have a space, which a first line takes for the end of a word
'''
import json, os, pathlib, sys, time
folder = pathlib.Path(__file__).parent
runs = folder / "runs"
count = len(runs.read_text()) if runs.exists() else 0
runs.write_text("." * (count + 1))
(folder / "info").write_text(os.environ["KUBERNETES_EXEC_INFO"])
answer = json.loads((folder / "answer").read_text())
if "sleep" in answer:
    import subprocess
    subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"])
if "fail" in answer:
    sys.exit(answer["fail"])
if "status" in answer and answer["status"].get("token"):
    answer["status"]["token"] += " ".join(["", *sys.argv[1:], os.environ.get("MORE", ""), str(count)]).replace(" ", "-")
print(json.dumps(answer) if "text" not in answer else answer["text"])
"""


class Plugin:
    """A program in a folder, and what it will print."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "plugin"
        self.file.write_text(PROGRAM.format(python=sys.executable))
        self.file.chmod(0o755)

    def answer(self, version: str = exec_plugin.VERSIONS[0], **status: Any) -> None:
        said = {"apiVersion": version, "kind": "ExecCredential", "status": status}
        (self.folder / "answer").write_text(json.dumps(said))

    def fail(self, **how: Any) -> None:
        (self.folder / "answer").write_text(json.dumps(how))

    @property
    def runs(self) -> int:
        return len((self.folder / "runs").read_text())


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


def executed(version: str = exec_plugin.VERSIONS[0], **fields: Any) -> dict[str, Any]:
    return {"exec": {"apiVersion": version, "command": "./plugin", "interactiveMode": "IfAvailable", **fields}}


@pytest.mark.parametrize("version", exec_plugin.VERSIONS)
def test_a_program_is_run_once_and_again_for_a_new_token(load: Any, plugin: Plugin, version: str) -> None:
    plugin.answer(version, token="t", expirationTimestamp="2999-01-01T00:00:00Z")
    access = load(executed(version, args=["get", "it"], env=[{"name": "MORE", "value": "more"}]))
    assert access.token(False) == access.token(False) == "t-get-it-more-0"
    assert access.pair() is None
    assert access.token(True) == access.token(False) == "t-get-it-more-1"
    assert plugin.runs == 2
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    assert json.loads((plugin.folder / "info").read_text()) == info


def test_a_token_that_expires_is_not_used_until_the_end(load: Any, plugin: Plugin) -> None:
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 5))
    plugin.answer(token="t", expirationTimestamp=soon)
    access = load(executed())
    assert [access.token(False), access.token(False)] == ["t--0", "t--1"]


def test_a_program_may_give_a_certificate_and_know_its_cluster(load: Any, plugin: Plugin) -> None:
    plugin.answer(clientCertificateData="certificate", clientKeyData="key")
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "us"}}
    cluster = {"certificate-authority-data": DATA, "tls-server-name": "kubernetes", "extensions": [extension]}
    access = load(executed(provideClusterInfo=True), cluster=cluster)
    assert (access.token(False), access.pair()) == ("", Pair("certificate", "key"))
    assert plugin.runs == 1
    assert json.loads((plugin.folder / "info").read_text())["spec"]["cluster"] == {
        "server": "https://one.example:6443",
        "certificate-authority-data": DATA,
        "tls-server-name": "kubernetes",
        "config": {"audience": "us"},
    }


def test_a_token_beside_a_program_counts(load: Any, plugin: Plugin) -> None:
    assert load({"token": "static", **executed()}).token(False) == "static"


def test_a_program_that_is_missing_is_told_with_the_way_to_it(load: Any) -> None:
    spec = executed(command="no-such-plugin", installHint="Install it with\x1b[2J apt.")
    with pytest.raises(CredentialsError, match=r"'no-such-plugin', which is not here\. Install it with\\x1b\[2J apt"):
        load(spec).token(False)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"fail": "log in\x1b[2J first"}, r"ended with code 1 and said: log in\\x1b\[2J first"),
        ({"text": "secret"}, "printed no ExecCredential"),
        ({"text": "[]"}, "printed no ExecCredential"),
        ({"text": "{}"}, "printed no ExecCredential"),
    ],
)
def test_a_program_that_fails_is_told(load: Any, plugin: Plugin, how: dict[str, Any], says: str) -> None:
    plugin.fail(**how)
    with pytest.raises(CredentialsError, match=says) as caught:
        load(executed()).token(False)
    assert "secret" not in str(caught.value)


def test_an_answer_of_another_version_or_with_nothing_in_it(load: Any, plugin: Plugin) -> None:
    plugin.answer(exec_plugin.VERSIONS[1], token="t")
    with pytest.raises(CredentialsError, match="correct apiVersion"):
        load(executed()).token(False)
    plugin.answer(clientKeyData="key")
    with pytest.raises(CredentialsError, match="neither a token nor a whole"):
        load(executed()).token(False)


def test_a_program_that_hangs_is_ended_with_all_that_it_started(
    load: Any, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exec_plugin, "SECONDS", 0.5)
    plugin.fail(sleep=True)
    began = time.monotonic()
    with pytest.raises(CredentialsError, match=r"no credentials in 0\.5 s"):
        load(executed()).token(False)
    assert time.monotonic() - began < 20
