"""Facts about capacity in a store: what one process learns, others of the deployment know.

Each fact is one small object, written by compare-and-swap. They are hints: a race that is lost twice, a store that does
not answer and a damaged record make no error of a job. Only processes that may act for a job write here.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from kinetic_orchestration.capacity import choosing, facts
from kinetic_orchestration.capacity.choosing import Selection
from kinetic_orchestration.capacity.facts import (
    AGED,
    FLEX_START,
    STOCKOUT,
    UNKNOWN,
    Attempted,
    Fact,
    FactKey,
    Kin,
    Probe,
)
from kinetic_orchestration.errors import NewerWire, StoreError, Unreachable
from kinetic_orchestration.plan.records import fields_of
from kinetic_orchestration.plan.values import Plan
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, schema, wire
from kinetic_orchestration.protocol.records.base import Entry, Record
from kinetic_orchestration.protocol.schema import Fields, many, maybe, one_of

TRIES = 2  # of one write: whoever was faster is read once
FORGOTTEN = 86400.0  # seconds after its last change, at which a fact is removed

FACT = Fields(
    {
        "backend": schema.resource,
        "place": maybe(schema.place, ""),
        "generation": schema.line(schema.WORD),
        "size": schema.whole(0, schema.MOST_CHIPS * schema.MOST_SLICES),
        "way": one_of(*facts.WAYS),
        "attempts": many(
            Fields({"at": schema.moment, "outcome": one_of(*facts.OUTCOMES), "token": schema.token}), facts.MOST
        ),
    },
    {
        "project": schema.project,
        "reservation": schema.line(),
        "probe": maybe(Fields({"token": schema.token, "until": schema.moment})),
    },
)


def known(store: Store, keys: Iterable[FactKey]) -> dict[FactKey, Fact]:
    """Return what the deployment knows of these keys, and of smaller sizes that say something of them.

    One listing finds the facts that are young enough to say anything, and only those are read. Raises nothing.
    """
    largest: dict[str, int] = {}
    for key in keys:
        about = _about(key.kin)
        largest[about] = max(key.size, largest.get(about, 0))
    with suppress(StoreError):
        oldest = store.now() - facts.WINDOW
        return _read(
            store, [entry for entry in store.list(names.FACTS) if entry.updated > oldest and _speaks(entry, largest)]
        )
    return {}


def everything(store: Store) -> dict[FactKey, Fact]:
    """Return all facts of the deployment, for people. Raises StoreError."""
    return _read(store, store.list(names.FACTS))


def learn(store: Store, key: FactKey, outcome: str, now: float, token: str = "") -> None:
    """Add what an attempt met to a fact. Raises nothing.

    Args:
        store: The deployment's store.
        key: What was requested, and where.
        outcome: What it met: one of `facts.OUTCOMES`. A stockout of flex-start is none, and is left out.
        now: The store's time.
        token: The attempt's id, JOB-NUMBER, by which it counts once whoever reports it.
    """
    if outcome == STOCKOUT and key.way == FLEX_START:
        return
    attempt = Attempted(now, outcome, token or secrets.token_hex(8))
    with suppress(StoreError):
        _change(store, key, lambda fact: facts.after(fact, attempt))


def claim(store: Store, key: FactKey, token: str, now: float, wait: float = 0.0) -> bool:
    """Return True if this attempt is the one that tries an aged place again: the first that claims it. Raises nothing.

    Args:
        store: The deployment's store.
        key: Where it would try.
        token: The attempt's id.
        now: The store's time.
        wait: Seconds until its request.
    """
    own = Probe(token, now + wait + facts.PROBE_LASTS)

    def probed(fact: Fact) -> Fact:
        probe = fact.probe
        is_free = probe is None or not facts.is_live(probe, now) or probe.token == token
        state = facts.judge({key: fact}, (key,), now, token)[key].state
        return fact._replace(probe=own) if is_free and state in (AGED, UNKNOWN) else fact

    with suppress(StoreError):
        fact = _change(store, key, probed)
        return fact is not None and fact.probe is not None and fact.probe.token == token
    return False


def decide(
    store: Store, plan: Plan, token: str, choose: Callable[[Mapping[FactKey, Fact], float], Selection]
) -> Selection:
    """Return what is chosen for an attempt by all that the deployment knows; if it is a probe, it is claimed.

    Args:
        store: The deployment's store.
        plan: The job's plan.
        token: The attempt's id, JOB-NUMBER.
        choose: `choosing.first` or `choosing.following`, from what is known, and the store's time.

    Raises:
        NoPlace: No place is left.
    """
    found, now = known(store, choosing.keys(plan)), store.now()
    while True:
        selection = choose(found, now)
        key = selection.probe
        if key is None or claim(store, key, token, now, selection.wait):
            return selection
        another = Probe("another", now + facts.PROBE_LASTS)
        found[key] = found.get(key, Fact())._replace(probe=another)  # so it is behind the others, and no probe again


def expired(store: Store) -> list[str]:
    """Return the names of the facts that nobody has changed for a day. Raises StoreError."""
    oldest = store.now() - FORGOTTEN
    return [entry.name for entry in store.list(names.FACTS) if entry.updated < oldest]


def name_of(key: FactKey) -> str:
    """Return the name of the object that holds a fact."""
    return names.fact(_about(key.kin), key.size)


def encoded(key: FactKey, fact: Fact) -> bytes:
    """Return a fact as a record."""
    probe = None if fact.probe is None else fact.probe._asdict()
    attempts = [attempt._asdict() for attempt in fact.attempts]
    return wire.encode({**key._asdict(), "attempts": attempts, "probe": probe})


def _change(store: Store, key: FactKey, change: Callable[[Fact], Fact]) -> Fact | None:
    """Change a fact by compare-and-swap, and return it as it is then; None if other processes were faster each time.

    A write whose answer was lost may have been made, though it seems refused: then the change changes nothing more.
    """
    name = name_of(key)
    for _ in range(TRIES):
        generation, fact = _current(store, key)
        changed = change(fact)
        if generation is not None and changed == fact:
            return fact
        data = encoded(key, changed)
        written = store.create(name, data) if generation is None else store.swap(name, data, generation)
        if written is not None:
            return changed
    generation, fact = _current(store, key)
    return fact if generation is not None and change(fact) == fact else None


def _current(store: Store, key: FactKey) -> tuple[int | None, Fact]:
    """The generation of a fact's object, None if there is none, and the fact; an empty one if it cannot be read."""
    name = name_of(key)
    try:
        record = store.read(name)
    except StoreError:  # larger than any, or it does not answer, which `find` says again
        entry = store.find(name)
        return (None if entry is None else entry.generation), Fact()
    if record is None:
        return None, Fact()
    found = _decoded(record, name)
    return record.generation, found[1] if found is not None and found[0] == key else Fact()


