"""The verbs of an emulated API server: what a request means for the objects of a store.

It knows paths, users and bodies, and no connections: the kubelet asks it without any.
"""

from __future__ import annotations

import base64
import itertools
import json
import random
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kinetic_orchestration.testing.kubernetes.api import answers, kinds, objects
from kinetic_orchestration.testing.kubernetes.api.answers import About, NotServed, Object
from kinetic_orchestration.testing.kubernetes.api.kinds import Kind
from kinetic_orchestration.testing.kubernetes.api.objects import is_deleting, name_of, uid_of
from kinetic_orchestration.testing.kubernetes.api.rules import admission, defaults, deletion, rights, sizes, validation
from kinetic_orchestration.testing.kubernetes.api.rules.rights import User, Wish
from kinetic_orchestration.testing.kubernetes.api.store import Store, fresh
from kinetic_orchestration.testing.kubernetes.api.views import fields, streams, tables

VERSION = {
    "major": "1", "minor": "36", "gitVersion": "v1.36.3", "gitCommit": "emulated", "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z", "goVersion": "go1.26.8", "compiler": "gc", "platform": "linux/amd64",
}  # fmt: skip
_EXEC = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)/exec")
STRATEGIC = "application/strategic-merge-patch+json"
_HEALTH = ("healthz", "livez", "readyz")
_LISTS = 100  # continuations that clients may read, as often as they like
_AUDIENCE = "https://kubernetes.default.svc"
_SHORTEST = 600  # seconds that a token may hold
Answer = Object | bytes | Iterator[bytes]
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


class Request(NamedTuple):
    """One request, its path taken apart."""

    method: str
    path: str
    query: Mapping[str, str] = {}
    body: Object | None = None
    kind: str = "application/json"
    user: User = rights.ADMIN
    as_table: bool = False


class _At(NamedTuple):
    """The objects or the object of a path."""

    kind: Kind
    namespace: str
    name: str = ""
    below: str = ""  # a subresource

    def about(self, name: str = "") -> About:
        return About(self.kind.group, self.kind.plural, name or self.name)


