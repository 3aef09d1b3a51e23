"""A writer of the bucket changes every object in it, one by one. None of the changes is ever run."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.api.handle import JobHandle, all_jobs, attach
from kinetic_orchestration.errors import Corrupt, JobError, JobFailed, KineticError, ResultNotTrusted, StoreError
from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.prepare import prepare, toolbox
from kinetic_orchestration.host.prepare.data.fetch import Blobs
from kinetic_orchestration.host.prepare.environment import BuildFailed
from kinetic_orchestration.jobs import launch, results
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.following.drivers import follow
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.job import Job, open_job
from kinetic_orchestration.jobs.request import draft
from kinetic_orchestration.packaging.source import tree as trees
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.identity import of
from kinetic_orchestration.plan.records import Within, intent_of
from kinetic_orchestration.plan.values import Change, Event, Metrics, Output
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.content import payload, tree
from kinetic_orchestration.protocol.records.base import Record
from kinetic_orchestration.protocol.report import frames
from kinetic_orchestration.protocol.wire.task import Payload
from kinetic_orchestration.testing.storage_server.server import StorageServer
from tests.support import bucket
from tests.support.on_vms import Attempt, Site

GARBAGE = [b"", b"\0\xff", b"[]", b"1", b'"wire"', b'{"wire":1}', b"[" * 100_000, b'{"wire":1,"kind":[]}']
LOOKS = 5  # of a follower that starts nothing


def seven() -> int:
    return 7


def pair() -> tuple[int, int]:
    return 1, 2


def failing() -> None:
    raise LookupError("not there")


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[bucket.Trap]:
    trap = bucket.Trap(tmp_path / "sprung")
    yield trap
    assert not trap.has_sprung(), "foreign code has run"


# ---- on a client -----------------------------------------------------------------------------------------------


@pytest.fixture
def _bucket(shared_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.pretend(monkeypatch)


def submitted(function: Any, key: str | None = None) -> JobHandle[Any]:
    return JobHandle(
        launch.launch(draft(JobSpec(function.__name__, Options(accelerator="cpu", key=key), function)).open())
    )


_ended: dict[Any, tuple[Job, dict[str, bytes]]] = {}


def ended(function: Any) -> Job:
    """A job of the function that is over, with its records as its hosts and its submitter left them; as a process sees
    it that knows its spec, and has not seen its end.
    """
    key = os.environ["KINETIC_HOME"], function  # a worker may come back to this module, and then has another home
    if key not in _ended:
        job = submitted(function)._job
        job = replace(job, trust=replace(job.trust, home=None))
        assert follow(Follower(job), timeout=60) is not None
        _ended[key] = job, {name: job.store.read(name).data for name in records_of(job)}  # type: ignore[union-attr]
    job, whole = _ended[key]
    for name in records_of(job) - whole.keys():
        job.store.delete(name)
    for name, data in whole.items():
        job.store.put(name, data)
    return job


def records_of(job: Job) -> set[str]:
    return {entry.name for prefix in (names.job, names.beats_of) for entry in job.store.list(prefix(job.job_id))}


client = pytest.mark.usefixtures("_bucket")


@client
def test_spec(trap: bucket.Trap, tmp_path: Path) -> None:
    job = ended(pair)
    task = job.spec()["task"]
    evil = {**task, "payload": {"digest": trap.payload(tmp_path / "evil"), "size": 1}}
    bucket.rewrite(job.store, names.spec(job.job_id), task=evil)
    for ask in (lambda: attach(job.job_id), job.spec, lambda: results.collect(job, Follower(job).step())):  # type: ignore[arg-type]
        with pytest.raises(Corrupt, match=names.spec(job.job_id)):
            ask()
    with pytest.warns(UserWarning, match="left out"):
        assert job.job_id not in [handle.job_id for handle in all_jobs()]


@pytest.mark.slow
@pytest.mark.turn
@client
@pytest.mark.parametrize("data", [*GARBAGE, b'{"wire":1,"plan":{"slice":7},"task":{}}'])
def test_a_spec_that_is_garbage(data: bytes) -> None:
    job = ended(seven)
    job.store.put(names.spec(job.job_id), data)
    with pytest.raises(StoreError, match=names.spec(job.job_id)):
        attach(job.job_id)  # its home knows better
    with pytest.raises(StoreError, match=r"spec\.json"):
        open_job(job.job_id, job.store, job.backend)  # whoever knows nothing


@client
@pytest.mark.parametrize("hosts", [0, -1, 10**12, "x", None])
def test_a_spec_with_absurd_hosts(hosts: Any) -> None:
    job = ended(seven)
    plan = job.spec()["plan"]
    bucket.rewrite(job.store, names.spec(job.job_id), plan={**plan, "slices": hosts})
    with pytest.raises(StoreError, match=r"spec\.json"):
        open_job(job.job_id, job.store, job.backend)


@pytest.mark.slow
@pytest.mark.turn
@client
def test_an_identity_that_leads_to_a_foreign_spec(trap: bucket.Trap, tmp_path: Path) -> None:
    """The attacker has written a whole job of theirs and points a user's key to it."""
    mine = ended(seven)
    identity = of("local", "tampered identity")
    evil = mine.spec()
    digest = trap.payload(tmp_path / "evil")
    mine.store.upload(names.blob(digest), str(tmp_path / "evil"))
    evil["task"]["payload"] = evil["staged"]["payload"] = {"digest": digest, "size": 1}
    victim = launch.job_id(identity, 9)
    mine.store.put(names.spec(victim), wire.encode(evil))
    mine.store.put(names.identity(identity.key), wire.encode({"generation": 9, "identity": []}))
    job = submitted(seven, key="tampered identity")
    assert job.job_id == victim and job._job.doubt
    told: list[Event] = []
    follower = Follower(job._job)
    assert [follower.step(told.append) for _ in range(LOOKS)] == [None] * LOOKS
    assert any(isinstance(event, Change) and "starts no attempts" in event.message for event in told)
    assert mine.store.read(names.intent(victim, 1)) is None


