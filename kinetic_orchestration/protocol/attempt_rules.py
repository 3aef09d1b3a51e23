"""The next action of a host: pure, so that the simulation drives the very rules that hosts run.

Knows no files, no processes and no clock; ages are passed in as numbers.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.system.processes import signal_name

# Seconds between the request to end and SIGKILL, by what ended the attempt.
GRACE = {
    wire.PREEMPTION: 8.0,
    wire.CANCELLED: 25.0,
    wire.DEADLINE: 25.0,
    wire.STALL: 5.0,
}
SIBLING_GRACE = 3.0
# Seconds between the notice to a spot VM of Compute Engine and its end (preemptionNoticeDuration): requests ask for it,
# and the time that a program gets to save follows from it.
SPOT_NOTICE = 120.0
AFTER_SAVING = 30.0  # of these, for what follows the program: its last lines, and requests of a store that is slow

OWNER_BEAT = 5.0
OWNER_PATIENCE = 30.0

FAREWELL = 20.0  # a host that ended badly and wrote no verdict within this time is spoken for by another
DESERTED = 3600.0  # a silence this long, once finished hosts wait for the others, counts as hung
LOST = 90.0  # a host whose heartbeat has not changed for this long counts as dead

# Messages of a program that lost another host, and the exits when all processes of a machine are told to end:
# for a moment, such a failure counts as the echo of another that has not been reported yet.
ECHO = 2.0
SILENT = 8.0
ECHOES = (
    "onnection reset", "onnection refused", "onnection closed", "roken pipe", "ocket closed", "onnection aborted",
    "heartbeat timeout", "coordination service", "distributed service", "UNAVAILABLE", "DEADLINE_EXCEEDED",
    "gloo/transport/",
)  # fmt: skip

# Where a cluster ends all hosts of an attempt once one has died, the others are told as if they were taken away.
HEARD = 8.0  # seconds after the notice within which every other host that lives shows a new beat
SPARE = 3.0  # of these, for requests: hosts that beat less often, as many together do, are not waited for
UNREAD = 12.0  # after which a host whose store is silent no longer waits: a spot pod has 15
SHOWN = 1.0  # after which the program is asked to end although the store has not taken the beat that says why
FORSAKEN = 20.0  # a host that was told and is silent for so long since was taken before it could say so; where ends
# are explained, the others follow one that was told so long ago

WITNESS = 30.0  # seconds after the limit of the barrier that whoever follows the job has to close it with what the
# platform keeps of a boot, where it keeps that: no host can read it of another

UNREPORTED = 74  # sysexits.h: EX_IOERR. `child` uses it if the function's outcome could not be written

# Messages of a program when the driver of its chips fails: the machine's failure, not the program's.
DRIVER = (
    ("/dev/vfio", "Device or resource busy"), ("/dev/accel", "Device or resource busy"), ("Couldn't open iommu group",),
    ("Failed to initialize TPU system",), ("TPU initialization failed",), ("No accelerator found",),
    ("GRPC_ERROR", "START_SESSION failed"),
    ("NVIDIA-SMI has failed",), ("Driver/library version mismatch",), ("uncorrectable ECC error",),
    ("fallen off the bus",), ("GPU is lost",),
)  # fmt: skip
# On a machine that was made with GPUs; elsewhere a program asked for what there is not. One whose CUDA is too new for
# the driver ("CUDA driver version is insufficient") would meet the same driver on new hosts.
DRIVER_OF_GPUS = (
    ("no CUDA-capable device is detected",), ("Found no NVIDIA driver on your system",), ("CUDA_ERROR_NO_DEVICE",),
    ("CUDA_ERROR_SYSTEM_NOT_READY",), ("system not yet initialized",), ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",),
)  # fmt: skip


class Exit(NamedTuple):
    """The end of a host's program."""

    code: int
    cause: str = wire.USER
    reason: str = ""


class Report(NamedTuple):
    """A program's report of its outcome."""

    kind: str
    code: int
    type: str = ""  # of an exception, as its traceback and its digest
    message: str | None = None
    traceback: str = ""
    digest: str = ""
    size: int = 0
    format: str = ""  # of a value: wire.PLAIN, or "" for a pickle
    cause: str = wire.USER
    unsent: bool = False  # a checkpoint is written, or files are sent, only at the program's end

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Report:
        return cls(**{name: fields[name] for name in cls._fields if name in fields})


