"""The results of a batch in a folder or a bucket, so that a kill repeats no finished prompt, loses none, writes none
twice, also while two attempts live.

    plans/00001.json          which rows are divided into which parts; the newest one is in force
    parts/00001-00007.jsonl   the answers of a part of plan 1, whole; created once, never changed
    journal/<writer>/000001.jsonl   answers of parts that are not whole yet, of one host of one attempt
    claims/<plan>-<attempt>/00007   the host of an attempt that works on a part
    hosts/<plan>-<attempt>/0  what a host of an attempt has done, for the report

Every object is created if it is absent, whole, so there are no torn lines. An empty part is closed: a later plan has
its rows, and whoever still works on it learns that it is superseded. Knows neither servers nor what an answer is.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kinetic_orchestration.errors import KineticError, Superseded, UsageError
from kinetic_orchestration.host.machine import buckets
from kinetic_orchestration.host.view.retrying_records import RetryingRecords
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.system.parallel import side_by_side

if TYPE_CHECKING:
    from kinetic_orchestration.program.context import HostContext

PLANS, PARTS, JOURNAL, CLAIMS, HOSTS, LOGS = "plans/", "parts/", "journal/", "claims/", "hosts/", "logs/"
LARGEST = 1 << 30  # bytes of a part, a plan or a piece of a journal
READERS = 16
LARGEST_PART = 64  # rows


@dataclass(frozen=True, slots=True)
class Plan:
    """The rows that are to be answered, divided into parts."""

    number: int
    batch: str  # digest of all rows in their order
    job: str  # that made it
    count: int  # of rows of the batch
    size: int  # rows of a part
    todo: bytes  # a bit for each row of the batch, in its order: it is in a part of this plan

    def chosen(self) -> list[int]:
        """The places of the rows that are in parts of this plan."""
        return [place for place in range(self.count) if self.todo[place >> 3] >> (place & 7) & 1]

    def parts(self) -> int:
        rows = sum(bin(byte).count("1") for byte in self.todo)
        return -(-rows // self.size)

    def name(self, part: int) -> str:
        return f"{PARTS}{self.number:05d}-{part:05d}.jsonl"

    def encode(self) -> bytes:
        told = {"batch": self.batch, "job": self.job, "count": self.count, "size": self.size}
        return wire.encode({**told, "todo": base64.b64encode(self.todo).decode("ascii")})

    @classmethod
    def decode(cls, number: int, data: bytes, name: str) -> Plan:
        """Raises `wire.Unreadable` for anything else, and `wire.Newer`."""
        told = wire.decode(data, name)
        try:
            count, size = int(told["count"]), int(told["size"])
            todo = base64.b64decode(str(told["todo"]), validate=True)
            if count < 0 or size < 1 or len(todo) != (count + 7) >> 3:
                raise ValueError
            return cls(number, str(told["batch"]), str(told["job"]), count, size, todo)
        except (KeyError, TypeError, ValueError):
            raise wire.Unreadable(f"{name} is not the plan of a batch") from None


def bits(places: Iterable[int], count: int) -> bytes:
    """A bit for each of `count` rows: those at the places are set."""
    found = bytearray((count + 7) >> 3)
    for place in places:
        found[place >> 3] |= 1 << (place & 7)
    return bytes(found)


def part_size(rows: int, hosts: int) -> int:
    """The rows of a part: few, so that no host waits long for another one's last part."""
    return max(1, min(LARGEST_PART, rows // (16 * hosts)))


class Output:
    """The place of a batch's results, for one host of one attempt."""

    def __init__(self, place: str, job: str, attempt: str, host: int = 0, hosts: int = 1) -> None:
        """`attempt` is unique to an attempt, of all jobs."""
        self.place = place
        self.job, self.attempt, self.host, self.hosts = job, attempt, host, hosts
        self.in_bucket = buckets.in_bucket(place)
        if not self.in_bucket:
            os.makedirs(place, exist_ok=True)
        self.records: Any = buckets.open_place(place) if self.in_bucket else RetryingRecords(place)

    def close(self) -> None:
        if self.in_bucket:
            self.records.close()

    # ---- plans ----------------------------------------------------------------------------------------------------

    def plan(self, batch: str, keys: Sequence[str], retry_failed: bool) -> Plan:
        """Return the plan in force for a batch: the newest one, if it is of these rows; else a new one of those rows
        that have no answer yet, after the parts of the earlier one were closed to whoever still works on them.

        All hosts and attempts get the same.
        """
        while True:
            newest = self._newest()
            is_ours = newest is not None and newest.batch == batch and (not retry_failed or newest.job == self.job)
            if newest is not None and is_ours and not self._closed(newest):
                return newest
            if newest is not None:
                self._close(newest)
            done: dict[str, bool] = {}
            for answer in self._in_parts():
                done[answer["key"]] = "error" in answer
            places = [
                place for place, key in enumerate(keys) if done.get(key, True) and (retry_failed or key not in done)
            ]
            size = part_size(len(places), self.hosts)
            number = 1 if newest is None else newest.number + 1
            plan = Plan(number, batch, self.job, len(keys), size, bits(places, len(keys)))
            if self.records.create(f"{PLANS}{number:05d}.json", plan.encode()) is not None:
                return plan

    def _newest(self) -> Plan | None:
        numbers = [_number(entry.name, PLANS) for entry in self.records.list(PLANS)]
        if not numbers:
            return None
        name = f"{PLANS}{max(numbers):05d}.json"
        record = self.records.read(name, limit=LARGEST)
        if record is None:
            raise KineticError(f"{self.place}/{name} was removed while it was read: keep what a batch has written")
        return Plan.decode(max(numbers), record.data, f"{self.place}/{name}")

    def _close(self, plan: Plan) -> None:
        """Close the parts of a plan that are not there."""
        there = {entry.name for entry in self.records.list(f"{PARTS}{plan.number:05d}-")}
        missing = [name for name in map(plan.name, range(plan.parts())) if name not in there]
        side_by_side(lambda name: self.records.create(name, b""), missing, READERS, name="kinetic-close")

    def _closed(self, plan: Plan) -> bool:
        prefix = f"{PARTS}{plan.number:05d}-"
        return any(entry.size == 0 for entry in self.records.list(prefix))

    # ---- answers that are there -----------------------------------------------------------------------------------

    def whole(self, plan: Plan) -> set[int]:
        """Return the parts of a plan that are there.

        Raises:
            Superseded: One of them was closed.
        """
        prefix = f"{PARTS}{plan.number:05d}-"
        found = set()
        for entry in self.records.list(prefix):
            if entry.size == 0:
                raise self._superseded(entry.name)
            found.add(_number(entry.name, prefix))
        return found

    def _superseded(self, name: str) -> Superseded:
        return Superseded(
            f"{self.place} is now the output of another batch, or of a job that asks failed rows again, which has "
            f"closed {name} to this one. Its answers are kept; run it again with an output of its own"
        )

    def answers(self, name: str) -> list[dict[str, Any]]:
        """Return the answers in an object; none if it is gone."""
        record = self.records.read(name, limit=LARGEST)
        return [] if record is None else list(_lines(record.data))

    def _in_parts(self, without: frozenset[str] = frozenset()) -> Iterator[dict[str, Any]]:
        names = [entry.name for entry in self.records.list(PARTS) if entry.size and entry.name not in without]
        yield from self._of(names)

    def _of(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        for start in range(0, len(names), READERS):
            some = names[start : start + READERS]
            for answers in side_by_side(self.answers, some, READERS, name="kinetic-answers"):
                yield from answers

    def in_parts(self, without: Iterable[str] = ()) -> Iterator[dict[str, Any]]:
        """Yield the answers of all parts but some, those of newer plans last."""
        return self._in_parts(frozenset(without))

    def newest_first(self) -> Iterator[dict[str, Any]]:
        """Yield the answers of all parts, those of newer plans first, those that are only in journals, and those of
        parts that were written meanwhile, into which the answers of a journal may have gone.
        """
        names = [entry.name for entry in self.records.list(PARTS) if entry.size]
        yield from self._of(sorted(names, key=lambda name: (-_number(name.partition("-")[0], PARTS), name)))
        yield from self.in_journals()
        yield from self._in_parts(frozenset(names))

    def in_journals(self, retry_failed: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the answers that hosts of all attempts have journaled and that may be in no part yet; with
        `retry_failed` no failures that other jobs met."""
        names = [entry.name for entry in self.records.list(JOURNAL) if entry.size]
        own = f"{JOURNAL}{self.attempt.rpartition('-')[0]}-"
        yield from self._of([name for name in names if name.startswith(own)])
        for answer in self._of([name for name in names if not name.startswith(own)]):
            if not (retry_failed and "error" in answer):
                yield answer

    # ---- what this host writes ------------------------------------------------------------------------------------

    @property
    def writer(self) -> str:
        return f"{self.attempt}-{self.host:05d}"

    def journal(self, number: int, lines: Sequence[bytes]) -> str:
        """Keep answers; returns the name of the object that has them."""
        name = f"{JOURNAL}{self.writer}/{number:06d}.jsonl"
        if self.records.create(name, b"".join(lines)) is None:
            raise KineticError(f"{self.place}/{name} is there already: two processes say that they are {self.writer}")
        return name

    def commit(self, plan: Plan, part: int, lines: Sequence[bytes], keys: Iterable[str]) -> bool:
        """Write a whole part. Returns False if another attempt has written it, which counts then.

        Raises:
            Superseded: The part was closed: another batch, or another job, has its rows now.
        """
        name = plan.name(part)
        if self.records.create(name, b"".join(lines)) is not None:
            return True
        theirs = {answer["key"] for answer in self.answers(name)}
        if not theirs >= set(keys):
            raise self._superseded(name)
        return False

    def claim(self, plan: Plan, start: int) -> int | None:
        """Take the first part from `start` on that no host of this attempt has; None if there is none left."""
        count = plan.parts()
        if self.hosts == 1:
            return start if start < count else None
        prefix = f"{CLAIMS}{plan.number:05d}-{self.attempt}/"
        taken: set[int] = set()
        while start < count:
            if start not in taken and self.records.create(f"{prefix}{start:05d}", b"%d" % self.host) is not None:
                return start
            if start not in taken:
                taken = {_number(entry.name, prefix) for entry in self.records.list(prefix)}
            start += 1
        return None

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            self.records.delete(name)

    # ---- the end of an attempt ------------------------------------------------------------------------------------

    def tell(self, plan: Plan, told: Mapping[str, Any]) -> None:
        """Write what this host has done."""
        self.records.put(f"{HOSTS}{plan.number:05d}-{self.attempt}/{self.host:05d}", wire.encode(dict(told)))

    def count_told(self, plan: Plan) -> int:
        """Return how many hosts of this attempt have told what they did."""
        return sum(1 for _ in self.records.list(f"{HOSTS}{plan.number:05d}-{self.attempt}/"))

    def heard(self, plan: Plan) -> dict[int, dict[str, Any]]:
        """Return what the hosts of this attempt have told so far."""
        prefix, heard = f"{HOSTS}{plan.number:05d}-{self.attempt}/", {}
        for entry in list(self.records.list(prefix)):
            if (record := self.records.read(entry.name, limit=LARGEST)) is not None:
                heard[_number(entry.name, prefix)] = wire.decode(record.data, entry.name)
        return heard

    def _is_over(self, of: str, plan: Plan) -> bool:
        """Return True if what belongs to this plan and attempt is of no use once this attempt has ended."""
        number, _, attempt = of.partition("-")
        (job, own), (theirs, count) = _order(self.attempt), _order(attempt)
        return _number(number, "") < plan.number or (job == theirs and count <= own)

    def clean(self, plan: Plan, whole: frozenset[str]) -> None:
        """Remove what nobody needs once all parts are there: claims and reports of this attempt and of earlier ones
        (a later one may be at work), and journals of these keys alone."""
        for prefix in (CLAIMS, HOSTS):
            names = [entry.name for entry in self.records.list(prefix)]
            self.remove([name for name in names if self._is_over(name.removeprefix(prefix).partition("/")[0], plan)])
        for entry in list(self.records.list(JOURNAL)):
            if all(answer["key"] in whole for answer in self.answers(entry.name)):
                self.records.delete(entry.name)


def attempt_of(host: HostContext) -> tuple[str, str]:
    """Return the job of a host, and what is unique to its attempt, also if an earlier one seemed to have no hosts."""
    if not host.job_id:
        own = f"here{os.getpid()}x{time.time_ns():x}"
        return own, f"{own}-1"
    job = host.job_id.removeprefix("job-")[:16]
    return job, f"{job}-{host._fence}"


def check_reach(place: str, host: HostContext) -> None:
    """Raise UsageError for a folder of a machine that ends with its job: what was written there would be lost.

    A job whose records are in a bucket has machines of its own. What is mounted there, as a volume is, is left to it.
    """
    if buckets.in_bucket(place) or not buckets.in_bucket(host._store):
        return
    folder = os.path.abspath(place)
    while folder != os.path.dirname(folder):
        if os.path.ismount(folder):
            return
        folder = os.path.dirname(folder)
    raise out_of_reach(place)


def out_of_reach(place: str) -> UsageError:
    return UsageError(
        f"the output {place} is a folder of a machine that ends with the job, and with it all answers: give an address "
        "in a bucket (gs://… or s3://…), a folder in a volume (volumes=), or leave output out"
    )


def _order(attempt: str) -> tuple[str, int]:
    job, _, number = attempt.rpartition("-")
    return job, int(number) if number.isdecimal() else 0


def encode(answer: Mapping[str, Any]) -> bytes:
    """Return an answer as a line."""
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"


def _lines(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the answers of an object; what is none, such as the torn end of a line, is left out."""
    for line in data.split(b"\n"):
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(answer, dict) and isinstance(answer.get("key"), str):
            yield answer


def _number(name: str, prefix: str) -> int:
    digits = name.removeprefix(prefix).partition(".")[0]
    return int(digits) if digits.isdecimal() else -1
