"""Where jobs run and where their records are. For authors of a platform, the names that a backend is written with.

    from kinetic_orchestration.platforms import Backend, Observation, Platform, Submission, Traits

They are loaded when they are first used: a launch imports this package, and few of them.
docs/develop/add-a-platform.md says how a platform of another package is found.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kinetic_orchestration.plan.configuration.plugins import Platform
    from kinetic_orchestration.plan.configuration.settings import Settings
    from kinetic_orchestration.plan.declare.cloud import CloudOptions
    from kinetic_orchestration.plan.hardware.accelerators import Slice
    from kinetic_orchestration.plan.values import (
        ABSENT,
        GONE,
        PARTIAL,
        PRESENT,
        PROVISIONING,
        QUEUED,
        UNKNOWN,
        WOUNDED,
        Freed,
        Intent,
        Observation,
        Past,
        Plan,
        Staged,
        Traits,
        Words,
    )
    from kinetic_orchestration.platforms.backend import Backend, RateLimit, Submission
    from kinetic_orchestration.platforms.store import Store
    from kinetic_orchestration.protocol.assignment import Assignment

_HOMES = {
    **dict.fromkeys(("ABSENT", "GONE", "PARTIAL", "PRESENT", "PROVISIONING", "QUEUED", "UNKNOWN"), "plan.values"),
    **dict.fromkeys(("WOUNDED", "Freed", "Intent", "Observation", "Past", "Plan", "Staged", "Traits"), "plan.values"),
    "Words": "plan.values",
    **dict.fromkeys(("Backend", "RateLimit", "Submission"), "platforms.backend"),
    "Assignment": "protocol.assignment",
    "CloudOptions": "plan.declare.cloud",
    "Platform": "plan.configuration.plugins",
    "Settings": "plan.configuration.settings",
    "Slice": "plan.hardware.accelerators",
    "Store": "platforms.store",
}

__all__ = [
    "ABSENT", "GONE", "PARTIAL", "PRESENT", "PROVISIONING", "QUEUED", "UNKNOWN", "WOUNDED", "Assignment", "Backend",
    "CloudOptions", "Freed", "Intent", "Observation", "Past", "Plan", "Platform", "RateLimit", "Settings", "Slice",
    "Staged", "Store", "Submission", "Traits", "Words",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    from kinetic_orchestration.protocol.system.lazy import load

    return load(__name__, _HOMES, name, below="kinetic_orchestration")


def __dir__() -> list[str]:
    return sorted({*globals().copy(), *_HOMES})
