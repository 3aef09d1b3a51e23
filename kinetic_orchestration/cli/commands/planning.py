"""The commands that plan: the job that a function would be, and the packages of its environment."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import itertools
import operator
import re
import sys
import tempfile
import traceback
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from kinetic_orchestration.api.decorator import RemoteCallable
from kinetic_orchestration.capacity import choosing, records
from kinetic_orchestration.capacity.prices import in_force
from kinetic_orchestration.cli import codes
from kinetic_orchestration.cli.output import dollars, note, show_checks, show_fields, show_json, show_table, working
from kinetic_orchestration.cli.slice_drawing import draw
from kinetic_orchestration.errors import KineticError, NotEmulated, UsageError
from kinetic_orchestration.jobs import request, trust
from kinetic_orchestration.jobs.following import placing
from kinetic_orchestration.jobs.watching import spending
from kinetic_orchestration.packaging.bundle import Bundle, package
from kinetic_orchestration.packaging.requirements.locks import Environment
from kinetic_orchestration.packaging.source.tree import Snapshot
from kinetic_orchestration.plan import emulation, planner
from kinetic_orchestration.plan.configuration import budgets, chip_shares, store_address
from kinetic_orchestration.plan.configuration.budgets import Budget
from kinetic_orchestration.plan.configuration.settings import Settings, duration
from kinetic_orchestration.plan.declare.backend_choice import by_rule, chosen
from kinetic_orchestration.plan.declare.checks.functions import check_function, name_of
from kinetic_orchestration.plan.declare.choices import ways
from kinetic_orchestration.plan.declare.cloud import Compute, Kubernetes, TpuVm
from kinetic_orchestration.plan.declare.spec import JobSpec, Options, slice_of
from kinetic_orchestration.plan.hardware import regions
from kinetic_orchestration.plan.hardware.accelerators import zones as zones_of
from kinetic_orchestration.plan.hardware.price_list import staleness
from kinetic_orchestration.plan.hardware.prices import Price, Unknown, dearest, price
from kinetic_orchestration.plan.hardware.regions import Location
from kinetic_orchestration.plan.messages import size, warn
from kinetic_orchestration.plan.planner.describing import counts_with
from kinetic_orchestration.plan.values import Plan, Traits, traits_of
from kinetic_orchestration.platforms.backend import Backend
from kinetic_orchestration.platforms.google.storage.location import bucket_of, location_of
from kinetic_orchestration.platforms.registry import open_backend, open_store
from kinetic_orchestration.platforms.shared.findings import FAILED, Finding
from kinetic_orchestration.protocol.content.tree import FILE
from kinetic_orchestration.protocol.system import copies

LARGEST = 3
_NUMBERED = re.compile(r"^(first|number \d+) in your order")


def plan(arguments: Namespace) -> int:
    told: list[str] = []
    with _heard(told):
        spec = spec_of(arguments)
        with working(f"packaging {spec.name}"):
            settings = request.settings_of(spec)
            planned, bundle, egress, reason = _dry_run(spec, settings)
            lines = _lines(planned, settings)
            kept = _kept(planned, settings)
    asked, first = _asked_at_once(planned, lines), _first(planned, lines)
    backend = open_backend(first.backend, settings)
    monthly = spending.foreseen(planned, settings) if backend.charges else []
    if arguments.admission:
        _check_admission(first)
    if arguments.json:
        found = _admission(backend, first) if arguments.admission else None
        show_json(_document(planned, bundle, told, files=arguments.files) | {
            "egress": egress or None,
            "admission": None if found is None else [finding._asdict() for finding in found],
            "reason": reason or None, "choices": [line._asdict() for line in lines] or None,
            "race": asked or None, "warm": _warm_document(kept),
            "budgets": [
                {**budget._asdict(), "month": month or None, "used_by_ended_usd": usd} for budget, month, usd in monthly
            ] or None,
        })  # fmt: skip
        return _code(found or ())
    with _heard(told):
        priced = in_force(settings) if backend.charges and planned.store == settings.store else settings
    print(planner.describe(planned, reason, asked))
    if planned.choices:
        _show_choices(planned, lines)
    prices = _prices(planned, priced) if backend.charges and not planned.choices else []
    if counted := counts_with(planned, priced):
        prices.append(("cost limit ", f"counts with {counted}"))
    prices += [("budget     ", _of_month(*each)) for each in monthly]
    more = [row for row in (("warm       ", _warm(planned, kept)), ("egress     ", egress)) if row[1]]
    show_fields([*_shares(planned, priced), *prices, *more, *_contents(bundle, planned)])
    if call := backend.dry_run(first):
        print(f"\n{call}")
    if arguments.files and bundle.project is not None:
        _show_files(bundle.project)
    print(f"\n{_drawing(first)}", end="")
    sys.stdout.flush()
    for text in told:
        note(f"warning: {text}")
    if backend.charges and (old := _staleness(planned, priced)):
        note(old)
    if not arguments.admission:
        note("nothing was run or sent")
        return codes.OK
    found = _admission(backend, first)
    print()
    show_checks(found)
    sys.stdout.flush()
    note(f"nothing was run, and nothing is stored in {first.zones[0]}, which was asked")
    return _code(found)


@contextmanager
def _heard(told: list[str]) -> Iterator[None]:
    """Add the warnings for users to a list that has each once, in place of showing them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    said = [str(entry.message) for entry in caught if issubclass(entry.category, UserWarning)]
    told.extend(text for text in dict.fromkeys(said) if text not in told)