@pytest.mark.slow
@pytest.mark.turn(2)
@client
@pytest.mark.parametrize("generation", ["x", None, [1], 1.5])
def test_an_identity_that_is_garbage(generation: Any) -> None:
    store = ended(seven).store
    key = f"garbage {generation}"
    name = names.identity(of("local", key).key)
    store.put(name, written := wire.encode({"generation": generation}))
    job = submitted(seven, key=key)
    assert job.job_id == launch.job_id(of("local", key), 1)
    assert job.result() == 7
    kept = store.read(f"{name}.damaged")
    assert kept is not None
    assert kept.data == written


@pytest.mark.slow
@pytest.mark.turn
@client
def test_an_intent_that_names_what_is_not_the_jobs(tmp_path: Path) -> None:
    job = ended(seven)
    valuable = tmp_path / "valuable"
    valuable.mkdir()
    intent = names.intent(job.job_id, 1)
    bucket.rewrite(job.store, intent, placement={"backend": "local", "run": str(valuable), "hosts": 1, "machine": "m"})
    actions.release(job, 1)
    assert Follower(job).step() is not None
    job.store.delete(names.verdict(job.job_id, 1))
    assert follow(Follower(job), timeout=60) is not None  # the attempt that is made in its place, to its end
    assert valuable.is_dir()


@client
def test_an_intent_that_leads_out_of_the_plan() -> None:
    """Our own rights would make a machine in somebody else's project, and show them the job's code."""
    within = Within("tpu-vm", "mine", ("us-a1-a",), 4, 1, "gs://ours/x", "prod")
    place = {"backend": "tpu-vm", "project": "mine", "zone": "us-a1-a", "hosts": 4, "slices": 1}
    own = {**place, "name": names.slice_of("gs://ours/x", "prod", "job-0123456789ab", 1)}

    def read(**changes: Any) -> dict[str, Any]:
        data = wire.encode({"attempt": 1, "boot": "b", "placement": {**own, **changes}, "allowed": 60.0})
        return intent_of(Record(data, 1, 1.0), "job-0123456789ab", 1, within).placement

    assert read() == own
    name = names.slice_of("gs://theirs", "prod", "job-0123456789ab", 1)
    evil = (
        {"project": "evil"},
        {"zone": "us-b1-b"},
        {"name": name},
        {"backend": "local"},
        {"slices": 64},
        {"hosts": 1},
        {"grouped": True},
    )
    for change in evil:
        with pytest.raises(Corrupt, match=rf"in/attempts/1/intent\.json .*placement\.{next(iter(change))}"):
            read(**change)


