"""A Kubernetes control plane on this machine: etcd, API server, controllers, scheduler, and those of JobSet and Kueue.

Every part is the real program that `build.py` has built, a process of its own on free ports of 127.0.0.1, and dies with
the process that started it. It has no nodes: those are `nodes.py`'s. What a folder has is the plane's: certificates,
data, and the log of each part.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from kinetic_orchestration.testing.kubernetes.api.answers import Refused
from tests.support.kubernetes.api import Api
from tests.support.kubernetes.certificates import ADMINISTRATORS, Authority
from tests.support.kubernetes.tied import tied
from tests.support.ports import held_port
from tests.support.waits import wait_until

_CONTROLLERS = (
    "clusterrole-aggregation-controller", "disruption-controller", "endpointslice-controller",
    "garbage-collector-controller", "job-controller", "namespace-controller", "node-lifecycle-controller",
    "pod-garbage-collector-controller", "resourcequota-controller", "root-ca-certificate-publisher-controller",
    "serviceaccount-controller", "serviceaccount-token-controller", "taint-eviction-controller",
    "ttl-after-finished-controller",
)  # fmt: skip
_FAST = ("--kube-api-qps=500", "--kube-api-burst=500")  # without, 200 JobSets take a minute
_PATIENCE = 90.0  # seconds for each part to answer
_GRACE = 10.0  # seconds for a part to end by itself

# Become a program that sees a folder as its root, with the libraries of this machine.
_ENTER = """
root=$1; shift
for each in /usr /lib /lib64; do
  if [ -L "$each" ]; then cp -P "$each" "$root"
  elif [ -d "$each" ]; then mkdir -p "$root$each"; mount --rbind "$each" "$root$each"
  fi
