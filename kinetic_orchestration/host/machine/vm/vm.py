"""A machine that was made for one host, a VM of the cloud, with an account and an identity of its own.

It may be taken away. What it is told comes from its metadata server, and its requests are made as its own account.
`node` and `instance` are the two kinds.
"""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.machine import Machine, Unanswered, Unauthorized, Unplaced
from kinetic_orchestration.protocol import schema
from kinetic_orchestration.protocol.system.parallel import Ahead, Several

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from kinetic_orchestration.protocol.assignment import Assignment
    from kinetic_orchestration.protocol.wire.task import Task

WAIT = 60  # seconds for which the metadata server may hold back an answer without news
SILENCE = 60.0  # seconds of a metadata server that a host waits for
COMPANY = 300.0  # seconds within which the API has the addresses of other hosts
DEAD = ("TERMINATED", "STOPPED", "SUSPENDED")  # states of an instance that does not come back
HUGE_PAGES = "sys/kernel/mm/transparent_hugepage/enabled"
SECRETS_AT_ONCE = 8

PREEMPTED = "instance/preempted"
# Events that end this VM, by the path of the notice: the value to wait for, and its description.
NOTICES = {
    PREEMPTED: ("TRUE", "this VM is being preempted"),
    "instance/maintenance-event": ("TERMINATE_ON_HOST_MAINTENANCE", "this VM is being ended for maintenance"),
}


class Vm(Machine):
    """A VM of the cloud. Its requests are made as its own account. The kinds of them know their service's API."""

    is_own = attests = shares_cache = True

    def __init__(self, at: Assignment) -> None:
        super().__init__(at)
        self.requests_address = at.machines > 1
        self._rights: tuple[Ahead[str], Ahead[dict[str, str]]] | None = None

    def address(self) -> str:
        if self._at.machines == 1:
            return super().address()
        found = (bootstrap.metadata("instance/network-interfaces/0/ip", patience=SILENCE) or "").strip()
        if not found:
            raise Unplaced(
                f"the metadata server of host {self._at.host} did not say within {SILENCE:.0f} s which "
                "address this machine has, so that the other hosts could not have reached it. Nothing was run"
            )
        return found

    def addresses(self, task: Task) -> list[str]:
        try:
            return self._addresses(task.slices)
        except OSError as error:
            raise Unanswered(str(error)) from None

    def begin(self, task: Task) -> None:
        """Ask for the account's rights and the secrets, each on a thread of its own."""
        self._rights = Ahead(self._check_rights, task.project), Ahead(secrets_of, task.secrets)
        if task.accelerator.kind == "tpu":
            _want_huge_pages()

    def secrets(self, note: Callable[[str], None]) -> dict[str, str]:
        assert self._rights is not None
        rights, secrets = self._rights
        try:
            unknown, found = rights.result(), secrets.result()
        except OSError as error:
            raise Unanswered(str(error)) from None
        if unknown:
            note(unknown)
        return found

    def suits(self, task: Task, python: str, *, foreign: bool) -> bool:
        """Return True for a command, and for a function whose environment is this Python's own."""
        wanted = task.environment
        own = (wanted is None or wanted.is_bare) and task.python in ("", python)
        return bool(task.argv) or (own and not (foreign and wanted is not None))

    def watch(self, report: Callable[[str], None]) -> None:
        """Watch for notices in the background, and call `report` once for each."""
        for path in NOTICES:
            threading.Thread(target=self._watch, args=(path, report), name="kinetic-notices", daemon=True).start()

    def _watch(self, path: str, report: Callable[[str], None]) -> None:
        _wait_for(path)
        report(self._noticed(path))

    def notice(self) -> str:
        for path, (awaited, _) in NOTICES.items():
            if said(path) == awaited:
                return self._noticed(path)  # as if it had been watched: it came just now
        return ""

    def _noticed(self, path: str) -> str:
        """Take in a notice, for `lead` and `counts_as`. Return what it says, for users."""
        return NOTICES[path][1]

    def start_facts(self) -> dict[str, float | str]:
        return {"up": _age(self._at.home)}

    def attest(self, claim: str) -> str:
        from kinetic_orchestration.host.machine import attestation

        return attestation.attest(claim)

    def _addresses(self, slices: int) -> list[str]:
        """Return the addresses of all hosts, in their order. Raises Unauthorized, OSError.

        Addresses that hosts wrote to the store are not used: a process that can write there could have all programs
        join its own machine.
        """
        raise NotImplementedError

    def _check_rights(self, project: str) -> str:
        """Raise Unauthorized if this VM could not delete its own slice in the end. Return what could not be checked."""
        raise NotImplementedError


def _want_huge_pages() -> None:
    """Have the kernel give large pages without being asked, where it may be told so: JAX on TPUs wants it."""
    try:
        with open(os.path.join(bootstrap.root(), HUGE_PAGES), "w", encoding="ascii") as file:
            file.write("always")
    except OSError:
        pass


def _age(home: str) -> float:
    """Return the seconds since the machine's first boot, at which the startup script armed its deadline."""
    try:
        return max(0.0, time.time() - os.stat(os.path.join(home, "deadline.lock")).st_mtime)
    except OSError:
        return 0.0


def said(path: str) -> str:
    """Return what the metadata have at a path now; "" for nothing, or no answer."""
    return (bootstrap.metadata(path, patience=0.0, timeout=1.0) or "").strip()


