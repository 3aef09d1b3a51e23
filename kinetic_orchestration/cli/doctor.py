"""The checks of `doctor`: the settings in force with their sources, and whether this machine is ready for jobs.

Every check reports its result, and every failed one names the fix. Nothing is sent anywhere but to the cloud that jobs
run in, and only the home and the store are written to. It does not know how the results are shown.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kinetic_orchestration.errors import KineticError, NotEmulated
from kinetic_orchestration.jobs import trust
from kinetic_orchestration.plan import emulation
from kinetic_orchestration.plan.configuration import home, plugins, store_address
from kinetic_orchestration.plan.configuration.settings import SETTINGS, Settings, duration, load, profile_file, text_of
from kinetic_orchestration.plan.declare import keras_kinetic
from kinetic_orchestration.plan.declare.backend_choice import may_run_on
from kinetic_orchestration.plan.declare.cloud import Kubernetes
from kinetic_orchestration.plan.declare.spec import LOCAL, JobSpec, Options
from kinetic_orchestration.plan.planner import backend_of, make_plan
from kinetic_orchestration.plan.values import TRAITS, Traits, traits_of
from kinetic_orchestration.platforms.google.storage.requests import impatient
from kinetic_orchestration.platforms.local import backend
from kinetic_orchestration.platforms.local.store import check_guarantees
from kinetic_orchestration.platforms.registry import open_backend, open_store

OK = "ok"
WARNING = "warning"
FAILED = "failed"

FULL = 256 << 20  # with less, a job may not get through
NARROW = 4 << 30
SMALL_MEMORY = 2 << 30
FRAMEWORKS = ("jax", "keras", "torch", "tensorflow", "numpy")
NEWEST = (3, 13)
OURS = "KINETIC_"
PATIENCE = 4.0  # for a bucket, while a user waits for a diagnosis


# Settings that only one kind of backends reads.
_OF_ZONES = ("zones", "network", "subnetwork", "service_account", "emulator_grpc")
_OF_PROJECTS = ("project", "zone", "emulator")
_OF_CLUSTERS = ("cluster", "clusters", "namespace", "namespaces", "queue")


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check. `fix` is the next step, if there is one."""

    name: str
    state: str
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    value: str
    source: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Report:
    settings: tuple[Setting, ...]
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.state != FAILED for check in self.checks)


