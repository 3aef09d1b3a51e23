"""A writer of the bucket tries to have a job run again, or to forge its result."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.api.handle import JobHandle, attach
from kinetic_orchestration.errors import Corrupt, JobCancelled, KineticError, ResultNotTrusted
from kinetic_orchestration.jobs import launch, trust
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.following.drivers import follow
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.following.held_time import DEADLINE_ALLOWANCE, longest, remember_held
from kinetic_orchestration.jobs.following.verdicts import has_ended, seen_end
from kinetic_orchestration.jobs.job import Job, open_job
from kinetic_orchestration.jobs.request import draft
from kinetic_orchestration.plan import planner
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.spec import JobSpec, Limits, Options
from kinetic_orchestration.plan.identity import of
from kinetic_orchestration.plan.values import PRESENT, Cursor, Glimpse, JobStatus, Observation, Plan
from kinetic_orchestration.platforms.registry import open_store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.content import digest
from kinetic_orchestration.testing.api_servers.signing import Signer
from tests.core.jobs.test_trust import GOOD, admitted
from tests.support import bucket

KEY = "a key that nobody guesses"


@pytest.fixture(autouse=True)
def _bucket(shared_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.pretend(monkeypatch)
    monkeypatch.setenv("KINETIC_STORE", str(shared_home / "store"))


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns a function that gives this process a new, empty home."""
    return lambda: monkeypatch.setenv("KINETIC_HOME", str(tmp_path / os.urandom(4).hex()))


@pytest.fixture
def _signing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_SIGNING_KEY", KEY)


signing = pytest.mark.usefixtures("_signing")


def plain() -> dict[str, int]:
    return {"answer": 42}


def nothing() -> None:
    pass


def pickled() -> tuple[int, str]:
    return 1, "one"


def failing() -> None:
    raise LookupError("not there")


def ask(function: Any, key: str | None = None) -> JobHandle[Any]:
    return JobHandle(
        launch.launch(draft(JobSpec(function.__name__, Options(accelerator="cpu", key=key), function)).open())
    )


def succeeded(function: Any = plain, key: str | None = None) -> JobHandle[Any]:
    job = ask(function, key)
    assert follow(Follower(job._job), timeout=60) is not None
    return job


def forge(job: JobHandle[Any], **fields: Any) -> None:
    """Another verdict in its place."""
    said = {"kind": wire.ABORTED, "writer": "x", "time": 0.0, "cause": wire.PREEMPTION, "host": 0, "reason": "taken"}
    job._job.store.put(names.verdict(job.job_id, 1), wire.encode({**said, **fields}))


def remove_attempts(job: JobHandle[Any]) -> None:
    store = job._job.store
    for prefix in (names.intents(job.job_id), names.verdicts(job.job_id), names.hosts(job.job_id, 1)):
        for entry in list(store.list(prefix)):
            store.delete(entry.name)


def remove_all(job: JobHandle[Any]) -> None:
    remove_attempts(job)
    job._job.store.delete(names.spec(job.job_id))


def count_up(job: JobHandle[Any]) -> None:
    """The identity speaks of a next generation."""
    identity = names.identity(str(job._job.spec()["identity"]))
    bucket.rewrite(job._job.store, identity, generation=2)


def refused(ask_again: Callable[[], object], match: str = "somebody has changed") -> None:
    with pytest.raises(Corrupt, match=match):
        ask_again()


def begun(job: JobHandle[Any], attempt: int) -> bool:
    return job._job.store.read(names.intent(job.job_id, attempt)) is not None


# ---- what was seen ---------------------------------------------------------------------------------------------------


def test_a_success_that_becomes_a_preemption_is_not_run_again() -> None:
    job = succeeded(key="becomes a preemption")
    forge(job)
    for ask_again in (
        job.result, job.status, lambda: attach(job.job_id).result(), lambda: ask(plain, "becomes a preemption")
    ):  # fmt: skip
        refused(ask_again)
    assert not begun(job, 2)


