"""Reading requirements: a list, a requirements file, a pyproject.toml, or a committed lock.

Responsible for parsing each line, and for naming a line that is invalid. Resolves nothing, runs nothing.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.host.prepare.environment import redact


class Asked(NamedTuple):
    """The requirements as they were given."""

    kind: Literal["list", "requirements", "pyproject", "pylock", "setup"]
    name: str  # for users
    path: Path | None
    text: str
    folder: Path  # what relative paths are relative to


class Line(NamedTuple):
    """One logical line of requirements: a requirement or an option."""

    text: str
    where: str
    folder: Path

    @property
    def option(self) -> bool:
        return self.text.startswith("-") and not self.editable

    @property
    def editable(self) -> bool:
        return bool(re.match(r"(-e|--editable)[\s=]", self.text))

    @property
    def hashes(self) -> list[str]:
        return [] if self.option else re.findall(r"--hash[=\s]\s*(\S+)", self.text)

    @property
    def requirement(self) -> str:
        """The requirement without its options."""
        return re.split(r"\s--", self.text, maxsplit=1)[0].strip()

    @property
    def shown(self) -> str:
        """The requirement for a message, without passwords."""
        return repr(redact(self.requirement))


_OTHER_TOOLS = {
    "uv.lock": "uv export --format requirements.txt -o requirements.txt",
    "poetry.lock": "poetry export -o requirements.txt",
    "pdm.lock": "pdm export -o requirements.txt",
    "Pipfile": "pipenv requirements > requirements.txt",
    "Pipfile.lock": "pipenv requirements --hash > requirements.txt",
}


def read(requirements: str | os.PathLike[str] | Sequence[str]) -> Asked:
    if isinstance(requirements, str | os.PathLike):
        return _read_file(Path(requirements).expanduser())
    if not isinstance(requirements, Sequence) or not all(isinstance(line, str) for line in requirements):
        raise UsageError(
            f"requirements must be None, a file or a list of strings, not {type(requirements).__name__}: "
            f'{requirements!r:.80}. For instance requirements=["jax[tpu]", "keras>=3"].'
        )
    for number, line in enumerate(requirements):
        if "\n" in line.strip():
            raise UsageError(f"requirements[{number}] holds several lines; give each as a string of its own.")
    return Asked("list", "the list of requirements", None, "\n".join(requirements), Path.cwd())


def _read_file(path: Path) -> Asked:
    if path.name in _OTHER_TOOLS:
        raise UsageError(f"{path.name} is another tool's own format. Export it first: {_OTHER_TOOLS[path.name]}")
    if path.suffix in (".yml", ".yaml"):
        raise UsageError(f"{path.name} is a conda environment; list what the job needs in a requirements.txt instead.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        hint = f' For a single package write a list: requirements=["{path}"].' if "/" not in str(path) else ""
        raise UsageError(f"requirements={str(path)!r}: there is no such file in {Path.cwd()}.{hint}") from None
    except IsADirectoryError:
        raise UsageError(
            f"requirements={str(path)!r} is a folder; give the file in it, such as pyproject.toml."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"requirements={str(path)!r} cannot be read: {error}") from None
    kind: Literal["requirements", "pyproject", "pylock", "setup"] = "requirements"
    if path.name in ("setup.py", "setup.cfg"):
        kind = "setup"
    elif path.suffix == ".toml":
        kind = "pylock" if re.fullmatch(r"pylock(\..+)?\.toml", path.name) else "pyproject"
    return Asked(kind, path.name, path.absolute(), text, path.absolute().parent)


def lines_of(asked: Asked) -> Iterator[Line]:
    """The requirements one by one, those of included files among them; each is checked."""
    if asked.kind == "list":
        for number, text in enumerate(asked.text.split("\n") if asked.text else ()):
            yield from _expand(Line(_uncommented(text), f"requirements[{number}]", asked.folder), set())
    elif asked.kind == "requirements":
        assert asked.path is not None
        yield from _file_lines(asked.path, asked.text, {asked.path})
    elif asked.kind == "pyproject":
        yield from _project_lines(asked)


def _file_lines(path: Path, text: str, seen: set[Path]) -> Iterator[Line]:
    number = 0
    rows = iter(text.splitlines())
    for row in rows:
        number += 1
        first, whole = number, _uncommented(row)
        while whole.endswith("\\"):
            following = next(rows, None)
            if following is None:
                whole = whole[:-1]
                break
            number += 1
            whole = f"{whole[:-1].rstrip()} {_uncommented(following)}"
        yield from _expand(Line(whole.strip(), f"{path.name}, line {first}", path.parent), seen)


def _expand(line: Line, seen: set[Path]) -> Iterator[Line]:
    if not line.text:
        return
    included = re.match(r"(?:-r|-c|--requirements?|--constraints?)(?:\s*=\s*|\s+|(?<=-[rc]))(\S.*)$", line.text)
    if included is None:
        _check(line)
        yield line
        return
    name = included.group(1).strip().strip("'\"")
    if "://" in name or "${" in name:
        yield line
        return
    path = (line.folder / name).absolute()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{line.where}: {redact(line.text)!r} cannot be read: {error}") from None
    if path in seen:
        return
    # A constraint is no requirement, but it affects the resolution: it stays in the key.
    constraint = line.text.startswith(("-c", "--constraint"))
    for inner in _file_lines(path, text, seen | {path}):
        yield inner._replace(text=f"-c {inner.text}") if constraint else inner


_OPTIONS = re.compile(
    r"-[cfi]|--(constraint|extra-index-url|find-links|index-url|no-binary|no-index|only-binary|pre"
    r"|prefer-binary|require-hashes|trusted-host|use-feature)$"
)


def _check(line: Line) -> None:
    """A line that is no requirement is named by its place before anything runs."""
    if line.option:
        name = re.split(r"[\s=]", line.text, maxsplit=1)[0]
        if not _OPTIONS.match(name):
            raise UsageError(f"{line.where}: {name} is not an option of a requirements file.")
        return
    if "${" in line.text:
        return
    text = re.sub(r"^(-e|--editable)[\s=]\s*|^[\w.\[\],-]+\s*@\s*", "", line.requirement)
    if re.match(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]*:", text):
        return  # an address
    if line.editable or re.match(r"[./~]|file:", text) or re.search(r"\.(whl|zip|tar\.\w+)$", text):
        path = line.folder / Path(path_of(text)).expanduser()
        if not path.exists():
            raise UsageError(f"{line.where}: {line.shown} is not there: {path} does not exist.")
        return
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        Requirement(line.requirement)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{line.where}: {line.shown} is not a requirement: {reason}.") from None


def _project_lines(asked: Asked) -> Iterator[Line]:
    try:
        document = tomllib.loads(asked.text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{asked.name} is not TOML: {error}.") from None
    project = document.get("project")
    if not isinstance(project, dict):
        raise UsageError(
            f"{asked.name} has no [project], so it names no dependencies. Give a list or a requirements.txt."
        )
    for number, text in enumerate(project.get("dependencies", [])):
        line = Line(str(text), f"{asked.name}, dependency {number + 1}", asked.folder)
        _check(line)
        yield line


def _uncommented(row: str) -> str:
    return re.sub(r"(^|\s)#.*$", "", row).strip()


def path_of(text: str) -> str:
    """The path in a requirement that is one, without its extras and markers."""
    text = re.sub(r"\s*;.*$", "", text)
    text = re.sub(r"\[[^\]]*\]$", "", text.split("#", 1)[0]).strip()
    return unquote(urlsplit(text).path) if text.startswith("file:") else text


def index_options(asked: Asked, *, expand: bool = True) -> Iterator[tuple[str, str, Path]]:
    """The options that select package indexes; without `expand` a ${VARIABLE} in an address is kept."""
    long = {"-i": "--index-url", "-f": "--find-links"}
    for line in lines_of(asked):
        match = re.match(r"(-i|-f|--index-url|--extra-index-url|--find-links|--no-index)\b[\s=]*(.*)$", line.text)
        if match:
            value = match.group(2)
            if expand or "://" not in value:
                value = os.path.expandvars(value)
            yield long.get(match.group(1), match.group(1)), value, line.folder
    if asked.kind == "pyproject":
        uv = tomllib.loads(asked.text).get("tool", {}).get("uv", {})
        for index in uv.get("index", []):
            if "url" in index:
                name = f"{index['name']}={index['url']}" if "name" in index else str(index["url"])
                yield "--index-url" if index.get("default") else "--extra-index-url", name, asked.folder


def is_local(requirement: str) -> bool:
    text = re.sub(r"^(-e|--editable)[\s=]\s*|^[\w.\[\],-]+\s*@\s*", "", requirement)
    return (text != requirement and "://" not in text) or text.startswith(("file:", ".", "/", "~"))


def local_folder(line: Line) -> Path | None:
    text = re.sub(r"^(-e|--editable)[\s=]\s*", "", line.requirement)
    if not is_local(text):
        return None
    path = line.folder / path_of(re.sub(r"^[\w.\[\],-]+\s*@\s*", "", text))
    return path if path.is_dir() else None


def committed(asked: Asked, lines: Iterable[Line]) -> list[str]:
    """The entries of a committed lock; nothing is resolved again."""
    if asked.kind == "pylock":
        return list(_pylock_entries(asked))
    entries = []
    for line in lines:
        if line.option:
            continue
        if not line.hashes and not is_local(line.requirement) and not re.search(r"@[0-9a-f]{40}\b", line.text):
            raise UsageError(
                f"{line.where}: {line.shown} has no --hash, but other lines have one. A lock needs "
                "the hashes of all packages, those they depend on included. Make it anew: "
                "uv pip compile --generate-hashes requirements.in -o requirements.txt"
            )
        if line.hashes and not re.search(r"===?|\s@\s|://", line.requirement):
            raise UsageError(f"{line.where}: {line.shown} has a --hash but no exact version (name==version).")
        entries.append(_entry(line.requirement, line.hashes))
    return entries


def _pylock_entries(asked: Asked) -> Iterator[str]:
    try:
        document = tomllib.loads(asked.text)
        version, listed = str(document["lock-version"]), list(document.get("packages", []))
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise UsageError(f"{asked.name} is not a pylock file: {error}.") from None
    if version.split(".", maxsplit=1)[0] != "1":
        raise UsageError(f"{asked.name} has lock-version {version}; this version of the package reads 1.x.")
    for package in listed:
        requirement, hashes = _pylock_package(package, asked)
        if marker := package.get("marker"):
            if re.search(r"\b(extras|dependency_groups)\b", marker):
                raise UsageError(
                    f"{asked.name} locks several extras or groups at once ({package['name']}: {marker}). "
                    "Export the one that the job needs."
                )
            requirement += f" ; {marker}"
        yield _entry(requirement, hashes)


def _pylock_package(package: dict[str, Any], asked: Asked) -> tuple[str, list[str]]:
    name = package["name"]
    if directory := package.get("directory"):
        return str((asked.folder / directory["path"]).absolute()), []
    if vcs := package.get("vcs"):
        where = vcs.get("url") or (asked.folder / vcs["path"]).absolute().as_uri()
        return f"{name} @ {vcs['type']}+{where}@{vcs['commit-id']}", []
    if archive := package.get("archive"):
        where = archive.get("url") or (asked.folder / archive["path"]).absolute().as_uri()
        return f"{name} @ {where}", [f"{kind}:{value}" for kind, value in archive["hashes"].items()]
    files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ())]
    hashes = [f"{kind}:{value}" for file in files for kind, value in file["hashes"].items()]
    if "version" not in package or not hashes:
        raise UsageError(f"{asked.name}: {name} has no version or no hashes, so it cannot be installed as locked.")
    return f"{name}=={package['version']}", hashes


def _entry(requirement: str, hashes: Iterable[str]) -> str:
    return " \\\n    ".join([requirement, *(f"--hash={value}" for value in sorted(set(hashes)))])
