"""The startup script: what a VM does at each boot before its agent is there, and without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.platforms.shared import agent_zip
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.assignment import Assignment
from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.testing.model.state.machine import Machine
from tests.support.faults import load_jobs
from tests.support.interpreters import OLDEST, required
from tests.support.jobs import ALL_OF_THE_AGENT
from tests.support.on_vms import Site
from tests.support.waits import wait_until


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_jobs(tmp_path_factory.mktemp("boot") / "project", "boot_jobs")


def test_the_script_is_small_and_needs_nothing_of_this_package() -> None:
    source = Path(bootstrap.__file__).read_text(encoding="utf-8")
    assert len(source.encode()) < 32 << 10
    assert "import kinetic" not in source
    assert "from kinetic" not in source


def test_an_answer_that_breaks_off_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a record or an agent that was cut on its way would be taken for one that somebody has changed."""
    from kinetic_orchestration.host.machine.bucket_records import CloudRecords

    whole = b'{"a": 1}' * 100
    cuts = [7]

    class Cutting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(whole)))
            self.send_header("X-Goog-Generation", "1700000000000000")
            self.send_header("Last-Modified", "Tue, 14 Nov 2023 22:13:20 GMT")
            self.end_headers()
            self.wfile.write(whole[: cuts.pop()] if cuts else whole)
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Cutting) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_port}"
            assert bootstrap.exchange("GET", address).status == 0
            assert bootstrap.exchange("GET", address).data == whole
            cuts.append(7)
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
            record = CloudRecords("gs://bucket/prod").read("jobs/job-1/in/spec.json")
            assert record is not None
            assert record.data == whole
            assert not cuts
        finally:
            server.shutdown()
            thread.join()


def test_its_words_are_an_assignment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_ROOT", str(tmp_path))
    told = {
        "store": "gs://b/prod", "job": "job-1", "attempt": 2, "hosts": 4, "spec": "0" * 64, "boot": "b",
        "resource": "projects/p/locations/z/queuedResources/q", "deadline": 1.5e9,
    }  # fmt: skip
    at = Assignment.from_words(bootstrap.agent_arguments(told, 3))
    assert (at.store, at.job, at.attempt, at.host, at.hosts) == ("gs://b/prod", "job-1", 2, 3, 4)
    assert (at.boot, at.resource, float(at.deadline)) == ("b/3", told["resource"], 1.5e9)
    assert at.run == str(tmp_path / "var/lib/kinetic/run/job-1-2")
    assert Path(at.run).is_dir()


@pytest.mark.parametrize(
    "endpoints", ["10.0.0.1,10.0.0.2", "w-0:0:10.0.0.1,w-1:1:10.0.0.2", " 10.0.0.1 , 10.0.0.2", "10.0.0.1,10.0.0.2,"]
)
def test_both_formats_of_the_workers_addresses_are_read(endpoints: str) -> None:
    assert bootstrap.addresses(endpoints)[:2] == ["10.0.0.1", "10.0.0.2"]


@pytest.mark.slow
def test_at_the_deadline_a_vm_deletes_its_slice_though_its_agent_never_came(site: Site, jobs: Any) -> None:
    attempt = site.admit(jobs.attempt)
    site.storage.fail(f"get *{attempt.agent}", status=503, times=None)
    site.apis.refusals = [503] * 1000  # until its console was seen
    attempt.start(deadline=time.time() + 2.0)
    wait_until(lambda: "the deletion of" in attempt.vms[0].console())
    site.apis.refusals = []
    attempt.gone()
    assert site.records.read(names.host(attempt.job, 1, 0, "started.json")) is None


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [600.0, -600.0])
def test_the_deadline_goes_by_the_stores_clock(site: Site, jobs: Any, tmp_path: Path, ahead: float) -> None:
    attempt = site.admit(jobs.until, str(tmp_path / "never"))
    began = time.monotonic()
    attempt.start(machine={"clock_skew": ahead}, deadline=time.time() + 3.0)
    attempt.gone()
    assert 1.5 < time.monotonic() - began < 30.0


