"""The environment on a host: built once, whole or not at all, with the real uv and wheels made by hand."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kinetic_orchestration.host.prepare import environment
from kinetic_orchestration.host.prepare.environment import BuildFailed, ensure, hold, prune
from kinetic_orchestration.packaging.requirements.locks import Lock, lock, uv_settings
from kinetic_orchestration.packaging.requirements.resolution import find_uv
from tests.support.wheels import offline, wheel


class Host:
    """A machine with its own home, one folder of wheels, and a uv that keeps a list of its calls."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.root = str(tmp_path / "environments")
        self.links = tmp_path / "links"
        wheel(self.links, "alpha")
        wheel(self.links, "beta", "2.0", ["alpha>=1"])
        environ = offline(tmp_path)
        self.env = {**environ, **uv_settings(environ)}
        self.lock = lock(["beta"], environ=environ)
        self.calls = tmp_path / "calls"
        self.uv = str(tmp_path / "uv")
        self.slow = tmp_path / "slow"
        # A uv that waits in the middle of an installation while the file `slow` is there.
        Path(self.uv).write_text(
            f'#!/bin/sh\necho "$1" >> {shlex.quote(str(self.calls))}\n'
            f'if [ "$1" = pip ]; then while [ -e {shlex.quote(str(self.slow))} ]; do sleep 0.02; done; fi\n'
            f'exec {shlex.quote(self.lock.uv)} "$@"\n'
        )
        os.chmod(self.uv, 0o755)

    def ensure(self, found: Lock | None = None, **more: str) -> str:
        found = found or self.lock
        lines: list[str] = []
        self.said = lines
        arguments = {"uv": self.uv, "python": found.interpreter, **more}
        return ensure(found.text, found.digest, self.root, env=self.env, note=lines.append, **arguments)

    def start(self) -> subprocess.Popen[str]:
        """Another job on this host that wants the same environment."""
        program = (
            "import json, sys\n"
            "from kinetic_orchestration.host.prepare.environment import ensure\n"
            "print(ensure(**json.load(sys.stdin), note=lambda line: print(line, file=sys.stderr)))\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", program], text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        found = self.lock
        with process.stdin as pipe:
            json.dump(
                {"lock_text": found.text, "digest": found.digest, "root": self.root, "uv": self.uv}
                | {"python": found.interpreter, "env": self.env},
                pipe,
            )
        process.stdin = None
        return process

    def called(self, what: str) -> int:
        return self.calls.read_text().split().count(what) if self.calls.exists() else 0

    def wait_for(self, what: str, times: int = 1) -> None:
        deadline = time.monotonic() + 30
        while self.called(what) < times:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.slow.unlink(missing_ok=True)


def imports(python: str, program: str) -> str:
    environ = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        [python, "-c", program],
        capture_output=True,
        text=True,
        env=environ,
        cwd=Path(python).parent,
        check=False,
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_a_job_gets_what_its_lock_names_and_nothing_else(host: Host) -> None:
    python = host.ensure()
    assert imports(python, "import beta, alpha; print(beta.version, alpha.version)") == "2.0 1.0"
    assert "No module named" in imports(python, "import pytest")
    assert "No module named" in imports(python, "import kinetic_orchestration")
    assert host.said[0] == "building the environment: 2 packages"
    assert host.said[1].startswith("the environment is ready after")


def test_the_second_use_costs_nothing(host: Host) -> None:
    first = host.ensure()
    calls = host.calls.read_text()
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        assert host.ensure() == first
        seconds.append(time.perf_counter() - started)
        assert host.said == []
    assert min(seconds) < 0.2
    assert host.calls.read_text() == calls


def test_eight_jobs_at_once_build_it_once(host: Host) -> None:
    host.slow.touch()
    jobs = [host.start() for _ in range(8)]
    host.wait_for("pip")
    host.slow.unlink()
    ends = [job.communicate(timeout=60) for job in jobs]
    assert [job.returncode for job in jobs] == [0] * 8, ends
    assert len({out for out, _ in ends}) == 1
    assert host.called("venv") == 1
    assert sum("building the environment: 2 packages" in err for _, err in ends) == 1
    assert imports(ends[0][0].strip(), "import beta; print(beta.version)") == "2.0"


