"""A state taken apart, written as one host's file, read, and put together again."""

from __future__ import annotations

import collections
import errno
import json
import math
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.host.process.frameworks import spread
from kinetic_orchestration.program.checkpoints import parts, trees
from kinetic_orchestration.program.checkpoints.commits import Leaf, Part
from kinetic_orchestration.protocol.content.digest import of_bytes, of_chunk, of_leaves
from kinetic_orchestration.protocol.system import kernel

Pair = collections.namedtuple("Pair", "left right")


def again(state: Any, into: Any, path: Path) -> Any:
    """The state by way of a file."""
    opened = parts.Opened(str(path), parts.write(str(path), trees.host_part(state)))

    def fetch(name: str, dtype: str, start: trees.Start, shape: tuple[int, ...]) -> memoryview:
        size = 4 if dtype.startswith("key<") else np.dtype(getattr(ml_dtypes, dtype, dtype)).itemsize
        data = trees.new_buffer(prod(shape) * size)
        assert opened.copy(name, Leaf(dtype, shape), start, data) == prod(shape) or not data
        return data

    try:
        return trees.restorer(into, opened.plain, fetch)()
    finally:
        opened.close()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return set(one) == set(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "dtype"):
        return (one.dtype, one.shape, np.asarray(one).tobytes()) == (
            other.dtype,
            other.shape,
            np.asarray(other).tobytes(),
        )
    return type(one) is type(other) and (one == other or (math.isnan(one) and math.isnan(other)))


ARRAYS = {
    dtype: (np.arange(24).reshape(2, 3, 4) % 2).astype(dtype)
    for dtype in ("bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64", "complex128",
                  ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4)
}  # fmt: skip


@pytest.mark.parametrize("array", ARRAYS.values(), ids=lambda array: str(array.dtype))
def test_an_array_of_any_dtype_comes_back_bit_by_bit(array: Any, tmp_path: Path) -> None:
    assert same(again({"a": array}, {"a": np.zeros_like(array)}, tmp_path / "part")["a"], array)


