"""Reused objects stay: no reaper may remove one that a job relies on while it is being submitted."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kinetic_orchestration.packaging.reuse import keep
from kinetic_orchestration.packaging.source import tree
from kinetic_orchestration.platforms.local.store import LocalStore, open_local
from kinetic_orchestration.protocol import names

DAY = 86400.0
MONTH = 30 * DAY


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return open_local(tmp_path / "store", "test")


def age(store: LocalStore, name: str) -> float:
    entry = store.find(name)
    assert entry is not None
    return store.now() - entry.updated


def make_old(store: LocalStore, seconds: float, prefix: str = "") -> list[str]:
    """Everything there, as if it had been written so long ago."""
    found = [entry.name for entry in store.list(prefix)]
    for name in found:
        path = store.local_path(name)
        assert path is not None
        os.utime(path, (time.time() - seconds,) * 2)
    return found


@pytest.mark.parametrize(
    ("days", "retention", "renewed"),
    [(7.0, MONTH, False), (8.0, MONTH, True), (8.0, 4 * MONTH, False), (40.0, 4 * MONTH, True), (0.5, 0.0, False)],
)
def test_what_is_older_than_a_quarter_of_the_retention_is_made_young_again(
    store: LocalStore, days: float, retention: float, renewed: bool
) -> None:
    store.create("blobs/x", b"content")
    make_old(store, days * DAY, "blobs/")
    assert keep(store, "blobs/x", retention) is not None
    assert (age(store, "blobs/x") < 60.0) == renewed
    record = store.read("blobs/x")
    assert record is not None
    assert record.data == b"content"


def test_what_is_not_there_is_to_be_sent(store: LocalStore) -> None:
    assert keep(store, "blobs/x", MONTH) is None


def test_what_was_deleted_since_it_was_seen_is_to_be_sent(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create("blobs/x", b"content")
    make_old(store, 20 * DAY, "blobs/")
    find = store.find

    def find_and_lose(name: str) -> object:
        found = find(name)
        store.delete(name)
        return found

    monkeypatch.setattr(store, "find", find_and_lose)
    assert keep(store, "blobs/x", MONTH) is None


def test_a_tree_that_is_used_again_is_young_and_so_are_the_packs_that_a_new_one_refers_to(
    store: LocalStore, tmp_path: Path
) -> None:
    project, spool = tmp_path / "project", tmp_path / "spool"
    project.mkdir()
    spool.mkdir()
    (project / "large.py").write_bytes(os.urandom(50_000))

    def staged() -> str:
        snapshot = tree.snapshot(project, index_dir=tmp_path / "index", spool=spool)
        return tree.upload(snapshot, store, spool=spool, retention=MONTH).digest

    first = staged()
    packs = make_old(store, 20 * DAY, "blobs/")
    make_old(store, 20 * DAY, "trees/")
    assert staged() == first
    assert age(store, names.tree(first)) < 60.0

    (project / "small.py").write_text("x = 1\n")
    assert staged() != first
    assert packs
    assert all(age(store, name) < 60.0 for name in packs)
