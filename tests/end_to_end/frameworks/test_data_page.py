"""The program of docs/training/data.md that reads parquet by Grain: on two hosts, killed in the middle, each row once."""

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

from tests.support.pages import programs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.turn(8)]
ROWS, GROUP, FILES, KILLED = 512, 32, 4, 13
DEATH = f"""
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


def test_each_row_is_read_once_by_two_hosts_of_which_one_is_killed(frameworks: Path, tmp_path: Path) -> None:
    write(tmp_path / "rows")
    program = programs("docs/training/data.md")["rows.py"]
    assert program.count("        training.step(") == 1 and program.count('"gs://my-bucket/rows/"') == 1
    program = program.replace('"gs://my-bucket/rows/"', repr(str(tmp_path / "rows")))
    program = program.replace("requirements=[", "retry=kinetic.Retry(user=1), requirements=[")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "rows.py").write_text(program.replace("\n        training.step(", DEATH))
    done = subprocess.run(
        [sys.executable, "rows.py"], cwd=tmp_path / "project", env={**os.environ, "PYTHONWARNINGS": "ignore"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    told = re.findall(r"\[host (\d)\] step (\d+) rows ([\d ]+)", done.stdout)
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
    found = json.loads(done.stdout[done.stdout.rindex("[") :])
    assert np.allclose(found, 1, atol=0.2), done.stdout[-2000:]
