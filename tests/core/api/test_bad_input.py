"""Bad input gets a clear error before anything runs: one test for each sentence."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import (
    ConflictingSettings,
    CredentialsError,
    DataNotFound,
    JobNotFound,
    NewerWire,
    NotAFunction,
    NotPicklable,
    StoreError,
    TooBig,
    UnknownAccelerator,
    Unsupported,
    UsageError,
)
from kinetic_orchestration.testing import Emulator
from tests.support.bucket import unsummed


def nothing() -> None:
    raise AssertionError("it ran")


def jobs_in(home: Path) -> list[Path]:
    return list((home / "store").glob("*/jobs/*/out/*"))


@pytest.fixture(autouse=True)
def nothing_ran(home: Path) -> Any:
    yield
    assert not jobs_in(home), "something ran"


@pytest.mark.parametrize(("name", "near"), [("v5e-17", "v5e-16"), ("v5f-8", "v5e-8"), ("gpu-a101", "a100x4")])
def test_an_unknown_accelerator_lists_what_is_near(name: str, near: str) -> None:
    with pytest.raises(UnknownAccelerator, match=near):
        kinetic.run(accelerator=name)


def test_a_non_function() -> None:
    with pytest.raises(NotAFunction, match="functions and other callables, not int") as caught:
        kinetic.run(accelerator="cpu")(3)  # type: ignore[call-overload]
    assert isinstance(caught.value, TypeError)


def test_run_without_its_parentheses_shows_the_fix() -> None:
    with pytest.raises(UsageError, match=r"write @kinetic.run\(\) with parentheses"):
        kinetic.run(nothing)  # type: ignore[arg-type]


def test_a_lambda_with_an_unpicklable_closure_is_named_with_the_way_to_the_culprit() -> None:
    class Session:
        def __init__(self) -> None:
            self.lock = threading.Lock()

    session = Session()
    with pytest.raises(
        NotPicklable, match=r"<lambda> cannot be sent: closure variable 'session' of .*attribute \.lock"
    ):
        kinetic.run(accelerator="cpu")(lambda: session.lock)()


def test_an_argument_that_cannot_be_pickled_is_named() -> None:
    take = kinetic.run(accelerator="cpu")(lambda a, b: None)
    with pytest.raises(NotPicklable, match=r"argument 2, item 'x': cannot pickle '_thread.lock'"):
        take(1, {"x": threading.Lock()})
    with pytest.raises(NotPicklable, match="keyword argument 'b'"):
        take(1, b=threading.Lock())


def yields() -> Any:
    yield 1


async def yields_later() -> Any:
    yield 1


class Yields:
    def __call__(self) -> Any:
        yield 1


@pytest.mark.parametrize("function", [yields, yields_later, Yields(), Yields().__call__, functools.partial(yields)])
def test_a_generator_is_refused_before_there_is_a_job(function: Any) -> None:
    with pytest.raises(NotAFunction, match=r"is a generator.*return them, as list\(\.\.\.\)"):
        kinetic.run(accelerator="cpu")(function)


@pytest.mark.parametrize("cache", [functools.lru_cache, functools.cache])
def test_a_cached_function_shows_the_fix(cache: Callable[..., Any]) -> None:
    with pytest.raises(NotAFunction, match=r"lru_cache or cache.*Decorate the function below the cache"):
        kinetic.run(accelerator="cpu")(cache(nothing))


@pytest.mark.parametrize("kind", [classmethod, staticmethod])
def test_wrongly_ordered_method_decorators_show_the_fix(kind: Any) -> None:
    with pytest.raises(NotAFunction, match=rf"@{kind.__name__}\n    @kinetic.run\(...\)\n    def "):

        class Trainer:
            @kinetic.run(accelerator="cpu")
            @kind
            def train(cls: Any) -> None: ...


def test_a_data_disk_is_refused_with_what_to_use() -> None:
    """It was attached and never mounted, so the program found nothing of it."""
    with pytest.raises(UsageError, match=r"data_disks.*no disk is mounted.*Data\('gs://"):
        kinetic.TpuVm(data_disks=["corpus"])
    assert kinetic.TpuVm(zones=["us-east5-a"]) == dataclasses.replace(kinetic.TpuVm(), zones=["us-east5-a"])
    assert "data_disks" not in dataclasses.asdict(kinetic.TpuVm())


@pytest.mark.parametrize("field", ["provision", "run", "total", "stall"])
@pytest.mark.parametrize("value", [-1, "-5m", "soon", float("nan"), None.__class__])
def test_negative_and_meaningless_limits(field: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"limits.{field} is "):
        kinetic.run(accelerator="cpu", limits=kinetic.Limits(**{field: value}))


def test_negative_timeouts_and_retries(home: Path) -> None:
    with pytest.raises(UsageError, match=r"retry.user is -1: it cannot be negative"):
        kinetic.run(accelerator="cpu", retry=kinetic.Retry(user=-1))


def test_a_data_path_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match=f"{tmp_path}/nowhere does not exist") as caught:
        kinetic.Data(str(tmp_path / "nowhere"))
    assert isinstance(caught.value, FileNotFoundError)


def test_a_data_that_was_removed_before_the_call(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    data = kinetic.Data(tmp_path / "data")
    (tmp_path / "data").rmdir()
    with pytest.raises(DataNotFound, match=f"{tmp_path}/data is not there any more"):
        kinetic.run(accelerator="cpu")(lambda data: None)(data)


def test_a_data_in_a_set_or_as_a_key(tmp_path: Path) -> None:
    data = kinetic.Data(tmp_path)
    take = kinetic.run(accelerator="cpu")(lambda data: None)
    with pytest.raises(UsageError, match=r"is in a set: .*use a list or a tuple"):
        take({"nested": {data}})
    with pytest.raises(UsageError, match="in the keys of a dict"):
        take({data: 1})


@pytest.mark.parametrize("address", ["gs://bucket/data/", "hf://imdb?split=train"])
def test_data_that_this_backend_cannot_read_is_refused_by_name(address: str) -> None:
    with pytest.raises(Unsupported, match=rf"Data\('{address[:5]}.*is refused on the local backend"):
        kinetic.run(accelerator="cpu")(lambda data: None)(kinetic.Data(address))


def test_a_volume_path_that_is_not_absolute_or_no_data(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'data' is not absolute: write it from the root"):
        kinetic.run(accelerator="cpu", volumes={"data": kinetic.Data(tmp_path)})
    with pytest.raises(UsageError, match=r"wrap it, as Data\('/x'\)"):
        kinetic.run(accelerator="cpu", volumes={"/data": "/x"})  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="volumes must be a dict"):
        kinetic.run(accelerator="cpu", volumes=[kinetic.Data(tmp_path)])  # type: ignore[arg-type]


def test_an_absolute_volume_path_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    taken, file = tmp_path / "taken", tmp_path / "file"
    taken.mkdir()
    file.touch()
    for mount, problem in ((taken, "something else is there"), (file / "data", f"{file} is no folder")):
        step = kinetic.run(accelerator="cpu", volumes={str(mount): kinetic.Data(file)})(nothing)
        with pytest.raises(
            UsageError, match=f"{mount} cannot be made on this machine: {problem}.*as an argument instead"
        ):
            step()


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_volume_path_that_this_user_may_not_make(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="/ is not writable for this user"):
        kinetic.run(accelerator="cpu", volumes={"/kinetic-data": kinetic.Data(tmp_path)})(nothing)()


def test_an_unwritable_store_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=rf"{tmp_path}/file/store.*KINETIC_STORE"):
        kinetic.run(accelerator="cpu", store=str(tmp_path / "file" / "store"))(nothing)()


FULL = """
import resource, signal, sys
import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import StoreError

