"""A training goes on with four hosts, then two, then four: one batch, each sample once, and the losses of one that
nothing disturbed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import JobError
from tests.end_to_end.frameworks.curves import BOUNDED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.turn(9)]
STEPS, BATCH, EPOCHS = 24, 32, 4
ROWS = STEPS * BATCH
BOUND = 2e-6  # of a loss, as its part: sixteen times the rounding of float32, which adds in another order
ONCE = kinetic.Retry(user=0, infra=0)
Breaks = tuple[str, int, int]  # how, at which step, on which host (-1: all)


def data(rows: int) -> tuple[Any, Any]:
    import numpy as np

    random = np.random.default_rng(0)
    x = random.normal(size=(rows, 8)).astype(np.float32)
    return x, np.tanh(x @ random.normal(size=(8, 1)).astype(np.float32))


def plain(seen: str, breaks: Breaks | None) -> list[Any]:
    """JAX over all hosts, a device each: a weight that is spread over them and one that all have, with momentum."""
    os.environ["JAX_NUM_CPU_DEVICES"] = "1"
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    from kinetic_orchestration.program.checkpoints.store import FolderStore

    host = kinetic.current()
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    rows, columns, same = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("x",), (None, "x"), ()))

    def placed(value: Any, sharding: Any) -> Any:
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    random = np.random.default_rng(1)
    weights = {
        "wide": placed(random.normal(size=(8, 64)).astype(np.float32), columns),
        "narrow": placed(random.normal(size=(64, 1)).astype(np.float32) / 8, same),
    }
    state = {"weights": weights, "momentum": jax.tree.map(jnp.zeros_like, weights)}

    @jax.jit
    def slope(weights: Any, x: Any, y: Any) -> Any:
        return jax.value_and_grad(lambda w: ((jnp.tanh(x @ w["wide"]) @ w["narrow"] - y) ** 2).mean())(weights)

    @jax.jit
    def descend(state: Any, gradient: Any) -> Any:
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], gradient)
        return {"weights": jax.tree.map(lambda w, m: w - 0.01 * m, state["weights"], momentum), "momentum": momentum}

    if breaks and breaks[0] == "killed" and host.host_index == breaks[2]:
        report = FolderStore.report_part

        def killed(self: Any, folder: str, *told: Any, **more: Any) -> None:
            if int(folder.split("-")[1]) == breaks[1]:  # its part is there, and nobody knows
                os.kill(os.getpid(), signal.SIGKILL)
            report(self, folder, *told, **more)

        FolderStore.report_part = killed  # type: ignore[method-assign]
    x, y = data(ROWS)
    training = kinetic.Training(every=3, total=STEPS, per_host=8)
    state, begun = training.restore(state)
    assert training.batch is not None
    told = [begun, training.samples]
    for number in range(begun, STEPS):
        if breaks and breaks[0] == "raised" and number == breaks[1]:
            raise KeyError("no data")
        parts = training.indices()
        found = [
            slope(state["weights"], *(jax.make_array_from_process_local_data(rows, one[part]) for one in (x, y)))
            for part in parts
        ]
        loss, gradient = jax.tree.map(lambda *each: sum(each) / len(each), *found)
        state = descend(state, gradient)
        Path(seen, f"{number}-{host.host_index}-{host.host_count}").write_text(json.dumps([float(loss), parts]))
        training.step(number + 1, state, loss=loss)
    training.finish(state)
    return [*told, training.samples, str(training.batch)]


def in_keras(seen: str, breaks: Breaks | None) -> list[float]:
    """Nothing but `fit` with this host's rows; the data are the same in each epoch."""
    os.environ["JAX_NUM_CPU_DEVICES"] = "1"
    import keras

    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    keras.utils.set_random_seed(7)

    class Break(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if breaks and int(self.model.optimizer.iterations) == breaks[1]:
                raise KeyError("no data")

    layers = [keras.layers.Dense(16, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile(keras.optimizers.Adam(0.02), "mse")
    callback = kinetic.KineticCallback(every=3)
    assert callback.batch is not None
    x, y = data(ROWS // EPOCHS)
    rows = callback.batch.rows(len(x))
    history = model.fit(
        x[rows], y[rows], batch_size=callback.batch.per_host, epochs=EPOCHS, shuffle=False, verbose=0,
        callbacks=[callback, Break()],
    )  # fmt: skip
    host = kinetic.current()
    Path(seen, f"rows-{host.host_index}-{host.host_count}").write_text(json.dumps(rows))
    return [float(value) for value in history.history["loss"]]


def launched(program: Callable[..., Any], key: str, accelerator: str, *given: Any) -> Any:
    """The job of a slice, with options that are the same on each."""
    decorate = kinetic.run(
        accelerator=accelerator, key=key, retry=ONCE, limits=BOUNDED, keras_backend="jax", reshard=True,
        global_batch=BATCH,
    )  # fmt: skip
    return decorate(program).run_async(*given)


def losses(seen: Path, hosts: Callable[[int], int]) -> list[float]:
    """The loss of each step as the number of hosts of that step saw it, after its samples were compared: all hosts'
    together are the batch in its order."""
    found = []
    for step in range(STEPS):
        each = [json.loads((seen / f"{step}-{host}-{hosts(step)}").read_text()) for host in range(hosts(step))]
        samples = [
            sample for parts in zip(*(parts for _, parts in each), strict=True) for part in parts for sample in part
        ]
        assert samples == list(range(step * BATCH, (step + 1) * BATCH)), step
        assert len({loss for loss, _ in each}) == 1
        found.append(each[0][0])
    return found


def test_four_hosts_then_two_then_four_have_the_losses_of_four_that_nothing_disturbed(
    shared_home: Path, tmp_path: Path
) -> None:
    """The first are killed when a part of step 9 is written and not committed; the second raise within step 16."""
    disturbed, whole = tmp_path / "disturbed", tmp_path / "whole"
    disturbed.mkdir(), whole.mkdir()
    assert launched(plain, "whole", "v5e-16", str(whole), None).result() == [
        0,
        0,
        ROWS,
        "global batch 32 = 4 hosts × 8",
    ]
    expected = losses(whole, lambda step: 4)
    first = launched(plain, "elastic", "v5e-16", str(disturbed), ("killed", 9, 2))
    with pytest.raises(JobError):
        first.result()
    second = launched(plain, "elastic", "v4-8", str(disturbed), ("raised", 16, -1))
    with pytest.raises(KeyError):
        second.result()
    log = second.logs() or ""
    assert log.count("training: global batch 32 = 2 hosts × 8 × 2 steps of accumulation") == 1
    assert "training: restored the checkpoint of step 6, of 4 hosts, on 2" in log
    third = launched(plain, "elastic", "v5e-16", str(disturbed), None)
    assert third.result() == [15, 15 * BATCH, ROWS, "global batch 32 = 4 hosts × 8"]
    assert "training: restored the checkpoint of step 15, of 2 hosts, on 4" in (third.logs() or "")
    found = losses(disturbed, lambda step: 2 if 6 <= step < 15 else 4)
    apart = max(abs(one - other) / other for one, other in zip(found, expected, strict=True))
    print(f"at most {apart:.1e} of a loss apart")
    assert found[-1] < 0.7 * found[0] and apart < BOUND


def test_keras_on_four_hosts_then_two_then_four_has_the_losses_of_four_that_nothing_disturbed(
    shared_home: Path, tmp_path: Path
) -> None:
    expected = launched(in_keras, "whole fit", "v5e-16", str(tmp_path), None).result()
    rows = [json.loads((tmp_path / f"rows-{host}-4").read_text()) for host in range(4)]
    assert sorted(row for part in rows for row in part) == list(range(ROWS // EPOCHS))
    with pytest.raises(KeyError):
        launched(in_keras, "elastic fit", "v5e-16", str(tmp_path), ("raised", 8, -1)).result()
    second = launched(in_keras, "elastic fit", "v4-8", str(tmp_path), ("raised", 16, -1))
    with pytest.raises(KeyError):
        second.result()
    assert "training: restored the checkpoint of step 6, of 4 hosts, on 2" in (second.logs() or "")
    third = launched(in_keras, "elastic fit", "v5e-16", str(tmp_path), None)
    found = third.result()
    assert "training: restored the checkpoint of step 15, of 2 hosts, on 4" in (third.logs() or "")
    apart = max(abs(one - other) / other for one, other in zip(found, expected, strict=True))
    print(f"at most {apart:.1e} of a loss apart")
    assert found[-1] < 0.7 * found[0] and apart < BOUND
