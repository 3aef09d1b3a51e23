"""Stands for the guard of a host on a machine of a test's own: it adopts orphans, remembers the machine, runs a job's
program, and cleans. All that is the agent's own code."""

import json
import os
import subprocess
import sys

from kinetic_orchestration.host.machine.vm.kept import cleaning, doubt, running
from kinetic_orchestration.host.machine.vm.rearming import armed
from kinetic_orchestration.protocol.system import processes

KEPT = "/var/lib/kinetic/kept"
MARKER = "KINETIC_PLACEMENT=/var/lib/kinetic/run/job-1"
running.LINGERS = 1.0  # of a machine on which no timer starts anything
running.PATIENCE = 4.0


def main() -> None:
    why, said = [], []
    processes.adopt_orphans()
    cleaning.remember(KEPT)
    first = running.remember()
    for program in json.loads(sys.argv[1]):
        name, value = MARKER.split("=")
        os.makedirs(value, exist_ok=True)
        done = subprocess.run(
            [os.environ["PYTHON"], "-c", program], env={**os.environ, name: value}, cwd=value, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
        said.append(done.stdout if not done.returncode else f"exit {done.returncode}")
        try:
            cleaning.clean(KEPT, MARKER)
            why.append("")
        except doubt.Unclean as unclean:
            why.append(str(unclean))
            os.unlink(f"{KEPT}/{cleaning.BASELINE}")
            cleaning.remember(KEPT)
    new = running.remember().keys() - first.keys()
    found = {pid: processes.find(int(pid)) for pid in new}
    left = {pid: running.program_of(int(pid)) for pid, one in found.items() if one is not None and not one.zombie}
    print(json.dumps({"why": why, "said": said, "left": left, "armed": bool(armed())}))


main()
