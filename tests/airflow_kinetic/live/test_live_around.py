"""The surroundings of a task in a running Airflow: a cloud without capacity, pools, other triggerers, a folder of DAGs
that cannot be written, a database that values are too large for.

Separate from test_live_airflow.py, so that the two run concurrently.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.model.compute.resources import Instance
from tests.airflow_kinetic.live.airflow_servers import Airflow, Component, Run
from tests.airflow_kinetic.live.conftest import HERE, SideBySide, started_airflow
from tests.airflow_kinetic.live.scenes import (
    TOLERATED,
    Scenes,
    begin,
    begun,
    check_lines,
    go,
    jobs,
    lines,
    seconds,
    starts,
)
from tests.dagster_kinetic.live.browser import chromium, page_of, picture
from tests.support.on_compute import free_rest

pytestmark = [pytest.mark.slow, pytest.mark.turn(8), pytest.mark.timeout(3600), TOLERATED]

DAGS = 7
FULL, FREE = "us-west4-a", "us-central1-a"
PROJECT = "project-of-the-connection"
HOSTS = 4
NUMBERS = 60_000
LAST = 1_500  # lines
SETTLED = 15.0  # seconds after which a trigger fires as soon as its job has ended
XCOM_LIMIT = 49_152  # the default
POURED = 200  # lines of each host
AGAIN = 1_800  # lines that a trigger which takes over writes at most
REFILLED = 6.0  # seconds after which a triggerer's budget is as before a pour

SCENES = scene = Scenes()


@pytest.fixture(scope="module")
def cloud() -> Iterator[Emulator]:
    with Emulator(zones=(FULL, FREE), python=sys.executable) as cloud:
        yield cloud
        cloud.clear_faults()
        free_rest(cloud, cloud.environ(project=PROJECT, deployment="live", backend="compute"))
        cloud.ledger.assert_nothing_left()


@pytest.fixture(scope="module")
def servers(
    cloud: Emulator, shared_home: Path, database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Airflow]:
    """A running Airflow with a cloud that only a connection names, and a DAGs folder that none of its processes can
    write to."""
    folder = tmp_path_factory.mktemp("around")
    dags = shutil.copytree(HERE / "dags_around", folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    connection = {"conn_type": "google_cloud_platform", "extra": {"is_anonymous": True, "project": PROJECT}}
    environ = {
        "KINETIC_HOME": str(shared_home),
        "LIVE_TEST_STORE": cloud.environ(project=PROJECT)["KINETIC_STORE"],
        "AIRFLOW_CONN_OF_THE_CLOUD": json.dumps(connection),
        **cloud.addresses(),
    }
    # Root may write wherever it likes, but for this.
    as_anybody = ("setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override") if os.geteuid() == 0 else ()
    everything = [dags, *dags.rglob("*")]
    for path in everything:
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        with started_airflow(folder, dags, DAGS, database, environ, as_anybody) as started:
            yield started
    finally:
        for path in everything:
            path.chmod(path.stat().st_mode | stat.S_IWUSR)


# ---- a cloud ---------------------------------------------------------------------------------------------------------


@pytest.mark.turn(6)
@scene
def test_a_stockout_and_a_preemption_are_told_in_the_tasks_log_and_spend_no_retry(
    airflow: Airflow, folder: Path, cloud: Emulator
) -> None:
    cloud.stockout(FULL)
    cloud.stockout(FREE, "wait")
    with killed_if_it_fails(begin(airflow, folder, "weekly_ranker", name="ranker-2026-11-22")) as run:
        run.wait("deferred")
        run.wait_for(f"kinetic: queued: stockout: {FULL}")
        airflow.until(lambda: [each["name"].split("/")[3] for each in cloud.queued_resources()] == [FREE])
        links = run.links()
        console = "https://console.cloud.google.com"
        begins = {
            "Kinetic job": f"{console}/storage/browser/emulated/kinetic/live/jobs/job-",
            "Kinetic log": f"{console}/storage/browser/emulated/kinetic/live/jobs/job-",
            "Google Cloud console": f"{console}/compute/tpus?project={PROJECT}",
        }
        for name, begin_of_link in begins.items():
            assert links[name].startswith(begin_of_link), name
        if chromium():
            sees_the_links(airflow, run, folder, {name: links[name] for name in begins})
        assert run.task()["state"] == "deferred", "all of this was live"
        assert not cloud.nodes()

        cloud.restock(FREE)
        run.wait_for("step 4 is done")
        run.wait_for("kinetic: running: 4 hosts")
        [node] = cloud.nodes()
        cloud.preempt(str(node["name"]), notice=30.0)
        airflow.until(lambda: run.text().count("kinetic: running: 4 hosts") > 1, about=run.text)
        assert "kinetic: resuming: " in run.text()
        assert run.task()["state"] == "deferred", "while it was told"
        go(folder)
        task = run.wait("success")
        assert (task["try_number"], task["max_tries"]) == (1, 2)

    text = run.text()
    full = f"kinetic: queued: stockout: {FULL}: There is no more capacity in the zone"
    running, resuming = "kinetic: running: 4 hosts", "kinetic: resuming: attempt 1 ended (preemption on host "
    # What hosts say stands at their times, and may come before it is seen that all of them run.
    for story in (
        ("Pausing task as DEFERRED", full, running, resuming, running, "kinetic: succeeded"),
        (full, "goes on after step 0 of gs://", resuming, "goes on after step ", "kinetic: succeeded"),
    ):
        at = 0
        for told in story:
            at = text.find(told, at) + len(told)
            assert at >= len(told), f"{told}\n{text}"
    assert text.count("Pausing task as DEFERRED") == 1
    value = run.value()
    assert value["begun"] >= 4
    assert value["steps"] == value["begun"] + 6, "no step was made twice, and none was left out"
    said = ((re.match(r"goes on after step (\d+) of (gs://\S+)", str(each["event"])), each) for each in run.log())
    begun = [(int(match[1]), match[2], each.get("attempt"), each["host"]) for match, each in said if match]
    assert {kept for _, kept, *_ in begun} == {value["kept"]}
    assert {(step, attempt) for step, _, attempt, _ in begun} == {(0, None), (value["begun"], 2)}
    assert sorted(host for *_, host in begun) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert cloud.count("CreateQueuedResource") == 3, "one in the full zone, and one for each attempt in the other"
    assert cloud.ledger.count("created", "node") == 2


@contextmanager
def killed_if_it_fails(run: Run) -> Iterator[Run]:
    """So that its job does not outlive the test."""
    try:
        yield run
    except BaseException:
        run.mark("failed")
        raise


def sees_the_links(airflow: Airflow, run: Run, folder: Path, links: dict[str, str]) -> None:
    """A person, in the page of a task whose job is queued."""
    with page_of(f"{airflow.url}/api/v2/version") as page:
        page.context.add_cookies([{"name": "_token", "value": airflow.token, "url": airflow.url}])
        page.goto(f"{airflow.url}/{run.path.replace('dagRuns', 'runs')}/tasks/train")
        page.get_by_text(f"stockout: {FULL}").first.wait_for()
        page.get_by_role("link", name="Details").click()
        page.get_by_text("Deferred").first.wait_for()
        for name, url in links.items():
            link = page.get_by_role("link", name=name)
            link.wait_for()
            assert link.get_attribute("href") == url
        picture(page, folder, "airflow-queued")


# ---- VMs -------------------------------------------------------------------------------------------------------------


@pytest.mark.turn(6)
@scene
def test_tasks_on_a_gpu_and_on_a_slice_of_vms_are_deferred_resumed_after_a_preemption_and_cancelled(
    airflow: Airflow, folder: Path, cloud: Emulator
) -> None:
    for task_id in ("on_a_gpu", "on_a_slice"):
        (folder / task_id).mkdir()
    with killed_if_it_fails(begin(airflow, folder, "on_vms")) as run:
        airflow.until(lambda: "step 4 is done" in run.text(task_id="on_a_gpu"), about=lambda: logs_of(run))
        [vm] = vms_of(cloud, run, "on_a_gpu")
        assert vm.machine_type.name == "g2-standard-4"
        cloud.compute.preempt(vm.name, notice=2.0)

        airflow.until(lambda: hosts_in(run, "on_a_slice") == set(range(HOSTS)), about=lambda: logs_of(run))
        slice_ = vms_of(cloud, run, "on_a_slice")
        assert [vm.machine_type.name for vm in slice_] == ["ct6e-standard-4t"] * HOSTS
        assert run.task("on_a_slice")["state"] == "deferred"
        assert "/compute/instances?project=" in run.links("on_a_slice")["Google Cloud console"]
        run.mark_task("failed", task_id="on_a_slice")
        cloud.wait_until(lambda: not vms_of(cloud, run, "on_a_slice"), 150.0, "the end of the slice")

        airflow.until(lambda: "goes on after step " in run.text(task_id="on_a_gpu").partition("resuming: ")[2])
        assert run.task("on_a_gpu")["state"] == "deferred", "all of this was live"
        go(folder / "on_a_gpu")
        assert run.wait("success", task_id="on_a_gpu")["try_number"] == 1, "a preemption spends no retry"
        run.wait("success", task_id="steps")
    value = run.value("on_a_gpu")
    assert value["begun"] >= 4 and run.value("steps") == value["steps"] == value["begun"] + 6
    assert run.value("on_a_gpu", key="kinetic_where")


def vms_of(cloud: Emulator, run: Run, task_id: str) -> list[Instance]:
    """The VMs of a task."""
    wanted = {"step": task_id, "pipeline": run.dag_id}
    return [vm for vm in cloud.compute.instances.values() if wanted.items() <= vm.labels.items()]


def hosts_in(run: Run, task_id: str) -> set[int]:
    """The hosts whose lines the task's log has so far."""
    records = run.log(task_id=task_id) if run.task(task_id)["try_number"] else []
    return {int(record.get("host", 0)) for record in records if str(record.get("event")).startswith("step 1 at ")}


