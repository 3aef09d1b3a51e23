"""Settings: argument > KINETIC_* > profile file > default, and each value remembers where it came from."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.configuration.settings import SETTINGS, load, seconds, with_project

pytestmark = pytest.mark.fast


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A profile file, and nothing else of this machine."""
    profiles = tmp_path / "profiles.toml"
    profiles.write_text(
        '[default]\nproject = "of-default"\nzone = "us-east1-a"\nretention = "2d"\n'
        '[research]\nproject = "of-research"\ndistributed = false\n',
        encoding="utf-8",
    )
    return {"KINETIC_HOME": str(tmp_path / "home"), "KINETIC_PROFILE_FILE": str(profiles)}


def test_argument_before_variable_before_profile_before_default(environ: dict[str, str]) -> None:
    profile = f"[default] in {environ['KINETIC_PROFILE_FILE']}"
    here = load(environ, zone=None)
    assert (here.project, here.sources["project"]) == ("of-default", profile)
    assert (here.zone, here.retention) == ("us-east1-a", 2 * 86400)
    assert (here.backend, here.sources["backend"]) == ("local", "default")
    here = load(environ | {"KINETIC_PROJECT": "of-variable"})
    assert (here.project, here.sources["project"]) == ("of-variable", "KINETIC_PROJECT")
    here = load(environ | {"KINETIC_PROJECT": "of-variable"}, project="of-argument")
    assert (here.project, here.sources["project"]) == ("of-argument", "argument")
    assert set(here.sources) == set(SETTINGS)


def test_an_empty_variable_is_none(environ: dict[str, str]) -> None:
    assert load(environ | {"KINETIC_PROJECT": ""}).project == "of-default"


def test_googles_own_project_variable_comes_last(environ: dict[str, str], tmp_path: Path) -> None:
    assert load(environ | {"GOOGLE_CLOUD_PROJECT": "googles"}).project == "of-default"
    here = load({"KINETIC_HOME": str(tmp_path), "GOOGLE_CLOUD_PROJECT": "googles", "KINETIC_PROFILE_FILE": "/none"})
    assert (here.project, here.sources["project"]) == ("googles", "GOOGLE_CLOUD_PROJECT")


def test_the_first_of_several_clusters_and_namespaces_is_the_usual_one(environ: dict[str, str]) -> None:
    several = environ | {"KINETIC_CLUSTERS": "east, west", "KINETIC_NAMESPACES": "a,b"}
    here = load(several)
    assert (here.clusters, here.namespaces) == (("east", "west"), ("a", "b"))
    assert (here.cluster, here.namespace) == ("east", "a")
    assert (here.sources["cluster"], here.sources["namespace"]) == ("KINETIC_CLUSTERS", "KINETIC_NAMESPACES")
    here = load(several | {"KINETIC_CLUSTER": "west"}, namespace="c")
    assert (here.cluster, here.namespace, here.clusters) == ("west", "c", ("east", "west"))


def test_the_zone_of_a_variable_counts_more_than_the_zones_of_a_profile(tmp_path: Path) -> None:
    profiles = tmp_path / "profiles.toml"
    profiles.write_text('[default]\nzones = ["us-west4-a", "us-west4-b"]\n')
    environ = {"KINETIC_HOME": str(tmp_path), "KINETIC_PROFILE_FILE": str(profiles)}
    assert load(environ).zones == ("us-west4-a", "us-west4-b")
    here = load(environ | {"KINETIC_ZONE": "us-east5-a"})
    assert (here.zones, here.sources["zones"]) == (("us-east5-a",), "KINETIC_ZONE")
    assert load(environ | {"KINETIC_ZONE": "us-east5-a", "KINETIC_ZONES": "us-east5-b"}).zones == ("us-east5-b",)


