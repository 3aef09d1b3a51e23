"""Writes the keywords that editors and type checkers know: of `command`, of steps, and of Airflow's operator.

    python -m tests.project.names.keywords

They are read off the source of the dataclasses that state them; `tests.dagster_kinetic.resource.keywords` writes Dagster's.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kinetic_orchestration.api.steps import asked
from kinetic_orchestration.plan.declare import spec

ROOT = Path(__file__).parents[3]
OF_COMMAND = ROOT / "kinetic_orchestration" / "api" / "keywords.py"
OF_OPERATOR = ROOT / "airflow_kinetic" / "decorators" / "keywords.py"
OPERATOR = ROOT / "airflow_kinetic" / "operators" / "kinetic.py"
THE_CALL = {"python_callable", "script", "op_args", "op_kwargs"}
STEPS: dict[type, str] = {asked.Batch: "serve_batch", asked.Judging: "evaluate"}
NAMES_A_JOB = ("accelerator", "key", "partition_key")  # Dagster's decorators have them by themselves

HEAD = '''"""{says}

Written by `python -m tests.project.names.keywords` from `{source}`; a test compares them.
"""

from __future__ import annotations

{imports}
'''
OF_COMMAND_IMPORTS = """import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from kinetic_orchestration.plan.declare.choices import Choice
from kinetic_orchestration.plan.declare.cloud import CloudOptions
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.plan.declare.limits import Limits, Retry
from kinetic_orchestration.plan.declare.profile import Profile"""
OF_OPERATOR_IMPORTS = """from collections.abc import Mapping, Sequence

from kinetic_orchestration.api.keywords import OfTask
from kinetic_orchestration.plan.declare.choices import Choice
from kinetic_orchestration.program.trainers.parsers import Parser"""


def options() -> dict[str, str]:
    """The options of `run`, each with its annotation as it is written."""
    return {name: annotation for name, annotation in fields_of(spec.Options).items() if name in spec.OPTION_NAMES}


def fields_of(kind: type) -> dict[str, str]:
    """The fields that a dataclass states itself, each with its annotation as it is written."""
    body = _read(Path(inspect.getsourcefile(kind) or ""))
    [made] = [node for node in body if isinstance(node, ast.ClassDef) and node.name == kind.__name__]
    return {node.target.id: ast.unparse(node.annotation) for node in made.body if isinstance(node, ast.AnnAssign)}  # type: ignore[union-attr]


def parameters(function: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """The names and annotations as they are written in the source, of what may be given by name."""
    body = _read(Path(inspect.getsourcefile(inspect.unwrap(function)) or ""))
    [*_, made] = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == function.__name__]
    yield from _arguments(made)


def group(name: str, base: str, says: str, fields: dict[str, str]) -> str:
    """A typed dictionary of keywords, as source."""
    lines = [f"    {field}: {annotation}" for field, annotation in fields.items()]
    return "\n".join([f"\n\nclass {name}({base}, total=False):", f'    """{says}"""\n', *lines]) + "\n"


def of_command() -> str:
    named = options()
    text = HEAD.format(
        says="The options of `run`, and the keywords of steps, for type checkers alone.",
        source="plan/declare/spec.py` and\n`api/steps/asked.py",
        imports=OF_COMMAND_IMPORTS,
    )
    of_job = dict(item for item in named.items() if item[0] not in NAMES_A_JOB)
    of_task = dict(item for item in of_job.items() if item in operator().items())
    of_job = {name: annotation for name, annotation in of_job.items() if name not in of_task}
    text += group("OfTask", "TypedDict", "The options of a job that Airflow's operator takes as well.", of_task)
    text += group("OfJob", "OfTask", "The options of a job.", of_job)
    text += group("OfCommand", "OfJob", "The options of `command`.", {name: named[name] for name in NAMES_A_JOB})
    text += group("OfServed", "TypedDict", "The keywords of a step that asks a server.", fields_of(asked.Served))
    for kind, function in STEPS.items():
        text += group(f"Of{kind.__name__}", "OfServed", f"The keywords of `{function}` alone.", fields_of(kind))
        name = "".join(map(str.capitalize, function.split("_")))
        text += group(f"Of{name}", f"Of{kind.__name__}, OfCommand", f"The keywords of `{function}`.", {})
    return formatted(text, OF_COMMAND)


def operator() -> dict[str, str]:
    """The parameters of Airflow's operator other than its call, each with its annotation as it is written."""
    [kind] = [node for node in _read(OPERATOR) if isinstance(node, ast.ClassDef) and node.name == "KineticTPUOperator"]
    [made] = [node for node in kind.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    return {name: annotation for name, annotation in _arguments(made) if name not in THE_CALL}


def of_operator() -> str:
    text = HEAD.format(
        says="The parameters of the operator as keywords of its decorator.",
        source="operators/kinetic.py",
        imports=OF_OPERATOR_IMPORTS,
    )
    own = dict(item for item in operator().items() if item[0] in NAMES_A_JOB or item not in options().items())
    text += group("KineticOptions", "OfTask", "Keywords of `KineticTPUOperator` other than its function.", own)
    return formatted(text, OF_OPERATOR)


def formatted(text: str, path: Path) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(path), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def _read(path: Path) -> list[ast.stmt]:
    return ast.parse(path.read_text(encoding="utf-8")).body


def _arguments(made: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    for argument in (*made.args.args, *made.args.kwonlyargs):
        if argument.arg != "self":
            assert argument.annotation is not None
            yield argument.arg, ast.unparse(argument.annotation)


if __name__ == "__main__":
    OF_COMMAND.write_text(of_command(), encoding="utf-8")
    OF_OPERATOR.write_text(of_operator(), encoding="utf-8")
