"""The parts of a training's checkpoints that are nearer than the bucket: on this machine, or on another host.

A part is found by its digest in the bucket's commit, and verified by it: a copy can be missing or damaged, never wrong.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from kinetic_orchestration.host.prepare import tier as places
from kinetic_orchestration.program.checkpoints import parts
from kinetic_orchestration.program.checkpoints.tier import buddies
from kinetic_orchestration.program.checkpoints.tier.folder import Folder, Where, open_folder, root_of

if TYPE_CHECKING:
    from kinetic_orchestration.program.checkpoints.agreement import Agreement
    from kinetic_orchestration.program.checkpoints.commits import Commit, Part

MACHINE, HOSTS, BUCKET = "this machine", "other hosts", "the bucket"
ROUNDS = 2  # the part that was written last, whose commit may fail, and the one before it
MOST_TOLD = 64  # parts that a host tells the others it has
PATIENCE = 600.0  # for hosts that have yet to begin; each of them is waited for in any case, once they have restored


def open_near(
    where: Where, name: str, host: int, hosts: int, environ: Mapping[str, str], say: Callable[[str], None]
) -> Near | None:
    """Open what is nearer than the bucket for a training, as one of its hosts; None where nothing is."""
    folder = open_folder(where, name, environ, say)
    if not root_of(where, environ):
        return None
    # A host whose folder cannot be used meets the others all the same: they wait for what it says.
    addresses = environ.get(places.BUDDIES, "").split()[:hosts]
    if hosts < 2 or len(addresses) < hosts:
        addresses = []
    return Near(folder, host, addresses, bytes.fromhex(environ.get(places.KEY, "")), say)


class Near:
    """The copies of one training, as one of its hosts finds, keeps and sends them."""

    def __init__(
        self, folder: Folder | None, host: int, addresses: Sequence[str], key: bytes, say: Callable[[str], None]
    ) -> None:
        self.folder = folder
        self.read: Counter[str] = Counter()  # bytes that were restored, by where they were
        self.seconds = 0.0  # that it took to have them here, and verified
        self._host = host
        self._addresses = addresses
        self._key = key
        self._say = say
        self._peers: dict[int, tuple[str, int]] = {}  # address and port of the other hosts that can be asked
        self._having: dict[int, list[int]] = {}  # by the number of a part, the hosts that said to have it
        self._own: deque[set[str]] = deque(maxlen=ROUNDS)  # digests, of the last rounds
        self._given: deque[set[str]] = deque(maxlen=ROUNDS)  # the same of the host before this one
        self._lock = threading.Lock()
        self._unsent: Part | None = None
        self._is_sending = False
        self._listener: buddies.Listener | None = None
        if addresses and folder is not None:
            try:
                self._listener = buddies.Listener(addresses[host], key, buddies.Files(folder.find, self._taking))
            except OSError as error:
                say(f"this host sends no copies of checkpoints to others: {error}")

    def end(self) -> None:
        """Remove all copies from a machine that stays without its job: the training is at its end."""
        if self.folder is not None and self.folder.shared:
            self.folder.clear()

    def close(self) -> None:
        """Answer no other host from now on, and leave the copies to the next program."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self.folder is not None:
            self.folder.close()

    # ---- restore ---------------------------------------------------------------------------------------------------

    def told(self) -> str:
        """Return how much of what was restored was where, for users."""
        each = [f"{_size(self.read[where])} from {where}" for where in (MACHINE, HOSTS, BUCKET) if self.read[where]]
        return f"{', '.join(each)}, in {self.seconds:.1f} s" if each else ""

    def meet(self, agreement: Agreement, what: str, record: Commit | None) -> None:
        """Tell the other hosts which parts of a checkpoint are here, and hear from them; what is restored is counted
        from now on. All hosts call it, also where there is no checkpoint."""
        self.read.clear()
        self.seconds = 0.0
        every = record.parts if record is not None else ()
        here = [number for number, part in enumerate(every) if self._find(part) is not None]
        with self._lock:
            self._own.clear()
            self._own.append({part.digest for part in every})
        if not self._addresses:
            return
        port = 0 if self._listener is None else self._listener.port
        self._peers.clear()
        self._having.clear()
        for other, said in enumerate(agreement.gather(what, [port, here[:MOST_TOLD]], PATIENCE)):
            with contextlib.suppress(TypeError, ValueError):  # by whoever can write there: it is a hint only
                port, numbers = int(said[0]), [int(number) for number in said[1]]
                if other != self._host and 0 < port < 1 << 16:
                    self._peers[other] = self._addresses[other], port
                    for number in dict.fromkeys(numbers):
                        self._having.setdefault(number, []).append(other)

    def opened(self, number: int, told: Part) -> parts.Opened | None:
        """Open one host's part, believed, if it is near."""
        found = self._on_machine(told)
        if found is not None:
            self.read[MACHINE] += told.size
            return found
        for other in self._having.get(number, ()):
            if (found := self._from_buddy(other, told)) is not None:
                self.read[HOSTS] += told.size
                return found
        return None

    def _on_machine(self, told: Part) -> parts.Opened | None:
        path = self._find(told)
        if path is None or self.folder is None:
            return None
        try:
            return parts.Opened(path, told)
        except parts.Torn as error:
            self.folder.discard(path, error)
        except OSError:  # removed by a program that is done with it
            pass
        return None

    def _from_buddy(self, other: int, told: Part) -> parts.Opened | None:
        address, port = self._peers[other]
        try:
            if self.folder is None or not is_possible(told) or not self.folder.has_room(told.size):
                return None
            with self.folder.scratch() as path:
                buddies.fetch(address, port, self._key, told.digest, told.size, path)
                found = parts.Opened(path, told)
                self.folder.take(path, told.digest)
                return found
        except (parts.Torn, OSError) as error:
            self._say(f"host {other} could not send its copy of a part, which comes from the bucket: {error}")
            return None

    def _find(self, told: Part) -> str | None:
        return None if self.folder is None else self.folder.find(told.digest, told.size)

    # ---- write -----------------------------------------------------------------------------------------------------

    def fetched(self, path: str, told: Part) -> None:
        """Keep a part that came from the bucket."""
        if self.folder is not None:
            self.folder.take(path, told.digest)

    def wrote(self, path: str, told: Part) -> None:
        """Keep this host's new part, which is in the bucket, in place of an older one."""
        if self.folder is None or not self.folder.take(path, told.digest):
            return
        with self._lock:
            self._own.append({told.digest})
            self._forget()
            self._unsent = told
            if self._buddy() is None or self._is_sending:
                return
            self._is_sending = True
        threading.Thread(target=self._send, name="kinetic-to-buddy", daemon=True).start()

    def make_room(self) -> None:
        """Remove all copies: a checkpoint is on its way to the bucket, and has no room."""
        if self.folder is not None:
            self.folder.clear()

    def _forget(self) -> None:
        assert self.folder is not None
        self.folder.keep(set().union(*self._own, *self._given))

    # ---- the host after this one, and the one before it ------------------------------------------------------------

    def _buddy(self) -> tuple[str, int] | None:
        """Return the next host on another machine; the hosts of one machine have numbers in a row."""
        if not self._addresses:
            return None
        is_one_machine = len(set(self._addresses)) == 1
        step = 1 if is_one_machine else self._addresses.count(self._addresses[self._host])
        return self._peers.get((self._host + step) % len(self._addresses))

    def _send(self) -> None:
        while True:
            with self._lock:
                told, self._unsent = self._unsent, None
                if told is None:
                    self._is_sending = False
                    return
            buddy, path = self._buddy(), self._find(told)
            if buddy is not None and path is not None:
                with contextlib.suppress(OSError):  # the part is in the bucket, and here
                    buddies.offer(*buddy, self._key, told.digest, told.size, path)

    @contextlib.contextmanager
    def _taking(self, digest: str, size: int) -> Iterator[str | None]:
        """Take what the host before this one has written."""
        if self.folder is None or self.folder.find(digest, size) is not None or not self.folder.has_room(size):
            yield None
            return
        with self.folder.scratch() as path:
            yield path
            with self._lock:
                self._given.append({digest})
                self.folder.take(path, digest)
                self._forget()


def is_possible(told: Part) -> bool:
    """Return True unless a commit, which whoever can write to the bucket may have written, names what is no copy."""
    return bool(places.COPY.fullmatch(told.digest)) and 0 < told.size < 1 << 8 * buddies.SIZE


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


@contextlib.contextmanager
def timed(near: Near | None) -> Iterator[None]:
    """Count the time of a part that is opened."""
    began = time.monotonic()
    try:
        yield
    finally:
        if near is not None:
            near.seconds += time.monotonic() - began


def scratch_folder(near: Near | None) -> str | None:
    """Return where a part should be written, so that it becomes a copy by its name alone; None for the temporary
    folder, also if the user has named one."""
    if near is None or near.folder is None or near.folder.in_memory or os.environ.get("TMPDIR"):
        return None
    return near.folder.folder