@pytest.mark.slow
@pytest.mark.turn
@client
@pytest.mark.parametrize("data", GARBAGE)
@pytest.mark.parametrize("name", [names.intent, names.verdict])
def test_an_intent_or_a_verdict_that_is_garbage(name: Any, data: bytes) -> None:
    """Nothing is made of it: of an intent only names are believed, and of such a verdict that there was one."""
    job = ended(seven)
    job.store.put(name(job.job_id, 1), data)
    outcome = Follower(job).step()
    assert outcome is not None
    assert (outcome.status.value == "SUCCEEDED") is (name is names.intent)


@client
def test_a_verdict_with_a_foreign_value(trap: bucket.Trap, tmp_path: Path) -> None:
    job = ended(pair)
    digest = trap.payload(tmp_path / "evil")
    job.store.put(names.host(job.job_id, 1, 0, "result"), (tmp_path / "evil").read_bytes())
    verdict = names.verdict(job.job_id, 1)
    proofs = ["", "x.y.z", base64.b64encode(b"{}").decode()]
    for proof in proofs:
        bucket.rewrite(job.store, verdict, digest=digest, size=(tmp_path / "evil").stat().st_size, proof=proof)
        with pytest.raises(ResultNotTrusted, match="KINETIC_TRUST_STORE"):
            JobHandle(job).result()
    bucket.rewrite(job.store, verdict, digest=digest, format=wire.PLAIN)  # said to be what needs no trust
    with pytest.raises(Corrupt, match="not JSON"):
        JobHandle(job).result()
    bucket.rewrite(job.store, verdict, format="pickle")
    with pytest.raises(ResultNotTrusted):
        JobHandle(job).result()


@pytest.mark.slow
@pytest.mark.turn
@client
def test_a_value_that_is_not_the_verdicts() -> None:
    job = ended(seven)
    job.store.put(names.host(job.job_id, 1, 0, "result"), b"8")
    with pytest.raises(Corrupt, match="digest"):
        JobHandle(job).result()
    deep = b"[" * 200_000
    job.store.put(names.host(job.job_id, 1, 0, "result"), deep)
    bucket.rewrite(job.store, names.verdict(job.job_id, 1), digest=bucket.digest_of(deep), size=len(deep))
    with pytest.raises(Corrupt, match="not JSON"):
        JobHandle(job).result()
    bucket.rewrite(job.store, names.verdict(job.job_id, 1), size=1 << 40)
    with pytest.raises(Corrupt, match="it was changed"):
        JobHandle(job).result()


@client
def test_a_verdict_with_a_foreign_exception(trap: bucket.Trap, tmp_path: Path) -> None:
    job = ended(failing)
    digest = trap.payload(tmp_path / "evil")
    job.store.put(names.host(job.job_id, 1, 0, "exception"), (tmp_path / "evil").read_bytes())
    record = job.store.read(names.verdict(job.job_id, 1))
    assert record is not None
    failure = json.loads(record.data)["failure"]
    bucket.rewrite(job.store, names.verdict(job.job_id, 1), failure={**failure, "digest": digest})
    with pytest.raises(JobFailed, match="not unpickled here"):
        JobHandle(job).result()


@pytest.mark.slow
@pytest.mark.turn
@client
@pytest.mark.parametrize(
    "changes",
    [
        {"host": "../../../x"},
        {"reason": 5},
        {"digest": ["x"]},
        {"failure": "x"},
        {"failure": {"message": 7}},
        {"size": "x"},
    ],
    ids=str,
)
def test_a_verdict_of_wrong_kinds(changes: dict[str, Any]) -> None:
    job = ended(seven)
    bucket.rewrite(job.store, names.verdict(job.job_id, 1), **changes)
    with pytest.raises(JobError, match="verdict"):
        JobHandle(job).result()


