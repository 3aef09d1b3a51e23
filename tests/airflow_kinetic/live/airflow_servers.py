"""Airflow's four components on loopback, each in a process group of its own, and what a user can ask of its REST API.

Starts, kills and restarts them, and ends all that they started. Knows nothing of jobs or of what the DAGs mean.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinetic_orchestration.protocol.system import processes
from tests.airflow_kinetic.live.releases import GONE_SECONDS, NEWEST, USER, Release
from tests.support.ports import held_port

READY_SECONDS = 900.0  # 30 on an idle machine of two cores, minutes on a busy one
STOP_SECONDS = 120.0
IDLE_SECONDS = 30.0  # in which a worker with nothing to do has ended
WITHIN = 360.0  # for whatever has to come, a heartbeat's timeout among it: the machine may be busy
POLL_SECONDS = 1.0  # a dozen scenes ask one server
PARALLELISM = 4

UNFINISHED = ("scheduled", "queued", "running", "deferred", "up_for_retry", "up_for_reschedule", "restarting", None)

SETTINGS = {
    "AIRFLOW__CORE__PARALLELISM": str(PARALLELISM),
    "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
    "AIRFLOW__DAG_PROCESSOR__STALE_DAG_THRESHOLD": "3600",  # else 3.0 drops DAGs whose file it has opened for a callback alone
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONNECT_ARGS": "live_database.PATIENT",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONNECT_ARGS_ASYNC": "live_database.PATIENT",
    "AIRFLOW__CORE__FERNET_KEY": "bGl2ZS10ZXN0cy1vZi1haXJmbG93LWtpbmV0aWMtMDE=",
    "AIRFLOW__API__SECRET_KEY": "live-tests",
    "AIRFLOW__API_AUTH__JWT_SECRET": "live-tests-of-a-length-that-will-do",
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
    # What takes minutes by default: a worker that is gone, and a triggerer that is.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": GONE_SECONDS,
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "3",
    "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
    "AIRFLOW__KINETIC__DEFER_AFTER": "1",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "40",
}


@dataclass
class Component:
    """One of them. Its log is one file over all its starts."""

    name: str
    log: Path
    command: tuple[str, ...]
    environ: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None

    def another(self, name: str) -> Component:
        """One more of the same kind."""
        return Component(name, self.log.with_name(f"{name}.log"), self.command, self.environ)

    def start(self) -> None:
        assert self.process is None, f"{self.name} runs"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.log.parent, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """SIGKILL, for it and all that it started: as the kernel does when memory is short."""
        assert self.process is not None
        self.process.kill()
        deadline = time.monotonic() + 90.0
        while left := of_session(self.process.pid):
            assert time.monotonic() < deadline, f"{self.name} does not die: {left}"
            for process in left:
                processes.send(process.pid, signal.SIGKILL)
            time.sleep(0.01)
        self.process.wait(90)
        self.process = None

    def stop(self) -> None:
        """SIGTERM, as at a restart by a service manager; what is left after that is killed."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        self.kill()

    @property
    def ended(self) -> bool:
        """Though nobody has killed it."""
        return self.process is not None and self.process.poll() is not None

    def below(self) -> list[processes.Process]:
        """All that descends from its process."""
        assert self.process is not None
        return processes.descendants(self.process.pid)

    def usage(self) -> tuple[float, float]:
        """Seconds of CPU so far and MiB of memory now, of its process and all below. What is shared is counted once."""
        assert self.process is not None
        seconds = mebibytes = 0.0
        for pid in (self.process.pid, *(process.pid for process in self.below())):
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
                mebibytes += int(found[1]) / 1024 if found else 0.0
        return seconds, mebibytes


