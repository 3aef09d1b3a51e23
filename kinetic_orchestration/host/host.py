"""Agent of one host of one attempt: prepares, has the program run (`supervisor`), and follows the rules.

One loop: move output, read records, decide (`attempt_rules`), act. It needs only the store; the submitter may be gone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from kinetic_orchestration.host.attempt import outcome
from kinetic_orchestration.host.attempt.notice import Notice
from kinetic_orchestration.host.attempt.opening import Opening, Refused, Restarted, machine_of
from kinetic_orchestration.host.attempt.peers import Peers, Silence
from kinetic_orchestration.host.devices.reports import Reports
from kinetic_orchestration.host.machine.machine import Promise, Unplaced
from kinetic_orchestration.host.process import pipes
from kinetic_orchestration.host.process.environ import start_message
from kinetic_orchestration.host.process.supervisor import Supervisor
from kinetic_orchestration.host.view.open_records import open_view
from kinetic_orchestration.protocol import attempt_rules, wire
from kinetic_orchestration.protocol.assignment import Assignment
from kinetic_orchestration.protocol.report import frames
from kinetic_orchestration.protocol.system import copies, processes
from kinetic_orchestration.protocol.wire.task import Task

if TYPE_CHECKING:
    from kinetic_orchestration.host.attempt.owners import Owners
    from kinetic_orchestration.host.prepare.preparation import Preparation
    from kinetic_orchestration.host.view.view import View

TICK = 0.05
BEAT = 1.0
LONGEST_PATH = 200  # of a path in a beat, which has a size limit


class Host:
    """One host of one attempt. Its parts hold the knowledge and the actions; this class orders them."""

    def __init__(
        self,
        assignment: Assignment,
        private: dict[str, dict[str, str]],
        started: pipes.Program | None = None,
        *,
        view: View | None = None,
    ) -> None:
        self.at = assignment
        self._private = private
        self.machine = machine_of(assignment)
        self.view = view or open_view(assignment, self._compose, self._wake)
        self.records, self.log = self.view.records, self.view.log
        self.scratch = os.path.join(assignment.run, f"host-{assignment.host}")
        self._task: Task | None = None
        self.opening = Opening(assignment, self.view, self.machine)
        self.reports = Reports(assignment, self.view, self._note)
        self.supervisor = Supervisor(assignment, self.scratch, self.log, self.reports.hear)
        if started is not None:
            self.supervisor.adopt(started)
        self.preempted = self.cancelled = self.ended = ""  # the notice; the reason; the signal without a notice
        self.notice = Notice(assignment, self.view, self.machine)
        self.shares_machine = True  # with the other hosts, also where each is an imitation of a machine
        self._preparation: Preparation | None = None
        self.exit: attempt_rules.Exit | None = None
        self.peers = Peers(assignment, self.view)
        self.silence = Silence(assignment, self.view, self.peers)
        self.outcome = outcome.Outcome(assignment, private.get("seal", {}).get("key", ""), self.view, self.machine)
        self.began = time.monotonic()
        self.run_began = 0.0
        self.promise = Promise()
        self.owners: Owners | None = None
        self.beaten: tuple[float, object] = (0.0, None)  # the time of the last beat, and its urgent fields
        self.state = wire.STARTING

    # ---- the whole life ----------------------------------------------------------------------------------

    def run(self) -> None:
        if not self.opening.begin(self.outcome.key):
            return
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_term)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # a pod's may have come before
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.supervisor.wake_out, warn_on_full_buffer=False)
        try:
            os.makedirs(self.scratch, exist_ok=True)
            processes.adopt_orphans()
            self._open()
            self._loop()
        except Refused as error:
            self._decide(wire.CONFIGURATION, str(error), self.at.host)
        except (Restarted, Unplaced) as error:
            self._decide(wire.INFRASTRUCTURE, str(error), self.at.host)
        except Exception:
            import traceback

            self._decide(wire.INFRASTRUCTURE, f"the agent failed:\n{traceback.format_exc()}", self.at.host)
        finally:
            self._end(0.0)
            self._farewell()

    def _loop(self) -> None:
        within = 0.0
        while True:
            self._pump(within)
            self._poll()
            move = attempt_rules.decide(self._situation())
            if isinstance(move, attempt_rules.Start):
                self._start()
            elif isinstance(move, attempt_rules.Abort):
                if move.cause == wire.PREEMPTION or move.grace:  # the store may take longer than the machine has left
                    self.supervisor.ask_to_end(wire.PREEMPTION, move.grace or attempt_rules.GRACE[wire.PREEMPTION])
                self._decide(move.cause, move.reason, move.host, move.grace)
            elif isinstance(move, attempt_rules.Ask):
                self.supervisor.ask_to_end(wire.PREEMPTION, attempt_rules.GRACE[wire.PREEMPTION])
            elif isinstance(move, attempt_rules.Commit):
                self._commit()
            elif isinstance(move, attempt_rules.Leave) and self._leave():
                return
            elif isinstance(move, attempt_rules.Stop):
                self._end(move.grace)
                return
            idle = self.verdict is None and isinstance(move, attempt_rules.IDLE)
            self._start_ahead()
            within = TICK if idle else 0.0  # the action may allow the next one immediately
            self._beat()
            self.reports.sample()

    @property
    def task(self) -> Task:
        """The task; available once the spec has been read."""
        assert self._task is not None
        return self._task

    @property
    def preparation(self) -> Preparation:
        """The program's preparation; available once it has begun."""
        assert self._preparation is not None
        return self._preparation

    @property
    def verdict(self) -> wire.Verdict | None:
        return self.outcome.verdict

    # ---- prepare -----------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Open the host. Other hosts may see each step, so the order counts."""
        self._task = self.opening.read()
        self.supervisor.command, self.supervisor.emulated = bool(self.task.argv), self.task.emulated
        self.reports.set_title(self.task.name)
        self.machine.begin(self.task)
        self._keep_or_end_program()
        self.shares_machine = self.opening.shares_machine()
        self.machine.watch(self._on_notice)
        self.promise = self.opening.promise(self.task.affordable)
        self.opening.claim(shares_machine=self.shares_machine)
        if self.task.owned or self.task.kept:
            from kinetic_orchestration.host.attempt.owners import Owners

            self.owners = Owners(self.at, self.view, self.task)
        self.view.open()
        self._set_state(wire.PREPARING)
        self._preparation = self._preparing()
        self._preparation.begin()

    def _keep_or_end_program(self) -> None:
        """Keep or end a process that was started for the program before it was known what to run, and in what."""
        foreign = any(name in os.environ for name in pipes.FOREIGN)
        if self.supervisor.child and not self.machine.suits(self.task, self.supervisor.python, foreign=foreign):
            self.supervisor.drop()

    def _on_notice(self, text: str) -> None:
        self.preempted = self.preempted or text
        self.log.hurry()
        self._wake()

    def _wake(self) -> None:
        self.supervisor.wake()

    def _preparing(self) -> Preparation:
        from kinetic_orchestration.host.prepare.preparation import Preparation

        return Preparation(
            self.at, self.task, self.view, self.machine, self._private,
            alone=self.at.hosts == 1 or self.shares_machine, scratch=self.scratch, note=self._note, wake=self._wake,
        )  # fmt: skip

    # ---- run ---------------------------------------------------------------------------------------------

    def _spawn(self, python: str, kind: str) -> None:
        self.supervisor.spawn(python, kind, self.preparation.secrets(), isolated=self.task.environment is not None)

    def _start_ahead(self) -> None:
        """Start Python while code or data are still being fetched."""
        python = self.preparation.python
        over = self.exit or self.preparation.unready or self.verdict or self._is_asked()
        if python and not (self.task.argv or self.supervisor.running or over):
            if self.supervisor.child and self.supervisor.python != python:
                self.supervisor.drop()
            if not self.supervisor.child:
                self._spawn(python, pipes.FUNCTION)

    def _start(self) -> None:
        task, ready = self.task, self.preparation.ready
        assert ready is not None
        if self.supervisor.child and not task.argv and self.supervisor.python != ready.python:
            self.supervisor.drop()
        if not self.supervisor.child:  # a command may be an older Python than the agent supports, or none
            self._spawn(*(sys.executable, pipes.COMMAND) if task.argv else (ready.python, pipes.FUNCTION))
        extra = {**self.preparation.environ(), "KINETIC_ATTEMPT": str(self.at.attempt - self.promise.moved)}
        if self.at.epoch:
            extra |= dict([self.at.marker.split("=", 1)])  # a process that stood by was started with another one
        place = self.preparation.addresses, self.peers.ports(self.shares_machine or self.machine.shares_ports)
        message = start_message(
            self.at, task, ready, *place, extra, self.supervisor.files, sys.path[0], copies.environ(), self.machine
        )
        message["env"] = {**self.preparation.secrets(), **message["env"]}  # a process that was started ahead lacks them
        self.supervisor.begin(message)
        self.run_began = self.supervisor.active
        self._set_state(wire.RUNNING)
        self.reports.begin(task, ready.python, message["env"])

    def _pump(self, within: float) -> None:
        """Move the program's output into the log for up to `within` seconds; return early when anything happens."""
        for pid, status in self.supervisor.pump(within):
            self.reports.ended(pid)
            if pid == self.supervisor.child:
                self._on_exit(os.waitstatus_to_exitcode(status))

    def _on_exit(self, code: int) -> None:
        """Handle the program's exit: read its last output, then that of the processes it left running."""
        self.reports.stop()
        self.supervisor.read_remaining()
        if self._is_asked():
            return  # such an end is no outcome
        if not self.supervisor.running:
            if not self.preparation.python:  # it was only a guess, such as a command of that name which is no Python
                self.supervisor.give_up()
            elif self.exit is None and self.verdict is None:
                reason = f"the program's process ended with exit code {code} before it was told to start"
                self.exit = attempt_rules.Exit(code or 1, wire.INFRASTRUCTURE, reason)
            return
        if self.exit is None:
            self.exit = self._blamed(self.supervisor.exit_of(code))
        self._record_exit()
        self._set_state(wire.ENDING)

    def _record_exit(self) -> None:
        assert self.exit is not None
        if self.at.host in self.peers.exits:
            return
        self.log.flush()  # a reader of the exit finds all output before it
        self.peers.record_exit(self.exit.code)
        if self.at.hosts > 1:
            self.view.write_exit(wire.encode({"code": self.exit.code}))

    def _blamed(self, exit_: attempt_rules.Exit) -> attempt_rules.Exit:
        """Return the exit with its cause: a failure of the program may be its machine's."""
        if exit_.code == 0 or exit_.cause != wire.USER or not self.machine.is_own:
            return exit_
        self.preempted = self.preempted or self.machine.notice()
        return outcome.blame_driver(exit_, self._report(), self.supervisor.tail, self.task)

    def _report(self) -> attempt_rules.Report | None:
        return self.supervisor.report()

    # ---- poll and decide ---------------------------------------------------------------------------------

    def _poll(self) -> None:
        """Take in what others have written."""
        self.outcome.read_verdict()
        cancel = self.view.cancel()
        self.cancelled = "" if cancel is None else wire.reason_of_cancel(cancel)
        self.peers.read_states(running=self.supervisor.running)
        if self.owners is not None:
            continues = not self.cancelled and self.verdict is None
            self.cancelled = self.owners.check(continues=continues) or self.cancelled
        if self.exit is None:
            self.exit = self.preparation.unready or outcome.refused_beat(self.view) or self.opening.lost_lease()
        if self.supervisor.running:
            if self.exit is None and not self._is_asked():
                self._read_report()
            self.peers.read_beats()
        listens = self.supervisor.running and self.exit is None
        if message := self.silence.measure(self.supervisor.active, self.task.stall, listens=listens):
            self._note(message)
            self._dump_stacks()

    def _read_report(self) -> None:
        """Read the report of a program that has not exited yet, and may never exit if its function failed."""
        report = self._report()
        if report is not None and report.code != 0:
            self.exit = self._blamed(attempt_rules.exit_of_report(report))
            self._record_exit()
        elif report is not None or self.supervisor.waits():
            self.peers.record_return()

    def _situation(self) -> attempt_rules.Situation:
        now = time.monotonic()
        stall_limit, stall_limit_of = self.silence.limit(self.task.stall)
        return attempt_rules.Situation(
            index=self.at.host,
            hosts=self.at.hosts,
            verdict=self.verdict,
            cancelled=self.cancelled,
            preempted=self.preempted,
            lead=0.0 if self.ended else self.machine.lead,
            counts_as=self.machine.counts_as,
            ended=self.ended,
            is_out=self.ended != "" and self.supervisor.is_out(),
            is_overdue=bool(self.preempted or self.ended) and self.at.is_overdue(self.records.now()),
            company=self.notice.company(self.preempted, self.ended),
            owner_silence=0.0 if self.owners is None else self.owners.silence,
            prepared=self.preparation.ready is not None,
            running=self.supervisor.running,
            started=frozenset(self.peers.started),
            exit=self.exit,
            echo=bool(self.exit) and outcome.is_echo(self.exit, self._report(), self.supervisor.tail, self.at.hosts),
            echo_limit=attempt_rules.ECHO + 2 * self.view.cadence(),
            exits=self.peers.ages_of_exits(now),
            quiet=self.peers.ages_of_beats(),
            barrier_age=now - self.began - self.preparation.waited(now),
            barrier_limit=self.task.provision,
            run_age=now - self.run_began if self.supervisor.running else 0.0,
            run_limit=self.promise.limit(self.task.run, self.run_began - self.began),
            run_limit_of=", for which limits.cost pays" if self.promise.affordable else "",
            silence=self.silence.seconds if self.supervisor.running else 0.0,
            stall_limit=stall_limit,
            stall_limit_of=stall_limit_of,
        )

    def _decide(self, cause: str, reason: str, host: int, grace: float = 0.0) -> None:
        failure = None
        if host == self.at.host and cause in (wire.USER, wire.CONFIGURATION, wire.INFRASTRUCTURE) and not grace:
            report = self._report()
            if report is not None and report.kind == "tampered":
                self.preparation.discard_payload()
            failure = self.outcome.failure(
                report, reason, self.exit, self.supervisor.tail, self.supervisor.files["outcome"]
            )
        elif cause == wire.STALL:
            self._dump_stacks()
        self.outcome.abort(cause, reason, host, failure, grace)

    def _commit(self) -> None:
        _, ended = self.peers.exits[self.at.host]
        self.outcome.try_to_commit(self._report(), ended, self.supervisor.files["outcome"])

    def write_verdict(self, verdict: wire.Verdict) -> None:
        """Write a verdict for a host whose agent no longer can, from a process that never opened the host."""
        self.outcome.write(verdict)
        self._farewell(cut=True)

    # ---- end ---------------------------------------------------------------------------------------------

    def _end(self, grace: float) -> None:
        """End the program: ask, wait, then SIGKILL all descendants of this host."""
        if self.verdict is not None and self.verdict.cause == wire.STALL and self.supervisor.child:
            self._dump_stacks()
        if grace and self.supervisor.is_alive():
            self.supervisor.ask_to_end(attempt_rules.told_cause(self.verdict), grace)
            while self.supervisor.is_alive() and time.monotonic() < self.supervisor.until:
                self._pump(min(TICK, grace))
                self._beat()
                self.supervisor.hurry(self.outcome.patience())
        self.reports.stop()
        if left := self.supervisor.kill():
            self._note(f"processes {left} did not end")

    def _is_asked(self) -> bool:
        """Return True if the program was asked to end and nobody has decided yet what of."""
        return self.supervisor.until > 0.0 and self.verdict is None

    def _farewell(self, cut: bool = False) -> None:
        self.reports.end()
        if self._preparation is not None:
            self._preparation.release(1.0 if self.preempted else 5.0)
        cut = not self.log.close() or cut
        self.reports.close(swiftly=bool(self.preempted))
        self.records.create(
            self.at.own("done.json"),
            wire.encode({"boot": self.at.boot, "cut": cut, **self.peers.ran(self.run_began), **self._took()}),
        )
        self._set_state(wire.DONE)
        self.view.close()

    def _took(self) -> dict[str, object]:
        """Return when each preparation step began and ended, by the store's clock, and how trainings spent time."""
        offset = self.records.now() - time.monotonic()
        spans = {} if self._preparation is None else self._preparation.spans()
        prepared = {what: [began + offset, ended + offset] for what, (began, ended) in spans.items()}
        return {"prepared": prepared, "spent": self.supervisor.spent}

    def _beat(self) -> None:
        (at, before), news = self.beaten, (self.state, self.supervisor.lacks_room(), self.notice.is_heard)
        now = time.monotonic()
        if news == before and now - at < BEAT:
            return
        self.beaten = (now, news)
        self.view.beat(self._compose, changed=news != before)

    def _compose(self) -> wire.Beat:
        ended = self.peers.exits.get(self.at.host)
        return wire.Beat(
            self.state,
            self.at.boot,
            self.log.segment,
            self.log.offset,
            self.records.now() - (time.monotonic() - self.supervisor.active),
            **self.supervisor.shown(),
            exit=None if ended is None else ended[0],
            returned=self.at.host in self.peers.returned,
            verdict=self.verdict is not None,
            told=self.notice.is_heard,
            began=self.peers.ran(self.run_began).get("began", 0.0),
            devices=self.reports.newest,
            spent=self.supervisor.spent or None,
            full=repr(self.scratch)[1:-1][:LONGEST_PATH] if self.supervisor.lacks_room() else None,  # in one line
        )

    def _set_state(self, state: str) -> None:
        self.state = state
        self._beat()

    def _on_term(self, number: int, _frame: object) -> None:
        text = f"this host received {processes.signal_name(number)}"
        self.preempted, self.ended = (self.preempted, text) if self.machine.is_explained else (text, "")
        self.supervisor.hurry(attempt_rules.GRACE[wire.PREEMPTION] if self.machine.lead else float("inf"))

    def _leave(self) -> bool:
        """End this host without a verdict. Returns False if there is a notice after all, of which one follows."""
        self.preempted = self.machine.notice() or self.preempted
        if not self.preempted:
            self._note(f"{self.ended or 'another host was ended'}: the operations of its zone say who ended the VM")
        return not self.preempted

    def _dump_stacks(self) -> None:
        waited = self.supervisor.ask_for_stacks()
        deadline = time.monotonic() + 5.0
        while waited and self.supervisor.child and not self.preempted and time.monotonic() < deadline:
            self._pump(0.02)
            waited -= self.supervisor.read_stacks()

    def _note(self, text: str) -> None:
        self.log.write(frames.NOTE, text.encode() + b"\n")
