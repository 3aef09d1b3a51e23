"""Refuses an environment that lacks what hosts need and the code of a job does not import, before there are hosts."""

from __future__ import annotations

import importlib.util

from kinetic_orchestration.errors import RequirementsError, Unsupported
from kinetic_orchestration.packaging.call.first_party import normalized
from kinetic_orchestration.packaging.requirements import locks
from kinetic_orchestration.plan.declare.spec import JobSpec, Need
from kinetic_orchestration.plan.values import Plan


def check(environment: locks.Environment, spec: JobSpec, plan: Plan) -> None:
    """Raise RequirementsError or Unsupported for an environment that lacks what a job's options or its step need."""
    _check_debugger(plan, environment)
    _check_keras_backend(spec.options.keras_backend, environment)
    if environment.kind != "image":  # whose packages nobody knows here
        for need in spec.needs:
            _check_need(spec.name, need, environment)


def _check_need(step: str, need: Need, environment: locks.Environment) -> None:
    module = need.module.partition(".")[0]
    if environment.lock is None:
        there, source = importlib.util.find_spec(module) is not None, "this environment"
    else:
        sent = environment.lock.first_party
        names = locks.names_in(environment.lock.text) | {item.name for item in sent}
        own = normalized(module)  # builds for other hardware begin with it, as vllm-tpu does, and forks end with it
        there = any(f"-{name}-".startswith(f"-{own}-") or f"-{name}-".endswith(f"-{own}-") for name in names)
        there = there or any(module in item.modules for item in sent)
        there = there or not names.isdisjoint(map(normalized, need.others))
        source = environment.lock.source.partition(",")[0]
    if not there:
        raise RequirementsError(
            f"{step} needs {need.module} on its hosts, which its code does not import, and {source} has none: name "
            f"{need.advice} in requirements="
        )


def _check_debugger(plan: Plan, environment: locks.Environment) -> None:
    if not plan.debug_port:
        return
    if environment.lock is not None:
        there = "debugpy" in locks.names_in(environment.lock.text)
    else:
        there = importlib.util.find_spec("debugpy") is not None
    if not there:
        where = "add it to requirements=" if environment.lock is not None else "install it here (pip install debugpy)"
        raise Unsupported(f"debug=True is refused: it needs debugpy, which the job's environment has not; {where}")


def _check_keras_backend(backend: str | None, environment: locks.Environment) -> None:
    """Warn of a missing Keras backend, which Keras would report only on the hosts."""
    if backend is None or environment.kind == "image":
        return
    if environment.lock is None:
        if importlib.util.find_spec(backend) is None:
            raise RequirementsError(
                f"keras_backend={backend!r} is refused: {backend} is not installed in this environment, in which the "
                f"job runs. Install it here (pip install {backend}), or give the job an environment of its own: "
                f"requirements=['keras', {backend!r}]"
            )
        return
    names = locks.names_in(environment.lock.text)
    travelling = {item.name for item in environment.lock.first_party}
    provides = {backend, *(f"{backend}-{build}" for build in ("cpu", "tpu", "rocm", "gpu", "intel"))}
    if "keras" in names | travelling and provides.isdisjoint(names | travelling):
        raise RequirementsError(
            f"keras_backend={backend!r} is refused: with {environment.lock.source.partition(',')[0]} the job has keras "
            f"and no {backend}. Add the line {backend} to the requirements"
        )
