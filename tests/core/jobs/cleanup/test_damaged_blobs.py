"""A byte decays on the disk, beneath the file system: every map believes it, and `kinor doctor --verify` finds it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.cli import codes, main
from kinetic_orchestration.jobs import launch
from kinetic_orchestration.jobs.cleanup import damaged_blobs
from kinetic_orchestration.jobs.request import draft
from kinetic_orchestration.plan.configuration.settings import load
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.platforms.registry import open_store
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.content import digest, file_stamps
from kinetic_orchestration.protocol.content.verified import Verified
from kinetic_orchestration.protocol.wire.task import DataPiece
from tests.support import bucket


def doubled(array: Any) -> Any:
    return array * np.uint8(2)


def trains(data: str, array: Any) -> Any:
    assert (Path(data) / "deep" / "numbers").read_text() == "1 2 3"
    with kinetic.Training(every=1, keep=5, name="t") as training:
        training.restore({"w": array})
        training.step(1, {"w": array})
        training.finish({"w": array})
    return array


def raises(array: Any) -> None:
    raise ValueError(array)


def submitted(key: str, function: Any, *arguments: Any) -> JobHandle[Any]:
    return JobHandle(
        launch.launch(draft(JobSpec("job", Options(accelerator="cpu", key=key), function, arguments)).open())
    )


def decay_of(path: Path, home: Path | None = None) -> None:
    """A byte in the middle, or of a file's name in a tree, is another; with a home its record says that the file is as
    it was hashed."""
    place = path.read_bytes().index(b".py") - 1 if path.parent.name == "trees" else path.stat().st_size // 2
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 1]))
    if home is not None:
        found = path.stat()
        records = [entry.read_bytes() for entry in (home / "verified").iterdir()]
        (told,) = [words.split(b"\n")[0].split()[-1].decode() for words in records if os.fsencode(path) in words]
        Verified(home).wrote(path, told, (found.st_dev, found.st_ino, found.st_size))
        time.sleep(max(0.0, (file_stamps.settled(file_stamps.stamp_of(found)) - time.time_ns()) / 1e9))


def blob_of(home: Path, least: int) -> Path:
    (found,) = [path for path in (home / "store/local/blobs").glob("*/*") if path.stat().st_size > least]
    return found


@pytest.mark.slow
@pytest.mark.turn(4)
def test_a_large_argument_and_a_large_value_are_hashed_once_and_a_byte_that_decays_is_found(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    array = np.ones(digest.LARGE, np.uint8)
    first = submitted("first", doubled, array)
    assert (first.result(timeout=60) == 2).all()
    assert len(list((home / "verified").iterdir())) == 2
    decay_of(blob_of(home, digest.LARGE), home)
    second = submitted("second", doubled, array)
    value = second.result(timeout=60).copy()  # which is mapped
    assert (value == 0).sum() == 1
    (result,) = (home / "store/local/jobs" / second.job_id).glob("out/1/hosts/0/result")
    decay_of(result, home)
    assert (kinetic.attach(second.job_id).result(timeout=60) != value).sum() == 1

    assert main(["doctor", "--verify", "--json"]) == codes.ENVIRONMENT
    told = json.loads(capsys.readouterr().out)
    assert [check["state"] for check in told["checks"] if check["name"] == "blobs"] == ["failed"]
    found = {each["what"]: each for each in told["blobs"]["damaged"]}
    assert sorted(found) == ["blob", "value"] and not told["ok"]
    assert sorted(found["blob"]["jobs"]) == sorted([first.job_id, second.job_id])
    assert found["value"]["jobs"] == [second.job_id] and found["value"]["place"] == str(result)

    assert main(["doctor", "--verify"]) == codes.ENVIRONMENT
    shown = capsys.readouterr()
    assert f"{result}" in shown.out and "the next submit sends it again" in shown.out
    blob_of(home, digest.LARGE).unlink()
    assert (submitted("third", doubled, array).result(timeout=60) == 2).all()


@pytest.fixture(scope="module")
def kept(shared_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A home in which a job has left a file of each kind, and the names of what lies there."""
    folder = tmp_path_factory.mktemp("data") / "some"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "numbers").write_text("1 2 3")
    (folder / "link").symlink_to("deep/numbers")
    (folder / "empty").mkdir()
    array = np.arange(100_000)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("KINETIC_HOME", str(shared_home))
        trained = submitted("trained", trains, Data(str(folder)), array)
        assert (trained.result(timeout=120) == array).all()
        failed = submitted("failed", raises, array)
        with pytest.raises(ValueError, match=r"\[ *0"):
            failed.result(timeout=60)
        store = shared_home / "store/local"
        manifests = sorted((store / "trees").iterdir(), key=lambda path: path.stat().st_size)
        packs = json.loads(manifests[-1].read_bytes())["packs"]
        yield {
            "home": shared_home, "trained": trained.job_id, "failed": failed.job_id,
            "pack": store / names.blob(packs[0][0]), "tree": manifests[-1],
            "call": store / names.blob(json.loads((store / names.spec(failed.job_id)).read_bytes())["staged"]["payload"]["digest"]),
            "value": next((store / "jobs" / trained.job_id).glob("out/1/hosts/0/result")),
            "exception": next((store / "jobs" / failed.job_id).glob("out/1/hosts/0/exception")),
            "checkpoint": sorted((store / "checkpoints").glob("*/t/step-*/part-00000.safetensors"))[-1],
            "commit": sorted((store / "checkpoints").glob("*/t/step-*/commit.json"))[-1],
            "data": next((shared_home / "cache/data").glob("*/content/deep/numbers"), None),
        }  # fmt: skip


