"""`kinetic.Orbax`: a part of a state that Orbax writes beside the steps, committed and verified with the rest."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.testing.storage_server.server import StorageServer
from tests.end_to_end.frameworks.curves import BOUNDED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.turn(2)]
REQUIREMENTS = Path(__file__).parents[3] / "example_pipelines" / "training_flax.txt"


def on_one_host() -> dict[str, Any]:
    os.environ["JAX_NUM_CPU_DEVICES"] = "8"
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    from kinetic_orchestration.errors import CheckpointDiffers
    from kinetic_orchestration.program import loop
    from kinetic_orchestration.program.checkpoints.commits import folder

    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, same = NamedSharding(mesh, PartitionSpec("x")), NamedSharding(mesh, PartitionSpec())
    host = kinetic.current()
    place = Path(host.checkpoint_dir, "t")
    chance = np.random.default_rng(0)
    values = {step: chance.normal(size=(64, 512)).astype("float32") for step in range(1, 6)}
    found: dict[str, Any] = {}

    def tree(step: int, sharding: Any = rows) -> Any:
        value = values.get(step, np.zeros((64, 512), "float32"))
        return {"w": jax.device_put(value, sharding), "deep": [jax.device_put(value[0], same), step]}

    def is_of(step: int, given: Any) -> bool:
        return bool((np.asarray(given["w"]) == values[step]).all() and given["deep"][1] == step)

    # Orbax writes on while the next step runs: it cannot end here before that has begun.
    begun, ended = threading.Event(), kinetic.Orbax.end_writing

    def end_writing(self: Any, patience: float) -> None:
        found["waited"] = begun.wait(60)
        ended(self, patience)

    kinetic.Orbax.end_writing = end_writing  # type: ignore[method-assign]
    with kinetic.Training(every=1, name="t", keep=2) as training:
        training.restore({"net": kinetic.Orbax(tree(0)), "n": 0})
        training.step(1, {"net": kinetic.Orbax(tree(1)), "n": 1})
        found["committed beside"] = not (place / folder(1, training._checkpoints.store.writer) / "commit.json").exists()  # type: ignore[union-attr]
        begun.set()
        for step in (2, 3, 4):
            training.step(step, {"net": kinetic.Orbax(tree(step)), "n": step})
    found["folders"] = [int(path.name.split("-")[1]) for path in sorted(place.glob("step-*"))]
    found["of removed"] = [str(path) for path in place.glob("step-*[12]-*/**/*")]
    kinetic.Orbax.end_writing = ended  # type: ignore[method-assign]

    def restored(sharding: Any, **options: Any) -> tuple[int, Any, Any]:
        with kinetic.Training(name="t") as again:
            shown = {"w": jax.ShapeDtypeStruct((64, 512), "float32", sharding=sharding), "deep": [values[1][0], 0]}
            state, done = again.restore({"net": kinetic.Orbax(shown), "n": 0}, **options)
        return done, state["net"].tree, state["n"]

    done, net, n = restored(same)
    found["newest"] = (done, n, is_of(4, net), net["w"].sharding == same)
    read = kinetic.read_checkpoint(place, into={"net": kinetic.Orbax(tree(0)), "n": 0}, step=3).state
    found["read"] = is_of(3, read["net"].tree), Path(kinetic.read_checkpoint(place).state["net"], "_METADATA").exists()
    part = kinetic.read_checkpoint(place, into={"net": kinetic.Orbax(tree(0)), "other": 5}, only=["net"]).state
    found["part"] = is_of(4, part["net"].tree), part["other"]
    for name, state in {
        "shape": {"net": kinetic.Orbax({"w": values[1][:2], "deep": [values[1][0], 0]}), "n": 0},
        "none": {"net": tree(0), "n": 0}, "gone": {"n": 0}, "new": {"net": kinetic.Orbax(tree(0)), "n": 0, "ema": kinetic.Orbax(tree(0))},
    }.items():  # fmt: skip
        try:
            kinetic.read_checkpoint(place, into=state)
        except CheckpointDiffers as error:
            found[f"refused {name}"] = str(error).partition("\n")[2].strip()

    # A byte of any of Orbax' files, anywhere.
    newest = max(place.glob("step-*"))
    files = [path for path in sorted(newest.glob("orbax-*/**/*")) if path.is_file() and path.stat().st_size]
    passed = 0
    for path in files:
        data = path.read_bytes()
        at = int.from_bytes(hashlib.sha256(path.name.encode()).digest()[:4], "big") % len(data)
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        loop._finished.clear()
        done, net, _ = restored(rows)
        passed += done == 3 and is_of(3, net)
        path.write_bytes(data)
    found["flipped"] = len(files) > 5, len(files) - passed
    found["whole again"] = restored(rows)[0]
    return found


def test_orbax_writes_beside_the_steps_and_each_flipped_byte_of_its_files_is_refused(frameworks: Path) -> None:
    found = kinetic.run(accelerator="cpu", limits=BOUNDED, requirements=REQUIREMENTS)(on_one_host).run_async().result()
    assert found == {
        "waited": True, "committed beside": True, "folders": [3, 4], "of removed": [], "newest": (4, 4, True, True),
        "read": (True, True), "part": (True, 5),
        "refused shape": "net/w is float32[2, 512] here and float32[64, 512] in the checkpoint",
        "refused none": "net is written by orbax in the checkpoint, and not by it here",
        "refused gone": "net is written by orbax in the checkpoint, and not by it here",
        "refused new": "ema is written by orbax here, and not by it in the checkpoint",
        "flipped": (True, 0), "whole again": 4,
    }  # fmt: skip


def on_hosts(place: str, until: int, reshard: bool, server: str = "") -> dict[str, Any]:
    """One array over all devices of all hosts, and the number of each step added to it. `server`: of the bucket that
    the place is in, which both of Orbax' ways there have to know: gcsfs and tensorstore."""
    os.environ["JAX_NUM_CPU_DEVICES"] = "2"
    if server:
        os.environ.update({"STORAGE_EMULATOR_HOST": server, "TENSORSTORE_GCS_HTTP_URL": server})
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    host = kinetic.current()
    os.environ["KINETIC_CHECKPOINT_DIR"] = place
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    rows = NamedSharding(mesh, PartitionSpec("x"))
    whole = np.random.default_rng(0).normal(size=(64, 64)).astype("float32")
    w = jax.make_array_from_callback(whole.shape, rows, lambda index: whole[index])
    training = kinetic.Training(every=2, name="t", reshard=reshard)
    state, done = training.restore({"net": kinetic.Orbax({"w": w})})
    w = state["net"].tree["w"]
    for number in range(done, until):
        w = w + 1.0
        training.step(number + 1, {"net": kinetic.Orbax({"w": w})})
    training.finish({"net": kinetic.Orbax({"w": w})})
    expected = whole
    for _ in range(until):
        expected = expected + np.float32(1.0)
    shards = [bool((np.asarray(one.data) == expected[one.index]).all()) for one in w.addressable_shards]
    return {"begun": done, "shards": shards, "hosts": host.host_count, "devices": jax.device_count()}


