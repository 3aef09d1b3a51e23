"""Programs whose models torch spreads over the hosts, for test_on_dtensors.py."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import CheckpointDiffers

STEPS = 6
SHAPES = {
    "rows": ((5, 3), "float32"),
    "columns": ((4, 7), "bfloat16"),
    "few": ((1, 3), "float64"),
    "same": ((3, 2), "int64"),
}
SHARDED = {"rows": 0, "columns": 1, "few": 0, "same": None}


def digest(*tensors: Any) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        found.update(f"{whole.dtype}{tuple(whole.shape)}".encode())
        found.update(bytes(whole.detach().contiguous().reshape(-1).view(dtype=sys.modules["torch"].uint8).tolist()))
    return found.hexdigest()


def mesh_of(two_dimensions: bool = False) -> Any:
    import torch

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    world = torch.distributed.get_world_size()
    make = torch.distributed.device_mesh.init_device_mesh
    return make("cpu", (world // 2, 2), mesh_dim_names=("copy", "shard")) if two_dimensions else make("cpu", (world,))


def factored(parameters: list[Any]) -> Any:
    """An optimizer whose state has another shape than its parameters: torch's own, Adafactor, takes no DTensors."""
    import torch

    class Factored(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:
            with torch.no_grad():
                for one in self.param_groups[0]["params"]:
                    squares = one.grad.square()
                    rows = squares.mean(1) if one.ndim == 2 else squares
                    held = self.state[one]
                    held["rows"] = rows if "rows" not in held else held["rows"] * 0.9 + rows * 0.1
                    held["steps"] = held.get("steps", 0) + 1
                    scale = held["rows"].sqrt() + 1e-8
                    one.sub_(0.01 * one.grad / (scale.unsqueeze(1) if one.ndim == 2 else scale))

    return Factored(parameters, {})


class Built:
    """A model, two optimizers and tensors of their own, all spread over a mesh; `seed` gives the values."""

    def __init__(self, mesh: Any, seed: int) -> None:
        import torch
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        torch.manual_seed(seed)
        # 5, 3 and 1 rows: neither 2 nor 4 divide them, and some hosts have none.
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3), torch.nn.Linear(3, 1)
        )
        fully_shard(self.net, mesh=mesh)
        self.adam = torch.optim.AdamW(list(self.net.parameters())[:4], 0.01)
        self.factored = factored(list(self.net.parameters())[4:])
        self.tensors = {}
        for name, (shape, dtype) in SHAPES.items():
            value = (torch.arange(1, 1 + shape[0] * shape[1]) * (seed + 1)).reshape(shape).to(getattr(torch, dtype))
            dim = SHARDED[name]
            placements = [Replicate()] * (mesh.ndim - 1) + [Replicate() if dim is None else Shard(dim)]
            self.tensors[name] = distribute_tensor(value, mesh, placements)
        self.scalar = torch.tensor(seed / 3)

    def state(self) -> dict[str, Any]:
        return {
            "net": self.net, "adam": self.adam, "factored": self.factored, "own": self.tensors, "scalar": self.scalar,
            "name": "n",
        }  # fmt: skip

    def of_dcp(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizers = get_state_dict(self.net, [self.adam, self.factored])
        return {"model": model, "optimizers": optimizers, "own": dict(self.tensors), "scalar": self.scalar}

    def take(self, state: dict[str, Any]) -> None:
        """Take the values that `restore`, or dcp, returned beside the objects."""
        self.tensors, self.scalar = state["own"], state["scalar"]

    def digests(self) -> dict[str, str]:
        import torch

        found = {name: digest(value) for name, value in self.net.state_dict().items()}
        for which, optimizer in (("adam", self.adam), ("factored", self.factored)):
            for number, held in optimizer.state_dict()["state"].items():
                found |= {f"{which} {number} {name}": digest(torch.as_tensor(value)) for name, value in held.items()}
        found |= {name: digest(value) for name, value in self.tensors.items()}
        return found | {"scalar": digest(self.scalar)}

    def step(self, number: int) -> float:
        import torch

        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        x = torch.randn(8, 8, generator=torch.Generator().manual_seed(number))
        part = x[rank * 8 // world : (rank + 1) * 8 // world]
        loss = ((self.net(part) - part.sum(1, keepdim=True)) ** 2).mean()
        for optimizer in (self.adam, self.factored):
            optimizer.zero_grad()
        loss.backward()
        for optimizer in (self.adam, self.factored):
            optimizer.step()
        shown = loss.detach().clone()
        torch.distributed.all_reduce(shown)
        return float(shown) / world


def trained(name: str, mesh: Any, kill_at: int = 0) -> tuple[Built, list[float], int]:
    """Train, with a checkpoint after every second step; the last host is killed in the first attempt."""
    host = kinetic.current()
    built = Built(mesh, 0)
    training = kinetic.Training(every=2, name=name)
    state, done = training.restore(built.state())
    built.take(state)
    losses = []
    for number in range(done, STEPS):
        losses.append(built.step(number))
        if host.attempt == 1 and number + 1 == kill_at and host.host_index == host.host_count - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        training.step(number + 1, built.state(), loss=losses[-1])
    training.close()
    return built, losses, done


def writes(place: str) -> dict[str, Any]:
    """On two hosts: cut by a kill and undisturbed; and what torch.distributed.checkpoint writes of the same."""
    import torch
    import torch.distributed.checkpoint as dcp

    os.environ["KINETIC_CHECKPOINT_DIR"] = place
    mesh = mesh_of()
    cut, losses, done = trained("cut", mesh, kill_at=5)
    whole, all_losses, _ = trained("whole", mesh)
    dcp.save(whole.of_dcp(), checkpoint_id=str(Path(place, "dcp")))
    found = {"done": done, "losses": losses == all_losses[done:], "same": cut.digests() == whole.digests()}
    # On one machine, without any mesh: all shards together.
    read = kinetic.read_checkpoint(str(Path(place, "whole")), step=STEPS).state
    own = {name: digest(torch.as_tensor(read[f"own/{name}"])) for name in ("rows", "few", "same")}
    net = {name: digest(value) for name, value in read["net"].items()}
    digests = whole.digests()
    found["read"] = all(digests[name] == one for name, one in {**own, **net}.items()) and len(net) == 6
    return found | {"digests": digests, "kept": len(whole.adam.state_dict()["state"]), "pieces": pieces(place)}


def pieces(place: str) -> dict[str, dict[str, Any]]:
    """List what each host has written of the tensors, by the headers of its part."""
    found = {}
    for host in range(2):
        (part,) = Path(place, "whole").glob(f"step-{STEPS:012d}-*/part-{host:05d}.safetensors")
        data = part.read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        told = json.loads(header["__metadata__"]["kinetic"])["pieces"]
        found[str(host)] = {path: [start, shape] for path, _, start, shape, _ in told if path.startswith("own/")}
    return found


def reads(place: str, two_dimensions: bool = False) -> dict[str, Any]:
    """On any number of hosts: what ours restores, and what torch.distributed.checkpoint does."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import set_state_dict

    os.environ["KINETIC_CHECKPOINT_DIR"] = place
    mesh = mesh_of(two_dimensions)
    ours = Built(mesh, 1)
    training = kinetic.Training(every=2, name="whole", reshard=True)
    state, done = training.restore(ours.state())
    ours.take(state)
    theirs = Built(mesh, 2)
    into = theirs.of_dcp()
    dcp.load(into, checkpoint_id=str(Path(place, "dcp")))
    set_state_dict(
        theirs.net, [theirs.adam, theirs.factored],
        model_state_dict=into["model"], optim_state_dict=into["optimizers"],
    )  # fmt: skip
    theirs.take(into)
    found = {"done": done, "digests": ours.digests(), "theirs": theirs.digests()}
    spread = [type(value).__name__ for value in ours.tensors.values()]
    # The next step, of state that was restored, is that of the two hosts; the order of additions is another.
    found |= {"spread": spread, "next": [ours.step(STEPS), theirs.step(STEPS)]}
    return found | ({"parallel": parallel()} if two_dimensions else {})


def parallel() -> list[Any]:
    """On four hosts, two by two: FSDP2 over tensor parallelism, which divides one dimension inside out; and its
    checkpoint on a mesh of one dimension."""
    import torch
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))

    def made(seed: int, *, over_tensor: bool) -> Any:
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 8))
        if over_tensor:
            parallelize_module(net, mesh["tensor"], {"0": ColwiseParallel(), "1": ColwiseParallel()})
        fully_shard(net, mesh=mesh["data"] if over_tensor else mesh_of())
        return net

    before = made(5, over_tensor=True)
    with kinetic.Training(every=1, name="parallel") as training:
        training.restore({"net": before})
        training.step(1, {"net": before})
    wanted = digest(*before.state_dict().values())
    found: list[Any] = [" ".join(type(one).__name__ for one in before[0].weight.placements)]
    for over_tensor in (True, False):
        after = made(6, over_tensor=over_tensor)
        differs = digest(*after.state_dict().values()) != wanted
        training = kinetic.Training(every=1, name="parallel")
        found.append((training.restore({"net": after})[1], differs, digest(*after.state_dict().values()) == wanted))
    return found


class Around:
    """A user's own object around an optimizer, which has no state before its first step."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def state_dict(self) -> Any:
        return {"opt": self._optimizer.state_dict()}

    def load_state_dict(self, state: Any) -> None:
        self._optimizer.load_state_dict(state["opt"])


class Momentum:
    """An optimizer of a user's own, which keeps plain tensors, such as ones of the size of its shards."""

    def __init__(self, parameters: Any, kept: Any = lambda one: {"momentum": one.to_local().detach() * 0}) -> None:
        self.param_groups = [{"params": list(parameters)}]
        self._kept = kept

    def state_dict(self) -> Any:
        held = enumerate(self.param_groups[0]["params"])
        return {"state": {number: self._kept(one) for number, one in held}}

    def load_state_dict(self, state: Any) -> None: ...


def refused() -> dict[str, str]:
    """On two hosts: what each of these says, up to its advice."""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    mesh = mesh_of()
    rank = torch.distributed.get_rank()

    def flat(original: bool) -> Any:
        return FullyShardedDataParallel(torch.nn.Linear(4, 4), device_id=torch.device("cpu"), use_orig_params=original)

    def sharded(device: str = "cpu", rows: int = 4) -> Any:
        net = torch.nn.Linear(4, rows, device=device)
        fully_shard(net, mesh=mesh)
        return net

    alone = [torch.distributed.new_group([number]) for number in range(2)][rank]
    submesh = torch.distributed.device_mesh.DeviceMesh.from_group(alone, "cpu")
    uneven = DTensor.from_local(torch.ones(3 - 2 * rank, 2), mesh, [Shard(0)], shape=torch.Size((4, 2)), stride=(2, 1))
    started = sharded()
    adam = torch.optim.AdamW(started.parameters(), 0.1)
    started(torch.ones(2, 4)).sum().backward()
    adam.step()
    states: dict[str, Any] = {
        "fsdp1 net": {"net": flat(True)},
        "fsdp1 opt": {"opt": torch.optim.SGD(flat(True).parameters())},
        "fsdp1 flat": {"opt": torch.optim.SGD(flat(False).parameters())},
        "partial": {"own": DTensor.from_local(torch.ones(4, 2), mesh, [Partial()])},
        "submesh": {"own": DTensor.from_local(torch.ones(4, 2), submesh, [Replicate()])},
        "uneven": {"own": uneven},
        "meta": {"net": sharded("meta")},
        "own shard": {"opt": Momentum(sharded().parameters())},
        "own shard of a vector": {"opt": Momentum([sharded(rows=3).bias])},
        "no layout": {"net": Around(adam)},
    }
    found = {}
    for name, state in states.items():
        training = kinetic.Training(every=1, name=name.replace(" ", "-"))
        try:
            training.restore(state)
            training.step(1, state)
            again = kinetic.Training(every=1, name=name.replace(" ", "-"))
            again.restore({"net": Around(torch.optim.AdamW(sharded().parameters(), 0.1))})
            found[name] = "not refused"
        except (TypeError, CheckpointDiffers) as error:
            found[name] = str(error).split(":")[0].split(",")[0]
    counts = {"opt": Momentum([sharded(rows=3).bias], lambda _: {"step": torch.zeros(1)})}
    with kinetic.Training(every=1, name="counts") as training:
        training.restore(counts)
        training.step(1, counts)
    return found | {"a count of each": "kept"}
