"""Tiny wheels, written by hand, so that installing needs no network."""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    requires: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
) -> Path:
    """A wheel of one module that knows its version."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    extras = sorted({line.split("extra == ")[1].strip("'\"") for line in requires if "extra == " in line})
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    metadata += [f"Provides-Extra: {extra}" for extra in extras] + [f"Requires-Dist: {line}" for line in requires]
    content = dict(files if files is not None else {f"{name}.py": f"version = {version!r}\n"})
    content[f"{info}/METADATA"] = "\n".join(metadata) + "\n"
    content[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{path},sha256={_hash(text)},{len(text)}\n" for path, text in content.items())
    content[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in content.items():
            archive.writestr(zipfile.ZipInfo(inside, (2020, 1, 1, 0, 0, 0)), text)
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def offline(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody whose home is empty and whose pip installs from one folder only."""
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    (tmp_path / "links").mkdir(exist_ok=True)
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_CONFIG_DIRS": str(home / "none"),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": str(tmp_path / "links"),
        "PIP_NO_INDEX": "1",
    }


def _hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
