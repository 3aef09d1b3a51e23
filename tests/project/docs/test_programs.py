"""Every program of README and docs is Python that stands alone, with the imports of what it uses."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import PAGES, ROOT, blocks, programs

pytestmark = pytest.mark.fast

NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]


@pytest.mark.parametrize("name", NAMES)
def test_every_program_of_a_page_is_python(name: str) -> None:
    for block in blocks(name):
        ast.parse(block)


def test_every_program_stands_alone_with_its_imports(tmp_path: Path) -> None:
    count = 0
    for name in NAMES:
        for block in blocks(name):
            count += 1
            (tmp_path / f"{name.replace('/', '_').removesuffix('.md')}_{count}.py").write_text(block, encoding="utf-8")
    assert count > 30, "or the search finds nothing"
    options = ["--isolated", "--no-cache", "--select", "F", "--ignore", "F401", "--output-format", "concise"]
    command = [sys.executable, "-m", "ruff", "check", *options]
    done = subprocess.run([*command, "."], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_program_that_another_imports_is_on_the_same_page() -> None:
    """`from train import train` means the program whose first line is `# train.py`."""
    own = {file.removesuffix(".py") for name in NAMES for file in programs(name)}
    for name in NAMES:
        for block in blocks(name):
            for module in re.findall(r"^from (\w+) import", block, re.M):
                assert module not in own or f"{module}.py" in programs(name), f"{name} has no {module}.py"


def test_a_fence_within_a_list_is_found_without_its_indentation() -> None:
    assert any(block.startswith("import kinetic_orchestration") for block in blocks("docs/training/training.md"))
    assert all(not block.startswith(" ") for name in NAMES for block in blocks(name))
