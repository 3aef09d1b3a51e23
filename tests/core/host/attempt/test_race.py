"""A slice in a race: it runs its program only if it has won, and leaves no record that could be taken for a winner's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.protocol import names, wire
from tests.support.faults import load_jobs
from tests.support.on_vms import Attempt, Site

KEY = "a key of this attempt"


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_jobs(tmp_path_factory.mktemp("race") / "project", "race_jobs")


def records(attempt: Attempt) -> set[str]:
    """Return the records that hosts and clients wrote of the attempt, below its job; beats, too."""
    store, job = attempt.site.records, attempt.job
    prefix = names.job(job)
    found = {entry.name.removeprefix(prefix) for entry in store.list(prefix)}
    beats = {entry.name for entry in store.list(names.beats_in(job, attempt.number))}
    return {name for name in found if not name.startswith(("in/spec", "in/attempts/1/intent"))} | beats


def won(attempt: Attempt, rival: int) -> None:
    data = wire.encode({"rival": rival, "writer": "another"})
    assert attempt.site.records.create(names.won(attempt.job, attempt.number), data) is not None


def test_the_first_slice_wins_and_runs(site: Site, jobs: Any) -> None:
    attempt = site.admit(jobs.attempt).start(rival=1)
    assert attempt.verdict().kind == wire.COMMITTED
    record = site.records.read(names.won(attempt.job, attempt.number))
    assert record is not None
    assert wire.fields_of(record.data, wire.WON)["rival"] == 1
    attempt.gone()


def test_one_that_comes_later_deletes_itself_and_says_only_what_it_has_cost(site: Site, jobs: Any) -> None:
    attempt = site.admit(jobs.attempt)
    won(attempt, 1)
    attempt.start(rival=0)
    attempt.gone()
    told = records(attempt) - {"in/attempts/1/gone-0.json"}  # if it lived to write that
    assert told == {"in/attempts/1/won.json", "in/attempts/1/held-0.json"}


def test_all_hosts_of_a_loser_end_at_once(site: Site, jobs: Any) -> None:
    attempt = site.admit(jobs.attempt, accelerator="v5e-16")
    won(attempt, 1)
    attempt.start(rival=0)
    attempt.gone(within=30.0)  # and not in the turns of those that have run
    assert not [name for name in records(attempt) if "out/" in name or "verdict" in name]


def test_a_damaged_record_has_no_winner(site: Site, jobs: Any) -> None:
    attempt = site.admit(jobs.attempt)
    assert site.records.create(names.won(attempt.job, attempt.number), b'{"rival": 0}') is not None
    attempt.start(rival=0)
    attempt.gone()
    assert not [name for name in records(attempt) if "out/" in name or "verdict" in name]


def test_with_a_key_only_what_hosts_have_sealed_has_a_winner(site: Site, jobs: Any) -> None:
    """Whoever can write to the bucket cannot say who has won: not the place itself is run by such a word."""
    forged = site.admit(jobs.attempt)
    won(forged, 0)
    forged.start(rival=0, key=KEY)
    forged.gone()
    assert not [name for name in records(forged) if "out/" in name or "verdict" in name]
    attempt = site.admit(jobs.attempt).start(rival=0, key=KEY)
    assert attempt.verdict().kind == wire.COMMITTED
    record = site.records.read(names.won(attempt.job, attempt.number))
    assert record is not None
    fields = wire.fields_of(record.data, wire.WON)
    assert fields["seal"] == bootstrap.sealed(KEY, bootstrap.gist(fields))
    attempt.gone()


def test_an_agent_that_cannot_be_fetched_ends_only_its_place_until_that_has_won(site: Site, jobs: Any) -> None:
    attempt = site.admit(jobs.attempt)
    site.storage.fail(f"get *{attempt.agent}", status=404, times=None)
    attempt.start(rival=0)
    attempt.gone()
    record = site.records.read(names.lost(attempt.job, attempt.number, 0))
    assert record is not None
    lost = wire.Verdict.decode(record.data)
    assert lost.reason.startswith("host 0 could not start: the agent could not be fetched")
    assert site.records.read(names.verdict(attempt.job, attempt.number)) is None


def test_one_that_cannot_be_fetched_again_after_it_has_won_ends_the_attempt(site: Site, jobs: Any) -> None:
    attempt = site.admit(jobs.attempt)
    won(attempt, 0)
    site.storage.fail(f"get *{attempt.agent}", status=404, times=None)
    attempt.start(rival=0)
    assert attempt.verdict().kind == wire.ABORTED
    attempt.gone()


@pytest.mark.parametrize("stamp", [{"wire": 1}, {"wire": 1, "release": "0.3.0"}])
def test_a_winner_of_another_release_is_known_by_its_seal(site: Site, jobs: Any, stamp: dict[str, Any]) -> None:
    """Tests version 0.1, whose records have no release, and a later one: who seals a record seals both."""
    attempt = site.admit(jobs.attempt)
    claim = {**stamp, "rival": 0, "writer": "another"}
    data = json.dumps({**claim, "seal": bootstrap.sealed(KEY, bootstrap.gist(claim))}).encode()
    assert site.records.create(names.won(attempt.job, attempt.number), data) is not None
    assert attempt.start(rival=0, key=KEY).verdict().kind == wire.COMMITTED
    attempt.gone()