def logs_of(run: Run) -> str:
    """The logs of both tasks."""
    return "\n".join(run.text(task_id=task_id) for task_id in ("on_a_gpu", "on_a_slice"))


# ---- pools -----------------------------------------------------------------------------------------------------------


@scene
def test_a_deferred_task_holds_its_slot_of_a_pool_only_if_the_pool_says_so(airflow: Airflow, folder: Path) -> None:
    for name in ("frees", "keeps"):
        airflow.ask("POST", "pools", {"name": name, "slots": 1, "include_deferred": name == "keeps"})
        for number in (1, 2):
            (folder / f"{name}_{number}").mkdir()
    run = begin(airflow, folder, "in_pools")
    airflow.until(lambda: states(run, "frees") == ["deferred", "deferred"], about=run.tasks)
    airflow.until(lambda: starts(folder / "frees_1") and starts(folder / "frees_2"))
    airflow.until(lambda: states(run, "keeps") == ["deferred", "scheduled"], about=run.tasks)
    first, second = sorted(("keeps_1", "keeps_2"), key=lambda task_id: run.task(task_id)["state"])
    airflow.until(lambda: starts(folder / first))
    assert states(run, "keeps") == ["deferred", "scheduled"]
    assert not starts(folder / second)
    go(folder / first)
    run.wait("deferred", task_id=second)
    for task_id in ("frees_1", "frees_2", second):
        go(folder / task_id)
    for task_id in ("frees_1", "frees_2", first, second):
        run.wait("success", task_id=task_id)
    assert seconds(run.task(second)["start_date"]) >= seconds(run.task(first)["end_date"])


