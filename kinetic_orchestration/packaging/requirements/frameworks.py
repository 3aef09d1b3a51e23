"""The builds of frameworks that drive each accelerator, as a table.

A `jax`, `torch`, `tensorflow` or `vllm` line of the user becomes the host's build of it. If an ordinary processor
emulates the accelerator (an emulated slice), the lines stay as they are. Pure: resolves nothing. Unknown combinations
are refused with a sentence.

From the packages' own metadata in the package index, November 2026: `jax[tpu]` needs libtpu, and up to 0.5.0 a nightly
build of it that no index has; `torch-tpu` needs torch 2.11 or later, `torch_xla[tpu]` is made for the torch of the same
minor version, from 2.7 to 2.9; `tensorflow-tpu` holds the same modules as `tensorflow` and takes its place, from 2.19.1
on; so do `vllm-tpu` (by JAX) and `vllm-torchtpu` with the modules of `vllm`, which is for CUDA.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import Specifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from kinetic_orchestration.errors import ConflictingSettings, Unsupported
from kinetic_orchestration.packaging.requirements.resolution import NO_BUILDS, Builds
from kinetic_orchestration.plan.hardware.accelerators import Slice


class _Row(NamedTuple):
    framework: str
    kind: str
    build: Callable[[Requirement, frozenset[str]], Builds]
    clashing: tuple[str, ...]  # patterns of requirements that are for other hardware


def for_host(lines: Iterable[str], slice_: Slice, *, emulated: bool, driver: int = 0) -> Builds:
    """The builds for the slice. `lines` are requirements; a line that is no plain requirement does not affect the
    builds. `driver`: that of NVIDIA's which the hosts are known to have, by its branch; 0 if it is not known."""
    if emulated:
        return NO_BUILDS
    parsed = [requirement for line in lines if (requirement := _parsed(line)) is not None]
    for requirement in parsed:
        _refuse_too_old(requirement, slice_)
        _refuse_other_cuda(requirement, slice_, driver)
    asked: dict[str, Requirement] = {canonicalize_name(requirement.name): requirement for requirement in parsed}
    for row in _TABLE:
        if row.kind == slice_.kind:
            _refuse_clashing(row, asked, slice_)
    found = [
        row.build(asked[row.framework], frozenset(asked))
        for row in _TABLE
        if row.kind == slice_.kind and row.framework in asked
    ]
    if "torch" in asked and slice_.kind == "gpu" and _lacks_cuda_13(slice_, driver):
        found.append(_torch_cuda_12(asked["torch"]))
    return Builds(
        tuple(line for builds in found for line in builds.added),
        tuple(name for builds in found for name in builds.left_out),
        tuple(name for builds in found for name in builds.needed),
        " ".join(builds.advice for builds in found if builds.advice),
    )


def check_lock(names: Iterable[str], slice_: Slice, *, emulated: bool, where: str) -> None:
    """A lock that is used as it is must have been made for the slice."""
    there = {canonicalize_name(name) for name in names}
    try:
        builds = for_host(sorted(there), slice_, emulated=emulated)
    except ConflictingSettings as error:
        raise ConflictingSettings(
            f"{where} is used as it is, and {str(error).partition(': leave it out')[0]}: a lock serves one kind of "
            "hardware. Name requirements instead, from which each gets its own, or hardware of one kind"
        ) from error
    missing = [name for name in builds.needed if there.isdisjoint(name.split("|"))]
    if missing:
        raise ConflictingSettings(
            f"{where} is used as it is, and lacks {missing[0].replace('|', ' or ')}, without which its framework does "
            f"not see a {slice_.name}. Make it anew for this accelerator, from requirements that name "
            f"{' and '.join(builds.added)}"
        )


def check_cuda(entries: Iterable[str], slice_: Slice, driver: int) -> None:
    """Refuse a lock with packages for a CUDA that the GPUs or their driver cannot run, whatever brought them.

    Args:
        entries: What is locked, as `name==version`.
        slice_: The hardware.
        driver: That of NVIDIA's which the hosts are known to have, by its branch; 0 if it is not known.

    Raises:
        ConflictingSettings: One is for another CUDA.
    """
    found = next((match[0] for entry in entries if (match := _OF_CUDA_13.match(entry))), "")
    if slice_.kind != "gpu" or not found or not _lacks_cuda_13(slice_, driver):
        return
    if slice_.generation in _BEFORE_TURING:
        why, cure = f"CUDA 13, which begins with the T4, has no code for {slice_.name}", "take another accelerator"
    else:
        why = f"CUDA 13 needs driver {_DRIVER_OF_CUDA_13} or later, while the image that was asked for has {driver}"
        cure = "leave out the image"
    raise ConflictingSettings(
        f"the requirements bring {found}, and {why}: name builds for CUDA 12, as torch<2.11 and jax[cuda12] are, or "
        f"{cure}"
    )


