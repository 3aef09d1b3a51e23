"""Builds the wheel and the sdist, and tries each as somebody who installs it: `python -m tests.project.release.package` tries both.

Each goes into an empty environment in a folder of its own, outside the checkout, where the programs then run: the README's
first program, a Dagster pipeline, a job on the emulated cloud, and the command line.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
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


def build(folder: Path) -> list[Path]:
    """Build the last commit into a folder, outside of which nothing changes; the wheel is built from the sdist."""
    source = folder / "source"
    _run(["git", "clone", "-q", str(ROOT), str(source)], folder)
    _run(
        [find_uv_bin(), "build", "-q", "--out-dir", str(folder / "dist")], source, os.environ | uv_settings(os.environ)
    )
    return [path for kind in KINDS for path in (folder / "dist").glob(kind)]


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
    _says(_run(["kinor", "--version"], work, environ), distribution.name.split("-")[1].removesuffix(".tar.gz"))


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


def _run(command: list[str], folder: Path, environ: dict[str, str] | None = None) -> str:
    began = time.monotonic()
    program = shutil.which(command[0], path=environ and environ.get("PATH")) or command[0]
    done = subprocess.run(
        [program, *command[1:]], cwd=folder, env=environ, capture_output=True, text=True, timeout=400, check=False
    )
    words = " ".join(Path(word).name if os.path.isabs(word) else word for word in command[:3]).partition("\n")[0]
    print(f"{time.monotonic() - began:5.1f} s  {words}", flush=True)
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def _says(told: str, expected: str) -> None:
    assert expected in told, f"{expected!r} is not in {told[-3000:]!r}"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="kinetic-package-") as name:
        for number, distribution in enumerate(build(Path(name))):
            print(f"== {distribution.name}", flush=True)
            folder = Path(name) / str(number)
            folder.mkdir()
            try_out(distribution, folder)


if __name__ == "__main__":
    main()
