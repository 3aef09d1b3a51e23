"""The tools of a machine that several processes of it need at once. test_stage_tools covers what a store has of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kinetic_orchestration.host.prepare import toolbox
from tests.support.wheels import offline, sha256, wheel

INSTALL = """
import json, sys
sys.path.insert(0, {site!r})
from kinetic_orchestration.host.prepare import toolbox
notes = []
print(toolbox._installed_uv(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), notes.append))
print(json.dumps(notes))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_uv_is_fetched_once_though_all_processes_of_a_machine_need_it_at_once(tmp_path: Path) -> None:
    """Else each pip would move its files into the others'."""
    environ, links = offline(tmp_path), tmp_path / "links"
    made = wheel(links, "uv", files={"uv-1.0.data/scripts/uv": "#!/bin/sh\necho uv 1.0\n"})
    site = str(Path(toolbox.__file__).parents[toolbox.__name__.count(".")])
    asked = [f"uv==1.0 --hash=sha256:{sha256(made)}\n", str(tmp_path / "machine")]
    asked.append(json.dumps({"UV_FIND_LINKS": str(links), "UV_NO_INDEX": "1"}))
    started = [
        subprocess.Popen(
            [sys.executable, "-c", INSTALL.format(site=site), *asked], env=environ, text=True, stdout=subprocess.PIPE
        )
        for _ in range(4)
    ]
    said = [process.communicate(timeout=200)[0].splitlines() for process in started]
    assert [process.returncode for process in started] == [0] * 4
    assert [note for _, notes in said for note in json.loads(notes)] == ["fetching uv"]
    (program,) = {path for path, _ in said}
    assert Path(program).read_text().endswith("echo uv 1.0\n")
