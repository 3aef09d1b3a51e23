"""Reads README and the pages of docs/ for tests: their text, and the programs in them by the file names in their first lines."""

from __future__ import annotations

import re
import textwrap
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SOURCE: str = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Source"]
"""Address of the repository. A link to a file that is not below docs/ begins with it."""


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str, language: str = "python") -> list[str]:
    """Return the blocks of a page in one language, also those within lists, without their indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", page(name), re.S | re.M)
    return [textwrap.dedent(block) for _, block in found]


def programs(name: str) -> dict[str, str]:
    """Return the Python programs of a page whose first line names their file, as `# train.py` does, by that name."""
    named = [(re.match(r"# (\w+\.py)\b", block), block) for block in blocks(name)]
    found = [(match[1], block) for match, block in named if match]
    assert len({file for file, _ in found}) == len(found), f"{name} has two programs of one name"
    return dict(found)
