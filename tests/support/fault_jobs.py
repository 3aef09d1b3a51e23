"""Functions that run as jobs in the tests of faults, logs and the agent. They travel from a copy in a small project
of its own, so that no host unpacks this whole repository."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import kinetic_orchestration as kinetic


def index() -> int:
    return kinetic.current().host_index


def wait_for(path: str, within: float = 300.0) -> None:
    deadline = time.monotonic() + within
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.005)


def attempt() -> int:
    return kinetic.current().attempt


def fence() -> tuple[int, int]:
    host = kinetic.current()
    return host.attempt, host.fence()


def hardware() -> tuple[int, int]:
    """The number of hosts, and of the devices of this one."""
    return kinetic.current().host_count, int(os.environ["JAX_NUM_CPU_DEVICES"])


def parent() -> int:
    """The process of the agent, as its machine numbers it."""
    return os.getppid()


def until(path: str) -> int:
    """Runs until the file is there; its value is the attempt that came so far."""
    print("running", flush=True)
    wait_for(path)
    return kinetic.current().attempt


def saves_slowly(folder: str, seconds: float) -> int:
    """The first attempt takes so long to save what it has once it is asked to end; the value is the attempt."""
    if attempt() > 1:
        return attempt()
    ended = False

    def end(*_: object) -> None:
        nonlocal ended
        ended = True

    signal.signal(signal.SIGTERM, end)
    Path(folder, f"runs-{index()}").touch()
    while not ended:
        time.sleep(0.05)
    time.sleep(seconds)
    Path(folder, f"saved-{index()}").touch()
    raise SystemExit(0)


def leaves_mark(marks: str) -> str:
    """Each run of it is a line in `marks`, and its value."""
    value = os.urandom(8).hex()
    with open(marks, "a", encoding="utf-8") as file:  # noqa: PTH123
        file.write(value + "\n")
    return value


def marks_and_waits(marks: str, path: str) -> None:
    leaves_mark(marks)
    wait_for(path)


def echoes(folder: str, culprit: int, pause: float) -> None:
    """One host fails; the others lose their connection to it, and say so `pause` seconds earlier or later."""
    there = Path(folder) / "failing"
    if index() == culprit:
        there.touch()
        time.sleep(max(0.0, -pause))
        raise ValueError("the learning rate is negative")
    wait_for(str(there))
    time.sleep(max(0.0, pause))
    raise ConnectionResetError(104, "Connection reset by peer")


def dies_in_gloo(folder: str, culprit: int) -> int:
    """In the first attempt gloo ends all hosts but one, in words that do not name a connection."""
    if attempt() > 1:
        return attempt()
    print("running", flush=True)
    if index() != culprit:
        wait_for(f"{folder}/lost")
        print(
            "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at "
            "external/gloo/gloo/transport/tcp/pair.cc:459] op.preamble.length <= op.nbytes. 384 vs 4. Received data size "
            "doesn't match expected size. Is there a distributed collective mismatch in your code?",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        os.abort()
    time.sleep(300)
    return 0


def one_is_killed(culprit: int, path: str) -> None:
    """One host's program is killed, while the others wait."""
    if index() == culprit:
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for(path)


def fails_first() -> int:
    if attempt() == 1:
        raise ValueError("the learning rate is negative")
    return attempt()


def trains_and_fails_first() -> list[int]:
    """Two trainings, with copies on the machine's disk and in its memory. Returns where the last attempt began."""
    found = []
    for where in ("disk", "memory"):
        with kinetic.Training(every=5, name=where, tier=where) as training:  # type: ignore[arg-type]
            state, begun = training.restore({"weights": "x" * 200_000})
            for number in range(begun, 5):
                training.step(number + 1, state)
            found.append(begun)
    if attempt() == 1:
        raise ValueError("the learning rate is negative")
    return found


