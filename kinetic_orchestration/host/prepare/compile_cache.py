"""JAX's compile cache on a machine of its own: compiled programs come from the store, and new ones go there.

JAX keeps compiled programs in a folder. Here the folder is filled while the machine is being prepared, and host 0 (the
only one for which JAX writes entries) puts new ones into the store during the run and at its end. Responsible for which
entries belong together (`key`), for bounds in time and bytes, and for the count of hits. It never fails a job: a
program that cannot be fetched is compiled. It does not know the content of an entry.

**Trust.** A writer of entries can run code in every job that reads them. So a cache belongs to one trust domain: a
deployment's machines that have the same service account in the same project. Entries are named by their digests, and a
list of them counts only with the signature of such a machine (`attest`); write access to the bucket is not enough to
have anything loaded. A machine without an account keeps its cache to itself. Two deployments never share a cache: the
signed text names the store and the deployment, so a list that is copied to another one is not valid there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.content.digest import plain_of_file
from kinetic_orchestration.protocol.records.base import TooLarge, read_bounded
from kinetic_orchestration.protocol.system import kernel
from kinetic_orchestration.protocol.system.parallel import side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kinetic_orchestration.protocol.wire.task import Task

FETCH_SECONDS = 30.0  # after that, compiling starts without the rest
FETCH_BYTES = 2 << 30
KEPT = 2000  # entries in a list, the most recently used first
LISTS = 4  # newest lists that are read
PUSH_EVERY = 15.0
THREADS = 8
SUFFIX = "-cache"  # of JAX's entries; it may also write "-atime" files
JAX = {
    # Programs that take longer to compile are cached; JAX's own 1 s leaves out most of a small program.
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
    # A cache of XLA's in the same folder, for GPUs alone, puts the folder's path into the names of all entries.
    "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
}


class Entry(NamedTuple):
    name: str  # of the file in JAX's folder
    digest: str
    size: int


class Summary(NamedTuple):
    """Statistics of the cache's use; `hits` is None if the file system does not record reads."""

    fetched: int
    hits: int | None
    pushed: int


def key(task: Task) -> str:
    """Return the key that entries share if they can be reused for each other; "" if nothing is cached."""
    wanted = task.environment
    builds = (wanted.compiles if wanted is not None else None) or task.image
    if not task.compile_cache or not builds:
        return ""
    python = wanted.python if wanted is not None else ""
    facts: list[Any] = [builds, python, task.accelerator._asdict(), task.emulated, task.slices]
    if task.emulated:
        facts.append(_processor())  # programs for ordinary processors use all that these can do
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:20]


