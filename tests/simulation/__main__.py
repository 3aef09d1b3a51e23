"""`python -m tests.simulation --seed N` plays one seed and prints all of it; without a seed, many, and what they reached.

Many are played on all cores, or by as many `--processes` as are named. A run of many says where it is about once a
minute, names each seed that breaks a promise at once, and can be gone on with: `--first` is the seed to begin with, and
one that is interrupted tells which that would be. `--by-date` begins with a seed that only today has, so that whoever
plays some each day searches where nobody has; with `--each`, of every kind as many as the gate plays.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime

from tests.simulation import choice_scenario
from tests.simulation.candidate_scenario import CandidateSchedule
from tests.simulation.cloud_scenario import CloudSchedule
from tests.simulation.cluster_scenario import ClusterSchedule
from tests.simulation.compute_scenario import ComputeSchedule
from tests.simulation.edges import simulated_edges
from tests.simulation.group_scenario import GroupSchedule
from tests.simulation.kept_race_scenario import KeptRaceSchedule
from tests.simulation.lease_scenario import LeaseSchedule
from tests.simulation.many import Players, players_of
from tests.simulation.race_scenario import RaceSchedule
from tests.simulation.scenario import Failed, Schedule, command_of, play, trace_of
from tests.simulation.share_scenario import ShareSchedule
from tests.simulation.world import World

TOLD_EVERY = 60.0
NAMED = 20  # seeds that broke the same promise; of the others only the number is told
EACH: Mapping[type[Schedule], int] = {  # seeds of a day that the gate plays of each kind
    Schedule: 1000,
    CloudSchedule: 120,
    ClusterSchedule: 100,
    ComputeSchedule: 120,
    GroupSchedule: 80,
    ShareSchedule: 80,
    RaceSchedule: 60,
    LeaseSchedule: 40,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, nargs="+", help="play these alone; of one, print the trace")
    parser.add_argument("--seeds", type=int, default=1_000, help="play so many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--by-date", action="store_true", help="the first of them is today's, by UTC")
    parser.add_argument("--each", action="store_true", help="of all kinds, as many of each as the gate plays")
    parser.add_argument("--cloud", action="store_true", help="on the simulated Cloud TPU API")
    parser.add_argument("--candidates", action="store_true", help="on the same, jobs with a choice")
    parser.add_argument(
        "--races",
        action="store_true",
        help="on the same, jobs that ask several places at once; with --leases also those",
    )
    parser.add_argument("--compute", action="store_true", help="on the simulated Compute Engine")
    parser.add_argument("--groups", action="store_true", help="on the simulated Compute Engine, slices of TPUs")
    parser.add_argument("--cluster", action="store_true", help="on the simulated API of Kubernetes")
    parser.add_argument("--facts", action="store_true", help="jobs that share what they learn of capacity")
    parser.add_argument("--shares", action="store_true", help="of attempts that share chips")
    parser.add_argument("--leases", action="store_true", help="of jobs that keep their slices warm for each other")
    parser.add_argument("--stop", action="store_true", help="at the first seed that breaks a promise")
    parser.add_argument(
        "--processes", type=int, default=len(os.sched_getaffinity(0)), help="default: one for each core"
    )
    arguments = parser.parse_args()
    if arguments.facts:
        first = arguments.first
        seeds = arguments.seed or range(first, first + arguments.seeds)
        return 1 if choice_scenario.play_many(seeds, stop=arguments.stop) else 0
    kind = _kind_of(arguments)
    if arguments.seed is not None and len(arguments.seed) == 1:
        return _play_one(arguments.seed[0], kind)
    first = first_of(datetime.now(UTC).date()) if arguments.by_date else arguments.first
    asked, failed = EACH if arguments.each else {kind: arguments.seeds}, 0
    with players_of(arguments.processes) as players:
        for each, count in asked.items():
            if arguments.by_date:
                print(f"{count} seeds of today, from {first} on{each.option}", flush=True)
            failed |= _play_many(arguments.seed or range(first, first + count), each, players, stop=arguments.stop)
            if failed and arguments.stop:
                break
    return failed


def _kind_of(arguments: argparse.Namespace) -> type[Schedule]:
    """Return the schedules that are asked for."""
    kinds = (
        (arguments.leases and arguments.races, KeptRaceSchedule),
        (arguments.cluster, ClusterSchedule),
        (arguments.compute, ComputeSchedule),
        (arguments.groups, GroupSchedule),
        (arguments.cloud, CloudSchedule),
        (arguments.candidates, CandidateSchedule),
        (arguments.races, RaceSchedule),
        (arguments.shares, ShareSchedule),
        (arguments.leases, LeaseSchedule),
    )
    return next((kind for is_asked, kind in kinds if is_asked), Schedule)


def first_of(day: date) -> int:
    """No other day's is within a million of it."""
    return day.toordinal() * 1_000_000


def _play_one(seed: int, kind: type[Schedule]) -> int:
    worlds: list[World] = []
    with simulated_edges(worlds):
        try:
            play(seed, worlds, kind=kind, lines=100_000)
        except Failed as failed:
            print(failed)
            return 1
    print(trace_of(worlds[0]))
    return 0


def _play_many(seeds: Sequence[int], kind: type[Schedule], players: Players, *, stop: bool) -> int:
    reached, failures = Counter[str](), Counter[str]()
    requests, played, cpu = 0, 0, 0.0
    began = told = time.perf_counter()
    try:
        for part in players.play(seeds, kind, stop=stop):
            for seed, line in part.broken:
                broken = re.sub(r"(kinetic|job)-[\w-]+|[\d.]+", "…", line.split(":", 1)[1])[:100]
                failures[broken] += 1
                if failures[broken] <= NAMED:
                    print(line, f"  to see it: {command_of(seed, kind)}", sep="\n", flush=True)
            reached.update(part.reached)
            requests, played, cpu = requests + part.requests, played + len(part.seeds), cpu + part.cpu
            if (now := time.perf_counter()) - told > TOLD_EVERY:
                told = now
                broke = f", {failures.total()} of them broke a promise" if failures else ""
                print(f"… {played} of {len(seeds)} seeds{broke}; the next is {part.seeds[-1] + 1}", flush=True)
            if stop and failures:
                break
    except KeyboardInterrupt:
        print(f"interrupted: go on with --first {seeds[0] + played} --seeds {len(seeds) - played}")
    for what, count in sorted(reached.items()):
        print(f"{count:7d}  {what}")
    for what, count in failures.most_common():
        print(f"FAILED {count:7d}  {what}")
    each = 1000 / max(1, played)
    print(
        f"{played} seeds from {seeds[0]} on, {requests} requests, {failures.total()} broke a promise; "
        f"{(time.perf_counter() - began) * each:.1f} ms each, of which {cpu * each:.1f} of CPU"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
