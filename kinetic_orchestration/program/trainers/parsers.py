"""Reads numbers from what trainers write: lines of their output, or those of a file of metrics. Pure.

A parser is a function that takes a line without its end, and returns numbers by name, or None. Four names mean more
than a metric: "step" is the step that the others belong to, "done" the work that is done (by default the step), "steps"
all of it, and "rate" the steps per second. A class is made once for each stream, with the words of the command, and
can so keep what it has seen.
"""

from __future__ import annotations

import ast
import json
import math
import re
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Parser = Callable[[str], "Mapping[str, float] | None"]

MEANT = frozenset({"step", "done", "steps", "rate"})
MOST = 64  # metrics of a line; a line with more is none of a trainer's
LONGEST = 64  # characters of a name
STEP = ("step", "global_step", "iteration", "iter", "it")
WINDOW = 101  # steps over which a throughput is taken

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf|NaN|Infinity)"
_NAME = r"(?<!\w)[A-Za-z][\w/.-]{0,127}"  # not begun anew within a word, or a long one takes its square in time
_PAIR = re.compile(rf"({_NAME}(?: (?=loss|perplexity|accuracy)\w+)?)\s*[:=]\s*({_NUMBER})(?![\w.:-])(?:/(\d+))?")
_BAR = re.compile(
    r"^\s*\d+%\|[^|]*\| (\d+)/(\d+) \[[^],]*(?:, *([\d.]+)(it/s|s/it))?[^]]*\]\s*$"
)  # tqdm's, undescribed
_RICH = re.compile(r"^Epoch (\d+)/\d+ [━╸╺\s]*(\d+)/(\d+) ")
_MOST_OF_LINE = 20_000  # characters


def pairs(line: str) -> dict[str, float]:
    """Return the numbers in `key: value` and `key=value`; a value like `7/90` also gives "steps"."""
    found: dict[str, float] = {}
    for name, value, total in _PAIR.findall(line[:_MOST_OF_LINE]):
        key = "step" if name.lower() in STEP else name
        found[key] = float(value)
        if total:
            found["steps"] = float(total)
    return found


def progress_of(line: str) -> dict[str, float]:
    """Return what a progress bar of tqdm's says that stands alone in a line and has no description."""
    bar = _BAR.match(line[:_MOST_OF_LINE])
    if bar is None:
        return {}
    done, total, speed, unit = bar.groups()
    found = {"done": float(done), "steps": float(total)}
    if speed and float(speed):
        found["rate"] = float(speed) if unit == "it/s" else 1 / float(speed)
    return found


class MaxText:
    """MaxText's `metrics_file`, and the lines of its log where it writes none.

    Metrics have its names without "learning/"; what is a throughput is the median of the last 101 steps.
    """

    def __init__(self, argv: Sequence[str] = ()) -> None:
        given = [word.partition("=")[2] for word in argv if word.startswith("steps=")]
        self._steps = float(given[-1]) if given and given[-1].isdecimal() else 0.0
        self._seen: dict[str, deque[float]] = {}

    def __call__(self, line: str) -> Mapping[str, float] | None:
        told = _record(line)
        if told is None:
            return self._of_log(line)
        if "learning/loss" not in told or "step" not in told:  # a step of an evaluation, counted on its own
            return {name: value for name, value in told.items() if name.startswith("eval/")} or None
        named = {_named(name): value for name, value in told.items() if name != "perf/per_device_tflops"}
        return self._with_progress({name: value for name, value in named.items() if value or name not in _OFF})

    def _of_log(self, line: str) -> Mapping[str, float] | None:
        _, completed, rest = line.partition("completed step: ")
        if completed:
            return self._with_progress(
                {_LOGGED.get(name, name): value for name, value in pairs(f"step: {rest}").items()}
            )
        _, evaluated, rest = line.partition("Completed eval after train step ")
        if evaluated:
            found = pairs(f"step: {rest}")
            step = found.pop("step", None)
            named = {f"eval/{name.removeprefix('avg_')}": value for name, value in found.items()}
            return named if step is None else {"step": step, **named}
        return None

    def _with_progress(self, found: dict[str, float]) -> Mapping[str, float]:
        for name in _THROUGHPUT:
            if math.isfinite(found.get(name, math.nan)):
                seen = self._seen.setdefault(name, deque(maxlen=WINDOW))
                seen.append(found[name])
                found[name] = statistics.median(seen)
        seconds = found.get("step_seconds", 0.0)
        rate = {"rate": 1 / seconds} if seconds > 0 else {}
        total = {"steps": self._steps} if self._steps else {}
        return {**found, **rate, **total, **({"done": found["step"] + 1} if "step" in found else {})}


