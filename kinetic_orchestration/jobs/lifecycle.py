"""The rules of a job's life, pure: what was seen goes in, what to do comes out.

    intend ─▶ submit ─▶ queued ─▶ provisioning ─▶ running ─▶ a verdict ─▶ finish
                ▲                                                │
                └────────────── next attempt ◀───────────────────┘

Any process may call `advance` at any time, any number of times, for the same job: every action is idempotent,
and whatever two of them would decide differently is decided by a record that only one of them can create.
No clock, no store, no backend here; the simulation drives these very functions.
"""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic_orchestration.plan.values import (
    ABSENT,
    ELSEWHERE,
    GONE,
    PARTIAL,
    PRESENT,
    PROVISIONING,
    QUEUED,
    UNKNOWN,
    WOUNDED,
    Change,
    Cursor,
    Glimpse,
    Intent,
    JobStatus,
    Outcome,
    Spent,
    Words,
)
from kinetic_orchestration.protocol import attempt_rules, wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# A cause's budget (None: it ends the job at once) and the status it ends in. FREE has no bound but the limits: to have
# got no hosts is waiting, or a reason to ask elsewhere, and never a failure.
FREE = "moved"
CAUSES: dict[str, tuple[str | None, JobStatus]] = {
    wire.USER: ("user", JobStatus.FAILED),
    wire.CONFIGURATION: (None, JobStatus.FAILED),
    wire.INFRASTRUCTURE: ("infra", JobStatus.FAILED),
    wire.PREEMPTION: ("preemption", JobStatus.FAILED),
    wire.STALL: ("infra", JobStatus.FAILED),
    wire.DEADLINE: (None, JobStatus.FAILED),
    wire.CANCELLED: (None, JobStatus.CANCELLED),
    wire.DAMAGED: (None, JobStatus.FAILED),  # it may have a value, so it is not run again by itself
    wire.STOCKOUT: (FREE, JobStatus.FAILED),
    wire.QUOTA: (FREE, JobStatus.FAILED),
    wire.INTERNAL: (FREE, JobStatus.FAILED),
}

CANCEL_PATIENCE = 40.0  # the longest grace a host gives its program, and some
SETTLE_PATIENCE = 45.0  # seconds after a verdict, for hosts that cannot be observed to end
SETTLE_SPARE = 20.0  # of these, after the time that their programs have to save
NO_HOST = -1
SILENT_BEATS = 90.0  # hosts that cannot be observed are given up after this long without a beat,
UNHEARD = 120.0  # seconds without a report of charged hosts, after which users are warned
SILENT_START = 900.0  # or without a first one: they may still wait for a place
SILENT_CLAIM = 90.0  # those of a kept slice are there, and look for a claim each second
DEADLINE_MARGIN = 60.0
NONE_WARM = "no warm slice fits"
MOST_NAMED = 3  # other choices that are named while an attempt waits


class Policy(NamedTuple):
    """Limits and retry budgets that a plan sets for the rules."""

    hosts: int = 1
    crew: str = "1 host"  # the same as text for users: several hosts of one machine are processes
    words: Words = Words()
    user: int = 0
    preemption: int = 100
    infra: int = 3
    provision: float = 0.0  # seconds; 0: no bound
    total: float = 0.0
    created: float = 0.0  # when the job was, by the store's time
    silence: float = 0.0  # seconds of silence after which hosts that exist count as lost; 0: never
    affordable: float = 0.0  # seconds of hosts, over all attempts, for which the limit of cost pays; 0: no limit
    usd: float = 0.0  # that limit
    keeps: bool = False  # attempts take warm slices, if there are any

    def of(self, intent: Intent | None) -> Policy:
        """Return the limits of an attempt; before it has an intent, those of the job's first candidate."""
        del intent
        return self

    @property
    def most(self) -> int:
        """The largest number of hosts of an attempt."""
        return self.hosts

    def named(self, intent: Intent | None, message: str, *, waits: bool = True) -> str:
        """Return what is told of an attempt without hosts, with its hardware and its place if the job has a choice; and
        whether it takes a warm slice, if the job may.

        Args:
            intent: That of the attempt.
            message: What is told of it.
            waits: It may still get them: why it was chosen is told, and the other choices.
        """
        if intent is None or not waits or not self.keeps:
            return message
        warm = intent.placement.get("why") if "lease" in intent.placement else NONE_WARM
        if not message and "lease" in intent.placement:
            message = f"takes {intent.placement['lease']['slice']}"
        return f"{message} ({warm})" if message and warm else message or str(warm or "")


