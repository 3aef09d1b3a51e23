"""The way in which the hosts of a slice find each other. JAX is a small stand-in here; tests/end_to_end/frameworks has the real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.host.process import topology
from tests.support.interpreters import required

pytestmark = pytest.mark.fast

PORTS = {"jax": 21000, "torch": 21001, "tensorflow": 21002}
SITE = Path(topology.__file__).parents[topology.__name__.count(".")]
HOOK = SITE.joinpath(*topology.HOOK)

# Says on stdout what is done to it, and keeps JAX's rule that a process is initialised once.
JAX = """\
import json, os

class distributed:
    state = None

    @staticmethod
    def initialize(coordinator_address=None, num_processes=None, process_id=None, local_device_ids=None):
        if distributed.state is not None:
            raise RuntimeError("distributed.initialize should only be called once.")
        distributed.state = (coordinator_address, num_processes, process_id)
        print("joined", *distributed.state, flush=True)

    @staticmethod
    def is_initialized():
        return distributed.state is not None

    @staticmethod
    def shutdown():
        distributed.state = None
"""
JOINED = "joined 127.0.0.1:21000 4 2\n"


@pytest.fixture
def jax(tmp_path: Path) -> Path:
    """A folder with the stand-in."""
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "jax.py").write_text(JAX)
    return folder


def variables(index: int = 2, hosts: int = 4, **options: Any) -> dict[str, str]:
    return topology.environment(index, hosts, ["127.0.0.1"] * hosts, PORTS, **options)


def run(jax: Path, program: str, *more_path: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """A command of the third host, as its agent would start it."""
    path = [HOOK, jax, *more_path]
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False,
        env={
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}, **variables(),
            "KINETIC_SITE": str(SITE), "PYTHONPATH": os.pathsep.join(map(str, path)), **environ,
        },
    )  # fmt: skip


def output(jax: Path, program: str, *more_path: Path) -> str:
    done = run(jax, program, *more_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


# -- what each framework is told --------------------------------------------------------------------------------


def test_each_framework_finds_its_usual_variables_on_each_host() -> None:
    found = variables()
    assert json.loads(found.pop("KINETIC_JOIN")) == {"coordinator": "127.0.0.1:21000", "hosts": 4, "index": 2}
    assert json.loads(found.pop("TF_CONFIG")) == {
        "cluster": {"worker": ["127.0.0.1:21002", "127.0.0.1:21003", "127.0.0.1:21004", "127.0.0.1:21005"]},
        "task": {"type": "worker", "index": 2},
    }
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    assert found == {
        "JAX_COORDINATOR_ADDRESS": "127.0.0.1:21000",
        "JAX_COORDINATOR_BIND_ADDRESS": "127.0.0.1:21000",
        "JAX_NUM_PROCESSES": "4",
        "JAX_PROCESS_ID": "2",
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": "127.0.0.1:21000",
        "KERAS_DISTRIBUTION_NUM_PROCESSES": "4",
        "KERAS_DISTRIBUTION_PROCESS_ID": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "21001",
        "RANK": "2",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "2",
        "NODE_RANK": "2",
        "GROUP_WORLD_SIZE": "4",
        "NNODES": "4",
        "ROLE_RANK": "2",
        "ROLE_WORLD_SIZE": "4",
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": "kinetic",
        "GLOO_SOCKET_IFNAME": loopback,
        "TP_SOCKET_IFNAME": loopback,
    }


def test_on_machines_of_their_own_the_hosts_listen_on_their_network() -> None:
    found = topology.environment(1, 2, ["10.0.0.4", "10.0.0.5"], PORTS)
    assert (found["MASTER_ADDR"], found["JAX_COORDINATOR_ADDRESS"]) == ("10.0.0.4", "10.0.0.4:21000")
    assert json.loads(found["TF_CONFIG"])["cluster"]["worker"] == ["10.0.0.4:21002", "10.0.0.5:21003"]
    assert not {"JAX_COORDINATOR_BIND_ADDRESS", "GLOO_SOCKET_IFNAME"} & found.keys()


def test_one_host_needs_nothing_but_torchs_group_of_one() -> None:
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    several = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1",
        "GLOO_SOCKET_IFNAME": loopback, "TP_SOCKET_IFNAME": loopback,
    }  # fmt: skip
    assert variables(index=0, hosts=1, several=True) == several, "Lightning starts the other processes itself"
    assert variables(index=0, hosts=1) == several | {
        "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0", "NODE_RANK": "0", "GROUP_WORLD_SIZE": "1",
        "NNODES": "1", "ROLE_RANK": "0", "ROLE_WORLD_SIZE": "1", "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": "kinetic",
    }  # fmt: skip


def test_distributed_false_leaves_the_variables_for_code_that_joins_by_itself() -> None:
    found = variables()
    found.pop("KINETIC_JOIN")
    assert variables(join=False) == found


def test_all_that_is_set_is_dropped_first_so_that_nothing_is_inherited() -> None:
    ours = {name for name in variables() if not name.endswith("SOCKET_IFNAME")}
    assert all(map(topology.is_stale, ours))


@pytest.mark.parametrize(
    ("name", "stale"),
    [
        ("MEGASCALE_COORDINATOR_ADDRESS", True),
        ("TPU_WORKER_ID", True),
        ("TPU_WORKER_HOSTNAMES", True),
        ("TPU_PROCESS_BOUNDS", True),
        ("CLOUD_TPU_TASK_ID", True),
        ("JAX_COORDINATOR_ADDRESS", True),
        ("JAX_COORDINATOR_PORT", True),
        ("KERAS_DISTRIBUTION_PROCESS_ID", True),
        ("SLURM_PROCID", True),
        ("OMPI_COMM_WORLD_RANK", True),
        ("TORCHELASTIC_RUN_ID", True),
        ("RANK", True),
        ("RANKING", False),
        ("TPU_LIBRARY_PATH", False),
        ("JAX_PLATFORMS", False),
        ("JAX_ENABLE_X64", False),
        ("XLA_FLAGS", False),
        ("KINETIC_OUTPUT_DIR", False),
    ],
)
def test_a_variable_of_a_topology_is_told_from_one_of_the_machine(name: str, stale: bool) -> None:
    assert topology.is_stale(name) is stale


def test_an_emulated_host_has_its_devices_and_threads_enough_for_their_collectives() -> None:
    found = topology.emulated(4)
    assert (found["JAX_PLATFORMS"], found["JAX_NUM_CPU_DEVICES"], found["NPROC"]) == ("cpu", "4", "32")
    assert topology.emulated(16)["NPROC"] == "64"


def test_processes_of_one_machine_count_their_ranks_as_torchrun_does() -> None:
    ports = {"jax": 1, "torch": 2, "tensorflow": 3, "megascale": 9}
    found = [
        topology.environment(index, 4, ["127.0.0.1"] * 4, ports, processes=processes)
        for index, processes in ((0, 4), (3, 4), (3, 1))
    ]
    told = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_WORLD_SIZE")
    assert [tuple(one[name] for name in told) for one in found] == [
        ("0", "0", "4", "0", "1"), ("3", "3", "4", "0", "1"), ("3", "0", "1", "3", "4")
    ]  # fmt: skip


def test_programs_that_share_a_machine_share_its_cores_unless_the_user_says_how() -> None:
    assert topology.threads(8, 1, {}) == {}
    assert topology.threads(8, 2, {}) == {"OMP_NUM_THREADS": "4"}
    assert topology.threads(2, 4, {}) == {"OMP_NUM_THREADS": "1"}
    assert topology.threads(8, 2, {"OMP_NUM_THREADS": "8"}) == {}


# -- the join ---------------------------------------------------------------------------------------------------


def test_the_first_import_of_jax_joins_and_later_ones_do_not(jax: Path) -> None:
    assert output(jax, "print('before'); import jax; import jax; print('after')") == f"before\n{JOINED}after\n"


def test_code_that_does_not_import_jax_joins_nothing(jax: Path) -> None:
    assert output(jax, "import json; print('done')") == "done\n"


def test_code_that_initialises_itself_is_let_through(jax: Path) -> None:
    program = (
        "import jax\n"
        "jax.distributed.initialize()\n"
        "jax.distributed.initialize('elsewhere:1', 4, 2)\n"
        "jax.distributed.initialize(num_processes=4, process_id=2, local_device_ids=[0])\n"
    )
    assert output(jax, program) == JOINED


@pytest.mark.parametrize(
    ("asked", "heard"),
    [("num_processes=8", "for process 2 of 8"), ("process_id=0", "for process 0 of 4"), ("None, 2, 1", "for process 1 of 2")],
)  # fmt: skip
def test_code_that_asks_for_another_size_or_place_hears_it(jax: Path, asked: str, heard: str) -> None:
    done = run(jax, f"import jax; jax.distributed.initialize({asked})")
    assert done.returncode == 1
    assert "already, as process 2 of 4; this code asks" in done.stderr
    assert heard in done.stderr
    assert "distributed=False" in done.stderr


def test_after_a_shutdown_the_same_place_can_be_taken_again(jax: Path) -> None:
    program = "import jax; jax.distributed.shutdown(); jax.distributed.initialize(); jax.distributed.initialize()"
    assert output(jax, program) == JOINED * 2


def test_without_jax_the_usual_error_comes_each_time(tmp_path: Path) -> None:
    program = (
        "import importlib.util\n"
        "for _ in range(2):\n"
        "    try: import jax\n"
        "    except ModuleNotFoundError as error: print(error)\n"
        "print(importlib.util.find_spec('jax'))\n"
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    # -S hides the test environment's own JAX, and with it the hook, which is then asked by hand.
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(HOOK)!r}); import sitecustomize\n{program}"],
        capture_output=True, text=True, timeout=60, check=False,
        env={**variables(), "KINETIC_SITE": str(SITE), "PYTHONPATH": str(empty)},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("No module named 'jax'\n" * 2 + "None\n", "")


def test_an_import_that_failed_can_be_tried_again(jax: Path) -> None:
    (jax / "jax.py").write_text(f"import os\nif 'BROKEN' in os.environ: raise OSError('broken')\n{JAX}")
    program = (
        "import os\n"
        "os.environ['BROKEN'] = '1'\n"
        "try: import jax\n"
        "except OSError as error: print(error)\n"
        "del os.environ['BROKEN']\n"
        "import jax\n"
    )
    assert output(jax, program) == f"broken\n{JOINED}"


# -- who joins --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "program",
    [
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import jax; print(jax.distributed.state)'])",
        "import os\nif os.fork() == 0:\n import jax; print(jax.distributed.state, flush=True); os._exit(0)\nos.wait()",
        "import multiprocessing as m\nwith m.get_context('spawn').Pool(1) as p: print(p.apply(eval, (\"__import__('jax').distributed.state\",)))",
    ],
    ids=["subprocess", "fork", "spawn"],
)
def test_a_worker_of_the_program_never_joins_even_if_it_is_the_first_to_import_jax(jax: Path, program: str) -> None:
    assert output(jax, f"{program}\nimport jax") == f"None\n{JOINED}"


def test_a_worker_that_was_forked_heeds_sigterm_although_jax_catches_it_in_c(jax: Path) -> None:
    program = (
        "import ctypes, os, signal, time, jax\n"
        "ctypes.CDLL(None).signal(signal.SIGTERM, ctypes.c_void_p(1))\n"  # unknown to Python
        "assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL\n"
        "if not (worker := os.fork()):\n    signal.alarm(20)\n    time.sleep(30)\n    os._exit(0)\n"
        "os.kill(worker, signal.SIGTERM)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))\n"
        "os.kill(os.getpid(), signal.SIGTERM)\nprint('goes on')\n"
    )
    assert output(jax, program) == f"{JOINED}-15\ngoes on\n"


def test_a_python_behind_a_shell_joins(jax: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -c "import jax"; true'], capture_output=True, text=True, timeout=60, check=True,
        env={**variables(), "KINETIC_SITE": str(SITE), "PYTHONPATH": f"{HOOK}{os.pathsep}{jax}"},
    )  # fmt: skip
    assert done.stdout == JOINED


def test_a_program_that_executes_itself_anew_joins(jax: Path) -> None:
    program = "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'import jax'])"
    assert output(jax, program) == JOINED


# -- beside another sitecustomize ---------------------------------------------------------------------------------


def test_the_environments_own_sitecustomize_runs_as_itself(jax: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.marker = 'ran'\nhere = __file__\n")
    program = "import sitecustomize, jax; print(marker, sitecustomize.here, sitecustomize.__spec__.origin)"
    assert output(jax, program, own) == f"{JOINED}ran {own}/sitecustomize.py {own}/sitecustomize.py\n"


def test_a_sitecustomize_that_fails_does_not_keep_the_host_from_joining(jax: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("raise RuntimeError('theirs')\n")
    done = run(jax, "import jax", own)
    assert (done.returncode, done.stdout) == (0, JOINED)
    assert "theirs" in done.stderr


OTHERS = {
    "of another version": {"__init__.py": "__version__ = '0.0'\n"},
    "with an agent of another shape": {"__init__.py": "", "host/__init__.py": "raise AttributeError('odd')\n"},
    "not this package": {"__init__.py": "import a_module_that_is_nowhere\n"},
}


@pytest.mark.parametrize("files", OTHERS.values(), ids=OTHERS)
def test_a_package_of_our_name_that_cannot_join_leaves_it_to_the_agents_own(
    jax: Path, tmp_path: Path, files: dict[str, str]
) -> None:
    own, stacks = tmp_path / "own", tmp_path / "stacks"
    stacks.mkdir()
    for name, text in files.items():
        path = own / "kinetic_orchestration" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.marker = 'ran'\n")
    program = (
        "import os, sys, jax, kinetic_orchestration\n"
        "print(marker, kinetic_orchestration.__file__, os.listdir(os.environ['KINETIC_STACKS']) == [str(os.getpid())])\n"
        "from kinetic_orchestration.host.process.frameworks import profiler\n"
        "print(profiler.__file__, sys.path[-1])"
    )
    done = run(jax, program, own, KINETIC_STACKS=str(stacks))
    package = SITE / "kinetic_orchestration"
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        done.stdout == f"{JOINED}ran {package}/__init__.py True\n{package}/host/process/frameworks/profiler.py {SITE}\n"
    )


def test_an_installed_package_that_can_join_stays_usable_as_a_whole(jax: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "kinetic_orchestration").symlink_to(SITE / "kinetic_orchestration")
    program = "import jax, kinetic_orchestration as k; print(k.__file__, k.JobHandle.__module__, isinstance(k.JobHandle, type))"
    told = f"{own}/kinetic_orchestration/__init__.py kinetic_orchestration.api.handle True\n"
    assert output(jax, program, own) == JOINED + told


def test_a_join_that_fails_costs_a_line_and_not_the_environments_own_sitecustomize(jax: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    frameworks = own / "kinetic_orchestration" / "host" / "process" / "frameworks"
    frameworks.mkdir(parents=True)
    (own / "kinetic_orchestration" / "__init__.py").touch()
    (frameworks / "join.py").write_text("def install(): raise LookupError('odd')\n")
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.marker = 'ran'\n")
    done = run(jax, "print(marker)", own)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert done.stderr == "kinetic: this Python does not join its slice: LookupError: odd\n"


@pytest.mark.parametrize("version", ["2.7", "3.8"])
def test_a_python_older_than_the_agent_runs_undisturbed(jax: Path, version: str) -> None:
    python = required(version)
    done = subprocess.run(
        [python, "-c", "print('fine')"], capture_output=True, text=True, timeout=60, check=False,
        env={**variables(), "KINETIC_SITE": str(SITE), "PYTHONPATH": str(HOOK), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("fine\n", "")


# -- on a TPU VM -------------------------------------------------------------------------------------------------


def test_hosts_of_several_slices_are_told_their_slice() -> None:
    ports = {**PORTS, "megascale": 8080}
    found = topology.environment(5, 8, [f"10.0.0.{n}" for n in range(8)], ports, slices=2)
    assert {name: value for name, value in found.items() if name.startswith("MEGASCALE")} == {
        "MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.0:8080", "MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1",
    }  # fmt: skip


def test_on_a_tpu_nothing_is_forced_but_that_its_absence_is_told() -> None:
    assert topology.on_accelerator("tpu", {}) == {"JAX_PLATFORMS": "tpu,cpu", "KINETIC_EXPECT": "tpu"}
    assert topology.on_accelerator("tpu", {"KINETIC_ALLOW_CPU": "1"}) == {}
    assert topology.on_accelerator("tpu", {"KINETIC_ALLOW_CPU": "0"}) != {}
    assert topology.on_accelerator("tpu", {"JAX_PLATFORMS": "cpu"}) == {}


def on_tpu(packages: Path, program: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A command on a TPU VM that has these packages and no others."""
    code = (
        f"import sys; sys.path.insert(0, {str(SITE)!r})\n"
        "from kinetic_orchestration.host.process.frameworks import join as distributed\ndistributed.install()\n"
        f"sys.path[:1] = [{str(packages)!r}]\n{program}"
    )
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60, check=False,
        env={"KINETIC_EXPECT": "tpu", **environ},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("installed", "program", "environ", "told"),
    [
        ("jax", "import jax", {}, "require jax[tpu] instead of jax"),
        ("jax libtpu", "import jax", {}, ""),
        ("torch", "import torch", {}, "require torch-tpu"),
        ("torch torch_tpu", "import torch", {}, ""),
        ("torch torch_xla", "import torch", {}, ""),
        ("torch jax libtpu", "import torch, jax", {}, ""),  # it may only load data
        ("torch jax libtpu", "import torch", {"KERAS_BACKEND": "torch"}, "require torch-tpu"),
        ("tensorflow", "import tensorflow", {}, "require tensorflow-tpu"),
        ("tensorflow libtpu", "import tensorflow", {}, ""),
        ("tensorflow jax libtpu", "import tensorflow, jax", {}, ""),  # it may only read records
        ("tensorflow torch torch_tpu", "import tensorflow", {"KERAS_BACKEND": "tensorflow"}, "require tensorflow-tpu"),
        ("jax", "import os\nif os.fork() == 0:\n    import jax\nelse:\n    sys.exit(os.wait()[1])", {}, ""),
    ],
)
def test_a_framework_that_would_do_without_the_chips_fails_at_its_import(
    tmp_path: Path, installed: str, program: str, environ: dict[str, str], told: str
) -> None:
    for name in installed.split():
        (tmp_path / f"{name}.py").write_text("")
    done = on_tpu(tmp_path, program, **environ)
    assert (done.returncode != 0, told in done.stderr) == (bool(told), True), done.stderr


