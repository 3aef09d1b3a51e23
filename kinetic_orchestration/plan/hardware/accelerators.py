"""Facts about accelerators as a table: a name becomes a Slice.

Two vocabularies name the same hardware. Keras Kinetic's number counts chips; `parse` reads it. Cloud TPU's
counts TensorCores for v2, v3, v4 and v5p and chips for v5e and v6e; `from_accelerator_type` reads that.
Both lead to one truth: generation, topology, chips, hosts.

Where they disagree on hardware, Cloud TPU wins: its v6e-8 is one host of eight chips, while the node pools of
Kinetic make it of two hosts of four, which `on_hosts` gives.

This module does not know what is free, what this machine holds, or what anything costs.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple

from kinetic_orchestration.errors import UnknownAccelerator

Kind = Literal["tpu", "gpu", "cpu"]
Api = Literal["tpu-vm", "gke", "local"]

Way = Literal["on-demand", "spot", "flex-start", "reservation"]  # of buying
ON_DEMAND: Way = "on-demand"
SPOT: Way = "spot"
FLEX_START: Way = "flex-start"
RESERVATION: Way = "reservation"

_OF_SEVERAL = 4  # chips of each host of a TPU slice of several


@dataclass(frozen=True, slots=True)
class Slice:
    """The hardware of one attempt, resolved: what every other module asks instead of reading names."""

    name: str
    kind: Kind
    generation: str
    topology: str
    chips: int
    hosts: int
    chips_per_host: int
    accelerator_type: str
    runtime_version: str
    hbm_gib_per_chip: int
    peak_bf16_tflops_per_chip: float
    api: Api
    devices_per_chip: int = 1
    spot: bool = False
    whichever: bool = False  # no model was named: where there are GPUs, those are meant

    @property
    def devices_per_host(self) -> int:
        """The number of devices of one host in a framework: v2, v3 and TPU7x show every TensorCore as a device."""
        return self.chips_per_host * self.devices_per_chip

    @property
    def machines(self) -> int:
        """The number of its machines: processes that share one are hosts, too."""
        return 1 if self.api == "local" else self.hosts

    @property
    def devices(self) -> int:
        return self.chips * self.devices_per_chip

    @property
    def shape(self) -> str:
        """Its hosts and chips in words, without its location."""
        if self.kind == "tpu":
            hosts = f"{self.crew()} × {_count(self.chips_per_host, 'chip')}"
            return f"{self.name}: {_count(self.chips, 'chip')} ({self.topology}), {hosts}"
        what = "GPU" if self.kind == "gpu" else "device"
        each = f" × {_count(self.chips_per_host, what)}" if self.machines > 1 else ""
        return f"{self.name}: {_count(self.chips, what)}, {self.crew()}{each}"

    def crew(self, slices: int = 1) -> str:
        """The hosts, or the processes of one host, that run the function on that number of slices, in words."""
        if self.kind == "tpu" or self.machines > 1:
            return _count(self.hosts * slices, "host")
        return f"1 host, {self.hosts} processes" if self.hosts > 1 else "1 host"

    def __str__(self) -> str:
        text = self.shape
        if self.kind == "tpu":
            text += f", Cloud TPU {self.accelerator_type}" if self.accelerator_type else ", not in the Cloud TPU API"
        return f"{text}, spot" if self.spot else text

    def to_json(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Slice:
        """Reads what `to_json` wrote; what a later version may have added is left out."""
        return cls(**{field.name: data[field.name] for field in fields(cls) if field.name in data})


class _Tpu(NamedTuple):
    """One generation: what its slices have in common, and a topology for each size it comes in."""

    name: str
    aliases: tuple[str, ...]
    default: int
    cloud_name: str  # the part before the dash in Cloud TPU's own names; "" where its API does not reach
    cloud_largest: int  # chips of the largest slice that Cloud TPU has a name for
    cores_counted: int  # TensorCores by which one chip counts in Cloud TPU's own names
    largest_host: int  # chips; a larger slice is made of hosts with `_OF_SEVERAL`
    devices_per_chip: int
    runtime_version: str
    hbm_gib: int
    bf16_tflops: float
    zones_up_to: int  # chips of the largest slice for which the zones are known
    zones: tuple[str, ...]  # defaults that settings override, never a gate
    topologies: Mapping[int, str]

    def slice(self, chips: int) -> Slice:
        per_host = chips if chips <= self.largest_host else _OF_SEVERAL
        on_cloud_tpu = chips <= self.cloud_largest
        return Slice(
            name=f"{self.name}-{chips}",
            kind="tpu",
            generation=self.name,
            topology=self.topologies[chips],
            chips=chips,
            hosts=chips // per_host,
            chips_per_host=per_host,
            accelerator_type=f"{self.cloud_name}-{chips * self.cores_counted}" if on_cloud_tpu else "",
            runtime_version=self.runtime_version,
            hbm_gib_per_chip=self.hbm_gib,
            peak_bf16_tflops_per_chip=self.bf16_tflops,
            api="tpu-vm" if on_cloud_tpu else "gke",
            devices_per_chip=self.devices_per_chip,
        )


class _Gpu(NamedTuple):
    name: str
    gke_label: str
    counts: tuple[int, ...]
    memory_gib: int
    bf16_tflops: float  # dense; 0 where the hardware has no bf16
    link: str

    def slice(self, count: int) -> Slice:
        name = self.name if count == 1 else f"{self.name}x{count}"
        return _one_host(name, "gpu", self.name, count, self.memory_gib, self.bf16_tflops, "gke")


def _one_host(
    name: str, kind: Kind, generation: str, devices: int, memory_gib: int, bf16_tflops: float, api: Api
) -> Slice:
    """The devices of one host, in no topology."""
    return Slice(
        name=name,
        kind=kind,
        generation=generation,
        topology="",
        chips=devices,
        hosts=1,
        chips_per_host=devices,
        accelerator_type="",
        runtime_version="",
        hbm_gib_per_chip=memory_gib,
        peak_bf16_tflops_per_chip=bf16_tflops,
        api=api,
    )


def _by_chips(topologies: str) -> dict[int, str]:
    return {math.prod(_sides(topology)): topology for topology in topologies.split()}


def _sides(topology: str) -> tuple[int, ...]:
    return tuple(int(side) for side in topology.split("x"))


_FLAT = "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16"
# From one cube of 4x4x4 on, slices are made of cubes; the shapes are those that AI-Hypercomputer/xpk lists.
_CUBES = """
2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x4x12 4x8x8 4x4x20 4x8x12 4x4x28 8x8x8 4x12x12 4x8x20 4x4x44 8x8x12
4x4x52 4x8x28 4x12x20 8x8x16 4x4x68 8x12x12 4x4x76 8x8x20 4x12x28 4x8x44 4x4x92 8x12x16 4x20x20 4x8x52
12x12x12 8x8x28 4x4x116 8x12x20 4x4x124 8x16x16 4x12x44 4x8x68 4x20x28 12x12x16 4x4x148 4x8x76 4x12x52
8x16x20 4x4x164 8x12x28 4x4x172 8x8x44 12x12x20 4x8x92 4x4x188 12x16x16 4x28x28 8x20x20 4x12x68 8x8x52
4x4x212 12x12x24 4x20x44 8x16x28 4x12x76 4x8x116 4x4x236 12x16x20 4x4x244 4x8x124 12x12x28 16x16x16
4x20x52 8x12x44 8x8x68 4x12x92 8x20x28 12x16x24 4x8x148 12x20x20 8x8x76 4x28x44 8x12x52 16x16x20 12x12x36
4x8x164 12x16x28 4x20x68 4x8x172 4x12x116 8x16x44 12x20x24 4x28x52 8x8x92 4x12x124 4x8x188 4x20x76
16x16x24
"""

# fmt: off
_TPUS: dict[str, _Tpu] = {tpu.name: tpu for tpu in (
    # Name, aliases, default size; Cloud TPU's name, its largest slice, cores counted; host's chips, devices a chip;
    # runtime version, HBM in GiB, bf16 TFLOPS; up to which size the zones are known; zones; topologies.
    _Tpu("v2",    (),               4, "v2",         256, 2, 4, 2, "tpu-ubuntu2204-base",  16,   46,    4,
         ("us-central1-b", "us-central1-c", "asia-east1-c"),
         _by_chips("2x2 4x4 8x8 8x16 16x16")),
    _Tpu("v3",    (),               4, "v3",        1024, 2, 4, 2, "tpu-ubuntu2204-base",  32,  123,    4,
         ("us-central1-a", "us-central1-b", "europe-west4-a"),
         _by_chips("2x2 4x4 4x8 8x8 8x16 16x16 16x32 32x32 32x64")),
    _Tpu("v4",    (),               4, "v4",        2048, 2, 4, 1, "tpu-ubuntu2204-base",  32,  275, 4096,
         ("us-central2-b",),
         _by_chips("2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x4x12 4x8x8 8x8x8 8x8x12 8x8x16 8x16x16 16x16x16")),
    _Tpu("v5e",   (),               4, "v5litepod",  256, 1, 8, 1, "v2-alpha-tpuv5-lite",  16,  197,  256,
         ("us-central1-a", "us-south1-a", "us-west1-c", "us-west4-a", "europe-west4-b"),
         _by_chips(_FLAT)),
    _Tpu("v5p",   (),               8, "v5p",       6144, 2, 4, 1, "v2-alpha-tpuv5",       95,  459, 6144,
         ("us-central1-a", "us-east5-a", "europe-west4-b"),
         _by_chips(_CUBES)),
    _Tpu("v6e",   (),               8, "v6e",        256, 1, 8, 1, "v2-alpha-tpuv6e",      32,  918,  256,
         ("us-central1-b", "us-east1-d", "us-east5-a", "us-east5-b", "us-south1-ai1b", "europe-west4-a",
          "asia-northeast1-b"),
         _by_chips(_FLAT)),
    _Tpu("tpu7x", ("7x", "v7x"),    4, "",             0, 2, 4, 2, "",                    192, 2307, 9216,
         ("us-central1-c", "us-central1-ai1a"),
         _by_chips(f"1x1x1 {_CUBES} 12x24x24 16x16x32 16x20x28 16x24x24")),
)}
# fmt: on

# No slice of these can be resolved: tpu7 is a label of GKE's, with shapes in AI-Hypercomputer/xpk, but its memory, its
# speed and its product are unknown. Of 8i and 8t chips of a pod and GB of a chip are known, partly from the press.
_ANNOUNCED = {"8i": (1152, 288), "8t": (9600, 216)}
_UNRESOLVED = {alias: name for name in (*_ANNOUNCED, "7") for alias in (name, f"tpu{name}", f"v{name}")}

# Memory by Google's pages. bf16 by NVIDIA's data sheets: half of what they say "with sparsity"; of the RTX PRO 6000,
# whose sheet has FP4 only, an eighth of it.
_GPUS: dict[str, _Gpu] = {
    gpu.name: gpu
    for gpu in (
        _Gpu("gb200", "nvidia-gb200", (4,), 186, 2500, "NVLink"),
        _Gpu("b200", "nvidia-b200", (8,), 180, 2250, "NVLink"),
        _Gpu("h200", "nvidia-h200-141gb", (8,), 141, 989, "NVLink"),
        _Gpu("h100-mega", "nvidia-h100-mega-80gb", (8,), 80, 989, "NVLink"),
        _Gpu("h100", "nvidia-h100-80gb", (1, 2, 4, 8), 80, 989, "NVLink"),
        _Gpu("a100-80gb", "nvidia-a100-80gb", (1, 2, 4, 8, 16), 80, 312, "NVLink"),
        _Gpu("a100", "nvidia-tesla-a100", (1, 2, 4, 8, 16), 40, 312, "NVLink"),
        _Gpu("rtx-pro-6000", "nvidia-rtx-pro-6000", (1, 2, 4, 8), 96, 500, "PCIe"),
        _Gpu("l4", "nvidia-l4", (1, 2, 4, 8), 24, 121, "PCIe"),
        _Gpu("v100", "nvidia-tesla-v100", (1, 2, 4, 8), 16, 0, "NVLink"),
        _Gpu("t4", "nvidia-tesla-t4", (1, 2, 4), 16, 0, "PCIe"),
        _Gpu("p100", "nvidia-tesla-p100", (1, 2, 4), 16, 0, "PCIe"),
        _Gpu("p4", "nvidia-tesla-p4", (1, 2, 4), 8, 0, "PCIe"),
    )
}

_TPU_NAMES = {alias: tpu for tpu in _TPUS.values() for alias in (tpu.name, *tpu.aliases, tpu.cloud_name) if alias}
_GPU_NAMES = {alias: gpu for gpu in _GPUS.values() for alias in (gpu.name, gpu.gke_label)}

MOST_GPUS = 64  # of no named model
_GPUS_BARE = (1, 2, 4, 8, 16)  # a number alone counts GPUs if Kinetic offers that many; any other counts chips
# What Kinetic gives for a bare number of chips: the most capable hardware that it sells in exactly that size.
_TPU_BY_CHIPS = {1: "v5e", 4: "v5e", 8: "v6e", 16: "v6e", 32: "v5p", 64: "v5e", 128: "v5e", 256: "v5e"}
_TPU_BY_CHIPS |= {512: "v4", 1024: "v4", 2048: "v4", 4096: "v4"}

_PREFIX = re.compile(r"(?:(tpu|gpu)[-:]|(cpu):)(.*)")
_GPUS_TIMES = re.compile(r"(.+)x([0-9]{1,9})")
_SPACED_TIMES = re.compile(r"\s+x\s*(?=[0-9]+$)|\s*x\s+(?=[0-9]+$)")
# As Google and NVIDIA name slices of a card: MIG profiles, fractions, and machines of G4 with less than one.
_PART_OF_A_CARD = re.compile(r".*(\bmig\b|\b[1-7]g\.[0-9]+gb\b|\bvgpu\b|[-/]1/[0-9]+$).*|g4-standard-(6|12|24)")
_TPU_CHIPS = re.compile(r"([a-z0-9]+)-([0-9]{1,9})")
_TPU_TOPOLOGY = re.compile(r"([a-z0-9]+)-([0-9]{1,9}x[0-9]{1,9}(?:x[0-9]{1,9})?)")


class Gpu(str):
    """The name of GPUs of one host, from a model and their number: `Gpu("h100", 8)` is `"h100x8"`.

    It is that text wherever a text is wanted.
    """

    __slots__ = ()

    def __new__(cls, model: str, count: int = 1) -> Gpu:
        """Make the name.

        Args:
            model: Name of the model, such as `"l4"`, or of GPUs, such as `"l4x4"`; `"gpu"` for any.
            count: Number of GPUs.

        Raises:
            UnknownAccelerator: There is no such model, or no machine with that number. The message lists similar ones.
        """
        if type(count) is not int or count < 1:
            raise UnknownAccelerator(f"Gpu({model!r}, {count!r}): the number of GPUs is a whole number from 1.")
        found = parse(model if count == 1 else f"gpu:{count}" if model == "gpu" else f"{model}x{count}")
        if found.kind != "gpu":
            raise UnknownAccelerator(f"Gpu({model!r}): {found.name} is no GPU. Write accelerator={found.name!r}.")
        return super().__new__(cls, f"{found.name}{':spot' if found.spot else ''}")


def way_of(*, spot: bool, flex_start: bool, reservation: str) -> Way:
    """Return the way in which hardware is bought. At most one of the three is given."""
    return SPOT if spot else FLEX_START if flex_start else RESERVATION if reservation else ON_DEMAND


def parse(name: str) -> Slice:
    """Read a name Kinetic's way: the number counts chips.

    `v5e-16`, `v5litepod-4x4`, `tpu-v5p-8`, `tpu:8`, `v6e` (its default size), `a100x4`, `gpu:l4`,
    `a100 x 4`, `nvidia-l4`, `tpu`, `gpu`, `cpu`, `cpu:8`; `:spot` behind any of them asks for spot capacity.
    """
    if not isinstance(name, str):
        raise UnknownAccelerator(f"An accelerator is a name such as 'v5e-8', not {name!r}.")
    text = name.strip().lower()
    spot = text.endswith(":spot")
    text = _SPACED_TIMES.sub("x", text.removesuffix(":spot").rstrip())
    kind, rest = _split(text)
    found = None
    if kind == "cpu":
        found = _cpu(rest)
    if kind in ("", "gpu"):
        found = _any_gpus(rest, range(1, MOST_GPUS + 1) if kind else _GPUS_BARE) or _gpu(rest)
    if kind in ("", "tpu") and found is None:
        found = _tpu(rest)
    if found is None:
        raise UnknownAccelerator(f"No accelerator {name!r}: {_reason(kind, rest)}")
    return replace(found, spot=spot and found.kind != "cpu")


def from_accelerator_type(name: str) -> Slice:
    """Read one of Cloud TPU's own names: `v5p-8` is 8 TensorCores, 4 chips, 1 host."""
    if not isinstance(name, str):
        raise UnknownAccelerator(f"An accelerator type is a name such as 'v5litepod-8', not {name!r}.")
    match = _TPU_CHIPS.fullmatch(name.strip().lower())
    tpu = _TPU_NAMES.get(match[1]) if match else None
    if match is None or tpu is None:
        raise UnknownAccelerator(_explain_accelerator_type(name))
    chips, rest = divmod(int(match[2]), tpu.cores_counted)
    if rest or chips not in tpu.topologies or chips > tpu.cloud_largest:
        raise UnknownAccelerator(_explain_cloud_size(name, tpu, int(match[2])))
    return tpu.slice(chips)


