"""Startup script of a VM, run at each boot: it arms the VM's deletion, fetches the agent, and becomes it.

The source of this module is the startup script, so it stands alone: the standard library of Python 3.10, and nothing of
this package. The agent imports it for the operations of a VM: query its metadata server, call Google's APIs with its
own account, delete its own slice. Its messages go to the serial console.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import os
import random
import re
import sys
import time
import zipimport
from collections import namedtuple
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, NoReturn

PASSING = frozenset({0, 408, 429, 500, 502, 503, 504})  # 0: there was no answer
FETCH_PATIENCE = 600.0
PIECE = 1 << 20
LARGEST = 64 << 20  # bytes of an answer: nothing that is asked for here has as many, the agent included
PULL_PATIENCE = 300.0
RETRY = 30.0
TRIES = 10  # to delete other hosts before this one goes alone
LAST_WORDS = 15.0  # of the other hosts, when one has lost its container in mid-run
CLOCK_AGE = 900.0
FIRST_WORD = 300.0  # for that long a machine asks for the store's time before it trusts its own clock
NAME = "kinetic_orchestration.host.machine.bootstrap"  # of this module in the agent
SCOPE = "instance/service-accounts/default"
GROUPS = "/instanceGroupManagers/"

_GOING = re.compile(rb'"STOPPING"|"deleting": *[1-9]')  # an instance, or members of a group

_token: tuple[str, float] = ("", 0.0)
_heard: tuple[float, float] = (0.0, 0.0)  # the store's time, and this machine's monotonic time when it arrived


class Reply(namedtuple("Reply", "status headers data")):
    """An answer. Without one, the status is 0 and the data says why."""

    __slots__ = ()
    status: int
    headers: Mapping[str, str]
    data: bytes

    def json(self) -> Any:
        return json.loads(self.data or b"{}")

    def passes(self) -> bool:
        """Return True if another try may have another answer. Compute Engine says 403 where others say 429."""
        return self.status in PASSING or (self.status == 403 and b"ateLimitExceeded" in self.data)

    def reason(self) -> str:
        """Return the API's error message, or the start of its answer, or the status."""
        try:
            return str(self.json()["error"]["message"])
        except (ValueError, KeyError, TypeError):
            return self.data[:500].decode("utf-8", "replace").strip() or f"status {self.status}"


# ---- the machine ----


def root() -> str:
    """Return the folder below which all is written: `/`, or another for an emulated machine."""
    return os.environ.get("KINETIC_ROOT") or "/"


def home() -> str:
    return os.path.join(root(), "var", "lib", "kinetic")


def say(text: str) -> None:
    sys.stdout.write(f"kinetic: {text}\n")
    sys.stdout.flush()


def name_process(name: str) -> None:
    """Set the name that `ps` and `top` show."""
    try:
        with open("/proc/self/comm", "w", encoding="ascii") as file:
            file.write(name)
    except OSError:  # a system that knows no such thing
        pass


def endpoint(service: str) -> str:
    """Return the URL of a Google API, such as `storage`, `tpu` or `compute`."""
    given = os.environ.get("STORAGE_EMULATOR_HOST" if service == "storage" else "KINETIC_EMULATOR", "").rstrip("/")
    if given:
        return given if "://" in given else f"http://{given}"
    return f"https://{service}.googleapis.com"


# ---- requests ----


def tries(patience: float, longest: float = 8.0) -> Iterator[None]:
    """Yield once, and again after growing pauses until the patience ends."""
    deadline, pause = time.monotonic() + patience, 0.1
    while True:
        yield
        wait = pause * (0.5 + random.random())
        if time.monotonic() + wait > deadline:
            return
        time.sleep(wait)
        pause = min(2 * pause, longest)


def exchange(
    method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, timeout: float = 30.0
) -> Reply:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=timeout)
    try:
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request(method, target or "/", body, dict(headers or {}))
        answer = connection.getresponse()
        return Reply(answer.status, answer.headers, body_of(answer, LARGEST))  # a longer one fails its digest
    except (OSError, http.client.HTTPException) as error:
        return Reply(0, {}, f"{parts.netloc}: {type(error).__name__}: {error}".encode())
    finally:
        connection.close()