def test_a_profile_is_chosen_by_name(environ: dict[str, str]) -> None:
    here = load(environ | {"KINETIC_PROFILE": "research"})
    assert (here.project, here.distributed, here.zone) == ("of-research", False, "")
    assert here.sources["distributed"] == f"[research] in {environ['KINETIC_PROFILE_FILE']}"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"KINETIC_PROFILE": "nobody"}, "has no profile 'nobody'; it has default, research"),
        (
            {"KINETIC_PROFILE": "x", "KINETIC_PROFILE_FILE": "/nowhere.toml"},
            "there is no profile file at /nowhere.toml",
        ),
        ({"KINETIC_RETENTION": "-1d"}, "KINETIC_RETENTION is '-1d': it cannot be negative"),
        ({"KINETIC_RETENTION": "long"}, "give seconds, or a text such as '90s'"),
        ({"KINETIC_DISTRIBUTED": "maybe"}, "KINETIC_DISTRIBUTED is 'maybe': say true or false"),
        ({"KINETIC_ON_OWNER_LOST": "cry"}, "it can be 'continue' or 'abort'"),
        ({"KINETIC_MAX_HOSTS": "many"}, "KINETIC_MAX_HOSTS is 'many': give a whole number"),
        (
            {"KINETIC_PRICES": "v5e/mars=1"},
            "KINETIC_PRICES has 'v5e/mars=1': behind '/' comes a region, such as 'us-west4'",
        ),
        ({"KINETIC_PRICES": "v5e/=1"}, "has 'v5e/=1': behind '/' comes a region"),
        ({"KINETIC_PRICES": "v5e/us-west4-a:spot=1"}, "has 'v5e/us-west4-a:spot=1': .* a region, 'us-west4', or"),
        ({"KINETIC_PRICES": "v5e=1,v6e=2,v5e =1"}, "KINETIC_PRICES has two prices of v5e: keep one"),
        ({"KINETIC_PRICES": "v5e=0"}, "KINETIC_PRICES has 'v5e=0': nothing costs 0, .*Leave it out if .* not known"),
        ({"KINETIC_PRICES": "v5e=-1"}, "KINETIC_PRICES has 'v5e=-1': write dollars per chip-hour"),
        ({"KINETIC_STORE": "gs://bucket/x"}, "is shared, so a deployment must be named"),
    ],
)
def test_a_setting_that_cannot_be_says_what_it_can(
    changed: dict[str, str], message: str, environ: dict[str, str]
) -> None:
    with pytest.raises(UsageError, match=message):
        load(environ | changed)


REFUSED = {
    "require_hardware": "maybe", "zone_patience": "long", "prices": "v5e=dear", "billing_key": "a b", "budgets": "a=3EUR",
    "trust_store": "maybe", "namespace": "A_B", "namespaces": "a,A_B", "queue": "A_B", "chips": "v5e=many",
    "priority": "high", "distributed": "maybe", "compile_cache": "maybe", "device_metrics": "maybe", "retention": "-1d",
    "on_owner_lost": "cry", "max_hosts": "many", "no_tty_debug": "maybe",
}  # fmt: skip


def test_every_setting_that_can_be_refused_is_tried_below() -> None:
    free = {"_plain", "_several", "_table", "_origin"}  # any text is one
    assert {name for name, row in SETTINGS.items() if row.read.__name__ not in free} == set(REFUSED)


