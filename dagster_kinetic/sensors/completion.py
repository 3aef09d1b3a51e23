"""The sensor that finishes the jobs of detached assets.

Each tick does a bounded amount of work, with one read of all jobs of a store, and may be cut off at any line.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import dagster as dg

from dagster_kinetic import _compat
from dagster_kinetic.resource.kinetic_resource import resource_of
from dagster_kinetic.step.ticket import (
    ASSET_WAITS,
    ENDED,
    FINISHED,
    FINISHES,
    TICKET,
    WAITING,
    WAITS,
    Ticket,
    open_tags,
    opened,
    refuse_unseen,
    tag_of,
    tickets_of,
)
from kinetic_orchestration.errors import JobNotFound, KineticError, UsageError
from kinetic_orchestration.plan.configuration import settings

if TYPE_CHECKING:
    from kinetic_orchestration.jobs.following.follower import Follower

PAGE = 500  # runs that wait, read at a time
TICK_SECONDS = 30.0  # Dagster ends a tick after 60
FIRST_PAUSE, LONGEST_PAUSE = 60.0, 3600.0  # before a job that failed to be read more than once is read again
MOST_OBSERVED = 10  # assets of one job

_PARTITION = "dagster/partition"
# What the second run takes of the first one's place: its backfill, and its partition, which Dagster then believes as it
# is. One that has been removed since, or is none of these assets, would else fail the tick, and with it all other jobs.
_PLACE = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end", "dagster/backfill", _PARTITION)
_DIMENSION = "dagster/partition/"
_NOT_THE_USERS = ("dagster/", ".dagster/", "kinetic/")  # prefixes of tags that describe a run itself
_OF_ITS_STEPS = ("ops", "resources")  # of a run's config; the rest configures its execution


def build_kinetic_completion_sensor(
    name: str = "kinetic_completion",
    *,
    target: dg.AssetSelection | None = None,
    resource_key: str = "kinetic",
    minimum_interval_seconds: int = 30,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
) -> dg.SensorDefinition:
    """Watch the jobs of assets with `detached=True`, and start a run for each that has ended.

    `target` has to include those assets, and the assets to be made after them; by default it is these alone. The sensor
    opens only the store that the resource names. It reads the jobs from the event logs of the runs that submitted them;
    any user who may launch a run chooses its tags, so they are not trusted.
    """
    memory = _Memory({}, {}, {})  # of this process; another one reads all again
    if target is None:
        detached = dg.AssetSelection.tag(ASSET_WAITS, "true")
        target = detached | detached.downstream()

    def evaluate(context: dg.SensorEvaluationContext, **resources: Any) -> dg.SensorResult:
        kinetic = resource_of(context, resources, resource_key)
        return _Completion(context, memory, target, kinetic.place()).tick()

    return dg.SensorDefinition(
        name=name,
        asset_selection=target,
        evaluation_fn=evaluate,
        required_resource_keys={resource_key},
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description="Finishes assets that were submitted with detached=True.",
    )


class _TickError(NamedTuple):
    """The time at which a job is read again after an unexpected error."""

    pause: float
    until: float  # by this process' steady clock


class _Memory(NamedTuple):
    """Holds what one tick leaves to the next one in the same process."""

    followers: dict[str, Follower]  # by job
    tickets: dict[str, dict[str, Ticket]]  # by run that is over: its log does not change
    tick_errors: dict[str, _TickError]  # by job that could not be read because of an unexpected error


class _Completion:
    """One tick. Its cursor: the jobs whose runs were requested, the reports on the others, and the position to continue
    from."""

    def __init__(
        self,
        context: dg.SensorEvaluationContext,
        memory: _Memory,
        target: dg.AssetSelection,
        place: Mapping[str, str | None],
    ) -> None:
        self._here = here = settings.load(None, **place)
        self._store, self._deployment = here.store, here.deployment
        self._context = context
        self._followers, self._tickets, self._tick_errors = memory
        self._location = _compat.location_of_sensor(context)
        repository = context.repository_def
        self._held = (
            None if repository is None else _compat.assets_in(target, repository)
        )  # the sensor's assets, if known
        state = json.loads(context.cursor) if context.cursor else {}
        self._asked: set[str] = set(state.get("asked", ()))
        self._told: dict[str, str] = dict(state.get("told", {}))
        self._next: str = state.get("next", "")
        self._troubles: list[str] = []
        self._fit: set[str] = set()  # configs that were checked

    def tick(self) -> dg.SensorResult:
        waiting = self._waiting()
        for table in (self._followers, self._tick_errors):
            for job in set(table) - set(waiting):
                del table[job]
        requests: list[dg.RunRequest] = []
        observations: list[dg.AssetObservation] = []
        told: dict[str, str] = {}
        for job, status in self._looked_at(waiting):
            run, ticket = waiting[job]
            if status == "NOT_FOUND" and not run.is_finished:
                continue  # it is still being submitted
            if status == "NOT_FOUND" and not ticket.spec and run.status is not dg.DagsterRunStatus.SUCCESS:
                self._context.instance.add_run_tags(run.run_id, {tag_of(TICKET, ticket.step): FINISHED})
                self._context.log.info(_NEVER.format(job=job, run=run.run_id))
                continue
            unknown = self._unknown(ticket)
            if unknown:
                self._troubles.append(_UNKNOWN.format(job=job, status=status.lower(), run=run.run_id, asset=unknown))
                continue
            if status in ("SUCCEEDED", "FAILED", "CANCELLED", "NOT_FOUND"):
                try:
                    requests.append(self._request(run, ticket))
                except Exception as error:  # an error in one run does not affect the others
                    said = error if isinstance(error, UsageError) else repr(error)
                    self._troubles.append(f"job {job} of run {run.run_id} cannot be finished: {said}")
                    continue
            elif self._told.get(job) != status:
                observations += _observed(run, ticket, status)
            told[job] = status
        # What is not asked for in the end was asked for before, and never twice: run_key.
        cursor = {
            "asked": sorted(request.run_key or "" for request in requests),
            "told": {job: status for job, status in {**self._told, **told}.items() if job in waiting},
            "next": self._next,
        }
        if not requests and self._troubles and len(told) == 0:
            raise UsageError("; ".join(self._troubles))  # a tick that could do nothing is a failed one
        for trouble in self._troubles:
            self._context.log.error(trouble)
        reason = None
        if not requests:
            reason = f"{len(waiting)} jobs have not ended" if waiting else "no job of a detached asset is under way"
        return dg.SensorResult(
            run_requests=requests or None, skip_reason=reason, cursor=json.dumps(cursor), asset_events=observations
        )

    def _waiting(self) -> dict[str, tuple[dg.DagsterRun, Ticket]]:
        """The jobs without a run that finishes them. A run whose jobs all have one is marked."""
        instance = self._context.instance
        found: dict[str, tuple[dg.DagsterRun, Ticket]] = {}
        runs: set[str] = set()
        for run in self._runs():
            runs.add(run.run_id)
            where = _compat.location_of_run(run)
            if self._location and where and where != self._location:
                continue  # that location has a sensor of its own
            tags = open_tags(run.tags)
            logged = self._logged(run, tags)
            done = {}
            for tag in tags:
                ticket = logged.get(tag)
                if ticket is None:
                    if run.is_finished and where == self._location:  # nothing is there, and nothing will come
                        self._troubles.append(_NO_TICKET.format(run=run.run_id, tag=tag))
                        done[tag] = FINISHED
                elif ticket.job in self._asked:
                    done[tag] = FINISHED
                elif (self._location and where) or not self._unknown(ticket):  # else it may be of another location
                    found[ticket.job] = run, ticket
            if len(done) == len(tags) and run.is_finished:
                done[WAITS] = FINISHED
            if done:
                instance.add_run_tags(run.run_id, done)
        for run_id in set(self._tickets) - runs:
            del self._tickets[run_id]
        return found

    def _logged(self, run: dg.DagsterRun, tags: Collection[str]) -> Mapping[str, Ticket]:
        """The tickets in the log of a run; of one that is over, as this process has read them before."""
        if run.run_id in self._tickets:
            return self._tickets[run.run_id]
        try:
            found = tickets_of(self._context.instance, run.run_id) if tags else {}
        except UsageError as error:
            self._troubles.append(f"the log of run {run.run_id} is wrong: {error}")
            return {}
        if run.is_finished:
            self._tickets[run.run_id] = found
        return found

    def _unknown(self, ticket: Ticket) -> str:
        """An asset of the ticket that is none of this sensor's, if there is one."""
        if self._held is None:
            return ""
        return next(
            (name for name, key in zip(ticket.assets, _keys_of(ticket), strict=True) if key not in self._held), ""
        )

    def _runs(self) -> Iterator[dg.DagsterRun]:
        """The waiting runs, the oldest first."""
        cursor: str | None = None
        while True:
            records = self._context.instance.get_run_records(
                dg.RunsFilter(tags={WAITS: WAITING}), limit=PAGE, cursor=cursor, order_by="id", ascending=True
            )
            yield from (record.dagster_run for record in records)
            if len(records) < PAGE:
                return
            cursor = records[-1].dagster_run.run_id

    def _looked_at(self, waiting: Mapping[str, tuple[dg.DagsterRun, Ticket]]) -> Iterator[tuple[str, str]]:
        from kinetic_orchestration.jobs.following.drivers import step_all

        order = sorted(
            job for job in waiting if job not in self._tick_errors or self._tick_errors[job].until < monotonic()
        )
        order = [job for job in order if job >= self._next] + [job for job in order if job < self._next]
        followers: list[Follower] = []
        for job in order:
            ticket = waiting[job][1]
            try:
                followers.append(self._follower(ticket))
            except JobNotFound:
                yield job, "NOT_FOUND"
            except Exception as error:
                self._failed(ticket, error)
        seen: set[str] = set()
        for follower, trouble in step_all(followers, patience=TICK_SECONDS) if followers else ():
            seen.add(follower.job.job_id)
            if isinstance(trouble, JobNotFound):
                yield follower.job.job_id, "NOT_FOUND"
            elif trouble is not None:
                self._failed(waiting[follower.job.job_id][1], trouble)
            else:
                self._tick_errors.pop(follower.job.job_id, None)
                yield follower.job.job_id, follower.status.value
        left = [follower.job.job_id for follower in followers if follower.job.job_id not in seen]
        self._next = left[0] if left else ""

    def _failed(self, ticket: Ticket, error: Exception) -> None:
        """Report that a job cannot be read. An error that is not one of this package's own is a bug in it: it is
        reported with its traceback, and the job is skipped for a growing time and followed again then.
        """
        if isinstance(error, KineticError):
            self._troubles.append(f"job {ticket.job} of run {ticket.run} cannot be looked at: {error}")
            return
        self._followers.pop(ticket.job, None)
        before = self._tick_errors.get(ticket.job)
        pause = 0.0 if before is None else min(max(2 * before.pause, FIRST_PAUSE), LONGEST_PAUSE)
        self._tick_errors[ticket.job] = _TickError(pause, monotonic() + pause)
        when = f"in {pause:.0f} s" if pause else "at the next tick"
        trace = "".join(traceback.format_exception(error))
        self._troubles.append(
            _MISTAKE.format(job=ticket.job, run=ticket.run, error=repr(error), when=when, trace=trace)
        )

    def _follower(self, ticket: Ticket) -> Follower:
        from kinetic_orchestration.jobs.following.follower import Follower

        if ticket.job not in self._followers:
            refuse_unseen(ticket, self._store, self._deployment)
            self._followers[ticket.job] = Follower(opened(ticket, self._here))
        return self._followers[ticket.job]

    def _request(self, run: dg.DagsterRun, ticket: Ticket) -> dg.RunRequest:
        tags = {tag_of(FINISHES, ticket.step): run.run_id, "kinetic/job_id": ticket.job, "kinetic/run": run.run_id}
        if (follower := self._followers.get(ticket.job)) is not None and follower.cursor.ended:
            tags[tag_of(ENDED, ticket.step)] = follower.cursor.ended
        own = {name: value for name, value in run.tags.items() if not name.startswith(_NOT_THE_USERS)}
        tags |= own | {name: run.tags[name] for name in run.tags if name in _PLACE or name.startswith(_DIMENSION)}
        selection = [*_keys_of(ticket), *self._after(run, ticket)]
        config = self._config(run, selection)
        self._refuse_unfit(config, selection, run)
        return dg.RunRequest(
            run_key=ticket.job,
            run_config=config,
            tags=tags,
            asset_selection=selection,
            partition_key=run.tags.get(_PARTITION),
        )

    def _after(self, run: dg.DagsterRun, ticket: Ticket) -> list[dg.AssetKey]:
        """The assets that the run was to make after these, and could not. Unknown if it waits for several jobs."""
        repository = self._context.repository_def
        several = sum(name.startswith(TICKET) for name in run.tags) > 1
        if repository is None or several:
            return []
        wanted = _compat.assets_of(run, repository)
        found: dict[dg.AssetKey, None] = {}
        made = _keys_of(ticket)
        left = list(made)
        while left:
            for child in _compat.children_of(left.pop(), repository):
                if child in wanted and child in (self._held or ()) and child not in found and child not in made:
                    found[child] = None
                    left.append(child)
        return sorted(found)

    def _config(self, run: dg.DagsterRun, selection: Sequence[dg.AssetKey]) -> dict[str, Any]:
        """The part of the submitting run's config that concerns these assets."""
        config: dict[str, Any] = {name: run.run_config[name] for name in _OF_ITS_STEPS if name in run.run_config}
        repository = self._context.repository_def
        if repository is None or not config.get("ops"):
            return config
        steps = _compat.steps_of(selection, repository)
        config["ops"] = {step: given for step, given in config["ops"].items() if step in steps}
        return config

    def _refuse_unfit(self, config: Mapping[str, Any], selection: Sequence[dg.AssetKey], run: dg.DagsterRun) -> None:
        """Refuse a config that the definitions no longer accept: it would fail the tick, and with it all other jobs."""
        same = json.dumps([sorted(map(str, selection)), config], sort_keys=True, default=str)
        if self._context.repository_def is None or same in self._fit:
            return
        try:
            _compat.check_config(self._context.repository_def, selection, config)
        except dg.DagsterInvalidConfigError as error:
            raise UsageError(_UNFIT.format(run=run.run_id, why=error)) from error
        self._fit.add(same)


