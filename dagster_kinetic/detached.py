"""The detached pattern: one run submits a job and is over, no worker waits, a sensor looks, a second run finishes.

Both runs make the same assets, by the same step. What binds them is a ticket: a tag of the first run, which the sensor
hands to the second one. It names the job, its place, and the digest that lets another process believe it.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import dagster as dg

from dagster_kinetic import _compat
from dagster_kinetic.config import KineticRunConfig
from dagster_kinetic.resource import KineticResource
from kinetic_orchestration.errors import JobNotFound, UsageError
from kinetic_orchestration.values import JobStatus

WAITS = "kinetic/detached"  # of a run: "waiting" until each of its jobs has a run that finishes it
WAITING, FINISHED = "waiting", "finished"
TICKET = "kinetic/detached."  # + step: of the run that submitted
FINISHES = "kinetic/finishes."  # + step: of the run that finishes
LONGEST_NAME = 63  # of a tag's key, after the slash
RESULTS = (dg.MaterializeResult, dg.AssetCheckResult, dg.Output)  # some are tuples by themselves


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
    project: str = ""
    store: str = ""
    deployment: str = ""

    def to_tag(self) -> str:
        return json.dumps({name: value for name, value in asdict(self).items() if value})

    @classmethod
    def from_tag(cls, tag: str) -> Ticket:
        try:
            told = json.loads(tag)
            known = {name: str(value) for name, value in told.items() if name in cls.__dataclass_fields__}
            return cls(**{**known, "assets": tuple(map(str, told["assets"]))})  # type: ignore[arg-type]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UsageError(f"no ticket of a detached job is {tag[:200]!r} ({error!r})") from error

    @property
    def place(self) -> dict[str, str | None]:
        return {name: getattr(self, name) or None for name in ("project", "store", "deployment")}


class _Submitted(Exception):
    """Ends the step of a run that only submits."""


def as_detached(step: Callable[..., Any], needed: Collection[str]) -> Callable[..., Any]:
    """The step of assets that are made by two runs. In a test, called as a function, it waits for its job.

    `needed`: the outputs that the second run has to give, which Dagster does not know, since the first one has none.
    """

    @functools.wraps(step)
    def detached(*args: Any, **kwargs: Any) -> Iterator[Any]:
        given = {
            name: _Detached(value) if isinstance(value, KineticResource) else value for name, value in kwargs.items()
        }
        context = args[0] if args else kwargs["context"]
        try:
            value = step(*args, **given)
        except _Submitted:
            return
        results = _results(value, context)
        if not _compat.is_direct(context):
            results += _left_out(results, context, needed)
        yield from results

    detached.__signature__ = inspect.signature(step)  # type: ignore[attr-defined]
    return detached


def two_runs(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of such an asset: a run that makes nothing is none that failed."""
    if keywords.get("output_required"):
        raise UsageError(
            "an asset with detached=True is made by a second run, and the first one makes nothing: leave out "
            "output_required=True"
        )
    return {**keywords, "output_required": False}


def _results(value: Any, context: _compat.Context) -> list[Any]:
    """What the body returned, each with the output that it is of."""
    names = list(_compat.outputs_of(context))
    if len(names) > 1 and isinstance(value, tuple) and not isinstance(value, RESULTS):
        values = list(value)
    elif inspect.isgenerator(value) or (len(names) > 1 and value is None):
        values = list(value or ())
    else:
        values = [value]
    found: list[Any] = []
    for index, each in enumerate(values):
        if isinstance(each, dg.MaterializeResult | dg.AssetCheckResult):
            found.append(each)
        elif index >= len(names):
            raise UsageError(f"the body returned {len(values)} values for {len(names)} assets: {', '.join(names)}")
        elif not isinstance(each, dg.Output):
            found.append(dg.Output(each, output_name=names[index]))
        elif each.output_name != _compat.OUTPUT:
            found.append(each)
        else:  # named by its place
            rest: dict[str, Any] = {"metadata": each.metadata, "data_version": each.data_version, "tags": each.tags}
            found.append(dg.Output(each.value, output_name=names[index], **rest))
    return found


def _left_out(results: list[Any], context: _compat.Context, needed: Collection[str]) -> list[dg.Output[None]]:
    """The assets without a value that nothing was said of, which are made all the same. What else is missing is
    refused, as Dagster would if it knew that it is needed.
    """
    outputs = _compat.outputs_of(context)
    named = {each.output_name for each in results if isinstance(each, dg.Output)}
    keys = {each.asset_key for each in results if isinstance(each, dg.MaterializeResult)}
    missing = [name for name, key in outputs.items() if name in needed and name not in named and key not in keys]
    if None in keys and len(outputs) == 1:
        missing = []
    for name in missing:
        if not _compat.is_nothing(context, name):
            raise UsageError(f"the body returned no value of {outputs[name].to_user_string()}")
    told = {check.check_name for each in results for check in _checks_in(each)}
    for check in _compat.selected_checks(context):
        if check.name not in told and None not in told:
            raise UsageError(
                f"the body returned no result of the check {check.name!r}: return a MaterializeResult with "
                "check_results"
            )
    return [dg.Output(None, output_name=name) for name in missing]


