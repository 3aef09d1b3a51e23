"""The failure of a job's own code as its task shows it: Airflow's page shows no notes of an exception, on which the
host's traceback travels otherwise. So it is a record of the task's log, and the cause of what the task raises.
"""

from __future__ import annotations

import re

import structlog

from kinetic_orchestration import visible
from kinetic_orchestration.agent import wire
from kinetic_orchestration.values import Outcome

_FRAME = re.compile(r'^[ |+-]*File "')


class RemoteTraceback(Exception):
    """Where on its host an exception was raised: the cause of the same exception here."""


def tell(error: Exception, outcome: Outcome, job_id: str) -> None:
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
    if error.__cause__ is None:
        error.__cause__ = RemoteTraceback(f"on host {host} of job {job_id}:\n{traceback}")


def last_frame(traceback: str) -> str:
    """Return the lines of the frame that raised: what comes after it is the exception, and deeper its source."""
    lines = traceback.splitlines()
    begins = max((at for at, line in enumerate(lines) if _FRAME.match(line)), default=len(lines))
    ends = next((at for at in range(begins + 1, len(lines)) if not lines[at].startswith("    ")), len(lines))
    return "\n".join(lines[begins:ends])


def _said(failure: wire.Failure) -> str:
    kind = failure.type.rpartition(".")[2]
    return f"{kind}: {failure.message}" if kind else failure.message