@pytest.mark.parametrize(
    ("device", "environ", "told"),
    [
        ("cpu", {"KERAS_BACKEND": "torch"}, "set KERAS_TORCH_DEVICE=tpu, or KINETIC_ALLOW_CPU=1"),
        ("tpu", {"KERAS_BACKEND": "torch"}, ""),
        ("cpu", {"KERAS_BACKEND": "jax"}, ""),
    ],
)
def test_keras_on_torch_that_would_do_without_the_chips_fails_at_its_import(
    tmp_path: Path, device: str, environ: dict[str, str], told: str
) -> None:
    (tmp_path / "torch_tpu.py").touch()
    core = tmp_path / "keras" / "src" / "backend" / "torch" / "core.py"
    core.parent.mkdir(parents=True)
    core.write_text(f"get_device = lambda: {device!r}")
    keras = "import os\nclass config:\n    backend = staticmethod(lambda: os.environ['KERAS_BACKEND'])\n"
    (tmp_path / "keras" / "__init__.py").write_text(keras)
    done = on_tpu(tmp_path, "import keras", **environ)
    assert (done.returncode != 0, told in done.stderr) == (bool(told), True), done.stderr


# -- on a GPU ----------------------------------------------------------------------------------------------------


CONFIGURED = "told = {}\nclass config:\n    update = told.__setitem__\n"
TORCH = "__version__ = '2.13.0+cpu'\nclass cuda:\n    is_available = staticmethod(lambda: {})\n"
TENSORFLOW = "__version__ = '2.21'\nclass config:\n    list_physical_devices = staticmethod(lambda kind: {})\n"


