"""Names that DAG files and tests import of Airflow, wherever the release has them that is tested."""

from __future__ import annotations

import importlib
from typing import Any

from airflow import __version__

VERSION = tuple(int(part) for part in __version__.split(".")[:2])

HOMES = {
    "Asset": ("airflow.sdk", "airflow.datasets:Dataset"),
    "AssetEvent": ("airflow.models.asset", "airflow.models.dataset:DatasetEvent"),
    "DAG": ("airflow.sdk", "airflow"),
    "DagBag": ("airflow.dag_processing.dagbag:BundleDagBag", "airflow.models.dagbag"),
    "DagSerialization": (
        "airflow.serialization.serialized_objects", "airflow.serialization.serialized_objects:SerializedDAG",
    ),
    "TaskDeferred": ("airflow.sdk.exceptions", "airflow.exceptions"),
    "XComModel": ("airflow.models.xcom", "airflow.models.xcom:XCom"),
    "conf": ("airflow.sdk.configuration", "airflow.configuration"),
    "task": ("airflow.sdk", "airflow.decorators"),
    "task_group": ("airflow.sdk", "airflow.decorators"),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    for home in HOMES.get(name, ()):
        module, _, other = home.partition(":")
        try:
            return getattr(importlib.import_module(module), other or name)
        except (ImportError, AttributeError):
            continue
    raise AttributeError(name)
