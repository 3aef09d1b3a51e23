"""The first program of a pod, as far as it needs no pod."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kinetic_orchestration.host.machine.pod import start as pod_start
from kinetic_orchestration.protocol import attempt_rules, wire
from kinetic_orchestration.protocol.records.base import Misconfigured

pytestmark = pytest.mark.fast


def test_its_exit_codes_and_its_patience_are_those_of_the_agent() -> None:
    assert {cause: wire.EXIT_CODES[cause] for cause in pod_start.CODES} == pod_start.CODES
    causes = {failed.cause for failed in (pod_start.bootstrap.Failed, *pod_start.bootstrap.Failed.__subclasses__())}
    assert causes | {Misconfigured.cause} <= pod_start.CODES.keys()
    assert pod_start.HEARD == attempt_rules.HEARD


def test_the_programs_of_a_mounted_driver_are_found_after_those_of_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GKE mounts them where a plain Python image does not look."""
    image, driver = tmp_path / "usr/bin", tmp_path / pod_start.DRIVER["PATH"]
    monkeypatch.setenv("KINETIC_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", str(image))
    pod_start.find_driver()
    assert os.environ["PATH"] == str(image)
    for folder, name in ((image, "python3"), (driver, "python3"), (driver, "nvidia-smi")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).touch(0o755)
    pod_start.find_driver()
    pod_start.find_driver()
    assert shutil.which("nvidia-smi") == str(driver / "nvidia-smi")
    assert shutil.which("python3") == str(image / "python3")
    assert os.environ["PATH"].count(str(driver)) == 1


@pytest.mark.parametrize("own", ["", "/opt/ours/lib"])
def test_the_libraries_of_a_mounted_driver_are_found_in_an_image_that_names_no_place_of_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    """Tests a user's image without CUDA's own variables: JAX would compute on the processor, at the GPU's price."""
    monkeypatch.setenv("KINETIC_ROOT", str(tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", own)
    pod_start.find_driver()
    assert os.environ["LD_LIBRARY_PATH"] == own
    driver = tmp_path / pod_start.DRIVER["LD_LIBRARY_PATH"]
    driver.mkdir(parents=True)
    pod_start.find_driver()
    pod_start.find_driver()
    assert os.environ["LD_LIBRARY_PATH"].split(":") == [*filter(None, [own]), str(driver)]
