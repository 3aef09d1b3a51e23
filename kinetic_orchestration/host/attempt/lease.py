"""The lease of a host's slice, while its attempt runs: an attempt that has claimed a kept slice watches that it still
holds it. Before the first attempt of a slice that may be kept, it is remembered what its machines have.

Imported for jobs with `keep` alone. What follows after the attempt is in `idle`.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import TYPE_CHECKING

from kinetic_orchestration.protocol import attempt_rules, wire
from kinetic_orchestration.protocol.records import leases

if TYPE_CHECKING:
    from kinetic_orchestration.host.view.view import Records
    from kinetic_orchestration.protocol.assignment import Assignment
    from kinetic_orchestration.protocol.wire.task import Task

PACE = 5.0  # seconds between two looks
LOOKS = 3  # at a lease that cannot be read, until it counts as lost


def begin(at: Assignment, task: Task, records: Records) -> Watch | None:
    """Prepare a host for what may follow its attempt. Returns the watch of an attempt that has claimed its slice."""
    if at.epoch:
        return Watch(at, records)
    if at.processes == 1 and not task.image:
        from kinetic_orchestration.host.machine.vm.kept import cleaning

        with contextlib.suppress(OSError):  # such a disk does not keep it
            cleaning.remember(at.kept)
    return None


def expect(at: Assignment) -> None:
    """Have the guard of this host look for a lease of its slice, if that may be kept."""
    import os

    from kinetic_orchestration.host.machine import bootstrap

    if '"lease_key"' in (bootstrap.metadata("instance/attributes/kinetic") or ""):
        os.makedirs(at.kept, mode=0o700, exist_ok=True)


class Watch:
    """Looks at the lease in the background, for as long as this process lives."""

    def __init__(self, at: Assignment, records: Records) -> None:
        self._at = at
        self._records = records
        self._why = ""
        threading.Thread(target=self._run, name="kinetic-lease", daemon=True).start()

    def lost(self) -> attempt_rules.Exit | None:
        """Return the failure of a host whose lease was lost; None while it is held, as far as is known.

        It counts until the program has ended. After that the value is there and is the attempt's own, whoever has the
        slice by then: the verdict, which only one can create, decides whether it is committed.
        """
        if not self._why:
            return None
        return attempt_rules.Exit(1, wire.INFRASTRUCTURE, self._why)

    def _run(self) -> None:
        unread = 0
        while not self._why:
            try:
                self._why, unread = self._look(), 0
            except OSError:  # the store is silent, for which the attempt has rules of its own
                pass
            except (wire.Unreadable, wire.Newer) as error:
                unread += 1
                self._why = f"the lease of its slice was lost: {error}" if unread >= LOOKS else ""
            time.sleep(PACE * (0.8 + 0.4 * random.random()))  # not all hosts at once

    def _look(self) -> str:
        """Return why the attempt no longer holds its slice; "" if it does."""
        slice_ = self._at.resource.rpartition("/")[2]
        held = leases.read(self._records, slice_)
        if held is None:
            return f"the lease of its slice {slice_} was lost: there is no record of it any longer"
        lease = held.lease
        if lease.is_of(self._at.job, self._at.attempt) and lease.epoch == self._at.epoch:
            return ""
        why = f"it was ended ({lease.why})" if lease.why else f"attempt {lease.attempt} of {lease.job} has it"
        return f"the lease of its slice {slice_} was lost: {why}"
