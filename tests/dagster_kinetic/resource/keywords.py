"""Writes `dagster_kinetic/resource/keywords.py`: the keywords of the decorators, for editors and type checkers.

    python -m tests.dagster_kinetic.resource.keywords

They are read off the source of the installed Dagster.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import dagster as dg

from dagster_kinetic import _compat
from tests.project.names.keywords import ROOT, formatted, group, parameters

PATH = ROOT / "dagster_kinetic" / "resource" / "keywords.py"
REFUSED = {"compute_fn", "required_resource_keys"}
# Names of Dagster that are not public, by what they stand for.
ALIASES = {
    "CoercibleToAssetKey": "dg.AssetKey | str | Sequence[str]",
    "CoercibleToAssetKeyPrefix": "str | Sequence[str]",
    "CoercibleToAssetDep": "dg.AssetKey | str | Sequence[str] | dg.AssetSpec | dg.AssetsDefinition | dg.AssetDep",
    "UserConfigSchema": "Any",
    "RawMetadataMapping": "Mapping[str, Any]",
    "ArbitraryMetadataMapping": "Mapping[str, Any]",
    "AbstractSet": "Set[Any]",
}
PLAIN = {"str", "bool", "int", "float", "object", "set", "dict", "list", "type", "None", "Any"}
PLAIN |= {"Mapping", "Sequence", "Iterable", "Callable"}

HEAD = '''"""The keywords of the decorators, for editors and type checkers alone: nothing imports this while it runs.

Written by `python -m tests.dagster_kinetic.resource.keywords`; a test compares it with the Dagster that is installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import dagster as dg

from kinetic_orchestration.api.keywords import OfBatch, OfJob, OfJudging
'''


class Public(ast.NodeTransformer):
    """Rewrites an annotation of Dagster's with what is public."""

    def visit_Constant(self, node: ast.Constant) -> Any:
        return self.visit(ast.parse(node.value, mode="eval").body) if isinstance(node.value, str) else node

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        name = node.value.id if isinstance(node.value, ast.Name) else ""
        if name == "Optional":
            return ast.BinOp(self.visit(node.slice), ast.BitOr(), ast.Constant(None))
        if name == "Union" and isinstance(node.slice, ast.Tuple):
            first, *rest = (self.visit(each) for each in node.slice.elts)
            for each in rest:
                first = ast.BinOp(first, ast.BitOr(), each)
            return first
        if name == "AbstractSet":
            return ast.Subscript(ast.Name("AbstractSet"), self.visit(node.slice))
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id in PLAIN:
            return node
        if node.id in ALIASES:
            return ast.parse(ALIASES[node.id], mode="eval").body
        return ast.parse(f"dg.{node.id}" if hasattr(dg, node.id) else "Any", mode="eval").body


def public(annotation: str) -> str:
    return ast.unparse(Public().visit(ast.parse(annotation, mode="eval").body))


def of_dagster(function: Callable[..., Any]) -> dict[str, str]:
    shown = {name: public(annotation) for name, annotation in parameters(function) if name not in REFUSED}
    return {**shown, **dict.fromkeys(sorted(_compat.hidden_keywords(function) - shown.keys()), "Any")}


def generated() -> str:
    text = HEAD + group(
        "OfCall", "OfJob", "The options of a job that is no asset of its own.", {"partition_key": "str | None"}
    )
    for name, function in (("OfAsset", dg.asset), ("OfMultiAsset", dg.multi_asset), ("OfOp", dg.op)):
        says = f"The keywords of `dagster.{function.__name__}`, and the options of its job."
        text += group(name, "OfJob", says, of_dagster(function))
    for name in ("OfBatch", "OfJudging"):
        text += group(f"{name}Call", f"{name}, OfCall", "The same, and the keywords of the step.", {})
    return formatted(text, PATH)


if __name__ == "__main__":
    PATH.write_text(generated(), encoding="utf-8")
