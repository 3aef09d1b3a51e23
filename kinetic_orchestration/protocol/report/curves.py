"""Curves of what a job reported with `log_metrics`, as one small SVG picture for the metadata of an orchestrator.

`Curves` gathers points as they come, in bounded memory; `svg` draws them, a panel for each metric. Pure: it knows
neither jobs nor orchestrators, and needs no library. SVG, since it carries its own text and is sharp at any size. As a
file it brings its own paper; a page's theme does not reach into an image, so there it has colours for either.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from types import MappingProxyType
from typing import NamedTuple

MOST_POINTS = 1024  # of one curve in memory; a power of two
MOST_COLUMNS = 150  # of points in one drawn curve: each keeps its lowest and its highest, so no spike is lost
MOST_CURVES = 64  # in memory; more names than that are left out
MOST_PANELS = 6
MOST_AMOUNTS = 4  # panels of another axis
MOST_NAMED = 6  # curves in a panel, with a colour each; more are a crowd, of one colour
MOST_CROWD = 24
DRAWN_COLUMNS = 1200  # of all curves together, so that the picture stays small however many there are
FEWEST_COLUMNS = 8
SMOOTH_COLUMNS = 40  # of the line that is laid over a curve that had to be thinned
LARGEST = 1e250  # that is drawn, and its inverse the least: an axis has a margin
DECADES = 2.0  # a positive metric that spans more is drawn on a logarithmic scale
VARIANTS = ("train", "training", "val", "validation", "valid", "test", "eval")

WIDTH, HEIGHT = 340, 190  # of a panel: two and their margins have room in a dialog of Dagster in a window of 900 pixels
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 44, 26
SPARK_WIDTH, SPARK_HEIGHT = 240, 44
COLOURS = ("#3b5bdb", "#e8590c", "#2b8a3e", "#9c36b5", "#0b7285", "#c92a2a")
OF_BOTH = ("#5677f5", "#e8590c", "#2f9e44", "#ae5bc9", "#1098ad", "#e5484d")  # the same, seen on light and on dark
FONT = "ui-sans-serif,system-ui,-apple-system,Segoe UI,Roboto,Helvetica,Arial,sans-serif"
PAPER, INK, FAINT, GRID = "#ffffff", "#1f2430", "#667085", "#e6e8ee"
INK_OF_BOTH = "#6e788c"  # its contrast is 4.4 to white, and as much to the dark of Dagster's pages


class Point(NamedTuple):
    x: float
    y: float  # NaN where the curve is interrupted


class Curves:
    """The metrics of one job, by name."""

    def __init__(self, most_points: int = MOST_POINTS) -> None:
        self._most_points = most_points
        self._curves: dict[str, list[Point]] = {}
        self._counts: dict[str, int] = {}
        self._last: dict[str, float] = {}
        self._attempt = 0
        self._stepped = True

    def add(self, step: int | None, values: Mapping[str, float], attempt: int = 1) -> None:
        """Add one report. Without a step it follows the one before.

        A later attempt continues from a checkpoint: its repeated steps replace the lost ones.
        """
        if attempt != self._attempt:
            self._attempt = attempt
            self._stepped = self._stepped and step is not None
            if step is not None:
                for name in self._curves:
                    self._curves[name] = [point for point in self._curves[name] if point.x < step]
        for name, value in values.items():
            if name not in self._curves and len(self._curves) >= MOST_CURVES:
                continue
            points = self._curves.setdefault(name, [])
            count = self._counts[name] = self._counts.get(name, 0) + 1
            self._stepped = self._stepped and step is not None
            x = float(count if step is None else step)
            if points and x < points[-1].x:  # it starts again: another fold, another epoch
                points.append(Point(points[-1].x, math.nan))
            points.append(Point(x, drawable(value)))
            self._last[name] = value
            if len(points) > self._most_points:
                self._curves[name] = thinned(points, self._most_points // 4)

    def __bool__(self) -> bool:
        return bool(self._curves)

    @property
    def last(self) -> dict[str, float]:
        """The newest value of each metric, which may be NaN."""
        return dict(self._last)

    @property
    def axis(self) -> str:
        return "step" if self._stepped else "report"

    def points(self) -> dict[str, list[Point]]:
        return {name: list(points) for name, points in self._curves.items()}


def drawable(value: float) -> float:
    """NaN where it is too large for the arithmetic of an axis, too; what is next to nothing is nothing."""
    if not abs(value) < LARGEST:
        return math.nan
    return value if abs(value) > 1 / LARGEST else 0.0


Panels = Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]
NOTHING: Panels = MappingProxyType({})


def svg(
    panels: Panels,
    *,
    axis: str = "step",
    title: str = "",
    crowd: str = "curves",
    amounts: Panels = NOTHING,
    amounts_axis: str = "",
    kept: str = "",
) -> str:
    """The picture: by the name of each panel, by the name of each of its curves, points (x, y).

    `crowd`: the label of a panel's curves if there are too many of them to name each. `amounts`: panels with
    values from zero on and an axis of their own, in rows of theirs. `kept`: data in the file that are not shown.
    """
    blank = [name for name, members in panels.items() if not any(_known(members))]
    drawn = [name for name in panels if name not in blank] or blank
    hidden = drawn[MOST_PANELS:]
    notes = [f"and {len(hidden)} more: {', '.join(hidden)}"] if hidden else []
    notes += [f"no finite value: {', '.join(blank)}"] if blank and drawn is not blank else []
    shown = [(name, panels[name], axis, False) for name in drawn[:MOST_PANELS]]
    if len(shown) > 1 and len(shown) % 2 and amounts:
        shown.append(("", {}, "", False))
    shown += [(name, members, amounts_axis, True) for name, members in list(amounts.items())[:MOST_AMOUNTS]]
    columns = 1 if len(shown) == 1 else 2
    rows = math.ceil(len(shown) / columns)
    curves = sum(min(len(members), MOST_CROWD) for _, members, _, _ in shown)
    each = max(FEWEST_COLUMNS, min(MOST_COLUMNS, DRAWN_COLUMNS // max(1, curves)))
    head, foot = (26 if title else 6), (20 if notes else 6)
    width, height = columns * WIDTH, head + rows * HEIGHT + foot
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"',
        f' font-family="{FONT}" font-size="10" fill="{FAINT}">',
        f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8" fill="{PAPER}" stroke="{GRID}"/>',
    ]
    if kept:
        parts.insert(2, f"<metadata>{kept}</metadata>")
    if title:
        parts.append(f'<text x="14" y="22" font-size="13" font-weight="600" fill="{INK}">{_text(title, 50)}</text>')
    for index, (name, members, unit, from_zero) in enumerate(shown):
        if not members:
            continue
        x, y = (index % columns) * WIDTH, head + (index // columns) * HEIGHT
        parts += [f'<g transform="translate({x} {y})">', *_panel(name, members, unit, each, crowd, from_zero), "</g>"]
    if notes:
        parts.append(f'<text x="14" y="{height - 9}">{_text("; ".join(notes), 62 * columns)}</text>')
    return "".join([*parts, "</svg>"])


def spark(points: Sequence[tuple[float, float]], most: int = 1000) -> str:
    """One curve alone, so small that its `markdown` is shorter than `most`: some pages show longer ones on a click."""
    known = [point for point in points if math.isfinite(point[1])]
    low, high = (min(y for _, y in known), max(y for _, y in known)) if known else (0.0, 0.0)
    across = _Scale(points[0][0], max(x for x, _ in points), 4, SPARK_WIDTH - 4) if known else None
    up = _Scale(low, high, SPARK_HEIGHT - 4, 4, known != [] and _spans_decades(low, high))
    for columns in (30, 20, 10, 5):
        inside = "".join(_curve(thinned(points, columns), across, up, COLOURS[0])) if across else ""
        drawn = f'<svg xmlns="http://www.w3.org/2000/svg" width="{SPARK_WIDTH}" height="{SPARK_HEIGHT}">{inside}</svg>'
        if len(markdown(drawn)) < most:
            break
    return drawn


def markdown(picture: str, alternative: str = "metrics") -> str:
    """The picture as an image in Markdown, with all its bytes in the text, for a page that is light or dark."""
    picture = themed(picture).replace('"currentColor"', f'"{INK_OF_BOTH}"')
    alternative = "".join(letter if letter.isalnum() else " " for letter in alternative)[:40]
    return f"![{alternative}](data:image/svg+xml;base64,{base64.b64encode(picture.encode()).decode()})"


def themed(picture: str) -> str:
    """The same picture for a page that it is a part of: in the page's own colour, on its own ground.

    By attributes alone, since a notebook drops styles and a content policy refuses them. What is replaced stands in
    quotes, which the texts of a picture have not.
    """
    for fixed, own in _THEMED:
        picture = picture.replace(fixed, own)
    return picture


_THEMED = (
    (f'fill="{PAPER}" stroke="{GRID}"', 'fill="none"'),
    (f'fill="{INK}"', 'fill="currentColor"'),
    (f'fill="{FAINT}"', 'fill="currentColor"'),
    (f'stroke="{GRID}"', 'stroke="currentColor" stroke-opacity=".15"'),
    *((f'"{colour}"', f'"{own}"') for colour, own in zip(COLOURS, OF_BOTH, strict=True)),
)


def grouped(curves: Mapping[str, Sequence[tuple[float, float]]]) -> Panels:
    """Panels of one job's metrics: loss with val_loss, train/loss with eval/loss."""
    panels: dict[str, dict[str, Sequence[tuple[float, float]]]] = {}
    for name, points in curves.items():
        panels.setdefault(base_of(name), {})[name] = points
    return panels


