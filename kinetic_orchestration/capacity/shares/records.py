"""The objects of shares in a store: one for each attempt that wants its turn, and the book of all turns.

An attempt's object is empty: its name says what it wants, so that one listing tells of all, and its age that somebody
still waits. It is there from its coming until its hosts are gone; to remove it is to give the turn back. The book is
replaced as a whole, by compare-and-swap, and each of its contents has a token of its own: a swap that is refused may
have been made by an earlier try of the same request. This module does not decide.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from kinetic_orchestration.capacity.shares.rules import (
    DONE,
    TAKEN,
    Book,
    Evidence,
    First,
    Grant,
    Key,
    Reserved,
    Use,
    Waiting,
    Want,
    believed,
)
from kinetic_orchestration.errors import Corrupt
from kinetic_orchestration.plan.configuration.chip_shares import parse
from kinetic_orchestration.plan.records import SHARES, fields_of, reading
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, schema, wire
from kinetic_orchestration.protocol.records.base import Record
from kinetic_orchestration.protocol.schema import Wrong
from kinetic_orchestration.protocol.wire.lease import ENDED, Lease

_KEY = schema.job_id
_ALONE = "alone"  # at the end of the name of a call by itself
_PLACES = "places-"  # of one that asks several
_KEEPS = "keeps"  # of one whose slice may be kept


class Read(NamedTuple):
    """The book as it was read.

    Attributes:
        book: The book; an empty one if there is none, or if what is there is none.
        generation: Of the object; 0 if there is none.
        updated: When it was written.
        damage: Why what is there is no book; "" if it is one.
    """

    book: Book
    generation: int = 0
    updated: float = 0.0
    damage: str = ""

    @property
    def is_lost(self) -> bool:
        """Nothing is known of the turns that were given: as before the first one, so that they are looked for."""
        return self.generation == 0 or bool(self.damage)


# ---- attempts --------------------------------------------------------------------------------------------------


class Listed(NamedTuple):
    """An attempt's object, and when somebody who waits for the turn last wrote it."""

    want: Want
    seen: float


def name_of(want: Want) -> str:
    """Return the name of an attempt's object."""
    wish = (want.generation, want.chips, f"{want.weight:g}", want.priority, f"{want.longest:.0f}", want.user)
    more = (_ALONE * want.alone, f"{_PLACES}{want.places}" * (want.places > 1), _KEEPS * want.keeps)
    end = (want.pipeline, f"{want.since:.3f}", *filter(None, more))
    return f"{names.wants(want.job, want.attempt)}{','.join(map(str, (*wish, *end)))}"


@functools.lru_cache(maxsize=4096)
def _want_in(name: str) -> Want | None:
    try:
        job, attempt, wish = name.removeprefix(names.WANTS).split("/")
        generation, chips, weight, priority, longest, user, pipeline, since, *more = wish.split(",")
        numbers = float(weight), int(priority), float(longest)
        asked = [one.removeprefix(_PLACES) for one in more if one.startswith(_PLACES)]
        want = Want(
            job, int(attempt), generation, int(chips), *numbers, user, pipeline, float(since), _ALONE in more,
            int(asked[0]) if asked else 1, _KEEPS in more,
        )  # fmt: skip
        _KEY(job)
        if name_of(want).split(",")[8:] != more or not 1 <= want.places <= schema.MOST_PLACES:
            return None
    except (ValueError, Wrong):
        return None
    is_sound = want.chips > 0 and 0 < want.weight < 1e6 and 0 <= want.longest < 1e12 and abs(want.priority) <= 1000
    return want if is_sound and 0 <= want.since < 1e12 else None


def wants(store: Store) -> dict[Key, Listed]:
    """Return all attempts that want their turn or have it. Of an attempt with several objects, the oldest counts."""
    return _listed(store, names.WANTS)


def wanted(store: Store, key: Key) -> Want | None:
    """Return what an attempt wants, by whichever process; None if it is not in the line."""
    found = _listed(store, names.wants(*key)).get(key)
    return None if found is None else found.want


def _listed(store: Store, under: str) -> dict[Key, Listed]:
    found: dict[Key, Listed] = {}
    for entry in store.list(under):
        want = _want_in(entry.name)
        if want is None:
            continue
        other = found.get(want.key)
        if other is None:
            found[want.key] = Listed(want, entry.updated)
        else:
            found[want.key] = Listed(min(other.want, want, key=_since), max(other.seen, entry.updated))
    return found


def _since(want: Want) -> float:
    return want.since


