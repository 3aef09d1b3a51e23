"""The one picture of a job: its reports by `log_metrics`, and the activity of its devices.

The picture is also the record of its data, so that a later attempt, or a page of an orchestrator, continues from it:
its numbers are in its `<metadata>`. Pure, as `picture` is, and written for hosts too. Memory and size are bounded,
however long a job runs and however many hosts it has.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape, unescape
from typing import Any

from kinetic_orchestration.protocol.report import curves as picture
from kinetic_orchestration.protocol.report.curves import Panels, Point

MOST_SLOTS = 256  # of time, of one curve; they grow wider instead
MOST_SERIES = 4  # hosts, or chips of a single host, with a curve each; of more the lowest, the mean and the highest
MOST_DEVICES = 16  # of one host
KEPT_COLUMNS = 64  # of a metric's curve in the record: two points each
LONGEST = 1e12  # seconds of a record that is one
GAP_SECONDS = 90.0  # without a sample: between two attempts
LOW, MEAN, HIGH = "lowest", "mean", "highest"
BUSY = {"tpu": "TPU duty cycle, %", "gpu": "GPU utilization, %"}
MEMORY = {"tpu": "HBM, GiB", "gpu": "GPU memory, GiB"}
CPU, HOST_MEMORY = "CPU, cores", "memory, GiB"

State = dict[str, Any]  # JSON: {"job", "axis", "curves", "devices"}


class DeviceCurves:
    """The measurements of a job's hosts, in slots of time: each holds lowest, sum, count and highest."""

    def __init__(self, hosts: int) -> None:
        self._hosts = hosts
        self._width = 1.0
        self._began = 0.0
        self._panels: dict[str, dict[str, dict[int, list[float]]]] = {}
        self._total: dict[str, float] = {}

    def add(self, host: int, time: float, sample: Mapping[str, Any]) -> None:
        """Add one host's sample; its time is the store's. An invalid sample is ignored, as heartbeats are untrusted."""
        if not _is_number(time) or time <= 0:
            return
        self._began = self._began or time
        for panel, series, value in readings(host, self._hosts, sample):
            self._put(panel, series, time, value)
        kind, total = str(sample.get("kind")), sample.get("total")
        if kind in MEMORY and isinstance(total, list):
            self._total[MEMORY[kind]] = max((each for each in total if _is_number(each)), default=0.0)

    def _put(self, panel: str, series: str, time: float, value: float) -> None:
        slots = self._panels.setdefault(panel, {}).setdefault(series, {})
        _fold(slots, int((time - self._began) // self._width), [value, value, 1, value])
        while len(slots) > MOST_SLOTS:
            self._widen()
            slots = self._panels[panel][series]

    def _widen(self) -> None:
        self._width *= 2
        for several in self._panels.values():
            for series, slots in several.items():
                wider: dict[int, list[float]] = {}
                for slot, entry in slots.items():
                    _fold(wider, slot // 2, entry)
                several[series] = wider

    def __bool__(self) -> bool:
        return bool(self._panels)

    def to_json(self) -> State:
        return {
            "began": self._began,
            "width": self._width,
            "total": self._total,
            "panels": {
                panel: {
                    series: [[slot, *(round(part, 3) for part in entry)] for slot, entry in sorted(slots.items())]
                    for series, slots in several.items()
                }
                for panel, several in self._panels.items()
            },
        }


def readings(host: int, hosts: int, sample: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Yield the panel, the curve, and the value of each number in a sample."""
    name = f"host {host}" if hosts <= MOST_SERIES else ""
    for panel, key in ((CPU, "cpu"), (HOST_MEMORY, "memory")):
        if _is_number(sample.get(key)):
            yield panel, name, float(sample[key])
    kind = str(sample.get("kind"))
    for panels, key in ((BUSY, "busy"), (MEMORY, "used")):
        found = sample.get(key)
        if kind not in panels or not isinstance(found, list):
            continue
        values = [float(each) for each in found[:MOST_DEVICES] if _is_number(each)]
        if hosts == 1 and len(values) <= MOST_SERIES:
            yield from ((panels[kind], f"chip {number}", value) for number, value in enumerate(values))
        elif 1 < hosts <= MOST_SERIES and values:
            yield panels[kind], name, sum(values) / len(values) if key == "busy" else max(values)
        else:
            yield from ((panels[kind], "", value) for value in values)


def joined(before: Mapping[str, Any], now: State) -> State:
    """The record of an attempt, behind that of those before it: what it does again takes the place of what was lost."""
    curves: dict[str, list[list[float | None]]] = {}
    for name, points in {**before.get("curves", {}), **now["curves"]}.items():
        earlier = before.get("curves", {}).get(name, [])
        fresh = now["curves"].get(name)
        begins = fresh[0][0] if fresh else math.inf
        curves[name] = [point for point in earlier if point[0] < begins] + (fresh or []) if earlier else points
    both = before.get("axis") == "step" or not before.get("curves")
    axis = now["axis"] if both or not now["curves"] else before["axis"]
    return {**now, "axis": axis, "curves": curves, "devices": _joined(before.get("devices") or {}, now["devices"])}


def _joined(before: Mapping[str, Any], now: Mapping[str, Any]) -> State:
    if not before.get("panels") or not now.get("panels"):
        return dict(now if now.get("panels") else before)
    whole = DeviceCurves(1)
    whole._began, whole._width = before["began"], max(before["width"], now["width"])
    whole._total = {**before["total"], **now["total"]}
    for part in (before, now):
        for panel, several in part["panels"].items():
            for series, entries in several.items():
                slots = whole._panels.setdefault(panel, {}).setdefault(series, {})
                for slot, *entry in entries:
                    time = part["began"] + (slot + 0.5) * part["width"]
                    _fold(slots, int((time - whole._began) // whole._width), list(entry))
    while any(len(slots) > MOST_SLOTS for several in whole._panels.values() for slots in several.values()):
        whole._widen()
    return whole.to_json()


def state_of(job: str, curves: picture.Curves, devices: DeviceCurves | None = None) -> State:
    return {
        "job": job,
        "axis": curves.axis,
        "curves": {
            name: [[x, y if math.isfinite(y) else None] for x, y in picture.thinned(points, KEPT_COLUMNS)]
            for name, points in curves.points().items()
        },
        "devices": devices.to_json() if devices is not None else {},
    }


def draw(state: State, title: str, *, keep: bool = True) -> str:
    """The picture; with `keep` also what it shows, for `read`."""
    curves = {
        name: [Point(x, math.nan if y is None else y) for x, y in points] for name, points in state["curves"].items()
    }
    devices, axis = panels_of(state["devices"])
    kept = escape(json.dumps(state, separators=(",", ":")), quote=False) if keep else ""
    return picture.svg(
        picture.grouped(curves), axis=state["axis"], title=title, amounts=devices, amounts_axis=axis, kept=kept
    )


def read(data: bytes, job: str) -> State:
    """The record in a picture; an empty one if it is not this job's, or invalid: it is untrusted."""
    text = data.decode("utf-8", "replace")
    kept = text.partition("<metadata>")[2].partition("</metadata>")[0]
    try:
        state = json.loads(unescape(kept))
        if state["job"] != job or state["axis"] not in ("step", "report"):
            return {}
        points = [point for found in state["curves"].values() for point in found]
        whole = all(len(point) == 2 and _is_number(point[0]) and _is_number(point[1] or 0) for point in points)
        if devices := state["devices"]:
            numbers = [devices["began"], devices["width"], *devices["total"].values()]
            entries = [each for several in devices["panels"].values() for found in several.values() for each in found]
            whole = whole and all(map(_is_number, numbers)) and devices["width"] >= 1
            whole = whole and all(len(each) == 5 and all(map(_is_number, each)) and each[3] > 0 for each in entries)
            whole = whole and all(abs(each[0]) < LONGEST / devices["width"] for each in entries)
        if not whole:
            return {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return dict(state)


def panels_of(devices: Mapping[str, Any]) -> tuple[Panels, str]:
    """The panels to draw of the devices, and the unit of their time."""
    measured = (devices.get("panels") or {}).values()
    entries = [entry for several in measured for found in several.values() for entry in found]
    if not entries:
        return {}, ""
    first = min(entry[0] for entry in entries)  # below zero where a host measured before the one that was heard first
    last = (max(entry[0] for entry in entries) - first) * devices["width"]
    unit, axis = next((unit, axis) for unit, axis, most in _UNITS if last < most)
    panels: dict[str, dict[str, list[Point]]] = {}
    order = [*BUSY.values(), *MEMORY.values(), CPU, HOST_MEMORY]
    for panel in sorted(devices["panels"], key=lambda name: order.index(name) if name in order else len(order)):
        total = devices["total"].get(panel)
        title = f"{panel.removesuffix(', GiB')} of {picture.number(total)} GiB" if total else panel
        shown = panels[title] = {}
        for series, found in sorted(devices["panels"][panel].items()):
            if series:
                shown[series] = _drawn(found, first, devices["width"], unit, lambda entry: entry[2] / entry[3])
            elif all(entry[3] == 1 for entry in found):
                shown[MEAN] = _drawn(found, first, devices["width"], unit, lambda entry: entry[2])
            else:
                shown[LOW] = _drawn(found, first, devices["width"], unit, lambda entry: entry[1])
                shown[MEAN] = _drawn(found, first, devices["width"], unit, lambda entry: entry[2] / entry[3])
                shown[HIGH] = _drawn(found, first, devices["width"], unit, lambda entry: entry[4])
    return panels, axis


_UNITS = ((1.0, "s", 180.0), (60.0, "min", 3 * 3600.0), (3600.0, "h", math.inf))


def _drawn(found: Sequence[Sequence[float]], first: float, width: float, unit: float, value: Any) -> list[Point]:
    """A curve from the slot `first` on, with a gap where nothing was measured."""
    points: list[Point] = []
    before = math.inf
    for entry in found:
        time = (entry[0] - first) * width
        if time - before > max(GAP_SECONDS, 3 * width):
            points.append(Point(before / unit, math.nan))
        points.append(Point(time / unit, value(entry)))
        before = time
    return points


def brief(sample: Mapping[str, Any]) -> str:
    """One host's sample in a few words: "TPU 88 %, HBM 12.1 of 16 GiB, CPU 1.9 cores, memory 3.2 GiB"."""
    parts = []
    kind = str(sample.get("kind", ""))
    busy, used, total = (
        [float(each) for each in found if _is_number(each)] if isinstance(found, list) else []
        for found in (sample.get(key) for key in ("busy", "used", "total"))
    )
    if kind in BUSY and busy:
        parts.append(f"{kind.upper()} {_range(busy)} %")
    if kind in MEMORY and used:
        of = f" of {max(total):.4g}" if total else ""
        parts.append(f"{MEMORY[kind].removesuffix(', GiB')} {_range(used)}{of} GiB")
    if _is_number(cpu := sample.get("cpu", "")):
        parts.append(f"CPU {cpu:.2g} core{'' if 0.95 <= cpu < 1.05 else 's'}")
    if _is_number(memory := sample.get("memory")):
        parts.append(f"memory {memory:.3g} GiB")
    return ", ".join(parts)


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def together(samples: Mapping[int, Mapping[str, Any]]) -> dict[str, float]:
    """The values of all hosts, by plain names: the means of utilisation, the maxima of memory."""
    found: dict[str, list[float]] = {}
    for sample in samples.values():
        kind = str(sample.get("kind", ""))
        for name, key in (("cpu_cores", "cpu"), ("memory_gib", "memory")):
            if _is_number(sample.get(key)):
                found.setdefault(name, []).append(float(sample[key]))
        for name, key in ((f"{kind}_busy_percent", "busy"), (f"{kind}_memory_gib", "used")):
            if kind in BUSY and isinstance(sample.get(key), list):
                found.setdefault(name, []).extend(float(each) for each in sample[key] if _is_number(each))
    return {
        name: round(max(values) if name.endswith("gib") else sum(values) / len(values), 3)
        for name, values in found.items()
        if values
    }


def _fold(slots: dict[int, list[float]], slot: int, entry: list[float]) -> None:
    if (there := slots.get(slot)) is None:
        slots[slot] = entry
        return
    low, total, count, high = entry
    slots[slot] = [min(there[0], low), there[1] + total, there[2] + count, max(there[3], high)]


def _is_number(value: Any) -> bool:
    """Return True for a number that can be drawn: JSON's integers may have any length."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < picture.LARGEST
