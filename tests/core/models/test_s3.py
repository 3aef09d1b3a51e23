"""Promotion on S3, on a real MinIO: the server copies, also in parts, and one version comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import StoreError
from kinetic_orchestration.host.machine.s3 import records
from kinetic_orchestration.models.places.opening import open_place
from kinetic_orchestration.platforms.s3 import objects
from tests.support.s3_server import FIRST_BUILDS, S3Server, s3, s3_server

__all__ = ["s3", "s3_server"]

pytestmark = [pytest.mark.slow, FIRST_BUILDS]

WEIGHTS = b"0123456789abcdef" * (12 << 16)  # 12 MiB, of which a copy in parts makes three


def test_a_model_is_copied_by_the_server_whole_and_in_parts(
    s3: S3Server, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, to = open_place(f"{s3.make_bucket()}/outputs/job 1/model"), f"{s3.make_bucket()}/ranker"
    files = {"config.json": b"{}", "model.safetensors": WEIGHTS, "deep/.zarray ä": b"x", "empty.txt": b""}
    for name, data in files.items():
        source.put(name, data)
    monkeypatch.setattr(records, "COPIED", 8 << 20)
    monkeypatch.setattr(objects, "PART", 5 << 20)
    s3.forget()
    s3.fail("PUT *config.json", 503, "SlowDown")
    s3.fail("POST *model.safetensors", after=True)  # the answer to the beginning of a copy in parts is lost
    first = kinetic.promote(source.address, to, alias="champion")
    assert first.created and first.moved == "in the store" and "ETag" in first.lineage["covers"]
    read = [
        call.key for call in s3.calls if call.verb == "GET" and call.key.endswith(("safetensors", "ä", "empty.txt"))
    ]
    assert not read, "no byte of a file passed through this machine"
    again = kinetic.promote(source.address, to, alias="champion")
    assert (again.created, again.uri) == (False, first.uri)
    down = kinetic.promote(first.uri, tmp_path / "ranker")
    there = {name: Path(down.uri, name).read_bytes() for name in files}
    assert there == files and down.moved == "through this machine"
    up = kinetic.promote(down.uri, f"{to}-again")
    assert {name: open_place(up.uri).read(name, 1 << 25) for name in files} == files
    assert kinetic.move_alias(to, "stable", "champion").version == first.version

    def meanwhile(candidate: object) -> bool:
        source.put("model.safetensors", b"another")
        return True

    with pytest.raises(StoreError, match=r"'model.safetensors' changed while the model was copied"):
        kinetic.promote(source.address, f"{to}-other", check=meanwhile)


def test_a_model_in_buckets_whose_etags_are_no_md5(s3: S3Server, home: Path, tmp_path: Path) -> None:
    bucket = s3.make_bucket()
    s3.encrypt(bucket)
    source = open_place(f"{bucket}/outputs/model")
    for name in ("config.json", "model.safetensors"):
        source.put(name, b"{}")
    first = kinetic.promote(source.address, f"{bucket}/ranker", metrics={"loss": 1.0})
    assert first.created and kinetic.promote(source.address, f"{bucket}/ranker").created is False
    on = kinetic.promote(first.uri, f"{bucket}/production")
    assert on.created and on.lineage["metrics"] == {"loss": 1.0}
    down = kinetic.promote(first.uri, tmp_path / "ranker")
    assert Path(down.uri, "config.json").read_bytes() == b"{}"
    assert kinetic.promote(down.uri, f"{bucket}/again").created
