"""Pickling of functions and their arguments, and unpickling of values and exceptions.

Responsible for pickling by value, for finding the `Data` in a call, for naming the part that cannot be pickled, and for
restoring the user's own exception. The agent defines the file format; files and data are sent by other modules.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import pickle
import sys
import sysconfig
import threading
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle

from kinetic_orchestration.errors import (
    Corrupt,
    JobFailed,
    KineticError,
    NotPicklable,
    ResultNotPicklable,
    UsageError,
)
from kinetic_orchestration.packaging.call.unpicklable import find_culprit, of_function
from kinetic_orchestration.packaging.source.imports import names_in
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.plan.messages import OURS
from kinetic_orchestration.program.reading import streamed
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.content import payload
from kinetic_orchestration.protocol.system import copies, escaping

# Airflow gives DAG files such names, under which they cannot be imported.
AIRFLOW_PREFIX = "unusual_prefix_"
# These are never the user's: this project may be installed from its own folder.
_NEVER = frozenset((*OURS, "cloudpickle"))
LARGE = 50_000_000  # bytes from which a pickled global is reported
_SMALL = (type(None), bool, int, float)
_ALWAYS = (AIRFLOW_PREFIX, "__mp_main__")
_registry = threading.RLock()


@dataclass(frozen=True)
class PackedCall:
    """The file's digest and size, the data in the call, the modules that went by value and those only named."""

    digest: str
    size: int
    data: tuple[Data, ...]
    by_value: tuple[str, ...]
    by_name: tuple[str, ...] = ()
    large: tuple[tuple[str, int], ...] = ()  # large values that the function refers to: (description, bytes)


def pack_call(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    project_root: Path | None,
    first_party: Collection[str | types.ModuleType] = (),
    path: str | os.PathLike[str],
) -> PackedCall:
    """Write the call to `path`. Raises NotPicklable, which names the culprit, and then leaves no file."""
    call = (function, tuple(args), dict(kwargs or {}))
    modules = first_party_modules(function, project_root, first_party)
    found = _Found()

    def pickler(file: Any, protocol: int, buffer_callback: Callable[[Any], Any]) -> _Pickler:
        return _Pickler(file, protocol, buffer_callback, modules, found)

    try:
        digest, size = payload.dump(call, path, pickler)
    except KineticError:
        raise
    except Exception as error:  # a user's __reduce__ may raise anything
        culprit = _culprit(call, modules)
        if culprit is None:
            raise  # not the value: the disk
        raise NotPicklable(f"{_name(function)} cannot be sent: {culprit}") from error
    by_value, by_name = tuple(sorted(found.by_value)), tuple(sorted(found.by_name))
    large = tuple(_large(function, modules)) if size > LARGE else ()
    return PackedCall(digest, size, tuple(found.data), by_value, by_name, large)


def load_value(
    path: str | os.PathLike[str],
    digest: str,
    format: str = "",
    *,
    job_id: str = "",
    home: Path | None = None,
) -> Any:
    """The result of a job. Raises Corrupt or ResultNotPicklable. Untrusted results may only be PLAIN. `home` may record
    already that the bytes match their digest.
    """
    try:
        if format == wire.PLAIN:
            return payload.load_plain(path, digest)
        return payload.load(path, digest, role=payload.VALUE, home=home)
    except payload.Tampered as error:
        raise Corrupt(f"the result of job {job_id} is damaged or was changed: {error}") from error
    except Exception as error:  # a user's __setstate__ may raise anything
        raise ResultNotPicklable(
            f"job {job_id} ran to its end, but its value cannot be unpickled here: "
            f"{type(error).__name__}: {error}. The value is kept in {os.fspath(path)}; "
            "what it needs must be importable where it is read",
            job_id=job_id,
            host=0,
            cause=wire.USER,
        ) from error


