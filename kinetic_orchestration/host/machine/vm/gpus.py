"""The GPUs of a VM: waits until its driver shows them, and clears away what would mislead or disturb it.

The startup script runs this module from the agent's zip before the agent, so it stands alone: the standard library of
Python 3.10. It is independent of orders and programs. What starts another program is imported when one is started.
"""

from __future__ import annotations

import os
import re
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 600.0  # seconds: an image that installs its driver at the first boot takes some minutes, and boots again
PACE = 2.0
TOLD_EVERY = 30.0  # what is waited for
PROBE = 60.0  # the longest that nvidia-smi takes: while the driver is loaded it may hang
PLACES = ("usr/bin", "usr/local/nvidia/bin", "var/lib/nvidia/bin")
UPGRADES = "unattended-upgrades.service"

# Images with frameworks set these for themselves. jax and torch bring their own libraries, beside which others on the
# path break them (https://docs.jax.dev/en/latest/installation.html), and a plugin for another network breaks NCCL even
# on one host. A job's own variables come later.
MISLEADING = ("LD_LIBRARY_PATH", "NCCL_")


def prepare(wanted: int, root: str, say: Callable[[str], None]) -> str:
    """Clear this process's environment, stop the machine's upgrades, and wait for so many GPUs; for none if it is 0.
    Returns what is missing in the end, "" for nothing.
    """
    for name in [name for name in os.environ if name.startswith(MISLEADING)]:
        del os.environ[name]
    hold_upgrades(root)
    return missing(wanted, say, root=root)


def missing(wanted: int, say: Callable[[str], None], *, patience: float = PATIENCE, root: str = "/") -> str:
    """Wait until nvidia-smi lists so many GPUs, and tell now and then what is waited for. Returns what is missing once
    the patience is over, "" for nothing.
    """
    if not wanted:
        return ""
    began = told = time.monotonic()
    while True:
        found, said = listed(root)
        if found >= wanted:
            return ""
        lack = f"nvidia-smi lists {found} of {wanted} GPUs" if found else f"the driver shows none of {wanted} GPUs"
        now = time.monotonic()
        if now - began >= patience:
            return f"{lack} after {now - began:.0f} s, and no program was run: {said}"
        if told == began or now - told >= TOLD_EVERY:
            say(f"{lack} yet, which are waited for: {said}")
            told = now
        time.sleep(min(PACE, max(0.0, began + patience - now)))


def listed(root: str = "/") -> tuple[int, str]:
    """Return how many GPUs nvidia-smi lists, and what it said."""
    program = _found("nvidia-smi", *(os.path.join(root, place) for place in PLACES))
    if not program:
        return 0, "this VM has no nvidia-smi: its image has no driver of NVIDIA, or has not installed it yet"
    import subprocess

    try:
        done = subprocess.run(
            [program, "-L"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=PROBE, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 0, f"nvidia-smi did not answer within {PROBE:.0f} s"
    except OSError as error:
        return 0, f"{program} could not be started: {error.strerror}"
    said = done.stdout.decode("utf-8", "replace").strip()
    count = len(re.findall(r"^GPU \d+:", said, re.MULTILINE))
    return count, said[-1000:] or f"it ended with exit code {done.returncode} and said nothing"


def hold_upgrades(root: str) -> None:
    """Stop the service that may replace the driver under the program, where there is one."""
    places = [os.path.join(root, place, "systemd", "system", UPGRADES) for place in ("lib", "usr/lib", "etc")]
    systemctl = _found("systemctl")
    if not systemctl or not any(map(os.path.exists, places)):
        return
    import subprocess

    try:
        subprocess.run(
            [systemctl, "stop", "--no-block", UPGRADES, "apt-daily-upgrade.timer", "apt-daily.timer"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        pass


def _found(program: str, *places: str) -> str:
    """Return the path of a program on the PATH, or else in one of the places; "" if there is none."""
    for folder in (*os.environ.get("PATH", os.defpath).split(os.pathsep), *places):
        path = os.path.join(folder, program)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return ""
