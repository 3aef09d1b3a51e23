"""Tickets in the log of a run, as a step of it writes them."""

import dagster as dg
from dagster._core.events import EngineEventData

from dagster_kinetic.step.ticket import LOGGED, Ticket


def logged(instance: dg.DagsterInstance, run: dg.DagsterRun, ticket: Ticket) -> None:
    instance.report_engine_event("submitted", run, EngineEventData({LOGGED: ticket.to_text()}), step_key=ticket.step)
