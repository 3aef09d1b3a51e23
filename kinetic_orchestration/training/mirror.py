"""A local folder for trainers that keep their own checkpoints as files, mirrored into `checkpoint_dir`.

Each host sends what it wrote once that has been quiet for a while, and at the program's end: files by their digests,
then one record that names them all, so that a host that is killed leaves the state before. The next attempt's hosts
get the files of all. Does not know what is in them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinetic_orchestration.agent import wire
from kinetic_orchestration.agent.digest import plain_of_file
from kinetic_orchestration.context import HostContext
from kinetic_orchestration.errors import CheckpointError
from kinetic_orchestration.training import commits

QUIET = 2.0  # seconds in which nothing was written, after which what there is counts as whole
PACE = 0.5
MOST = 100_000  # files
RECORD = 64 << 20

Seen = Mapping[str, tuple[int, int]]  # size and time of each file, by its path

_mirrors: dict[str, Mirror] = {}  # by their addresses
_lock = threading.Lock()


def folder_of(host: HostContext, name: str) -> str:
    """The local folder that is mirrored into `<checkpoint_dir>/<name>`; where that is on a file system, it itself."""
    if not re.fullmatch(r"[\w-][\w.-]*", name):
        raise CheckpointError(f"name is {name!r}: it names a folder, so give letters, digits, '.', '_' and '-'")
    address = f"{host.checkpoint_dir}/{name}"
    if not address.startswith("gs://"):
        os.makedirs(address, exist_ok=True)
        return address
    with _lock:
        if address not in _mirrors:
            _mirrors[address] = Mirror(address, host)
        return _mirrors[address].folder


def close() -> None:
    """The program is at its end, or its function has failed."""
    for mirror in list(_mirrors.values()):
        mirror.close()


class Mirror:
    """One host's."""

    def __init__(self, address: str, host: HostContext) -> None:
        from kinetic_orchestration.agent.cloud import CloudRecords

        self.address = address
        self.folder = tempfile.mkdtemp(prefix="kinetic-checkpoints-")
        self._records = CloudRecords(address)
        self._own = f"host-{host.host_index:05d}"
        self._writer = f"{host.job_id.removeprefix('job-')[:16]}-{host.attempt}"
        self._digests: dict[tuple[str, int, int], str] = {}
        self._of_others: dict[str, tuple[int, int]] = {}  # files that they left, and send themselves
        self._sent: Seen = {}
        self._is_there = True  # in the bucket, all that was seen last
        try:
            self._restore()
        except BaseException:
            self._records.close()
            raise
        self._sent = self._seen()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kinetic-mirror", daemon=True)
        self._thread.start()
        atexit.register(close)

    def close(self) -> None:
        """At the program's end: nobody writes any more."""
        if self._over.is_set():
            return
        self._over.set()
        self._thread.join()
        try:
            self._send(self._seen())
            if self._is_there:
                shutil.rmtree(self.folder, ignore_errors=True)
        finally:
            self._records.close()

    def _seen(self) -> Seen:
        return {path: facts for path, facts in _scan(self.folder).items() if self._of_others.get(path) != facts}

    # ---- there -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        before, since = self._sent, time.monotonic()
        while not self._over.wait(PACE):
            seen = self._seen()
            if seen != before:
                before, since = seen, time.monotonic()
            elif seen != self._sent and time.monotonic() - since >= QUIET:
                self._send(seen)

    def _send(self, seen: Seen) -> None:
        if seen == self._sent:
            return
        try:
            files = {path: (self._send_one(path, *facts), facts[0]) for path, facts in seen.items()}
            if self._seen() != seen and not self._over.is_set():
                return  # it was not at rest: again later
            record = {"files": files, "writer": self._writer}
            self._records.put(f"{self._own}/{self._writer}.json", wire.encode(record))
            self._sent, self._is_there = seen, True
            self._forget({digest for digest, _ in files.values()})
        except FileNotFoundError:  # removed or written to meanwhile
            return
        except OSError as error:
            self._is_there = False
            self._sent = seen  # once is enough, until something changes
            _say(f"what {self.folder} holds could not be sent to {self.address}: {error}")

    def _send_one(self, path: str, size: int, changed: int) -> str:
        known = (path, size, changed)
        whole = os.path.join(self.folder, path)
        if known not in self._digests:
            digest = plain_of_file(whole)
            name = f"{self._own}/{_named(digest)}"
            self._records.upload(name, whole)
            if _facts(whole) != (size, changed):
                self._records.delete(name)  # its bytes may be others
                raise FileNotFoundError(path)
            self._digests[known] = digest
        return self._digests[known]

    def _forget(self, needed: set[str]) -> None:
        """What no record of this host names any more, unless a later attempt is at work there."""
        there = [entry.name.removeprefix(f"{self._own}/") for entry in self._records.list(f"{self._own}/")]
        writers = [name.removesuffix(".json") for name in there if name.endswith(".json")]
        if any(commits.succeeds(other, self._writer) for other in writers):
            return
        kept = {f"{self._writer}.json", *map(_named, needed)}
        for name in there:
            if name not in kept:
                self._records.delete(f"{self._own}/{name}")

    # ---- here ------------------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        """The files of all hosts: of each the newest record; where two have one path, that of the lower host stays."""
        newest: dict[str, tuple[float, str]] = {}
        for entry in self._records.list("host-"):
            of, _, name = entry.name.partition("/")
            writer = name.removesuffix(".json")
            if name.endswith(".json"):
                at, other = newest.get(of, (-1.0, ""))
                if commits.succeeds(writer, other) or (entry.updated >= at and not commits.succeeds(other, writer)):
                    newest[of] = (entry.updated, writer)
        for of, (_, writer) in sorted(newest.items(), key=lambda pair: pair[0] != self._own):
            record = self._records.read(f"{of}/{writer}.json", limit=RECORD)
            if record is None:
                continue
            for path, digest, size in _checked(record.data, f"{self.address}/{of}/{writer}.json"):
                self._fetch(of, path, digest, size)

    def _fetch(self, of: str, path: str, digest: str, size: int) -> None:
        target = os.path.join(self.folder, path)
        if os.path.exists(target):
            return
        os.makedirs(os.path.dirname(target), exist_ok=True)
        self._records.download(f"{of}/{_named(digest)}", target, most=size)
        if os.path.getsize(target) != size or plain_of_file(target) != digest:
            os.unlink(target)
            raise CheckpointError(
                f"{self.address}/{of}/{_named(digest)}, {path}, is not what was sent: remove {self.address} to begin "
                "anew, or restore the object from a version of the bucket"
            )
        if of != self._own:
            self._of_others[path] = _facts(target)
        else:
            self._digests[path, *_facts(target)] = digest


