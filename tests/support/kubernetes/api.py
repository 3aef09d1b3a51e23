"""Requests of tests and of the kubelet to an API server: JSON, as the user of a kubeconfig."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from kinetic_orchestration.testing.kubernetes.api.answers import Object, Refused

_PATCH = "application/strategic-merge-patch+json"  # conditions are merged by their types
_MERGE = "application/merge-patch+json"  # which is all that custom resources know
_CUSTOM = (".x-k8s.io/", "/inference.networking.k8s.io/", "/gateway.networking.k8s.io/", ".kserve.io/")
_PATIENCE = 60.0


class Api:
    """Requests of one user to the server of a kubeconfig.

    Args:
        kubeconfig: Its file, as `ControlPlane` writes one.
        keep: Keep the connection, for one thread that asks often; `close` ends it.
    """

    def __init__(self, kubeconfig: Path, *, keep: bool = False) -> None:
        self._address, self._context, self._headers = reached(kubeconfig)
        self._keep = keep
        self._kept: http.client.HTTPSConnection | None = None

    def get(self, path: str) -> Object:
        return self.call("GET", path)

    def text(self, path: str) -> str:
        """Return an answer that is no object, such as a log."""
        return self._answer("GET", path).decode()

    def create(self, path: str, body: Object) -> Object:
        return self.call("POST", path, body)

    def patch(self, path: str, body: Object) -> Object:
        return self.call("PATCH", path, body)

    def delete(self, path: str, grace: float | None = None, **options: object) -> Object:
        """Delete an object or a collection; options as `DeleteOptions` has them."""
        seconds = {} if grace is None else {"gracePeriodSeconds": grace}
        return self.call("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", **seconds, **options})

    def found(self, path: str) -> Object | None:
        """Return what is there, or None."""
        try:
            return self.get(path)
        except Refused as error:
            if error.code != http.client.NOT_FOUND:
                raise
            return None

    def call(self, verb: str, path: str, body: Object | None = None) -> Object:
        """Return the answer to one request.

        Raises:
            Refused: The server refuses it.
            OSError: The server cannot be reached.
        """
        return cast(Object, json.loads(self._answer(verb, path, body)))

    def _answer(self, verb: str, path: str, body: Object | None = None) -> bytes:
        patch = _MERGE if any(group in path for group in _CUSTOM) else _PATCH
        kind = patch if verb == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body).encode()
        request = (verb, path, data, self._headers | {"Content-Type": kind})
        was_kept = self._kept is not None
        try:
            code, text = self._exchange(*request)
        except ConnectionError:
            if not was_kept:
                raise
            code, text = self._exchange(*request)  # the server has closed what was idle, or is another one
        if code >= http.client.BAD_REQUEST:
            raise Refused(_status(code, text))
        return text

    def _exchange(self, verb: str, path: str, data: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        connection, self._kept = self._kept, None  # until it has shown to be good for another request
        if connection is None:
            connection = http.client.HTTPSConnection(self._address, timeout=_PATIENCE, context=self._context)
        try:
            connection.request(verb, path, data, headers)
            answer = connection.getresponse()
            code, text = answer.status, answer.read()
            if self._keep:
                self._kept = connection
        except http.client.HTTPException as error:
            raise ConnectionError(f"{self._address} did not answer as HTTP does: {error!r}") from error
        finally:
            if self._kept is None:
                connection.close()
        return code, text

    def close(self) -> None:
        """Close the connection that is kept."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None


def _status(code: int, text: bytes) -> Object:
    """The Status in an answer; a handler before the API's own may answer with a line of text."""
    try:
        status = json.loads(text)
    except ValueError:
        status = {"message": text.decode(errors="replace")}
    return {"code": code, **status}


def reached(kubeconfig: Path) -> tuple[str, ssl.SSLContext, dict[str, str]]:
    """Return the address of a kubeconfig's server, what its certificates are checked by, and the user's headers."""
    told = json.loads(kubeconfig.read_text(encoding="utf-8"))
    cluster, user = told["clusters"][0]["cluster"], told["users"][0]["user"]
    context = ssl.create_default_context(cadata=_text(cluster["certificate-authority-data"]))
    headers = {"Accept": "application/json"}
    if "token" in user:
        headers["Authorization"] = f"Bearer {user['token']}"
    else:
        with tempfile.NamedTemporaryFile("w") as pair:
            pair.write(_text(user["client-certificate-data"]) + _text(user["client-key-data"]))
            pair.flush()
            context.load_cert_chain(pair.name)
    return urlsplit(cluster["server"]).netloc, context, headers


def _text(data: str) -> str:
    return base64.b64decode(data).decode()
