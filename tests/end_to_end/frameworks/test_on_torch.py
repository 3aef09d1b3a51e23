"""Plain torch and Keras on torch, in an environment of their own: the hosts train one and the same model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from tests.end_to_end.frameworks.curves import BATCH, BOUNDED, EPOCHS, ROWS, check_same, curves, is_close, samples

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.turn(1)]
REQUIREMENTS = ["torch==2.13.0", "keras==3.15.1"]
Curves = dict[int, dict[str, list[float]]]


def plain() -> list[float]:
    """Train like torch's own tutorial: no argument names the other hosts."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group()
    count = torch.distributed.get_world_size()
    x, y, batch = samples(torch.distributed.get_rank(), count)
    torch.manual_seed(3)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    )
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    losses = []
    for _ in range(EPOCHS):
        for at in range(0, len(x), batch):
            part, wanted = torch.from_numpy(x[at : at + batch]), torch.from_numpy(y[at : at + batch])
            loss = torch.nn.functional.mse_loss(model(part), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            shown = loss.detach().clone()
            torch.distributed.all_reduce(shown)
            losses.append(float(shown) / count)
    return losses


def keras_fit() -> dict[str, list[float]]:
    """Nothing but `fit`."""
    import keras

    host = kinetic.current()
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(0.02, clipnorm=1.0), loss="mse", metrics=["mae"])
    x, y, batch = samples(host.host_index, host.host_count)
    history = model.fit(x, y, batch_size=batch, epochs=EPOCHS, shuffle=False, verbose=0, validation_data=(x, y))
    return {f"keras {name}": [float(value) for value in values] for name, values in history.history.items()}


def program() -> dict[str, list[float]]:
    """The second one finds the group that the first one has made."""
    return {"plain": plain(), **keras_fit()}


@pytest.fixture(scope="module")
def found(frameworks: Path) -> Curves:
    return curves(program, requirements=REQUIREMENTS, keras_backend="torch")


def test_plain_torch_trains_as_one(found: Curves) -> None:
    check_same(found, "plain", EPOCHS * ROWS // BATCH)


@pytest.mark.parametrize("shown", ["loss", "mae", "val_loss"])
def test_a_plain_fit_of_keras_trains_as_one_and_shows_the_numbers_of_all_hosts(found: Curves, shown: str) -> None:
    check_same(found, f"keras {shown}", EPOCHS)


def on_two(program: Any) -> Any:
    return kinetic.run(
        accelerator="v4-8", limits=BOUNDED, requirements=REQUIREMENTS, keras_backend="torch"
    )(program).run_async()  # fmt: skip


def test_hosts_that_differ_in_seed_and_data_end_with_the_same_model_after_the_same_epoch(frameworks: Path) -> None:
    """Also what a layer keeps of the batches it saw; and a callback that would stop one host only."""

    def fit() -> int:
        import keras

        host = kinetic.current()
        keras.utils.set_random_seed(host.host_index)
        layers = [keras.layers.Dense(8, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((8,)), *layers])
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01))
        model.compile(optimizer=optimizer, loss="mse")
        x, y, batch = samples(host.host_index, host.host_count)
        y = y if host.host_index else y * float("nan")  # on host 0 alone
        stop = keras.callbacks.TerminateOnNaN()
        history = model.fit(x, y, batch_size=batch, epochs=3, verbose=0, callbacks=stop)
        model.fit(x, x[:, :1], batch_size=batch, epochs=2, verbose=0)
        weights = [weight.tolist() for weight in model.get_weights()]
        Path(host.output_dir, str(host.host_index)).write_text(json.dumps([len(history.history["loss"]), weights]))
        return host.host_count

    job = on_two(fit)
    assert job.result() == 2
    (first, weights), (second, others) = (json.loads(Path(job.output_dir, str(n)).read_text()) for n in range(2))
    assert first == second
    assert weights == others


def test_hosts_that_would_wait_for_each_other_for_ever_say_so(frameworks: Path) -> None:
    def fit() -> None:
        import keras

        host = kinetic.current()
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile(loss="mse")
        x, y, _ = samples(0, 1)
        rows = ROWS - 8 * host.host_index
        model.fit(x[:rows], y[:rows], batch_size=8, verbose=0)

    with pytest.raises(ValueError, match="the hosts would train 8, 7 steps per epoch and wait"):
        on_two(fit).result()


def test_a_program_that_joins_by_itself_and_trains_without_fit_is_left_alone(frameworks: Path) -> None:
    def loop() -> list[float]:
        import keras
        import torch

        torch.distributed.init_process_group("gloo")
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_weights)
        before = model.get_weights()[0].copy()
        host = kinetic.current()
        optimizer.apply([torch.full(tuple(v.shape), float(host.host_index)) for v in model.trainable_weights])
        return [float(abs(model.get_weights()[0] - before).max())]

    assert is_close(on_two(loop).result(), [0.0]), "host 0's own gradients were nought"


def test_a_program_that_leaves_its_group_before_its_model_ends(frameworks: Path) -> None:
    """Torch itself hangs in most of these: the model takes the group with it when the function returns."""

    def rounds() -> float:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        group, host = torch.distributed, kinetic.current()

        def once() -> float:
            model = DistributedDataParallel(torch.nn.Linear(8, 8))
            model(torch.ones(2, 8)).sum().backward()
            shown = torch.ones(1)
            group.all_reduce(shown)
            found = float(shown)
            group.destroy_process_group()
            return found

        group.init_process_group("gloo")
        store = group.distributed_c10d._get_default_store()
        found = once()
        place = {"rank": host.host_index, "world_size": host.host_count}
        for number in range(99):
            group.init_process_group("gloo", store=group.PrefixStore(f"round {number}", store), **place)
            found += once()
        return found

    assert on_two(rounds).result(timeout=600) == 200


def test_groups_that_nobody_has_any_more_are_let_go(frameworks: Path) -> None:
    """One an epoch would else take all threads and files that there are."""

    def rounds() -> int:
        import os

        import torch

        group, held = torch.distributed, [0]
        group.init_process_group("gloo")
        for _ in range(30):
            part = group.new_group()
            group.all_reduce(torch.ones(1), group=part)
            group.destroy_process_group(part)
            del part
            held.append(len(os.listdir("/proc/self/fd")))
        group.destroy_process_group()
        return held[-1] - held[5]

    assert on_two(rounds).result(timeout=600) < 10