def test_where_the_store_is_silent_its_last_word_is_gone_on_from_and_not_this_machines_clock(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = bootstrap.store_time()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    monkeypatch.setattr(time, "time", lambda: told + 3600.0)
    assert told <= bootstrap.store_time() < told + 30.0


@pytest.mark.parametrize(("lost", "patience", "believed"), [(2, 60.0, "the store"), (99, 0.5, "itself")])
def test_before_the_stores_first_word_a_machine_asks_again_and_trusts_its_own_clock_last(
    monkeypatch: pytest.MonkeyPatch, lost: int, patience: float, believed: str
) -> None:
    answers = [False] * lost

    class Losing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if answers:
                answers.pop()
                self.close_connection = True
            else:
                self.send_response(401)  # nobody's word but the time is asked for
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    truth = time.time()
    monkeypatch.setattr(bootstrap, "_heard", (0.0, 0.0))
    monkeypatch.setattr(bootstrap, "FIRST_WORD", patience)
    monkeypatch.setattr(time, "time", lambda: truth + 3600.0)
    with ThreadingHTTPServer(("127.0.0.1", 0), Losing) as server:
        monkeypatch.setattr(Losing, "date_time_string", lambda _self: formatdate(truth, usegmt=True))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
        try:
            told = bootstrap.store_time()
        finally:
            server.shutdown()
    assert told - truth == pytest.approx(0.0 if believed == "the store" else 3600.0, abs=60.0)


def test_a_metadata_server_that_talks_nonsense_ends_neither_the_deadline_nor_the_money(
    site: Site, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard of the deadline makes one try here; it repeats it until the slice is gone."""

    def confused() -> dict[str, str]:
        raise ValueError("this is no JSON")

    monkeypatch.setattr(bootstrap, "authorization", confused)
    resource = "projects/p/locations/z/queuedResources/q"
    assert not bootstrap._is_deleted((resource, 1, 0), 0.0)
    assert [bootstrap._is_gone(url, []) for url in bootstrap.parts(resource)] == [False, False]


class Metadata(ThreadingHTTPServer):
    """Gives these answers one after another: a status, whether it is Google's, and a body."""

    def __init__(self, *answers: tuple[int, bool, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Metadata)
        self.answers = list(answers)

    def __enter__(self) -> Metadata:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Metadata(BaseHTTPRequestHandler):
    server: Metadata

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        status, google, body = self.server.answers.pop(0)
        self.send_response(status)
        if google:
            self.send_header("Metadata-Flavor", "Google")
        self.end_headers()
        self.wfile.write(body)


def test_a_token_that_is_nonsense_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "_token", ("", 0.0))
    bodies = (
        b"<html>",
        b"[]",
        b'{"access_token": "a", "expires_in": "soon"}',
        b'{"access_token": "a", "expires_in": 9}',
    )
    with Metadata(*((200, True, body) for body in bodies)) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
        assert [bootstrap.token(fresh=True) for _ in bodies] == ["", "", "", "a"]
        assert bootstrap.has_token()


def test_a_metadata_server_that_does_not_answer_is_asked_until_it_says_what_there_is_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "FETCH_PATIENCE", 0.0)
    monkeypatch.setattr(bootstrap, "RETRY", 0.01)
    with Metadata((503, False, b""), (200, False, b"a portal"), (403, True, b""), (404, True, b"")) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
        with pytest.raises(SystemExit):
            bootstrap.main()
        assert server.answers == []
    said = capsys.readouterr().out
    assert said.count("is asked again") == 3
    assert "does nothing" in said


WITHOUT_FORK = """
import errno, os, runpy, sys
def fork(): raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
os.fork = fork
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.parametrize("lacks", ["a disk", "a process", "a disk and sense"])
def test_a_machine_that_cannot_even_arm_its_deletion_is_deleted_at_once(
    site: Site, jobs: Any, tmp_path: Path, lacks: str
) -> None:
    attempt = site.admit(jobs.attempt)
    told = attempt.told()
    if "sense" in lacks:
        del told["wire"]  # so that nobody can be told
    metadata = {"kinetic": json.dumps(told)}
    vm = site.machines.create(Machine("emulated", "z", attempt.name, "v4-8", "2x2x1", "b", metadata=metadata))
    command, environ = [sys.executable, "-I", bootstrap.__file__], dict(vm._environ)
    if lacks == "a process":
        command = [sys.executable, "-c", WITHOUT_FORK, bootstrap.__file__]
    else:
        (tmp_path / "var").touch()
        environ["KINETIC_ROOT"] = str(tmp_path)
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert len(site.apis.deleted) == 1
    if "sense" not in lacks:
        verdict = attempt.verdict()
        assert verdict.cause == wire.INFRASTRUCTURE
        assert verdict.reason.startswith("host 0 could not start: [Errno")


@pytest.mark.slow
def test_the_deadline_survives_agent_and_script(site: Site, jobs: Any, tmp_path: Path) -> None:
    for seconds in (6.0, 30.0):  # a machine may be too busy to come so far before the first
        attempt = site.admit(jobs.until, str(tmp_path / "never")).start(deadline=time.time() + seconds)
        wait_until(lambda of=attempt: "running" in of.log() or of.resource not in site.apis.on_delete)
        if attempt.vms[0].kill(ALL_OF_THE_AGENT):
            break
    attempt.gone()
    assert site.records.read(names.verdict(attempt.job, 1)) is None


def test_a_script_that_runs_twice_arms_one_deletion_and_one_agent(site: Site, jobs: Any, tmp_path: Path) -> None:
    attempt = site.admit(jobs.until, str(tmp_path / "go")).start()
    vm = attempt.vms[0]
    wait_until(lambda: "running" in attempt.log())

    def of_ours() -> list[str]:
        found = (Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in vm.processes())
        return sorted(b" ".join(words[2:3]).decode().rpartition("/")[2] for words in found)

    before = of_ours()
    again = subprocess.run(
        [sys.executable, "-I", str(vm.root / "var/lib/kinetic/boot.py")], env=vm._environ, timeout=60
    )
    assert again.returncode == 0
    assert of_ours() == before
    (tmp_path / "go").touch()
    assert attempt.verdict().kind == wire.COMMITTED


def test_an_agent_that_is_here_already_is_not_fetched_again(site: Site, jobs: Any, tmp_path: Path) -> None:
    attempt = site.admit(jobs.until, str(tmp_path / "never")).start()
    wait_until(lambda: "running" in attempt.log())
    site.storage.forget()
    attempt.vms[0].reboot()
    attempt.gone()
    assert not [call for call in site.storage.calls if attempt.agent in call.where]


def test_a_vm_that_cannot_delete_itself_says_so_on_its_console(site: Site, jobs: Any) -> None:
    site.apis.refusals = [403] * 1000
    attempt = site.admit(jobs.attempt)
    site.storage.fail(f"get *{attempt.agent}", status=404, times=None)
    attempt.start()
    wait_until(lambda: "COSTS MONEY" in attempt.vms[0].console())
    assert "roles/tpu.admin" in attempt.vms[0].console()
    assert attempt.verdict().reason.startswith("host 0 could not start: the agent could not be fetched")


def test_an_agent_that_cannot_begin_is_told_and_the_deadline_stays(
    site: Site, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program of the startup script can fail, too, and no other process would report it."""
    monkeypatch.setattr(agent_zip, "_MAIN", "import a_module_that_is_nowhere\n")
    site.apis.refusals = [503] * 1000  # until its processes were seen
    attempt = site.admit(jobs.attempt).start()
    verdict = attempt.verdict()
    assert (verdict.kind, verdict.cause) == (wire.ABORTED, wire.INFRASTRUCTURE)
    assert verdict.reason.startswith("host 0 could not start: ModuleNotFoundError: No module named 'a_module_that")
    assert attempt.vms[0].kill("^kinetic-end$", 0)  # it is there
    site.apis.refusals = []
    attempt.gone()


def test_an_agent_of_another_version_that_has_this_module_elsewhere_is_become_all_the_same(
    site: Site, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script is of whoever submitted this attempt, and the agent of whoever submitted the first."""
    own = bootstrap.NAME.replace(".", "/")
    sources = agent_zip._sources(agent_zip.PACKAGE)
    there = [(name, path) for name, path in sources if name != f"{own}.py"]
    moved = sorted([*there, (f"{own}/__init__.py", Path(bootstrap.__file__))])
    assert len(moved) == len(sources) == len(there) + 1
    monkeypatch.setattr(agent_zip, "_sources", lambda package: moved)
    attempt = site.admit(jobs.attempt).start()
    assert attempt.verdict().kind == wire.COMMITTED, attempt.verdict()
    attempt.gone()


def test_a_container_that_cannot_be_started_is_told(site: Site, jobs: Any, tmp_path: Path) -> None:
    """The docker here is gone once it has pulled."""
    attempt = site.admit(jobs.attempt)
    told = {"kinetic": json.dumps(attempt.told(image="r/i:1"))}
    vm = site.machines.create(Machine("emulated", "us-central2-b", attempt.name, "v4-8", "2x2x1", "b", metadata=told))
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\nrm "$0"\n')
    docker.chmod(0o755)
    environ = {**vm._environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    try:
        done = subprocess.run(
            [sys.executable, "-I", bootstrap.__file__],
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        said = f"{docker} could not be started: No such file or directory"
        assert said in done.stdout
        assert attempt.verdict().reason == f"host 0 could not start: {said}"
        assert len(site.apis.deleted) == 1
    finally:
        for process in processes.marked(f"KINETIC_ROOT={vm.root}"):
            processes.send(process.pid, 9)


def test_a_program_starts_ahead_in_the_python_that_it_needs_if_the_machine_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", f"/nowhere:{tmp_path}")
    other = tmp_path / "python3.99"
    other.touch(mode=0o755)
    (tmp_path / "python3.98").touch(mode=0o644)
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    told = {
        "store": "",
        "job": "job-1",
        "attempt": 1,
        "hosts": 1,
        "spec": "",
        "boot": "",
        "resource": "",
        "deadline": 0,
    }
    for python, expected in (
        ({}, sys.executable),
        ({"python": ""}, sys.executable),
        ({"python": own}, sys._base_executable),  # type: ignore[attr-defined]
        ({"python": "3.99"}, str(other)),
        ({"python": "3.98"}, ""),
        ({"python": None}, ""),
        ({"python": "3.99", "image": "r/i:1"}, ""),
    ):
        assert Assignment.from_words(bootstrap.agent_arguments({**told, **python}, 0)).python == expected


def test_a_vm_that_is_told_nothing_does_nothing(site: Site) -> None:
    from kinetic_orchestration.platforms.google.vms import startup_script

    vm = site.machines.create(
        Machine("emulated", "z", "n", "v4-8", "2x2x1", "base", metadata={"startup-script": startup_script()})
    )
    wait_until(lambda: "does nothing" in vm.console())
    wait_until(lambda: vm.processes() == [])


def test_no_token_is_ever_said(site: Site, jobs: Any) -> None:
    attempt = site.admit(jobs.attempt).start()
    attempt.verdict()
    assert "emulator-token" not in attempt.vms[0].console()
    assert "emulator-token" not in attempt.log(kinds="oen")


def test_an_old_python_is_enough(site: Site, jobs: Any) -> None:
    required(OLDEST)
    attempt = site.admit(argv=["python", "-c", "import sys; print(sys.version_info[:2])"], task={"python": ""})
    attempt.start(machine={"python": "3.10"})
    assert attempt.verdict().kind == wire.COMMITTED, attempt.verdict()
    assert attempt.log() == "(3, 10)\n"
    attempt.gone()


def test_a_named_image_runs_the_same_agent(site: Site, jobs: Any, tmp_path: Path) -> None:
    """The docker here only writes down its arguments."""
    attempt = site.admit(jobs.attempt)
    vm = site.machines.create(
        Machine(
            "emulated", "us-central2-b", attempt.name, "v4-8", "2x2x1", "base",
            metadata={"kinetic": json.dumps(attempt.told(image="europe-docker.pkg.dev/p/r/image:1"))},
        )
    )  # fmt: skip
    programs = tmp_path / "programs"
    programs.mkdir()
    docker = programs / "docker"
    docker.write_text(
        f"#!/usr/bin/env python3\nimport json, os, sys\nwords = sys.argv[1:]\n"
        "config = open(words[1] + '/config.json').read() if words[0] == '--config' else ''\n"
        "private = sys.stdin.read() if 'run' in words else ''\n"
        f"open({str(tmp_path / 'told')!r}, 'a').write(json.dumps([words, config, private]) + '\\n')\n"
    )
    docker.chmod(0o755)
    environ = {**vm._environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-I", bootstrap.__file__], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    try:
        assert (done.returncode, done.stderr) == (0, "")
        (pull, config, _), (run, _, private) = map(json.loads, (tmp_path / "told").read_text().splitlines())
        home = str(vm.root / "var/lib/kinetic")
        assert pull[2:] == ["pull", "--quiet", "europe-docker.pkg.dev/p/r/image:1"]
        assert list(json.loads(config)["auths"]) == ["https://europe-docker.pkg.dev"]
        assert not Path(pull[1], "config.json").exists()
        at = run.index("europe-docker.pkg.dev/p/r/image:1")
        assert {"--privileged", "--network=host", "--interactive", f"--volume={home}:{home}"} <= set(run[:at])
        assert {"--ulimit=memlock=-1", "--ulimit=nofile=1048576"} <= set(run[:at])  # chips are driven by locked memory
        assert {"--env=KINETIC_ROOT", "--env=GCE_METADATA_HOST", "--env=STORAGE_EMULATOR_HOST"} <= set(run[:at])
        assert run[at + 1] == "-I"
        assert run[at + 2] == f"{home}/agent/{attempt.agent}.zip"
        assert Assignment.from_words(run[at + 3 :]).job == attempt.job
        assert private == "{}"
        assert "emulator-token" not in " ".join(run) + " ".join(pull) + done.stdout
    finally:
        for process in processes.marked(f"KINETIC_ROOT={vm.root}"):
            processes.send(process.pid, 9)


@pytest.mark.parametrize(
    ("code", "says", "cause", "advice"),
    [
        (
            127,
            'exec: "python3": executable file not found in $PATH',
            wire.CONFIGURATION,
            "name an image that has Python",
        ),
        (125, "docker: Error response from daemon: no space left on device", wire.INFRASTRUCTURE, "docker itself"),
        (137, "of a machine that is taken away", wire.PREEMPTION, "SIGKILL"),
    ],
)
def test_a_container_that_does_not_run_is_told_in_dockers_words_and_the_slice_is_deleted(
    site: Site, jobs: Any, tmp_path: Path, code: int, says: str, cause: str, advice: str
) -> None:
    attempt = site.admit(jobs.attempt)
    told = json.dumps(attempt.told(image="r/i:1", deadline=time.time() + 60.0))
    vm = site.machines.create(
        Machine("emulated", "us-central2-b", attempt.name, "v4-8", "2x2x1", "base", metadata={"kinetic": told})
    )
    docker = tmp_path / "docker"
    vm.metadata.change(preempted=cause == wire.PREEMPTION)
    docker.write_text(f"#!/bin/sh\n[ \"$1\" = run ] || exit 0\necho '{says}' >&2\nexit {code}\n")
    docker.chmod(0o755)
    environ = {**vm._environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-I", bootstrap.__file__], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    for process in processes.marked(f"KINETIC_ROOT={vm.root}"):
        processes.send(process.pid, 9)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.count(says) == 2  # on the console as docker said it, and why this host gives up
    verdict = attempt.verdict()
    assert (verdict.kind, verdict.cause, verdict.host) == (wire.ABORTED, cause, 0)
    assert verdict.reason.startswith(f"host 0 has lost its container: docker run r/i:1 ended with exit code {code} (")
    assert says in verdict.reason
    assert advice in verdict.reason
    assert site.apis.deleted, "the slice was left"


@pytest.mark.parametrize("status", ["STOPPING", "RUNNING"])
def test_a_vm_that_is_shut_down_ends_its_container_first_and_leaves_it_to_others_to_say_whose_doing_that_was(
    site: Site, jobs: Any, tmp_path: Path, status: str
) -> None:
    """The same end of a container on a VM that is to stay is told by its host."""
    attempt = site.admit(jobs.attempt)
    own = f"projects/emulated/zones/us-central2-b/instances/{attempt.name}"
    told = json.dumps(attempt.told(image="r/i:1", resource=own, deadline=time.time() + 60.0))
    vm = site.machines.create(
        Machine("emulated", "us-central2-b", attempt.name, "v4-8", "2x2x1", "base", metadata={"kinetic": told})
    )
    name = vm.machine.name
    site.apis.answers[f"GET /compute/v1/{own.rpartition('/')[0]}/{name}"] = 200, {"name": name, "status": status}
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\n[ "$1" = run ] || exit 0\nexit 143\n')
    docker.chmod(0o755)
    environ = {**vm._environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-I", bootstrap.__file__], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    for process in processes.marked(f"KINETIC_ROOT={vm.root}"):
        processes.send(process.pid, 9)
    assert (done.returncode, done.stderr) == (1, "")
    assert "docker run r/i:1 ended with exit code 143" in done.stdout, "it is on the console all the same"
    record = site.records.read(names.verdict(attempt.job, 1))
    assert (record is None) == (status == "STOPPING")
    assert site.apis.deleted, "the VM was left"


FLAKY = """#!/bin/sh
[ "$3" = pull ] || exit 9
echo x >> {told}
[ $(wc -l < {told}) -gt 2 ] && exit 0
echo 'error pulling image: net/http: TLS handshake timeout'
exit 1
"""


def test_a_pull_that_fails_in_passing_is_made_again_and_one_that_is_refused_is_told_with_the_registrys_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_ROOT", str(tmp_path))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    monkeypatch.setattr(bootstrap, "token", lambda fresh=False: "")
    docker, told = tmp_path / "docker", tmp_path / "told"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    docker.write_text(FLAKY.format(told=told))
    docker.chmod(0o755)
    assert "r/i:1" in bootstrap.in_container("r/i:1", ["python3", "-I", "agent"])
    assert told.read_text().count("x") == 3
    for says, expected in (
        ("Error response from daemon: pull access denied for r/i", "artifactregistry.reader"),
        ("Error response from daemon: manifest for r/i:1 not found: manifest unknown", "there is no image r/i:1"),
        ("invalid reference format: repository name (library/I) must be lowercase", "there is no image r/i:1"),
        ("name invalid: Request contains an invalid argument.", "there is no image r/i:1"),
    ):
        docker.write_text(f"#!/bin/sh\necho x >> {told}\necho '{says}' >&2\nexit 1\n")
        told.unlink()
        with pytest.raises(bootstrap.Unusable) as refused:
            bootstrap.in_container("r/i:1", ["python3", "-I", "agent"])
        assert says in str(refused.value)
        assert expected in str(refused.value)
        assert refused.value.cause == wire.CONFIGURATION
        assert told.read_text() == "x\n"  # nothing of this passes
        assert not list((tmp_path / "var/lib/kinetic/docker").iterdir())
    docker.write_text("#!/bin/sh\necho 'toomanyrequests: slow down'\nexit 1\n")
    monkeypatch.setattr(bootstrap, "PULL_PATIENCE", 0.5)
    with pytest.raises(bootstrap.Failed, match="toomanyrequests") as failed:
        bootstrap.in_container("r/i:1", ["python3", "-I", "agent"])
    assert failed.value.cause == wire.INFRASTRUCTURE
    docker.write_text("#!/bin/sh\necho 'dial tcp: lookup registry.exmaple: no such host'\nexit 1\n")
    with pytest.raises(bootstrap.Unusable, match=r"within 0 s.*no such host"):
        bootstrap.in_container("registry.exmaple/i:1", ["python3", "-I", "agent"])


def test_a_machine_without_docker_is_no_matter_of_another_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(bootstrap.Failed, match=r"no docker on this VM to run r/i:1 with.*runtime_version") as failed:
        bootstrap.in_container("r/i:1", ["python3", "-I", "agent"])
    assert failed.value.cause == wire.CONFIGURATION


@pytest.mark.parametrize(
    ("image", "given"),
    [
        ("us-docker.pkg.dev/p/r/i:1", "us-docker.pkg.dev"),
        ("pkg.dev/i", "pkg.dev"),
        ("EU.gcr.io/p/i@sha256:0", "EU.gcr.io"),
        ("gcr.io:443/p/i", "gcr.io:443"),
        ("evilpkg.dev/p/i", ""),
        ("us-docker.evilpkg.dev/p/i", ""),
        ("evilgcr.io/p/i", ""),
        (".gcr.io/p/i", ""),
        ("pkg.dev.evil.example/p/i", ""),
        ("gcr.io:80/p/i", ""),
        ("evil.example:443/gcr.io/i", ""),
        ("gcr.io@evil.example/p/i", ""),
    ],
)
def test_only_googles_registries_are_given_the_token_of_this_vm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: str, given: str
) -> None:
    monkeypatch.setenv("KINETIC_ROOT", str(tmp_path))
    monkeypatch.setattr(bootstrap, "token", lambda fresh=False: "secret")
    (tmp_path / "docker").write_text(f'#!/bin/sh\ncat "$2/config.json" > {tmp_path}/told\n')
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    bootstrap.in_container(image, ["python3", "-I", "agent"])
    auths = json.loads((tmp_path / "told").read_text())["auths"]
    assert list(auths) == ([f"https://{given}"] if given else [])


@pytest.mark.slow
def test_a_slice_is_gone_when_both_the_queued_resource_and_the_node_answer_404(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cloud that forgets the queued resource and leaves its node behind: seen, and the node is deleted."""
    asked: list[str] = []
    there = {"nodes/q"}

    class Api(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def answer(self) -> None:
            name = "/".join(self.path.partition("?")[0].split("/")[-2:])
            asked.append(f"{self.command} {name}")
            self.send_response(200 if name in there else 404)
            self.end_headers()
            self.wfile.write(b"{}")
            if self.command == "DELETE":
                there.discard(name)

        do_GET = do_DELETE = answer

    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as api:
        threading.Thread(target=api.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        monkeypatch.setenv("KINETIC_EMULATOR", f"http://127.0.0.1:{api.server_port}")
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{api.server_port}")
        bootstrap.end_slice("projects/p/locations/z/queuedResources/q", longest=0.1)
        api.shutdown()
    calls = [call for call in asked if "tpu-env" not in call and "token" not in call]
    assert calls[:3] == ["DELETE queuedResources/q", "GET queuedResources/q", "DELETE nodes/q"]
    assert calls[-1] == "GET nodes/q"
    assert not there


# ---- instances of Compute Engine -------------------------------------------------------------------------------

INSTANCE = "projects/p/zones/z/instances/kinetic-1"
GROUP = "projects/p/zones/z/instanceGroupManagers/kinetic-1"
OF_COMPUTE = "https://compute.googleapis.com/compute/v1"


@pytest.mark.parametrize(
    ("resource", "hosts", "host", "expected"),
    [
        (INSTANCE, 1, 0, [f"{OF_COMPUTE}/{INSTANCE}"]),
        (INSTANCE, 3, 0, [f"{OF_COMPUTE}/{INSTANCE}-{number}" for number in (1, 2, 0)]),
        (INSTANCE, 3, 1, [f"{OF_COMPUTE}/{INSTANCE}-{number}" for number in (0, 2, 1)]),
        (GROUP, 1, 0, [f"{OF_COMPUTE}/{GROUP}"]),
        (GROUP, 3, 1, [f"{OF_COMPUTE}/{GROUP}-{number}" for number in (0, 2, 1)]),
        ("projects/p/locations/z/queuedResources/q", 4, 2,
         ["https://tpu.googleapis.com/v2/projects/p/locations/z/queuedResources/q?force=true",
          "https://tpu.googleapis.com/v2/projects/p/locations/z/nodes/q"]),
    ],
)  # fmt: skip
def test_what_a_resource_is_made_of_is_deleted_with_this_host_last(
    monkeypatch: pytest.MonkeyPatch, resource: str, hosts: int, host: int, expected: list[str]
) -> None:
    monkeypatch.delenv("KINETIC_EMULATOR", raising=False)
    assert bootstrap.parts(resource, hosts, host) == expected


def test_an_instance_of_several_knows_its_number_by_its_orders_and_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "metadata", None)  # which is not called
    assert bootstrap.host_number({"host": 3, "slices": 1, "hosts_per_slice": 4, "resource": INSTANCE}) == 3


ENV = "instance/attributes/tpu-env"
WORKER = "instance/attributes/agent-worker-number"
ENDPOINTS = "instance/attributes/worker-network-endpoints"


@pytest.mark.parametrize(
    ("slices", "name", "told", "number"),
    [
        (1, "kinetic-1-003", {WORKER: "2"}, 2),
        (1, "kinetic-1-003", {WORKER: "1", ENV: "WORKER_ID: '2'"}, 1),
        (1, "kinetic-1-003", {ENV: "WORKER_ID: '0'\nNODE_ID: 'kinetic-1'"}, 0),
        (1, "kinetic-1-003", {ENDPOINTS: "10.0.0.1,10.0.0.2", "instance/network-interfaces/0/ip": "10.0.0.2"}, 1),
        (1, "kinetic-1-003", {}, 2),
        (2, "kinetic-1-0-004", {WORKER: "3"}, 3),
        (2, "kinetic-1-1-001", {WORKER: "0", ENV: "NODE_ID: 'whatever'"}, 4),
        (2, "kinetic-1-1-004", {}, 7),
        (12, "kinetic-1-10-002", {WORKER: "1"}, 41),
    ],
)
def test_a_member_of_a_group_knows_its_slice_by_its_name_and_its_worker_as_on_cloud_tpu_or_else_by_its_name(
    monkeypatch: pytest.MonkeyPatch, slices: int, name: str, told: dict[str, str], number: int
) -> None:
    monkeypatch.setattr(bootstrap, "metadata", {"instance/name": name, **told}.get)
    assert bootstrap.host_number({"slices": slices, "hosts_per_slice": 4, "resource": GROUP}) == number


@pytest.mark.parametrize(
    ("resource", "hosts", "host", "shape", "expected"),
    [
        (GROUP, 4, 3, {}, (1, 0)),
        (GROUP, 8, 3, {"slices": 2}, (2, 0)),
        (GROUP, 8, 4, {"slices": 2}, (2, 1)),
        (INSTANCE, 4, 3, {}, (4, 3)),
        (INSTANCE, 4, 3, {"processes": 4}, (1, 0)),
        (INSTANCE, 8, 3, {"processes": 4}, (2, 0)),
        (INSTANCE, 8, 4, {"processes": 4}, (2, 1)),
    ],
)
def test_what_is_deleted_in_the_end_is_as_many_groups_as_there_are_slices_or_the_instances(
    resource: str, hosts: int, host: int, shape: dict[str, int], expected: tuple[int, int]
) -> None:
    at = Assignment("s", "job-1", 1, host, hosts, "", "b", "r", "h", "", "A=b", resource, **shape)
    assert Assignment.from_words(at.words()).unit() == expected


def test_the_hosts_of_a_machine_follow_each_other_and_each_has_its_own_boot_and_records() -> None:
    first = Assignment("s", "job-1", 1, 4, 8, "d", "boot/4", "r", "h", "", "A=b=c", INSTANCE, "1.5", processes=4)
    second = first.next()
    assert (second.host, second.boot, second.marker, second.deadline) == (5, "boot/5", "A=b=c", "1.5")
    assert second.own("x") == names.host("job-1", 1, 5, "x")
    assert second.next().next().unit() == first.unit() == (2, 1)


@pytest.mark.parametrize(
    "orders",
    [
        {"hosts": "many"},
        {"slices": "some"},
        {"host": None},
        {"resource": "this VM"},
        {"resource": 7},
        {"processes": "some"},
    ],
)
def test_orders_by_which_a_vm_could_not_be_deleted_are_none(orders: dict[str, Any]) -> None:
    whole = {"resource": INSTANCE, "deadline": 1.5e9, "hosts": 2, "host": 1}
    google = {"Metadata-Flavor": "Google"}
    assert bootstrap._orders(bootstrap.Reply(200, google, json.dumps(whole).encode())) == whole
    assert bootstrap._orders(bootstrap.Reply(200, google, json.dumps({**whole, **orders}).encode())) is None


class Instances(ThreadingHTTPServer):
    """As Compute Engine deletes instances: an answer to a delete call comes at once, and the instance goes later."""

    daemon_threads = True

    def __init__(self, *names: str, looks: int = 1, refusals: dict[str, list[tuple[int, str]]] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Instances)
        self.states = dict.fromkeys(names, "RUNNING")
        self.looks = looks  # at an instance, for which it goes on as if nothing had been asked for
        self.refusals = refusals or {}
        self.calls: list[str] = []

    def __enter__(self) -> Instances:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Instances(BaseHTTPRequestHandler):
    server: Instances

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def answer(self) -> None:
        if "/compute/v1/" not in self.path:  # the token
            self._answer(404, {})
            return
        server, name = self.server, self.path.rpartition("/")[2]
        server.calls.append(f"{self.command} {name}")
        if self.command == "DELETE" and server.refusals.get(name):
            status, reason = server.refusals[name].pop(0)
            self._answer(status, {"error": {"code": status, "message": reason, "errors": [{"reason": reason}]}})
        elif name not in server.states:
            self._answer(404, {"error": {"code": 404, "message": f"'{name}' was not found"}})
        elif self.command == "DELETE":
            server.states[name] = "STOPPING"
            self._answer(200, {"kind": "compute#operation", "status": "RUNNING"})
        else:
            state = server.states[name]
            if state == "STOPPING" and server.looks > 0:
                server.looks -= 1
                state = "RUNNING"
            actions = {"currentActions": {"none": 4, "deleting": 4 * (state == "STOPPING")}}
            self._answer(200, {"name": name, **(actions if bootstrap.GROUPS in self.path else {"status": state})})

    do_GET = do_DELETE = answer


@pytest.fixture
def swift(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)


def at(api: Instances, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "_token", ("", 0.0))
    monkeypatch.setenv("KINETIC_EMULATOR", f"http://127.0.0.1:{api.server_port}/secret")
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{api.server_port}")


def test_a_host_of_several_deletes_the_others_first_and_itself_once_those_are_on_their_way(
    monkeypatch: pytest.MonkeyPatch, swift: None
) -> None:
    """Whoever of them is left frees all, and is not gone before it has done so."""
    taken: list[int] = []
    with Instances("kinetic-1-0", "kinetic-1-1", "kinetic-1-2", looks=3) as api:
        at(api, monkeypatch)
        bootstrap.end_slice(INSTANCE, 3, 1, taken=lambda: taken.append(len(api.calls)))
        assert set(api.states.values()) == {"STOPPING"}
    own = api.calls.index("DELETE kinetic-1-1")
    before = api.calls[:own]
    assert api.calls[:2] == ["DELETE kinetic-1-0", "GET kinetic-1-0"]
    assert {"DELETE kinetic-1-0", "DELETE kinetic-1-2"} < set(before)
    assert before.count("DELETE kinetic-1-0") >= 2, "an instance that still runs is not on its way"
    assert taken == [1]


def test_a_host_of_several_slices_deletes_the_other_groups_first_and_its_own_once_those_are_on_their_way(
    monkeypatch: pytest.MonkeyPatch, swift: None
) -> None:
    """Of each group one call ends all hosts, and a group is there until the last of them is gone."""
    with Instances("kinetic-1-0", "kinetic-1-1", looks=2) as api:
        at(api, monkeypatch)
        bootstrap.end_slice(GROUP, 2, 0)
        assert set(api.states.values()) == {"STOPPING"}
    before = api.calls[: api.calls.index("DELETE kinetic-1-0")]
    assert before == ["DELETE kinetic-1-1", "GET kinetic-1-1"] * 3, "members that stay are not on their way"


def test_a_group_of_another_slice_that_cannot_be_freed_keeps_no_slice_alive(
    monkeypatch: pytest.MonkeyPatch, swift: None
) -> None:
    refusals = {"kinetic-1-0": [(400, "The resource is not ready")] * 1000}
    with Instances("kinetic-1-0", "kinetic-1-1", looks=0, refusals=refusals) as api:
        at(api, monkeypatch)
        bootstrap.end_slice(GROUP, 2, 1)
    assert api.states == {"kinetic-1-0": "RUNNING", "kinetic-1-1": "STOPPING"}


def test_instances_that_are_gone_already_or_never_came_keep_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, swift: None
) -> None:
    with Instances("kinetic-1-0", looks=0) as api:
        at(api, monkeypatch)
        bootstrap.end_slice(INSTANCE, 3, 0)
    assert api.calls == [
        "DELETE kinetic-1-1", "GET kinetic-1-1", "DELETE kinetic-1-2", "GET kinetic-1-2",
        "DELETE kinetic-1-0", "GET kinetic-1-0",
    ]  # fmt: skip


def test_a_host_that_cannot_free_another_one_frees_itself_in_the_end(
    monkeypatch: pytest.MonkeyPatch, swift: None, capsys: pytest.CaptureFixture[str]
) -> None:
    refusals = {"kinetic-1-1": [(400, "The resource is not ready")] * 1000}
    with Instances("kinetic-1-0", "kinetic-1-1", looks=0, refusals=refusals) as api:
        at(api, monkeypatch)
        bootstrap.end_slice(INSTANCE, 2, 0)
    assert api.calls.count("DELETE kinetic-1-1") == bootstrap.TRIES + 1
    assert api.states == {"kinetic-1-0": "STOPPING", "kinetic-1-1": "RUNNING"}
    assert "kinetic-1-1 was not deleted: The resource is not ready" in capsys.readouterr().out


def test_a_403_of_compute_engine_may_mean_slow_down_and_else_names_the_page_with_the_role(
    monkeypatch: pytest.MonkeyPatch, swift: None, capsys: pytest.CaptureFixture[str]
) -> None:
    denied = "Required 'compute.instances.delete' permission"
    refusals = {"kinetic-1": [(403, "rateLimitExceeded"), (403, denied)]}
    with Instances("kinetic-1", looks=0, refusals=refusals) as api:
        at(api, monkeypatch)
        bootstrap.end_slice(INSTANCE)
    said = capsys.readouterr().out
    assert said.count("may not delete") == 1
    assert f"may not delete its slice: {denied}. Grant its service account the role of docs/cloud/compute.md" in said
    assert f"UNTIL SOMEBODY DELETES {INSTANCE}, IT COSTS MONEY" in said
    assert "secret" not in said


NO_RUNTIME = 'could not select device driver "" with capabilities: [[gpu]]'


def test_a_container_gets_the_gpus_of_its_vm_once_they_are_there_and_a_docker_that_knows_none_is_refused(
    site: Site, jobs: Any, tmp_path: Path
) -> None:
    attempt = site.admit(jobs.attempt)
    told = json.dumps(attempt.told(image="r/i:1", gpus=2))
    vm = site.machines.create(
        Machine("emulated", "us-central2-b", attempt.name, "v4-8", "2x2x1", "base", metadata={"kinetic": told})
    )
    docker, smi = tmp_path / "docker", tmp_path / "nvidia-smi"
    docker.write_text(
        f'#!/bin/sh\n[ "$1" = run ] || exit 0\necho "$@" > {tmp_path}/told\necho \'{NO_RUNTIME}\' >&2\nexit 125\n'
    )
    smi.write_text(
        f"#!/bin/sh\n[ -e {tmp_path}/loaded ] && echo 'GPU 1: L4' || touch {tmp_path}/loaded\necho 'GPU 0: L4'\n"
    )
    for program in (docker, smi):
        program.chmod(0o755)
    environ = {**vm._environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-I", bootstrap.__file__], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    for process in processes.marked(f"KINETIC_ROOT={vm.root}"):
        processes.send(process.pid, 9)
    assert (done.returncode, done.stderr) == (1, "")
    assert "nvidia-smi lists 1 of 2 GPUs yet, which are waited for: GPU 0: L4" in done.stdout
    assert " --gpus=all " in (tmp_path / "told").read_text()
    verdict = attempt.verdict()
    assert verdict.cause == wire.CONFIGURATION
    assert NO_RUNTIME in verdict.reason
    assert "NVIDIA's toolkit" in verdict.reason
    assert "cloud=Compute(image=" in verdict.reason
