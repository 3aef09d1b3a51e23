"""A local store is a folder of one machine. A run and its sensor may be in different containers, and neither sees the
other's: what would be lost there is refused, with the reason.
"""

from __future__ import annotations

import os

from dagster_kinetic import _compat
from dagster_kinetic.step.ticket import Ticket, refuse_elsewhere
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.jobs.request import Draft

ELSEWHERE = "Set project= and a gs:// store= of KineticResource"


def refuse_if_it_would_end_with_its_run(asked: Draft, context: _compat.Context) -> None:
    """Refuse a local job that is not waited for, in a container that is removed as soon as the step is over."""
    plan = asked.plan
    if plan.traits.share_machine and _compat.is_contained(context):
        raise UsageError(
            f"{plan.name} would run on this machine (backend 'local', store {plan.store}), which is the container of "
            f"this run and ends with it, and no sensor in another container could see its records. {ELSEWHERE}, or "
            "use run(), which waits for the job here"
        )


def refuse_unseen(ticket: Ticket, store: str, deployment: str) -> None:
    """Refuse a job whose records are in another store than the sensor's, or in a folder of another machine."""
    if "://" not in ticket.store and (ticket.store != store or not os.path.isdir(os.path.join(store, deployment))):
        raise UsageError(
            f"its records are in {ticket.store}, a folder of the machine or container where run {ticket.run} was. It "
            f"cannot be seen from that of this sensor (its store is {store}). {ELSEWHERE}, or give both the same volume"
        )
    refuse_elsewhere(ticket, store, deployment)
