"""Facts of a recording, and how those of the real cloud differ from the emulator's.

Pure. Facts leave out what differs from run to run: names, times, how often something was asked. A state that is over
too soon may not have been seen, so nothing follows from its absence; a field that always came and does not come, a
value or an error that never came and does, a label that is lost, an order of states that cannot be: each is a line.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kinetic_orchestration.cli.verify.clouds.cloud import MISSING, OF_LISTS, state_of
from kinetic_orchestration.cli.verify.recording import Echo, Entry, Seen, flat
from kinetic_orchestration.cli.verify.redaction import REGION, ZONE
from kinetic_orchestration.platforms.google.rest.call_listeners import OK

ALWAYS, SOMETIMES = "always", "sometimes"
NEVER = "nothing"
DELETED = "delete: OK"
NOT_IMITATED = "does not imitate"  # of the emulator: nothing to compare with
BETWEEN = " · "  # the parts of a key
# Of Cloud Storage only fields that the stores read: every server adds fields of its own.
STORAGE_FIELDS = frozenset({"name", "generation", "metageneration", "updated", "size", "crc32c", "metadata", "items"})
# Fields with few values of their own, of which a new one may need a new branch in the code.
CLOSED = frozenset(
    {
        "state", "stateInitiator", "health", "apiVersion", "symptomType", "status", "reason", "domain", "@type", "verb",
        "code", "permission", "permissions", "message",
    }
)  # fmt: skip
_NUMBERED = re.compile(r"\b(PROJECT|NAME|KEY|SECRET|OBJECT|BUCKET|ACCOUNT)(?:-\d+)?\b")
_PLACE = re.compile(rf"\b(?:{ZONE}|{REGION})\b")
_DIGITS = re.compile(r"\b\d+\b")

# what took how long → seconds that the code allows for it, and which part of it does
BOUNDS: Mapping[str, tuple[float, str]] = {
    "one answer": (20.0, "a read is given up after 20 s (tpu.client.READ_SECONDS)"),
    "asked for → to be seen": (60.0, "one that was made is expected to be shown within 60 s (tpu.backend.SHOWN)"),
    "READY → first line": (900.0, "hosts wait 15 min for each other (launch.BARRIER_SECONDS)"),
    "deleted → gone": (600.0, "a release that takes longer is left to the reaper"),
    "cancelled → ended": (180.0, "a cancel waits for 3 min (JobHandle.cancel)"),
}


class Difference(NamedTuple):
    call: str
    where: str
    emulator: str
    real: str


class Facts(NamedTuple):
    calls: Mapping[str, Sequence[str]]  # call → the statuses of its answers
    fields: Mapping[str, Mapping[str, str]]  # call, status and state → path → always or sometimes
    values: Mapping[str, Mapping[str, Sequence[str]]]  # the same → path → values of closed fields
    echoes: Mapping[str, Mapping[str, Sequence[str]]]  # call → path of the request → what became of it
    orders: Mapping[str, Sequence[Sequence[str]]]  # queued resource or node → pairs of states, one after the other
    moments: Mapping[str, str]  # a question that a step asks → the status of its answer

    def to_json(self) -> dict[str, Any]:
        return dict(self._asdict())


def facts(entries: Iterable[Entry], seen: Iterable[Seen], echoes: Iterable[Echo]) -> Facts:
    calls: dict[str, set[str]] = {}
    counts: Counter[str] = Counter()
    paths: dict[str, Counter[str]] = {}
    values: dict[str, dict[str, set[str]]] = {}
    moments: dict[str, set[str]] = {}
    for entry in entries:
        call = general(entry.call)
        if NOT_IMITATED in str(entry.answer.get("error", "")):
            continue
        calls.setdefault(call, set()).add(entry.status)
        if entry.moment:
            moments.setdefault(entry.moment, set()).add(entry.status)
        for key, answer in _answers(call, entry):
            counts[key] += 1
            there = set()
            for path, value in flat(answer):
                shown = general(".".join(path))
                if shown and _counts(call, path):
                    there.add(shown)
                    if (path[-1] in CLOSED or call.startswith("metadata ")) and value not in ("", None):
                        values.setdefault(key, {}).setdefault(shown, set()).add(_value(path[-1], value))
            there |= {f"(field {name}, which the client library does not know)" for name in entry.unknown}
            if there:
                paths.setdefault(key, Counter()).update(there)
    return Facts(
        {call: sorted(found) for call, found in sorted(calls.items())},
        {
            key: {path: ALWAYS if count == counts[key] else SOMETIMES for path, count in sorted(found.items())}
            for key, found in sorted(paths.items())
        },
        {
            key: {path: sorted(found) for path, found in sorted(of.items())}
            for key, of in sorted(values.items())
        },
        _echoed(echoes),
        _orders(seen),
        {name: ", ".join(sorted(found)) for name, found in sorted(moments.items())},
    )  # fmt: skip


def differences(real: Facts, emulator: Facts) -> list[Difference]:
    """One for each thing that is not as the emulator has it."""
    return [*_statuses(real, emulator), *_fields(real, emulator), *_values(real, emulator), *_lost(real, emulator),
            *_disorder(real, emulator), *_moments(real, emulator)]  # fmt: skip


def unrecorded(real: Facts, emulator: Facts) -> list[str]:
    """Calls without a recorded answer of the emulator, which cannot be compared."""
    return [call for call in real.calls if call not in emulator.calls]


def too_slow(measured: Iterable[tuple[str, float]]) -> list[Difference]:
    """Return the longest wait of each kind, where it is longer than the code allows for."""
    longest: dict[str, float] = {}
    for what, seconds in measured:
        longest[what] = max(seconds, longest.get(what, 0.0))
    return [
        Difference("time", what, f"within {BOUNDS[what][0]:g} s: {BOUNDS[what][1]}", f"{seconds:.1f} s")
        for what, seconds in longest.items()
        if what in BOUNDS and seconds > BOUNDS[what][0]
    ]


def general(text: str) -> str:
    """The text without the parts that differ from run to run."""
    return _PLACE.sub("ZONE", _NUMBERED.sub(r"\1", text))


def from_json(found: Mapping[str, Any]) -> Facts:
    return Facts(**{name: found[name] for name in Facts._fields})


# ---- facts


def _answers(call: str, entry: Entry) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The answer, or each entry of a listing, under the state that it shows."""
    answer = entry.answer
    scopes = list(answer["items"].values()) if isinstance(answer.get("items"), Mapping) else []
    listed = {field for scope in (answer, *scopes) for field in OF_LISTS if isinstance(scope.get(field), list)}
    for field in sorted(listed):
        for item in (item for scope in (answer, *scopes) for item in scope.get(field, ())):
            yield _key(f"{call} {field}[]", entry.status, item), item
    operations = answer.get("items") if call.endswith("/operations") else None
    for item in operations if isinstance(operations, list) else ():
        yield _key(f"{call} items[]", entry.status, item), item
    shown = {*listed, *(("items",) if scopes or operations is not None else ())}
    rest = {key: value for key, value in answer.items() if key not in shown}
    if rest or (not listed and entry.unknown):
        yield _key(call, entry.status, rest), rest


