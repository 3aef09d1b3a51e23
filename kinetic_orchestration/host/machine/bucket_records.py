"""The record store on Google Cloud Storage, for hosts that have nothing but Python: its JSON API over plain HTTP.

The same verbs as `files.FileRecords`, each one request or a few. Every conditional write is one multipart upload:
other kinds of upload and conditional deletes are not honoured by every server that speaks this API. It owns what is
asked again and for how long, and finds out what became of a write whose answer was lost. It does not know what the
records mean.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import http.client
import os
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.connections import CHUNK, STALE, Connections, TooMuch
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.records.base import Entry, Record, RecordsError, Signal, TooLarge, check_name
from kinetic_orchestration.protocol.records.bucket_metadata import (
    SIGNAL,
    Clock,
    moment_of,
    signal_metadata,
    signals_of,
)
from kinetic_orchestration.protocol.system.parallel import REQUESTS, side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import BinaryIO

PATIENCE = 60.0
LARGE = 32 << 20  # from here on an object is fetched in parts, side by side
PARTS = 8
SPARE = 256 << 20  # of a disk, which is never filled to the brim
PAGE = 1000
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
PAGE_LIMIT = 64 << 20  # bytes of a thousand entries, of which each has 8 KiB of metadata at most

_HELP = {
    401: "the service account of this machine is not known there",
    403: "grant the service account of this machine roles/storage.objectUser on the bucket",
    404: "the bucket is not there",
}
_ERRNO = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT}


class Bucket:
    """Requests to one bucket, from any thread. Connections are kept for the next request.

    Args:
        name: Of the bucket.
        advise: Returns what lets this machine use the bucket of a name, "" if that is not known; None for a machine
            whose account an administrator sees.
    """

    def __init__(self, name: str, advise: Callable[[str], str] | None = None) -> None:
        self.name = name
        self._advise = advise
        self.clock = Clock()
        self._connections = Connections(bootstrap.endpoint("storage"), self.clock)

    def object(self, name: str, **query: Any) -> str:
        return f"/storage/v1/b/{self.name}/o/{quote(name, safe='')}" + (f"?{urlencode(query)}" if query else "")

    def ask(
        self,
        method: str,
        target: str,
        patience: float | None = None,
        check: Callable[[bootstrap.Reply], Any] | None = None,
        **more: Any,
    ) -> tuple[bootstrap.Reply, bool]:
        """Send a request. Returns the answer, and True if an earlier answer may have been lost: then the request may
        have taken effect.
        """
        unsure, stale = False, False
        reply = bootstrap.Reply(0, {}, b"")
        for _ in bootstrap.tries(PATIENCE if patience is None else patience):
            reply = self._once(method, target, fresh=stale, **more)
            if reply.status == 0 and reply.data == STALE:  # a connection that had been idle for too long
                unsure = True
                reply = self._once(method, target, **more)
            if check is not None and 200 <= reply.status < 300 and (why := _unreadable(check, reply)):
                server = self._connections.base.netloc
                reply = bootstrap.Reply(0, {}, f"{server} answers what cannot be read: {why}".encode())
            stale = reply.status == 401 and not stale
            if reply.status not in bootstrap.PASSING and not stale:
                break
            unsure = unsure or reply.status in (0, 500, 502, 503, 504)
        return reply, unsure

    def _once(
        self,
        method: str,
        target: str,
        *,
        fresh: bool = False,
        head: bytes = b"",
        file: BinaryIO | None = None,
        tail: bytes = b"",
        headers: Mapping[str, str] | None = None,
        into: Any = None,
        most: int | None = None,
    ) -> bootstrap.Reply:
        """Send one request. Its body is `head`, then a file, then `tail`; a good answer's body goes to `into`, if
        given.

        Raises TooMuch if the answer has more than `most` bytes.
        """
        sent, body = {**(headers or {}), **bootstrap.authorization(fresh=fresh)}, None
        if method == "POST":
            size = 0 if file is None else os.fstat(file.fileno()).st_size
            sent["Content-Length"] = str(len(head) + size + len(tail))
            body = head + tail if file is None else _chunks(head, file, tail)
        target = self._connections.base.path + target
        return self._connections.send(method, target, sent, body, into=into, most=most)

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._connections.close()

    # ---- objects ---------------------------------------------------------------------------------------------

    def facts(self, name: str) -> dict[str, Any] | None:
        reply, _ = self.ask("GET", self.object(name), check=_check_facts)
        if reply.status == 404 and self._has_bucket(reply):
            return None
        self.check(reply, "read", name)
        found: dict[str, Any] = reply.json()
        return found

    def listing(self, prefix: str, start: str = "") -> Iterator[dict[str, Any]]:
        token = ""
        while True:
            query = {"prefix": prefix, "maxResults": PAGE, "projection": "noAcl"}
            if start:
                query["startOffset"] = start
            if token:
                query["pageToken"] = token
            try:
                target = f"/storage/v1/b/{self.name}/o?{urlencode(query)}"
                reply, _ = self.ask("GET", target, most=PAGE_LIMIT, check=_check_page)
            except TooMuch:
                raise TooLarge(f"the listing of {prefix}", str(self), PAGE_LIMIT) from None
            self.check(reply, "list", prefix)
            page = reply.json()
            yield from page.get("items", ())
            token = page.get("nextPageToken", "")
            if not token:
                return

    def write(
        self, name: str, data: bytes | BinaryIO, condition: int | None = None, metadata: Mapping[str, str] | None = None
    ) -> int | None:
        """Write the object; return its new generation, or None if the condition did not hold."""
        facts: dict[str, Any] = {"name": name, "contentType": "application/octet-stream"}
        if metadata:
            facts["metadata"] = dict(metadata)
        head, tail, kind = bootstrap.multipart(facts)
        query = {"uploadType": "multipart"} | ({} if condition is None else {"ifGenerationMatch": str(condition)})
        if isinstance(data, bytes):
            body: dict[str, Any] = {"head": head + data, "tail": tail}
        else:
            body = {"head": head, "file": data, "tail": tail}
        target = f"/upload/storage/v1/b/{self.name}/o?{urlencode(query)}"
        reply, unsure = self.ask("POST", target, check=_check_written, headers=kind, **body)
        # A swap of a missing object is answered with either status.
        refused = reply.status == 412 or (bool(condition) and reply.status == 404 and self._has_bucket(reply))
        if refused:
            return self._mine_after_all(name, data, condition) if unsure else None
        if reply.status in bootstrap.PASSING and unsure and condition is not None:
            generation = self._mine_after_all(name, data, condition)
            if generation is not None:
                return generation
        self.check(reply, "write", name)
        return int(reply.json()["generation"])

    def _mine_after_all(self, name: str, data: bytes | BinaryIO, condition: int | None) -> int | None:
        """Return the object's generation if a conditional write whose answer was lost has succeeded: the stored bytes
        are the ones that were sent.
        """
        if not isinstance(data, bytes):
            return self._file_after_all(name, data)
        found = self.read(name, 0, len(data) + 1)
        return found.generation if found is not None and found.data == data and found.generation != condition else None

    def _file_after_all(self, name: str, file: BinaryIO) -> int | None:
        found = self.facts(name)
        if found is None or int(found["size"]) != os.fstat(file.fileno()).st_size:
            return None
        return int(found["generation"]) if base64.b64decode(found.get("md5Hash", "")) == _md5_in(file) else None

    def read(self, name: str, start: int = 0, end: int | None = None, limit: int = names.RECORD_LIMIT) -> Record | None:
        whole = start == 0 and end is None
        if end is not None and end <= start:
            return _record(b"", self.facts(name))
        part = {} if whole else {"Range": f"bytes={start}-" + ("" if end is None else str(end - 1))}
        # A server that honours no range would send all of it.
        most = limit if end is None else max(limit, end)
        try:
            reply, _ = self.ask("GET", self.object(name, alt="media"), headers=part, most=most, check=_check_bytes)
        except TooMuch:
            raise TooLarge(name, str(self), most) from None
        if reply.status == 404 and self._has_bucket(reply):
            return None
        if reply.status == 416:
            return _record(b"", self.facts(name))
        self.check(reply, "read", name)
        data = reply.data if whole or reply.status == 206 else reply.data[start:end]
        generation, changed = reply.headers.get("X-Goog-Generation"), reply.headers.get("Last-Modified")
        if generation is None or changed is None:
            return _record(data, self.facts(name))
        return Record(data, int(generation), moment_of(int(generation), parsedate_to_datetime(changed).timestamp()))

    def fetch(self, name: str, path: str, most: int = names.LARGEST_FILE) -> bool:
        """Write the object to a file, whole or not at all; False if there is none. Raises TooLarge, before anything is
        written, for one that has more than `most` bytes.
        """
        why = "it is changed all the time"
        for _ in range(5):
            found = self._begin_to_fetch(name)
            if found is None:
                return False
            size, generation, whole, told = found
            if size > most:
                raise TooLarge(name, str(self), most, size)
            check_room(os.path.dirname(path) or ".", size, name)
            part = f"{path}.{os.urandom(4).hex()}.part"
            try:
                if whole is not None:
                    _write_file(part, whole, name)
                if whole is not None or self._fetch_into(part, name, size, generation):
                    if not told or _md5_of(part) == told:
                        os.replace(part, path)
                        return True
                    why = "it does not arrive as it was sent, for its checksum differs"
            finally:
                if os.path.exists(part):
                    os.unlink(part)
        raise RecordsError(errno.EIO, f"Cannot read {name} ({self}): {why}.")

    def _begin_to_fetch(self, name: str) -> tuple[int, str, bytes | None, bytes] | None:
        """Return an object's size and generation, its content if that is small and fits one request, and its checksum
        if the rest is still to come.
        """
        first = {"Range": f"bytes=0-{CHUNK - 1}"}
        try:
            reply, _ = self.ask("GET", self.object(name, alt="media"), headers=first, most=CHUNK, check=_check_bytes)
        except TooMuch:  # from a server that honours no range
            reply = bootstrap.Reply(200, {}, b"")
        if reply.status == 404 and self._has_bucket(reply):
            return None
        generation, size = reply.headers.get("X-Goog-Generation"), reply.headers.get("Content-Range", "")
        size = size.rpartition("/")[2]
        if reply.status == 206 and generation is not None and size.isdecimal():
            if len(reply.data) == int(size):
                return int(size), generation, reply.data, b""
            return int(size), generation, None, _md5_told(reply)
        facts = self.facts(name)  # an empty object has no range, and some servers send fewer headers
        if facts is None:
            return None
        return int(facts["size"]), str(facts["generation"]), None, base64.b64decode(facts.get("md5Hash", ""))

    def _fetch_into(self, part: str, name: str, size: int, generation: str) -> bool:
        """Fetch an object into a new file. Returns False if another object has taken the name meanwhile."""
        target = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            os.truncate(target, size)
            if size < LARGE:
                return self._fetch_range(target, name, 0, size, generation)
            step = max(LARGE // 4, -(-size // (4 * PARTS)))

            def fetched(at: int) -> bool:
                return self._fetch_range(target, name, at, min(at + step, size), generation)

            return all(side_by_side(fetched, range(0, size, step), PARTS, name="kinetic-fetch"))
        finally:
            os.close(target)

    def _fetch_range(self, target: int, name: str, start: int, end: int, generation: str) -> bool:
        """Fetch a range of bytes, resuming where a transfer broke off. Returns False if the name has another object."""
        at = start

        def take(data: bytes) -> None:
            nonlocal at
            if at + len(data) > end:
                raise http.client.HTTPException("more came than was asked for")
            try:
                os.pwrite(target, data, at)
            except OSError as error:
                raise _Full(error.errno, f"Cannot write {name} to this disk: {error.strerror}.") from None
            at += len(data)

        target_url = self.object(name, alt="media", generation=generation)
        reply = bootstrap.Reply(0, {}, b"")
        while at < end:
            before = at
            for _ in bootstrap.tries(PATIENCE):
                part = {"Range": f"bytes={at}-{end - 1}"}
                reply = self._once("GET", target_url, fresh=reply.status == 401, headers=part, into=take)
                if at > before or reply.status not in bootstrap.PASSING | {401}:
                    break
            if reply.status == 404 or reply.headers.get("X-Goog-Generation", generation) != generation:
                return False
            if at == before:
                raise self.refusal("read", name, self._why(reply), reply.status)
        return True

    def remove(self, name: str) -> bool:
        reply, unsure = self.ask("DELETE", self.object(name))
        if reply.status == 404 and self._has_bucket(reply):
            return unsure
        self.check(reply, "delete", name)
        return True

    # ---- refusals --------------------------------------------------------------------------------------------

    def _has_bucket(self, reply: bootstrap.Reply) -> bool:
        return "bucket does not exist" not in reply.reason().lower()

    def check(self, reply: bootstrap.Reply, verb: str, name: str) -> None:
        if not 200 <= reply.status < 300:
            raise self.refusal(verb, name, self._why(reply), 0 if _passes(reply) else reply.status)

    def refusal(self, verb: str, name: str, reason: str, status: int = 0) -> RecordsError:
        return RecordsError(_ERRNO.get(status, errno.EIO), f"Cannot {verb} {name} (store {self}): {reason}.")

    def _why(self, reply: bootstrap.Reply) -> str:
        reason = reply.reason().rstrip(".")
        if reply.status in bootstrap.PASSING:
            return f"{reason}, for {PATIENCE:g} s"
        if reply.status == 403 and self._advise is not None and (advice := self._advise(self.name)):
            return f"{reason}. {advice}"
        return f"{reason} ({_HELP[reply.status]})" if reply.status in _HELP else reason

    def __str__(self) -> str:
        return f"gs://{self.name}"


class CloudRecords:
    """The records of one deployment, below a prefix of a bucket."""

    can_append = False  # an object is never written to again
    parallel = REQUESTS
    has_files = False
    may_corrupt = True  # a composed object comes without a checksum

    def __init__(self, url: str, advise: Callable[[str], str] | None = None) -> None:
        name, _, prefix = url.removeprefix("gs://").strip("/").partition("/")
        self.root = self.url = url.rstrip("/")
        self.bucket = Bucket(name, advise)
        self._prefix = f"{prefix}/" if prefix else ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root!r})"

    def _full(self, name: str) -> str:
        check_name(name)
        return self._prefix + name

    def create(self, name: str, data: bytes | bytearray | memoryview) -> int | None:
        """Write `name` if it is absent; return its generation, or None if another writer was first."""
        return self.bucket.write(self._full(name), bytes(data), 0)

    def swap(self, name: str, data: bytes | bytearray | memoryview, generation: int) -> int | None:
        """Write `name` if its generation still is `generation`; return the new one, or None."""
        return self.bucket.write(self._full(name), bytes(data), generation) if generation else None

    def put(self, name: str, data: bytes | bytearray | memoryview) -> int:
        """Write `name`, over any object of that name."""
        generation = self.bucket.write(self._full(name), bytes(data))
        assert generation is not None
        return generation

    def signal(self, name: str, data: bytes) -> int:
        """Put something small that comes with a listing."""
        generation = self.bucket.write(self._full(name), data, metadata=signal_metadata(name, data))
        assert generation is not None
        return generation

    def signals(self, prefix: str) -> Iterator[Signal]:
        """Yield all signals below `prefix` with their data, which is empty for one that is too large: one request for a
        thousand.
        """
        listed = self._listed(prefix)
        facts = ((item["name"], item.get("metadata"), int(item["generation"]), _moment(item)) for item in listed)
        return signals_of(facts, self.read)

    def read(self, name: str, start: int = 0, end: int | None = None, *, limit: int | None = None) -> Record | None:
        """Return the bytes from start to end (neither negative), or None if there is no such object."""
        return self.bucket.read(self._full(name), start, end, names.limit_of(name) if limit is None else limit)

    def list(self, prefix: str) -> Iterator[Entry]:
        """Yield all objects whose name begins with `prefix`, in the order of their names."""
        for item in self._listed(prefix):
            yield Entry(item["name"], int(item["size"]), int(item["generation"]), _moment(item))

    def delete(self, name: str) -> bool:
        """Delete the object. Returns True if this call deleted it, False if it did not exist."""
        return self.bucket.remove(self._full(name))

    def upload(self, name: str, path: str, *, move: bool = False) -> bool:
        """Create `name` from a file; return False if another writer was first. `move` removes the file."""
        with open(path, "rb") as file:
            known = os.fstat(file.fileno()).st_size > CHUNK and self.bucket.facts(self._full(name)) is not None
            won = not known and self.bucket.write(self._full(name), file, 0) is not None
        if move:
            os.unlink(path)
        return won

    def download(self, name: str, path: str, *, most: int | None = None) -> None:
        """Write the object to the file `path`, whole or not at all. Raises TooLarge, before anything is written, for
        one that has more than `most` bytes: by default, than an object of its name has.
        """
        if not self.bucket.fetch(self._full(name), path, names.file_limit_of(name) if most is None else most):
            raise NoObject(errno.ENOENT, f"Cannot read {name} (store {self.root}): there is no such object.")

    def local_path(self, name: str) -> str | None:
        """Return None: no object has a file here."""
        return None

    def ring(self, text: str) -> bool:
        """Tell hosts and followers of a job that something changed. A hint: False when it could not be given."""
        try:
            self.signal(names.ring(text), os.urandom(8).hex().encode())
        except OSError:
            return False
        return True

    def now(self) -> float:
        """Return the store's time, advanced by this machine's monotonic clock since the store last answered."""
        if not self.bucket.clock.known:
            self.bucket.ask("GET", self.bucket.object(self._prefix + "deployment.json"))
        return self.bucket.clock.now()

    def close(self) -> None:
        self.bucket.close()

    def _listed(self, prefix: str) -> Iterator[dict[str, Any]]:
        """Yield the records of a listing. A name with a part that begins with a dot is the client's own, and no
        record.
        """
        if folder := prefix.rpartition("/")[0]:
            check_name(folder)
        for item in self.bucket.listing(self._prefix + prefix):
            name = item["name"][len(self._prefix) :]
            if "/." not in f"/{name}":
                yield {**item, "name": name}


class NoObject(RecordsError, FileNotFoundError):
    """There is no object of that name."""


class _Full(RecordsError):
    """This machine's own disk is full, which no retry mends."""


