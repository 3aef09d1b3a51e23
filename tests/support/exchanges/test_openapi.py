"""The check of exchanges with a Kubernetes API server finds what is wrong in them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kinetic_orchestration.platforms.kubernetes.api.client import Exchange
from tests.support.exchanges.openapi import Documents

pytestmark = pytest.mark.fast

THING = {
    "type": "object", "required": ["kind"],
    "properties": {
        "kind": {"type": "string"}, "count": {"type": "integer"}, "mode": {"type": "string", "enum": ["a", "b"]},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "parts": {"type": "array", "items": {"allOf": [{"$ref": "#/components/schemas/Part"}]}},
    },
}  # fmt: skip
SCHEMAS = {"Thing": THING, "Part": {"type": "object", "properties": {"name": {"type": "string"}}}}
BODY = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}}
POST = {"parameters": [{"name": "dryRun"}], "requestBody": BODY, "responses": {"201": BODY}}
PATHS = {"/apis/x/v1/namespaces/{namespace}/things": {"post": POST}}
DOCUMENTS = Documents({"apis/x/v1": {"components": {"schemas": SCHEMAS}, "paths": PATHS}})
RIGHT = {"kind": "Thing", "count": 1, "mode": "a", "labels": {"any": "thing"}, "parts": [{"name": "x"}]}


def wrongs(
    request: Any = RIGHT, answer: Any = RIGHT, target: str = "/apis/x/v1/namespaces/n/things?dryRun=All"
) -> list[str]:
    return DOCUMENTS.wrongs(Exchange("POST", target, request, 201, json.dumps(answer).encode(), 0.0))


def test_what_is_right_is_not_told() -> None:
    assert wrongs() == []


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({**RIGHT, "colour": "red"}, "colour: there is no such field"),
        ({**RIGHT, "count": "1"}, 'count: "1" is no integer'),
        ({**RIGHT, "mode": "c"}, "mode: 'c' is none of ['a', 'b']"),
        ({**RIGHT, "labels": {"a": 1}}, "labels.a: 1 is no string"),
        ({**RIGHT, "parts": [{"name": "x"}, {"size": 1}]}, "parts[1].size: there is no such field"),
        ({"count": 1}, "kind is missing"),
    ],
)
def test_what_no_schema_has_is_told_of_either_side(found: Any, told: str) -> None:
    assert wrongs(request=found) == [f"POST /apis/x/v1/namespaces/n/things: request {told}"]
    assert wrongs(answer=found) == [f"POST /apis/x/v1/namespaces/n/things: answer {told}"]


def test_a_path_and_a_parameter_that_no_document_has_are_told() -> None:
    assert wrongs(target="/apis/x/v1/others") == ["POST /apis/x/v1/others: there is no such operation"]
    [told] = wrongs(target="/apis/x/v1/namespaces/n/things?colour=red")
    assert told.endswith("there is no parameter colour")


def test_an_answer_that_is_a_line_of_text_is_told() -> None:
    path = "/apis/x/v1/namespaces/n/things"
    [told] = DOCUMENTS.wrongs(Exchange("POST", path, RIGHT, 404, b"404 page not found", 0.0))
    assert told.endswith("the answer is no JSON: b'404 page not found'")
