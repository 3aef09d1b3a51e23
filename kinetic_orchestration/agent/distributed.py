"""Joins the hosts of a slice: the environment each framework expects, and JAX's own start.

`jax.distributed` must be initialised before the first computation, so a hook does it right after the first
`import jax`. Code that initialises it again with the same size and place is let through; code that asks for
another size hears it. Knows nothing of jobs or records: addresses and ports are handed to it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing would cost an agent a tenth of its start
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

JOIN = "KINETIC_JOIN"

# Left behind by an earlier topology or by the machine that submitted, these hang an initialisation or point it
# elsewhere: of libtpu, of JAX and its cluster detection, of torch's launchers, of Keras.
STALE = (
    *("MEGASCALE_", "TPU_", "JAX_COORDINATOR", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_IDS"),
    *("SLURM_", "OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_", "PET_", "KERAS_DISTRIBUTION_"),
)
STALE_NAMES = frozenset(
    {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK"}
    | {"GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "JAX_PARTITION_INDEX", "JAX_SLICE_INDEX"}
    | {"TF_CONFIG", "CLOUD_TPU_TASK_ID", "CLUSTER_SPEC", "JOB_COMPLETION_INDEX", JOIN}
)
# Of the machine, not of a topology.
KEPT = frozenset({"TPU_LIBRARY_PATH", "TPU_LOG_DIR", "TPU_MIN_LOG_LEVEL", "TPU_STDERR_LOG_LEVEL"})


def is_stale(name: str) -> bool:
    return name not in KEPT and (name in STALE_NAMES or name.startswith(STALE))


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


def real(devices: int, visible: str | None) -> dict[str, str]:
    """Of this machine's GPUs, or of those that were visible to the submitter, as many as were asked for."""
    chosen = visible.split(",") if visible else [str(number) for number in range(devices)]
    return {"CUDA_VISIBLE_DEVICES": ",".join(chosen[:devices])}


def environment(
    index: int, hosts: int, addresses: list[str], ports: dict[str, int], *, join: bool = True
) -> dict[str, str]:
    """What each framework needs to find the other hosts. One host needs nothing.

    Without `join` nothing is joined by itself; the variables are there for code that does it.
    """
    if hosts == 1:
        return {}
    import json

    leader = addresses[0]
    workers = [f"{address}:{ports['tensorflow'] + n}" for n, address in enumerate(addresses)]
    coordinator = f"{leader}:{ports['jax']}"
    found = {
        "JAX_COORDINATOR_ADDRESS": coordinator,
        "JAX_NUM_PROCESSES": str(hosts),
        "JAX_PROCESS_ID": str(index),
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": coordinator,
        "KERAS_DISTRIBUTION_NUM_PROCESSES": str(hosts),
        "KERAS_DISTRIBUTION_PROCESS_ID": str(index),
        "MASTER_ADDR": leader,
        "MASTER_PORT": str(ports["torch"]),
        "WORLD_SIZE": str(hosts),
        "RANK": str(index),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}),
    }
    if leader.startswith("127."):  # else JAX's coordinator and gloo listen where other machines can reach them
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        found["JAX_COORDINATOR_BIND_ADDRESS"] = coordinator
        found["GLOO_SOCKET_IFNAME"] = found["TP_SOCKET_IFNAME"] = loopback
    if join:
        found[JOIN] = json.dumps({"coordinator": coordinator, "hosts": hosts, "index": index})
    return found


def install() -> None:
    """Hook the first `import jax`, if this is the first Python process of its host: its own workers do not join."""
    if JOIN not in os.environ:
        return
    import json

    join = json.loads(os.environ[JOIN])
    if not join or join.setdefault("process", os.getpid()) != os.getpid():
        return
    os.environ[JOIN] = json.dumps(join)  # so that children see that it is taken; after an exec it is still ours
    sys.meta_path.insert(0, _AfterImport(join))


class _AfterImport:
    """A finder that leaves finding to the others, and acts when what they found has been loaded."""

    def __init__(self, join: dict[str, Any]) -> None:
        self._join = join
        self._asking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "jax" or self._asking or os.getpid() != self._join["process"]:  # a forked worker has our hooks
            return None
        import importlib.util

        self._asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                sys.meta_path.remove(self)
                _join_jax(module, self._join)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _join_jax(jax: Any, join: dict[str, Any]) -> None:
    import functools

    initialize = jax.distributed.initialize
    joined = getattr(jax.distributed, "is_initialized", lambda: True)
    initialize(join["coordinator"], join["hosts"], join["index"])

    @functools.wraps(initialize)
    def initialize_again(
        coordinator_address: Any = None, num_processes: Any = None, process_id: Any = None, *_: Any, **__: Any
    ) -> None:
        asked = (join["index"] if process_id is None else process_id, num_processes or join["hosts"])
        if asked != (join["index"], join["hosts"]):
            raise RuntimeError(
                f"jax.distributed is initialised already, as process {join['index']} of {join['hosts']}; this code "
                f"asks for process {asked[0]} of {asked[1]}. Leave the arguments out, or run the job with "
                "distributed=False and initialise it yourself."
            )
        if not joined():  # after a shutdown
            initialize(join["coordinator"], join["hosts"], join["index"])

    jax.distributed.initialize = initialize_again
