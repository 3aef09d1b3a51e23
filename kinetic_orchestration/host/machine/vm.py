"""A machine that was made for one host, with an account and an identity of its own, and that may be taken away."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from kinetic_orchestration.host.machine import metadata
from kinetic_orchestration.host.machine.machine import Machine, Promise, Unanswered, Unplaced
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records.base import read_bounded
from kinetic_orchestration.protocol.system.parallel import Ahead

if TYPE_CHECKING:
    from collections.abc import Callable

    from kinetic_orchestration.protocol.assignment import Assignment
    from kinetic_orchestration.protocol.records.verbs import Records
    from kinetic_orchestration.protocol.wire.task import Task


class Vm(Machine):
    is_own = attests = shares_cache = True

    def __init__(self, at: Assignment) -> None:
        super().__init__(at)
        self.requests_address = at.hosts > 1
        self._rights: tuple[Ahead[str], Ahead[dict[str, str]]] | None = None

    def promise(self, records: Records) -> Promise | None:
        found = read_bounded(records, names.intent(self._at.job, self._at.attempt))
        if found is None:
            return None
        try:
            intent = wire.fields_of(found, wire.INTENT, "the intent")
        except (wire.Unreadable, wire.Newer):  # all that a host must know came with its metadata
            return None
        return Promise(intent.get("affordable") or 0.0, intent["placement"].get("moved", 0))

    def address(self) -> str:
        if self._at.hosts == 1:
            return super().address()
        if not (found := metadata.address()):
            raise Unplaced(
                f"the metadata server of host {self._at.host} did not say within {metadata.SILENCE:.0f} s which "
                "address this machine has, so that the other hosts could not have reached it. Nothing was run"
            )
        return found

    def addresses(self, task: Task) -> list[str]:
        try:
            return metadata.addresses(self._at, task.slices)
        except OSError as error:
            raise Unanswered(str(error)) from None

    def begin(self, task: Task) -> None:
        """Ask for the account's rights and the secrets, each on a thread of its own."""
        self._rights = Ahead(metadata.check_rights, task.project), Ahead(metadata.secrets, task.secrets)

    def secrets(self, note: Callable[[str], None]) -> dict[str, str]:
        assert self._rights is not None
        rights, secrets = self._rights
        try:
            unknown, found = rights.result(), secrets.result()
        except OSError as error:
            raise Unanswered(str(error)) from None
        if unknown:
            note(unknown)
        return found

    def suits(self, task: Task, python: str, *, foreign: bool) -> bool:
        """Return True for a command, and for a function whose environment is this Python's own."""
        wanted = task.environment
        own = (wanted is None or wanted.is_bare) and task.python in ("", python)
        return bool(task.argv) or (own and not (foreign and wanted is not None))

    def watch(self, report: Callable[[str], None]) -> None:
        metadata.watch(report)

    def notice(self) -> str:
        return metadata.notice()

    def start_facts(self) -> dict[str, float]:
        return {"up": _age(self._at.home)}

    def attest(self, claim: str) -> str:
        from kinetic_orchestration.host.machine import attestation

        return attestation.attest(claim)


def _age(home: str) -> float:
    """Return the seconds since the machine's first boot, at which the startup script armed its deadline."""
    try:
        return max(0.0, time.time() - os.stat(os.path.join(home, "deadline.lock")).st_mtime)
    except OSError:
        return 0.0
