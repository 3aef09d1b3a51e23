"""Ignore files: git is the reference for .gitignore; .kineticignore takes precedence over it."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from kinetic_orchestration.packaging.source import ignore
from kinetic_orchestration.packaging.source.ignore import Rules

NO_DEFAULTS = Rules(defaults=False)


def ignores(rules: Rules, path: str) -> bool:
    """One entry by itself; a folder's path ends with a slash."""
    bare = path.removesuffix("/")
    return rules.ignores(bare, bare.rpartition("/")[2], path.endswith("/"))


def travelling(root: Path) -> list[str]:
    """A walk as plain as can be, with .gitignore files alone."""
    found: list[str] = []

    def descend(prefix: str, rules: Rules) -> None:
        rules = rules.below(prefix, ignore.read(f"{root}/{prefix}.gitignore"), None)
        for name in sorted(os.listdir(root / prefix)):
            path, is_folder = prefix + name, (root / prefix / name).is_dir()
            if name == ".git" or rules.ignores(path, name, is_folder):
                continue
            if is_folder:
                descend(f"{path}/", rules)
            else:
                found.append(path)

    descend("", NO_DEFAULTS)
    return sorted(found)


_PLAIN = """
a b a/ *.x *.[xy] /a /b/ a/* a/** **/b **/b/ a/**/c * */ !*/ !*.x !a !a/ !b !/a/b !a/b/ c/*.y [!a] ? a? *a*
\\!b b.[!x] !**/c a/**/ #z !a/** [a-c].x a\\.x ** !c/** /* !/a a/b/c */b b/*/c *** c** ! / [ ä ä*
"""
PATTERNS = [*_PLAIN.split(), "*.x  ", "", "  ", "a b", "\ta"]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is the judge")
@pytest.mark.parametrize("seed", range(5))
def test_the_same_files_travel_as_git_would_take(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(12):
        root = tmp_path / str(number)
        root.mkdir()
        subprocess.run(["git", "init", "-q", str(root)], check=True)

        def fill(folder: Path, depth: int, root: Path = root) -> None:
            for name in ("a", "b", "c"):
                if depth < 3 and chance.random() < 0.6:
                    (folder / name).mkdir()
                    fill(folder / name, depth + 1)
                elif chance.random() < 0.7:
                    (folder / name).touch()
            for name in ("a.x", "b.y", "!b", "ab", "b.x", "ä.x", "a b"):
                if chance.random() < 0.6:
                    (folder / name).touch()
            if folder == root or chance.random() < 0.2:
                lines = [chance.choice(PATTERNS) for _ in range(chance.randint(1, 6))]
                end = chance.choice(("\n", "\r\n"))
                (folder / ".gitignore").write_bytes((end.join(lines) + chance.choice(("", end))).encode())

        fill(root, 0)
        taken = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z", "-o", "--exclude-per-directory=.gitignore"],
            capture_output=True, check=True,
        ).stdout.decode()  # fmt: skip
        said = {path: path.read_text() for path in root.rglob(".gitignore")}
        assert travelling(root) == sorted(taken.split("\0")[:-1]), said


def test_the_deepest_file_that_says_something_decides() -> None:
    top = NO_DEFAULTS.below("", "*.csv\nkeep\n", None)
    data = top.below("data/", "!*.csv\n", None)
    assert ignores(top, "table.csv")
    assert not ignores(data, "data/table.csv")
    assert ignores(data, "data/keep")


def test_kineticignore_comes_before_the_defaults_and_they_before_gitignore() -> None:
    rules = Rules().below("", "!*/\n!a.pyc\n*.txt\n", "!node_modules/\n!x.txt\n*.md\n")
    assert ignores(rules, ".venv/") and ignores(rules, "a.pyc") and ignores(rules, ".git/")
    assert not ignores(rules, "node_modules/")
    assert not ignores(rules, "x.txt") and ignores(rules, "y.txt") and ignores(rules, "z.md")


def test_a_file_may_have_the_name_of_a_folder_that_is_ignored() -> None:
    assert ignores(Rules(), "venv/") and not ignores(Rules(), "venv")


def test_a_byte_order_mark_and_bytes_that_are_not_utf8_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_bytes(b"\xef\xbb\xbf*.log\ncaf\xe9\n")
    rules = NO_DEFAULTS.below("", ignore.read(f"{tmp_path}/.gitignore"), None)
    assert ignores(rules, "a.log") and ignores(rules, os.fsdecode(b"caf\xe9"))


def test_like_git_no_link_is_followed_to_an_ignore_file(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("*")
    (tmp_path / ".gitignore").symlink_to("real")
    assert ignore.read(f"{tmp_path}/.gitignore") is None


def test_a_worktree_has_the_excludes_of_its_repository(tmp_path: Path) -> None:
    (tmp_path / "main" / ".git" / "worktrees" / "w").mkdir(parents=True)
    (tmp_path / "main" / ".git" / "info").mkdir()
    (tmp_path / "main" / ".git" / "info" / "exclude").write_text("*.private\n")
    (tmp_path / "main" / ".git" / "worktrees" / "w" / "commondir").write_text("../..\n")
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / ".git").write_text(f"gitdir: {tmp_path}/main/.git/worktrees/w\n")
    assert ignore.outer_texts(tmp_path / "w", None) == [("", "*.private\n")]
