"""`python -m tests.simulation --seed N` plays one seed and prints all of it; without a seed, many, and what they reached."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter

from tests.simulation.scenario import Failed, play, simulated_edges, trace_of
from tests.simulation.world import World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, help="play this one, and print its trace")
    parser.add_argument("--seeds", type=int, default=1_000, help="play so many")
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    worlds: list[World] = []
    began = time.perf_counter()
    if arguments.seed is not None:
        with simulated_edges(worlds):
            try:
                play(arguments.seed, worlds, lines=100_000)
            except Failed as failed:
                print(failed)
                return 1
        print(trace_of(worlds[0]))
        return 0
    reached: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    requests = 0
    with simulated_edges(worlds):
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            try:
                play(seed, worlds, lines=0)
            except Failed as failed:
                line = str(failed).splitlines()[0]
                kind = re.sub(r"job-\w+(-\d+)?|attempt \d+", "…", line.split(":", 1)[1])[:70]
                failures[kind] += 1
                if failures[kind] < 4:
                    print(line)
            reached.update(worlds[0].reached)
            requests += worlds[0].requests
    for what, count in sorted(reached.items()):
        print(f"{count:7d}  {what}")
    for what, count in failures.most_common():
        print(f"FAILED {count:7d}  {what}")
    seconds = time.perf_counter() - began
    print(
        f"{arguments.seeds} seeds, {requests} requests, {seconds:.1f} s, {1000 * seconds / arguments.seeds:.2f} ms each"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
