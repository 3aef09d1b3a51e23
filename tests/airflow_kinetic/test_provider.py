"""The package as Airflow's provider, and what it costs and says when it is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from airflow_kinetic.get_provider_info import get_provider_info

from .conftest import Airflow


def test_airflow_lists_the_provider_and_task_kinetic_is_kinetic_task(airflow: Airflow, home: Path) -> None:
    done = airflow("provider", home)
    assert done["known"]
    assert done["same"]


def test_every_module_that_the_provider_names_is_there() -> None:
    info = get_provider_info()
    modules = [
        module for kind in ("operators", "triggers") for entry in info[kind] for module in entry["python-modules"]
    ]
    modules += [entry["class-name"].rpartition(".")[0] for entry in info["task-decorators"]]
    root = Path(__file__).parents[2]
    assert all((root / f"{module.replace('.', '/')}.py").is_file() for module in modules)


def test_an_older_airflow_gets_one_sentence(tmp_path: Path) -> None:
    # No real Airflow 2 can be installed beside this one: a package that says its version stands for it.
    (tmp_path / "airflow.py").write_text("__version__ = '2.11.0'\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from airflow_kinetic import kinetic_task"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    last = done.stderr.strip().splitlines()[-1]
    assert last == "ImportError: airflow_kinetic needs Airflow 3.3 or newer, and this is Airflow 2.11.0: upgrade it."


def test_importing_the_package_imports_no_airflow() -> None:
    """Airflow imports it for its provider info while it starts itself."""
    program = "import sys, airflow_kinetic.get_provider_info; sys.exit('airflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
