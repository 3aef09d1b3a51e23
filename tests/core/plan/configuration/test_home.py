"""The home as somebody else would have it: another user of the machine, a careless umask, a folder above it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kinetic_orchestration.cli import doctor
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.configuration import home as homes
from kinetic_orchestration.plan.configuration.settings import load
from kinetic_orchestration.protocol.system import folders

pytestmark = pytest.mark.fast

OTHER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes another user's folders")


@pytest.fixture
def top() -> Iterator[Path]:
    """Make a folder where every user can go, unlike `tmp_path`."""
    folder = Path(tempfile.mkdtemp(prefix="kinetic-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def home_of(folder: Path, **more: str) -> Path:
    return load({"KINETIC_HOME": str(folder), "KINETIC_PROFILE_FILE": "/none", **more}).home


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mask", [0o000, 0o002, 0o022, 0o077])
def test_a_new_home_is_private_whatever_the_umask(top: Path, umask: Callable[[int], int], mask: int) -> None:
    umask(mask)
    home = home_of(top / "a" / "b" / "home")
    assert mode(home) == 0o700
    assert mode(home.parent) == 0o755 & ~mask  # which would let others replace it
    assert home_of(home) == home


def test_a_home_that_an_older_version_made_is_tightened(top: Path) -> None:
    (top / "home").mkdir(mode=0o755)
    (top / "home").chmod(0o755)
    assert mode(home_of(top / "home")) == 0o700


def test_what_a_job_leaves_in_its_run_folder_is_read_by_nobody_else(home: Path, umask: Callable[[int], int]) -> None:
    from kinetic_orchestration import run

    umask(0)
    shutil.rmtree(home / "run", ignore_errors=True)
    job = run(accelerator="cpu")(lambda: 1).run_async()
    modes = {mode(home / "run"), *(mode(folder) for folder in (home / "run").iterdir() if folder.is_dir())}
    assert job.result(timeout=60) == 1
    assert modes == {0o700}


@pytest.mark.parametrize("bits", [0o777, 0o722, 0o1777])
def test_a_home_that_others_may_write_is_refused_with_the_line_that_mends_it(top: Path, bits: int) -> None:
    home = top / "home"
    home.mkdir()
    home.chmod(bits)
    with pytest.raises(UsageError, match=rf"others may write it \(mode {bits:04o}\).*chmod 700 {home}"):
        home_of(home)
    assert mode(home) == bits  # what is in it may be anybody's
    home.chmod(0o700)
    assert home_of(home) == home


def test_also_the_default_home_is_refused_if_others_may_write_it(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(top))
    home = top / "kinetic-orchestration"
    home.mkdir()
    home.chmod(0o777)
    with pytest.raises(UsageError, match=r"\(default\) cannot be used: others may write it"):
        load({"KINETIC_PROFILE_FILE": "/none"})


@pytest.mark.parametrize("bits", [0o777, 0o775, 0o2777])
def test_a_folder_above_that_others_may_write_is_refused(top: Path, monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    monkeypatch.setattr(folders, "is_own_group", lambda _: False)
    above = top / "above"
    (above / "between").mkdir(parents=True)
    above.chmod(bits)
    with pytest.raises(UsageError, match=rf"{above} above it can be written by others .*chmod go-w {above}"):
        home_of(above / "between" / "home")
    above.chmod(0o1777)  # as /tmp
    assert home_of(above / "between" / "home")


def test_a_link_is_followed_and_its_way_is_looked_at(top: Path) -> None:
    (top / "open" / "home").mkdir(parents=True)
    (top / "home").symlink_to("open/../open/home")
    assert home_of(top / "home")
    (top / "open").chmod(0o777)
    homes._seen.clear()
    with pytest.raises(UsageError, match=rf"{top}/open above it can be written by others"):
        home_of(top / "home")


def test_the_users_own_group_is_nobody_else(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some systems give each user a group, with a umask of 002."""
    (top / "home").mkdir()
    for folder in (top, top / "home"):
        folder.chmod(0o775)
    monkeypatch.setattr(folders, "is_own_group", lambda gid: gid == os.getegid())
    assert mode(home_of(top / "home")) == 0o700


