"""Every record of a store, with every field of it changed by somebody: it is refused by name, or the field is ignored."""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials

from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.errors import Corrupt, KineticError, NewerWire, StoreError
from kinetic_orchestration.host.machine.bucket_records import CloudRecords
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.following.logs import LONGEST_FRAME
from kinetic_orchestration.jobs.job import Job, open_job
from kinetic_orchestration.jobs.trust import Trust
from kinetic_orchestration.plan import records
from kinetic_orchestration.plan.configuration.settings import load
from kinetic_orchestration.plan.declare.checks.options import check_options
from kinetic_orchestration.plan.declare.cloud import Compute, Kubernetes
from kinetic_orchestration.plan.declare.limits import Limits, Retry
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.planner import make_plan
from kinetic_orchestration.plan.values import Candidate, Event, Output, Plan, Staged
from kinetic_orchestration.platforms.google.storage.store import GcsStore
from kinetic_orchestration.platforms.local.backend import LocalBackend
from kinetic_orchestration.protocol import names, schema, wire
from kinetic_orchestration.protocol.records.base import Record, TooLarge
from kinetic_orchestration.protocol.records.bucket_metadata import SIGNAL, SIGNAL_LIMIT
from kinetic_orchestration.protocol.records.files import FileRecords
from kinetic_orchestration.protocol.report import frames
from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.protocol.wire.task import (
    DATA_PIECE,
    ENVIRONMENT,
    HARDWARE,
    PAYLOAD,
    TASK,
    DataPiece,
    Environment,
    Hardware,
    Package,
    Payload,
    Task,
)
from kinetic_orchestration.testing.storage_server.server import StorageServer
from tests.support import bucket
from tests.support.exchanges.recorder import Recorder
from tests.support.wire_tasks import in_spec

pytestmark = pytest.mark.fast

JOB = "job-000000000001"
DIGEST = "a" * 64
LONG = "x" * (schema.PAGE + 1)
BAD: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        1.5,
        10**30,
        float("nan"),
        "",
        "../../../etc/passwd",
        "a\nb",
        "a?b=c",
        "a/b",
        "\x1b]52;c;eA==\x07",
    ),
    *([], {}, [[[[[[]]]]]], {"../x": 1}, [None], ["../x"], LONG),
)
STAGED = Staged(Payload(DIGEST, 1), DIGEST, "", (".",), (), (), (), None, "/usr/bin/python3")


def test_every_field_of_a_plan_and_of_what_is_staged_is_checked() -> None:
    """A field without a check would be used as it was found."""
    planned_only = {"race_of"}  # which no record has
    assert {entry.name for entry in fields(Plan)} - planned_only == set(records.PLAN.checks)
    assert {entry.name for entry in fields(Staged)} == set(records.STAGED.checks)


def test_what_is_staged_has_an_environment_for_each_candidate() -> None:
    """A number of a record that no environment has means the first one's, as one that is missing does."""
    own, other = Environment(DIGEST, python="3.11", packages=1), Environment("b" * 64, python="3.11", packages=2)
    staged = replace(STAGED, environment=own, others=(other,), builds=(0, 1, 0, 2))
    assert Staged.from_json(json.loads(json.dumps(staged.to_json()))) == staged
    assert [staged.at(number).environment for number in range(5)] == [own, other, own, own, own]
    assert {*STAGED.to_json()} == {entry.name for entry in fields(Staged)} - {"others", "builds"}


@pytest.mark.parametrize(
    ("record", "check"),
    [(Task, TASK), (Environment, ENVIRONMENT), (Hardware, HARDWARE), (Payload, PAYLOAD), (DataPiece, DATA_PIECE)],
)
def test_every_field_of_a_task_is_checked(record: Any, check: schema.Fields) -> None:
    assert set(record._fields) == set(check.checks)


