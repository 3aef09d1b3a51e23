"""The check of exchanges with a Kubernetes API server finds what is wrong in them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kinetic_orchestration.testing.api_rules.journal import Exchange
from tests.support.exchanges.openapi import Documents

pytestmark = pytest.mark.fast

JSON = "application/json"
THING = {
    "type": "object", "required": ["kind"],
    "x-kubernetes-group-version-kind": [{"group": "x", "version": "v1", "kind": "Thing"}],
    "properties": {
        "kind": {"type": "string"}, "apiVersion": {"type": "string"}, "count": {"type": "integer"}, "mode": {"type": "string", "enum": ["a", "b"]},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "parts": {"type": "array", "items": {"allOf": [{"$ref": "#/components/schemas/Part"}]}},
    },
}  # fmt: skip
EVENT = {"type": "object", "properties": {"type": {"type": "string"}, "object": {"type": "object"}}}
SCHEMAS = {
    "Thing": THING, "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent": EVENT,
    "Part": {"type": "object", "properties": {"name": {"type": "string"}}},
}  # fmt: skip
BODY = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}}
POST = {"parameters": [{"name": "dryRun"}], "requestBody": BODY, "responses": {"201": BODY}}
GET = {"parameters": [{"name": "watch"}], "responses": {"200": BODY}}
PATHS = {"/apis/x/v1/namespaces/{namespace}/things": {"post": POST, "get": GET}}
DOCUMENTS = Documents({"apis/x/v1": {"components": {"schemas": SCHEMAS}, "paths": PATHS}})
RIGHT = {"kind": "Thing", "count": 1, "mode": "a", "labels": {"any": "thing"}, "parts": [{"name": "x"}]}


def wrongs(
    request: Any = RIGHT, answer: Any = RIGHT, target: str = "/apis/x/v1/namespaces/n/things?dryRun=All"
) -> list[str]:
    exchange = told("POST", target, json.dumps(request).encode(), 201, json.dumps(answer).encode())
    return [f"{side} {wrong.where}: {wrong.said}" for side, wrong in DOCUMENTS.wrongs(exchange)]


def told(method: str, target: str, request: bytes, status: int, answer: bytes, kind: str = JSON) -> Exchange:
    return Exchange("kubernetes", method, target, status, request, JSON, answer, kind)


def test_what_is_right_is_not_told() -> None:
    assert wrongs() == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({**RIGHT, "colour": "red"}, "colour: there is no such field"),
        ({**RIGHT, "count": "1"}, "count: its type is integer"),
        ({**RIGHT, "mode": "c"}, "mode: it is one of ['a', 'b']"),
        ({**RIGHT, "labels": {"a": 1}}, "labels.a: its type is string"),
        ({**RIGHT, "parts": [{"name": "x"}, {"size": 1}]}, "parts[1].size: there is no such field"),
        ({"count": 1}, "kind: it is missing"),
    ],
)
def test_what_no_schema_has_is_told_of_either_side(found: Any, said: str) -> None:
    assert wrongs(request=found) == [f"request {said}"]
    assert wrongs(answer=found) == [f"answer {said}"]


def test_a_path_and_a_parameter_that_no_document_has_are_told() -> None:
    assert wrongs(target="/apis/x/v1/others") == ["request POST /apis/x/v1/others: there is no such operation"]
    exchange = told("POST", "/apis/x/v1/others", b"{", 404, b"404 page not found", "text/plain")
    assert not list(DOCUMENTS.wrongs(exchange)), "a request that is refused"
    assert wrongs(target="/apis/x/v1/namespaces/n/things?colour=red") == ["request colour: there is no such parameter"]


def test_an_answer_that_is_a_line_of_text_is_told() -> None:
    exchange = told("POST", "/apis/x/v1/namespaces/n/things", b"", 404, b"404 page not found", "text/plain")
    [(side, wrong)] = DOCUMENTS.wrongs(exchange)
    assert (side, wrong.where, wrong.value, wrong.said) == ("answer", "body", "404 page not found", "it is JSON")


def test_each_change_that_a_watch_tells_is_held_against_the_schema_of_its_kind() -> None:
    def said(found: Any) -> list[str]:
        event = json.dumps({"type": "ADDED", "object": {"apiVersion": "x/v1", **found}}).encode()
        target = "/apis/x/v1/namespaces/n/things?watch=true"
        return [wrong.where for _, wrong in DOCUMENTS.wrongs(told("GET", target, b"", 200, event))]

    assert said(RIGHT) == []
    assert said({**RIGHT, "colour": "red"}) == ["colour"]
    assert said({"kind": "Other"}) == ["kind"]
