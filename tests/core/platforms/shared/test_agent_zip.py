"""The agent as one file: the same bytes each time, complete, and able to be a host by itself."""

from __future__ import annotations

import ast
import compileall
import hashlib
import importlib.util
import io
import json
import marshal
import os
import pickle
import shutil
import subprocess
import sys
import time
import traceback
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.host.prepare import missing_imports
from kinetic_orchestration.platforms.shared import agent_zip
from tests.support.by_hand import intended, start_host

PACKAGE = Path(kinetic.__file__).parent


@pytest.fixture(scope="module")
def built() -> agent_zip.AgentZip:
    return agent_zip.build()


@pytest.fixture
def packed(tmp_path: Path, built: agent_zip.AgentZip) -> Path:
    path = tmp_path / "agent.zip"
    path.write_bytes(built.data)
    return path


@pytest.fixture
def built_once(built: agent_zip.AgentZip, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same agent again, which takes most of the time of what is done with it."""
    monkeypatch.setattr(agent_zip, "build", lambda: built)


def test_the_same_sources_give_the_same_bytes_from_a_copy_with_other_times_and_modes(
    tmp_path: Path, built: agent_zip.AgentZip
) -> None:
    assert agent_zip.build() == built
    copy = tmp_path / "copy"
    shutil.copytree(PACKAGE, copy / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in copy.rglob("*.py"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
        os.chmod(path, 0o600)
    program = "from kinetic_orchestration.platforms.shared import agent_zip as agent; print(agent.__file__, agent.build().digest)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True,
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "elsewhere"},
    )  # fmt: skip
    assert done.stdout.split() == [str(copy / PACKAGE.name / "platforms" / "shared" / "agent_zip.py"), built.digest]


def test_it_holds_the_pure_package_and_cloudpickle_and_nothing_else(packed: Path) -> None:
    with zipfile.ZipFile(packed) as archive:
        names = archive.namelist()
        assert {(entry.date_time, entry.external_attr >> 16) for entry in archive.infolist()} == {
            ((1980, 1, 1, 0, 0, 0), 0o644)
        }
    assert names == sorted(names)
    assert {name.split("/")[1] for name in names if "/" in name} == {"cloudpickle", "kinetic_orchestration"}
    assert [name for name in names if "/" not in name] == ["__main__.py", "child.py"]
    assert "site/kinetic_orchestration/host/process/hook/sitecustomize.py" in names
    assert not [name for name in names if "/test" in name or not name.endswith((".py", ".pyc"))]


ROOMS = {"host", "plan", "program", "protocol"}
STEPS = {
    "__init__", "asked", "evaluation", "inference", "promotion", "search", "searches/__init__", "searches/results",
    "serving",
}  # fmt: skip
ALONE = {"__init__", "collections", "data", "errors", "job_status"}


def test_it_holds_the_rooms_that_hosts_need_and_the_names_that_a_declaration_imports(packed: Path) -> None:
    with zipfile.ZipFile(packed) as archive:
        files = [Path(name) for name in archive.namelist() if "/kinetic_orchestration/" in name]
    names = [file.parts[2:] for file in files if file.suffix == ".py"]
    assert {parts[0] for parts in names if len(parts) > 1} == {*ROOMS, "api"}
    assert {parts[0] for parts in names if len(parts) == 1} == {f"{name}.py" for name in ALONE}
    assert {parts[1] for parts in names if parts[0] == "api"} == {
        "__init__.py",
        "batch.py",
        "decorator.py",
        "handle.py",
        "steps",
    }
    steps = {"/".join(parts[2:]) for parts in names if parts[:2] == ("api", "steps")}
    assert steps == {f"{name}.py" for name in STEPS}


def _copied(tmp_path: Path, *, compiled: bool = False) -> Path:
    """A copy of the package; `compiled`: with its byte code."""
    copy = tmp_path / "edited" / PACKAGE.name
    if compiled:
        compileall.compile_dir(PACKAGE, quiet=2)  # of which most is there
    # Python writes byte code beside its name first, and another worker may just do that.
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("*.pyc.*" if compiled else "__pycache__"))
    return copy


def test_an_edit_of_what_hosts_do_not_need_changes_no_agent(tmp_path: Path, built: agent_zip.AgentZip) -> None:
    """Edit every file of the command line, the life of a job, capacity, models, packaging, platforms, the emulated cloud, and the handles."""
    copy = _copied(tmp_path)
    edited = [
        path
        for path in copy.rglob("*.py")
        if (room := path.relative_to(copy).parts[0]) not in ROOMS
        and room.removesuffix(".py") not in ALONE
        and path.relative_to(copy).as_posix() not in agent_zip._FILES
        and "on_hosts" not in path.parts
    ]
    assert {path.relative_to(copy).parts[0] for path in edited} == {
        "api", "batch.py", "capacity", "cli", "job.py", "jobs", "models", "packaging", "platforms", "reach",
        "telemetry", "testing", "ui", "values.py",
    }  # fmt: skip
    for path in edited:
        with path.open("a") as file:
            file.write("\nEDITED = True\n")
    assert agent_zip.build(copy) == built


EDITED = (
    "__init__.py", "errors.py", "api/decorator.py", "api/on_hosts/handle.py", "host/host.py", "plan/planner/__init__.py",
    "program/loop.py", "protocol/wire/__init__.py", "protocol/added.py",
)  # fmt: skip


def test_an_edit_of_what_hosts_run_changes_the_agent(tmp_path: Path, built: agent_zip.AgentZip) -> None:
    copy = _copied(tmp_path, compiled=True)  # of which the build takes what was not edited
    for file in EDITED:
        with (copy / file).open("a") as changed:
            changed.write("\nEDITED = True\n")
    name_in_zip = {file: name for name, file in agent_zip._INSTEAD.items()}
    names = [name_in_zip.get(file, file) for file in EDITED]
    assert _differ(built, agent_zip.build(copy)) == {*names, *(f"{name}c" for name in names)}


def _differ(one: agent_zip.AgentZip, other: agent_zip.AgentZip) -> set[str]:
    """Return the files of the package that differ between two agents, whose digests are those of their bytes."""
    assert one.digest != other.digest
    found = []
    for agent in (one, other):
        assert agent.digest == hashlib.sha256(agent.data).hexdigest()
        with zipfile.ZipFile(io.BytesIO(agent.data)) as archive:
            found.append({name: archive.read(name) for name in archive.namelist()})
    names = {name for name in found[0].keys() | found[1].keys() if found[0].get(name) != found[1].get(name)}
    return {name.removeprefix("site/kinetic_orchestration/") for name in names}


# Modules that a file in the zip imports, and that a host has or needs not.
ELSEWHERE = {
    "kinetic_orchestration.api.printer": "a call that prints is made where a job is submitted from",
    "kinetic_orchestration.jobs.launch": "a job is submitted by who has the whole package, as `client_only` says",
    "kinetic_orchestration.jobs.request": "a call becomes a request where a job is submitted from",
    "platformdirs": "settings are loaded where jobs are launched from",
}
OF_THE_PROGRAM = {
    *("cloudpickle", "debugpy", "huggingface_hub", "keras", "libtpu", "ml_dtypes", "numpy", "pynvml"),
    *("lightning", "pytorch_lightning", "torch", "transformers"),
    *("etils", "fsspec", "jax", "maxtext", "orbax", "uvicorn"),
}


def test_all_that_a_file_in_it_imports_is_in_it(packed: Path) -> None:
    with zipfile.ZipFile(packed) as archive:
        sources = {
            ".".join(Path(name).with_suffix("").parts[1:]).removesuffix(".__init__"): archive.read(name).decode()
            for name in archive.namelist()
            if "/kinetic_orchestration/" in name and name.endswith(".py")
        }
    missing = {
        imported
        for text in sources.values()
        for imported in _imported(ast.parse(text), set(sources))
        if imported not in sources and imported.partition(".")[0] not in {*sys.stdlib_module_names, *OF_THE_PROGRAM}
    }
    assert missing == set(ELSEWHERE)


def _imported(tree: ast.AST, modules: set[str]) -> Iterator[str]:
    """Every module that code imports, lazily too, but for what only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                yield below if below in modules else str(node.module)
        else:
            yield from _imported(node, modules)


DECLARES = """
from __future__ import annotations

import asyncio
import kinetic_orchestration as kinetic
from kinetic_orchestration import {names}
from kinetic_orchestration.collections import map
from kinetic_orchestration.data import Data as SameData
from kinetic_orchestration.errors import Unsupported

Handles = JobHandle[int] | None
Batches = list[BatchHandle[str]]

@kinetic.run(limits=Limits(), retry=Retry(), cloud=TpuVm(), volumes={{"/data": Data("gs://bucket/folder/")}})
def double(number: int) -> int:
    return 2 * number

@kinetic.run("tpu-v5e-1")
async def later(number: int) -> int:
    return 3 * number

class Trainer:
    @kinetic.run("tpu-v5e-1")
    def train(self, number: int) -> int:
        return 4 * number

assert (double(3), asyncio.run(later(3)), Trainer().train(3)) == (6, 9, 12)
assert not isinstance(double, JobHandle)
refused = [
    lambda: double.run_async(3), lambda: double.run_async_map([1]), lambda: command(["true"]), lambda: attach("job"),
    lambda: list_jobs(), lambda: attach_batch("group"), lambda: JobHandle.from_dict({{}}), lambda: BatchHandle(),
    lambda: map(double.run_async, [1]),
]
for use in refused:
    try:
        use()
    except Unsupported as error:
        print(str(error).partition(":")[0])
try:
    raise BatchError("some")
except kinetic.BatchError:
    pass
"""


def test_a_module_that_declares_jobs_is_imported_on_a_host_and_its_functions_run_there(
    packed: Path, tmp_path: Path
) -> None:
    """With every public name, in a Python that has nothing else."""
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(tmp_path)
    module = DECLARES.format(names=", ".join(name for name in kinetic.__all__ if name != "KineticCallback"))
    program = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); exec(compile({module!r}, 'lib.py', 'exec'))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "error", "-c", program],
        capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
    )  # fmt: skip
    names = [
        "run_async", "run_async_map", "command", "attach", "list_jobs", "attach_batch", "JobHandle.from_dict",
        "BatchHandle", "run_async_map",
    ]  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.splitlines() == [f"{name} is not for use on this host" for name in names]