def base_of(name: str) -> str:
    for variant in VARIANTS:
        for separator in "_/-. ":
            if name.lower().startswith(variant + separator) and len(name) > len(variant) + 1:
                return name[len(variant) + 1 :]
    return name


def thinned(points: Sequence[tuple[float, float]], columns: int) -> list[Point]:
    """The lowest and the highest point of each of up to `columns` columns, and the ends; gaps stay gaps."""
    if len(points) <= 2 * columns:
        return [Point(*point) for point in points]
    low, high = points[0][0], max(point[0] for point in points)
    span = (high - low) or 1.0
    kept: list[Point] = []
    column: list[Point] = []
    at = -1

    def close() -> None:
        known = [point for point in column if not math.isnan(point.y)]
        if not known:
            kept.extend(column[:1])
            return
        ends = {min(known, key=lambda point: point.y), max(known, key=lambda point: point.y)}
        kept.extend(sorted(ends, key=column.index))

    for point in points:
        number = min(columns - 1, int((point[0] - low) / span * columns))
        if number != at and column:
            close()
            column = []
        at = number
        column.append(Point(*point))
    close()
    if kept[-1] != points[-1]:
        kept.append(Point(*points[-1]))
    return kept


def ticks(low: float, high: float, most: int = 4, whole: bool = False) -> list[float]:
    """Round numbers within the range."""
    if high <= low:
        return [low]
    rough = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * 0.999)
    step = max(step, 1.0) if whole else step
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def decades(low: float, high: float, most: int = 5) -> list[float]:
    """Powers of ten within the range of a logarithmic scale."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    every = max(1, math.ceil((last - first + 1) / most))
    return [10.0**exponent for exponent in range(first, last + 1, every)]


def _panel(
    name: str,
    members: Mapping[str, Sequence[tuple[float, float]]],
    axis: str,
    columns: int,
    crowd: str,
    from_zero: bool = False,
) -> Iterator[str]:
    curves = dict(_some(members)) if len(members) > MOST_NAMED else members
    known = list(_known(curves))
    xs = [x for points in curves.values() for x, _ in points]
    yield f'<text x="14" y="22" font-size="12" font-weight="600" fill="{INK}">{_text(name, 34)}</text>'
    if not known:
        yield f'<text x="{WIDTH / 2:g}" y="{HEIGHT / 2:g}" text-anchor="middle">no finite value was reported</text>'
        return
    low, high = min(known), max(known)
    if from_zero:
        low, high = min(0.0, low), high if high > 0 else 1.0
    logarithmic = not from_zero and _spans_decades(low, high)
    across = _Scale(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    up = _Scale(low, high, HEIGHT - BOTTOM, TOP, logarithmic, margin=0.04)
    if logarithmic:
        yield f'<text x="{WIDTH - RIGHT}" y="22" text-anchor="end">logarithmic</text>'
    for value in decades(up.low, up.high) if logarithmic else ticks(up.low, up.high):
        y = _short(up(value))
        yield f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="{GRID}"/>'
        yield f'<text x="{LEFT - 6}" y="{y}" dy="3.5" text-anchor="end">{number(value)}</text>'
    for value in ticks(min(xs), max(xs), whole=True):
        x = _short(across(value))
        yield f'<text x="{x}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{number(value)}</text>'
    yield f'<text x="{LEFT - 8}" y="{HEIGHT - BOTTOM + 15}" text-anchor="end">{axis}</text>'
    if len(members) > MOST_NAMED:
        for points in curves.values():
            yield from _curve(thinned(points, columns), across, up, COLOURS[0], 0.45)
        some = f"{len(curves)} of {len(members)}" if len(curves) < len(members) else f"{len(members)}"
        yield from _legend({some: crowd})
        return
    for colour, points in zip(COLOURS, curves.values(), strict=False):
        drawn = thinned(points, columns)
        crowded = len(points) > len(drawn)
        yield from _curve(drawn, across, up, colour, 0.3 if crowded else 1.0)
        if crowded:
            yield from _curve([drawn[0], *_smoothed(drawn, SMOOTH_COLUMNS), drawn[-1]], across, up, colour)
    alone = list(curves) == [name]
    yield from _legend({"last" if alone else member: number(_last(points)) for member, points in curves.items()})


def _known(members: Mapping[str, Sequence[tuple[float, float]]]) -> Iterator[float]:
    return (y for points in members.values() for _, y in points if math.isfinite(y))


def _spans_decades(low: float, high: float) -> bool:
    return low > 0 and math.log10(high / low) >= DECADES


def _some(members: Mapping[str, Sequence[tuple[float, float]]]) -> Iterator[tuple[str, Sequence[tuple[float, float]]]]:
    """A crowd's curves, evenly chosen where there are too many."""
    items = list(members.items())
    most = min(MOST_CROWD, len(items))
    return (items[index * len(items) // most] for index in range(most))


def _smoothed(points: Sequence[Point], columns: int) -> list[Point]:
    """Means of neighbours; a gap ends a neighbourhood."""
    size = max(2, len(points) // columns)
    smooth: list[Point] = []
    near: list[Point] = []
    for point in [*points, Point(math.nan, math.nan)]:
        gap = math.isnan(point.y)
        if not gap:
            near.append(point)
        if near and (gap or len(near) >= size):
            smooth.append(Point(*(sum(part) / len(near) for part in zip(*near, strict=True))))
            near = []
        if gap and not math.isnan(point.x):
            smooth.append(point)
    return smooth


def _curve(points: Sequence[Point], across: _Scale, up: _Scale, colour: str, opacity: float = 1.0) -> Iterator[str]:
    """One path; every part between two gaps begins with M. A part of one point is a dot."""
    path: list[str] = []
    part: list[Point] = []
    seen = "" if opacity == 1.0 else f' opacity="{opacity:g}"'
    for point in [*points, Point(math.nan, math.nan)]:
        if math.isfinite(point.y):
            part.append(point)
            continue
        if len(part) == 1:
            x, y = _short(across(part[0].x)), _short(up(part[0].y))
            yield f'<circle cx="{x}" cy="{y}" r="2.5" fill="{colour}"{seen}/>'
        elif part:
            path.append(_line([(across(x), up(y)) for x, y in part]))
        part = []
    if path:
        yield f'<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="1.5"{seen}/>'


def _line(points: Sequence[tuple[float, float]]) -> str:
    """Each point by its distance from the one before, in tenths of a pixel: half as long as their places."""
    x, y = (round(part * 10) for part in points[0])
    line = [f"M{x / 10:g} {y / 10:g}l"]
    for place in points[1:]:
        to_x, to_y = (round(part * 10) for part in place)
        across, up = f"{(to_x - x) / 10:g}", f"{(to_y - y) / 10:g}"
        line.append(("" if len(line) == 1 or across[0] == "-" else " ") + across + ("" if up[0] == "-" else " ") + up)
        x, y = to_x, to_y
    return "".join(line)


def _legend(values: Mapping[str, str]) -> Iterator[str]:
    """The name of each colour with its last value, or without, or of two of them: as there is room."""
    labels = [f"{name} {value}" for name, value in values.items()]
    room = (WIDTH - LEFT - RIGHT) / len(labels)
    longest = _letters(room)
    if max(map(len, labels)) > longest and len(labels) > 3:
        labels = list(values)
    if max(map(len, labels)) > longest and len(labels) > 3:
        more, room = len(labels) - 2, (WIDTH - LEFT - RIGHT) / 3
        yield f'<text x="{LEFT + 2 * room:g}" y="37">and {more} more</text>'
        labels = [f"{name} {value}" for name, value in values.items()][:2]
    for index, text in enumerate(labels):
        x = LEFT + index * room
        yield f'<circle cx="{x + 3:g}" cy="33.5" r="3" fill="{COLOURS[index]}"/>'
        yield f'<text x="{x + 10:g}" y="37">{_text(text, max(8, _letters(room)))}</text>'


def _letters(room: float) -> int:
    """So many letters have room behind a dot."""
    return int(room / 5.6) - 2


def _last(points: Sequence[tuple[float, float]]) -> float:
    return next((y for _, y in reversed(points) if math.isfinite(y)), math.nan)


class _Scale:
    """A map from values to pixels."""

    def __init__(
        self, low: float, high: float, start: float, end: float, logarithmic: bool = False, margin: float = 0.0
    ) -> None:
        self.logarithmic = logarithmic
        first, last = self._of(low), self._of(high)
        room = (last - first) * margin if first < last else abs(first) * 0.1 or 1.0
        self._first, self._last = first - room, last + room
        self._start, self._end = start, end
        self.low: float = 10.0**self._first if logarithmic else self._first
        self.high: float = 10.0**self._last if logarithmic else self._last

    def __call__(self, value: float) -> float:
        part = (self._of(value) - self._first) / (self._last - self._first)
        return self._start + part * (self._end - self._start)

    def _of(self, value: float) -> float:
        return math.log10(value) if self.logarithmic else value


def number(value: float) -> str:
    """The number as short as it stays clear: 0.25, 1200, 1.5M, 1e-5."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if 1e-3 <= abs(value) < 1e4:
        return f"{value:.4g}"
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if unit <= abs(value) < unit * 1e3:
            return f"{value / unit:.4g}{letter}"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _text(text: str, most: int) -> str:
    text = text if len(text) <= most else text[: most - 1] + "…"
    return escape("".join(letter if letter.isprintable() else " " for letter in text))
