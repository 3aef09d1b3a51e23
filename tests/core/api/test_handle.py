"""Handles, where things are not as they should be: addresses instead of ids, damaged records, odd streams."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api import links
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.api.opening import split_address
from kinetic_orchestration.cli import codes, main
from kinetic_orchestration.errors import (
    ConflictingSettings,
    JobCancelled,
    JobFailed,
    JobNotFound,
    NewerWire,
    UsageError,
)
from kinetic_orchestration.jobs.results import collect
from kinetic_orchestration.platforms.local.store import LocalStore
from kinetic_orchestration.protocol import names
from tests.support.waits import wait_until

pytestmark = pytest.mark.usefixtures("shared_home")

PATIENCE = 60.0
BY_DIGEST = ("blobs/", "trees/")


@kinetic.run(accelerator="cpu")
def seven() -> int:
    print("seven")
    return 7


@kinetic.run(accelerator="cpu")
def until(flag: str) -> str:
    while not os.path.exists(flag):
        time.sleep(0.01)
    return "done"


@kinetic.run(accelerator="cpu")
def spoils_its_own_record() -> int:
    host = kinetic.current()
    record = Path(host.output_dir).parents[1] / names.host(host.job_id, host.attempt, 0, "started.json")
    record.unlink()
    record.write_text('{"wire": 99}')  # as of a later version
    return 7


@pytest.fixture(scope="module")
def done(shared_home: Path) -> JobHandle[int]:
    job = seven.run_async()
    assert job.result(timeout=PATIENCE) == 7
    return job


@pytest.fixture
def live(shared_home: Path, tmp_path: Path) -> Iterator[JobHandle[str]]:
    """A job that runs until the test is over."""
    job = until.run_async(str(tmp_path / "flag"))
    yield job
    (tmp_path / "flag").touch()
    wait_until(lambda: job._job.store.read(names.verdict(job.job_id, 1)))


def result_of(job: JobHandle[Any]) -> str:
    """Airflow's XCom value for a result that is no small JSON."""
    return Path(job._job.store.url, names.host(job.job_id, 1, 0, "result")).as_uri()


def spoil_intent(job: JobHandle[Any]) -> Callable[[], None]:
    """Make the job impossible to follow; the hosts are not affected. Returns a function that repairs it."""
    path = Path(job._job.store.url) / names.intent(job.job_id, 1)
    wait_until(path.exists)
    kept, new = path.read_bytes(), path.with_suffix(".new")

    def write(data: bytes) -> None:
        new.write_bytes(data)
        new.replace(path)

    write(b'{"wire": 99}')  # as of a later version
    return lambda: write(kept)


# ---- addresses -----------------------------------------------------------------------------------------------------