class Policies(Policy):
    """The same for a job with a choice: those of its first candidate, and of the others."""

    asked: tuple[str, ...]  # the hardware of each candidate, for users
    others: tuple[Policy, ...]  # of the candidates after the first, which jobs of the same plan share

    @classmethod
    def joined(cls, each: Sequence[Policy], asked: tuple[str, ...], created: float) -> Policies:
        found = cls(*each[0]._replace(created=created))
        found.asked, found.others = asked, tuple(map(_shared, each[1:]))
        return found

    def of(self, intent: Intent | None) -> Policy:
        return self.at(0 if intent is None else intent.choice)

    def at(self, choice: int) -> Policy:
        """Return those of a candidate."""
        return self.others[choice - 1]._replace(created=self.created) if 0 < choice <= len(self.others) else self

    @property
    def most(self) -> int:
        return max(self.hosts, *(one.hosts for one in self.others))

    def named(self, intent: Intent | None, message: str, *, waits: bool = True) -> str:
        if intent is None or not 0 <= intent.choice < len(self.asked):
            return message
        places = intent.places if intent.races else (intent.placement,)
        told = " and ".join(map(self._placed, places))
        why = [str(intent.placement.get("why") or "")]
        why += [NONE_WARM] if self.keeps and "lease" not in intent.placement else []
        told += f" ({'; '.join(filter(None, why))})" if waits and any(why) else ""
        others = (*self.asked[intent.choice + 1 :], *self.asked[: intent.choice])
        told += f", else {', '.join(others[:MOST_NAMED])}{', …' if len(others) > MOST_NAMED else ''}" if waits else ""
        return f"{told}: {message}" if message else told

    def _placed(self, place: Mapping[str, Any]) -> str:
        return " in ".join(filter(None, (self.asked[int(place.get("choice", 0))], str(place.get("zone", "")))))


@functools.lru_cache(maxsize=1024)
def _shared(policy: Policy) -> Policy:
    """One object for all jobs of the same plan."""
    return policy


class Intend(NamedTuple):
    """Write the next attempt's intent."""


class Submit(NamedTuple):
    """Make the create call that the intent promises."""


class Interrupt(NamedTuple):
    """Ask the hosts to end now, so that a cancel need not wait for their next look."""


class Close(NamedTuple):
    """Create the verdict in the name of hosts that cannot."""

    cause: str
    reason: str
    unplaced: bool = False  # no place was ever promised to the attempt
    host: int | None = None  # of which it is the failure
    unheard: tuple[int, ...] = ()  # hosts whose machines are there, and that have never spoken
    after_refusal: bool = False  # it ends a wait for hosts: what the attempt before was refused for belongs to it


class Release(NamedTuple):
    """Free the attempt's hosts."""

    attempt: int


Action = Intend | Submit | Interrupt | Close | Release


class Step(NamedTuple):
    cursor: Cursor
    actions: tuple[Action, ...] = ()
    changes: tuple[Change, ...] = ()
    outcome: Outcome | None = None


def advance(cursor: Cursor, seen: Glimpse, policy: Policy) -> Step:
    """Return the step that follows from one glimpse."""
    step = _advance(cursor, seen, policy.of(seen.intent))
    named = tuple(
        change._replace(message=policy.named(seen.intent, change.message, waits=change.attempt == cursor.attempt))
        if change.phase in ("submitted", QUEUED, PROVISIONING)
        else change
        for change in step.changes
    )
    return step._replace(changes=named) if named else step


def _advance(cursor: Cursor, seen: Glimpse, policy: Policy) -> Step:
    cursor = _informed(cursor, seen)
    if seen.verdict is not None:
        return _judged(cursor, seen, seen.verdict, policy) if settled(seen, policy) else Step(cursor)
    if seen.intent is None:
        return _unplaced(cursor, seen, policy)
    return _placed(cursor, seen, policy)


