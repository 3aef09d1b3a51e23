"""Draws a slice as plain text, at most 100 columns wide: hosts, chips and the links between chips.

Numbers are places in the drawing, not device ids. A slice of more than 64 chips is drawn by its hosts. This
module knows no facts: they come from `accelerators`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.hardware.accelerators import Slice

_WIDTH = 96
_MOST_CHIPS = 64
_MOST_LINES = 48
_GAP = 5  # columns between two layers


def draw(slice: Slice, title: str = "") -> str:
    """The slice with one line that names it above (`title`, or its own name) and what its parts mean below."""
    body = _draw_tpu(slice) if slice.kind == "tpu" else _draw_host(slice)
    lines = [title or str(slice), "", *("  " + line for line in body), "", *_legend(slice)]
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def _draw_tpu(slice: Slice) -> list[str]:
    layers = _layers(slice)
    if slice.chips <= _MOST_CHIPS:
        return _in_order({layer: _draw_chips(slice, layer) for layer in range(layers)}, layers)
    first = _draw_hosts(slice, 0)
    by_line = _by_line(first)
    fits = -(-layers // by_line) * (len(first) + 2) <= _MOST_LINES
    shown = range(layers) if fits else (*range(max(1, by_line - 1)), layers - 1)
    return _in_order({layer: _draw_hosts(slice, layer) for layer in shown}, layers)


def _layers(slice: Slice) -> int:
    return (*accelerators.sides(slice)[2:], 1)[0]


def _host_shape(slice: Slice) -> tuple[int, int]:
    return {1: (1, 1), 4: (2, 2), 8: (2, 4)}[slice.chips_per_host]


def _draw_chips(slice: Slice, layer: int) -> list[str]:
    """One layer with every chip in the box of its host."""
    rows, columns = accelerators.sides(slice)[:2]
    host_rows, host_columns = _host_shape(slice)
    hosts = rows // host_rows, columns // host_columns
    digits = len(str(slice.chips - 1))
    cell = digits + 2
    pitch = cell + 6
    pad = 3 if columns > 1 else 4
    height, width = 2 * host_rows + 1, 2 * pad + (host_columns - 1) * pitch + cell
    canvas = _Canvas()

    def place(row: int, column: int) -> tuple[int, int]:
        y = row // host_rows * (height + 1) + 1 + 2 * (row % host_rows)
        return y, column // host_columns * (width + 3) + pad + pitch * (column % host_columns)

    for number, (row, column) in enumerate(product(*map(range, hosts)), layer * hosts[0] * hosts[1]):
        top, left = row * (height + 1), column * (width + 3)
        label = f" host {number} "
        canvas.box(top, left, height, width)
        canvas.text(top, left + (width - len(label) + 1) // 2, label)
    for number, (row, column) in enumerate(product(range(rows), range(columns)), layer * rows * columns):
        y, x = place(row, column)
        canvas.text(y, x, f"[{number:>{digits}}]")
        if column + 1 < columns:
            canvas.across(y, x + cell, place(row, column + 1)[1])
        if row + 1 < rows:
            canvas.down(x + cell // 2, y + 1, place(row + 1, column)[0])
    return canvas.lines()


def _draw_hosts(slice: Slice, layer: int) -> list[str]:
    """One layer with every host as a cell; where that is too wide, without its middle columns."""
    host_rows, host_columns = _host_shape(slice)
    rows, columns = accelerators.sides(slice)[0] // host_rows, accelerators.sides(slice)[1] // host_columns
    digits = len(str(slice.hosts - 1))
    link = 2 if columns * (digits + 4) <= _WIDTH - _GAP else 1
    pitch = digits + 2 + link
    shown: list[int | None] = list(range(columns))
    if columns * pitch - link > _WIDTH:
        half = (_WIDTH - 4) // pitch // 2
        shown[half:-half] = [None]
    lines = []
    for row in range(rows):
        first = (layer * rows + row) * columns
        cells = ["···" if column is None else f"[{first + column:>{digits}}]" for column in shown]
        below = ["   " if column is None else "│".center(digits + 2) for column in shown]
        lines += [("─" * link).join(cells), (" " * link).join(below)]
    return lines[:-1]


def _in_order(drawn: Mapping[int, list[str]], layers: int) -> list[str]:
    """The layers of a three-dimensional slice in reading order; a double line leads to the next."""
    if layers == 1:
        return drawn[0]
    width, height = max(map(len, drawn[0])), len(drawn[0])
    by_line = _by_line(drawn[0])
    order = list(drawn)
    lines: list[str] = []
    for start in range(0, len(order), by_line):
        chunk = order[start : start + by_line]
        if start:
            skipped = chunk[0] - order[start - 1] - 1
            lines += ["", f"⋮ {skipped} layers between".center(width), ""] if skipped else [""]
        lines.append((" " * _GAP).join(f"layer {layer}".center(width) for layer in chunk))
        for row in range(height):
            joints = [_joint(layer, order, layers) if row == height // 2 else " " * _GAP for layer in chunk]
            parts = [drawn[layer][row].ljust(width) for layer in chunk]
            lines.append("".join(part + joint for part, joint in zip(parts, joints, strict=True)))
    return lines


def _by_line(layer: Sequence[str]) -> int:
    return max(1, (_WIDTH + _GAP) // (max(map(len, layer)) + _GAP))


def _joint(layer: int, shown: Sequence[int], layers: int) -> str:
    if layer == layers - 1:
        return " " * _GAP
    return " ═══ " if layer + 1 in shown else "═ ⋯ ═"


def _draw_host(slice: Slice) -> list[str]:
    """The first host of GPUs or of CPU devices; more than sixteen are not all shown."""
    chips = slice.chips // slice.machines
    digits = len(str(chips - 1))
    most = min(16, _WIDTH // (digits + 4))
    cells = [f"[{number:>{digits}}]" for number in range(min(chips, most))]
    if chips > most:
        cells[-2:] = ["⋯".center(digits + 2), f"[{chips - 1}]"]
    linked = bool(accelerators.link(slice))
    pitch = digits + 2 + (4 if chips <= 8 else 2)
    used = pitch * (len(cells) - 1) + digits + 2
    width = max(14, min(used + 6, _WIDTH + 2))
    left = (width - used) // 2
    canvas = _Canvas()
    canvas.box(0, 0, 5 if linked else 3, width)
    canvas.text(0, (width - 7) // 2, " host 0 ")
    for index, cell in enumerate(cells):
        canvas.text(1, left + pitch * index, cell)
    if linked:
        middle = left + (digits + 2) // 2
        canvas.text(2, middle, (" " * (pitch - 1)).join("│" * len(cells)))
        canvas.text(3, middle, ("═" * (pitch - 1)).join(f"╘{'╧' * (len(cells) - 2)}╛"))
    return canvas.lines()


class _Canvas:
    """Characters by place; a link that meets a border crosses it."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], str] = {}

    def text(self, y: int, x: int, text: str) -> None:
        self._places.update({(y, x + offset): character for offset, character in enumerate(text)})

    def box(self, top: int, left: int, height: int, width: int) -> None:
        self.text(top, left, f"╭{'─' * (width - 2)}╮")
        self.text(top + height - 1, left, f"╰{'─' * (width - 2)}╯")
        for y in range(top + 1, top + height - 1):
            self.text(y, left, "│")
            self.text(y, left + width - 1, "│")

    def across(self, y: int, start: int, end: int) -> None:
        for x in range(start, end):
            self._places[y, x] = "┼" if self._places.get((y, x)) == "│" else "─"

    def down(self, x: int, start: int, end: int) -> None:
        for y in range(start, end):
            self._places[y, x] = "┼" if self._places.get((y, x)) == "─" else "│"

    def lines(self) -> list[str]:
        height = 1 + max(y for y, _ in self._places)
        width = 1 + max(x for _, x in self._places)
        return ["".join(self._places.get((y, x), " ") for x in range(width)) for y in range(height)]


