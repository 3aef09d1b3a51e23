"""The processes that may continue a job in a bucket, and the values that are unpickled."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle, attach
from kinetic_orchestration.cli import doctor
from kinetic_orchestration.errors import Corrupt, JobError, JobFailed, ResultNotTrusted, UsageError
from kinetic_orchestration.jobs import launch, lifecycle, trust
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.following.drivers import follow
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.job import Job, open_job, without_spec
from kinetic_orchestration.jobs.request import draft
from kinetic_orchestration.jobs.watching.look import look
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.values import Change, Cursor, Event, JobStatus
from kinetic_orchestration.platforms import registry
from kinetic_orchestration.platforms.google.storage.store import GcsStore
from kinetic_orchestration.platforms.local.store import LocalStore
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.content import payload
from kinetic_orchestration.testing.api_servers.signing import ISSUER, Signer
from tests.support import bucket

KEY = "a key that nobody guesses"
LOOKS = 5  # of a follower that starts nothing
pytestmark = pytest.mark.usefixtures("shared_home")


@pytest.fixture(autouse=True)
def _bucket(shared_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.pretend(monkeypatch)


def plain() -> dict[str, object]:
    return {"loss": [0.5, 1, None, True], "name": "é"}


def pickled() -> tuple[int, str]:
    return 1, "one"


def failing() -> None:
    raise LookupError("not there")


def spec_of(function: Any, **options: Any) -> JobSpec:
    return JobSpec(function.__name__, Options(**{"accelerator": "cpu", **options}), function)


def submitted(function: Any, key: str | None = None) -> JobHandle[Any]:
    return JobHandle(launch.launch(draft(spec_of(function, key=key)).open()))


def test_what_a_home_remembers_is_read_again_only_when_it_has_changed(
    shared_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job with a cost limit asks at each look."""
    job, reads = submitted(plain)._job, []
    path, whole = job.trust.memory_of(job.store, job.job_id), Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda self, **how: (reads.append(self), whole(self, **how))[1])
    for second in range(1000):
        job.trust.saw_held(job.store, job.job_id, 1, float(second), 30.0)
        job.trust.remembered(job.store, job.job_id, trust.SPEC)
    assert job.trust.held(job.store, job.job_id)[1] > 960
    assert reads.count(path) < 80
    with path.open("a") as memory:  # another process of this home
        memory.write(f"{trust.HELD} 1/5000.0\n")
    assert job.trust.held(job.store, job.job_id) == {1: 5000.0}


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch, shared_home: Path, tmp_path: Path) -> Path:
    """Give this process another home, without knowledge of earlier submissions."""
    monkeypatch.setenv("KINETIC_STORE", str(shared_home / "store"))
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "elsewhere"))
    return tmp_path / "elsewhere"


def admitted(function: Any, believed: trust.Trust = trust.ALONE) -> Job:
    """A job whose submitter died between its spec and its first attempt."""
    request = draft(spec_of(function)).open()
    store, plan, here = request.store, request.plan, request.settings
    job_id, _ = launch.claim(store, request.backend, request.identity)
    with launch.staging_folder(store, here.home) as folder:
        bundle = launch.package(request.spec, plan, here, folder, os.environ)
        staged = launch.stage(bundle, store, here.retention, here.home)
    written = launch.admit(store, job_id, request.identity, plan, staged, believed)
    assert written is not None
    return without_spec(open_job(job_id, store, request.backend, believed, written=written))


# ---- starting attempts -----------------------------------------------------------------------------------------


def test_whoever_wrote_the_spec_or_has_its_writers_home_goes_on_with_the_job(shared_home: Path) -> None:
    job = submitted(plain)
    assert job._job.doubt == "" and job.result() == plain()
    again = attach(job.job_id)
    assert again._job.doubt == "" and again._job.spec_digest == job._job.spec_digest