_MISTAKE = (
    "job {job} of run {run} cannot be looked at, by a mistake of kinetic-orchestration's: {error}. The job goes on, "
    "and so do the others; it is looked at again {when}. Please report it with this traceback:\n{trace}"
)
_UNFIT = (
    "the config of that run does not suit its assets as they are defined now: take the change back until the job is "
    "finished; if nobody wants it any more, delete run {run}. {why}"
)
_NO_TICKET = (
    "run {run} says by its tag {tag} that it waits for a job, and its event log has none that a step of it submitted. "
    "Whoever launched the run has written that tag, and nothing is opened for it; `kinetic-orchestration jobs` lists "
    "what goes on"
)
_NEVER = (
    "run {run} ended before job {job} was submitted, which it had announced: there is nothing to finish. Its log says "
    "why; to have the asset, materialize it anew"
)
_UNKNOWN = (
    "job {job} of run {run} is {status}, and {asset} is none of the assets that this sensor starts runs of: put it "
    "back, or into the target= of build_kinetic_completion_sensor; if nobody wants it any more, delete that run"
)


def _keys_of(ticket: Ticket) -> list[dg.AssetKey]:
    return [dg.AssetKey.from_user_string(asset) for asset in ticket.assets]


def _observed(run: dg.DagsterRun, ticket: Ticket, status: str) -> list[dg.AssetObservation]:
    metadata: dict[str, Any] = {
        "kinetic/job_id": ticket.job,
        "kinetic/status": status,
        "kinetic/run": dg.MetadataValue.dagster_run(run.run_id),
    }
    return [
        dg.AssetObservation(
            key,
            partition=run.tags.get(_PARTITION),
            description=f"job {ticket.job} is {status.lower()}",
            metadata=metadata,
        )
        for key in _keys_of(ticket)[:MOST_OBSERVED]
    ]
