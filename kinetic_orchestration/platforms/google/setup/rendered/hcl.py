"""Writes Terraform's language as `terraform fmt` would: blocks of attributes and blocks. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

INDENT: Final = "  "


@dataclass(frozen=True, slots=True)
class Attribute:
    """`name = expression`; an expression may have several lines, which are indented as in the file's first column."""

    name: str
    expression: str


@dataclass(frozen=True, slots=True)
class Comment:
    """A line for readers, on its own."""

    text: str


@dataclass(frozen=True, slots=True)
class Block:
    """A block with its labels: `resource "google_storage_bucket" "store" { … }`."""

    kind: str
    labels: tuple[str, ...]
    body: tuple[Attribute | Block | Comment, ...]


def literal(value: bool | int | str | Sequence[str]) -> str:
    """Return a value as an expression, of which nothing is a template; a list of several has a line for each."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return listed([literal(each) for each in value])


def listed(expressions: Sequence[str]) -> str:
    """Return a list of expressions; one of several has a line for each."""
    if len(expressions) < 2:
        return f"[{''.join(expressions)}]"
    return "[\n" + "".join(f"{INDENT}{each},\n" for each in expressions) + "]"


def document(blocks: Sequence[Block | Comment]) -> str:
    """Return a file: a comment stands before its block, with no line between them."""
    lines: list[str] = []
    for before, block in zip((None, *blocks), blocks, strict=False):
        if lines and not isinstance(before, Comment):
            lines.append("")
        lines += [f"# {block.text}"] if isinstance(block, Comment) else _lines(block)
    return "\n".join(lines) + "\n"


def attributes(given: Sequence[Attribute]) -> str:
    """Return a file of attributes alone, such as terraform.tfvars."""
    return "".join(f"{line}\n" for line in _body(given))


def _lines(block: Block) -> Iterator[str]:
    head = " ".join((block.kind, *(json.dumps(label) for label in block.labels), "{"))
    if not block.body:
        yield f"{head}}}"
        return
    yield head
    for line in _body(block.body):
        yield f"{INDENT}{line}" if line else ""
    yield "}"


def _body(body: Sequence[Attribute | Block | Comment]) -> Iterator[str]:
    widths = _widths(body)
    for before, part, width in zip((None, *body), body, widths, strict=False):
        if isinstance(part, Comment):
            yield f"# {part.text}"
            continue
        if before is not None and isinstance(part, Block) and not isinstance(before, Comment):
            yield ""
        if isinstance(part, Block):
            yield from _lines(part)
        else:
            if isinstance(before, Block):
                yield ""
            first, *rest = part.expression.split("\n")
            yield f"{part.name:<{width}} = {first}"
            yield from rest


def _widths(body: Sequence[Attribute | Block | Comment]) -> list[int]:
    """The width of each attribute's name: neighbours of one line each are aligned."""
    widths = [0] * len(body)
    first = 0
    for index, part in enumerate(body):
        is_short = isinstance(part, Attribute) and "\n" not in part.expression
        if not is_short:
            first = index + 1
            widths[index] = len(part.name) if isinstance(part, Attribute) else 0
            continue
        longest = max(len(each.name) for each in body[first : index + 1] if isinstance(each, Attribute))
        widths[first : index + 1] = [longest] * (index + 1 - first)
    return widths
