"""`kinor ui` as a process of its own, and what asks it: over sockets, as a browser, a stranger and a broken client do."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

WITHIN = 60.0


class Answer(NamedTuple):
    """A status, the headers by small letters, and the bytes."""

    status: int
    headers: dict[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        packed = self.headers.get("content-encoding") == "gzip"
        return json.loads(gzip.decompress(self.data) if packed else self.data)


class Page:
    """A page that is served, and the cookie of who has opened it."""

    def __init__(self, address: str) -> None:
        self.address, _, self.token = address.partition("?token=")
        self.port = int(self.address.rpartition(":")[2].strip("/"))
        self.cookie = self.exchange(self.token).headers["set-cookie"].partition(";")[0]

    def exchange(self, token: str) -> Answer:
        return self.ask(f"/?token={token}", cookie="")

    def ask(self, path: str, *, method: str = "GET", cookie: str | None = None, **headers: str) -> Answer:
        """Return the answer to a request with the page's cookie, or another one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WITHIN)
        given = self.cookie if cookie is None else cookie
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, headers={**({"Cookie": given} if given else {}), **named})
            answer = connection.getresponse()
            told = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, told, answer.read())
        finally:
            connection.close()

    @contextmanager
    def stream(self, job_id: str, mark: str = "") -> Iterator[Iterator[tuple[str, str, Any]]]:
        """Yield the events of a job's stream: name, mark and data."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WITHIN)
        try:
            more = {"Last-Event-ID": mark} if mark else {}
            connection.request("GET", f"/api/stream?id={job_id}", headers={"Cookie": self.cookie, **more})
            answer = connection.getresponse()
            assert answer.getheader("Content-Type") == "text/event-stream; charset=utf-8", answer.read()
            yield _events(answer)
        finally:
            connection.close()


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, str, Any]]:
    fields: dict[str, str] = {}
    for line in answer:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif "event" in fields:
            yield fields["event"], fields.get("id", ""), json.loads(fields["data"])
            fields = {}


@contextmanager
def serving(*more: str) -> Iterator[Page]:
    """Yield the page of the store of the settings. It has ended afterwards, well and without a word."""
    command = [sys.executable, "-m", "kinetic_orchestration.cli", "ui", "--json", "--no-browser", *more]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ.copy()
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield Page(json.loads(line)["address"])
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            out, err = process.communicate(timeout=WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
    assert (process.returncode, out, err) == (0, "", "")