def _key(call: str, status: str, answer: Mapping[str, Any]) -> str:
    return BETWEEN.join(filter(None, (call, status, state_of(answer))))


def _counts(call: str, path: tuple[str, ...]) -> bool:
    return not call.startswith("storage ") or any(part in STORAGE_FIELDS for part in path if part != "items")


def _value(field: str, value: Any) -> str:
    return _DIGITS.sub("N", general(str(value))) if field == "message" else str(value)


def _echoed(echoes: Iterable[Echo]) -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, set[str]]] = {}
    for echo in echoes:
        found.setdefault(general(echo.call), {}).setdefault(general(echo.path), set()).add(echo.became)
    return {
        call: {path: sorted(words) for path, words in sorted(paths.items())} for call, paths in sorted(found.items())
    }


def _orders(seen: Iterable[Seen]) -> dict[str, list[tuple[str, str]]]:
    """Pairs of consecutive states, from the first state on. The state before a deletion tells nothing."""
    lines: dict[tuple[str, str], list[str]] = {}
    for state in sorted(seen):
        line = lines.setdefault((state.kind, state.name), [])
        if not line and state.word in (MISSING, DELETED):
            continue
        if not line or line[-1] != state.word:
            line.append(state.word)
    found: dict[str, set[tuple[str, str]]] = {}
    for (kind, _), line in lines.items():
        states = [word for word in line if word != DELETED]
        pairs = {(a, b) for a, b in itertools.pairwise(line) if b != DELETED}
        pairs |= {(a, b) for a, b in itertools.pairwise(states) if a != b}
        found.setdefault(kind, set()).update(pairs)
    return {kind: sorted(pairs) for kind, pairs in sorted(found.items())}


# ---- differences


def _unknown(call: str, where: str, known: Sequence[str] | None, found: Iterable[str]) -> Iterator[Difference]:
    """Yield what was found and is not among the known values; nothing if none are known."""
    for value in found if known else ():
        if value not in (known or ()):
            yield Difference(call, where, " or ".join(known or ()), value)


def _statuses(real: Facts, emulator: Facts) -> Iterator[Difference]:
    for call, statuses in real.calls.items():
        yield from _unknown(call, "status", emulator.calls.get(call), statuses)


