"""The files of a project that are not sent: .gitignore, .kineticignore and sane defaults.

Responsible for the order of precedence and for checking cheaply: most names cannot match any pattern, and a pattern is
compiled only when one could. pathspec interprets patterns. Knows nothing of walking, of digests or of the stat index.

Precedence: `.kineticignore` (the deepest that decides) > the defaults > `.gitignore` (the deepest that decides) >
`.git/info/exclude`. So only a `.kineticignore` re-includes files that the defaults exclude, and a `!*/` meant for git
does not ship a virtual environment. As in git, nothing below an ignored folder is re-included. A file that looks like a
key is sent only if a negation in a `.kineticignore` names it.
"""

from __future__ import annotations

import fnmatch
import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic_orchestration.plan.declare.checks.secret_shapes import is_key_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from re import Pattern

GIT = ".gitignore"
KINETIC = ".kineticignore"

DEFAULT_NAMES = frozenset({".git", ".hg", ".svn", ".DS_Store"})
DEFAULT_FOLDERS = frozenset(
    {
        ".venv", "venv", "site-packages", "node_modules", "__pycache__", "__pypackages__",
        ".mypy_cache", ".ruff_cache", ".pytest_cache", ".import_linter_cache", ".hypothesis",
        ".tox", ".nox", ".eggs", ".ipynb_checkpoints",
    }
)  # fmt: skip
DEFAULT_SUFFIXES = (".pyc", ".pyo")

# Entries that only the top of a virtual or conda environment holds.
ENVIRONMENT_MARKS = frozenset({"pyvenv.cfg", "conda-meta"})

_SIMPLE_GLOB = re.compile(r"[^\\\[]*(?:\[[A-Za-z0-9._]+\][^\\\[]*)*")


@dataclass(frozen=True)
class Spec:
    """The lines of one ignore file. Its folder is `below` the root, or `above` leads from it there."""

    text: str
    below: str = ""
    above: str = ""

    def decides(self, path: str, name: str, is_folder: bool) -> _Pattern | None:
        """The last pattern that matches."""
        if not self._may_match(name):
            return None
        path = self.above + path[len(self.below) :]
        return next((pattern for pattern in self._patterns if pattern.matches(path, is_folder)), None)

    def _may_match(self, name: str) -> bool:
        names, suffixes, globs = self._last_segments
        return name in names or name.endswith(suffixes) or bool(globs and globs.match(name))

    @cached_property
    def _last_segments(self) -> tuple[frozenset[str], tuple[str, ...], Pattern[str] | None]:
        """The names that could match at all: a pattern matches an entry only if its last segment does."""
        names, suffixes, globs = set(), [], []
        for line in _lines(self.text):
            segment = line.removeprefix("!").removesuffix("/").rpartition("/")[2]
            if not any(character in segment for character in "*?[\\"):
                names.add(segment)
            elif re.fullmatch(r"\*[^*?\[\\]+", segment):
                suffixes.append(segment[1:])
            elif _SIMPLE_GLOB.fullmatch(segment):
                globs.append(fnmatch.translate(segment))
            else:
                # Brackets and backslashes mean different things to git and fnmatch: ask pathspec whenever
                # what stands before them fits.
                globs.append(fnmatch.translate(re.split(r"[\\\[]", segment)[0] + "*"))
        return frozenset(names), tuple(suffixes), re.compile("|".join(globs)) if globs else None

    @cached_property
    def _patterns(self) -> list[_Pattern]:
        """The compiled patterns, the last first."""
        compiled, unreadable = _compiler()
        patterns = []
        for line in _lines(self.text):
            inside = line.endswith(("/**", "/**/"))
            try:
                pattern = compiled(line.removesuffix("/") if inside else line)
            except unreadable:
                continue  # git skips what it cannot read, too
            if pattern.include is not None and pattern.regex is not None:
                folders_only = inside and line.endswith("/")
                patterns.append(_Pattern(pattern.regex, pattern.include, inside, folders_only, _is_name(line)))
        return patterns[::-1]


def _compiler() -> tuple[Callable[[str], Any], type[Exception]]:
    """Return pathspec's class of a pattern of git, and the error of one that cannot be read."""
    try:
        from pathspec.patterns.gitignore import GitIgnorePatternError
        from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern
    except ImportError:  # before 1.0
        from pathspec.patterns.gitwildmatch import GitWildMatchPattern

        return lambda line: GitWildMatchPattern(_kept(line)), ValueError
    return GitIgnoreSpecPattern, GitIgnorePatternError


def _kept(line: str) -> str:
    """The pattern so written that a pathspec before 1.0, which strips all white space, keeps what git keeps of it."""
    if line[0].isspace():
        line = f"\\{line}"
    if line[-1].isspace() and not line.endswith("\\ "):
        line = f"{line[:-1].removesuffix(chr(92))}[{line[-1]}]"
    return line


