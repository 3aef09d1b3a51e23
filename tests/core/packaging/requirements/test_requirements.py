"""The way from requirements to a lock: offline, with the real uv and handmade wheels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kinetic_orchestration.errors import ConflictingSettings, RequirementsError, UsageError
from kinetic_orchestration.packaging.call.first_party import FirstParty, distributions_as_files
from kinetic_orchestration.packaging.requirements.indexes import pip_files, pip_settings
from kinetic_orchestration.packaging.requirements.locks import Lock, environment, lock, uv_settings
from kinetic_orchestration.packaging.requirements.resolution import find_python, find_uv
from tests.support.wheels import offline, sha256, wheel

pytestmark = pytest.mark.fast

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    links = tmp_path / "links"
    wheel(links, "alpha")
    wheel(links, "beta", "2.0", ["alpha>=1"])
    wheel(links, "gamma", "1.0", ["mylib"])
    return offline(tmp_path)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "locks"


def names(found: Lock) -> list[str]:
    return [line.split("==")[0].split(" ")[0] for line in found.text.splitlines() if line[0] not in " -"]


# -- what a lock is ---------------------------------------------------------------------------------------------


def test_without_requirements_the_job_has_this_interpreters_environment(environ: dict[str, str]) -> None:
    found = environment(None, environ=environ)
    assert (found.kind, found.python, found.interpreter, found.lock) == (
        "current",
        HERE,
        sys.executable,
        None,
    )


def test_a_list_becomes_a_lock_of_everything_with_hashes(environ: dict[str, str], tmp_path: Path) -> None:
    found = lock(["beta"], environ=environ)
    links = tmp_path / "links"
    assert found.text == (
        f"alpha==1.0 \\\n    --hash=sha256:{sha256(links / 'alpha-1.0-py3-none-any.whl')}\n"
        f"beta==2.0 \\\n    --hash=sha256:{sha256(links / 'beta-2.0-py3-none-any.whl')}\n"
    )
    assert (found.python, found.packages, found.first_party) == (HERE, 2, ())


def test_pips_find_links_win_over_a_bigger_build_elsewhere(environ: dict[str, str], tmp_path: Path) -> None:
    """`torch==2.13.0` means the CPU build if pip has a folder with it."""
    wheel(tmp_path / "links", "torch", "2.13.0+cpu")
    assert "torch==2.13.0+cpu" in lock(["torch==2.13.0"], environ=environ).text


def test_an_empty_list_is_an_empty_environment(environ: dict[str, str]) -> None:
    found = environment([], environ=environ)
    assert found.kind == "locked"
    assert found.lock is not None
    assert found.lock.text == ""


def test_a_file_is_resolved_with_the_files_it_includes(environ: dict[str, str], tmp_path: Path) -> None:
    project = tmp_path / "a project"
    (project / "more").mkdir(parents=True)
    (project / "requirements.txt").write_text("# ours\n-r more/base.txt\n-c more/limits.txt\nbeta  # why\n")
    (project / "more/base.txt").write_text("alpha>=1\n")
    (project / "more/limits.txt").write_text("beta<3\n")
    found = lock(project / "requirements.txt", environ=environ)
    assert names(found) == ["alpha", "beta"]
    assert found.source == "requirements.txt, resolved"


def test_a_pyproject_gives_its_dependencies(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mine"\nversion = "1"\ndependencies = ["beta"]\n')
    assert names(lock(tmp_path / "pyproject.toml", environ=environ)) == ["alpha", "beta"]


def test_overrides_of_a_pyproject_hold_with_any_configuration_of_uv(environ: dict[str, str], tmp_path: Path) -> None:
    wheel(tmp_path / "links", "alpha", "1.1")
    (uv := tmp_path / "of the machine.toml").write_text("offline = true\n")
    project = '[project]\nname = "mine"\nversion = "1"\ndependencies = ["gamma", "alpha>=2"]\n[tool.uv]\n'
    mine = (
        'override-dependencies = ["mylib ; python_version < \'0\'", "alpha"]\nconstraint-dependencies = ["alpha<1.1"]\n'
    )
    (tmp_path / "pyproject.toml").write_text(project + mine)
    for more in ({}, {"UV_CONFIG_FILE": str(uv)}, {"UV_NO_CONFIG": "1"}):
        found = lock(tmp_path / "pyproject.toml", environ={**environ, **more})
        assert names(found) == ["alpha", "gamma"] and "alpha==1.0 " in found.text, more
    (tmp_path / "uv.toml").write_text("offline = true\n")
    assert names(lock(tmp_path / "pyproject.toml", environ=environ)) == ["alpha", "gamma"]


def test_a_second_submission_asks_no_index(environ: dict[str, str], cache: Path, tmp_path: Path) -> None:
    first = lock(["beta"], environ=environ, cache=cache)
    (tmp_path / "nothing").mkdir()
    again = lock(["beta"], environ={**environ, "PATH": str(tmp_path / "nothing")}, cache=cache)
    assert again == Lock(**{**vars(first), "source": "the list of requirements, resolved before"})
    (kept,) = cache.iterdir()
    kept.write_text("{ broken")
    assert lock(["beta"], environ=environ, cache=cache).source == "the list of requirements, resolved"
    assert lock(["beta"], environ=environ, cache=cache, refresh=True).source.endswith("resolved")


def test_what_decides_the_answer_decides_the_key(environ: dict[str, str], cache: Path, tmp_path: Path) -> None:
    def asked_again(requirements: list[str], **changed: str) -> bool:
        return lock(requirements, environ={**environ, **changed}, cache=cache).source.endswith("resolved")

    assert asked_again(["alpha"])
    assert not asked_again(["alpha"])
    assert asked_again(["alpha>=1"])
    assert asked_again(["alpha"], UV_RESOLUTION="lowest")
    assert asked_again(["alpha"], UV_INDEX="https://one:secret@index.invalid/simple")
    assert not asked_again(["alpha"], UV_INDEX="https://one:rotated@index.invalid/simple")
    wheel(tmp_path / "links", "alpha", "1.1")
    assert asked_again(["alpha"])
    assert "secret" not in "".join(path.read_text() for path in cache.iterdir())


# -- a committed lock -------------------------------------------------------------------------------------------


def test_a_committed_lock_with_hashes_is_used_as_it_is(environ: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(
        "--index-url https://me:secret@index.invalid/simple\n"
        "# made by somebody\n"
        f"beta==2.0 \\\n    --hash=sha256:{'b' * 64} \\\n    --hash=sha256:{'a' * 64}\n    # via -r x.in\n"
        f"alpha==0.1 ; python_version < '3.99' --hash=sha256:{'c' * 64}\n"
    )
    found = lock(file, environ=environ)
    assert found.text == (
        f"beta==2.0 \\\n    --hash=sha256:{'a' * 64} \\\n    --hash=sha256:{'b' * 64}\n"
        f"alpha==0.1 ; python_version < '3.99' \\\n    --hash=sha256:{'c' * 64}\n"
    )
    assert found.source == "requirements.txt, used as it is"
    assert uv_settings(environ, file)["UV_DEFAULT_INDEX"] == "https://me:secret@index.invalid/simple"


def test_a_pylock_file_is_used_as_it_is(environ: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "pylock.toml"
    file.write_text(
        'lock-version = "1.0"\ncreated-by = "uv"\n'
        '[[packages]]\nname = "alpha"\nversion = "1.0"\nmarker = "sys_platform == \'linux\'"\n'
        f'sdist = {{ url = "https://x.invalid/a.tar.gz", hashes = {{ sha256 = "{"a" * 64}" }} }}\n'
        f'wheels = [{{ url = "https://x.invalid/a.whl", hashes = {{ sha256 = "{"b" * 64}" }} }}]\n'
        '[[packages]]\nname = "beta"\n[packages.vcs]\ntype = "git"\n'
        f'url = "https://x.invalid/beta"\ncommit-id = "{"c" * 40}"\n'
    )
    assert lock(file, environ=environ).text == (
        "alpha==1.0 ; sys_platform == 'linux' \\\n"
        f"    --hash=sha256:{'a' * 64} \\\n    --hash=sha256:{'b' * 64}\n"
        f"beta @ git+https://x.invalid/beta@{'c' * 40}\n"
    )


def test_a_lock_that_uv_wrote_as_pylock_says_the_same(environ: dict[str, str], tmp_path: Path) -> None:
    command = [find_uv(environ), "pip", "compile", "--quiet", "--no-index", "--generate-hashes", "-"]
    file = tmp_path / "pylock.toml"
    subprocess.run([*command, "-o", str(file)], input=b"beta", env=environ | uv_settings(environ), check=True)
    assert lock(file, environ=environ).text == lock(["beta"], environ=environ).text


# -- bad input --------------------------------------------------------------------------------------------------


def test_a_bad_line_is_named_by_file_and_line(environ: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("alpha\n\n# fine so far\nfoo bar ==\n")
    with pytest.raises(UsageError, match=r"requirements\.txt, line 4: 'foo bar ==' is not a requirement: Expected"):
        lock(file, environ=environ)
    (tmp_path / "top.txt").write_text("beta\n-r requirements.txt\n")
    with pytest.raises(UsageError, match=r"requirements\.txt, line 4"):
        lock(tmp_path / "top.txt", environ=environ)
    with pytest.raises(UsageError, match=r"requirements\[1\]: 'be ta' is not a requirement"):
        lock(["alpha", "be ta"], environ=environ)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("--nonsense\n", "line 1: --nonsense is not an option"),
        ("-r missing.txt\n", "line 1: '-r missing.txt' cannot be read"),
        ("./nowhere\n", "line 1: './nowhere' is not there"),
        ("-e nowhere\n", "line 1: '-e nowhere' is not there"),
        (f"alpha==1 --hash=sha256:{'a' * 64}\nbeta==2\n", "line 2: 'beta==2' has no --hash"),
        (f"alpha>1 --hash=sha256:{'a' * 64}\n", "line 1: 'alpha>1' has a --hash but no exact version"),
    ],
)
def test_what_a_requirements_file_may_not_hold(
    environ: dict[str, str], tmp_path: Path, lines: str, message: str
) -> None:
    (tmp_path / "requirements.txt").write_text(lines)
    with pytest.raises(UsageError) as caught:
        lock(tmp_path / "requirements.txt", environ=environ)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("requirements", "message"),
    [
        ("numpy", 'requirements=["numpy"]'),
        ("no/such.txt", "there is no such file"),
        (".", "is a folder"),
        ("uv.lock", "uv export"),
        ("environment.yml", "conda"),
        (3, "must be None, a file or a list of strings"),
        ([3], "must be None, a file or a list of strings"),
        (["a\nb"], "requirements[0] holds several lines"),
    ],
)
def test_what_requirements_may_not_be(environ: dict[str, str], requirements: object, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        lock(requirements, environ=environ)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_what_cannot_be_resolved_is_told_in_uvs_own_words(environ: dict[str, str]) -> None:
    with pytest.raises(RequirementsError) as caught:
        lock(["beta", "alpha<1"], environ=environ)
    message = str(caught.value)
    assert f"cannot be resolved for Python {HERE}. uv says:" in message
    assert "No solution found" in message
    assert "alpha<1" in message
    assert "Nothing has run." in message
    assert "UV_FIND_LINKS, UV_NO_INDEX" in message


def test_passwords_are_neither_printed_nor_locked(environ: dict[str, str], tmp_path: Path) -> None:
    loud = {**environ, "PIP_NO_INDEX": "", "PIP_INDEX_URL": "http://me:secret@127.0.0.1:9/simple"}
    with pytest.raises(RequirementsError) as caught:
        lock(["delta"], environ={**loud, "UV_HTTP_RETRIES": "0"})
    assert "secret" not in str(caught.value)
    file = tmp_path / "requirements.txt"
    file.write_text(f"alpha @ https://me:secret@x.invalid/alpha-1.0.whl --hash=sha256:{'a' * 64}\n")
    with pytest.raises(UsageError, match="has a user name or a password in its address") as refused:
        lock(file, environ=environ)
    assert "secret" not in str(refused.value)
    file.write_text(f"alpha @ git+ssh://git@x.invalid/alpha@{'a' * 40}\nbeta==1 --hash=sha256:{'a' * 64}\n")
    assert "git@x.invalid" in lock(file, environ=environ).text


# -- pip's settings ---------------------------------------------------------------------------------------------


def test_pips_settings_reach_uv(tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "an index").mkdir()
    index = (tmp_path / "an index").as_uri()
    configured = {
        "HOME": str(tmp_path),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "https://one.invalid/simple",
        "PIP_EXTRA_INDEX_URL": f"{index} file:///no/such/index https://two.invalid/simple",
        "PIP_FIND_LINKS": f"{tmp_path / 'links'} /no/such/folder https://three.invalid/page",
        "PIP_CERT": "/etc/ssl/ours.pem",
        "PIP_CLIENT_CERT": "/etc/ssl/me.pem",
        "PIP_TRUSTED_HOST": "one.invalid two.invalid:8443",
        "PIP_DEFAULT_TIMEOUT": "12.5",
        "PIP_PRE": "true",
        "PIP_NO_INDEX": "false",
        "PIP_PROXY": "http://proxy.invalid:3128",
    }
    assert uv_settings(configured) == {
        "UV_DEFAULT_INDEX": "https://one.invalid/simple",
        "UV_INDEX": f"{index} https://two.invalid/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": f"{tmp_path / 'links'},https://three.invalid/page",
        "SSL_CERT_FILE": "/etc/ssl/ours.pem",
        "SSL_CLIENT_CERT": "/etc/ssl/me.pem",
        "UV_INSECURE_HOST": "one.invalid two.invalid:8443",
        "UV_HTTP_TIMEOUT": "13",
        "UV_PRERELEASE": "allow",
        "ALL_PROXY": "http://proxy.invalid:3128",
    }


def test_what_was_said_to_uv_itself_wins(tmp_path: Path) -> None:
    told = {
        "HOME": str(tmp_path),
        "XDG_CONFIG_DIRS": str(tmp_path),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "https://pip.invalid/simple",
        "PIP_EXTRA_INDEX_URL": "https://more.invalid/simple",
        "PIP_CERT": "/pip.pem",
    }
    assert uv_settings({**told, "UV_INDEX_URL": "x", "UV_EXTRA_INDEX_URL": "y", "SSL_CERT_FILE": "z"}) == {}
    (tmp_path / ".config/uv").mkdir(parents=True)
    (tmp_path / ".config/uv/uv.toml").write_text('[[index]]\nurl = "https://uv.invalid/simple"\ndefault = true\n')
    assert set(uv_settings(told)) == {"UV_INDEX", "UV_INDEX_STRATEGY", "SSL_CERT_FILE"}


def test_pips_files_are_found_where_pip_finds_them(tmp_path: Path) -> None:
    site, home, own = tmp_path / "site", tmp_path / "home", tmp_path / "own.conf"
    for path, text in {
        site / "pip/pip.conf": "[global]\nindex-url = https://site.invalid\ntimeout = 1\n[install]\npre = yes\n",
        home / ".pip/pip.conf": "[global]\nindex_url = https://legacy.invalid\n",
        home / ".config/pip/pip.conf": "[global]\nfind-links =\n    https://a.invalid\n    https://b.invalid\n",
        own: "[global]\nindex-url = https://own.invalid\n[install]\ntimeout = 2\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    environ = {"HOME": str(home), "XDG_CONFIG_DIRS": str(site)}
    ours = [path for path in pip_files(environ) if path.is_relative_to(tmp_path)]
    assert ours == [site / "pip/pip.conf", home / ".pip/pip.conf", home / ".config/pip/pip.conf"]
    if sys.platform == "linux":
        found = pip_settings(environ)
        assert found["index-url"] == "https://legacy.invalid"
        assert found["find-links"].split() == ["https://a.invalid", "https://b.invalid"]
        assert (found["timeout"], found["pre"]) == ("1", "yes")
    found = pip_settings({**environ, "PIP_CONFIG_FILE": str(own)})
    assert (found["index-url"], found["timeout"]) == ("https://own.invalid", "2")
    assert pip_settings({**environ, "PIP_CONFIG_FILE": os.devnull}) == {}
    assert pip_settings({**environ, "PIP_CONFIG_FILE": str(own), "PIP_TIMEOUT": "3"})["timeout"] == "3"


def test_an_index_that_is_not_there_does_not_stop_uv(environ: dict[str, str]) -> None:
    gone = {"PIP_EXTRA_INDEX_URL": "file:///no/such/index/simple"}
    links = {"PIP_FIND_LINKS": environ["PIP_FIND_LINKS"] + " /no/such/folder"}
    assert names(lock(["beta"], environ={**environ, **gone, **links})) == ["alpha", "beta"]


# -- interpreters -----------------------------------------------------------------------------------------------


def test_python_is_a_version_or_a_path(environ: dict[str, str], tmp_path: Path) -> None:
    assert find_python(None, environ) == find_python(HERE, environ) == (sys.executable, HERE)
    assert find_python(sys.executable, environ) == (sys.executable, HERE)
    with pytest.raises(RequirementsError, match=r"There is no Python 3\.99 .*uv python install 3\.99"):
        find_python("3.99", environ)
    with pytest.raises(RequirementsError, match="is not a program"):
        find_python(str(tmp_path / "python"), environ)
    with pytest.raises(UsageError, match="neither a version"):
        find_python("snake", environ)


def test_another_python_needs_requirements(environ: dict[str, str], tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 3.99\n")
    other.chmod(0o755)
    with pytest.raises(ConflictingSettings, match="needs an environment of its own"):
        environment(None, environ=environ, python=str(other))


# -- first party ------------------------------------------------------------------------------------------------


def installed(site: Path, name: str, files: dict[str, str], url: dict[str, object], requires: str = "") -> None:
    """A distribution as an installer leaves it in `site`."""
    info = site / f"{name}-3.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 3.0\n{requires}")
    (info / "direct_url.json").write_text(json.dumps(url))
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    listed = [*files, f"{info.name}/METADATA", f"{info.name}/direct_url.json"]
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in listed))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Four distributions without an index, one from an index, and one that conda built elsewhere."""
    site, source = tmp_path / "site", tmp_path / "mylib source"
    (source / "src/mylib").mkdir(parents=True)
    (source / "src/mylib/__init__.py").write_text("")
    (source / "src/extra_module.py").write_text("")
    (source / "pyproject.toml").write_text('[project]\nname = "mylib"\nversion = "3.0"\ndependencies = ["alpha"]\n')
    installed(
        site,
        "mylib",
        {"_mylib.pth": str(source / "src") + "\n"},
        {"url": source.as_uri(), "dir_info": {"editable": True}},
        "Provides-Extra: more\nRequires-Dist: alpha\nRequires-Dist: beta; extra == 'more'\n",
    )
    installed(
        site,
        "from-git",
        {"spaces/of_ours/__init__.py": "", "spaces/of_ours/deep/__init__.py": "", "single.py": ""},
        {"url": "https://x.invalid/r.git", "vcs_info": {"vcs": "git", "commit_id": "a" * 40}},
    )
    finder = f"MAPPING: dict[str, str] = {{'found': {str(source / 'src/mylib')!r}}}\n"
    installed(
        site,
        "with_finder",
        {"__editable___with_finder_3_0_finder.py": finder, "__editable__.pth": "import x\n"},
        {"url": source.as_uri(), "dir_info": {"editable": True}},
    )
    installed(site, "archived", {"archived.py": ""}, {"url": "file:///tmp/archived-3.0.whl", "archive_info": {}})
    installed(site, "indexed", {"indexed.py": ""}, {})
    installed(site, "condas", {"condas.py": ""}, {"url": "file:///croot/condas", "dir_info": {}})
    (site / "condas-3.0.dist-info/INSTALLER").write_text("conda\n")
    installed(site, "kinetic_orchestration", {"x.py": ""}, {"url": "file:///k", "dir_info": {"editable": True}})
    return site


