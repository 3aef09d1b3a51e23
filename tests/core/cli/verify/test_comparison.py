"""The comparison tells what counts as a difference from what does not: pure."""

from __future__ import annotations

from typing import Any

import pytest

from kinetic_orchestration.cli.verify import comparison
from kinetic_orchestration.cli.verify.comparison import Difference, Facts
from kinetic_orchestration.cli.verify.recording import Echo, Entry, Seen

pytestmark = pytest.mark.fast

NODE = {
    "name": "projects/PROJECT/locations/us-west4-a/nodes/NAME-1",
    "state": "READY",
    "apiVersion": "V2",
    "health": "HEALTHY",
}


def entry(
    call: str, answer: dict[str, Any], status: str = "OK", moment: str = "", unknown: tuple[str, ...] = ()
) -> Entry:
    return Entry(0.0, "job", moment, call, {}, status, answer, unknown, 0.1)


def refused(message: str, *details: dict[str, Any], code: int = 5) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "details": list(details)}}


def looks(*words: str, name: str = "NAME-1", kind: str = "node") -> list[Seen]:
    return [Seen(float(at), kind, name, word) for at, word in enumerate(words)]


EMULATOR = comparison.facts(
    [
        entry("tpu GetNode", NODE),
        entry("tpu GetNode", {**NODE, "state": "DELETING"}),
        entry("tpu GetNode", refused("Resource 'projects/PROJECT/locations/us-west4-a/nodes/NAME-3' was not found"), "NOT_FOUND",
              "get a node that was deleted"),
        entry("tpu ListNodes", {"nodes": [NODE]}),
    ],
    [*looks("404", "CREATING", "READY", "delete: OK", "DELETING", "404")],
    [Echo("tpu GetNode", "labels.kinetic-job", "same")],
)  # fmt: skip


def different(*entries: Entry, seen: list[Seen] | None = None, echoes: tuple[Echo, ...] = ()) -> list[Difference]:
    return comparison.differences(comparison.facts(entries, seen or [], echoes), EMULATOR)


def test_what_the_emulator_answers_differs_from_itself_in_nothing() -> None:
    assert comparison.differences(EMULATOR, EMULATOR) == []
    assert comparison.from_json(EMULATOR.to_json()) == EMULATOR


@pytest.mark.parametrize(
    "same",
    [
        [entry("tpu GetNode", {**NODE, "name": "projects/PROJECT/locations/europe-west4-b/nodes/NAME-17"})],
        [entry("tpu GetNode", refused("Resource 'projects/PROJECT/locations/us-east5-a/nodes/NAME-9' was not found"), "NOT_FOUND")],
        [entry("tpu ListNodes", {"nodes": [{**NODE, "state": "DELETING"}]})],
        [entry("tpu ListNodes", {})],
    ],
)  # fmt: skip
def test_names_zones_and_states_that_were_not_seen_are_no_differences(same: list[Entry]) -> None:
    assert different(*same) == []


def one(found: list[Difference]) -> tuple[str, str, str, str]:
    (line,) = found
    return line