def _check_admission(planned: Plan) -> None:
    if planned.traits.options is not Kubernetes:
        raise UsageError(
            f"--admission asks a Kubernetes cluster, and this job would run on {planned.backend}: leave it out"
        )


def _show_files(project: Snapshot) -> None:
    print()
    for entry in project.entries:
        print(f"  {entry.path}{f'  {size(entry.size)}' if entry.kind == FILE else ''}")


def _admission(backend: Backend, planned: Plan) -> list[Finding]:
    """Return what the cluster that comes first says of the job. Raises BackendError if it cannot be asked."""
    from kinetic_orchestration.platforms.kubernetes.backend import KubernetesBackend

    assert isinstance(backend, KubernetesBackend)
    with working(f"asking {planned.zones[0]}"):
        return list(backend.admission(planned))


def _code(found: Sequence[Finding]) -> int:
    return codes.FAILED if any(finding.state == FAILED for finding in found) else codes.OK


def spec_of(arguments: Namespace) -> JobSpec:
    file, colon, name = arguments.target.rpartition(":")
    if not colon:
        file, name = arguments.target, ""
    found = _function(_imported(file), name, file)
    if isinstance(found, RemoteCallable):
        function, options = found.__kinetic_function__, found.options
    elif arguments.accelerator:
        function, options = check_function(found), Options()
    else:
        raise UsageError(
            f"{name} in {file} is not decorated with @kinetic.run(...), so it says nothing of where it should run: "
            "add --accelerator NAME to plan it all the same"
        )
    if arguments.accelerator:
        options = replace(options, accelerator=arguments.accelerator, cloud=None)
    place = {key: value for key in ("store", "deployment") if (value := getattr(arguments, key, None))}
    return JobSpec(name_of(function), replace(options, **place), function)


def _dry_run(spec: JobSpec, own: Settings) -> tuple[Plan, Bundle, str, str]:
    """The way of `launch`, as far as nothing is sent; what is billed for data that crosses regions; and why the job has
    its backend, if nothing names one.
    """
    settings = complete(own, spec)
    several = ways(spec.options)
    is_priced = len(several) > 1 or request.needs_prices(spec, settings)
    if is_priced and own.store == settings.store and not store_address.is_folder(settings.store):
        settings = in_force(settings)  # nothing is charged where the store is a folder, which would be made here
    reason = chosen(several[0], settings).reason
    planned, egress = request.draft(spec, settings, dry=True).plan, ""
    if any(one.traits.in_zones and one.zones for one in planned.each()):
        is_open = planner.is_open(planned, spec.options, settings)
        bucket, egress = _bucket(settings, is_open=is_open, real=own.store == settings.store)
        if bucket is not None and planner.needs_location(planned, spec.options, settings):
            planned = planner.near_bucket(planned, bucket, settings, spec.options)
        zones = [zone for one in planned.each() if one.traits.in_zones for zone in one.zones]
        egress = egress or regions.egress(dict.fromkeys(zones), bucket) if bucket else egress
    parent = settings.home / "staging"
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="plan-", dir=parent, ignore_cleanup_errors=True) as folder:
        bundle = package(spec, planned, settings, Path(folder), copies.environ())
    if "python" in planned.cloud:  # as the interpreter itself says
        planned = replace(planned, cloud={**planned.cloud, "python": bundle.environment.python})
    return planned, bundle, egress, reason


