"""The compile cache of machines of their own: what one has compiled the next one loads, and nobody else's."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from kinetic_orchestration.host.machine import attestation
from kinetic_orchestration.host.prepare import compile_cache
from kinetic_orchestration.host.prepare.compile_cache import CompileCache, key
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.records.files import FileRecords
from kinetic_orchestration.protocol.wire.task import Environment, Hardware
from kinetic_orchestration.testing.api_servers.signing import ISSUER, Signer
from tests.support.waits import wait_until
from tests.support.wire_tasks import TASK

HARDWARE = Hardware("tpu", "v5e", "2x4")
BUILT = Environment("a" * 64, python="3.11", packages=9, compiles={"jaxlib": "0.10.2", "libtpu": "0.0.42"})
ON_TPU = TASK._replace(accelerator=HARDWARE, environment=BUILT)


class Cloud:
    """A metadata server that says whose machine this is, and the keys that prove it."""

    def __init__(self) -> None:
        self.signer = Signer()
        self.account: str | None = "trainer@project.iam"
        self.project = 7
        cloud = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                if parts.path == "/certs/keys":
                    self._answer(200, json.dumps(cloud.signer.keys()))
                elif parts.path.endswith("/identity") and cloud.account:
                    self._answer(200, cloud.token(parse_qs(parts.query)["audience"][0]))
                else:
                    self._answer(404, "")

            def _answer(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Metadata-Flavor", "Google")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"

    def token(self, audience: str) -> str:
        claims = {"aud": audience, "iss": ISSUER, "email": self.account, "email_verified": True, "exp": 0}
        return self.signer.sign(claims | {"google": {"compute_engine": {"project_number": self.project}}})


@contextlib.contextmanager
def serving() -> Iterator[Cloud]:
    made = Cloud()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GCE_METADATA_HOST", made.address)
        patch.setenv("KINETIC_EMULATOR", f"http://{made.address}")
        forget()
        yield made
        forget()
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    with serving() as made:
        yield made


def forget() -> None:
    attestation._self.cache_clear()
    attestation._found.clear()


class Machines:
    """Machines one after another, each with its own disk, and one store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "store").mkdir()
        self.records = FileRecords(str(folder / "store"))
        self.notes: list[str] = []
        self.count = 0

    def cache(self, records: object = None, **more: Any) -> CompileCache:
        self.count += 1
        told = {"pushes": True, "writer": f"job-{self.count}", **more}
        home = str(self.folder / f"machine {self.count}")
        return CompileCache(records or self.records, "k" * 20, home, self.notes.append, **told)

    def run(self, *compiles: str, **more: Any) -> tuple[compile_cache.Summary, list[str]]:
        """One job: it reads what is there and compiles the rest, as JAX does."""
        cache = self.cache(**more)
        folder = Path(cache.environ()["JAX_COMPILATION_CACHE_DIR"])
        found = sorted(path.name for path in folder.glob("*-cache"))
        for name in compiles:
            path = folder / f"{name}-cache"
            if path.exists():
                path.read_bytes()
            else:
                path.write_bytes(f"compiled {name}".encode())
        return cache.close(60.0), found

    def stored(self, part: str = "") -> list[str]:
        prefix = names.compiled("k" * 20, "")
        return [entry.name for entry in self.records.list(prefix) if part in entry.name]


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


def test_what_one_machine_compiled_the_next_one_loads_and_counts(cloud: Cloud, machines: Machines) -> None:
    first, found = machines.run("step", "eval")
    assert (found, first.fetched, first.pushed) == ([], 0, 2)
    second, found = machines.run("step", "init")
    assert found == ["eval-cache", "step-cache"]
    assert (second.fetched, second.hits, second.pushed) == (2, 1, 1)
    assert machines.notes[-1] == "compile cache: 2 programs fetched, 1 of them used, 1 new ones kept"
    third, found = machines.run("step")
    assert found == ["eval-cache", "init-cache", "step-cache"]
    assert third.pushed == 0
    assert len(machines.stored("lists/")) == 1  # each list continues the one before


def test_new_programs_are_kept_during_the_run_once_they_are_whole(
    cloud: Cloud, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_cache, "PUSH_EVERY", 0.02)
    cache = machines.cache()
    path = Path(cache.environ()["JAX_COMPILATION_CACHE_DIR"], "step-cache")
    part = path.with_suffix(".part")  # looks are so close to each other here that one may find it empty twice
    part.write_bytes(b"compiled step")
    part.rename(path)
    wait_until(lambda: bool(machines.stored("lists/")))
    again = machines.cache(pushes=False)
    assert Path(again.environ()["JAX_COMPILATION_CACHE_DIR"], "step-cache").read_bytes() == b"compiled step"
    assert (again.close(60.0).pushed, cache.close(60.0).pushed) == (0, 1)


@pytest.mark.parametrize("evil", [b"evil", b"evil" * 100], ids=["other bytes", "more than its list says"])
def test_a_changed_entry_is_not_loaded_and_makes_room_for_the_right_one(
    cloud: Cloud, machines: Machines, evil: bytes
) -> None:
    machines.run("step")
    (blob,) = (name for name in machines.stored() if "lists/" not in name)
    machines.records.put(blob, evil)
    found = machines.run()[1]
    assert found == [] and machines.stored() == machines.stored("lists/")
    assert "is not what its name says" in machines.notes[-1]
    assert machines.run("step")[0].pushed == 1
    assert machines.run("step")[0].hits == 1


