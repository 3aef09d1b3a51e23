"""Answers that a test plants in place of the emulator's own: a cloud that differs from the assumptions.

A fault is a known behaviour of the real cloud. A deviation is an unknown one, which `verify` has to find. Only clients
see it; hosts get correct answers, so that a run continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from kinetic_orchestration.testing.api_rules import journal
from kinetic_orchestration.testing.api_rules.refusals import Refusal
from kinetic_orchestration.testing.model.faults import Caller
from kinetic_orchestration.testing.model.state.resources import Json

Alter = Callable[[Json], Json]
AlterRefusal = Callable[[Refusal], Refusal]
Instead = Callable[[Json], "Json | None"]


class Deviation(NamedTuple):
    call: str
    answer: Alter | None = None
    refusal: AlterRefusal | None = None
    instead: Instead | None = None
    unknown: bytes = b""

    def meets(self, call: str, caller: Caller) -> bool:
        return caller.kind == "client" and fnmatchcase(call, self.call)


def apply(planted: Sequence[Deviation], call: str, request: Json, caller: Caller, act: Callable[[], Json]) -> Json:
    """Return what the caller is answered; raises what it is refused with."""
    met = [deviation for deviation in planted if deviation.meets(call, caller)]
    if met:
        journal.plant()
    for deviation in met:
        if deviation.instead is not None and (other := deviation.instead(request)) is not None:
            return other
    try:
        found = act()
    except Refusal as refused:
        for deviation in met:
            if deviation.refusal is not None:
                refused = deviation.refusal(refused)
        raise refused from None
    for deviation in met:
        if deviation.answer is not None:
            found = deviation.answer(found)
    return found


def unknown_fields(planted: Sequence[Deviation], call: str, caller: Caller) -> Iterator[bytes]:
    return (deviation.unknown for deviation in planted if deviation.unknown and deviation.meets(call, caller))
