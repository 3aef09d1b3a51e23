"""The candidate and the place of a job's next attempt, and the reason for each that may be: pure, from what is known.

Each candidate of a plan in each of its places is an option. They are put in the order that the plan asks for (`by`),
and those of which facts say that nothing is free come behind the others. No fact drops an option: each is tried in
every round, as `places` has it for the places of one candidate. Only what cannot resume a checkpoint is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from kinetic_orchestration.capacity import facts as learned
from kinetic_orchestration.capacity.facts import FLEX_START, GOT, QUOTA, STOCKOUT, Fact, FactKey, Judgement
from kinetic_orchestration.errors import NoPlace
from kinetic_orchestration.plan.declare.cloud import queues_of
from kinetic_orchestration.plan.records import reserved_zone
from kinetic_orchestration.plan.values import Candidate, Past, Plan
from kinetic_orchestration.platforms.shared import places
from kinetic_orchestration.platforms.shared.places import Refusal
from kinetic_orchestration.protocol import wire

UNFIT, REFUSED, LOST = "unfit", "refused", "lost"  # states of a line, beside those of a fact

Resumes = Callable[[Candidate], str]


class Line(NamedTuple):
    """One option, as a row of the table.

    Attributes:
        choice: The candidate's number, counted from 0.
        place: A zone, or CLUSTER/NAMESPACE; "" for this machine.
        way: How it is bought.
        usd: Dollars for an hour of all its hosts; None if that is not known.
        state: A state of `facts`, UNFIT (not resumable), REFUSED (never again) or LOST (preempted there just now).
        reason: Why it is in this position, for users.
        stands_in: What the dollars are for, if they stand in for a price that is not known; "" if they do not.
    """

    choice: int
    place: str
    way: str
    usd: float | None
    state: str
    reason: str
    stands_in: str = ""


class Selection(NamedTuple):
    """The option of an attempt.

    Attributes:
        choice: The candidate's number.
        place: Where.
        queue: Of Kubernetes: which of several.
        reason: Why, for users.
        why: What is told of that while it waits: what facts and prices say of it, and of the best that was passed over;
            "" for what the user's order alone has decided.
        probe: What it alone tries again, so that this has to be claimed first (`records.claim`); None for any other.
        patience: Seconds for which it may wait there for others' sake; 0: there are no others, or it is unlimited.
        fields: The history, by which the next one is made.
    """

    choice: int
    place: str
    queue: str
    reason: str
    why: str
    probe: FactKey | None
    patience: float
    fields: dict[str, Any]

    @property
    def wait(self) -> float:
        """Seconds until it is requested."""
        return float(self.fields["wait"])

    def plan(self, plan: Plan) -> Plan:
        """Return the plan of this candidate in this one place."""
        one = plan.at(self.choice)
        cloud = {**one.cloud, "queue": self.queue} if self.queue else one.cloud
        return replace(one, zones=(self.place,) if self.place else one.zones, cloud=cloud)

    def history(self) -> dict[str, Any]:
        """Return the fields that a placement has of it, by which the next selection is made and users are told."""
        return {**self.fields, "choice": self.choice, "why": self.why, "patience": self.patience}


class _Option(NamedTuple):
    number: int
    candidate: Candidate
    place: str
    queue: str
    key: FactKey
    usd: float | None
    unfit: str

    @property
    def name(self) -> str:
        """Its name in a placement's history."""
        return f"{self.number}:{_spot(self.place, self.queue)}"

    @property
    def is_near(self) -> bool:
        """True if it is known to be where the bucket is, which decides between equals."""
        return self.place in self.candidate.near

    @property
    def stands_in(self) -> str:
        """The place or way whose price stands in for its own, for users; "" if its own is known."""
        return self.candidate.stand_ins.get(self.place, "")

    @property
    def is_queued(self) -> bool:
        """True if a request waits there, and is not refused."""
        return self.key.way == FLEX_START or bool(self.queue)

    def __str__(self) -> str:
        slices = f"{self.candidate.slices} × " if self.candidate.slices > 1 else ""
        where = f" in {_spot(self.place, self.queue)}" if self.place else ""
        return f"{slices}{self.candidate.slice.name} {self.key.way}{where}"


def anything(candidate: Candidate) -> str:
    """Every candidate can resume a job that has no checkpoint."""
    return ""


