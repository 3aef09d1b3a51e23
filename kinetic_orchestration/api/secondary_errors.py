"""Secondary errors: when one host fails, the frameworks of the others end them too, each with a hundred lines.

`SecondaryErrors` folds these to one line of each host, on their way to people; the log in the store stays whole. It
goes by what JAX's coordination service writes first, and takes nothing for a secondary error but what the host writes
to stderr after that: the service then ends the process. It does not know what the first failure was: the job's verdict
does.
"""

from __future__ import annotations

import re
from typing import Final

from kinetic_orchestration.plan.values import Event, Output
from kinetic_orchestration.protocol.report import frames

# As absl logs it: https://github.com/openxla/xla, pjrt/distributed/client.h and coordination_service_agent.cc
_FIRST: Final = re.compile(
    rb"^[EFW]\d{4} [^\n]*(?:rom coordination service|JAX distributed service detected fatal errors)", re.MULTILINE
)


class SecondaryErrors:
    """Receives every event of one job in its order, and returns what of it is to be shown; None for nothing."""

    __slots__ = ("_alone", "_folded", "_instead")

    def __init__(self, hosts: int, job_id: str) -> None:
        self._alone = hosts < 2
        full = f"kinetic-orchestration logs {job_id} --full"
        self._instead = f"this host's framework ends it, as another host is gone; {full} shows its report\n".encode()
        self._folded: set[tuple[int, int]] = set()  # attempts and hosts of which only secondary errors come

    def __call__(self, event: Event) -> Event | None:
        if self._alone or not isinstance(event, Output) or event.kind != frames.ERR:
            return event
        if (event.attempt, event.host) in self._folded:
            return None
        first = _FIRST.search(event.text)
        if first is None:
            return event
        self._folded.add((event.attempt, event.host))
        return event._replace(text=event.text[: first.start()] + self._instead)