def last_one_fails(folder: str) -> None:
    """Host 3 fails when the others have ended well."""
    if index() == 3:
        for other in range(3):
            wait_for(f"{folder}/{other}")
        time.sleep(0.3)
        raise ValueError("the last one")
    (Path(folder) / str(index())).touch()


def stuck() -> None:
    def hangs_here() -> None:
        time.sleep(120)

    print("then nothing")
    hangs_here()


def writes_environment(folder: str) -> None:
    """Each host leaves its program's variables in the folder, in a file named after it."""
    (Path(folder) / str(index())).write_text(json.dumps(dict(os.environ)))


def stubborn(seconds: float = 60.0) -> None:
    """Ignores every request to end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready")
    time.sleep(seconds)


def asked_to_end(said: str, handled: int = signal.SIGTERM, within: float = 60.0) -> bool:
    """Says something, and waits to be asked to end. The handler itself does not print: a print may be under way. Nor is
    it one long sleep: a signal just before that is heard after it.
    """
    asked: list[bool] = []
    signal.signal(handled, lambda *_: asked.append(True))
    print(said, flush=True)
    deadline = time.monotonic() + within
    while not asked and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(asked)


def has_last_words(handled: str = "SIGTERM") -> None:
    if asked_to_end("ready", getattr(signal, handled)):
        for number in range(100):
            print(f"last word {number}")
        sys.stdout.write("and the very last")
        sys.stdout.flush()
        os._exit(3)


def writes_lines(count: int, folder: str = "") -> int:
    for number in range(count):
        print(f"line {number} of host {index()}")
        if folder and number == count // 2:
            wait_for(folder)
    return count


def checkpoints(path: str) -> list[int]:
    """Every attempt leaves its number beside those of the attempts before it."""
    folder = Path(kinetic.current().checkpoint_dir)
    (folder / f"{attempt()}-{index()}").touch()
    if attempt() == 1:
        print("running", flush=True)
        wait_for(path)
    return sorted(int(entry.name.split("-")[0]) for entry in folder.iterdir() if entry.name.endswith("-0"))


def trains(steps: int, path: str) -> str:
    """Every step has a checkpoint and a line of each host; the value is where the checkpoints are."""
    wait_for(path)
    with kinetic.Training(every=1, name="t") as training:
        state, begun = training.restore({"n": 0})
        for step in range(begun, steps):
            state = {"n": state["n"] + 1}
            training.step(step + 1, state)
            print(f"step {step + 1} of host {index()}")
    return kinetic.current().checkpoint_dir


def resumes(folder: str, returns: bool = False, seconds: float = 0.5) -> list[str]:
    """Asked to end, it takes some seconds to save, and returns or exits; the attempt after it tells what it finds.

    folder: stands for what can be reached without a library at any address.
    """
    there = Path(folder) / kinetic.current().checkpoint_dir.replace(":", "")
    there.mkdir(parents=True, exist_ok=True)
    if saved := sorted(entry.name for entry in there.iterdir()):
        return saved

    if asked_to_end("running"):
        print("saving", flush=True)
        time.sleep(seconds)
        (there / f"saved by attempt {attempt()}").touch()
        if returns:
            return ["what it had so far"]
        sys.exit(1)
    return []


def fails_with_the_other(folder: str) -> int:
    """Host 0 fails, in words that no rule knows, as soon as the program of host 1 is gone."""
    import fcntl

    held = Path(folder) / "held"
    with open(f"{folder}/lock-{attempt()}", "a", encoding="utf-8") as file:  # noqa: PTH123
        if attempt() > 1:
            return attempt()
        if index() == 0:
            wait_for(str(held))
        fcntl.flock(file, fcntl.LOCK_EX)
        print("running", flush=True)
        if index() == 1:
            held.touch()
            time.sleep(300)
    raise RuntimeError("a remote process exited prematurely")


def topology() -> dict[str, str]:
    prefixes = ("JAX_", "TPU_", "MEGASCALE", "TF_CONFIG", "RANK", "MASTER_", "WORLD_", "CLOUD_TPU", "NODE_RANK")
    prefixes += ("NNODES", "NCCL_", "LD_LIBRARY_")
    return {name: value for name, value in os.environ.items() if name.startswith(prefixes)}


def meets() -> list[str]:
    """Every host tells the first one its place, at the address that programs get for that; the first returns all."""
    import socket

    at = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    own, count = f"{os.environ['JAX_PROCESS_ID']} of {os.environ['JAX_NUM_PROCESSES']}", int(os.environ["WORLD_SIZE"])
    if index():
        for _ in range(600):
            try:
                with socket.create_connection(at) as leader:
                    leader.sendall(own.encode())
                return []
            except ConnectionRefusedError:
                time.sleep(0.1)
        raise TimeoutError(f"nobody listens at {at}")
    found = [own]
    with socket.create_server(at) as server:
        server.settimeout(60)
        while len(found) < count:
            follower, _ = server.accept()
            with follower:
                found.append(follower.recv(100).decode())
    return sorted(found)


def daemons(folder: str, names: str = "session daemon") -> None:
    """A child in a session of its own, and a daemon that forked twice and forgot its environment."""
    code = (
        "import os, sys, time\n"
        "if len(sys.argv) > 2:\n"
        "    os.fork() and os._exit(0)\n    os.setsid()\n    os.fork() and os._exit(0)\n"
        "open(sys.argv[1] + '.part', 'w').write(str(os.getpid()))\n"
        "os.rename(sys.argv[1] + '.part', sys.argv[1])\ntime.sleep(120)"
    )
    if "session" in names:
        subprocess.Popen([sys.executable, "-c", code, f"{folder}/session"], start_new_session=True)
    if "daemon" in names:
        subprocess.Popen([sys.executable, "-c", code, f"{folder}/daemon", "twice"], env={}, start_new_session=True)
    for name in names.split():
        wait_for(f"{folder}/{name}")
    print("they are there")
    wait_for(f"{folder}/end")


def ends(how: str) -> int:
    if how == "os._exit(0)":
        os._exit(0)
    if how == "os._exit(7)":
        os._exit(7)
    if how == "SIGSEGV":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "real-time signal":
        os.kill(os.getpid(), 40)
    if how == "sys.exit(5)":
        sys.exit(5)
    if how == "sys.exit('a reason')":
        sys.exit("a reason")
    if how == "late":
        import atexit

        atexit.register(os._exit, 9)
    if how == "abort":
        import atexit

        atexit.register(os.abort)
    return 1


def leaves_a_checkpoint(when: str) -> int:
    """Return with a checkpoint on its way, as a loop without `finish` does, and abort before it is there or after it."""
    import ctypes

    import kinetic_orchestration as kinetic
    from kinetic_orchestration.program.checkpoints import background, store

    numpy: Any = __import__("num" + "py")  # else every job of this file, in pods too, would have it installed

    written = store.CheckpointStore.commit

    def commit(self: Any, record: Any) -> bool:
        wait_for(str(Path(os.environ["KINETIC_EVENTS"]).with_name("outcome.json")))
        if when == "first":
            os.abort()
        return written(self, record)

    store.CheckpointStore.commit = commit  # type: ignore[method-assign]
    if when == "last":  # as a thread of a library does
        libc = ctypes.CDLL(None)
        libc.__cxa_atexit(ctypes.cast(libc.abort, ctypes.c_void_p), None, None)
    training = kinetic.Training(every=1)
    training.step(1, {"w": numpy.zeros(background.LARGE, "uint8")})
    return 1


def leaves_a_file(url: str, checkpoints: str, when: str) -> int:
    """Write a file that is sent at the program's end, and abort before that or after it."""
    import atexit

    import kinetic_orchestration as kinetic

    os.environ.update({"STORAGE_EMULATOR_HOST": url, "KINETIC_CHECKPOINT_DIR": checkpoints})
    if when == "last":  # as a thread of a library does
        import ctypes

        libc = ctypes.CDLL(None)
        libc.__cxa_atexit(ctypes.cast(libc.abort, ctypes.c_void_p), None, None)
    folder = kinetic.current().checkpoint_path()
    if when == "first":
        atexit.register(os.abort)
    Path(folder, "model").write_text("weights")
    return 1