def revive(
    failure: wire.Failure,
    path: str | os.PathLike[str] | None,
    *,
    job_id: str = "",
    host: int | None = None,
    doubt: str = "",
) -> Exception:
    """The exception to raise for a failure of the user's code: itself if possible, else one that names it.

    `path` is the file of the pickled exception, if one may be unpickled; `doubt`: the reason why it may not.
    """
    if failure.type == payload.UNPICKLABLE:
        return ResultNotPicklable(f"job {job_id}: {failure.message}", job_id=job_id, host=host, cause=wire.USER)
    where = "on its host" if host is None else f"on host {host}"
    why = doubt or "it could not be pickled there"
    if path is not None and failure.digest:
        try:
            error = payload.load(path, failure.digest, role=payload.EXCEPTION)
            if isinstance(error, Exception):
                with contextlib.suppress(Exception):  # notes are a courtesy; some classes forbid attributes
                    error.add_note(escaping.log(f"Raised {where} of job {job_id}:\n\n{failure.traceback.rstrip()}"))
                return error
            why = "it is not one that a job may raise here"  # SystemExit, KeyboardInterrupt
        except payload.Tampered as error:
            return Corrupt(f"the exception of job {job_id} is damaged or was changed: {error}")
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
    kind = failure.type or "the job"
    text = f"{kind}: {failure.message}" if failure.type else failure.message
    shown = f"\n\n{failure.traceback.rstrip()}" if failure.traceback else ""
    note = f" ({kind} could not come back as itself: {why})" if failure.type else ""
    return JobFailed(f"job {job_id} failed {where}: {text}{note}{shown}", job_id=job_id, host=host, cause=wire.USER)


def first_party_modules(
    function: Callable[..., Any],
    project_root: Path | None,
    first_party: Collection[str | types.ModuleType] = (),
) -> dict[str, types.ModuleType]:
    """The imported modules that are the user's own: in the project, next to the function, or named."""
    named = {entry if isinstance(entry, str) else entry.__name__ for entry in first_party}
    named |= cloudpickle.list_registry_pickle_by_value()
    roots = _spellings(project_root)
    home = sys.modules.get(getattr(_innermost(function), "__module__", None) or "__main__")
    beside = _import_root(home) if home is not None else None
    installed = functools.cache(_is_installed)
    near = (*roots, *((beside,) if beside else ()))
    return {
        name: module
        for name, module in copies.modules().items()
        if isinstance(module, types.ModuleType)
        # First, because an orchestrator's process has thousands of modules, and each call checks all of them.
        and (named or name.startswith(_ALWAYS) or not _lies_elsewhere(vars(module).get("__file__"), near))
        and vars(module).get("__name__") == name
        and name.partition(".")[0] not in _NEVER
        and (
            name.startswith(_ALWAYS)
            or _is_named(name, named)
            or (name != "__main__" and _is_own(module, roots, beside, installed))
        )
    }


def _lies_elsewhere(file: Any, near: tuple[str, ...]) -> bool:
    """Return True if the module's name alone shows that its file is installed or in none of these folders; False if
    that needs a closer check.
    """
    if type(file) is not str or file[:1] != "/":
        return False
    if "/site-packages/" not in file and "/dist-packages/" not in file and file.startswith(near):
        return False
    return "//" not in file and "/./" not in file and "/../" not in file


def _is_named(name: str, named: Collection[str]) -> bool:
    while name:
        if name in named:
            return True
        name = name.rpartition(".")[0]
    return False


def _spellings(folder: Path | None) -> tuple[str, ...]:
    """The folder's path with and without links resolved, each with a final slash."""
    if folder is None:
        return ()
    return tuple({os.path.join(spelled, "") for spelled in (os.path.abspath(folder), os.path.realpath(folder))})


def _innermost(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    return function if hasattr(function, "__qualname__") else type(function)


def _is_own(
    module: types.ModuleType, roots: tuple[str, ...], beside: str | None, installed: Callable[[str], bool]
) -> bool:
    # vars(), because asking a lazy module for an attribute may import what it stands for.
    if vars(module).get("__file__"):
        root = _import_root(module)
        return root is not None and (root == beside or root.startswith(roots)) and not installed(root)
    places = [str(place) for place in vars(module).get("__path__") or ()]
    return bool(places) and all(place.startswith(roots) and not installed(place) for place in places)


def _import_root(module: types.ModuleType) -> str | None:
    """The entry of sys.path that the module came from, with a final slash."""
    file = vars(module).get("__file__")
    if not isinstance(file, str):
        return None
    return _root_of(module.__name__, file if os.path.isabs(file) else os.path.abspath(file))


@functools.lru_cache(16_384)  # an orchestrator's process has thousands of modules, and packs call after call
def _root_of(name: str, file: str) -> str:
    file = os.path.normpath(file)
    return os.path.join(file.removesuffix(_tail(name, file)), "")


def _is_installed(root: str) -> bool:
    """Return True if an installer filled this entry of sys.path: site-packages, or the target of `pip install
    --target`."""
    folders = root.split(os.sep)
    if "site-packages" in folders or "dist-packages" in folders or root.startswith(_standard_library()):
        return True
    try:
        with os.scandir(root) as entries:
            return any(entry.name.endswith(".dist-info") for entry in entries)
    except OSError:  # an archive
        return False


@functools.cache
def _standard_library() -> tuple[str, ...]:
    return tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))


