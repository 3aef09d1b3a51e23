"""The OpenAPI documents that a Kubernetes API server publishes, and whether an exchange keeps to them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from kinetic_orchestration.platforms.kubernetes.api.client import Exchange

OF_TABLES = "includeObject"  # which all lists take, and no document has: the API's concepts name it
Schema = Mapping[str, Any]
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "object": (dict,), "array": (list,),
}  # fmt: skip
_UNDESCRIBED: Final = re.compile(r"/version|/apis/[^/]+(/[^/]+)?")
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
_STATUS = "io.k8s.apimachinery.pkg.apis.meta.v1.Status"


class Documents:
    """All documents of a server: by the group and version that each is of, `apis/batch/v1`."""

    def __init__(self, documents: Mapping[str, Schema]) -> None:
        self._paths: dict[re.Pattern[str], Schema] = {}
        self._schemas: dict[str, Schema] = {}
        for document in documents.values():
            self._schemas |= document.get("components", {}).get("schemas", {})
            for path, operations in document["paths"].items():
                self._paths[re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)))] = operations

    def all_wrongs(self, exchanges: Iterable[Exchange]) -> list[str]:
        """Return all that is wrong in exchanges that had an answer; what discovery says is not described."""
        told = {(one.method, one.target, one.status, one.answer): one for one in exchanges if one.status}
        described = (one for one in told.values() if not _UNDESCRIBED.fullmatch(one.target))
        return sorted({wrong for one in described for wrong in self.wrongs(one)})

    def wrongs(self, exchange: Exchange) -> list[str]:
        """Return all that is wrong in an exchange."""
        url = urlsplit(exchange.target)
        operations = next((found for path, found in self._paths.items() if path.fullmatch(url.path)), None)
        method = exchange.method.lower()
        if operations is None or method not in operations:
            return [f"{exchange.method} {url.path}: there is no such operation"]
        operation = operations[method]
        about = f"{exchange.method} {url.path}"
        known = {
            OF_TABLES,
            *(one["name"] for one in (*operation.get("parameters", ()), *operations.get("parameters", ()))),
        }
        found = [f"{about}: there is no parameter {name}" for name, _ in parse_qsl(url.query) if name not in known]
        if exchange.request:
            schema = _content(operation["requestBody"])
            found += [f"{about}: request {wrong}" for wrong in self._check(schema, exchange.request, "")]
        try:
            answer = json.loads(exchange.answer)
        except ValueError:
            return [*found, f"{about}: the answer is no JSON: {exchange.answer[:80]!r}"]
        if answer.get("kind") == "Table":
            schema = _TABLE
        elif answer.get("kind") == "Status":
            schema = self._schemas[_STATUS]
        else:
            responses = operation["responses"]
            schema = _content(responses.get(str(exchange.status)) or responses.get("200") or {})
        return found + [f"{about}: answer {wrong}" for wrong in self._check(schema, answer, "")]

    def _check(self, schema: Schema, value: Any, at: str) -> Iterator[str]:
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
            yield f"{at or 'it'}: {json.dumps(value)[:80]} is no {kind}"
        elif isinstance(value, dict) and kind == "object":
            yield from self._fields(schema, value, at)
        elif isinstance(value, list) and "items" in schema:
            for index, item in enumerate(value):
                yield from self._check(schema["items"], item, f"{at}[{index}]")
        elif "enum" in schema and value not in schema["enum"]:
            yield f"{at}: {value!r} is none of {schema['enum']}"

    def _fields(self, schema: Schema, value: Mapping[str, Any], at: str) -> Iterator[str]:
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{at}.{name} is missing".removeprefix(".")
        if not known and others is None:
            return
        for name, item in value.items():
            described = known.get(name, others)
            here = f"{at}.{name}".removeprefix(".")
            if described is None:
                yield f"{here}: there is no such field"
            elif isinstance(described, Mapping):
                yield from self._check(described, item, here)


def _content(described: Mapping[str, Any]) -> Schema:
    content = described.get("content", {})
    found: Schema = (content.get("application/json") or content.get("*/*") or {}).get("schema", {})
    return found
