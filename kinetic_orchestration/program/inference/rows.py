"""The prompts of a batch: read from a list or from files of JSON lines, checked, keyed, and put in an order.

A row's key is the digest of the row, the model and the parameters, so a row whose parameter has changed is another row.
Pure, but for the reading of files.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinetic_orchestration.errors import UsageError

LONGEST_LINE = 16 << 20
SHOWN = 8  # broken rows that a message names
_FIELDS = frozenset({"prompt", "messages", "custom_id", "parameters"})
_OURS = ("prompt", "messages", "stream", "stream_options")  # of a request, so no parameters


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt."""

    number: int  # its line in the file, or its place in the list, from 1; over all files
    key: str
    given: Mapping[str, Any]  # `prompt` or `messages`; {} for a broken row
    parameters: Mapping[str, Any]
    custom_id: str | None = None
    error: str = ""  # why it is not asked

    @property
    def is_chat(self) -> bool:
        return "messages" in self.given

    @property
    def size(self) -> int:
        """The characters of its texts, by which rows are ordered."""
        return _length(self.given.get("messages", self.given.get("prompt", "")))


@dataclass(frozen=True, slots=True)
class Found:
    """A row as it was read: a value, or why there is none."""

    where: str  # for users: "line 7 of prompts.jsonl", "prompt 7"
    value: Any = None
    error: str = ""


def found_in(prompts: Any) -> Iterator[Found]:
    """Yield what a list of prompts contains, or a file of JSON lines, or several, or the files of a folder.

    Raises:
        UsageError: There is no such file.
    """
    if isinstance(prompts, (str, os.PathLike)):
        yield from _in_file(os.fspath(prompts))
    elif _are_paths(prompts):
        for path in prompts[FILES]:
            yield from _in_file(path)
    else:
        for number, value in enumerate(prompts, 1):
            yield Found(f"prompt {number}", value)


FILES = "files"
"""The key of the files of prompts in what a host is given, which else are a list of prompts."""


def _are_paths(prompts: Any) -> bool:
    return isinstance(prompts, Mapping) and set(prompts) == {FILES}


def _in_file(path: str) -> Iterator[Found]:
    if os.path.isdir(path):
        inside = sorted(name for name in os.listdir(path) if name.endswith((".jsonl", ".json", ".ndjson")))
        if not inside:
            raise UsageError(f"{path} has no files of prompts: their names end in .jsonl")
        for name in inside:
            yield from _in_file(os.path.join(path, name))
        return
    name = os.path.basename(path)
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(_lines(file), 1):
                if line.strip():
                    yield _parsed(f"line {number} of {name}", line)
    except FileNotFoundError:
        raise UsageError(f"{path}, the file of prompts, does not exist") from None


def _lines(file: Any) -> Iterator[bytes]:
    while line := file.readline(LONGEST_LINE + 1):
        whole = line
        while len(whole) > LONGEST_LINE and not whole.endswith(b"\n"):  # the rest of a line that is refused anyway
            if not (whole := file.readline(LONGEST_LINE + 1)):
                break
        yield line


def _parsed(where: str, line: bytes) -> Found:
    if len(line) > LONGEST_LINE:
        return Found(where, error=f"it has more than {LONGEST_LINE >> 20} MiB")
    try:
        return Found(where, json.loads(line))
    except (ValueError, RecursionError) as error:
        return Found(where, error=f"it is not JSON ({_bounded(error)})")


def check(found: Iterable[Found], on_bad_row: str) -> list[Found]:
    """Return the rows with an error in each that cannot be asked.

    Raises:
        UsageError: There are none; or one is bad and `on_bad_row` is "stop".
    """
    rows = [one if one.error else Found(one.where, one.value, _wrong_with(one.value)) for one in found]
    if not rows:
        raise UsageError("there are no prompts: the list or the file is empty")
    bad = [one for one in rows if one.error]
    if bad and on_bad_row == "stop":
        told = "; ".join(f"{one.where}: {one.error}" for one in bad[:SHOWN])
        more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
        raise UsageError(
            f"{len(bad)} of {len(rows)} prompts cannot be asked: {told}{more}. Repair them, or let the rest go on with "
            "on_bad_row='keep', which writes a row with the reason for each of these"
        )
    return rows


