"""A training's state as named arrays and plain values, and back.

A state is any value that a loop carries from step to step: nested dictionaries, lists and tuples (any pytree once JAX
is there) of arrays, numbers, texts, and of objects with a state of their own (`state_dict`, `get_state`, `getstate`).
Nothing is pickled: a user who can write to a store must not be able to run code by it. No framework is imported here
that the program has not imported.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol, runtime_checkable

from kinetic_orchestration.errors import CheckpointDiffers
from kinetic_orchestration.host.process.frameworks import spread
from kinetic_orchestration.host.process.frameworks.spread import Layout, Layouts
from kinetic_orchestration.program.checkpoints.commits import Leaf
from kinetic_orchestration.protocol.system.parallel import side_by_side

# The kinds of arrays: sharded over all hosts, the same on all of them (host 0 writes it), or each host's own.
SPREAD, SAME, OWN = "spread", "same", "own"

COPIERS = 4  # threads, if there are as many cores
TOGETHER = 4 << 20  # bytes that one of them copies at a time

NO_LAYOUTS: Mapping[str, Layouts] = {}

Start = tuple[int, ...]
PLAIN = (bool, int, float, str, bytes)
_DTYPE = re.compile(r"[a-z]\w*(\[\w+\])?")


@dataclass(frozen=True, slots=True)
class Piece:
    """A rectangle of an array: where it begins in the whole, its own shape, and its bytes."""

    path: str
    start: Start
    shape: tuple[int, ...]
    data: Any  # a buffer of bytes; it must not change while it is written
    fresh: bool = False  # not shared, like a copy from a device


@runtime_checkable
class Engine(Protocol):
    """A leaf that another library writes into a folder of the checkpoint, and our commit commits.

    All hosts call each of these at the same step, in the same order.
    """

    kind: str
    """Names the library, in lower case letters."""

    def described(self) -> Mapping[str, Leaf]:
        """Return its arrays by their paths within it."""

    def begin_writing(self, folder: str) -> None:
        """Begin to write into a folder, or bucket address, that is not there yet; what is written may change once this
        returns."""

    def end_writing(self, patience: float) -> None:
        """Wait until all hosts have written. Raises OSError."""

    def read_written(self, folder: str) -> None:
        """Take the values that were written there in place of its own."""


@dataclass(slots=True)
class HostPart:
    """One host's part of a state."""

    leaves: dict[str, Leaf] = field(default_factory=dict)  # of all arrays, on any host
    kinds: dict[str, str] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)  # of all that has pieces, also within a kept state
    plain: dict[str, Any] = field(default_factory=dict)  # as JSON
    pieces: list[Piece] = field(default_factory=list)
    apart: dict[str, Engine] = field(default_factory=dict)  # what other libraries write


@dataclass(frozen=True, slots=True)
class Slot:
    """The current location of an array, and the way to replace it: one after another, so that a state is not in memory
    twice."""

    value: Callable[[], Any]
    assign: Callable[[Any], None]


class Unstorable(TypeError):
    """A part of the state that cannot be stored."""


# ---- names ------------------------------------------------------------------------------------------------------


def named(state: Any) -> list[tuple[str, Any]]:
    """Every leaf with its path; None is the absence of one."""
    jax = sys.modules.get("jax")
    if jax is None:
        found = list(_named(state, ""))
    else:
        leaves, _ = jax.tree_util.tree_flatten_with_path(state, is_leaf=keeps)
        found = [("/".join(map(_key, path)), leaf) for path, leaf in leaves]
    if len({path for path, _ in found}) < len(found):
        counted = Counter(path for path, _ in found)
        raise Unstorable(f"two parts of the state have the name {counted.most_common(1)[0][0]}: rename one of them")
    return found


def rebuilt(state: Any, leaves: Mapping[str, Any]) -> Any:
    """The same structure with other leaves."""
    jax = sys.modules.get("jax")
    if jax is None:
        return _rebuilt(state, "", leaves)
    found, structure = jax.tree_util.tree_flatten_with_path(state, is_leaf=keeps)
    return jax.tree_util.tree_unflatten(structure, [leaves["/".join(map(_key, path))] for path, _ in found])


