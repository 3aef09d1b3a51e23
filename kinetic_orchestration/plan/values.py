"""The data that the stages exchange. Nothing but data: frozen, complete from the start, and JSON inside."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from kinetic_orchestration.plan.configuration import plugins
from kinetic_orchestration.plan.declare.cloud import Compute, Kubernetes, Slurm, TpuVm, fields_of
from kinetic_orchestration.plan.declare.limits import Limits, Retry
from kinetic_orchestration.plan.hardware import machines
from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.plan.hardware.machines import BootDisk
from kinetic_orchestration.plan.hardware.prices import Purchase
from kinetic_orchestration.protocol.wire import Beat, Verdict
from kinetic_orchestration.protocol.wire.task import DataPiece, Environment, Package, Payload, json_of, parts_of

EMULATED_HERE = "emulated on this machine's CPU"
EMULATED_CLOUD = "emulated cloud"


class JobStatus(enum.Enum):
    """Status of a job as users see it."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    NOT_FOUND = "NOT_FOUND"

    @property
    def final(self) -> bool:
        """True if the job has ended, or does not exist."""
        return self in (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.NOT_FOUND)


class Words(NamedTuple):
    """The words for an attempt's hosts, for users.

    Attributes:
        whole: All of them, as one thing that has a name.
        up: The state of that while all hosts are there.
        unsaid: What helps if they are gone and none of them has ever said anything; "" if they would have said it.
    """

    whole: str = "slice"
    up: str = "READY"
    unsaid: str = (
        "Hosts that may not use the bucket end themselves without a word, too: see that their account has "
        "roles/storage.objectUser on it"
    )


PODS = Words("JobSet", "running", "")
VMS = Words("VM", "running")
NODES = Words("Slurm job", "running", "")


class Traits(NamedTuple):
    """Properties of a backend on which plans and jobs depend. Those that are not stated are those of any machines that
    are made for a job.

    Attributes:
        share_machine: They use this machine's files and its Python. Elsewhere all that they need is sent.
        share_files: They see this machine's files, and use its Python where the job has no environment of its own.
        secret_service: Their secrets are sent by Secret Manager, which keeps them until the job has ended. Elsewhere
            the backend reads those that `secrets=` names.
        agents_observed: The backend observes their agents. Elsewhere it observes machines only, and a host that is
            silent for long counts as lost.
        in_project: They are of a Google Cloud project.
        in_zones: They are requested in zones of that project.
        keeps_ended: They keep the objects of a job that has ended until somebody removes these.
        options: The class of `cloud=`; None if there are no such options.
        service: The service that has them, for users; by default the backend's name.
        words: The words for them, for users.
        stores: Schemes of the stores that they reach; none for hosts that reach whatever this machine does.
        ignored: Options of `run` without a meaning there, which are reported once.
        races: An attempt may ask several of its places at once, and keep the first to have its hosts.
        may_be_kept: Their slices can serve another job after theirs.
        entered: `kinor shell` and `kinor port-forward` lead to them.
    """

    share_machine: bool = False
    share_files: bool = False
    secret_service: bool = False
    agents_observed: bool = False
    in_project: bool = False
    in_zones: bool = False
    keeps_ended: bool = False
    options: type | None = None
    service: str = ""
    words: Words = Words()
    stores: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ("base_image_repo", "project", "zone", "cluster", "namespace")
    races: bool = False
    may_be_kept: bool = False
    entered: bool = False


