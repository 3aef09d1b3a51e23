"""Joins the hosts of a slice: the environment each framework expects, and JAX's own start.

`jax.distributed` must be initialised before the first computation, so a hook does it right after the first
`import jax`. Code that initialises it again with the same size and place is let through; code that asks for
another size hears it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
from typing import Any

# Left behind by an earlier topology or by the machine that submitted, these hang an initialisation.
STALE = ("MEGASCALE_", "TPU_", "JAX_COORDINATOR", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_IDS")
STALE_NAMES = frozenset(
    {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK"}
    | {"TF_CONFIG", "CLOUD_TPU_TASK_ID", "CLUSTER_SPEC", "KINETIC_JOIN"}
)


def is_stale(name: str) -> bool:
    return name in STALE_NAMES or name.startswith(STALE)


def emulated(devices: int) -> dict[str, str]:
    """What makes one process on CPU look like a host with so many devices.

    With more than one CPU device a process and few cores, XLA's thread pool is smaller than the number of
    participants of a collective, and the participants wait for each other for ever; NPROC sizes that pool.
    """
    return {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "NPROC": str(max(32, 4 * devices)),
        "TPU_SKIP_MDS_QUERY": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


def environment(index: int, hosts: int, addresses: list[str], ports: dict[str, int]) -> dict[str, str]:
    """What each framework needs to find the other hosts. One host needs nothing."""
    if hosts == 1:
        return {}
    leader = addresses[0]
    workers = [f"{address}:{ports['tensorflow'] + n}" for n, address in enumerate(addresses)]
    coordinator = f"{leader}:{ports['jax']}"
    return {
        "KINETIC_JOIN": json.dumps({"parent": os.getpid(), "coordinator": coordinator, "hosts": hosts, "index": index}),
        "JAX_COORDINATOR_ADDRESS": coordinator,
        "JAX_NUM_PROCESSES": str(hosts),
        "JAX_PROCESS_ID": str(index),
        "MASTER_ADDR": leader,
        "MASTER_PORT": str(ports["torch"]),
        "WORLD_SIZE": str(hosts),
        "RANK": str(index),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}),
    }


def install() -> None:
    """Hook the first `import jax` of this process, if it is the one that its host's agent started."""
    join = json.loads(os.environ.get("KINETIC_JOIN", "null"))
    if join and join["parent"] == os.getppid():
        sys.meta_path.insert(0, _AfterImport(join))


class _AfterImport(importlib.abc.MetaPathFinder):
    def __init__(self, join: dict[str, Any]) -> None:
        self._join = join

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != "jax":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                _join_jax(module, self._join)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _join_jax(jax: Any, join: dict[str, Any]) -> None:
    import functools

    initialize = jax.distributed.initialize
    initialize(join["coordinator"], join["hosts"], join["index"])

    @functools.wraps(initialize)
    def initialize_again(
        coordinator_address: Any = None, num_processes: Any = None, process_id: Any = None, *_: Any, **__: Any
    ) -> None:
        for asked, is_ in ((num_processes, join["hosts"]), (process_id, join["index"])):
            if asked not in (None, is_):
                raise RuntimeError(
                    f"jax.distributed is initialised already, as process {join['index']} of {join['hosts']}; this code "
                    f"asks for process {process_id} of {num_processes}. Leave the arguments out, or run the job "
                    "with distributed=False and initialise it yourself."
                )

    jax.distributed.initialize = initialize_again
    jax._src.distributed.initialize = initialize_again
