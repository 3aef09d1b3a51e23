"""The environment of hosts that are other machines: what code imports becomes a lock; nothing of here is in it."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.cli import main
from kinetic_orchestration.errors import ConflictingSettings, RequirementsError, Unsupported, UsageError
from kinetic_orchestration.packaging.bundle import Bundle, package
from kinetic_orchestration.packaging.requirements import indexes, locks
from kinetic_orchestration.packaging.requirements.locks import Hosts, locked_for
from kinetic_orchestration.packaging.source import imports
from kinetic_orchestration.packaging.source.imports import imported_from_elsewhere
from kinetic_orchestration.packaging.staging import stage
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.hardware.accelerators import parse
from kinetic_orchestration.plan.planner import make_plan
from kinetic_orchestration.plan.values import Staged
from kinetic_orchestration.platforms.registry import open_store
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.content import pins
from kinetic_orchestration.protocol.wire.task import DataPiece
from tests.support.hub_server import TOKEN, HubServer
from tests.support.wheels import offline, sha256, wheel

HOSTS = Hosts(parse("v5e-4"), emulated=True)


class Desk:
    """A project, an environment with what its wheels installed, and a store."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.project = folder / "a project"
        self.project.mkdir()
        (self.project / "pyproject.toml").write_text('[project]\nname = "mine"\nversion = "1"\n')
        self.site = folder / "site-packages"
        self.links = folder / "links"
        self.environ = offline(folder)
        self.home = folder / "home of ours"
        monkeypatch.syspath_prepend(str(self.site))
        monkeypatch.syspath_prepend(str(self.project))

    def install(self, name: str, version: str = "1.0", requires: tuple[str, ...] = (), **files: str) -> None:
        with zipfile.ZipFile(wheel(self.links, name, version, requires, files=files or None)) as archive:
            archive.extractall(self.site)
        sys.modules.pop(name, None)  # another test's
        importlib.invalidate_caches()

    def write(self, name: str, text: str) -> None:
        (self.project / name).parent.mkdir(parents=True, exist_ok=True)
        (self.project / name).write_text(text)

    def function(self, module: str, name: str = "train") -> Callable[..., Any]:
        sys.modules.pop(module, None)
        self.monkeypatch.delitem(sys.modules, module, raising=False)
        importlib.invalidate_caches()  # a file may have come within a tick of its folder's time
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]

    def packed(
        self, function: Callable[..., Any] | None, *args: Any, emulated: bool = True, **options: Any
    ) -> tuple[Bundle, Staged]:
        argv, accelerator = options.pop("argv", ()), options.pop("accelerator", "v5e-4")
        here = settings.load({"KINETIC_HOME": str(self.home), "HOME": str(self.home)})
        spec = JobSpec(
            "job",
            Options(accelerator=accelerator, **options),
            function,
            args,
            argv=argv,
            cwd=str(self.project) if argv else "",
        )
        plan = make_plan(spec, here, {})
        plan = plan.joined([replace(one, backend="tpu-vm", emulated=emulated) for one in plan.each()])
        with tempfile.TemporaryDirectory(dir=self.folder) as spool:
            bundle = package(spec, plan, here, Path(spool), self.environ)
            return bundle, stage(bundle, open_store(self.folder / "store", "test"), here.retention, here.home)

    def locked(self, function: Callable[..., Any] | None, *args: Any, **options: Any) -> list[str]:
        bundle, _ = self.packed(function, *args, **options)
        lock = bundle.environment.lock
        assert lock is not None
        return [line.split(" ")[0] for line in lock.text.splitlines() if line[0] not in " -#"]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


# -- what is imported ---------------------------------------------------------------------------------------------