def _bucket(settings: Settings, *, is_open: bool, real: bool) -> tuple[Location | None, str]:
    """Return the bucket's location, if the store is one and answers; else the text to show in place of an egress."""
    if not real:
        return None, ""
    try:
        return location_of(settings), ""
    except KineticError as error:
        if is_open:
            warn(f"a job would be refused, and all known zones stand for its own here: {error}")
        return None, f"not known: where the bucket {bucket_of(settings)} lies cannot be read"


def complete(settings: Settings, spec: JobSpec) -> Settings:
    """A dry run needs no account, no project and no bucket yet: others stand for them."""
    emulation.check_slice(spec, settings)  # all ways together, so that an error names the one that it is of
    for options in ways(spec.options):
        settings = _complete_for(settings, replace(spec, options=options))
    return settings


def _complete_for(settings: Settings, spec: JobSpec) -> Settings:
    try:
        emulation.check(spec, settings)
    except NotEmulated as error:  # it is planned for the hardware, and the reason why a job would be refused is shown
        warn(str(error))
        settings = replace(settings, backend=by_rule(spec.options, settings).backend)
    traits = traits_of(planner.backend_of(spec.options, settings)) or Traits()
    if traits.in_zones and not settings.project:
        warn("no project is named (KINETIC_PROJECT): your-project stands for it here, and a job needs one")
        settings = replace(settings, project="your-project")
    named = planner.zones_named(spec.options, settings)
    if traits.options is Compute and not named and not zones_of(slice_of(spec.options)):
        warn("no zone is named (KINETIC_ZONES): your-zone stands for one here, and a job needs one")
        settings = replace(settings, zones=("your-zone",))
    if "gs" in traits.stores and store_address.is_folder(settings.store):
        warn("no bucket is named (KINETIC_STORE): gs://your-bucket/kinetic stands for it here, and a job needs one")
        settings = replace(settings, store="gs://your-bucket/kinetic")
    return settings


def _imported(file: str) -> ModuleType:
    """The file, or the module of that name, as a program would import it; what it prints is not our output."""
    path = Path(file)
    token = request.only_looking.set(True)
    try:
        with redirect_stdout(sys.stderr):
            return _load(path.resolve()) if path.is_file() else _module(file)
    except KineticError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        raise UsageError(f"{file} cannot be imported: {type(error).__name__}: {error}{where}") from error
    finally:
        request.only_looking.reset(token)


def _module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        if all(part.isidentifier() for part in name.split(".")):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
    raise UsageError(f"there is no file {name!r} in {Path.cwd()}, and no module of that name")


def _load(path: Path) -> ModuleType:
    folder, name = path.parent, path.stem
    while (folder / "__init__.py").exists():
        folder, name = folder.parent, f"{folder.name}.{name}"
    sys.path.insert(0, str(folder))
    if "." in name:
        return importlib.import_module(name)
    loader = _Source(name, str(path)) if path.suffix in importlib.machinery.SOURCE_SUFFIXES else None
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class _Source(importlib.machinery.SourceFileLoader):
    """Reads a program itself, and leaves no byte code beside it: that of another text of the same size and second would
    be taken for its own."""

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _function(module: ModuleType, name: str, file: str) -> Any:
    decorated = [key for key, value in copies.members(module).items() if isinstance(value, RemoteCallable)]
    there = f"decorated there: {', '.join(decorated)}" if decorated else "no function there is decorated"
    if not name:
        if len(decorated) != 1:
            raise UsageError(f"{file} needs the name of a function, as {file}:FUNCTION; {there}")
        name = decorated[0]
    try:
        return operator.attrgetter(name)(module)
    except AttributeError:
        raise UsageError(f"{file} has no {name!r}; {there}") from None


