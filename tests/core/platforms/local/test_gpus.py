"""The GPUs of this machine, by real processes that print what the vendors' tools print: see `gpu_tools`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration import cli
from kinetic_orchestration.cli import doctor
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.values import Change, Event
from kinetic_orchestration.platforms.local import gpus
from kinetic_orchestration.platforms.local.backend import LocalBackend
from kinetic_orchestration.protocol.system import processes
from tests.core.platforms.local import gpu_tools
from tests.core.platforms.local.gpu_tools import L4, UUID
from tests.support.faults import guard_in
from tests.support.waits import wait_until

pytestmark = pytest.mark.fast

VISIBLE = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
LISTED = (
    *VISIBLE, "CUDA_DEVICE_ORDER", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "JAX_CUDA_VISIBLE_DEVICES", "JAX_ROCM_VISIBLE_DEVICES", "KERAS_TORCH_DEVICE", "JAX_PLATFORMS", "KINETIC_EXPECT",
)  # fmt: skip


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    for name in VISIBLE:
        monkeypatch.delenv(name, raising=False)

    def install(**texts: Any) -> None:
        monkeypatch.setenv("PATH", gpu_tools.install(tmp_path / "tools", **texts))

    yield install
    gpus._known.clear()
    gpus.hidden.cache_clear()


def variables() -> dict[str, str]:
    found = {name: os.environ[name] for name in LISTED if name in os.environ}
    here = kinetic.current()
    Path(here.output_dir, f"{here.host_index}.json").write_text(json.dumps(found))
    return found


def of_each_process(job: kinetic.JobHandle[Any]) -> list[dict[str, str]]:
    return [json.loads(file.read_text()) for file in sorted(Path(job.output_dir).glob("?.json"))]


# ---- what the drivers list ---------------------------------------------------------------------------------------


def test_the_slices_of_a_gpu_stand_in_its_place() -> None:
    found = gpus.read_nvidia_smi(gpu_tools.MIG)
    assert [(gpu.number, gpu.uuid[:8], gpu.is_slice) for gpu in found] == [
        ("0", "MIG-c6d4", True), ("0", "MIG-cba6", True), ("1", "GPU-6d5b", False)
    ]  # fmt: skip
    assert [gpu.model for gpu in found] == [
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A100-SXM4-40GB"
    ]  # fmt: skip


def test_amds_tool_tells_models_and_numbers() -> None:
    assert gpus.read_rocm_smi(gpu_tools.ROCM) == [
        gpus.Gpu("AMD", "0", "GPU-43a5c0f2d1b7e8a9", "AMD Instinct MI250X / MI250"),
        gpus.Gpu("AMD", "1", "", "AMD Navi 31 [Radeon RX 7900 XTX]"),
    ]


ASK = "import json, os; from kinetic_orchestration.platforms.local import gpus; print(json.dumps(gpus.listed(os.environ)))"


def test_nvml_comes_before_the_tool_and_knows_slices_holes_and_a_gpu_that_was_lost(tmp_path: Path) -> None:
    """The real loader, and a library of the driver's name."""
    if not gpu_tools.compile_nvml(tmp_path / "lib"):
        pytest.skip("there is no C compiler")
    environ = {
        **os.environ,
        "LD_LIBRARY_PATH": str(tmp_path / "lib"),
        "PATH": gpu_tools.install(tmp_path / "tools", nvidia_smi=gpu_tools.nvidia("Tesla T4")),
    }
    done = subprocess.run([sys.executable, "-c", ASK], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    part = "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    assert json.loads(done.stdout) == [
        [
            ["NVIDIA", "0", "GPU-0001", "NVIDIA L4", False],
            ["NVIDIA", "1", "MIG-0101", part, True],
            ["NVIDIA", "1", "MIG-0103", part, True],
        ],
        ["GPU 2: nvmlDeviceGetHandleByIndex_v2 answers 15"],
    ]


def test_a_driver_that_does_not_work_is_heard(tools: Callable[..., None]) -> None:
    said = "Failed to initialize NVML: Driver/library version mismatch"
    tools(nvidia_smi=f"{said}\nNVML library version: 550.54\n", code=18)
    found = gpus.visible(os.environ)
    assert not found.gpus
    assert [trouble.partition(": ")[2] for trouble in found.troubles] == [said]


