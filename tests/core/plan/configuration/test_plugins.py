"""Backends of other packages are found by their entry points; what is wrong with one is told, and ours come first."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.configuration import plugins
from kinetic_orchestration.plan.values import TRAITS, backends, traits_of
from tests.support.other_package.installed import Site
from tests.support.other_package.installed import site as open_site

pytestmark = pytest.mark.fast

PLATFORM = (
    "from kinetic_orchestration.platforms import Platform, Traits\nHERE = Platform(Traits(service='theirs'), print)\n"
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with open_site(tmp_path / "site", monkeypatch) as found:
        yield found


def test_an_installed_backend_has_a_name_and_traits(site: Site) -> None:
    assert traits_of("theirs") is None
    site.install("theirs", "theirs = theirs:HERE", modules={"theirs.py": PLATFORM})
    assert backends() == [*TRAITS, "theirs"]
    traits = traits_of("theirs")
    assert traits is not None
    assert (traits.service, traits.in_zones, traits.in_project, traits.secret_service) == (
        "theirs",
        False,
        False,
        False,
    )
    assert plugins.announced(TRAITS) == [("theirs", "theirs 1.0 (theirs:HERE)", "")]


@pytest.mark.parametrize(
    ("source", "entry", "said"),
    [
        ("import nothing_of_this_name\n", "theirs:HERE", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("HERE = 1 / 0\n", "theirs:HERE", "cannot be loaded: ZeroDivisionError: division by zero. Update that package"),
        ("", "theirs:HERE", "cannot be loaded: AttributeError: .*HERE"),
        ("HERE = dict()\n", "theirs:HERE", "is a dict and no Platform: .*add-a-platform"),
    ],
)
def test_a_backend_that_cannot_be_used_is_told_with_its_package(site: Site, source: str, entry: str, said: str) -> None:
    site.install("theirs", f"theirs = {entry}", modules={"theirs.py": source})
    with pytest.raises(UsageError, match=rf"the backend 'theirs' of theirs 1\.0 \(theirs:HERE\) .*{said}"):
        traits_of("theirs")
    (found,) = plugins.announced(TRAITS)
    assert found.trouble.startswith("the backend 'theirs' of theirs 1.0")
    assert backends() == [*TRAITS, "theirs"], "its name is known, and why it cannot be had"


def test_two_packages_with_one_name_are_told_and_neither_is_taken(site: Site) -> None:
    for name in ("one", "other"):
        site.install(name, f"theirs = {name}:HERE", modules={f"{name}.py": PLATFORM})
    with pytest.raises(
        UsageError, match=r"announced by one 1\.0 \(one:HERE\) and other 1\.0 \(other:HERE\): uninstall"
    ):
        traits_of("theirs")


def test_nobody_takes_the_name_of_a_backend_of_ours(site: Site) -> None:
    site.install("theirs", "local = theirs:HERE", modules={"theirs.py": PLATFORM})
    assert traits_of("local") == TRAITS["local"]
    assert backends() == list(TRAITS)
    (found,) = plugins.announced(TRAITS)
    assert found.trouble == "this package's own backend 'local' is used: its author has to choose another name"


def test_a_backend_of_ours_is_looked_up_without_reading_what_is_installed(site: Site, tmp_path: Path) -> None:
    """Installed packages are many files, and few launches need others' platforms."""
    site.install("theirs", "theirs = theirs:HERE", modules={"theirs.py": PLATFORM})
    program = (
        "import sys\n"
        "read = []\n"
        "sys.addaudithook(lambda event, about: event == 'open' and read.append(str(about[0])))\n"
        "import kinetic_orchestration as kinetic\n"
        "from kinetic_orchestration.jobs.request import draft\n"
        "asked = draft(kinetic.run(accelerator='cpu')(print)._spec((), {})).open()\n"
        "print(asked.plan.backend, [path for path in read if path.endswith('entry_points.txt')])\n"
        "from kinetic_orchestration.plan.configuration import plugins\n"
        "print(plugins.names(), any(path.endswith('entry_points.txt') for path in read))\n"
    )
    environ = {**os.environ, "KINETIC_HOME": str(tmp_path / "home"), "KINETIC_STORE": str(tmp_path / "store")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environ)
    assert done.stdout.splitlines() == ["local []", "['theirs'] True"], done.stderr


def test_the_names_for_authors_are_there_and_loaded_when_they_are_used() -> None:
    import kinetic_orchestration.platforms as public

    assert set(public.__all__) == set(public._HOMES) <= set(dir(public))
    assert all(getattr(public, name) is not None for name in public.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        public.nothing  # noqa: B018
    program = "import sys; import kinetic_orchestration.platforms; print(sorted(n for n in sys.modules if n[:8] == 'kinetic_'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "['kinetic_orchestration', 'kinetic_orchestration.platforms']\n"