def _lines(planned: Plan, settings: Settings) -> list[choosing.Line]:
    """Return the choices of a job in the order in which they would be tried now, by what the deployment knows."""
    if not planned.choices:
        return []
    if settings.store == planned.store and not planned.traits.share_files:
        with suppress(KineticError):  # as of a store that nobody here may read
            store = open_store(planned.store, planned.deployment)
            return choosing.table(planned, records.known(store, choosing.keys(planned)), store.now())
    return choosing.table(planned, {}, 0.0)


def _asked_at_once(planned: Plan, lines: Sequence[choosing.Line]) -> list[str]:
    """Return the places that a first attempt would ask together now, as far as shares let it; none if it asks one."""
    if planned.race == 1:
        return []
    if not lines:
        return list(planner.places_of(planned)[: planned.race])
    own = planned.at(lines[0].choice)
    alike = [
        line for line in lines
        if line.state not in (choosing.UNFIT, choosing.REFUSED)
        and (not own.turn or _size(planned.at(line.choice)) == _size(own))  # its turn is for places of one size
    ]  # fmt: skip
    return [f"{planned.at(one.choice).named} {one.way} in {one.place}" for one in alike[: planned.race]]


def _size(plan: Plan) -> tuple[str, int]:
    return plan.slice.generation, plan.purchase.chips


def _kept(planned: Plan, settings: Settings) -> placing.Kept | None:
    """Return the warm slices that a first attempt would find now; None if it takes none, or they cannot be read."""
    if planned.keep is None or settings.store != planned.store or not any(_may_be_kept(planned)):
        return None
    with suppress(KineticError):  # as of a store that nobody here may read
        return placing.kept_for(planned, open_store(planned.store, planned.deployment), trust.of(settings))
    return None


def _may_be_kept(planned: Plan) -> list[bool]:
    return [one.traits.may_be_kept and not one.traits.share_machine for one in planned.each()]


def _warm(planned: Plan, kept: placing.Kept | None) -> str:
    """Say whether a warm slice fits now, and when it ends; "" for a job that takes none."""
    if planned.keep is None or not any(_may_be_kept(planned)):
        return ""
    if kept is None:
        return "not known: the deployment's store cannot be read here"
    if not kept.obeys:
        told = "none fits now, so hosts are requested"
        if (count := len(kept.fit)) > 0:
            obeys = "obeys the home that made it" if count == 1 else "obey the homes that made them"
            told += f"; {count} would, and {obeys}: KINETIC_SIGNING_KEY is for all"
        if kept.others:
            told += f"; {kept.others} free {'is' if kept.others == 1 else 'are'} of others' shape, or elsewhere"
        return told
    first, more = kept.obeys[0], len(kept.obeys) - 1
    lease, one = first.lease, planned.at(first.choice)
    left = duration(max(1.0, round(lease.until - kept.now)))
    also = f"; {more} more {'fits' if more == 1 else 'fit'}" if more else ""
    where = lease.placement.get("zone", "")
    return f"{lease.slice} fits now: {one.named} in {where}, {first.why}; it ends in {left}{also}"


def _warm_document(kept: placing.Kept | None) -> dict[str, Any] | None:
    if kept is None:
        return None
    fit = [
        {
            "slice": one.lease.slice,
            "zone": one.lease.placement.get("zone"),
            "until": one.lease.until,
            "choice": one.choice,
        }
        for one in kept.obeys
    ]
    return {"fit": fit, "obey_others": len(kept.fit) - len(kept.obeys), "other": kept.others}


def _first(planned: Plan, lines: Sequence[choosing.Line]) -> Plan:
    """Return the plan of a first attempt that would be made now."""
    if not lines:
        return planned
    one = planned.at(lines[0].choice)
    return replace(one, zones=tuple(sorted(one.zones, key=lambda zone: zone != lines[0].place)))


