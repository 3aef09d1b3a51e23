"""The hosts of a slice with the real frameworks: JAX, Keras and torch find each other as they would on chips."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration import Limits

# What hangs must end as a clear failure, and well before pytest's own limit.
BOUNDED = Limits(run="150s")


def train(steps: int = 30) -> tuple[float, list[float]]:
    """Fit a line on all devices there are: the batch is sharded, the weights are everywhere, no step is waited for."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((jax.device_count(),), ("batch",))
    sharded, everywhere = NamedSharding(mesh, PartitionSpec("batch")), NamedSharding(mesh, PartitionSpec())

    def spread(whole: Any, sharding: Any) -> Any:
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    x = np.linspace(-1, 1, 256, dtype=np.float32).reshape(64, 4)
    y = x @ np.arange(1, 5, dtype=np.float32)
    batch = (spread(x, sharded), spread(y, sharded))

    def loss(weights: Any, x: Any, y: Any) -> Any:
        return jnp.mean((x @ weights - y) ** 2)

    @jax.jit
    def step(weights: Any, x: Any, y: Any) -> Any:
        return weights - 0.1 * jax.grad(loss)(weights, x, y)

    weights = spread(np.zeros(4, np.float32), everywhere)
    for _ in range(steps):
        weights = step(weights, *batch)
    return float(jax.jit(loss)(weights, *batch)), [float(value) for value in np.asarray(weights)]


def workers_first() -> list[Any]:
    """The process counts in workers of the function that import JAX before it does: one for each way of
    starting them."""
    import multiprocessing
    import warnings

    program = "import os, jax; print(jax.process_count())"
    seen: list[Any] = [int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)]
    for method in ("fork", "spawn"):
        with warnings.catch_warnings(), multiprocessing.get_context(method).Pool(1) as pool:
            seen.append(pool.apply(eval, ("__import__('jax').process_count()",)))
    return seen


# -- JAX --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.turn(0)
def test_a_v5e_16_is_four_processes_of_four_devices_that_train_as_one(home: Path) -> None:
    """`jax.process_count() == 4`, `jax.device_count() == 16`; code that initialises itself is let through, code that
    asks for another size hears it; a sharded step agrees with a single process."""

    @kinetic.run(accelerator="v5e-16", limits=BOUNDED)
    def on_a_slice() -> dict[str, Any]:
        address, index = os.environ["JAX_COORDINATOR_ADDRESS"], int(os.environ["JAX_PROCESS_ID"])
        import jax

        counts = (jax.process_count(), jax.process_index() == index, jax.device_count(), jax.local_device_count())
        jax.distributed.initialize()
        jax.distributed.initialize(address, 4, index)
        try:
            jax.distributed.initialize(address, num_processes=8, process_id=index)
        except RuntimeError as error:
            heard = str(error)
        return {"counts": counts, "heard": heard, "trained": train()}

    @kinetic.run(accelerator="v5e-8", limits=BOUNDED)
    def on_one_host() -> dict[str, Any]:
        import jax

        return {"counts": (jax.process_count(), jax.device_count()), "trained": train()}

    many, one = on_a_slice.run_async().result(), on_one_host.run_async().result()
    assert many["counts"] == (4, True, 16, 4)
    assert "already, as process 0 of 4; this code asks for process 0 of 8" in many["heard"]
    assert one["counts"] == (1, 8)
    (loss, weights), (expected_loss, expected) = many["trained"], one["trained"]
    assert math.isclose(loss, expected_loss, rel_tol=1e-4)
    assert all(math.isclose(here, there, rel_tol=1e-4) for here, there in zip(weights, expected, strict=True))


