"""The methods by which a test scripts what goes wrong with groups of instances; they, too, are of `cloud.compute`."""

from __future__ import annotations

from collections.abc import Iterable

from kinetic_orchestration.testing.model.compute.groups.lifecycle import GroupLifecycle, Habits
from kinetic_orchestration.testing.model.compute.groups.resources import End, Topology
from kinetic_orchestration.testing.model.compute.lifecycle import step


class GroupScript(GroupLifecycle):
    @step
    def slow_grant(self, name: str = "*", seconds: float = 60.0) -> None:
        """Groups of that name get their instances so many seconds after they asked for them, without an error."""
        self._late.append((name, seconds))

    @step
    def fail_member(self, name: str = "*", times: int | None = 1) -> None:
        """Such an instance of a group cannot be made, so none is; the group tries again after `retry_seconds`."""
        self._unmakeable.append((name, times))

    @step
    def topology(self, name: str, state: Topology | None) -> None:
        """Groups of that name whose members all run show another state of their topology, such as FAILED or
        ACTIVE_DEGRADED; None ends it."""
        self._states = [one for one in self._states if one[0] != name]
        if state is not None:
            self._states.append((name, state))

    @step
    def group_habits(self, remakes: Iterable[End] = (), *, recovers: bool = False) -> None:
        """Choose what Google has not published of groups.

        Args:
            remakes: After which ends a group with defaultActionOnFailure DO_NOTHING makes a member again: of "deleted"
                (by itself, or by somebody), "preempted", "expired" (its maxRunDuration) and "failed" (a host error).
                By default after none; with REPAIR, Google's own default, after each.
            recovers: A slice whose instances have automaticRestart false is restarted as a whole after a host error,
                too. By default it is not; with automaticRestart it always is, unless it is of spot instances.
        """
        self._habits = Habits(frozenset(remakes), recovers)

    @step
    def linger(self, seconds: float | None) -> None:
        """A group that is gone holds its template and its policy for so long; None: as long as a deletion takes."""
        self._linger = seconds

    @step
    def unstick(self) -> None:
        super().unstick()
        for group in list(self.groups.values()):
            self._end_group(group)

    @step
    def clear_faults(self) -> None:
        self._late, self._unmakeable, self._states = [], [], []
        self._habits, self._linger = Habits(), None
        super().clear_faults()

    @step
    def sweep(self) -> None:
        for group in list(self.groups.values()):
            self._forget(group)
        super().sweep()
        for one in (*self.templates.values(), *self.policies.values()):
            self._drop(one)
        self._held = {}
