"""The cost for one process to wait for a thousand silent jobs: memory per job, and a share of a core.

The jobs are records as a thousand submitters would have left them, with locks that a second process holds in the
place of their hosts. The process that waits is a new one. The floor is a thousand tasks that wait for an
`asyncio.Event` each.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks import measure
from tests.benchmarks.measure import ROOT, Figure

JOBS = 1000
FIRST = 10
AT_LEAST = 15.0  # seconds

NOOP = "def noop():\n    pass\n"


def figures() -> Iterator[Figure]:
    with measure.project(noop=NOOP) as folder:
        home = folder.parent / "home"
        _admit(JOBS)
        hosts = _worker("hosts", str(home), stdin=subprocess.PIPE)
        try:
            assert hosts.stdout is not None
            assert hosts.stdout.readline() == "held\n"
            floor, ours, traced = (json.loads(_worker(kind).communicate()[0]) for kind in ("floor", "jobs", "traced"))
        finally:
            hosts.communicate()
    yield measure.bounded("waiting.memory", ours["bytes"], "bytes/job", 4096.0, floor=floor["bytes"])
    yield measure.bounded("waiting.memory_traced", traced["bytes"], "bytes/job", None)
    yield measure.bounded("waiting.cpu", ours["cpu"] * 100, "% of a core", 0.7, floor=max(floor["cpu"] * 100, 1e-4))
    if ours["ended"]:
        raise AssertionError(f"{len(ours['ended'])} of the waiting jobs ended, such as {ours['ended'][0]}")


def _worker(kind: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.benchmarks.waiting", kind, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, **options)


def _admit(count: int, identity_in: Callable[[str], Any] | None = None) -> None:
    """Jobs with an attempt that runs, record by record as a submitter and its hosts write them."""
    from noop import noop  # type: ignore[import-not-found]

    from kinetic_orchestration.jobs import launch, request
    from kinetic_orchestration.jobs.following import actions
    from kinetic_orchestration.jobs.job import open_job
    from kinetic_orchestration.jobs.watching import live_index
    from kinetic_orchestration.plan import identity
    from kinetic_orchestration.plan.declare.spec import JobSpec, Options
    from kinetic_orchestration.plan.planner import make_plan
    from kinetic_orchestration.plan.values import Staged
    from kinetic_orchestration.platforms.registry import open_backend, open_store
    from kinetic_orchestration.protocol import names
    from kinetic_orchestration.protocol.wire.task import Payload

    spec = JobSpec("noop", Options("cpu"), noop)
    here = request.settings_of(spec)
    plan = make_plan(spec, here)
    store, backend = open_store(plan.store, plan.deployment), open_backend(plan.backend, here)
    staged = Staged(Payload("0" * 64, 1), "0" * 64, "", (), (), (), (), None, sys.executable)
    for _ in range(count):
        who = identity_in(plan.deployment) if identity_in else identity.of(plan.deployment, None)
        job_id, _ = launch.claim(store, backend, who)
        live_index.add(store, job_id)
        launch.admit(store, job_id, who, plan, staged)
        actions.intend(open_job(job_id, store, backend), 1)
        store.put(names.beat(job_id, 1, 0), beat(store.now()).encode())
        run = here.home / "run" / f"{job_id}-1"
        run.mkdir(parents=True)
        (run / "host-0.json").write_text("{}")


def beat(now: float) -> Any:
    """A heartbeat as a host writes it: no two have the same times or device values."""
    from kinetic_orchestration.protocol import wire

    used = round(now % 7, 3)
    devices = {"at": now, "cpu": round(now % 1, 2), "memory": used}
    return wire.Beat(wire.RUNNING, secrets.token_hex(8), 1, int(now) % 9999, now, began=now, devices=devices)


def _hold(home: str) -> None:
    """Be the hosts: hold every lock until standard input ends."""
    import fcntl
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (JOBS + 100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    locks = [os.open(path, os.O_RDWR) for path in Path(home, "run").glob("*/host-0.json")]
    for lock in locks:
        fcntl.flock(lock, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()


def _wait_for_jobs(traced: bool) -> None:
    from kinetic_orchestration.api.opening import place_of
    from kinetic_orchestration.jobs.following.drivers import afollow
    from kinetic_orchestration.jobs.following.follower import Follower
    from kinetic_orchestration.jobs.watching.watchers.registry import watcher_of
    from kinetic_orchestration.protocol import names

    store, backend, _ = place_of()
    ids = [entry.name.split("/")[1] for entry in store.list(names.JOBS) if entry.name.endswith("spec.json")]
    assert len(ids) == JOBS

    def follower(job_id: str) -> Follower:
        from kinetic_orchestration.jobs.job import open_job

        return Follower(open_job(job_id, store, backend))

    ways = [lambda job_id=job_id: afollow(follower(job_id)) for job_id in ids]
    asyncio.run(
        _measure(
            ways,
            lambda: max(AT_LEAST, watcher_of(store, backend).pace()),
            traced,
        )
    )


def _wait_for_nothing() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    asyncio.run(_measure([wait] * JOBS, lambda: 2.0, traced=False))


async def _measure(
    ways: list[Callable[[], Awaitable[object]]],
    seconds: Callable[[], float],
    traced: bool,
    begun: Callable[[], bool] = lambda: True,
) -> None:
    """Measure all but the first few, which pay for imports, threads and pools. Counted from when all have `begun`."""
    tasks = [asyncio.ensure_future(way()) for way in ways[:FIRST]]
    await asyncio.sleep(1.0)
    gc.collect()
    if traced:
        import tracemalloc

        tracemalloc.start()
    before = _resident()
    tasks += [asyncio.ensure_future(way()) for way in ways[FIRST:]]
    while not begun():
        await asyncio.sleep(0.1)
    await asyncio.sleep(seconds() if traced else 5.0)  # all have looked once
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] if traced else _resident() - before
    busy, began = time.process_time(), time.monotonic()
    if not traced:
        await asyncio.sleep(seconds())
    cpu = (time.process_time() - busy) / max(time.monotonic() - began, 1e-9)
    ended = [repr(task) for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(json.dumps({"bytes": used / len(ways[FIRST:]), "cpu": cpu, "ended": ended}))


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


if __name__ == "__main__":
    kind = sys.argv[1]
    if kind == "hosts":
        _hold(sys.argv[2])
    elif kind == "floor":
        _wait_for_nothing()
    else:
        _wait_for_jobs(traced=kind == "traced")
