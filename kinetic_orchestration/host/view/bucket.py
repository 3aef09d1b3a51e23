"""A host's view of its attempt in a bucket, where every read is a request.

One thread lists the signals of the job, which are the beats of all hosts, the ring and the eye; reads the records that
these hint at; and writes this host's own beat. The host's loop is answered from the latest snapshot, and never waits.
The rate depends on who reads and on what may change soon. `files.FileView` has the same methods on files.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic_orchestration.host.view.segments import SegmentWriter
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records.base import read_bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kinetic_orchestration.host.machine.bucket_records import CloudRecords
    from kinetic_orchestration.protocol.assignment import Assignment
    from kinetic_orchestration.protocol.records.base import Record, Signal

WATCHED = 2.0  # seconds between two reads while a client reads the log
UNWATCHED = 5.0
SLOWEST = 15.0
QUICKEST = 0.3  # after something changed here, as something may then change elsewhere
EYE = 35.0  # seconds for which an eye counts after it should have been renewed
LONGEST_EYE = 900.0  # an upper bound of that
UNHINTED = 60.0  # a hint may be lost: after that many seconds the records are read without one
OWNER = 10.0
KEEPER = 60.0
DENIED = 60.0  # seconds: a right that was just granted may take a moment to take effect
DENIALS = 4  # at least that many refusals: the store may have hung between two

COMMIT_PATIENCE = {errno.EIO: 1800.0, errno.EACCES: 60.0}  # of an outcome that is there and cannot be written


class Seen(NamedTuple):
    """Everything that one read of the bucket returned."""

    at: float  # when it began, by this machine's steady clock; 0: never
    signals: dict[str, Signal]


class BeatRefusals(NamedTuple):
    """Refusals of this host's beat, one after another."""

    since: float
    last: float
    times: int
    why: str


def cadence(hosts: int, *, watched: bool) -> float:
    """Return the seconds between two reads: the request rate of all hosts together stays about constant when there are
    more.
    """
    return min(SLOWEST, max(WATCHED if watched else UNWATCHED, hosts / 4))


