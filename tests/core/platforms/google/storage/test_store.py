"""The store on Google Cloud Storage keeps the contract, on a real server, through every fault of the way there."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.errors import Corrupt, Denied, NewerWire, StoreError, Unreachable, UsageError
from kinetic_orchestration.host.machine.bucket_records import CloudRecords
from kinetic_orchestration.platforms.google.rest import call_listeners, retries
from kinetic_orchestration.platforms.google.storage import requests as gcs_requests
from kinetic_orchestration.platforms.google.storage import store as gcs
from kinetic_orchestration.platforms.google.storage.store import GcsStore, open_gcs
from kinetic_orchestration.platforms.registry import open_store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.testing.contracts.store import StoreContract
from kinetic_orchestration.testing.storage_server.server import Counts, StorageServer


@pytest.fixture(scope="session")
def server() -> Iterator[StorageServer]:
    with StorageServer() as server:
        yield server


@pytest.fixture
def storage(server: StorageServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[StorageServer]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    yield server
    server.heal()


@pytest.fixture
def address(storage: StorageServer) -> str:
    return storage.make_bucket(f"bucket-{uuid.uuid4().hex[:12]}") + "/a prefix"


@pytest.fixture
def store(address: str, storage: StorageServer) -> GcsStore:
    store = open_gcs(address, "prod")
    storage.forget()
    return store


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set pages of a hundred instead of a thousand objects."""
    monkeypatch.setattr(gcs_requests, "_PAGE", 100)


@pytest.mark.usefixtures("small_pages")
class TestGcsStore(StoreContract):
    modules = ("google.cloud.storage",)
    rounds = 80
    many = 250  # more than two pages

    @pytest.fixture
    def where(self, address: str) -> list[Any]:
        return [address, "prod"]


# Requests, as they are charged.


def test_a_create_is_one_request_and_so_is_a_read(store: GcsStore, storage: StorageServer) -> None:
    for call, cost in [
        (lambda: store.create("jobs/a", b"x"), Counts(1, 0, 0)),
        (lambda: store.create("jobs/a", b"x"), Counts(1, 0, 0)),
        (lambda: store.read("jobs/a"), Counts(0, 1, 0)),
        (lambda: store.read("jobs/a", 0, 1), Counts(0, 1, 0)),
        (lambda: store.read("jobs/none"), Counts(0, 1, 0)),
        (lambda: store.put("beats/a", b"x"), Counts(1, 0, 0)),
        (lambda: list(store.list("jobs/")), Counts(1, 0, 0)),
        (lambda: store.ring("job-1"), Counts(1, 0, 0)),
        (lambda: store.delete("jobs/a"), Counts(0, 0, 1)),
        (store.now, Counts(0, 0, 0)),
    ]:
        storage.forget()
        call()
        assert storage.counts() == cost


def test_a_listing_by_the_last_part_of_names_asks_the_server_for_no_others(address: str) -> None:
    """The emulated one knows no such filter, and what it returns besides is left out."""
    calls: list[call_listeners.Call] = []
    with call_listeners.listening(calls.append):
        store = open_gcs(address, "prod")
        for name in ("a/step/commit.json", "a/step/part.json", "a/uncommit.json", "b/commit.json"):
            store.put(name, b"x")
        calls.clear()
        assert [entry.name for entry in store.list("a/", last="commit.json")] == ["a/step/commit.json"]
    (asked,) = [call.request["query"] for call in calls]
    assert (asked["prefix"], asked["matchGlob"]) == ("a prefix/prod/a/", "**/commit.json")


def test_a_thousand_signals_of_agents_come_in_a_page_and_nothing_is_read(
    store: GcsStore, storage: StorageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = CloudRecords(store.url)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: hosts.signal(f"beats/{n:05d}", b"%d" % n), range(1000)))
    hosts.close()
    for page, requests in ((1000, 1), (400, 3)):
        monkeypatch.setattr(gcs_requests, "_PAGE", page)
        storage.forget()
        assert [int(signal.data) for signal in store.signals("beats/")] == list(range(1000))
        assert storage.counts() == Counts(requests, 0, 0)


