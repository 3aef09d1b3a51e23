"""The agent of one host of one attempt: prepares, runs the program, ships its output, and obeys the rules.

One loop: pump what the program printed, look at the records, decide (`rules`), act. It needs the store and
nothing else; whoever submitted the job may be gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from typing import Any

from kinetic_orchestration.agent import distributed, frames, names, processes, program, rules, wire
from kinetic_orchestration.agent.assignment import Assignment
from kinetic_orchestration.agent.output import EMULATION, LogWriter, widen, without_emulation
from kinetic_orchestration.agent.patience import Patient
from kinetic_orchestration.agent.records import FileRecords, Record

TICK = 0.05
BEAT = 1.0
TAIL = 8 << 10
LAST_WORDS = 2.0  # for what the program left running and still prints
LOOK_AT_OTHERS = 5.0
REPORT_SILENCE = 600.0


class Host:
    def __init__(
        self, assignment: Assignment, private: dict[str, dict[str, str]], started: program.Program | None = None
    ) -> None:
        self.at = assignment
        self.secrets = private.get("env", {})
        self.uv = private.get("uv", {})
        self.records: FileRecords = Patient(assignment.store)
        self.scratch = os.path.join(assignment.run, f"host-{assignment.host}")
        self.outcome = os.path.join(self.scratch, "outcome")
        self.events = os.path.join(self.scratch, "events")
        self.stacks = os.path.join(self.scratch, "stacks")
        self.log = LogWriter(self.records, assignment.job, assignment.attempt, assignment.host)
        self.task: dict[str, Any] = {}
        self.child = 0
        self.go = -1
        self.pipes: dict[int, tuple[str, frames.Lines]] = {}
        if started is not None:
            self._take_on(started)
        self.preempted = ""
        self.prepared = False
        self.unready: rules.Exit | None = None
        self.running = False
        self.exit: rules.Exit | None = None
        self.started: dict[int, dict[str, Any]] = {}
        self.exits: dict[int, tuple[int, float]] = {}
        self.verdict: wire.Verdict | None = None
        self.began = self.active = time.monotonic()
        self.run_began = 0.0
        self.silence_reported = REPORT_SILENCE
        self.owner = (0, 0.0)  # the generation of its beat, and when it was seen to change
        self.owner_read = self.owner_silence = 0.0
        self.beaten = (0.0, "")
        self.progress: dict[str, Any] = {}
        self.events_read = 0
        self.stacks_read: dict[str, int] = {}
        self.beats: dict[int, tuple[int, float]] = {}  # of the others: generation, and when it was seen to change
        self.beats_read = 0.0
        self.state = wire.STARTING
        self.tail = b""
        self.wake_in, self.wake_out = os.pipe()
        for end in (self.wake_in, self.wake_out):
            os.set_blocking(end, False)

    # ---- the whole life ----------------------------------------------------------------------------------

    def run(self) -> None:
        if self._read(names.verdict(self.at.job, self.at.attempt)) is not None:
            return
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_term)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_out, warn_on_full_buffer=False)
        try:
            os.makedirs(self.scratch, exist_ok=True)
            processes.adopt_orphans()
            self._open()
            self._loop()
        except Refused as error:
            self._decide(wire.CONFIGURATION, str(error), self.at.host)
        except Exception:
            self._decide(wire.INFRASTRUCTURE, f"the agent failed:\n{_raised()}", self.at.host)
        finally:
            self._end(0.0)
            self._farewell()

    def _loop(self) -> None:
        within = 0.0
        while True:
            self._pump(within)
            self._look()
            move = rules.decide(self._view())
            within = TICK if isinstance(move, rules.Wait) else 0.0  # what was done may allow the next at once
            if isinstance(move, rules.Start):
                self._start()
            elif isinstance(move, rules.Abort):
                self._decide(move.cause, move.reason, move.host)
            elif isinstance(move, rules.Commit):
                self._commit()
            elif isinstance(move, rules.Stop):
                self._end(move.grace)
                return
            self._beat()

    # ---- prepare -----------------------------------------------------------------------------------------

    def _open(self) -> None:
        from kinetic_orchestration.agent import digest

        spec = self.records.read(names.spec(self.at.job))
        if spec is None or digest.of_bytes(spec.data) != self.at.spec:
            raise Refused(
                f"{names.spec(self.at.job)} is not the one that was submitted: its digest differs. Nothing of it was "
                "run; submit the job again"
            )
        self.task = wire.decode(spec.data, "spec.json")["task"]
        record = {"boot": self.at.boot, "pid": os.getpid(), "machine": processes.machine(), "address": "127.0.0.1"}
        if self.at.host == 0 and self.at.hosts > 1:
            record["ports"] = _free_ports(self.at.hosts)
        life, name = wire.encode(record), self._name("started.json")
        if self.records.create(name, life) is None and self._read(name) != life:
            raise ValueError("this host started before: another life of it is recorded (a reboot in mid-run?)")
        self._set_state(wire.PREPARING)
        if self.task["quick"]:
            self._prepare()
            return
        import threading

        threading.Thread(target=self._prepare, name="kinetic-prepare", daemon=True).start()

    def _prepare(self) -> None:
        """Everything the program needs on this host's disk. On a thread of its own when it may take a while."""
        from kinetic_orchestration.agent import prepare

        try:
            self.ready = prepare.prepare(self.records, self.task, self.scratch, self.at.home, self.uv, self._note)
            self.prepared = True
        except prepare.NotReady as error:
            self.unready = rules.Exit(1, error.cause, str(error))
        except Exception:
            self.unready = rules.Exit(1, wire.INFRASTRUCTURE, f"preparing failed:\n{_raised()}")
        with contextlib.suppress(BlockingIOError):
            os.write(self.wake_out, b"\0")

    # ---- run ---------------------------------------------------------------------------------------------

    def _spawn(self, python: str, kind: str) -> None:
        isolated = bool(self.task["environment"])
        self._take_on(program.start(python, kind, self.at.marker, self.secrets, isolated=isolated))

    def _take_on(self, started: program.Program) -> None:
        self.child, self.go = started.pid, started.go
        for end, stream in ((started.out, frames.OUT), (started.err, frames.ERR)):
            os.set_blocking(end, False)
            widen(end)
            self.pipes[end] = (stream, frames.Lines())

    def _start(self) -> None:
        task = self.task
        if not self.child:
            if task["argv"]:  # what it becomes may be older than the agent is able to run, or no Python at all
                self._spawn(sys.executable, program.COMMAND)
            else:
                self._spawn(self.ready.python, program.FUNCTION)
        os.makedirs(self.stacks, exist_ok=True)
        addresses = [self.started[host]["address"] for host in range(self.at.hosts)]
        env = {
            **{name: value for name, value in task["env"].items() if not distributed.is_stale(name)},
            **(
                distributed.emulated(task["devices"])
                if task["emulated"]
                else distributed.real(task["devices"], os.environ.get("CUDA_VISIBLE_DEVICES"))
            ),
            **distributed.environment(
                self.at.host, self.at.hosts, addresses, self.started[0].get("ports", {}), join=task["distributed"]
            ),
            **self._compile_cache(),
            "KINETIC_JOB_ID": self.at.job,
            "KINETIC_ATTEMPT": str(self.at.attempt),
            "KINETIC_HOST_INDEX": str(self.at.host),
            "KINETIC_HOST_COUNT": str(self.at.hosts),
            "KINETIC_OUTPUT_DIR": task["output_dir"],
            "KINETIC_CHECKPOINT_DIR": task["checkpoint_dir"],
            "KINETIC_PARTITION_KEY": task["partition_key"],
            "KINETIC_EVENTS": self.events,
        }
        agent = sys.path[0]
        if task["argv"]:
            env["KINETIC_SITE"] = agent
            env["KINETIC_STACKS"] = self.stacks
            path = [os.path.join(agent, "kinetic_orchestration", "agent", "hook"), *self.ready.path]
            inherited = [] if task["environment"] else [os.environ.get("PYTHONPATH", "")]
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [*path, *inherited]))
            programs, places = os.path.dirname(self.ready.python), os.environ.get("PATH", os.defpath)
            if task["environment"] or programs not in places.split(os.pathsep):
                env["PATH"] = programs + os.pathsep + places  # a script's own `python` is the job's
        message = {
            "drop": [name for name in os.environ if distributed.is_stale(name)],
            "env": env,
            "cwd": self.ready.cwd,
            "path": self.ready.path,
            "site": agent,
            "argv": self.ready.argv,
            "name": task["name"],
            "payload": self.ready.payload,
            "digest": task["payload"].get("digest", ""),
            "data": self.ready.data,
            "outcome": self.outcome,
            "stacks": self.stacks,
            "value": self.at.host == 0,
            "debug": task["debug"] if self.at.host == 0 else 0,
        }
        data = json.dumps(message).encode() + b"\n"
        with open(self.go, "wb", buffering=0) as pipe:
            while data:
                data = data[pipe.write(data) :]
        self.running = True
        self.run_began = self.active = time.monotonic()
        self._set_state(wire.RUNNING)

    def _compile_cache(self) -> dict[str, str]:
        """What JAX compiled before need not be compiled again, unless the user has a cache of their own."""
        if not self.task["compile_cache"] or os.environ.get("JAX_COMPILATION_CACHE_DIR"):
            return {}
        return {"JAX_COMPILATION_CACHE_DIR": os.path.join(self.at.home, "cache", "compile")}

    def _pump(self, within: float) -> None:
        """Move what the program wrote into the log, whole lines at a time; return early when anything happens."""
        ready, _, _ = select.select([self.wake_in, *self.pipes], [], [], within)
        moved = 0
        for end in ready:
            if end == self.wake_in:
                with contextlib.suppress(BlockingIOError):
                    os.read(end, 4096)
                continue
            moved += self._drain(end)
        self._read_events()
        if 0 < moved < 32 << 10:
            time.sleep(0.002)  # let a flood of short writes gather, so that it costs few of ours
        for end, (stream, lines) in self.pipes.items():
            if end not in ready and lines.ended and (whole := lines.flush()):
                self._write(stream, whole)
        for pid, status in processes.reap():
            if pid == self.child:
                self._on_exit(os.waitstatus_to_exitcode(status))

    def _drain(self, end: int) -> int:
        stream, lines = self.pipes[end]
        try:
            data = os.read(end, 1 << 20)
        except BlockingIOError:
            return 0
        whole = lines.feed(data) if data else lines.flush()
        if EMULATION in whole and stream == frames.OUT and self.task.get("emulated"):
            whole = without_emulation(whole)
        if whole:
            self._write(stream, whole)
        if not data:
            os.close(end)
            del self.pipes[end]
        return len(data)

    def _write(self, stream: str, whole: bytes) -> None:
        self.log.write(stream, whole)
        self.tail = (self.tail + whole[-TAIL:])[-TAIL:]
        self.active = time.monotonic()

    def _read_events(self) -> None:
        """Metrics and progress that the program has left in its events file, one JSON object a line."""
        try:
            size = os.stat(self.events).st_size
        except OSError:
            return
        if size <= self.events_read:
            return
        with open(self.events, "rb") as file:
            file.seek(self.events_read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.events_read += len(whole)
        for line in whole.splitlines():
            kind, payload = line[:1].decode(), line[1:]
            self.log.write(kind, payload)
            if kind == frames.PROGRESS:
                self.progress = json.loads(payload)
        self.active = time.monotonic()

    def _on_exit(self, code: int) -> None:
        """The program is gone: take the last of its output, then whatever it left running."""
        self.child = 0
        now = time.monotonic()
        quiet, enough = now + 0.2, now + LAST_WORDS
        while self.pipes and time.monotonic() < min(quiet, enough):
            ready, _, _ = select.select(list(self.pipes), [], [], 0.02)
            if not ready and processes.childless():
                break
            for end in ready:
                if self._drain(end):
                    quiet = time.monotonic() + 0.2
        self._read_events()
        if not self.running:
            if self.exit is None and self.verdict is None:
                reason = f"the program's process ended with exit code {code} before it was told to start"
                self.exit = rules.Exit(code or 1, wire.INFRASTRUCTURE, reason)
            return
        if self.exit is None:
            self.exit = self._exit_of(code)
        self._set_state(wire.ENDING)
        self._record_exit()

    def _record_exit(self) -> None:
        assert self.exit is not None
        if self.at.host in self.exits:
            return
        self.exits[self.at.host] = (self.exit.code, time.monotonic())
        if self.at.hosts > 1:
            self.records.create(self._name("exit.json"), wire.encode({"code": self.exit.code}))

    def _exit_of(self, code: int) -> rules.Exit:
        report = self._report()
        if code == 0 and (report is not None or self.task["argv"]):
            return rules.Exit(0)
        if report is not None and report["code"] != 0:
            return _exit_of_report(report)
        if code == 0:
            return rules.Exit(1, wire.USER, "the program ended without an outcome (os._exit?)")
        late = " after it had returned its value" if report is not None else ""
        if code < 0:
            hint = ": perhaps the machine ran out of memory" if -code == signal.SIGKILL else ""
            return rules.Exit(code, wire.USER, f"the program was ended by {processes.signal_name(-code)}{late}{hint}")
        return rules.Exit(code, wire.USER, f"the program ended with exit code {code}{late}")

    def _report(self) -> dict[str, Any] | None:
        try:
            with open(self.outcome + ".json", encoding="utf-8") as file:
                report = json.load(file)
        except OSError:
            return None
        assert isinstance(report, dict)
        return report

    # ---- look and decide ---------------------------------------------------------------------------------

    def _look(self) -> None:
        """Read what others have written; all of it is cheap on a file system."""
        if self.verdict is None:
            self.verdict = self._read_verdict()
        self.cancelled = ""
        if (data := self._read(names.cancel(self.at.job))) is not None:
            self.cancelled = wire.decode(data).get("reason") or "cancelled"
        if len(self.started) < self.at.hosts:
            for host in range(self.at.hosts):
                if host not in self.started and (data := self._read(self._name("started.json", host))) is not None:
                    self.started[host] = wire.decode(data)
        if self.at.hosts > 1 and self.running:
            for host in range(self.at.hosts):
                if host not in self.exits and (data := self._read(self._name("exit.json", host))) is not None:
                    self.exits[host] = (wire.decode(data)["code"], time.monotonic())
        if self.task["owned"] and (owner := self.records.read(names.owner(self.at.job))) is not None:
            self._watch_owner(owner)
        if self.unready is not None and self.exit is None:
            self.exit = self.unready
        if self.running and self.exit is None and (report := self._report()) is not None and report["code"] != 0:
            self.exit = _exit_of_report(report)
            self._record_exit()
        if self.at.hosts > 1 and self.running and time.monotonic() - self.beats_read > LOOK_AT_OTHERS:
            self._look_at_others()
        self._watch_silence()

    def _watch_owner(self, beat: Record) -> None:
        """An old beat counts once it has not changed for a while under our eyes: on a machine that wakes from its
        sleep, the owner's is as old as all others.
        """
        now = time.monotonic()
        if beat.generation != self.owner[0] or now - self.owner_read > rules.OWNER_PATIENCE / 2:
            self.owner = beat.generation, now
        self.owner_read = now
        unchanged = now - self.owner[1] > 1.5 * rules.OWNER_BEAT
        self.owner_silence = self.records.now() - beat.updated if unchanged else 0.0

    def _look_at_others(self) -> None:
        """By our own steady clock, and only while we look ourselves: hosts that were all stopped for a while (a
        laptop's sleep, a paused container) would take each other for dead when they wake.
        """
        now = time.monotonic()
        stopped = now - self.beats_read > LOOK_AT_OTHERS + rules.LOST / 2
        self.beats_read = now
        for host in range(self.at.hosts):
            beat = self.records.read(names.beat(self.at.job, self.at.attempt, host))
            generation = 0 if beat is None else beat.generation
            if host != self.at.host and (stopped or self.beats.get(host, (-1, now))[0] != generation):
                self.beats[host] = generation, now

    def _watch_silence(self) -> None:
        """A job is silent when no host of it shows progress: one that only listens must not be taken for stuck."""
        silence = time.monotonic() - self.active
        limit = self.task.get("stall") or 0.0
        self.silence = silence
        if (
            not self.running
            or self.exit is not None
            or (silence < self.silence_reported and not (limit and silence > limit / 2))
        ):
            return
        for host in range(self.at.hosts):
            if (
                host != self.at.host
                and (data := self._read(names.beat(self.at.job, self.at.attempt, host))) is not None
                and (beat := wire.Beat.read(data)) is not None
            ):
                self.silence = min(self.silence, max(0.0, self.records.now() - beat.active))
        report_at = min(self.silence_reported, limit / 2) if limit else self.silence_reported
        if self.silence > report_at and self.silence_reported != float("inf"):
            self.silence_reported = float("inf") if limit else self.silence_reported * 2
            self._note(f"no host has shown progress for {self.silence:.0f} s; the stacks of this host follow")
            self._dump_stacks()

    def _view(self) -> rules.View:
        now = time.monotonic()
        return rules.View(
            index=self.at.host,
            hosts=self.at.hosts,
            verdict=self.verdict,
            cancelled=self.cancelled,
            preempted=self.preempted,
            owner_silence=self.owner_silence,
            prepared=self.prepared,
            running=self.running,
            started=frozenset(self.started),
            exit=self.exit,
            echo=self._is_echo(),
            exits=tuple((host, code, now - seen) for host, (code, seen) in self.exits.items()),
            quiet=tuple((host, self.beats_read - seen) for host, (_, seen) in self.beats.items()),
            barrier_age=now - self.began,
            barrier_limit=self.task["provision"],
            run_age=now - self.run_began if self.running else 0.0,
            run_limit=self.task["run"] or 0.0,
            silence=self.silence if self.running else 0.0,
            stall_limit=self.task["stall"] or 0.0,
        )

    def _is_echo(self) -> bool:
        if self.exit is None or self.exit.code == 0 or self.exit.cause != wire.USER:
            return False
        if self.exit.code == -signal.SIGTERM:
            return True
        if self.at.hosts == 1:
            return False
        report = self._report() or {}
        text = report.get("type", "") + " " + self.exit.reason
        return rules.is_echo(text if self.exit.code > 0 else text + self.tail.decode("utf-8", "replace"))

    def _decide(self, cause: str, reason: str, host: int) -> None:
        failure = None
        if host == self.at.host and cause in (wire.USER, wire.CONFIGURATION, wire.INFRASTRUCTURE):
            failure = self._failure(reason)
        elif cause == wire.STALL:
            self._dump_stacks()
        self._write_verdict(
            wire.Verdict(
                wire.ABORTED, self.at.boot, time.time(), cause=cause, host=host, reason=reason, failure=failure
            )
        )

    def _failure(self, reason: str) -> wire.Failure:
        report = self._report() or {}
        if report.get("kind") == "tampered":
            self._discard_payload()
        if report.get("digest") and report["kind"] == "exception":
            self.records.upload(self._name("exception"), self.outcome, move=True)
        code = self.exit.code if self.exit is not None else None
        return wire.Failure(
            type=report.get("type", ""),
            message=report.get("message", reason),
            traceback=report.get("traceback", ""),
            log_tail=self.tail.decode("utf-8", "replace"),
            exit_code=code,
            digest=report.get("digest", "") if report.get("kind") == "exception" else "",
            size=report.get("size", 0),
        )

    def _discard_payload(self) -> None:
        """Or it would be found there for ever, and never sent again."""
        from kinetic_orchestration.agent import prepare

        prepare.discard(self.records, names.blob(self.task["payload"]["digest"]))

    def _commit(self) -> None:
        report = self._report() or {}
        if report.get("digest"):
            self.records.upload(self._name("result"), self.outcome, move=True)
        self._write_verdict(
            wire.Verdict(
                wire.COMMITTED, self.at.boot, time.time(),
                host=0, digest=report.get("digest", ""), size=report.get("size", 0),
            )
        )  # fmt: skip

    def _write_verdict(self, verdict: wire.Verdict) -> None:
        name = names.verdict(self.at.job, self.at.attempt)
        if self.records.create(name, verdict.encode()) is not None:
            self.verdict = verdict
        else:
            self.verdict = self._read_verdict()
        self.records.ring(self.at.job)

    def _read_verdict(self) -> wire.Verdict | None:
        data = self._read(names.verdict(self.at.job, self.at.attempt))
        if data is None:
            return None
        try:
            return wire.Verdict.decode(data)
        except (wire.Unreadable, wire.Newer) as error:  # whoever wrote it: the attempt has its end
            return wire.Verdict(wire.CLOSED, "", 0.0, cause=wire.INFRASTRUCTURE, reason=str(error))

    # ---- end ---------------------------------------------------------------------------------------------

    def _end(self, grace: float) -> None:
        """End the program: ask, wait, then SIGKILL whatever descends from this host."""
        if self.verdict is not None and self.verdict.cause == wire.STALL and self.child:
            self._dump_stacks()
        if self.child and grace:
            if self.task["argv"]:
                processes.send(-self.child, signal.SIGTERM)  # a shell tells nobody below it
            else:
                processes.send(self.child, signal.SIGTERM)
            deadline = time.monotonic() + grace
            while (self.child or self._has_more()) and time.monotonic() < deadline:
                self._pump(min(TICK, grace))
                self._beat()
        self._kill()

    def _has_more(self) -> bool:
        """Of a command, what it started may take the same time to end."""
        return bool(self.task["argv"]) and not processes.childless()

    def _kill(self) -> None:
        left = processes.end_descendants(os.getpid())
        self.child = 0
        for end in list(self.pipes):
            while self._drain(end):
                pass
        for _stream, lines in self.pipes.values():
            if rest := lines.flush():
                self.log.write(_stream, rest)
        self._read_events()
        self._read_stacks()
        if left:
            self._note(f"processes {left} did not end")

    def _farewell(self, cut: bool = False) -> None:
        for volume in self.ready.volumes if self.prepared else ():
            volume.release()
        self.records.create(self._name("done.json"), wire.encode({"boot": self.at.boot, "cut": cut}))
        self._set_state(wire.DONE)
        self.records.ring(self.at.job)

    # ---- small things ------------------------------------------------------------------------------------

    def _beat(self) -> None:
        at, state = self.beaten
        now = time.monotonic()
        if state == self.state and now - at < BEAT:
            return
        self.beaten = (now, self.state)
        active = self.records.now() - (now - self.active)
        beat = wire.Beat(
            self.state,
            self.at.boot,
            self.log.segment,
            self.log.offset,
            active,
            done=self.progress.get("done", 0.0),
            total=self.progress.get("total", 0.0),
            unit=self.progress.get("unit", ""),
            exit=self.exit.code if self.exit is not None else None,
        )
        self.records.put(names.beat(self.at.job, self.at.attempt, self.at.host), beat.encode())
        if state != self.state:
            self.records.ring(self.at.job)

    def _set_state(self, state: str) -> None:
        self.state = state
        self._beat()

    def _on_term(self, number: int, _frame: object) -> None:
        self.preempted = f"this host received {processes.signal_name(number)}"

    def _dump_stacks(self) -> None:
        """Into the log, as our own words: the program's silence goes on. A process that can, has a file for it."""
        able = set(map(int, os.listdir(self.stacks))) if self.running else set()
        waited = {process.pid for process in processes.descendants(os.getpid())} & able
        for pid in waited:
            processes.send(pid, signal.SIGUSR2)
        deadline = time.monotonic() + 1.0
        while waited and self.child and time.monotonic() < deadline:
            self._pump(0.02)
            waited -= self._read_stacks()

    def _read_stacks(self) -> set[int]:
        """Move what was dumped to the log; whose it was."""
        moved = set()
        for name in os.listdir(self.stacks) if self.running else ():
            with open(os.path.join(self.stacks, name), "rb") as file:
                file.seek(self.stacks_read.get(name, 0))
                data = file.read()
            if whole := data[: data.rfind(b"\n") + 1]:
                self.stacks_read[name] = self.stacks_read.get(name, 0) + len(whole)
                self.log.write(frames.NOTE, whole)
                moved.add(int(name))
        return moved

    def _note(self, text: str) -> None:
        self.log.write(frames.NOTE, text.encode() + b"\n")

    def _name(self, what: str, host: int | None = None) -> str:
        return names.host(self.at.job, self.at.attempt, self.at.host if host is None else host, what)

    def _read(self, name: str) -> bytes | None:
        record = self.records.read(name)
        return None if record is None else record.data


class Refused(Exception):
    """What this host was told to run is not what was submitted."""


def _exit_of_report(report: dict[str, Any]) -> rules.Exit:
    kind, message = report.get("type", "").rpartition(".")[2], report.get("message", "")
    reason = f"{kind}: {message}" if kind and report["kind"] == "exception" else message
    return rules.Exit(report["code"], report.get("cause", wire.USER), reason)


def _raised() -> str:
    """The traceback of the exception that is being handled."""
    import traceback

    return traceback.format_exc()


def _free_ports(hosts: int) -> dict[str, int]:
    """A run of ports below the ephemeral range, free now; host 0 picks them for all."""
    import random
    import socket

    chooser = random.SystemRandom()
    for _ in range(200):
        base = chooser.randrange(20_000, 32_000 - hosts - 2)
        with contextlib.ExitStack() as stack:
            try:
                for port in range(base, base + hosts + 2):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return {"jax": base, "torch": base + 1, "tensorflow": base + 2}
    raise OSError("no free ports between 20000 and 32000")