TRAITS = {
    "local": Traits(
        entered=True,
        share_machine=True,
        share_files=True,
        agents_observed=True,
        ignored=(
            *("container_image", "base_image_repo", "cluster", "namespace", "project", "zone", "spot"),
            *("regions", "capacity"),
        ),
    ),
    "tpu-vm": Traits(
        entered=True,
        secret_service=True,
        in_project=True,
        in_zones=True,
        options=TpuVm,
        service="Cloud TPU",
        stores=("gs",),
        ignored=("base_image_repo", "cluster", "namespace"),
        races=True,
        may_be_kept=True,
    ),
    "compute": Traits(
        entered=True,
        secret_service=True,
        in_project=True,
        in_zones=True,
        options=Compute,
        service="Compute Engine",
        words=VMS,
        stores=("gs",),
        ignored=("base_image_repo", "cluster", "namespace"),
        races=True,
        may_be_kept=True,
    ),
    "gke": Traits(
        entered=True,
        secret_service=True,
        in_project=True,
        keeps_ended=True,
        options=Kubernetes,
        service="GKE",
        words=PODS,
        stores=("gs",),
        ignored=("base_image_repo", "regions"),
    ),
    "kubernetes": Traits(
        entered=True,
        keeps_ended=True,
        options=Kubernetes,
        service="Kubernetes",
        words=PODS,
        stores=("gs", "s3"),
        ignored=("base_image_repo", "project", "zone", "regions"),
    ),
    "slurm": Traits(
        share_files=True,
        options=Slurm,
        service="Slurm",
        words=NODES,
        ignored=(
            *("container_image", "base_image_repo", "cluster", "namespace", "project", "zone", "spot"),
            *("regions", "capacity"),
        ),
    ),
}
"""The backends of this package. `platforms/registry.py` opens them."""


def backends() -> list[str]:
    """Return the names of all backends that are installed here."""
    return [*TRAITS, *(name for name in plugins.names() if name not in TRAITS)]