def states(run: Run, pool: str) -> list[str]:
    return sorted(str(task["state"]) for task in run.tasks() if task["task_id"].startswith(pool))


# ---- folders and values ----------------------------------------------------------------------------------------------


@scene
def test_functions_travel_from_a_folder_of_dags_that_nobody_can_write(airflow: Airflow, folder: Path) -> None:
    dags = Path(airflow.components["scheduler"].environ["AIRFLOW__CORE__DAGS_FOLDER"])
    before = {str(path.relative_to(dags)): path.stat().st_mtime_ns for path in (dags, *dags.rglob("*"))}
    run = begin(airflow, folder, "of_a_package")
    assert run.wait("success", task_id="of_the_file")["try_number"] == 1
    assert run.value("writes") == "PermissionError", "else the folder can be written"
    assert (run.value("fit"), run.value("of_the_file")) == (6, 7)
    assert "fits in a package of the bundle" in str(run.log(task_id="fit"))
    after = {str(path.relative_to(dags)): path.stat().st_mtime_ns for path in (dags, *dags.rglob("*"))}
    assert after == before
    assert "fitting/steps.py" in before


@scene
def test_a_large_value_stays_in_the_store_and_its_uri_is_what_others_get(airflow: Airflow, folder: Path) -> None:
    run = begin(airflow, folder, "large_value")
    run.wait("success", task_id="reads")
    uri = run.value("embeds")
    assert re.fullmatch(r"gs://emulated/kinetic/live/jobs/job-\w+/out/1/hosts/0/result", uri)
    assert run.value("reads") == sum(range(NUMBERS)), "it was read by a task after it"
    longest = longest_of_database(airflow.home / "airflow.db")
    assert longest < XCOM_LIMIT < len(json.dumps(list(range(NUMBERS)))), "the value is in no row of any table"


