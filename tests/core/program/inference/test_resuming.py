"""A batch that is killed, continued, repeated, or run twice at once: no finished prompt is asked again, none is lost, none
is written twice."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import Superseded, UsageError
from kinetic_orchestration.host.view import retrying_records
from kinetic_orchestration.program.context import HostContext
from kinetic_orchestration.program.inference import output, work
from tests.core.program.inference.conftest import Lab
from tests.support.openai_server import answer_to
from tests.support.waits import wait_until

Answer = Callable[..., Any]
Prompts = Callable[[int], list[str]]


def keys(answers: list[dict[str, Any]]) -> dict[str, str]:
    return {answer["prompt"]: answer["key"] for answer in answers}


def killed(lab: Lab, asked: list[str], enough: Callable[[], bool], delay: float = 0.03) -> None:
    """Run a batch in a process of its own, and kill it once there is enough."""
    told = {"lab": str(lab.folder), "prompts": asked, "more": ["--delay", str(delay)]}
    program = subprocess.Popen([sys.executable, str(Path(__file__).with_name("program.py")), json.dumps(told)])
    try:
        wait_until(enough)
    finally:
        program.kill()
        program.wait()


def test_a_kill_repeats_no_finished_prompt_and_loses_none(lab: Lab, answer: Answer, prompts: Prompts) -> None:
    asked = [f"{one} unique {n}" for n, one in enumerate(prompts(200))]
    killed(lab, asked, lambda: len(lab.answers()) >= 20 and len(lab.answers("journal")) >= 3)
    finished = {**keys(lab.answers()), **keys(lab.answers("journal"))}
    begun = len(lab.asked())
    assert 20 < len(finished) < len(asked)
    report = answer(asked)
    again = lab.prompts_asked()[begun:]
    assert set(again) == set(asked) - set(finished) and len(again) == len(set(again))  # 0 finished ones, and all others
    assert lab.texts() == {one: answer_to(one) for one in asked}
    assert (report["rows"], report["answered"], report["reused"]) == (200, 200, len(finished))
    assert not list((lab.output / "journal").rglob("*.jsonl")) and not list((lab.output / "hosts").rglob("0*"))


@pytest.mark.slow
def test_an_output_is_asked_only_for_what_it_lacks(lab: Lab, answer: Answer, prompts: Prompts) -> None:
    asked = prompts(30)
    lab.faults({"number 3 ": {"status": 400, "message": "as yet"}})
    assert answer(asked)["failed"] == 1
    count = len(lab.asked())
    report = answer(asked)
    assert len(lab.asked()) == count and (report["reused"], report["failed"], report["start_seconds"]) == (30, 1, 0)
    more = [*asked, "one more"]
    report = answer(more)  # other prompts are another batch
    assert lab.prompts_asked()[count:] == ["one more"] and report["rows"] == 31 and report["reused"] == 30
    report = answer(more, retry_failed=True)
    assert lab.prompts_asked()[count + 1 :] == [asked[3]] and report["failed"] == 0
    newest = list(kinetic.read_answers(lab.output))
    assert len(newest) == 31 and {one["prompt"]: one["text"] for one in newest} == {one: answer_to(one) for one in more}
    assert answer(asked[:5], parameters={"max_tokens": 3})["reused"] == 0  # a changed parameter is another row
    (lab.model / "model.safetensors").write_bytes(b"WEIGHTS")
    assert answer(asked[:5], parameters={"max_tokens": 3})["reused"] == 0  # so is another model
    assert answer(asked[:5], parameters={"max_tokens": 3})["reused"] == 5


def test_an_adapter_counts_by_its_bytes_wherever_it_lies_and_the_longest_prompts_are_first(
    lab: Lab, answer: Answer
) -> None:
    """A path of a host says nothing of what is there, and may be another one on the next."""

    def at(name: str, weights: str) -> dict[str, Any]:
        folder = lab.folder / name
        folder.mkdir(exist_ok=True)
        (folder / "adapter.bin").write_text(weights)
        return {"engine_options": {"lora_modules": [{"name": "mine", "path": str(folder)}]}, "concurrency": 1}

    asked = ["a", "a b c d", {"messages": [{"role": "user", "content": "a b c d e f g"}]}, "a b"]
    assert answer(asked, **at("one", "first"))["reused"] == 0
    contents = [one["body"].get("prompt") for one in lab.asked()]
    assert contents == [None, "a b c d", "a b", "a"], "the longest are asked first"
    assert answer(asked, **at("another", "first"))["reused"] == 4
    assert answer(asked, **at("one", "second"))["reused"] == 0
    assert (lab.state / "adapters").read_text().split() == ["first", "second"]


def test_two_attempts_alive_write_each_row_once(lab: Lab, answer: Answer, prompts: Prompts) -> None:
    asked = prompts(90)
    with pytest.raises(UsageError, match="no output of a batch inference"):
        list(kinetic.read_answers(lab.folder))
    reports: list[Any] = []
    attempts = [threading.Thread(target=lambda: reports.append(answer(asked, "--delay", "0.01"))) for _ in range(2)]
    for one in attempts:
        one.start()
    for one in attempts:
        one.join()
    assert [report["answered"] for report in reports] == [90, 90]
    counts = Counter(one["prompt"] for one in lab.answers())
    assert set(counts) == set(asked) and set(counts.values()) == {1}


def test_a_full_disk_ends_a_batch_once_and_not_for_each_part_that_waits(
    lab: Lab, answer: Answer, prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, refused, whole = prompts(160), [0], os.fsync

    def full(descriptor: int) -> None:
        if threading.current_thread().name.startswith("kinetic-parts"):
            wait_until(lambda: len(lab.asked()) == len(asked))  # all parts wait for those that are written first
            refused[0] += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        patched.setattr(retrying_records, "STORE_PATIENCE", 0.1)
        with pytest.raises(OSError, match="the disk is full"):
            answer(asked)
    assert refused[0] <= work.WRITERS * 5, "parts that waited were tried, too"  # 0.02 + 0.04 + 0.08 s, and once more
    journaled = keys(lab.answers("journal"))
    assert not lab.answers() and len(asked) - 16 <= len(journaled) < len(asked)  # all but the last one of each part
    begun = len(lab.asked())
    report = answer(asked)
    assert set(lab.prompts_asked()[begun:]) == set(asked) - set(journaled) and report["reused"] == len(journaled)
    assert lab.texts() == {one: answer_to(one) for one in asked}


@pytest.mark.slow
def test_a_batch_that_another_one_has_closed_says_so_and_its_answers_are_not_lost(
    lab: Lab, answer: Answer, prompts: Prompts
) -> None:
    asked = [f"old {one}" for one in prompts(60)]
    errors: list[BaseException] = []

    def old() -> None:
        try:
            answer(asked, "--delay", "0.05", concurrency=2)
        except BaseException as error:
            errors.append(error)

    one = threading.Thread(target=old)
    one.start()
    wait_until(lambda: len(lab.answers()) > 3)
    answer(["another batch"])
    one.join()
    assert isinstance(errors[0], Superseded) and "another batch" in str(errors[0])
    finished = {**keys(lab.answers()), **keys(lab.answers("journal"))}
    begun = len(lab.asked())
    report = answer(asked)
    assert set(lab.prompts_asked()[begun:]) == set(asked) - set(finished)
    assert lab.texts() == {one: answer_to(one) for one in [*asked, "another batch"]} and report["answered"] == 60


def test_parts_are_taken_once_by_the_hosts_of_an_attempt_and_anew_by_the_next(tmp_path: Path) -> None:
    places = [output.Output(str(tmp_path), "job", "job-1", host, 2) for host in (0, 1)]
    rows = [str(n) for n in range(40)]
    plan = places[0].plan("batch", rows, False)
    assert places[1].plan("batch", rows, False) == plan and plan.parts() == 40
    taken, at = [], [0, 0]
    while None not in at:
        for host, place in enumerate(places):
            number = place.claim(plan, at[host]) if at[host] is not None else None
            taken += [number] if number is not None else []
            at[host] = None if number is None else number + 1
    assert sorted(taken) == list(range(40))
    assert output.Output(str(tmp_path), "job", "job-2", 0, 2).claim(plan, 0) == 0


def test_an_attempt_that_was_taken_for_dead_removes_nothing_of_the_one_that_came_after(tmp_path: Path) -> None:
    first, second = (output.Output(str(tmp_path), "job", f"job-{n}", 0, 2) for n in (1, 2))
    plan = first.plan("batch", ["a", "b"], False)
    assert (first.claim(plan, 0), second.claim(plan, 0)) == (0, 0)
    first.tell(plan, {"answered": 1})
    second.tell(plan, {"answered": 2})
    second.journal(1, [output.encode({"key": "of another batch"})])
    first.clean(plan, frozenset({"a", "b"}))
    assert second.heard(plan)[0]["answered"] == 2 and second.claim(plan, 0) == 1
    assert first.heard(plan) == {} and list(second.in_journals()) == [{"key": "of another batch"}]


def test_a_plan_that_was_closed_before_it_began_is_not_taken_for_done(tmp_path: Path) -> None:
    ours, theirs = (output.Output(str(tmp_path), name, f"{name}-1") for name in ("ours", "theirs"))
    plan = ours.plan("batch", ["a", "b"], False)
    theirs.plan("another", ["c"], False)
    with pytest.raises(Superseded, match="the output of another batch"):
        ours.whole(plan)


def test_a_reader_of_a_batch_that_runs_misses_no_answer_that_goes_from_a_journal_into_a_part(tmp_path: Path) -> None:
    place = output.Output(str(tmp_path), "job", "job-1")
    plan = place.plan("batch", ["a", "b"], False)
    line = {key: output.encode({"key": key, "text": key}) for key in "ab"}
    place.commit(plan, 0, [line["a"]], ["a"])
    journaled = place.journal(1, [line["b"]])
    reading = kinetic.read_answers(tmp_path)
    assert next(reading)["key"] == "a"
    place.commit(plan, 1, [line["b"]], ["b"])
    place.remove([journaled])
    assert [one["key"] for one in reading] == ["b"]


def test_an_answer_that_is_only_in_a_journal_replaces_an_older_failure(tmp_path: Path) -> None:
    place = output.Output(str(tmp_path), "job", "job-1")
    plan = place.plan("batch", ["a"], False)
    place.commit(plan, 0, [output.encode({"key": "a", "error": {"message": "as yet"}})], ["a"])
    again = output.Output(str(tmp_path), "later", "later-1")
    again.plan("batch", ["a"], True)
    again.journal(1, [output.encode({"key": "a", "text": "at last"})])
    assert [one.get("text") for one in kinetic.read_answers(tmp_path)] == ["at last"]


def test_an_attempt_has_a_name_that_no_other_has_also_of_those_that_seemed_to_have_no_hosts() -> None:
    first, second = (HostContext("job-abc", attempt=1, _fence=fence) for fence in (1, 2))
    assert output.attempt_of(first) == ("abc", "abc-1") and output.attempt_of(second) == ("abc", "abc-2")


def test_a_plan_that_is_done_is_not_closed_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of a million rows has 16,000 parts, and each would be a request."""
    first, second = (output.Output(str(tmp_path), name, f"{name}-1") for name in ("first", "second"))
    rows = [f"{n}" for n in range(32)]
    plan = first.plan("batch", rows, False)
    for part, start in enumerate(range(0, 32, plan.size)):
        if part != 3:
            some = rows[start : start + plan.size]
            first.commit(plan, part, [output.encode({"key": key, "text": ""}) for key in some], some)
    created: list[str] = []
    create = second.records.create
    monkeypatch.setattr(second.records, "create", lambda name, data: created.append(name) or create(name, data))
    later = second.plan("more", [*rows, "32"], False)
    assert created == [plan.name(3), "plans/00002.json"] and len(later.chosen()) == plan.size + 1
