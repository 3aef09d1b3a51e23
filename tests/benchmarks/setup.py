"""The requests of `kinor init` in a project of the emulated cloud that is as Google has new ones, by the cloud's own journal.

What is counted is what each command of a user has sent, from its first look to its end, waits included.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks import measure
from tests.benchmarks.measure import Figure

PROJECT, ZONE = "bare-project", "us-west4-a"
INIT = ("init", "--project", PROJECT, "--region", ZONE.rpartition("-")[0], "--yes")
QUIET = (
    "import os, sys; sys.stdout = open(os.devnull, 'w'); from kinetic_orchestration.cli import main; sys.exit(main())"
)
READS = (":testIamPermissions", ":getIamPolicy")  # which are POST, and change nothing


def figures() -> Iterator[Figure]:
    for kind, own_network, more, most in (
        ("", False, (), 17),
        (".network", True, ("--submitter", "user:ada@example.com"), 30),
    ):
        first, second = _requests(own_network, *more)
        yield measure.bounded(f"setup{kind}.first", len(first), "requests", most)
        yield measure.bounded(f"setup{kind}.second", len(second), "requests", None)
        writes = [one for one in second if not one.startswith("GET ") and not one.endswith(READS)]
        yield measure.bounded(f"setup{kind}.second_writes", len(writes), "requests", 0)


def _requests(own_network: bool, *more: str) -> tuple[list[str], list[str]]:
    """Return what a first and a second run have asked: method and path of each request.

    Args:
        own_network: The project has no network, and one is made.
        more: Further options.
    """
    from kinetic_orchestration.testing import Emulator
    from kinetic_orchestration.testing.api_rules import journal

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "journal")
        folder.mkdir()
        os.environ[journal.VARIABLE] = str(folder)
        try:
            with Emulator(Path(place, "cloud"), hosts=False, zones=[ZONE], projects=[PROJECT]) as cloud:
                cloud.projects.add(PROJECT)
                if own_network:
                    cloud.compute.remove_default_network(PROJECT)
                env = measure.environment(
                    **cloud.addresses(), KINETIC_HOME=str(Path(place, "home")),
                    KINETIC_PROFILE_FILE=str(Path(place, "profiles.toml")),
                )  # fmt: skip
                measure.python("-c", QUIET, *INIT, *more, env=env)
                first = _journaled(folder)
                measure.python("-c", QUIET, *INIT, *more, env=env)
                return first, _journaled(folder)[len(first) :]
        finally:
            del os.environ[journal.VARIABLE]


def _journaled(folder: Path) -> list[str]:
    from urllib.parse import urlsplit

    from kinetic_orchestration.testing.api_rules import journal

    exchanges = [one for path in folder.iterdir() for one, _ in journal.entries(path.read_bytes())]
    return [f"{one.method} {urlsplit(one.target).path}" for one in exchanges]
