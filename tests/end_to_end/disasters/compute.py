"""Disasters of jobs on the emulated Compute Engine."""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Callable

from kinetic_orchestration.errors import KineticError
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.platforms.google.compute.client import Instances, Refused
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.model.compute.groups.resources import End
from tests.end_to_end.disasters.schedule import Fault, Schedule, chosen
from tests.support.jobs import PROGRAM

METRICS = ("NVIDIA_L4_GPUS", "PREEMPTIBLE_NVIDIA_L4_GPUS")
METRICS_OF_SLICES = ("CT6E_CPUS", "PREEMPTIBLE_CPUS")
LOOKS = ("instances.get", "instances.aggregatedList", "zoneOperations.list")
LOOKS_AT_GROUPS = (*LOOKS, "instanceGroupManagers.get", "instanceGroupManagers.aggregatedList")
SLOWER = 3.0  # seconds by which answers come later
NOTICE = 1.5
LATE = 3  # questions that a driver which is not loaded does not answer
UNSEEN = ("request rate", "zone is silent", "API refuses", "slow looks", "fewer GPUs")  # while they last nobody looks

UNDELETED = ("request rate", "zone is silent", "API refuses")  # nor is anything deleted,
CAUSED_BY = {  # those of attempts that follow from some faults only
    wire.QUOTA: ("quota",),
    wire.STOCKOUT: ("stockout", "stockout that is shown"),
    wire.CANCELLED: ("cancel", "somebody deletes the instance", "somebody deletes the group"),
    wire.CONFIGURATION: (),
}
ENDS: tuple[tuple[End, ...], ...] = (("preempted",), ("deleted",), ("failed",), ("preempted", "deleted", "failed"))
AGAIN = 3.0  # until it is asked for again, so many seconds later

Later = Callable[[float, Callable[[], object]], None]


def is_right(cause: str, hit: set[str]) -> bool:
    """Return True for the cause of an attempt that the faults which hit a run may have had."""
    return cause not in CAUSED_BY or not hit.isdisjoint(CAUSED_BY[cause])


