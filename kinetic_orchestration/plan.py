"""PLAN: everything decided before anything is sent. Pure: no file is read, nothing is contacted."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping

from kinetic_orchestration.errors import Unsupported, UsageError
from kinetic_orchestration.notices import warn_once
from kinetic_orchestration.settings import Settings, duration, seconds
from kinetic_orchestration.spec import JobSpec, Options, refuse, slice_of
from kinetic_orchestration.values import Limits, Plan

BACKENDS = ("local",)
KINETIC_BACKENDS = ("gke", "pathways")
LATER = {"tpu-vm": "the Cloud TPU backend", "gke": "the GKE backend"}

# Options of Keras Kinetic that mean nothing on the local backend: said once, then ignored.
IGNORED_LOCALLY = ("container_image", "base_image_repo", "cluster", "namespace", "project", "zone", "spot")

# A wildcard never captures what would break the job's own process.
NEVER_BY_WILDCARD = frozenset(
    (
        *("PATH", "HOME", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX"),
        *("CONDA_DEFAULT_ENV", "SHELL", "TMPDIR", "TEMP", "TMP", "HOSTNAME", "USER", "LOGNAME", "SSH_AUTH_SOCK"),
        *("KUBERNETES_SERVICE_HOST", "KERAS_BACKEND"),
    )
)
LOOKS_SECRET = re.compile(r"TOKEN|SECRET|KEY|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)

DEBUG_PORT = 5678  # where editors look for debugpy unless told otherwise


def make_plan(spec: JobSpec, settings: Settings, environ: Mapping[str, str] | None = None) -> Plan:
    """From what was asked and what is set to what will be done. `environ` is where captured variables come from."""
    options = spec.options
    backend = _backend(options, settings)
    slice_ = slice_of(options)
    _check_local(options)
    env, secrets = capture(options.capture_env_vars or (), environ or {})
    limits = Limits(
        **{
            name: seconds(f"limits.{name}", getattr(options.limits, name))
            for name in ("provision", "run", "total", "stall")
        },
        cost=options.limits.cost,
    )
    return Plan(
        name=spec.name,
        slice=slice_,
        backend=backend,
        store=settings.store,
        deployment=settings.deployment,
        limits=limits,
        retry=options.retry,
        output_dir=absolute(options.output_dir or settings.output_dir),
        partition_key=options.partition_key or "",
        env=env,
        secrets=secrets,
        volumes=tuple(options.volumes or ()),
        argv=spec.argv,
        distributed=settings.distributed if options.distributed is None else options.distributed,
        isolated=options.requirements is not None,
        abort_without_owner=settings.on_owner_lost == "abort",
        compile_cache=settings.compile_cache,
        debug_port=DEBUG_PORT if options.debug else 0,
        labels={**options.labels, **(options.cloud.labels if options.cloud else {})},
    )


def _backend(options: Options, settings: Settings) -> str:
    asked = options.backend
    if asked in KINETIC_BACKENDS:
        warn_once(f"backend={asked!r} is Keras Kinetic's; this job runs on the {settings.backend} backend")
        asked = None
    backend = asked or settings.backend
    if backend in BACKENDS:
        return backend
    if backend in LATER:
        raise Unsupported(f"{LATER[backend]} ({backend}) is not part of this version; use backend='local'")
    raise UsageError(f"there is no backend {backend!r}; there is {', '.join(BACKENDS)}")


def absolute(folder: str) -> str:
    """A folder by its whole path, because a host's working directory is another; an address as it is."""
    return os.path.abspath(os.path.expanduser(folder)) if folder and "://" not in folder else folder


def _check_local(options: Options) -> None:
    for name in IGNORED_LOCALLY:
        if getattr(options, name):
            warn_once(f"{name}= has no meaning on the local backend and is ignored there")
    if options.cloud is not None and options.cloud.num_slices != 1:
        raise refuse("cloud=TpuVm(num_slices=…)", "local", "it emulates one slice; leave num_slices out")
    if options.limits.cost is not None:
        raise refuse("limits.cost", "local", "nothing is charged on this machine; leave it out")
    if options.secrets:
        raise refuse(
            "secrets=", "local",
            "there is no Secret Manager here; name the variables in capture_env_vars, which go by an inherited pipe",
        )  # fmt: skip


def capture(patterns: Iterable[str], environ: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables that travel in the open, and the names of those that look like secrets.

    As in Keras Kinetic, a final * makes a prefix of a name, and a * elsewhere is a letter.
    """
    patterns = tuple(patterns)
    exact = {pattern for pattern in patterns if not pattern.endswith("*")}
    prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    names = sorted(
        name for name in environ if name in exact or (name not in NEVER_BY_WILDCARD and name.startswith(prefixes))
    )
    missing = sorted(exact - set(environ))
    if missing:
        warn_once(f"capture_env_vars names {', '.join(missing)}, not set here")
    hidden = tuple(name for name in names if LOOKS_SECRET.search(name))
    return {name: environ[name] for name in names if name not in hidden}, hidden


def describe(plan: Plan) -> str:
    """The dry run, for people."""
    rows = [
        ("job", " ".join(plan.argv) if plan.argv else f"{plan.name}()"),
        ("accelerator", str(plan.slice)),
        ("backend", f"{plan.backend} ({_emulation(plan.slice.hosts)})" if plan.emulated else plan.backend),
        ("store", f"{plan.store}, deployment {plan.deployment}"),
        ("limits", ", ".join(_limits(plan.limits)) or "none"),
        ("retry", f"user {plan.retry.user}, preemption {plan.retry.preemption}, infra {plan.retry.infra}"),
        ("environment", ", ".join([*plan.env, *(f"{name} (by pipe)" for name in plan.secrets)]) or "none captured"),
        ("volumes", ", ".join(plan.volumes) or "none"),
        ("output", plan.output_dir or "the job's own folder in the store"),
        ("partition", plan.partition_key),
        ("labels", ", ".join(f"{name}={value}" for name, value in sorted(plan.labels.items()))),
        ("also", ", ".join(_exceptions(plan))),
    ]
    return "\n".join(f"{name:<12} {text}" for name, text in rows if text)


def _emulation(hosts: int) -> str:
    return "emulated by one process" if hosts == 1 else f"emulated by {hosts} processes"


def _limits(limits: Limits) -> Iterator[str]:
    for name in ("provision", "run", "total", "stall"):
        value = getattr(limits, name)
        if value is not None:
            yield f"{name} {duration(value)}"
    if limits.cost is not None:
        yield f"cost ${limits.cost:.2f}"


def _exceptions(plan: Plan) -> Iterator[str]:
    """What is otherwise than usual."""
    if not plan.distributed:
        yield "the hosts are not joined"
    if not plan.compile_cache:
        yield "no compile cache"
    if plan.debug_port:
        yield "waits for a debugger"
    if plan.abort_without_owner:
        yield "ends with its submitter"