@pytest.mark.parametrize(
    ("environ", "left"),
    [
        ({}, "0123"), ({"CUDA_VISIBLE_DEVICES": ""}, ""), ({"CUDA_VISIBLE_DEVICES": "2,0"}, "20"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ""), ({"CUDA_VISIBLE_DEVICES": "1,9,2"}, "1"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-00000003"}, "3"), ({"NVIDIA_VISIBLE_DEVICES": "all"}, "0123"),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, ""), ({"NVIDIA_VISIBLE_DEVICES": "void"}, "0123"),
        ({"NVIDIA_VISIBLE_DEVICES": "1,2"}, "12"), ({"NVIDIA_VISIBLE_DEVICES": "6,7"}, "0123"),
        ({"NVIDIA_VISIBLE_DEVICES": "1,2", "CUDA_VISIBLE_DEVICES": "2,3"}, "2"),
    ],
)  # fmt: skip
def test_what_is_visible_is_read_as_cuda_and_containers_read_it(environ: dict[str, str], left: str) -> None:
    found = gpus.read_nvidia_smi(gpu_tools.nvidia(*[L4] * 4))
    assert "".join(gpu.number for gpu in gpus._visible(found, environ)) == left


@pytest.mark.parametrize(
    ("environ", "left"),
    [
        ({}, "01"), ({"ROCR_VISIBLE_DEVICES": "1"}, "1"), ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, "1"),
        ({"HIP_VISIBLE_DEVICES": "1"}, "1"), ({"CUDA_VISIBLE_DEVICES": "1"}, "1"), ({"ROCR_VISIBLE_DEVICES": ""}, ""),
        ({"ROCR_VISIBLE_DEVICES": "GPU-43a5c0f2d1b7e8a9"}, "0"),
    ],
)  # fmt: skip
def test_what_is_visible_of_amds_counts_as_rocm_counts(environ: dict[str, str], left: str) -> None:
    found = gpus.read_rocm_smi(gpu_tools.ROCM)
    assert "".join(gpu.number for gpu in gpus._visible(found, environ)) == left


@pytest.mark.parametrize(
    ("asked", "fits", "models"),
    [
        ("a100x2", True, ["NVIDIA A100-SXM4-40GB"] * 4), ("a100-80gb", True, ["NVIDIA A100 80GB PCIe"]),
        ("a100-80gb", False, ["NVIDIA A100-SXM4-40GB"]), ("h100-megax8", True, ["NVIDIA H100 80GB HBM3"] * 8),
        ("b200x8", False, ["NVIDIA GB200"] * 8), ("rtx-pro-6000", True, ["NVIDIA RTX PRO 6000 Blackwell Server Edition"]),
        ("h100x8", False, ["NVIDIA H100 80GB HBM3"] * 4),
        ("l4", True, [L4]), ("l4", False, ["NVIDIA L40S"]), ("t4", True, ["Tesla T4"]), ("p4", False, ["Tesla P40"]),
        ("gpu", True, ["NVIDIA GeForce RTX 4090"]), ("gpu:3", True, [L4] * 4), ("gpu:2", False, [L4]), ("gpu:2", True, [L4, "Tesla T4"]),
    ],
)  # fmt: skip
def test_a_named_model_is_that_model_and_an_unnamed_one_is_any(asked: str, fits: bool, models: list[str]) -> None:
    found = gpus.read_nvidia_smi(gpu_tools.nvidia(*models))
    assert bool(gpus.choice(accelerators.parse(asked), found).kinds) is fits


# ---- jobs --------------------------------------------------------------------------------------------------------


def hold(go: str) -> str:
    """Keeps its GPU until it is let go."""
    Path(go, f"{kinetic.current().job_id}.{os.environ['CUDA_VISIBLE_DEVICES']}").touch()
    deadline = time.monotonic() + 60
    while not Path(go, "go").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return os.environ["CUDA_VISIBLE_DEVICES"]


