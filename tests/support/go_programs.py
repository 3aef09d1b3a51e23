"""What tests have from Go modules: a Kubernetes control plane and MinIO, which are built, and definitions of kinds of
objects. `python go_programs.py` brings all.

They are kept in a folder outside the checkout, named after all that they are built from, so that each is built once.
`python go_programs.py root` prints where. Of the standard library, for any Python, as the gate runs it before it has an
environment.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

VARIABLE = "KINETIC_TESTBED"  # the environment variable with the folder of all programs; "none": build nothing
NONE = "there is no Go to build the servers of these tests with"
HERE = Path(__file__).parent

CONTROL_PLANE = HERE / "kubernetes" / "programs"
PACKAGES = ("./control", "k8s.io/kubernetes/cmd/kubectl", "sigs.k8s.io/jobset", "sigs.k8s.io/kueue/cmd/kueue")
MANIFESTS = {  # name in `manifests/` → module, folder in it
    "jobset-crds": ("sigs.k8s.io/jobset", "config/components/crd/bases"),
    "jobset-webhooks": ("sigs.k8s.io/jobset", "config/components/webhook"),
    "kueue-crds": ("sigs.k8s.io/kueue", "config/components/crd/bases"),
    "kueue-webhooks": ("sigs.k8s.io/kueue", "config/components/webhook"),
    "provisioning-crds": ("k8s.io/autoscaler/cluster-autoscaler/apis", "config/crd"),
}
DEFINITIONS = {  # name → module by its exact version, file in it: what a cluster knows of llm-d's pools and of KServe
    "inferencepools": (
        "sigs.k8s.io/gateway-api-inference-extension@v1.5.0",
        "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml",
    ),
    "httproutes": ("sigs.k8s.io/gateway-api@v1.6.0", "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"),
    "gateways": ("sigs.k8s.io/gateway-api@v1.6.0", "config/crd/standard/gateway.networking.k8s.io_gateways.yaml"),
    "llminferenceservices": (
        "github.com/kserve/kserve@v0.19.0",
        "config/crd/full/llmisvc/serving.kserve.io_llminferenceservices.yaml",
    ),
}
MINIO = "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c"


def root() -> Path:
    """The folder of all programs, independent of HOME."""
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    return Path(os.environ.get(VARIABLE) or home / ".cache" / "kinetic-orchestration" / "testbed")


def has_go() -> bool:
    return shutil.which("go") is not None and os.environ.get(VARIABLE) != "none"


def control_plane() -> Path:
    """Return the folder of etcd with API server, controller manager and scheduler (`control`), of `kubectl`, and of the
    controllers of JobSet and Kueue, with what the last two have a cluster know. It is made first if it is not there:
    that takes many minutes.

    Raises:
        RuntimeError: A program cannot be built.
    """
    return _built("kubernetes", _mark(CONTROL_PLANE), _build_control_plane)


def known_control_plane() -> Path | None:
    """Return that folder, or None where it was never made."""
    folder = root() / f"kubernetes-{_mark(CONTROL_PLANE)}"
    return folder if has_go() and folder.exists() else None


def minio() -> Path:
    """Return MinIO's folder, which is made first if it is not there: that takes minutes. Raises RuntimeError."""
    return _built("minio", hashlib.sha256(MINIO.encode()).hexdigest()[:16], _build_minio)


def definitions() -> Path:
    """Return the folder of `DEFINITIONS`, each as `NAME.yaml`, which are fetched first if they are not there.

    Raises:
        RuntimeError: A module cannot be had.
    """
    return _built("definitions", hashlib.sha256(repr(DEFINITIONS).encode()).hexdigest()[:16], _fetch_definitions)


def _built(name: str, mark: str, build: Callable[[Path], object]) -> Path:
    folder = root() / f"{name}-{mark}"
    if folder.exists():
        return folder
    with locked(root() / f"{folder.name}.lock"):  # of two builders one waits
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=root(), prefix=f"{folder.name}-") as scratch:
                print(f"building {name}", file=sys.stderr, flush=True)
                build(Path(scratch))
                Path(scratch).rename(folder)  # what is there is whole
                Path(scratch).mkdir()  # for its context to remove
    return folder


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of this file, which waits for other processes that hold it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _mark(folder: Path) -> str:
    """The digest of all that the control plane is built from."""
    whole = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        whole.update(f"{path.name} {len(data)}\n".encode() + data)
    return whole.hexdigest()[:16]


def _build_control_plane(folder: Path) -> None:
    version = _go("list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes").strip()
    major, minor, _ = version.removeprefix("v").split(".", 2)
    told = {  # without it Kueue does not speak to the server
        "gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean", "gitCommit": "tests",
        "buildDate": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    flags = " ".join(["-s", "-w", *(f"-X k8s.io/component-base/version.{key}={value}" for key, value in told.items())])
    for package in PACKAGES:
        _go("build", "-trimpath", f"-ldflags={flags}", "-o", str(folder / Path(package).name), package)
    for name, (module, inside) in MANIFESTS.items():
        there = _go("list", "-m", "-f", "{{.Dir}}", module).strip()
        shutil.copytree(Path(there, inside), folder / "manifests" / name, copy_function=shutil.copyfile)
    for path in (folder, *folder.rglob("*/")):
        path.chmod(0o755)  # the modules' own folders are read-only


def _fetch_definitions(folder: Path) -> None:
    for name, (module, inside) in DEFINITIONS.items():
        there = json.loads(_go("mod", "download", "-json", module))["Dir"]
        shutil.copyfile(Path(there, inside), folder / f"{name}.yaml")
    folder.chmod(0o755)


def _build_minio(folder: Path) -> None:
    _go("install", "-trimpath", MINIO, GOBIN=str(folder), GOFLAGS="-mod=mod")


def _go(*words: str, **environ: str) -> str:
    done = subprocess.run(["go", *words], cwd=CONTROL_PLANE, env=os.environ | environ, capture_output=True, text=True)
    if done.returncode:
        told = done.stderr.strip() or done.stdout.strip()  # with -json, the error is in what it prints
        raise RuntimeError(f"go {' '.join(words)} ended with {done.returncode}: {told[-4000:]}")
    return done.stdout


if __name__ == "__main__":
    if sys.argv[1:] == ["root"]:
        print(root())
    else:
        print(control_plane(), minio())
        try:
            print(definitions())
        except RuntimeError as error:  # one test needs them, and skips
            print(error)
