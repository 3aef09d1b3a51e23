"""Runs the steps of a verification one after another, within the budget, and writes a report of the results.

A failed step stops only those that need it. Ctrl-C ends the current step, and the last step, which removes everything,
still runs.
"""

from __future__ import annotations

import contextlib
import getpass
import importlib
import importlib.metadata
import json
import os
import platform
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from kinetic_orchestration.cli.verify import budget, comparison
from kinetic_orchestration.cli.verify.budget import Budget, Planned
from kinetic_orchestration.cli.verify.clouds import compute_engine
from kinetic_orchestration.cli.verify.clouds.cloud_tpu import CloudTpu, TpuCalls
from kinetic_orchestration.cli.verify.clouds.compute_engine import ComputeCalls, ComputeEngine
from kinetic_orchestration.cli.verify.comparison import Difference, Facts
from kinetic_orchestration.cli.verify.recording import Entry, Recorder
from kinetic_orchestration.cli.verify.redaction import Redactor, known_of
from kinetic_orchestration.cli.verify.scene import Scene, Spent, TooLong
from kinetic_orchestration.cli.verify.steps import BUCKET, REAP, Step, steps_of
from kinetic_orchestration.errors import KineticError, UsageError
from kinetic_orchestration.plan.configuration import store_address
from kinetic_orchestration.plan.configuration.settings import Settings, load
from kinetic_orchestration.plan.declare import backend_choice
from kinetic_orchestration.plan.declare.spec import COMPUTE, TPU_VM
from kinetic_orchestration.plan.hardware import accelerators, price_list, regions
from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.plan.messages import warn
from kinetic_orchestration.platforms.google.rest import call_listeners
from kinetic_orchestration.platforms.google.storage.location import location_of
from kinetic_orchestration.platforms.google.storage.store import GcsStore
from kinetic_orchestration.platforms.registry import open_store
from kinetic_orchestration.platforms.shared import rate_limit
from kinetic_orchestration.protocol import names

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
BASELINES = {
    TPU_VM: Path(__file__).parent / "baseline.json", COMPUTE: Path(__file__).parent / "baseline_compute.json",
}  # fmt: skip
PLATFORMS = {TPU_VM: "Cloud TPU", COMPUTE: "Compute Engine"}
USUAL = "v5e-1"  # the accelerator of Cloud TPU that costs least
JOBS = "kinetic_verify_jobs"
VERSIONS = ("google-cloud-tpu", "google-cloud-storage", "google-api-core", "google-auth", "grpcio", "protobuf", "uv")

Note = Callable[[str], object]


@dataclass(frozen=True)
class Wanted:
    """Hold the wishes of the command line."""

    accelerator: str = ""  # "": what costs least
    usd: float = 5.0
    spot: bool = False
    zones: tuple[str, ...] = ()
    wait: float = 1200.0
    only: tuple[str, ...] = ()
    store: str | None = None
    backend: str = ""  # "": that of the settings, or of the accelerator


class Result(NamedTuple):
    name: str
    proves: str
    state: str
    why: tuple[str, ...]  # it failed, or was not run; redacted
    seconds: float
    most: float  # dollars
    spent: float
    seen: Mapping[str, Any] = {}  # redacted


@dataclass
class Report:
    began: str
    versions: Mapping[str, str]
    asked: Mapping[str, Any]
    price: str
    emulated: bool
    results: list[Result] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    unrecorded: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    facts: Facts | None = None
    spent: float = 0.0
    seconds: float = 0.0
    lost: int = 0
    left: list[str] = field(default_factory=list)  # commands for the user who ran it: not redacted, and in no file
    interrupted: bool = False
    baseline: str = ""
    redactor: Redactor | None = None

    @property
    def failed(self) -> bool:
        return any(result.state == FAILED for result in self.results)


def completed(wanted: Wanted) -> Wanted:
    """The wishes with an accelerator: where none is named, the usual one of the platform on which jobs run."""
    if wanted.accelerator:
        return wanted
    settings = _load(wanted, f"verify-{secrets.token_hex(4)}")
    if settings.backend != COMPUTE:
        return replace(wanted, accelerator=USUAL)
    return replace(wanted, accelerator=compute_engine.cheapest(settings, spot=wanted.spot))


