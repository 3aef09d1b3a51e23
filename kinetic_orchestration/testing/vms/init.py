"""The first process of an emulated VM: runs the startup script once, adopts and collects orphans, and ends last.

SIGTERM is the power button: everything gets SIGTERM, and the VM is off when the last process has ended. Without a
namespace SIGUSR1 is the end of the power: only this process, which adopts all others, is told of each that is born.
Started by its path with nothing but the standard library. Knows no cloud.

    init.py namespace CONSOLE SCRIPT     process 1 of a pid namespace
    init.py session CONSOLE SCRIPT       without namespaces; the end of its standard input is the end of the VM
"""

from __future__ import annotations

import _thread
import errno
import os
import signal
import sys
import time

_starting = _thread.allocate_lock()  # nothing is started once the end has begun; `threading` takes long to import


def main(kind: str, console: str, script: str) -> None:
    output = os.open(console, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    events = {signal.SIGCHLD, signal.SIGTERM} | ({signal.SIGUSR1} if kind == "session" else set())
    signal.pthread_sigmask(signal.SIG_BLOCK, events)
    if kind == "session":
        _end_with_parent()
    if script:
        with _starting:
            _start(script)
    off = False
    while True:
        number = signal.sigwait(events)
        if number == signal.SIGUSR1:
            _end()
        if number == signal.SIGTERM:
            off = True
            _terminate(kind)
        if _childless() and off:
            return


def _start(script: str) -> None:
    nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    with open(script, "rb") as file:  # noqa: PTH123 - pathlib would be half of the time until the script runs
        # the guest agent of Compute Engine hands a script without a `#!` line to the shell
        command = [script] if file.read(2) == b"#!" else ["/bin/sh", script]
    for pause in [0.01] * 100 + [0.0]:
        try:
            os.posix_spawn(command[0], command, os.environ, file_actions=[nothing], setsigmask=[])
            return
        except OSError as error:
            if error.errno != errno.ETXTBSY or not pause:
                print(f"startup-script: {error}", file=sys.stderr, flush=True)
                return
        time.sleep(pause)  # a process that is just starting in the emulator still has the written file open


def _terminate(kind: str) -> None:
    if kind == "namespace":
        try:
            os.kill(-1, signal.SIGTERM)  # all of the namespace but this process
        except ProcessLookupError:
            pass
        return
    from kinetic_orchestration.protocol.system import processes

    for process in processes.descendants(os.getpid()):
        processes.send(process.pid, signal.SIGTERM)


def _childless() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def _end_with_parent() -> None:
    """End everything below this process when the process at the other end of standard input is gone."""
    import threading

    root = os.path.abspath(__file__)
    for _ in range(4):  # out of vms/, testing/ and the package
        root = os.path.dirname(root)
    sys.path.insert(0, root)
    from kinetic_orchestration.protocol.system import processes

    processes.adopt_orphans()

    def watch() -> None:
        while os.read(0, 1):
            pass
        with _starting:
            _end()

    threading.Thread(target=watch, daemon=True).start()


def _end() -> None:
    from kinetic_orchestration.protocol.system import processes

    processes.end_descendants(os.getpid())
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