def _checks_in(result: Any) -> list[dg.AssetCheckResult]:
    if isinstance(result, dg.AssetCheckResult):
        return [result]
    return list(getattr(result, "check_results", None) or ())


class _Detached:
    """Stands for the KineticResource in such a step."""

    def __init__(self, kinetic: KineticResource) -> None:
        self._kinetic = kinetic

    def overridden_by(self, config: KineticRunConfig | None) -> _Detached:
        return _Detached(self._kinetic.overridden_by(config))

    def run(
        self,
        function: Callable[..., Any],
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        accelerator: str | None = None,
        context: _compat.Context = None,
        **options: Any,
    ) -> Any:
        if _compat.is_direct(context):
            return self._kinetic.run(function, args, kwargs, accelerator=accelerator, context=context, **options)
        from dagster_kinetic.step import run_in_step
        from kinetic_orchestration.job import JobHandle

        spec = self._kinetic._spec(function, (args, kwargs), accelerator, context, options)
        ticket = _ticket_of(context)
        if ticket is not None:
            _refuse_elsewhere(ticket, spec)
            again = context.retry_number or context.run.parent_run_id
            try:
                job = opened(ticket)
            except JobNotFound:  # nobody came for it before its records went
                if not again:
                    raise
            else:
                if not again or JobHandle(job).peek().status is not JobStatus.FAILED:
                    return run_in_step(spec, context, job=job)
        self._submit(spec, context, ticket)
        raise _Submitted

    def _submit(self, spec: Any, context: _compat.Context, ticket: Ticket | None) -> None:
        """Again, where a try has failed: the next generation of the same identity, with its checkpoints."""
        from dagster_kinetic.containers import refuse_if_it_would_end_with_its_run
        from dagster_kinetic.step import Place, identity_of, left_if_interrupted, place_of
        from kinetic_orchestration.launch import settings_for

        refuse_if_it_would_end_with_its_run(spec, context)
        here = settings_for(spec)
        with left_if_interrupted(spec, context) as launching:
            if ticket is None:
                place = place_of(context, self._kinetic._call(context, None))
                identity = identity_of(spec, place)
            else:
                place = Place(ticket.run, ticket.step, ticket.partition, ticket.call)
                identity = place.identity(here.deployment)
            found = Ticket(
                "", _compat.asset_names(context), identity.run, place.step, place.partition, place.call,
                project=here.project, store=here.store, deployment=here.deployment,
            )  # fmt: skip

            def note(job: str, digest: str = "") -> None:
                tag = replace(found, job=job, spec=digest).to_tag()
                tags = {WAITS: WAITING, tag_of(TICKET, place.step): tag}
                context.instance.add_run_tags(_compat.run_id(context), tags)

            job = launching.launch(lambda: identity, claimed=note)
            note(job.job_id, "" if job.doubt else job.spec_digest)
        context.log.info(
            f"job {job.job_id} runs {spec.name} on {job.plan().hardware}, and this run is over: the completion sensor "
            f"starts another one when it has ended. To watch it: kinetic-orchestration logs -f {job.job_id}. "
            f"To end it: kinetic-orchestration cancel {job.job_id}"
        )


def tag_of(kind: str, step: str) -> str:
    """The key of a step's tag, within what Dagster takes for one."""
    name = f"{kind}{re.sub('[^A-Za-z0-9_.-]', '_', step)}"
    space, _, rest = name.partition("/")
    if len(rest) <= LONGEST_NAME:
        return name
    return f"{space}/{rest[:40]}-{hashlib.sha256(step.encode()).hexdigest()[:16]}"


def opened(ticket: Ticket) -> Any:
    """The job of a ticket, in a process that did not submit it."""
    from kinetic_orchestration.job import open_job

    return open_job(ticket.job, ticket.spec, **ticket.place)


def tickets_of(tags: Mapping[str, str]) -> Iterator[Ticket]:
    yield from map(Ticket.from_tag, open_tags(tags))


def open_tags(tags: Mapping[str, str]) -> list[str]:
    """Those of jobs that have no run yet that finishes them."""
    return [tags[name] for name in sorted(tags) if name.startswith(TICKET) and tags[name] != FINISHED]


def _refuse_elsewhere(ticket: Ticket, spec: Any) -> None:
    """Whoever may start runs may write tags: what one names is looked for where this step's own jobs are."""
    from kinetic_orchestration.launch import settings_for

    here = settings_for(spec)
    if (ticket.store, ticket.deployment) != (here.store, here.deployment):
        raise UsageError(
            f"this run's ticket names job {ticket.job} in {ticket.store} (deployment {ticket.deployment!r}), and the "
            f"jobs of this step are in {here.store} (deployment {here.deployment!r}). If that was changed since the "
            "job was submitted, change it back until it has ended; else materialize the asset anew"
        )


def _ticket_of(context: _compat.Context) -> Ticket | None:
    """Of the job that this run is to finish."""
    tag = context.run.tags.get(tag_of(FINISHES, _compat.step_key(context)))
    return None if tag is None else Ticket.from_tag(tag)
