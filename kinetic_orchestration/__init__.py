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
    from kinetic_orchestration.api.steps.evaluation import Evaluation, evaluate
    from kinetic_orchestration.api.steps.inference import serve_batch
    from kinetic_orchestration.api.steps.promotion import Candidate, MLflow, Promoted, Vertex, move_alias, promote
    from kinetic_orchestration.api.steps.search import search
    from kinetic_orchestration.api.steps.searches.results import SearchResult, SearchTrial
    from kinetic_orchestration.api.steps.serving import Deployed, Serving, SmokeTest, deploy, deployed
    from kinetic_orchestration.plan.declare.choices import Choice
    from kinetic_orchestration.plan.declare.cloud import Compute, Kubernetes, Slurm, TpuVm
    from kinetic_orchestration.plan.declare.data import Data
    from kinetic_orchestration.plan.declare.limits import Limits, Retry
    from kinetic_orchestration.plan.declare.profile import Profile
    from kinetic_orchestration.plan.hardware.accelerators import Gpu
    from kinetic_orchestration.plan.values import JobStatus
    from kinetic_orchestration.program.checkpoints.leaves.orbax import Orbax
    from kinetic_orchestration.program.context import HostContext, current
    from kinetic_orchestration.program.inference.report import BatchReport
    from kinetic_orchestration.program.inference.results import read_answers
    from kinetic_orchestration.program.inference.servers.engines import Server
    from kinetic_orchestration.program.loop import Training, TrainingEnded
    from kinetic_orchestration.program.reading.checkpoints import read_checkpoint
    from kinetic_orchestration.program.reading.streamed import StreamedData
    from kinetic_orchestration.program.trainers import torch as torch  # which `import *` leaves out
    from kinetic_orchestration.program.trainers.keras_callback import KineticCallback

__version__ = "0.1.0"

_HOMES = {
    "BatchError": "api.batch",
    "BatchHandle": "api.batch",
    "BatchReport": "program.inference.report",
    "Candidate": "api.steps.promotion",
    "Choice": "plan.declare.choices",
    "Compute": "plan.declare.cloud",
    "Data": "plan.declare.data",
    "Deployed": "api.steps.serving",
    "Evaluation": "api.steps.evaluation",
    "Gpu": "plan.hardware.accelerators",
    "HostContext": "program.context",
    "JobHandle": "api.handle",
    "JobStatus": "plan.values",
    "KineticCallback": "program.trainers.keras_callback",
    "Kubernetes": "plan.declare.cloud",
    "Limits": "plan.declare.limits",
    "MLflow": "api.steps.promotion",
    "Orbax": "program.checkpoints.leaves.orbax",
    "Profile": "plan.declare.profile",
    "Promoted": "api.steps.promotion",
    "RemoteCallable": "api.decorator",
    "Retry": "plan.declare.limits",
    "SearchResult": "api.steps.searches.results",
    "SearchTrial": "api.steps.searches.results",
    "Server": "program.inference.servers.engines",
    "Serving": "api.steps.serving",
    "Slurm": "plan.declare.cloud",
    "SmokeTest": "api.steps.serving",
    "StreamedData": "program.reading.streamed",
    "TpuVm": "plan.declare.cloud",
    "Training": "program.loop",
    "TrainingEnded": "program.loop",
    "Vertex": "api.steps.promotion",
    "attach": "api.handle",
    "attach_batch": "api.batch",
    "command": "api.decorator",
    "current": "program.context",
    "deploy": "api.steps.serving",
    "deployed": "api.steps.serving",
    "evaluate": "api.steps.evaluation",
    "list_jobs": "api.handle",
    "move_alias": "api.steps.promotion",
    "promote": "api.steps.promotion",
    "read_answers": "program.inference.results",
    "read_checkpoint": "program.reading.checkpoints",
    "run": "api.decorator",
    "search": "api.steps.search",
    "serve_batch": "api.steps.inference",
}

_MODULES = {  # those of Keras Kinetic that programs may import, and our own
    "collections": "collections",
    "data": "data",
    "job_status": "job_status",
    "torch": "program.trainers.torch",
}

__all__ = [
    "BatchError",
    "BatchHandle",
    "BatchReport",
    "Candidate",
    "Choice",
    "Compute",
    "Data",
    "Deployed",
    "Evaluation",
    "Gpu",
    "HostContext",
    "JobHandle",
    "JobStatus",
    "KineticCallback",
    "Kubernetes",
    "Limits",
    "MLflow",
    "Orbax",
    "Profile",
    "Promoted",
    "RemoteCallable",
    "Retry",
    "SearchResult",
    "SearchTrial",
    "Server",
    "Serving",
    "Slurm",
    "SmokeTest",
    "StreamedData",
    "TpuVm",
    "Training",
    "TrainingEnded",
    "Vertex",
    "attach",
    "attach_batch",
    "command",
    "current",
    "deploy",
    "deployed",
    "evaluate",
    "list_jobs",
    "move_alias",
    "promote",
    "read_answers",
    "read_checkpoint",
    "run",
    "search",
    "serve_batch",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from kinetic_orchestration.protocol.system.lazy import load  # not above: importing this package loads nothing

        return load(__name__, _HOMES, name)
    if name in _MODULES:
        import importlib

        return importlib.import_module(f"{__name__}.{_MODULES[name]}")
    if sys._getframe(1).f_code.co_name == "_handle_fromlist":  # `from kinetic_orchestration import module` asks first
        raise AttributeError(name)
    from kinetic_orchestration.plan.declare.keras_kinetic import without

    raise AttributeError(without("kinetic", name, f"module {__name__!r} has no attribute {name!r}"))


def __dir__() -> list[str]:
    return sorted({*globals().copy(), *__all__})
