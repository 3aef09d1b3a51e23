"""The time that a job waits for its environment: built from a warm cache, and found again.

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
    from kinetic_orchestration.host.prepare.environment import ensure
    from kinetic_orchestration.packaging.requirements.locks import lock, uv_settings
    from tests.support.wheels import offline, wheel

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


def on_other_machines() -> Iterator[Figure]:
    """For hosts that are other machines: the environment from staged wheels, and what the compile cache spares.

    The first is a machine that has uv and nothing else; the floor is `uv venv` and `uv pip install` from the same
    wheels in a folder, with an empty cache, too. The second is a process on a new machine against one that compiles.
    """
    from kinetic_orchestration.host.prepare import toolbox
    from kinetic_orchestration.packaging.requirements import tools
    from kinetic_orchestration.packaging.requirements.locks import Hosts, locked_for
    from kinetic_orchestration.packaging.requirements.resolution import find_uv
    from kinetic_orchestration.plan.configuration.settings import load
    from kinetic_orchestration.plan.hardware.accelerators import parse
    from kinetic_orchestration.platforms.registry import open_store
    from kinetic_orchestration.protocol.wire.task import Environment
    from tests.support.wheels import offline, wheel

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        names = [f"package{number}" for number in range(PACKAGES)]
        for package in names:
            files = {f"{package}/module{number}.py": "x = 1\n" * 200 for number in range(FILES)}
            wheel(folder / "links", package, files={**files, f"{package}/__init__.py": ""})
        environ = offline(folder) | {
            "KINETIC_HOME": str(folder / "home of ours"),
            "KINETIC_STORE": str(folder / "store"),
        }
        here = load(environ)
        store = open_store(here.store, here.deployment)
        found = locked_for(names, Hosts(parse("v5e-4"), emulated=True), environ=environ)
        assert found.lock is not None
        staged = tools.stage_uv(store, here)
        list(tools.stage_wheels(store, found.lock, environ))
        wanted = Environment(found.lock.digest, python=found.python, packages=found.lock.packages)
        text = found.lock.text

        def fresh(kind: str) -> dict[str, str]:
            return {"UV_CACHE_DIR": tempfile.mkdtemp(prefix=f"{kind}-", dir=folder), "UV_NO_INDEX": "1"}

        def floor(number: int) -> None:
            target = folder / f"floor{number}"
            uv, python, env = find_uv(environ), toolbox.sys.executable, fresh("floor")
            subprocess.run([uv, "venv", "--quiet", "--python", python, str(target)], env={**environ, **env}, check=True)
            command = [uv, "pip", "install", "--quiet", "--no-index", "--find-links", str(folder / "links")]
            command += ["--python", str(target / "bin/python"), *names]
            subprocess.run(command, env={**environ, **env}, check=True)

        def ours(number: int) -> str:
            home = folder / f"machine{number}"
            home.mkdir()
            (home / "tools").symlink_to(folder / "tools")
            return toolbox.provide(store, wanted, {"uv": staged.digest}, text, str(home), fresh("ours"), lambda _: None)  # type: ignore[arg-type]

        (folder / "tools").mkdir()
        floor(-1)
        ours(-1)
        floors, builds = [], []
        for number in range(ROUNDS):
            floors.append(_timed(lambda n=number: floor(n))[0])
            builds.append(_timed(lambda n=number: ours(n))[0])
        build, install = statistics.median(builds), statistics.median(floors)
    yield measure.figure("environment.from_staged_wheels", build * 1e3, "ms", install * 1e3, 1.5)
    first, second = _compiling()
    yield measure.figure("compile_cache.second_process", second * 1e3, "ms", first * 1e3, 0.35)


STEP = """
import time
began = time.perf_counter()
import jax, jax.numpy as jnp
began = time.perf_counter()

@jax.jit
def step(x):
    for layer in range(8):
        x = jax.random.gamma(jax.random.key(layer), jnp.abs(x) + 1.0)
    return x.sum()

step(jnp.ones((48, 48))).block_until_ready()
print(time.perf_counter() - began)
"""


def _compiling() -> tuple[float, float]:
    """Seconds to the end of the first step: on a machine that compiles, and on the next one, by way of a store."""
    import os
    import sys

    from kinetic_orchestration.host.prepare.compile_cache import CompileCache
    from kinetic_orchestration.protocol.records.files import FileRecords
    from tests.core.host.prepare.test_compile_cache import serving

    taken: tuple[list[float], list[float]] = [], []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as name, serving():
            records = FileRecords(name)
            for number, times in enumerate(taken):
                cache = CompileCache(
                    records, "bench", f"{name}/machine{number}", lambda _: None, pushes=True, writer=f"job-{number}"
                )
                env = {**os.environ, **cache.environ(), "JAX_PLATFORMS": "cpu"}
                done = subprocess.run([sys.executable, "-c", STEP], env=env, capture_output=True, text=True, check=True)
                times.append(float(done.stdout))
                cache.close(30.0)
    return statistics.median(taken[0]), statistics.median(taken[1])


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result
