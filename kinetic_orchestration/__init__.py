"""Run Python training steps on TPUs from anywhere, without a server, a cluster or an image build.

The public names, loaded when they are first used: importing this package sets nothing and loads no SDK.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing itself costs more than all the rest of this import
if TYPE_CHECKING:
    from typing import Any

    from kinetic_orchestration.api.batch import BatchError, BatchHandle, attach_batch
    from kinetic_orchestration.api.decorator import RemoteCallable, command, run
    from kinetic_orchestration.api.handle import JobHandle, attach, list_jobs
    from kinetic_orchestration.plan.declare.choices import Choice
    from kinetic_orchestration.plan.declare.cloud import Compute, Kubernetes, TpuVm
    from kinetic_orchestration.plan.declare.data import Data
    from kinetic_orchestration.plan.declare.limits import Limits, Retry
    from kinetic_orchestration.plan.declare.profile import Profile
    from kinetic_orchestration.plan.hardware.accelerators import Gpu
    from kinetic_orchestration.plan.values import JobStatus
    from kinetic_orchestration.program.context import HostContext, current
    from kinetic_orchestration.program.keras_callback import KineticCallback
    from kinetic_orchestration.program.loop import Training, TrainingEnded
    from kinetic_orchestration.program.reading import read_checkpoint

__version__ = "0.1.0"

_HOMES = {
    "BatchError": "api.batch",
    "BatchHandle": "api.batch",
    "Choice": "plan.declare.choices",
    "Compute": "plan.declare.cloud",
    "Data": "plan.declare.data",
    "Gpu": "plan.hardware.accelerators",
    "HostContext": "program.context",
    "JobHandle": "api.handle",
    "JobStatus": "plan.values",
    "KineticCallback": "program.keras_callback",
    "Kubernetes": "plan.declare.cloud",
    "Limits": "plan.declare.limits",
    "Profile": "plan.declare.profile",
    "RemoteCallable": "api.decorator",
    "Retry": "plan.declare.limits",
    "TpuVm": "plan.declare.cloud",
    "Training": "program.loop",
    "TrainingEnded": "program.loop",
    "attach": "api.handle",
    "attach_batch": "api.batch",
    "command": "api.decorator",
    "current": "program.context",
    "list_jobs": "api.handle",
    "read_checkpoint": "program.reading",
    "run": "api.decorator",
}

_MODULES = ("collections", "data", "job_status")  # modules of Keras Kinetic that programs may import

__all__ = [
    "BatchError",
    "BatchHandle",
    "Choice",
    "Compute",
    "Data",
    "Gpu",
    "HostContext",
    "JobHandle",
    "JobStatus",
    "KineticCallback",
    "Kubernetes",
    "Limits",
    "Profile",
    "RemoteCallable",
    "Retry",
    "TpuVm",
    "Training",
    "TrainingEnded",
    "attach",
    "attach_batch",
    "command",
    "current",
    "list_jobs",
    "read_checkpoint",
    "run",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from kinetic_orchestration.protocol.system.lazy import load  # not above: importing this package loads nothing

        return load(__name__, _HOMES, name)
    if name in _MODULES:
        import importlib

        return importlib.import_module(f"{__name__}.{name}")
    if sys._getframe(1).f_code.co_name == "_handle_fromlist":  # `from kinetic_orchestration import module` asks first
        raise AttributeError(name)
    from kinetic_orchestration.plan.declare.keras_kinetic import without

    raise AttributeError(without("kinetic", name, f"module {__name__!r} has no attribute {name!r}"))


def __dir__() -> list[str]:
    return sorted({*globals().copy(), *__all__})