def traits_of(backend: str) -> Traits | None:
    """Return the traits of a backend of this package or of an installed platform; None if there is none."""
    if backend in TRAITS:
        return TRAITS[backend]
    platform = plugins.find(backend)
    return None if platform is None else platform.traits


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of several ways in which a job may get its hosts. Its fields are those of a `Plan` that it decides.

    Attributes:
        slice: One slice of the hardware.
        backend: Where it is requested.
        limits: Limits of an attempt there.
        usd_per_hour: As of a `Plan`.
        usd: Dollars for an hour of all its hosts, by place; a place without a known price is missing.
        near: Those of its zones that lie where the store's bucket does; () if nobody has asked where that is.
        stand_ins: What the dollars of a place are for, where they stand in for a price that is not known, for users.
    """

    slice: Slice
    backend: str
    limits: Limits
    emulated: bool = True
    processes: int = 1
    slices: int = 1
    project: str = ""
    zones: tuple[str, ...] = ()
    spot: bool = False
    cloud: dict[str, Any] = field(default_factory=dict)
    affordable: float = 0.0
    zone_patience: float = 0.0
    labels: dict[str, str] = field(default_factory=dict)
    turn: dict[str, Any] = field(default_factory=dict)
    usd_per_hour: float = 0.0
    usd: dict[str, float] = field(default_factory=dict)
    near: tuple[str, ...] = ()
    stand_ins: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        plan: Plan,
        usd: Mapping[str, float] | None = None,
        near: Iterable[str] = (),
        stand_ins: Mapping[str, str] | None = None,
    ) -> Candidate:
        """Return the candidate that a plan of one way is."""
        own = {name: getattr(plan, name) for name in _OF_A_CANDIDATE}
        return cls(**own, usd=dict(usd or {}), near=tuple(near), stand_ins=dict(stand_ins or {}))

    def to_json(self) -> dict[str, Any]:
        found = {**asdict(self), "slice": self.slice.to_json()}
        return {name: value for name, value in found.items() if value or name not in _LEFT_OUT_IF_EMPTY}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Candidate:
        known = {key: value for key, value in fields.items() if key in cls.__dataclass_fields__}
        known |= {"slice": Slice.from_json(fields["slice"]), "limits": Limits(**fields["limits"])}
        return cls(
            **{
                **known,
                "zones": tuple(known.get("zones", ())),
                "cloud": _cloud_of(fields),
                "near": tuple(known.get("near", ())),
            }
        )


_LEFT_OUT_IF_EMPTY = ("turn", "stand_ins", "usd_per_hour")
_OF_A_CANDIDATE = tuple(name for name in Candidate.__dataclass_fields__ if name not in ("usd", "near", "stand_ins"))


def _cloud_of(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a plan's cloud, of which whoever wrote it may not have had all."""
    traits = traits_of(fields["backend"])
    given: dict[str, Any] = fields.get("cloud", {})
    return given if traits is None or traits.options is None else fields_of(traits.options()) | given


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything decided before anything is sent; `plan` prints it, and it is the whole of a job's spec."""

    name: str
    slice: Slice
    backend: str
    store: str
    deployment: str
    limits: Limits
    retry: Retry
    output_dir: str = ""  # "": the job's own folder in the store
    partition_key: str = ""
    env: dict[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()  # names only: the values go by an inherited pipe
    volumes: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    distributed: bool = True
    emulated: bool = True
    emulation_asked: bool = False  # where there is no such hardware, this machine's processors are to stand for it
    processes: int = 1  # on each machine: each a host of its own, with one of the machine's devices
    slices: int = 1
    project: str = ""
    zones: tuple[str, ...] = ()  # in the order in which they are tried: on Kubernetes, each CLUSTER/NAMESPACE
    spot: bool = False
    image: str = ""  # a container that holds the job's environment
    cloud: dict[str, Any] = field(default_factory=dict)  # what only its backend understands: the fields of `cloud=`
    secret_refs: dict[str, str] = field(default_factory=dict)  # variable → a secret's name in Secret Manager
    affordable: float = 0.0  # seconds of READY slices, over all attempts, for which limits.cost pays; 0: no limit
    usd_per_hour: float = 0.0  # of all hosts, at most, as they are told if they report their cost; 0: they do not
    zone_patience: float = 0.0  # how long one zone's queue is waited in while there are others
    isolated: bool = False  # in an environment of its own
    abort_without_owner: bool = False
    compile_cache: bool = True
    device_metrics: bool = True
    debug_port: int = 0
    profile: dict[str, Any] = field(default_factory=dict)  # what hosts are to trace; empty: nothing
    labels: dict[str, str] = field(default_factory=dict)
    reshard: bool = False  # a checkpoint of another number of hosts or devices is restored
    global_batch: int = 0  # samples of one step on all hosts together; 0: unknown
    race: int = 1  # places that an attempt asks at once, of which the first to have its hosts is kept
    race_of: str = ""  # whose its race is, for users, if only a default: then what cannot race does without
    choices: tuple[Candidate, ...] = ()  # if there are several: the first is the plan's own
    by: str = "order"  # in which they are tried: "order", "price" or "start"
    turn: dict[str, Any] = field(default_factory=dict)  # where chips are shared: by what its turn is decided
    keep: float | None = None  # seconds for which its slice is kept for the next job; None: it takes and leaves none

    def at(self, number: int) -> Plan:
        """Return the plan of an attempt that is made by the candidate of this number, counted from 0."""
        if not self.choices:
            return self
        return replace(self, **{name: getattr(self.choices[number], name) for name in _OF_A_CANDIDATE})

    def each(self) -> tuple[Plan, ...]:
        """Return the plan of an attempt for each candidate."""
        return tuple(map(self.at, range(len(self.choices)))) or (self,)

    def joined(self, each: Sequence[Plan]) -> Plan:
        """Return the plan with what was changed in the plans that `each` returned."""
        if not self.choices:
            return each[0]
        pairs = zip(each, self.choices, strict=True)
        choices = (Candidate.of(one, before.usd, before.near, before.stand_ins) for one, before in pairs)
        return replace(each[0], choices=tuple(choices))

    @property
    def runs_on(self) -> str:
        """The names of the backends on which its attempts may be, as `platforms/registry.py` opens them."""
        return "+".join(sorted({one.backend for one in self.choices})) or self.backend

    @property
    def machines(self) -> int:
        """The number of machines of all slices together; on this machine, of the hosts that share it."""
        return self.slice.hosts * self.slices

    @property
    def hosts(self) -> int:
        """The number of hosts of all slices together: of machines of their own, each process is one."""
        return self.machines if self.traits.share_machine else self.machines * self.processes

    @property
    def devices(self) -> int:
        """The number of devices of one host."""
        return self.slice.devices_per_host * self.machines // self.hosts

    @property
    def flex_start(self) -> bool:
        """True if its hosts come by flex-start."""
        return bool(self.cloud.get("flex_start"))

    @property
    def purchase(self) -> Purchase:
        """The hardware that is paid for while its hosts are there; for a job on this machine, that which it names."""
        is_vm = self.traits.options is Compute and machines.serves(self.slice)
        return Purchase(
            self.slice, self.slices, self.spot, self.flex_start, self.boot_disk if is_vm else None,
            of_google=self.traits.in_project or self.traits.share_machine or self._is_of_gke,
            reserved=bool(self.cloud.get("reservation")),
        )  # fmt: skip

    @property
    def boot_disk(self) -> BootDisk:
        """The boot disk of each host as a VM of Compute Engine. Raises Unsupported if there is no such VM."""
        return machines.boot_disk(
            machines.machine_of(self.slice),
            type=str(self.cloud.get("disk_type") or ""),
            gib=int(self.cloud.get("disk_gib") or 0),
        )

    @property
    def _is_of_gke(self) -> bool:
        """True if all clusters that may run it are GKE's, as `gcloud container clusters get-credentials` names them."""
        return bool(self.zones) and all(zone.startswith("gke_") for zone in self.zones)

    @property
    def crew(self) -> str:
        """The number of hosts and processes, for users: processes of one host are no hosts."""
        return f"{self.slice.crew(self.slices)}{self._divided}"

    @property
    def _divided(self) -> str:
        """The number of processes of machines of their own, if they are more, to follow the number of the hosts."""
        return f", {self.hosts} processes" if self.hosts > self.machines else ""

    @property
    def asked(self) -> str:
        """The requested hardware, without its location."""
        return f"{self.slices} slices of {self.slice}" if self.slices > 1 else f"{self.slice}{self._divided}"

    @property
    def named(self) -> str:
        """The requested hardware by its name alone."""
        return f"{self.slices} × {self.slice.name}" if self.slices > 1 else self.slice.name

    @property
    def stands_in(self) -> bool:
        """True if ordinary processors stand in for the requested hardware; a CPU stands in for nothing."""
        return self.emulated and self.slice.kind != "cpu"

    @property
    def where(self) -> str:
        """Return where it runs, in the one wording that logs, metadata and tables share."""
        if not self.traits.share_machine:
            name = (self.traits.options is TpuVm and self.slice.accelerator_type) or self.slice.name
            cloud = f"{self.traits.service or self.backend} {name}"
            return f"{cloud} of an {EMULATED_CLOUD}" if self.emulated and not self.traits.share_files else cloud
        if self.slice.kind == "cpu":
            return "this machine's CPU"
        if self.emulated:
            return EMULATED_HERE
        if self.slice.kind == "gpu":
            return f"this machine's own GPU{'' if self.slice.chips == 1 else 's'}"
        return "this machine's own TPU"

    @property
    def hardware(self) -> str:
        """The shape of all its hosts, and their location, for users."""
        shape = f"{self.slices} slices of {self.slice.shape}" if self.slices > 1 else self.slice.shape
        return f"{shape}{self._divided}, {self.where}{', spot' if self.spot or self.slice.spot else ''}"

    @property
    def traits(self) -> Traits:
        """The properties of its backend's hosts; of an unknown one, those of any machines."""
        return traits_of(self.backend) or Traits()

    def to_json(self) -> dict[str, Any]:
        found = {**asdict(self), "slice": self.slice.to_json()}
        for name in ("reshard", "global_batch", "turn", "usd_per_hour"):
            if not found[name]:
                del found[name]
        del found["race_of"]  # it decides while a job is planned
        if self.race == 1:
            del found["race"]
        if self.keep is None:
            del found["keep"]
        if self.choices:
            return {**found, "choices": [one.to_json() for one in self.choices]}
        del found["choices"], found["by"]
        return found

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Plan:
        known = {key: value for key, value in fields.items() if key in cls.__dataclass_fields__}
        lists: dict[str, Any] = {
            key: tuple(known[key]) for key in ("secrets", "volumes", "argv", "zones") if key in known
        }
        limits, retry = Limits(**fields["limits"]), Retry(**fields["retry"])
        lists |= {"choices": tuple(map(Candidate.from_json, fields.get("choices", ()))), "cloud": _cloud_of(fields)}
        return cls(**{**known, **lists, "slice": Slice.from_json(fields["slice"]), "limits": limits, "retry": retry})


@dataclass(frozen=True, slots=True)
class Staged:
    """Digests of everything that a job has in the store, and the data to rebuild the paths of its code."""

    payload: Payload | None  # None for a command
    tree: str
    cwd: str
    path: tuple[str, ...]
    extra_path: tuple[str, ...]
    data: tuple[DataPiece, ...]
    packages: tuple[Package, ...]
    environment: Environment | None
    python: str
    agent: str = ""  # digest of the agent's zip, for hosts that are other machines
    tools: dict[str, Any] = field(default_factory=dict)  # uv and an interpreter in the store, by digest
    beside: dict[str, str] = field(default_factory=dict)  # modules next to the code that are not sent, and their paths
    size: int = 0  # bytes of source that each host unpacks
    sent: int = 0  # bytes that were not there before
    others: tuple[Environment, ...] = ()  # of candidates whose hardware needs other builds than the first's
    builds: tuple[int, ...] = ()  # of each candidate, the number of its environment; (): all have the first's

    @property
    def environments(self) -> tuple[Environment | None, ...]:
        """All that differ, in the order in which `builds` counts them."""
        return (self.environment, *self.others)

    def at(self, number: int) -> Staged:
        """Return what the hosts of the candidate of this number need, counted from 0."""
        build = self.builds[number] if number < len(self.builds) else 0
        if not 0 < build <= len(self.others):
            return self
        return replace(self, environment=self.others[build - 1])

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self) | json_of(self) | {"others": [one.to_json() for one in self.others]}
        return {name: value for name, value in fields.items() if value or name not in ("others", "builds")}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Staged:
        known = {key: value for key, value in fields.items() if key in cls.__dataclass_fields__}
        known |= {key: tuple(fields.get(key, ())) for key in ("path", "extra_path", "builds")}
        others = tuple(map(Environment.from_json, fields.get("others", ())))
        return cls(**{**known, "others": others, **parts_of(fields)})