def _read(store: Store, entries: Iterable[Entry]) -> dict[FactKey, Fact]:
    """The facts of a listing's entries, without those that cannot be read."""
    wanted = [entry.name for entry in entries if entry.size <= names.limit_of(entry.name)]
    found = {}
    for name, record in zip(wanted, _records(store, wanted), strict=True):
        with suppress(NewerWire):
            fact = None if record is None else _decoded(record, name)
            if fact is not None:
                found[fact[0]] = fact[1]
    return found


def _records(store: Store, wanted: list[str]) -> list[Record | None]:
    """All at once, unless one of them cannot be read."""
    if not wanted:
        return []
    try:
        return store.read_all(wanted)
    except Unreachable:
        raise
    except StoreError:
        return [_record(store, name) for name in wanted]


def _record(store: Store, name: str) -> Record | None:
    try:
        return store.read(name)
    except Unreachable:
        raise
    except StoreError:
        return None


def _decoded(record: Record, name: str) -> tuple[FactKey, Fact] | None:
    """The fact of an object, and what it is about; None if it cannot be read, or is another's. Raises NewerWire."""
    try:
        fields = fields_of(record.data, FACT, name)
    except NewerWire:
        raise
    except StoreError:
        return None
    key = FactKey(**{part: fields[part] for part in FactKey._fields if part in fields})
    if name != name_of(key):
        return None
    probe = fields.get("probe")
    latest = record.updated + facts.SKEW  # whoever wrote it knew of nothing later
    attempts = tuple(
        Attempted(one["at"], one["outcome"], one["token"]) for one in fields["attempts"] if one["at"] <= latest
    )
    return key, Fact(attempts, None if probe is None else Probe(probe["token"], probe["until"]))


def _speaks(entry: Entry, largest: dict[str, int]) -> bool:
    """True if a fact says something of one of the keys whose largest sizes these are."""
    about, _, size = entry.name.removeprefix(names.FACTS).partition("/")
    return size.isdecimal() and int(size) <= largest.get(about, -1)


def _about(kin: Kin) -> str:
    return hashlib.sha256("\0".join(kin).encode()).hexdigest()[:24]