def _load(wanted: Wanted, deployment: str, zones: str | None = None) -> Settings:
    """The settings of a run, with the platform that is asked for; else with that which serves its accelerator if no
    setting names one."""
    asked: dict[str, Any] = {
        "store": wanted.store,
        "deployment": deployment,
        "zones": zones or ",".join(wanted.zones) or None,
    }
    if wanted.backend:
        return load(**asked, backend=wanted.backend)
    settings = load(**asked)
    if wanted.accelerator and backend_choice.leaves_open(settings):
        chosen = backend_choice.by_hardware(accelerators.parse(wanted.accelerator)).backend
        settings = load(**asked, backend=chosen)
    return settings


def settings_for(wanted: Wanted, *, dry_run: bool = False) -> Settings:
    """The settings of this run: a deployment of its own, in the zones that are named, else in those of the bucket."""
    deployment = f"verify-{secrets.token_hex(4)}"
    settings = _load(wanted, deployment)
    in_bucket = store_address.bucket_path(settings.store) is not None
    if settings.backend not in (TPU_VM, COMPUTE) or not settings.project or not in_bucket:
        raise UsageError(
            "a verification runs on Cloud TPU or Compute Engine, or on the emulator of them: set KINETIC_PROJECT and "
            "KINETIC_STORE=gs://… (docs/cloud/cloud-tpu.md and docs/cloud/compute.md have the steps from a bare "
            "project), or paste what `kinor emulator --print-env` prints"
        )
    one = accelerators.parse(completed(wanted).accelerator)
    if not settings.zones and settings.backend == COMPUTE and not accelerators.zones(one):
        raise UsageError(
            f"no zones of {one.name} are known: name those that have some with --zone or KINETIC_ZONES (docs/cloud/"
            "compute.md says how they are found)"
        )
    if not settings.zones:
        near = _near(one, settings, dry_run=dry_run)
        settings = _load(wanted, deployment, ",".join(near) or None)
    return settings


def _near(one: Slice, settings: Settings, *, dry_run: bool) -> tuple[str, ...]:
    """The zones that a job which names none may run in: those of its bucket's location."""
    known = accelerators.zones(one)
    try:
        bucket = location_of(settings)
    except KineticError as error:
        if not dry_run:
            raise
        warn(f"a verification would be refused, and all known zones stand for its own here: {error}")
        return known
    return regions.near(known, bucket, one.name)


def closed(wanted: Wanted, error: KineticError, note: Note) -> Report:
    """Return the report of a bucket that cannot be opened: it is opened once more, for the record, and no step runs."""
    known_zones = ",".join(accelerators.zones(accelerators.parse(completed(wanted).accelerator)))
    settings = _load(wanted, f"verify-{secrets.token_hex(4)}", known_zones or None)
    planned, began = plan(wanted, settings), time.monotonic()
    report, recorder = _new(wanted, settings, planned)
    recorder.step = BUCKET
    with call_listeners.listening(recorder.record), contextlib.suppress(KineticError):
        location_of(settings)
    _without_bucket(planned, report, recorder, error, note)
    report.seconds, report.entries, report.lost = time.monotonic() - began, recorder.entries, recorder.lost
    return report


def plan(wanted: Wanted, settings: Settings) -> Budget:
    steps, wanted = steps_of(settings.backend), completed(wanted)
    names = [step.name for step in steps]
    if unknown := sorted(set(wanted.only) - set(names)):
        raise UsageError(f"there is no step {unknown[0]!r}; there are: {', '.join(names)}")
    return budget.plan(
        [step.wish for step in steps], wanted.accelerator, wanted.usd, settings.zones,
        spot=wanted.spot, prices=settings.prices, listed=settings.listed,
        only=(*wanted.only, REAP) if wanted.only else (), backend=settings.backend,
    )  # fmt: skip


def run(wanted: Wanted, settings: Settings, planned: Budget, note: Note, emulator: Facts | None = None) -> Report:
    """Run all steps and write the report; all resources of the run are removed in any case."""
    report, recorder = _new(wanted, settings, planned)
    began, measured = time.monotonic(), list[tuple[str, float]]()
    with _own_home(), _jobs() as jobs, call_listeners.listening(recorder.record), rate_limit.freely():
        recorder.step = BUCKET
        try:
            store = open_store(settings.store, settings.deployment)
        except KineticError as error:
            _without_bucket(planned, report, recorder, error, note)
        else:
            assert isinstance(store, GcsStore)
            cloud = ComputeEngine(settings) if settings.backend == COMPUTE else CloudTpu(settings)
            scene = Scene(
                settings, cloud, store, recorder, jobs, budget=wanted.usd, wait=wanted.wait, spot=wanted.spot,
                accelerator=completed(wanted).accelerator,
            )  # fmt: skip
            _run_all(scene, planned, report, note)
            measured = scene.measured
    report.seconds = time.monotonic() - began
    report.spent, report.entries, report.lost = recorder.spent(), recorder.entries, recorder.lost
    report.facts = comparison.facts(recorder.entries, recorder.seen, recorder.echoes)
    if emulator is not None:
        report.differences = comparison.differences(report.facts, emulator)
        report.unrecorded = comparison.unrecorded(report.facts, emulator)
    own = f"{recorder.calls.SERVICE} "
    calls = [("one answer", entry.seconds) for entry in recorder.entries if entry.call.startswith(own)]
    waits = [
        ("asked for → to be seen", slice_.shown - slice_.created)
        for slice_ in recorder.slices.values()
        if slice_.shown is not None and slice_.created is not None
    ]
    report.differences += comparison.too_slow([*measured, *calls, *waits])
    return report


