"""DECLARE: what the user asked for, nothing resolved. Bad input is refused here, before anything runs."""

from __future__ import annotations

import functools
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from kinetic_orchestration import settings
from kinetic_orchestration.data import Data
from kinetic_orchestration.errors import ConflictingSettings, NotAFunction, Unsupported, UsageError
from kinetic_orchestration.values import Limits, Retry

DEFAULT_ACCELERATOR = "tpu-v5e-1"


@dataclass(frozen=True, slots=True)
class TpuVm:
    """What only Cloud TPU understands. `accelerator_type` is Cloud TPU's own name, which counts cores for v2 to v5p."""

    zones: Sequence[str] = ()
    num_slices: int = 1
    accelerator_type: str = ""
    reservation: str = ""
    network: str = ""
    external_ips: bool = True
    service_account: str = ""
    tags: Sequence[str] = ()
    data_disks: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    quota_project: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `run`. The first group is Keras Kinetic's, name by name."""

    accelerator: str = DEFAULT_ACCELERATOR
    container_image: str | None = None
    base_image_repo: str | None = None
    zone: str | None = None
    project: str | None = None
    capture_env_vars: Sequence[str] | None = None
    cluster: str | None = None
    backend: str | None = None
    namespace: str | None = None
    volumes: Mapping[str, Data] | None = None
    spot: bool = False
    output_dir: str | None = None
    debug: bool = False
    # ours
    cloud: TpuVm | None = None
    limits: Limits = Limits()
    retry: Retry = Retry()
    requirements: str | os.PathLike[str] | Sequence[str] | None = None
    python: str | None = None
    first_party: Sequence[str] = ()
    secrets: Mapping[str, str] | None = None
    key: str | None = None
    store: str | None = None
    deployment: str | None = None
    distributed: bool | None = None
    partition_key: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One call: a function with its arguments, or a command with the project it runs in."""

    name: str
    options: Options
    function: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    argv: tuple[str, ...] = ()
    cwd: str = ""


OPTION_NAMES = frozenset(entry.name for entry in fields(Options))


def check_options(options: Options) -> Options:
    """Everything about the options that can be wrong whatever the backend."""
    if options.volumes is not None:
        if not isinstance(options.volumes, Mapping):
            raise UsageError(f"volumes must be a dict of absolute path to Data, not {type(options.volumes).__name__}")
        for mount, data in options.volumes.items():
            if not isinstance(mount, str) or not mount.startswith("/"):
                raise UsageError(f"the volume path {mount!r} is not absolute: write it from the root, as '/data'")
            if not isinstance(data, Data):
                raise UsageError(f"the volume {mount!r} is a {type(data).__name__}: wrap it, as Data({data!r})")
    for entry in fields(Limits):
        settings.seconds(f"limits.{entry.name}", getattr(options.limits, entry.name))
    for entry in fields(Retry):
        if getattr(options.retry, entry.name) < 0:
            raise UsageError(f"retry.{entry.name} is {getattr(options.retry, entry.name)}: it cannot be negative")
    if options.cloud is not None and options.cloud.accelerator_type and options.accelerator != DEFAULT_ACCELERATOR:
        raise ConflictingSettings(
            f"both accelerator={options.accelerator!r} and cloud=TpuVm(accelerator_type="
            f"{options.cloud.accelerator_type!r}) name the slice: keep one"
        )
    if options.python and options.requirements is None:
        raise ConflictingSettings(
            "python= chooses the interpreter of an isolated environment, and requirements=None means this one: "
            "name the requirements too, or leave python out"
        )
    if options.debug and options.spot:
        warnings.warn("debug=True on a spot slice: a preemption would end the session", stacklevel=3)
    return options


def check_function(function: Any) -> Callable[..., Any]:
    """The plain function to run, or an error that shows the fix."""
    if isinstance(function, (classmethod, staticmethod)):
        kind = type(function).__name__
        raise NotAFunction(
            f"run() got a {kind} object: its order with @{kind} is wrong. Put it below:\n"
            f"    @{kind}\n    @kinetic.run(...)\n    def train(...): ..."
        )
    if hasattr(function, "cache_clear") and hasattr(function, "cache_info"):
        raise NotAFunction(
            "run() got a function wrapped by functools.lru_cache or cache, whose cache cannot travel and would be "
            "empty in the job's process anyway. Decorate the function below the cache, or drop the cache."
        )
    if not callable(function):
        raise NotAFunction(f"run() decorates functions and other callables, not {type(function).__name__}")
    plain = getattr(function, "__kinetic_function__", None)
    if plain is None and type(function).__module__.split(".")[0] == "kinetic" and hasattr(function, "_func"):
        plain = function._func  # decorated by Keras Kinetic itself: the plain function inside is what runs
    found: Callable[..., Any] = plain if plain is not None else function
    return found


def name_of(function: Any) -> str:
    target = function
    while isinstance(target, functools.partial):
        target = target.func
    name = getattr(target, "__name__", None) or type(target).__name__
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-") or "job"


def refuse(option: str, backend: str, why: str) -> Unsupported:
    return Unsupported(f"{option} is not possible on the {backend} backend: {why}")
