"""A real `dagster dev` (webserver, daemon, code server) on loopback, and what a user of its UI can ask of it.

Starts it, speaks GraphQL with it and ends all its processes. Knows nothing of jobs or of what the definitions mean.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import yaml

from kinetic_orchestration.protocol.system import processes
from tests.support.ports import held_port

READY_SECONDS = 400.0  # 24 on an idle machine of two cores, minutes on a busy one
STOP_SECONDS = 150.0
RUN_SECONDS = 300.0
POLL_SECONDS = 0.2

SETTINGS: dict[str, Any] = {
    "telemetry": {"enabled": False},
    # The queue is what users have; it is only looked at more often here.
    "run_coordinator": {
        "module": "dagster._core.run_coordinator",
        "class": "QueuedRunCoordinator",
        "config": {"dequeue_interval_seconds": 1},
    },
    # Sends nothing anywhere: off is the default, and said so that it stays so.
    "nux": {"enabled": False},
}

# Of the webserver and the daemon with the code server: a minute, in which a busy machine may not start a run.
PATIENCE = {f"DAGSTER_{kind}GRPC_TIMEOUT_SECONDS": "300" for kind in ("", "SENSOR_", "REPOSITORY_")}


class DagsterDev:
    """One server. Every call has a bound, and its error shows the end of the server's own log."""

    def __init__(self, home: Path, port: int, process: subprocess.Popen[bytes]) -> None:
        self.home = home
        self.url = f"http://127.0.0.1:{port}"
        self._process = process
        self._place: tuple[str, str] | None = None

    # ---- asking ------------------------------------------------------------------------------------------------

    def query(self, text: str, **variables: Any) -> Any:
        """The `data` of a GraphQL answer; an answer with errors is an AssertionError."""
        body = json.dumps({"query": text, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=150) as response:
                answer = json.loads(response.read())
        except urllib.error.HTTPError as error:
            raise AssertionError(f"GraphQL: {error} {error.read()[:2000]!r}") from None
        assert not answer.get("errors"), answer["errors"]
        return answer["data"]

    @property
    def place(self) -> tuple[str, str]:
        """The names of the one repository and of its location."""
        if self._place is None:
            found = self.query(REPOSITORIES)["repositoriesOrError"]
            assert found["__typename"] == "RepositoryConnection" and len(found["nodes"]) == 1, found
            self._place = found["nodes"][0]["name"], found["nodes"][0]["location"]["name"]
        return self._place

    def launch(
        self,
        job: str = "__ASSET_JOB",
        *,
        assets: Sequence[str] = (),
        config: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        partition: str = "",
    ) -> str:
        """The id of a new run: of a job by its name, or of assets, as "Materialize selected" in the UI."""
        repository, location = self.place
        given = {**({"dagster/partition": partition} if partition else {}), **(tags or {})}
        parameters = {
            "selector": {
                "repositoryName": repository,
                "repositoryLocationName": location,
                "jobName": job,
                **({"assetSelection": [{"path": key.split("/")} for key in assets]} if assets else {}),
            },
            "runConfigData": json.dumps(config or {}),
            "executionMetadata": {"tags": _tags(given)},
        }
        return self._launched(self.query(LAUNCH, parameters=parameters)["launchRun"])

    def reexecute(self, run_id: str, strategy: str = "FROM_FAILURE", tags: Mapping[str, str] | None = None) -> str:
        """Re-execute like the UI's button: FROM_FAILURE, FROM_ASSET_FAILURE or ALL_STEPS; the id of the new run."""
        parameters = {
            "parentRunId": run_id,
            "strategy": strategy,
            "extraTags": _tags(tags or {}),
            "useParentRunTags": True,
        }
        return self._launched(self.query(REEXECUTE, parameters=parameters)["launchRunReexecution"])

    def terminate(self, run_id: str, *, force: bool = False) -> None:
        """Terminate like the UI; with `force`, as with "Force termination immediately" ticked."""
        policy = "MARK_AS_CANCELED_IMMEDIATELY" if force else "SAFE_TERMINATE"
        answer = self.query(TERMINATE, run=run_id, policy=policy)["terminateRun"]
        assert answer["__typename"] == "TerminateRunSuccess", answer

    def status(self, run_id: str) -> str:
        return str(self.run(run_id)["status"])

    def tags(self, run_id: str) -> dict[str, str]:
        return {tag["key"]: tag["value"] for tag in self.run(run_id)["tags"]}

    def run(self, run_id: str) -> dict[str, Any]:
        """status, tags, jobName, startTime, endTime, parentRunId, stepStats (stepKey, status, attempts)."""
        answer = self.query(RUN, run=run_id)["runOrError"]
        assert answer["__typename"] == "Run", answer
        assert isinstance(answer, dict)
        return answer

    def runs(self, **tags: str) -> list[str]:
        """The ids of all runs, or of those that carry the tags; the newest first."""
        answer = self.query(RUNS, filter={"tags": _tags(tags)})["runsOrError"]
        return [run["runId"] for run in answer["results"]]

    def events(self, run_id: str) -> list[dict[str, Any]]:
        """Every event of the run's log so far: __typename, eventType, stepKey, level, message, timestamp, and more
        where there is more: error, fileKey and stepKeys, metadataEntries, assetKey.
        """
        found: list[dict[str, Any]] = []
        cursor = None
        while True:
            answer = self.query(EVENTS, run=run_id, cursor=cursor)["logsForRun"]
            assert answer["__typename"] == "EventConnection", answer
            found += answer["events"]
            cursor = answer["cursor"]
            if not answer["hasMore"]:
                return found

    def messages(self, run_id: str) -> list[str]:
        return [event["message"] for event in self.events(run_id) if event.get("message")]

    def logs(self, run_id: str) -> dict[str, tuple[str, ...]]:
        """The captured logs of the run that the UI's menu shows: the key of each file, and the names beside it."""
        return {
            event["fileKey"]: tuple(event["stepKeys"] or ())
            for event in self.events(run_id)
            if event["__typename"] == "LogsCapturedEvent"
        }

    def captured(self, run_id: str, name: str) -> tuple[str, str]:
        """stdout and stderr so far of the newest captured log with this name in the UI's menu, as that of a step."""
        keys = [key for key, names in self.logs(run_id).items() if name in names]
        if not keys:
            return "", ""
        answer = self.query(CAPTURED, key=[run_id, "compute_logs", keys[-1]])["capturedLogs"]
        return answer["stdout"] or "", answer["stderr"] or ""

    def asset(self, key: str, limit: int = 100) -> dict[str, Any]:
        """`assetMaterializations` and `assetObservations`, the newest first, each with metadataEntries."""
        answer = self.query(ASSET, key={"path": key.split("/")}, limit=limit)["assetOrError"]
        assert answer["__typename"] == "Asset", answer
        assert isinstance(answer, dict)
        return answer

    # ---- waiting -----------------------------------------------------------------------------------------------

    def wait(self, run_id: str, *statuses: str, within: float = RUN_SECONDS) -> str:
        """Wait until the run's status is one of these, or final if none is named."""
        wanted = statuses or FINAL

        def reached() -> str:
            status = self.status(run_id)
            assert status in wanted or status not in FINAL, f"the run is {status}\n{self._story(run_id)}"
            return status if status in wanted else ""

        return str(self.until(reached, within, lambda: self._story(run_id)))

    def wait_for_message(self, run_id: str, pattern: str, within: float = RUN_SECONDS) -> re.Match[str]:
        """The first match in a message of the run's log."""

        def said() -> re.Match[str] | None:
            return next(filter(None, (re.search(pattern, message) for message in self.messages(run_id))), None)

        match = self.until(said, within, lambda: f"nothing like {pattern!r}\n{self._story(run_id)}")
        assert isinstance(match, re.Match)
        return match

    def until(self, true: Callable[[], Any], within: float, about: Callable[[], str] = str) -> Any:
        """The first answer that is true. Ends early when the server has."""
        deadline = time.monotonic() + within
        while not (answer := true()):
            assert self._process.poll() is None, f"dagster dev has ended\n{self.said()[-8000:]}"
            assert time.monotonic() < deadline, f"not within {within:g} s\n{about()}"
            time.sleep(POLL_SECONDS)
        return answer

    # ---- processes ---------------------------------------------------------------------------------------------

    def run_worker(self, run_id: str, within: float = RUN_SECONDS) -> int:
        """The process that runs the run."""
        return int(self.wait_for_message(run_id, r"Started process for run \(pid: (\d+)\)", within)[1])

    def step_worker(self, run_id: str, step: str, within: float = RUN_SECONDS) -> int:
        """The process of a step that the multiprocess executor started, the newest one."""

        def found() -> int:
            pids = [
                int(entry["text"])
                for event in self.events(run_id)
                if event["eventType"] == "STEP_WORKER_STARTED" and event["stepKey"] == step
                for entry in event["metadataEntries"]
                if entry["label"] == "pid"
            ]
            return pids[-1] if pids else 0

        return int(self.until(found, within, lambda: self._story(run_id)))

    def said(self) -> str:
        """The log of the server itself."""
        return (self.home / "dagster-dev.log").read_text(errors="replace")

    def instance(self) -> dg.DagsterInstance:
        """The instance of this server, for those who want to look below the UI. The caller disposes of it."""
        return dg.DagsterInstance.from_config(str(self.home))

    def _launched(self, answer: dict[str, Any]) -> str:
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return str(answer["run"]["runId"])

    def _story(self, run_id: str) -> str:
        lines = [f"{event['eventType'] or event['level']} {event.get('message')}" for event in self.events(run_id)]
        return "\n".join([f"run {run_id} is {self.status(run_id)}:", *lines[-60:]])


@contextmanager
def dagster_dev(
    folder: Path,
    definitions: Path,
    *,
    settings: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[DagsterDev]:
    """A server on the definitions of a file, ready for use. Afterwards none of its processes lives.

    `settings` are added to its dagster.yaml. It gets this process's environment and `environment`.
    """
    home = folder / "dagster-home"
    home.mkdir(parents=True)
    (home / "dagster.yaml").write_text(yaml.safe_dump({**SETTINGS, **(settings or {})}))
    held = held_port()
    port = held.getsockname()[1]
    with (home / "dagster-dev.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dagster", "dev", "-h", "127.0.0.1", "-p", str(port), "-f", str(definitions)],
            cwd=folder,
            env={**os.environ, **PATIENCE, "DAGSTER_HOME": str(home), "DO_NOT_TRACK": "1", **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    server = DagsterDev(home, port, process)
    try:
        _wait_until_ready(server)
        yield server
    finally:
        left = _stop(process, home)
        held.close()
    assert not left, f"dagster dev left processes behind: {left}"


def _wait_until_ready(server: DagsterDev) -> None:
    """The webserver answers, the definitions are loaded and the daemon beats."""
    why = ""

    def ready() -> bool:
        nonlocal why
        try:
            found = server.query(REPOSITORIES)["repositoriesOrError"]
            daemon = server.query(DAEMON)["instance"]["daemonHealth"]["daemonStatus"]
        except (OSError, AssertionError) as error:
            why = f"{error}"
            return False
        broken = server.query(ERRORS)["workspaceOrError"]["locationEntries"]
        errors = [entry["locationOrLoadError"]["message"] for entry in broken if _is_error(entry)]
        assert not errors, "\n".join(errors)
        why = f"{found} {daemon}"
        return bool(found.get("nodes")) and bool(daemon["healthy"])

    server.until(ready, READY_SECONDS, lambda: f"{why}\n{server.said()[-8000:]}")


def _is_error(entry: dict[str, Any]) -> bool:
    loaded = entry["locationOrLoadError"]
    return loaded is not None and loaded["__typename"] == "PythonError"


def _stop(process: subprocess.Popen[bytes], home: Path) -> list[processes.Process]:
    """Stop it like Ctrl-C; processes left after that are killed, and returned."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + STOP_SECONDS
    while (process.poll() is None or of_home(home)) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = of_home(home)
    for found in left:
        processes.send(found.pid, signal.SIGKILL)
    if process.poll() is None:
        process.kill()
    process.wait(90)
    return left


def of_home(home: Path) -> list[processes.Process]:
    """Processes of a server, of its runs and their steps: those that carry its DAGSTER_HOME.

    Hosts of local jobs may outlive it, and are the matter of the fixture `home`.
    """
    wanted = f"DAGSTER_HOME={home}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            variables = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in variables and not any(variable.startswith(b"KINETIC_PLACEMENT=") for variable in variables):
            process = processes.find(int(entry))
            if process is not None and not process.zombie:
                found.append(process)
    return found


def _tags(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in tags.items()]


FINAL = ("SUCCESS", "FAILURE", "CANCELED")

REPOSITORIES = """{ repositoriesOrError { __typename
    ... on RepositoryConnection { nodes { name location { name } } }
    ... on PythonError { message } } }"""
ERRORS = """{ workspaceOrError { ... on Workspace { locationEntries { name locationOrLoadError {
    __typename ... on PythonError { message stack } } } } } }"""
DAEMON = '{ instance { daemonHealth { daemonStatus(daemonType: "QUEUED_RUN_COORDINATOR") { healthy } } } }'
_LAUNCHED = """__typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message stack }
    ... on RunConfigValidationInvalid { errors { message } }
    ... on UnauthorizedError { message }
    ... on PipelineNotFoundError { message }
    ... on InvalidSubsetError { message }"""
LAUNCH = f"mutation($parameters: ExecutionParams!) {{ launchRun(executionParams: $parameters) {{ {_LAUNCHED} }} }}"
REEXECUTE = f"""mutation($parameters: ReexecutionParams!) {{
    launchRunReexecution(reexecutionParams: $parameters) {{ {_LAUNCHED} }} }}"""
TERMINATE = """mutation($run: String!, $policy: TerminateRunPolicy) {
    terminateRun(runId: $run, terminatePolicy: $policy) { __typename
        ... on TerminateRunFailure { message } ... on RunNotFoundError { message } ... on PythonError { message } } }"""
RUN = """query($run: ID!) { runOrError(runId: $run) { __typename ... on Run {
    runId status jobName startTime endTime parentRunId tags { key value }
    stepStats { stepKey status attempts { startTime endTime } } } } }"""
RUNS = "query($filter: RunsFilter) { runsOrError(filter: $filter) { ... on Runs { results { runId } } } }"
_METADATA = """metadataEntries { __typename label description
    ... on TextMetadataEntry { text } ... on MarkdownMetadataEntry { mdStr } ... on UrlMetadataEntry { url }
    ... on PathMetadataEntry { path } ... on FloatMetadataEntry { floatValue } ... on IntMetadataEntry { intValue intRepr }
    ... on JsonMetadataEntry { jsonString } ... on BoolMetadataEntry { boolValue }
    ... on TimestampMetadataEntry { timestamp } }"""
EVENTS = f"""query($run: ID!, $cursor: String) {{ logsForRun(runId: $run, afterCursor: $cursor) {{ __typename
    ... on PythonError {{ message }}
    ... on EventConnection {{ cursor hasMore events {{ __typename
        ... on MessageEvent {{ message level stepKey timestamp eventType }}
        ... on ErrorEvent {{ error {{ message className stack errorChain {{ error {{ message className stack }} }} }} }}
        ... on ExecutionStepFailureEvent {{ failureMetadata {{ {_METADATA} }} }}
        ... on LogsCapturedEvent {{ fileKey stepKeys }}
        ... on DisplayableEvent {{ {_METADATA} }}
        ... on ObservationEvent {{ assetKey {{ path }} }}
        ... on MaterializationEvent {{ assetKey {{ path }} }} }} }} }} }}"""
CAPTURED = "query($key: [String!]!) { capturedLogs(logKey: $key) { stdout stderr } }"
ASSET = f"""query($key: AssetKeyInput!, $limit: Int) {{ assetOrError(assetKey: $key) {{ __typename ... on Asset {{
    assetObservations(limit: $limit) {{ runId timestamp partition {_METADATA} }}
    assetMaterializations(limit: $limit) {{ runId timestamp partition {_METADATA} }} }} }} }}"""
