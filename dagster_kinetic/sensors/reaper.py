"""The sensor that removes leftovers: hosts without a job, old records, and closed branch deployments.

Each tick does a bounded amount of work, and may be cut off at any line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_kinetic.resource.kinetic_resource import resource_of
from dagster_kinetic.sensors.branches import Branches, some
from dagster_kinetic.step.ticket import WAITS
from kinetic_orchestration.errors import KineticError
from kinetic_orchestration.plan.messages import warn

if TYPE_CHECKING:
    from kinetic_orchestration.jobs.cleanup.reaper import Reaped

ROOT, WILL_RETRY = "dagster/root_run_id", "dagster/will_retry"  # tags of Dagster's own
_MOST_OF_A_ROOT = 50  # re-executions of a first run, and of each other, that are looked at, the newest first


def build_kinetic_reaper_sensor(
    name: str = "kinetic_reaper",
    *,
    resource_key: str = "kinetic",
    minimum_interval_seconds: int = 600,
    branches: Callable[[], Iterable[str]] | None = None,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
) -> dg.SensorDefinition:
    """Find hosts that no job needs, in all zones, and old records, and remove them, as `kinor reap` does; and release
    the slices that runs of this instance have left warm and that are over.

    `branches` returns the names of the branch deployments that are open now, such as `dagster_plus_branches`. One that
    this sensor has seen open and that is no longer listed is closed: its jobs are cancelled, and its hosts removed.
    """

    def evaluate(context: dg.SensorEvaluationContext, **resources: Any) -> dg.SensorResult:
        places = resource_of(context, resources, resource_key).hardware_places()
        known = Branches.of(context.cursor)
        told = [_summary([each for place in places for each in _reaped(place)])]
        if count := _released(context.instance, places[0]):
            told.append(f"released {count} warm {'slice' if count == 1 else 'slices'} of runs that are over")
        context.log.info("; ".join(told))
        if branches is not None:
            known = known.seen(set(branches()), str(places[0]["deployment"] or ""))
            for branch in sorted(known.closing):
                is_clear, line = _cleared([{**place, "deployment": branch} for place in places])
                told.append(line)
                context.log.info(line)
                if is_clear:
                    known.closing.discard(branch)
        return dg.SensorResult(skip_reason="; ".join(told), cursor=known.to_cursor())

    return dg.SensorDefinition(
        name=name,
        evaluation_fn=evaluate,
        minimum_interval_seconds=minimum_interval_seconds,
        required_resource_keys={resource_key},
        default_status=default_status,
        description="Removes hosts and records that no job wants any more.",
    )


def _cleared(places: Sequence[Mapping[str, str | None]]) -> tuple[bool, str]:
    """Clear a closed branch deployment wherever it has hosts. Returns True if nothing is left of it, and a summary."""
    from kinetic_orchestration.jobs.cleanup.reaper import DELETING, LEFT, UNREAD

    said = f"branch deployment {places[0]['deployment']} is closed"
    try:
        cancelled, troubles = _cancel_all(places[0])
        found = [each for place in places for each in _reaped(place)]
    except KineticError as error:
        return False, f"{said}, and not all of it could be removed, which the next tick tries again: {error}"
    left = cancelled or troubles or any(each.result in (DELETING, LEFT, UNREAD) for each in found)
    not_done = f"; {len(troubles)} could not be: {troubles[0]}" if troubles else ""
    return not left, f"{said}: {cancelled} jobs cancelled{not_done}, {_summary(found)}"


def _reaped(place: Mapping[str, str | None]) -> list[Reaped]:
    from kinetic_orchestration.api.opening import place_of
    from kinetic_orchestration.jobs.cleanup.reaper import reap

    store, backend, here = place_of(**place)
    return reap(store, backend, here)


def _released(instance: dg.DagsterInstance, place: Mapping[str, str | None]) -> int:
    """Release the slices that runs have left which are over. What a detached asset's job has left is for the run that
    goes on with it, as is what a run has left that is executed again now; runs that this instance does not know are
    another's.
    """
    from kinetic_orchestration.jobs.cleanup import kept_slices
    from kinetic_orchestration.plan.configuration import settings
    from kinetic_orchestration.platforms.registry import open_store

    def is_over(run: kept_slices.Run) -> bool:
        orchestrator, _, name = run
        found = instance.get_run_by_id(name) if orchestrator == "dagster" else None
        return found is not None and found.is_finished and WAITS not in found.tags and not _goes_on(instance, found)

    here = settings.load(None, **place)
    return kept_slices.release_runs(open_store(here.store, here.deployment), here, is_over)


def _goes_on(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return True if a run that has ended is executed again now, or is about to be by its retry policy. So it is while
    any run of its family goes on: the first one, and all re-executions of that."""
    root = run.root_run_id or run.run_id
    again = instance.get_runs(dg.RunsFilter(tags={ROOT: root}), limit=_MOST_OF_A_ROOT)
    first = run if root == run.run_id else instance.get_run_by_id(root)
    family = [*again, *([first] if first is not None else [])]
    tried = {one.parent_run_id for one in again}
    return any(
        not one.is_finished or (one.tags.get(WILL_RETRY) == "true" and one.run_id not in tried) for one in family
    )


def _cancel_all(place: Mapping[str, str | None]) -> tuple[int, list[KineticError]]:
    """Cancel all jobs. Returns the number of cancelled jobs, and the errors of the others."""
    from kinetic_orchestration.api.handle import live_jobs
    from kinetic_orchestration.jobs.following import actions
    from kinetic_orchestration.jobs.job import ME

    live = [job for job, _ in live_jobs(warn, **place)]
    troubles: list[KineticError] = []
    for job in live:
        try:
            actions.cancel(job._job, "its branch deployment was closed", ME)
            job.status()  # it releases the hosts, as possibly no other process will
        except KineticError as error:
            troubles.append(error)
    return len(live) - len(troubles), troubles


def _summary(found: Sequence[Reaped]) -> str:
    """A one-line summary of removed resources and of those that could not be removed."""
    from kinetic_orchestration.jobs.cleanup.reaper import LEFT, UNREAD

    done = [f"{each.what} {each.name} ({each.why})" for each in found if each.result not in (LEFT, UNREAD)]
    not_done = [f"{each.what} {each.name}: {each.why}" for each in found if each.result in (LEFT, UNREAD)]
    text = f"removed {len(done)}: {some(done)}" if done else "nothing to remove"
    return text + (f"; {len(not_done)} could not be: {some(not_done)}" if not_done else "")
