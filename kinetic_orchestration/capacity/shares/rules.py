"""Decides whose turn it is. Pure: it knows neither the store nor clocks.

The order is priority, then the smaller use of late, weighted by the share, then the time of coming. A turn is never
taken back: what was decided stays as it was stamped. Whoever does not fit is passed by others only if they end before
its turn can come, and reserves for this what it lacks. Those who have used nothing yet come before it only for so long
(`PATIENCE`), however many they are; so nobody waits for ever whose neighbours have time limits.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from kinetic_orchestration.plan.configuration.chip_shares import NOBODY, Bound, Share, bounds
from kinetic_orchestration.protocol.wire import lease

HALF_LIFE = 86_400.0  # seconds in which a use that is over comes to count for half
ENTRY = 300.0  # seconds of use that a turn costs at once: else thousands pass before any of their use is seen
PATIENCE = 3600.0  # seconds for which the next one of a pipeline or user is passed by those that have used less
SHOWN = 64  # those in front of the line of whom the book tells why they wait
START = 600.0  # seconds in which an attempt that has its turn is to be begun
RELEASED = 600.0  # seconds after a verdict in which hosts are gone, if nobody says otherwise
DONE = 20.0  # the same, after the first of them has said that it is done
AHEAD = 600.0  # seconds by which two clocks of a store never differ: no process wrote what is later
EXPIRED = 600.0  # seconds after its deadline in which an attempt's machines have ended themselves

Key = tuple[str, int]  # a job and its attempt


class Want(NamedTuple):
    """An attempt that is to have hosts.

    Attributes:
        weight: What one of its chips counts where chips count by what they cost.
        longest: Seconds for which it may hold its hosts, from its turn on; 0 if there is no limit.
        user: As a label.
        pipeline: As a label; "" for none.
        since: When it came, by the store's clock.
        alone: It is a call by itself, in no pipeline of an orchestrator.
        places: The places that it asks at once, of which its chips are those of all.
        keeps: Its hosts may offer their slice to the next attempt.
    """

    job: str
    attempt: int
    generation: str
    chips: int
    weight: float = 1.0
    priority: int = 0
    longest: float = 0.0
    user: str = ""
    pipeline: str = ""
    since: float = 0.0
    alone: bool = False
    places: int = 1
    keeps: bool = False

    @property
    def key(self) -> Key:
        return self.job, self.attempt

    @property
    def whose(self) -> str:
        """Return whom its use is charged to: the pipeline, or the user of a job by itself."""
        return f"pipeline:{self.pipeline}" if self.pipeline and not self.alone else f"user:{self.user or NOBODY}"

    @property
    def weighted(self) -> float:
        return self.chips * self.weight

    def bounds(self, shares: Sequence[Share]) -> tuple[Bound, ...]:
        """Return the shares that bind it."""
        return bounds(tuple(shares), self.generation, self.chips, self.weight, self.user, self.pipeline)


class Grant(NamedTuple):
    """A turn, as it was decided.

    Attributes:
        want: Whose it is.
        at: When it was decided.
        token: Differs from that of every other turn.
        leaving: When it was announced that nobody seems to use it, from which moment on nothing may be begun with it;
            0 if it was not.
        back: Of its chips, those that are given back: of places of its race that are gone.
        kept: The slice that its hosts offer, or have offered, to the next attempt; "" if there is none.
        yields: The attempt whose turn was given in spite of that slice: it takes it, or has it released first.
    """

    want: Want
    at: float
    token: str = ""
    leaving: float = 0.0
    back: int = 0
    kept: str = ""
    yields: Key | None = None

    @property
    def holds(self) -> Want:
        """Return the part that it holds of what it was given for."""
        return self.want._replace(chips=self.want.chips - self.back) if self.back else self.want

    @property
    def ends(self) -> float:
        """Return when it is over at the latest; infinite if there is no limit."""
        return self.at + self.want.longest if self.want.longest else math.inf


class Use(NamedTuple):
    """The chip-seconds that somebody has used, as they count at a moment."""

    used: float
    at: float


class Reserved(NamedTuple):
    """The part of some shares that is kept for one who waits.

    Attributes:
        at: When it was first reserved.
        dims: The shares of which it lacked something, by name.
        start: When its turn can come; the moment of the decision if that is not known, so that nobody ends before.
    """

    job: str
    attempt: int
    priority: int
    at: float
    dims: tuple[str, ...]
    start: float

    @property
    def rank(self) -> tuple[int, float, Key]:
        """By which one reservation comes before another."""
        return -self.priority, self.at, (self.job, self.attempt)


class First(NamedTuple):
    """The next one of a pipeline or user: of those that wait and have no reservation.

    Attributes:
        at: Since when it is that.
    """

    job: str
    attempt: int
    at: float


class Waiting(NamedTuple):
    """A place in the line, and why it is one."""

    job: str
    attempt: int
    whose: str
    why: str


class Book(NamedTuple):
    """All that is decided. One object of the store holds it.

    Attributes:
        holder: The process that decides for all until `until`.
        writer: A token of whoever wrote this.
        epoch: Grows with each new holder.
        stated: When the shares were stated that count.
        shares: Those, as text.
        line: The first of those who wait.
        waiting: How many these are in all.
        firsts: The next one of each to whom use is charged.
    """

    grants: tuple[Grant, ...] = ()
    uses: Mapping[str, Use] = {}
    reserved: tuple[Reserved, ...] = ()
    line: tuple[Waiting, ...] = ()
    waiting: int = 0
    holder: str = ""
    until: float = 0.0
    epoch: int = 0
    writer: str = ""
    shares: str = ""
    stated: float = 0.0
    firsts: Mapping[str, First] = {}

    def grant(self, key: Key) -> Grant | None:
        """Return an attempt's turn; None if it has none."""
        return next((grant for grant in self.grants if grant.want.key == key), None)


