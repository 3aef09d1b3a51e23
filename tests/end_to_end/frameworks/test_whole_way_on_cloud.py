"""The same language model goes the same way with all its jobs on slices of an emulated Cloud TPU and all its files in a bucket:
the example is changed as its user would for a real slice, by its options alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests

from kinetic_orchestration.packaging.requirements.resolution import find_uv
from kinetic_orchestration.program.inference.models import CONFIG
from kinetic_orchestration.testing import Emulator
from tests.support.interpreters import required
from tests.support.pages import programs

EXAMPLES = Path(__file__).parents[3] / "example_pipelines"
FILES = ("whole_llm.py", "pretrain_maxtext.txt", "training_peft.txt", "vllm_on_cpu")
JOBS = ["pretrained", "base", "tuned", "answers", "served_answers_as_before"]
MODEL = {CONFIG, "model.safetensors", "tokenizer.json"}
WRITERS = r"counting/.+/run/checkpoints/\d+/items/ocdbt\.process_(\d+)/.+"
STEPS = 40  # with a checkpoint of each twentieth


def project_in(folder: Path, pipeline: str) -> Path:
    """Make a project of the files of the example, its pipeline, and the changes that the page shows; return it."""
    folder.mkdir()
    for name in (*FILES, pipeline):
        (shutil.copytree if (EXAMPLES / name).is_dir() else shutil.copy)(EXAMPLES / name, folder / name)
    program = programs("docs/training/llm.md")["on_cloud.py"]
    fewer = program.replace("runpy.run_path(", f"steps.STEPS = {STEPS}\nrunpy.run_path(")
    assert fewer != program
    (folder / "on_cloud.py").write_text(fewer, encoding="utf-8")
    return folder


@contextmanager
def cloud_in(folder: Path) -> Iterator[Emulator]:
    """An emulated cloud whose hosts have MaxText's Python, as the images of hosts do; nothing may be left in it."""
    with Emulator(folder, zones=("us-west4-a", "us-central2-b"), python=sys.executable) as cloud:
        cloud.furnish({"programs": {"python3.12": f'#!/bin/sh\nexec {required("3.12")} "$@"\n'}})
        yield cloud
        cloud.wait_until_empty(60)
        cloud.ledger.assert_nothing_left()


@pytest.fixture
def route(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of this machine's uv, also for hosts, which would each fetch the same gigabytes; and MaxText's Python."""
    uv = find_uv(dict(os.environ))
    cache = subprocess.run([uv, "cache", "dir"], capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    (tmp_path / "uv.toml").write_text(f"cache-dir = {json.dumps(cache)}\n", encoding="utf-8")
    monkeypatch.setenv("UV_CONFIG_FILE", str(tmp_path / "uv.toml"))
    monkeypatch.setenv("PATH", os.path.dirname(required("3.12")) + os.pathsep + os.environ["PATH"])


@pytest.mark.slow
@pytest.mark.turn(5)
@pytest.mark.timeout(2700)
def test_all_the_way_on_slices_and_in_a_bucket(home: Path, route: None, tmp_path: Path, roomy: Path) -> None:
    folder = project_in(tmp_path / "project", "whole_llm_dagster.py")
    with cloud_in(roomy / "cloud") as cloud:
        environ = {
            **os.environ, **cloud.environ(), "PLACE": "gs://emulated/counting", "PYTHONWARNINGS": "ignore",
        }  # fmt: skip
        environ.pop("SERVING_CLUSTER", None)
        done = subprocess.run(
            [sys.executable, "on_cloud.py", "dagster"], cwd=folder, env=environ, capture_output=True, text=True,
            timeout=2400,
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert done.returncode == 0, said[-8000:]
        share = re.search(r"^result +(\d+)% of the answers are right; made data, .*, promoted, served$", said, re.M)
        assert share is not None and int(share[1]) >= 90, said[-5000:]
        assert "smoke    answers as before: a server on v5e-1" in said

        ran = re.findall(r" - (\w+) - job \S+ runs .+ on (v\w+-\d): .*, Cloud TPU \S+ of an emulated cloud", said)
        assert ran == [(step, "v4-8" if step == "pretrained" else "v5e-1") for step in JOBS]
        assert re.search(r" - data - job \S+ runs make_data on cpu: .*, this machine's CPU", said)
        assert cloud.ledger.count("created", "node") >= len(JOBS), "each on a slice of its own"
        check_the_bucket(cloud)


def check_the_bucket(cloud: Emulator) -> None:
    """All that the steps have left is in the bucket, whole, where the example says."""
    names = names_in_bucket(cloud)

    def below(pattern: str) -> set[str]:
        return {found[1] for name in names if (found := re.fullmatch(pattern, name))}

    steps = below(r"counting/pretrained/[^/]+/run/checkpoints/(\d+)/_CHECKPOINT_METADATA")
    assert steps >= {"0", "20", str(STEPS - 1)}
    assert below(WRITERS) == {"0", "1"}, "each host writes its part"
    assert below(r"counting/base/[^/]+/([^/]+)") >= MODEL
    assert below(r"kinetic/test/outputs/job-[^/]+/(model-answers/parts)/.+")
    assert below(r"counting/models/counting/[^/]+/([^/]+)") >= MODEL
    told = lineage_in_bucket(cloud)
    assert told["metrics"]["right"] >= 0.9 and told["job"]
    assert told["source"].startswith("gs://emulated/kinetic/test/outputs/"), "copied within the bucket"


def names_in_bucket(cloud: Emulator) -> set[str]:
    address = f"{cloud.storage.url}/storage/v1/b/emulated/o"
    listed = requests.get(address, params={"maxResults": 5000}, timeout=60).json()
    assert "nextPageToken" not in listed
    return {str(each["name"]) for each in listed["items"]}


def lineage_in_bucket(cloud: Emulator) -> dict[str, Any]:
    """Return that of the one version."""
    found = [
        name for name in names_in_bucket(cloud) if re.fullmatch(r"counting/models/counting/[^/]+/lineage\.json", name)
    ]
    [name] = found
    address = f"{cloud.storage.url}/storage/v1/b/emulated/o/{quote(name, safe='')}"
    return dict(requests.get(address, params={"alt": "media"}, timeout=60).json())