VAST = b'{"wire":1,"state":"running","done":1' + b"0" * 400 + b"}"


@client
@pytest.mark.parametrize(
    "data", [*GARBAGE, b'{"wire":1,"state":{}}', b'{"wire":1,"state":"running","segment":"x"}', VAST]
)
def test_beats_rings_and_cancels_that_are_garbage(data: bytes) -> None:
    job = ended(seven)
    job.store.put(names.beat(job.job_id, 1, 0), data)
    job.store.put(names.ring(job.job_id), data)
    job.store.put(names.eye(job.job_id), data)
    assert JobHandle(job).result() == 7
    assert f"{JobHandle(job).peek().done:g}" == "0"
    job.store.put(names.cancel(job.job_id), data)
    try:
        assert JobHandle(job).result() == 7
    except StoreError as error:
        assert "cancel" in str(error)


@pytest.mark.slow
@pytest.mark.turn
@client
def test_log_segments() -> None:
    """Shown as they are; they are never more than bytes."""
    job = ended(seven)
    written = [
        frames.encode(frames.METRICS, 1.0, b"not json"),
        frames.encode(frames.METRICS, 1.0, b'{"step":{},"values":7}'),
        frames.encode(frames.METRICS, 1.0, b'{"step":1e999,"values":{}}'),
        frames.encode(frames.METRICS, 1.0, b'{"step":1,"values":{"loss":1' + b"0" * 400 + b"}}"),
        frames.encode(frames.PROGRESS, 1.0, b"[" * 100_000),
        frames.encode("\x1b", 1.0, b"of no kind\n"),
        frames.encode(frames.METRICS, 1.0, b'{"step":1,"values":{"loss":2}}'),
        b"\x1eo 1 " + b"9" * 5000 + b"\nx",
    ]
    job.store.put(names.segment(job.job_id, 1, 0, 0), b"".join(written))
    told: list[Event] = list(JobHandle(job).events())
    assert [event for event in told if isinstance(event, Metrics)] == [Metrics(0, 1.0, 1, {"loss": 2.0}, 1)]
    assert {event.kind for event in told if isinstance(event, Output)} == {frames.NOTE}


@client
@pytest.mark.parametrize("data", [*GARBAGE, b'{"tree":"../x"}', b'{"version":1,"packs":[["/x",1,1,"raw"]],"files":[]}'])
def test_what_the_store_remembers_of_a_project(data: bytes, tmp_path: Path) -> None:
    """An older tree is a help for sending the next one, and can be done without."""
    store = ended(seven).store
    (tmp_path / "project").mkdir()
    (tmp_path / "spool").mkdir()
    sent = []
    for text in ("one", "two", "three"):
        (tmp_path / "project" / "code.py").write_text(text)
        taken = trees.snapshot(tmp_path / "project", index_dir=tmp_path / "index", spool=tmp_path / "spool")
        sent.append(trees.upload(taken, store, spool=tmp_path / "spool").digest)
        store.put(names.tree(sent[-1]), data)
        for entry in list(store.list("projects/")):
            store.put(entry.name, data)
    assert len(set(sent)) == 3


@pytest.mark.slow
@pytest.mark.turn
@client
@pytest.mark.parametrize("data", GARBAGE)
def test_group_records(data: bytes) -> None:
    store = ended(seven).store
    store.put(names.group("grp-1"), data)
    from kinetic_orchestration.api.batch import attach_batch

    with pytest.raises(KineticError, match="grp-1"):
        attach_batch("grp-1")


# ---- on a host, which knows the digest of its agent and of its spec by its metadata alone ------------------------


@pytest.fixture(scope="module")
def storage() -> Iterator[StorageServer]:
    with StorageServer() as server:
        yield server


