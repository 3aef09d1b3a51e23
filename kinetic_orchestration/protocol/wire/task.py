"""The task of a job: the program of each of its hosts, and its environment.

A client writes it into the spec, and hosts alone act on it; both use the classes of this module, so that a field is
declared once. `TASK` declares the valid values of each field. A task of an older version lacks later fields, which then
have their defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from kinetic_orchestration.protocol import schema, wire
from kinetic_orchestration.protocol.schema import Fields, digest, line, many, maybe, path, relative, table, text, token

HARDWARE = Fields({}, dict.fromkeys(("kind", "generation", "topology"), line(schema.WORD)))
PAYLOAD = Fields({"digest": digest, "size": schema.size})
DATA_PIECE = Fields({"digest": digest}, {"file": relative, "here": path, "url": schema.address})
PACKAGE = Fields({"digest": digest}, {"at": relative})
ENVIRONMENT = Fields(
    {"lock": digest},
    {
        "interpreter": maybe(path),
        "uv": path,
        "settings": schema.environ,
        "python": maybe(path),
        "platform": line(schema.WORD),
        "packages": schema.count,
        "secrets": many(schema.variable, 1000),
        "uv_itself": text(schema.PAGE),
        "warm": many(token, 100),
        "compiles": table(token, token, 100),
        "installer_only": many(schema.variable, 1000),
    },
)
CHOICE = Fields(
    {},
    {
        "environment": Fields({}, ENVIRONMENT.checks),
        "devices": schema.whole(0, schema.MOST_CHIPS),
        "emulated": schema.flag,
        "processes": schema.hosts,
        "slices": schema.slices,
        **dict.fromkeys(("provision", "run", "affordable", "stall"), schema.limit),
        "usd_per_hour": schema.measure,
        "project": schema.project,
        "accelerator": HARDWARE,
        "secrets": table(schema.variable, schema.secret_ref, 1000),
        "shape": digest,
    },
)
MOST_CHOICES = 64  # ways of one job to get its hosts
NOT_KEPT = -1.0  # seconds for which the slice of a job without `keep` stays
_FLAGS = ("owned", "kept", "compile_cache", "device_metrics", "reshard")
TASK = Fields(
    {
        "name": text(),
        "argv": many(text(schema.PAGE)),
        "payload": schema.empty_or(PAYLOAD),
        "tree": digest,
        "cwd": relative,
        "path": many(relative),
        "extra_path": many(path),
        "data": many(DATA_PIECE),
        "packages": many(PACKAGE),
        "volumes": table(path, schema.whole(0, schema.MOST_ENTRIES), 1000),
        "environment": schema.empty_or(ENVIRONMENT),
        "python": maybe(path),
        "env": schema.environ,
        "devices": schema.whole(0, schema.MOST_CHIPS),
        "emulated": schema.flag,
        "distributed": schema.flag,
        "output_dir": schema.address,
        "checkpoint_dir": schema.address,
        "partition_key": text(),
        "provision": schema.limit,
        "run": schema.limit,
        "stall": schema.limit,
        "debug": schema.port,
        "quick": schema.flag,
    },
    {
        "processes": schema.hosts,
        "affordable": schema.limit,
        "usd_per_hour": schema.measure,
        "profile": schema.plain(),
        "project": schema.project,
        "accelerator": HARDWARE,
        "slices": schema.slices,
        "global_batch": schema.size,
        "keep": schema.number(NOT_KEPT, schema.LONGEST_WAIT),
        "shape": digest,
        "secrets": table(schema.variable, schema.secret_ref, 1000),
        "tools": table(token, digest, 32),
        "beside": table(text(), path, 10_000),
        "image": line(),
        "choices": many(CHOICE, MOST_CHOICES),
        **dict.fromkeys(_FLAGS, schema.flag),
    },
)


class Hardware(NamedTuple):
    """The accelerator that a program asked for."""

    kind: str = ""
    generation: str = ""
    topology: str = ""


class Payload(NamedTuple):
    """The pickled call, by its digest."""

    digest: str
    size: int


class DataPiece(NamedTuple):
    """A folder or a file of data: in the store, on this machine, or in a bucket."""

    digest: str
    file: str = ""  # the name of the file, if it is one
    here: str = ""  # its path, if it is read where it is on the submitter's machine
    url: str = ""  # its address, if hosts fetch it from a bucket


class Package(NamedTuple):
    """The source of a package that lies beside the project."""

    digest: str
    at: str = ""  # its folder, below an entry of the path


class Environment(NamedTuple):
    """The environment of a program that does not run in its submitter's own Python."""

    lock: str  # the digest of its lock
    interpreter: str = ""  # on the submitter's machine
    uv: str = ""  # the program that makes the environment, on the submitter's machine
    settings: Mapping[str, str] = {}  # of the package index
    python: str = ""  # the version, of which hosts elsewhere take their own interpreter
    platform: str = ""
    packages: int | None = None  # in the lock; None for an environment on the submitter's machine
    secrets: tuple[str, ...] = ()  # variables with the passwords of the package index
    uv_itself: str = ""  # a requirement with hashes, by which pip installs uv
    warm: tuple[str, ...] = ()  # modules that are slow to import for the first time
    compiles: Mapping[str, str] = {}  # the packages on whose versions a compiled program depends
    installer_only: tuple[str, ...] = ()  # of the secrets, those that the program does not get

    @property
    def is_bare(self) -> bool:
        """True if it has no package: any Python of the version will do."""
        return self.packages == 0

    def to_json(self) -> dict[str, Any]:
        fields = self._asdict()
        if self.packages is None:
            return {name: fields[name] for name in ("lock", "interpreter", "uv", "settings")}
        if not self.installer_only:
            del fields["installer_only"]
        return fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Environment:
        """Return the environment of fields that have passed ENVIRONMENT."""
        known = ENVIRONMENT.known(fields, cls._fields)
        for name in ("interpreter", "python"):
            known[name] = known.get(name) or ""
        for name in ("secrets", "warm", "installer_only"):
            known[name] = tuple(known.get(name, ()))
        return cls(**known)