@pytest.mark.slow
@pytest.mark.turn
@pytest.mark.parametrize("do", [remove_attempts, remove_all, count_up, forge], ids=lambda do: do.__name__)
def test_a_success_is_not_asked_for_anew_whatever_is_removed(do: Callable[[JobHandle[Any]], None]) -> None:
    key = f"anew {do.__name__}"
    job = succeeded(key=key)
    second = launch.job_id(of("local", key), 2)
    do(job)
    refused(lambda: ask(plain, key))
    assert not begun(job, 2) and job._job.store.read(names.spec(second)) is None
    if do is remove_attempts:
        refused(job.result)
        refused(lambda: attach(job.job_id).status())
    if do in (remove_attempts, remove_all):
        assert not begun(job, 1)


def test_a_process_that_has_seen_nothing_does_not_begin_a_generation_after_one_that_did_not_fail(
    elsewhere: Callable[[], None],
) -> None:
    job = succeeded(key="counted up")
    count_up(job)
    elsewhere()
    refused(lambda: ask(plain, "counted up"), "generation 1 .* has not failed")


@pytest.mark.slow
@pytest.mark.turn
def test_a_failure_stays_one_and_may_be_asked_for_anew() -> None:
    job = ask(failing, "stays a failure")
    assert follow(Follower(job._job), timeout=60) is not None
    assert ask(failing, "stays a failure").job_id != job.job_id
    forge(job)
    refused(job.result)
    forge(job, kind=wire.COMMITTED, cause="", digest="")
    refused(job.result)
    assert not begun(job, 2)


def test_records_that_went_by_themselves_are_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    job = succeeded(key="went by itself")
    remove_all(job)
    monkeypatch.setenv("KINETIC_RETENTION", "0")
    assert succeeded(key="went by itself").result() == plain()


@pytest.mark.slow
@pytest.mark.turn
def test_a_handle_takes_along_what_was_seen(elsewhere: Callable[[], None]) -> None:
    job = succeeded()
    travelled = pickle.dumps(job)
    elsewhere()
    forge(job)
    refused(pickle.loads(travelled).result)
    assert not begun(job, 2)


def test_a_cursor_takes_along_what_was_seen(elsewhere: Callable[[], None]) -> None:
    job = succeeded()
    follower = Follower(job._job)
    follow(follower, timeout=60)
    saved = json.loads(json.dumps(follower.cursor.to_json()))
    assert Cursor.from_json(saved[:5]).ended == ""  # of an older version
    elsewhere()
    forge(job)
    opened = open_job(job.job_id, job._job.store, job._job.backend, trust.of(settings.load()))
    refused(lambda: follow(Follower(opened, Cursor.from_json(saved)), timeout=60))
    assert not begun(job, 2)


@pytest.mark.slow
@pytest.mark.turn
def test_a_process_remembers_though_its_home_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path))
    (tmp_path / "trust").write_text("no folder")
    job = succeeded()
    forge(job)
    refused(job.result)
    assert not begun(job, 2)


def test_a_peek_holds_to_what_was_seen_and_remembers_nothing(elsewhere: Callable[[], None]) -> None:
    job = succeeded()
    elsewhere()
    assert attach(job.job_id).peek().status is JobStatus.SUCCEEDED
    forge(job, kind=wire.ABORTED, cause=wire.USER)
    assert attach(job.job_id).peek().status is JobStatus.FAILED  # nobody has told it otherwise
    refused(job.peek)


# ---- what was proven -------------------------------------------------------------------------------------------------


