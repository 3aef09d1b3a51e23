"""A server's compiled programs are packed once it is healthy, and found by the next one that compiles the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.program.inference.servers.caches import FOLDER_OF_JAX, Caches
from kinetic_orchestration.program.inference.servers.engines import Server

pytestmark = pytest.mark.fast

SERVER = Server(argv=["{port}"], caches={"A_CACHE": "folder"})


def adapter_at(path: str, **more: Any) -> dict[str, Any]:
    return {"lora_modules": [{"name": "mine", "path": path}], **more}


@pytest.mark.parametrize(
    ("options", "found"),
    [(adapter_at("/hosts/2/mine"), True), (adapter_at("/hosts/1/mine", max_num_seqs=8), False)],
)
def test_programs_are_found_again_wherever_an_adapter_lies(
    options: dict[str, Any], found: bool, tmp_path: Path
) -> None:
    shared = {FOLDER_OF_JAX: str(tmp_path / "shared")}
    first = Caches(SERVER, adapter_at("/hosts/1/mine"), "/m", shared, str(tmp_path / "first"), print)
    first.restore()
    Path(first.environ["A_CACHE"], "program").write_text("compiled")
    first.keep()
    second = Caches(SERVER, options, "/m", shared, str(tmp_path / "second"), print)
    second.restore()
    assert Path(second.environ["A_CACHE"], "program").exists() is found
