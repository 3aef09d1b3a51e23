"""A checkpoint is written by all hosts and committed by one; the newest whole one is restored on all of them.

Joins the store, the state's names and what the hosts agree on. Does not know when a checkpoint is due.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from kinetic_orchestration.errors import CheckpointDiffers, CheckpointError
from kinetic_orchestration.host.process.frameworks.spread import Layouts
from kinetic_orchestration.program.checkpoints import commits, parts, trees
from kinetic_orchestration.program.checkpoints.agreement import Agreement
from kinetic_orchestration.program.checkpoints.commits import Commit, Leaf, Part
from kinetic_orchestration.program.checkpoints.leaves import apart, partial
from kinetic_orchestration.program.checkpoints.store import CheckpointStore
from kinetic_orchestration.program.checkpoints.trees import HostPart, Start
from kinetic_orchestration.protocol.records.base import RecordsError, reason_of

PATIENCE = 600.0  # seconds for hosts that may still be fetching their parts


class NotWritten(Exception):
    """There is no checkpoint of this step. The message has the reason; earlier checkpoints are untouched."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a checkpoint will hold of one host."""

    step: int
    part: HostPart
    devices: int
    framework: str
    more: Mapping[str, Any]
    finite: bool
    samples: int
    batch: int
    failed: str = ""  # why another library could not begin to write