def lingers(pid: str, go: str) -> int:
    """Hang in a library's exit handler, after the end of Python: it waits for a child, which waits for a file."""
    import ctypes
    import subprocess

    libc = ctypes.CDLL(None)
    libc.__cxa_atexit(ctypes.cast(libc.wait, ctypes.c_void_p), None, None)
    child = subprocess.Popen(["sh", "-c", 'while [ ! -e "$0" ]; do sleep 0.05; done', go])
    child.returncode = 0  # or Python would complain that it goes on
    Path(pid).write_text(str(os.getpid()))
    return 4


def returns(what: str) -> Any:
    if what == "unpicklable":
        return (number for number in range(3))

    class Odd(Exception):
        """An exception whose arguments cannot be pickled."""

    raise Odd(1, (number for number in range(2)))


def of_host_0() -> str:
    return f"of host {index()}"


def writes_what(name: str, path: str = "") -> None:
    """All that a program may do to its output."""
    out = sys.stdout.buffer
    if name == "no final newline":
        out.write(b"first\nwithout an end")
    elif name == "progress bar":
        for percent in range(0, 101, 10):
            out.write(b"\r%3d%% done" % percent)
            out.flush()
        out.write(b"\nfinished\n")
    elif name == "carriage return and newline, apart":
        for number in range(5):
            out.write(b"line %d\r" % number)
            out.flush()
            time.sleep(0.001)
            out.write(b"\n")
            out.flush()
    elif name == "a megabyte":
        for letter in (b"a", b"b"):
            out.write(letter * (1 << 20) + b"\n")
    elif name == "invalid UTF-8":
        out.write(b"caf\xe9 \xff\xfe\x00 ok\n" + "größer, 大きい\n".encode())
    elif name == "a frame's own mark":
        out.write(b"\x1eo 12 4\nabcd\n\x1e\n")
    elif name == "a child that forks":
        child = os.fork()
        if child == 0:
            for number in range(20):
                os.write(1, b"child %d\n" % number)
                time.sleep(0.01)
            os._exit(0)
        for number in range(20):
            os.write(1, b"parent %d\n" % number)
            time.sleep(0.01)
        os.waitpid(child, 0)  # what is left when the program has ended is killed
        return
    elif name == "a child that never stops":
        begun, begins = os.pipe()
        if os.fork() == 0:
            while True:
                os.write(1, b"still here\n")
                os.write(begins, b".")
                time.sleep(0.02)
        os.read(begun, 1)
    elif name == "closes its output":
        out.write(b"before\n")
        out.flush()
        os.close(1)
        os.close(2)
        wait_for(path)
        os._exit(0)
    out.flush()


