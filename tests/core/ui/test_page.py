"""The page in a real browser, in the light and the dark: ten thousand jobs, a log that runs, and what hostile jobs say."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.protocol import wire
from tests.dagster_kinetic.live.browser import FLAGS, PATIENCE_MILLISECONDS, chromium
from tests.support import many_jobs
from tests.support.page_server import Page, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Shown

playwright = pytest.importorskip("playwright.sync_api")
expect, sync_playwright = playwright.expect, playwright.sync_playwright
pytestmark = [
    pytest.mark.slow,
    pytest.mark.turn(9),
    pytest.mark.skipif(not chromium(), reason="there is no chromium: apt-get install chromium"),
]

JOBS = 10_000
OUTPUT = os.environ.get("KINETIC_TEST_OUTPUT", "")  # read before a test has an environment of its own
HOSTILE = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">\x1b[2J\u202egnp.exe"


def work(lines: int, pause: float = 0.0) -> None:
    import time

    host = kinetic.current()
    for number in range(lines):
        print(f"step {number}: {HOSTILE if number == 2 else 'as ever'}")
        host.log_metrics(step=number, loss=1 / (number + 1))
        host.progress(number + 1, lines, unit="step")
        time.sleep(pause)


@pytest.fixture(scope="module")
def ended(shared_home: Path) -> JobHandle[None]:
    handle = kinetic.run(accelerator="cpu")(work).run_async(30)
    assert handle.result() is None
    return handle


@pytest.fixture(scope="module")
def page(shared_home: Path, ended: JobHandle[None]) -> Iterator[Page]:
    jobs = shared_home / "store" / "local" / "jobs"
    newest, *_ = many_jobs.copy(jobs, ended.job_id, JOBS - 1, logs=False)
    spec = jobs / newest / "in" / "spec.json"
    fields = wire.decode(spec.read_bytes())
    name = HOSTILE + "x" * 3000
    spec.write_bytes(wire.encode({**fields, "name": name, "plan": {**fields["plan"], "name": name}}))
    with serving() as page:
        yield page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium(), args=list(FLAGS), timeout=PATIENCE_MILLISECONDS)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, page: Page, dark: bool = False, width: int = 1280) -> Iterator[Shown]:
    """Yield the page as it opens by its token. Neither its script nor its policy may complain of anything."""
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light", device_scale_factor=1
    )
    shown, complaints = context.new_page(), list[str]()
    shown.set_default_timeout(PATIENCE_MILLISECONDS)
    shown.on("console", lambda message: complaints.append(message.text))
    shown.on("pageerror", lambda error: complaints.append(str(error)))
    shown.on("dialog", lambda dialog: complaints.append(dialog.message))
    try:
        shown.goto(f"{page.address}?token={page.token}")
        yield shown
        assert complaints == []
        assert "taken" not in shown.title()
    finally:
        context.close()


def picture(shown: Shown, name: str) -> None:
    """Keep a picture of the page where KINETIC_TEST_OUTPUT says, for the documentation and for who judges it."""
    if OUTPUT:
        Path(OUTPUT).mkdir(parents=True, exist_ok=True)
        shown.screenshot(path=Path(OUTPUT, f"{name}.png"))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_ten_thousand_jobs_are_a_table_of_which_the_page_holds_what_is_seen(
    browser: Browser, page: Page, dark: bool
) -> None:
    with opened(browser, page, dark) as shown:
        shown.wait_for_selector(".rows .state.SUCCEEDED")
        assert shown.url == page.address, "the token is gone from the address"
        assert "10,000 jobs" in shown.inner_text(".count")
        assert shown.get_attribute(".grid", "aria-rowcount") == "10001"
        assert 10 < shown.locator(".rows .line").count() < 80
        ground = shown.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground))) < 150) is dark, ground
        assert shown.locator("main script, main img").count() == 0
        hostile = shown.locator(".rows .line", has_text="<script>")
        assert r"\x1b[2J\u202egnp.exe" in hostile.inner_text() and hostile.bounding_box()["height"] < 60  # type: ignore[index]
        picture(shown, f"ui-jobs-{'dark' if dark else 'light'}")

        shown.focus(".rows")
        shown.keyboard.press("End")
        shown.wait_for_selector(f".rows .line[aria-rowindex='{JOBS + 1}'] .state.SUCCEEDED")
        assert shown.locator(".rows .line").count() < 80
        shown.keyboard.press("Home")
        shown.keyboard.press("ArrowDown")
        active = shown.get_attribute(".rows", "aria-activedescendant")
        shown.keyboard.press("Enter")
        shown.wait_for_selector(".title .state")
        assert shown.url.endswith(f"#/job/{active}")
        shown.go_back()
        shown.wait_for_selector(".rows .line.active")

        shown.keyboard.press("/")
        shown.keyboard.type(many_jobs.NAMES[0])
        others = shown.locator(".rows .line .name").filter(has_not_text=many_jobs.NAMES[0])
        expect(others).to_have_count(0, timeout=PATIENCE_MILLISECONDS)
        assert re.match(r"[\d,]+ of 10,000 jobs", shown.inner_text(".count"))
        shown.click("[data-key=at] button")
        assert shown.get_attribute("[data-key=at]", "aria-sort") == "ascending"


def test_a_jobs_page_follows_every_host_and_shows_its_time_line_and_curves(
    browser: Browser, page: Page, ended: JobHandle[None]
) -> None:
    running = kinetic.run(accelerator="v5e-16")(work).run_async(60, 0.1)
    with opened(browser, page, dark=True) as shown:
        shown.goto(f"{page.address}#/job/{running.job_id}")
        shown.wait_for_selector(".log p:has-text('step')")
        shown.wait_for_selector("[aria-label='Host'] option[value='3']", state="attached")
        shown.wait_for_selector(".picture svg text:has-text('loss')")
        picture(shown, "ui-job-running")
        assert running.result() is None
        shown.wait_for_selector(".title .state.SUCCEEDED")
        assert "succeeded" in (shown.get_attribute(".picture svg[role=img]", "aria-label") or "")
        expect(shown.locator(".logbar [role=status]")).to_have_text("240 lines", timeout=PATIENCE_MILLISECONDS)
        assert shown.locator(".log p").count() < 120
        shown.select_option("[aria-label='Host']", "2")
        expect(shown.locator(".logbar [role=status]")).to_have_text("60 lines", timeout=PATIENCE_MILLISECONDS)
        shown.fill("[aria-label='Filter lines']", "gnp")
        expect(shown.locator(".log p")).to_have_count(1, timeout=PATIENCE_MILLISECONDS)
        assert shown.inner_text(".log p").startswith("step 2: <script>document.title='taken'</script><img src=x")
        assert shown.locator(".log img, .log script").count() == 0
    with opened(browser, page, width=390) as shown:  # a telephone
        shown.wait_for_selector(".rows .state.SUCCEEDED")
        assert shown.evaluate("document.documentElement.scrollWidth") <= 390
        picture(shown, "ui-narrow")
        shown.goto(f"{page.address}#/job/{ended.job_id}")
        shown.wait_for_selector(".log p")
        assert shown.evaluate("document.documentElement.scrollWidth") <= 390
        shown.goto(f"{page.address}#/slices")
        shown.wait_for_selector(".empty:has-text('No slice is kept')")


def test_a_stranger_and_a_page_that_has_ended_are_told_so(browser: Browser, page: Page) -> None:
    context = browser.new_context()
    try:
        shown = context.new_page()
        shown.goto(page.address)
        assert "This page belongs to whoever started it" in shown.inner_text("p >> nth=0")
        with serving() as other:
            shown.goto(f"{other.address}?token={other.token}")
            shown.wait_for_selector(".rows .line")
        shown.wait_for_selector("#trouble:has-text('kinor ui does not answer')")
    finally:
        context.close()
