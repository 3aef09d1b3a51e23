"""Names of pinned files that some disks cannot tell apart."""

from __future__ import annotations

import pytest

from kinetic_orchestration.protocol.content import pins

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("names", "pair"),
    [
        (["README.md", "config.json", "weights/a", "weights/b"], None),
        (["README.md", "readme.md"], ("README.md", "readme.md")),
        (["a/Weights/x", "a/weights/y"], ("a/Weights", "a/weights")),
        (["data", "Data/x"], ("data", "Data")),
        (["Model/x", "model"], ("Model", "model")),
        (["caf\u00e9", "cafe\u0301"], ("caf\u00e9", "cafe\u0301")),
        (["STRASSE", "stra\u00dfe"], ("STRASSE", "stra\u00dfe")),
        (["weights/a", "weights-a", "a/weights"], None),
    ],
)
def test_names_that_are_one_where_neither_case_nor_accents_are_told_apart(
    names: list[str], pair: tuple[str, str] | None
) -> None:
    assert pins.alike(names) == pair
