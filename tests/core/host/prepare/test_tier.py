"""The folders for copies of checkpoints: one for each identity, offered where they can help, and cleaned by the host."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kinetic_orchestration.host.machine.machine import Machine
from kinetic_orchestration.host.machine.pod.pod import Pod
from kinetic_orchestration.host.machine.vm.vm import Vm
from kinetic_orchestration.host.prepare import tier
from kinetic_orchestration.protocol.assignment import Assignment

pytestmark = pytest.mark.fast

PLACE = "gs://bucket/kinetic/prod/checkpoints/train"


def at(home: Path, hosts: int = 1) -> Assignment:
    return Assignment("gs://b/s", "job-1", 1, 0, hosts, "", "boot", "/run", str(home), "python", "marker")


def told(home: Path, kind: type[Machine] = Vm, place: str = PLACE, hosts: int = 1, seal: str = "") -> Any:
    task: Any = SimpleNamespace(checkpoint_dir=place)
    here = at(home, hosts)
    return tier.environ(here, task, kind(here), [f"10.0.0.{host}" for host in range(hosts)], seal)


def test_a_vm_offers_its_disk_and_its_memory_and_a_shared_machine_its_disk_alone(tmp_path: Path) -> None:
    found = told(tmp_path)
    assert found[tier.DISK] == str(tmp_path / "tier" / tier.key_of(PLACE))
    assert found[tier.MEMORY].startswith("/dev/shm/kinetic-tier-")
    assert set(found) == {tier.DISK, tier.MEMORY}
    assert set(told(tmp_path, Machine)) == {tier.DISK, tier.SHARED}


def test_nothing_is_offered_where_it_could_not_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(tmp_path, place="/home/store/checkpoints/train") == {}, "it is on a file system already"
    monkeypatch.setenv("KINETIC_ORDERS", json.dumps({}))
    assert told(tmp_path, Pod) == {}, "a pod's disk goes with it"


def test_hosts_get_a_key_that_follows_from_the_attempts_and_is_not_it(tmp_path: Path) -> None:
    assert tier.KEY not in told(tmp_path, hosts=4), "without a secret of their own they send nothing to each other"
    assert tier.KEY not in told(tmp_path, hosts=1, seal="ab" * 32)
    found, other = (told(tmp_path, hosts=2, seal=seal * 32) for seal in ("ab", "cd"))
    assert found[tier.BUDDIES] == "10.0.0.0 10.0.0.1"
    assert "ab" * 32 not in found[tier.KEY]
    assert found[tier.KEY] != other[tier.KEY]
    assert len(bytes.fromhex(found[tier.KEY])) == 32


def made(home: Path, *places: str) -> list[Path]:
    """Make the folders of some identities on the disk and in the memory of a machine, each with all that a program may
    leave there. Returns both roots."""
    roots = [Path(root) for root in tier.roots(str(home))]
    for folder in (root / tier.key_of(place) for root in roots for place in places):
        slot = folder / "training" / "slot-0"
        (slot / "kinetic-checkpoint-abc_1").mkdir(parents=True)
        (slot / "kinetic-checkpoint-abc_1" / "part-job-1.7").touch()
        (folder / "training" / "slot-0.lock").touch()
        (slot / ("ab" * 32)).write_text("x")
        (slot / "new-x1").touch()
    return roots


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KINETIC_ROOT", str(tmp_path / "root"))
    return tmp_path / "home"


def test_only_the_copies_of_the_next_job_stay(home: Path) -> None:
    roots = made(home, PLACE, f"{PLACE}-2", f"{PLACE}-3")
    for _ in range(2):
        tier.keep_only(str(home), PLACE)
        for root in roots:
            assert [path.name for path in root.iterdir()] == [tier.key_of(PLACE)]
            assert (root / tier.key_of(PLACE) / "training" / "slot-0" / ("ab" * 32)).exists()
    tier.keep_only(str(home))
    assert not any(root.exists() for root in roots)
    tier.keep_only(str(home))  # where there are none


def test_nothing_goes_that_has_no_name_of_ours(home: Path) -> None:
    roots = made(home, PLACE)
    theirs = ["notes", "data/file", "slot-0/file"]
    for root in roots:
        inner = root / tier.key_of(PLACE)
        inside = ["notes", "training/notes", "training/slot-x/file", "training/slot-0/notes", "training/slot-0/ab"]
        inside += [f"training/slot-0/{'cd' * 32}/file", "training/slot-0/kinetic-checkpoint-abc_1/more/file"]
        for path in [*(root / one for one in theirs), *(inner / one for one in inside)]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("mine")
    mine = [path for root in roots for path in root.rglob("*") if path.is_file() and path.read_text() == "mine"]
    tier.keep_only(str(home))
    assert {path for root in roots for path in root.rglob("*") if path.is_file()} == set(mine)
    assert len(mine) == 2 * 10


@pytest.mark.parametrize("depth", range(5))
def test_no_link_is_followed(home: Path, tmp_path: Path, depth: int) -> None:
    """As a program may have left them, in the place of any folder."""
    roots = made(home, PLACE)
    for number, root in enumerate(roots):
        parts = (tier.key_of(PLACE), "training", "slot-0", "kinetic-checkpoint-abc_1")[:depth]
        folder = root.joinpath(*parts)
        folder.rename(tmp_path / f"elsewhere-{number}")
        folder.symlink_to(tmp_path / f"elsewhere-{number}")
    before = sorted(tmp_path.glob("elsewhere-*/**/*"))
    tier.keep_only(str(home))
    assert sorted(tmp_path.glob("elsewhere-*/**/*")) == before


def test_machines_that_are_emulated_on_one_have_memory_of_their_own(tmp_path: Path) -> None:
    assert tier.roots(str(tmp_path / "a"))[1] != tier.roots(str(tmp_path / "b"))[1]