class _Pattern(NamedTuple):
    """One of pathspec's patterns, asked about one entry by itself as git does.

    pathspec answers for everything below a folder too; a walk that goes down level by level has decided about
    the parents already, and a negation between them would be lost.
    """

    regex: Pattern[str]
    ignores: bool
    inside: bool  # `a/**` matches what is in a, not a itself
    folders_only: bool  # set here only for `a/**/`; pathspec handles the others
    names: bool  # one file, or one kind of keys, and not all files of a folder

    def matches(self, path: str, is_folder: bool) -> bool:
        if self.inside:
            return (is_folder or not self.folders_only) and self.regex.search(path) is not None
        if is_folder:
            path += "/"
        match = self.regex.search(path)
        if match is None:
            return False
        mark = match.groupdict().get("ps_d")  # the slash after the folder that matched
        if mark is None or match.end("ps_d") == len(path):
            return True
        # A pattern such as `*/` finds the first slash of all.
        return is_folder and self.regex.search(path, len(path) - 1) is not None


@dataclass(frozen=True)
class Rules:
    """The rules in force in one folder; specs are in the order in which they decide."""

    kinetic: tuple[Spec, ...] = ()
    git: tuple[Spec, ...] = ()
    defaults: bool = field(default=True)

    def below(self, folder: str, git: str | None, kinetic: str | None) -> Rules:
        """The rules inside `folder` ("" or "a/b/"), given the texts of the ignore files in it."""
        if git is None and kinetic is None:
            return self
        return Rules(
            self.kinetic if kinetic is None else (Spec(kinetic, folder), *self.kinetic),
            self.git if git is None else (Spec(git, folder), *self.git),
            self.defaults,
        )

    def ignores(self, path: str, name: str, is_folder: bool) -> bool:
        if (pattern := _deciding(self.kinetic, path, name, is_folder)) is not None:
            return pattern.ignores
        if self.defaults and (
            name in DEFAULT_NAMES or (name in DEFAULT_FOLDERS if is_folder else name.endswith(DEFAULT_SUFFIXES))
        ):
            return True
        pattern = _deciding(self.git, path, name, is_folder)
        return pattern is not None and pattern.ignores

    def allows(self, path: str) -> bool:
        """Return True if a file is sent though it looks like a key."""
        if not self.defaults:
            return True
        pattern = _deciding(self.kinetic, path, path.rpartition("/")[2], is_folder=False)
        return pattern is not None and not pattern.ignores and pattern.names


def _deciding(specs: Iterable[Spec], path: str, name: str, is_folder: bool) -> _Pattern | None:
    """The pattern that decides about an entry: the last one that matches in the first spec with one."""
    for spec in specs:
        if (pattern := spec.decides(path, name, is_folder)) is not None:
            return pattern
    return None


def _is_name(line: str) -> bool:
    """`!.env`, `!/certs/*.pem`; not `!*` or `!*.json`, which are not meant to include a key."""
    segment = re.sub(r"\\(.)", r"\1", line.removeprefix("!").rpartition("/")[2])
    literal = re.sub(r"[*?]", "", segment)
    return literal == segment or is_key_name(literal)


def outer_texts(root: Path, stop: Path | None) -> list[tuple[str, str]]:
    """The ignore files of the repository above `root`, nearest first, each with the way from it to the root.

    `.git/info/exclude` comes last. A repository at `stop` or above it (a home folder kept in git) does not
    count.
    """
    found: list[tuple[str, str]] = []
    folder, way = str(root), ""
    while True:
        if way and (text := read(f"{folder}/{GIT}")) is not None:
            found.append((way, text))
        if os.path.lexists(f"{folder}/.git"):
            if (text := read(f"{_git_folder(folder)}/info/exclude")) is not None:
                found.append((way, text))
            return found
        parent, name = os.path.split(folder)
        if parent == folder or Path(parent) == stop:
            return []
        folder, way = parent, f"{name}/{way}"


def outer_rules(texts: Iterable[tuple[str, str]]) -> Rules:
    return Rules(git=tuple(Spec(text, above=way) for way, text in texts))


def read(path: str) -> str | None:
    """An ignore file's text, or None where there is none to read. Like git, follows no link."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        with os.fdopen(descriptor, "rb") as file:
            return file.read().removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    except OSError:
        return None


def _git_folder(top: str) -> str:
    """`.git`, or, in a worktree or a submodule, the folder of the repository that it names."""
    folder = f"{top}/.git"
    text = read(folder)
    if text is None or not text.startswith("gitdir:"):
        return folder
    folder = os.path.join(top, text.removeprefix("gitdir:").strip())
    common = read(f"{folder}/commondir")
    return folder if common is None else os.path.join(folder, common.strip())


def _lines(text: str) -> list[str]:
    """The patterns. Not splitlines(), which also splits at characters that a file's name may hold."""
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    return [line if line.endswith("\\ ") else line.rstrip() for line in lines if line.strip() and line[0] != "#"]
