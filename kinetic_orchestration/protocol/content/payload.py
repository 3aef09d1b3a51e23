"""One value in one file: a function and its arguments out, a result or an exception back.

    magic · pickles · padding · buffer · padding · buffer … · index (JSON) · its length · magic

Pickle protocol 5 keeps large buffers out of band: they are written without a copy, hashed on the way,
and mapped into memory when they are loaded. The index comes last, so that one forward pass writes the file
with any content. The magic names the role: an exception's file cannot be passed off as a value, whose
digest is then another one. Responsible for the format and for outcomes that cannot be pickled. Does not
know which objects are pickled by value, where files are stored, or which ones are trusted.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import pickle
import sys
import time
import types
from typing import TYPE_CHECKING, Any

from kinetic_orchestration.protocol.content.digest import LARGE, Hasher, of_bytes
from kinetic_orchestration.protocol.content.file_stamps import stamp_of
from kinetic_orchestration.protocol.wire import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

CALL, VALUE, EXCEPTION = b"KOCALL-2", b"KOVALUE2", b"KORAISE2"  # the magic, by the role of what is in a file
_LETTERS = len(CALL)
_ROLES = {CALL: "a call", VALUE: "a value", EXCEPTION: "an exception"}
ALIGNMENT = 64
# A buffer below this costs less inside the pickle than outside.
IN_BAND = 64 << 10
# A larger file is mapped; a smaller one is read, because every mapping keeps a file open.
MAPPED = 16 << 20
# A value that is plain JSON is stored as such, up to these limits of bytes, values and levels: reading it is safe.
LARGEST_PLAIN = 4 << 20
_MOST_VALUES = 200_000
_DEEPEST = 100
# What a disk answers, and never a value.
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EIO)  # of these, what patience may mend
UNPICKLABLE = "kinetic_orchestration.errors.ResultNotPicklable"
_TEXT = 64 << 10
_LENGTH = 8
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


class Tampered(ValueError):
    """The bytes are not those that were sent."""


class OtherPython(Exception):
    """A call was pickled by a Python of another minor version, and cannot be loaded by this one."""


def dump(
    value: Any, path: str | os.PathLike[str], pickler: Callable[..., Any] = pickle.Pickler, role: bytes = CALL
) -> tuple[str, int]:
    """Write `value`; the digest and the size of the file. A failure leaves no file.

    `pickler` is called like `pickle.Pickler` and may write several pickles in its `dump`.
    """
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < IN_BAND:
            return True
        buffers.append(view)
        return False

    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        with Hasher(descriptor) as file:
            file.update(role)
            pickler(_Sink(file), protocol=5, buffer_callback=keep).dump(value)
            length = file.size - _LETTERS
            _reserve(descriptor, file.size, sum(view.nbytes for view in buffers))
            places = []
            for view in buffers:
                file.update(bytes(-file.size % ALIGNMENT))
                places.append((file.size, view.nbytes))
                file.update(view)
            index = json.dumps({"pickles": length, "buffers": places, "python": PYTHON}).encode()
            file.update(index + len(index).to_bytes(_LENGTH, "little") + role)
            return file.digest(), file.size
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def load(
    path: str | os.PathLike[str],
    expected_digest: str | None = None,
    data: Sequence[str] = (),
    role: bytes = CALL,
    home: str | os.PathLike[str] | None = None,
    names_first: bool = True,
) -> Any:
    """The value of a file. Its arrays are writeable and private to this process.

    With `expected_digest` ("" is no file's) nothing is unpickled unless every byte is as it was sent. `data` are the
    paths on this machine of what was wrapped in `Data`, in the order in which it was found. A large file in `home` is
    not hashed again where it is known not to have changed since. `names_first`: a class that this process has under its
    name is that one, and not the one that was sent along.

    Raises:
        OtherPython: A call cannot be loaded, and another minor version of Python pickled it.
        Tampered: The bytes are not those that were sent.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        memory = _memory(path, descriptor)
        view = memoryview(memory)
        if expected_digest is not None:
            _verify(path, descriptor, view, expected_digest, home)
    finally:
        os.close(descriptor)
    index, start = _index(path, view, role)
    buffers = [view[at : at + size] for at, size in index["buffers"]]
    memory.seek(start)
    unpickler = _Unpickler(memory, buffers, _Meaning(data, names_first))
    try:
        value = unpickler.load()
        while memory.tell() < start + index["pickles"]:
            for module, name, attribute in unpickler.load():
                setattr(module, name, attribute)
    except ImportError:  # what is missing is missing for any Python
        raise
    except Exception as error:
        by = index.get("python", PYTHON)  # which 0.1 did not write
        if role != CALL or by == PYTHON:
            raise
        raise OtherPython(
            f"the function was pickled by Python {by}, and this is Python {PYTHON}, which cannot load it "
            f"({type(error).__name__}: {error}): a function only runs under the minor version that pickled it. Use an "
            f"image with Python {by}, or submit it from Python {PYTHON}"
        ) from error
    return value


class _Memory(mmap.mmap):
    def readinto(self, target: Any) -> int:
        """Read without the copy that `read` makes: an unpickler calls this for large values, if there is one."""
        view = memoryview(target).cast("B")
        at = self.tell()
        with memoryview(self)[at : at + len(view)] as source:
            view[: len(source)] = source
            self.seek(len(source), os.SEEK_CUR)
            return len(source)


def _memory(path: str | os.PathLike[str], descriptor: int) -> _Memory:
    size = os.fstat(descriptor).st_size
    if size > MAPPED:
        if sys.version_info >= (3, 13):
            return _Memory(descriptor, size, access=mmap.ACCESS_COPY, trackfd=False)
        return _Memory(descriptor, size, access=mmap.ACCESS_COPY)
    # Anonymous memory, because unlike a bytearray it is aligned.
    memory = _Memory(-1, max(size, 1))
    with memoryview(memory) as view, open(descriptor, "rb", buffering=0, closefd=False) as file:
        done = 0
        while done < size:
            count = file.readinto(view[done:size])
            if not count:
                raise Tampered(f"{os.fspath(path)} is cut off")
            done += count
    return memory


def _verify(
    path: str | os.PathLike[str], file: int, view: memoryview, expected: str, home: str | os.PathLike[str] | None
) -> None:
    if home is None or len(view) < LARGE:
        known = None
    else:
        from kinetic_orchestration.protocol.content.verified import Verified

        known = Verified(home)
        if known.knows(path, file, expected):
            return
    before, began = stamp_of(os.fstat(file)), time.time_ns()
    found = of_bytes(view)
    if found != expected:
        raise Tampered(f"{os.fspath(path)} has the digest {found}, but {expected} was sent")
    if known is not None:
        known.read(path, file, found, before, began)


def _index(path: str | os.PathLike[str], view: memoryview, role: bytes) -> tuple[dict[str, Any], int]:
    start, tail = _LETTERS, _LENGTH + _LETTERS
    found = bytes(view[:start])
    if len(view) < start + tail or found not in _ROLES or view[-_LETTERS:] != found:
        raise Tampered(f"{os.fspath(path)} is not a payload, or not a whole one")
    if found != role:
        raise Tampered(f"{os.fspath(path)} holds {_ROLES[found]}, and not {_ROLES[role]}")
    end = len(view) - tail
    length = int.from_bytes(view[end : end + _LENGTH], "little")
    index = json.loads(bytes(view[max(start, end - length) : end]))
    assert isinstance(index, dict)
    return index, start


def _reserve(descriptor: int, offset: int, size: int) -> None:
    """Have the blocks before the bytes: a full disk is known at once, and writing is a quarter faster."""
    if size < MAPPED or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, offset, size)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise


