"""Jobs in an environment of their own, from `requirements=` to an import on the host: offline, with wheels made here."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import ConflictingSettings, JobError, RequirementsError, UsageError
from kinetic_orchestration.host.prepare.environment import with_own
from kinetic_orchestration.packaging.requirements.locks import own_settings
from tests.support.interpreters import OLDEST, interpreter
from tests.support.wheels import offline, sha256, wheel


@pytest.fixture
def links(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose pip installs from one folder, which has alpha and a beta that needs it."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "machine").mkdir()
    for name, value in offline(tmp_path / "machine").items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "machine" / "links"
    wheel(folder, "alpha")
    wheel(folder, "beta", "2.0", ["alpha>=1"])
    return folder


def look() -> dict[str, Any]:
    """The packages in this job's environment."""
    import importlib
    import importlib.util

    versions = {}
    for name in ("alpha", "beta", "local_only"):
        try:
            versions[name] = importlib.import_module(name).version
        except ModuleNotFoundError:
            pass
    there = [name for name in ("numpy", "pytest", "dagster") if importlib.util.find_spec(name) is not None]
    return {"versions": versions, "of the submitter": there, "prefix": sys.prefix}


def run(**options: Any) -> Any:
    return kinetic.run(accelerator="cpu", **options)(look).run_async()


def test_a_list_of_requirements_is_an_environment_of_its_own_that_the_next_job_reuses(home: Path, links: Path) -> None:
    first = run(requirements=["beta"])
    value = first.result()
    assert value["versions"] == {"alpha": "1.0", "beta": "2.0"}
    assert value["of the submitter"] == [], "nothing of the submitter's environment is seen"
    assert Path(value["prefix"]).parent == home / "environments"
    assert "building the environment: 2 packages" in str(events(first))

    second = run(requirements=["beta"])
    assert second.result() == value
    assert "building" not in str(events(second))


def events(job: kinetic.JobHandle[Any]) -> list[str]:
    return [repr(event) for event in job.events()]


def test_a_file_and_a_committed_lock_with_hashes_are_installed_as_they_say(
    links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "requirements.txt"
    asked.write_text("beta  # and what it needs\n")
    assert run(requirements=asked).result()["versions"] == {"alpha": "1.0", "beta": "2.0"}

    alpha = wheel(links, "alpha", "1.5")
    locked = tmp_path / "locked.txt"
    locked.write_text(f"alpha==1.5 --hash=sha256:{sha256(alpha)}\n")
    assert run(requirements=str(locked)).result()["versions"] == {"alpha": "1.5"}

    locked.write_text(f"alpha==1.5 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(JobError, match=r"(?s)environment could not be built.*Hash mismatch"):
        run(requirements=str(locked)).result()


def test_where_packages_come_from_may_be_said_in_the_file_itself(
    links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links.rename(tmp_path / "elsewhere")
    asked = tmp_path / "requirements.txt"
    asked.write_text("--find-links ./elsewhere\nalpha\n")
    assert run(requirements=asked).result()["versions"] == {"alpha": "1.0"}

    asked.write_text("-f ./elsewhere\n--extra-index-url https://me:secret@index.invalid/simple\nalpha==1.0\n")
    with pytest.raises(UsageError, match=r"Write it as \$\{VARIABLE\}"):
        own_settings(asked)


def test_a_variable_in_an_index_address_is_kept_as_one_and_filled_in_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    own = own_settings(["--extra-index-url https://${TOKEN}@index.invalid/simple", "alpha"])
    assert own == {"UV_INDEX": "https://${TOKEN}@index.invalid/simple", "UV_INDEX_STRATEGY": "unsafe-best-match"}
    assert with_own({"UV_INDEX": "https://other.invalid"}, own)["UV_INDEX"] == (
        "https://other.invalid https://secret@index.invalid/simple"
    )


def test_what_cannot_be_resolved_is_refused_before_anything_runs(home: Path, links: Path) -> None:
    with pytest.raises(RequirementsError, match=r"(?s)cannot be resolved.*gamma.*Nothing has run"):
        run(requirements=["gamma"])
    assert kinetic.list_jobs() == []


def installed(site: Path, packed: Path, direct_url: str = "") -> None:
    """Unpack a wheel into `site` like an installer."""
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(site)
        info = next(name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name)
    if direct_url:
        (site / info / "direct_url.json").write_text(direct_url)
        record = site / info / "RECORD"
        record.write_text(record.read_text() + f"{info}/direct_url.json,,\n")


def test_a_distribution_that_is_named_travels_as_files(
    links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in no index; what it depends on is installed from there."""
    site = tmp_path / "site"
    installed(site, wheel(tmp_path / "built", "local_only", "0.3", ["alpha"]))
    monkeypatch.syspath_prepend(str(site))
    value = run(requirements=[], first_party=["local_only"]).result()
    assert value["versions"] == {"alpha": "1.0", "local_only": "0.3"}


def test_a_distribution_installed_from_a_folder_travels_by_itself(
    links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    url = f'{{"url": "{tmp_path.as_uri()}/source", "dir_info": {{"editable": false}}}}'
    installed(site, wheel(tmp_path / "built", "local_only", "0.4"), url)
    monkeypatch.syspath_prepend(str(site))
    assert run(requirements=["alpha"]).result()["versions"] == {"alpha": "1.0", "local_only": "0.4"}


# -- another Python -------------------------------------------------------------------------------------------------


def other() -> tuple[str, str]:
    for version in (OLDEST, "3.9", "3.12", "3.13", "3.11"):
        if version != f"{sys.version_info[0]}.{sys.version_info[1]}" and (path := interpreter(version)):
            return version, path
    pytest.skip("this machine has no other Python")


def test_a_function_does_not_travel_to_another_minor_version(home: Path, links: Path) -> None:
    version, path = other()
    with pytest.raises(ConflictingSettings, match=rf"is Python {version}, and look is pickled by Python 3\."):
        run(requirements=[], python=path)
    assert kinetic.list_jobs() == []


def test_a_command_runs_under_any_python_and_its_scripts_too(home: Path, links: Path, tmp_path: Path) -> None:
    version, path = other()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "main.py").write_text(
        "import alpha, sys; print(alpha.version, sys.version[:4].strip('.'))\n"
    )
    for command in (["python", "main.py"], ["sh", "-c", "python main.py"]):
        job = kinetic.command(command, cwd=tmp_path / "project", requirements=["alpha"], python=path, accelerator="cpu")
        job.result()
        assert job.logs().splitlines()[-1] == f"1.0 {version}"
