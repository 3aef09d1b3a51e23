"""The rules of a job's life, one by one. What they do together is the simulation's to show."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.jobs.lifecycle import (
    Close,
    Intend,
    Interrupt,
    Policy,
    Release,
    Step,
    Submit,
    advance,
    classify,
    settled,
)
from kinetic_orchestration.plan.values import (
    ABSENT,
    ELSEWHERE,
    GONE,
    PARTIAL,
    PRESENT,
    PROVISIONING,
    QUEUED,
    TRAITS,
    WOUNDED,
    Cancel,
    Change,
    Cursor,
    Glimpse,
    Intent,
    JobStatus,
    Observation,
    Spent,
)
from kinetic_orchestration.protocol import attempt_rules, wire

pytestmark = pytest.mark.fast

NOW = 10_000.0
BEAT = wire.Beat(wire.RUNNING)
STARTING = wire.Beat(wire.STARTING)
CANCEL = Cancel("enough", "somebody", 1.0)
COMMITTED = wire.Verdict(wire.COMMITTED, "host", 0.0, host=0, digest="d", size=1)


def glimpse(state: str = PRESENT, *beats: wire.Beat | None, created: float = NOW - 10.0, **fields: Any) -> Glimpse:
    """One host of an attempt that was intended 10 s ago, unless told otherwise."""
    beats = beats or (None,)
    intent = Intent(1, "boot", {}, fields.pop("deadline", 0.0), created)
    ages = fields.pop("ages", (0.0,) * len(beats))
    return Glimpse(NOW, intent, observation=Observation(state), beats=beats, beat_ages=ages, **fields)


def ended(cause: str, *, kind: str = wire.ABORTED, **fields: Any) -> Glimpse:
    verdict = wire.Verdict(kind, "host", 0.0, cause=cause, host=0, reason="why")
    return glimpse(ABSENT, BEAT, verdict=verdict, done=1, **fields)


def actions(seen: Glimpse, policy: Policy | None = None) -> tuple[lifecycle.Action, ...]:
    return advance(Cursor(), seen, policy or Policy()).actions


# ---- before its hosts are made -------------------------------------------------------------------------------


def test_an_attempt_is_promised_before_it_is_made() -> None:
    assert actions(Glimpse(NOW)) == (Intend(),)
    assert actions(glimpse(ABSENT)) == (Submit(),)


def test_a_job_that_is_cancelled_before_it_has_hosts_gets_none() -> None:
    assert actions(Glimpse(NOW, cancel=CANCEL)) == (Close(wire.CANCELLED, "enough", unplaced=True),)
    assert actions(glimpse(ABSENT, cancel=CANCEL)) == (Close(wire.CANCELLED, "enough"),)


def test_a_job_past_its_total_limit_gets_no_further_attempt() -> None:
    (action,) = actions(Glimpse(NOW), Policy(total=60.0, created=NOW - 61.0))
    assert isinstance(action, Close)
    assert action.cause == wire.DEADLINE
    assert "60 s for all attempts" in action.reason
    assert actions(Glimpse(NOW), Policy(total=60.0, created=NOW - 59.0)) == (Intend(),)


def test_hosts_that_a_dead_submitter_left_out_are_made() -> None:
    assert actions(glimpse(PARTIAL, BEAT, None), Policy(hosts=2)) == (Submit(),)


def test_hosts_that_ended_are_not_made_again() -> None:
    assert actions(glimpse(PARTIAL, BEAT, BEAT), Policy(hosts=2)) == ()


def test_hosts_are_not_made_when_it_is_too_late_for_them() -> None:
    """They would end themselves at once, and be made again, and again."""
    for late, policy in (
        (glimpse(ABSENT, deadline=NOW - 61.0), Policy()),
        (glimpse(ABSENT), Policy(provision=9.0)),
        (glimpse(PARTIAL, None, None), Policy(hosts=2, provision=9.0)),
    ):
        (action,) = actions(late, policy)
        assert isinstance(action, Close)
        assert action.cause == wire.DEADLINE


@pytest.mark.parametrize("state", [QUEUED, PROVISIONING, PRESENT])
def test_waiting_for_hardware_is_not_a_failure(state: str) -> None:
    assert actions(glimpse(state, created=NOW - 86_400.0)) == ()


def test_a_limit_on_waiting_for_hardware_counts_until_the_first_host_has_started() -> None:
    (action,) = actions(glimpse(QUEUED), Policy(provision=9.0))
    assert isinstance(action, Close)
    assert action.cause == wire.DEADLINE
    assert actions(glimpse(PRESENT, STARTING), Policy(provision=9.0)) == ()


def test_the_end_of_a_wait_for_hardware_says_what_its_queue_last_answered_or_leaves_that_to_the_attempt_before() -> (
    None
):
    told = Observation(QUEUED, "waits for capacity in us-central1-a")
    (action,) = actions(glimpse()._replace(observation=told), Policy(provision=9.0))
    said = "no host started within 9 s; the last answer was: waits for capacity in us-central1-a"
    assert action == Close(wire.DEADLINE, said)
    for state in (ABSENT, PROVISIONING):
        assert actions(glimpse(state), Policy(provision=9.0)) == (
            Close(wire.DEADLINE, "no host started within 9 s", after_refusal=True),
        )


# ---- while it runs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "beat"), [(GONE, None), (GONE, BEAT), (ABSENT, BEAT)], ids=["killed early", "killed", "vanished"]
)
def test_hosts_that_are_gone_without_a_verdict_failed_for_the_infrastructure(
    state: str, beat: wire.Beat | None
) -> None:
    (action,) = actions(glimpse(state, beat))
    assert isinstance(action, Close)
    assert action.cause == wire.INFRASTRUCTURE


def test_hosts_that_cannot_be_seen_are_judged_by_their_beats() -> None:
    assert actions(glimpse(ELSEWHERE, BEAT, ages=(89.0,))) == ()
    (action,) = actions(glimpse(ELSEWHERE, BEAT, ages=(91.0,)))
    assert isinstance(action, Close)
    assert action.cause == wire.INFRASTRUCTURE
    assert "91 s" in action.reason


def test_the_longest_silent_host_decides_and_hosts_that_never_began_do_not() -> None:
    assert actions(glimpse(ELSEWHERE, BEAT, BEAT, ages=(1.0, 91.0)), Policy(hosts=2)) != ()
    assert actions(glimpse(ELSEWHERE, BEAT, None, ages=(1.0, 0.0)), Policy(hosts=2)) == ()


def test_hosts_elsewhere_that_wait_for_a_place_are_not_given_up_like_silent_ones() -> None:
    assert actions(glimpse(ELSEWHERE, created=NOW - 600.0)) == ()
    assert actions(glimpse(ELSEWHERE, created=NOW - 901.0)) != ()


def test_a_cancel_is_first_left_to_the_hosts_so_that_the_program_may_save_its_state() -> None:
    assert actions(glimpse(PRESENT, BEAT, cancel=CANCEL)) == (Interrupt(),)
    (action,) = actions(glimpse(PRESENT, BEAT, cancel=CANCEL._replace(age=41.0)))
    assert action == Close(wire.CANCELLED, "enough")


def test_a_cancel_does_not_wait_for_hosts_that_are_gone() -> None:
    assert actions(glimpse(GONE, BEAT, cancel=CANCEL)) == (Close(wire.CANCELLED, "enough"),)
    assert actions(glimpse(ABSENT, BEAT, cancel=CANCEL)) == (Close(wire.CANCELLED, "enough"),)


def test_hosts_have_a_minute_to_end_themselves_at_their_deadline() -> None:
    assert actions(glimpse(PRESENT, BEAT, deadline=NOW - 59.0)) == ()
    (action,) = actions(glimpse(PRESENT, BEAT, deadline=NOW - 61.0))
    assert isinstance(action, Close)
    assert action.cause == wire.DEADLINE


def test_hosts_that_their_deadline_ends_are_not_said_to_have_failed() -> None:
    for state in (GONE, WOUNDED):
        (action,) = actions(glimpse(state, BEAT, deadline=NOW - 1.0))
        assert isinstance(action, Close)
        assert action.cause == wire.DEADLINE


def test_a_running_attempt_ends_when_the_total_is_used_up() -> None:
    (action,) = actions(glimpse(PRESENT, BEAT), Policy(total=60.0, created=NOW - 61.0))
    assert isinstance(action, Close)
    assert action.cause == wire.DEADLINE


def test_a_change_is_told_once_and_phases_never_go_back() -> None:
    cursor, told = Cursor(), []
    for seen in (
        glimpse(QUEUED), glimpse(QUEUED), glimpse(PROVISIONING), glimpse(PRESENT, STARTING),
        glimpse(QUEUED), glimpse(PRESENT, BEAT), glimpse(PRESENT, STARTING),
    ):  # fmt: skip
        step = advance(cursor, seen, Policy())
        cursor = step.cursor
        told += [change.phase for change in step.changes]
    assert told == [QUEUED, PROVISIONING, "preparing", "running"]


def test_each_queue_that_is_waited_in_is_told_of() -> None:
    """A job that moves from zone to zone says where it asks now, and why not where it asked before."""
    cursor, told = Cursor(), []
    for zone in ("us-west4-a", "us-central1-a"):
        waits = glimpse()._replace(observation=Observation(QUEUED, f"ACCEPTED in {zone}"))
        refused = ended(wire.STOCKOUT)
        for seen in (glimpse(ABSENT), waits, waits, refused):
            step = advance(cursor, seen, Policy())
            cursor = step.cursor
            told += [(change.phase, change.message, change.attempt) for change in step.changes]
    assert told == [
        ("submitted", "", 1), (QUEUED, "ACCEPTED in us-west4-a", 1), (QUEUED, "stockout on host 0: why", 2),
        (QUEUED, "ACCEPTED in us-central1-a", 2), (QUEUED, "stockout on host 0: why", 3),
    ]  # fmt: skip


# ---- after its verdict ---------------------------------------------------------------------------------------


def test_the_one_committed_verdict_is_the_result() -> None:
    step = advance(Cursor(attempt=2), glimpse(ABSENT, BEAT, verdict=COMMITTED, done=1), Policy())
    assert step.outcome is not None
    assert (step.outcome.status, step.outcome.attempt, step.outcome.verdict) == (JobStatus.SUCCEEDED, 2, COMMITTED)
    assert step.actions == (Release(2),)


def test_a_job_that_was_over_before_anybody_looked_is_said_to_have_run_as_well() -> None:
    for phase, told in (
        ("", ["running", "succeeded"]),
        ("preparing", ["running", "succeeded"]),
        ("running", ["succeeded"]),
    ):
        step = advance(Cursor(phase=phase), glimpse(ABSENT, verdict=COMMITTED, done=4), Policy(4, "4 hosts"))
        assert [change.phase for change in step.changes] == told
        assert step.changes[-2:][0].message == ("" if told == ["succeeded"] else "4 hosts")


@pytest.mark.parametrize(
    ("cause", "budget"),
    [(wire.USER, "user"), (wire.PREEMPTION, "preemption"), (wire.INFRASTRUCTURE, "infra"), (wire.STALL, "infra")],
)
def test_each_cause_spends_a_budget_of_its_own(cause: str, budget: str) -> None:
    policy = Policy(user=0, preemption=0, infra=0)._replace(**{budget: 1})
    step = advance(Cursor(), ended(cause), policy)
    assert step.outcome is None
    assert step.cursor == Cursor(2, "resuming", (), Spent()._replace(**{budget: 1}))
    assert step.actions == (Release(1),)
    last = advance(step.cursor, ended(cause), policy)
    assert last.outcome is not None
    assert (last.outcome.status, last.outcome.cause, last.outcome.attempts) == (JobStatus.FAILED, cause, 2)
    assert last.actions == (Release(2),)


def test_preemptions_do_not_use_up_what_is_left_for_failures() -> None:
    spent = Spent(user=0, preemption=99, infra=3)
    step = advance(Cursor(103, spent=spent), ended(wire.PREEMPTION), Policy(preemption=100, infra=3))
    assert step.outcome is None
    assert step.cursor.spent == spent._replace(preemption=100)


@pytest.mark.parametrize(
    ("cause", "status"),
    [
        (wire.CONFIGURATION, JobStatus.FAILED),
        (wire.DEADLINE, JobStatus.FAILED),
        (wire.CANCELLED, JobStatus.CANCELLED),
    ],
)
def test_what_another_attempt_would_not_mend_ends_the_job(cause: str, status: JobStatus) -> None:
    step = advance(Cursor(), ended(cause), Policy(user=9, preemption=9, infra=9))
    assert step.outcome is not None
    assert (step.outcome.status, step.outcome.cause) == (status, cause)


def test_a_cause_of_a_later_version_is_a_failure_of_the_infrastructure() -> None:
    assert advance(Cursor(), ended("meteorite"), Policy(infra=1)).cursor.spent == Spent(infra=1)
    assert advance(Cursor(), ended("meteorite"), Policy(infra=0)).outcome is not None


def test_how_a_job_ended_does_not_depend_on_who_asks_or_when() -> None:
    """A cancel, or the passing of the total limit, after the end changes nothing that was told before."""
    for seen in (ended(wire.INFRASTRUCTURE), ended(wire.USER)):
        early = advance(Cursor(), seen, Policy(user=0, infra=1))
        late = advance(Cursor(), seen._replace(cancel=CANCEL), Policy(user=0, infra=1, total=1.0, created=0.0))
        assert (early.outcome, early.cursor, early.actions) == (late.outcome, late.cursor, late.actions)


def test_who_took_the_hosts_away_is_told_beside_what_they_themselves_know() -> None:
    seen = ended(wire.PREEMPTION)._replace(observation=Observation(QUEUED, "Kueue gave its chips to another job"))
    (change,) = advance(Cursor(), seen, Policy(preemption=1)).changes
    assert "; Kueue gave its chips to another job); attempt 2 follows" in change.message
    seen = ended(wire.INFRASTRUCTURE)._replace(observation=Observation(GONE, "a node"))
    (change,) = advance(Cursor(), seen, Policy(infra=1)).changes
    assert "a node" not in change.message


def test_a_cancelled_job_is_not_said_to_resume() -> None:
    assert [change.phase for change in advance(Cursor(), ended(wire.PREEMPTION), Policy()).changes] == ["resuming"]
    assert advance(Cursor(), ended(wire.PREEMPTION, cancel=CANCEL), Policy()).changes == ()


def test_the_last_lines_are_waited_for() -> None:
    """A verdict is acted upon when every host has said that it is done, when none is left, or after a while."""
    two = Policy(hosts=2)
    verdict = COMMITTED
    assert not settled(glimpse(PRESENT, BEAT, BEAT, verdict=verdict, done=1, verdict_age=44.0), two)
    assert settled(glimpse(PRESENT, BEAT, BEAT, verdict=verdict, done=2), two)
    assert settled(glimpse(PRESENT, BEAT, BEAT, verdict=verdict, done=1, verdict_age=46.0), two)
    assert settled(glimpse(ABSENT, BEAT, BEAT, verdict=verdict), two)
    assert settled(glimpse(GONE, BEAT, BEAT, verdict=verdict), two)
    assert settled(Glimpse(NOW, verdict=verdict), two)
    saving = wire.Verdict(wire.ABORTED, "host", 0.0, cause=wire.PREEMPTION, host=1, grace=90.0)
    assert not settled(glimpse(PRESENT, BEAT, BEAT, verdict=saving, done=1, verdict_age=109.0), two)
    assert settled(glimpse(PRESENT, BEAT, BEAT, verdict=saving, done=1, verdict_age=111.0), two)
    assert advance(Cursor(), glimpse(PRESENT, BEAT, verdict=verdict), Policy()).actions == ()


def test_the_last_lines_of_hosts_that_were_given_up_for_their_silence_are_not_waited_for() -> None:
    """Nor is the slice kept for them. Of one that still speaks they are."""
    policy = Policy(hosts=2, silence=90.0)
    closed = wire.Verdict(wire.CLOSED, "client", 0.0, cause=wire.INFRASTRUCTURE)
    silent = glimpse(PRESENT, BEAT, BEAT, ages=(91.0, 95.0), verdict=closed, verdict_age=1.0)
    assert settled(silent, policy)
    assert advance(Cursor(), silent, policy).actions == (Release(1),)
    assert not settled(silent._replace(beat_ages=(2.0, 95.0)), policy)
    assert not settled(silent, policy._replace(silence=0.0))


def test_hosts_that_stood_still_and_have_just_ended_are_waited_for_like_others() -> None:
    """Their last beats are from before, and their verdict is not."""
    policy = Policy(hosts=1, silence=90.0)
    committed = wire.Verdict(wire.COMMITTED, "host", 0.0)
    woken = glimpse(PRESENT, BEAT, ages=(7200.0,), verdict=committed, verdict_age=1.0)
    assert not settled(woken, policy)
    assert settled(woken._replace(verdict_age=46.0), policy)


@pytest.mark.parametrize("symptom", [": ".join(words) for words in attempt_rules.DRIVER])
def test_a_program_that_dies_of_broken_hosts_is_not_the_users_failure(symptom: str) -> None:
    for failure in (wire.Failure(message=f"RuntimeError: {symptom} (0)"), wire.Failure(log_tail=f"…\n{symptom}\n")):
        assert classify(wire.Verdict(wire.ABORTED, "", 0.0, cause=wire.USER, failure=failure)) == wire.INFRASTRUCTURE


def test_what_the_hosts_were_told_goes_before_what_their_log_shows() -> None:
    failure = wire.Failure(message=": ".join(attempt_rules.DRIVER[0]))
    for cause in (wire.PREEMPTION, wire.CANCELLED, wire.DEADLINE, wire.CONFIGURATION):
        assert classify(wire.Verdict(wire.ABORTED, "", 0.0, cause=cause, failure=failure)) == cause
    assert classify(wire.Verdict(wire.ABORTED, "", 0.0, cause=wire.USER, failure=wire.Failure("E", "x"))) == wire.USER


def test_every_cause_of_the_wire_has_its_rule() -> None:
    causes = (
        wire.USER, wire.CONFIGURATION, wire.INFRASTRUCTURE, wire.PREEMPTION, wire.CANCELLED, wire.DEADLINE, wire.STALL,
        wire.STOCKOUT, wire.QUOTA, wire.INTERNAL, wire.DAMAGED,
    )  # fmt: skip
    assert set(lifecycle.CAUSES) == set(causes)


def test_a_cursor_survives_being_kept_as_json() -> None:
    cursor = Cursor(3, "running", ((1, 20), (0, 5)), Spent(0, 2, 1))
    assert Cursor.from_json(json.loads(json.dumps(cursor.to_json()))) == cursor


@pytest.mark.parametrize(
    ("seen", "status"),
    [
        (glimpse(QUEUED), JobStatus.PENDING),
        (glimpse(PRESENT, STARTING), JobStatus.PENDING),
        (glimpse(PRESENT, BEAT), JobStatus.RUNNING),
        (glimpse(PRESENT, wire.Beat(wire.ENDING)), JobStatus.RUNNING),
        (glimpse(PRESENT, BEAT, verdict=COMMITTED), JobStatus.RUNNING),
    ],
)
def test_the_status_that_people_see(seen: Glimpse, status: JobStatus) -> None:
    assert lifecycle.status(Cursor(), seen, None) is status


def test_a_job_that_has_ended_is_in_no_phase_that_it_had_before() -> None:
    running = Cursor(phase="running")
    assert advance(running, glimpse(ABSENT, BEAT, verdict=COMMITTED, done=1), Policy()).cursor.phase == "succeeded"
    assert advance(running, ended(wire.USER), Policy()).cursor.phase == "failed"
    assert advance(running, ended(wire.CANCELLED), Policy()).cursor.phase == "cancelled"


def test_an_attempt_that_was_never_promised_a_place_is_not_counted() -> None:
    """So status says as many as the intents that the cost is reckoned from; one that follows a refusal is the same."""
    closed = wire.Verdict(wire.CLOSED, "client", 0.0, cause=wire.DEADLINE, reason="spent", unplaced=True)
    retried = advance(Cursor(), ended(wire.INFRASTRUCTURE), Policy(infra=3)).cursor
    outcome = advance(retried, Glimpse(NOW, verdict=closed), Policy(infra=3)).outcome
    assert outcome is not None
    assert (outcome.attempt, outcome.attempts) == (2, 1)
    refused = advance(Cursor(), ended(wire.STOCKOUT), Policy()).cursor
    assert lifecycle.shown(refused, Glimpse(NOW)) == 1


def test_an_attempt_that_ended_without_a_place_is_none_whatever_is_written_after_its_verdict() -> None:
    following = Cursor(2, "resuming")
    early = wire.Verdict(wire.CLOSED, "somebody", NOW, cause=wire.CANCELLED, unplaced=True)
    late = glimpse(ABSENT, verdict=early)  # with an intent, by a submitter that had stood still
    assert lifecycle.shown(following, Glimpse(NOW, verdict=early)) == lifecycle.shown(following, late) == 1
    assert lifecycle.shown(following, glimpse(ABSENT, verdict=early._replace(unplaced=False))) == 2
    assert wire.Verdict.decode(early.encode()).unplaced


@pytest.mark.parametrize(
    ("attempt", "moved", "unplaced", "number"),
    [
        (1, 0, False, 1),
        (1, 0, True, 1),  # a job has had one at least
        (2, 0, False, 2),
        (2, 0, True, 1),
        (2, 1, False, 1),  # the first got no hosts
        (9, 6, False, 3),
        (9, 6, True, 2),
        (9, 8, True, 1),
    ],
)
def test_attempts_are_counted_without_those_that_never_had_hosts(
    attempt: int, moved: int, unplaced: bool, number: int
) -> None:
    assert lifecycle.count(attempt, Spent(moved=moved), unplaced=unplaced) == number
    assert lifecycle.shown(Cursor(attempt, spent=Spent(moved=moved))) == lifecycle.count(attempt, Spent(moved=moved))


def test_hosts_that_are_charged_for_and_say_nothing_are_told_of_and_end_at_the_limit_of_cost() -> None:
    def seen(held: float, *beats: wire.Beat | None, state: str = PRESENT, **fields: Any) -> Glimpse:
        found = glimpse(state, *beats, **fields)
        assert found.intent is not None
        since = NOW - held
        return found._replace(
            since=since, shown=NOW - 1.0, charged=since, intent=found.intent._replace(affordable=400.0)
        )

    policy = Policy(silence=lifecycle.SILENT_BEATS, affordable=1000.0, usd=5.0)
    assert lifecycle.unheard(seen(100.0), Policy()) == lifecycle.unheard(seen(500.0, STARTING), Policy()) == ""
    (change,) = advance(Cursor(), seen(130.0), policy).changes
    assert change.phase == "silent"
    assert "READY and charged for, for up to 130 s now" in change.message
    assert "has started its agent. It is given up" in change.message
    told = seen(130.0)
    told = told._replace(observation=told.observation._replace(hint="its console"))
    assert "has started its agent: its console may say why. It is given up" in lifecycle.unheard(told, Policy())
    told = told._replace(observation=told.observation._replace(hint="look at {name} in {zone}"))
    assert told.intent is not None
    told = told._replace(intent=told.intent._replace(placement={"name": "k-1", "zone": "us-east5-b"}))
    assert ": look at k-1 in us-east5-b may say why" in lifecycle.unheard(told, Policy())
    assert actions(seen(390.0), policy) == actions(seen(410.0, BEAT), policy) == ()
    (close,) = actions(seen(410.0), policy)
    assert isinstance(close, Close)
    assert close.cause == wire.DEADLINE
    assert "none of their hosts has started: its cost limit of $5.00" in close.reason
    (close,) = actions(seen(10.0, state=ABSENT), policy)
    assert isinstance(close, Close)
    assert close.reason.startswith("the slice  was seen READY in")


@pytest.mark.parametrize(
    ("held", "beats", "limits", "said"),
    [
        (901.0, (STARTING, None, STARTING, None), {}, "hosts 1, 3 did not start within 900 s"),
        (901.0, (STARTING, None, STARTING, STARTING), {}, "host 1 did not start within 900 s"),
        (61.0, (None, STARTING, STARTING, STARTING), {"provision": 60.0}, "host 0 did not start within 60 s"),
        (899.0, (STARTING, None, STARTING, None), {}, ""),
        (9000.0, (BEAT, None, BEAT, BEAT), {}, ""),  # it could not be read now: without that host no program begins
        (9000.0, (STARTING, None, STARTING, None), {"silence": 0.0}, ""),
    ],
)
def test_hosts_that_never_speak_on_machines_that_are_there_end_the_attempt_though_others_wait_for_them(
    held: float, beats: tuple[wire.Beat | None, ...], limits: dict[str, float], said: str
) -> None:
    policy = Policy(**{"hosts": 4, "silence": lifecycle.SILENT_BEATS, **limits})  # type: ignore[arg-type]
    seen = glimpse(PRESENT, *beats, ages=(1.0,) * 4)._replace(since=NOW - held, charged=NOW - held)
    silent = tuple(host for host, beat in enumerate(beats) if beat is None)
    close = Close(wire.INFRASTRUCTURE, said, host=silent[0], unheard=silent)
    assert actions(seen, policy) == ((close,) if said else ())
    assert actions(seen._replace(since=0.0), policy) == ()  # it was never seen that all machines are there


def test_hosts_that_are_pods_are_told_as_pods_when_they_are_gone_or_silent() -> None:
    def glimpse_of(state: str, *beats: wire.Beat | None) -> Glimpse:
        seen = glimpse(state, *(beats or (None,)), ages=(0.0,))
        assert seen.intent is not None
        intent = seen.intent._replace(placement={**seen.intent.placement, "name": "kinetic-x", "zone": "east/team"})
        observed = seen.observation._replace(hint="ask the cluster's audit log")
        return seen._replace(intent=intent, observation=observed, since=NOW - 9.0, shown=NOW - 7.0, charged=NOW - 200.0)

    for backend in ("gke", "kubernetes"):
        policy = Policy(words=TRAITS[backend].words)
        (close,) = actions(glimpse_of(ABSENT), policy)
        assert isinstance(close, Close)
        assert close.reason == (
            "the JobSet kinetic-x was seen running in east/team from 02:46:31 to 02:46:33, and was no longer shown at "
            "02:46:40 (UTC); ask the cluster's audit log"
        )
        told = lifecycle.unheard(glimpse_of(PRESENT), policy)
        assert told.startswith("the JobSet is running and charged for, for up to 200 s now")


@pytest.mark.parametrize(
    ("shown", "age", "said"),
    [
        (NOW - 7.0, None, "; all its hosts were last seen at 02:46:33, and no longer at 02:46:40 (UTC)"),
        (NOW - 7.0, 2.0, "; all its hosts were last seen at 02:46:33, and no longer at 02:46:40 (UTC)"),
        (0.0, 2.0, "; one of its hosts last spoke at 02:46:38 (UTC)"),
        (0.0, None, ""),
    ],
    ids=["seen", "seen and heard", "heard", "neither"],
)
@pytest.mark.parametrize(("state", "why"), [(GONE, "PREEMPTED in a"), (WOUNDED, "node n-1 is TERMINATED"), (GONE, "")])
def test_of_hosts_that_are_gone_it_is_said_when_they_were_last_seen_or_heard(
    state: str, why: str, shown: float, age: float | None, said: str
) -> None:
    beats, ages = ((None,), (0.0,)) if age is None else ((BEAT,), (age,))
    seen = glimpse(state, *beats, ages=ages)._replace(observation=Observation(state, why), since=shown, shown=shown)
    (close,) = actions(seen)
    assert isinstance(close, Close)
    if why or not shown:
        assert close.reason == (why or "the hosts are gone without a word") + said
    else:
        assert "was seen READY" in close.reason


def test_a_host_that_waits_for_room_on_its_own_disk_is_named_while_it_may_still_do_so() -> None:
    full, told = BEAT._replace(full="/home/a"), "host 1 waits for room on its disk at /home/a"
    seen = glimpse(PRESENT, BEAT, full)
    step = advance(Cursor(1, "running"), seen, Policy(hosts=2))
    assert step.changes == (Change("waiting", told, 1),)
    assert advance(step.cursor, seen, Policy(hosts=2)) == Step(step.cursor)
    again = advance(step.cursor, glimpse(PRESENT, BEAT, BEAT), Policy(hosts=2))
    assert [change.phase for change in again.changes] == ["running"]
    by_backend = seen._replace(observation=seen.observation._replace(waits="the store's"))
    assert lifecycle.waits(by_backend) == "the store's"
    over = wire.Verdict(wire.ABORTED, "guard", 0.0)
    for past in (
        glimpse(GONE, BEAT, full),
        glimpse(PRESENT, BEAT, full, ages=(0.0, 100.0)),
        seen._replace(verdict=over),
    ):
        assert lifecycle.waits(past) == ""


def test_beats_of_other_versions_say_nothing_of_room_and_lack_nothing() -> None:
    before = set(wire.Beat._fields) - {"full"}
    assert set(wire.decode(BEAT.encode())) - {"wire", "release"} <= before
    assert wire.Beat.decode(BEAT.encode()).full is None
    said = wire.decode(BEAT._replace(full="/home/a").encode())
    assert wire.BEAT.known(said, before) == wire.BEAT.known(wire.decode(BEAT.encode()), before)


# ---- a choice ------------------------------------------------------------------------------------------------


CHOICES = lifecycle.Policies.joined(
    [Policy(hosts=4, crew="4 hosts"), Policy(hosts=1, crew="1 host", provision=5.0)],
    ("v6e-16 spot", "v5e-4 on-demand"),
    NOW - 100.0,
)


def of_choice(choice: int, seen: Glimpse) -> Glimpse:
    assert seen.intent is not None
    placement = {**seen.intent.placement, "choice": choice, "zone": "us-east5-b"}
    return seen._replace(intent=seen.intent._replace(placement=placement))


def test_an_attempt_has_the_hosts_and_the_limits_of_its_own_candidate() -> None:
    seen = glimpse(PRESENT, BEAT)
    assert advance(Cursor(), of_choice(1, seen), CHOICES).changes[0].message == "1 host"
    assert advance(Cursor(), of_choice(0, seen), CHOICES).changes[0].message == "1 of 4 hosts have started"
    verdict = wire.Verdict(wire.COMMITTED, "host", 0.0)
    over = glimpse(PRESENT, BEAT, verdict=verdict, done=1)
    assert lifecycle.foreseen(Cursor(), of_choice(1, over), CHOICES) is not None
    assert advance(Cursor(), of_choice(1, over), CHOICES).outcome is not None
    assert advance(Cursor(), of_choice(0, over), CHOICES).outcome is None  # three hosts may still write
    waited = of_choice(1, glimpse(QUEUED))
    (action,) = advance(Cursor(), waited, CHOICES).actions
    assert isinstance(action, Close)
    assert advance(Cursor(), of_choice(0, glimpse(QUEUED)), CHOICES).actions == ()
    assert (CHOICES.of(waited.intent).created, CHOICES.most) == (NOW - 100.0, 4)


def test_while_an_attempt_waits_its_hardware_is_told_and_what_else_there_is() -> None:
    seen = of_choice(1, glimpse(QUEUED))
    (change,) = advance(Cursor(), seen, CHOICES).changes
    assert change.message == "v5e-4 on-demand in us-east5-b, else v6e-16 spot"
    verdict = wire.Verdict(wire.CLOSED, "me", 0.0, cause=wire.STOCKOUT, reason="us-east5-b: none is left")
    refused = of_choice(0, glimpse(ABSENT, verdict=verdict))
    (change,) = advance(Cursor(), refused, CHOICES).changes
    assert change.message == "v6e-16 spot in us-east5-b: stockout: us-east5-b: none is left"
    assert Policy().named(seen.intent, "why") == "why"


# ---- on a kept slice -------------------------------------------------------------------------------------------

WATCHED = Policy(silence=lifecycle.SILENT_BEATS)


def claimed(state: str, *beats: wire.Beat | None, there: float = 0.0, **fields: Any) -> Glimpse:
    """An attempt that has claimed a kept slice, whose hosts have been seen for so many seconds."""
    seen = glimpse(state, *beats, created=NOW - 1000.0, since=NOW - there, charged=NOW - there, **fields)
    assert seen.intent is not None
    placement = {"name": "warm", "lease": {"slice": "warm", "epoch": 1}}
    return seen._replace(intent=seen.intent._replace(placement=placement))


@pytest.mark.parametrize(
    ("policy", "told", "takes"),
    [
        (WATCHED._replace(keeps=True), "{}", "takes kinetic-1 ({})"),
        (
            lifecycle.Policies.joined(
                [Policy(keeps=True), Policy(keeps=True)], ("v5e-8 spot", "v5e-4 spot"), NOW - 99.0
            ),
            "v5e-8 spot in us-east5-b ({}), else v5e-4 spot",
            "v5e-8 spot in us-east5-b ({}), else v5e-4 spot",
        ),
    ],
)
def test_while_it_waits_it_is_told_that_it_takes_a_warm_slice_or_that_none_fits(
    policy: Policy, told: str, takes: str
) -> None:
    fresh = glimpse(QUEUED)
    assert fresh.intent is not None
    placement = {**fresh.intent.placement, "zone": "us-east5-b"}
    fresh = fresh._replace(intent=fresh.intent._replace(placement=placement))
    assert fresh.intent is not None
    (change,) = advance(Cursor(), fresh, policy).changes
    assert change.message == told.format("no warm slice fits")
    why = "it is warm: its run has left it with job-1 3s ago"
    leased = {**placement, "why": why, "lease": {"slice": "kinetic-1", "epoch": 1}}
    (change,) = advance(Cursor(), fresh._replace(intent=fresh.intent._replace(placement=leased)), policy).changes
    assert change.message == takes.format(why)
    assert "warm" not in advance(Cursor(), fresh, Policy()).changes[0].message, "a job without keep takes none"
    assert policy.named(fresh.intent, "PROVISIONING", waits=False).endswith("PROVISIONING")


def test_hosts_of_a_kept_slice_that_do_not_follow_its_claim_are_given_up_soon_and_not_counted() -> None:
    assert actions(claimed(PRESENT, there=lifecycle.SILENT_CLAIM - 1.0), WATCHED) == ()
    late = claimed(PRESENT, there=lifecycle.SILENT_CLAIM + 1.0)
    reason = "no host of this warm slice has followed its claim within 91 s"
    assert actions(late, WATCHED) == (Close(wire.INTERNAL, reason, unheard=(0,)),)
    assert lifecycle.rule_of(wire.INTERNAL)[0] == lifecycle.FREE
    assert actions(glimpse(PRESENT, created=NOW - 1000.0, since=NOW - 91.0), WATCHED) == (), "fresh ones boot"


def test_those_of_which_some_have_followed_it_are_given_up_as_soon_and_not_counted_either() -> None:
    policy = WATCHED._replace(hosts=2)
    assert actions(claimed(PRESENT, STARTING, None, there=lifecycle.SILENT_CLAIM - 1.0), policy) == ()
    (close,) = actions(claimed(PRESENT, STARTING, None, there=lifecycle.SILENT_CLAIM + 1.0), policy)
    assert isinstance(close, Close)
    assert (close.cause, close.host, close.unheard) == (wire.INTERNAL, 1, (1,))


@pytest.mark.parametrize("state", [GONE, WOUNDED])
def test_a_kept_slice_that_is_gone_before_a_host_has_spoken_is_no_failure(state: str) -> None:
    (close,) = actions(claimed(state), WATCHED)
    assert isinstance(close, Close) and close.cause == wire.INTERNAL
    (close,) = actions(claimed(state, BEAT), WATCHED)
    assert isinstance(close, Close) and close.cause == wire.INFRASTRUCTURE


def race(*there: int, since: float, lost: tuple[tuple[int, str, str], ...] = (), state: str = PRESENT) -> Glimpse:
    """Two places of an undecided race, of which some have had their hosts since then."""
    placement = {"zone": "a", "rival": 0, "rivals": [{"zone": "b", "rival": 1}]}
    seen = Observation(state, there=there, lost=lost)
    places = tuple((number, since) for number in there)
    return Glimpse(
        NOW, Intent(1, "boot", placement, 0.0, NOW - 5000.0), observation=seen, beats=(None,), beat_ages=(0.0,),
        since=since, charged=since, places=places,
    )  # fmt: skip


def test_a_place_of_a_race_that_is_silent_is_given_up_alone_and_the_race_is_not_closed_for_it() -> None:
    silent = race(0, since=NOW - lifecycle.SILENT_START - 1.0)
    assert lifecycle.given_up(silent, Policy(silence=90.0)) == {
        0: (wire.INFRASTRUCTURE, "the hosts have been there for 901 s, and none of them has started its agent")
    }
    assert not [one for one in advance(Cursor(), silent, Policy(silence=90.0)).actions if isinstance(one, Close)]
    patient = race(0, since=NOW - lifecycle.SILENT_START + 1.0)
    assert lifecycle.given_up(patient, Policy(silence=90.0)) == {}


def test_no_place_of_a_race_is_given_up_for_its_silence_while_hosts_of_it_speak() -> None:
    """They have won by a record that this process does not believe, as that of an agent that puts no seal on it."""
    speaks = race(0, 1, since=NOW - lifecycle.SILENT_START - 1.0)._replace(beats=(BEAT,))
    assert lifecycle.given_up(speaks, Policy(silence=90.0)) == {}


def test_what_has_failed_of_a_race_is_given_up_while_another_place_may_win() -> None:
    lost = ((1, wire.STOCKOUT, "none"),)
    assert lifecycle.given_up(race(since=0.0, lost=lost, state=QUEUED), Policy(silence=90.0)) == {
        1: (wire.STOCKOUT, "none")
    }
    assert lifecycle.given_up(race(since=0.0, lost=lost, state=GONE), Policy(silence=90.0)) == {}  # it is closed
