"""The kinds of an asset in Dagster: the icons of its node in the graph, and a filter of the catalog.

They follow from its accelerator, its requirements and the imports of its code; nothing is imported or fetched for that.
"""

from __future__ import annotations

import contextlib
import dis
import types
from collections.abc import Callable, Iterator
from typing import Any

from kinetic_orchestration.plan.declare.choices import ways
from kinetic_orchestration.plan.declare.spec import Options, slice_of

MOST_KINDS = 3  # of one asset, by Dagster's own rule
ACCELERATORS = ("tpu", "gpu")
# What is imported or required, and the kind that Dagster has an icon or at least a name for; the first ones count most.
FRAMEWORKS = {
    "keras": "keras",
    "jax": "jax",
    "flax": "jax",
    "torch": "pytorch",
    "torch-xla": "pytorch",
    "lightning": "pytorch",
    "tensorflow": "tensorflow",
    "transformers": "huggingface",
}


def kinds_of(function: Callable[..., Any] | None, options: Options) -> set[str]:
    """The kinds of its accelerators, any of which may run it, and the frameworks that are known of the code; of a
    program, by its requirements alone. At most as many as Dagster takes.
    """
    kinds = [kind for kind in dict.fromkeys(slice_of(way).kind for way in ways(options)) if kind in ACCELERATORS]
    named = {options.keras_backend or "", *_required(options.requirements), *_imported(function, set())}
    frameworks = [framework for name, framework in FRAMEWORKS.items() if name in named]
    return set([*kinds, *dict.fromkeys(frameworks)][:MOST_KINDS])


def _required(requirements: Any) -> Iterator[str]:
    if not requirements:
        return
    from kinetic_orchestration.packaging.call.first_party import name_of
    from kinetic_orchestration.packaging.requirements import files

    with contextlib.suppress(Exception):  # errors in them are reported when they are needed
        asked = files.read(requirements)
        yield from [name_of(line.text) for line in files.lines_of(asked)]


def _imported(function: Any, seen: set[int]) -> Iterator[str]:
    """The packages that a function imports, or that it names; and so on for the functions of its module."""
    code, module = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    if code is None or id(code) in seen:
        return
    seen.add(id(code))
    for each in _nested(code):
        for instruction in dis.get_instructions(each):
            if instruction.opname == "IMPORT_NAME":
                yield _package(str(instruction.argval))
        for name in each.co_names:
            found = module.get(name)
            if isinstance(found, types.ModuleType):
                yield _package(found.__name__)
            elif getattr(found, "__globals__", None) is module:
                yield from _imported(found, seen)
            elif isinstance(found, type | types.FunctionType):
                yield _package(found.__module__ or "")


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _nested(each)


def _package(module: str) -> str:
    return module.partition(".")[0].replace("_", "-")