def spec() -> dict[str, Any]:
    options = Options(accelerator="cpu", capture_env_vars=["LANG"])
    plan = make_plan(JobSpec("train", options, argv=("x",)), load(environ={}), {"LANG": "C"}).to_json()
    plan |= {"secrets": ["TOKEN"], "zones": ["us-a1-a"], "project": "example.com:proj", "secret_refs": {"A": "b"}}
    plan |= {"cloud": {"tags": ["x"], "service_account": "a@p.iam.gserviceaccount.com"}, "labels": {"team": "x"}}
    environment = Environment(
        DIGEST, settings={"UV_NO_INDEX": "1"}, python="3.11", platform="linux", packages=1, secrets=("TOKEN",),
        uv_itself="uv==1.0", warm=("jax",), compiles={"jaxlib": "0.10.2"}, installer_only=("TOKEN",),
    )  # fmt: skip
    task = in_spec(
        data=(DataPiece(DIGEST, "rows", "", ""),), packages=(Package(DIGEST, "shared"),), volumes={"/data": 0},
        environment=environment, kept=True, secrets={"TOKEN": "projects/p/secrets/token"}, tools={"uv": DIGEST},
        env={"LANG": "C"}, beside={"fast": "/x/fast.so"},
    )  # fmt: skip
    staged = replace(STAGED, environment=environment, others=(environment._replace(lock="b" * 64),), builds=(0, 1))
    made: dict[str, Any] = json.loads(
        json.dumps(
            {"job": JOB, "name": "train", "identity": "0" * 32, "plan": plan, "staged": staged.to_json(), "task": task}
        )
    )
    return made


def samples() -> dict[str, tuple[schema.Fields, str, dict[str, Any]]]:
    """Return, for each kind of record, its schema, a name of it, and a record of it as it should be."""
    failure = {
        "type": "E",
        "message": "m",
        "traceback": "t",
        "log_tail": "l",
        "exit_code": 1,
        "digest": DIGEST,
        "size": 1,
    }
    verdict = wire.Verdict(wire.ABORTED, "w", 1.0, "user", 0, "r", DIGEST, 1, None, "p", "json")._asdict()
    del verdict["raw"]  # the bytes that it was read from
    spent = {"training": [0, 10, 1.0, 2.0, 0.5, 0.25]}
    said = {"spent": spent, "full": "/a"}
    beat = wire.Beat("running", "b", 1, 2, 1.0, 1.0, 2.0, "steps", 0, True, True, 1.0, 1.0, **said)._asdict()
    devices = {"at": 1.0, "cpu": 1.0, "memory": 1.0, "kind": "tpu", "busy": [1.0], "used": [1.0], "total": [1.0]}
    place = {"backend": "local", "run": f"/home/run/{JOB}-2", "hosts": 1, "machine": "m", "name": f"{JOB}-2"}
    place |= {"project": "p", "zone": "us-a1-a", "slices": 1, "wait": 1.0, "since": 1.0, "moved": 1, "tries": 1}
    place |= {"rounds": 1, "tried": ["us-a1-a"], "dropped": ["us-a1-b"]}
    before = {"spent": [0, 1, 0, 0], "ran": [1]}
    intent = {"attempt": 2, "boot": "b", "placement": place, "allowed": 1.0, "affordable": 1.0, "before": before}
    started = {"boot": "b", "pid": 1, "machine": "m", "up": 1.0, "ports": {"jax": 1}}
    done = {"boot": "b", "cut": False, "began": 1.0, "ended": 2.0, "prepared": {"code": [1.0, 2.0]}, "spent": spent}
    group = {"name": "g", "tags": {"a": "b"}, "size": 2, "deployment": "d", "submitter": {"pid": 1}, "backend": "local"}
    stamp = {"deployment": "d", "created": 1.0, "stamp": "s", "checked": "1:2"}
    host = names.host(JOB, 1, 0, "")
    return {
        "spec": (records.SPEC, names.spec(JOB), spec()),
        "intent": (wire.INTENT, names.intent(JOB, 2), intent),
        "verdict": (wire.VERDICT, names.verdict(JOB, 1), {**verdict, "failure": failure}),
        "beat": (wire.BEAT, names.beat(JOB, 1, 0), {**beat, "devices": devices}),
        "cancel": (wire.CANCEL, names.cancel(JOB), {"reason": "r", "by": "b", "writer": "w", "anew": True}),
        "started": (wire.STARTED, f"{host}started.json", started),
        "exit": (wire.EXIT, f"{host}exit.json", {"code": 1}),
        "done": (wire.DONE_RECORD, f"{host}done.json", done),
        "keeper": (wire.KEEPER, names.keeper(JOB), {"keeper": "k"}),
        "identity": (records.IDENTITY, names.identity("0" * 32), {"generation": 1, "identity": ["d", "key", "x", 0]}),
        "signature": (records.SIGNATURE, names.signature(JOB, DIGEST), {"hmac": DIGEST}),
        "group": (records.GROUP, names.group("grp-1"), group),
        "group end": (records.GROUP_END, names.group_end("grp-1"), {"why": "submitted"}),
        "stamp": (records.STAMP, names.DEPLOYMENT, stamp),
        "reaped": (records.REAPED, names.REAPED, {"writer": "w", "ended": True}),
        "ready": (records.READY, names.ready(JOB, 1), {"since": 1.0, "writer": "w"}),
        "project": (records.PROJECT, names.project("p"), {"tree": DIGEST}),
    }


