"""Numbers of the devices of emulated slices. JAX's devices are small stand-ins here; tests/end_to_end/frameworks has the
real ones."""

from __future__ import annotations

import pytest

from kinetic_orchestration.host.process import topology
from kinetic_orchestration.host.process.frameworks import emulated_slices

pytestmark = pytest.mark.fast

PORTS = {"jax": 21000, "torch": 21001, "tensorflow": 21002, "megascale": 21003}


class Device:
    """A device as JAX has them: what its platform has beside is found by __getattr__."""

    def __init__(self, platform: str, process_index: int) -> None:
        self.platform, self.process_index = platform, process_index

    def __getattr__(self, name: str) -> int:
        if self.platform == "tpu" and name == "slice_index":
            return 7
        raise AttributeError(name)


@pytest.mark.parametrize(
    ("hosts", "slices", "of_device", "each"),
    [
        (4, 2, topology.emulated(1), 2),
        (4, 4, topology.emulated(1), 1),
        (4, 1, topology.emulated(1), 0),
        (4, 2, topology.on_accelerator("tpu", {}), 0),  # libtpu numbers them
        (4, 2, {}, 0),  # nor does what a user allows to go without: it may have found its chips
    ],
)
def test_only_several_emulated_slices_are_numbered(
    hosts: int, slices: int, of_device: dict[str, str], each: int
) -> None:
    environ = topology.environment(3, hosts, ["127.0.0.1"] * hosts, PORTS, slices=slices) | of_device
    assert emulated_slices.hosts_of_each(environ) == each


def test_hosts_of_a_slice_come_one_after_the_other_and_other_devices_keep_their_own_number() -> None:
    class Kind(Device):
        pass

    emulated_slices.number(Kind, 2)
    assert [Kind("cpu", process).slice_index for process in range(6)] == [0, 0, 1, 1, 2, 2]
    assert Kind("tpu", 0).slice_index == 7
    assert not hasattr(Kind("gpu", 0), "slice_index")
