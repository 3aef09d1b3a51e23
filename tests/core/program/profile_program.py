"""`profile=` in a program with JAX: one case after another, each as if it were a host's whole program.

python profile_program.py FOLDER [gs://BUCKET/PREFIX]
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from kinetic_orchestration.host.process.frameworks import join, profiler

os.environ.pop("KINETIC_SITE", None)
FOLDER = Path(sys.argv[1])


def host(name: str, output: str = "", **asked: Any) -> Any:
    """This process as the first host of a job that is to be profiled so."""
    place = FOLDER / name
    place.mkdir()
    for variable, value in {
        "JOB_ID": name, "ATTEMPT": "2", "HOST_INDEX": "0", "HOST_COUNT": "1", "PARTITION_KEY": "",
        "OUTPUT_DIR": output or str(place / "out"), "CHECKPOINT_DIR": str(place / "kept"), "EVENTS": str(place / "events"),
        "NOTICE": str(place / "notice"),
        "TRACE": json.dumps({"steps": 0, "seconds": 0.0, "after": 0, "wait": None, "hosts": 0, **asked}),
    }.items():  # fmt: skip
        os.environ[f"KINETIC_{variable}"] = value
    sys.stderr.write(f"{name}\n")
    if "jax" in sys.modules:
        found = profiler.install()
        assert found is not None
        found.imported()
    else:
        join.install()
        found = profiler.current()
    return found


def train(steps: int, at: Any = None) -> Any:
    """Their loss, which no profile may change; `at` is called before each."""
    import jax
    import jax.numpy as jnp

    import kinetic_orchestration as kinetic

    update = jax.jit(lambda w: w - 0.1 * jnp.tanh(w @ w))
    with kinetic.Training(every=None) as training:
        w, done = training.restore(jnp.ones((8, 8)))
        for number in range(done, steps):
            if at is not None:
                at(number)
            w = update(w)
            training.step(number + 1, w)
    return float(w.sum())


def ended(found: Any) -> None:
    found.close()
    assert found.state == profiler.OVER
    assert not list(FOLDER.glob("*/profile-*")), "what was captured by the way is gone"


def main(bucket: str) -> None:
    found = host("counted", steps=3, after=4)
    import jax
    import jax.profiler

    from kinetic_orchestration.program.context import current

    for number in range(9):  # before it asks for its devices, which a profile may not do in its place
        current().progress(number + 1, 9, "files")
    jax.config.update("jax_num_cpu_devices", 1)
    loss = train(12)
    ended(found)

    # The program's own profile runs when this one would begin; then, begins while this one runs.
    found = host("second", steps=3, after=4)
    with jax.profiler.trace(str(FOLDER / "second" / "own")):
        assert train(12) == loss
    ended(found)

    found = host("giving-way", steps=6, after=4)

    def own(number: int) -> None:
        if number == 7:
            jax.profiler.start_trace(str(FOLDER / "giving-way" / "own"))

    assert train(12, own) == loss
    jax.profiler.stop_trace()
    ended(found)
    assert jax.profiler.start_trace.__module__ == "jax._src.profiler"
    assert not hasattr(jax.profiler.start_trace, "__wrapped__")

    (FOLDER / "file").touch()
    found = host("no-place", str(FOLDER / "file" / "out"), steps=2)
    assert train(6) == train(6)
    ended(found)

    found = host("timed", seconds=0.3, wait=0.1)
    work, end = jax.jit(jax.numpy.tanh), time.monotonic() + 60
    while found.state != profiler.OVER and time.monotonic() < end:
        work(jax.numpy.ones(100)).block_until_ready()
    ended(found)

    found, end = host("noticed", seconds=60.0, wait=0.0), time.monotonic() + 60
    while found.state == profiler.WAITING and time.monotonic() < end:
        time.sleep(0.01)
    Path(os.environ["KINETIC_NOTICE"]).write_text('{"cause": "preemption", "grace": 8}', encoding="utf-8")
    while found.state != profiler.OVER and time.monotonic() < end:
        time.sleep(0.01)
    ended(found)

    profiler.LONG, profiler.SHARE = 0.2, 1e-9
    found, held, end = host("growing", seconds=60.0, wait=0.0), [], time.monotonic() + 60
    while found.state != profiler.OVER and time.monotonic() < end:
        held.append(b"x" * (1 << 20))
        work(jax.numpy.ones(100)).block_until_ready()
        time.sleep(0.01)
    ended(found)
    profiler.LONG, profiler.SHARE = 10.0, 1 / 8

    found = host("two-trainings", steps=30, after=4)  # the first is too short, and the second ends too early
    train(3)
    train(6)
    ended(found)

    found = host("progress", steps=2, after=1)
    for number in range(6):
        current().progress(number + 1, 6)
    ended(found)

    found = host("within", steps=2, after=1)  # said from within what is computed, for which nobody may wait there
    ones = jax.numpy.ones((1500, 1500))
    first = jax.jit(lambda a: (a @ a @ a @ a)[0, :8]).lower(ones).compile()

    def one(w: Any, number: Any) -> Any:
        jax.debug.callback(lambda number: current().progress(int(number) + 1, 6), number)
        return w + 1, ()

    then = jax.jit(lambda w: jax.lax.scan(one, w, jax.numpy.arange(6))[0]).lower(ones[0, :8]).compile()
    then(first(ones)).block_until_ready()
    jax.effects_barrier()
    ended(found)

    # A JAX that lacks something, and whose profiler is free again afterwards.
    annotation, jax.profiler.StepTraceAnnotation = jax.profiler.StepTraceAnnotation, None  # type: ignore[misc,assignment]
    found = host("broken", steps=2, after=1)
    assert train(12) == loss
    ended(found)
    jax.profiler.StepTraceAnnotation = annotation  # type: ignore[misc]
    with jax.profiler.trace(str(FOLDER / "broken" / "own")):
        train(1)

    ended(host("uncounted", steps=2))
    found = host("few", steps=2, after=100)
    train(6)
    ended(found)

    if bucket:
        found = host("bucket", bucket, steps=2, after=1)
        train(5)
        ended(found)

    found, end = host("at-exit", seconds=60.0, wait=0.0), time.monotonic() + 60
    while found.state == profiler.WAITING and time.monotonic() < end:
        time.sleep(0.01)
    threading.Thread.start = no_more_threads  # type: ignore[method-assign]


def no_more_threads(_: threading.Thread) -> None:
    """Raise like Python 3.12 once a program is at its end."""
    raise RuntimeError("can't create new thread at interpreter shutdown")


if __name__ == "__main__":
    main(sys.argv[2] if len(sys.argv) > 2 else "")