class Spent(NamedTuple):
    """Attempts counted against each retry budget."""

    user: int = 0
    preemption: int = 0
    infra: int = 0
    moved: int = 0  # attempts that never had hosts: not shown to users


class Before(NamedTuple):
    """The summary of earlier attempts in an intent, so that they need not be read again."""

    spent: Spent = Spent()
    ran: tuple[int, ...] = ()  # those that may have had hosts


class Intent(NamedTuple):
    """The promise of an attempt, written before its create call: exactly one place per attempt."""

    attempt: int
    boot: str
    placement: dict[str, Any]
    deadline: float  # by the store's time; 0: none
    created: float
    before: Before | None = None  # None: not recorded
    affordable: float = 0.0  # seconds for which its hosts may be held, for the money that is left; 0: no limit
    damage: str = ""  # why its record cannot be read; then its place is one that was found by its name, or empty

    @property
    def since(self) -> float:
        """The time since which the job has been without hosts, over consecutive attempts that never had any."""
        return float(self.placement.get("since") or self.created)

    @property
    def choice(self) -> int:
        """The number of the plan's candidate that it takes."""
        return int(self.placement.get("choice", 0))

    @property
    def places(self) -> tuple[dict[str, Any], ...]:
        """All places that it asks: several of a race, by their numbers."""
        own = {name: value for name, value in self.placement.items() if name not in ("rivals", "won")}
        return tuple(sorted((own, *self.placement.get("rivals", ())), key=lambda place: int(place.get("rival", 0))))

    @property
    def races(self) -> bool:
        """True for a race of which it is not known that a place has won."""
        return bool(self.placement.get("rivals")) and not self.placement.get("won")

    @property
    def wait(self) -> float:
        """The seconds between the intent and the create call."""
        return float(self.placement.get("wait", 0.0))