class _Sink:
    def __init__(self, hasher: Hasher) -> None:
        self._hasher = hasher

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._hasher.update(view)
        return view.nbytes


# What a pickle of ours may name. The unpickler gives each its meaning for one load: no state is global.


def data_path(index: int) -> str:
    """The local path of the data."""
    raise _only_in_load("data_path")


def module(name: str, attributes: Mapping[str, Any], tail: str) -> types.ModuleType:
    """A first-party module, as far as it is used. `tail`: the path of its file below an entry of sys.path."""
    raise _only_in_load("module")


def namespace(name: str, attributes: Mapping[str, Any], tail: str) -> dict[str, Any]:
    """The same module's dict, in which its functions run."""
    raise _only_in_load("namespace")


def named_class(module: str, qualname: str, by_value: bytes) -> Any:
    """The reader's own class of that name if it has one, else the writer's."""
    raise _only_in_load("named_class")


def itself(value: Any) -> Any:
    """Return the value, for objects that are pickled as another one: `__reduce__` returns `(itself, (other,))`."""
    return value


def _only_in_load(name: str) -> RuntimeError:
    return RuntimeError(f"{name} has a meaning only in {__name__}.load")


class _Meaning:
    """The values of those names, for one load. Separate from the unpickler, or a cycle would keep the value's
    memory."""

    def __init__(self, data: Sequence[str], names_first: bool) -> None:
        self._data = data
        self._names_first = names_first
        self._modules: dict[str, types.ModuleType] = {}

    def data_path(self, index: int) -> str:
        if index >= len(self._data):
            raise LookupError(f"Data number {index + 1} of this payload was given no path on this machine")
        return self._data[index]

    def module(self, name: str, attributes: Mapping[str, Any], tail: str) -> types.ModuleType:
        if name not in self._modules:
            self._modules[name] = Part(name)
            self._modules[name].__dict__.update(attributes)
            for folder in sys.path if tail else ():
                here = os.path.join(folder or os.getcwd(), tail)
                if os.path.isfile(here):
                    self._modules[name].__file__ = here
                    break
        return self._modules[name]

    def namespace(self, name: str, attributes: Mapping[str, Any], tail: str) -> dict[str, Any]:
        return self.module(name, attributes, tail).__dict__

    def named_class(self, module: str, qualname: str, by_value: bytes) -> Any:
        if self._names_first:
            import importlib

            try:
                found: Any = sys.modules.get(module) or importlib.import_module(module)
                for name in qualname.split("."):
                    found = getattr(found, name)
            except Exception:  # any error of importing the user's code: the class was sent along
                found = None
            if isinstance(found, type) and found.__qualname__ == qualname:
                return found
        return pickle.loads(by_value)


