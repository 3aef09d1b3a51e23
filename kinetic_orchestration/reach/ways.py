"""The ways into a running host: by ssh to a VM, by exec to a pod, or on this machine. All do the same four things.

A way is opened by `opening`. It knows nothing of jobs.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from kinetic_orchestration.errors import HostNotReached
from kinetic_orchestration.platforms.shared.cluster_access import Access
from kinetic_orchestration.reach import ports, ssh
from kinetic_orchestration.reach.channel import ERR, Channel, Pod
from kinetic_orchestration.reach.ports import Direct, InPod, InProcess

READY_SECONDS: Final = 90.0  # until ssh has made a port
_READ: Final = 16 << 10
_READY: Final = "kinetic-listens"  # what ssh is made to say once it has made a port
_BASH: Final = "command -v bash >/dev/null 2>&1 && exec bash; exec sh"
# The job's programs are root's, and its users have its rights where they may: `python3` of a VM by those.
_AS_ROOT: Final = 'if [ "$(id -u)" = 0 ]; then exec "$@"; else exec sudo -n "$@"; fi'

Tell = Callable[[str], object]


class Ran(NamedTuple):
    """A command that has run on a host.

    Attributes:
        code: Its exit code.
        out: Its output.
        err: Its errors.
    """

    code: int
    out: bytes
    err: bytes


class Way(Protocol):
    """A way into a host. Each verb raises HostNotReached."""

    def attach(self, command: Sequence[str]) -> int:
        """Run a command with this process's terminal, or its input and outputs; without one, a shell. Return its exit
        code."""

    def run(self, command: Sequence[str]) -> Ran:
        """Run a command without input."""

    def listens(self, port: int) -> bool:
        """Return True if something listens at a port of the host's loopback."""

    def forward(self, port: int, local: int, ready: Callable[[int], object], tell: Tell, *, own: bool = False) -> None:
        """Have a port of this machine lead to one of the host's loopback, until this process is interrupted.

        Args:
            port: The host's.
            local: This machine's; 0: any.
            ready: Called with this machine's port once it leads there.
            tell: Called with why a connection failed.
            own: Whoever connects has to be the user that the job runs as.
        """


class BySsh:
    """A way to a VM by ssh."""

    def __init__(self, host: ssh.Host, keys: ssh.Keys) -> None:
        self._host, self._keys = host, keys
        if host.is_new:
            ssh.await_key(host, keys)

    def attach(self, command: Sequence[str]) -> int:
        is_tty = sys.stdin.isatty() and sys.stdout.isatty()
        options = ("-t",) if is_tty else ("-T",)
        done = subprocess.run(self._line(options, command), env=ssh.environment(), check=False)
        if done.returncode == ssh.FAILED:
            raise HostNotReached(f"ssh has no connection to {self._host.instance}, or lost it: why is written above")
        return done.returncode

    def run(self, command: Sequence[str]) -> Ran:
        words = self._line(("-T", "-n"), command)
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, env=ssh.environment(), check=False)
        if done.returncode == ssh.FAILED:
            raise HostNotReached(_words(done.stderr) or f"ssh has no connection to {self._host.instance}")
        return Ran(done.returncode, done.stdout, done.stderr)

    def listens(self, port: int) -> bool:
        return self.run(_as_root(ports.relay(port, "--try"))).code == 0

    def forward(self, port: int, local: int, ready: Callable[[int], object], tell: Tell, *, own: bool = False) -> None:
        if own:
            command = self._line(("-T",), _as_root(ports.relay(port)))
            with ports.listening(local) as listener:
                ready(listener.getsockname()[1])
                ports.serve(listener, lambda: InProcess(command, ssh.environment()), tell)
            return
        with ports.bound(local) as held:  # which ssh may bind all the same, and others may not
            local = held.getsockname()[1]
            way = f"{ports.LOOPBACK}:{local}:{ports.LOOPBACK}:{port}"
            options = ("-N", "-T", "-o", "PermitLocalCommand=yes", "-o", f"LocalCommand=echo {_READY} >&2", "-L", way)
            with _running(self._line(options, ())) as process:
                _await(process, lambda: ready(local), tell)

    def _line(self, options: Sequence[str], command: Sequence[str]) -> list[str]:
        return ssh.line(self._host, self._keys, options, command)


