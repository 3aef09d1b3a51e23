"""The life cycle of the emulated Compute Engine's instances: what becomes of one once it was asked for.

Time, the lock, faults, the ledger and machines are those of the cloud that it is a part of (`World`). It does not know
the callers' requests, nor the causes of failures.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar, cast

from kinetic_orchestration.plan.hardware.regions import region_of
from kinetic_orchestration.testing.api_rules import compute_refusals as refusals
from kinetic_orchestration.testing.api_rules.compute_refusals import ComputeRefusal
from kinetic_orchestration.testing.model.compute import catalog
from kinetic_orchestration.testing.model.compute.catalog import GPUS
from kinetic_orchestration.testing.model.compute.machine import Docker, Drivers, machine
from kinetic_orchestration.testing.model.compute.resources import (
    SYSTEM,
    Disk,
    Instance,
    Numbered,
    Operation,
    Status,
    duration,
    moment,
)
from kinetic_orchestration.testing.model.faults import CLIENT, Caller, Faults
from kinetic_orchestration.testing.model.state.ledger import Ledger
from kinetic_orchestration.testing.model.state.machine import Host, Machine, project_number

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound="ComputeLifecycle")
_FLEX_PATIENCE = 90.0  # a request that is valid for less has no PENDING phase
_FLEX_MOST = 7200.0
_LOOK = 0.05  # seconds between two looks whether a guest has shut down
_NOT_SPEAKING = (
    "SeaBIOS (version 1.8.2-google)\nTotal RAM Size = 0x0000000400000000 = 16384 MiB\nBooting from Hard Disk 0...\n"
)


class World(Protocol):
    """The cloud that Compute Engine is a part of, as much of it as is needed here."""

    changed: threading.Condition
    ledger: Ledger
    faults: Faults
    has_own_zones: bool

    @property
    def now(self) -> float: ...
    @property
    def zones(self) -> Mapping[str, int | None]: ...
    @property
    def timing(self) -> Any: ...
    def advance(self) -> None: ...
    def later(self, seconds: float, action: Callable[[], None]) -> None: ...
    def record(self, kind: str, name: str, what: str) -> None: ...
    def free(self, zone: str) -> int | None: ...
    def pause(self, seconds: float) -> bool: ...
    def is_denied(self, permission: str, caller: Caller) -> bool: ...
    def demand_service(self, service: str, project: str) -> None: ...


class Means(NamedTuple):
    """Services of the cloud around it: boot a machine (None in a cloud without), chance, and the projects."""

    boot: Callable[[str, Machine], Host | None]
    random_bits: Callable[[int], int]
    has_project: Callable[[str], bool]


def step(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[C, P], T]:
    """Decorate a public method: what is due happens first, and all of it under the cloud's lock."""

    @functools.wraps(method)
    def stepped(self: C, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.world.changed:
            self.world.advance()
            try:
                return method(self, *args, **kwargs)
            finally:
                self.world.changed.notify_all()

    return cast("Callable[Concatenate[C, P], T]", stepped)


class Scarcity(NamedTuple):
    """Machines that a zone has not got at the moment."""

    zone: str
    machine_type: str
    available: tuple[str, ...] = ()
    reason: str = "resource_availability"
    shows: bool = False
    times: int | None = None


class ComputeQuota(NamedTuple):
    metric: str
    limit: float
    region: str
    family: str
    at: str


class ComputeLifecycle:
    """All instances of one cloud, and how each ends."""

    def __init__(self, world: World, means: Means) -> None:
        self.world = world
        self.means = means
        self.pace = 1.0
        self.restart_seconds = 0.2
        self.instances: dict[str, Instance] = {}
        self.operations: dict[str, Operation] = {}
        self.disks: dict[str, Disk] = {}  # that their instance has left behind
        self._requests: dict[tuple[str, str], Operation] = {}
        self._scarce: list[Scarcity] = []
        self._quotas: list[ComputeQuota] = []
        self._drivers: list[tuple[str, Drivers]] = []
        self._dockers: list[tuple[str, Docker]] = []
        self._silent: dict[str, str] = {}  # zone or region → unreachables, warning or error
        self._curtailed: set[str] = set()  # zones whose lists are not whole; "" for all
        self._lag = 0.0
        self._bootless: list[tuple[str, int | None]] = []
        self._mute: list[tuple[str, int | None]] = []
        self._stuck: list[str] = []
        self._endless: list[tuple[str, int | None]] = []

    # What there is

    @property
    def zones(self) -> list[str]:
        given = self.world.zones
        return sorted(given if self.world.has_own_zones else {*given, *catalog.ZONES})

    def default_account(self, project: str) -> str:
        return f"{project_number(project)}-compute@developer.gserviceaccount.com"

    # The beginning

    def _insert(self, instance: Instance, operation: Operation, caller: Caller) -> None:
        """Begin an instance whose request was accepted."""
        world = self.world
        self.instances[instance.path] = instance
        world.ledger.created("instance", instance.path)
        for disk in instance.disks:
            self._create_disk(disk)
        self._record(instance, instance.status)
        fault = world.faults.take("provision", "instances.insert", instance.zone, caller, instance.path)
        refusal = refusals.of(fault.refusal()) if fault is not None and fault.refusal is not None else None
        if refusal is not None:
            world.later(world.timing.provision, lambda: self._fail(instance, operation, refusal, shows=False))
            return
        self._consider(instance, operation)

    def _consider(self, instance: Instance, operation: Operation) -> None:
        world = self.world
        try:
            self._demand_quota(instance, "operation")
        except ComputeRefusal as error:
            refused = error
            world.later(world.timing.provision, lambda: self._fail(instance, operation, refused, shows=False))
            return
        lack = self._lack(instance)
        scheduling = instance.scheduling
        if lack is None:
            world.later(world.timing.provision / 2, lambda: self._stage(instance, operation))
            return
        valid = duration((instance.body.get("params") or {}).get("requestValidForDuration"))
        if scheduling["provisioningModel"] == catalog.FLEX_START and valid >= _FLEX_PATIENCE:
            self._show(instance, "PENDING")
            world.later(min(valid, _FLEX_MOST) / self.pace, lambda: self._vanish(instance, operation))
            return
        self._use_up(lack)
        name, count = instance.gpus
        refusal = refusals.stockout(
            instance.project, instance.zone, instance.machine_type.name,
            f"{name}:{count}" if instance.body.get("guestAccelerators") and count else "",
            lack.available, lack.reason,
        )  # fmt: skip
        world.later(world.timing.provision, lambda: self._fail(instance, operation, refusal, shows=lack.shows))

    def _stage(self, instance: Instance, operation: Operation) -> None:
        if not self._exists(instance) or instance.status not in ("PROVISIONING", "PENDING"):
            return
        self._show(instance, "STAGING")
        self.world.later(self.world.timing.provision / 2, lambda: self._run(instance, operation))

    def _run(self, instance: Instance, operation: Operation | None) -> None:
        if not self._exists(instance) or instance.status != "STAGING":
            return
        instance.started = self.world.now
        instance.starts += 1
        self._limit(instance)
        if instance.host is not None:
            instance.host.reboot()
        elif self._met(self._bootless, instance.name):
            instance.boots = False
        else:
            instance.host = self._boot(instance)
        self._show(instance, "RUNNING")
        if operation is not None:
            self._finish(operation, instance)
        trouble = self.world.faults.random.node(1) if self.world.faults.random else None
        if trouble is not None:
            self.world.later(trouble.after, lambda: self._befall(instance, trouble.what))

    def _boot(self, instance: Instance) -> Host | None:
        drivers = next((told for pattern, told in self._drivers if fnmatchcase(instance.name, pattern)), Drivers())
        docker = next((told for pattern, told in self._dockers if fnmatchcase(instance.name, pattern)), Docker())
        made = machine(instance, self.default_account(instance.project), drivers, docker)
        if self._met(self._mute, instance.name):
            kept = {key: value for key, value in made.metadata.items() if key != "startup-script"}
            made = replace(made, metadata={**kept, "startup-script": "#!/bin/sh\nexec sleep 100000000\n"})
        return self.means.boot(instance.path, made)

    def _limit(self, instance: Instance) -> None:
        """Let its run end by itself: counted from each start, or at a given moment."""
        scheduling = instance.scheduling
        limit = duration(scheduling.get("maxRunDuration"))
        until = str(scheduling.get("terminationTime") or "")
        if not limit and not until:
            return
        ends = moment(until) if until else instance.started + limit / self.pace
        instance.ends = ends
        start = instance.starts

        def expire() -> None:
            if self._exists(instance) and instance.starts == start and instance.status in ("RUNNING", "REPAIRING"):
                self._record(instance, "has run for as long as it may")
                self._stop(instance, str(scheduling.get("instanceTerminationAction") or "STOP"))

        self.world.later(max(0.0, ends - self.world.now), expire)

    # The end

    def _fail(self, instance: Instance, operation: Operation, refusal: ComputeRefusal, *, shows: bool) -> None:
        """An insert fails: nothing is left of the instance, at once or after it was STOPPING."""
        self._end_operation(operation, refusal)
        if not self._exists(instance) or instance.status in ("STOPPING", "RUNNING"):
            return
        if shows:
            self._show(instance, "STOPPING")
            self.world.later(self.world.timing.delete, lambda: self._remove(instance))
        else:
            self._remove(instance)

    def _vanish(self, instance: Instance, operation: Operation) -> None:
        """The wait of flex-start ends without capacity: the VM is gone, and nothing says why."""
        if self._exists(instance) and instance.status == "PENDING":
            self._remove(instance)
            self._end_operation(operation)

    def _delete(self, instance: Instance) -> None:
        """Press the power button, and remove it once it is off."""
        self._show(instance, "STOPPING")
        instance.stopped = self.world.now

        def remove() -> None:
            self.world.later(self.world.timing.delete, lambda: self._try_to_remove(instance))

        self._shut_down(instance, remove)

    def _shut_down(self, instance: Instance, then: Callable[[], None]) -> None:
        """Let its guest shut down, for as long as it takes or is allowed to, and go on once its power is off."""
        host, most = instance.host, self.world.timing.shutdown
        if host is None:
            then()
            return
        host.shut_down(most)
        until = self.world.now + most

        def look() -> None:
            if host.alive and self.world.now < until and self._exists(instance):
                self.world.later(_LOOK, look)
                return
            then()

        look()

    def _try_to_remove(self, instance: Instance) -> None:
        instance.stuck = any(fnmatchcase(instance.name, pattern) for pattern in self._stuck)
        if not instance.stuck and self._exists(instance):
            self._remove(instance)

    def _remove(self, instance: Instance) -> None:
        world = self.world
        if not self._exists(instance):
            return
        if instance.host is not None:
            instance.host.destroy()
        world.ledger.idle(instance.path, "instance")
        del self.instances[instance.path]
        world.ledger.deleted("instance", instance.path)
        for disk in instance.disks:
            if disk.auto_delete:
                world.ledger.deleted("disk", disk.path)
            elif disk.path:
                self.disks[disk.path] = disk
        self._record(instance, "deleted")
        for operation in list(self.operations.values()):
            if operation.target_id == instance.number and not operation.ended and operation.kind != "insert":
                self._finish(operation, instance)
        self.reconsider()

    def _stop(self, instance: Instance, action: str) -> None:
        """Press the power button, and go on once it is off."""
        self._show(instance, "STOPPING")

        def terminate() -> None:
            self.world.later(self.world.timing.stop, lambda: self._terminate(instance, action))

        self._shut_down(instance, terminate)

    def _terminate(self, instance: Instance, action: str) -> None:
        """It is stopped from outside: afterwards deleted, or TERMINATED, which is billed for its disks."""
        if not self._exists(instance):
            return
        if action == "DELETE" or instance.unwanted:
            self._show(instance, "STOPPING")
            if instance.host is not None:
                instance.host.cut()
            self.world.later(self.world.timing.delete, lambda: self._try_to_remove(instance))
            return
        if instance.host is not None:
            instance.host.cut()
        instance.stopped = self.world.now
        instance.ends = 0.0
        self._show(instance, "TERMINATED")
        for operation in list(self.operations.values()):
            if operation.target_id == instance.number and operation.kind == "stop":
                self._finish(operation, instance)
        self.reconsider()

    # What befalls it

    @step
    def preempt(self, name: str, notice: float | None = None, grace: float = 0.0) -> None:
        """A VM is preempted: `preempted` is TRUE now, the power button is pressed `notice` seconds later (by default
        those of its own preemptionNoticeDuration), and its power is cut after `grace` seconds more."""
        instance = self.chosen(name)
        declared = duration(instance.scheduling.get("preemptionNoticeDuration")) / self.pace
        seconds = declared if notice is None else notice
        self._record(instance, f"will be preempted in {seconds:g} s")
        if seconds and instance.host is not None:
            instance.host.warn()
        self.world.later(seconds, lambda: self._preempt(instance, grace))

    def _preempt(self, instance: Instance, grace: float) -> None:
        if not self._exists(instance) or instance.status != "RUNNING":
            return
        operation = self.event(instance, "compute.instances.preempted", "Instance was preempted.", ended=False)
        self._show(instance, "STOPPING")
        if instance.host is not None:
            instance.host.preempt(grace or None)

        def gone() -> None:
            self._end_operation(operation)
            if self._exists(instance) and instance.status == "STOPPING":
                self._terminate(instance, str(instance.scheduling.get("instanceTerminationAction") or "STOP"))

        self.world.later(grace, gone)

    @step
    def host_error(self, name: str, kind: str = "compute.instances.hostError") -> None:
        """The machine under a VM fails. With automaticRestart, which is Google's default, the VM boots again on another
        one; else it stays TERMINATED, and is billed for its disk. `kind`: the operation that tells of it, also
        `compute.instances.terminateOnHostMaintenance`."""
        instance = self.chosen(name)
        self._host_error(instance, kind)

    def _host_error(self, instance: Instance, kind: str = "compute.instances.hostError") -> None:
        if not self._exists(instance) or instance.status != "RUNNING":
            return
        self.event(instance, kind, "Instance terminated by Compute Engine.")
        if not instance.scheduling["automaticRestart"]:
            self._terminate(instance, "STOP")
            return
        self._restart(instance)

    def _restart(self, instance: Instance) -> None:
        """Boot it again, on another machine."""
        self._show(instance, "REPAIRING")
        if instance.host is not None:
            instance.host.cut()

        def restart() -> None:
            if self._exists(instance) and instance.status == "REPAIRING":
                self.event(
                    instance,
                    "compute.instances.automaticRestart",
                    "Instance automatically restarted by Compute Engine.",
                )
                self._show(instance, "STAGING")
                self.world.later(self.world.timing.provision, lambda: self._run(instance, None))

        self.world.later(self.restart_seconds, restart)

    def _befall(self, instance: Instance, what: str) -> None:
        if not self._exists(instance) or instance.status != "RUNNING":
            return
        if what in ("preemption with notice", "preemption", "gone"):
            self.preempt(instance.path, 2.0 if "notice" in what else 0.0)
        elif what == "maintenance":
            self._host_error(instance, "compute.instances.terminateOnHostMaintenance")
        elif what == "power failure":
            self._host_error(instance)
        elif what == "reboot" and instance.host is not None:
            instance.host.reboot()

    # Limits

    def reconsider(self) -> None:
        """Capacity may have been freed: those that wait for it get it in their order."""
        for instance in list(self.instances.values()):
            if instance.status == "PENDING" and self._lack(instance) is None:
                operation = next(
                    one for one in self.operations.values()
                    if one.target_id == instance.number and one.kind == "insert"
                )  # fmt: skip
                self._show(instance, "PROVISIONING")
                wait = self.world.timing.provision / 2
                self.world.later(wait, functools.partial(self._stage, instance, operation))

    def _lack(self, instance: Instance, count: int = 1) -> Scarcity | None:
        """Return the scarcity that a request meets, if the zone has not `count` such machines."""
        kind, zone = instance.machine_type.name, instance.zone
        for scarce in self._scarce:
            if fnmatchcase(zone, scarce.zone) and fnmatchcase(kind, scarce.machine_type):
                return scarce
        free = self.world.free(zone)
        if free is None:
            return None
        used = sum(
            one.chips for one in self.instances.values() if one.zone == zone and one.occupies and one is not instance
        )
        return Scarcity(zone, kind) if instance.chips * count > free - used else None

    def _use_up(self, lack: Scarcity) -> None:
        if lack.times is None or lack not in self._scarce:
            return
        self._scarce.remove(lack)
        if lack.times > 1:
            self._scarce.insert(0, lack._replace(times=lack.times - 1))

    def _demand_quota(self, instance: Instance, at: str, count: int = 1) -> None:
        """Refuse what is above a quota; `count` instances of that kind are asked for."""
        for known in self._quotas:
            asked = self._charged(known, instance) * count
            used = sum(
                self._charged(known, one)
                for one in self.instances.values()
                if one is not instance and one.project == instance.project
            )
            if known.at == at and asked and asked + used > known.limit:
                raise self._quota_refusal(known)

    def _charged(self, known: ComputeQuota, instance: Instance) -> int:
        if known.region not in ("", instance.zone, region_of(instance.zone)):
            return 0
        charged = usage(instance)
        if known.family:
            return charged.get(f"{known.metric}/{known.family}", 0)
        return charged.get(known.metric, 0)

    @staticmethod
    def _quota_refusal(known: ComputeQuota) -> ComputeRefusal:
        kind = "zone" if known.region.count("-") > 1 else "region"
        dimensions = {kind: known.region} if known.region else {"global": "global"}
        name = known.metric.replace("_", "-")
        if known.family:
            dimensions["gpu_family"] = known.family
        limit = f"{name}-per-project-{kind}" if known.region else f"{name}-per-project"
        return refusals.quota(known.metric, known.limit, known.region, dimensions, limit)

    # Operations

    def operation(self, kind: str, about: Numbered, target: str, user: str, request_id: str = "") -> Operation:
        now = self.world.now
        parent = target.rsplit("/", 2)[0]
        bits = self.means.random_bits
        name = f"operation-{int(now * 1000)}-{bits(52):013x}-{bits(32):08x}-{bits(32):08x}"
        operation = Operation(
            f"{parent}/operations/{name}", bits(62) | 1 << 61, kind, target, about.number, user, now, request_id
        )
        self.operations[operation.path] = operation
        return operation

    def event(self, instance: Instance, kind: str, said: str, *, ended: bool = True) -> Operation:
        """An operation that Google did by itself."""
        operation = self.operation(kind, instance, instance.path, SYSTEM)
        operation.said = said
        self._record(instance, f"{kind}: {said}")
        if ended:
            operation.ended = self.world.now
        return operation

    def _finish(self, operation: Operation, instance: Instance) -> None:
        if operation.ended:
            return
        method = {"insert": "instances.insert", "delete": "instances.delete"}.get(operation.kind, operation.kind)
        fault = self.world.faults.take("operation", method, instance.zone, CLIENT, instance.path)
        failed = fault is not None and fault.refusal is not None
        self._end_operation(operation, refusals.of(fault.refusal()) if failed else None)  # type: ignore[union-attr,misc]

    def _end_operation(self, operation: Operation, error: ComputeRefusal | None = None) -> None:
        if not operation.ended and not self._met(self._endless, operation.kind):
            operation.ended, operation.error = self.world.now, error
            if error is not None:
                self.world.record("operation", operation.target, f"{operation.kind} failed: {error.message}")

    # Small parts

    def _create_disk(self, disk: Disk) -> None:
        if disk.path:
            self.world.ledger.created("disk", disk.path)

    def _show(self, instance: Instance, status: Status) -> None:
        if status == instance.status:
            return
        if instance.status == "RUNNING":
            self.world.ledger.idle(instance.path, "instance")
        instance.status = status
        if status == "RUNNING":
            self.world.ledger.ready(instance.path, instance.chips, "instance")
        self._record(instance, status)

    def _record(self, instance: Instance, what: str) -> None:
        self.world.record("instance", instance.path, what)

    def _exists(self, instance: Instance) -> bool:
        return self.instances.get(instance.path) is instance

    def _met(self, planned: list[tuple[str, int | None]], name: str) -> bool:
        for index, (pattern, times) in enumerate(planned):
            if fnmatchcase(name, pattern):
                if times is not None:
                    planned[index : index + 1] = [(pattern, times - 1)] if times > 1 else []
                return True
        return False

    def chosen(self, name: str) -> Instance:
        """Look up an instance for a test, by its path or its name alone."""
        for path, instance in self.instances.items():
            if name in (path, instance.name):
                return instance
        raise LookupError(f"there is no instance {name}; there are: {', '.join(self.instances) or 'none'}")

    def console_of(self, instance: Instance) -> bytes:
        """Return the output of its first serial port."""
        if not instance.boots or not instance.starts:
            return _NOT_SPEAKING.encode() if instance.starts else b""
        own = instance.host.console() if instance.host is not None else ""
        lines = [f"[    0.000000] Linux version 6.8.0-1042-gcp ({instance.name})"]
        lines += [
            f"{instance.name} google_metadata_script_runner[812]: startup-script: {line}" for line in own.splitlines()
        ]
        return (_NOT_SPEAKING + "\n".join(lines) + "\n").encode()


def usage(instance: Instance) -> dict[str, int]:
    """Return an instance's usage of quotas: metric, or metric/family → amount."""
    is_spot = instance.scheduling["provisioningModel"] in (catalog.SPOT, catalog.FLEX_START)
    type_ = instance.machine_type
    kind = type_.name.partition("-")[0].upper()
    found = {"INSTANCES": 1, "SSD_TOTAL_GB": 0, "HDB_TOTAL_GB": 0, "DISKS_TOTAL_GB": 0}
    found["CPUS" if kind in ("N1", "G2") else f"{kind}_CPUS"] = type_.cpus
    if is_spot:
        found["PREEMPTIBLE_CPUS"] = type_.cpus
    for disk in instance.disks:
        metric = {"pd-standard": "DISKS_TOTAL_GB", "hyperdisk-balanced": "HDB_TOTAL_GB"}.get(disk.kind, "SSD_TOTAL_GB")
        found[metric] = found[metric] + disk.size_gib
    name, count = instance.gpus
    if name:
        gpu = GPUS[name]
        found[gpu.spot_quota if is_spot else gpu.quota + (f"/{gpu.family}" if gpu.family else "")] = count
    if count or type_.tpu:
        found["GPUS_ALL_REGIONS"] = count or type_.accelerators
    return found