@pytest.fixture
def proving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., bytes]]:
    """Give a job's verdict its machine's word for what it came to; what it says then."""
    signer = Signer()
    trust._certificates.cache_clear()
    engine = {"compute_engine": {"project_id": "", "project_number": 77}}  # as a job of this machine has no project

    def prove(job: JobHandle[Any], attempt: int = 1) -> bytes:
        store, name = job._job.store, names.verdict(job.job_id, attempt)
        record = store.read(name)
        assert record is not None
        claim = names.claim(names.VALUE, store.url, job.job_id, attempt, json.loads(record.data)["digest"])
        claims = {**GOOD, "aud": f"kinetic/{claim}", "email": "77-compute@developer.gserviceaccount.com"}
        bucket.rewrite(store, name, proof=signer.sign({**claims, "google": engine}))
        proven = store.read(name)
        assert proven is not None
        return proven.data

    with bucket.serving({"/certs": json.dumps(signer.certificates()).encode()}) as address:
        monkeypatch.setenv("KINETIC_EMULATOR", address)
        monkeypatch.setenv("KINETIC_BACKEND", "local")
        yield prove


def ended_unseen(function: Any) -> JobHandle[Any]:
    """Run a job to an end that nobody has seen."""
    job = ask(function)
    assert follow(Follower(replace(job._job, trust=replace(job._job.trust, home=None))), timeout=60) is not None
    return job


FALSE: dict[str, dict[str, Any]] = {
    "a pickled value": {"kind": wire.COMMITTED, "cause": "", "digest": "e" * 64, "size": 7},
    "a failure": {"cause": wire.USER},
    "JSON": {"kind": wire.COMMITTED, "cause": "", "digest": "e" * 64, "size": 7, "format": wire.PLAIN},
}


@pytest.mark.slow
@pytest.mark.turn
@pytest.mark.parametrize("false", FALSE)
def test_a_false_end_that_was_seen_yields_to_the_proven_one_and_that_to_none(
    false: str, proving: Callable[..., bytes]
) -> None:
    job = ended_unseen(pickled)
    true = proving(job)
    forge(job, **FALSE[false])
    assert job.status().final
    with pytest.raises(KineticError):
        job.result()
    job._job.store.put(names.verdict(job.job_id, 1), true)
    assert attach(job.job_id).result() == pickled()
    for forged in (FALSE[false], {}):
        forge(job, **forged)
        refused(lambda: attach(job.job_id).result())
    assert not begun(job, 2)


def test_a_value_that_was_collected_is_proven_from_then_on(proving: Callable[..., bytes]) -> None:
    job = ended_unseen(pickled)
    proving(job)
    assert job.result() == pickled()
    seen = job._job.trust.ended(job._job.store, job.job_id)
    assert seen is not None and seen.proven
    assert not pickle.loads(pickle.dumps(job))._job.ended.endswith("proven")  # whoever is handed it has seen no proof


@pytest.mark.slow
@pytest.mark.turn
def test_a_false_end_of_an_earlier_attempt_yields_too(proving: Callable[..., bytes]) -> None:
    job = ended_unseen(_kills_its_agent_and_returns_a_tuple)
    proving(job, 2)
    true = job._job.store.read(names.verdict(job.job_id, 1))
    assert true is not None
    forge(job, **FALSE["a pickled value"])
    assert job.status().final
    job._job.store.put(names.verdict(job.job_id, 1), true.data)
    assert attach(job.job_id).result() == ("2",)


def test_what_was_never_proven_holds_and_the_refusal_names_the_file_that_remembers_it() -> None:
    job = ended_unseen(pickled)
    true = job._job.store.read(names.verdict(job.job_id, 1))
    assert true is not None
    forge(job, **FALSE["a pickled value"])
    assert job.status().final
    job._job.store.put(names.verdict(job.job_id, 1), true.data)
    memory = job._job.trust.memory_of(job._job.store, job.job_id)
    refused(job.result, f"delete {memory}, in which it is remembered")
    memory.unlink()
    trust._SEEN.clear()
    assert attach(job.job_id).status() is JobStatus.SUCCEEDED


def _kills_its_agent_and_returns_a_tuple() -> tuple[str]:
    return (_kills_its_agent(),)