@pytest.mark.slow
@pytest.mark.turn(2)
def test_a_function_does_all_that_a_program_does_where_its_python_has_the_whole_package(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on this machine: it submits jobs, takes handles, names exceptions, and imports any module of ours."""
    (tmp_path / "declared_lib.py").write_text(
        "import kinetic_orchestration as kinetic\n\n\n@kinetic.run('cpu')\ndef double(number):\n    return 2 * number\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    first = kinetic.run("cpu")(lambda: 1).run_async()
    assert first.result() == 1

    def use(handle: kinetic.JobHandle[int]) -> list[Any]:
        from concurrent.futures import ThreadPoolExecutor

        import declared_lib  # type: ignore[import-not-found]

        import kinetic_orchestration
        from kinetic_orchestration import BatchError, JobHandle
        from kinetic_orchestration.api import links  # noqa: F401

        def fails(number: int) -> int:
            raise ValueError(number)

        with ThreadPoolExecutor(4) as pool:
            jobs = list(pool.map(declared_lib.double.run_async, [1, 2, 3, 4]))
        try:
            kinetic_orchestration.run("cpu")(fails).run_async_map([1, 2]).results()
        except BatchError as error:
            failed = type(error).__name__
        again = kinetic_orchestration.attach(jobs[0].job_id)
        found = [job.result() for job in jobs]
        return [handle.result(), found, failed, isinstance(again, JobHandle), declared_lib.double(21)]

    value = kinetic.run("cpu", first_party=["declared_lib"])(use).run_async(first).result(timeout=120)
    assert value == [1, [2, 4, 6, 8], "BatchError", True, 42]


@pytest.mark.parametrize("unpacked", [True, False])
def test_what_an_agent_lacks_comes_from_an_installed_package_of_the_same_code_alone(
    packed: Path, tmp_path: Path, unpacked: bool
) -> None:
    """Another working copy has the same version, and may call what the agent's modules do not have."""
    site = packed / "site"
    if unpacked:
        site = tmp_path / "site"
        with zipfile.ZipFile(packed) as archive:
            archive.extractall(tmp_path)
    whole = tmp_path / "whole" / PACKAGE.name
    shutil.copytree(PACKAGE, whole, ignore=shutil.ignore_patterns("__pycache__"))
    program = (
        f"import sys; sys.path[:0] = [{str(site)!r}, {str(whole.parent)!r}]\n"
        "from kinetic_orchestration.host.process import child\n"
        "sys.meta_path.append(child.Installed())\n"
        "import kinetic_orchestration.api.links as links\n"
        "print(links.__file__)"
    )

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-I", "-S", "-B", "-c", program], capture_output=True, text=True, timeout=60, check=False
        )

    assert run().stdout == f"{whole / 'api' / 'links.py'}\n"
    rules = whole / "protocol" / "attempt_rules.py"
    rules.write_text(rules.read_text().replace("LOST = ", "LOSS = ", 1))
    assert "No module named 'kinetic_orchestration.api.links'" in run().stderr
    rules.write_bytes((PACKAGE / "protocol" / "attempt_rules.py").read_bytes())
    (whole / "plan" / "added.py").touch()
    assert "No module named 'kinetic_orchestration.api.links'" in run().stderr