@pytest.mark.slow
@pytest.mark.turn(3)
def test_unsynchronised_collectives_end_and_workers_do_not_join_and_keras_may(home: Path) -> None:
    """Two hosts of four devices on few cores: without a pool of threads wide enough this hangs for ever."""

    @kinetic.run(accelerator="v4-8", limits=BOUNDED)
    def loop() -> dict[str, Any]:
        seen = workers_first() if os.environ["RANK"] == "1" else []
        import jax
        import jax.numpy as jnp
        from jax.sharding import NamedSharding, PartitionSpec

        mesh = jax.make_mesh((jax.device_count(),), ("x",))
        sharding = NamedSharding(mesh, PartitionSpec("x"))
        value = jax.make_array_from_callback((8, 64), sharding, lambda index: jnp.ones((1, 64)))
        step = jax.jit(lambda value: value + (value.sum() - 512.0), out_shardings=sharding)
        for _ in range(1000):
            value = step(value)
        jax.block_until_ready(value)
        if seen:
            Path(os.environ["KINETIC_OUTPUT_DIR"], "workers").write_text(repr(seen))

        os.environ["KERAS_BACKEND"] = "jax"
        import keras

        address, index = os.environ["JAX_COORDINATOR_ADDRESS"], jax.process_index()
        keras.distribution.initialize(job_addresses=address, num_processes=2, process_id=index)
        keras.distribution.initialize()
        return {
            "counts": (jax.process_count(), jax.device_count(), len(keras.distribution.list_devices())),
            "first": float(value.addressable_data(0)[0, 0]),
        }

    job = loop.run_async()
    assert job.result() == {"counts": (2, 8, 8), "first": 1.0}
    assert Path(job.output_dir, "workers").read_text() == "[1, 1, 1]"


@pytest.mark.slow
@pytest.mark.turn(2)
def test_distributed_false_leaves_joining_to_the_code(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And flags for XLA in the submitter's shell do not change how many devices a host has."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")

    @kinetic.run(accelerator="v4-8", distributed=False, limits=BOUNDED)
    def by_itself() -> tuple[bool, int, int]:
        import jax

        joined_before = jax.distributed.is_initialized()
        here = kinetic.current()
        jax.distributed.initialize(os.environ["JAX_COORDINATOR_ADDRESS"], here.host_count, here.host_index)
        return joined_before, jax.process_count(), jax.device_count()

    assert by_itself.run_async().result() == (False, 2, 8)


# -- commands ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.turn(0)
def test_a_command_that_imports_jax_joins_and_the_environments_sitecustomize_runs(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directly and behind a shell, whose `python` is the job's."""
    project, site = tmp_path / "project", tmp_path / "site"
    project.mkdir()
    site.mkdir()
    (site / "sitecustomize.py").write_text("import os\nos.environ['OWN_SITE'] = 'ran'\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    (project / "train.py").write_text(
        "import os, sys, jax\n"
        "import kinetic_orchestration as kinetic\n"
        "here = kinetic.current()\n"
        "print('host', here.host_index, jax.process_count(), jax.device_count(), os.environ['OWN_SITE'], sys.argv[1:])\n"
    )
    command = ["sh", "-c", "echo before; python train.py --lr 0.1"]
    job = kinetic.command(command, cwd=project, accelerator="v4-8", limits=BOUNDED)
    job.result()
    lines = (job.logs() or "").splitlines()
    assert sorted(line for line in lines if " host " in line) == [
        "[host 0] host 0 2 8 ran ['--lr', '0.1']",
        "[host 1] host 1 2 8 ran ['--lr', '0.1']",
    ]

    job = kinetic.command(["python", "train.py"], cwd=project, accelerator="cpu:8", limits=BOUNDED)
    job.result()
    assert job.logs() == "host 0 1 8 ran []\n"


# -- torch ------------------------------------------------------------------------------------------------------


@pytest.mark.turn(1)
@pytest.mark.slow
@pytest.mark.timeout(900)  # an environment is built, and all of it may have to be fetched
def test_torch_finds_the_other_host_by_its_usual_variables(home: Path) -> None:
    """In an isolated environment, through pip's settings on this machine."""

    @kinetic.run(accelerator="v4-8", requirements=["torch==2.13.0"], limits=BOUNDED)
    def reduce() -> tuple[int, float]:
        import warnings

        warnings.simplefilter("ignore")  # torch says that it has no numpy
        import torch
        import torch.distributed

        torch.distributed.init_process_group("gloo")
        value = torch.ones(4) * (torch.distributed.get_rank() + 1)
        torch.distributed.all_reduce(value)
        world = torch.distributed.get_world_size()
        torch.distributed.destroy_process_group()
        return world, float(value.sum())

    try:
        job = reduce.run_async()
    except kinetic.errors.RequirementsError as error:
        pytest.skip(f"torch 2.13.0 cannot be had here: {error}")
    assert job.result() == (2, 12.0)
