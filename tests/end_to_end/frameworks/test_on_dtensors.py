"""Tests what torch spreads over the hosts (FSDP2, DTensor), as shards in our format: against torch.distributed.checkpoint."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from tests.end_to_end.frameworks import dtensors
from tests.end_to_end.frameworks.curves import BOUNDED
from tests.support.pages import programs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.turn(1)]
REQUIREMENTS = ["torch==2.13.0", "keras==3.15.1"]  # of test_on_torch.py


def run(accelerator: str, program: Any, *arguments: Any) -> dict[str, Any]:
    made = kinetic.run(
        accelerator=accelerator, limits=BOUNDED, requirements=REQUIREMENTS, retry=kinetic.Retry(user=1, infra=1)
    )
    found: dict[str, Any] = made(program).run_async(*arguments).result()
    return found


def test_shards_come_back_bit_by_bit_after_a_kill_and_on_other_hosts_and_meshes(
    frameworks: Path, tmp_path: Path
) -> None:
    place = str(tmp_path / "checkpoints")
    written = run("v4-8", dtensors.writes, place)
    told = {name: written[name] for name in ("done", "losses", "same", "kept", "read")}
    assert told == {"done": 4, "losses": True, "same": True, "kept": 4, "read": True}
    following = {}
    for accelerator, two_dimensions in (("cpu", False), ("v4-8", False), ("v5e-16", False), ("v5e-16", True)):
        found = run(accelerator, dtensors.reads, place, two_dimensions)
        assert found["done"] == dtensors.STEPS
        assert found["digests"] == found["theirs"] == written["digests"], accelerator
        assert set(found["spread"]) == {"DTensor"}
        ours, theirs = found["next"]
        assert ours == theirs, "the next step, too"
        if two_dimensions:
            assert found["parallel"] == ["_StridedShard Shard", (1, True, True), (1, True, True)]
        following[accelerator, two_dimensions] = ours
    (first, *others) = following.values()
    assert all(math.isclose(first, other, rel_tol=1e-5) for other in others)
    # Each host's part has its shards alone: rows 0 to 2 of 5 are host 0's, and of one row host 1 has none.
    assert written["pieces"] == {
        "0": {"own/rows": [[0, 0], [3, 3]], "own/columns": [[0, 0], [4, 4]], "own/few": [[0, 0], [1, 3]], "own/same": [[0, 0], [3, 2]]},
        "1": {"own/rows": [[3, 0], [2, 3]], "own/columns": [[0, 4], [4, 3]]},
    }  # fmt: skip


def test_what_is_not_kept_is_refused_by_its_path_before_the_first_step(frameworks: Path) -> None:
    found = run("v4-8", dtensors.refused)
    fsdp1 = "is of FSDP1 (FullyShardedDataParallel)"
    assert found == {
        "fsdp1 net": f"net {fsdp1}", "fsdp1 opt": f"a parameter of opt {fsdp1}", "fsdp1 flat": f"a parameter of opt {fsdp1}",
        "partial": "own is a DTensor whose sums are not added up yet (Partial)",
        "submesh": "own is a DTensor over 1 of 2 processes",
        "uneven": "own is a DTensor whose shard on this process is not one rectangle of it",
        "meta": "net/weight is a DTensor on the device meta",
        "own shard": "opt/state/0/momentum is a plain tensor of the size of this process' shard of its parameter",
        "own shard of a vector": "opt/state/0/momentum is a plain tensor of the size of this process' shard of its parameter",
        "a count of each": "kept",
        "no layout": "net/opt/state/0/exp_avg is spread over the processes in the checkpoint",
    }  # fmt: skip


KILLED = """
        shown = float(loss.detach())
        print("done", number + 1, flush=True)
        if kinetic.current().attempt == 1 and kinetic.current().host_index == 1 and number + 1 == 5:
            import os, signal
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_program_of_the_page_comes_to_the_same_loss_undisturbed_and_killed(
    frameworks: Path, tmp_path: Path
) -> None:
    program = killed = programs("docs/training/llm.md")["fsdp2_train.py"]
    for text, other in {
        "\n        shown = float(loss.detach())\n": KILLED,
        'every="5m"': "every=2",
        "requirements=[": "retry=kinetic.Retry(user=1, infra=1), requirements=[",
    }.items():
        assert killed.count(text) == 1, text
        killed = killed.replace(text, other)
    whole, _ = printed(tmp_path / "page", program)
    loss, log = printed(tmp_path / "killed", killed)
    assert re.findall(r"^\[host 1\] done (\d)$", log, re.M) == ["1", "2", "3", "4", "5", "5", "6"]
    assert loss == whole


def printed(folder: Path, program: str) -> tuple[float, str]:
    """Run a program; return the number that it prints at its end, and all that it says."""
    folder.mkdir()
    (folder / "fsdp2_train.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "fsdp2_train.py"], cwd=folder, env={**os.environ, "PYTHONWARNINGS": "ignore"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    return float(done.stdout.splitlines()[-1]), done.stdout
