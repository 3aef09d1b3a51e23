"""Nodes of a cluster for a slice: labels, machines, what a pod requests, and the commands that make a pool of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kinetic_orchestration.errors import UnknownAccelerator, UsageError
from kinetic_orchestration.plan.hardware.accelerators import Slice, by_process, catalogue, on_hosts, otherwise, parse
from kinetic_orchestration.plan.hardware.nodes import (
    GPU,
    GPU_ACCELERATOR,
    LEAST,
    TPU,
    TPU_ACCELERATOR,
    TPU_TOPOLOGY,
    Node,
    between_hosts,
    elsewhere,
    node,
    pool_command,
    requests,
)

pytestmark = pytest.mark.fast

POOLS = Path(__file__).parent / "golden" / "pools.txt"
NOT_ON_GKE = {"a100-80gbx16"}  # a name of Kinetic's; Google Cloud has eight of them to a machine


def command(slice: Slice, flex_start: bool = False, reservation: str = "") -> str:
    return pool_command(
        slice,
        cluster="research",
        location="us-central1",
        zone="us-central1-a",
        project="p",
        flex_start=flex_start,
        reservation=reservation,
    )


@pytest.mark.parametrize("slice", catalogue(), ids=lambda slice: slice.name)
def test_every_slice_has_a_node_or_a_sentence(slice: Slice) -> None:
    if slice.generation == "v2":
        with pytest.raises(UnknownAccelerator, match=rf"^No Kubernetes cluster has {slice.name}: GKE's TPUs are v3, "):
            node(slice)
        return
    found = node(slice)
    if slice.kind == "cpu":
        assert found == Node("", 0, {})
        return
    assert found.count * slice.hosts == slice.chips
    assert found.taints[0] == found.resource == {"tpu": TPU, "gpu": GPU}[slice.kind]
    assert bool(found.products) == (slice.kind == "gpu")
    assert bool(found.machine) == (slice.name not in NOT_ON_GKE)
    if slice.kind == "tpu":
        assert found.labels[TPU_TOPOLOGY] == slice.topology
        assert found.machine.endswith(f"-{slice.chips_per_host}t")
    if found.cpus:
        asked = requests(found)
        assert 0.5 * found.cpus <= int(asked["cpu"]) < found.cpus
        assert 0.6 * found.memory_gib <= int(asked["memory"].removesuffix("Gi")) < 0.95 * found.memory_gib
    if slice.kind == "gpu" and found.machine:
        assert f"--machine-type={found.machine} " in command(slice, reservation="" if found.flex_start else "r")


@pytest.mark.parametrize(
    ("name", "labels", "machine", "count"),
    [
        ("v3-4", ("tpu-v3-device", "2x2"), "ct3-hightpu-4t", 4),
        ("v3-32", ("tpu-v3-slice", "4x8"), "ct3p-hightpu-4t", 4),
        ("v4-8", ("tpu-v4-podslice", "2x2x2"), "ct4p-hightpu-4t", 4),
        ("v5e-1", ("tpu-v5-lite-podslice", "1x1"), "ct5lp-hightpu-1t", 1),
        ("v5e-8", ("tpu-v5-lite-podslice", "2x4"), "ct5lp-hightpu-8t", 8),
        ("v5e-16", ("tpu-v5-lite-podslice", "4x4"), "ct5lp-hightpu-4t", 4),
        ("v5p-4", ("tpu-v5p-slice", "2x2x1"), "ct5p-hightpu-4t", 4),
        ("v6e-8", ("tpu-v6e-slice", "2x4"), "ct6e-standard-8t", 8),
        ("v6e-256", ("tpu-v6e-slice", "16x16"), "ct6e-standard-4t", 4),
        ("tpu7x-1", ("tpu7x", "1x1x1"), "tpu7x-standard-1t", 1),
        ("tpu7x-9216", ("tpu7x", "16x24x24"), "tpu7x-standard-4t", 4),
    ],
)
def test_a_host_of_a_tpu_slice_has_gkes_labels(name: str, labels: tuple[str, str], machine: str, count: int) -> None:
    found = node(parse(name))
    assert found.labels == {TPU_ACCELERATOR: labels[0], TPU_TOPOLOGY: labels[1]}
    assert (found.machine, found.count, found.arm, found.gpudirect) == (machine, count, False, "")


@pytest.mark.parametrize(
    ("name", "label", "machine", "gpudirect"),
    [
        ("h100x8", "nvidia-h100-80gb", "a3-highgpu-8g", "tcpx"),
        ("h100-megax8", "nvidia-h100-mega-80gb", "a3-megagpu-8g", "tcpxo"),
        ("h200x8", "nvidia-h200-141gb", "a3-ultragpu-8g", "rdma"),
        ("b200x8", "nvidia-b200", "a4-highgpu-8g", "rdma"),
        ("gb200x4", "nvidia-gb200", "a4x-highgpu-4g", "rdma"),
        ("rtx-pro-6000x2", "nvidia-rtx-pro-6000", "g4-standard-96", ""),
        ("l4x4", "nvidia-l4", "g2-standard-48", ""),
        ("a100x16", "nvidia-tesla-a100", "a2-megagpu-16g", ""),
        ("t4", "nvidia-tesla-t4", "n1-standard-4", ""),
    ],
)
def test_a_host_of_gpus_has_gkes_label(name: str, label: str, machine: str, gpudirect: str) -> None:
    found = node(parse(name))
    assert (found.labels, found.machine, found.gpudirect) == ({GPU_ACCELERATOR: label}, machine, gpudirect)


def test_only_gb200_has_arm_processors_and_tolerates_the_taint_of_such_nodes() -> None:
    arm = {slice.name: node(slice).taints for slice in catalogue() if slice.kind == "gpu" and node(slice).arm}
    assert arm == {"gb200x4": (GPU, "kubernetes.io/arch")}


def test_on_another_cluster_a_node_is_found_by_its_product_and_its_shape_is_unknown() -> None:
    found = elsewhere(node(parse("h100x2")))
    assert found.products == ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe", "NVIDIA-H100-NVL")
    assert (found.resource, found.count, found.labels, found.machine) == (GPU, 2, {}, "")
    assert requests(found) == requests(node(parse("gpu:2"))) == requests(node(parse("cpu:8"))) == LEAST
    assert node(parse("gpu:2")) == Node(GPU, 2, {})


def test_a_job_with_a_process_for_each_gpu_has_them_on_one_node() -> None:
    assert node(by_process(parse("l4x4"))) == node(parse("l4x4"))


def test_each_of_several_hosts_of_gpus_has_a_node_of_the_same_machine() -> None:
    two = on_hosts(parse("h100x8"), 2)
    assert node(two) == node(parse("h100x8"))
    assert "--max-nodes=2 " in f"{command(two)} "
    assert node(on_hosts(parse("gpu:2"), 3)) == node(parse("gpu:2"))


@pytest.mark.parametrize(("name", "machine"), [("v5e-8", "ct5lp-hightpu"), ("v6e-8", "ct6e-standard")])
def test_eight_chips_may_be_of_one_host_or_of_two_as_keras_kinetic_has_them(name: str, machine: str) -> None:
    one, two = parse(name), on_hosts(parse(name), 2)
    assert [(node(each).machine, node(each).count, each.hosts) for each in (one, two)] == [
        (f"{machine}-8t", 8, 1), (f"{machine}-4t", 4, 2)
    ]  # fmt: skip
    assert node(two).labels == node(one).labels
    assert str(two) == f"{name}: 8 chips (2x4), 2 hosts × 4 chips, not in the Cloud TPU API"
    assert command(two).startswith(f"gcloud container node-pools create ko-{name}-on-2 ")
    assert "--placement-type=COMPACT --tpu-topology=2x4 " in command(two) and "--max-nodes=2 " in f"{command(two)} "
    assert (otherwise(one), otherwise(two)) == (two, one)
    assert not [slice for slice in catalogue() if slice.name not in ("v5e-8", "v6e-8") and otherwise(slice)]


@pytest.mark.parametrize(
    ("name", "technique"),
    [("h100x8", "GPUDirect-TCPX,"), ("h100-megax8", "GPUDirect-TCPXO,"), ("b200x8", "GPUDirect RDMA,"), ("l4x4", "")],
)
def test_hosts_of_gpus_that_could_be_joined_faster_are_told_by_what(name: str, technique: str) -> None:
    assert between_hosts(parse(name)) == between_hosts(parse("v5e-16")) == ""
    told = between_hosts(on_hosts(parse(name), 2))
    assert bool(told) == bool(technique)
    assert technique in told
    assert not told or told.startswith(f"the 2 hosts of {name} are joined over plain TCP. ")


@pytest.mark.parametrize(
    ("name", "cpu", "memory"),
    [
        ("l4", "2", "10Gi"),
        ("v5e-1", "22", "39Gi"),
        ("v5e-8", "222", "353Gi"),
        ("v6e-8", "178", "1350Gi"),
        ("tpu7x-8", "222", "897Gi"),
        ("b200x8", "222", "3738Gi"),
    ],
)
def test_a_pod_requests_what_an_empty_node_has_to_give(name: str, cpu: str, memory: str) -> None:
    assert requests(node(parse(name))) == {"cpu": cpu, "memory": memory}


@pytest.mark.parametrize("slice", [s for s in catalogue() if s.kind != "cpu" and s.generation != "v2"], ids=str)
def test_requests_leave_what_gke_reserves(slice: Slice) -> None:
    """The reservation as kubernetes/autoscaler predicts it, typed from its brackets, in millicores and MiB."""
    found = node(slice)
    if not found.cpus:
        return
    memory = found.memory_gib * 1024
    free = memory - memory / 64 - 80 - 100  # of the kernel, and of the kubelet's eviction
    brackets = [(0, 0.25), (4000, 0.2), (8000, 0.1), (16000, 0.06), (128000, 0.02)]
    ends = [*(start for start, _ in brackets[1:]), memory]
    free -= sum(max(0, min(memory, end) - start) * share for (start, share), end in zip(brackets, ends, strict=True))
    cpus = found.cpus * 1000
    free_cpus = cpus - 80 - (cpus - 4000) * 0.0025
    asked = requests(found)
    assert int(asked["memory"].removesuffix("Gi")) * 1024 <= free - 2 * 1024
    assert int(asked["cpu"]) * 1000 <= free_cpus - 1000


def pools() -> str:
    """For each machine that GKE has, in a pool of one host and of several, the commands of its smallest slice."""
    first: dict[tuple[str, bool], Slice] = {}
    for slice in catalogue():
        if slice.generation not in ("v2", "cpu") and node(slice).machine:
            first.setdefault((node(slice).machine + slice.generation, slice.hosts > 1), slice)
    blocks = [f"{slice.name}\n{_or_sentence(slice)}" for slice in first.values()]
    for name in ("v4-8", "v5e-16", "tpu7x-8", "t4", "h100", "gb200x4"):
        blocks += [
            f"{name}, spot\n{_or_sentence(parse(f'{name}:spot'))}",
            f"{name}, flex-start\n{_or_sentence(parse(name), flex_start=True)}",
            f"{name}, reservation\n{_or_sentence(parse(name), reservation='blocks')}",
        ]
    return "\n\n".join(blocks) + "\n"


def _or_sentence(slice: Slice, flex_start: bool = False, reservation: str = "") -> str:
    try:
        return command(slice, flex_start, reservation)
    except UsageError as error:
        return f"Refused: {error}"


def test_the_commands_that_make_pools_are_those_that_were_read() -> None:
    """To change them on purpose, run with UPDATE_GOLDEN=1 and read the difference."""
    text = pools()
    if os.environ.get("UPDATE_GOLDEN"):
        POOLS.parent.mkdir(exist_ok=True)
        POOLS.write_text(text)
    assert text == POOLS.read_text()


def test_a_topology_is_named_for_several_hosts_only_and_a_workload_policy_stands_in_for_it() -> None:
    for slice in catalogue():
        if slice.kind != "tpu" or slice.generation == "v2":
            continue
        lines = command(slice).splitlines()
        policy = slice.hosts > 1 and slice.generation == "tpu7x"
        assert ("--tpu-topology" in lines[-1]) == ("--placement-type" in lines[-1]) == (slice.hosts > 1 and not policy)
        assert (len(lines) == 2) == ("--placement-policy" in lines[-1]) == policy
        assert f"--num-nodes=0 --enable-autoscaling --min-nodes=0 --max-nodes={slice.hosts}" in lines[-1]


@pytest.mark.parametrize(
    ("name", "flex_start", "reservation", "reason"),
    [
        ("v5e-8:spot", True, "", "spot capacity, flex-start or a reservation: name one"),
        ("v5e-8:spot", False, "blocks", "name one of them"),
        ("v5e-8", True, "blocks", "name one of them"),
        ("v4-8", True, "", "ct4p-hightpu-4t is not given by flex-start"),
        ("h100x2", False, "blocks", "a3-highgpu-2g is given as spot or by flex-start alone"),
        ("gb200x4", False, "", "a4x-highgpu-4g is given by reservation alone"),
        ("a100-80gbx16", False, "", "No machine of Google Cloud has a100-80gbx16: a100-80gb comes 1, 2, 4 or 8"),
        ("gpu:2", False, "", "gpu:2 is of any model"),
        ("cpu", False, "", "no accelerator names one"),
        ("v2-4", False, "", "Cloud TPU has it, as v2-8"),
    ],
)
def test_a_pool_that_cannot_be_made_is_refused(name: str, flex_start: bool, reservation: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        command(parse(name), flex_start, reservation)