def _informed(cursor: Cursor, seen: Glimpse) -> Cursor:
    """Return the cursor with the spent budgets of the attempt's intent, for a process that saw no earlier attempts."""
    before = seen.intent.before if seen.intent is not None else None
    return cursor if before is None or before.spent == cursor.spent else cursor._replace(spent=before.spent)


def _unplaced(cursor: Cursor, seen: Glimpse, policy: Policy) -> Step:
    if seen.cancel is not None:
        return Step(cursor, (Close(wire.CANCELLED, seen.cancel.reason, unplaced=True),))
    if reason := _over_total(seen, policy):
        return Step(cursor, (Close(wire.DEADLINE, reason, unplaced=True),))
    return Step(cursor, (Intend(),))


def _placed(cursor: Cursor, seen: Glimpse, policy: Policy) -> Step:
    assert seen.intent is not None
    cursor, changes = _phase(cursor, seen, policy)
    began = any(beat is not None for beat in seen.beats)
    state = seen.observation.state
    action: Action | None = None
    if seen.intent.damage:  # the promise is unknown: its hosts obey a verdict, wherever they are
        reason = seen.intent.damage
        action = Close(wire.CANCELLED, seen.cancel.reason) if seen.cancel else Close(wire.INFRASTRUCTURE, reason)
    elif seen.cancel is not None:
        if state in (ABSENT, GONE) or _is_waiting(seen) or seen.cancel.age > CANCEL_PATIENCE:
            action = Close(wire.CANCELLED, seen.cancel.reason)
        else:
            action = Interrupt()
    elif reason := _over_total(seen, policy):
        action = Close(wire.DEADLINE, reason)
    elif state in (GONE, ABSENT, WOUNDED) and began and 0 < seen.intent.deadline <= seen.now:
        action = Close(wire.DEADLINE, "the attempt's deadline passed, and its hosts are gone")
    elif state in (GONE, WOUNDED) or (state == ABSENT and (began or seen.shown)):
        cause = wire.INTERNAL if _is_unserved(seen) else seen.observation.cause or wire.INFRASTRUCTURE
        said = seen.observation.message
        action = Close(cause, said + _last_sign(seen) if said else _vanished(seen, policy.words))
    elif state == ELSEWHERE and (silence := _silence(seen)) > (SILENT_BEATS if began else SILENT_START):
        action = Close(wire.INFRASTRUCTURE, f"no host has given a sign of life for {silence:.0f} s")
    elif mute := _mute(seen, policy):
        action = mute
    elif seen.intent.deadline and seen.now > seen.intent.deadline + DEADLINE_MARGIN:
        action = Close(wire.DEADLINE, "the attempt's deadline passed and its hosts did not end it")
    elif policy.provision and not began and seen.now - seen.intent.since > policy.provision:
        action = _waited(seen, policy)
    elif (_is_to_be_asked(seen) and not must_wait(seen)) or (state == PARTIAL and None in seen.beats):
        action = Submit()  # after the limits: hosts made too late would end themselves, again and again
    return Step(cursor, (action,) if action is not None else (), changes)


def _waited(seen: Glimpse, policy: Policy) -> Close:
    """Return the closing of an attempt for which hosts were waited for too long, with the last answer: that of its own
    queue, or else the one that ended the attempt before (`answered`), of which this one knows nothing."""
    reason = f"no host started within {policy.provision:g} s"
    if seen.observation.state == QUEUED and seen.observation.message:
        return Close(wire.DEADLINE, answered(reason, seen.observation.message))
    return Close(wire.DEADLINE, reason, after_refusal=True)


def answered(reason: str, answer: str) -> str:
    """Return the reason for the end of a wait, with what was last answered, if anything was."""
    told = answer.strip().splitlines()
    return f"{reason}; the last answer was: {told[-1]}" if told else reason


def foreseen(cursor: Cursor, seen: Glimpse, policy: Policy) -> Outcome | None:
    """Return the job's outcome if its verdict is final, although hosts may still be ending."""
    if seen.verdict is None:
        return None
    return _judged(_informed(cursor, seen), seen, seen.verdict, policy.of(seen.intent)).outcome