@pytest.mark.parametrize("forged", ["another entry", "another's word", "no word", "not even a list"])
def test_a_list_without_the_word_of_such_a_machine_is_not_believed(
    cloud: Cloud, machines: Machines, forged: str
) -> None:
    """A user who can merely write to the bucket gets nothing loaded."""
    machines.run("step")
    (name,) = machines.stored("lists/")
    record = machines.records.read(name)
    assert record is not None
    told = json.loads(record.data)
    if forged == "another entry":
        evil = b"evil"
        digest = compile_cache.hashlib.sha256(evil).hexdigest()
        machines.records.put(names.compiled("k" * 20, digest), evil)
        told["entries"] = [["step-cache", digest, len(evil)]]
    elif forged == "another's word":
        entries = [compile_cache.Entry(*entry) for entry in told["entries"]]
        cloud.account = "somebody@else.iam"
        told["proof"] = cloud.token(f"kinetic/{claim_of(machines, entries)}")
        cloud.account = "trainer@project.iam"
    elif forged == "no word":
        told["proof"] = told["proof"].rsplit(".", 1)[0] + ".AAAA"
    machines.records.put(name, b"[]" if forged == "not even a list" else json.dumps(told).encode())
    assert machines.run()[1] == []


def claim_of(machines: Machines, entries: list[compile_cache.Entry]) -> str:
    return names.claim("compiled", machines.records.root, "k" * 20, compile_cache._digest(entries))


def test_a_list_is_of_one_deployment_alone(cloud: Cloud, machines: Machines, tmp_path: Path) -> None:
    """A writer to both can copy what a machine of the same account has vouched for elsewhere."""
    machines.run("step")
    (tmp_path / "other").mkdir()
    theirs = Machines(tmp_path / "other")
    shutil.copytree(machines.records.root, theirs.records.root, dirs_exist_ok=True)
    assert theirs.run()[1] == []
    assert machines.run()[1] == ["step-cache"]


def test_a_list_of_other_places_writes_nowhere_else(cloud: Cloud, machines: Machines, tmp_path: Path) -> None:
    data = b"x"
    digest = compile_cache.hashlib.sha256(data).hexdigest()
    entries = [compile_cache.Entry("../../outside-cache", digest, 1)]
    proof = attestation.attest(claim_of(machines, entries))
    machines.records.put(names.compiled("k" * 20, digest), data)
    machines.records.put(
        names.compiled("k" * 20, "lists/one"), json.dumps({"entries": entries, "proof": proof}).encode()
    )
    machines.run()
    assert not list(tmp_path.rglob("outside-cache"))


def test_a_machine_without_an_account_keeps_its_cache_to_itself(cloud: Cloud, machines: Machines) -> None:
    machines.run("step")
    cloud.account = None
    forget()
    assert machines.run("eval")[1] == []
    assert any("has no account" in note for note in machines.notes)
    assert len(machines.stored("lists/")) == 1


def test_a_slow_store_delays_neither_the_start_nor_the_end_beyond_the_bounds(cloud: Cloud, machines: Machines) -> None:
    machines.run("step")
    free = threading.Event()

    class Slow(FileRecords):
        def download(self, name: str, path: str, *, most: int | None = None) -> None:
            free.wait(30)
            super().download(name, path, most=most)

    began = time.monotonic()
    cache = machines.cache(Slow(machines.records.root), seconds=0.2)
    cache.environ()
    assert time.monotonic() - began < 15  # of the 30 s that the store takes
    began = time.monotonic()
    cache.close(0.2)
    assert time.monotonic() - began < 15
    free.set()
    cache._thread.join(10)
    assert not cache._thread.is_alive()


def test_no_more_is_fetched_than_the_bound(cloud: Cloud, machines: Machines) -> None:
    machines.run("one", "two", "three")
    assert len(machines.run(most=30)[1]) == 2


def test_only_host_0_writes(cloud: Cloud, machines: Machines) -> None:
    assert machines.run("step", pushes=False)[0].pushed == 0
    assert machines.stored() == []


def test_what_does_not_suit_each_other_has_another_key() -> None:
    keys = {
        key(ON_TPU),
        key(ON_TPU._replace(accelerator=HARDWARE._replace(topology="4x4"))),
        key(ON_TPU._replace(emulated=True)),
        key(ON_TPU._replace(slices=2)),
        key(ON_TPU._replace(environment=BUILT._replace(compiles={"jaxlib": "0.10.3", "libtpu": "0.0.42"}))),
        key(ON_TPU._replace(environment=BUILT._replace(compiles={"jaxlib": "0.10.2", "libtpu": "0.0.43"}))),
    }
    assert len(keys) == 6 and "" not in keys


def test_without_jax_or_when_it_is_turned_off_there_is_no_cache() -> None:
    assert key(ON_TPU._replace(compile_cache=False)) == ""
    assert key(ON_TPU._replace(environment=BUILT._replace(compiles={}))) == ""
    assert key(ON_TPU._replace(environment=None)) == ""


def test_the_key_is_that_of_every_version_which_may_share_the_cache() -> None:
    assert key(ON_TPU) == "1b25eb20a3587f3026a3"
    assert key(ON_TPU._replace(environment=None, image="x/y:1", slices=2)) == "ae62851e7f4c5cba0fed"


def test_the_users_own_settings_of_the_cache_stay(cloud: Cloud, machines: Machines) -> None:
    cache = machines.cache(taken=["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "HOME"])
    assert set(cache.environ()) == {"JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"}
    cache.close()
    assert os.path.isdir(cache.folder)