class Checkpoints:
    """The checkpoints of one training, as one of its hosts sees them."""

    def __init__(self, store: CheckpointStore, agreement: Agreement, keep: int, slice_hosts: int = 0) -> None:
        """`slice_hosts`: hosts of the slice, also those that do not train; 0 if that is not known."""
        self.store = store
        self.agreement = agreement
        self.keep = keep
        self._slice_hosts = slice_hosts
        self.notes: list[str] = []  # notes for the user
        self._restored = 0  # how often that was asked for
        self._is_roomy = True  # until there was no room for one more than are kept, which is reported once

    # ---- write -----------------------------------------------------------------------------------------------------

    def snapshot(
        self, step: int, state: Any, more: Mapping[str, Any], *, finite: bool, samples: int = 0, batch: int = 0
    ) -> Snapshot:
        """This host's part of a state, whose bytes are still the state's own. What other libraries write of it, they
        begin to write."""
        part, devices = trees.host_part(state), trees.devices(state)
        failed = apart.begin(self.store, commits.folder(step, self.store.writer), part.apart)
        return Snapshot(step, part, devices, trees.frameworks(), more, finite, samples, batch, failed)

    def write(self, snapshot: Snapshot, patience: float) -> None:
        """Write this host's part. On host 0 the checkpoint is committed when this returns."""
        host, hosts = self.agreement.host, self.agreement.hosts
        folder = commits.folder(snapshot.step, self.store.writer)
        try:
            if snapshot.failed:
                raise RecordsError(errno.EIO, snapshot.failed)
            told = self._write_part(folder, host, snapshot)
            files = apart.end(self.store, folder, snapshot.part.apart, host, hosts, patience)
            told = replace(told, files=files)
            if hosts > 1:
                self.store.report_part(folder, host, told)
        except OSError as error:
            if hosts > 1:
                with contextlib.suppress(OSError):  # on a full disk there may be no room for this either
                    self.store.report_part(folder, host, None, why=_reason(error))
            if host == 0 and error.errno != errno.EEXIST:  # a step that was done twice, and may be a checkpoint
                self._remove(folder)
            raise NotWritten(_reason(error)) from error
        if host == 0:
            try:
                every, why = self.store.part_reports(folder, hosts, patience) if hosts > 1 else ([told], "")
                if why:
                    raise NotWritten(why)
                record = Commit(
                    snapshot.step, folder, hosts, snapshot.devices, tuple(every), snapshot.part.leaves, snapshot.finite,
                    snapshot.framework, snapshot.more, snapshot.samples, snapshot.batch, self._slice_hosts,
                    self.store.current_line(), apart.described(snapshot.part.apart),
                )  # fmt: skip
                if not self.store.commit(record):
                    raise NotWritten(f"{folder} was committed before")
            except (OSError, NotWritten) as error:
                self._remove(folder)
                raise NotWritten(_reason(error)) from error
            try:
                self.store.prune(self.keep)
                self.agreement.forget(snapshot.step)
            except OSError as error:
                self.notes.append(f"older checkpoints could not be removed: {error}")

    def _write_part(self, folder: str, host: int, snapshot: Snapshot) -> Part:
        """Write the part. If there is no room for one more than are kept, the oldest checkpoints are removed, but not
        the newest."""
        kept = self.keep
        while True:
            try:
                return self.store.write(folder, host, snapshot.part)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self.store.prune_frees_space or kept < 2:
                    raise
                kept = min(kept, len(self.store.committed())) - 1
                if kept < 1:
                    raise
                self.store.prune(kept)
                if self._is_roomy:
                    self._is_roomy = False
                    self.notes.append(
                        f"there is no room for another checkpoint beside {kept + 1}: the oldest of them was removed "
                        f"first, and so from now on. Make room, or give keep={kept}"
                    )

    def _remove(self, folder: str) -> None:
        """Remove a folder that cannot become a checkpoint."""
        with contextlib.suppress(OSError):
            self.store.remove(folder)

    # ---- restore ---------------------------------------------------------------------------------------------------

    def restore(
        self,
        state: Any,
        *,
        reshard: bool,
        step: int | None = None,
        only: tuple[str, ...] = (),
        layouts: Mapping[str, Layouts] = trees.NO_LAYOUTS,
    ) -> tuple[Any, Commit | None]:
        """The newest whole checkpoint as this state, on all hosts the same; without one, the state as it is.

        Args:
            step: Of an older checkpoint, at which a new line begins.
            only: Paths of what is restored; () for all.
            layouts: Of what torch spreads in it (`trees.layouts`).

        Raises:
            CheckpointError: There is none of that step.
        """
        self._restored += 1
        for number in range(1 << 16):
            mine = self._wanted(step, only) if self.agreement.host == 0 else None
            folder, paths, refused = self.agreement.decide(f"restore-{self._restored}-{number}", mine, PATIENCE)
            if refused or not folder:
                self._meet(f"near-{self._restored}-{number}", None)
                if refused:
                    raise CheckpointError(refused)
                if self.store.torn and self.agreement.host == 0:
                    self.notes.append(
                        f"no whole checkpoint is left in {self.store.place}: the training begins at step 0"
                    )
                return state, None
            torn, give, record = "", None, None
            with contextlib.ExitStack() as stack:
                try:
                    record = self._read(folder, f"near-{self._restored}-{number}")
                    give = self._load(record, state, reshard, tuple(paths), layouts, stack)
                except parts.Torn as error:
                    torn = str(error)
                said = self.agreement.gather(f"restored-{self._restored}-{number}", torn, PATIENCE)
                if give is not None and record is not None and not any(said):
                    self.store.line = max(self.store.line or 0, record.line)  # which may have no record any more
                    if self.agreement.host == 0 and (step is not None or paths):
                        self._go_back(record, step, only)
                    return give(), record
            self._pass_over(folder, next(filter(None, said), torn))
        raise AssertionError

    def _go_back(self, record: Commit, step: int | None, only: tuple[str, ...]) -> None:
        """Begin a line at a checkpoint that was restored."""
        newer = sorted({one.step for one in self.store.committed() if one.step > record.step})
        self.store.begin_line(record, step, only)
        if newer:
            self.notes.append(
                f"the training goes on at step {record.step}: the checkpoints after it (of steps "
                f"{', '.join(map(str, newer))}) are abandoned, and go with its next one"
            )

    def _wanted(self, step: int | None, only: tuple[str, ...]) -> tuple[str, tuple[str, ...], str]:
        """The checkpoint to restore, the paths to restore of it (() for all), and why there is none of that step."""
        lines = self.store.lines()
        number = self.store.line = max(lines, default=0)
        if step is None and not only:
            return self._newest(), (), ""
        last = lines.get(number)
        if (
            last is not None
            and (last.asked, last.only) == (step, only)
            and commits.succeeds(self.store.writer, last.writer)
        ):
            # An earlier attempt of this job went back there, and this one goes on where that one was.
            record = self._without_nan(self.store.newest())
            if record is not None and record.line == number:
                return record.folder, (), ""
        if step is None:
            return self._newest(), only, ""
        record = self.store.newest(step) or self.store.newest(step, abandoned=True)
        return (record.folder, only, "") if record is not None else ("", (), self._refusal(step))

    def _refusal(self, step: int) -> str:
        there = sorted({one.step for one in self.store.committed()})
        told = f"there are those of {', '.join(map(str, there))}" if there else "there is none at all"
        torn = [why for folder, why in self.store.torn.items() if commits.step_of(folder) == step]
        return f"there is no whole checkpoint of step {step} in {self.store.place}{_because(torn)}: {told}"

    def _read(self, folder: str, what: str) -> Commit:
        """Read a commit, and learn from the other hosts who has copies of its parts. Raises `Torn`."""
        record, torn = None, None
        try:
            record = self.store.read(folder)
        except parts.Torn as error:
            torn = error
        self._meet(what, record)
        if record is None:
            raise parts.Torn(str(torn))
        return record

    def _meet(self, what: str, record: Commit | None) -> None:
        if self.store.near is not None:
            self.store.near.meet(self.agreement, what, record)

    def _newest(self) -> str:
        """The newest whole checkpoint. Torn ones are skipped; a record of a newer version is refused by its reader."""
        known = set(self.store.torn)
        record = self._without_nan(self.store.newest())
        for folder, why in self.store.torn.items():
            if folder not in known:
                self._pass_over(folder, why)
        return "" if record is None else record.folder

    def _without_nan(self, newest: Commit | None) -> Commit | None:
        """Skip checkpoints whose state holds NaN, from which training cannot continue, if there is one before them; the
        skipped ones are not kept."""
        found, passed, until = newest, [], time.monotonic() + PATIENCE / 2  # as other hosts wait for this one
        while found is not None and not found.finite and (why := self._nan_of(found, until)):
            passed.append(found)
            self.store.torn[found.folder] = why
            found = self.store.newest()
        for one in passed if found is None else ():
            del self.store.torn[one.folder]
        return found or newest

    def _nan_of(self, record: Commit, until: float) -> str:
        """The reason to skip a checkpoint: NaN in the part of any host, or no time to search; "" if there is none."""
        for host in range(record.hosts):
            if time.monotonic() > until:
                return "a loss or metric before it was no number, and there was no time to look through its state"
            with contextlib.suppress(parts.Torn), self.store.opened(record, host, kept=False) as part:  # reported later
                if part.has_nan():
                    return "its state holds NaN"
        return ""

    def _pass_over(self, folder: str, why: str) -> None:
        self.store.torn[folder] = why
        self.notes.append(f"{folder} is not restored: {why}; another one is looked for")

    def _check_leaves(self, record: Commit, state: Any) -> None:
        told = commits.differences(record.leaves, trees.described(state))
        if told:
            raise CheckpointDiffers(
                f"the checkpoint of step {record.step} in {self.store.place} is of another model:\n  "
                + "\n  ".join(told)
                + "\nGive the job another key (or the training another name) to begin anew, restore the model's code, "
                "or restore a part of it alone (only=)"
            )

    def _check_topology(self, record: Commit, state: Any, reshard: bool) -> None:
        here = self.agreement.hosts, trees.devices(state, told=record.devices > 0)
        same = record.hosts == here[0] and (record.devices == here[1] or 0 in (record.devices, here[1]))
        if not same and not reshard:
            raise CheckpointDiffers(
                f"the checkpoint of step {record.step} in {self.store.place} was written by "
                f"{commits.topology(record.hosts, record.devices)}, and this is {commits.topology(*here)}. With "
                "reshard=True its arrays are laid out anew; the order of additions, and with it the last bits of the "
                "result, will differ"
            )

    def _load(
        self, record: Commit, state: Any, reshard: bool, only: tuple[str, ...], layouts: Mapping[str, Layouts],
        stack: contextlib.ExitStack,
    ) -> Callable[[], Any]:  # fmt: skip
        """Gives the state. All parts that it needs are open by now, and believed."""
        if not only:
            self._check_leaves(record, state)
        self._check_topology(record, state, reshard)
        of = Source(self.store, record, self.agreement.host, self.agreement.hosts, stack, narrow=bool(only))
        chosen = partial.Chosen(state, record, of.plain, only) if only else None
        if chosen is None:
            of.check_names(state)
        leaves = trees.named(state) if chosen is None else list(chosen.leaves.items())
        engines = {path: leaf for path, leaf in leaves if isinstance(leaf, trees.Engine)}
        apart.check(record, engines, self.store, self.agreement.host, self.agreement.hosts, all_of_it=not only)
        kept = [path for path, leaf in leaves if trees.own(leaf)]
        if record.hosts != self.agreement.hosts and kept:
            raise CheckpointDiffers(
                f"{', '.join(kept)} has a state of each host's own, and {record.hosts} hosts wrote the checkpoint "
                f"of step {record.step}: it cannot be divided among {self.agreement.hosts}. Leave it out of the "
                "state, and order the data by the step instead, as Training.indices does"
            )
        if chosen is None:
            give = trees.restorer(state, of.plain, of.fetch, of.look, layouts)
        else:
            give = chosen.restorer(of.plain, of.fetch, of.look, layouts)

        def given() -> Any:
            apart.read(record, engines, self.store)
            return give()

        return given


