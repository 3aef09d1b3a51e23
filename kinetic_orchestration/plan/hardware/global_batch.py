"""The division of one global batch among the hosts of a slice, and the place of each sample in it. Pure.

The samples of a training have one global order. A batch is the next `size` of them; each step of accumulation takes a
run of it, and each host a run of that. So a batch has the same samples, in the same order, on any number of hosts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kinetic_orchestration.errors import UsageError

SHOWN = 12  # numbers of hosts that would do


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """One global batch, as a host sees it.

    Attributes:
        size: Samples in one step of training, on all hosts together.
        hosts: Number of hosts.
        host: Index of this host.
        accumulation: Steps of gradient accumulation, each of `hosts` × `per_host` samples.
    """

    size: int
    hosts: int = 1
    host: int = 0
    accumulation: int = 1

    @classmethod
    def divided(cls, size: int, hosts: int, host: int = 0, most: int = 0) -> GlobalBatch:
        """Divide a batch, with as few steps of accumulation as possible.

        Args:
            size: Samples in one step of training.
            hosts: Number of hosts.
            host: Index of this host.
            most: Samples that one host can take at once; 0 if that is not limited.

        Raises:
            UsageError: The hosts cannot have equal shares.
        """
        check_divides(size, [("this slice", hosts)])
        share = size // hosts
        accumulation = -(-share // most) if most else 1
        while share % accumulation:  # ends at steps of one sample
            accumulation += 1
        return cls(size, hosts, host, accumulation)

    @property
    def per_host(self) -> int:
        """The samples that this host takes at once."""
        return self.size // self.hosts // self.accumulation

    def parts(self, first: int) -> list[range]:
        """Return this host's samples of the batch that begins at sample `first`: a range for each step of
        accumulation. The ranges of all hosts, joined in the order of the hosts, are the batch in its order."""
        together = self.hosts * self.per_host
        begin = first + self.host * self.per_host
        return [range(at, at + self.per_host) for at in range(begin, begin + self.size, together)]

    def rows(self, count: int) -> list[int]:
        """Return this host's rows of an epoch of `count`, in order. What is left at the end and fills no batch is
        left out."""
        firsts = range(0, count - self.size + 1, self.size)
        return [row for first in firsts for part in self.parts(first) for row in part]

    def __str__(self) -> str:
        hosts = f"{self.hosts} host{'s' * (self.hosts != 1)} × {self.per_host}"
        steps = f" × {self.accumulation} steps of accumulation" if self.accumulation > 1 else ""
        return f"global batch {self.size} = {hosts}{steps}"


def check_divides(size: int, shapes: Iterable[tuple[str, int]]) -> None:
    """Raise UsageError unless each shape's hosts can have equal shares of a batch.

    Args:
        size: Samples in one step of training.
        shapes: Names of slices, each with the number of its hosts.
    """
    known = list(dict.fromkeys(shapes))
    odd = [f"{name} ({hosts} hosts)" for name, hosts in known if size % hosts]
    if not odd:
        return
    even = [name for name, hosts in known if not size % hosts]
    fits = f"; {', '.join(even)} would do" if even else ""
    numbers = [str(number) for number in range(1, min(size, 1 << 16) + 1) if size % number == 0]
    most = ", …" if len(numbers) > SHOWN else ""
    raise UsageError(
        f"global_batch={size} cannot be divided among the hosts of {', '.join(odd)}{fits}. It can be among "
        f"{', '.join(numbers[:SHOWN])}{most} hosts: give a batch that the hosts of every size divide, or leave that "
        "size out"
    )
