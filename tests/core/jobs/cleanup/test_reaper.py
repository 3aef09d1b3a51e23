"""Leftovers are removed, and nothing else is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration import errors
from kinetic_orchestration.api.opening import place_of
from kinetic_orchestration.capacity import records
from kinetic_orchestration.capacity.facts import FactKey
from kinetic_orchestration.cli import codes, main
from kinetic_orchestration.jobs.cleanup import reaper
from kinetic_orchestration.jobs.cleanup.reaper import reap
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.platforms import registry
from kinetic_orchestration.platforms.google.tpu.backend import TpuVmBackend
from kinetic_orchestration.platforms.local.backend import LocalBackend
from kinetic_orchestration.platforms.local.store import open_local
from kinetic_orchestration.platforms.store import staging_parents
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.content import digest
from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.testing import Emulator
from tests.support.bucket import Bucket
from tests.support.on_cloud import Place, enter_deployment

DAY = 86400.0


@kinetic.run(accelerator="cpu")
def quick(value: int) -> int:
    return value


@kinetic.run(accelerator="cpu")
def sleeper() -> None:
    time.sleep(600)


def _reap(**changes: object) -> list[str]:
    store, backend, _ = place_of()
    here = settings.load(None, **changes)
    return [f"{item.what} {item.why}" for item in reap(store, backend, here)]


def _age(home: Path, days: float) -> None:
    """Make every record of the store look that old, but for what a host is just writing."""
    for path in (home / "store").rglob("*"):
        if path.is_file() and ".tmp" not in path.parts:
            then = path.stat().st_mtime - days * DAY
            os.utime(path, (then, then))


def test_a_job_past_its_retention_goes_with_what_only_it_needed(home: Path) -> None:
    job = quick.run_async(1)
    assert job.result(timeout=60) == 1
    _age(home, 40)
    store, _, _ = place_of()
    assert "job" in {line.split()[0] for line in _reap()}
    assert store.read(names.spec(job.job_id)) is None
    assert not [entry for entry in store.list("blobs/") if entry.size]
    with pytest.raises(errors.JobNotFound):
        kinetic.attach(job.job_id)


def test_a_key_that_is_asked_for_again_after_that_gets_a_job_of_its_own(home: Path) -> None:
    def asked(add: int) -> kinetic.JobHandle[int]:
        return kinetic.run(accelerator="cpu", key="weekly")(lambda: 1 + add).run_async()

    first = asked(0)
    assert first.result(timeout=60) == 1
    assert asked(1).job_id == first.job_id
    _age(home, 40)
    assert "job" in {line.split()[0] for line in _reap()}
    again = asked(2)
    assert again.job_id != first.job_id
    assert again.result(timeout=60) == 3


def test_what_killed_uploads_left_half_done_goes_once_it_is_old(home: Path) -> None:
    assert quick.run_async(1).result(timeout=60) == 1
    (left,) = (home / "store").glob("*/.tmp")
    young, old = (left / name for name in ("1-young", "2-old"))
    for part in (young, old):
        part.write_bytes(b"half")
    os.utime(old, (0, 0))
    assert "parts left by uploads that were killed" in _reap()
    assert (young.exists(), old.exists()) == (True, False)


def test_the_staging_folders_of_killed_submitters_go_once_they_are_old(home: Path) -> None:
    store, _, _ = place_of()
    parents = staging_parents(store, home)
    assert parents == [home / "store" / "local" / ".staging", home / "staging"]
    for parent in parents:
        for name, age in (("job-young", 0.0), ("job-old", DAY + 60.0)):
            (parent / name).mkdir(parents=True)
            os.utime(parent / name, (time.time() - age,) * 2)
    _reap()
    assert [sorted(os.listdir(parent)) for parent in parents] == [["job-young"]] * 2


def test_a_failed_job_is_kept_longer_than_a_good_one(home: Path) -> None:
    job = quick.run_async(1)
    job.result(timeout=60)
    bad = _failing.run_async()
    with pytest.raises(ValueError, match="no"):
        bad.result(timeout=60)
    _age(home, 40)
    _reap()
    store, _, _ = place_of()
    assert store.read(names.spec(job.job_id)) is None
    assert store.read(names.spec(bad.job_id)) is not None
    _age(home, 60)
    _reap()
    assert store.read(names.spec(bad.job_id)) is None


@kinetic.run(accelerator="cpu")
def _failing() -> None:
    raise ValueError("no")


def test_a_live_job_and_its_blobs_are_never_touched(home: Path) -> None:
    job = sleeper.run_async()
    _age(home, 400)
    assert _reap() == []
    assert job.status() in (kinetic.JobStatus.PENDING, kinetic.JobStatus.RUNNING)
    job.cancel(cleanup_timeout=30)


def test_a_placement_whose_attempt_has_its_verdict_is_released(home: Path) -> None:
    """The guard and the agent were killed after the verdict, and the program lives on: F25, on this machine."""
    job = sleeper.run_async()
    deadline = time.monotonic() + 60
    while job.status() is not kinetic.JobStatus.RUNNING:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    store, backend, _ = place_of()
    (placement,) = list(backend.leftovers())  # type: ignore[attr-defined]
    tree = processes.marked(f"KINETIC_PLACEMENT={placement['run']}")
    assert tree
    store.create(names.verdict(job.job_id, 1), b'{"wire":1,"kind":"closed","writer":"t","time":0,"cause":"cancelled"}')
    for process in sorted(tree, key=lambda process: process.pid):
        processes.send(process.pid, signal.SIGKILL)
    _age(home, 1)
    _reap()
    assert not processes.marked(f"KINETIC_PLACEMENT={placement['run']}")
    assert not Path(placement["run"]).exists()


@pytest.mark.turn(3)
@pytest.mark.slow
def test_a_job_ends_with_its_owner_if_that_was_asked(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """on_owner_lost="abort": the submitter is killed, its beat ends, and the hosts end the job."""
    program = tmp_path / "submitter.py"
    program.write_text(
        "import time, kinetic_orchestration as kinetic\n"
        "from kinetic_orchestration.protocol import attempt_rules\n"
        "@kinetic.run(accelerator='cpu')\n"
        "def sleeper():\n    time.sleep(600)\n"
        "print(sleeper.run_async().job_id, flush=True)\n"
        "time.sleep(600)\n"
    )
    env = {**os.environ, "KINETIC_ON_OWNER_LOST": "abort"}
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True, env=env) as submitter:
        assert submitter.stdout is not None
        job = kinetic.attach(submitter.stdout.readline().strip())
        assert job.status() is not kinetic.JobStatus.CANCELLED
        submitter.kill()
    owner = home / "store" / "local" / names.owner(job.job_id)
    then = owner.stat().st_mtime - 40  # as if it had been silent for so long
    os.utime(owner, (then, then))
    with pytest.raises(errors.JobCancelled, match="its owner has given no sign of life"):
        job.result(timeout=60)


# ---- in the cloud --------------------------------------------------------------------------------------------

ZONES = ("us-east5-a", "us-east5-b", "europe-west4-a")
OLD = 1e6  # seconds, for a limit of patience that is over at once when it is taken from zero


class Here(Place):
    """A submitter that is killed between any two of these lines."""

    def __init__(self, cloud: Emulator) -> None:
        super().__init__(cloud, ZONES)

    def submit(self, job: Job, attempt: int = 1, *, deadline: float | None = None, zone: str = ZONES[0]) -> str:
        """The intent and the create call; the name of what is there then."""
        actions.intend(job, attempt)
        return self.make(job.job_id, attempt, deadline=deadline, zone=zone)

    def judge(self, job: Job, attempt: int = 1) -> None:
        actions.close(job, attempt, wire.CANCELLED, "enough")

    def reap(self, *, dry_run: bool = False, patience: float = 60.0) -> list[reaper.Reaped]:
        return reap(self.store, self.backend, self.settings, dry_run=dry_run, patience=patience)


@pytest.fixture
def here(
    clouds: Emulator,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    nothing_is_young: None,
) -> Iterator[Here]:
    """A deployment of its own, whose records and resources need not be old to be so."""
    enter_deployment(clouds, monkeypatch, request)
    yield Here(clouds)
    clouds.clear_faults()
    for pattern in ("*",):
        clouds.unstick(pattern)
    clouds.sweep()
    clouds.wait_until_empty()


def test_what_a_killed_client_left_of_an_attempt_that_has_its_verdict_is_deleted(here: Here) -> None:
    job = here.admit()
    name = here.submit(job)
    here.judge(job)
    (reaped,) = here.reap()
    assert reaped[:4] == ("placement", name, "its attempt has its verdict", "us-east5-a")
    assert reaped.result == reaper.REMOVED
    assert reaped.usd_per_hour == pytest.approx(8 * 2.70)
    here.cloud.ledger.assert_nothing_left()


def test_an_attempt_that_has_just_ended_is_left_to_its_own_hosts_unless_another_has_followed(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "SETTLED", OLD)
    job = here.admit()
    here.submit(job)
    here.judge(job)
    assert here.reap() == []
    actions.intend(job, 2)
    assert [reaped.why for reaped in here.reap()] == ["a later attempt has taken its place"]
    here.cloud.ledger.assert_nothing_left()


def test_programs_that_have_long_to_save_are_not_cut_off(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "SETTLED", -30.0)
    job = here.admit()
    here.submit(job)
    told = wire.Verdict(wire.ABORTED, "host", 0.0, cause=wire.PREEMPTION, reason="taken back", host=0, grace=90.0)
    assert job.store.create(names.verdict(job.job_id, 1), told.encode())
    assert here.reap() == []
    monkeypatch.setattr(reaper, "SETTLED", -OLD)
    assert [reaped.why for reaped in here.reap()] == ["its attempt has its verdict"]


def test_what_lives_within_its_deadline_stays_whether_the_store_knows_of_it_or_not(here: Here) -> None:
    known = here.submit(here.admit())
    unknown = here.make("job-999999999999")
    assert here.reap() == []
    assert sorted(here.left()) == sorted([known, unknown])


def test_what_is_past_its_deadline_goes_whether_the_store_knows_of_it_or_not(here: Here) -> None:
    past = here.store.now() - 3600.0
    job = here.admit()
    here.submit(job, deadline=past, zone="us-east5-b")
    here.make("job-999999999999", deadline=past)
    found = here.reap()
    assert sorted(reaped.zone for reaped in found) == ["us-east5-a", "us-east5-b"]
    for reaped in found:
        assert re.fullmatch(r"its deadline passed 6\d min ago", reaped.why)
    here.cloud.ledger.assert_nothing_left()
    record = here.store.read(names.verdict(job.job_id, 1))
    assert record is not None
    assert wire.Verdict.decode(record.data).cause == wire.DEADLINE


@pytest.mark.parametrize("spec", [b"torn", b'{"wire": 99}', b'{"wire": 1, "plan": {}}'])
def test_a_damaged_or_newer_spec_keeps_nobodys_hosts_alive(here: Here, spec: bytes) -> None:
    """Or whoever may write to the bucket could have all that costs money run for ever."""
    past = here.store.now() - 3600.0
    for _ in range(2):
        job = here.admit()
        here.submit(job, deadline=past)
        here.store.put(names.spec(job.job_id), spec)
    assert len(here.reap()) == 2
    here.cloud.ledger.assert_nothing_left()


def test_what_was_handed_over_and_nobody_took_goes_and_may_be_had_anew(here: Here) -> None:
    """No process will ever follow it, and a queue has no hosts that could end it."""
    job, taken = here.admit(), here.admit()
    for each, within in ((job, 0.001), (taken, 600.0)):
        here.submit(each)
        here.store.put(names.keeper(each.job_id), wire.encode({"keeper": "a worker", "within": within}))
    handed = here.store.read(names.keeper(job.job_id))
    assert handed is not None
    here.cloud.wait_until(lambda: here.store.now() > handed.updated + 0.001)  # as well as we know the store's clock
    (reaped,) = here.reap()
    assert reaped.why.startswith("nobody has taken it over within 0 s")
    assert reaped.name.endswith(f"{job.job_id.removeprefix('job-')}-1")
    assert actions.may_begin_anew(job)
    record = here.store.read(names.verdict(job.job_id, 1))
    assert record is not None and wire.Verdict.decode(record.data).cause == wire.CANCELLED


def test_clocks_may_be_off_by_minutes_before_a_deadline_counts_as_passed(here: Here) -> None:
    here.make("job-999999999999", deadline=here.store.now() - reaper.EXPIRED + 60.0)
    assert here.reap() == []


def test_what_was_taken_away_and_nobody_follows_goes_and_its_cause_is_kept(here: Here) -> None:
    """A SUSPENDED resource costs quota for ever; the job can still go on after a preemption."""
    job = here.admit()
    name = here.submit(job)
    here.cloud.suspend(name)
    here.cloud.wait_until(lambda: here.state(name) == "SUSPENDED")
    (reaped,) = here.reap()
    assert (reaped.why, reaped.usd_per_hour) == ("SUSPENDED, and nobody follows it", 0.0)
    record = here.store.read(names.verdict(job.job_id, 1))
    assert record is not None
    assert wire.Verdict.decode(record.data).cause == wire.PREEMPTION
    here.cloud.ledger.assert_nothing_left()


def test_nothing_goes_before_its_verdict_could_be_written(here: Here) -> None:
    """Found by the simulation: a store that fails in the middle of a pass. The next one makes it good."""
    job = here.admit()
    name = here.submit(job)
    here.cloud.suspend(name)
    here.cloud.wait_until(lambda: here.state(name) == "SUSPENDED")
    here.cloud.storage.forbid("get */in/spec.json")
    (unread,) = here.reap()
    assert (unread.name, unread.result) == (name, reaper.UNREAD)
    assert "could not be read" in unread.why
    assert here.left() == [name]
    here.cloud.storage.heal()
    assert [reaped.result for reaped in here.reap()] == [reaper.REMOVED]
    here.cloud.ledger.assert_nothing_left()


@pytest.mark.parametrize("forbidden", ["insert */verdict.json", "get */in/*", "get */verdict.json"])
def test_what_is_past_its_deadline_goes_whatever_can_be_read_or_written_of_it(here: Here, forbidden: str) -> None:
    """It costs money, and whoever may write to the bucket could spoil its records."""
    job = here.admit()
    here.submit(job, deadline=here.store.now() - 3600.0)
    here.cloud.storage.forbid(forbidden)
    (reaped,) = here.reap()
    here.cloud.storage.heal()
    assert "its deadline passed" in reaped.why
    assert reaped.result == reaper.REMOVED
    here.cloud.ledger.assert_nothing_left()


def test_one_that_cannot_be_read_keeps_none_of_the_others(here: Here) -> None:
    spoiled, sound = here.admit(), here.admit()
    kept, gone = here.submit(spoiled), here.submit(sound)
    here.judge(spoiled)
    here.judge(sound)
    here.cloud.storage.forbid(f"get */{spoiled.job_id}/attempts/1/verdict.json")
    told = {reaped.name: reaped.result for reaped in here.reap()}
    here.cloud.storage.heal()
    assert told == {kept: reaper.UNREAD, gone: reaper.REMOVED}
    assert [reaped.name for reaped in here.reap()] == [kept]


def test_what_failed_to_be_made_goes_although_the_store_knows_nothing_of_it(here: Here) -> None:
    here.cloud.stockout(ZONES[0], times=1)
    here.make("job-999999999999")
    assert [reaped.why for reaped in here.reap()] == ["FAILED, and nobody follows it"]
    here.cloud.ledger.assert_nothing_left()


def test_somebody_may_still_follow_what_has_just_failed(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "UNCLAIMED", OLD)
    here.cloud.stockout(ZONES[0], times=1)
    here.submit(here.admit())
    assert here.reap() == []


def test_nothing_foreign_and_nothing_without_labels_is_ever_touched(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those of another deployment, of another store, of a person, nor one that only has a name like ours."""
    past = here.store.now() - 1e7
    ours = here.make("job-999999999999", deadline=past)
    monkeypatch.setenv("KINETIC_DEPLOYMENT", "another")
    theirs = Here(here.cloud).make("job-999999999999", deadline=past)
    parent = f"projects/{here.settings.project}/locations/{ZONES[1]}"
    node = {"acceleratorType": "v6e-8", "runtimeVersion": "v2-alpha-tpuv6e"}
    for name, labels in (("by-hand", {}), (ours, {}), ("labelled", {"kinetic-deployment": here.settings.deployment})):
        spec = {"parent": parent, "nodeId": name, "node": {**node, "labels": labels}}
        request = {"parent": parent, "queuedResourceId": name, "queuedResource": {"tpu": {"nodeSpec": [spec]}}}
        here.cloud.call("CreateQueuedResource", request)
    assert [(reaped.name, reaped.zone) for reaped in here.reap()] == [(ours, ZONES[0])]
    assert sorted(here.left()) == sorted([theirs, "by-hand", ours, "labelled"])