def test_a_handle_is_refused_where_there_is_only_the_agents_part(packed: Path, tmp_path: Path, home: Path) -> None:
    handle = kinetic.run("cpu")(lambda: 1).run_async()
    assert handle.result() == 1
    (tmp_path / "handle").write_bytes(pickle.dumps(handle))
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(tmp_path)
    program = f"import pickle, sys; sys.path.insert(0, 'site'); pickle.load(open({str(tmp_path / 'handle')!r}, 'rb'))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=60, check=False,
        cwd=tmp_path,
    )  # fmt: skip
    assert "Unsupported: JobHandle is not for use on this host: jobs are submitted and followed where" in done.stderr


def test_a_module_that_hosts_lack_is_named_with_where_it_is() -> None:
    error = ModuleNotFoundError("No module named 'kinetic_orchestration.jobs'", name="kinetic_orchestration.jobs")
    missing_imports.explain(error, {})
    [note] = error.__notes__
    assert note.startswith("kinetic_orchestration.jobs is only where jobs are launched from: a host has the part of")


@pytest.mark.usefixtures("built_once")
@pytest.mark.parametrize("place", ["folder", "zip"])
def test_a_host_of_the_same_python_compiles_nothing(tmp_path: Path, packed: Path, place: str) -> None:
    top = packed if place == "zip" else agent_zip.unpacked(tmp_path / "home")
    for path in top.rglob("*.py"):
        path.touch()  # when it was unpacked is not when it was made
    assert _compiled(top) == 0


