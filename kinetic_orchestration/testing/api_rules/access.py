"""Access control of every port that the emulated cloud opens, checked before the rest of a request is read.

The token is the first part of every path, because a base URL is the one setting that every HTTP client has: Google's
libraries, `STORAGE_EMULATOR_HOST`, `GCE_METADATA_HOST` and a host's plain Python. An `Authorization` header cannot
carry it: anonymous clients send none, and a VM's names the VM. A gRPC address has no path: there the token precedes the
address and is sent as metadata of each call. This module knows neither APIs nor sockets.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable, Mapping

_HELP = (
    "take all of the address from the lines that `kinor emulator --print-env` prints, or from Emulator.environ(): "
    "the token is a part of it"
)


class AccessRefused(Exception):
    """An HTTP status, and the reason why a caller is refused."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Access:
    def __init__(self, token: str = "") -> None:
        self.token = token or secrets.token_urlsafe(24)

    def url(self, port: int) -> str:
        return f"http://{self.address(port)}"

    def address(self, port: int) -> str:
        """The address for clients that prepend `http://` to it."""
        return f"127.0.0.1:{port}/{self.token}"

    def grpc(self, port: int) -> str:
        return f"{self.token}@127.0.0.1:{port}"

    def enter(self, target: str, headers: Mapping[str, str], port: int) -> str:
        """The target without the token. Names of `headers` are in lower case. Raises AccessRefused.

        A web page can make its browser send requests to this port, also by another name of this machine, but it cannot
        choose the two headers that are checked here.
        """
        own = (f"127.0.0.1:{port}", f"localhost:{port}")
        if headers.get("host", "").lower() not in own:
            raise AccessRefused(403, f"The emulator is asked as {own[0]} only, not as {headers.get('host', '')!r}.")
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in tuple(f"http://{name}" for name in own):
            raise AccessRefused(403, f"The emulator answers no page of the web, and {origin!r} is one.")
        first, slash, rest = target.removeprefix("/").partition("/")
        if not self.opens(first):
            raise AccessRefused(403, f"The emulator answers only whoever has its token: {_HELP}.")
        return slash + rest or "/"

    def opens(self, token: str | bytes) -> bool:
        given = token if isinstance(token, bytes) else token.encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, self.token.encode())


_ONCE = ("host", "origin", "content-length", "content-type", "transfer-encoding")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def headers_of(fields: Iterable[tuple[str, str]], *, largest: int | None) -> dict[str, str]:
    """Return the headers by their names in lower case. Raises AccessRefused.

    Refused is what two readers could take for two requests, and a body of more than `largest` bytes. With None, bodies
    are passed on, of any length and in chunks.
    """
    found: dict[str, str] = {}
    for name, value in fields:
        key = name.lower()
        if not _NAME.fullmatch(name):
            raise AccessRefused(400, f"{name!r} is no name of a header.")
        if key in found and key in _ONCE:
            raise AccessRefused(400, f"The header {name} is there twice.")
        found[key] = value.strip()
    length, coding = found.get("content-length"), found.get("transfer-encoding")
    if coding is not None and length is not None:
        raise AccessRefused(400, "A request has a Content-Length or a Transfer-Encoding, not both.")
    if coding is not None and (largest is not None or coding.lower() != "chunked"):
        raise AccessRefused(501, f"Transfer-Encoding {coding!r} is not understood here: send a Content-Length.")
    if length is not None and not re.fullmatch(r"[0-9]{1,18}", length):
        raise AccessRefused(400, f"Content-Length {length!r} is no number of bytes.")
    if largest is not None and int(length or 0) > largest:
        raise AccessRefused(413, f"The body has {length} bytes, and {largest} are the most.")
    return found


def demand_json(headers: Mapping[str, str]) -> None:
    """Refuse a request whose body is not JSON: a web page may send other kinds without preflight.

    Raises AccessRefused.
    """
    has_body = headers.get("content-length", "0").strip() not in ("", "0") or "transfer-encoding" in headers
    kind = headers.get("content-type", "")
    if has_body and kind.partition(";")[0].strip().lower() != "application/json":
        raise AccessRefused(
            415, f"The body of this request is JSON: its Content-Type is to be application/json, not {kind!r}."
        )
