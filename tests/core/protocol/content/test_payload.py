"""The file that carries one value: format, integrity, outcomes that cannot travel."""

from __future__ import annotations

import base64
import contextlib
import errno
import gc
import importlib.util
import os
import subprocess
import sys
import textwrap
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.protocol.content import digest, payload
from kinetic_orchestration.protocol.content.payload import Tampered, dump, dump_exception, dump_value, load
from tests.support.interpreters import OLDEST, required

pytestmark = pytest.mark.fast

MIB = 1 << 20


@pytest.mark.parametrize("value", [None, 0, "", b"", [], {"a": (1, 2.5)}, list(range(1000)), "ü" * 10, bytes(3 * MIB)])
def test_any_plain_value_comes_back(value: Any, tmp_path: Path) -> None:
    sent, size = dump(value, tmp_path / "p")
    assert load(tmp_path / "p", sent) == value
    assert (tmp_path / "p").stat().st_size == size
    assert digest.of_bytes((tmp_path / "p").read_bytes()) == sent


def test_a_large_array_comes_back_writeable_aligned_and_private(tmp_path: Path) -> None:
    array = np.arange(3 * digest.CHUNK + 17, dtype=np.uint8)
    sent, _ = dump({"x": array, "y": array[5:]}, tmp_path / "p")
    first, second = load(tmp_path / "p", sent), load(tmp_path / "p", sent)
    assert np.array_equal(first["x"], array) and np.array_equal(first["y"], array[5:])
    assert first["x"].ctypes.data % payload.ALIGNMENT == 0
    first["x"][:] = 7
    assert np.array_equal(second["x"], array)
    assert digest.of_bytes((tmp_path / "p").read_bytes()) == sent


def test_a_read_only_array_stays_read_only(tmp_path: Path) -> None:
    array = np.zeros(MIB)
    array.flags.writeable = False
    dump(array, tmp_path / "p")
    assert not load(tmp_path / "p").flags.writeable


@pytest.mark.parametrize("size", [0, 1, payload.IN_BAND - 1, payload.IN_BAND, payload.MAPPED - 500, payload.MAPPED + 1])
def test_buffers_of_every_size_come_back(size: int, tmp_path: Path) -> None:
    array = np.arange(size, dtype=np.uint8)
    sent, _ = dump([array, array], tmp_path / "p")
    a, b = load(tmp_path / "p", sent)
    assert np.array_equal(a, array) and a is b


def test_arrays_that_are_not_contiguous_come_back(tmp_path: Path) -> None:
    array = np.arange(4 * MIB).reshape(1024, -1)
    values = [array.T, array[::2, ::3], np.asfortranarray(array), array[::-1]]
    sent, _ = dump(values, tmp_path / "p")
    assert all(np.array_equal(a, b) for a, b in zip(load(tmp_path / "p", sent), values, strict=True))


def test_a_hundred_thousand_small_buffers_stay_in_band(tmp_path: Path) -> None:
    values = [bytearray(b"%d" % number) for number in range(100_000)]
    sent, size = dump(values, tmp_path / "p")
    assert load(tmp_path / "p", sent) == values
    assert size < 4 * MIB


def test_many_results_do_not_keep_their_files_open(tmp_path: Path) -> None:
    dump(np.zeros(MIB, np.uint8), tmp_path / "p")
    kept = [load(tmp_path / "p") for _ in range(50)]
    assert _times_open(tmp_path / "p") == 0
    assert len(kept) == 50


def test_a_value_that_is_dropped_frees_its_memory_at_once(tmp_path: Path) -> None:
    dump(np.zeros(2 * payload.MAPPED, np.uint8), tmp_path / "p")
    gc.collect()
    gc.disable()
    try:
        value = load(tmp_path / "p")
        assert _times_open(tmp_path / "p") == (sys.version_info < (3, 13))
        del value
        assert _times_open(tmp_path / "p") == 0
    finally:
        gc.enable()


def _times_open(path: Path) -> int:
    """The number of times that this process, which opens and closes other files, has it open."""
    wanted, found = path.stat(), 0
    for file in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):
            found += os.path.samestat(os.fstat(int(file)), wanted)
    return found


