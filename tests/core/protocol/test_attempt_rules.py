"""The next action of a host, rule by rule, and the precedence of rules."""

from __future__ import annotations

from typing import Any

import pytest

from kinetic_orchestration.protocol import attempt_rules, wire
from kinetic_orchestration.protocol.attempt_rules import (
    Abort,
    Ask,
    Commit,
    Company,
    Exit,
    Leave,
    Situation,
    Start,
    Stop,
    Wait,
    decide,
)

pytestmark = pytest.mark.fast

FAILED = Exit(1, wire.USER, "boom")
ENDED = Exit(0)
ABORTED = wire.Verdict(wire.ABORTED, "host", 0.0, cause=wire.USER, host=1)


def seen(index: int = 0, hosts: int = 2, **fields: Any) -> Situation:
    """A host in the middle of its run, unless told otherwise."""
    return Situation(index, hosts, **{"running": True, "started": frozenset(range(hosts)), **fields})


def abort(fields: Situation) -> Abort:
    move = decide(fields)
    assert isinstance(move, Abort)
    return move


# ---- the barrier ---------------------------------------------------------------------------------------------


def test_a_program_starts_when_every_host_is_there_and_this_one_is_ready() -> None:
    waiting = seen(running=False, prepared=True)
    assert decide(waiting) == Start()
    assert decide(waiting._replace(prepared=False)) == Wait()
    assert decide(waiting._replace(started=frozenset({0}))) == Wait()


@pytest.mark.parametrize(
    ("started", "said", "host"),
    [
        ({0, 2}, "host 1 did not start", 1),
        ({0}, "hosts 1, 2 did not start", 1),
        ({0, 1, 2}, "this host was not ready", 0),
    ],
)
def test_who_is_missing_at_the_barrier_is_named(started: set[int], said: str, host: int) -> None:
    late = seen(hosts=3, running=False, started=frozenset(started), barrier_age=601.0)
    move = abort(late)
    assert (move.cause, move.host) == (wire.INFRASTRUCTURE, host)
    assert said in move.reason
    assert decide(late._replace(barrier_age=599.0)) == Wait()


def test_where_whoever_follows_can_read_of_a_boot_hosts_leave_it_a_while_to_say_who_is_missing() -> None:
    late = seen(hosts=2, running=False, started=frozenset({0}), barrier_age=629.0, company=Company(is_explained=True))
    assert decide(late) == Wait()
    assert abort(late._replace(barrier_age=631.0)).reason == "host 1 did not start within 600 s"
    assert abort(late._replace(started=frozenset({0, 1}), prepared=False)).reason.startswith("this host was not ready")


def test_a_host_that_could_not_be_prepared_ends_the_attempt_for_its_own_cause() -> None:
    unready = seen(running=False, exit=Exit(1, wire.CONFIGURATION, "no such package"))
    assert decide(unready) == Abort(wire.CONFIGURATION, "no such package", 0)


def test_a_job_can_be_cancelled_before_its_program_has_started() -> None:
    assert decide(seen(running=False, cancelled="enough")) == Abort(wire.CANCELLED, "enough", 0)


# ---- the end -------------------------------------------------------------------------------------------------


def test_host_0_commits_once_every_host_has_ended_well() -> None:
    done = seen(exit=ENDED, exits=((0, 0, 5.0), (1, 0, 0.1)))
    assert decide(done) == Commit()
    assert decide(done._replace(index=1)) == Wait()
    assert decide(done._replace(exits=((0, 0, 5.0),))) == Wait()
    assert decide(done._replace(exit=None, exits=((1, 0, 5.0),))) == Wait()


@pytest.mark.parametrize("late", [{"cancelled": "enough"}, {"preempted": "notice"}, {"run_limit": 1.0, "run_age": 2.0}])
def test_a_finished_job_is_committed_whatever_comes_at_the_last_moment(late: dict[str, Any]) -> None:
    assert decide(seen(exit=ENDED, exits=((0, 0, 0.0), (1, 0, 0.0)), **late)) == Commit()


