"""Outcome of an attempt, as one of its hosts reports it: the value or the failure of its program, and the verdict."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from kinetic_orchestration.protocol import attempt_rules, names, wire
from kinetic_orchestration.protocol.records.base import read_bounded
from kinetic_orchestration.protocol.system.parallel import Ahead

if TYPE_CHECKING:
    from kinetic_orchestration.host.machine.machine import Machine
    from kinetic_orchestration.host.view.view import View
    from kinetic_orchestration.protocol.assignment import Assignment
    from kinetic_orchestration.protocol.wire.task import Task

PROOF_PATIENCE = 120.0  # without a proof a pickled value is worth little to others
PROOF_PACE = 5.0


class Outcome:
    """Writes the verdict, and sends what the program left in a file before."""

    def __init__(self, at: Assignment, key: str, view: View, machine: Machine) -> None:
        """`key`: the key of the seal that authenticates the verdict; "" for none."""
        self.at = at
        self.verdict: wire.Verdict | None = None
        self.key = key
        self._view = view
        self._machine = machine
        self._sending: Ahead[None] | None = None  # the value
        self._proof, self._prove_at = "", 0.0
        self._look_at = 0.0  # when to look again whether the host that had a notice still exists
        self._uncommitted = 0.0  # since when the value could not be written

    def read_verdict(self) -> None:
        """Read the verdict, in case another host has written it."""
        if self.verdict is None:
            self.verdict = _verdict(self._view.verdict())

    def write(self, verdict: wire.Verdict) -> None:
        """Write the verdict, unless there is one; then that one counts."""
        name = names.verdict(self.at.job, self.at.attempt)
        record = verdict.encode()
        if self.key:
            record = wire.summed(_sealed(self.key, record))
        records = self._view.records
        if records.create(name, record) is not None:
            self.verdict = verdict
        else:
            self.verdict = _verdict(read_bounded(records, name))
        records.ring(self.at.job)
        self._view.poll_soon()

    def patience(self) -> float:
        """Return for how many seconds this host's program may still save, once all were told to: no longer than a
        checkpoint is possible. One for which a notice gives long is not once the VM that had it is gone unsaved."""
        verdict, now = self.verdict, time.monotonic()
        if verdict is None or not verdict.grace or verdict.host in (None, self.at.host) or now < self._look_at:
            return float("inf")
        from kinetic_orchestration.host.attempt.self_delete import LOOK_AT_VMS, is_gone

        self._look_at = now + LOOK_AT_VMS
        host = int(verdict.host or 0)
        try:
            has_saved = self._view.records.read(names.host(self.at.job, self.at.attempt, host, "done.json")) is not None
            return float("inf") if has_saved or not is_gone(self.at, host) else attempt_rules.SIBLING_GRACE
        except OSError:
            return float("inf")

    def abort(
        self, cause: str, reason: str, host: int, failure: wire.Failure | None = None, grace: float = 0.0
    ) -> None:
        leaves = cause == wire.CANCELLED and wire.leaves_after_cancel(self._view.cancel())
        self.write(
            wire.Verdict(
                wire.ABORTED, self.at.boot, time.time(),
                cause=cause, host=host, reason=reason, failure=failure, grace=grace, leaves=leaves,
                proof=self._prove(names.EXCEPTION, failure.digest) if failure is not None else "",
            )
        )  # fmt: skip

    def failure(
        self, report: attempt_rules.Report | None, reason: str, exit_: attempt_rules.Exit | None, tail: bytes, path: str
    ) -> wire.Failure:
        """Return what went wrong here, once the exception that the program left at `path` is sent.

        tail: the last of what the program printed.
        """
        report = report or attempt_rules.Report("", 0)
        raised = report.kind == "exception"
        if raised and report.digest:
            self._view.deliver("exception", path, digest=report.digest, size=report.size, keep=False)
        return wire.Failure(
            type=report.type,
            message=reason if report.message is None else report.message,
            traceback=report.traceback,
            log_tail=tail.decode("utf-8", "replace"),
            exit_code=exit_.code if exit_ is not None else None,
            digest=report.digest if raised else "",
            size=report.size,
        )

    def try_to_commit(self, report: attempt_rules.Report | None, ended: float, path: str) -> None:
        """Send the value that the program left at `path`, and commit. Does nothing while a proof may still come.

        A job's value is worth more patience than a single request has; the rules go on meanwhile. `ended`: when the
        program did. Raises OSError when that patience is over.
        """
        try:
            self._commit(report or attempt_rules.Report("", 0), ended, path)
        except OSError as error:
            now = time.monotonic()
            self._uncommitted = self._uncommitted or now
            if now - self._uncommitted >= self._view.patience_with(error):
                raise

    def _commit(self, report: attempt_rules.Report, ended: float, path: str) -> None:
        value, now = report.digest, time.monotonic()
        if value and self._sending is None:  # in parallel with the proof
            self._sending = Ahead(self._send_value, report, path, in_background=self._view.records.parallel > 1)
        if self._machine.attests and value and not self._proof:
            if now < self._prove_at:
                return
            self._proof, self._prove_at = self._prove(names.VALUE, value), now + PROOF_PACE
            if not self._proof and now - ended < PROOF_PATIENCE:
                return
        if self._sending is not None:
            try:
                self._sending.result()
            except OSError:
                self._sending = None
                raise
        self.write(
            wire.Verdict(
                wire.COMMITTED, self.at.boot, time.time(),
                host=0, digest=value, size=report.size, proof=self._proof, format=report.format,
            )
        )  # fmt: skip

    def _send_value(self, report: attempt_rules.Report, path: str) -> None:
        self._view.deliver("result", path, digest=report.digest, size=report.size, keep=True)

    def _prove(self, role: str, outcome: str) -> str:
        """Return this machine's proof of an outcome, so that a process that can write to the store cannot forge one."""
        if not outcome:
            return ""
        return self._machine.attest(names.claim(role, self.at.store, self.at.job, self.at.attempt, outcome))