def one_by_one(path: str, lines: int = 3) -> None:
    """A line when the reader asks for one."""
    for number in range(lines):
        wait_for(f"{path}/{number}")
        print(f"line {number} {time.time()}")


def both_streams(count: int) -> None:
    for number in range(count):
        print(f"out {number}")
        print(f"err {number}", file=sys.stderr)


def metrics(count: int) -> None:
    host = kinetic.current()
    for number in range(count):
        host.log_metrics(step=number, loss=1.0 / (number + 1))
        host.progress(number + 1, count, unit="step")
        print(f"step {number}")


def flood(megabytes: int) -> None:
    for _ in range(megabytes):
        sys.stdout.write(("x" * 1023 + "\n") * 1024)


def driver_is_busy() -> None:
    raise RuntimeError("TPU initialization failed: open(/dev/vfio/0): Device or resource busy")


def prints_topology() -> None:
    import json

    print(json.dumps(topology()))


def driver_is_busy_at_first(says_so: bool) -> int:
    """Fail for a busy driver, in the traceback, or only in the output before another failure."""
    if attempt() == 1 and says_so:
        print("E0000 open(/dev/vfio/0): Device or resource busy", file=sys.stderr)
        sys.exit(7)
    if attempt() == 1:
        driver_is_busy()
    return attempt()


