"""A program that is started in a container of a pod, by the exec of Kubernetes over a WebSocket: its input and output.

Source: the subprotocols of Kubernetes: the first byte of each message is its channel. In version 5 the input can be
closed; a server that knows only version 4 leaves it open. It knows neither the terminal here, nor why it is started.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from kinetic_orchestration.errors import HostNotReached
from kinetic_orchestration.platforms.kubernetes import rights
from kinetic_orchestration.platforms.kubernetes.api import answers
from kinetic_orchestration.platforms.kubernetes.api.connection import connected
from kinetic_orchestration.platforms.shared.cluster_access import Access
from kinetic_orchestration.protocol.system import escaping
from kinetic_orchestration.reach import websocket
from kinetic_orchestration.reach.websocket import NotOpened, WebSocket

PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
IN, OUT, ERR, STATUS, SIZE, CLOSE = 0, 1, 2, 3, 4, 255
SECONDS: Final = 30.0  # for a handshake
_UNAUTHENTICATED, _FORBIDDEN, _ABSENT = 401, 403, 404


class Pod(NamedTuple):
    """A pod, and the container of it that the job runs in."""

    namespace: str
    name: str
    container: str


class Said(NamedTuple):
    """A piece of what a program writes.

    Attributes:
        channel: OUT or ERR.
        data: Its bytes.
    """

    channel: int
    data: bytes


class Channel:
    """A program in a container, which runs while this is open.

    Args:
        access: To the cluster.
        pod: Where it runs.
        command: The program.
        tty: It has a terminal, which joins both of its outputs.

    Raises:
        HostNotReached: It cannot be started. The message says what is in the way.
        ApiError: The cluster's server is not reached.
    """

    def __init__(self, access: Access, pod: Pod, command: Sequence[str], *, tty: bool = False) -> None:
        self._pod = pod
        self._socket = _opened(access, pod, command, tty=tty)
        self.code: int | None = None  # the program's exit code, once it has ended

    @property
    def closes_input(self) -> bool:
        """True if the server understands that there is no more input."""
        return self._socket.protocol == PROTOCOLS[0]

    def fileno(self) -> int:
        """Return the number of its connection, for `select`."""
        return self._socket.fileno()

    @property
    def is_full(self) -> bool:
        """True while there is no room for all that it was given: who gives more fills this machine's memory."""
        return self._socket.is_full

    def wait(self, *others: int, into: Sequence[int] = (), listens: bool = True) -> list[int]:
        """Wait until something may have come, if it `listens`, another file has something, or one of `into` has room;
        return their numbers."""
        try:
            return self._socket.wait(*others, into=into, listens=listens)
        except OSError:  # the server takes no more; what it said before that is still to be read
            return [self.fileno()]

    def send(self, data: bytes) -> None:
        """Give bytes to the program's input, which `wait` passes on as there is room."""
        self._give(bytes((IN,)) + data)

    def end_input(self) -> None:
        """Tell the program that there is no more input, if the server understands that."""
        if self.closes_input:
            self._give(bytes((CLOSE, IN)))

    def resize(self, columns: int, rows: int) -> None:
        """Tell the program the size of its terminal."""
        self._give(bytes((SIZE,)) + json.dumps({"Width": columns, "Height": rows}).encode())

    def _give(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # the connection has ended: `read` says why, or what the program's code is
            self._socket.offer(message)

    def read(self) -> list[Said]:
        """Return what has come, without waiting; `code` is there once the program has ended.

        Raises HostNotReached if the connection ends before the program has.
        """
        found: list[Said] = []
        try:
            for message in self._socket.messages():
                if message[:1] in (bytes((OUT,)), bytes((ERR,))):
                    found.append(Said(message[0], message[1:]))
                elif message[:1] == bytes((STATUS,)):
                    self.code = _code(message[1:], self._pod)
        except (OSError, websocket.Closed) as error:
            if self.code is None and not found:
                raise HostNotReached(
                    f"the connection to the pod {self._pod.name} was lost: {escaping.text(str(error)[:300])}. It may "
                    "have ended; look at 'kinor status'"
                ) from error
        return found

    def close(self) -> None:
        """End the connection, and with it the program's input."""
        self._socket.close()


def _opened(access: Access, pod: Pod, command: Sequence[str], *, tty: bool) -> WebSocket:
    query: list[tuple[str, str]] = [("command", word) for word in command]
    query += [("container", pod.container), ("stdin", "true"), ("stdout", "true")]
    query += [("tty", "true")] if tty else [("stderr", "true")]
    place = f"/api/v1/namespaces/{quote(pod.namespace, safe='')}/pods/{quote(pod.name, safe='')}/exec"
    for fresh in (False, True):
        line = connected(access, fresh=fresh)
        try:
            return websocket.opened(
                line.sock, f"{line.prefix}{place}?{urlencode(query, quote_via=quote)}", line.headers, PROTOCOLS,
                within=SECONDS,
            )  # fmt: skip
        except NotOpened as refused:
            if refused.status != _UNAUTHENTICATED or fresh:
                raise _refused(refused, pod) from refused
        except OSError as error:
            raise HostNotReached(
                f"{access.server} does not open a WebSocket to the pod {pod.name}: {escaping.text(str(error)[:300])}. "
                "A proxy on the way may refuse them"
            ) from error
    raise AssertionError


def _refused(refused: NotOpened, pod: Pod) -> HostNotReached:
    words = _message(refused.body)
    if refused.status == _FORBIDDEN:
        grant = rights.grant_entering(rights.named_in(words), pod.namespace)
        return HostNotReached(
            f"you may not enter pods of the namespace {pod.namespace}: {words}. It takes get and create on pods/exec, "
            f"which an administrator grants: {grant}"
        )
    if refused.status == _ABSENT:
        return HostNotReached(f"the pod {pod.name} is gone: {words or 'not found'}. Look at 'kinor status'")
    return HostNotReached(
        f"the pod {pod.name} cannot be entered: {words or 'no reason is given'} (HTTP {refused.status})"
    )


def _message(body: str) -> str:
    """Return the message of a Status, or the beginning of what else a server says."""
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    text = str(found.get("message", "")) if isinstance(found, Mapping) else body
    return answers.escaped(" ".join(text.split())[:600])


def _code(data: bytes, pod: Pod) -> int:
    """Return the exit code in the last word of a program. Raises HostNotReached for a program that did not run."""
    try:
        status: Any = json.loads(data)
    except ValueError:
        status = {}
    if not isinstance(status, Mapping) or status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes") or ():
        if (
            isinstance(cause, Mapping)
            and cause.get("reason") == "ExitCode"
            and str(cause.get("message", "")).isdecimal()
        ):
            return int(str(cause["message"]))
    words = answers.escaped(str(status.get("message", ""))[:600])
    raise HostNotReached(f"nothing was started in the pod {pod.name}: {words}")