def test_a_nested_state_comes_back_in_its_structure(tmp_path: Path) -> None:
    state = {
        "params": [{"w": np.float32([[1, 2], [3, np.nan]]), "b": np.zeros((0, 3), np.float32)}, ()],
        "pair": Pair(np.array(3.5), {"deep": (np.arange(5)[::2],)}),
        "step": 7, "rate": float("inf"), "name": "größe", "on": True, "none": None, "seed": 2**70, "raw": b"\0\xff",
        "scalar": np.int16(9), "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    }  # fmt: skip
    empty = {
        "params": [{"w": np.zeros((2, 2), np.float32), "b": np.ones((0, 3), np.float32)}, ()],
        "pair": Pair(np.array(0.0), {"deep": (np.zeros(3, int),)}),
        "step": 0, "rate": 0.0, "name": "", "on": False, "none": None, "seed": 0, "raw": b"",
        "scalar": np.int16(0), "fortran": np.zeros((2, 3)),
    }  # fmt: skip
    assert same(again(state, empty, tmp_path / "part"), state)


class Attributes(dict[str, Any]):
    """A dictionary for programs that write `state.w`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.__dict__ = self


def test_dictionaries_of_another_kind_stay_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program without JAX knows no other kinds."""
    monkeypatch.delitem(sys.modules, "jax")
    state = {"seen": collections.defaultdict(int, a=1), "count": collections.Counter(b=2), "empty": {}}
    given = {"seen": collections.defaultdict(int, a=0), "count": collections.Counter(b=5), "empty": {}}
    found = again(state, given, tmp_path / "part")
    assert found == state
    assert [type(one) for one in found.values()] == [collections.defaultdict, collections.Counter, dict]
    assert (found["seen"]["new"], given["seen"]["a"]) == (0, 0)
    own = again({"own": Attributes(w=2.0)}, {"own": Attributes(w=1.0)}, tmp_path / "own")["own"]
    assert (type(own), own["w"], own.w) == (Attributes, 2.0, 2.0)


def test_jax_arrays_and_keys_come_back_where_the_given_ones_are(tmp_path: Path) -> None:
    state = {"w": jax.numpy.arange(6.0).reshape(2, 3), "key": jax.random.key(7), "old": jax.random.PRNGKey(3)}
    found = again(
        state, {"w": jax.numpy.zeros((2, 3)), "key": jax.random.key(0), "old": jax.random.PRNGKey(0)}, tmp_path / "part"
    )
    assert isinstance(found["w"], jax.Array)
    assert same(found["w"], state["w"])
    assert same(found["old"], state["old"])
    assert same(jax.random.normal(found["key"], (3,)), jax.random.normal(state["key"], (3,)))


def test_generators_and_iterators_go_on_where_they_were(tmp_path: Path) -> None:
    class Data:
        """A stand-in for Grain's iterators."""

        place = 0

        def get_state(self) -> dict[str, Any]:
            return {"place": self.place, 3: ("x", b"y", [None])}

        def set_state(self, state: dict[str, Any]) -> None:
            assert state[3] == ("x", b"y", [None])
            self.place = state["place"]

    def made(seed: int) -> dict[str, Any]:
        return {
            "python": random.Random(seed),
            "numpy": np.random.default_rng(seed),
            "old": np.random.RandomState(seed),
            "data": Data(),
        }

    def drawn(state: dict[str, Any]) -> list[float]:
        return [state["python"].random(), state["numpy"].random(), state["old"].rand(), state["data"].place]

    state, other = made(1), made(2)
    state["data"].place = 41
    drawn(state)
    assert again(state, other, tmp_path / "part")["data"] is other["data"]
    assert drawn(other) == drawn(state)


@pytest.mark.parametrize("bad", [object(), {1, 2}, print])
def test_what_nobody_can_keep_is_refused_by_its_name(bad: Any) -> None:
    with pytest.raises(trees.Unstorable, match="params/odd is a builtins"):
        trees.host_part({"params": {"odd": bad}})


@pytest.mark.parametrize(
    "array", [np.array(["ab"]), np.zeros(2, ">f4"), np.array([print], object), np.zeros(1, "i4,f4")]
)
def test_an_array_whose_bytes_are_not_numbers_of_this_machine_is_refused(array: Any) -> None:
    with pytest.raises(trees.Unstorable, match="params/odd is an array of "):
        trees.described({"params": {"odd": array}})


@pytest.mark.parametrize("more", [{"a": {"b": np.ones(2)}}, {"a": np.random.RandomState(1), "a/1": np.ones(2)}])
def test_two_parts_of_one_name_are_refused(more: dict[str, Any]) -> None:
    state = {"a/b": np.zeros(2), **more}
    with pytest.raises(trees.Unstorable, match="two parts of the state have the name a/"):
        trees.host_part(state)


def test_a_kind_that_is_told_counts_for_torch_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in of torch, of which this environment has none: the second of two hosts that are joined."""

    class Tensor:
        dtype, shape, device = "torch.uint8", (0,), SimpleNamespace(type="cpu")

    class Generator:
        def get_state(self) -> Any:
            return Tensor()

        def set_state(self, _: Any) -> None: ...

    joined = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 1)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor, distributed=joined))
    found = trees.host_part({"chance": Generator(), "weight": Tensor()})
    assert found.kinds == {"chance": trees.OWN, "weight": trees.SAME}
    assert [piece.path for piece in found.pieces] == ["chance"]


class DTensor:
    """A stand-in for torch's, which this environment lacks; tests/end_to_end/frameworks has the real one."""

    __module__ = "torch.distributed.tensor"
    dtype, shape = "torch.float32", (4,)

    def __init__(self, processes: int = 4, *, partial: bool = False) -> None:
        self.device_mesh = SimpleNamespace(size=lambda: processes, shape=(processes,))
        self.placements = [SimpleNamespace(is_partial=lambda: partial, dim=0)]


class ShardedTensor:
    __module__ = "torch.distributed._shard.sharded_tensor.api"
    dtype, shape = "torch.float32", (4,)


class Flattened:
    """A parameter as FSDP1 marks it, also where it leaves the user's own in place."""

    __module__ = "torch.nn.parameter"
    dtype, shape = "torch.float32", (4,)
    _fsdp_flattened = True


class Around:
    """Keeps the state of what is within, as a user's own class does."""

    def __init__(self, *weights: Any) -> None:
        self._weights = weights

    def state_dict(self) -> Any:
        return {"within": [{"weight": weight} for weight in self._weights], "step": 3}

    def load_state_dict(self, _: Any) -> None: ...


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (DTensor(2), "is a DTensor over 2 of 4 processes, and nothing shows what the others have"),
        (type("Parameter", (DTensor,), {})(2), "is a DTensor over 2 of 4 processes"),
        (DTensor(partial=True), r"is a DTensor whose sums are not added up yet \(Partial\)"),
        (ShardedTensor(), r"is of FSDP1 \(FullyShardedDataParallel\), whose flat shards have no place"),
        (Flattened(), "is of FSDP1"),
    ],
)
def test_what_torch_spreads_in_a_way_that_cannot_be_kept_is_refused_before_the_first_step(
    value: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_world_size=lambda: 4)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=DTensor, distributed=joined))
    for path, state in {
        "ema/within/1/weight": {"ema": Around(np.zeros(2), value)},
        "own/0": {"own": [value]},
    }.items():
        with pytest.raises(trees.Unstorable, match=rf"^{path} {why}"):
            kinetic.Training(name="t").restore(state)
    optimizer = SimpleNamespace(param_groups=[{"params": [value]}], state_dict=dict, load_state_dict=print)
    with pytest.raises(trees.Unstorable, match=rf"^a parameter of opt {why}"):
        kinetic.Training(name="t").restore({"opt": optimizer})
    kinetic.Training(name="t").restore({"ema": Around(np.zeros(2), np.ones(2))})


