"""`init --dry-run` of a Google project: what others make of the same table, printed or written. Nothing is sent."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

from kinetic_orchestration.cli import codes
from kinetic_orchestration.cli.output import note, show_json
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.platforms.google.setup import table
from kinetic_orchestration.platforms.google.setup.rendered import LOOKED_UP, gcloud, terraform
from kinetic_orchestration.platforms.google.setup.table import Wish


def show(wish: Wish, folder: str | None, *, as_json: bool) -> int:
    """Print the lines of gcloud, or write the module of Terraform."""
    wish = replace(wish, number=LOOKED_UP)
    made = table.setup(wish)
    if folder:
        _write(Path(folder), terraform.files(wish))
    if as_json:
        lines = gcloud.script(made).splitlines()
        show_json({"project": wish.project, "gcloud": lines, "terraform": terraform.files(wish)})
    elif folder:
        within = shlex.join(("terraform", f"-chdir={folder}"))
        print(f"{within} init\n{within} apply")
    else:
        print(gcloud.script(made), end="")
        note("the same as a module for Terraform: add --terraform DIR. Nothing was sent, and nothing is made")
    sys.stdout.flush()
    return codes.OK


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write files into a folder. Raises UsageError for one that is another already: nothing is written then."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file: name a folder for the module, or a path at which there is nothing")
    others = [name for name, text in files.items() if _is_other(folder / name, text)]
    if others:
        raise UsageError(
            f"{folder} has {', '.join(others)} already, and other text in it: name an empty folder, and compare the two"
        )
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{error.filename or folder} cannot be written ({error.strerror}): name another folder"
        ) from error
    note(f"{len(files)} files are in {folder}")


def _is_other(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() != text.encode()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # a folder, or a file that may not be read
        return True
