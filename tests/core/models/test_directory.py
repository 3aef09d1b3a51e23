"""Model directories by the names of their files, their digests, and what a check and a lineage may be."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from kinetic_orchestration.errors import Corrupt, NewerWire, NotAModel, PromotionRefused, UsageError
from kinetic_orchestration.models import directory, lineage, promotion
from kinetic_orchestration.models.directory import agree, covers, digest_of, files_of, kind_of, version_of
from kinetic_orchestration.models.found import Found
from kinetic_orchestration.models.places.folder import Folder
from kinetic_orchestration.models.places.place import check_file
from kinetic_orchestration.models.values import Candidate, ModelFile, flat

pytestmark = pytest.mark.fast

PEFT = ("adapter_config.json", "adapter_model.safetensors")


def files(*names: str, size: int = 3, **marks: str) -> tuple[ModelFile, ...]:
    return tuple(ModelFile(name, size, marks or {"sha256": "0" * 64}) for name in names)


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (("config.json", "model.safetensors", "tokenizer.json"), "safetensors"),
        (("config.json", "pytorch_model.bin"), "safetensors"),
        (("adapter_config.json", "adapter_model.safetensors", "config.json"), "adapter"),
        (("config.json", "metadata.json", "model.weights.h5", "assets/tokenizer/vocabulary.spm"), "keras-preset"),
        (("ranker.keras",), "keras"),
        (("saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001"), "saved-model"),
        (("_CHECKPOINT_METADATA", "default/manifest.ocdbt", "default/d/0a"), "orbax"),
        (("_METADATA", "params/.zarray", "params/0.0"), "orbax"),
        (("q4.gguf",), "gguf"),
        (("model.onnx",), "onnx"),
    ],
)
def test_the_kind_of_a_directory_follows_from_its_files(names: tuple[str, ...], kind: str) -> None:
    assert kind_of(files(*names), "/m") == kind


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ((), "it has no files, or is not there"),
        (
            ("train.py", "notes.txt"),
            r"It has 'notes.txt', 'train.py'. Looked for: adapter_config.json .*name it with kind=",
        ),
        (("config.json",), "Looked for"),
        (("config.json", "deep/model.safetensors"), "Looked for"),
        (("saved_model.pb",), "Looked for"),
        (("5.orbax-checkpoint-tmp-1/_CHECKPOINT_METADATA", "config.json", "model.safetensors"), "still writing"),
        (("config.json", "model.safetensors", "model-2.safetensors.incomplete"), "still writing"),
    ],
)
def test_a_directory_that_is_no_model_is_refused_with_what_was_looked_for(names: tuple[str, ...], said: str) -> None:
    with pytest.raises(NotAModel, match=said):
        kind_of(files(*names), "/m")


def test_weights_without_bytes_and_missing_shards_are_refused_by_name() -> None:
    with pytest.raises(NotAModel, match=r"'model.safetensors' has no bytes"):
        kind_of((*files("config.json"), *files("model.safetensors", size=0)), "/m")
    listed = files("config.json", "model-1.safetensors", "model.safetensors.index.json")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    with pytest.raises(NotAModel, match=r"index.json names 'model-2.safetensors', which it does not have"):
        kind_of(listed, "/m", read=lambda name: json.dumps(index).encode())
    for torn in (b"{", b"[]", b'{"weight_map": 1}', b"[" * 100_000):
        with pytest.raises(NotAModel, match="cannot be read as an index of weights"):
            kind_of(listed, "/m", read=lambda name, torn=torn: torn)
    whole = (*listed, *files("model-2.safetensors"))
    assert kind_of(whole, "/m", read=lambda name: json.dumps(index).encode()) == "safetensors"


def test_another_layout_is_taken_under_the_name_that_it_is_given() -> None:
    assert kind_of(files("weights.msgpack.7"), "/m", "my-own") == "my-own"
    with pytest.raises(UsageError, match="kind="):
        kind_of(files("weights.msgpack.7"), "/m", "My own")


def test_what_tools_leave_beside_a_model_and_our_lineage_are_no_part_of_it() -> None:
    listed = files("b.keras", ".git/config", "lineage.json", ".cache/huggingface/x", ".gitattributes", "a/.zarray")
    assert [file.name for file in files_of(listed)] == ["a/.zarray", "b.keras"]


def test_a_digest_is_of_names_sizes_and_contents_and_says_what_it_covers() -> None:
    a, b = files("a", "b")
    digest = digest_of([a, b])
    assert digest_of([b, a]) == digest and version_of(digest) == digest[:16]
    others = [a._replace(name="c"), a._replace(size=4), a._replace(marks={"sha256": "1" * 64})]
    assert len({digest_of([other, b]) for other in others} | {digest}) == 4
    assert digest_of([a._replace(generation="7"), b]) == digest, "where it lies is no part of it"
    assert "sha256 of each file" in covers([a])
    in_bucket = ModelFile("a", 3, {"crc32c": "x", "md5": "y"})
    composed = ModelFile("b", 3, {"crc32c": "x"})
    assert "CRC32C" in covers([in_bucket, composed])
    assert digest_of([in_bucket]) != digest_of([in_bucket._replace(marks={"crc32c": "x", "md5": "z"})])
    with pytest.raises(UsageError, match="neither a digest nor a checksum"):
        digest_of([ModelFile("a", 3)])


def test_contents_agree_by_the_marks_that_both_have() -> None:
    assert agree({"crc32c": "x", "md5": "y"}, {"crc32c": "x"}) is True
    assert agree({"crc32c": "x", "md5": "y"}, {"crc32c": "x", "md5": "z"}) is False
    assert agree({"sha256": "x"}, {"crc32c": "x"}) is None
    assert agree({"etag": "ab"}, {"etag": "ac"}) is False
    assert agree({"etag": "ab-2"}, {"etag": "ab"}) is None, "of an object in parts it depends on their number"


@pytest.mark.parametrize("name", ["../x", "a/../b", "/x", "a//b", "a\\b", "a\nb", "x" * 300, "a/" * 500, "\udcff"])
def test_names_that_lead_out_of_a_place_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be a file of a model"):
        check_file(name)


CANDIDATE = Candidate(
    "/m", "ranker", "keras", "0" * 64, 3, ("a.keras",), {"accuracy": 0.9}, {}, {"metrics": {"accuracy": 0.8}}
)


def test_a_check_decides_by_what_it_returns() -> None:
    assert promotion.judge(CANDIDATE, None) == ()
    assert promotion.judge(CANDIDATE, lambda model: model.metrics["accuracy"] > 0.5) == ()
    assert promotion.judge(CANDIDATE, SimpleNamespace(passed=True, reasons=["far better"])) == ("far better",)
    with pytest.raises(PromotionRefused, match=r"said no \(accuracy 0.9; loss 3\). Nothing was copied") as refused:
        promotion.judge(CANDIDATE, lambda _: SimpleNamespace(passed=False, reasons=["accuracy 0.9", "loss 3"]))
    assert refused.value.reasons == ("accuracy 0.9", "loss 3")
    with pytest.raises(PromotionRefused, match="it gave no reason"):
        promotion.judge(CANDIDATE, lambda _: False)
    for neither in (None, 1, "yes", [True]):
        with pytest.raises(UsageError, match="return True or False"):
            promotion.judge(CANDIDATE, lambda _, neither=neither: neither)


def test_a_check_compares_with_the_best_so_far() -> None:
    def better(model: Candidate) -> bool:
        return model.parent is None or model.metrics["accuracy"] > model.parent["metrics"]["accuracy"]

    assert promotion.judge(CANDIDATE, better) == ()


LINEAGE: dict[str, Any] = lineage.compose(
    "ranker", Found(Folder("/m"), files("a.keras"), "keras"), metrics={"loss": 1}, data=["sha256:12"], parent=None, now=0.0,
    job={"job": {"id": "job-1"}, "code": {"tree": "t"}, "data": [{"digest": "d"}], "cost": {"usd": 0.5}, "metrics": {"loss": 2, "mae": 3}},
)  # fmt: skip


def test_a_lineage_says_where_a_model_comes_from_and_reads_back() -> None:
    assert lineage.decode(lineage.encode(LINEAGE), "x") == LINEAGE
    assert LINEAGE["metrics"] == {"loss": 1.0, "mae": 3}, "what is given wins"
    assert LINEAGE["data"] == [{"digest": "d"}, {"digest": "sha256:12"}]
    table = flat({**LINEAGE, "uri": "gs://b/m"})
    assert table["kinetic.job"] == "job-1" and table["kinetic.code"] == "t" and table["metric.loss"] == 1.0
    assert table["kinetic.cost_usd"] == 0.5 and table["kinetic.data"] == "d, sha256:12"
    assert None not in table.values() and "kinetic.parent" not in table


def test_a_lineage_of_a_version_that_is_promoted_elsewhere_is_carried_on() -> None:
    again = lineage.compose("ranker", Found(Folder("/n"), files("a.keras"), "keras", {**LINEAGE, "uri": "/v"}), now=1.0)
    assert again["job"] == LINEAGE["job"] and again["metrics"] == LINEAGE["metrics"]
    assert again["from_version"]["uri"] == "/v" and again["digest"] == LINEAGE["digest"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"kinetic": 2}, NewerWire), ({"kinetic": "x"}, NewerWire), ({"digest": "f" * 64}, Corrupt), ({"digest": 7}, Corrupt),
        ({"metrics": None}, Corrupt), ({"kind": None}, Corrupt),
    ],
)  # fmt: skip
def test_what_is_no_lineage_is_refused(change: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        lineage.decode(json.dumps({**LINEAGE, **change}).encode(), "x")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"[" * 100_000, b"\xff"])
def test_what_is_no_document_is_refused(data: bytes) -> None:
    with pytest.raises(Corrupt, match="cannot be read as the lineage of a model"):
        lineage.decode(data, "x")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "high", None])
def test_metrics_are_finite_numbers(value: object) -> None:
    with pytest.raises(UsageError, match="finite numbers"):
        lineage.check_metrics({"loss": value})  # type: ignore[dict-item]


@pytest.mark.parametrize("label", ["", "a/b", "a'b", ".a", "a" * 64, "ä"])
def test_names_that_no_registry_takes_are_refused(label: str) -> None:
    with pytest.raises(UsageError, match="cannot name a model or an alias"):
        directory.check_label(label)