class Sharded(DTensor):
    """A parameter of which a process has its share of the rows, as torch divides them."""

    __module__ = "torch.distributed.tensor"

    def __init__(self, shape: tuple[int, ...], rank: int, processes: int) -> None:
        super().__init__(processes)
        each = -(-shape[0] // processes)
        self.shape = shape
        self._local = np.zeros((max(0, min(each, shape[0] - rank * each)), *shape[1:]))

    def detach(self) -> Any:
        return self

    def to_local(self) -> Any:
        return self._local


KEEPS: dict[str, Callable[[Any], Any]] = {
    "its shard": lambda parameter: {"momentum": parameter.to_local()},
    "all of it": lambda parameter: {"momentum": np.zeros(parameter.shape)},
    "its shard of some": lambda parameter: {
        "momentum": parameter.to_local() if parameter.shape == MATRIX else np.zeros(parameter.shape)
    },
    "a count": lambda _: {"step": np.zeros(1)},
    "one entry": lambda _: {"scale": np.zeros(1)},
}
VECTOR, MATRIX = (3,), (3, 4)  # rows that neither two nor four processes have in equal parts


@pytest.mark.parametrize(
    ("keeps", "shapes", "refused"),
    [
        ("its shard", [MATRIX, VECTOR], "0/momentum"),
        ("its shard", [VECTOR], "0/momentum"),
        ("its shard", [(1, 4), MATRIX], "1/momentum"),
        ("its shard", [(1, 4)], None),  # the first process has all of it, and writes it
        ("its shard of some", [(5, 4), MATRIX], "1/momentum"),
        ("all of it", [MATRIX, VECTOR], None),
        ("all of it", [VECTOR], None),
        ("a count", [MATRIX, VECTOR], None),
        ("a count", [VECTOR], None),  # on some processes of the size of the shard
        ("one entry", [MATRIX, VECTOR], None),
        ("one entry", [VECTOR], "0/scale"),  # which some processes cannot tell from a shard
    ],
)
@pytest.mark.parametrize("processes", [2, 4])
def test_all_processes_refuse_the_same_plain_tensors_of_an_optimizer(
    keeps: str, shapes: list[tuple[int, ...]], refused: str | None, processes: int
) -> None:
    said = set()
    for rank in range(processes):
        parameters = [Sharded(shape, rank, processes) for shape in shapes]
        optimizer = SimpleNamespace(param_groups=[{"params": parameters}])
        state = {"state": {number: KEEPS[keeps](one) for number, one in enumerate(parameters)}}
        said.add(spread.check_optimizer(optimizer, state, "opt"))
    (why,) = said
    wanted = f"opt/state/{refused} is a plain tensor of the size of this process' shard" if refused else ""
    assert why.startswith(wanted) and bool(why) == bool(refused)


@pytest.mark.parametrize("state", [{"state": [np.zeros(2)]}, {"state": None}, {}, [3]])
def test_an_optimizer_of_ones_own_may_have_a_state_of_another_form(state: Any) -> None:
    optimizer = SimpleNamespace(param_groups=[{"params": [Sharded(MATRIX, 0, 2)]}])
    assert spread.check_optimizer(optimizer, state, "opt") == ""


def test_jax_is_not_asked_for_devices_of_what_it_does_not_know() -> None:
    code = (
        "import jax, numpy\nfrom jax._src import xla_bridge\nfrom kinetic_orchestration.program.checkpoints import trees\n"
        "print(trees.devices({'w': numpy.zeros(2)}), xla_bridge.backends_are_initialized())\n"
        "print(trees.devices({'w': jax.numpy.zeros(2)}))"
    )
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "3"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150, env=environ)
    assert done.stdout == "0 False\n3\n", done.stderr