# Where classes were when values were pickled that a store may still have: those of version 0.1 before the rooms.
MOVED = {
    f"kinetic_orchestration.{was}": f"kinetic_orchestration.{now}"
    for was, now in (
        ("agent.payload", "protocol.content.payload"),
        ("batch", "api.batch"),
        ("context", "program.context"),
        ("decorator", "api.decorator"),
        ("job", "api.handle"),
        ("limits", "plan.declare.limits"),
        ("profile", "plan.declare.profile"),
        ("spec", "plan.declare.spec"),
        ("values", "plan.values"),
    )
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: _Memory, buffers: Iterable[Any], meaning: _Meaning) -> None:
        super().__init__(stream, buffers=buffers)
        self._meaning = meaning

    def find_class(self, module: str, name: str) -> Any:
        module = MOVED.get(module, module)
        if module == __name__ and hasattr(_Meaning, name):
            return getattr(self._meaning, name)
        return super().find_class(module, name)


class Part(types.ModuleType):
    """A module that travelled by value, as far as it was seen to be used; its file has the rest."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        import importlib

        try:
            return getattr(importlib.import_module(self.__name__), name)
        except ImportError as error:
            raise AttributeError(
                f"{self.__name__}.{name} did not travel with the job, and {self.__name__} cannot be imported "
                f"here ({error}): write `from {self.__name__} import {name}` beside the function"
            ) from error

    def __reduce__(self) -> Any:
        import importlib

        return importlib.import_module, (self.__name__,)


def load_plain(path: str | os.PathLike[str], expected_digest: str) -> Any:
    """The value of a file of plain JSON. Runs no code, whatever the file's origin."""
    with open(path, "rb") as file:
        data = file.read(LARGEST_PLAIN + 1)
    if len(data) > LARGEST_PLAIN:
        raise Tampered(f"{os.fspath(path)} has more than {LARGEST_PLAIN >> 20} MiB, which no plain value has")
    if of_bytes(data) != expected_digest:
        raise Tampered(f"{os.fspath(path)} has the digest {of_bytes(data)}, but {expected_digest} was sent")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Tampered(f"{os.fspath(path)} is not JSON ({error}), though it is said to be") from None


