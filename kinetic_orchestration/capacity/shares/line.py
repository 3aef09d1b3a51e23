"""One attempt's place in the line for its share, as one process that follows it sees it.

Whoever waits writes the attempt's object, again every few minutes as a sign of life, and reads the book: the rarer, the
further back it is. One of those who
wait holds a lease, by which alone it lists all of them, gives turns, and frees those that nobody will give back; all of
that in one swap. The lease saves requests and decides nothing: a holder that was replaced loses its swap. All times are
the store's.

A turn binds only who asks again after the attempt's intent is written (`use`): a turn that seems to be used by nobody
is marked before it is freed, and one of the two sees the other (`rules.fate`).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from kinetic_orchestration.capacity.shares import records, rules
from kinetic_orchestration.capacity.shares.records import Listed, Read
from kinetic_orchestration.capacity.shares.rules import Book, Grant, Key, Want
from kinetic_orchestration.errors import StoreError
from kinetic_orchestration.plan.configuration import chip_shares
from kinetic_orchestration.plan.configuration.chip_shares import Share, parse, text_of
from kinetic_orchestration.plan.messages import warn_once
from kinetic_orchestration.plan.values import Plan
from kinetic_orchestration.platforms.store import Store

LEASE = 20.0  # seconds for which a holder decides without writing
ROUND = 3.0  # seconds between two looks of a holder, and no book is written twice within one of them
SOON, RARELY = 5.0, 60.0  # seconds between two looks of the first in the line, and of those who are far back
FRONT = 8  # places that count as the first
AGAIN = 300.0  # seconds after which one who waits writes its object again
ALIVE = 900.0  # seconds without that, after which nobody waits
CHECKED = 4  # attempts whose records a holder reads in one round
CHECK = 30.0  # seconds between two readings of those of one attempt


class Turn(NamedTuple):
    """The answer to whoever asks for its turn.

    Attributes:
        granted: The attempt may have its hosts.
        says: Its place in the line, and why it waits; "" if it does not.
        again: When it is worth while to ask again, by the store's clock.
        of: What the turn was given for: a process that asks may have wanted another choice of the job.
        yielding: The slices that serve nobody and have the chips of this turn, each with the attempt that has left it.
            It takes one of them, or none of them is there when it has its hosts.
    """

    granted: bool
    says: str = ""
    again: float = 0.0
    of: Want | None = None
    yielding: tuple[tuple[str, Key], ...] = ()

    @property
    def after(self) -> tuple[str, ...]:
        """The names of these slices."""
        return tuple(name for name, _ in self.yielding)


class Line:
    """An attempt that wants its turn.

    Args:
        store: The store of its deployment.
        want: What it is, and what it wants.
        shares: The shares that its job was launched with.
        stated: When it was launched: the shares of the latest launch count for all.
    """

    def __init__(self, store: Store, want: Want, shares: Sequence[Share], stated: float = 0.0) -> None:
        self.want = want
        self._store, self._shares, self._stated = store, shares, stated
        self._me = secrets.token_hex(8)
        self._told = Turn(False)
        self._came = 0.0  # when its object was last written; 0 if it is to be
        self._checked: dict[Key, float] = {}
        self._mark = 0  # the generation of the mark that its hosts are requested; 0 if this process has made none
        self._marked: tuple[tuple[str, Key], ...] = ()  # what yields to it, by that mark

    @property
    def says(self) -> str:
        """Its place in the line and why it waits, as it was last known; "" if it has its turn."""
        return self._told.says

    @property
    def again(self) -> float:
        """Return the time at which it is worth while to ask again, by the store's clock, as it was last known."""
        return self._told.again

    @property
    def given(self) -> Want | None:
        """Return what its turn was given for, as it was last known; None if it has none."""
        return self._told.of

    def turn(self) -> Turn:
        """Ask for its turn, and decide for all if nobody else does. The answer is safe from being freed only once the
        attempt's intent is written: hosts are requested by that of `use`.

        Raises:
            StoreError: The store refused, or its book of turns cannot be read.
        """
        now = self._store.now()
        if now < self._told.again:
            return self._told
        found = records.read(self._store)
        granted = _granted(found.book, self.want.key)
        if granted is not None:
            self._came = 0.0  # if it is lost, that is to be known soon
            self._told = granted
            return granted
        if now - self._came > AGAIN:
            self.want = self.want if self.want.since else self.want._replace(since=now)
            self._store.put(records.name_of(self.want), b"")
            self._came = now
        if found.book.holder == self._me or now >= found.book.until:
            found = self._decided(found, now) or found
        self._told = _granted(found.book, self.want.key) or self._wait(found.book, now)
        return self._told

    def use(self) -> Turn:
        """Ask again before hosts are requested by the intent. What is requested is marked first, with what yields to
        it: a book that is lost after that knows of both once it is made again, and one that was lost before has no turn
        for it.

        Raises:
            StoreError: As `turn`.
        """
        if not self._mark:
            self._marked = self._told.yielding
            self._mark = records.mark(self._store, self.want.key, self._marked)
        turn = self.turn()
        if not turn.granted:
            records.unmark(self._store, self.want.key, self._mark)
            self._mark = 0
        elif not {*turn.yielding} <= {*self._marked}:
            self._marked = turn.yielding
            self._mark = records.mark(self._store, self.want.key, self._marked)
        return turn

    def _wait(self, book: Book, now: float) -> Turn:
        place = next((number for number, one in enumerate(book.line) if one[:2] == self.want.key), None)
        says = _sentence(book, self.want, place)
        if book.holder == self._me:
            return Turn(False, says, now + ROUND)
        if place is None:
            pause = RARELY if book.waiting > len(book.line) else SOON
        else:
            pause = min(RARELY, SOON * max(1.0, place / FRONT))
        return Turn(False, says, now + pause)

    # ---- for all -----------------------------------------------------------------------------------------

    def _decided(self, found: Read, now: float) -> Read | None:
        """Decide for all who wait. Returns the book of it; None if another process was first. A book that was lost is
        made again before anything is written, so that no book is ever there which does not know of a turn."""
        if found.is_lost:
            found = self._made_again(found)
        if found.book.holder != self._me:
            holds = found.book._replace(holder=self._me, until=now + LEASE, epoch=found.book.epoch + 1)
            claimed = records.write(self._store, holds, found.generation)
            if claimed is None:
                return None
            found = claimed
        now = self._store.now()
        listed = records.wants(self._store)
        book, swept = self._swept(self._stated_in(found.book), listed, now)
        book, over = self._given(book, {key: one for key, one in listed.items() if key not in swept}, now)
        over |= swept
        has_turn = book.grant(self.want.key) is not None
        renewed = now + LEASE if now > book.until - LEASE / 2 else book.until
        book = book._replace(until=0.0 if has_turn else renewed)  # then somebody else is to decide
        if not over and _told_apart(book) == _told_apart(found.book):
            return found
        written = records.write(self._store, book, found.generation)
        if written is not None:  # else one of them may have its turn, and hosts that are not gone yet
            for key in sorted(over):
                records.leave(self._store, key)
        return written

    def _made_again(self, found: Read) -> Read:
        book = records.rebuilt(self._store, records.wants(self._store))
        if found.damage:
            warn_once(
                f"the book of turns was damaged, and is made again from the records of {len(book.grants)} attempts "
                "whose hosts were requested; what everybody had used before is forgotten. "
                f"{found.damage}. Its bytes are kept in {records.keep_damaged(self._store)}"
            )
        return found._replace(book=book)

    def _stated_in(self, book: Book) -> Book:
        """Return the book with the shares in force: those of the latest launch."""
        if self._stated < book.stated:
            return book
        return book._replace(shares=text_of(self._shares), stated=self._stated)

    def _swept(self, book: Book, listed: Mapping[Key, Listed], now: float) -> tuple[Book, set[Key]]:
        """Free the turns that were given back, and those that nobody will give back. Returns whose attempts of the
        latter are over, too."""
        over = set[Key]()
        back = [grant.want.key for grant in book.grants if grant.want.key not in listed]
        ended = records.ended(self._store, back)
        for key in back:
            book = rules.freed(book, key, ended.get(key, 0.0), now)
        due = sorted((one for one in book.grants if self._is_due(one, now)), key=self._last_checked)[:CHECKED]
        seen = records.evidence(self._store, [grant.want for grant in due])
        for key in [one.want.key for one in due]:
            grant = book.grant(key)
            assert grant is not None  # only its own fate frees it
            self._checked[key] = now
            fate = rules.fate(grant, seen[key], now)
            if fate == rules.FREE:
                last = max(seen[key].over, seen[key].changed, seen[key].since)  # what was kept had it longer
                since = last if seen[key].over else 0.0
                book = rules.freed(book, key, since, now)
                over |= {key} if seen[key].over else set()
            elif fate in (rules.MARK, rules.CLEAR):
                marked = grant._replace(leaving=now if fate == rules.MARK else 0.0)
                book = book._replace(grants=tuple(marked if one is grant else one for one in book.grants))
            else:
                book = rules.seen_of(book, grant, seen[key], now)
        return book, over

    def _is_due(self, grant: Grant, now: float) -> bool:
        is_short = bool(grant.leaving or grant.kept)  # what follows is soon to be known
        return is_short or now - self._last_checked(grant) > CHECK

    def _last_checked(self, grant: Grant) -> float:
        return self._checked.get(grant.want.key, grant.at)

    def _given(self, book: Book, listed: Mapping[Key, Listed], now: float) -> tuple[Book, set[Key]]:
        """Give all turns that can be given to those for whom somebody waits. Returns the attempts that are over, too,
        of which none gets a turn any more: what is left of them is removed once that is written."""
        shares = parse("the book of turns", book.shares)
        over = self._over([key for key, one in listed.items() if now - one.seen > ALIVE and not book.grant(key)], now)
        wants = [one.want for one in listed.values() if now - one.seen <= ALIVE]
        while True:
            decided = rules.decide(book, wants, shares, now, secrets.token_hex(4))
            ended = records.ended(self._store, [grant.want.key for grant in decided.grants[len(book.grants) :]])
            if not ended:
                return decided, over
            over |= ended.keys()
            wants = [want for want in wants if want.key not in ended]

    def _over(self, keys: Sequence[Key], now: float) -> set[Key]:
        """Return which are over of attempts for which nobody waits: of some in each round."""
        due = [key for key in keys if now - self._checked.get(key, 0.0) > CHECK][:CHECKED]
        self._checked |= dict.fromkeys(due, now)
        return set(records.ended(self._store, due))