def mark(store: Store, key: Key, yielding: Sequence[tuple[str, Key]] = ()) -> int:
    """Mark an attempt as one whose hosts are requested. Returns the mark's generation.

    Args:
        store: The store.
        key: The attempt.
        yielding: The slices that serve nobody and have its chips, each with the attempt that has left it.
    """
    lines = [secrets.token_hex(4), *(f"{name} {job} {attempt}" for name, (job, attempt) in yielding)]
    return store.put(names.uses(*key), "\n".join(lines).encode())


def _yielding(data: bytes) -> dict[Key, str]:
    """Return the slices that a mark names, by the attempt that has left each."""
    rows = [row.split(" ") for row in data.decode(errors="replace").split("\n")[1:]]
    return {(row[1], int(row[2])): row[0] for row in rows if len(row) == 3 and row[2].isdecimal()}


def unmark(store: Store, key: Key, generation: int) -> None:
    """Take back a mark, unless another process of the attempt has made its own since."""
    store.swap(names.uses(*key), b"", generation)


def leave(store: Store, key: Key) -> bool:
    """Remove an attempt's objects: its hosts are gone, and it wants no turn any more. Returns False if it had none."""
    found = list(store.list(names.wants(*key)))
    for entry in found:
        store.delete(entry.name)
    return bool(found)


def evidence(store: Store, wants: Sequence[Want]) -> dict[Key, Evidence]:
    """Return what the records of some attempts say of their turns. Intents are read before verdicts."""
    keys = [want.key for want in wants]
    intents = store.read_all([names.intent(*key) for key in keys])
    verdicts = store.read_all([names.verdict(*key) for key in keys])
    found = {
        key: Evidence(
            begun=intent is not None,
            over=verdict.updated if verdict is not None else 0.0,
            is_held=verdict is not None and _is_held(store, key),
            done=_done(store, key) if verdict is not None else 0.0,
            deadline=_deadline(intent),
        )
        for key, intent, verdict in zip(keys, intents, verdicts, strict=True)
    }
    for want, intent in zip(wants, intents, strict=True):
        if intent is not None and (want.places > 1 or (want.keeps and found[want.key].over)):
            found[want.key] = _of_places(store, want, intent, found[want.key])
    return found


def _of_places(store: Store, want: Want, intent: Record, seen: Evidence) -> Evidence:
    """Return the evidence with what is known of the places of an attempt: which are gone, and who has its slice."""
    from kinetic_orchestration.capacity.races.records import gone_since, winner  # most jobs never do

    try:
        placement = wire.fields_of(intent.data, wire.INTENT)["placement"]
    except (wire.Unreadable, wire.Newer):
        return seen
    places = [placement, *placement.get("rivals", ())]
    won = winner(store, *want.key) if len(places) > 1 else None
    gone = gone_since(store, want.key, [number for number in range(len(places)) if number != won], DONE)
    back = len(gone) + max(0, want.places - len(places))
    seen = seen._replace(back=back, since=max([intent.updated, *gone]))
    if not seen.over or not want.keeps:
        return seen
    own = next((one for one in places if one.get("rival") == won), placement)
    own_lease = placement.get("lease") or {}
    return _of_lease(store, want.key, str(own_lease.get("slice") or own.get("name") or ""), seen)


def _of_lease(store: Store, key: Key, slice_: str, seen: Evidence) -> Evidence:
    record = store.read(names.lease(slice_)) if slice_ else None
    if record is None:
        return seen
    try:
        held = Lease.decode(record.data, names.lease(slice_))
    except (wire.Unreadable, wire.Newer):  # nobody can claim it any more, and its hosts end
        return seen._replace(slice=slice_, lease=ENDED, changed=record.updated)
    state = held.state if (held.job, held.attempt) == key else TAKEN
    return seen._replace(slice=slice_, lease=state, changed=record.updated)


def ended(store: Store, keys: Sequence[Key]) -> dict[Key, float]:
    """Return when the verdicts of some attempts were written, of those that have one."""
    found = store.read_all([names.verdict(*key) for key in keys])
    return {key: verdict.updated for key, verdict in zip(keys, found, strict=True) if verdict is not None}


def _is_held(store: Store, key: Key) -> bool:
    return store.read(names.refused(*key)) is not None and store.read(names.freed(*key)) is None


def _done(store: Store, key: Key) -> float:
    done = store.read(names.host(*key, 0, "done.json"))
    return 0.0 if done is None else done.updated


def _deadline(intent: Record | None) -> float:
    """Return when an attempt's machines end themselves; 0 if that is not known."""
    with suppress(ValueError, KeyError, TypeError):
        if intent is not None and (allowed := float(wire.decode(intent.data)["allowed"])):
            return float(intent.updated) + allowed
    return 0.0


# ---- the book --------------------------------------------------------------------------------------------------


def read(store: Store) -> Read:
    """Return the book.

    Raises:
        StoreError: The store refused.
    """
    record = store.read(names.BOOK)
    if record is None:
        return Read(Book())
    try:
        return Read(believed(book_of(record.data), store.now()), record.generation, record.updated)
    except Corrupt as error:
        return Read(Book(), record.generation, record.updated, str(error))