@pytest.mark.parametrize(
    ("installed", "program", "environ", "told"),
    [
        ({"jax": ""}, "import jax", {}, r"require jax[cuda12] or jax[cuda13] instead of jax"),
        (
            {"jax": CONFIGURED, "jax_cuda12_plugin": ""},
            "import jax; assert jax.told == {'jax_platforms': 'cuda,cpu'}",
            {},
            "",
        ),
        (
            {"jax": CONFIGURED, "jax_rocm7_plugin": ""},
            "import jax; assert jax.told == {'jax_platforms': 'rocm,cpu'}",
            {},
            "",
        ),
        (
            {"jax": CONFIGURED, "jax_rocm7_plugin": ""},
            "import jax; assert jax.told == {}",
            {"JAX_PLATFORMS": "cpu"},
            "",
        ),
        ({"torch": TORCH.format(False)}, "import torch", {}, "torch 2.13.0+cpu sees no GPU"),
        ({"torch": TORCH.format(True)}, "import torch", {}, ""),
        ({"torch": TORCH.format(False), "jax": CONFIGURED, "jax_cuda13_plugin": ""}, "import torch, jax", {}, ""),
        ({"torch": TORCH.format(False), "jax": ""}, "import torch", {"KERAS_BACKEND": "torch"}, "sees no GPU"),
        ({"tensorflow": TENSORFLOW.format("[]")}, "import tensorflow", {}, "require tensorflow[and-cuda]"),
        ({"tensorflow": TENSORFLOW.format("[kind]")}, "import tensorflow", {}, ""),
    ],
)
def test_a_framework_that_would_do_without_the_gpus_fails_at_its_import(
    tmp_path: Path, installed: dict[str, str], program: str, environ: dict[str, str], told: str
) -> None:
    for name, text in installed.items():
        (tmp_path / f"{name}.py").write_text(text)
    done = on_tpu(tmp_path, program, **{"KINETIC_EXPECT": "gpu", **environ})
    assert (done.returncode != 0, told in done.stderr) == (bool(told), True), done.stderr


