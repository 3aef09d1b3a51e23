"""Reads records for clients: a record from a store is untrusted until it has passed its schema.

Each kind of record has one table here (or in `protocol/wire/`, if hosts read it too), and each is read by one
function of this module, which refuses an invalid one with the record, the field and the beginning of its value. Places
in a record are checked against the job's plan (`Within`), and facts that follow from names are derived, not read.

It does not authenticate records: `trust` does.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from kinetic_orchestration.errors import Corrupt, NewerWire, StoreError
from kinetic_orchestration.plan.declare.cloud import queues_of, reservation_of
from kinetic_orchestration.plan.declare.spec import COMPUTE
from kinetic_orchestration.plan.hardware import machines
from kinetic_orchestration.plan.values import Before, Cancel, Intent, Plan, Spent
from kinetic_orchestration.protocol import names, schema, wire
from kinetic_orchestration.protocol.records.base import Record
from kinetic_orchestration.protocol.schema import (
    Fields,
    Wrong,
    flag,
    line,
    many,
    maybe,
    path,
    plain,
    table,
    text,
    token,
)
from kinetic_orchestration.protocol.wire import Verdict
from kinetic_orchestration.protocol.wire.task import DATA_PIECE, ENVIRONMENT, MOST_CHOICES, PACKAGE, PAYLOAD, TASK

MOST_JOBS = 1 << 20  # of a batch

_key = schema.matching(r"[0-9a-f]{8,64}")
_usd = schema.number(0, 1e12)  # that were spent


PINNED = Fields(
    {"epoch": schema.whole(-(1 << 31), 1 << 31), "max_tries": schema.whole(-1, 1 << 31)},
    {
        "job_id": schema.maybe(schema.job_id, ""),
        "tried": schema.whole(0, 1 << 31),
        "clears": schema.whole(0, 1 << 31),
        "life": schema.matching(r"[0-9a-f]{1,64}", empty=True),
        "begun": line(64),
    },
)  # which job a task of an orchestrator means


def _row(*kinds: schema.Check, more: schema.Check | None = None) -> schema.Check:
    """Accept a list of as many entries as there are kinds, each of its kind, and perhaps one more."""
    known = kinds if more is None else (*kinds, more)

    def check(value: object) -> None:
        if not isinstance(value, list) or len(value) not in (len(kinds), len(known)):
            raise Wrong(value)
        for kind, entry in zip(known, value, strict=False):
            kind(entry)

    return check


def _queues(value: object) -> None:
    """Accept the name of a queue, or of several: a text with commas between them, or a list."""
    several = value.split(",") if isinstance(value, str) and "," in value else value
    (many(schema.resource, 100) if isinstance(several, list) else maybe(schema.resource, ""))(several)


def _entry(value: object) -> None:
    """Accept what one job has cost, in dollars or unknown, and when it was submitted."""
    if not isinstance(value, list) or len(value) != 2:
        raise Wrong(value)
    maybe(_usd)(value[0])
    schema.moment(value[1])


SLICE = Fields(
    {
        "name": line(schema.WORD),
        "kind": schema.one_of("tpu", "gpu", "cpu"),
        "chips": schema.chips,
        "hosts": schema.hosts,
        "chips_per_host": schema.chips,
    },
    {
        "generation": line(schema.WORD),
        "topology": line(schema.WORD),
        "accelerator_type": line(schema.WORD),
        "runtime_version": line(schema.WORD),
        "hbm_gib_per_chip": schema.measure,
        "peak_bf16_tflops_per_chip": schema.measure,
        "api": line(schema.WORD),
        "devices_per_chip": schema.whole(1, 64),
        "spot": flag,
        "whichever": flag,
    },
)
CLOUD = Fields(
    {},
    {
        "reservation": line(),
        "network": line(),
        "subnetwork": line(),
        "external_ips": flag,
        "secure_boot": flag,
        "runtime_version": line(schema.WORD),
        "service_account": schema.account,
        "tags": many(line(schema.WORD), 100),
        "data_disks": many(plain(), 100),
        "quota_project": schema.project,
        **dict.fromkeys(("owner", "pipeline", "step", "run"), text()),
        "queue": _queues,
        **dict.fromkeys(("flex_start", "queued_provisioning", "reservation_bound"), flag),
        "priority_class": maybe(schema.resource, ""),
        "node_selector": maybe(table(line(), line(), 100)),
        "tolerations": many(line(), 100),
        **dict.fromkeys(("env_from", "image_pull_secrets"), many(schema.resource, 100)),
        "python": line(schema.WORD),
        **dict.fromkeys(("partition", "account", "qos", "gres", "constraint", "time", "memory"), line(schema.WORD)),
        "folder": maybe(path, ""),
        "cpus": schema.whole(0, schema.MOST_HOSTS),
        "run_as_user": schema.whole(0, (1 << 31) - 1),
        "image": line(),
        "disk_gib": schema.whole(0, 1 << 16),
        "disk_type": maybe(schema.resource, ""),
    },
)
LIMITS = Fields({}, dict.fromkeys(("provision", "run", "total", "stall", "cost"), maybe(schema.limit)))
TURN = Fields(
    {},
    {
        "shares": text(),
        "priority": schema.whole(-1000, 1000),
        "weight": schema.number(0, 1e6),
        **dict.fromkeys(("user", "pipeline"), line(schema.WORD)),
        "alone": flag,
    },
)
CANDIDATE = Fields(
    {"slice": SLICE, "backend": schema.resource, "limits": LIMITS},
    {
        **dict.fromkeys(("emulated", "spot"), flag),
        "processes": schema.hosts,
        "slices": schema.slices,
        "project": schema.project,
        "zones": many(schema.place, 1000),
        "cloud": CLOUD,
        **dict.fromkeys(("affordable", "zone_patience"), schema.limit),
        "usd_per_hour": schema.measure,
        "usd": table(schema.place, schema.measure, 1000),
        "near": many(schema.place, 1000),
        "stand_ins": table(schema.place, line(), 1000),
        "labels": table(text(), text(), 1000),
        "turn": TURN,
    },
)
PLAN = Fields(
    {
        "name": text(),
        "slice": SLICE,
        "backend": schema.resource,
        "store": schema.address,
        "deployment": schema.deployment,
        "limits": LIMITS,
        "retry": Fields({}, dict.fromkeys(("user", "preemption", "infra"), schema.count)),
    },
    {
        "output_dir": schema.address,
        "partition_key": text(),
        "env": schema.environ,
        "secrets": many(schema.variable, 1000),
        "volumes": many(path, 1000),
        "argv": many(text(schema.PAGE)),
        **dict.fromkeys(("distributed", "emulated", "emulation_asked", "spot", "isolated"), flag),
        **dict.fromkeys(("abort_without_owner", "compile_cache", "device_metrics"), flag),
        "slices": schema.slices,
        "processes": schema.hosts,
        "project": schema.project,
        "zones": many(schema.place, 1000),
        "image": line(),
        "cloud": CLOUD,
        "secret_refs": table(schema.variable, schema.any_secret_ref, 1000),
        "affordable": schema.limit,
        "usd_per_hour": schema.measure,
        "zone_patience": schema.limit,
        "debug_port": schema.port,
        "profile": plain(),
        "labels": table(text(), text(), 1000),
        "reshard": flag,
        "global_batch": schema.size,
        "race": schema.whole(1, schema.MOST_PLACES),
        "choices": many(CANDIDATE, MOST_CHOICES),
        "by": schema.one_of("order", "price", "start"),
        "turn": TURN,
        "keep": schema.seconds,
    },
)
STAGED = Fields(
    {"path": many(schema.relative), "extra_path": many(path), "data": many(DATA_PIECE), "packages": many(PACKAGE)},
    {
        "payload": schema.empty_or(PAYLOAD),
        "tree": schema.digest,
        "cwd": schema.relative,
        "environment": schema.empty_or(ENVIRONMENT),
        "python": maybe(path),
        "agent": schema.digest,
        "tools": plain(),
        "size": schema.size,
        "sent": schema.size,
        "beside": table(text(), path, 10_000),
        "others": many(ENVIRONMENT, MOST_CHOICES),
        "builds": many(schema.whole(0, MOST_CHOICES), MOST_CHOICES),
    },
)
SPEC = Fields(
    {"name": text(), "plan": PLAN, "staged": STAGED, "task": TASK},
    {
        "job": schema.job_id,
        "identity": _key,
        "arguments": table(text(), text(), 100_000),
        "origin": table(text(schema.WORD), text(), 32),
        "signed": token,
    },
)
IDENTITY = Fields({"generation": schema.whole(1, 1 << 40)}, {"identity": plain()})
SIGNATURE = Fields({"hmac": _key})
GROUP = Fields(
    {
        "name": maybe(text()),
        "tags": maybe(plain()),
        "size": schema.whole(1, MOST_JOBS),
        "deployment": schema.deployment,
    },
    {"submitter": plain(), "backend": maybe(schema.backends)},
)
GROUP_END = Fields({"why": text(schema.WORD)}, {"size": schema.whole(1, MOST_JOBS)})
STAMP = Fields({}, {"deployment": schema.deployment, "created": schema.moment, "stamp": token, "checked": text()})
READY = Fields({"since": schema.moment}, {"writer": token})
LEDGER = Fields(
    {
        "month": schema.matching(r"[0-9]{4}-[0-9]{2}"),
        "pipeline": text(),
        "ended": table(schema.job_id, _entry),
        "before": Fields({"usd": _usd, "jobs": schema.size, "unpriced": schema.size, "until": schema.moment}),
    }
)
REAPED = Fields({"ended": flag}, {"writer": token})
PROJECT = Fields({"tree": schema.digest})
# Of turns, where chips are shared: each list is a tuple of `capacity.shares.rules`, whose kinds the reader checks.
SHARES = Fields(
    {
        "grants": many(_row(
            schema.job_id, schema.attempt, line(schema.WORD), schema.chips, schema.number(0, 1e6),
            schema.whole(-1000, 1000), schema.number(0, 1e12), line(schema.WORD), line(schema.WORD), schema.moment,
            schema.moment, token, schema.moment, more=flag,
        )),
        "uses": table(line(schema.WORD), _row(schema.number(0, 1e18), schema.moment)),
        "reserved": many(_row(
            schema.job_id, schema.attempt, schema.whole(-1000, 1000), schema.moment, many(line(schema.WORD), 100),
            schema.moment,
        )),
        "line": many(_row(schema.job_id, schema.attempt, line(schema.WORD), text(schema.WORD))),
        "waiting": schema.whole(0, MOST_JOBS),
        **dict.fromkeys(("holder", "writer"), token),
        **dict.fromkeys(("until", "stated"), schema.moment),
        "epoch": schema.whole(0, 1 << 53),
        "shares": text(),
    },
    {
        "firsts": table(line(schema.WORD), _row(schema.job_id, schema.attempt, schema.moment)),
        "hosts": many(_row(
            schema.job_id, schema.attempt, schema.whole(1, schema.MOST_PLACES), flag,
            schema.whole(0, schema.MOST_CHIPS), line(schema.WORD), line(schema.WORD),
            schema.whole(0, schema.MOST_ATTEMPTS),
        )),
    },
)  # fmt: skip


# ---- reading ---------------------------------------------------------------------------------------------------


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Raise what is wrong with a record as one of the project's own errors."""
    try:
        yield
    except wire.Newer as error:
        raise NewerWire(str(error)) from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        told = str(error) if isinstance(error, Wrong | wire.Unreadable) else f"{type(error).__name__}: {error!s:.200}"
        raise Corrupt(f"{name} cannot be read ({told}): it is damaged, or not of this package's making") from None


