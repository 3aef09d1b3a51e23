"""The calls of Compute Engine's REST API that the backend makes, on the session that the process keeps.

Google's own client library is not used: to import it takes 3.5 s and 165 MiB. Answers become the plain values of
`states`, errors the `Problem`s of `causes`. Only the fields that are read are requested: an instance whole is mostly
its startup script. What belongs to attempts is made, read, listed and deleted by one call each, whatever it is: the
collection in its path says how it is read (`KINDS`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.platforms.google import api_errors, credentials
from kinetic_orchestration.platforms.google.compute import causes, slices
from kinetic_orchestration.platforms.google.compute.causes import Problem
from kinetic_orchestration.platforms.google.compute.slices import GROUPS, POLICIES, TEMPLATES
from kinetic_orchestration.platforms.google.compute.states import Event, Group, Resource, Vm
from kinetic_orchestration.platforms.google.rest.client import Answer, kept

SERVICE = "compute"
INSTANCES, DISKS = "instances", "disks"
SUBNETWORKS = "subnetworks"
PAGE = 500  # the most that the API gives
MOST_PAGES = 200
READ_SECONDS = 20.0  # one read, with all its repetitions
WRITE_SECONDS = 40.0
END_SECONDS = 10.0  # of waiting for the end of an operation
SERIAL_BYTES = 8 << 10  # of a serial log, its end
_NOT_FOUND, _UNKNOWN_METHOD = 404, 501
_NO_ANSWER = "UNREACHABLE"  # as a warning of a place in a list
_PARTIAL = ("LIST_OVERHEAD_QUOTA_EXCEED", "PARTIAL_SUCCESS")  # or of the whole list
_EVENT_FIELDS = (
    "name,operationType,targetLink,user,status,statusMessage,insertTime,endTime,httpErrorStatusCode,error,zone,region"
)


class Refused(Exception):
    """A call that the API refused, or to which no answer came."""

    def __init__(self, status: int, problems: list[Problem]) -> None:
        super().__init__(problems[0].message)
        self.status = status
        self.problems = problems

    @property
    def missing(self) -> bool:
        return self.status == _NOT_FOUND


class Listing(NamedTuple):
    """The listed resources, the places that did not answer, and those of which only a part is listed: EVERYWHERE if
    that is said of the whole list."""

    found: list[Any]
    silent: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()

    def is_whole(self, zone: str) -> bool:
        """Return True if nothing in a zone is left out."""
        return not {zone, api_errors.EVERYWHERE} & {*self.silent, *self.partial}


class Instances:
    """Instances, and what they are made of and by. Acts with the credentials of whoever made it, on any thread. A call
    raises Refused, or CredentialsError."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._acting = credentials.as_now()
        self._heard = (0.0, 0.0)  # Google's time, and this machine's monotonic one when it came

    def prepare(self) -> None:
        """Import what the first call needs, on a thread."""
        threading.Thread(target=_import, name="kinetic-imports", daemon=True).start()

    def now(self) -> float:
        """Return the time by Google's clock, told with each answer: this machine's may be wrong by minutes."""
        told, then = self._heard
        return told + time.monotonic() - then if told else time.time()

    # What belongs to attempts: instances and disks, groups with their templates and policies

    def insert(self, collection: str, body: Mapping[str, Any], request_id: str) -> Event:
        """Begin to make what the body describes, in a collection of a zone or a region."""
        return _event(self._call("POST", collection, body, {"requestId": request_id}))

    def get(self, path: str) -> Any:
        """Return what is at a path, as the value of `states` that its kind has; None if there is nothing."""
        kind = KINDS[path.split("/")[-2]]
        found = self._found(path, {"fields": kind.fields})
        return None if found is None else kind.read(found)

    def delete(self, path: str) -> Event:
        """Begin a deletion. What comes of it is seen by looking."""
        return _event(self._call("DELETE", path))

    def everywhere(self, project: str, collection: str, chosen: str) -> Listing:
        """List what of a collection a filter chooses, in all zones or regions in one request. Those that did not
        answer, or only in part, are told beside it: that they list nothing does not mean that they have nothing."""
        kind = KINDS[collection]
        wished = f"items/*/{collection}({kind.fields}),items/*/warning/code,warning/code,nextPageToken"
        if collection != TEMPLATES:  # whose list has no such field, which would be refused
            wished += ",unreachables"
        params = {"filter": chosen, "maxResults": str(PAGE), "fields": wished}
        found: list[Any] = []
        silent: set[str] = set()
        partial: set[str] = set()
        for page in self._pages(f"projects/{project}/aggregated/{collection}", params):
            silent |= {_last(scope) for scope in page.get("unreachables", ())}
            if _warning(page) in _PARTIAL:
                partial.add(api_errors.EVERYWHERE)
            for scope, listed in (page.get("items") or {}).items():
                found += [kind.read(item) for item in listed.get(collection, ())]
                if _warning(listed) == _NO_ANSWER:
                    silent.add(_last(scope))
                elif _warning(listed) in _PARTIAL:
                    partial.add(_last(scope))
        return Listing(found, tuple(sorted(silent)), tuple(sorted(partial)))

    def serial_end(self, path: str) -> str:
        """Return the end of the first serial port's output; "" if there is none."""
        found = self._found(f"{path}/serialPort", {"port": "1", "fields": "contents,next"})
        return str((found or {}).get("contents", ""))[-SERIAL_BYTES:]

    # Operations

    def events(self, zone: str, of: str) -> list[Event]:
        """Return the operations of everything in a zone whose path has `of` in it, the newest first."""
        wished = {"filter": f"targetLink:{of}", "maxResults": str(PAGE)}
        listed = self._pages(f"{zone}/operations", {**wished, "fields": f"items({_EVENT_FIELDS}),nextPageToken"})
        found = [_event(item) for page in listed for item in page.get("items", ())]
        return sorted(found, key=lambda event: event.began, reverse=True)

    def ended(self, event: Event, within: float = END_SECONDS) -> Event:
        """Wait until an operation has ended, and return it as it is then, or as it was if that takes longer."""
        if event.ended:
            return event
        try:
            return _event(self._call("POST", f"{event.path}/wait", within=within))
        except Refused:  # whatever it comes to is seen by looking
            return event

    # What has to be there before

    def image(self, path: str) -> Mapping[str, Any]:
        """Return an image by its path, or the newest of a family."""
        return self._call("GET", path, None, {"fields": "name,family,diskSizeGb,architecture"})

    def offer(self, path: str) -> Mapping[str, Any]:
        """Return a type of machines or of accelerators that a zone has, by its path."""
        return self._call("GET", path, None, {"fields": "name"})

    def subnetwork(self, path: str) -> Mapping[str, Any]:
        return self._call("GET", path, None, {"fields": "name,region,privateIpGoogleAccess"})

    def network(self, path: str) -> Mapping[str, Any]:
        return self._call("GET", path, None, {"fields": "name,autoCreateSubnetworks,IPv4Range"})

    def reservation(self, path: str) -> Mapping[str, Any]:
        wished = "status,deploymentType,specificReservation(count,inUseCount,instanceProperties/machineType)"
        return self._call("GET", path, None, {"fields": wished})

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

    def _pages(self, path: str, params: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
        token = ""
        for _ in range(MOST_PAGES):
            page = self._call("GET", path, None, {**params, "pageToken": token} if token else params)
            yield page
            if not (token := str(page.get("nextPageToken") or "")):
                return
        raise Refused(0, [Problem("", f"the list {path} has no end after {MOST_PAGES} pages", api_errors.UNAVAILABLE)])

    def _call(
        self, method: str, path: str, body: Any = None, params: Mapping[str, str] | None = None, within: float = 0.0
    ) -> Mapping[str, Any]:
        within = within or (READ_SECONDS if method == "GET" else WRITE_SECONDS)
        with self._acting():
            api = kept(self._settings)
        answer = api.call(method, SERVICE, f"compute/v1/{path}", body, params, within)
        if answer.date:
            self._heard = answer.date, time.monotonic()
        if answer.ok:
            return answer.body
        raise Refused(answer.status, problems_of(answer))


def problems_of(answer: Answer) -> list[Problem]:
    """Return what a refused call says; an answer that is not of the API leaves open what happened."""
    error = answer.body.get("error")
    return causes.of_call(answer.status, error if isinstance(error, dict) else {})


def _warning(listed: Mapping[str, Any]) -> str:
    """Return the word of the warning of a list, or of one place in it; "" if there is none."""
    return str((listed.get("warning") or {}).get("code") or "")


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


def _group(raw: Mapping[str, Any]) -> Group:
    described = slices.described(str(raw.get("description") or ""))
    status, actions = raw.get("status") or {}, raw.get("currentActions") or {}
    bulk = status.get("bulkInstanceOperation") or {}
    topology: Mapping[str, Any] = next(iter(status.get("appliedAcceleratorTopologies") or ()), {})
    details = (topology.get("stateDetails") or {}).get("error")
    return Group(
        name=str(raw["name"]),
        zone=_last(str(raw.get("zone") or "")),  # "" of somebody's group of a region
        labels=described.labels,
        created=_moment(raw.get("creationTimestamp")),
        until=described.until,
        hosts=described.hosts,
        model=described.model,
        asks=bool(bulk.get("inProgress")) or bool(actions.get("creating")),
        remakes=bool(actions.get("recreating")),
        deletes=bool(actions.get("deleting")),
        leaves=bool(actions.get("deleting")) and not any(actions[name] for name in actions if name != "deleting"),
        problems=tuple(causes.of_error((bulk.get("lastProgressCheck") or {}).get("error"))),
        topology=str(topology.get("state") or ""),
        said=" ".join(problem.message for problem in causes.of_error(details)),
    )


def _event(raw: Mapping[str, Any]) -> Event:
    where = raw.get("zone") or raw.get("region") or ""
    return Event(
        path=_path(f"{where}/operations/{raw.get('name', '')}"),
        kind=str(raw.get("operationType", "")),
        target=_last(str(raw.get("targetLink", ""))),
        user=str(raw.get("user", "")),
        began=_moment(raw.get("insertTime")),
        ended=raw.get("status") == "DONE",
        problems=tuple(causes.of_operation(raw)),
        said=str(raw.get("statusMessage", "")),
    )


def _labelled(raw: Mapping[str, Any]) -> Resource:
    return _resource(raw, dict(raw.get("labels") or {}))


def _described(raw: Mapping[str, Any]) -> Resource:
    """A template or a policy: they are of a region, and say of which zone their groups are."""
    described = slices.described(str(raw.get("description") or ""))
    found = _resource(raw, described.labels)._replace(zone=described.zone, hosts=described.hosts)
    return found._replace(model=described.model, deletes=raw.get("status") == "DELETING")


def _resource(raw: Mapping[str, Any], labels: Mapping[str, str]) -> Resource:
    zone, created = _last(str(raw.get("zone") or "")), _moment(raw.get("creationTimestamp"))
    return Resource(str(raw["name"]), zone, labels, created)


class Kind(NamedTuple):
    """The fields of a kind of resource that are read, and how."""

    fields: str
    read: Callable[[Mapping[str, Any]], Any]


KINDS: Mapping[str, Kind] = {
    INSTANCES: Kind(
        "id,name,zone,status,labels,creationTimestamp,lastStartTimestamp,scheduling/provisioningModel,"
        "serviceAccounts/email,resourceStatus/scheduling/terminationTimestamp",
        _vm,
    ),
    DISKS: Kind("name,zone,labels,creationTimestamp", _labelled),
    GROUPS: Kind(
        "name,zone,description,creationTimestamp,currentActions,"
        "status(bulkInstanceOperation,appliedAcceleratorTopologies(state,stateDetails/error))",
        _group,
    ),
    TEMPLATES: Kind("name,description,creationTimestamp", _described),
    POLICIES: Kind("name,description,creationTimestamp,status", _described),
    SUBNETWORKS: Kind("region", lambda raw: _last(str(raw["region"]))),  # of which the region alone is read
}


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
