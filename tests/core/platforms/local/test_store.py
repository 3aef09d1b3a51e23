"""The local store keeps the contract, and refuses in sentences what it cannot keep."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.errors import KineticError, NewerWire, StoreError, UsageError
from kinetic_orchestration.platforms.local.store import open_local
from kinetic_orchestration.platforms.registry import open_store
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.testing import StoreContract
from tests.support.bucket import unsummed

pytestmark = pytest.mark.fast


class TestLocalStore(StoreContract):
    @pytest.fixture
    def where(self, tmp_path: Path) -> list[Any]:
        return [str(tmp_path / "a store"), "prod"]


def test_two_deployments_share_a_folder_and_see_nothing_of_each_other(tmp_path: Path) -> None:
    one, two = open_local(tmp_path, "one"), open_local(tmp_path, "two")
    one.create("jobs/a", b"x")
    assert two.read("jobs/a") is None
    assert [entry.name for entry in two.list("")] == ["deployment.json"]
    assert one.url == str(tmp_path / "one")


def test_a_store_is_opened_by_path_home_or_file_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "my störe"
    open_store(folder, "prod").create("here", b"yes")
    address = folder.as_uri()
    assert "%20" in address
    for same in (
        str(folder),
        "my störe",
        "~/my störe",
        address,
        address.replace("file://", "file://localhost"),
        address.replace("file://", "FILE://"),
    ):
        assert open_store(same, "prod").read("here") is not None, same


def test_only_the_owner_may_enter_a_new_store(tmp_path: Path) -> None:
    assert os.stat(open_local(tmp_path, "prod").url).st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("address", "error", "sentence"),
    [
        ("ftp://bucket/x", UsageError, "No store can be opened at 'ftp://bucket/x'"),
        ("file://host/x", UsageError, "three slashes"),
        ("file://x", UsageError, "three slashes"),
    ],
)
def test_an_address_that_cannot_be_a_store_says_what_can(
    address: str, error: type[KineticError], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        open_store(address, "prod")


@pytest.mark.parametrize("deployment", ["", "a/b", "..", ".hidden", "a\nb"])
def test_a_deployment_is_one_folder(tmp_path: Path, deployment: str) -> None:
    with pytest.raises(UsageError, match="cannot be a deployment"):
        open_local(tmp_path, deployment)


def test_a_store_of_another_deployment_is_refused(tmp_path: Path) -> None:
    open_local(tmp_path, "prod")
    (tmp_path / "prod").rename(tmp_path / "test")
    with pytest.raises(StoreError, match=r"'prod', not of 'test'.*KINETIC_STORE"):
        open_local(tmp_path, "test")


def test_a_store_of_a_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    stamp = Path(open_local(tmp_path, "prod").url, "deployment.json")
    stamp.write_text(json.dumps(unsummed(stamp.read_text()) | {"wire": wire.WIRE + 1}))
    with pytest.raises(NewerWire, match="upgrade kinetic-orchestration"):
        open_local(tmp_path, "prod")


def test_a_stamp_that_is_not_whole_is_named(tmp_path: Path) -> None:
    stamp = Path(open_local(tmp_path, "prod").url, "deployment.json")
    stamp.write_bytes(b"")
    with pytest.raises(StoreError, match=r"deployment\.json is not a whole record"):
        open_local(tmp_path, "prod")


def test_opening_a_store_again_writes_nothing(tmp_path: Path) -> None:
    root = Path(open_local(tmp_path, "prod").url)
    before = {path: path.stat().st_mtime_ns for path in (root, *root.rglob("*"))}
    open_local(tmp_path, "prod")
    assert {path: path.stat().st_mtime_ns for path in (root, *root.rglob("*"))} == before
    assert [path for path in root.rglob("*") if "probe" in path.name] == []


def test_a_store_that_was_copied_is_checked_where_it_is_now(tmp_path: Path) -> None:
    open_local(tmp_path / "old", "prod").create("a", b"x")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    assert open_local(tmp_path / "new", "prod").read("a") is not None


def test_a_store_where_a_file_is_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="a part of that path is a file"):
        open_local(tmp_path / "file", "prod")
    (tmp_path / "prod").write_text("in the way")
    with pytest.raises(StoreError, match="a part of that path is a file"):
        open_local(tmp_path, "prod")


def run_as_user(program: str, *arguments: str) -> str:
    """A program without root's right to write everywhere."""
    setup = (
        "import os, sys\nfrom kinetic_orchestration.platforms.local.store import open_local\n"
        "if os.getuid() == 0: os.setgid(65534), os.setuid(65534)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", setup + program, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


REFUSED = """
from kinetic_orchestration.errors import StoreError
try:
    open_local(sys.argv[1], "prod")
except StoreError as refusal:
    print(refusal)
"""


def test_a_folder_that_cannot_be_written_is_refused_with_the_setting_that_moves_it() -> None:
    """Also when the store was made earlier and became read-only since."""
    with tempfile.TemporaryDirectory() as name:  # not tmp_path, which another user cannot enter
        top = Path(name)
        open_local(top / "made", "prod")
        folders = [top / "made" / "prod", top / "made", top]
        for folder in folders:
            folder.chmod(0o555)
        try:
            for path in (top / "made", top / "new"):
                told = run_as_user(REFUSED, str(path))
                assert "permission denied" in told
                assert "KINETIC_STORE" in told
                assert "KINETIC_HOME" in told
        finally:
            for folder in reversed(folders):
                folder.chmod(0o755)


def mounted(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A shell script in mount and user namespaces of its own; skips where the kernel gives none."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rm", "true"], capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    return subprocess.run(
        [unshare, "-rm", "sh", "-ec", script, "sh", *arguments], capture_output=True, text=True, timeout=60
    )


def test_a_file_system_without_hard_links_between_folders_is_refused_at_first_use(tmp_path: Path) -> None:
    """Links do not cross a bind mount: a file system that cannot promise the first of eight to win."""
    (tmp_path / "prod" / ".tmp").mkdir(parents=True)
    done = mounted(
        'mount --bind "$1/prod/.tmp" "$1/prod/.tmp"; exec "$2" -c "$3" "$1"',
        str(tmp_path),
        sys.executable,
        "import sys\nfrom kinetic_orchestration.platforms.local.store import open_local\n" + REFUSED,
    )
    assert done.returncode == 0, done.stderr
    assert "cannot keep a store: a hard link cannot be made there" in done.stdout
    assert "KINETIC_STORE" in done.stdout
    assert [path.name for path in tmp_path.rglob("*")] == ["prod", ".tmp"]


def test_a_file_system_with_times_by_the_second_is_refused_at_first_use(tmp_path: Path) -> None:
    """ext2 with its small inodes: a generation could come back."""
    maker = shutil.which("mkfs.ext2")
    image = tmp_path / "image"
    if maker is None or os.getuid() != 0 or not Path("/dev/loop-control").exists():
        pytest.skip("no such file system can be mounted here")
    image.write_bytes(bytes(2_000_000))
    subprocess.run([maker, "-q", "-I", "128", str(image)], check=True, capture_output=True, timeout=60)
    (tmp_path / "disk").mkdir()
    script = 'mount -o loop "$1/image" "$1/disk" || exit 9; "$2" -c "$3" "$1/disk"'
    program = "import sys\nfrom kinetic_orchestration.platforms.local.store import open_local\n" + REFUSED
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(tmp_path), sys.executable, program],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode == 9:
        pytest.skip(f"no such file system can be mounted here: {done.stderr}")
    assert "it does not keep a file's time to the nanosecond" in done.stdout, done.stderr