def fields_of(data: bytes, kind: Fields, name: str) -> dict[str, Any]:
    """A record's fields, each checked against its kind."""
    with reading(name):
        return wire.fields_of(data, kind, name)


def spec_of(data: bytes, job_id: str) -> dict[str, Any]:
    return fields_of(data, SPEC, names.spec(job_id))


def plan_of(spec: Mapping[str, Any], job_id: str) -> Plan:
    """Return the plan of a spec that has passed its schema."""
    with reading(names.spec(job_id)):
        plan = Plan.from_json(spec["plan"])
        schema.hosts(plan.hosts)
        return plan


def verdict_of(data: bytes, name: str = "a verdict") -> Verdict:
    with reading(name):
        return Verdict.decode(data, name)


def verdict_at(data: bytes, name: str) -> Verdict:
    """The verdict; for a damaged one, that the attempt has ended with an unknown outcome."""
    try:
        return verdict_of(data, name)
    except Corrupt as error:
        return Verdict(wire.CLOSED, "", 0.0, cause=wire.DAMAGED, reason=str(error))


def cancel_of(record: Record, now: float, name: str = "a cancel") -> Cancel:
    """A cancel that cannot be read is one all the same."""
    try:
        fields = fields_of(record.data, wire.CANCEL, name)
    except StoreError:
        return Cancel(wire.reason_of_cancel(record.data), "", now - record.updated)
    return Cancel(fields.get("reason", ""), fields.get("by", ""), now - record.updated)


