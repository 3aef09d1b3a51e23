"""The rules of Google's documents: pure checks of parameters, bodies and errors. Each reports the error and its place.

`Wrong.where` is the path of a field within the checked value.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from tests.support.exchanges import documents
from tests.support.exchanges.documents import Document, Method, Schema


class Wrong(NamedTuple):
    where: str
    value: Any
    said: str
    """The values in the document."""

    def within(self, part: str) -> Wrong:
        return self._replace(where=part + ("." if self.where and not self.where.startswith("[") else "") + self.where)


Wrongs = Sequence[Wrong]
NONE: Wrongs = ()

# Where the real APIs are known to take or give what their documents do not name.
SYSTEM = "tpu.v2"
"""https://cloud.google.com/apis/docs/system-parameters: those that this document names for each of its methods are of
all APIs, also of those whose documents name fewer; and each may have a $ before its name."""
ALT = re.compile(r"json(;enum-encoding=int)?|media", re.IGNORECASE)
"""google-cloud-tpu itself sends `$alt=json;enum-encoding=int`. For the case of letters see docs/pipelines/emulator.md."""
UPLOAD_ID = {"upload_id": {"type": "string"}}
"""https://cloud.google.com/storage/docs/performing-resumable-uploads: Google's own addresses of uploads name them."""
UNCACHED = {"tensorstore": {"type": "string", "pattern": "[0-9a-f]{32}"}}
"""By such a word, new each time, tensorstore has an object's contents past Google's cache, which takes no other hint
(its driver of gs://, `kvstore/gcs_http/gcs_key_value_store.cc`). So does Orbax, and with it MaxText."""
NUMBERS = ("int64", "uint64")
"""https://protobuf.dev/programming-guides/json: a request may have these as numbers, and null for a field that is not set.
`Blob.compose` of google-cloud-storage sends both."""


# Values by their schema


class Shape:
    """The rules for one body. `sent`: by a client. `numbers`: those that may stand for a value of an enumeration."""

    def __init__(
        self, document: Document, method: str, *, sent: bool, numbers: frozenset[int] | None = frozenset()
    ) -> None:
        self._schemas = document.schemas
        self._method = method
        self._sent = sent
        self._numbers = numbers

    def wrongs(self, schema: Schema, value: Any) -> Wrongs:
        if "$ref" in schema:
            schema = self._schemas[schema["$ref"]]
        if value is None and self._sent:
            return NONE
        return _KINDS[schema["type"]](self, schema, value)

    def _object(self, schema: Schema, value: Any) -> Wrongs:
        if not isinstance(value, dict):
            return [Wrong("", value, "it is an object")]
        declared, others = schema.get("properties", {}), schema.get("additionalProperties")
        if others is not None and "@type" in others.get("description", "") and not declared:
            return self._any(value)
        found: list[Wrong] = []
        for name, item in value.items():
            described = declared.get(name, others)
            if described is None:
                found.append(Wrong(name, item, f"{schema.get('id', 'it')} has no such field"))
                continue
            if self._sent and described.get("readOnly"):
                found.append(Wrong(name, item, "it is for the API to say (readOnly)"))
            if wrongs := self.wrongs(described, item):
                found += [wrong.within(name) for wrong in wrongs]
        if self._sent:
            found += [
                Wrong(name, None, f"{self._method} needs it (required)")
                for name, described in declared.items()
                if name not in value and self._method in described.get("annotations", {}).get("required", ())
            ]
        return found

    def _any(self, value: dict[str, Any]) -> Wrongs:
        """A google.protobuf.Any: a message of this API, or one that protobuf knows."""
        kind = value.get("@type")
        if not isinstance(kind, str) or "/" not in kind:
            return [Wrong("@type", kind, "a message of any kind names it")]
        rest = {name: item for name, item in value.items() if name != "@type"}
        full = kind.rpartition("/")[2]
        long = "".join(part[:1].upper() + part[1:] for part in full.split("."))  # as newer documents call it
        schema = self._schemas.get(full.rpartition(".")[2]) or self._schemas.get(long)
        if schema and not full.startswith("google.rpc."):
            return self.wrongs(schema, rest)
        return _message(full, rest)

    def _array(self, schema: Schema, value: Any) -> Wrongs:
        if type(value) is not list:
            return [Wrong("", value, "it is an array")]
        items = schema["items"]
        found: list[Wrong] = []
        for index, item in enumerate(value):
            if wrongs := self.wrongs(items, item):
                found += [wrong.within(f"[{index}]") for wrong in wrongs]
        return found

    def _string(self, schema: Schema, value: Any) -> Wrongs:
        names = schema.get("enum")
        if type(value) is not str:
            if type(value) is int and self._sent and schema.get("format") in NUMBERS:
                return self._string(schema, str(value))
            known = names and type(value) is int and (self._numbers is None or value in self._numbers)
            return NONE if known else [Wrong("", value, f"it is a string{_format(schema)}")]
        if wrongs := _text(schema, value):
            return wrongs
        if "#" in (kind := schema.get("default", "")) and value != kind:
            return [Wrong("", value, f"it is {kind!r}")]
        return NONE

    def _integer(self, schema: Schema, value: Any) -> Wrongs:
        low, high = _RANGES[schema.get("format", "int32")]
        fits = type(value) is int and low <= value <= high
        return NONE if fits else [Wrong("", value, f"it is a whole number{_format(schema)}")]

    def _number(self, schema: Schema, value: Any) -> Wrongs:
        fits = type(value) in (int, float) or value in ("NaN", "Infinity", "-Infinity")
        return NONE if fits else [Wrong("", value, f"it is a number{_format(schema)}")]

    def _boolean(self, schema: Schema, value: Any) -> Wrongs:
        return NONE if type(value) is bool else [Wrong("", value, "it is true or false")]

    def _whatever(self, schema: Schema, value: Any) -> Wrongs:
        return NONE