def test_a_dry_run_names_everything_and_deletes_nothing(here: Here, capsys: pytest.CaptureFixture[str]) -> None:
    job = here.admit()
    name = here.submit(job, zone="europe-west4-a")
    here.judge(job)
    assert main(["reap", "--dry-run"]) == codes.OK
    shown = capsys.readouterr()
    heading, row = shown.out.splitlines()
    assert heading.split() == ["ZONE", "WHAT", "AGE", "PER", "HOUR", "RESULT", "WHY"]
    assert row.startswith(f"europe-west4-a  {name}")
    assert "$23.76  would go  its attempt has its verdict" in row
    assert here.left() == [name]
    assert main(["reap"]) == codes.OK
    assert here.left() == []


def test_a_deletion_that_does_not_end_is_told_as_one(
    here: Here, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinetic_orchestration.cli.commands.upkeep.DELETION_PATIENCE", 0.3)
    job = here.admit()
    name = here.submit(job)
    here.judge(job)
    here.cloud.stuck_delete(name)
    assert main(["reap"]) == codes.RUNNING
    shown = capsys.readouterr()
    assert "  deleting  " in shown.out
    assert "1 still being deleted" in shown.err
    here.cloud.unstick(name)
    here.cloud.wait_until(lambda: not here.left())
    assert main(["reap"]) == codes.OK


def test_a_deletion_that_is_refused_is_told_with_what_it_costs(
    here: Here, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinetic_orchestration.cli.commands.upkeep.DELETION_PATIENCE", 0.0)
    job = here.admit()
    name = here.submit(job)
    here.judge(job)
    here.cloud.deny("client", "tpu.queuedResources.delete")
    here.cloud.deny("client", "tpu.nodes.delete")
    assert main(["reap"]) == codes.ENVIRONMENT
    shown = capsys.readouterr()
    assert "  left  " in shown.out
    assert f"{name} in us-east5-a could not be deleted" in shown.err
    assert here.left() == [name]


def test_a_zone_that_cannot_be_read_is_named_and_does_not_stop_the_others(
    here: Here, capsys: pytest.CaptureFixture[str]
) -> None:
    job = here.admit()
    here.submit(job)
    here.judge(job)
    for method in ("ListQueuedResources", "ListNodes"):
        here.cloud.fail(method, 12, zone="-", times=None)
        here.cloud.fail(method, 14, zone="us-east5-b", times=None)
    assert main(["reap"]) == codes.ENVIRONMENT
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows[1:]] == ["us-east5-b", "us-east5-a"]
    assert "not looked at" in rows[1]
    assert here.left() == []


def test_a_node_without_its_queued_resource_is_found(here: Here) -> None:
    job = here.admit()
    name = here.submit(job)
    here.judge(job)
    (node,) = here.cloud.nodes()
    here.cloud.sweep()
    kept = {key: node[key] for key in ("acceleratorType", "runtimeVersion", "labels")}
    request = {"parent": node["name"].rpartition("/nodes/")[0], "nodeId": name, "node": kept}
    here.cloud.call("CreateNode", request)
    here.cloud.wait_until(lambda: here.cloud.nodes() and here.cloud.nodes()[0]["state"] == "READY")
    (reaped,) = here.reap()
    assert (reaped.name, reaped.result, reaped.usd_per_hour) == (name, reaper.REMOVED, pytest.approx(21.6))
    here.cloud.ledger.assert_nothing_left()


# ---- now and then, at a submit -------------------------------------------------------------------------------


def passes(here: Here) -> int:
    """The number of completed searches through all zones."""
    deadline = time.monotonic() + 60.0
    while reaper._at_it and time.monotonic() < deadline:
        time.sleep(0.01)
    return here.cloud.count("ListQueuedResources")


def elsewhere(here: Here, home: Path) -> settings.Settings:
    """The settings of a client on another machine."""
    home.mkdir()
    return replace(here.settings, home=home)


def test_one_client_in_ten_minutes_looks_for_leftovers_for_all(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = here.admit()
    here.submit(job)
    here.judge(job)
    before = passes(here)
    reaper.reap_now_and_then(here.store, here.backend, here.settings)
    assert passes(here) - before == 1
    here.cloud.wait_until_empty()
    for number in range(3):
        reaper.reap_now_and_then(here.store, here.backend, elsewhere(here, tmp_path / str(number)))
    assert passes(here) - before == 1
    monkeypatch.setattr(reaper, "EVERY", -OLD)
    reaper.reap_now_and_then(here.store, here.backend, elsewhere(here, tmp_path / "later"))
    assert passes(here) - before == 2


class OfSecondProject(TpuVmBackend):
    """A second backend on which the rule may put jobs: real, of another project, under the name of one of the rule's."""

    kind = "compute"

    def __init__(self, settings: settings.Settings) -> None:
        super().__init__(replace(settings, project="second"))


class MayNotBeUsed(OfSecondProject):
    def leftovers(self) -> Iterator[dict[str, Any]]:
        raise errors.BackendError("compute.instances.list is missing", cause=wire.CONFIGURATION)


def left_elsewhere(here: Here, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a slice of a cancelled job on the second backend, as a killed client leaves it."""
    monkeypatch.setitem(registry.BACKENDS, "compute", OfSecondProject)
    second = OfSecondProject(here.settings)
    monkeypatch.setattr(here, "backend", second)
    monkeypatch.setattr(here, "plan", replace(here.plan, project="second"))
    job = here.admit()
    name = here.submit(job)
    here.judge(job)
    monkeypatch.setattr(here, "backend", registry.open_backend("tpu-vm", here.settings))
    return name


def unnamed(here: Here) -> settings.Settings:
    return replace(here.settings, sources={**here.settings.sources, "backend": "default"})


def test_leftovers_are_found_on_each_backend_that_the_rule_may_have_chosen(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = left_elsewhere(here, monkeypatch)
    assert here.reap() == []  # KINETIC_BACKEND=tpu-vm says that there are no others
    (reaped,) = reap(here.store, here.backend, unnamed(here), patience=60.0)
    assert (reaped.name, reaped.result) == (name, reaper.REMOVED)
    here.cloud.ledger.assert_nothing_left()


def test_a_submit_looks_there_too_now_and_then(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    left_elsewhere(here, monkeypatch)
    reaper.reap_now_and_then(here.store, here.backend, unnamed(here))
    here.cloud.wait_until_empty()


def test_a_backend_that_may_not_be_used_is_told_of_by_reap_alone(
    here: Here, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setitem(registry.BACKENDS, "compute", MayNotBeUsed)
    (unread,) = reap(here.store, here.backend, unnamed(here))
    assert (unread.name, unread.result) == ("compute", reaper.UNREAD)
    assert unread.why.endswith("is missing. If no job runs on compute, set KINETIC_BACKEND=tpu-vm")
    before = passes(here)
    reaper.reap_now_and_then(here.store, here.backend, unnamed(here))
    assert passes(here) == before + 1 and not recwarn.list


def test_a_look_whose_process_was_killed_is_soon_made_again(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here.store.create(names.REAPED, wire.encode({"writer": "killed", "ended": False}))
    before = passes(here)
    reaper.reap_now_and_then(here.store, here.backend, here.settings)
    assert passes(here) == before
    monkeypatch.setattr(reaper, "CLAIMED", -OLD)
    reaper.reap_now_and_then(here.store, here.backend, here.settings)
    assert passes(here) == before + 1


def test_each_machine_looks_for_its_own_leftovers_though_others_use_the_same_bucket(tmp_path: Path) -> None:
    store = Bucket(open_local(tmp_path / "store", "test").root, "test")
    store.create(names.REAPED, wire.encode({"writer": "another machine", "ended": True}))
    looked: list[str] = []

    class Looked(LocalBackend):
        def leftovers(self) -> list[dict[str, Any]]:
            looked.append("here")
            return []

    backend = Looked(tmp_path, 1, store.url, "test")
    reaper._pass(store, backend, settings.Settings(tmp_path, store.url, "test", "local"), tmp_path / "marker")
    assert looked


@pytest.mark.slow
def test_a_submit_does_not_wait_for_a_look_and_hears_of_its_troubles_by_a_warning_at_most(
    here: Here, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warnings.filters", [])
    monkeypatch.setattr("kinetic_orchestration.plan.messages._shown", set())
    here.cloud.slow("ListQueuedResources", 3.0, times=1)
    here.cloud.fail("ListNodes", 7, times=None)
    reaper.reap_now_and_then(here.store, here.backend, here.settings)
    assert here.store.url in reaper._at_it
    passes(here)
    assert "leftovers could not be looked for" in str(recwarn.pop(UserWarning).message)


# ---- what hosts and followers no longer need -----------------------------------------------------------------


def test_secrets_of_jobs_that_are_over_are_destroyed(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "ENDED", -OLD)
    over, live = here.admit(), here.admit()
    for job in (over, live):
        actions.intend(job, 1)
        here.make(job.job_id, TOKEN="hush")
    here.judge(over)
    assert [reaped.name for reaped in here.reap() if reaped.what == "secret"] == [names.secret(over.job_id, "TOKEN")]
    assert [job for job, _ in here.backend.secrets()] == [live.job_id]
    here.judge(live)
    here.reap()
    assert list(here.backend.secrets()) == []


def test_without_secret_manager_there_are_no_secrets_to_destroy(here: Here) -> None:
    here.cloud.disable("secretmanager.googleapis.com")
    assert here.reap() == []


def test_beats_of_an_attempt_go_an_hour_after_its_verdict_and_no_other(home: Path) -> None:
    job = quick.run_async(1)
    assert job.result(timeout=60) == 1
    live = sleeper.run_async()
    deadline = time.monotonic() + 60
    while live.status() is not kinetic.JobStatus.RUNNING:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    store, _, _ = place_of()
    store.put(names.ring(job.job_id), b"{}")
    beats = [names.beat(job.job_id, 1, 0), names.ring(job.job_id)]
    assert not [line for line in _reap() if line.startswith("beats")]
    _age(home, 0.5 / 24)
    assert not [line for line in _reap() if line.startswith("beats")]
    _age(home, 1 / 24)
    assert [line for line in _reap() if line.startswith("beats")] == ["beats of an attempt that ended more than 1h ago"]
    assert [store.read(name) for name in beats] == [None, None]
    assert list(store.list(names.beats_of(live.job_id)))
    live.cancel(cleanup_timeout=30)


def test_what_was_learned_of_capacity_goes_after_a_day_in_which_nobody_added_to_it(home: Path) -> None:
    assert quick.run_async(1).result(timeout=60) == 1
    store, _, _ = place_of()
    key = FactKey("tpu-vm", "us-east5-a", "v6e", 16, "spot")
    records.learn(store, key, "stockout", store.now(), "job-1-1")
    _age(home, 23 / 24)
    assert not [line for line in _reap() if line.startswith("facts")]
    _age(home, 2 / 24)
    assert [line for line in _reap() if line.startswith("facts")] == ["facts nobody has added to them for 1d"]
    assert list(store.list(names.FACTS)) == []


def test_tools_and_wheels_stay_while_a_job_names_them_and_caches_go_by_age_alone(home: Path) -> None:
    job = quick.run_async(1)
    assert job.result(timeout=60) == 1
    store, _, _ = place_of()
    used, unused, other = "1" * 64, "2" * 64, "3" * 64
    record = store.read(names.spec(job.job_id))
    assert record is not None
    spec = wire.decode(record.data)
    lock = digest.of_bytes(b"numpy==2 --hash=sha256:" + used.encode())
    store.create(names.blob(lock), b"numpy==2 --hash=sha256:" + used.encode())
    another = digest.of_bytes(b"numpy==3 --hash=sha256:" + other.encode())  # of a choice with other builds
    store.create(names.blob(another), b"numpy==3 --hash=sha256:" + other.encode())
    spec["staged"] |= {"tools": {"uv": used}, "environment": {"lock": lock}, "others": [{"lock": another}]}
    store.swap(names.spec(job.job_id), wire.encode(spec), record.generation)
    gone = [names.tool(unused), names.wheel(unused, "a.whl"), names.compiled("k", "entry")]
    kept = [names.tool(used), names.wheel(used, "b.whl"), names.wheel(other, "c.whl")]
    kept += ["outputs/x/y", "checkpoints/x/y"]
    for name in (*gone, *kept):
        store.put(name, b"x")
    _age(home, 36)
    assert not [entry for entry in gone if store.read(entry) is None]
    _age(home, 3)
    verdict = store.read(names.verdict(job.job_id, 1))
    assert verdict is not None
    store.put(names.verdict(job.job_id, 1), verdict.data)  # the job itself is as young as its verdict
    _reap()
    assert [name for name in (*gone, *kept) if store.read(name) is not None] == kept
    assert store.read(names.blob(lock)) is not None and store.read(names.blob(another)) is not None


def test_what_a_remaining_job_is_made_of_is_asked_for_in_few_requests(here: Here) -> None:
    """A listing tells when all jobs ended. Nothing of a job is read unless something may go that it might name."""
    for _ in range(30):
        job = here.admit()
        actions.intend(job, 1)
        here.judge(job)
    before = len(here.cloud.storage.calls)
    assert list(reaper._records(here.store, here.settings, dry_run=False)) == []
    assert len(here.cloud.storage.calls) - before <= 8


def test_a_first_backend_that_may_not_be_used_hides_nothing_of_the_second(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project of VMs alone has no Cloud TPU API, and `kinor reap` finds its VMs all the same."""
    name = left_elsewhere(here, monkeypatch)
    first = MayNotBeUsed(here.settings)
    first.kind = "tpu-vm"
    unread, reaped = reap(here.store, first, unnamed(here), patience=60.0)
    assert (unread.name, unread.result) == ("tpu-vm", reaper.UNREAD)
    assert unread.why.endswith("If no job runs on tpu-vm, set KINETIC_BACKEND=compute")
    assert (reaped.name, reaped.result) == (name, reaper.REMOVED)
