"""The time of an import, in a new interpreter. The floor is `python -c pass`, or the import of the host's package."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks import measure
from tests.benchmarks.measure import Figure

DECLARES = """
import kinetic_orchestration as kinetic

@kinetic.run(accelerator="v5e-1")
def train(): ...
"""

ADAPTERS = (
    ("dagster", "from dagster_kinetic import HostContext, KineticResource, kinetic_asset"),
    ("airflow.sdk", "from airflow_kinetic import KineticTPUOperator, kinetic_task"),
)


def figures() -> Iterator[Figure]:
    from kinetic_orchestration.platforms.shared import agent_zip

    with tempfile.TemporaryDirectory(prefix="kinetic-imports-") as name:
        site = agent_zip.unpacked(Path(name)) / "site"
        load = f"import sys; sys.path.insert(0, {str(site)!r}); import kinetic_orchestration.host.host"
        declares = Path(name, "declares.py")
        declares.write_text(DECLARES)
        floor, core, one, host = measure.interleaved(
            25,
            lambda: measure.python("-c", "pass"),
            lambda: measure.python("-c", "import kinetic_orchestration"),
            lambda: measure.python(str(declares)),
            lambda: measure.python("-I", "-S", "-c", load),
        )
        yield measure.figure("import.kinetic_orchestration", core * 1e3, "ms", floor * 1e3, 5.0)
        yield measure.figure("import.one_function", one * 1e3, "ms", floor * 1e3, 3.5)
        yield measure.figure("import.agent", host * 1e3, "ms", floor * 1e3, 6.0)
        for theirs, ours in ADAPTERS:
            if not measure.has(theirs):
                continue
            env = measure.environment(AIRFLOW_HOME=os.path.join(name, "airflow"))
            floor, value = measure.interleaved(
                5,
                lambda module=theirs, env=env: measure.python("-c", f"import {module}", env=env),
                lambda line=ours, env=env: measure.python("-c", line, env=env),
            )
            yield measure.figure(f"import.{ours.split()[1]}", value * 1e3, "ms", floor * 1e3, 1.1, against=theirs)
