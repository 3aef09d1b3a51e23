"""Resolution by uv: the versions of all packages, and the interpreter.

Responsible for one resolution, its cache key, and caching the answer. Does not know how the answer is used.
"""

from __future__ import annotations

import json
import os
import platform as machine
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kinetic_orchestration.errors import RequirementsError, UsageError
from kinetic_orchestration.host.prepare.environment import no_index, redact
from kinetic_orchestration.packaging.call.first_party import FirstParty, itself, name_of, normalized, stub
from kinetic_orchestration.packaging.requirements import indexes
from kinetic_orchestration.packaging.requirements.files import Asked, Line, is_local, local_folder, path_of
from kinetic_orchestration.packaging.source.stat_index import replace_file
from kinetic_orchestration.protocol.content import digest

# A resolution may build packages to learn what they need; it is not to hang for ever.
LIMIT = 1800


class Interpreter(NamedTuple):
    path: str
    version: str  # "3.11"


def own_uv() -> Path | None:
    """The uv that came with this package."""
    try:
        import uv

        return Path(uv.find_uv_bin())
    except (ImportError, FileNotFoundError):
        return None


def find_uv(environ: Mapping[str, str]) -> str:
    """The uv that came with this package, else the one on PATH."""
    if found := own_uv() or shutil.which("uv", path=environ.get("PATH")):
        return str(found)
    raise RequirementsError(
        "requirements= needs uv to resolve them, and it is neither installed in this environment nor on "
        f"PATH. Install it: {shlex.quote(sys.executable)} -m pip install uv"
    )


def find_python(python: str | None, environ: Mapping[str, str]) -> Interpreter:
    """The interpreter that `python=` means: None for this one, a version such as "3.12", or a path."""
    if python is None or python == here().version or python == machine.python_version():
        return here()
    if os.sep in python:
        found = str(Path(python).expanduser().absolute())
        if not os.access(found, os.X_OK) or Path(found).is_dir():
            raise RequirementsError(f"python={python!r} is not a program. Give an interpreter's path, or a version.")
    else:
        if not re.fullmatch(r"3(\.\d+){1,2}", python):
            raise UsageError(f"python={python!r} is neither a version such as '3.12' nor the path of an interpreter.")
        uv = _uv_environ(environ)
        done = call([find_uv(environ), "python", "find", "--system", "--no-project", python], uv, Path.cwd())
        if done.returncode:
            raise RequirementsError(
                f"There is no Python {python} on this machine. Install one (uv python install {python}), or "
                "give the path of an interpreter. This is " + sys.version.split()[0] + f" at {sys.executable}."
            )
        found = done.stdout.strip()
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = call([found, "-I", "-S", "-c", program], dict(environ), Path.cwd(), limit=60)
    except OSError as error:
        raise RequirementsError(f"python={python!r} does not run: {error.strerror}.") from error
    version = done.stdout.strip()
    if done.returncode or not re.fullmatch(r"3\.\d+", version):
        raise RequirementsError(f"{found} does not run as a Python 3 interpreter:\n{done.stderr.strip()}")
    return Interpreter(found, version)


@dataclass(frozen=True)
class Builds:
    """Requirements added to the user's lines, and packages that are excluded from any source."""

    added: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()  # what a lock that is used as it is has to name
    advice: str = ""  # for a resolution that fails


NO_BUILDS = Builds()