def by_name(site: Path, first_party: list[str] | None = None) -> dict[str, FirstParty]:
    return {item.name: item for item in distributions_as_files(first_party, path=[str(site)])}


def test_what_no_index_has_travels_as_files(site: Path, tmp_path: Path) -> None:
    found = by_name(site)
    assert {name: item.origin for name, item in found.items()} == {
        "archived": "archive",
        "from-git": "repository",
        "mylib": "folder",
        "with-finder": "folder",
    }
    source = tmp_path / "mylib source/src"
    assert found["mylib"].modules == ("extra_module", "mylib")
    assert found["mylib"].paths == (
        ("extra_module.py", str(source / "extra_module.py")),
        ("mylib", str(source / "mylib")),
        ("mylib-3.0.dist-info", str(site / "mylib-3.0.dist-info")),
    )
    assert found["from-git"].modules == ("single", "spaces.of_ours")
    assert ("spaces/of_ours", str(site / "spaces/of_ours")) in found["from-git"].paths
    assert found["with-finder"].modules == ("found",)


def test_a_distribution_named_in_first_party_travels_as_files(site: Path) -> None:
    assert by_name(site, ["indexed"])["indexed"].origin == "named"
    assert by_name(site, ["single"])["from-git"].origin == "named"  # by its module's name
    assert "kinetic-orchestration" not in by_name(site, ["kinetic-orchestration"])
    with pytest.raises(UsageError, match=r"'indexd', which is not installed.*Did you mean indexed"):
        by_name(site, ["indexd"])


