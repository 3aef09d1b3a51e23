"""Numbers the devices of emulated slices, as libtpu numbers those of real ones: by `slice_index`.

XLA numbers the CPUs of joined processes by their machines' boot ids (xla/pjrt/distributed/topology_util.cc), so all
emulated slices of a machine would be one: JAX would make no hybrid mesh, of both networks, and would not refuse what it
refuses on several slices, such as a plain mesh. A client of CPUs takes no number from JAX, whose JAX_PARTITION_INDEX is
for plugins.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would cost an agent a tenth of its start
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def hosts_of_each(environ: Mapping[str, str]) -> int:
    """Return the number of hosts of each emulated slice, by the environment of a host; 0 where nothing is emulated or
    there is one slice."""
    slices = int(environ.get("MEGASCALE_NUM_SLICES") or 1)
    if slices == 1 or environ.get("JAX_PLATFORMS") != "cpu":
        return 0
    return int(environ.get("JAX_NUM_PROCESSES") or slices) // slices


def number(kind: Any, hosts: int) -> None:
    """Give the devices of a CPU their slice's number.

    Args:
        kind: The class of JAX's devices.
        hosts: The number of hosts of each slice, of which the processes of JAX are one after the other.
    """

    def slice_index(device: Any) -> int:
        if device.platform != "cpu":  # as of a topology that is only compiled for: its own attribute answers
            raise AttributeError("slice_index")
        return int(device.process_index) // hosts

    kind.slice_index = property(slice_index)
