"""A batch on two hosts: they share the prompts as they get free, and go on after one of them was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

import kinetic_orchestration as kinetic
from tests.core.program.inference.conftest import Lab
from tests.support.faults import kill_host, trees
from tests.support.openai_server import answer_to
from tests.support.waits import wait_until

pytestmark = [pytest.mark.usefixtures("shared_home"), pytest.mark.slow, pytest.mark.turn(2)]


def test_two_hosts_share_the_prompts_and_one_is_killed(lab: Lab, tmp_path: Path) -> None:
    asked = [f"prompt {n} of many" for n in range(300)]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(f'{{"prompt": "{one}", "custom_id": "{one[7:10]}"}}' for one in asked))
    job = kinetic.serve_batch(
        lab.model, file, engine=lab.server("--delay", "0.1"), output=lab.output, accelerator="v4-8", concurrency=3,
        retry=kinetic.Retry(infra=5, preemption=5),
    )  # fmt: skip
    found = trees(job._job)
    wait_until(lambda: len({one["server"] for one in lab.asked()}) == 2 and len(lab.answers("journal")) > 4)
    finished = {one["prompt"] for kind in ("journal", "parts") for one in lab.answers(kind)}
    kill_host(found[1])
    report = job.result(timeout=120)
    assert lab.texts() == {one: answer_to(one) for one in asked}
    servers = [one["server"] for one in lab.asked()]
    assert len(set(servers)) == 4 and min(servers.count(one) for one in set(servers)) > 1  # each of two attempts
    assert (report["rows"], report["answered"], report["hosts"]) == (300, 300, 2) and report["reused"] > 4
    assert {lab.prompts_asked().count(one) for one in finished} == {1}  # of what was kept, nothing is asked again
    assert [one["custom_id"] for one in lab.answers() if one["prompt"] == "prompt 17 of many"] == ["17 "]