class Requests:
    """Answers requests.

    Args:
        store: The objects.
        token_of: Returns a token of a user, which holds for so many seconds.
        log_of: Returns the output of a pod, by its namespace and name.
        pending: Returns the workloads that wait in a queue, by its namespace and name.
        away: The controllers whose webhooks do not answer: `jobset`, `kueue`.
    """

    def __init__(
        self,
        store: Store,
        token_of: Callable[[User, float], str],
        log_of: Callable[[str, str], bytes],
        pending: Callable[[str, str], Object],
        away: set[str],
    ) -> None:
        self._store = store
        self._token_of = token_of
        self._log_of = log_of
        self._pending = pending
        self._away = away
        self._numbers = itertools.count(1)
        self._pages: OrderedDict[str, tuple[str, Sequence[Object]]] = OrderedDict()

    def forget_lists(self) -> None:
        """Let no list be continued that somebody has begun to read."""
        self._pages.clear()

    def answer(self, asked: Request) -> tuple[int, Answer]:
        """Return a status of HTTP and an object, a text, or one that goes on. Raises Refused, and NotServed."""
        with self._store.changed:
            found = self._discovered(asked)
            if found is not None:
                return 200, found
            if asked.path.strip("/") in _HEALTH:
                return 200, b"ok"
            version, rest = _parts(asked.path)
            if (review := kinds.REVIEWS.get(version, {}).get(rest[0])) is not None and asked.method == "POST":
                return 201, rights.review(self._store, asked.user, review, asked.body or {})
            if version == f"{kinds.VISIBILITY}/v1beta2":
                return 200, self._waiting(asked, rest)
            return self._stored(asked, _place(version, rest))

    def entered(self, asked: Request) -> tuple[str, str]:
        """Return the namespace and the name of the pod that a request is to start a program in. Raises Refused,
        NotServed.

        A WebSocket is a GET; from 1.35 on its user needs the right to create, too.
        """
        found = _EXEC.fullmatch(asked.path)
        if found is None:
            raise NotServed
        namespace, name = found.groups()
        with self._store.changed:
            for verb in ("get", "create"):
                self._demand(asked.user, Wish(verb, "", "pods/exec", namespace, name))
            pod = self._found(_At(kinds.PODS, namespace, name))
            names = [one["name"] for one in pod["spec"]["containers"]]
            if (wanted := asked.query.get("container") or names[0]) not in names:
                raise answers.bad(f"container {wanted} is not valid for pod {name}")
            return namespace, name

    def _discovered(self, asked: Request) -> Object | None:
        match asked.path.strip("/").split("/"):
            case ["version"]:
                return dict(VERSION)
            case ["openapi", "v3", *place]:
                return kinds.document("/".join(place[1:])) if place else kinds.documents()
            case ["api"]:
                return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
            case ["apis", *group] if len(group) < 2:
                return kinds.group(group[0]) if group else kinds.groups()
            case ["api", version] | ["apis", _, version] as parts:
                return kinds.resources(version if parts[0] == "api" else f"{parts[1]}/{version}")
        return None

    def _waiting(self, asked: Request, rest: list[str]) -> Object:
        match rest:
            case ["namespaces", namespace, "localqueues", queue, "pendingworkloads"]:
                resource = "localqueues/pendingworkloads"
            case _:
                raise NotServed
        self._demand(asked.user, Wish("get", kinds.VISIBILITY, resource, namespace, queue))
        if self._store.get(kinds.LOCAL_QUEUES, namespace, queue) is None:
            raise answers.absent(About(kinds.VISIBILITY, "localqueue", queue))
        return self._pending(namespace, queue)

    def _stored(self, asked: Request, at: _At) -> tuple[int, Answer]:
        resource = "/".join(filter(None, (at.kind.plural, at.below)))
        verb = "watch" if _is_watch(asked, at) else _verb(asked.method, at)
        where = at.name if at.kind is kinds.NAMESPACES else at.namespace  # Roles in a namespace are of itself, too
        self._demand(asked.user, Wish(verb, at.kind.group, resource, where, at.name))
        if at.below in ("log", "eviction", "token"):
            return self._below(asked, at)
        if verb == "watch":
            return 200, self._watched(asked, at)
        if verb == "create":
            return 201, self._create(asked, at)
        return 200, self._read(asked, at, verb) if verb in ("get", "list") else self._written(asked, at, verb)

    def _read(self, asked: Request, at: _At, verb: str) -> Object:
        found = self._list(asked, at) if verb == "list" else self._found(at)
        return self._shown(asked, at, found)

    def _shown(self, asked: Request, at: _At, found: Object) -> Object:
        """Return an object or a list as its request asks for it."""
        include = asked.query.get("includeObject") or "Metadata"
        return tables.table(at.kind, found, time.time(), include) if asked.as_table else found

    def _written(self, asked: Request, at: _At, verb: str) -> Object:
        if verb == "deletecollection":
            return self._delete_all(asked, at)
        change = self._delete if verb == "delete" else self._change
        return change(asked, at, self._found(at))

    def _demand(self, user: User, wish: Wish) -> None:
        if not rights.is_allowed(self._store, user, wish):
            about = About(wish.group, wish.resource.partition("/")[0], wish.name)
            raise answers.forbidden(about, f'User "{user.name}" cannot {wish}')

    def _found(self, at: _At) -> Object:
        found = self._store.get(at.kind, at.namespace, at.name)
        if found is None:
            raise answers.absent(at.about())
        return found

    # ---- lists

    def _list(self, asked: Request, at: _At) -> Object:
        if token := asked.query.get("continue"):
            version, left = self._continued(token)
        else:
            version, left = str(self._store.version), self._selected(asked, at)
        limit = int(asked.query.get("limit") or 0) or len(left)
        page, rest = left[:limit], left[limit:]
        metadata: Object = {"resourceVersion": version}
        if rest:
            metadata |= {"continue": self._kept(version, rest)} | (
                {} if _selectors(asked) else {"remainingItemCount": len(rest)}
            )
        shown = [one if at.kind.is_custom else _plain(one) for one in page]
        about = {"kind": f"{at.kind.name}List", "apiVersion": at.kind.api_version}
        return {**about, "metadata": metadata, "items": shown}

    def _selected(self, asked: Request, at: _At) -> Sequence[Object]:
        return self._chosen(asked, at, self._store.list(at.kind, at.namespace))

    def _chosen(self, asked: Request, at: _At, found: Sequence[Object]) -> Sequence[Object]:
        """Return those that the selectors of a request choose. Raises Refused."""
        labels = asked.query.get("labelSelector", "")
        try:
            objects.selects(labels, {})  # whether it can be read is told even if there is nothing
        except objects.Unparsable as error:
            raise answers.bad(str(error)) from None
        labelled = [one for one in found if objects.selects(labels, objects.labels_of(one))] if labels else found
        selector = asked.query.get("fieldSelector", "")
        return fields.chosen(at.kind, selector, labelled) if selector else labelled

    def _watched(self, asked: Request, at: _At) -> Iterator[bytes]:
        def shown(one: Object) -> Object:
            return self._shown(asked, at, one)

        def select(found: Sequence[Object]) -> Sequence[Object]:
            mine = [one for one in found if at.name in ("", name_of(one))]
            return self._chosen(asked, at, mine)

        select(())  # what cannot be read is refused before anything is sent
        return streams.changes(self._store, at.kind, at.namespace, select, asked.query, shown)

    def _kept(self, version: str, rest: Sequence[Object]) -> str:
        told = {"v": "meta.k8s.io/v1", "rv": int(version), "start": str(next(self._numbers))}
        token = base64.urlsafe_b64encode(json.dumps(told).encode()).decode().rstrip("=")
        self._pages[token] = version, rest
        while len(self._pages) > _LISTS:
            self._pages.popitem(last=False)
        return token

    def _continued(self, token: str) -> tuple[str, Sequence[Object]]:
        found = self._pages.get(token)
        if found is not None:
            return found
        try:
            json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))["rv"]
        except (ValueError, KeyError, TypeError):
            raise answers.bad("invalid continue token: continue key is not valid") from None
        raise answers.expired()

    # ---- changes

    def _create(self, asked: Request, at: _At) -> Object:
        body = self._body(asked, at)
        if said := rights.escalation(self._store, asked.user, at.kind, at.namespace, body):
            name = (body.get("metadata") or {}).get("name", "")
            raise answers.forbidden(About(at.kind.group, at.kind.plural, name), said)
        return self.create(at.kind, at.namespace, body, is_dry=_is_dry(asked))

    def create(self, kind: Kind, namespace: str, body: Object, *, is_dry: bool = False) -> Object:
        """Create an object as anybody's request does, and return it. Raises Refused."""
        at = _At(kind, namespace)
        metadata = dict(body.get("metadata") or {})
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"] + "".join(random.choices(_LETTERS, k=5))
        if not metadata.get("name"):
            said = "Required value: name or generateName is required"
            fault = answers.Fault("metadata.name", said, "FieldValueRequired")
            raise answers.invalid(About(at.kind.group, at.kind.name), [fault])
        if at.kind.namespaced:
            metadata["namespace"] = at.namespace
        at = at._replace(name=metadata["name"])
        self._ask_webhooks(at.kind, body)
        body = defaults.defaulted(at.kind, {**body, "metadata": metadata})
        validation.check(at.kind, body)
        sizes.check_data(at.kind, body)
        if self._store.get(at.kind, at.namespace, at.name) is not None:
            raise answers.exists(at.about())
        body = admission.admit(self._store, at.kind, body, at.about())
        if is_dry:
            return fresh(at.kind, body)
        sizes.check_stored(body)
        made = self._store.create(at.kind, body)
        return self._store.replace(at.kind, defaults.identified(made)) if at.kind is kinds.JOBS else made

    def _ask_webhooks(self, kind: Kind, body: Object) -> None:
        if kind is not kinds.JOBSETS:
            return
        if "jobset" in self._away:
            raise answers.unanswered("mjobset.kb.io")
        if "kueue" in self._away:
            raise answers.unanswered("mjobset.kb.io")
        validation.check_set(body)

    def _body(self, asked: Request, at: _At) -> Object:
        body = asked.body
        if not isinstance(body, dict) or not isinstance(body.get("metadata", {}), dict):
            raise answers.bad(f"the object provided is unrecognized (must be of type {at.kind.name})")
        validation.check_body(at.kind, at.namespace, body)
        if asked.query.get("fieldValidation") == "Strict" and (strange := validation.unknown_fields(at.kind, body)):
            told = ", ".join(f'unknown field "{field}"' for field in strange)
            what = f'{at.kind.name} in version "{at.kind.version}" cannot be handled as a {at.kind.name}'
            raise answers.bad(f"{what}: strict decoding error: {told}")
        return body

    def _change(self, asked: Request, at: _At, found: Object) -> Object:
        patch = asked.body or {}
        if asked.method == "PUT":
            after = {**patch, "metadata": {**found["metadata"], **patch.get("metadata", {})}}
        else:
            after = objects.merged(found, patch, strategic=asked.kind == STRATEGIC)
        wanted = patch.get("metadata", {}).get("uid")
        if wanted not in (None, found["metadata"]["uid"]):
            raise answers.conflict(at.about(), f"Precondition failed: UID in precondition: {wanted}")
        version = patch.get("metadata", {}).get("resourceVersion")
        if version not in (None, "", found["metadata"]["resourceVersion"]):
            why = "the object has been modified; please apply your changes to the latest version and try again"
            raise answers.conflict(at.about(), why)
        kept = {"status": found.get("status", {})} if not at.below and at.kind.subresources else {}
        after = {**after, **kept} if not at.below else {**found, "status": after.get("status", {})}
        sizes.check_data(at.kind, after)
        if _is_dry(asked):
            return after
        sizes.check_stored(after)
        if is_deleting(after):
            deletion.let_go(self._store, at.kind, after)
        else:
            self._store.replace(at.kind, after)
        return self._store.get(at.kind, at.namespace, at.name) or after

    # ---- deletions

    def _delete(self, asked: Request, at: _At, found: Object) -> Object:
        options = asked.body or {}
        uid, wanted = found["metadata"]["uid"], (options.get("preconditions") or {}).get("uid")
        if wanted not in (None, uid):
            why = (
                f"the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might "
                "have been deleted and then recreated"
            )
            about = About(at.kind.group, at.kind.name, at.name)
            raise answers.conflict(about, why)
        if _is_dry(asked):
            return found
        propagation = options.get("propagationPolicy") or asked.query.get("propagationPolicy", "")
        grace = options.get("gracePeriodSeconds", asked.query.get("gracePeriodSeconds"))
        left = deletion.delete(
            self._store, at.kind, found, grace=None if grace is None else float(grace), propagation=propagation
        )
        if self._store.get(at.kind, at.namespace, at.name) is not None:
            return left
        details = {"name": at.name, "group": at.kind.group, "kind": at.kind.plural, "uid": uid}
        told = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return {**told, "details": {name: value for name, value in details.items() if value}}

    def _delete_all(self, asked: Request, at: _At) -> Object:
        found = self._selected(asked, at)
        for one in found:
            self._delete(asked, at._replace(name=name_of(one)), one)
        return {"kind": f"{at.kind.name}List", "apiVersion": at.kind.api_version, "metadata": {}, "items": list(found)}

    # ---- what is below an object

    def _below(self, asked: Request, at: _At) -> tuple[int, Answer]:
        if at.below == "token":
            return 201, self._with_token(asked, at)
        pod = self._found(at)
        if at.below == "log":
            return 200, self._log(asked, at, uid_of(pod))
        told = {"type": "DisruptionTarget", "status": "True", "lastProbeTime": None}
        why = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
        conditions = [*(pod["status"].get("conditions") or ()), told | {"lastTransitionTime": objects.stamp()} | why]
        pod = self._store.replace(kinds.PODS, objects.with_status(pod, conditions=conditions))
        deletion.delete(self._store, kinds.PODS, pod)
        return 201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def _log(self, asked: Request, at: _At, uid: str) -> Answer:
        whole = self._log_of(at.namespace, at.name)
        part = _part_of(whole, asked.query)
        if asked.query.get("follow") not in ("true", "1"):
            return part

        def find() -> Object | None:
            found = self._store.get(at.kind, at.namespace, at.name)
            return found if found is not None and uid_of(found) == uid else None

        rest = streams.log(self._store, find, lambda: self._log_of(at.namespace, at.name), len(whole))
        return itertools.chain([part], rest)

    def _with_token(self, asked: Request, at: _At) -> Object:
        """Return what a service account's request for a token becomes. Raises Refused."""
        uid = self._found(at)["metadata"]["uid"]
        spec: Object = {"audiences": [_AUDIENCE], "expirationSeconds": 3600, "boundObjectRef": None}
        spec |= (asked.body or {}).get("spec") or {}
        seconds = spec["expirationSeconds"]
        if seconds < _SHORTEST:
            said = f"Invalid value: {seconds}: may not specify a duration less than 10 minutes"
            about = About("authentication.k8s.io", "TokenRequest")
            raise answers.invalid(about, [answers.Fault("spec.expirationSeconds", said)])
        token = self._token_of(rights.account(at.namespace, at.name), seconds)
        return {
            "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
            "metadata": {
                "name": at.name, "namespace": at.namespace, "uid": uid, "creationTimestamp": objects.stamp(),
            },
            "spec": spec,
            "status": {"token": token, "expirationTimestamp": objects.stamp(time.time() + seconds)},
        }  # fmt: skip