def test_what_need_not_be_each_hosts_own_is_not() -> None:
    from kinetic_orchestration.program.trainers.keras_callback import _Kept, _Late
    from kinetic_orchestration.program.trainers.keras_others import Others

    assert trees.own(random.Random(1))
    assert not trees.own(_Kept(Others(), _Late(None)))


BEST = """
import sys
from pathlib import Path
import keras
from kinetic_orchestration.program.trainers.keras_others import Others

def met(path):
    one = keras.callbacks.ModelCheckpoint(str(path), save_best_only=True)
    others = Others()
    others.meet([one])
    return others, one

for name in ("best.keras", "best-{epoch:02d}-[{val_loss:.2f}].keras"):
    for here in (True, False):
        path = Path(sys.argv[1]) / str(here) / name
        path.parent.mkdir(exist_ok=True)
        before, one = met(path)
        fresh, one.best = one.best, 0.25
        if here:
            Path(str(path).format(epoch=3, val_loss=0.25)).touch()
        others, again = met(path)
        others.set_state(before.get_state())
        said = []
        others.give_back(said.append)
        assert again.best == (0.25 if here else fresh), (name, here, again.best)
        assert [("best so far, 0.25" in text, "checkpoint_path()" in text) for text in said] == [(True, True)] * (not here)
print("seen")
"""


@pytest.mark.slow
@pytest.mark.turn(6)
def test_a_best_value_whose_file_is_not_on_this_host_is_none(tmp_path: Path) -> None:
    """Else a worse model would never be written, and there would be no file at all."""
    environ = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", BEST, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, env=environ)
    assert done.stdout == "seen\n", done.stderr


def test_nothing_is_pickled_and_a_kept_state_that_would_have_to_be_is_refused() -> None:
    class Odd:
        def get_state(self) -> Any:
            return {"where": object()}

        def set_state(self, _: Any) -> None: ...

    with pytest.raises(trees.Unstorable, match=r"the state of data/where holds a builtins\.object"):
        trees.host_part({"data": Odd()})


def test_a_part_is_a_safetensors_file(tmp_path: Path) -> None:
    """The format's page demands a length, a header whose offsets follow each other to the end, and no gaps."""
    state = {"a": np.arange(3, dtype=np.float32), "b": ARRAYS[ml_dtypes.bfloat16], "c": ARRAYS["complex128"], "n": 1}
    parts.write(str(tmp_path / "part"), trees.host_part(state))
    data = (tmp_path / "part").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert all(isinstance(value, str) for value in header.pop("__metadata__").values())
    at = 0
    for told in header.values():
        assert told["data_offsets"][0] == at
        at = told["data_offsets"][1]
    assert 8 + length + at == len(data)
    assert [told["dtype"] for told in header.values()] == ["F32", "BF16", "U8"]
    first, last = header["a"]["data_offsets"]
    assert np.frombuffer(data[8 + length + first : 8 + length + last], np.float32).tolist() == [0, 1, 2]


@pytest.mark.parametrize("harm", ["cut", "grown", "flipped", "emptied"])
def test_a_torn_part_is_not_believed(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "part"
    told = parts.write(str(path), trees.host_part({"a": np.arange(1000)}))
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(
        {"cut": bytes(data[:-1]), "grown": bytes(data) + b"x", "flipped": bytes(data), "emptied": b""}[harm]
    )
    with pytest.raises(parts.Torn):
        parts.Opened(str(path), told)


def sized(header: bytes, length: int = -1) -> bytes:
    return (len(header) if length < 0 else length).to_bytes(8, "little") + header


DEEP = b"[" * 200_000


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff" * 100, sized(b"{}", 1 << 62), sized(b"{}", 1 << 40), sized(DEEP),
        sized(json.dumps({"__metadata__": {"kinetic": DEEP.decode()}}).encode()),
    ],
    ids=["empty", "garbage", "longest", "long", "deep", "deep within"],
)  # fmt: skip
def test_what_is_no_part_is_torn_though_a_commit_vouches_for_its_bytes(tmp_path: Path, data: bytes) -> None:
    """As whoever can write to the bucket may have both: the checkpoint before it is taken."""
    path = tmp_path / "part"
    path.write_bytes(data)
    with pytest.raises(parts.Torn):
        parts.Opened(str(path), Part(len(data), of_bytes(data)))
    with pytest.raises(parts.Torn):
        parts.pieces_of(lambda start, end: data[start : min(end, len(data))])


