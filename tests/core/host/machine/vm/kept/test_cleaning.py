"""The cleaning of a VM removes what came after its first start, never a place itself, and nothing outside of its root."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kinetic_orchestration.host.machine.vm.kept import cleaning
from kinetic_orchestration.host.machine.vm.kept.doubt import Unclean

DO = """
import sys
from kinetic_orchestration.host.machine.vm.kept import cleaning
from kinetic_orchestration.host.machine.vm.kept.doubt import Unclean
what, kept, *shared = sys.argv[1:]
cleaning.STARTS = 0.5
try:
    cleaning.remember(kept) if what == "remember" else cleaning.clean(kept, "KINETIC_PLACEMENT=none", shared)
except Unclean as unclean:
    sys.exit(f"unclean: {unclean}")
"""
HOLD = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
PLACES = ("dev/shm", "etc", "home", "root", "tmp", "usr/bin", "var/tmp")


class Ground:
    """The disk of a VM below a folder, as its startup script leaves it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.home = self.root / "var" / "lib" / "kinetic"
        self.kept = self.home / "kept"
        for place in (*PLACES, "var/lib/kinetic"):
            (self.root / place).mkdir(parents=True)
        (self.home / "boot.py").touch()
        self.put("etc/passwd", "root/.profile", "home/me/notes", "usr/bin/tool", "tmp/of-system")
        self._armed: subprocess.Popen[str] | None = None

    def put(self, *paths: str) -> None:
        for path in paths:
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(path)

    def arm(self) -> None:
        """Have a process hold the deadline."""
        command = [sys.executable, "-c", HOLD, str(self.home / "deadline.lock")]
        self._armed = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._armed.stdout is not None
        assert self._armed.stdout.readline() == "held\n"

    def disarm(self) -> None:
        if self._armed is not None:
            self._armed.communicate("")
            self._armed = None

    def do(self, what: str, kept: Path | None = None, *shared: str) -> str:
        """Remember or clean, in a process of its own that has this root. Returns why it is unclean."""
        command = [sys.executable, "-c", DO, what, str(kept or self.kept), *shared]
        environ = {**os.environ, "KINETIC_ROOT": str(self.root)}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0 or done.stderr.startswith("unclean: "), done.stderr
        return done.stderr.strip().removeprefix("unclean: ")

    def remembered(self) -> Ground:
        assert self.do("remember") == ""
        assert "why" not in json.loads((self.kept / cleaning.BASELINE).read_text())
        return self

    def files(self) -> set[str]:
        """Return all files but the agent's own."""
        every = {str(path.relative_to(self.root)) for path in self.root.rglob("*") if not path.is_dir()}
        return {path for path in every if not path.startswith("var/lib/kinetic")}

    def folders(self) -> set[str]:
        return {place for place in PLACES if (self.root / place).is_dir()}


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    found = Ground(tmp_path)
    found.arm()
    yield found
    found.disarm()


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder outside of the VM's root, of which nothing may change."""
    folder = tmp_path / "outside"
    (folder / "tmp").mkdir(parents=True)
    (folder / "tmp" / "precious").write_text("mine")
    yield folder
    assert (folder / "tmp" / "precious").read_text() == "mine"


def test_what_is_new_goes_and_all_else_stays_however_often(ground: Ground, outside: Path) -> None:
    ground.remembered()
    before = ground.files()
    for _ in range(2):
        ground.put("tmp/a/b/c", "root/.ssh/id", "home/me/file", "dev/shm/left")
        ground.put("tmp/of-system-too")
        (ground.root / "tmp" / "link").symlink_to(outside)
        (ground.root / "tmp" / "a" / "up").symlink_to(ground.root / "etc")
        assert ground.do("clean") == ""
        assert ground.files() == before
        assert ground.folders() == set(PLACES)


def test_copies_of_checkpoints_in_memory_stay_and_nothing_that_only_begins_as_they_do(ground: Ground) -> None:
    ground.remembered()
    shared = str(ground.root / "dev/shm/kinetic-tier-1")
    ground.put("dev/shm/kinetic-tier-1/a/t/slot-0/copy", "dev/shm/kinetic-tier-12/copy", "dev/shm/left")
    assert ground.do("clean", None, shared) == ""
    assert {path for path in ground.files() if path.startswith("dev")} == {"dev/shm/kinetic-tier-1/a/t/slot-0/copy"}
    assert ground.do("clean") == ""
    assert not {path for path in ground.files() if path.startswith("dev")}


