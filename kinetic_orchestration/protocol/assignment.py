"""The submitter's parameters for a host, as its command line."""

from __future__ import annotations

from kinetic_orchestration.protocol import names

_NUMBERS = ("attempt", "host", "hosts", "slices", "processes", "choice", "rival", "epoch")


class Assignment:
    """The parameters by which a host finds its work, and the digests that authenticate it."""

    __slots__ = (
        "attempt", "batch", "boot", "choice", "deadline", "devices", "epoch", "home", "host", "hosts", "job", "marker",
        "pod", "processes", "python", "resource", "rival", "run", "slices", "spec", "store",
    )  # fmt: skip

    def __init__(
        self,
        store: str,
        job: str,
        attempt: int,
        host: int,
        hosts: int,
        spec: str,
        boot: str,
        run: str,
        home: str,
        python: str,
        marker: str,
        resource: str = "",
        deadline: str = "",
        devices: str = "",
        pod: str = "",
        slices: int = 1,
        processes: int = 1,
        choice: int = 0,
        rival: int = -1,
        epoch: int = 0,
        batch: str = "",
    ) -> None:
        self.store = store
        self.job = job
        self.attempt = attempt
        self.host = host
        self.hosts = hosts
        self.slices = slices
        self.processes = processes  # hosts that share a machine of the cloud, one after the other
        self.choice = choice  # number of the candidate of the job's plan by which it was made
        self.epoch = epoch  # of the claim by which the attempt has this slice; 0 for one that was made for it
        self.rival = rival  # number of its place in a race, counted from 0; -1: there is none
        self.spec = spec  # digest of spec.json
        self.boot = boot
        self.run = run  # this placement's folder on this machine
        self.home = home
        self.python = python  # that runs the program, if that is known before everything else
        self.marker = marker
        self.resource = resource  # what this host deletes when all is over: itself; "" on this machine
        self.pod = pod  # the pod of a cluster that this host is, by its UID; "" for any other machine
        self.batch = batch  # the job of Slurm on whose node this host is, with its restarts; "" for any other machine
        self.devices = devices  # this host's devices of this machine, as JSON; "": they are not counted
        self.deadline = deadline  # when it does so in any case, by the store's clock; "" on this machine

    @classmethod
    def from_words(cls, words: list[str]) -> Assignment:
        fields = dict(word.split("=", 1) for word in words)
        numbers = {name: int(fields.pop(name)) for name in _NUMBERS if name in fields}
        return cls(**fields, **numbers)  # type: ignore[arg-type]  # which are which is known only here

    def own(self, what: str) -> str:
        """Return the name of a record of this host."""
        return names.host(self.job, self.attempt, self.host, what)

    def is_overdue(self, now: float) -> bool:
        """Return True if the deadline has passed at that time of the store, whose clock may tell whole seconds only."""
        return 0.0 < float(self.deadline or 0.0) < now + 1.0

    def next(self) -> Assignment:
        """Return the assignment of the host after this one, on the same machine."""
        host, (boot, _, _) = self.host + 1, self.boot.rpartition("/")
        return self.from_words([*self.words(), f"host={host}", f"boot={boot}/{host}"])

    @property
    def marks(self) -> tuple[str, str]:
        """The assignments that all processes of this host's program have in their environment, and no other host's."""
        return self.marker, f"KINETIC_HOST_INDEX={self.host}"

    @property
    def kept(self) -> str:
        """The folder with what is known of a machine that may be kept for the next attempt. Any other has none."""
        return f"{self.home}/kept"

    @property
    def machines(self) -> int:
        """The number of machines of the cloud that all hosts are on."""
        return self.hosts // self.processes

    def machine_of(self, host: int) -> int:
        """Return which of the machines a host is on."""
        return host // self.processes

    def unit(self) -> tuple[int, int]:
        """Return of how many parts the resource is, instances or groups, and which of them this host is on."""
        if "/instanceGroupManagers/" not in self.resource:
            return self.machines, self.machine_of(self.host)
        return self.slices, self.host * self.slices // self.hosts

    def words(self) -> list[str]:
        return [f"{name}={getattr(self, name)}" for name in self.__slots__]
