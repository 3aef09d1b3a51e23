"""A job for whose spec nobody vouches: whoever looks at it does nothing outside its own records.

The attacker may write any object of the bucket; the process that looks has rights of its own, in a cloud that is
emulated. Nothing is made, asked for, ended or removed there by what the attacker has written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.api.handle import JobHandle, attach
from kinetic_orchestration.api.opening import reopened
from kinetic_orchestration.errors import BackendError, Corrupt, KineticError, UsageError
from kinetic_orchestration.jobs import launch
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.following.drivers import step_all
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.following.verdicts import glimpse
from kinetic_orchestration.jobs.job import authenticated, open_job
from kinetic_orchestration.jobs.trust import Trust
from kinetic_orchestration.plan.identity import of
from kinetic_orchestration.plan.values import Freed, Intent, JobStatus
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.google.rest import secret_manager
from kinetic_orchestration.platforms.google.tpu.backend import MOST_UNLISTED
from kinetic_orchestration.platforms.shared.ownership import JOB, MARK
from kinetic_orchestration.platforms.shared.read_only import ReadOnlyBackend
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.testing import Emulator
from tests.support.on_cloud import STAGED, Place, enter_deployment
from tests.support.wire_tasks import in_spec

ZONES = ("us-east5-a", "us-east5-b")
BELIEVES = Trust(everything=True)
CLOSED = wire.Verdict(wire.CLOSED, "evil", 0.0, cause=wire.CONFIGURATION, reason="x").encode()
CHANGES = ("Create", "Delete", "Add", "Update", "Destroy")


class Here(Place):
    """The process that looks, the bucket, and what is there of others."""

    def __init__(self, cloud: Emulator) -> None:
        super().__init__(cloud, ZONES)
        self.asked = len(cloud.requests)

    def write(self, job_id: str, *, attempts: int = 1, ended: bool = True, place: Any = None, **plan: Any) -> None:
        """A whole job, as anybody may write it who can write to the bucket."""
        spec = {"name": "train", "plan": {**self.plan.to_json(), **plan}, "task": in_spec(), "staged": STAGED.to_json()}
        self.store.put(names.spec(job_id), wire.encode(spec))
        for attempt in range(1, attempts + 1):
            placement = {**self.backend.place(self.plan, job_id, attempt), **(place or {})}
            fields = {"attempt": attempt, "boot": "b", "placement": placement, "allowed": 3600.0}
            self.store.put(names.intent(job_id, attempt), wire.encode(fields))
            if ended:
                self.store.put(names.verdict(job_id, attempt), CLOSED)

    def make(self, job_id: str, *args: Any, **options: Any) -> str:
        name = super().make(job_id, *args, **options)
        self.asked = len(self.cloud.requests)
        return name

    def keep(self, secret: str, **labels: str) -> str:
        ours = {MARK: names.mark(self.settings.store, self.settings.deployment), JOB: "job-000000000001"}
        kept = secret_manager.put(self.settings, secret, "x", self.store.now() + 3600, ours | labels)
        self.asked = len(self.cloud.requests)
        return kept

    def calls(self) -> list[str]:
        """Return the methods that the cloud was asked since the attack was written."""
        return [method for method, _ in list(self.cloud.requests)[self.asked :]]

    def harm(self) -> list[str]:
        return [method for method in self.calls() if method.startswith(CHANGES)]


@pytest.fixture
def here(
    clouds: Emulator, home: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Here]:
    enter_deployment(clouds, monkeypatch, request)
    yield Here(clouds)
    for secret in clouds.neighbours.secrets():
        del clouds.neighbours._secrets[secret]
        clouds.ledger.deleted("secret", secret)
    clouds.sweep()
    clouds.wait_until_empty()


ASKS: dict[str, Any] = {
    "status": lambda handle: handle.status(),
    "peek": lambda handle: handle.peek(),
    "cancel": lambda handle: handle.cancel("enough", cleanup_timeout=5),
    "cleanup": lambda handle: handle.cleanup(),
    "result": lambda handle: handle.result(timeout=5),
    "logs": lambda handle: handle.logs(),
    "history": lambda handle: handle.history(),
    "cost": lambda handle: handle.cost(),
    "release": lambda handle: actions.release_all(handle._job, 3),
    "forget": lambda handle: actions.forget_secrets(handle._job),
    "sensor": lambda handle: list(step_all([Follower(handle._job)], patience=5)),
}


def ask_everything(job_id: str) -> None:
    """All that a process may ask of a job; refusals are the package's own."""
    for what, ask in ASKS.items():
        try:
            ask(attach(job_id))
        except KineticError:
            continue
        except TimeoutError:
            assert what == "result"