def body_of(answer: http.client.HTTPResponse, most: int) -> bytes:
    """Return an answer's body, or the first `most` bytes of it. Raises IncompleteRead if it broke off before."""
    pieces, size = [], 0
    while size < most and (piece := answer.read(min(most - size, PIECE))):
        pieces.append(piece)
        size += len(piece)
    body = b"".join(pieces)
    if size < most and answer.length:  # a read with a size does not check it
        raise http.client.IncompleteRead(body, answer.length)
    return body


def metadata(path: str, *, patience: float = 60.0, timeout: float = 10.0) -> str | None:
    """Return a value of the metadata server; None if there is none."""
    reply = metadata_reply(path, patience=patience, timeout=timeout)
    return None if reply is None else reply.data.decode("utf-8", "replace")


def metadata_reply(path: str, *, patience: float, timeout: float) -> Reply | None:
    """Return the metadata server's whole answer."""
    reply = ask_metadata(path, patience, timeout)
    return reply if _is_metadata(reply) else None


def ask_metadata(path: str, patience: float, timeout: float = 10.0) -> Reply:
    """Return the final answer of the metadata server."""
    reply = Reply(0, {}, b"")
    host = os.environ.get("GCE_METADATA_HOST") or os.environ.get("GCE_METADATA_IP") or "metadata.google.internal"
    for _ in tries(patience):
        reply = exchange(
            "GET", f"http://{host}/computeMetadata/v1/{path}", headers={"Metadata-Flavor": "Google"}, timeout=timeout
        )
        if reply.status not in PASSING:
            break
    return reply


def _is_metadata(reply: Reply) -> bool:
    return reply.status == 200 and reply.headers.get("Metadata-Flavor") == "Google"  # else a proxy, or a portal


def token(*, fresh: bool = False) -> str:
    """Return an access token of this VM's account, cached until it is about to expire; "" where none is given."""
    global _token  # noqa: PLW0603 - one account, one token
    text, until = _token
    if fresh or time.monotonic() > until:
        try:
            found = json.loads(metadata(f"{SCOPE}/token") or "{}")
            text, lasts = str(found.get("access_token", "")), float(found.get("expires_in", 0.0))
        except (ValueError, TypeError, AttributeError):  # nonsense
            text, lasts = "", 0.0
        _token = text, time.monotonic() + lasts - min(120.0, lasts / 2)
    return text


def has_account() -> bool:
    """Return False on an imitation of a machine without one."""
    imitated = "STORAGE_EMULATOR_HOST" in os.environ or "KINETIC_EMULATOR" in os.environ
    return not imitated or "GCE_METADATA_HOST" in os.environ


def has_token() -> bool:
    """Return True if the last request for a token returned one."""
    return bool(_token[0])


def gist(fields: Mapping[str, Any]) -> str:
    """Return the digest of a record's content, without its format and its seal."""
    said = {name: value for name, value in fields.items() if name not in ("seal", "sum")}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def sealed(key: str, text: str) -> str:
    """Return the seal of a text, made with the key."""
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def authorization(*, fresh: bool = False) -> dict[str, str]:
    found = token(fresh=fresh) if has_account() else ""
    return {"Authorization": f"Bearer {found}"} if found else {}


def request(
    method: str,
    url: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    patience: float = 60.0,
) -> Reply:
    """Send a request to a Google API as this VM; retry while the answer may pass."""
    reply, stale = Reply(0, {}, b""), False
    for _ in tries(patience):
        reply = exchange(method, url, body, {**(headers or {}), **authorization(fresh=stale)})
        stale = reply.status == 401 and not stale
        if not reply.passes() and not stale:
            break
    return reply


def multipart(facts: Mapping[str, Any]) -> tuple[bytes, bytes, dict[str, str]]:
    """Return what comes before and after an object's bytes in the request that creates it, and its headers."""
    edge = os.urandom(16).hex()
    head = (
        f"--{edge}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(facts)}\r\n"
        f"--{edge}\r\nContent-Type: application/octet-stream\r\n\r\n"
    )
    tail = f"\r\n--{edge}--\r\n"
    return head.encode(), tail.encode(), {"Content-Type": f"multipart/related; boundary={edge}"}