FILL = """
import sys
from kinetic_orchestration.errors import StoreError
from kinetic_orchestration.platforms.registry import open_store
store = open_store(sys.argv[1], "prod")
source = sys.argv[1] + "/../source"
open(source, "wb").write(b"u" * 3_000_000)
# LIMIT
open(sys.argv[1] + "/filling", "wb").write(b"f" * 600_000)
first = store.create("swapped", b"old")
store.put("beat", b"old")
store.append("log", b"whole\\n")
calls = {
    "create": lambda: store.create("created", b"x" * 3_000_000),
    "put": lambda: store.put("beat", b"x" * 3_000_000),
    "swap": lambda: store.swap("swapped", b"x" * 3_000_000, first),
    "upload": lambda: store.upload("uploaded", source),
    "append": lambda: store.append("log", b"x" * 3_000_000),
}
for name, call in calls.items():
    try:
        call()
    except StoreError as refusal:
        print(name, refusal)
    else:
        print(name, "went through")
assert store.read("created") is None and store.read("uploaded") is None
assert store.read("beat").data == b"old" and store.read("swapped").data == b"old"
assert store.read("log").data == b"whole\\n"
import os
assert os.listdir(store.url + "/.tmp") == [], os.listdir(store.url + "/.tmp")
assert store.create("small", b"still works")
"""


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    done = mounted(
        'mount -t tmpfs -o size=2m tmpfs "$1/disk"; exec "$2" -c "$3" "$1/disk"',
        str(tmp_path),
        sys.executable,
        FILL,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["create", "put", "swap", "upload", "append"]
    for line in lines:
        assert "the disk is full" in line
        assert "KINETIC_STORE" in line


def test_a_limit_on_the_size_of_files_leaves_nothing_half_written(tmp_path: Path) -> None:
    """A limit of the process acts like a full disk: needs no privilege."""
    (tmp_path / "disk").mkdir()
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))"
    done = subprocess.run(
        [sys.executable, "-c", FILL.replace("# LIMIT", limit), str(tmp_path / "disk")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("a file would be larger than allowed here") == 5


def test_a_store_that_was_deleted_is_not_brought_back(tmp_path: Path) -> None:
    store: Store = open_local(tmp_path, "prod")
    shutil.rmtree(tmp_path / "prod")
    assert store.read("a") is None
    assert list(store.list("")) == []
    with pytest.raises(StoreError, match="the store's folder is gone"):
        store.create("a/b", b"x")
    with pytest.raises(StoreError, match="the store's folder is gone"):
        store.put("a/b", b"x")
    assert not (tmp_path / "prod").exists()


def test_on_windows_a_sentence_says_so() -> None:
    """The module can be imported there, and the platform is named before anything is touched."""
    program = (
        "import sys\nfrom kinetic_orchestration.platforms.registry import open_store\nsys.platform = 'win32'\n"
        "sys.modules['fcntl'] = None\n"
        "try:\n    open_store('anywhere', 'prod')\nexcept ValueError as refusal:\n    print(refusal)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "On Windows, work in WSL 2" in done.stdout, done.stderr