def imports_jax(name: str = "jax") -> str:
    """Import JAX by a name that no source contains, so that the other jobs of this file need no package."""
    return str(importlib.import_module(name).__version__)


def contents(folder: str) -> dict[str, str]:
    from kinetic_orchestration.protocol.content import digest

    files = (path for path in Path(folder).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): digest.of_bytes(path.read_bytes()) for path in files}


def fingerprint(names: list[str], path: str) -> dict[str, str]:
    """The digests of variables, whose values are not printed."""
    import hashlib

    print("running", flush=True)
    wait_for(path)
    return {name: hashlib.sha256(os.environ[name].encode()).hexdigest() for name in names if name in os.environ}


def variables(prefix: str) -> dict[str, str]:
    """The variables of the program's environment that begin so."""
    return {name: value for name, value in os.environ.items() if name.startswith(prefix)}


def descends(folder: str, steps: int, breaks: list[list[int]]) -> list[Any]:
    """The slope of a line by gradient descent over all hosts, whose sums meet in a folder. At each of `breaks`, a step
    and a number of hosts, they wait until that step's file `go` is there.
    """
    host, count = kinetic.current(), kinetic.current().host_count
    training = kinetic.Training(every=3, total=steps, per_host=4)
    state, begun = training.restore({"slope": 0.0, "momentum": 0.0})
    for step in range(begun, steps):
        if [step, count] in breaks:
            Path(folder, f"at-{step}-{host.host_index}").touch()
            wait_for(f"{folder}/go-{step}")
        rows = [row for part in training.indices() for row in part]
        told = f"{host.attempt}-{step}"
        own = [sum(part) for part in zip(*(_slope_at(state["slope"], row) for row in rows), strict=True)]
        _write(Path(folder, f"sum-{told}-{host.host_index}"), json.dumps([*own, rows]))
        every = []
        for other in range(count):
            wait_for(f"{folder}/sum-{told}-{other}")
            every.append(json.loads(Path(folder, f"sum-{told}-{other}").read_text(encoding="utf-8")))
        size = sum(len(one[2]) for one in every)
        loss, slope = (sum(one[part] for one in every) / size for part in (0, 1))
        momentum = 0.9 * state["momentum"] + slope
        state = {"slope": state["slope"] - 0.01 * momentum, "momentum": momentum}
        if host.host_index == 0:
            samples = sorted(row for one in every for row in one[2])
            _write(Path(folder, f"step-{step}"), json.dumps([loss, count, samples]))
        training.step(step + 1, state, loss=loss)
    training.finish(state)
    return [begun, training.samples, str(training.batch)]


def _slope_at(slope: float, row: int) -> tuple[float, float]:
    x = (row * 37 % 101) / 50 - 1
    off = slope * x - 3 * x
    return off * off, 2 * off * x


def _write(path: Path, text: str) -> None:
    """Whole, as soon as it can be seen."""
    beside = path.with_name(f".{path.name}")
    beside.write_text(text, encoding="utf-8")
    beside.rename(path)


def tries_rate(rate: float) -> float:
    """A trial of a search: a rate above 1 diverges, and never ends by itself."""
    host = kinetic.current()
    for number in range(3):
        host.log_metrics(step=number, loss=rate / (number + 1) if rate <= 1 else rate * 10.0**number)
    while rate > 1:
        time.sleep(0.02)
    return rate
