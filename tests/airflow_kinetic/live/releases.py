"""Airflow's releases as whoever starts and asks one from outside sees them: its programs, its settings, its REST API.

Knows what 2.11 has in another way than 3.x, and what a release names otherwise. Starts nothing that stays.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

USER = "admin"
PREPARE_SECONDS = 280.0

# The API server in two: over SQLite, one whose user changes something while a worker does waits for itself.
SERVER = ("api-server", "--host", "127.0.0.1", "--workers", "1", "--apps")
COMMANDS = {
    "api-server": (*SERVER, "core"),
    "execution-api": (*SERVER, "execution"),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "triggerer": ("triggerer", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
}
COMMANDS_2 = {
    "api-server": ("webserver", "--hostname", "127.0.0.1", "--workers", "1"),
    "scheduler": COMMANDS["scheduler"],  # which reads the DAGs, too
    "triggerer": COMMANDS["triggerer"],
}

# What takes minutes by default: a worker that is gone.
GONE_SECONDS = "60"
SETTINGS_2 = {
    "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
    "_AIRFLOW__SKIP_DATABASE_EXECUTOR_COMPATIBILITY_CHECK": "1",  # as its own tests do: no other executor runs two tasks on SQLite
    "AIRFLOW__CORE__DAG_FILE_PROCESSOR_TIMEOUT": "280",
    "AIRFLOW__API__AUTH_BACKENDS": "airflow.providers.fab.auth_manager.api.auth.backend.basic_auth",
    "AIRFLOW__WEBSERVER__SECRET_KEY": "live-tests",
    "AIRFLOW__SCHEDULER__MIN_FILE_PROCESS_INTERVAL": "600",
    "AIRFLOW__SCHEDULER__SCHEDULER_ZOMBIE_TASK_THRESHOLD": GONE_SECONDS,
    "AIRFLOW__SCHEDULER__ZOMBIE_DETECTION_INTERVAL": "3",
    "AIRFLOW__SCHEDULER__JOB_HEARTBEAT_SEC": "2",
    "AIRFLOW__SCHEDULER__LOCAL_TASK_JOB_HEARTBEAT_SEC": "2",
}

# Its own password file costs a quarter of a second of each request, most of it for the password.
ANYBODY_2 = "AUTH_ROLE_PUBLIC = 'Admin'\n"

# A line of a log as 2.11 writes it, whose text may have several.
RECORD_2 = re.compile(
    r"^\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d{4})\] \{([^}]*)\} ([A-Z]+) - (.*(?:\n(?!\[\d{4}-).*)*)", re.M
)


@dataclass(frozen=True)
class Release:
    """One release, in an environment of its own whose interpreter is `python`."""

    version: str
    python: str

    @property
    def _old(self) -> bool:
        return self.version.startswith("2.")

    @property
    def retries_killed(self) -> bool:
        """A task whose process alone was killed has its next try; in 3.0 it has failed, whatever its retries are
        (`final_state` in airflow/sdk/execution_time/supervisor.py).
        """
        return not self.version.startswith("3.0.")

    @property
    def commands(self) -> Mapping[str, tuple[str, ...]]:
        return COMMANDS_2 if self._old else COMMANDS

    @property
    def servers(self) -> tuple[str, ...]:
        """The components that have a port."""
        return tuple(name for name in self.commands if name in ("api-server", "execution-api"))

    @property
    def settings(self) -> Mapping[str, str]:
        return SETTINGS_2 if self._old else {}

    @property
    def api(self) -> str:
        return "/api/v1" if self._old else "/api/v2"

    @property
    def health(self) -> str:
        return "health" if self._old else "monitor/health"

    def prepare(self, home: Path, environ: Mapping[str, str]) -> None:
        """Migrate the database of an Airflow's home."""
        if self._old:
            (home / "webserver_config.py").write_text(ANYBODY_2)
        done = subprocess.run(
            [self.python, "-m", "airflow", "db", "migrate"],
            env={**environ, **self.settings}, capture_output=True, text=True, timeout=PREPARE_SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def log_in(self, ask: Callable[..., Any], password: Callable[[], str]) -> str:
        """The token of all that comes; "" where none is needed."""
        if self._old:
            return ""
        token = ask("POST", "/auth/token", {"username": USER, "password": password()})["access_token"]
        return str(token)

    def run_of(self, run_id: str, conf: Mapping[str, Any]) -> dict[str, Any]:
        """The body of a new DAG run."""
        fields = {"dag_run_id": run_id, "conf": conf}
        return fields if self._old else {**fields, "logical_date": None}

    def clear_of(self, run_id: str, task_id: str) -> dict[str, Any]:
        """The body of a clear."""
        fields = {"dry_run": False, "dag_run_id": run_id, "task_ids": [task_id], "only_failed": False}
        return {**fields, "reset_dag_runs": True} if self._old else fields

    def state_of(self, state: str) -> dict[str, Any]:
        """The body of a change of a task's state."""
        return {"new_state": state, "dry_run": False} if self._old else {"new_state": state}

    def records(self, content: Any) -> list[dict[str, Any]]:
        """The records of a log, from what the API says of it."""
        if not self._old:
            return [record for record in content if isinstance(record, dict)]
        text = "\n".join(part for _, part in ast.literal_eval(content))
        return [{"timestamp": when, **_fields(said)} for when, _, _, said in RECORD_2.findall(text)]

    def worker_title(self, task: Mapping[str, Any]) -> str:
        """How the process begins its name in which a task's own code runs."""
        if self._old:
            return f"airflow task runner: {task['dag_id']} {task['task_id']} {task['dag_run_id']}"
        return f"airflow worker -- {task['id']}"

    def links(self, answer: Mapping[str, Any]) -> dict[str, str]:
        return dict(answer if self._old else answer["extra_links"])

    @property
    def value_query(self) -> str:
        return "&stringify=false" if self._old else ""


def _fields(said: str) -> dict[str, Any]:
    """The fields of a record of ours, which 2.11 has in the text."""
    found = re.match(r"\[((?:host|said|attempt) [^\]]*)\] ", said)
    fields = dict(field.split(" ", 1) for field in found[1].split(", ")) if found else {}
    return {**fields, "event": said[found.end() :] if found else said}


NEWEST = Release(version("apache-airflow"), sys.executable)
