"""The identity of a task's job over its tries, stored in the task's state, which outlives workers, retries and clears.

A retry means the same job. A clear means another: it changes the maximum number of tries of a task in Airflow,
which becomes its past tries plus `retries`. An edit of `retries` changes that number for no task that has run,
so it affects no job. Together, a lower `retries` and a clear can give the old number: then the count of clears in the
whole DAG run distinguishes them. A DAG run that was deleted takes its tasks' state with it, and the
next one may have its name: so each task's state has a name of its own, its life, which is part of the job's identity.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_kinetic.shared import airflow_api
from airflow_kinetic.shared.location import JobLocation
from kinetic_orchestration.plan.identity import Identity

if TYPE_CHECKING:
    from airflow.sdk import Context

KEY = "kinetic"


class Pin(NamedTuple):
    epoch: int  # one more after every clear
    max_tries: int  # when the epoch began
    job_id: str = ""
    place: JobLocation | None = None
    tried: int = 0  # the last try
    clears: int | None = None  # of tasks of the DAG run until then
    life: str = ""  # of the task's state; that of an older version has none

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "place": None if self.place is None else self.place.to_json()}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Pin:
        place = fields["place"]
        return cls(**{**fields, "place": None if place is None else JobLocation(**place)})


def pin_now(kept: Pin | None, max_tries: int, retries: int, tried: int = 1, clears: int | None = None) -> Pin:
    """The pin of a try. Pure. Without one that was kept, the epoch follows from the numbers alone."""
    counted = max_tries - retries
    if kept is None:
        return Pin(counted, max_tries, tried=tried, clears=clears)
    as_after_a_clear = max_tries == tried - 1 + retries and tried > kept.tried
    if kept.max_tries == max_tries and not (as_after_a_clear and was_cleared(kept, clears)):
        return kept._replace(tried=tried, clears=clears)
    return Pin(max(kept.epoch + 1, counted), max_tries, tried=tried, clears=clears, life=kept.life)


def was_cleared(kept: Pin, clears: int | None) -> bool:
    """Return True if any task of the DAG run was cleared since a try."""
    return None not in (kept.clears, clears) and kept.clears != clears


def kept_pin(context: Context) -> Pin | None:
    state = context.get("task_state_store")
    found = state.get(KEY) if state is not None else None
    return Pin.from_json(found) if isinstance(found, dict) else None


def pins_of_try(context: Context, retries: int) -> tuple[Pin | None, Pin]:
    """Return the pin that an earlier try has stored, and this try's own. A first one has a life if it is stored."""
    task, kept = context["ti"], kept_pin(context)
    clears = getattr(context.get("dag_run"), "clear_number", None)
    pin = pin_now(kept, task.max_tries, retries, task.try_number, clears)
    if kept is None and context.get("task_state_store") is not None:
        pin = pin._replace(life=secrets.token_hex(4))
    return kept, pin


def identity_of(deployment: str, task: Any, pin: Pin) -> Identity:
    index = map_index(task)
    step = f"{task.dag_id}/{task.task_id}"  # both may hold dots, neither a slash
    if pin.life:
        index = f"{index}/{pin.life}"
    return Identity(deployment, "airflow", task.run_id, step, index, pin.epoch)


def map_index(task: Any) -> str:
    """Return the index of a mapped task instance; "" for one that is not mapped."""
    return "" if task.map_index is None or task.map_index < 0 else str(task.map_index)


def keep(context: Context, pin: Pin) -> None:
    """Store the pin before anything is submitted; without expiry, because the task may be read again at any time."""
    for_ever: dict[str, Any] = {}
    try:
        from airflow.sdk.execution_time.context import NEVER_EXPIRE

        for_ever = {"retention": NEVER_EXPIRE}
    except ImportError as error:
        airflow_api.warn_missing("airflow.sdk.execution_time.context", error)
    state = context.get("task_state_store")
    if state is not None:
        state.set(KEY, pin.to_json(), **for_ever)
