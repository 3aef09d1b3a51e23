"""A job's function, and who submits or follows it, run as a program from a small project of its own:
`work.py submit KEY MARKS JOB REPORT SECONDS ACCELERATOR OPTIONS` (as JSON) or `work.py follow JOB REPORT`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import kinetic_orchestration as kinetic
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.platforms.google.compute import states as compute
from kinetic_orchestration.platforms.google.compute.verbs import memory
from kinetic_orchestration.platforms.google.tpu import backend as tpu_vm
from kinetic_orchestration.platforms.local import backend
from kinetic_orchestration.platforms.shared import places

# Of two hosts one loses its power, for 90 s, and the next attempt's never speaks: 215 s; and a process of a VM whose guard
# and agent are killed is missed for 90 s, too.
SECONDS = 400.0
LIMITS = kinetic.Limits(provision=60.0)  # one host of several that never boots is not waited for as long as a real one
FLEXIBLE = kinetic.Limits(provision=120.0, run=600.0)  # a request that is valid for less than 90 s does not wait
PLANTED = "DISASTERS_PLANTED"  # a mistake that the driver has to find; each is made in this program, and nowhere else
NOT_AGAIN = "what a fault ended is not tried again"
ANOTHER_JOB = "who asks again gets another job"
ITS_OWN = "what a machine lacked is taken for the function's failure"
DISKS = "DISASTERS_DISKS"  # the hosts on this machine that have a disk of their own, as `1 3`
STEPS = 3  # jobs of one run that keeps slices, each after the one before: as `schedule.STEPS`
DISK_OF_ONE = 16  # MiB of it


def work(marks: str, seconds: float) -> str:
    """Each run of it is a line in `marks`, and its value."""
    value = os.urandom(8).hex()
    if kinetic.current().host_index == 0:
        with open(marks, "a", encoding="utf-8") as file:  # noqa: PTH123
            file.write(value + "\n")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.05)
    return value


def lacks(marks: str, seconds: float) -> str:
    """The same, but its first run fails."""
    if not Path(marks).exists():
        Path(marks).touch()
        raise OSError("No space left on device")
    return work(marks, seconds)


def submit(key: str, marks: str, job: str, report: str, seconds: str, accelerator: str, options: str) -> None:
    if os.environ.get(PLANTED) == ANOTHER_JOB:
        key += report
    retry = kinetic.Retry(user=8, infra=20, preemption=20)
    if os.environ.get(PLANTED) == NOT_AGAIN:
        retry = kinetic.Retry(user=0, infra=0, preemption=0)
    told: dict[str, str] = {}
    try:
        asked = _asked(json.loads(options))
        run = kinetic.run(accelerator=accelerator, key=key, retry=retry, **asked)
        handle = run(lacks if os.environ.get(PLANTED) == ITS_OWN else work).run_async(marks, float(seconds))
        told = {"job": handle.job_id}
        _write(Path(job), handle.job_id)
        told["value"] = handle.result(timeout=SECONDS)
        for step in map(str, range(2, STEPS + 1) if "keep" in asked else ()):
            run = kinetic.run(accelerator=accelerator, key=f"{key}, step {step}", retry=retry, **asked)
            handle = run(work).run_async(f"{marks}-{step}", float(seconds))
            told[f"job {step}"] = handle.job_id
            told[f"value {step}"] = handle.result(timeout=SECONDS)
    except Exception as error:
        told["error"] = f"{type(error).__name__}: {error}"
    _write(Path(report), json.dumps(told))


def _asked(options: dict[str, Any]) -> dict[str, Any]:
    if "flex_start" not in options:
        return {"limits": LIMITS, **options}
    limits = FLEXIBLE if options["flex_start"] else LIMITS
    of_job = ("spot", "container_image", "processes", "race", "keep")
    own = {name: options.pop(name) for name in of_job if name in options}
    return {"limits": limits, **own, "cloud": kinetic.Compute(**options)}


def follow(job: str, report: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not Path(job).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    told: dict[str, str] = {}
    try:
        told = {"job": Path(job).read_text(encoding="utf-8")}
        told["value"] = kinetic.attach(told["job"]).result(timeout=SECONDS)
    except Exception as error:
        told["error"] = f"{type(error).__name__}: {error}"
    _write(Path(report), json.dumps(told))


def give_disks(hosts: list[int]) -> None:
    """Mount a small file system as the folder of each of these hosts before the host begins."""
    assign = backend.LocalBackend.assignment

    def assignment(self: backend.LocalBackend, plan: Any, job_id: str, spec: str, intent: Any, host: int) -> Any:
        found = assign(self, plan, job_id, spec, intent, host)
        folder = Path(found.run, f"host-{host}")
        if host in hosts and not folder.exists():
            folder.mkdir(mode=0o700)
            options = f"size={DISK_OF_ONE}m,mode=0700"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "kinetic-test", folder], check=True)
        return found

    backend.LocalBackend.assignment = assignment  # type: ignore[method-assign]


def _write(path: Path, text: str) -> None:
    """Whole, or not at all."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    part.rename(path)


if __name__ == "__main__":
    # Hosts that never boot, and slices that somebody deleted before anybody saw them, are not waited for as long as real
    # ones: as long, the limit would come first.
    lifecycle.SILENT_START = tpu_vm.SHOWN = compute.UNSHOWN = 8.0
    memory._MINUTE = 4.0  # after which the rates of an API begin anew
    places.FIRST_WAIT = 2.0  # until what was out of stock everywhere is asked for again
    give_disks(list(map(int, os.environ.get(DISKS, "").split())))
    {"submit": submit, "follow": follow}[sys.argv[1]](*sys.argv[2:])