def plain(value: Any) -> bytes | None:
    """The value as JSON, if JSON gives it back exactly as it is."""
    if not _is_plain(value):
        return None
    try:
        data = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:  # nan; half of a surrogate pair; an integer of more digits than Python reads back
        return None
    return data if len(data) <= LARGEST_PLAIN else None


def _is_plain(value: Any) -> bool:
    """Return True if it consists of JSON's own types alone, and contains no list or dict twice."""
    seen: set[int] = set()
    level = [value]
    for _ in range(_DEEPEST):
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is list or kind is dict:
                if id(item) in seen:
                    return False
                seen.add(id(item))
                if len(seen) + len(below) + len(item) > _MOST_VALUES:
                    return False
                if kind is list:
                    below += item
                elif all(type(key) is str for key in item):
                    below += item.values()
                else:
                    return False
            elif not (kind is str or kind is int or kind is float or kind is bool or item is None):
                return False
        if not below:
            return True
        level = below
    return False


def dump_value(value: Any, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Write a result; its record. A value that cannot be pickled is recorded as such, with its repr."""
    try:
        if (data := plain(value)) is not None:
            with open(path, "wb") as file:
                file.write(data)
            return {"kind": "value", "digest": of_bytes(data), "size": len(data), "format": PLAIN}
        digest, size = dump(value, path, _outcome_pickler(), VALUE)
    except Exception as error:  # a user's __reduce__ may raise anything
        if isinstance(error, OSError) and error.errno in DISK:
            folder = os.path.dirname(os.fspath(path))
            return {
                "kind": "unwritable",
                "errno": error.errno,
                "cause": "configuration",
                "message": f"the value could not be written to {folder}: {error.strerror}. Make room and run again",
            }
        kind, shown, reason = _type_name(type(value)), _repr(value), reason_of(error)
        return {
            "kind": "unpicklable",
            "type": UNPICKLABLE,
            "message": f"the function returned a {kind} that cannot be sent back: {reason}. It was {shown}",
            "returned": kind,
            "repr": shown,
            "reason": reason,
        }
    return {"kind": "value", "digest": digest, "size": size, "format": ""}


def dump_exception(error: BaseException, path: str | os.PathLike[str], *, ours: str = __name__) -> dict[str, Any]:
    """Write an exception and return its record, with its traceback. A record without digest is of one that cannot be
    pickled.

    `ours`: the module that called the function that raised. The traceback begins after the frames of its package and of
    this module's, which the user did not write.
    """
    skipped = {name.rpartition(".")[0] for name in (__name__, ours)}
    record = {
        "kind": "exception",
        "type": _type_name(type(error)),
        "message": _text(error),
        "traceback": _traceback(error, skipped),
    }
    reasons = []
    for bare in (False, True):
        for causes in (_causes(error), ()):
            sent = _dump_raised(_Raised(error, causes, bare), path)
            if not isinstance(sent, Exception):
                return {**record, "digest": sent[0], "size": sent[1]}
            reasons.append(reason_of(sent))
    return {**record, "reason": reasons[0]}


def _dump_raised(raised: _Raised, path: str | os.PathLike[str]) -> tuple[str, int] | Exception:
    """The digest and the size, or the reason why it cannot be pickled.

    Many exceptions can be pickled but not unpickled, because their __init__ needs more than their args: so try it.
    """
    try:
        sent = dump(raised, path, _outcome_pickler(), EXCEPTION)
    except Exception as problem:
        if isinstance(problem, OSError) and problem.errno in PASSING:
            raise
        return problem
    try:
        copy = load(path, role=EXCEPTION, names_first=False)
        if type(copy) is not type(raised.error):
            raise TypeError(f"it comes back as {_type_name(type(copy))}")
        if raised.bare and _text(copy) != _text(raised.error):  # as an OSError would, which keeps its own out of sight
            raise TypeError(f"it comes back saying {_text(copy)!r:.200}")
    except Exception as problem:
        os.unlink(path)
        return problem
    return sent


class _Raised:
    """The pickled form of an exception with its causes. `bare`: without a call of its __init__."""

    def __init__(self, error: BaseException, causes: tuple[BaseException, ...], bare: bool) -> None:
        self.error = error
        self.causes = causes
        self.bare = bare

    def __reduce__(self) -> Any:
        error = self.error
        made = (type(error), error.args, vars(error).copy()) if self.bare else (error,)
        return caused, (self.causes, *made)


def caused(causes: Sequence[BaseException], error: Any, *bare: Any) -> BaseException:
    """An exception as it was raised."""
    if bare:
        args, state = bare
        error = error.__new__(error, *args)
        vars(error).update(state)
    raised: BaseException = error
    for cause in causes:
        error.__cause__ = error = cause
    return raised


def _causes(error: BaseException) -> tuple[BaseException, ...]:
    found: list[BaseException] = []
    cause = error.__cause__
    while cause is not None and cause not in found and len(found) < 8:
        found.append(cause)
        cause = cause.__cause__
    return tuple(found)


def _outcome_pickler() -> Callable[..., Any]:
    try:
        import cloudpickle
    except ImportError:
        return pickle.Pickler

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        """Pickles by value like cloudpickle, but a class that the reader has under the same name becomes the reader's
        own.

        Otherwise `except MyError` would hold in the submitting process only, and not in one that attaches.
        """

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type) and _by_value_only(obj):
                return named_class, (obj.__module__, obj.__qualname__, cloudpickle.dumps(obj))
            if isinstance(obj, tuple) and _is_own_tuple(type(obj)):
                return named_tuple, (type(obj), tuple(tuple.__iter__(obj))), getattr(obj, "__dict__", None) or None
            return super().reducer_override(obj)

    return Pickler


def _is_own_tuple(cls: type) -> bool:
    """Return True for a named tuple whose own `__new__` takes other arguments than its fields in order: it
    needs help."""
    if not hasattr(cls, "_fields") or any(
        "__reduce" in name for base in cls.__mro__[:-1] for name in vars(base).copy()
    ):
        return False
    return not str(cls.__new__.__module__).startswith("namedtuple_")


def named_tuple(cls: type, values: tuple[Any, ...]) -> Any:
    return tuple.__new__(cls, values)


def _by_value_only(cls: type) -> bool:
    """Return True if this process has the class, but not under its name."""
    if "<" in cls.__qualname__ or cls.__module__ == "builtins":
        return False
    found: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is not cls


def _traceback(error: BaseException, skipped: set[str]) -> str:
    import traceback

    frames = error.__traceback__
    while frames and frames.tb_next and _package_of(frames) in skipped:
        frames = frames.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, frames))
    except Exception as problem:  # a user's __str__ may raise
        text = f"{_type_name(type(error))}: its traceback cannot be shown: {reason_of(problem)}\n"
    return _bounded(text)


def _package_of(frames: TracebackType) -> str:
    """Return the package of the outermost frame's module: the file of its code is relative if it comes from a zip."""
    return str(frames.tb_frame.f_globals.get("__name__", "")).rpartition(".")[0]


def _bounded(text: str) -> str:
    if len(text) <= _TEXT:
        return text
    half = _TEXT // 2
    return f"{text[:half]}\n… {len(text) - _TEXT} characters left out …\n{text[-half:]}"


def _type_name(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _text(error: BaseException) -> str:
    try:
        return _bounded(str(error))
    except Exception as problem:
        return f"<its text cannot be had: {type(problem).__name__}>"


def reason_of(error: BaseException) -> str:
    """The reason why a value cannot be pickled, with the type of an error that does not say so itself."""
    text = _text(error)
    if isinstance(error, (TypeError, pickle.PicklingError)) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _repr(value: Any) -> str:
    import reprlib

    shorten = reprlib.Repr()
    shorten.maxstring = shorten.maxother = 500
    return shorten.repr(value)
