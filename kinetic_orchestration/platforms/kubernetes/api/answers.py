"""The meaning of an answer of a Kubernetes API server: an object, or one error of a few kinds. Pure.

It tells the server's own refusals from what somebody else on the way says (a proxy, a portal, another server at this
address): of the latter, none may pass for "there is no such object". It does not know which request is sent again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kinetic_orchestration.errors import KineticError
from kinetic_orchestration.protocol.system import escaping

# Kinds of errors: what a caller does about it.
ABSENT: Final = "absent"  # there is no such object
UNSERVED: Final = "unserved"  # the server has no such kind of objects: a CRD is not installed
EXISTS: Final = "exists"  # the name is taken
CONFLICT: Final = "conflict"  # it is another object, or changed meanwhile
INVALID: Final = "invalid"  # the object or the request
FORBIDDEN: Final = "forbidden"
UNAUTHENTICATED: Final = "unauthenticated"
GONE: Final = "gone"  # the list cannot be continued
BUSY: Final = "busy"  # later: too many requests, or a part of the server or a webhook is down
UNREACHABLE: Final = "unreachable"  # no answer, or none of this server

_KINDS: Final = {401: UNAUTHENTICATED, 403: FORBIDDEN, 404: ABSENT, 409: CONFLICT, 410: GONE, 408: BUSY, 429: BUSY}
_PLAIN: Final = (401, 429)  # an API server itself may say these without JSON
# https://github.com/kubernetes/kubernetes: http.NotFound, for a group or a path that is not served.
_NOT_SERVED: Final = b"404 page not found"
_MARKS: Final = frozenset({"kind", "gitVersion"})  # one of which any object has, and the answer to /version
LONGEST: Final = 1000  # characters of a message
# kubernetes/apiserver, handlers/fieldmanager: of an apply with a field that there is not, with the status 500.
_UNTYPED: Final = "failed to create typed patch object"

Object = dict[str, Any]


def number_of(version: str) -> tuple[int, ...]:
    """Return the first two numbers of v1.36.3-gke.5; (0,) if it is none."""
    match = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0,)


class Cause(NamedTuple):
    """One field that was refused: `spec.replicatedJobs[0].name`."""

    field: str
    reason: str
    message: str


class ApiError(KineticError):
    """A request to Kubernetes that was refused, or not answered.

    Attributes:
        kind: One of this module's kinds.
        status: Of HTTP; 0 without an answer.
        reason: In Kubernetes' words: NotFound, AlreadyExists, Invalid, …
        words: The server's message.
        details: Which object it is about: its name, group and kind.
        causes: The fields that were refused.
        retry_after: Seconds after which the server wants to be asked again; 0.0 if it did not say.
        passing: True if the same request may succeed in a moment.
        is_lost: True if the cluster may be elsewhere by now, or have another certificate.
    """

    def __init__(
        self,
        message: str,
        kind: str,
        *,
        status: int = 0,
        reason: str = "",
        words: str = "",
        details: Mapping[str, Any] | None = None,
        retry_after: float = 0.0,
        passing: bool = False,
        is_lost: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.reason = reason
        self.words = words
        self.details = details or {}
        self.retry_after = retry_after
        self.passing = passing
        self.is_lost = is_lost

    @property
    def is_quota(self) -> bool:
        """True if a ResourceQuota leaves no room now, or has not been counted yet."""
        return "exceeded quota" in self.words or "status unknown for quota" in self.words

    @property
    def lacks_namespace(self) -> bool:
        """True if nothing can be created in the namespace, as it is being deleted or does not exist."""
        is_going = any(cause.reason == "NamespaceTerminating" for cause in self.causes)
        return is_going or (self.kind == ABSENT and self.details.get("kind") == "namespaces")

    @property
    def causes(self) -> tuple[Cause, ...]:
        found = self.details.get("causes")
        listed = found if isinstance(found, list) else []
        return tuple(
            Cause(escaped(one.get("field")), escaped(one.get("reason")), escaped(one.get("message")))
            for one in listed
            if isinstance(one, dict)
        )


class Row(NamedTuple):
    """An object as kubectl prints it.

    Attributes:
        name: Its name.
        cells: What else is printed, without its age; of a server that makes no tables, its version.
    """

    name: str
    cells: tuple[str, ...]


class Reply(NamedTuple):
    """An answer of HTTP."""

    status: int
    headers: Mapping[str, str]  # by lower-case names
    body: bytes


def read(reply: Reply, asked: str) -> Object:
    """Return the object. Raises ApiError for any other answer.

    `asked`: the request, for sentences: GET https://1.2.3.4/api/v1/pods.
    """
    found = _json(reply.body)
    if 200 <= reply.status < 300 and not _MARKS.isdisjoint(found):
        return found
    if found.get("kind") == "Status":
        raise _refusal(reply, found, asked)
    if reply.status == 404 and reply.body.strip() == _NOT_SERVED and "audit-id" in reply.headers:
        raise _refusal(reply, {"reason": "NotFound", "message": _NOT_SERVED.decode()}, asked)
    if reply.status in _PLAIN or reply.status >= 500:
        raise _refusal(reply, {"message": _quoted(reply.body)}, asked)
    raise foreign(reply, asked)


def passed_on(reply: Reply, asked: str) -> Reply:
    """Return the answer of what is behind the server, whatever it says. Raises ApiError for one of the server "
    "itself."""
    found = _json(reply.body) if reply.status >= 400 else {}
    if found.get("kind") == "Status" and found.get("apiVersion") == "v1":
        raise _refusal(reply, found, asked)
    if reply.status == 401:
        raise _refusal(reply, {"message": _quoted(reply.body)}, asked)
    return reply