class Company(NamedTuple):
    """The other hosts, where a notice to one may be the consequence of another's death."""

    hosts: int = 0  # their number; 0 where it never is
    told: tuple[int, ...] = ()  # those that had a notice
    missing: tuple[int, ...] = ()  # those that have shown no sign of life since the notice to this host
    absent: tuple[int, ...] = ()  # those that have never shown any
    age: float = 0.0  # of that notice; where ends are explained, of the first to any other
    read: float = 0.0  # that age when their beats were last read
    is_shown: bool = False  # they can see that this host had a notice
    unread: float = 0.0  # seconds since their beats were last read
    is_explained: bool = False  # who ends one of them is told by the operations of its cloud, and no host knows it


class Situation(NamedTuple):
    """All that a host knows when it decides."""

    index: int  # type: ignore[assignment]  # hides tuple's method, which is not used here
    hosts: int
    verdict: wire.Verdict | None = None
    cancelled: str = ""  # the reason, once it was requested
    preempted: str = ""  # the notice, once it came
    counts_as: str = wire.PREEMPTION  # the cause of what that notice tells of
    lead: float = 0.0  # seconds from that notice to the machine's end, where they are known
    ended: str = ""  # what ends this host without a notice, of which others know the cause
    is_out: bool = False  # its program has ended, or has had the time that it was given to
    is_overdue: bool = False  # the attempt's deadline had passed then, at which its machine deletes itself
    company: Company = Company()
    owner_silence: float = 0.0  # of an owner that the job must not outlive
    prepared: bool = False  # this host could start its program now
    running: bool = False
    started: frozenset[int] = frozenset()  # hosts that reached the barrier
    exit: Exit | None = None
    echo: bool = False  # that exit looks like the consequence of another failure
    echo_limit: float = ECHO
    exits: tuple[tuple[int, int, float], ...] = ()  # (host, code, age) of every host whose program ended
    quiet: tuple[tuple[int, float], ...] = ()  # (host, age) of the others' beats, since they last changed
    barrier_age: float = 0.0
    barrier_limit: float = 600.0
    run_age: float = 0.0
    run_limit: float = 0.0  # 0: none
    run_limit_of: str = ""  # where it comes from, if it is not the user's own
    silence: float = 0.0  # since any host showed progress
    stall_limit: float = 0.0
    stall_limit_of: str = ""  # where it comes from, if it is not the user's own


class Wait(NamedTuple):
    """Nothing to do yet."""


class Start(NamedTuple):
    """All hosts are ready: start the program."""


class Ask(NamedTuple):
    """Ask the program to end, as hosts are taken away; the cause of the attempt's end is not known yet."""


class Leave(NamedTuple):
    """End this host without a verdict: whoever follows the job is told by its cloud who ended a host, and judges."""


class Commit(NamedTuple):
    """Every host ended well: the value of host 0 is the job's result."""


class Abort(NamedTuple):
    """End the attempt for this cause, unless another writer was first."""

    cause: str
    reason: str
    host: int
    grace: float = 0.0  # seconds that all programs have to save, if there are more than the cause alone allows


class Stop(NamedTuple):
    """The attempt has its verdict: stop, and give the program that many seconds."""

    grace: float


IDLE = (Wait, Ask, Commit)  # the next move need not follow at once, while there is no verdict
Move = Wait | Start | Ask | Leave | Commit | Abort | Stop