def test_a_builder_killed_in_mid_build_leaves_nothing_that_counts(host: Host) -> None:
    host.slow.touch()
    job = host.start()
    host.wait_for("pip")
    os.killpg(job.pid, signal.SIGKILL)
    job.communicate(timeout=30)
    host.slow.unlink()
    (left,) = (entry for entry in Path(host.root).iterdir() if entry.is_dir())
    assert not (left / environment.MARKER).exists()
    (left / "lib/rubble").write_text("of the build that died")
    python = host.ensure()
    assert host.called("venv") == 2
    assert not (left / "lib/rubble").exists()
    assert imports(python, "import beta; print(beta.version)") == "2.0"


def test_a_uv_that_outlives_its_builder_is_waited_for(host: Host) -> None:
    """Its orphan would write into the folder of the next builder."""
    host.slow.touch()
    first = host.start()
    host.wait_for("pip")
    os.kill(first.pid, signal.SIGKILL)
    first.wait(timeout=30)
    second = host.start()
    assert second.stderr is not None
    assert "another process builds it" in second.stderr.readline()
    assert host.called("venv") == 1
    host.slow.unlink()
    out, _ = second.communicate(timeout=60)
    first.communicate(timeout=30)
    assert host.called("venv") == 2
    assert imports(out.strip(), "import beta; print(beta.version)") == "2.0"


def test_other_locks_roots_and_interpreters_are_other_environments(host: Host, tmp_path: Path) -> None:
    keys = {
        environment.key("a", sys.executable, "/one"),
        environment.key("b", sys.executable, "/one"),
        environment.key("a", sys.executable, "/two"),
        environment.key("a", "3.12", "/one"),
    }
    assert len(keys) == 4
    link = tmp_path / "python"
    link.symlink_to(os.path.realpath(sys.executable))
    assert environment.key("a", str(link), "/one") in keys  # a virtual environment's python is its base's
    with pytest.raises(BuildFailed, match="cannot be used"):
        environment.key("a", str(tmp_path / "gone"), "/one")


def test_an_environment_whose_interpreter_is_gone_is_built_again(host: Host) -> None:
    python = Path(host.ensure())
    python.unlink()
    assert host.ensure() == str(python)
    assert imports(str(python), "import beta; print(beta.version)") == "2.0"


def test_an_empty_lock_is_an_empty_environment(host: Host) -> None:
    found = lock([], environ=host.env)
    assert "No module named" in imports(host.ensure(found), "import alpha")
    assert host.said[0] == "building the environment: 0 packages"


def test_another_file_under_a_locked_name_is_refused(host: Host) -> None:
    wheel(host.links, "alpha", "1.0", files={"alpha.py": "version = 'tampered'\n"})
    host.env["UV_CACHE_DIR"] = str(host.folder / "a cache without the right one")
    with pytest.raises(BuildFailed) as caught:
        host.ensure()
    message = str(caught.value)
    assert "`uv pip sync` failed" in message
    assert "hash" in message.lower()
    with pytest.raises(BuildFailed):  # what failed is not taken for whole
        host.ensure()


class Index(ThreadingHTTPServer):
    """A package index that is out of order for so many questions."""

    def __init__(self, links: Path, refuses: int) -> None:
        self.links, self.refuses = links, refuses
        super().__init__(("127.0.0.1", 0), Shelves)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/simple"


