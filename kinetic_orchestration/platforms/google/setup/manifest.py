"""The manifest of a set-up: an object at the top of its bucket that says what was there before, and by which answers
the rest was made. It is foreign until it has passed its checks, and what it says is held against the project.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, TypeGuard

from kinetic_orchestration.errors import SetupError, UsageError
from kinetic_orchestration.platforms.google.setup import table
from kinetic_orchestration.platforms.google.setup.table import MANIFEST, Wish

VERSION: Final = 1
_MOST: Final = 1000  # names, and members
_LONGEST: Final = 2000


@dataclass(frozen=True, slots=True)
class Manifest:
    """The answers and findings by which a set-up was made.

    Attributes:
        wishes: The answers: of several runs, those that differ in more than in who submits.
        found: The names of items that were there before, and are not taken back.
    """

    wishes: tuple[Wish, ...]
    found: frozenset[str] = frozenset()

    def to_json(self) -> dict[str, Any]:
        wishes = [{**asdict(wish), "submitters": list(wish.submitters)} for wish in self.wishes]
        return {"version": VERSION, "wishes": wishes, "found": sorted(self.found)}

    def covers(self, wish: Wish) -> bool:
        """Return True if what these answers make is in it."""
        return self.with_wish(wish).wishes == self.wishes

    def with_wish(self, wish: Wish, found: frozenset[str] = frozenset()) -> Manifest:
        """Return it after one more run. `found`: the names that this one has met and that none before has made."""
        wishes = list(self.wishes)
        for index, known in enumerate(wishes):
            if _place(known) == _place(wish):
                members = tuple(dict.fromkeys((*known.submitters, *wish.submitters)))
                wishes[index] = replace(known, submitters=members, shell=known.shell or wish.shell)
                break
        else:
            wishes.append(wish)
        made = {table.name_of(item) for known in self.wishes for item in table.items(table.setup(known))}
        return Manifest(tuple(wishes), self.found | (found - made))


def _place(wish: Wish) -> Wish:
    return replace(wish, submitters=(), shell=False)


def read(told: Mapping[str, Any], project: str, bucket: str) -> Manifest:
    """Return the manifest that a bucket holds.

    Raises:
        SetupError: It is none, or it is about another project or bucket.
    """
    where = f"gs://{bucket}/{MANIFEST}"
    if told.get("version") != VERSION:
        raise SetupError(
            f"{where} has the version {str(told.get('version'))[:20]!r}, and this kinor reads {VERSION}: use the one "
            "that made it, or move the object away if nobody did"
        )
    wishes, found = told.get("wishes"), told.get("found")
    if not isinstance(wishes, list) or not 1 <= len(wishes) <= _MOST or not _are_names(found):
        raise _bad(where)
    known = tuple(_wish(wish, where) for wish in wishes)
    for wish in known:
        if (wish.project, wish.bucket) != (project, bucket):
            raise SetupError(
                f"{where} is about the project {wish.project} and the bucket {wish.bucket}, and not about {project}: "
                "it was copied here. Move it away, or name the other bucket"
            )
    return Manifest(known, frozenset(found))


def _are_names(told: object) -> TypeGuard[list[str]]:
    return (
        isinstance(told, list)
        and len(told) <= _MOST
        and all(isinstance(one, str) and len(one) <= _LONGEST for one in told)
    )


def _wish(told: object, where: str) -> Wish:
    if not isinstance(told, Mapping):
        raise _bad(where)
    values: dict[str, Any] = {}
    for field in fields(Wish):
        value = told.get(field.name)
        if field.name == "submitters" and _are_names(value):
            values[field.name] = tuple(value)
        elif (field.type == "bool" and isinstance(value, bool)) or (
            field.type == "str" and isinstance(value, str) and len(value) <= _LONGEST
        ):
            values[field.name] = value
        else:
            raise _bad(where)
    try:
        return table.checked(Wish(**values))
    except UsageError as error:
        raise SetupError(f"{where} cannot be used: {error}") from None


def _bad(where: str) -> SetupError:
    return SetupError(
        f"{where} is no manifest of a set-up: somebody has changed it. Look at it (gcloud storage cat {where}), and "
        "move it away: then what is there counts as found, and only what says 'Made by kinor init' is taken back"
    )
