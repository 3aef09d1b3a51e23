"""A server of the tests that speaks the API of Hugging Face's hub, as the unmodified `huggingface_hub` and ours ask it.

Repositories are files by commit. Large files are answered by a redirect to another origin, with the sha256 as etag, as
the hub's storage is; small ones by the hash that git gives them. What goes wrong is set by a test.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.xet_storage import XetStorage

LARGE = 1 << 10  # bytes from which a file of these tests is in the storage of large ones
TOKEN = f"hf_{os.urandom(12).hex()}"  # of no account, and in no file of this project


class Asked(NamedTuple):
    method: str
    path: str
    token: str
    span: str  # of bytes


@dataclass
class Repository:
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    private: bool = False


def git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


class HubServer:
    """`with HubServer() as hub: hub.push("owner/name", {"config.json": b"{}"})`; `hub.url` is an HF_ENDPOINT."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.asked: list[Asked] = []
        self.flip: dict[str, int] = {}  # of files of these names, so many answers have another first byte
        self.cut: dict[
            str, int
        ] = {}  # of files of these names, one answer ends after so many bytes, and the rest waits
        self.expired: dict[str, int] = {}  # of files of these names, so many signed addresses are refused
        self.statuses: list[int] = []  # of the next answers about revisions
        self.sizes: dict[str, int] = {}  # what is said of files of these names
        self.xet: XetStorage | None = None  # has large files as well, if it is set
        self.held, self.release = threading.Event(), threading.Event()
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), self._handler(storage)) for storage in (False, True)]
        self._threads = [
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}) for server in self._servers
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        for server, thread in zip(self._servers, self._threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._servers[0].server_port}"

    def push(self, name: str, files: Mapping[str, bytes], *, branch: str = "main", private: bool = False) -> str:
        """Make a commit; its name. A repository of data is `datasets/owner/name`."""
        found = self.repositories.setdefault(name, Repository())
        told = json.dumps({path: git_hash(data) for path, data in files.items()}) + name + str(len(found.commits))
        commit = hashlib.sha1(told.encode(), usedforsecurity=False).hexdigest()
        found.commits[commit], found.branches[branch], found.private = dict(files), commit, private
        return commit

    def fetched(self, file: str, method: str = "GET") -> list[Asked]:
        """The requests for the bytes of a file, at both origins."""
        return [one for one in self.asked if one.method == method and one.path.endswith(f"/{file}")]

    # ---- answers -----------------------------------------------------------------------------------------------

    def about(self, name: str, commit: str) -> dict[str, Any]:
        repository = self.repositories[name]
        return {
            "sha": commit,
            "private": repository.private,
            "gated": False,
            "siblings": [self._sibling(path, data) for path, data in repository.commits[commit].items()],
        }

    def _sibling(self, path: str, data: bytes) -> dict[str, Any]:
        size = self.sizes.get(path, len(data))
        told: dict[str, Any] = {"rfilename": path, "size": size, "blobId": git_hash(data)}
        if len(data) >= LARGE:
            told["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": size, "pointerSize": 130}
        return told

    def _handler(self, storage: bool) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                path = unquote(urlsplit(self.path).path)
                token = self.headers.get("Authorization", "").removeprefix("Bearer ")
                hub.asked.append(Asked(self.command, path, token, self.headers.get("Range", "")))
                if storage:
                    _, repository, commit, file = path.split("//", 3)
                    if hub.expired.get(file, 0):
                        hub.expired[file] -= 1
                        self._refuse(403, "")
                        return
                    self._bytes(file, hub.repositories[repository].commits[commit][file])
                elif (found := re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)/revision/(.+)", path)) is not None:
                    self._revision(*found.groups(), token)
                elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/xet-read-token/([^/]+)", path):
                    if hub.xet is not None and self._commit(*found.groups(), token) is not None:
                        body, about = hub.xet.token()
                        self._send(200, body, about)
                elif found := re.fullmatch(r"/((?:datasets/)?[^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                    self._resolve(*found.groups(), token)
                else:
                    self._refuse(404, "")

            def _revision(self, kind: str, name: str, revision: str, token: str) -> None:
                if hub.statuses:
                    self._refuse(hub.statuses.pop(0), "")
                    return
                name = name if kind == "models" else f"datasets/{name}"
                if (commit := self._commit(name, revision, token)) is not None:
                    self._send(200, json.dumps(hub.about(name, commit)).encode())

            def _resolve(self, name: str, revision: str, file: str, token: str) -> None:
                commit = self._commit(name, revision, token)
                if commit is None:
                    return
                data = hub.repositories[name].commits[commit].get(file)
                if data is None:
                    self._refuse(404, "EntryNotFound")
                    return
                about = {"X-Repo-Commit": commit, "ETag": f'"{git_hash(data)}"'}
                if len(data) < LARGE:
                    self._bytes(file, data, about)
                    return
                about["X-Linked-ETag"] = f'"{hashlib.sha256(data).hexdigest()}"'
                about["X-Linked-Size"] = str(len(data))
                port = hub._servers[1].server_port
                if hub.xet is not None:
                    about["X-Xet-Hash"] = hub.xet.put(data)
                    about["Link"] = f'<{hub.url}/api/models/{name}/xet-read-token/{commit}>; rel="xet-auth"'
                about["Location"] = f"http://127.0.0.1:{port}/bytes//{name}//{commit}//{file}?signature=1"
                self._send(302, b"", about)

            def _commit(self, name: str, revision: str, token: str) -> str | None:
                repository = hub.repositories.get(name)
                if repository is None or (repository.private and token != TOKEN):
                    self._refuse(404 if token else 401, "RepoNotFound")
                    return None
                commit = repository.branches.get(revision, revision)
                if commit not in repository.commits:
                    self._refuse(404, "RevisionNotFound")
                    return None
                return commit

            def _bytes(self, file: str, data: bytes, about: Mapping[str, str] | None = None) -> None:
                start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
                span = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
                body = data[start:]
                if self.command == "GET" and hub.flip.get(file, 0):
                    hub.flip[file] -= 1
                    body = bytes([body[0] ^ 1]) + body[1:]
                cut = hub.cut.pop(file, None) if self.command == "GET" else None
                self._send(206 if start else 200, body, {**(about or {}), **span}, cut)

            def _send(
                self, status: int, body: bytes, about: Mapping[str, str] | None = None, cut: int | None = None
            ) -> None:
                self.send_response(status)
                for name, value in (about or {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "HEAD":
                    return
                if cut is not None:
                    self.wfile.write(body[:cut])
                    self.wfile.flush()
                    hub.held.set()
                    hub.release.wait(60)
                    self.close_connection = True
                    return
                self.wfile.write(body)

            def _refuse(self, status: int, code: str) -> None:
                self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": "refused"} if code else {})

        return Handler


def point_at(hub: HubServer, monkeypatch: pytest.MonkeyPatch, token: str = "") -> None:
    """Have this process, and its jobs, ask this hub, without the login of this machine's user."""
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN_PATH", "/nowhere/token")
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    else:
        monkeypatch.delenv("HF_TOKEN", raising=False)
