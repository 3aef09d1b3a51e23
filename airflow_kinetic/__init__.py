"""Kinetic jobs as Airflow tasks: `KineticTPUOperator` and `@task.kinetic`, deferrable, with live logs.

Responsible for Airflow's side alone: who a task is, deferring and resuming, the task's log, XCom, killing. What a
job is and how it runs is the core's. The public names are loaded when they are first used, because Airflow
imports this package for its provider info while Airflow itself is still starting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic_orchestration.protocol.system.lazy import lazily

if TYPE_CHECKING:
    from airflow_kinetic.decorators.kinetic import kinetic_task
    from airflow_kinetic.hooks.kinetic import KineticHook
    from airflow_kinetic.operators.inference import KineticEvaluateOperator, KineticServeBatchOperator
    from airflow_kinetic.operators.kinetic import KineticTPUOperator
    from airflow_kinetic.operators.reap import KineticReapOperator
    from airflow_kinetic.operators.release import KineticReleaseOperator
    from airflow_kinetic.sensors.kinetic import KineticJobSensor
    from airflow_kinetic.shared.parameters.later_data import KineticData
    from airflow_kinetic.triggers.kinetic import KineticJobTrigger

_HOMES = {
    "KineticData": "shared.parameters.later_data",
    "KineticEvaluateOperator": "operators.inference",
    "KineticHook": "hooks.kinetic",
    "KineticJobSensor": "sensors.kinetic",
    "KineticJobTrigger": "triggers.kinetic",
    "KineticReapOperator": "operators.reap",
    "KineticReleaseOperator": "operators.release",
    "KineticServeBatchOperator": "operators.inference",
    "KineticTPUOperator": "operators.kinetic",
    "kinetic_task": "decorators.kinetic",
}

__all__ = [
    "KineticData", "KineticEvaluateOperator", "KineticHook", "KineticJobSensor", "KineticJobTrigger",
    "KineticReapOperator", "KineticReleaseOperator", "KineticServeBatchOperator", "KineticTPUOperator", "kinetic_task",
]  # fmt: skip

__getattr__, __dir__ = lazily(__name__, _HOMES)
