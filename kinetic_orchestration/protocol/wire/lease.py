"""The lease of a slice that was kept after its job: one record, which is changed by compare-and-swap alone.

    (no record) ─▶ free ─▶ claimed ─▶ free ─▶ … ─▶ ended

A slice has no lease while its first attempt runs. Its hosts offer it once they are clean, a client claims it for the
next attempt, and its hosts offer it again after that. Each claim has an epoch of its own, which hosts check: one that
has seen an epoch obeys no earlier one. Whoever wants the slice gone ends the lease first, so that nobody can claim what
is being deleted; an ended lease stays ended. Pure: who reads and writes the record is elsewhere.

The orders of a claim reach the hosts through the store, where others may write. So they are sealed with a key that the
hosts got with their machine, and the client from the deployment's signing key or from its own memory.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic_orchestration.protocol import schema, wire

if TYPE_CHECKING:
    from collections.abc import Mapping

FREE = "free"
CLAIMED = "claimed"
ENDED = "ended"
OF_RUN = ("orchestrator", "dag", "run")  # of a job's origin, what tells a run: Airflow's DAGs have runs of one name

ARMED = 300.0  # seconds after its end, unclaimed, at which its machines are deleted whatever has become of its hosts
MOST_IDLE = 1000  # idle times that a lease remembers; later ones are added to the last
LEASE = schema.Fields(
    {
        "slice": schema.resource,
        "epoch": schema.count,
        "state": schema.one_of(FREE, CLAIMED, ENDED),
        "shape": schema.digest,
        "placement": wire.PLACEMENT,
        "made_for": schema.job_id,
        "made_at": schema.attempt,
        "job": schema.job_id,
        "attempt": schema.attempt,
        "until": schema.moment,
        "writer": schema.token,
    },
    {
        "since": schema.moment,
        "last": schema.moment,
        "origin": schema.table(schema.text(schema.WORD), schema.text(schema.LINE), 8),
        "orders": schema.text(schema.PAGE),
        "seal": schema.digest,
        "idle": schema.many(schema.many(schema.plain(schema.WORD), 4), MOST_IDLE),
        "why": schema.text(schema.LINE),
        "key": schema.token,
    },
)


class Idle(NamedTuple):
    """A time for which a slice served nobody, and the attempt that had left it."""

    began: float
    ended: float
    job: str
    attempt: int


class Lease(NamedTuple):
    """The state of a kept slice.

    Attributes:
        slice: Its name, which is that of its resource.
        epoch: The number of its claims so far.
        state: FREE, CLAIMED or ENDED.
        shape: Digest of what a job must want exactly like that.
        placement: Where it is, as the intent of the attempt that made it has it.
        made_for: The job that it was made for; with `made_at` it names the key of its orders.
        made_at: The attempt of that job.
        job: The job that holds it or, of one that is not claimed, that had it last.
        attempt: The attempt of that job.
        until: Of a free one, when it ends unclaimed; of a claimed one, the deadline of its attempt.
        writer: Token of whoever wrote this state.
        since: When it was offered, claimed or ended, by the store's time.
        last: When its machines are taken away in any case, such as those of flex-start; 0.0 for never.
        origin: The run of an orchestrator that had it last, by `OF_RUN`.
        orders: Of a claimed one, the orders of its hosts, as JSON.
        seal: The seal of those.
        idle: The times for which it served nobody.
        why: Why it has ended.
        key: The name of the key of its orders (`key_name`), by which a client knows that it has that; "" if unknown.
    """

    slice: str
    epoch: int
    state: str
    shape: str
    placement: dict[str, Any]
    made_for: str
    made_at: int
    job: str
    attempt: int
    until: float
    writer: str
    since: float = 0.0
    last: float = 0.0
    origin: Mapping[str, str] = {}
    orders: str = ""
    seal: str = ""
    idle: tuple[Idle, ...] = ()
    why: str = ""
    key: str = ""

    @property
    def run(self) -> tuple[str, ...]:
        """The run that had it last, by `OF_RUN`; each is "" for a call by itself."""
        return tuple(self.origin.get(name, "") for name in OF_RUN)

    def encode(self) -> bytes:
        return wire.encode({**self._asdict(), "origin": dict(self.origin)})

    @classmethod
    def decode(cls, data: bytes, name: str = "the lease") -> Lease:
        """Return the lease of a record. Raises Unreadable, Newer."""
        fields = wire.fields_of(data, LEASE, name)
        try:
            idle = tuple(Idle(float(one[0]), float(one[1]), str(one[2]), int(one[3])) for one in fields.get("idle", ()))
        except (ValueError, TypeError, IndexError):
            raise wire.Unreadable(f"{name} is not one: its idle times cannot be read") from None
        return cls(**{**LEASE.known(fields, cls._fields), "idle": idle})

    def is_of(self, job: str, attempt: int) -> bool:
        """Return True if that attempt holds it."""
        return self.state == CLAIMED and (self.job, self.attempt) == (job, attempt)

    def claim_of(self, job: str, attempt: int, epoch: int) -> float:
        """Return when an attempt has claimed it in an epoch: the time for which it was idle before ended then. 0.0 if
        the attempt has not, or that is not remembered."""
        if not 0 < epoch <= min(self.epoch, len(self.idle), MOST_IDLE - 1):
            return 0.0
        after = self.idle[epoch] if epoch < len(self.idle) else self
        return self.idle[epoch - 1].ended if (after.job, after.attempt) == (job, attempt) else 0.0

    def offered(self, *, until: float, writer: str, now: float) -> Lease:
        """Return it as free again, after the attempt that holds it."""
        return self._replace(state=FREE, until=until, writer=writer, since=now, orders="", seal="")

    def claimed(
        self, job: str, attempt: int, *, deadline: float, origin: Mapping[str, str], writer: str, now: float
    ) -> Lease:
        """Return it as claimed by an attempt, in a new epoch and without its orders yet (`with_orders`)."""
        idle = _added(self.idle, Idle(self.since, max(self.since, now), self.job, self.attempt))
        return self._replace(
            epoch=self.epoch + 1, state=CLAIMED, job=job, attempt=attempt, until=deadline, writer=writer, since=now,
            origin=origin, orders="", seal="", idle=idle,
        )  # fmt: skip

    def ended(self, why: str, *, writer: str, now: float, is_there: bool = False) -> Lease:
        """Return it as ended, for good. `is_there`: its machines were seen just now; else they are taken to have ended
        themselves in time."""
        idle = self.idle
        if self.state == FREE:
            last = now if is_there else min(now, self.until + ARMED)
            idle = _added(idle, Idle(self.since, max(self.since, last), self.job, self.attempt))
        return self._replace(state=ENDED, why=why, writer=writer, since=now, orders="", seal="", idle=idle)

    def with_orders(self, orders: Mapping[str, Any], key: str) -> Lease:
        """Return it with the orders of its hosts, sealed. The key that authenticates the attempt's verdict is veiled:
        other readers of the store must not learn it."""
        told = dict(orders)
        if told.get("key"):
            told["key"] = self._veiled(bytes.fromhex(told["key"]), key).hex()
        text = json.dumps(told, ensure_ascii=False)
        return self._replace(orders=text, seal=self._seal_of(text, key))

    def orders_for_hosts(self, key: str) -> dict[str, Any] | None:
        """Return the orders of its hosts; None if whoever wrote them did not have the key."""
        if self.state != CLAIMED or not key or not hmac.compare_digest(self._seal_of(self.orders, key), self.seal):
            return None
        told: dict[str, Any] = json.loads(self.orders)
        if told.get("key"):
            told["key"] = self._veiled(bytes.fromhex(told["key"]), key).hex()
        return told

    def _seal_of(self, orders: str, key: str) -> str:
        about = json.dumps([self.slice, self.epoch, self.job, self.attempt, self.until, orders], ensure_ascii=False)
        return hmac.new(key.encode(), about.encode("utf-8", "backslashreplace"), hashlib.sha256).hexdigest()

    def _veiled(self, secret: bytes, key: str) -> bytes:
        """Return a secret of up to 64 bytes, hidden, or shown again. A pad serves one epoch of one attempt only."""
        about = f"veil/{self.slice}/{self.epoch}/{self.job}/{self.attempt}"
        pad = hmac.new(key.encode(), about.encode(), hashlib.sha512).digest()
        return bytes(one ^ other for one, other in zip(secret, pad, strict=False))


def key_name(key: str) -> str:
    """Return the name of a key, which tells nothing of it."""
    return hashlib.sha256(f"name/{key}".encode()).hexdigest()[:16]


def _added(idle: tuple[Idle, ...], one: Idle) -> tuple[Idle, ...]:
    if len(idle) < MOST_IDLE:
        return (*idle, one)
    last = idle[-1]  # its length counts the seconds of both
    return (*idle[:-1], last._replace(ended=last.ended + one.ended - one.began))


def own_place(placement: Mapping[str, Any], rival: int) -> dict[str, Any]:
    """Return the place of a slice, by the placement of the attempt that it was made for: of a race, the place of that
    number, and nothing of the others; {} if there is none."""
    places = (placement, *placement.get("rivals", ()))
    own: Mapping[str, Any] = next((one for one in places if one.get("rival", -1) == rival), {})
    return {name: value for name, value in own.items() if name not in ("lease", "rival", "rivals", "won")}
