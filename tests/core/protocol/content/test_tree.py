"""A host makes files of a tree again, and refuses whatever leads out of it or is not what was sent."""

from __future__ import annotations

import ast
import hashlib
import os
import stat
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from kinetic_orchestration.protocol.content import tree
from kinetic_orchestration.protocol.content.tree import BadTree, Entry, Pack, PackOffset

pytestmark = pytest.mark.fast


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def packed(
    folder: Path, files: dict[str, bytes], others: tuple[Entry, ...] = (), encoding: str = tree.RAW
) -> tuple[dict[str, object], Callable[[str], str]]:
    """A manifest and its one pack, made as plainly as can be."""
    entries = [Entry(path, tree.FILE, 0o644, len(content), sha256(content)) for path, content in files.items()]
    places: dict[str, PackOffset] = {}
    data = b""
    for content in files.values():
        if content and sha256(content) not in places:
            places[sha256(content)] = PackOffset(0, len(data))
            data += content
    stored = zlib.compress(data) if encoding == tree.ZLIB else data
    (folder / "pack").write_bytes(stored)
    pack = Pack(tree.pack_id(encoding, places), len(data), len(stored), encoding)
    entries += others
    manifest = tree.manifest_of(tree.digest_of(entries), entries, [pack], places)
    return manifest, lambda _: str(folder / "pack")


def as_sent(manifest: dict[str, object]) -> dict[str, object]:
    """A manifest that was edited, with the digest that fits it: what a malicious client could send."""
    return {**manifest, "digest": tree.digest_of(tree.entries_of(manifest))}


@pytest.mark.parametrize("encoding", [tree.RAW, tree.ZLIB])
def test_files_links_and_empty_folders_are_made_again(tmp_path: Path, encoding: str) -> None:
    files = {
        "a.py": b"a", "empty": b"", "deep/er/b.bin": os.urandom(3_000_000), "same as a": b"a",
        "deep/zeros": b"\0" * 9_000_000, "deep/zeros again": b"\0" * 9_000_000, "größe/模型 \udce9": b"x",
    }  # fmt: skip
    others = (Entry("links/up", tree.LINK, target="../a.py"), Entry("nothing/in here", tree.FOLDER))
    manifest, open_pack = packed(tmp_path, files, others, encoding)
    target = tmp_path / "host"
    tree.unpack(manifest, open_pack, str(target), str(manifest["digest"]))
    for path, content in files.items():
        assert (target / path).read_bytes() == content
    assert os.readlink(target / "links" / "up") == "../a.py"
    assert list((target / "nothing" / "in here").iterdir()) == []


def test_modes_do_not_depend_on_the_hosts_umask(tmp_path: Path) -> None:
    entries = [Entry("run", tree.FILE, 0o755, 0, sha256(b"")), Entry("read", tree.FILE, 0o644, 0, sha256(b""))]
    manifest = tree.manifest_of(tree.digest_of(entries), entries, [], {})
    before = os.umask(0o077)
    try:
        tree.unpack(manifest, str, str(tmp_path / "host"))
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "host").iterdir()}
    assert modes == {"run": 0o755, "read": 0o644}


@pytest.mark.parametrize(
    "path", ["../x", "/x", "a/../../x", "a/./x", "a//x", "", ".", "..", "a/", "a\0b", "a/..", "/", "//x"]
)
def test_a_path_that_leads_out_is_refused(tmp_path: Path, path: str) -> None:
    for manifest, open_pack in (
        packed(tmp_path, {path: b"x"}),
        packed(tmp_path, {}, (Entry(path, tree.FOLDER),)),
        packed(tmp_path, {}, (Entry(path, tree.LINK, target="x"),)),
    ):
        with pytest.raises(BadTree, match="leads out of the tree"):
            tree.unpack(manifest, open_pack, str(tmp_path / "inner" / "host"))
        assert not (tmp_path / "inner").exists()


@pytest.mark.parametrize("through", ["link/x", "link/deep/x"])
def test_nothing_is_written_through_a_link(tmp_path: Path, through: str) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    manifest, open_pack = packed(tmp_path, {through: b"x"}, (Entry("link", tree.LINK, target=str(outside)),))
    with pytest.raises(BadTree, match="cannot hold other files"):
        tree.unpack(manifest, open_pack, str(tmp_path / "host"))
    manifest, open_pack = packed(tmp_path, {"link": b"x"}, (Entry("link", tree.LINK, target=str(outside)),))
    with pytest.raises(BadTree, match="twice"):
        tree.unpack(manifest, open_pack, str(tmp_path / "host"))
    assert list((outside / "deep").iterdir()) == []


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    manifest, open_pack = packed(tmp_path, {"a": b"x"})
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "a").symlink_to("/etc/passwd")
    with pytest.raises(BadTree, match="is not empty"):
        tree.unpack(manifest, open_pack, str(tmp_path / "host"))


