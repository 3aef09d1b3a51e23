"""The faults of a run, and their times: drawn from its seed alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from kinetic_orchestration.plan.hardware.machines import WITH_DOCKER

T = TypeVar("T")

REAL = "-real"  # how the name of a backend ends that is the real thing, and not its emulator
BACKENDS = ("local", "emulator", "compute", "kubernetes", f"kubernetes{REAL}")
RACES = ("emulator", "compute")  # on which an attempt may ask several places at once
ONE_DISK = "full disk of one host"  # of several; the others, and the store, have room
PEOPLE = ("kill submitter", "freeze submitter", "second submitter", "attached follower")
ANYWHERE = (*PEOPLE, "kill agent", "kill program", "freeze host")
LOCAL = ("full disk",)
STORES = ("bucket refuses", "bucket restarts")
DISKS = (ONE_DISK, *LOCAL)
CLOUD = (
    "preempt", "preempt with notice", "lose the answer of a create call", "lose the answer of a delete call",
    "bucket refuses", "bucket restarts", "never boots", "reboot", "somebody deletes the slice",
)  # fmt: skip
STOCKOUT, QUOTA = "stockout", "no quota"  # of which one more befalls jobs that may take something else
COMPUTE = (
    "preempt", "preempt with notice", "host error", "maintenance", "somebody deletes the instance",
    "instances vanish", "reboot", "power off", "never boots", "never speaks", "drivers late", "fewer GPUs", "stockout",
    "stockout that is shown", "quota", "create operation fails", "request rate", "zone is silent", "API refuses",
    "lose the answer of a create call", "lose the answer of a delete call", "lose the answer of a look",
    "slow create calls", "slow looks", "slow delete calls", "stuck delete", "bucket refuses", "bucket restarts",
    "cancel",
)  # fmt: skip
GROUPS = (  # of which one more befalls whoever has a slice on Compute Engine
    "topology fails", "member is made again", "slow grant", "member cannot be made", "template is held",
    "somebody deletes the group",
)  # fmt: skip
SHARED = (  # of which one more befalls VMs that several processes share, each with its GPU
    "kill one agent", "kill one guard", "kill one program", "kill one process",
)  # fmt: skip
CLUSTER = (
    "preempt", "preempt with notice", "lose node", "silence node", "delete pod", "evict pod", "kill pod",
    "node evicts pod", "lose the answer of a create call", "lose the answer of a delete call", "server refuses",
    "server restarts", "controller restarts", "bucket refuses", "bucket restarts", "never boots", "suspend",
    "somebody deletes the set", "somebody deletes the set without its pods",
)  # fmt: skip
KINDS = {
    "local": (*ANYWHERE, ONE_DISK, *LOCAL),
    "emulator": (*ANYWHERE, ONE_DISK, *CLOUD),
    "compute": (*ANYWHERE, ONE_DISK, *COMPUTE),
    "kubernetes": (*ANYWHERE, *CLUSTER),
}
FREEZES = ("freeze submitter", "freeze host")
LASTING = (*FREEZES, "lose node", "silence node", "suspend")
ANOTHER = "another choice"  # of several, that an attempt took
WARM = "a warm slice"  # that an attempt took
FROZEN = "frozen follower"  # one that is attached, and soon stands still for a while
LONG = (20.0, 40.0)  # seconds that some of them last
GPU = "l4"  # on Compute Engine, of one host or of two,
PAIR = "l4x2"  # each of which may have two, and a process for each of them
ON_DEMAND, SPOT, FLEX_START = MODELS = "on demand", "spot", "flex-start"
ONE = {"local": "cpu", "emulator": "v5e-1", "compute": GPU, "kubernetes": "v5e-1"}  # of one host,
CONTAINER = "us-docker.pkg.dev/acme/images/train:7"
SLICE = "v6e-16"  # of four linked ones on Compute Engine, which a group makes,
TWO = "v4-8"  # of two, on Kubernetes alone,
FOUR = "v5e-16"  # and of four
HOSTS = 4
OTHERS = ("v5e-1", "v5e-4", FOUR)  # that a job may take as well on Cloud TPU
WAYS = (("spot", "on-demand"), ("on-demand", "spot"), ("spot",))
KEEPING = ("emulator", "compute")  # backends on which a part of the runs keeps slices,
KEEPS, KEEP = 0.3, "10s"  # how many of them, and for how long
STEPS = 3  # jobs of such a run


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
    skews: tuple[float, ...]  # by which the clocks of a cloud's hosts are ahead; one for each host
    is_spot: bool = False
    in_queue: bool = False  # of Kueue
    model: str = ""  # how VMs of Compute Engine are bought
    in_container: bool = False  # on these
    processes: int = 1  # on each of these
    race: int = 1  # places that each attempt asks at once
    others: tuple[str, ...] = ()  # accelerators that do as well on Cloud TPU,
    ways: tuple[str, ...] = ()  # how one of them may be bought,
    share: int = 0  # and the chips that the deployment may hold at once; 0: any number
    keep: str = ""  # for which each of several jobs, one after the other, leaves its slice to the next

    @property
    def hosts(self) -> int:
        return len(self.skews)

    @property
    def is_grouped(self) -> bool:
        """True if the VMs of Compute Engine are those of a slice."""
        return bool(self.model) and self.accelerator == SLICE

    def end_of(self, host: int) -> str:
        """The end of the name of a host's VM of Compute Engine."""
        return "" if self.hosts == 1 else f"-{host + 1:03}" if self.is_grouped else f"-{host}"

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of the jobs, besides the accelerator."""
        found: dict[str, Any] = {"race": self.race} if self.race > 1 else {}
        found |= {"keep": self.keep} if self.keep else {}
        if not self.model:
            return found | ({"capacity": self.ways} if self.ways else {})
        hosts = {} if self.is_grouped else {"hosts": self.hosts}
        image = {"container_image": CONTAINER, "image": WITH_DOCKER} if self.in_container else {}
        processes = {"processes": "gpu"} if self.processes > 1 else {}
        flexible = self.model == FLEX_START
        return {"spot": self.model == SPOT, "flex_start": flexible, **hosts, **image, **processes, **found}

    @property
    def disks(self) -> set[int]:
        """The hosts whose disk will be full."""
        return {int(fault.whom * self.hosts) for fault in self.faults if fault.what == ONE_DISK}

    @property
    def freezes_a_follower(self) -> bool:
        return any(stands_still(fault) for fault in self.faults)

    def __str__(self) -> str:
        begin = "while it runs" if self.running else "from the start"
        clocks = f", clocks ahead by {', '.join(f'{skew:.0f}' for skew in self.skews)} s" if any(self.skews) else ""
        where = f"{' on spot' if self.is_spot else ''}{' in a queue' if self.in_queue else ''}"
        where += f" {self.model}, {self.hosts} hosts" if self.model else ""
        where += f" in {self.race} places at once" if self.race > 1 else ""
        where += " in containers" if self.in_container else ""
        where += f" with {self.processes} processes each" if self.processes > 1 else ""
        where += f" or {' or '.join(self.others)} by {' or '.join(self.ways)}" if self.others else ""
        where += f", of {self.share} chips at once" if self.share else ""
        where += f", each of {STEPS} jobs keeps its slice for {self.keep}" if self.keep else ""
        return f"{self.accelerator}{where}{clocks}, {begin}: {'; '.join(map(str, self.faults))}"


def chosen(those: Sequence[T], fault: Fault) -> T:
    """Return whom a fault hits. Raises LookupError if nobody is there."""
    if not those:
        raise LookupError("nobody is there")
    return those[int(fault.whom * len(those))]


def _drawn(drawn: random.Random, kinds: Sequence[str]) -> Fault:
    return Fault(drawn.uniform(0.0, 4.0), drawn.choice(kinds), drawn.uniform(0.5, 3.0), drawn.random())


def schedule(seed: int, backend: str, *, races: bool = False) -> Schedule:
    """Draw a run; the real thing gets the same as its emulator. With `races`, each attempt asks two places at once."""
    found = _schedule(seed, backend.removesuffix(REAL))
    may_keep = backend in KEEPING and not (found.in_container or found.processes > 1 or found.share)
    if may_keep and random.Random(f"{seed} {backend} stays warm").random() < KEEPS:  # apart: all else stays as it is
        found = found._replace(keep=KEEP, faults=[fault._replace(at=STEPS * fault.at) for fault in found.faults])
    return found._replace(race=2, share=2 * found.share) if races and backend in RACES else found


def _with_capacity(found: Schedule, drawn: random.Random) -> Schedule:
    """Let some jobs take other hardware as well, when there is none in one zone at the beginning or after a preemption,
    or no quota of the first way, and let the chips of some be shared: there are enough for one attempt."""
    if drawn.random() < 0.4:
        other = drawn.choice([one for one in OTHERS if one != found.accelerator])
        at = drawn.uniform(0.0, 3.0) if found.running else 0.0
        ways = drawn.choice(WAYS)
        more = [
            Fault(
                at,
                STOCKOUT if len(ways) == 1 else drawn.choice((STOCKOUT, QUOTA)),
                drawn.uniform(1.0, 4.0),
                drawn.random(),
            )
        ]
        more += [Fault(at + 0.2, "preempt", 1.0, drawn.random())] if found.running else []
        found = found._replace(others=(other,), ways=ways, faults=sorted([*found.faults, *more]))
    if drawn.random() < 0.4:
        found = found._replace(share=max(int(one.partition("-")[2]) for one in (found.accelerator, *found.others)))
    return found


def _schedule(seed: int, backend: str) -> Schedule:
    drawn = random.Random(f"{seed} {backend}")
    faults = []
    for _ in range(drawn.randint(2, 4)):
        what = drawn.choice(KINDS[backend])
        long = what in LASTING and drawn.random() < 0.2
        lasts = drawn.uniform(*LONG) if long else drawn.uniform(0.5, 3.0)
        faults.append(Fault(drawn.uniform(0.0, 4.0), what, lasts, drawn.random()))
    several = drawn.random() < 0.3 or any(fault.what == ONE_DISK for fault in faults)
    accelerator, hosts = (FOUR, HOSTS) if several and backend != "compute" else (ONE[backend], 1 + several)
    differ = backend in ("emulator", "compute") and drawn.random() < 0.3
    skews = tuple(drawn.uniform(-600.0, 600.0) if differ else 0.0 for _ in range(hosts))
    found = Schedule(sorted(faults), drawn.random() < 0.6, accelerator, skews)
    if backend == "compute":
        found = found._replace(model=drawn.choice(MODELS))
        if not several or drawn.random() < 0.4:
            # VMs of several hosts do not come by flex-start.
            model = SPOT if several and found.model == FLEX_START else found.model
            found = found._replace(model=model, in_container=drawn.random() < 0.25)
            if found.in_container or drawn.random() < 0.6:
                return found
            faults = sorted([*faults, _drawn(drawn, SHARED)])
            return found._replace(accelerator=PAIR, processes=2, faults=faults)
        more = _drawn(drawn, GROUPS)
        skews = tuple(drawn.uniform(-600.0, 600.0) if differ else 0.0 for _ in range(HOSTS))
        return found._replace(accelerator=SLICE, faults=sorted([*faults, more]), skews=skews)
    if backend == "emulator":
        return _with_capacity(found, random.Random(f"{seed} {backend} capacity"))
    if backend != "kubernetes":
        return found
    if several and drawn.random() < 0.6:
        found = found._replace(accelerator=TWO, skews=(0.0, 0.0))
    return found._replace(is_spot=drawn.random() < 0.5, in_queue=drawn.random() < 0.4)