@pytest.mark.parametrize("name", REFUSED)
def test_an_error_of_a_setting_names_the_variable_the_profile_or_the_argument_that_has_it(
    name: str, environ: dict[str, str], tmp_path: Path
) -> None:
    variable, text = SETTINGS[name].variable, REFUSED[name]
    with pytest.raises(UsageError, match=rf"^{variable} (is|has) "):
        load(environ | {variable: text})
    with pytest.raises(UsageError, match=rf"^{name} (is|has) "):
        load(environ, **{name: text})
    (tmp_path / "p.toml").write_text(f'[default]\n{name} = "{text}"\n', encoding="utf-8")
    environ = {"KINETIC_HOME": str(tmp_path), "KINETIC_PROFILE_FILE": str(tmp_path / "p.toml")}
    with pytest.raises(UsageError, match=rf"^{name} \(\[default\] in {re.escape(str(tmp_path))}/p.toml\) (is|has) "):
        load(environ)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[default", "cannot be read"),
        ('[default]\ncolour = "red"\n', "sets 'colour', which is no setting; known: home"),
    ],
)
def test_a_profile_file_that_cannot_be_read_or_means_nothing(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        load({"KINETIC_HOME": str(tmp_path), "KINETIC_PROFILE_FILE": str(tmp_path / "p.toml")})


@pytest.mark.parametrize(
    ("text", "value"), [("90s", 90), ("15m", 900), ("2h", 7200), ("1d", 86400), ("7", 7), (1.5, 1.5)]
)
def test_durations_have_units(text: Any, value: float) -> None:
    assert seconds("run", text) == value
    assert seconds("run", None) is None


def test_the_store_is_below_the_home_and_always_a_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host's working directory is another than the submitter's."""
    monkeypatch.chdir(tmp_path)
    none = {"KINETIC_PROFILE_FILE": "/none", "KINETIC_HOME": "own home"}
    here = load(none)
    assert (here.home, here.store) == (tmp_path / "own home", str(tmp_path / "own home" / "store"))
    assert load(none, store="a store").store == str(tmp_path / "a store")
    for host in ("", "localhost"):
        assert load(none, store=f"file://{host}{tmp_path}/with%20space").store == f"{tmp_path}/with space"
    assert load(none, store="gs://b/p", deployment="d").store == "gs://b/p"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load(none, store="~/s").store == str(tmp_path / "s")


@pytest.mark.parametrize("store", ["gs://b/p", "/a/store"])
@pytest.mark.parametrize("backend", ["", "local", "tpu-vm"])
def test_a_project_that_becomes_known_later_counts_as_an_argument(tmp_path: Path, store: str, backend: str) -> None:
    environ = {
        "KINETIC_PROFILE_FILE": "/none", "KINETIC_HOME": str(tmp_path), "KINETIC_STORE": store,
        "KINETIC_DEPLOYMENT": "d", "KINETIC_BACKEND": backend, "GOOGLE_CLOUD_PROJECT": "other",
    }  # fmt: skip
    assert with_project(load(environ), "p") == load(environ, project="p")


def test_the_default_home_follows_the_platforms_conventions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    here = load({"KINETIC_PROFILE_FILE": "/none"})
    assert here.sources["home"] == "default" and here.home.name == "kinetic-orchestration"
    if sys.platform == "linux":
        assert here.home == tmp_path / "data" / "kinetic-orchestration"


def test_a_home_that_cannot_be_written_is_replaced_by_a_temporary_folder_said_aloud(tmp_path: Path) -> None:
    """Ephemeral pods and read-only roots have such homes; a job runs there all the same."""
    (tmp_path / "file").touch()
    program = (
        "import kinetic_orchestration as kinetic\n"
        "print(kinetic.run(accelerator='cpu')(lambda: 42)())\n"
        "from kinetic_orchestration.plan.configuration.settings import load\n"
        "print(load().home)\n"
    )
    environ = {"PATH": "/usr/bin:/bin", "XDG_DATA_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60
    )
    value, home = done.stdout.splitlines()
    assert value == "42" and home.startswith(str(tmp_path / "kinetic-orchestration-")), done.stderr
    assert f"{tmp_path}/file/kinetic-orchestration cannot be used (Not a directory), so jobs are kept in {home}" in (
        done.stderr
    )
    assert "set KINETIC_HOME" in done.stderr


def test_a_home_that_was_asked_for_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"the home .*/file/home \(KINETIC_HOME\) cannot be used: Not a directory"):
        load({"KINETIC_HOME": str(tmp_path / "file" / "home"), "KINETIC_PROFILE_FILE": "/none"})


def test_a_bucket_that_has_lost_a_slash_is_not_taken_for_a_folder(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"the store 'gs:/bucket/kinetic' \(argument\) has lost a slash"):
        load(environ, store=Path("gs://bucket/kinetic"))