# ---- signed verdicts -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.turn
@signing
@pytest.mark.parametrize("function", [plain, nothing, pickled], ids=lambda function: function.__name__)
def test_a_signed_verdict_is_believed_wherever_the_key_is(function: Any, elsewhere: Callable[[], None]) -> None:
    job = succeeded(function)
    elsewhere()
    assert attach(job.job_id).result() == function()  # a pickled one, too, without a token of Google's


@signing
def test_a_guard_signs_what_it_says_for_its_agent(elsewhere: Callable[[], None]) -> None:
    job = ask(_kills_its_agent)
    assert job.result(timeout=60) == "2"
    elsewhere()
    assert attach(job.job_id).result() == "2"


def _kills_its_agent() -> str:
    if os.environ["KINETIC_ATTEMPT"] == "1":
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()
    return os.environ["KINETIC_ATTEMPT"]


@pytest.mark.slow
@pytest.mark.turn
@signing
def test_a_signed_failure_comes_back_as_itself(elsewhere: Callable[[], None]) -> None:
    job = ask(failing)
    follow(Follower(job._job), timeout=60)
    elsewhere()
    with pytest.raises(LookupError, match=r"^not there"):
        attach(job.job_id).result()


def _json(job: JobHandle[Any], value: bytes) -> dict[str, Any]:
    job._job.store.put(names.host(job.job_id, 1, 0, "result"), value)
    found = {"kind": wire.COMMITTED, "cause": "", "reason": "", "digest": bucket.digest_of(value), "size": len(value)}
    return {**found, "format": wire.PLAIN}


FORGED: dict[str, Callable[[JobHandle[Any]], dict[str, Any]]] = {
    "a preemption": lambda job: {},
    "another JSON value": lambda job: _json(job, b'{"answer":0}'),
    "None": lambda job: _json(job, b"null"),
    "no value": lambda job: {"kind": wire.COMMITTED, "cause": "", "reason": ""},
    "closed by a client": lambda job: {"kind": wire.CLOSED, "cause": wire.INFRASTRUCTURE},
}


@signing
@pytest.mark.parametrize("forged", FORGED)
@pytest.mark.parametrize(
    "seal",
    [
        "none",
        *(
            pytest.param(seal, marks=[pytest.mark.slow, pytest.mark.turn])
            for seal in ("its own", "of the host of another job", "of a client", "a guess")
        ),
    ],
)
def test_no_other_verdict_counts_where_the_key_is(forged: str, seal: str, elsewhere: Callable[[], None]) -> None:
    """Nothing was seen here: the signature alone tells."""
    job = succeeded()
    before = job._job.store.read(names.verdict(job.job_id, 1))
    assert before is not None
    fields = FORGED[forged](job)
    believed, store = job._job.trust, job._job.store
    forge(job, **fields)
    unsealed = store.read(names.verdict(job.job_id, 1))
    assert unsealed is not None
    told = {
        "its own": json.loads(before.data)["seal"],
        "of the host of another job": _word(believed.key("verdict", store, "job-0", 1), unsealed.data),
        # The one role whose key hosts do not have, for a verdict that only hosts may write, and the other way round.
        "of a client": _word(
            believed.key("verdict" if fields.get("kind") == wire.CLOSED else "closed", store, job.job_id, 1),
            unsealed.data,
        ),
        "a guess": "0" * 64,
    }
    forge(job, **fields, **({"seal": told[seal]} if seal != "none" else {}))
    elsewhere()
    for ask_again in (attach(job.job_id).result, attach(job.job_id).status, attach(job.job_id).peek):
        refused(ask_again, "not signed by who may have written it")
    assert not begun(job, 2)


