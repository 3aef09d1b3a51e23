"""PACKAGE: everything that a job needs from the client, gathered and digested, and not sent yet.

Decides which files are sent and where they belong; `tree`, `payload` and `requirements` pack each part.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic_orchestration.errors import ConflictingSettings, DataNotFound
from kinetic_orchestration.packaging import needs
from kinetic_orchestration.packaging.call import arguments
from kinetic_orchestration.packaging.call.first_party import FirstParty, distributions_as_files
from kinetic_orchestration.packaging.call.pickling import PackedCall, pack_call
from kinetic_orchestration.packaging.data import checks
from kinetic_orchestration.packaging.requirements import locks
from kinetic_orchestration.packaging.requirements.resolution import find_python, here
from kinetic_orchestration.packaging.source import imports, tree
from kinetic_orchestration.plan.configuration import store_address
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.plan.declare.spec import JobSpec
from kinetic_orchestration.plan.hardware import machines
from kinetic_orchestration.plan.messages import size, warn
from kinetic_orchestration.plan.values import Plan
from kinetic_orchestration.platforms.shared import agent_zip as agent
from kinetic_orchestration.protocol.content.pins import Pinned
from kinetic_orchestration.protocol.system.parallel import Ahead

if TYPE_CHECKING:
    from kinetic_orchestration.packaging.requirements import remote


@dataclass(frozen=True)
class Item:
    """A tree with its place: for data, the one file that is meant; for a package, the folder it belongs in."""

    snapshot: tree.Snapshot | None
    file: str = ""
    at: str = ""
    here: str = ""  # of data that is read in place
    url: str = ""  # of data that is in a bucket, or on a hub
    pinned: Pinned | None = None  # the files of data that are fetched or read as they are now, and no others


@dataclass(frozen=True)
class Bundle:
    call: PackedCall | None
    project: tree.Snapshot | None
    cwd: str
    path: tuple[str, ...]
    extra_path: tuple[str, ...]
    data: tuple[Item, ...]
    packages: tuple[Item, ...]
    environment: locks.Environment  # of the first candidate
    spool: Path
    agent: agent.Packed | None = None  # for hosts that are other machines
    tools: Mapping[str, str] = field(default_factory=dict)  # digests of tools that may be in the store
    beside: Mapping[str, str] = field(default_factory=dict)  # modules next to the code that are not sent
    others: tuple[locks.Environment, ...] = ()  # of candidates whose hardware needs other builds
    builds: tuple[int, ...] = ()  # of each candidate the number of its environment: 0 is the first's; (): all have that

    @property
    def environments(self) -> tuple[locks.Environment, ...]:
        """All that differ, in the order in which `builds` counts them."""
        return (self.environment, *self.others)

    @property
    def summary(self) -> str:
        """A summary of the contents by kind and size, for users; some may be in the store already."""
        parts = []
        if self.project is not None:
            count = self.project.count
            parts.append(f"{count:,} {'file' if count == 1 else 'files'} of code ({size(self.project.size)})")
        if self.call is not None:
            parts.append(f"the call with its arguments ({size(self.call.size)})")
        for what, items in (("data", self.data), ("packages", self.packages)):
            if found := [item.snapshot.size for item in items if item.snapshot is not None]:
                parts.append(f"{what} ({size(sum(found))})")
        return ", ".join(parts) or "a command"


def package(spec: JobSpec, plan: Plan, settings: Settings, spool: Path, environ: Mapping[str, str]) -> Bundle:
    """Read and pickle the parts of a job; files that had to be read are spooled for the upload."""
    options = spec.options
    elsewhere = not plan.traits.share_files
    uv = _uv_ahead(settings) if elsewhere else None
    travelling = distributions_as_files(options.first_party) if plan.isolated or elsewhere else []
    _check_python(spec, plan, environ)
    source = source_of(spec)
    call = None
    data: tuple[Data, ...] = tuple((options.volumes or {}).values())
    if spec.function is not None:
        modules = [module for entry in travelling for module in entry.modules]
        call = pack_call(
            spec.function, spec.args, dict(spec.kwargs),
            project_root=source.root if source is not None else None,
            first_party=[*options.first_party, *modules],
            path=spool / "call",
        )  # fmt: skip
        data = (*call.data, *data)
        arguments.warn_of_secrets(spec)
        _warn_of_large(spec.name, call)
    for item in data:
        checks.check(item, plan)
    environments, builds = _environments(spec, plan, settings, source, call, travelling, environ)
    for one in environments:
        needs.check(one, spec, plan)
    environment = environments[0]
    project = None
    if source is not None:
        index_dir = settings.home / "index"
        exclude = [settings.home, *(Path(item.path) for item in data if not (item.is_gcs or item.is_s3 or item.is_hf))]
        exclude += [Path(plan.store)] if store_address.is_folder(plan.store) else []
        project = tree.snapshot(source.root, include=source.include, exclude=exclude, index_dir=index_dir, spool=spool)
        _show_warnings(project)
    root = source.root if source is not None else None
    inside, outside = split_path(root, sys.path)
    return Bundle(
        call=call,
        project=project,
        cwd=_inside(root, spec.cwd or os.getcwd()) or "",
        path=inside,
        extra_path=outside if environment.kind == "current" else (),
        data=tuple(
            _pinned_item(item, plan, settings, environ)
            if item.is_hf or item.stream
            else _data_item(item, settings.home, spool)
            for item in data
        ),
        packages=tuple(_package_items(_first_party(environments), root, settings.home, spool)),
        environment=environment,
        spool=spool,
        agent=agent.packed(settings.home) if elsewhere else None,
        tools=_tools(environment, settings, uv) if uv is not None else {},
        beside=_unsent_modules(spec, project),
        others=environments[1:],
        builds=builds,
    )


def _first_party(environments: Sequence[locks.Environment]) -> tuple[FirstParty, ...]:
    """The distributions that are sent as files, each once."""
    return tuple(dict.fromkeys(entry for one in environments if one.lock for entry in one.lock.first_party))


def _environments(
    spec: JobSpec,
    plan: Plan,
    settings: Settings,
    source: tree.Source | None,
    call: PackedCall | None,
    travelling: Sequence[FirstParty],
    environ: Mapping[str, str],
) -> tuple[tuple[locks.Environment, ...], tuple[int, ...]]:
    """The environments that differ, and of each candidate the number of its own; no numbers if all share one."""
    options, cache = spec.options, settings.home / "locks"
    wanted = _with_orchestrators(options.requirements, call)
    if plan.traits.share_files:
        one = locks.environment(wanted, environ=environ, cache=cache, python=options.python, first_party=travelling)
        return (one,), ()
    from kinetic_orchestration.packaging.requirements import remote, tools  # most jobs on this machine need neither

    kinds: dict[tuple[object, ...], locks.Hosts] = {}
    each = [kinds.setdefault(_kind_of(hosts), hosts) for hosts in map(_hosts_of, plan.each())]
    made = remote.environments(
        wanted,
        list(kinds.values()),
        image=plan.image,
        code=code_of(spec, source, call.by_name if call is not None else ()),
        # Keras' framework is locked with it.
        environ={**environ, **{name: plan.env[name] for name in ("KERAS_BACKEND",) if name in plan.env}},
        cache=cache,
        python=options.python,
        first_party=travelling,
    )
    by_lock: dict[str, locks.Environment] = {}
    for one in made.values():
        by_lock.setdefault(_lock_of(one), one)
    texts = list(by_lock)
    itself = tools.itself_by_hash(environ, cache, each[0]) if any(texts) else ""
    builds = tuple(texts.index(_lock_of(made[hosts])) for hosts in each) if len(texts) > 1 else ()
    return tuple(replace(one, uv_itself=itself if text else "") for text, one in by_lock.items()), builds


def _lock_of(environment: locks.Environment) -> str:
    return environment.lock.text if environment.lock is not None else ""


def _hosts_of(plan: Plan) -> locks.Hosts:
    return locks.Hosts(plan.slice, plan.emulated, driver=machines.driver_of(str(plan.cloud.get("image") or "")))


def _kind_of(hosts: locks.Hosts) -> tuple[object, ...]:
    """All of the hosts on which their packages may depend."""
    return hosts.slice.kind, hosts.slice.generation, hosts.emulated, hosts.driver


def _with_orchestrators(
    given: str | os.PathLike[str] | Sequence[str] | None, call: PackedCall | None
) -> str | os.PathLike[str] | Sequence[str] | None:
    """A list of requirements, with what the call itself names of an orchestrator: a Dagster value needs Dagster."""
    if call is None or given is None or isinstance(given, str | os.PathLike):
        return given
    from kinetic_orchestration.packaging.requirements import remote  # most jobs on this machine need none of it

    return [*given, *remote.orchestrators_of(call.by_name, given)]


def _uv_ahead(settings: Settings) -> Ahead[None]:
    """Digest the uv of hosts beside all else: a digest leaves the interpreter to others."""
    import sysconfig

    from kinetic_orchestration.packaging.requirements import tools

    sysconfig.get_config_vars()  # of two threads that ask first, one has half of them: https://github.com/python/cpython/issues/92452
    return Ahead(tools.digest_own_uv, settings)


def _tools(environment: locks.Environment, settings: Settings, uv: Ahead[None]) -> Mapping[str, str]:
    from kinetic_orchestration.packaging.requirements import tools

    uv.result()
    return tools.known(environment.python, settings)


def code_of(spec: JobSpec, source: tree.Source | None, by_name: Iterable[str] = ()) -> remote.Code:
    """The location of a job's code, from which its imports are read."""
    from kinetic_orchestration.packaging.requirements import remote

    root = source.root if source is not None else None
    if spec.function is None:
        folder = Path(spec.cwd or os.getcwd())
        runs = len(spec.argv) > 1 and spec.argv[0] == "python" and spec.argv[1].endswith(".py")
        starts = remote.starts_of_command(spec.argv, folder)
        return remote.Code(starts, root, as_program=True, names_program=runs and (folder / spec.argv[1]).is_file())
    plain = _plain(spec.function)
    starts = remote.starts_of(plain, _file_of(spec.function) if source is not None else None, by_name)
    return remote.Code([*starts, *([] if source is not None else [plain.__module__])], root)