def test_a_verdict_goes_before_everything_else() -> None:
    done = seen(exit=ENDED, exits=((0, 0, 0.0), (1, 0, 0.0)))
    for fields in (done, seen(exit=FAILED), seen(cancelled="x"), seen(running=False, prepared=True)):
        assert isinstance(decide(fields._replace(verdict=ABORTED)), Stop)


def test_a_failing_program_ends_the_attempt_with_its_own_words() -> None:
    assert decide(seen(index=1, exit=FAILED, exits=((1, 1, 0.0),))) == Abort(wire.USER, "boom", 1)


def test_the_cause_shown_is_the_host_that_failed_and_not_the_one_that_lost_it() -> None:
    """ "Connection reset by peer" waits for a moment, so that whoever failed first can say so first."""
    echo = seen(exit=FAILED, echo=True, exits=((0, 1, 1.9),))
    assert decide(echo) == Wait()
    assert decide(echo._replace(exits=((0, 1, 2.1),))) == Abort(wire.USER, "boom", 0)
    assert attempt_rules.is_echo("ConnectionResetError: [Errno 104] Connection reset by peer")
    assert attempt_rules.is_echo(
        "enforce fail at external/gloo/gloo/transport/tcp/pair.cc:459] 384 vs 4. Received data"
    )
    assert not attempt_rules.is_echo("ValueError: shapes do not match")


def test_a_host_that_failed_and_could_not_say_so_is_spoken_for() -> None:
    left = seen(exits=((1, 3, 21.0),))
    assert decide(left) == Abort(wire.USER, "host 1 ended with exit code 3", 1)
    assert decide(left._replace(exits=((1, 3, 19.0),))) == Wait()


def test_a_host_that_fell_silent_is_lost_also_while_the_others_only_wait_for_it() -> None:
    lost = Abort(wire.INFRASTRUCTURE, "host 0 has given no sign of life for 91 s", 0)
    assert decide(seen(index=1, quiet=((0, 91.0),))) == lost
    assert decide(seen(index=1, quiet=((0, 89.0),))) == Wait()
    everybody = ((0, 0, 100.0), (1, 0, 100.0))
    assert decide(seen(index=1, exit=ENDED, exits=everybody, quiet=((0, 91.0),))) == lost


def test_a_failure_that_looks_like_an_echo_is_that_of_a_host_which_is_silent_since() -> None:
    """Hosts that see each other through a store wait longer for the cause of an echo."""
    echo = Exit(1, wire.USER, "Connection reset by peer")
    waiting = seen(exit=echo, echo=True, echo_limit=12.0, exits=((0, 1, 11.0),), quiet=((1, 11.0),))
    assert decide(waiting) == Wait()
    lost = abort(waiting._replace(exits=((0, 1, 12.5),), quiet=((1, 12.5),)))
    assert (lost.cause, lost.host) == (wire.INFRASTRUCTURE, 1)
    assert "host 1 was lost, of which host 0 died: Connection reset by peer" in lost.reason
    alive = abort(waiting._replace(exits=((0, 1, 12.5),), quiet=((1, 2.0),)))
    assert (alive.cause, alive.host) == (wire.USER, 0)


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        ("open(/dev/vfio/0): Device or resource busy", True),
        ("Couldn't open iommu group /dev/vfio/3", True),
        ("RuntimeError: Failed to initialize TPU system", True),
        ("TPU initialization failed", True),
        ("RuntimeError: No accelerator found. Please run on a TPU or GPU.", True),
        ("INTERNAL: GRPC_ERROR: rpc failed: START_SESSION failed", True),
        ("Failed to initialize NVML: Driver/library version mismatch", True),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", True),
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", True),
        ("RuntimeError: CUDA error: no CUDA-capable device is detected", False),
        ("OSError: [Errno 16] Device or resource busy: '/mnt/disk'", False),
        ("ValueError: the learning rate is negative", False),
    ],
)
def test_what_a_driver_says_is_told_from_what_a_program_says(text: str, driver: bool) -> None:
    assert attempt_rules.is_driver(text) is driver


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        ("RuntimeError: CUDA error: no CUDA-capable device is detected", True),
        ("RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU", True),
        ("CUDA initialization: Error 802: system not yet initialized", True),
        ("failed call to cuInit: CUDA_ERROR_SYSTEM_NOT_READY: system not yet initialized", True),
        ("TPU initialization failed", True),
        ("RuntimeError: CUDA driver version is insufficient for CUDA runtime version", False),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", False),
    ],
)
def test_on_a_machine_with_gpus_a_driver_that_shows_none_is_the_machines_failure(text: str, driver: bool) -> None:
    """On others the program has asked for what there is not; and a CUDA that is newer than the driver stays so."""
    assert attempt_rules.is_driver(text, gpus=True) is driver


