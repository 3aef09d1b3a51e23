"""A project becomes a snapshot, a snapshot becomes objects in a store, and a host makes the same files of them."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.packaging.source import packs, tree
from kinetic_orchestration.plan import messages
from kinetic_orchestration.platforms.local.store import LocalStore
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.content import tree as agent_tree
from kinetic_orchestration.protocol.system.parallel import REQUESTS

pytestmark = pytest.mark.fast


class Store(LocalStore):
    """The local store; with another `url`, what an upload takes for a remote one."""

    def __init__(self, root: Path, url: str = "") -> None:
        root.mkdir(parents=True, exist_ok=True)
        super().__init__(str(root), "test")
        self.url, self.metered = url or self.url, bool(url)
        self.parallel = REQUESTS if url else 1


class Desk:
    """The environment of one user: a project, a store, an index and a folder for packs."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.project = base / "project"
        self.project.mkdir()
        self.spool = base / "store" / "spool"
        self.store = Store(base / "store")
        self.spool.mkdir()
        self.index = base / "index"

    def write(self, path: str, content: str | bytes = "") -> Path:
        target = self.project / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
        return target

    def snapshot(self, **options: object) -> tree.Snapshot:
        options.setdefault("index_dir", self.index)
        options.setdefault("spool", self.spool)
        return tree.snapshot(self.project, **options)  # type: ignore[arg-type]

    def stage(self, **options: object) -> tree.StagedTree:
        return tree.upload(self.snapshot(**options), self.store, spool=self.spool)

    def manifest(self, digest: str) -> dict[str, object]:
        record = self.store.read(names.tree(digest))
        assert record is not None
        return json.loads(record.data)  # type: ignore[no-any-return]

    def unpack(self, digest: str, store: Store | None = None) -> Path:
        target = Path(tempfile.mkdtemp(dir=self.base)) / "host"
        store = store or self.store

        def open_pack(pack: str) -> str:
            path = store.local_path(names.blob(pack))
            assert path is not None
            return path

        record = store.read(names.tree(digest))
        assert record is not None
        agent_tree.unpack(json.loads(record.data), open_pack, str(target), digest)
        return target

    def settle(self) -> None:
        """Make every file older than a tick, so that the index may believe it."""
        for folder, folders, files in os.walk(self.project):
            for name in (*folders, *files):
                os.utime(os.path.join(folder, name), (1e9, 1e9), follow_symlinks=False)
        time.sleep(0.1)  # ctime cannot be set


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def paths(snapshot: tree.Snapshot) -> list[str]:
    return sorted(entry.path for entry in snapshot.entries)


