"""The ticket of a detached job: the data that the submitting run leaves for the run that finishes it, and its location.

It is in the event log of the first run, where only the run itself writes. The tags mark that a run waits, and which
run's log has the ticket. Knows neither steps nor resources.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import dagster as dg

from dagster_kinetic import _compat
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.configuration import store_address
from kinetic_orchestration.plan.configuration.settings import Settings

WAITS = "kinetic/detached"  # of a run: "waiting" until each of its jobs has a run that finishes it
ASSET_WAITS = "kinetic/detached"  # of an asset: it is made by two runs
WAITING, FINISHED = "waiting", "finished"
TICKET = "kinetic/detached."  # + step: of the run that submitted: its job, for users, or "finished"
ENDED = (
    "kinetic/ended."  # + step: of that run, what the sensor saw the job come to: it is held to, and lets nothing run
)
FINISHES = "kinetic/finishes."  # + step: of the run that finishes: the run whose log has the ticket
LOGGED = "kinetic/ticket"  # of an event in the log of the run that submitted
LONGEST_NAME = 63  # of a tag's key, after the slash
SHARED_STORE = "Set project= and a gs:// store= of KineticResource"  # a run and its sensor may be in two containers


@dataclass(frozen=True, slots=True)
class Ticket:
    """A job that was submitted by one run and is to be finished by another."""

    job: str
    assets: tuple[str, ...]
    run: str  # these four are where the job stands in Dagster: a later try of it is the same identity
    step: str
    partition: str = ""
    call: str = ""
    spec: str = ""  # the digest of the job's spec, which did not come from the store
    store: str = ""
    deployment: str = ""

    def to_text(self) -> str:
        return json.dumps({name: value for name, value in asdict(self).items() if value})

    @classmethod
    def from_text(cls, text: str) -> Ticket:
        try:
            told = json.loads(text)
            known = {name: str(value) for name, value in told.items() if name in cls.__dataclass_fields__}
            return cls(**{**known, "assets": tuple(map(str, told["assets"]))})  # type: ignore[arg-type]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UsageError(f"no ticket of a detached job is {text[:200]!r} ({error!r})") from error


def tag_of(kind: str, step: str) -> str:
    """The key of a step's tag, within what Dagster takes for one."""
    name = f"{kind}{re.sub('[^A-Za-z0-9_.-]', '_', step)}"
    space, _, rest = name.partition("/")
    if len(rest) <= LONGEST_NAME:
        return name
    return f"{space}/{rest[:40]}-{hashlib.sha256(step.encode()).hexdigest()[:16]}"


def opened(ticket: Ticket, here: Settings, ended: str = "") -> Any:
    """The job of a ticket, in a process that did not submit it, in a store that this process's own settings name."""
    from kinetic_orchestration.api.opening import reopened
    from kinetic_orchestration.platforms.registry import open_backend, open_store

    store, backend = open_store(here.store, here.deployment), open_backend(here.backend, here)
    return reopened(ticket.job, store, {here.backend: backend}, here, ticket.spec, ended)


def tickets_of(instance: dg.DagsterInstance, run: str) -> dict[str, Ticket]:
    """The tickets that the steps of a run have written into its log, the newest of each step, by the step's tag."""
    return {
        tag_of(TICKET, step): Ticket.from_text(str(entries[LOGGED]))
        for step, entries in _compat.logged_events(instance, run)
        if step and LOGGED in entries
    }


def open_tags(tags: Mapping[str, str]) -> list[str]:
    """The names of the tags of jobs that have no run yet that finishes them."""
    return [name for name in sorted(tags) if name.startswith(TICKET) and tags[name] != FINISHED]


def refuse_elsewhere(ticket: Ticket, store: str, deployment: str) -> None:
    """Refuse a job in another store than the current one: the setting has changed since, or is different here."""
    if (ticket.store, ticket.deployment) != (store, deployment):
        raise UsageError(
            f"job {ticket.job} was submitted to {ticket.store} (deployment {ticket.deployment!r}), and the store that "
            f"is set here is {store} (deployment {deployment!r}). If that was changed since, change it back until the "
            "job has ended; else materialize the asset anew"
        )


def refuse_unseen(ticket: Ticket, store: str, deployment: str) -> None:
    """Refuse a job whose records are in another store than the sensor's, or in a folder of another machine."""
    if store_address.is_folder(ticket.store) and (
        ticket.store != store or not os.path.isdir(os.path.join(store, deployment))
    ):
        raise UsageError(
            f"its records are in {ticket.store}, a folder of the machine or container where run {ticket.run} was. It "
            f"cannot be seen from that of this sensor (its store is {store}). {SHARED_STORE}, or give both the same "
            "volume"
        )
    refuse_elsewhere(ticket, store, deployment)
