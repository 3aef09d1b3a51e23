"""One bit of a record flips, on a disk or on its way: whichever it is, nothing is blocked, and nothing is taken for
what it is not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.cli import main
from kinetic_orchestration.errors import BackendError, Corrupt, JobCancelled, JobFailed, KineticError, StoreError
from kinetic_orchestration.jobs import launch
from kinetic_orchestration.jobs.cleanup.reaper import reap
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.jobs.request import draft
from kinetic_orchestration.jobs.watching.decode import read_intent
from kinetic_orchestration.plan.configuration.settings import load
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.identity import of
from kinetic_orchestration.plan.values import Freed
from kinetic_orchestration.protocol import names, wire
from tests.support import bucket

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture(params=["a folder", "a bucket"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "a bucket":
        bucket.pretend(monkeypatch)
    return str(request.param)


def seven() -> int:
    return 7


def fails() -> int:
    return 1 // 0


def waits(until: str) -> int:
    while not Path(until).exists():
        time.sleep(0.02)
    return 7


def submitted(key: str, function: Any = seven, *arguments: Any) -> JobHandle[Any]:
    return JobHandle(
        launch.launch(draft(JobSpec("job", Options(accelerator="cpu", key=key), function, arguments)).open())
    )


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


PLACES = ("first", "middle", "last")  # byte of a record; what is there is another part of it each time


# By which each kind of record comes to each of its places.
TURNS = pytest.mark.parametrize(
    "turn", [0, *(pytest.param(turn, marks=[pytest.mark.slow, pytest.mark.turn]) for turn in range(1, len(PLACES)))]
)


# By which, of a family, each commit plays the first and every seventh.
def first_of(family: Iterable[str]) -> list[Any]:
    first, *others = family
    return [first, *(pytest.param(one, marks=[pytest.mark.slow, pytest.mark.turn]) for one in others)]


def at(data: bytes, place: str) -> bytes:
    return flipped(data, 8 * {"first": 0, "middle": len(data) // 2, "last": len(data) - 1}[place])


def kind_of(name: str) -> str:
    """The kind of a job's record, by its name."""
    folder = name.partition("/")[0]
    return {"identities": "identity", "beats": "beat"}.get(folder, Path(name).name)


def records_of(job: Job, key: str) -> list[str]:
    """Every record of a job that is one object of JSON, and that of its key."""
    prefixes = names.job(job.job_id), names.beats_of(job.job_id)
    found = [entry.name for prefix in prefixes for entry in job.store.list(prefix)]
    whole = [name for name in found if (record := job.store.read(name)) and record.data[:8] == b'{"wire":']
    return [*whole, names.identity(of("local", key).key)]


def test_no_flipped_bit_leaves_a_record_that_is_taken_for_whole() -> None:
    fields = {"attempt": 1, "zone": "us-central1-a", "allowed": 3600.0, "name": "größer"}
    whole = wire.encode(fields)
    for bit in range(8 * len(whole)):
        try:
            found = wire.decode(flipped(whole, bit))
        except wire.Unreadable:
            continue
        assert {name: found.get(name) for name in fields} == fields, "what is in doubt is the checksum's own name"
    older = b'{"wire":1,"attempt":1}'
    assert wire.decode(older) == {"wire": 1, "attempt": 1}


