"""The commits of checkpoints, and their pruning: pure rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kinetic_orchestration.program.checkpoints import commits
from kinetic_orchestration.program.checkpoints.commits import Commit, Folder, Leaf, Part
from kinetic_orchestration.protocol import wire

pytestmark = pytest.mark.fast

KERNEL, BIAS = Leaf("float32", (4, 8)), Leaf("float32", (8,))


def record(step: int, writer: str = "job-2", *, finite: bool = True) -> Commit:
    return Commit(
        step, commits.folder(step, writer), 2, 8, (Part(100, "aa"), Part(60, "bb")), {"kernel": KERNEL}, finite,
        "jax-0.10.2", {"epoch": 3},
    )  # fmt: skip


def listed(*folders: str, whole: bool = True) -> list[Folder]:
    names = [(f"{folder}/{what}", 100) for folder in folders for what in ("part-00000.json", *["commit.json"] * whole)]
    return commits.folders_of(names)


def test_a_record_comes_back_as_it_was() -> None:
    assert Commit.decode(record(7).encode(), "commit.json") == record(7)
    part = replace(record(7), slice_hosts=4)
    assert Commit.decode(part.encode(), "commit.json") == part
    assert (part.is_of_part, replace(part, slice_hosts=2).is_of_part, record(7).is_of_part) == (True, False, False)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        (f"checkpoints/key/training/{commits.commit(commits.folder(7, 'job-2'))}", True),
        (f"checkpoints/key/training/{commits.folder(7, 'job-2')}/part-00000.json", False),
        ("checkpoints/key/files/commit.json", False),
        ("commit.json", False),
    ],
)
def test_a_commit_is_known_by_its_name(name: str, is_one: bool) -> None:
    assert commits.is_commit(name) == is_one


@pytest.mark.parametrize("data", [b"", b"{", b'{"wire":1}', b'{"wire":1,"step":"x"}', record(7).encode()[:-9]])
def test_what_is_no_record_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(wire.Unreadable):
        Commit.decode(data, "commit.json")


def test_folders_are_found_newest_first_and_others_are_not_ours() -> None:
    found = listed(
        commits.folder(9, "job-1"), commits.folder(100, "job-1"), "step-5", "agreed", commits.folder(20, "job-2")
    )
    assert [(one.step, one.writer) for one in found] == [(100, "job-1"), (20, "job-2"), (9, "job-1")]


def test_a_listing_shows_a_part_that_is_missing_or_short() -> None:
    of = commits.folder(7, "job-2")
    sizes = {commits.part(of, 0): 100, commits.part(of, 1): 60, commits.commit(of): 9}
    assert commits.missing(record(7), Folder(of, 7, "job-2", sizes)) == ""
    assert "has 59 bytes, and 60" in commits.missing(
        record(7), Folder(of, 7, "job-2", {**sizes, commits.part(of, 1): 59})
    )
    del sizes[commits.part(of, 0)]
    assert "part-00000.safetensors is missing" in commits.missing(record(7), Folder(of, 7, "job-2", sizes))


def test_the_newest_are_kept_and_so_is_the_newest_that_was_finite() -> None:
    steps = (60, 50, 40, 30, 20)
    whole = [record(step, finite=step < 40) for step in steps]
    found = listed(*(one.folder for one in whole))
    gone = commits.superfluous(found, whole, "job-2", keep=2)
    assert gone == [commits.folder(step, "job-2") for step in (40, 20)]


def test_what_was_never_committed_goes_once_something_newer_was_and_not_before() -> None:
    dead, ours, ahead = commits.folder(70, "job-1"), commits.folder(50, "job-2"), commits.folder(70, "job-2")
    found = [*listed(dead, ours, ahead, whole=False), *listed(record(60).folder)]
    assert set(commits.superfluous(found, [record(60)], "job-2", keep=1)) == {dead, ours}
    assert commits.superfluous(found, [], "job-2", keep=1) == []


def test_what_differs_is_said_by_its_name() -> None:
    told = commits.differences({"kernel": KERNEL, "old": BIAS}, {"kernel": Leaf("bfloat16", (4, 16)), "new": BIAS})
    assert told == [
        "kernel is bfloat16[4, 16] here and float32[4, 8] in the checkpoint",
        "old, float32[8], is only in the checkpoint",
        "new, float32[8], is only here",
    ]
    assert commits.differences({"kernel": KERNEL}, {"kernel": KERNEL}) == []
    many = commits.differences({}, {f"layer {number}": BIAS for number in range(40)})
    assert (len(many), many[-1]) == (7, "and 34 more")