@pytest.mark.parametrize("encoding", [tree.RAW, tree.ZLIB])
@pytest.mark.parametrize("damage", ["flipped", "cut", "empty"])
def test_bytes_that_are_not_those_that_were_sent_are_refused(tmp_path: Path, encoding: str, damage: str) -> None:
    manifest, open_pack = packed(tmp_path, {"a": os.urandom(1000), "b": os.urandom(1000)}, (), encoding)
    data = bytearray((tmp_path / "pack").read_bytes())
    if damage == "flipped":
        data[1500] ^= 1
    (tmp_path / "pack").write_bytes(data[: {"flipped": None, "cut": 1500, "empty": 0}[damage]])
    with pytest.raises(tree.Damaged) as caught:
        tree.unpack(manifest, open_pack, str(tmp_path / "host"))
    assert caught.value.pack == tree.packs_of(manifest)[0].id


def test_a_manifest_that_was_changed_is_refused(tmp_path: Path) -> None:
    manifest, open_pack = packed(tmp_path, {"a": b"x"})
    changed = {**manifest, "links": [["b", "a"]]}
    with pytest.raises(BadTree, match="changed after it was sent"):
        tree.unpack(changed, open_pack, str(tmp_path / "host"))
    # And with a digest that fits, against the digest that came by another way.
    with pytest.raises(BadTree, match="changed after it was sent"):
        tree.unpack(as_sent(changed), open_pack, str(tmp_path / "host"), str(manifest["digest"]))


def test_a_newer_manifest_and_an_unknown_encoding_are_refused_by_name(tmp_path: Path) -> None:
    manifest, open_pack = packed(tmp_path, {"a": b"x"})
    with pytest.raises(BadTree, match="version 99"):
        tree.unpack({**manifest, "version": 99}, open_pack, str(tmp_path / "host"))
    manifest, open_pack = packed(tmp_path, {"a": b"x"}, (), "zstd")
    with pytest.raises(BadTree, match="zstd"):
        tree.unpack(manifest, open_pack, str(tmp_path / "host"))


def test_the_digest_does_not_depend_on_the_order_and_no_two_trees_share_one() -> None:
    a = Entry("a", tree.FILE, 0o644, 1, sha256(b"x"))
    b = Entry("b", tree.LINK, target="a")
    assert tree.digest_of([a, b]) == tree.digest_of([b, a])
    listings = [
        [], [a], [b], [a, b], [a._replace(mode=0o755)], [a._replace(path="a\n")], [b._replace(target="a\n")],
        [Entry("b", tree.FOLDER)], [Entry("b a", tree.FOLDER)], [b._replace(path="b a", target="")],
    ]  # fmt: skip
    assert len({tree.digest_of(listing) for listing in listings}) == len(listings)


def test_the_digest_is_the_same_in_every_release() -> None:
    """Trees that are in people's stores carry this one; change VERSION if it must change."""
    entries = [Entry("a/é.py", tree.FILE, 0o755, 3, sha256(b"abc")), Entry("l", tree.LINK, target="a")]
    assert tree.digest_of(entries) == "5bcb4fc5b5e39e4f606e5b6ec7d160952f8cd9855c695729178a2b397706798d"


def test_the_manifest_lists_what_it_was_made_of(tmp_path: Path) -> None:
    others = (Entry("l", tree.LINK, target="a"), Entry("f", tree.FOLDER))
    manifest, _ = packed(tmp_path, {"a": b"x", "b": b""}, others)
    assert [entry.path for entry in tree.entries_of(manifest)] == ["a", "b", "l", "f"]
    assert tree.digest_of(tree.entries_of(manifest)) == manifest["digest"]
    assert [pack.size for pack in tree.packs_of(manifest)] == [1]


def test_it_needs_the_standard_library_alone_and_little_of_it() -> None:
    imported = {
        alias.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.parse(Path(tree.__file__).read_text()).body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert imported == {"__future__", "collections", "hashlib", "os"} and imported <= sys.stdlib_module_names