# ---- secrets ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"secrets": ["x/../prod-db-password"]}, r"plan\.secrets\.0"),
        ({"secrets": ["X"], "project": "emulated/secrets/prod-db-password?z="}, r"plan\.project"),
        ({"secrets": ["X"], "project": "emulated/secrets/prod-db-password#"}, r"plan\.project"),
        ({"secret_refs": {"X": "projects/emulated/secrets/../secrets/prod-db-password"}}, r"plan\.secret_refs\.X"),
        ({"secret_refs": {"X": "prod-db-password?alt="}}, r"plan\.secret_refs\.X"),
    ],
)
def test_a_spec_cannot_have_a_secret_deleted_that_is_not_the_jobs(here: Here, change: Any, field: str) -> None:
    here.cloud.add_secret("prod-db-password", "theirs")
    here.write("job-000000000001", **change)
    ask_everything("job-000000000001")
    assert here.harm() == []
    assert [name.rpartition("/")[2] for name in here.cloud.neighbours.secrets()] == ["prod-db-password"]
    with pytest.raises(Corrupt, match=rf"jobs/job-000000000001/in/spec\.json .*its {field} is"):
        attach("job-000000000001")


def test_of_a_job_in_doubt_no_secret_is_forgotten(here: Here) -> None:
    kept = here.keep("kinetic-job-000000000001-TOKEN")
    here.write("job-000000000001", secrets=["TOKEN"])
    ask_everything("job-000000000001")
    assert here.harm() == []
    assert here.cloud.neighbours.secrets() == [kept]


def test_nor_by_a_submitter_whose_foretellable_key_was_taken_first(here: Here) -> None:
    identity = of(here.settings.deployment, "nightly")
    taken = launch.job_id(identity, 1)
    here.cloud.add_secret("prod-db-password", "theirs")
    kept = here.keep(f"kinetic-{taken}-TOKEN", **{JOB: taken})
    here.write(taken, secrets=["TOKEN"])
    here.store.put(names.identity(identity.key), wire.encode({"generation": 1, "identity": []}))
    believed = Trust(here.settings.home)
    job_id, is_new = launch.claim(here.store, here.backend, identity, believed)
    assert (job_id, is_new) != (taken, False)  # it has failed, so it is begun anew, under another id
    assert here.harm() == []
    assert kept in here.cloud.neighbours.secrets()


def test_only_a_secret_with_our_label_and_the_jobs_name_is_deleted(here: Here) -> None:
    theirs = here.cloud.add_secret("kinetic-job-000000000001-THEIRS", "x")
    others = here.keep("kinetic-job-000000000001-OTHER", **{JOB: "job-000000000002"})
    foreign = here.keep("kinetic-job-000000000001-FOREIGN", **{MARK: "00000000"})
    ours = here.keep("kinetic-job-000000000001-OURS")
    for secret in (theirs, others, foreign):
        assert not here.backend.forget(secret, "job-000000000001")
    assert here.backend.forget(ours, "job-000000000001")
    assert here.backend.forget(ours, "job-000000000001"), "a second time as well"
    assert sorted(here.cloud.neighbours.secrets()) == sorted([theirs, others, foreign])


@pytest.mark.parametrize("name", ["x/../y", "x?y", "x#y", "x%2Fy", "x y", "", "x/versions/1"])
def test_no_part_of_a_secrets_path_is_anything_else(here: Here, name: str) -> None:
    for ask in (
        lambda: secret_manager.delete(here.settings, f"projects/emulated/secrets/{name}", {}),
        lambda: secret_manager.put(here.settings, name, "x", 0.0, {}),
    ):
        with pytest.raises(UsageError, match="is not the name of a secret"):
            ask()
    assert here.calls() == []


# ---- slices ----------------------------------------------------------------------------------------------------


def test_no_slice_ends_by_the_records_of_a_job_in_doubt(here: Here) -> None:
    """The attacker has replaced a live job's spec and ends its attempt, so that whoever looks may release its slice."""
    name = here.make("job-000000000001")
    here.write("job-000000000001")
    ask_everything("job-000000000001")
    assert here.harm() == []
    assert here.cloud.queued_resource(name) is not None


def test_no_slice_is_asked_for_and_no_attempt_begun_by_them(here: Here) -> None:
    here.write("job-000000000001", ended=False)
    here.write("job-000000000002", attempts=0)
    for job_id in ("job-000000000001", "job-000000000002"):
        assert attach(job_id).status() is JobStatus.PENDING
    assert here.harm() == []
    assert here.store.read(names.intent("job-000000000002", 1)) is None
    preempted = wire.Verdict(wire.CLOSED, "evil", 0.0, cause=wire.PREEMPTION).encode()
    here.store.put(names.verdict("job-000000000001", 1), preempted)
    attach("job-000000000001").status()
    assert here.store.read(names.intent("job-000000000001", 2)) is None
    assert here.harm() == []


def test_a_place_that_only_a_job_in_doubt_names_is_not_even_looked_at(here: Here) -> None:
    here.write("job-000000000001", ended=False, project="evil", place={"project": "evil"})
    here.write("job-000000000002", ended=False, zones=["evil1-a"], place={"zone": "evil1-a"})
    for job_id in ("job-000000000001", "job-000000000002"):
        assert attach(job_id).status() is JobStatus.PENDING
    assert here.calls() == []


