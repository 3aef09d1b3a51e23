"""The removal of folders: all that is in one goes, and nothing outside of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_orchestration.protocol.system.folders import open_folder, remove_entry, remove_tree

pytestmark = pytest.mark.fast


@pytest.fixture
def precious(tmp_path: Path) -> Iterator[Path]:
    """A folder that nobody was told to remove."""
    folder = tmp_path / "precious"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_text("mine")
    (folder / "deep").chmod(0o755)
    yield folder
    assert (folder / "deep" / "file").read_text() == "mine"
    assert (folder / "deep").stat().st_mode & 0o777 == 0o755


def test_a_folder_goes_with_all_that_is_in_it_also_what_nobody_may_write_to(tmp_path: Path) -> None:
    inner = tmp_path / "folder" / "a" / "b"
    inner.mkdir(parents=True)
    for place in (inner, inner.parent, tmp_path / "folder"):
        (place / "file").touch()
        place.chmod(0o500)
    remove_tree(str(tmp_path / "folder"))
    assert os.listdir(tmp_path) == []
    remove_tree(str(tmp_path / "folder"))  # where there is none


def test_of_a_link_in_the_place_of_the_folder_the_link_goes(tmp_path: Path, precious: Path) -> None:
    (tmp_path / "folder").symlink_to(precious)
    remove_tree(str(tmp_path / "folder"))
    assert not (tmp_path / "folder").is_symlink()


def test_links_inside_lead_nowhere(tmp_path: Path, precious: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "out").symlink_to(precious)
    (folder / "out").symlink_to(precious / "deep" / "file")
    (folder / "up").symlink_to("..")
    remove_tree(str(folder))
    assert not folder.exists()


@pytest.mark.parametrize("name", ["", ".", "..", "../precious", "a/../../precious", "/precious"])
def test_what_is_no_name_in_the_folder_is_refused(tmp_path: Path, precious: Path, name: str) -> None:
    (tmp_path / "folder" / "a").mkdir(parents=True)
    folder = open_folder(str(tmp_path / "folder"))
    try:
        with pytest.raises(OSError, match="no name"):
            remove_entry(folder, f"{precious}" if name == "/precious" else name)
    finally:
        os.close(folder)
    assert (tmp_path / "folder" / "a").is_dir()


def test_no_folder_is_opened_through_a_link(tmp_path: Path, precious: Path) -> None:
    (tmp_path / "link").symlink_to(precious)
    with pytest.raises(OSError, match="link"):
        open_folder(str(tmp_path / "link"))


def test_what_is_mounted_inside_stays(tmp_path: Path) -> None:
    mounted = tmp_path / "folder" / "mounted"
    mounted.mkdir(parents=True)
    (tmp_path / "folder" / "file").touch()
    command = ["mount", "-t", "tmpfs", "none", str(mounted)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no small file system can be mounted here")
    try:
        (mounted / "data").write_text("a bucket's")
        remove_tree(str(tmp_path / "folder"))
        assert (mounted / "data").read_text() == "a bucket's"
        assert not (tmp_path / "folder" / "file").exists()
    finally:
        subprocess.run(["umount", str(mounted)], check=False)
