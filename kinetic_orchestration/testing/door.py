"""The door of every port that the emulated cloud opens: who may speak to it, decided before anything else is read.

The token is the first part of every path, for a base URL is the one thing that each HTTP client can be told:
Google's libraries, `STORAGE_EMULATOR_HOST`, `GCE_METADATA_HOST` and a host's plain Python. An `Authorization` header
cannot carry it: anonymous clients send none, and a VM's says which VM it is. An address of gRPC has no path: there
the token stands before the address, and travels as metadata of each call. It knows neither APIs nor sockets.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping

_HELP = (
    "take the whole of the address from the lines that `ko emulator --print-env` prints, or from Emulator.environ(): "
    "the token is a part of it"
)


class Shut(Exception):
    """An HTTP status, and why whoever knocks stays outside."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Door:
    def __init__(self, token: str = "") -> None:
        self.token = token or secrets.token_urlsafe(24)

    def url(self, port: int) -> str:
        return f"http://{self.address(port)}"

    def address(self, port: int) -> str:
        """For clients that put `http://` before what they are given."""
        return f"127.0.0.1:{port}/{self.token}"

    def grpc(self, port: int) -> str:
        return f"{self.token}@127.0.0.1:{port}"

    def enter(self, target: str, headers: Mapping[str, str], port: int) -> str:
        """The target without the token. Names of `headers` are in lower case. Raises Shut.

        A page of the web can have its browser speak to this port, by another name of this machine too, but it cannot
        choose what the browser says of both.
        """
        own = (f"127.0.0.1:{port}", f"localhost:{port}")
        if headers.get("host", "").lower() not in own:
            raise Shut(403, f"The emulator is asked as {own[0]} only, not as {headers.get('host', '')!r}.")
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in tuple(f"http://{name}" for name in own):
            raise Shut(403, f"The emulator answers no page of the web, and {origin!r} is one.")
        first, slash, rest = target.removeprefix("/").partition("/")
        if not self.opens(first):
            raise Shut(403, f"The emulator answers only whoever has its token: {_HELP}.")
        return slash + rest or "/"

    def opens(self, token: str | bytes) -> bool:
        given = token if isinstance(token, bytes) else token.encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, self.token.encode())


def demand_json(headers: Mapping[str, str]) -> None:
    """Refuse a request whose body is not JSON: a page of the web may send other kinds without asking. Raises Shut."""
    has_body = headers.get("content-length", "0").strip() not in ("", "0") or "transfer-encoding" in headers
    kind = headers.get("content-type", "")
    if has_body and kind.partition(";")[0].strip().lower() != "application/json":
        raise Shut(415, f"The body of this request is JSON: its Content-Type is to be application/json, not {kind!r}.")
