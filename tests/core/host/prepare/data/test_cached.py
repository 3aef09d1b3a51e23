"""A folder of this machine that is filled once: after a power cut, without room, and while it takes long."""

from __future__ import annotations

import errno
import fcntl
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kinetic_orchestration.host.prepare.data import cached as module
from kinetic_orchestration.host.prepare.data.cached import cached
from tests.support.waits import wait_until

pytestmark = pytest.mark.fast


class Bringing:
    """Writes a file, and counts how often."""

    def __init__(self, *, fails: bool = False) -> None:
        self.times = 0
        self._fails = fails

    def __call__(self, root: str, _: int) -> str:
        self.times += 1
        content = Path(root, "content")
        content.mkdir()  # there is none
        (content / "part").write_bytes(bytes(1 << 20))
        if self._fails:
            raise OSError(errno.ENOSPC, "the disk is full")
        return str(content)


def filled(root: Path, bring: Callable[[str, int], str], note: Callable[[str], object] = print) -> Path:
    return Path(cached(str(root), bring, what="gs://rows/a", note=note))


def test_what_was_brought_before_this_machine_started_is_brought_again(tmp_path: Path) -> None:
    bring, complete = Bringing(), tmp_path / "root" / "complete"
    path = filled(tmp_path / "root", bring)
    assert filled(tmp_path / "root", bring) == path == tmp_path / "root" / "content"
    assert bring.times == 1
    boot, _, below = complete.read_text().partition("\n")
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for torn in (f"{boot[::-1]}\n{below}", "", "\0" * 40):
        complete.write_text(torn)
        (path / "part").write_bytes(b"torn")
        assert filled(tmp_path / "root", bring) == path
        assert (path / "part").stat().st_size == 1 << 20, torn
    assert bring.times == 4
    complete.write_text(f"\n{below}")  # of a file system of several machines, whose kernels say nothing of its bytes
    filled(tmp_path / "root", bring)
    assert bring.times == 4


def test_what_could_not_be_brought_leaves_its_room_to_others(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="the disk is full"):
        filled(tmp_path / "root", Bringing(fails=True))
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == ["lock"]
    assert filled(tmp_path / "root", Bringing()).is_dir()


def test_a_host_that_waits_for_another_says_so_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY", 0.02)
    root, said = tmp_path / "root", list[str]()
    root.mkdir()
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = threading.Thread(target=filled, args=(root, Bringing(), said.append))
        waiting.start()
        wait_until(lambda: len(said) > 2)
        assert not (root / "content").exists()
    waiting.join(60)
    assert re.fullmatch(r"gs://rows/a is waited for since \d+ s: another host of this machine brings it", said[0])
    assert (root / "content" / "part").exists()


def test_what_comes_slowly_says_how_much_there_is_and_how_much_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EVERY", 0.02)
    said = list[str]()

    def dribbles(root: str, _: int) -> str:
        path = Path(root, "content")
        path.mkdir()
        for number in range(2):
            (tmp_path / "part").write_bytes(bytes(1_000_000))
            (tmp_path / "part").rename(path / str(number))
            before = len(said)
            wait_until(lambda before=before: len(said) > before + 2)  # the first of these may be of a look before that
        return str(path)

    filled(tmp_path / "root", dribbles, said.append)
    shown = [re.sub(r"for \d+ s", "for a while", line) for line in said]
    begin = "gs://rows/a has been coming for a while: "
    assert f"{begin}1.0 MB are on the disk, 0.0 MB more than at the line before" in shown
    assert f"{begin}2.0 MB are on the disk, 1.0 MB more than at the line before" in shown
    told = len(said)
    filled(tmp_path / "root", dribbles, said.append)
    assert len(said) == told, "nothing is waited for"
    assert "kinetic-waits" not in [thread.name for thread in threading.enumerate()]
