"""Environments on emulated slices: built by real hosts from private indexes, or from the store alone."""

from __future__ import annotations

import base64
import http.server
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.cli import main
from kinetic_orchestration.jobs.launch import launch
from kinetic_orchestration.jobs.request import draft
from kinetic_orchestration.packaging.requirements.resolution import find_uv
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.checks.options import check_options
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.platforms.registry import open_store
from kinetic_orchestration.platforms.shared import places
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.cloud.conftest import ZONES
from tests.support.jobs import placements
from tests.support.wheels import wheel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # each starts machines, and several processes on each

LOGIN = "me:geheim"


def versions() -> tuple[str, str]:
    import alpha
    import beta

    return alpha.version, beta.version


@contextmanager
def private_index(links: Path) -> Iterator[str]:
    """A package index that answers nobody without the login; its address."""
    expected = f"Basic {base64.b64encode(LOGIN.encode()).decode()}"

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = self.path.strip("/").split("/")
            if self.headers.get("Authorization") != expected:
                self._answer(401, b"")
            elif parts[0] == "simple" and len(parts) == 2:
                files = sorted(path.name for path in links.glob(f"{parts[1]}-*.whl"))
                page = "".join(f'<a href="/files/{name}">{name}</a>' for name in files)
                self._answer(200 if files else 404, f"<!DOCTYPE html><html><body>{page}</body></html>".encode())
            elif parts[0] == "files" and (links / parts[1]).is_file():
                self._answer(200, (links / parts[1]).read_bytes(), "application/octet-stream")
            else:
                self._answer(404, b"")

        def _answer(self, status: int, data: bytes, kind: str = "text/html") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            if status == 401:
                self.send_header("WWW-Authenticate", "Basic")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}/simple"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two wheels; and a PATH for client and hosts on which uv is."""
    folder = tmp_path / "wheels of ours"
    wheel(folder, "alpha")
    wheel(folder, "beta", "2.0", ["alpha>=1"])
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in (
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
        "PIP_FIND_LINKS",
        "UV_DEFAULT_INDEX",
        "UV_INDEX_URL",
        "UV_INDEX",
    ):
        monkeypatch.delenv(name, raising=False)
    return folder


def drivers() -> list[str]:
    """The version of JAX, and what is there of the builds that drive a TPU and a GPU."""
    import importlib.util

    import jax

    return [jax.version, *(name for name in ("libtpu", "jax_cuda12_plugin") if importlib.util.find_spec(name))]


def for_chips(function: Callable[..., Any], ways: Sequence[kinetic.Choice], requirements: Sequence[str]) -> Any:
    """Launch a job whose environments are for the chips themselves: processors that stand in for them get the plain
    builds, which are one for all."""
    # The packages are empty: a GPU's host would name the platform to JAX, unless a variable does.
    options = Options(ways, capture_env_vars=["JAX_PLATFORMS"], requirements=requirements, distributed=False)
    spec = JobSpec(function.__name__, check_options(options), function)
    asked = draft(spec)
    plan = asked.plan.joined([replace(one, emulated=False) for one in asked.plan.each()])
    return JobHandle(launch(replace(asked, plan=plan).open()))


def staged_tools(*more: str) -> None:
    assert main(["stage-tools", *more]) == 0


@pytest.mark.turn(0)
def test_a_private_index_is_read_by_client_and_host_and_its_password_lies_nowhere(
    cloud: Emulator, links: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with private_index(links) as address:
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://{LOGIN}@{address}")
        monkeypatch.setenv("PATH", f"{Path(find_uv({})).parent}:/usr/bin:/bin")
        staged_tools()
        assert kinetic.run("v5e-1", requirements=["beta"])(versions)() == ("1.0", "2.0")
    here = settings.load()
    store = open_store(here.store, here.deployment)
    for entry in store.list(""):
        if not entry.name.startswith("tools/"):
            record = store.read(entry.name)
            assert record is None or b"geheim" not in record.data, entry.name
    assert not [entry for entry in cloud.ledger.leaks() if "UV_DEFAULT_INDEX" in str(entry)]  # it ended with the job
    shown = capfd.readouterr()
    assert "geheim" not in shown.out + shown.err


@pytest.mark.turn(8)
def test_a_slice_without_a_package_index_works_from_the_store_alone(
    cloud: Emulator, links: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", links.as_uri())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "requirements.txt").write_text("beta\n")
    staged_tools("--offline", str(tmp_path / "requirements.txt"), "--accelerator", "v5e-1")
    assert kinetic.run("v5e-1", requirements=["beta"])(versions)() == ("1.0", "2.0")


@pytest.mark.turn(8)
def test_a_choice_of_a_tpu_and_a_gpu_runs_with_the_builds_of_the_hardware_that_it_gets(
    cloud: Emulator, links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function imports JAX. The TPU is there for the first job and out of stock for the second, which the GPU runs."""
    wheel(links, "libtpu", "0.0.42")
    wheel(links, "jax_cuda12_plugin", "0.10.2")
    extras = ["libtpu==0.0.42 ; extra == 'tpu'", "jax-cuda12-plugin==0.10.2 ; extra == 'cuda12'"]
    wheel(links, "jax", "0.10.2", extras)
    monkeypatch.setenv("PIP_FIND_LINKS", links.as_uri())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("KINETIC_BACKEND", raising=False)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(places, "FIRST_WAIT", 0.5)
    staged_tools()
    ways = [
        kinetic.Choice("v6e-4", cloud=kinetic.TpuVm(zones=[ZONES[0]])),
        kinetic.Choice(kinetic.Gpu("l4"), cloud=kinetic.Compute(zones=[ZONES[1]])),
    ]
    assert for_chips(drivers, ways, ["jax"]).result(timeout=300) == ["0.10.2", "libtpu"]
    cloud.stockout(ZONES[0], "refuse")
    job = for_chips(drivers, ways, ["jax"])
    assert job.result(timeout=300) == ["0.10.2", "jax_cuda12_plugin"]
    assert [one["backend"] for one in placements(job)][-1] == "compute"
