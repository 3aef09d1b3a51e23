"""Foreign objects in the bucket, left by mistake or on purpose, cost a follower nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.cli import main
from kinetic_orchestration.protocol import names
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.cloud.cases import run
from tests.support.jobs import wait_running


@pytest.mark.parametrize("beat", [b'{"wire": 99, "state": "running"}', b"torn"])
def test_a_beat_that_nobody_here_understands_ends_neither_the_job_nor_whoever_watches_it(
    cloud: Emulator, jobs: Any, tmp_path: Path, beat: bytes
) -> None:
    """A newer version may share the deployment, and the watcher looks at the beats of all."""
    job = run(jobs.until, str(tmp_path / "go"))
    wait_running(job)
    job._job.store.signal(names.beat(job.job_id, 1, 9), beat)
    job._job.store.signal(names.beat("job-another", 1, 0), beat)
    (tmp_path / "go").touch()
    assert job.result(timeout=60) == 1


@pytest.mark.slow
@pytest.mark.turn(1)
def test_a_slice_whose_intent_is_damaged_is_freed_by_a_cancel(cloud: Emulator, jobs: Any, tmp_path: Path) -> None:
    """It is found by its name, nothing of it is left, and the record's bytes are kept."""
    job = run(jobs.until, str(tmp_path / "never"))
    wait_running(job)
    store, name = job._job.store, names.intent(job.job_id, 1)
    record = store.read(name)
    assert record is not None
    changed = bytearray(record.data)
    changed[len(changed) // 2] ^= 1
    store.put(name, bytes(changed))
    main(["cancel", job.job_id])
    cloud.wait_until_empty(60)
    cloud.ledger.assert_nothing_left()
    kept = store.read(f"{name}.damaged")
    assert kept is not None
    assert kept.data == bytes(changed)
