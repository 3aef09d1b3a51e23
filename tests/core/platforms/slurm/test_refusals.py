"""What Slurm or its cluster does not have: a sentence with the fix, and nothing is left half made."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import KineticError
from tests.support.slurm.cluster import Cluster
from tests.support.slurm.jobs import WITHIN, check_nothing_left, conformance, job_of, submitted
from tests.support.waits import wait_until

pytestmark = pytest.mark.usefixtures("on_slurm")

REFUSED = {
    "partition": ({"partition": "gpus"}, "Slurm has no partition gpus: name one of batch, short"),
    "gres": ({"gres": "gpu:h100:1"}, "has gpu:h100:1 for gpu; they have gpu:tesla:2: name what is there"),
    "too many": ({"gres": "gpu:3"}, "has gpu:3 for gpu; they have gpu:tesla:2"),
    "another resource": ({"gres": "fpga:1"}, "has fpga:1 for gpu; they have gpu:tesla:2"),
    "account": ({"account": "nobody"}, "Invalid account .*: name an account of yours with cloud=Slurm"),
    "qos": ({"qos": "golden"}, "Invalid qos .*: name another with cloud=Slurm"),
    "feature": ({"constraint": "nvlink"}, "Invalid feature specification: see `sinfo"),
    "an account of the partition": ({"partition": "physics"}, "will never start .*not open to the account"),
    "too many nodes": ({"partition": "one", "hosts": 2}, "will never start .*ask for fewer with hosts="),
    "too long": ({"partition": "short", "time": "90"}, "will never start .*ask for less with limits.run"),
}


@pytest.mark.slow
@pytest.mark.turn(1)
@pytest.mark.parametrize("what", REFUSED)
def test_what_slurm_does_not_have_is_a_sentence_with_its_fix_and_nothing_is_left(
    what: str,
    slurm: Cluster,
    home: Path,
    programs: ModuleType,
) -> None:
    cloud, told = REFUSED[what]
    with pytest.raises(KineticError, match=told):
        submitted(programs.tells_its_node, accelerator="gpu", cloud=kinetic.Slurm(**cloud)).result(timeout=WITHIN)
    check_nothing_left(slurm, home)


def test_a_store_that_is_no_folder_is_refused(programs: ModuleType) -> None:
    job = kinetic.run(accelerator="cpu", backend="slurm", store="s3://bucket/kinetic", deployment="prod")
    with pytest.raises(KineticError, match=r"read the store as files.*KINETIC_STORE"):
        job(programs.tells_its_node).run_async()


@conformance
def test_a_cluster_without_a_shared_folder_is_told(
    slurm: Cluster,
    home: Path,
    programs: ModuleType,
) -> None:
    slurm.stop("n3")
    slurm.start_node("n3", without=home)
    try:
        slurm.await_idle("n3")
        with pytest.raises(KineticError, match=r"node does not see the folder .*cloud=Slurm"):
            submitted(programs.tells_its_node, cloud=kinetic.Slurm(partition="last")).result(timeout=WITHIN)
        found = subprocess.run(
            [sys.executable, "-m", "kinetic_orchestration.cli", "doctor"],
            capture_output=True,
            text=True,
            timeout=WITHIN,
        )
        assert "a node sees" in found.stdout, textwrap.shorten(found.stdout, 2000)
    finally:
        slurm.stop("n3")
        slurm.start_node("n3")
        slurm.await_idle("n3")
    check_nothing_left(slurm, home)


@conformance
def test_a_machine_without_slurms_commands_is_told_and_nothing_is_made(
    slurm: Cluster,
    home: Path,
    tmp_path: Path,
    programs: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for missing in (("sinfo", "sbatch"), ("sbatch",)):
        place = tmp_path / "-".join(missing)
        place.mkdir()
        for name in {"sinfo", "squeue", "scancel", "scontrol", "srun"} - {*missing}:
            (place / name).symlink_to(f"/usr/bin/{name}")
        with monkeypatch.context() as patch:
            patch.setenv("PATH", str(place))
            with pytest.raises(KineticError, match=r"is not on PATH: .*Submit from a login node .*module load slurm"):
                submitted(programs.tells_its_node, cloud=kinetic.Slurm(cpus=len(missing))).result(timeout=WITHIN)
        check_nothing_left(slurm, home)


@conformance
def test_a_controller_that_is_down_is_told_and_the_job_begins_once_it_answers(
    slurm: Cluster,
    home: Path,
    programs: ModuleType,
) -> None:
    doctor = [sys.executable, "-m", "kinetic_orchestration.cli", "doctor"]
    slurm.stop("slurmctld")
    try:
        job = submitted(programs.tells_its_node)
        found = subprocess.run(doctor, capture_output=True, text=True, timeout=WITHIN, env=os.environ)
    finally:
        slurm.start_controller()
        slurm.await_idle()
    told = found.stdout + found.stderr
    assert "scontrol ping" in told and found.returncode, textwrap.shorten(told, 2000)
    assert job.result(timeout=WITHIN)["KINETIC_HOST_COUNT"] == "1"
    assert job.attempts() == 1
    check_nothing_left(slurm, home)


@conformance
def test_a_job_ends_once_its_money_is_spent_and_slurm_would_end_it_soon_after(
    slurm: Cluster,
    home: Path,
    tmp_path: Path,
    programs: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KINETIC_PRICES", "gpu=360")  # a dollar pays for ten seconds
    asked = {"accelerator": "gpu", "limits": kinetic.Limits(cost=1)}
    with pytest.raises(KineticError, match=r"limits.cost counts 1 GPUs of each node .*gres='gpu:2'"):
        submitted(programs.waits_in, str(tmp_path), cloud=kinetic.Slurm(gres="gpu:2"), **asked)
    check_nothing_left(slurm, home)
    job = submitted(programs.waits_in, str(tmp_path), **asked)
    wait_until((tmp_path / "runs-1-0").exists, "the program runs", within=WITHIN)
    assert slurm.command("squeue", "-h", "-j", job_of(slurm), "-o", "%l").stdout.strip() == "3:00"
    with pytest.raises(KineticError, match=r"limits\.cost pays|cost limit"):
        job.result(timeout=WITHIN)
    assert job.attempts() == 1
    check_nothing_left(slurm, home)