def test_an_address_in_a_store_is_as_good_as_an_id_wherever_jobs_are_kept_here(
    done: JobHandle[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = done._job.store.url
    monkeypatch.setenv("KINETIC_STORE", str(tmp_path / "another"))
    with pytest.raises(JobNotFound):
        kinetic.attach(done.job_id)
    for address in (
        result_of(done),
        f"{store}/{names.job(done.job_id)}",
        links.browse(store, names.job(done.job_id)),  # and a button of Airflow's
        done.output_dir,
        f"{store}/{names.picture(done.job_id)}",
    ):
        assert kinetic.attach(address).result(timeout=PATIENCE) == 7, address
    again = kinetic.attach(f"{store}/{names.spec(done.job_id)}", store=os.path.dirname(store), deployment="local")
    assert again.job_id == done.job_id


def test_commands_take_an_address_too(
    done: JobHandle[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KINETIC_STORE", str(tmp_path / "another"))
    address = result_of(done)
    for command, told in (("status", "SUCCEEDED"), ("logs", "seven"), ("result", "7"), ("cancel", "SUCCEEDED")):
        assert main([command, address]) == codes.OK
        assert told in capfd.readouterr().out, command


def test_an_address_that_leads_elsewhere_is_refused_with_what_to_set(done: JobHandle[int], tmp_path: Path) -> None:
    address = f"{tmp_path}/absent/local/jobs/{done.job_id}/out/1/hosts/0/result"
    with pytest.raises(
        JobNotFound, match=r"no store of the deployment 'local' in .*absent.* KINETIC_STORE and KINETIC_"
    ):
        kinetic.attach(f"file://{address}")
    assert not (tmp_path / "absent").exists()
    with pytest.raises(JobNotFound, match="is not a folder of this machine"):
        kinetic.attach(f"file://another-host{address}")
    with pytest.raises(ConflictingSettings, match=r"'other' in .* is given: leave that out"):
        kinetic.attach(done.output_dir, deployment="other")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_no_store_because_an_address_names_it(
    done: JobHandle[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values in a store are unpickled."""
    folder = tmp_path / "theirs" / "local"
    folder.mkdir(parents=True)
    (folder / names.DEPLOYMENT).write_bytes(Path(done._job.store.url, names.DEPLOYMENT).read_bytes())
    os.chown(folder, 12345, -1)
    address = f"{folder}/jobs/{done.job_id}"
    with pytest.raises(UsageError, match=rf"belongs to another user.* set KINETIC_STORE={folder.parent}"):
        kinetic.attach(address)
    os.chown(folder, os.getuid(), -1)
    folder.chmod(0o1777)
    with pytest.raises(UsageError, match=r"any user may write to it"):
        kinetic.attach(address)
    for spelling in (f"file://localhost{address}", f"FILE://{address}"):
        with pytest.raises(UsageError, match=r"any user may write to it"):
            kinetic.attach(spelling)
    monkeypatch.setenv("KINETIC_STORE", str(folder.parent))
    with pytest.raises(JobNotFound, match=f"no job '{done.job_id}'"):
        kinetic.attach(address)


def test_an_address_in_a_bucket_and_its_pages_in_the_console_name_the_same_job() -> None:
    store = "gs://bucket/a folder/team"
    wanted = "job-0123456789ab", {"store": "gs://bucket/a folder", "deployment": "team"}
    for address in (
        f"{store}/jobs/job-0123456789ab/out/2/hosts/0/result",
        f"{store}/jobs/job-0123456789ab",
        f"{store}/outputs/job-0123456789ab/model.keras",
        links.browse(store, "jobs/job-0123456789ab/"),
        links.view(store, names.picture("job-0123456789ab")),
    ):
        assert split_address(address) == wanted, address
    assert split_address("gs://bucket/team/jobs/job-0123456789ab")[1] == {"store": "gs://bucket", "deployment": "team"}
    assert split_address("gs://bucket//team/jobs/job-0123456789ab")[1] == {"store": "gs://bucket", "deployment": "team"}
    for text in ("job-0123456789ab", "0123", "jobs/job-0123456789ab", "gs://bucket/model.keras", ""):
        assert split_address(text, store="s") == (text, {"store": "s"})


def test_who_trusts_a_store_trusts_no_other_one_that_an_address_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_TRUST_STORE", "true")
    monkeypatch.setenv("KINETIC_STORE", "gs://mine")
    assert split_address("gs://mine/team/jobs/job-0123456789ab")[0] == "job-0123456789ab"
    with pytest.raises(UsageError, match="set KINETIC_STORE=gs://theirs"):
        split_address("gs://theirs/team/jobs/job-0123456789ab")


# ---- what is damaged -------------------------------------------------------------------------------------------------


def test_a_value_is_not_kept_back_because_its_cost_is_not_known(capfd: pytest.CaptureFixture[str]) -> None:
    assert spoils_its_own_record() == 7
    told = capfd.readouterr().err
    assert "kinetic: what it cost is not known: jobs/job-" in told


def test_one_damaged_record_hides_no_other_job(done: JobHandle[int], capfd: pytest.CaptureFixture[str]) -> None:
    spoiled = spoils_its_own_record.run_async()
    assert spoiled.result(timeout=PATIENCE) == 7
    capfd.readouterr()
    assert main(["jobs", "--all"]) == codes.OK
    shown = capfd.readouterr()
    assert done.job_id in shown.out
    assert f"{spoiled.job_id} is left out: " in shown.err
    assert main(["cost", "--jobs", "--json"]) == codes.OK
    shown = capfd.readouterr()
    told = [job["job_id"] for job in json.loads(shown.out)["jobs"]]
    assert done.job_id in told
    assert spoiled.job_id not in told
    assert f"{spoiled.job_id} is left out: " in shown.err


def test_a_job_that_cannot_be_followed_is_cancelled_all_the_same(
    live: JobHandle[str], done: JobHandle[int], capfd: pytest.CaptureFixture[str]
) -> None:
    mend = spoil_intent(live)
    with pytest.warns(UserWarning, match=f"{live.job_id} is left out"):
        assert live.job_id not in {job.job_id for job in kinetic.list_jobs()}
    with pytest.raises(NewerWire, match=r"intent\.json.*wire version 99"):
        live.cancel("enough")
    wait_until(lambda: live._job.store.read(names.verdict(live.job_id, 1)))
    mend()
    with pytest.raises(JobCancelled, match="enough"):
        live.result(timeout=PATIENCE)


def test_the_command_asks_all_jobs_to_end_though_one_cannot_be_followed(
    live: JobHandle[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = until.run_async(str(tmp_path / "flag"))
    mend = spoil_intent(live)
    assert main(["cancel", live.job_id, other.job_id]) == codes.ENVIRONMENT
    assert "wire version 99" in capfd.readouterr().err
    mend()
    for job in (live, other):
        with pytest.raises(JobCancelled):
            job.result(timeout=PATIENCE)


@kinetic.run(accelerator="cpu")
def fails() -> None:
    raise ValueError("the learning rate is negative")


class Far(LocalStore):
    """Like a bucket: nothing in it can be read where it lies."""

    def local_path(self, name: str) -> None:
        return None


def test_what_a_job_raised_is_told_though_the_exception_itself_is_gone() -> None:
    job = fails.run_async()
    outcome = job.follow(timeout=PATIENCE)
    assert outcome is not None
    store = job._job.store
    assert isinstance(store, LocalStore)
    store.delete(names.host(job.job_id, 1, 0, "exception"))
    far = Far(store.root, store.deployment)
    for where in (store, far):
        with pytest.raises(JobFailed, match=r"ValueError: the learning rate is negative \(.*could not come back"):
            collect(replace(job._job, store=where), outcome)


# ---- odd surroundings ------------------------------------------------------------------------------------------------

SPEAKS = """
import kinetic_orchestration as kinetic

@kinetic.run(accelerator="cpu")
def speaks():
    print("\\u00e9 and \\u03c0")
    return 7

if __name__ == "__main__":
    assert speaks() == 7
"""


def test_a_terminal_that_cannot_show_a_character_ends_no_wait(tmp_path: Path) -> None:
    """Output has such an encoding under cron, or in a container without a locale."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "speaks.py").write_text(SPEAKS)
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    called = subprocess.run(
        [sys.executable, "speaks.py"], cwd=tmp_path, env=environ, capture_output=True, timeout=PATIENCE, check=False
    )
    assert called.returncode == 0, called.stderr
    assert rb"\xe9 and \u03c0" in called.stdout


def test_a_timeout_may_be_a_text_as_everywhere(live: JobHandle[str]) -> None:
    with pytest.raises(TimeoutError, match=r"within 0\.05 s"):
        live.result(timeout="0.05s")  # type: ignore[arg-type]


def test_a_handle_that_travels_knows_its_place_in_its_batch() -> None:
    batch = seven.run_async_map([(), ()], input_mode="args")
    again = [pickle.loads(pickle.dumps(job)) for job in batch.jobs]
    assert [(job.group_id, job.group_index) for job in again] == [(batch.group_id, 0), (batch.group_id, 1)]
    assert batch.results(timeout=PATIENCE) == [7, 7]


def test_a_key_of_a_job_that_goes_on_with_another_choice_says_so(tmp_path: Path) -> None:
    flag = str(tmp_path / "other")
    first = kinetic.run(accelerator=["cpu", "cpu:2"], key="choice")(until.__kinetic_function__).run_async(flag)
    told = rf"{first.job_id}.* hardware cpu or cpu:2, not cpu:2 or cpu.* give another key"
    with pytest.warns(UserWarning, match=told):
        turned = kinetic.run(accelerator=["cpu:2", "cpu"], key="choice")(until.__kinetic_function__).run_async(flag)
    with pytest.warns(UserWarning, match=rf"{first.job_id}.* order order, not price.* another"):
        kinetic.run(accelerator=["cpu", "cpu:2"], by="price", key="choice")(until.__kinetic_function__).run_async(flag)
    Path(flag).touch()
    assert turned.job_id == first.job_id and turned.result(timeout=PATIENCE) == "done"


def test_a_key_of_a_job_that_goes_on_with_another_slice_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flag = str(tmp_path / "other")
    first = kinetic.run(accelerator="cpu", key="sweep")(until.__kinetic_function__).run_async(flag)
    assert f"kinetic: {first.job_id} runs until on cpu" in capfd.readouterr().err
    same = kinetic.run(accelerator="cpu", key="sweep")(until.__kinetic_function__).run_async(flag)
    assert (
        f"kinetic: {first.job_id} was submitted before, by the same key, and is until on cpu" in capfd.readouterr().err
    )
    larger = kinetic.run(accelerator="v5e-1", key="sweep")(until.__kinetic_function__)
    with pytest.warns(UserWarning, match=rf"{first.job_id}.* hardware cpu.*, not v5e-1.* give another key"):
        other = larger.run_async(flag)
    assert first.job_id == same.job_id == other.job_id
    Path(flag).touch()
    assert other.result(timeout=PATIENCE) == "done"
    assert larger(flag) == "done"  # of one that has ended there is nothing to say


def test_every_record_of_a_store_names_the_release_that_wrote_it(
    done: JobHandle[int], live: JobHandle[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """The client's and the agent's, of jobs that succeed and are cancelled, and of a batch. A tree is the same whoever
    writes it: its name is its digest."""
    live.cancel("enough")
    batch = kinetic.run(accelerator="cpu")(lambda: 7).run_async_map([()])
    assert batch.results() == [7]
    mine = (done.job_id, live.job_id, batch.jobs[0].job_id)  # of others these tests have spoiled records
    root = Path(done._job.store.url)
    texts = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    found = {
        name: json.loads(data)
        for name, data in texts.items()
        if data[:1] == b"{"
        and not name.startswith(BY_DIGEST)
        and ("job-" not in name or any(job in name for job in mine))
    }
    kinds = {re.sub(r"job-\w+|grp-\w+|[0-9a-f]{16,}|\d+", "*", name) for name in found}
    assert kinds >= {
        "deployment.json", "projects/*.json", "identities/*.json", "groups/*.json", "jobs/*/in/spec.json",
        "jobs/*/in/attempts/*/intent.json", "jobs/*/in/cancel.json", "jobs/*/attempts/*/verdict.json", "beats/*/*/*",
        "jobs/*/out/*/hosts/*/started.json", "jobs/*/out/*/hosts/*/done.json",
    }  # fmt: skip
    assert {name: fields.get("release") for name, fields in found.items()} == dict.fromkeys(found, kinetic.__version__)
    assert main(["status", done.job_id, "--json"]) == codes.OK
    assert json.loads(capfd.readouterr().out)["release"] == done.release == kinetic.__version__


def test_a_job_of_the_first_version_names_no_release_and_status_says_whose_it_is(
    shared_home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = seven.run_async()
    assert job.result(timeout=PATIENCE) == 7
    assert main(["status", job.job_id]) == codes.OK
    assert "by release" not in capfd.readouterr().out
    spec = Path(job._job.store.url) / names.spec(job.job_id)
    fields = {name: value for name, value in json.loads(spec.read_bytes()).items() if name not in ("sum", "release")}
    for more, told in ({}, "0.1"), ({"release": "0.0.9"}, "0.0.9"):
        spec.unlink()
        spec.write_text(json.dumps({**fields, **more}))
        assert main(["status", job.job_id]) == codes.OK
        assert f", by release {told}\n" in capfd.readouterr().out
