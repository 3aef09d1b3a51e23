"""Holds the results of a search. Standard library only: hosts have this, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SearchTrial:
    """One trial of a search.

    Attributes:
        number: Its number in the study.
        state: `"COMPLETE"`, `"PRUNED"` or `"FAIL"`, or `"RUNNING"` while another driver has it.
        parameters: Its parameters.
        value: Its value; of a pruned one the last that it reported, of a failed one None.
        job_id: Its job; "" if none was submitted.
        curves: Address of its job's report with the curves of its metrics; "" without a job.
        why: Why it failed.
    """

    number: int
    state: str
    parameters: Mapping[str, Any]
    value: float | None
    job_id: str
    curves: str
    why: str


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The trials of a search, and the best of them.

    Attributes:
        study: Name of the study.
        best: The complete trial with the best value.
        trials: All trials of the study, in their order.
    """

    study: str
    best: SearchTrial
    trials: tuple[SearchTrial, ...]

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Parameters of the best trial."""
        return self.best.parameters

    @property
    def value(self) -> float:
        """Value of the best trial."""
        assert self.best.value is not None
        return self.best.value

    @property
    def job_id(self) -> str:
        """Job of the best trial, for `attach`."""
        return self.best.job_id

    def counts(self) -> dict[str, int]:
        """Return the number of trials in each state."""
        states = [one.state for one in self.trials]
        return {state: states.count(state) for state in dict.fromkeys(states)}
