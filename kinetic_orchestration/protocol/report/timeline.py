"""The attempts of a job as a time line: one small SVG picture, in which each attempt has a bar of its phases.

Pure, as `curves` is. It has the colour of the text around it and no background, by attributes alone: so it is the same
in a notebook, which drops styles, on a page whose content policy refuses them, and in the light and the dark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

MOST_LANES = 12  # the newest are shown
WIDTH, LANE, BAR = 720, 26, 14
LEFT, RIGHT, TOP = 84, 150, 26
MOST_NOTE = 26  # letters
# Seen on a light and on a dark ground. What is waited for is grey and hollow, what is paid for is filled.
COLOURS = {
    "queued": "#8a93a6", "provisioning": "#d9930d", "preparing": "#1098ad", "running": "#2f9e44", "ending": "#ae5bc9",
}  # fmt: skip
FONT = "ui-sans-serif,system-ui,-apple-system,Segoe UI,Roboto,Helvetica,Arial,sans-serif"
_UNITS = ((1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "d"))


class Lane(NamedTuple):
    """One attempt: its label, its phases (name, beginning, end), the note behind its bar, and whether it goes on."""

    label: str
    phases: Sequence[tuple[str, float, float]]
    note: str = ""
    goes_on: bool = False


def draw(lanes: Sequence[Lane]) -> str:
    """Return the picture; "" if no attempt has begun."""
    known = [lane for lane in lanes if lane.phases]
    hidden = max(0, len(known) - MOST_LANES)
    known = known[hidden:]
    if not known:
        return ""
    first = min(lane.phases[0][1] for lane in known)
    last = max(lane.phases[-1][2] for lane in known)
    span = max(1e-3, last - first)
    height = TOP + len(known) * LANE + 22
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"',
        f' role="img" aria-label="{_text(_said(known), 400)}"',
        f' font-family="{FONT}" font-size="11" fill="currentColor">',
        *_legend(known, hidden),
        *_axis(span, height),
    ]
    for number, lane in enumerate(known):
        parts += _lane(lane, TOP + number * LANE, first, span)
    return "".join([*parts, "</svg>"])


def took(seconds: float) -> str:
    """Return a length of time in a few letters: "42 s", "3 min 5 s", "2 h 10 min"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = round(seconds)
    for size, unit, smaller, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit} {rest} {name}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def _said(lanes: Sequence[Lane]) -> str:
    """The picture in words, for who does not see it."""
    return "; ".join(
        f"{lane.label}: {', '.join(f'{name} {took(end - start)}' for name, start, end in lane.phases)}"
        f"{f' ({lane.note})' if lane.note else ''}"
        for lane in lanes
    )


def _legend(lanes: Sequence[Lane], hidden: int) -> Iterator[str]:
    there = {name for lane in lanes for name, _, _ in lane.phases}
    x = LEFT
    for name, colour in COLOURS.items():
        if name in there:
            yield f'<rect x="{x}" y="4" width="9" height="9" rx="2" {_filled(name, colour)}/>'
            yield f'<text x="{x + 14}" y="12">{name}</text>'
            x += 34 + 6 * len(name)
    if hidden:
        yield f'<text x="{WIDTH - 8}" y="12" text-anchor="end">and {hidden} earlier attempts</text>'


def _axis(span: float, height: int) -> Iterator[str]:
    size, unit = next(((size, unit) for size, unit in reversed(_UNITS) if span >= 2 * size), _UNITS[0])
    for value in _ticks(span / size):
        x = _short(LEFT + value * size / span * (WIDTH - LEFT - RIGHT))
        yield f'<path d="M{x} {TOP - 4}V{height - 18}" stroke="currentColor" stroke-opacity=".15"/>'
        faint = 'text-anchor="middle" fill-opacity=".7" font-size="10"'
        yield f'<text x="{x}" y="{height - 5}" {faint}>{value:g} {unit}</text>'


def _ticks(most: float) -> list[float]:
    """Round numbers from 0 to at most that, six of them or fewer."""
    step = 0.001
    while most / step > 6:
        step *= 2.5 if f"{step:e}"[0] == "2" else 2
    return [round(number * step, 6) for number in range(int(most / step) + 1)]


def _lane(lane: Lane, y: int, first: float, span: float) -> Iterator[str]:
    middle = y + LANE / 2 + 4
    yield f'<text x="{LEFT - 10}" y="{middle:g}" text-anchor="end">{_text(lane.label, 14)}</text>'
    scale = (WIDTH - LEFT - RIGHT) / span
    end = LEFT + (lane.phases[-1][2] - first) * scale
    for name, start, stop in lane.phases:
        x, width = LEFT + (start - first) * scale, max(1.5, (stop - start) * scale)
        filled, said = _filled(name, COLOURS[name]), f"{name} {took(stop - start)}"
        place = f'x="{_short(x)}" y="{y + (LANE - BAR) / 2:g}" width="{_short(width)}" height="{BAR}"'
        yield f'<rect {place} rx="2" {filled}><title>{said}</title></rect>'
    if lane.goes_on:
        yield f'<circle cx="{_short(end + 7)}" cy="{y + LANE / 2:g}" r="3" fill="{COLOURS["running"]}"/>'
    if lane.note:
        x = end + (16 if lane.goes_on else 8)
        yield f'<text x="{_short(x)}" y="{middle:g}" fill-opacity=".75">{_text(lane.note, MOST_NOTE)}</text>'


def _filled(name: str, colour: str) -> str:
    return f'fill="{colour}"' if name != "queued" else f'fill="{colour}" fill-opacity=".3" stroke="{colour}"'


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _text(text: str, most: int) -> str:
    text = text if len(text) <= most else text[: most - 1] + "…"
    return escape("".join(letter if letter.isprintable() else " " for letter in text))


STATES = {
    "SUCCEEDED": COLOURS["running"], "RUNNING": "#1098ad", "PENDING": COLOURS["queued"], "FAILED": "#e5484d",
    "CANCELLED": COLOURS["provisioning"],
}  # fmt: skip


def shares(counts: Mapping[str, int]) -> str:
    """Return a bar (SVG) with a part for each state, as large as its count."""
    total = sum(counts.values()) or 1
    said = ", ".join(f"{count} {state}" for state, count in counts.items())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="18" viewBox="0 0 {WIDTH} 18"',
        f' role="img" aria-label="{_text(said, 200)}">',
    ]
    x = 0.0
    for state, count in counts.items():
        width = count / total * WIDTH
        colour = STATES.get(state, COLOURS["queued"])
        place = f'x="{_short(x)}" y="2" width="{_short(max(1.0, width - 2))}" height="{BAR}"'
        parts.append(f'<rect {place} rx="2" fill="{colour}"><title>{_text(state, 20)} {count}</title></rect>')
        x += width
    return "".join([*parts, "</svg>"])


def in_notebook(title: str, line: str, pictures: Sequence[str]) -> str:
    """Return pictures below a title and a line, as HTML without a style or a script."""
    shown = "".join(f"<div>{picture}</div>" for picture in pictures)
    return f"<div><div><b>{_text(title, 120)}</b> {_text(line, 300)}</div>{shown}</div>"