def test_a_stranger_watches_and_collects_json_but_starts_nothing(stranger: Path, shared_home: Path) -> None:
    job = admitted(plain)
    job_id = job.job_id
    seen = attach(job_id)
    assert seen._job.doubt
    told: list[Event] = []
    follower = Follower(seen._job)
    assert [follower.step(told.append) for _ in range(LOOKS)] == [None] * LOOKS
    message = next(event.message for event in told if isinstance(event, Change))
    assert "KINETIC_SIGNING_KEY" in message and names.spec(job_id) in message
    assert job.store.read(names.intent(job_id, 1)) is None and seen.status() is JobStatus.PENDING
    assert follow(Follower(job), timeout=60) is not None  # its writer goes on
    assert seen.result(timeout=60) == plain()


def test_a_stranger_may_cancel(stranger: Path) -> None:
    job = admitted(plain)
    attach(job.job_id).cancel("enough")
    assert attach(job.job_id).status() is JobStatus.CANCELLED


def test_a_pickled_handle_takes_its_right_along(
    stranger: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = admitted(plain)
    travelled = pickle.dumps(JobHandle(job))
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "third"))
    handle: JobHandle[Any] = pickle.loads(travelled)
    assert handle._job.doubt == "" and handle.result(timeout=60) == plain()
    strangers = JobHandle(open_job(job.job_id, job.store, job.backend))
    assert pickle.loads(pickle.dumps(strangers))._job.doubt  # who had no right gives none away


def test_a_cursor_takes_the_right_along(stranger: Path) -> None:
    job = admitted(plain)
    saved = json.loads(json.dumps(Follower(job).cursor.to_json()))
    follower = Follower(open_job(job.job_id, job.store, job.backend), Cursor.from_json(saved))
    assert follower.job.doubt == "" and follow(follower, timeout=60) is not None
    assert follower.cursor.spec == job.spec_digest  # also into later attempts, and to whoever comes next
    assert Follower(open_job(job.job_id, job.store, job.backend), Cursor.from_json(saved[:4])).job.doubt


def test_a_key_that_two_processes_share_vouches_for_the_spec(
    stranger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_SIGNING_KEY", KEY)
    job = submitted(plain)
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "third"))
    assert attach(job.job_id)._job.doubt == ""
    monkeypatch.setenv("KINETIC_SIGNING_KEY", "another key of that length")
    assert "not signed with the signing_key" in attach(job.job_id)._job.doubt
    monkeypatch.delenv("KINETIC_SIGNING_KEY")
    assert attach(job.job_id)._job.doubt
    assert job.result(timeout=60) == plain()


def test_the_signature_of_one_job_is_none_for_another(stranger: Path) -> None:
    believed = trust.Trust(signing_key=KEY)
    one, other = admitted(plain, believed), admitted(pickled, believed)
    spec = one.store.read(names.spec(one.job_id))
    signature = one.store.read(names.signature(one.job_id, one.spec_digest))
    assert spec is not None and signature is not None
    one.store.put(names.spec(other.job_id), spec.data)
    one.store.put(names.signature(other.job_id, one.spec_digest), signature.data)
    assert "not signed" in open_job(other.job_id, one.store, one.backend, believed).doubt


