"""Functions that run as jobs in the tests of faults, logs and the agent. They travel from a copy in a small project
of its own, so that no host unpacks this whole repository."""

from __future__ import annotations

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


def wait_for(path: str, within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.005)


def attempt() -> int:
    return kinetic.current().attempt


def until(path: str) -> int:
    """Runs until the file is there; its value is the attempt that came so far."""
    print("running", flush=True)
    wait_for(path)
    return kinetic.current().attempt


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
        time.sleep(60)

    print("then nothing")
    hangs_here()


def stubborn(seconds: float = 60.0) -> None:
    """Ignores every request to end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready")
    time.sleep(seconds)


def has_last_words(handled: str = "SIGTERM") -> None:
    def say(*_: Any) -> None:
        for number in range(100):
            print(f"last word {number}")
        sys.stdout.write("and the very last")
        sys.stdout.flush()
        os._exit(3)

    signal.signal(getattr(signal, handled), say)
    print("ready")
    time.sleep(60)


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


def topology() -> dict[str, str]:
    prefixes = ("JAX_", "TPU_", "MEGASCALE", "TF_CONFIG", "RANK", "MASTER_", "WORLD_", "CLOUD_TPU", "NODE_RANK")
    return {name: value for name, value in os.environ.items() if name.startswith(prefixes)}


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
    return 1


def returns(what: str) -> Any:
    if what == "unpicklable":
        return (number for number in range(3))

    class Odd(Exception):
        """Whose arguments cannot be pickled."""

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
        if os.fork() == 0:
            for number in range(20):
                os.write(1, b"child %d\n" % number)
                time.sleep(0.01)
            os._exit(0)
        for number in range(20):
            os.write(1, b"parent %d\n" % number)
            time.sleep(0.01)
        return
    elif name == "a child that never stops":
        if os.fork() == 0:
            while True:
                os.write(1, b"still here\n")
                time.sleep(0.02)
    elif name == "closes its output":
        out.write(b"before\n")
        out.flush()
        os.close(1)
        os.close(2)
        wait_for(path)
        os._exit(0)
    out.flush()


def one_by_one(path: str) -> None:
    """A line when the reader asks for one."""
    for number in range(3):
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