def _judged(cursor: Cursor, seen: Glimpse, verdict: wire.Verdict, policy: Policy) -> Step:
    if verdict.kind == wire.COMMITTED:
        outcome = Outcome(JobStatus.SUCCEEDED, cursor.attempt, verdict, attempts=shown(cursor, seen))
        # It was over before the first step: every host has succeeded, so all of them have been running.
        ran = () if cursor.phase in ("running", "succeeded") else _tell(cursor, "running", policy.crew)
        ended = cursor._replace(phase="succeeded")
        return Step(ended, (Release(cursor.attempt),), (*ran, *_tell(cursor, "succeeded", "")), outcome)
    cause = classify(verdict)
    budget, status = rule_of(cause)
    spent = spend(cursor.spent, budget)
    if budget is not None and (budget == FREE or getattr(spent, budget) <= getattr(policy, budget)):
        # A cancel or a limit that ends the job here is written as the next attempt's verdict (`_unplaced`). What a
        # job came to is read from verdicts and its plan alone, so it is the same whoever reads it, and whenever.
        if budget == FREE:  # nothing ran, so nothing resumes; the next queue is a change as well
            following = Cursor(cursor.attempt + 1, "submitted", (), spent)
            changes = (Change(QUEUED, _why(verdict), following.attempt),)
        else:
            following = Cursor(cursor.attempt + 1, "resuming", (), spent)
            message = f"attempt {shown(cursor)} ended ({_why(verdict)}{_taken_by(seen, cause)}); "
            message += f"attempt {shown(following)} follows"
            changes = (Change("resuming", message, following.attempt),)
        ends = seen.cancel is not None or _over_total(seen, policy)
        return Step(following, (Release(cursor.attempt),), () if ends else changes)
    outcome = Outcome(status, cursor.attempt, verdict, cause, shown(cursor, seen))
    phase = "cancelled" if status is JobStatus.CANCELLED else "failed"
    return Step(cursor._replace(phase=phase), (Release(cursor.attempt),), _tell(cursor, phase, _why(verdict)), outcome)


def shown(cursor: Cursor, seen: Glimpse | None = None) -> int:
    """Return an attempt's number as users see it: attempts without hosts are not counted. An attempt that follows a
    failure and was never promised a place (`seen`) is not counted either; once it has ended, its verdict says so.
    """
    placeless = False
    if seen is not None and seen.verdict is not None:
        placeless = seen.verdict.unplaced
    elif seen is not None:
        placeless = seen.intent is None and cursor.phase == "resuming"
    return count(cursor.attempt, cursor.spent, unplaced=placeless)


def count(attempt: int, spent: Spent, *, unplaced: bool = False) -> int:
    """Return the number that users see for an attempt. Attempts before it that never had hosts (`spent`) are not
    counted, nor is one that was never promised a place.
    """
    return max(1, attempt - spent.moved - unplaced)


def classify(verdict: wire.Verdict) -> str:
    """Return the cause of a failure: from the orders to the hosts first, then their log, then their own report."""
    failure = verdict.failure
    by_driver = failure is not None and attempt_rules.is_driver(failure.message + failure.log_tail)
    return wire.INFRASTRUCTURE if verdict.cause == wire.USER and by_driver else verdict.cause


def rule_of(cause: str) -> tuple[str | None, JobStatus]:
    return CAUSES.get(cause, CAUSES[wire.INFRASTRUCTURE])


def was_free(seen: Glimpse) -> bool:
    """Return True if the attempt has ended without ever having had hosts."""
    return seen.verdict is not None and rule_of(classify(seen.verdict))[0] == FREE


def spend(spent: Spent, budget: str | None) -> Spent:
    return spent if budget is None else spent._replace(**{budget: getattr(spent, budget) + 1})