def test_a_signature_that_a_flipped_bit_damaged_vouches_for_nothing_and_a_job_of_this_machine_goes_on(
    stranger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The submitter still knows it; for others it has no signature."""
    monkeypatch.setenv("KINETIC_SIGNING_KEY", KEY)
    job = submitted(plain)
    store, name = job._job.store, names.signature(job.job_id, job._job.spec_digest)
    record = store.read(name)
    assert record is not None
    for bit in range(0, 8 * len(record.data), 37):
        damaged = bytearray(record.data)
        damaged[bit // 8] ^= 1 << bit % 8
        store.put(name, bytes(damaged))
        assert attach(job.job_id)._job.doubt == ""
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("KINETIC_HOME", str(tmp_path / "third"))
            assert "not signed" in attach(job.job_id)._job.doubt, bit
    assert job.result(timeout=60) == plain()


def test_the_key_is_shown_nowhere(monkeypatch: pytest.MonkeyPatch, shared_home: Path) -> None:
    monkeypatch.setenv("KINETIC_SIGNING_KEY", KEY)
    here = settings.load()
    assert KEY not in repr(here) and KEY not in repr(trust.of(here))
    shown = list(doctor._settings(here, os.environ))
    assert KEY not in str(shown)
    assert next(row.value for row in shown if row.name == "signing_key") == "(set, not shown)"
    job = submitted(plain)
    job.result(timeout=60)
    held = [path for path in shared_home.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert held == []


def test_a_key_that_can_be_guessed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_SIGNING_KEY", "short")
    with pytest.raises(UsageError, match="token_urlsafe"):
        submitted(plain)


def test_the_user_may_say_that_the_bucket_is_trusted(stranger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = submitted(pickled)
    follow(Follower(job._job), timeout=60)
    with pytest.raises(ResultNotTrusted):
        attach(job.job_id).result()
    monkeypatch.setenv("KINETIC_TRUST_STORE", "true")
    assert attach(job.job_id).result() == pickled()


def test_a_submission_that_died_after_its_spec_is_known_by_its_home(stranger: Path) -> None:
    believed = trust.of(settings.load())
    job = admitted(plain, believed)
    memory = next((stranger / "trust").glob("*/*"))
    memory.write_text("".join(line for line in memory.read_text().splitlines(True) if line.startswith("offered")))
    assert attach(job.job_id)._job.doubt == ""


def test_an_attempt_that_nobody_may_start_is_closed_in_the_end_and_the_next_launch_begins_anew(stranger: Path) -> None:
    own = admitted(plain)
    job = open_job(own.job_id, own.store, own.backend)
    glimpse = look(job.store, job.backend, job.job_id, 1, 1)
    early = actions.perform(lifecycle.Intend(), job, 1, glimpse, {})
    assert "waits for a process that may start it" in early
    late = glimpse._replace(now=glimpse.now + actions.TRUST_PATIENCE + 1)
    assert actions.perform(lifecycle.Intend(), job, 1, late, {}) == ""
    with pytest.raises(JobError, match="nobody who may start attempt 1 did so"):
        attach(job.job_id).result()
    assert launch.failed(job.store, job.backend, job.job_id)


def test_what_a_home_remembers_is_its_users_alone_and_is_forgotten_in_time(stranger: Path) -> None:
    job = admitted(plain, trust.of(settings.load()))
    memory = next((stranger / "trust").glob(f"*/{job.job_id}"))
    assert memory.stat().st_mode & 0o077 == 0
    trust.prune(stranger, 60.0)
    assert memory.exists()
    os.utime(memory, (time.time() - 120,) * 2)
    trust.prune(stranger, 60.0)
    assert not memory.exists()


# ---- values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -7, 10**400, 1.5, -0.0, 1e300, "", "é\n\0", [], {}, [1, [2.0, {"": None}]], {"b": 1, "a": [False]}],
    ids=repr,
)
def test_plain_json_comes_back_exactly(value: Any, tmp_path: Path) -> None:
    record = payload.dump_value(value, tmp_path / "out")
    assert record["format"] == wire.PLAIN
    back = payload.load_plain(tmp_path / "out", record["digest"])
    assert repr(back) == repr(value) and json.loads((tmp_path / "out").read_bytes()) == value


class Text(str):
    __slots__ = ()


SHARED: list[int] = [1]
CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    "value",
    [(1,), {1: 2}, b"x", float("nan"), float("inf"), Text("x"), "\ud83d\ude00", {1}, [SHARED, SHARED], CYCLE, 10**5000],
    ids=lambda value: type(value).__name__,
)
def test_what_json_would_change_is_pickled(value: Any) -> None:
    assert payload.plain(value) is None


def test_a_value_too_large_or_too_deep_for_json_is_pickled() -> None:
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    assert payload.plain(deep) is None
    assert payload.plain(list(range(300_000))) is None
    assert payload.plain("x" * (payload.LARGEST_PLAIN + 1)) is None


def test_the_verdict_says_which_it_is_and_a_pickle_without_proof_is_not_unpickled() -> None:
    job = submitted(pickled)
    outcome = follow(Follower(job._job), timeout=60)
    assert outcome is not None and outcome.verdict.format == ""
    with pytest.raises(ResultNotTrusted, match=r"no identity token.*KINETIC_TRUST_STORE") as raised:
        job.result()
    assert raised.value.job_id == job.job_id and "hosts/0/result" in str(raised.value)


def test_an_exception_without_proof_is_told_in_words() -> None:
    with pytest.raises(JobFailed, match=r"LookupError: not there.*not unpickled here, because no machine") as raised:
        submitted(failing).result(timeout=60)
    assert "raise LookupError" in str(raised.value)


# ---- proofs ----------------------------------------------------------------------------------------------------

STORE = bucket.Bucket.__new__(bucket.Bucket)
STORE.url = "gs://b/d"
DIGEST = "d" * 64
GOOD: dict[str, Any] = {
    "iss": ISSUER,
    "aud": f"kinetic/value/gs://b/d/job-1/2/{DIGEST}",
    "iat": 1_000_000_000,  # long ago: a value may be collected late
    "exp": 1_000_003_600,
    "email": "trainer@p.iam.gserviceaccount.com",
    "email_verified": True,
    "google": {"compute_engine": {"project_id": "p", "project_number": 77, "instance_id": "1"}},
}


@pytest.fixture(scope="module")
def signer() -> Signer:
    return Signer()


@pytest.fixture
def certificates(signer: Signer) -> Iterator[str]:
    trust._certificates.cache_clear()
    with bucket.serving({"/certs": json.dumps(signer.certificates()).encode()}) as address:
        yield f"{address}/certs"


def doubt(token: str, certificates: str, home: Path | None = None, account: str = GOOD["email"]) -> str:
    believed = trust.Trust(home, certificates=certificates)
    return believed.doubt_of_value(STORE, "job-1", 2, DIGEST, token, role=names.VALUE, account=account, project="p")


def test_the_word_of_the_jobs_machine_vouches_for_its_value(signer: Signer, certificates: str, tmp_path: Path) -> None:
    assert doubt(signer.sign(GOOD), certificates, tmp_path) == ""
    assert doubt("forgotten", "http://127.0.0.1:9/certs", tmp_path) == ""  # who checked once need not ask again


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"aud": f"kinetic/value/gs://b/d/job-1/2/{'e' * 64}"}, "wrong audience"),
        ({"aud": f"kinetic/value/gs://b/d/job-2/2/{DIGEST}"}, "wrong audience"),
        ({"aud": f"kinetic/value/gs://b/other/job-1/2/{DIGEST}"}, "wrong audience"),
        ({"aud": f"kinetic/exception/gs://b/d/job-1/2/{DIGEST}"}, "wrong audience"),
        ({"iss": "https://evil.example"}, "not Google's"),
        ({"email": "evil@p.iam.gserviceaccount.com"}, "job's account is trainer@"),
        ({"email_verified": False}, "names no account"),
        ({"google": {"compute_engine": {"project_id": "q", "project_number": 77}}}, "in the project 'q'"),
        ({"google": None}, "in the project None"),
        ({"google": ["x"]}, "in the project None"),
    ],
)
def test_another_machines_word_is_no_proof(
    changes: dict[str, Any], why: str, signer: Signer, certificates: str, tmp_path: Path
) -> None:
    assert why in doubt(signer.sign({**GOOD, **changes}), certificates, tmp_path)
    assert not (tmp_path / "trust").exists()


@pytest.mark.parametrize(
    ("email", "good"),
    [
        ("77-compute@developer.gserviceaccount.com", True),
        ("service-77@cloud-tpu.iam.gserviceaccount.com", True),
        ("78-compute@developer.gserviceaccount.com", False),
        ("77-compute@developer.gserviceaccount.com.evil.example", False),
    ],
)
def test_without_a_named_account_it_is_the_projects_default_one(
    email: str, good: bool, signer: Signer, certificates: str
) -> None:
    assert (doubt(signer.sign({**GOOD, "email": email}), certificates, account="") == "") is good


def test_a_token_that_somebody_else_signed_is_no_proof(certificates: str) -> None:
    assert "does not prove it" in doubt(Signer().sign(GOOD), certificates)


@pytest.mark.parametrize("token", ["x", "a.b.c", "..", "é", "e30.e30.e30"])
def test_what_is_no_token_is_no_proof(token: str, certificates: str) -> None:
    assert "does not prove it" in doubt(token, certificates)


def test_an_unsigned_token_is_no_proof(certificates: str) -> None:
    import base64

    def part(fields: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(fields).encode()).rstrip(b"=").decode()

    assert "does not prove it" in doubt(f"{part({'alg': 'none', 'kid': 'emulated'})}.{part(GOOD)}.", certificates)


def test_certificates_that_cannot_be_had_are_a_reason_and_no_crash(signer: Signer) -> None:
    trust._certificates.cache_clear()
    with bucket.serving({}) as address:
        assert "could not be had" in doubt(signer.sign(GOOD), f"{address}/certs")
    assert "could not be had" in doubt(signer.sign(GOOD), f"{address}/certs")


def test_a_proven_value_and_a_proven_exception_come_back_as_themselves(
    signer: Signer, certificates: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_EMULATOR", certificates.removesuffix("/certs"))
    monkeypatch.setenv("KINETIC_BACKEND", "local")
    for function in (pickled, failing):
        job = submitted(function)
        job._job = replace(job._job, trust=replace(job._job.trust, home=None))  # which has not seen it end
        outcome = follow(Follower(job._job), timeout=60)
        assert outcome is not None
        verdict = outcome.verdict
        value = verdict.digest or (verdict.failure.digest if verdict.failure else "")
        email = "77-compute@developer.gserviceaccount.com"
        engine = {"compute_engine": {"project_id": "", "project_number": 77}}  # as a job of this machine has no project
        claim = names.claim(
            names.VALUE if verdict.digest else names.EXCEPTION, job._job.store.url, job.job_id, 1, value
        )
        claims = {**GOOD, "aud": f"kinetic/{claim}", "email": email, "google": engine}
        bucket.rewrite(job._job.store, names.verdict(job.job_id, 1), proof=signer.sign(claims))
        if function is pickled:
            assert job.result() == pickled()
        else:
            with pytest.raises(LookupError, match=r"^not there"):
                job.result()


def test_a_handle_from_another_store_is_told_of_a_changed_spec(stranger: Path) -> None:
    job = admitted(plain, trust.of(settings.load()))
    bucket.rewrite(job.store, names.spec(job.job_id), name="evil")
    with pytest.raises(Corrupt, match=names.spec(job.job_id)):
        attach(job.job_id)
    with pytest.raises(Corrupt, match="not the one that was submitted"):
        open_job(job.job_id, job.store, job.backend, spec_digest=job.spec_digest)


def test_a_folder_of_this_machine_is_trusted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.STORES, "", registry._folder)
    job = kinetic.run(accelerator="cpu")(pickled).run_async()
    assert job.result(timeout=60) == pickled() and not (home / "trust").exists()


def test_only_a_folder_of_this_machine_counts_without_proof() -> None:
    assert not hasattr(Store, "trusted"), "each store has to say it"
    assert LocalStore.trusted is True
    assert not any(store.trusted for store in (GcsStore, bucket.Bucket))
    folder, bucket_ = LocalStore("/folder", "test"), bucket.Bucket("/bucket", "test")
    believed = trust.Trust(signing_key=KEY)
    assert believed.checks and believed.at(bucket_) is believed
    assert not believed.at(folder).checks and not believed.at(folder).key_id
    assert believed.at(folder).at(bucket_) == believed, "what is not checked in a folder is checked in a bucket"