def _parsed(line: str) -> Requirement | None:
    try:
        return Requirement(line.split(" --", 1)[0].strip())
    except InvalidRequirement:
        return None


def _refuse_clashing(row: _Row, asked: dict[str, Requirement], slice_: Slice) -> None:
    for requirement in asked.values():
        extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
        text = f"{canonicalize_name(requirement.name)}{extras}{requirement.specifier}"
        for pattern in row.clashing:
            if re.match(pattern, text):
                raise ConflictingSettings(
                    f"the requirement {str(requirement)!r} is a build for other hardware than {slice_.name}: leave it "
                    f"out, {row.framework} gets the build for this accelerator by itself"
                )


def _jax_tpu(asked: Requirement, _: frozenset[str]) -> Builds:
    advice = (
        "jax up to 0.5.0 names a nightly libtpu that package indexes do not have: take jax>=0.5.1, or name a "
        "--find-links that has it in the requirements."
    )
    return Builds((f"jax[tpu]{asked.specifier}",), needed=("libtpu|libtpu-nightly",), advice=advice)


def _on_jax_tpu(_: Requirement, there: frozenset[str]) -> Builds:
    """A package that brings JAX, but not its build for TPUs."""
    return NO_BUILDS if "jax" in there else Builds(("jax[tpu]",), needed=("libtpu|libtpu-nightly",))


def _torch_tpu(asked: Requirement, there: frozenset[str]) -> Builds:
    if "torch-tpu" in there:
        return Builds(needed=("torch-tpu",))
    if there & {"torchax", "vllm", "vllm-tpu", "vllm-torchtpu"}:
        return NO_BUILDS  # torch of a CPU, whose programs JAX runs, or the one that vllm-torchtpu brings
    newer = ("2.11", "2.12", "2.13", "2.14", "2.15", "3.0")
    if "torch-xla" in there or not any(_allows(asked.specifier, minor) for minor in newer):
        minor = next((minor for minor in ("2.9", "2.8", "2.7") if _allows(asked.specifier, minor)), None)
        if minor is None:
            raise Unsupported(
                f"no TPU build is known for {str(asked)!r}: torch-tpu needs torch>=2.11, and torch_xla[tpu] is made "
                "for torch 2.7, 2.8 and 2.9. Pin one of these, or name a container image that holds your build"
            )
        return Builds(
            (f"torch_xla[tpu]=={minor}.*", f"torch=={minor}.*"),
            needed=("torch-xla|torch-tpu",),
            advice="torch_xla is made for the torch of the same minor version.",
        )
    return Builds(("torch-tpu>=0.2", "torch>=2.11"), needed=("torch-tpu|torch-xla",))


def _tensorflow_tpu(asked: Requirement, _: frozenset[str]) -> Builds:
    return Builds(
        (f"tensorflow-tpu{asked.specifier or '>=2.19.1'}",),
        left_out=("tensorflow",),
        needed=("tensorflow-tpu",),
        advice="tensorflow-tpu is complete in package indexes from 2.19.1 on.",
    )


def _vllm_tpu(asked: Requirement, there: frozenset[str]) -> Builds:
    """The build by JAX, unless that by torch is named: each has the module of the plain one, which is for CUDA."""
    if asked.url is not None:
        return NO_BUILDS  # a build of the user's own
    if "vllm-torchtpu" in there:
        return Builds(left_out=("vllm",), needed=("vllm-torchtpu",))
    advice = "On TPUs vllm is vllm-tpu, which has releases of its own: name one of them, or none."
    extras = f"[{','.join(sorted(asked.extras))}]" if asked.extras else ""
    return Builds(
        (f"vllm-tpu{extras}{asked.specifier}",), left_out=("vllm",), needed=("vllm-tpu|vllm-torchtpu",), advice=advice
    )


_BEFORE_TURING = ("v100", "p100", "p4")  # for which CUDA 13 has no code: it begins with SM 7.5
_BLACKWELL = ("b200", "gb200", "rtx-pro-6000")  # for which CUDA before 12.8 has none
_OLDEST = {  # the first release that drives them
    **{("torch", generation): "2.7" for generation in _BLACKWELL},
    ("jax", "tpu7x"): "0.9.2",
}
_DRIVER_OF_CUDA_13 = 580
_CUDA = re.compile(r"\+cu(\d{2})(\d)\b")
_OF_CUDA_13 = re.compile(r"nvidia-[a-z0-9-]+-cu13\b|jax-cuda13-plugin\b|cuda-toolkit==13[\d.]*")


def _refuse_too_old(asked: Requirement, slice_: Slice) -> None:
    name = canonicalize_name(asked.name)
    oldest = _OLDEST.get((name, slice_.generation), "")
    if oldest and any(_ends_before(one, Version(oldest)) for one in asked.specifier):
        raise ConflictingSettings(
            f"the requirement {str(asked)!r} has no code for {slice_.name}: take {name}>={oldest}, or "
            "another accelerator"
        )


