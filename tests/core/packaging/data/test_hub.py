"""Requests of a client to Hugging Face's hub, and the answers that it takes or refuses."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_orchestration.errors import DataNotFound, KineticError, Unreachable, Unsupported, UsageError
from kinetic_orchestration.packaging.data import hub
from kinetic_orchestration.protocol.content import pins
from tests.support.hub_server import TOKEN, HubServer, git_hash

CONFIG, WEIGHTS = b'{"model_type": "tiny"}', bytes(range(256)) * 8
FILES = {"config.json": CONFIG, "weights/model.safetensors": WEIGHTS}


@pytest.fixture
def server() -> Iterator[HubServer]:
    with HubServer() as found:
        yield found


def find(server: HubServer, address: str, **environ: str) -> hub.Found:
    return hub.find(address, {"HF_ENDPOINT": server.url, "HF_TOKEN_PATH": "/nowhere", **environ})


def refused(server: HubServer, address: str, kind: type[KineticError] = UsageError, **environ: str) -> str:
    with pytest.raises(kind) as caught:
        find(server, address, **environ)
    return str(caught.value)


def test_a_branch_is_the_commit_that_it_is_now_with_sizes_and_digests_by_one_request(server: HubServer) -> None:
    first = server.push("owner/tiny", FILES)
    found = find(server, "hf://owner/tiny")
    assert found == hub.Found(
        pins.Pinned(
            f"hf://owner/tiny@{first}",
            (
                pins.File("config.json", len(CONFIG), f"git:{git_hash(CONFIG)}"),
                pins.File("weights/model.safetensors", 2048, f"sha256:{hashlib.sha256(WEIGHTS).hexdigest()}"),
            ),
            server.url,
        ),
        False,
    )
    assert len(server.asked) == 1
    second = server.push("owner/tiny", {**FILES, "config.json": b"{}"})
    assert find(server, "hf://owner/tiny@main").pinned.address.endswith(second)
    assert find(server, f"hf://owner/tiny@{first}") == found
    assert pins.decode(found.pinned.encode(), found.pinned.digest) == found.pinned


def test_a_dataset_a_branch_with_a_slash_and_a_folder_or_file_of_it(server: HubServer) -> None:
    commit = server.push("datasets/owner/rows", {"a/1": b"1", "a/2": b"2", "ab": b"3"}, branch="refs/pr/1")
    folder = find(server, "hf://datasets/owner/rows@refs%2Fpr%2F1/a").pinned
    assert folder.address == f"hf://datasets/owner/rows@{commit}/a"
    assert [file.name for file in folder.files] == ["a/1", "a/2"]
    assert [file.name for file in find(server, f"hf://datasets/owner/rows@{commit}/ab").pinned.files] == ["ab"]
    assert "there is nothing at 'b' in it, which has a, ab" in refused(
        server, f"hf://datasets/owner/rows@{commit}/b", DataNotFound
    )


def test_what_does_not_exist_is_told_by_what_it_lacks(server: HubServer) -> None:
    server.push("owner/tiny", FILES)
    nothing = refused(server, "hf://owner/other", DataNotFound)
    assert "has no model owner/other, or hides it from those who are not logged in (401)" in nothing
    assert "a dataset is hf://datasets/OWNER/NAME" in nothing
    assert "owner/tiny has no revision 'v9'" in refused(server, "hf://owner/tiny@v9", DataNotFound)
    assert "has no revision" in refused(server, f"hf://owner/tiny@{'0' * 40}", DataNotFound)


def test_a_private_repository_is_found_with_a_token_which_no_message_has(server: HubServer, tmp_path: Path) -> None:
    server.push("owner/secret", FILES, private=True)
    assert "If it is private, set HF_TOKEN" in refused(server, "hf://owner/secret", DataNotFound)
    wrong = refused(server, "hf://owner/secret", DataNotFound, HF_TOKEN="hf_of-another")
    assert "hides it from the account of this token (404)" in wrong and "hf_of" not in wrong
    assert find(server, "hf://owner/secret", HF_TOKEN=TOKEN).restricted
    (tmp_path / "token").write_text(f"{TOKEN}\n")  # as `hf auth login` leaves it
    assert find(server, "hf://owner/secret", HF_TOKEN_PATH=str(tmp_path / "token")).restricted


def test_a_token_that_is_none_and_a_password_in_the_address_are_refused_and_not_shown(server: HubServer) -> None:
    server.push("owner/tiny", FILES)
    for token in ("hf_of\nanother", "hf_of…another"):
        assert "hf_of" not in refused(server, "hf://owner/tiny", HF_TOKEN=token)
    origin = server.url.replace("//", "//user:pa55@")
    assert "pa55" not in refused(server, "hf://owner/tiny", HF_ENDPOINT=origin)
    assert not server.asked


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/../../b", "a//b", "./a", "a\x1b[2Jb"])
def test_a_file_that_would_lie_outside_of_its_folder_refuses_the_whole(server: HubServer, name: str) -> None:
    server.push("owner/bad", {"config.json": b"{}", name: b"x"})
    assert "would not lie in its own folder" in refused(server, "hf://owner/bad")


def test_a_file_that_would_have_to_be_a_folder_as_well_refuses_the_whole(server: HubServer) -> None:
    server.push("owner/bad", {"a": b"1", "a/b/c": b"2"})
    assert "lists 'a' as a file and as a folder" in refused(server, "hf://owner/bad")


def test_sizes_and_digests_that_cannot_be_are_refused(server: HubServer) -> None:
    server.push("owner/bad", FILES)
    for size in (-1, 1 << 60):
        server.sizes["config.json"] = size
        assert "lists a file that cannot be" in refused(server, "hf://owner/bad")


def test_a_hub_that_is_busy_is_asked_again_and_one_that_is_away_is_named(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "PAUSES", (0.0, 0.0))
    server.push("owner/tiny", FILES)
    server.statuses = [503, 429]
    assert find(server, "hf://owner/tiny").pinned.files
    server.statuses = [503, 503, 503]
    assert "answers 503" in refused(server, "hf://owner/tiny", Unreachable)
    with pytest.raises(Unreachable, match=r"127.0.0.1:9 did not answer .* HF_ENDPOINT"):
        hub.find("hf://owner/tiny", {"HF_ENDPOINT": "http://127.0.0.1:9"})
    with pytest.raises(UsageError, match="is no address of a server"):
        hub.find("hf://owner/tiny", {"HF_ENDPOINT": "file:///etc"})


@pytest.mark.parametrize(
    "address", ["hf://imdb", "hf://a/b@", "hf://a/b@v1/../c", "hf://-a/b", "hf://a/b@x..y", "hf://a b/c"]
)
def test_an_address_that_names_no_repository_says_what_to_write(address: str) -> None:
    with pytest.raises(Unsupported, match="names no"):
        hub.parse(address)