def _tail(name: str, file: str) -> str:
    """The path of a module's file below its entry of sys.path."""
    base = os.path.basename(file)
    parts = name.split(".")
    named = os.path.join(*parts, base) if base.startswith("__init__.") else os.path.join(*parts[:-1], base)
    return named if file.endswith(os.sep + named) else base


@contextlib.contextmanager
def _by_value(modules: Mapping[str, types.ModuleType]) -> Iterator[None]:
    """cloudpickle keeps one list for the process; what the user has on it stays there."""
    with _registry:
        ours = [modules[name] for name in modules.keys() - cloudpickle.list_registry_pickle_by_value()]
        registered = []
        try:
            for module in ours:
                cloudpickle.register_pickle_by_value(module)
                registered.append(module)
            yield
        finally:
            for module in registered:
                cloudpickle.unregister_pickle_by_value(module)


@dataclass
class _Found:
    """The objects that a pickler found."""

    data: list[Data] = field(default_factory=list)
    by_value: set[str] = field(default_factory=set)
    by_name: set[str] = field(default_factory=set)

    def index(self, data: Data) -> int:
        for index, known in enumerate(self.data):
            if known is data:
                return index
        self.data.append(data)
        return len(self.data) - 1


class _Namespace:
    """Stands for a first-party module's dict: on the host, too, functions and module share one."""

    def __init__(self, module: types.ModuleType) -> None:
        self.module = module


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, with `Data` taken out and first-party modules cut down to what is used of them.

    cloudpickle itself sends a whole module or recurses for ever when two of them import each other. Here a
    module is an empty one first; what follows are those of its attributes that any function in the payload
    names. An attribute that cannot be pickled stays behind: the host makes its own when it is asked for it.
    """

    def __init__(
        self,
        file: Any,
        protocol: int,
        buffer_callback: Callable[[Any], Any],
        modules: Mapping[str, types.ModuleType],
        found: _Found,
    ) -> None:
        super().__init__(file, protocol=protocol, buffer_callback=buffer_callback)
        self._modules = modules
        self._found = found
        self._used: dict[str, types.ModuleType] = {}
        self._names: set[str] = set()
        self._sent: set[tuple[str, str]] = set()
        for module in (*modules.values(), sys.modules["__main__"]):
            self.globals_ref[id(vars(module))] = _Namespace(module)

    def dump(self, obj: Any) -> None:
        with _by_value(self._modules):
            super().dump(obj)
            while attributes := self._attributes():
                super().dump(attributes)
        if self._found.data:
            for _, memoized in self.memo.copy().values():
                _refuse_data_as_key(memoized)

    def reducer_override(self, obj: Any) -> Any:
        # The type, because isinstance() wakes up proxies that pretend to be something else.
        kind = type(obj)
        if issubclass(kind, Data):
            index = self._found.index(obj)
            return (streamed.opened, (_Place(index),)) if obj.stream else (payload.data_path, (index,))
        if kind is _Place:
            return payload.data_path, (obj.index,)
        if kind is _Namespace:
            return payload.namespace, _described(obj.module)
        if issubclass(kind, types.ModuleType):
            module = self._modules.get(vars(obj).get("__name__", ""))
            if module is obj:
                self._used[module.__name__] = module
                return payload.module, _described(module)
            self._found.by_name.add(str(vars(obj).get("__name__", "")))
        reduced = super().reducer_override(obj)
        if reduced is NotImplemented:
            named = obj if issubclass(kind, (type, types.FunctionType, types.BuiltinFunctionType)) else kind
            self._found.by_name.add(str(named.__module__))
        if reduced is not NotImplemented and issubclass(kind, (types.FunctionType, type)):
            self._note(obj, reduced)
        return reduced

    def _note(self, obj: Any, reduced: Any) -> None:
        """Remember what went by value."""
        if isinstance(obj, types.FunctionType):
            self._names.update(names_in(obj.__code__))
            if isinstance(self.globals_ref[id(obj.__globals__)], _Namespace):
                # The namespace finds out where the file is on the host.
                reduced[2][1]["__globals__"].pop("__file__", None)
        if obj.__module__ != "builtins":
            self._found.by_value.add(obj.__module__ or "__main__")

    def _attributes(self) -> list[tuple[types.ModuleType, str, Any]]:
        attributes = []
        for name, module in list(self._used.items()):
            members = copies.members(module)
            for attribute in sorted(self._names & members.keys()):
                if (name, attribute) in self._sent or attribute.startswith("__"):
                    continue
                self._sent.add((name, attribute))
                value = members[attribute]
                if isinstance(value, types.ModuleType) or _problem(value, self._modules) is None:
                    attributes.append((module, attribute, value))
        return attributes


@dataclass(frozen=True)
class _Place:
    """The path that a host gives to data, as an argument of what is called there."""

    index: int


def _described(module: types.ModuleType) -> tuple[str, dict[str, Any], str]:
    """The attributes of a module that relative imports and `__file__` need."""
    kept = {name: vars(module).get(name) for name in ("__name__", "__package__", "__file__", "__doc__")}
    return module.__name__, kept, _tail(module.__name__, kept["__file__"] or "")


def _refuse_data_as_key(container: Any) -> None:
    if isinstance(container, (set, frozenset)):
        what, fix = f"a {type(container).__name__}", "use a list or a tuple"
    elif isinstance(container, dict):
        what, fix = "the keys of a dict", "make it a value of the dict"
    else:
        return
    for key in container:
        data = _data_in(key)
        if data is not None:
            raise UsageError(
                f"{data!r} is in {what}: on the host it is a path that is known only there, "
                f"so it would hash to another place; {fix}"
            )


def _data_in(key: Any) -> Data | None:
    if isinstance(key, tuple):
        return next((found for item in key if (found := _data_in(item)) is not None), None)
    return key if isinstance(key, Data) else None


class _Scale:
    """Weighs a pickle that is written nowhere."""

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.size += size
        return size

    def buffer(self, buffer: pickle.PickleBuffer) -> bool:
        self.size += buffer.raw().nbytes
        return False


class _Trial(_Pickler):
    """Pickles one value to see whether it can be, without what modules would add."""

    def _attributes(self) -> list[tuple[types.ModuleType, str, Any]]:
        return []


def _problem(value: Any, modules: Mapping[str, types.ModuleType]) -> Exception | None:
    """The exception due to which a value cannot be pickled, or None."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return None
    try:
        _Trial(_Scale(), pickle.HIGHEST_PROTOCOL, lambda _: None, modules, _Found()).dump(value)
    except Exception as error:  # a user's __reduce__ may raise anything
        return error
    return None


