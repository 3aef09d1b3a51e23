"""`Training`: a loop that resumes where it was, by three calls: `restore`, `step`, `finish`.

Decides when a checkpoint is due, reports to the orchestrator, and ends a training that has to end. All hosts of a slice
make the same calls with the same steps; they agree first on everything that depends on a clock or a signal.
"""

from __future__ import annotations

import math
import operator
import re
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NoReturn, TypeVar

from kinetic_orchestration.errors import CheckpointError, UsageError
from kinetic_orchestration.host.machine import buckets
from kinetic_orchestration.host.process.frameworks import profiler
from kinetic_orchestration.plan.configuration.settings import seconds
from kinetic_orchestration.plan.hardware.global_batch import GlobalBatch
from kinetic_orchestration.program.checkpoints import trees
from kinetic_orchestration.program.checkpoints.agreement import Agreement, Alone
from kinetic_orchestration.program.checkpoints.background import CopyBuffers, Writing, is_copied, unfinished_at
from kinetic_orchestration.program.checkpoints.commits import Commit, topology
from kinetic_orchestration.program.checkpoints.leaves import apart, partial
from kinetic_orchestration.program.checkpoints.manager import Checkpoints, NotWritten, Snapshot
from kinetic_orchestration.program.checkpoints.store import open_checkpoints
from kinetic_orchestration.program.checkpoints.tier.folder import Where, checked
from kinetic_orchestration.program.checkpoints.tier.near import open_near
from kinetic_orchestration.program.context import HostContext, current
from kinetic_orchestration.program.preemption import Listener, Notice
from kinetic_orchestration.program.speed import Speed, Spent
from kinetic_orchestration.protocol import wire

S = TypeVar("S")
Choice = Literal["warn", "stop"]

FIRST_MEETING = 8  # steps, after which their rate is known
PATIENCE = 600.0  # for the other hosts' parts: one that is dead ends the attempt long before
ENDED = 143  # the exit code of a program that SIGTERM ended
LOG_PACE = 1.0
CLOSING = 8.0  # for a checkpoint that is on its way when a training of several hosts is given up

NOTHING: Mapping[str, Any] = types.MappingProxyType({})

_NAME = re.compile(r"[\w-][\w.-]*")
_named: dict[str, int] = {}  # how many trainings of this program were given a name
_finished: dict[str, int] = {}  # and of each name, how many are at their end


class TrainingEnded(SystemExit):
    """The training was asked to end before its last step, and has ended. Nothing after it should run.

    It is a SystemExit: `except Exception` does not catch it, and uncaught it ends the program.

    Attributes:
        cause: Why it had to end.
        step: The last step that was done.
        saved: True if that step has a checkpoint.
    """

    def __init__(self, cause: str, step: int, saved: bool) -> None:
        super().__init__(ENDED)
        self.cause = cause
        self.step = step
        self.saved = saved

    def __reduce__(self) -> Any:
        return type(self), (self.cause, self.step, self.saved)

    def __str__(self) -> str:
        return f"the training ended at step {self.step} ({self.cause})"


