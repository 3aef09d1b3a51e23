"""`emulator`: an emulated Google Cloud in the foreground, until Ctrl-C; what happens in it, line by line."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import shlex
import signal
import stat
import sys
import threading
import time
from argparse import Namespace
from datetime import datetime
from typing import Any, TextIO

from kinetic_orchestration.cli import codes
from kinetic_orchestration.cli.output import note, plain, show_json_line
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.protocol.system import escaping

# Seconds for the hosts of a deleted slice to be gone as well.
_LAST = 30.0
_POLL = 1.0
_UNREAD = 10_000  # lines that are kept for a reader that does not read; those after them are dropped
_PATIENCE = 2.0  # seconds for a reader to read the last lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kinetic_orchestration.testing.emulator import Emulator
    from kinetic_orchestration.testing.model.clock import Event


def emulator(arguments: Namespace) -> int:
    from kinetic_orchestration.testing import Emulator, random_faults

    asked_to_end = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # which nohup ignores
            signal.signal(number, lambda *_: asked_to_end.set())
    lines = _Lines(sys.stdout)
    with Emulator(arguments.root, zones=_zones(arguments.zone), provision_seconds=arguments.provision) as cloud:
        if arguments.faults:
            random_faults(cloud, arguments.seed, rate=arguments.faults, limit=sys.maxsize, within=60.0)
        if arguments.bare:
            _empty(cloud, arguments)
        if not arguments.print_env:  # first, as the reader of the addresses may be quicker than the next line here
            cloud.listener = lambda event: lines.add(_line(event, as_json=arguments.json))
        _show_environment(cloud, arguments)
        if not arguments.print_env:
            note("running; Ctrl-C ends it and everything in it")
        while not asked_to_end.wait(_POLL):
            pass  # a signal that came just before a wait does not end it
        cloud.listener = None
        bill = _settle(cloud)
    _show_bill(bill, lines, arguments)  # once all has ended, as whoever reads this may not read
    return codes.FAILED if bill["left"] else codes.OK


class _Lines:
    """Lines that a thread writes: the emulator waits neither for a reader that does not read nor for one that left."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(_UNREAD)
        self._thread = threading.Thread(target=self._write, name="lines of the emulator", daemon=True)
        self._thread.start()

    def add(self, line: str, patience: float = 0.0) -> None:
        """Add a line; it is dropped if there is no room for it within `patience` seconds."""
        with contextlib.suppress(queue.Full):
            self._lines.put(line, timeout=patience)

    def end(self) -> None:
        """Wait until all is written, at most for a while."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=_PATIENCE)
            self._thread.join(_PATIENCE)

    def _write(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # its reader has left
            place = self._stream.fileno()  # without the stream's buffer, which would be waited for at the exit
            while (line := self._lines.get()) is not None:
                rest = escaping.log(f"{line}\n").encode(self._stream.encoding or "utf-8", "backslashreplace")
                while rest:
                    select.select([], [place], [])
                    with contextlib.suppress(BlockingIOError):
                        rest = rest[os.write(place, rest) :]
            return
        while self._lines.get() is not None:
            pass


def _empty(cloud: Emulator, arguments: Namespace) -> None:
    """Make the project as Google has new ones, and what is new known a moment later, as there."""
    project = arguments.project or _project()
    cloud.projects.add(project)
    cloud.compute.remove_default_network(project)
    cloud.timing = cloud.timing._replace(enable=1.0, spread=3.0)


def _project() -> str:
    from kinetic_orchestration.testing.emulator import PROJECT

    return PROJECT


def _show_environment(cloud: Emulator, arguments: Namespace) -> None:
    place = {"project": arguments.project, "store": arguments.store, "deployment": arguments.deployment}
    environ = (
        {"GOOGLE_CLOUD_PROJECT": arguments.project or _project(), **cloud.addresses()}
        if arguments.bare
        else cloud.environ(**{name: value for name, value in place.items() if value}, backend=arguments.backend)
    )
    _keep_to_owner(sys.stdout)
    if arguments.json:
        show_json_line({"environment": environ})
    else:
        print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in environ.items()))
    sys.stdout.flush()


def _keep_to_owner(stream: TextIO) -> None:
    """Make the output file unreadable for other users: anyone who reads its lines can run programs here."""
    with contextlib.suppress(OSError, ValueError):  # not ours, or no file at all
        mode = os.fstat(stream.fileno()).st_mode
        if stat.S_ISREG(mode) and mode & 0o077:
            os.fchmod(stream.fileno(), stat.S_IMODE(mode) & 0o700)


def _line(event: Event, *, as_json: bool) -> str:
    if as_json:
        return _json({**event._asdict(), "time": datetime.fromtimestamp(event.time).isoformat()})
    clock = time.strftime("%H:%M:%S", time.localtime(event.time))
    return f"{clock}  {event.kind:<15}  {_short(event.name)}  {event.what}"


def _json(item: Any) -> str:
    return escaping.in_json(json.dumps(plain(item), ensure_ascii=False))


def _settle(cloud: Emulator) -> dict[str, Any]:
    """The bill; what was left is an error, as it would have gone on costing money."""
    ledger = cloud.ledger
    if cloud.settled():
        with contextlib.suppress(TimeoutError):
            cloud.wait_until_empty(_LAST)
    left = cloud.leaks()
    return {
        "chip_seconds": round(ledger.chip_seconds(), 3),
        "queued_resources": ledger.count("created", "queued resource"),
        "nodes": ledger.count("created", "node"),
        "instances": ledger.count("created", "instance"),
        "left": left,
    }


def _show_bill(bill: dict[str, Any], lines: _Lines, arguments: Namespace) -> None:
    notes = _Lines(sys.stderr)
    if arguments.json:
        lines.add(_json(bill), _PATIENCE)
    elif not arguments.print_env:
        left = "\n  ".join(escaping.text(item) for item in bill["left"])
        made = f"{bill['queued_resources']} queued resources and {bill['nodes']} nodes"
        if bill["instances"]:
            made = f"{made} and {bill['instances']} instances"
        notes.add(f"kinetic: {made} were made, READY for {bill['chip_seconds']:,g} chip-seconds")
        notes.add(f"kinetic: left, and costing on in a real cloud:\n  {left}" if left else "kinetic: nothing was left")
    lines.end()
    notes.end()


def _zones(given: list[str]) -> dict[str, int | None] | None:
    """Parse `us-west4-a`, or `us-west4-a=16` for a zone with that many chips."""
    zones: dict[str, int | None] = {}
    for text in given:
        zone, equals, chips = text.partition("=")
        if equals and not chips.isdecimal():
            raise UsageError(f"--zone {text}: after the = comes the number of chips there, such as {zone}=16")
        zones[zone] = int(chips) if equals else None
    return zones or None


def _short(name: str) -> str:
    """Shorten projects/P/locations/Z/kind/id to Z/id for users."""
    parts = name.split("/")
    return f"{parts[3]}/{parts[5]}" if len(parts) == 6 else name