def _legend(slice: Slice) -> list[str]:
    lines = []
    if slice.kind == "tpu" and slice.chips > _MOST_CHIPS:
        shape = "x".join(map(str, _host_shape(slice)))
        lines.append(f"[n] is a host with {slice.chips_per_host} chips ({shape}), linked to its neighbours.")
    if _layers(slice) > 1:
        lines.append("═ links every chip to the one at its place in the next layer.")
    if slice.kind == "gpu" and slice.machines > 1:
        lines.append(f"The other {_count(slice.machines - 1)} like it, joined over the network.")
    if slice.kind == "gpu" and accelerators.link(slice):
        lines.append(f"═ {accelerators.link(slice)}")
    wraps = accelerators.wraps(slice)
    if wraps and all(wraps):
        lines.append("Links wrap around in every direction: a torus.")
    elif any(wraps):
        lines.append(f"Links wrap around along the side of {max(accelerators.sides(slice))}.")
    if slice.devices_per_chip > 1:
        each = f"A framework sees {slice.devices_per_chip} devices for each chip"
        lines.append(f"{each}: {slice.devices} in all.")
    if slice.hbm_gib_per_chip:
        lines.append(_capacity(slice))
    return lines


def _count(hosts: int) -> str:
    return "host is" if hosts == 1 else f"{hosts} hosts are"


def _capacity(slice: Slice) -> str:
    noun = "chip" if slice.kind == "tpu" else "GPU"
    memory, flops = slice.hbm_gib_per_chip, slice.peak_bf16_tflops_per_chip
    each = f"{memory} GiB" + (f" and {_flops(flops)} (bf16)" if flops else "")
    if slice.chips == 1:
        return f"{each} on the {noun}."
    together = _gib(memory * slice.chips) + (f" and {_flops(flops * slice.chips)}" if flops else "")
    return f"{each} per {noun}, {together} together."


def _gib(gib: int) -> str:
    return f"{gib} GiB" if gib < 2048 else f"{gib / 1024:.3g} TiB"


def _flops(tflops: float) -> str:
    if tflops < 1000:
        return f"{tflops:.4g} TFLOP/s"
    return f"{tflops / 1e3:.3g} PFLOP/s" if tflops < 1e6 else f"{tflops / 1e6:.3g} EFLOP/s"
