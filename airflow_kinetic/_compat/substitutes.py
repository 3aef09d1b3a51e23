"""What an older Airflow has an equal of, done in its own way.

Nothing of Airflow is imported before a function needs it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, Protocol

from airflow_kinetic._compat import homes, versions

TIMED_OUT: Final = "Trigger/execution timeout"  # by which 2.11 says that a deferral was too long


class Log(Protocol):
    """The log of a task, in a worker and in a trigger alike. Fields beside the text may be lost."""

    def info(self, text: str, **fields: Any) -> Any: ...

    def warning(self, text: str, **fields: Any) -> Any: ...

    def error(self, text: str, **fields: Any) -> Any: ...


def timed_out(error: BaseException) -> bool:
    """Return True for the error of a deferral that took longer than it may."""
    if versions.timeouts_have_a_type():
        return isinstance(error, homes.resolved("TaskDeferralTimeout"))
    return str(error) == TIMED_OUT


def log_of(name: str) -> Log:
    """Return a log whose records come into the log of the task that the caller works for."""
    if not versions.logs_are_records():
        return _TextLog(logging.getLogger(name))
    import structlog

    found: Log = structlog.get_logger(name)
    return found


class _TextLog:
    """A log without fields: the host is a part of the text, and the time is the record's own."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def info(self, text: str, **fields: Any) -> None:
        self._write(logging.INFO, text, fields)

    def warning(self, text: str, **fields: Any) -> None:
        self._write(logging.WARNING, text, fields)

    def error(self, text: str, **fields: Any) -> None:
        self._write(logging.ERROR, text, fields)

    def _write(self, level: int, text: str, fields: Mapping[str, Any]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        told = ", ".join(f"{name} {value}" for name, value in fields.items() if name != "timestamp")
        shown = f"[{told}] {text}" if told else text
        record = self._logger.makeRecord(self._logger.name, level, f"{self._logger.name}.py", 0, shown, (), None)
        if moment := fields.get("timestamp"):
            record.created = datetime.fromisoformat(moment).timestamp()
            record.msecs = record.created % 1.0 * 1000.0
        self._logger.handle(record)


def pulled_link(task: Any, key: str) -> str:
    """Return the address that a task has left in XCom, for a webserver that computes links."""
    from airflow.models.xcom import XCom

    return str(XCom.get_value(ti_key=task, key=key) or "")


async def was_killed(task: Any) -> bool:
    """Return True if the task of a trigger that is cancelled is not deferred any more: a user has cleared or marked it.
    Whatever raises here is no answer, as on a triggerer that ends.

    Args:
        task: The trigger's task instance.
    """
    from asgiref.sync import sync_to_async

    # The supervisor is asked on the loop's own thread, which only this way finds.
    ask: Callable[[Any], str | None] = _state_by_supervisor if versions.triggers_have_no_database() else _state_by_row
    return await sync_to_async(ask)(task) != "deferred"


def _state_by_supervisor(task: Any) -> str | None:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    of_run = RuntimeTaskInstance.get_task_states(
        dag_id=task.dag_id, task_ids=[task.task_id], run_ids=[task.run_id], map_index=task.map_index
    ).get(task.run_id, {})
    named = task.task_id if task.map_index < 0 else f"{task.task_id}_{task.map_index}"
    found = of_run.get(named)
    return None if found is None else str(getattr(found, "value", found))


def _state_by_row(task: Any) -> str | None:
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    of_task = {"dag_id": task.dag_id, "task_id": task.task_id, "run_id": task.run_id, "map_index": task.map_index}
    with create_session() as session:
        found = session.query(TaskInstance.state).filter_by(**of_task).scalar()
    return None if found is None else str(getattr(found, "value", found))


def heartbeat_by_row() -> float | None:
    """Return the time of the newest heartbeat of any scheduler, where a triggerer has the database."""
    from airflow.jobs.job import Job
    from airflow.utils.session import create_session

    with create_session() as session:
        kind = Job.job_type == "SchedulerJob"
        found = session.query(Job.latest_heartbeat).filter(kind).order_by(Job.latest_heartbeat.desc()).limit(1).scalar()
    return None if found is None else float(found.timestamp())
