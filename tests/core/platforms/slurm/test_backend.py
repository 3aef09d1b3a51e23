"""Jobs on a real Slurm: nodes and GPUs, its ends, and what becomes of a job when a part of it is lost."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import JobCancelled
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.platforms.registry import open_backend
from kinetic_orchestration.platforms.slurm.backend import claim_of
from kinetic_orchestration.platforms.slurm.script import FOLDER
from kinetic_orchestration.protocol import names
from tests.support.slurm import cluster
from tests.support.slurm.cluster import Cluster
from tests.support.slurm.hosts import kill_host
from tests.support.slurm.jobs import WITHIN, begun, check_nothing_left, conformance, job_of, run_of, submitted
from tests.support.waits import wait_until

pytestmark = pytest.mark.usefixtures("on_slurm")


# ---- the way that most jobs go, and refusals


@pytest.mark.slow
def test_a_job_has_its_nodes_and_their_gpus_and_leaves_nothing(
    slurm: Cluster,
    home: Path,
    programs: ModuleType,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = submitted(programs.tells_its_node, accelerator="gpu:2", cloud=kinetic.Slurm(hosts=2))
    value = job.result(timeout=WITHIN)
    assert (value["CUDA_VISIBLE_DEVICES"], value["KINETIC_HOST_COUNT"], value["misleads"]) == ("0,1", "2", "")
    told = job.logs() or ""
    assert "host 0 on n1" in told and "host 1 on n2" in told
    check_nothing_left(slurm, home)
    with pytest.raises(ValueError, match="the loss is not a number"):
        submitted(programs.fails).result(timeout=WITHIN)
    check_nothing_left(slurm, home)


# ---- ends


@conformance
def test_hosts_join_over_tcp(programs: ModuleType) -> None:
    assert submitted(programs.meets, cloud=kinetic.Slurm(hosts=3)).result(timeout=WITHIN) == 3


@conformance
@pytest.mark.parametrize("hosts", [1, 2])
def test_a_job_that_slurm_puts_back_into_its_queue_goes_on_from_its_checkpoint(
    hosts: int,
    slurm: Cluster,
    home: Path,
    tmp_path: Path,
    programs: ModuleType,
) -> None:
    job = submitted(programs.trains, str(tmp_path), cloud=kinetic.Slurm(hosts=hosts), retry=kinetic.Retry(infra=0))
    for host in range(hosts):
        wait_until((tmp_path / f"half-{host}").exists, "it has taken half of its steps", within=WITHIN)
    slurm.command("scontrol", "requeue", job_of(slurm))
    value = job.result(timeout=WITHIN)
    assert value == {"attempt": 2, "began": programs.STEPS // 2, "ended": programs.STEPS}
    assert job.attempts() == 2
    check_nothing_left(slurm, home)


@conformance
def test_a_cancel_ends_jobs_that_run_and_that_wait(
    slurm: Cluster,
    home: Path,
    tmp_path: Path,
    programs: ModuleType,
) -> None:
    job = begun(programs, tmp_path)
    waits = submitted(programs.fails, cloud=kinetic.Slurm(hosts=3, cpus=4))
    for one in (waits, job):
        one.cancel("enough")
        with pytest.raises(JobCancelled, match="enough"):
            one.result(timeout=WITHIN)
    check_nothing_left(slurm, home)


@conformance
@pytest.mark.parametrize("when", ["any time", "near the end of its time", "nobody follows it", "on several nodes"])
def test_a_job_that_somebody_cancels_in_slurm_is_cancelled_and_not_run_again(
    when: str,
    slurm: Cluster,
    home: Path,
    tmp_path: Path,
    programs: ModuleType,
) -> None:
    near, several = when == "near the end of its time", when == "on several nodes"
    cloud = kinetic.Slurm(time="2" if near else "", hosts=2 if several else 1)
    job = begun(programs, tmp_path, cloud=cloud)
    slurm.command("scancel", job_of(slurm))
    if when in ("nobody follows it", "on several nodes"):
        slurm.await_idle()
        slurm.forget_ended()
    with pytest.raises(JobCancelled, match="somebody has cancelled it"):
        job.result(timeout=WITHIN)
    assert job.attempts() == 1
    check_nothing_left(slurm, home)


@conformance
def test_a_job_that_is_held_waits_with_its_reason_until_it_is_released(
    slurm: Cluster,
    home: Path,
    tmp_path: Path,
    programs: ModuleType,
) -> None:
    blocks = begun(programs, tmp_path, cloud=kinetic.Slurm(hosts=3, cpus=4))
    job = submitted(programs.tells_its_node)
    (held,) = (line.split()[0] for line in slurm.jobs() if "PENDING" in line)
    slurm.command("scontrol", "hold", held)
    here = settings.load()
    backend = open_backend("slurm", here)
    name = names.slice_of(here.store, here.deployment, job.job_id, 1)
    placement = {"backend": "slurm", "name": name, "run": f"{home}/{FOLDER}/{name}", "hosts": 1}
    assert (
        "JobHeldUser" in backend.observe([placement])[0].message
        or "JobHeldAdmin" in backend.observe([placement])[0].message
    )
    (tmp_path / "end").touch()
    assert blocks.result(timeout=WITHIN) == 1
    slurm.command("scontrol", "release", held)
    assert job.result(timeout=WITHIN)["KINETIC_HOST_COUNT"] == "1"
    check_nothing_left(slurm, home)


@conformance
def test_a_step_that_is_killed_is_another_attempt(
    slurm: Cluster,
    home: Path,
    tmp_path: Path,
    programs: ModuleType,
) -> None:
    job = begun(programs, tmp_path, cloud=kinetic.Slurm(hosts=2))
    slurm.command("scancel", "--signal=KILL", f"{job_of(slurm)}.0")
    assert job.result(timeout=WITHIN) == 2
    check_nothing_left(slurm, home)


@conformance
@pytest.mark.parametrize("hosts", [1, 2])
def test_a_node_that_goes_down_is_another_attempt_on_the_others(
    hosts: int,
    slurm: Cluster,
    home: Path,
    tmp_path: Path,
    programs: ModuleType,
) -> None:
    node = f"n{hosts}"  # of its last host
    job = begun(programs, tmp_path, cloud=kinetic.Slurm(hosts=hosts))
    run = run_of(home)
    slurm.stop(node, signal.SIGKILL)
    kill_host(str(run), hosts - 1)
    slurm.command("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    try:
        assert job.result(timeout=WITHIN) == 2
    finally:
        slurm.start_node(node)
        slurm.command("scontrol", "update", f"NodeName={node}", "State=RESUME")
        slurm.await_idle(node)
    check_nothing_left(slurm, home)


@conformance
def test_the_end_of_the_time_is_told_before_and_the_next_attempt_goes_on(
    slurm: Cluster,
    home: Path,
    tmp_path: Path,
    programs: ModuleType,
) -> None:
    job = submitted(programs.trains, str(tmp_path), cloud=kinetic.Slurm(time="2"), retry=kinetic.Retry(infra=0))
    assert job.result(timeout=240) == {"attempt": 2, "began": programs.STEPS // 2, "ended": programs.STEPS}
    check_nothing_left(slurm, home)


# ---- from within a job


@conformance
def test_a_job_submits_another_which_has_nothing_of_the_outer_one(
    slurm: Cluster,
    home: Path,
    tmp_path: Path,
    programs: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"SBATCH_PARTITION": "nowhere", "SLURM_JOB_ID": "4711", "SLURM_NNODES": "7"}.items():
        monkeypatch.setenv(name, value)  # as in a shell of a job
    asked = kinetic.Slurm(hosts=2, partition="batch")
    job = submitted(programs.submits_another, str(tmp_path), accelerator="gpu:2", cloud=asked)
    assert job.result(timeout=WITHIN) == 0
    lines = (line.partition("=") for line in (tmp_path / "nested").read_text().splitlines())
    found = {name: value for name, _, value in lines if name.startswith(("SLURM", "SBATCH"))}
    told = [found.get(name) for name in ("SLURM_JOB_NAME", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_STEP_ID")]
    assert told == ["nested", "1", None, None], found
    assert not [name for name in found if name.startswith(("SBATCH_", "SLURM_GPUS", "SLURM_STEP"))], found
    assert submitted(programs.runs_another).result(timeout=WITHIN)["KINETIC_HOST_COUNT"] == "1"
    check_nothing_left(slurm, home)


# ---- what is lost on the way


@conformance
def test_an_answer_of_sbatch_that_is_lost_makes_no_second_job(
    slurm: Cluster,
    home: Path,
    tmp_path: Path,
    programs: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = tmp_path / "bin"
    place.mkdir()
    real = shutil.which("sbatch", path=cluster.PLACES)
    (place / "sbatch").write_text(
        f"#!/bin/sh\n{real} \"$@\" >> {tmp_path}/sent\necho 'sbatch: error: Socket timed out on send/recv' >&2\nexit 1\n"
    )
    (place / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(place), prepend=":")
    assert submitted(programs.tells_its_node).result(timeout=WITHIN)["KINETIC_HOST_COUNT"] == "1"
    assert len((tmp_path / "sent").read_text().split()) == 1
    check_nothing_left(slurm, home)


@conformance
def test_a_client_that_is_killed_leaves_a_job_that_another_one_finishes(
    slurm: Cluster,
    home: Path,
    tmp_path: Path,
    programs: ModuleType,
) -> None:
    told = "import sys; sys.path.insert(0, {!r})\nimport slurm_programs as p, kinetic_orchestration as k\n"
    told += (
        "print(k.run(accelerator='cpu')(p.waits_in).run_async({!r}).job_id, flush=True)\nimport time; time.sleep(600)"
    )
    code = told.format(str(Path(programs.__file__ or "").parent), str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        job_id = client.stdout.readline().strip()
        wait_until((tmp_path / "runs-1-0").exists, "the program runs", within=WITHIN)
        client.kill()
    (tmp_path / "end").touch()
    assert kinetic.attach(job_id).result(timeout=WITHIN) == 1
    check_nothing_left(slurm, home)


@conformance
def test_a_controller_that_is_restarted_costs_no_attempt(
    slurm: Cluster,
    home: Path,
    tmp_path: Path,
    programs: ModuleType,
) -> None:
    job = begun(programs, tmp_path)
    run = run_of(home)
    slurm.stop("slurmctld")
    placement = {"backend": "slurm", "name": run.name, "run": str(run), "hosts": 1}
    assert open_backend("slurm", settings.load()).observe([placement])[0].state == "unknown"
    slurm.start_controller()
    slurm.await_idle("n2", "n3")  # it has heard of its nodes: of an end before that it would take note a minute late
    (tmp_path / "end").touch()
    assert job.result(timeout=WITHIN) == 1
    check_nothing_left(slurm, home)


@conformance
def test_a_job_that_slurm_has_forgotten_has_not_failed(
    slurm: Cluster,
    home: Path,
    programs: ModuleType,
) -> None:
    assert "Invalid job id" in slurm.command("squeue", "-h", "-j", "99999", check=False).stderr
    job = submitted(programs.tells_its_node)
    job.result(timeout=WITHIN)
    check_nothing_left(slurm, home)
    assert kinetic.attach(job.job_id).result(timeout=5)["KINETIC_HOST_COUNT"] == "1"


@conformance
def test_a_reaper_finds_what_nobody_follows_and_touches_no_job_of_others(
    slurm: Cluster,
    home: Path,
    tmp_path: Path,
    programs: ModuleType,
) -> None:
    script = "#!/bin/sh\nsleep 600\n"
    other = tmp_path / "other.sh"
    other.write_text(script)
    stranger = slurm.command(
        "sbatch", "--parsable", "--output=/dev/null", "--job-name=kinetic-x", str(other)
    ).stdout.strip()
    job = begun(programs, tmp_path)
    backend = open_backend("slurm", settings.load())
    (entry,) = backend.leftovers()
    assert (entry["job"], entry["attempt"], entry["state"]) == (job.job_id, 1, "RUNNING")
    assert claim_of(entry["run"]).job in [line.split()[0] for line in slurm.jobs()]
    wait_until(lambda: backend.release(entry), "it is released", within=WITHIN)
    assert [line.split()[0] for line in slurm.jobs()] == [stranger]
    slurm.command("scancel", stranger)
    job.cancel()
    check_nothing_left(slurm, home)
