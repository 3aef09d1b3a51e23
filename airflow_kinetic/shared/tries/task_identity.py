"""The identity of a task's job over its tries, stored in the task's state, which outlives workers, retries and clears.
An Airflow without such a state has it in the jobs' store.

A retry means the same job. A clear means another: it changes the maximum number of tries of a task in Airflow,
which becomes its past tries plus `retries`. An edit of `retries` changes that number for no task that has run,
so it affects no job. Together, a lower `retries` and a clear can give the old number: then the count of clears in the
whole DAG run distinguishes them. A DAG run that was deleted takes its tasks' state with it, and the
next one may have its name: so each task's state has a name of its own, its life, which is part of the job's identity.
What is in the jobs' store stays there: it has the time, too, at which its DAG run began, and the next one has another.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from airflow_kinetic._compat import homes, versions
from airflow_kinetic.shared.location import JobLocation
from kinetic_orchestration.plan.identity import Identity
from kinetic_orchestration.plan.records import PINNED, fields_of
from kinetic_orchestration.protocol import names, wire

if TYPE_CHECKING:
    from airflow_kinetic._compat import Context

KEY = "kinetic"


class Pin(NamedTuple):
    epoch: int  # one more after every clear
    max_tries: int  # when the epoch began
    job_id: str = ""
    place: JobLocation | None = None
    tried: int = 0  # the last try
    clears: int | None = None  # of tasks of the DAG run until then
    life: str = ""  # of the task's state; that of an older version has none
    begun: str = ""  # when the DAG run began, where the state outlives it

    def to_json(self) -> dict[str, Any]:
        kept = {**self._asdict(), "place": None if self.place is None else self.place.to_json()}
        if not self.begun:  # else left out, for a version that does not know it
            del kept["begun"]
        return kept

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


def is_of_another_run(kept: Pin, tried: int, clears: int | None, begun: str) -> bool:
    """Return True for a pin of a DAG run that was deleted, of which this one has the name. Pure.

    A DAG run begins anew with each clear, which it counts. If a user has queued it anew, its next try has a higher
    number than the one before.
    """
    if kept.clears is not None and clears is not None and kept.clears != clears:
        return clears < kept.clears
    return "" not in (kept.begun, begun) and kept.begun != begun and tried <= kept.tried


def kept_pin(context: Context, location: JobLocation | None = None) -> Pin | None:
    """Return the pin that an earlier try has stored.

    Args:
        context: The task's.
        location: Its jobs', where an older Airflow has no state of tasks.
    """
    memory = _memory_of(context, location)
    return None if memory is None else memory.get()


def pins_of_try(context: Context, retries: int, location: JobLocation | None = None) -> tuple[Pin | None, Pin]:
    """Return the pin that an earlier try has stored, and this try's own. A first one has a life if it is stored."""
    task, run, memory = context["ti"], context.get("dag_run"), _memory_of(context, location)
    clears = getattr(run, "clear_number", None)
    began = getattr(run, "start_date", None) if isinstance(memory, _OfStore) else None
    begun = "" if began is None else began.isoformat()
    kept = None if memory is None else memory.get()
    if kept is not None and is_of_another_run(kept, task.try_number, clears, begun):
        kept = None
    pin = pin_now(kept, task.max_tries, retries, task.try_number, clears)
    if kept is None and memory is not None:
        pin = pin._replace(life=secrets.token_hex(4))
    return kept, pin._replace(begun=begun)


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
    if (memory := _memory_of(context, pin.place)) is not None:
        memory.set(pin)


class _Memory(Protocol):
    def get(self) -> Pin | None: ...

    def set(self, pin: Pin) -> None: ...


def _memory_of(context: Context, location: JobLocation | None) -> _Memory | None:
    state = context.get("task_state_store")
    if state is not None:
        return _OfAirflow(state)
    if location is None or versions.tasks_have_a_store():
        return None
    return _OfStore(location, context["ti"])


class _OfAirflow:
    """The state of a task that Airflow itself keeps, from 3.3 on."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def get(self) -> Pin | None:
        found = self._state.get(KEY)
        return Pin.from_json(found) if isinstance(found, dict) else None

    def set(self, pin: Pin) -> None:
        never = homes.optional("NEVER_EXPIRE")
        self._state.set(KEY, pin.to_json(), **({} if never is None else {"retention": never}))


class _OfStore:
    """A record in the jobs' store. It names no place but the one where it is: others may write there."""

    def __init__(self, location: JobLocation, task: Any) -> None:
        said = [location.deployment, task.dag_id, task.run_id, task.task_id, map_index(task)]
        self._name = names.task(hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32])
        self._location = location

    def get(self) -> Pin | None:
        record = self._location.open_store().read(self._name)
        if record is None:
            return None
        fields = fields_of(record.data, PINNED, self._name)
        return Pin(**{name: fields[name] for name in Pin._fields if name in fields})._replace(place=self._location)

    def set(self, pin: Pin) -> None:
        fields = {name: value for name, value in pin._asdict().items() if name != "place" and value is not None}
        self._location.open_store().put(self._name, wire.encode(fields))
