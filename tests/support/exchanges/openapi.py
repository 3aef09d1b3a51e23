"""The OpenAPI documents that a Kubernetes API server publishes, and whether an exchange keeps to them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from kinetic_orchestration.testing.api_rules.journal import Exchange
from tests.support.exchanges.rules import Wrong

OF_TABLES = "includeObject"  # which all lists take, and no document has: the API's concepts name it
Schema = Mapping[str, Any]
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "object": (dict,), "array": (list,),
}  # fmt: skip
_UNDESCRIBED: Final = re.compile(r"/(version|healthz|livez|readyz|openapi/v3(/.+)?|api(/v1)?|apis(/[^/]+){0,2})/?")
_META: Schema = {"$ref": "#/io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta"}
_TEXT: Schema = {"type": "string"}
_COLUMN: Schema = {
    "type": "object", "required": ["name", "type", "format", "description", "priority"],
    "properties": {**dict.fromkeys(("name", "type", "format", "description"), _TEXT), "priority": {"type": "integer"}},
}  # fmt: skip
_ROW: Schema = {
    "type": "object", "required": ["cells"],
    "properties": {"cells": {"type": "array"}, "conditions": {"type": "array"}, "object": {"type": "object"}},
}  # fmt: skip
_TABLE: Schema = {  # which no document has: the API's concepts name its fields
    "type": "object", "required": ["kind", "apiVersion", "metadata", "columnDefinitions", "rows"],
    "properties": {
        "kind": _TEXT, "apiVersion": _TEXT, "metadata": _META,
        "columnDefinitions": {"type": "array", "items": _COLUMN}, "rows": {"type": "array", "items": _ROW},
    },
}  # fmt: skip
_EVENT = "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent"
_STATUS = "io.k8s.apimachinery.pkg.apis.meta.v1.Status"

_UNKNOWN: Schema = {
    "type": "object",
    "properties": {"kind": {"enum": ["one of the documents"]}},
    "additionalProperties": True,
}
OK, REFUSED = 200, 400
_Node = dict[str, Any]
_ANY, _HERE = "*", ""  # in a tree of the parts of paths: a part of any name, and the operations of a path


class Documents:
    """All documents of a server: by the group and version that each is of, `apis/batch/v1`."""

    def __init__(self, documents: Mapping[str, Schema]) -> None:
        self._paths: _Node = {}
        self._schemas: dict[str, Schema] = {}
        self._kinds: dict[tuple[str, str], Schema] = {}
        for document in documents.values():
            for name, schema in document.get("components", {}).get("schemas", {}).items():
                self._schemas[name] = schema
                for kind in schema.get("x-kubernetes-group-version-kind", ()):
                    version = "/".join(filter(None, (kind["group"], kind["version"])))
                    self._kinds[version, kind["kind"]] = schema
            for path, operations in document["paths"].items():
                node = self._paths
                for part in _parts(path):
                    node = node.setdefault(_ANY if part.startswith("{") else part, {})
                node[_HERE] = operations

    def wrongs(self, exchange: Exchange) -> Iterator[tuple[str, Wrong]]:
        """Return all that is wrong in an exchange, each with its side: request or answer. What discovery says is not
        described, of a log only the request is, and of a request that is refused only the answer."""
        url = urlsplit(exchange.target)
        if _UNDESCRIBED.fullmatch(url.path):
            return
        is_taken = exchange.status < REFUSED
        operations = _found(self._paths, _parts(url.path))
        method = exchange.method.lower()
        if operations is None or method not in operations:
            if not is_taken:
                return
            yield "request", Wrong(f"{exchange.method} {url.path}", None, "there is no such operation")
            return
        operation = operations[method]
        known = {
            OF_TABLES,
            *(one["name"] for one in (*operation.get("parameters", ()), *operations.get("parameters", ()))),
        }
        query = dict(parse_qsl(url.query))
        for name, value in query.items():
            if name not in known and is_taken:
                yield "request", Wrong(name, value, "there is no such parameter")
        if exchange.request and is_taken:
            yield from self._body("request", _content(operation.get("requestBody", {})), exchange.request)
        if exchange.answer and not (exchange.status == OK and exchange.answer_type.startswith("text/plain")):
            watched = query.get("watch") in ("true", "1")
            yield from self._answered(operation["responses"], exchange, watched=watched)

    def _answered(self, responses: Schema, exchange: Exchange, *, watched: bool) -> Iterator[tuple[str, Wrong]]:
        try:
            answer = json.loads(exchange.answer)
        except ValueError:
            yield "answer", Wrong("body", exchange.answer[:80].decode("utf-8", "replace"), "it is JSON")
            return
        if watched and "object" in answer:
            yield from (("answer", wrong) for wrong in self._check(self._schemas[_EVENT], answer, ""))
            answer = answer["object"]
        schema = _content(responses.get(str(exchange.status)) or responses.get("200") or {})
        if answer.get("kind") == "Table":
            schema = _TABLE
        elif answer.get("kind") == "Status":
            schema = self._schemas[_STATUS]
        elif (
            watched or exchange.method == "DELETE"
        ):  # whose answer is a Status by the documents, and the object where it stays
            schema = self._kinds.get((answer.get("apiVersion", ""), answer.get("kind", "")), _UNKNOWN)
        yield from (("answer", wrong) for wrong in self._check(schema, answer, ""))

    def _body(self, side: str, schema: Schema, body: bytes) -> Iterator[tuple[str, Wrong]]:
        try:
            found = json.loads(body)
        except ValueError:
            yield side, Wrong("body", body[:80].decode("utf-8", "replace"), "it is JSON")
            return
        yield from ((side, wrong) for wrong in self._check(schema, found, ""))

    def _check(self, schema: Schema, value: Any, at: str) -> Iterator[Wrong]:
        if "$ref" in schema:
            schema = self._schemas[schema["$ref"].rpartition("/")[2]]
        for each in schema.get("allOf", ()):
            yield from self._check(each, value, at)
        if value is None or "oneOf" in schema or schema.get("x-kubernetes-preserve-unknown-fields"):
            return
        kind = schema.get("type")
        if kind is not None and (
            not isinstance(value, _TYPES[kind]) or (kind == "integer" and isinstance(value, bool))
        ):
            yield Wrong(at, value, f"its type is {kind}")
        elif isinstance(value, dict) and kind == "object":
            yield from self._fields(schema, value, at)
        elif isinstance(value, list) and "items" in schema:
            for index, item in enumerate(value):
                yield from self._check(schema["items"], item, f"{at}[{index}]")
        elif "enum" in schema and value not in schema["enum"]:
            yield Wrong(at, value, f"it is one of {schema['enum']}")

    def _fields(self, schema: Schema, value: Mapping[str, Any], at: str) -> Iterator[Wrong]:
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name in schema.get("required", ()):
            if name not in value:
                yield Wrong(f"{at}.{name}".removeprefix("."), None, "it is missing")
        if not known and others is None:
            return
        for name, item in value.items():
            described = known.get(name, others)
            here = f"{at}.{name}".removeprefix(".")
            if described is None:
                yield Wrong(here, item, "there is no such field")
            elif isinstance(described, Mapping):
                yield from self._check(described, item, here)


def _parts(path: str) -> Sequence[str]:
    return path.strip("/").split("/")


def _found(node: _Node, parts: Sequence[str]) -> Schema | None:
    """Return the operations of a path, of which its own names go before those of any name."""
    if not parts:
        return node.get(_HERE)
    for part in (parts[0], _ANY):
        if part in node and (found := _found(node[part], parts[1:])) is not None:
            return found
    return None


def _content(described: Mapping[str, Any]) -> Schema:
    content = described.get("content", {})
    found: Schema = (content.get("application/json") or content.get("*/*") or {}).get("schema", {})
    return found
