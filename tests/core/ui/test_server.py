"""The page's server, asked by real requests: who gets an answer, what stands in it, and what it never does."""

from __future__ import annotations

import http.client
import io
import json
import os
import pty
import re
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.platforms.shared import agent_zip
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.system import copies
from kinetic_orchestration.ui import server
from tests.support import many_jobs
from tests.support.page_server import Page, serving
from tests.support.waits import wait_until

PAGES = Path(server.__file__).parent / "page"
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b]0;title\x07\x1b[2J \u202egnp.exe \u2066"


def work(lines: int) -> int:
    import time

    host = kinetic.current()
    for number in range(lines):
        print(f"line {number} {HOSTILE}" if number == 3 else f"line {number}")
        host.log_metrics(step=number, loss=1 / (number + 1))
        time.sleep(0.01)
    return lines


@pytest.fixture(scope="module")
def job(shared_home: Path) -> JobHandle[int]:
    handle = kinetic.run(accelerator="cpu")(work).run_async(40)
    assert handle.result() == 40
    return handle


@pytest.fixture(scope="module")
def hostile(shared_home: Path, job: JobHandle[int]) -> list[str]:
    """Two other jobs, whose names, runs and reasons say what nobody should obey; the name of the second is too long."""
    jobs = shared_home / "store" / "local" / "jobs"
    made = many_jobs.copy(jobs, job.job_id, 2)
    for other, letters in zip(made, (4_000, 10_000), strict=True):
        spec = jobs / other / "in" / "spec.json"
        fields, name = wire.decode(spec.read_bytes()), (HOSTILE * 200)[:letters]
        fields |= {"name": name, "plan": {**fields["plan"], "name": name}, "origin": {"dag": HOSTILE, "run": HOSTILE}}
        spec.write_bytes(wire.encode(fields))
    return made


@pytest.fixture(scope="module")
def page(job: JobHandle[int], hostile: list[str]) -> Iterator[Page]:
    with serving() as page:
        yield page


def test_only_its_token_opens_it_and_is_gone_from_the_address(page: Page) -> None:
    assert page.ask("/", cookie="").status == 403
    stranger = page.exchange("another")
    assert stranger.status == 403 and "set-cookie" not in stranger.headers
    assert (
        "This token is not of this page" in stranger.json["error"]
        and "`kinor ui` has printed" in stranger.json["error"]
    )
    assert page.exchange("").status == page.exchange("%F0%9F%94%91").status == 403
    given = page.exchange(page.token)
    assert (given.status, given.headers["location"]) == (303, "/")
    name, *attributes = given.headers["set-cookie"].split("; ")
    assert name.startswith(f"kinor-ui-{page.port}=") and page.token not in name
    assert {*attributes} == {"HttpOnly", "SameSite=Strict", "Path=/"}
    assert page.ask("/").status == page.ask("/", cookie=f"other=1; {page.cookie}").status == 200
    of_another_port = page.cookie.replace(str(page.port), str(page.port + 1))
    assert page.ask("/", cookie=of_another_port).status == page.ask("/", cookie=f"{page.cookie}x").status == 403
    # A link from another site brings no cookie along: a person gets a link that does.
    shown = page.ask("/", cookie="", Accept="text/html")
    assert (shown.status, shown.headers["content-type"]) == (403, "text/html; charset=utf-8")
    assert b'<a href="/">' in shown.data


def test_a_browsers_command_line_has_a_token_that_opens_the_page_once(shared_home: Path, tmp_path: Path) -> None:
    told, browser = tmp_path / "told", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >{told}.new && mv {told}.new {told}\n')
    browser.chmod(0o700)
    environ = {**copies.environ(), "BROWSER": str(browser), "DISPLAY": ":0"}
    terminal, other = pty.openpty()
    command = [sys.executable, "-m", "kinetic_orchestration.cli", "ui"]
    with subprocess.Popen(command, stdout=other, stderr=subprocess.DEVNULL, env=environ) as process:
        try:
            os.close(other)
            wait_until(told.exists, "the browser is started")
            shown = os.read(terminal, 10_000).decode()
            printed = re.search(r"http://\S+", shown)
            assert printed, shown
            page, (address, _, once) = Page(printed[0]), told.read_text().strip().partition("?token=")
            assert address == page.address and once and once != page.token
            assert page.token not in told.read_text()
            first = page.exchange(once)
            assert (first.status, page.exchange(once).status) == (303, 403)
        finally:
            process.terminate()
            os.close(terminal)


def test_it_answers_under_the_names_of_loopback_alone_and_to_its_own_page(page: Page) -> None:
    for host in (
        "evil.example",
        f"evil.example:{page.port}",
        f"127.0.0.1.evil.example:{page.port}",
        "",
        "[::2]:80",
        "0.0.0.0",
    ):
        assert page.ask("/api/jobs", Host=host).status == 421, host
        assert page.ask(f"/?token={page.token}", cookie="", Host=host).status == 421, host
    for host in ("127.0.0.1", f"localhost:{page.port}", "LOCALHOST", f"[::1]:{page.port}", "127.0.0.1:9999"):
        assert page.ask("/api/store", Host=host).status == 200, host
    both = f"GET /api/store HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nCookie: {page.cookie}\r\n\r\n"
    assert _raw(page, both).startswith(b"HTTP/1.1 421 ")
    for site in ("cross-site", "same-site"):
        assert page.ask("/api/jobs", Sec_Fetch_Site=site).status == 403
    assert page.ask("/api/jobs", Sec_Fetch_Site="same-origin").status == 200


def test_it_is_only_read_and_says_so_with_its_policy_on_every_answer(page: Page) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"):
        refused = page.ask("/api/jobs", method=method)
        assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD"), method
    head = page.ask("/", method="HEAD")
    assert (head.status, head.data) == (200, b"") and int(head.headers["content-length"]) > 500
    answers = [
        head,
        page.ask("/"),
        page.ask("/", cookie=""),
        page.ask("/nothing"),
        page.ask("/", method="POST"),
        page.ask("/app.js"),
    ]
    for answer in (*answers, page.exchange(page.token), page.ask("/api/jobs")):
        assert answer.headers["content-security-policy"] == (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["server"] == "kinor"
    broken = _raw(page, "nonsense\r\n\r\n")
    assert b" 400 " in broken.partition(b"\r\n")[0] and b"Content-Security-Policy" in broken
    for file in PAGES.iterdir():
        text = file.read_text("utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|srcdoc", text
        ), file
        if file.suffix == ".html":
            assert not re.search(r"<script(?![^>]*\ssrc=)|\sstyle=|\son\w+=|https?://", text), file


def test_no_path_leads_out_of_the_page_and_no_id_out_of_the_jobs(page: Page, shared_home: Path) -> None:
    outside = (
        "/../server.py",
        "/%2e%2e/server.py",
        "/page/../../errors.py",
        "//etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/style.css/",
        "/\\..\\x",
    )
    for path in outside:
        assert page.ask(path).status == 404, path
    for job_id in (
        "../../deployment",
        "job-x/../../deployment.json",
        "",
        "job-",
        "job-%00",
        "job-" + "a" * 500,
        "..%2f..",
        "job-ffffffffffff",
    ):
        assert page.ask(f"/api/job?id={job_id}").status == 404, job_id
        assert page.ask(f"/api/stream?id={job_id}").status == 404, job_id
    assert page.ask("/api/rows?ids=../../deployment,job-ffffffffffff").json == {"rows": []}
    for senseless in ("/api/jobs?" + "a=1&" * 20, "/api/jobs?since=" + "9" * 5000):
        assert page.ask(senseless).status == 400, senseless
    nowhere = f"GET http://[ HTTP/1.1\r\nHost: localhost\r\nCookie: {page.cookie}\r\n\r\n"
    assert b" 400 " in _raw(page, nowhere).partition(b"\r\n")[0]
    assert page.ask("/api/jobs?since=-1").status == page.ask("/api/jobs?since=" + "9" * 40).status == 200


def test_what_hostile_writers_say_is_letters(page: Page, job: JobHandle[int], hostile: list[str]) -> None:
    """No control character, none that turns the direction of writing, leaves the server: the page makes text of the rest."""
    row, longer = page.ask(f"/api/rows?ids={','.join(hostile)}").json["rows"]
    assert row[0] == hostile[0] and row[3].startswith("<script>") and len(row[3]) < 1000
    assert (longer[0], longer[2]) == (hostile[1], "DAMAGED") and "its name is" in longer[10]
    refused = page.ask(f"/api/job?id={hostile[1]}")
    assert refused.status == 503 and f"jobs/{hostile[1]}/in/spec.json cannot be read" in refused.json["error"]
    told = page.ask(f"/api/job?id={hostile[0]}").json
    assert len(told["name"]) >= 4_000 and r"\x1b]0;title\x07" in told["name"] and r"\u202egnp.exe" in told["name"]
    with page.stream(job.job_id) as events:
        lines = [line for name, _, data in events if name == "log" for line in data]
    assert [line[3] for line in lines if "alert" in line[3]] == [
        r"line 3 <script>alert(1)</script><img src=x onerror=alert(2)>\x1b]0;title\x07\x1b[2J \u202egnp.exe \u2066"
    ]
    for answer in (page.ask(f"/api/job?id={hostile[0]}"), refused, page.ask("/api/jobs")):
        assert not re.search(rb"[\x00-\x08\x0b-\x1f\x7f-\xff]", answer.data)
        assert "\x1b" not in json.dumps(answer.json, ensure_ascii=False)


def test_a_stream_has_every_line_once_also_when_it_was_cut(page: Page, job: JobHandle[int]) -> None:
    running = kinetic.run(accelerator="cpu")(work).run_async(150)
    seen, mark = list[str](), ""
    with page.stream(running.job_id) as events:
        for name, reached, data in events:
            mark = reached or mark
            if name == "log":
                seen += [line[3] for line in data]
            if len(seen) > 10:
                break
    assert len(seen) < 150, "the job has ended before the stream was cut: it shows nothing"
    pictures = []
    with page.stream(running.job_id, mark) as events:
        told = list(events)
    seen += [line[3] for name, _, data in told if name == "log" for line in data]
    pictures = [data for name, _, data in told if name == "curves"]
    assert [line.split()[1] for line in seen] == [str(number) for number in range(150)]
    assert told[-1][0] == "end" and [data["state"] for name, _, data in told if name == "state"][-1] == "SUCCEEDED"
    assert pictures and "loss" in pictures[-1] and 'fill="#fff' not in pictures[-1]
    for forged in ("1;9999999.0", "0;", "x", "1;0.0,0.0,0.0", "999999;0.0", "1;" + "0.0," * 5000):
        with page.stream(running.job_id, forged) as events:
            assert next(events)[0] == "begin"
    assert running.result() == 150


def test_who_reads_slowly_or_says_nothing_keeps_nobody_waiting_and_who_is_too_many_is_let_go(page: Page) -> None:
    slow = [socket.create_connection(("127.0.0.1", page.port)) for _ in range(server.MOST_CONNECTIONS)]
    try:
        for number, each in enumerate(slow[: server.MOST_CONNECTIONS // 2]):
            question = "/api/jobs" if number % 2 else "/app.js"
            each.sendall(f"GET {question} HTTP/1.1\r\nHost: localhost\r\nCookie: {page.cookie}\r\n\r\n".encode())
        for each in slow[server.MOST_CONNECTIONS // 2 : -1]:
            each.sendall(b"GET / HT")
        with socket.create_connection(("127.0.0.1", page.port)) as extra:
            extra.settimeout(20)
            extra.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert _received(extra) == b""
        slow.pop().close()
        slow.pop().close()
        _until_answered(page)
    finally:
        for each in slow:
            each.close()
    _until_answered(page)


def test_a_store_that_goes_is_told_of_and_one_that_comes_back_is_shown(
    page: Page, job: JobHandle[int], shared_home: Path
) -> None:
    store, away = shared_home / "store", shared_home / "moved"
    assert page.ask("/api/jobs").json["total"] >= 2
    store.rename(away)
    try:
        gone = wait_until(lambda: (it := page.ask("/api/jobs")).status != 200 and it, "the store is missed", pause=0.2)
        assert gone.status == 503 and f"there is no store at {store}/local any more" in gone.json["error"]
        assert page.ask(f"/api/job?id={job.job_id}").status == 404
        assert page.ask("/").status == 200
    finally:
        away.rename(store)
    assert page.ask("/api/jobs").json["total"] >= 2
    assert page.ask(f"/api/job?id={job.job_id}").json["state"] == "SUCCEEDED"


def test_nothing_begins_over_a_store_that_cannot_be_read_or_on_a_port_that_is_taken(page: Page, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for more, said in (
        (("--store", str(tmp_path / "file")), "file"),
        (("--port", str(page.port)), f"port {page.port} of 127.0.0.1 cannot be had"),
        (("--port", "65536"), "is no port"),
    ):
        command = [sys.executable, "-m", "kinetic_orchestration.cli", "ui", "--no-browser", *more]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert ended.returncode != 0 and said in ended.stderr and "Traceback" not in ended.stderr, ended.stderr
        assert "token" not in ended.stdout


def test_its_files_travel_with_the_package_and_not_to_hosts() -> None:
    assert {name for name, _ in server.PAGES.values()} == {file.name for file in PAGES.iterdir()}
    with zipfile.ZipFile(io.BytesIO(agent_zip.build().data)) as archive:
        assert [name for name in archive.namelist() if "/ui/" in name or "/page/" in name] == []


def _raw(page: Page, request: str) -> bytes:
    with socket.create_connection(("127.0.0.1", page.port), timeout=20) as connection:
        connection.sendall(request.encode())
        connection.shutdown(socket.SHUT_WR)
        return _received(connection)


def _received(connection: socket.socket) -> bytes:
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def _until_answered(page: Page) -> None:
    """Wait until a connection that was closed has made room."""

    def answered() -> bool:
        try:
            return page.ask("/api/store").status == 200
        except (OSError, http.client.HTTPException):
            return False

    wait_until(answered, "the page answers")
