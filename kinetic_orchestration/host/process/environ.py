"""Composes the start parameters of a host's program: its environment, its place, and the paths of its outcome.

Pure: computed from the assignment, the task, and this process's environment. Independent of processes and the store.
"""

from __future__ import annotations

import os

from kinetic_orchestration.host.process import pipes, topology
from kinetic_orchestration.protocol.report import trace_ids

READER = "kinetic_orchestration.program.trainers.command"

TYPE_CHECKING = False  # typing would cost an agent a tenth of its start
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from kinetic_orchestration.host.machine.machine import Machine
    from kinetic_orchestration.host.prepare.prepare import Ready
    from kinetic_orchestration.protocol.assignment import Assignment
    from kinetic_orchestration.protocol.wire.task import Task


def start_message(
    at: Assignment,
    task: Task,
    ready: Ready,
    addresses: Sequence[str],
    ports: Mapping[str, int],
    extra: Mapping[str, str],
    files: Mapping[str, str],
    agent: str,
    environ: Mapping[str, str],
    machine: Machine,
) -> dict[str, Any]:
    """Return the one message to the program's process.

    `addresses` are those of all hosts, `ports` host 0's, `extra` more of the environment, `files` the program's own
    (outcome, events, notice, stacks), `agent` where this package lies on the host.
    """
    env = {
        **_of_chips(environ, machine),
        **(machine.network(task) if at.hosts > 1 and not topology.is_loopback(addresses[0]) else {}),
        **{name: value for name, value in task.env.items() if not topology.is_stale(name)},
        **topology.environment(
            at.host, at.hosts, addresses, ports,
            join=task.distributed, slices=task.slices, processes=task.processes,
            several=task.accelerator.kind == "gpu" and not task.emulated and task.devices > 1,
        ),
        **_devices(at, task, environ),
        **extra,
        topology.DEVICES: str(task.devices),
        "KINETIC_JOB_ID": at.job,
        "KINETIC_HOST_INDEX": str(at.host),
        "KINETIC_HOST_COUNT": str(at.hosts),
        "KINETIC_OUTPUT_DIR": task.output_dir,
        "KINETIC_CHECKPOINT_DIR": task.checkpoint_dir,
        "KINETIC_PARTITION_KEY": task.partition_key,
        "KINETIC_EVENTS": files["events"],
        "KINETIC_NOTICE": files["notice"],
        "KINETIC_FENCE": f"{at.attempt} {at.store}",
        "KINETIC_COSTS": f"{task.usd_per_hour!r} {_stands_in(task)}",
        **_traced(at, task.profile),
        "TRACEPARENT": task.env.get("TRACEPARENT") or trace_ids.traceparent(at.job, at.attempt, "running"),
        **_elastic(task),
    }  # fmt: skip
    if task.argv:
        env |= _of_command(task, ready, files["stacks"], agent, environ)
    return {
        "drop": [name for name in environ if _misleads(name, machine)],
        "env": env,
        "cwd": ready.cwd,
        "path": ready.path,
        "site": agent,
        "argv": _read(ready) if task.argv and at.host == 0 and task.env.get(topology.METRICS) else ready.argv,
        "name": task.name,
        "payload": ready.payload,
        "digest": "" if task.payload is None else task.payload.digest,
        "data": ready.data,
        "home": at.home if "://" not in at.store else None,  # where the payload may be known already
        "outcome": files["outcome"],
        "stacks": files["stacks"],
        "value": at.host == 0,
        "beside": task.beside,
        "debug": task.debug if at.host == 0 else 0,
    }


def _read(ready: Ready) -> list[str]:
    """Return the command with the process around it that reads its numbers. `-I` leaves out the hook of a command's
    Pythons: the slice is joined by the command's own first process.
    """
    return [ready.python, "-I", "-c", pipes.program_of(READER), *ready.argv]


def _elastic(task: Task) -> dict[str, str]:
    """Return what a training of the program is to assume of its checkpoints and its batch."""
    found = {"KINETIC_RESHARD": "1" if task.reshard else "", "KINETIC_GLOBAL_BATCH": str(task.global_batch or "")}
    return {name: value for name, value in found.items() if value}


def _of_chips(environ: Mapping[str, str], machine: Machine) -> dict[str, str]:
    """Return the variables by which the machine's chips are found, which the program's process was started without."""
    found = {name: value for name, value in environ.items() if name.startswith(machine.keeps)}
    return {name: value for name, value in found.items() if topology.is_stale(name)}


def _misleads(name: str, machine: Machine) -> bool:
    """Return True for a variable of this process that would lead the program astray."""
    return name in machine.hides or (topology.is_stale(name) and not name.startswith(machine.keeps))


def _devices(at: Assignment, task: Task, environ: Mapping[str, str]) -> dict[str, str]:
    given = {**environ, **task.env}
    if task.emulated:
        return topology.emulated(task.devices) | topology.threads(_cores(), at.hosts, given)
    if task.accelerator.kind == "tpu":
        return topology.on_accelerator("tpu", given)
    import json

    env: dict[str, str] = json.loads(at.devices)["env"] if at.devices else _of_vm(at)
    if topology.OWN in env and "KERAS_TORCH_DEVICE" not in given:
        env["KERAS_TORCH_DEVICE"] = f"cuda:{env[topology.OWN]}"
    return {**env, **topology.on_accelerator("gpu", given), **topology.threads(_cores(), task.processes, given)}


def _stands_in(task: Task) -> str:
    """Return "emulated" if ordinary processors stand in for the requested hardware; a CPU stands in for nothing."""
    return "emulated" if task.emulated and task.accelerator.kind != "cpu" else ""


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _of_vm(at: Assignment) -> dict[str, str]:
    """Return the variables of one of the processes that share a VM, which has a GPU for each: as on this machine."""
    if at.processes == 1:
        return {}
    seen = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(at.processes))), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return {**seen, **topology.own_device(at.host % at.processes)}


def _traced(at: Assignment, profile: Mapping[str, Any]) -> dict[str, str]:
    if not profile or (profile["hosts"] != "all" and at.host != 0):
        return {}
    import json

    return {topology.TRACE: json.dumps(profile)}


def _of_command(task: Task, ready: Ready, stacks: str, agent: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which a command's Pythons find their project, join their slice and show stacks."""
    path = [os.path.join(agent, *topology.HOOK), *ready.path]
    inherited = [] if task.environment is not None else [environ.get("PYTHONPATH", "")]
    env = {
        "KINETIC_SITE": agent,
        "KINETIC_STACKS": stacks,
        "PYTHONPATH": os.pathsep.join(filter(None, [*path, *inherited])),
    }
    programs, places = os.path.dirname(ready.python), environ.get("PATH", os.defpath)
    if task.environment is not None or programs not in places.split(os.pathsep):
        env["PATH"] = programs + os.pathsep + places  # a script's own `python` is the job's
    return env
