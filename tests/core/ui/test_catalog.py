"""The table of jobs over a bucket: one listing shows all of them, and only what is looked at is read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kinetic_orchestration.api.handle import all_jobs
from kinetic_orchestration.api.opening import place_of
from kinetic_orchestration.platforms.google.rest import call_listeners
from kinetic_orchestration.protocol import names
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.ui import catalog
from kinetic_orchestration.ui.catalog import Catalog
from tests.support.on_cloud import Place, enter_deployment
from tests.support.waits import wait_until

ZONES = {"us-east5-a": {"v6e": 64}}
JOBS = 24


@pytest.fixture
def place(clouds: Emulator, home: object, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Place:
    enter_deployment(clouds, monkeypatch, request)
    return Place(clouds, tuple(ZONES))


@pytest.fixture
def shown(place: Place) -> Iterator[Catalog]:
    jobs = [place.admit() for _ in range(JOBS)]
    for job in jobs:
        place.store.put(names.live(job.job_id), b"")
        place.store.put(names.host(job.job_id, 1, 0, "done.json"), b"{}")
    place.store.create(names.ROLL, b"{}")
    store, backend, settings = place_of()
    shown = Catalog(store, backend, settings)
    yield shown
    shown.close()


def test_one_listing_shows_all_jobs_of_a_bucket_and_only_those_that_are_seen_are_read(
    shown: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinetic_orchestration.platforms.google.storage.requests._PAGE", 10)
    calls: list[call_listeners.Call] = []
    with call_listeners.listening(calls.append):
        page = shown.page()
        listings = [call.request["query"] for call in calls]
        assert {(query["prefix"], query["matchGlob"]) for query in listings} == {
            (f"{shown.store.url.partition('//')[2].partition('/')[2]}/jobs/", "**/spec.json")
        }
        assert len(listings) == -(-2 * JOBS // 10), "a page of names each, of a server that knows no filter"
        assert (page["total"], page["unread"], page["reads_all"]) == (JOBS, JOBS, False)
        assert all(len(row) == 2 for row in page["rows"])
        calls.clear()
        assert shown.page()["rows"] == page["rows"] and calls == [], "a listing holds for a while"

        seen = [row[0] for row in page["rows"]][:3]
        rows = shown.read(seen, patience=60.0)
        assert [(row[0], row[2], row[3], row[5]) for row in rows] == [
            (job, "PENDING", "train", "v6e-8") for job in seen
        ]
        others = {row[0] for row in page["rows"]} - {*seen}
        about = [f"{call.method} {call.request.get('query', {}).get('prefix')}" for call in calls]
        assert {job for job in seen if any(job in each for each in about)} == {*seen}
        assert [each for each in about if any(other in each for other in others)] == [], "nobody has looked at these"
        assert {each.split()[0] for each in about} == {"GET"}
        shown.read_all()
        wait_until(lambda: shown.page()["unread"] == 0, "all are read")
    assert [handle.job_id for handle in all_jobs()] == [row[0] for row in shown.page()["rows"]]


def test_a_job_that_is_gone_leaves_the_table_and_a_new_one_comes_with_the_next_listing(
    place: Place, shown: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(catalog.LISTED, True, 0.0)
    before = shown.page()
    gone, new = before["rows"][-1][0], place.admit()
    place.store.delete(names.spec(gone))
    after = shown.page(before["version"])
    assert after["gone"] == [gone] and [row[0] for row in after["rows"]] == [new.job_id] and after["total"] == JOBS
    assert shown.page(after["version"])["rows"] == []
