"""A local folder for trainers that keep their own checkpoints as files, mirrored into `checkpoint_dir`.

Each host sends what it wrote once that has been quiet for a while, and at the program's end: files by their digests,
then one record that names them all, so that a host that is killed leaves the state before. The next attempt's hosts
get the files of all. Does not know what is in them.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic_orchestration.errors import CheckpointError, KineticError
from kinetic_orchestration.host.machine import buckets
from kinetic_orchestration.program.checkpoints import commits
from kinetic_orchestration.program.checkpoints.tier.folder import open_folder
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.content.digest import plain_of_file
from kinetic_orchestration.protocol.system import kernel

if TYPE_CHECKING:
    from kinetic_orchestration.program.context import HostContext

QUIET = 2.0  # seconds without a write, after which the files count as complete
OPEN = 60.0  # the same of a file that is still open for writing
LOGS = re.compile(r"events\.out\.tfevents|\.(log|csv|jsonl)$")  # appended to all the time: nothing waits for their rest
LOGS_PACE = 30.0
PACE = 0.5
PAUSES = (5.0, 60.0)  # after a send that failed, the first and the longest
LAST = 60.0  # how long the last one is tried again
READINGS = 3
MOST = 100_000  # files
RECORD = 64 << 20
TEMPORARY = "kinetic-checkpoints-"

Facts = tuple[int, int]  # size and time
Seen = Mapping[str, Facts]  # of each file, by its path
Sent = dict[str, tuple[str, int]]  # digest and size

_mirrors: dict[str, Mirror] = {}  # by their addresses
_lock = threading.Lock()


def folder_of(host: HostContext, name: str) -> str:
    """The local folder that is mirrored into `<checkpoint_dir>/<name>`; where that is on a file system, it itself."""
    if not re.fullmatch(r"[\w-][\w.-]*", name):
        raise CheckpointError(f"name is {name!r}: it names a folder, so give letters, digits, '.', '_' and '-'")
    address = f"{host.checkpoint_dir}/{name}"
    if not buckets.in_bucket(address):
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
        self.address = address
        self._host = host
        self._records = buckets.open_place(address)
        self._own = f"host-{host.host_index:05d}"
        self._writer = f"{host.job_id.removeprefix('job-')[:16]}-{host.attempt}"
        self._after: list[str] = []  # records whose files were restored on this host
        self._digests: dict[tuple[str, int, int], str] = {}
        self._of_others: dict[str, Facts] = {}  # files that they left, and send themselves
        self._copied: dict[str, str] = {}  # digests of those
        self._sent: Seen = {}  # the files in the newest record in the bucket
        self._failed = False
        name = address.rpartition("/")[2]
        self._tier = open_folder("auto", f"@{name}", dict(host._tier), _say)  # no training has such a name
        self._scratch = _Scratch()
        self.folder = self._scratch.folder
        try:
            self._restore()
            self._sent = self._seen()
            restored = {path: (self._digests[path, *facts], facts[0]) for path, facts in self._sent.items()}
            if restored:  # their writer sees, before it removes any, that they are needed here
                self._put(restored)
            self._keep(restored)
        except BaseException:
            self._close()
            self._scratch.remove()
            raise
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kinetic-mirror", daemon=True)
        self._thread.start()
        atexit.register(close)

    def close(self) -> None:
        """Send the remaining files at the program's end, when nothing writes any longer."""
        if self._over.is_set():
            return
        self._over.set()
        self._thread.join()
        until, tries = time.monotonic() + LAST, 0
        try:
            while not (is_sent := self._send(self._seen(), moving=tries > 0)) and time.monotonic() < until:
                time.sleep(PACE)
                tries += 1
            if is_sent:
                self._scratch.remove()
            else:
                _say(f"what was not sent stays in {self.folder} of this machine")
        finally:
            self._close()

    def _close(self) -> None:
        self._records.close()
        if self._tier is not None:
            self._tier.close()

    def _seen(self) -> Seen:
        return {path: facts for path, facts in _scan(self.folder).items() if self._of_others.get(path) != facts}

    # ---- there -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        before, since = _but_logs(self._sent), time.monotonic()
        sent_at, after, pause = since, 0.0, PAUSES[0]
        while not self._over.wait(PACE):
            seen, now = self._seen(), time.monotonic()
            if _but_logs(seen) != before:
                before, since = _but_logs(seen), now
            is_due = before != _but_logs(self._sent) or (seen != self._sent and now - sent_at >= LOGS_PACE)
            if not is_due or now - since < QUIET or now < after or _is_written_to(self.folder):
                continue
            if self._send(seen):
                sent_at, after, pause = time.monotonic(), 0.0, PAUSES[0]
            elif self._failed:
                after, pause = time.monotonic() + pause, min(2 * pause, PAUSES[1])

    def _send(self, seen: Seen, *, moving: bool = False) -> bool:
        """Return False if it has to be done again: the bucket did not take it, or a file was not at rest. With `moving`
        a file that is written to is sent as it is."""
        if seen == self._sent:
            return True
        try:
            there = {entry.name for entry in self._records.list(f"{self._own}/")}
            files = {path: self._send_one(path, facts, there, moving) for path, facts in seen.items()}
            if not moving and _but_logs(self._seen()) != _but_logs(seen):
                return False
            self._put(files)
        except _Moved:
            return False
        except Exception as error:  # any error is retried
            if not self._failed:
                _say(f"what {self.folder} holds could not be sent to {self.address}, and is tried again: {error}")
            self._failed = True
            return False
        self._sent = seen
        self._keep(files)
        if self._failed:
            self._failed = False
            _say(f"what {self.folder} holds was sent to {self.address}")
        with contextlib.suppress(OSError, KineticError):  # leftovers are removed after the next one
            self._forget({digest for digest, _ in files.values()})
        return True

    def _send_one(self, path: str, facts: Facts, there: set[str], moving: bool) -> tuple[str, int]:
        """Its digest and size."""
        digest = self._digests.get((path, *facts))
        if digest is not None and f"{self._own}/{_named(digest)}" in there:
            return digest, facts[0]
        whole = os.path.join(self.folder, path)
        try:
            if moving or LOGS.search(path):
                with self._scratch.copy(whole) as copy:
                    digest, size = plain_of_file(copy), os.path.getsize(copy)
                    self._records.upload(f"{self._own}/{_named(digest)}", copy)
                return digest, size
            digest = plain_of_file(whole)
            is_new = self._records.upload(f"{self._own}/{_named(digest)}", whole)
            if _facts(whole) != facts:
                if is_new:  # its bytes may have changed; an older object is whole, and a record may name it
                    self._records.delete(f"{self._own}/{_named(digest)}")
                raise _Moved(path)
        except FileNotFoundError:
            raise _Moved(path) from None
        self._digests[path, *facts] = digest
        return digest, facts[0]

    def _keep(self, files: Sent) -> None:
        """Keep copies on this machine of the files that the record names, and of those of other hosts."""
        if self._tier is None:
            return
        others = ((path, digest) for path, digest in self._copied.items() if path in self._of_others)
        wanted = [*((path, digest) for path, (digest, _) in files.items() if not LOGS.search(path)), *others]
        self._tier.keep({digest for path, digest in wanted if self._tier.link(os.path.join(self.folder, path), digest)})

    def _put(self, files: Sent) -> None:
        record = {"files": files, "writer": self._writer, "after": self._after}
        self._records.put(f"{self._own}/{self._writer}.json", wire.encode(record))

    def _forget(self, needed: set[str]) -> None:
        """Remove the files that this host's records no longer name, unless a later attempt runs, or may run. Raises
        Superseded or Unreachable, and OSError."""
        there = [entry.name.removeprefix(f"{self._own}/") for entry in self._records.list(f"{self._own}/")]
        writers = [name.removesuffix(".json") for name in there if name.endswith(".json")]
        kept = {f"{self._writer}.json", *map(_named, needed)}
        gone = [name for name in there if name not in kept]
        if not gone or any(commits.succeeds(other, self._writer) for other in writers):
            return
        self._host.fence()
        for name in gone:
            self._records.delete(f"{self._own}/{name}")

    # ---- here ------------------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        """The files of all hosts: of each the newest record; where two have one path, that of the lower host stays."""
        for left in reversed(range(READINGS)):
            try:
                for of, writer, files in sorted(self._newest(), key=lambda one: (one[0] != self._own, one[0])):
                    if of == self._own:
                        self._after.append(writer)
                    for path, digest, size in files:
                        self._fetch(of, path, digest, size)
                return
            except FileNotFoundError as error:
                if not left:
                    raise CheckpointError(
                        f"{error} A record in {self.address} names it: remove {self.address} to begin anew, or restore "
                        "the object from a version of the bucket"
                    ) from error
            # A newer record has replaced the one that was read, and files that only that one named are gone.
            self._after.clear()
            self._of_others.clear()
            self._digests.clear()
            self._scratch.clear()

    def _newest(self) -> list[tuple[str, str, list[tuple[str, str, int]]]]:
        """Return each host, the writer of its newest record and the files that it names. A record that a later writer
        went on from is never the newest."""
        of_hosts: dict[str, list[tuple[float, str, _Record]]] = {}
        for entry in self._records.list("host-"):
            of, _, name = entry.name.partition("/")
            if name.endswith(".json") and (read := self._records.read(entry.name, limit=RECORD)) is not None:
                checked = _Record(read.data, f"{self.address}/{entry.name}")
                of_hosts.setdefault(of, []).append((entry.updated, name.removesuffix(".json"), checked))
        found = []
        for of, told in of_hosts.items():
            done = {writer for _, _, record in told for writer in record.after}
            done |= {one for _, one, _ in told if any(commits.succeeds(other, one) for _, other, _ in told)}
            counting = [one for one in told if one[1] not in done] or told
            _, writer, record = max(counting, key=lambda one: one[:2])
            found.append((of, writer, record.files))
        return found

    def _fetch(self, of: str, path: str, digest: str, size: int) -> None:
        target = os.path.join(self.folder, path)
        if os.path.exists(target):
            return
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not self._copy(digest, size, target):
            self._records.download(f"{of}/{_named(digest)}", target, most=size)
        if os.path.getsize(target) != size or plain_of_file(target) != digest:
            os.unlink(target)
            raise CheckpointError(
                f"{self.address}/{of}/{_named(digest)}, {path}, is not what was sent: remove {self.address} to begin "
                "anew, or restore the object from a version of the bucket"
            )
        if of != self._own:
            self._of_others[path] = _facts(target)
            self._copied[path] = digest
        else:
            self._digests[path, *_facts(target)] = digest

    def _copy(self, digest: str, size: int, target: str) -> bool:
        """Copy a file that an earlier program left on this machine. Returns False if there is none that is whole."""
        found = None if self._tier is None else self._tier.find(digest, size)
        if found is None or self._tier is None:
            return False
        try:
            shutil.copyfile(found, target)
            if plain_of_file(target) == digest:
                return True
            self._tier.discard(found, "its digest differs")
        except OSError:  # removed by a program that is done with it
            pass
        with contextlib.suppress(FileNotFoundError):
            os.unlink(target)
        return False


