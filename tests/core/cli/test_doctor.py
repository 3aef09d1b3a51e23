"""The checks of `doctor` on this machine."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from kinetic_orchestration.cli import doctor, main
from kinetic_orchestration.plan.configuration.settings import SETTINGS


def examine(**environ: str) -> doctor.Report:
    return doctor.examine({**os.environ, **environ})


def check(report: doctor.Report, name: str) -> doctor.Check:
    return next(entry for entry in report.checks if entry.name == name)


def test_a_machine_that_is_well_passes_every_check(home: Path) -> None:
    report = examine()
    assert report.ok, report.checks
    assert [entry.name for entry in report.checks] == (
        ["python", "home", "store", "backend", "disk", "machine", "gpus", "loopback", "uv", "frameworks"]
    )
    assert str(home) in check(report, "home").found
    assert "emulates slices of up to" in check(report, "machine").found
    assert "jax" in check(report, "frameworks").found


def test_every_setting_is_shown_with_its_value_and_where_it_came_from(home: Path, tmp_path: Path) -> None:
    profiles = tmp_path / "profiles.toml"
    profiles.write_text('[default]\nzone = "us-east5-a"\nretention = "3d"\n', encoding="utf-8")
    report = doctor.examine(
        {**os.environ, "KINETIC_PROFILE_FILE": str(profiles), "KINETIC_PROJECT": "ours"}, deployment="staging"
    )
    shown = {entry.name: (entry.value, entry.source) for entry in report.settings}
    assert set(shown) == {*SETTINGS, "profile file"}
    assert shown["home"] == (str(home), "KINETIC_HOME")
    assert shown["project"] == ("ours", "KINETIC_PROJECT")
    assert shown["deployment"] == ("staging", "argument")
    assert shown["zone"] == ("us-east5-a", f"[default] in {profiles}")
    assert shown["retention"] == ("3d", f"[default] in {profiles}")
    assert shown["distributed"] == ("true", "default")
    assert shown["profile file"] == (str(profiles), "KINETIC_PROFILE_FILE")


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("KINETIC_RETENTION", "soon", "'soon'"),
        ("KINETIC_MAX_HOSTS", "many", "give a whole number"),
        ("KINETIC_DISTRIBUTED", "perhaps", "say true or false"),
        ("KINETIC_PROFILE", "nowhere", "no profile file"),
        ("KINETIC_STORE", "gs://bucket/prefix", "KINETIC_DEPLOYMENT"),
    ],
)
def test_a_setting_that_cannot_be_is_named_with_its_fix(home: Path, variable: str, value: str, told: str) -> None:
    report = examine(**{variable: value, "KINETIC_PROFILE_FILE": str(home / "none.toml")})
    assert not report.ok
    assert told in check(report, "settings").fix


def test_a_variable_that_reads_like_a_setting_and_is_none_is_named(home: Path) -> None:
    others = {"KINETIC_PROFILE_FILE": str(home / "none.toml"), "KINETIC_JOB_ID": "job-1", "KINETIC_TEST_OUTPUT": "x"}
    report = examine(KINETIC_STROE="gs://bucket/x", **others)
    assert [entry.name for entry in report.checks].count("settings") == 1
    warned = check(report, "settings")
    assert (warned.state, warned.found.split()[0]) == (doctor.WARNING, "KINETIC_STROE")
    assert warned.fix == "did you mean KINETIC_STORE?"


def test_a_store_that_cannot_be_is_named_with_its_fix(home: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    failed = check(examine(KINETIC_STORE=str(tmp_path / "file")), "store")
    assert failed.state == doctor.FAILED
    assert "KINETIC_STORE" in failed.fix


def test_a_bucket_that_cannot_be_asked_is_named_with_the_next_step(home: Path) -> None:
    none = str(home / "none.json")
    report = examine(
        KINETIC_STORE="gs://bucket/x", KINETIC_DEPLOYMENT="production", GOOGLE_APPLICATION_CREDENTIALS=none
    )
    failed = check(report, "store")
    assert failed.state == doctor.FAILED
    assert failed.fix


def test_a_backend_that_is_not_part_of_this_version_is_named(home: Path) -> None:
    failed = check(examine(KINETIC_BACKEND="pbs"), "backend")
    assert failed.state == doctor.FAILED
    assert "there is no backend 'pbs'" in failed.found
    assert "KINETIC_BACKEND=local" in failed.fix


def test_a_home_in_a_temporary_folder_is_said_aloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod may have a read-only root: the folder is a file here, because root may write everywhere."""
    monkeypatch.delenv("KINETIC_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "data").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    warned = check(doctor.examine(os.environ), "settings")
    assert warned.state == doctor.WARNING
    assert "set KINETIC_HOME" in warned.fix


def test_the_bound_on_emulated_hosts_is_a_setting(home: Path) -> None:
    assert "up to 3 hosts" in check(examine(KINETIC_MAX_HOSTS="3"), "machine").found


def test_doctor_prints_settings_and_checks_and_ends_well(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    shown = capsys.readouterr()
    assert "KINETIC_HOME" in shown.out
    assert "locking files work as they must" in shown.out
    assert "all is well" in shown.err


@pytest.mark.parametrize(
    ("backend", "shown", "hidden"),
    [
        ("local", {"zones", "cluster", "project"}, set()),
        ("gke", {"project", "zone", "cluster", "queue", "network"}, {"zones", "subnetwork", "service_account"}),
        ("kubernetes", {"cluster", "namespace", "network"}, {"zones", "project", "service_account"}),
        ("tpu-vm", {"project", "zones", "network"}, {"cluster", "namespace", "queue"}),
    ],
)
def test_doctor_shows_the_settings_of_the_backend_and_those_that_are_set(
    home: Path, backend: str, shown: set[str], hidden: set[str]
) -> None:
    settings = {entry.name: entry for entry in examine().settings}
    settings["backend"] = replace(settings["backend"], value=backend)
    settings["network"] = replace(settings["network"], value="ours", source="KINETIC_NETWORK")
    found = {entry.name for entry in doctor.concerning(tuple(settings.values()))}
    assert shown <= found
    assert settings.keys() - found >= hidden
    assert "home" in found


def test_doctor_fails_with_the_next_step(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_BACKEND", "pbs")
    assert main(["doctor"]) == 5
    assert "backend: set KINETIC_BACKEND=local" in capsys.readouterr().out


def test_doctor_tells_programs_the_same(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert {entry["name"]: entry["source"] for entry in report["settings"]}["home"] == "KINETIC_HOME"
    assert {entry["state"] for entry in report["checks"]} == {"ok"}
    assert set(report["checks"][0]) == {"name", "state", "found", "fix"}


def test_the_role_is_printed_for_every_namespace_that_the_job_names(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KINETIC_BACKEND", "kubernetes")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))  # nothing is asked of a cluster
    file = tmp_path / "step.py"
    file.write_text(
        "import kinetic_orchestration as kinetic\n"
        "@kinetic.run(accelerator='cpu', cloud=kinetic.Kubernetes(namespaces=['east', 'west'], queue=['a', 'b']))\n"
        "def step(): ...\n"
    )
    assert main(["doctor", f"{file}:step", "--role", "user:ada", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["items"]
    assert [(one["kind"], one["metadata"]["namespace"]) for one in printed] == [
        ("Role", "east"), ("RoleBinding", "east"), ("Role", "west"), ("RoleBinding", "west"),
    ]  # fmt: skip
    assert "localqueues" in json.dumps(printed[0]["rules"])
    monkeypatch.setenv("KINETIC_NAMESPACES", "west,old")
    assert main(["doctor", f"{file}:step", "--role", "user:ada", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["items"]
    assert [one["metadata"]["namespace"] for one in printed[::2]] == ["east", "west", "old"]
    file.write_text(file.read_text(encoding="utf-8").replace(", queue=['a', 'b']", ""), encoding="utf-8")
    for queue in ("usual", ""):
        monkeypatch.setenv("KINETIC_QUEUE", queue)
        assert main(["doctor", f"{file}:step", "--role", "user:ada"]) == 0
        assert ("localqueues" in capsys.readouterr().out) == bool(queue)