def source_of(spec: JobSpec) -> tree.Source | None:
    """The source that is sent: for a command the project that it is in, for a function the project of its code."""
    if spec.function is None:
        return _source_of_command(Path(spec.cwd or os.getcwd()), spec.argv)
    file = _file_of(spec.function)
    module = sys.modules.get(getattr(_plain(spec.function), "__module__", "") or "")
    if file is None:  # a notebook's cell, or a prompt
        return tree.source_of(Path.cwd(), _imported_by(spec.function))
    if not {"site-packages", "dist-packages"}.isdisjoint(file.parts) or _is_standard(file) or _is_ours(module):
        return None
    is_dag = module is not None and module.__name__.startswith("unusual_prefix_")
    return tree.source_of(file, imports_only=is_dag)


def program_of(spec: JobSpec) -> Path:
    """The folder of the file that the function stands in, or that a command or a notebook runs in."""
    file = _file_of(spec.function) if spec.function is not None else None
    return Path(os.path.realpath(file.parent if file is not None else spec.cwd or os.getcwd()))


def unread_requirements(spec: JobSpec) -> Path | None:
    """The requirements file next to a program, which a job without `requirements=` does not read: the nearest, from the
    program's folder up to its project's, of a requirements.txt or a pyproject.toml that lists dependencies. None where
    hosts get a committed lock.
    """
    start = program_of(spec)
    found = next(filter(None, map(_requirements_in, (start, *start.parents))), None)
    source = source_of(spec) if found is not None else None
    if found is None or source is None or (source.root / locks.LOCK_FILE).is_file():
        return None
    return found if found.is_relative_to(os.path.realpath(source.root)) else None