class Within(NamedTuple):
    """The bounds from a job's plan on each place of an attempt."""

    backend: str
    project: str
    zones: tuple[str, ...]
    machines: int
    slices: int
    store: str
    deployment: str
    queues: tuple[str, ...] = ()
    grouped: bool = False
    keeps: bool = False
    others: tuple[Within, ...] = ()  # of the plan's other candidates, by number from 1
    race: int = 1  # places that one attempt asks at once

    def checked(self, placement: dict[str, Any], job_id: str, attempt: int) -> dict[str, Any]:
        """The place, or the places of a race, that a record names, if the plan leads there; what names decide is taken
        from them."""
        rivals = placement.get("rivals", [])
        if "rival" not in placement and not rivals:
            return self._of_choice(placement, job_id, attempt)
        if not 0 < len(rivals) < self.race:
            raise Wrong(None, "placement.rivals", f"has {len(rivals)} places, and the plan races {self.race}")
        places = [{**placement, "rivals": []}, *rivals]
        for number, place in enumerate(places):
            if place.get("rival") != number:
                raise Wrong(place.get("rival"), f"placement.rivals[{number}].rival")
            if "lease" in place:
                raise Wrong(None, f"placement.rivals[{number}].lease", "is there, and a kept slice is in no race")
        first, *others = (self._of_choice(place, job_id, attempt) for place in places)
        if len({(place.get("choice", 0), place["zone"]) for place in (first, *others)}) < len(places):
            raise Wrong(None, "placement.rivals", "has the same place twice")
        return {**first, "rivals": others}

    def _of_choice(self, placement: dict[str, Any], job_id: str, attempt: int) -> dict[str, Any]:
        choice = placement.get("choice", 0)
        if choice > len(self.others):
            raise Wrong(None, "placement.choice", f"is {choice}, and the job's plan has {len(self.others) + 1} choices")
        own = self.others[choice - 1] if choice else self
        return own._checked(placement, job_id, attempt)

    def _checked(self, placement: dict[str, Any], job_id: str, attempt: int) -> dict[str, Any]:
        own: dict[str, Any] = {"hosts": self.machines}
        known: dict[str, Any] = {}
        if self.backend == "local":
            known = {"job": job_id, "attempt": attempt, "hosts": self.machines}
            if "machine" not in placement:
                raise Wrong(None, "placement.machine", "is missing")
        if not self.zones:
            if not _is_own(placement, job_id, attempt):
                raise Wrong(None, "placement.run", f"is {schema.short(placement.get('run'))}, and not this attempt's")
        else:
            own_name = names.slice_of(self.store, self.deployment, job_id, attempt, placement.get("rival", 0))
            name = self._leased(placement) or own_name
            own |= {"backend": self.backend, "project": self.project, "name": name, "slices": self.slices}
            own |= {"grouped": True} if self.grouped else {}
            if placement.get("grouped", False) and not self.grouped:
                raise Wrong(True, "placement.grouped", "is true, and the job's plan has no groups")
            if (where := placement.get("zone")) not in self.zones:
                raise Wrong(where, "placement.zone", f"is {schema.short(where)}, which the job's plan does not have")
            queue = placement.get("queue") or next(iter(self.queues), "")
            if queue and queue not in self.queues:
                raise Wrong(queue, "placement.queue", f"is {schema.short(queue)}, which the job's plan does not have")
            known = {**own, **({"queue": queue} if queue else {})}
        for part, value in own.items():
            if placement.get(part, value) != value:
                raise Wrong(None, f"placement.{part}", f"is {schema.short(placement[part])}, and not this attempt's")
        return {**placement, **known}

    def _leased(self, placement: dict[str, Any]) -> str:
        """Return the name of the kept slice that a place is; "" for a place of the attempt's own."""
        lease = placement.get("lease")
        if lease is None:
            return ""
        name = str(lease["slice"])
        if not self.keeps:
            raise Wrong(None, "placement.lease", f"is of {schema.short(name)}, and the job's plan keeps no slices")
        attempt, rival = names.attempt_of_slice(name)
        own = names.slice_of(self.store, self.deployment, names.job_of_slice(name), attempt, rival)
        if name != own or not attempt or rival >= schema.MOST_PLACES:
            raise Wrong(None, "placement.lease", f"is of {schema.short(name)}, which is no slice of this deployment")
        return name