def settled(seen: Glimpse, policy: Policy) -> bool:
    """Return True if nothing more comes from the attempt's hosts: its log is complete, or none is left to write."""
    if seen.intent is None or seen.done >= policy.hosts:
        return True
    if policy.silence and not _has_spoken(seen):  # machines whose agents never started
        return True
    closed = seen.verdict is not None and seen.verdict.kind == wire.CLOSED
    if closed and _speechless(seen, policy):
        # This process has watched the silence for so long that a host which came back would only report its end: the
        # rest of its log is not worth the chips, nor a program that runs beside the next attempt. A verdict by a host
        # is a sign of life, although its beats may not be: machines that stood still for a while end like others.
        return True
    saving = 0.0 if seen.verdict is None else attempt_rules.grace(seen.verdict, NO_HOST)
    patience = max(SETTLE_PATIENCE, saving + SETTLE_SPARE)
    return seen.observation.state in (ABSENT, GONE) or _is_waiting(seen) or seen.verdict_age > patience


def _is_waiting(seen: Glimpse) -> bool:
    """Return True while the attempt waits for hardware, so that no host can report or be asked."""
    return seen.observation.state in (QUEUED, PROVISIONING) and not _has_spoken(seen)


def _has_spoken(seen: Glimpse) -> bool:
    """Return True if there is, or was, a host: its verdict may be the first report of it."""
    return any(seen.beats) or (seen.verdict is not None and seen.verdict.kind != wire.CLOSED)


def status(cursor: Cursor, seen: Glimpse, outcome: Outcome | None) -> JobStatus:
    if outcome is not None:
        return outcome.status
    running = any(beat is not None and beat.state in (wire.RUNNING, wire.ENDING) for beat in seen.beats)
    # Between its verdict and its outcome a job's last lines are still on their way: it has not gone back to waiting.
    return JobStatus.RUNNING if running or seen.verdict is not None else JobStatus.PENDING


def _phase(cursor: Cursor, seen: Glimpse, policy: Policy) -> tuple[Cursor, tuple[Change, ...]]:
    """Return the cursor with the attempt's phase, from its hosts and its backend, and the change to tell."""
    states = [beat.state for beat in seen.beats if beat is not None]
    if why := waits(seen):  # it comes and goes
        told = () if cursor.phase == "waiting" else (Change("waiting", why, cursor.attempt),)
        return cursor._replace(phase="waiting"), told
    if unheard_of := unheard(seen, policy):
        phase, message = "silent", unheard_of
    elif len(states) == policy.hosts and all(state in (wire.RUNNING, wire.ENDING, wire.DONE) for state in states):
        phase, message = "running", policy.crew
    elif states:
        phase, message = "preparing", f"{len(states)} of {policy.crew.rpartition(', ')[2]} have started"
    elif seen.observation.state in (QUEUED, PROVISIONING):
        phase, message = seen.observation.state, seen.observation.message
    else:
        phase, message = "submitted", seen.observation.message
    order = ("", "resuming", "submitted", QUEUED, PROVISIONING, "silent", "preparing", "running")
    if cursor.phase in order and order.index(phase) <= order.index(cursor.phase):
        return cursor, ()
    return cursor._replace(phase=phase), (Change(phase, message, cursor.attempt),)


def waits(seen: Glimpse) -> str:
    """Return why existing hosts cannot continue for now, as their backend or their beats report."""
    if seen.observation.waits or seen.verdict is not None or seen.observation.state in (ABSENT, GONE):
        return seen.observation.waits
    return wants_room(zip(range(len(seen.beats)), seen.beats, seen.beat_ages, strict=True))


def wants_room(heard: Iterable[tuple[int, wire.Beat | None, float]]) -> str:
    """Return which host reports that its disk is full, from the last beat of each and its age."""
    for host, beat, age in heard:
        if beat is not None and beat.full and age < attempt_rules.LOST:
            return f"host {host} waits for room on its disk at {beat.full}"
    return ""


def _tell(cursor: Cursor, phase: str, message: str) -> tuple[Change, ...]:
    return (Change(phase, message, cursor.attempt),)


def _why(verdict: wire.Verdict) -> str:
    where = f" on host {verdict.host}" if verdict.host is not None else ""
    cause = "error" if verdict.cause == wire.USER else verdict.cause
    reason = verdict.reason.strip().splitlines()[-1] if verdict.reason.strip() else ""
    return f"{cause}{where}: {reason}" if reason else f"{cause}{where}"


