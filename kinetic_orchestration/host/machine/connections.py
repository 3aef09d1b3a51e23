"""Kept connections to one server, for requests from any thread of a process. It knows neither what is asked for, nor
who asks, nor what is asked again.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.protocol.records.base import RecordsError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Mapping

    from kinetic_orchestration.protocol.records.bucket_metadata import Clock

TIMEOUT = 30.0
CHUNK = 1 << 20
STALE = b"stale"
"""The data of an answer that did not come since the connection had been idle for too long: ask once more at once."""


class TooMuch(Exception):
    """The answer has more bytes than the caller takes."""


class Connections:
    def __init__(self, base: str, clock: Clock, certificates: str = "") -> None:
        """`certificates`: a file of those that sign the server's; by default the system's."""
        self.base = urlsplit(base)
        self.clock = clock
        self._certificates = certificates
        self._idle: list[http.client.HTTPConnection] = []
        self._process = os.getpid()

    def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | Iterable[bytes] | None = None,
        *,
        into: Callable[[bytes], object] | None = None,
        most: int | None = None,
    ) -> bootstrap.Reply:
        """Send one request and return the answer. Its body goes to `into` if it is a good one, and that is given; a
        whole object is no good answer if `headers` ask for a part that begins later.

        Without an answer, the status is 0 and the data says why, or is `STALE`. Raises TooMuch if the answer has more
        than `most` bytes, and what `into` raises.
        """
        connection, used = self._connection()
        kept = answered = False
        try:
            asked = time.monotonic()
            with contextlib.suppress(BrokenPipeError):  # a refusal may have come before all was sent
                connection.request(method, target, body, {"Accept-Encoding": "identity", **headers})
            answer = connection.getresponse()
            answered = True
            if date := answer.headers.get("Date"):
                self.clock.observe(date, asked)
            if into is not None and answer.status in (200, 206):
                _check_part(answer.status, headers)
                while piece := answer.read(CHUNK):
                    into(piece)
                if answer.length:
                    raise http.client.IncompleteRead(b"", answer.length)
                data = b""
            else:
                data = answer.read() if most is None else bootstrap.body_of(answer, most + 1)
                if most is not None and len(data) > most:
                    raise TooMuch
            kept = not answer.will_close
            return bootstrap.Reply(answer.status, answer.headers, data)
        except RecordsError:  # of `into`, whose disk is full
            raise
        except (OSError, http.client.HTTPException) as error:
            if used and not answered and isinstance(error, (http.client.RemoteDisconnected, ConnectionError)):
                return bootstrap.Reply(0, {}, STALE)
            return bootstrap.Reply(
                0, {}, f"{self.base.netloc} does not answer ({type(error).__name__}: {error})".encode()
            )
        finally:
            if kept:
                self._idle.append(connection)
            else:
                connection.close()

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            self._idle.pop().close()

    def __del__(self) -> None:
        self.close()

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        """Return a connection, and whether it has been used before."""
        if self._process != os.getpid():  # forked: the idle connections are the parent's
            self._process, self._idle = os.getpid(), []
        try:
            return self._idle.pop(), True
        except IndexError:
            pass
        if self.base.scheme == "https":
            context = _context(self._certificates)
            return http.client.HTTPSConnection(self.base.netloc, timeout=TIMEOUT, context=context), False
        return http.client.HTTPConnection(self.base.netloc, timeout=TIMEOUT), False


def _check_part(status: int, headers: Mapping[str, str]) -> None:
    """Raise HTTPException if a good answer is the whole of an object of which a later part was asked for."""
    if status == 200 and not headers.get("Range", "bytes=0-").startswith("bytes=0-"):
        raise http.client.HTTPException("it sends the whole, of which a part was asked for")


@functools.cache
def _context(certificates: str) -> ssl.SSLContext:
    import ssl

    return ssl.create_default_context(cafile=certificates or None)
