"""The REST API of a Kubernetes cluster, over the standard library: a few bounded verbs, their objects as plain JSON.

It keeps connections, repeats what may help, renews a refused token and looks for a cluster that moved. Threads share
one `Api`. It knows no kinds of objects, and not what its caller does about an error: `answers` has the kinds of those,
`connection` how one exchange goes.
"""

from __future__ import annotations

import http.client
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlencode

from kinetic_orchestration.errors import CredentialsError
from kinetic_orchestration.platforms.kubernetes.api import answers
from kinetic_orchestration.platforms.kubernetes.api.answers import ApiError, Object, Reply, Row
from kinetic_orchestration.platforms.kubernetes.api.connection import (
    BROKEN,
    JSON,
    TIMEOUT,
    Asked,
    Connection,
    Key,
    connection_to,
    headers_of,
    tls,
    unanswered,
)
from kinetic_orchestration.platforms.shared.cluster_access import Access, OtherCluster

PATIENCE = 60.0
LOOK_PATIENCE = 5.0  # of a read: whoever looks, looks again
PAUSES: tuple[float, ...] = (0.2, 0.6, 1.8)  # before the second try and those after it
LONGEST_PAUSE = 15.0  # that a server may ask for: of a longer one, the caller hears at once
RESTARTS: Final = 2  # of a list in pages; the last is in one piece, which cannot expire
IDLE = 60.0  # seconds after which a connection is not used again: something on the way may have forgotten it
FIELDS: Final = "kinetic-orchestration"  # in whose name fields are held
METADATA: Final = f"{JSON};as=PartialObjectMetadata;v=v1;g=meta.k8s.io,{JSON}"
TABLE: Final = f"{JSON};as=Table;v=v1;g=meta.k8s.io,{JSON}"  # or objects, of a server that makes no tables
APPLY: Final = "application/apply-patch+yaml"  # of which JSON is a part
_NEVER: Final = float("inf")
_T = TypeVar("_T")


class Exchange(NamedTuple):
    """One request and its answer, as they were, but for the client's identity."""

    method: str
    target: str  # the path with its query
    request: Object
    status: int  # 0: there was no answer
    answer: bytes
    seconds: float


_listeners: list[Callable[[Exchange], object]] = []