def test_what_an_agent_wrote_is_told_as_the_agent_tells_it(store: GcsStore) -> None:
    hosts = CloudRecords(store.url)
    try:
        hosts.signal("beats/a", b"host")
        store.signal("beats/b", b"client")
        assert list(hosts.signals("beats/")) == list(store.signals("beats/"))
        assert list(hosts.list("")) == list(store.list(""))
        assert hosts.read("beats/a") == store.read("beats/a")
        record = hosts.read("beats/b")
        assert record is not None
        assert store.swap("beats/b", b"client again", record.generation) is not None
        assert hosts.swap("beats/b", b"host", record.generation) is None
    finally:
        hosts.close()


def test_a_signal_is_small(store: GcsStore) -> None:
    with pytest.raises(ValueError, match="at most 4096 bytes"):
        store.signal("beats/a", bytes(4097))


def test_a_ring_changes_what_a_listing_of_the_jobs_beats_shows(store: GcsStore, storage: StorageServer) -> None:
    assert store.ring("job-1") is True
    (first,) = store.signals(names.beats_of("job-1"))
    store.ring("job-1")
    (second,) = store.signals(names.beats_of("job-1"))
    assert first.name == second.name == names.ring("job-1")
    assert first.data != second.data
    assert store.hint("beats/a", b"hint") is True
    assert [signal.data for signal in store.signals("beats/a")] == [b"hint"]
    storage.fail("insert *", times=None)
    assert store.hint("beats/a", b"lost") is False
    storage.forget()
    assert store.ring("job-1") is False
    assert len(storage.calls) == 1  # nobody waits for a bell


# What the way there does to requests.


def test_a_create_that_was_carried_out_and_lost_its_answer_is_a_win_for_its_writer(
    store: GcsStore, storage: StorageServer
) -> None:
    storage.fail("insert *", after=True)
    generation = store.create("jobs/a", b"mine")
    record = store.read("jobs/a")
    assert record is not None
    assert (record.data, record.generation) == (b"mine", generation)
    assert [call.status for call in storage.calls] == [0, 412, 200, 200]
    assert store.create("jobs/a", b"mine") is None, "the same bytes, but another writer's"


def test_a_swap_that_was_carried_out_and_lost_its_answer_is_a_win_for_its_writer(
    store: GcsStore, storage: StorageServer
) -> None:
    first = store.put("identity", b"1")
    storage.fail("insert *", after=True, times=2)
    second = store.swap("identity", b"2", first)
    assert second is not None
    assert store.read("identity") == (b"2", second, pytest.approx(store.now(), abs=60))
    assert store.swap("identity", b"2", first) is None


def test_a_create_that_was_not_carried_out_loses_to_whoever_was_faster(store: GcsStore, storage: StorageServer) -> None:
    storage.fail("insert *", status=0, times=None)
    there = "http://{}:{}".format(*storage._place)  # the server itself, where nothing goes wrong
    faster = GcsStore(store.url, "prod", store.requests._credentials, there)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(store.create, "jobs/a", b"same")
        while not storage.calls:
            time.sleep(0.001)
        assert faster.create("jobs/a", b"same") is not None
        storage.heal()
        assert slow.result() is None


def test_a_put_and_a_delete_whose_answers_are_lost_happen(store: GcsStore, storage: StorageServer) -> None:
    storage.fail("insert *", after=True)
    store.put("beat", b"x")
    storage.fail("delete *", after=True)
    assert store.delete("beat") is True
    assert store.delete("beat") is False


