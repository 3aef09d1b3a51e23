"""Data: what the user writes for a file or folder that a job reads."""

from __future__ import annotations

import copy
import logging
import pickle
from pathlib import Path

import pytest

from kinetic_orchestration.errors import DataNotFound, UsageError
from kinetic_orchestration.plan.declare.data import Data

pytestmark = pytest.mark.fast


def test_a_folder_and_a_file_have_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "données").mkdir()
    (tmp_path / "a file.csv").touch()
    monkeypatch.chdir(tmp_path)
    folder, file = Data("données/"), Data(Path("a file.csv"), fuse=True)
    assert (folder.path, folder.is_dir, folder.fuse) == (str(tmp_path / "données"), True, False)
    assert (file.path, file.is_dir, file.fuse) == (str(tmp_path / "a file.csv"), False, True)
    assert not folder.is_gcs and not folder.is_hf and not folder.hf_trust_remote_code
    assert repr(folder) == "Data('données/')" and repr(file) == "Data('a file.csv', fuse=True)"


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "sets").mkdir()
    assert Data("~/sets").path == str(tmp_path / "sets")


def test_a_path_that_does_not_exist_is_refused_with_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataNotFound, match=str(tmp_path / "nowhere")) as caught:
        Data("nowhere")
    assert isinstance(caught.value, FileNotFoundError)
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(DataNotFound, match="broken link"):
        Data("link")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "names nothing"),
        (None, "not a NoneType"),
        (3, "not a int"),
        (b"x", "not bytes"),
        ("gs://", "no bucket"),
        ("hf://", "no dataset"),
        (Path("gs://bucket/x"), "lost a slash"),
        ("s3://", "no bucket"),
        (Path("s3://bucket/x"), "lost a slash"),
        ("ftp://bucket/x", "ftp:// is not supported"),
    ],
)
def test_what_is_no_path_is_refused(path: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Data(path)


def test_addresses_in_cloud_storage_and_hugging_face(caplog: pytest.LogCaptureFixture) -> None:
    folder, one, dataset = (
        Data("gs://b/set/"),
        Data("gs://b/w.h5"),
        Data("hf://imdb?split=train", hf_trust_remote_code=True),
    )
    assert (folder.is_gcs, folder.is_dir, folder.path) == (True, True, "gs://b/set/")
    assert (one.is_gcs, one.is_dir) == (True, False)
    assert (dataset.is_hf, dataset.is_dir, dataset.hf_trust_remote_code) == (True, True, True)
    assert "hf_trust_remote_code=True" in repr(dataset)
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        Data("gs://b/set")
    assert "gs://b/set/" in caplog.text


def test_options_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match="cannot be mounted"):
        Data("hf://imdb", fuse=True)
    with pytest.raises(UsageError, match="is for hf://"):
        Data("gs://b/x.csv", hf_trust_remote_code=True)


def test_data_can_be_pickled_and_copied(tmp_path: Path) -> None:
    data = Data(tmp_path, fuse=True)
    for twin in (pickle.loads(pickle.dumps(data)), copy.deepcopy(data)):
        assert (twin.path, twin.fuse, repr(twin)) == (data.path, True, repr(data))