def _new(wanted: Wanted, settings: Settings, planned: Budget) -> tuple[Report, Recorder]:
    redactor = Redactor(placeholders(settings))
    calls = ComputeCalls() if settings.backend == COMPUTE else TpuCalls()
    recorder = Recorder(redactor, f"kinetic-{names.mark(settings.store, settings.deployment)}-", calls=calls)
    asked = {
        "platform": PLATFORMS[settings.backend], "accelerator": completed(wanted).accelerator, "budget": wanted.usd,
        "spot": wanted.spot, "zones": list(settings.zones),
    }  # fmt: skip
    report = Report(
        datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), versions(), asked, planned.price,
        bool(settings.emulator or settings.emulator_grpc), redactor=redactor,
    )  # fmt: skip
    return report, recorder


def _without_bucket(planned: Budget, report: Report, recorder: Recorder, error: KineticError, note: Note) -> None:
    """Report the failure of the bucket's step, and all others as dependent on it."""
    why = recorder.redactor.text(f"{type(error).__name__}: {error}")
    for each in planned.steps:
        if each.wish.name == BUCKET:
            note(f"{BUCKET}: failed: {error}")
            report.results.append(Result(BUCKET, each.wish.proves, FAILED, (why,), 0.0, 0.0, 0.0))
        else:
            report.results.append(_not_run(each, f"needs {BUCKET}", note))


def _run_all(scene: Scene, planned: Budget, report: Report, note: Note) -> None:
    steps = {step.name: step for step in steps_of(scene.settings.backend)}
    ended = ""
    for each in planned.steps:
        if each.wish.name == REAP:
            continue
        reason = (
            ended
            or each.left_out
            or _needs(each, report.results)
            or budget.over(each, scene.budget, scene.recorder.spent())
        )
        if reason:
            report.results.append(_not_run(each, reason, note))
            continue
        try:
            report.results.append(_run_one(steps[each.wish.name], each, scene, note))
        except KeyboardInterrupt:
            note("interrupted: what was made is removed, and the report is written; once more ends that, too")
            ended, report.interrupted = "interrupted", True
            report.results.append(_not_run(each, "interrupted", note))
    last = next(each for each in planned.steps if each.wish.name == REAP)
    try:
        result = _run_one(steps[REAP], last, scene, note)
    except KeyboardInterrupt:
        report.interrupted, report.left = True, scene.commands(scene.not_seen_gone())
        report.results.append(_not_run(last, "interrupted", note))
        return
    report.results.append(result)
    report.left = list(scene.results.get(REAP, {}).get("left", ()))
    if result.state == FAILED and not scene.results.get(REAP):  # the check itself failed: remove what is known
        report.left = scene.clear()


def _run_one(step: Step, planned: Planned, scene: Scene, note: Note) -> Result:
    note(f"{step.name}: {step.wish.proves}")
    began, before = time.monotonic(), scene.recorder.spent()
    scene.begin(planned)
    why: list[str] = []
    seen: dict[str, Any] = {}
    try:
        seen = step.run(scene)
        scene.results[step.name] = seen
        why = step.check(seen)
    except (Spent, TooLong) as error:
        why = [str(error)]
        _end_jobs(scene)
    except Exception as error:  # of any kind: it is what the report is about
        why = [f"{type(error).__name__}: {error}"]
        _end_jobs(scene)
    seconds, spent = time.monotonic() - began, scene.recorder.spent() - before
    note(f"{step.name}: {'failed: ' + '; '.join(why) if why else 'passed'} ({seconds:.0f} s)")
    redactor = scene.recorder.redactor
    return Result(
        step.name, step.wish.proves, FAILED if why else PASSED, tuple(redactor.text(problem) for problem in why),
        seconds, planned.usd, spent, _shown(seen, redactor),
    )  # fmt: skip


