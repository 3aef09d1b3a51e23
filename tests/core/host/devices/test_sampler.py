"""The measurements of a host's devices: from /proc of real processes; accelerators by stand-ins at the boundary.

No accelerator is at hand. Where the vendor's library would be, there is a module of its name with its documented
functions (docs.cloud.google.com/tpu/docs/tpu-monitoring-library; nvidia-ml-py), or a program named nvidia-smi.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_orchestration.host.devices import device_reader, sampler
from kinetic_orchestration.host.devices.sampler import Sampler
from kinetic_orchestration.packaging.requirements.resolution import find_uv
from kinetic_orchestration.protocol.system import processes
from tests.support.waits import wait_until

GIB = 1 << 30
LIBTPU = """
class Metric:
    def __init__(self, values):
        self.values = values
    def data(self):
        return self.values
DATA = {
    "duty_cycle_pct": ["10.00", "20.00", "30.00", "40.00"],
    "hbm_capacity_usage": [str(gib << 30) for gib in (1, 2, 3, 4)],
    "hbm_capacity_total": [str(16 << 30)] * 4,
}
class tpumonitoring:
    @staticmethod
    def get_metric(name):
        print("what a library says")
        return Metric(DATA[name])
"""
PYNVML = """
from types import SimpleNamespace
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 3
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetMemoryInfo(handle): return SimpleNamespace(used=(handle + 1) << 30, total=80 << 30, free=0)
def nvmlDeviceGetUtilizationRates(handle): return SimpleNamespace(gpu=10 * handle, memory=1)
"""
SMI = """#!/bin/sh
test "$1" = --query-gpu=index,utilization.gpu,memory.used,memory.total || exit 9
printf '0, 12, 1024, 81920\\n1, 97, 40960, 81920\\n'
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A job's environment: a Python with packages of its own, which sees no others."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True, timeout=60)
    return tmp_path / "venv/bin/python"


def site(python: Path) -> Path:
    return next(python.parent.parent.glob("lib/python*/site-packages"))


@contextlib.contextmanager
def burning() -> Iterator[None]:
    """A program that takes half a core and 100 MiB, in a process of its own below another one."""
    burn = "import time; kept = bytearray(b'x') * (100 << 20)\nwhile True:\n t = time.thread_time() + .02\n"
    burn += " while time.thread_time() < t: pass\n time.sleep(.02)"
    started = subprocess.Popen(["sh", "-c", f'"{sys.executable}" -c "$1"; true', "sh", burn], start_new_session=True)
    try:
        yield
    finally:
        os.killpg(started.pid, 9)
        started.wait()


def first(reading: Sampler) -> dict[str, object]:
    """The first sample that has devices, or says why not."""
    found: dict[str, object] = {}

    def there() -> bool:
        found.update(reading.sample(time.monotonic()))
        return "kind" in found or bool(reading.note)

    wait_until(there, within=30)
    return found


def test_cpu_and_memory_are_those_of_all_descendants_of_an_agent() -> None:
    reading = Sampler("cpu", sys.executable, {}, time.monotonic())
    first = reading.sample(time.monotonic())
    assert "cpu" not in first, "nothing to compare with"
    before = first["memory"]  # of servers of other tests
    found: dict[str, float] = {"memory": before}
    give_up = time.monotonic() + 30
    with burning():
        while not (found["memory"] - before > 0.09 and found["cpu"] > 0.03):
            assert time.monotonic() < give_up, found
            time.sleep(0.4)  # what is measured takes its time
            found = reading.sample(time.monotonic())
    assert found["cpu"] < 20.0  # a sample that is late counts more than its time
    assert found["memory"] - before < 1.0
    reading.close()


def test_a_sample_costs_next_to_nothing() -> None:
    reading = Sampler("", "", {}, time.monotonic())
    reading.sample(time.monotonic())
    before = time.thread_time()
    for _ in range(20):
        reading.sample(time.monotonic())
    cost = (time.thread_time() - before) / 20
    assert cost / sampler.PACE < 0.005, f"{cost * 1000:.1f} ms every {sampler.PACE:g} s"


@pytest.mark.parametrize("kind", ["tpu", "nvml", "nvml of some", "smi"])
def test_accelerators_are_read_in_the_jobs_own_environment(
    kind: str, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "LONGEST_END", 60.0)
    environ = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    if kind == "tpu":
        (site(python) / "libtpu").mkdir()
        (site(python) / "libtpu/__init__.py").touch()
        (site(python) / "libtpu/sdk.py").write_text(LIBTPU)
        wanted = {"kind": "tpu", "busy": [10, 20, 30, 40], "used": [1, 2, 3, 4], "total": [16] * 4}
    elif kind.startswith("nvml"):
        (site(python) / "pynvml.py").write_text(PYNVML)
        wanted = {"kind": "gpu", "busy": [0, 10, 20], "used": [1, 2, 3], "total": [80] * 3}
        if kind == "nvml of some":
            environ["CUDA_VISIBLE_DEVICES"] = "0,2"
            wanted = {"kind": "gpu", "busy": [0, 20], "used": [1, 3], "total": [80] * 2}
    else:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin/nvidia-smi").write_text(SMI)
        (tmp_path / "bin/nvidia-smi").chmod(0o755)
        wanted = {"kind": "gpu", "busy": [12, 97], "used": [1, 40], "total": [80] * 2}
    reading = Sampler("tpu" if kind == "tpu" else "gpu", str(python), environ, time.monotonic())
    reader = reading._reader
    try:
        found = first(reading)
        assert {key: found[key] for key in wanted} == wanted
        assert not reading.note
        os.kill(reader, signal.SIGSTOP)  # as one that hangs in a driver
        reading.sample(now := time.monotonic())
        assert "kind" in reading.sample(now + 30)
        assert "kind" not in reading.sample(now + 100), "what was so is not shown for ever"
    finally:
        reading.close()
    assert processes.find(reader) is None, "whoever asks whether the program left anything running means the program"