def test_a_stranger_cancels_by_the_jobs_own_records(here: Here) -> None:
    """Its hosts heed them, and whoever may frees the slice."""
    name = here.make("job-000000000001")
    here.write("job-000000000001", ended=False)
    stranger = attach("job-000000000001")
    assert stranger._job.doubt
    stranger.cancel("enough", cleanup_timeout=0.5)
    record = here.store.read(names.cancel("job-000000000001"))
    assert record is not None and json.loads(record.data)["reason"] == "enough"
    assert here.harm() == []
    own = JobHandle(reopened("job-000000000001", here.store, {"tpu-vm": here.backend}, here.settings))._job
    believed = authenticated(own, own.spec_digest)
    assert not believed.doubt and not isinstance(believed.backend, ReadOnlyBackend)
    actions.close(believed, 1, wire.CANCELLED, "enough")
    actions.release(believed, 1)
    here.cloud.wait_until(lambda: here.cloud.queued_resource(name) is None)


def test_an_onlooker_has_no_hands(here: Here) -> None:
    onlooker = ReadOnlyBackend(here.backend)
    placement = here.backend.place(here.plan, "job-000000000001", 1)
    intent = Intent(1, "b", placement, 0.0, 0.0)
    with pytest.raises(BackendError, match="nobody vouches"):
        onlooker.place(here.plan, "job-000000000001", 1)
    with pytest.raises(BackendError, match="nobody vouches"):
        onlooker.submit(Submission(here.plan, STAGED, "job-000000000001", "", intent, {}))
    assert onlooker.release(placement) is Freed.UNDER_WAY
    assert (list(onlooker.leftovers()), list(onlooker.secrets()), onlooker.forget("x", "y")) == ([], [], False)
    onlooker.cancel(placement)
    onlooker.prepare()
    assert here.calls() == []


# ---- how often is asked ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"slices": 10**4}, {"slices": 4000}, {"hosts": 10**4}, {"hosts": 60_000}])
def test_what_an_intent_says_of_its_size_decides_no_number_of_calls(here: Here, change: dict[str, int]) -> None:
    here.make("job-000000000001")
    here.write("job-000000000001", place=change)
    job = open_job("job-000000000001", here.store, here.backend, BELIEVES)
    list(here.backend.leftovers())
    looked = len(here.calls())
    assert glimpse(job, 1).intent is not None
    assert len(here.calls()) <= looked + 3 * (MOST_UNLISTED + 2)  # as many looks as it takes until the clock is known
    assert here.harm() == []


def test_nor_does_a_plan_for_which_nobody_vouches(here: Here) -> None:
    name = here.make("job-000000000001")
    size = {"slices": 4096, "hosts": 4096 * here.plan.slice.hosts}
    here.write("job-000000000001", ended=False, slices=4096, place=size)
    assert here.cloud.queued_resource(name) is not None
    attach("job-000000000001").status()
    assert len(here.calls()) <= 3 * (MOST_UNLISTED + 2)  # as many looks as it takes until the store's clock is known
    here.store.put(names.verdict("job-000000000001", 1), CLOSED)
    attach("job-000000000001").status()
    assert here.harm() == []


def test_nor_do_its_hosts_and_its_attempts_decide_how_often_the_store_is_asked(here: Here) -> None:
    slice_ = {**here.plan.slice.to_json(), "hosts": 1 << 16, "chips": 1 << 16}
    profile = {"steps": 1, "seconds": 0.0, "after": 0, "wait": None, "hosts": "all"}
    here.write("job-000000000001", slice=slice_, place={"hosts": 1 << 16}, profile=profile)
    last = 99_999
    ran = {"spent": [0, last - 1, 0, 0], "ran": list(range(1, last))}
    placement = {**here.backend.place(here.plan, "job-000000000001", last), "hosts": 1 << 16}
    fields = {"attempt": last, "boot": "b", "placement": placement, "allowed": 3600.0, "before": ran}
    here.store.put(names.intent("job-000000000001", last), wire.encode(fields))
    handle = attach("job-000000000001")
    for ask in (
        lambda: list(handle.events()),
        lambda: handle.follow(lambda _: None, timeout=0.2),
        handle.cost,
        handle.history,
        handle.profile_dir,
    ):
        before = len(here.cloud.storage.calls)
        ask()
        assert len(here.cloud.storage.calls) - before < 60


def test_another_attempt_of_a_wild_number_is_none(here: Here) -> None:
    here.write("job-000000000001")
    for number in ("0", "-1", "1" * 30, "x"):
        here.store.put(f"{names.intents('job-000000000001')}{number}/intent.json", b"{}")
    handle = attach("job-000000000001")
    assert handle.attempts() == 1
    assert list(handle.events()) == []
    assert [attempt.number for attempt in handle.history()] == [1]