@pytest.fixture
def site(tmp_path: Path, home: Path, storage: StorageServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
    site = Site(storage, tmp_path)
    yield site
    site.close()


def refusal(attempt: Attempt) -> str:
    """The host's error when it has read the changed records."""
    attempt.start()
    verdict = attempt.verdict()
    assert verdict.kind == wire.ABORTED
    attempt.gone()
    return verdict.reason


def change(site: Site, name: str, data: bytes) -> None:
    assert site.records.read(name) is not None, name
    site.records.put(name, data)


def test_a_host_refuses_another_spec(site: Site, trap: bucket.Trap) -> None:
    attempt = site.admit(seven)
    record = site.records.read(names.spec(attempt.job))
    assert record is not None
    fields = wire.decode(record.data)
    fields["task"]["argv"] = ["mkdir", str(trap.folder)]
    change(site, names.spec(attempt.job), wire.encode(fields))
    assert f"{names.spec(attempt.job)} is not the one that was submitted" in refusal(attempt)


@pytest.mark.slow
@pytest.mark.turn
def test_a_host_refuses_another_payload(site: Site, trap: bucket.Trap, tmp_path: Path) -> None:
    attempt = site.admit(seven)
    record = site.records.read(names.spec(attempt.job))
    assert record is not None
    digest = wire.decode(record.data)["task"]["payload"]["digest"]
    trap.payload(tmp_path / "evil")
    change(site, names.blob(digest), (tmp_path / "evil").read_bytes())
    assert digest in refusal(attempt)


def test_a_host_refuses_another_tree_and_other_packs(site: Site, trap: bucket.Trap, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "run.py").write_text("print('as it was')\n")
    evil = f"import os; os.mkdir({str(trap.folder)!r})".encode()

    def admitted() -> tuple[Attempt, str, dict[str, Any]]:
        attempt = site.admit(argv=["python", "run.py"], cwd=str(project))
        record = site.records.read(names.spec(attempt.job))
        assert record is not None
        name = names.tree(wire.decode(record.data)["task"]["tree"])
        manifest = site.records.read(name)
        assert manifest is not None
        return attempt, name, json.loads(manifest.data)

    attempt, name, manifest = admitted()
    change(site, names.blob(manifest["packs"][0][0]), evil[: manifest["packs"][0][2]])
    assert "not those that were sent" in refusal(attempt)
    attempt, name, manifest = admitted()
    manifest["packs"][0][0] = "/etc/passwd"
    change(site, name, json.dumps(manifest).encode())
    assert "names a pack '/etc/passwd'" in refusal(attempt)
    attempt, name, manifest = admitted()
    manifest["files"][0][0] = "../../run.py"
    change(site, name, json.dumps(manifest).encode())
    assert "it was changed after it was sent" in refusal(attempt)


@pytest.mark.slow
@pytest.mark.turn
def test_a_host_refuses_another_agent(site: Site, trap: bucket.Trap) -> None:
    import io
    import zipfile

    attempt = site.admit(seven)
    evil = io.BytesIO()
    with zipfile.ZipFile(evil, "w") as archive:
        archive.writestr("__main__.py", f"import os; os.mkdir({str(trap.folder)!r})")
    change(site, names.blob(attempt.agent), evil.getvalue())
    assert "not the one that was submitted: its digest differs. It was not run" in refusal(attempt)


def test_a_host_refuses_another_lock(site: Site) -> None:
    lock = os.urandom(16).hex().encode()
    digest = bucket.digest_of(lock)
    wanted = {"lock": digest, "interpreter": "/usr/bin/python3", "uv": "", "settings": {}}
    attempt = site.admit(seven, task={"environment": wanted})
    site.records.put(names.blob(digest), b"evil==1.0\n" + b"\n" * names.RECORD_LIMIT)
    assert f"the lock {digest} is not in the store, or its bytes differed" in refusal(attempt)


@pytest.mark.slow
@pytest.mark.turn
def test_a_host_refuses_another_tool(site: Site, tmp_path: Path) -> None:
    digest = "a" * 64
    site.records.put(names.tool(digest), b"#!/bin/sh\ntouch sprung\n")
    with pytest.raises(BuildFailed, match=rf"{names.tool(digest)} .* its digest differs"):
        toolbox._uv(site.records, digest, "", str(tmp_path), {}, print)  # type: ignore[arg-type]
    kept = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in kept if path.parts[0] != "home" and "tools" in str(path)]


