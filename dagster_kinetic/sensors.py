"""Two sensors: one finishes what detached assets have submitted, the other removes what nobody wants any more.

Each tick does a bounded amount of work, by one look at all jobs of a store, and may be cut off at any line.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import dagster as dg

from dagster_kinetic import _compat
from dagster_kinetic.resource.kinetic_resource import KineticResource
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
    tag_of,
    tickets_of,
)
from kinetic_orchestration.errors import JobNotFound, KineticError, UsageError
from kinetic_orchestration.plan.configuration import settings

if TYPE_CHECKING:
    from kinetic_orchestration.follow import Follower
    from kinetic_orchestration.reaper import Reaped

BRANCHES_SECONDS = 20.0
PAGE = 500  # runs that wait, read at a time
TICK_SECONDS = 30.0  # Dagster ends a tick after 60
FIRST_PAUSE, LONGEST_PAUSE = 60.0, 3600.0  # before a job is looked at again at which that failed more than once
LONGEST_TALE = 10  # what is named one by one in the reason of a tick
MOST_OBSERVED = 10  # assets of one job
MOST_BRANCHES = 1000  # that are asked for: were there more, none could be said to be closed

_PARTITION = "dagster/partition"
# What the second run takes of the first one's place: its backfill, and its partition, which Dagster then believes as it
# is. One that has been removed since, or is none of these assets, would else fail the tick, and with it all other jobs.
_PLACE = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end", "dagster/backfill", _PARTITION)
_DIMENSION = "dagster/partition/"
_NOT_THE_USERS = ("dagster/", ".dagster/", "kinetic/")  # how the tags of a run begin that say what it is by itself
_OF_ITS_STEPS = ("ops", "resources")  # of a run's config: the rest says how that run is executed


def build_kinetic_completion_sensor(
    name: str = "kinetic_completion",
    *,
    target: dg.AssetSelection | None = None,
    resource_key: str = "kinetic",
    minimum_interval_seconds: int = 30,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
) -> dg.SensorDefinition:
    """Looks after the jobs of assets with `detached=True`, and starts a run for each that has ended.

    `target` has to hold those assets, and what was to be made after them; by default it is these alone. The sensor
    opens only the store that the resource names. Which jobs are there it reads from the event logs of the runs that
    submitted them; whoever launches a run chooses its tags, and these are believed in nothing.
    """
    memory = _Memory({}, {}, {})  # of this process; another one starts by reading anew
    if target is None:
        detached = dg.AssetSelection.tag(ASSET_WAITS, "true")
        target = detached | detached.downstream()

    def look(context: dg.SensorEvaluationContext, **resources: Any) -> dg.SensorResult:
        kinetic = _resource(context, resources, resource_key)
        return _Completion(context, memory, target, kinetic.place()).tick()

    return dg.SensorDefinition(
        name=name,
        asset_selection=target,
        evaluation_fn=look,
        required_resource_keys={resource_key},
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description="Finishes assets that were submitted with detached=True.",
    )


def _resource(context: dg.SensorEvaluationContext, given: Mapping[str, Any], key: str) -> KineticResource:
    """The resource of the sensor: handed in by a test's direct call, else from the context."""
    kinetic = given.get(key) or getattr(context.resources, key)
    if not isinstance(kinetic, KineticResource):
        raise UsageError(f"the resource {key!r} is a {type(kinetic).__name__}, and no KineticResource")
    return kinetic


class _Stumble(NamedTuple):
    """Holds when a job is looked at again at which looking failed as it never should."""

    pause: float
    until: float  # by this process' steady clock


class _Memory(NamedTuple):
    """Holds what one tick leaves to the next one in the same process."""

    followers: dict[str, Follower]  # by job
    tickets: dict[str, dict[str, Ticket]]  # by run that is over: its log does not change
    stumbled: dict[str, _Stumble]  # by job at which a mistake of ours came to light


