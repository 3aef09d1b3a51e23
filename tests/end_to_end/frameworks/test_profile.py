"""The traces of `profile=` for each framework, opened by XProf itself in an environment of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from tests.end_to_end.frameworks import test_on_tensorflow, test_on_torch
from tests.end_to_end.frameworks.curves import BATCH, BOUNDED, samples

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.turn(0)]
XPROF = ["jax==0.10.2", "xprof==2.24.2"]


def loop() -> int:
    """A loop over all devices of all hosts."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread, same = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    x, y, batch = samples(jax.process_index(), jax.process_count())

    @jax.jit
    def update(w: Any, x: Any, y: Any) -> Any:
        loss, slope = jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(x @ w) - y) ** 2))(w)
        return w - 0.1 * slope, loss

    training = kinetic.Training(every=None)
    w, done = training.restore(jax.device_put(np.zeros((8, 1), np.float32), same))
    for number in range(done, 10):
        rows = (jax.make_array_from_process_local_data(spread, part[:batch]) for part in (x, y))
        w, loss = update(w, *rows)
        training.step(number + 1, w, loss=loss)
    training.finish(w)
    return jax.local_device_count()


def fit() -> None:
    import keras

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
    x, y, _ = samples(0, 1)
    model.fit(x, y, batch_size=BATCH // 4, epochs=2, verbose=0, callbacks=[kinetic.KineticCallback(every=None)])


def opened(places: list[str]) -> list[dict[str, Any]]:
    """The tools that XProf's own library, the base of its pages, finds below each log directory."""
    import collections
    import glob
    import json

    from xprof.convert import raw_to_tool_data

    def one(place: str) -> dict[str, Any]:
        paths = sorted(glob.glob(f"{place}/plugins/profile/*/*.xplane.pb"))
        hosts = [path.rpartition("/")[2].partition(".")[0] for path in paths]
        operations, _ = raw_to_tool_data.xspace_to_tool_data(paths, "framework_op_stats", {})
        overview, _ = raw_to_tool_data.xspace_to_tool_data(paths, "overview_page", {})
        tables = [table for table in json.loads(overview) if table.get("cols")]
        (steps,) = (table for table in tables if table["cols"][0]["id"] == "stepnum")
        events = {}
        for host, path in zip(hosts, paths, strict=True):
            trace = json.loads(raw_to_tool_data.xspace_to_tool_data([path], "trace_viewer", {})[0])
            events[host] = collections.Counter(one["name"] for one in trace["traceEvents"] if one.get("ph") == "X")
        return {
            "operations": [row["c"][3]["v"] for row in json.loads(operations)[0]["rows"]],
            "steps": [row["c"][0]["v"] for row in steps["rows"]], "events": events,
        }  # fmt: skip

    return [one(place) for place in places]


def test_xprof_opens_what_was_captured_of_every_framework_and_every_host(frameworks: Path) -> None:
    every = kinetic.Profile(steps=4, after=3, hosts="all")
    one: dict[str, Any] = {"accelerator": "cpu", "profile": kinetic.Profile(steps=5, after=3)}
    jobs = [
        kinetic.run(limits=BOUNDED, **options)(program).run_async()
        for program, options in (
            (loop, {"accelerator": "v4-8", "profile": every}),
            (fit, {"keras_backend": "torch", "requirements": test_on_torch.REQUIREMENTS, **one}),
            (fit, {"keras_backend": "tensorflow", "requirements": test_on_tensorflow.REQUIREMENTS, **one}),
        )
    ]
    devices, *_ = [job.result() for job in jobs]
    places = [job.profile_dir() for job in jobs]
    assert places == [f"{job.output_dir}/profile" for job in jobs], [job.logs() for job in jobs]
    opener = kinetic.run(accelerator="cpu", limits=BOUNDED, requirements=XPROF)(opened)
    jax, torch, tensorflow = opener.run_async(places).result()

    assert jax["steps"] == ["step 4", "step 5", "step 6", "step 7"]
    assert list(jax["events"]) == ["host-0000", "host-0001"]
    for host, events in jax["events"].items():
        collectives = {name: count for name, count in events.items() if name.startswith("all-reduce")}
        assert collectives and set(collectives.values()) == {4 * devices}, (host, events)
    assert tensorflow["steps"] == [f"train {number}" for number in range(4, 9)]
    assert torch["events"]["host-0000"]["aten::tanh"] == tensorflow["events"]["host-0000"]["TanhGrad"] == 5
    assert {f"ProfilerStep#{number}" for number in range(4, 9)} <= set(torch["events"]["host-0000"])
    assert "Tanh" in " ".join(tensorflow["operations"]), tensorflow["operations"]