def _write_file(path: str, data: bytes, name: str) -> None:
    try:
        with open(path, "xb") as file:
            file.write(data)
    except OSError as error:
        raise _Full(error.errno, f"Cannot write {name} to this disk: {error.strerror}.") from None


def _unreadable(check: Callable[[bootstrap.Reply], Any], reply: bootstrap.Reply) -> str:
    """Tells why an answer cannot be read; "" of one that can."""
    try:
        check(reply)
    except UNREADABLE as error:
        return (
            f"{type(error).__name__}: {error}; it begins with {reply.data[:100].decode('utf-8', 'backslashreplace')!r}"
        )
    return ""


def _record(data: bytes, facts: Mapping[str, Any] | None) -> Record | None:
    return None if facts is None else Record(data, int(facts["generation"]), _moment(facts))


def _check_written(reply: bootstrap.Reply) -> None:
    int(reply.json()["generation"])


def _check_facts(reply: bootstrap.Reply) -> None:
    _check_item(reply.json())


def _check_page(reply: bootstrap.Reply) -> None:
    page = reply.json()
    for item in page.get("items", ()):
        item["name"].encode()
        item.get("metadata", {}).get(SIGNAL)
        _check_item(item)
    page.get("nextPageToken", "").encode()


def _check_item(item: Mapping[str, Any]) -> None:
    int(item["size"]), _moment(item), base64.b64decode(item.get("md5Hash", ""))