class _Completion:
    """One tick. Its cursor: the jobs whose runs were asked for, what was told of the others, and where to go on."""

    def __init__(
        self,
        context: dg.SensorEvaluationContext,
        memory: _Memory,
        target: dg.AssetSelection,
        place: Mapping[str, str | None],
    ) -> None:
        here = settings.load(None, **place)
        self._store, self._deployment = here.store, here.deployment
        self._place = place
        self._context = context
        self._followers, self._tickets, self._stumbled = memory
        self._location = _compat.location_of_sensor(context)
        self._held = self._assets_of(target)
        state = json.loads(context.cursor) if context.cursor else {}
        self._asked: set[str] = set(state.get("asked", ()))
        self._told: dict[str, str] = dict(state.get("told", {}))
        self._next: str = state.get("next", "")
        self._troubles: list[str] = []
        self._fit: set[str] = set()  # configs that were looked at

    def tick(self) -> dg.SensorResult:
        waiting = self._waiting()
        for table in (self._followers, self._stumbled):
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
                except Exception as error:  # whatever is wrong with one run, the others go on
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
        """The jobs that have no run yet that finishes them. Of a run whose jobs all have one, that is noted."""
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

    def _assets_of(self, target: dg.AssetSelection) -> Collection[dg.AssetKey] | None:
        """Those that this sensor may start a run of; None if that is not known here."""
        repository = self._context.repository_def
        if repository is None:
            return None
        return _compat.assets_in(target, repository)

    def _unknown(self, ticket: Ticket) -> str:
        """An asset of the ticket that is none of this sensor's, if there is one."""
        if self._held is None:
            return ""
        return next(
            (name for name, key in zip(ticket.assets, _keys_of(ticket), strict=True) if key not in self._held), ""
        )

    def _runs(self) -> Iterator[dg.DagsterRun]:
        """Those that wait, the oldest first."""
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
        from kinetic_orchestration.follow import step_all

        order = sorted(job for job in waiting if job not in self._stumbled or self._stumbled[job].until < monotonic())
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
                self._stumbled.pop(follower.job.job_id, None)
                yield follower.job.job_id, follower.status.value
        left = [follower.job.job_id for follower in followers if follower.job.job_id not in seen]
        self._next = left[0] if left else ""

    def _failed(self, ticket: Ticket, error: Exception) -> None:
        """Tell that a job cannot be looked at. What is no refusal of this package's own is a mistake in it: it is told
        with all that is known of it, and the job is left alone for a while that grows, and followed anew then.
        """
        if isinstance(error, KineticError):
            self._troubles.append(f"job {ticket.job} of run {ticket.run} cannot be looked at: {error}")
            return
        self._followers.pop(ticket.job, None)
        before = self._stumbled.get(ticket.job)
        pause = 0.0 if before is None else min(max(2 * before.pause, FIRST_PAUSE), LONGEST_PAUSE)
        self._stumbled[ticket.job] = _Stumble(pause, monotonic() + pause)
        when = f"in {pause:.0f} s" if pause else "at the next tick"
        trace = "".join(traceback.format_exception(error))
        self._troubles.append(
            _MISTAKE.format(job=ticket.job, run=ticket.run, error=repr(error), when=when, trace=trace)
        )

    def _follower(self, ticket: Ticket) -> Follower:
        from dagster_kinetic.step.containers import refuse_unseen
        from kinetic_orchestration.follow import Follower

        if ticket.job not in self._followers:
            refuse_unseen(ticket, self._store, self._deployment)
            self._followers[ticket.job] = Follower(opened(ticket, self._place))
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
        """What the run was to make after these, and could not. Where it waits for several jobs, nobody can say when."""
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
        """Of the run that submitted, what concerns these assets."""
        config: dict[str, Any] = {name: run.run_config[name] for name in _OF_ITS_STEPS if name in run.run_config}
        repository = self._context.repository_def
        if repository is None or not config.get("ops"):
            return config
        steps = _compat.steps_of(selection, repository)
        config["ops"] = {step: given for step, given in config["ops"].items() if step in steps}
        return config

    def _refuse_unfit(self, config: Mapping[str, Any], selection: Sequence[dg.AssetKey], run: dg.DagsterRun) -> None:
        """A config that the definitions do not take any more would fail the tick, and with it all other jobs."""
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


# ---- the reaper ----------------------------------------------------------------------------------------------------