class Past(NamedTuple):
    """Placement and end of the attempt before."""

    placement: dict[str, Any]
    cause: str
    reason: str
    created: float


class Observation(NamedTuple):
    """State of a placement as the backend reports it.

    Attributes:
        state: One of the states below, such as PRESENT.
        message: Text for people.
        cause: Cause of the end of hosts that are gone, where it is known.
        charged: Time before which no host can have been charged for; 0 if unknown.
        waits: Why hosts that exist cannot continue now.
        hint: Where to look next if hosts are gone, or if those that exist do not report; with `{name}`, `{zone}` and
            `{project}` for those of the placement.
        slices: How many slices are charged for now; 0 for all, if any.
        ending: True if no host is charged for any longer, or yet: all that are left shut down, or none is there.
        lacks: True while a place of a race has not been asked.
        there: Of a race that none has won, the numbers of the places whose hosts are all there.
        lost: Of such a race, the places that have failed, each with its cause and its reason.
    """

    state: str
    message: str = ""
    cause: str = ""  # of hosts that are gone, where it is known: one of the wire's
    charged: float = 0.0  # before which none of its hosts can have been charged for; 0: none is known to have been
    waits: str = ""  # why hosts that are there cannot go on for now
    hint: str = ""  # the next place to check if hosts have disappeared or are silent
    slices: int = 0  # of which there are hosts that are charged for now; 0: of all, if any
    ending: bool = False  # no host is charged for: all that are left shut down, or none is there
    lacks: bool = False  # a place of a race has not been asked yet
    there: tuple[int, ...] = ()
    lost: tuple[tuple[int, str, str], ...] = ()

    @property
    def costs(self) -> bool:
        """True if hosts are charged for now; also while others are waited for."""
        held = self.state in (PRESENT, PARTIAL, WOUNDED) or (self.slices > 0 and self.state in (QUEUED, PROVISIONING))
        return held and not self.ending

    @property
    def is_over(self) -> bool:
        """True if hosts that were there are charged for no longer, by what is known."""
        return self.ending or self.state in (ABSENT, GONE)