def decide(seen: Situation) -> Move:  # noqa: PLR0911 - an ordered table reads best as one
    """The first rule that applies."""
    if seen.verdict is not None:
        return Stop(grace(seen.verdict, seen.index))
    if _all_ended_well(seen):
        return Commit() if seen.index == 0 else _lost(seen)
    if seen.preempted or seen.ended:  # before the exit: what ends a machine ends its programs too
        return _told_to_end(seen)
    if seen.exit is not None and seen.exit.code != 0 and not _may_be_of_another(seen):
        return _blame(seen, seen.exit)
    if seen.cancelled:
        return Abort(wire.CANCELLED, seen.cancelled, seen.index)
    if seen.owner_silence > OWNER_PATIENCE:
        return Abort(wire.CANCELLED, f"its owner has given no sign of life for {seen.owner_silence:.0f} s", seen.index)
    if seen.run_limit and seen.run_age > seen.run_limit:
        limit = f"{seen.run_limit:g} s{seen.run_limit_of}"
        return Abort(wire.DEADLINE, f"the attempt ran longer than its limit of {limit}", seen.index)
    if seen.company.told:
        return _beside_told(seen)
    if not seen.running and seen.exit is None:
        return _barrier(seen)
    if seen.stall_limit and seen.exit is None and seen.silence > seen.stall_limit:
        reason = f"no host printed, logged or progressed for {seen.silence:.0f} s (the limit is {seen.stall_limit:g} s"
        reason += f"{seen.stall_limit_of})"
        return Abort(wire.STALL, reason, seen.index)
    for host, code, age in seen.exits:
        if code != 0 and host != seen.index and age > FAREWELL:
            return Abort(wire.USER, f"host {host} ended with exit code {code}", host)
    return _lost(seen)


def exit_of(code: int, report: Report | None, *, command: bool, sent: bool = False) -> Exit:
    """Classify a program's end, by its process' exit code and its own report. A command reports nothing.

    A function that has returned has done its work, however its process ends then: libraries of threads abort now and
    then in the last moment. `sent`: what was to be written and sent at the program's end is.
    """
    if code == 0 and (report is not None or command):
        return Exit(0)
    if report is not None and report.code != 0:
        return exit_of_report(report)
    if report is not None and (sent or not report.unsent):
        return Exit(0, wire.USER, f"{_ended(code)} after it had returned its value, which counts")
    if code == 0:
        return Exit(1, wire.USER, "the program ended without an outcome (os._exit?)")
    if code == UNREPORTED and report is None and not command:
        reason = "what the program came to could not be written on this host, whose disk was full (its log says so)"
        return Exit(code, wire.INFRASTRUCTURE, reason)
    returned = " after it had returned its value, and before its last checkpoint or its files were there"
    late = returned if report is not None else ""
    hint = ": perhaps the machine ran out of memory" if -code == signal.SIGKILL else ""
    return Exit(code, wire.USER, f"{_ended(code)}{late}{hint}")


def _ended(code: int) -> str:
    return f"the program was ended by {signal_name(-code)}" if code < 0 else f"the program ended with exit code {code}"


def exit_of_report(report: Report) -> Exit:
    """Classify a failure that the program reports."""
    kind, message = report.type.rpartition(".")[2], report.message or ""
    reason = f"{kind}: {message}" if kind and report.kind == "exception" else message
    return Exit(report.code, report.cause, reason)


def is_driver(text: str, *, gpus: bool = False) -> bool:
    """Return True for a driver's failure, which a program may not meet on new hosts. `gpus`: the machine has some."""
    patterns = DRIVER + DRIVER_OF_GPUS if gpus else DRIVER
    return any(all(words in text for words in pattern) for pattern in patterns)


def is_echo(text: str) -> bool:
    """Return True if a failure looks like the consequence of another host's."""
    return any(echo in text for echo in ECHOES)


def _all_ended_well(seen: Situation) -> bool:
    return seen.exit is not None and len(seen.exits) == seen.hosts and all(code == 0 for _, code, _ in seen.exits)


def _own_age(seen: Situation) -> float:
    return next((age for host, _, age in seen.exits if host == seen.index), 0.0)


def _blame(seen: Situation, ended: Exit) -> Abort:
    """Find the cause of a failure: if it looks like an echo, a host that has been silent since is blamed."""
    for host, age in seen.quiet:
        if seen.echo and age > max(seen.echo_limit, SILENT):
            return Abort(
                wire.INFRASTRUCTURE, f"host {host} was lost, of which host {seen.index} died: {ended.reason}", host
            )
    return Abort(ended.cause, ended.reason, seen.index)


def _told_to_end(seen: Situation) -> Move:
    if seen.is_overdue:
        return Abort(wire.DEADLINE, f"the attempt's deadline passed ({seen.preempted or seen.ended})", seen.index)
    return _taken(seen) if seen.preempted else _shut_down(seen)