def store_time() -> float:
    """Return the store's time, by which every deadline counts. While the store does not answer, the monotonic clock
    advances its last time: this machine's own clock may be wrong by more than a job has left, and counts only if the
    store has never answered.
    """
    global _heard  # noqa: PLW0603 - one store, one clock
    for _ in tries(0.0 if _heard[0] else FIRST_WORD):
        date = exchange("GET", endpoint("storage") + "/storage/v1/b/-", headers=authorization()).headers.get("Date")
        if date:
            _heard = parsedate_to_datetime(date).timestamp(), time.monotonic()
            break
    told, then = _heard
    return told + time.monotonic() - then if told else time.time()


# ---- the end ----


def parts(resource: str, number: int = 1, own: int = 0, node: str = "") -> list[str]:
    """Return the URLs of what is deleted with a resource, in that order: what this host runs on is the last.

    A queued resource has this host's `node`; several instances or groups are `NAME-0`, `NAME-1`, ….
    """
    parent, kind, name = resource.rsplit("/", 2)
    if kind == "queuedResources":
        return [f"{endpoint('tpu')}/v2/{resource}?force=true", f"{endpoint('tpu')}/v2/{parent}/nodes/{node or name}"]
    url = f"{endpoint('compute')}/compute/v1/{resource}"
    if number == 1:
        return [url]
    return [f"{url}-{index}" for index in [*range(own), *range(own + 1, number), own]]


def delete(url: str) -> int:
    """Request the deletion of a part of this VM's slice; return the answer's status."""
    reply, name = request("DELETE", url), url.partition("?")[0]
    if reply.status == 403 and not reply.passes():
        name = name[name.index("projects/") :]
        role = "roles/tpu.admin" if "/locations/" in name else "the role of docs/cloud/compute.md"
        say(f"this VM may not delete its slice: {reply.reason()}. Grant its service account {role}. UNTIL SOMEBODY "
            f"DELETES {name}, IT COSTS MONEY")  # fmt: skip
    elif reply.status not in (200, 404):
        say(f"{name} was not deleted: {reply.reason()}")
    return reply.status


def end_slice(
    resource: str, number: int = 1, own: int = 0, longest: float = 60.0, taken: Callable[[], object] = lambda: None
) -> None:
    """Delete all of this VM's own slice, and do not stop before it is gone, which this process does not live to see.

    One answer to a delete call does not say so. This host goes last, or alone after many tries. `taken` is called once,
    after the first delete call that was accepted.
    """
    node = ""
    if "/queuedResources/" in resource:
        node = _tpu_env(metadata("instance/attributes/tpu-env", patience=1.0)).get("NODE_ID", "")
    if GROUPS in resource:  # which group is its own was not known when the deletion was armed
        name, base = metadata("instance/name", patience=1.0) or "", resource.rpartition("/")[2]
        own = next((index for index in range(number) if name.startswith(f"{base}-{index}-")), own)
    *others, last = parts(resource, number, own, node)
    pause, told, tried = 2.0, [taken], 0
    while True:
        left = [url for url in others if not _is_gone(url, told)]
        tried += "/zones/" in resource
        if (not left or tried > TRIES) and _is_gone(last, told):
            return
        time.sleep(pause)
        pause = min(1.5 * pause, longest)


def _is_gone(url: str, taken: list[Callable[[], object]]) -> bool:
    """Try once more to delete it. Returns True if it is gone, or of Compute Engine and on its way; no answer, however
    strange, ends the tries.
    """
    try:
        status = delete(url)
        if status == 200 and taken:
            taken.pop()()
        if status == 404 or (status == 200 and "/zones/" in url):
            found = request("GET", url.partition("?")[0], patience=10.0)
            # Without the right to read it (403) the answer to the delete call decides.
            going = found.status == 200 and bool(_GOING.search(found.data))
            return going or (status == 404 and found.status != 200 and not found.passes())
    except Exception as error:
        try:
            say(f"{url} could not be deleted yet: {type(error).__name__}: {error}")
        except OSError:  # the console has no reader any longer
            pass
    return False


