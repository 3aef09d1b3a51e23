"""Installs small packages with entry points into a folder that this process and those that it starts import from."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from kinetic_orchestration.plan.configuration import plugins
from tests.support.wheels import wheel

SOURCE = Path(__file__).with_name("kinetic_subprocesses.py")
ENTRY = "subprocesses = kinetic_subprocesses:PLATFORM"


class Site:
    """A folder of installed packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, name: str, *entries: str, modules: Mapping[str, str]) -> None:
        """Install a package from a wheel, with entry points of platforms.

        Args:
            name: The package.
            entries: Its entry points, as `name = module:attribute`.
            modules: Its source, by file name.
        """
        points = "\n".join([f"[{plugins.GROUP}]", *entries, ""])
        files = {**modules, f"{name}-1.0.dist-info/entry_points.txt": points}
        with zipfile.ZipFile(wheel(self.folder.parent / "wheels", name, files=files)) as archive:
            archive.extractall(self.folder)
        forget()

    def install_subprocesses(self) -> None:
        """Install the platform `subprocesses`."""
        source = {"kinetic_subprocesses.py": SOURCE.read_text(encoding="utf-8")}
        self.install("kinetic_subprocesses", ENTRY, modules=source)


@contextmanager
def site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An empty folder of installed packages; what was imported from it is forgotten afterwards."""
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(folder)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    forget()
    yield Site(folder)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "") or "").startswith(str(folder)):
            del sys.modules[name]
    forget()


def forget() -> None:
    """Have this process look for installed packages anew, as a new one does."""
    plugins._entries.cache_clear()
    plugins.find.cache_clear()