def _named(digest: str) -> str:
    return f"file-{digest}"


def _scan(folder: str) -> Seen:
    found: dict[str, tuple[int, int]] = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            with contextlib.suppress(FileNotFoundError):
                found[os.path.relpath(path, folder)] = _facts(path)
    return found


def _facts(path: str) -> tuple[int, int]:
    facts = os.stat(path)
    return facts.st_size, facts.st_mtime_ns


def _checked(data: bytes, name: str) -> list[tuple[str, str, int]]:
    """What a record names: foreign until it is looked at."""
    found: list[tuple[str, str, int]] = []
    try:
        files: Any = wire.decode(data, name)["files"]
        for path, (digest, size) in files.items():
            parts = Path(path).parts
            inside = bool(parts) and not os.path.isabs(path) and not {"..", ".", ""}.intersection(path.split("/"))
            if not inside or "\0" in path or not isinstance(digest, str) or type(size) is not int or size < 0:
                raise ValueError(path)
            if not re.fullmatch("[0-9a-f]{64}", digest):
                raise ValueError(digest)
            found.append((path, digest, size))
        if len(found) > MOST:
            raise ValueError(len(found))
    except (wire.Unreadable, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{name} is not a record of mirrored files: remove it to go on without") from error
    return found


def _say(text: str) -> None:
    sys.stderr.write(f"kinetic: {text}\n")
    sys.stderr.flush()
