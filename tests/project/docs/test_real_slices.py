"""Examples say all that a real slice takes, and their steps on a CPU stay possible with it."""

from __future__ import annotations

import ast

import pytest

from tests.support.pages import ROOT, programs

pytestmark = pytest.mark.fast

EXAMPLES = {path.name: path.read_text("utf-8") for path in sorted((ROOT / "example_pipelines").glob("*.py"))}
PAGES = ["docs/training/llm.md", "docs/training/frameworks.md"]
SLICES = {"pretrain_maxtext.py", "training_gemma.py", "whole_llm.py"}  # whose other jobs take a slice


BY_VARIABLES = [
    name for name, text in EXAMPLES.items() if "KINETIC_STORE=gs://" in text and "KineticResource(" not in text
]


@pytest.mark.parametrize("name", BY_VARIABLES)
def test_who_gives_a_project_and_a_bucket_names_the_deployment_without_which_both_are_refused(name: str) -> None:
    assert "KINETIC_DEPLOYMENT" in EXAMPLES[name]


def on_a_cpu(text: str) -> list[str]:
    """Return the calls that ask for a CPU and do not say that it is this machine's: Cloud TPU has none."""
    found = []
    for call in (each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Call)):
        said = {word.arg: word.value.value for word in call.keywords if isinstance(word.value, ast.Constant)}
        if said.get("accelerator") == "cpu" and said.get("backend") != "local":
            found.append(ast.unparse(call))
    return found


@pytest.mark.parametrize("name", sorted(SLICES))
def test_the_jobs_beside_those_on_a_slice_that_need_none_are_not_sent_to_a_cloud_that_refuses_them(name: str) -> None:
    assert not on_a_cpu(EXAMPLES[name])


@pytest.mark.parametrize("file", ["export_model.py", "fetch_gemma.py"])
def test_programs_that_work_on_a_bucket_from_a_cpu_say_that_it_is_this_machines(file: str) -> None:
    [text] = [found[file] for page in PAGES if file in (found := programs(page))]
    assert not on_a_cpu(text)
