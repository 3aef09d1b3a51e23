"""A connection to a port of a VM through Identity-Aware Proxy, between two files: what ssh runs as its ProxyCommand.

It survives the loss of its WebSocket, as far as the proxy does, and says in a sentence why there is no connection. It
knows no credentials but what gives it a token, and writes none of them anywhere.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import time
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, urlencode, urlsplit

from kinetic_orchestration import __version__
from kinetic_orchestration.errors import HostNotReached
from kinetic_orchestration.protocol.system import escaping
from kinetic_orchestration.reach import websocket
from kinetic_orchestration.reach.iap import relay
from kinetic_orchestration.reach.websocket import Closed, NotOpened, WebSocket

SERVER: Final = "wss://tunnel.cloudproxy.app"
OPEN_SECONDS: Final = 30.0  # for all of a connection, until the VM has answered: where nothing listens it may hang
PATIENCE: Final = 900.0  # for which a lost connection is sought again, as gcloud does
PAUSES: Final = (0.0, 1.5, 20.0)  # before the first try, the second, and the longest; each is a tenth longer
RANGE: Final = "35.235.240.0/20"  # the addresses from which the proxy comes, by Google's documentation
_REFRESH: Final = 4004  # a code of a close
_LOST = (OSError, relay.Broken)


class Target(NamedTuple):
    """A port of a VM, as the proxy names it."""

    project: str
    zone: str
    instance: str
    port: int = 22
    interface: str = "nic0"


class _Away(Exception):
    """Whoever is to have the bytes, or sends them, has gone."""


class Tunnel:
    """One connection.

    Args:
        target: Where it leads.
        token: Returns an access token, another one with True; "" for none.
        server: Address of the proxy.
        pauses: Before the first try to find a lost connection again, before the second, and the longest.
        patience: Seconds after which a lost connection is given up.
    """

    def __init__(
        self,
        target: Target,
        token: Callable[[bool], str],
        *,
        server: str = SERVER,
        pauses: tuple[float, float, float] = PAUSES,
        patience: float = PATIENCE,
    ) -> None:
        self._target = target
        self._token = token
        self._server = server
        self._pauses = pauses
        self._patience = patience
        self._relay = relay.Relay()
        self._socket: WebSocket | None = None
        self._early = b""  # what came with the proxy's first word
        # How a lost connection is sought, over all WebSockets that open and bring nothing.
        self._moved = -1
        self._resumed = self._until = self._pause = 0.0
        self._is_renewed = False

    def run(self, source: int, sink: int) -> None:
        """Pass bytes on until either end closes.

        Args:
            source: The file whose bytes go to the VM.
            sink: The file that gets those of the VM.

        Raises:
            HostNotReached: There is no connection. The message says what is in the way.
        """
        try:
            self._socket = self._first()
            while True:
                try:
                    self._step(self._socket, source, sink)
                except _LOST as error:
                    self._socket = self._found_again(error, source)
                except (Closed, relay.Ended) as ended:
                    if ended.code != _REFRESH:
                        raise
                    self._socket = self._found_again(ended, source, fresh=True)
        except _Away:
            if self._socket is not None:
                self._socket.close()
        except (Closed, relay.Ended) as ended:
            if ended.code != websocket.NORMAL or not self._relay.session:
                raise HostNotReached(said_of(ended.code, ended.reason, self._target)) from ended
        finally:
            if self._socket is not None:
                self._socket.drop()

    def _step(self, connection: WebSocket, source: int, sink: int) -> None:
        if self._early:
            early, self._early = self._early, b""
            _deliver(sink, early)
        ready = connection.wait(*((source,) if self._relay.has_room and not connection.is_full else ()))
        if connection.fileno() in ready:
            for message in connection.messages():
                _deliver(sink, self._relay.take(message))
            if (told := self._relay.confirmation()) is not None:
                connection.offer(told)
        if source in ready:
            for frame in self._relay.data(_taken(source)):
                connection.offer(frame)

    # Connections

    def _first(self) -> WebSocket:
        """Return the first WebSocket, with another token if the one that was there has expired. Raises as `_opened`."""
        try:
            return self._opened(fresh=False)
        except (Closed, relay.Ended) as ended:
            if ended.code != _REFRESH:
                raise
            return self._opened(fresh=True)
        except OSError as error:
            raise HostNotReached(f"{_at(self._target)} is not reached: {_words(error)}") from error

    def _opened(self, *, fresh: bool) -> WebSocket:
        """Return a WebSocket on which the proxy has said that the VM is there, or that it knows the connection.

        Raises HostNotReached, Closed, Ended, and OSError if it may help to try again.
        """
        deadline = time.monotonic() + OPEN_SECONDS
        try:
            connection = self._dialled(deadline, fresh=fresh)
        except NotOpened as refused:
            if self._relay.session and refused.status >= 500:
                raise ConnectionError(f"HTTP {refused.status}") from refused
            raise HostNotReached(_not_opened(refused, self._target)) from refused
        try:
            self._begin(connection, deadline)
        except BaseException:
            connection.drop()
            raise
        return connection

    def _begin(self, connection: WebSocket, deadline: float) -> None:
        """Wait for the first word of the proxy, and send again what it has not got. Raises as `_opened`."""
        resumes = bool(self._relay.session)
        while not self._relay.is_open:
            left = deadline - time.monotonic()
            if left <= 0 or not connection.wait(timeout=left):
                silent = f"{_at(self._target)} did not answer in {OPEN_SECONDS:g} s"
                if resumes:
                    raise TimeoutError(silent)
                raise HostNotReached(f"{silent}: nothing may listen there. {_firewall(self._target)}")
            for message in connection.messages():
                self._early += self._relay.take(message)
        for frame in self._relay.again() if resumes else ():
            connection.offer(frame)

    def _dialled(self, deadline: float, *, fresh: bool) -> WebSocket:
        self._relay.lost()
        url = urlsplit(self._server)
        sock = _connected(url.hostname or "", url.port, is_tls=url.scheme == "wss", deadline=deadline)
        host = url.hostname or ""
        headers = [("Host", f"{host}:{url.port}" if url.port else host), ("Origin", "bot:iap-tunneler")]
        headers.append(("User-Agent", f"kinetic-orchestration/{__version__}"))
        if token := self._token(fresh):
            headers.append(("Authorization", f"Bearer {token}"))
        left = max(0.1, deadline - time.monotonic())
        return websocket.opened(sock, url.path + self._asked(), headers, (relay.PROTOCOL,), within=left)

    def _asked(self) -> str:
        target, known = self._target, self._relay
        if known.session:
            query = {"sid": known.session, "ack": str(known.received), "zone": target.zone, "newWebsocket": "true"}
            return f"/v4/reconnect?{urlencode(query, quote_via=quote)}"
        query = {
            "project": target.project, "port": str(target.port), "newWebsocket": "true", "zone": target.zone,
            "instance": target.instance, "interface": target.interface,
        }  # fmt: skip
        return f"/v4/connect?{urlencode(query, quote_via=quote)}"

    def _found_again(self, why: Exception, source: int, *, fresh: bool = False) -> WebSocket:
        """Return the next WebSocket of a connection whose last one is lost. Raises as `_opened`, and HostNotReached."""
        if self._socket is not None:
            self._socket.drop()
        if not self._relay.session:
            raise HostNotReached(f"{_at(self._target)} is not reached: {_words(why)}") from why
        self._seek()
        if fresh and self._is_renewed:
            raise HostNotReached(said_of(_REFRESH, "it was renewed just now", self._target)) from why
        _, second, longest = self._pauses
        while True:
            pause = self._pause
            if time.monotonic() + pause > self._until:
                raise HostNotReached(
                    f"the connection to {_at(self._target)} was lost and could not be resumed in "
                    f"{self._patience:g} s: {_words(why)}"
                ) from why
            _rest(pause, source)
            self._pause = min(longest, max(second, pause * 1.1))
            self._is_renewed = self._is_renewed or fresh
            try:
                found = self._opened(fresh=fresh)
            except _LOST as error:
                why = error
            except (Closed, relay.Ended) as ended:
                if ended.code != _REFRESH or self._is_renewed:
                    raise
                why, fresh = ended, True
            else:
                self._resumed = time.monotonic()
                return found

    def _seek(self) -> None:
        """Begin with the pauses and the patience, unless what was found last has soon ended and brought nothing."""
        first, _, longest = self._pauses
        now, moved = time.monotonic(), self._relay.moved
        if moved != self._moved or now - self._resumed > longest:
            self._moved, self._until, self._pause, self._is_renewed = moved, now + self._patience, first, False


def _taken(source: int) -> bytes:
    try:
        data = os.read(source, relay.MOST)
    except OSError:
        data = b""
    if not data:
        raise _Away
    return data


def _deliver(sink: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(sink, data) :]
    except OSError:
        raise _Away from None


def _rest(seconds: float, source: int) -> None:
    """Wait, unless whoever has the other end of the file goes. Raises _Away."""
    left = select.poll()
    left.register(source, 0)  # its end is told all the same
    if any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in left.poll(seconds * 1000)):
        raise _Away


# ---- the way to the proxy --------------------------------------------------------------------------------------


def _connected(host: str, port: int | None, *, is_tls: bool, deadline: float) -> socket.socket:
    """Connect, through the proxy that the environment names for it if there is one, with TLS to the server itself."""
    import urllib.request

    port = port or (443 if is_tls else 80)
    proxies = {} if urllib.request.proxy_bypass(host) else urllib.request.getproxies()
    proxy = proxies.get("https" if is_tls else "http", "")
    left = max(0.1, deadline - time.monotonic())
    if proxy:
        import http.client

        named = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        by = http.client.HTTPConnection(named.hostname or "", named.port or 80, timeout=left)
        by.set_tunnel(host, port, _basic(named.username, named.password))
        by.connect()
        sock: socket.socket = by.sock
    else:
        sock = socket.create_connection((host, port), timeout=left)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if is_tls:
        sock = ssl.create_default_context().wrap_socket(sock, server_hostname=host)
    return sock


def _basic(user: str | None, password: str | None) -> dict[str, str]:
    if user is None:
        return {}
    import base64

    pair = f"{unquote(user)}:{unquote(password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


# ---- why there is no connection --------------------------------------------------------------------------------

# Codes of a close, by gcloud and IAP Desktop → what happened, and what helps.
_SAID: Final = {
    4001: "the proxy does not know this connection any more: begin it again",
    4002: "the proxy has this connection from somebody else: begin it again",
    4003: "the proxy does not get through to it. {firewall} The VM may also still boot, or have no sshd",
    4004: "the proxy does not take the access token: log in again with 'gcloud auth application-default login'",
    4010: "the proxy does not take the request: this version may be too old for it",
    4033: "you may not. It takes roles/iap.tunnelResourceAccessor on the project, which an administrator grants: "
    "gcloud projects add-iam-policy-binding {project} --member=user:YOU --role=roles/iap.tunnelResourceAccessor",
    4047: "the proxy finds no such VM: it may have ended a moment ago; look at 'kinor status'",
    4051: "the proxy finds no network interface {interface} of it: it may have just ended; look at 'kinor status'",
    4080: "the proxy does not get through to it in time. {firewall}",
}
_HTTP: Final = {
    401: _SAID[4004],
    403: f"{_SAID[4033]}. A proxy of your own network may also refuse WebSockets",
    404: f"{_SAID[4047]}. The proxy's address may also be blocked by one of your own network",
    407: "the proxy of your own network wants a name and a password: HTTPS_PROXY=http://NAME:PASSWORD@HOST:PORT",
}


def said_of(code: int, reason: str, target: Target) -> str:
    """Return the sentences for a code with which the proxy has closed a connection."""
    about = {"firewall": _firewall(target), "project": target.project, "interface": target.interface}
    known = _SAID.get(code)
    words = (
        known.format(**about) if known else "the proxy has closed the connection, with a code that is not known here"
    )
    told = f" (code {code}{f': {escaping.text(reason[:300])}' if reason else ''})"
    return f"{_at(target)} is not reached: {words}{told}"


def _not_opened(refused: NotOpened, target: Target) -> str:
    known = _HTTP.get(refused.status, "what answers is not the proxy, or out of order")
    about = {"firewall": _firewall(target), "project": target.project, "interface": target.interface}
    body = " ".join(refused.body.split())[:300]
    told = f" (HTTP {refused.status}{f': {escaping.text(body)}' if body else ''})"
    return f"{_at(target)} is not reached: {known.format(**about)}{told}"


def _firewall(target: Target) -> str:
    return (
        f"Its network must let {RANGE} in at tcp:{target.port}: gcloud compute firewall-rules create kinetic-shell "
        f"--project={target.project} --network=NETWORK --allow=tcp:{target.port} --source-ranges={RANGE}."
    )


def _at(target: Target) -> str:
    return f"port {target.port} of {target.instance} in {target.zone}"


def _words(error: BaseException) -> str:
    return escaping.text(f"{type(error).__name__}: {error}"[:300])
