"""Trainings that run as jobs on hosts of their own."""

from __future__ import annotations

import hashlib
import os
import random
import time
from pathlib import Path
from typing import Any

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import CheckpointDiffers
from kinetic_orchestration.program.checkpoints import background


def counts(
    steps: int,
    pause: float,
    every: Any,
    marks: str,
    full: tuple[int, int] = (-1, 0),
    uneven: float = 1.0,
    large: bool = False,
    cut_off: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Count without any framework: each host at a speed of its own, with numbers of its own. `full`: the host whose
    files cannot grow from that step on. `large`: an array that is changed in place counts as one. `cut_off`: the first
    attempt does not end by itself, and the one after it continues for that many steps.
    """
    host = kinetic.current()
    chance = random.Random(host.host_index)
    state: dict[str, Any] = {"sum": 0.0, "own": [host.host_index], "chance": chance, "big": bytes(50_000)}
    if large:
        import numpy as np

        background.LARGE = 1
        state["array"] = np.zeros(1000)
    training = kinetic.Training(every=every, total=steps, **options)
    state, begun = training.restore(state)
    assert state["chance"] is chance
    mark(marks, "keeps", host.checkpoint_dir)
    mark(marks, "began", begun)
    if cut_off:
        steps = 100_000 if host.attempt == 1 else begun + steps
    try:
        for number in range(begun, steps):
            time.sleep(pause * (1 + uneven * host.host_index))
            state = {**state, "sum": state["sum"] + chance.random()}
            if large:
                assert (state["array"] == number).all()
                state["array"] += 1
            if full == (host.host_index, number):
                import resource

                resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
            training.step(number + 1, state, value=state["sum"])
            if number == begun + 3:
                mark(marks, "runs", number)
        training.finish(state)
    except kinetic.TrainingEnded as ended:
        mark(marks, "ended", ended.step)
        mark(marks, ended.cause, int(ended.saved))
        raise
    return {"sum": state["sum"], "own": state["own"], "begun": begun, "attempt": host.attempt}


def breaks() -> int:
    """A loop without `with`, whose first checkpoint is on its way for a second when an exception ends it."""
    import numpy as np

    training = kinetic.Training(every=1)
    state, done = training.restore({"array": np.zeros(1000)})
    if done:
        return done
    background.LARGE, fsync = 1, os.fsync

    def slow(file: int) -> None:
        os.fsync = fsync
        time.sleep(1.0)
        fsync(file)

    os.fsync = slow
    training.step(1, state)
    raise KeyError("no data")


def mark(folder: str, what: str, value: object) -> None:
    host = kinetic.current()
    there = Path(folder)
    there.mkdir(exist_ok=True)
    part = there / f".{what}-{host.attempt}-{host.host_index}"
    part.write_text(str(value))
    part.rename(there / f"{what}-{host.attempt}-{host.host_index}")


def trains_on_a_slice(
    steps: int, pause: float, every: Any, marks: str, fill: int = 0, devices: int = 0, paused: int = 100
) -> dict[str, Any]:
    """JAX over all hosts: one weight spread over all devices, one that all have, data that each host draws itself.
    `devices`: of each host, fewer than its slice has: a step then takes a tenth of the CPU. With something to `fill`
    them, checkpoints are written beside the steps. `paused`: the attempts whose steps take a `pause`.
    """
    if devices:
        os.environ["JAX_NUM_CPU_DEVICES"] = str(devices)
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental import multihost_utils
    from jax.sharding import NamedSharding, PartitionSpec

    host = kinetic.current()
    if fill:
        background.LARGE = 1
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    spread, same = NamedSharding(mesh, PartitionSpec("x")), NamedSharding(mesh, PartitionSpec())

    def placed(value: Any, sharding: Any) -> Any:
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    first = np.random.default_rng(5)
    weights = {
        "w": placed(first.normal(size=(64, 24)).astype("float32"), spread),
        "v": placed(np.zeros(24, "float32"), same),
    }
    chance = np.random.default_rng(100 + host.host_index)
    state = {
        "weights": weights,
        "momentum": jax.tree.map(jnp.zeros_like, weights),
        "key": jax.random.key(3),
        "chance": chance,
        "fill": np.zeros(fill, np.uint8),
    }
    rows = 64 // host.host_count

    @jax.jit
    def update(weights: Any, momentum: Any, batch: Any, noise: Any) -> Any:
        def loss_of(weights: Any) -> Any:
            out = jnp.tanh(batch @ weights["w"].T @ weights["w"] + weights["v"] + noise)
            return ((out - jnp.roll(batch, 1, axis=1)) ** 2).mean()

        loss, gradient = jax.value_and_grad(loss_of)(weights)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
        return jax.tree.map(lambda w, m: w - 0.05 * m, weights, momentum), momentum, loss

    training = kinetic.Training(every=every, total=steps, keep=2)
    state, begun = training.restore(state)
    mark(marks, "began", begun)
    for number in range(begun, steps):
        time.sleep(pause if host.attempt <= paused else 0.0)
        mine = chance.normal(size=(rows, 24)).astype("float32")
        batch = jax.make_array_from_process_local_data(spread, mine, (64, 24))
        key, drawn = jax.random.split(state["key"])
        noise = np.asarray(jax.random.normal(drawn, (24,))) * 0.01
        weights, momentum, loss = update(state["weights"], state["momentum"], batch, noise)
        state = {**state, "weights": weights, "momentum": momentum, "key": key}
        training.step(number + 1, state, loss=loss)
        if number == begun + 2:
            mark(marks, "runs", number)
    training.finish(state)
    whole = [multihost_utils.process_allgather(leaf, tiled=True) for leaf in jax.tree.leaves(state["weights"])]
    sha = hashlib.sha256()
    for leaf in whole:
        sha.update(np.ascontiguousarray(leaf).tobytes())
    return {
        "digest": sha.hexdigest(), "begun": begun, "attempt": host.attempt, "loss": float(loss),
        "drawn": chance.random(), "processes": jax.process_count(), "pid": os.getpid(),
    }  # fmt: skip


def fits_on_a_slice(epochs: int, pause: float, marks: str) -> dict[str, Any]:
    """Keras on JAX over all hosts, disturbed as a test wants; and, once that is through, the same again undisturbed.
    The steps of the first two attempts take a `pause`.
    """
    import keras
    import numpy as np

    host = kinetic.current()
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    x = np.random.default_rng(3).normal(size=(80, 6)).astype("float32")[host.host_index :: host.host_count]

    class Slow(keras.callbacks.Callback):  # type: ignore[misc]
        steps = 0

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            time.sleep(pause if host.attempt < 3 else 0.0)
            self.steps += 1
            if self.steps == 5:
                mark(marks, "runs", self.steps)

    def fit(name: str, *more: Any) -> tuple[str, list[int]]:
        keras.utils.set_random_seed(7)
        layers = [keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.2), keras.layers.BatchNormalization()]
        model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(1)])
        model.compile("adam", "mse", metrics=["mae"])
        callbacks = [kinetic.KineticCallback(every=3, name=name), *more]
        done = model.fit(x, x.sum(1), batch_size=4, epochs=epochs, verbose=0, callbacks=callbacks)
        sha = hashlib.sha256()
        for variable in [*model.variables, *model.optimizer.variables]:
            sha.update(np.asarray(variable.value).tobytes())
        return sha.hexdigest(), done.epoch

    disturbed, seen = fit("disturbed", Slow())
    return {"digests": [disturbed, fit("whole")[0]], "epochs": seen, "attempt": host.attempt}


def lies_on_a_slice(checkpoints: str) -> list[Any]:
    """Writes a state over all devices, if there is none; what is restored, and what is said without `reshard`."""
    import jax
    import numpy as np
    from jax.experimental import multihost_utils
    from jax.sharding import NamedSharding, PartitionSpec

    os.environ["KINETIC_CHECKPOINT_DIR"] = checkpoints
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(-1, 2), ("x", "y"))
    whole = np.arange(64 * 48, dtype="float32").reshape(64, 48)

    def placed(value: Any, *axes: Any) -> Any:
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    def state_of(value: Any) -> dict[str, Any]:
        return {"spread": placed(value, "y", "x"), "column": placed(value, None, "x"), "same": placed(value), "n": 0}

    told, done = "", 0
    for reshard in (False, True):
        try:
            with kinetic.Training(every=1, name="t", reshard=reshard) as training:
                state, done = training.restore(state_of(whole * 0))
                if not done:
                    training.step(7, {**state_of(whole), "n": 7})
                    return [training._done]
        except CheckpointDiffers as error:
            told = str(error)
    found = [multihost_utils.process_allgather(state[name], tiled=True) for name in ("spread", "column", "same")]
    return [done, state["n"], [bool((one == whole).all()) for one in found], told]


def is_killed_while_it_saves() -> int:
    """The first attempt ends within its second checkpoint, by SIGKILL; the second returns the step at which it began."""
    import signal
    import threading

    import numpy as np

    host = kinetic.current()
    training = kinetic.Training(every=5, tier="disk")
    state, begun = training.restore({"array": np.zeros(100_000)})
    if host.attempt > 1:
        return begun
    for number in range(begun, 10):
        if number == 9:
            slot = Path(dict(host._tier)["KINETIC_TIER_DISK"], "training", "slot-0")
            threading.Thread(target=_kill_once, args=(slot, signal.SIGKILL), daemon=True).start()
        state = {"array": state["array"] + 1}
        training.step(number + 1, state)
    return -1


def trains_and_waits() -> None:
    """Train to step 10, and stay."""
    import numpy as np

    training = kinetic.Training(every=5)
    state, begun = training.restore({"array": np.zeros(100_000)})
    print(f"began at {begun}", flush=True)
    for number in range(begun, 10):
        state = {"array": state["array"] + 1}
        training.step(number + 1, state)
    print("has saved", flush=True)
    time.sleep(600)


def _kill_once(slot: Path, number: int) -> None:
    """Kill this process once a part is being written, whose upload takes for ever."""
    while not list(slot.glob("kinetic-*/part-*")):
        time.sleep(0.005)
    os.kill(os.getpid(), number)


def keeps_copies(steps: int) -> list[int]:
    """Return how many copies each host has once it has its own newest part and that of the host before it."""
    import numpy as np

    host = kinetic.current()
    training = kinetic.Training(every=steps)
    own = Own(np.arange(100_000) + host.host_index)
    state, begun = training.restore({"own": own, "n": 0})
    for number in range(begun, steps):
        training.step(number + 1, {**state, "n": number})
    slot = Path(dict(host._tier)["KINETIC_TIER_DISK"], "training", "slot-0")
    until = time.monotonic() + 100
    while (count := sum(len(path.name) == 64 for path in slot.iterdir())) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert training._checkpoints is not None
    every = training._checkpoints.agreement.gather("copies", count, 100.0)  # none closes before the others have theirs
    training.close()
    return every


class Own:
    """A state of each host's own."""

    each_hosts_own = True

    def __init__(self, value: Any) -> None:
        self.value = value

    def get_state(self) -> Any:
        return self.value

    def set_state(self, value: Any) -> None:
        self.value = value


def writes_files(url: str, checkpoints: str, marks: str) -> dict[str, Any]:
    """Count to 14, in files of each host's own that are sent to a bucket. The last host dies in the middle of its third
    checkpoint, once those of the second are in the bucket."""
    import signal

    os.environ.update({"STORAGE_EMULATOR_HOST": url, "KINETIC_CHECKPOINT_DIR": checkpoints})
    host, state, saved = kinetic.current(), {"sum": 0}, []

    def save(folder: str) -> None:
        step = int(folder.rpartition("-")[2])
        if host.attempt == 1 and step == 9:
            until = time.monotonic() + 100
            while steps._checkpoints._newest_sent() < 6 and time.monotonic() < until:
                time.sleep(0.02)
            mark(marks, "sent", 6)
            while len(list(Path(marks).glob("sent-1-*"))) < 2 and time.monotonic() < until:
                time.sleep(0.02)
        Path(folder, f"sum-{host.host_index}").write_text(str(state["sum"]))
        if host.attempt == 1 and step == 9 and host.host_index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        saved.append(step)

    def load(folder: str) -> None:
        found = {Path(folder, f"sum-{other}").read_text() for other in range(host.host_count)}
        (state["sum"],) = map(int, found)

    steps = kinetic.torch.files(save, load, every=3, keep=2, total=14)
    begun = steps.restore()
    for number in range(begun, 14):
        state["sum"] += number
        steps.step(number + 1, value=state["sum"])
    steps.finish()
    folder = Path(steps._checkpoints.folder)
    return {"begun": begun, "sum": state["sum"], "saved": saved, "folders": sorted(os.listdir(folder))}