def build_kinetic_reaper_sensor(
    name: str = "kinetic_reaper",
    *,
    resource_key: str = "kinetic",
    minimum_interval_seconds: int = 600,
    branches: Callable[[], Iterable[str]] | None = None,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
) -> dg.SensorDefinition:
    """Finds hosts that no job wants, in all zones, and old records, and removes them: what `ko reap` does.

    `branches` gives the names of the branch deployments that are open now, such as `dagster_plus_branches`. One that
    this sensor has seen open and that is there no more is closed: its jobs are cancelled, and its hosts removed.
    """

    def look(context: dg.SensorEvaluationContext, **resources: Any) -> dg.SensorResult:
        own = _resource(context, resources, resource_key).place()
        known = _Branches.of(context.cursor)
        told = [_tale(_reaped(own))]
        context.log.info(told[0])
        if branches is not None:
            known = known.seen(set(branches()), str(own["deployment"] or ""))
            for branch in sorted(known.closing):
                is_clear, line = _cleared({**own, "deployment": branch})
                told.append(line)
                context.log.info(line)
                if is_clear:
                    known.closing.discard(branch)
        return dg.SensorResult(skip_reason="; ".join(told), cursor=known.to_cursor())

    return dg.SensorDefinition(
        name=name,
        evaluation_fn=look,
        minimum_interval_seconds=minimum_interval_seconds,
        required_resource_keys={resource_key},
        default_status=default_status,
        description="Removes hosts and records that no job wants any more.",
    )


@dataclass(frozen=True)
class _Branches:
    """What the sensor knows of branch deployments from one tick to the next."""

    open: set[str] = field(default_factory=set)  # when it last saw them
    missed: set[str] = field(
        default_factory=set
    )  # those of them that the last tick did not see: one odd answer is none
    closing: set[str] = field(default_factory=set)  # closed, and not all of theirs is gone

    @classmethod
    def of(cls, cursor: str | None) -> _Branches:
        state = json.loads(cursor) if cursor else {}
        return cls(*(set(state.get(name, ())) for name in ("branches", "missed", "closing")))

    def to_cursor(self) -> str:
        state = {"branches": self.open, "missed": self.missed, "closing": self.closing}
        return json.dumps({name: sorted(names) for name, names in state.items() if names or name == "branches"})

    def seen(self, now: set[str], own: str) -> _Branches:
        gone = self.open - now - {own}
        if not now and len(gone) > 1:
            raise UsageError(
                f"no branch deployment is said to be open, and {len(gone)} were: {_some(sorted(gone))}. That is not "
                "believed, and nothing of theirs is removed, until one is open again; to remove it now: "
                "kinetic-orchestration reap, and cancel, with KINETIC_DEPLOYMENT set to its name"
            )
        missed = gone - self.missed
        return _Branches(now | missed, missed, (self.closing | (gone - missed)) - now)


def _cleared(place: Mapping[str, str | None]) -> tuple[bool, str]:
    """Whether nothing is left of a closed branch deployment, and what was done."""
    from kinetic_orchestration.reaper import DELETING, LEFT, UNREAD

    said = f"branch deployment {place['deployment']} is closed"
    try:
        cancelled, troubles = _cancel_all(place)
        found = _reaped(place)
    except KineticError as error:
        return False, f"{said}, and not all of it could be removed, which the next tick tries again: {error}"
    left = cancelled or troubles or any(each.result in (DELETING, LEFT, UNREAD) for each in found)
    not_done = f"; {len(troubles)} could not be: {troubles[0]}" if troubles else ""
    return not left, f"{said}: {cancelled} jobs cancelled{not_done}, {_tale(found)}"


def _reaped(place: Mapping[str, str | None]) -> list[Reaped]:
    from kinetic_orchestration.job import place_of
    from kinetic_orchestration.reaper import reap

    store, backend, here = place_of(**place)
    return reap(store, backend, here)


def _cancel_all(place: Mapping[str, str | None]) -> tuple[int, list[KineticError]]:
    """How many jobs were cancelled, and why others could not be."""
    from kinetic_orchestration import act
    from kinetic_orchestration.job import list_jobs

    live = list_jobs(**place)
    troubles: list[KineticError] = []
    for job in live:
        try:
            act.cancel(job._job, "its branch deployment was closed", act.ME)
            job.status()  # nobody else may come to let go of its hosts
        except KineticError as error:
            troubles.append(error)
    return len(live) - len(troubles), troubles


