"""Writes users' labels for the resources of a job, in the letters that Google Cloud and Kubernetes allow. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kinetic_orchestration.errors import UsageError

OURS = "kinetic-"  # how the keys of this package's own labels begin
LIMIT = 63


def label(text: str) -> str:
    """Return text as the value of a label may have it."""
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower())[:LIMIT].strip("-_")


def key(text: str) -> str:
    """Return text as the key of a label may have it; "" if no letter is left."""
    return re.sub(r"^[^a-z]+", "", label(text))


def sent(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that resources get; those without a key or a value, or with a key of ours, are none."""
    named = {key(name): label(text) for name, text in labels.items() if text}
    return {name: text for name, text in named.items() if name and not name.startswith(OURS)}


def check(labels: Mapping[str, str]) -> None:
    """Raise UsageError for a label that no resource would get."""
    for name in labels:
        if key(name).startswith(OURS):
            raise UsageError(
                f"labels has the key {name!r}: keys that begin with {OURS!r} are this package's own, by which it finds "
                "what belongs to a job. Choose another"
            )
        if not key(name):
            raise UsageError(f"labels has the key {name!r}: a label's key needs a letter from a to z")


def shown(labels: Mapping[str, str]) -> str:
    """Return the labels that resources get, for users, each that is changed beside what was asked for."""
    told = []
    for name, text in sorted(labels.items()):
        for one in sent({name: text}).items():
            changed = "" if one == (name, text) else f" (of {name}={text}: {LIMIT} of a-z, 0-9, '-' and '_' at most)"
            told.append(f"{'='.join(one)}{changed}")
    return ", ".join(told)