@pytest.mark.parametrize("seed", range(20))
def test_any_rectangle_is_put_together_of_any_pieces(seed: int, tmp_path: Path) -> None:
    """Pieces as a sharding may cut them; what is asked for as another would."""
    chance = random.Random(seed)
    shape = tuple(chance.randint(1, 6) for _ in range(chance.randint(0, 4)))
    whole = np.arange(prod(shape), dtype=np.int32).reshape(shape)
    state = trees.HostPart(leaves={"a": Leaf("int32", shape)}, dtypes={"a": "int32"})

    def cut(start: tuple[int, ...], of: tuple[int, ...]) -> None:
        wide = [axis for axis, size in enumerate(of) if size > 1]
        if not wide or chance.random() < 0.2:
            piece = np.ascontiguousarray(whole[tuple(slice(a, a + n) for a, n in zip(start, of, strict=True))])
            state.pieces.append(trees.Piece("a", start, of, memoryview(piece.reshape(-1).view(np.uint8))))
            return
        axis = chance.choice(wide)
        at = chance.randint(1, of[axis] - 1)
        cut(start, (*of[:axis], at, *of[axis + 1 :]))
        cut((*start[:axis], start[axis] + at, *start[axis + 1 :]), (*of[:axis], of[axis] - at, *of[axis + 1 :]))

    cut((0,) * len(shape), shape)
    opened = parts.Opened(str(tmp_path / "part"), parts.write(str(tmp_path / "part"), state))
    for _ in range(10):
        start = tuple(chance.randrange(size) for size in shape)
        wanted = tuple(chance.randint(1, size - at) for size, at in zip(shape, start, strict=True))
        into = trees.new_buffer(4 * prod(wanted))
        assert opened.copy("a", Leaf("int32", wanted), start, into) == prod(wanted)
        expected = whole[tuple(slice(a, a + n) for a, n in zip(start, wanted, strict=True))]
        assert np.frombuffer(into, np.int32).reshape(wanted).tolist() == expected.tolist()
        by_chunks = ranged(tmp_path / "part", chance.choice((64, 100)))
        again = trees.new_buffer(4 * prod(wanted))
        assert by_chunks.look("a", start, wanted) == by_chunks.copy("a", Leaf("int32", wanted), start, again)
        assert again == into
        by_chunks.close()
    opened.close()


def ranged(path: Path, chunk: int) -> parts.Ranged:
    """The same part by its chunks, each fetched once at most into an empty file."""
    data, empty = path.read_bytes(), path.with_name("empty")
    leaves = [of_chunk(data[at : at + chunk]) for at in range(0, len(data), chunk)]
    fetched: set[int] = set()

    def fetch(begin: int, end: int) -> bytes:
        assert begin not in fetched
        fetched.add(begin)
        return data[begin:end]

    empty.write_bytes(bytes(len(data)))
    return parts.Ranged(str(empty), Part(len(data), of_leaves(leaves), chunk), b"".join(leaves), fetch)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux begins to store on request")
def test_the_disk_begins_with_a_part_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunk by chunk, all of it and with the system's consent; the file is the same as without."""
    begin, ranges = kernel.call("sync_file_range"), []
    assert begin is not None

    def watched(file: int, offset: int, size: int, flags: int) -> int:
        ranges.append((offset, size))
        told = begin(file, offset, size, flags)
        assert told == 0
        return told

    monkeypatch.setattr(kernel, "call", {"sync_file_range": watched}.get)
    state = trees.host_part({"w": np.arange(3 << 20), "n": 7})
    durable = parts.write(str(tmp_path / "durable"), state, durable=True)
    assert parts.write(str(tmp_path / "plain"), state) == durable
    assert (tmp_path / "plain").read_bytes() == (tmp_path / "durable").read_bytes()
    reached = 0
    for offset, size in sorted(ranges):
        assert offset == reached
        reached += size
    assert reached == durable.size and len(ranges) == -(-durable.size // parts.CHUNK)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such calls")
def test_a_disk_without_room_for_a_part_is_told_before_anything_is_written(tmp_path: Path) -> None:
    code = """
        import os, resource, sys
        import numpy as np
        from kinetic_orchestration.program.checkpoints import parts, trees

        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
        try:
            parts.write(sys.argv[1], trees.host_part({"w": np.ones(2 << 20, np.uint8)}))
        except OSError as error:
            print(error.errno, os.path.getsize(sys.argv[1]))
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "part")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [str(errno.EFBIG), "0"], done.stderr
