"""A day in real life: where code lies, what travels, and what is written where."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("shared_home")


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")


def run(program: Path, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-B", str(program), *arguments], cwd=cwd or program.parent, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def listing(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in root.rglob("*")}


PROGRAM = """
    import os
    import kinetic_orchestration as kinetic
    import sibling

    @kinetic.run(accelerator="cpu")
    def work(x):
        import late
        folder = os.path.dirname(os.path.abspath(sibling.__file__))
        return sibling.double(x) + late.ONE, os.getcwd(), sorted(name for name in os.listdir(folder) if name != '__pycache__')

    if __name__ == "__main__":
        value, cwd, files = work(20)
        print(value)
        print(cwd)
        print(*files)
"""


def test_a_script_in_a_plain_folder_takes_that_folder_as_long_as_it_is_small(tmp_path: Path) -> None:
    """No .git and no pyproject.toml are needed; nothing is written beside the script."""
    folder = tmp_path / "my scripts"
    write(folder, {
        "program.py": PROGRAM, "sibling.py": "def double(x): return 2 * x", "late.py": "ONE = 1",
        "unrelated.py": "raise SystemExit", "big.bin": "x" * 1000,
    })  # fmt: skip
    before = listing(folder)
    value, cwd, files = run(folder / "program.py").stdout.splitlines()
    assert value == "41"
    assert Path(cwd) != folder and not cwd.startswith(str(folder))
    assert files == "big.bin late.py program.py sibling.py unrelated.py"
    assert listing(folder) == before


def test_a_project_travels_whole_with_its_src_layout_and_working_directory(tmp_path: Path) -> None:
    write(tmp_path, {
        "pyproject.toml": "[project]\nname = 'x'\nversion = '0'\n",
        "src/pack/__init__.py": "",
        "src/pack/part.py": "from . import other\ndef value(): return other.VALUE",
        "src/pack/other.py": "VALUE = 5",
        "conf/settings.toml": "rate = 3",
        ".kineticignore": "*.bin\n",
        "data.bin": "not this",
        "jobs/train.py": """
            import os, sys
            sys.path.insert(0, "src")
            import kinetic_orchestration as kinetic
            import pack.part

            @kinetic.run(accelerator="cpu")
            def train():
                import importlib
                part = importlib.import_module("pack.part")
                return part.value(), open("conf/settings.toml").read(), sorted(os.listdir())

            print(*train(), sep="\\n")
        """,
    })  # fmt: skip
    before = listing(tmp_path)
    value, conf, files = run(tmp_path / "jobs" / "train.py", cwd=tmp_path).stdout.splitlines()
    assert (value, conf) == ("5", "rate = 3")
    assert "data.bin" not in files and "'src'" in files and "'jobs'" in files
    assert listing(tmp_path) == before


def test_a_program_on_standard_input_or_at_the_prompt_runs_too(tmp_path: Path) -> None:
    program = "import kinetic_orchestration as kinetic\nprint(kinetic.run(accelerator='cpu')(lambda: 6 * 7)())\n"
    for arguments in (["-"], ["-c", program]):
        done = subprocess.run(
            [sys.executable, *arguments], input=program, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.stdout == "42\n", done.stderr
    assert list(tmp_path.iterdir()) == []


def test_everything_is_under_one_folder_that_a_setting_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losing the index of files costs a look at them, and no upload."""
    home, temporary, user = tmp_path / "moved", tmp_path / "tmp", tmp_path / "user"
    temporary.mkdir()
    user.mkdir()
    for name, folder in (("KINETIC_HOME", home), ("TMPDIR", temporary), ("HOME", user)):
        monkeypatch.setenv(name, str(folder))
    write(tmp_path / "project", {
        "pyproject.toml": "", "sibling.py": "def double(x): return 2 * x", "late.py": "ONE = 1", "program.py": PROGRAM
    })  # fmt: skip
    run(tmp_path / "project" / "program.py")
    assert {"agent", "index", "store"} <= set(os.listdir(home))
    assert list(temporary.iterdir()) == [] and list(user.iterdir()) == []
    blobs = listing(home / "store" / "local" / "blobs")
    trees = listing(home / "store" / "local" / "trees")
    for file in (home / "index").iterdir():
        file.unlink()
    run(tmp_path / "project" / "program.py")
    assert listing(home / "store" / "local" / "trees") == trees
    new = set(listing(home / "store" / "local" / "blobs")) - set(blobs)
    assert all(Path(path).is_dir() or Path(path).stat().st_size < 4096 for path in new)  # the call alone


def test_files_that_look_like_secrets_are_named_in_a_warning(tmp_path: Path) -> None:
    write(tmp_path, {
        "pyproject.toml": "", ".env": "TOKEN=1", "sibling.py": "def double(x): return 2 * x", "late.py": "ONE = 1",
        "program.py": PROGRAM,
    })  # fmt: skip
    said = run(tmp_path / "program.py").stderr
    assert ".env" in said and "value, cwd, files = work(20)" in said  # the user's own line


def test_a_data_folder_inside_the_project_is_not_shipped_twice(tmp_path: Path, shared_home: Path) -> None:
    content = "the content " + os.urandom(8).hex()
    write(tmp_path, {
        "pyproject.toml": "", "data/x.csv": content,
        "program.py": """
            import os
            import kinetic_orchestration as kinetic

            @kinetic.run(accelerator="cpu")
            def work(data):
                return open(data + "/x.csv").read(), os.path.exists("data")

            print(*work(kinetic.Data("data")), sep="\\n")
        """,
    })  # fmt: skip
    assert run(tmp_path / "program.py").stdout.splitlines() == [content, "False"]