@pytest.mark.usefixtures("built_once")
def test_a_folder_is_compiled_once_by_hosts_of_another_python_and_a_zip_by_each(tmp_path: Path, packed: Path) -> None:
    folder = agent_zip.unpacked(tmp_path / "home")
    for path in folder.rglob("*.pyc"):
        path.rename(path.with_name(path.name.replace(sys.implementation.cache_tag or "", "cpython-27")))
    assert _compiled(folder) > 30
    assert _compiled(folder) == 0
    other = tmp_path / "other.zip"
    with zipfile.ZipFile(packed) as ours, zipfile.ZipFile(other, "w") as theirs:
        for name in ours.namelist():
            data = ours.read(name)
            theirs.writestr(name, b"\x03\xf3\r\n" + data[4:] if name.endswith(".pyc") else data)
    assert _compiled(other) > 30


def _compiled(top: Path) -> int:
    """Return how many modules a host compiles that imports its agent from a folder or a zip."""
    module = "kinetic_orchestration.host.host"
    program = (
        "import sys\nfound = []\n"
        "def heard(event, words):\n    if event == 'compile' and words[1] is not None: found.append(str(words[1]))\n"
        f"sys.addaudithook(heard)\nsys.path.insert(0, {str(top / 'site')!r})\nimport {module} as host\n"
        f"print(host.__file__)\nprint(sum(name.startswith({str(top)!r}) for name in found))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    file, count = done.stdout.split()
    assert file.removesuffix("c") == str(top / "site/kinetic_orchestration/host/host.py")
    return int(count)


def test_it_does_not_remember_where_it_was_made(packed: Path) -> None:
    assert str(PACKAGE.parent).encode() not in packed.read_bytes()


def test_the_zip_itself_is_a_host(home: Path, packed: Path, tmp_path: Path) -> None:
    """No unpacking, no site-packages: a function's value, its lines, and a command with the package beside it."""

    def compute() -> int:
        print("from the zip")
        return 6 * 7

    job = intended(compute)
    start_host(job, sys.executable, packed)
    handle = kinetic.attach(job.job_id)
    assert (handle.result(), handle.logs()) == (42, "from the zip\n")

    (tmp_path / "project").mkdir()
    program = "import kinetic_orchestration as k; print(k.current().job_id)"
    job = intended(argv=["python", "-c", program], cwd=str(tmp_path / "project"))
    start_host(job, sys.executable, packed)
    handle = kinetic.attach(job.job_id)
    handle.result()
    assert handle.logs() == f"{job.job_id}\n"


def test_a_traceback_from_a_host_that_is_a_zip_begins_in_the_users_code(home: Path, packed: Path) -> None:
    def fail() -> None:
        raise ValueError("odd")

    job = intended(fail)
    start_host(job, sys.executable, packed)
    with pytest.raises(ValueError, match="odd") as caught:
        kinetic.attach(job.job_id).result()
    told = "".join(traceback.format_exception(caught.value))
    assert f'File "{__file__}", line {fail.__code__.co_firstlineno + 1}, in fail' in told
    assert "host/process/child.py" not in told


def test_another_python_runs_a_program_of_an_agent_that_is_a_zip(packed: Path) -> None:
    """Thus are devices read, traces converted, and debuggers waited for: no file of a zip is a script."""
    ours = "from kinetic_orchestration.host.process.pipes import program_of; print(program_of('unittest.main'))"
    made = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(packed / 'site')!r}); {ours}"]
    told = subprocess.run(made, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    assert f"sys.path.insert(0, {str(packed / 'site')!r})" in told
    reader = told.replace("unittest.main", "kinetic_orchestration.host.devices.device_reader")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", reader, "gpu", "1"], capture_output=True, text=True, timeout=60,
        env={"PATH": "/nowhere"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "nvidia-smi" in json.loads(done.stdout.splitlines()[0])["note"]


@pytest.mark.parametrize("path", ["/tmp/another.zip", b"/tmp/another.zip"])
def test_the_import_of_a_zip_leaves_all_other_paths_to_python(packed: Path, path: str | bytes) -> None:
    """A program's own, be they of bytes, which Python 3.10 asks about, too."""
    found: dict[str, Any] = {"__name__": "other", "__file__": str(packed / "__main__.py")}
    exec(zipfile.ZipFile(packed).read("__main__.py"), found)
    with pytest.raises(ImportError):
        found["Importer"](path)


# -- unpacked on this machine ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("built_once")
def test_it_is_unpacked_once_with_its_byte_code(tmp_path: Path, built: agent_zip.AgentZip) -> None:
    folder = agent_zip.unpacked(tmp_path)
    assert agent_zip.unpacked(tmp_path) == folder
    assert folder.parent == tmp_path / "agent"
    assert list(tmp_path.iterdir()) == [folder.parent]
    assert list(folder.parent.iterdir()) == [folder]
    cached = folder / "site/kinetic_orchestration/host/__pycache__"
    assert (cached / f"host.{sys.implementation.cache_tag}.pyc").is_file()
    with zipfile.ZipFile(io.BytesIO(built.data)) as archive:
        sources = [name for name in archive.namelist() if name.endswith(".py")]
        assert all((folder / name).read_bytes() == archive.read(name) for name in sources)
        assert (cached / f"host.{sys.implementation.cache_tag}.pyc").read_bytes() == archive.read(
            "site/kinetic_orchestration/host/host.pyc"
        )


@pytest.mark.usefixtures("built_once")
def test_for_other_machines_it_is_packed_once_and_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built: agent_zip.AgentZip
) -> None:
    assert agent_zip.packed(tmp_path).digest == built.digest
    [folder] = (tmp_path / "agent").iterdir()
    [kept] = folder.iterdir()
    assert kept.name == f"{built.digest}.zip"
    with monkeypatch.context() as patched:
        patched.setattr(agent_zip, "build", lambda: pytest.fail("it is here already"))
        again = agent_zip.packed(tmp_path)
        assert (again.digest, again.data()) == (built.digest, built.data)
    os.truncate(kept, 1000)  # a power failure
    assert agent_zip.packed(tmp_path).data() == built.data
    kept.unlink()
    again = agent_zip.packed(tmp_path)
    assert (again.digest, again.data()) == (built.digest, built.data)


# ---- its byte code


def _compiles(copy: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    """Return the digest of the agent of a copy, and how many of its sources were compiled for it."""
    compiled = []

    def heard(source: bytes, *rest: Any, **more: Any) -> Any:
        compiled.append(source)
        return compile(source, *rest, **more)

    agent_zip._sources.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(agent_zip, "compile", heard, raising=False)
        return agent_zip.build(copy).digest, len(compiled)


def test_byte_code_that_python_keeps_is_taken_and_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built: agent_zip.AgentZip
) -> None:
    copy = _copied(tmp_path, compiled=True)
    assert _compiles(copy, monkeypatch) == (built.digest, 0)
    shutil.rmtree(copy / "protocol" / "wire" / "__pycache__")
    gone = len(list((copy / "protocol" / "wire").glob("*.py")))
    assert _compiles(copy, monkeypatch) == (built.digest, gone)
    names = copy / "protocol" / "names.py"
    kept = Path(importlib.util.cache_from_source(names, optimization=""))
    for spoilt in (b"", b"no byte code at all", kept.read_bytes()[:100], kept.read_bytes()[:16] + b"nonsense"):
        kept.write_bytes(spoilt)
        assert _compiles(copy, monkeypatch) == (built.digest, gone + 1)


def test_byte_code_of_an_earlier_text_is_not_taken_whatever_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = _copied(tmp_path, compiled=True)
    names = copy / "protocol" / "names.py"
    made = os.stat(names).st_mtime
    text = names.read_bytes()
    names.write_bytes(text.replace(b'"""', b"'''", 2))  # of the same size
    os.utime(names, (made, int(made) + 0.999))  # and the same second, after it was compiled
    kept = Path(importlib.util.cache_from_source(names, optimization=""))
    os.utime(kept, (made, int(made) + 0.5))
    assert _compiles(copy, monkeypatch)[1] == 1
    names.write_bytes(text + b"\n# more\n")
    assert _compiles(copy, monkeypatch)[1] == 1


@pytest.mark.slow
@pytest.mark.turn(4)
def test_eight_first_jobs_at_once_unpack_it_whole(tmp_path: Path) -> None:
    program = f"from pathlib import Path; from kinetic_orchestration.platforms.shared import agent_zip as agent; print(agent.unpacked(Path({str(tmp_path)!r})))"
    racers = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(8)]
    answers = {racer.communicate(timeout=60)[0].strip() for racer in racers}
    assert answers == {str(agent_zip.unpacked(tmp_path))}
    assert [racer.returncode for racer in racers] == [0] * 8
    assert [path.name for path in (tmp_path / "agent").iterdir()] == [agent_zip.unpacked(tmp_path).name]


