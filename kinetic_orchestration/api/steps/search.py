"""`search`: a study chooses the parameters of many jobs, and ends bad ones early by the metrics that they log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kinetic_orchestration.api.steps.searches.results import SearchResult, SearchTrial
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.program import client_only

if TYPE_CHECKING:
    from kinetic_orchestration.api.decorator import RemoteCallable
    from kinetic_orchestration.plan.declare.spec import JobSpec


def search(
    train: RemoteCallable[..., Any],
    study: Any,
    *,
    trials: int,
    space: Mapping[str, Any] | None = None,
    metric: str | None = None,
    value: str | Callable[[Any], float] | None = None,
    max_concurrent: int = 4,
    fixed: Mapping[str, Any] = MappingProxyType({}),
    keep: float | str | None = None,
    patience: int = 3,
    on_trial: Callable[[SearchTrial], object] | None = None,
) -> SearchResult:
    """Run jobs with the parameters that a study chooses, a limited number at a time, and return the best.

    A trial is one job. While it runs, the study hears of its metric, and a trial that the study's pruner gives up ends
    at once. The same call goes on with a search whose process has died: it follows the jobs that are there. Several
    processes may drive one study. Ctrl-C cancels the trials that run.

    Args:
        train: Function decorated with `run`. It gets the parameters by name.
        study: A study of Optuna with one objective, or one of Vizier's client. To be found again by another process it
            needs a storage and a name.
        trials: Number of trials of the study, with those of earlier calls and other drivers.
        space: Distributions of Optuna, by the name of the parameter.
        metric: Name of the metric of host 0 (`current().log_metrics(step=…, …)`) by which trials are pruned. None: none
            ends early.
        value: Entry of the returned dict that is the trial's value, or a function of what was returned. By default the
            number that was returned, or the entry named by `metric`.
        max_concurrent: Trials that run at the same time, of this process.
        fixed: Other arguments of `train`, by name, the same for all trials.
        keep: Time for which a slice waits for the next trial, as in `run`. What is left of the search is released at
            its end. By default as `train` says, whose slices then stay.
        patience: Trials that may fail from the first one on, before the search is given up.
        on_trial: Called with each trial that ends here, in this thread.

    Returns:
        The best trial, and all others.

    Raises:
        TypeError: `train` does not take the parameters. No trial was asked for.
        UsageError: An argument is invalid, or a trial's function returned no number.
        SearchFailed: No trial is complete. The first error of a trial is its cause.
        KineticError: A job could not be submitted. Trials that run go on, as they do after each error but Ctrl-C.
    """
    client_only.require("search")
    from kinetic_orchestration.api.decorator import RemoteCallable
    from kinetic_orchestration.api.steps.searches.driver import Driver, Terms
    from kinetic_orchestration.api.steps.searches.studies import study_of
    from kinetic_orchestration.plan.declare.checks.functions import check_arguments
    from kinetic_orchestration.plan.declare.checks.options import check_declared, check_options

    if not isinstance(train, RemoteCallable):
        raise UsageError("train has to be a function decorated with kinetic.run(accelerator=…)")
    if keep is not None:
        options = check_declared(check_options(replace(train.options, keep=keep)))
        train = RemoteCallable(train.__kinetic_function__, options)
    if train.options.key is not None:
        raise UsageError("key= names one job, and each trial is another: leave it out of run(…)")

    def call(parameters: Mapping[str, Any]) -> JobSpec:
        return train._spec((), {**fixed, **parameters})

    if space is not None:
        check_arguments(train.__kinetic_function__, (), {**fixed, **dict.fromkeys(space)})
    terms = Terms(trials, max_concurrent, metric, value, patience, keep is not None, on_trial)
    return Driver(call, study_of(study, space, metric), terms).run()
