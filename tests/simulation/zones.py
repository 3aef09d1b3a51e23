"""The common part of the simulated APIs of Google's VMs: zones with their weather, views that lag, deletes that fail.

It knows neither what is made there nor whose it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.simulation.world import World

FREE, REFUSED, DRY, QUEUE, QUOTAS, FAILING = "free", "refused", "dry", "queue", "quotas", "failing"
NEVER, NEVER_REGION, UNKNOWN_ZONE = "no quota", "no quota in the region", "forbidden"
PASSING = (REFUSED, DRY, QUEUE, QUOTAS, FAILING)
LASTING = (NEVER, NEVER_REGION, UNKNOWN_ZONE)


class Zone:
    def __init__(self, name: str, weather: str, until: float, times: int = 2) -> None:
        self.name = name
        self.weather = weather
        self.until = until
        self.times = times  # so many internal errors


class Odds(NamedTuple):
    """The probabilities of faults in the slices of one seed."""

    harm: float = 0.0
    lag: float = 0.0
    stuck: float = 0.0
    refuses: float = 0.0  # a delete is answered 429 or 403
    unreachable: float = 0.0  # a listing says that it does not know of a zone
    orphans: float = 0.0  # a queued resource is deleted, and not this node of its; or a VM, and not its disk
    narrow: bool = False  # zones are listed one by one only
    forgetful: bool = False  # a create call that is made again is not recognised, and finds its name taken
    hidden: float = 0.0  # what was made is never shown
    idle: float = 0.0  # a delete is accepted, and nothing comes of it
    forgets: bool = False  # operations are not there any more when they are asked for
    remakes: bool = False  # a group makes a member again that is gone, though it is to do nothing
    gives_up: bool = False  # a group asks for nothing any more once it has waited for as long as its attempt may


class Zones:
    """An API below which machines are: its weather by zones, and what it shows of things by their whole names.

    Hooks: the judge is asked before a thing is made or deleted, and told when a job's were; the ground boots machines,
    and hears of harm.
    """

    def __init__(self, world: World, zones: dict[str, Zone], odds: Odds) -> None:
        self.world = world
        self.zones = zones
        self.odds = odds
        self.calm = False
        self.queued: dict[str, Any] = {}  # what attempts asked for
        self.nodes: dict[str, Any] = {}  # what machines there are for it
        self.shown: dict[str, list[tuple[float, Any]]] = {}
        self.rate_until = 0.0
        self.may_create: Callable[[Any], object] = lambda _queued: None
        self.may_delete: Callable[[str, Any], object] = lambda _name, _what: None
        self.boot: Callable[[Any], object] = lambda _node: None
        self.made: Callable[[str], object] = lambda _job: None
        self.harm: Callable[[Any, str], object] = lambda _queued, _kind: None

    # ---- what is shown, a little later than it is ------------------------------------------------------------

    def show(self, what: Any, *, gone: bool = False) -> None:
        self.shown.setdefault(what.name, [(0.0, None)]).append((self.world.now, None if gone else what.shown()))
        self.world.note("gone" if gone else "state", what.name.rsplit("/", 2)[1], what.id, what.state)

    def view(self, name: str) -> Any:
        history = self.shown.get(name)
        if history is None:
            return None
        until = self.world.now
        if self.odds.lag and not self.calm:
            until -= self.world.random.random() * self.odds.lag
        return next(shown for when, shown in reversed(history) if when <= until)

    def weather(self, zone: Zone) -> str:
        if zone.weather in LASTING:
            return zone.weather
        return zone.weather if self.world.now < zone.until and not self.calm else FREE

    def nodes_of(self, queued: Any) -> list[Any]:
        return [node for node in list(self.nodes.values()) if node.queued is queued]

    def end_machines(self, node: Any) -> None:
        for machine in node.machines:
            machine.destroy()

    def _refuses(self) -> bool:
        refuses = not self.calm and self.world.random.random() < self.odds.refuses
        if refuses:
            self.world.reached.add("a delete was refused")
        return refuses

    def _slowness(self) -> float:
        draw = self.world.random
        if not self.calm and draw.random() < self.odds.stuck:
            self.world.reached.add("a delete got stuck")
            return draw.choice((600.0, 7200.0, 30_000.0))
        return draw.uniform(1.0, 30.0)
