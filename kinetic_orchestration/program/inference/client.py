"""Asks a server one row at a time: what is tried again, and what is the prompt's own fault.

A connection that breaks, 408, 429 and 5xx may pass. What failed while the server died says nothing about the prompt:
it is asked again once the server is healthy, and is a failure only if the healthy server fails it again.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from kinetic_orchestration.program.inference.rows import Row
from kinetic_orchestration.program.inference.servers.process import HOST, Running
from kinetic_orchestration.protocol.system import escaping

TRIES = 4  # of a healthy server
DEATHS = 2  # of a server, after which a row that it was asked at each is asked alone
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 30.0
BUSY_PATIENCE = 600.0  # of answers 429 to one row
ANSWER_LIMIT = 64 << 20
ERROR_SHOWN = 1000
_PLAIN = frozenset({"index", "text", "message", "finish_reason", "token_ids", "stop_reason", "role", "content"})
PASSING = frozenset({408, 409, 425, 429}) | frozenset(range(500, 600))


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a row: its text, or its failure."""

    text: str | None = None
    error: str = ""
    status: int = 0  # of a failure, by HTTP
    choices: tuple[Any, ...] = ()
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0  # of the request that was answered
    finish_reason: str | None = None

    def line(self, row: Row) -> dict[str, Any]:
        """Return the answer as a line of a part has it."""
        told: dict[str, Any] = {"key": row.key, "custom_id": row.custom_id, **row.given}
        if self.error:
            told["error"] = {"message": self.error, **({"status": self.status} if self.status else {})}
            return told
        told |= {"text": self.text, "tokens_in": self.tokens_in, "tokens_out": self.tokens_out}
        told |= {"seconds": round(self.seconds, 4), "finish_reason": self.finish_reason}
        return told | ({"choices": list(self.choices)} if self.choices else {})


class Suspect(Exception):
    """A server died twice while it was asked this row: it has to be asked alone."""


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int  # 0: the connection broke
    data: bytes = b""
    retry_after: float | None = None


class Client:
    """Asks one server, from any thread; each has a connection of its own."""

    def __init__(self, server: Running, answer_within: float, over: Callable[[float], bool]) -> None:
        """`over` waits for a time, and returns True if the batch has ended."""
        self._server, self._within, self._over = server, answer_within, over
        self._own = threading.local()

    def ask(self, row: Row, *, alone: bool = False) -> Answer:
        """Return a row's answer or failure.

        Args:
            row: The row.
            alone: Nothing else is asked meanwhile, so a server that dies did so by this row.

        Raises:
            Suspect: The server died twice meanwhile, and other rows were asked as well.
            EngineLost: The server does not come back.
        """
        path = "/v1/chat/completions" if row.is_chat else "/v1/completions"
        tries, deaths, begun = 0, 0, time.monotonic()
        life = self._server.healthy()
        while True:
            body = json.dumps({"model": self._server.served, **row.given, **row.parameters}).encode()
            asked = time.monotonic()
            reply = self._post(path, body, life)
            if reply.status == 200:
                self._server.answered()
                return _answer(reply.data, row, time.monotonic() - asked)
            if reply.status and reply.status not in PASSING:
                self._server.answered()  # a refusal is an answer, too
                return Answer(error=_message(reply), status=reply.status)
            if self._has_died(reply, life):
                deaths += 1
                if alone:
                    self._server.excuse(row_is_to_blame=deaths >= DEATHS)
                    if deaths >= DEATHS:
                        return Answer(error=f"the server dies whenever it is asked this alone ({_message(reply)})")
                life = self._server.healthy(life)
                if deaths >= DEATHS and not alone:
                    raise Suspect
                continue
            busy = reply.status == 429 and time.monotonic() - begun < BUSY_PATIENCE
            tries += not busy
            if tries >= TRIES:
                return Answer(error=f"{_message(reply)}, {tries} times by a healthy server", status=reply.status)
            if self._over(_pause(reply, max(1, tries))):
                raise InterruptedError("the batch has ended")

    def close(self) -> None:
        """Close this thread's connection."""
        if (known := getattr(self._own, "connection", None)) is not None:
            known.close()

    def _has_died(self, reply: _Reply, life: int) -> bool:
        """Return True if the server that failed to answer is not there any more, or does not answer at all. One that
        dies answers 500 while its process is still there, so it is looked at for a moment.
        """
        if reply.status in (408, 429):
            return False
        for _ in range(6):
            if self._server.generation != life or not self._server.is_alive():
                return True
            if self._over(0.1 if reply.status else 0.02):
                raise InterruptedError("the batch has ended")
        return not self._server.is_well()

    def _post(self, path: str, body: bytes, life: int) -> _Reply:
        connection = self._connection(life)
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            data = reply.read(ANSWER_LIMIT + 1)
            if len(data) > ANSWER_LIMIT:
                connection.close()
                return _Reply(413, json.dumps({"error": {"message": "its answer has more than 64 MiB"}}).encode())
            if reply.length:  # read(n) does not tell that the rest of an answer did not come
                connection.close()
                return _Reply(0, f"{reply.length} bytes of an answer did not come".encode())
            if reply.will_close:
                connection.close()
            return _Reply(reply.status, data, _seconds(reply.headers.get("Retry-After")))
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return _Reply(0, f"{type(error).__name__}: {error}".encode())

    def _connection(self, life: int) -> http.client.HTTPConnection:
        known = getattr(self._own, "connection", None)
        if known is None or self._own.life != life:
            if known is not None:
                known.close()
            known = http.client.HTTPConnection(HOST, self._server.port, timeout=self._within)
            self._own.connection, self._own.life = known, life
        return known


def _answer(data: bytes, row: Row, seconds: float) -> Answer:
    try:
        told = json.loads(data)
        choices = told["choices"]
        first = choices[0]
        message = first["message"] if row.is_chat else {}
        text = message.get("content") if row.is_chat else first["text"]
        usage = told.get("usage") or {}
        tokens = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return Answer(error=f"the server answers what cannot be read: {_shown(data)}", status=200)
    more = {name for part in (first, message) for name, value in part.items() if value not in (None, [])} - _PLAIN
    kept = tuple(choices) if len(choices) > 1 or more or text is None else ()
    return Answer(
        text or "", choices=kept, tokens_in=tokens[0], tokens_out=tokens[1], seconds=seconds,
        finish_reason=first.get("finish_reason"),
    )  # fmt: skip


def _message(reply: _Reply) -> str:
    try:
        told: Any = json.loads(reply.data)
        error = told.get("error", told) if isinstance(told, Mapping) else told
        message = error.get("message") or error.get("detail") or error if isinstance(error, Mapping) else error
        text = str(message)
    except (ValueError, RecursionError):
        text = reply.data.decode("utf-8", "replace")
    text = escaping.text(text[:ERROR_SHOWN])
    return f"the server answered {reply.status}: {text}" if reply.status else f"the connection broke ({text})"


def _shown(data: bytes) -> str:
    return escaping.text(data[:200].decode("utf-8", "replace"))


def _seconds(told: str | None) -> float | None:
    """The seconds of Retry-After, which is a number or a date."""
    if told is None:
        return None
    try:
        return max(0.0, float(told))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(told).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def _pause(reply: _Reply, tries: int) -> float:
    if reply.retry_after is not None:
        return min(reply.retry_after, LONGEST_PAUSE)
    pause: float = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (tries - 1))
    return pause * random.uniform(0.5, 1.0)
