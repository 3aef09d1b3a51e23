"""Opens the machine of a host: this one, or a VM. Imports only the kind that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic_orchestration.host.machine.machine import Machine

if TYPE_CHECKING:
    from kinetic_orchestration.protocol.assignment import Assignment


def machine_of(at: Assignment) -> Machine:
    """Return the machine that a host was given."""
    if not at.resource:
        return Machine(at)
    from kinetic_orchestration.host.machine.vm import Vm

    return Vm(at)