@pytest.mark.parametrize(
    ("kind", "told"),
    [("tpu", "ModuleNotFoundError: No module named 'libtpu'"), ("gpu", "No such file or directory: 'nvidia-smi'")],
)
def test_where_nothing_can_be_read_it_is_said_once(kind: str, told: str, python: Path) -> None:
    reading = Sampler(kind, str(python), {"PATH": ""}, time.monotonic())
    found = first(reading)
    assert reading.note.startswith("what the accelerators do is not known: ")
    assert told in reading.note
    assert "kind" not in found
    assert "memory" in found
    wait_until(lambda: any(pid == reading._reader for pid, _ in ended(reading)), within=30)
    reading.close()


HANGS = """
import ctypes, os, time
libc, reader = ctypes.CDLL(None), os.getpid()
libc.prctl(0x59616D61, -1, 0, 0, 0)  # anybody may trace it
if os.fork() == 0:
    os.setsid()
    open({told!r}, "w").write(str(libc.ptrace(0x4206, reader, 0, 0)) + " " + str(os.getpid()))
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ptrace")
def test_a_reader_that_does_not_even_end_when_it_is_killed_holds_nobody_up(tmp_path: Path) -> None:
    """A reader may hang in a driver: a traced process cannot be reaped before its tracer releases it."""
    told, program, python = tmp_path / "told", tmp_path / "hangs.py", tmp_path / "python"
    program.write_text(HANGS.format(told=str(told)), encoding="utf-8")
    # An interpreter's path may hold spaces, which a first line that names it may not.
    python.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(program))}\n", encoding="utf-8")
    python.chmod(0o755)
    reading = Sampler("gpu", str(python), dict(os.environ), time.monotonic())
    reader = reading._reader
    wait_until(lambda: told.exists() and " " in told.read_text(), within=30)
    failed, tracer = map(int, told.read_text().split())
    if failed:
        os.kill(tracer, 9)
        reading.close()
        pytest.skip("nobody may trace another process here")
    try:
        before = time.monotonic()
        reading.close()
        assert time.monotonic() - before < 30  # of the 60 s that the tracer would stay
        assert processes.find(reader) is not None
    finally:
        os.kill(tracer, 9)
        wait_until(lambda: os.waitpid(reader, os.WNOHANG)[0] == reader, within=30)


def ended(reading: Sampler) -> list[tuple[int, int]]:
    """Reap ended processes like the agent, and return the reader's."""
    found = processes.reap()
    return [each for each in found if each[0] == reading._reader]


def test_a_reader_ends_when_nobody_reads_it(python: Path) -> None:
    (site(python) / "pynvml.py").write_text(PYNVML)
    script = device_reader.__file__
    started = subprocess.Popen([python, "-I", script, "gpu", "0.05"], stdout=subprocess.PIPE)
    assert started.stdout is not None
    assert json.loads(started.stdout.readline())["kind"] == "gpu"
    started.stdout.close()
    assert started.wait(30) == 0


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_googles_own_library_asks_the_runtime_of_another_process(tmp_path: Path) -> None:
    """The unmodified libtpu, and a gRPC server in place of the runtime of the process that has the chips."""
    from tests.core.host.devices.tpu_runtime import serving

    uv = [find_uv(os.environ), "pip", "install", "-q", "--no-deps", "--target", str(tmp_path), "libtpu"]
    subprocess.run(uv, check=True, timeout=300)
    code = (
        "import sys, runpy; sys.path.insert(0, sys.argv.pop(1)); runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    )
    shape = {
        "CHIPS_PER_HOST_BOUNDS": "2,2,1",
        "HOST_BOUNDS": "1,1,1",
        "ACCELERATOR_TYPE": "v5litepod-4",
        "WORKER_ID": "0",
    }
    told = {**shape, **{f"TPU_{name}": value for name, value in shape.items()}}  # else it asks the metadata server
    wanted = {"kind": "tpu", "busy": [10, 20, 30, 40], "used": [1, 2, 3, 4], "total": [16] * 4}
    with serving():
        reader = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), device_reader.__file__, "tpu", "1"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, **told, "TPU_SKIP_MDS_QUERY": "1"},
        )  # fmt: skip
        try:
            assert reader.stdout is not None
            for _ in range(60):  # one a second: the runtime's first answers may be late, each by itself
                found = json.loads(reader.stdout.readline())
                if found == wanted:
                    break
        finally:
            reader.kill()
            reader.communicate()
    assert found == wanted
