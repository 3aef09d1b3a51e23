"""The advice for an exception due to a package that a host lacks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import dagster
import pytest

from kinetic_orchestration.host.prepare.missing_imports import explain


def notes_of(function: Callable[[], Any]) -> str:
    with pytest.raises(Exception) as raised:
        function()
    explain(raised.value, {})
    return "\n".join(getattr(raised.value, "__notes__", ()))


def test_of_what_an_orchestrator_lacks_on_a_host_its_user_is_told() -> None:
    told = notes_of(dagster.DagsterInstance.get)
    assert f"{__name__} uses Dagster, of which a host has no configuration" in told


def test_of_a_mistake_of_the_user_that_an_orchestrator_met_nothing_is_said() -> None:
    class OfTheUser(Exception): ...

    @dagster.op
    def raises() -> None:
        raise OfTheUser

    assert notes_of(raises) == ""
    assert notes_of(lambda: dagster.AssetKey.from_user_string(3)) == ""  # type: ignore[arg-type]


def test_of_an_orchestrator_that_is_not_there_the_module_that_imports_it_is_named() -> None:
    program = (
        "import sys; sys.modules['airflow'] = None; sys.path.insert(0, sys.argv[1])\n"
        "from kinetic_orchestration.host.prepare.missing_imports import explain\n"
        "try: from airflow import settings\n"
        "except ImportError as error: explain(error, {}); print(error.__notes__[0])"
    )
    done = subprocess.run([sys.executable, "-c", program, "."], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("__main__ uses Airflow, of which a host has no configuration")