# ---- from outside --------------------------------------------------------------------------------------------


def test_a_cancel_is_obeyed() -> None:
    assert decide(seen(cancelled="enough")) == Abort(wire.CANCELLED, "enough", 0)


def test_a_preemption_goes_before_the_failure_that_it_causes() -> None:
    assert decide(seen(preempted="notice", exit=FAILED)) == Abort(wire.PREEMPTION, "notice", 0)


def test_a_machine_that_is_ended_after_its_deadline_was_not_preempted() -> None:
    """It deletes itself then, and a preemption would be followed by another attempt."""
    move = decide(seen(preempted="this host received SIGTERM", is_overdue=True, running=True))
    assert move == Abort(wire.DEADLINE, "the attempt's deadline passed (this host received SIGTERM)", 0)
    assert decide(seen(ended="this host received SIGTERM", is_overdue=True, running=True)) == move


def test_the_users_own_failure_goes_before_a_cancel_that_came_later() -> None:
    assert abort(seen(exit=FAILED, cancelled="enough")).cause == wire.USER


def test_an_attempt_ends_at_its_limit() -> None:
    move = abort(seen(run_limit=60.0, run_age=61.0))
    assert move.cause == wire.DEADLINE
    assert "60 s" in move.reason
    assert decide(seen(run_limit=60.0, run_age=59.0)) == Wait()
    assert decide(seen(run_limit=0.0, run_age=1e9)) == Wait()


def test_a_job_that_shows_no_progress_is_a_stall_and_one_that_has_ended_is_not() -> None:
    stalled = seen(stall_limit=30.0, silence=31.0)
    assert abort(stalled).cause == wire.STALL
    assert decide(stalled._replace(silence=29.0)) == Wait()
    assert decide(stalled._replace(stall_limit=0.0)) == Wait()
    assert decide(stalled._replace(exit=ENDED, exits=((0, 0, 31.0),))) == Wait()


def test_a_job_that_must_not_outlive_its_owner_does_not() -> None:
    assert abort(seen(owner_silence=31.0)).cause == wire.CANCELLED
    assert decide(seen(owner_silence=29.0)) == Wait()


# ---- how long a program may take to end ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "seconds"), [(wire.PREEMPTION, 8.0), (wire.CANCELLED, 25.0), (wire.DEADLINE, 25.0), (wire.STALL, 5.0)]
)
def test_the_time_to_save_depends_on_what_ended_the_attempt(cause: str, seconds: float) -> None:
    for index in (0, 1):
        assert attempt_rules.grace(wire.Verdict(wire.ABORTED, "", 0.0, cause=cause, host=0), index) == seconds


def test_a_notice_that_comes_long_ahead_gives_all_programs_the_time_that_it_leaves() -> None:
    told = seen(preempted="this VM is being preempted", lead=attempt_rules.SPOT_NOTICE)
    move = abort(told)
    assert (move.cause, move.grace) == (wire.PREEMPTION, attempt_rules.SPOT_NOTICE - attempt_rules.AFTER_SAVING)
    assert abort(told._replace(lead=20.0)).grace == abort(told._replace(lead=0.0)).grace == 0.0
    verdict = wire.Verdict(wire.ABORTED, "host", 0.0, cause=wire.PREEMPTION, host=0, grace=move.grace)
    assert [attempt_rules.grace(verdict, index) for index in (0, 1)] == [90.0, 90.0]
    assert attempt_rules.grace(verdict._replace(grace=1e6), 0) == 90.0  # whoever wrote that
    assert wire.Verdict.decode(verdict.encode()).grace == 90.0


