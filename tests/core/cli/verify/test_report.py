"""The two files of a verification, and the calls that they are made of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.api_core.exceptions import NotFound

from kinetic_orchestration.cli.verify import report as reports
from kinetic_orchestration.cli.verify.comparison import Difference
from kinetic_orchestration.cli.verify.recording import Entry, Recorder
from kinetic_orchestration.cli.verify.redaction import Redactor
from kinetic_orchestration.cli.verify.runner import FAILED, NOT_RUN, PASSED, Report, Result
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.platforms.google.rest import call_listeners
from kinetic_orchestration.platforms.google.tpu.client import Tpus, client
from kinetic_orchestration.testing import Emulator


def made(**options: object) -> Report:
    asked = {"budget": 5.0, "accelerator": "v5e-1", "spot": False, "zones": ["us-west4-a"]}
    results = [
        Result("job", "a function runs", PASSED, (), 12.0, 0.2, 0.01),
        Result("cancel", "a | job is <cancelled>", FAILED, ("it | is\nRUNNING",), 9.0, 0.2, 0.02),
        Result("four hosts", "four", NOT_RUN, ("budget: it can cost $3.20, and $1.00 are left",), 0.0, 3.2, 0.0),
    ]
    entries = [
        Entry(0.1 * number, "job", "", "tpu GetNode", {"name": "NAME-1"}, "OK", {"state": "READY"}, (), 0.01)
        for number in range(50)
    ]
    differences = [Difference("tpu GetNode", "health", "HEALTHY", "17")]
    return Report(
        "2026-11-23T18:34:20Z", {"python": "3.11.7"}, asked, "$1.20 a chip and hour, list price of 2024-12-23", False,
        results, differences, entries=entries, redactor=Redactor({}), spent=0.03, seconds=90.0, baseline="x 0.1", **options,  # type: ignore[arg-type]
    )  # fmt: skip


def test_the_page_says_what_passed_what_differs_what_it_cost_and_what_to_do(tmp_path: Path) -> None:
    path, _ = reports.write(made(), tmp_path)
    page = path.read_text()
    assert path.name == "verify-20261123T183420Z.md"
    assert "1 steps passed, 1 failed, 1 were not run, and 1 answers differ" in page
    assert "about $0.03 of $5.00" in page and "2024-12-23" in page
    assert "| tpu GetNode | health | HEALTHY | 17 |" in page
    assert "| four hosts | four | not run: budget: it can cost $3.20, and $1.00 are left |" in page
    assert "a \\| job is &lt;cancelled> | failed: it \\| is RUNNING" in page  # nothing breaks out of its cell
    assert "Send this page" in page
    assert oct(path.stat().st_mode & 0o777) == "0o600"


def test_the_document_has_every_call_and_answers_that_are_alike_once(tmp_path: Path) -> None:
    _, path = reports.write(made(), tmp_path)
    document = json.loads(path.read_text())
    assert len(document["calls"]) == 50
    assert document["shapes"] == [{"name": "NAME-1"}, {"state": "READY"}]
    assert {(call["request"], call["answer"]) for call in document["calls"]} == {(0, 1)}
    assert document["differences"] == [{"call": "tpu GetNode", "where": "health", "emulator": "HEALTHY", "real": "17"}]


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        reports.write(made(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_every_call_is_heard_with_its_answer_as_it_was(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[call_listeners.Call] = []
    with Emulator(zones=("us-west4-a",), hosts=False) as cloud:
        cloud.deviate("ListLocations", unknown=b"\xb8\x3e\x01")
        for name, value in cloud.environ(project="acme", deployment="verify-x").items():
            monkeypatch.setenv(name, value)
        here = settings.load()
        tpus = Tpus(here)
        with call_listeners.listening(heard.append):
            assert tpus.node("projects/acme/locations/us-west4-a/nodes/none") is None
            assert tpus.locations("acme") == ["us-west4-a"]
            with pytest.raises(NotFound):
                client(here).get_operation({"name": "projects/acme/locations/us-west4-a/operations/none"})
        assert tpus.locations("acme") == ["us-west4-a"]  # and afterwards nobody listens
    missing, places, operation = heard
    assert (missing.service, missing.method, missing.status) == ("tpu", "GetNode", "NOT_FOUND")
    assert (
        missing.answer["error"]["message"] == "Resource 'projects/acme/locations/us-west4-a/nodes/none' was not found"
    )
    assert (places.method, places.status, places.unknown) == ("ListLocations", "OK", ("ListLocationsResponse.999",))
    assert places.answer == {"locations": [{"name": "projects/acme/locations/us-west4-a", "locationId": "us-west4-a"}]}
    assert (operation.method, operation.status) == ("GetOperation", "NOT_FOUND")
    recorder = Recorder(Redactor({"acme": "PROJECT"}), "kinetic-")
    for call in heard:
        recorder.record(call)
    assert recorder.lost == 0
    assert recorder.entries[0].answer["error"]["message"] == (
        "Resource 'projects/PROJECT/locations/us-west4-a/nodes/NAME-1' was not found"
    )
