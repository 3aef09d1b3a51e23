"""What an older Airflow has no equal of, which is said once, in the log of a task."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from airflow_kinetic._compat.versions import (
    LINKS_ARE_STORED,
    LOGS_ARE_RECORDS,
    TASKS_HAVE_A_STORE,
    TRIGGERS_HEAR_OF_KILLS,
    at_least,
    version,
)

PAGE: Final = "the section Which Airflow of kinetic-orchestration's page about Airflow"


class Lack(NamedTuple):
    """What versions before one have no equal of, and what is done there."""

    before: tuple[int, int]
    what: str
    instead: str


LACKS: Final = (
    Lack(
        TRIGGERS_HEAR_OF_KILLS,
        "a trigger that is cancelled does not learn why",
        "it asks Airflow for the task's state, and cancels the job unless the task is deferred still; without an "
        "answer, or where a cleared task is deferred anew, the job is left to the next try and to the reaper",
    ),
    Lack(
        TASKS_HAVE_A_STORE,
        "a task has no store that outlives its tries",
        "which job it means is kept in the jobs' store",
    ),
    Lack(
        LOGS_ARE_RECORDS,
        "a line of the log has no fields",
        "the host stands at the beginning of its lines, and their time is the host's",
    ),
    Lack(
        LINKS_ARE_STORED,
        "links are computed by the webserver",
        "the task leaves their addresses in XCom, and they are shown once it has a job",
    ),
)


_told: list[str] = []


def tell_lacks(log: Any) -> None:
    """Say in a task's log, once in its process, what this version lacks. The page says what is done instead."""
    found = [lack.what for lack in LACKS if not at_least(lack.before)]
    if found and not _told:
        _told.extend(found)
        log.info(
            "This is Airflow %s, in which %s. What is done instead: %s", ".".join(map(str, version())),
            "; ".join(found), PAGE,
        )  # fmt: skip