def test_a_machine_that_is_taken_back_without_having_been_spot_leaves_as_much_time_to_save_and_counts_as_failed() -> (
    None
):
    move = abort(seen(preempted="Google takes the machine of this VM back", counts_as=wire.INFRASTRUCTURE))
    assert move == Abort(wire.INFRASTRUCTURE, "Google takes the machine of this VM back", 0, 8.0)
    verdict = wire.Verdict(wire.ABORTED, "host", 0.0, cause=move.cause, host=0, grace=move.grace)
    assert [attempt_rules.grace(verdict, index) for index in (0, 1)] == [8.0, 8.0]
    assert attempt_rules.told_cause(verdict) == wire.PREEMPTION  # else a program would not save
    assert attempt_rules.told_cause(verdict._replace(grace=0.0)) == wire.INFRASTRUCTURE
    assert attempt_rules.told_cause(None) == ""


def test_a_checkpoint_after_another_hosts_failure_would_hang_so_little_time_is_left_for_it() -> None:
    assert attempt_rules.grace(ABORTED, 0) == 3.0
    assert attempt_rules.grace(ABORTED, 1) == 0.0
    assert attempt_rules.grace(wire.Verdict(wire.COMMITTED, "", 0.0, host=0), 1) == 0.0


# ---- a notice that may be the consequence of another host's death -------------------------------------------------


def told(age: float, read: float | None = None, missing: tuple[int, ...] = (1,), **fields: Any) -> Situation:
    """A host of three that was told to end so long ago, which others can see."""
    company = Company(2, (), missing, age=age, read=age if read is None else read, is_shown=True)
    return seen(hosts=3, preempted="it received SIGTERM", company=company, **fields)


def test_a_host_that_is_told_to_end_waits_for_the_others_signs_of_life() -> None:
    assert decide(told(0.1)) == Ask()
    assert decide(told(attempt_rules.HEARD - 0.1)) == Ask()
    assert decide(told(attempt_rules.HEARD - 0.1, missing=())) == Abort(wire.PREEMPTION, "it received SIGTERM", 0)
    assert decide(told(0.1, running=False)) == Wait()  # there is no program yet that could end
    died = abort(told(attempt_rules.HEARD, running=False))
    assert (died.cause, died.host) == (wire.INFRASTRUCTURE, 1)


def test_before_programs_run_those_that_never_gave_a_sign_of_life_are_waited_for_as_a_follower_may_know_why() -> None:
    early = told(0.1, missing=())
    early = early._replace(company=early.company._replace(absent=(2,)))
    assert decide(early) == Abort(wire.PREEMPTION, "it received SIGTERM", 0)  # all have, or no program would run
    early = early._replace(running=False)
    assert decide(early) == Wait()
    late = early._replace(company=early.company._replace(age=attempt_rules.HEARD, read=attempt_rules.HEARD))
    reason = "it received SIGTERM, and host 2 had never given a sign of life"
    assert decide(late) == Abort(wire.PREEMPTION, reason, 0)
    unread = early._replace(company=early.company._replace(age=attempt_rules.UNREAD + 0.1))
    assert decide(unread) == Abort(wire.PREEMPTION, "it received SIGTERM", 0)


def test_the_program_is_asked_once_others_can_see_why_it_ends_or_the_store_has_had_its_time() -> None:
    hidden = told(0.1)
    hidden = hidden._replace(company=hidden.company._replace(is_shown=False))
    assert decide(hidden) == Wait()
    assert decide(hidden._replace(company=hidden.company._replace(age=attempt_rules.SHOWN + 0.1))) == Ask()


def test_a_host_that_shows_none_has_died_and_the_others_were_not_taken_away() -> None:
    move = abort(told(attempt_rules.UNREAD + 1.0, read=attempt_rules.HEARD, missing=(1, 2)))
    assert (move.cause, move.host) == (wire.INFRASTRUCTURE, 1)
    assert "host 1 died without a word" in move.reason
    assert "it received SIGTERM" in move.reason


