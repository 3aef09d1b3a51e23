"""Program that prints samples of this machine's accelerators as lines of JSON. Runs in the job's environment.

It is not part of the job's process: libtpu's monitoring and the job's own libraries may conflict in one process, and a
call that hangs must hang alone. It takes no device: libtpu's library asks the runtime of the process that holds the
devices, by gRPC on this machine. It uses the standard library and the vendor's library only, and is independent of
jobs.

TPUs are read with Google's TPU Monitoring Library (docs.cloud.google.com/tpu/docs/tpu-monitoring-library), which is
part of libtpu: lists of strings, one for each chip. GPUs are read with NVML (nvidia-ml-py), or else with the driver's
nvidia-smi.
"""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

GIB = 1 << 30
QUERY = "--query-gpu=index,utilization.gpu,memory.used,memory.total"
LONGEST_ANSWER = 30.0  # of nvidia-smi


def tpus() -> Callable[[], dict[str, Any]]:
    from libtpu.sdk import tpumonitoring  # type: ignore[import-not-found, unused-ignore]

    def numbers(name: str) -> list[float]:
        return [float(value) for value in tpumonitoring.get_metric(name).data()]

    def read() -> dict[str, Any]:
        return {
            "kind": "tpu",
            "busy": numbers("duty_cycle_pct"),
            "used": [value / GIB for value in numbers("hbm_capacity_usage")],
            "total": [value / GIB for value in numbers("hbm_capacity_total")],
        }

    return read


def gpus() -> Callable[[], dict[str, Any]]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if "MIG-" in visible:
        raise LookupError("a slice of MIG says nothing of its own")
    wanted = {int(index) for index in visible.split(",")} if visible.replace(",", "").isdigit() else set()
    try:
        import pynvml  # type: ignore[import-not-found, import-untyped, unused-ignore]

        pynvml.nvmlInit()
    except Exception:
        return _by_smi(wanted)
    found = [index for index in range(pynvml.nvmlDeviceGetCount()) if index in wanted or not wanted]
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in found]

    def read() -> dict[str, Any]:
        memory = [pynvml.nvmlDeviceGetMemoryInfo(handle) for handle in handles]
        return {
            "kind": "gpu",
            "busy": [float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) for handle in handles],
            "used": [each.used / GIB for each in memory],
            "total": [each.total / GIB for each in memory],
        }

    return read


def _by_smi(wanted: set[int]) -> Callable[[], dict[str, Any]]:
    import subprocess

    def read() -> dict[str, Any]:
        command = ["nvidia-smi", QUERY, "--format=csv,noheader,nounits"]
        told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=LONGEST_ANSWER).stdout
        rows = [[float(cell) for cell in line.split(",")] for line in told.splitlines() if line.strip()]
        rows = [row for row in rows if row[0] in wanted or not wanted]
        return {
            "kind": "gpu",
            "busy": [row[1] for row in rows],
            "used": [row[2] / 1024 for row in rows],  # which are MiB
            "total": [row[3] / 1024 for row in rows],
        }

    read()
    return read


def rounded(sample: dict[str, Any]) -> dict[str, Any]:
    return {key: [round(each, 2) for each in value] if key != "kind" else value for key, value in sample.items()}


def main() -> None:
    kind, pace = sys.argv[1], float(sys.argv[2])
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries is not part of the samples
    try:
        read = {"tpu": tpus, "gpu": gpus}[kind]()
    except Exception as error:
        out.write(json.dumps({"note": f"{type(error).__name__}: {error}"}) + "\n")
        return
    told = ""
    while True:
        line: dict[str, Any] = {}
        try:
            line = rounded(read())
        except Exception as error:  # before the program has its devices, and when it has left them
            if not told:
                told = f"{type(error).__name__}: {error}"
                line = {"note": told}
        try:
            if line.get("busy") or line.get("used") or "note" in line:
                out.write(json.dumps(line, separators=(",", ":")) + "\n")
                out.flush()
        except OSError:  # the reader of the pipe is gone
            os._exit(0)
        time.sleep(pace)


if __name__ == "__main__":
    main()