@pytest.mark.slow
@pytest.mark.turn
@signing
def test_a_signed_job_whose_signature_is_taken_away_is_believed_in_nothing(elsewhere: Callable[[], None]) -> None:
    job = succeeded(key="stripped")
    store, value = job._job.store, wire.encode({"answer": 66})
    written = store.read(names.spec(job.job_id))
    assert written is not None
    spec = wire.decode(written.data)
    spec.pop("signed")
    store.put(names.spec(job.job_id), json.dumps(spec).encode())
    store.put(names.host(job.job_id, 1, 0, "result"), value)
    forge(job, kind=wire.COMMITTED, cause="", digest=digest.of_bytes(value), size=len(value), format=wire.PLAIN)
    elsewhere()
    for ask_again in (attach(job.job_id).result, lambda: ask(plain, "stripped").result()):
        with pytest.raises(ResultNotTrusted, match="is not believed here, where a signing_key is set"):
            ask_again()


@pytest.mark.parametrize("told", ["1/SUCCEEDED/x/0", "2/FAILED/x/9999999999"])
def test_what_a_handle_says_of_the_end_does_not_displace_what_was_seen(told: str) -> None:
    """Users who may launch a run choose its tags, and a handle is a file."""
    job = succeeded(key=f"told {told}")
    before = seen_end(job._job)
    misled = replace(job._job, ended=told)
    assert seen_end(misled) == before and has_ended(misled)
    forge(job)
    refused(lambda: has_ended(misled))


def _word(key: str, record: bytes) -> str:
    from kinetic_orchestration.host.machine import bootstrap

    return bootstrap.sealed(key, trust.gist(record))


@pytest.mark.slow
@pytest.mark.turn
@signing
@pytest.mark.parametrize("what", ["job", "attempt", "deployment", "store", "role"])
def test_a_key_is_for_one_thing_alone(what: str) -> None:
    believed = trust.of(settings.load())
    store = bucket.Bucket.__new__(bucket.Bucket)
    store.url = "gs://b/d"
    other = bucket.Bucket.__new__(bucket.Bucket)
    other.url = {"deployment": "gs://b/e", "store": "gs://c/d"}.get(what, store.url)
    assert believed.key("verdict", store, "job-1", 1) != believed.key(
        "closed" if what == "role" else "verdict",
        other,
        "job-2" if what == "job" else "job-1",
        2 if what == "attempt" else 1,
    )
    assert KEY not in believed.key("verdict", store, "job-1", 1)


@signing
def test_the_signature_of_a_spec_is_none_in_another_deployment(elsewhere: Callable[[], None]) -> None:
    job = admitted(plain, trust.of(settings.load()))
    theirs = open_store(os.path.dirname(job.store.url), "other")
    for name in (names.spec(job.job_id), names.signature(job.job_id, job.spec_digest)):
        record = job.store.read(name)
        assert record is not None
        theirs.put(name, record.data)
    elsewhere()
    believed = trust.of(settings.load())
    assert open_job(job.job_id, job.store, job.backend, believed).doubt == ""
    assert "not signed" in open_job(job.job_id, theirs, job.backend, believed).doubt


@pytest.mark.slow
@pytest.mark.turn
@signing
def test_a_client_signs_what_it_closes(elsewhere: Callable[[], None]) -> None:
    job = admitted(plain, trust.of(settings.load()))
    actions.cancel(job, "enough", "me")
    with pytest.raises(JobCancelled):
        JobHandle(job).result(timeout=60)
    elsewhere()
    assert attach(job.job_id).status() is JobStatus.CANCELLED


