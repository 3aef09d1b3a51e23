"""Every public name of Keras Kinetic becomes what docs/reference/keras-kinetic.md says."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.cli import codes, doctor, main
from kinetic_orchestration.cli.parser import make_parser
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.host.process import environ as orders
from kinetic_orchestration.packaging.bundle import unread_requirements
from kinetic_orchestration.packaging.source import ignore
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare import keras_kinetic
from kinetic_orchestration.plan.declare.keras_kinetic import ABSENT, OTHER, row_of, table
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.planner import make_plan
from tests.core.api.keras_kinetic import surface

VERBS = next(action for action in make_parser()._actions if action.dest == "command").choices


def double(number: int) -> int:
    return 2 * number


@pytest.fixture(scope="module")
def batch(shared_home: Path) -> Any:
    """One job of a batch, submitted as a program for Keras Kinetic does it."""
    handle = kinetic.collections.map(kinetic.run(accelerator="cpu")(double).run_async, [21])
    assert handle.results(timeout=60) == [42]
    return handle


@pytest.fixture
def there(batch: Any) -> dict[str, Any]:
    """Return what stands for each class when one of its attributes is asked for."""
    return {
        "JobHandle": batch.jobs[0],
        "BatchHandle": batch,
        "BatchError": kinetic.BatchError("g", [], []),
        "Data": kinetic.Data("."),
        "RemoteCallable": kinetic.run()(double),
        "JobStatus": kinetic.JobStatus,
    }


def test_the_page_is_what_is_generated_from_the_table() -> None:
    assert surface.page()[1] == surface.rendered(), "run: python tests/core/api/keras_kinetic/surface.py --docs"


def test_the_table_has_every_name_of_keras_kinetic_and_no_other() -> None:
    names, of_slices = set(surface.all_names()), set(surface.accelerators())
    assert len(names) > 200 and {"kinetic.run", "JobHandle.debug_attach()", "KINETIC_ZONE", "kinetic up"} <= names
    same = {name for group in surface.SAME.values() for name in group}
    assert [name for name in sorted(names - of_slices - same) if row_of(name) is None] == []
    assert {*table(), *same} <= names and not {*table()} & same
    for row in table().values():
        assert row.why or row.equivalent != row.name, f"{row.name} has no reason"


def test_every_name_of_a_slice_has_as_many_chips() -> None:
    for name in surface.accelerators():
        count = re.search(r"x(\d+)$" if name.startswith("gpu") else r"-(\d+)$", name)
        if name != "cpu":
            assert accelerators.parse(name).chips == (int(count[1]) if count else 1), name
    assert accelerators.parse("cpu").kind == "cpu"


def is_there(name: str, there: dict[str, Any]) -> bool:
    """Tell whether a name of the table can be used here."""
    if re.fullmatch(r"[A-Z_]+", name):
        read = {row.variable for row in settings.SETTINGS.values()}
        sources = (settings.__file__, orders.__file__)
        return name in read or any(f'"{name}"' in Path(source).read_text(encoding="utf-8") for source in sources)
    if name.startswith("profile "):
        return name.removeprefix("profile ") in settings.SETTINGS
    if name.startswith(("kinor ", "kinetic ")):
        return name.partition(" ")[2] in VERBS
    if name.endswith((".txt", ".toml", "ignore")) or name.startswith("~"):
        return name == ignore.KINETIC
    return _can_be_asked_for(name, there)


def _can_be_asked_for(name: str, there: dict[str, Any]) -> bool:
    """`kinetic.name`, `function(parameter)`, `Class.attribute`, `Class.method()` or `Class.method(parameter)`."""
    text, _, parameter = name.removesuffix(")").partition("(")
    owner, _, part = text.rpartition(".")
    if owner.partition(".")[0] == "kinetic" or text == "kinetic":
        try:
            module = importlib.import_module((owner or text).replace("kinetic", "kinetic_orchestration", 1))
        except ModuleNotFoundError:
            return False
        return not owner or hasattr(module, part)
    if owner:
        function = getattr(there[owner], part, None)
        found = hasattr(there[owner], part)
    else:
        function = getattr(kinetic, part, kinetic.collections.map)
        if part == "map" and parameter != "submit_fn":
            function = kinetic.RemoteCallable.run_async_map
        found = True
    return found and (not parameter or parameter in inspect.signature(function).parameters)


def test_what_is_said_to_be_here_is_here(there: dict[str, Any]) -> None:
    for row in table().values():
        if row.verdict == OTHER:
            assert is_there(row.equivalent, there), f"{row.name} is said to be {row.equivalent} here"
    for name in (name for group in surface.SAME.values() for name in group):
        assert is_there(name, there), f"{name} is said to be here"


def test_what_is_said_to_be_absent_is_absent_and_its_reason_is_told(there: dict[str, Any]) -> None:
    for row in table().values():
        if row.verdict != ABSENT:
            continue
        assert not is_there(row.name, there), f"{row.name} is said to be absent"
        owner, _, part = row.name.removesuffix("()").rpartition(".")
        if owner in there or owner == "kinetic":
            with pytest.raises(AttributeError, match=rf"has no attribute '{part}': .+"):
                getattr(there.get(owner, kinetic), part)


def test_what_nobody_has_is_an_ordinary_attribute_error(there: dict[str, Any]) -> None:
    with pytest.raises(AttributeError, match=r"^'JobHandle' object has no attribute 'nothing'$") as caught:
        there["JobHandle"].nothing  # noqa: B018
    assert caught.value.name == "nothing"


def test_the_kept_surface_is_that_of_the_installed_release() -> None:
    if importlib.util.find_spec("kinetic") is None:
        pytest.skip("keras-kinetic is not installed")
    done = subprocess.run([sys.executable, surface.__file__], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == surface.kept()["released"]["names"]


def test_a_handle_goes_through_json(there: dict[str, Any]) -> None:
    job = there["JobHandle"]
    told = json.loads(json.dumps(job.to_dict()))
    again = kinetic.JobHandle.from_dict({**told, "a_later_version": 1})
    assert (again.job_id, again.result(), again.to_dict()) == (job.job_id, 42, told)
    assert (again.group_kind, again.group_index, again.debug) == ("map", 0, False)
    assert (again.project, again.zone, again.bucket_name, again.image_uri) == ("", "", "", "")
    assert again.display_name == f"kinetic-double-{job.job_id}"


@pytest.mark.parametrize("lacks", ["store", "deployment", "job_id"])
def test_a_handle_that_keras_kinetic_wrote_is_refused(there: dict[str, Any], lacks: str) -> None:
    told = {**there["JobHandle"].to_dict(), lacks: None}
    with pytest.raises(UsageError, match="no handle of a job here"):
        kinetic.JobHandle.from_dict(told)


def test_a_module_of_keras_kinetic_says_where_its_names_are() -> None:
    """Also once the package of that name, which has other names, was imported."""
    program = "import kinetic_orchestration as kinetic; kinetic.jobs"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stderr.endswith("'jobs': its names are those of the package\n")
    module = importlib.import_module("kinetic_orchestration.jobs")
    with pytest.raises(AttributeError, match=r"it is kinetic_orchestration\.attach$"):
        module.attach  # noqa: B018


def test_map_takes_a_run_async_alone() -> None:
    with pytest.raises(UsageError, match="map takes the run_async"):
        kinetic.collections.map(double, [1])


SET = {row.name for row in table().values() if row.name.startswith("KINETIC_") and row.verdict == ABSENT}


@pytest.mark.parametrize("name", sorted({*SET, *keras_kinetic.WITHOUT_EFFECT}))
def test_a_setting_without_effect_is_named(name: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinetic_orchestration.plan.messages._shown", set())
    environ = {"KINETIC_HOME": str(home), name: "x"}
    here = settings.load(environ)
    with pytest.warns(UserWarning, match=f"^{name} is set, and has no effect here: .+"):
        make_plan(JobSpec("double", Options(accelerator="cpu"), double), here, environ)
    told = [check for check in doctor._misspelt(environ, here) if check.found.startswith(f"{name} is Keras Kinetic's")]
    assert len(told) == 1 and told[0].state == doctor.WARNING and told[0].fix


def test_a_file_of_profiles_that_is_not_read_is_named_by_doctor(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    here = settings.load({"KINETIC_HOME": str(tmp_path / "home"), "KINETIC_PROFILE_FILE": "/none"})
    assert list(doctor._misspelt(environ, here)) == []
    (tmp_path / ".kinetic").mkdir()
    (tmp_path / ".kinetic" / "profiles.json").write_text('{"current": "mine"}')
    (told,) = doctor._misspelt(environ, here)
    assert told.found.endswith("/.kinetic/profiles.json is Keras Kinetic's and is not read")
    assert "profiles.toml" in told.fix and "KINETIC_PROFILE" in told.fix


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("up --project p", "'up' is not here: no cluster is made"),
        ("pool add --accelerator v5litepod-4", "'pool add' is not here: a cluster's pools are its administrator's"),
        ("jobs logs job-0 -f", "'jobs logs' is 'kinor logs' here"),
        ("jobs list", "'jobs list' is 'kinor jobs' here"),
        ("status", "'status' is 'kinor doctor' here"),
    ],
)
def test_a_command_of_keras_kinetic_says_what_it_is_here(
    line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(line.split())
    assert caught.value.code == codes.USAGE and f"Keras Kinetic's {told}" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["jobs --every", "status --what ID", "accelerators --live", "logs"])
def test_another_mistake_says_nothing_of_it(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(line.split())
    assert "Keras Kinetic" not in capsys.readouterr().err


PROGRAM = "def train():\n    return 1\n"
LISTS = '[project]\nname = "x"\nversion = "1"\ndependencies = ["numpy"]\n'


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"requirements.txt": "numpy"}, "requirements.txt"),
        ({"pyproject.toml": LISTS}, "pyproject.toml"),
        ({"pyproject.toml": LISTS, "requirements.txt": "numpy"}, "requirements.txt"),
        ({"pyproject.toml": LISTS, "jobs/requirements.txt": "numpy"}, "jobs/requirements.txt"),
        ({"pyproject.toml": "[tool.ruff]\nline-length = 88\n"}, None),
        ({"pyproject.toml": "no table"}, None),
        ({"requirements.txt": "numpy", "pyproject.toml": LISTS, "kinetic.lock": "numpy==1"}, None),
        ({}, None),
    ],
)
def test_the_requirements_beside_a_program(
    files: dict[str, str], found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    for name, text in {".kineticignore": "", "jobs/program.py": PROGRAM, **files}.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text, encoding="utf-8")
    (tmp_path / "requirements.txt").write_text("of others", encoding="utf-8")
    source = compile(PROGRAM, str(project / "jobs/program.py"), "exec")
    names: dict[str, Any] = {}
    exec(source, names)
    expected = None if found is None else project / found
    assert unread_requirements(JobSpec("train", Options(), names["train"])) == expected
    assert (
        unread_requirements(JobSpec("train", Options(), argv=("python", "program.py"), cwd=str(project / "jobs")))
        == expected
    )