@pytest.mark.parametrize("size", [100, payload.IN_BAND * 2, digest.CHUNK * 3])
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_f29_a_changed_byte_is_noticed_before_anything_is_unpickled(size: int, where: str, tmp_path: Path) -> None:
    path = tmp_path / "p"
    sent, length = dump(np.arange(size, dtype=np.uint8), path)
    with path.open("r+b") as file:
        file.seek({"first": 0, "middle": length // 2, "last": length - 1}[where])
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(Tampered, match="digest"):
        load(path, sent)


def test_f29_a_file_that_is_cut_off_is_noticed_even_without_a_digest(tmp_path: Path) -> None:
    path = tmp_path / "p"
    _, size = dump(np.arange(MIB), path)
    for length in (size - 1, size // 2, 9, 0):
        os.truncate(path, length)
        with pytest.raises(Tampered):
            load(path)


class Exploding:
    def __reduce__(self) -> Any:
        raise RuntimeError("not me")


def test_a_failure_leaves_no_file_and_no_thread(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="not me"):
        dump([bytes(3 * digest.CHUNK), Exploding()], tmp_path / "p")
    assert not (tmp_path / "p").exists()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kinetic-digest")]


def test_a_full_disk_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    """A file size limit stands for the full disk, in a process of its own."""
    code = f"""
        import resource, signal, sys
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10 << 20, 10 << 20))
        from kinetic_orchestration.protocol.content import payload
        try:
            payload.dump(bytes(30 << 20), {str(tmp_path / "p")!r})
        except OSError as error:
            sys.exit(error.errno)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], timeout=60)
    assert done.returncode == errno.EFBIG
    assert not (tmp_path / "p").exists()


def test_a_digest_is_the_same_whatever_pieces_it_came_in(tmp_path: Path) -> None:
    data = os.urandom(2 * digest.CHUNK + 12345)
    for step in (1000, 70_000, digest.CHUNK - 1, digest.CHUNK, len(data)):
        with (tmp_path / "f").open("wb") as file, digest.Hasher(file.fileno()) as hasher:
            for start in range(0, len(data), step):
                hasher.update(data[start : start + step])
            assert hasher.digest() == digest.of_bytes(data)
        assert (tmp_path / "f").read_bytes() == data


def test_importing_it_is_quick_and_needs_the_standard_library_only() -> None:
    code = "import kinetic_orchestration.protocol.content.payload, sys; print(*sorted(sys.modules))"
    names = subprocess.run(
        [sys.executable, "-I", "-S", "-X", "utf8", "-c", _with_path(code)], capture_output=True, text=True
    )
    assert names.returncode == 0, names.stderr
    slow = {
        "asyncio",
        "concurrent.futures",
        "logging",
        "subprocess",
        "inspect",
        "dataclasses",
        "typing",
        "cloudpickle",
    }
    assert not slow & (set(names.stdout.split()) - {"typing"})


def _with_path(code: str) -> str:
    return (
        f"import sys; sys.path.insert(0, {str(Path(payload.__file__).parents[payload.__name__.count('.')])!r}); {code}"
    )


def test_a_result_is_recorded_with_its_digest(tmp_path: Path) -> None:
    record = dump_value({"loss": (0.5,)}, tmp_path / "out")
    assert (record["kind"], record["format"]) == ("value", "")
    assert load(tmp_path / "out", record["digest"], role=payload.VALUE) == {"loss": (0.5,)}


def test_a_result_that_cannot_be_pickled_is_named_with_its_repr(tmp_path: Path) -> None:
    record = dump_value((number for number in range(3)), tmp_path / "out")
    assert record["kind"] == "unpicklable"
    assert "generator" in record["message"] and "<genexpr>" in record["repr"]
    assert not (tmp_path / "out").exists()


class BrokenRepr:
    def __reduce__(self) -> Any:
        raise TypeError("never")

    def __repr__(self) -> str:
        raise ValueError("nor this")


def test_even_a_result_without_a_repr_is_named(tmp_path: Path) -> None:
    record = dump_value(BrokenRepr(), tmp_path / "out")
    assert record["reason"] == "never"
    assert "BrokenRepr instance" in record["repr"]


class Plain(Exception):
    pass


class NeedsTwo(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class HoldsLock(Exception):
    def __init__(self) -> None:
        super().__init__("busy")
        self.lock = threading.Lock()


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def _raised(error: BaseException) -> BaseException:
    try:
        try:
            raise KeyError("the first trouble")
        except KeyError as first:
            raise error from first
    except BaseException as caught:
        return caught


def test_an_exception_keeps_its_class_and_its_whole_story(tmp_path: Path) -> None:
    record = dump_exception(_raised(Plain("wrong shape", 3)), tmp_path / "out")
    error = load(tmp_path / "out", record["digest"], role=payload.EXCEPTION)
    assert type(error) is Plain and error.args == ("wrong shape", 3)
    assert "the first trouble" in record["traceback"] and "direct cause" in record["traceback"]
    assert record["message"] == "('wrong shape', 3)"


def test_a_traceback_begins_after_the_frames_of_who_called_and_of_this_module(tmp_path: Path) -> None:
    caller, user = tmp_path / "ours" / "child.py", tmp_path / "project" / "job.py"
    (tmp_path / "out").write_bytes(b"no pickle")
    ours: dict[str, Any] = {"__name__": "ours.child", "payload": payload, "users": {}}
    exec(compile("def call(function):\n    return function()\n", caller, "exec"), ours)
    exec(compile("def function():\n    raise ValueError('odd')\n", user, "exec"), ours["users"])

    def begin(function: Any) -> str:
        with pytest.raises(Exception) as caught:
            ours["call"](function)
        caught.value.__traceback__ = caught.tb.tb_next  # without this test's own
        record = dump_exception(caught.value, tmp_path / "sent", ours="ours.child")
        return str(record["traceback"]).splitlines()[1]

    assert begin(ours["users"]["function"]) == f'  File "{user}", line 2, in function'
    assert f'File "{caller}"' not in begin(lambda: load(tmp_path / "out", role=payload.EXCEPTION))


def test_an_exception_comes_back_with_what_it_was_raised_from(tmp_path: Path) -> None:
    first, second, error = KeyError("first"), Plain("second"), NeedsTwo(3, "third")
    error.__cause__, second.__cause__ = second, first
    record = dump_exception(error, tmp_path / "out")
    copy = load(tmp_path / "out", record["digest"], role=payload.EXCEPTION)
    assert (str(copy), copy.code, str(copy.__cause__)) == ("3: third", 3, "second")
    assert isinstance(copy.__cause__.__cause__, KeyError) and copy.__cause__.__cause__.__cause__ is None
    first.__cause__ = HoldsLock()  # one that cannot travel does not keep the error itself back
    record = dump_exception(error, tmp_path / "out")
    assert load(tmp_path / "out", record["digest"], role=payload.EXCEPTION).__cause__ is None


def test_an_exception_whose_init_wants_more_than_its_args_comes_back_as_itself(tmp_path: Path) -> None:
    record = dump_exception(_raised(NeedsTwo(3, "x")), tmp_path / "out")
    error = load(tmp_path / "out", record["digest"], role=payload.EXCEPTION)
    assert type(error) is NeedsTwo and (error.code, str(error)) == (3, "3: x")


def test_an_exception_that_would_not_come_back_is_kept_as_text(tmp_path: Path) -> None:
    record = dump_exception(_raised(HoldsLock()), tmp_path / "out")
    assert "digest" not in record and "lock" in record["reason"]
    assert record["type"].endswith("HoldsLock") and "HoldsLock" in record["traceback"]
    assert not (tmp_path / "out").exists()


def test_an_exception_whose_text_raises_is_still_recorded(tmp_path: Path) -> None:
    record = dump_exception(_raised(NoText()), tmp_path / "out")
    assert "RuntimeError" in record["message"]
    assert "NoText" in record["traceback"]


def test_a_traceback_has_a_bound(tmp_path: Path) -> None:
    record = dump_exception(_raised(Plain("x" * 10 * MIB)), tmp_path / "out")
    assert len(record["traceback"]) < MIB and len(record["message"]) < MIB


# Written before the package had rooms, compressed: a status and the options of a job, and an exception with its cause.
OLD_VALUE = (
    'c-r&!4|DVhbv0^WovOgd00tU8GTE7VsU?}o@%cr`8L7o3MTsSu`FVO}i8-aI#Z!7Xz4DWSOA<>;i>FKm@`6L1on2jBTwSKLP6?WVOLI<UZe|'
    'HkGn)^DF?ot+<CNGb8h*Y4e13j@sYw}ZJ*+{gB}J8RDQ^bv6mRC#q#h~kMiv*OCQs>M4JjxM%Y|#|;VLcGO-(E=G1X0+;?3B@FeO721UouGq'
    '-HIU3p7y{yNLxw`DvLssZ)B`1E4IpGyS|-y%|!IN~Y*lD-~oWXXm6AD_JQRSz78SC?%DqrKJ{u_|dVo@{mwu@P>vg0DJs?5C'
)  # fmt: skip
OLD_ERROR = (
    'c-r&!4|4Pjb~S2Xom$BN0X@punR%%tnaT0_Madbd#U(|FC7JnodWq?&c_n%UiIq9|i78Wh*pd@Vi&ImkOrFxikyM(QQ<9li3}kwzR=O4y<rj'
    'g(Su^wUQj4avP6-0y4CWrLu*96wRD^VXX$e%i4T$xsl?pPGvvX35m8=vDjg52^l#)u*(o%~+{OH(Pd8qrmp-u(>E)GJk'
)  # fmt: skip


def old(text: str, folder: Path) -> tuple[Path, str]:
    """Returns a file with those bytes, and their digest."""
    path = folder / "old"
    path.write_bytes(zlib.decompress(base64.b85decode(text)))
    return path, digest.of_bytes(path.read_bytes())


def test_what_was_pickled_before_modules_moved_is_read_as_what_it_was(tmp_path: Path) -> None:
    status, limits, retry, cloud, profile = load(*old(OLD_VALUE, tmp_path), role=payload.VALUE)
    assert (status, limits) == (kinetic.JobStatus.SUCCEEDED, kinetic.Limits(run=3600))
    assert (retry, cloud, profile) == (kinetic.Retry(), kinetic.TpuVm(zones="us-east5-a"), kinetic.Profile())
    error = load(*old(OLD_ERROR, tmp_path), role=payload.EXCEPTION)
    assert (type(error), error.args, error.__cause__.args) == (ValueError, ("outer",), ("inner",))


def test_every_module_that_has_moved_is_where_the_table_says() -> None:
    for was, now in payload.MOVED.items():
        assert importlib.util.find_spec(now) is not None, (was, now)


def test_a_value_written_by_this_python_is_read_by_the_oldest_agent(tmp_path: Path) -> None:
    """Python 3.10, when this machine has one."""
    python = required(OLDEST)
    sent, _ = dump({"x": bytearray(b"abc" * MIB)}, tmp_path / "p")
    code = _with_path(
        f"from kinetic_orchestration.protocol.content import payload;"
        f"v = payload.load({str(tmp_path / 'p')!r}, {sent!r}); print(len(v['x']));"
        f"print(payload.dump_value(v, {str(tmp_path / 'q')!r})['kind'])"
    )
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [str(3 * MIB), "value"], done.stderr


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measured in /proc")
def test_resident_memory_is_not_doubled(tmp_path: Path) -> None:
    """Dump and load of 128 MiB take little in addition, in a process of its own."""
    code = f"""
        import pathlib
        import numpy as np
        from kinetic_orchestration.protocol.content import payload
        def peak():  # of this process alone: the one in getrusage() is inherited
            status = pathlib.Path("/proc/self/status").read_text()
            return int(status.partition("VmHWM:")[2].split()[0]) * 1024
        size = 128 << 20
        array = np.ones(size, np.uint8)
        before = peak()
        sent, _ = payload.dump(array, {str(tmp_path / "p")!r})
        print((peak() - before) / size)
        sent, _ = payload.dump(bytes(array.data), {str(tmp_path / "q")!r})
        before = peak()
        kept = payload.load({str(tmp_path / "q")!r}, sent)
        print((peak() - before) / size)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    sending, receiving = map(float, done.stdout.split())
    assert sending < 0.2
    assert receiving < 2.2  # the mapped file, which the system may drop, and the bytes object made of it
