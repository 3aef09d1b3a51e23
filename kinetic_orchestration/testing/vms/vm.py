"""The VMs of the emulated cloud: each a tree of real processes under a root of its own, with its metadata server.

A VM runs the startup script of its metadata at every boot, in a pid namespace of its own where the machine permits one:
killing its first process then kills everything in it, however it was detached. Elsewhere its first process adopts all
orphans, and they are found below it. A VM dies with the process that made it. Knows nothing of queued resources.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from kinetic_orchestration.errors import KineticError
from kinetic_orchestration.protocol.system import copies, processes
from kinetic_orchestration.protocol.system.parallel import side_by_side
from kinetic_orchestration.testing.api_rules.access import Access
from kinetic_orchestration.testing.model.state.machine import Machine
from kinetic_orchestration.testing.vms.metadata import VmMetadata
from kinetic_orchestration.testing.vms.metadata_server import Loop
from kinetic_orchestration.testing.vms.sshd import Sshd

_INIT = str(Path(__file__).with_name("init.py"))
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_SYSTEM_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
_OLDEST_PYTHON = "3.10"
# Nothing listens there: a program that goes by the proxy settings meets a refused connection at once.
_NO_ROUTE = "http://127.0.0.1:9"
_ROUTE = re.compile(r"(UV|PIP)_\w+|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE|(https?|all|no)_proxy", re.IGNORECASE)
# Settings of the same families that name a path or a program: a VM writes under its own root only.
_OWN = re.compile(r"\w+_(CACHE_DIR|PYTHON\w*|PROJECT\w*|TOOL\w*|INSTALL\w*|TARGET|PREFIX|ROOT|USER|SRC|LOG)")
_FILLER = "filler"
_ENDS_AT_ONCE = 8
_LAST = 10.0  # seconds that the kernel may take to end what was killed

_CLOCK = """\
import os as _os, time as _time

def _shifted(name, by):
    read = getattr(_time, name)
    setattr(_time, name, lambda: read() + by)

# The times of files are by the same clock: what is written now is as old as nothing. Not those that `scandir` tells.

def _instead(name, other):
    for able in (_os.supports_fd, _os.supports_dir_fd, _os.supports_follow_symlinks):
        if getattr(_os, name) in able:
            able.add(other)
    setattr(_os, name, other)

def _dated(name):
    read = getattr(_os, name)

    def dated(*what, **more):
        _, (seen, rest) = read(*what, **more).__reduce__()
        for time in ("st_atime", "st_mtime", "st_ctime"):
            rest[time] += {seconds}
            rest[time + "_ns"] += {nanoseconds}
        return _os.stat_result((*seen[:7], *(int(time + {seconds}) for time in seen[7:])), rest)

    _instead(name, dated)

def _set(path, times=None, *, set=_os.utime, **more):
    if times is not None:
        times = [time - {seconds} for time in times]
    elif "ns" in more:
        more["ns"] = tuple(time - {nanoseconds} for time in more["ns"])
    set(path, times if times is None else tuple(times), **more)

for _name in ("stat", "lstat", "fstat"):
    _dated(_name)
_instead("utime", _set)
_shifted("time", {seconds})
_shifted("time_ns", {nanoseconds})
"""


def route_to_index(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings by which `environ` reaches a package index, for the VMs that have such a route."""
    folder = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/"), ".config"))
    files = {"PIP_CONFIG_FILE": folder / "pip" / "pip.conf", "UV_CONFIG_FILE": folder / "uv" / "uv.toml"}
    found = {name: str(path) for name, path in files.items() if path.is_file()}
    return found | {k: v for k, v in environ.items() if _ROUTE.fullmatch(k) and not _OWN.fullmatch(k)}


class Python(NamedTuple):
    path: str  # of the interpreter itself: no shim, no virtual environment
    version: str


