"""Does on a machine of a test's own what programs of jobs may do."""

import ctypes
import json
import os
import time
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)


def put(path: str, text: str = "mine") -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Path(path).write_text(text, encoding="utf-8")


def escape(command: list[str], **env: str) -> None:
    """Start a program that has left this one's session, tree and environment. Returns once it runs."""
    reading, end = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.dup2(os.open("/dev/null", os.O_RDWR), 1)
            os.execve(command[0], command, env)
        os._exit(0)
    os.wait()
    os.close(end)
    os.read(reading, 1)  # the end of it: exec has closed the other


def by_system(command: list[str], group: str = "system.slice/mine.service", mark: str = "/run/mine") -> None:
    """Have the system's first process start a Python source or program, and wait for the file that it makes."""
    Path("/run/start").write_text(json.dumps({"command": command, "group": group}) + "\n", encoding="utf-8")
    while not os.path.exists(mark):
        time.sleep(0.005)


def python(source: str) -> list[str]:
    return [os.environ["PYTHON"], "-c", source]


def mount(source: str, target: str, kind: str = "", flags: int = 0) -> None:
    if libc.mount(source.encode(), target.encode(), kind.encode(), flags, b""):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def attempt(call: str, *arguments: int) -> int:
    found = getattr(libc, call)(*arguments)
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), call)
    return found
