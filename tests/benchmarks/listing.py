"""The time to list the jobs of a store in which ten thousand have ended and ten are running.

All are records as jobs of this machine leave them: those that have ended are copies of one that ran, under ids of their
own. The floor is the same command on the store of before, with that one job.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from tests.benchmarks import measure, waiting
from tests.benchmarks.measure import Figure
from tests.support import many_jobs

ENDED, LIVE = 10_000, 10
ROUNDS = 3
KINOR = (
    "import os, sys; sys.stdout = open(os.devnull, 'w'); from kinetic_orchestration.cli import main; sys.exit(main())"
)


def figures() -> Iterator[Figure]:
    with measure.project(noop=waiting.NOOP) as folder:
        ended = _run_one()
        (floor,) = measure.interleaved(ROUNDS, _ko)
        many_jobs.copy(folder.parent / "home" / "store" / "local" / "jobs", ended, ENDED - 1)
        waiting._admit(LIVE)
        live, page = measure.interleaved(ROUNDS, _ko, lambda: _ko("--all"))
    yield measure.bounded("listing.live", live, "s", 0.5, floor=floor)
    yield measure.bounded("listing.page_of_all", page, "s", None, floor=floor)


def _ko(*more: str) -> None:
    measure.python("-c", KINOR, "jobs", *more, env=measure.environment(KINETIC_HOME=os.environ["KINETIC_HOME"]))


def _run_one() -> str:
    import kinetic_orchestration as kinetic

    job = kinetic.run(accelerator="cpu")(abs).run_async(-1)
    assert job.result() == 1
    return job.job_id
