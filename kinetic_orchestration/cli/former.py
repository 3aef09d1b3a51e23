"""The script `ko`, the short name until version 0.1: it tells the new one, and hands the image builder's commands on.

`ko` is the image builder of the CNCF (https://ko.build), whom this script would hide in an environment that is active.
It is kept for one release. It knows the names of both programs' commands, and not what they do.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from kinetic_orchestration.cli import COMMANDS, main
from kinetic_orchestration.protocol.system import copies

# Of ko 0.18, https://ko.build/reference/ko/; `publish` is its other name of `build`. None of them is a command of ours.
BUILDERS = frozenset({
    "apply", "build", "completion", "create", "delete", "deps", "help", "login", "publish", "resolve", "run", "version",
})  # fmt: skip
TRIED = "KINETIC_KO_TRIED"  # the scripts that this one has become, which may lead back here, as pyenv's do
NOT_FOUND = 127  # as a shell's
_NEW = "`ko` of kinetic-orchestration is `kinor` now"


def ko() -> int:
    """Run the script `ko`: return the exit code of our command, or become the image builder."""
    words = sys.argv[1:]
    named = next((word for word in words if not word.startswith("-")), "")
    asks_us = named in COMMANDS or "--version" in words
    builder = None if asks_us else builder_on(os.environ.get("PATH", os.defpath))
    if builder is not None:
        _say(f"{_NEW}, and the next release has no `ko`; this one is {builder}")
        return _become(builder, words)
    if named in BUILDERS:
        _say(
            f"{_NEW}. `ko {named}` is a command of the image builder, and PATH has no other `ko`: "
            "install that one (https://ko.build/install)"
        )
        return NOT_FOUND
    _say(f"{_NEW}, and the next release has no `ko`")
    return main()


def builder_on(path: str) -> str | None:
    """Return the first `ko` of a PATH that is no script of this package, of any environment; None if there is none."""
    tried = os.environ.get(TRIED, "").split(os.pathsep)
    return next((found for found in _all_on(path) if not _leads_here(found, tried)), None)


def _all_on(path: str) -> Iterator[str]:
    for folder in path.split(os.pathsep):
        if folder and (found := shutil.which("ko", path=folder)):
            yield os.path.abspath(found)


def _leads_here(program: str, tried: Sequence[str]) -> bool:
    """Return True for a script that an installer made for this package, and for one that was tried and came back."""
    try:
        with Path(program).open("rb") as file:
            head = file.read(4096)
    except OSError:  # one that may be run and not read is no script
        return False
    return head.startswith(b"#!") and (b"kinetic_orchestration" in head or program in tried)


def _become(program: str, words: Sequence[str]) -> int:
    tried = [*filter(None, os.environ.get(TRIED, "").split(os.pathsep)), program]
    try:
        os.execve(program, [program, *words], copies.environ() | {TRIED: os.pathsep.join(tried)})
    except OSError as error:
        _say(f"{program} cannot be run: {error.strerror}")
        return NOT_FOUND - 1


def _say(text: str) -> None:
    sys.stderr.write(f"kinetic: {text}\n")
    sys.stderr.flush()