def test_whoever_lacks_the_key_neither_starts_nor_closes_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hosts could not sign, and nobody would believe what it closes."""
    monkeypatch.setenv("KINETIC_SIGNING_KEY", KEY)
    signed = admitted(plain, trust.of(settings.load()))
    monkeypatch.setenv("KINETIC_SIGNING_KEY", "another key of that length")
    job = open_job(signed.job_id, signed.store, signed.backend, trust.of(settings.load()))
    assert job.doubt == ""  # its home remembers the spec
    follower = Follower(job)
    assert follower.step() is None and "KINETIC_SIGNING_KEY" in follower.waiting
    actions.cancel(job, "enough", "me")
    assert follower.step() is None
    assert signed.store.read(names.verdict(job.job_id, 1)) is None and not begun(JobHandle(job), 1)
    assert JobHandle(signed).status() is JobStatus.CANCELLED  # by who has it


@pytest.mark.slow
@pytest.mark.turn
@signing
def test_the_key_of_hosts_is_in_no_record_and_in_no_command_line(shared_home: Path, tmp_path: Path) -> None:
    words = tmp_path / "words"
    function = _tell_commands
    job = JobHandle(
        launch.launch(draft(JobSpec("tells", Options(accelerator="cpu"), function, args=(str(words),))).open())
    )
    assert follow(Follower(job._job), timeout=60) is not None
    key = job._job.trust.key("verdict", job._job.store, job.job_id, 1).encode()
    assert len(words.read_bytes()) > 0 and key not in words.read_bytes()
    assert [path for path in shared_home.rglob("*") if path.is_file() and key in path.read_bytes()] == []


def _tell_commands(path: str) -> None:
    """Write the command lines and environments of this process and those above it to a file."""
    found, pid = b"", os.getpid()
    while pid > 1:
        for what in ("cmdline", "environ"):
            found += Path(f"/proc/{pid}/{what}").read_bytes()
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if (
            b"kinetic" not in Path(f"/proc/{pid}/cmdline").read_bytes()
            or b"pytest" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ):
            break
    Path(path).write_bytes(found)


# ---- roles -----------------------------------------------------------------------------------------------------------


def test_an_exception_given_as_the_value_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machine has vouched for its digest, and its file is there."""
    signer = Signer()
    trust._certificates.cache_clear()
    with bucket.serving({"/certs": json.dumps(signer.certificates()).encode()}) as address:
        monkeypatch.setenv("KINETIC_EMULATOR", address)
        monkeypatch.setenv("KINETIC_BACKEND", "local")
        job = ask(failing)
        job._job = replace(job._job, trust=replace(job._job.trust, home=None))  # which sees its end later
        outcome = follow(Follower(job._job), timeout=60)
        assert outcome is not None and outcome.verdict.failure is not None
        failure, store = outcome.verdict.failure, job._job.store
        raised = store.read(names.host(job.job_id, 1, 0, "exception"))
        assert raised is not None
        claim = f"exception/{store.url}/{job.job_id}/1/{failure.digest}"
        engine = {"compute_engine": {"project_id": "", "project_number": 77}}
        claims = {**GOOD, "aud": f"kinetic/{claim}", "email": "77-compute@developer.gserviceaccount.com"}
        proof = signer.sign({**claims, "google": engine})
        store.put(names.host(job.job_id, 1, 0, "result"), raised.data)
        forge(job, kind=wire.COMMITTED, cause="", digest=failure.digest, size=failure.size, proof=proof)
        with pytest.raises(ResultNotTrusted, match="wrong audience"):
            job.result()
        monkeypatch.setenv("KINETIC_TRUST_STORE", "true")
        with pytest.raises(Corrupt, match="holds an exception, and not a value"):
            attach(job.job_id).result()
        forge(job, kind=wire.COMMITTED, cause="", digest="")
        with pytest.raises(Corrupt, match="names no value, and its function has one"):
            job.result()


@pytest.mark.slow
@pytest.mark.turn
def test_a_value_given_as_the_exception_is_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    job = ask(_returns_an_error)
    outcome = follow(Follower(job._job), timeout=60)
    assert outcome is not None
    value = job._job.store.read(names.host(job.job_id, 1, 0, "result"))
    assert value is not None
    job._job.store.put(names.host(job.job_id, 1, 0, "exception"), value.data)
    failure = {"type": "ValueError", "message": "kept", "digest": outcome.verdict.digest, "size": len(value.data)}
    forge(job, kind=wire.ABORTED, cause=wire.USER, failure=failure)
    monkeypatch.setenv("KINETIC_TRUST_STORE", "true")
    job._job = replace(job._job, trust=trust.Trust(everything=True))
    with pytest.raises(Corrupt, match="holds a value, and not an exception"):
        job.result()