def longest_of_database(path: Path) -> int:
    """The longest value in any column of any table."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=120)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        longest = 0
        for table in tables:
            columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
            for column in columns:
                [(found,)] = database.execute(f'SELECT max(length("{column}")) FROM "{table}"')
                longest = max(longest, found or 0)
    return longest


# ---- the end of a log ------------------------------------------------------------------------------------------------


@scene
def test_the_last_words_of_a_job_are_in_the_tasks_log_however_many_they_are(airflow: Airflow, folder: Path) -> None:
    """Airflow closes the log of a task as soon as its trigger has ended, though lines may still be on their way."""
    with begun(airflow, folder, "last_words") as run:
        run.wait("deferred")
        deferred = time.monotonic()
        run.wait_for("step -1")
        airflow.until(lambda: time.monotonic() - deferred > SETTLED)
        go(folder)
        run.wait("success")
    assert [step for _, step, *_ in lines(run)] == list(range(LAST))


# ---- two triggerers --------------------------------------------------------------------------------------------------


def test_of_two_triggerers_the_one_that_holds_a_task_is_killed_and_the_other_goes_on(
    servers: Airflow, side_by_side: SideBySide, tmp_path: Path
) -> None:
    """The job has printed more lines than the second triggerer writes again."""
    side_by_side.over()
    first = servers.components["triggerer"]
    with begun(servers, tmp_path, "two_triggerers") as run:
        run.wait("deferred")
        servers.until(lambda: {host for host, *_ in lines(run)} == set(range(HOSTS)), about=run.text)
        second = servers.components["second-triggerer"] = first.another("second-triggerer")
        second.start()
        for number in (1, 2, 3):
            pour(run, tmp_path, number)
            poured = time.monotonic()
            servers.until(lambda since=poured: time.monotonic() - since > REFILLED)
        servers.until(lambda: servers.ask("GET", "jobs?job_type=TriggererJob&is_alive=true")["total_entries"] == 2)
        held = run.task()["triggerer_job"]["id"]
        assert holds(first, held) and not holds(second, held)
        first.kill()
        servers.until(lambda: (run.task()["triggerer_job"] or {"id": held})["id"] != held, about=run.task)
        back = time.time()
        servers.until(lambda: lines(run)[-1][2] > back, about=run.text)
        assert run.task()["state"] == "deferred"
        go(tmp_path)
        assert run.wait("success")["try_number"] == 1
    check_lines(run, hosts=HOSTS, steps=run.value()["steps"])
    assert len(lines(run)) > 3 * HOSTS * POURED
    assert "left out here" not in run.text()
    assert len(jobs(run)) == 1
    assert len(starts(tmp_path)) == HOSTS
    [again] = [record for record in run.log() if "not written again" in str(record.get("event"))]
    written = written_by_another(servers, run, held)
    for steps in written.values():
        assert steps == list(range(steps[0], steps[-1] + 1)), "nothing is missing once it began"
    assert int(str(again["event"]).split()[0]) == sum(steps[0] for steps in written.values())
    assert sum(map(len, written.values())) > AGAIN


def pour(run: Run, folder: Path, number: int) -> None:
    """Let all hosts say many lines at once, and wait until they are shown."""
    (folder / f"pour-{number}").touch()
    run.airflow.until(lambda: len(lines(run)) > number * HOSTS * POURED, about=run.text)


def holds(triggerer: Component, number: int) -> bool:
    """Return True if it writes the log of a task that is held by the triggerer of that number."""
    assert triggerer.process is not None
    for pid in (triggerer.process.pid, *(process.pid for process in triggerer.below())):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            if str(file.resolve()).endswith(f".trigger.{number}.log"):
                return True
    return False


def written_by_another(airflow: Airflow, run: Run, triggerer: int) -> dict[int, list[int]]:
    """The steps of each host in the file of the trigger that took over from that triggerer, by their time."""
    files = airflow.home.rglob(f"run_id={run.run_id}/**/*.trigger.*.log")
    [file] = [path for path in files if not path.name.endswith(f".trigger.{triggerer}.log")]
    steps: dict[int, list[int]] = {}
    for record in sorted(map(json.loads, file.read_text().splitlines()), key=lambda record: str(record["timestamp"])):
        if match := re.match(r"step (\d+) at", str(record["event"])):
            steps.setdefault(record["host"], []).append(int(match[1]))
    return steps