class Evidence(NamedTuple):
    """The records of an attempt, as far as its turn depends on them.

    Attributes:
        begun: It has an intent.
        over: When its verdict was written; 0 if it has none.
        is_held: Its hosts could not be freed.
        done: When the first of its hosts had nothing left to do; 0 if it has not said so.
        deadline: When its machines end themselves; 0 if they do not.
        back: The places of its race that are known to be gone, or were never asked; not the one that has won.
        since: When the last of these was.
        slice: The name of its slice.
        lease: The state of that slice's lease: FREE, CLAIMED by itself, ENDED, TAKEN by another attempt; "" for none.
        changed: When that became so.
    """

    begun: bool = False
    over: float = 0.0
    is_held: bool = False
    done: float = 0.0
    deadline: float = 0.0
    back: int = 0
    since: float = 0.0
    slice: str = ""
    lease: str = ""
    changed: float = 0.0


def believed(book: Book, now: float) -> Book:
    """Return the book without times that lie ahead: by them nobody would ever decide, state shares or use less."""

    def sound(time: float, otherwise: float) -> float:
        return time if time <= now + AHEAD else otherwise

    return book._replace(
        grants=tuple(one._replace(at=sound(one.at, now), leaving=sound(one.leaving, now)) for one in book.grants),
        uses={whose: use._replace(at=sound(use.at, now)) for whose, use in book.uses.items()},
        firsts={whose: first._replace(at=sound(first.at, now)) for whose, first in book.firsts.items()},
        until=sound(book.until, 0.0),
        stated=sound(book.stated, 0.0),
    )


KEEP, FREE, MARK, CLEAR = "keep", "free", "mark", "clear"
TAKEN = "taken"  # a kept slice: by another attempt


def fate(grant: Grant, seen: Evidence, now: float) -> str:
    """Return what becomes of a turn that was not given back.

    One with which nothing was begun is marked first, and freed only if there still is no intent when that is looked for
    after the mark was written. Whoever begins an attempt writes its intent first, and then reads whether its turn is
    marked: one of the two sees the other.
    """
    if seen.over:
        return FREE if _is_gone(grant, seen, now) and not seen.is_held else KEEP
    if seen.begun:
        if seen.deadline and now > seen.deadline + EXPIRED:
            return FREE
        return CLEAR if grant.leaving else KEEP
    if grant.leaving:
        return FREE
    return MARK if now - grant.at > START else KEEP


def _is_gone(grant: Grant, seen: Evidence, now: float) -> bool:
    """Return True if nothing is left of an attempt that is over. A slice that was kept is its own until another attempt
    has taken it, or until it has ended; a host that is done may still be about to offer it, and tells nothing of places
    that have lost its race."""
    if seen.lease in (lease.FREE, lease.ENDED):
        return seen.lease == lease.ENDED and now - seen.changed > RELEASED
    is_done = seen.done > 0 and not grant.want.keeps and now - max(seen.over, seen.done) > DONE
    return is_last(grant.want, seen, now) if is_done or seen.lease == TAKEN else now - seen.over > RELEASED


def is_last(want: Want, seen: Evidence, now: float) -> bool:
    """Return True if no place of an attempt's race is left but the one that has won."""
    return _lost(want, seen, now) == want.places - 1


