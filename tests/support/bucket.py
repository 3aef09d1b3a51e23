"""A folder that is treated as a bucket: nobody knows who else writes there. The hosts are processes of this machine."""

from __future__ import annotations

import http.server
import json
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.platforms import registry
from kinetic_orchestration.platforms.local.store import LocalStore, open_local
from kinetic_orchestration.protocol.content import digest
from kinetic_orchestration.protocol.system.parallel import REQUESTS


class Bucket(LocalStore):
    trusted, metered = False, True
    has_files, may_corrupt = False, True  # as a host asks it
    parallel = REQUESTS
    can_append = False

    def local_path(self, name: str) -> str | None:
        return None


def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make stores in folders appear as buckets to this process."""
    assert not Bucket.trusted, "else the tests of trust check nothing"

    def open_bucket(address: str, deployment: str) -> Bucket:
        return Bucket(open_local(address, deployment).root, deployment)

    monkeypatch.setitem(registry.STORES, "", open_bucket)


class Trap:
    """An object that leaves a folder when it is unpickled, as proof that foreign code ran."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        import os

        return os.mkdir, (str(self.folder),)

    def pickled(self) -> bytes:
        return pickle.dumps(self)

    def payload(self, path: Path) -> str:
        """Write it as a file of the agent's own format; its digest."""
        from kinetic_orchestration.protocol.content import payload

        return payload.dump(self, path)[0]

    def has_sprung(self) -> bool:
        return self.folder.exists()


def unsummed(data: bytes | str) -> dict[str, Any]:
    """Return the fields of a record without its checksum, which whoever changes one by hand leaves out."""
    return {key: value for key, value in json.loads(data).items() if key != "sum"}


def rewrite(store: Any, name: str, /, **changes: Any) -> None:
    """Change some fields of a record."""
    record = store.read(name)
    assert record is not None, name
    store.put(name, json.dumps({**unsummed(record.data), **changes}).encode())


def digest_of(data: bytes) -> str:
    return digest.of_bytes(data)


@contextmanager
def serving(answers: dict[str, bytes]) -> Iterator[str]:
    """An HTTP server on this machine that answers by path; its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers.get(self.path.partition("?")[0])
            self.send_response(200 if body is not None else 404)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
