"""The faults of a run, and their times: drawn from its seed alone."""

from __future__ import annotations

import random
from typing import NamedTuple

BACKENDS = ("local", "emulator")
ONE_DISK = "full disk of one host"  # of several; the others, and the store, have room
ANYWHERE = (
    "kill submitter", "freeze submitter", "second submitter", "attached follower",
    "kill agent", "kill program", "freeze host", ONE_DISK,
)  # fmt: skip
LOCAL = ("full disk",)
DISKS = (ONE_DISK, *LOCAL)
CLOUD = (
    "preempt", "preempt with notice", "lose the answer of a create call", "lose the answer of a delete call",
    "bucket refuses", "bucket restarts", "never boots", "reboot", "somebody deletes the slice",
)  # fmt: skip
KINDS = {"local": (*ANYWHERE, *LOCAL), "emulator": (*ANYWHERE, *CLOUD)}
FREEZES = ("freeze submitter", "freeze host")
FROZEN = "frozen follower"  # one that is attached, and soon stands still for a while
LONG = (20.0, 40.0)  # seconds that some of them last
ONE, FOUR, HOSTS = {"local": "cpu", "emulator": "v5e-1"}, "v5e-16", 4  # of one host, and of four


class Fault(NamedTuple):
    at: float  # seconds after the submission, or after the function began
    what: str
    lasts: float
    whom: float  # of those whom it may hit: the first at 0, the last just before 1

    def __str__(self) -> str:
        return f"{self.at:.1f} s {self.what} ({self.lasts:.1f} s, {self.whom:.2f})"


def stands_still(fault: Fault) -> bool:
    """Every second follower that is attached."""
    return fault.what == "attached follower" and fault.whom < 0.5


class Schedule(NamedTuple):
    faults: list[Fault]
    running: bool  # they begin when the function has, and not with the submission
    accelerator: str
    skews: tuple[float, ...]  # by which the clocks of a cloud's hosts are ahead

    @property
    def disks(self) -> set[int]:
        """The hosts whose disk will be full."""
        return {int(fault.whom * HOSTS) for fault in self.faults if fault.what == ONE_DISK}

    @property
    def freezes_a_follower(self) -> bool:
        return any(stands_still(fault) for fault in self.faults)

    def __str__(self) -> str:
        begin = "while it runs" if self.running else "from the start"
        clocks = f", clocks ahead by {', '.join(f'{skew:.0f}' for skew in self.skews)} s" if any(self.skews) else ""
        return f"{self.accelerator}{clocks}, {begin}: {'; '.join(map(str, self.faults))}"


def schedule(seed: int, backend: str) -> Schedule:
    drawn = random.Random(f"{seed} {backend}")
    faults = []
    for _ in range(drawn.randint(2, 4)):
        what = drawn.choice(KINDS[backend])
        long = what in FREEZES and drawn.random() < 0.2
        lasts = drawn.uniform(*LONG) if long else drawn.uniform(0.5, 3.0)
        faults.append(Fault(drawn.uniform(0.0, 4.0), what, lasts, drawn.random()))
    several = drawn.random() < 0.3 or any(fault.what == ONE_DISK for fault in faults)
    accelerator = FOUR if several else ONE[backend]
    differ = backend == "emulator" and drawn.random() < 0.3
    skews = tuple(drawn.uniform(-600.0, 600.0) if differ else 0.0 for _ in range(HOSTS if several else 1))
    return Schedule(sorted(faults), drawn.random() < 0.6, accelerator, skews)