def _lost(want: Want, seen: Evidence, now: float) -> int:
    """Return how many of the other places are gone: that is known, or the attempt was over so long ago."""
    return want.places - 1 if seen.over and now - seen.over > RELEASED else min(seen.back, want.places - 1)


def seen_of(book: Book, grant: Grant, seen: Evidence, now: float) -> Book:
    """Return the book with what is known of the hosts of a turn that stays: what a race gives back, and what is kept.
    A slice that another attempt has taken is given back like a place that has lost, if one of those is left.

    Never less is held than one place, and what was given back once stays so.
    """
    want, is_taken = grant.want, seen.lease == TAKEN
    lost = _lost(want, seen, now)
    back = min(lost + is_taken, want.places - 1) * (want.chips // want.places)
    if back > grant.back:
        book = settled(book, now)
        used, at = book.uses[grant.want.whose]
        since = now if lost > seen.back else max(seen.since, seen.changed if is_taken else 0.0, grant.at)
        too_much = _integral((back - grant.back) * grant.want.weight, now - since)
        book = book._replace(uses={**book.uses, grant.want.whose: Use(max(0.0, used - too_much), at)})
    kept = seen.slice if seen.over and seen.lease in (lease.FREE, lease.ENDED) else ""
    changed = grant._replace(back=max(back, grant.back), kept=kept)
    return book._replace(grants=tuple(changed if one is grant else one for one in book.grants))


# ---- use -------------------------------------------------------------------------------------------------------


def _integral(rate: float, seconds: float) -> float:
    """Return what a constant use comes to after some time, in which its beginning has already faded."""
    return float(rate * HALF_LIFE / math.log(2.0) * (1.0 - 0.5 ** (max(0.0, seconds) / HALF_LIFE)))


def settled(book: Book, now: float) -> Book:
    """Return the book with the use of everybody as it counts now. Exact, whenever it is asked: between two writes the
    same turns are held."""
    rates = Counter[str]()
    for grant in book.grants:
        rates[grant.want.whose] += grant.holds.weighted  # type: ignore[assignment]
    uses = {}
    for whose in sorted({*book.uses, *rates}):
        before = book.uses.get(whose, Use(0.0, now))
        passed = max(0.0, now - before.at)
        used = before.used * 0.5 ** (passed / HALF_LIFE) + _integral(rates[whose], passed)
        if used > 1.0 or whose in rates:
            uses[whose] = Use(used, max(now, before.at))
    return book._replace(uses=uses)


def freed(book: Book, key: Key, ended: float, now: float) -> Book:
    """Return the book without a turn.

    Args:
        book: The book.
        key: Whose turn it is.
        ended: When its hosts were gone, if that is known.
        now: The time at which whoever asks looked at the clock, which may be before that.
    """
    grant = book.grant(key)
    if grant is None:
        return book
    now = max(now, ended)
    book = settled(book, now)
    used, at = book.uses[grant.want.whose]
    too_much = _integral(grant.holds.weighted, now - max(ended, grant.at)) if ended else 0.0
    uses = {**book.uses, grant.want.whose: Use(max(0.0, used - too_much), at)}
    left = [one._replace(yields=None) if one.yields == key else one for one in book.grants if one is not grant]
    return book._replace(uses=uses, grants=tuple(left))


# ---- the decision ----------------------------------------------------------------------------------------------


def standing(want: Want, shares: Sequence[Share]) -> float:
    """Return the share by which the use of whoever wants it is weighted: its own, else the deployment's."""
    own = want.whose.partition(":")[0]
    whole: list[float] = []
    named: list[float] = []
    for bound in want.bounds(shares):
        most = bound.most * want.weighted / bound.need  # in chips that count as 1
        (named if bound.name.startswith(f"{own}:") else whole).append(most)
    return min(named, default=0.0) or min(whole, default=0.0) or 1.0


def held(grants: Collection[Grant], shares: Sequence[Share]) -> Counter[str]:
    """Return how much of each share is held, by the share's name. Slices that are taken or released before another
    attempt has its hosts, and these hosts, are never there together: the greater of both counts."""
    used = Counter[str]()
    yielding: dict[Key, Counter[str]] = {grant.yields: Counter() for grant in grants if grant.yields}
    for grant in grants:
        needs = {bound.name: bound.need for bound in grant.holds.bounds(shares)}
        if grant.yields:
            yielding[grant.yields].update(needs)
        else:
            used.update(needs)
    for grant in grants:
        before = yielding.pop(grant.want.key, None)
        needs = {bound.name: bound.need for bound in grant.holds.bounds(shares)} if before else {}
        for name, need in (before or {}).items():
            used[name] += max(0, need - needs.get(name, 0))  # type: ignore[assignment]
    for left in yielding.values():  # to one who has no turn
        used.update(left)
    return used


def _is_idle(grant: Grant) -> bool:
    """Return True if all that a turn holds is a slice that can yield to another attempt: no place of a race is left."""
    return bool(grant.kept) and not grant.yields and grant.holds.chips * grant.want.places <= grant.want.chips


def decide(book: Book, wants: Sequence[Want], shares: Sequence[Share], now: float, token: str) -> Book:
    """Return the book after all turns that can be given now.

    Args:
        book: The book before. What it says of turns is never changed.
        wants: All who want one, those who have one among them or not.
        shares: The shares in force.
        now: The time, by the store's clock.
        token: With which the tokens of new turns begin.
    """
    now = max([now, *(use.at for use in book.uses.values())])  # whoever decides may have been held up since it looked
    return _Round(settled(book, now), wants, shares, now, token).book()


class _Round:
    """One decision over all who wait."""

    def __init__(self, book: Book, wants: Sequence[Want], shares: Sequence[Share], now: float, token: str) -> None:
        has = {grant.want.key for grant in book.grants}
        self._waiting = [want for want in wants if want.key not in has]
        there = {want.key for want in self._waiting}
        self._book, self._shares, self._now, self._token = book, shares, now, token
        self._grants = list(book.grants)
        self._used = held(self._grants, shares)
        self._idle = self._all_idle()
        self._uses = dict(book.uses)
        self._reserved = {(one.job, one.attempt): one for one in book.reserved if (one.job, one.attempt) in there}
        self._firsts: dict[str, First] = {}
        self._line: list[Waiting] = []
        self._count = 0

    def book(self) -> Book:
        """Give the turns, and return the book of them."""
        theirs: dict[str, list[Want]] = {}
        for want in sorted(self._waiting, key=lambda want: (-want.priority, want.since, want.key), reverse=True):
            own = f"{want.job}/{want.attempt}" if want.key in self._reserved else want.whose
            theirs.setdefault(own, []).append(want)
        heads = [self._head(whose, wants) for whose, wants in theirs.items()]
        heapq.heapify(heads)
        while heads:
            whose = heads[0][-1]
            self._judge(theirs[whose].pop())
            if theirs[whose]:
                heapq.heapreplace(heads, self._head(whose, theirs[whose]))
            else:
                heapq.heappop(heads)
        return self._book._replace(
            grants=tuple(self._grants), uses=self._uses, line=tuple(self._line), waiting=self._count,
            firsts=self._firsts, reserved=tuple(sorted(self._reserved.values(), key=lambda one: one.rank)),
        )  # fmt: skip

    def _head(self, whose: str, wants: list[Want]) -> tuple[int, float, float, Key, str]:
        """Return by what the next of one principal is compared with those of others. What has a reservation comes
        first: whoever is next in order can reserve only what it leaves. Then comes who has been the next one of its
        principal for long: else it would never have one while others come that have used less. A principal has one such
        at a time, and after its turn the next one waits as long, so that its use still counts."""
        want = wants[-1]
        own = self._reserved.get(want.key)
        if own is not None:
            return -want.priority, -2.0, own.at, want.key, whose
        first = self._book.firsts.get(want.whose)
        if first is not None and first[:2] == want.key and self._now - first.at >= PATIENCE:
            return -want.priority, -1.0, first.at, want.key, whose
        used = self._uses.get(want.whose, Use(0.0, 0.0)).used
        return -want.priority, used / standing(want, self._shares), want.since, want.key, whose

    def _judge(self, want: Want) -> None:
        bounds = want.bounds(self._shares)
        over = [bound for bound in bounds if self._used[bound.name] + bound.need > bound.most]
        before = [one for one in self._before(want) if {*one.dims} & {bound.name for bound in bounds}]
        late = [one for one in before if not (want.longest and self._now + want.longest <= one.start)]
        if not late and (not over or self._makes_room(want, over)):
            self._grant(want, bounds)
            return
        if over and all(bound.need <= bound.most for bound in bounds):
            self._reserve(want, bounds, over, before)
        if want.key not in self._reserved and want.whose not in self._firsts:
            first = self._book.firsts.get(want.whose)
            if first is None or first[:2] != want.key:
                first = First(*want.key, self._now)
            self._firsts[want.whose] = first
        self._count += 1
        if len(self._line) < SHOWN:
            self._line.append(Waiting(want.job, want.attempt, want.whose, self._why(bounds, over, late)))

    def _before(self, want: Want) -> list[Reserved]:
        """Return the reservations that it has to respect: those of a higher rank than its own."""
        own = self._reserved.get(want.key)
        rank = own.rank if own is not None else (-want.priority, math.inf, want.key)
        return [one for one in self._reserved.values() if one.rank < rank]

    def _makes_room(self, want: Want, over: Sequence[Bound]) -> bool:
        """Have slices that serve nobody yield to an attempt, if that is enough: those first that it may be able to
        take, then those that were given first."""
        if not self._has_room(over, self._idle):  # nearly all who wait, so that they are not looked at one by one
            return False
        names, freed = {bound.name for bound in over}, Counter[str]()
        idle = [(one, needs) for one in self._grants if _is_idle(one) and (needs := self._needs(one)).keys() & names]
        idle.sort(
            key=lambda one: ((one[0].holds.generation, one[0].holds.chips) != (want.generation, want.chips), one[0].at)
        )
        chosen = set[Key]()
        for one, needs in idle:
            chosen.add(one.want.key)
            freed.update(needs)
            if self._has_room(over, freed):
                break
        self._grants = [one._replace(yields=want.key) if one.want.key in chosen else one for one in self._grants]
        self._idle = self._all_idle()
        return True

    def _has_room(self, over: Sequence[Bound], freed: Mapping[str, float]) -> bool:
        """Return True if what lacks something fits once so much has yielded to it: the greater of both counts then."""
        return all(
            self._used[bound.name] + max(0, bound.need - freed.get(bound.name, 0)) <= bound.most for bound in over
        )

    def _needs(self, grant: Grant) -> dict[str, float]:
        return {bound.name: bound.need for bound in grant.holds.bounds(self._shares)}

    def _all_idle(self) -> Counter[str]:
        """Return how much of each share is held by slices that serve nobody and yield to nobody yet."""
        found = Counter[str]()
        for grant in filter(_is_idle, self._grants):
            found.update(self._needs(grant))
        return found

    def _grant(self, want: Want, bounds: Sequence[Bound]) -> None:
        self._grants.append(Grant(want, self._now, f"{self._token}-{len(self._grants)}"))
        self._reserved.pop(want.key, None)
        if any(one.yields == want.key for one in self._grants):
            self._used = held(self._grants, self._shares)
        else:
            for bound in bounds:
                self._used[bound.name] += bound.need  # type: ignore[assignment]
        used = self._uses.get(want.whose, Use(0.0, self._now)).used
        self._uses[want.whose] = Use(used + want.weighted * ENTRY, self._now)

    def _reserve(self, want: Want, bounds: Sequence[Bound], over: Sequence[Bound], before: Sequence[Reserved]) -> None:
        """Keep for it what it lacks, as long as it waits, unless that is kept for another already."""
        own = self._reserved.get(want.key)
        taken = {dim for one in before for dim in one.dims}
        dims = {*(own.dims if own is not None else ()), *(bound.name for bound in over if bound.name not in taken)}
        if dims:
            at = own.at if own is not None else self._now
            start = self._start(bounds)
            self._reserved[want.key] = Reserved(want.job, want.attempt, want.priority, at, tuple(sorted(dims)), start)

    def _start(self, bounds: Sequence[Bound]) -> float:
        """Return when the turns that are held now leave enough of each share; now if that is not known."""
        used = Counter(self._used)
        names = {bound.name for bound in bounds}
        for grant in sorted(self._grants, key=lambda grant: grant.ends):
            if grant.ends == math.inf:
                break
            for bound in grant.holds.bounds(self._shares):
                if bound.name in names:
                    used[bound.name] -= bound.need  # type: ignore[assignment]
            if all(used[bound.name] + bound.need <= bound.most for bound in bounds):
                return max(self._now, grant.ends)
        return self._now

    def _why(self, bounds: Sequence[Bound], over: Sequence[Bound], late: Sequence[Reserved]) -> str:
        for bound in over:
            default = " by default" if bound.is_default else ""
            return f"for {bound.need:g} of {bound}{default} chips ({self._used[bound.name]:g} in use)"
        first = min(late, key=lambda one: one.rank)
        dim = next(bound for bound in bounds if bound.name in first.dims)
        return f"for {dim.need:g} of {dim} chips, of which the next are kept for {first.job}"
