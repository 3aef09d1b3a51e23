"""How long an import takes, in a new interpreter. The floor is `python -c pass`, or the import of the host's package."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks import measure
from tests.benchmarks.measure import Figure

ADAPTERS = {"dagster": ("dagster", "dagster_kinetic"), "airflow": ("airflow.sdk", "airflow_kinetic")}


def figures() -> Iterator[Figure]:
    from kinetic_orchestration.packaging import agent

    with tempfile.TemporaryDirectory(prefix="kinetic-imports-") as name:
        site = agent.unpacked(Path(name)) / "site"
        load = f"import sys; sys.path.insert(0, {str(site)!r}); import kinetic_orchestration.agent.host"
        floor, core, host = measure.interleaved(
            25,
            lambda: measure.python("-c", "pass"),
            lambda: measure.python("-c", "import kinetic_orchestration"),
            lambda: measure.python("-I", "-S", "-c", load),
        )
        yield measure.figure("import.kinetic_orchestration", core * 1e3, "ms", floor * 1e3, 5.0)
        yield measure.figure("import.agent", host * 1e3, "ms", floor * 1e3, 6.0)
        for theirs, ours in (pair for needs, pair in ADAPTERS.items() if measure.has(needs)):
            env = measure.environment(AIRFLOW_HOME=os.path.join(name, "airflow"))
            floor, value = measure.interleaved(
                5,
                lambda module=theirs, env=env: measure.python("-c", f"import {module}", env=env),
                lambda module=ours, env=env: measure.python("-c", f"import {module}", env=env),
            )
            yield measure.figure(f"import.{ours}", value * 1e3, "ms", floor * 1e3, 1.1, against=theirs)