def line_of(store: Store, plan: Plan, job_id: str, attempt: int, created: float, longest: float) -> Line | None:
    """Return an attempt's place in the line; None if it needs no turn.

    Args:
        store: The store of its deployment.
        plan: That of the attempt: of several choices, the one that it is to take.
        job_id: The job.
        attempt: Its number.
        created: When the job was launched: who came first goes first.
        longest: Seconds for which the attempt may hold its hosts; 0 if there is no limit.
    """
    turn = plan.turn
    if not turn.get("shares"):
        return None
    want = Want(
        job_id, attempt, plan.slice.generation, _chips(plan), float(turn["weight"]),
        int(turn.get("priority", 0)), longest, turn.get("user") or chip_shares.NOBODY, turn.get("pipeline", ""),
        created, turn.get("alone", False), plan.race, bool(plan.keep),
    )  # fmt: skip
    return Line(store, want, parse("the job's shares", turn["shares"]), created)


def asked_for(store: Store, key: Key) -> Want | None:
    """Return what an attempt wants already, by another process that follows it; None if it is not in the line."""
    return records.wanted(store, key)


def _chips(plan: Plan) -> int:
    """Return the chips that an attempt may hold: those of all places of a race, which are of one size then."""
    return plan.purchase.chips * plan.race


def is_exactly(plan: Plan, wanted: Want) -> bool:
    """Tell whether an attempt with this plan is what is wanted."""
    return (
        bool(plan.turn.get("shares"))
        and (plan.slice.generation, _chips(plan)) == (wanted.generation, wanted.chips)
        and f"{float(plan.turn['weight']):g}" == f"{wanted.weight:g}"
    )