def test_what_orbax_wrote_on_two_hosts_one_restores(frameworks: Path, tmp_path: Path) -> None:
    place = str(tmp_path / "checkpoints")

    def run(accelerator: str, *arguments: Any) -> Any:
        made = kinetic.run(accelerator=accelerator, limits=BOUNDED, requirements=REQUIREMENTS)
        return made(on_hosts).run_async(place, *arguments).result()

    assert run("v4-8", 5, False) == {"begun": 0, "shards": [True] * 2, "hosts": 2, "devices": 4}
    assert run("cpu", 8, True) == {"begun": 5, "shards": [True] * 2, "hosts": 1, "devices": 2}
    assert run("v4-8", 9, True) == {"begun": 8, "shards": [True] * 2, "hosts": 2, "devices": 4}
    newest = kinetic.read_checkpoint(f"{place}/t")
    assert (newest.step, Path(newest.state["net"]).name) == (9, "orbax-00000")
    files = [path for path in Path(newest.state["net"]).rglob("*") if path.is_file()]
    commit = (Path(place, "t", newest.folder) / "commit.json").read_text()
    assert files and all(str(path.relative_to(Path(place, "t", newest.folder))) in commit for path in files)


def test_orbax_writes_to_an_emulated_bucket_on_two_hosts_and_one_goes_on(frameworks: Path) -> None:
    requirements = [*REQUIREMENTS.read_text().splitlines(), "gcsfs==2026.10.1"]
    with StorageServer() as server:
        place = f"{server.make_bucket('orbax')}/checkpoints"

        def run(accelerator: str, until: int) -> Any:
            made = kinetic.run(accelerator=accelerator, limits=BOUNDED, requirements=requirements)
            return made(on_hosts).run_async(place, until, True, server.url).result()

        assert run("v4-8", 5) == {"begun": 0, "shards": [True] * 2, "hosts": 2, "devices": 4}
        assert run("cpu", 8) == {"begun": 5, "shards": [True] * 2, "hosts": 1, "devices": 2}
