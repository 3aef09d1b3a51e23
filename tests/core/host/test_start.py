"""The start of a host: quickly, and with a program that is as fresh as from a shell."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.protocol.assignment import Assignment

SITE = Path(__file__).parents[3]
SLOW = (
    "typing",
    "json",
    "re",
    "enum",
    "collections",
    "contextlib",
    "subprocess",
    "ctypes",
    "hashlib",
    "importlib.util",
)


@kinetic.run(accelerator="cpu")
def dispositions() -> dict[str, str]:
    import signal

    names = ("SIGTERM", "SIGCHLD", "SIGINT")
    return {name: getattr(signal.getsignal(getattr(signal, name)), "name", "handled") for name in names}


def test_what_a_host_is_told_comes_through_its_command_line() -> None:
    told = Assignment(
        "/a store", "job-1", 2, 3, 4, "0" * 64, "b/3", "/run=here", "/home", "", "KINETIC_PLACEMENT=/run=here",
        processes=2,
    )  # fmt: skip
    heard = Assignment.from_words(told.words())
    assert {name: getattr(heard, name) for name in told.__slots__} == {
        name: getattr(told, name) for name in told.__slots__
    }


def test_the_program_is_started_before_anything_slow_is_imported() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(SITE)!r}); import kinetic_orchestration.host.start\n"
        f"print([name for name in {SLOW!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_program_is_started_by_a_dozen_modules_of_ours_and_none_that_knows_a_framework() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(SITE)!r}); import kinetic_orchestration.host.start\n"
        "print(*[name for name in sys.modules if name.startswith('kinetic_orchestration')])"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60)
    found = done.stdout.split()
    assert 0 < len(found) <= 12, found
    assert not [name for name in found if name.endswith((".join", ".profiler", ".tracers", ".keras_fit"))]


def test_a_vm_imports_nothing_of_pods_and_nothing_of_the_end_before_its_program_runs() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(SITE)!r}); import kinetic_orchestration.host.host\n"
        "from kinetic_orchestration.host.machine import buckets; buckets.open_store('gs://bucket/a')\n"
        "print([name for name in sys.modules if '.pod' in name or name.endswith('.self_delete')])"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("name", ["lock", "folders"])
def test_a_client_shares_lock_and_folders_without_what_a_host_is_made_of(name: str) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(SITE)!r}); import kinetic_orchestration.protocol.system.{name}\n"
        "print([name for name in sorted(sys.modules) if name.startswith('kinetic_orchestration.')])"
    )
    rooms = ["kinetic_orchestration.protocol", "kinetic_orchestration.protocol.system"]
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (f"{[*rooms, f'{rooms[1]}.{name}']}\n", "")


@pytest.mark.parametrize(("ends", "code"), [("os._exit(0)", 0), ("os.kill(os.getpid(), 9)", 137)])
def test_a_container_ends_as_its_guard_did(ends: str, code: int) -> None:
    program = (
        f"import os, sys; sys.path.insert(0, {str(SITE)!r}); from kinetic_orchestration.host import start\n"
        f"guard = os.fork()\nif not guard:\n    {ends}\nos._exit(start._remain(guard))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.usefixtures("home")
def test_signals_that_the_submitter_ignores_reach_the_program() -> None:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGCHLD)}
    try:
        job = dispositions.run_async()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert job.result() == {"SIGTERM": "SIG_DFL", "SIGCHLD": "SIG_DFL", "SIGINT": "handled"}