def test_a_host_fetches_no_more_than_its_spec_and_its_tree_say(site: Site, tmp_path: Path) -> None:
    """A writer of the bucket fills no disk."""
    blobs, digest = Blobs(site.records, str(tmp_path / "blobs")), "b" * 64
    site.records.put(names.blob(digest), b"x" * 5000)
    with pytest.raises(prepare.NotReady, match=rf"{digest} .*has 5,000 bytes, more than 4,999 bytes.* It was removed"):
        prepare._payload(site.records, blobs, Payload(digest, 4999))
    assert site.records.read(names.blob(digest)) is None
    entries, pack = [tree.Entry("a.py", tree.FILE, 0o644, 5000, hashlib.sha256(b"x" * 5000).hexdigest())], "c" * 64
    listed = tree.digest_of(entries)
    for stored, sent, why in ((5000, 5001, "has 5,001 bytes, more than 5,000"), (1 << 40, 5000, "more than twice")):
        packs, places = [tree.Pack(pack, 5000, stored, tree.RAW)], {entries[0].sha256: tree.PackOffset(0, 0)}
        manifest = tree.manifest_of(listed, entries, packs, places)
        site.records.put(names.tree(listed), json.dumps(manifest).encode())
        site.records.put(names.blob(pack), b"x" * sent)
        with pytest.raises(prepare.NotReady, match=why):
            prepare._unpack(site.records, blobs, listed, str(tmp_path / why))
    assert not list((tmp_path / "blobs").iterdir())


@pytest.mark.slow
@pytest.mark.turn
def test_tools_and_wheels_of_which_nobody_knows_the_size_have_a_bound(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "_FILES", ((names.TOOLS, 10), (names.WHEELS, 10)))
    digest = hashlib.sha256(b"x" * 11).hexdigest()
    for name in (names.tool(digest), names.wheel(digest, "a-1-py3-none-any.whl")):
        site.records.put(name, b"x" * 11)
    with pytest.raises(BuildFailed, match=rf"{names.tool(digest)} .*has 11 bytes, more than 10 bytes"):
        toolbox._uv(site.records, digest, "", str(tmp_path), {}, print)  # type: ignore[arg-type]
    notes: list[str] = []
    lock = f"a==1 --hash=sha256:{digest}"
    assert toolbox._wheels(site.records, lock, str(tmp_path / "wheels"), notes.append) == ""  # type: ignore[arg-type]
    assert "more than 10 bytes" in notes[0] and "taken from the package index" in notes[0]


def test_a_host_lives_on_with_garbage_in_the_records_of_others(site: Site) -> None:
    attempt = site.admit(seven)
    for number, data in enumerate(GARBAGE):
        site.records.signal(names.beat(attempt.job, 1, number + 1), data[:100])
    site.records.signal(names.ring(attempt.job), b"\xff")
    attempt.start()
    assert attempt.verdict().kind == wire.COMMITTED and attempt.value() == 7
    attempt.gone()


@pytest.mark.slow
@pytest.mark.turn
def test_a_file_without_a_digest_is_not_unpickled(trap: bucket.Trap, tmp_path: Path) -> None:
    trap.payload(tmp_path / "evil")
    with pytest.raises(payload.Tampered):
        payload.load(tmp_path / "evil", "")


def test_the_agents_digest_is_asked_for_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = "b" * 64
    monkeypatch.setenv("KINETIC_ROOT", str(tmp_path))
    path = f"/storage/v1/b/bucket/o/prod%2Fblobs%2Fbb%2F{digest}"
    with bucket.serving({path: b"evil"}) as address:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        with pytest.raises(bootstrap.Failed, match="It was not run"):
            bootstrap.fetch("gs://bucket/prod", digest)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
