"""GPUs whose driver comes late, shows fewer than there are, or never comes; and what an image left in the way."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kinetic_orchestration.host.machine.vm import gpus

NOT_LOADED = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running."
)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the path."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(gpus, "PACE", 0.02)
    return folder


def program(folder: Path, name: str, *lines: str) -> None:
    path = folder / name
    path.write_text("\n".join(("#!/bin/sh", "PATH=/usr/bin:/bin", *lines)) + "\n")
    path.chmod(0o755)


def listing(count: int) -> str:
    return "".join(f"GPU {index}: NVIDIA L4 (UUID: GPU-{index})\n" for index in range(count)).rstrip()


def missing(wanted: int, patience: float, root: Path) -> tuple[str, list[str]]:
    told: list[str] = []
    return gpus.missing(wanted, told.append, patience=patience, root=str(root)), told


def test_a_driver_that_is_loaded_late_is_waited_for_and_what_for_is_told_once_in_a_while(
    programs: Path, tmp_path: Path
) -> None:
    count = tmp_path / "asked"
    program(
        programs, "nvidia-smi", f"echo x >> {count}",
        f'[ $(wc -l < {count}) -gt 3 ] || {{ echo "{NOT_LOADED}"; exit 9; }}', f"echo '{listing(2)}'",
    )  # fmt: skip
    lack, told = missing(2, 60.0, tmp_path)
    assert lack == ""
    assert told == [f"the driver shows none of 2 GPUs yet, which are waited for: {NOT_LOADED}"]
    assert count.read_text().count("x") == 4


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((f'echo "{NOT_LOADED}"', "exit 9"), NOT_LOADED),
        (("echo No devices were found", "exit 6"), "No devices were found"),
        (("exit 3",), "exit code 3"),
        (("exec sleep 60",), "nvidia-smi did not answer within"),
    ],
)
def test_a_driver_that_never_comes_is_told_in_its_own_words(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr(gpus, "PROBE", 0.5)
    program(programs, "nvidia-smi", *lines)
    lack, _ = missing(1, 0.2, tmp_path)
    assert lack.startswith("the driver shows none of 1 GPUs after ")
    assert said in lack


def test_fewer_gpus_than_were_asked_for_are_told_with_their_list(programs: Path, tmp_path: Path) -> None:
    program(programs, "nvidia-smi", f"echo '{listing(3)}'", "echo 'Unable to determine the device handle'", "exit 255")
    lack, told = missing(4, 0.2, tmp_path)
    assert lack.startswith("nvidia-smi lists 3 of 4 GPUs after ")
    assert "GPU 2: NVIDIA L4" in lack
    assert "Unable to determine" in lack
    assert len(told) == 1


def test_an_image_without_a_driver_is_told_as_such(programs: Path, tmp_path: Path) -> None:
    lack, _ = missing(1, 0.1, tmp_path)
    assert "this VM has no nvidia-smi: its image has no driver of NVIDIA" in lack


@pytest.mark.parametrize("place", gpus.PLACES)
def test_the_program_is_found_where_images_have_it(programs: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    program(tmp_path / place, "nvidia-smi", f"echo '{listing(1)}'")
    assert missing(1, 0.0, tmp_path) == ("", [])


def test_what_an_image_set_for_its_own_frameworks_is_cleared_and_upgrades_are_stopped(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    program(programs, "systemctl", f'echo "$@" >> {told}')
    for name in ("LD_LIBRARY_PATH", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN"):
        monkeypatch.setenv(name, "/usr/local/nvidia/lib64")
    monkeypatch.setenv("KINETIC_ANYTHING", "kept")
    assert gpus.prepare(0, str(tmp_path), print) == ""
    assert not [name for name in os.environ if name.startswith(("LD_LIBRARY", "NCCL"))]
    assert os.environ["KINETIC_ANYTHING"] == "kept"
    assert not told.exists(), "there is no such service here"
    service = tmp_path / "lib/systemd/system" / gpus.UPGRADES
    service.parent.mkdir(parents=True)
    service.touch()
    gpus.prepare(0, str(tmp_path), print)
    assert told.read_text().startswith(f"stop --no-block {gpus.UPGRADES}")


def test_upgrades_that_cannot_be_stopped_stop_nothing(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib/systemd/system").mkdir(parents=True)
    (tmp_path / "lib/systemd/system" / gpus.UPGRADES).touch()
    (programs / "systemctl").write_text("no program")
    (programs / "systemctl").chmod(0o755)
    began = time.monotonic()
    assert gpus.prepare(0, str(tmp_path), print) == ""
    assert time.monotonic() - began < 20.0
