"""The command line: an interface to the public API.

`main` reads the arguments, runs one command and turns its end into an exit code. The commands are in modules below it
and are imported when they run, so that `--help` is fast. It knows nothing of how jobs work.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from kinetic_orchestration.cli import codes
from kinetic_orchestration.cli.streams import guarded
from kinetic_orchestration.protocol.system import escaping

# The commands' modules, of this package if not named whole; a command's function has its name.
COMMANDS = {
    "init": "setup",
    "deinit": "setup",
    "doctor": "doctor",
    "accelerators": "hardware",
    "plan": "planning",
    "lock": "tools",
    "stage-tools": "tools",
    "jobs": "jobs",
    "status": "jobs",
    "logs": "jobs",
    "result": "jobs",
    "cancel": "jobs",
    "shell": "running_hosts",
    "port-forward": "running_hosts",
    "tensorboard": "running_hosts",
    "reap": "upkeep",
    "capacity": "upkeep",
    "cost": "upkeep",
    "shares": "upkeep",
    "slices": "upkeep",
    "release": "upkeep",
    "prices": "hardware",
    "emulator": "emulator",
    "verify": "verify",
    "ui": "kinetic_orchestration.ui.command",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; its exit code."""
    _never_fail_to_print()
    with guarded():
        return _answered(argv)


def _answered(argv: Sequence[str] | None) -> int:
    from kinetic_orchestration.cli.parser import read

    try:
        try:
            arguments = read(sys.argv[1:] if argv is None else argv)
            code = _run(_command(arguments.command), arguments)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return codes.INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return codes.OK
    return code


def _command(name: str) -> Callable[[Any], int]:
    import importlib

    own = "" if "." in COMMANDS[name] else "kinetic_orchestration.cli.commands."
    module = importlib.import_module(own + COMMANDS[name])
    command: Callable[[Any], int] = getattr(module, name.replace("-", "_"))
    return command


def _run(command: Callable[[Any], int], arguments: Any) -> int:
    import warnings

    from kinetic_orchestration.errors import KineticError

    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            return command(arguments)
        except BrokenPipeError:
            raise
        except (KineticError, OSError) as error:
            if arguments.debug:
                raise
            sys.stdout.flush()
            sys.stderr.write(f"kinetic: error: {escaping.log(_text(error))}\n")
            return codes.of(error)


def _text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    sys.stderr.write(f"kinetic: warning: {escaping.text(str(message))}\n")


def _never_fail_to_print() -> None:
    """A terminal that cannot show a character shows another in its place."""
    for stream in (sys.stdout, sys.stderr):
        if (getattr(stream, "encoding", "") or "").lower().replace("-", "") != "utf8":
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(errors="backslashreplace")


def _forget_stdout() -> None:
    """The reader has left (`logs … | head`); what is still buffered must not raise at exit."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass
