"""Functions that run as jobs of Slurm. They travel from a copy in a project that has nothing else."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import kinetic_orchestration as kinetic

STEPS = 6


def tells_its_node() -> dict[str, str]:
    """Return what a program sees of Slurm: its GPUs, its node, and what would mislead a nested sbatch."""
    here = kinetic.current()
    print(f"host {here.host_index} on {os.environ['SLURMD_NODENAME']}", flush=True)
    names = ("CUDA_VISIBLE_DEVICES", "KINETIC_HOST_COUNT", "MASTER_ADDR", "MASTER_PORT")
    found = {name: os.environ.get(name, "") for name in names}
    return {**found, "misleads": ",".join(sorted(name for name in os.environ if _misleads(name)))}


def meets() -> int:
    """Return the number of hosts that have joined over TCP, by the variables of torch, as any library does."""
    import socket

    here, count = kinetic.current(), int(os.environ["WORLD_SIZE"])
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if here.host_index:
        for _ in range(200):
            try:
                socket.create_connection(address, 10).close()
                break
            except OSError:
                time.sleep(0.1)
        return 0
    with socket.create_server(address) as server:
        server.settimeout(30)
        for _ in range(count - 1):
            server.accept()[0].close()
    return count


def trains(folder: str) -> dict[str, int]:
    """Take steps that are checkpointed, the later ones once somebody allows it; return where each attempt began."""
    here = kinetic.current()
    saved = Path(here.checkpoint_dir) / f"step-{here.host_index}"
    began = int(saved.read_text()) if saved.exists() else 0
    for step in range(began, STEPS):
        if step == STEPS // 2 and here.attempt == 1:
            Path(folder, f"half-{here.host_index}").touch()
            time.sleep(600)
        fresh = saved.with_suffix(".new")
        fresh.write_text(str(step + 1))
        fresh.rename(saved)
    return {"attempt": here.attempt, "began": began, "ended": int(saved.read_text())}


def waits_in(folder: str) -> int:
    """Say that it runs, and run on in the first attempt until a file says to end; return the attempt."""
    here = kinetic.current()
    Path(folder, f"runs-{here.attempt}-{here.host_index}").touch()
    while here.attempt == 1 and not Path(folder, "end").exists():
        time.sleep(0.05)
    return here.attempt


def fails() -> None:
    raise ValueError("the loss is not a number")


def submits_another(folder: str) -> int:
    """Submit a job of Slurm from within one by sbatch itself, as a user does; return its exit code once it has ended."""
    if kinetic.current().host_index:  # one job, which writes one file
        return 0
    script = f"#!/bin/sh\nenv >{folder}/nested.new && mv {folder}/nested.new {folder}/nested\n"
    words = ["sbatch", "--wait", "--parsable", "--output=/dev/null", "--chdir=/", "--job-name=nested"]
    return subprocess.run(words, input=script, text=True, check=False).returncode


def runs_another() -> dict[str, str]:
    """Run a job of this package from within one."""
    return kinetic.run(accelerator="cpu")(tells_its_node)()


def _misleads(name: str) -> bool:
    return name.startswith(("SLURM_", "SBATCH_")) and name != "SLURM_CONF"