class Task(NamedTuple):
    """The program that a job's hosts run, and the parameters of its run."""

    name: str
    argv: tuple[str, ...]  # of a command; a function has a payload
    payload: Payload | None
    tree: str  # the digest of the project
    cwd: str
    path: tuple[str, ...]
    extra_path: tuple[str, ...]
    data: tuple[DataPiece, ...]
    packages: tuple[Package, ...]
    volumes: Mapping[str, int]  # the path of each, and its index in `data`
    environment: Environment | None  # None: the Python at `python`
    python: str
    env: Mapping[str, str]
    devices: int  # of one host
    emulated: bool
    processes: int
    distributed: bool
    output_dir: str
    checkpoint_dir: str
    partition_key: str
    provision: float  # the longest wait for the other hosts, in seconds
    run: float  # in seconds; 0.0 for no limit
    affordable: float  # the seconds that the limit of cost pays for; 0.0 for no limit
    stall: float  # in seconds; 0.0 for no limit
    debug: int  # the port of the debugger on host 0, or 0
    profile: Mapping[str, Any]
    project: str  # of the machines
    accelerator: Hardware
    slices: int
    secrets: Mapping[str, str]  # for each variable the secret in Secret Manager
    tools: Mapping[str, str]  # digests of uv and an interpreter in the store
    beside: Mapping[str, str]  # modules next to the code that stay on the submitter's machine, and their paths
    image: str
    owned: bool  # the job ends with its submitter
    kept: bool  # a process owns the job, and hands it over to another
    compile_cache: bool
    device_metrics: bool
    reshard: bool  # a checkpoint of another number of hosts or devices is restored
    global_batch: int  # samples of one step on all hosts together; 0: unknown
    quick: bool  # preparing takes less time than starting a thread for it
    keep: float = NOT_KEPT  # seconds for which its slice is kept after it, if hosts find it clean; 0.0: takes one only
    shape: str = ""  # of the slice that is kept: the digest of what the next job has to want exactly like that
    usd_per_hour: float = 0.0  # of all hosts, at most, for a program that reports its cost; 0.0: unknown
    choices: tuple[Mapping[str, Any], ...] = ()  # of each candidate after the first: the fields that differ

    def to_json(self) -> dict[str, Any]:
        fields = self._asdict() | {"accelerator": self.accelerator._asdict()} | json_of(self)
        for name in ("kept", "reshard", "global_batch", "choices"):
            if not fields[name]:
                del fields[name]
        if not self.shape:
            del fields["keep"], fields["shape"]
        if not self.usd_per_hour:
            del fields["usd_per_hour"]
        return fields

    def joined(self, others: Iterable[Task]) -> Task:
        """Return the task of a job with a choice: of its first candidate, with those of the `others`."""
        own = {"usd_per_hour": 0.0, **self.to_json()}
        each = [
            {name: value for name, value in {"usd_per_hour": 0.0, **one.to_json()}.items() if value != own[name]}
            | self._other_build(one)
            for one in others
        ]
        assert not {name for one in each for name in one} - CHOICE.checks.keys()
        return self._replace(choices=tuple(each))

    def _other_build(self, other: Task) -> dict[str, Any]:
        """Return what differs of another candidate's environment, which is mostly its lock."""
        own, its = self.environment, other.environment
        if own == its:
            return {}
        assert own is not None and its is not None
        return {"environment": {name: value for name, value in its._asdict().items() if value != getattr(own, name)}}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], choice: int = 0) -> Task:
        """Return the task of fields that have passed TASK; that of another candidate by its number."""
        known = {**_LATER, **TASK.known(fields, cls._fields)}
        if choice:
            its = CHOICE.known(known["choices"][choice - 1], CHOICE.checks)
            own = known["environment"]
            known |= {**its, "environment": own and {**own, **its.get("environment", {})}}
        return cls(
            **{
                **known,
                "choices": (),
                **{name: tuple(known[name]) for name in ("argv", "path", "extra_path")},
                **parts_of(known),
                "python": known["python"] or "",
                "accelerator": Hardware(**HARDWARE.known(known["accelerator"], Hardware._fields)),
            }
        )

    @classmethod
    def decode(cls, spec: bytes, name: str, choice: int = 0) -> Task:
        """Return the task of a spec, for an attempt by the candidate of this number.

        Raises wire.Newer, wire.Unreadable.
        """
        fields = wire.fields_of(spec, _SPEC, name)["task"]
        if not 0 <= choice <= len(fields.get("choices", ())):
            raise wire.Unreadable(f"{name} has no candidate {choice}, by which this host was made")
        return cls.from_json(fields, choice)