def _large(function: Any, modules: Mapping[str, types.ModuleType]) -> Iterator[tuple[str, int]]:
    """Yield what a function takes along of its surroundings, and not as an argument, that is large."""
    waiting, seen = [_innermost(function)], set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen or not isinstance(value, types.FunctionType):
            continue
        seen.add(id(value))
        if value.__module__ not in modules and value.__module__ != "__main__":
            continue
        for label, found in _surroundings(value, modules):
            part = inspect.getattr_static(found, "__kinetic_function__", found)
            if isinstance(part, types.FunctionType):
                waiting.append(part)
            elif id(part) not in seen and not isinstance(part, (type, types.ModuleType, *_SMALL)):
                seen.add(id(part))
                scale = _Scale()
                with contextlib.suppress(Exception), _by_value(modules):  # such as one that stays behind
                    _Trial(scale, pickle.HIGHEST_PROTOCOL, scale.buffer, modules, _Found()).dump(part)
                if scale.size > LARGE:
                    yield f"the {label}", scale.size


def _surroundings(function: types.FunctionType, modules: Mapping[str, types.ModuleType]) -> Iterator[tuple[str, Any]]:
    names = set(names_in(function.__code__))
    for label, part in of_function(function):
        yield label, part
        if isinstance(part, types.ModuleType) and part.__name__ in modules:
            members = copies.members(part)
            for name in sorted(names & members.keys()):
                yield f"global {part.__name__}.{name} used by {function.__name__}", members[name]


def _culprit(call: tuple[Any, tuple[Any, ...], dict[str, Any]], modules: Mapping[str, types.ModuleType]) -> str | None:
    function, args, kwargs = call
    parts: list[tuple[str, Any]] = [(f"argument {number}", value) for number, value in enumerate(args, 1)]
    parts += [(f"keyword argument {name!r}", value) for name, value in kwargs.items()]
    parts.append(("", function))
    with _by_value(modules):
        for label, value in parts:
            culprit = find_culprit(value, label, lambda value: _problem(value, modules))
            if culprit is not None:
                return culprit
    return None


def _name(function: Any) -> str:
    return str(getattr(_innermost(function), "__name__", type(function).__name__))
