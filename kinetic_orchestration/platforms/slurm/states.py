"""Reads what Slurm says of its jobs, and decides what follows from it for an attempt. Pure.

An attempt is a job's id with its restart count. States are compared as a whole, after what may follow them: a job that
is COMPLETING is not over, and one that Slurm no longer knows has not failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kinetic_orchestration.plan.values import (
    ABSENT,
    GONE,
    PRESENT,
    PROVISIONING,
    QUEUED,
    Observation,
)
from kinetic_orchestration.platforms.slurm.script import (
    CANCELLED,
    NO_FOLDER,
    NO_PYTHON,
    REQUEUED,
    TIME_LIMIT,
    TIME_OVER,
)
from kinetic_orchestration.protocol import wire

SEPARATOR = "\x1f"  # which no name or comment can have
COLUMNS = ("JobID", "State", "RestartCnt", "SubmitTime", "NumNodes", "exit_code", "Name", "NodeList", "Reason")
FORMAT = ",".join(f"{column}:{SEPARATOR}" for column in COLUMNS)
WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
STARTING = ("CONFIGURING",)
OVER = {
    "COMPLETED": wire.INFRASTRUCTURE,  # its hosts have left no verdict, else nobody asks
    "FAILED": wire.INFRASTRUCTURE,
    "CANCELLED": wire.CANCELLED,
    "REVOKED": wire.CANCELLED,
    "TIMEOUT": wire.PREEMPTION,
    "PREEMPTED": wire.PREEMPTION,
    "DEADLINE": wire.DEADLINE,
    "OUT_OF_MEMORY": wire.USER,
    "NODE_FAIL": wire.INFRASTRUCTURE,
    "BOOT_FAIL": wire.INFRASTRUCTURE,
    "LAUNCH_FAILED": wire.INFRASTRUCTURE,
    "RECONFIG_FAIL": wire.INFRASTRUCTURE,
}
_ASK = {
    "OUT_OF_MEMORY": "a program took more memory than the job has: ask for more with cloud=Slurm(memory='64G')",
    "TIMEOUT": "its time was over: the next attempt goes on from its checkpoint; cloud=Slurm(time=…) asks for more",
    "CANCELLED": "somebody has cancelled it (scancel), and not through this package",
}
_UNSEEN = (
    "its node does not see the folder {folder}: name one that login node and nodes mount under the same path, with "
    "cloud=Slurm(folder=…) or KINETIC_HOME, and put the store there as well (KINETIC_STORE)"
)
_OF_SCRIPT = {
    NO_FOLDER: (wire.CONFIGURATION, _UNSEEN),
    NO_PYTHON: (
        wire.CONFIGURATION,
        "its node has no Python at the path of this one: make the environment on a folder that all nodes mount",
    ),
    TIME_LIMIT: (wire.PREEMPTION, _ASK["TIMEOUT"]),
}

_OF_WORD = {  # what the script has written of its end, for a job that Slurm has forgotten
    CANCELLED: (wire.CANCELLED, _ASK["CANCELLED"]),
    REQUEUED: (wire.PREEMPTION, "Slurm has put it back into its queue after it had begun"),
    TIME_OVER: (wire.PREEMPTION, _ASK["TIMEOUT"]),
}

# Reasons for which a job waits and will never start as it is, by the sources of squeue (job_reason_string).
NEVER = {
    "PartitionNodeLimit": "it asks for more nodes than the partition gives to one job: ask for fewer with hosts=",
    "PartitionTimeLimit": "it asks for more time than the partition gives: ask for less with limits.run or time=",
    "BadConstraints": "no node has what it asks for: see constraint= and gres=, and `sinfo -o '%n %f %G'`",
    "AccountNotAllowed": "the partition is not open to the account: see account=, and `scontrol show partition`",
    "InvalidAccount": "Slurm has no such account: name yours with account= (`sacctmgr show user $USER -s`)",
    "InvalidQOS": "Slurm has no such QOS: see qos=, and `sacctmgr show qos`",
    "QOSNotAllowed": "the partition or the account is not open to the QOS: see qos=, and `scontrol show partition`",
    "AccountingPolicy": "its account may not run so much at all: ask for less, or another account=",
    "ReservationDeleted": "its reservation is no more",
    "DependencyNeverSatisfied": "it waits for a job that has failed",
}
_WAITS = {
    "Resources": "for free nodes",
    "Priority": "jobs of a higher priority come first",
    "BeginTime": "it may not begin yet",
    "Dependency": "for another job of the same name",
    "JobHeldUser": "its user holds it: scontrol release",
    "JobHeldAdmin": "an administrator holds it: ask for its release",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is not active",
    "ReqNodeNotAvail": "a node that it needs is down, drained or reserved",
    "Licenses": "for a licence",
    "None": "Slurm has not looked at it yet",
}


# What stands in place of a reason where Slurm has more to say (`state_desc` of a job), and the reason that it means.
_IN_WORDS = {
    "account not known": "AccountNotAllowed",
    "account not permitted": "AccountNotAllowed",
    "QOS not permitted": "QOSNotAllowed",
    "QOS not known": "QOSNotAllowed",
}


class Row(NamedTuple):
    """A job of Slurm, as squeue shows it."""

    id: str
    state: str
    restarts: int
    submitted: float
    nodes: int
    code: int
    name: str
    where: str
    reason: str

    @property
    def is_over(self) -> bool:
        return self.state in OVER


class Claim(NamedTuple):
    """The claim on an attempt, as its folder has it.

    Attributes:
        is_there: The folder is.
        job: The job of Slurm that runs the attempt; "" while none has begun.
        restarts: How often Slurm had put that one back into its queue when it began.
        log: The end of what its script has said.
        ended: What its script has written of its end; "" if nothing.
    """

    is_there: bool = False
    job: str = ""
    restarts: int = 0
    log: str = ""
    ended: str = ""


def rows(text: str) -> list[Row]:
    """Return the jobs of squeue's answer. A line that is none, as a site's own squeue may add, is left out."""
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(SEPARATOR)]
        if len(parts) < len(COLUMNS) or not parts[0]:
            continue
        id_, state, restarts, submitted, nodes, code, name, where, reason = parts[: len(COLUMNS)]
        found.append(
            Row(
                id_, plain(state), _number(restarts), float(_number(submitted)), _number(nodes), _number(code), name,
                where, reason.strip("()"),
            )
        )  # fmt: skip
    return found


def plain(state: str) -> str:
    """Return a state without what may follow it, as in `CANCELLED by 0` and `CANCELLED+`."""
    return state.split(" ", maxsplit=1)[0].rstrip("+*~#!%$@^-")


def _number(text: str) -> int:
    digits = text.split(":", maxsplit=1)[0]
    return int(digits) if digits.isdecimal() and len(digits) < 16 else 0


def own(found: Sequence[Row], claim: Claim) -> Row | None:
    """Return the job that runs an attempt, or will: that of its claim, else the first one that is not over."""
    if claim.job:
        return next((row for row in found if row.id == claim.job), None)
    first = sorted(found, key=lambda row: (row.is_over, len(row.id), row.id))
    return first[0] if first else None


def judge(folder: str, found: Sequence[Row], claim: Claim) -> Observation:  # noqa: PLR0911 - an ordered table
    """Return the state of an attempt.

    Args:
        folder: The shared folder, for users.
        found: The jobs of its name.
        claim: What its own folder says.
    """
    row = own(found, claim)
    if row is None and claim.ended in _OF_WORD:
        cause, told = _OF_WORD[claim.ended]
        return Observation(GONE, f"Slurm's job {claim.job} has ended: {told}", cause, hint=_log_of(claim))
    if row is None or (row.is_over and not claim.is_there):
        return Observation(ABSENT)
    hint = f"squeue -j {row.id}; {_log_of(claim)}"
    if claim.job and row.restarts > claim.restarts:
        told = f"Slurm has put job {row.id} back into its queue after it had begun"
        return Observation(GONE, told, wire.PREEMPTION, hint=hint)
    if row.is_over:
        cause, told = _end_of(row, folder)
        return Observation(GONE, f"Slurm's job {row.id} has ended ({row.state}): {told}", cause, hint=hint)
    if row.state in WAITING:
        if advice := NEVER.get(_short(row.reason)):
            told = f"Slurm will never start job {row.id} ({row.reason}): {advice}"
            return Observation(GONE, told, wire.CONFIGURATION, hint=hint)
        return Observation(QUEUED, f"job {row.id} of Slurm waits ({row.reason}): {waits_for(row.reason)}", hint=hint)
    if row.state in STARTING:
        return Observation(PROVISIONING, f"Slurm prepares {row.where or 'the nodes'} for job {row.id}", hint=hint)
    waits = "Slurm has suspended its job" if row.state in ("SUSPENDED", "STOPPED") else ""
    return Observation(PRESENT, f"job {row.id} of Slurm on {row.where}", waits=waits, hint=hint)


def _short(reason: str) -> str:
    return next((short for words, short in _IN_WORDS.items() if words in reason), reason)


def waits_for(reason: str) -> str:
    """Return what a reason of squeue means, for users."""
    if reason.startswith(("QOS", "Assoc", "MaxCpu", "MaxMem")):
        return "a limit of its account or QOS is reached, until other jobs of it end"
    if reason.startswith("ReqNodeNotAvail"):
        return _WAITS["ReqNodeNotAvail"]
    return _WAITS.get(reason, "see `scontrol show job`")


def _end_of(row: Row, folder: str) -> tuple[str, str]:
    if row.state == "FAILED":
        for code in (row.code, row.code >> 8):  # an exit code, or a status as wait() has it
            if code in _OF_SCRIPT:
                cause, told = _OF_SCRIPT[code]
                return cause, told.format(folder=folder)
    return OVER[row.state], _ASK.get(row.state) or "its hosts have not said why"


def _log_of(claim: Claim) -> str:
    return f"the end of its log: {claim.log}" if claim.log else "its log is empty"


REFUSALS: Mapping[str, str] = {
    "nvalid partition": "see `sinfo -o %R` for those that there are, and name one with cloud=Slurm(partition=…)",
    "nvalid account": "name an account of yours with cloud=Slurm(account=…): `sacctmgr show user $USER -s` lists them",
    "nvalid qos": "name another with cloud=Slurm(qos=…), or leave it out: `sacctmgr show qos` lists them",
    "nvalid generic resource": "see `sinfo -o '%n %G'` for what nodes have, and name it with cloud=Slurm(gres=…)",
    "nvalid feature": "see `sinfo -o '%n %f'` for the features of nodes, and name one with cloud=Slurm(constraint=…)",
    "node configuration is not available": (
        "no node has so many GPUs of that type, or so many CPUs: `sinfo -o '%n %c %m %G'` lists what nodes have; "
        "cloud=Slurm(gres='gpu:TYPE:2') names them as this cluster does"
    ),
    "nvalid --time": "write time= as sbatch takes it, such as '12:00:00' or '1-00:00:00'",
    "ime limit": "ask for less with limits.run or cloud=Slurm(time=…)",
    "ccess/permission denied": "this user may not use it: see `scontrol show partition`",
    "ore processors requested": "ask for fewer nodes or CPUs",
    "ode count specification invalid": "ask for fewer nodes with cloud=Slurm(hosts=…)",
}


def refusal(errors: str) -> tuple[str, str]:
    """Return the cause and the advice for what sbatch has refused. Limits of what may be queued are waited for."""
    if any(words in errors for words in ("QOSMaxSubmit", "AssocMaxSubmit", "Job violates accounting/QOS policy")):
        return "", "a limit of its account or QOS on queued jobs is reached"
    advice = next((advice for words, advice in REFUSALS.items() if words in errors), "see `scontrol show partition`")
    return wire.CONFIGURATION, advice
