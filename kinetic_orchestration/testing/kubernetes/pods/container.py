"""A container: a process of this machine, the first of a pid namespace where that is permitted.

There it is what it would be on a node: process 1, which adopts orphans and ignores every signal that it does not
handle. Everywhere its end is the end of all that descends from it, and all of it ends with the thread that starts it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_RUN = (sys.executable, "-I", "-S", str(Path(__file__).with_name("first_process.py")))
_PATIENCE = 15.0  # seconds for processes that are killed, or begun
_PAUSE = 0.01


class Container:
    """One run of a command, whose output goes to the end of a file.

    Args:
        command: The command.
        environ: Its environment.
        folder: Where it runs.
        log: The file.
        isolate: False: without namespaces, as on a machine that permits none.
    """

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], folder: Path, log: Path, *, isolate: bool = True
    ) -> None:
        self._warned = False
        self._environ, self._folder = dict(environ), folder
        kind = self._kind = "namespace" if isolate and _has_namespaces() else "session"
        # Its parent holds these from its first moment: it may be told before it has started the command.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
        try:
            with log.open("ab") as output:
                self._parent = subprocess.Popen(
                    [*_RUN, kind, str(os.getpid()), *command], env=environ, cwd=folder, stdin=subprocess.DEVNULL,
                    stdout=output, stderr=output, start_new_session=True,
                )  # fmt: skip
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def inside(self, command: Sequence[str]) -> tuple[list[str], dict[str, str], str]:
        """Return how another command is started in it: its words, its environment and its folder.

        Raises ProcessLookupError once it has ended.
        """
        words = list(command)
        if self._kind == "namespace":
            user = () if os.geteuid() == 0 else ("--user", "--preserve-credentials")
            into = ["nsenter", "--target", self._first(), *user, "--pid", "--mount"]
            words = [*into, f"--wd={self._folder}", *command]
        return words, dict(self._environ), str(self._folder)

    def _first(self) -> str:
        """Return the process id of its first process, which is there a moment after its parent is."""
        children = Path(f"/proc/{self._parent.pid}/task/{self._parent.pid}/children")
        deadline = time.monotonic() + _PATIENCE
        while self._parent.poll() is None and time.monotonic() < deadline:
            if found := children.read_text(encoding="ascii").split():
                return found[0]
            time.sleep(_PAUSE)
        raise ProcessLookupError("the container has no first process")

    def ended(self) -> int | None:
        """Return its exit code, 128 and the number of the signal that killed it, or None while it runs."""
        code = self._parent.poll()
        return 128 - code if code is not None and code < 0 else code

    def terminate(self) -> None:
        """Send SIGTERM to its first process, once."""
        if not self._warned:
            self._warned = True
            self._parent.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End all of its processes."""
        self._parent.send_signal(signal.SIGHUP)

    def close(self) -> None:
        """The same, and wait for it."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._parent.wait(_PATIENCE)
        self._parent.kill()
        self._parent.wait()


@functools.cache
def _has_namespaces() -> bool:
    """Tell whether this machine permits pid namespaces."""
    done = subprocess.run([*_RUN, "namespace", str(os.getpid()), "true"], capture_output=True, timeout=60)
    return done.returncode == 0
