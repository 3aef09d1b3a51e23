"""A task as a client writes it, for tests that make a spec by hand."""

from __future__ import annotations

from typing import Any

from kinetic_orchestration.protocol.wire.task import Hardware, Payload, Task

DIGEST = "a" * 64
TASK = Task(
    name="train",
    argv=(),
    payload=Payload(DIGEST, 1),
    tree=DIGEST,
    cwd="",
    path=(".",),
    extra_path=(),
    data=(),
    packages=(),
    volumes={},
    environment=None,
    python="/usr/bin/python3",
    env={},
    devices=1,
    emulated=False,
    processes=1,
    distributed=False,
    output_dir="outputs/x",
    checkpoint_dir="checkpoints/x",
    partition_key="",
    provision=900.0,
    run=0.0,
    affordable=0.0,
    stall=0.0,
    debug=0,
    profile={},
    project="",
    accelerator=Hardware("cpu"),
    slices=1,
    secrets={},
    tools={},
    beside={},
    image="",
    owned=False,
    kept=False,
    compile_cache=True,
    device_metrics=True,
    reshard=False,
    global_batch=0,
    quick=True,
)


def in_spec(**changes: Any) -> dict[str, Any]:
    """The task as a spec has it, with these fields changed."""
    return TASK._replace(**changes).to_json()
