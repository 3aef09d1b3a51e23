"""Trainings that are killed on frameworks that are not in this environment: they end with the very same numbers."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import CheckpointError
from tests.end_to_end.frameworks.curves import BOUNDED, samples

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
EXAMPLES = Path(__file__).parents[3] / "example_pipelines"
OFTEN = kinetic.Retry(user=3)
EPOCHS, BATCH = 3, 8

# A training by its name, and whether it is killed on its way.
Part = Callable[[str, bool], dict[str, Any]]


def each_killed_once(parts: dict[str, Part]) -> dict[str, list[dict[str, Any]]]:
    """The result of each training after a kill, and undisturbed: the n-th is killed in the n-th attempt."""
    attempt = kinetic.current().attempt
    killed = {name: part(name, number == attempt) for number, (name, part) in enumerate(parts.items(), 1)}
    return {name: [killed[name], part(f"{name}-whole", False)] for name, part in parts.items()}


def died() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def digest(*arrays: Any) -> str:
    import numpy as np

    sha = hashlib.sha256()
    for array in arrays:
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def result(program: Callable[[], Any], **options: Any) -> tuple[Any, str]:
    """And the log, which tells from where each went on."""
    job = kinetic.run(accelerator="cpu", retry=OFTEN, limits=BOUNDED, **options)(program).run_async()
    return job.result(), job.logs() or ""


# ---- torch -------------------------------------------------------------------------------------------------------------


def in_torch(name: str, dies: bool) -> dict[str, Any]:
    """Model, optimizer and schedule; an order of the data that is drawn anew in each epoch, noise of a generator of
    its own, and dropout, which draws from torch's own."""
    import torch

    torch.manual_seed(3)
    x, y, _ = samples(0, 1)
    noise, order = torch.Generator().manual_seed(5), torch.Generator()
    rows = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    loader = torch.utils.data.DataLoader(rows, BATCH, shuffle=True, generator=order)
    layers = [torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    state = {
        "model": model, "optimizer": optimizer, "schedule": schedule, "noise": noise, "chance": torch.default_generator,
    }  # fmt: skip
    training = kinetic.Training(every=3, name=name)
    state, done = training.restore(state)
    for epoch in range(done // len(loader), EPOCHS):
        order.manual_seed(epoch)
        for number, (part, wanted) in enumerate(loader, epoch * len(loader)):
            if number < done:
                continue
            found = model(part) + 0.01 * torch.randn(wanted.shape, generator=noise)
            loss = torch.nn.functional.mse_loss(found, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if dies and number == 13:
                died()
            training.step(number + 1, state, loss=loss)
    training.finish(state)
    moments = [value for one in optimizer.state.values() for value in one.values()]
    tensors = [*model.state_dict().values(), *moments]
    return {"digest": digest(*tensors), "rate": schedule.get_last_lr()}


def in_keras(name: str, dies: bool) -> dict[str, Any]:
    """Shuffled data, dropout, batch normalization and Adam, cut off in the middle of an epoch."""
    from tests.core.program.trainers.keras_program import train

    more = {
        "unbuilt": True,  # its variables are made when it sees the first batch, or by us
        "global generator": dies or name != "keras",  # in the attempt that goes on nobody has made one yet
    }
    return train({"epochs": EPOCHS, "options": {"name": name}, **({"die": [1, 6]} if dies else {}), **more})


def in_two(name: str, dies: bool) -> dict[str, Any]:
    """Two networks, each with an optimizer of its own that is built by the first step."""
    from tests.core.program.trainers.keras_program import train

    how = {"epochs": EPOCHS, "options": {"name": name}, "two": "unbuilt"}
    return train({**how, **({"die": [1, 6]} if dies else {})})


def on_torch() -> dict[str, list[dict[str, Any]]]:
    return each_killed_once({"torch": in_torch, "two": in_two, "keras": in_keras})


@pytest.mark.turn(5)  # in which another test needs the same environment, as with those below
def test_torch_and_keras_on_torch_come_to_the_same_weights(frameworks: Path) -> None:
    found, log = result(on_torch, requirements=["torch==2.13.0", "keras==3.15.1"], keras_backend="torch")
    killed, whole = found["torch"]
    assert killed == whole
    assert "torch: restored the checkpoint of step 12" in log
    check_keras(*found["keras"])
    check_keras(*found["two"])


def check_keras(killed: dict[str, Any], whole: dict[str, Any]) -> None:
    assert killed["epoch"] == whole["epoch"] == [0, 1, 2]
    assert killed["digest"] == whole["digest"]
    assert killed["history"] == whole["history"]


# ---- TensorFlow --------------------------------------------------------------------------------------------------------


def on_tensorflow() -> tuple[dict[str, list[dict[str, Any]]], str]:
    """And what is said of a model that nothing can be restored into: nobody knows its data's shapes before they come."""
    import keras
    import tensorflow

    found, refused = each_killed_once({"two": in_two, "keras": in_keras}), ""
    rows = tensorflow.data.Dataset.from_generator(lambda: iter(()), output_types=(tensorflow.float32,) * 2)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("adam", "mse")
    try:
        model.fit(rows, verbose=0, callbacks=[kinetic.KineticCallback(name="unbuilt")])
    except CheckpointError as error:
        refused = str(error)
    return found, refused


@pytest.mark.turn(0)
def test_keras_on_tensorflow_comes_to_the_same_weights_and_its_global_generator_goes_on(frameworks: Path) -> None:
    requirements = ["tensorflow-cpu==2.21.0", "keras==3.15.1"]
    (found, refused), _ = result(on_tensorflow, requirements=requirements, keras_backend="tensorflow")
    assert "call it on a batch before fit, as model(x[:1])" in refused
    killed, whole = found["keras"]
    check_keras(killed, whole)
    assert killed["drawn"][-14:] == whole["drawn"][-14:]
    check_keras(*found["two"])


# ---- Flax, Optax, Grain, Orbax -----------------------------------------------------------------------------------------


def in_flax(name: str, dies: bool) -> dict[str, Any]:
    """A model that draws its dropout, an optimizer, and the place in the data."""
    import grain
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx

    class Perceptron(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.wide, self.narrow = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 1, rngs=rngs)
            self.dropout = nnx.Dropout(0.2, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.narrow(self.dropout(jnp.tanh(self.wide(x))))

    model = Perceptron(nnx.Rngs(7))
    optimizer = nnx.Optimizer(model, optax.adam(0.02), wrt=nnx.Param)
    x, y, _ = samples(0, 1)
    rows = [{"x": one, "y": other} for one, other in zip(x, y, strict=True)]
    batches = iter(grain.MapDataset.source(rows).seed(7).shuffle().repeat().batch(BATCH).to_iter_dataset())

    @nnx.jit
    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        loss, slope = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
        optimizer.update(model, slope)
        return loss

    def now() -> dict[str, Any]:
        return {"net": nnx.state((model, optimizer)), "data": batches}

    training = kinetic.Training(every=5, name=name)
    state, done = training.restore(now())
    nnx.update((model, optimizer), state["net"])
    for number in range(done, 24):
        batch = next(batches)
        loss = step(model, optimizer, batch["x"], batch["y"])
        if dies and number == 13:
            died()
        training.step(number + 1, now, loss=loss)
    training.finish(now)
    keys = [jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
            for leaf in jax.tree.leaves(now()["net"])]  # fmt: skip
    return {"digest": digest(*keys), "next": next(batches)["y"].tolist()}


def in_orbax(name: str, dies: bool) -> dict[str, Any]:
    """`kinetic.Orbax`: killed while Orbax writes, just before the wait for it."""
    import jax
    import jax.numpy as jnp

    written, end_writing = 0, kinetic.Orbax.end_writing

    def ended(self: Any, patience: float) -> None:
        nonlocal written
        written += 1
        if dies and written == 3:
            died()
        end_writing(self, patience)

    kinetic.Orbax.end_writing = ended  # type: ignore[method-assign]
    try:
        training = kinetic.Training(every=5, name=name)
        state, done = training.restore({"net": kinetic.Orbax({"w": jnp.zeros(4096)}), "lost": 0.0})
        for number in range(done, 30):
            w = state["net"].tree["w"] + jax.random.normal(jax.random.key(number), (4096,))
            state = {"net": kinetic.Orbax({"w": w}), "lost": float(w.sum())}
            training.step(number + 1, state)
        training.finish(state)
    finally:
        kinetic.Orbax.end_writing = end_writing  # type: ignore[method-assign]
    there = len(list(Path(kinetic.current().checkpoint_dir, name).glob("step-*/orbax-*")))
    return {"digest": digest(state["net"].tree["w"]), "lost": state["lost"], "folders": there}


def in_the_example(train: Any, points: Any) -> Part:
    """Orbax' own manager, which writes in the background: killed right after it began to write step 40."""

    class Told:
        def __init__(self, name: str, dies: bool) -> None:
            self.checkpoint_dir = f"{kinetic.current().checkpoint_dir}/{name}"
            self.dies = dies

        def log_metrics(self, step: int, **_: float) -> None:
            if self.dies and step == 40:
                died()

        def progress(self, *_: Any, **__: Any) -> None: ...

    def part(name: str, dies: bool) -> dict[str, Any]:
        found = train(Told(name, dies), points, 60, 0.02)
        weights = [value for _, layer in sorted(found["weights"].items()) for _, value in sorted(layer.items())]
        return {"digest": digest(*weights), "begun": found["first_step"]}

    return part


@pytest.mark.turn(1)
def test_flax_with_grain_and_orbax_in_both_ways_come_to_the_same_weights(
    frameworks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import training_flax as example

    train, points = example.train, example.points()

    def program() -> dict[str, list[dict[str, Any]]]:
        return each_killed_once({
            "flax": in_flax, "orbax": in_orbax, "example": in_the_example(train, points),
        })  # fmt: skip

    found, log = result(program, requirements=example.REQUIREMENTS)
    assert found["example"][0].pop("begun") in (20, 40)
    assert found["example"][1].pop("begun") == 0
    for name, (killed, whole) in found.items():
        assert killed == whole, name
    assert "flax: restored the checkpoint of step 10" in log
    assert "orbax: restored the checkpoint of step 10" in log
