"""The view of a user in the browser, while a job runs, after it, and when it has failed."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kinetic_orchestration.protocol.report.curves import WIDTH
from tests.dagster_kinetic.live.browser import chromium, page_of, picture
from tests.dagster_kinetic.live.dagster_server import DagsterDev

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

FOLDER = Path(tempfile.gettempdir(), f"kinetic-live-ui-{os.getpid()}")
DEFINITIONS = Path(__file__).parent / "ui_definitions.py"
DAGSTER_ENVIRONMENT = {"KINETIC_TEST_FOLDER": str(FOLDER)}
WITHIN = 240.0  # for whatever has to come: the machine may be busy

pytestmark = [
    pytest.mark.slow,
    pytest.mark.turn(3),
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not chromium(), reason="there is no chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module", autouse=True)
def folder() -> Iterator[Path]:
    FOLDER.mkdir()
    yield FOLDER
    (FOLDER / "go").unlink(missing_ok=True)
    FOLDER.rmdir()


def test_a_training_is_seen_while_it_runs_and_after_it(dagster_dev: DagsterDev, pictures: Path, folder: Path):
    run = dagster_dev.launch(assets=["ranker"])
    dagster_dev.until(lambda: "[host 3] step 5 done" in dagster_dev.captured(run, "ranker")[0], WITHIN)
    dagster_dev.until(lambda: len(dagster_dev.asset("ranker")["assetObservations"]) >= 2, WITHIN)
    try:
        with page_of(f"{dagster_dev.url}/runs/{run}") as page:
            for text in ("running: 4 hosts", "runs ranker on v5e-16"):
                page.get_by_placeholder("Filter…", exact=True).fill(text)
                page.get_by_text(text).first.wait_for()
            picture(page, pictures, "run-events")
            page.goto(f"{dagster_dev.url}/runs/{run}")
            choose_log(page, "ranker")
            page.get_by_text("[host 3] step").first.wait_for()
            picture(page, pictures, "run-stdout")
            page.goto(f"{dagster_dev.url}/runs/{run}")
            choose_log(page, "ranker [host 2]", names=[f"ranker [host {host}]" for host in range(4)])
            page.get_by_text("host 2 of 4 joined").first.wait_for()
            picture(page, pictures, "run-host")
            page.goto(f"{dagster_dev.url}/assets/ranker")
            plots_of(page, "loss", "accuracy")
            picture(page, pictures, "asset-while-it-runs")
        assert dagster_dev.status(run) == "STARTED"  # all of this was live
    finally:
        (folder / "go").touch()
    assert dagster_dev.wait(run) == "SUCCESS"

    observed = dagster_dev.asset("ranker")["assetObservations"]
    last = {entry["label"]: entry for entry in observed[0]["metadataEntries"]}
    assert last["loss"]["__typename"] == last["accuracy"]["__typename"] == "FloatMetadataEntry"
    assert last["odd"]["text"] == "nan"  # a plot takes none, and the page must stand it
    seconds = (float(observed[0]["timestamp"]) - float(observed[-1]["timestamp"])) / 1000
    assert len(observed) <= 1.1 * seconds + 5  # of five each second
    out, _ = dagster_dev.captured(run, "ranker")
    reported = [int(step) for step in re.findall(r"^\[host 0\] metrics step (\d+):", out, re.M)]
    assert reported == list(range(len(reported)))  # nothing is lost on the way
    assert last["step"]["intValue"] == reported[-1]
    for host in range(4):
        alone, _ = dagster_dev.captured(run, f"ranker [host {host}]")
        assert alone.splitlines() == re.findall(rf"^\[host {host}\] ((?!metrics|progress).*)$", out, re.M)

    with page_of(f"{dagster_dev.url}/assets/ranker?view=events") as page:
        page.get_by_text("kinetic/job_id").first.wait_for()
        for name in ("accelerator", "attempts", "queued_seconds", "running_seconds", "chip_hours", "cost"):
            assert page.get_by_text(re.compile(f"^~?kinetic/{name}$")).count(), name
        spark = page.locator("img[alt='loss']").first
        assert width_of(spark) == 240  # it was drawn, and in its place
        picture(page, pictures, "asset")
        page.locator("tr", has_text="kinetic/curves").get_by_text("[Show Markdown]").first.click()
        curves = page.locator("img[alt='metrics']").first
        assert width_of(curves) == 2 * WIDTH
        picture(page, pictures, "asset-curves")


def test_a_failure_says_what_happened_where_and_what_to_do(dagster_dev: DagsterDev, pictures: Path):
    run = dagster_dev.launch(assets=["broken"])
    assert dagster_dev.wait(run, "FAILURE") == "FAILURE"
    [failure] = [event for event in dagster_dev.events(run) if event["eventType"] == "STEP_FAILURE"]
    causes = [link["error"]["className"] for link in failure["error"]["errorChain"]]
    assert failure["error"]["className"] == "Failure" and "KeyError" in causes
    entries = {entry["label"]: entry for entry in failure["failureMetadata"]["metadataEntries"]}
    job = entries["kinetic/job_id"]["text"]
    assert 'raise KeyError("no such column: price")' in entries["kinetic/traceback"]["mdStr"]
    with page_of(f"{dagster_dev.url}/runs/{run}") as page:
        for text in (
            "broken failed on host 2 of 4: KeyError: 'no such column: price'",
            "The last lines of host 2:",
            f"Next: kinetic-orchestration logs {job} --host 2",
        ):
            page.get_by_text(text).first.wait_for()
        picture(page, pictures, "failure")
        page.get_by_text("View full message").last.click()
        page.get_by_text("Raised on host 2 of job").first.wait_for()
        picture(page, pictures, "failure-whole")


def choose_log(page: Page, name: str, names: list[str] | None = None) -> None:
    """Choose a log from the menu next to stdout, which lists `names` in this order."""
    page.get_by_text("stdout", exact=True).first.click()
    page.get_by_placeholder("Select a step").first.click()
    entry = page.get_by_text(name, exact=True).last  # the menu is the last on the page
    for each in names or [name]:  # the page reads the log of the run bit by bit
        page.get_by_text(each, exact=True).last.wait_for()
    if names:
        assert page.get_by_text(re.compile(r"^ranker \[host \d\]$")).all_inner_texts() == names
    entry.click()


def width_of(image: Locator) -> int:
    """The width of a picture, once it is loaded."""
    image.wait_for()
    return int(image.evaluate("image => image.decode().then(() => image.naturalWidth)"))


def plots_of(page: Page, *names: str) -> None:
    """The plots of an asset's overview, each with its line of points."""
    page.get_by_text("Plots", exact=True).click()
    for name in names:
        page.get_by_text(name, exact=True).first.wait_for()
    page.locator("canvas").first.wait_for()
