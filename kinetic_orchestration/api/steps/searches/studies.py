"""Studies of other packages, as a search speaks to them: Optuna's, and those of Vizier's client.

Neither package is a dependency: the study is its user's object, and the module that it comes from is imported when it
is given.
"""

from __future__ import annotations

import datetime
import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from kinetic_orchestration.api.steps.searches.trials import COMPLETE, FAIL, PRUNED, RUNNING, Trial
from kinetic_orchestration.errors import UsageError


@runtime_checkable
class Study(Protocol):
    """Chooses parameters and judges trials, for any number of drivers at once. Trials are named by their numbers.

    Attributes:
        name: Name of the study, by which a driver that follows finds its jobs again.
        maximizes: True if larger values are better.
    """

    name: str
    maximizes: bool

    def ask(self) -> int:
        """Begin a trial, and return its number."""

    def trials(self) -> Sequence[Trial]:
        """Return all trials that were begun."""

    def mark(self, number: int, name: str, text: str) -> None:
        """Write text beside a trial, for other drivers."""

    def report(self, number: int, step: int, value: float) -> bool:
        """Report a value of a trial that runs, and return True if the trial is to end."""

    def tell(self, number: int, state: str, value: float | None, why: str) -> None:
        """End a trial. Does nothing if it has ended.

        Args:
            number: The trial.
            state: COMPLETE, PRUNED or FAIL.
            value: Value of a complete one.
            why: Why it failed.
        """


def study_of(study: Any, space: Mapping[str, Any] | None, metric: str | None) -> Study:
    """Return a study that its user gave, as a search speaks to it.

    Args:
        study: A study of Optuna or of Vizier's client, or a `Study`.
        space: The distributions of Optuna's parameters, by name.
        metric: Name of the metric that is reported.

    Raises:
        UsageError: It is none, has several objectives, or `space` does not suit it.
    """
    package = type(study).__module__.partition(".")[0]
    if package == "optuna":
        return OptunaStudy(study, space)
    if space is not None:
        raise UsageError("space= is for a study of Optuna; others know their parameters: leave it out")
    if package == "vizier":
        return VizierStudy(study, metric)
    if isinstance(study, Study):
        return study
    raise UsageError(
        f"study is a {type(study).__name__}: give a study of Optuna (optuna.create_study(...)), one of Vizier's "
        "client, or an object with the methods of kinetic_orchestration.api.steps.searches.studies.Study"
    )


