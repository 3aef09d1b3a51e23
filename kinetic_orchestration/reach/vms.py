"""Google's VMs as hosts that are entered: their names for Identity-Aware Proxy, their keys, and the user's key on them.

A worker of a TPU node has a name that only its guest attributes tell, and its metadata are the node's. An instance of
Compute Engine has its own. Metadata are read, changed and written whole: those of the job stay as they are.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kinetic_orchestration.errors import HostNotReached
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.platforms.google.compute import request as compute
from kinetic_orchestration.platforms.google.rest.client import Answer, Google, kept
from kinetic_orchestration.platforms.google.tpu.request import nodes_of
from kinetic_orchestration.platforms.shared import ownership
from kinetic_orchestration.protocol.system import escaping
from kinetic_orchestration.reach.ssh import Host, public_key_in

KEYS: Final = "ssh-keys"  # in metadata, a line for each: USER:KEY COMMENT
OS_LOGIN: Final = "enable-oslogin"
POLICY: Final = "constraints/compute.disableGuestAttributesAccess"
SECONDS: Final = 20.0  # of one call with its repetitions
OPERATION_SECONDS: Final = 60.0
_PAUSE: Final = 0.2
_TRIES: Final = 5  # against others who change the same metadata
_HOST_KEYS: Final = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa")
_NAME: Final = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_CONFLICT, _GONE, _STALE = 409, 404, 412


@dataclass(frozen=True)
class Entering:
    """Who enters, and how.

    Attributes:
        user: The name on the VM.
        public: The public key.
        account: The email of the Google account, for VMs with OS Login; "" if it is not known.
    """

    user: str
    public: str
    account: str = ""


def tpu_host(settings: Settings, placement: Mapping[str, Any], machine: int, machines: int, who: Entering) -> Host:
    """Return a worker of a placement's nodes, which the user may enter. Raises HostNotReached.

    Args:
        settings: Those of this process.
        placement: The attempt's placement.
        machine: The number of the machine among all of the placement.
        machines: The number of all.
        who: The user.
    """
    nodes = nodes_of(placement)
    each = max(1, machines // len(nodes))
    path, worker = nodes[machine // each], machine % each
    api = kept(settings)
    node = _read(api.call("GET", "tpu", f"v2/{path}", within=SECONDS), f"the node {path}", "tpu.nodes.get")
    name = path.rpartition("/")[2]
    _check_ours(name, node)
    if node.get("state") != "READY":
        raise HostNotReached(
            f"the node {name} is {escaping.text(str(node.get('state')))}: nothing of it can be entered"
        )
    body = {"workerIds": [str(worker)]}
    answer = api.call("POST", "tpu", f"v2/{path}:getGuestAttributes", body, within=SECONDS)
    told = _guest_attributes(answer, name)
    instance = told.get("hostname", "").partition(".")[0]
    if not _NAME.fullmatch(instance):
        raise HostNotReached(
            f"worker {worker} of the node {name} does not tell its name, which a connection needs: its guest "
            f"attributes have none. The organisation policy {POLICY} may forbid them, or the VM still boots"
        )
    user, is_new = _enter(api, _Node(api, path, node), who)
    return Host(placement["project"], placement["zone"], instance, user, _host_keys(told), is_new)


def compute_host(settings: Settings, placement: Mapping[str, Any], machine: int, who: Entering) -> tuple[Host, str]:
    """Return an instance of a placement, which the user may enter, and why its own keys are not known; "" if they are.

    Raises HostNotReached.
    """
    instance, project, zone = compute.members_of(placement)[machine], placement["project"], placement["zone"]
    path = f"compute/v1/projects/{project}/zones/{zone}/instances/{instance}"
    api = kept(settings)
    fields = {"fields": "name,status,labels,metadata"}
    answer = api.call("GET", "compute", path, None, fields, SECONDS)
    found = _read(answer, f"the VM {instance}", "compute.instances.get")
    _check_ours(instance, found)
    if found.get("status") != "RUNNING":
        raise HostNotReached(f"the VM {instance} is {escaping.text(str(found.get('status')))}: it cannot be entered")
    user, is_new = _enter(api, _Instance(api, path, found), who)
    asked = api.call("GET", "compute", f"{path}/getGuestAttributes", None, {"queryPath": "hostkeys/"}, SECONDS)
    told = {str(item.get("key")): str(item.get("value", "")) for item in _items(asked.body)} if asked.ok else {}
    keys = _host_keys(told)
    why = "" if keys else f"its guest attributes do not tell it ({_said(asked) if not asked.ok else 'they are empty'})"
    return Host(project, zone, instance, user, keys, is_new), why


# ---- what a VM tells of itself ---------------------------------------------------------------------------------


def _guest_attributes(answer: Answer, name: str) -> dict[str, str]:
    if answer.ok:
        listed = answer.body.get("guestAttributes") or [{}]
        return {str(item.get("key")): str(item.get("value", "")) for item in _items(listed[0])}
    if answer.status == _GONE:
        raise HostNotReached(f"the node {name} is gone, and its hosts with it: look at 'kinor status'")
    raise HostNotReached(
        f"the guest attributes of the node {name} cannot be read, in which its hosts tell their names: {_said(answer)} "
        f"If the organisation policy {POLICY} is enforced, no way leads through Identity-Aware Proxy to TPU VMs of "
        "this project: have it lifted there, or enter from a machine in the same network by the VM's own address"
    )


def _check_ours(name: str, found: Mapping[str, Any]) -> None:
    """Refuse to hand a key to what no job has made: where it is, a record says. Raises HostNotReached."""
    if ownership.owned({str(key): str(value) for key, value in (found.get("labels") or {}).items()}) is None:
        raise HostNotReached(
            f"{name} has none of the labels of a job's VM: it was not made by this package, and is not touched"
        )


def _items(found: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    listed = (found.get("queryValue") or {}).get("items") or ()
    return [item for item in listed if isinstance(item, Mapping)]


def _host_keys(told: Mapping[str, str]) -> tuple[str, ...]:
    texts = (f"{kind} {told[kind].removeprefix(kind).strip()}" for kind in _HOST_KEYS if told.get(kind))
    return tuple(key for key in map(public_key_in, texts) if key)


# ---- the user's key --------------------------------------------------------------------------------------------


class _Node:
    """The metadata of a TPU node, which are those of all its workers."""

    def __init__(self, api: Google, path: str, node: Mapping[str, Any]) -> None:
        self._api, self._path = api, path
        self.values = dict(node.get("metadata") or {})
        self.right = "tpu.nodes.update"

    def read(self) -> None:
        self.values = dict(
            _read(self._api.call("GET", "tpu", f"v2/{self._path}"), self._path, "").get("metadata") or {}
        )

    def write(self, values: Mapping[str, str]) -> Answer:
        body, mask = {"metadata": dict(values)}, {"updateMask": "metadata"}
        answer = self._api.call("PATCH", "tpu", f"v2/{self._path}", body, mask, SECONDS)
        return _ended(self._api, "tpu", f"v2/{answer.body.get('name')}", answer, "done") if answer.ok else answer


class _Instance:
    """The metadata of an instance, whose fingerprint keeps two writers apart."""

    def __init__(self, api: Google, path: str, found: Mapping[str, Any]) -> None:
        self._api, self._path = api, path
        self.right = "compute.instances.setMetadata"
        self._take(found)

    def _take(self, found: Mapping[str, Any]) -> None:
        metadata = found.get("metadata") or {}
        self._fingerprint = str(metadata.get("fingerprint") or "")
        self.values = {str(one["key"]): str(one.get("value", "")) for one in metadata.get("items") or ()}

    def read(self) -> None:
        answer = self._api.call("GET", "compute", self._path, None, {"fields": "metadata"}, SECONDS)
        self._take(_read(answer, self._path, ""))

    def write(self, values: Mapping[str, str]) -> Answer:
        items = [{"key": key, "value": value} for key, value in values.items()]
        body = {"fingerprint": self._fingerprint, "items": items}
        answer = self._api.call("POST", "compute", f"{self._path}/setMetadata", body, None, SECONDS)
        place = self._path.partition("/instances/")[0]
        path = f"{place}/operations/{answer.body.get('name')}"
        return _ended(self._api, "compute", path, answer, "status") if answer.ok else answer


def _enter(api: Google, metadata: _Node | _Instance, who: Entering) -> tuple[str, bool]:
    """Have a VM let the user in; return the name there, and whether it was told only now. Raises HostNotReached."""
    if metadata.values.get(OS_LOGIN, "").upper() == "TRUE":
        return _by_os_login(api, who), True
    wanted = f"{who.user}:{who.public} kinetic"
    for _ in range(_TRIES):
        lines = [line for line in metadata.values.get(KEYS, "").splitlines() if line.strip()]
        if wanted in lines:
            return who.user, False
        answer = metadata.write({**metadata.values, KEYS: "\n".join([*lines, wanted])})
        if answer.ok:
            return who.user, True
        if answer.status not in (_CONFLICT, _STALE):
            raise HostNotReached(
                f"your key cannot be handed to the VM: {_said(answer)} It takes {metadata.right}, and "
                "roles/iam.serviceAccountUser on the VM's account"
            )
        time.sleep(_PAUSE)
        metadata.read()
    raise HostNotReached(
        "your key cannot be handed to the VM: others keep changing its metadata. Try again in a minute"
    )


def _by_os_login(api: Google, who: Entering) -> str:
    if not who.account:
        raise HostNotReached(
            "this VM lets people in by OS Login: say as which Google account you enter, with --account YOU@EXAMPLE.COM"
        )
    path = f"v1/users/{who.account}:importSshPublicKey"
    answer = api.call("POST", "oslogin", path, {"key": who.public}, within=SECONDS)
    if not answer.ok:
        raise HostNotReached(f"OS Login does not take your key: {_said(answer)} It takes roles/compute.osLogin")
    accounts = (answer.body.get("loginProfile") or {}).get("posixAccounts") or ()
    names = [str(one.get("username", "")) for one in sorted(accounts, key=lambda one: not one.get("primary"))]
    user = next((name for name in names if re.fullmatch(r"[a-z_][-a-z0-9_]{0,63}", name)), "")
    if not user:
        raise HostNotReached(
            f"OS Login knows no name of {who.account} on VMs: sign in to the Google Cloud console once"
        )
    return user


def _ended(api: Google, service: str, path: str, answer: Answer, field: str) -> Answer:
    """Return the answer once its operation has ended, or as it is if that takes too long."""
    deadline = time.monotonic() + OPERATION_SECONDS
    while answer.ok and answer.body.get(field) not in (True, "DONE") and time.monotonic() < deadline:
        time.sleep(_PAUSE)
        answer = api.call("GET", service, path, None, None, SECONDS)
    if answer.ok and (error := answer.body.get("error")):
        raise HostNotReached(f"the VM's metadata were not changed: {escaping.text(str(error)[:500])}")
    return answer


def _read(answer: Answer, what: str, right: str) -> Mapping[str, Any]:
    if answer.ok:
        return answer.body
    if answer.status == _GONE:
        raise HostNotReached(f"{what} is gone: the attempt has ended, or was preempted; look at 'kinor status'")
    raise HostNotReached(f"{what} cannot be read: {_said(answer)} It takes {right}")


def _said(answer: Answer) -> str:
    return f"{escaping.text(answer.status_of().message[:500]).rstrip('.')} (HTTP {answer.status})."