KINDS = {
    "pack": ("blob", ["trained", "failed"]),
    "tree": ("tree", ["trained", "failed"]),
    "call": ("blob", ["failed"]),
    "value": ("value", ["trained"]),
    "exception": ("exception", ["failed"]),
    "checkpoint": ("checkpoint", ["trained"]),
    "commit": ("checkpoint", ["trained"]),
}


def look() -> damaged_blobs.Report:
    return damaged_blobs.examine(load(), lambda *_, **__: None)


@pytest.mark.parametrize("kind", KINDS)
def test_what_decays_is_named_with_its_jobs(kept: dict[str, Any], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_HOME", str(kept["home"]))
    whole = look()
    assert not whole.damaged and not whole.unknown
    assert whole.objects > 6 and whole.size > 2 * 800_000
    decay_of(kept[kind])
    try:
        found = look()
    finally:
        decay_of(kept[kind])
    what, jobs = KINDS[kind]
    (damaged,) = found.damaged
    assert (damaged.what, damaged.place) == (what, str(kept[kind]))
    assert sorted(damaged.jobs) == sorted(kept[job] for job in jobs)
    assert damaged.fix and damaged.many == len(jobs)


def test_a_pack_that_is_gone_is_missed_and_what_nobody_names_is_only_counted(
    kept: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_HOME", str(kept["home"]))
    aside, nobodys = kept["pack"].with_name(".aside"), kept["pack"].with_name("f" * 64)
    nobodys.write_bytes(b"whatever")
    kept["pack"].rename(aside)
    try:
        found = look()
    finally:
        aside.rename(kept["pack"])
        nobodys.unlink()
    assert [(each.what, each.why) for each in found.damaged] == [("blob", "it is not there")]
    assert found.unknown == 1 and "1 that no job names" in found.summary


def test_unpacked_data_that_was_changed_is_found(home: Path, tmp_path: Path) -> None:
    """The data are unpacked like on the hosts of another machine."""
    from kinetic_orchestration.host.prepare import prepare
    from kinetic_orchestration.packaging.source import tree

    (tmp_path / "some" / "deep").mkdir(parents=True)
    (tmp_path / "some" / "deep" / "numbers").write_text("1 2 3")
    (tmp_path / "some" / "run").write_text("#!/bin/sh\n")
    (tmp_path / "some" / "run").chmod(0o755)
    (tmp_path / "some" / "link").symlink_to("deep/numbers")
    (tmp_path / "some" / "empty").mkdir()
    here = load()
    store = open_store(here.store, here.deployment)
    spool = tmp_path / "spool"
    spool.mkdir()
    sent = tree.upload(tree.snapshot(tmp_path / "some", index_dir=tmp_path / "index", spool=spool), store, spool=spool)
    item = DataPiece(sent.digest)
    there = Path(
        prepare._data(
            prepare._Here(store, str(home), {}, str, print, []), prepare.Blobs(store, str(tmp_path / "blobs")), item
        )
    )
    assert not look().damaged
    decay_of(there / "deep" / "numbers")
    (damaged,) = look().damaged
    assert (damaged.what, damaged.place) == ("data", str(there.parent))


def test_blobs_of_a_bucket_are_read_too_and_progress_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.pretend(monkeypatch)
    here = load()
    store = open_store(here.store, here.deployment)
    assert store.metered
    data = b"some bytes" * 100_000
    good, bad = digest.of_bytes(data), digest.of_bytes(data[1:])
    store.create(names.blob(good), data)
    store.create(names.tool("a" * 64), data)
    store.create(names.blob(bad), data)
    monkeypatch.setattr(damaged_blobs, "PACE", 0.0)
    monkeypatch.setattr(damaged_blobs, "LONG", 0.0)
    said: list[tuple[str, str]] = []
    found = damaged_blobs.examine(here, lambda text, *, detail="": said.append((text, detail)))
    assert [(each.what, each.place) for each in found.damaged] == [("tool", f"{store.url}/{names.tool('a' * 64)}")]
    assert found.unknown == 1
    assert said[-1] == ("reading every blob: 2.9 MiB of 2.9 MiB", "2.9 MiB of 2.9 MiB")