class Training:
    """A training loop that resumes after the loss of its hosts.

        training = kinetic.Training(every="5m", total=steps)
        state, done = training.restore(state)
        for number in range(done, steps):
            state, loss = update(state, batch(number))
            training.step(number + 1, state, loss=loss)
        training.finish(state)

    Args:
        every: Steps (a number) or time ("90s", "5m") between checkpoints. None: only at the end and at a preemption.
        keep: Number of checkpoints to keep.
        total: Number of steps, for the progress; 0 if unknown.
        unit: Unit of the progress.
        log_every: Steps between reports of metrics. None: once a second.
        on_nan: "warn" reports a metric that is not finite, "stop" raises FloatingPointError.
        on_full_disk: "warn" reports a checkpoint that could not be written, "stop" raises CheckpointError.
        reshard: Restore checkpoints of another number of hosts or devices as well. None: as `run` was told.
        global_batch: Samples in one step on all hosts together, which stay the same on any number of hosts. None: as
            `run` was told; 0: unknown.
        per_host: The most samples that a host takes at once. A share that is larger is divided into steps of gradient
            accumulation. 0: no limit.
        name: Name of this training. The n-th training of a program without one finds the checkpoints of the n-th.
        hosts: Number of hosts that take part, from host 0 on. None: all.
        samples: Samples in one step on all hosts together, for samples/s; by default the global batch.
        tokens: Tokens in one step on all hosts together, for tokens/s.
        tier: Where the machine keeps a copy of the newest checkpoint beside the bucket: on its "disk", or in its
            "memory". "auto": on the disk of a machine that has no other job. None: nowhere.

    Attributes:
        restored: Further content of the checkpoint that was restored, or None.
        batch: The division of the global batch among the hosts; None without one.

    Raises:
        UsageError: An option is invalid.
    """

    def __init__(
        self,
        *,
        every: int | str | None = "10m",
        keep: int = 3,
        total: int = 0,
        unit: str = "step",
        log_every: int | None = None,
        on_nan: Choice = "warn",
        on_full_disk: Choice = "warn",
        reshard: bool | None = None,
        global_batch: int | None = None,
        per_host: int = 0,
        name: str = "",
        hosts: int | None = None,
        samples: int = 0,
        tokens: int = 0,
        tier: Where = "auto",
    ) -> None:
        for option, value in (("on_nan", on_nan), ("on_full_disk", on_full_disk)):
            if value not in ("warn", "stop"):
                raise UsageError(f'{option} is {value!r}: give "warn" to go on, or "stop" to end the training')
        self._steps, self._seconds = _pace(every)
        if not isinstance(total, float) or total < 0:  # 1e6 is a number too, if not a whole one
            total = _whole("total", total, 0, "the number of steps, or 0 where it is unknown")
        self._total = total
        self._unit = unit
        self._log_every = log_every if log_every is None else _whole("log_every", log_every, 1, "a number of steps")
        self._on_nan = on_nan
        self._on_full_disk = on_full_disk
        self._tier = checked(tier)
        self._keep = _whole("keep", keep, 1, "at least 1, since the newest checkpoint always stays")
        self._host: HostContext = current()
        there = self._host.host_count
        self._hosts = there if hosts is None else _whole("hosts", hosts, 1, "how many of the hosts train")
        if self._host.job_id and self._hosts > there:
            raise UsageError(f"hosts is {hosts}, and this job has {there}")
        if name and not _NAME.fullmatch(name):
            raise UsageError(f"name is {name!r}: it names a folder, so give letters, digits, '.', '_' and '-'")
        self._reshard = self._host.reshard if reshard is None else reshard
        self.batch = self._divided(global_batch, per_host)
        self._place = 0, 0  # a step, and the samples that were trained on until it
        self._name = self._given = name or _next_name()
        self._profiler = profiler.current() if self._host.job_id else None
        if self._profiler is not None:
            self._profiler.expect()
        self._checkpoints: Checkpoints | None = None
        self._listener: Listener | None = None
        self._is_finished = False
        self.restored: Mapping[str, Any] | None = None  # the other values of the restored checkpoint
        self._done = 0  # steps, as of the last call
        self._saved = -1  # the step of the newest checkpoint
        self._writing: Writing | None = None  # one that is on its way
        self._buffers = CopyBuffers()  # for its bytes
        self._tried = -1  # the step of the last attempt to write one: all hosts must try equally often
        # Of a step that may not have been computed yet, with how fast the training was.
        self._metrics: tuple[int, Mapping[str, Any], Mapping[str, float]] | None = None
        self.speed = Speed(
            _whole("samples", samples, 0, "how many samples one step takes on all hosts, or leave it out")
            or (self.batch.size if self.batch else 0),
            _whole("tokens", tokens, 0, "how many tokens one step takes on all hosts, or leave it out"),
        )
        self._spent = Spent()
        self._latest: Mapping[str, Any] = NOTHING  # of the last call
        self._logged_at = 0.0
        self._logged = 0
        self._finite, self._reported_nan = True, False
        self._saved_at = self._meeting_at = time.monotonic()
        self._meeting, self._met = FIRST_MEETING, 0
        # Shared by the thread that receives a notice and the one that trains.
        self._lock = threading.Lock()
        self._begun = 1  # the step that is under way, or the next
        self._notice: Notice | None = None
        self._agreed = threading.Event()
        self._final: int | None = None  # the step at which all hosts end; None if they could not agree

    def _divided(self, size: int | None, most: int) -> GlobalBatch | None:
        size = _whole(
            "global_batch", self._host.global_batch if size is None else size, 0, "the samples of one step on all hosts"
        )
        most = _whole("per_host", most, 0, "the most samples that a host takes at once, or leave it out")
        if not size and most:
            raise UsageError(f"per_host={most} divides a batch, and there is none: give global_batch= as well")
        return GlobalBatch.divided(size, self._hosts, self._host.host_index, most) if size else None

    # ---- the data's place --------------------------------------------------------------------------------------------

    @property
    def samples(self) -> int:
        """The number of samples that were trained on, on all hosts together: the place in the data's one order.

        Raises:
            UsageError: There is no global batch.
        """
        return self._samples_at(self._done, self._batch())

    def _samples_at(self, done: int, batch: GlobalBatch) -> int:
        step, before = self._place
        return before + (done - step) * batch.size

    def indices(self, rows: int = 0) -> list[list[int]]:
        """Return this host's samples of the next batch, by their numbers in the data's one order.

        Args:
            rows: Number of rows of the data, which are read again when they end: each sample is then the number of a
                row. 0: the samples are counted on.

        Returns:
            A list for each step of accumulation. On all hosts together they are the batch, in its order.

        Raises:
            UsageError: There is no global batch.
        """
        parts = self._batch().parts(self.samples)
        return [[sample % rows if rows else sample for sample in part] for part in parts]

    def _batch(self) -> GlobalBatch:
        if self.batch is None:
            raise UsageError("samples are counted by a global batch: give Training, or run, a global_batch=")
        return self.batch

    def _found_place(self, commit: Commit) -> None:
        """Go on in the data where the checkpoint was; one of an older version counted steps alone."""
        if self.batch is None:
            return
        self._place = commit.step, commit.samples if commit.batch else commit.step * self.batch.size
        if commit.batch not in (0, self.batch.size):
            self.say(
                f"the global batch was {commit.batch} and is {self.batch.size}: the data go on at sample "
                f"{self.samples}, and the losses are those of another batch"
            )

    # ---- the three calls ---------------------------------------------------------------------------------------------

    def restore(self, state: S, *, step: int | None = None, only: Iterable[str] | None = None) -> tuple[S, int]:
        """Restore the newest complete checkpoint, or an older one.

        Args:
            state: Shows the structure, the shapes and the placement of arrays. Objects with a state of their own (a
                torch module or optimizer, an iterator of Grain, a random generator) are restored in place.
            step: Step of an older checkpoint, at which the training goes on: the newer ones are abandoned, and are
                removed with its next checkpoint. Later attempts of the same job go on where this one was.
            only: Paths in the state. What they name, or what lies below them, is restored, and all else stays as it is
                given. Later attempts of the same job restore all.

        Returns:
            The state and the number of steps done; without a checkpoint the given state and 0.

        Raises:
            CheckpointDiffers: The checkpoint is of another model or topology, or does not have what `only` names.
            CheckpointError: There is no complete checkpoint of that step.
            TypeError: A part of the state cannot be stored.
            UsageError: An argument is invalid, or another library cannot write to where the checkpoints are.
        """
        began = time.monotonic()
        step = step if step is None else _whole("step", step, 0, "the step of a checkpoint")
        paths = partial.checked(only)
        trees.described(state)  # refuses an unstorable state now, and not when the first checkpoint is due
        layouts = trees.layouts(state, self._hosts if self._host.job_id else 0)
        self._open()
        if self.batch is not None and self._host.host_index == 0:
            self.say(str(self.batch))
        if self._checkpoints is None:
            if step is not None:
                raise CheckpointError(
                    f"there is no checkpoint of step {step}: only a job has any here, and read_checkpoint reads them"
                )
            return state, 0
        engines = {path: leaf for path, leaf in trees.named(state) if isinstance(leaf, trees.Engine)}
        apart.check_place(self._checkpoints.store.place, engines)
        self._settle()
        restored, commit = self._checkpoints.restore(
            state, reshard=self._reshard, step=step, only=paths, layouts=layouts
        )
        if commit is not None:
            self._done = self._saved = self._tried = commit.step
            self.restored = commit.more
            other = f", of {topology(commit.hosts, 0)}, on {self._hosts}" if commit.hosts != self._hosts else ""
            near = self._checkpoints.store.near
            told = f": {near.told()}" if near is not None and near.told() else ""
            self.say(f"restored the checkpoint of step {commit.step}{other}{told}")
            self._found_place(commit)
        with self._lock:
            self._begun = self._done + 1
        self._saved_at = self._meeting_at = time.monotonic()
        self._meeting, self._met = self._done + FIRST_MEETING, self._done
        self.speed.begin()
        self._spent.restored(self._done, began, time.monotonic())
        self._report_notes()
        if self._profiler is not None:
            self._profiler.reached(self._done)
        return restored, self._done

    def step(self, done: int, state: Any, /, **metrics: Any) -> None:
        """Report that `done` steps are done, and write a checkpoint if one is due.

        Args:
            done: Number of steps done.
            state: State after them, or a function that returns it.
            **metrics: Numbers. Arrays that are still being computed are read later, and not at every step.

        Raises:
            TrainingEnded: The training was asked to end, and has ended after this step.
            CheckpointError: A checkpoint could not be written, and `on_full_disk` is "stop".
            FloatingPointError: A metric is not finite, and `on_nan` is "stop".
        """
        self.advance(done, state, metrics, {})

    def finish(self, state: Any = None, done: int | None = None, more: Mapping[str, Any] = NOTHING) -> None:
        """End the training, and write a checkpoint of its state unless there is one.

        Args:
            state: State after the last step. None writes nothing.
            done: Number of steps done; by default that of the last call.
            more: Further content for the checkpoint.
        """
        self._open()
        try:
            self._done = self._done if done is None else done
            self._spent.reached(self._done, time.monotonic())
            self._flush()
            self._settle()
            if state is not None and self._tried != self._done and self._checkpoints is not None:
                self._save(self._done, state, more)
            if self._checkpoints is not None and self._checkpoints.store.near is not None:
                self._checkpoints.store.near.end()
            if self._total:
                self.progress(self._done)
            if not self._is_finished:
                self._is_finished = True
                _finished[self._given] = _finished.get(self._given, 0) + 1
        finally:
            self.close()

    # ---- between the steps -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the training without a checkpoint. `finish` calls it, and so does the end of a `with` block."""
        if self._profiler is not None:
            self._profiler.ended()
        try:
            self._settle(self._closing())
        except Exception as error:  # the caller ends for another reason
            self.say(str(error) or type(error).__name__)
        finally:
            self._report_spent()
            if self._listener is not None:
                self._listener.close()
                self._listener = None
            if self._checkpoints is not None:
                self._checkpoints.store.close()

    def _closing(self) -> float:
        """The seconds to wait for a checkpoint in progress: a program that was asked to end has to do so before it is
        killed, and with several hosts another one may never write its part."""
        if self._notice is not None:
            return self._notice.grace / 4
        return PATIENCE if self.alone else CLOSING

    @property
    def alone(self) -> bool:
        """True if no other host takes part."""
        return self._hosts == 1

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        """Open the checkpoints. Off a host nothing is stored: no later run would use it, or remove it."""
        host = self._host
        if self._checkpoints is not None or not host.job_id:
            return
        if before := _finished.get(self._given, 0):  # its end is not this one's beginning
            self._name = f"{self._given}-{before + 1}"
            self.say(
                f"a training named {self._given} has finished in this program, so this one's checkpoints lie beside its"
            )
        writer = f"{host.job_id.removeprefix('job-')[:16]}-{host.attempt}"
        store = open_checkpoints(f"{host.checkpoint_dir}/{self._name}", writer)
        agreement = Agreement(store, host.host_index, self._hosts)
        self._checkpoints = Checkpoints(store, agreement, self._keep, host.host_count)
        say = self._checkpoints.notes.append
        if buckets.in_bucket(store.place):
            store.near = open_near(self._tier, self._name, host.host_index, self._hosts, dict(host._tier), say)
        elif self._tier in ("disk", "memory"):
            say(f"a tier keeps no copy of what is in a folder already ({store.place})")
        self._writing = unfinished_at(store.place)
        store.sweep()
        agreement.begin()
        self._listener = Listener(host._notice, weakref.WeakMethod(self._on_notice))
        self._listener.open()
        # From a loop that an exception ended: no caller is left to report to.
        weakref.finalize(self, self._listener.close).atexit = False

    # ---- every step --------------------------------------------------------------------------------------------------

    def advance(
        self, done: int, state: Any, metrics: Mapping[str, Any], more: Mapping[str, Any], *, due: bool = False
    ) -> None:
        """Like `step`, for a caller that stores more beside the state or knows that a checkpoint is due."""
        self._open()
        if self._profiler is not None:
            self._profiler.reached(done)
        before, self._done = self._done, done
        now = time.monotonic()
        self.speed.reached(done, now)
        self._spent.reached(done, now)
        self._log(done, metrics, now)
        if self._checkpoints is None:
            return
        if self._writing is not None and self._writing.is_over:
            self._settle()
        with self._lock:
            asked = self._notice
            if asked is None:
                self._begun = done + 1
        if asked is not None:
            self._end_if_agreed(done, state, more)
        if (due and done != self._tried) or self._is_due(before, done, now):
            self._save(done, state, more, beside=True)

    def between(self, done: int, state: Any, more: Callable[[], Mapping[str, Any]]) -> None:
        """End the training here if it was asked to end and something else comes before the next step.

        Does nothing on several hosts, since others may wait for this one within what comes.
        """
        if self._listener is None or self._hosts > 1:
            return
        with self._lock:
            asked = self._notice
        if asked is not None:
            self._end_if_agreed(done, state, more())

    def _is_due(self, before: int, done: int, now: float) -> bool:
        if done == self._tried:
            return False
        if self._steps:
            return before // self._steps != done // self._steps
        if not self._seconds:
            return False
        if self._hosts == 1:
            return now - self._saved_at >= self._seconds
        return done >= self._meeting and self._meet(done, now)

    def _meet(self, done: int, now: float) -> bool:
        """Agree with the other hosts. Clocks differ, and hosts are at different steps at the same moment: host 0
        decides at an agreed step if a checkpoint is due, and at which step to ask again. The steps between are halved
        until it is."""
        assert self._checkpoints is not None
        pace = (now - self._meeting_at) / max(1, done - self._met)
        left = self._seconds - (now - self._saved_at)
        due = left < pace / 2
        ahead = (self._seconds if due else left) / max(pace, 1e-6) / 2
        mine = [due, done + max(1, min(int(ahead), 1 << 20))]
        save, self._meeting = self._checkpoints.agreement.decide(f"meeting-{done}", mine, PATIENCE)
        self._meeting_at, self._met = time.monotonic(), done
        return bool(save)

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def _save(
        self, done: int, state: Any, more: Mapping[str, Any], patience: float = PATIENCE, *, beside: bool = False
    ) -> None:
        """Write a checkpoint. `beside`: copy a large one now, and write it in the background."""
        began = time.monotonic()
        self._flush()
        self._check_finite(done, _numbers(self._latest))  # so that a state that is not finite is marked
        self._settle()
        self._tried = done
        checkpoints = self._checkpoints
        assert checkpoints is not None
        if isinstance(state, types.FunctionType | types.MethodType):
            state = state()
        try:
            place = (
                {} if self.batch is None else {"samples": self._samples_at(done, self.batch), "batch": self.batch.size}
            )
            snapshot = checkpoints.snapshot(done, state, more, finite=self._finite, **place)
            if beside and is_copied(snapshot.part, self._buffers):
                end = PATIENCE if self.alone else CLOSING
                self._writing = Writing(done, checkpoints.store.place, end, lambda: self._write_beside(snapshot))
            else:
                checkpoints.write(snapshot, patience)
                self._saved = done
        except NotWritten as error:
            self._not_written(done, error)
        finally:
            self._saved_at = time.monotonic()
            self.leave_out(self._saved_at - began, stall=True)
            self._report_notes()

    def _write_beside(self, snapshot: Snapshot) -> None:
        assert self._checkpoints is not None
        try:
            self._checkpoints.write(snapshot, PATIENCE)
        finally:
            self._buffers.leave()

    def _settle(self, patience: float | None = None) -> None:
        """Wait for the checkpoint that is written in the background, and report its result."""
        writing, self._writing = self._writing, None
        if writing is None:
            return
        if not writing.wait(patience):
            self.say(f"the checkpoint of step {writing.step} was not written in {patience:.0f} s, and is given up")
        elif isinstance(writing.error, NotWritten):
            self._not_written(writing.step, writing.error)
        elif writing.error is not None:
            raise writing.error
        else:
            self._saved = writing.step
        self._report_notes()

    def _not_written(self, done: int, error: NotWritten) -> None:
        assert self._checkpoints is not None
        told = f"the checkpoint of step {done} could not be written: {error}"
        kept = f"the newest one is that of step {self._saved}" if self._saved >= 0 else "there is none before it"
        if self._on_full_disk == "stop":
            raise CheckpointError(
                f"{told}. In {self._checkpoints.store.place}, {kept}. Make room there, and run the job again: it "
                'goes on from that one. on_full_disk="warn" trains on without'
            ) from error
        self.say(f"{told}; {kept}. The training goes on")

    def _kept(self) -> str:
        if self._saved < 0:
            return "there is no checkpoint yet"
        return f"the newest checkpoint is that of step {self._saved}"

    def _report_notes(self) -> None:
        assert self._checkpoints is not None
        while self._checkpoints.notes:  # other threads add to them
            self.say(self._checkpoints.notes.pop(0))

    # ---- the end that is asked for -----------------------------------------------------------------------------------

    def _on_notice(self, notice: Notice) -> None:
        """Handle a notice, on the listening thread. The training thread may be within a step that needs the other
        hosts: so this thread reports its step, and the last step that any host has begun is the last one of all."""
        assert self._checkpoints is not None
        with self._lock:
            self._notice = notice
            begun = self._begun
        try:
            if notice.together:
                agreement = self._checkpoints.agreement
                self._final = max(agreement.gather("final", begun, notice.grace / 2))
        except (Alone, OSError) as error:
            self._checkpoints.notes.append(f"the hosts could not agree on a last step: {error}")
        finally:
            self._agreed.set()

    def _end_if_agreed(self, done: int, state: Any, more: Mapping[str, Any]) -> None:
        assert self._notice is not None
        self._agreed.wait(self._notice.grace)
        if self._final is None:
            self._end(done, saved=False)
        if done >= self._final:
            if self._notice.saves:
                self._settle(self._notice.grace)
                if done != self._tried:
                    self._save(done, state, more, self._notice.grace)
            self._end(done, saved=done == self._saved)

    def _end(self, done: int, *, saved: bool) -> NoReturn:
        assert self._notice is not None
        cause = self._notice.cause
        self._flush()
        self._report_notes()
        kept = "its state is kept" if saved else self._kept()
        self.say(f"ends at step {done}, asked to ({cause}); {kept if cause != wire.CANCELLED else 'nothing is kept'}")
        self.close()
        raise TrainingEnded(cause, done, saved)

    # ---- reports -----------------------------------------------------------------------------------------------------

    def _log(self, done: int, metrics: Mapping[str, Any], now: float) -> None:
        """Report the metrics of the previous step, which are computed by now, and remember these."""
        self._flush()
        self._latest = metrics
        if self._log_every:
            due = done // self._log_every != self._logged // self._log_every
        else:
            due = now - self._logged_at >= LOG_PACE
        if due:
            self._logged_at, self._logged = now, done
            self._metrics = done, metrics, self.speed.metrics(done, now)
            self.progress(done)
            self._report_spent()

    def leave_out(self, seconds: float, *, stall: bool = False) -> None:
        """Exclude time from that of the steps: a validation, or a checkpoint that they wait for."""
        self.speed.leave_out(seconds)
        self._spent.leave_out(seconds, stall=stall)

    def passed_over(self, seconds: float) -> None:
        """Count time as restoration: data that were trained on before are taken from their iterator."""
        self._spent.passed_over(seconds)

    def _report_spent(self) -> None:
        if not self._spent.is_reported:
            self._spent.is_reported = True
            self._host._spent(self._name, self._spent.numbers())

    def _flush(self) -> None:
        if self._metrics is None:
            return
        (done, metrics, speed), self._metrics = self._metrics, None
        if metrics or speed:
            self.report(done, metrics, speed)

    def progress(self, done: float, total: float | None = None, unit: str = "") -> None:
        """Report progress from host 0."""
        rate = 0.0 if unit else self.speed.rate
        self._host.progress(done, self._total if total is None else total, unit or self._unit, rate=rate)

    def report(self, done: int, metrics: Mapping[str, Any], speed: Mapping[str, float] = NOTHING) -> None:
        """Report metrics at once from host 0, and check them on every host."""
        told = _numbers(metrics)
        if self._host.host_index == 0 and (told or speed):
            self._host.log_metrics(step=done, **{**told, **speed})
        self._check_finite(done, told)

    def _check_finite(self, done: int, told: Mapping[str, float]) -> None:
        """Check that metrics are finite. Without metrics, the last result stays."""
        if not told:
            return
        odd = [f"{name} is {value}" for name, value in told.items() if not math.isfinite(value)]
        self._finite = not odd
        if not odd:
            self._reported_nan = False
            return
        what = f"at step {done}, {', '.join(odd)}"
        if self._on_nan == "stop":
            self.close()
            raise FloatingPointError(f"{what}; {self._kept()}. on_nan='warn' would go on")
        if not self._reported_nan:
            self._reported_nan = True
            self.say(f"{what}. The training goes on; on_nan='stop' would end it")

    def say(self, text: str) -> None:
        """Write a line to the log, in one call."""
        sys.stderr.write(f"{self._name}: {text}\n")
        sys.stderr.flush()