@pytest.mark.parametrize("status", [0, 408, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(
    store: GcsStore, storage: StorageServer, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.05)
    storage.fail("*", status)
    assert store.create("jobs/a", b"x") is not None
    storage.fail("*", status)
    assert store.read("jobs/a") is not None
    storage.fail("*", status)
    assert [entry.name for entry in store.list("jobs/")] == ["jobs/a"]
    storage.fail("*", status)
    store.download("jobs/a", str(tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == b"x"
    storage.fail("*", status, times=3)
    assert store.delete("jobs/a")
    assert store.read("jobs/a") is None


def test_a_503_on_a_read_is_never_gone(store: GcsStore, storage: StorageServer, tmp_path: Path) -> None:
    store.create("jobs/a", b"x")
    store.requests.patience = 0.5
    storage.fail("*", 503, times=None)
    began = time.monotonic()
    for call in (
        lambda: store.read("jobs/a"),
        lambda: list(store.list("jobs/")),
        lambda: store.delete("jobs/a"),
        lambda: store.create("jobs/b", b"x"),
        lambda: store.download("jobs/a", str(tmp_path / "file")),
    ):
        with pytest.raises(Unreachable, match=r"it answered 503 \(We encountered an internal error"):
            call()
    assert time.monotonic() - began < retries.PATIENCE / 2  # for five requests
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_away_for_a_moment_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StorageServer(tmp_path / "objects") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        store = open_gcs(server.make_bucket("bucket"), "prod")
        store.create("jobs/a", b"x")
        server.stop_server()
        again = threading.Timer(0.5, server.start_server)
        again.start()
        try:
            record = store.read("jobs/a")
        finally:
            again.join()
        assert record is not None
        assert record.data == b"x"
        server.stop_server()
        store.requests.patience = 0.3
        with pytest.raises(Unreachable, match="could not be reached"):
            store.read("jobs/a")


@pytest.mark.slow
def test_a_slow_server_is_waited_for(store: GcsStore, storage: StorageServer) -> None:
    storage.delay("*", 1.0, times=2)
    generation = store.create("jobs/a", b"x")
    assert store.read("jobs/a") == (b"x", generation, pytest.approx(store.now(), abs=60))
    assert len(storage.calls) == 2


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("permission", Denied, ["storage.objects.create is missing", "--member=serviceAccount:tester@emulated.iam.gserviceaccount.com --role=roles/storage.objectUser"]),
        ("no bucket", StoreError, ["There is no bucket", "gcloud storage buckets create gs://bucket-"]),
        ("vpc-sc", Denied, ["VPC Service Controls perimeter (number 3MjK0AkJVQx1wZ)", "ingress rule"]),
        ("org-policy", Denied, ["constraints/gcp.resourceLocations", "gcloud org-policies describe gcp.resourceLocations"]),
        ("user-project", Denied, ["KINETIC_QUOTA_PROJECT", "gcloud projects add-iam-policy-binding billed-here", "serviceUsageConsumer"]),
        ("requester-pays", Denied, ["KINETIC_QUOTA_PROJECT"]),
        ("billing", Denied, ["link the project to a billing account"]),
        ("kms", Denied, ["--authorize-cmek=KEY"]),
        ("retention", Denied, ["--clear-retention-period"]),
    ],
)  # fmt: skip
def test_a_refusal_is_told_at_once_with_what_helps(
    store: GcsStore, storage: StorageServer, how: str, error: type[StoreError], words: list[str]
) -> None:
    storage.refuse("insert *", how)
    with pytest.raises(StoreError) as caught:
        store.create("jobs/a", b"x")
    assert type(caught.value) is error
    for word in ("Cannot write jobs/a (store gs://bucket-", *words):
        assert word in str(caught.value)
    assert len(storage.calls) == 1


@pytest.mark.parametrize("verb", ["get", "list", "delete", "stat"])
def test_a_permission_that_is_missing_is_named_whatever_was_done(
    store: GcsStore, storage: StorageServer, verb: str, tmp_path: Path
) -> None:
    store.create("jobs/a", b"x")
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: store.read("jobs/a"),
        "list": lambda: list(store.list("jobs/")),
        "delete": lambda: store.delete("jobs/a"),
        "stat": lambda: store.read("jobs/a", 7),
    }
    storage.forbid(f"{verb} *")
    with pytest.raises(Denied, match=f"storage.objects.{'get' if verb == 'stat' else verb} is missing"):
        calls[verb]()


def test_to_write_over_an_object_takes_the_permission_to_delete_it(store: GcsStore, storage: StorageServer) -> None:
    """So an account that may only create and read cannot keep a store, and is told which role can."""
    generation = store.create("jobs/a", b"x")
    assert generation is not None
    storage.forbid("delete *")
    assert store.create("jobs/b", b"x") is not None
    assert store.create("jobs/b", b"y") is None
    assert store.put("beats/new", b"x")
    writes: list[Callable[[], object]] = [
        lambda: store.put("jobs/a", b"y"),
        lambda: store.swap("jobs/a", b"y", generation),
        lambda: store.renew("jobs/a"),
    ]
    for write in writes:
        with pytest.raises(Denied, match=r"storage\.objects\.delete is missing.*--role=roles/storage\.objectUser"):
            write()


def test_a_bucket_that_is_missing_is_no_missing_object(storage: StorageServer) -> None:
    with pytest.raises(StoreError, match=r"There is no bucket none-\w+\. Make it: gcloud storage buckets create gs://"):
        open_gcs(f"gs://none-{uuid.uuid4().hex[:8]}/x", "prod")


def test_an_answer_that_cannot_be_read_is_one_that_may_pass(store: GcsStore, storage: StorageServer) -> None:
    storage.garble("insert *")
    assert store.create("jobs/a", b"whole") is not None
    storage.garble("stat *")
    found = store.find("jobs/a")
    assert found is not None
    assert found.size == 5
    storage.garble("list *")
    assert "jobs/a" in [entry.name for entry in store.list("")]
    store.signal("hints/a", b"heard")
    storage.garble("list *")
    assert [(signal.name, signal.data) for signal in store.signals("hints/")] == [("hints/a", b"heard")]
    storage.garble("copy *")
    assert store.renew("jobs/a") is True


def test_a_listing_without_a_moment_is_asked_for_again(
    store: GcsStore, storage: StorageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from google.cloud.storage import Blob

    store.create("jobs/a", b"whole")
    told, spoils = Blob.updated, ["list", "signals"]
    monkeypatch.setattr(Blob, "updated", property(lambda blob: None if spoils and spoils.pop() else told.fget(blob)))
    assert [entry.name for entry in store.list("jobs/")] == ["jobs/a"]
    assert len(spoils) == 0 or [signal.name for signal in store.signals("jobs/")] == ["jobs/a"]
    assert not spoils


def test_bytes_that_arrive_otherwise_are_read_again_and_then_refused(
    store: GcsStore, storage: StorageServer, tmp_path: Path
) -> None:
    store.create("jobs/a", b"whole")
    storage.garble("get *")
    record = store.read("jobs/a")
    assert record is not None
    assert record.data == b"whole"
    storage.garble("get *")
    store.download("jobs/a", str(tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == b"whole"
    storage.garble("get *", times=None)
    with pytest.raises(Corrupt, match="jobs/a"):
        store.read("jobs/a")
    with pytest.raises(Corrupt, match="its checksum differs"):
        store.download("jobs/a", str(tmp_path / "other"))
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


# Files.


def test_a_big_file_goes_up_and_down_in_parallel_parts(store: GcsStore, storage: StorageServer, tmp_path: Path) -> None:
    data = os.urandom(20 << 20) + b"the rest"
    (tmp_path / "file").write_bytes(data)
    # A part that fails, one whose answer is lost, and the same of the last request.
    storage.fail("insert *", 503)
    storage.fail("insert *", after=True)
    storage.fail("compose *", after=True)
    assert store.upload("blobs/a", str(tmp_path / "file")) is True
    verbs = [call.verb for call in storage.calls]
    assert (verbs.count("insert"), verbs.count("compose"), verbs.count("delete")) == (3 + 2, 2, 3)
    storage.forget()
    assert store.upload("blobs/a", str(tmp_path / "file")) is False
    assert storage.counts() == Counts(0, 1, 0)
    storage.forget()
    storage.cut("get *", after=1 << 20)
    storage.fail("get *", 503)
    store.download("blobs/a", str(tmp_path / "down"))
    assert (tmp_path / "down").read_bytes() == data
    assert len(storage.calls) == 3 + 2
    assert [entry.name for entry in store.list("")] == ["blobs/a", "deployment.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["down", "file"]


def test_a_file_of_more_parts_than_one_request_joins_is_joined_in_steps(
    store: GcsStore, storage: StorageServer, tmp_path: Path
) -> None:
    store.part = 1 << 12
    data = os.urandom((1 << 12) * 70 + 7)
    (tmp_path / "file").write_bytes(data)
    assert store.upload("blobs/a", str(tmp_path / "file"), move=True) is True
    assert [call.verb for call in storage.calls].count("compose") == 3 + 1
    store.download("blobs/a", str(tmp_path / "down"))
    assert (tmp_path / "down").read_bytes() == data
    assert not (tmp_path / "file").exists()
    assert store.sweep(0) == 0


def test_a_record_too_big_for_one_request_is_created_and_swapped_as_any_other(store: GcsStore) -> None:
    store.part = 1000
    first = store.create("jobs/a", bytes(2500))
    assert first is not None
    second = store.swap("jobs/a", b"1" * 1001, first)
    assert second is not None
    record = store.read("jobs/a")
    assert record is not None
    assert (record.data, record.generation) == (b"1" * 1001, second)


def test_an_upload_that_fails_leaves_nothing_and_says_why(
    store: GcsStore, storage: StorageServer, tmp_path: Path
) -> None:
    store.part = 1 << 12
    (tmp_path / "file").write_bytes(bytes(1 << 16))
    storage.forbid("compose *")
    with pytest.raises(Denied, match=r"storage\.objects\.create"):
        store.upload("blobs/a", str(tmp_path / "file"), move=True)
    assert (tmp_path / "file").exists()
    assert [entry.name for entry in store.list("")] == ["deployment.json"]
    assert store.sweep(0) == 0


def test_parts_of_an_upload_that_was_killed_are_swept_when_they_are_old(
    store: GcsStore, storage: StorageServer, tmp_path: Path
) -> None:
    store.part = 1 << 12
    (tmp_path / "file").write_bytes(bytes(1 << 14))
    storage.fail("delete *", times=None)
    assert store.upload("blobs/a", str(tmp_path / "file"))
    storage.heal()
    assert [entry.name for entry in store.list("")] == ["blobs/a", "deployment.json"]
    assert store.sweep() == 0  # its clock is known to a second
    assert store.sweep(older_than=-2.0) == 4
    assert store.sweep(older_than=-2.0) == 0
    assert store.read("blobs/a") is not None


def test_an_object_that_is_overwritten_meanwhile_comes_down_whole(
    store: GcsStore, storage: StorageServer, tmp_path: Path
) -> None:
    store.put("result", b"A" * 40_000)
    store.part = 10_000
    storage.delay("get *", 0.3, times=2)
    with ThreadPoolExecutor(1) as pool:
        download = pool.submit(store.download, "result", str(tmp_path / "file"))
        while not any(call.verb == "get" for call in storage.calls):
            time.sleep(0.005)
        store.part = 100_000
        store.put("result", b"B" * 40_000)
        download.result()
    assert (tmp_path / "file").read_bytes() in (b"A" * 40_000, b"B" * 40_000)


def test_a_download_that_cannot_end_leaves_nothing(store: GcsStore, storage: StorageServer, tmp_path: Path) -> None:
    store.put("result", bytes(40_000))
    store.part = 10_000
    store.requests.patience = 0.3
    storage.cut("get *", after=100, times=None)
    with pytest.raises(Unreachable, match="result"):
        store.download("result", str(tmp_path / "file"))
    with pytest.raises(StoreError, match="its folder is not there"):
        store.download("result", str(tmp_path / "no" / "file"))
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_does_not_fit_is_refused_before_it_is_begun(store: GcsStore, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if os.getuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], timeout=60).returncode:
        pytest.skip("no small file system can be mounted here")
    try:
        store.put("result", bytes(3_000_000))
        with pytest.raises(StoreError, match=r"it has 3\.0 MB, and 1\.0 MB are free there"):
            store.download("result", str(small / "file"))
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True, timeout=60)


# Time.


@pytest.mark.parametrize("skew", [-600.0, 0.0, 600.0])
def test_the_stores_time_is_the_servers(address: str, storage: StorageServer, skew: float) -> None:
    storage.skew = skew
    store = open_gcs(address, f"prod-{skew:.0f}")
    for _ in range(8):
        store.put("beat", b"x")
        time.sleep(0.13)
    assert store.now() - time.time() == pytest.approx(skew, abs=30.0)
    record = store.read("beat")
    assert record is not None
    assert record.updated == pytest.approx(store.now(), abs=30.0)
    assert [entry.updated for entry in store.list("beat")] == [record.updated]


def test_the_stores_time_never_goes_back(store: GcsStore) -> None:
    last = 0.0
    for _ in range(30):
        store.put("beat", b"x")
        assert last <= store.now()
        last = store.now()


# Whose it is.


def test_two_deployments_share_a_bucket_and_see_nothing_of_each_other(address: str) -> None:
    one, two = open_store(address, "one"), open_store(address + "/", "two")
    one.create("jobs/a", b"x")
    assert two.read("jobs/a") is None
    assert [entry.name for entry in two.list("")] == ["deployment.json"]
    assert one.url == f"{address}/one"
    assert open_store(address.removesuffix("/a prefix"), "three").url == f"{address.removesuffix('/a prefix')}/three"


def test_a_store_of_another_deployment_is_refused(address: str) -> None:
    store = open_gcs(address, "prod")
    GcsStore(f"{address}/copied", "copied", store.requests._credentials, store.requests._endpoint).put(
        names.DEPLOYMENT, wire.encode({"deployment": "prod"})
    )
    with pytest.raises(StoreError, match="is the store of the deployment 'prod', not of 'copied'"):
        open_gcs(address, "copied")


@pytest.mark.parametrize(
    ("stamp", "error", "words"),
    [
        (b"", StoreError, "not known whose store this is"),
        (b'{"wire": 99, "deployment": "prod"}', NewerWire, "upgrade kinetic-orchestration"),
    ],
)
def test_a_stamp_that_cannot_be_read_is_not_passed_over(
    address: str, stamp: bytes, error: type[StoreError], words: str
) -> None:
    other = open_gcs(address, "other")
    there = GcsStore(f"{address}/prod", "prod", other.requests._credentials, other.requests._endpoint)
    there.put(names.DEPLOYMENT, stamp)
    with pytest.raises(error, match=words):
        open_gcs(address, "prod")


def test_a_process_asks_but_now_and_then_whose_a_store_is(address: str, storage: StorageServer) -> None:
    open_gcs(address, "prod")
    storage.forget()
    for _ in range(3):
        open_gcs(address, "prod")
    assert storage.counts() == Counts(0, 0, 0)
    gcs._stamped.clear()  # as if it were long ago
    open_gcs(address, "prod")
    assert storage.counts() == Counts(0, 1, 0)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measured in /proc")
def test_a_record_of_any_size_does_not_fill_the_memory(store: GcsStore, storage: StorageServer) -> None:
    """A writer of the bucket must not be able to end its readers."""
    store.create("jobs/x/in/spec.json", bytes(112 << 20))
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from kinetic_orchestration.errors import StoreError\n"
        "from kinetic_orchestration.platforms.registry import open_store\n"
        "def peak():  # of this process alone: the one in getrusage() is inherited\n"
        "    return int(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])\n"
        "store = open_store(sys.argv[1], 'prod')\n"
        "store.read('deployment.json')\n"
        "before = peak()\n"
        "try:\n"
        "    store.read('jobs/x/in/spec.json')\n"
        "except StoreError as error:\n"
        "    print(peak() - before, error)\n"
    )
    command = [sys.executable, "-c", program, store.url.removesuffix("/prod")]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    kibibytes, _, error = told.partition(" ")
    assert "jobs/x/in/spec.json" in error
    assert int(kibibytes) < 80 << 10, f"{int(kibibytes) >> 10} MiB more, for an object of 112"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("gs://", "names no bucket"),
        ("gs:///x", "names no bucket"),
        ("gs://bucket name/x", "names no bucket"),
        ("gs://bucket/a//b", "cannot be a store"),
        ("gs://bucket/../b", "cannot be a store"),
    ],
)
def test_an_address_that_cannot_be_a_store_says_so(address: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        open_store(address, "prod")


@pytest.mark.parametrize("deployment", ["", "a/b", "..", ".hidden"])
def test_a_deployment_is_one_part_of_a_name(address: str, deployment: str) -> None:
    with pytest.raises(UsageError, match="cannot be a deployment"):
        open_gcs(address, deployment)


def test_google_is_loaded_by_its_own_store_alone(tmp_path: Path) -> None:
    program = (
        "import sys, kinetic_orchestration\n"
        "from kinetic_orchestration.platforms.registry import open_store\n"
        f"open_store({str(tmp_path / 'störe')!r}, 'prod').put('a', b'x')\n"
        "import kinetic_orchestration.platforms.google.storage.store\n"
        "print([name for name in sys.modules if name in ('google.auth', 'google.cloud.storage', 'requests', 'grpc')])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert run.stdout == "[]\n", run.stderr
