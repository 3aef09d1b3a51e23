"""A task takes the options of any cloud; zones are those of VMs."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_kinetic import KineticTPUOperator
from airflow_kinetic.shared.parameters.declared import options_of
from kinetic_orchestration import Compute, Kubernetes, TpuVm
from kinetic_orchestration.errors import ConflictingSettings

GIVEN: dict[str, Any] = {"accelerator": "v5e-8", "project_id": None, "labels": None, "backend": "kubernetes"}


def test_a_task_takes_the_options_of_a_cluster() -> None:
    asked = Kubernetes(clusters=["prod"], queue="tpus")
    task = KineticTPUOperator(
        task_id="train", python_callable=print, accelerator="v5e-8", cloud=asked, backend="kubernetes"
    )
    assert task.given()["cloud"] == asked
    assert options_of({**GIVEN, "cloud": asked}, ()).cloud == asked


def test_zones_are_laid_into_the_options_of_cloud_tpu() -> None:
    assert options_of({**GIVEN, "cloud": None}, "a, b").cloud == TpuVm(zones=["a", "b"])
    assert options_of({**GIVEN, "cloud": TpuVm(network="lan")}, ["a"]).cloud == TpuVm(zones=["a"], network="lan")
    assert options_of({**GIVEN, "cloud": Compute(hosts=2)}, ["a"]).cloud == Compute(zones=["a"], hosts=2)


def test_zones_and_options_of_a_cluster_are_refused_where_the_task_is_written() -> None:
    with pytest.raises(ConflictingSettings, match=r"zones= and cloud=Kubernetes\(…\) exclude each other"):
        KineticTPUOperator(
            task_id="train", python_callable=print, accelerator="v5e-8", zones=["a"], cloud=Kubernetes(queue="tpus")
        )
