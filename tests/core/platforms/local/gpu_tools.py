"""Stand-ins of the vendors' tools and of the driver's library: real programs, which print what the real ones print.

The texts are in the formats of the vendors' documentation: no GPU was at hand.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from kinetic_orchestration.platforms.local import gpus

L4 = "NVIDIA L4"
UUID = "GPU-{:08d}-d33d-2b2c-524d-9e3d8d2b8a77"


def nvidia(*models: str) -> str:
    """Return what `nvidia-smi -L` prints."""
    return "".join(f"GPU {n}: {model} (UUID: {UUID.format(n)})\n" for n, model in enumerate(models))


MIG = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 1g.5gb      Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-6d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a78)
"""

ROCM = json.dumps(
    {
        "card0": {
            "Unique ID": "0x43a5c0f2d1b7e8a9", "Card Series": "AMD Instinct MI250X / MI250", "Card Model": "0x740c",
            "Card Vendor": "Advanced Micro Devices, Inc. [AMD/ATI]", "Card SKU": "D65209", "GFX Version": "gfx90a",
        },
        "card1": {"Unique ID": "N/A", "Card series": "Navi 31 [Radeon RX 7900 XTX]", "Card model": "0x744c"},
        "system": {"Driver version": "6.7.0"},
    }
)  # fmt: skip


def install(folder: Path, *, nvidia_smi: str = "", rocm_smi: str = "", code: int = 0) -> str:
    """The value of PATH by which they are found."""
    folder.mkdir(exist_ok=True)
    for name, text in (("nvidia-smi", nvidia_smi), ("rocm-smi", rocm_smi)):
        if text:
            (folder / f"{name}.txt").write_text(text)
            (folder / name).write_text(f'#!/bin/sh\ncat "{folder}/{name}.txt"\nexit {code}\n')
            (folder / name).chmod(0o755)
    gpus._known.clear()
    gpus.hidden.cache_clear()
    return f"{folder}:{os.environ['PATH']}"


# The calls of NVML that are used, for two GPUs of which the second is cut into slices, with a hole between them.
NVML = r"""
#include <stdio.h>
#include <string.h>
typedef void *dev;
static long at(dev d) { return (long)d; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, dev *d) { if (i == 2) return 15; *d = (dev)(long)(i + 1); return 0; }
int nvmlDeviceGetName(dev d, char *s, unsigned n) {
  snprintf(s, n, at(d) > 100 ? "NVIDIA A100-SXM4-40GB MIG 3g.20gb" : at(d) == 1 ? "NVIDIA L4" : "NVIDIA A100-SXM4-40GB");
  return 0;
}
int nvmlDeviceGetUUID(dev d, char *s, unsigned n) {
  snprintf(s, n, at(d) > 100 ? "MIG-%04ld" : "GPU-%04ld", at(d)); return 0;
}
int nvmlDeviceGetMigMode(dev d, unsigned *now, unsigned *then) {
  if (at(d) == 1) return 3; *now = *then = 1; return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(dev d, unsigned *n) { *n = 4; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(dev d, unsigned i, dev *p) {
  if (i == 1 || i == 3) return 6; *p = (dev)(long)(101 + i); return 0;
}
"""


def compile_nvml(folder: Path) -> bool:
    """The driver's library, where there is a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return False
    folder.mkdir(exist_ok=True)
    (folder / "nvml.c").write_text(NVML)
    command = [compiler, "-shared", "-fPIC", "-o", str(folder / gpus.LIBRARY), str(folder / "nvml.c")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return True