def _requirements_in(folder: Path) -> Path | None:
    for name in ("requirements.txt", "pyproject.toml"):
        path = folder / name
        if path.is_file() and (name == "requirements.txt" or _lists_dependencies(path)):
            return path
    return None


def _lists_dependencies(path: Path) -> bool:
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
    except (OSError, ValueError):
        return False
    return isinstance(project, dict) and bool(project.get("dependencies"))


def _source_of_command(folder: Path, argv: Sequence[str]) -> tree.Source | None:
    """The project around it, else its folder; of a home folder or the like only the files that it names."""
    root = tree.find_root(folder)
    if root is not None or not tree.is_too_wide(folder):
        return tree.Source(root or folder)
    parts = {os.path.normpath(part) for part in argv if not os.path.isabs(part) and (folder / part).is_file()}
    include = {part for part in parts if not part.startswith("..")}
    real = Path(os.path.realpath(folder))
    for part in sorted(include):
        source = tree.source_of(folder / part, path=[str(folder)])
        if source.root.is_relative_to(real):  # and its names are relative to that root, often a folder below
            include.update((source.root / name).relative_to(real).as_posix() for name in source.include or (".",))
    return tree.Source(folder, tuple(sorted(include))) if include else None


def split_path(root: Path | None, path: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split sys.path: entries in the project, relative to it, and entries that only this machine has.

    The interpreter's own entries are in neither: the host's interpreter has its own.
    """
    inside: list[str] = []
    outside: list[str] = []
    own = [os.path.realpath(prefix) for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix}]
    for entry in path:
        real = os.path.realpath(entry or os.getcwd())
        relative = _inside(root, real)
        if relative is not None and not any(
            real.startswith(prefix + os.sep) and _is_within(prefix, root) for prefix in own
        ):
            inside.append(relative or ".")
        elif os.path.isdir(real) and not any(real == prefix or real.startswith(prefix + os.sep) for prefix in own):
            outside.append(real)
    if root is not None and "." not in inside:
        inside.append(".")
    return tuple(dict.fromkeys(inside)), tuple(dict.fromkeys(outside))


def _is_within(path: str, root: Path | None) -> bool:
    return root is not None and path.startswith(os.path.realpath(root) + os.sep)


def _inside(root: Path | None, path: str) -> str | None:
    if root is None:
        return None
    relative = os.path.relpath(os.path.realpath(path), os.path.realpath(root))
    if relative == ".":
        return ""
    return None if relative.startswith("..") else relative


def _plain(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    return function if hasattr(function, "__code__") else type(function)


def _file_of(function: Any) -> Path | None:
    plain = _plain(function)
    code = getattr(plain, "__code__", None)
    try:
        name = code.co_filename if code is not None else inspect.getsourcefile(plain)
    except TypeError:
        name = None
    if not name or not os.path.isfile(name):
        return None
    path = Path(os.path.realpath(name))
    return None if path.parent.name.startswith("ipykernel_") else path


def _imported_by(function: Any) -> list[str]:
    """The modules that a function may need and that may be local files: the only source of information for a notebook's
    cell."""
    found = getattr(_plain(function), "__globals__", {})
    names = {*imports.imported_by(function, texts=True), *imports.imported_by(_plain(function), texts=True)}
    for value in list(found.values()):
        name = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
        if isinstance(name, str) and name not in ("__main__", "builtins"):
            names.add(name)
    return sorted(names)


def _unsent_modules(spec: JobSpec, project: tree.Snapshot | None) -> dict[str, str]:
    """The modules next to the code that are not sent, so that a host which misses one can name its location."""
    folder = program_of(spec)
    if project is None or not folder.is_relative_to(project.root):
        return {}
    travelling = {entry.path for entry in project.entries}
    return imports.unsent_modules(folder, lambda path: path.relative_to(project.root).as_posix() in travelling)


def _is_standard(file: Path) -> bool:
    return file.is_relative_to(os.path.realpath(os.path.dirname(os.__file__)))


def _is_ours(module: Any) -> bool:
    """Return True for a module of this package, whose part for hosts they have."""
    return module is not None and str(module.__name__).startswith(f"{__name__.partition('.')[0]}.program.")


def _check_python(spec: JobSpec, plan: Plan, environ: Mapping[str, str]) -> None:
    """A pickled function is byte code of this Python's minor version; a command runs under any."""
    if spec.function is None or spec.options.python is None:
        return
    find = find_python if plan.traits.share_files else locks.interpreter_for
    asked, own = find(spec.options.python, environ).version, here().version
    if asked != own:
        raise ConflictingSettings(
            f"python={spec.options.python!r} is Python {asked}, and {spec.name} is pickled by Python {own}: a function "
            f"only runs under the minor version that pickled it. Submit it from Python {asked}, or leave out python=, "
            f"or run a file with kinetic.command([...], python={asked!r})."
        )


def argument_digests(spec: JobSpec, home: Path, bundle: Bundle | None = None) -> dict[str, str]:
    """Return the digest of each argument of the call. Data that a bundle has just read is not read again."""
    if spec.function is None:
        return {}
    return arguments.digests(spec.function, spec.args, spec.kwargs, partial(data_digest, home, bundle))


def other_arguments(spec: JobSpec, home: Path, had: Mapping[str, str]) -> tuple[str, ...]:
    """The parameters that had another value when the call had these digests."""
    if spec.function is None:
        return ()
    now = argument_digests(spec, home)
    return arguments.differing(had, spec.function, now, partial(data_digest, home, None))


def data_digest(home: Path, bundle: Bundle | None, data: Data) -> str:
    """Return the digest of the data's content, where that is here; else its address, as it was given: a try of the same
    call goes on with the content that the first one has pinned."""
    if data.is_hf or data.stream:
        return data.path
    known = bundle.call.data if bundle is not None and bundle.call is not None else ()
    at = next((at for at, each in enumerate(known) if each is data), None)
    item = bundle.data[at] if bundle is not None and at is not None else _data_item(data, home, None)
    return item.url or item.here or f"{item.snapshot.digest if item.snapshot else ''}/{item.file}"


def _warn_of_large(name: str, call: PackedCall) -> None:
    for part, count in call.large:
        warn(
            f"{name} takes {part} along, pickled: {count / 1e6:,.0f} MB with every call. Keep it in a file and hand "
            "that over as kinetic.Data, which is sent once per content, or make it inside the function"
        )


def _data_item(data: Data, home: Path, spool: Path | None) -> Item:
    if data.is_gcs or data.is_s3:
        return Item(None, url=data.path)
    if data.fuse:
        return Item(None, here=data.path)
    path = Path(data.path)
    if not path.exists():
        raise DataNotFound(f"{data!r}: {path} is not there any more")
    return Item(_snapshot(path, home, spool, ignored=True), file="" if path.is_dir() else path.name)


def _pinned_item(data: Data, plan: Plan, settings: Settings, environ: Mapping[str, str]) -> Item:
    """Data of which the job has a list of files, and no content."""
    if data.is_hf:
        from kinetic_orchestration.packaging.data import hub

        found = hub.find(data.path, environ)
        if found.restricted:
            checks.check_token(data, plan)
        return Item(None, url=found.pinned.address, pinned=found.pinned)
    from kinetic_orchestration.packaging.data import streams

    pinned = streams.find(data, settings)
    return Item(None, url=data.path, pinned=pinned) if data.is_gcs else Item(None, here=data.path, pinned=pinned)


def _snapshot(path: Path, home: Path, spool: Path | None, *, ignored: bool = False) -> tree.Snapshot:
    """The snapshot of a folder, or of one file."""
    if not path.is_dir():
        return tree.snapshot(path.parent, include=(path.name,), index_dir=home / "index", spool=spool, ignored=ignored)
    snapshot = tree.snapshot(path, index_dir=home / "index", spool=spool, ignored=ignored)
    _show_warnings(snapshot)
    return snapshot


def _show_warnings(snapshot: tree.Snapshot) -> None:
    for text in snapshot.warnings:
        warn(text)


def _package_items(packages: Sequence[FirstParty], root: Path | None, home: Path, spool: Path) -> Iterable[Item]:
    for entry in packages:
        for belongs, lies in entry.paths:
            path = Path(lies)
            if root is not None and path.is_relative_to(root):
                continue  # it is sent with the project
            yield Item(_snapshot(path, home, spool), at=belongs if path.is_dir() else os.path.dirname(belongs))
