"""`current()`: the host on which a function runs, with a harmless stand-in anywhere else."""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from kinetic_orchestration.host.process.topology import TRACE
from kinetic_orchestration.protocol.report.frames import SPENT
from kinetic_orchestration.protocol.system import copies

# Errors of a disk: a line that cannot be written must not fail the program.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class HostContext:
    """The host on which this code runs. Outside a job: one host of one, temporary folders, and nothing is recorded.

    Attributes:
        job_id: Id of the job; "" outside a job.
        attempt: Number of the attempt, from 1; attempts that never had hosts are not counted.
        host_index: Index of this host in the slice.
        host_count: Number of hosts in the slice.
        output_dir: Folder that is kept after the job, the same for all attempts and hosts.
        checkpoint_dir: Folder that is the same for all attempts, and for the next job of the same `key` after a
            failure.
        partition_key: The partition of the asset or task, or the option of this name.
        reshard: The option of this name.
        global_batch: The option of this name; 0 without it.
    """

    job_id: str = ""
    attempt: int = 1
    host_index: int = 0
    host_count: int = 1
    output_dir: str = ""
    checkpoint_dir: str = ""
    partition_key: str = ""
    reshard: bool = False
    global_batch: int = 0
    _events: str = ""
    _notice: str = ""
    _fence: int = 1
    _store: str = ""
    _usd_per_hour: float = 0.0  # of all hosts, at most; 0.0: nobody has asked for it, or none is known
    _emulated: bool = False  # its hardware, so that rates and costs say nothing of the real one
    _tier: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # variables; one of them is a key

    def fence(self) -> int:
        """Return the token of this attempt, after checking that the attempt is the newest.

        Send it along with writes outside the job, to a service that refuses smaller tokens. It grows from attempt to
        attempt, and also counts zones without capacity, which `attempt` does not.

        Raises:
            Superseded: The attempt is over by the job's records, or these are gone: another one may have begun.
            Unreachable: The records could not be read.
        """
        if self._store:
            _check_newest(self._store, self.job_id, self._fence)
        return self._fence

    def log_metrics(self, step: int | None = None, **values: float) -> None:
        """Report metrics. The orchestrator shows them live, and they are stored with the log.

        Args:
            step: Step that they belong to, if any.
            **values: Numbers by name.
        """
        self._record("m", {"step": step, "values": {name: float(value) for name, value in values.items()}})

    def progress(self, done: float, total: float = 0, unit: str = "", *, rate: float = 0) -> None:
        """Report progress. Also resets the stall timer.

        Args:
            done: Amount of work done.
            total: Amount of all work; 0 if unknown.
            unit: Unit of both.
            rate: Work done per second; 0 if unknown.
        """
        told = {"done": float(done), "total": float(total), "unit": unit}
        self._record("p", {**told, "rate": float(rate)} if rate else told)
        if TRACE in os.environ and self._events:
            from kinetic_orchestration.host.process.frameworks import profiler

            if (asked := profiler.current()) is not None:
                asked.progressed(done)

    def checkpoint_path(self, name: str = "files") -> str:
        """Return a local folder for a trainer that writes checkpoints of its own as files.

        In a bucket the folder is mirrored into `<checkpoint_dir>/<name>`, and contains what earlier attempts left
        there.

        Args:
            name: Name of the folder.

        Raises:
            CheckpointError: The name cannot be a folder's, or the folder cannot be filled.
        """
        from kinetic_orchestration.program.checkpoints.tier.mirror import folder_of

        return folder_of(self, name)

    def refuse(self, reason: str) -> NoReturn:
        """End the job for what another attempt would meet again, such as the number of hosts. It is not tried again.

        Args:
            reason: What cannot be, why, and what to do instead.

        Raises:
            Unsupported: Always, with the reason.
        """
        from kinetic_orchestration.errors import Unsupported

        raise Unsupported(reason)

    def _spent(self, name: str, spent: list[float]) -> None:
        """Report the time of a training by its uses, in place of the last report."""
        self._record(SPENT, {"name": name, "spent": spent})

    def _record(self, kind: str, fields: dict[str, Any]) -> None:
        if not self._events:
            return
        line = kind + json.dumps(fields, separators=(",", ":")) + "\n"
        try:
            events = os.open(self._events, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(events, line.encode())
            finally:
                os.close(events)
        except OSError as error:
            if error.errno not in _FULL:
                from kinetic_orchestration.protocol.records.base import RecordsError, reason_of

                told = f"Cannot tell this host's agent ({self._events}): {reason_of(error)}."
                raise RecordsError(error.errno, told) from error


class _Here:
    """An argument of a job that becomes the context of the host that it is sent to."""

    def __reduce__(self) -> Any:
        return current, ()


HERE = _Here()


def current() -> HostContext:
    """Return the context of this host.

    Raises:
        KineticError: The process is on a host, and its environment was changed.
    """
    environ = copies.environ()
    if not environ.get("KINETIC_EVENTS"):
        output_dir = environ.get("KINETIC_OUTPUT_DIR") or _temporary("output")
        return HostContext(output_dir=output_dir, checkpoint_dir=_temporary("checkpoints"))
    try:
        told = _of_host(environ)
    except (KeyError, ValueError) as error:
        from kinetic_orchestration.errors import KineticError

        raise KineticError(
            f"this process does not know which host it is: {error} is wrong with its environment. The variables that "
            "begin with KINETIC_ have to stay as the host's agent set them"
        ) from error
    return HostContext(**told)


def _of_host(environ: Mapping[str, str]) -> dict[str, Any]:
    fence, _, store = environ.get("KINETIC_FENCE", "1 ").partition(" ")
    usd_per_hour, _, emulated = environ.get("KINETIC_COSTS", "0 ").partition(" ")
    return {
        "job_id": environ["KINETIC_JOB_ID"],
        "attempt": int(environ["KINETIC_ATTEMPT"]),
        "host_index": int(environ["KINETIC_HOST_INDEX"]),
        "host_count": int(environ["KINETIC_HOST_COUNT"]),
        "output_dir": environ["KINETIC_OUTPUT_DIR"],
        "checkpoint_dir": environ["KINETIC_CHECKPOINT_DIR"],
        "partition_key": environ["KINETIC_PARTITION_KEY"],
        "reshard": bool(environ.get("KINETIC_RESHARD")),
        "global_batch": int(environ.get("KINETIC_GLOBAL_BATCH", "0")),
        "_events": environ["KINETIC_EVENTS"],
        "_notice": environ.get("KINETIC_NOTICE", ""),  # an older agent has none
        "_fence": int(fence),
        "_store": store,
        "_usd_per_hour": float(usd_per_hour),
        "_emulated": bool(emulated),
        "_tier": tuple(sorted((name, environ[name]) for name in environ if name.startswith("KINETIC_TIER_"))),
    }


def _check_newest(store: str, job_id: str, attempt: int) -> None:
    """Raise Superseded unless the attempt is the newest. `attempt` is numbered as in records, not as for users."""
    from kinetic_orchestration.errors import Superseded, Unreachable
    from kinetic_orchestration.protocol import names

    try:
        records = _records(store)
        if records.read(names.intent(job_id, attempt), 0, 1) is None:
            raise Superseded(f"attempt {attempt} of {job_id} is not known in {store} any more")
        for name, why in (
            (names.verdict(job_id, attempt), "has its verdict"),
            (names.intent(job_id, attempt + 1), "has a successor"),
        ):
            if records.read(name, 0, 1) is not None:
                raise Superseded(f"attempt {attempt} of {job_id} {why}: what it writes now may be beside a newer one")
    except OSError as error:
        raise Unreachable(f"nobody could say whether attempt {attempt} of {job_id} is the newest: {error}") from error


@functools.cache
def _records(store: str) -> Any:
    from kinetic_orchestration.host.view.open_records import open_records

    return open_records(store)


@functools.cache
def _temporary(what: str) -> str:
    """A folder of this process alone: a plain run must not find another one's checkpoints."""
    folder = tempfile.mkdtemp(prefix=f"kinetic-{what}-")
    atexit.register(_remove_if_empty, folder)
    return folder


def _remove_if_empty(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(folder)
