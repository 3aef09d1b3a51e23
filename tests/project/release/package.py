"""Builds the wheel and the sdist twice, compares them, and tries each as somebody who installs it.

`python -m tests.project.release.package [FOLDER]` does all of it, and leaves what it has built and tried in the folder.
Each goes into an empty environment in a folder of its own, outside the checkout, where the programs then run: the README's
first program, a Dagster pipeline, a job on the emulated cloud, and the command line.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from uv import find_uv_bin

from kinetic_orchestration.packaging.requirements.indexes import uv_settings
from kinetic_orchestration.testing.api_rules import journal
from tests.support.pages import ROOT, programs

EXAMPLE = ROOT / "example_pipelines" / "dagster_train_evaluate.py"
KINDS = ("*.whl", "*.tar.gz")
IMPORTS = """
import sys
from pathlib import Path
import airflow_kinetic, dagster_kinetic, kinetic_orchestration
for package in (airflow_kinetic, dagster_kinetic, kinetic_orchestration):
    folder = Path(package.__file__).parent
    assert folder.is_relative_to(sys.prefix), folder
    assert (folder / "py.typed").is_file(), f"{package.__name__} has no py.typed"
dagster_kinetic.kinetic_asset, dagster_kinetic.KineticResource
"""
ON_THE_CLOUD = """
import kinetic_orchestration as kinetic

@kinetic.run(accelerator="v5e-16")
def hosts():
    print("a line of a host")
    return kinetic.current().host_count

if __name__ == "__main__":
    print("hosts", hosts())
"""


def build(folder: Path, umask: int = 0o022, age: float = 0.0, **environ: str) -> list[Path]:
    """Build the last commit into a folder, outside of which nothing changes; the wheel is built from the sdist.

    Args:
        folder: An empty folder.
        umask: The umask of who builds it.
        age: Seconds for which the files of the checkout have not changed.
        environ: Variables of who builds it.
    """
    source = folder / "source"
    variables = os.environ | uv_settings(os.environ) | environ
    variables.pop("SOURCE_DATE_EPOCH", None)
    _run(["git", "clone", "-q", str(ROOT), str(source)], folder, umask=umask)
    for path in source.rglob("*"):
        os.utime(path, (changed := time.time() - age, changed), follow_symlinks=False)
    pinned = ["--build-constraints", str(source / "constraints-build.txt"), "--require-hashes"]
    _run([find_uv_bin(), "build", "-q", *pinned, "--out-dir", str(folder / "dist")], source, variables, umask=umask)
    return [path for kind in KINDS for path in (folder / "dist").glob(kind)]


def twice(folder: Path) -> list[Path]:
    """Build the last commit by two users who share no setting. Return what the first has built, if it is the same."""
    (one := folder / "one").mkdir()
    (two := folder / "two \N{LATIN SMALL LETTER E WITH ACUTE}").mkdir()
    first = build(one)
    second = build(two, umask=0o077, age=40_000_000, TZ="Asia/Kathmandu", LC_ALL="C", HOME=str(two), PYTHONHASHSEED="7")
    for ours, theirs in zip(first, second, strict=True):
        assert ours.name == theirs.name
        assert ours.read_bytes() == theirs.read_bytes(), f"{ours.name} differs: {differing(ours, theirs)}"
    return first


def differing(one: Path, two: Path) -> list[str]:
    """Return the names of entries whose content, mode or time differ; none if only the compression does."""
    ours, theirs = unpacked(one), unpacked(two)
    return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))


def unpacked(path: Path) -> dict[str, tuple[object, ...]]:
    """Return the mode, the time and the content of each entry of a wheel or an sdist."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {each.filename: (each.external_attr, each.date_time, wheel.read(each)) for each in wheel.infolist()}
    with tarfile.open(path) as sdist:
        return {
            each.name: (
                each.mode,
                each.mtime,
                each.uid,
                each.gid,
                each.uname,
                each.isfile() and sdist.extractfile(each).read(),
            )  # type: ignore[union-attr]
            for each in sdist
        }


def install(distribution: Path, folder: Path) -> tuple[Path, dict[str, str]]:
    """Install a distribution into an empty environment below a folder. Return its Python, and the variables of somebody
    who has activated it."""
    python = folder / "environment" / "bin" / "python"
    _run([sys.executable, "-m", "venv", "--without-pip", str(python.parents[1])], folder)
    what = [f"kinetic-orchestration[dagster,testing] @ {distribution.as_uri()}", "jax"]
    command = [find_uv_bin(), "pip", "install", "-q", "--python", str(python), "-c", str(ROOT / "constraints.txt")]
    _run([*command, *what], folder, os.environ | uv_settings(os.environ))
    return python, environ_of(folder, python.parent)


