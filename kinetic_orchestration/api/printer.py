"""Writes what happens to a job for people: to a terminal or any text stream."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Final, TextIO

from kinetic_orchestration.plan.values import Change, Event, Metrics, Output, Progress
from kinetic_orchestration.protocol.report import frames
from kinetic_orchestration.protocol.system import escaping

# As absl logs it: https://github.com/openxla/xla, pjrt/distributed/client.h and coordination_service_agent.cc
_FIRST: Final = re.compile(
    rb"^[EFW]\d{4} [^\n]*(?:rom coordination service|JAX distributed service detected fatal errors)", re.MULTILINE
)


class Printer:
    """Writes what happens to a terminal or any text stream: hosts' lines as they come, changes in one line each.

    A terminal obeys nothing of it but colours. Unless all is asked for in `full`, what hosts say
    of the end of another one is folded; `of`: how many hosts there are, where they are not told apart.
    """

    def __init__(
        self, hosts: int, write: Callable[[str], object], *, job_id: str,
        changes: Callable[[str], object] | None = None, full: bool = False, of: int = 0,
    ) -> None:  # fmt: skip
        self._hosts = hosts
        self._secondary = SecondaryErrors(1 if full else of or hosts, job_id)
        self._write = write
        self._changes = changes or write

    def __call__(self, event: Event) -> None:
        shown = self._secondary(event)
        if shown is not None:
            self._show(shown)

    def _show(self, event: Event) -> None:
        if isinstance(event, Output):
            self._write(escaping.log(prefixed(event, self._hosts)))
        elif isinstance(event, Change):
            detail = f": {event.message}" if event.message else ""
            self._changes(escaping.text(f"kinetic: {event.phase}{detail}") + "\n")
        elif isinstance(event, Metrics):
            step = "" if event.step is None else f" step {event.step}"
            values = " ".join(f"{name}={value:.6g}" for name, value in event.values.items())
            self._write(escaping.text(f"{_prefix(event.host, self._hosts)}metrics{step}: {values}") + "\n")
        elif isinstance(event, Progress) and event.host == 0:
            of = f"/{event.total:g}" if event.total else ""
            said = f"{event.done:g}{of} {event.unit}".rstrip() + pace(event.rate, event.unit)
            self._write(escaping.text(f"{_prefix(event.host, self._hosts)}progress: {said}") + "\n")


def pace(rate: float, unit: str) -> str:
    """Behind what is done, how much of it in a second; nothing where that is not known."""
    return f", {rate:.4g} {unit or 'of them'}/s" if rate > 0 else ""


def prefixed(event: Output, hosts: int, lead: str = "") -> str:
    """The text of an output event, each line led by `lead`, and by its host when there is more than one."""
    text = event.text.decode("utf-8", "backslashreplace")
    if text and text[-1] not in "\n\r":
        text += "\n"
    prefix = lead + _prefix(event.host, hosts)
    if not prefix:
        return text
    body = text.replace("\n", "\n" + prefix)
    return prefix + (body[: -len(prefix)] if text.endswith("\n") else body)


def _prefix(host: int, hosts: int) -> str:
    return f"[host {host}] " if hosts > 1 else ""


class SecondaryErrors:
    """Receives every event of one job in its order, and returns what of it is to be shown; None for nothing.

    When one host fails, the frameworks of the others end them too, each with a hundred lines. These are folded to one
    line of each host, on their way to people; the log in the store stays whole. It goes by what JAX's coordination
    service writes first, and takes nothing for a secondary error but what the host writes to stderr after that: the
    service then ends the process. It does not know what the first failure was: the job's verdict does.
    """

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


def write(text: str) -> None:
    """Write text to stdout."""
    _show(sys.stdout, text)


def say(text: str) -> None:
    """Print a line about a job to stderr."""
    write_error(f"kinetic: {escaping.text(text)}\n")


def write_error(text: str) -> None:
    """Write text to stderr."""
    _show(sys.stderr, text)


def _show(stream: TextIO, text: str) -> None:
    """Write text, with escapes for characters that the stream cannot encode, so that they do not end a wait for
    a job."""
    try:
        stream.write(text)
    except UnicodeEncodeError:
        coding = stream.encoding or "ascii"
        stream.write(text.encode(coding, "backslashreplace").decode(coding))
    stream.flush()