class OptunaStudy:
    """A study of Optuna, of one objective, by ask and tell.

    Args:
        study: The study.
        space: The distributions of its parameters, by name.
    """

    def __init__(self, study: Any, space: Mapping[str, Any] | None) -> None:
        from optuna.distributions import BaseDistribution

        if len(study.directions) != 1:
            raise UsageError(f"the study {study.study_name!r} has {len(study.directions)} objectives: give one of one")
        if not isinstance(space, Mapping) or not all(isinstance(one, BaseDistribution) for one in space.values()):
            raise UsageError(
                "space= has the distribution of each parameter: "
                'space={"lr": optuna.distributions.FloatDistribution(1e-4, 1e-1, log=True)}'
            )
        self.name = str(study.study_name)
        self.maximizes = study.directions[0].name == "MAXIMIZE"
        self._study = study
        self._space = dict(space)

    def ask(self) -> int:
        return int(self._study.ask(self._space).number)

    def trials(self) -> list[Trial]:
        return [self._seen(one) for one in self._study.get_trials(deepcopy=False) if one.state.name != "WAITING"]

    def _seen(self, frozen: Any) -> Trial:
        born = "" if frozen.datetime_start is None else frozen.datetime_start.isoformat()  # local time of who asked
        texts = {name: text for name, text in frozen.user_attrs.items() if isinstance(text, str)}
        return Trial(
            frozen.number, frozen.state.name, dict(frozen.params), born,
            frozen.value if frozen.state.name in (COMPLETE, PRUNED) else None,
            max(frozen.intermediate_values, default=-1), texts, set(self._space) <= set(frozen.params),
        )  # fmt: skip

    def mark(self, number: int, name: str, text: str) -> None:
        self._if_running(number, lambda trial: trial.set_user_attr(name, text))

    def report(self, number: int, step: int, value: float) -> bool:
        def tell(trial: Any) -> bool:
            trial.report(value, step)
            return bool(trial.should_prune())

        return bool(self._if_running(number, tell))

    def _if_running(self, number: int, act: Any) -> Any:
        """Act on a trial, unless another driver has told its end, at whatever moment."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import Trial as Running

        frozen = self._study.get_trials(deepcopy=False)[number]
        if frozen.state.name != RUNNING:
            return None
        try:
            return act(Running(self._study, frozen._trial_id))
        except UpdateFinishedTrialError:
            return None

    def tell(self, number: int, state: str, value: float | None, why: str) -> None:
        from optuna.trial import TrialState

        self._study.tell(number, value if state == COMPLETE else None, TrialState[state], skip_if_finished=True)


class VizierStudy:
    """A study of Vizier's client (`vizier.service.clients.Study`), of one objective. It ends no trial early: the client
    has no such question.

    Args:
        study: The study.
        metric: Name of the metric that is reported; by default its objective.
    """

    def __init__(self, study: Any, metric: str | None) -> None:
        problem = study.materialize_problem_statement()
        objectives = list(problem.metric_information)
        if len(objectives) != 1:
            raise UsageError(f"the study {study.resource_name!r} has {len(objectives)} objectives: give one of one")
        self.name = str(study.resource_name)
        self.maximizes = objectives[0].goal.name == "MAXIMIZE"
        self._study = study
        self._objective = objectives[0].name
        self._metric = metric or self._objective
        self._whole = {one.name for one in problem.search_space.parameters if one.type.name == "INTEGER"}

    def ask(self) -> int:
        # A client that asks again while its trial runs is given the same one.
        (trial,) = self._study.suggest(count=1, client_id=uuid.uuid4().hex)
        return int(trial.id)

    def trials(self) -> list[Trial]:
        found = map(self._seen, self._study.trials())
        return sorted((one for one in found if one is not None), key=lambda one: one.number)

    def _seen(self, given: Any) -> Trial | None:
        trial = given.materialize()
        if trial.status.name == "REQUESTED":  # nobody has asked for it yet
            return None
        final = trial.final_measurement
        value = None if final is None or trial.infeasible else final.metrics[self._objective].value
        state = RUNNING if trial.status.name != "COMPLETED" else FAIL if value is None else COMPLETE
        began = (trial.creation_time or datetime.datetime.fromtimestamp(0, datetime.UTC)).astimezone(datetime.UTC)
        steps = [int(one.steps) for one in trial.measurements]
        marks = {name: text for name, text in trial.metadata.items() if isinstance(text, str)}
        # The client has whole numbers as floats.
        parameters = {name: int(it) if name in self._whole else it for name, it in given.parameters.items()}
        return Trial(
            int(trial.id), state, parameters, began.isoformat(), value, max(steps, default=-1), marks,
        )  # fmt: skip

    def mark(self, number: int, name: str, text: str) -> None:
        from vizier.pyvizier import Metadata

        self._study.get_trial(number).update_metadata(Metadata({name: text}))

    def report(self, number: int, step: int, value: float) -> bool:
        from vizier.pyvizier import Measurement

        trial = self._study.get_trial(number)
        if trial.materialize().status.name != "COMPLETED":
            trial.add_measurement(Measurement({self._metric: value}, steps=step))
        return False

    def tell(self, number: int, state: str, value: float | None, why: str) -> None:
        from vizier.pyvizier import Measurement

        trial = self._study.get_trial(number)
        if trial.materialize().status.name == "COMPLETED":
            return
        if state == COMPLETE and value is not None and not math.isnan(value):
            trial.complete(Measurement({self._objective: value}))
        else:
            trial.complete(infeasible_reason=why or state.lower())