def test_each_kind_of_difference_is_one_line_that_says_where() -> None:
    less = {key: value for key, value in NODE.items() if key != "apiVersion"}
    assert one(different(entry("tpu GetNode", less))) == (
        "tpu GetNode · OK · READY",
        "the field apiVersion",
        "always comes with it",
        "nothing",
    )
    assert one(different(entry("tpu GetNode", {**NODE, "spin": 1}))) == (
        "tpu GetNode · OK · READY",
        "the field spin",
        "nothing",
        "comes with it",
    )
    assert (
        one(different(entry("tpu GetNode", NODE, unknown=("Node.99",))))[1]
        == "the field (field Node.99, which the client library does not know)"
    )
    assert one(different(entry("tpu GetNode", {**NODE, "health": "POORLY"}))) == (
        "tpu GetNode",
        "health",
        "HEALTHY",
        "POORLY",
    )
    assert one(different(entry("tpu GetNode", {**NODE, "state": 42}))) == (
        "tpu GetNode",
        "state",
        "DELETING or READY",
        "42",
    )
    denied = entry("tpu GetNode", refused("no", code=7), "PERMISSION_DENIED", "get a node that was deleted")
    assert [line[1:] for line in different(denied)] == [
        ("status", "NOT_FOUND or OK", "PERMISSION_DENIED"), ("get a node that was deleted", "NOT_FOUND", "PERMISSION_DENIED"),
    ]  # fmt: skip
    worded = entry("tpu GetNode", refused("Requested entity was not found."), "NOT_FOUND")
    assert one(different(worded))[1:] == (
        "error.message",
        "Resource 'projects/PROJECT/locations/ZONE/nodes/NAME' was not found",
        "Requested entity was not found.",
    )
    assert one(different(echoes=(Echo("tpu GetNode", "labels.kinetic-job", "absent"),))) == (
        "tpu GetNode", "labels.kinetic-job of the request", "same", "absent",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("CREATING", "DELETING", "404"), None),  # READY was too quick to be seen
        (("404", "404", "CREATING", "READY"), None),  # looked at before it was made
        (("READY", "CREATING"), ("after READY", "404 or DELETING", "CREATING")),
        (("READY", "delete: OK", "READY", "delete: OK", "DELETING"), ("after delete: OK", "404 or DELETING", "READY")),
        (("READY", "404", "DELETING"), ("after 404", "nothing", "DELETING")),
        (("READY", "HIDING"), None),  # a state of its own is a line of the answers
    ],
)
def test_an_order_of_states_that_cannot_be_is_a_line(words: tuple[str, ...], line: tuple[str, str, str] | None) -> None:
    found = different(seen=looks(*words))
    assert [tuple(each)[1:] for each in found] == ([line] if line else [])


def test_a_look_that_was_asked_before_a_deletion_tells_nothing_of_it() -> None:
    racing = [Seen(0.0, "node", "NAME-1", "READY"), Seen(1.0, "node", "NAME-1", "delete: OK"), Seen(0.9, "node", "NAME-1", "READY"),
              Seen(1.1, "node", "NAME-1", "DELETING")]  # fmt: skip
    assert different(seen=racing) == []


def test_a_field_that_this_users_settings_asked_for_is_not_new() -> None:
    node = {**NODE, "serviceAccount": {"email": "TEXT"}}
    assert different(entry("tpu GetNode", node), echoes=(Echo("tpu GetNode", "serviceAccount.email", "same"),)) == []
    assert one(different(entry("tpu GetNode", node)))[1] == "the field serviceAccount.email"


def test_a_call_that_the_emulator_never_had_is_told_apart() -> None:
    real = comparison.facts([entry("tpu StopNode", {})], [], [])
    assert comparison.differences(real, EMULATOR) == []
    assert comparison.unrecorded(real, EMULATOR) == ["tpu StopNode"]


def test_what_takes_longer_than_the_code_allows_is_a_line_for_its_longest() -> None:
    found = comparison.too_slow(
        [("deleted → gone", 30.0), ("deleted → gone", 700.0), ("deleted → gone", 650.0), ("one answer", 3.0)]
    )
    assert [(line.where, line.real) for line in found] == [("deleted → gone", "700.0 s")]


def test_a_second_recording_adds_and_takes_nothing_away() -> None:
    from tests.core.cli.verify import recorded  # it imports Google's client

    both = recorded.merged(EMULATOR, comparison.facts([entry("tpu GetNode", {"state": "READY", "spot": True})], [], []))
    assert both.fields["tpu GetNode · OK · READY"]["apiVersion"] == comparison.ALWAYS
    assert both.fields["tpu GetNode · OK · READY"]["spot"] == comparison.SOMETIMES
    assert isinstance(both, Facts)
    assert comparison.differences(EMULATOR, both) == []