def contents(root: Path) -> dict[str, object]:
    """Everything a program could see in a folder."""
    seen: dict[str, object] = {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            key = os.fsdecode(os.path.relpath(path, os.fsencode(root)))
            if os.path.islink(path):
                seen[key] = ("link", os.readlink(path))
            elif os.path.isdir(path):
                seen[key] = "folder"
            else:
                seen[key] = (os.stat(path).st_mode & 0o111, Path(os.fsdecode(path)).read_bytes())
    return seen


# The way of the data


def test_a_host_gets_exactly_the_files_of_the_project(desk: Desk) -> None:
    desk.write("train.py", "print('hello')\n")
    desk.write("src/model/layers.py", "x = 1\n" * 1000)
    desk.write("run.sh", "#!/bin/sh\n").chmod(0o755)
    desk.write("with space/größe 模型.txt", "ä")
    desk.write("empty.txt")
    desk.write("large.bin", os.urandom(5 << 20))
    (desk.project / "empty folder" / "inner").mkdir(parents=True)
    (desk.project / "link").symlink_to("src/model/layers.py")
    (desk.project / "folder link").symlink_to("src", target_is_directory=True)
    staged = desk.stage()
    assert contents(desk.unpack(staged.digest)) == contents(desk.project)
    assert not list(desk.spool.iterdir())


def test_a_name_that_is_not_utf8_travels(desk: Desk) -> None:
    desk.write(os.fsdecode(b"caf\xe9 \x80.txt"), b"latin")
    (desk.project / "link").symlink_to(os.fsdecode(b"caf\xe9 \x80.txt"))
    staged = desk.stage()
    assert contents(desk.unpack(staged.digest)) == contents(desk.project)
    assert desk.stage() == tree.StagedTree(staged.digest)


def test_a_remote_store_gets_compressed_packs_and_the_host_reads_them(desk: Desk) -> None:
    desk.write("a.py", "value = 1\n" * 300_000)
    desk.write("b.py", "other = 2\n" * 20_000)
    desk.write("copy of b.py", "other = 2\n" * 20_000)
    store = Store(desk.base / "remote", "gs://bucket/kinetic")
    staged = tree.upload(desk.snapshot(), store, spool=desk.spool)
    assert staged.uploaded_bytes < 200_000
    assert contents(desk.unpack(staged.digest, store)) == contents(desk.project)


def test_a_remote_store_gets_noise_as_it_is(desk: Desk) -> None:
    desk.write("noise.bin", os.urandom(1 << 20))
    store = Store(desk.base / "remote", "gs://bucket/kinetic")
    staged = tree.upload(desk.snapshot(), store, spool=desk.spool)
    assert (1 << 20) <= staged.uploaded_bytes < (1 << 20) + 1000
    assert contents(desk.unpack(staged.digest, store)) == contents(desk.project)


def test_a_file_larger_than_a_pack_is_a_pack_of_its_own(desk: Desk) -> None:
    desk.write("large.bin", b"\0" * (packs.PACK_SIZE + 5))
    desk.write("small.py", "x")
    staged = desk.stage()
    assert len(staged.packs) == 2
    assert contents(desk.unpack(staged.digest)) == contents(desk.project)


def test_equal_contents_are_sent_once(desk: Desk) -> None:
    noise = os.urandom(1 << 20)
    for number in range(5):
        desk.write(f"copy{number}.bin", noise)
    staged = desk.stage()
    assert staged.uploaded_bytes < (1 << 20) + 2000
    assert contents(desk.unpack(staged.digest)) == contents(desk.project)


def test_an_upload_without_a_spool_reads_the_files_again(desk: Desk) -> None:
    desk.write("a.py", "a")
    snapshot = desk.snapshot(spool=None)
    assert snapshot.spooled == ()
    staged = tree.upload(snapshot, desk.store, spool=desk.spool)
    assert contents(desk.unpack(staged.digest)) == contents(desk.project)


def test_a_file_that_changes_before_such_an_upload_is_named(desk: Desk) -> None:
    changing = desk.write("a.py", "a")
    snapshot = desk.snapshot(spool=None)
    changing.write_text("b")
    with pytest.raises(UsageError, match=r"a\.py changed while"):
        tree.upload(snapshot, desk.store, spool=desk.spool)
    assert desk.store.read(names.tree(snapshot.digest)) is None


def test_one_snapshot_can_go_to_two_stores(desk: Desk) -> None:
    desk.write("a.py", "a")
    snapshot = desk.snapshot()
    other = Store(desk.base / "other")
    for store in (desk.store, other):
        staged = tree.upload(snapshot, store, spool=desk.spool)
        assert staged.packs
        assert contents(desk.unpack(staged.digest, store)) == contents(desk.project)


# Unchanged and edited


def test_an_unchanged_project_uploads_nothing_and_reads_nothing(desk: Desk) -> None:
    for number in range(20):
        desk.write(f"m{number}.py", f"x = {number}")
    desk.settle()
    first = desk.stage()
    assert first.uploaded_bytes > 0
    again = desk.snapshot()
    assert again.spooled == ()  # where everything that is read goes
    assert tree.upload(again, desk.store, spool=desk.spool) == tree.StagedTree(first.digest)


def test_the_entries_of_an_unchanged_project_are_those_of_the_first_look(desk: Desk) -> None:
    desk.write("a/b.py", "x").chmod(0o755)
    desk.write(".env", "TOKEN=1")
    (desk.project / "link").symlink_to("a/b.py")
    (desk.project / "empty").mkdir()
    desk.settle()
    first, second = desk.snapshot(), desk.snapshot()
    assert second.spooled == ()
    assert (second.entries, second.digest, second.size, second.warnings, second.secrets) == (
        first.entries, first.digest, first.size, first.warnings, first.secrets,
    )  # fmt: skip


def test_one_edited_file_uploads_one_delta(desk: Desk) -> None:
    for number in range(50):
        desk.write(f"m{number}.py", os.urandom(10_000))
    desk.stage()
    desk.write("m7.py", b"edited" * 100)
    staged = desk.stage()
    assert len(staged.packs) == 1
    assert os.path.getsize(str(desk.store.local_path(staged.packs[0]))) == 600
    assert contents(desk.unpack(staged.digest)) == contents(desk.project)


def test_losing_the_index_never_costs_an_upload(desk: Desk) -> None:
    for number in range(10):
        desk.write(f"m{number}.py", os.urandom(10_000))
    digest = desk.stage().digest
    shutil.rmtree(desk.index)
    assert desk.stage() == tree.StagedTree(digest)
    shutil.rmtree(desk.index)
    desk.write("m3.py", b"edited")
    staged = desk.stage()
    assert [os.path.getsize(str(desk.store.local_path(pack))) for pack in staged.packs] == [6]
    assert contents(desk.unpack(staged.digest)) == contents(desk.project)


def test_deleting_and_renaming_files_uploads_only_the_manifest(desk: Desk) -> None:
    for number in range(10):
        desk.write(f"m{number}.py", os.urandom(1000))
    desk.stage()
    (desk.project / "m0.py").unlink()
    (desk.project / "m1.py").rename(desk.project / "renamed.py")
    staged = desk.stage()
    assert staged.packs == () and staged.uploaded_bytes > 0
    assert contents(desk.unpack(staged.digest)) == contents(desk.project)


def test_a_hundred_edits_do_not_make_a_hundred_packs(desk: Desk) -> None:
    for number in range(120):
        desk.write(f"m{number}.py", os.urandom(2000))
    staged = desk.stage()
    most = 0
    for number in range(100):
        desk.write(f"m{number}.py", os.urandom(100))
        staged = desk.stage()
        most = max(most, len(desk.manifest(staged.digest)["packs"]))  # type: ignore[arg-type]
    assert 2 < most <= tree.MOST_SMALL_PACKS + 2
    assert contents(desk.unpack(staged.digest)) == contents(desk.project)


def test_a_pack_of_mostly_dead_bytes_is_not_kept(desk: Desk) -> None:
    for number in range(10):
        desk.write(f"m{number}.py", os.urandom(1000))
    desk.stage()
    for number in range(6):
        desk.write(f"m{number}.py", os.urandom(10))
    staged = desk.stage()
    held = sum(pack[1] for pack in desk.manifest(staged.digest)["packs"])  # type: ignore[attr-defined]
    assert held == 4 * 1000 + 6 * 10
    assert contents(desk.unpack(staged.digest)) == contents(desk.project)


def test_a_damaged_pack_in_the_store_is_not_built_upon(desk: Desk) -> None:
    for number in range(10):
        desk.write(f"m{number}.py", os.urandom(1000))
    (pack,) = desk.stage().packs
    os.truncate(str(desk.store.local_path(pack)), 10)
    desk.write("m0.py", b"edited")
    staged = desk.stage()
    assert contents(desk.unpack(staged.digest)) == contents(desk.project)


def test_a_pack_that_was_cut_off_is_replaced(desk: Desk) -> None:
    desk.write("a.py", os.urandom(1000))
    staged = desk.stage()
    os.truncate(str(desk.store.local_path(staged.packs[0])), 10)
    desk.store.delete(names.tree(staged.digest))
    assert desk.stage(index_dir=desk.base / "another index").packs == staged.packs
    assert contents(desk.unpack(staged.digest)) == contents(desk.project)


def test_an_interrupted_upload_goes_on_where_it_stopped(desk: Desk) -> None:
    for number in range(10):
        desk.write(f"m{number}.py", os.urandom(10_000))
    digest = desk.stage().digest
    desk.store.delete(names.tree(digest))  # as if it had died before the manifest
    staged = desk.stage(index_dir=desk.base / "another index")
    assert staged.digest == digest and staged.packs == ()


# One digest


def test_the_digest_is_the_same_whatever_the_order_the_times_and_the_machine(desk: Desk, tmp_path: Path) -> None:
    files = {f"f{number}/{name}": os.urandom(50) for number in range(5) for name in ("b", "a", "Z", "ä")}
    for path, content in files.items():
        desk.write(path, content)
    (desk.project / "link").symlink_to("f0/a")
    other = Desk(tmp_path / "elsewhere" if (tmp_path / "elsewhere").mkdir() is None else tmp_path)
    (other.project / "link").symlink_to("f0/a")
    for path, content in reversed(files.items()):
        os.utime(other.write(path, content), (1e9, 1e9))
    assert desk.snapshot().digest == other.snapshot().digest


def test_touching_every_file_changes_nothing(desk: Desk) -> None:
    file = desk.write("a.py", "x")
    digest = desk.stage().digest
    os.utime(file, (2e9, 2e9))
    assert desk.stage() == tree.StagedTree(digest)


def test_the_umask_changes_nothing_but_the_executable_bit_does(desk: Desk) -> None:
    file = desk.write("a.sh", "x")
    file.chmod(0o644)
    plain = desk.snapshot().digest
    file.chmod(0o600)
    assert desk.snapshot().digest == plain
    file.chmod(0o664)
    assert desk.snapshot().digest == plain
    file.chmod(0o755)
    executable = desk.snapshot().digest
    assert executable != plain
    file.chmod(0o700)
    assert desk.snapshot().digest == executable


def test_every_kind_of_change_changes_the_digest(desk: Desk) -> None:
    desk.write("a", "x")
    seen = {desk.snapshot().digest}

    def changed() -> None:
        digest = desk.snapshot().digest
        assert digest not in seen
        seen.add(digest)

    desk.write("a", "y")
    changed()
    (desk.project / "a").rename(desk.project / "b")
    changed()
    (desk.project / "empty").mkdir()
    changed()
    (desk.project / "link").symlink_to("b")
    changed()
    (desk.project / "link").unlink()
    (desk.project / "link").symlink_to("empty")
    changed()
    (desk.project / "link").unlink()
    desk.write("link", "b")
    changed()
    (desk.project / "empty").rmdir()
    desk.write("empty")
    changed()
    (desk.project / "empty").unlink()
    changed()


def test_a_change_within_one_tick_and_of_the_same_size_is_seen(desk: Desk) -> None:
    """git's racy case: the stamp stays the same, for the clock has not moved on."""
    file = desk.write("a.py", "aaaa")
    before = file.stat()
    for content in ("bbbb", "cccc", "dddd"):
        desk.snapshot()
        with file.open("r+b") as opened:  # the same inode
            opened.write(content.encode())
        os.utime(file, ns=(before.st_mtime_ns, before.st_mtime_ns))
        staged = desk.stage()
        assert (desk.unpack(staged.digest) / "a.py").read_text() == content


def test_two_snapshots_at_once_agree(desk: Desk) -> None:
    for number in range(100):
        desk.write(f"m{number}.py", f"x = {number}")
    found: list[tree.StagedTree] = []
    threads = [threading.Thread(target=lambda: found.append(desk.stage())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({staged.digest for staged in found}) == 1 and len(found) == 4
    assert contents(desk.unpack(found[0].digest)) == contents(desk.project)
    assert desk.stage() == tree.StagedTree(found[0].digest)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_done_to_a_project_the_index_never_changes_what_is_seen(desk: Desk, seed: int) -> None:
    chance = random.Random(seed)
    names_used = ["a", "b", "c.log", "d.py", "link", ".gitignore", ".kineticignore", "venv", "pyvenv.cfg"]
    lines = ["*.log", "a", "a/", "!a", "b/*", "!c.log", "/d.py", "*", "!*/", "!venv", "link"]

    def somewhere() -> Path:
        return desk.project.joinpath(*chance.choices(names_used[:3], k=chance.randint(0, 2)))

    for turn in range(15):
        for _ in range(chance.randint(1, 6)):
            folder = somewhere()
            target = folder / chance.choice(names_used)
            if chance.random() < 0.4 and target.exists() and not target.is_symlink():
                shutil.rmtree(target) if target.is_dir() else target.unlink()
                continue
            try:
                folder.mkdir(parents=True, exist_ok=True)
                if target.name == "link":
                    target.unlink(missing_ok=True)
                    target.symlink_to(chance.choice(["a", "../b", "/etc/hostname", "nowhere", "..", "link"]))
                elif target.name.endswith("ignore"):
                    target.write_text("\n".join(chance.choices(lines, k=chance.randint(0, 3))))
                elif chance.random() < 0.3:
                    target.mkdir()
                else:
                    target.write_text(chance.choice(["", "x", "y" * 50]))
                    target.chmod(chance.choice([0o644, 0o755]))
            except OSError:
                pass  # a file where a folder should be, or the other way round
        time.sleep(0.055)  # a tick, so that the index is believed
        fresh = tree.snapshot(desk.project, index_dir=desk.base / f"index {turn}")
        for _ in range(2):
            known = desk.snapshot()
            assert (known.entries, known.digest, known.size) == (fresh.entries, fresh.digest, fresh.size)
            assert sorted(known.warnings) == sorted(fresh.warnings)


# What is on a disk besides files


def test_a_link_to_a_file_outside_travels_as_that_file(desk: Desk) -> None:
    outside = desk.base / "outside.sh"
    outside.write_text("shared")
    outside.chmod(0o755)
    (desk.project / "link.sh").symlink_to(outside)
    staged = desk.stage()
    arrived = desk.unpack(staged.digest) / "link.sh"
    assert arrived.read_text() == "shared" and not arrived.is_symlink() and os.access(arrived, os.X_OK)
    outside.write_text("changed")
    assert (desk.unpack(desk.stage().digest) / "link.sh").read_text() == "changed"


def test_a_link_to_a_folder_outside_travels_as_a_link_with_a_warning(desk: Desk) -> None:
    (desk.base / "big data").mkdir()
    (desk.project / "data").symlink_to(desk.base / "big data")
    snapshot = desk.snapshot()
    assert paths(snapshot) == ["data"]
    assert "data is a link to the folder" in snapshot.warnings[0] and "Data" in snapshot.warnings[0]


def test_broken_links_and_cycles_travel_as_they_are_with_a_warning(desk: Desk) -> None:
    (desk.project / "broken").symlink_to("nowhere")
    (desk.project / "one").symlink_to("two")
    (desk.project / "two").symlink_to("one")
    (desk.project / "folder").mkdir()
    (desk.project / "folder" / "up").symlink_to("..")
    (desk.project / "self").symlink_to(".")
    snapshot = desk.snapshot()
    assert paths(snapshot) == ["broken", "folder/up", "one", "self", "two"]
    assert [warning.split()[0] for warning in snapshot.warnings] == ["broken", "one", "two"] or sorted(
        warning.split()[0] for warning in snapshot.warnings
    ) == ["broken", "one", "two"]
    staged = tree.upload(snapshot, desk.store, spool=desk.spool)
    assert contents(desk.unpack(staged.digest)) == contents(desk.project)


def test_an_absolute_link_into_the_project_works_on_the_host_too(desk: Desk) -> None:
    desk.write("data/x.txt", "x")
    (desk.project / "sub").mkdir()
    (desk.project / "sub" / "absolute").symlink_to(desk.project / "data" / "x.txt")
    (desk.project / "sub" / "round").symlink_to(f"../../{desk.project.name}/data")
    arrived = desk.unpack(desk.stage().digest)
    assert os.readlink(arrived / "sub" / "absolute") == "../data/x.txt"
    assert os.readlink(arrived / "sub" / "round") == "../data"


def test_a_link_to_something_ignored_is_told(desk: Desk) -> None:
    desk.write(".gitignore", "cache/\n")
    desk.write("cache/x", "x")
    (desk.project / "current").symlink_to("cache/x")
    assert desk.snapshot().warnings == ("current is a link to cache/x, which stays here",)


def test_sockets_and_pipes_stay_here_with_a_warning(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.write("a.py", "x")
    os.mkfifo(desk.project / "pipe")
    monkeypatch.chdir(desk.project)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind("socket")
        snapshot = desk.snapshot()
    assert paths(snapshot) == ["a.py"]
    assert sorted(snapshot.warnings) == [
        "pipe is a named pipe and stays here",
        "socket is a socket and stays here",
    ]


@pytest.fixture
def nobodys_desk() -> Iterator[Path]:
    """A folder that every user can reach: a superuser can read everything, so another one must look."""
    folder = Path(tempfile.mkdtemp(prefix="kinetic-test-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("path", ["locked.txt", "closed [1]/inner.txt"])
def test_an_unreadable_file_is_named_with_the_line_that_leaves_it_out(nobodys_desk: Path, path: str) -> None:
    project = nobodys_desk / "project"
    target = project / path
    target.parent.mkdir(parents=True)
    target.write_text("x")
    (project / ".env").write_text("x")
    (project / ".env").chmod(0)  # which stays here anyway
    unreadable = target if target.parent == project else target.parent
    unreadable.chmod(0)
    program = f"""
import os
from pathlib import Path
from kinetic_orchestration.packaging.source import ignore, tree
ignore._compiler()  # what it imports may be unreadable to nobody
from kinetic_orchestration.errors import UsageError
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    print(tree.snapshot(Path({str(project)!r}), index_dir=Path({str(nobodys_desk / "index")!r})).count)
except UsageError as error:
    print(error)
"""

    def look() -> str:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    said = look()
    assert path.partition("/")[0] in said and "cannot be read (Permission denied)" in said
    line = said.rpartition(":  ")[2]
    (project / ".kineticignore").write_text(f"{line}\n")
    assert look() == "1"
    unreadable.chmod(0o755)


def test_a_file_that_keeps_changing_is_told_and_arrives_whole(desk: Desk) -> None:
    """A log that grows all the time must not stop a job."""
    log = desk.write("run.log", b"x" * 3_000_000)
    stop = threading.Event()

    def grow() -> None:
        with log.open("ab", buffering=0) as file:
            while not stop.is_set():
                file.write(b"y" * 100)

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        snapshot = desk.snapshot()
    finally:
        stop.set()
        thread.join()
    staged = tree.upload(snapshot, desk.store, spool=desk.spool)
    arrived = (desk.unpack(staged.digest) / "run.log").read_bytes()
    assert log.read_bytes().startswith(arrived) and len(arrived) >= 3_000_000
    assert not snapshot.warnings or "run.log kept changing" in snapshot.warnings[0]
    if len(arrived) < log.stat().st_size:
        assert desk.snapshot().digest != snapshot.digest


# What travels


def test_what_is_ignored_by_default(desk: Desk) -> None:
    for path in (
        ".git/config", ".venv/pyvenv.cfg", "any name/pyvenv.cfg", "any name/lib/x.py", "conda/conda-meta/history",
        "pkg/__pycache__/a.pyc", "old.pyc", "node_modules/x/index.js", ".mypy_cache/x", ".ruff_cache/x",
        ".pytest_cache/x", ".tox/x", ".nox/x", ".ipynb_checkpoints/x", ".DS_Store", "venv/x",
    ):  # fmt: skip
        desk.write(path, "x")
    desk.write("pkg/a.py", "x")
    desk.write("environment/a.py", "x")
    assert paths(desk.snapshot()) == ["environment/a.py", "pkg/a.py"]


def test_kineticignore_wins_over_gitignore_and_the_defaults(desk: Desk) -> None:
    desk.write(".gitignore", "generated/\n*.csv\n!*/\n")
    desk.write(".kineticignore", "!generated/\n!node_modules/\nnotes.txt\n")
    for path in (
        "generated/a.py",
        "node_modules/x.js",
        "notes.txt",
        "table.csv",
        ".venv/x.py",
        "deep/table.csv",
    ):
        desk.write(path, "x")
    assert paths(desk.snapshot()) == [".gitignore", ".kineticignore", "generated/a.py", "node_modules/x.js"]


def test_the_rules_of_the_repository_above_the_project_hold_too(desk: Desk) -> None:
    (desk.base / ".git" / "info").mkdir(parents=True)
    (desk.base / ".git" / "info" / "exclude").write_text("*.secret\n")
    (desk.base / ".gitignore").write_text("/project/outputs/\n*.log\n")
    for path in ("outputs/x", "a.log", "my.secret", "train.py", "sub/outputs/y"):
        desk.write(path, "x")
    assert paths(desk.snapshot(home=desk.base / "home")) == ["sub/outputs/y", "train.py"]


def test_a_home_folder_kept_in_git_does_not_ignore_the_projects_in_it(desk: Desk) -> None:
    (desk.base / ".git").mkdir()
    (desk.base / ".gitignore").write_text("*\n")
    desk.write("train.py", "x")
    assert paths(desk.snapshot(home=desk.base)) == ["train.py"]


def test_a_changed_ignore_file_is_heeded_though_every_file_is_known(desk: Desk) -> None:
    for path in ("a/x.log", "a/y.py", "b/x.log", "b/z/x.log"):
        desk.write(path, "x")
    desk.settle()
    assert len(desk.snapshot().entries) == 4
    desk.write("b/.gitignore", "*.log\n")
    assert paths(desk.snapshot()) == ["a/x.log", "a/y.py", "b/.gitignore"]
    assert paths(desk.snapshot()) == ["a/x.log", "a/y.py", "b/.gitignore"]
    desk.write("b/.gitignore", "*.log\n!z/*.log\n")
    assert paths(desk.snapshot()) == ["a/x.log", "a/y.py", "b/.gitignore", "b/z/x.log"]
    (desk.project / "b/.gitignore").unlink()
    assert paths(desk.snapshot()) == ["a/x.log", "a/y.py", "b/x.log", "b/z/x.log"]


def test_data_inside_the_project_is_not_shipped_twice(desk: Desk) -> None:
    for path in ("data/a.bin", "data/deep/b.bin", "model.py", "one.csv"):
        desk.write(path, "x")
    exclude = [desk.project / "data", desk.project / "one.csv", desk.project, desk.base]
    assert paths(desk.snapshot(exclude=exclude)) == ["model.py"]
    assert len(desk.snapshot().entries) == 4


def test_a_store_and_an_index_inside_the_project_stay_here(desk: Desk) -> None:
    desk.write("train.py", "x")
    desk.write("our store/blobs/x", "x")
    spool = desk.project / "our store" / "spool"
    spool.mkdir()
    for _ in range(2):
        snapshot = desk.snapshot(index_dir=desk.project / "cache", spool=spool, exclude=[desk.project / "our store"])
        assert paths(snapshot) == ["train.py"]


def test_a_folder_of_data_is_taken_with_all_that_the_rules_would_leave_out(desk: Desk) -> None:
    for path in (".gitignore", "a.log", "venv/x", "env/pyvenv.cfg", "x.pyc"):
        desk.write(path, "*\n")
    assert len(desk.snapshot(ignored=True).entries) == 5


def test_files_that_look_like_keys_are_named_and_stay_here(desk: Desk) -> None:
    desk.write("config/service-account.json", json.dumps({"type": "x", "private_key": "k"}))
    desk.write("deploy", "-----BEGIN " + "OPENSSH PRIVATE KEY-----\nb3BlbnNzaA\n")
    desk.write("large.jks", b"x" * (5 << 20))
    for path in (".env", "keys/id_rsa", "tls.pem", "credentials-prod.json", ".netrc", "prod/.env.local"):
        desk.write(path, "x")
    travel = [".env.example", "cacert.pem", "environment.py", "id_rsa.pub", "settings.json", "tokens.py"]
    for path in travel:
        desk.write(path, "-----BEGIN CERTIFICATE-----\n" if path == "cacert.pem" else "{}")
    desk.settle()
    stay = (
        ".env", ".netrc", "config/service-account.json", "credentials-prod.json", "deploy", "keys/id_rsa", "large.jks",
        "prod/.env.local", "tls.pem",
    )  # fmt: skip
    for _ in range(3):
        snapshot = desk.snapshot()
        assert paths(snapshot) == travel and snapshot.secrets == stay
        (warning,) = snapshot.warnings
        assert "these files look like a secret and stay here: .env, .netrc" in warning and "and 4 more" in warning
        assert warning.endswith(f"{desk.project}/.kineticignore:  !/.env")
    staged = desk.stage()
    assert sorted(contents(desk.unpack(staged.digest))) == travel
    for pack in (desk.base / "store").rglob("*"):
        assert not pack.is_file() or b"OPENSSH" not in pack.read_bytes()


def test_a_file_that_looks_like_a_key_travels_where_its_line_names_it(desk: Desk) -> None:
    for path in (".env", "certs/a.pem", "train.py"):
        desk.write(path, "x")
    desk.write("account.json", json.dumps({"private_key": "k"}))
    desk.settle()

    def after(text: str) -> list[str]:
        desk.write(".kineticignore", text)
        snapshot = desk.snapshot()
        again = desk.snapshot()
        assert (again.digest, again.secrets, again.warnings) == (snapshot.digest, snapshot.secrets, snapshot.warnings)
        assert {*paths(snapshot), *snapshot.secrets} <= {
            ".kineticignore", ".env", "account.json", "certs/a.pem", "train.py"
        }  # fmt: skip
        return [path for path in paths(snapshot) if path not in (".kineticignore", "train.py")]

    assert after("") == []
    assert after("!/.env\n") == [".env"]
    assert after("!.env*\n!account.json\n") == [".env", "account.json"]
    assert after("!*\n!*/\n!*.json\n!certs/**\n") == []  # by which nobody means a key
    assert after("!/certs/*.pem\n") == ["certs/a.pem"]
    assert after("!account.json\n") == ["account.json"]
    assert after("") == []
    desk.write(".kineticignore", ".env\naccount.json\n*.pem\n")
    assert desk.snapshot().secrets == () and desk.snapshot().warnings == ()  # they were meant to stay


def test_a_key_that_lies_behind_a_link_stays_here(desk: Desk) -> None:
    desk.write("train.py", "x")
    outside = desk.base / ".env"
    outside.write_text("A=1")
    (desk.project / "settings").symlink_to(outside)
    desk.settle()
    for _ in range(2):
        snapshot = desk.snapshot()
        assert (paths(snapshot), snapshot.secrets) == (["train.py"], ("settings",))


def test_a_file_that_becomes_a_key_or_is_none_any_more_is_seen(desk: Desk) -> None:
    desk.write("config.json", "{}")
    desk.write("train.py", "x")
    desk.settle()
    assert paths(desk.snapshot()) == ["config.json", "train.py"]
    desk.write("config.json", json.dumps({"private_key": "k"}))
    desk.settle()
    assert [paths(desk.snapshot()) for _ in range(2)] == [["train.py"]] * 2
    desk.write("config.json", "{}")
    desk.settle()
    assert [desk.snapshot().secrets for _ in range(2)] == [()] * 2
    assert paths(desk.snapshot()) == ["config.json", "train.py"]


def test_a_key_within_a_folder_of_data_travels_and_is_named(desk: Desk) -> None:
    desk.write("rows.csv", "1")
    desk.write(".env", "A=1")
    desk.settle()
    for _ in range(2):
        snapshot = desk.snapshot(ignored=True)
        assert paths(snapshot) == [".env", "rows.csv"] and snapshot.secrets == ()
        assert "looks like a secret, and it travels with it: .env" in snapshot.warnings[0]


def test_only_what_is_included_travels(desk: Desk) -> None:
    for path in ("dag.py", "other.py", "lib/a.py", "lib/__pycache__/a.pyc", "lib/b.tmp", "unrelated/big.bin"):
        desk.write(path, "x")
    desk.write(".gitignore", "*.tmp\ndag.py\n")
    assert paths(desk.snapshot(include=["dag.py", "lib", "lib/a.py"])) == ["dag.py", "lib/a.py"]
    assert paths(desk.snapshot(include=[])) == []
    assert len(desk.snapshot().entries) == 4  # neither look spoilt the other's index


def test_two_files_of_a_folder_that_travel_apart_keep_their_places_in_the_index(desk: Desk) -> None:
    for name in ("one.bin", "two.bin"):
        desk.write(name, "x")
    desk.settle()
    for name in ("one.bin", "two.bin"):
        assert desk.snapshot(include=[name]).spooled
    for name in ("one.bin", "two.bin"):
        assert not desk.snapshot(include=[name]).spooled


def test_an_included_file_that_is_not_there_is_named(desk: Desk) -> None:
    with pytest.raises(UsageError, match=r"gone\.py cannot travel"):
        desk.snapshot(include=["gone.py"])


def test_a_project_that_is_not_there_is_named(desk: Desk) -> None:
    with pytest.raises(UsageError, match="is not there"):
        tree.snapshot(desk.base / "nowhere", index_dir=desk.index)


def test_an_index_that_cannot_be_written_is_said_and_nothing_else(desk: Desk) -> None:
    desk.write("a.py", "x")
    desk.index.write_text("a file, not a folder")
    snapshot = desk.snapshot()
    assert paths(snapshot) == ["a.py"]
    assert "cannot be written" in snapshot.warnings[0]
    assert tree.upload(snapshot, desk.store, spool=desk.spool).packs


@pytest.mark.parametrize("damage", [b"", b"garbage", b"\0" * 5000, None, "cut"])
def test_a_damaged_or_foreign_index_is_ignored(desk: Desk, damage: object) -> None:
    for number in range(10):
        desk.write(f"m{number}.py", "x" * number)
    desk.settle()
    digest = desk.snapshot().digest
    (index,) = desk.index.glob("*.index")
    data = index.read_bytes()
    if isinstance(damage, bytes):
        index.write_bytes(damage)
    elif damage == "cut":
        index.write_bytes(data[:-40])
    else:
        index.write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
    assert desk.snapshot().digest == digest


# Where a project begins


def test_the_project_is_the_nearest_folder_with_a_marker(tmp_path: Path) -> None:
    home = tmp_path / "home"
    file = home / "work" / "src" / "package" / "train.py"
    file.parent.mkdir(parents=True)
    file.touch()
    assert tree.find_root(file, home=home) is None
    (home / ".git").mkdir()  # dotfiles kept in git
    (home / "pyproject.toml").touch()
    assert tree.find_root(file, home=home) is None
    (file.parent / "requirements.txt").touch()
    assert tree.find_root(file, home=home) == file.parent
    (home / "work" / "pyproject.toml").touch()
    assert tree.find_root(file, home=home) == home / "work"
    (home / "work" / "src" / ".kineticignore").touch()
    assert tree.find_root(file, home=home) == home / "work" / "src"
    assert tree.find_root(file.parent, home=home) == home / "work" / "src"


def test_an_installed_package_is_nobodys_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    installed = tmp_path / "lib" / "site-packages" / "package" / "module.py"
    installed.parent.mkdir(parents=True)
    installed.touch()
    assert tree.find_root(installed) is None


def test_the_temporary_folder_is_nobodys_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "setup.py").touch()
    (tmp_path / "x").mkdir()
    assert tree.find_root(tmp_path / "x") == tmp_path
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert tree.find_root(tmp_path / "x") is None


def test_a_dag_file_ships_what_it_imports_and_not_the_whole_folder(tmp_path: Path) -> None:
    dags = tmp_path / "dags"
    for path, text in {
        "team/train_dag.py": "import helpers, numpy\nfrom common.io import read\n",
        "team/other_dag.py": "import heavy\n",
        "helpers.py": "",
        "heavy.py": "",
        "common/__init__.py": "",
        "common/io.py": "from . import more\nimport late\n",
        "common/more.py": "",
        "common/query.sql": "select 1",
        "late.py": "",
        "data/large.bin": "x",
    }.items():
        (dags / path).parent.mkdir(parents=True, exist_ok=True)
        (dags / path).write_text(text)
    source = tree.source_of(dags / "team" / "train_dag.py", home=tmp_path, path=[str(dags)], imports_only=True)
    assert source == tree.Source(dags, ("common", "helpers.py", "late.py", "team/train_dag.py"))
    snapshot = tree.snapshot(source.root, include=source.include, index_dir=tmp_path / "index")
    assert paths(snapshot) == [
        "common/__init__.py", "common/io.py", "common/more.py", "common/query.sql", "helpers.py", "late.py",
        "team/train_dag.py",
    ]  # fmt: skip

    (dags / ".git").mkdir()
    assert tree.source_of(dags / "team" / "train_dag.py", home=tmp_path) == tree.Source(dags)
    only = tree.source_of(dags / "team" / "train_dag.py", home=tmp_path, path=[str(dags)], imports_only=True)
    assert only == source


def test_the_root_of_the_file_system_is_no_project() -> None:
    with pytest.raises(UsageError, match=r"train\.py lies at the root of the file system.*a folder of its own"):
        tree.source_of(Path("/train.py"), path=["/usr/lib"])
    with pytest.raises(UsageError, match="root of the file system"):
        tree.source_of(Path("/"), ["model"], imports_only=True, path=[""])


def test_a_home_folder_with_a_project_file_says_why_it_does_not_travel(tmp_path: Path) -> None:
    for name in ("train.py", "helper.py", "diary.txt"):
        (tmp_path / name).write_text("import helper\n" if name == "train.py" else "")
    (tmp_path / ".git").mkdir()
    assert tree.source_of(tmp_path / "train.py", home=tmp_path, path=[]) == tree.Source(
        tmp_path, ("helper.py", "train.py")
    )
    (tmp_path / "pyproject.toml").touch()
    with pytest.warns(UserWarning, match=f"{tmp_path} has a pyproject.toml and is no project"):
        source = tree.source_of(tmp_path / "train.py", home=tmp_path, path=[])
    assert source.include == ("helper.py", "train.py")


@pytest.fixture
def said_nothing_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_shown", set())


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder that no project's mark makes one."""
    work = tmp_path / "work"
    work.mkdir()
    for name in ("model.py", "layers.py", "unrelated.py", "notebook.ipynb", "rows.csv"):
        (work / name).write_text("import layers\n" if name == "model.py" else "")
    return work


@pytest.mark.usefixtures("said_nothing_yet")
def test_a_small_folder_without_a_mark_travels_whole_and_that_is_said_once(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        for start in (work, work / "model.py"):
            assert tree.source_of(start, ["model"], home=tmp_path, path=[str(work)]) == tree.Source(work)
    told = capsys.readouterr().err
    assert (
        told.count(f"kinetic: the folder {work} travels with the job: no pyproject.toml") == 1
        and ".kineticignore" in told
    )
    above = tree.source_of(work / "model.py", home=tmp_path.parent, path=[str(tmp_path)])
    assert above.root == tmp_path and above.include is not None and "work" in above.include


@pytest.mark.usefixtures("said_nothing_yet")
@pytest.mark.parametrize("what", ["files", "bytes"])
def test_a_large_folder_without_a_mark_does_not_and_the_line_that_sends_it_is_said(
    work: Path, tmp_path: Path, what: str
) -> None:
    if what == "files":
        (work / "many").mkdir()
        for number in range(tree.MOST_FILES):
            (work / "many" / f"{number}.txt").touch()
    else:
        with (work / "large.bin").open("wb") as file:
            file.truncate(tree.MOST_BYTES + 1)
    with pytest.warns(UserWarning, match=rf"{work} has more than 1,000 files or 50 MiB.*touch {work}/\.kineticignore"):
        source = tree.source_of(work, ["model", "keras", "__main__"], home=tmp_path, path=[str(work)])
    assert source == tree.Source(work, ("layers.py", "model.py"))
    (work / ".gitignore").write_text("many/\n*.bin\n")
    assert tree.source_of(work / "model.py", home=tmp_path, path=[str(work)]) == tree.Source(work)
    (work / ".gitignore").unlink()
    (work / ".kineticignore").touch()  # the line
    assert tree.source_of(work, home=tmp_path, path=[str(work)]) == tree.Source(work)


@pytest.mark.parametrize("place", [".", "Downloads", "Desktop", "Documents"])
def test_a_folder_in_which_things_are_collected_never_travels_whole(tmp_path: Path, place: str) -> None:
    folder = tmp_path / place
    folder.mkdir(exist_ok=True)
    for name in ("train.py", "helper.py", "diary.txt"):
        (folder / name).write_text("import helper\n" if name == "train.py" else "")
    source = tree.source_of(folder / "train.py", home=tmp_path, path=[str(folder)])
    assert source == tree.Source(folder, ("helper.py", "train.py"))