@contextmanager
def listening(listener: Callable[[Exchange], object]) -> Iterator[None]:
    """Within the block, receive each exchange of every thread after its answer, repetitions included."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


class Api:
    """A cluster's API server. Each verb raises ApiError, CredentialsError if the client's identity is refused, or
    OtherCluster if the server is not trusted any more and the kubeconfig leads to one that may be another.

    `timeout`: seconds for any part of an answer, and at most for a connection. `patience`: seconds after the first try
    of a call in which another one begins, of a read no more than `LOOK_PATIENCE`.
    """

    def __init__(self, access: Access, *, timeout: float = TIMEOUT, patience: float = PATIENCE) -> None:
        self._access = access
        self._timeout = timeout
        self._patience = patience
        self._lock = threading.Lock()
        self._renewing = threading.Lock()
        self._idle: list[Connection] = []
        self._context: tuple[Key, ssl.SSLContext] | None = None
        self._heard: tuple[float, float] | None = None  # the server's time, and the monotonic one then
        self.is_doubtful = False  # the cluster was looked for, and what was found may be another one

    def now(self) -> float:
        """Return the time by the server's clock, as far as it has told it: the times of objects are of that clock."""
        if self._heard is None:
            return time.time()
        told, then = self._heard
        return told + time.monotonic() - then

    @property
    def access(self) -> Access:
        """The access that is used now: another one, once the cluster was found elsewhere."""
        return self._access

    def get(self, path: str) -> Object:
        """Return an object: `get("/api/v1/namespaces/default")`."""
        return self._call("GET", path)

    def is_there(self, path: str) -> bool:
        """Return True if there is such an object, of which a cluster sends no more than its metadata."""
        try:
            self._call("GET", path, form=METADATA)
        except ApiError as error:
            if error.kind != answers.ABSENT:
                raise
            return False
        return True

    def list(
        self, path: str, *, labels: str = "", fields: str = "", limit: int = 500, cached: bool = False
    ) -> Sequence[Object]:
        """Return all objects that the selectors match, of one moment, in requests of `limit` objects.

        `cached`: the server may answer from its memory, which is cheap, and may lack what was just created.
        """
        chosen = {"labelSelector": labels, "fieldSelector": fields, "resourceVersion": "0" if cached else ""}
        return [one for page in self._pages(path, chosen, limit, JSON) for one in page.get("items") or ()]

    def rows(self, path: str, *, labels: str = "", cached: bool = False) -> Sequence[Row]:
        """Return one row for each object that the selector matches, which has a hundredth of its bytes."""
        chosen = {"labelSelector": labels, "resourceVersion": "0" if cached else "", "includeObject": "None"}
        return [row for page in self._pages(path, chosen, 500, TABLE) for row in answers.rows(page)]

    def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        """Create an object in the collection `path`; with `dry_run`, it passes admission and is not stored.

        If an answer was lost, the repetition raises the kind EXISTS: the caller has to look whose the object is.
        """
        query = {"fieldManager": FIELDS, "fieldValidation": "Strict"}
        return self._call("POST", path, {**query, "dryRun": "All"} if dry_run else query, dict(body))

    def replace(self, path: str, body: Mapping[str, Any]) -> Object:
        """Replace the object at `path`, as it was read and then changed.

        With the `resourceVersion` that it was read with, the kind CONFLICT is raised once it is another: also by the
        repetition of a call whose answer was lost.
        """
        return self._call("PUT", path, {"fieldManager": FIELDS, "fieldValidation": "Strict"}, dict(body))

    def apply(
        self, path: str, body: Mapping[str, Any], *, manager: str, force: bool = False, dry_run: bool = False
    ) -> Object:
        """Have the object at `path` be as `body` says in the fields that it names (server-side apply): one that is not
        there is created, and what the same manager named before and names no more goes.

        The same request may be repeated. With a `resourceVersion` in its metadata it raises the kind CONFLICT once the
        object is another. `answers.rivals` has the fields that another manager holds, which are refused without
        `force`.

        Args:
            path: Of the object itself.
            body: The object: all fields that are this manager's.
            manager: In whose name the fields are held.
            force: Take fields that others hold.
            dry_run: It passes admission and is not stored.
        """
        query = {"fieldManager": manager, "fieldValidation": "Strict", "force": "true" if force else "false"}
        chosen = {**query, "dryRun": "All"} if dry_run else query
        return self._call("PATCH", path, chosen, dict(body), content=APPLY)

    def through(self, path: str, body: Mapping[str, Any] | None = None, *, within: float = 0.0) -> Reply:
        """Return what answers behind a path of the server that passes requests on, such as a Service's `…/proxy/…`.

        A GET, or a POST of `body` as JSON. Raises ApiError for what the server itself says: nobody is behind it yet,
        or the caller may not.

        Args:
            path: The path.
            body: What is sent.
            within: Seconds that its answer may take, in place of those that an API server itself is given.
        """
        asked = None if body is None else dict(body)
        method = "GET" if asked is None else "POST"
        return self._called(method, path, None, asked, answers.passed_on, within=within)

    def delete(self, path: str, *, uid: str = "", propagation: str = "Background") -> Object:
        """Delete an object, which may take a while after this call.

        `uid`: only this very object; the kind CONFLICT is raised if the name is another's by now. If an answer was
        lost, the repetition raises the kind ABSENT.
        """
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        return self._call("DELETE", path, {}, {**options, "preconditions": {"uid": uid}} if uid else options)

    def close(self) -> None:
        """Close the kept connections. A later call opens new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __enter__(self) -> Api:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- pages and repetitions ---------------------------------------------------------------------------------

    def _pages(self, path: str, chosen: Mapping[str, str], limit: int, form: str) -> Sequence[Object]:
        query = {name: value for name, value in chosen.items() if value}
        for _ in range(RESTARTS):
            try:
                return self._paged(path, {**query, "limit": str(limit)}, form)
            except ApiError as error:
                if error.kind != answers.GONE:
                    raise
        return self._paged(path, query, form)

    def _paged(self, path: str, query: Mapping[str, str], form: str) -> Sequence[Object]:
        found: list[Object] = []
        while True:
            found.append(self._call("GET", path, query, form=form))
            token = (found[-1].get("metadata") or {}).get("continue")
            if not token:
                return found
            query = {**query, "continue": token}
            query.pop("resourceVersion", None)  # which the token has

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        form: str = JSON,
        content: str = JSON,
    ) -> Object:
        return self._called(method, path, query, body, answers.read, form, content)

    def _called(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Object | None,
        read: Callable[[Reply, str], _T],
        form: str = JSON,
        content: str = JSON,
        within: float = 0.0,
    ) -> _T:
        target = f"{path}?{urlencode(query)}" if query else path
        patience = within or (min(self._patience, LOOK_PATIENCE) if method == "GET" else self._patience)
        deadline, pauses = time.monotonic() + patience, iter(PAUSES)
        renewed = sought = False
        while True:
            access = self._access
            token = access.token(False)
            try:
                asked = Asked(method, target, body, headers_of(access, token, body, form, content), within)
                reply = self._exchange(access, asked)
                return read(reply, f"{method} {access.server}{path}")
            except ApiError as error:
                if error.kind == answers.UNAUTHENTICATED:
                    if renewed and not sought:
                        sought = True
                        if self._changed(access):
                            continue
                    if renewed:
                        raise _not_let_in(access, error) from error
                    renewed = True
                    self._renew(access, token)
                    continue
                raced = method == "POST" and error.kind == answers.CONFLICT  # for a quota: nothing was created
                pause = max(next(pauses, _NEVER), error.retry_after)
                if (error.passing or raced) and pause <= LONGEST_PAUSE and time.monotonic() + pause < deadline:
                    time.sleep(pause)
                    continue
                if error.is_lost and not sought:
                    sought = True
                    if self._moved(access):
                        continue
                raise

    def _renew(self, access: Access, refused: str) -> None:
        """Get a new token, unless another thread has got one."""
        with self._renewing:
            if access.token(False) == refused:
                access.token(True)

    def _moved(self, access: Access) -> bool:
        """True if the cluster has another address or certificate than `access` says; then that is used from now on."""
        with self._renewing:
            if self._access is access and access.find is not None:
                found = self._looked_for(access.find)
                if found.way == access.way:
                    return False
                self._access = found
            return self._access is not access

    def _changed(self, access: Access) -> bool:
        """True if the identity or the cluster is configured anew, which is then used from now on."""
        with self._renewing:
            if self._access is access and access.find is not None:
                self._access = self._looked_for(access.find)
            return self._access is not access

    def _looked_for(self, find: Callable[[], Access]) -> Access:
        try:
            return find()
        except OtherCluster:
            self.is_doubtful = True
            raise

    # ---- one exchange ------------------------------------------------------------------------------------------

    def _exchange(self, access: Access, asked: Asked) -> Reply:
        began, reply = time.monotonic(), Reply(0, {}, b"")
        try:
            reply = self._sent(access, asked)
            with suppress(KeyError, ValueError):
                self._heard = parsedate_to_datetime(reply.headers["date"]).timestamp(), time.monotonic()
        finally:
            for listener in tuple(_listeners):
                seconds = time.monotonic() - began
                listener(Exchange(asked.method, asked.target, asked.body or {}, reply.status, reply.body, seconds))
        return reply

    def _sent(self, access: Access, asked: Asked) -> Reply:
        key = Key(access.way, access.pair())
        connection = self._kept(key)
        try:
            connection = connection or self._opened(key, access)
            try:
                reply = connection.exchange(asked)
            except BROKEN:
                if not connection.is_used:
                    raise
                connection.close()  # the server closed it between two requests, as it may
                connection = self._opened(key, access)
                reply = connection.exchange(asked)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if not isinstance(error, OSError | http.client.HTTPException):
                raise
            path = f"{asked.method} {asked.target.partition('?')[0]}"
            raise unanswered(access, key, path, error, asked.within or self._timeout) from error
        self._keep(connection)
        return reply

    def _kept(self, key: Key) -> Connection | None:
        """A connection that is open; those that are not to be used again are closed."""
        now, process = time.monotonic(), os.getpid()
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None or (
                connection.key == key and connection.process == process and now - connection.since < IDLE
            ):
                return connection
            connection.close()

    def _keep(self, connection: Connection) -> None:
        if connection.sock is None:  # the server closes it
            return
        connection.since, connection.is_used = time.monotonic(), True
        with self._lock:
            self._idle.append(connection)

    def _opened(self, key: Key, access: Access) -> Connection:
        with self._lock:
            if self._context is None or self._context[0] != key:
                self._context = key, tls(access, key.pair)
            context = self._context[1]
        return connection_to(access, key, context, self._timeout)


def _not_let_in(access: Access, error: ApiError) -> CredentialsError:
    return CredentialsError(
        f"Kubernetes at {access.server} does not accept the identity of {access.origin}: "
        f"{error.words or error.reason}. It may have expired, or be of another cluster: log in again, until "
        "'kubectl auth whoami' works."
    )
