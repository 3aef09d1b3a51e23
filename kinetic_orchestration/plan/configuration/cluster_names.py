"""Rules of Kubernetes for the names of objects and for labels, wherever a user declares one. Pure."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from kinetic_orchestration.errors import UsageError

_PART = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_WORD = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"


class Rule(NamedTuple):
    """A rule for names: a pattern, the greatest length, and both in words."""

    pattern: str  # compiled when it is first asked
    longest: int
    says: str


NAMESPACE = Rule(
    _PART,
    63,
    "a namespace has small letters, digits and '-', begins and ends with a letter or a digit, and is 63 letters long "
    "at most",
)
OBJECT = Rule(
    rf"{_PART}(?:\.{_PART})*",
    253,
    "such a name has small letters, digits, '-' and '.', begins and ends with a letter or a digit, as does each part "
    "between dots, and is 253 letters long at most",
)
OF_QUEUE = Rule(OBJECT.pattern, 63, OBJECT.says.replace("253", "63"))  # which is the value of a label, too
KEY_OF_SECRET = Rule(
    r"[-._A-Za-z0-9]+",
    253,
    "a key of a Secret has letters, digits, '-', '_' and '.', and is 253 letters long at most",
)
LABEL_VALUE = Rule(
    rf"(?:{_WORD})?",
    63,
    "a label's value has letters, digits, '-', '_' and '.', begins and ends with a letter or a digit, and is 63 "
    "letters long at most",
)
_LABEL_NAME = Rule(
    _WORD,
    63,
    "a label's key has letters, digits, '-', '_' and '.', begins and ends with a letter or a digit, and is 63 letters "
    "long at most; before it may be a domain and '/', as in cloud.google.com/gke-nodepool",
)


def check(option: str, name: Any, rule: Rule) -> None:
    """Raise UsageError unless a name is as the rule has it. `option`: where it was declared, for the message."""
    if not _has(name, rule):
        raise UsageError(f"{option} has {name!r}, which Kubernetes never accepts: {rule.says}")


def check_label_key(option: str, key: Any) -> None:
    """Raise UsageError unless Kubernetes can have a label of this key."""
    domain, slash, name = key.rpartition("/") if isinstance(key, str) else ("", "", key)
    if not _has(name, _LABEL_NAME) or (slash and not _has(domain, OBJECT)):
        raise UsageError(f"{option} has the key {key!r}, which Kubernetes never accepts: {_LABEL_NAME.says}")


def _has(name: Any, rule: Rule) -> bool:
    return isinstance(name, str) and len(name) <= rule.longest and re.fullmatch(rule.pattern, name) is not None
