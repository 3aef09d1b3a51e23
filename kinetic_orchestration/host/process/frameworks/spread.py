"""Tensors that torch spreads over its processes (DTensor, as `fully_shard` and tensor parallelism make them).

Each process has a rectangle of such a tensor, which it writes as any other piece of an array, and reads the rectangle
that it has then. What cannot be kept so is named with the reason. Imports no torch that the program has not imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

Shape = tuple[int, ...]


class NoLayout(ValueError):
    """Nothing shows how a tensor of a checkpoint is to be spread here."""


_FSDP1 = (
    "is of FSDP1 (FullyShardedDataParallel), whose flat shards have no place in the model's arrays: spread the model "
    "with torch.distributed.fsdp.fully_shard (FSDP2) instead, or leave it out of the state and write what "
    "torch.distributed.checkpoint.state_dict.get_model_state_dict returns, by kinetic.torch.files"
)
_PARTIAL = (
    "is a DTensor whose sums are not added up yet (Partial), which is no value to keep: redistribute it to Replicate() "
    "or Shard(n)"
)
_SUBMESH = (
    "is a DTensor over {} of {} processes, and nothing shows what the others have: give it a mesh of all of them, with "
    "Replicate() in the dimension in which they have the same, or leave it out of the state and write it with "
    "torch.distributed.checkpoint by kinetic.torch.files"
)
_HOSTS = "is a DTensor over {} processes, and {} of them train with this Training: all of them have to write"
_UNEVEN = (
    "is a DTensor whose shard on this process is not one rectangle of it, or of another size than torch divides it "
    "into ({} of {} by {}): leave it out of the state and write it with torch.distributed.checkpoint by "
    "kinetic.torch.files"
)
_SUBCLASS = (
    "is a DTensor of {}, whose bytes are not those of its numbers: leave it out of the state and write it with "
    "torch.distributed.checkpoint by kinetic.torch.files"
)
_META = "is a DTensor on the device meta, which has no values: call to_empty() of its module first"
_OWN_SHARD = (
    "is a plain tensor of the size of this process' shard of its parameter, a DTensor: nothing shows the places of the "
    "others. Keep it as a DTensor (torch.zeros_like of the parameter is one), or leave the optimizer out of the state"
)


# ---- what they are -----------------------------------------------------------------------------------------------


def is_spread(value: Any) -> bool:
    """Return True for a DTensor."""
    return _is_of(value, "DTensor")


def _is_of(value: Any, name: str) -> bool:
    return any(kind.__name__ == name and kind.__module__.startswith("torch.") for kind in type(value).__mro__)


def why_not(value: Any, hosts: int = 0) -> str:
    """Return why a tensor, or a module, cannot be kept as its shards; "" if it can.

    Args:
        value: Anything.
        hosts: Number of hosts that write; 0 if unknown.
    """
    if "torch" not in sys.modules or not any(kind.__module__.startswith("torch.") for kind in type(value).__mro__):
        return ""
    is_flat = getattr(value, "_fsdp_flattened", False) is True or _is_of(value, "ShardedTensor")
    within = value.modules() if _is_of(value, "Module") else ()
    if is_flat or any(_is_of(one, "FullyShardedDataParallel") for one in within):
        return _FSDP1
    return _why_not_spread(value, hosts) if is_spread(value) else ""


def _why_not_spread(value: Any, hosts: int) -> str:
    mesh, places, processes = value.device_mesh, value.placements, _processes()
    if any(place.is_partial() for place in places):
        return _PARTIAL
    if mesh.size() != processes:
        return _SUBMESH.format(mesh.size(), processes)
    if hosts and processes != hosts:
        return _HOSTS.format(processes, hosts)
    return _why_not_local(value)


def _why_not_local(value: Any) -> str:
    local = local_of(value)
    if type(local).__name__ not in ("Tensor", "Parameter"):
        return _SUBCLASS.format(type(local).__name__)
    if local.device.type == "meta":
        return _META
    shape = tuple(map(int, value.shape))
    places = value.placements
    if not _is_one(shape, tuple(value.device_mesh.shape), places) or layout_of(value).rectangle(shape)[1] != tuple(
        local.shape
    ):
        return _UNEVEN.format(list(local.shape), list(shape), ", ".join(map(str, places)))
    return ""


def _is_one(shape: Shape, sizes: Shape, places: Sequence[Any]) -> bool:
    """Return True if each shard is one rectangle. Where one dimension is sharded by two of a mesh, as by FSDP2 over
    tensor parallelism, torch divides it inside out, and each shard is in one piece if it comes out even."""
    for at, place in enumerate(places):
        factor = getattr(place, "split_factor", None)
        if factor is None:
            continue
        of_same = [size if _dim(other) == place.dim else 1 for size, other in zip(sizes, places, strict=True)]
        if factor != prod(of_same[at + 1 :]) or shape[place.dim] % prod(of_same):
            return False
    return True


def _dim(place: Any) -> int | None:
    """The dimension that a placement shards; None if it does not."""
    return getattr(place, "dim", None)


def _processes() -> int:
    return int(sys.modules["torch"].distributed.get_world_size())


def local_of(value: Any) -> Any:
    """Return what this process has of a DTensor."""
    local = value.detach().to_local()
    return local.wait() if hasattr(local, "wait") else local  # of an operation that is under way


def is_written_here(value: Any) -> bool:
    """Return True if this process is the one that writes its shard: of those that have the same one, the first."""
    places = zip(value.placements, value.device_mesh.get_coordinate(), strict=True)
    return all(_dim(place) is not None or at == 0 for place, at in places)


def placements(value: Any) -> list[int | None]:
    """Return the dimension that each dimension of the mesh shards, as JSON."""
    return [_dim(place) for place in value.placements]


# ---- where they are ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layout:
    """The way in which a tensor is spread over the processes."""

    mesh: Any
    placements: tuple[Any, ...]
    device: Any

    def rectangle(self, shape: Shape) -> tuple[Shape, Shape]:
        """Return where this process' shard of a tensor begins, and the shard's own shape."""
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        local, start = compute_local_shape_and_global_offset(shape, self.mesh, self.placements)
        return tuple(map(int, start)), tuple(map(int, local))

    def joined(self, local: Any, shape: Shape) -> Any:
        """Return the tensor of which this process has that shard."""
        from torch.distributed.tensor import DTensor

        strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
        return DTensor.from_local(
            local.to(self.device), self.mesh, self.placements,
            run_check=False, shape=sys.modules["torch"].Size(shape), stride=strides,
        )  # fmt: skip


def layout_of(value: Any) -> Layout:
    """Return the layout of a DTensor."""
    return Layout(value.device_mesh, tuple(value.placements), local_of(value).device)


class Layouts:
    """The layouts of the tensors in one object with a state of its own, such as a module or an optimizer."""

    def __init__(self, path: str, kept: Any, arrays: Mapping[str, Any]) -> None:
        """`arrays`: what its state has now, by the paths of all."""
        self._path = path
        self._here = {name: layout_of(one) if is_spread(one) else None for name, one in arrays.items()}
        self._parameters = _of_groups(kept)

    def of(self, path: str, shape: Shape, saved: Sequence[int | None] | None) -> Layout | None:
        """Return the layout of a tensor of a checkpoint in this object; None if each process has the whole.

        Args:
            path: Its path.
            shape: Its shape.
            saved: What `placements` said when it was saved; None if it was not spread.

        Raises:
            NoLayout: Nothing here shows it.
        """
        if path in self._here:
            here = self._here[path]
            return None if here is None else _fitting(here, shape)
        # An optimizer has no state before its first step: each tensor of it is as its parameter is.
        parameter = self._parameter_of(path)
        if parameter is None:
            if saved is not None and _is_joined() and _processes() > 1:
                raise NoLayout(
                    f"{path} is spread over the processes in the checkpoint, and nothing here shows how: give the "
                    "optimizer itself in the state, or an object whose state has its tensors before the first step"
                )
            return None
        if not is_spread(parameter):
            return None
        layout = layout_of(parameter)
        if tuple(parameter.shape) == shape:
            return layout
        if saved is None:
            return None
        from torch.distributed.tensor import Replicate, Shard

        # On a mesh of other dimensions it is sharded where its parameter is, in the dimensions that were.
        dims = saved
        if len(saved) != len(layout.placements):
            dims = [dim if (dim := _dim(place)) in saved else None for place in layout.placements]
        placed = tuple(Replicate() if dim is None else Shard(dim) for dim in dims)
        return _fitting(Layout(layout.mesh, placed, layout.device), shape)

    def _parameter_of(self, path: str) -> Any:
        number = path.removeprefix(f"{self._path}/state/").partition("/")[0]
        if number.isdecimal() and int(number) < len(self._parameters):
            return self._parameters[int(number)]
        return None


def _fitting(layout: Layout, shape: Shape) -> Layout | None:
    """The layout, unless the shape has not the dimensions that it shards: then whoever takes the tensor refuses it."""
    return layout if all((_dim(place) or 0) < max(1, len(shape)) for place in layout.placements) else None


def _is_joined() -> bool:
    distributed: Any = getattr(sys.modules.get("torch"), "distributed", None)
    return distributed is not None and distributed.is_available() and bool(distributed.is_initialized())


# ---- objects that have them --------------------------------------------------------------------------------------


def parameters(kept: Any) -> list[Any]:
    """Return the parameters of a module or an optimizer, without reading its state."""
    found = getattr(kept, "parameters", None)
    return [*(found() if callable(found) else ()), *_of_groups(kept)]


def _of_groups(kept: Any) -> list[Any]:
    """The parameters of an optimizer, in the order in which its state numbers them."""
    held: list[Any] = []
    groups = getattr(kept, "param_groups", None)
    for group in groups if isinstance(groups, list) else []:
        held += group.get("params", []) if isinstance(group, dict) else []
    return held


def is_possible() -> bool:
    """Return True if the program has joined others by torch, and so may have DTensors. A module may show plain
    parameters for a while, which its state does not have: FSDP2 assembles them for a step."""
    return "torch.distributed.tensor" in sys.modules and _is_joined()


def arrays(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Return all arrays in the state of an object, by the paths that they have in a checkpoint."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from arrays(one, f"{path}/{key}")
    elif isinstance(value, (list, tuple)):
        for number, one in enumerate(value):
            yield from arrays(one, f"{path}/{number}")
    elif hasattr(value, "dtype") and hasattr(value, "shape"):
        yield path, value


def check_optimizer(kept: Any, state: Any, path: str) -> str:
    """Return which plain tensor of an optimizer's state is a shard, and why it cannot be kept; "" if there is none.

    All processes whose optimizer has the same kinds of state come to the same, without asking each other.
    """
    held = state.get("state") if isinstance(state, Mapping) else None
    if not isinstance(held, Mapping):  # an optimizer of a user's own, whose state has another form
        return ""
    kinds: dict[str, dict[int, Plain]] = {}
    for number, parameter in enumerate(_of_groups(kept)):
        if is_spread(parameter) and _is_divided(parameter):
            local = tuple(map(int, local_of(parameter).shape))
            for name, one in arrays(held.get(number), ""):
                if not is_spread(one):
                    kinds.setdefault(name, {})[number] = Plain(local, tuple(map(int, one.shape)))
    for name, tensors in kinds.items():
        if (shard := _first_shard(name.strip("/"), tensors)) is not None:
            return f"{path}/state/{shard}{name} {_OWN_SHARD}"
    return ""


def _is_divided(parameter: Any) -> bool:
    """Return True if no process has the whole of a DTensor. Of one that has a single row, the first process has it."""
    sizes = zip(parameter.device_mesh.shape, parameter.placements, strict=True)
    return any(size > 1 and (dim := _dim(place)) is not None and parameter.shape[dim] > 1 for size, place in sizes)


class Plain(NamedTuple):
    """The shapes of a parameter's shard on this process, and of a plain tensor that an optimizer keeps for it."""

    local: Shape
    shape: Shape


def _first_shard(kind: str, tensors: Mapping[int, Plain]) -> int | None:
    """Return the first parameter of which an optimizer keeps a shard under a name; None if there is none.

    A tensor with one entry, such as a count of steps, has the size of a vector's shard on some processes and not on
    others. So those of matrices decide. Where there are none, a tensor with one entry counts as a shard on all
    processes, unless its name says that it counts steps.
    """
    if sure := {number: one for number, one in tensors.items() if len(one.local) > 1}:
        return next((number for number, one in sure.items() if one.shape == one.local), None)
    are_shards = kind != "step" and all(one.shape in (one.local, (1,)) for one in tensors.values())
    return min(tensors) if are_shards else None