def test_first_party_is_not_installed_but_brings_its_dependencies(
    site: Path, environ: dict[str, str], cache: Path
) -> None:
    ours = tuple(by_name(site).values())
    assert names(lock(["mylib"], environ=environ, first_party=ours, cache=cache)) == ["alpha"]
    assert names(lock(["mylib[more]"], environ=environ, first_party=ours, cache=cache)) == ["alpha", "beta"]
    assert names(lock(["gamma"], environ=environ, first_party=ours)) == ["alpha", "gamma"]
    found = lock([], environ=environ, first_party=ours)
    assert (found.text, found.first_party) == ("", ours)
    named = tuple(by_name(site, ["mylib"]).values())
    assert names(lock([], environ=environ, first_party=named, cache=cache)) == ["alpha"]


def test_a_pin_of_the_users_is_stronger_than_a_dependency_of_first_party(
    site: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    wheel(tmp_path / "links", "alpha", "0.5")
    metadata = site / "mylib-3.0.dist-info/METADATA"
    metadata.write_text(metadata.read_text().replace("Requires-Dist: alpha\n", "Requires-Dist: alpha>=1\n"))
    ours = tuple(by_name(site).values())
    assert "alpha==0.5" in lock(["mylib", "alpha==0.5"], environ=environ, first_party=ours).text


@pytest.mark.parametrize("line", ["-e ./mylib source", "./mylib source", "mylib @ {uri}"])
def test_a_folder_in_the_requirements_travels_as_files(
    site: Path, environ: dict[str, str], tmp_path: Path, cache: Path, line: str
) -> None:
    source = tmp_path / "mylib source"
    file = tmp_path / "requirements.txt"
    file.write_text(line.format(uri=source.as_uri()) + "\n")
    here = tuple(by_name(site).values())
    for first_party in (here, (), ()):
        found = lock(file, environ=environ, first_party=first_party, cache=cache)
        assert names(found) == ["alpha"]
        (mylib,) = [item for item in found.first_party if item.name == "mylib"]
        assert ("mylib", str(source / "src/mylib")) in mylib.paths
    assert found.source.endswith("resolved before")
    (source / "pyproject.toml").write_text('[project]\nname = "mylib"\nversion = "3.0"\ndependencies = ["beta"]\n')
    assert names(lock(file, environ=environ, cache=cache)) == ["alpha", "beta"]


def test_this_project_itself_is_never_installed(environ: dict[str, str]) -> None:
    """It is on every host already, so a requirements.txt that names it needs no index that has it."""
    assert names(lock(["kinetic-orchestration", "beta"], environ=environ)) == ["alpha", "beta"]