ABSENT = "absent"  # nothing there: not made yet, or gone
QUEUED = "queued"
PROVISIONING = "provisioning"
PARTIAL = "partial"  # some hosts live, some do not exist: not made yet, or ended already
PRESENT = "present"
WOUNDED = "wounded"  # hosts died that had not ended, and others live
GONE = "gone"  # hosts died that had not ended, and none lives
ELSEWHERE = "elsewhere"  # cannot be seen from here: judge by beats
UNKNOWN = "unknown"  # unknown at the moment: nothing follows from it


class Freed(enum.Enum):
    """Result of releasing a placement; true once nothing is left of it that is the attempt's."""

    DONE = "done"
    KEPT = "kept"  # its slice stays: for the next attempt, or it serves another one by now
    UNDER_WAY = "under way"  # need not be requested again
    PARTLY = "partly"  # what costs is gone, or going: the rest has to be requested again, and keeps nothing waiting
    REFUSED = "refused"  # or unknown

    def __bool__(self) -> bool:
        return self in (Freed.DONE, Freed.KEPT)


class Cancel(NamedTuple):
    reason: str
    by: str
    age: float


class Glimpse(NamedTuple):
    """All that could be seen of one attempt of a job at one moment."""

    now: float
    intent: Intent | None = None
    verdict: Verdict | None = None
    verdict_age: float = 0.0
    cancel: Cancel | None = None
    observation: Observation = Observation(ABSENT)
    beats: tuple[Beat | None, ...] = ()
    beat_ages: tuple[float, ...] = ()
    done: int = 0
    since: float = 0.0  # when this observer first saw all its hosts
    shown: float = 0.0  # when they were last
    charged: float = 0.0  # before which none of them can have been charged for, by all that was seen
    places: tuple[tuple[int, float], ...] = ()  # of a race that none has won: when the hosts of each were first seen