def _check_bytes(reply: bootstrap.Reply) -> None:
    """Raise ValueError if a complete object differs from its checksum. A composed object has none."""
    generation, changed = reply.headers.get("X-Goog-Generation"), reply.headers.get("Last-Modified")
    if generation is not None and changed is not None:
        moment_of(int(generation), parsedate_to_datetime(changed).timestamp())
    whole = reply.status == 200
    if reply.status == 206:
        place, _, size = reply.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        whole = place.startswith("0-") and size == str(len(reply.data))
    if whole and (told := _md5_told(reply)) and told != hashlib.md5(reply.data, usedforsecurity=False).digest():
        raise ValueError("its checksum differs")


def _md5_told(reply: bootstrap.Reply) -> bytes:
    """Return the checksum of the whole object from the answer's headers; none for a composed object."""
    headers: Any = reply.headers
    told = headers.get_all("X-Goog-Hash", ()) if hasattr(headers, "get_all") else ()
    found = [part.strip() for line in told for part in line.split(",")]
    return next((base64.b64decode(part[4:]) for part in found if part.startswith("md5=")), b"")


def _md5_in(file: BinaryIO) -> bytes:
    file.seek(0)
    found = hashlib.md5(usedforsecurity=False)
    while data := file.read(CHUNK):
        found.update(data)
    return found.digest()


