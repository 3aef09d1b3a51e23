"""Inputs and outputs of a job in OpenLineage's terms; empty if Airflow has no OpenLineage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from kinetic_orchestration.plan.declare.data import Data


class DatasetName(NamedTuple):
    """A data set's name, by OpenLineage's naming: a bucket or a file system, and a path in it."""

    namespace: str
    name: str


def lineage_of(given: Any, output: str) -> Any:
    """An `OperatorLineage` of all `Data` in what was given, and of the folder that was written; or None."""
    try:
        from airflow.providers.common.compat.openlineage.facet import Dataset
        from airflow.providers.openlineage.extractors import OperatorLineage  # type: ignore[import-not-found]
    except ImportError:
        return None
    inputs = [place_of(data.path) for data in data_in(given)]
    outputs = [place_of(output)] if output else []
    return OperatorLineage(
        inputs=[Dataset(*place) for place in dict.fromkeys(inputs)], outputs=[Dataset(*place) for place in outputs]
    )


def place_of(address: str) -> DatasetName:
    parts = urlsplit(address)
    if parts.scheme in ("", "file"):
        return DatasetName("file", parts.path)
    return DatasetName(f"{parts.scheme}://{parts.netloc}", parts.path.strip("/") or "/")


def data_in(value: Any) -> Iterator[Data]:
    if isinstance(value, Data):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from data_in(entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from data_in(entry)
