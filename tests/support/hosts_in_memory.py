"""A clock that tests move, and hosts without processes, for the models of the emulated cloud."""

from __future__ import annotations

from collections.abc import Mapping

from kinetic_orchestration.testing.model.state.machine import Host, Machine


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


class InMemory:
    """A host that remembers what befell it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.alive = True
        self.met: list[str] = []
        self.guest_attributes: Mapping[str, Mapping[str, str]] = {"kinetic": {"state": "up"}, "other": {"key": "v"}}

    def console(self) -> str:
        return "kinetic: up\n"

    def published(self) -> dict[str, dict[str, str]]:
        return {}

    def reconfigure(self, metadata: Mapping[str, str]) -> None:
        self.met.append(f"reconfigured {sorted(metadata)}")

    def warn(self) -> None:
        self.met.append("warned")

    def shut_down(self, notice: float) -> None:
        self.met.append("shut down")
        self.alive = False

    def cut(self) -> None:
        self.met.append("cut")

    def preempt(self, notice: float | None) -> None:
        self.met.append(f"preempted {notice}")

    def reboot(self) -> None:
        self.met.append("rebooted")
        self.alive = True

    def maintenance(self, event: str) -> None:
        self.met.append(event)

    def destroy(self) -> None:
        self.alive = False


class Room:
    def __init__(self) -> None:
        self.made: list[InMemory] = []

    def create(self, machine: Machine) -> Host:
        self.made.append(InMemory(machine))
        return self.made[-1]