class Resolution:
    """One question to uv: what exactly is to be installed."""

    def __init__(
        self,
        asked: Asked,
        lines: list[Line],
        python: Interpreter,
        platform: str | None,
        *,
        environ: Mapping[str, str],
        first_party: Sequence[FirstParty],
        builds: Builds = NO_BUILDS,
        pins: Sequence[str] = (),
    ) -> None:
        self.builds, self.pins = builds, tuple(pins)
        self.asked, self.lines, self.python, self.platform = asked, lines, python, platform
        self.environ = _uv_environ(environ)
        wanted = [line for line in lines if not line.option]
        by_path = {name for line in wanted if (name := _name_by_address(line.requirement))}
        folders = {os.path.realpath(path) for line in wanted if (path := local_folder(line)) is not None}
        if asked.kind == "pyproject":
            by_path |= set(map(normalized, _uv_table(asked.text).get("sources", {})))
        # A requirement by address or path is taken from there, regardless of the installed version.
        self.stubs = [
            item
            for item in (itself(), *first_party)
            if item.name not in by_path and not (item.folder and item.folder in folders)
        ]
        self.named = sorted(item.name for item in self.stubs if item.origin == "named" and item.paths)
        self.pinned = sorted(
            {name_of(line.requirement) for line in wanted if re.search(r"[^<>~!=]===?[^=]", line.requirement)}
        )

    def key(self) -> str:
        """The digest of everything that affects the answer. Passwords, which may change daily, do not."""
        environ = self.environ
        config = [_settings_in(path) for path in self._config_files()]
        # Without relative paths the answer is the same in every clone of the project.
        relative = self.asked.kind in ("pyproject", "setup") or any(
            line.option or line.editable or is_local(line.requirement) for line in self.lines
        )
        links = [
            sorted((entry.name, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in os.scandir(folder))
            for folder in indexes.local_folders(environ)
        ]
        question = [
            self.asked.kind,
            str(self.asked.path or self.asked.folder) if relative else "",
            self.asked.text,
            [line.text for line in self.lines],
            self.python.version,
            self.platform,
            [(item.name, item.version, item.requires) for item in self.stubs],
            self.named,
            *([self.builds.added, self.builds.left_out, self.pins] if self.builds.added or self.pins else ()),
            {name: environ[name] for name in _DECISIVE if environ.get(name)},
            config,
            links,
        ]
        return digest.of_bytes(redact(json.dumps(question, sort_keys=True)).encode())

    def run(self) -> list[str]:
        uv = find_uv(self.environ)
        with tempfile.TemporaryDirectory(prefix="kinetic-lock-") as name:
            folder = Path(name).resolve()
            command = [uv, "pip", "compile", *_COMPILE, *no_index(self.environ), "--python", self.python.path]
            if self.platform is not None:
                command += ["--python-platform", self.platform, "--python-version", self.python.version]
            constraints = folder / "constraints.txt"
            stubs = [f"{item.name} @ {stub(folder, item, self.pinned).as_uri()}" for item in self.stubs]
            _write(constraints, [*stubs, *self.pins, *self._of_project("constraint-dependencies")])
            command += ["--constraints", str(constraints), *self._pip_constraints()]
            left_out = [f"{name} ; {NEVER}" for name in self.builds.left_out]
            if overrides := [*left_out, *self._of_project("override-dependencies")]:
                command += ["--overrides", str(_write(folder / "overrides.txt", overrides))]
            if self.named or self.builds.added:
                command.append(str(_write(folder / "more.in", [*self.named, *self.builds.added])))
            given = "-" if self.asked.path is None else str(self.asked.path)
            done = call([*command, given], self.environ, self.asked.folder, text=self.asked.text)
            if done.returncode:
                raise self._failure(done.stderr)
            return [entry for entry in _entries(done.stdout) if str(folder) not in entry]

    def _of_project(self, name: str) -> list[str]:
        """Return requirements in the table of uv of a pyproject.toml, which `uv pip compile` takes for settings of the
        machine: it passes over them if UV_CONFIG_FILE, UV_NO_CONFIG or a uv.toml beside them says so."""
        found = _uv_table(self.asked.text).get(name, []) if self.asked.kind == "pyproject" else []
        return [each for each in found if isinstance(each, str)]

    def _pip_constraints(self) -> list[str]:
        files = indexes.pip_settings(self.environ).get("constraint", "").split()
        return [part for file in files for part in ("--constraints", file)]

    def _config_files(self) -> list[Path]:
        constraints = [Path(path) for path in self._pip_constraints()[1::2]]
        return [
            *indexes.uv_files(self.environ, self.asked.folder),
            *filter(Path.is_file, constraints),
        ]

    def _failure(self, text: str) -> RequirementsError:
        given = sorted(name for name in _DECISIVE if self.environ.get(name))
        return RequirementsError(
            f"{self.asked.name} cannot be resolved for Python {self.python.version}. uv says:\n"
            f"{redact(text).strip()}\n{self.builds.advice and self.builds.advice + chr(10)}"
            "Nothing has run. Check the names and versions, and that the package index can be reached; uv "
            f"was given pip's settings ({', '.join(given) if given else 'there are none'})."
        )


NEVER = "python_version < '0'"  # as a marker: leaves a package out wherever it comes from


def _write(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


_COMPILE = (
    *("--generate-hashes", "--no-emit-index-url", "--no-header", "--no-annotate", "--no-progress", "--quiet"),
    *("--color", "never"),
)

# uv's own settings that decide what a resolution finds.
_DECISIVE = (
    *("UV_CONSTRAINT", "UV_DEFAULT_INDEX", "UV_EXCLUDE_NEWER", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"),
    *("UV_FORK_STRATEGY", "UV_INDEX", "UV_INDEX_STRATEGY", "UV_INDEX_URL", "UV_NO_INDEX", "UV_NO_SOURCES"),
    *("UV_OVERRIDE", "UV_PRERELEASE", "UV_RESOLUTION", "UV_TORCH_BACKEND"),
)


def _settings_in(path: Path) -> str:
    """A configuration file's settings of uv; in a pyproject.toml that is one table of many."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.name != "pyproject.toml":
        return text
    try:
        return json.dumps(_uv_table(text), sort_keys=True, default=str)
    except tomllib.TOMLDecodeError:
        return text


def _name_by_address(requirement: str) -> str:
    """The name of a package given by an address or a file's path, if they contain it."""
    if re.match(r"[\w.\[\],-]+\s*@", requirement):
        return name_of(requirement)
    file = re.search(r"([^/]+?)-\d[^/]*\.(whl|zip|tar\.\w+)$", path_of(requirement))
    return normalized(file.group(1)) if file else ""


def _uv_table(text: str) -> dict[str, Any]:
    """The settings of uv in a pyproject.toml."""
    return dict(tomllib.loads(text).get("tool", {}).get("uv", {}))


def _entries(text: str) -> list[str]:
    """The entries of a lock, each with its hashes."""
    return [entry.strip() for entry in re.split(r"\n(?=\S)", text) if entry.strip() and not entry.startswith("#")]


def here() -> Interpreter:
    return Interpreter(sys.executable, f"{sys.version_info[0]}.{sys.version_info[1]}")


def _uv_environ(environ: Mapping[str, str]) -> dict[str, str]:
    merged = {**environ, **indexes.uv_settings(environ)}
    for name in ("PYTHONPATH", "PYTHONHOME", "UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_WORKING_DIR", "UV_PROJECT"):
        merged.pop(name, None)
    return merged


def call(
    command: list[str], environ: dict[str, str], folder: Path, text: str = "", limit: float = LIMIT
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, env=environ, cwd=folder, input=text, capture_output=True, encoding="utf-8",
            errors="replace", timeout=limit, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise RequirementsError(
            f"{Path(command[0]).name} {command[1]} did not end within {limit:g} s. Try again, or commit a "
            "lock (uv pip compile --generate-hashes), which needs no resolution."
        ) from error


def recall(path: Path) -> list[str] | None:
    """The cached resolution, unless a folder that it took dependencies from has changed since."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        kept = json.loads(path.read_text(encoding="utf-8"))
        if all(_folder_digest(folder) == value for folder, value in kept["folders"].items()):
            return list(kept["entries"])
    return None


def remember(path: Path, entries: list[str], folder: Path) -> None:
    places = (local_folder(Line(entry.split(" \\\n", 1)[0], "", folder)) for entry in entries)
    folders = {str(place): _folder_digest(place) for place in places if place is not None}
    with suppress(OSError):  # without a cache the next submission asks the index again
        replace_file(path, json.dumps({"entries": entries, "folders": folders}).encode())


def _folder_digest(folder: str | Path) -> str:
    files = [Path(folder, name) for name in ("pyproject.toml", "setup.py", "setup.cfg")]
    return digest.of_bytes(b"\0".join(path.read_bytes() if path.is_file() else b"" for path in files))