@pytest.mark.slow
def test_of_four_jobs_on_two_gpus_each_has_its_own_and_two_wait(
    home: Path, tmp_path: Path, tools: Callable[..., None]
) -> None:
    tools(nvidia_smi=gpu_tools.nvidia(L4, L4))
    go = tmp_path / "go"
    go.mkdir()
    held = kinetic.run(accelerator="gpu")(hold)
    jobs = [held.run_async(str(go)) for _ in range(4)]
    wait_until(lambda: len(list(go.iterdir())) == 2, "two programs")
    assert {file.suffix for file in go.iterdir()} == {".0", ".1"}
    told: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, Change) and event.phase == "queued":
            told.append(event.message)
            (go / "go").touch()

    jobs[2].follow(note, timeout=60)
    first, second = sorted(job.job_id for job in jobs[:2])
    assert told[0] == f"waiting for a GPU: this machine has 2 × NVIDIA L4 ({first} has 1, {second} has 1)"
    assert sorted(job.result(timeout=60) for job in jobs[:2]) == ["0", "1"]
    assert {job.result(timeout=60) for job in jobs[2:]} <= {"0", "1"}


def leave_a_worker(go: str) -> str:
    """Leave a process like a data loader's, which would keep the GPU's memory for a while."""
    worker = subprocess.Popen(["sleep", "60"])
    Path(go, str(worker.pid)).touch()
    return hold(go)


def test_the_gpu_of_a_job_that_was_killed_is_free_again_once_nobody_of_it_lives(
    home: Path, tmp_path: Path, tools: Callable[..., None]
) -> None:
    tools(nvidia_smi=gpu_tools.nvidia(L4))
    go = tmp_path / "go"
    go.mkdir()
    job = kinetic.run(accelerator="gpu", retry=kinetic.Retry(infra=0))(leave_a_worker).run_async(str(go))
    wait_until(lambda: len(list(go.iterdir())) == 2, "the program")
    (lock,) = (home / "run").glob("*/host-*.json")
    worker = next(int(file.name) for file in go.iterdir() if file.name.isdecimal())
    guard = wait_until(lambda: guard_in(lock), "the guard of the host")
    agent = next(process.pid for process in processes.descendants(guard) if process.parent == guard)
    for pid in (guard, agent):  # and the program dies with its agent, but not what it has started
        processes.send(pid, signal.SIGKILL)
    backend = LocalBackend(home, 0, str(home / "store"), "local")
    wait_until(lambda: len(processes.marked(f"KINETIC_PLACEMENT={lock.parent}")) == 1, "the end of the host")
    assert backend.leases() == {UUID.format(0): job.job_id}
    processes.send(worker, signal.SIGKILL)
    wait_until(lambda: not backend.leases(), "the GPU")
    assert lock.exists(), "nothing was cleaned up, and the file alone means nothing"
    (go / "go").touch()
    assert kinetic.run(accelerator="gpu")(hold)(str(go)) == "0"
    assert job.follow(timeout=60) is not None


