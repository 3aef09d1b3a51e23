"""Hosts that are VMs of the cloud: nothing but a Python and what their metadata tells, and a real storage server."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kinetic_orchestration.host.attempt import self_delete
from kinetic_orchestration.host.machine import bootstrap, bucket_records
from kinetic_orchestration.host.machine.machine import Unauthorized
from kinetic_orchestration.host.machine.pod import account
from kinetic_orchestration.host.machine.vm import vm
from kinetic_orchestration.host.view import bucket, segments
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.platforms.shared import agent_zip
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.assignment import Assignment
from kinetic_orchestration.protocol.content import digest
from kinetic_orchestration.protocol.report import frames
from kinetic_orchestration.testing.model.state.machine import Machine
from tests.support.on_vms import Attempt, Site, constants
from tests.support.waits import wait_until


@pytest.fixture(autouse=True)
def hosts_look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second, instead of every fifth: nobody here counts requests."""
    constants(monkeypatch, bucket, UNWATCHED=1.0)


def running(attempt: Attempt, hosts: int = 1) -> Attempt:
    for host in range(hosts):
        wait_until(lambda host=host: "running" in attempt.log(host) or "ready" in attempt.log(host))
    return attempt


def generation(attempt: Attempt) -> int:
    """The generation of its only host's heartbeat."""
    name = names.beat(attempt.job, 1, 0)
    (found,) = [signal for signal in attempt.site.records.signals(names.beats_of(attempt.job)) if signal.name == name]
    return found.generation


def words_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


# ---- the ordinary way ---------------------------------------------------------------------------------------


def test_a_host_that_has_nothing_but_its_metadata_commits_a_value_and_deletes_its_slice(site: Site, jobs: Any) -> None:
    attempt = site.admit(jobs.attempt).start()
    verdict = attempt.verdict()
    assert (verdict.kind, verdict.reason) == (wire.COMMITTED, ""), attempt.vms[0].console()
    assert attempt.value() == 1
    claim = f"kinetic/value/{site.records.url}/{attempt.job}/1/{verdict.digest}"
    assert verdict.proof == f"signed:{attempt.name}:0:{claim}" and verdict.seal == ""
    attempt.gone()


def test_the_hosts_of_a_slice_meet_and_host_0_deletes_it_as_soon_as_all_are_done(site: Site, jobs: Any) -> None:
    attempt = site.admit(jobs.of_host_0, accelerator="v5e-16").start()
    assert attempt.verdict().kind == wire.COMMITTED
    assert attempt.value() == "of host 0"
    attempt.gone()
    assert {caller for caller, _ in site.apis.deleted} == {f"Bearer emulator-token/{attempt.name}/0"}
    beats = [attempt.beat(host) for host in range(4)]
    assert [beat and (beat.state, beat.exit, beat.verdict) for beat in beats] == [(wire.DONE, 0, True)] * 4


@pytest.mark.slow
@pytest.mark.turn(7)
def test_hosts_of_several_slices_know_their_slice(site: Site, jobs: Any) -> None:
    attempt = site.admit(jobs.topology, accelerator="v5e-16", slices=2).start(machine={"endpoint_format": "triples"})
    assert attempt.verdict().kind == wire.COMMITTED
    found = attempt.value()
    assert found["MEGASCALE_NUM_SLICES"] == "2"
    assert found["MEGASCALE_SLICE_ID"] == "0"
    assert found["MEGASCALE_COORDINATOR_ADDRESS"].startswith("127.0.0.1:")
    assert found["JAX_NUM_PROCESSES"] == "8"
    assert json.loads(found["TF_CONFIG"])["task"]["index"] == 0


def test_topology_variables_that_an_image_left_behind_are_dropped(site: Site, jobs: Any) -> None:
    site.machines.environ |= {"TPU_WORKER_ID": "7", "MEGASCALE_SLICE_ID": "3", "TPU_LIBRARY_PATH": "/lib/libtpu.so"}
    attempt = site.admit(jobs.topology).start()
    attempt.verdict()
    found = attempt.value()
    assert "TPU_WORKER_ID" not in found
    assert "MEGASCALE_SLICE_ID" not in found
    assert found["TPU_LIBRARY_PATH"] == "/lib/libtpu.so"


