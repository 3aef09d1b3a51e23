"""`kinor tensorboard` of a job of this machine. The boards are stand-ins of their packages, as an installer leaves them."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

import kinetic_orchestration as kinetic
from tests.support.entered import forwarded, kinor, page, program_of
from tests.support.waits import wait_until

BOARD = """
import http.server, os, sys

class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        said = repr(sys.argv[1:]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_):
        pass

def main():
    print("a banner", flush=True)
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Page).serve_forever()
"""


def installed(folder: Path, name: str) -> None:
    """Put a package there that has a program of its own name, and nothing else."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(BOARD)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[console_scripts]\n{name} = {name}:main\n")


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def test_one_command_leads_to_the_board_of_a_job_whether_its_host_serves_it_or_not(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = program_of(tmp_path / "project")
    gate, ports = tmp_path / "gate", tmp_path / "port"
    job = kinetic.run(accelerator="cpu", profile=20)(program.serves).run_async(str(gate), str(ports))
    try:
        wait_until((tmp_path / "port-0").exists)
        wait_until(lambda: (tmp_path / "port-0").read_text().isdecimal())
        served = (tmp_path / "port-0").read_text()
        shown = kinor("tensorboard", job.job_id, "--port", served)  # this machine is the host: there is no way to keep
        assert shown.code == 0 and shown.out == f"open http://127.0.0.1:{served}/\n", shown.err
        assert "itself serves it" in shown.err and page(f"127.0.0.1:{served}") == b"host 0"

        free = free_port()
        shown = kinor("tensorboard", job.job_id, "--port", free)
        assert shown.code == 2 and "pip install tensorboard" in shown.err and str(job.output_dir) in shown.err
        shown = kinor("tensorboard", job.job_id, "--port", free, "--xprof")
        assert shown.code == 2 and "has captured no profile yet" in shown.err

        installed(tmp_path / "packages", "tensorboard")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path / "packages"), *sys.path)))
        shown = kinor("tensorboard", job.job_id, "--port", served, "--host", "1")
        assert shown.code == 2 and "there is no 1" in shown.err
        with forwarded("tensorboard", job.job_id, "--port", free) as told:
            assert told == {"job_id": job.job_id, "url": f"http://127.0.0.1:{free}/"}
            words = ["--logdir", job.output_dir, "--port", free, "--host", "127.0.0.1"]
            assert page(f"127.0.0.1:{free}") == repr(words).encode()
    finally:
        gate.touch()
    assert job.result(timeout=120) == "gone through"
    with forwarded("tensorboard", job.job_id, "--port", free):  # it has ended, and what it has written is there
        assert page(f"127.0.0.1:{free}") == repr(words).encode()


def test_xprof_is_a_tab_of_tensorboard_on_loopback_and_ends_with_its_command(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = program_of(tmp_path / "project")
    job = kinetic.run(accelerator="cpu", profile=4)(program.has_a_profile).run_async()
    job.result(timeout=120)
    assert job.profile_dir()
    free = free_port()
    installed(tmp_path / "packages", "tensorboard")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path / "packages"), *sys.path)))
    shown = kinor("tensorboard", job.job_id, "--port", free, "--xprof")
    assert shown.code == 2 and "pip install tensorboard xprof" in shown.err
    installed(tmp_path / "packages", "xprof")
    for ends in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
        with forwarded("tensorboard", job.job_id, "--port", free, "--xprof", ends=ends) as told:
            assert told["url"] == f"http://127.0.0.1:{free}/#profile"
            words = ["--logdir", job.profile_dir(), "--port", free, "--host", "127.0.0.1"]
            assert page(f"127.0.0.1:{free}") == repr(words).encode()
        wait_until(lambda: not listens(int(free)), "nothing listens any more", within=20.0)
