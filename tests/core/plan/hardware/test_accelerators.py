"""Names of accelerators: Kinetic's reading, Cloud TPU's reading, and what is near a wrong one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kinetic_orchestration.errors import UnknownAccelerator
from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.hardware.accelerators import Slice, catalogue, from_accelerator_type, parse, zones

pytestmark = pytest.mark.fast

# What Keras Kinetic's own table says, typed from reading it: chips → (topology, hosts).
KINETIC_TPUS = {
    "v3": {
        4: ("2x2", 1), 16: ("4x4", 4), 32: ("4x8", 8), 64: ("8x8", 16), 128: ("8x16", 32), 256: ("16x16", 64),
        512: ("16x32", 128), 1024: ("32x32", 256), 2048: ("32x64", 512),
    },
    "v4": {
        4: ("2x2x1", 1), 8: ("2x2x2", 2), 16: ("2x2x4", 4), 32: ("2x4x4", 8), 64: ("4x4x4", 16), 128: ("4x4x8", 32),
        256: ("4x8x8", 64), 512: ("8x8x8", 128), 1024: ("8x8x16", 256), 2048: ("8x16x16", 512), 4096: ("16x16x16", 1024),
    },
    "v5litepod": {
        1: ("1x1", 1), 4: ("2x2", 1), 8: ("2x4", 1), 16: ("4x4", 4), 32: ("4x8", 8), 64: ("8x8", 16),
        128: ("8x16", 32), 256: ("16x16", 64),
    },
    "v5p": {8: ("2x2x2", 2), 16: ("2x2x4", 4), 32: ("2x4x4", 8)},
    "v6e": {8: ("2x4", 2), 16: ("4x4", 4)},
}  # fmt: skip
KINETIC_DEFAULTS = {"v3": 4, "v4": 4, "v5litepod": 4, "v5p": 8, "v6e": 8}
KINETIC_GPUS = {
    "l4": ("nvidia-l4", [1, 2, 4, 8]),
    "t4": ("nvidia-tesla-t4", [1, 2, 4]),
    "v100": ("nvidia-tesla-v100", [1, 2, 4, 8]),
    "a100": ("nvidia-tesla-a100", [1, 2, 4, 8, 16]),
    "a100-80gb": ("nvidia-a100-80gb", [1, 2, 4, 8, 16]),
    "h100": ("nvidia-h100-80gb", [1, 2, 4, 8]),
    "p4": ("nvidia-tesla-p4", [1, 2, 4]),
    "p100": ("nvidia-tesla-p100", [1, 2, 4]),
}
# GKE's, which Kinetic does not name; a name alone is one GPU, which these machines do not have.
MORE_GPUS = {
    "gb200": ("nvidia-gb200", [4]),
    "b200": ("nvidia-b200", [8]),
    "h200": ("nvidia-h200-141gb", [8]),
    "h100-mega": ("nvidia-h100-mega-80gb", [8]),
    "rtx-pro-6000": ("nvidia-rtx-pro-6000", [1, 2, 4, 8]),
}
PREFIXES = ["", "tpu-", "tpu:", "TPU-"]
# Kinetic's node pools make a v6e-8 of two hosts; Cloud TPU gives one VM with eight chips, and that is our truth.
HOSTS_OF_OURS = {("v6e", 8): 1}


def kinetic_tpus() -> list[tuple[str, int, str, int]]:
    return [
        (name, chips, topology, HOSTS_OF_OURS.get((name, chips), hosts))
        for name, sizes in KINETIC_TPUS.items()
        for chips, (topology, hosts) in sizes.items()
    ]


@pytest.mark.parametrize(("name", "chips", "topology", "hosts"), kinetic_tpus())
def test_every_tpu_name_of_kinetic_means_the_same_chips_and_hosts(
    name: str, chips: int, topology: str, hosts: int
) -> None:
    aliases = [name, "v5e"] if name == "v5litepod" else [name]
    for spelling in [f"{alias}-{size}" for alias in aliases for size in (chips, topology)]:
        for prefix in PREFIXES:
            found = parse(prefix + spelling)
            assert (found.kind, found.chips, found.topology, found.hosts) == ("tpu", chips, topology, hosts)
            assert not found.spot
            assert parse(f" {prefix}{spelling}:spot ").spot


@pytest.mark.parametrize(("name", "chips"), KINETIC_DEFAULTS.items())
def test_a_bare_generation_is_its_default_size(name: str, chips: int) -> None:
    assert [parse(prefix + name).chips for prefix in PREFIXES] == [chips] * len(PREFIXES)


@pytest.mark.parametrize("name", KINETIC_GPUS)
def test_every_gpu_name_of_kinetic_means_the_same_gpus(name: str) -> None:
    label, counts = KINETIC_GPUS[name]
    for prefix in ("", "gpu-", "gpu:"):
        assert parse(prefix + name) == parse(prefix + label) == parse(f"{prefix}{name}x1")
    means_these_gpus(name, label, counts)


@pytest.mark.parametrize("name", MORE_GPUS)
def test_gpus_that_kinetic_does_not_name_are_read_as_kinetic_reads_its_own(name: str) -> None:
    means_these_gpus(name, *MORE_GPUS[name])


def means_these_gpus(name: str, label: str, counts: list[int]) -> None:
    for count in counts:
        for spelling in (f"{name}x{count}", f"{label}x{count}"):
            for prefix in ("", "gpu-", "GPU:"):
                found = parse(prefix + spelling)
                assert (found.kind, found.generation, found.chips, found.hosts) == ("gpu", name, count, 1)
                assert parse(f"{prefix}{spelling}:spot").spot


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("tpu", "v5e-4"),
        ("tpu:1", "v5e-1"),
        ("tpu:4", "v5e-4"),
        ("tpu-8", "v6e-8"),
        ("tpu:16", "v6e-16"),
        ("tpu:32", "v5p-32"),
        ("tpu:64", "v5e-64"),
        ("tpu:256", "v5e-256"),
        ("tpu:512", "v4-512"),
        ("tpu:4096", "v4-4096"),
        ("gpu", "gpu"),
        ("gpu:1", "gpu"),
        ("gpu:3", "gpu:3"),
        ("gpu-16", "gpu:16"),
        ("gpu:64", "gpu:64"),
        ("8", "gpu:8"),
        ("32", "v5p-32"),
        ("cpu", "cpu"),
        ("CPU:8", "cpu:8"),
        ("cpu:1", "cpu"),
        ("tpu7x", "tpu7x-4"),
        ("tpu-7x-8", "tpu7x-8"),
        ("v5litepod-016", "v5e-16"),
    ],
)
def test_a_general_name_is_resolved_to_hardware_as_kinetic_does(name: str, canonical: str) -> None:
    assert parse(name).name == canonical


def test_a_cpu_has_as_many_devices_as_its_name_says() -> None:
    assert (parse("cpu").chips_per_host, parse("cpu:8").chips_per_host, parse("cpu:8").hosts) == (1, 8, 1)
    assert not parse("cpu:spot").spot


@pytest.mark.parametrize(
    ("name", "canonical", "chips", "topology", "hosts"),
    [
        ("v5p-8", "v5p-4", 4, "2x2x1", 1),
        ("v5p-16", "v5p-8", 8, "2x2x2", 2),
        ("v5p-12288", "v5p-6144", 6144, "16x16x24", 1536),
        ("v4-8", "v4-4", 4, "2x2x1", 1),
        ("v4-128", "v4-64", 64, "4x4x4", 16),
        ("v4-4096", "v4-2048", 2048, "8x16x16", 512),
        ("v3-8", "v3-4", 4, "2x2", 1),
        ("v3-2048", "v3-1024", 1024, "32x32", 256),
        ("v2-512", "v2-256", 256, "16x16", 64),
        ("v5litepod-1", "v5e-1", 1, "1x1", 1),
        ("v5litepod-8", "v5e-8", 8, "2x4", 1),
        ("v5litepod-16", "v5e-16", 16, "4x4", 4),
        ("V6E-8", "v6e-8", 8, "2x4", 1),
        ("v6e-256", "v6e-256", 256, "16x16", 64),
    ],
)
def test_cloud_tpus_own_names_count_tensorcores_where_cloud_tpu_does(
    name: str, canonical: str, chips: int, topology: str, hosts: int
) -> None:
    found = from_accelerator_type(name)
    assert (found.name, found.chips, found.topology, found.hosts) == (canonical, chips, topology, hosts)
    assert found.accelerator_type == name.lower()


def test_the_same_text_is_other_hardware_in_the_two_readings() -> None:
    assert str(parse("v5p-8")) == "v5p-8: 8 chips (2x2x2), 2 hosts × 4 chips, Cloud TPU v5p-16"
    assert str(from_accelerator_type("v5p-8")) == "v5p-4: 4 chips (2x2x1), 1 host × 4 chips, Cloud TPU v5p-8"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("v5e-16", "v5e-16: 16 chips (4x4), 4 hosts × 4 chips, Cloud TPU v5litepod-16"),
        ("v5e-1:spot", "v5e-1: 1 chip (1x1), 1 host × 1 chip, Cloud TPU v5litepod-1, spot"),
        ("tpu7x-8", "tpu7x-8: 8 chips (2x2x2), 2 hosts × 4 chips, not in the Cloud TPU API"),
        ("v3-2048", "v3-2048: 2048 chips (32x64), 512 hosts × 4 chips, not in the Cloud TPU API"),
        ("a100x4", "a100x4: 4 GPUs, 1 host"),
        ("l4", "l4: 1 GPU, 1 host"),
        ("cpu:8", "cpu:8: 8 devices, 1 host"),
    ],
)
def test_a_slice_prints_as_one_line(name: str, line: str) -> None:
    assert str(parse(name)) == line


def test_a_slice_tells_by_which_api_it_is_reached() -> None:
    assert [parse(name).api for name in ("v6e-8", "tpu7x-8", "h100", "cpu")] == [
        "tpu-vm",
        "gke",
        "gke",
        "local",
    ]
    assert parse("v6e-8").runtime_version == "v2-alpha-tpuv6e"
    assert parse("v5p-8").hbm_gib_per_chip == 95
    assert parse("v5e-8").peak_bf16_tflops_per_chip == 197


def test_v2_v3_and_tpu7x_show_two_devices_for_a_chip() -> None:
    assert [parse(name).devices_per_host for name in ("v2-4", "v3-4", "tpu7x-4", "v4-4", "v5e-8")] == [
        8,
        8,
        8,
        4,
        8,
    ]
    assert parse("v3-16").devices == 32


@pytest.mark.parametrize("found", catalogue(), ids=lambda found: found.name)
def test_everything_in_the_catalogue_has_one_name_and_adds_up(found: Slice) -> None:
    assert parse(found.name) == found
    assert found.hosts * found.chips_per_host == found.chips
    if found.topology:
        assert parse(f"{found.generation}-{found.topology}") == found
    if found.accelerator_type:
        assert from_accelerator_type(found.accelerator_type) == found
    assert Slice.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_the_catalogue_has_every_size() -> None:
    sizes = {generation: [s.chips for s in catalogue() if s.generation == generation] for generation in ("v5e", "v6e")}
    assert sizes == {"v5e": [1, 4, 8, 16, 32, 64, 128, 256], "v6e": [1, 4, 8, 16, 32, 64, 128, 256]}
    v5p = [s.chips for s in catalogue() if s.generation == "v5p"]
    assert (v5p[:6], v5p[-1]) == ([4, 8, 16, 32, 64, 128], 6144)
    assert max(s.chips for s in catalogue() if s.generation == "tpu7x") == 9216


def test_a_slice_written_by_a_later_version_can_be_read() -> None:
    found = parse("v5e-16:spot")
    assert Slice.from_json({**found.to_json(), "colour": "blue"}) == found


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("v5p-12", ["has no slice of 12 chips", "v5p-8 (2x2x2)", "v5p-16 (2x2x4)"]),
        ("v5p-12288", ["counts chips", "v5p-6144 (16x16x24)", 'cloud=TpuVm(accelerator_type="v5p-12288")']),
        ("v4-8192", ["Read as TensorCores, v4-8192 is 4096 chips", "that is v4-4096 here."]),
        ("v6e-512", ["Near: v6e-128 (8x16), v6e-256 (16x16)."]),
        ("v5e-4x2", ["no topology 4x2. Near: v5e-8 (2x4)."]),
        ("v5e-3x3", ["no topology 3x3", "v5e-8 (2x4)", "v5e-16 (4x4)"]),
        ("a100x3", ["1, 2, 4, 8 or 16 to a host", "a100x2", "a100x4"]),
        ("gpu:65", ["gpu:N is 1 to 64 GPUs of any model"]),
        ("3", ["gpu:N is 1 to 64 GPUs of any model", "Near: tpu:1, tpu:4"]),
        ("tpu:3", ["Near: tpu:1, tpu:4, tpu:8."]),
        ("tpu:192", ["Near: v4-192, v5p-192, tpu7x-192."]),
        ("tpu:l4", ["l4 is a GPU", "gpu-l4"]),
        ("gpu-v5e-8", ["v5e-8 is a TPU", "tpu-v5e-8"]),
        ("v5lite-8", ["v5litepod-8", "accelerators` lists every size"]),
        ("h200", ["h200 comes 8 to a host. Near: h200x8."]),
        ("nvidia-gb200", ["gb200 comes 4 to a host. Near: gb200x4."]),
        (
            "h100x16",
            [
                "1, 2, 4 or 8 to a host. 16 are 2 hosts: h100x8 with cloud=Compute(hosts=2) or Kubernetes(hosts=2). Near: h100x4, h100x8."
            ],
        ),
        ("gpu:b200x72", ["72 are 9 hosts: b200x8 with cloud=Compute(hosts=9) or Kubernetes(hosts=9). Near: b200x8."]),
        ("rtx-pro-6000x3", ["Near: rtx-pro-6000, rtx-pro-6000x2, rtx-pro-6000x4, rtx-pro-6000x8."]),
        ("tpu7-8", ["two machine types of GKE", "memory and its speed are not known", "tpu7x-8"]),
        ("tpu-7", ["no slice of it can be resolved"]),
        ("tpu-8i", ["TPU 8i is announced with 1152 chips to a pod and 288 GB to a chip, for GKE alone", "tpu7x-8"]),
        (
            "8t-16",
            ["TPU 8t is announced with 9600 chips to a pod and 216 GB to a chip", "labels of its nodes are in no"],
        ),
        ("cpu:0", ["cpu:8"]),
        ("cpu:many", ["cpu:8"]),
        ("h100-mig-1g.10gb", ["it is a slice of a card, and a job gets whole cards. Near: h100, l4."]),
        ("gpu:a100-80gb-1g.10gb", ["it is a slice of a card", "Near: a100-80gb, l4."]),
        ("nvidia-b200-mig", ["it is a slice of a card", "Near: b200x8, l4."]),
        ("rtx-pro-6000-1/8", ["it is a slice of a card", "Near: rtx-pro-6000, l4."]),
        ("g4-standard-12", ["it is a slice of a card", "Near: rtx-pro-6000, l4."]),
        ("mig-1g.5gb", ["it is a slice of a card, and a job gets whole cards. Near: l4."]),
        ("quantum", ["nothing is near", "TPUs: v2, v3, v4, v5e, v5p, v6e, tpu7x", "GPUs: gb200, b200, h200", "cpu"]),
        ("", ["nothing is near"]),
        ("gpu:", ["nothing is near"]),
        ("²", ["nothing is near"]),
        ("v5e-" + "9" * 5000, ["TPUs: v2"]),
    ],
)
def test_a_wrong_name_is_answered_with_what_is_near(name: str, parts: list[str]) -> None:
    with pytest.raises(UnknownAccelerator) as caught:
        parse(name)
    message = str(caught.value)
    assert message.startswith(f"No accelerator {name!r}: ")
    assert [part for part in parts if part not in message] == []


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("v5p-4", ["counts TensorCores", "v5p-8 (4 chips, 2x2x1)", 'accelerator="v5p-4"', "calls v5p-8."]),
        ("v5p-7", ["v5p-8 (4 chips, 2x2x1)"]),
        ("v4-8192", ["v4-4096 (2048 chips, 8x16x16)"]),
        ("v5litepod-12", ["counts chips", "v5litepod-8 (8 chips, 2x4)", "v5litepod-16 (16 chips, 4x4)"]),
        ("v5p-2x2x2", ['accelerator="v5p-8"', "Cloud TPU v5p-16"]),
        ("tpu7x-8", ["only Compute Engine and GKE do", 'accelerator="tpu7x-4" (2x2x1)']),
        ("8i-8", ["TPU 8i is announced with 1152 chips"]),
        ("v5litpod-8", ["Near: v5litepod-8"]),
        ("l4", ["Near: v5litepod-8"]),
    ],
)
def test_a_wrong_accelerator_type_is_answered_with_what_is_near(name: str, parts: list[str]) -> None:
    with pytest.raises(UnknownAccelerator) as caught:
        from_accelerator_type(name)
    message = str(caught.value)
    assert message.startswith(f"Cloud TPU has no accelerator type {name!r}")
    assert [part for part in parts if part not in message] == []


@pytest.mark.parametrize("name", [None, 8, ["v5e-8"]])
def test_what_is_not_a_name_is_refused_as_such(name: object) -> None:
    for read in (parse, from_accelerator_type):
        with pytest.raises(UnknownAccelerator, match="is a name such as"):
            read(name)  # type: ignore[arg-type]


def test_zones_are_the_published_ones_and_none_where_none_are() -> None:
    assert zones(parse("v5e-8"))[0] == "us-central1-a"
    assert zones(parse("v4-8")) == ("us-central2-b",)
    assert zones(parse("v2-4")) == ("us-central1-b", "us-central1-c", "asia-east1-c")
    assert zones(parse("v3-16")) == zones(parse("a100")) == zones(parse("cpu")) == ()


def test_where_links_wrap_around() -> None:
    wrapped = {name: accelerators.wraps(parse(name)) for name in ("v5e-64", "v5e-128", "v6e-256", "v4-64", "v5p-32")}
    assert wrapped == {
        "v5e-64": (False, False),
        "v5e-128": (False, True),
        "v6e-256": (True, True),
        "v4-64": (True, True, True),
        "v5p-32": (False, False, False),
    }
    assert accelerators.wraps(parse("v3-1024")) == (True, True)
    assert accelerators.wraps(parse("a100x8")) == ()


def test_the_table_needs_nothing_but_the_standard_library() -> None:
    code = "import sys; before = {*sys.modules}; import kinetic_orchestration.plan.hardware.accelerators; print(*{*sys.modules} - before)"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name.partition(".")[0] for name in names} <= {*sys.stdlib_module_names, "kinetic_orchestration"}
