"""Output: tables and progress for a terminal, plain aligned lines and JSON otherwise."""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from kinetic_orchestration.cli.streams import unguarded
from kinetic_orchestration.protocol.system import escaping


def show_json(document: Any) -> None:
    """Print one JSON document; values without a JSON form become null."""
    sys.stdout.write(escaping.in_json(json.dumps(plain(document), ensure_ascii=False, indent=2)) + "\n")


def show_json_line(item: Any) -> None:
    sys.stdout.write(escaping.in_json(json.dumps(plain(item), ensure_ascii=False)) + "\n")


def plain(value: Any) -> Any:
    """Convert a value for JSON. Arrays of numbers become lists; NaN, infinities and other objects become null."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return None


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Columns named in `right` hold numbers."""
    rows = [[escaping.text(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich_table(columns, rows, right)
        return
    shown = [[name.upper() for name in columns], *rows]
    widths = [max(len(row[index]) for row in shown) for index in range(len(columns))]
    for row in shown:
        cells = (
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(row, widths, columns, strict=True)
        )
        print("  ".join(cells).rstrip())


class Checked(Protocol):
    """The result of one check, and the next step, if there is one."""

    @property
    def name(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def found(self) -> str: ...
    @property
    def fix(self) -> str: ...


def show_checks(checks: Sequence[Checked]) -> None:
    """Print a table of checks, and below it the next step of each that has one."""
    show_table(("check", "is", "found"), [(check.name, check.state, check.found) for check in checks])
    for check in checks:
        if check.fix:
            print(f"\n{check.name}: {check.fix}")


SHORT = 18  # an id, a name, a number: whole also where the terminal is narrow, so that it can be read and copied


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=unguarded(sys.stdout))
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    least = 0
    for index, name in enumerate(columns):
        width = max(len(name), *(len(row[index]) for row in rows)) if rows else len(name)
        short = name in right or width <= SHORT
        least += (width if short else SHORT) + 2
        table.add_column(
            name, justify="right" if name in right else "left", overflow="fold", no_wrap=short,
            min_width=width if short else SHORT,
        )  # fmt: skip
    for row in rows:
        # Text, because what users named must not be read as markup.
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    console.width = max(console.width, least)
    console.print(table)


_STYLES = {
    "SUCCEEDED": "green", "RUNNING": "cyan", "PENDING": "yellow", "FAILED": "red", "CANCELLED": "magenta",
    "ok": "green", "warning": "yellow", "failed": "red",
}  # fmt: skip


def show_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Names and texts below each other; a text of several lines is kept in its column."""
    width = max(len(name) for name, _ in fields)
    for name, text in fields:
        first, *more = escaping.text(text).splitlines() or [""]
        print(f"{name:<{width}}  {first}".rstrip())
        for line in more:
            print(f"{'':<{width}}  {line}".rstrip())


def note(text: str) -> None:
    """Print a note, separate from the output."""
    sys.stderr.write(f"kinetic: {escaping.text(text)}\n")
    sys.stderr.flush()


PATIENCE = 1.0


class ShowProgress(Protocol):
    def __call__(self, text: str, *, detail: str = "") -> None: ...


@contextmanager
def working(text: str) -> Iterator[ShowProgress]:
    """Show that work is in progress: a live line on a terminal, else a plain line for every new text.

    The first text is delayed a moment, so that quick work prints nothing. `detail` may change often; it is shown in the
    live line only.
    """
    yield from (_live if sys.stderr.isatty() else _plainly)(text)


def _plainly(text: str) -> Iterator[ShowProgress]:
    first = threading.Timer(PATIENCE, note, (text,))
    first.daemon = True
    first.start()
    last = text

    def show(text: str, *, detail: str = "") -> None:
        nonlocal last
        first.cancel()
        if text != last:
            note(text)
            last = text

    try:
        yield show
    finally:
        first.cancel()


def _live(text: str) -> Iterator[ShowProgress]:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(
        *columns, console=Console(file=unguarded(sys.stderr)), transient=True, redirect_stdout=False
    ) as progress:
        task = progress.add_task(escaping.text(text), total=None)

        def show(text: str, *, detail: str = "") -> None:
            progress.update(task, description=escaping.text(f"{text} · {detail}" if detail else text))

        yield show


def age(seconds: float) -> str:
    """A length of time in its two largest units."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    left = round(seconds)
    for name, size, smaller, smaller_size in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if left >= size:
            count, rest = left // size, left % size // smaller_size
            return f"{count} {name} {rest} {smaller}" if count < 10 and rest else f"{count} {name}"
    return f"{left} s"


def dollars(usd: float | None) -> str:
    if usd is None:
        return "unknown"
    return "<$0.01" if 0 < usd < 0.01 else f"${usd:,.2f}"