def _key(step: Any) -> str:
    for name in ("key", "idx", "name"):
        if hasattr(step, name):
            return str(getattr(step, name))
    return str(step)


def _named(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    if node is None:
        return
    if isinstance(node, (dict, list, tuple)) and not keeps(node):
        for key, child in _children(node):
            yield from _named(child, f"{path}/{key}" if path else str(key))
    else:
        yield path, node


def _rebuilt(node: Any, path: str, leaves: Mapping[str, Any]) -> Any:
    if node is None:
        return None
    if not isinstance(node, (dict, list, tuple)) or keeps(node):
        return leaves[path]
    made = {key: _rebuilt(child, f"{path}/{key}" if path else str(key), leaves) for key, child in _children(node)}
    if isinstance(node, dict):
        if not isinstance(node, defaultdict):
            return type(node)(made)
        found = copy.copy(node)  # with its default factory
        found.update(made)
        return found
    return type(node)(*made.values()) if hasattr(node, "_fields") else type(node)(made.values())


def _children(node: Any) -> list[tuple[Any, Any]]:
    if isinstance(node, dict):
        return list(node.items())
    names = getattr(node, "_fields", range(len(node)))
    return list(zip(names, node, strict=True))


# ---- objects with a state of their own -------------------------------------------------------------------------


def keeps(value: Any) -> bool:
    """Return True if an object has a state that can be read and restored."""
    return not isinstance(value, type) and _ways(value) is not None


def own(value: Any) -> bool:
    """Return True if its state differs on each host, like the position in a host's data."""
    return keeps(value) and not hasattr(value, "load_state_dict") and bool(getattr(value, "each_hosts_own", True))


def _ways(value: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """The functions that read and restore the state of such an object, or None."""
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):  # torch
        return value.state_dict, value.load_state_dict
    if hasattr(value, "get_state") and hasattr(value, "set_state"):  # Grain, numpy's RandomState, torch's Generator
        return value.get_state, value.set_state
    if hasattr(value, "getstate") and hasattr(value, "setstate"):  # random.Random
        return value.getstate, value.setstate
    bits = getattr(value, "bit_generator", None)  # numpy's Generator
    if bits is not None and hasattr(bits, "state"):
        return (lambda: bits.state), (lambda state: setattr(bits, "state", state))
    return None


# ---- apart ------------------------------------------------------------------------------------------------------


def described(state: Any) -> dict[str, Leaf]:
    """The arrays of a state by their names, without their bytes. Objects with a state of their own are not read: they
    may have none before their first step."""
    found: dict[str, Leaf] = {}
    for path, leaf in named(state):
        if not isinstance(leaf, (*PLAIN, Engine)) and not keeps(leaf):
            found[path] = _leaf(_now(leaf), path)
            if isinstance(leaf, Slot) and spread.is_spread(_now(leaf)):
                raise Unstorable(f"{path} is a DTensor within a framework's variable, which has not been tried")
    return found


def layouts(state: Any, hosts: int = 0) -> dict[str, Layouts]:
    """Return how torch spreads over its processes the objects with a state of their own, by their paths. All hosts
    call it at the same time: an object may ask the others for its state.

    Args:
        state: A state, which is not changed.
        hosts: Number of hosts that write it; 0 if unknown.

    Raises:
        Unstorable: Something is spread in a way that cannot be kept.
    """
    found: dict[str, Layouts] = {}
    for path, leaf in named(state):
        _refuse(path or "the state", leaf, hosts)
        if not hasattr(leaf, "load_state_dict") or (ways := _ways(leaf)) is None:
            continue
        held, arrays = spread.parameters(leaf), {}
        if not held or spread.is_possible():
            with contextlib.suppress(Exception):  # it may have none before its first step
                arrays = dict(spread.arrays(ways[0](), path))
        for name, one in (*arrays.items(), *((f"a parameter of {path or 'the state'}", one) for one in held)):
            _refuse(name, one, hosts)
        found[path] = Layouts(path, leaf, arrays)
    return found


def _refuse(name: str, value: Any, hosts: int) -> None:
    if why := spread.why_not(value, hosts):
        raise Unstorable(f"{name} {why}")


def host_part(state: Any) -> HostPart:
    """Everything of a state that this host keeps."""
    into = HostPart()
    leaves = named(state)
    for _, leaf in leaves:
        if _is_jax(leaf) and not _is_key(leaf):
            for shard in _shards(leaf):
                if shard.replica_id == 0:
                    shard.data.copy_to_host_async()  # side by side, and not each when its bytes are wanted
    for path, leaf in leaves:
        if isinstance(leaf, PLAIN):
            into.plain[path] = _plain(leaf, path, into, OWN)
        elif isinstance(leaf, Engine):
            into.apart[path] = leaf
        elif (ways := _ways(leaf)) is not None:
            kind = SAME if hasattr(leaf, "load_state_dict") and _torch_is_joined() else OWN
            kept = ways[0]()
            if why := spread.check_optimizer(leaf, kept, path):
                raise Unstorable(why)
            into.plain[path] = _plain(kept, path, into, kind)
        else:
            into.leaves[path] = _leaf(leaf, path)
            _take(leaf, path, into)
    return into


def _leaf(leaf: Any, path: str) -> Leaf:
    if why := spread.why_not(leaf):
        raise Unstorable(f"{path or 'the state'} {why}")
    if _is_key(leaf):
        data = sys.modules["jax"].eval_shape(sys.modules["jax"].random.key_data, leaf)
        return Leaf(str(leaf.dtype), tuple(data.shape))
    if not (hasattr(leaf, "dtype") and hasattr(leaf, "shape")):
        raise Unstorable(
            f"{path or 'the state'} is a {type(leaf).__module__}.{type(leaf).__qualname__}, which is neither an array, "
            "a number or a text, nor has state_dict/load_state_dict or get_state/set_state. Leave it out of the state, "
            "or give it those"
        )
    dtype = str(leaf.dtype).removeprefix("torch.")
    if dtype == "object" or not _DTYPE.fullmatch(dtype):
        raise Unstorable(
            f"{path or 'the state'} is an array of {dtype}, whose bytes alone say nothing, or not on every machine: "
            "give it numbers in this machine's byte order, or texts as a list"
        )
    return Leaf(dtype, tuple(int(size) for size in leaf.shape))


def _take(leaf: Any, path: str, into: HostPart, kind: str = "") -> None:
    """The pieces of an array that this host writes. Without a kind, torch's are the same on all hosts once they are
    joined, and numpy's are each host's own."""
    if path in into.dtypes:
        raise Unstorable(f"two parts of the state have the name {path}: rename one of them")
    into.dtypes[path] = str(leaf.dtype).removeprefix("torch.")
    if _is_jax(leaf):
        if _is_key(leaf):
            leaf = sys.modules["jax"].random.key_data(leaf)
        is_shared = not leaf.is_fully_addressable
        into.kinds[path] = SPREAD if is_shared else OWN
        for shard in _shards(leaf):
            if shard.replica_id == 0:
                start = tuple(piece.start or 0 for piece in shard.index)
                # The host's memory that a device uses may be passed to us directly.
                lies = str(shard.data.sharding.memory_kind)
                fresh = shard.device.platform != "cpu" and not lies.endswith("host")
                into.pieces.append(Piece(path, start, tuple(shard.data.shape), _bytes(shard.data), fresh))
        return
    if spread.is_spread(leaf):
        into.kinds[path] = SPREAD
        start, part = spread.layout_of(leaf).rectangle(tuple(leaf.shape))
        if prod(part) and spread.is_written_here(leaf):
            local = spread.local_of(leaf)
            into.pieces.append(Piece(path, start, part, _bytes(local), local.device.type != "cpu"))
        return
    into.kinds[path] = kind or (SAME if _is_torch(leaf) and _torch_is_joined() else OWN)
    shape = tuple(int(size) for size in leaf.shape)
    if into.kinds[path] == OWN or _first():
        fresh = _is_torch(leaf) and leaf.device.type != "cpu"
        into.pieces.append(Piece(path, (0,) * len(shape), shape, _bytes(leaf), fresh))


def _plain(value: Any, path: str, into: HostPart, kind: str) -> Any:
    """The value as JSON: numbers and texts unchanged, other values in a dictionary with one tag; arrays by
    their names."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value if type(value) in (bool, int, float, str, type(None)) else _plain(_item(value), path, into, kind)
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, (list, tuple)):
        tag = "tuple" if isinstance(value, tuple) else "list"
        return {tag: [_plain(one, f"{path}/{number}", into, kind) for number, one in enumerate(value)]}
    if isinstance(value, Mapping):
        pairs = value.items()
        return {
            "dict": [[_plain(key, path, into, kind), _plain(one, f"{path}/{key}", into, kind)] for key, one in pairs]
        }
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        leaf = _leaf(value, path)
        _take(value, path, into, kind)
        of = "torch" if _is_torch(value) else "jax" if _is_jax(value) else "numpy"
        told: dict[str, Any] = {"array": path, "of": of, "dtype": leaf.dtype, "shape": list(leaf.shape)}
        return told | {"spread": spread.placements(value)} if spread.is_spread(value) else told
    raise Unstorable(
        f"the state of {path} holds a {type(value).__module__}.{type(value).__qualname__}, which cannot be kept "
        "without pickling it"
    )


def _item(value: Any) -> Any:
    """The plain value of a subclass of a plain type (an IntEnum, a numpy float)."""
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return plain(value)
    return value


# ---- together ---------------------------------------------------------------------------------------------------

# Gives the bytes of a rectangle of an array: its path, dtype, start and shape.
Fetch = Callable[[str, str, Start, tuple[int, ...]], memoryview]

# Checks if such a rectangle is there, and copies nothing.
Look = Callable[[str, Start, tuple[int, ...]], object]


def restorer(
    state: Any,
    plain: Mapping[str, Any],
    fetch: Fetch,
    look: Look = lambda *_: None,
    layouts: Mapping[str, Layouts] = NO_LAYOUTS,
) -> Callable[[], Any]:
    """Return a function that restores the checkpoint's state in the structure, and with the sharding, of this one.
    Everything that it needs is checked before; until it is called, no object with a state of its own is changed."""
    made: dict[str, Any] = {}
    kept: list[tuple[str, Callable[[Any], Any]]] = []
    places: list[tuple[str, Slot]] = []
    for path, leaf in named(state):
        if isinstance(leaf, PLAIN):
            made[path] = plain_value(plain[path], fetch)
        elif isinstance(leaf, Engine):  # is read by whoever wrote it
            made[path] = leaf
        elif (ways := _ways(leaf)) is not None:
            _look(plain[path], look, layouts.get(path))
            kept.append((path, ways[1]))
            made[path] = leaf
        elif isinstance(leaf, Slot):
            for start, shape in _rectangles(leaf.value()):
                look(path, start, shape)
            places.append((path, leaf))
            made[path] = leaf
        else:
            made[path] = _made(leaf, path, fetch)

    def give() -> Any:
        for path, take in kept:
            take(plain_value(plain[path], fetch, layouts.get(path)))
        for path, place in places:
            place.assign(_made(place.value(), path, fetch))
        return rebuilt(state, made)

    return give


def _now(leaf: Any) -> Any:
    return leaf.value() if isinstance(leaf, Slot) else leaf


def _rectangles(leaf: Any) -> set[tuple[Start, tuple[int, ...]]]:
    """The rectangles of an array on this host's devices."""
    shape = tuple(int(size) for size in leaf.shape)
    if not _is_jax(leaf):
        return {((0,) * len(shape), shape)}
    return {_rectangle(index, shape) for index in leaf.sharding.addressable_devices_indices_map(shape).values()}


def _rectangle(index: tuple[slice, ...], whole: tuple[int, ...]) -> tuple[Start, tuple[int, ...]]:
    start = tuple(piece.start or 0 for piece in index)
    stops = (size if piece.stop is None else piece.stop for piece, size in zip(index, whole, strict=True))
    return start, tuple(stop - at for stop, at in zip(stops, start, strict=True))


def _look(told: Any, look: Look, layouts: Layouts | None) -> None:
    """Visit all arrays within a result of `_plain`."""
    if not isinstance(told, dict):
        return
    pairs = (one for pair in told.get("dict", ()) for one in pair)
    for one in (*told.get("list", ()), *told.get("tuple", ()), *pairs):
        _look(one, look, layouts)
    if "array" in told:
        _, (start, shape) = _part_of(told, layouts)
        look(told["array"], start, shape)


def _part_of(told: Mapping[str, Any], layouts: Layouts | None) -> tuple[Layout | None, tuple[Start, tuple[int, ...]]]:
    """The layout of an array within a result of `_plain`, and the rectangle that this process needs of it."""
    shape = tuple(told["shape"])
    try:
        layout = None if layouts is None else layouts.of(told["array"], shape, told.get("spread"))
    except spread.NoLayout as error:
        raise CheckpointDiffers(str(error)) from None
    return layout, ((0,) * len(shape), shape) if layout is None else layout.rectangle(shape)


def plain_value(told: Any, fetch: Fetch, layouts: Layouts | None = None) -> Any:  # noqa: PLR0911 - one tag each
    """The value of a result of `_plain`. Without layouts what was spread over processes comes back whole."""
    if not isinstance(told, dict):
        return told
    if "bytes" in told:
        return base64.b64decode(told["bytes"])
    if "list" in told:
        return [plain_value(one, fetch, layouts) for one in told["list"]]
    if "tuple" in told:
        return tuple(plain_value(one, fetch, layouts) for one in told["tuple"])
    if "dict" in told:
        pairs = told["dict"]
        return {plain_value(key, fetch, layouts): plain_value(one, fetch, layouts) for key, one in pairs}
    layout, (start, shape) = _part_of(told, layouts)
    data = fetch(told["array"], told["dtype"], start, shape)
    if told["of"] == "torch" and "torch" in sys.modules:
        part = _to_torch(data, told["dtype"], shape)
        return part if layout is None else layout.joined(part, tuple(told["shape"]))
    array = _to_numpy(data, told["dtype"], shape)
    return sys.modules["jax"].numpy.asarray(array) if told["of"] == "jax" and "jax" in sys.modules else array


def whole(leaf: Leaf, fetch: Fetch, path: str) -> Any:
    dtype = "uint32" if leaf.dtype.startswith("key<") else leaf.dtype
    data = fetch(path, dtype, (0,) * len(leaf.shape), leaf.shape)
    try:
        return _to_numpy(data, dtype, leaf.shape)
    except ModuleNotFoundError:  # of ml_dtypes, for what numpy has not
        if "torch" not in sys.modules:
            raise
        return _to_torch(data, dtype, leaf.shape)


def _made(leaf: Any, path: str, fetch: Fetch) -> Any:
    found = _leaf(leaf, path)
    whole = (0,) * len(found.shape)
    if spread.is_spread(leaf):
        layout = spread.layout_of(leaf)
        start, shape = layout.rectangle(found.shape)
        part = _to_torch(fetch(path, found.dtype, start, shape), found.dtype, shape)
        return layout.joined(part, found.shape).requires_grad_(leaf.requires_grad)
    if _is_torch(leaf):
        data = fetch(path, found.dtype, whole, found.shape)
        return _to_torch(data, found.dtype, found.shape).to(leaf.device).requires_grad_(leaf.requires_grad)
    if _is_jax(leaf) or getattr(leaf, "sharding", None) is not None:
        return _to_jax(leaf, path, found, fetch)
    array = _to_numpy(fetch(path, found.dtype, whole, found.shape), found.dtype, found.shape)
    return array if type(leaf).__name__ == "ndarray" else array[()]


def _to_jax(leaf: Any, path: str, found: Leaf, fetch: Fetch) -> Any:
    jax = sys.modules["jax"]
    dtype, kind = found.dtype, None
    if _is_key(leaf):
        kind, leaf, dtype = jax.random.key_impl(leaf), jax.random.key_data(leaf), "uint32"

    def part(index: tuple[slice, ...]) -> Any:
        start, shape = _rectangle(index, tuple(leaf.shape))
        return _to_numpy(fetch(path, dtype, start, shape), dtype, shape)

    made = jax.make_array_from_callback(tuple(leaf.shape), leaf.sharding, part)
    return made if kind is None else jax.random.wrap_key_data(made, impl=kind)


# ---- frameworks -------------------------------------------------------------------------------------------------


def _is_jax(value: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def _shards(array: Any) -> Any:
    """The shards of a JAX array on this host. A program with one device may hold an array of all hosts where its own
    piece of that is meant (Keras' metrics, once they are reset), and JAX then fails to list its shards."""
    try:
        return array.addressable_shards
    except ValueError:
        return array.addressable_data(0).addressable_shards


def _is_key(value: Any) -> bool:
    """Return True for one of JAX's typed random keys, whose bytes are not directly accessible."""
    jax = sys.modules.get("jax")
    return jax is not None and hasattr(value, "dtype") and str(value.dtype).startswith("key<")


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _torch_is_joined() -> bool:
    torch = sys.modules.get("torch")
    joined = getattr(torch, "distributed", None)
    return joined is not None and joined.is_available() and bool(joined.is_initialized())


def _first() -> bool:
    return int(sys.modules["torch"].distributed.get_rank()) == 0


def devices(state: Any, *, told: bool = False) -> int:
    """The number of all devices, if the state, or `told`, shows that JAX is in use; else 0. JAX is not asked otherwise,
    as it would then reserve them."""
    leaves = (_now(leaf) for _, leaf in named(state))
    are_there = (
        _is_jax(leaf) or hasattr(leaf, "begin_writing") or getattr(leaf, "sharding", None) is not None
        for leaf in leaves
    )
    return int(sys.modules["jax"].device_count()) if "jax" in sys.modules and (told or any(are_there)) else 0


def frameworks() -> str:
    """The frameworks that the program has imported, with versions."""
    names = ("keras", "jax", "torch", "tensorflow", "flax")
    found = ((name, getattr(sys.modules.get(name), "__version__", "")) for name in names)
    return " ".join(f"{name}-{version}" for name, version in found if version)


def _bytes(array: Any) -> Any:
    """Its bytes in C order, without a copy if it has that order."""
    if prod(array.shape) == 0:
        return b""
    if _is_torch(array):
        import ctypes

        flat = array.detach().resolve_conj().resolve_neg().cpu().contiguous()  # the data itself, no lazy view
        size = flat.numel() * flat.element_size()
        # Not through numpy, which may be missing, and which has no bfloat16.
        memory: Any = (ctypes.c_char * size).from_address(flat.data_ptr())
        memory.owner = flat  # which lives as long as the view
        return memoryview(memory).cast("B")
    import numpy

    told: Any = numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)
    return memoryview(told)


def new_buffer(size: int) -> memoryview:
    """Memory of that size. Numpy's is not filled with zeros first."""
    numpy = sys.modules.get("numpy")
    return memoryview(bytearray(size) if numpy is None else numpy.empty(size, numpy.uint8))


def copy_all(pairs: Sequence[tuple[memoryview, Any]]) -> None:
    """Copy buffers of bytes, each into room of its own; large ones in parallel, since most of the time goes to the
    first access of each page of memory."""
    numpy = sys.modules.get("numpy")
    threads = min(COPIERS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if numpy is None or threads < 2:  # a view's own copying lets no other thread run
        for room, data in pairs:
            room[:] = data
        return
    large = []
    for room, data in pairs:
        if len(room) <= TOGETHER:
            room[:] = data
            continue
        into, out_of = numpy.frombuffer(room, numpy.uint8), numpy.frombuffer(data, numpy.uint8)
        large += [(into[at : at + TOGETHER], out_of[at : at + TOGETHER]) for at in range(0, len(into), TOGETHER)]
    side_by_side(lambda pair: numpy.copyto(*pair), large, threads, name="kinetic-checkpoint-copy")


def _to_numpy(data: memoryview, dtype: str, shape: tuple[int, ...]) -> Any:
    import numpy

    try:
        known = numpy.dtype(dtype)
    except TypeError:
        import ml_dtypes

        known = numpy.dtype(getattr(ml_dtypes, dtype))
    return numpy.frombuffer(data, numpy.uint8).view(known).reshape(shape) if data else numpy.empty(shape, known)


def _to_torch(data: memoryview, dtype: str, shape: tuple[int, ...]) -> Any:
    torch = sys.modules["torch"]
    known = getattr(torch, dtype)
    if not data:
        return torch.empty(shape, dtype=known)
    return torch.frombuffer(data, dtype=torch.uint8).view(known).reshape(shape)
