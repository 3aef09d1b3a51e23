"""Files of a hub on a host: fetched by the hub's own library in a process of its own, from a server that speaks its API."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kinetic_orchestration.host.prepare.data import hub, hub_fetch
from kinetic_orchestration.host.prepare.data.cached import cached
from kinetic_orchestration.packaging.data import hub as client
from kinetic_orchestration.protocol.content import pins
from tests.core.program.conftest import on_a_small_disk
from tests.support.hub_server import TOKEN, HubServer
from tests.support.waits import wait_until
from tests.support.xet_storage import CHUNK, CHUNKS, XetStorage
from tests.support.xet_storage import TOKEN as TOKEN_OF_STORAGE

SMALL, LARGE = b'{"model_type": "tiny"}', os.urandom(1 << 16)
FILES = {"config.json": SMALL, "weights/model.safetensors": LARGE}


@pytest.fixture
def server() -> Iterator[HubServer]:
    with HubServer() as found:
        yield found


@pytest.fixture
def xet(server: HubServer) -> Iterator[XetStorage]:
    """The storage of Xet, in which the hub's large files are as well."""
    with XetStorage() as found:
        server.xet = found
        yield found


def pinned(server: HubServer, name: str = "owner/tiny", **environ: str) -> pins.Pinned:
    return client.find(f"hf://{name}", {"HF_ENDPOINT": server.url, "HF_TOKEN_PATH": "/nowhere", **environ}).pinned


def fetch(found: pins.Pinned, root: Path, python: str = sys.executable, **environ: str) -> Path:
    root.mkdir(exist_ok=True)
    given = {**os.environ, "HF_TOKEN_PATH": "/nowhere", "HF_HOME": str(root / "home"), **environ}
    return Path(hub.fetch(found, str(root), python, given, print))


def filled(root: Path, bring: Callable[[str, int], str], note: Callable[[str], object] = print) -> str:
    return cached(str(root), bring, what="hf://owner/tiny", note=note, resumes=True)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_pinned_commit_is_fetched_after_the_branch_has_moved(server: HubServer, tmp_path: Path) -> None:
    server.push("owner/tiny", FILES)
    found = pinned(server)
    server.push("owner/tiny", {"config.json": b"{}"})
    assert content(fetch(found, tmp_path)) == FILES
    assert content(tmp_path) == {f"content/{name}": data for name, data in FILES.items()}  # and nothing beside it
    assert not [one for one in server.fetched("model.safetensors") if one.token]


