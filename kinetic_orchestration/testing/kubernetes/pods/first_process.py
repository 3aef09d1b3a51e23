"""The parent of a container's first process: runs a command, and ends as it once all that descends from it has ended.

SIGTERM is handed on to the command, SIGHUP is the end of it, and so is the end of whoever started this. In a pid
namespace, which takes root or a machine where users have namespaces of their own, the command is process 1, and the
kernel ends all others with it. Without one this process adopts all of them. Its exit code is the command's, or 128 and
the number of the signal, which `unshare` of util-linux does not tell.

    python -I -S first_process.py namespace|session PARENT COMMAND…
"""

import ctypes
import os
import signal
import sys

_NAMESPACES = 0x20000000 | 0x00020000  # of pids, of mounts
_USER = 0x10000000
_PRIVATE = 0x4000 | 0x40000  # recursively
_DEATH_SIGNAL = 1
_HEARD = {signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP}
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

libc = ctypes.CDLL(None, use_errno=True)


def must(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main(kind: str, parent: int, command: list[str]) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    isolated = kind == "namespace"
    leave() if isolated else adopt()
    libc.prctl(_DEATH_SIGNAL, signal.SIGHUP, 0, 0, 0)  # a new user namespace takes that away
    if os.getppid() != parent:
        return 128 + signal.SIGKILL
    first = os.fork()
    if first == 0:
        begin(isolated, command)
    while True:
        number = signal.sigwait(_HEARD)
        if number != signal.SIGCHLD:
            os.kill(first, signal.SIGTERM if number == signal.SIGTERM else signal.SIGKILL)
            continue
        ended = reaped()
        if first in ended:
            if not isolated:
                end_all()
            return ended[first]


def leave() -> None:
    """Have the next child be process 1 of a namespace."""
    user, group = os.geteuid(), os.getegid()
    must(libc.unshare(_NAMESPACES if user == 0 else _NAMESPACES | _USER))
    if user != 0:
        for name, mapped in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - pathlib would be half of the start
                file.write(mapped)


def adopt() -> None:
    """Become the parent of all that loses its own, below this process."""
    root = os.path.abspath(__file__)
    for _ in range(5):  # out of pods/, kubernetes/, testing/ and the package
        root = os.path.dirname(root)
    sys.path.insert(0, root)
    from kinetic_orchestration.protocol.system import processes

    processes.adopt_orphans()


def end_all() -> None:
    from kinetic_orchestration.protocol.system import processes

    processes.end_descendants(os.getpid())


def begin(isolated: bool, command: list[str]) -> None:
    libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if isolated:
        must(libc.mount(b"none", b"/", None, _PRIVATE, None))
        must(libc.mount(b"proc", b"/proc", b"proc", 0, None))
    os.setsid()  # a signal to its group is not one to this process's parent
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.execvp(command[0], command)


def reaped() -> dict[int, int]:
    """Return the exit codes of the children that have ended."""
    codes: dict[int, int] = {}
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            code = os.waitstatus_to_exitcode(found[1])
            codes[found[0]] = 128 - code if code < 0 else code
    except ChildProcessError:
        pass
    return codes


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