def rivals(error: ApiError) -> tuple[tuple[str, str], ...]:
    """Return the fields for which an apply was refused, each with the manager that holds it."""
    found = (cause for cause in error.causes if cause.reason == "FieldManagerConflict")
    return tuple((cause.field, cause.message.removeprefix("conflict with ").replace('"', "")) for cause in found)


def rows(page: Object) -> list[Row]:
    """Return the rows of a table, or of a list of objects."""
    if page.get("kind") != "Table":
        found = [one["metadata"] for one in page.get("items") or ()]
        return [Row(one["name"], (str(one.get("resourceVersion")),)) for one in found]
    columns = [column["name"] for column in page["columnDefinitions"]]
    name = columns.index("Name")
    kept = [at for at, column in enumerate(columns) if column not in ("Name", "Age")]
    return [
        Row(cells[name], tuple(str(cells[at]) for at in kept))
        for cells in (row["cells"] for row in page.get("rows") or ())
    ]


def foreign(reply: Reply, asked: str) -> ApiError:
    """The error for an answer that no Kubernetes gives: whoever gave it, the cluster was not asked."""
    to = f" to {escaped(reply.headers['location'])[:200]}" if "location" in reply.headers else ""
    return ApiError(
        f"{asked} was answered by something that is no Kubernetes API: status {reply.status}{to}: "
        f"{_quoted(reply.body) or 'nothing'!r}. A proxy, a portal that wants a login, or another server may be at this "
        "address: compare it with 'kubectl cluster-info'.",
        UNREACHABLE,
        status=reply.status,
        words=_quoted(reply.body),
    )


def _refusal(reply: Reply, said: Mapping[str, Any], asked: str) -> ApiError:
    reason, words = escaped(said.get("reason")), escaped(said.get("message"))
    found = said.get("details")
    details: Mapping[str, Any] = found if isinstance(found, dict) else {}
    kind = INVALID if _UNTYPED in words else _kind(reply.status, reason, details)
    return ApiError(
        f"Kubernetes refused {asked}: {reply.status} {reason}: {words.rstrip('.')}.",
        kind,
        status=reply.status,
        reason=reason,
        words=words,
        details=details,
        retry_after=_seconds(reply.headers.get("retry-after")) or _seconds(details.get("retryAfterSeconds")),
        passing=kind == BUSY,
    )


def _kind(status: int, reason: str, details: Mapping[str, Any]) -> str:
    if status == 409 and reason == "AlreadyExists":
        return EXISTS
    if status == 404 and not details.get("name"):
        return UNSERVED
    return _KINDS.get(status) or (BUSY if status >= 500 else INVALID)


def _json(body: bytes) -> Object:
    """A body that is an object of JSON; of any other, nothing."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def escaped(value: object) -> str:
    """Return words of others, bounded, as a terminal may show them."""
    return escaping.text(str(value or "")[:LONGEST])


def _quoted(body: bytes) -> str:
    return " ".join(escaped(body[:400].decode("utf-8", "replace")).split())[:200]


def _seconds(value: object) -> float:
    """A number of seconds; 0.0 for a date or nothing."""
    try:
        return max(0.0, float(str(value)))
    except ValueError:
        return 0.0