def _show_choices(planned: Plan, lines: Sequence[choosing.Line]) -> None:
    """Print the choices in the order in which they would be tried now, the zones of a region in one row. Which prices
    stand in for others is marked."""
    print()
    rows, stand_ins = [], dict[str, None]()
    for (number, way, usd, _, region, _, stands_in), alike in itertools.groupby(lines, _alike):
        each, one = list(alike), planned.at(number)
        zones = [line.place.removeprefix(f"{region}-") for line in each]
        where = f"{region}-{{{','.join(zones)}}}" if len(each) > 1 else each[0].place
        size = f"{one.slice.chips * one.slices} on {one.crew}" if one.slice.kind != "cpu" else one.crew
        cost = "-" if one.traits.share_files else dollars(usd)
        if stands_in:
            cost, stand_ins[f"that {stands_in}"] = f"~{cost}", None
        rows.append((one.named, size, way, where or "this machine", cost, each[0].reason))
    show_table(("choice", "chips", "bought", "where", "an hour", "why"), rows, right=("an hour",))
    if stand_ins:
        note(f"~ marks a price that is not known. What stands in for it: {'; or '.join(stand_ins)}")
    print()


def _shares(planned: Plan, settings: Settings) -> list[tuple[str, str]]:
    """Return how many chips of v5e a chip counts for where chips are shared by what they cost, and why."""
    told = []
    for one in planned.each() if planned.turn or planned.choices else ():
        counted = chip_shares.weight(one.slice, settings.prices, settings.listed)
        if one.turn and any(not share.generation for share in settings.chips):
            told.append(f"a chip of {one.slice.generation} counts as {counted.counts:g} {counted.by}")
    return [("shares     ", "; ".join(dict.fromkeys(told)))] if told else []


def _of_month(budget: Budget, month: str, used: float | None) -> str:
    of = "all pipelines together" if budget.pipeline == budgets.TOTAL else f"pipeline {budget.pipeline}"
    told = f"{dollars(budget.usd)} a month of {of}, {budget.action}"
    return told if used is None else f"{told}; {dollars(used)} of it used in {month} by jobs that have ended"


def _alike(line: choosing.Line) -> tuple[int, str, float | None, str, str, str, str]:
    """The part that lines of one region share: all but their places in the user's order."""
    region = line.place.rpartition("-")[0] if "/" not in line.place else ""
    reason = _NUMBERED.sub("", line.reason)
    return line.choice, line.way, line.usd, line.state, region or line.place, reason, line.stands_in


def _prices(planned: Plan, settings: Settings) -> list[tuple[str, str]]:
    """The price in the first place, where the slice would be requested first, and in the dearest if that is another."""
    zone, of = planned.zones[0] if planned.zones else "", planned.purchase
    known = price(of, zone, settings.prices, settings.listed)
    most = dearest(of, planned.zones, settings.prices, settings.listed)
    if isinstance(known, Unknown):
        return [("price      ", f"unknown: {known}")]
    held = f"READY in {zone or 'any zone'}" if planned.traits.in_zones else f"its nodes exist in {zone or 'any place'}"
    told = f"{dollars(known.usd_per_chip_hour * of.chips)} an hour while {held} ({of.chips} × {known.source})"
    if isinstance(most, Unknown):
        told += f"; elsewhere unknown: {most}"
    elif most.usd_per_chip_hour > known.usd_per_chip_hour:
        told += f"; {dollars(most.usd_per_chip_hour * of.chips)} in {most.region}, the dearest"
    return [("price      ", told)]


def _staleness(planned: Plan, settings: Settings) -> str:
    """Say that the list is old from which the plan has its prices; "" if it is not, or the prices are another's."""
    for one in planned.each():
        known = price(one.purchase, one.zones[0] if one.zones else "", settings.prices, settings.listed)
        if isinstance(known, Price) and known.date:
            return staleness(settings.listed)
    return ""


