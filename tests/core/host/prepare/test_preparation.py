"""The concurrent preparations of a host with a machine of its own, by its timeline and their dependencies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import uv

from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.content import digest
from tests.support.faults import load_jobs
from tests.support.jobs import PROGRAM
from tests.support.on_vms import Attempt, Site
from tests.support.waits import wait_until
from tests.support.wheels import sha256, wheel

IMPORTED = """
import os
with open(os.environ["KINETIC_ROOT"] + "/imported", "a") as file:
    file.write(os.environ["JAX_PLATFORMS"] + "\\n")
"""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_jobs(tmp_path_factory.mktemp("preparation") / "project", "preparation_jobs")


def environment(site: Site, folder: Path, **more: Any) -> dict[str, Any]:
    """A task whose environment has one package, which is called jax, and whose tools are in the store."""
    links = folder / "links"
    made = wheel(links, "jax", files={"jax/__init__.py": IMPORTED})
    program = Path(uv.find_uv_bin())
    site.records.upload(names.tool(sha256(program)), str(program))
    lock = f"jax==1.0 --hash=sha256:{sha256(made)}\n".encode()
    site.records.create(names.blob(digest.of_bytes(lock)), lock)
    wanted = {
        "lock": digest.of_bytes(lock), "interpreter": "", "uv": "", "python": ".".join(map(str, sys.version_info[:2])),
        "settings": {"UV_FIND_LINKS": str(links), "UV_NO_INDEX": "1"}, "packages": 1, "uv_itself": "", "warm": ["jax"],
        "compiles": {}, **more,
    }  # fmt: skip
    return {"environment": wanted, "tools": {"uv": sha256(program)}}


def timeline(site: Site, attempt: Attempt) -> dict[str, tuple[float, float]]:
    name = names.host(attempt.job, 1, 0, "done.json")
    wait_until(lambda: site.records.read(name) is not None)
    record = site.records.read(name)
    assert record is not None
    return {what: (began, ended) for what, (began, ended) in wire.decode(record.data)["prepared"].items()}


def test_the_environment_the_first_import_and_the_program_do_not_wait_for_data(
    site: Site, jobs: Any, tmp_path: Path
) -> None:
    """The data comes only when all of them were seen."""
    site.records.bucket.write("data/large", b"data")
    bucket = site.bucket.removeprefix("gs://")
    site.storage.fail(f"* {bucket}/data*", status=503, times=None)
    task = environment(site, tmp_path)
    task["data"] = [{"digest": "", "file": "", "here": "", "url": f"{site.bucket}/data"}]
    (tmp_path / "stand-in").mkdir()  # the URL takes its place
    attempt = site.admit(jobs.contents, Data(tmp_path / "stand-in"), task=task).start()
    vm = attempt.vms[0]
    wait_until((vm.root / "imported").exists, within=60.0)
    wait_until(lambda: (vm.root / "imported").read_text() == "cpu\n")  # and never a chip
    wait_until(lambda: vm.kill(rf"/environments/\w+/bin/python .*({PROGRAM})", 0), within=60.0)  # waits for its orders
    assert site.records.read(names.verdict(attempt.job, 1)) is None
    site.storage.heal()
    assert attempt.verdict(60.0).kind == wire.COMMITTED, attempt.verdict()
    found = timeline(site, attempt)
    assert set(found) >= {"environment", "code", "payload", "data 0"}
    began, ended = found["data 0"]
    assert began < found["environment"][1] < ended
    assert found["code"][1] < ended
    attempt.gone()


@pytest.mark.slow
def test_without_anything_to_wait_for_nothing_is_imported_ahead(site: Site, jobs: Any, tmp_path: Path) -> None:
    attempt = site.admit(jobs.until, str(tmp_path / "go"), task=environment(site, tmp_path)).start()
    wait_until(lambda: "running" in attempt.log(), within=60.0)
    assert not (attempt.vms[0].root / "imported").exists()
    (tmp_path / "go").touch()
    assert attempt.verdict().kind == wire.COMMITTED
    attempt.gone()


def test_a_password_of_the_package_index_reaches_the_installer_and_not_the_program(
    site: Site, jobs: Any, tmp_path: Path
) -> None:
    """The folder of wheels is named by the secret: without it nothing could be installed."""
    task = environment(site, tmp_path, secrets=["PLACE"], installer_only=["PLACE"])
    task["environment"]["settings"] = {"UV_FIND_LINKS": "${PLACE}", "UV_NO_INDEX": "1"}
    task["secrets"] = {name: f"projects/emulated/secrets/{name}" for name in ("PLACE", "TOKEN")}
    for name, value in (("PLACE", str(tmp_path / "links")), ("TOKEN", "of the user")):
        site.apis.secrets[f"projects/emulated/secrets/{name}/versions/latest"] = value.encode()
    told = "import os, jax; print('TOKEN' in os.environ, 'PLACE' in os.environ)"
    attempt = site.admit(argv=["python", "-c", told], task=task).start()
    assert attempt.verdict(60.0).kind == wire.COMMITTED, attempt.verdict()
    assert attempt.log() == "True False\n"
    attempt.gone()