class Cursor(NamedTuple):
    """The position of a follower; JSON-serialisable, for triggers and sensors."""

    attempt: int = 1
    phase: str = ""
    logs: tuple[tuple[int, int], ...] = ()  # per host: segment, offset
    spent: Spent = Spent()
    spec: str = ""  # the digest of the job's spec, if the holder of the cursor may continue the job
    ended: str = ""  # what the job was seen to come to (`trust.Ended`), once it was

    def to_json(self) -> list[Any]:
        return [self.attempt, self.phase, self.logs, self.spent, self.spec, self.ended]

    @classmethod
    def from_json(cls, fields: list[Any]) -> Cursor:
        attempt, phase, logs, spent, *rest = fields  # what is known of the job came later
        return cls(attempt, phase, tuple((segment, offset) for segment, offset in logs), Spent(*spent), *rest[:2])


class Outcome(NamedTuple):
    """The result of a job.

    Attributes:
        status: Its final status.
        attempt: The attempt that decided it.
        verdict: That attempt's verdict.
        cause: Cause of a failure.
        attempts: Number of attempts that had hosts.
    """

    status: JobStatus
    attempt: int
    verdict: Verdict
    cause: str = ""
    attempts: int = 1


class Attempt(NamedTuple):
    """One attempt of a job, from its records; times by the store's clock.

    Attributes:
        number: Its number, from 1.
        began: Start of its hosts, or None.
        ended: Time of its verdict, or None.
        verdict: Its verdict, or None.
    """

    number: int
    began: float | None
    ended: float | None
    verdict: Verdict | None


class Peek(NamedTuple):
    """Snapshot of a job from its records alone.

    Attributes:
        status: Its status.
        attempt: Its newest attempt.
        phase: Phase of that attempt.
        message: Next action of the next follower, or the reason for waiting.
        done: Progress that host 0 reported.
        total: Total of that progress; 0 if unknown.
        unit: Unit of that progress.
        outcome: Result, if the job has ended.
        attempts: Number of attempts that had hosts.
        zone: Zone of the newest attempt; "" on this machine.
        resource: Name of its queued resource; "" on this machine.
        said: State of its hosts as the backend reports it.
        rate: Progress per second.
        devices: Latest device sample of each host that sent one recently.
    """

    status: JobStatus
    attempt: int
    phase: str
    message: str  # the next action of a follower
    done: float
    total: float
    unit: str
    outcome: Outcome | None
    attempts: int = 1  # as users count them: `attempt` without those that never had hosts
    zone: str = ""  # where the newest attempt was promised a place, and
    resource: str = ""  # by which name; "" on this machine
    said: str = ""  # the current message about its hosts
    rate: float = 0.0  # of what is done, a second
    devices: tuple[tuple[int, dict[str, Any]], ...] = ()  # the latest sample of each host with a recent one


# ---- events of a follower ----------------------------------------------------------------------------------


class Output(NamedTuple):
    """Whole lines that one host wrote, as bytes with their line ends."""

    host: int
    kind: str  # frames.OUT, ERR or NOTE
    time: float
    text: bytes
    attempt: int
    segment: int
    offset: int


class Metrics(NamedTuple):
    """Metrics that one host reported."""

    host: int
    time: float
    step: int | None
    values: dict[str, float]
    attempt: int


class Progress(NamedTuple):
    """Progress that one host reported."""

    host: int
    time: float
    done: float
    total: float
    unit: str
    attempt: int
    rate: float = 0.0  # a second


class Devices(NamedTuple):
    """Latest device sample of one host, from `host/devices/sampler.py`. It is in no log."""

    host: int
    time: float
    values: dict[str, Any]
    attempt: int


class Change(NamedTuple):
    """The job entered another phase."""

    phase: str
    message: str
    attempt: int


Event = Output | Metrics | Progress | Devices | Change
