"""The interface between the model of the cloud and hosts: create them, make them fail, end them.

`vm.Machines` creates real process trees; a test of the model may keep them in memory. This module knows neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kinetic_orchestration.testing.cloud.state.machine import Machine


class Host(Protocol):
    """One VM. Every method may be called at any time, again and again, and on one that is dead already."""

    @property
    def alive(self) -> bool: ...

    @property
    def guest_attributes(self) -> Mapping[str, Mapping[str, str]]:
        """Namespace → key → value, as programs on the VM have put them."""

    def preempt(self, notice: float | None) -> None:
        """Notify it, and end it after that many seconds; None: immediately."""

    def reboot(self) -> None: ...

    def maintenance(self, event: str) -> None:
        """Announce a maintenance event; NONE ends it."""

    def destroy(self) -> None:
        """End everything on it, and remove its disk."""


class Hosts(Protocol):
    def create(self, machine: Machine) -> Host:
        """Boots one; does not wait for its startup script."""