def test_a_job_may_use_what_its_submitter_may_use(
    home: Path, tools: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tools(nvidia_smi=gpu_tools.nvidia(*[L4] * 4))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1,0")
    found = kinetic.run(accelerator="gpu:3")(variables)()
    assert (found["CUDA_VISIBLE_DEVICES"], found["CUDA_DEVICE_ORDER"]) == ("3,1,0", "PCI_BUS_ID")
    assert found["KINETIC_EXPECT"].split()[0] == "gpu"
    with pytest.raises(UsageError, match=r"gpu:4 is 4 GPUs, and .* list 3 × NVIDIA L4 \(1 more is hidden"):
        kinetic.run(accelerator="gpu:4")(variables)()


def test_a_slice_of_mig_is_named_by_its_uuid_and_one_program_gets_no_two(
    home: Path, tools: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tools(nvidia_smi=gpu_tools.MIG)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    found = kinetic.run(accelerator="gpu")(variables)()
    assert found["CUDA_VISIBLE_DEVICES"] == "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f"
    with pytest.raises(UsageError, match=r"one slice of MIG.*processes='gpu'"):
        kinetic.run(accelerator="gpu:2")(variables)()
    job = kinetic.run(accelerator="gpu:2", processes="gpu")(variables).run_async()
    job.result()
    both = of_each_process(job)
    assert [one["CUDA_VISIBLE_DEVICES"][:8] for one in both] == ["MIG-c6d4", "MIG-cba6"]
    assert [(one["RANK"], one["LOCAL_RANK"]) for one in both] == [("0", "0"), ("1", "0")], "each sees only its own"


def test_amds_gpus_are_told_by_rocms_variables(home: Path, tools: Callable[..., None]) -> None:
    tools(rocm_smi=gpu_tools.ROCM)
    found = kinetic.run(accelerator="gpu:2")(variables)()
    assert (found["ROCR_VISIBLE_DEVICES"], found["HIP_VISIBLE_DEVICES"]) == ("GPU-43a5c0f2d1b7e8a9,1", "0,1")
    job = kinetic.run(accelerator="gpu:2", processes="gpu")(variables).run_async()
    job.result()
    both = of_each_process(job)
    assert {one["ROCR_VISIBLE_DEVICES"] for one in both} == {"GPU-43a5c0f2d1b7e8a9,1"}
    assert [(one["LOCAL_RANK"], one["JAX_ROCM_VISIBLE_DEVICES"]) for one in both] == [("0", "0"), ("1", "1")]
    with pytest.raises(UsageError, match=r"a100 is 1 GPU of model a100, .* list 1 × AMD Instinct MI250X / MI250, 1 ×"):
        kinetic.run(accelerator="a100")(variables)()


def test_a_model_that_is_not_there_is_refused_unless_emulation_is_asked_for(
    home: Path, tools: Callable[..., None]
) -> None:
    tools(nvidia_smi=gpu_tools.nvidia("NVIDIA GeForce RTX 4090"))
    with pytest.raises(
        UsageError, match=r"l4 is 1 GPU of model l4, .* list 1 × NVIDIA GeForce RTX 4090.*backend='local'"
    ):
        kinetic.run(accelerator="l4")(variables)()
    assert not list((home / "store").glob("*/jobs/*")), "nothing was sent"
    job = kinetic.run(accelerator="l4", backend="local")(variables).run_async()
    found = job.result()
    assert (found["JAX_PLATFORMS"], found["CUDA_VISIBLE_DEVICES"]) == ("cpu", "")
    assert job._job.plan().emulated
    assert "l4" in str(job._job.plan().slice)


def test_without_any_gpu_the_error_says_what_the_driver_said(home: Path, tools: Callable[..., None]) -> None:
    tools(nvidia_smi="NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", code=9)
    with pytest.raises(UsageError, match=r"gpu is 1 GPU, and .* list none; .*nvidia-smi: NVIDIA-SMI has failed"):
        kinetic.run(accelerator="gpu")(variables)()


def test_one_process_for_each_gpu_as_torchrun_starts_them(
    home: Path, tools: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """All see all, as programs for several GPUs expect, and each is told its own."""
    tools(nvidia_smi=gpu_tools.nvidia(L4, L4))
    job = kinetic.run(accelerator="gpu:2", processes="gpu")(variables).run_async()
    job.result()
    both = of_each_process(job)
    assert [(one["RANK"], one["LOCAL_RANK"], one["WORLD_SIZE"], one["LOCAL_WORLD_SIZE"]) for one in both] == [
        ("0", "0", "2", "2"), ("1", "1", "2", "2")
    ]  # fmt: skip
    assert {one["CUDA_VISIBLE_DEVICES"] for one in both} == {"0,1"}
    assert [one["JAX_CUDA_VISIBLE_DEVICES"] for one in both] == ["0", "1"]
    assert [one["KERAS_TORCH_DEVICE"] for one in both] == ["cuda:0", "cuda:1"]
    (address,) = {(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in both}
    assert address[0] == "127.0.0.1" and int(address[1]) > 0
    changes: list[str] = []
    job.follow(lambda event: changes.append(event.message) if isinstance(event, Change) else None)
    assert job._job.plan().hardware == "gpu:2: 2 GPUs, 1 host, 2 processes, this machine's own GPUs"
    assert "1 host, 2 processes" in changes, "and nobody counts hosts where there is one"
    assert cli.main(["status", job.job_id]) == 0
    rows = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines() if line)
    assert rows["accelerator"] == "gpu:2 on local, 1 host, 2 processes"
    assert rows["cost"] == "$0.00 on this machine", "of which there is no price to be known"


def test_processes_can_be_tried_without_a_gpu(home: Path) -> None:
    job = kinetic.run(accelerator="cpu:2", processes=2)(variables).run_async()
    job.result()
    assert [(one["RANK"], one["LOCAL_RANK"]) for one in of_each_process(job)] == [("0", "0"), ("1", "1")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accelerator": "gpu:4", "processes": 3}, r"processes is 3: it is 'gpu', .*\(4 for gpu:4\)"),
        ({"accelerator": "gpu:4", "processes": "gpus"}, "processes is 'gpus'"),
        ({"accelerator": "gpu", "processes": True}, "processes is True"),
        ({"accelerator": "v5e-8", "processes": "gpu"}, "one process with all its chips"),
    ],
)
def test_other_numbers_of_processes_are_refused_where_they_are_written(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        kinetic.run(**options)(variables)


def test_a_job_on_the_cpu_says_that_it_hides_the_gpus(home: Path, tools: Callable[..., None]) -> None:
    tools(nvidia_smi=gpu_tools.nvidia(L4, L4))
    from kinetic_orchestration.plan import messages

    messages._shown.clear()
    with pytest.warns(
        UserWarning, match=r"accelerator='cpu' hides this machine's GPUs \(2 × NVIDIA L4\): 'gpu'"
    ) as told:
        for _ in range(2):
            found = kinetic.run(accelerator="cpu")(variables)()
    assert len(told) == 1
    assert (found["CUDA_VISIBLE_DEVICES"], found["ROCR_VISIBLE_DEVICES"]) == ("", "")
    assert found["HIP_VISIBLE_DEVICES"] == "-1"


def test_doctor_and_accelerators_show_the_gpus_and_who_has_them(
    home: Path, tmp_path: Path, tools: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    tools(nvidia_smi=gpu_tools.nvidia(L4, "Tesla T4"))
    go = tmp_path / "go"
    go.mkdir()
    job = kinetic.run(accelerator="gpu")(hold).run_async(str(go))
    wait_until(lambda: list(go.iterdir()), "the program")
    found = next(check for check in doctor.examine(os.environ).checks if check.name == "gpus")
    assert (found.state, found.found) == ("ok", f"NVIDIA L4 (0): {job.job_id} has it; Tesla T4 (1): free")
    assert cli.main(["accelerators", "gpu"]) == 0
    shown = capsys.readouterr().out
    assert f"  0  NVIDIA L4  {UUID.format(0)}  {job.job_id} has it\n  1  Tesla T4  {UUID.format(1)}  free\n" in shown
    assert shown.endswith(
        "Whatever their model: a model's name, such as 'l4', takes GPUs of that model alone. "
        "Where there are too few, a job is refused; with backend='local' it is emulated on the processor.\n"
    )
    assert cli.main(["accelerators", "a100x2"]) == 0
    assert "Only those of model a100: 'gpu' takes any. Where there are too few, a job is" in capsys.readouterr().out
    with pytest.raises(UsageError) as refused:
        kinetic.run(accelerator="gpu:3")(hold).run_async(str(go))
    assert str(refused.value) == (
        f"gpu:3 is 3 GPUs, and this machine's drivers list 1 × NVIDIA L4, 1 × Tesla T4 ({job.job_id} has 1). Ask for "
        "what is there ('gpu'), or say backend='local' to have it emulated on the processor"
    )
    assert cli.main(["accelerators", "gpu", "--json"]) == 0
    assert [gpu["job"] for gpu in json.loads(capsys.readouterr().out)["here"]] == [job.job_id, ""]
    (go / "go").touch()
    job.result(timeout=60)


def test_doctor_hears_a_driver_that_does_not_work(home: Path, tools: Callable[..., None]) -> None:
    tools(nvidia_smi="Unable to determine the device handle for GPU0: Unknown Error\n", code=255)
    found = next(check for check in doctor.examine(os.environ).checks if check.name == "gpus")
    assert found.state == "warning"
    assert "Unable to determine the device handle" in found.fix