def test_the_user_may_allow_a_gpu_host_to_compute_on_its_cpu() -> None:
    assert topology.on_accelerator("gpu", {}) == {"KINETIC_EXPECT": "gpu"}
    assert topology.on_accelerator("gpu", {"KINETIC_ALLOW_CPU": "1"}) == {}
    assert topology.on_accelerator("gpu", {"JAX_PLATFORMS": "cpu"}) == {}
    assert topology.on_accelerator("gpu", {"JAX_PLATFORMS": ""}) != {}


# -- Keras -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("installed", "environ", "configured", "taken"),
    [
        ("jax", {}, "", "jax"),
        ("torch", {}, "", "torch"),
        ("torch jax", {}, "", "jax"),
        ("torch jax tensorflow", {}, "", None),  # Keras's own default
        ("torch jax", {}, "torch", None),  # by its configuration
        ("jax", {}, "torch", "jax"),  # whose framework is not there
        ("torch jax", {"KERAS_BACKEND": "torch"}, "", "torch"),
        ("jax", {"KERAS_BACKEND": "torch"}, "", "torch"),  # was asked for: its error is right
        ("", {}, "", None),
    ],
)
def test_keras_begins_on_a_framework_that_is_there_if_nobody_says_which(
    tmp_path: Path, installed: str, environ: dict[str, str], configured: str, taken: str | None
) -> None:
    for name in installed.split():
        (tmp_path / f"{name}.py").write_text("")
    (tmp_path / "keras.py").write_text("import os\nprint(os.environ.get('KERAS_BACKEND'))\n")
    if configured:
        (tmp_path / "keras.json").write_text(json.dumps({"backend": configured}))
    done = on_tpu(tmp_path, "import keras", **{"KINETIC_EXPECT": "", "KERAS_HOME": str(tmp_path), **environ})
    assert (done.returncode, done.stdout) == (0, f"{taken}\n"), done.stderr


def test_tensorflow_sees_only_the_gpu_of_its_process(tmp_path: Path) -> None:
    """TensorFlow would take memory on all GPUs of the machine."""
    text = TENSORFLOW.format("['first', 'second']")
    (tmp_path / "tensorflow.py").write_text(text + "    set_visible_devices = staticmethod(print)\n")
    done = on_tpu(tmp_path, "import tensorflow", KINETIC_EXPECT="gpu", KINETIC_OWN_DEVICE="1")
    assert (done.returncode, done.stdout) == (0, "second GPU\n"), done.stderr