class HasParts(Protocol):
    """Fields that a task and the staged parts of a job have in common."""

    @property
    def payload(self) -> Payload | None: ...
    @property
    def data(self) -> tuple[DataPiece, ...]: ...
    @property
    def packages(self) -> tuple[Package, ...]: ...
    @property
    def environment(self) -> Environment | None: ...


def json_of(whole: HasParts) -> dict[str, Any]:
    """Return its parts as the fields of a record."""
    return {
        "payload": {} if whole.payload is None else whole.payload._asdict(),
        "data": [piece._asdict() for piece in whole.data],
        "packages": [package._asdict() for package in whole.packages],
        "environment": {} if whole.environment is None else whole.environment.to_json(),
    }


def parts_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts that a record has, of fields that have passed its table."""
    payload, environment = fields["payload"], fields["environment"]
    return {
        "payload": Payload(**PAYLOAD.known(payload, Payload._fields)) if payload else None,
        "data": tuple(DataPiece(**DATA_PIECE.known(piece, DataPiece._fields)) for piece in fields["data"]),
        "packages": tuple(Package(**PACKAGE.known(one, Package._fields)) for one in fields["packages"]),
        "environment": Environment.from_json(environment) if environment else None,
    }


_SPEC = Fields({"task": TASK})
_LATER: dict[str, Any] = {  # fields that the first version did not write
    **dict.fromkeys(("processes", "slices"), 1),
    "affordable": 0.0,
    "choices": (),
    "global_batch": 0,
    "keep": NOT_KEPT,
    "shape": "",
    "usd_per_hour": 0.0,
    **dict.fromkeys(("project", "image"), ""),
    **{name: {} for name in ("profile", "accelerator", "secrets", "tools", "beside")},
    **dict.fromkeys(_FLAGS, False),
}
