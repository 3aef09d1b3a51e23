"""A container: a process of this machine, the first of a pid namespace where that is permitted.

There it is what it would be on a node: process 1, which adopts orphans and ignores every signal that it does not
handle, and whose end is the end of all others. Elsewhere it leads a group of processes. It dies with the thread that
starts it.
"""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.testing.kubernetes.pods.tied import tied


class Container:
    """One run of a command, whose output goes to the end of a file."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], folder: Path, log: Path) -> None:
        self._namespace = _namespace()
        self._warned = False
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                tied(*self._namespace, *command), env=environ, cwd=folder, stdin=subprocess.DEVNULL, stdout=output,
                stderr=output, start_new_session=True,
            )  # fmt: skip

    def ended(self) -> int | None:
        """Return its exit code, 128 and the number of the signal that killed it, or None while it runs."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def terminate(self) -> None:
        """Send SIGTERM to its first process, once; the first call may come before there is one."""
        if not self._warned and (first := self._first()):
            self._warned = processes.send(first, signal.SIGTERM)

    def kill(self) -> None:
        """End all of its processes."""
        if first := self._first():
            processes.send(first, signal.SIGKILL)
        if not self._namespace:
            processes.end_descendants(self._process.pid)

    def close(self) -> None:
        """The same, and wait for it."""
        self.kill()
        self._process.kill()  # it may not have had a first process yet
        self._process.wait()

    def _first(self) -> int:
        pid = self._process.pid
        if not self._namespace:
            return pid if self._process.poll() is None else 0
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        except OSError:
            return 0
        return int(children[0]) if children else 0


@functools.cache
def _namespace() -> tuple[str, ...]:
    """The words that make a command the first process of its own pid namespace; none if this machine permits none."""
    words = (sys.executable, "-I", "-S", str(Path(__file__).with_name("first_process.py")))
    done = subprocess.run([*words, "true"], capture_output=True, timeout=60)
    return words if done.returncode == 0 else ()
