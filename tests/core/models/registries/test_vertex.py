"""Registration in Vertex AI's Model Registry, over the wire: the emulated one, each exchange held against Google's document."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import RegistryError, UsageError
from kinetic_orchestration.models.registries import vertex
from kinetic_orchestration.platforms.google.rest import retries
from kinetic_orchestration.testing import Emulator
from tests.core.models.registries.versions import version
from tests.support.exchanges import documents
from tests.support.exchanges.rules import Shape

NAME = "projects/emulated/locations/us-central1/models/ranker"
CONTAINER = {"imageUri": "us-docker.pkg.dev/p/r/vllm:1", "args": ["--model", "/m"], "ports": [{"containerPort": 8000}]}


@pytest.fixture
def cloud(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    monkeypatch.setattr(vertex, "_POLL", 0.01)
    monkeypatch.setattr(retries, "PAUSES", (0.01, 0.01))
    with Emulator(tmp_path / "cloud", hosts=False) as running:
        for name, value in running.environ().items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.mark.fast
def test_what_is_sent_is_what_google_documents() -> None:
    registry = kinetic.Vertex(
        "my-project", "europe-west4", container=CONTAINER, service_account="a@p.iam.gserviceaccount.com"
    )
    promoted = version("My.Ranker", job={"job": {"id": "job-1"}})
    upload, alias = registry.planned(promoted, "champion")
    place = "https://europe-west4-aiplatform.googleapis.com/v1/projects/my-project/locations/europe-west4/models"
    assert (upload["url"], alias["url"]) == (f"{place}:upload", f"{place}/my-ranker@<version>:mergeVersionAliases")
    assert upload["body"]["modelId"] == "my-ranker" and "parentModel" not in upload["body"]
    model = upload["body"]["model"]
    assert model["artifactUri"] == promoted.uri and model["labels"]["kinetic-digest"] == promoted.digest
    assert model["labels"]["kinetic-job"] == "job-1" and f"{promoted.uri}/lineage.json" in model["versionDescription"]
    for body, verb, path in (
        (upload["body"], "POST", "/v1/projects/p/locations/l/models:upload"),
        (registry.upload(promoted, new=False), "POST", "/v1/projects/p/locations/l/models:upload"),
        (alias["body"], "POST", "/v1/projects/p/locations/l/models/m:mergeVersionAliases"),
    ):
        method = documents.find(verb, path)
        assert method is not None and method.request is not None
        shape = Shape(method.document, method.id, sent=True)
        assert not list(shape.wrongs(method.request, body))
        assert list(shape.wrongs(method.request, {**body, "model": {"colour": "red"}})), "the check sees wrong fields"


@pytest.mark.fast
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"project": "My Project"}, "name a project"),
        ({"project": "my-project", "location": "us"}, "name a region"),
        ({"project": "my-project", "model_id": "9"}, "a letter first"),
    ],
)
def test_what_cannot_be_a_registry_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        kinetic.Vertex(**given)  # type: ignore[arg-type]


@pytest.mark.fast
def test_what_vertex_does_not_take_is_refused_before_anything_is_copied(tmp_path: Path) -> None:
    source = tmp_path / "m"
    source.mkdir()
    (source / "model.keras").write_bytes(b"x")
    with pytest.raises(UsageError, match="in Cloud Storage alone"):
        kinetic.promote(source, tmp_path / "place", registry=kinetic.Vertex("my-project"))
    assert not (tmp_path / "place").exists()
    with pytest.raises(UsageError, match="a letter in lower case"):
        kinetic.Vertex("my-project").planned(version(), "Champion")


def test_versions_are_uploaded_once_and_aliases_move(cloud: Emulator) -> None:
    registry = kinetic.Vertex()
    first = registry.register(version(content="1"), "champion")
    assert (first.registry, first.version, first.created) == (NAME, "1", True)
    assert registry.register(version(content="1"), "champion").created is False
    for number in "234":
        assert registry.register(version(content=number), "champion").version == number
    there = {one["versionId"]: one for one in cloud.neighbours.models.versions(NAME)}
    assert (
        len(there) == 4 and there["4"]["versionAliases"] == ["champion"] and there["1"]["versionAliases"] == ["default"]
    )
    assert there["2"]["artifactUri"] == version(content="2").uri
    back = registry.point(version(content="1"), "champion")
    there = {one["versionId"]: one for one in cloud.neighbours.models.versions(NAME)}
    assert (
        back.version == "1"
        and there["1"]["versionAliases"] == ["default", "champion"]
        and not there["4"]["versionAliases"]
    )
    with pytest.raises(RegistryError, match="has no version of ranker"):
        registry.point(version(content="9"), "champion")


def test_lost_answers_make_no_second_version(cloud: Emulator) -> None:
    registry = kinetic.Vertex()
    for number in "12":  # of a new model, and of one that is there
        cloud.lose_answer("UploadModel")
        assert registry.register(version(content=number), "champion").version == number
        assert len(cloud.neighbours.models.versions(NAME)) == int(number)
    cloud.fail("UploadModel", 14)
    assert registry.register(version(content="3"), "").version == "3"


def test_a_version_that_is_listed_late_is_uploaded_once(cloud: Emulator) -> None:
    cloud.neighbours.models.lag = 1
    assert kinetic.Vertex().register(version(), "champion").version == "1"
    assert kinetic.Vertex().register(version(content="2"), "champion").version == "2"
    assert len(cloud.neighbours.models.versions(NAME)) == 2


def test_refusals_come_as_sentences(cloud: Emulator) -> None:
    registry = kinetic.Vertex()
    cloud.deny("client", "aiplatform.models.upload")
    with pytest.raises(RegistryError, match=r"roles/aiplatform.user.*The version stays in its store"):
        registry.register(version(), "")
    cloud.allow("client", "aiplatform.models.upload")
    cloud.fail("ListModelVersions", 14, times=None)
    with pytest.raises(RegistryError, match=r"does not answer.*The version stays in its store"):
        registry.register(version(), "")
    cloud.clear_faults()
    cloud.disable("aiplatform.googleapis.com")
    with pytest.raises(RegistryError, match="Agent Platform API"):
        registry.register(version(), "")
