"""Shows three steps of one run that share a slice: it is requested once, and the next step finds it warm.

`keep="10m"` on the resource is all of it: after its step the slice is cleaned and waits for ten minutes at most, the
next step of the run takes it, and the last one leaves none. A step that fails by its own code goes on there, from the
copy of its checkpoint that the machine has. On this machine there is nothing to keep.

    python example_pipelines/warm_dagster.py             one run, here and now
    dagster dev -f example_pipelines/warm_dagster.py     the same in Dagster's own pages

To change for a real slice: nothing here. Where Dagster's runs have their environment, set
    export KINETIC_PROJECT=my-project KINETIC_STORE=gs://my-bucket/kinetic KINETIC_REQUIRE_HARDWARE=true
and KINETIC_SIGNING_KEY, if steps run on several machines: by it they may take each other's slices.
`kinor slices` shows those that are kept, and `kinor cost` what their idle time costs.
"""

from __future__ import annotations

import sys

import dagster as dg

from dagster_kinetic import KineticResource, build_kinetic_reaper_sensor, kinetic_asset
from kinetic_orchestration import Retry, Training


@kinetic_asset(accelerator="v5e-4")
def points() -> list[float]:
    """Prepared on the hosts, which are near the bucket."""
    import jax.numpy as jnp

    return [float(x) for x in jnp.linspace(0.0, 1.0, 64)]


@kinetic_asset(accelerator="v5e-4", retry=Retry(user=1))
def slope(points: list[float]) -> float:
    """The slope of a line, learned on the slice that the step before has left."""
    import jax
    import jax.numpy as jnp

    x = jnp.asarray(points)
    step = jax.jit(lambda slope: slope - 0.5 * jax.grad(lambda s: jnp.mean((s * x - 3 * x) ** 2))(slope))
    training = Training(every=20, total=100)
    found, done = training.restore(jnp.zeros(()))
    for number in range(done, 100):
        found = step(found)
        training.step(number + 1, found, off=abs(found - 3))
    training.finish(found)
    return float(found)


@kinetic_asset(accelerator="v5e-4")
def error(slope: float) -> float:
    """Return by how much the slope is off; the last step of the run, after which the slice is deleted."""
    return abs(slope - 3)


defs = dg.Definitions(
    assets=[points, slope, error],
    jobs=[dg.define_asset_job("trained")],
    sensors=[build_kinetic_reaper_sensor()],  # releases what a run that failed has left, too
    resources={"kinetic": KineticResource(keep="10m")},
)


def main() -> None:
    result = defs.resolve_job_def("trained").execute_in_process()
    off = result.output_for_node("error")
    print(f"\nresult   a slope that is off by {off:.3f}\nthe UI   dagster dev -f {sys.argv[0]}")


if __name__ == "__main__":
    main()
