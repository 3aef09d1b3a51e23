"""Drives one study: asks for trials, submits their jobs, follows them, and tells what they came to.

The study is the only record of a search: its trials, and beside each the job and the process that asked for it, written
before the job is submitted. A job's identity follows from study and trial, so any driver finds the job of a trial that
another one has left, and two that go on with the same trial submit one job.
"""

from __future__ import annotations

import contextvars
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kinetic_orchestration.api.steps.searches import trials as rules
from kinetic_orchestration.api.steps.searches.results import SearchResult, SearchTrial
from kinetic_orchestration.api.steps.searches.studies import Study
from kinetic_orchestration.errors import KineticError, SearchFailed, Unreachable, UsageError
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.system import processes

if TYPE_CHECKING:
    from kinetic_orchestration.jobs.job import Job
    from kinetic_orchestration.jobs.request import Request
    from kinetic_orchestration.plan.declare.spec import JobSpec
    from kinetic_orchestration.plan.identity import Identity
    from kinetic_orchestration.plan.values import Event, Outcome

LOOK = 1.0  # seconds between two looks at a study for trials that other drivers have, or have left
ENDING = 60.0  # seconds that trials have to end after Ctrl-C

Call = Callable[[Mapping[str, Any]], "JobSpec"]


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a search, as `search` describes them."""

    trials: int
    max_concurrent: int
    metric: str | None
    value: str | Callable[[Any], float] | None
    patience: int
    releases: bool
    on_trial: Callable[[SearchTrial], object] | None

    def __post_init__(self) -> None:
        for name in ("trials", "max_concurrent", "patience"):
            number = getattr(self, name)
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise UsageError(f"{name} is {number!r}: it has to be a whole number of at least 1")

    def value_of(self, result: Any) -> float:
        """Return the value of a trial. Raises UsageError if a result has none."""
        if callable(self.value):
            return rules.value_in(self.value(result), None)
        return rules.value_in(result, self.value or self.metric)


class _Running:
    """A trial that this process follows.

    Attributes:
        number: The trial.
        job: Its job.
        feed: Chooses the reports that its study hears.
        ends: What it is told as, if it was ended early; else "".
        outcome: What its job came to, once that has ended.
        state: What it was told as, once it was.
        error: Why it failed.
    """

    def __init__(self, number: int, job: Job, feed: rules.Feed, ends: str) -> None:
        self.number = number
        self.job = job
        self.feed = feed
        self.ends = ends
        self.outcome: Outcome | None = None
        self.state = ""
        self.error: Exception | None = None


class Driver:
    """Drives one study: asks and submits on the calling thread, follows each trial on a thread of its own.

    Args:
        call: Makes the spec of a trial's job from its parameters.
        study: The study.
        terms: The terms.
    """

    def __init__(self, call: Call, study: Study, terms: Terms) -> None:
        self._call = call
        self._study = study
        self._terms = terms
        self._patience = rules.Patience(terms.patience)
        self._running: dict[int, _Running] = {}
        self._threads: list[threading.Thread] = []
        self._ended: list[_Running] = []
        self._jobs: list[str] = []  # all that were followed here
        self._news = threading.Condition()
        self._detach = threading.Event()
        self._failed: BaseException | None = None  # of a thread, or of a submission
        self._first: Exception | None = None  # error of a trial
        self._request: Request | None = None
        self._left: list[rules.Trial] = []
        self._seen: dict[int, float] = {}  # trials that others drive: since when this process has seen them
        me = processes.find(os.getpid())
        self._me = f"{processes.machine()} {os.getpid()} {me.started if me else ''}"

    def run(self) -> SearchResult:
        """Drive the study to its number of trials. Raises what `search` says."""
        from kinetic_orchestration.api.printer import say

        try:
            while self._go_on():
                self._wait()
            self._release()
        except KeyboardInterrupt:
            say(f"cancelling {len(self._running)} trials of search {self._study.name}")
            self._cancel_all()
            raise
        except BaseException as error:
            self._leave(error)
            raise
        return self._result()

    # ---- which trial is next -------------------------------------------------------------------------------------

    def _go_on(self) -> bool:
        """Begin what may begin. Returns False when nothing runs, and nothing is left to begin."""
        self._take_ends()
        if self._failed is not None:
            raise self._failed
        while len(self._running) < self._terms.max_concurrent:
            found = self._next()
            if found is None:
                break
            self._begin(found)
        return bool(self._running or (self._left and not self._patience.is_over))

    def _next(self) -> rules.Trial | None:
        """Return the next trial to follow: one that another driver has left, or a new one."""
        seen, now = list(self._study.trials()), time.monotonic()
        self._left = [one for one in seen if one.state == rules.RUNNING and one.number not in self._running]
        for one in self._left:
            seen_for = now - self._seen.setdefault(one.number, now)
            goes_on = rules.who_goes_on(one, self._running, self._drives(one), seen_for)
            if goes_on == rules.ADOPT:
                return one
            if goes_on == rules.DROP:
                self._drop(one.number, "its driver died while it asked for it")
                return self._next()
        if len(seen) >= self._terms.trials or self._patience.is_over:
            return None
        number = self._study.ask()
        begun = self._study.trials()
        if sum(one.number < number for one in begun) >= self._terms.trials:
            self._drop(number, f"another driver had asked for the last of {self._terms.trials} trials")
            return None
        return next(one for one in begun if one.number == number)

    def _drop(self, number: int, why: str) -> None:
        """End a trial that never had a job."""
        self._study.mark(number, rules.WHY, why)
        self._study.tell(number, rules.FAIL, None, why)

    def _drives(self, trial: rules.Trial) -> bool | None:
        """Return whether the process that asked for a trial is alive; None if that cannot be known here."""
        machine, _, process = trial.marks.get(rules.DRIVER, "").partition(" ")
        pid, _, started = process.partition(" ")
        if machine != processes.machine() or not pid.isdecimal():
            return None
        return processes.alive(int(pid), started) and trial.marks[rules.DRIVER] != self._me

    # ---- a trial's job -------------------------------------------------------------------------------------------

    def _begin(self, trial: rules.Trial) -> None:
        """Find or submit the job of a trial, and follow it."""
        from kinetic_orchestration.api.printer import say

        number = trial.number
        self._study.mark(number, rules.DRIVER, self._me)
        job, is_new = self._job_of(trial)
        shown = ", ".join(f"{name}={value!r:.40}" for name, value in trial.parameters.items())
        say(f"search {self._study.name}: trial {number} ({shown}) {'runs' if is_new else 'goes on'} as {job.job_id}")
        running = _Running(number, job, rules.Feed(self._terms.metric, trial.last), trial.marks.get(rules.ENDS, ""))
        self._running[number] = running
        self._jobs.append(job.job_id)
        context = contextvars.copy_context()  # for whom this process acts
        thread = threading.Thread(target=context.run, args=(self._play, running), name=f"kinetic-trial-{number}")
        thread.daemon = True
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]
        thread.start()

    def _job_of(self, trial: rules.Trial) -> tuple[Job, bool]:
        """Return the one job that a trial ever has, and True if it was submitted here just now."""
        from kinetic_orchestration.api.printer import say
        from kinetic_orchestration.jobs.job import open_job
        from kinetic_orchestration.jobs.launch import cancel_if_interrupted, launch
        from kinetic_orchestration.plan.identity import job_id

        try:
            request = self._request_for(trial)
        except Exception as error:  # of the arguments, or the settings: the next one would meet it, too
            self._drop(trial.number, str(error)[: rules.LONGEST_WHY])
            raise
        name = job_id(request.identity, 1)

        def only_first(job: str) -> None:
            if job != name:  # another driver has followed the first to its end, between our look and now
                raise _Ended

        if request.store.read(names.spec(name), 0, 1) is None:
            self._study.mark(trial.number, rules.JOB, name)
            try:
                with cancel_if_interrupted(request, say):
                    launched = launch(request, claimed=only_first)
                return launched, launched.written != b""
            except _Ended:
                pass
            except Unreachable:  # it may have been submitted: whoever comes next sees it
                raise
            except KineticError as error:
                self._drop(trial.number, str(error)[: rules.LONGEST_WHY])
                raise
        return open_job(name, request.store, request.backend, request.trust), False

    def _request_for(self, trial: rules.Trial) -> Request:
        """Return the request of a trial's job. The store and the backend are opened once."""
        from kinetic_orchestration.jobs.request import draft

        spec = self._call(trial.parameters)
        origin = {"orchestrator": "search", "run": self._study.name, **spec.origin, "trial": str(trial.number)}
        spec = replace(spec, origin=origin)
        if self._request is None:
            asked = draft(spec)
            self._request = asked.open(_identity(asked.settings.deployment, self._study.name, trial))
        identity = _identity(self._request.settings.deployment, self._study.name, trial)
        return replace(self._request, spec=spec, identity=identity)

    def _play(self, running: _Running) -> None:
        """Follow a trial to its end and tell its study, on its thread."""
        try:
            self._follow(running)
        except BaseException as error:
            self._failed = self._failed or error
        with self._news:
            self._ended.append(running)
            self._news.notify_all()

    def _follow(self, running: _Running) -> None:
        from kinetic_orchestration.api.handle import JobHandle
        from kinetic_orchestration.jobs.cleanup import kept_slices

        if running.ends:
            self._end(running, running.ends, "")
        outcome = JobHandle[Any](running.job).follow(lambda event: self._hear(running, event), stop=self._detach)
        if outcome is None:
            return
        running.outcome = outcome
        self._tell(running, outcome)
        if running.job.keeps and not (self._detach.is_set() or self._is_asked_all()):
            kept_slices.wait_until_offered(running.job, outcome)

    def _hear(self, running: _Running, event: Event) -> None:
        """Report a metric to the study, and end a trial that it gives up."""
        from kinetic_orchestration.plan.values import Metrics

        if not isinstance(event, Metrics) or event.host != 0 or running.ends:
            return
        told = running.feed.take(event.step, event.values, event.attempt)
        if told is None:
            return
        step, value = told
        if math.isnan(value):
            self._end(running, rules.FAIL, f"{self._terms.metric} is not a number at step {step}")
        elif self._study.report(running.number, step, value):
            self._end(running, rules.PRUNED, f"pruned at step {step}, with {self._terms.metric} {value:.6g}")

    def _end(self, running: _Running, state: str, why: str) -> None:
        """End a trial early. Its slice may go to the next one: only this program is unwanted."""
        from kinetic_orchestration.jobs.following import actions
        from kinetic_orchestration.jobs.job import ME

        if why:
            self._study.mark(running.number, rules.WHY, why)
            self._study.mark(running.number, rules.ENDS, state)
        running.ends = state
        reason = f"search {self._study.name}, trial {running.number}: {why or state.lower()}"
        actions.cancel(running.job, reason, ME, leaves=True)

    def _tell(self, running: _Running, outcome: Outcome) -> None:
        """Tell the study what a trial came to."""
        from kinetic_orchestration.jobs.results import collect, error_of

        state, value, why = rules.told_as(outcome.status, running.ends), None, ""
        if state == rules.COMPLETE:
            value = self._terms.value_of(collect(running.job, outcome))
            if math.isnan(value):
                state, value, why = rules.FAIL, None, "its value is not a number"
        elif state == rules.FAIL:
            running.error = error_of(running.job, outcome)
            why = f"{type(running.error).__name__}: {running.error}"
        if why and running.ends != rules.FAIL:  # of which it was said why
            self._study.mark(running.number, rules.WHY, why[: rules.LONGEST_WHY])
        self._study.tell(running.number, state, value, why[: rules.LONGEST_WHY])
        running.state = state

    # ---- the end -------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        with self._news:
            if not self._ended:
                self._news.wait(LOOK)

    def _take_ends(self) -> None:
        """Take in which trials have ended, and tell whoever wants to know."""
        with self._news:
            ended, self._ended = self._ended, []
        for one in ended:
            del self._running[one.number]
            if not one.state:
                continue
            self._patience.saw(one.state)
            self._first = self._first or one.error
            self._report(one)
            if self._is_asked_all():
                self._release()

    def _report(self, ended: _Running) -> None:
        from kinetic_orchestration.api.printer import say

        found = next(one for one in self._study.trials() if one.number == ended.number)
        trial = self._shown(found)
        value = "" if trial.value is None else f", {trial.value:.6g}"
        say(f"search {self._study.name}: trial {trial.number} is {trial.state}{value}")
        if self._terms.on_trial is not None:
            self._terms.on_trial(trial)

    def _is_asked_all(self) -> bool:
        """Return True if no trial follows: what one leaves serves nobody."""
        return self._patience.is_over or len(self._study.trials()) >= self._terms.trials

    def _release(self) -> None:
        """Release the slices that the jobs of this search have left, if it is the search that keeps them.

        What fails is told, and costs no result: such a slice ends after its time, and the reaper sees to it.
        """
        from kinetic_orchestration.jobs.cleanup import kept_slices
        from kinetic_orchestration.plan.messages import command, warn

        if not self._terms.releases or self._request is None or not self._jobs:
            return
        run = ("search", "", self._study.name)
        try:
            kept_slices.release_run(self._request.store, self._request.settings, run, self._jobs)
        except KineticError as error:
            warn(
                f"search {self._study.name}: the slices that its trials have left warm are not released: {error} Each "
                f"is deleted once its keep= is over; to see and to release them now: `{command('slices')}` and "
                f"`{command('release')}`"
            )

    def _cancel_all(self) -> None:
        """Cancel all trials that run, and wait until they are told."""
        from kinetic_orchestration.jobs.following import actions
        from kinetic_orchestration.jobs.job import ME

        for one in list(self._running.values()):
            actions.cancel(one.job, "interrupted by Ctrl-C", ME)
        self._join(ENDING)
        self._release()

    def _leave(self, error: BaseException) -> None:
        """Let the trials that run go on without this process."""
        self._detach.set()
        self._join(ENDING)
        left = [one for one in self._running.values() if not one.state]
        if left and isinstance(error, KineticError):
            error.add_note(f"{len(left)} trials of search {self._study.name} go on; the same call goes on with them")

    def _join(self, patience: float) -> None:
        until = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _result(self) -> SearchResult:
        found = list(self._study.trials())
        best = rules.best_of(found, maximizes=self._study.maximizes)
        if best is None:
            states = ", ".join(f"trial {one.number}: {one.marks.get(rules.WHY) or one.state}" for one in found[:5])
            raise SearchFailed(
                f"search {self._study.name}: none of {len(found)} trials is complete ({states}). Their jobs: "
                f"{', '.join(one.marks[rules.JOB] for one in found[:5] if rules.JOB in one.marks) or 'none'}"
            ) from self._first
        if self._request is None:  # all trials had ended before
            self._request_for(best)
        return SearchResult(self._study.name, self._shown(best), tuple(map(self._shown, found)))

    def _shown(self, trial: rules.Trial) -> SearchTrial:
        from kinetic_orchestration.api import links

        job = trial.marks.get(rules.JOB, "")
        store = self._request.store.url if self._request is not None else ""
        curves = links.view(store, names.picture(job)) if job and store else ""
        parameters = MappingProxyType(dict(trial.parameters))
        why = trial.marks.get(rules.WHY, "") if trial.state != rules.COMPLETE else ""
        return SearchTrial(trial.number, trial.state, parameters, trial.value, job, curves, why)


class _Ended(Exception):
    """A trial's job was submitted and has ended already."""


def _identity(deployment: str, study: str, trial: rules.Trial) -> Identity:
    """Return the identity of a trial's job."""
    from kinetic_orchestration.plan.identity import Identity

    return Identity(deployment, "search", study, "search/trial", f"{trial.number}@{trial.born}")