def _verdict(data: bytes | None) -> wire.Verdict | None:
    if data is None:
        return None
    try:
        return wire.Verdict.decode(data)
    except (wire.Unreadable, wire.Newer) as error:  # from any writer: the attempt has ended
        return wire.Verdict(wire.CLOSED, "", 0.0, cause=wire.INFRASTRUCTURE, reason=str(error))


def _sealed(key: str, record: bytes) -> bytes:
    """Return a record of this attempt with a seal over all its content, made with the attempt's key."""
    import json

    from kinetic_orchestration.host.machine import bootstrap

    fields = json.loads(record)
    fields.pop("sum", None)  # which is that of a record without a seal
    seal = bootstrap.sealed(key, bootstrap.gist(fields))
    return json.dumps({**fields, "seal": seal}, ensure_ascii=False).encode("utf-8", "backslashreplace")


def refused_beat(view: View) -> attempt_rules.Exit | None:
    """Return the failure of a host whose beats the store refuses; None if it takes them."""
    denied, cause = view.denied()
    if not denied:
        return None
    reason = f"this host cannot show that it lives, and would be taken for dead: {denied}"
    return attempt_rules.Exit(1, cause, reason)


def blame_driver(
    exit_: attempt_rules.Exit, report: attempt_rules.Report | None, tail: bytes, task: Task
) -> attempt_rules.Exit:
    """Return the failure as the machine's, if its accelerator's driver failed: new hosts may not meet it.

    tail: the last of what the program printed.
    """
    traceback = report.traceback if report is not None else ""
    gpus = task.accelerator.kind == "gpu" and not task.emulated and "CUDA_VISIBLE_DEVICES" not in task.env
    if not attempt_rules.is_driver(f"{exit_.reason}\n{traceback}\n{tail.decode('utf-8', 'replace')}", gpus=gpus):
        return exit_
    return exit_._replace(cause=wire.INFRASTRUCTURE, reason=f"the accelerator's driver failed: {exit_.reason}")


def is_echo(exit_: attempt_rules.Exit | None, report: attempt_rules.Report | None, tail: bytes, hosts: int) -> bool:
    """Return True if a failure looks like the consequence of another one that has not been reported yet."""
    if exit_ is None or exit_.code == 0 or exit_.cause != wire.USER:
        return False
    if exit_.code == -signal.SIGTERM:
        return True
    if hosts == 1:
        return False
    text = (report.type if report is not None else "") + " " + exit_.reason
    return attempt_rules.is_echo(text if exit_.code > 0 else text + tail.decode("utf-8", "replace"))
