"""The machine of a host, behind one interface: this machine, which is shared and stays, a VM, or a pod of a cluster.

`vm` and `pod` have the other kinds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records.base import read_bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kinetic_orchestration.host.view.view import Records
    from kinetic_orchestration.protocol.assignment import Assignment
    from kinetic_orchestration.protocol.wire.task import Task


class Unplaced(Exception):
    """The address of this host could not be found."""


class Unauthorized(Exception):
    """The account of this VM lacks a right; the message says which, and how it gets it."""


class Unanswered(Exception):
    """A service that this VM depends on did not answer; the message names it."""


class Ungranted(Exception):
    """Machines of other hosts were not granted for as long as they were asked for; the message names them."""


class Promise(NamedTuple):
    """Facts from an attempt's intent. Unlike the spec, the intent is not authenticated: it can only reduce limits."""

    affordable: float = 0.0  # the seconds that the job's limit of cost leaves to the attempt; 0.0 if unknown
    moved: int = 0  # earlier attempts that never had hosts, which users are not shown

    def limit(self, run: float, before: float) -> float:
        """Return the seconds that the program may run, of `run` at most; 0.0 for no limit.

        What the job's money is enough for counts from the host's first moment on, which was `before` the program's.
        """
        paid = round(max(1.0, self.affordable - before), 1) if self.affordable else 0.0
        return min((limit for limit in (run, paid) if limit), default=0.0)


class Machine:
    """This machine, which is shared and stays."""

    is_own = False  # it has no other host, and a failure may be the machine's own
    attests = False  # it can sign statements
    shares_cache = False  # of what JAX compiled, with machines of other jobs
    keeps_files = True  # on its disk, from one program to the next one that runs on it
    ends_together = False  # once one host of an attempt has died, its cluster ends the others
    is_explained = False  # whoever ends it without a notice is told by the operations of its cloud, not to it
    lead = 0.0  # seconds from its notice, once that came, to its end; 0.0 if they are not known
    counts_as = wire.PREEMPTION  # the cause of its end, once its notice came
    requests_address = False  # its address is a request away
    shares_ports = False  # with programs of other users: those of a job are chosen
    keeps: tuple[str, ...] = ()  # beginnings of variables of the machine by which its chips are found
    hides: tuple[str, ...] = ()  # variables of the machine that would mislead a program

    def __init__(self, at: Assignment) -> None:
        self._at = at

    def promise(self, records: Records) -> Promise | None:
        """Return the facts of the attempt's intent, if the machine is the attempt's own: all else that a host must know
        came with the machine."""
        found = read_bounded(records, names.intent(self._at.job, self._at.attempt)) if self.is_own else None
        if found is None:
            return None
        try:
            intent = wire.fields_of(found, wire.INTENT, "the intent")
        except (wire.Unreadable, wire.Newer):
            return None
        return Promise(intent.get("affordable") or 0.0, intent["placement"].get("moved", 0))

    def address(self) -> str:
        """Return the address by which the other hosts reach this one. Raises Unplaced."""
        return "127.0.0.1"

    def addresses(self, task: Task) -> list[str]:
        """Return those of all hosts, in their order. Raises Unauthorized, Unanswered, Ungranted."""
        return ["127.0.0.1"] * self._at.hosts

    def meet(self, addresses: Sequence[str], has_started: Callable[[int], bool]) -> None:
        """Try the network between the hosts on machines of their own, where it may not let programs meet.

        has_started: Tells whether a host has. Raises Unauthorized.
        """

    def network(self, task: Task) -> dict[str, str]:
        """Return the variables by which programs use the network between hosts on machines of their own."""
        return {}

    def devices(self, task: Task, note: Callable[[str], None]) -> None:
        """Wait for the machine's devices to be ready for a program.

        note: is told what is waited for. Raises Unanswered.
        """

    def begin(self, task: Task) -> None:
        """Begin the requests that `secrets` waits for."""

    def secrets(self, note: Callable[[str], None]) -> dict[str, str]:
        """Return the task's secrets, once the machine's account is known to have the rights that it needs.

        note: is told what could not be checked. Raises Unauthorized, Unanswered.
        """
        return {}

    def suits(self, task: Task, python: str, *, foreign: bool) -> bool:
        """Return True if a process that runs `python`, started before the task was known, may become its program.

        foreign: True if this process's variables would lead it out of an environment of its own.
        """
        return True

    def watch(self, report: Callable[[str], None]) -> None:
        """Report, from now on, when the machine is to be taken away."""

    def notice(self) -> str:
        """Return why the machine is being taken away; "" if it is not."""
        return ""

    def start_facts(self) -> dict[str, float | str]:
        """Return the facts about its machine that a host records when it starts."""
        return {}

    def attest(self, claim: str) -> str:
        """Return the proof that this machine made the claim; "" if it has none."""
        return ""
