"""Every figure of the project, with its floor from the same run: one JSON line each, then a table for people.

    python tests/benchmarks/run.py [SECTION …]

Figures are ratios because machines differ; a busy machine makes them wrong, so let it do nothing else. Each section
runs in a process of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

SECTIONS = {
    "structure": "structure",
    "import": "imports",
    "packaging": "packaging",
    "launch": "launch",
    "logs": "logs",
    "transfer": "transfer",
    "waiting": "waiting",
    "listing": "listing",
    "page": "page",
    "choosing": "choosing",
    "sharing": "sharing",
    "environment": "environment",
    "training": "training",
    "tier": "tier",
    "stack": "stack",
    "setup": "setup",
    "cloud": "cloud",
    "warm": "warm",
    "compute": "compute",
    "kubernetes": "kubernetes",
    "slurm": "slurm",
    "dagster": "dagster",
    "airflow": "airflow",
    "peers": "peers",
}


def main(arguments: list[str]) -> int:
    from tests.benchmarks import measure

    wanted = arguments
    unknown = [name for name in wanted if name not in SECTIONS]
    if unknown:
        sys.stderr.write(f"no section {unknown[0]!r}; there are {', '.join(SECTIONS)}\n")
        return 2
    sections = list(dict.fromkeys(wanted or SECTIONS))
    measure.compile_byte_code()
    found: list[measure.Figure] = []
    broken = []
    for section in sections:
        command = [sys.executable, __file__, "--section", section]
        with subprocess.Popen(command, env=measure.environment(), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                found.append(json.loads(line))
        if process.returncode:
            broken.append(section)
    sys.stderr.write(table(found))
    for section in broken:
        sys.stderr.write(f"the section {section!r} did not come to its end: see above\n")
    return 1 if broken else 0


def table(figures: list[dict[str, object]]) -> str:
    columns = ("name", "value", "unit", "floor", "ratio", "target", "ok")
    rows = [columns, *(tuple(_cell(figure[column]) for column in columns) for figure in figures)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(columns))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n" for row in rows
    )


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 10_000 else f"{value:.4g}"
    return "-" if value is None else str(value)


def section(name: str) -> None:
    for figure in importlib.import_module(f"tests.benchmarks.{SECTIONS[name]}").figures():
        print(json.dumps(figure), flush=True)


if __name__ == "__main__":
    # Not this folder: the names of its files are those of well-known packages.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    if sys.argv[1:2] == ["--section"]:
        section(sys.argv[2])
    else:
        os.chdir(sys.path[0])
        sys.exit(main(sys.argv[1:]))