def _ends_before(one: Specifier, oldest: Version) -> bool:
    """Return True if a specifier allows nothing from `oldest` on."""
    if one.operator not in ("==", "~=", "<", "<="):
        return False
    return Version(one.version.removesuffix(".*")) <= oldest and not one.contains(oldest, prereleases=True)


def _refuse_other_cuda(asked: Requirement, slice_: Slice, driver: int) -> None:
    """Refuse a build that names a CUDA which has no code for the GPUs, or which their driver does not know."""
    name = canonicalize_name(asked.name)
    named = [(int(match[1]), int(match[2])) for match in _CUDA.finditer(str(asked.specifier))]
    if name == "jax":
        named += [(13, 0) for extra in asked.extras if extra.startswith("cuda13")]
    if slice_.generation in _BEFORE_TURING and any(cuda >= (13, 0) for cuda in named):
        why = f"CUDA 13 begins with the T4. Name {name} alone, or a build of it for CUDA 12, or another accelerator"
    elif slice_.generation in _BLACKWELL and any(cuda < (12, 8) for cuda in named):
        why = f"it begins with CUDA 12.8. Name {name} alone, or a build of it for that, or another accelerator"
    elif 0 < driver < _DRIVER_OF_CUDA_13 and any(cuda >= (13, 0) for cuda in named):
        raise ConflictingSettings(
            f"the requirement {str(asked)!r} needs driver {_DRIVER_OF_CUDA_13} or later, as CUDA 13 does, and the "
            f"image that was asked for has {driver}: leave out the image, or name a build for CUDA 12"
        )
    else:
        return
    raise ConflictingSettings(f"the requirement {str(asked)!r} has no code for {slice_.name}: {why}")


def _jax_cuda(asked: Requirement, _: frozenset[str]) -> Builds:
    extra = next((extra for extra in sorted(asked.extras) if extra.startswith("cuda")), "cuda12")
    named = extra[:6] in ("cuda12", "cuda13")  # else the release chooses one of them
    plugin = f"jax-{extra[:6]}-plugin" if named else "jax-cuda12-plugin|jax-cuda13-plugin"
    return Builds((f"jax[{extra}]{asked.specifier}",), needed=(plugin,))


def _tensorflow_cuda(asked: Requirement, _: frozenset[str]) -> Builds:
    return Builds((f"tensorflow[and-cuda]{asked.specifier}",))


def _lacks_cuda_13(slice_: Slice, driver: int) -> bool:
    return slice_.generation in _BEFORE_TURING or 0 < driver < _DRIVER_OF_CUDA_13


def _torch_cuda_12(asked: Requirement) -> Builds:
    """The releases for CUDA 12, if some may be taken, and neither a file nor a build of its own is named."""
    is_chosen = asked.url is not None or _CUDA.search(str(asked.specifier)) is not None
    if is_chosen or not any(_allows(asked.specifier, f"2.{minor}") for minor in range(11)):
        return NO_BUILDS
    advice = "torch from 2.11 on is made for CUDA 13, which these GPUs or the driver of their image do not run."
    return Builds(("torch<2.11",), advice=advice)


def _as_it_is(_: Requirement, __: frozenset[str]) -> Builds:
    return NO_BUILDS  # torch for Linux is the CUDA build unless another is asked for, from 2.11 on of CUDA 13


_LOCAL_BUILD = r"==?[^,]*\+"

_TABLE = (
    _Row("jax", "tpu", _jax_tpu, (r"jax\[.*(cuda|rocm)", r"jax-(cuda|rocm)\d*-(plugin|pjrt)")),
    _Row("torch", "tpu", _torch_tpu, (rf"torch==?{_LOCAL_BUILD}(cu|rocm|xpu)",)),
    _Row("tensorflow", "tpu", _tensorflow_tpu, (r"tensorflow\[.*cuda", r"tensorflow-(cpu|rocm|gpu|intel)\b")),
    _Row("vllm", "tpu", _vllm_tpu, (r"vllm-(cpu|rocm|xpu)\b",)),
    _Row("torchax", "tpu", _on_jax_tpu, ()),
    _Row("flax", "tpu", _on_jax_tpu, ()),
    _Row("jax", "gpu", _jax_cuda, (r"jax\[.*tpu", r"libtpu")),
    _Row("torch", "gpu", _as_it_is, (rf"torch==?{_LOCAL_BUILD}(cpu|rocm|xpu)", r"torch-xla\[.*tpu", r"torch-tpu")),
    _Row("tensorflow", "gpu", _tensorflow_cuda, (r"tensorflow-(cpu|tpu|rocm|intel)\b",)),
    _Row("vllm", "gpu", _as_it_is, (r"vllm-(cpu|tpu|torchtpu|xpu)\b",)),
)


def _allows(specifier: SpecifierSet, minor: str) -> bool:
    return any(specifier.contains(Version(f"{minor}.{patch}")) for patch in range(10))
