"""The declared parameters of a task, and the errors in them that no rendering can change: reported while the DAG is
parsed.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from airflow_kinetic._compat import XComArg
from airflow_kinetic.shared.location import listed
from airflow_kinetic.shared.parameters.arguments import is_final, untemplated
from kinetic_orchestration.errors import ConflictingSettings, UsageError
from kinetic_orchestration.plan.declare.backend_choice import check_backend
from kinetic_orchestration.plan.declare.checks.functions import check_function
from kinetic_orchestration.plan.declare.checks.options import check_declared, check_options, check_part
from kinetic_orchestration.plan.declare.choices import OF_CAPACITY, from_text, non_default
from kinetic_orchestration.plan.declare.cloud import Compute, TpuVm
from kinetic_orchestration.plan.declare.spec import OPTION_NAMES, Options

UNKNOWN: Final = object()  # what another task gives, or is another one for each index
FLAGS = ("deferrable", "durable", "cancel_on_kill", "get_logs", "wait")
ON_CLEAR = ("rerun", "adopt")


@functools.cache
def declared_with(operator: type) -> Mapping[str, Any]:
    """Return the parameters of an operator's own `__init__`, each with its default."""
    parameters = inspect.signature(operator.__init__).parameters.values()  # type: ignore[misc]
    given = {parameter.name: parameter.default for parameter in parameters}
    return MappingProxyType({name: default for name, default in given.items() if name not in ("self", "kwargs")})


def options_of(given: Mapping[str, Any], zones: str | Sequence[str]) -> Options:
    """The parameters of a task by the core's names for them."""
    cloud = given["cloud"]
    if named := listed(zones):
        if not isinstance(cloud, TpuVm | Compute | None):
            raise ConflictingSettings(
                f"zones= and cloud={type(cloud).__name__}(…) exclude each other: zones are those of VMs. Leave one of "
                "them out"
            )
        cloud = dataclasses.replace(cloud or TpuVm(), zones=named)
    same = {name: given[name] for name in given.keys() & OPTION_NAMES}
    for name in ("capacity", "regions"):
        if isinstance(same.get(name), (str, list, tuple)):
            same[name] = listed(same[name]) or None  # a template may have rendered it to a text
    for name in OF_CAPACITY:
        if same.get(name) in (None, ""):
            same.pop(name, None)
        else:
            same[name] = from_text(name, same[name])
    return Options(**{**same, "project": given["project_id"], "cloud": cloud, "labels": given["labels"] or None})


def _check_program(given: Mapping[str, Any], unknown: Collection[str]) -> None:
    if {"python_callable", "script"}.isdisjoint(unknown) and (given["python_callable"] is None) == (
        given["script"] is None
    ):
        raise UsageError("a task runs either python_callable= or script=: give one of them")
    if {"op_kwargs", "script"}.isdisjoint(unknown) and given["script"] is not None and given["op_kwargs"]:
        raise UsageError("a script has no keyword arguments: give op_args=['--lr', '1e-3'], or variables with env=")
    reads = given["metrics"] is not None or given["metrics_file"]
    if {"metrics", "metrics_file", "script"}.isdisjoint(unknown) and given["script"] is None and reads:
        raise UsageError("metrics= reads the numbers of a script: a function calls current().log_metrics()")


def check(given: Mapping[str, Any], templated: Collection[str]) -> None:
    """`given`: all parameters of a `KineticTPUOperator`, and any task's `outlets`; `templated`: those that are rendered
    later.
    """
    unknown = {name for name, value in given.items() if value is UNKNOWN}
    _check_program(given, unknown)
    if given["python_callable"] is not UNKNOWN and given["python_callable"] is not None:
        check_function(given["python_callable"])
    for flag in FLAGS:
        if flag not in unknown and not isinstance(given[flag], bool):
            raise UsageError(f"{flag} is {given[flag]!r}, and should be True or False")
    if "on_clear" not in unknown and given["on_clear"] not in ON_CLEAR:
        raise UsageError(f"on_clear is {given['on_clear']!r}: it can be 'rerun' or 'adopt'")
    _check_together(given)
    for path, data in (given["volumes"] if isinstance(given["volumes"], Mapping) else {}).items():
        if isinstance(data, XComArg):
            raise UsageError(
                f"the volume {path!r} is {data!r}, which is known only when the task begins: volumes= takes Data. Pass "
                "it as an argument: the function receives its path"
            )
    pace = given["poll_interval"]
    if pace is not UNKNOWN and (not isinstance(pace, (int, float)) or isinstance(pace, bool) or not pace >= 0):
        raise UsageError(f"poll_interval is {pace!r}: it is a number of seconds")
    for name, example in (("op_args", "[…]"), ("op_kwargs", "{…}"), ("env", "{…}"), ("labels", "{…}")):
        if is_final(value := given[name]):
            untemplated(value, name, example)
    unknown |= {name for name in templated if name in given and not is_final(given[name])}
    if "accelerator" in unknown:  # whether it has several processes depends on that
        unknown.add("processes")
    known = Options()  # what stands for the rest until it is rendered
    stand_ins = {name: getattr(known, name) for name in unknown & OPTION_NAMES}
    zones = () if "zones" in unknown else given["zones"]
    project = None if "project_id" in unknown else given["project_id"]
    options = options_of({**given, **stand_ins, "project_id": project}, zones)
    if "accelerator" in unknown:
        check_part({name: value for name, value in non_default(options).items() if name != "accelerator"})
    else:
        check_declared(check_backend(check_options(options), bought_later=True))


def _check_together(given: Mapping[str, Any]) -> None:
    """Check combinations of parameters that are each valid alone."""
    if given["deferrable"] is True and given["durable"] is False:
        raise ConflictingSettings(
            "deferrable=True and durable=False exclude each other: between two of its legs a deferred task is only "
            "found again by what durable keeps. Leave durable out, or wait on a worker with deferrable=False"
        )
    if given["on_clear"] == "adopt" and given["durable"] is False:
        raise ConflictingSettings(
            "on_clear='adopt' and durable=False exclude each other: what a cleared task had is only found again by "
            "what durable keeps"
        )
    if given["wait"] is False and given.get("outlets"):
        raise ConflictingSettings(
            "wait=False and outlets exclude each other: the task succeeds before anything is made, and the outlets' "
            "events would say that it was. Give them to the KineticJobSensor that waits for the job"
        )
