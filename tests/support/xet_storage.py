"""A storage of the tests that speaks Xet's protocol for downloads, as the unmodified `hf_xet` asks it: a token, of what
a file is made, and ranges of the objects that have its chunks (https://huggingface.co/docs/xet/download-protocol).
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

CHUNK, CHUNKS = 64 << 10, 32  # bytes of a chunk, and chunks of an object
HEAD = 8  # bytes before each chunk
TOKEN = "of-the-storage-alone"


def hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class XetStorage:
    """`with XetStorage() as storage: name = storage.put(data)`; the hub gives out its `token()`.

    Attributes:
        asked: Paths of requests, with the token of each.
        held: Numbers of objects of a file whose answers wait for `release`; `waiting` is set by the first one.
        flip: Objects have another last byte.
        away: All requests are refused for good.
        elsewhere: The address that a token names instead of this storage's.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str]] = []
        self.held: set[int] = set()
        self.flip = self.away = False
        self.elsewhere = ""
        self.waiting, self.release = threading.Event(), threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def put(self, data: bytes) -> str:
        """Keep a file; its name here."""
        self.files[hash_of(data)] = data
        return hash_of(data)

    def token(self) -> tuple[bytes, dict[str, str]]:
        """The hub's answer about a token, as the library reads it and as `hf_xet` does."""
        until = int(time.time()) + 3600
        url = self.elsewhere or self.url
        body = json.dumps({"accessToken": TOKEN, "exp": until, "casUrl": url}).encode()
        return body, {
            "X-Xet-Access-Token": TOKEN, "X-Xet-Token-Expiration": str(until), "X-Xet-Cas-Url": url
        }  # fmt: skip

    def objects(self) -> list[int]:
        """The numbers of the objects that were asked for."""
        return [int(path.rpartition("/")[2]) for path, _ in self.asked if path.startswith("/objects/")]

    def _of(self, file: str, start: int, end: int) -> dict[str, Any]:
        """Return the chunks that have the bytes from `start` to `end` of a file."""
        size = len(self.files[file])
        first, last = start // CHUNK, -(-min(end, size) // CHUNK)
        terms, places = [], {}
        for number in range(first // CHUNKS, -(-last // CHUNKS)):
            begin = max(first, number * CHUNKS)
            stop = min(last, (number + 1) * CHUNKS)
            name = hash_of(f"{file} {number}".encode())
            there = {"start": begin - number * CHUNKS, "end": stop - number * CHUNKS}
            length = min(stop * CHUNK, size) - begin * CHUNK
            terms.append({"hash": name, "unpacked_length": length, "range": there})
            at = there["start"] * (CHUNK + HEAD)
            bytes_there = {"start": at, "end": at + length + HEAD * (stop - begin) - 1}
            url = f"{self.url}/objects/{file}/{number}"
            places[name] = [{"range": there, "url": url, "url_range": bytes_there}]
        return {"offset_into_first_range": start - first * CHUNK, "terms": terms, "fetch_info": places}

    def _object(self, file: str, number: int) -> bytes:
        data = self.files[file][number * CHUNK * CHUNKS : (number + 1) * CHUNK * CHUNKS]
        found = b""
        for at in range(0, len(data), CHUNK):
            piece = data[at : at + CHUNK]
            length = len(piece).to_bytes(3, "little")
            found += b"\0" + length + b"\0" + length + piece
        if self.flip:
            found = found[:-1] + bytes([found[-1] ^ 1])
        return found

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        storage = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                token = self.headers.get("Authorization", "").removeprefix("Bearer ")
                storage.asked.append((path, token))
                found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
                start, end = (int(found[1]), int(found[2] or 1 << 60) + 1) if found else (0, 1 << 60)
                if storage.away:
                    self._send(403, b"{}")
                elif (file := path.removeprefix("/v1/reconstructions/")) in storage.files:
                    known = token == TOKEN and start < len(storage.files[file])
                    body = json.dumps(storage._of(file, start, end) if known else {}).encode()
                    self._send(200 if known else 416, body)
                elif found := re.fullmatch(r"/objects/(\w+)/(\d+)", path):
                    if int(found[2]) in storage.held:
                        storage.waiting.set()
                        storage.release.wait(60)
                    self._send(206, storage._object(found[1], int(found[2]))[start:end])
                else:
                    self._send(404, b"{}")

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        return Handler