class OnCompute:
    """The emulated Compute Engine of one run. `later` does something after so many seconds."""

    def __init__(self, cloud: Emulator, drawn: Schedule, later: Later) -> None:
        self._cloud, self._drawn, self._later = cloud, drawn, later
        self.undeleted = 0.0  # seconds in which what is deleted may be charged for all the same
        script = cloud.compute
        kind = "instanceGroupManagers" if drawn.is_grouped else "instances"
        looks = LOOKS_AT_GROUPS if drawn.is_grouped else LOOKS
        self._metrics = METRICS_OF_SLICES if drawn.is_grouped else METRICS
        self._strikes: dict[str, Callable[[Fault], None]] = {
            "preempt": lambda fault: script.preempt(self._running(fault), notice=0.0),
            "preempt with notice": lambda fault: script.preempt(self._running(fault), notice=NOTICE),
            "host error": lambda fault: script.host_error(self._running(fault)),
            "maintenance": lambda fault: script.host_error(
                self._running(fault), "compute.instances.terminateOnHostMaintenance"
            ),
            "somebody deletes the instance": self._delete,
            "instances vanish": self._vanish,
            "reboot": lambda fault: script.reboot(self._running(fault)),
            "power off": lambda fault: script.power_off(self._running(fault)),
            "never boots": lambda fault: script.never_boots(times=1),
            "never speaks": lambda fault: script.never_speaks(times=1),
            "drivers late": lambda fault: script.drivers(late=LATE),
            "fewer GPUs": self._lose_gpu,
            "stockout": lambda fault: self._lack(fault, shows=False),
            "stockout that is shown": lambda fault: self._lack(fault, shows=True),
            "quota": self._limit,
            "create operation fails": lambda fault: cloud.fail(f"{kind}.insert", at="operation", times=1),
            "request rate": self._limit_rate,
            "zone is silent": self._silence,
            "API refuses": self._refuse,
            "lose the answer of a create call": lambda fault: cloud.lose_answer(f"{kind}.insert", times=1),
            "lose the answer of a delete call": lambda fault: cloud.lose_answer(f"{kind}.delete", times=1),
            "lose the answer of a look": lambda fault: cloud.lose_answer(chosen(looks, fault), times=2),
            "slow create calls": lambda fault: cloud.slow(f"{kind}.insert", SLOWER, times=2),
            "slow looks": lambda fault: cloud.slow(chosen(looks, fault), SLOWER, times=3),
            "slow delete calls": lambda fault: cloud.slow(f"{kind}.delete", SLOWER, times=2),
            "stuck delete": self._stick,
            "topology fails": self._break,
            "member is made again": lambda fault: script.group_habits(chosen(ENDS, fault)),
            "slow grant": lambda fault: script.slow_grant(seconds=fault.lasts),
            "member cannot be made": lambda fault: script.fail_member(times=LATE),
            "template is held": lambda fault: script.linger(fault.lasts),
            "somebody deletes the group": self._delete_group,
            "kill one agent": lambda fault: self._kill_one(fault, "^kinetic-agent"),
            "kill one guard": lambda fault: self._kill_one(fault, "^kinetic-guard"),
            "kill one program": lambda fault: self._kill_one(fault, PROGRAM),
            "kill one process": lambda fault: self._kill_one(fault, "^kinetic-guard", whole=True),
        }

    def held(self) -> tuple[float, int]:
        """For how many seconds one VM or more of each attempt ran, all together, and the number of attempts that had
        any."""
        began: dict[str, float] = {}
        ended: dict[str, float] = {}
        for entry in self._cloud.ledger.entries:
            name = entry.name if self._drawn.hosts == 1 else entry.name.rpartition("-")[0]
            if entry.kind == "instance" and entry.what == "ready":
                began.setdefault(name, entry.time)
            elif entry.kind == "instance" and entry.what == "idle":
                ended[name] = entry.time
        return sum(ended[name] - began[name] for name in began), len(began)

    def names(self) -> list[str]:
        """The instances that exist, the newest last."""
        return [path.rpartition("/")[2] for path in list(self._cloud.compute.instances)]

    def strike(self, fault: Fault) -> None:
        """Apply a fault. Raises LookupError if there is nobody whom it may hit now."""
        self._strikes[fault.what](fault)
        self.undeleted += 2 * SLOWER * (fault.what == "slow delete calls")
        self.undeleted += (fault.lasts + AGAIN) * (fault.what in UNDELETED)

    def _running(self, fault: Fault) -> str:
        instances = list(self._cloud.compute.instances.items())
        return chosen([path for path, instance in instances if instance.status == "RUNNING"], fault)

    def _kill_one(self, fault: Fault, which: str, *, whole: bool = False) -> None:
        """Kill one of what each process of a VM has, or the `whole` of it, as the kernel does that has no memory left."""
        (machine,) = self._cloud.vms(self._running(fault).rpartition("/")[2])
        found: list[int] = [] if machine is None else sorted(machine.kill(which, 0))
        victim = chosen(found, fault._replace(whom=fault.whom * 10 % 1))  # by other digits than its VM
        for pid in [victim, *(process.pid for process in processes.descendants(victim) if whole)]:
            processes.send(pid, signal.SIGKILL)

    def _zone(self, fault: Fault) -> str:
        return chosen(sorted({*self._cloud.compute.zones} & {*settings.load().zones}), fault)

    def _delete(self, fault: Fault) -> None:
        """A person does, by the API."""
        path = chosen(list(self._cloud.compute.instances), fault)
        with contextlib.suppress(KineticError, Refused):
            Instances(settings.load()).delete(path)

    def _delete_group(self, fault: Fault) -> None:
        path = chosen(list(self._cloud.compute.groups), fault)
        with contextlib.suppress(KineticError, Refused):
            Instances(settings.load()).delete(path)

    def _break(self, fault: Fault) -> None:
        """The links between the chips of a slice that has all its hosts fail."""
        name = chosen(list(self._cloud.compute.groups), fault).rpartition("/")[2]
        self._cloud.compute.topology(name, chosen(("FAILED", "ACTIVE_DEGRADED"), fault))

    def _vanish(self, fault: Fault) -> None:
        """All of them are gone, and no operation says why."""
        chosen(list(self._cloud.compute.instances), fault)
        self._cloud.compute.sweep()

    def _lose_gpu(self, fault: Fault) -> None:
        """Those that boot meanwhile lack one for good."""
        self._cloud.compute.drivers(fewer=1)
        self._later(fault.lasts, lambda: self._cloud.compute.drivers(fewer=0))

    def _lack(self, fault: Fault, *, shows: bool) -> None:
        zone = self._zone(fault)
        self._cloud.compute.stockout(zone, shows=shows)
        self._later(fault.lasts, lambda: self._cloud.compute.restock(zone))

    def _limit(self, fault: Fault) -> None:
        """The first region has room for one host fewer than are asked for, by what the call or its operation says: one
        whose quota is 0 is not tried again, and the other remains."""
        region = settings.load().zones[0].rpartition("-")[0]
        room = (self._drawn.hosts - 1) * self._drawn.processes
        for metric in self._metrics:
            self._cloud.compute.quota(metric, room, region, at="call" if fault.whom * 2 % 1 < 0.5 else "operation")
        for metric in self._metrics:
            self._later(fault.lasts, functools.partial(self._cloud.compute.quota, metric, None, region))

    def _limit_rate(self, fault: Fault) -> None:
        self._cloud.compute.request_rate(0)
        self._later(fault.lasts, lambda: self._cloud.compute.request_rate(None))

    def _silence(self, fault: Fault) -> None:
        zone = self._zone(fault)
        self._cloud.compute.silence(zone, chosen(("unreachables", "warning", "error"), fault))
        self._later(fault.lasts, lambda: self._cloud.compute.hear(zone))

    def _refuse(self, fault: Fault) -> None:
        self._cloud.fail("instances.*", 14, times=None)
        self._later(fault.lasts, self._cloud.clear_faults)

    def _stick(self, fault: Fault) -> None:
        self._cloud.compute.stuck_delete()
        self._later(fault.lasts, self._cloud.compute.unstick)
