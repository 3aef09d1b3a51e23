"""The environment by which a program and its frameworks find the other hosts of the slice.

Holds the names of the variables that carry it, and tells which variables of an earlier topology are stale. All of it
is computed from what is handed in. A host imports it before its program runs, so it needs no more than `sys`;
`distributed` is what acts on these variables within the program.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would cost an agent a tenth of its start
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

JOIN = "KINETIC_JOIN"
EXPECT = "KINETIC_EXPECT"
DEVICES = "KINETIC_DEVICES"  # of this host, as frameworks count them
OWN = "KINETIC_OWN_DEVICE"  # of a program that shares its machine: which of the devices that it sees is its own
TRACE = "KINETIC_TRACE"  # the requested profile, as JSON
METRICS = "KINETIC_METRICS"  # how a command's numbers are read, as JSON
ALLOW = "KINETIC_ALLOW_CPU"  # the user's word that a program may run without the accelerator it is on

# On machines of their own: where JAX looks for its coordinator on a TPU VM, and libtpu between slices; the others are
# free there.
PORTS = {"jax": 8476, "torch": 8490, "megascale": 8080, "tensorflow": 8500}

HOOK = (*__name__.split(".")[:-1], "hook")  # next to this module: the folder that is first on a command's PYTHONPATH

# Left behind by an earlier topology or by the machine that submitted, these hang an initialisation or point it
# elsewhere: of libtpu, of JAX and its cluster detection, of torch's launchers, of Keras.
STALE = (
    *("MEGASCALE_", "TPU_", "JAX_COORDINATOR", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_IDS"),
    *("SLURM_", "OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_", "PET_", "KERAS_DISTRIBUTION_"),
)
STALE_NAMES = frozenset(
    {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK"}
    | {"NNODES"}
    | {"GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "JAX_PARTITION_INDEX", "JAX_SLICE_INDEX"}
    | {"TF_CONFIG", "CLOUD_TPU_TASK_ID", "CLUSTER_SPEC", "JOB_COMPLETION_INDEX", JOIN, EXPECT, TRACE, OWN}
    | {"JAX_CUDA_VISIBLE_DEVICES", "JAX_ROCM_VISIBLE_DEVICES"}
)
# These describe the machine, not a topology.
KEPT = frozenset({"TPU_LIBRARY_PATH", "TPU_LOG_DIR", "TPU_MIN_LOG_LEVEL", "TPU_STDERR_LOG_LEVEL"})


def is_stale(name: str) -> bool:
    return name not in KEPT and (name in STALE_NAMES or name.startswith(STALE))


def expected(environ: Mapping[str, str]) -> str:
    """Return "tpu" or "gpu" on a host whose program expects its accelerator; "" on others.

    The variable also has the process that has taken it, see `join`.
    """
    return environ.get(EXPECT, "").partition(" ")[0]


def emulated(devices: int) -> dict[str, str]:
    """Make one process on CPU look like a host with so many devices.

    With more than one CPU device a process and few cores, XLA's thread pool is smaller than the number of
    participants of a collective, and the participants wait for each other for ever; NPROC sizes that pool.
    """
    return {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "NPROC": str(max(32, 4 * devices)),
        "TPU_SKIP_MDS_QUERY": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "ROCR_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "-1",
        "ACCELERATE_USE_CPU": "true",  # else each host is alone for Accelerate, and for Hugging Face's Trainer
    }


def threads(cores: int, sharing: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return how many threads each of the programs that share a machine computes with: else all take all cores."""
    return {} if sharing == 1 or "OMP_NUM_THREADS" in given else {"OMP_NUM_THREADS": str(max(1, cores // sharing))}


def on_accelerator(kind: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a host with TPUs or GPUs: a framework that would compute without fails at its import.

    libtpu finds its chips and its slice itself. With the platform named, JAX raises libtpu's error where it would else
    fall back to the CPU.
    """
    if given.get(ALLOW, "") not in ("", "0") or given.get("JAX_PLATFORMS"):
        return {}
    return {EXPECT: kind} if kind == "gpu" else {EXPECT: kind, "JAX_PLATFORMS": "tpu,cpu"}


def own_device(number: int) -> dict[str, str]:
    """Return the variables of a program that shares its machine and sees all devices: which of them is its own. torch
    has LOCAL_RANK for that."""
    own = str(number)
    return {OWN: own, "JAX_CUDA_VISIBLE_DEVICES": own, "JAX_ROCM_VISIBLE_DEVICES": own}


def environment(
    index: int,
    hosts: int,
    addresses: Sequence[str],
    ports: Mapping[str, int],
    *,
    join: bool = True,
    slices: int = 1,
    processes: int = 1,
    several: bool = False,
) -> dict[str, str]:
    """Return the variables by which each framework finds the other hosts.

    On one host only torch needs any: code that asks for a process group gets one of one process, at a port that is
    free. If that one has `several` GPUs it is told of no place among the processes of its machine, since launchers take
    that for the word that there are others.

    Without `join` nothing is joined by itself; the variables are there for code that does it. So many `processes` of
    them share a machine, one after the other.
    """
    from kinetic_orchestration.protocol.system import kernel  # a program begins before it is needed

    if hosts == 1:
        alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
        alone |= {"GLOO_SOCKET_IFNAME": kernel.LOOPBACK, "TP_SOCKET_IFNAME": kernel.LOOPBACK}
        return alone if several else alone | _of_torch(0, 1, 1)
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
        **_of_torch(index, hosts, processes),
        "TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}),
    }
    if is_loopback(leader):  # else JAX's coordinator and gloo listen where other machines can reach them
        found["JAX_COORDINATOR_BIND_ADDRESS"] = coordinator
        found["GLOO_SOCKET_IFNAME"] = found["TP_SOCKET_IFNAME"] = kernel.LOOPBACK
    if slices > 1:  # within a slice, libtpu needs nothing but the machine's metadata
        found["MEGASCALE_COORDINATOR_ADDRESS"] = f"{leader}:{ports['megascale']}"
        found["MEGASCALE_NUM_SLICES"] = str(slices)
        found["MEGASCALE_SLICE_ID"] = str(index // (hosts // slices))
    if join:
        found[JOIN] = json.dumps({"coordinator": coordinator, "hosts": hosts, "index": index})
    return found


def _of_torch(index: int, hosts: int, processes: int) -> dict[str, str]:
    """Return the variables that torchrun sets, and those of its command line: NODE_RANK and NNODES. Lightning believes
    RANK only beside TORCHELASTIC_RUN_ID. TORCHELASTIC_USE_AGENT_STORE is left out: no agent of torch provides a store.
    """
    everywhere = {"RANK": index, "WORLD_SIZE": hosts, "LOCAL_RANK": index % processes, "LOCAL_WORLD_SIZE": processes}
    nodes = hosts // processes
    groups = dict.fromkeys(("GROUP_RANK", "NODE_RANK"), index // processes)
    groups |= dict.fromkeys(("GROUP_WORLD_SIZE", "NNODES"), nodes)
    role = {"ROLE_RANK": index, "ROLE_WORLD_SIZE": hosts}
    return {name: str(value) for name, value in (everywhere | groups | role).items()} | {
        "ROLE_NAME": "default", "TORCHELASTIC_RUN_ID": "kinetic"
    }  # fmt: skip


def is_loopback(address: str) -> bool:
    """Return true for an address of this machine itself; a name that begins like one is none."""
    parts = address.split(".")
    return parts[0] == "127" and len(parts) == 4 and all(part.isdecimal() for part in parts)