def test_a_place_that_was_not_there_before_is_a_doubt_and_stays(ground: Ground) -> None:
    ground.remembered()
    ground.put("opt/of-somebody/file")
    assert ground.do("clean") == "/opt was not there before"
    assert "opt/of-somebody/file" in ground.files()


def test_a_place_that_the_baseline_lacks_is_a_doubt_and_stays(ground: Ground) -> None:
    ground.remembered()
    path = ground.kept / cleaning.BASELINE
    known = json.loads(path.read_text())
    places, facts, _ = known["files"]
    for one in [one for one in facts if one.startswith("etc")]:
        del facts[one]
    del places["etc"]
    path.write_text(json.dumps(known))
    assert ground.do("clean") == "/etc was not there before"
    assert "etc/passwd" in ground.files()


@pytest.mark.parametrize("place", ["home", "tmp", "var/tmp"])
def test_another_folder_in_a_place_is_a_doubt_and_nothing_of_it_goes(ground: Ground, outside: Path, place: str) -> None:
    ground.remembered()
    (ground.root / place).rename(ground.root / "aside")
    (ground.root / place).mkdir()
    ground.put(f"{place}/file", *(["home/me/notes"] if place == "home" else []))
    ground.do("clean")
    assert f"{place}/file" in ground.files()
    (ground.root / place).rename(ground.root / "aside-too")
    (ground.root / place).symlink_to(outside)
    assert ground.do("clean")
    (ground.root / place).unlink()
    (ground.root / place).symlink_to(ground.root / "etc")
    assert ground.do("clean")
    assert "etc/passwd" in ground.files()


def test_a_folder_above_a_place_that_became_a_link_leads_nowhere(ground: Ground, outside: Path) -> None:
    ground.remembered()
    (ground.root / "var" / "tmp").rmdir()
    (ground.root / "var" / "lib").rename(ground.root / "lib")
    (ground.root / "var").rmdir()
    (ground.root / "var").symlink_to(outside)
    assert ground.do("clean") == "it is no machine that a startup script of ours has made"


def _without_program(ground: Ground) -> None:
    (ground.home / "boot.py").unlink()


def _elsewhere(ground: Ground) -> None:
    ground.home.rename(ground.root / "kinetic")
    ground.home.symlink_to(ground.root / "kinetic")


@pytest.mark.parametrize("change", [_without_program, _elsewhere, Ground.disarm], ids=lambda one: one.__name__)
def test_a_machine_that_no_startup_script_has_made_is_not_cleaned(
    ground: Ground, change: Callable[[Ground], None]
) -> None:
    ground.remembered()
    ground.put("tmp/new", "var/lib/kinetic/new")
    change(ground)
    assert ground.do("clean") in (
        "it is no machine that a startup script of ours has made",
        "its deletion is not armed",
    )
    assert (ground.root / "tmp" / "new").exists()
    assert (ground.home / "new").exists()


def test_an_agent_with_another_home_remembers_nothing_and_cleans_nothing(ground: Ground, tmp_path: Path) -> None:
    kept = tmp_path / "home" / "kept"
    assert ground.do("remember", kept) == ""
    assert json.loads((kept / cleaning.BASELINE).read_text()) == {
        "why": "it is no machine that a startup script of ours has made"
    }
    ground.put("tmp/new")
    assert ground.do("clean", kept) == "it is no machine that a startup script of ours has made"
    assert "tmp/new" in ground.files()


def test_this_very_machine_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the check is called, which changes nothing: no test ever cleans below another root than its own."""
    monkeypatch.delenv("KINETIC_ROOT", raising=False)
    with pytest.raises(Unclean, match="no machine that a startup script of ours has made"):
        cleaning._check_is_ours(str(tmp_path / "kept"))


def test_what_is_mounted_in_scratch_is_unmounted_and_what_it_has_stays(ground: Ground, outside: Path) -> None:
    place = ground.root / "dev" / "shm" / "mounted"
    ground.remembered()
    place.mkdir()
    if subprocess.run(["mount", "--bind", str(outside), str(place)], capture_output=True, check=False).returncode:
        pytest.skip("no small file system can be mounted here")
    try:
        assert (place / "tmp" / "precious").exists()
        assert ground.do("clean") == ""
        assert not place.exists()
    finally:
        subprocess.run(["umount", "--lazy", str(place)], capture_output=True, check=False)
