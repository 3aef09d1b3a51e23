"""What attempts tell the deployment about capacity, on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import kinetic_orchestration as kinetic
from kinetic_orchestration.capacity import records
from kinetic_orchestration.errors import Unreachable
from kinetic_orchestration.jobs.following import placing
from kinetic_orchestration.plan.records import intent_of
from kinetic_orchestration.plan.values import Glimpse, Past
from kinetic_orchestration.protocol import names, wire


class Silent:
    """A store that answers for a while, and then no more."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def read(self, *given: Any, **named: Any) -> Any:
        raise Unreachable("the store does not answer")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_what_others_could_learn_is_no_error_of_the_job_that_met_it(home: Path) -> None:
    job = kinetic.command(["true"], accelerator=["cpu", "cpu:2"])
    job.result(timeout=60)
    own, plan = job._job, job._job.plan()
    record = own.store.read(names.intent(own.job_id, 1))
    assert record is not None
    intent = intent_of(record, own.job_id, 1, own.within)
    silent: Any = Silent(own.store)
    placing.learn_start(replace(own, store=silent), Glimpse(record.updated, intent), was="queued", now="running")
    past = Past(intent.placement, wire.PREEMPTION, "gone", intent.created)
    placing.learn_from_end(replace(own, store=silent), plan, 1, past)
    placing.learn_from_end(own, plan, 1, past)
    assert [fact.attempts[-1].outcome for fact in records.everything(own.store).values()] == ["preempted-young"]
