"""Shared fixtures of the Dagster adapter's tests."""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

NewInstance = Callable[..., AbstractContextManager[dg.DagsterInstance]]


@pytest.fixture(scope="session")
def new_instance() -> Iterator[NewInstance]:
    """Makes instances of Dagster, each a copy of one: to create the databases takes longer than most tests."""
    with tempfile.TemporaryDirectory() as made:
        with dg.instance_for_test(temp_dir=made, overrides=_databases(made)):
            pass

        @contextmanager
        def new(overrides: Mapping[str, Any] | None = None) -> Iterator[dg.DagsterInstance]:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                shutil.copytree(made, folder, dirs_exist_ok=True)
                with dg.instance_for_test(
                    temp_dir=folder, overrides={**_databases(folder), **(overrides or {})}
                ) as instance:
                    yield instance

        yield new


def _databases(folder: str) -> dict[str, Any]:
    """The default storages, but with one database of events instead of one for each run."""
    storages = {"runs": "SqliteRunStorage", "event_log": "ConsolidatedSqliteEventLogStorage"}
    return {
        f"{name.removesuffix('s')}_storage": {
            "module": f"dagster._core.storage.{name}",
            "class": kind,
            "config": {"base_dir": str(Path(folder, "history"))},
        }
        for name, kind in {**storages, "schedules": "SqliteScheduleStorage"}.items()
    }


@pytest.fixture
def instance(new_instance: NewInstance) -> Iterator[dg.DagsterInstance]:
    with new_instance() as instance:
        yield instance


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """Contexts of direct calls close their databases when they are collected: at the interpreter's end that is too late,
    and told as an error.
    """
    yield
    gc.collect()