@functools.cache
def find_python(wish: str = "") -> Python:
    """The interpreter at this path or of this minor version; for "" the oldest that an agent runs on, or ours."""
    tries = [wish] if os.sep in wish else _pythons(wish or _OLDEST_PYTHON)
    tries += [] if wish else [sys.executable]
    program = "import os, sys; print(os.path.realpath(sys._base_executable), '%d.%d' % sys.version_info[:2])"
    for path in tries:
        done = subprocess.run([path, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=60)
        found, _, version = done.stdout.strip().rpartition(" ")
        if done.returncode == 0 and (not wish or os.sep in wish or version == wish):
            return Python(found, version)
    raise KineticError(
        f"No Python {wish} to run an emulated VM with: tried {', '.join(tries) or 'PATH and pyenv'}. "
        "Install it, or name another one: python=<path or version>."
    )


def _pythons(version: str) -> list[str]:
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path("~/.pyenv").expanduser()) / "versions"
    known = [shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"{version}.*/bin/python3")))]
    running = [sys.executable] if version == f"{sys.version_info[0]}.{sys.version_info[1]}" else []
    return running + [path for path in known if path]


@functools.cache
def _namespace() -> tuple[str, ...] | None:
    """The command that starts a program in a pid namespace of its own, if this machine permits one.

    `unshare` dies with the thread that started it, and takes the namespace along. The boot id is mounted over the
    kernel's, so that programs on the VM read their own.
    """
    if not sys.platform.startswith("linux"):
        return None
    for user in ((), ("--user", "--map-root-user")):
        command = (
            "setpriv", "--pdeathsig", "KILL",
            "unshare", *user, "--pid", "--fork", "--mount-proc", "--kill-child",
            "sh", "-c", 'mount --bind "$1" "$2" && shift 2 && exec "$@"', "sh",
        )  # fmt: skip
        with tempfile.NamedTemporaryFile() as file, contextlib.suppress(OSError):
            probe = [*command, file.name, _BOOT_ID, "sh", "-c", '[ "$$" = 1 ]']
            if subprocess.run(probe, capture_output=True, timeout=60).returncode == 0:
                return command
    return None