_KINDS: dict[str, Callable[[Shape, Schema, Any], Wrongs]] = {
    "object": Shape._object, "array": Shape._array, "string": Shape._string, "integer": Shape._integer,
    "number": Shape._number, "boolean": Shape._boolean, "any": Shape._whatever,
}  # fmt: skip
_RANGES = {"int32": (-(1 << 31), (1 << 31) - 1), "uint32": (0, (1 << 32) - 1)}
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")


def _text(schema: Schema, text: str) -> Wrongs:
    if "enum" in schema and text not in schema["enum"]:
        return [Wrong("", text, f"it is one of {', '.join(schema['enum'])}")]
    if (form := schema.get("format")) in _FORMATS and not _FORMATS[str(form)](text):
        return [Wrong("", text, f"it is a string{_format(schema)}")]
    return NONE


def _format(schema: Schema) -> str:
    return f" of the format {schema['format']}" if "format" in schema else ""


def _is_whole(low: int, high: int) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(r"-?\d{1,20}", text) is not None and low <= int(text) <= high


def _is_bytes(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error:
        return False
    return True


def _is_time(text: str) -> bool:
    if _TIME.fullmatch(text) is None:
        return False
    try:
        datetime.fromisoformat(text[:19])
    except ValueError:
        return False
    return True


def _is(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


_FORMATS: Mapping[str, Callable[[str], bool]] = {
    "int64": _is_whole(-(1 << 63), (1 << 63) - 1),
    "uint64": _is_whole(0, (1 << 64) - 1),
    "byte": _is_bytes,
    "date-time": _is_time,
    "google-datetime": _is_time,
    "google-duration": _is(r"-?\d{1,12}(\.\d{1,9})?s"),
    "google-fieldmask": _is(r"([a-zA-Z0-9_]+(\.[a-zA-Z0-9_*]+)*(,|$))*"),
    "date": _is(r"\d{4}-\d\d-\d\d"),
}


def _message(full: str, fields: Mapping[str, Any]) -> Wrongs:
    """One that protobuf knows by its full name, such as the details of errors."""
    import google.rpc.error_details_pb2  # noqa: F401 - found by their names
    from google.protobuf import descriptor_pool, empty_pb2, json_format, message_factory  # noqa: F401

    try:
        kind = message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(full))
    except KeyError:
        return [Wrong("@type", full, "neither the document nor google.rpc has such a message")]
    try:
        json_format.ParseDict(dict(fields), kind())
    except json_format.ParseError as error:
        return [Wrong("", fields, f"{full}: {error}")]
    return NONE


# Parameters


def parameters(method: Method, given: Sequence[tuple[str, str]]) -> Iterator[Wrong]:
    """Check those of a query, in their order."""
    system = {**documents.read(SYSTEM)["parameters"], **method.document.parameters}
    more = {**(UPLOAD_ID if method.uploads else {}), **(UNCACHED if method.downloads else {})}
    known = {**system, **method.parameters, **more}
    seen: set[str] = set()
    for name, value in given:
        described = known.get(name) or system.get(name.removeprefix("$"))
        if described is None:
            yield Wrong(name, value, f"{method.id} has no such parameter")
        elif described is system["alt"] and ALT.fullmatch(value):
            continue
        elif described.get("location", "query") != "query":
            yield Wrong(name, value, "it is a part of the path")
        elif name in seen and not described.get("repeated"):
            yield Wrong(name, value, "it is given once")
        else:
            yield from (wrong.within(name) for wrong in _parameter(described, value))
        seen.add(name)
    for name, described in method.parameters.items():
        if described.get("required") and described["location"] == "query" and name not in seen:
            yield Wrong(name, None, f"{method.id} needs it (required)")


def _parameter(described: Schema, text: str) -> Wrongs:
    kind = described["type"]
    if kind == "boolean" and text not in ("true", "false"):
        return [Wrong("", text, "it is true or false")]
    if kind == "integer":
        low, high = _RANGES[described.get("format", "int32")]
        low = max(low, int(described.get("minimum", low)))
        if not _is_whole(low, high)(text):
            return [Wrong("", text, f"it is a whole number{_format(described)}")]
    if wrongs := _text(described, text):
        return wrongs
    if "pattern" in described and not re.fullmatch(described["pattern"], text):
        return [Wrong("", text, f"it is like {described['pattern']}")]
    return NONE


# Errors. The documents do not describe them:
# https://cloud.google.com/apis/design/errors#http_mapping and
# https://cloud.google.com/storage/docs/json_api/v1/status-codes do.

# google/rpc/code.proto: of each code its name, and the status of HTTP that it is sent with.
CODES: Mapping[int, tuple[str, int]] = {
    1: ("CANCELLED", 499), 2: ("UNKNOWN", 500), 3: ("INVALID_ARGUMENT", 400), 4: ("DEADLINE_EXCEEDED", 504),
    5: ("NOT_FOUND", 404), 6: ("ALREADY_EXISTS", 409), 7: ("PERMISSION_DENIED", 403), 8: ("RESOURCE_EXHAUSTED", 429),
    9: ("FAILED_PRECONDITION", 400), 10: ("ABORTED", 409), 11: ("OUT_OF_RANGE", 400), 12: ("UNIMPLEMENTED", 501),
    13: ("INTERNAL", 500), 14: ("UNAVAILABLE", 503), 15: ("DATA_LOSS", 500), 16: ("UNAUTHENTICATED", 401),
}  # fmt: skip


def rpc_error(body: Any, status: int, *, listed: bool = False) -> Wrongs:
    """The body of an error of a newer API: google.rpc.Status, with the status of HTTP in place of the code.

    `listed`: with errors as the first format has them, which `$.xgafv=1` asks for.
    """
    names = [name for name, http in CODES.values() if http == status]
    if wrongs := _members(body, {"error": dict}, {}):
        return wrongs
    error = body["error"]
    others = {"details": list, **({"errors": list} if listed else {})}
    found = _members(error, {"code": int, "message": str, "status": str}, others)
    if not found:
        found += [] if error["code"] == status else [Wrong("code", error["code"], f"it is {status}, as of HTTP")]
        found += [] if error["status"] in names else [Wrong("status", error["status"], f"{status} is {names}")]
        found += details(error.get("details", [])) + _listed(error.get("errors", []))
    return [wrong.within("error") for wrong in found]


def rpc_status(body: Mapping[str, Any]) -> Wrongs:
    """A google.rpc.Status itself."""
    found = _members(body, {"code": int, "message": str}, {"details": list})
    if not found:
        found += [] if body["code"] in CODES else [Wrong("code", body["code"], "it is one of google.rpc.Code")]
        found += details(body.get("details", []))
    return found


def details(given: Sequence[Any]) -> list[Wrong]:
    found: list[Wrong] = []
    for index, detail in enumerate(given):
        kind = detail.get("@type") if isinstance(detail, dict) else None
        if not isinstance(kind, str) or not kind.startswith("type.googleapis.com/"):
            found.append(Wrong(f"details[{index}]", detail, "its @type begins with type.googleapis.com/"))
            continue
        fields = {name: value for name, value in detail.items() if name != "@type"}
        found += [wrong.within(f"details[{index}]") for wrong in _message(kind.partition("/")[2], fields)]
    return found


def listed_error(body: Any, status: int) -> Wrongs:
    """The body of an error of an older API: Cloud Storage, or Compute Engine, of which some have details as well."""
    if wrongs := _members(body, {"error": dict}, {}):
        return wrongs
    error = body["error"]
    found = _members(error, {"code": int, "message": str, "errors": list}, {"details": list})
    if not found:
        found += [] if error["code"] == status else [Wrong("code", error["code"], f"it is {status}, as of HTTP")]
        found += _listed(error["errors"]) + details(error.get("details", []))
    return [wrong.within("error") for wrong in found]


def _listed(errors: Sequence[Any]) -> list[Wrong]:
    """Errors as the first format has them."""
    needed, others = {"domain": str, "reason": str, "message": str}, {"locationType": str, "location": str}
    return [
        wrong.within(f"errors[{index}]")
        for index, item in enumerate(errors)
        for wrong in _members(item, needed, others)
    ]


def _members(body: Any, needed: Mapping[str, type], others: Mapping[str, type]) -> list[Wrong]:
    if not isinstance(body, dict):
        return [Wrong("", body, "an error is an object")]
    found = [Wrong(name, None, "an error has it") for name in needed if name not in body]
    for name, value in body.items():
        kind = needed.get(name) or others.get(name)
        if kind is None:
            found.append(Wrong(name, value, "an error has no such field"))
        elif type(value) is not kind:
            found.append(Wrong(name, value, f"it is of the type {kind.__name__}"))
    return found