def _md5_of(path: str) -> bytes:
    with open(path, "rb") as file:
        return _md5_in(file)


def _chunks(head: bytes, file: BinaryIO, tail: bytes) -> Iterator[bytes]:
    file.seek(0)
    yield head
    while data := file.read(CHUNK):
        yield data
    yield tail


def _passes(reply: bootstrap.Reply) -> bool:
    """Return True if a refusal is unrelated to this account's rights."""
    return (reply.status == 401 and not bootstrap.has_token()) or (
        reply.status == 403 and b"ateLimitExceeded" in reply.data
    )


def _moment(facts: Mapping[str, Any]) -> float:
    """Return when an object was written. Python 3.10 does not read RFC 3339 with any number of digits, so only seconds
    are read.
    """
    whole = datetime.fromisoformat(facts["updated"][:19] + "+00:00")
    return moment_of(int(facts["generation"]), whole.timestamp())


def check_room(folder: str, size: int, name: str) -> None:
    """Raise unless so many bytes fit on the disk of a folder, with some to spare."""
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if size + min(SPARE, size) > free:
        raise _Full(
            errno.ENOSPC,
            f"Cannot download {name}: it has {size / 1e9:.1f} GB, and the disk of {folder} has {free / 1e9:.1f} GB "
            "free. Give each host only the part that it reads, or read it from the bucket in parts.",
        )