def begin(distribution: Path, environ: dict[str, str], work: Path) -> None:
    """Import what was installed, and ask it for its version."""
    _run(["python", "-c", IMPORTS], work, environ)
    version = distribution.name.split("-")[1].removesuffix(".tar.gz")
    _says(_run(["kinor", "--version"], work, environ), version)
    _says(_run(["ko", "--version"], work, environ), version)
    (builder := work / "builder" / "ko").parent.mkdir()
    builder.write_text("#!/bin/sh\necho the image builder: $*\n", encoding="utf-8")
    builder.chmod(0o755)
    behind = environ | {"PATH": f"{environ['PATH']}{os.pathsep}{builder.parent}"}
    _says(_run(["ko", "build", "./cmd"], work, behind), "the image builder: build ./cmd")


def try_out(distribution: Path, folder: Path) -> None:
    """Install a distribution into an empty environment below a folder, and run what it promises there."""
    _, environ = install(distribution, folder)
    work = folder / "work"
    work.mkdir()
    (work / "train.py").write_text(programs("README.md")["train.py"], encoding="utf-8")
    (work / "cloud.py").write_text(ON_THE_CLOUD, encoding="utf-8")
    shutil.copy(EXAMPLE, work)
    begin(distribution, environ, work)
    _says(_run(["kinor", "accelerators", "v5e-16"], work, environ), "4 hosts")
    _says(_run(["python", "train.py"], work, environ), "'devices': 16")
    _says(_run(["python", EXAMPLE.name], work, environ), "result   accuracy 9")
    if emulates():
        with emulated(work, environ) as cloud:
            _says(_run(["python", "cloud.py"], work, environ | cloud), "hosts 4")


def emulates() -> bool:
    """Return whether the emulated cloud's bucket server exists for this machine."""
    return sys.platform == "linux" and os.uname().machine == "x86_64"


@contextlib.contextmanager
def emulated(work: Path, environ: dict[str, str]) -> Iterator[dict[str, str]]:
    """An emulated cloud of `kinor emulator`, as the variables that it prints."""
    printed = work / "cloud.env"
    with printed.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [shutil.which("kinor", path=environ["PATH"]) or "kinor", "emulator", "--print-env"],
            cwd=work,
            env=environ,
            stdout=file,
            text=True,
        )
    try:
        deadline = time.monotonic() + 120
        while not printed.read_text(encoding="utf-8").endswith("\n"):
            assert process.poll() is None, "the emulator has ended"
            assert time.monotonic() < deadline, "the emulator has printed nothing"
            time.sleep(0.1)
        lines = printed.read_text(encoding="utf-8").splitlines()
        yield dict(shlex.split(line)[1].split("=", 1) for line in lines)
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(120)
    assert code == 0, f"the emulator ended with {code}, as it does when something was left in it"


def environ_of(folder: Path, path: Path) -> dict[str, str]:
    """The variables of somebody who has activated the environment, with a home of their own and nothing set up."""
    ours = ("KINETIC_", "GOOGLE_", "PYTHON", "PYTEST_", "DAGSTER_", "XDG_", "VIRTUAL_ENV", "STORAGE_EMULATOR_HOST")
    kept = {name: value for name, value in os.environ.items() if name == journal.VARIABLE or not name.startswith(ours)}
    home = folder / "home"
    home.mkdir()
    return kept | {"HOME": str(home), "PATH": f"{path}{os.pathsep}{os.defpath}", "PYTHONWARNINGS": "ignore"}


def _run(command: list[str], folder: Path, environ: dict[str, str] | None = None, umask: int = -1) -> str:
    began = time.monotonic()
    program = shutil.which(command[0], path=environ and environ.get("PATH")) or command[0]
    done = subprocess.run(
        [program, *command[1:]], cwd=folder, env=environ, capture_output=True, text=True, timeout=400, umask=umask
    )
    words = " ".join(Path(word).name if os.path.isabs(word) else word for word in command[:3]).partition("\n")[0]
    print(f"{time.monotonic() - began:5.1f} s  {words}", flush=True)
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def _says(told: str, expected: str) -> None:
    assert expected in told, f"{expected!r} is not in {told[-3000:]!r}"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="kinetic-package-") as name:
        for number, distribution in enumerate(built := twice(Path(name))):
            digest = hashlib.sha256(distribution.read_bytes()).hexdigest()
            print(f"== {distribution.name}, built twice: sha256 {digest}", flush=True)
            folder = Path(name) / str(number)
            folder.mkdir()
            try_out(distribution, folder)
        for to in map(Path, sys.argv[1:]):
            (to / "packages").mkdir(parents=True, exist_ok=True)
            for path in built:
                shutil.copy(path, to / "packages")
            for path in (ROOT / "constraints-hashed.txt", ROOT / "constraints-build.txt", ROOT / "sbom.cdx.json"):
                shutil.copy(path, to)


if __name__ == "__main__":
    main()
