"""The contract of a bucket's records as hosts read and write them: that of every store's, less what only a client has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.testing.contracts.store import RecordsContract


class HostRecordsContract(RecordsContract):
    """The tests take the fixtures `address`, of an empty deployment, and `records`, opened there.

    Attributes:
        paging: The module whose PAGE is the objects of one listing.
    """

    paging: Any
    rounds = 40
    many = 250
    # A host's records are no store: nothing asks them what their calls cost.
    test_calls_that_are_requests_are_worth_making_side_by_side_and_nothing_rings = None

    @pytest.fixture(autouse=True)
    def small_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Set pages of a hundred instead of a thousand objects."""
        monkeypatch.setattr(self.paging, "PAGE", 100)

    @pytest.fixture
    def where(self, address: str) -> list[Any]:
        return [address]

    @pytest.fixture
    def store(self, records: Any) -> Any:
        return records

    def test_what_does_not_exist_is_an_answer(self, store: Any, tmp_path: Path) -> None:
        """The same as in the contract, in which a refusal is the client's."""
        store.create("jobs/a", b"x")
        for name in ("nothing", "jobs/b", "jobs/a/below", "jobs"):
            assert store.read(name) is None
            assert store.delete(name) is False
            assert store.swap(name, b"y", 1) is None
        with pytest.raises(FileNotFoundError, match=r"Cannot read nothing .*: there is no such object"):
            store.download("nothing", str(tmp_path / "file"))
        assert list(tmp_path.glob("file*")) == []