class Vm:
    """One VM, from its creation until `destroy`. Every method may be called from any thread."""

    def __init__(self, room: Machines, machine: Machine, folder: Path, on_boot: Callable[[Vm], object] | None) -> None:
        python = find_python(machine.python or room.python)
        self.machine = machine
        self.root = folder / "disk"
        self.boot_id = ""
        self.boots = 0
        self.metadata = VmMetadata(room.loop, machine, room.access, token=room.token, sign_identity=room.sign_identity)
        self._room = room
        self._folder = folder
        self._console = folder / "console"
        self._script = folder / "startup-script"
        self._on_boot = on_boot
        self.sshd = Sshd(folder / "ssh", self.root)
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._first = 0
        self._destroyed = False
        self._environ = self._furnish(python)

    def __repr__(self) -> str:
        return f"<Vm {self.machine.zone}/{self.machine.node} worker {self.machine.worker}, boot {self.boots}>"

    # Inspection

    @property
    def alive(self) -> bool:
        """True if it is switched on, even if no program runs on it."""
        return self._process is not None and self._process.poll() is None

    @property
    def guest_attributes(self) -> dict[str, dict[str, str]]:
        """Namespace → key → value, as programs on the VM have put them."""
        return self.metadata.guest_attributes

    def published(self) -> dict[str, dict[str, str]]:
        """Return the guest attributes that its guest agent puts there: its name, and the keys of its sshd, if any.
        In which namespace Google has the name of a TPU VM is not documented."""
        keys = {} if self._destroyed else self.sshd.host_keys()
        return {"hostkeys": keys, "tpu": {"hostname": self.machine.name}}

    def enter(self, connection: socket.socket) -> bool:
        """Have its sshd serve a connection; False if it has none, or is switched off."""
        with self._lock:
            if self._destroyed or not self.alive:
                return False
            first = self._init() if self._room.namespace is not None else 0
            return self.sshd.start(connection, first, self.metadata.attributes, self._environ)

    def reconfigure(self, metadata: Mapping[str, str]) -> None:
        """Show it other metadata, as somebody has changed them."""
        self.machine = dataclasses.replace(self.machine, metadata=dict(metadata))
        self.metadata.change(attributes=self.machine.attributes())

    def processes(self) -> list[int]:
        """The pids of the processes that run on it, as this machine numbers them, without its first process."""
        with self._lock:
            first = self._init() if self.alive else 0
            return [process.pid for process in processes.descendants(first)] if first else []

    def console(self) -> str:
        """The output of its startup script, of all boots."""
        try:
            return self._console.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    # Events

    def boot(self) -> None:
        """Switch it on: once for its maker, then `reboot`."""
        with self._lock:
            if self._destroyed:
                return
            self._boot()
        if self._on_boot is not None:
            self._on_boot(self)  # without the lock: the callback may take one of its own

    def destroy(self) -> None:
        """Everything killed at once, its metadata server closed, its disk gone. A second time does nothing."""
        with self._lock:
            if self._destroyed:
                return
            self._destroyed = True
            self._end()
            self.metadata.close()
            unmount(self.root)
            self._room.forget(self, self._folder)  # within the lock: once it is destroyed, its folder is gone

    def preempt(self, notice: float | None) -> None:
        """Set `instance/preempted` to TRUE; with a notice, also send SIGTERM, and end it after at most that many
        seconds."""
        with self._lock:
            self.warn()
            if notice is None or not self.alive:
                self._end()
            else:
                self.shut_down(notice)

    def warn(self) -> None:
        """Set `instance/preempted` to TRUE; nothing else happens to it yet."""
        self.metadata.change(preempted=True)

    def shut_down(self, notice: float) -> None:
        """SIGTERM for everything on it, and its end after at most that many seconds."""
        with self._lock:
            process = self._process
            if process is None or not self.alive:
                return
            first = self._init()
            processes.send(first, signal.SIGTERM)
            self._room.loop.later(notice, functools.partial(self._kill, process, first))

    def cut(self) -> None:
        """Everything killed at once; its disk stays."""
        with self._lock:
            self._end()

    def reboot(self) -> None:
        """Everything killed; then it boots again, with another boot id and the same disk."""
        with self._lock:
            self._end()
        self.boot()

    def maintenance(self, event: str, upcoming: Mapping[str, str] | None = None) -> None:
        """Announce a maintenance event ("NONE" ends it), and set `instance/upcoming-maintenance`."""
        self.metadata.change(maintenance_event=event, upcoming_maintenance=upcoming)

    def freeze(self) -> None:
        """Alive but stuck: nothing that runs on it gets any further."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def fill_disk(self) -> None:
        """Fill its disk, which has to be one of its own, until `clear_disk`."""
        with self._lock:  # else its disk might be unmounted concurrently, and this machine's be filled
            if self._destroyed or not self.root.is_mount():
                raise KineticError(f"{self!r} has no disk of its own: furnish it with one, as `disk`, before it boots")
            with contextlib.suppress(OSError), (self.root / _FILLER).open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 12))

    def clear_disk(self) -> None:
        """There is room again."""
        (self.root / _FILLER).unlink(missing_ok=True)

    def kill(self, which: str | Callable[[int], bool], number: int = signal.SIGKILL) -> list[int]:
        """Signal processes by their name, their command line or the caller's choice of pids. Returns their pids."""
        picks = which if callable(which) else functools.partial(_matches, re.compile(which))
        return [pid for pid in self.processes() if picks(pid) and processes.send(pid, number)]

    # How it runs

    def _furnish(self, python: Python) -> dict[str, str]:
        """An empty disk with a `python3`, and the environment of everything on the VM."""
        machine, root = self.machine, self.root
        if machine.disk:
            _mount(root, machine.disk)
            _mount(root / "dev" / "shm", machine.disk)  # its memory does not fill up with its disk
        folders = ("bin", "dev/shm", "etc", "home", "root", "tmp", "var/lib", "var/tmp")
        for folder in (*folders, str(Path(_BOOT_ID).parent)[1:]):
            (root / folder).mkdir(parents=True, exist_ok=True)
        for name in ("python3", f"python{python.version}"):
            (root / "bin" / name).symlink_to(python.path)
        for name, text in machine.programs.items():
            program = root / "bin" / name
            program.write_text(text, encoding="utf-8")
            program.chmod(0o755)
        if machine.clock_skew:
            site = root / "lib" / f"python{python.version}" / "site-packages"
            site.mkdir(parents=True)
            (root / "pyvenv.cfg").write_text(f"home = {Path(python.path).parent}\n", encoding="utf-8")
            (site / "clock.pth").write_text("import _emulated_clock\n", encoding="utf-8")
            by = {"seconds": machine.clock_skew, "nanoseconds": int(machine.clock_skew * 1_000_000_000)}
            (site / "_emulated_clock.py").write_text(_CLOCK.format(**by), encoding="utf-8")
        script = machine.metadata.get("startup-script", "")
        if script:
            self._script.write_text(script, encoding="utf-8")
            self._script.chmod(0o700)
        no_route = {"HTTP_PROXY": _NO_ROUTE, "HTTPS_PROXY": _NO_ROUTE, "ALL_PROXY": _NO_ROUTE, "NO_PROXY": "127.0.0.1"}
        no_route |= {name.lower(): value for name, value in no_route.items()}
        return {
            "LANG": "C.UTF-8",
            **(self._room.index if machine.index else no_route),
            **self._room.environ,
            "PATH": f"{root}/bin:{_SYSTEM_PATH}",
            "HOME": f"{root}/root",
            "TMPDIR": f"{root}/tmp",
            "KINETIC_ROOT": str(root),
            "GCE_METADATA_HOST": self.metadata.address,
            "GCE_METADATA_IP": self.metadata.address,
        }

    def _boot(self) -> None:
        self.boots += 1
        self.boot_id = str(uuid.uuid4() if self.boots > 1 else uuid.uuid5(uuid.NAMESPACE_OID, self.machine.first_boot))
        boot_id = self.root / _BOOT_ID[1:]
        boot_id.write_text(f"{self.boot_id}\n", encoding="ascii")
        script = str(self._script) if self._script.exists() else ""
        kind = "session" if self._room.namespace is None else "namespace"
        before = [] if self._room.namespace is None else [*self._room.namespace, str(boot_id), _BOOT_ID]
        self._process = self._room.spawn(
            [*before, sys.executable, "-I", "-S", _INIT, kind, str(self._console), script],
            stdin=subprocess.PIPE if self._room.namespace is None else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # `unshare` complains when what it waits for was killed
            cwd=self.root,
            env=self._environ,
            start_new_session=True,
        )
        self._first = self._process.pid if self._room.namespace is None else 0

    def _init(self) -> int:
        """The pid of its first process; 0 if it ended before it had one."""
        process = self._process
        deadline = time.monotonic() + _LAST
        while not self._first and process is not None and process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii")
                self._first = int((children.split() or ["0"])[0])
            if not self._first:
                time.sleep(0.001)
        return self._first

    def _end(self) -> None:
        process = self._process
        if process is None:
            return
        self._kill(process, self._init())
        self.sshd.close()
        try:
            process.wait(2 * _LAST)  # its first process may itself wait that long for the others
        except subprocess.TimeoutExpired:
            raise KineticError(
                f"{self!r} did not die within {2 * _LAST:.0f} s of SIGKILL (process {process.pid} of this machine): "
                "the kernel holds one of its processes. Look at /proc/<pid>/stack."
            ) from None
        if process.stdin is not None:
            process.stdin.close()

    def _kill(self, process: subprocess.Popen[bytes], first: int) -> None:
        """Kill the VM's processes. Called without the lock, which others hold while they wait. The kernel ends a
        namespace with its first process; elsewhere the first process ends all others itself.
        """
        if first and process.poll() is None:
            processes.send(first, signal.SIGUSR1 if self._room.namespace is None else signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        done: set[int] = set()
        while new := set(self.processes()) - done:  # processes may have started since
            for pid in new:
                processes.send(pid, number)
            done |= new


def _mount(folder: Path, size: int) -> None:
    """Mount a file system of that many MiB. It stays through reboots, so it is mounted here and not by the VM."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}m,mode=0755", "emulated-disk", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except OSError as error:
        raise KineticError(f"a VM with a disk of its own needs the program mount: {error}") from None
    if done.returncode:
        raise KineticError(
            "a VM with a disk of its own needs a file system, which cannot be mounted here "
            f"({done.stderr.strip()}): run as root, or in a namespace in which you are (unshare -rm), or leave it out"
        )


def unmount(folder: Path) -> None:
    """Unmount the disk of a VM, if it has its own. A disk that cannot be unmounted stays, in memory."""
    if folder.is_mount():
        subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True, timeout=60)


def _matches(pattern: re.Pattern[str], pid: int) -> bool:
    try:
        name, words = (Path(f"/proc/{pid}/{what}").read_bytes() for what in ("comm", "cmdline"))
    except OSError:
        return False
    texts = (name.strip(), words.replace(b"\0", b" "))
    return any(pattern.search(text.decode("utf-8", "replace")) for text in texts)


def _ended(vm: Vm) -> Exception | None:
    """Destroy a VM, and return the error if that fails: the others are destroyed all the same."""
    try:
        vm.destroy()
    except Exception as error:
        return error
    return None


class Machines:
    """The machine room: makes VMs under `root`, and leaves nothing of them once closed."""

    def __init__(
        self,
        root: Path,
        *,
        token: Callable[[str, int], str],
        sign_identity: Callable[[str, Machine], str],
        access: Access | None = None,
        environ: Mapping[str, str] | None = None,
        index: Mapping[str, str] | None = None,
        python: str = "",
        isolate: bool = True,
        keep: bool = False,
    ) -> None:
        """`environ` is what every VM finds in its environment; `index` replaces this process's route to an index."""
        self.root = root
        self.token = token
        self.sign_identity = sign_identity
        self.access = access or Access()
        self.environ = dict(environ or {})
        self.index = dict(route_to_index(copies.environ()) if index is None else index)
        self.python = python
        find_python(python)  # here, so that the first VM takes no longer than the others
        self.namespace = _namespace() if isolate else None
        self.loop = Loop("emulated VMs")
        self._keep = keep
        self._starter = ThreadPoolExecutor(1, "emulated VMs, started")
        self._lock = threading.Lock()
        self._vms: list[Vm] = []
        self._removals: list[subprocess.Popen[bytes]] = []
        self._removed = root / "removed"

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def create(self, machine: Machine, on_boot: Callable[[Vm], object] | None = None) -> Vm:
        """Create a VM that boots; `on_boot` is called at this and every later boot."""
        folder = self._folder(machine)
        try:
            vm = Vm(self, machine, folder, on_boot)
        except BaseException:
            unmount(folder / "disk")
            shutil.rmtree(folder)
            raise
        with self._lock:
            self._vms.append(vm)
        try:
            vm.boot()
        except BaseException:
            vm.destroy()
            raise
        return vm

    def all(self) -> list[Vm]:
        """Every VM that was not destroyed."""
        with self._lock:
            return list(self._vms)

    def close(self) -> None:
        errors = side_by_side(_ended, self.all(), _ENDS_AT_ONCE)
        for removal in self._removals:
            removal.wait()
        self.loop.close()
        self._starter.shutdown()
        with contextlib.suppress(OSError):
            self._removed.rmdir()
        for error in filter(None, errors):
            raise error

    def spawn(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """A child of a thread that stays: the wish to die with one's parent counts the thread, not the process."""

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(command, **options)

        return self._starter.submit(start).result()

    def forget(self, vm: Vm, folder: Path) -> None:
        """Move its folder away immediately and remove it in the background: a big environment takes a while."""
        with self._lock:
            if vm in self._vms:
                self._vms.remove(vm)
            if self._keep:
                return
            self._removed.mkdir(parents=True, exist_ok=True)
            moved = folder.rename(self._removed / uuid.uuid4().hex)
            self._removals = [removal for removal in self._removals if removal.poll() is None]
            self._removals.append(subprocess.Popen(["rm", "-rf", str(moved)], stderr=subprocess.DEVNULL))

    def _folder(self, machine: Machine) -> Path:
        """A new one: a VM of the same name may have been kept."""
        zone = self.root / machine.project / machine.zone
        zone.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            folder = zone / (f"{machine.node}-w-{machine.worker}" + (f".{number}" if number > 1 else ""))
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                return folder
        raise AssertionError
