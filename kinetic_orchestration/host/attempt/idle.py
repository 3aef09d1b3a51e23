"""Keeps a host of a slice after its attempt, if that may be: it cleans itself, and waits for the next one.

Host 0 offers the slice once all hosts are clean. From then on each of them reads the lease, and decides alone: after a
claim that was sealed with the key of this slice, this process becomes the agent of the next attempt; after anything
else the slice is deleted. Whatever is in doubt ends the lease first, so that nobody claims what is being deleted.

Knows the records of leases and nothing of programs. Runs in the guard's process, once its agent has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from kinetic_orchestration.host.attempt import race
from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.vm import gpus, rearming
from kinetic_orchestration.host.machine.vm.kept import cleaning
from kinetic_orchestration.host.machine.vm.kept.doubt import Unclean
from kinetic_orchestration.host.prepare import tier
from kinetic_orchestration.host.process.standby import Standby
from kinetic_orchestration.protocol import attempt_rules, names, wire
from kinetic_orchestration.protocol.records import leases
from kinetic_orchestration.protocol.records.base import read_bounded, read_intact
from kinetic_orchestration.protocol.wire.lease import ARMED, CLAIMED, ENDED, FREE, OF_RUN, Lease, key_name, own_place
from kinetic_orchestration.protocol.wire.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from kinetic_orchestration.host.view.view import Records
    from kinetic_orchestration.protocol.assignment import Assignment

MARKS = 60.0  # seconds that host 0 waits for the others to be clean, after the verdict's grace
OFFER = 60.0  # seconds beyond these that the others wait for the offer
# Seconds between two looks, and for how long: the next step of a pipeline follows at once, or after what lies between.
LOOKS = ((0.04, 10.0), (0.1, 60.0))
LATER = 1.0  # seconds between all others, and between two tries
A_SECOND = 250  # looks of all hosts of a slice
MARK_PACE = 0.25  # seconds between two listings of the marks
FIRST_TURN = 30.0  # seconds that the others leave to host 0 to end a lease that nobody took
TURN = 10.0
SILENCE = 180.0  # seconds for which a store says nothing until a slice that cannot be claimed is deleted
ENDING = 60.0  # seconds for which the end of a lease is tried, before the slice is deleted without it
NOTICES = 5.0  # seconds between two questions whether this machine is being taken away
LEAST = 1.0  # seconds for which a slice is worth an offer
LONGEST_WHY = 1000  # characters


class Over(Exception):
    """The slice is not kept any longer. `told`: the message is worth a record, also where there is no lease yet."""

    def __init__(self, why: str, *, told: bool = True) -> None:
        super().__init__(why)
        self.told = told


def stay(at: Assignment, *, whole: bool, goes_down: Callable[[], bool]) -> None:
    """Keep this host for the next attempt, if that may be, and become its agent. Returns once the slice is to be
    deleted, its lease ended. If the store does not take that within `ENDING`, the slice is deleted all the same: a
    client that claims it meanwhile finds no hosts, and goes on elsewhere (`lifecycle.SILENT_CLAIM`).

    Args:
        at: The attempt that has ended.
        whole: Its agent has come to its end.
        goes_down: Tells whether this machine was asked to end.
    """
    from kinetic_orchestration.host.view.open_records import open_records

    with contextlib.suppress(Exception), contextlib.closing(open_records(at.store)) as records:
        host = IdleHost(at, records, goes_down)
        try:
            host.serve(whole=whole)
        except Over as over:
            host.end(str(over), told=over.told)
        except (Unclean, rearming.Unarmed) as error:
            host.end(f"host {at.host} is not clean: {error}", told=True)
        except Exception as error:
            host.end(f"host {at.host} cannot be kept: {type(error).__name__}: {error}", told=True)


class IdleHost:
    """A host between two attempts."""

    def __init__(self, at: Assignment, records: Records, goes_down: Callable[[], bool]) -> None:
        self._at = at
        self._records = records
        self._slice = at.resource.rpartition("/")[2]
        self._writer = f"{at.boot}/idle"
        self._ends = False
        self._goes_down = goes_down
        self._noticed = 0.0  # when it was last asked whether the machine is being taken away
        self._orders: dict[str, object] = {}  # by which the machine was made
        self._spec: bytes = b""
        self._until = 0.0  # when the lease ends unclaimed; 0.0 before the offer
        self._standby: Standby | None = None

    def serve(self, *, whole: bool) -> NoReturn:
        """Clean, offer, wait, and become the next attempt's agent. Raises Over, Unclean, Unarmed, OSError."""
        signal.signal(signal.SIGTERM, self._on_term)
        task, verdict = self._may_stay(whole=whole)
        self._clean(task)
        if self._at.host == 0:
            self._await_marks(MARKS + max(attempt_rules.grace(verdict, host) for host in range(self._at.hosts)))
            self._offer(task)
        self._stand_by()
        try:
            self._wait(task)
        finally:
            if self._standby is not None:
                self._standby.end()

    def end(self, why: str, *, told: bool) -> None:
        """End the lease; while that fails, try again for `ENDING`. A slice that never had one gets an ended one, if it
        is to be told why it was not kept."""
        why = " ".join(why.split())[:LONGEST_WHY]
        with contextlib.suppress(Exception):  # the mark
            self._mark(why)
        deadline = time.monotonic() + ENDING
        while not self._has_ended(why, told=told) and time.monotonic() < deadline:
            time.sleep(LATER)

    def _has_ended(self, why: str, *, told: bool) -> bool:
        """Try to end the lease. Returns False if another try may help."""
        try:
            held = leases.read(self._records, self._slice)
            now = self._records.now()
            if held is None:
                ended = self._first(CLAIMED, now).ended(why, writer=self._writer, now=now) if told else None
                return ended is None or leases.write(self._records, ended, None)
            if not leases.end(self._records, self._slice, why, writer=self._writer, now=now, may=lambda _: True):
                return False
            if held.lease.epoch > self._at.epoch:
                self._tell(held.lease, why)
        except (wire.Unreadable, wire.Newer):  # nobody can claim by such a record
            return True
        except Exception:  # any error: nobody else would try it again
            return False
        return True

    # ---- whether, and what -------------------------------------------------------------------------------------

    def _may_stay(self, *, whole: bool) -> tuple[Task, wire.Verdict]:
        """Return the task and the verdict of an attempt after which the slice may be kept. Raises Over, OSError."""
        at = self._at
        found = read_bounded(self._records, names.verdict(at.job, at.attempt))
        verdict = None if found is None else wire.Verdict.decode(found)
        if verdict is None:
            raise Over("its attempt ended without a verdict", told=False)
        if not verdict.leaves_slice(verdict.cause):
            raise Over(f"its attempt ended otherwise ({verdict.cause or verdict.kind})", told=False)
        self._spec = read_intact(self._records, names.spec(at.job), at.spec) or b""
        task = Task.decode(self._spec, names.spec(at.job), at.choice)
        if task.keep <= 0.0 or not task.shape:
            raise Over("its job keeps none", told=False)
        if not race.has_won(at, self._records):
            raise Over("another place has won the race of its attempt", told=False)
        if not whole:
            raise Over(f"the agent or the guard of host {at.host} was killed")
        told = bootstrap.metadata("instance/attributes/kinetic")
        self._orders = json.loads(told or "{}")
        if self._orders.get("resource") != at.resource:
            raise Over("its machine was made for another slice")
        if not self._orders.get("lease_key"):
            raise Over("it was made without a key for leases")
        return task, verdict

    def _clean(self, task: Task) -> None:
        _, in_memory = tier.roots(self._at.home)
        cleaning.clean(self._at.kept, self._at.marker, shared=(in_memory,))
        if task.accelerator.kind == "gpu" and not task.emulated:
            found, said = gpus.listed(bootstrap.root())
            if found < task.devices:
                raise Unclean(f"nvidia-smi lists {found} of {task.devices} GPUs: {said}")
        self._mark("")

    def _mark(self, why: str) -> None:
        """Tell host 0 that this host is clean, or why not."""
        name = names.clean(self._slice, self._at.epoch, self._at.host)
        self._records.create(name, wire.encode({"clean": not why, "why": why}))

    def _await_marks(self, patience: float) -> None:
        """Wait until all hosts are clean. Raises Over."""
        prefix = names.cleaned(self._slice, self._at.epoch)
        wanted = {names.clean(self._slice, self._at.epoch, host) for host in range(self._at.hosts)}
        deadline = time.monotonic() + patience
        while wanted:
            for entry in list(self._records.list(prefix)):
                if entry.name in wanted and (found := read_bounded(self._records, entry.name)) is not None:
                    mark = wire.decode(found)
                    if mark.get("clean") is not True:
                        raise Over(str(mark.get("why") or "a host is not clean"))
                    wanted.discard(entry.name)
            self._check_machine()
            if wanted and time.monotonic() > deadline:
                late = sorted(int(name.rpartition("/")[2]) for name in wanted)
                raise Over(f"hosts {', '.join(map(str, late))} did not say in time that they are clean")
            if wanted:
                time.sleep(MARK_PACE)

    # ---- the offer ---------------------------------------------------------------------------------------------

    def _offer(self, task: Task) -> None:
        """Offer the slice, whose last attempt is charged no longer. Raises Over, Unarmed, OSError."""
        at, records = self._at, self._records
        held = leases.read(records, self._slice)
        now = records.now()
        lease = self._first(FREE, now, task) if held is None and not at.epoch else None
        if held is not None and held.lease.epoch == at.epoch and held.lease.is_of(at.job, at.attempt):
            lease = held.lease
        if lease is None:
            raise Over("its lease was ended, or is another attempt's", told=False)
        until = min(now + task.keep, lease.last or float("inf"))
        if until - now < LEAST:
            raise Over("its machines are taken away soon in any case", told=False)
        records.create(names.left(at.job, at.attempt), wire.encode({}))
        self._arm(until, lease.last)
        if not leases.write(records, lease.offered(until=until, writer=self._writer, now=now), held):
            raise Over("its lease was ended, or is another attempt's", told=False)

    def _first(self, state: str, now: float, task: Task | None = None) -> Lease:
        """Return the first lease of the slice, which was made for this attempt. Raises Over, OSError."""
        at = self._at
        found = read_bounded(self._records, names.intent(at.job, at.attempt))
        intent = {} if found is None else wire.fields_of(found, wire.INTENT, "the intent")
        placement = own_place(intent.get("placement", {}), at.rival)
        if task is not None and placement.get("name") != self._slice:
            raise Over("the intent of its attempt names another slice", told=False)
        return Lease(
            self._slice, at.epoch, state, "" if task is None else task.shape, placement, at.job, at.attempt,
            at.job, at.attempt, now, self._writer, since=now, last=self._last(), origin=self._origin(),
            key=key_name(str(self._orders["lease_key"])) if self._orders.get("lease_key") else "",
        )  # fmt: skip

    def _last(self) -> float:
        """Return when the machines are taken away in any case, 0.0 for never. On Compute Engine a limit of their run is
        set with each machine."""
        on_compute = "/locations/" not in self._at.resource
        return float(str(self._orders.get("last") or (self._at.deadline if on_compute else "") or 0.0))

    def _origin(self) -> dict[str, str]:
        """Return the orchestrator and the run that the job is of."""
        found = wire.decode(self._spec).get("origin", {}) if self._spec else {}
        return {name: str(found[name])[:200] for name in OF_RUN if found.get(name)}

    def _arm(self, until: float, last: float) -> None:
        self._until = until
        rearming.rearm(self._at, min(until + ARMED, last or float("inf")))

    # ---- the wait ----------------------------------------------------------------------------------------------

    def _wait(self, task: Task) -> NoReturn:
        """Read the lease until it is claimed. Raises Over, Unarmed."""
        began = heard = time.monotonic()
        turn = FIRST_TURN + TURN * self._at.host if self._at.host else 0.0
        while True:
            self._check_machine()
            try:
                held = leases.read(self._records, self._slice)
                heard = time.monotonic()
                self._judge(held, task)
            except (OSError, wire.Unreadable, wire.Newer) as error:
                if time.monotonic() - heard > SILENCE:
                    raise Over(f"its lease could not be read for {SILENCE:.0f} s: {error}", told=False) from None
            if self._until and self._records.now() > self._until + turn:
                raise Over("nobody took it in time", told=False)
            if not self._until and time.monotonic() - began > MARKS + OFFER:
                raise Over("host 0 did not offer it in time")
            waited = time.monotonic() - began
            pause = next((pause for pause, until in LOOKS if waited < until), LATER)
            time.sleep(max(pause, self._at.hosts / A_SECOND) if pause < LATER else pause)

    def _stand_by(self) -> None:
        """Start the processes of the next attempt ahead, of the version of the agent that runs here. Where that fails,
        they start with the claim."""
        digest = os.path.basename(os.path.dirname(sys.path[0])).removesuffix(".zip")
        with contextlib.suppress(OSError, bootstrap.Failed):
            self._standby = Standby(self._at, bootstrap.fetch(self._at.store, digest), digest)

    def _judge(self, held: leases.Held | None, task: Task) -> None:
        """Go by what the lease says. Raises Over, Unarmed."""
        own = self._at.epoch
        if held is None:
            if self._until or own:
                raise Over("the record of its lease is gone", told=False)
            return
        lease = held.lease
        if lease.state == ENDED:
            raise Over(lease.why, told=False)
        if lease.epoch == own and lease.state == FREE:
            if not self._until:
                now = self._records.now()
                self._arm(min(lease.until, now + task.keep), lease.last)
        elif lease.epoch == own and lease.is_of(self._at.job, self._at.attempt) and not self._until:
            return  # host 0 is about to offer it
        elif lease.epoch == own + 1 and lease.state == CLAIMED:
            self._follow(lease)
        else:
            raise Over(
                f"its lease says {lease.state} in epoch {lease.epoch}, which its hosts do not obey: they saw {own}"
            )

    def _check_machine(self) -> None:
        """Raise Over if this machine is being ended, or taken away."""
        if self._ends or self._goes_down():
            raise Over(f"host {self._at.host} is being shut down")
        now = time.monotonic()
        if now - self._noticed > NOTICES:
            from kinetic_orchestration.host.attempt.opening import machine_of

            self._noticed = now
            if notice := machine_of(self._at).notice():
                raise Over(f"host {self._at.host} is being taken away: {notice}")

    def _on_term(self, *_: object) -> None:
        self._ends = True

    # ---- the claim ---------------------------------------------------------------------------------------------

    def _follow(self, lease: Lease) -> NoReturn:
        """Become the agent of the attempt that has claimed the slice. Raises Over, Unarmed."""
        told = self._told(lease)
        if told is None:
            raise Over(
                f"a claim of epoch {lease.epoch} in the name of {lease.job}, attempt {lease.attempt}, was refused: it "
                "has not the seal of this slice's key. Find out who can write to the store"
            )
        try:
            wanted, ready = str(told["agent"]), self._standby
            agent = ready.agent if ready and ready.digest == wanted else bootstrap.fetch(self._at.store, wanted)
            words = [*bootstrap.agent_arguments(told, self._at.host), f"epoch={lease.epoch}"]
            rearming.rearm(self._at, float(str(told["deadline"])))
            os.utime(os.path.join(self._at.home, "deadline.lock"))  # from now on it is charged to the next attempt
            secret = json.dumps({"seal": {"key": told["key"]}} if told.get("key") else {}).encode()
            if ready is not None and ready.take(agent, words, secret):
                os._exit(0)
            private, end = os.pipe()
            os.write(end, secret)
            os.dup2(private, 0)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            os.closerange(3, rearming.MOST_FILES)
            os.execv(sys.executable, [sys.executable, "-I", agent, *words])
        except (bootstrap.Failed, OSError) as error:
            raise Over(f"host {self._at.host} {bootstrap.Failed.what} for the next attempt: {error}") from None

    def _told(self, lease: Lease) -> dict[str, object] | None:
        """Return the orders of a claim; None for a claim that is not to be obeyed."""
        at = self._at
        told = lease.orders_for_hosts(str(self._orders.get("lease_key") or self._key()))
        if told is None:
            return None
        same = {
            "store": at.store,
            "resource": at.resource,
            "hosts": at.hosts,
            "job": lease.job,
            "attempt": lease.attempt,
        }
        if any(told.get(name) != value for name, value in same.items()) or told.get("image"):
            raise Over(f"the orders of its claim are not for this slice: {sorted(told)}")
        return told

    def _key(self) -> str:
        """Return the key by which the machine was made, for a host that ends before it has asked."""
        try:
            return str(json.loads(bootstrap.metadata("instance/attributes/kinetic") or "{}").get("lease_key") or "")
        except ValueError:
            return ""

    def _tell(self, lease: Lease, why: str) -> None:
        """End the attempt that has claimed what is being deleted, in the place of its agent."""
        told = self._told(lease)
        if told is not None:
            bootstrap.abort(told, self._at.host, f"host {self._at.host} {bootstrap.Failed.what}: {why}")
