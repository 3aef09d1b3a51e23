"""TensorBoard and XProf: what is missing is named, and a program of another package is started, shown and awaited."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

from kinetic_orchestration.errors import HostNotReached, UsageError
from kinetic_orchestration.reach import boards
from kinetic_orchestration.reach.boards import TENSORBOARD, XPROF, Board
from tests.support.entered import page
from tests.support.ports import held_port

SHOWN = Board("Shown", "shown-board", ("shown_board",), "shown-board", "no_module_of_buckets")
SERVER = """
import argparse, http.server, os, threading

def main():
    words = argparse.ArgumentParser()
    for name in ("logdir", "host", "port"):
        words.add_argument(f"--{name}")
    told = words.parse_args()
    if os.path.exists(f"{told.logdir}/broken"):
        return 4
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            said = " ".join(sorted(os.listdir(told.logdir))).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)
            if self.path == "/end":
                threading.Thread(target=self.server.shutdown).start()
        def log_message(self, *_):
            pass
    http.server.ThreadingHTTPServer((told.host, int(told.port)), Page).serve_forever()
    return 3
"""


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file, beside an installed package whose command serves the names of files."""
    site = tmp_path / "site"
    about = site / "shown_board-1.dist-info"
    about.mkdir(parents=True)
    (site / "shown_board.py").write_text(SERVER)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shown-board\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[console_scripts]\nshown-board = shown_board:main\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    importlib.invalidate_caches()
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "events.out").touch()
    return folder


def test_a_board_shows_a_folder_on_loopback_until_it_ends(logs: Path) -> None:
    seen: list[bytes] = []
    with held_port() as held:
        port = held.getsockname()[1]

    def ready(at: int) -> None:
        seen.append(page(f"127.0.0.1:{at}", "end"))

    assert boards.serve(SHOWN, str(logs), port, ready) == 3 and seen == [b"events.out"]
    (logs / "broken").touch()
    with pytest.raises(HostNotReached, match="Shown has ended with exit code 4"):
        boards.serve(SHOWN, str(logs), port, ready)


def test_what_a_board_lacks_is_named(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for board, package in ((TENSORBOARD, "tensorboard"), (XPROF, "tensorboard xprof")):
        lacking = board._replace(modules=("os", "no_such_module_of_a_board"))
        with pytest.raises(UsageError, match=f"pip install {package}. What it would show is in /anywhere"):
            boards.line(lacking, "/anywhere", 6006)
    with pytest.raises(UsageError, match="pip install no_module_of_buckets"):
        boards.line(SHOWN, "gs://bucket/of/a/job", 6006)
    with pytest.raises(UsageError, match="is not there yet"):
        boards.line(SHOWN, str(logs / "absent"), 6006)