def _returns_an_error() -> ValueError:
    return ValueError("kept")


# ---- what it cost ----------------------------------------------------------------------------------------------------


class Counting:
    """A backend that makes nothing, and keeps what it was asked for."""

    charges = False

    def __init__(self) -> None:
        self.deadlines: list[float] = []

    def place(self, plan: Any, job_id: str, attempt: int, previous: Any = None) -> dict[str, Any]:
        return {"backend": "local", "run": f"/nowhere/{job_id}-{attempt}", "hosts": 1, "machine": "m"}

    def submit(self, asked: Any) -> str:
        self.deadlines.append(asked.intent.deadline - asked.intent.created)
        return ""


def limited(seconds: float, monkeypatch: pytest.MonkeyPatch) -> tuple[Job, Counting]:
    """A job whose limit of cost pays for so many seconds."""
    make, counting = planner.make_plan, Counting()
    limits = Limits(run=7200.0, cost=5.0)

    def make_limited(*args: Any, **options: Any) -> Plan:
        return replace(make(*args, **options), affordable=seconds, limits=limits)

    monkeypatch.setattr(planner, "make_plan", make_limited)
    job = admitted(plain, trust.of(settings.load()))
    return replace(job, backend=counting), counting  # type: ignore[arg-type]


def ended_after(job: Job, attempt: int, held: float) -> None:
    """The attempt is over: its records tell of hosts that were there for so long."""
    intent = actions.intend(job, attempt)
    assert intent is not None
    now = job.store.now()
    job.store.create(names.host(job.job_id, attempt, 0, "started.json"), wire.encode({"up": 0.0}))
    verdict = wire.Verdict(wire.ABORTED, "h", now, cause=wire.PREEMPTION, host=0)
    for name, data in (
        (names.intent(job.job_id, attempt), None),
        (names.host(job.job_id, attempt, 0, "started.json"), None),
        (names.verdict(job.job_id, attempt), verdict.encode()),
    ):
        if data is not None:
            job.store.create(name, data)
        else:
            path = Path(job.store.root, name)  # type: ignore[attr-defined]
            os.utime(path, (now - held, now - held))


def left(job: Job, attempt: int) -> float:
    record = job.store.read(names.intent(job.job_id, attempt))
    assert record is not None
    return float(wire.decode(record.data)["affordable"])


