"""The refusals of a Kubernetes API server: the Status that it answers, in its words. It knows no requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

Object = dict[str, Any]


class Refused(Exception):
    """The server answers a Status.

    Attributes:
        status: The Status.
        code: Of HTTP.
        reason: In Kubernetes' words: NotFound, AlreadyExists, Invalid, …
    """

    def __init__(self, status: Object) -> None:
        super().__init__(status.get("message", ""))
        self.status = status
        self.code: int = status.get("code", 0)
        self.reason: str = status.get("reason", "")


class NotServed(Exception):
    """The server has no such path: it answers a line of text."""


class About(NamedTuple):
    """The object of a refusal: the group and the plural of its kind, and its name."""

    group: str
    plural: str
    name: str = ""

    @property
    def qualified(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def details(self, **more: Any) -> Object:
        told = {"name": self.name, "group": self.group, "kind": self.plural}
        return {name: value for name, value in told.items() if value} | more


class Fault(NamedTuple):
    """One field that is refused."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"


def refusal(code: int, reason: str, message: str, details: Object | None = None) -> Refused:
    told = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    named = ({"reason": reason} if reason else {}) | ({"details": details} if details else {})
    return Refused({**told, **named, "code": code})


def absent(about: About) -> Refused:
    return refusal(404, "NotFound", f'{about.qualified} "{about.name}" not found', about.details())


def exists(about: About) -> Refused:
    return refusal(409, "AlreadyExists", f'{about.qualified} "{about.name}" already exists', about.details())


def conflict(about: About, why: str) -> Refused:
    message = f'Operation cannot be fulfilled on {about.qualified} "{about.name}": {why}'
    return refusal(409, "Conflict", message, about.details())


def forbidden(about: About, why: str, **more: Any) -> Refused:
    named = f' "{about.name}"' if about.name else ""
    return refusal(403, "Forbidden", f"{about.qualified}{named} is forbidden: {why}", about.details(**more))


def invalid(about: About, faults: Sequence[Fault], webhook: str = "") -> Refused:
    """Refuse an object for its fields. `about`: with the name of its kind, not the plural."""
    listed = [f"{fault.field}: {fault.message}" for fault in faults]
    told = listed[0] if len(listed) == 1 else f"[{', '.join(listed)}]"
    causes = [{"reason": fault.reason, "message": fault.message, "field": fault.field} for fault in faults]
    by = f'admission webhook "{webhook}" denied the request: ' if webhook else ""
    message = f'{by}{about.qualified} "{about.name}" is invalid: {told}'
    return refusal(422, "Invalid", message, about.details(causes=causes))


def bad(message: str) -> Refused:
    return refusal(400, "BadRequest", message)


def denied(webhook: str, why: str) -> Refused:
    return refusal(403, "Forbidden", f'admission webhook "{webhook}" denied the request: {why}')


def unauthorized() -> Refused:
    return refusal(401, "Unauthorized", "Unauthorized")


def expired() -> Refused:
    message = (
        "The provided continue parameter is too old to display a consistent list result. You can start a new list "
        "without the continue parameter."
    )
    return refusal(410, "Expired", message)


def busy(seconds: int) -> Refused:
    message = "the server has received too many requests and has asked us to try again later"
    return refusal(429, "TooManyRequests", message, {"retryAfterSeconds": seconds})


def unanswered(webhook: str) -> Refused:
    """Refuse what a webhook should see that is away."""
    why = f'failed calling webhook "{webhook}": failed to call webhook: Post "https://127.0.0.1:9443/?timeout=10s": '
    message = f"Internal error occurred: {why}dial tcp 127.0.0.1:9443: connect: connection refused"
    return refusal(500, "InternalError", message, {"causes": [{"message": why.rstrip(": ")}]})