class Shelves(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        self.server.refuses -= 1
        found = [path for path in self.server.links.iterdir() if path.name.startswith(self.path.split("/")[2])]
        file = self.server.links / self.path.rsplit("/", 1)[-1]
        page = "".join(f'<a href="/files/{path.name}">{path.name}</a>' for path in found).encode()
        self.send_response(503 if self.server.refuses >= 0 else 200)
        self.send_header("Content-Type", "text/html" if self.path.startswith("/simple") else "application/zip")
        self.end_headers()
        if self.server.refuses < 0:
            self.wfile.write(page if self.path.startswith("/simple") else file.read_bytes())

    def log_message(self, *_: object) -> None:
        """Not on the terminal."""


@pytest.fixture
def index(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """The host asks one, and has nothing else; uv itself does not ask again."""
    monkeypatch.setattr(environment, "PAUSES", (0.05, 0.1, 0.15))
    begun: list[Index] = []

    def asked(refuses: int) -> None:
        server = Index(host.links, refuses)
        begun.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        for name in [name for name in host.env if name.startswith("UV_") and ("INDEX" in name or "LINKS" in name)]:
            del host.env[name]
        more = {
            "UV_DEFAULT_INDEX": server.url,
            "UV_HTTP_RETRIES": "0",
            "UV_CACHE_DIR": str(tmp_path / "an empty cache"),
        }
        host.env.update(more)

    yield asked
    for server in begun:
        server.shutdown()
        server.server_close()


def test_an_index_that_is_out_of_order_for_a_moment_is_asked_again(host: Host, index: Callable[[int], None]) -> None:
    index(2)
    assert imports(host.ensure(), "import beta; print(beta.version)") == "2.0"
    assert sum("the package index is asked again in " in line for line in host.said) >= 1


def test_an_index_that_stays_out_of_order_is_no_matter_of_the_lock(host: Host, index: Callable[[int], None]) -> None:
    index(1000)
    with pytest.raises(BuildFailed, match="503") as caught:
        host.ensure()
    assert caught.value.passing
    assert sum("the package index is asked again in " in line for line in host.said) == 3


def test_what_is_missing_is_told_in_uvs_own_words(host: Host, tmp_path: Path) -> None:
    for path in host.links.iterdir():
        path.unlink()
    with pytest.raises(BuildFailed, match=r"(?s)alpha.*give this host the package index") as caught:
        host.ensure()
    assert not caught.value.passing
    with pytest.raises(BuildFailed, match="python -m pip install uv"):
        host.ensure(uv=str(tmp_path / "no uv"))
    blocked = tmp_path / "file"
    blocked.write_text("")
    host.root = str(blocked / "environments")
    with pytest.raises(BuildFailed, match="could not be written"):
        host.ensure()


def test_a_warm_cache_needs_no_index(host: Host, tmp_path: Path) -> None:
    """The index may be down for a package that uv has already."""
    host.ensure()
    shutil.rmtree(host.root)
    assert imports(host.ensure(), "import beta; print(beta.version)") == "2.0"
    assert host.called("pip") == 2  # each time the first try, without an index, was enough


def test_environments_that_nobody_used_for_long_are_deleted(host: Host) -> None:
    old, new = host.ensure(), host.ensure(lock(["alpha"], environ=host.env))
    marker = Path(old).parent.parent / environment.MARKER
    month_ago = time.time() - 30 * 86_400
    os.utime(marker, (month_ago, month_ago))
    held = hold(old)
    assert prune(host.root, keep_days=7) == []  # a job runs in it
    os.close(held)
    host.ensure()
    assert prune(host.root, keep_days=7) == []  # it was used just now
    os.utime(marker, (month_ago, month_ago))
    assert prune(host.root, keep_days=7) == [str(marker.parent)]
    assert Path(new).exists()
    assert not marker.parent.exists()
    assert host.ensure() == old
    assert prune(str(host.folder / "none"), keep_days=7) == []


def test_rubble_is_deleted_but_never_under_a_builder(host: Host) -> None:
    host.slow.touch()
    job = host.start()
    host.wait_for("pip")
    assert prune(host.root, keep_days=0) == []
    os.killpg(job.pid, signal.SIGKILL)
    job.communicate(timeout=30)
    host.slow.unlink()
    deadline = time.monotonic() + 30
    while not (deleted := prune(host.root, keep_days=7)) and time.monotonic() < deadline:
        time.sleep(0.01)  # a uv that was killed may take a moment to let go of the lock
    assert len(deleted) == 1


def test_the_builder_needs_only_the_standard_library_of_an_old_python(host: Host) -> None:
    """It runs on hosts before anything of the user's is there; its start is on the way of every job."""
    source = Path(environment.__file__)
    program = (
        "import sys, importlib.util as u\n"
        f"m = u.module_from_spec(s := u.spec_from_file_location('e', {str(source)!r})); s.loader.exec_module(m)\n"
        "print(sorted(set(sys.modules) & {'subprocess', 'typing', 'json', 'hashlib', 'shutil', 'dataclasses'}))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    assert "subprocess" not in done.stdout
    assert "hashlib" not in done.stdout


REAPED = """
import os, sys, threading
from kinetic_orchestration.host.prepare import environment

def collect():
    while True:
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            pass

threading.Thread(target=collect, daemon=True).start()
lock = "nowhere-to-be-found==1.0 --hash=sha256:" + "0" * 64
for attempt in range(5):
    try:
        environment.ensure(lock + "\\n" * attempt, str(attempt), sys.argv[1], uv=sys.argv[2], python=sys.executable, note=str)
    except environment.BuildFailed:
        print("failed")
"""


def test_a_failed_build_is_known_though_somebody_else_collects_its_process(tmp_path: Path) -> None:
    """The agent's loop waits for every child of the process while an environment is built on a thread beside it."""
    env = {**offline(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path), "UV_NO_INDEX": "1", "UV_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", REAPED, str(tmp_path / "environments"), find_uv(os.environ)],
        env=env, capture_output=True, text=True, timeout=90, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["failed"] * 5, done.stderr
