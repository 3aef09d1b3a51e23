"""A platform as another package brings it: each host is a process of this machine, at a priority of the user's choice.

The backend `subprocesses`. It imports the public names alone, and shares no code with the local backend.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.platforms import (
    ABSENT,
    GONE,
    PARTIAL,
    PRESENT,
    WOUNDED,
    Assignment,
    CloudOptions,
    Freed,
    Observation,
    Past,
    Plan,
    Platform,
    RateLimit,
    Settings,
    Slice,
    Submission,
    Traits,
)
from kinetic_orchestration.platforms.shared import agent_zip
from kinetic_orchestration.protocol.system import processes


@dataclass(frozen=True, slots=True)
class Subprocesses(CloudOptions):
    """Options of the backend `subprocesses`.

    Attributes:
        nice: By how much the hosts yield to other processes.
    """

    nice: int = 0


class SubprocessBackend:
    kind = "subprocesses"
    charges = shared = False
    parallel = 1

    def __init__(self, settings: Settings) -> None:
        self._home = settings.home
        self._runs = settings.home / "subprocesses"

    def resolve(self, plan: Plan) -> Plan:
        return plan

    def check(self, plan: Plan) -> None:
        if not 0 <= plan.cloud["nice"] < 20:
            raise UsageError(f"nice is a number from 0 to 19, not {plan.cloud['nice']!r}")

    def require(self, plan: Plan) -> None:
        """There is nothing that a job could lack."""

    def prepare(self) -> None:
        """There is nothing to load."""

    def emulates(self, slice_: Slice) -> bool:
        return slice_.kind != "cpu"

    def dry_run(self, plan: Plan) -> str:
        return f"{plan.hosts} × nice -n {plan.cloud['nice']} python"

    def place(self, plan: Plan, job_id: str, attempt: int, previous: Past | None = None) -> dict[str, Any]:
        run = str(self._runs / f"{job_id.removeprefix('job-')}-{attempt}")
        return {"backend": "subprocesses", "run": run, "hosts": plan.hosts}

    def submit(self, asked: Submission) -> str:
        run = Path(asked.intent.placement["run"])
        run.mkdir(parents=True, exist_ok=True)
        agent = agent_zip.unpacked(self._home) / "__main__.py"
        private = {"env": dict(asked.secrets), "seal": {"key": asked.key} if asked.key else {}}
        for host in range(asked.plan.hosts):
            subprocess.run(
                [
                    *("nice", "-n", str(asked.plan.cloud["nice"])),
                    *(sys.executable, "-I", str(agent), *self._assignment(asked, host).words()),
                ],
                input=json.dumps(private).encode(),
                env={**os.environ, "KINETIC_PLACEMENT": str(run)},
                start_new_session=True,
                check=True,
                timeout=60,
            )  # it ends once the host holds its lock: a second one for the same host ends as well
        return ""

    def _assignment(self, asked: Submission, host: int) -> Assignment:
        run = asked.intent.placement["run"]
        return Assignment(
            store=f"{asked.plan.store}/{asked.plan.deployment}",
            job=asked.job_id,
            attempt=asked.intent.attempt,
            host=host,
            hosts=asked.plan.hosts,
            spec=asked.spec_digest,
            boot=f"{asked.intent.boot}/{host}",
            run=run,
            home=str(self._home),
            python="",
            marker=_marker(run),
        )

    def observe(self, placements: Sequence[Mapping[str, Any]]) -> list[Observation]:
        return [self._observe(placement) for placement in placements]

    def _observe(self, placement: Mapping[str, Any]) -> Observation:
        """A host has its lock's file from its start to its end. If it was killed, the file remains."""
        alive = [_is_alive(lock) for lock in self._locks(placement)]
        if not alive:
            return Observation(ABSENT)
        if not all(alive):
            return Observation(WOUNDED if any(alive) else GONE, "the process of a host was killed")
        return Observation(PRESENT if len(alive) == placement["hosts"] else PARTIAL)

    def rate_limit(self, placement: Mapping[str, Any]) -> RateLimit | None:
        return None

    def names_place(self, placement: Mapping[str, Any]) -> bool:
        return True

    def cancel(self, placement: Mapping[str, Any]) -> None:
        """Hosts read the record of it by themselves."""

    def leftovers(self) -> Iterator[dict[str, Any]]:
        for run in sorted(self._runs.iterdir()) if self._runs.is_dir() else ():
            if (found := re.fullmatch(r"([0-9a-z]+)-(\d+)", run.name)) is not None:
                try:
                    age = time.time() - run.stat().st_mtime
                except FileNotFoundError:  # the last host removed it at its end
                    continue
                yield {
                    "backend": "subprocesses", "run": str(run), "hosts": 0, "job": f"job-{found[1]}",
                    "attempt": int(found[2]), "age": age,
                }  # fmt: skip

    def secrets(self) -> tuple[tuple[str, str], ...]:
        return ()

    def forget(self, secret: str, job_id: str) -> bool:
        return True

    def release(self, placement: Mapping[str, Any]) -> Freed:
        if not self._is_mine(placement):
            return Freed.DONE
        if found := [*processes.marked(_marker(placement["run"])), *self._guards(placement)]:
            for process in found:
                processes.send(process.pid, signal.SIGKILL)
            return Freed.REFUSED  # asked for once more, it removes the folder
        shutil.rmtree(placement["run"], ignore_errors=True)
        return Freed.DONE

    def _guards(self, placement: Mapping[str, Any]) -> list[processes.Process]:
        owners = [_owner(lock) for lock in self._locks(placement)]
        return [found for owner in owners if owner and (found := processes.find(owner["pid"])) is not None]

    def _locks(self, placement: Mapping[str, Any]) -> list[Path]:
        try:
            files = list(Path(placement["run"]).iterdir()) if self._is_mine(placement) else []
        except FileNotFoundError:  # the last host removes it at its end
            return []
        return sorted(file for file in files if re.fullmatch(r"host-\d+\.json", file.name))

    def _is_mine(self, placement: Mapping[str, Any]) -> bool:
        return Path(placement["run"]).parent == self._runs


def _marker(run: str) -> str:
    return f"KINETIC_PLACEMENT={run}"


def _owner(lock: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(lock.read_text() or "{}"))
    except FileNotFoundError:
        return {}


def _is_alive(lock: Path) -> bool:
    owner = _owner(lock)
    return not owner or processes.alive(owner["pid"], owner["started"])  # it writes its name as soon as it starts


PLATFORM = Platform(Traits(agents_observed=True, options=Subprocesses), SubprocessBackend)
