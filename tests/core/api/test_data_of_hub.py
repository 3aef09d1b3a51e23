"""`Data("hf://…")` from the call to the function: pinned at submission, fetched once by the hosts of this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.steps import job_facts
from kinetic_orchestration.errors import DataChanged, DataNotFound, JobError, Unsupported, UsageError
from tests.support.hub_server import TOKEN, HubServer, point_at

FILES = {"config.json": b'{"layers": 2}', "model.safetensors": os.urandom(4096)}
BOUNDED = kinetic.Limits(run="120s")
ONCE = kinetic.Retry(user=0, preemption=0, infra=0)


@pytest.fixture
def server(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer() as found:
        point_at(found, monkeypatch)
        yield found


def listed(model: str, where: str) -> list[str]:
    import pathlib

    import kinetic_orchestration as kinetic

    there = sorted(str(path.relative_to(model)) for path in pathlib.Path(model).rglob("*") if path.is_file())
    pathlib.Path(where, str(kinetic.current().host_index)).write_text(model)
    return there


def test_two_hosts_have_the_commit_of_the_submission_and_fetch_it_once(server: HubServer, tmp_path: Path) -> None:
    first = server.push("owner/tiny", FILES)
    data = kinetic.Data("hf://owner/tiny")
    job = kinetic.run(accelerator="v4-8", limits=BOUNDED)(listed).run_async(data, str(tmp_path))
    server.push("owner/tiny", {"config.json": b"{}"})
    assert job.result(timeout=120) == sorted(FILES)
    assert len({(tmp_path / str(host)).read_text() for host in range(2)}) == 1
    assert len(server.fetched("model.safetensors")) == 1
    assert job_facts.facts_of(job)["data"][0]["uri"] == f"hf://owner/tiny@{first}"
    server.asked.clear()
    pinned = kinetic.Data(f"hf://owner/tiny@{first}")
    again = kinetic.run(accelerator="cpu", limits=BOUNDED)(listed)
    assert again.run_async(pinned, str(tmp_path)).result(timeout=120) == sorted(FILES)
    assert [one.method for one in server.asked] == ["GET"], "the list alone: the files are on this machine"


def test_a_batch_asks_the_model_of_the_commit_of_its_submission(server: HubServer) -> None:
    """By its name alone a server would load what the branch is by then."""
    server.push("owner/tiny", FILES)

    def tells(model: str | None) -> Any:
        import pathlib

        said = pathlib.Path(str(model), "config.json").read_text()
        return lambda rows: [said for _ in rows]

    data = kinetic.Data("hf://owner/tiny@main")
    job = kinetic.serve_batch(data, ["a prompt"], engine=tells, accelerator="cpu", limits=BOUNDED)
    server.push("owner/tiny", {"config.json": b"{}"})
    [answer] = kinetic.read_answers(job.result(timeout=120)["output"])
    assert answer["text"] == FILES["config.json"].decode()


def test_a_private_repository_by_the_token_of_here_which_no_record_or_line_has(
    server: HubServer, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.push("owner/secret", FILES, private=True)
    step = kinetic.run(accelerator="cpu", limits=BOUNDED, retry=ONCE)(listed)
    data = kinetic.Data("hf://owner/secret/config.json")
    with pytest.raises(DataNotFound, match="If it is private, set HF_TOKEN"):
        step(data, str(tmp_path))
    point_at(server, monkeypatch, TOKEN)
    job = step.run_async(data, str(tmp_path))
    job.result(timeout=120)
    assert Path((tmp_path / "0").read_text()).read_bytes() == FILES["config.json"]
    kept = [path for path in home.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert not kept and TOKEN not in (job.logs() or "")


def test_what_hosts_cannot_have_is_refused_where_it_is_submitted(server: HubServer, tmp_path: Path) -> None:
    step = kinetic.run(accelerator="cpu", limits=BOUNDED)(listed)
    server.push("owner/secret", FILES, private=True)
    with pytest.raises(Unsupported, match="load rows in the function itself"):
        step(kinetic.Data("hf://owner/rows?split=train"), str(tmp_path))
    with pytest.raises(Unsupported, match="run no code of it"):
        step(kinetic.Data("hf://owner/rows", hf_trust_remote_code=True), str(tmp_path))
    with pytest.raises(Unsupported, match="reads no bucket"):
        step(kinetic.Data("gs://bucket/rows/", stream=True), str(tmp_path))
    with pytest.raises(UsageError, match="which has no path: pass it as an argument"):
        kinetic.run(accelerator="cpu", volumes={"/rows": kinetic.Data(tmp_path, stream=True)})
    assert not server.asked


def first_line(rows: kinetic.StreamedData, changing: str) -> list[object]:
    with rows.open("a") as file:
        found = [str(rows), dict(rows.files), file.readline().decode()]
    if changing:
        with open(changing, "a", encoding="ascii") as other:  # noqa: PTH123
            other.write("more")
        rows.open("a").close()
    return found


def test_a_folder_of_this_machine_is_read_where_it_is_and_a_change_is_an_error(home: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "a").write_text("one\ntwo\n")
    step = kinetic.run(accelerator="cpu", limits=BOUNDED)(first_line)
    data = kinetic.Data(rows, stream=True)
    assert step.run_async(data, "").result(timeout=120) == [str(rows), {"a": 8}, "one\n"]
    assert not list((home / "cache").rglob("a"))
    with pytest.raises(DataChanged, match="was changed after the job was submitted"):
        step.run_async(data, str(rows / "a")).result(timeout=120)


def grows(rows: kinetic.StreamedData, folder: str) -> list[str]:
    """Adds a file at each of its attempts, of which the first one dies."""
    import os
    import pathlib
    import signal

    import kinetic_orchestration as kinetic

    attempt = kinetic.current().attempt
    pathlib.Path(folder, f"new-{attempt}").write_text("3")
    if attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return list(rows.files)


def test_files_that_are_added_are_not_read_and_told_when_an_attempt_begins_and_when_it_ends(
    home: Path, tmp_path: Path
) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "a").write_text("one")
    step = kinetic.run(accelerator="cpu", limits=BOUNDED, retry=kinetic.Retry(user=1, infra=1))(grows)
    job = step.run_async(kinetic.Data(rows, stream=True), str(rows))
    assert job.result(timeout=120) == ["a"]
    told = re.findall(r"of its files, (.*)\. The job reads what was there when it was submitted", job.logs() or "")
    assert told == ["1 new (new-1)", "1 new (new-1)", "2 new (new-1, new-2)"]


def test_a_hub_that_is_gone_when_hosts_ask_ends_the_job_with_a_sentence(server: HubServer, tmp_path: Path) -> None:
    commit = server.push("owner/tiny", FILES)
    del server.repositories["owner/tiny"].commits[commit]["config.json"]  # from now on
    about = server.about
    server.about = lambda name, at: {**about(name, at), "siblings": [server._sibling(*one) for one in FILES.items()]}  # type: ignore[method-assign]
    step = kinetic.run(accelerator="cpu", limits=BOUNDED, retry=ONCE)(listed)
    with pytest.raises(JobError, match="the file is gone from the commit: submit the job again"):
        step.run_async(kinetic.Data("hf://owner/tiny"), str(tmp_path)).result(timeout=120)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("x" * 300, "no file of this host can have the name"),
        ("x" * 300 + "/a", "cannot be fetched to this host: .*too"),
    ],
)
def test_a_name_that_the_disk_cannot_have_is_told_and_no_matter_of_luck(
    server: HubServer, tmp_path: Path, name: str, why: str
) -> None:
    server.push("owner/tiny", {name: b"1"})
    step = kinetic.run(accelerator="cpu", limits=BOUNDED, retry=ONCE)(listed)
    with pytest.raises(JobError, match=rf"\(configuration\): .*{why}"):
        step.run_async(kinetic.Data("hf://owner/tiny"), str(tmp_path)).result(timeout=120)