def of_hosts(hosts: int, plan: Plan, *, devices: int = 0, is_part: bool = False, reshard: bool = False) -> Resumes:
    """Return which candidates can resume a checkpoint.

    Args:
        hosts: Hosts that wrote it.
        plan: The job's plan.
        devices: Devices of all of them, if it can be resumed on as many only. A number that no candidate with these
            hosts has is one that the program chose, and says nothing of slices.
        is_part: They were not all hosts of their slice: any slice that has as many will do.
        reshard: The program reshards: all candidates can.
    """
    counts = {one.hosts * one.devices for one in plan.each() if one.hosts == hosts}

    def resumes(candidate: Candidate) -> str:
        own = replace(plan, choices=(candidate,)).at(0)
        if reshard or (is_part and own.hosts >= hosts):
            return ""
        has, wrote = own.hosts, hosts
        count = _hosts
        if has == wrote and devices in counts:
            has, wrote, count = own.hosts * own.devices, devices, _devices
        return "" if has == wrote else f"cannot resume the checkpoint: it has {count(has)}, and {count(wrote)} wrote it"

    return resumes


def keys(plan: Plan) -> list[FactKey]:
    """Return what has to be known of a plan."""
    return list(dict.fromkeys(option.key for option in _options(plan, anything)))


def table(
    plan: Plan,
    facts: Mapping[FactKey, Fact],
    now: float,
    past: Past | None = None,
    *,
    seed: str = "",
    resumes: Resumes = anything,
) -> list[Line]:
    """Return all options in the order in which they are tried, then those that are not, each with its reason.

    Args:
        plan: The job's plan.
        facts: What is known (`records.known` of `keys`).
        now: The store's time.
        past: The end of the attempt before, if there was one.
        seed: The attempt's id, JOB-NUMBER.
        resumes: Returns why a candidate cannot resume the job's checkpoint; "" if it can.
    """
    view = _View(plan, facts, now, seed, resumes)
    lost = option_of(past.placement) if past is not None and past.cause == wire.PREEMPTION else ""
    dropped = set(past.placement.get("dropped", ())) if past is not None else set()
    open_ = [option for option in view.ordered if option.name not in dropped]
    lost = lost if len(open_) > 1 else ""
    open_.sort(key=lambda option: option.name == lost)
    lines = [view.line(option, is_lost=option.name == lost) for option in open_]
    refused = "it was refused for good: no other try helps"
    lines += [view.row(option, REFUSED, refused) for option in view.ordered if option.name in dropped]
    return [*lines, *(view.row(option, UNFIT, option.unfit) for option in view.unfit)]


def first(
    plan: Plan,
    facts: Mapping[FactKey, Fact],
    now: float,
    *,
    seed: str = "",
    resumes: Resumes = anything,
) -> Selection:
    """Return the option of a job's first attempt. The arguments are those of `table`. Raises NoPlace."""
    view = _View(plan, facts, now, seed, resumes)
    view.require()
    chosen = places.first([option.name for option in view.ordered], "")
    return view.selected(chosen, None, "")


def following(
    plan: Plan,
    facts: Mapping[FactKey, Fact],
    now: float,
    past: Past,
    seed: str,
    refusal: Refusal = Refusal(),  # noqa: B008 - frozen
    *,
    resumes: Resumes = anything,
) -> Selection:
    """Return the option after `past`. Raises NoPlace if none is left, with the last answer.

    After a preemption what was launched comes after all others. Hosts that were lost otherwise are requested where they
    were. The arguments are those of `table`, and `refusal` is what the backend says of the answer to `past`.
    """
    view = _View(plan, facts, now, seed, resumes)
    view.require()
    before = option_of(past.placement)
    by_name = {option.name: option for option in view.ordered}
    same = by_name.get(before)
    if same is None:  # it is none any more, so the next one is any that this round has not tried
        past = past._replace(cause=wire.STOCKOUT)
        refusal = Refusal()
    gone = _gone(refusal, before, view.ordered)
    order = [name for name in by_name if name != before] + ([before] if same is not None else [])
    chosen = places.following(
        order,
        past._replace(placement={**past.placement, "zone": before}),
        seed,
        refusal._replace(gone=gone),
        patience=same.candidate.zone_patience if same is not None else 0.0,
        leave=past.cause == wire.PREEMPTION,
        told=lambda name: str(by_name[name]),
    )
    return view.selected(chosen, past, before)


