"""The script `ko` as an installer makes it, with real programs of that name behind it on PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.cli import COMMANDS
from kinetic_orchestration.cli.former import BUILDERS, TRIED
from tests.support.pages import ROOT, page

QUOTES = "'" * 3
BUILDER = '#!/bin/sh\necho "builder $$ $*"\necho "its own line" >&2\nexit 7\n'


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def ours(folder: Path) -> Path:
    """The script that installers make of the entry in pyproject.toml."""
    module, name = tomllib.loads(page("pyproject.toml"))["project"]["scripts"]["ko"].split(":")
    return executable(folder / "ko", f"{head()}import sys\nfrom {module} import {name}\nsys.exit({name}())\n")


def head() -> str:
    """The first lines of a script of Python, as installers write them: a path with a space is in no `#!`."""
    if " " not in sys.executable:
        return f"#!{sys.executable}\n"
    return f'#!/bin/sh\n{QUOTES}exec\' "{sys.executable}" "$0" "$@"\n\' {QUOTES}\n'


def called(folders: list[Path], *words: str, **environ: str) -> tuple[int, int, str, str]:
    """The process id, the exit code and the output of `ko`, as a shell finds it in these folders."""
    path = os.pathsep.join(map(str, folders))
    program = shutil.which("ko", path=path)
    assert program is not None
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **environ, "PATH": f"{path}{os.pathsep}{os.defpath}"}
    process = subprocess.Popen(
        [program, *words], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    out, err = process.communicate(timeout=60)
    return process.pid, process.returncode, out, err


def test_no_command_of_ours_is_one_of_the_image_builders() -> None:
    assert not BUILDERS & COMMANDS.keys()


def test_the_builders_commands_become_the_next_ko_on_path_that_is_not_ours(tmp_path: Path) -> None:
    """Behind the script of another environment, and one that version 0.1 has installed."""
    mine, other, old, theirs = (tmp_path / name for name in ("mine", "other", "old", "theirs"))
    ours(mine)
    ours(other)
    executable(old / "ko", f"{head()}from kinetic_orchestration.cli import main\nmain()\n")
    executable(theirs / "ko", BUILDER)
    for words in (["build", "./cmd", "--push=false"], ["-v", "apply", "-f", "x y"], ["--help"], [], ["anything"]):
        pid, code, out, err = called([mine, other, old, theirs], *words)
        assert (code, out) == (7, f"builder {pid} {' '.join(words)}\n"), "the same process, and its own exit code"
        assert err == f"kinetic: `ko` of kinetic-orchestration is `kinor` now, and the next release has no `ko`; this one is {theirs / 'ko'}\nits own line\n"  # fmt: skip


def test_our_own_commands_still_run_whatever_is_behind_and_say_the_new_name(tmp_path: Path) -> None:
    ours(tmp_path / "mine")
    executable(tmp_path / "theirs" / "ko", BUILDER)
    told = "kinetic: `ko` of kinetic-orchestration is `kinor` now, and the next release has no `ko`\n"
    for words, expected in ((["--version"], f"kinetic-orchestration {kinetic.__version__}\n"), (["accelerators", "v5e-16"], "4 hosts")):  # fmt: skip
        _, code, out, err = called([tmp_path / "mine", tmp_path / "theirs"], *words)
        assert (code, err) == (0, told)
        assert expected in out


def test_without_the_image_builder_its_commands_say_where_it_is_and_the_rest_is_ours(tmp_path: Path) -> None:
    ours(tmp_path / "mine")
    executable(tmp_path / "theirs" / "ko", BUILDER).chmod(0o644)  # no program
    (tmp_path / "folder" / "ko").mkdir(parents=True)
    folders = [tmp_path / name for name in ("mine", "theirs", "folder", "absent")]
    _, code, out, err = called(folders, "resolve", "-f", "x")
    assert (code, out) == (127, "")
    assert "`ko resolve` is a command of the image builder, and PATH has no other `ko`: install that one" in err
    _, code, out, err = called(folders, "--help")
    assert (code, out[:6]) == (0, "usage:")
    _, code, out, err = called(folders, "nonsense")
    assert (code, out) == (2, "")
    assert "`kinor` now" in err and "invalid choice" in err


@pytest.mark.parametrize("way", ['exec ko "$@"', 'ko "$@"'])
def test_a_script_that_leads_back_here_is_tried_once(tmp_path: Path, way: str) -> None:
    """As the shims of pyenv and asdf do, by a PATH of their own."""
    mine, shims, theirs = (tmp_path / name for name in ("mine", "shims", "theirs"))
    ours(mine)
    executable(shims / "ko", f'#!/bin/sh\nPATH="{mine}:$PATH"\n{way}\n')
    _, code, _, err = called([mine, shims], "build")
    assert code == 127 and "has no other `ko`" in err
    executable(theirs / "ko", BUILDER)
    _, code, out, _ = called([mine, shims, theirs], "build")
    assert code == 7 and out.endswith(" build\n")


def test_a_program_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    ours(tmp_path / "mine")
    broken = executable(tmp_path / "theirs" / "ko", "#!/no/such/interpreter\n")
    _, code, _, err = called([tmp_path / "mine", tmp_path / "theirs"], "deps", **{TRIED: ""})
    assert code == 126 and f"{broken} cannot be run: No such file" in err