@functools.lru_cache(maxsize=1024)
def _shared(within: Within) -> Within:
    """One object for all jobs of the same plan."""
    return within


def within(plan: Plan) -> Within:
    """Return the bounds on each place of a job's attempts, by the candidate that the attempt takes."""
    first, *others = map(_within, plan.each())
    return _shared(first._replace(others=tuple(others), race=plan.race)) if others or plan.race > 1 else first


def _within(plan: Plan) -> Within:
    zones = (*plan.zones, *filter(None, (reserved_zone(plan),)))
    queues = queues_of(plan.cloud.get("queue") or "")
    own = (plan.backend, plan.project, zones, plan.machines, plan.slices, plan.store, plan.deployment, queues)
    grouped = plan.backend == COMPUTE and machines.are_grouped(plan.slice, plan.slices)
    return _shared(Within(*own, grouped=grouped, keeps=plan.keep is not None and plan.traits.may_be_kept))


def reserved_zone(plan: Plan) -> str:
    """Return the zone of a reservation that is given by its whole path; "" for any other, and where places are not
    zones."""
    named = reservation_of(str((plan.traits.in_zones and plan.cloud.get("reservation")) or ""))
    return named.zone if named is not None else ""


def intent_of(record: Record, job_id: str, attempt: int, within: Within | None = None) -> Intent:
    """The intent. An attempt is as old as its record: its writer may have slept since it decided to write it.

    Without `within` its place is only for display, and nothing may be requested or ended there.
    """
    name = names.intent(job_id, attempt)
    fields = fields_of(record.data, wire.INTENT, name)
    with reading(name):
        if fields["attempt"] != attempt:
            raise Wrong(None, "attempt", f"is {fields['attempt']}, and not {attempt}")
        placement = fields["placement"]
        if within is not None:
            placement = within.checked(placement, job_id, attempt)
        elif not all(_is_own(place, job_id, attempt) for place in (placement, *placement.get("rivals", ()))):
            raise Wrong(None, "placement", "is a place that is not this attempt's")
        deadline = record.updated + fields["allowed"] if fields["allowed"] else 0.0
        own = job_id.removeprefix("job-")  # what bears that is no other job's
        placement = {  # most of it is the same for all jobs: a thousand followers share it
            sys.intern(name): sys.intern(value) if isinstance(value, str) and own not in value else value
            for name, value in placement.items()
            if value or name not in _HISTORY
        }
        before = _before(fields.get("before"), attempt)
        affordable = float(fields.get("affordable") or 0.0)
        return Intent(attempt, fields["boot"], placement, deadline, record.updated, before, affordable)