def _wrong_with(value: Any) -> str:
    """Return why a row cannot be asked; "" if it can."""
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, Mapping):
        return f"a prompt is a text or an object, and this is a {type(value).__name__}"
    if unknown := sorted(str(name) for name in set(value) - _FIELDS):
        return f"there is no field {unknown[0]!r}: a row has {', '.join(sorted(_FIELDS))}"
    if ("prompt" in value) == ("messages" in value):
        return "it has both prompt and messages" if "prompt" in value else "it has neither prompt nor messages"
    if wrong := check_parameters(value.get("parameters") or {}):
        return wrong
    if not isinstance(value.get("custom_id"), (str, int, type(None))):
        return "its custom_id is no text"
    return _wrong_with_text(value) or _wrong_with_json(value)


def _wrong_with_json(value: Mapping[str, Any]) -> str:
    try:
        json.dumps(dict(value), sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        return f"it cannot be written as JSON ({_bounded(error)})"
    return ""


def _wrong_with_text(value: Mapping[str, Any]) -> str:
    if "prompt" in value:
        prompt = value["prompt"]
        is_text = isinstance(prompt, str) or (isinstance(prompt, list) and all(isinstance(one, int) for one in prompt))
        return "" if is_text and prompt else "its prompt is no text and no list of tokens, or empty"
    messages = value["messages"]
    whole = isinstance(messages, list) and messages and all(isinstance(one, dict) and "role" in one for one in messages)
    return "" if whole else "its messages are no list of objects with a role, or empty"


def check_parameters(parameters: Any) -> str:
    """Return why these cannot be parameters of a request; "" if they can."""
    if not isinstance(parameters, Mapping):
        return f"parameters are an object, and these are a {type(parameters).__name__}"
    for name in _OURS:
        if name in parameters:
            return f"{name} is no parameter: a row's prompt or messages are its own, and answers are not streamed"
    try:
        json.dumps(dict(parameters))
    except (TypeError, ValueError) as error:
        return f"parameters cannot be written as JSON ({_bounded(error)})"
    return ""


def keyed(found: Sequence[Found], model: str, parameters: Mapping[str, Any]) -> list[Row]:
    """Return the rows with their keys, the longest first.

    Args:
        found: What was read and checked.
        model: What identifies the model, and what of its engine's options changes its answers.
        parameters: Those of all rows, which a row's own override.
    """
    base = hashlib.sha256(model.encode())
    times: Counter[str] = Counter()
    rows = []
    for number, one in enumerate(found, 1):
        value = _row_of(one)
        given: dict[str, Any] = {name: value[name] for name in ("prompt", "messages") if name in value}
        own = {**parameters, **(value.get("parameters") or {})}
        custom_id = value.get("custom_id")
        custom_id = None if custom_id is None else str(custom_id)
        error = f"{one.where}: {one.error}" if one.error else ""
        digest = base.copy()
        digest.update(json.dumps([given, own, custom_id, error], sort_keys=True).encode())
        key = digest.hexdigest()[:32]
        times[key] += 1
        if times[key] > 1:  # the same row again: it is answered as often as it is there
            key = f"{key}-{times[key]}"
        rows.append(Row(number, key, given, own, custom_id, error))
    return sorted(rows, key=lambda row: (-row.size, row.number))


def _row_of(found: Found) -> dict[str, Any]:
    if found.error:
        return {}
    return {"prompt": found.value} if isinstance(found.value, str) else dict(found.value)


def batch_of(rows: Iterable[Row]) -> str:
    """Return the digest of all rows in their order."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(row.key.encode() + b"\n")
    return digest.hexdigest()[:32]


def _length(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_length, value.values()))
    return sum(map(_length, value)) if isinstance(value, (list, tuple)) else 1


def _bounded(error: BaseException) -> str:
    return str(error)[:200]
