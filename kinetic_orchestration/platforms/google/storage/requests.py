"""Single requests to Google Cloud Storage about one prefix of a bucket: tried again by the class of their error. If it
is unknown whether a write was carried out, its writer's mark in the object tells.

There is one client per process and credentials: it owns the connections, which a forked process must not share, and the
store's clock. This module does not know what a store is, nor of objects that take more than one request.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple, TypeVar

from kinetic_orchestration.errors import KineticError
from kinetic_orchestration.platforms.google.credentials import refused
from kinetic_orchestration.platforms.google.rest import call_listeners, retries
from kinetic_orchestration.platforms.google.storage.refusals import ApiError, read_error, refusal
from kinetic_orchestration.platforms.store import too_large
from kinetic_orchestration.protocol.names import RECORD_LIMIT
from kinetic_orchestration.protocol.records.bucket_metadata import Clock, moment_of

SINGLE: Final = 8 << 20
"""Bytes that one request can write; the client library sends more than this in another way."""
CONNECTIONS: Final = 32
CLOCK_AGE: Final = 60.0  # seconds after which the server's time is requested again

_CONNECT: Final = 5.0
_ANSWER: Final = 20.0
_BRIEF: Final = (2.0, 5.0)
_SLOWEST: Final = 100_000  # bytes per second: a slower write is aborted and retried
_TEARS: Final = 3  # an object whose checksum differs this often is damaged in the store
_PAGE: Final = 1000
_BYTES: Final = "application/octet-stream"
_WRITER: Final = "w"
_CLIENTS_LIMIT: Final = 8
_T = TypeVar("_T")

_clients: dict[tuple[int, int, str], Client] = {}


@functools.cache
def _checksum() -> str:
    """Return the name of the fastest checksum that Google's client has; before 3.0 it does not choose one by itself."""
    from google.cloud.storage import __version__

    return "auto" if int(__version__.partition(".")[0]) >= 3 else "crc32c"


class Client:
    """Google's own client, which records the headers of answers: for the clock, and for the caller of the thread."""

    def __init__(self, credentials: Any, endpoint: str) -> None:
        import google.auth.transport.requests
        import google.cloud.storage
        from requests.adapters import HTTPAdapter

        self.credentials = credentials  # a reference, as the table of clients uses its identity
        self.clock = Clock()
        self._endpoint = endpoint
        self._last = threading.local()
        session: Any = google.auth.transport.requests.AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
        for scheme in ("https://", "http://"):
            session.mount(scheme, HTTPAdapter(pool_connections=4, pool_maxsize=CONNECTIONS))
        session.hooks["response"].append(self._receive)
        options = {"api_endpoint": endpoint} if endpoint else None
        # No verb here needs a project, and a client without one searches for one on disk and network.
        self.storage: Any = google.cloud.storage.Client(
            project="none", credentials=credentials, _http=session, client_options=options
        )
        # Some versions fetch the bucket for traces, on a thread, at first and after every 404: a
        # request that costs, and needs a permission that a store does not.
        self.storage._bucket_metadata_cache = None

    def headers(self) -> dict[str, str]:
        """The headers of the last answer to this thread."""
        return getattr(self._last, "headers", {})

    def _receive(self, response: Any, **_: Any) -> None:
        self._last.headers = response.headers
        call_listeners.report_http("storage", response, self._endpoint)
        self.clock.observe(response.headers.get("Date", ""), time.monotonic() - response.elapsed.total_seconds())


def client(credentials: Any, endpoint: str) -> Client:
    """The client of this process for these credentials; a forked process makes its own."""
    key = os.getpid(), id(credentials), endpoint
    found = _clients.get(key)
    if found is None:
        found = _clients.setdefault(key, Client(credentials, endpoint))
        while len(_clients) > _CLIENTS_LIMIT:
            _clients.pop(next(iter(_clients)), None)
    return found


class Piece(NamedTuple):
    """Some bytes of an object, and what came with them about the whole of it."""

    data: bytes
    generation: int
    updated: float
    total: int
    crc32c: str


_patience: ContextVar[float] = ContextVar("kinetic_patience", default=retries.PATIENCE)


@contextlib.contextmanager
def impatient(seconds: float) -> Iterator[None]:
    """Limit the retries of stores opened within the block to `seconds`: a user waits for an answer, good or bad."""
    token = _patience.set(seconds)
    try:
        yield
    finally:
        _patience.reset(token)


