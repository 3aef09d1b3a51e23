"""The contract of every backend. A backend's own test inherits `BackendContract` and says how to reach its platform.

    class TestMyBackend(BackendContract):
        backend = "my-name"

        @pytest.fixture
        def environment(self, tmp_path: Path) -> Mapping[str, str]:
            return {"KINETIC_HOME": f"{tmp_path}/home", "KINETIC_STORE": f"{tmp_path}/store"}

        def kill_host(self, placement: Mapping[str, Any], host: int) -> None: ...

        def left(self) -> Sequence[str]: ...

It runs real jobs through the operations of `Backend`, and knows no platform. Clients that are killed and that race are
processes of their own.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import pickle
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import JobCancelled, KineticError
from kinetic_orchestration.jobs.launch import launch
from kinetic_orchestration.jobs.request import Draft, draft
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.values import (
    ABSENT,
    GONE,
    PRESENT,
    WOUNDED,
    Event,
    Freed,
    Metrics,
    Observation,
    Output,
)
from kinetic_orchestration.platforms.backend import Backend, Submission
from kinetic_orchestration.platforms.registry import open_backend, open_store
from kinetic_orchestration.protocol import names

Placement = Mapping[str, Any]

SUBMITTER = Path(__file__).with_name("submitter.py")
PROGRAMS = Path(__file__).with_name("programs.py")
PROMPTLY = 30.0  # seconds that any operation may take
LEASE = 20.0  # seconds of an attempt whose deadline is waited for
KILLED = -9
NEVER = "job-0123456789ab"  # a job that nobody has submitted


class _Holder:
    """A backend that keeps what it is to create: a job is then submitted but for its create call."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.asked: Submission | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def submit(self, asked: Submission) -> str:
        self.asked = asked
        return ""


@dataclass(frozen=True)
class Held:
    """A job whose records are written, and whose hosts nobody has created."""

    asked: Submission
    job: kinetic.JobHandle[Any]

    @property
    def placement(self) -> dict[str, Any]:
        return self.asked.intent.placement


