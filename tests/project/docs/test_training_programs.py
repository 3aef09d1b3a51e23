"""Programs of docs/training: those that need no accelerator and no other system run, and all call what is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.support import openai_server
from tests.support.hub_server import HubServer
from tests.support.pages import programs

PAGES = [f"docs/training/{name}.md" for name in ("data", "frameworks", "llm", "training")]
SERVER = f"""
import runpy, sys, tempfile
sys.argv += ["--state", tempfile.mkdtemp(dir=".")]
runpy.run_path({openai_server.__file__!r}, run_name="__main__")
"""


def said(
    file: str, page: str, folder: Path, more: str = "", other: Mapping[str, str] = MappingProxyType({}), **environ: str
) -> str:
    """Run a program of a page, with more at its end and other words for some, and return the last line that it prints."""
    text = programs(page)[file]
    for word, its in other.items():
        assert word in text
        text = text.replace(word, its)
    (folder / "pyproject.toml").touch()
    (folder / file).write_text(text + more, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, file], cwd=folder, env={**os.environ, **environ}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_function_and_a_server_of_ones_own_answer(home: Path, tmp_path: Path) -> None:
    assert said("own_function.py", "docs/training/llm.md", tmp_path) == "2"
    for name in ("model", "my-server"):
        (tmp_path / name).mkdir()
    (tmp_path / "my-server" / "serve.py").write_text(SERVER, encoding="utf-8")
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / "model" / name).write_text("{}")
    more = "print(job.result()['answered'], job.result()['engine'])\n"
    there = {"/tmp/my-server": str(tmp_path / "shown")}
    assert said("own_server.py", "docs/training/llm.md", tmp_path, more, there) == "1 mine"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_search_finds_the_rate(home: Path, tmp_path: Path) -> None:
    drawn = {"constant_liar=True)": "constant_liar=True, seed=0)"}  # alike each time
    told = said("find_rate.py", "docs/training/llm.md", tmp_path, other=drawn)
    found = re.match(r"\{'rate': (0\.\d+)\} (\S+) job-\w+ \{", told)
    assert found is not None and 0.01 < float(found[1]) < 1 and float(found[2]) < 1


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_model_of_the_hub_comes_to_its_job(home: Path, tmp_path: Path) -> None:
    with HubServer() as hub:
        hub.push("Qwen/Qwen3-0.6B", {"config.json": b'{"num_hidden_layers": 28}'})
        assert said("tokens.py", "docs/training/data.md", tmp_path, HF_ENDPOINT=hub.url) == "28"


@pytest.mark.slow
@pytest.mark.turn(1)
@pytest.mark.timeout(900)
def test_every_program_gives_its_calls_what_they_take(tmp_path: Path) -> None:
    """Also those that take a TPU, a bucket or a cluster, and so run nowhere here."""
    for page in PAGES:
        for file, program in programs(page).items():
            (tmp_path / file).write_text(program, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(programs(PAGES[2])["answer.py"].replace("engine_options=", "engine_option="))
    options = ["--check-untyped-defs", "--ignore-missing-imports", "--follow-imports", "silent", "--config-file", ""]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--cache-dir", str(tmp_path / "cache"), "."],
        cwd=tmp_path, capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    # A host, and a task of Airflow, has another thing than was given; Optuna's modules are loaded as they are asked for.
    theirs = ('incompatible type "Data"', 'incompatible type "XComArg"', 'no attribute "journal"', "[var-annotated]")
    ours = [line for line in errors if not any(each in line for each in theirs)]
    assert [line.partition(":")[0] for line in ours] == ["wrong.py"], done.stdout + done.stderr
