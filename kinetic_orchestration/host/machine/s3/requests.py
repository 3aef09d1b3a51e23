"""Single requests to a bucket on a server that speaks S3's API: signed, and sent again while the answer may pass.

It finds out the bucket's region, signs by the server's clock, and asks for new credentials when old ones have expired.
All stores of a process that name one bucket with the same settings share its connections. It does not know what the
objects are.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections import namedtuple
from typing import TYPE_CHECKING

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.connections import STALE, Connections
from kinetic_orchestration.host.machine.s3 import refusals, signature
from kinetic_orchestration.host.machine.s3.credentials import Chain
from kinetic_orchestration.host.machine.s3.place import FIRST, Place, place_of
from kinetic_orchestration.protocol.records.bucket_metadata import Clock
from kinetic_orchestration.protocol.system import copies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

PATIENCE = 60.0
TEARS = 3  # an object whose checksum differs this often is damaged where it is stored
TORN = b"its checksum differs"
"""The data of an answer in place of an object that came with other bytes than its checksum is of."""
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, OverflowError)


class Torn(ValueError):
    """An object came with other bytes than its checksum is of."""


class Body:
    """The body of a request: bytes, or pieces that `pieces` gives anew for each try."""

    def __init__(self, data: bytes = b"", pieces: Callable[[], Iterable[bytes]] | None = None, size: int = 0) -> None:
        self.size = len(data) if pieces is None else size
        self._data, self._pieces = data, pieces
        if pieces is None:
            self.digest = hashlib.sha256(data).hexdigest() if data else signature.EMPTY
        else:
            found = hashlib.sha256()
            for piece in pieces():
                found.update(piece)
            self.digest = found.hexdigest()

    def sent(self) -> bytes | Iterable[bytes]:
        return self._data if self._pieces is None else self._pieces()


NOTHING = Body()


class Aim(namedtuple("Aim", "region connections")):
    """The region for which a request is signed, and the connections to its server."""

    __slots__ = ()
    region: str
    connections: Connections


class Requests:
    """Requests to one bucket, from any thread."""

    def __init__(self, place: Place, chain: Chain) -> None:
        self.place = place
        self.chain = chain
        self.clock = Clock()
        self._aim = self._at(place.region or FIRST)
        self._lock = threading.Lock()

    @property
    def region(self) -> str:
        """The region of the bucket, as far as it is known."""
        return self._aim.region

    def ask(
        self,
        method: str,
        key: str = "",
        query: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        body: Body = NOTHING,
        *,
        patience: float | None = None,
        check: Callable[[bootstrap.Reply], object] | None = None,
        into: Callable[[bytes], object] | None = None,
        most: int | None = None,
    ) -> tuple[bootstrap.Reply, bool]:
        """Send a request about an object, or about the bucket.

        Args:
            method: Of the request.
            key: The object's whole name; "" for the bucket.
            query: Names and values.
            headers: Besides those of the signature.
            body: What is sent.
            patience: Seconds for which it is sent again while the answer may pass.
            check: Raises if a good answer cannot be read, which may pass too: Torn, after few more of that kind not.
            into: Takes the body of a good answer.
            most: Bytes of an answer, beyond which TooMuch is raised.

        Returns:
            The answer, and True if an earlier answer may have been lost: then the request may have taken effect.
        """
        unsure, moved, stale, torn = False, 0, None, 0
        reply = bootstrap.Reply(0, {}, b"")
        for _ in bootstrap.tries(PATIENCE if patience is None else patience):
            while True:
                aim, used = self._aim, self.chain.get(stale=stale)
                reply = self._once(aim, method, key, query, headers or {}, body, used, into, most)
                if reply.status == 0 and reply.data == STALE:
                    unsure = True
                    reply = self._once(aim, method, key, query, headers or {}, body, used, into, most)
                told = refusals.read(reply) if reply.status >= 300 or not reply.status else None
                if told is not None and told.region and told.region != aim.region and moved < 2:
                    moved += 1
                    self._move(aim, told.region)
                    continue
                if told is not None and told.code in refusals.EXPIRED and stale is None:
                    stale = used
                    continue
                break
            if told is None and check is not None:
                reply = _checked(reply, check, aim.connections.base.netloc)
                told = None if reply.status else refusals.read(reply)
                torn += reply.data == TORN and told is not None
            if told is None or not told.passes or (method == "HEAD" and told.status == 404):  # which has no words
                break
            if torn == TEARS:
                break
            unsure = unsure or told.unsure
        return reply, unsure

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._aim.connections.close()

    def _once(
        self,
        aim: Aim,
        method: str,
        key: str,
        query: Sequence[tuple[str, str]],
        headers: Mapping[str, str],
        body: Body,
        used: object,
        into: Callable[[bytes], object] | None,
        most: int | None,
    ) -> bootstrap.Reply:
        connections = aim.connections
        path = connections.base.path + "/" + signature.encoded(key, path=True) if key else connections.base.path or "/"
        asked = signature.query_of(query)
        signed = signature.signed(
            method,
            path,
            asked,
            {"Host": connections.base.netloc, **headers},
            body.digest,
            used,  # type: ignore[arg-type]
            aim.region,
            self.clock.now(),
        )
        if method in ("PUT", "POST"):
            signed["Content-Length"] = str(body.size)
        data = body.sent() if body.size else None
        return connections.send(method, path + (f"?{asked}" if asked else ""), signed, data, into=into, most=most)

    def _move(self, aim: Aim, region: str) -> None:
        """Turn to another region, unless another thread has done so since a request was made with that aim."""
        with self._lock:
            if self._aim is not aim:
                return
            same = self.place.base(region) == self.place.base(aim.region)
            self._aim = Aim(region, aim.connections) if same else self._at(region)
        if not same:
            aim.connections.close()

    def _at(self, region: str) -> Aim:
        return Aim(region, Connections(self.place.base(region), self.clock, self.place.certificates))


def requests_of(bucket: str) -> Requests:
    """Return the requests of this process to a bucket, by the settings as they are now. Raises ValueError for an
    endpoint that is no address."""
    settings = {name: value for name, value in copies.environ().items() if name.startswith("AWS_") or name == "HOME"}
    return _requests(place_of(bucket, settings), os.getpid(), tuple(sorted(settings.items())))


@functools.lru_cache(maxsize=8)
def _requests(place: Place, process: int, settings: tuple[tuple[str, str], ...]) -> Requests:
    return Requests(place, _chain(process, settings))


@functools.lru_cache(maxsize=8)
def _chain(process: int, settings: tuple[tuple[str, str], ...]) -> Chain:
    return Chain()


def _checked(reply: bootstrap.Reply, check: Callable[[bootstrap.Reply], object], server: str) -> bootstrap.Reply:
    try:
        check(reply)
    except Torn:
        return bootstrap.Reply(0, {}, TORN)
    except UNREADABLE as error:
        words = reply.data[:100].decode("utf-8", "backslashreplace")
        told = f"{server} answers what cannot be read ({type(error).__name__}: {error}): {words!r}"
        return bootstrap.Reply(0, {}, told.encode())
    return reply
