"""Google's own discovery documents, as google-api-python-client ships them: methods by their requests, and schemas.

It reads them and finds in them; whether an exchange keeps to them is for `rules` to say.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

Schema = Mapping[str, Any]

# Those of the faces that the emulated cloud has.
NAMES = (
    "tpu.v2", "storage.v1", "secretmanager.v1", "cloudbilling.v1", "serviceusage.v1", "cloudresourcemanager.v1",
    "cloudresourcemanager.v3", "container.v1", "serviceusage.v1beta1", "iam.v1", "iamcredentials.v1", "compute.v1",
)  # fmt: skip


LATE = ("aiplatform.v1",)  # as large as all the others: read for a path that none of them has


class Document(NamedTuple):
    name: str
    revision: str
    parameters: Mapping[str, Schema]
    """Those that every method takes."""
    schemas: Mapping[str, Schema]

    @property
    def is_storage(self) -> bool:
        """Tells the API with uploads of its own."""
        return self.name.startswith("storage.")

    @property
    def lists_errors(self) -> bool:
        """Tells the older kind of Google's APIs, with errors of another form."""
        return self.is_storage or self.name.startswith("compute.")


class Method(NamedTuple):
    document: Document
    id: str
    verb: str
    path: re.Pattern[str]
    """The names in the path, still quoted."""
    parameters: Mapping[str, Schema]
    request: Schema | None
    response: Schema | None
    uploads: bool = False
    """By this path, a request brings an object's contents along."""
    downloads: bool = False
    """The answer may be an object's contents."""


def find(verb: str, path: str) -> Method | None:
    """Returns the method that a request is of. Its path says what its parameters' patterns say."""
    tables = (_methods(names) for names in (NAMES, LATE))
    return next((method for table in tables for method in table.get(verb, ()) if method.path.fullmatch(path)), None)


@functools.cache
def read(name: str) -> dict[str, Any]:
    spec = find_spec("googleapiclient")
    assert spec is not None and spec.origin, "google-api-python-client is not installed: pip install -e '.[dev]'"
    path = Path(spec.origin).parent / "discovery_cache" / "documents" / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@functools.cache
def _methods(names: tuple[str, ...]) -> dict[str, list[Method]]:
    methods: dict[str, list[Method]] = {}
    for name in names:
        whole = read(name)
        document = Document(name, whole["revision"], whole["parameters"], whole["schemas"])
        for described in _described(whole):
            for method in _of(document, whole["servicePath"], described):
                methods.setdefault(method.verb, []).append(method)
    return methods


def _described(part: Mapping[str, Any]) -> Iterator[Schema]:
    yield from part.get("methods", {}).values()
    for resource in part.get("resources", {}).values():
        yield from _described(resource)


def _of(document: Document, base: str, described: Schema) -> Iterator[Method]:
    """A method once for each path by which it can be called."""
    path = f"/{base}{described.get('flatPath', described['path'])}"
    downloads = bool(described.get("supportsMediaDownload"))
    method = Method(
        document, described["id"], described["httpMethod"], _pattern(path, document), described.get("parameters", {}),
        described.get("request"), described.get("response"), downloads=downloads,
    )  # fmt: skip
    yield method
    if described.get("useMediaDownloadService"):
        yield method._replace(path=_pattern(f"/download{path}", document))
    for protocol in described.get("mediaUpload", {}).get("protocols", {}).values():
        yield method._replace(path=_pattern(protocol["path"], document), uploads=True)
        if protocol["path"].startswith("/upload/"):  # the address of an upload that goes on
            yield method._replace(verb="PUT", path=_pattern(protocol["path"], document), uploads=True)


def _pattern(path: str, document: Document) -> re.Pattern[str]:
    """A part of a path is one name; in newer APIs a colon stands before a verb."""
    part = "[^/]+" if document.is_storage else "[^/:]+"
    pieces = re.split(r"\{\+?(\w+)\}", path)
    return re.compile("".join(part if index % 2 else re.escape(piece) for index, piece in enumerate(pieces)))