# What becomes of the key of a job whose record was damaged when it had succeeded: ANEW, which is refused in a bucket, as
# its success was seen and would be paid for twice; or SAME, the same job and its value, as it is not asked for that record.
ANEW, SAME = "another job", "the same job"
ENDED = {
    "spec.json": ANEW, "verdict.json": ANEW,
    "intent.json": SAME, "started.json": SAME, "done.json": SAME, "beat": SAME,
    "identity": SAME,  # it is made anew from the records that there are, so that nothing runs twice
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.turn
@TURNS
def test_of_a_job_that_has_ended_any_record_may_be_damaged(
    kind: str, turn: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its value is given, or its key begins anew; of a bucket, a success that was seen is not run again."""
    first = submitted("whole")
    assert first.result() == 7
    kinds = [kind_of(name) for name in records_of(first._job, "whole")]
    assert sorted(kinds) == sorted(ENDED)
    for number, which in enumerate(sorted(kinds)):
        place, key = PLACES[(turn + number) % len(PLACES)], f"ended {which}"
        job = submitted(key)
        assert job.result() == 7
        [name] = [name for name in records_of(job._job, key) if kind_of(name) == which]
        record = job._job.store.read(name)
        assert record is not None, name
        job._job.store.put(name, damaged := at(record.data, place))
        main(["status", job.job_id])
        assert job.job_id in capsys.readouterr().out, name
        main(["cancel", job.job_id])
        reap(job._job.store, job._job.backend, load())
        if ENDED[which] is ANEW and kind == "a bucket":
            with pytest.raises(Corrupt, match="another key"):
                submitted(key).result()
        else:
            again = submitted(key)
            assert again.result() == 7, name
            assert (again.job_id == job.job_id) == (ENDED[which] is SAME), name
        if ENDED[which] is ANEW or which == "identity":
            left = [job._job.store.read(each) for each in (name, f"{name}.damaged")]
            assert damaged in [record.data for record in left if record is not None], name


@pytest.mark.parametrize("place", first_of(PLACES))
def test_the_key_of_a_job_that_failed_begins_anew_also_when_its_identity_is_damaged(kind: str, place: str) -> None:
    """The new job is the generation after the newest with records."""
    job = submitted("fails", fails)
    with pytest.raises((ZeroDivisionError, JobFailed)):  # of a bucket nobody vouches for what would be unpickled
        job.result()
    store, name = job._job.store, names.identity(of("local", "fails").key)
    record = store.read(name)
    assert record is not None
    store.put(name, damaged := at(record.data, place))
    again = submitted("fails")
    assert again.result() == 7
    assert again.job_id == launch.job_id(of("local", "fails"), 2) != job.job_id
    kept, made = store.read(f"{name}.damaged"), store.read(name)
    assert kept is not None and kept.data == damaged
    assert made is not None and wire.decode(made.data)["generation"] == 2


@pytest.mark.parametrize("place", first_of(PLACES))
def test_the_key_of_a_job_that_runs_finds_it_also_when_its_identity_is_damaged(
    kind: str, place: str, tmp_path: Path
) -> None:
    job = submitted("goes on", waits, str(tmp_path / "go"))
    store, name = job._job.store, names.identity(of("local", "goes on").key)
    record = store.read(name)
    assert record is not None
    store.put(name, at(record.data, place))
    again = submitted("goes on", waits, str(tmp_path / "go"))
    assert again.job_id == job.job_id
    (tmp_path / "go").touch()
    assert again.result(timeout=60) == job.result(timeout=60) == 7
    assert again.attempts() == 1


# What becomes of the key of a job that its user has cancelled, one of whose records was damaged while it ran: it was
# cancelled for good, whatever else cannot be read; but of no job that cannot be told any more, nor of a cancellation of
# which nobody can say who wanted it, and whether for good, does that block the key.
RUNNING = {
    "spec.json": ANEW, "intent.json": SAME, "started.json": SAME, "identity": SAME, "beat": SAME,
    "cancel": ANEW, "owner": SAME, "keeper": SAME, "ready": SAME, "refused": SAME, "freed": SAME, "left": SAME,
}  # fmt: skip
# What others write while it runs.
BESIDE = {
    "cancel": (names.cancel, {"reason": "enough", "by": "me", "writer": "w"}),
    "owner": (names.owner, {"writer": "w", "number": 3}),
    "keeper": (names.keeper, {"keeper": "a trigger", "within": 600.0}),
    "ready": (lambda job: names.ready(job, 1), {"since": 1.0, "writer": "w"}),
    "refused": (lambda job: names.refused(job, 1), {"writer": "w"}),
    "freed": (lambda job: names.freed(job, 1), {"writer": "w"}),
    "left": (lambda job: names.left(job, 1), {"writer": "w"}),
}


def test_each_kind_of_record_says_what_becomes_of_its_key(kind: str, tmp_path: Path) -> None:
    job = submitted("running", waits, str(tmp_path / "go"))
    while job.status().value != "RUNNING":
        time.sleep(0.01)
    there = {kind_of(name) for name in records_of(job._job, "running")}
    assert there | BESIDE.keys() == RUNNING.keys()
    (tmp_path / "go").touch()
    assert job.result(timeout=60) == 7


@TURNS
@pytest.mark.parametrize("which", first_of(RUNNING))
def test_of_a_job_that_runs(
    kind: str,
    which: str,
    turn: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Damaged in one place after the other, it can be told of; by then it can be cancelled, nothing of it is left, and
    its key begins anew or is that of a job that was cancelled.
    """
    if which == "owner":  # else nobody looks at it
        monkeypatch.setenv("KINETIC_ON_OWNER_LOST", "abort")
    job = submitted("running", waits, str(tmp_path / "never"))
    store, backend = job._job.store, job._job.backend
    while job.status().value != "RUNNING":
        time.sleep(0.01)
    if which in BESIDE:
        name_of, fields = BESIDE[which]
        name, whole = name_of(job.job_id), wire.encode(fields)
    else:
        [name] = [name for name in records_of(job._job, "running") if kind_of(name) == which]
        record = store.read(name)
        assert record is not None
        whole = record.data
    first = turn + list(RUNNING).index(which)
    for place in [PLACES[(first + number) % len(PLACES)] for number in range(len(PLACES))]:
        store.put(name, at(whole, place))
        main(["status", job.job_id])
        assert job.job_id in capsys.readouterr().out
    main(["cancel", job.job_id])
    assert job.job_id in capsys.readouterr().out
    deadline = time.monotonic() + 60
    while [place for place in backend.leftovers() if place["job"] == job.job_id]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    reap(store, backend, load())
    (tmp_path / "never").touch()
    again = submitted("running", waits, str(tmp_path / "never"))
    if RUNNING[which] is ANEW:
        assert again.result(timeout=60) == 7
        assert again.job_id == launch.job_id(of("local", "running"), 2) != job.job_id
    else:
        assert again.job_id == job.job_id
        with pytest.raises(JobCancelled, match="cancelled by its user"):
            again.result(timeout=60)


def test_an_attempt_whose_intent_is_damaged_is_followed_by_another(kind: str, tmp_path: Path) -> None:
    job = submitted("followed", waits, str(tmp_path / "go"))
    store = job._job.store
    while job.status().value != "RUNNING":
        time.sleep(0.01)
    record = store.read(names.intent(job.job_id, 1))
    assert record is not None
    damaged = flipped(record.data, 8 * 60)
    store.put(names.intent(job.job_id, 1), damaged)
    afresh = submitted("followed", waits, str(tmp_path / "go"))
    assert not afresh.status().final
    (tmp_path / "go").touch()
    assert afresh.result(timeout=60) == 7
    kept = store.read(f"{names.intent(job.job_id, 1)}.damaged")
    assert kept is not None
    assert kept.data == damaged
    verdict = store.read(names.verdict(job.job_id, 1))
    assert verdict is not None
    said = json.loads(verdict.data)["reason"]
    assert "intent.json" in said
    assert f"kept in {names.intent(job.job_id, 1)}.damaged" in said


def damage(store: Any, name: str) -> bytes:
    """Flip a bit in the middle of a record, and return what it then is."""
    record = store.read(name)
    assert record is not None, name
    store.put(name, changed := flipped(record.data, 8 * (len(record.data) // 2)))
    return changed


@pytest.mark.filterwarnings("ignore:deployment.json in .* was damaged")
def test_a_stamp_that_is_damaged_is_made_anew(
    kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And never taken for another deployment's; one that can be read and is another's is refused as ever."""
    job = submitted("stamped")
    assert job.result() == 7
    store = job._job.store
    changed = damage(store, names.DEPLOYMENT)
    monkeypatch.setattr("kinetic_orchestration.platforms.google.storage.store._stamped", {})  # as another process
    assert submitted("stamped too").result() == 7
    assert main(["status", job.job_id]) == 0
    assert job.job_id in capsys.readouterr().out
    kept, made = store.read(f"{names.DEPLOYMENT}.damaged"), store.read(names.DEPLOYMENT)
    assert kept is not None and kept.data == changed
    assert made is not None and wire.decode(made.data)["deployment"] == job._job.store.deployment
    store.put(names.DEPLOYMENT, wire.encode({"deployment": "another"}))
    monkeypatch.setattr("kinetic_orchestration.platforms.google.storage.store._stamped", {})
    with pytest.raises(StoreError, match="is the store of the deployment 'another'"):
        submitted("refused")


@pytest.mark.filterwarnings("ignore:groups/.* is damaged")
@pytest.mark.parametrize("which", [names.group, names.group_end])
def test_a_batch_whose_record_is_damaged_keeps_its_jobs(kind: str, which: Any) -> None:
    batch = kinetic.run(accelerator="cpu")(doubled).run_async_map([1, 2])
    assert batch.results(timeout=60) == [2, 4]
    changed = damage(batch._store, which(batch.group_id))
    again = kinetic.attach_batch(batch.group_id)
    assert again.results(timeout=60) == [2, 4]
    kept = batch._store.read(f"{which(batch.group_id)}.damaged")
    assert kept is not None and kept.data == changed


def doubled(number: int) -> int:
    return 2 * number


@pytest.mark.slow
def test_a_place_that_nobody_could_look_for_is_not_taken_for_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submitted("sought", waits, str(tmp_path / "never"))
    while job.status().value != "RUNNING":
        time.sleep(0.01)
    damage(job._job.store, names.intent(job.job_id, 1))
    with monkeypatch.context() as silent:

        def unheard() -> Any:
            raise BackendError("no answer", "infrastructure")

        silent.setattr(job._job.backend, "leftovers", unheard)
        record = job._job.store.read(names.intent(job.job_id, 1))
        assert record is not None
        intent = read_intent(record, job._job.backend, job.job_id, 1, job._job.within)
        assert intent.placement == {}
        assert actions.release(job._job, 1, intent) is Freed.REFUSED
        assert actions.release(job._job, 1) is Freed.REFUSED
    assert actions.release(job._job, 1, intent) is not Freed.REFUSED
    deadline = time.monotonic() + 60
    while not actions.release(job._job, 1, intent):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not [place for place in job._job.backend.leftovers() if place["job"] == job.job_id]


@pytest.mark.slow
@pytest.mark.turn
@pytest.mark.filterwarnings("ignore:.* damaged")
def test_whatever_else_lies_in_a_store_may_be_damaged(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each object of a job, of its code and of the deployment in turn: all commands work, and the same call again."""
    first = submitted("first")
    assert first.result() == 7
    store, backend = first._job.store, first._job.backend
    reap(store, backend, load())
    folders = ("jobs/", "projects/", "trees/", "live", "reaped.json", "groups/", "beats/")
    found = [entry.name for folder in folders for entry in store.list(folder) if entry.size]
    assert {name.partition("/")[0] for name in found} >= {"jobs", "projects", "trees"}
    for name in dict.fromkeys(found):
        if Path(name).name in ("spec.json", "verdict.json"):  # see above
            continue
        whole = store.read(name)
        assert whole is not None
        damage(store, name)
        assert main(["jobs"]) == 0, name
        main(["status", first.job_id])
        assert first.job_id in capsys.readouterr().out, name
        reap(store, backend, load())
        if Path(name).name == "result":  # which nobody takes for whole
            with pytest.raises(Corrupt, match="is damaged or was changed"):
                JobHandle(first._job).result()
            store.put(name, whole.data)
        assert JobHandle(first._job).result() == 7, name
        if name.startswith("trees/"):  # nor this
            with pytest.raises(KineticError, match=r"It was removed from the store: submit the job again"):
                submitted("meets it").result()
        assert submitted(f"after {name}").result() == 7, name