done
exec setpriv --pdeathsig KILL chroot "$root" "$@"
"""

# What a test could leave to others: of no namespace, and in those that tests share.
_SHARED = (
    "/api/v1/namespaces", "/api/v1/nodes", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles", "/apis/scheduling.k8s.io/v1/priorityclasses",
    *(
        f"/apis/kueue.x-k8s.io/v1beta2/{kind}"
        for kind in (
            "admissionchecks", "clusterqueues", "provisioningrequestconfigs", "resourceflavors", "workloadpriorityclasses",
        )
    ),
    *(f"/api/v1/namespaces/kube-system/{kind}" for kind in ("configmaps", "secrets")),
    *(
        f"{api}/namespaces/default/{kind}"
        for api, kinds in (
            ("/api/v1", ("configmaps", "pods", "resourcequotas", "secrets", "serviceaccounts")),
            ("/apis/batch/v1", ("jobs",)), ("/apis/jobset.x-k8s.io/v1alpha2", ("jobsets",)),
            ("/apis/kueue.x-k8s.io/v1beta2", ("localqueues", "workloads")),
            ("/apis/rbac.authorization.k8s.io/v1", ("rolebindings", "roles")),
        )
        for kind in kinds
    ),
)  # fmt: skip
SILENT = 15.0  # seconds after which a node without a heartbeat counts as lost


class ControlPlane:
    """One control plane, from `start` until `stop`, which a `with` calls.

    Args:
        folder: Where it keeps everything; it is made.
        built: The folder of the programs.
        jobset: False for a cluster without JobSet.
        kueue: False for a cluster without Kueue.
        controllers: Controllers that it has besides the usual ones.
        reach: The socket of what connects its server with pods, as Konnectivity does on GKE; None: it reaches none.
    """

    def __init__(
        self, folder: Path, built: Path, *, jobset: bool = True, kueue: bool = True, controllers: Sequence[str] = (),
        reach: Path | None = None,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"  # of an administrator
        self.token = secrets.token_urlsafe(24)  # of another one
        self.has_jobset, self.has_kueue = jobset, kueue
        self._controllers, self._reach = (*_CONTROLLERS, *controllers), reach
        self._built = built
        self._certificates = folder / "certificates"
        self.server_certificate = (self._certificates / "tls.crt", self._certificates / "tls.key")
        self._held = {name: held_port() for name in ("etcd", "peers", "api", "jobset", "kueue", "visibility")}
        self._ports = {name: held.getsockname()[1] for name, held in self._held.items()}
        self._commands: dict[str, list[str]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> ControlPlane:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Bring it up, with the definitions and webhooks of its controllers.

        Raises:
            RuntimeError: A part ended or did not answer in time; the sentence names its log.
        """
        self.folder.mkdir(parents=True)
        self._authority = Authority(self._certificates)
        self._authority.server("tls", "visibility.kueue-system.svc")
        self._authority.client("proxy", "front-proxy")
        self._authority.signing_key("accounts")
        self.user_kubeconfig("admin", ADMINISTRATORS).rename(self.kubeconfig)
        self.api = Api(self.kubeconfig)
        tokens = self.folder / "tokens.csv"
        tokens.touch(0o600)
        tokens.write_text(f"{self.token},administrator,administrator,{ADMINISTRATORS}\n", encoding="ascii")
        self._start_etcd()
        self._start_api_server()
        self._start_controllers()
        self._define("provisioning")  # which Kueue looks for when it starts
        if self.has_jobset:
            self._define("jobset")
        if self.has_kueue:
            self._define("kueue")
        # `kubectl wait` fails on one that has no conditions yet.
        wait_until(self._serves_all_defined, "all definitions are served", within=_PATIENCE, pause=0.1)
        if self.has_jobset:
            self._start_jobset()
        if self.has_kueue:
            self._start_kueue()

    def stop(self) -> None:
        """End all of its processes, without patience: its data goes, too. Its logs stay."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        self._processes.clear()
        for held in self._held.values():
            held.close()
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)

    def interrupt(self, part: str) -> None:
        """End one part, such as `kube-apiserver` or `jobset`, until `resume` starts it again."""
        process = self._processes.pop(part)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
        process.kill()
        process.wait()

    def resume(self, part: str) -> None:
        self._launch(part)

    def is_whole(self) -> bool:
        """Return True if all of its parts run and its server answers."""
        running = {name for name, process in self._processes.items() if process.poll() is None}
        return running == self._commands.keys() and self._serves("/readyz")

    def shared(self) -> set[str]:
        """Return the paths of all objects that belong to no test's own namespace; those that are about to go are of it,
        but for namespaces, whose content goes with them."""
        return {
            f"{kind}/{found['metadata']['name']}"
            for kind in _SHARED
            for found in self._listed(kind)
            if kind != "/api/v1/namespaces" or "deletionTimestamp" not in found["metadata"]
        }

    def _listed(self, kind: str) -> list[Any]:
        """Return all objects of a kind, of which a server that has begun a moment ago may not know yet."""

        def found() -> Any:
            try:
                return self.api.get(kind)
            except Refused as refused:
                if refused.code != http.client.TOO_MANY_REQUESTS:
                    raise
                return None

        return list(wait_until(found, f"{kind} are listed", pause=0.1)["items"])

    # Who speaks to it

    def user_kubeconfig(self, user: str, *groups: str, namespace: str = "default") -> Path:
        """Return the kubeconfig of a user, who is known by a certificate and may do what RBAC grants."""
        name = f"user-{user}"
        self._authority.client(name, user, *groups)
        pair = {"client-certificate-data": self._data(f"{name}.crt"), "client-key-data": self._data(f"{name}.key")}
        return self._write_kubeconfig(name, pair, namespace)

    def account_kubeconfig(self, namespace: str, account: str, seconds: int = 3600) -> Path:
        """Return the kubeconfig of a service account, with a token that lives for so long (600 s at least)."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        asked = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        token = self.api.create(path, asked)["status"]["token"]
        return self._write_kubeconfig(f"account-{namespace}-{account}", {"token": token}, namespace)

    def await_account(self, namespace: str) -> None:
        """Wait until pods may be created in a new namespace: they need its default service account."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
        wait_until(lambda: self.api.found(path), f"{namespace} has its default service account")

    def remove_pods(self, namespace: str) -> None:
        """Take all pods of a namespace away, also those that a controller would still count before they go."""
        pods = f"/api/v1/namespaces/{namespace}/pods"
        self.api.delete(pods, grace=0)
        for pod in self.api.get(pods)["items"]:
            with contextlib.suppress(Refused):  # it has gone meanwhile
                self.api.patch(f"{pods}/{pod['metadata']['name']}", {"metadata": {"finalizers": None}})
        wait_until(lambda: not self.api.get(pods)["items"], f"{namespace} has no pods")

    def kubectl(self, *words: str, given: str | None = None) -> str:
        """Return what kubectl says, as the administrator.

        Raises:
            RuntimeError: It failed.
        """
        command = [str(self._built / "kubectl"), f"--kubeconfig={self.kubeconfig}", *words]
        environ = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}  # where it keeps what it has discovered
        done = subprocess.run(command, input=given, text=True, capture_output=True, env=environ, timeout=2 * _PATIENCE)
        if done.returncode:
            raise RuntimeError(f"kubectl {' '.join(words)}: {done.stderr}")
        return done.stdout

    def documents(self) -> dict[str, Any]:
        """Return all OpenAPI documents of the server and of those it asks, by the group and version that each is of."""
        last = "apis/visibility.kueue.x-k8s.io/v1beta2"  # which another server has
        listed = wait_until(
            lambda: (found := self.api.get("/openapi/v3")["paths"]).get(last) and found,
            "all documents are there",
            pause=0.5,
        )
        versions = [name for name in listed if re.fullmatch(r"api/v1|apis/[^/]+/[^/]+", name)]
        return {name: self.api.get(listed[name]["serverRelativeURL"]) for name in versions}

    def apply(self, text: str) -> None:
        """Create the objects of a file of YAML."""
        self.kubectl("apply", "-f", "-", given=text)

    def _write_kubeconfig(self, name: str, user: dict[str, str], namespace: str) -> Path:
        server = f"https://127.0.0.1:{self._ports['api']}"
        told = {
            "apiVersion": "v1", "kind": "Config", "current-context": "tests",
            "clusters": [{"name": "tests", "cluster": {"server": server, "certificate-authority-data": self._data("ca.crt")}}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": name, "namespace": namespace}}],
        }  # fmt: skip
        path = self.folder / f"kubeconfig-{name}"
        path.touch(0o600)
        path.write_text(json.dumps(told), encoding="utf-8")  # which is YAML, too
        return path

    def _data(self, file: str) -> str:
        return base64.b64encode((self._certificates / file).read_bytes()).decode()

    # Its parts

    def _start_etcd(self) -> None:
        clients, peers = (f"http://127.0.0.1:{self._ports[name]}" for name in ("etcd", "peers"))
        self._start(
            "etcd", str(self._built / "control"), "etcd", f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}", f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}", "--unsafe-no-fsync",
            "--log-level=warn",
        )  # fmt: skip
        self._await_port("etcd", "etcd")

    def _start_api_server(self) -> None:
        at = self._certificates
        self._start(
            "kube-apiserver", str(self._built / "control"), "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._ports['etcd']}", f"--secure-port={self._ports['api']}",
            "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",  # no slice may name a loopback address
            "--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=RBAC", f"--client-ca-file={at}/ca.crt",
            f"--token-auth-file={self.folder / 'tokens.csv'}", f"--tls-cert-file={at}/tls.crt", f"--tls-private-key-file={at}/tls.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={at}/accounts.pub", f"--service-account-signing-key-file={at}/accounts.key",
            f"--proxy-client-cert-file={at}/proxy.crt", f"--proxy-client-key-file={at}/proxy.key",
            f"--requestheader-client-ca-file={at}/ca.crt", "--requestheader-allowed-names=front-proxy",
            "--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-", "--profiling=false", *self._egress(),
        )  # fmt: skip
        self._await("kube-apiserver", lambda: self._serves("/readyz"))

    def _egress(self) -> Sequence[str]:
        """Return what has the server reach pods by a socket."""
        if self._reach is None:
            return ()
        way = {"proxyProtocol": "HTTPConnect", "transport": {"uds": {"udsName": str(self._reach)}}}
        told = {
            "apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration",
            "egressSelections": [{"name": "cluster", "connection": way}],
        }  # fmt: skip
        path = self.folder / "egress.json"
        path.write_text(json.dumps(told), encoding="utf-8")
        return (f"--egress-selector-config-file={path}",)

    def _start_controllers(self) -> None:
        shared = (f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--secure-port=0", *_FAST)
        at = self._certificates
        self._start(
            "kube-controller-manager", str(self._built / "control"), "kube-controller-manager", *shared,
            f"--controllers={','.join(self._controllers)}", f"--service-account-private-key-file={at}/accounts.key",
            f"--root-ca-file={at}/ca.crt", "--node-monitor-period=1s", f"--node-monitor-grace-period={SILENT:.0f}s",
        )  # fmt: skip
        self._start("kube-scheduler", str(self._built / "control"), "kube-scheduler", *shared)

    def _start_jobset(self) -> None:
        config = self._configure("jobset", "config.jobset.x-k8s.io/v1alpha1", certificates=str(self._certificates))
        self._start("jobset", str(self._built / "jobset"), f"--config={config}", f"--kubeconfig={self.kubeconfig}")
        self._await_port("jobset", "jobset")
        self._call_webhooks("jobset", "")

    def _start_kueue(self) -> None:
        """Kueue finds some certificates at paths that cannot be chosen: a root of its own has them, and it."""
        root = self.folder / "kueue-root"
        for folder in ("visibility", "etc/kueue/metrics/certs", "certificates", "tmp"):
            (root / folder).mkdir(parents=True)
            for end in ("crt", "key"):
                shutil.copy(self._certificates / f"tls.{end}", root / folder)
        _link(self._built / "kueue", root / "kueue")
        shutil.copy(self.kubeconfig, root / "kubeconfig")
        frameworks = ["batch/job", *(["jobset.x-k8s.io/jobset"] if self.has_jobset else [])]
        config = self._configure(
            "kueue", "config.kueue.x-k8s.io/v1beta2", certificates="/certificates",
            integrations={"frameworks": frameworks}, manageJobsWithoutQueueName=False,
            visibilityServer={"bindAddress": "127.0.0.1", "bindPort": self._ports["visibility"]},
        )  # fmt: skip
        shutil.copy(config, root / "config.json")
        user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
        enter = ("unshare", *user, "--mount", "sh", "-euc", _ENTER, "sh", str(root))
        self._start("kueue", *enter, "/kueue", "--config=/config.json", "--kubeconfig=/kubeconfig")
        self._await_port("kueue", "kueue")
        self._call_webhooks(
            "kueue", "kueue-x-k8s-io", "batch-v1-job", "jobset-x-k8s-io" if self.has_jobset else "batch"
        )
        self._aggregate_visibility()

    def _aggregate_visibility(self) -> None:
        """Have the API server pass on what is asked about pending workloads, by a service that is this machine."""
        port = self._ports["visibility"]
        self.api.create("/api/v1/namespaces", {"metadata": {"name": "kueue-system"}})
        service = {"type": "ExternalName", "externalName": "localhost", "ports": [{"name": "https", "port": port}]}
        named = {"metadata": {"name": "visibility"}, "spec": service}
        self.api.create("/api/v1/namespaces/kueue-system/services", named)
        group = "visibility.kueue.x-k8s.io"
        for version in ("v1beta1", "v1beta2"):
            spec = {
                "group": group, "version": version, "groupPriorityMinimum": 100, "versionPriority": 100,
                "caBundle": self._data("ca.crt"),
                "service": {"namespace": "kueue-system", "name": "visibility", "port": port},
            }  # fmt: skip
            body = {"metadata": {"name": f"{version}.{group}"}, "spec": spec}
            self.api.create("/apis/apiregistration.k8s.io/v1/apiservices", body)
        self._await("kueue", lambda: self._serves("/apis/visibility.kueue.x-k8s.io/v1beta2"))

    def _configure(self, name: str, version: str, certificates: str, **more: object) -> Path:
        config = {
            "apiVersion": version, "kind": "Configuration", "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False}, "clientConnection": {"qps": 500, "burst": 500},
            "webhook": {"host": "127.0.0.1", "port": self._ports[name], "certDir": certificates},
            "metrics": {"bindAddress": "0"}, "health": {"healthProbeBindAddress": "0"}, **more,
        }  # fmt: skip
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        return path

    def _define(self, name: str) -> None:
        self.kubectl("apply", "--server-side", "-f", str(self._built / "manifests" / f"{name}-crds"))

    def _serves_all_defined(self) -> bool:
        defined = self.api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
        told = [one.get("status", {}).get("conditions") or () for one in defined]
        return all(any((one["type"], one["status"]) == ("Established", "True") for one in each) for each in told)

    def _call_webhooks(self, name: str, *served: str) -> None:
        """Have the API server call a controller's webhooks on this machine: those with such a word in their paths."""
        manifests = self._built / "manifests" / f"{name}-webhooks" / "manifests.yaml"
        shown = self.kubectl("create", "--dry-run=client", "--validate=false", "-o", "json", "-f", str(manifests))
        for configuration in _documents(shown):
            hooks = []
            for hook in configuration["webhooks"]:
                path = hook["clientConfig"]["service"]["path"]
                url = f"https://127.0.0.1:{self._ports[name]}{path}"
                if any(word in path for word in served):
                    hooks.append(hook | {"clientConfig": {"url": url, "caBundle": self._data("ca.crt")}})
            configuration["webhooks"] = hooks
            kind = configuration["kind"].lower() + "s"
            configuration["metadata"] = {"name": f"{name}-{configuration['metadata']['name']}"}
            self.api.create(f"/apis/admissionregistration.k8s.io/v1/{kind}", configuration)

    # Processes

    def _start(self, name: str, *command: str) -> None:
        self._commands[name] = list(command)
        self._launch(name)

    def _launch(self, name: str) -> None:
        environ = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                tied(*self._commands[name]), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, env=environ,
                start_new_session=True,
            )  # fmt: skip

    def _await(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not ready():
            log = self.folder / f"{name}.log"
            if (code := self._processes[name].poll()) is not None:
                raise RuntimeError(f"{name} ended with {code}: see {log}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name} did not answer within {_PATIENCE:.0f} s: see {log}")
            time.sleep(0.05)

    def _await_port(self, name: str, port: str) -> None:
        self._await(name, functools.partial(_listens, self._ports[port]))

    def _serves(self, path: str) -> bool:
        try:
            return bool(self.api.text(path))
        except (OSError, Refused):
            return False


def _listens(port: int) -> bool:
    with socket.socket() as it:
        return it.connect_ex(("127.0.0.1", port)) == 0


def _link(source: Path, target: Path) -> None:
    """Have a file at another place of the same file system, or a copy of it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _documents(text: str) -> list[dict[str, Any]]:
    """The JSON documents in a text, one after another."""
    found, rest, decoder = [], text.strip(), json.JSONDecoder()
    while rest:
        document, end = decoder.raw_decode(rest)
        found += document.get("items", [document])
        rest = rest[end:].strip()
    return found
