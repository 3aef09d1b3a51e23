"""All jobs of a store, as the rows of a table: listed at once, and read one by one.

The listing has ids and times alone, whatever the number of jobs. What a row shows besides is read from the job's own
records: of a store in a folder by a thread that reads all of them, those that are looked at first; of a bucket, where
each of ten thousand rows would be some ten requests, only of those that are looked at, or of all when that is asked.
It writes nothing to the store, and takes no step of any job.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, Final, NamedTuple

from kinetic_orchestration.api.handle import UNREADABLE, JobHandle
from kinetic_orchestration.api.opening import reopened
from kinetic_orchestration.capacity import prices
from kinetic_orchestration.errors import KineticError, StoreError, UsageError
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.jobs.following.snapshot import snapshot
from kinetic_orchestration.jobs.watching import attempts, live_index, usage
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.identity import pipeline_of
from kinetic_orchestration.plan.records import plan_of, spec_of, verdict_at
from kinetic_orchestration.plan.values import UNKNOWN, JobStatus, Observation
from kinetic_orchestration.platforms.backend import Backend
from kinetic_orchestration.platforms.shared.read_only import ReadOnlyBackend
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.system.parallel import side_by_side

MOST_WANTED: Final = 200  # rows that one question may name
LISTED: Final = {False: 1.0, True: 20.0}  # seconds for which a listing holds, by whether each page of it is a request
LOOKED: Final = {False: 1.5, True: 10.0}  # and what was read of a job that goes on
QUIET: Final = 0.3  # seconds after an answer, in which its page asks for more
AT_ONCE: Final = {False: 8, True: 64}  # jobs that are read together
DAMAGED, UNREAD = "DAMAGED", ""
LONGEST: Final = 160  # letters of a name in a row

COLUMNS: Final = (
    "id", "at", "state", "name", "pipeline", "accelerator", "where", "attempts", "seconds", "usd", "note", "run",
)  # fmt: skip


class Row(NamedTuple):
    """A job of the table. Before its records are read, only its id and time are known.

    Attributes:
        id: The job.
        at: When it was submitted, by the store's clock.
        state: Its status; DAMAGED if its records cannot be read, "" if they were not yet.
        name: Its function or command.
        pipeline: What it is counted by.
        accelerator: Its slice.
        where: Its backend, or what stands in for it.
        attempts: Those that had hosts.
        seconds: For which hosts were held.
        usd: Its estimated cost so far; None if that is not known.
        note: What it waits for, or why it is damaged.
        run: The orchestrator's run.
    """

    id: str
    at: float
    state: str = UNREAD
    name: str = ""
    pipeline: str = ""
    accelerator: str = ""
    where: str = ""
    attempts: int = 0
    seconds: float = 0.0
    usd: float | None = None
    note: str = ""
    run: str = ""

    @property
    def is_final(self) -> bool:
        return self.state in (DAMAGED, *(status.value for status in JobStatus if status.final))


class Unasked(ReadOnlyBackend):
    """A backend that is not asked: a table that is looked at for hours asks no cloud for the state of each row."""

    def observe(self, placements: Sequence[Mapping[str, Any]]) -> list[Observation]:
        return [Observation(UNKNOWN)] * len(placements)


class Catalog:
    """The jobs of one store, and the thread that reads their records."""

    def __init__(self, store: Store, backend: Backend, settings: Settings) -> None:
        self.store, self.settings = store, settings
        self.backends = {settings.backend: backend}
        self._lock = threading.Condition()
        self._listing = threading.Lock()  # of all who ask at once, one lists
        self._listed_at = -1e9
        self._rows: dict[str, Row] = {}
        self._changed: dict[str, int] = {}  # the version in which a row became what it is
        self._looked_at: dict[str, float] = {}
        self._gone: dict[str, int] = {}
        self._version = 0
        self._seen: dict[str, None] = {}  # rows that are looked at, which are read first
        self._wanted: dict[str, None] = {}  # all others
        self._guests, self._left = 0, time.monotonic()
        self._all = not store.metered
        self._roll: tuple[float, frozenset[str] | None] = (-1e9, None)
        self._closed = False
        self._thread = threading.Thread(target=self._read_on, name="reader of jobs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify_all()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Keep the reader from what nobody looks at while a question is answered: both would share a processor."""
        with self._lock:
            self._guests += 1
        try:
            yield
        finally:
            with self._lock:
                self._guests, self._left = self._guests - 1, time.monotonic()
                self._lock.notify_all()

    def open(self, job_id: str) -> JobHandle[Any]:
        """Return the handle of a job. Raises JobNotFound, StoreError."""
        return JobHandle(reopened(job_id, self.store, self.backends, self.settings))

    def expect(self) -> None:
        """Begin to list for a page that is being loaded: its script asks for that in a moment."""

        def begin() -> None:
            with suppress(KineticError, OSError):  # it is told when it is asked for
                self._list()

        threading.Thread(target=begin, name="listing", daemon=True).start()

    def page(self, since: int = 0) -> dict[str, Any]:
        """Return the rows that have changed since that version, the newest first, as arrays of `COLUMNS`. Raises
        StoreError."""
        self._list()
        with self._lock:
            if self._all:
                self._want(job_id for job_id, row in self._rows.items() if row.state == UNREAD)
            self._want(job_id for job_id, row in self._rows.items() if row.state and not row.is_final)
            changed = [row for job_id, row in self._rows.items() if self._changed[job_id] > since]
            changed.sort(key=lambda row: (-row.at, row.id))
            return {
                "version": self._version,
                "columns": COLUMNS,
                "rows": [_short(row) for row in changed],
                "gone": [job_id for job_id, version in self._gone.items() if version > since],
                "total": len(self._rows),
                "unread": sum(row.state == UNREAD for row in self._rows.values()),
                "reads_all": self._all,
                "metered": self.store.metered,
                "now": self.store.now(),
            }

    def read(self, wanted: Collection[str], patience: float = 2.0) -> list[tuple[Any, ...]]:
        """Return the rows of these jobs, whose records are read first, as far as that takes no longer than patience."""
        until = time.monotonic() + patience
        with self._lock:
            known = [job_id for job_id in wanted if job_id in self._rows][:MOST_WANTED]
            unread = [job_id for job_id in known if self._rows[job_id].state == UNREAD]
            self._seen |= dict.fromkeys(unread)
            self._lock.notify_all()
            while any(job_id in self._rows and self._rows[job_id].state == UNREAD for job_id in unread):
                if self._closed or not self._lock.wait(max(0.0, until - time.monotonic())):
                    break
            return [_short(self._rows[job_id]) for job_id in known if job_id in self._rows]

    def read_all(self) -> None:
        """Begin to read the records of all jobs, also where that takes requests."""
        with self._lock:
            self._all = True
            self._want(job_id for job_id, row in self._rows.items() if row.state == UNREAD)

    def _want(self, jobs: Iterable[str]) -> None:
        lasts, now = LOOKED[self.store.metered], time.monotonic()
        for job_id in jobs:
            if now - self._looked_at.get(job_id, -1e9) >= lasts:
                self._wanted.setdefault(job_id)
        self._lock.notify_all()

    def _list(self) -> None:
        with self._listing:
            if time.monotonic() - self._listed_at < LISTED[self.store.metered]:
                return
            found = live_index.submitted(self.store)
            if not found:
                if self.store.read(names.DEPLOYMENT) is None:
                    raise StoreError(f"there is no store at {self.store.url} any more: was it moved or removed?")
                found = live_index.submitted(self.store)  # it may have come back in between
            self._listed_at = time.monotonic()
        with self._lock:
            new, gone = found.keys() - self._rows.keys(), self._rows.keys() - found.keys()
            if new or gone:
                self._version += 1
            for job_id in sorted(new, key=lambda job_id: -found[job_id]):
                self._rows[job_id], self._changed[job_id] = Row(job_id, found[job_id]), self._version
                self._gone.pop(job_id, None)
            for job_id in gone:
                for known in (self._rows, self._changed, self._looked_at, self._wanted, self._seen):
                    known.pop(job_id, None)
                self._gone[job_id] = self._version

    def _read_on(self) -> None:
        """Read what is wanted, until the catalog is closed."""
        while True:
            before = self._next()
            if before is None:
                return
            read = side_by_side(self._row, before, self.store.parallel)
            with self._lock:
                self._version += 1
                for row in read:
                    if row.id in self._rows:
                        self._looked_at[row.id] = time.monotonic()
                        if row != self._rows[row.id]:
                            self._rows[row.id], self._changed[row.id] = row, self._version
                self._lock.notify_all()

    def _next(self) -> list[Row] | None:
        """Wait for rows to read, those first that are looked at; None once the catalog is closed."""
        with self._lock:
            while not self._closed:
                rest = QUIET - (time.monotonic() - self._left)
                from_ = self._seen or (self._wanted if not self._guests and rest <= 0 else {})
                if batch := list(islice(from_, AT_ONCE[self.store.metered])):
                    for job_id in batch:
                        self._seen.pop(job_id, None)
                        self._wanted.pop(job_id, None)
                    return [self._rows[job_id] for job_id in batch if job_id in self._rows]
                self._lock.wait(max(rest, 0.01) if self._wanted and not self._guests else None)
            return None

    def _row(self, row: Row) -> Row:
        try:
            return self._read_row(row)
        except UNREADABLE as error:
            return row._replace(state=DAMAGED, note=str(error))
        except (KineticError, OSError) as error:  # the store is away: what is known of the job stays, and is read again
            return row._replace(note=str(error)) if row.state else row
        except Exception as error:  # of records that no check has foreseen: one job's must not end the reader of all
            return row._replace(state=DAMAGED, note=f"{type(error).__name__}: {error}")

    def _read_row(self, row: Row) -> Row:
        record = self.store.read(names.spec(row.id))
        if record is None:  # removed since it was listed
            return row
        spec = spec_of(record.data, row.id)
        plan, origin = plan_of(spec, row.id), spec.get("origin", {})
        settings = prices.in_force(self.settings, self.store)
        found = usage.stays(self.store, row.id, kept=plan.keep is not None)
        charged = not plan.traits.share_machine
        cost = usage.estimate_of(plan, found, settings.prices, settings.listed, charged=charged)
        state, note = self._state(row.id)
        return Row(
            row.id, row.at, state, spec["name"], pipeline_of(origin, plan.name), plan.slice.name, plan.where,
            cost.attempts, cost.ready_seconds, 0.0 if cost.uncharged else cost.usd, note, str(origin.get("run", "")),
        )  # fmt: skip

    def _state(self, job_id: str) -> tuple[str, str]:
        """Return a job's state and what it waits for. Of one that is not on the roll its last verdict is the end."""
        live = self._live()
        if live is not None and job_id not in live:
            last = max(attempts.times(self.store, job_id), default=0)
            record = self.store.read(names.verdict(job_id, last)) if last else None
            if record is not None:
                verdict = verdict_at(record.data, names.verdict(job_id, last))
                if verdict.kind == wire.COMMITTED:
                    return JobStatus.SUCCEEDED.value, ""
                return lifecycle.rule_of(lifecycle.classify(verdict))[1].value, verdict.reason
        try:
            job = self.open(job_id)._job
            peek = snapshot(job.on(Unasked(job.backend)) if self.store.metered else job)
        except UsageError as error:  # its backend cannot be opened here
            return JobStatus.PENDING.value, str(error)
        outcome = peek.outcome
        return peek.status.value, outcome.verdict.reason if outcome is not None else peek.message or peek.said

    def _live(self) -> frozenset[str] | None:
        """Return the jobs on the roll; None in a store without a whole one."""
        at, live = self._roll
        if time.monotonic() - at >= LOOKED[self.store.metered]:
            live = None
            if self.store.read(names.ROLL) is not None:
                live = frozenset(entry.name.removeprefix(names.LIVE) for entry in self.store.list(names.LIVE))
            self._roll = time.monotonic(), live
        return live


def _short(row: Row) -> tuple[Any, ...]:
    """Return a row as it is sent: what is not known yet is left out, and no text is longer than a cell."""
    if row.state == UNREAD:
        return row.id, round(row.at, 1)
    return tuple(
        value[:LONGEST] if isinstance(value, str) else round(value, 4) if isinstance(value, float) else value
        for value in row
    )