def _tale(found: Sequence[Reaped]) -> str:
    """What was removed, in one line; and what could not be."""
    from kinetic_orchestration.reaper import LEFT, UNREAD

    done = [f"{each.what} {each.name} ({each.why})" for each in found if each.result not in (LEFT, UNREAD)]
    not_done = [f"{each.what} {each.name}: {each.why}" for each in found if each.result in (LEFT, UNREAD)]
    text = f"removed {len(done)}: {_some(done)}" if done else "nothing to remove"
    return text + (f"; {len(not_done)} could not be: {_some(not_done)}" if not_done else "")


def _some(lines: Sequence[str]) -> str:
    more = f" and {len(lines) - LONGEST_TALE} more" if len(lines) > LONGEST_TALE else ""
    return ", ".join(lines[:LONGEST_TALE]) + more


def dagster_plus_branches(url: str, token: str) -> Callable[[], list[str]]:
    """For `branches`: what Dagster+ says. `url`: of the organization, such as https://my-org.dagster.cloud. Both may
    be a `dagster.EnvVar`.

    A branch deployment is open as long as its pull request is; one without a pull request is never told of.
    """

    def ask() -> list[str]:
        import urllib.error
        import urllib.request

        class Stays(urllib.request.HTTPRedirectHandler):
            def redirect_request(self, *_: Any) -> None:  # the token would go along
                return None

        address = _address(url)
        request = urllib.request.Request(
            address + "/graphql",
            data=json.dumps({"query": _OPEN_BRANCHES, "variables": {"limit": MOST_BRANCHES}}).encode(),
            headers={"Content-Type": "application/json", "Dagster-Cloud-Api-Token": _secret(token)},
        )
        try:
            with urllib.request.build_opener(Stays).open(request, timeout=BRANCHES_SECONDS) as answer:
                told = json.loads(answer.read())
        except (OSError, ValueError) as error:  # a wrong token may be answered by the page to log in
            said = f"{error} {error.read(300)!r}" if isinstance(error, urllib.error.HTTPError) else str(error)
            raise UsageError(_NOT_TOLD.format(url=address, why=said)) from error
        branches = ((told.get("data") or {}).get("branchDeployments") or {}).get("nodes")
        if told.get("errors") or branches is None:
            raise UsageError(_NOT_TOLD.format(url=address, why=str(told)[:300]))
        if len(branches) >= MOST_BRANCHES:
            raise UsageError(
                f"{address} has {MOST_BRANCHES} open branch deployments or more, so it cannot be told which of them "
                "are closed: delete those that nobody needs"
            )
        return [str(entry["deploymentName"]) for entry in branches if entry["deploymentStatus"] == "ACTIVE"]

    return ask


def _resolved(given: str, what: str) -> str:
    if not isinstance(given, dg.EnvVar):
        return given.strip()
    found = (given.get_value() or "").strip()
    if not found:
        raise UsageError(f"the variable {given.env_var_name}, which has the {what} of Dagster+, is not set or empty")
    return found


def _secret(token: str) -> str:
    """A token that can be sent. No error shows any of it."""
    found = _resolved(token, "token")
    if not found or not found.isascii() or not found.isprintable():
        raise UsageError(
            f"the token for Dagster+ has {len(found)} characters and cannot be one: it is a line of printable ASCII, "
            "such as dagster.EnvVar('DAGSTER_CLOUD_API_TOKEN') reads it"
        )
    return found


def _address(url: str) -> str:
    """Where the token may be sent."""
    from urllib.parse import urlsplit

    found = _resolved(url, "address").rstrip("/")
    parts = urlsplit(found)
    here = parts.hostname in ("127.0.0.1", "localhost", "::1")
    if not parts.hostname or (parts.scheme != "https" and not (parts.scheme == "http" and here)):
        raise UsageError(
            f"{found!r} is no address to which a token is sent: give that of the organization, with https, such as "
            "https://my-org.dagster.cloud"
        )
    return found


# As dagster-rest-resources asks: queries/deployment.graphql, ListBranchDeployments; the headers are those of its
# gql_client.py. What that file calls fullDeployments are the others, those of production.
_OPEN_BRANCHES = """query ListBranchDeployments($limit: Int!) {
    branchDeployments(limit: $limit, pullRequestStatus: OPEN) { nodes { deploymentName deploymentStatus } } }"""
_NOT_TOLD = (
    "{url} does not tell its branch deployments, so nothing of theirs is removed: {why}. It takes the address of the "
    "organization, such as https://my-org.dagster.cloud, and a user token, which Dagster+ makes under "
    "Organization Settings, Tokens"
)