@pytest.mark.parametrize("by", ["the agent", "the startup script"])
def test_what_an_attempt_came_to_is_signed_with_the_key_in_its_metadata(site: Site, jobs: Any, by: str) -> None:
    attempt = site.admit(jobs.attempt)
    if by == "the startup script":
        site.records.put(names.blob(attempt.agent), b"another agent")
    verdict = attempt.start(key="k" * 64).verdict()
    assert verdict.kind == (wire.COMMITTED if by == "the agent" else wire.ABORTED)
    assert verdict.seal == bootstrap.sealed("k" * 64, bootstrap.gist(json.loads(verdict.raw)))
    attempt.gone()


def test_a_failure_is_told_with_its_traceback_its_last_lines_and_the_word_of_its_machine(site: Site, jobs: Any) -> None:
    attempt = site.admit(jobs.ends, "sys.exit('a reason')").start()
    verdict = attempt.verdict()
    assert (verdict.kind, verdict.cause, verdict.host) == (wire.ABORTED, wire.USER, 0)
    assert verdict.failure is not None
    assert "a reason" in verdict.failure.log_tail
    claim = f"kinetic/exception/{site.records.url}/{attempt.job}/1/{verdict.failure.digest}"
    assert verdict.proof == f"signed:{attempt.name}:0:{claim}"
    attempt.gone()


# ---- the log ------------------------------------------------------------------------------------------------