def size(data):
    return len(data)

step = kinetic.run(accelerator="cpu", key="full")(size)
data = bytes(30 << 20)
if sys.argv[1] == "full":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10 << 20, resource.RLIM_INFINITY))
try:
    print(step(data))
except (StoreError, OSError) as error:
    print(type(error).__name__, error)
"""


def test_a_full_store_says_so_and_nothing_half_written_is_ever_taken_for_whole(home: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk. Once there is room, the same call just works."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(FULL), encoding="utf-8")

    def run(how: str) -> str:
        done = subprocess.run([sys.executable, str(program), how], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    said = run("full")
    assert "Error" in said and "File too large" in said
    assert not jobs_in(home)
    assert run("free") == f"{30 << 20}\n"
    shutil.rmtree(home / "store")  # for this one was meant to run


def test_a_store_written_by_a_newer_version_is_refused(home: Path) -> None:
    name = "new"
    store = home / "store" / "local"
    step = kinetic.run(accelerator="cpu", key=name)(nothing)
    from kinetic_orchestration.plan.identity import job_id, of
    from kinetic_orchestration.platforms.registry import open_store

    job = job_id(of("local", name), 1)
    opened = open_store(store.parent, "local")
    opened.create(f"jobs/{job}/in/spec.json", json.dumps({"wire": 99}).encode())
    for ask in (lambda: kinetic.attach(job), step):
        with pytest.raises(NewerWire, match=r"wire version 99.*upgrade"):
            ask()
    with pytest.warns(UserWarning, match=r"left out.*wire version 99"):
        assert kinetic.list_jobs() == []


def test_a_job_on_a_backend_that_is_not_known_here_hides_no_other(home: Path) -> None:
    from kinetic_orchestration.api.handle import all_jobs
    from kinetic_orchestration.platforms.registry import open_store

    job = kinetic.run(accelerator="cpu")(abs).run_async(-1)
    assert job.result() == 1
    opened = open_store(home / "store", "local")
    spec = opened.read(f"jobs/{job.job_id}/in/spec.json")
    assert spec is not None
    fields = unsummed(spec.data)
    fields["plan"]["backend"] = "later"
    opened.create("jobs/job-later/in/spec.json", json.dumps(fields).encode())
    with pytest.warns(UserWarning, match=r"job-later is left out: .*no backend 'later'"):
        assert [handle.job_id for handle in all_jobs()] == [job.job_id]
    shutil.rmtree(home / "store")  # for this one was meant to run


def test_a_job_id_that_does_not_exist() -> None:
    with pytest.raises(JobNotFound, match=r"no job 'job-1' in .*kinetic-orchestration jobs"):
        kinetic.attach("job-1")


@pytest.mark.parametrize("name", ["../../etc", "job-1/../..", "", "job 1"])
def test_a_job_id_that_could_be_none_is_not_found_either(name: str) -> None:
    with pytest.raises(JobNotFound, match="there is no job"):
        kinetic.attach(name)


def test_a_cloud_by_its_name() -> None:
    with pytest.raises(
        UsageError, match="cloud is 'aws', and should be TpuVm or Compute or Kubernetes or Slurm or None"
    ):
        kinetic.run(cloud="aws")  # type: ignore[arg-type]


def test_two_conflicting_settings(tmp_path: Path) -> None:
    with pytest.raises(ConflictingSettings, match=r"accelerator='v5e-8' and cloud=TpuVm\(accelerator_type='v5p-8'\)"):
        kinetic.run(accelerator="v5e-8", cloud=kinetic.TpuVm(accelerator_type="v5p-8"))
    with pytest.raises(ConflictingSettings, match="name the requirements too"):
        kinetic.run(accelerator="cpu", python="3.12")
    with pytest.raises(ConflictingSettings, match="say where: keep one"):
        kinetic.run(zone="us-east5-a", cloud=kinetic.TpuVm(zones=["us-east5-b"]))
    with pytest.raises(ConflictingSettings, match="never a spot slice"):
        kinetic.run(spot=True, cloud=kinetic.TpuVm(reservation="mine"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"cloud": kinetic.TpuVm(num_slices=2), "backend": "local"},
            "num_slices=….*not possible on the local backend: only slices of TPUs are joined",
        ),
    ],
)
def test_options_of_ours_that_mean_nothing_here_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        kinetic.run(accelerator="cpu", **options)(nothing)()


def test_a_backend_that_is_none() -> None:
    with pytest.raises(UsageError, match="no backend 'moon'; there is local, tpu-vm"):
        kinetic.run(accelerator="cpu", backend="moon")(nothing)()


def test_hosts_elsewhere_cannot_read_a_folder_of_this_machine() -> None:
    with pytest.raises(UsageError, match=r"tpu-vm backend needs a store that its hosts can reach.*name a bucket"):
        kinetic.run(accelerator="v5e-1", backend="tpu-vm")(nothing)()


@pytest.mark.parametrize("option", ["capture_env_vars", "first_party"])
def test_a_text_where_a_list_belongs(option: str) -> None:
    with pytest.raises(UsageError, match=rf"{option} is a list of names, such as \['HOME'\]"):
        kinetic.run(accelerator="cpu", **{option: "HOME"})  # type: ignore[arg-type]


def test_a_cluster_whose_login_program_is_missing(
    tpu_cloud: Emulator, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kubeconfig"
    login = {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin", "interactiveMode": "Never"}
    config = {
        "current-context": "prod",
        "contexts": [{"name": "prod", "context": {"cluster": "prod", "user": "ada"}}],
        "clusters": [{"name": "prod", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "ada", "user": {"exec": {**login, "installHint": "Install it with apt."}}}],
    }
    path.write_text(json.dumps(config), encoding="utf-8")
    for name, value in {
        **tpu_cloud.environ(), "KINETIC_HOME": str(home), "KINETIC_BACKEND": "kubernetes", "KUBECONFIG": str(path),
        "KINETIC_SIGNING_KEY": "0123456789abcdef",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with pytest.raises(CredentialsError, match=r"'no-such-plugin', which is not here\. Install it with apt"):
        kinetic.run(accelerator="l4")(nothing)()
    written = {call.where.rpartition("/")[2] for call in tpu_cloud.storage.calls if call.verb not in ("get", "list")}
    assert written <= {"deployment.json"}, "whose the prefix is, and nothing of a job"


def test_more_hosts_than_this_machine_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_MAX_HOSTS", "3")
    with pytest.raises(TooBig, match=r"v5e-16 has 4 hosts.*can hold 3"):
        kinetic.run(accelerator="v5e-16")(nothing)()


def test_a_command_that_is_none(tmp_path: Path) -> None:
    for argv in ("python train.py", [], ["python", 3]):
        with pytest.raises(UsageError, match="a command is a list of strings"):
            kinetic.command(argv)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no option 'acelerator': did you mean accelerator"):
        kinetic.command(["true"], acelerator="cpu")
    with pytest.raises(UsageError, match="nowhere does not exist"):
        kinetic.command(["true"], cwd=tmp_path / "nowhere", accelerator="cpu")
    with pytest.raises(UsageError, match=r"'-m', 'debugpy', '--listen'"):
        kinetic.command(["true"], accelerator="cpu", debug=True)
