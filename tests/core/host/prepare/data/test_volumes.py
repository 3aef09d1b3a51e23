"""Data at an absolute path: shared by those who want the same, refused to others, gone afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kinetic_orchestration.host.prepare.data.volumes import Taken, Volume


def test_hosts_with_the_same_data_share_a_link_and_the_last_one_removes_it(tmp_path: Path) -> None:
    source, path = tmp_path / "source", tmp_path / "deep" / "data"
    first = Volume(str(tmp_path), str(path), str(source))
    second = Volume(str(tmp_path), str(path), str(source))
    assert path.readlink() == source
    first.release()
    assert path.is_symlink()
    second.release()
    assert not path.is_symlink()


def test_other_data_is_refused_while_the_path_is_in_use_and_taken_over_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "data"
    first = Volume(str(tmp_path), str(path), "/some/data")
    with pytest.raises(Taken, match="shows other data to another job on this machine: pass the Data as an argument"):
        Volume(str(tmp_path), str(path), "/other/data")
    assert str(path.readlink()) == "/some/data"
    first.release()
    second = Volume(str(tmp_path), str(path), "/other/data")
    assert str(path.readlink()) == "/other/data"
    second.release()


def test_a_killed_host_leaves_a_link_that_the_next_one_takes_over(tmp_path: Path) -> None:
    path = tmp_path / "data"
    program = (
        "import os, signal, sys; from kinetic_orchestration.host.prepare.data.volumes import Volume\n"
        f"volume = Volume({str(tmp_path)!r}, {str(path)!r}, '/some/data'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=30).returncode == -9
    assert path.is_symlink()
    Volume(str(tmp_path), str(path), "/other/data").release()
    assert not path.is_symlink()


def test_what_somebody_else_put_there_is_never_touched(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.write_text("precious")
    theirs.symlink_to("/somewhere")
    for path in (mine, theirs):
        with pytest.raises(Taken, match="exists already and is not a link of ours"):
            Volume(str(tmp_path), str(path), "/some/data")
    assert mine.read_text() == "precious"
    assert str(theirs.readlink()) == "/somewhere"
