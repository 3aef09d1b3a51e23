"""A training that goes back to an older checkpoint, and what becomes of those after it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import CheckpointError, UsageError
from kinetic_orchestration.program.checkpoints import commits
from kinetic_orchestration.program.checkpoints.commits import Commit, Leaf, Line, Part
from kinetic_orchestration.program.checkpoints.store import open_checkpoints
from kinetic_orchestration.protocol import wire
from tests.core.program.conftest import Host

Become = Callable[..., Host]


def goes(until: int, *, by: float, step: int | None = None, **options: Any) -> tuple[int, float]:
    """Train to a step. Returns the step at which it began, and the number that the state had there."""
    with kinetic.Training(**{"every": 5, "name": "t", "keep": 3, **options}) as training:
        state, begun = training.restore({"w": np.zeros(3)}, step=step)
        found = float(state["w"][0])
        for number in range(begun, until):
            state = {"w": state["w"] + by}
            training.step(number + 1, state)
    return begun, found


def test_a_training_goes_on_at_an_older_checkpoint_and_never_again_at_the_abandoned_ones(host: Become) -> None:
    there = host()
    assert goes(22, by=1.0) == (0, 0.0)
    host(attempt=2)
    assert goes(13, by=100.0, step=10) == (10, 10.0)
    assert there.steps() == [10, 15, 20], "nothing newer was committed yet, so nothing is removed"
    host(attempt=3)
    assert goes(11, by=100.0) == (10, 10.0), "20 is abandoned"
    host(attempt=4)
    assert goes(17, by=100.0) == (10, 10.0)
    assert there.steps() == [10, 15], "the first checkpoint of the new line is in place of the abandoned ones"
    host(attempt=5)
    assert goes(17, by=1.0) == (15, 510.0)


def test_the_same_program_goes_back_once_and_not_in_each_of_its_attempts(host: Become) -> None:
    host()
    goes(22, by=1.0)
    host(attempt=1, job="job-another-of-the-same-key")
    assert goes(12, by=100.0, step=10) == (10, 10.0)
    host(attempt=2, job="job-another-of-the-same-key")
    assert goes(26, by=100.0, step=10) == (10, 10.0), "no checkpoint was committed since"
    host(attempt=3, job="job-another-of-the-same-key")
    assert goes(26, by=1.0, step=10) == (25, 1510.0)
    host(attempt=1, job="job-a-third-of-the-same-key")
    assert goes(16, by=1.0, step=15) == (15, 510.0), "another job goes back once more"


def test_in_one_program_a_training_goes_back_and_writes_the_same_steps_again(host: Become) -> None:
    there = host()
    with kinetic.Training(every=5, name="t") as training:
        state, _ = training.restore({"w": np.zeros(3)})
        for number in range(22):
            state = {"w": state["w"] + 1.0}
            training.step(number + 1, state)
        state, begun = training.restore(state, step=10)
        assert (begun, float(state["w"][0])) == (10, 10.0)
        assert there.steps() == [10]
        for number in range(begun, 22):
            state = {"w": state["w"] + 100.0}
            training.step(number + 1, state)
    host(attempt=2)
    assert goes(20, by=1.0) == (20, 1010.0)


def test_without_the_records_of_lines_a_training_goes_on_at_the_newest_checkpoint_of_all(host: Become) -> None:
    """Removing one is what the message of an unreadable one says."""
    there = host()
    goes(22, by=1.0)
    host(attempt=2)
    goes(17, by=100.0, step=10)
    record = there.checkpoints / "t" / "lines" / "000001.json"
    record.write_text("{}")
    host(attempt=3)
    with pytest.raises(CheckpointError, match="Remove it to go on at the newest of all"):
        goes(17, by=100.0)
    record.unlink()
    assert goes(17, by=100.0) == (15, 510.0)
    host(attempt=4)
    assert goes(17, by=1000.0, step=10) == (10, 10.0), "and goes back again"
    host(attempt=5)
    assert goes(22, by=1000.0) == (15, 5010.0)
    assert there.steps() == [10, 15, 20]


def test_a_step_that_has_no_checkpoint_is_refused_with_those_that_exist(host: Become) -> None:
    there = host()
    goes(17, by=1.0)
    host(attempt=2)
    with pytest.raises(CheckpointError, match=r"no whole checkpoint of step 12 in .*: there are those of 5, 10, 15$"):
        goes(20, by=1.0, step=12)
    part = next((there.checkpoints / "t").glob("step-*10-*")) / "part-00000.safetensors"
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match=r"step 10 in .*its digest is not.*: there are those of 5, 15$"):
        goes(20, by=1.0, step=10)
    assert not (there.checkpoints / "t" / "lines").exists()
    assert goes(15, by=1.0) == (15, 15.0)
    with pytest.raises(CheckpointError, match="there is none at all"):
        goes(3, by=1.0, step=1, name="another")
    with pytest.raises(UsageError, match="step is -1"):
        goes(3, by=1.0, step=-1)


def test_without_a_job_there_is_no_step_to_go_back_to() -> None:
    with kinetic.Training(name="t") as training, pytest.raises(CheckpointError, match="only a job has any"):
        training.restore({"w": np.zeros(3)}, step=5)


def test_what_was_abandoned_is_read_by_its_step_as_long_as_it_is_there(host: Become) -> None:
    there = host()
    goes(22, by=1.0)
    host(attempt=2)
    goes(12, by=100.0, step=10)
    place = there.checkpoints / "t"
    assert kinetic.read_checkpoint(place).step == 10
    assert float(kinetic.read_checkpoint(place, step=20).state["w"][0]) == 20.0
    host(attempt=1, job="job-another-of-the-same-key")
    assert goes(21, by=1.0, step=20) == (20, 20.0), "and is gone back to"


def test_one_that_lives_on_removes_nothing_that_its_successor_needs_and_is_never_followed(host: Become) -> None:
    """The program of the attempt before, frozen until its successor has gone back."""
    there = host()
    zombie = kinetic.Training(every=5, name="t", keep=1)
    state, _ = zombie.restore({"w": np.zeros(3)})
    for number in range(15):
        state = {"w": state["w"] + 1.0}
        zombie.step(number + 1, state)
    zombie._keep = zombie._checkpoints.keep = 3  # type: ignore[union-attr]
    zombie.step(20, state)
    zombie._checkpoints.keep = 1  # type: ignore[union-attr]
    host(attempt=2)
    assert goes(16, by=100.0, step=15, every=None) == (15, 15.0)
    zombie.step(25, state)
    zombie.close()
    assert there.steps() == [15, 20, 25]
    host(attempt=3)
    assert goes(16, by=100.0) == (15, 15.0)


def test_a_damaged_beginning_of_a_line_is_not_passed_over(host: Become) -> None:
    there = host()
    goes(22, by=1.0)
    host(attempt=2)
    goes(12, by=100.0, step=10)
    record = there.checkpoints / "t" / "lines" / "000001.json"
    record.write_text(record.read_text().replace('"step":10', '"step":90'))
    host(attempt=3)
    with pytest.raises(CheckpointError, match=r"checksum is another .*lines/000001\.json says which"):
        goes(12, by=100.0)


# ---- the rules ---------------------------------------------------------------------------------------------------------


def record(step: int, line: int = 0, writer: str = "job-1") -> Commit:
    return Commit(step, commits.folder(step, writer), 1, 0, (Part(1, "aa"),), {"w": Leaf("float32", ())}, line=line)


def begin(number: int, of: Commit) -> Line:
    return Line(number, of.step, of.folder, of.line, "job-2", of.step, ())


@pytest.mark.fast
def test_a_line_has_what_lies_before_the_places_where_it_began() -> None:
    first, second, third = begin(1, record(10)), begin(2, record(20, 1)), begin(3, record(30, 0))
    lines = {1: first, 2: second}
    assert commits.is_on({}, record(99))
    assert [step for step in (5, 10, 15) if commits.is_on(lines, record(step))] == [5, 10]
    assert [step for step in (15, 20, 25) if commits.is_on(lines, record(step, 1))] == [15, 20]
    assert not commits.is_on(lines, record(10, writer="job-9")), "another checkpoint of that step"
    assert commits.is_on(lines, record(99, 2))
    assert [step for step in (20, 30, 40) if commits.is_on({**lines, 3: third}, record(step))] == [20, 30]
    assert not commits.is_on({**lines, 3: third}, record(15, 1)), "the line that was left"


@pytest.mark.fast
def test_the_beginning_of_a_line_comes_back_as_it_was() -> None:
    for line in (begin(3, record(10)), replace(begin(3, record(10)), asked=None, only=("a/b", "c"))):
        assert Line.decode(line.encode(), 3) == line
    good = json.loads(begin(3, record(10)).encode())
    for harm in ({"of": 3}, {"step": "x"}, {"only": 3}):
        with pytest.raises(wire.Unreadable):
            Line.decode(json.dumps({**good, "sum": None, **harm}).encode(), 3)


def test_two_that_go_back_at_once_begin_two_lines(tmp_path: Path) -> None:
    one, other = (open_checkpoints(str(tmp_path), f"job-{attempt}") for attempt in (1, 2))
    committed = record(10)
    assert one.commit(committed)
    one.begin_line(committed, 10, ())
    other.begin_line(committed, None, ("w",))
    assert (one.line, other.line) == (1, 2)
    assert {number: line.writer for number, line in other.lines().items()} == {1: "job-1", 2: "job-2"}
