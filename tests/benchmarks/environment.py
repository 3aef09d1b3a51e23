"""How long a job waits for its environment: built from a warm cache, and found again.

The floor of the first is `uv venv` and `uv pip install` of the same packages in the same run. Needs no network: the
packages are made here.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks import measure
from tests.benchmarks.measure import Figure

PACKAGES, FILES, ROUNDS = 40, 100, 5


def figures() -> Iterator[Figure]:
    from kinetic_orchestration.agent.environment import ensure
    from kinetic_orchestration.packaging.requirements import lock, uv_settings
    from tests.packaging.wheels import offline, wheel

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        names = [f"package{number}" for number in range(PACKAGES)]
        for package in names:
            files = {f"{package}/module{number}.py": "x = 1\n" * 200 for number in range(FILES)}
            wheel(folder / "links", package, files={**files, f"{package}/__init__.py": ""})
        environ = offline(folder)
        settings = {**environ, **uv_settings(environ)}

        resolving, found = _timed(lambda: lock(names, environ=environ, cache=folder / "locks"))
        recalled, _ = _timed(lambda: lock(names, environ=environ, cache=folder / "locks"))

        def floor(number: int) -> None:
            target = folder / f"floor{number}"
            command = [found.uv, "venv", "--quiet", "--python", found.interpreter, str(target)]
            subprocess.run(command, env=settings, check=True)
            command = [
                found.uv,
                "pip",
                "install",
                "--quiet",
                "--no-index",
                "--python",
                str(target / "bin/python"),
            ]
            subprocess.run([*command, *names], env=settings, check=True)

        def ours(number: int) -> str:
            root = str(folder / f"root{number}")
            return ensure(found.text, found.digest, root, uv=found.uv, python=found.interpreter, env=settings)

        floor(-1)
        floors, builds, again = [], [], []
        for number in range(ROUNDS):
            floors.append(_timed(lambda n=number: floor(n))[0])
            builds.append(_timed(lambda n=number: ours(n))[0])
            again.append(_timed(lambda n=number: ours(n))[0])
        install, build, reuse = map(statistics.median, (floors, builds, again))
    for name, value, against, target in (
        ("environment.warm_cache", build, install, 1.5),
        ("environment.used_again", reuse, install, 0.2),
        ("environment.lock_recalled", recalled, resolving, 1.0),
    ):
        yield measure.figure(name, value * 1e3, "ms", against * 1e3, target)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result