def by_process(slice: Slice) -> Slice:
    """The same hardware with a process for each of its devices, as that many hosts on one machine."""
    return replace(slice, hosts=slice.chips, chips_per_host=1, api="local")


def on_hosts(slice: Slice, hosts: int) -> Slice:
    """The GPUs of a slice on each of so many machines, whose hosts are joined over a network. Of a TPU, the same chips
    on so many hosts, if it `may_be_on` them.
    """
    if slice.kind == "tpu":
        return slice if hosts == slice.hosts else (otherwise(slice) or slice)
    return replace(slice, hosts=hosts, chips=slice.chips_per_host * hosts)


def may_be_on(slice: Slice, hosts: int) -> bool:
    """Return True if a cluster may have the slice, or its GPUs each, on so many hosts."""
    return slice.kind == "gpu" or (slice.kind == "tpu" and on_hosts(slice, hosts).hosts == hosts)


def otherwise(slice: Slice) -> Slice | None:
    """Return the same chips on the other number of hosts on which GKE has them: one with eight, or two with four each,
    as in larger slices. None if there is no other.
    """
    tpu = _TPUS.get(slice.generation)
    if tpu is None or slice.chips != tpu.largest_host or slice.chips == _OF_SEVERAL:
        return None
    if slice.hosts > 1:
        return replace(tpu.slice(slice.chips), spot=slice.spot)
    hosts = slice.chips // _OF_SEVERAL  # of which no name of Cloud TPU's is
    return replace(slice, hosts=hosts, chips_per_host=_OF_SEVERAL, accelerator_type="", api="gke")


