"""A real server that speaks the API of S3 on loopback, MinIO, behind a proxy in which a test loses answers, refuses
requests and moves the clock.

MinIO is a tool of the tests alone.
"""

from __future__ import annotations

import base64
import fnmatch
import os
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from email.utils import formatdate, parsedate_to_datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from kinetic_orchestration.host.machine.s3.requests import Body, requests_of
from kinetic_orchestration.testing.storage_server.proxy import LOST, Answer, Fault, Proxy, Request
from tests.support import go_programs
from tests.support.ports import held_port

USER, PASSWORD = "tester", "a password of tests"
START = 60.0

_Fields = list[tuple[str, str]]


def program() -> Path:
    """Return MinIO, which is built first if it has not been: that takes minutes. Skips the test without Go."""
    if not go_programs.has_go():
        pytest.skip(go_programs.NONE)
    return go_programs.minio() / "minio"


class Call(NamedTuple):
    verb: str
    key: str
    status: int
    """0: its answer was lost."""


class _Trouble:
    def __init__(self, pattern: str, fault: Fault, times: float, skip: int = 0) -> None:
        self.pattern, self.fault, self.times, self.skip = pattern, fault, times, skip


class S3Server:
    """MinIO in a folder. Requests are named by what they do and the key: `PUT *verdict.json`, `GET *`, `LIST *`."""

    def __init__(self, folder: Path) -> None:
        self.calls: list[Call] = []
        self.skew = 0.0
        """Seconds by which the server's clock seems to be ahead."""
        self._folder = folder
        self._troubles: list[_Trouble] = []
        self._lock = threading.Lock()
        self._minio: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._port = 0
        self._proxy = Proxy(self)

    def __enter__(self) -> S3Server:
        self.start()
        self._proxy.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._proxy.close()
        self.kill()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._proxy.port}"

    def environ(self) -> dict[str, str]:
        """Return the variables by which clients and hosts find the server."""
        return {
            "AWS_ENDPOINT_URL_S3": self.url,
            "AWS_ACCESS_KEY_ID": USER,
            "AWS_SECRET_ACCESS_KEY": PASSWORD,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def make_bucket(self) -> str:
        """Make an empty bucket, with the variables set; return its address."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        reply, _ = requests_of(name).ask("PUT")
        assert reply.status == 200, reply
        return f"s3://{name}"

    def encrypt(self, bucket: str) -> None:
        """Have the objects of a bucket encrypted by a key of a KMS from now on, so that no ETag is an MD5."""
        rule = "<ApplyServerSideEncryptionByDefault><SSEAlgorithm>aws:kms</SSEAlgorithm><KMSMasterKeyID>a-key</KMSMasterKeyID></ApplyServerSideEncryptionByDefault>"
        body = Body(
            f"<ServerSideEncryptionConfiguration><Rule>{rule}</Rule></ServerSideEncryptionConfiguration>".encode()
        )
        reply, _ = requests_of(bucket.removeprefix("s3://")).ask("PUT", query=[("encryption", "")], body=body)
        assert reply.status == 200, reply

    def rot(self, bucket: str, key: str) -> None:
        """Change the first byte of an object that is stored, and nothing of its metadata."""
        requests = requests_of(bucket)
        reply, _ = requests.ask("GET", key)
        assert reply.status == 200, reply
        kept = {name: value for name, value in reply.headers.items() if name.lower().startswith("x-amz-meta-")}
        body = Body(bytes([reply.data[0] ^ 1]) + reply.data[1:])
        reply, _ = requests.ask("PUT", key, headers=kept, body=body)
        assert reply.status == 200, reply

    # ---- what goes wrong -------------------------------------------------------------------------------------

    def fail(
        self,
        pattern: str,
        status: int = 0,
        code: str = "",
        *,
        after: bool = False,
        times: float = 1,
        skip: int = 0,
        body: str = "",
    ) -> None:
        """Answer the next requests that match in place of the server, or lose them (status 0).

        after: The server carries them out all the same. skip: So many are let through first.
        """
        words = body or f"<Error><Code>{code}</Code><Message>as the test says</Message></Error>"
        answer = Answer(status, words.encode(), "application/xml") if status else LOST
        self._troubles.append(_Trouble(pattern, Fault(answer=answer, after=after), times, skip))

    def garble(self, pattern: str, times: float = 1) -> None:
        """Change the first byte of the answers."""
        self._troubles.append(_Trouble(pattern, Fault(garbled=True), times))

    def cut(self, pattern: str, size: int, times: float = 1) -> None:
        """Let only so many bytes of the answers arrive."""
        self._troubles.append(_Trouble(pattern, Fault(cut=size), times))

    def delay(self, pattern: str, seconds: float, times: float = 1) -> None:
        self._troubles.append(_Trouble(pattern, Fault(delay=seconds), times))

    def heal(self) -> None:
        self._troubles.clear()
        self.skew = 0.0

    def forget(self) -> None:
        """Forget the calls."""
        self.calls.clear()

    def kill(self) -> None:
        """Kill the server, as a machine that fails does."""
        if self._minio is not None:
            self._minio.kill()
            self._minio.wait()
            self._minio = None

    def start(self) -> None:
        """Start the server on what it has stored."""
        environ = {
            "MINIO_ROOT_USER": USER,
            "MINIO_ROOT_PASSWORD": PASSWORD,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            "MINIO_KMS_SECRET_KEY": f"a-key:{base64.b64encode(bytes(32)).decode()}",  # for buckets that are encrypted
            "HOME": str(self._folder),
            "PATH": os.environ.get("PATH", ""),
        }
        for _ in range(5):  # another process may be given the port first
            with held_port() as held:
                self._port = held.getsockname()[1]
            command = [str(program()), "server", "--quiet", "--address", f"127.0.0.1:{self._port}", "data"]
            with (self._folder / "minio.log").open("ab") as log:
                self._minio = subprocess.Popen(
                    command, cwd=self._folder, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            if self._is_ready():
                self._starts += 1
                return
            self.kill()
        raise RuntimeError(f"MinIO does not start: see {self._folder / 'minio.log'}")

    def _is_ready(self) -> bool:
        import http.client

        assert self._minio is not None
        until = time.monotonic() + START
        while time.monotonic() < until and self._minio.poll() is None:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
            try:
                connection.request("GET", "/minio/health/ready")
                if connection.getresponse().status == 200:
                    return True
            except OSError:
                pass
            finally:
                connection.close()
            time.sleep(0.05)
        return False

    # ---- the proxy's owner -----------------------------------------------------------------------------------

    def upstream(self) -> tuple[tuple[str, int], int]:
        if self._minio is None:
            raise ConnectionRefusedError
        return ("127.0.0.1", self._port), self._starts

    def admit(self, method: str, target: str, fields: _Fields) -> str:
        return target

    def meet(self, request: Request) -> Fault:
        verb, key = _named(request)
        with self._lock:
            for trouble in self._troubles:
                if trouble.times > 0 and fnmatch.fnmatchcase(f"{verb} {key}", trouble.pattern):
                    if trouble.skip:
                        trouble.skip -= 1
                        continue
                    trouble.times -= 1
                    return trouble.fault
        return Fault()

    def note(self, request: Request, status: int) -> None:
        self.calls.append(Call(*_named(request), status))

    def dress(self, fields: _Fields) -> _Fields:
        if not self.skew:
            return fields
        return [
            (name, formatdate(parsedate_to_datetime(value).timestamp() + self.skew, usegmt=True))
            if name.lower() == "date"
            else (name, value)
            for name, value in fields
        ]

    def revises(self, request: Request, status: int) -> bool:
        return False

    def revise(self, request: Request, status: int, body: bytes) -> Answer:
        raise NotImplementedError

    def bare(self, request: Request, status: int) -> int | None:
        return None

    def has_links(self, request: Request) -> bool:
        return False

    def link(self, body: bytes) -> bytes:
        return body

    def malformed(self, status: int, message: str) -> Answer:
        return Answer(status, message.encode(), "text/plain")

    def failed(self, line: str, error: Exception) -> Answer:
        return Answer(500, f"{line}: {error!r}".encode(), "text/plain")

    def keeps(self, request: Request, status: int) -> bool:
        return False

    def keep(self, request: Request, answer: Answer, fault: Fault) -> None:
        pass


def _named(request: Request) -> tuple[str, str]:
    """Return what a request does, and with which object."""
    key = request.path.lstrip("/").partition("/")[2]
    if request.query("list-type"):
        return "LIST", request.query("prefix")
    return request.method, key


FIRST_BUILDS = pytest.mark.timeout(1800)
"""For modules with these fixtures: the first test on a machine builds MinIO."""


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """The server, as every process finds it that this one starts."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3_server.environ().items():
        monkeypatch.setenv(name, value)
    s3_server.forget()
    yield s3_server
    s3_server.heal()


if __name__ == "__main__":
    print(program())
