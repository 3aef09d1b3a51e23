"""The calls of Compute Engine's REST API that the backend makes, on the session that the process keeps.

Google's own client library is not used: to import it takes 3.5 s and 165 MiB. Answers become the plain values of
`states`, errors the `Problem`s of `causes`. Of lists only the fields that are read are requested: an instance whole is
mostly its startup script.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.platforms.google import api_errors, credentials
from kinetic_orchestration.platforms.google.compute import causes
from kinetic_orchestration.platforms.google.compute.causes import Problem
from kinetic_orchestration.platforms.google.compute.states import Event, Vm
from kinetic_orchestration.platforms.google.rest.client import Answer, kept

SERVICE = "compute"
PAGE = 500  # the most that the API gives
MOST_PAGES = 200
READ_SECONDS = 20.0  # one read, with all its repetitions
WRITE_SECONDS = 40.0
SERIAL_BYTES = 8 << 10  # of a serial log, its end
_NOT_FOUND, _UNKNOWN_METHOD = 404, 501
_FIELDS = (
    "id,name,zone,status,labels,creationTimestamp,lastStartTimestamp,scheduling/provisioningModel,"
    "serviceAccounts/email,resourceStatus/scheduling/terminationTimestamp"
)
_EVENT_FIELDS = (
    "name,operationType,targetLink,user,status,statusMessage,insertTime,endTime,httpErrorStatusCode,error,zone"
)
_DISK_FIELDS = "name,zone,labels,creationTimestamp"


class Refused(Exception):
    """A call that the API refused, or to which no answer came."""

    def __init__(self, status: int, problems: list[Problem]) -> None:
        super().__init__(problems[0].message)
        self.status = status
        self.problems = problems

    @property
    def missing(self) -> bool:
        return self.status == _NOT_FOUND


class Disk(NamedTuple):
    name: str
    zone: str
    labels: Mapping[str, str]
    created: float


class Listing(NamedTuple):
    """The listed resources, and the zones that did not answer."""

    found: list[Any]
    silent: tuple[str, ...]


class Instances:
    """Acts with the credentials of whoever made it, on any thread. A call raises Refused, or CredentialsError."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._acting = credentials.as_now()

    def prepare(self) -> None:
        """Import what the first call needs, on a thread."""
        threading.Thread(target=_import, name="kinetic-imports", daemon=True).start()

    # Instances

    def insert(self, zone: str, body: Mapping[str, Any], request_id: str) -> Event:
        return _event(self._call("POST", f"{zone}/instances", body, {"requestId": request_id}))

    def get(self, path: str) -> Vm | None:
        found = self._found(path, {"fields": _FIELDS})
        return None if found is None else _vm(found)

    def delete(self, path: str) -> None:
        """Begin a deletion. What comes of it is seen by looking."""
        self._call("DELETE", path)

    def everywhere(self, project: str, label: str, value: str) -> Listing:
        """List the instances of all zones that have a label."""
        return self._aggregated(project, "instances", _FIELDS, f"labels.{label}={value}", _vm)

    def serial_end(self, path: str) -> str:
        """Return the end of the first serial port's output; "" if there is none."""
        found = self._found(f"{path}/serialPort", {"port": "1", "fields": "contents,next"})
        return str((found or {}).get("contents", ""))[-SERIAL_BYTES:]

    # Operations

    def events(self, zone: str, name: str) -> list[Event]:
        """Return the operations of one instance, the newest first."""
        wished = {"filter": f"targetLink:instances/{name}", "maxResults": str(PAGE)}
        listed = self._pages(f"{zone}/operations", {**wished, "fields": f"items({_EVENT_FIELDS}),nextPageToken"})
        found = [_event(item) for page in listed for item in page.get("items", ())]
        mine = [event for event in found if event.target == name]  # a name may begin with another one
        return sorted(mine, key=lambda event: event.began, reverse=True)

    # Disks

    def disk(self, path: str) -> Disk | None:
        found = self._found(path, {"fields": _DISK_FIELDS})
        return None if found is None else _disk(found)

    def disks(self, project: str, label: str, value: str) -> Listing:
        """List the disks of all zones that have a label."""
        return self._aggregated(project, "disks", _DISK_FIELDS, f"labels.{label}={value}", _disk)

    # What has to be there before

    def image(self, path: str) -> Mapping[str, Any]:
        """Return an image by its path, or the newest of a family."""
        return self._call("GET", path, None, {"fields": "name,family,diskSizeGb,architecture"})

    def machine_type(self, zone: str, name: str) -> Mapping[str, Any]:
        return self._call("GET", f"{zone}/machineTypes/{name}", None, {"fields": "name"})

    def subnetwork(self, path: str) -> Mapping[str, Any]:
        return self._call("GET", path, None, {"fields": "name,region"})

    def quotas(self, path: str) -> dict[str, tuple[float, float]]:
        """Return limit and usage of each quota that a project or one of its regions shows, by its metric."""
        found = self._call("GET", path, None, {"fields": "quotas"}).get("quotas", ())
        return {str(one.get("metric")): (float(one.get("limit", 0)), float(one.get("usage", 0))) for one in found}

    # The calls themselves

    def _found(self, path: str, params: Mapping[str, str]) -> Mapping[str, Any] | None:
        try:
            return self._call("GET", path, None, params)
        except Refused as refused:
            if refused.missing:
                return None
            raise

    def _aggregated(self, project: str, what: str, fields: str, chosen: str, read: Any) -> Listing:
        """List in one request for all zones: one that did not answer is told beside them, and is not empty."""
        wished = f"items/*/{what}({fields}),items/*/warning/code,nextPageToken,unreachables"
        params = {"filter": chosen, "maxResults": str(PAGE), "fields": wished}
        found: list[Any] = []
        silent: set[str] = set()
        for page in self._pages(f"projects/{project}/aggregated/{what}", params):
            silent |= {_last(scope) for scope in page.get("unreachables", ())}
            for scope, listed in (page.get("items") or {}).items():
                found += [read(item) for item in listed.get(what, ())]
                if (listed.get("warning") or {}).get("code") == "UNREACHABLE":
                    silent.add(_last(scope))
        return Listing(found, tuple(sorted(silent)))

    def _pages(self, path: str, params: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
        token = ""
        for _ in range(MOST_PAGES):
            page = self._call("GET", path, None, {**params, "pageToken": token} if token else params)
            yield page
            if not (token := str(page.get("nextPageToken") or "")):
                return
        raise Refused(0, [Problem("", f"the list {path} has no end after {MOST_PAGES} pages", api_errors.UNAVAILABLE)])

    def _call(
        self, method: str, path: str, body: Any = None, params: Mapping[str, str] | None = None
    ) -> Mapping[str, Any]:
        within = READ_SECONDS if method == "GET" else WRITE_SECONDS
        with self._acting():
            api = kept(self._settings)
        answer = api.call(method, SERVICE, f"compute/v1/{path}", body, params, within)
        if answer.ok:
            return answer.body
        raise Refused(answer.status, problems_of(answer))


def problems_of(answer: Answer) -> list[Problem]:
    """Return what a refused call says; an answer that is not of the API leaves open what happened."""
    error = answer.body.get("error")
    return causes.of_call(answer.status, error if isinstance(error, dict) else {})


def _import() -> None:
    import google.auth.transport.requests  # noqa: F401


def _vm(raw: Mapping[str, Any]) -> Vm:
    accounts = raw.get("serviceAccounts") or [{}]
    status = (raw.get("resourceStatus") or {}).get("scheduling") or {}
    return Vm(
        name=str(raw["name"]),
        zone=_last(str(raw["zone"])),
        status=str(raw.get("status", "")),
        labels=dict(raw.get("labels") or {}),
        created=_moment(raw.get("creationTimestamp")),
        started=_moment(raw.get("lastStartTimestamp")),
        ends=_moment(status.get("terminationTimestamp")),
        account=str(accounts[0].get("email") or ""),
        model=str((raw.get("scheduling") or {}).get("provisioningModel") or ""),
    )


def _event(raw: Mapping[str, Any]) -> Event:
    return Event(
        path=_path(f"{raw.get('zone', '')}/operations/{raw.get('name', '')}"),
        kind=str(raw.get("operationType", "")),
        target=_last(str(raw.get("targetLink", ""))),
        user=str(raw.get("user", "")),
        began=_moment(raw.get("insertTime")),
        ended=raw.get("status") == "DONE",
        problems=tuple(causes.of_operation(raw)),
        said=str(raw.get("statusMessage", "")),
    )


def _disk(raw: Mapping[str, Any]) -> Disk:
    return Disk(
        str(raw["name"]),
        _last(str(raw["zone"])),
        dict(raw.get("labels") or {}),
        _moment(raw.get("creationTimestamp")),
    )


def _path(link: str) -> str:
    """`projects/…` of a URL."""
    return link[link.find("projects/") :]


def _last(link: str) -> str:
    return link.rpartition("/")[2]


def _moment(text: Any) -> float:
    """A time of the API, in RFC 3339; 0 if there is none."""
    try:
        return datetime.fromisoformat(str(text)).timestamp() if text else 0.0
    except ValueError:
        return 0.0