class Source:
    """The contents of a checkpoint for one host: its own part first, then the parts of others that it needs."""

    def __init__(
        self,
        store: CheckpointStore,
        record: Commit,
        host: int,
        hosts: int,
        stack: contextlib.ExitStack,
        *,
        narrow: bool = False,
    ) -> None:
        """`narrow`: little is needed, also of this host's own part."""
        # Of another number of hosts, the part that lies where this host's would: most of what it needs is there, and
        # what is the same on all hosts is host 0's.
        own = host if host < record.hosts == hosts else host * record.hosts // max(hosts, host + 1)
        near = sorted(range(1, record.hosts), key=lambda other: abs(other - own))
        self._order = list(dict.fromkeys([own, 0, *near]))
        self._opened: dict[int, parts.Opened] = {}
        self._told: dict[int, parts.Pieces] = {}
        # A host that goes on with its own part needs all of it, and has a copy then. Of others it needs little.
        self._whole = own if record.hosts == hosts and not narrow else -1
        self._store, self._record, self._stack = store, record, stack
        self.plain = self._part(own).plain

    def check_names(self, state: Any) -> None:
        """Check the names of values that are not arrays."""
        names = {path for path, leaf in trees.named(state) if isinstance(leaf, trees.PLAIN) or trees.keeps(leaf)}
        if names != set(self.plain):
            odd = ", ".join(sorted(names ^ set(self.plain))[: commits.SHOWN])
            raise CheckpointDiffers(
                f"the checkpoint of step {self._record.step} in {self._store.place} is of another state: {odd} is on "
                "one side only"
            )

    def look(self, path: str, start: Start, shape: tuple[int, ...]) -> None:
        self._all_of(path, start, shape, lambda of: of.look(path, start, shape))

    def fetch(self, path: str, dtype: str, start: Start, shape: tuple[int, ...]) -> memoryview:
        into = trees.new_buffer(prod(shape) * parts.width(dtype))
        self._all_of(path, start, shape, lambda of: of.copy(path, Leaf(dtype, shape), start, into))
        return into

    def _part(self, host: int) -> parts.Opened:
        if host not in self._opened:
            self._opened[host] = self._stack.enter_context(
                self._store.opened(self._record, host, whole=host == self._whole)
            )
        return self._opened[host]

    def _has(self, host: int, path: str, start: Start, shape: tuple[int, ...]) -> bool:
        """Return True if a part has something of a rectangle. One that is not here is asked for its header, and is
        fetched only if that says so."""
        if host in self._opened or host == self._order[0]:
            return True
        if host not in self._told:
            self._told[host] = self._store.pieces(self._record, host)
        return parts.count_in(self._told[host], path, start, shape) > 0

    def _all_of(self, path: str, start: Start, shape: tuple[int, ...], found: Callable[[parts.Opened], int]) -> None:
        have, wanted = 0, prod(shape)
        for host in self._order if wanted else ():
            if self._has(host, path, start, shape):
                part = self._part(host)
                try:
                    have += found(part)
                except parts.Torn as error:
                    raise parts.Torn(f"{commits.part(self._record.folder, host)} is torn: {error}") from None
            if have >= wanted:
                return
        if have < wanted:
            raise parts.Torn(f"{path} has {have} of {wanted} elements in {self._record.folder}")


def _because(torn: list[str]) -> str:
    return f" ({'; '.join(torn)})" if torn else ""


def _reason(error: Exception) -> str:
    told = str(error)
    return reason_of(error) if isinstance(error, OSError) and told.startswith("[Errno") else told.rstrip(".")
