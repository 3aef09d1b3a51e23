"""Lists what a release names: packages by digest, those that build it, the bill of materials.

`python -m tests.project.release.contents` writes all of them anew.

The versions are those of constraints.txt; the digests are the package index's own, of all files of each version.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path

from uv import find_uv_bin

from kinetic_orchestration import __version__
from kinetic_orchestration.packaging.requirements.indexes import uv_settings

ROOT = Path(__file__).parents[3]
CONSTRAINTS = ROOT / "constraints.txt"
HASHED = ROOT / "constraints-hashed.txt"
BUILDERS = ROOT / "constraints-build.txt"
MATERIALS = ROOT / "sbom.cdx.json"
EXTRAS = ("dagster", "airflow")

PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+?)(?: ; (.+?))?(?: \\)?$")
DIGEST = re.compile(r"^    --hash=sha256:([0-9a-f]{64})(?: \\)?$")

Pin = tuple[str, str, str]  # name, version, marker


def pins(text: str) -> dict[Pin, list[str]]:
    """Each pin of a file of constraints, with its digests. Raises ValueError for a line that is neither."""
    found: dict[Pin, list[str]] = {}
    last: list[str] = []
    for line in filter(None, text.splitlines()):
        if pin := PIN.match(line):
            last = found.setdefault((pin[1], pin[2], pin[3] or ""), [])
        elif digest := DIGEST.match(line):
            last.append(digest[1])
        else:
            raise ValueError(f"neither a pin nor a digest: {line!r}")
    return found


def hashed() -> str:
    """The pins of the package and its adapters with the digests that the package index has now."""
    return _compiled("pyproject.toml", *(part for name in EXTRAS for part in ("--extra", name)), "-c", CONSTRAINTS.name)


def builders() -> str:
    """The pins of what builds the package: another release of it would write other bytes."""
    return _compiled("-", given="\n".join(build_requirements()))


def build_requirements() -> list[str]:
    requires: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"][
        "requires"
    ]
    return requires


def _compiled(*what: str, given: str = "") -> str:
    command = [find_uv_bin(), "pip", "compile", "-q", *what, "--universal", "--python-version", "3.11"]
    options = ["--no-emit-index-url", "--no-header", "--no-annotate", "--generate-hashes"]
    environ = os.environ | uv_settings(os.environ)
    done = subprocess.run(
        [*command, *options], cwd=ROOT, env=environ, input=given, check=True, capture_output=True, text=True
    )
    return done.stdout


def materials(hashed: str) -> str:
    """The bill of materials in CycloneDX's JSON: a line for each package, and the same bytes for the same pins."""
    itself = {"type": "library", "name": "kinetic-orchestration", "version": __version__}
    packages = sorted({(name, version) for name, version, _ in pins(hashed)})
    lines = ",\n".join(json.dumps(_component(name, version)) for name, version in packages)
    head = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": itself}}
    return json.dumps(head)[:-1] + f', "components": [\n{lines}\n]}}\n'


def _component(name: str, version: str) -> dict[str, str]:
    purl = f"pkg:pypi/{name}@{version}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


if __name__ == "__main__":
    HASHED.write_text(hashed(), encoding="utf-8")
    BUILDERS.write_text(builders(), encoding="utf-8")
    MATERIALS.write_text(materials(HASHED.read_text(encoding="utf-8")), encoding="utf-8")