@pytest.mark.usefixtures("built_once")
def test_old_versions_go_when_a_new_one_comes_but_not_those_that_jobs_may_still_run_from(tmp_path: Path) -> None:
    parent, now, day = tmp_path / "agent", time.time(), 86400.0
    ages = {"young": 1, "middle": 6, "old": 8, "older": 30, "oldest": 90, ".new-rubble": 8, ".new-busy": 0}
    for name, days in ages.items():
        (parent / name).mkdir(parents=True)
        os.utime(parent / name, (now - days * day, now - days * day))
    newest = agent_zip.unpacked(tmp_path)
    assert {path.name for path in parent.iterdir()} == {newest.name, "young", "middle", ".new-busy"}


@pytest.mark.usefixtures("built_once")
def test_a_version_that_is_used_stays_young(tmp_path: Path) -> None:
    folder = agent_zip.unpacked(tmp_path)
    os.utime(folder, (0, 0))
    agent_zip.unpacked(tmp_path)
    assert folder.stat().st_mtime > time.time() - 60


def test_byte_code_that_cannot_be_the_same_everywhere_is_left_out() -> None:
    """Python 3.14 makes constants of slices, which the version of marshal whose bytes depend on nothing cannot hold."""
    code = compile("1\n", "module.py", "exec")
    assert agent_zip._written(b"head", code) == b"head" + marshal.dumps(code, 2)
    assert agent_zip._written(b"head", code.replace(co_consts=(*code.co_consts, slice(1, 2)))) is None
