"""`python -m tests.end_to_end.disasters --seed N --runs N [--backend B] [--races]`: two to four faults at once, real processes.

B is `local`, `emulator` (of Cloud TPU), `compute` (the emulated Compute Engine), `kubernetes` (the emulated cluster) or `kubernetes-real` (a real control plane,
whose pods are processes, too; it takes Go). On the emulator of Cloud TPU some jobs may take other hardware as well, and the chips of some are shared. There and on
Compute Engine some runs are three jobs, one after the other, that keep their slice for each other, and with `--races` each
attempt asks two places at once.

What befalls a run, and when, is drawn from its seed alone and printed; how fast the machine is decides what is hit.
Whatever happens, there is one result, it is one that the function returned, nothing is left, no attempt is said to have
failed by the function, `status` and `cost` count the same attempts and seconds, and the cost is what the emulated
cloud's ledger says, or for how long pods were seen to hold their nodes: of each run never less by more than a second for
each slice (some more for pods, which take their time to end), and of all of them together within what `ALIKE` says. A fault that cannot be made on this machine, such as a full disk where nothing can be mounted, is told and
counted.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path

from tests.end_to_end.disasters.run import (
    ALIKE,
    ALIKE_ON_CLUSTER,
    CLUSTERS,
    TICK,
    TICK_WHEN_BUSY,
    Told,
    own_disk,
    play,
    ratio,
)
from tests.end_to_end.disasters.schedule import BACKENDS, schedule

ENOUGH = 10  # runs whose costs are compared together


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.end_to_end.disasters")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--backend", choices=BACKENDS, default="local")
    parser.add_argument("--races", action="store_true", help="each attempt asks two places at once")
    parser.add_argument("--busy", action="store_true", help="this machine has other work: a second more counts as none")
    arguments = parser.parse_args()
    broken, runs = 0, list[Told]()
    with contextlib.ExitStack() as open_ones:
        root = Path(
            open_ones.enter_context(tempfile.TemporaryDirectory(prefix="disasters-", ignore_cleanup_errors=True))
        )
        home = open_ones.enter_context(own_disk(root / "disk"))
        for seed in range(arguments.seed, arguments.seed + arguments.runs):
            print(f"seed {seed}: {schedule(seed, arguments.backend, races=arguments.races)}", flush=True)
            tick = TICK_WHEN_BUSY if arguments.busy else TICK
            try:
                runs.append(play(seed, arguments.backend, root, home, tick, races=arguments.races))
                print(f"  {runs[-1]}", flush=True)
            except Exception as error:
                broken += 1
                print(f"  BROKEN: {type(error).__name__}: {error}", flush=True)
    if len(runs) >= ENOUGH and any(run.charged for run in runs):
        least, most = ALIKE_ON_CLUSTER if arguments.backend.startswith(CLUSTERS) else ALIKE
        print(f"told of what was charged for: {ratio(runs):.3f}, of {least} to {most}")
        broken += not least <= ratio(runs) <= most
    unmade = sum(len(run.unmade) for run in runs)
    print(
        f"{arguments.runs} runs from {arguments.seed} on, {broken} broken, {unmade} faults could not be made on this machine"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