# Of a placement: how it came to it, if it is not the first one.
_HISTORY = ("why", "wait", "since", "moved", "tried", "dropped", "tries", "rounds")
_NOTHING = Before()


def _is_own(placement: Mapping[str, Any], job_id: str, attempt: int) -> bool:
    name = str(placement.get("name") or os.path.basename(placement.get("run", "")))
    if (lease := placement.get("lease")) is not None:  # another attempt's by name
        return name == str(lease["slice"])
    own = f"{job_id.removeprefix('job-')}-{names.of_rival(attempt, placement.get('rival', 0))}"
    return name in ("", own) or name.endswith(f"-{own}")


def _before(fields: Any, attempt: int) -> Before | None:
    """Each attempt before this one has spent one of one budget."""
    if attempt == 1 or fields is None:
        return _NOTHING if attempt == 1 else None
    before = Before(Spent(*fields["spent"]), tuple(fields["ran"]))
    if sum(before.spent) != attempt - 1:
        spent = schema.short(fields["spent"])
        raise Wrong(None, "before.spent", f"is {spent}, which is not of {attempt - 1} attempts")
    if any(one >= other for one, other in itertools.pairwise((*before.ran, attempt))):
        raise Wrong(None, "before.ran", f"is {schema.short(fields['ran'])}, which are not attempts before it")
    return before


def texts(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from texts(entry)