def _taken_by(seen: Glimpse, cause: str) -> str:
    """Return what took the hosts of an attempt away, as its backend says: they themselves only know that it happens."""
    told = cause == wire.PREEMPTION and seen.observation.state in (QUEUED, GONE, WOUNDED)
    return f"; {seen.observation.message}" if told and seen.observation.message else ""


def _over_total(seen: Glimpse, policy: Policy) -> str:
    if policy.total and seen.now - policy.created > policy.total:
        return f"the job took longer than its limit of {policy.total:g} s for all attempts"
    return ""


def _is_refused(seen: Glimpse) -> bool:
    """Return True if a place cannot be observed: a request for hosts there tells why, and the next place follows."""
    return seen.observation.state == UNKNOWN and seen.observation.cause != "" and not any(seen.beats)


def _is_to_be_asked(seen: Glimpse) -> bool:
    """Return True if there is nothing yet of what the attempt asks for, or not in each place of a race."""
    return seen.observation.state == ABSENT or seen.observation.lacks or _is_refused(seen)


def must_wait(seen: Glimpse) -> bool:
    """Return True if it is too early to repeat a request that was refused a moment ago."""
    intent = seen.intent
    return intent is not None and intent.wait > 0 and seen.now < intent.created + intent.wait


def _speechless(seen: Glimpse, policy: Policy) -> str:
    """Return why no host can be alive on machines that exist; "" if one can. Places of a race that none has won are
    given up one by one (`given_up`)."""
    if not policy.silence or seen.observation.state != PRESENT or seen.places:
        return ""
    if any(beat is not None for beat in seen.beats):
        silence = min(age for beat, age in zip(seen.beats, seen.beat_ages, strict=True) if beat is not None)
        return f"no host has given a sign of life for {silence:.0f} s" if silence > policy.silence else ""
    since = seen.since
    if since and seen.now - since > _start_patience(seen):
        if _is_unserved(seen):
            return f"no host of this warm slice has followed its claim within {seen.now - since:.0f} s"
        return _unstarted(seen.now - since)
    return ""


def _unstarted(seconds: float) -> str:
    return f"the hosts have been there for {seconds:.0f} s, and none of them has started its agent"


def given_up(seen: Glimpse, policy: Policy) -> dict[int, tuple[str, str]]:
    """Return the places of a race that cannot win it any more, each with its cause and its reason, while others may:
    those that have failed, and those whose hosts are there and stay silent. They are released.

    Hosts speak once their place has won. Where one does and no winner is believed, as after an upgrade of a client that
    wants seals while hosts without them run, it is not known which place it is: none is silent then.
    """
    if seen.verdict is not None or seen.intent is None or not seen.intent.races or seen.observation.state == GONE:
        return {}
    found = {number: (cause, reason) for number, cause, reason in seen.observation.lost}
    for number, since in seen.places if policy.silence and not any(seen.beats) else ():
        if seen.now - since > SILENT_START:
            found[number] = (wire.INFRASTRUCTURE, _unstarted(seen.now - since))
    return found


def _is_unserved(seen: Glimpse) -> bool:
    """Return True if the attempt's place is a kept slice, of which no host has ever spoken for it: they may have been
    dead before its claim, of which a client cannot know. As it has got no hosts, that is no failure of its own."""
    return _is_kept(seen) and not any(seen.beats)


def _is_kept(seen: Glimpse) -> bool:
    """Return True if the attempt's place is a kept slice."""
    return seen.intent is not None and "lease" in seen.intent.placement


def _start_patience(seen: Glimpse) -> float:
    """Return for how many seconds a host's first sign is awaited, once its machine is there."""
    return SILENT_CLAIM if _is_kept(seen) else SILENT_START


def is_awaited(seen: Glimpse) -> bool:
    """Return True if hosts are charged for and none has reported yet."""
    return seen.observation.state == PRESENT and seen.charged > 0 and not any(seen.beats)


