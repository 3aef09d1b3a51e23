"""The GPUs of this machine: which exist, which of them this process may use, and the variables that select a program's.

NVIDIA's by NVML, which is part of the driver, else by `nvidia-smi`; slices of MIG as the driver lists them; AMD's by
`rocm-smi`. The texts and structures are those of the vendors' documentation. It starts nothing on a GPU, and knows no
jobs: leases are passed in.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic_orchestration.host.process.topology import own_device
from kinetic_orchestration.plan.hardware.accelerators import Slice

if TYPE_CHECKING:
    import ctypes

NVIDIA = "NVIDIA"
AMD = "AMD"
LONGEST_ANSWER = 20.0  # of a vendor's tool; without nvidia-persistenced it wakes the driver first
FRESH = 10.0  # seconds for which a list is cached: waiting jobs poll it
TOOLS = ("nvidia-smi", "rocm-smi")
SIGNS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")  # of NVIDIA's driver, of the one of WSL, of AMD's
LIBRARY = "libnvidia-ml.so.1"


class Gpu(NamedTuple):
    vendor: str
    number: str  # by which the vendor's tools count; of a slice of MIG, that of its GPU
    uuid: str  # "" if the vendor's tool does not show it
    model: str
    is_slice: bool = False  # of MIG: a program can use one of them, and no other GPU with it

    @property
    def id(self) -> str:
        return self.uuid or f"{self.vendor}-{self.number}"

    def __str__(self) -> str:
        return f"{self.model} ({f'{self.uuid} on {self.number}' if self.is_slice else self.number})"


class Found(NamedTuple):
    gpus: tuple[Gpu, ...] = ()
    troubles: tuple[str, ...] = ()  # errors of a driver or a tool in place of a list


_known: dict[tuple[str, ...], tuple[float, Found]] = {}


def visible(environ: Mapping[str, str]) -> Found:
    """The GPUs that this process may use, by the variables of CUDA, ROCm and NVIDIA's containers."""
    found = listed(environ)
    return found._replace(gpus=tuple(_visible(found.gpus, environ)))


def listed(environ: Mapping[str, str]) -> Found:
    """All that the drivers show."""
    path = environ.get("PATH", "")
    tools = tuple(shutil.which(name, path=path) or "" for name in TOOLS)
    at, known = _known.get(tools, (0.0, Found()))
    if at and time.monotonic() - at < FRESH:
        return known
    nvidia = _by_nvml() or (_asked(tools[0], ["-L"], read_nvidia_smi) if tools[0] else Found())
    amd = _asked(tools[1], ROCM_ARGUMENTS, read_rocm_smi) if tools[1] else Found()
    found = Found(nvidia.gpus + amd.gpus, nvidia.troubles + amd.troubles)
    _known[tools] = time.monotonic(), found
    return found


# ---- output of the vendors' tools ------------------------------------------------------------------------------

# nvidia-smi -L, https://docs.nvidia.com/deploy/nvidia-smi and https://docs.nvidia.com/datacenter/tesla/mig-user-guide:
#   GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
#     MIG 1g.5gb      Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
_GPU = re.compile(r"GPU (\d+): (.*) \(UUID: ([^)]+)\)\s*")
_MIG = re.compile(r"\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: ([^)]+)\)\s*")

# https://rocm.docs.amd.com/projects/rocm_smi_lib: an object for each card; names differ in case between releases.
ROCM_ARGUMENTS = ["--showproductname", "--showuniqueid", "--json"]


def read_nvidia_smi(output: str) -> list[Gpu]:
    found: list[Gpu] = []
    whole: Gpu | None = None
    for line in output.splitlines():
        if gpu := _GPU.fullmatch(line):
            whole = Gpu(NVIDIA, gpu[1], gpu[3], gpu[2])
            found.append(whole)
        elif whole is not None and (part := _MIG.fullmatch(line)):
            if whole in found:  # CUDA no longer offers it as a whole
                found.remove(whole)
            found.append(Gpu(NVIDIA, whole.number, part[3], f"{whole.model} MIG {part[1]}", is_slice=True))
    return found


def read_rocm_smi(output: str) -> list[Gpu]:
    found = []
    for name, fields in json.loads(output).items():
        if not (card := re.fullmatch(r"card(\d+)", name)):
            continue
        field = {key.lower(): str(value) for key, value in fields.items()}
        number = field.get("unique id", "")
        uuid = f"GPU-{int(number, 16):016x}" if re.fullmatch("0x[0-9a-fA-F]+", number) else ""
        model = field.get("card series") or field.get("card model") or "GPU"
        found.append(Gpu(AMD, card[1], uuid, model if AMD in model else f"{AMD} {model}"))
    return sorted(found, key=lambda gpu: int(gpu.number))


