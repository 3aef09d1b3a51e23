"""The environment of the verification's steps: jobs that are bounded in time and cost, and polling of their slices.

A slice is what its cloud (`clouds`) makes: a slice of Cloud TPU, or a VM or a group of Compute Engine.

It knows every resource that a step creates, so that it can be removed however the step ends.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

from kinetic_orchestration.api.decorator import run
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.cli.verify.budget import Planned
from kinetic_orchestration.cli.verify.clouds.cloud import Cloud, Slice
from kinetic_orchestration.cli.verify.recording import Recorder
from kinetic_orchestration.errors import KineticError
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.limits import Limits
from kinetic_orchestration.plan.values import JobStatus, Output
from kinetic_orchestration.platforms.google.rest import secret_manager
from kinetic_orchestration.platforms.google.storage.store import GcsStore
from kinetic_orchestration.platforms.shared import ownership
from kinetic_orchestration.protocol import names

POLL, POLL_EMULATED = 4.0, 0.1  # seconds between two polls of a slice
RELEASE = 600.0  # seconds that a deletion may take
PATIENCE = 15  # polls of a slice whose deletion does not begin, until it is deleted once more
DELETIONS = 10  # calls after which a slice that does not even begin to go is left alone
BOOT = 600.0  # of a step besides its job's own time: for the request and the release


class Spent(Exception):
    """The budget is used up: everything that runs is ended."""


class TooLong(Exception):
    """A step took longer than it may."""


class Ended(NamedTuple):
    """A job that has come to its end, and how: seconds from its submission."""

    handle: JobHandle[Any]
    status: JobStatus
    attempts: int
    message: str
    value: Any
    lines: tuple[tuple[float, int, str], ...]  # time, host, text
    seconds: float
    gone_after: float  # seconds from its end until its slices were gone
    acted_at: float | None  # when the step acted on it, in seconds from its submission
    acted: Any  # the result of that


@dataclass
class Scene:
    settings: Settings
    cloud: Cloud
    store: GcsStore
    recorder: Recorder
    jobs: ModuleType
    budget: float
    wait: float
    spot: bool
    accelerator: str  # that was asked for
    results: dict[str, dict[str, Any]] = field(default_factory=dict)  # the observations of each step
    measured: list[tuple[str, float]] = field(default_factory=list)
    handles: list[JobHandle[Any]] = field(default_factory=list)
    planned: Planned | None = None  # the current step
    _deadline: float = 0.0

    # ---- a step

    def begin(self, planned: Planned) -> None:
        self.planned = planned
        self.recorder.step = planned.wish.name
        self.recorder.rate = planned.rate
        # Capacity is waited for once for each of its slices.
        own = planned.wish.slices * (self.wait + planned.seconds + RELEASE)
        self._deadline = time.monotonic() + BOOT + own

    def check(self) -> None:
        """Raise Spent or TooLong once the step's money or time is used up; any loop of a step calls it."""
        if self.recorder.spent() > self.budget:
            raise Spent(f"${self.recorder.spent():.2f} of ${self.budget:.2f} are spent by list prices")
        if time.monotonic() > self._deadline:
            raise TooLong("the step took longer than it may")

    @property
    def pace(self) -> float:
        return POLL_EMULATED if self.settings.emulator or self.settings.emulator_grpc else POLL

    def until(self, condition: Callable[[], Any], within: float, what: str) -> Any:
        """Wait for the condition to give something, no longer than `within` seconds, and return that."""
        deadline = time.monotonic() + within
        while not (found := condition()):
            self.check()
            if time.monotonic() > deadline:
                raise TooLong(f"{what} did not happen within {within:.0f} s")
            time.sleep(self.pace)
        return found

    # ---- jobs

    def submit(self, function: Any, *arguments: Any, hosts: int = 1, slices: int = 1, **options: Any) -> JobHandle[Any]:
        """Submit a job on the slice of this step, limited to its cost; on Compute Engine, on so many of it."""
        planned = self.planned
        assert planned is not None and planned.slice is not None
        limits = Limits(
            provision=self.wait, run=planned.seconds, total=planned.wish.slices * (self.wait + planned.seconds),
            cost=planned.usd or None,
        )  # fmt: skip
        made: JobHandle[Any] = run(
            **{
                "accelerator": planned.slice.name,
                "spot": self.spot,
                "limits": limits,
                "backend": self.cloud.backend,
                "store": self.settings.store,
                "deployment": self.settings.deployment,
                "cloud": self.cloud.option(self.settings.zones, hosts, slices),
                **options,
            }
        )(function).run_async(*arguments)
        self.handles.append(made)
        return made

    def finish(self, handle: JobHandle[Any], line: str = "", act: Callable[[], Any] = lambda: None) -> Ended:
        """Follow the job until its slices are gone, and call `act` when it first prints `line`."""
        began, began_at = time.monotonic(), time.time()
        lines: list[tuple[float, int, str]] = []
        acted_at: float | None = None
        acted: Any = None
        stop = threading.Event()
        trouble: list[Exception] = []

        def emit(event: Any) -> None:
            nonlocal acted_at, acted
            if isinstance(event, Output) and event.kind == "o":
                for text in event.text.decode("utf-8", "replace").splitlines():
                    lines.append((time.monotonic() - began, event.host, text))
                    if text == line and acted_at is None:
                        acted_at = time.monotonic() - began
                        acted = act()

        def step(_: Any) -> None:
            try:
                self.check()
            except (Spent, TooLong) as error:
                trouble.append(error)
                stop.set()

        with self.polling():
            outcome = handle.follow(emit, stop=stop, on_step=step)
        if outcome is None:
            raise trouble[0] if trouble else TooLong("the job did not end")
        seconds = time.monotonic() - began
        newest = max(self.recorder.slices.values(), key=lambda slice_: slice_.created or 0.0, default=None)
        if outcome.attempt == 1 and lines and newest is not None and newest.ready is not None:
            self.measured.append(("READY → first line", began_at + lines[0][0] - newest.ready))
        value, message = None, outcome.verdict.reason if outcome.verdict is not None else ""
        if outcome.status is JobStatus.SUCCEEDED:
            value = handle.result(timeout=60)
        gone_after = self._wait_gone()
        return Ended(
            handle, outcome.status, outcome.attempts, message or "", value, tuple(lines), seconds, gone_after, acted_at,
            acted,
        )  # fmt: skip

    @contextlib.contextmanager
    def polling(self) -> Iterator[None]:
        """Within the block, poll each slice of this run in addition to the product's own requests, so that no state is
        missed."""
        stop = threading.Event()

        def poll_all() -> None:
            while not stop.wait(self.pace):
                for slice_ in list(self.recorder.slices.values()):
                    if slice_.ended is None:
                        self.poll(slice_)

        thread = threading.Thread(target=poll_all, name="kinetic-verify", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(60.0)

    def poll(self, slice_: Slice, *, whole: bool = False) -> bool:
        """Poll what costs of the slice, or each resource of it (`whole`). True if none exists any longer."""
        gone = True
        for is_gone in self.cloud.polls(slice_, whole=whole):
            try:
                gone = is_gone() and gone
            except Exception:  # as it is recorded
                gone = False
        return gone

    def leave(self, handle: JobHandle[Any], line: str) -> float:
        """Follow the job until it prints `line`, and then ask for its slices alone, until they are gone. The seconds
        that took."""
        stop = threading.Event()

        def emit(event: Any) -> None:
            if isinstance(event, Output) and event.kind == "o" and line in event.text.decode("utf-8", "replace"):
                stop.set()

        def step(_: Any) -> None:
            try:
                self.check()
            except (Spent, TooLong):
                stop.set()

        with self.polling():
            handle.follow(emit, stop=stop, on_step=step)
        self.check()
        return self._wait_gone(deletes=False)

    def _wait_gone(self, *, deletes: bool = True) -> float:
        """Wait until all that costs of the slices of this run answers 404; the seconds it took.

        A slice whose deletion does not begin is deleted once more (`deletes`): then the states show that one call was
        not enough.
        """
        began = time.monotonic()
        polls = 0

        def gone() -> bool:
            nonlocal polls
            polls += 1
            left = [slice_ for slice_ in list(self.recorder.slices.values()) if not self.poll(slice_)]
            if deletes and left and polls % PATIENCE == 0:
                for slice_ in left:
                    self._delete_if_it_stays(slice_)
            return not left

        self.until(gone, RELEASE, "the deletion of every slice")
        took = time.monotonic() - began
        self.measured.append(("deleted → gone", took))
        return took

    def _delete_if_it_stays(self, slice_: Slice) -> None:
        with contextlib.suppress(Exception):  # as it is recorded
            if not self.cloud.is_going(slice_):
                self.cloud.delete(slice_)

    def newest_slice(self) -> Slice:
        """The slice that was requested and has not ended."""
        return next(slice_ for slice_ in self.recorder.slices.values() if slice_.ended is None and slice_.asked)

    def take_away(self) -> None:
        """Delete the slice regardless of its jobs; repeated until it takes effect."""
        slice_ = self.newest_slice()
        for _ in range(DELETIONS):
            with self.recorder.moment("delete an ACTIVE queued resource with force"):
                self.cloud.delete(slice_)
            time.sleep(self.pace)
            if self.cloud.is_going(slice_):
                return
            self.check()

    def ask(self, moment: str, question: Callable[[], Any]) -> str:
        """Ask to see this very answer: "OK", or the class of the error."""
        with self.recorder.moment(moment):
            try:
                question()
            except Exception as error:
                return self.cloud.word(error)
        return "OK"

    def ask_all(self, questions: Mapping[str, Callable[[], Any]]) -> dict[str, str]:
        return {moment: self.ask(moment, question) for moment, question in questions.items()}

    # ---- the end

    def clear(self) -> list[str]:
        """Remove all that this run made; what could not be removed, with the command that removes it."""
        self.recorder.step = "reap"
        for handle in self.handles:
            with contextlib.suppress(KineticError, OSError):
                if not handle.peek().status.final:
                    handle.cancel("the verification has ended", cleanup_timeout=120)
        left = self._slices_left()
        for resource in self.secrets_left():
            with contextlib.suppress(KineticError):
                mark = names.mark(self.settings.store, self.settings.deployment)
                if secret_manager.delete(self.settings, resource, {ownership.MARK: mark}):
                    continue
            left.append(f"gcloud secrets delete {resource.rpartition('/')[2]} --project={self.settings.project}")
        try:
            self.store.erase()
        except KineticError:
            left.append(f"gcloud storage rm -r {self.store.url}/**")
        return left

    def _slices_left(self) -> list[str]:
        deadline = time.monotonic() + RELEASE
        left = list(self.recorder.slices.values())
        while left and time.monotonic() < deadline:
            left = [slice_ for slice_ in left if not self._gone(slice_)]
            if left:
                time.sleep(self.pace)
        return self.commands(left)

    def not_seen_gone(self) -> list[Slice]:
        """Return the slices that may still be there, as far as was seen."""
        return [slice_ for slice_ in self.recorder.slices.values() if slice_.ended is None]

    def commands(self, left: Sequence[Slice]) -> list[str]:
        """Return the commands that remove the slices, for the user who ran this."""
        return [self.cloud.command(slice_) for slice_ in left]

    def _gone(self, slice_: Slice) -> bool:
        if self.poll(slice_, whole=True):
            return True
        for remove in self.cloud.removals(slice_):
            with contextlib.suppress(Exception):  # as it is recorded; asked again until it is gone
                remove()
        return False

    def secrets_left(self) -> list[str]:
        """The secrets of this run that are still in Secret Manager."""
        mark = names.mark(self.settings.store, self.settings.deployment)
        try:
            return [found.resource for found in secret_manager.with_label(self.settings, ownership.MARK, mark)]
        except KineticError:  # without Secret Manager there is none of ours
            return []