class BucketView:
    def __init__(
        self, records: CloudRecords, at: Assignment, compose: Callable[[], wire.Beat], wake: Callable[[], None]
    ) -> None:
        """`wake` is called when something new was seen; `compose` gives this host's beat, on any thread."""
        self.records = records
        echo = None
        if at.pod:
            from kinetic_orchestration.host.machine.pod import start as pod_start

            echo = pod_start.echo
        self.log = SegmentWriter(
            records, at.job, at.attempt, at.host, watched=self.watched, begun=self.poll_soon, hosts=at.hosts, echo=echo
        )
        self.at = at
        self.trouble = ""
        self._compose = compose
        self._wake = wake
        self._seen = Seen(0.0, {})
        self._verdict: bytes | None = None
        self._cancel: bytes | None = None
        self._owner: tuple[Record, float] | None = None
        self._owned = False
        self._keeper: tuple[Record, float] | None = None
        self._kept = False
        self._keeper_read = 0.0
        self._leader: dict[str, Any] | None = None  # host 0's record of its start
        self._hint = ("", 0)
        self._hinted = self._changed = self._owner_read = 0.0
        self._due = threading.Event()
        self._lock = threading.Lock()
        self._shown: tuple[float, bytes] = (0.0, b"")
        self._shows_notice = False
        self._denied: BeatRefusals | None = None
        self._written = 0  # beats
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="kinetic-view", daemon=True)

    # ---- called by the loop ----------------------------------------------------------------------------------

    def open(self) -> None:
        self._changed = time.monotonic()
        self._thread.start()

    def verdict(self) -> bytes | None:
        return self._verdict

    def cancel(self) -> bytes | None:
        return self._cancel

    def owner(self) -> tuple[Record, float] | None:
        """Return the owner's last beat and when it was read; None if that was not lately, as a store that does not
        answer says nothing about an owner.
        """
        self._owned = True
        return self._owner if time.monotonic() - self._owner_read < 2 * OWNER else None

    def keeper(self) -> tuple[Record, float] | None:
        """Return the keeper's record as last read, and when that was."""
        self._kept = True
        return self._keeper

    def started(self, host: int) -> Mapping[str, object] | None:
        _, beat = self.beat_of(host)
        if beat is None or beat.state == wire.STARTING:
            return None
        return self._leader if host == 0 else {}

    def exit(self, host: int) -> int | None:
        _, beat = self.beat_of(host)
        return None if beat is None else beat.exit

    def beat_of(self, host: int) -> tuple[int, wire.Beat | None]:
        signal = self._seen.signals.get(names.beat(self.at.job, self.at.attempt, host))
        return (0, None) if signal is None else (signal.generation, wire.Beat.read(signal.data))

    def shows_notice(self) -> bool:
        return self._shows_notice

    def beats_read_at(self) -> float:
        return self._seen.at

    def watched(self) -> bool:
        """Return True if a client reads the log now."""
        eye = self._seen.signals.get(names.eye(self.at.job))
        if eye is None:
            return False
        return self.records.now() - eye.updated < min(LONGEST_EYE, EYE + wire.opened_again_in(eye.data))

    def cadence(self) -> float:
        steady = cadence(self.at.hosts, watched=self.watched())
        return min(steady, OWNER) if self._owned else steady

    def beat(self, compose: Callable[[], wire.Beat], *, changed: bool) -> None:
        """Show a beat early if it has news; otherwise this host's beats keep their own rate."""
        if changed:
            self.poll_soon()

    def denied(self) -> tuple[str, str]:
        """Return why this host cannot write its beat, once the refusal is not transient, and the cause. If it has
        overwritten its beat before, the rights of its account sufficed.
        """
        denied = self._denied
        if denied is None or denied.times < DENIALS or denied.last - denied.since < DENIED:
            return "", ""
        return denied.why, wire.INFRASTRUCTURE if self._written > 1 else wire.CONFIGURATION

    def poll_soon(self) -> None:
        self._changed = time.monotonic()
        self._due.set()

    def close(self) -> None:
        """Write the last beat, with this host's final state."""
        self._closed = True
        self._due.set()
        if self._thread.is_alive():
            self._thread.join(30.0)
        self._shown = (0.0, b"")
        self._show()

    def write_exit(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the others read it from the beat
            self.records.create(self.at.own("exit.json"), data)

    def deliver(self, what: str, path: str, *, digest: str, size: int, keep: bool) -> None:
        self.records.upload(self.at.own(what), path, move=not keep)

    def patience_with(self, error: OSError) -> float:
        return COMMIT_PATIENCE.get(error.errno or 0, 0.0)

    # ---- the thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            self._note(self._attempt(self._show))
            self._attempt(self._look)
            self._due.wait(self._pause())
            self._due.clear()

    def _note(self, error: Exception | None) -> None:
        """Record the result of the last beat. Time counts between refusals only, so that a request that hangs adds
        none.
        """
        if isinstance(error, OSError) and error.errno == errno.EACCES:
            now, before = time.monotonic(), self._denied
            self._denied = (
                BeatRefusals(now, now, 1, str(error))
                if before is None
                else BeatRefusals(before.since, now, before.times + 1, str(error))
            )
        elif error is not None:
            self._denied = None

    def _attempt(self, act: Callable[[], None]) -> Exception | None:
        """Do a step and return its error, if any: the store may answer at the next one. A thread that ended here would
        leave the host without news and, to all others, dead.
        """
        try:
            act()
        except Exception as error:
            self.trouble = str(error)
            return error
        return None

    def _pause(self) -> float:
        steady = self.cadence()
        if self.at.hosts == 1:
            return steady
        return min(steady, max(QUICKEST, (time.monotonic() - self._changed) / 4))

    def _show(self) -> None:
        """Write this host's beat, unless the stored one is fresh and has the same content."""
        with self._lock:
            composed = self._compose()
            beat = composed.encode()
            at, shown = self._shown
            if _gist(beat) == _gist(shown) and time.monotonic() - at < self.cadence() - 0.5:
                return
            self.records.signal(names.beat(self.at.job, self.at.attempt, self.at.host), beat)
            self._shown, self._denied = (time.monotonic(), beat), None
            self._written += 1
            self._shows_notice = composed.told

    def _look(self) -> None:
        began = time.monotonic()
        signals = {signal.name: signal for signal in self.records.signals(names.beats_of(self.at.job))}
        self._seen = Seen(began, signals)
        leader = self.beat_of(0)[1]
        if self._leader is None and leader is not None and leader.state != wire.STARTING:
            self._leader = self._said(names.host(self.at.job, self.at.attempt, 0, "started.json"))
        ring = signals.get(names.ring(self.at.job))
        told = any(self._says_verdict(host) for host in range(self.at.hosts))
        hint = (str(told), 0 if ring is None else ring.generation)
        now = time.monotonic()
        if hint != self._hint or now - self._hinted > UNHINTED:
            if self._verdict is None:
                self._verdict = read_bounded(self.records, names.verdict(self.at.job, self.at.attempt))
            if self._cancel is None:
                self._cancel = read_bounded(self.records, names.cancel(self.at.job))
            self._hint, self._hinted = hint, now
        if self._owned and now - self._owner_read > OWNER / 2:
            moment, beat = self.records.now(), self.records.read(names.owner(self.at.job))
            self._owner, self._owner_read = (beat, moment) if beat is not None else None, now
        if self._kept and (not self._keeper_read or now - self._keeper_read > KEEPER):
            moment, kept = self.records.now(), self.records.read(names.keeper(self.at.job))
            self._keeper, self._keeper_read = (kept, moment) if kept is not None else None, now
        self._wake()

    def _says_verdict(self, host: int) -> bool:
        _, beat = self.beat_of(host)
        return beat is not None and beat.verdict

    def _said(self, name: str) -> dict[str, Any] | None:
        data = read_bounded(self.records, name)
        try:
            return None if data is None else wire.fields_of(data, wire.STARTED, name)
        except wire.Unreadable:  # a host that waits for it ends at its own limit
            return None


def _gist(beat: bytes) -> tuple[Any, ...]:
    """Return the fields of a beat that others wait for; a change of the rest is not urgent."""
    if not beat:
        return ()
    told = wire.Beat.decode(beat)
    return told.state, told.exit, told.verdict, told.segment > 0, told.boot, told.full, told.told
