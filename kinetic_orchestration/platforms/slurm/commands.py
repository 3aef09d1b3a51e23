"""Slurm's own commands: the one way to its controller that every cluster has. Knows no jobs of ours.

Each call is bounded in time and in what is read of it. Of this process's environment go along where Slurm is and
nothing else of it: within a job of Slurm, `SLURM_*` and `SBATCH_*` would size the next one.
"""

from __future__ import annotations

import os
import re
import select
import selectors
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple

from kinetic_orchestration.errors import BackendError
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.system import copies

PATIENCE = 20.0  # seconds; a controller that is busy answers late
LONGEST = 32 << 20  # bytes of an answer: a row of squeue has some hundred
LAST = 4000  # bytes of a command's errors
PIECE = 1 << 16
_OURS = ("SLURM_", "SBATCH_", "SQUEUE_", "SINFO_", "SALLOC_", "SCANCEL_", "SCONTROL_", "SRUN_")
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
GONE = "Invalid job id"  # of a job that has ended, or was never there: Slurm forgets it after MinJobAge
_SILENT = (  # slurm_strerror of 22.05 to 24.11, and what its commands say besides
    "Unable to contact slurm controller", "Socket timed out", "Connection refused", "backup controller in standby",
    "Zero Bytes were transmitted", "Unexpected message received", "Transport endpoint", "temporarily unable",
    "Resource temporarily unavailable", "Connection timed out", "Connection reset by peer", "No route to host",
    "Broken pipe", "fatal: Could not establish a configuration source",
)  # fmt: skip


class Silent(BackendError):
    """The controller does not answer, or not now: nothing follows from it."""


class Refused(BackendError):
    """Slurm has refused a call; the message is its own."""


class Said(NamedTuple):
    """The answer of a command: its exit code, and what it wrote."""

    code: int
    out: str
    errors: str


def run(
    words: Sequence[str], *, said: str = "", patience: float = PATIENCE, environ: Mapping[str, str] | None = None
) -> Said:
    """Run one of Slurm's commands.

    Args:
        words: The command and its options.
        said: Its standard input.
        patience: Seconds after which it is given up.
        environ: Its environment; by default this process's, without what belongs to a job of Slurm.

    Raises:
        Silent: There is no such command here, or the controller does not answer, or with far too much.
    """
    if shutil.which(words[0]) is None:
        raise Silent(
            f"{words[0]} is not on PATH: this machine has none of Slurm's commands. Submit from a login node of the "
            "cluster, or put them on PATH (module load slurm, on many clusters)",
            wire.CONFIGURATION,
        )
    try:
        process = subprocess.Popen(
            list(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
            env=environment() if environ is None else dict(environ),
        )  # fmt: skip
    except OSError as error:
        raise Silent(f"{words[0]} could not be started: {error.strerror}", wire.INTERNAL) from None
    with process:
        until = time.monotonic() + patience
        try:
            out, said_last = _exchange(process, said.encode(), until)
            code = process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Silent(f"Slurm gave no answer to {words[0]} within {patience:g} s", wire.INTERNAL) from None
        except _TooLong:
            raise Silent(f"{words[0]} wrote more than {LONGEST >> 20} MiB, which is no answer", wire.INTERNAL) from None
        finally:
            process.kill()
    errors = printable(said_last)
    if code and any(words in errors for words in _SILENT):
        raise Silent(f"Slurm does not answer now: {told(errors)}", wire.INTERNAL)
    return Said(code, out.decode("utf-8", "replace"), errors)


class _TooLong(Exception):
    """A command has written more than is read: of a part of its answer nothing may follow."""


def _exchange(process: subprocess.Popen[bytes], said: bytes, until: float) -> tuple[bytes, bytes]:
    """Write what a command is told, and read what it writes until it has closed both: all of its answer, and the end of
    its errors. Raises TimeoutExpired, _TooLong."""
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    out, errors, rest = bytearray(), bytearray(), memoryview(said)
    with selectors.DefaultSelector() as pipes:
        pipes.register(process.stdout, selectors.EVENT_READ, out)
        pipes.register(process.stderr, selectors.EVENT_READ, errors)
        pipes.register(process.stdin, selectors.EVENT_WRITE)
        while pipes.get_map():
            left = until - time.monotonic()
            ready = pipes.select(left) if left > 0 else []
            if not ready and time.monotonic() >= until:
                raise subprocess.TimeoutExpired(process.args, 0.0)
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    rest = _written(process.stdin, rest)
                    if not rest:
                        pipes.unregister(process.stdin)
                        process.stdin.close()
                    continue
                data = os.read(key.fd, PIECE)
                if not data:
                    pipes.unregister(key.fileobj)
                key.data.extend(data)
            del errors[:-LAST]
            if len(out) > LONGEST:
                raise _TooLong
    return bytes(out), bytes(errors)


def _written(pipe: IO[bytes], rest: memoryview) -> memoryview:
    """Write a piece that fits into the pipe, and return what is left; nothing if the command takes no more."""
    try:
        return rest[os.write(pipe.fileno(), rest[: select.PIPE_BUF]) :] if rest else rest
    except BrokenPipeError:
        return rest[:0]


def environment() -> dict[str, str]:
    """Return this process's environment without what belongs to the job of Slurm that it may be part of."""
    found = {name: value for name, value in copies.environ().items() if name in _KEPT or not name.startswith(_OURS)}
    # squeue's times as seconds, and messages in the words that this module knows
    return {**found, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


def printable(data: bytes) -> str:
    """Return what a command has written, without what could control a terminal."""
    return re.sub(r"[^\n\x20-\x7e\u00a0-\uffff]", "?", data.decode("utf-8", "replace"))


def told(errors: str) -> str:
    """Return the last sentence of a command's errors, without the command's name."""
    lines = [line for line in errors.splitlines() if line.strip()]
    return re.sub(r"^\w+: (error: |fatal: )*", "", lines[-1])[:500] if lines else "it said nothing"


def user() -> str:
    """Return the number of this process's user, whose jobs alone are looked at."""
    return str(os.getuid())