@functools.cache
def catalogue() -> tuple[Slice, ...]:
    """Every slice that has a name, smallest first within its generation."""
    tpus = (tpu.slice(chips) for tpu in _TPUS.values() for chips in tpu.topologies)
    gpus = (gpu.slice(count) for gpu in _GPUS.values() for count in gpu.counts)
    return (*tpus, *gpus, _cpu_of(1))


def zones(slice: Slice) -> tuple[str, ...]:
    """The zones to try unless settings name others; empty if none are published."""
    tpu = _TPUS.get(slice.generation)
    return tpu.zones if tpu is not None and slice.chips <= tpu.zones_up_to else ()


def sides(slice: Slice) -> tuple[int, ...]:
    """Chips along each side of the topology; empty for GPUs and CPUs."""
    return _sides(slice.topology) if slice.topology else ()


def wraps(slice: Slice) -> tuple[bool, ...]:
    """Return for each side if its ends are linked as well; False if unknown."""
    lengths = sides(slice)
    if len(lengths) == 3:
        return (all(side % 4 == 0 for side in lengths),) * 3
    if slice.generation in ("v5e", "v6e"):
        return tuple(side == 16 for side in lengths)
    return (slice.topology == {"v2": "16x16", "v3": "32x32"}.get(slice.generation),) * len(lengths)