def examine(environ: Mapping[str, str], spec: JobSpec | None = None, **arguments: str | None) -> Report:
    """Run all checks, even after a failure. `spec`: the job for which its platform is checked; by default a small
    one."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            settings = load(environ, **arguments)
            trust.of(settings)
        except KineticError as error:
            # The message of a setting that cannot be is its fix.
            failed = Check("settings", FAILED, "a setting cannot be", str(error))
            return Report((), (_python(), failed))
    warned = tuple(Check("settings", WARNING, "a setting is not as asked", str(entry.message)) for entry in caught)
    probes: tuple[Callable[[], Check], ...] = (
        _python,
        lambda: _home(settings),
        *(() if settings.backend in _OF_VMS else (lambda: _store(settings),)),  # they check their bucket themselves
        lambda: _backend(settings),
        lambda: _disk(settings),
        lambda: _machine(settings),
        lambda: _gpus(settings, environ),
        _loopback,
        lambda: _uv(environ),
        _frameworks,
    )
    checks = (
        *(*warned, *_misspelt(environ, settings), *_platforms()),
        *(*(probe() for probe in probes), *_cloud(settings, spec)),
    )
    return Report(tuple(_settings(settings, environ)), checks)


def concerning(settings: tuple[Setting, ...]) -> tuple[Setting, ...]:
    """Return the settings that are set, and those that the backend in force reads. On this machine it may become any
    other one, and all are returned."""
    backend = next((entry.value for entry in settings if entry.name == "backend"), "")
    traits = traits_of(backend)
    if traits is None or traits.share_machine:
        return settings
    foreign = {
        *(() if traits.in_zones else _OF_ZONES),
        *(() if traits.in_project else _OF_PROJECTS),
        *(() if traits.options is Kubernetes else _OF_CLUSTERS),
    }
    return tuple(entry for entry in settings if entry.source != "default" or entry.name not in foreign)


def _misspelt(environ: Mapping[str, str], settings: Settings) -> Iterator[Check]:
    """Unused variables with names similar to those of settings."""
    for name, why in keras_kinetic.without_effect(environ, (traits_of(settings.backend) or Traits()).ignored):
        yield Check("settings", WARNING, f"{name} is Keras Kinetic's and has no effect", why)
    if (unread := keras_kinetic.unread_profiles(environ)) is not None:
        yield Check("settings", WARNING, f"{unread[0]} is Keras Kinetic's and is not read", unread[1])
    known = [row.variable for row in SETTINGS.values() if row.variable.startswith(OURS)]
    for name in sorted(environ):
        if name.startswith(OURS) and name not in known:
            for near in difflib.get_close_matches(name, known, 1, 0.9):
                yield Check("settings", WARNING, f"{name} is no setting and has no effect", f"did you mean {near}?")


def _settings(settings: Settings, environ: Mapping[str, str]) -> Iterator[Setting]:
    profile = profile_file(environ)
    for name, row in SETTINGS.items():
        value = getattr(settings, name)
        if name == "max_hosts" and not value:
            value = ""  # 0 stands for what the machine holds
        elif name in ("signing_key", "billing_key"):
            value = "(set, not shown)" if value else ""
        elif name in ("emulator", "emulator_grpc", "storage_emulator"):
            value = re.sub(r"[^/@]+@|(?<=[^/]/)[^/].*", "(token, not shown)", value)
        elif name == "retention":
            value = f"{value / 86400:g}d"
        elif name == "zone_patience":
            value = duration(value)
        elif isinstance(value, bool):
            value = str(value).lower()
        yield Setting(name, text_of(value), settings.sources[name], row.meaning)
    state = f"{profile}{'' if profile.is_file() else ' (not there)'}"
    asked = "KINETIC_PROFILE_FILE" if environ.get("KINETIC_PROFILE_FILE") else "default"
    yield Setting("profile file", state, asked, "where settings of this user may lie")


def _python() -> Check:
    found = (
        f"Python {'.'.join(map(str, sys.version_info[:3]))} at {sys.executable or 'an unknown place'}, {sys.platform}"
    )
    if not sys.executable:
        return Check(
            "python", FAILED, found, "run with a Python that knows its own executable: hosts are started with it"
        )
    if sys.version_info[:2] > NEWEST:
        newest = ".".join(map(str, NEWEST))
        return Check("python", WARNING, found, f"newer than Python {newest}, the newest that is tested; use that one")
    return Check("python", OK, found)


def _home(settings: Settings) -> Check:
    try:
        with tempfile.TemporaryFile(dir=settings.home) as file:
            file.write(b"probe")
            file.flush()
    except OSError as error:
        fix = "make it writable for this user, or name another folder with KINETIC_HOME"
        return Check("home", FAILED, f"{settings.home}: {error.strerror or error}", fix)
    return Check("home", OK, f"{settings.home} is writable; {home.described(settings.home)}")


def _store(settings: Settings) -> Check:
    try:
        with impatient(PATIENCE):
            store = open_store(settings.store, settings.deployment)
        if store.folder is None:
            name = f"probes/{secrets.token_hex(8)}"
            store.put(name, b"may this be written?")
            store.delete(name)
            return Check("store", OK, f"{store.url} can be written and cleaned from here; hosts need the same right")
        check_guarantees(store.folder)
    except KineticError as error:
        return Check("store", FAILED, f"{settings.store} cannot be used", str(error))
    return Check("store", OK, f"{store.url}: creating, replacing and locking files work as they must")


def _backend(settings: Settings) -> Check:
    try:
        open_backend(settings.backend, settings)
    except KineticError as error:
        return Check("backend", FAILED, str(error), "set KINETIC_BACKEND=local")
    try:
        emulation.check(_some_job(settings.backend), settings)
    except NotEmulated as error:
        return Check("backend", FAILED, "Google Cloud is meant, and jobs cannot run there", str(error))
    if settings.backend != LOCAL:
        emulated = bool(settings.emulator or settings.emulator_grpc)
        several = may_run_on(settings)
        found = settings.backend if len(several) == 1 else f"by the hardware of a job: {', '.join(several)}"
        found = f"{found}, on an emulated cloud" if emulated else found
    else:
        emulated = True
        found = f"{settings.backend}: what this machine does not have is emulated on its CPU"
    if settings.require_hardware and emulated:
        fix = emulation.UNSET if settings.backend != LOCAL else "name a project and a store"
        return Check("backend", WARNING, f"{found}, and KINETIC_REQUIRE_HARDWARE refuses that", fix)
    return Check("backend", OK, found)


def _platforms() -> Iterator[Check]:
    """Backends of other packages that are installed here."""
    for found in plugins.announced(TRAITS):
        said = f"{found.name}, a backend of {found.package}"
        if found.trouble:
            yield Check("platforms", WARNING, f"{said}, cannot be used", found.trouble)
        else:
            yield Check("platforms", OK, said)


def _cloud(settings: Settings, spec: JobSpec | None) -> Iterator[Check]:
    name = settings.backend if spec is None else backend_of(spec.options, settings)
    if name == "tpu-vm":
        from kinetic_orchestration.platforms.google import preflight

        for finding in preflight.examine(settings):
            yield Check(*finding)
    elif name in _SMALLEST:
        yield from _planned(settings, spec or _some_job(name), name)


_OF_VMS = ("tpu-vm", "compute")
# What is asked for where the user names no job.
_SMALLEST = {"compute": "l4", "gke": "cpu", "kubernetes": "cpu", "slurm": "cpu"}


def _some_job(backend: str) -> JobSpec:
    """Return a small job that the backend can have."""
    return JobSpec("a job", Options(accelerator=_SMALLEST[backend]) if backend in _SMALLEST else Options())


def _planned(settings: Settings, spec: JobSpec, name: str) -> Iterator[Check]:
    """Check a backend for a job that is planned for it."""
    from kinetic_orchestration.jobs.request import interpreter_of
    from kinetic_orchestration.platforms.google.compute.backend import ComputeBackend
    from kinetic_orchestration.platforms.kubernetes.backend import KubernetesBackend
    from kinetic_orchestration.platforms.slurm.backend import SlurmBackend

    backend = open_backend(name, settings)
    assert isinstance(backend, KubernetesBackend | ComputeBackend | SlurmBackend)
    service = (traits_of(name) or Traits()).service
    try:
        plan = backend.resolve(make_plan(spec, settings, interpreter=interpreter_of(spec)))
    except KineticError as error:
        yield Check("plan", FAILED, f"{spec.name} cannot be planned for {service}", str(error))
        return
    try:
        backend.check(plan)
    except KineticError as error:  # the platform can be asked all the same
        yield Check("plan", FAILED, f"{spec.name} would be refused", str(error))
    try:
        for finding in backend.examine(plan):
            yield Check(*finding)
    except KineticError as error:
        yield Check(service, FAILED, "there is no way to it", str(error))


def _disk(settings: Settings) -> Check:
    places = {
        "home": settings.home,
        **({"store": Path(settings.store)} if store_address.is_folder(settings.store) else {}),
    }
    free = {name: shutil.disk_usage(_existing(path)).free for name, path in places.items()}
    least = min(free, key=lambda name: free[name])
    found = f"{_gib(free[least])} free at {places[least]}"
    if free[least] < NARROW:
        fix = "free some space there (`kinetic-orchestration reap` removes old jobs), or move it with KINETIC_HOME"
        return Check("disk", FAILED if free[least] < FULL else WARNING, found, fix)
    return Check("disk", OK, found)


def _existing(path: Path) -> Path:
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())


def _machine(settings: Settings) -> Check:
    cores, memory = backend.cores(), backend.memory()
    hosts = backend.most_hosts(settings.max_hosts)
    found = f"{cores} core{'s' if cores > 1 else ''}, {_gib(memory)} of memory: emulates slices of up to {hosts} hosts"
    if memory < SMALL_MEMORY:
        fix = "slices of more than one host may not fit here; set KINETIC_MAX_HOSTS, or use a larger machine"
        return Check("machine", WARNING, found, fix)
    return Check("machine", OK, found)


def _gpus(settings: Settings, environ: Mapping[str, str]) -> Check:
    rows, listed = backend.gpus_and_holders(settings, environ)
    found = "; ".join(f"{gpu}: {f'{holder} has it' if holder else 'free'}" for gpu, holder in rows)
    if listed.troubles:
        fix = f"jobs can have no GPU that its driver does not list: {'; '.join(listed.troubles)}"
        return Check("gpus", WARNING, found or "none, though there is a driver", fix)
    return Check("gpus", OK, found or "none")


def _loopback() -> Check:
    try:
        with socket.create_server(("127.0.0.1", 0)):
            pass
    except OSError as error:
        fix = "bring the loopback interface up (ip link set lo up): the hosts of an emulated slice meet there"
        return Check("loopback", FAILED, f"no port can be opened on 127.0.0.1: {error.strerror}", fix)
    return Check("loopback", OK, "ports can be opened on 127.0.0.1")


def _uv(environ: Mapping[str, str]) -> Check:
    from kinetic_orchestration.packaging.requirements.resolution import find_uv

    try:
        path = find_uv(environ)
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, env=dict(environ))
    except KineticError as error:
        return Check("uv", WARNING, "not found; only jobs with requirements= need it", str(error))
    except (OSError, subprocess.SubprocessError) as error:
        return Check("uv", WARNING, f"{path} does not run: {error}", "install it anew: python -m pip install -U uv")
    if done.returncode:
        fix = "install it anew: python -m pip install -U uv"
        return Check("uv", WARNING, f"{path} --version failed: {done.stderr.strip()}", fix)
    return Check("uv", OK, f"{done.stdout.strip()} at {path}")


def _frameworks() -> Check:
    """The installed frameworks. They are not imported: that would take seconds."""
    found = []
    for name in FRAMEWORKS:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    if not found:
        fix = "jobs use this environment unless they name requirements=; install what they import here, or name it"
        return Check("frameworks", WARNING, f"none of {', '.join(FRAMEWORKS)}", fix)
    return Check("frameworks", OK, ", ".join(found))


def _gib(count: float) -> str:
    return f"{count / (1 << 30):.1f} GiB"