def _pace(every: int | str | None) -> tuple[int, float]:
    """Steps or seconds between checkpoints; the other is 0."""
    if every is None:
        return 0, 0.0
    if not isinstance(every, str):
        return _whole("every", every, 1, "a number of steps, a time such as '5m', or None"), 0.0
    if every.strip().isdigit():
        raise UsageError(f"every is {every!r}: give {every.strip()} for steps, or '{every.strip()}s' for seconds")
    found = seconds("every", every)
    if not found:
        raise UsageError(f"every is {every!r}: give a time such as '5m', a number of steps, or None")
    return 0, found


def _whole(option: str, value: Any, least: int, wanted: str) -> int:
    """A whole number, also numpy's."""
    try:
        found = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = least - 1
    if found < least:
        raise UsageError(f"{option} is {value!r}: give {wanted}")
    return found


def _next_name() -> str:
    number = _named["training"] = _named.get("training", 0) + 1
    return "training" if number == 1 else f"training-{number}"


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    found = ((name, _number(value)) for name, value in metrics.items())
    return {name: value for name, value in found if value is not None}


def _number(value: Any) -> float | None:
    """None for what is no number: Keras' logs may hold anything."""
    if hasattr(value, "detach"):  # torch warns of a loss that is still part of its graph
        value = value.detach()
    try:
        return float(value() if isinstance(value, types.FunctionType) else value)
    except (TypeError, ValueError):
        return None
