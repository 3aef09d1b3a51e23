"""The time to decide in which place and by which candidate a job asks: 20 zones with 4 candidates, and full windows.

The floor is the work that no decision can do without: the options in an order, by the price of each. What is known is
read from a store before, which is no decision, and is measured apart, on files.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.benchmarks import measure
from tests.benchmarks.measure import Figure

ROUNDS, TIMES = 15, 20


def figures() -> Iterator[Figure]:
    from kinetic_orchestration.capacity import choosing, records
    from kinetic_orchestration.capacity.facts import GOT, MOST, STOCKOUT, Attempted, Fact
    from kinetic_orchestration.plan.values import Past
    from kinetic_orchestration.platforms.local.store import LocalStore
    from kinetic_orchestration.protocol import wire
    from tests.support import choices

    zones, now = [f"r{number}-z{number}-a" for number in range(20)], 1_700_000_000.0
    usd = {zone: 40.0 - number for number, zone in enumerate(zones)}
    ways = (("v6e-16", "spot"), ("v5p-16", "spot"), ("v6e-16", "on-demand"), ("v6e-16", "flex-start"))
    plan = choices.plan(*(choices.candidate(name, way, zones, usd) for name, way in ways), by="price")
    window = [
        Attempted(now - 50 * number, STOCKOUT if number % 3 else GOT, f"job-{number}-1") for number in range(MOST)
    ]
    known = {key: Fact(tuple(reversed(window))) for key in choosing.keys(plan)}
    options = [(one.usd[zone], number, zone) for number, one in enumerate(plan.choices) for zone in one.zones]
    floor = _cpu(lambda: sorted(options))
    first, table = (_cpu(lambda work=work: work(plan, known, now)) for work in (choosing.first, choosing.table))
    yield measure.bounded("choosing.first", first, "s", 0.005, floor=floor)
    yield measure.bounded("choosing.table", table, "s", 0.005, floor=floor)
    racing = replace(plan, race=3)
    past = Past({}, wire.STOCKOUT, "no capacity", now)
    for _ in range(60):  # most of a round, whose history the next one has
        chosen = choosing.following(racing, known, now, past, "job-1-2")
        past = Past({"zone": chosen.place, **chosen.history()}, wire.STOCKOUT, "no capacity", now)

    def follow() -> None:
        """All that is decided for an attempt after others, with the other places of a race."""
        found = choosing.following(
            racing, known, now, past, "job-1-2", resumes=choosing.of_hosts(4, racing, devices=16)
        )
        choosing.beside(racing, known, now, found, seed="job-1-2")

    yield measure.bounded("choosing.following", _cpu(follow), "s", 0.005, floor=floor)
    with tempfile.TemporaryDirectory(prefix="kinetic-choosing-") as folder:
        store, young = LocalStore(folder, "main"), time.time() - now
        for key, fact in known.items():
            aged = Fact(tuple(one._replace(at=one.at + young) for one in fact.attempts))
            store.create(records.name_of(key), records.encoded(key, aged))
        wanted = choosing.keys(plan)
        assert len(records.known(store, wanted)) == len(wanted)
        yield measure.figure("choosing.read", _cpu(lambda: records.known(store, wanted)), "s of 80 facts", floor, None)


def _cpu(work: Callable[[], object]) -> float:
    """The least CPU seconds of one call: what else the machine does only adds to it."""
    found = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(TIMES):
            work()
        found.append((time.process_time() - began) / TIMES)
    return min(found)
