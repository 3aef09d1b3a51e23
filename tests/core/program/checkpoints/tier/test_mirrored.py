"""Files of trainers that keep their own checkpoints: those that the bucket's record names need not be fetched again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kinetic_orchestration.host.prepare import tier as places
from kinetic_orchestration.protocol.content.digest import plain_of_file
from tests.core.program.checkpoints.tier.conftest import Place

PROGRAM = """
import os, pathlib, sys
import kinetic_orchestration as kinetic
folder = pathlib.Path(kinetic.current().checkpoint_path())
print(*sorted(f"{path.relative_to(folder)}={path.read_text()[-1]}" for path in folder.rglob("*") if path.is_file()))
for name, content in zip(sys.argv[1::2], sys.argv[2::2]):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("x" * 100_000 + content)
"""


def run(attempt: int, *files: str, host: int = 0, **environ: str) -> tuple[list[str], str]:
    """Run a trainer that leaves files. Returns the files that it found, and what its user was told."""
    told = {"KINETIC_ATTEMPT": str(attempt), "KINETIC_HOST_INDEX": str(host), "KINETIC_HOST_COUNT": "2", **environ}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *files], env={**os.environ, **told}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


def fetched(place: Place, since: int) -> int:
    return sum(call.verb == "get" and "/file-" in call.where for call in place.storage.calls[since:])


def copies(place: Place) -> list[Path]:
    return place.copies("@files")


@pytest.mark.slow
def test_the_next_program_on_the_machine_fetches_none_of_its_files(place: Place) -> None:
    assert run(1, "model", "1", "step-1/state", "a")[0] == []
    assert len(copies(place)) == 2
    since = len(place.storage.calls)
    assert run(2, "model", "2")[0] == ["model=1", "step-1/state=a"]
    assert fetched(place, since) == 0
    assert len(copies(place)) == 2, "the model that was replaced is forgotten"
    damaged = [path for path in copies(place) if path.read_text()[-1] == "2"]
    damaged[0].write_text("x" * 100_000 + "3")
    since = len(place.storage.calls)
    found, told = run(3)
    assert found == ["model=2", "step-1/state=a"], "the bucket's record decides"
    assert fetched(place, since) == 1
    assert "is not what was written (its digest differs), and was removed" in told
    assert all(plain_of_file(path) == path.name for path in copies(place))


@pytest.mark.slow
def test_files_of_another_host_are_kept_too_and_an_older_copy_is_not_taken(place: Place, tmp_path: Path) -> None:
    run(1, "model", "1")
    elsewhere = {places.DISK: str(tmp_path / "another machine" / "key")}
    run(1, "of-host-1", "b", host=1, **elsewhere)
    since = len(place.storage.calls)
    assert run(2)[0] == ["model=1", "of-host-1=b"]
    assert fetched(place, since) == 1
    run(3, "model", "2", **elsewhere)
    since = len(place.storage.calls)
    assert run(4)[0] == ["model=2", "of-host-1=b"]
    assert fetched(place, since) == 1, "only what is new"