def arm(slice_: tuple[str, int, int], deadline: float) -> None:
    """Start a process that deletes the slice at the deadline, whatever happens to all others."""
    import fcntl

    if os.fork():
        if os.wait()[1]:
            raise Failed(f"the deletion of {slice_[0]} could not be armed: this machine starts no process for it")
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
    except OSError:
        os._exit(1)
    name_process("kinetic-end")
    try:
        lock = os.open(os.path.join(home(), "deadline.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of two boots that overlap, one is enough
        _take_console()
    except BlockingIOError:
        os._exit(0)
    except OSError:
        pass  # a disk that is full keeps no slice alive
    while not _is_deleted(slice_, deadline):
        time.sleep(10.0)
    os._exit(0)


def _is_deleted(slice_: tuple[str, int, int], deadline: float) -> bool:
    try:
        while (left := deadline - store_time()) > 0:
            time.sleep(min(max(left, 1.0), CLOCK_AGE))  # that clock has whole seconds
        say(f"the deadline has passed: {slice_[0]} is deleted")
        end_slice(*slice_)
    except Exception:  # any error: there may be no other process left to delete the slice
        return False
    return True


def _take_console() -> None:
    """Redirect the output to the console: who started this script waits for its end."""
    null = os.open("/dev/null", os.O_RDWR)
    try:
        console = os.open(os.path.join(root(), "dev", "console"), os.O_WRONLY | os.O_NOCTTY)
    except OSError:
        console = os.open(os.path.join(home(), "console"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for end, wanted in ((0, null), (1, console), (2, console)):
        os.dup2(wanted, end)


# ---- the beginning ----


class Failed(Exception):
    """The agent cannot start on this host; the message is for users."""

    cause = "infrastructure"
    what = "could not start"


class Unusable(Failed):
    """The agent cannot start on any host."""

    cause = "configuration"


class Changed(Unusable):
    """The stored content differs from what was submitted."""


class Ended(Failed):
    """The agent's container is gone without a report."""

    what = "has lost its container"

    def __init__(self, image: str, code: int, said: str) -> None:
        lacks = "could not select device driver" in said
        hint = f" (with cloud=Compute(image=…) name one with {_RUNTIME})" if lacks else _EXITS.get(code, "")
        super().__init__(f"docker run {image} ended with exit code {code}{hint}: {said or 'it said nothing'}")
        if code in (126, 127) or lacks:
            self.cause = Unusable.cause


_RUNTIME = "docker and NVIDIA's toolkit for it, such as family common-cu129-ubuntu-2204-nvidia-580 of ml-images"
# https://docs.docker.com/engine/containers/run/#exit-status
_EXITS = {
    125: " (docker itself failed)",
    **dict.fromkeys((126, 127), " (name an image that has Python 3.10 or later as python3)"),
    137: " (SIGKILL: perhaps the machine ran out of memory)",
}


def host_number(told: Mapping[str, Any]) -> int:
    """Return this VM's number among the hosts of all slices."""
    if "host" in told:
        return int(told["host"])
    environment = _tpu_env(metadata("instance/attributes/tpu-env"))
    name = metadata("instance/name") or "" if GROUPS in told["resource"] else ""
    worker = metadata("instance/attributes/agent-worker-number") or environment.get("WORKER_ID") or ""
    if not worker.strip():  # an older image: by this VM's own address
        known = addresses(metadata("instance/attributes/worker-network-endpoints") or "")
        own = metadata("instance/network-interfaces/0/ip") or ""
        # The first of a group is NAME-001.
        worker = str(known.index(own) if own in known else int(name.rpartition("-")[2] or 1) - 1)
    node = name or environment.get("NODE_ID", "")  # of several slices: BASE-0-001 in a group, or BASE-0
    prefix = str(told["resource"]).rpartition("/")[2] + "-"
    number = node[len(prefix) :].partition("-")[0] if told["slices"] > 1 and node.startswith(prefix) else ""
    return (int(number) if number.isdigit() else 0) * int(told["hosts_per_slice"]) + int(worker)


def _tpu_env(text: str | None) -> dict[str, str]:
    """Parse lines of `NAME: 'value'`."""
    pairs = (line.partition(":") for line in (text or "").splitlines())
    return {name.strip(): value.strip().strip("'\"") for name, _, value in pairs}


def addresses(endpoints: str) -> list[str]:
    """Return the workers' addresses, in their order. Two formats occur: `host,host` and `name:id:ip,…`."""
    return [entry.strip().split(":")[2 if entry.count(":") > 1 else 0] for entry in endpoints.split(",") if entry]


def fetch(store: str, digest: str, read: Callable[[], Reply] | None = None) -> str:
    """Return the path of the agent's zip on this disk, fetched if need be. Its digest must be the one in this VM's
    metadata. `read` gets it from a store that is not in Cloud Storage.
    """
    path = os.path.join(home(), "agent", f"{digest}.zip")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.exists(path):
        with open(path, "rb") as file:
            if hashlib.sha256(file.read()).hexdigest() == digest:
                return path
    for _ in range(2):  # it may have been damaged on its way here
        reply = read() if read else request("GET", blob(store, digest) + "?alt=media", patience=FETCH_PATIENCE)
        if reply.status != 200:
            raise Failed(f"the agent could not be fetched from {store}: {reply.reason()}")
        if hashlib.sha256(reply.data).hexdigest() == digest:
            break
    else:
        raise Changed(
            f"the agent in {store} is not the one that was submitted: its digest differs. It was not run, and is "
            "removed from the store: submit the job again"
        )
    with open(path + ".part", "wb") as file:
        file.write(reply.data)
    os.replace(path + ".part", path)
    return path


def blob(store: str, digest: str) -> str:
    return address(store, f"blobs/{digest[:2]}/{digest}")[0]


def address(store: str, name: str) -> tuple[str, str]:
    """Return the URL at which an object is read, and its full name in the bucket."""
    bucket, _, prefix = store.removeprefix("gs://").partition("/")
    full = f"{prefix}/{name}" if prefix else name
    return f"{endpoint('storage')}/storage/v1/b/{bucket}/o/{quote(full, safe='')}", full


def abort(told: Mapping[str, Any], host: int, reason: str, cause: str = Failed.cause) -> None:
    """End the attempt in the agent's place, unless another was first; until it has won a race, this slice's part."""
    _, full = address(told["store"], verdict_name(told))
    head, tail, kind = multipart({"name": full, "contentType": "application/octet-stream"})
    bucket = told["store"].removeprefix("gs://").partition("/")[0]
    request(
        "POST", f"{endpoint('storage')}/upload/storage/v1/b/{bucket}/o?uploadType=multipart&ifGenerationMatch=0",
        head + verdict(told, host, reason, cause) + tail, kind,
    )  # fmt: skip


def verdict_name(told: Mapping[str, Any]) -> str:
    if "rival" in told:
        parent = f"jobs/{told['job']}/in/attempts/{told['attempt']}"
        won = request("GET", address(told["store"], f"{parent}/won.json")[0] + "?alt=media").data
        if b'"rival":%d,' % told["rival"] not in won:
            return f"{parent}/lost-{told['rival']}.json"
    return f"jobs/{told['job']}/attempts/{told['attempt']}/verdict.json"


def verdict(told: Mapping[str, Any], host: int, reason: str, cause: str) -> bytes:
    """Return the record that ends the attempt."""
    fields = {
        "wire": told["wire"], "kind": "aborted", "writer": f"{told['boot']}/{host}/boot", "time": time.time(),
        "cause": cause, "host": host, "reason": reason,
    }  # fmt: skip
    if told.get("key"):
        fields["seal"] = sealed(told["key"], gist(fields))
    return json.dumps(fields).encode()


def agent_arguments(told: Mapping[str, Any], host: int) -> list[str]:
    """Return the agent's command line: its assignment."""
    run = os.path.join(home(), "run", f"{told['job']}-{told['attempt']}")
    os.makedirs(run, exist_ok=True)
    found = {name: told[name] for name in ("store", "job", "attempt", "hosts", "spec", "resource", "deadline")} | {
        "host": host, "slices": told.get("slices", 1), "processes": told.get("processes", 1),
        "choice": told.get("choice", 0), "rival": told.get("rival", -1), "boot": f"{told['boot']}/{host}", "run": run,
        "home": home(),
        "python": "" if told.get("image") else _python_ahead(told.get("python", "")),
        "marker": f"KINETIC_PLACEMENT={run}",
    }  # fmt: skip
    return [f"{name}={value}" for name, value in found.items()]


def _python_ahead(version: str | None) -> str:
    """Return the program's interpreter if it is known by now. A command ("") may use any; an environment that has yet
    to be built (None) has its own."""
    return "" if version is None else python_of(version) if version else sys.executable


def python_of(version: str) -> str:
    """Return an interpreter of this machine; "" if it has none of that version."""
    if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
        return getattr(sys, "_base_executable", "") or sys.executable
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        found = os.path.join(folder, f"python{version}")
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return found
    return ""


# Errors that no retry cures.
_REFUSED = (
    ("unauthorized", "denied", "forbidden", "authentication required", "no basic auth"),
    ("manifest unknown", "not found", "name unknown", "invalid reference format", "repository does not exist",
     "no matching manifest", "name invalid"),
)  # fmt: skip


def _pull(command: list[str], image: str) -> None:
    """Pull the image; retry while the answer may pass."""
    import subprocess

    said = ""
    for _ in tries(PULL_PATIENCE):
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        if done.returncode == 0:
            return
        said = done.stdout.decode("utf-8", "replace").strip()[-1000:] or f"exit code {done.returncode}"
        say(f"the image {image} could not be pulled: {said}")
        refused, unknown = (any(word in said.lower() for word in words) for words in _REFUSED)
        if refused:
            raise Unusable(
                f"the image {image} was refused by its registry: {said}\nGrant this VM's service account "
                "roles/artifactregistry.reader on the repository, or name another image"
            )
        if unknown:
            raise Unusable(f"there is no image {image}: {said}\nPush it, or name another one")
    kind = Unusable if "no such host" in said.lower() else Failed  # after so much time, there is no such registry
    raise kind(f"the image {image} could not be pulled within {PULL_PATIENCE:.0f} s: {said}")


def is_googles(registry: str) -> bool:
    """Return True if a registry is Google's, spoken to by HTTPS."""
    host, colon, port = registry.lower().partition(":")
    known = [domain for domain in ("pkg.dev", "gcr.io") if host == domain or host.endswith(f".{domain}")]
    return bool(known) and all(host.split(".")) and (not colon or port == "443")


def in_container(image: str, command: list[str], gpus: int = 0) -> list[str]:
    """Return the same command inside the named image, with this machine's devices and network."""
    import shutil

    docker = shutil.which("docker")
    if docker is None:
        raise Unusable(
            f"there is no docker on this VM to run {image} with: with cloud=TpuVm(runtime_version=…) choose a version "
            f"that has it, with cloud=Compute(image=…) one with {_RUNTIME}, or leave container_image out"
        )
    registry = image.partition("/")[0]
    login = ["--config", os.path.join(home(), "docker")]
    os.makedirs(login[1], mode=0o700, exist_ok=True)
    secret = os.path.join(login[1], "config.json")
    with open(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
        auths = {}
        if is_googles(registry):  # no other registry gets this VM's token
            auth = base64.b64encode(f"oauth2accesstoken:{token()}".encode()).decode()
            auths = {f"https://{registry}": {"auth": auth}}
        json.dump({"auths": auths}, file)
    say(f"the image {image} is pulled")
    try:
        _pull([docker, *login, "pull", "--quiet", image], image)
    finally:
        os.unlink(secret)
    told = [f"--env={name}" for name in sorted(os.environ) if name.startswith(("KINETIC_", "GCE_", "STORAGE_"))]
    flags = "--rm --interactive --privileged --network=host --ipc=host --ulimit=memlock=-1 --ulimit=nofile=1048576"
    told += [f"--volume={home()}:{home()}", *["--gpus=all"][: bool(gpus)]]
    return [docker, "run", *flags.split(), *told, "--entrypoint=python3", image, *command[1:]]


def main() -> NoReturn:
    while (told := _orders(found := ask_metadata("instance/attributes/kinetic", FETCH_PATIENCE))) is None:
        if found.status == 404:
            say("this VM is told nothing by its metadata (attribute kinetic): it does nothing")
            sys.exit(1)
        say(f"the metadata server does not say what this VM is to do, and is asked again: {found.reason()}")
        time.sleep(RETRY)
    host, several = 0, "slices" if GROUPS in told["resource"] else "hosts"
    each = int(told.get("processes") or 1)
    slice_ = told["resource"], int(told.get(several, 1)) // each, int(told.get("host", 0)) // each
    try:
        os.makedirs(home(), exist_ok=True)
        arm(slice_, float(told["deadline"]))
        say(f"the deletion of {told['resource']} is armed for {time.strftime('%FT%TZ', time.gmtime(told['deadline']))}")
        host = host_number(told)
        agent = fetch(told["store"], told["agent"])
        say(f"this is host {host} of {told['hosts']} of {told['job']}, attempt {told['attempt']}; the agent is here")
        command = [sys.executable, "-I", agent, *agent_arguments(told, host)]
        if told.get("gpus"):
            gpus: dict[str, Any] = {"__name__": "gpus"}
            exec(zipimport.zipimporter(os.path.join(agent, "site", *NAME.split(".")[:3], "vm")).get_code("gpus"), gpus)
            if lack := gpus["prepare"](told["gpus"] if told["image"] else 0, root(), say):
                raise Failed(lack)
        if told["image"]:
            command = in_container(told["image"], command, gpus=told.get("gpus", 0))
        private, end = os.pipe()
        os.write(end, json.dumps({"seal": {"key": told["key"]}} if told.get("key") else {}).encode())
        os.close(end)
        os.dup2(private, 0)
        if told["image"]:
            _contain(command, told["image"], told["resource"])
        _become(agent, command[2:])
    except Exception as error:  # a full disk, unreadable metadata, an agent that cannot start
        reason = str(error) if isinstance(error, (Failed, OSError)) else f"{type(error).__name__}: {error}"
        try:
            say(reason)
            what = getattr(error, "what", Failed.what)
            if cause := getattr(error, "cause", Failed.cause):
                abort(told, host, f"host {host} {what}: {reason}", cause)
            if isinstance(error, Changed):  # else it would never be sent again
                request("DELETE", blob(told["store"], told["agent"]), patience=10.0)
            if isinstance(error, Ended) and told["hosts"] > 1:
                time.sleep(LAST_WORDS)
        finally:
            end_slice(*slice_)
        sys.exit(1)


def _orders(reply: Reply) -> dict[str, Any] | None:
    """Return this VM's orders once they suffice to arm its deletion, else None."""
    try:
        told = reply.json() if _is_metadata(reply) else {}
        told["resource"].rsplit("/", 2)[1], float(told["deadline"])
        [int(told.get(name, 1)) for name in ("hosts", "host", "slices", "processes")]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):  # nothing, or nonsense
        return None
    found: dict[str, Any] = told
    return found


def _contain(command: list[str], image: str, resource: str) -> NoReturn:
    """Wait for the container and pass on its output. It exits with 0 once its agent has ended, whatever the job's
    outcome; for any other exit no agent is left to report it. Raises Ended.
    """
    import subprocess

    said = b""
    try:
        docker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0)
    except OSError as error:
        raise Failed(f"{command[0]} could not be started: {error.strerror}") from None
    with docker:
        assert docker.stdout is not None
        while data := docker.stdout.read(1 << 16):
            said = (said + data)[-2000:]
            try:
                os.write(1, data)
            except OSError:  # the console has no reader any longer
                pass
    if docker.returncode > 0:  # a signal ends docker's client alone, or with all of this machine
        ended = Ended(image, docker.returncode, said.decode("utf-8", "replace").strip())
        own = f"{endpoint('compute')}/compute/v1/{resource.rsplit('/', 2)[0]}/instances/{metadata('instance/name')}"
        if (metadata("instance/preempted", patience=0.0, timeout=1.0) or "").strip() == "TRUE":
            ended.cause = "preemption"  # a machine that goes down ends its containers first
        elif b'"STOPPING"' in request("GET", own, patience=9.0).data:
            ended.cause = ""  # whose doing it is, its zone knows
        raise ended
    sys.exit(0)


def _become(agent: str, argv: list[str]) -> NoReturn:
    """Run the agent, which keeps this module with its token."""
    own = os.path.join("site", *NAME.split(".")) + ".py"
    try:
        with open(__file__, "rb") as ours:
            if zipimport.zipimporter(agent).get_data(own).rstrip() == ours.read().rstrip():
                sys.modules[NAME] = sys.modules["__main__"]
    except OSError:  # an agent of another version, which has this module elsewhere or under another name
        pass
    run(agent, argv)


def run(agent: str, argv: list[str]) -> NoReturn:
    """Run the agent in this process. Its zip is not unpacked: hundreds of small files take a disk longer than all else
    on the way to the program."""
    code = zipimport.zipimporter(agent).get_code("__main__")
    sys.argv = argv
    exec(code, {"__name__": "__main__", "__file__": os.path.join(agent, "__main__.py")})  # its digest was verified
    raise AssertionError("the agent came back")


if __name__ == "__main__":
    main()
