"""The profile that a set-up writes: whatever it is called, and wherever its file lies."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from kinetic_orchestration.platforms.google.setup import profile

pytestmark = pytest.mark.fast
VALUES = {"project": "a-project", "require_hardware": True}


@pytest.mark.parametrize("name", ["default", "a.b", 'x]\n[y "z', "größer als"])
def test_a_profile_is_one_table_whatever_it_is_called_and_a_link_stays_one(tmp_path: Path, name: str) -> None:
    kept, link = tmp_path / "kept.toml", tmp_path / "profiles.toml"
    kept.write_text('[mine]\nstore = "/data"\n')
    link.symlink_to(kept)
    assert profile.write(link, name, VALUES) == profile.ADDED
    assert profile.write(link, name, VALUES) == profile.KEPT
    assert profile.write(link, name, VALUES | {"project": "another"}) == profile.DIFFERENT
    assert link.is_symlink()
    assert tomllib.loads(kept.read_text(encoding="utf-8")) == {"mine": {"store": "/data"}, name: VALUES}
