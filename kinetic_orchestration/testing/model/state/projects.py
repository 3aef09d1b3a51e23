"""Keeps what projects of Google are beside their machines: enabled services, who is granted what, custom roles.

A project is there as soon as somebody names it, and has all services. One that a test makes with `Projects.add` is as
new projects are: few services are enabled, and no billing account needs to be linked. It does not know how it is asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from kinetic_orchestration.testing.api_rules.policies import Policy
from kinetic_orchestration.testing.model.state.machine import project_number
from kinetic_orchestration.testing.model.state.resources import Json

Billing = Literal["open", "none", "closed"]
# Enabled in every new project, of those that jobs need: others are only usable once somebody enables them.
AT_FIRST: Final = ("serviceusage.googleapis.com", "storage.googleapis.com")


@dataclass
class Project:
    """One project. `services`: from which time each may be used; None: all of them, always."""

    id: str
    services: dict[str, float] | None = None
    billing: Billing = "open"
    policy: Policy = field(default_factory=Policy)
    roles: dict[str, Json] = field(default_factory=dict)
    activating: int = 0  # how many operations that enable services have not ended

    @property
    def number(self) -> int:
        return project_number(self.id)

    def is_usable(self, service: str, now: float) -> bool:
        return self.services is None or self.services.get(service, float("inf")) <= now

    def is_enabled(self, service: str) -> bool:
        return self.services is None or service in self.services


class Projects:
    def __init__(self) -> None:
        self._known: dict[str, Project] = {}

    def add(self, name: str, billing: Billing = "open", enabled: Iterable[str] = AT_FIRST) -> Project:
        """Make a project as new ones are.

        Args:
            name: Its id.
            billing: Whether a billing account is linked to it, and open.
            enabled: The services that may be used at once.
        """
        self._known[name] = Project(name, dict.fromkeys(enabled, 0.0), billing)
        return self._known[name]

    def named(self, name: str) -> Project:
        """Return a project by its id or its number."""
        for known in self._known.values():
            if name == str(known.number):
                return known
        return self._known.setdefault(name, Project(name))

    def is_usable(self, service: str, project: str, now: float) -> bool:
        return self.named(project).is_usable(service, now) if project else True
