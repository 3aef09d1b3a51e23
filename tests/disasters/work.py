"""A job's function and its submitter, run as a program from a small project of its own: `work.py KEY MARKS REPORT …`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import kinetic_orchestration as kinetic
from kinetic_orchestration import lifecycle

SECONDS = 200.0


def work(marks: str, seconds: float) -> str:
    """Each run of it is a line in `marks`, and its value."""
    value = os.urandom(8).hex()
    with open(marks, "a", encoding="utf-8") as file:  # noqa: PTH123
        file.write(value + "\n")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.05)
    return value


def main(key: str, marks: str, report: str, seconds: str, accelerator: str) -> None:
    lifecycle.SILENT_START = 8.0  # hosts that never boot are not waited for as long as real ones
    retry = kinetic.Retry(user=8, infra=8, preemption=20)
    told: dict[str, str] = {}
    try:
        job = kinetic.run(accelerator=accelerator, key=key, retry=retry)(work).run_async(marks, float(seconds))
        told = {"job": job.job_id}
        told["value"] = job.result(timeout=SECONDS)
    except Exception as error:
        told["error"] = f"{type(error).__name__}: {error}"
    Path(report + ".part").write_text(json.dumps(told))
    Path(report + ".part").rename(report)


if __name__ == "__main__":
    main(*sys.argv[1:])