def test_a_volume_of_a_container_may_be_writable_for_all_and_a_folder_in_it_is_the_home(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top.chmod(0o2777)
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == top)
    monkeypatch.setattr(homes, "_CONTAINED", ())
    with pytest.raises(UsageError, match="can be written by others"):
        home_of(top / "home")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert mode(home_of(top / "home")) & 0o777 == 0o700
    with pytest.raises(UsageError, match="others may write it"):
        home_of(top)


@needs_root
def test_the_home_of_another_user_is_refused(top: Path) -> None:
    home = top / "home"
    home.mkdir(mode=0o700)
    os.chown(home, OTHER, OTHER)
    with pytest.raises(UsageError, match=rf"it belongs to .*uid {OTHER}\) and you are .*chown -R root {home}"):
        home_of(home)


@needs_root
@pytest.mark.parametrize("link", [False, True])
def test_a_way_of_another_user_is_refused(top: Path, link: bool) -> None:
    top.chmod(0o1777)
    if link:  # which its owner can point somewhere else
        (top / "mine").mkdir(mode=0o700)
        (top / "above").symlink_to("mine")
    else:
        (top / "above").mkdir(mode=0o755)
    os.chown(top / "above", OTHER, OTHER, follow_symlinks=False)
    with pytest.raises(UsageError, match=rf"{top}/above above it belongs to .*uid {OTHER}"):
        home_of(top / "above" / "home")


AS_ANOTHER = """
import grp, os, pwd, sys
import platformdirs.unix
import encodings.ascii, kinetic_orchestration.plan.configuration.home  # which that user may not read
from kinetic_orchestration.plan.configuration.settings import load
os.setgid({gid}), os.setgroups([{gid}]), os.setuid({uid})
os.environ.clear()
os.environ.update(KINETIC_PROFILE_FILE="/none", TMPDIR=sys.argv[2], XDG_DATA_HOME=sys.argv[1])
here = load()
print(here.home, oct(os.stat(here.home).st_mode))
try:
    load({{"KINETIC_HOME": sys.argv[1], "KINETIC_PROFILE_FILE": "/none"}})
except Exception as error:
    print(error)
"""


@needs_root
def test_a_user_whom_an_image_does_not_know_is_given_a_home_and_told_where(top: Path) -> None:
    """OpenShift runs images so: any number as the user, 0 as the group, folders of root that this group may write."""
    data, temporary = top / "data", top / "tmp"
    for folder, bits in ((data, 0o2775), (temporary, 0o1777)):
        folder.mkdir()
        folder.chmod(bits)
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", AS_ANOTHER.format(uid=1000680000, gid=0), str(data), str(temporary)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made, refused = done.stdout.splitlines()
    assert made == f"{temporary}/kinetic-orchestration-1000680000 0o40700"
    assert "can be written by others" in done.stderr and "set KINETIC_HOME" in done.stderr
    assert "it belongs to root (uid 0) and you are uid 1000680000" in refused
    assert f"a folder of your own, such as a new one within it ({data}/1000680000)" in refused


def test_doctor_tells_whose_the_home_is_and_who_may_read_it(home: Path) -> None:
    def found() -> list[doctor.Check]:
        return [check for check in doctor.examine(dict(os.environ)).checks if str(home) in check.found + check.fix]

    home.chmod(0o755)
    assert any("mode 0700" in check.found and "it belongs to" in check.found for check in found())
    home.chmod(0o777)
    refused = [check for check in found() if check.state == doctor.FAILED]
    home.chmod(0o700)
    assert [f"chmod 700 {home}" in check.fix for check in refused] == [True]
