"""The methods by which a test scripts what goes wrong at the emulated Compute Engine: those of `cloud.compute`.

docs/pipelines/emulator.md explains them. What may go wrong at any API is scripted at the cloud itself, by the names of
methods: `cloud.fail("instances.insert")`, also `lose_answer`, `slow`, `deny` and `deviate`.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

from kinetic_orchestration.testing.model.compute import catalog
from kinetic_orchestration.testing.model.compute.catalog import Image
from kinetic_orchestration.testing.model.compute.lifecycle import (
    ComputeLifecycle,
    ComputeQuota,
    Means,
    Scarcity,
    World,
    step,
)
from kinetic_orchestration.testing.model.compute.machine import Docker, Drivers


class Reservation(NamedTuple):
    machine_type: str
    machines: int
    bound: bool
    status: str


class ComputeScript(ComputeLifecycle):
    def __init__(self, world: World, means: Means) -> None:
        super().__init__(world, means)
        self.images: list[Image] = list(catalog.IMAGES)
        self.networks: dict[str, bool] = {}  # projects/P/global/networks/N → whether it makes subnetworks by itself
        self.subnetworks: dict[str, str] = {}  # projects/P/regions/R/subnetworks/S → the network's path
        self.private: set[str] = set()  # those with Private Google Access
        self.bare: set[str] = set()  # projects without a network `default`
        self.reservations: dict[str, Reservation] = {}  # by projects/P/zones/Z/reservations/R
        self._rate: int | None = None
        self._asked: list[float] = []
        self._lacking: set[tuple[str, str]] = set()
        self._narrowed: str | None = None

    @step
    def stockout(
        self, zone: str = "*", machine_type: str = "*", available: Iterable[str] = (), *,
        reason: str = "resource_availability", shows: bool = False, times: int | None = None,
    ) -> None:  # fmt: skip
        """`zone` has no such machines: inserts fail in their operation, and flex-start waits.

        Args:
            zone: The zone, with `*`.
            machine_type: The machines, with `*`.
            available: Zones that the error names as having some (`zonesAvailable`).
            reason: Of the errorInfo: resource_availability, or stockout.
            shows: The instance is STOPPING for a while before it is gone.
            times: So many inserts; None: all, until `restock`.
        """
        self._scarce.append(Scarcity(zone, machine_type, tuple(available), reason, shows, times))

    @step
    def restock(self, zone: str = "*", machine_type: str = "*") -> None:
        """`zone` has machines again: those that wait get them. With `*`, whatever was scripted of it."""
        self._scarce = [
            one
            for one in self._scarce
            if not (fnmatchcase(one.zone, zone) and fnmatchcase(one.machine_type, machine_type))
        ]
        self.reconsider()

    @step
    def quota(
        self, metric: str, limit: float | None, region: str = "", *, family: str = "",
        at: Literal["call", "operation"] = "operation",
    ) -> None:  # fmt: skip
        """Limit what there may be by a metric, such as NVIDIA_L4_GPUS or A2_CPUS, in a region, a zone, or all of them.

        Args:
            metric: As quotas have it; `GPUS_PER_GPU_FAMILY` with a `family`, such as NVIDIA_H100, of H100 and newer;
                `GPUS_ALL_REGIONS`, of GPUs and TPUs alike, without a region.
            limit: None lifts it.
            region: A region or a zone; "" all of them together.
            family: Of GPUs.
            at: The insert itself is refused, or its operation fails.
        """
        same = (metric, region, family)
        self._quotas = [known for known in self._quotas if (known.metric, known.region, known.family) != same]
        if limit is not None:
            self._quotas.append(ComputeQuota(metric, limit, region, family, at))

    @step
    def request_rate(self, per_minute: int | None) -> None:
        """Limit the requests of a minute: more are refused, with 403 rateLimitExceeded, until the next full one."""
        self._rate = per_minute
        self._asked = []

    @step
    def silence(self, place: str, told: Literal["unreachables", "warning", "error"] = "unreachables") -> None:
        """A zone or a region does not answer: requests of it fail, and aggregated lists say that it is not in them, in
        the list of `unreachables` or by a `warning` of its scope; or they fail as a whole. No region is its zones."""
        self._silent[place] = told

    @step
    def hear(self, place: str) -> None:
        """The zone or the region answers again."""
        self._silent.pop(place, None)

    @step
    def curtail(self, zone: str = "", *, ends: bool = False) -> None:
        """Aggregated lists leave out what a zone has, or all that there is, as filters took too long, and say so by a
        warning of the zone or of the list. A GET of it finds it."""
        (self._curtailed.discard if ends else self._curtailed.add)(zone)

    @step
    def lag(self, seconds: float) -> None:
        """Aggregated lists do not have what was created within so many seconds, though a GET of it does; 0 ends it."""
        self._lag = seconds

    @step
    def lack(self, zone: str, kind: str) -> None:
        """`zone` does not offer such a type of machines, or of accelerators, at all."""
        self._lacking.add((zone, kind))

    @step
    def never_boots(self, name: str = "*", times: int | None = 1) -> None:
        """The next VMs do not boot, though they are RUNNING: their serial port shows the firmware, and nothing else."""
        self._bootless.append((name, times))

    @step
    def never_speaks(self, name: str = "*", times: int | None = 1) -> None:
        """The next VMs boot, and never run their startup script."""
        self._mute.append((name, times))

    @step
    def drivers(self, name: str = "*", *, late: int = 0, fewer: int = 0, toolkit: bool = True) -> None:
        """NVIDIA's driver of VMs that boot from now on is not there for the first `late` questions of each boot, and
        then lists `fewer` GPUs than there are. Without `toolkit`, containers of theirs get no GPUs."""
        self._drivers.insert(0, (name, Drivers(late, fewer, toolkit)))

    @step
    def docker(
        self, name: str = "*", *, refuses: str = "", times: int | None = None, exits: int = 0, says: str = ""
    ) -> None:
        """The docker of VMs that boot from now on refuses the first `times` pulls (None: all) with these words, and
        whatever it runs ends at once with the code `exits`, after the words `says`."""
        self._dockers.insert(0, (name, Docker(refuses, times, exits, says)))

    @step
    def stuck_delete(self, name: str = "*") -> None:
        """Instances of that name stay STOPPING once they are deleted, until `unstick`."""
        self._stuck.append(name)

    @step
    def unstick(self) -> None:
        self._stuck = []
        for instance in list(self.instances.values()):
            if instance.stuck:
                self._try_to_remove(instance)

    @step
    def stuck_operations(self, kind: str = "insert", times: int | None = None) -> None:
        """Operations of that type (insert, delete) never finish, whatever becomes of their target."""
        self._endless.append((kind, times))

    @step
    def speed_up(self, factor: float) -> None:
        """Durations that requests name (maxRunDuration, requestValidForDuration, preemptionNoticeDuration) pass that
        many times faster, for instances that are inserted from now on."""
        self.pace = factor

    @step
    def retire(self, family: str) -> None:
        """A family of images is gone, as Google's are after a while; its images are not deleted."""
        self.images = [image._replace(family="") if image.family == family else image for image in self.images]

    @step
    def add_image(self, project: str, family: str, disk_gib: int = 10, *, driver: str = "", arm: bool = False) -> str:
        """An image of one's own; its path."""
        image = Image(project, family, disk_gib, arm, driver)
        self.images.append(image)
        return image.path

    @step
    def add_network(self, project: str, name: str, *regions: str) -> None:
        """A network in custom mode, with a subnetwork of its name in each of `regions`."""
        path = f"projects/{project}/global/networks/{name}"
        self.networks[path] = False
        for region in regions:
            self.subnetworks[f"projects/{project}/regions/{region}/subnetworks/{name}"] = path

    @step
    def remove_default_network(self, project: str) -> None:
        """A project has no network `default`: an organisation may have its projects made without."""
        self.bare.add(project)

    @step
    def enable_private_access(self, project: str, region: str, name: str = "default") -> None:
        """A subnetwork gets Private Google Access, which none has at first."""
        self.private.add(f"projects/{project}/regions/{region}/subnetworks/{name}")

    @step
    def add_reservation(
        self, project: str, zone: str, name: str, machine_type: str, count: int, *, bound: bool = False,
        status: Literal["CREATING", "READY", "UPDATING", "DELETING"] = "READY",
    ) -> None:  # fmt: skip
        """A reservation has so many machines of a type, also for other projects that name it by its path.

        Args:
            project: Of its owner.
            zone: Its zone.
            name: Its name; one of the same name is replaced.
            machine_type: Of its machines.
            count: How many it has.
            bound: It was booked for a time, as by a future reservation: its VMs are RESERVATION_BOUND, and no others.
            status: None but one that is READY gives any.
        """
        path = f"projects/{project}/zones/{zone}/reservations/{name}"
        self.reservations[path] = Reservation(machine_type, count, bound, status)

    @step
    def narrow(self, prefix: str) -> None:
        """The accounts of VMs have rights on instances and groups whose names begin with `prefix` only: as a condition
        of a policy says. What is asked of a project, they may not do."""
        self._narrowed = prefix

    @step
    def forget_operations(self) -> None:
        """Operations that are done are forgotten, as Google does after some days."""
        self.operations = {path: one for path, one in self.operations.items() if not one.ended}

    @step
    def power_off(self, name: str) -> None:
        """A VM is dead; its instance stays RUNNING and costs on."""
        instance = self.chosen(name)
        if instance.host is not None:
            instance.host.cut()

    @step
    def shut_down(self, name: str, seconds: float = 0.2) -> None:
        """A VM is shut down from inside: it is STOPPING for so long, and then stays TERMINATED, unless somebody has
        asked for its deletion meanwhile."""
        instance = self.chosen(name)
        self.event(instance, "compute.instances.guestTerminate", "Instance terminated by guest OS shutdown.")
        self._show(instance, "STOPPING")
        if instance.host is not None:
            instance.host.shut_down(seconds)
        self.world.later(seconds, lambda: self._terminate(instance, "STOP"))

    @step
    def stop(self, name: str) -> None:
        """Somebody stops a VM at the console: it shuts down, and then stays TERMINATED."""
        instance = self.chosen(name)
        self.operation("stop", instance, instance.path, "user@emulated.example")
        self._stop(instance, "STOP")

    @step
    def reboot(self, name: str) -> None:
        """A VM boots again; the API does not show it."""
        instance = self.chosen(name)
        if instance.host is not None:
            instance.host.reboot()

    @step
    def clear_faults(self) -> None:
        """Remove all that was scripted; past failures keep their effects."""
        self._scarce, self._quotas, self._drivers, self._dockers = [], [], [], []
        self._bootless, self._mute, self._silent, self._lacking, self._lag = [], [], {}, set(), 0.0
        self._curtailed.clear()
        self._rate, self._narrowed, self._endless = None, None, []
        self.reconsider()
        self.unstick()

    @step
    def sweep(self) -> None:
        """Delete all instances and disks at once, as a user would at the console after a test."""
        for instance in list(self.instances.values()):
            self._remove(instance)
        for path in list(self.disks):
            del self.disks[path]
            self.world.ledger.deleted("disk", path)