def test_beats_that_nobody_could_read_say_nothing() -> None:
    assert decide(told(attempt_rules.UNREAD, read=2.0)) == Ask()
    assert abort(told(attempt_rules.UNREAD + 0.1, read=2.0)).cause == wire.PREEMPTION
    assert attempt_rules.UNREAD < 15.0  # what a spot pod has


TOLD = Company(1, (1,))


def test_a_program_is_asked_to_end_as_soon_as_another_host_was_told_and_does_not_start() -> None:
    assert decide(seen(company=TOLD)) == Ask()
    assert decide(seen(company=TOLD, running=False, prepared=True)) == Wait()
    assert abort(seen(company=TOLD, running=False, barrier_age=601.0)).cause == wire.INFRASTRUCTURE
    assert abort(seen(company=TOLD, quiet=((1, attempt_rules.LOST + 1.0),), hosts=2)).cause == wire.PREEMPTION
    assert decide(seen(company=TOLD, cancelled="enough")) == Abort(wire.CANCELLED, "enough", 0)


def test_a_host_that_was_told_and_is_silent_was_taken_and_another_that_is_silent_is_lost() -> None:
    assert decide(seen(company=TOLD, quiet=((1, attempt_rules.FORSAKEN - 1.0),))) == Ask()
    move = abort(seen(company=TOLD, quiet=((1, attempt_rules.FORSAKEN + 1.0),)))
    assert (move.cause, move.host) == (wire.PREEMPTION, 1)
    lost = abort(seen(hosts=3, company=TOLD, quiet=((1, 1.0), (2, attempt_rules.LOST + 1.0))))
    assert (lost.cause, lost.host) == (wire.INFRASTRUCTURE, 2)


def test_a_failure_is_no_hosts_own_while_another_may_have_been_told_to_end() -> None:
    failed = seen(exit=FAILED, exits=((0, 1, 1.0),))
    assert decide(failed) == Abort(wire.USER, "boom", 0)
    assert decide(failed._replace(company=TOLD)) == Ask()
    unread = Company(1, unread=1.5)  # the others' beats are older than the failure
    assert decide(failed._replace(company=unread)) == Wait()
    assert decide(failed._replace(company=unread._replace(unread=0.5))) == Abort(wire.USER, "boom", 0)
    long_ago = failed._replace(company=unread._replace(unread=60.0), exits=((0, 1, attempt_rules.ECHO + 1.0),))
    assert decide(long_ago) == Abort(wire.USER, "boom", 0)


# ---- an end whose cause only the operations of a cloud tell -------------------------------------------------------


def test_a_host_that_is_ended_without_a_notice_lets_its_program_save_and_leaves_the_verdict_to_who_knows_why() -> None:
    ended = seen(ended="it received SIGTERM")
    assert decide(ended) == Ask()
    assert decide(ended._replace(is_out=True)) == Leave()
    assert decide(ended._replace(exit=FAILED, exits=((0, 1, 5.0),), is_out=True)) == Leave()
    assert decide(ended._replace(cancelled="enough")) == Abort(wire.CANCELLED, "enough", 0)


def test_a_notice_that_comes_late_is_one() -> None:
    late = seen(ended="it received SIGTERM", preempted="this VM is being preempted")
    assert decide(late) == Abort(wire.PREEMPTION, "this VM is being preempted", 0)


def test_the_others_end_with_a_host_that_was_ended_without_a_notice_and_leave_the_verdict_open_as_well() -> None:
    beside = seen(hosts=2, company=Company(told=(1,), is_explained=True, age=1.0), quiet=((1, 1.0),))
    assert decide(beside) == Ask()
    assert decide(beside._replace(exit=FAILED, exits=((0, 1, 1.0),))) == Ask()
    assert decide(beside._replace(running=False, prepared=True)) == Wait()
    late = beside._replace(company=beside.company._replace(age=attempt_rules.FORSAKEN + 0.1))
    assert decide(late) == Leave()
    assert decide(late._replace(running=False)) == Leave()