def link(slice: Slice) -> str:
    """The interconnect of its chips: ICI, NVLink or PCIe; empty for a single chip of a machine."""
    if slice.chips == slice.machines or slice.kind == "cpu":
        return ""
    if slice.kind == "tpu":
        return "ICI"
    return _GPUS[slice.generation].link if slice.generation in _GPUS else ""


def _split(text: str) -> tuple[str, str]:
    """The kind that the name requires, and the name without it."""
    if text in ("tpu", "gpu", "cpu"):
        return text, {"tpu": "v5e", "gpu": "1", "cpu": "1"}[text]
    match = _PREFIX.fullmatch(text)
    return (match[1] or match[2], match[3]) if match else ("", text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _cpu(rest: str) -> Slice | None:
    return _cpu_of(int(rest)) if _is_number(rest) and int(rest) > 0 else None


def _cpu_of(devices: int) -> Slice:
    return _one_host("cpu" if devices == 1 else f"cpu:{devices}", "cpu", "cpu", devices, 0, 0, "local")


def _any_gpus(rest: str, counts: Collection[int]) -> Slice | None:
    """A slice of that many GPUs of no named model: nothing is known of them."""
    if not _is_number(rest) or int(rest) not in counts:
        return None
    name = "gpu" if int(rest) == 1 else f"gpu:{int(rest)}"
    return replace(_one_host(name, "gpu", "gpu", int(rest), 0, 0, "gke"), whichever=True)


def _gpu(rest: str) -> Slice | None:
    name, count = _gpu_and_count(rest)
    gpu = _GPU_NAMES.get(name)
    return gpu.slice(count) if gpu is not None and count in gpu.counts else None


def _gpu_and_count(rest: str) -> tuple[str, int]:
    """A model's name alone is one GPU, as in Kinetic."""
    match = _GPUS_TIMES.fullmatch(rest)
    return (match[1], int(match[2])) if match and rest not in _GPU_NAMES else (rest, 1)


def _tpu(rest: str) -> Slice | None:
    if _is_number(rest):
        name = _TPU_BY_CHIPS.get(int(rest))
        return _TPUS[name].slice(int(rest)) if name else None
    if rest in _TPU_NAMES:
        return _TPU_NAMES[rest].slice(_TPU_NAMES[rest].default)
    if match := _TPU_TOPOLOGY.fullmatch(rest):
        tpu, chips = _TPU_NAMES.get(match[1]), math.prod(_sides(match[2]))
        return tpu.slice(chips) if tpu and tpu.topologies.get(chips) == match[2] else None
    match = _TPU_CHIPS.fullmatch(rest)
    tpu = _TPU_NAMES.get(match[1]) if match else None
    return tpu.slice(int(match[2])) if match and tpu and int(match[2]) in tpu.topologies else None


# What is near a wrong name.


def _reason(kind: str, rest: str) -> str:  # noqa: PLR0911 - a list of cases, the first that fits
    generation = rest.partition("-")[0]
    tpu = _TPU_NAMES.get(generation)
    if generation in _UNRESOLVED and kind != "gpu":
        return _explain_unresolved(_UNRESOLVED[generation])
    if kind == "cpu":
        return "cpu takes a number of devices, as in cpu or cpu:8."
    if _is_number(rest):
        return _explain_number(kind, int(rest))
    if kind == "gpu" and (found := _tpu(rest)):
        return f"{found.name} is a TPU. Near: {found.name}, tpu-{found.name}."
    if kind == "tpu" and (found := _gpu(rest)):
        return f"{found.name} is a GPU. Near: {found.name}, gpu-{found.name}."
    name, count = _gpu_and_count(rest)
    if gpu := _GPU_NAMES.get(name):
        return _explain_gpus(gpu, count)
    if kind != "tpu" and _PART_OF_A_CARD.fullmatch(rest):
        return _explain_part(rest)
    if tpu and (match := _TPU_TOPOLOGY.fullmatch(rest)):
        return _explain_topology(tpu, match[2])
    if tpu and (match := _TPU_CHIPS.fullmatch(rest)):
        return _explain_size(tpu, int(match[2]))
    return _nearest_names(rest) + _everything()


def _explain_unresolved(name: str) -> str:
    if name == "7":
        return (
            "tpu7 is a label and two machine types of GKE (tpu7-standard-1t, tpu7-standard-4t). What it is sold as, "
            "its memory and its speed are not known here, so no slice of it can be resolved. Near: tpu7x-4, tpu7x-8."
        )
    chips, memory = _ANNOUNCED[name]
    return (
        f"TPU {name} is announced with {chips} chips to a pod and {memory} GB to a chip, for GKE alone. Its "
        "topologies, its machine types and the labels of its nodes are in no source that is known here, so no slice of "
        "it can be resolved. Near: tpu7x-8, v6e-8."
    )


def _explain_number(kind: str, number: int) -> str:
    gpus = f"gpu:N is 1 to {MOST_GPUS} GPUs of any model"
    tpus = f"a bare number of TPU chips is {_either(_TPU_BY_CHIPS)} (tpu:8)"
    sized = [tpu.slice(number).name for tpu in _TPUS.values() if number in tpu.topologies]
    if kind == "gpu":
        return f"{gpus}."
    near = sized or [f"tpu:{chips}" for chips in _near(number, _TPU_BY_CHIPS)]
    return f"{tpus if kind else f'{gpus}, and {tpus}'}. Near: {', '.join(near)}."


def joined(hosts: int) -> str:
    """Return how a user asks for so many hosts with GPUs."""
    return f"cloud=Compute(hosts={hosts}) or Kubernetes(hosts={hosts})"


def _explain_gpus(gpu: _Gpu, count: int) -> str:
    hosts, rest = divmod(count, most := max(gpu.counts))
    several = ""
    if hosts > 1 and not rest:
        several = f" {count} are {hosts} hosts: {gpu.slice(most).name} with {joined(hosts)}."
    near = ", ".join(gpu.slice(near).name for near in _near(count, gpu.counts))
    return f"{gpu.name} comes {_either(gpu.counts)} to a host.{several} Near: {near}."


def _explain_part(rest: str) -> str:
    named = [name for name in _GPU_NAMES if rest.startswith(name)]
    card = _GPU_NAMES[max(named, key=len)] if named else _GPUS["rtx-pro-6000" if rest.startswith("g4-") else "l4"]
    near = dict.fromkeys((card.slice(min(card.counts)).name, "l4"))
    return f"it is a slice of a card, and a job gets whole cards. Near: {', '.join(near)}."


def _explain_topology(tpu: _Tpu, topology: str) -> str:
    sides = sorted(_sides(topology))
    turned = [chips for chips, known in tpu.topologies.items() if sorted(_sides(known)) == sides]
    near = _sized(tpu, turned or _near(math.prod(sides), tpu.topologies))
    return f"{tpu.name} has no topology {topology}. Near: {near}."


def _explain_size(tpu: _Tpu, number: int) -> str:
    near = _sized(tpu, _near(number, tpu.topologies))
    text = f"{tpu.name} has no slice of {_count(number, 'chip')} (the number counts chips). Near: {near}."
    chips, rest = divmod(number, tpu.cores_counted)
    if tpu.cores_counted == 1 or rest or chips not in tpu.topologies:
        return text
    other = tpu.slice(chips)
    text += f" Read as TensorCores, {tpu.name}-{number} is {_count(chips, 'chip')} ({other.topology}, "
    text += f"{_count(other.hosts, 'host')}): that is {other.name} here"
    if not other.accelerator_type:
        return f"{text}."
    return f'{text}, or cloud=TpuVm(accelerator_type="{other.accelerator_type}").'


def _explain_accelerator_type(name: str) -> str:
    text = name.strip().lower()
    missing = f"Cloud TPU has no accelerator type {name!r}"
    kind, rest = _split(text)
    if unresolved := _UNRESOLVED.get(rest.partition("-")[0]):
        return f"{missing}: {_explain_unresolved(unresolved)}"
    if kind in ("", "tpu") and (found := _tpu(rest)):
        return f'{missing}. Names of that form are for accelerator="{found.name}" ({found}).'
    known = [tpu.slice(chips).accelerator_type for tpu in _TPUS.values() for chips in tpu.topologies]
    near = _close(text, [name for name in known if name])
    return f"{missing}. Near: {', '.join(near or ('v5litepod-8', 'v6e-8', 'v5p-8', 'v4-8'))}."


def _explain_cloud_size(name: str, tpu: _Tpu, number: int) -> str:
    missing = f"Cloud TPU has no accelerator type {name!r}"
    if not tpu.cloud_name:
        chips = number // tpu.cores_counted
        if chips not in tpu.topologies:
            chips = tpu.default
        return (
            f"{missing}: the Cloud TPU API does not reach {tpu.name}, only Compute Engine and GKE do. "
            f'Its name here counts chips, as in accelerator="{tpu.name}-{chips}" ({tpu.topologies[chips]}).'
        )
    sizes = [chips * tpu.cores_counted for chips in tpu.topologies if chips <= tpu.cloud_largest]
    near = ", ".join(
        f"{found.accelerator_type} ({_count(found.chips, 'chip')}, {found.topology})"
        for found in (tpu.slice(size // tpu.cores_counted) for size in _near(number, sizes))
    )
    counts = "TensorCores, two to a chip" if tpu.cores_counted == 2 else "chips"
    text = f"{missing} (the number counts {counts}). Near: {near}."
    if tpu.cores_counted == 1 or number not in tpu.topologies:
        return text
    other = tpu.slice(number)
    cloud = f", which Cloud TPU calls {other.accelerator_type}" if other.accelerator_type else ""
    return f'{text} Read as chips, it is accelerator="{other.name}" ({other.topology}){cloud}.'


def _sized(tpu: _Tpu, sizes: Iterable[int]) -> str:
    return ", ".join(f"{tpu.name}-{chips} ({tpu.topologies[chips]})" for chips in sizes)


def _near(number: int, sizes: Iterable[int]) -> list[int]:
    """The two sizes below and the two above."""
    ordered = sorted(sizes)
    below = [size for size in ordered if size <= number]
    return below[-2:] + ordered[len(below) :][:2]


def _nearest_names(text: str) -> str:
    names = [found.name for found in catalogue()]
    known = [*names, *_TPU_NAMES, *_GPU_NAMES, *(f"v5litepod-{chips}" for chips in _TPUS["v5e"].topologies)]
    near = _close(text, known)
    return f"near are {', '.join(near)}. " if near else "nothing is near. "


def _close(text: str, names: Iterable[str]) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(text, sorted(set(names)), n=4, cutoff=0.6)


def _everything() -> str:
    return (
        f"TPUs: {', '.join(_TPUS)} (v5e-8: eight chips). "
        f"GPUs: {', '.join(_GPUS)} (a100x4: four). Neither: cpu, cpu:8. "
        "`kinetic-orchestration accelerators` lists every size."
    )


def _either(numbers: Iterable[int]) -> str:
    *most, last = (str(number) for number in sorted(numbers))
    return f"{', '.join(most)} or {last}" if most else last


def _count(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"