def _end_jobs(scene: Scene) -> None:
    """End the jobs of a step that did not come to its end: none may go on while the next one runs."""
    for handle in scene.handles:
        with contextlib.suppress(Exception):  # the last step checks again
            if not handle.peek().status.final:
                handle.cancel("a step of kinor verify did not come to its end", cleanup_timeout=60)


def _needs(planned: Planned, results: Sequence[Result]) -> str:
    passed = {result.name for result in results if result.state == PASSED}
    missing = [name for name in planned.wish.needs if name not in passed]
    return f"needs {' and '.join(missing)}" if missing else ""


def _not_run(planned: Planned, reason: str, note: Note) -> Result:
    note(f"{planned.wish.name}: not run: {reason}")
    return Result(planned.wish.name, planned.wish.proves, NOT_RUN, (reason,), 0.0, planned.usd, 0.0)


def _shown(seen: Mapping[str, Any], redactor: Redactor) -> dict[str, Any]:
    """Redact what a step saw: its own numbers stay, since they are no names."""
    found: dict[str, Any] = {}
    for key, value in seen.items():
        if isinstance(value, bool | int | float) or value is None:
            found[key] = round(value, 3) if isinstance(value, float) else value
        elif isinstance(value, str):
            found[key] = redactor.text(value)
        elif isinstance(value, list):
            found[key] = [redactor.text(str(item)) for item in value]
        elif isinstance(value, Mapping):
            found[key] = _shown(value, redactor)
    return found


# ---- around it


def placeholders(settings: Settings) -> dict[str, str]:
    """Map what must never be seen in a report to the word that stands for it."""
    bucket, _, prefix = settings.store.removeprefix("gs://").partition("/")
    values: list[tuple[str, str]] = [
        ("DEPLOYMENT", settings.deployment), ("PROJECT", settings.project), ("PROJECT", settings.quota_project),
        ("BUCKET", bucket), ("STORE", settings.store), ("PREFIX", prefix if len(prefix) > 7 else ""),
        ("ACCOUNT", settings.service_account), ("ACCOUNT", settings.impersonate), ("NETWORK", settings.network),
        ("SUBNETWORK", settings.subnetwork), ("OUTPUTS", settings.output_dir), ("HOME", str(Path.home())),
        ("HOME", str(settings.home)), ("HERE", socket.gethostname()), ("USER", _user()),
    ]  # fmt: skip
    for path in (settings.network, settings.subnetwork):
        parts = path.split("/")
        values += [("PROJECT", parts[1])] if len(parts) > 1 and parts[0] == "projects" else []
    return known_of((word, value) for word, value in values if len(value) > 2)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return ""


def versions() -> dict[str, str]:
    import kinetic_orchestration

    found = {"kinetic-orchestration": kinetic_orchestration.__version__, "python": platform.python_version()}
    found["system"] = f"{platform.system()} {platform.machine()}"
    for name in VERSIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def baseline(backend: str = TPU_VM) -> tuple[Facts, str]:
    """Load what the emulator answers, as it was recorded for this version, and what it was recorded with."""
    found = json.loads(BASELINES[backend].read_text(encoding="utf-8"))
    return comparison.from_json(found["facts"]), str(found["recorded"])


@contextlib.contextmanager
def _own_home() -> Iterator[None]:
    """A home for this run alone, so that nothing of it stays on this machine."""
    before = os.environ.get("KINETIC_HOME")
    folder = tempfile.mkdtemp(prefix="kinetic-verify-")
    with contextlib.suppress(FileNotFoundError):  # else its jobs would know no price, and their limits of cost none
        shutil.copy(load().home / price_list.FILE, folder)
    os.environ["KINETIC_HOME"] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ["KINETIC_HOME"]
        else:
            os.environ["KINETIC_HOME"] = before
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _jobs() -> Iterator[ModuleType]:
    """The functions of the jobs, as a project of their own: no other files are sent to the hosts."""
    folder = tempfile.mkdtemp(prefix="kinetic-verify-project-")
    try:
        Path(folder, "pyproject.toml").touch()
        shutil.copyfile(Path(__file__).parent / "on_hosts.py", Path(folder, f"{JOBS}.py"))
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        yield importlib.import_module(JOBS)
    finally:
        sys.modules.pop(JOBS, None)
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
        shutil.rmtree(folder, ignore_errors=True)