def _taken(seen: Situation) -> Move:
    """Find out whether a host that is told to end is taken away, or ended for one that died without a word."""
    saving = min(seen.lead, SPOT_NOTICE) - AFTER_SAVING
    usual = 0.0 if seen.counts_as in GRACE else GRACE[wire.PREEMPTION]  # of a cause that gives no time by itself
    long = saving if saving > GRACE[wire.PREEMPTION] else usual
    company, taken = seen.company, Abort(seen.counts_as, seen.preempted, seen.index, long)
    awaited = company.missing or (() if seen.running else company.absent)
    if not awaited or (company.read < HEARD and company.age > UNREAD):
        return taken
    if company.read < HEARD:
        return Ask() if seen.running and (company.is_shown or company.age > SHOWN) else Wait()
    if not company.missing:  # it may not have had a node yet; whoever follows the job could have said by now
        return taken._replace(reason=f"{seen.preempted}, and host {awaited[0]} had never given a sign of life")
    host = company.missing[0]
    reason = f"host {host} died without a word, for which its cluster ends the others ({seen.preempted}): the events "
    reason += "of its pod may say why, and one that takes more memory than there is dies like that (OOMKilled)"
    return Abort(wire.INFRASTRUCTURE, reason, host)


def _shut_down(seen: Situation) -> Move:
    """Let the program of a host that is shut down end first: who did that is known elsewhere, and may be the user."""
    if seen.cancelled:
        return Abort(wire.CANCELLED, seen.cancelled, seen.index)
    return Leave() if seen.is_out else Ask()


def _beside_told(seen: Situation) -> Move:
    """Let the program end with that of a host that was told to, which says what of."""
    if seen.company.is_explained and seen.company.age > FORSAKEN:
        return Leave()
    for host, age in seen.quiet:
        if not seen.company.is_explained and host in seen.company.told and age > FORSAKEN:
            return Abort(wire.PREEMPTION, f"host {host} was told that it will be ended, and is silent since", host)
    if seen.running:
        lost = _lost(seen)
        return Ask() if isinstance(lost, Wait) else lost
    move = _barrier(seen) if seen.exit is None else _lost(seen)
    return Wait() if isinstance(move, Start) else move


def _may_be_of_another(seen: Situation) -> bool:
    """Return True while a failure may be the consequence of what befell another host, which may not be known yet."""
    age, company = _own_age(seen), seen.company
    # Programs die of others that were asked to end, and not all say so in words.
    unknown = company.hosts > 0 and 0 < age <= company.unread
    return (company.told != () and age > 0) or ((seen.echo or unknown) and age < seen.echo_limit)


def _lost(seen: Situation) -> Move:
    for host, age in seen.quiet:
        if age > LOST:
            return Abort(wire.INFRASTRUCTURE, f"host {host} has given no sign of life for {age:.0f} s", host)
    return Wait()


def _barrier(seen: Situation) -> Move:
    if seen.prepared and len(seen.started) == seen.hosts:
        return Start()
    missing = [host for host in range(seen.hosts) if host not in seen.started]
    if seen.barrier_age > seen.barrier_limit + (WITNESS if missing and seen.company.is_explained else 0.0):
        if missing:
            return Abort(wire.INFRASTRUCTURE, unstarted(missing, seen.barrier_limit), missing[0])
        return Abort(wire.INFRASTRUCTURE, f"this host was not ready within {seen.barrier_limit:g} s", seen.index)
    return Wait()


def unstarted(hosts: Sequence[int], limit: float) -> str:
    """Say which hosts the others have waited for in vain, for so many seconds."""
    named = f"host {hosts[0]}" if len(hosts) == 1 else f"hosts {', '.join(map(str, hosts))}"
    return f"{named} did not start within {limit:g} s"


def grace(verdict: wire.Verdict, index: int) -> float:
    """The seconds that the program has to end, now that the attempt is decided."""
    if verdict.kind == wire.COMMITTED:
        return 0.0
    if verdict.cause in GRACE or verdict.grace:
        return max(GRACE.get(verdict.cause, 0.0), min(verdict.grace, SPOT_NOTICE - AFTER_SAVING))
    return 0.0 if verdict.host == index else SIBLING_GRACE


def told_cause(verdict: wire.Verdict | None) -> str:
    """Return the cause of its end that a program is told: with time to save it is that of a machine which is taken
    away, whatever that counts as; "" if nobody has decided."""
    if verdict is None:
        return ""
    return wire.PREEMPTION if verdict.grace else verdict.cause
