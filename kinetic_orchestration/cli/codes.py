"""The exit codes and their meanings, as a table."""

from __future__ import annotations

OK = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
RUNNING = 4
ENVIRONMENT = 5
DIFFERENT = 6
INTERRUPTED = 130

MEANING = {
    OK: "it worked; of a job: it succeeded",
    FAILED: "the job failed or was cancelled; of `plan --admission`: the cluster refuses it",
    USAGE: "a wrong argument, or something impossible was asked for; nothing has run",
    NOT_FOUND: "there is no such job",
    RUNNING: "the job has not ended, or not within --timeout",
    ENVIRONMENT: "the store or this machine cannot do it; see `doctor`",
    DIFFERENT: "every step of `verify` passed, and an answer is not the emulator's",
    INTERRUPTED: "Ctrl-C",
}


def of(error: BaseException) -> int:
    from kinetic_orchestration.errors import JobError, JobNotFound, UsageError

    for kind, code in ((UsageError, USAGE), (JobNotFound, NOT_FOUND), (JobError, FAILED)):
        if isinstance(error, kind):
            return code
    return ENVIRONMENT


def of_status(status: str) -> int:
    return {"SUCCEEDED": OK, "PENDING": RUNNING, "RUNNING": RUNNING, "NOT_FOUND": NOT_FOUND}.get(status, FAILED)