def _wait_for(path: str) -> None:
    """Return once the metadata have the value of a notice."""
    query, (awaited, _) = f"?wait_for_change=true&timeout_sec={WAIT}", NOTICES[path]
    sent, found = "0", ""  # of no value: so the first answer comes at once, and no change after it is missed
    while found.strip() != awaited:
        began = time.monotonic()
        reply = bootstrap.metadata_reply(
            path + query + (f"&last_etag={sent}" if sent else ""), timeout=WAIT + 10.0, patience=5.0
        )  # fmt: skip
        etag = sent
        if reply is not None:
            found, etag = reply.data.decode("utf-8", "replace"), reply.headers.get("ETag", "")
        if etag == sent and time.monotonic() - began < 1.0:  # a server that does not wait
            time.sleep(1.0)
        sent = etag


def account_name() -> str:
    """Return who this VM's requests are made as."""
    return (bootstrap.metadata(f"{bootstrap.SCOPE}/email", patience=5.0) or "of this VM").strip()


def _account() -> str:
    return f"the service account {account_name()}"


def addresses_of_slices(
    at: Assignment, slices: int, of_others: Callable[[Sequence[int], int], Sequence[list[str]]]
) -> list[str]:
    """Return the addresses of all hosts, in their order: those of this slice from its metadata, if these have them all.

    of_others: Returns those of other slices, by their numbers and the hosts of each.
    """
    each = at.hosts // slices
    mine = bootstrap.addresses(bootstrap.metadata("instance/attributes/worker-network-endpoints") or "")
    found = {at.host // each: mine} if len(mine) == each else {}
    others = [number for number in range(slices) if number not in found]
    found |= zip(others, of_others(others, each) if others else (), strict=True)
    return [address for number in range(slices) for address in found[number]]


def addresses_when_all_there(
    url: str,
    count: int,
    read: Callable[[Any], list[str]],
    denied: Callable[[str], str],
    gone: Callable[[bootstrap.Reply], str] = lambda _: "",
) -> list[str]:
    """Return the addresses in an answer of an API, once there are so many. Raises Unauthorized, OSError.

    read: Takes them from the answer's JSON. denied: Returns the sentence for an account that may not read it, with the
    API's reason. gone: Returns why no answer will have them any more, or "".
    """
    reply = bootstrap.Reply(0, {}, b"")
    for _ in bootstrap.tries(COMPANY):
        reply = bootstrap.request("GET", url, patience=0.0)
        if reply.status == 403 and not reply.passes():
            raise Unauthorized(denied(reply.reason()))
        try:
            found = read(reply.json()) if reply.status == 200 else []
        except (ValueError, LookupError, TypeError, AttributeError):  # an unreadable answer may be transient
            found = []
        if why := gone(reply):
            raise OSError(why)
        if len(found) == count and all(found):
            return found
    said = reply.reason() if reply.status != 200 else "it has not all of its addresses"
    name = url.partition("/projects/")[2]
    raise OSError(f"where the hosts of projects/{name} are was not told within {COMPANY:.0f} s: {said}")


def missing_rights(url: str, wanted: Sequence[str]) -> tuple[list[str], str]:
    """Return which rights this VM's account lacks there, and what could not be checked."""
    body = json.dumps({"permissions": wanted}).encode()
    reply = bootstrap.request("POST", url, body, {"Content-Type": "application/json"}, patience=10.0)
    unknown = "whether this VM may delete its slice could not be checked: "
    if reply.status != 200:
        return [], unknown + reply.reason()
    try:
        return sorted(set(wanted) - set(reply.json().get("permissions", ()))), ""
    except (ValueError, TypeError, AttributeError):
        return [], f"{unknown}the answer cannot be read: {reply.reason()}"


def secrets_of(wanted: Mapping[str, str], account: Callable[[], str] = _account) -> dict[str, str]:
    """Return the values of secrets, by the variables that hold them. They are passed to the program only.

    Args:
        wanted: The name of each secret, by its variable.
        account: Returns what reads them, in messages.

    Raises:
        Unauthorized: One is not there, or may not be read.
        OSError: None could be read now.
    """

    def value(variable: str) -> str:
        return _secret(variable, wanted[variable], account)

    return dict(zip(wanted, Several(value, list(wanted), most=SECRETS_AT_ONCE).result(), strict=True))


def _secret(variable: str, resource: str, account: Callable[[], str]) -> str:
    try:
        schema.secret_ref(resource)
    except schema.Wrong as wrong:
        raise Unauthorized(
            f"what {variable} is to hold is not the name of a secret: {schema.short(wrong.value)}"
        ) from None
    name = resource if "/versions/" in resource else f"{resource}/versions/latest"
    reply = bootstrap.request("GET", f"{bootstrap.endpoint('secretmanager')}/v1/{quote(name, safe='/:')}:access")
    if reply.status in bootstrap.PASSING or (reply.status == 401 and not bootstrap.has_token()):
        raise OSError(f"the secret {resource} for {variable} could not be read within a minute: {reply.reason()}")
    if reply.status != 200:
        told = f"the secret {resource} for {variable} could not be read: {reply.reason().rstrip('.')}"
        if reply.status == 404:
            raise Unauthorized(f"{told}; there is no such secret, or it has no version: create it")
        raise Unauthorized(f"{told}; {account()} needs roles/secretmanager.secretAccessor on it")
    try:
        return base64.b64decode(reply.json()["payload"]["data"]).decode("utf-8", "surrogateescape")
    except (ValueError, KeyError, TypeError):  # the answer is not quoted: it may hold a part of the secret
        raise OSError(f"the answer to the request for the secret {resource} for {variable} cannot be read") from None
