"""Runs MaxText's pre-training on a host: `python -m kinetic_orchestration.program.trainers.maxtext key=value …`.

The words are MaxText's own. What a job knows better is added where they do not say it: the run's name and folder, which
are the same for each attempt, the hardware, the slices, and the file from which its numbers are read. The slice is
joined before MaxText begins, which then leaves that out.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Mapping, Sequence

from kinetic_orchestration.host.process.topology import expected
from kinetic_orchestration.program.context import HostContext, current
from kinetic_orchestration.program.trainers.command import FILE
from kinetic_orchestration.protocol.system import copies

TRAINER = "maxtext.trainers.pre_train.train"
RUN = "run"  # MaxText continues the run of its name: each attempt has the same


def arguments(given: Sequence[str], host: HostContext, environ: Mapping[str, str]) -> list[str]:
    """Return the words for MaxText: those given, and before them what they leave open.

    Args:
        given: `key=value` as MaxText takes them, after the path of a configuration of its own, if there is one.
        host: The host on which it runs.
        environ: The variables of that host.
    """
    said = {word.partition("=")[0] for word in given}
    hardware = hardware_of(environ)
    slices = int(environ.get("MEGASCALE_NUM_SLICES") or 1)
    own = {"run_name": RUN, "base_output_directory": host.checkpoint_dir, "hardware": hardware}
    if host.host_count == 1:
        own["skip_jax_distributed_system"] = "true"
    if environ.get(FILE):
        own["metrics_file"] = environ[FILE]
    if slices > 1 and not any(name.startswith("dcn_") for name in said):
        own["dcn_data_parallelism"] = str(slices)
    begin = 1 if given and given[0].endswith((".yml", ".yaml")) else 0
    added = [f"{name}={value}" for name, value in own.items() if name not in said]
    return [*given[:begin], *added, *given[begin:]]


def hardware_of(environ: Mapping[str, str]) -> str:
    """Return MaxText's word for a host's hardware, which an emulated slice has as "cpu".

    JAX itself is not asked: MaxText sets flags of libtpu, which come too late once a device was seen.
    """
    kind = expected(environ)
    if kind in ("tpu", "gpu"):
        return kind
    platforms = environ.get("JAX_PLATFORMS", "")
    return {"cpu": "cpu", "cuda": "gpu", "rocm": "gpu"}.get(platforms.partition(",")[0], "tpu" if platforms else "cpu")


def main() -> None:
    """Train, by the words of the command line."""
    os.environ.setdefault("DECOUPLE_GCLOUD", "TRUE")  # or it imports clients that its own package does not require
    words = arguments(sys.argv[1:], current(), copies.environ())
    import jax  # noqa: F401 - joins the slice

    sys.argv = [TRAINER, *words]
    runpy.run_module(TRAINER, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
