"""A release has every package by digest, a bill of materials, and a wheel that anybody can build again."""

import json
import os
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from uv import find_uv_bin

from kinetic_orchestration import __version__
from kinetic_orchestration.packaging.requirements.indexes import uv_settings
from tests.project.release import contents, package

pytestmark = pytest.mark.fast

HASHED = contents.pins(contents.HASHED.read_text(encoding="utf-8"))


def test_every_pin_has_digests_and_is_the_version_that_ci_runs() -> None:
    run = {(name, version) for name, version, _ in contents.pins(contents.CONSTRAINTS.read_text(encoding="utf-8"))}
    assert HASHED and all(HASHED.values())
    assert {(name, version) for name, version, _ in HASHED} <= run


def test_what_the_package_and_its_adapters_need_is_pinned() -> None:
    """Follows the requirements of the installed packages."""
    pinned = {name for name, _, _ in HASHED}
    left, seen = [("kinetic-orchestration", extra) for extra in ("", *contents.EXTRAS)], set()
    while left:
        name, extra = left.pop()
        for line in metadata.requires(name) or ():
            need = Requirement(line)
            if need.marker and not need.marker.evaluate({**default_environment(), "extra": extra}):
                continue
            following = [(canonicalize_name(need.name), each) for each in ("", *need.extras)]
            left += [each for each in following if each not in seen]
            seen.update(following)
    assert {name for name, _ in seen} - {"kinetic-orchestration"} <= pinned


def test_the_bill_of_materials_is_that_of_the_pins() -> None:
    text = contents.MATERIALS.read_text(encoding="utf-8")
    assert text == contents.materials(contents.HASHED.read_text(encoding="utf-8"))
    told = json.loads(text)
    assert {(each["name"], each["version"]) for each in told["components"]} == {pin[:2] for pin in HASHED}
    assert len({each["bom-ref"] for each in told["components"]}) == len(told["components"])


def test_the_changelog_has_a_heading_for_each_release_newest_first_and_for_this_version() -> None:
    headings = re.findall(r"(?m)^## (.+)$", (contents.ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    dated = [
        match for heading in headings if (match := re.fullmatch(r"(\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)", heading))
    ]
    assert headings[len(headings) - len(dated) :] == [match[0] for match in dated]
    assert headings[: len(headings) - len(dated)] in ([], ["Unreleased"])
    versions = [Version(match[1]) for match in dated]
    assert versions == sorted(versions, reverse=True) and len(set(versions)) == len(versions)
    assert [match[2] for match in dated] == sorted((match[2] for match in dated), reverse=True)
    assert Version(__version__) == versions[0]


@pytest.mark.parametrize("line", ["--index-url x", "name>=1", "    --hash=md5:0"])
def test_a_line_that_is_neither_pin_nor_digest_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="neither a pin nor a digest"):
        contents.pins(line)


def uv(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    environ = os.environ | uv_settings(os.environ)
    return subprocess.run([find_uv_bin(), *arguments], cwd=cwd, env=environ, capture_output=True, text=True)


@pytest.mark.slow
def test_files_of_another_digest_are_not_installed(tmp_path: Path) -> None:
    """One package of the pins, as pip would be given it, and the same with one digit of each digest changed."""
    [pin] = [pin for pin in HASHED if pin[0] == "pathspec"]
    target = ("--python", sys.executable, "--target", str(tmp_path / "here"), "--no-deps", "--no-cache")
    given = tmp_path / "given.txt"
    for changed, expected in ((False, 0), (True, 1)):
        digests = [("f" if digest[0] != "f" else "0") + digest[1:] if changed else digest for digest in HASHED[pin]]
        given.write_text(f"{pin[0]}=={pin[1]} " + " ".join(f"--hash=sha256:{digest}" for digest in digests))
        done = uv("pip", "install", "--require-hashes", "--reinstall", *target, "-r", str(given), cwd=tmp_path)
        assert done.returncode == expected, done.stderr
    assert "Hash mismatch" in done.stderr


def test_what_builds_a_release_is_pinned_by_digest_with_all_that_it_needs() -> None:
    """Another hatchling writes another `Generator:`, and its own version of metadata."""
    pinned = contents.pins(contents.BUILDERS.read_text(encoding="utf-8"))
    assert all(pinned.values()) and len({name for name, _, _ in pinned}) == len(pinned)
    versions = {canonicalize_name(name): version for name, version, _ in pinned}
    for line in contents.build_requirements():
        assert (need := Requirement(line)).specifier.contains(versions[canonicalize_name(need.name)])
    assert {"pathspec", "pluggy", "packaging", "trove-classifiers"} <= versions.keys(), "what hatchling needs"


@pytest.mark.slow
@pytest.mark.turn(2)
def test_wheel_and_sdist_are_the_same_whoever_builds_them_and_have_the_bill_of_materials(tmp_path: Path) -> None:
    wheel, sdist = package.twice(tmp_path)
    told = contents.materials(contents.HASHED.read_text(encoding="utf-8")).encode()
    found = {path.suffix: package.unpacked(path) for path in (wheel, sdist)}
    [inside] = [entry for entry in found[".whl"] if "/sboms/" in entry]
    assert found[".whl"][inside][-1] == found[".gz"][f"{sdist.name.removesuffix('.tar.gz')}/sbom.cdx.json"][-1] == told
    # What this would say of one that differs, in its content and in nothing but its compression.
    other = tmp_path / "other.whl"
    with zipfile.ZipFile(wheel) as before, zipfile.ZipFile(other, "w", zipfile.ZIP_STORED) as after:
        for entry in before.infolist():
            after.writestr(entry, before.read(entry), zipfile.ZIP_STORED)
    assert other.read_bytes() != wheel.read_bytes() and not package.differing(wheel, other)
    with zipfile.ZipFile(other, "a") as after:
        after.writestr("more.py", "")
    assert package.differing(wheel, other) == ["more.py"]
