"""Checkpoints that a trainer writes as files: which of them are complete, on all hosts, and which are not needed.

Beside the files of a checkpoint each host leaves a record of them, once all hosts have written theirs. A checkpoint is
complete if it has the records of all hosts of one attempt, and every file that these name: so neither a kill in the
middle of a save nor one in the middle of an upload leaves one that is taken. On a file system each attempt writes into
a folder of its own, so that an old program, which may still run, writes beside its successor's files and not among
them; from a bucket each has copies of its own anyway. Knows no trainer: `torch` does.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from kinetic_orchestration.errors import Superseded, Unreachable
from kinetic_orchestration.host.machine import buckets
from kinetic_orchestration.program.checkpoints.tier import mirror
from kinetic_orchestration.program.loop import FIRST_MEETING, PATIENCE, Training

RECORD = re.compile(r"kinetic-\d{5}\.json")
ATTEMPT = re.compile(r"[\w.-]+-\d+")  # the folder of one
LARGEST = 16 << 20  # bytes of a record
MOST_HOSTS = 100_000


class FileCheckpoints(Training):
    """A training whose state is in files, each checkpoint in a folder `<prefix>-<step>`; on a file system below one of
    its attempt.

    All hosts call `newest` before the training, `begin`, and after each step `reached`, which says if a checkpoint is
    to be written; then each writes its files below `path`, and calls `commit`.
    """

    def __init__(self, name: str, prefix: str, *, every: int | str | None, keep: int, total: int = 0) -> None:
        super().__init__(name=name, every=every, keep=keep, total=total, tier=None)
        self._folder = re.compile(rf"{re.escape(prefix)}-(\d{{1,12}})")
        self._prefix = prefix
        self.folder = ""  # into which this attempt writes
        self._all = ""  # with those of all attempts
        self.resumed: int | None = None  # the step of the checkpoint that `newest` has found
        self._asked = 0
        self._written: dict[int, str] = {}  # checkpoints whose record this host has, by their steps, oldest first
        self._found: set[str] = set()  # what earlier attempts have left
        self.is_wanted = self.is_last = False  # a checkpoint of the step that was reached; and nothing after it

    # ---- before the first step ---------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the folder, which contains what earlier attempts have left. A name that was used has another one."""
        if not self.folder:
            self._open()
            host = self._host
            self.folder = self._all = host.checkpoint_path(f"{self._name}-files")
            if host.job_id and not buckets.in_bucket(host.checkpoint_dir):
                self.folder = os.path.join(self._all, f"{host.job_id.removeprefix('job-')[:16]}-{host.attempt}")
                os.makedirs(self.folder, exist_ok=True)

    def newest(self) -> str | None:
        """Return the folder of the newest checkpoint that is complete on all hosts; removes those that are not, and
        what is newer. None if there is none."""
        self.open()
        there = self._there()
        complete = sorted((step, name) for name, step in there.items() if is_complete(os.path.join(self._all, name)))
        lists = [complete]
        if self._checkpoints is not None:
            self._asked += 1
            told = self._checkpoints.agreement.gather(f"complete-{self._asked}", complete, PATIENCE)
            lists = [[(step, name) for step, name in one] for one in told]
        # Of two attempts' checkpoints of one step either is whole, and all hosts take the same.
        common = dict(sorted(set(lists[0]).intersection(*lists[1:])))
        self.resumed = max(common, default=None)
        self._remove(name for name in there if name not in common.values())
        self._written = {step: os.path.join(self._all, name) for step, name in common.items()}
        self._found = set(self._written.values())
        return None if self.resumed is None else self._written[self.resumed]

    def begin(self, done: int, total: int = 0) -> None:
        """Go on after so many steps, as the trainer does."""
        self.open()
        self._total = self._total or total
        now = time.monotonic()
        with self._lock:
            self._begun = done + 1
        self._done = self._met = done
        self._meeting = done + FIRST_MEETING
        self._saved_at = self._meeting_at = now
        if done:
            self._saved = self._tried = done
            self.say(f"goes on after step {done}")
        elif self.resumed:
            self.say(f"begins anew beside a checkpoint of step {self.resumed}: give the trainer what newest() returns")
        self.speed.begin()
        self._spent.restored(done, now, now)

    # ---- every step --------------------------------------------------------------------------------------------------

    def reached(self, done: int, metrics: Mapping[str, Any]) -> bool:
        """Report a step that is done. Returns True if a checkpoint of it is to be written now.

        Raises:
            TrainingEnded: The training has to end here, without a checkpoint.
        """
        self.is_wanted = self.is_last = False
        self.advance(done, None, metrics, {})
        return (self.is_wanted or self.is_last) and done != self.newest_written

    def _save(self, done: int, *_: Any, **__: Any) -> None:
        """A checkpoint is due, which the trainer writes."""
        self._tried = done
        self.is_wanted = True

    def _end_if_agreed(self, done: int, state: Any, more: Mapping[str, Any]) -> None:
        assert self._notice is not None
        self._agreed.wait(self._notice.grace)
        if self._final is None or (done >= self._final and not self._notice.saves):
            self._end(done, saved=False)
        self.is_last = done >= self._final

    def end_if_last(self, done: int) -> None:
        """Raise TrainingEnded if this step is the last one, and its checkpoint is written."""
        if self.is_last:
            self._end(done, saved=done == self._saved)

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    @property
    def newest_written(self) -> int | None:
        """The step of the newest checkpoint whose record this host has."""
        return next(reversed(self._written), None)

    def path(self, step: int) -> str:
        """The folder of a checkpoint, also of an earlier attempt's; one that is not there yet is written there."""
        return self._written.get(step) or self._path(step)

    def _path(self, step: int) -> str:
        return os.path.join(self.folder, f"{self._prefix}-{step}")

    def write(self, step: int, write: Callable[[str], Any]) -> None:
        """Have a function write this host's files into a folder, on all hosts, and commit them."""
        began = time.monotonic()
        self.open()
        path = self._path(step)
        os.makedirs(path, exist_ok=True)
        write(path)
        self.commit(step, began=began)

    def commit(self, step: int, *, began: float = 0.0, protected: Collection[str] = ()) -> None:
        """Record that this host's files of a checkpoint are written, once those of all hosts are; and remove
        checkpoints that are no longer needed. `protected`: folders that stay."""
        began = began or time.monotonic()
        sent = min(self._of_all(step, self._newest_sent()))
        path, host = self._path(step), self._host
        os.makedirs(path, exist_ok=True)
        record = {
            "hosts": self._hosts, "writer": f"{host.job_id}-{host.attempt}", "step": step, "files": _files(path),
        }  # fmt: skip
        name = os.path.join(path, f"kinetic-{host.host_index:05d}.json")
        Path(f"{name}.tmp").write_text(json.dumps(record), encoding="utf-8")
        os.replace(f"{name}.tmp", name)
        self._saved = self._tried = step
        self._written = {one: name for one, name in self._written.items() if one < step} | {step: path}
        self._forget(sent, protected)
        self._saved_at = time.monotonic()
        self.leave_out(self._saved_at - began, stall=True)

    def _of_all(self, step: int, value: int) -> list[int]:
        """Return the value of every host, once all are here."""
        distributed: Any = getattr(sys.modules.get("torch"), "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            found: list[Any] = [None] * distributed.get_world_size()
            distributed.all_gather_object(found, value)
            return found
        if self._checkpoints is None:
            return [value]
        return self._checkpoints.agreement.gather(f"written-{step}", value, PATIENCE)

    def _newest_sent(self) -> int:
        """Return the newest step whose files of this host are where the next attempt finds them; -1 for none."""
        sender = mirror._mirrors.get(f"{self._host.checkpoint_dir}/{self._name}-files")
        own = f"kinetic-{self._host.host_index:05d}.json"
        for step in reversed(self._written):
            if sender is None or f"{os.path.relpath(self._written[step], self._all)}/{own}" in sender._sent:
                return step
        return -1

    def _forget(self, sent: int, protected: Collection[str]) -> None:
        """Remove checkpoints, but the newest ones and the one that the next attempt would find now. What another
        attempt has written since is its own."""
        steps = list(self._written)
        kept = {self.path(step) for step in {*steps[-self._keep :], sent}} | set(map(os.path.abspath, protected))
        own = os.path.relpath(self._path(0), self._all).rpartition("/")[0]
        gone = []
        for name, step in self._there().items():
            path = os.path.join(self._all, name)
            is_known = path in self._found or name.rpartition("/")[0] == own
            if step < steps[-1] and is_known and not {path, os.path.abspath(path)} & kept:
                gone.append(name)
        self._remove(gone)

    def _remove(self, names: Any) -> None:
        gone = sorted(names)
        is_shared = self._host.host_index > 0 and not buckets.in_bucket(self._host.checkpoint_dir)
        if not gone or is_shared:  # then it is host 0's
            return
        with contextlib.suppress(Unreachable, Superseded):  # then the next time, or the next attempt
            if self._host.job_id:
                self._host.fence()
            for name in gone:
                path = os.path.join(self._all, name)
                shutil.rmtree(path, ignore_errors=True)
                if (above := os.path.dirname(path)) not in (self.folder, self._all):
                    with contextlib.suppress(OSError):  # it has others
                        os.rmdir(above)

    def _there(self) -> dict[str, int]:
        """The steps of all checkpoints, by their names below the folder of all attempts."""
        found = {}
        for name in os.listdir(self._all):
            if self._folder.fullmatch(name):
                found[name] = self._step(name)
            elif ATTEMPT.fullmatch(name):
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    inside = os.listdir(os.path.join(self._all, name))
                    found |= {f"{name}/{one}": self._step(one) for one in inside if self._folder.fullmatch(one)}
        return found

    def _step(self, name: str) -> int:
        return int(name.rpartition("-")[2])


def is_complete(folder: str) -> bool:
    """Return True if a checkpoint has the records of all of its hosts, and all files that they name."""
    first = _record(folder, 0)
    if first is None:
        return False
    hosts, writer = first.get("hosts"), first.get("writer")
    if type(hosts) is not int or not 0 < hosts <= MOST_HOSTS:
        return False
    records = [first, *(_record(folder, host) for host in range(1, hosts))]
    return all(
        one is not None
        and (one.get("hosts"), one.get("writer")) == (hosts, writer)
        and _are_there(folder, one.get("files"))
        for one in records
    )


def _record(folder: str, host: int) -> dict[str, Any] | None:
    """Return a host's record; None if it is missing or damaged."""
    try:
        with Path(folder, f"kinetic-{host:05d}.json").open("rb") as file:
            found = json.loads(file.read(LARGEST))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _are_there(folder: str, files: Any) -> bool:
    if not isinstance(files, dict):
        return False
    try:
        return all(os.path.getsize(os.path.join(folder, name)) == size for name, size in files.items())
    except (OSError, ValueError):
        return False


def _files(folder: str) -> dict[str, int]:
    """Return the sizes of a checkpoint's files by their paths within it."""
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            if not RECORD.fullmatch(name.removesuffix(".tmp")):
                found[os.path.relpath(path, folder)] = os.path.getsize(path)
    return found