def beside(
    plan: Plan,
    facts: Mapping[FactKey, Fact],
    now: float,
    chosen: Selection,
    *,
    seed: str = "",
    resumes: Resumes = anything,
) -> list[Selection]:
    """Return the options that an attempt asks besides the one that it has chosen, if it races: the next ones in the
    order that this round has not tried. The other arguments are those of `table`."""
    view = _View(plan, facts, now, seed, resumes)
    own = f"{chosen.choice}:{_spot(chosen.place, chosen.queue)}"
    over = {own, *chosen.fields.get("tried", ()), *chosen.fields.get("dropped", ())}
    left = [option.name for option in view.ordered if option.name not in over]
    return [view.selected(places.first([name], ""), None, "") for name in left[: plan.race - 1]]


class _View:
    """The options of a plan as they are seen now."""

    def __init__(self, plan: Plan, facts: Mapping[FactKey, Fact], now: float, seed: str, resumes: Resumes) -> None:
        options = list(_options(plan, resumes))
        self.plan, self.now = plan, now
        self.judged = learned.judge(facts, {option.key for option in options}, now, seed)
        self.unfit = [option for option in options if option.unfit]
        self.ranks = {option.name: at for at, option in enumerate(options)}

        fit = (option for option in options if not option.unfit)
        self.wished = sorted(fit, key=self._wish)  # by what is asked for alone
        self.ordered = sorted(self.wished, key=lambda option: self.judged[option.key].behind)

    def _wish(self, option: _Option) -> tuple[Any, ...]:
        return *_ranks(self.plan.by, option, self.judged[option.key]), self.ranks[option.name]

    def require(self) -> None:
        """Raise NoPlace, with the reason for each option, if there is none."""
        if self.ordered:
            return
        if not self.unfit:
            raise NoPlace("none of the job's choices has a place: name regions=, or zones with KINETIC_ZONES=…")
        answers = dict.fromkeys(f"{one.candidate.slice.name} {one.key.way}: {one.unfit}" for one in self.unfit)
        raise NoPlace(f"none of the job's choices can be taken. {'; '.join(answers)}")

    def row(self, option: _Option, state: str, reason: str) -> Line:
        place, stands_in = _spot(option.place, option.queue), "" if option.usd is None else option.stands_in
        return Line(option.number, place, option.key.way, option.usd, state, reason, stands_in)

    def line(self, option: _Option, *, is_lost: bool) -> Line:
        judged = self.judged[option.key]
        if is_lost:
            return self.row(option, LOST, "its hosts were preempted there, so it comes after the others")
        return self.row(option, judged.state, self._reason(option, judged))

    def selected(self, choice: places.Choice, past: Past | None, before: str) -> Selection:
        option = next(one for one in self.ordered if one.name == choice.place)
        judged = self.judged[option.key]
        reason = self._reason(option, judged)
        is_told = self.plan.by != "order" or judged.behind or judged.state == learned.AGED
        told = reason if is_told else ""  # the user knows the own order
        if past is not None and option.name == before:
            had_hosts = past.cause not in places.WITHOUT_HOSTS
            reason = "its hosts were there" if had_hosts else f"{reason}; the same place again"
            told = reason if had_hosts else told
        probe = option.key if judged.state == learned.AGED else None
        others = any(one.name not in (option.name, *choice.dropped) for one in self.ordered)
        patience = option.candidate.zone_patience if others else 0.0
        why = "; ".join(filter(None, (told, self._passed(option, past, before))))
        history = places.history(choice, past)
        return Selection(option.number, option.place, option.queue, reason, why, probe, patience, history)

    def _passed(self, chosen: _Option, past: Past | None, before: str) -> str:
        """Return why the best that comes before it by what is asked for was not taken; "" if nothing does."""
        placement = {} if past is None else past.placement
        for option in self.wished[: self.wished.index(chosen)]:
            judged = self.judged[option.key]
            if past is not None and option.name == before:
                waited = option.is_queued and past.cause == wire.STOCKOUT  # which says nothing of what there is
                ended = "no hosts in its time in the queue" if waited else _ended.get(past.cause, past.cause)
                why = f"{ended} just now"
            elif option.name in placement.get("dropped", ()):
                why = "refused for good"
            elif judged.behind:
                why = said(judged, option.key, self.now)
            else:
                why = "tried before" if option.name in placement.get("tried", ()) else ""
            if why:
                return f"{option}: {why}"
        return ""

    def _reason(self, option: _Option, judged: Judgement) -> str:
        known = said(judged, option.key, self.now)
        if judged.behind or judged.state == learned.AGED:
            return known
        return "; ".join(filter(None, (self._position(option, judged), known)))

    def _position(self, option: _Option, judged: Judgement) -> str:
        """Return why an option is where it is, if no fact moved it."""
        if self.plan.by == "price":
            known = None if option.usd is None else f"{'~' * bool(option.stands_in)}${option.usd:,.2f} an hour"
            return known or "price unknown"
        if self.plan.by == "start":
            return "it waits in a queue" if option.is_queued else "" if judged.outcome else "nothing is known of it"
        number = self.ranks[option.name] + 1
        return "first in your order" if number == 1 else f"number {number} in your order"