def rebuilt(store: Store, listed: Mapping[Key, Listed]) -> Book:
    """Return the book of the turns with which hosts may have been requested, by the attempts' marks, and of what yields
    to them. Who had a turn and has requested nothing gets in line again. What was used before is forgotten.

    Args:
        store: The store.
        listed: All attempts that want their turn or have it.
    """
    keys = sorted(listed)
    marks = store.read_all([names.uses(*key) for key in keys])
    used = {key: mark for key, mark in zip(keys, marks, strict=True) if mark is not None and mark.data}
    grants = {key: Grant(listed[key].want, mark.updated, f"{secrets.token_hex(4)}-0") for key, mark in used.items()}
    for key, mark in used.items():
        for of, name in _yielding(mark.data).items():
            if of in grants:
                grants[of] = grants[of]._replace(kept=name, yields=key)
    return Book(grants=tuple(grants.values()))


def keep_damaged(store: Store) -> str:
    """Copy the bytes of a damaged book to a name beside it. Returns that name."""
    record, kept = store.read(names.BOOK), f"{names.BOOK}.damaged"
    if record is not None:
        store.put(kept, record.data)
    return kept


def write(store: Store, book: Book, generation: int) -> Read | None:
    """Replace the book.

    Args:
        store: The store.
        book: The new one.
        generation: That of the one on which it rests; 0 if there was none.

    Returns:
        What was written; None if another process was first.
    """
    book = book._replace(writer=secrets.token_hex(8))
    data = bytes_of(book)
    written = store.swap(names.BOOK, data, generation) if generation else store.create(names.BOOK, data)
    if written is not None:
        return Read(book, written, store.now())
    found = read(store)  # an earlier try of this very request may have won
    return found if found.book.writer == book.writer else None


_NO_HOSTS = [1, False, 0, "", "", 0]  # the end of a row of one place that is not kept
_WIDE = Want._fields.index("alone")  # a row has it at its end, and only if it is so


def bytes_of(book: Book) -> bytes:
    """Return the book as a record."""
    fields = book._asdict() | {
        "grants": [
            [*grant.want[:_WIDE], grant.at, grant.token, grant.leaving, *([True] if grant.want.alone else [])]
            for grant in book.grants
        ],
        "hosts": [row for row in map(_hosts_of, book.grants) if row[2:] != _NO_HOSTS],
        "uses": {whose: [round(use.used, 3), use.at] for whose, use in book.uses.items()},
        "reserved": [[*one[:4], list(one.dims), one.start] for one in book.reserved],
        "firsts": {whose: list(first) for whose, first in book.firsts.items()},
        "line": [list(one) for one in book.line],
    }
    return wire.encode(fields)


def _hosts_of(grant: Grant) -> list[Any]:
    """Return the part of a turn that is about several places, or a slice that is kept, as its row in the record."""
    want, (job, attempt) = grant.want, grant.yields or ("", 0)
    return [want.job, want.attempt, want.places, want.keeps, grant.back, grant.kept, job, attempt]


def _with_hosts(grant: Grant, row: Sequence[Any] | None) -> Grant:
    if row is None:
        return grant
    places, keeps, back, kept, job, attempt = row[2:]
    want = grant.want._replace(places=max(1, places), keeps=keeps)
    return grant._replace(want=want, back=min(back, want.chips - 1), kept=kept, yields=(job, attempt) if job else None)


def book_of(data: bytes) -> Book:
    """Return the book of a record.

    Raises:
        Corrupt: It is none.
    """
    fields = fields_of(data, SHARES, names.BOOK)
    with reading(names.BOOK):
        parse("its list of shares", fields["shares"])
        return _book(fields)


def _book(fields: Mapping[str, Any]) -> Book:
    known = {name: value for name, value in fields.items() if name in Book._fields}
    rows = {tuple(row[:2]): row for row in fields.get("hosts", ())}
    return Book(**{
        **known,
        "grants": tuple(
            _with_hosts(Grant(Want(*row[:_WIDE], *row[_WIDE + 3 :]), *row[_WIDE : _WIDE + 3]), rows.get(tuple(row[:2])))
            for row in known["grants"]
        ),
        "uses": {whose: Use(*use) for whose, use in known["uses"].items()},
        "reserved": tuple(
            Reserved(job, attempt, priority, at, tuple(dims), start)
            for job, attempt, priority, at, dims, start in known["reserved"]
        ),
        "firsts": {whose: First(*first) for whose, first in known.get("firsts", {}).items()},
        "line": tuple(Waiting(*row) for row in known["line"]),
    })  # fmt: skip