KINDS = samples()


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every field of a record, and of what is in it."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield (*at, key)
        yield from paths(entry, (*at, key))


def changed(value: dict[str, Any], at: tuple[Any, ...], bad: Any) -> dict[str, Any]:
    made = copy.deepcopy(value)
    holder: Any = made
    for key in at[:-1]:
        holder = holder[key]
    holder[at[-1]] = bad
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_as_it_should_be_passes_with_fields_of_later_versions_and_without_optional_ones(kind: str) -> None:
    check, name, sample = KINDS[kind]
    assert records.fields_of(wire.encode({**sample, "later": {"x": [1]}}), check, name)["later"] == {"x": [1]}
    needed = {key: sample[key] for key in check.needed}
    assert records.fields_of(wire.encode(needed), check, name) == wire.stamped(needed)
    for key in check.needed:
        rest = {other: sample[other] for other in check.needed if other != key}
        with pytest.raises(Corrupt, match=f"its {key} is missing"):
            records.fields_of(wire.encode(rest), check, name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_with_any_field_changed_is_refused_by_name_or_the_field_is_within_its_bounds(kind: str) -> None:
    check, name, sample = KINDS[kind]
    refused = 0
    for at in paths(sample):
        for bad in BAD:
            data = wire.encode(changed(sample, at, bad))
            try:
                records.fields_of(data, check, name)
            except Corrupt as error:
                refused += 1
                assert name in str(error)
                assert f"its {at[0]}" in str(error)
                assert len(str(error)) < 1000
            else:
                assert bad is not LONG
    assert refused


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"1",
        b'{"wire":1e999}',
        b"[" * 100_000,
        b'{"wire":"' + b"9" * 10**6 + b'"}',
        b'{"wire":' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_record_is_refused_by_name(kind: str, data: bytes) -> None:
    check, name, _ = KINDS[kind]
    with pytest.raises((Corrupt, NewerWire)) as caught:
        records.fields_of(data, check, name)
    assert name in str(caught.value) and len(str(caught.value)) < 1000


TRAVERSING = ("../x", "a/../../b", "a\nb", "a\x00b", "a?b", "a#b", "a b/c", "/etc", "x" * 100_000)


@pytest.mark.parametrize("identifier", ["job_id", "zone", "resource", "variable", "digest", "secret"])
def test_no_identifier_leads_anywhere_else(identifier: str) -> None:
    for text in TRAVERSING:
        with pytest.raises(schema.Wrong):
            getattr(schema, identifier)(text)


@pytest.mark.parametrize("project", ["p", "my-project-1", "example.com:proj", "123456789", ""])
def test_projects_of_any_kind_pass(project: str) -> None:
    schema.project(project)


@pytest.mark.parametrize("project", ["p/secrets/x", "p?z=", "p#", "P", "a:b:c", "..", "p\n", "-p"])
def test_and_nothing_else_does(project: str) -> None:
    with pytest.raises(schema.Wrong):
        schema.project(project)


@pytest.mark.parametrize(
    ("ran", "good"), [([], True), ([1], True), ([1, 2], True), ([2, 1], False), ([3], False), ([1, 1], False)]
)
def test_an_intent_names_attempts_before_it_in_their_order(ran: list[int], good: bool) -> None:
    fields = {"attempt": 3, "boot": "b", "placement": {}, "allowed": 1.0, "before": {"spent": [0, 1, 0, 1], "ran": ran}}
    record = Record(wire.encode(fields), 1, 1.0)
    if good:
        before = records.intent_of(record, JOB, 3).before
        assert before is not None and before.ran == tuple(ran)
    else:
        with pytest.raises(Corrupt, match=r"its before\.ran is"):
            records.intent_of(record, JOB, 3)


# ---- a process that looks --------------------------------------------------------------------------------------


class Watched(LocalBackend):
    """The embedded backend, which tells what it was asked to do."""

    did: list[str]

    def submit(self, *rest: Any) -> str:
        self.did.append("submit")
        return ""

    def release(self, placement: Any) -> Any:
        self.did.append(str(self._run_of(placement)))
        return super().release(placement)


@pytest.fixture
def looked_at(home: Path, tmp_path: Path) -> Iterator[Job]:
    """A job in a bucket that is vouched for, whose first attempt has ended; nothing of it ever ran."""
    (tmp_path / "store" / "d").mkdir(parents=True)
    store = bucket.Bucket(str(tmp_path / "store" / "d"), "d")
    backend = Watched(home, 4, str(tmp_path / "store"), "d")
    backend.did = []
    store.put(names.spec(JOB), wire.encode(spec()))
    placement = {"backend": "local", "hosts": 1, "machine": processes.machine()}
    intent = {"attempt": 1, "boot": "b", "placement": placement, "allowed": 0.0, "affordable": 0.0, "before": None}
    store.put(names.intent(JOB, 1), wire.encode(intent))
    store.put(names.verdict(JOB, 1), wire.Verdict(wire.CLOSED, "w", 1.0, wire.CONFIGURATION, None, "r").encode())
    yield open_job(JOB, store, backend, Trust(everything=True))


def ask(job: Job) -> None:
    for look in (
        lambda: JobHandle(job).peek(),
        lambda: JobHandle(job).status(),
        lambda: JobHandle(job).history(),
        lambda: JobHandle(job).cost(),
        lambda: list(JobHandle(job).events()),
        lambda: actions.release_all(job, 1),
        lambda: actions.forget_secrets(job),
    ):
        try:
            look()
        except KineticError as error:
            assert JOB in str(error) or "jobs/" in str(error), error


CHANGED = [-1, 10**9, "../../../etc/passwd", "a\nb", "/tmp", [], {}, None]


@pytest.mark.parametrize("name", [names.intent(JOB, 1), names.verdict(JOB, 1)])
def test_a_look_at_a_changed_record_ends_in_an_error_of_ours_or_in_none_and_harms_nothing(
    looked_at: Job, tmp_path: Path, name: str
) -> None:
    store, backend = looked_at.store, looked_at.backend
    valuable = tmp_path / "valuable" / f"{JOB}-1"
    valuable.mkdir(parents=True)
    whole = json.loads(store.read(name).data)  # type: ignore[union-attr]
    for at in paths(whole):
        if at == ("wire",):
            continue
        for bad in (*CHANGED, str(valuable)):
            store.put(name, json.dumps(changed(whole, at, bad)).encode())
            ask(looked_at)
    assert isinstance(backend, Watched)
    assert set(backend.did) <= {str(tmp_path / "home" / "run" / f"{JOB}-1"), str(backend._runs / f"{JOB}-1")}
    assert valuable.is_dir()


def test_the_folder_of_an_intent_is_never_removed_but_the_attempts_own(looked_at: Job, tmp_path: Path) -> None:
    """Its name is right, and it lies where the attacker wants it to."""
    valuable = tmp_path / "valuable" / f"{JOB}-1"
    (valuable / "deep").mkdir(parents=True)
    placement = {"backend": "local", "run": str(valuable), "hosts": 1, "machine": processes.machine()}
    bucket.rewrite(looked_at.store, names.intent(JOB, 1), placement=placement)
    Follower(looked_at).step()
    actions.release_all(looked_at, 1)
    assert (valuable / "deep").is_dir()
    backend = looked_at.backend
    assert isinstance(backend, LocalBackend)
    own = backend._runs / f"{JOB}-1"
    own.mkdir(parents=True)
    bucket.rewrite(looked_at.store, names.intent(JOB, 1), placement={**placement, "run": str(own)})
    actions.release(looked_at, 1)
    assert not own.exists() and valuable.is_dir()


def test_hosts_of_another_home_of_this_machine_are_judged_by_their_beats(looked_at: Job, tmp_path: Path) -> None:
    place = looked_at.backend.place(looked_at.plan(), JOB, 1)
    (seen,) = looked_at.backend.observe([{**place, "run": str(tmp_path / "other" / "run" / f"{JOB}-1")}])
    assert (seen.state, "another home" in seen.message) == ("elsewhere", True)


# ---- how much is read ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def storage() -> Iterator[StorageServer]:
    with StorageServer() as server:
        yield server


@pytest.fixture
def both(storage: StorageServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[GcsStore, CloudRecords]]:
    """A client's and a host's view of one bucket."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
    url = storage.make_bucket(f"limits-{os.urandom(4).hex()}") + "/d"
    store = GcsStore(url, "d", AnonymousCredentials(), storage.url)  # type: ignore[no-untyped-call]
    host = CloudRecords(url)
    yield store, host
    host.close()


BOUNDED = [names.intent(JOB, 1), names.verdict(JOB, 1), names.cancel(JOB), names.beat(JOB, 1, 0), names.owner(JOB)]
BOUNDED += [names.keeper(JOB), names.host(JOB, 1, 0, "started.json"), names.identity("0" * 32), names.DEPLOYMENT]


@pytest.mark.parametrize("name", BOUNDED)
def test_a_record_that_is_too_large_is_not_read_by_clients_nor_by_hosts(
    both: tuple[GcsStore, CloudRecords], tmp_path: Path, name: str
) -> None:
    store, host = both
    most = names.limit_of(name)
    assert most < names.RECORD_LIMIT
    store.put(name, bytes(most + 1))
    with pytest.raises(StoreError, match=f"{name} .* is not read: it has more than"):
        store.read(name)
    with pytest.raises(StoreError, match=f"{name} .* is not read"):
        store.read_all([name])
    with pytest.raises(TooLarge, match=f"{name} .* is not read"):
        host.read(name)
    files = FileRecords(str(tmp_path))
    files.put(name, bytes(most + 1))
    with pytest.raises(TooLarge, match=f"{name} .* is not read"):
        files.read(name)
    files.put(name, bytes(most))
    assert files.read(name) is not None
    store.put(name, b"{}")
    assert host.read(name) is not None, "and the connection is still good"


def test_signals_that_are_too_large_tell_nothing_and_few_plain_ones_are_read(
    both: tuple[GcsStore, CloudRecords], storage: StorageServer, recorder: Recorder
) -> None:
    store, host = both
    with recorder.wrong("an upload in parts begins with the object's metadata"):  # as far as it is looked at
        store.requests.write(names.beat(JOB, 1, 0), b"x", None, {SIGNAL: "A" * 1_000_000})
    store.requests.write(names.beat(JOB, 1, 1), b"x", None, {SIGNAL: "no base64 !"})
    store.put(names.beat(JOB, 1, 2), bytes(SIGNAL_LIMIT + 1))
    store.signal(names.beat(JOB, 1, 3), b"good")
    for seen in (list(store.signals(names.BEATS)), list(host.signals(names.BEATS))):
        assert [signal.data for signal in seen][::3] == [b"", b"good"]
        assert seen[2].data == b""
    for index in range(60):
        store.put(names.beat(JOB, 2, index), b"plain")
    for side in (store, host):
        storage.forget()
        assert len(list(side.signals(names.BEATS))) == 64
        assert len(storage.calls) <= 20


def test_a_frame_longer_than_any_host_writes_ends_its_segment_and_is_named(looked_at: Job) -> None:
    store = looked_at.store
    first = frames.encode(frames.OUT, 1.0, b"before\n")
    vast = b"\x1eo 1 %d\n" % (LONGEST_FRAME + 1) + b"x" * (2 << 20)
    store.put(names.segment(JOB, 1, 0, 0), first + vast)
    store.put(names.segment(JOB, 1, 0, 1), frames.encode(frames.OUT, 2.0, b"after\n"))
    told: list[Event] = list(JobHandle(looked_at).events())
    lines = [event.text.decode() for event in told if isinstance(event, Output)]
    assert lines[0] == "before\n" and lines[-1] == "after\n"
    assert f"{names.segment(JOB, 1, 0, 0)} has a frame of" in lines[1]
    assert frames.LONGEST_LINE < LONGEST_FRAME < 2 * frames.LONGEST_LINE


@pytest.mark.parametrize("where", ["first", "next", "without an end"])
def test_a_damaged_frame_is_told_and_the_log_goes_on(looked_at: Job, where: str) -> None:
    written = [frames.encode(frames.OUT, 1.0, b"before\n"), frames.encode(frames.OUT, 1.5, b"hit\n")]
    written.append(frames.encode(frames.NEXT, 2.0, b""))
    hit = 1 if where == "first" else 2
    damaged = (
        written[hit].replace(b" ", b"\x21", 1) if where != "without an end" else written[hit].replace(b"\n", b"\x0b")
    )
    written[hit] = damaged
    looked_at.store.put(names.segment(JOB, 1, 0, 0), b"".join(written))
    looked_at.store.put(names.segment(JOB, 1, 0, 1), frames.encode(frames.OUT, 3.0, b"after\n"))
    lines = [event.text for event in JobHandle(looked_at).events() if isinstance(event, Output)]
    told = b"%d bytes of the log are damaged\n" % len(damaged)
    kept = [b"before\n", told] if hit == 1 else [b"before\n", b"hit\n", told]
    assert [bytes(line) for line in lines] == [*kept, b"after\n"]


def test_the_longest_line_that_a_host_writes_is_still_read(looked_at: Job) -> None:
    data = b"x" * (frames.LONGEST_LINE + 1000)
    looked_at.store.put(names.segment(JOB, 1, 0, 0), frames.encode(frames.OUT, 1.0, data))
    (event,) = list(JobHandle(looked_at).events())
    assert isinstance(event, Output) and len(event.text) == len(data)


# ---- what it costs ---------------------------------------------------------------------------------------------


def test_a_thousand_beats_are_checked_in_a_fraction_of_a_scene() -> None:
    """A scene of a thousand hosts is taken every few seconds."""
    data = wire.encode(KINDS["beat"][2])
    began = time.process_time()
    for _ in range(1000):
        assert wire.Beat.read(data) is not None
    assert time.process_time() - began < 0.5


def test_a_plan_with_every_option_of_kubernetes_is_read() -> None:
    cloud = Kubernetes(
        clusters=["gke_my-project_us-west4_training"], queue="research", priority_class="high", service_account="trainer",
        node_selector={"team": "vision"}, tolerations=["team=vision:NoSchedule"], env_from=["s3-credentials"],
        image_pull_secrets=["registry.example.com"], labels={"team": "vision"},
    )  # fmt: skip
    options = Options(accelerator="l4", cloud=cloud, secrets={"A": "hf/token", "B": "hf.b"})
    environ = {"KINETIC_BACKEND": "kubernetes", "KINETIC_STORE": "s3://bucket/prefix", "KINETIC_DEPLOYMENT": "prod"}
    plan = make_plan(JobSpec("train", options), load(environ=environ | {"KINETIC_NAMESPACE": "training"}))
    records.PLAN(json.loads(json.dumps(plan.to_json())))


def test_a_plan_with_every_option_of_vms_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinetic_orchestration.plan.messages._shown", set())  # another test may have met the warning
    cloud = Compute(
        zones=["us-central1-a"], hosts=2, reservation="projects/p/zones/us-central1-a/reservations/r", network="lab",
        subnetwork="projects/host/regions/us-central1/subnetworks/lab", external_ips=False, secure_boot=True,
        image="projects/p/global/images/family/mine", disk_gib=300, disk_type="pd-ssd", tags=["ml"],
        service_account="vm@p.iam.gserviceaccount.com", labels={"team": "vision"}, quota_project="billed",
    )  # fmt: skip
    options = Options(accelerator="h100x8", backend="compute", cloud=cloud)
    environ = {"KINETIC_PROJECT": "my-project", "KINETIC_STORE": "gs://bucket/prefix", "KINETIC_DEPLOYMENT": "prod"}
    with pytest.warns(UserWarning, match="joined over plain TCP"):
        plan = make_plan(JobSpec("train", check_options(options)), load(environ=environ))
    records.PLAN(json.loads(json.dumps(plan.to_json())))
    for wrong in ({"disk_gib": "300"}, {"disk_gib": 1 << 20}, {"disk_type": "../a"}, {"image": "a\nb"}):
        with pytest.raises(schema.Wrong):
            records.CLOUD({**plan.cloud, **wrong})


@pytest.mark.parametrize("queue", ["", "a", "a,b", ["a", "b"]])
def test_an_attempt_is_in_a_queue_of_its_plan_and_in_no_other(queue: str | list[str]) -> None:
    environ = {"KINETIC_BACKEND": "kubernetes", "KINETIC_STORE": "s3://bucket/prefix", "KINETIC_DEPLOYMENT": "prod"}
    reserved = "projects/p/zones/us-a1-a/reservations/r"
    cloud = Kubernetes(clusters=["prod"], namespaces=["ml"], queue=queue, reservation=reserved)
    options = Options(accelerator="l4", cloud=cloud)
    plan = make_plan(JobSpec("train", options), load(environ=environ))
    written = json.loads(json.dumps(plan.to_json()))
    records.PLAN(written)
    allowed = records.within(Plan.from_json(written))
    placement = {"zone": "prod/ml", "queue": "a" if queue else ""}
    assert allowed.checked(placement, "job-1", 1)["queue"] == placement["queue"]
    for unsaid in ({"zone": "prod/ml"}, {"zone": "prod/ml", "queue": ""}):  # by whoever wants to pass the queue
        assert allowed.checked(unsaid, "job-1", 1).get("queue", "") == placement["queue"]
    with pytest.raises(schema.Wrong, match="which the job's plan does not have"):
        allowed.checked({**placement, "queue": "theirs"}, "job-1", 1)
    with pytest.raises(schema.Wrong, match="which the job's plan does not have"):
        allowed.checked({**placement, "zone": "us-a1-a"}, "job-1", 1)
    with pytest.raises(schema.Wrong):
        records.CLOUD({"queue": ["a", "../b"]})


def test_a_place_of_one_candidate_is_none_of_another() -> None:
    """Whoever writes an intent chooses among what the plan has as a whole: its candidate with that one's own place."""

    def one(name: str, backend: str, *zones: str) -> Plan:
        return Plan(
            "train", accelerators.parse(name), backend, "gs://bucket/store", "test", Limits(), Retry(), project="p",
            zones=zones,
        )  # fmt: skip

    both = one("v5e-16", "tpu-vm", "us-east5-a", "us-east5-b"), one("l4", "compute", "us-west4-a")
    allowed = records.within(replace(both[0], choices=tuple(Candidate.of(plan, {}) for plan in both)))
    first = {"backend": "tpu-vm", "project": "p", "zone": "us-east5-b", "hosts": 4, "slices": 1}
    second = {**first, "backend": "compute", "zone": "us-west4-a", "hosts": 1, "choice": 1}
    name = names.slice_of("gs://bucket/store", "test", JOB, 1)
    assert allowed.checked(first, JOB, 1) == {**first, "name": name}
    assert allowed.checked(second, JOB, 1) == {**second, "name": name}
    forged = [
        {**first, "choice": 1},
        {**first, "choice": 2},
        {**first, "zone": "us-west4-a"},
        {**first, "hosts": 1},
        {**second, "choice": 0},
        {**second, "zone": "us-east5-a"},
        {**second, "backend": "tpu-vm"},
        {**second, "slices": 2},
        {**second, "grouped": True},
    ]
    for placement in forged:
        with pytest.raises(schema.Wrong):
            allowed.checked(placement, JOB, 1)
    for plan in both:  # of a job of one way, there is no other candidate
        with pytest.raises(schema.Wrong):
            records.within(plan).checked({**second, "backend": plan.backend}, JOB, 1)
