"""The kind of place that a store's address names."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.configuration.store_address import bucket_path, is_folder, resolve

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("address", "folder", "in_bucket"),
    [
        ("gs://bucket", False, "bucket"),
        ("gs://bucket/kinetic", False, "bucket/kinetic"),
        ("s3://bucket", False, None),
        ("/a/store", True, None),
        ("a store", True, None),
        ("file:///a/store", True, None),
        ("FILE://localhost/a/store", True, None),
    ],
)
def test_an_address_is_of_a_folder_or_of_a_bucket(address: str, folder: bool, in_bucket: str | None) -> None:
    assert (is_folder(address), bucket_path(address)) == (folder, in_bucket)


def test_a_folder_has_one_address_in_every_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    whole = tmp_path / "my störe"
    url = whole.as_uri()
    for address in ("my störe", "~/my störe", str(whole), url, f"{url}/", url.replace("file://", "file://localhost")):
        assert resolve(address) == str(whole), address
    assert resolve(f"{url}/a#b?c") == f"{whole}/a#b?c"  # a folder's name may hold both
    assert resolve("") == "" and resolve("gs://bucket/p") == "gs://bucket/p"


@pytest.mark.parametrize("address", ["file://host/x", "file://x", "file://[x"])
def test_a_file_address_of_another_machine_or_of_no_folder_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="three slashes"):
        resolve(address)
