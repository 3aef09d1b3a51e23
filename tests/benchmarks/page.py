"""The time until the page of `kinor ui` shows ten thousand jobs, and how often it lists the store for that.

The jobs are records as jobs of this machine leave them, copied from one that ran. The floor is a plain listing of the same
store: the ids of all jobs, and when each was submitted. In a bucket, the emulated one, what counts is requests: a listing
has a page for a thousand names, and nothing else is asked before somebody looks at a row.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from kinetic_orchestration.ui.catalog import LISTED
from tests.benchmarks import measure, waiting
from tests.benchmarks.measure import Figure
from tests.dagster_kinetic.live.browser import FLAGS, chromium
from tests.support import many_jobs
from tests.support.page_server import Page, serving

JOBS = 10_000
IN_A_BUCKET = 2_500
ROUNDS = 5
SCREEN = 40  # rows


def figures() -> Iterator[Figure]:
    from kinetic_orchestration.api.opening import place_of
    from kinetic_orchestration.jobs.watching import live_index

    with measure.project(noop=waiting.NOOP) as folder:
        ended = _run_one()
        many_jobs.copy(folder.parent / "home" / "store" / "local" / "jobs", ended, JOBS - 1, logs=False)
        store, *_ = place_of()
        floor = statistics.median(measure.seconds(lambda: live_index.submitted(store)) for _ in range(ROUNDS))
        first, screen, packed = zip(*(_first_page() for _ in range(ROUNDS)), strict=True)
        yield measure.bounded("page.first", statistics.median(first), "s", 0.3, floor=floor)
        yield measure.bounded("page.first_screen", statistics.median(screen), "s", None, floor=floor)
        yield measure.bounded("page.first_bytes", packed[-1] / 1e3, "kB", None)
        yield from _in_a_browser(floor)
    yield from _in_a_bucket()


def _in_a_browser(floor: float) -> Iterator[Figure]:
    """Measure until a real browser has painted the first rows, by its own clock, from the moment that it was told where
    to go; where there is one."""
    if not chromium() or not measure.has("playwright"):
        return
    from playwright.sync_api import sync_playwright

    found = []
    with serving() as page, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        for _ in range(ROUNDS):
            shown = browser.new_context().new_page()
            shown.add_init_script(PAINTED)
            shown.goto(f"{page.address}?token={page.token}")
            shown.wait_for_selector(".rows .line")
            found.append(shown.wait_for_function("() => window.painted").json_value() / 1000)
            shown.context.close()
        browser.close()
    yield measure.bounded("page.in_a_browser", statistics.median(found), "s", None, floor=floor)


PAINTED = """new MutationObserver((_, watch) => {
  if (!document.querySelector(".rows .line")) return;
  watch.disconnect();
  requestAnimationFrame(() => requestAnimationFrame(() => { window.painted = performance.now(); }));
}).observe(document, { childList: true, subtree: true });"""


def _first_page() -> tuple[float, float, float]:
    """Return the seconds for the page with all jobs, for that and the records of the rows on a screen, and the bytes of
    the first. The server has begun so long before that it lists again, and it still reads records meanwhile."""
    with serving() as page:
        time.sleep(LISTED[False])
        answers: list[object] = []
        first = measure.seconds(lambda: answers.append(_all(page)))
        (told,) = answers
        assert isinstance(told, tuple)
        rows, packed = told
        assert len(rows) == JOBS
        seen = ",".join(row[0] for row in rows[:SCREEN])
        read = measure.seconds(lambda: answers.append(page.ask(f"/api/rows?ids={seen}").json["rows"]))
        assert isinstance(answers[-1], list) and all(len(row) > 2 for row in answers[-1])
        return first, first + read, packed


def _all(page: Page) -> tuple[list[list[object]], float]:
    """Ask for what a browser asks for: the page, its files, and all jobs."""
    for path in ("/", "/style.css", "/app.js", "/dom.js", "/jobs.js", "/job.js", "/slices.js", "/api/store"):
        assert page.ask(path).status == 200
    answer = page.ask("/api/jobs?since=0", Accept_Encoding="gzip")
    return answer.json["rows"], len(answer.data)


def _in_a_bucket() -> Iterator[Figure]:
    """Count the requests of the first page, by what the client has sent."""
    import os

    from kinetic_orchestration.api.opening import place_of
    from kinetic_orchestration.platforms.google.rest import call_listeners
    from kinetic_orchestration.protocol import names
    from kinetic_orchestration.protocol.system.parallel import side_by_side
    from kinetic_orchestration.testing import Emulator
    from kinetic_orchestration.ui.catalog import Catalog

    with Emulator(hosts=False) as cloud:
        os.environ.update(cloud.environ())
        store, backend, settings = place_of()
        side_by_side(lambda number: store.create(names.spec(f"job-{number:012x}"), b"{}"), range(IN_A_BUCKET), 16)
        calls: list[call_listeners.Call] = []
        with call_listeners.listening(calls.append):
            shown = Catalog(store, backend, settings)
            taken = measure.seconds(shown.page)
            shown.close()
        listed = [call for call in calls if "prefix" in call.request.get("query", {})]
        floor = measure.seconds(lambda: list(store.list(names.JOBS, last="spec.json")))
    yield measure.bounded("page.bucket.requests", len(calls), "requests", -(-IN_A_BUCKET // 1000))
    yield measure.bounded("page.bucket.others", len(calls) - len(listed), "requests", 0)
    yield measure.bounded("page.bucket.first", taken, "s", None, floor=floor)


def _run_one() -> str:
    import kinetic_orchestration as kinetic

    job = kinetic.run(accelerator="cpu")(abs).run_async(-1)
    assert job.result() == 1
    return job.job_id
