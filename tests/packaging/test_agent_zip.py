"""The agent as one file: the same bytes each time, complete, and able to be a host by itself."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.platforms import agent_zip
from tests.agent.by_hand import intended, start_host

PACKAGE = Path(kinetic.__file__).parent


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    path = tmp_path / "agent.zip"
    path.write_bytes(agent_zip.build().data)
    return path


def test_the_same_sources_give_the_same_bytes_from_a_copy_with_other_times_and_modes(tmp_path: Path) -> None:
    here = agent_zip.build()
    assert agent_zip.build() == here
    copy = tmp_path / "copy"
    shutil.copytree(PACKAGE, copy / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in copy.rglob("*.py"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
        os.chmod(path, 0o600)
    program = (
        "from kinetic_orchestration.platforms import agent_zip as agent; print(agent.__file__, agent.build().digest)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True,
        cwd=copy, env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.stdout.split() == [str(copy / PACKAGE.name / "platforms" / "agent_zip.py"), here.digest]


def test_it_holds_the_pure_package_and_cloudpickle_and_nothing_else(packed: Path) -> None:
    with zipfile.ZipFile(packed) as archive:
        names = archive.namelist()
        assert {(entry.date_time, entry.external_attr >> 16) for entry in archive.infolist()} == {
            ((1980, 1, 1, 0, 0, 0), 0o644)
        }
    assert names == sorted(names)
    assert {name.split("/")[1] for name in names if "/" in name} == {"cloudpickle", "kinetic_orchestration"}
    assert [name for name in names if "/" not in name] == ["__main__.py", "child.py"]
    assert "site/kinetic_orchestration/host/process/hook/sitecustomize.py" in names
    assert not [name for name in names if "/test" in name or not name.endswith(".py")]


def test_it_does_not_remember_where_it_was_made(packed: Path) -> None:
    assert str(PACKAGE.parent).encode() not in packed.read_bytes()


def test_the_zip_itself_is_a_host(home: Path, packed: Path, tmp_path: Path) -> None:
    """No unpacking, no site-packages: a function's value, its lines, and a command with the package beside it."""

    def compute() -> int:
        print("from the zip")
        return 6 * 7

    job = intended(compute)
    start_host(job, sys.executable, packed)
    handle = kinetic.attach(job.job_id)
    assert (handle.result(), handle.logs()) == (42, "from the zip\n")

    (tmp_path / "project").mkdir()
    program = "import kinetic_orchestration as k; print(k.current().job_id)"
    job = intended(argv=["python", "-c", program], cwd=str(tmp_path / "project"))
    start_host(job, sys.executable, packed)
    handle = kinetic.attach(job.job_id)
    handle.result()
    assert handle.logs() == f"{job.job_id}\n"


# -- unpacked on this machine ---------------------------------------------------------------------------------------


def test_it_is_unpacked_once_with_its_byte_code(tmp_path: Path) -> None:
    folder = agent_zip.unpacked(tmp_path)
    assert agent_zip.unpacked(tmp_path) == folder
    assert folder.parent == tmp_path / "agent"
    assert list(tmp_path.iterdir()) == [folder.parent]
    assert list(folder.parent.iterdir()) == [folder]
    cached = folder / "site/kinetic_orchestration/host/__pycache__"
    assert (cached / f"host.{sys.implementation.cache_tag}.pyc").is_file()
    with zipfile.ZipFile(io.BytesIO(agent_zip.build().data)) as archive:
        assert all((folder / name).read_bytes() == archive.read(name) for name in archive.namelist())


@pytest.mark.slow
def test_eight_first_jobs_at_once_unpack_it_whole(tmp_path: Path) -> None:
    program = f"from pathlib import Path; from kinetic_orchestration.platforms import agent_zip as agent; print(agent.unpacked(Path({str(tmp_path)!r})))"
    racers = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(8)]
    answers = {racer.communicate(timeout=60)[0].strip() for racer in racers}
    assert answers == {str(agent_zip.unpacked(tmp_path))}
    assert [racer.returncode for racer in racers] == [0] * 8
    assert [path.name for path in (tmp_path / "agent").iterdir()] == [agent_zip.unpacked(tmp_path).name]


def test_old_versions_go_when_a_new_one_comes_but_not_those_that_jobs_may_still_run_from(tmp_path: Path) -> None:
    parent, now, day = tmp_path / "agent", time.time(), 86400.0
    ages = {"young": 1, "middle": 6, "old": 8, "older": 30, "oldest": 90, ".new-rubble": 8, ".new-busy": 0}
    for name, days in ages.items():
        (parent / name).mkdir(parents=True)
        os.utime(parent / name, (now - days * day, now - days * day))
    newest = agent_zip.unpacked(tmp_path)
    assert {path.name for path in parent.iterdir()} == {newest.name, "young", "middle", ".new-busy"}


def test_a_version_that_is_used_stays_young(tmp_path: Path) -> None:
    folder = agent_zip.unpacked(tmp_path)
    os.utime(folder, (0, 0))
    agent_zip.unpacked(tmp_path)
    assert folder.stat().st_mtime > time.time() - 60