def test_removed_records_of_an_attempt_give_no_money_back(monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = limited(1000.0, monkeypatch)
    ended_after(job, 1, 600.0)
    assert actions.intend(job, 2) is not None and left(job, 2) == pytest.approx(400.0, abs=5.0)
    for attempt in (1, 2):
        job.store.delete(names.intent(job.job_id, attempt))
        job.store.delete(names.host(job.job_id, attempt, 0, "started.json"))
    assert actions.intend(job, 1) is not None and left(job, 1) == pytest.approx(400.0, abs=5.0)
    bucket.rewrite(job.store, names.intent(job.job_id, 1), before=None)
    assert actions.intend(job, 2) is not None and left(job, 2) == pytest.approx(400.0, abs=5.0)


@pytest.mark.slow
@pytest.mark.turn
def test_what_this_process_saw_of_an_attempts_hosts_is_a_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cloud reported them while they existed: no record of theirs need be left."""
    job, counting = limited(1000.0, monkeypatch)
    intent = actions.intend(job, 1)
    assert intent is not None
    now = job.store.now()
    remember_held(job, 1, Glimpse(now, intent, observation=Observation(PRESENT), since=now - 700.0))
    for name in (names.verdict(job.job_id, 1), names.host(job.job_id, 1, 0, "started.json")):
        assert job.store.read(name) is None
    second = actions.intend(job, 2)
    assert second is not None and left(job, 2) == pytest.approx(300.0, abs=5.0)
    bucket.rewrite(job.store, names.intent(job.job_id, 2), affordable=1e6, allowed=1e6)
    assert actions.submit(job, 2, Glimpse(now, second._replace(deadline=now + 1e6)), os.environ) == ""
    assert counting.deadlines == [pytest.approx(300.0 + DEADLINE_ALLOWANCE, abs=40.0)]
    remember_held(job, 2, Glimpse(now, second, observation=Observation(PRESENT), since=now - 400.0))
    assert actions.intend(job, 3) is None
    verdict = job.store.read(names.verdict(job.job_id, 3))
    assert verdict is not None and wire.Verdict.decode(verdict.data).cause == wire.DEADLINE


def test_of_a_job_in_doubt_nothing_is_remembered(monkeypatch: pytest.MonkeyPatch, shared_home: Path) -> None:
    job, _ = limited(1000.0, monkeypatch)
    now, doubted = job.store.now(), replace(job, doubt="nobody vouches for it")
    before = job.trust.memory_of(job.store, job.job_id).read_bytes()
    remember_held(doubted, 7, Glimpse(now, None, observation=Observation(PRESENT), since=now - 700.0))
    assert job.trust.held(job.store, job.job_id) == {}
    assert job.trust.memory_of(job.store, job.job_id).read_bytes() == before


@pytest.mark.slow
@pytest.mark.turn
def test_no_record_tells_of_more_than_the_plan_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = limited(1000.0, monkeypatch)
    ended_after(job, 1, 1e7)
    bucket.rewrite(job.store, names.intent(job.job_id, 1), allowed=0)
    path = Path(job.store.root, names.intent(job.job_id, 1))  # type: ignore[attr-defined]
    os.utime(path, (time.time() - 1e7,) * 2)
    assert actions.intend(job, 2) is None
    assert job.trust.held(job.store, job.job_id)[1] <= longest(job.plan(), 1000.0)


def test_another_process_of_the_same_home_knows_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = limited(1000.0, monkeypatch)
    actions.intend(job, 1)
    now = job.store.now()
    remember_held(job, 1, Glimpse(now, None, observation=Observation(PRESENT), since=now - 1100.0))
    trust._SEEN.clear()
    opened = open_job(job.job_id, job.store, job.backend, trust.of(settings.load()))
    assert actions.intend(opened, 2) is None


# ---- digests ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.turn
def test_the_digests_of_a_large_files_chunks_are_no_file_with_its_digest() -> None:
    large = os.urandom(digest.CHUNK) + b"the rest"
    parts = [large[: digest.CHUNK], large[digest.CHUNK :]]
    leaves = [bytes.fromhex(digest.of_bytes(part)) for part in parts]
    plain_leaves = [hashlib.sha256(part).digest() for part in parts]
    assert digest.of_bytes(b"".join(plain_leaves)) != digest.of_bytes(large)
    for prefix in (b"", digest.NODE, digest.LEAF, digest.LEAF + digest.NODE):
        for each in (leaves, plain_leaves):
            assert digest.of_bytes(prefix + b"".join(each)) != digest.of_bytes(large)


def test_a_digest_is_the_same_however_the_bytes_come() -> None:
    data = os.urandom(digest.CHUNK + 12345)
    with digest.Hasher() as hasher:
        for at in range(0, len(data), 1 << 20):
            hasher.update(data[at : at + (1 << 20)])
        assert hasher.digest() == digest.of_bytes(data)
    leaves = [hashlib.sha256(digest.LEAF + part).digest() for part in (data[: digest.CHUNK], data[digest.CHUNK :])]
    assert digest.of_bytes(data) == hashlib.sha256(digest.NODE + b"".join(leaves)).hexdigest()