def _parts(path: str) -> tuple[str, list[str]]:
    """Return the group's version of a path, and what follows it. Raises NotServed."""
    match path.strip("/").split("/"):
        case ["api", version, *rest] if rest:
            return version, rest
        case ["apis", group, version, *rest] if rest:
            return f"{group}/{version}", rest
    raise NotServed


def _place(version: str, rest: list[str]) -> _At:
    """Take the rest of a path apart. Raises NotServed."""
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] != "status":
        namespace, rest = rest[1], rest[2:]
    kind = kinds.find(version, rest[0])
    name, below = (*rest[1:], "", "")[:2]
    if kind is None or len(rest) > 3 or (below and below not in kind.subresources):
        raise NotServed
    if namespace and not kind.namespaced:
        raise NotServed
    return _At(kind, namespace, name, below)


def _verb(method: str, at: _At) -> str:
    if method == "GET":
        return "get" if at.name else "list"
    found = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete" if at.name else "deletecollection"}
    if method not in found or (method == "POST" and at.name and not at.below):
        raise answers.refusal(
            405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
        )
    return found[method]


def _is_watch(asked: Request, at: _At) -> bool:
    return asked.method == "GET" and not at.below and asked.query.get("watch") in ("true", "1")


def _is_dry(asked: Request) -> bool:
    return "All" in (asked.query.get("dryRun"), *((asked.body or {}).get("dryRun") or ()))


def _selectors(asked: Request) -> bool:
    return bool(asked.query.get("labelSelector") or asked.query.get("fieldSelector"))


def _plain(found: Object) -> Object:
    """Return an item of a list, which says of itself only what it is where a CRD defines it."""
    return {name: value for name, value in found.items() if name not in ("kind", "apiVersion")}


def _part_of(log: bytes, query: Mapping[str, str]) -> bytes:
    lines = log.splitlines(keepends=True)
    tail = int(query.get("tailLines") or len(lines))
    data = b"".join(lines[len(lines) - min(tail, len(lines)) :])
    return data[: int(query.get("limitBytes") or len(data))]