class BackendContract:
    """The contract of a backend, whatever its platform.

    Attributes:
        backend: Its name.
        one_host: An accelerator of one host.
        several_hosts: An accelerator of several hosts.
        within: Seconds within which hosts are there, and gone.
        options: Further options of all jobs, as `run` takes them.
        options_of_several: Further options of jobs on several hosts.
    """

    backend = ""
    one_host = "cpu"
    several_hosts = "v5e-16"
    within = 120.0
    options: Mapping[str, Any] = {}
    options_of_several: Mapping[str, Any] = {}

    @pytest.fixture
    def environment(self) -> Mapping[str, str]:
        """Return the variables by which a client finds the platform, a store of this test's own, and a home."""
        raise NotImplementedError

    def neighbour(self) -> Mapping[str, str]:
        """Return the variables in which another deployment of the same platform differs."""
        return {"KINETIC_DEPLOYMENT": "neighbour"}

    def kill_host(self, placement: Placement, host: int) -> None:
        """End a running host as the platform's own failures do: it reports nothing any more."""
        raise NotImplementedError

    def left(self) -> Sequence[str]:
        """Return all that exists for hosts of this test, for people: processes, machines, requests for them."""
        raise NotImplementedError

    # ---- what the tests use

    @pytest.fixture
    def programs(self, tmp_path: Path) -> ModuleType:
        """The functions that run as jobs."""
        folder = tmp_path / "programs"
        folder.mkdir()
        (folder / "pyproject.toml").touch()
        shutil.copy(PROGRAMS, folder / "contract_programs.py")
        spec = importlib.util.spec_from_file_location("contract_programs", folder / "contract_programs.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module.__name__] = module
        spec.loader.exec_module(module)
        return module

    @pytest.fixture(autouse=True)
    def _platform(self, environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("KINETIC_BACKEND", self.backend)
        self._jobs: list[kinetic.JobHandle[Any]] = []
        yield
        for job in self._jobs:
            with contextlib.suppress(KineticError):
                job.cancel("the test is over")
        self._until(lambda: not self.left(), lambda: f"left behind: {'; '.join(self.left())}")

    def opened(self) -> Backend:
        """Return the backend as a process opens it that knows nothing yet."""
        return open_backend(self.backend, settings.load())

    def drafted(self, function: Callable[..., Any], *arguments: Any, hosts: int = 1, **options: Any) -> Draft:
        named = self._options(hosts, options)
        asked = Options(backend=self.backend, **named)
        return draft(JobSpec(function.__name__, asked, function, arguments))

    def held(self, function: Callable[..., Any], *arguments: Any, hosts: int = 1, **options: Any) -> Held:
        """Submit a job but for its create call."""
        request = self.drafted(function, *arguments, hosts=hosts, **options).open()
        holder = _Holder(request.backend)
        launched = launch(replace(request, backend=holder))
        assert holder.asked is not None
        job = kinetic.attach(launched.job_id)
        self._jobs.append(job)
        return Held(holder.asked, job)

    def ran(self, function: Callable[..., Any], *arguments: Any, hosts: int = 1, **options: Any) -> Any:
        """Submit a job, as users do."""
        job = kinetic.run(**self._options(hosts, options))(function).run_async(*arguments)
        self._jobs.append(job)
        return job

    def _options(self, hosts: int, options: Mapping[str, Any]) -> dict[str, Any]:
        several = {"accelerator": self.several_hosts, **self.options_of_several}
        return {**self.options, **({"accelerator": self.one_host} if hosts == 1 else several), **options}

    def submit(self, asked: Submission) -> None:
        """Make the create call until it is accepted, as a follower does."""
        backend = self.opened()
        self._until(lambda: not _timed(backend.submit, asked), "the create call is accepted")

    def look(self, placement: Placement) -> Observation:
        seen: Observation = _timed(self.opened().observe, [placement])[0]
        return seen

    def seen(self, placement: Placement, *states: str) -> Observation:
        """Wait until a placement is in one of these states."""
        backend = self.opened()
        last: list[Observation] = []

        def is_so() -> Observation | None:
            last[:] = _timed(backend.observe, [placement])
            return last[0] if last[0].state in states else None

        found = self._until(is_so, lambda: f"{placement} is {' or '.join(states)}, and not {last[0]}")
        assert isinstance(found, Observation)
        return found

    def freed(self, placement: Placement) -> None:
        """Release a placement until nothing is left of it."""
        backend = self.opened()
        self._until(lambda: _timed(backend.release, placement) is Freed.DONE, f"{placement} is released")

    def found(self) -> list[dict[str, Any]]:
        """Return all that a reaper of this deployment finds."""
        entries = list(_timed(lambda: list(self.opened().leftovers())))
        assert [entry for entry in entries if "unread" in entry] == []
        return entries

    def of(self, held: Held) -> list[dict[str, Any]]:
        """Return what a reaper finds of one job."""
        return [entry for entry in self.found() if entry["job"] == held.asked.job_id]

    @contextlib.contextmanager
    def client(self, asked: Submission, folder: Path, when: str) -> Iterator[subprocess.Popen[str]]:
        """A process that makes the create call as soon as it gets a line, and is killed there or not."""
        file = folder / f"submission-{secrets.token_hex(4)}"
        file.write_bytes(pickle.dumps(asked))
        process = subprocess.Popen(
            [sys.executable, str(SUBMITTER), str(file), when], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()
            process.communicate()

    def _until(self, condition: Callable[[], Any], what: str | Callable[[], str]) -> Any:
        deadline = time.monotonic() + self.within
        while not (answer := condition()):
            if time.monotonic() > deadline:
                pytest.fail(f"{what() if callable(what) else what}: not within {self.within:g} s")
            time.sleep(0.05)
        return answer

    # ---- before anything is created

    def test_a_placement_is_decided_alone_and_always_the_same(self, programs: ModuleType) -> None:
        plan = self.drafted(programs.tells_its_host, hosts=2).plan
        placements = []
        for backend in (self.opened(), self.opened()):
            backend.check(plan)
            assert backend.resolve(plan) == plan, "what was resolved is resolved"
            placements.append([backend.place(plan, NEVER, attempt) for attempt in (1, 2)])
        assert placements[0] == placements[1]
        first, second = placements[0]
        assert first != second
        assert json.loads(json.dumps(first)) == first
        assert (first["backend"], first["hosts"]) == (self.backend, plan.hosts)
        other = self.opened().place(plan, "job-ba9876543210", 1)
        assert _name(first) != _name(other)
        assert self.opened().dry_run(plan) == self.opened().dry_run(plan)
        assert self.look(first).state == ABSENT
        assert self.found() == []

    def test_what_was_never_created_is_released_at_once_and_again(self, programs: ModuleType) -> None:
        placement = self.opened().place(self.drafted(programs.tells_its_host).plan, NEVER, 1)
        backend = self.opened()
        assert [_timed(backend.release, placement) for _ in range(2)] == [Freed.DONE] * 2
        _timed(backend.cancel, placement)
        assert list(backend.secrets()) == []

    # ---- the create call

    def test_a_create_call_that_is_repeated_finds_the_hosts_of_the_first(self, programs: ModuleType) -> None:
        held = self.held(programs.tells_its_host, hosts=2)
        self.submit(held.asked)
        self.submit(held.asked)
        assert len(self.of(held)) <= 1, "there is one, unless its hosts have ended already"
        self._check_told_once(held.job)

    def test_two_processes_that_make_it_at_once_make_one_set_of_hosts(
        self, programs: ModuleType, tmp_path: Path
    ) -> None:
        held = self.held(programs.tells_its_host, hosts=2)
        with self.client(held.asked, tmp_path, "never") as one, self.client(held.asked, tmp_path, "never") as other:
            for process in (one, other):
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            answers = [process.communicate(timeout=self.within)[0] for process in (one, other)]
        assert [process.returncode for process in (one, other)] == [0, 0]
        assert all(isinstance(json.loads(answer), str) for answer in answers)
        assert len(self.of(held)) <= 1, "there is one, unless its hosts have ended already"
        self._check_told_once(held.job)

    @pytest.mark.parametrize("when", ["before", "within", "after"])
    def test_another_client_finishes_the_job_of_one_that_is_killed_at_the_create_call(
        self, programs: ModuleType, tmp_path: Path, when: str
    ) -> None:
        held = self.held(programs.tells_its_host)
        with self.client(held.asked, tmp_path, when) as process:
            process.communicate("go\n", timeout=self.within)
        assert process.returncode == KILLED
        self._check_told_once(held.job)

    # ---- observing

    def test_many_placements_are_observed_in_their_order_before_while_and_after_they_exist(
        self, programs: ModuleType
    ) -> None:
        held = self.held(programs.runs_on_until_another_attempt)
        plan, backend = held.asked.plan, self.opened()
        never = [backend.place(plan, f"job-0000000000{number}0", 1) for number in range(4)]
        mine = [*never[:2], held.placement, *never[2:]]
        assert _timed(backend.observe, []) == []
        assert [seen.state for seen in _timed(backend.observe, mine)] == [ABSENT] * 5
        self.submit(held.asked)
        self.seen(held.placement, PRESENT)
        states = [seen.state for seen in _timed(backend.observe, mine)]
        assert states == [ABSENT, ABSENT, PRESENT, ABSENT, ABSENT]
        held.job.cancel("seen")
        with pytest.raises(JobCancelled):
            held.job.result(timeout=self.within)
        self.freed(held.placement)
        assert [seen.state for seen in _timed(backend.observe, mine)] == [ABSENT] * 5

    def test_hosts_that_die_are_told_and_the_next_attempt_ends_the_job(self, programs: ModuleType) -> None:
        held = self.held(programs.runs_on_until_another_attempt, hosts=2)
        self.submit(held.asked)
        self.seen(held.placement, PRESENT)
        self._running(held.job)
        self.kill_host(held.placement, 1)
        told = self.seen(held.placement, WOUNDED, GONE, ABSENT)
        assert told.state == ABSENT or told.message
        assert held.job.result(timeout=self.within) == 2
        assert held.job.attempts() == 2

    # ---- the end of hosts

    def test_hosts_end_with_a_cancelled_job(self, programs: ModuleType) -> None:
        held = self.held(programs.runs_on)
        self.submit(held.asked)
        self._running(held.job)
        held.job.cancel("no longer needed")
        _timed(self.opened().cancel, held.placement)
        with pytest.raises(JobCancelled, match="no longer needed"):
            held.job.result(timeout=self.within)
        self.freed(held.placement)

    def test_a_release_ends_hosts_that_run_and_a_second_one_finds_nothing(self, programs: ModuleType) -> None:
        held = self.held(programs.runs_on, hosts=2)
        self.submit(held.asked)
        self._running(held.job)
        self.freed(held.placement)
        assert self.opened().release(held.placement) is Freed.DONE
        assert self.look(held.placement).state == ABSENT
        self._until(lambda: not self.left(), lambda: f"left behind: {self.left()}")

    def test_hosts_that_nobody_follows_end_at_their_limit(self, programs: ModuleType) -> None:
        held = self.held(programs.runs_on, hosts=2, limits=kinetic.Limits(run=3))
        self.submit(held.asked)
        self.seen(held.placement, PRESENT)
        self.seen(held.placement, ABSENT, GONE)
        self.freed(held.placement)  # as a reaper does: nobody else knows of it

    def test_hosts_that_cost_money_end_at_their_deadline_whatever_they_do(self, programs: ModuleType) -> None:
        held = self.held(programs.runs_on)
        if not self.opened().charges:
            pytest.skip("its hosts cost nothing")
        deadline = time.time() + LEASE
        self.submit(replace(held.asked, intent=held.asked.intent._replace(deadline=deadline)))
        self.seen(held.placement, PRESENT)
        self.seen(held.placement, ABSENT, GONE)
        self.freed(held.placement)  # as a reaper does: nobody else knows of it

    # ---- what dead clients leave

    def test_leftovers_are_exactly_what_exists_and_can_be_released(self, programs: ModuleType) -> None:
        held, backend = self.held(programs.runs_on), self.opened()
        assert self.found() == []
        self.submit(held.asked)
        self.seen(held.placement, PRESENT)
        (entry,) = self.found()
        assert json.loads(json.dumps(entry)) == entry
        assert (entry["backend"], entry["job"], entry["attempt"]) == (self.backend, held.asked.job_id, 1)
        age = entry["age"] if "age" in entry else time.time() - entry["created"]
        assert -5 < age < self.within
        if backend.charges:
            assert int(entry["expires"]) == int(held.asked.intent.deadline)
            assert entry["state"]
        self.freed(entry)
        assert self.found() == []
        assert self.look(held.placement).state == ABSENT

    def test_hosts_of_another_deployment_are_neither_found_nor_touched(
        self, programs: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held = self.held(programs.runs_on)
        self.submit(held.asked)
        self.seen(held.placement, PRESENT)
        with monkeypatch.context() as another:
            for name, value in self.neighbour().items():
                another.setenv(name, value)
            stranger = self.opened()
            assert list(stranger.leftovers()) == []
            _timed(stranger.release, held.placement)
            _timed(stranger.cancel, held.placement)
            alike = stranger.place(replace(held.asked.plan, deployment="neighbour"), held.asked.job_id, 1)
            assert _timed(stranger.release, alike) is Freed.DONE
        assert self.look(held.placement).state == PRESENT
        assert len(self.of(held)) == 1
        self.freed(held.placement)

    # ---- what hosts do

    def test_every_host_runs_the_function_and_its_value_is_that_of_host_0(self, programs: ModuleType) -> None:
        job = self.ran(programs.tells_its_host, hosts=2)
        assert job.hosts > 1
        assert self._check_told_once(job) == (0, str(job.hosts))

    def test_an_exception_of_the_function_is_the_jobs(self, programs: ModuleType) -> None:
        job = self.ran(programs.fails, "the learning rate is negative")
        with pytest.raises(ValueError, match=r"^the learning rate is negative"):
            job.result(timeout=self.within)
        assert job.attempts() == 1

    def test_a_command_runs_and_its_numbers_are_read(self, tmp_path: Path) -> None:
        (tmp_path / "work").mkdir()
        (tmp_path / "work" / "pyproject.toml").touch()
        (tmp_path / "work" / "numbers_of.py").write_text("def read(line):\n    return {'step': 1, 'length': len(line)}")
        (tmp_path / "work" / "tell.py").write_text("import os; print('a command of', os.environ['KINETIC_HOST_COUNT'])")
        job = kinetic.command(
            ["python", "tell.py"], cwd=tmp_path / "work", accelerator=self.one_host, metrics="numbers_of:read",
            **dict(self.options),
        )  # fmt: skip
        self._jobs.append(job)
        events = self._followed(job)
        assert job.status() is kinetic.JobStatus.SUCCEEDED
        assert "a command of 1\n" in _lines(events).get(0, [])
        told = [(event.step, event.values) for event in events if isinstance(event, Metrics)]
        assert (1, {"length": len("a command of 1")}) in told

    def test_secrets_arrive_and_no_record_has_them(self, programs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        token = secrets.token_hex(24)
        monkeypatch.setenv("CONTRACT_API_TOKEN", token)
        job = self.ran(programs.digest_of, "CONTRACT_API_TOKEN", capture_env_vars=["CONTRACT_API_TOKEN"])
        assert job.result(timeout=self.within) == hashlib.sha256(token.encode()).hexdigest()
        here = settings.load()
        store = open_store(here.store, here.deployment)
        assert not store.metered or not list(self.opened().secrets()), "none is kept once the job has ended"
        for entry in store.list(""):
            record = store.read(entry.name, limit=1 << 30)
            assert record is None or token.encode() not in record.data, f"{entry.name} has the secret"

    def _running(self, job: kinetic.JobHandle[Any]) -> None:
        """Wait until the job's programs run on all hosts."""
        here = settings.load()
        store = open_store(here.store, here.deployment)

        def do_run() -> bool:
            beats = [json.loads(signal.data) for signal in store.signals(f"{names.beats_of(job.job_id)}1/")]
            return [beat.get("state") for beat in beats] == ["running"] * job.hosts

        self._until(do_run, f"{job.job_id} runs on {job.hosts} hosts")

    def _followed(self, job: kinetic.JobHandle[Any]) -> list[Event]:
        events: list[Event] = []
        assert job.follow(events.append, timeout=self.within) is not None, f"{job.job_id} did not end"
        return events

    def _check_told_once(self, job: kinetic.JobHandle[Any]) -> Any:
        """Check that each host has run `tells_its_host` once; return the job's value."""
        lines = _lines(self._followed(job))
        expected = {host: [f"this is host {host} of {job.hosts}\n"] for host in range(job.hosts)}
        assert lines == expected
        value = job.result(timeout=self.within)
        assert job.attempts() == 1
        return value


def _lines(events: Sequence[Event]) -> dict[int, list[str]]:
    """Return what the program of each host has printed."""
    found: dict[int, list[str]] = {}
    for event in events:
        if isinstance(event, Output) and event.kind == "o":
            found.setdefault(event.host, []).extend(event.text.decode().splitlines(keepends=True))
    return found


def _name(placement: Placement) -> Any:
    """Return what distinguishes placements: their names, or their folders."""
    return placement.get("name") or placement["run"]


def _timed(operation: Callable[..., Any], *arguments: Any) -> Any:
    """Call an operation, which must be bounded in time."""
    began = time.monotonic()
    answer = operation(*arguments)
    taken = time.monotonic() - began
    assert taken < PROMPTLY, f"{getattr(operation, '__qualname__', operation)} took {taken:.0f} s"
    return answer