def unheard(seen: Glimpse, policy: Policy) -> str:
    """Return the warning that users see when no host of a charged slice reports anything for long, or ""."""
    held, policy = seen.now - seen.charged, policy.of(seen.intent)
    if not is_awaited(seen) or held < UNHEARD or seen.verdict is not None:
        return ""
    hint = _hint(seen)
    reason = f": {hint} may say why" if hint else ""
    patience = _start_patience(seen) / 60
    return (
        f"the {policy.words.whole} is {policy.words.up} and charged for, for up to {held:.0f} s now, and none of its "
        f"hosts has started its agent{reason}. It is given up {patience:g} min after it was first seen, or "
        "once the limit of cost is reached"
    )


def _hint(seen: Glimpse) -> str:
    """Return where to look next, with the placement's own words."""
    hint, place = seen.observation.hint, seen.intent.placement if seen.intent is not None else {}
    for field in ("name", "zone", "project"):
        hint = hint.replace(f"{{{field}}}", str(place.get(field, "")))
    return hint


def _vanished(seen: Glimpse, words: Words) -> str:
    """Describe hosts that are gone: when they were last seen, and what they reported."""
    place = seen.intent.placement if seen.intent is not None else {}
    if not seen.shown:
        return "the hosts are gone without a word" + _last_sign(seen)
    told = (
        f"the {words.whole} {place.get('name', '')} was seen {words.up} in {place.get('zone', '')} from "
        f"{_clock(seen.since)} to {_clock(seen.shown)}, and was no longer shown at {_clock(seen.now)} (UTC)"
    )
    if hint := _hint(seen):
        told += f"; {hint}"
    return told if any(seen.beats) or not words.unsaid else f"{told}. {words.unsaid}"


def _last_sign(seen: Glimpse) -> str:
    """Return when hosts that are gone were last seen or, if this process never saw them, when one last reported."""
    if seen.shown:
        there, now = _clock(seen.shown), _clock(seen.now)
        return f"; all its hosts were last seen at {there}, and no longer at {now} (UTC)"
    heard = [age for beat, age in zip(seen.beats, seen.beat_ages, strict=True) if beat is not None]
    return f"; one of its hosts last spoke at {_clock(seen.now - min(heard))} (UTC)" if heard else ""


def _mute(seen: Glimpse, policy: Policy) -> Close | None:
    """Return the closing of an attempt whose hosts exist and are silent for too long, or None."""
    assert seen.intent is not None
    silent = tuple(host for host, beat in enumerate(seen.beats) if beat is None)
    unheard = silent if len(silent) == len(seen.beats) else ()
    limit = min(filter(None, (seen.intent.affordable, policy.affordable)), default=0.0)
    held = seen.now - seen.charged if seen.charged else 0.0
    if limit and held > limit and not any(seen.beats):  # hosts that speak keep it themselves
        told = f"its slices were held for {held:.0f} s, and none of their hosts has started"
        return Close(wire.DEADLINE, f"{told}: its cost limit of ${policy.usd:,.2f}", unheard=unheard)
    if reason := _speechless(seen, policy):
        cause = wire.INTERNAL if _is_unserved(seen) else wire.INFRASTRUCTURE
        return Close(cause, reason, unheard=unheard)
    longest = _start_patience(seen)
    patience = min(longest, policy.provision or longest)
    if silent and not unheard and _awaits_others(seen, policy) and seen.now - seen.since > patience:
        told = attempt_rules.unstarted(silent, patience)
        # Of a kept slice they were dead before its claim, of which a client cannot know: no failure of the attempt.
        cause = wire.INTERNAL if _is_kept(seen) else wire.INFRASTRUCTURE
        return Close(cause, told, host=silent[0], unheard=silent)
    return None


def _awaits_others(seen: Glimpse, policy: Policy) -> bool:
    """Return True if the machines of all hosts are there, and those that have spoken wait for the others to do so. Of
    a program that runs every host has spoken, whatever can be read of that now."""
    if not (policy.silence and seen.since and seen.observation.state == PRESENT):
        return False
    return all(beat is None or beat.state in (wire.STARTING, wire.PREPARING) for beat in seen.beats)


def _clock(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%H:%M:%S")


def _silence(seen: Glimpse) -> float:
    assert seen.intent is not None
    ages = [age for beat, age in zip(seen.beats, seen.beat_ages, strict=True) if beat is not None]
    return max(ages) if ages else seen.now - seen.intent.created