def test_imports_are_followed_through_the_files_that_a_module_loads(tmp_path: Path) -> None:
    files = {
        "train.py": "import os, alpha.sub\nfrom pkg import model\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import only_types\nif __name__ == '__main__':\n    import as_program\n"
        "def f():\n    import late\n    __import__('by_name')\n",
        "pkg/__init__.py": "import beta\n",
        "pkg/model.py": "from . import layers\nfrom google.cloud import storage\n",
        "pkg/layers.py": "import gamma\n",
        "pkg/never.py": "import unused\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = imported_from_elsewhere([tmp_path / "train.py"], search=[tmp_path])
    assert set(found) == {
        "alpha.sub", "beta", "gamma", "google.cloud", "google.cloud.storage", "late", "by_name",
    }  # fmt: skip
    assert found["gamma"] == (f"{tmp_path}/pkg/layers.py, line 1", imports.LOADED)
    assert found["late"].need == imports.PERHAPS
    program = imported_from_elsewhere([tmp_path / "train.py"], search=[tmp_path], as_program=True)
    assert set(program) - set(found) == {"as_program"}
    assert set(imported_from_elsewhere(["pkg.layers"], search=[tmp_path])) == {"beta", "gamma"}


# -- requirements=None --------------------------------------------------------------------------------------------


def test_code_that_imports_nothing_has_an_empty_lock_and_asks_no_uv(desk: Desk) -> None:
    desk.write("plain.py", "import os, json\ndef train():\n    return os.getpid()\n")
    desk.environ["PATH"] = str(desk.folder / "nothing")
    bundle, staged = desk.packed(desk.function("plain"))
    assert bundle.environment.lock is not None and bundle.environment.lock.text == ""
    assert staged.environment is not None and staged.environment.is_bare
    assert (staged.environment.interpreter, staged.environment.uv, staged.python) == ("", "", "")


def test_what_the_code_imports_is_locked_at_the_versions_installed_here(desk: Desk) -> None:
    """With all that it needs, and nothing that only other files of the project or of this machine import."""
    desk.install("delta", "1.0")
    desk.install("alpha", "1.0", ("delta>=1",))
    desk.install("unused", "1.0")
    wheel(desk.links, "alpha", "2.0", ["delta>=1"])  # newer ones, which are not installed here
    wheel(desk.links, "delta", "3.0")
    desk.write("trains.py", "import helper\ndef train():\n    return helper.value\n")
    desk.write("helper.py", "import alpha\nvalue = alpha.version\n")
    desk.write("other.py", "import unused\n")
    assert desk.locked(desk.function("trains")) == ["alpha==1.0", "delta==1.0"]


def test_an_import_that_is_not_installed_here_is_named_before_anything_is_sent(desk: Desk) -> None:
    desk.install("alpha", "1.0")
    desk.write(
        "lacks.py",
        "import alpha, helps\n"
        "try:\n    import does_without\nexcept ImportError:\n    if not helps:\n        import nor_this\n"
        "def train():\n    import not_here.sub\n    return 1\n",
    )
    desk.write("helps.py", "def later():\n    from nor_here import thing\n")
    with pytest.warns(UserWarning, match="as it is installed here") as caught:
        assert desk.locked(desk.function("lacks")) == ["alpha==1.0"]
    (told,) = [str(entry.message) for entry in caught]
    assert f"nor_here ({desk.project}/helps.py, line 2), not_here ({desk.project}/lacks.py, line 8)" in told
    assert "Install them here" in told
    assert "does_without" not in told
    assert "nor_this" not in told


def test_requirements_that_are_named_are_the_users_own_matter(desk: Desk) -> None:
    wheel(desk.links, "alpha")
    desk.write("named.py", "def train():\n    import not_here\n")
    assert desk.locked(desk.function("named"), requirements=["alpha"]) == ["alpha==1.0"]


def test_a_program_that_cannot_begin_is_refused(desk: Desk) -> None:
    desk.write("runs/program.py", "import beside\nimport not_here\n")
    desk.write("runs/beside.py", "")
    with pytest.raises(RequirementsError, match=r"nothing was sent: not_here \(.*program.py, line 2\)"):
        desk.packed(None, argv=("python", "runs/program.py"))
    desk.write("elsewhere/not_here.py", "")  # the program may know how to find it
    with pytest.warns(UserWarning, match="not_here"):
        desk.packed(None, argv=("python", "runs/program.py"))


def test_what_the_arguments_need_is_locked_too(desk: Desk) -> None:
    desk.install("points", "1.0", (), **{"points.py": "class Point:\n    pass\n"})
    desk.write("takes.py", "def train(point):\n    return point\n")
    points = importlib.import_module("points")
    assert desk.locked(desk.function("takes"), points.Point()) == ["points==1.0"]


def test_a_command_needs_what_the_files_that_it_names_import(desk: Desk) -> None:
    desk.install("alpha", "1.0")
    desk.write("script.py", "if __name__ == '__main__':\n    import alpha\n")
    assert desk.locked(None, argv=("python", "script.py", "--x")) == ["alpha==1.0"]
    desk.write("tool/__main__.py", "import alpha\n")
    assert desk.locked(None, argv=("python", "-m", "tool")) == ["alpha==1.0"]
    desk.write("empty.py", "")
    assert desk.locked(None, argv=("python", "empty.py")) == []


def test_a_lock_that_is_kept_beside_the_project_asks_no_index(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.install("alpha", "1.0")
    desk.write(
        "kept.py",
        "import kinetic_orchestration as kinetic\nimport alpha\n@kinetic.run('v5e-4')\ndef train():\n    return 1\n",
    )
    lock = desk.project / "kinetic.lock"
    for name, value in {**desk.environ, "KINETIC_HOME": str(desk.home)}.items():
        desk.monkeypatch.setenv(name, value)
    assert main(["lock", str(desk.project / "kept.py:train"), "-o", str(lock)]) == 0
    assert lock.read_text().splitlines()[:3] == [
        "# a lock for kinetic-orchestration, v5e-4",
        f"# python {sys.version_info[0]}.{sys.version_info[1]}",
        "# platform x86_64-manylinux_2_35",
    ]
    for path in desk.links.iterdir():
        path.unlink()
    desk.home = desk.folder / "another home"
    desk.write("plainly.py", "import alpha\ndef train():\n    return 1\n")
    assert desk.locked(desk.function("plainly")) == ["alpha==1.0"]
    desk.install("beta", "1.0")
    desk.write("plainly.py", "import alpha, beta\ndef train():\n    return 1\n")
    with pytest.raises(ConflictingSettings, match="has no beta, which the code imports"):
        desk.locked(desk.function("plainly"))
    lock.write_text("# a lock for kinetic-orchestration, v5e-4\n# python 3.9\n")
    with pytest.raises(ConflictingSettings, match=r"was made for Python 3\.9"):
        desk.locked(desk.function("plainly"))


def test_an_image_that_is_named_is_the_environment(desk: Desk) -> None:
    desk.write("imaged.py", "def train():\n    return 1\n")
    here = settings.load({"KINETIC_HOME": str(desk.home)})
    spec = JobSpec("job", Options(accelerator="v5e-4"), desk.function("imaged"))
    plan = replace(make_plan(spec, here, {}), backend="tpu-vm", image="gcr.io/x/y")
    bundle = package(spec, plan, here, desk.folder, desk.environ)
    assert (bundle.environment.kind, bundle.environment.lock) == ("image", None)


# -- nothing of this machine travels ------------------------------------------------------------------------------


def test_wheels_that_only_this_machine_has_go_to_the_store(desk: Desk) -> None:
    made = wheel(desk.links, "alpha")
    apart = wheel(desk.folder / "apart", "private", "3.0")
    desk.write("requirements.txt", f"alpha\n{apart}\n")
    desk.write("wheels_too.py", "def train():\n    return 1\n")
    bundle, staged = desk.packed(desk.function("wheels_too"), requirements=str(desk.project / "requirements.txt"))
    assert bundle.environment.lock is not None
    assert str(desk.folder) not in bundle.environment.lock.text
    assert f"private==3.0 \\\n    --hash=sha256:{sha256(apart)}" in bundle.environment.lock.text
    store = open_store(desk.folder / "store", "test")
    for path in (made, apart):
        assert store.read(names.wheel(sha256(path), path.name)) is not None
    assert staged.environment is not None and staged.environment.settings == {"UV_NO_INDEX": "1"}


def test_a_folder_without_a_wheel_cannot_travel_as_a_requirement(desk: Desk) -> None:
    (desk.folder / "x-1.tar.gz").write_bytes(b"")
    desk.write("requirements.txt", f"x @ file://{desk.folder}/x-1.tar.gz --hash=sha256:{'a' * 64}\n")
    desk.write("sdist.py", "def train():\n    return 1\n")
    with pytest.raises(UsageError, match="is no wheel, so no other machine can install it"):
        desk.packed(desk.function("sdist"), requirements=str(desk.project / "requirements.txt"))


def test_settings_of_an_index_travel_and_its_logins_by_name_only(desk: Desk) -> None:
    netrc = desk.folder / "netrc"
    netrc.write_text("machine private.invalid login me password geheim\n")
    netrc.chmod(0o600)
    environ = {
        "HOME": str(desk.folder),
        "NETRC": str(netrc),
        "PIP_CONFIG_FILE": os.devnull,
        "UV_DEFAULT_INDEX": "https://plain.invalid/simple",
        "UV_INDEX": "one=https://private.invalid/simple file:///here https://two:pass@x.invalid/simple",
        "UV_FIND_LINKS": "/here,https://links.invalid/all",
        "UV_INDEX_ONE_PASSWORD": "geheim",
        "HTTPS_PROXY": "http://of-this-machine",
    }
    told, secret = indexes.for_hosts(environ)
    assert told["UV_DEFAULT_INDEX"] == "https://plain.invalid/simple"
    assert told["UV_FIND_LINKS"] == "https://links.invalid/all"
    assert "HTTPS_PROXY" not in told and "HTTPS_PROXY" not in secret
    assert secret == {
        "UV_INDEX": "one=https://me:geheim@private.invalid/simple https://two:pass@x.invalid/simple",
        "UV_INDEX_ONE_PASSWORD": "geheim",
    }


def test_a_variable_in_an_index_address_travels_by_name(desk: Desk) -> None:
    wheel(desk.links, "alpha")
    file = desk.folder / "requirements.txt"
    file.write_text(
        f"--extra-index-url https://${{INDEX_TOKEN}}@index.invalid/simple\n--find-links {desk.links}\nalpha\n"
    )
    desk.monkeypatch.setenv("INDEX_TOKEN", "geheim")
    environ = {**desk.environ, "INDEX_TOKEN": "geheim"}
    found = locked_for(file, HOSTS, environ=environ)
    assert found.secrets == ("INDEX_TOKEN",)
    assert found.settings["UV_INDEX"] == "https://${INDEX_TOKEN}@index.invalid/simple"
    assert "geheim" not in repr(found)


# -- builds for accelerators --------------------------------------------------------------------------------------


def test_a_real_slice_gets_the_accelerators_build_and_an_emulated_one_the_plain_one(desk: Desk) -> None:
    wheel(desk.links, "libtpu", "0.0.42")
    wheel(desk.links, "jax", "0.10.2", ["libtpu==0.0.42 ; extra == 'tpu'"])
    wheel(desk.links, "tensorflow", "2.20.0")
    wheel(desk.links, "tensorflow_tpu", "2.20.0")
    wheel(desk.links, "text", "1.0", ["tensorflow>=2.20"])
    desk.write("built.py", "def train():\n    return 1\n")
    function = desk.function("built")
    assert desk.locked(function, requirements=["jax"], emulated=True) == ["jax==0.10.2"]
    assert desk.locked(function, requirements=["jax"], emulated=False) == ["jax==0.10.2", "libtpu==0.0.42"]
    assert desk.locked(function, requirements=["tensorflow", "text"], emulated=False) == [
        "tensorflow-tpu==2.20.0",
        "text==1.0",
    ]
    with pytest.raises(RequirementsError, match=r"jax up to 0\.5\.0 names a nightly libtpu"):
        desk.locked(function, requirements=["jax==0.4.1"], emulated=False)


def _wheels_of_jax(desk: Desk) -> None:
    wheel(desk.links, "alpha")
    wheel(desk.links, "libtpu", "0.0.42")
    wheel(desk.links, "jax_cuda12_plugin", "0.10.2")
    extras = ["libtpu==0.0.42 ; extra == 'tpu'", "jax-cuda12-plugin==0.10.2 ; extra == 'cuda12'"]
    wheel(desk.links, "jax", "0.10.2", extras)
    desk.write("chooses.py", "def train():\n    return 1\n")


def test_choices_that_mix_tpus_and_gpus_get_one_environment_for_each_kind_of_build(desk: Desk) -> None:
    """Two locks for four ways; both are in the store, with what lies on this machine alone."""
    _wheels_of_jax(desk)
    wheel(desk.links, "keras", "3.12", ["alpha"])
    mixed = ["v5e-4", "l4", "v6e-4", "a100"]
    bundle, staged = desk.packed(
        desk.function("chooses"), requirements=["keras", "jax"], accelerator=mixed, emulated=False
    )
    locked = [sorted(locks.names_in(one.lock.text)) for one in bundle.environments if one.lock is not None]
    assert locked == [["alpha", "jax", "keras", "libtpu"], ["alpha", "jax", "jax-cuda12-plugin", "keras"]]
    assert bundle.builds == staged.builds == (0, 1, 0, 1)
    assert [staged.at(number).environment for number in range(4)] == [*staged.environments, *staged.environments]
    own, other = (one for one in staged.environments if one is not None)
    assert own.lock != other.lock and (own.python, own.packages) == (other.python, other.packages)
    there = {entry.name for entry in open_store(desk.folder / "store", "test").list("")}
    assert {names.blob(own.lock), names.blob(other.lock)} <= there
    for file in ("libtpu-0.0.42", "jax_cuda12_plugin-0.10.2"):
        path = desk.links / f"{file}-py3-none-any.whl"
        assert names.wheel(sha256(path), path.name) in there


def test_choices_share_one_environment_where_their_builds_are_equal(desk: Desk) -> None:
    _wheels_of_jax(desk)
    function, mixed = desk.function("chooses"), ["v5e-4", "l4"]
    for options, expected in (
        ({"requirements": ["alpha"], "accelerator": mixed}, ["alpha"]),
        ({"requirements": ["jax"], "accelerator": ["v5e-4", "v6e-4"]}, ["jax", "libtpu"]),
        ({"requirements": ["jax"], "accelerator": mixed, "emulated": True}, ["jax"]),
        ({"requirements": [], "accelerator": mixed}, []),
    ):
        bundle, staged = desk.packed(function, **{"emulated": False, **options})  # type: ignore[arg-type]
        assert bundle.environment.lock is not None
        assert sorted(locks.names_in(bundle.environment.lock.text)) == expected
        assert (bundle.others, bundle.builds, staged.others, staged.builds) == ((), (), (), ())
        assert not {"others", "builds"} & staged.to_json().keys()


def test_torch_of_this_environment_becomes_another_build_for_each_kind_of_hardware(desk: Desk) -> None:
    """The versions are those installed here, of both."""
    desk.install("torch", "2.11.0")
    wheel(desk.links, "torch_tpu", "0.2", ["torch>=2.11"])
    desk.write("chooses.py", "import torch\n\n\ndef train():\n    return torch.version\n")
    bundle, _ = desk.packed(desk.function("chooses"), accelerator=["h100x2", "v6e-4"], emulated=False)
    locked = [sorted(locks.names_in(one.lock.text)) for one in bundle.environments if one.lock is not None]
    assert locked == [["torch"], ["torch", "torch-tpu"]]
    assert all(one.lock is not None and "torch==2.11.0" in one.lock.text for one in bundle.environments)


def test_requirements_that_one_of_several_choices_cannot_have_are_refused_by_its_name(desk: Desk) -> None:
    _wheels_of_jax(desk)
    function, mixed = desk.function("chooses"), ["v5e-4", "l4"]
    with pytest.raises(
        ConflictingSettings, match=r"^in the choice of l4: the requirement 'jax\[tpu\]' is a build for other hardware"
    ):
        desk.packed(function, requirements=["jax[tpu]"], accelerator=mixed, emulated=False)
    found = locked_for(["jax"], Hosts(parse("v5e-4"), emulated=False), environ=desk.environ).lock
    assert found is not None
    desk.write("kinetic.lock", f"{locks.HEADING}, v5e-4\n{found.text}")
    desk.write("chooses.py", "import jax\n\n\ndef train():\n    return jax.version\n")
    desk.install("jax", "0.10.2")
    with pytest.raises(
        ConflictingSettings,
        match=r"^in the choice of l4: kinetic\.lock is used as it is, and .*'libtpu' is a build for other",
    ):
        desk.packed(desk.function("chooses"), accelerator=mixed, emulated=False)


def test_torch_is_taken_of_a_release_whose_cuda_the_driver_of_the_image_runs(desk: Desk) -> None:
    wheel(desk.links, "torch", "2.10.0", ["nvidia-cudnn-cu12"])
    wheel(desk.links, "torch", "2.13.0", ["nvidia-cudnn-cu13"])
    wheel(desk.links, "nvidia_cudnn_cu12", "9.1")
    wheel(desk.links, "nvidia_cudnn_cu13", "9.2")
    wheel(desk.links, "diffuser", requires=["torch>=2.12"])
    older, newest = Hosts(parse("l4"), emulated=False, driver=570), Hosts(parse("l4"), emulated=False, driver=580)

    def locked(line: str, hosts: Hosts) -> str:
        return locked_for([line], hosts, environ=desk.environ).lock.text  # type: ignore[union-attr]

    assert "torch==2.10.0" in locked("torch", older)
    assert "torch==2.13.0" in locked("torch", newest)
    for line in ("torch>=2.12", "diffuser"):
        assert "torch==2.13.0" in locked(line, newest)
        with pytest.raises(ConflictingSettings, match="bring nvidia-cudnn-cu13, and CUDA 13 needs driver 580 or later"):
            locked(line, older)
    committed = ["torch==2.13.0 --hash=sha256:" + "0" * 64, "nvidia-cudnn-cu13==9.2 --hash=sha256:" + "0" * 64]
    with pytest.raises(ConflictingSettings, match="CUDA 13 needs driver 580 or later"):
        locked_for(committed, older, environ=desk.environ)


# -- data, agent --------------------------------------------------------------------------------------------------


def test_data_in_a_bucket_travels_as_its_address(desk: Desk) -> None:
    desk.write("data.py", "def train(a):\n    return a\n")
    (desk.project / "rows").mkdir()
    _, staged = desk.packed(desk.function("data"), [Data("gs://bucket/rows/"), Data(desk.project / "rows")])
    assert staged.data[0] == DataPiece("", url="gs://bucket/rows/")
    assert staged.data[1].digest and not staged.data[1].url
    with pytest.raises(Unsupported, match="nothing is mounted on its hosts; leave fuse out"):
        desk.packed(desk.function("data"), Data("gs://bucket/rows/", fuse=True))
    with pytest.raises(Unsupported, match="refused on the tpu-vm backend"):
        desk.packed(desk.function("data"), Data("hf://set?split=train"))
    with pytest.raises(Unsupported, match="its hosts cannot read a folder of this machine"):
        desk.packed(desk.function("data"), Data(desk.project / "rows", stream=True))


def test_data_of_a_hub_travel_as_a_commit_and_a_private_one_takes_a_token_along(desk: Desk) -> None:
    desk.write("hub.py", "def train(a):\n    return a\n")
    with HubServer() as server:
        desk.environ |= {"HF_ENDPOINT": server.url, "HF_TOKEN": TOKEN}
        commit = server.push("owner/tiny", {"config.json": b"{}"})
        bundle, staged = desk.packed(desk.function("hub"), Data("hf://owner/tiny"))
        (piece,) = staged.data
        assert piece.url == f"hf://owner/tiny@{commit}" and bundle.data[0].pinned is not None
        blob = open_store(desk.folder / "store", "test").read(names.blob(piece.digest))
        assert blob is not None and pins.decode(blob.data, piece.digest) == bundle.data[0].pinned
        assert TOKEN.encode() not in blob.data
        commit = server.push("owner/secret", {"config.json": b"{}"}, private=True)
        with pytest.raises(UsageError, match=r'no token for it: hand yours over with capture_env_vars=\["HF_TOKEN"\]'):
            desk.packed(desk.function("hub"), Data("hf://owner/secret"))
        _, staged = desk.packed(desk.function("hub"), Data("hf://owner/secret"), secrets={"HF_TOKEN": "of-the-hub"})
        assert staged.data[0].url.endswith(commit)


def test_the_agent_is_staged_by_its_digest(desk: Desk) -> None:
    desk.write("agent_too.py", "def train():\n    return 1\n")
    bundle, staged = desk.packed(desk.function("agent_too"))
    assert bundle.agent is not None and staged.agent == bundle.agent.digest
    found = open_store(desk.folder / "store", "test").read(names.blob(staged.agent))
    assert found is not None and found.data == bundle.agent.data()
