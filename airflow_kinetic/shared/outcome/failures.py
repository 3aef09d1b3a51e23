"""The failure of a job's own code as its task shows it.

Airflow's page does not show the notes of an exception, which carry the host's traceback elsewhere. So the traceback is
a record of the task's log, and the cause of the exception that the task raises.
"""

from __future__ import annotations

import re

import structlog

from kinetic_orchestration.plan.values import Outcome
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.system import visible

_FRAME = re.compile(r'^([ |]*)File "')
_DEEPEST = 100  # causes that are followed


class RemoteTraceback(Exception):
    """The traceback of an exception on its host: the last cause of the same exception here."""


def log_failure(error: Exception, outcome: Outcome, job_id: str) -> None:
    """Put the traceback into the task's log, its last frame first, and below the exception that the task raises."""
    failure = outcome.verdict.failure
    if failure is None or not failure.traceback.strip():
        return
    traceback = visible.log(failure.traceback.rstrip())
    host = outcome.verdict.host or 0
    structlog.get_logger("kinetic.job").error(
        f"{visible.log(_said(failure))}\n{last_frame(traceback)}\nRaised on host {host} of job {job_id}. "
        f"All of it:\n{traceback}"
    )
    _put_last(error, RemoteTraceback(f"on host {host} of job {job_id}:\n{traceback}"))


def _put_last(error: BaseException, cause: Exception) -> None:
    """Below all causes that the exception has already, which are its own."""
    seen = {id(error)}
    while (deeper := error.__cause__) is not None:
        if id(deeper) in seen or len(seen) > _DEEPEST:
            return
        seen.add(id(deeper))
        error = deeper
    error.__cause__ = cause


def last_frame(traceback: str) -> str:
    """Return the lines of the frame that raised: what comes after it is the exception, and deeper its source. Of a
    group of exceptions, it is the last one's.
    """
    lines = traceback.splitlines()
    begins, margin = max(
        ((at, found[1]) for at, line in enumerate(lines) if (found := _FRAME.match(line))), default=(0, "")
    )
    if not margin:
        return ""
    ends = next((at for at in range(begins + 1, len(lines)) if not lines[at].startswith(margin + "  ")), len(lines))
    return "\n".join(f"  {line.removeprefix(margin)}" for line in lines[begins:ends])


def _said(failure: wire.Failure) -> str:
    kind = failure.type.rpartition(".")[2]
    return f"{kind}: {failure.message}" if kind else failure.message