class CompileCache:
    """One job's cache on one host. It begins to fetch when it is created; all other calls wait with a bound."""

    def __init__(
        self,
        records: Any,
        key: str,
        home: str,
        note: Callable[[str], object],
        *,
        pushes: bool,
        writer: str,
        taken: Iterable[str] = (),
        seconds: float = FETCH_SECONDS,
        most: int = FETCH_BYTES,
    ) -> None:
        """`pushes`: this is host 0. `writer` is unique to this attempt. `taken`: variables that the user has set."""
        self.folder = os.path.join(home, "cache", "compile", key)
        self._records, self._key, self._note = records, key, note
        self._pushes, self._writer, self._taken = pushes, writer, frozenset(taken)
        self._deadline, self._most = time.monotonic() + seconds, most
        self._known: dict[str, Entry] = {}  # from trusted lists, the most recently used first
        self._lists: list[str] = []
        self._fetched: dict[str, Entry] = {}
        self._before: set[str] = set()  # entries of an earlier job on this machine
        self._pushed: dict[str, Entry] = {}
        self._steady: dict[str, tuple[int, int]] = {}
        self._told = False
        self._tells_reads = False
        self._ready, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="kinetic-compiled", daemon=True)
        self._thread.start()

    def environ(self) -> dict[str, str]:
        """Return the program's variables. Waits for a fetch that is under way, at most until the deadline."""
        self._ready.wait(max(0.0, self._deadline - time.monotonic()))
        return {
            name: value
            for name, value in ({"JAX_COMPILATION_CACHE_DIR": self.folder} | JAX).items()
            if name not in self._taken
        }

    def close(self, seconds: float = 5.0) -> Summary:
        """Stop once new entries are in the store or `seconds` have passed. Returns the statistics."""
        self._closing.set()
        self._thread.join(seconds)
        hits = sum(map(self._was_read, self._fetched.values())) if self._tells_reads else None
        found = Summary(len(self._fetched), hits, len(self._pushed))
        if found.fetched or found.pushed:
            used = "" if hits is None else f", {hits} of them used"
            self._note(f"compile cache: {found.fetched} programs fetched{used}, {found.pushed} new ones kept")
        return found

    # ---- on a thread of its own --------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            os.makedirs(self.folder, exist_ok=True)
            self._before = set(os.listdir(self.folder))
            self._tells_reads = _tells_reads(self.folder)
            self._fetch()
        except Exception as error:  # the program compiles missing entries
            self._complain("read", error)
        finally:
            self._ready.set()
        while self._pushes:
            last = self._closing.wait(PUSH_EVERY)
            try:
                self._push(last)
            except Exception as error:
                self._complain("written", error)
            if last:
                return

    def _complain(self, what: str, error: Exception) -> None:
        if not self._told:
            self._told = True
            self._note(f"the compile cache cannot be {what} ({type(error).__name__}: {error}); the job goes on without")

    def _fetch(self) -> None:
        lists = sorted(self._records.list(names.compiled(self._key, "lists/")), key=lambda entry: -entry.updated)
        for found in lists[:LISTS]:
            for entry in self._attested(found.name):
                self._known.setdefault(entry.name, entry)
        wanted, size = [], 0
        for entry in list(self._known.values())[:KEPT]:
            size += entry.size
            if size > self._most:
                break
            if entry.name not in self._before:
                wanted.append(entry)
        side_by_side(self._fetch_one, wanted, THREADS, name="kinetic-compiled")

    def _attested(self, name: str) -> list[Entry]:
        from kinetic_orchestration.host.machine import attestation

        data = read_bounded(self._records, name)
        try:
            told = json.loads(data or b"")
            entries = [Entry(str(file), str(digest), int(size)) for file, digest, size in told["entries"]]
        except (ValueError, KeyError, TypeError, AttributeError):
            return []
        if not attestation.is_attested(str(told.get("proof", "")), self._claim(entries)):
            return []
        self._lists.append(name)
        return [
            entry for entry in entries if entry.name.endswith(SUFFIX) and os.path.basename(entry.name) == entry.name
        ]

    def _fetch_one(self, entry: Entry) -> None:
        if time.monotonic() > self._deadline or self._closing.is_set():
            return
        path = os.path.join(self.folder, entry.name)
        if os.path.exists(path):  # fetched or made meanwhile, as by another process of this machine
            self._fetched[entry.name] = entry
            return
        part = os.path.join(self.folder, f".{entry.digest}.{os.getpid()}.part")
        blob = names.compiled(self._key, entry.digest)
        try:
            try:
                self._records.download(blob, part, most=entry.size)
                whole = plain_of_file(part) == entry.digest
            except TooLarge:
                whole = False
            if not whole:  # the name has to be free for the right content
                self._records.delete(blob)
                raise ValueError(f"{blob} is not what its name says")
            os.utime(part, (0, time.time()))  # the first read of it is then seen, also by a lazy file system
            if os.path.exists(path):
                os.unlink(part)
            else:
                os.replace(part, path)
            self._fetched[entry.name] = entry
        except Exception as error:
            with contextlib.suppress(OSError):
                os.unlink(part)
            self._known.pop(entry.name, None)
            self._complain("read", error)

    def _push(self, last: bool) -> None:
        """Push new entries, each once it is unchanged in two checks; JAX writes them in place."""
        pushed = dict(self._pushed)
        for name in sorted(os.listdir(self.folder)):
            if not name.endswith(SUFFIX) or name in self._known or name in self._pushed:
                continue
            path = os.path.join(self.folder, name)
            found = os.stat(path)
            stamp = found.st_size, found.st_mtime_ns
            if not last and self._steady.get(name) != stamp:
                self._steady[name] = stamp
                continue
            digest = plain_of_file(path)
            self._records.upload(names.compiled(self._key, digest), path)
            self._pushed[name] = Entry(name, digest, found.st_size)
        if self._pushed.keys() != pushed.keys() or (last and any(map(self._was_read, self._fetched.values()))):
            self._publish()

    def _publish(self) -> None:
        """Write the list of entries, signed by this machine. It replaces the lists that it continues."""
        from kinetic_orchestration.host.machine import attestation

        used = [entry for entry in self._known.values() if self._was_read(entry)]
        rest = [entry for entry in self._known.values() if entry not in used]
        entries = [*self._pushed.values(), *used, *rest][:KEPT]
        proof = attestation.attest(self._claim(entries))
        if not proof:
            raise OSError("this machine has no account by which others could know whose the entries are")
        own = names.compiled(self._key, f"lists/{self._writer}")
        told = {"release": wire.RELEASE, "entries": entries, "proof": proof}
        self._records.put(own, json.dumps(told).encode())
        while self._lists:
            if (name := self._lists.pop()) != own:
                self._records.delete(name)

    def _claim(self, entries: list[Entry]) -> str:
        """Return the text that the machine signs for a list: its cache, its key and the digest of its entries."""
        return names.claim("compiled", self._records.root, self._key, _digest(entries))

    def _was_read(self, entry: Entry) -> bool:
        try:
            return os.stat(os.path.join(self.folder, entry.name)).st_atime > 0.0
        except OSError:
            return False


def _digest(entries: list[Entry]) -> str:
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def _tells_reads(folder: str) -> bool:
    """Return True if the file system of this folder records access times."""
    probe = os.path.join(folder, f".probe-{os.getpid()}")
    try:
        with open(probe, "wb") as file:
            file.write(b"x")
        os.utime(probe, (0, time.time()))
        with open(probe, "rb") as file:
            file.read()
        return os.stat(probe).st_atime > 0.0
    finally:
        with contextlib.suppress(OSError):
            os.unlink(probe)


def _processor() -> str:
    return hashlib.sha256(kernel.processor().encode()).hexdigest()[:16]