def _fields(real: Facts, emulator: Facts) -> Iterator[Difference]:
    """Yield one line for each call and field that differs, with all the states in which it does."""
    asked = {path for paths in real.echoes.values() for path in paths}
    anywhere: dict[str, set[str]] = {}
    for key, paths in emulator.fields.items():
        anywhere.setdefault(_without_state(key), set()).update(paths)
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for key, paths in real.fields.items():
        known = emulator.fields.get(key)
        if known is None:  # its status, or its state, is a difference of its own
            continue
        call, _, state = key.rpartition(BETWEEN) if key.count(BETWEEN) > 1 else (key, "", "")
        for path in paths:
            if path not in anywhere[_without_state(key)] and not _was_asked(path, asked):
                found.setdefault((call, f"the field {path}", NEVER, "comes with it"), []).append(state)
        for path, how in known.items():
            if how == ALWAYS and paths.get(path) != ALWAYS and not _optional(key, path):
                line = (call, f"the field {path}", "always comes with it", paths.get(path, NEVER))
                found.setdefault(line, []).append(state)
    for (call, where, known_as, shown), states in found.items():
        yield Difference(BETWEEN.join(filter(None, (call, ", ".join(sorted(states))))), where, known_as, shown)


def _without_state(key: str) -> str:
    return BETWEEN.join(key.split(BETWEEN)[:2])


def _was_asked(path: str, asked: Iterable[str]) -> bool:
    """Fields of a request come back because this user's settings asked for them."""
    return any(path == one or path.endswith(f".{one}") for one in asked)


def _optional(key: str, path: str) -> bool:
    """Return True if a writer of the emulator may omit the field, or if the field's name is not fixed."""
    return path.endswith("KEY") or (key.startswith("storage ") and "metadata." in path)


def _values(real: Facts, emulator: Facts) -> Iterator[Difference]:
    """Each place where a value may stand, compared over all states that were seen there."""
    known = _by_call(emulator.values)
    for (call, path), found in _by_call(real.values).items():
        yield from _unknown(call, path, known.get((call, path)), found)


# An entry of a listing may be in any state in which it may be when it is asked for by its name.
_ALL = "compute GET compute/v1/projects/PROJECT"
_ONE_OF = {
    "tpu ListNodes nodes[]": "tpu GetNode",
    "tpu ListQueuedResources queuedResources[]": "tpu GetQueuedResource",
    f"{_ALL}/aggregated/instances instances[]": f"{_ALL}/zones/ZONE/instances/NAME",
    **{
        f"{_ALL}/aggregated/{kind} {kind}[]": f"{_ALL}/{places}/ZONE/{kind}/NAME"
        for kind, places in (("instanceGroupManagers", "zones"), ("resourcePolicies", "regions"))
    },
    f"{_ALL}/zones/ZONE/operations items[]": "compute POST compute/v1/projects/PROJECT/zones/ZONE/instances",
}


def _by_call(values: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for key, paths in values.items():
        call, status, *_ = key.split(BETWEEN)
        call = _ONE_OF.get(call, call)
        for path, some in paths.items():
            found.setdefault((call if status == OK else f"{call} {status}", path), set()).update(some)
    return {key: sorted(some) for key, some in found.items()}


def _lost(real: Facts, emulator: Facts) -> Iterator[Difference]:
    for call, paths in real.echoes.items():
        for path, words in paths.items():
            yield from _unknown(call, f"{path} of the request", emulator.echoes.get(call, {}).get(path), words)


def _disorder(real: Facts, emulator: Facts) -> Iterator[Difference]:
    for kind, pairs in real.orders.items():
        after = _closure(emulator.orders.get(kind, ()))
        known = {word for pair in emulator.orders.get(kind, ()) for word in pair}
        for first, then in pairs:
            if first in known and then in known and then not in after.get(first, ()):
                could = " or ".join(sorted(after.get(first, ()))) or NEVER
                yield Difference(f"the states of a {kind}", f"after {first}", could, then)


def _closure(pairs: Iterable[Sequence[str]]) -> dict[str, set[str]]:
    """All states that can follow each state, directly or after states that were too short to be seen."""
    after: dict[str, set[str]] = {}
    for first, then in pairs:
        after.setdefault(first, set()).add(then)
    while True:
        more = {
            first: found | {further for then in found for further in after.get(then, ())}
            for first, found in after.items()
        }
        if more == after:
            return after
        after = more


def _moments(real: Facts, emulator: Facts) -> Iterator[Difference]:
    for name, status in real.moments.items():
        known = emulator.moments.get(name)
        if known is not None and known != status:
            yield Difference("a question", name, known, status)