class ByExec:
    """A way to a pod by Kubernetes' exec."""

    def __init__(self, access: Access, pod: Pod) -> None:
        self._access, self._pod = access, pod

    def attach(self, command: Sequence[str]) -> int:
        is_tty = sys.stdin.isatty() and sys.stdout.isatty()
        words = list(command) or ["sh", "-c", f"TERM={shlex.quote(os.environ.get('TERM') or 'xterm')}; {_BASH}"]
        channel = Channel(self._access, self._pod, words, tty=is_tty)
        with contextlib.closing(channel), _terminal(is_tty) as resized:
            return _attached(channel, resized)

    def run(self, command: Sequence[str]) -> Ran:
        pieces: dict[bool, list[bytes]] = {False: [], True: []}
        with contextlib.closing(Channel(self._access, self._pod, command)) as channel:
            channel.end_input()
            while channel.code is None:
                channel.wait()
                for said in channel.read():
                    pieces[said.channel == ERR].append(said.data)
            return Ran(channel.code, b"".join(pieces[False]), b"".join(pieces[True]))

    def listens(self, port: int) -> bool:
        return self.run(ports.relay(port, "--try")).code == 0

    def forward(self, port: int, local: int, ready: Callable[[int], object], tell: Tell, *, own: bool = False) -> None:
        with ports.listening(local) as listener:
            ready(listener.getsockname()[1])
            ports.serve(listener, lambda: InPod(Channel(self._access, self._pod, ports.relay(port))), tell)


class Here:
    """A host of this machine: a shell where its program runs, with its variables.

    Args:
        folder: Where its program runs.
        environ: The variables.
    """

    def __init__(self, folder: str, environ: Mapping[str, str]) -> None:
        self._folder, self._environ = folder, dict(environ)

    def attach(self, command: Sequence[str]) -> int:
        shell = self._environ.get("SHELL") or shutil.which("bash") or "/bin/sh"
        try:
            done = subprocess.run(list(command) or [shell], cwd=self._folder, env=self._environ, check=False)
        except OSError as error:
            raise HostNotReached(f"{(list(command) or [shell])[0]}: {error.strerror}") from error
        return done.returncode if done.returncode >= 0 else 128 - done.returncode

    def run(self, command: Sequence[str]) -> Ran:
        try:
            done = subprocess.run(
                list(command),
                cwd=self._folder,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
        except OSError as error:
            raise HostNotReached(f"{command[0]}: {error.strerror}") from error
        return Ran(done.returncode if done.returncode >= 0 else 128 - done.returncode, done.stdout, done.stderr)

    def listens(self, port: int) -> bool:
        with socket.socket() as tried:
            tried.settimeout(5.0)
            return tried.connect_ex((ports.LOOPBACK, port)) == 0

    def forward(self, port: int, local: int, ready: Callable[[int], object], tell: Tell, *, own: bool = False) -> None:
        if local in (0, port):  # it is this machine's own
            ready(port)
            return
        with ports.listening(local) as listener:
            ready(local)
            ports.serve(listener, lambda: Direct(port), tell)


def _as_root(command: Sequence[str]) -> list[str]:
    return ["sh", "-c", _AS_ROOT, "sh", *command]


def _words(said: bytes) -> str:
    return said[:4000].decode("utf-8", "replace").strip().removeprefix("kinetic: ")


# ---- ssh, as it makes a port -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _running(words: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        list(words), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=ssh.environment()
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def _await(process: subprocess.Popen[bytes], ready: Callable[[], object], tell: Tell) -> None:
    """Tell when ssh listens, and what it says after that. Raises HostNotReached once it has ended."""
    last = ""
    watch = threading.Timer(READY_SECONDS, process.terminate)
    watch.daemon = True
    watch.start()
    assert process.stderr is not None
    is_ready = False
    for line in process.stderr:
        words = _words(line)
        if words == _READY:
            watch.cancel()
            is_ready = True
            ready()
        elif is_ready:
            tell(words)
        else:
            last = f"{last} {words}".strip()[:4000]
    watch.cancel()
    lost = "the connection was lost" if is_ready else f"ssh made no port within {READY_SECONDS:g} s"
    raise HostNotReached(last or lost)


# ---- a terminal ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _terminal(is_tty: bool) -> Iterator[int]:
    """Within the block, the terminal passes each key on; the file that is yielded has a byte when its size changes."""
    resized, wake = os.pipe()
    os.set_blocking(wake, False)
    before, kept = None, None
    try:
        if is_tty:
            import termios
            import tty

            kept = termios.tcgetattr(0)
            before = signal.signal(signal.SIGWINCH, lambda *_: _wake(wake))
            tty.setraw(0, termios.TCSADRAIN)  # what was typed ahead is kept
            _wake(wake)
        yield resized
    finally:
        if kept is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, kept)
        if before is not None:
            signal.signal(signal.SIGWINCH, before)
        os.close(resized)
        os.close(wake)


def _wake(file: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.write(file, b"\0")


def _attached(channel: Channel, resized: int) -> int:
    """Pass input and outputs on until the program ends; return its exit code."""
    listens = True
    while channel.code is None:
        ready = channel.wait(resized, *((0,) if listens and not channel.is_full else ()))
        if resized in ready:
            os.read(resized, 1 << 10)
            size = os.get_terminal_size(1)
            channel.resize(size.columns, size.lines)
        if 0 in ready:
            data = os.read(0, _READ)
            channel.send(data) if data else channel.end_input()
            listens = bool(data)
        for said in channel.read():
            _write(2 if said.channel == ERR else 1, said.data)
    return channel.code


def _write(file: int, data: bytes) -> None:
    while data:
        select.select((), (file,), ())
        data = data[os.write(file, data) :]