def test_the_log_is_in_segments_that_are_whole_and_in_order(
    site: Site, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants(monkeypatch, segments, UNWATCHED=1.0)
    began = time.monotonic()
    attempt = site.admit(jobs.writes_lines, 20_000, str(tmp_path / "go")).start()
    wait_until(lambda: "line 5000 of host 0\n" in attempt.log())
    (tmp_path / "go").touch()
    assert attempt.verdict().kind == wire.COMMITTED
    assert attempt.log() == "".join(f"line {number} of host 0\n" for number in range(20_000))
    written = len(list(site.records.list(names.host(attempt.job, 1, 0, "log/"))))
    assert 2 <= written <= time.monotonic() - began + 5  # one a second, but the first, the last and what is much
    times = [frame.time for frame in attempt.frames()]
    assert times == sorted(times)
    attempt.gone()
    beat = attempt.beat()
    assert beat is not None
    assert beat.segment == written


@pytest.mark.slow
def test_the_first_line_comes_at_once_and_the_others_at_a_pace_that_an_eye_quickens(
    site: Site, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants(monkeypatch, segments, SLOWEST=120.0, UNWATCHED=120.0)
    attempt = site.admit(jobs.one_by_one, str(tmp_path)).start()
    wait_until(lambda: (beat := attempt.beat()) is not None and beat.state == wire.RUNNING)
    at_once = 60.0
    (tmp_path / "0").touch()
    wait_until(lambda: "line 0" in attempt.log(), within=at_once)
    site.records.signal(names.eye(attempt.job), b"somebody")
    for _ in range(2):  # each beat is followed by a look
        before = generation(attempt)
        wait_until(lambda before=before: generation(attempt) != before)
    (tmp_path / "1").touch()
    wait_until(lambda: "line 1" in attempt.log(), within=at_once)
    (tmp_path / "2").touch()
    assert attempt.verdict().kind == wire.COMMITTED


def test_the_last_lines_arrive_when_the_vm_is_preempted(site: Site, jobs: Any) -> None:
    attempt = running(site.admit(jobs.has_last_words).start())
    attempt.vms[0].preempt(notice=60.0)
    verdict = attempt.verdict()
    assert verdict.cause == wire.PREEMPTION
    attempt.gone()
    assert attempt.log().endswith("last word 99\nand the very last")


def test_a_preempted_program_is_asked_to_end_at_once_though_the_store_does_not_answer(
    site: Site, jobs: Any, tmp_path: Path
) -> None:
    """A checkpoint needs the seconds that the machine has left."""
    saved = tmp_path / "saved"
    save = "import pathlib, signal, sys, time\nasked = []\nsignal.signal(signal.SIGTERM, lambda *_: asked.append(1))\n"
    save += "print('running', flush=True)\nwhile not asked:\n    time.sleep(0.02)\n"
    save += "pathlib.Path(sys.argv[1]).write_text('all of it')\nsys.exit(1)\n"
    attempt = site.admit(argv=["python", "-c", save, str(saved)])
    running(attempt.start())
    site.storage.fail(f"insert {site.bucket.removeprefix('gs://')}/*verdict.json", status=503, times=None)
    attempt.vms[0].preempt(notice=60.0)
    wait_until(saved.exists, within=50.0)  # and a write to the store is tried for 60
    site.storage.heal()
    assert attempt.verdict().cause == wire.PREEMPTION
    attempt.gone()


# ---- a store that refuses ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_store_that_is_away_for_seconds_and_loses_answers_costs_nothing_but_time(
    site: Site, jobs: Any, tmp_path: Path
) -> None:
    attempt = site.admit(jobs.until, str(tmp_path / "go")).start()
    running(attempt)
    bucket = site.bucket.removeprefix("gs://")
    for what in ("log/000001", "verdict.json", "done.json", "result", "exit.json"):
        site.storage.fail(f"insert {bucket}/*{what}", times=1, after=True)
    site.storage.fail(f"* {bucket}/*", status=503, times=12)
    (tmp_path / "go").touch()
    verdict = attempt.verdict(60.0)
    assert (verdict.kind, verdict.reason) == (wire.COMMITTED, "")
    assert attempt.value() == 1
    attempt.gone()


def test_a_store_that_is_away_for_longer_than_any_request_waits_loses_no_value(
    site: Site, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants(monkeypatch, bucket_records, PATIENCE=0.5)
    attempt = running(site.admit(jobs.until, str(tmp_path / "go")).start())
    site.storage.fail(f"insert {site.bucket.removeprefix('gs://')}/*verdict.json", status=503, times=None)
    site.storage.forget()
    (tmp_path / "go").touch()
    wait_until(lambda: sum(call.where.endswith("verdict.json") for call in site.storage.calls) > 12)  # each thrice
    site.storage.heal()
    assert attempt.verdict().kind == wire.COMMITTED
    assert attempt.value() == 1
    attempt.gone()


@pytest.mark.slow
@pytest.mark.turn(2)
def test_a_program_that_writes_more_than_the_store_takes_has_to_wait_and_loses_nothing(site: Site, jobs: Any) -> None:
    attempt = site.admit(jobs.flood, 24).start()
    bucket = site.bucket.removeprefix("gs://")
    site.storage.fail(f"insert {bucket}/*/log/*", status=503, times=6)
    assert attempt.verdict(90.0).kind == wire.COMMITTED
    sizes = [len(frame.payload) for frame in attempt.frames() if frame.kind == frames.OUT]
    assert sum(sizes) == 24 << 20
    attempt.gone()


# ---- ends ----------------------------------------------------------------------------------------------------


def test_a_cancel_is_seen_at_the_next_look_and_the_slice_goes(site: Site, jobs: Any, tmp_path: Path) -> None:
    attempt = running(site.admit(jobs.until, str(tmp_path / "never")).start())
    site.records.create(names.cancel(attempt.job), wire.encode({"reason": "enough", "by": "a test"}))
    site.records.ring(attempt.job)
    verdict = attempt.verdict(bucket.UNHINTED / 2)
    assert (verdict.cause, verdict.reason) == (wire.CANCELLED, "enough")
    attempt.gone()


def test_a_verdict_of_somebody_else_ends_a_host_and_its_slice(site: Site, jobs: Any, tmp_path: Path) -> None:
    attempt = running(site.admit(jobs.until, str(tmp_path / "never")).start())
    verdict = wire.Verdict(wire.CLOSED, "a client", time.time(), cause=wire.INFRASTRUCTURE, reason="superseded")
    assert site.records.create(names.verdict(attempt.job, 1), verdict.encode())
    site.records.ring(attempt.job)
    attempt.gone()


def test_a_right_that_is_taken_away_for_a_moment_costs_no_finished_value(site: Site, jobs: Any) -> None:
    attempt = site.admit(jobs.attempt, accelerator="v5p-8")
    bucket = site.bucket.removeprefix("gs://")
    for what in ("result", "verdict.json", "exit.json"):
        site.storage.fail(f"insert {bucket}/*{what}", status=403, times=2)
    attempt.start()
    assert attempt.verdict().kind == wire.COMMITTED
    attempt.gone()


def test_a_host_that_boots_after_its_attempts_verdict_runs_nothing_and_deletes_its_slice(
    site: Site, jobs: Any, tmp_path: Path
) -> None:
    attempt = site.admit(jobs.ends, "sys.exit(5)")
    verdict = wire.Verdict(wire.CLOSED, "a client", time.time(), cause=wire.CANCELLED)
    assert site.records.create(names.verdict(attempt.job, 1), verdict.encode())
    attempt.start()
    attempt.gone()
    assert site.records.read(names.host(attempt.job, 1, 0, "started.json")) is None


def test_an_agent_that_is_killed_is_spoken_for_by_its_guard_who_deletes_the_slice(
    site: Site, jobs: Any, tmp_path: Path
) -> None:
    attempt = running(site.admit(jobs.until, str(tmp_path / "never")).start())
    agents = [pid for pid in attempt.vms[0].processes() if _is_agent(pid)]
    below = [pid for pid in agents if _parent(pid) in agents]
    assert len(below) == 1
    os.kill(below[0], 9)
    verdict = attempt.verdict()
    assert verdict.cause == wire.INFRASTRUCTURE
    assert "the agent of host 0 was ended by SIGKILL" in verdict.reason
    attempt.gone()


def test_a_vm_that_restarts_in_mid_run_ends_the_attempt_and_says_so(site: Site, jobs: Any, tmp_path: Path) -> None:
    attempt = running(site.admit(jobs.until, str(tmp_path / "never")).start())
    attempt.vms[0].reboot()
    verdict = attempt.verdict()
    assert verdict.cause == wire.INFRASTRUCTURE
    assert verdict.reason == "this machine was restarted in mid-run (another boot id)"
    attempt.gone()


def test_maintenance_that_will_end_the_vm_is_told_to_the_program_in_time(site: Site, jobs: Any) -> None:
    attempt = running(site.admit(jobs.has_last_words).start())
    attempt.vms[0].maintenance("TERMINATE_ON_HOST_MAINTENANCE")
    verdict = attempt.verdict()
    assert (verdict.cause, verdict.reason) == (wire.PREEMPTION, "this VM is being ended for maintenance")
    attempt.gone()
    assert attempt.log().endswith("and the very last")


@pytest.mark.slow
def test_a_delete_that_is_refused_is_asked_for_again_until_the_slice_is_gone(site: Site, jobs: Any) -> None:
    site.apis.refusals = [429, 503, 403]
    attempt = site.admit(jobs.attempt).start()
    attempt.verdict()
    attempt.gone()
    assert len(site.apis.deleted) >= 4


@pytest.mark.slow
@pytest.mark.turn(7)
@pytest.mark.timeout(400)
def test_when_host_0_is_gone_for_good_host_1_deletes(
    site: Site, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sooner than in real time, which `tests/end_to_end/cloud` shows (F24)."""
    constants(monkeypatch, self_delete, FIRST_TURN=-30.0, TURN=40.0)  # 10 s for host 1, which is the first
    attempt = running(site.admit(jobs.until, str(tmp_path / "never"), accelerator="v5e-16").start(), hosts=4)
    attempt.vms[0].freeze()
    site.records.create(names.cancel(attempt.job), wire.encode({"reason": "enough", "by": "a test"}))
    site.records.ring(attempt.job)
    attempt.gone(120.0)
    assert site.apis.deleted[0][0] == f"Bearer emulator-token/{attempt.name}/1"


def test_a_notice_that_comes_between_two_waits_is_not_missed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata server tells of a change to whoever waits; between two waits nobody does."""
    machine = site.machines.create(Machine("emulated", "us-central2-b", "watched", "v4-8", "2x2x1", "base"))
    monkeypatch.setenv("GCE_METADATA_HOST", machine.metadata.address)
    path = "instance/preempted"
    answered, told, exchange = threading.Event(), threading.Event(), bootstrap.exchange

    def and_then_it_changes(*words: Any, **options: Any) -> bootstrap.Reply:
        reply = exchange(*words, **options)
        if not answered.is_set():
            machine.metadata.change(preempted=True)
            wait_until(lambda: bootstrap.metadata(path) == "TRUE" if answered.is_set() else not answered.set())
        return reply

    monkeypatch.setattr(bootstrap, "exchange", and_then_it_changes)
    at: Any = SimpleNamespace(machines=1)
    threading.Thread(target=vm.Vm(at)._watch, args=(path, lambda _: told.set()), daemon=True).start()
    try:
        assert told.wait(vm.WAIT / 3)
    finally:
        machine.destroy()


@pytest.mark.slow
@pytest.mark.turn(0)
def test_a_host_whose_metadata_server_does_not_say_where_it_is_ends_a_slice_of_several_and_says_so(
    site: Site, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants(monkeypatch, vm, SILENCE=0.5)
    constants(monkeypatch, self_delete, LATE=1.0)
    silent = {"silent": ("instance/network-interfaces/0/ip",)}
    attempt = site.admit(jobs.of_host_0, accelerator="v5e-16").start(machine=silent)
    verdict = attempt.verdict()
    assert verdict.cause == wire.INFRASTRUCTURE
    assert "did not say within" in verdict.reason
    assert "the other hosts could not have reached it" in verdict.reason
    attempt.gone(120.0)
    alone = site.admit(jobs.attempt).start(machine=silent)
    assert alone.verdict().kind == wire.COMMITTED  # nobody has to reach it
    alone.gone()


# ---- trust ---------------------------------------------------------------------------------------------------


def test_a_spec_that_was_changed_is_not_run(site: Site, jobs: Any, tmp_path: Path) -> None:
    attempt = site.admit(jobs.attempt)
    spec = site.records.read(names.spec(attempt.job))
    assert spec is not None
    site.records.put(names.spec(attempt.job), spec.data.replace(b'"emulated":true', b'"emulated":false'))
    verdict = attempt.start().verdict()
    assert verdict.cause == wire.CONFIGURATION
    assert "is not the one that was submitted" in verdict.reason
    attempt.gone()


def test_an_agent_that_was_changed_is_not_run(site: Site, jobs: Any) -> None:
    attempt = site.admit(jobs.attempt)
    site.records.put(names.blob(attempt.agent), b"import os; os.system('touch /tmp/owned')")
    verdict = attempt.start().verdict()
    assert verdict.cause == wire.CONFIGURATION
    assert "is not the one that was submitted" in verdict.reason
    assert "is not the one that was submitted" in attempt.vms[0].console() or not attempt.vms[0].alive
    attempt.gone()


def test_a_payload_that_was_changed_is_not_unpickled(site: Site, jobs: Any) -> None:
    attempt = site.admit(jobs.attempt)
    spec = site.records.read(names.spec(attempt.job))
    assert spec is not None
    blob = names.blob(wire.decode(spec.data)["task"]["payload"]["digest"])
    data = site.records.read(blob)
    assert data is not None
    site.records.put(blob, data.data[:-60] + b"x" + data.data[-59:])
    verdict = attempt.start().verdict()
    assert verdict.cause == wire.CONFIGURATION
    assert site.records.read(blob) is None
    attempt.gone()


# ---- the machine's account ------------------------------------------------------------------------------------


def test_an_account_that_could_not_delete_the_slice_runs_nothing(site: Site, jobs: Any, tmp_path: Path) -> None:
    site.apis.permissions = set()
    attempt = site.admit(jobs.until, str(tmp_path / "never")).start()
    verdict = attempt.verdict()
    assert verdict.cause == wire.CONFIGURATION
    assert "lacks tpu.nodes.delete in emulated" in verdict.reason
    assert "--role=roles/tpu.admin" in verdict.reason
    assert attempt.log() == ""


def test_rights_that_cannot_be_checked_are_a_note(site: Site, jobs: Any) -> None:
    told = {"error": {"code": 403, "status": "PERMISSION_DENIED", "message": "Cloud Resource Manager API has not ..."}}
    site.apis.answers["/v1/projects/emulated:testIamPermissions"] = (403, told)
    attempt = site.admit(jobs.attempt).start()
    assert attempt.verdict().kind == wire.COMMITTED
    assert "Cloud Resource Manager API has not" in attempt.log(kinds="n")


def test_a_task_that_the_agent_cannot_read_is_no_failure_of_its_machine(site: Site, jobs: Any) -> None:
    verdict = site.admit(jobs.attempt, task={"devices": "many"}).start().verdict()
    assert (verdict.cause, "its task.devices is 'many'" in verdict.reason) == (wire.CONFIGURATION, True)


def test_secrets_reach_the_program_and_nothing_else(site: Site, jobs: Any) -> None:
    secret = "correct horse battery staple"
    site.apis.secrets["projects/emulated/secrets/token/versions/latest"] = secret.encode()
    task = {"secrets": {"TOKEN": "projects/emulated/secrets/token"}}
    attempt = site.admit(argv=["sh", "-c", 'printf %s "$TOKEN" | wc -c'], task=task).start()
    assert attempt.verdict().kind == wire.COMMITTED
    assert attempt.log().strip() == str(len(secret))
    attempt.gone()
    for entry in site.records.list(""):
        record = site.records.read(entry.name)
        assert record is not None
        assert secret.encode() not in record.data


def test_a_secret_that_may_not_be_read_is_named_with_its_remedy(site: Site, jobs: Any) -> None:
    resource = "projects/emulated/secrets/token"
    denied = (403, {"error": {"message": "Permission denied."}})
    site.apis.answers[f"GET /v1/{resource}/versions/latest:access"] = denied
    verdict = site.admit(jobs.attempt, task={"secrets": {"TOKEN": resource}}).start().verdict()
    assert verdict.cause == wire.CONFIGURATION
    assert f"{resource} for TOKEN could not be read: Permission denied; the service account" in verdict.reason
    assert "roles/secretmanager.secretAccessor" in verdict.reason


def test_a_secret_that_is_not_there_is_to_be_created_and_no_account_is_asked_for(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_EMULATOR", site.apis.url)
    monkeypatch.setattr(bootstrap, "metadata", None)  # which is not called
    with pytest.raises(Unauthorized) as refused:
        vm.secrets_of({"TOKEN": "projects/emulated/secrets/token"}, "pod")
    assert str(refused.value) == (
        "the secret projects/emulated/secrets/token for TOKEN could not be read: Secret "
        "[projects/emulated/secrets/token/versions/latest] not found; there is no such secret, or it has no version: "
        "create it"
    )


def test_who_may_not_read_a_secret_is_told_within_seconds_also_where_no_metadata_server_is(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_EMULATOR", site.apis.url)
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    monkeypatch.setattr(bootstrap, "authorization", lambda **_: {})
    patiences: list[float] = []
    monkeypatch.setattr(bootstrap, "tries", lambda patience: patiences.append(patience) or [None])  # type: ignore[func-returns-value]
    resource = "projects/emulated/secrets/token"
    site.apis.answers[f"GET /v1/{resource}/versions/latest:access"] = (403, {"error": {"message": "Denied."}})
    monkeypatch.setattr(bootstrap, "request", functools.partial(bootstrap.request, patience=1.0))
    with pytest.raises(Unauthorized, match=r"Denied; the service account of this VM needs roles/secret"):
        vm.secrets_of({"TOKEN": resource})
    monkeypatch.setenv("KINETIC_ORDERS", json.dumps({"account": "training/trainer"}))
    with pytest.raises(
        Unauthorized, match=r"Denied; the Kubernetes service account training/trainer needs roles/secret"
    ):
        vm.secrets_of({"TOKEN": resource}, account.told)
    assert max(patiences) <= 10.0


def test_a_secret_manager_that_is_away_is_asked_again_and_is_nobodys_configuration(
    site: Site, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "request", functools.partial(bootstrap.request, patience=0.3))
    monkeypatch.setenv("KINETIC_EMULATOR", site.apis.url)
    resource = "projects/emulated/secrets/token"
    site.apis.answers[f"GET /v1/{resource}/versions/latest:access"] = (503, {"error": {"message": "come again"}})
    with pytest.raises(OSError, match=r"projects/emulated/secrets/token for TOKEN .* come again"):
        vm.secrets_of({"TOKEN": resource})
    site.apis.answers.clear()
    site.apis.secrets[f"{resource}/versions/latest"] = b"here"
    assert vm.secrets_of({"TOKEN": resource}) == {"TOKEN": "here"}


# ---- chips ----------------------------------------------------------------------------------------------------


def test_a_driver_that_is_busy_is_the_machines_failure(site: Site, jobs: Any) -> None:
    attempt = site.admit(jobs.driver_is_busy).start()
    verdict = attempt.verdict()
    assert verdict.cause == wire.INFRASTRUCTURE
    assert "the accelerator's driver failed" in verdict.reason


@pytest.mark.slow
@pytest.mark.turn(3)
def test_jax_without_libtpu_on_a_real_tpu_fails_before_its_first_step(site: Site, jobs: Any) -> None:
    real = {"emulated": False, "accelerator": {"kind": "tpu", "generation": "v4", "topology": "2x2x1"}}
    attempt = site.admit(jobs.imports_jax, task=real).start()
    verdict = attempt.verdict()
    assert verdict.cause == wire.USER
    assert "require jax[tpu] instead of jax" in verdict.reason
    allowed = site.admit(jobs.imports_jax, task={**real, "env": {"KINETIC_ALLOW_CPU": "1"}}).start()
    assert allowed.verdict().kind == wire.COMMITTED


# ---- data -----------------------------------------------------------------------------------------------------


def test_data_in_a_bucket_is_copied_to_the_host(site: Site, jobs: Any, tmp_path: Path) -> None:
    for name in ("data/one.txt", "data/deep/two.txt", "data/deep/ü.txt"):
        site.records.bucket.write(name, name.encode())
    large = os.urandom(40 << 20)
    site.records.bucket.write("data/large", large)
    task = {"data": [{"digest": "", "file": "", "here": "", "url": f"{site.bucket}/data"}]}
    (tmp_path / "stand-in").mkdir()  # the URL takes its place
    attempt = site.admit(jobs.contents, Data(tmp_path / "stand-in"), task=task).start()
    assert attempt.verdict().kind == wire.COMMITTED, attempt.verdict().reason
    assert attempt.value() == {
        "one.txt": digest.of_bytes(b"data/one.txt"),
        "deep/two.txt": digest.of_bytes(b"data/deep/two.txt"),
        "deep/ü.txt": digest.of_bytes("data/deep/ü.txt".encode()),
        "large": digest.of_bytes(large),
    }


def _is_agent(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() in ("kinetic-guard", "kinetic-agent")
    except OSError:  # it has just ended
        return False


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# ---- a container ------------------------------------------------------------------------------------------------


def test_as_the_first_process_of_a_container_the_launcher_stays_and_hands_on_signals(site: Site, jobs: Any) -> None:
    unshare = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine permits no pid namespaces")
    attempt = site.admit(jobs.has_last_words)
    zip_ = site.folder / "agent.zip"
    zip_.write_bytes(agent_zip.build().data)
    root = site.folder / "root"
    environ = {**os.environ, "KINETIC_ROOT": str(root)}
    words = Assignment(
        site.records.url, attempt.job, 1, 0, 1, attempt.spec, "boot/0", str(root / "run"), str(root), "", "A=b"
    ).words()
    (root / "run").mkdir(parents=True)
    with subprocess.Popen(
        [*unshare, sys.executable, "-I", str(zip_), *words], stdin=subprocess.PIPE, env=environ
    ) as launcher:
        assert launcher.stdin is not None
        launcher.stdin.write(b"{}")
        launcher.stdin.close()
        running(attempt)
        assert launcher.poll() is None
        [first] = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        os.kill(int(first), signal.SIGTERM)
        assert attempt.verdict().cause == wire.PREEMPTION
        assert launcher.wait(30) == 0
    assert attempt.log().endswith("and the very last")


@pytest.mark.slow
def test_a_host_whose_account_may_not_write_over_its_own_beat_ends_the_attempt_and_names_the_role(
    site: Site, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may create and read, as with roles/storage.objectCreator: all others would soon take it for dead."""
    constants(monkeypatch, bucket, UNWATCHED=0.3, DENIED=1.0)
    site.storage.forbid("delete */beats/*", caller="emulator-token")
    try:
        verdict = site.admit(jobs.until, str(tmp_path / "never")).start().verdict()
        assert (verdict.kind, verdict.cause) == (wire.ABORTED, wire.CONFIGURATION), verdict
        assert "this host cannot show that it lives" in verdict.reason
        assert "roles/storage.objectUser" in verdict.reason
    finally:
        site.storage.heal()