_PERFORMANCE = {
    "perf/step_time_seconds": "step_seconds",
    "perf/per_device_tflops_per_sec": "tflops_per_second_per_device",
    "perf/per_device_tokens_per_sec": "tokens_per_second_per_device",
}
_THROUGHPUT = tuple(_PERFORMANCE.values())
_OFF = frozenset({"indexer_loss", "moe_lb_loss", "mtp_loss", "z_loss"})  # 0.0 of a model that has no such part
_LOGGED = dict(zip(("seconds", "TFLOP/s/device", "Tokens/s/device"), _THROUGHPUT, strict=True))


def _named(name: str) -> str:
    if name == "perf/per_device_tokens":
        return "tokens_per_step_per_device"
    return _PERFORMANCE.get(name, name.removeprefix("learning/"))


def _record(line: str) -> dict[str, float] | None:
    """Return the numbers of a line of JSON, or None if it is not one."""
    if not line.startswith("{"):
        return None
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict):
        return None
    return _numbers({name: value for name, value in told.items() if not isinstance(value, str)})


def _numbers(told: Mapping[Any, Any]) -> dict[str, float]:
    """Return the numbers among the values; Hugging Face's Trainer writes its own as text."""
    found: dict[str, float] = {}
    for name, value in told.items():
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            try:
                found[str(name)] = float(value)
            except (ValueError, OverflowError):
                continue
    return found


class Torchrun:
    """Lines of pairs, such as `step: 20/90, loss: 0.31` or `epoch=1 iter=20 lr=1e-3 train_loss=0.31`.

    A line counts if it names a step or a loss: a script writes many others.
    """

    def __init__(self, argv: Sequence[str] = ()) -> None:
        del argv

    def __call__(self, line: str) -> Mapping[str, float] | None:
        found = pairs(line)
        if "step" in found and len(found) > 1:
            return found
        return found if any(name.lower().endswith("loss") for name in found) else None


class Transformers:
    """Reads what Hugging Face's Trainer prints (`{'loss': …, 'epoch': …}` and its progress bar), or trainer_state.json.

    A printed line has no step; the entries of that file have.
    """

    def __init__(self, argv: Sequence[str] = ()) -> None:
        del argv
        self._entry: dict[str, str] | None = None

    def __call__(self, line: str) -> Mapping[str, float] | None:
        text = line.strip()
        if text in ("{", "}", "},"):
            entry, self._entry = self._entry, ({} if text == "{" else None)
            found = _numbers(entry or {})
            return found if text != "{" and len(found) > 1 and "step" in found else None
        if self._entry is not None and (part := _ENTRY.fullmatch(text)):
            self._entry[part[1]] = part[2]
            return None
        begin, end = text.find("{'"), text.rfind("}")
        if 0 <= begin < end <= begin + _MOST_OF_LINE:
            try:
                told = ast.literal_eval(text[begin : end + 1])
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                told = None
            found = _numbers(told) if isinstance(told, dict) else {}
            if found:
                return found
        return progress_of(line) or None


_ENTRY = re.compile(rf'"(\w{{1,{LONGEST}}})": ({_NUMBER}),?')


class Lightning:
    """Reads Lightning's progress bar, or the `metrics.csv` of its CSVLogger."""

    def __init__(self, argv: Sequence[str] = ()) -> None:
        del argv
        self._columns: list[str] = []

    def __call__(self, line: str) -> Mapping[str, float] | None:
        cells = line.strip().split(",")
        if {"step", "epoch"} <= set(cells):
            self._columns = cells
            return None
        if self._columns and len(cells) == len(self._columns):
            return _numbers({name: value for name, value in zip(self._columns, cells, strict=True) if value}) or None
        if bar := _RICH.match(line):
            epoch, done, total = int(bar[1]), float(bar[2]), float(bar[3])
        else:
            name, _, rest = line.partition(":")
            found = progress_of(rest) if re.fullmatch(r"\s*Epoch \d+", name) else {}
            if not found:
                return None
            epoch, done, total = int(name.split()[1]), found["done"], found["steps"]
        shown = {name: value for name, value in pairs(line.replace("v_num", "")).items() if name != "Epoch"}
        step = epoch * total + done
        return {"step": step - 1, "done": step, **shown} if done else None


READY: Mapping[str, Callable[[Sequence[str]], Parser]] = {
    "lightning": Lightning,
    "maxtext": MaxText,
    "torchrun": Torchrun,
    "transformers": Transformers,
}
