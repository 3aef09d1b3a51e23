"""What follows from what squeue says, and what sbatch is told: pure."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kinetic_orchestration.plan.declare.limits import Limits, Retry
from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.values import ABSENT, GONE, PRESENT, PROVISIONING, QUEUED, Plan
from kinetic_orchestration.platforms.slurm import commands, script, states
from kinetic_orchestration.platforms.slurm.preflight import _fits
from kinetic_orchestration.platforms.slurm.states import Claim
from kinetic_orchestration.protocol import wire

pytestmark = pytest.mark.fast
NAME = "kinetic-0a1b2c3d-0123456789ab-1"
BEGUN = Claim(True, "17", 0, "it said this")


def row(state: str, reason: str = "None", restarts: int = 0, code: int = 0, id_: str = "17") -> str:
    """Return a line as squeue writes it."""
    return "\x1f".join([id_, state, str(restarts), "1796100000", "2", str(code), NAME, "n[1-2]", reason, ""])


@pytest.mark.parametrize(
    ("line", "claim", "state", "cause", "words"),
    [
        (row("PENDING", "Priority"), Claim(True), QUEUED, "", "higher priority come first"),
        (row("PENDING", "QOSMaxCpuPerUserLimit"), Claim(True), QUEUED, "", "a limit of its account or QOS"),
        (
            row("PENDING", "(ReqNodeNotAvail, UnavailableNodes:n3)"),
            Claim(True),
            QUEUED,
            "",
            "down, drained or reserved",
        ),
        (row("PENDING", "PartitionTimeLimit"), Claim(True), GONE, wire.CONFIGURATION, "ask for less with limits.run"),
        (row("CONFIGURING"), Claim(True), PROVISIONING, "", "Slurm prepares n[1-2]"),
        (row("RUNNING"), BEGUN, PRESENT, "", "job 17 of Slurm on n[1-2]"),
        (row("COMPLETING"), BEGUN, PRESENT, "", ""),  # of one that fails as well: it is not over
        (row("PENDING", "BeginTime", restarts=1), BEGUN, GONE, wire.PREEMPTION, "back into its queue"),
        (row("RUNNING", restarts=1), BEGUN, GONE, wire.PREEMPTION, "back into its queue"),
        (row("PENDING", "BeginTime", restarts=1), Claim(True), QUEUED, "", "may not begin yet"),  # it had never begun
        (row("CANCELLED by 1000"), BEGUN, GONE, wire.CANCELLED, "somebody has cancelled it"),
        (row("CANCELLED+"), BEGUN, GONE, wire.CANCELLED, "somebody has cancelled it"),
        (row("TIMEOUT"), BEGUN, GONE, wire.PREEMPTION, "its time was over"),
        (row("PREEMPTED"), BEGUN, GONE, wire.PREEMPTION, ""),
        (row("NODE_FAIL"), BEGUN, GONE, wire.INFRASTRUCTURE, ""),
        (row("OUT_OF_MEMORY"), BEGUN, GONE, wire.USER, "memory="),
        (
            row("FAILED", code=script.NO_FOLDER << 8),
            Claim(True),
            GONE,
            wire.CONFIGURATION,
            "does not see the folder /f",
        ),
        (row("FAILED", code=script.NO_PYTHON), Claim(True), GONE, wire.CONFIGURATION, "no Python at the path"),
        (row("FAILED", code=script.TIME_LIMIT << 8), BEGUN, GONE, wire.PREEMPTION, "its time was over"),
        (row("COMPLETED"), Claim(), ABSENT, "", ""),  # its folder is released
        ("slurm_load_jobs: a line of the site's own", BEGUN, ABSENT, "", ""),
        ("", BEGUN, ABSENT, "", ""),  # Slurm has forgotten it, which is no failure
        ("", BEGUN._replace(ended="cancelled"), GONE, wire.CANCELLED, "job 17 has ended: somebody has cancelled it"),
        ("", BEGUN._replace(ended="requeued"), GONE, wire.PREEMPTION, "back into its queue"),
        ("", BEGUN._replace(ended="time"), GONE, wire.PREEMPTION, "its time was over"),
        ("", BEGUN._replace(ended="a stranger's word"), ABSENT, "", ""),
        (row("RUNNING"), BEGUN._replace(ended="cancelled"), PRESENT, "", ""),  # while Slurm knows it, Slurm counts
    ],
)
def test_what_slurm_says_of_a_job(line: str, claim: Claim, state: str, cause: str, words: str) -> None:
    seen = states.judge("/f", states.rows(line), claim)
    assert (seen.state, seen.cause) == (state, cause)
    assert words in seen.message


def test_of_several_jobs_of_a_name_the_one_that_has_the_claim_counts() -> None:
    both = states.rows("\n".join([row("PENDING", "Dependency", id_="18"), row("RUNNING", id_="17")]))
    assert states.judge("/f", both, BEGUN).state == PRESENT
    assert "17" in states.judge("/f", both, Claim(True)).message


@pytest.mark.parametrize(
    ("wanted", "there", "fits"),
    [
        ("gpu:2", "gpu:tesla:2", True),
        ("gpu", "gpu:tesla:2", True),
        ("gpu:tesla:2", "gpu:tesla:2", True),
        ("gpu:3", "gpu:tesla:2", False),
        ("gpu:h100:1", "gpu:tesla:2", False),
        ("fpga:1", "gpu:tesla:2", False),
        ("gpu:h100:1", "gpu:4", False),
    ],
)
def test_which_generic_resources_a_node_has(wanted: str, there: str, fits: bool) -> None:
    assert _fits(wanted, there) is fits


@pytest.mark.parametrize("nodes", [1, 3])
def test_the_script_is_one_that_a_shell_reads_whatever_the_folder_is_called(nodes: int) -> None:
    run = '/home/it\'s $(me) "here"/kinetic-slurm/name'
    text = script.script(run, "/usr/bin/python3", ["python", "store=a b'c"], "boot", nodes, "/store's/verdict")
    subprocess.run(["sh", "-n"], input=text.encode(), check=True)
    assert ("srun" in text) is (nodes > 1)


def test_nothing_of_the_job_that_submits_another_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SBATCH_PARTITION", "SLURM_NTASKS", "KINETIC_SIGNING_KEY", "SECRET"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
    found = commands.environment()
    assert found["SLURM_CONF"] == "/etc/slurm/slurm.conf"
    assert not {"SLURM_JOB_ID", "SBATCH_PARTITION", "SLURM_NTASKS"} & found.keys()
    assert script.environment({**found, "PATH": "/bin"}).keys() <= {*script.PASSED, "SLURM_CONF", "LC_ALL"}


def test_what_a_command_writes_controls_no_terminal() -> None:
    assert commands.told(commands.printable(b"sbatch: error: \x1b[2Jbad\x07\n")) == "?[2Jbad?"


def test_a_machine_without_slurms_commands_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(commands.Silent, match=r"none of Slurm's commands. Submit from a login node") as found:
        commands.run(["sbatch"])
    assert found.value.cause == wire.CONFIGURATION


@pytest.mark.parametrize("why", ["Connection timed out", "Connection reset by peer", "No route to host"])
def test_a_lost_answer_is_no_refusal_whose_job_would_lose_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    (tmp_path / "sbatch").write_text(
        f"#!/bin/sh\necho 'sbatch: error: Batch job submission failed: {why}' >&2\nexit 1\n"
    )
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(commands.Silent, match=why):
        commands.run(["sbatch"])


def test_a_command_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "squeue").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(commands.Silent, match=r"no answer to squeue within 0.3 s") as found:
        commands.run(["squeue"], patience=0.3)
    assert found.value.cause == wire.INTERNAL


def test_an_answer_is_bounded_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "squeue").write_text("#!/bin/sh\nexec yes\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(commands, "LONGEST", 1 << 20)
    with pytest.raises(commands.Silent, match=r"squeue wrote more than 1 MiB"):
        commands.run(["squeue"], patience=60)


def test_a_command_has_all_that_it_is_told_and_the_end_of_its_errors_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\nwc -c\nyes no | head -n 100000 >&2\necho last >&2\nexit 3\n")
    (tmp_path / "sinfo").write_text("#!/bin/sh\nexec <&-\necho deaf\n")
    for name in ("sbatch", "sinfo"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    done = commands.run(["sbatch"], said="x" * 3_000_000, patience=60)
    assert (done.code, done.out.strip(), commands.told(done.errors)) == (3, "3000000", "last")
    assert len(done.errors) <= commands.LAST
    assert commands.run(["sinfo"], said="x" * 3_000_000, patience=60) == (0, "deaf\n", "")


@pytest.mark.parametrize(
    ("cloud", "affordable", "limit"),
    [
        ({}, 0.0, ""),
        ({}, 600.0, "12"),  # and a minute twice, in which programs could be told of it
        ({"time": "5"}, 600.0, "5"),
        ({"time": "30:00"}, 600.0, "12"),
        ({"time": "1:00:00"}, 600.0, "12"),
        ({"time": "1-00"}, 600.0, "12"),
        ({"time": "UNLIMITED"}, 600.0, "12"),
        ({"time": "1-12:30"}, 0.0, "1-12:30"),
    ],
)
def test_the_time_limit_is_no_longer_than_the_money_lasts(cloud: dict[str, str], affordable: float, limit: str) -> None:
    plan = Plan("train", accelerators.parse("gpu"), "slurm", "/store", "prod", Limits(), Retry(), cloud=cloud)
    assert script.time_limit(plan, affordable) == limit
