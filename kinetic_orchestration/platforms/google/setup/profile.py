"""The settings for a project that was set up, as a table of the profile file, and a first job with them."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kinetic_orchestration.errors import SetupError
from kinetic_orchestration.platforms.google.setup.table import Setup

ADDED, KEPT, DIFFERENT = "added", "kept", "different"
FIRST_JOB: Final = (
    'python -c "import kinetic_orchestration as k; '
    "k.command(['python3', '-c', 'print(6 * 7)'], accelerator='{accelerator}', spot=True).result(stream_logs=True)\""
)


def settings_of(made: Setup, deployment: str) -> dict[str, Any]:
    """Return the settings by which jobs run in what was set up."""
    wish = made.wish
    network = f"projects/{wish.project}/global/networks/{wish.network}"
    subnetwork = f"projects/{wish.project}/regions/{wish.region}/subnetworks/{wish.network}"
    return {
        "project": wish.project,
        "store": made.store,
        "deployment": deployment,
        "service_account": made.machines,
        "require_hardware": True,
        **({"network": network, "subnetwork": subnetwork} if made.network else {}),
    }


def table_of(name: str, values: Mapping[str, Any]) -> str:
    """Return settings as a table of the profile file."""
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
    return "\n".join((f"[{key}]", *lines, ""))


def write(path: Path, name: str, values: Mapping[str, Any]) -> str:
    """Add a profile to the file. One of that name is never changed.

    Returns:
        ADDED, KEPT if it has the same values already, or DIFFERENT if it has others.

    Raises:
        SetupError: The file cannot be read or written.
    """
    import tomllib

    try:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        there = tomllib.loads(before).get(name)
        if there is not None:
            return KEPT if isinstance(there, dict) and {**there, **values} == there else DIFFERENT
        path = path.resolve()  # a link stays one
        path.parent.mkdir(parents=True, exist_ok=True)
        text = f"{before.rstrip()}\n\n{table_of(name, values)}" if before.strip() else table_of(name, values)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SetupError(
            f"the profile file {path} could not be changed ({error}): the project is set up; add these lines\n"
            f"{table_of(name, values)}"
        ) from None
    return ADDED