def is_covered(plan: Plan, granted: Want | None) -> bool:
    """Tell whether an attempt may take a choice with the turn that it has: one that needs none, or no more chips than
    that was given for, and of the same generation, so that the book is right whatever shares come to be in force.

    Args:
        plan: That of an attempt by this choice.
        granted: What the turn was given for; None if it has none.
    """
    if not plan.turn.get("shares"):
        return True
    if granted is None or granted.generation != plan.slice.generation:
        return False
    chips = _chips(plan)
    return chips <= granted.chips and chips * float(plan.turn["weight"]) <= granted.weighted + 1e-6


def give_back(store: Store, key: Key, *, ended: float = 0.0) -> None:
    """Give an attempt's turn back: its hosts are gone, or it wants none any more. May be called again.

    The book is corrected at once only if nobody has just written it; else by whoever decides next.

    Args:
        store: The store.
        key: The job and its attempt.
        ended: When its hosts were gone; by default now.
    """
    if not records.leave(store, key):
        return
    with suppress(StoreError):
        found, now = records.read(store), store.now()
        if found.book.grant(key) is not None and now - found.updated > 1.0:
            records.write(store, rules.freed(found.book, key, ended or now, now), found.generation)


def leave_slice(store: Store, key: Key) -> None:
    """Give back the turn of an attempt whose kept slice another one has taken, or that is gone. While a place that has
    lost its race is there, whoever decides next gives back what is gone."""
    want = records.wanted(store, key)
    if want is None:
        return
    if want.places == 1 or rules.is_last(want, records.evidence(store, [want])[key], store.now()):
        give_back(store, key)


