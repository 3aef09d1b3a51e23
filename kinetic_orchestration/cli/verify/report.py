"""The report of a verification: a page for users and a document for programs, written whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kinetic_orchestration.cli.verify.comparison import general
from kinetic_orchestration.cli.verify.recording import Entry
from kinetic_orchestration.cli.verify.runner import FAILED, NOT_RUN, PASSED, Report
from kinetic_orchestration.errors import UsageError

VERSION = 1


def write(report: Report, folder: Path) -> tuple[Path, Path]:
    """`verify-<time>.md` and the same with `.json`; where they are."""
    name = f"verify-{report.began.replace(':', '').replace('-', '')}"
    found = []
    for end, text in ((".md", page(report)), (".json", json.dumps(document(report), indent=1, ensure_ascii=False))):
        assert report.redactor is not None
        path = folder / f"{name}{end}"
        _replace(path, report.redactor.redact_page(text) + "\n")
        found.append(path)
    return found[0], found[1]


def check_folder(folder: Path) -> None:
    """Check that the folder is writable, before any cost arises."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"--output is {folder}, and no report can be written there: {error.strerror}") from None


def page(report: Report) -> str:
    platform = report.asked.get("platform", "Cloud TPU")
    charged = "VMs were seen RUNNING" if platform == "Compute Engine" else "slices were seen READY"
    where = f"the emulator of {platform}" if report.emulated else platform
    counts = {state: sum(result.state == state for result in report.results) for state in (PASSED, FAILED, NOT_RUN)}
    asked = report.asked
    lines = [
        f"# Verification of {report.began}",
        "",
        f"On {where}: {counts[PASSED]} steps passed, {counts[FAILED]} failed, {counts[NOT_RUN]} were not run, and "
        f"{len(report.differences)} answers differ from the emulator's. It took {report.seconds / 60:.1f} min and cost "
        + (f"nothing; on {platform} about ${report.spent:.2f}" if report.emulated else f"about ${report.spent:.2f}")
        + f" of ${asked['budget']:.2f} ({report.price}; by the time in which {charged}).",
        "",
        f"Asked for: {asked['accelerator']}{', spot' if asked['spot'] else ''}, in {', '.join(asked['zones'])}.",
        "",
        "## Steps",
        "",
        *_table(
            ("step", "proves", "result", "seconds", "at most", "spent"),
            [
                (
                    result.name, result.proves, _result(result.state, result.why), f"{result.seconds:.1f}",
                    f"${result.most:.2f}", f"${result.spent:.3f}",
                )
                for result in report.results
            ],
        ),
        "",
        "## Differences",
        "",
    ]  # fmt: skip
    if report.differences:
        rows = [(each.call, each.where, each.emulator, each.real) for each in report.differences]
        lines += _table(("call", "where", "the emulator says", "here it says"), rows)
    else:
        lines.append("None: whatever was asked here was answered as the emulator answers it.")
    if report.unrecorded:
        lines += ["", "Calls that the emulator was never asked, so that nothing can be said of them:", ""]
        lines += [f"* {_cell(call)}" for call in report.unrecorded]
    if report.lost:
        lines += ["", f"{report.lost} calls could not be recorded."]
    lines += ["", "## Versions", "", *_table(("what", "version"), list(report.versions.items()))]
    lines += ["", f"The emulator's answers were recorded with {report.baseline}."]
    lines += ["", "## Calls", "", *_table(("call", "answers", "number", "longest"), _calls(report.entries))]
    lines += ["", "## What to do next", ""]
    if report.failed or report.differences:
        lines.append(
            "Send this page and the `.json` beside it, as an issue of the project: every row of the two tables above "
            "is one thing to mend, in the emulator or in the code. Names of yours are placeholders in both files; read "
            "them before you send them."
        )
    else:
        lines.append(
            "Nothing has to be done. The project would like to have this page and the `.json` beside it, as an issue: "
            "it says on what this version was proven. Names of yours are placeholders in both; read them before."
        )
    return "\n".join(lines)


def document(report: Report) -> dict[str, Any]:
    """Every call with its answer; answers that are alike are written once."""
    shapes: dict[str, int] = {}

    def shape(value: Any) -> int:
        return shapes.setdefault(json.dumps(value, sort_keys=True, ensure_ascii=False), len(shapes))

    calls = [
        {
            "at": round(entry.at, 3), "step": entry.step, "call": entry.call, "request": shape(entry.request),
            "status": entry.status, "answer": shape(entry.answer), "seconds": round(entry.seconds, 3),
            **({"moment": entry.moment} if entry.moment else {}),
            **({"unknown": list(entry.unknown)} if entry.unknown else {}),
        }
        for entry in report.entries
    ]  # fmt: skip
    return {
        "version": VERSION,
        "began": report.began,
        "emulated": report.emulated,
        "interrupted": report.interrupted,
        "asked": dict(report.asked),
        "versions": dict(report.versions),
        "baseline": report.baseline,
        "price": report.price,
        "spent": round(report.spent, 4),
        "seconds": round(report.seconds, 3),
        "steps": [
            {**result._asdict(), "why": list(result.why), "seen": dict(result.seen)} for result in report.results
        ],
        "differences": [each._asdict() for each in report.differences],
        "unrecorded": report.unrecorded,
        "lost": report.lost,
        "facts": report.facts.to_json() if report.facts is not None else None,
        "shapes": [json.loads(text) for text in shapes],
        "calls": calls,
    }


def _calls(entries: Iterable[Entry]) -> list[tuple[str, ...]]:
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(general(entry.call), []).append(entry)
    rows: list[tuple[str, ...]] = []
    for call, some in sorted(found.items()):
        statuses: Mapping[str, int] = {
            status: sum(entry.status == status for entry in some) for status in dict.fromkeys(e.status for e in some)
        }
        shown = ", ".join(f"{status} ({count})" for status, count in statuses.items())
        rows.append((call, shown, str(len(some)), f"{max(entry.seconds for entry in some):.2f} s"))
    return rows


def _result(state: str, why: Sequence[str]) -> str:
    return f"{state}: {'; '.join(why)}" if why else state


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(columns)} |", "|---" * len(columns) + "|",
        *(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows),
    ]  # fmt: skip


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


def _replace(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
