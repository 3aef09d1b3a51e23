"""The program of docs/training/data.md that reads parquet by Grain: on two hosts, killed in the middle, each row once;
from a folder and from a bucket.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from kinetic_orchestration.host.machine.bucket_records import Bucket
from kinetic_orchestration.testing import Emulator
from tests.support.pages import programs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.turn(8)]
ROWS, GROUP, FILES, KILLED = 512, 32, 4, 13
DEATH = f"""
        loss.block_until_ready()  # by host 0 as well, which has committed what was kept before
        if host.attempt == 1 and host.host_index == 1 and number + 1 == {KILLED}:
            import os, signal
            os.kill(os.getpid(), signal.SIGKILL)
        training.step("""


def write(folder: Path) -> None:
    folder.mkdir()
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
    table = pa.table({"id": range(ROWS), "x": list(x), "y": x.sum(1)})
    for part in range(FILES):
        share = table.slice(part * ROWS // FILES, ROWS // FILES)
        parquet.write_table(share, folder / f"part-{part}.parquet", row_group_size=GROUP)


def program(address: str, folder: Path) -> dict[str, str]:
    """Write the page's program for an address, on whose second host an attempt dies; what its process needs to start."""
    text = programs("docs/training/data.md")["rows.py"]
    assert text.count("        training.step(") == 1 and text.count('"gs://my-bucket/rows/"') == 1
    text = text.replace('"gs://my-bucket/rows/"', repr(address))
    text = text.replace("requirements=[", "retry=kinetic.Retry(user=1), requirements=[")
    folder.mkdir()
    (folder / "rows.py").write_text(text.replace("\n        training.step(", DEATH))
    return {**os.environ, "PYTHONWARNINGS": "ignore"}


def run(folder: Path, environ: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "rows.py"], cwd=folder, env=environ,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def check(said: str) -> None:
    told = re.findall(r"\[host (\d)\] step (\d+) rows ([\d ]+)", said)
    steps: dict[tuple[int, int], set[str]] = {}
    for host, step, rows in told:
        steps.setdefault((int(host), int(step)), set()).add(rows.strip())
    assert all(len(found) == 1 for found in steps.values()), "a step that is done again has the same rows"
    shares = {
        host: [int(row) for (of, _), (rows,) in sorted(steps.items()) if of == host for row in rows.split()]
        for host in (0, 1)
    }
    assert sorted(shares[0] + shares[1]) == list(range(ROWS)), "each row once, by one host"
    assert shares[0] != sorted(shares[0])
    assert len([one for one in told if one[:2] == ("1", "11")]) == 2, "step 11 was done again, after that of step 10"
    assert len([one for one in told if one[:2] == ("1", "10")]) == 1
    found = json.loads(said[said.rindex("[") :])
    assert np.allclose(found, 1, atol=0.2), said[-2000:]


def test_each_row_is_read_once_by_two_hosts_of_which_one_is_killed(frameworks: Path, tmp_path: Path) -> None:
    write(tmp_path / "rows")
    check(run(tmp_path / "project", program(str(tmp_path / "rows"), tmp_path / "project")))


def test_the_same_by_vms_from_a_bucket_of_which_each_row_group_is_fetched_by_its_range(
    frameworks: Path, tmp_path: Path, roomy: Path
) -> None:
    """The page's program as it stands, on two VMs of the emulated cloud that build its environment: Grain reads ranges."""
    write(tmp_path / "rows")
    with Emulator(roomy / "cloud", zones=("us-west4-a",), python=sys.executable) as cloud:
        bucket = cloud.storage.make_bucket("my-bucket")
        environ = {**program(f"{bucket}/rows/", tmp_path / "project"), **cloud.environ()}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STORAGE_EMULATOR_HOST", environ["STORAGE_EMULATOR_HOST"])
            for path in sorted((tmp_path / "rows").iterdir()):
                Bucket("my-bucket").write(f"rows/{path.name}", path.read_bytes())
        cloud.storage.forget()
        check(run(tmp_path / "project", environ))
        asked = [call for call in cloud.storage.calls if call.where.startswith("my-bucket/rows/part-")]
        assert {call.where.rpartition("/")[2] for call in asked} == {
            path.name for path in (tmp_path / "rows").iterdir()
        }
        assert all(call.verb == "get" and call.span for call in asked), "ranges, and no copies"
        cloud.wait_until_empty(150)
        cloud.ledger.assert_nothing_left()
