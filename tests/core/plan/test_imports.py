"""Modules that a job does not load which has no use for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DECLARES = """
import sys
import kinetic_orchestration as kinetic

@kinetic.run(accelerator="v5e-1")
def train(): ...
"""
LOADS = """
from kinetic_orchestration.plan.configuration.settings import load
load({settings!r})
"""
FEW_HAVE = (
    "kinetic_orchestration.capacity",
    "kinetic_orchestration.plan.configuration.budgets",
    "kinetic_orchestration.plan.configuration.chip_shares",
    "kinetic_orchestration.plan.hardware.global_batch",
)
NOT_TO_DECLARE = (
    "datetime",
    "json",
    "kinetic_orchestration.plan.declare.checks.clouds",
    "kinetic_orchestration.plan.hardware.price_list",
    "kinetic_orchestration.plan.hardware.regions",
    *FEW_HAVE,
)


def loaded(program: str) -> set[str]:
    command = [sys.executable, "-c", f"{program}\nprint(*sorted(sys.modules))"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.split())


def test_to_declare_a_job_loads_no_prices_regions_shares_budgets_batches_or_checks_of_clouds() -> None:
    assert not {*NOT_TO_DECLARE} & loaded(DECLARES)


@pytest.mark.parametrize(
    ("variable", "text", "module"),
    [("KINETIC_BUDGETS", "train=5USD", "budgets"), ("KINETIC_CHIPS", "v5e=8", "chip_shares")],
)
def test_settings_load_what_reads_shares_and_budgets_if_they_have_some(
    tmp_path: Path, variable: str, text: str, module: str
) -> None:
    name, home = f"kinetic_orchestration.plan.configuration.{module}", {"KINETIC_HOME": str(tmp_path)}
    assert not {*FEW_HAVE} & loaded(DECLARES + LOADS.format(settings=home))
    assert name in loaded(DECLARES + LOADS.format(settings={**home, variable: text}))


RUNS = """
if __name__ == "__main__":
    assert train() is None
"""
FEW_NEED = ("capacity.races.", "capacity.warm.", "program.checkpoints.tier")


@pytest.mark.usefixtures("home")
def test_to_run_a_job_loads_nothing_of_races_kept_slices_or_copies_of_checkpoints(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(DECLARES.replace("v5e-1", "cpu") + RUNS + "    print(*sorted(sys.modules))\n")
    done = subprocess.run([sys.executable, program], check=True, capture_output=True, text=True, timeout=300)
    found = {name.removeprefix("kinetic_orchestration.") for name in done.stdout.splitlines()[-1].split()}
    assert "jobs.following.actions" in found
    assert not [name for name in found if name.startswith(FEW_NEED)]
