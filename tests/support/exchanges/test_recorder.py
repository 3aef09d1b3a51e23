"""The recorder hears every face of an emulated cloud, in whatever process, and the test in which it is wrong fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from google.cloud.tpu_v2.types import cloud_tpu

from kinetic_orchestration.platforms.google.tpu.client import emulated_channel
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.api_rules import journal
from kinetic_orchestration.testing.api_rules.journal import Exchange, Journal
from tests.support.exchanges.openapi import Documents
from tests.support.exchanges.recorder import Recorder
from tests.support.kubernetes.emulated import EmulatedPlane

ROOT = Path(__file__).parents[3]
ZONE = "us-east5-a"
NODES = f"v2/projects/emulated/locations/{ZONE}/nodes"
WAIT = 30.0
WRONG = Exchange("rest", "GET", "/v2/nowhere", 404, b"", "", b"{}", "application/json")
RIGHT = Exchange("rest", "GET", f"/{NODES}", 200, b"", "", b"{}", "application/json")


@pytest.fixture
def cloud() -> Iterator[Emulator]:
    with Emulator(zones=[ZONE], hosts=False) as cloud:
        yield cloud


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """A recorder of this test alone, of what is opened from now on."""
    monkeypatch.setenv(journal.VARIABLE, str(tmp_path))
    return Recorder(tmp_path)


def err_on_every_face(addresses: dict[str, str], recorder: Recorder) -> None:
    """One request over each that no document has."""
    with recorder.wrong('nodes.list: request colour: "red": tpu.projects.locations.nodes.list has no such parameter'):
        requests.get(f"{addresses['KINETIC_EMULATOR']}/{NODES}?colour=red", timeout=WAIT)
    with recorder.wrong('objects.list: request colour: "red": storage.objects.list has no such parameter'):
        requests.get(f"{addresses['STORAGE_EMULATOR_HOST']}/storage/v1/b/emulated/o?colour=red", timeout=WAIT)
    request = cloud_tpu.ListNodesRequest.pb()(parent=NODES.removeprefix("v2/").removesuffix("/nodes"))
    with recorder.wrong("nodes.list: request ListNodesRequest.999: the client library has no such field"):
        sent = request.SerializeToString() + b"\xb8\x3e\x01"
        with emulated_channel(addresses["KINETIC_EMULATOR_GRPC"]) as channel:
            channel.unary_unary("/google.cloud.tpu.v2.Tpu/ListNodes")(sent, timeout=WAIT)


def test_every_face_is_heard(cloud: Emulator, recorder: Recorder) -> None:
    err_on_every_face(cloud.environ(), recorder)


@pytest.mark.slow
@pytest.mark.turn(1)
def test_an_emulator_in_another_process_is_heard(recorder: Recorder) -> None:
    command = [sys.executable, "-m", "kinetic_orchestration.cli", "emulator", "--zone", ZONE, "--print-env"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            lines = [process.stdout.readline() for _ in range(8)]
            addresses = dict(line.removeprefix("export ").strip().split("=", 1) for line in lines)
            err_on_every_face(addresses, recorder)
        finally:
            process.terminate()


@pytest.mark.slow
@pytest.mark.turn(0)
def test_the_test_in_which_it_is_wrong_fails_and_no_other(tmp_path: Path) -> None:
    program = tmp_path / "test_it.py"
    program.write_text(
        "import requests\n"
        "from kinetic_orchestration.testing import Emulator\n"
        "def test_right(): pass\n"
        "def test_wrong():\n"
        "    with Emulator(hosts=False) as cloud:\n"
        "        requests.get(cloud.rest.url + '/v2/nowhere', timeout=30)\n"
        "def test_right_again(): pass\n"
    )
    command = [
        *(sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-rA", str(program)),
        f"--basetemp={tmp_path / 'temporary'}",
    ]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stdout
    assert "ERROR" in done.stdout
    assert "at teardown of test_wrong" in done.stdout
    assert "no method: request GET /v2/nowhere: there is no such method" in done.stdout
    assert done.stdout.count("at teardown of") == 1


def test_what_a_test_plants_in_an_answer_is_no_departure(own: Recorder) -> None:
    with Emulator(zones=[ZONE], hosts=False) as cloud:
        nodes = f"{cloud.rest.url}/{NODES}"
        cloud.deviate("ListNodes", answer=lambda answer: answer | {"colour": "red"})
        assert requests.get(nodes, timeout=WAIT).json() == {"colour": "red"}
        assert own.findings() == []
        with own.wrong("request shape: "):  # of the request it says nothing
            requests.get(f"{nodes}?shape=round", timeout=WAIT)
        cloud.storage.make_bucket("bucket")
        cloud.storage.garble("stat *")
        cloud.storage.cut("stat *", after=1)
        inserted = f"{cloud.storage.url}/upload/storage/v1/b/bucket/o?uploadType=media&name=o"
        requests.post(inserted, data=b"x", timeout=WAIT)
        stat = f"{cloud.storage.url}/storage/v1/b/bucket/o/o"
        with pytest.raises(requests.JSONDecodeError):
            requests.get(stat, timeout=WAIT).json()
        with pytest.raises(requests.RequestException):
            requests.get(stat, timeout=WAIT)
        assert own.findings() == []


def test_without_being_asked_for_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(journal.VARIABLE)
    assert journal.asked_for() is None


def test_of_two_wrong_things_both_are_to_be_expected(own: Recorder) -> None:
    kept = journal.asked_for()
    assert kept is not None
    with pytest.raises(AssertionError, match="nothing wrong was found with"), own.wrong("nowhere"):
        kept.write(RIGHT)
    with pytest.raises(AssertionError, match=r"1 departures from .*\n.*elsewhere"), own.wrong("nowhere"):
        kept.write(WRONG)
        kept.write(WRONG._replace(target="/v2/elsewhere"))
    kept.write(WRONG)
    with pytest.raises(AssertionError, match="1 departures"), own.wrong("elsewhere"):
        kept.write(WRONG._replace(target="/v2/elsewhere"))
    assert own.findings() == []
    assert own.checked == 5


def test_an_entry_is_read_once_it_is_whole(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    Journal(tmp_path / "whole").write(WRONG)
    Journal(tmp_path / "whole").write(WRONG)
    (whole,) = (tmp_path / "whole").iterdir()
    data = whole.read_bytes()
    assert whole.stat().st_mode & 0o077 == 0
    (tmp_path / "parts").mkdir()
    recorder = Recorder(tmp_path / "parts")
    found = []
    for at in range(0, len(data), 50):
        with (tmp_path / "parts" / whole.name).open("ab") as file:
            file.write(data[at : at + 50])
        found += recorder.findings()
    assert len(found) == 2


def test_what_was_read_is_removed(tmp_path: Path) -> None:
    kept, recorder = Journal(tmp_path), Recorder(tmp_path)
    big = RIGHT._replace(answer=b" " * (9 << 20) + b"{}")
    for number in range(5):
        kept.write(big._replace(target=f"{RIGHT.target}?pageSize={number}"))
    assert len(list(tmp_path.iterdir())) == 3
    assert recorder.findings() == []
    assert len(list(tmp_path.iterdir())) == 1
    kept.write(WRONG)
    assert [finding.exchange for finding in recorder.findings()] == [WRONG]
    assert recorder.checked == 6
    recorder.close()
    assert not tmp_path.exists()


def test_a_cluster_is_heard_whoever_asks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "journal").mkdir()
    monkeypatch.setenv(journal.VARIABLE, str(tmp_path / "journal"))
    recorder = Recorder(tmp_path / "journal", lambda: Documents({}))
    with EmulatedPlane(tmp_path / "plane") as plane, recorder.wrong("GET /api/v1/nodes: there is no such operation"):
        plane.api.get("/api/v1/nodes?limit=5")
        plane.api.get("/version")