def note_gone(store: Store, key: Key) -> None:
    """Give back the chips of places of a race that are gone, of an attempt that goes on. If somebody has just written
    the book, whoever decides next does so."""
    with suppress(StoreError):
        found, now = records.read(store), store.now()
        grant = found.book.grant(key)
        if grant is None or grant.leaving or now - found.updated <= 1.0:
            return
        book = rules.seen_of(found.book, grant, records.evidence(store, [grant.want])[key], now)
        if book.grant(key) != grant:
            records.write(store, book, found.generation)


def _granted(book: Book, key: Key) -> Turn | None:
    grant = book.grant(key)
    if grant is None or grant.leaving:
        return None
    yielding = tuple((one.kept, one.want.key) for one in book.grants if one.kept and one.yields == key)
    return Turn(True, of=grant.want, yielding=yielding)


def _told_apart(book: Book) -> Book:
    """Return what is worth a write of its own: use grows by itself, and is settled whenever it is read."""
    return book._replace(uses={}, writer="", reserved=tuple(one._replace(start=0.0) for one in book.reserved))


def _sentence(book: Book, want: Want, place: int | None) -> str:
    """Return an attempt's place in the line and why it waits, for users."""
    if place is None:
        shown = len(book.line)
        return f"in line for {want.chips} chips" + (f" behind {shown} of {book.waiting} that wait" if shown else "")
    says = f"{_ordinal(place + 1)} in line {book.line[place].why}"
    if place:
        before = book.line[place - 1]
        says += f"; {before.job} ({before.whose.partition(':')[2]}) before it"
    return says


def _ordinal(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"
