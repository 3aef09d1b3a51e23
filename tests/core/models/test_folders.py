"""Promotion between folders: one version whatever is killed and whoever else promotes, verified and named by aliases."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import Corrupt, NotAModel, PromotionRefused, StoreError, UsageError
from kinetic_orchestration.models.places.folder import Folder

pytestmark = pytest.mark.fast


def model(folder: Path, weights: bytes = b"weights" * 1000) -> Path:
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "tokenizer" / "merges.txt").write_text("a b")
    return folder


def versions(place: Path) -> list[str]:
    return sorted(path.parent.name for path in place.glob("*/lineage.json"))


def test_a_directory_becomes_one_version_however_often_it_is_promoted(tmp_path: Path) -> None:
    source, place = model(tmp_path / "m"), tmp_path / "models" / "ranker"
    first = kinetic.promote(source, place, alias="champion", metrics={"accuracy": 0.9}, data=["sha256:1"])
    assert (first.name, first.created, first.moved, first.kind) == ("ranker", True, "in the store", "safetensors")
    assert first.uri == str(place / first.version) and first.digest.startswith(first.version)
    copied = Path(first.uri)
    assert (copied / "tokenizer" / "merges.txt").read_text() == "a b"
    assert (copied / "model.safetensors").stat().st_ino != (source / "model.safetensors").stat().st_ino, "no hard link"
    told = json.loads((copied / "lineage.json").read_text())
    assert told["metrics"] == {"accuracy": 0.9} and told["source"] == str(source) and told["uri"] == first.uri
    assert told["data"] == [{"digest": "sha256:1"}] and told == first.lineage
    again = kinetic.promote(source, place, alias="champion", metrics={"accuracy": 0.1})
    assert (again.uri, again.created, again.moved, again.lineage) == (first.uri, False, "", first.lineage)
    assert versions(place) == [first.version] and not list((place / ".begun").iterdir())


def test_a_promoted_version_is_promoted_on_with_its_lineage(tmp_path: Path) -> None:
    first = kinetic.promote(model(tmp_path / "m"), tmp_path / "staging", name="ranker", metrics={"loss": 2.0})
    second = kinetic.promote(first.uri, tmp_path / "production", name="ranker")
    assert second.version == first.version and second.lineage["metrics"] == {"loss": 2.0}
    assert second.lineage["from_version"]["uri"] == first.uri
    assert kinetic.promote(first.uri, tmp_path / "staging", name="ranker").created is False, "it is its own version"


def test_a_directory_with_the_lineage_of_other_files_is_not_that_version(tmp_path: Path) -> None:
    first = kinetic.promote(model(tmp_path / "m"), tmp_path / "staging", name="ranker", metrics={"loss": 2.0})
    weights = Path(first.uri, "model.safetensors")
    weights.write_bytes(b"w" + b"E" + weights.read_bytes()[2:])  # damaged, or trained on in place: of the same size
    with pytest.raises(Corrupt, match=r"has the lineage.*'model.safetensors'.*remove lineage.json"):
        kinetic.promote(first.uri, tmp_path / "production", name="ranker")
    assert not (tmp_path / "production").exists()
    Path(first.uri, "lineage.json").unlink()
    assert kinetic.promote(first.uri, tmp_path / "production", name="ranker").lineage["metrics"] == {}


def test_a_model_is_not_put_over_one_that_it_was_not_compared_with(tmp_path: Path) -> None:
    place = tmp_path / "ranker"
    first = kinetic.promote(model(tmp_path / "a", b"a"), place, alias="champion", metrics={"loss": 3.0})
    better = model(tmp_path / "c", b"c")

    def meanwhile(candidate: kinetic.Candidate) -> bool:  # another process promotes one that is better still
        kinetic.promote(better, place, alias="champion", metrics={"loss": 1.0})
        return bool(candidate.parent and candidate.metrics["loss"] < candidate.parent["metrics"]["loss"])

    with pytest.raises(PromotionRefused, match="'champion' has moved"):
        kinetic.promote(model(tmp_path / "b", b"b"), place, alias="champion", metrics={"loss": 2.0}, check=meanwhile)
    current = kinetic.promote(better, place, alias="champion")
    assert current.created is False and current.lineage["parent"]["version"] == first.version
    assert json.loads((place / "aliases" / "champion.json").read_text())["version"] == current.version


def test_the_best_so_far_stays_if_a_check_compares_with_the_parent(tmp_path: Path) -> None:
    place = tmp_path / "ranker"

    def better(candidate):  # type: ignore[no-untyped-def]
        return candidate.parent is None or candidate.metrics["accuracy"] > candidate.parent["metrics"]["accuracy"]

    def promoted(name: str, accuracy: float) -> kinetic.Promoted:
        weights = name.encode()
        source = tmp_path / name if (tmp_path / name).exists() else model(tmp_path / name, weights)
        return kinetic.promote(source, place, alias="champion", metrics={"accuracy": accuracy}, check=better)

    first = promoted("a", 0.8)
    with pytest.raises(PromotionRefused, match="its check said no"):
        promoted("b", 0.7)
    assert sorted(path.name for path in place.iterdir()) == sorted([".begun", "aliases", first.version]), (
        "nothing was copied"
    )
    third = promoted("c", 0.9)
    assert third.lineage["parent"]["version"] == first.version and third.lineage["check"] == {
        "passed": True,
        "reasons": [],
    }
    assert promoted("c", 0.9).created is False, "again it is compared with its own parent"
    # Rolled back and forth in one call.
    assert kinetic.move_alias(place, "champion").version == first.version
    assert kinetic.move_alias(place, "champion").version == third.version
    assert kinetic.move_alias(place, "champion", first.version).version == first.version
    assert kinetic.move_alias(place, "stable", "champion").version == first.version
    with pytest.raises(UsageError, match="pointed to no other version before"):
        kinetic.move_alias(place, "stable")
    with pytest.raises(UsageError, match="there is no version"):
        kinetic.move_alias(place, "champion", "0" * 16)


def test_what_cannot_be_promoted_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    source, place = model(tmp_path / "m"), tmp_path / "place"
    cases = [
        (tmp_path / "none", NotAModel, "has no files, or is not there"),
        (source / "config.json", NotAModel, "is a file: name the directory"),
        (tmp_path, NotAModel, "Looked for"),
    ]
    for wrong, error, said in cases:
        with pytest.raises(error, match=said):
            kinetic.promote(wrong, place)
    with pytest.raises(UsageError, match="is in the model directory"):
        kinetic.promote(source, source / "versions")
    with pytest.raises(UsageError, match="holds no models"):
        kinetic.promote("http://x/y", place)
    with pytest.raises(UsageError, match="lost a slash"):
        kinetic.promote(Path("gs://bucket/folder"), place)
    with pytest.raises(UsageError, match="no folder of a bucket"):
        kinetic.promote(source, "gs://bucket")
    with pytest.raises(UsageError, match=r"kinetic.MLflow\(…\)"):
        kinetic.promote(source, place, registry="http://mlflow")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="there is no version"):
        kinetic.promote(source, place, parent="0123456789abcdef")
    (source / "linked").symlink_to(tmp_path)
    with pytest.raises(NotAModel, match="is a link to a folder"):
        kinetic.promote(source, place)
    (source / "linked").unlink()
    os.mkfifo(source / "pipe")
    with pytest.raises(NotAModel, match="is no file that can be copied"):
        kinetic.promote(source, place)
    assert not place.exists()


def test_a_dry_run_prints_what_it_would_do_and_does_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, place = model(tmp_path / "m"), tmp_path / "place"
    planned = kinetic.promote(
        source, place, alias="champion", registry=kinetic.MLflow("http://127.0.0.1:1"), dry_run=True
    )
    printed = capsys.readouterr().out
    assert "3 files, 6.8 KiB, would be copied in the store" in printed and planned.uri in printed
    assert "POST http://127.0.0.1:1/api/2.0/mlflow/model-versions/create" in printed and planned.digest in printed
    assert not place.exists()


def test_a_link_to_a_file_is_copied_as_the_file(tmp_path: Path) -> None:
    source = model(tmp_path / "m")
    (tmp_path / "blob").write_bytes(b"in the hub's cache")
    (source / "extra.bin").symlink_to(tmp_path / "blob")
    promoted = kinetic.promote(source, tmp_path / "place")
    extra = Path(promoted.uri, "extra.bin")
    assert extra.read_bytes() == b"in the hub's cache" and not extra.is_symlink()


def test_a_version_that_somebody_changed_is_told_from_the_model(tmp_path: Path) -> None:
    source, place = model(tmp_path / "m"), tmp_path / "place"
    promoted = kinetic.promote(source, place)
    copied = Path(promoted.uri)
    (copied / "model.safetensors").write_bytes(b"short")
    with pytest.raises(Corrupt, match=r"'model.safetensors' with other content than the model"):
        kinetic.promote(source, place)
    (copied / "lineage.json").unlink()  # not complete any more: the same is found by its bytes
    (copied / "model.safetensors").write_bytes(b"waights" * 1000)
    with pytest.raises(Corrupt, match="with other content than the model"):
        kinetic.promote(source, place)
    (copied / "model.safetensors").unlink()
    (copied / "more.bin").write_bytes(b"x")
    with pytest.raises(Corrupt, match=r"'more.bin', which the model does not have"):
        kinetic.promote(source, place)
    (copied / "more.bin").unlink()
    assert kinetic.promote(source, place).created
    (copied / "lineage.json").write_text("{}")
    with pytest.raises(Corrupt, match="cannot be read as the lineage"):
        kinetic.promote(source, place)


def test_a_model_that_changes_meanwhile_makes_no_version(tmp_path: Path) -> None:
    source, place = model(tmp_path / "m"), tmp_path / "place"

    def meanwhile(candidate: object) -> bool:
        (source / "model.safetensors").write_bytes(b"another" * 1000)
        return True

    with pytest.raises(StoreError, match="changed while the model was copied"):
        kinetic.promote(source, place, check=meanwhile)
    assert versions(place) == []


PROMOTE = textwrap.dedent(
    """
    import json, os, signal, sys
    import kinetic_orchestration as kinetic
    how, source, place, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    link = os.link

    def alone(number):  # in a process of its own
        left = number

        def counted(*paths):
            nonlocal left
            if how == "kill" and left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            link(*paths)

        os.link = counted
        own = f"{place}{number}" if how == "kill" else place
        promoted = kinetic.promote(source, own, name="ranker", alias="champion")
        os.write(1, f"{promoted.version} {promoted.created}\\n".encode())

    kinetic.promote  # imported once, for all
    children = []
    for number in range(count):
        child = os.fork()
        if not child:
            status = 1
            try:
                alone(number)
                status = 0
            finally:
                os._exit(status)
        if how == "kill":
            os.write(1, f"{os.waitpid(child, 0)[1]}\\n".encode())
        else:
            children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    """
)


def run(how: str, source: Path, place: Path, count: int) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROMOTE, how, str(source), str(place), str(count)],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert not done.returncode, done.stderr
    return done.stdout.splitlines()


def test_a_promoter_that_is_killed_at_any_file_leaves_no_version(tmp_path: Path) -> None:
    source, place = model(tmp_path / "m"), tmp_path / "place"
    told = run("kill", source, place, 4)  # three files and the lineage, killed before each of the four has its name
    assert told == [str(signal.SIGKILL.value)] * 4
    for number in range(4):
        begun = Path(f"{place}{number}")
        assert versions(begun) == [] and not (begun / "aliases").exists()
        assert len([path for path in begun.rglob("*") if path.is_file() and ".begun" not in path.parts]) == number
        promoted = kinetic.promote(source, begun, alias="champion")
        assert promoted.created and versions(begun) == [promoted.version]
        assert Folder(promoted.uri).read("model.safetensors", 10_000) == b"weights" * 1000


def test_promoters_at_the_same_time_make_one_version(tmp_path: Path) -> None:
    source, place = model(tmp_path / "m", os.urandom(1 << 20)), tmp_path / "place"
    told = run("race", source, place, 4)
    assert sorted(line.split()[1] for line in told) == ["False", "False", "False", "True"]
    assert len({line.split()[0] for line in told}) == 1 and len(versions(place)) == 1


def test_what_killed_promoters_left_is_removed_a_day_later(tmp_path: Path) -> None:
    source, place = model(tmp_path / "m"), tmp_path / "place"
    (place / ".begun").mkdir(parents=True)
    old, new = place / ".begun" / "0", place / ".begun" / "1"
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (1, 1))
    kinetic.promote(source, place)
    assert not old.exists() and new.exists()