def _asked(tool: str, arguments: Sequence[str], read: Any) -> Found:
    try:
        done = subprocess.run(
            [tool, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONGEST_ANSWER
        )
        if done.returncode == 0:
            return Found(tuple(read(done.stdout)))
        said = (done.stdout.strip() or done.stderr.strip() or f"exit code {done.returncode}").splitlines()[0]
    except (OSError, subprocess.SubprocessError, ValueError, AttributeError) as error:
        said = f"{type(error).__name__}: {error}"
    return Found(troubles=(f"{tool}: {said[:300]}",))


class _Nvml:
    """The few calls of NVML that are needed, https://docs.nvidia.com/deploy/nvml-api."""

    def __init__(self) -> None:
        import ctypes  # loaded only if a GPU is wanted

        self._c = ctypes
        self._library = ctypes.CDLL(LIBRARY)
        self.call("nvmlInit_v2")

    def call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._library, name)(*arguments):
            raise OSError(f"{name} answers {code}")

    def number(self, name: str, *arguments: Any) -> int:
        found = self._c.c_uint()
        self.call(name, *arguments, self._c.byref(found))
        return found.value

    def text(self, name: str, device: ctypes.c_void_p) -> str:
        found = self._c.create_string_buffer(96)
        self.call(name, device, found, self._c.c_uint(96))
        return found.value.decode("utf-8", "replace")

    def device(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        found = self._c.c_void_p()
        self.call(name, *arguments, self._c.byref(found))
        return found

    def gpu(self, index: int) -> list[Gpu]:
        whole = self.device("nvmlDeviceGetHandleByIndex_v2", self._c.c_uint(index))
        model = self.text("nvmlDeviceGetName", whole)
        mode, pending = self._c.c_uint(), self._c.c_uint()
        try:
            self.call("nvmlDeviceGetMigMode", whole, self._c.byref(mode), self._c.byref(pending))
        except (OSError, AttributeError):  # a GPU without MIG, or an older driver
            mode.value = 0
        if not mode.value:
            return [Gpu(NVIDIA, str(index), self.text("nvmlDeviceGetUUID", whole), model)]
        found = []
        for number in range(self.number("nvmlDeviceGetMaxMigDeviceCount", whole)):
            try:
                part = self.device("nvmlDeviceGetMigDeviceHandleByIndex", whole, self._c.c_uint(number))
            except OSError:  # no slice with this index
                continue
            name = self.text("nvmlDeviceGetName", part)
            name = name if "MIG" in name else f"{model} MIG"
            found.append(Gpu(NVIDIA, str(index), self.text("nvmlDeviceGetUUID", part), name, is_slice=True))
        return found


def _by_nvml() -> Found | None:
    """The GPUs by NVML; None if it is missing or does not answer: then the tool reports the reason."""
    try:
        nvml = _Nvml()
    except (OSError, AttributeError):
        return None
    found, troubles = [], []
    try:
        for index in range(nvml.number("nvmlDeviceGetCount_v2")):
            try:
                found += nvml.gpu(index)
            except OSError as error:  # it has fallen off the bus, or belongs to another user
                troubles.append(f"GPU {index}: {error}")
    except (OSError, AttributeError):
        return None
    finally:
        with contextlib.suppress(OSError, AttributeError):
            nvml.call("nvmlShutdown")
    return Found(tuple(found), tuple(troubles))


# ---- which of them this process may use ------------------------------------------------------------------------


def _visible(found: Sequence[Gpu], environ: Mapping[str, str]) -> list[Gpu]:
    nvidia = [gpu for gpu in found if gpu.vendor == NVIDIA]
    amd = [gpu for gpu in found if gpu.vendor == AMD]
    nvidia = _of_container(nvidia, environ.get("NVIDIA_VISIBLE_DEVICES"))
    amd = _named(amd, environ.get("ROCR_VISIBLE_DEVICES"))
    alias = None if nvidia else environ.get("CUDA_VISIBLE_DEVICES")  # which HIP reads too
    # HIP numbers the GPUs that ROCm's runtime shows.
    numbered = [gpu._replace(number=str(index)) for index, gpu in enumerate(amd)]
    chosen = _named(numbered, environ.get("HIP_VISIBLE_DEVICES", alias))
    return [*_named(nvidia, environ.get("CUDA_VISIBLE_DEVICES")), *(amd[int(gpu.number)] for gpu in chosen)]


def _named(found: list[Gpu], value: str | None) -> list[Gpu]:
    """The GPUs that a variable selects, as CUDA reads it: entries after an unknown name are ignored. Numbers are the
    tools'."""
    if value is None:
        return found
    chosen: list[Gpu] = []
    for name in (part.strip() for part in value.split(",")):
        fitting = _of_name(found, name)
        if not fitting:
            break
        chosen += [gpu for gpu in fitting if gpu not in chosen]
    return chosen


def _of_name(found: Iterable[Gpu], name: str) -> list[Gpu]:
    if name.isdecimal():
        return [gpu for gpu in found if gpu.number == str(int(name))]
    return [gpu for gpu in found if name and gpu.uuid.startswith(name)]


def _of_container(found: list[Gpu], value: str | None) -> list[Gpu]:
    """The GPUs that the container variable selects. It is for container runtimes. Inside a container it has been
    applied already, and numbers count the GPUs outside: if all of them exist here, applying it again changes nothing.
    "void" does not restrict the GPUs here.
    """
    names = [name.strip() for name in (value or "").split(",") if name.strip()]
    if names == ["none"]:
        return []
    chosen = [_of_name(found, name) for name in names]
    if not names or names[0] in ("all", "void") or not all(chosen):
        return found
    return list(dict.fromkeys(gpu for gpus in chosen for gpu in gpus))


# ---- what suits a job ------------------------------------------------------------------------------------------


class Choice(NamedTuple):
    """Holds the kinds of GPU of the machine that are enough for a job, the best first; it gets some of one kind."""

    needed: int
    kinds: tuple[tuple[Gpu, ...], ...]

    def take(self, leased: Collection[str]) -> tuple[Gpu, ...]:
        """The GPUs to use now; none if the job has to wait."""
        for kind in self.kinds:
            free = [gpu for gpu in kind if gpu.id not in leased]
            if len(free) >= self.needed:
                return tuple(free[: self.needed])
        return ()


def choice(slice_: Slice, found: Iterable[Gpu]) -> Choice:
    """The GPUs that suit a slice. A slice of MIG suits a process that wants any GPU; it is no GPU of a named model."""
    fitting = [gpu for gpu in found if slice_.whichever or _is_a(gpu, slice_.generation)]
    kinds = [
        tuple(gpu for gpu in fitting if (gpu.vendor, gpu.is_slice) == kind)
        for kind in ((NVIDIA, False), (AMD, False), (NVIDIA, True))
        if not kind[1] or slice_.chips_per_host == 1
    ]
    return Choice(slice_.chips, tuple(kind for kind in kinds if len(kind) >= slice_.chips))


def _is_a(gpu: Gpu, generation: str) -> bool:
    """Return True if the driver's name matches: "a100-80gb" is "NVIDIA A100-SXM4-80GB"."""
    words = generation.removesuffix("-mega").split("-")  # the driver calls Google's H100 Mega an H100
    return not gpu.is_slice and all(re.search(rf"\b{word}\b", gpu.model, re.IGNORECASE) for word in words)


def described(found: Iterable[Gpu]) -> str:
    """The number of GPUs of each model, for users."""
    models = [gpu.model for gpu in found]
    return ", ".join(f"{models.count(model)} × {model}" for model in dict.fromkeys(models))


# ---- the environment of a program ------------------------------------------------------------------------------


def environment(taken: Sequence[Gpu], host: int, hosts: int) -> dict[str, str]:
    """The variables of one of the processes that share `taken`.

    As under torchrun each of them sees all, and LOCAL_RANK selects its own: programs for several GPUs rely on that, and
    so does NCCL. The other frameworks get variables of their own. A slice of MIG is seen alone, because CUDA shows a
    process no more than one.
    """
    first = taken[0]
    if first.is_slice:
        alone = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"} if hosts > 1 else {}
        return {"CUDA_VISIBLE_DEVICES": taken[host if hosts > 1 else 0].uuid, **alone}
    if first.vendor == AMD:
        places = ",".join(map(str, range(len(taken))))
        seen = {
            "ROCR_VISIBLE_DEVICES": ",".join(gpu.uuid or gpu.number for gpu in taken),
            "HIP_VISIBLE_DEVICES": places,
            "CUDA_VISIBLE_DEVICES": places,  # which HIP and torch read as the other one
        }
    else:
        numbers = ",".join(gpu.number for gpu in taken)
        seen = {"CUDA_VISIBLE_DEVICES": numbers, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # in which the tools count
    return seen if hosts == 1 else {**seen, **own_device(host)}


@functools.cache
def hidden(path: str) -> str:
    """Describe, for users, the GPUs of this machine that a job on the CPU does not use; read once, and only if there is
    a sign of a driver: most machines have none, and would load libraries in vain.
    """
    if not any(map(os.path.exists, SIGNS)) and not any(shutil.which(tool, path=path) for tool in TOOLS):
        return ""
    return described(listed({"PATH": path}).gpus)
