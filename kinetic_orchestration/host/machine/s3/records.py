"""The record store on S3 and servers that speak its API (MinIO, Ceph, Cloudflare R2), for hosts and clients, with the
standard library only.

A generation is the ETag of the object, as a number: every answer and every listing tells it, and `If-Match` compares it
on the server. An ETag is a digest of the bytes, so equal bytes would have equal generations, and a swap could not see
that another one came between. Hence each write ends its object with a tail of its own: blanks that stand for a random
number, after which JSON is still JSON, and text still text. The object's metadata has the length of the tail; the
random number, by which a writer whose answer was lost finds out whether it wrote; and a checksum of the content.
Records that are `plain` have no tail: for places that other programs read, where nothing is swapped.

Conditions are put on PUT and on the completion of an upload alone: not every server honours one on DELETE. A listing
has no content, so a signal is read when its ETag is a new one. It does not know what the records mean.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import zlib
from collections import namedtuple
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.bucket_records import NoObject, check_room
from kinetic_orchestration.host.machine.connections import CHUNK, TooMuch
from kinetic_orchestration.host.machine.s3 import refusals, requests
from kinetic_orchestration.host.machine.s3.requests import Body, requests_of
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.records.base import (
    Damaged,
    Entry,
    Misconfigured,
    Record,
    RecordsError,
    Signal,
    TooLarge,
    check_name,
)
from kinetic_orchestration.protocol.records.bucket_metadata import SIGNAL_LIMIT
from kinetic_orchestration.protocol.system.parallel import REQUESTS, side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, BinaryIO
    from xml.etree.ElementTree import Element

    _Read = list[Record | None]  # in the class, `list` is a verb

SCHEME = "s3://"
TAIL = 32
NOTE = "x-amz-meta-kinetic"
LARGE = 64 << 20  # from here on an object is sent and fetched in parts, side by side
PART = 16 << 20
PARTS = 8  # at once
MOST_PARTS = 9000
COPIED = 5 << 30  # bytes that one request copies
PAGE = 1000
PAGE_LIMIT = 16 << 20

_BLANKS = b" \t\n\r"


class Note(namedtuple("Note", "mark checksum tail")):
    """The metadata of an object: its writer's mark, its content's CRC-32, the bytes after its content."""

    __slots__ = ()
    mark: str
    checksum: int
    tail: int

    def __str__(self) -> str:
        return f"{self.mark}-{self.checksum:08x}-{self.tail}"


class Facts(namedtuple("Facts", "etag size updated note")):
    """The facts of an object, from the headers of an answer. `note`: None of one that another program wrote."""

    __slots__ = ()
    etag: str
    size: int
    updated: float
    note: Note | None


class Item(namedtuple("Item", "name size etag updated")):
    """An entry of a listing, as the server gives it."""

    __slots__ = ()
    name: str
    size: int
    etag: str
    updated: float


class S3Records:
    """The records of one deployment, below a prefix of a bucket."""

    can_append = False
    parallel = REQUESTS
    has_files = False
    may_corrupt = False  # every object that this package writes has its checksum

    def __init__(self, url: str, *, plain: bool = False) -> None:
        bucket, _, prefix = url[len(SCHEME) :].strip("/").partition("/")
        self.root = self.url = url.rstrip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._plain = plain
        self._heard: dict[str, tuple[str, bytes]] = {}  # signals that were read, with their ETags
        self._lock = threading.Lock()  # of what was heard
        try:
            self.requests = requests_of(bucket)
        except ValueError as error:
            raise Misconfigured(errno.EINVAL, f"{error}.") from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root!r})"

    def create(self, name: str, data: bytes | bytearray | memoryview) -> int | None:
        """Write `name` if it is absent; return its generation, or None if another writer was first."""
        return _generation(self._put(name, bytes(data), {"If-None-Match": "*"}))

    def swap(self, name: str, data: bytes | bytearray | memoryview, generation: int) -> int | None:
        """Write `name` if its generation still is `generation`; return the new one, or None."""
        check_name(name)
        etag = _etag(generation)
        return _generation(self._put(name, bytes(data), {"If-Match": f'"{etag}"'})) if etag else None

    def put(self, name: str, data: bytes | bytearray | memoryview) -> int:
        """Write `name`, over any object of that name."""
        generation = _generation(self._put(name, bytes(data), {}))
        assert generation is not None
        return generation

    def signal(self, name: str, data: bytes) -> int:
        """Put something small that others read as soon as a listing shows that it is new."""
        if len(data) > SIGNAL_LIMIT:
            raise ValueError(f"a signal has at most {SIGNAL_LIMIT} bytes, and {name} would have {len(data)}")
        generation = self.put(name, data)
        with self._lock:
            if name in self._heard:
                self._heard[name] = _text(generation), data
        return generation

    def signals(self, prefix: str) -> Iterator[Signal]:
        """Yield all signals below `prefix` with their data, which is empty for one that is too large: one request for a
        thousand, and one for each that others have written since it was last read here.
        """
        listed = list(self._listed(prefix))
        with self._lock:
            heard = dict(self._heard)
        new = [item for item in listed if heard.get(item.name, ("",))[0] != item.etag]
        records: dict[str, Record | None] = dict(zip([item.name for item in new], self._read_signals(new), strict=True))
        there = {item.name for item in listed}
        with self._lock:
            for name in [name for name in self._heard if name.startswith(prefix) and name not in there]:
                del self._heard[name]
            for name, record in records.items():
                if record is not None:
                    self._heard[name] = _text(record.generation), record.data
        for item in listed:
            if item.name not in records:
                yield Signal(item.name, heard[item.name][1], number_of(item.etag), item.updated)
            elif (record := records[item.name]) is not None:
                yield Signal(item.name, *record)

    def read(self, name: str, start: int = 0, end: int | None = None, *, limit: int | None = None) -> Record | None:
        """Return the bytes from start to end (neither negative), or None if there is no such object."""
        key, limit = self._key(name), names.limit_of(name) if limit is None else limit
        if end is not None and end <= start:
            return _record(b"", self._facts(name))
        whole = start == 0 and end is None
        part = {} if whole else {"Range": f"bytes={start}-" + ("" if end is None else str(end - 1))}
        most = TAIL + (limit if end is None else max(limit, end))  # a server that honours no range would send all of it
        try:
            reply, _ = self._ask("GET", key, headers=part, most=most, check=_check_bytes)
        except TooMuch:
            raise self.too_large(name, limit) from None
        if refusals.read(reply).absent:
            return None
        if reply.status == 416:
            return _record(b"", self._facts(name))
        self._check(reply, "read", name)
        facts = facts_of(reply)
        stop = facts.size if end is None else min(end, facts.size)
        data = reply.data[: max(0, stop - start)] if reply.status == 206 else reply.data[start:stop]
        if end is None and len(data) > limit:
            raise self.too_large(name, limit, facts.size)
        return Record(data, number_of(facts.etag), facts.updated)

    def list(self, prefix: str) -> Iterator[Entry]:
        """Yield all objects whose name begins with `prefix`, in the order of their names."""
        tail = 0 if self._plain else TAIL
        for item in self._listed(prefix):
            yield Entry(item.name, max(0, item.size - tail), number_of(item.etag), item.updated)

    def delete(self, name: str) -> bool:
        """Delete the object. Returns True if it was there, also to each of two calls that meet."""
        if self._facts(name) is None:
            return False
        reply, _ = self._ask("DELETE", self._key(name))
        if not refusals.read(reply).absent:
            self._check(reply, "delete", name)
        return True

    def upload(self, name: str, path: str, *, move: bool = False) -> bool:
        """Create `name` from a file; return False if another writer was first. `move` removes the file."""
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > CHUNK and self._facts(name) is not None:
                won = False
            elif size > LARGE:
                won = self._send(name, file, size)
            else:
                won = self._put(name, file.read(), {"If-None-Match": "*"}) is not None
        if move:
            os.unlink(path)
        return won

    def download(self, name: str, path: str, *, most: int | None = None) -> None:
        """Write the object to the file `path`, whole or not at all. Raises TooLarge, before anything is written, for
        one that has more than `most` bytes: by default, than an object of its name has.
        """
        most = names.file_limit_of(name) if most is None else most
        for _ in range(5):
            temporary = f"{path}.{os.urandom(4).hex()}.part"
            try:
                if self._fetch(name, temporary, most):
                    os.replace(temporary, path)
                    return
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
        raise self.damaged(name, "it is changed all the time, or its checksum differs")

    def local_path(self, name: str) -> str | None:
        """Return None: no object has a file here."""
        check_name(name)
        return None

    def ring(self, text: str) -> bool:
        """Tell hosts and followers of a job that something changed. A hint: False when it could not be given."""
        try:
            self.signal(names.ring(text), b"")
        except OSError:
            return False
        return True

    def now(self) -> float:
        """Return the store's time, advanced by this machine's monotonic clock since the store last answered. It is
        asked until it answers: this machine's own clock counts only if it does not for a minute, or without its time.
        """
        clock, tries = self.requests.clock, bootstrap.tries(requests.PATIENCE)
        while not clock.known and next(tries, False) is None:
            reply, _ = self._ask("HEAD", self._prefix + names.DEPLOYMENT, patience=0.0)
            if reply.status not in bootstrap.PASSING:
                break
        return clock.now()

    def close(self) -> None:
        self.requests.close()

    def too_large(self, name: str, limit: int, size: int | None = None) -> Exception:
        return TooLarge(name, self.root, limit, size)

    def refusal(self, number: int, verb: str, name: str, reason: str) -> Exception:
        """Return the error for a request that was refused, or not answered (EAGAIN)."""
        if number == errno.EAGAIN:
            number, reason = errno.EIO, f"{reason}, for {requests.PATIENCE:g} s"
        return RecordsError(number, f"Cannot {verb} {name} (store {self.root}): {reason}.")

    def misconfigured(self, number: int, verb: str, name: str, reason: str) -> Exception:
        """Return the error for a request that a server refuses for its key or its rights, or as it has no such
        bucket."""
        return Misconfigured(number, f"Cannot {verb} {name} (store {self.root}): {reason}.")

    def damaged(self, name: str, reason: str) -> Exception:
        """Return the error for an object whose bytes are not those that were written."""
        return Damaged(errno.EIO, f"Cannot read {name} (store {self.root}): {reason}.")

    # ---- requests --------------------------------------------------------------------------------------------

    def _ask(self, method: str, key: str = "", *more: Any, **options: Any) -> tuple[bootstrap.Reply, bool]:
        return self.requests.ask(method, key, *more, **options)

    def _key(self, name: str) -> str:
        check_name(name)
        return self._prefix + name

    def _check(self, reply: bootstrap.Reply, verb: str, name: str) -> None:
        if reply.status == 0 and reply.data == requests.TORN:
            raise self.damaged(name, "its checksum differs, however often it is asked for")
        if not 200 <= reply.status < 300:
            told, used = refusals.read(reply), self.requests.chain.get()
            number, words = refusals.explain(told, self.requests.place, used.source, self.requests.region)
            # A new key of a role may not be known yet.
            if told.is_of_bucket or told.is_of_right or (told.is_of_key and not used.expires):
                raise self.misconfigured(number, verb, name, words)
            raise self.refusal(number, verb, name, words)

    def _tail(self, mark: bytes) -> bytes:
        """Return the blanks that stand for a writer's mark."""
        if self._plain:
            return b""
        return bytes(_BLANKS[byte >> shift & 3] for byte in mark for shift in (6, 4, 2, 0))

    def _put(self, name: str, data: bytes, condition: Mapping[str, str], patience: float | None = None) -> str | None:
        """Write an object and return its ETag, or None if the condition did not hold."""
        key, mark = self._key(name), os.urandom(TAIL // 4)
        tail = self._tail(mark)
        note = Note(mark.hex(), zlib.crc32(data), len(tail))
        reply, unsure = self._ask(
            "PUT",
            key,
            headers={NOTE: str(note), "Content-Type": "application/octet-stream", **condition},
            body=Body(data + tail),
            check=_etag_of,
            patience=patience,
        )
        return self._outcome(reply, unsure, name, note.mark, bool(condition))

    def _outcome(self, reply: bootstrap.Reply, unsure: bool, name: str, mark: str, conditional: bool) -> str | None:
        """Return the ETag of what was written, or None if its condition did not hold."""
        told = refusals.read(reply)
        failed = reply.status == 412 or (conditional and told.absent)
        ended = told.code == "NoSuchUpload"  # by an earlier try, or since another write came between
        if conditional and (ended or reply.status == 412 or ((failed or told.passes) and unsure)):
            there = self._facts(name)  # may be our own: something between here and the server may have sent it twice
            if there is not None and there.note is not None and there.note.mark == mark:
                return there.etag
            failed = failed or (ended and there is not None)
        if failed:
            return None
        self._check(reply, "write", name)
        return _etag_of(reply)

    def _facts(self, name: str) -> Facts | None:
        """Return what is known of an object; None if there is none."""
        key = self._key(name)
        reply, _ = self._ask("HEAD", key, check=facts_of)
        if reply.status == 200:
            return facts_of(reply)
        # The answer to HEAD has no words: those for a bucket that is missing, or a permission.
        reply, _ = self._ask("GET", key, headers={"Range": "bytes=0-0"}, most=CHUNK, check=facts_of)
        if refusals.read(reply).absent:
            return None
        self._check(reply, "read", name)
        return facts_of(reply)

    def _listed(self, prefix: str, *, hidden: bool = False) -> Iterator[Item]:
        """Yield the objects whose names begin with `prefix`. A name with a part that begins with a dot is hidden."""
        if (folder := prefix.rpartition("/")[0]) and not hidden:
            check_name(folder)
        token = ""
        while True:
            query = [("list-type", "2"), ("encoding-type", "url"), ("max-keys", str(PAGE))]
            query += [("prefix", self._prefix + prefix)] + ([("continuation-token", token)] if token else [])
            try:
                reply, _ = self._ask("GET", query=query, most=PAGE_LIMIT, check=_page)
            except TooMuch:
                raise self.too_large(f"the listing of {prefix}", PAGE_LIMIT) from None
            self._check(reply, "list", prefix)
            items, token = _page(reply)
            for item in items:
                name = item.name[len(self._prefix) :]
                if name and not name.endswith("/") and (hidden or "/." not in f"/{name}"):
                    yield item._replace(name=name)
            if not token:
                return

    def _read_signals(self, items: Sequence[Item]) -> _Read:
        def read(item: Item) -> Record | None:
            record = self.read(item.name, 0, SIGNAL_LIMIT + 1)
            return record if record is None or len(record.data) <= SIGNAL_LIMIT else record._replace(data=b"")

        return side_by_side(read, items, REQUESTS, name="kinetic-signals")

    # ---- large objects ---------------------------------------------------------------------------------------

    def _send(self, name: str, file: BinaryIO, size: int) -> bool:
        """Create an object from a file, by parts. Returns False if another writer was first."""
        mark = os.urandom(TAIL // 4)
        tail, checksum, at = self._tail(mark), 0, 0
        while piece := os.pread(file.fileno(), CHUNK, at):
            checksum, at = zlib.crc32(piece, checksum), at + len(piece)
        note = Note(mark.hex(), checksum, len(tail))
        total = size + len(tail)
        step = max(PART, -(-total // MOST_PARTS))  # of all parts but the last, which may only be smaller

        def part(number: int) -> tuple[Body, dict[str, str]]:
            start = (number - 1) * step
            asked = max(0, min(step, size - start))
            data = os.pread(file.fileno(), asked, start)
            if len(data) != asked:
                raise self.refusal(errno.EIO, "write", name, "the file became shorter meanwhile")
            return Body(data + tail[max(0, start - size) : max(0, start + step - size)]), {}

        return self._assemble(name, note, -(-total // step), part, {"If-None-Match": "*"}) is not None

    def _assemble(
        self,
        name: str,
        note: Note,
        parts: int,
        part: Callable[[int], tuple[Body, dict[str, str]]],
        condition: Mapping[str, str],
    ) -> str | None:
        """Write an object by parts, each of which has a body and headers; return its ETag as `_put` does."""
        key = self._key(name)
        kind = {NOTE: str(note), "Content-Type": "application/octet-stream"}
        reply, _ = self._ask("POST", key, [("uploads", "")], kind, check=lambda told: field_of(told, "UploadId"))
        self._check(reply, "write", name)
        upload = ("uploadId", field_of(reply, "UploadId"))

        def send(number: int) -> str:
            body, headers = part(number)
            where = [("partNumber", str(number)), upload]
            reply, _ = self._ask("PUT", key, where, headers, body, check=_part_etag)
            self._check(reply, "write", name)
            return _part_etag(reply)

        done = False
        try:
            numbers = range(1, parts + 1)
            etags = side_by_side(send, numbers, PARTS, name="kinetic-parts")
            told = "".join(
                f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
                for number, etag in zip(numbers, etags, strict=True)
            )
            whole = Body(f"<CompleteMultipartUpload>{told}</CompleteMultipartUpload>".encode())
            reply, unsure = self._ask("POST", key, [upload], condition, whole, check=_completed)
            etag = self._outcome(reply, unsure, name, note.mark, True)
            done = etag is not None
            return etag
        finally:
            if not done:
                with contextlib.suppress(OSError):
                    self._ask("DELETE", key, [upload], patience=0.0)

    def _fetch(self, name: str, path: str, most: int) -> bool:
        """Write the object to a new file. Returns False if another object took its name meanwhile, or it was torn."""
        key = self._key(name)
        try:
            first = {"Range": f"bytes=0-{CHUNK - 1}"}
            reply, _ = self._ask("GET", key, headers=first, most=CHUNK, check=_check_bytes)
        except TooMuch:  # from a server that honours no range
            reply = bootstrap.Reply(416, {}, b"")
        if refusals.read(reply).absent:
            facts = None
        elif reply.status == 416:
            facts, reply = self._facts(name), bootstrap.Reply(206, {}, b"")
        else:
            self._check(reply, "read", name)
            facts = facts_of(reply)
        if facts is None:
            raise self.missing(name)
        if facts.size > most:
            raise self.too_large(name, most, facts.size)
        check_room(os.path.dirname(path) or ".", facts.size, name)
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise self.refusal(error.errno or errno.EIO, "write", path, f"{error.strerror}") from None
        try:
            begun = min(len(reply.data), facts.size)
            _write(file, reply.data[:begun], 0, path)
            step = facts.size if facts.size < LARGE else max(PART, -(-facts.size // (4 * PARTS)))

            def fetch(at: int) -> bool:
                return self._fetch_range(file, name, path, at, min(at + step, facts.size), facts.etag)

            pieces = range(begun, facts.size, step or 1)
            if not all(side_by_side(fetch, pieces, PARTS, name="kinetic-fetch")):
                return False
            return facts.note is None or _checksum(file) == facts.note.checksum
        finally:
            os.close(file)

    def _fetch_range(self, file: int, name: str, path: str, start: int, end: int, etag: str) -> bool:
        """Fetch a range of bytes, resuming where a transfer broke off. Returns False if the name has another object."""
        at = start

        def take(data: bytes) -> None:
            nonlocal at
            _write(file, data[: end - at], at, path)
            at += min(len(data), end - at)

        while at < end:
            before = at
            reply = bootstrap.Reply(0, {}, b"")
            for _ in bootstrap.tries(requests.PATIENCE):
                part = {"Range": f"bytes={at}-{end - 1}", "If-Match": f'"{etag}"'}
                reply, _ = self._ask("GET", self._key(name), headers=part, into=take, patience=0.0)
                if at > before or not refusals.read(reply).passes:
                    break
            if reply.status == 412 or refusals.read(reply).absent:
                return False
            if at == before:
                self._check(reply, "read", name)
                raise self.refusal(errno.EIO, "read", name, "the server sends nothing of it")
        return True

    def missing(self, name: str) -> Exception:
        """Return the error for an object that is to be downloaded and does not exist."""
        return NoObject(errno.ENOENT, f"Cannot read {name} (store {self.root}): there is no such object.")


def _write(file: int, data: bytes, at: int, path: str) -> None:
    try:
        os.pwrite(file, data, at)
    except OSError as error:
        raise RecordsError(error.errno or errno.EIO, f"Cannot write {path}: {error.strerror}.") from None


def _checksum(file: int) -> int:
    found = at = 0
    while piece := os.pread(file, CHUNK, at):
        found, at = zlib.crc32(piece, found), at + len(piece)
    return found


# ---- answers -------------------------------------------------------------------------------------------------------


def facts_of(reply: bootstrap.Reply) -> Facts:
    """Read the headers of an answer about an object."""
    note = _note(reply.headers.get(NOTE, ""))
    _, _, total = reply.headers.get("Content-Range", "").rpartition("/")
    size = int(total or reply.headers.get("Content-Length") or len(reply.data)) - (note.tail if note else 0)
    return Facts(_etag_of(reply), max(0, size), _seconds(reply.headers["Last-Modified"]), note)


def _note(text: str) -> Note | None:
    mark, _, rest = text.partition("-")
    checksum, _, tail = rest.partition("-")
    return Note(mark, int(checksum, 16), int(tail)) if mark and checksum and tail in ("0", str(TAIL)) else None


def _check_bytes(reply: bootstrap.Reply) -> None:
    """Raise ValueError if a whole object differs from its checksum."""
    facts = facts_of(reply)
    place, _, total = reply.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
    whole = reply.status == 200 or (place.startswith("0-") and total == str(len(reply.data)))
    if whole and facts.note is not None and zlib.crc32(reply.data[: facts.size]) != facts.note.checksum:
        raise requests.Torn


def _page(reply: bootstrap.Reply) -> tuple[list[Item], str]:
    """Read a page of a listing, with the token of the next one."""
    items: list[Item] = []
    root, space = _tree(reply)
    for part in root.iterfind(f"{space}Contents"):
        told = {field: part.findtext(space + field) or "" for field in ("Key", "Size", "ETag", "LastModified")}
        updated = _instant(told["LastModified"])
        items.append(Item(unquote_plus(told["Key"]), int(told["Size"]), _bare(told["ETag"]), updated))
    more = root.findtext(f"{space}IsTruncated") == "true"
    token = root.findtext(f"{space}NextContinuationToken") or ""
    if more and not token:
        raise ValueError("it tells no next page")
    return items, token if more else ""


def uploads_of(reply: bootstrap.Reply) -> tuple[list[tuple[str, str, float]], list[tuple[str, str]]]:
    """Read a page of the uploads that are not complete: key, id and time; with the query of the next page."""
    root, space = _tree(reply)
    found = []
    for part in root.iterfind(f"{space}Upload"):
        key, upload = (part.findtext(space + field) or "" for field in ("Key", "UploadId"))
        found.append((unquote_plus(key), upload, _instant(part.findtext(f"{space}Initiated") or "")))
    if root.findtext(f"{space}IsTruncated") != "true":
        return found, []
    key, upload = (root.findtext(f"{space}Next{field}") or "" for field in ("KeyMarker", "UploadIdMarker"))
    return found, [("key-marker", unquote_plus(key)), ("upload-id-marker", upload)]


def field_of(reply: bootstrap.Reply, name: str) -> str:
    """Return a field of an answer in XML. Raises ValueError if it has none."""
    root, space = _tree(reply)
    found = root.findtext(space + name)
    if not found:
        raise ValueError(f"it has no {name}")
    return found


def _tree(reply: bootstrap.Reply) -> tuple[Element, str]:
    """Return an answer in XML, and what precedes the names of its parts. Raises ValueError."""
    import xml.etree.ElementTree as Tree

    try:
        root = Tree.fromstring(reply.data)
    except Tree.ParseError as error:
        raise ValueError(str(error)) from None
    return root, root.tag.rpartition("}")[0] + "}" if root.tag.startswith("{") else ""


def _instant(text: str) -> float:
    """Return a time of a listing, in whole seconds: the headers of an answer tell no more."""
    return datetime.fromisoformat(text[:19] + "+00:00").timestamp()


def _completed(reply: bootstrap.Reply) -> None:
    _bare(field_of(reply, "ETag"))  # an answer that began before the work was done may tell of its failure instead


def _part_etag(reply: bootstrap.Reply) -> str:
    return reply.headers.get("ETag") or field_of(reply, "ETag")


def _etag_of(reply: bootstrap.Reply) -> str:
    return _bare(reply.headers.get("ETag") or field_of(reply, "ETag"))


def _bare(etag: str) -> str:
    """Return an ETag without quotation marks. Raises ValueError if it is none that can be a generation."""
    found = etag.removeprefix("W/").strip('"')
    if not found or not _etag(number_of(found)):
        raise ValueError(f"its ETag is {etag!r}")
    return found


def number_of(etag: str) -> int:
    return int.from_bytes(etag.encode(), "big")


def _text(generation: int) -> str:
    return generation.to_bytes(-(-generation.bit_length() // 8), "big").decode()


def _etag(generation: int) -> str:
    """Return the ETag that a generation stands for; "" if it stands for none."""
    try:
        found = _text(generation)
    except (ValueError, OverflowError):
        return ""
    return found if found.isascii() and found.isprintable() and '"' not in found else ""


def _generation(etag: str | None) -> int | None:
    return None if etag is None else number_of(etag)


def _seconds(date: str) -> float:
    return parsedate_to_datetime(date).timestamp()


def _record(data: bytes, facts: Facts | None) -> Record | None:
    return None if facts is None else Record(data, number_of(facts.etag), facts.updated)
