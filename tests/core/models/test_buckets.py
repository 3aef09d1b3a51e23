"""Promotion in Cloud Storage: the service copies, in one or many calls, and one version comes of it whatever fails."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import Corrupt, Denied, NotAModel, StoreError, Unreachable
from kinetic_orchestration.models.places.opening import open_place
from kinetic_orchestration.platforms.google.rest import retries
from kinetic_orchestration.platforms.google.storage import requests as gcs_requests
from kinetic_orchestration.testing.storage_server.server import StorageServer

WEIGHTS = b"weights" * 1000
FILES = {
    "config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "deep/.zarray": b"{}",
    "deep/ä b.txt": b"x",
    "empty.txt": b"",
}


@pytest.fixture(scope="module")
def server() -> Iterator[StorageServer]:
    with StorageServer() as server:
        yield server


@pytest.fixture
def storage(server: StorageServer, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StorageServer]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.01)
    server.forget()
    yield server
    server.heal()


def bucket(storage: StorageServer) -> str:
    return storage.make_bucket(f"models-{uuid.uuid4().hex[:12]}")


@pytest.fixture
def source(storage: StorageServer) -> str:
    address = f"{bucket(storage)}/outputs/job 1/model"
    place = open_place(address)
    for name, data in FILES.items():
        place.put(name, data)
    storage.forget()
    return address


def verbs(storage: StorageServer, of: str) -> list[str]:
    return [call.where.rpartition("/")[2] for call in storage.calls if call.verb == of]


def contents(uri: str) -> dict[str, bytes]:
    place = open_place(uri)
    names = [file.name for file in place.list("") if file.name != "lineage.json"]
    return {name: place.read(name, 1 << 20) or b"" for name in names}


def test_a_model_is_copied_by_the_service_to_another_bucket(storage: StorageServer, source: str) -> None:
    to = f"{bucket(storage)}/ranker"
    storage.in_steps(3)
    first = kinetic.promote(source, to, alias="champion", metrics={"accuracy": 0.9})
    copies, read = verbs(storage, "copy"), verbs(storage, "get")
    assert first.moved == "in the store" and first.created and contents(first.uri) == FILES
    assert sorted(set(copies)) == sorted(name.rpartition("/")[2] for name in FILES) and len(copies) == 3 * len(FILES)
    assert not set(read) & {"model.safetensors", "ä b.txt"}, "no byte of a file passed through this machine"
    assert "CRC32C" in first.lineage["covers"]
    storage.forget()
    again = kinetic.promote(source, to, alias="champion")
    assert (again.created, again.uri) == (False, first.uri) and not verbs(storage, "copy")
    staged = kinetic.promote(first.uri, f"{to}-staging")
    assert staged.version == first.version and staged.lineage["metrics"] == {"accuracy": 0.9}


def test_lost_answers_and_two_promoters_make_one_version(storage: StorageServer, source: str) -> None:
    to, promoted = f"{bucket(storage)}/ranker", list[kinetic.Promoted]()
    for match in ("copy */model.safetensors", "insert *lineage.json", "list *"):
        storage.fail(match, after=True, times=2)
    threads = [threading.Thread(target=lambda: promoted.append(kinetic.promote(source, to))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(one.created for one in promoted) == [False, False, True]
    assert len({one.uri for one in promoted}) == 1 and contents(promoted[0].uri) == FILES


def test_what_the_service_refuses_leaves_no_version(
    storage: StorageServer, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = f"{bucket(storage)}/ranker"
    storage.forbid("copy */model.safetensors")
    with pytest.raises(Denied, match=r"storage.objects.create"):
        kinetic.promote(source, to)
    storage.heal()
    storage.fail("copy */model.safetensors", 503, times=None)
    with gcs_requests.impatient(0.1), pytest.raises(Unreachable):
        kinetic.promote(source, to)
    storage.heal()
    assert not [file for file in open_place(to).list("") if file.name.endswith("lineage.json")]
    assert kinetic.promote(source, to).created
    with pytest.raises(StoreError, match="no bucket"):
        kinetic.promote(source, "gs://there-is-no-such-bucket/ranker")
    with pytest.raises(NotAModel, match="has no files"):
        kinetic.promote(f"{source}/nothing", to)


def test_a_source_that_changes_and_a_version_that_was_damaged_are_refused(storage: StorageServer, source: str) -> None:
    to = f"{bucket(storage)}/ranker"

    def meanwhile(candidate: object) -> bool:
        open_place(source).put("model.safetensors", b"another")
        return True

    with pytest.raises(StoreError, match=r"'model.safetensors' changed while the model was copied"):
        kinetic.promote(source, to, check=meanwhile)
    promoted = kinetic.promote(source, to)
    open_place(promoted.uri).put("model.safetensors", b"ANOTHER")
    with pytest.raises(Corrupt, match=r"'model.safetensors' with other content"):
        kinetic.promote(source, to)


def test_bytes_pass_through_this_machine_only_between_stores_and_that_is_said(
    storage: StorageServer, source: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    down = kinetic.promote(source, tmp_path / "ranker")
    assert down.moved == "through this machine" and contents(down.uri) == FILES
    assert "6.8 KiB of ranker pass through this machine" in capfd.readouterr().err
    up = kinetic.promote(down.uri, f"{bucket(storage)}/ranker")
    assert contents(up.uri) == FILES and up.lineage["from_version"]["uri"] == down.uri
    assert "sha256" in up.lineage["covers"] and up.digest != down.digest, "the bytes were read this time"
    storage.garble("get */model.safetensors", times=None)
    with pytest.raises(Corrupt):
        kinetic.promote(source, tmp_path / "damaged")
    assert not list((tmp_path / "damaged").glob("*/lineage.json"))