class Requests:
    def __init__(self, url: str, credentials: Any, endpoint: str = "") -> None:
        self.url = url
        self.patience = _patience.get()
        """For how many seconds a request that may yet succeed is tried again."""
        self._credentials = credentials
        self._endpoint = endpoint
        self._bucket, _, prefix = url.removeprefix("gs://").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""

    @property
    def client(self) -> Client:
        return client(self._credentials, self._endpoint)

    def write(self, name: str, data: bytes, generation: int | None, metadata: dict[str, str]) -> int | None:
        """Write under a condition (0: absent, None: none); the new generation, or None if it did not hold."""

        def send(mark: str) -> int:
            return self._send(name, data, generation, {**metadata, _WRITER: mark})

        return self._decide(name, send)

    def compose(self, name: str, parts: Sequence[str], generation: int | None) -> int | None:
        """Write `parts`, one behind the other, as `name`, under the same conditions."""

        def join(mark: str) -> int:
            blob = self._blob(name)
            blob.content_type = _BYTES
            blob.metadata = {_WRITER: mark}
            sources = [self._blob(part) for part in parts]
            blob.compose(sources, if_generation_match=generation, timeout=_timeout(), retry=None)
            return int(blob.generation)

        return self._decide(name, join)

    def write_once(self, name: str, data: bytes, metadata: dict[str, str]) -> None:
        """Write regardless of the existing object, in one short try that may fail with any exception."""
        self._send(name, data, None, metadata, _BRIEF)

    def get(
        self, name: str, start: int, end: int | None, generation: int | None = None, limit: int = RECORD_LIMIT
    ) -> Piece | None:
        """Bytes from start to end, in one request; None if there is no such object (of that generation).

        Without an end, an object of more than `limit` bytes raises StoreError.
        """
        stop = None if end is None else max(end, start + 1)  # an empty range cannot be requested
        most = limit if end is None else None
        return self._ask("read", name, lambda _: self._get(name, start, stop, end, generation, most))

    def stat(self, name: str) -> Any | None:
        """Google's own Blob with what is known of the object; None if there is none."""
        return self._ask("read", name, lambda _: self._stat(name))

    def rewrite(self, name: str) -> bool:
        """Let the server rewrite the object unchanged; False if it is missing. A large one takes several calls."""

        def attempt(_: bool) -> bool:
            token: str | None = None

            def call() -> None:
                nonlocal token
                token = self._blob(name).rewrite(self._blob(name), token=token, timeout=_timeout(), retry=None)[0]

            while self._is_there(call):
                if token is None:
                    return True
            return False

        return self._ask("write", name, attempt)

    def copy(self, source: Requests, origin: str, name: str, generation: int) -> bool:
        """Let the server copy an object of another place as `name`, in several calls if it is large; False if the name
        is taken, or if the object has another generation by now, or is gone."""
        from google.api_core.exceptions import PreconditionFailed

        def attempt(_: bool) -> bool:
            token: str | None = None

            def call() -> None:
                nonlocal token
                token = self._blob(name).rewrite(
                    source._blob(origin), token=token, if_generation_match=0, if_source_generation_match=generation,
                    timeout=_timeout(), retry=None,
                )[0]  # fmt: skip

            try:
                while self._is_there(call):
                    if token is None:
                        return True
            except PreconditionFailed as error:
                problem = read_error(error)
                if problem is None or not problem.lost_the_race:
                    raise
            return False

        return self._ask("write", name, attempt)

    def delete(self, name: str) -> bool:
        def attempt(in_doubt: bool) -> bool:
            # If it is missing, an earlier try whose answer was lost has deleted it.
            return self._is_there(lambda: self._blob(name).delete(timeout=_timeout(), retry=None)) or in_doubt

        return self._ask("delete", name, attempt)

    def delete_once(self, name: str) -> None:
        """Delete an object that is not needed, in one try whose result is ignored."""
        with contextlib.suppress(Exception):
            self._blob(name).delete(timeout=_timeout(), retry=None)

    def page(
        self, prefix: str, fields: str, token: str | None, last: str = ""
    ) -> tuple[list[tuple[str, Any]], str | None]:
        """A thousand names and Blobs at most, with the token of the next page. `last`: as of `Store.list`; a server
        that does not know such a filter (`match_glob`) returns all."""

        def attempt(_: bool) -> tuple[list[tuple[str, Any]], str | None]:
            found = self.client.storage.list_blobs(
                self._bucket,
                prefix=self._prefix + prefix,
                page_token=token,
                page_size=_PAGE,
                match_glob=f"**/{last}" if last else None,
                fields=f"items({fields}),nextPageToken",
                timeout=_timeout(),
                retry=None,
            )
            blobs = list(next(found.pages))
            for blob in blobs:  # an unreadable entry raises here, within the retry
                moment(blob), (blob.metadata or {}).get(_WRITER)
                if "size" in fields:
                    int(blob.size)
            return [(blob.name.removeprefix(self._prefix), blob) for blob in blobs], found.next_page_token

        return self._ask("list", prefix, attempt)

    def _blob(self, name: str, generation: int | None = None) -> Any:
        return self.client.storage.bucket(self._bucket).blob(self._prefix + name, generation=generation)

    def _ask(self, verb: str, name: str, attempt: Callable[[bool], _T]) -> _T:
        """Retry until there is an answer, a permanent error, or the time is up. `attempt` receives True if an earlier
        try may have been carried out."""
        began = time.monotonic()
        in_doubt = False
        torn = 0
        pause = retries.FIRST_PAUSE
        while True:
            try:
                return attempt(in_doubt)
            except Exception as error:
                problem = _read_any_error(error)
                if problem is None:
                    raise
                waited = time.monotonic() - began
                torn += problem.corrupt
                if not problem.transient or waited + pause > self.patience or torn == _TEARS:
                    raise refusal(problem, verb, name, self.url, waited) from error
                in_doubt = in_doubt or problem.in_doubt
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, retries.LONGEST_PAUSE)

    def _decide(self, name: str, write: Callable[[str], int]) -> int | None:
        from google.api_core.exceptions import PreconditionFailed

        mark = os.urandom(8).hex()

        def attempt(in_doubt: bool) -> int | None:
            try:
                return write(mark)
            except PreconditionFailed as error:
                problem = read_error(error)
                if problem is None or not problem.lost_the_race:
                    raise
            if not in_doubt:
                return None
            there = self._stat(name)  # the existing object may be our own
            return int(there.generation) if there and (there.metadata or {}).get(_WRITER) == mark else None

        return self._ask("write", name, attempt)

    def _send(
        self,
        name: str,
        data: bytes,
        generation: int | None,
        metadata: dict[str, str],
        timeout: tuple[float, float] | None = None,
    ) -> int:
        blob = self._blob(name)
        blob.metadata = metadata
        blob.upload_from_string(
            data,
            content_type=_BYTES,
            if_generation_match=generation,
            timeout=timeout or _timeout(len(data)),
            checksum=_checksum(),
            retry=None,
        )
        return int(blob.generation)

    def _stat(self, name: str) -> Any | None:
        blob = self._blob(name)
        if not self._is_there(lambda: blob.reload(timeout=_timeout(), retry=None)):
            return None
        if blob.generation is None or blob.size is None or blob.updated is None:
            raise ValueError("it says nothing of the object")
        return blob

    def _is_there(self, call: Callable[[], object]) -> bool:
        """Return True if the object existed; a missing bucket raises instead."""
        from google.api_core.exceptions import NotFound

        try:
            call()
        except NotFound as error:
            problem = read_error(error)
            if problem is not None and problem.no_bucket:
                raise
            return False
        return True

    def _get(
        self, name: str, start: int, stop: int | None, end: int | None, generation: int | None, limit: int | None
    ) -> Piece | None:
        from google.api_core.exceptions import RequestRangeNotSatisfiable

        whole = start == 0 and stop is None
        blob = self._blob(name, generation)
        into = io.BytesIO() if limit is None else _Bounded(too_large(name, self.url, limit), limit)

        def load() -> None:
            blob.download_to_file(
                into,
                start=None if whole else start,
                end=None if stop is None else stop - 1,
                raw_download=True,
                checksum=_checksum() if whole else None,
                timeout=_timeout(),
                retry=None,
            )

        try:
            if not self._is_there(load):
                return None
        except RequestRangeNotSatisfiable:  # it begins at the end of the object, or after it
            there = self._stat(name)
            if there is None:
                return None
            return Piece(b"", int(there.generation), moment(there), there.size, there.crc32c or "")
        data = into.getvalue()
        headers = self.client.headers()
        total = headers.get("Content-Range", "").rpartition("/")[2]
        made = int(blob.generation)
        return Piece(
            data if end is None else data[: max(0, end - start)],
            made,
            moment_of(made, parsedate_to_datetime(headers["Last-Modified"]).timestamp()),
            int(total) if total.isdecimal() else start + len(data),
            blob.crc32c or "",
        )


class _Bounded(io.BytesIO):
    """A file that accepts a limited number of bytes, and raises on more."""

    def __init__(self, error: Exception, limit: int) -> None:
        super().__init__()
        self._error, self._limit = error, limit

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self._limit:
            raise self._error
        return super().write(data)


def moment(blob: Any) -> float:
    """The time at which an object was written, as every verb reports it."""
    return moment_of(int(blob.generation), float(int(blob.updated.timestamp())))


def _timeout(size: int = 0) -> tuple[float, float]:
    return _CONNECT, _ANSWER + size / _SLOWEST


def _read_any_error(error: Exception) -> ApiError | None:
    from google.auth.exceptions import GoogleAuthError, TransportError

    if isinstance(error, GoogleAuthError) and not isinstance(error, TransportError):
        if getattr(error, "retryable", False):
            return ApiError(0, "", str(error))
        raise refused(error) from error
    if isinstance(error, (ValueError, TypeError, LookupError, AttributeError)) and not isinstance(error, KineticError):
        known = read_error(error)
        return known or ApiError(0, "", f"the answer cannot be read ({type(error).__name__}: {error})")
    return read_error(error)