@dataclass
class Airflow:
    """One Airflow. Every wait has a bound, and its error shows what the components said last."""

    home: Path
    url: str
    folder: Path  # LIVE_TEST_FOLDER, which tasks know
    components: dict[str, Component]
    release: Release
    _token: str = field(default="", repr=False)
    _logged_in: bool = False
    _changing: threading.Lock = field(default_factory=threading.Lock, repr=False)

    # ---- asking ------------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: Any = None, again: int = 2) -> Any:
        """The answer of the REST API, below its own path unless the path begins with a slash. A question that a busy
        server did not answer is put again.
        """
        url = f"{self.url}{path}" if path.startswith("/") else f"{self.url}{self.release.api}/{path}"
        request = urllib.request.Request(url, method=method, headers={"Accept": "application/json"})
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        if body is not None:
            request.add_header("Content-Type", "application/json")
            request.data = json.dumps(body).encode()
        try:
            # One change at a time, for the reason that SERVER has.
            with (
                self._changing if method != "GET" else nullcontext(),
                urllib.request.urlopen(request, timeout=150) as response,
            ):
                return json.loads(response.read() or "null")
        except OSError as error:
            refused = isinstance(error, urllib.error.HTTPError)
            if method == "GET" and again and not (refused and error.code < 500):
                time.sleep(POLL_SECONDS)
                return self.ask(method, path, body, again - 1)
            if not refused:
                raise
            said = error.read()[:2000].decode(errors="replace")
            raise AssertionError(f"{method} {path}: {error} {said}\n{self.said('api-server')}") from None

    @property
    def token(self) -> str:
        """The token in a browser's cookie `_token`."""
        return self._token

    def log_in(self) -> None:
        if not self._logged_in:
            self._token = self.release.log_in(self.ask, self._password)
            self._logged_in = True

    def _password(self) -> str:
        passwords = json.loads((self.home / "simple_auth_manager_passwords.json.generated").read_text())
        return str(passwords[USER])

    def trigger(self, dag_id: str, run_id: str, **conf: Any) -> Run:
        self.ask("POST", f"dags/{dag_id}/dagRuns", self.release.run_of(run_id, conf))
        return Run(self, dag_id, run_id)

    def execute(self, script: Path, *arguments: str) -> str:
        """Run a script in this Airflow's environment and return the last line of its output."""
        done = subprocess.run(
            [self.release.python, str(script), *arguments],
            cwd=self.home, env=self.components["scheduler"].environ, capture_output=True, text=True, timeout=WITHIN,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip().splitlines()[-1]

    # ---- waiting -----------------------------------------------------------------------------------------------

    def until(self, true: Callable[[], Any], within: float = WITHIN, about: Callable[[], object] = str) -> Any:
        """The first answer that is true. Ends early when a component has."""
        deadline = time.monotonic() + within
        while not (answer := true()):
            ended = [name for name, component in self.components.items() if component.ended]
            assert not ended, "\n".join(f"{name} has ended\n{self.said(name)}" for name in ended)
            if time.monotonic() > deadline:
                said = "\n".join(self.said(name) for name in self.components)
                raise AssertionError(f"not within {within:g} s\n{about()}\n{said}")
            time.sleep(POLL_SECONDS)
        return answer

    def said(self, name: str) -> str:
        """The end of a component's own log."""
        return f"---- {name}\n" + self.components[name].log.read_text(errors="replace")[-4000:]


@dataclass(frozen=True)
class Run:
    """One DAG run, and its task `train` unless another one is named."""

    airflow: Airflow
    dag_id: str
    run_id: str

    @property
    def path(self) -> str:
        return f"dags/{self.dag_id}/dagRuns/{self.run_id}"

    @property
    def state(self) -> str:
        return str(self.airflow.ask("GET", self.path)["state"])

    def task(self, task_id: str = "train") -> dict[str, Any]:
        """state, try_number, max_tries, start_date, duration, trigger, …"""
        found = self.airflow.ask("GET", f"{self.path}/taskInstances/{task_id}")
        assert isinstance(found, dict)
        return found

    def tasks(self) -> list[dict[str, Any]]:
        """All task instances, mapped ones each."""
        found: list[dict[str, Any]] = []
        while True:
            page = self.airflow.ask("GET", f"{self.path}/taskInstances?limit=100&offset={len(found)}")
            found += page["task_instances"]
            if len(found) >= page["total_entries"] or not page["task_instances"]:
                return found

    def count(self, state: str) -> int:
        """So many task instances are in it."""
        return int(self.airflow.ask("GET", f"{self.path}/taskInstances?state={state}&limit=1")["total_entries"])

    def wait(self, *states: str, task_id: str = "train", number: int | None = None, within: float = WITHIN) -> Any:
        """Wait until the task is in one of these states, at that try if one is given. Ends early when it cannot be."""

        def reached() -> Any:
            task = self.task(task_id)
            if task["state"] in states and (number is None or task["try_number"] == number):
                return task
            said = "" if task["state"] in UNFINISHED else self.text(task["try_number"], task_id)
            assert task["state"] in UNFINISHED, f"the task is {task['state']}\n{said}"
            return None

        return self.airflow.until(reached, within, lambda: f"{self.task(task_id)}\n{self.text(task_id=task_id)}")

    def wait_for(self, text: str, within: float = WITHIN) -> None:
        """Wait until the log of the first try has the text. Ends early when the task is over."""

        def told() -> bool:
            state = self.task()["state"]
            found = text in self.text()
            assert found or state in UNFINISHED, f"the task is {state}, and no {text!r} in its log\n{self.text()}"
            return found

        self.airflow.until(told, within, self.text)

    def log(self, number: int = 1, task_id: str = "train", map_index: int = -1) -> list[dict[str, Any]]:
        """The records of a try, as the page shows them."""
        path = f"{self.path}/taskInstances/{task_id}/logs/{number}?full_content=true&map_index={map_index}"
        return self.airflow.release.records(self.airflow.ask("GET", path)["content"])

    def text(self, number: int = 1, task_id: str = "train") -> str:
        try:
            return "\n".join(str(record.get("event")) for record in self.log(number, task_id))
        except AssertionError as error:  # it has no log yet
            return str(error)[:300]

    def value(self, task_id: str = "train", map_index: int = -1, key: str = "return_value") -> Any:
        query = f"?map_index={map_index}{self.airflow.release.value_query}"
        return self.airflow.ask("GET", f"{self.path}/taskInstances/{task_id}/xcomEntries/{key}{query}")["value"]

    def kept(self, key: str, task_id: str = "train") -> Any:
        """The value in the task's state, which is stored over its tries."""
        return self.airflow.ask("GET", f"{self.path}/taskInstances/{task_id}/state-store/{key}")["value"]

    def links(self, task_id: str = "train") -> dict[str, str]:
        return self.airflow.release.links(self.airflow.ask("GET", f"{self.path}/taskInstances/{task_id}/links"))

    def clear(self, task_id: str = "train") -> None:
        body = self.airflow.release.clear_of(self.run_id, task_id)
        self.airflow.ask("POST", f"dags/{self.dag_id}/clearTaskInstances", body)

    def mark_task(self, state: str, task_id: str = "train") -> None:
        self.airflow.ask("PATCH", f"{self.path}/taskInstances/{task_id}", self.airflow.release.state_of(state))

    def mark(self, state: str) -> None:
        self.airflow.ask("PATCH", self.path, {"state": state})

    def worker(self) -> processes.Process | None:
        """The process in which the task's own code runs now, by the name that Airflow gives it."""
        title = self.airflow.release.worker_title(self.task()).encode()
        for process in self.airflow.components["scheduler"].below():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(title):
                    return process
        return None


@contextmanager
def airflow_servers(
    home: Path, environ: Mapping[str, str], dags: int, through: tuple[str, ...] = (), release: Release = NEWEST
) -> Iterator[Airflow]:
    """A whole Airflow on the migrated database in `home`, ready for use. Afterwards none of its processes lives.

    `through`: a command that becomes each of its components.
    """
    held = {name: held_port() for name in release.servers}
    ports = {name: port.getsockname()[1] for name, port in held.items()}
    url = f"http://127.0.0.1:{ports['api-server']}"
    folder = home / "live"
    folder.mkdir()
    variables = {
        **environ,
        **SETTINGS,
        **release.settings,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{ports.get('execution-api')}/execution/",
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__WEBSERVER__BASE_URL": url,
        "LIVE_TEST_FOLDER": str(folder),
        "DO_NOT_TRACK": "1",
    }
    # With less than a minute for each other, its components fall over a database of SQLite on a busy machine.
    (home / "config").mkdir()
    (home / "config" / "live_database.py").write_text("PATIENT = {'timeout': 120}\n")
    components = {}
    for name, command in release.commands.items():
        arguments = ("--port", str(ports[name])) if name in ports else ()
        whole = (*through, release.python, "-m", "airflow", *command, *arguments)
        components[name] = Component(name, home / f"{name}.log", whole, variables)
    airflow = Airflow(home, url, folder, components, release)
    try:
        for component in components.values():
            component.start()
        _wait_until_ready(airflow, dags)
        yield airflow
    finally:
        left = _stop(airflow)
        for port in held.values():
            port.close()
    assert not left, f"Airflow left processes behind: {left}"


def _wait_until_ready(airflow: Airflow, dags: int) -> None:
    """All of them beat, and every DAG is known."""
    why: object = ""

    def ready() -> bool:
        nonlocal why
        try:
            why = health = airflow.ask("GET", airflow.release.health)
            # 2.11 tells None of a part that is none of its own
            if any(part["status"] not in ("healthy", None) for part in health.values()):
                return False
            airflow.log_in()
            broken = airflow.ask("GET", "importErrors")["import_errors"]
            assert not broken, "\n".join(error["stack_trace"] for error in broken)
            why = found = airflow.ask("GET", "dags")["total_entries"]
        except (OSError, KeyError) as error:
            why = error
            return False
        return bool(found == dags)

    airflow.until(ready, READY_SECONDS, lambda: why)


def _stop(airflow: Airflow) -> list[processes.Process]:
    """Stop Airflow as a service manager does; processes left after that are killed, and returned. The API servers,
    which store nothing and take long to stop, are killed last, with all that they have started.
    """
    running = {each.name: each.process for each in airflow.components.values() if each.process is not None}
    servers = [process for name, process in running.items() if name in airflow.release.servers]
    others = [process for process in running.values() if process not in servers]
    for process in others:
        process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while any(process.poll() is None for process in others) and time.monotonic() < deadline:
        time.sleep(0.05)
        if time.monotonic() > deadline - STOP_SECONDS + IDLE_SECONDS:
            _end_idle_workers(others)
    for process in servers:
        for found in of_session(process.pid):
            processes.send(found.pid, signal.SIGKILL)
    deadline = time.monotonic() + IDLE_SECONDS
    while (
        left := [found for process in running.values() for found in of_session(process.pid)]
    ) and time.monotonic() < deadline:
        time.sleep(0.05)
    for found in left:
        processes.send(found.pid, signal.SIGKILL)
    for process in running.values():
        process.wait(90)
    return left


def _end_idle_workers(components: list[subprocess.Popen[bytes]]) -> None:
    """Seldom one of a LocalExecutor's does not hear that it is over, and the scheduler would wait for it for ever."""
    for component in components:
        for found in of_session(component.pid):
            with contextlib.suppress(OSError):
                if b"LocalExecutor: <idle>" in Path(f"/proc/{found.pid}/cmdline").read_bytes():
                    processes.send(found.pid, signal.SIGKILL)


def of_session(session: int) -> list[processes.Process]:
    """All that a component has started, however it calls itself and whoever its parent is by now. Tasks lead groups of
    their own, but no session. Hosts of local jobs do, and are the matter of the fixture `home`.
    """
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if os.getsid(int(entry)) == session:
                    process = processes.find(int(entry))
                    if process is not None and not process.zombie:
                        found.append(process)
    return found