def _drawing(planned: Plan) -> str:
    """The slice, elsewhere than on Cloud TPU without the name by which that knows it."""
    by_another_name = planned.traits.options not in (TpuVm, None)
    return draw(planned.slice, f"{planned.slice.shape}, {planned.where}" if by_another_name else "")


def _contents(bundle: Bundle, planned: Plan) -> list[tuple[str, str]]:
    """The parts that would be sent, in the layout of `describe`."""
    rows = []
    if bundle.project is not None:
        rows.append(("code       ", f"{bundle.project.root}: {_amount(bundle.project)}"))
        if largest := _largest(bundle.project):
            rows.append(("largest    ", ", ".join(f"{path} ({size(count)})" for path, count in largest)))
    else:
        rows.append(("code       ", "none: the function is in an installed package"))
    if bundle.call is not None:
        rows.append(("call       ", f"{size(bundle.call.size)} pickled, without arguments"))
        rows.append(("by value   ", ", ".join(bundle.call.by_value) or "no module"))
    for item in bundle.data:
        path = item.here or (str(item.snapshot.root / item.file) if item.snapshot else "")
        amount = _amount(item.snapshot) if item.snapshot is not None else "read in place"
        rows.append(("data       ", f"{path}: {amount}"))
    if bundle.packages:
        files = sum(_files(item.snapshot) for item in bundle.packages if item.snapshot is not None)
        rows.append(
            ("packages   ", f"{files} files of {', '.join(sorted({item.at or '.' for item in bundle.packages}))}")
        )
    for number, environment in enumerate(bundle.environments):
        of = f", for {' and '.join(_served(bundle, planned, number))}" if bundle.others else ""
        if (lock := environment.lock) is None:
            rows.append(("python     ", f"this environment (Python {environment.python})"))
        else:
            rows.append(("python     ", f"Python {lock.python} with {lock.packages} packages ({lock.source}){of}"))
    return rows


def _served(bundle: Bundle, planned: Plan, number: int) -> list[str]:
    """The hardware of the candidates that have the environment of this number."""
    pairs = zip(planned.each(), bundle.builds, strict=True)
    return list(dict.fromkeys(one.slice.name for one, build in pairs if build == number))


def _document(planned: Plan, bundle: Bundle, told: list[str], *, files: bool) -> dict[str, Any]:
    project, call = bundle.project, bundle.call
    others = [
        _environment(one) | {"for": _served(bundle, planned, number)} for number, one in enumerate(bundle.others, 1)
    ]
    return {
        "plan": planned.to_json() | {"env": sorted(planned.env)},
        "project": project and {
            **_snapshot(project),
            "secrets": list(project.secrets),
            "largest": [{"path": path, "bytes": count} for path, count in _largest(project)],
            "paths": [entry.path for entry in project.entries] if files else None,
        },
        "call": call and {"bytes": call.size, "by_value": list(call.by_value)},
        "data": [
            {"here": item.here} if item.snapshot is None else _snapshot(item.snapshot) | {"file": item.file}
            for item in bundle.data
        ],
        "environment": _environment(bundle.environment),
        **({"other_environments": others} if others else {}),
        "warnings": told,
        "drawing": _drawing(planned),
    }  # fmt: skip


def _environment(environment: Environment) -> dict[str, Any]:
    return {
        "kind": environment.kind,
        "python": environment.python,
        "packages": environment.lock.packages if environment.lock else None,
        "source": environment.lock.source if environment.lock else None,
    }


def _snapshot(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "root": str(snapshot.root), "files": _files(snapshot), "bytes": snapshot.size, "digest": snapshot.digest,
    }  # fmt: skip


def _files(snapshot: Snapshot) -> int:
    return sum(entry.kind == FILE for entry in snapshot.entries)


def _amount(snapshot: Snapshot) -> str:
    count = _files(snapshot)
    return f"{count:,} file{'' if count == 1 else 's'}, {size(snapshot.size)}"


def _largest(snapshot: Snapshot) -> list[tuple[str, int]]:
    entries = sorted(snapshot.entries, key=lambda entry: entry.size, reverse=True)[:LARGEST]
    return [(entry.path, entry.size) for entry in entries if entry.size] if snapshot.count > LARGEST else []