def _options(plan: Plan, resumes: Resumes) -> Iterator[_Option]:
    """Every candidate in each of its places, in the user's order."""
    for number, candidate in enumerate(plan.choices or (Candidate.of(plan),)):
        unfit = resumes(candidate)
        queues = queues_of(candidate.cloud.get("queue") or "") or ("",)
        for place in dict.fromkeys(_places(plan.at(number))):
            key, usd = learned.key_of(candidate, place), _usd(candidate.usd.get(place))
            for queue in queues:
                yield _Option(number, candidate, place, queue, key, usd, unfit)


def _places(plan: Plan) -> Sequence[str]:
    """Its zones, that of a reservation which names it, or this machine."""
    reserved = reserved_zone(plan)
    return (reserved,) if reserved else plan.zones or (("",) if plan.traits.share_files else ())


def _usd(usd: float | None) -> float | None:
    """A price, if it is one: what is not known is neither free nor dear."""
    return usd if usd is not None and math.isfinite(usd) and usd > 0 else None


def _ranks(by: str, option: _Option, judged: Judgement) -> tuple[Any, ...]:
    if by == "price":
        return option.usd is None, option.usd or 0.0, not option.is_near
    if by == "start":
        return (0 if judged.outcome == GOT else 2 if option.is_queued else 1), not option.is_near
    return ()


def said(judged: Judgement, key: FactKey, now: float) -> str:
    """Return what facts say of a place, for users; "" if nothing is known."""
    if not judged.outcome:
        return "another attempt tries it now" if judged.state == learned.PROBED else ""
    ago = f"{_words[judged.outcome]} {_ago(now - judged.at)}"
    if judged.size < key.size:
        ago += f" on a smaller slice ({judged.size} chip{'' if judged.size == 1 else 's'})"
        ago += ", so here as well" if judged.state in (learned.STOCKOUT, learned.QUOTA) else ""
    if judged.jobs > 1:
        ago += f", seen by {judged.jobs} jobs"
    if judged.state == learned.AGED:
        return f"{ago}: one attempt tries again"
    return f"{ago}: another attempt tries now" if judged.state == learned.PROBED else ago


_words = {
    GOT: "hosts were had",
    STOCKOUT: "stockout",
    QUOTA: "quota was used up",
    learned.PREEMPTED_YOUNG: "preempted young",
}


_ended = {wire.PREEMPTION: "preempted", wire.QUOTA: "its quota was used up"}


def _ago(seconds: float) -> str:
    return "just now" if seconds < 60 else f"{seconds / 60:.0f} min ago"


def _spot(place: str, queue: str) -> str:
    return f"{place}:{queue}" if queue else place


def _hosts(count: int) -> str:
    return "1 host" if count == 1 else f"{count} hosts"


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"


def option_of(placement: Mapping[str, Any]) -> str:
    """The name of the option that a placement was made by: what was launched, not what was asked for."""
    spot = _spot(str(placement.get("zone", "")), str(placement.get("queue") or ""))
    return f"{placement.get('choice', 0)}:{spot}"


def _gone(refusal: Refusal, before: str, options: Sequence[_Option]) -> tuple[str, ...]:
    """The options that a refusal ends: places of the candidate that was refused. Others get answers of their own."""
    number = before.partition(":")[0]
    lost = [
        option.name for option in options
        if str(option.number) == number and {option.place, _spot(option.place, option.queue)} & set(refusal.gone)
    ]  # fmt: skip
    return tuple(lost) or ((before,) if refusal.gone else ())
