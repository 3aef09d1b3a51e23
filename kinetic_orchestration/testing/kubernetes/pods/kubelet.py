"""The kubelet of nodes whose pods are processes of this machine.

It reports as a kubelet does: leases, statuses, events. A pod has one container; its image is looked up in a table of
those that cannot be pulled, and otherwise not looked at: it runs what this machine has. Its files are this machine's,
too, so it gets a folder of its own, in which its emptyDirs are: KINETIC_ROOT names it. What GKE's webhook adds to a pod
is added here, so that the pod does not show it, and the way to GKE's metadata server, of which each pod has one of its
own. It speaks to a real API server and to the emulator's alike.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import shutil
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kinetic_orchestration.testing.api_rules.access import Access
from kinetic_orchestration.testing.kubernetes.api.answers import Object, Refused
from kinetic_orchestration.testing.kubernetes.api.objects import stamp
from kinetic_orchestration.testing.kubernetes.pods import metadata
from kinetic_orchestration.testing.kubernetes.pods.container import Container
from kinetic_orchestration.testing.kubernetes.pods.environment import NotResolved, command_of, resolve, tpu_names
from kinetic_orchestration.testing.kubernetes.pods.nodes import LOST, MISNAMED, UNPULLED, Node, Pool
from kinetic_orchestration.testing.kubernetes.pods.pod import Pod
from kinetic_orchestration.testing.kubernetes.pods.probes import Probes
from kinetic_orchestration.testing.kubernetes.pods.reports import FINAL, Api, Reports, condition
from kinetic_orchestration.testing.vms.metadata_server import Loop

_log = logging.getLogger(__name__)
_BEAT = 3.0  # a kubelet's lease has 10 s, and the controller manager of these tests less patience
_BACKOFF = 1.0  # a kubelet's begins with 10 s
_KEPT = 100  # pods that are gone, and whose output is kept
_LAST_WORDS = 4096  # bytes of a container's termination message
_PASSES_WEBSOCKETS = "ExtendWebSocketsToKubelet"  # else an API server speaks SPDY to it, which it does not know
_UNKNOWN = 255  # containerd's exit code of a container that did not survive a boot
_EXISTS, _INVALID = 409, 422
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_CAPACITY = {"cpu": "256", "memory": "2Ti", "pods": "110", "ephemeral-storage": "1Ti"}
_PRESSURE = "The node was low on resource: ephemeral-storage. "
_ABSENT = "{0}: not found"  # of a registry
_REFUSED = {  # reason → message, of an image that cannot be had
    UNPULLED: 'failed to pull and unpack image "{0}": failed to resolve reference "{0}": {1}',
    MISNAMED: 'Failed to apply default image tag "{0}": couldn\'t parse image name "{0}": invalid reference format',
}


class Kubelet:
    """The kubelet of all nodes of a pool.

    Args:
        folder: Where it keeps what pods write, as long as they are there; their output a little longer.
        api: The server.
        isolate: False: pods have no pid namespaces, as on a machine that permits none.

    Attributes:
        port: Where the server may ask for the logs of its pods.
    """

    def __init__(self, folder: Path, api: Api, *, isolate: bool = True) -> None:
        self._folder = folder
        self._api = api
        self._isolate = isolate
        self._reports = Reports(api)
        self.port = 0
        self._pool = Pool()
        self._nodes: dict[str, Node] = {}
        self._invalid: set[str] = set()  # nodes that the server refuses
        self._pods: dict[str, Pod] = {}
        self._seen: set[str] = set()  # UIDs of all pods that have a node
        self._addresses = 0
        self._beaten = 0.0
        self._loop: Loop | None = None  # of their metadata servers, once there is one

    def tick(self, pool: Pool) -> None:
        """Do what is due now."""
        self._take(pool)
        if time.monotonic() - self._beaten > _BEAT:
            self._beaten = time.monotonic()
            for name in self._healthy():
                self._renew(name)
            self._sweep()
        healthy = self._healthy()
        seen = self._api.get("/api/v1/pods?resourceVersion=0&fieldSelector=spec.nodeName!%3D")["items"]
        self._seen = {pod["metadata"]["uid"] for pod in seen}
        mine = {pod["metadata"]["uid"]: pod for pod in seen if pod["spec"]["nodeName"] in healthy}
        for uid, pod in list(self._pods.items()):
            if uid not in mine and pod.node in healthy:  # deleted by force
                self._drop(pod)
        for uid, fresh in mine.items():
            begun = uid not in self._pods
            if begun:
                folder = self._folder / "pods" / uid
                self._pods[uid] = Pod(fresh, folder)
                self._pods[uid].over = fresh["status"].get("phase") in FINAL
            self._pods[uid].seen = fresh
            try:
                if begun:
                    self._find(self._pods[uid])
                self._follow(self._pods[uid])
            except (Refused, OSError):  # the server is away, for all of them
                raise
            except Exception as error:  # of this pod: the others go on
                _log.exception("pod %s cannot be followed", self._pods[uid].name)
                self._wait(self._pods[uid], "CreateContainerError", f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """End all pods and take the nodes away."""
        for pod in list(self._pods.values()):
            self._drop(pod)
        for name in list(self._nodes):
            with contextlib.suppress(Refused, OSError):
                self._remove(name)
        if self._loop is not None:
            self._loop.close()

    # Nodes

    def _healthy(self) -> set[str]:
        return {name for name, node in self._nodes.items() if not node.fault}

    def _take(self, pool: Pool) -> None:
        """Make the nodes those of the pool, if it has changed, and say that they are."""
        if pool.serial == self._pool.serial:
            return
        for name in self._nodes.keys() - pool.nodes.keys():
            self._drop_all(name)
            self._remove(name)
        for name, node in pool.nodes.items():
            before = self._nodes.get(name)
            if before is None:
                if not self._is_registered(node):
                    continue
            elif node.fault == LOST:
                self._drop_all(name)
            elif before.fault and not node.fault:
                self._renew(name)
                self._report_node(node)
            self._nodes[name] = node
        self._pool = pool

    def _is_registered(self, node: Node) -> bool:
        """Register a node. Returns False for one that is invalid, which is told once: the others go on."""
        try:
            self._register(node)
        except Refused as refused:
            if refused.code != _INVALID:
                raise
            if node.name not in self._invalid:
                self._invalid.add(node.name)
                _log.exception("the node %s of the emulated cluster cannot be", node.name)
            return False
        return True

    def _register(self, node: Node) -> None:
        name = node.name
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **node.labels}
        lease = {"holderIdentity": name, "leaseDurationSeconds": 40}
        spec = {"taints": [dict(taint) for taint in node.taints]}
        try:
            self._api.create("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}, "spec": spec})
        except Refused as refused:  # it is there already, as after a try that met no server
            if refused.code != _EXISTS:
                raise
        with contextlib.suppress(Refused):
            self._api.create(_LEASES, {"metadata": {"name": name}, "spec": lease})
        self._renew(name)
        self._report_node(node)

    def _report_node(self, node: Node) -> None:
        capacity = _CAPACITY | dict(node.allocatable)
        ready = {
            "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status",
            "lastHeartbeatTime": stamp(), "lastTransitionTime": stamp(),
        }  # fmt: skip
        status = {
            "capacity": capacity, "allocatable": capacity, "conditions": [ready],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.port}},
            "declaredFeatures": [_PASSES_WEBSOCKETS],
        }  # fmt: skip
        self._api.patch(f"/api/v1/nodes/{node.name}/status", {"status": status})

    def _renew(self, name: str) -> None:
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self._api.patch(f"{_LEASES}/{name}", {"spec": {"renewTime": stamp}})

    def _remove(self, name: str) -> None:
        for path in (f"/api/v1/nodes/{name}", f"{_LEASES}/{name}"):
            with contextlib.suppress(Refused):  # a test may have deleted it
                self._api.delete(path)
        del self._nodes[name]

    def _drop_all(self, node: str) -> None:
        for pod in [pod for pod in self._pods.values() if pod.node == node]:
            self._drop(pod)

    def _drop(self, pod: Pod) -> None:
        """End a pod without a word."""
        if pod.container is not None:
            pod.container.close()
        pod.close_metadata()
        self._pods.pop(pod.uid)

    def log_of(self, namespace: str, name: str) -> Path | None:
        """Return the file with the output of a pod's container; None if there is no such pod here."""
        return next((pod.folder / "log" for pod in self._named(namespace, name)), None)

    def container_of(self, namespace: str, name: str) -> Container | None:
        """Return the container of a pod; None if there is none that runs."""
        found = next((pod.container for pod in self._named(namespace, name)), None)
        return found if found is not None and found.ended() is None else None

    def is_over(self, namespace: str, name: str) -> bool:
        """Return True if a pod's container has ended for good, or there is no such pod here."""
        return all(pod.over for pod in self._named(namespace, name))

    def _named(self, namespace: str, name: str) -> list[Pod]:
        return [pod for pod in list(self._pods.values()) if (pod.namespace, pod.name) == (namespace, name)]

    def _sweep(self) -> None:
        """Remove the files of pods that are gone, and, but for those of the last ones, their output."""
        pods = self._folder / "pods"
        left = [folder for folder in (pods.iterdir() if pods.is_dir() else ()) if folder.name not in self._pods]
        gone = [folder for folder in left if folder.name not in self._seen]
        for folder in gone:
            if (folder / "root").exists():
                shutil.rmtree(folder / "root", ignore_errors=True)
        for folder in sorted(gone, key=lambda folder: folder.stat().st_mtime)[:-_KEPT]:
            shutil.rmtree(folder, ignore_errors=True)

    # Pods

    def _follow(self, pod: Pod) -> None:
        if pod.over:
            if pod.deleting:
                self._let_go(pod)
            return
        if pod.container is None:
            if pod.deleting:
                pod.over = True
                pod.close_metadata()
                self._let_go(pod)
            elif self._is_overdue(pod):
                self._finish(pod, None)
            elif time.monotonic() >= pod.begins:
                self._begin(pod)
            return
        code = pod.container.ended()
        if code is not None:
            self._ended(pod, code)
            return
        self._probe(pod, pod.container)
        self._end_if_due(pod, pod.container)

    def _probe(self, pod: Pod, container: Container) -> None:
        """Ask a container what its probes ask, and end one that they want ended."""
        was = pod.probes.ready
        pod.probes.step(str(pod.seen["status"].get("podIP", "")), time.monotonic())
        if pod.probes.failed:
            self._reports.tell(pod, "Warning", "Unhealthy", f"{pod.probes.failed} probe failed: {pod.probes.said}")
            container.kill()
        elif pod.probes.ready != was:
            self._reports.report(pod, {"phase": "Running"}, {"running": {"startedAt": pod.started}})

    def _find(self, pod: Pod) -> None:
        """Say of a pod that ran here before its machine was lost that its container has ended, as nobody knows how."""
        status: Object = next(iter(pod.seen["status"].get("containerStatuses", ())), {})
        pod.restarts, pod.last = status.get("restartCount", 0), status.get("lastState") or {}
        running = status.get("state", {}).get("running")
        if running and not pod.deleting:
            pod.started = running["startedAt"]
            self._after(pod, {"exitCode": _UNKNOWN, "reason": "Unknown", **self._reports.times(pod)})

    def _end_if_due(self, pod: Pod, container: Container) -> None:
        if pod.asked != (asked := self._pool.ends.get(pod.uid, "")):  # once, however often its container starts
            pod.asked = asked
            if asked == "Evicted":
                pod.reason = ("Evicted", _PRESSURE)
            else:
                pod.dies, pod.oom = True, asked == "OOMKilled"
        if pod.dies:  # it may not have had a process yet
            container.kill()
        if not pod.deleting and not self._is_overdue(pod) and pod.reason is None:
            return
        if not pod.killed_at:
            self._reports.tell(pod, "Normal", "Killing", f"Stopping container {pod.spec['name']}")
        deadline = time.monotonic() + pod.grace
        pod.killed_at = min(pod.killed_at or deadline, deadline)
        container.terminate()
        if time.monotonic() >= pod.killed_at:
            container.kill()

    def _is_overdue(self, pod: Pod) -> bool:
        """Tell whether a pod has been active for too long, which is then why it ends."""
        most, since = pod.seen["spec"].get("activeDeadlineSeconds"), pod.seen["status"].get("startTime")
        if most is None or since is None or pod.reason is not None:
            return False
        if datetime.now(UTC) - datetime.fromisoformat(since) < timedelta(seconds=most):
            return False
        pod.reason = ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
        return True

    def _begin(self, pod: Pod) -> None:
        container, image = pod.spec, pod.spec["image"]
        if len(pod.seen["spec"]["containers"]) > 1 or pod.seen["spec"].get("initContainers"):
            self._wait(pod, "CreateContainerError", "only pods of one container run here")
            return
        if refusal := self._pool.images.get(image):
            reason, _, words = refusal.partition(": ")
            message = _REFUSED[reason].format(image, words or _ABSENT.format(image))
            if reason == UNPULLED and pod.waits:  # first it tries, then it waits
                reason, message = "ImagePullBackOff", f'Back-off pulling image "{image}": {UNPULLED}: {message}'
            self._wait(pod, reason, message)
            return
        if not pod.seen["status"].get("startTime"):
            self._address(pod)
        try:
            environ = self._environment(pod)
        except NotResolved as error:
            self._wait(pod, "CreateContainerConfigError", str(error))
            return
        command = command_of(container, environ)
        if not command:
            self._wait(pod, "CreateContainerError", "no command specified")
            return
        self._reports.tell(
            pod,
            "Normal",
            "Pulled",
            f'Container image "{image}" already present on machine and can be accessed by the pod',
        )
        self._reports.tell(pod, "Normal", "Created", "Container created")
        if shutil.which(command[0], path=environ["PATH"]) is None:
            message = f'exec: "{command[0]}": executable file not found in $PATH'
            self._reports.tell(pod, "Warning", "Failed", f"Error: {message}")
            self._after(pod, {"exitCode": 128, "reason": "StartError", "message": message, **self._reports.times(pod)})
            return
        folder = self._root(pod) / container.get("workingDir", "").lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        last = self._last_words(pod)
        last.parent.mkdir(parents=True, exist_ok=True)
        last.write_bytes(b"")  # a kubelet makes it anew for each start
        pod.started = stamp()
        pod.dies = pod.oom = False
        try:
            pod.container = Container(command, environ, folder, pod.folder / "log", isolate=self._isolate)
        except OSError as error:  # an argument is too long, or there are too many processes
            self._wait(pod, "CreateContainerError", str(error))
            return
        pod.waits = ""
        pod.probes = Probes(pod.spec, time.monotonic())
        self._reports.tell(pod, "Normal", "Started", "Container started")
        self._reports.report(pod, {"phase": "Running"}, {"running": {"startedAt": pod.started}})

    def _address(self, pod: Pod) -> None:
        """Tell an address that no endpoint slice refuses, as it would one of loopback; nobody ever speaks to it."""
        self._addresses += 1
        address = f"10.244.{self._addresses // 250 % 250}.{self._addresses % 250 + 1}"
        status = {"hostIP": "127.0.0.1", "podIP": address, "podIPs": [{"ip": address}], "startTime": stamp()}
        pod.seen = {**pod.seen, "status": {**pod.seen["status"], **status}}
        self._reports.report(pod, {"phase": "Pending", **status}, {"waiting": {"reason": "ContainerCreating"}})

    def _environment(self, pod: Pod) -> dict[str, str]:
        root = self._root(pod)
        before = {
            "PATH": os.environ["PATH"], "HOSTNAME": pod.seen["spec"].get("hostname", pod.name), "HOME": f"{root}/root",
            "TMPDIR": f"{root}/tmp", "KINETIC_ROOT": str(root), "KUBERNETES_SERVICE_HOST": "10.96.0.1",
            "KUBERNETES_SERVICE_PORT": "443", **self._nodes[pod.node].environment, **self._identify(pod),
        }  # fmt: skip
        injected: dict[str, str] = {}
        if self._pool.webhook is not None and (names := tpu_names(pod.seen, self._job_of(pod))):
            injected = names | dict(self._pool.webhook)

        def stored(kind: str, name: str) -> Mapping[str, str] | None:
            found = self._api.found(f"/api/v1/namespaces/{pod.namespace}/{kind}/{name}")
            if found is None or kind == "configmaps":
                return found and found.get("data", {})
            data = {key: base64.b64decode(value) for key, value in found.get("data", {}).items()}
            return {key: value.decode(errors="surrogateescape") for key, value in data.items()}

        return resolve(pod.seen, before, injected, stored)

    def _identify(self, pod: Pod) -> dict[str, str]:
        """Start the metadata server of a pod, and return the variables that lead to it, by a token that no other pod
        has; none without identities."""
        node, account = self._nodes[pod.node], str(pod.seen["spec"].get("serviceAccountName") or "default")
        if not node.identities:
            return {}
        if pod.metadata is None:
            found = self._api.found(f"/api/v1/namespaces/{pod.namespace}/serviceaccounts/{account}") or {}
            google = str(found.get("metadata", {}).get("annotations", {}).get(metadata.ANNOTATION) or "")
            cloud = node.environment.get("KINETIC_EMULATOR", "")
            identity = metadata.Identity(node.identities, pod.namespace, account, google, cloud)
            self._loop = self._loop or Loop("metadata servers of pods")
            pod.metadata = metadata.PodMetadata(self._loop, Access(), identity, after=node.identities_after)
        return dict.fromkeys(("GCE_METADATA_HOST", "GCE_METADATA_IP"), pod.metadata.address)

    def _root(self, pod: Pod) -> Path:
        """The folder that a pod has for its file system, with its emptyDirs."""
        root = pod.folder / "root"
        empty = {volume["name"] for volume in pod.seen["spec"].get("volumes", ()) if "emptyDir" in volume}
        mounts = [mount["mountPath"] for mount in pod.spec.get("volumeMounts", ()) if mount["name"] in empty]
        for path in ("root", "tmp", "dev", *mounts):
            (root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        return root

    def _job_of(self, pod: Pod) -> Object | None:
        owner = next((one for one in pod.seen["metadata"].get("ownerReferences", ()) if one["kind"] == "Job"), None)
        if owner is None:
            return None
        return self._api.found(f"/apis/batch/v1/namespaces/{pod.namespace}/jobs/{owner['name']}")

    def _wait(self, pod: Pod, reason: str, message: str) -> None:
        """Report why it has no container, and try again later."""
        pod.begins = time.monotonic() + _BACKOFF
        if pod.waits == reason:
            return
        pod.waits = reason
        if reason == UNPULLED:
            self._reports.tell(pod, "Warning", "Failed", f'Failed to pull image "{pod.spec["image"]}": {message}')
        if reason == "ImagePullBackOff":
            self._reports.tell(pod, "Normal", "BackOff", f'Back-off pulling image "{pod.spec["image"]}"')
        why = "InspectFailed" if reason == MISNAMED else "Failed"
        self._reports.tell(pod, "Warning", why, f"Error: {reason}")
        self._reports.report(pod, {"phase": "Pending"}, {"waiting": {"reason": reason, "message": message}})

    def _ended(self, pod: Pod, code: int) -> None:
        pod.container = None
        reason = "OOMKilled" if pod.oom else "Completed" if code == 0 else "Error"
        terminated = {"exitCode": code, "reason": reason, **self._reports.times(pod)}
        last = self._last_words(pod)
        if last.is_file() and last.stat().st_size:
            terminated["message"] = last.read_bytes()[-_LAST_WORDS:].decode(errors="replace")
        elif code and pod.spec["terminationMessagePolicy"] == "FallbackToLogsOnError":
            terminated["message"] = (pod.folder / "log").read_text(encoding="utf-8", errors="replace")[-2048:]
        self._after(pod, terminated)

    def _last_words(self, pod: Pod) -> Path:
        """The file from which the message of a container that has ended is taken."""
        return self._root(pod) / str(pod.spec["terminationMessagePath"]).lstrip("/")

    def _after(self, pod: Pod, terminated: Object) -> None:
        """Start a container that has ended once more, if that is its pod's policy; else the pod is over."""
        policy = pod.seen["spec"]["restartPolicy"]
        again = policy == "Always" or (policy == "OnFailure" and terminated["exitCode"] != 0)
        if not again or pod.deleting or pod.reason is not None:
            self._finish(pod, terminated)
            return
        pod.restarts += 1
        pod.last = {"terminated": terminated}
        pod.begins = time.monotonic() + _BACKOFF
        self._reports.tell(
            pod, "Warning", "BackOff", f"Back-off restarting failed container {pod.spec['name']} in pod {pod.name}"
        )
        message = f"back-off {_BACKOFF:.0f}s restarting failed container={pod.spec['name']} pod={pod.name}"
        waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
        self._reports.report(pod, {"phase": "Running"}, waiting)

    def _finish(self, pod: Pod, terminated: Object | None) -> None:
        succeeded = terminated is not None and terminated["exitCode"] == 0 and pod.reason is None
        status: Object = {"phase": "Succeeded" if succeeded else "Failed"}
        if pod.reason is not None:
            status["reason"], status["message"] = pod.reason
        if pod.reason is not None and pod.reason[0] == "Evicted":
            status["conditions"] = [condition("DisruptionTarget", True, "TerminationByKubelet", pod.reason[1])]
        state = {"waiting": {"reason": "ContainerCreating"}} if terminated is None else {"terminated": terminated}
        self._reports.report(pod, status, state)
        pod.over = True  # once that is told: the server may be away
        pod.close_metadata()
        if pod.deleting:
            self._let_go(pod)

    def _let_go(self, pod: Pod) -> None:
        if not pod.let_go:
            pod.let_go = True
            with contextlib.suppress(Refused):
                self._api.delete(pod.path, grace=0, preconditions={"uid": pod.uid})
