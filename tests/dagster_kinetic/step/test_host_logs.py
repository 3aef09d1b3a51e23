"""A log of its own for each host: where Dagster keeps logs, where it keeps none, and where something is in the way."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from dagster_kinetic.step import host_logs
from dagster_kinetic.step.host_logs import HostLogs
from tests.dagster_kinetic.stored import messages


def run_op(instance: dg.DagsterInstance, body) -> dg.ExecuteInProcessResult:
    @dg.op
    def train(context):
        logs = HostLogs(context, lambda host: f"train [host {host}]")
        try:
            body(logs)
        finally:
            logs.close()

    @dg.job
    def training():
        train()

    return training.execute_in_process(instance=instance)


def logs_of(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> dict[str, str]:
    """The logs in the menu of the run's page, in its order, without the step's own."""
    found = {}
    manager = instance.compute_log_manager
    for event in result.all_events:
        if event.event_type_value != "LOGS_CAPTURED" or "[host" not in event.logs_captured_data.step_keys[0]:
            continue
        key = manager.build_log_key_for_run(result.run_id, event.logs_captured_data.file_key)
        assert manager.is_capture_complete(key)
        found[event.logs_captured_data.step_keys[0]] = (manager.get_log_data(key).stdout or b"").decode()
    return found


def stored(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> dg.ExecuteInProcessResult:
    """The result with the events that were logged outside the executor."""
    result._event_list = [entry.dagster_event for entry in instance.all_logs(result.run_id) if entry.is_dagster_event]
    return result


def test_each_host_has_its_own_in_their_order_whoever_speaks_first(instance):
    def body(logs):
        logs.write(2, b"two\n")
        logs.write(0, b"zero\nand again\n")
        logs.write(1, "eins, größer\n".encode())

    result = stored(instance, run_op(instance, body))
    assert list(logs_of(instance, result).items()) == [
        ("train [host 0]", "zero\nand again\n"),
        ("train [host 1]", "eins, größer\n"),
        ("train [host 2]", "two\n"),
    ]


def test_the_row_of_each_log_names_it(instance):
    result = stored(instance, run_op(instance, lambda logs: logs.write(1, b"line\n")))
    said = messages(instance, result)
    assert [f"Capturing the log of train [host {host}]." in said for host in range(2)] == [True, True]


def test_lines_can_be_read_while_the_step_runs(instance):
    seen = []

    def body(logs):
        logs.write(0, b"early\n")
        seen.extend(path.read_text() for path in Path(instance.storage_directory()).rglob("kinetic-*.out"))

    run_op(instance, body)
    assert seen == ["early\n"]


def test_so_many_get_a_log_and_the_others_are_told_once(instance, monkeypatch):
    monkeypatch.setattr(host_logs, "MOST_LOGS", 2)
    result = stored(instance, run_op(instance, lambda logs: [logs.write(host, b"line\n") for host in (3, 1, 2, 0, 3)]))
    assert list(logs_of(instance, result)) == ["train [host 0]", "train [host 1]"]
    assert sum("only 2 logs get an entry" in message for message in messages(instance, result)) == 1


def test_a_log_that_cannot_be_kept_is_told_and_the_step_goes_on(instance):
    def body(logs):
        storage = Path(instance.storage_directory())
        logs.write(0, b"line\n")
        [folder] = {path.parent for path in storage.rglob("kinetic-*.out")}
        moved = folder.rename(folder.with_name("elsewhere"))
        folder.write_text("no folder any more")
        logs.write(1, b"line\n")
        logs.write(1, b"line\n")
        folder.unlink()
        moved.rename(folder)

    result = run_op(instance, body)
    assert result.success
    told = [message for message in messages(instance, result) if "step's own output" in message]
    assert len(told) == 1 and "train [host 1] has no log of its own" in told[0]


def test_a_deployment_that_captures_nothing_has_none(new_instance):
    overrides = {
        "compute_logs": {
            "module": "dagster._core.storage.noop_compute_log_manager",
            "class": "NoOpComputeLogManager",
        }
    }
    with new_instance(overrides) as instance:
        result = stored(instance, run_op(instance, lambda logs: logs.write(0, b"line\n")))
        assert result.success and logs_of(instance, result) == {}


CLOUD = '''
"""A log manager as those of the clouds are: a file here, sent elsewhere when it is closed, and deleted."""

import os
import shutil

from dagster import StringSource
from dagster._core.storage.cloud_storage_compute_log_manager import CloudStorageComputeLogManager
from dagster._core.storage.compute_log_manager import ComputeIOType
from dagster._core.storage.local_compute_log_manager import IO_TYPE_EXTENSION, LocalComputeLogManager
from dagster._serdes import ConfigurableClass


class Folder(CloudStorageComputeLogManager, ConfigurableClass):
    def __init__(self, local, remote, inst_data=None):
        self._local, self._remote, self._inst_data = LocalComputeLogManager(local), remote, inst_data

    inst_data = property(lambda self: self._inst_data)
    local_manager = property(lambda self: self._local)
    upload_interval = property(lambda self: 1)

    @classmethod
    def config_type(cls):
        return {"local": StringSource, "remote": StringSource}

    @classmethod
    def from_config_value(cls, inst_data, config_value):
        return cls(inst_data=inst_data, **config_value)

    def _path(self, log_key, io_type, partial=False):
        name = "-".join(log_key) + "." + IO_TYPE_EXTENSION[io_type] + (".partial" if partial else "")
        return os.path.join(self._remote, name)

    def upload_to_cloud_storage(self, log_key, io_type, partial=False):
        path = self._local.get_captured_local_path(log_key, IO_TYPE_EXTENSION[io_type])
        if os.path.exists(path):
            shutil.copy(path, self._path(log_key, io_type, partial))

    def cloud_storage_has_logs(self, log_key, io_type, partial=False):
        return os.path.exists(self._path(log_key, io_type, partial))

    def download_from_cloud_storage(self, log_key, io_type, partial=False):
        path = self._local.get_captured_local_path(log_key, IO_TYPE_EXTENSION[io_type], partial=partial)
        shutil.copy(self._path(log_key, io_type, partial), path)

    def delete_logs(self, log_key=None, prefix=None): ...
    def download_url_for_type(self, log_key, io_type): ...
    def display_path_for_type(self, log_key, io_type): ...
'''


def test_a_log_manager_in_a_cloud_has_them_while_they_grow_and_whole_in_the_end(tmp_path, monkeypatch, new_instance):
    (tmp_path / "kinetic_test_cloud_logs.py").write_text(CLOUD)
    monkeypatch.syspath_prepend(tmp_path)
    remote = tmp_path / "remote"
    remote.mkdir()
    config = {"local": str(tmp_path / "local"), "remote": str(remote)}
    overrides = {"compute_logs": {"module": "kinetic_test_cloud_logs", "class": "Folder", "config": config}}
    partial = []

    def body(logs):
        import time

        logs.write(0, b"early\n")
        deadline = time.monotonic() + 60
        while not partial and time.monotonic() < deadline:
            partial.extend(filter(None, (path.read_text() for path in remote.glob("*kinetic-*.out.partial"))))
            time.sleep(0.1)
        logs.write(0, b"late\n")

    with new_instance(overrides) as instance:
        result = run_op(instance, body)
        assert result.success
    assert partial[0] == "early\n"
    assert [path.read_text() for path in remote.glob("*kinetic-*.out")] == ["early\nlate\n"]