class _Moved(Exception):
    """A file was written to, or removed, while it was read."""


class _Scratch:
    """A local folder that is not removed while this program runs; any later program removes it afterwards."""

    def __init__(self) -> None:
        _sweep()
        self._root = os.path.realpath(tempfile.mkdtemp(prefix=TEMPORARY))
        self.folder = os.path.join(self._root, "files")
        os.mkdir(self.folder)
        self._lock = Path(self._root, "lock.new").open("w")  # noqa: SIM115
        with contextlib.suppress(OSError):  # a file system without locks: then no other process gets one either
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(self._lock.name, os.path.join(self._root, "lock"))  # it is not visible before it is held

    def clear(self) -> None:
        shutil.rmtree(self.folder)
        os.mkdir(self.folder)

    @contextlib.contextmanager
    def copy(self, path: str) -> Any:
        """A copy of a file, which no process writes to."""
        target = os.path.join(self._root, "copy")
        try:
            shutil.copyfile(path, target)
            yield target
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(target)

    def remove(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)
        self._lock.close()


def _sweep() -> None:
    """Remove what programs of this user that were killed have left."""
    for root in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):
            held = os.open(root / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if not root.is_symlink() and os.fstat(held).st_uid == os.geteuid():
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(root, ignore_errors=True)
            finally:
                os.close(held)


class _Record:
    """One host's record, whose files are checked: it is untrusted until then."""

    def __init__(self, data: bytes, name: str) -> None:
        try:
            told = wire.decode(data, name)
            self.files = _checked(told["files"])
            self.after = [str(writer) for writer in told.get("after", ())]
        except (wire.Unreadable, KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{name} is not a record of mirrored files: remove it to go on without") from error


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


def _but_logs(seen: Seen) -> Seen:
    return {path: facts for path, facts in seen.items() if not LOGS.search(path)}


def _is_written_to(folder: str) -> bool:
    """Return True if this process has a file there open for writing that is no log, and has changed lately. False where
    the system does not tell."""
    for target in kernel.written_files():
        with contextlib.suppress(OSError):
            inside = target.startswith(folder + os.sep) and not LOGS.search(target)
            if inside and time.time() - os.stat(target).st_mtime < OPEN:
                return True
    return False


def _checked(files: Any) -> list[tuple[str, str, int]]:
    found: list[tuple[str, str, int]] = []
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
    return found


def _say(text: str) -> None:
    sys.stderr.write(f"kinetic: {text}\n")
    sys.stderr.flush()
