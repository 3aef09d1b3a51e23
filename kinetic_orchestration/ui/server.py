"""The server of the page: on loopback, for whoever has the token that it was started with, and only to read.

Whoever else is on this machine, and every page that a browser has open, can reach a port of loopback. So nothing is
answered without the token or the cookie that it was exchanged for, to a name that is not loopback's (a name of DNS may
be made to lead here), to a page of another origin, or to another method than GET and HEAD. All texts are escaped here,
once, and the page makes text of them, never markup.
"""

from __future__ import annotations

import gzip
import hmac
import html
import http.server
import json
import re
import secrets
import threading
import urllib.parse
from collections.abc import Callable
from http import HTTPStatus
from importlib import resources
from typing import Any, ClassVar, Final

from kinetic_orchestration.errors import JobNotFound, KineticError, StoreError
from kinetic_orchestration.jobs.cleanup import kept_slices
from kinetic_orchestration.protocol.system import escaping
from kinetic_orchestration.ui import portrait, stream
from kinetic_orchestration.ui.catalog import Catalog

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
PAGES: Final = {
    "/": ("index.html", "text/html"),
    "/app.js": ("app.js", "text/javascript"),
    "/jobs.js": ("jobs.js", "text/javascript"),
    "/job.js": ("job.js", "text/javascript"),
    "/slices.js": ("slices.js", "text/javascript"),
    "/dom.js": ("dom.js", "text/javascript"),
    "/style.css": ("style.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""Every file there is: a path is looked up here, and never opened."""
STREAM: Final = "/api/stream"
MOST_CONNECTIONS: Final = 64
PATIENCE: Final = 30.0  # seconds for a client that neither sends nor takes anything
WORTH_PACKING: Final = 2048
_JOB: Final = re.compile(r"job-[0-9a-z]{1,64}", re.ASCII)
_STRANGER: Final = (
    "This page belongs to whoever started it. Open the address that `kinor ui` has printed in its terminal: it has the "
    "token. Another start of it makes another one."
)

_SAID: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
    '<title>kinor ui</title><p>{}</p><p><a href="/">Try again</a></p></html>'
)


class Server(http.server.ThreadingHTTPServer):
    """The listener. Requests and streams have a thread each, of which there are so many at most."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, catalog: Catalog, port: int = 0) -> None:
        self.catalog = catalog
        self.token, self.session = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self._once: set[str] = set()
        self.stopping = threading.Event()
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((LOOPBACK[0], port), Handler)
        self.cookie = f"kinor-ui-{self.server_port}"  # a host's cookies are shared by all of its ports

    @property
    def address(self) -> str:
        """The address of the page, without the token."""
        return f"http://{LOOPBACK[0]}:{self.server_port}/"

    def token_for_once(self) -> str:
        """Return a token that opens the page a single time: for a browser's command line, which all users can read."""
        token = secrets.token_urlsafe(32)
        self._once.add(token)
        return token

    def takes(self, token: str) -> bool:
        """Return True for the token of this page, and for one for once, which is none any more."""
        for known in tuple(self._once):
            if hmac.compare_digest(token.encode(), known.encode()):
                try:
                    self._once.remove(known)
                except KeyError:  # another thread was first
                    return False
                return True
        return hmac.compare_digest(token.encode(), self.token.encode())

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that has left."""

    def server_close(self) -> None:
        self.stopping.set()
        super().server_close()


class _Refused(Exception):
    """An answer that is a status and a sentence."""

    def __init__(self, status: HTTPStatus, said: str) -> None:
        super().__init__(said)
        self.status, self.said = status, said


class Handler(http.server.BaseHTTPRequestHandler):
    """The requests of one connection."""

    server: Server
    protocol_version = default_request_version = "HTTP/1.1"
    timeout = PATIENCE
    disable_nagle_algorithm = True  # headers and body are written apart, and neither waits for the other
    _sent = False

    def do_GET(self) -> None:
        self._sent = False
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:  # which is not read
            self.close_connection = True
        try:
            self._answer()
        except _Refused as refusal:
            self._refuse(refusal.status, refusal.said)
        except JobNotFound as error:
            self._refuse(HTTPStatus.NOT_FOUND, str(error))
        except StoreError as error:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except KineticError as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST, "that is no address of this page")
        except OSError:  # its client has left
            raise
        except Exception as error:  # without an answer, the page would say that its server has ended
            said = f"this cannot be shown: {type(error).__name__}: {error}"
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, said)

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what is no request, and each method but GET and HEAD."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code, message = HTTPStatus.METHOD_NOT_ALLOWED, "this page is only read: GET and HEAD"
        self.close_connection = True
        self._refuse(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def version_string(self) -> str:
        """Name no version, to anyone."""
        return "kinor"

    def log_message(self, *_: object) -> None:
        """Print nothing: the address of the first request has the token."""

    def _answer(self) -> None:
        self._check_who_is_asked()
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, max_num_fields=8))
        if "token" in query:
            self._exchange(query["token"])
            return
        self._check_who_asks()
        if url.path in PAGES:
            name, kind = PAGES[url.path]
            if url.path == "/":
                self.server.catalog.expect()
            with self.server.catalog.answering():
                self._send(resources.files(__package__).joinpath("page", name).read_bytes(), f"{kind}; charset=utf-8")
            return
        question = self._QUESTIONS.get(url.path)
        if question is None:
            raise _Refused(HTTPStatus.NOT_FOUND, "there is no such page")
        if self.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            raise _Refused(HTTPStatus.FORBIDDEN, "only this page itself may ask for that")
        if url.path == STREAM:
            question(self, query)
            return
        with self.server.catalog.answering():
            question(self, query)

    def _check_who_is_asked(self) -> None:
        """Refuse a request to another name: of DNS, one may lead here for a page that has that name."""
        host = self.headers.get("Host", "")
        name = host.rpartition(":")[0] if re.search(r":\d{1,5}$", host) else host
        if name.lower() not in LOOPBACK or len(self.headers.get_all("Host", [])) != 1:
            said = f"this page is at {self.server.address}, and under no other name"
            raise _Refused(HTTPStatus.MISDIRECTED_REQUEST, said)

    def _exchange(self, token: str) -> None:
        """Give the cookie for the token, and lead to the address without it, which may be shown and kept."""
        if not self.server.takes(token):
            raise _Refused(HTTPStatus.FORBIDDEN, f"This token is not of this page. {_STRANGER}")
        cookie = f"{self.server.cookie}={self.server.session}; HttpOnly; SameSite=Strict; Path=/"
        self._send(b"", "text/plain", HTTPStatus.SEE_OTHER, (("Location", "/"), ("Set-Cookie", cookie)))

    def _check_who_asks(self) -> None:
        told = [part.strip().partition("=") for part in self.headers.get("Cookie", "").split(";")]
        given = [value for name, _, value in told if name == self.server.cookie]
        if not any(hmac.compare_digest(value.encode(), self.server.session.encode()) for value in given):
            raise _Refused(HTTPStatus.FORBIDDEN, _STRANGER)

    # ---- what the page asks for -----------------------------------------------------------------------------------

    def _store(self, _: dict[str, str]) -> None:
        catalog = self.server.catalog
        self._send_json({"store": catalog.store.url, "metered": catalog.store.metered})

    def _jobs(self, query: dict[str, str]) -> None:
        since = query.get("since", "0")
        if query.get("all"):
            self.server.catalog.read_all()
        self._send_json(self.server.catalog.page(int(since) if since.isascii() and since.isdecimal() else 0))

    def _rows(self, query: dict[str, str]) -> None:
        wanted = [job_id for job_id in query.get("ids", "").split(",") if _JOB.fullmatch(job_id)]
        self._send_json({"rows": self.server.catalog.read(wanted)})

    def _job(self, query: dict[str, str]) -> None:
        self._send_json(portrait.of_job(self._opened(query)))

    def _slices(self, _: dict[str, str]) -> None:
        catalog = self.server.catalog
        now = catalog.store.now()
        found = kept_slices.listed(catalog.store, catalog.settings, now)
        self._send_json({"slices": [each.to_json() for each in found], "now": now})

    def _stream(self, query: dict[str, str]) -> None:
        handle = self._opened(query)
        more = (("X-Accel-Buffering", "no"), ("Connection", "close"))
        self._begin(HTTPStatus.OK, "text/event-stream; charset=utf-8", more)
        self.close_connection = True
        if self.command == "GET":
            mark = self.headers.get("Last-Event-ID", "")[: stream.LONGEST_MARK]
            stream.follow(handle, mark, self._write_event, self.server.stopping)

    def _opened(self, query: dict[str, str]) -> Any:
        job_id = query.get("id", "")
        if not _JOB.fullmatch(job_id):
            raise _Refused(HTTPStatus.NOT_FOUND, "this is no id of a job")
        return self.server.catalog.open(job_id)

    _QUESTIONS: ClassVar[dict[str, Callable[[Handler, dict[str, str]], None]]] = {
        "/api/store": _store, "/api/jobs": _jobs, "/api/rows": _rows, "/api/job": _job, "/api/slices": _slices,
        STREAM: _stream,
    }  # fmt: skip

    # ---- answers ----------------------------------------------------------------------------------------------------

    def _write_event(self, event: str, mark: str, document: Any) -> None:
        """Write one event of a stream; with an empty name a comment, by which the connection stays."""
        if not event:
            self.wfile.write(b":\n\n")
        else:
            told = f"id: {mark}\n" if mark else ""
            self.wfile.write(f"{told}event: {event}\ndata: {_encoded(document)}\n\n".encode())
        self.wfile.flush()

    def _send_json(self, document: Any) -> None:
        self._send(_encoded(document).encode(), "application/json")

    def _refuse(self, status: HTTPStatus, said: str) -> None:
        if self._sent:  # in the middle of an answer there is nothing to say
            self.close_connection = True
            return
        more = (("Allow", "GET, HEAD"),) if status is HTTPStatus.METHOD_NOT_ALLOWED else ()
        headers = getattr(self, "headers", None)
        if headers is not None and "text/html" in headers.get("Accept", ""):
            # A cookie is not sent along a link from another site; it is from a link of this page.
            page = _SAID.format(html.escape(escaping.text(said)))
            self._send(page.encode(), "text/html; charset=utf-8", status, more)
        else:
            self._send(_encoded({"error": said}).encode(), "application/json", status, more)

    def _send(
        self, data: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK, more: tuple[tuple[str, str], ...] = ()
    ) -> None:
        if len(data) > WORTH_PACKING and "gzip" in self.headers.get("Accept-Encoding", ""):
            data, more = gzip.compress(data, 1), (*more, ("Content-Encoding", "gzip"))
        self._begin(status, kind, (*more, ("Content-Length", str(len(data)))))
        if getattr(self, "command", "") != "HEAD":
            self.wfile.write(data)

    def _begin(self, status: HTTPStatus, kind: str, more: tuple[tuple[str, str], ...]) -> None:
        self._sent = True
        self.send_response(status)
        for name, value in (*HEADERS, ("Content-Type", kind), *more):
            self.send_header(name, value)
        self.end_headers()


def _encoded(document: Any) -> str:
    return json.dumps(_shown(document), ensure_ascii=True, separators=(",", ":"), allow_nan=False)


def _shown(value: Any) -> Any:
    """Return the value with all texts escaped, as `kinor` prints them, and without numbers that JSON has not."""
    if isinstance(value, str):
        return escaping.text(value)
    if isinstance(value, dict):
        return {escaping.text(str(name)): _shown(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(each) for each in value]
    if isinstance(value, float) and value - value != 0:
        return None
    return value