def test_a_byte_that_is_flipped_on_the_way_is_found_and_fetched_again(
    server: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.push("owner/tiny", FILES)
    server.flip["weights/model.safetensors"] = 1
    assert content(fetch(pinned(server), tmp_path)) == FILES
    assert "model.safetensors of hf://owner/tiny@" in capsys.readouterr().out
    shutil.rmtree(tmp_path)
    server.flip["config.json"] = 2
    with pytest.raises(
        hub.Unfetched, match=r"config.json came 2 times with other bytes .*\(git:[0-9a-f]{40}\)"
    ) as caught:
        fetch(pinned(server), tmp_path)
    assert caught.value.passing
    assert content(tmp_path / "content") == {"weights/model.safetensors": LARGE}
    assert content(fetch(pinned(server), tmp_path)) == FILES


def test_without_room_nothing_is_fetched_and_the_message_has_both_sizes(server: HubServer, tmp_path: Path) -> None:
    server.push("owner/tiny", FILES)
    server.sizes["weights/model.safetensors"] = 1 << 50
    with pytest.raises(
        hub.Unfetched, match=r"does not fit on this host: 1,125,899\.9 GB are still to come, and the disk"
    ):
        fetch(pinned(server), tmp_path)
    assert not server.fetched("model.safetensors") and content(tmp_path) == {}


def fetched_until(found: pins.Pinned, folder: Path, size: int, waiting: threading.Event) -> tuple[Path, Path]:
    """Fetch in a process that is killed once the largest file has so many bytes; the folder, and the file's part."""
    (folder / "list").write_bytes(found.encode())
    program = (
        "import os, sys; from kinetic_orchestration.host.prepare.data import hub; "
        "from kinetic_orchestration.protocol.content import pins; "
        "found = pins.decode(open(sys.argv[1], 'rb').read(), sys.argv[2]); "
        "hub.fetch(found, sys.argv[3], sys.executable, dict(os.environ), print)"
    )
    root = folder / "root"
    root.mkdir()
    environ = {**os.environ, "HF_TOKEN_PATH": "/nowhere", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, str(folder / "list"), found.digest, str(root)]
    part = Path(hub._part(str(root), max(found.files, key=lambda file: file.size)))
    agent = subprocess.Popen(command, env=environ, start_new_session=True)
    try:
        assert waiting.wait(60)
        wait_until(lambda: part.stat().st_size >= size)
    finally:
        os.killpg(agent.pid, signal.SIGKILL)
        agent.wait()
    return root, part


def test_a_fetch_that_is_killed_in_the_middle_of_a_file_goes_on_there(server: HubServer, tmp_path: Path) -> None:
    """The library writes 10 MiB at a time."""
    large = {"config.json": SMALL, "weights/model.safetensors": os.urandom(25 << 20)}
    server.push("owner/tiny", large)
    server.cut["weights/model.safetensors"] = 24 << 20
    found = pinned(server)
    root, part = fetched_until(found, tmp_path, 20 << 20, server.held)
    there = part.stat().st_size
    server.release.set()
    assert there <= 24 << 20
    assert content(fetch(found, root)) == large
    assert server.fetched("model.safetensors")[-1].span == f"bytes={there}-"


@pytest.mark.parametrize("goes_on", ["by Xet", "by the ordinary address"])
def test_a_file_in_xet_storage_comes_by_hf_xet_and_goes_on_in_the_middle_after_a_kill(
    server: HubServer, xet: XetStorage, tmp_path: Path, goes_on: str
) -> None:
    """By itself `hf_xet` keeps nothing."""
    large = {"config.json": SMALL, "weights/model.safetensors": os.urandom(7 * CHUNK * CHUNKS // 2)}
    server.push("owner/secret", large, private=True)
    found = pinned(server, "owner/secret", HF_TOKEN=TOKEN)
    xet.held = {2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", TOKEN)
        root, part = fetched_until(found, tmp_path, 2 * CHUNK * CHUNKS, xet.waiting)
    there = part.stat().st_size
    assert 2 * CHUNK * CHUNKS <= there < 3 * CHUNK * CHUNKS
    xet.release.set()
    asked = [*xet.asked]
    xet.asked.clear()
    xet.away = goes_on != "by Xet"
    assert content(fetch(found, root, HF_TOKEN=TOKEN)) == large
    assert not any(TOKEN in token for _, token in [*asked, *xet.asked]), "the storage has a token of its own"
    if xet.away:
        assert [one.span for one in server.fetched("model.safetensors")] == [f"bytes={there}-"]
        return
    assert not {0, 1} & {*xet.objects()} and {2, 3} <= {*xet.objects()}
    assert {token for path, token in xet.asked if "/reconstructions/" in path} == {TOKEN_OF_STORAGE}
    assert not server.fetched("model.safetensors"), "not by the ordinary address as well"


def test_what_xet_storage_damages_or_has_where_nobody_answers_comes_from_the_ordinary_address(
    server: HubServer, xet: XetStorage, tmp_path: Path
) -> None:
    server.push("owner/tiny", FILES)
    found = pinned(server)
    xet.elsewhere = "http://127.0.0.1:1"
    assert content(fetch(found, tmp_path / "away")) == FILES
    assert len(server.fetched("model.safetensors")) == 1
    xet.elsewhere, xet.flip = "", True
    assert content(fetch(found, tmp_path / "flipped")) == FILES
    assert xet.objects() and len(server.fetched("model.safetensors")) == 2
    xet.asked.clear()
    assert content(fetch(found, tmp_path / "without", HF_HUB_DISABLE_XET="1")) == FILES and not xet.asked


def test_a_private_repository_takes_the_programs_token_which_no_message_has(server: HubServer, tmp_path: Path) -> None:
    server.push("owner/secret", FILES, private=True)
    found = pinned(server, "owner/secret", HF_TOKEN=TOKEN)
    with pytest.raises(hub.Unfetched, match=r"refuses .* with 401: give the job a token .*HF_TOKEN") as caught:
        fetch(found, tmp_path)
    assert not caught.value.passing
    with pytest.raises(hub.Unfetched, match="the hub shows the repository to no one with this token") as caught:
        fetch(found, tmp_path, HF_TOKEN="hf_of-another")
    assert "hf_of-another" not in str(caught.value)
    assert content(fetch(found, tmp_path, HF_TOKEN=TOKEN)) == FILES
    assert not [one for one in server.asked if one.path.startswith("/bytes") and one.token]  # the other origin


def test_an_environment_without_the_library_says_what_to_add(server: HubServer, tmp_path: Path) -> None:
    server.push("owner/tiny", FILES)
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    with pytest.raises(hub.Unfetched, match=r"has no huggingface_hub .* Add huggingface_hub to requirements="):
        fetch(pinned(server), tmp_path / "root", str(bare / "bin" / "python"))


def test_hosts_of_one_machine_fetch_each_file_once(server: HubServer, tmp_path: Path) -> None:
    server.push("owner/tiny", FILES)
    found, root, paths = pinned(server), tmp_path / "root", []

    def bring(to: str, lock: int) -> str:
        with (tmp_path / "root" / "lock").open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return str(fetch(found, Path(to)))

    hosts = [threading.Thread(target=lambda: paths.append(filled(root, bring))) for _ in range(3)]
    for host in hosts:
        host.start()
    for host in hosts:
        host.join()
    assert len(set(paths)) == 1 and content(Path(paths[0])) == FILES
    assert len(server.fetched("model.safetensors")) == 1


def test_after_a_power_cut_what_is_torn_is_found_and_fetched_again(server: HubServer, tmp_path: Path) -> None:
    server.push("owner/tiny", FILES)
    found, root, said = pinned(server), tmp_path / "root", []

    def bring(to: str, lock: int) -> str:
        given = {**os.environ, "HF_TOKEN_PATH": "/nowhere", "HF_HOME": str(tmp_path / "home")}
        return hub.fetch(found, to, sys.executable, given, said.append, (lock,))

    place = Path(filled(root, bring))
    (place / "weights" / "model.safetensors").write_bytes(bytes(len(LARGE)))
    filled(root, bring)
    assert content(place) != FILES, "in one run of the kernel nothing is read again"
    _, _, path = (root / "complete").read_text().partition("\n")
    (root / "complete").write_text(f"another-boot\n{path}")
    assert content(Path(filled(root, bring))) == FILES
    assert len(server.fetched("model.safetensors")) == 2 and len(server.fetched("config.json")) == 1
    assert any("model.safetensors" in line and "has other bytes here" in line for line in said)


def test_a_disk_that_gets_full_is_left_without_what_had_come(server: HubServer, tmp_path: Path) -> None:
    large = {"config.json": SMALL, "weights/model.safetensors": bytes(25 << 20)}
    server.push("owner/tiny", large)
    server.cut["weights/model.safetensors"] = 24 << 20
    found = pinned(server)
    (tmp_path / "list").write_bytes(found.encode())
    code = f"""
import json, os, sys, threading, time
from pathlib import Path
from kinetic_orchestration.host.prepare.data import hub
from kinetic_orchestration.protocol.content import pins

disk, folder = Path(sys.argv[1]), Path({str(tmp_path)!r})
found = pins.decode((folder / "list").read_bytes(), {found.digest!r})
part = Path(hub._part(str(disk), found.files[1]))

def fill():
    while not part.exists() or part.stat().st_size < 20 << 20:
        time.sleep(0.01)
    try:
        with (disk / "of-others").open("wb", buffering=0) as others:
            while True:
                others.write(bytes(1 << 16))
    except OSError:
        (folder / "full").touch()

threading.Thread(target=fill, daemon=True).start()
environ = {{**os.environ, "HF_TOKEN_PATH": "/nowhere", "HF_HOME": str(folder / "home")}}
try:
    hub.fetch(found, str(disk), sys.executable, environ, lambda _: None)
except hub.Unfetched as error:
    print(json.dumps([str(error), error.passing, sorted(path.name for path in disk.iterdir())]))
"""

    def go_on() -> None:
        if server.held.wait(50):
            wait_until((tmp_path / "full").exists)
        server.release.set()

    going_on = threading.Thread(target=go_on)
    going_on.start()
    try:
        said, _ = on_a_small_disk(code, tmp_path, "size=64m")
    finally:  # also where no disk can be mounted
        (tmp_path / "full").touch()
        server.held.set()
        going_on.join()
    message, passing, left = json.loads(said)
    assert "the disk is full at weights/model.safetensors, and what had come was removed" in message
    assert not passing and left == ["of-others"]


def test_one_file_of_a_repository(server: HubServer, tmp_path: Path) -> None:
    server.push("owner/tiny", FILES)
    assert fetch(pinned(server, "owner/tiny@main/weights/model.safetensors"), tmp_path).read_bytes() == LARGE
    assert not server.fetched("config.json")


def test_names_that_differ_in_case_alone_need_a_disk_that_tells_them_apart(server: HubServer, tmp_path: Path) -> None:
    files = {"Model/a.json": b"1", "model/a.json": b"2"}
    server.push("owner/tiny", files)
    if hub.tells_no_case(str(tmp_path)):
        with pytest.raises(hub.Unfetched, match=r"has 'Model/a.json' and 'model/a.json', which are one name") as caught:
            fetch(pinned(server), tmp_path)
        assert not caught.value.passing and not server.fetched("a.json")
    else:
        assert content(fetch(pinned(server), tmp_path)) == files
    assert fetch(pinned(server, "owner/tiny@main/model"), tmp_path / "one").joinpath("a.json").read_bytes() == b"2"


def test_a_signed_address_that_has_expired_is_asked_for_anew(server: HubServer, tmp_path: Path) -> None:
    server.push("owner/tiny", FILES)
    server.expired["weights/model.safetensors"] = 1
    assert content(fetch(pinned(server), tmp_path)) == FILES


def test_no_message_has_the_token_or_the_signature_of_an_address(server: HubServer) -> None:
    server.push("owner/tiny", FILES)
    told = json.dumps(["passing", f"403 for url 'https://storage.test/a?X-Amz-Signature={TOKEN}&b=2' {TOKEN}"])
    for text in (told, told[2:-2]):
        message = str(hub._failure(pinned(server), f"a line\n{text}", 3, f"{TOKEN}\n"))
        assert "https://storage.test/a?…' " in message
        assert TOKEN not in message and "Signature" not in message


def test_only_the_hub_itself_gets_the_token() -> None:
    url = "https://hub.test/owner/tiny/resolve/1/a"
    assert hub_fetch.gets_token(url, url)
    assert not hub_fetch.gets_token(url, "https://storage.test/a")
    assert not hub_fetch.gets_token(url, url.replace("https", "http"))


def test_a_program_that_is_to_ask_no_hub_gets_its_files_of_one(server: HubServer, tmp_path: Path) -> None:
    server.push("owner/tiny", FILES)
    assert content(fetch(pinned(server), tmp_path, HF_HUB_OFFLINE="1")) == FILES


def test_what_is_old_counts_as_used_from_the_moment_it_is_wanted(tmp_path: Path) -> None:
    def bring(root: str, _: int) -> str:
        assert os.path.getmtime(root) > 1, "the reaper would remove it while it is filled"
        return root

    os.makedirs(tmp_path / "root")
    (tmp_path / "root" / "lock").touch()
    os.utime(tmp_path / "root", (1, 1))
    filled(tmp_path / "root", bring)


def test_a_file_of_more_than_50_gb_without_hf_xet_is_no_matter_of_luck(tmp_path: Path) -> None:
    from huggingface_hub.file_download import http_get

    with (tmp_path / "part").open("wb") as part, pytest.raises(ValueError, match="too large") as caught:
        http_get("http://127.0.0.1:9/a", part, expected_size=60 * 10**9)
    kind, sentence = hub_fetch._sentence(caught.value, "a", "http://127.0.0.1:9")
    assert kind == hub_fetch.FOR_GOOD and "add hf_xet>=1.8 to requirements=" in sentence
