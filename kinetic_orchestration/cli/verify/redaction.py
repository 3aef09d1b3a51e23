"""Redaction of API answers: values that are known to be harmless stay, and placeholders replace the rest.

It uses a list of values that may be shown, never one of values that may not. Names of fields stay; a value
stays if its field is listed here and it has the form of the field's values. In a text, the words that this
package's own source contains stay, so that an error of Google's can still be recognised. The same name is the same
placeholder throughout a report. Zones and accelerator types stay: without them a report is useless.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import kinetic_orchestration

TEXT, NUMBER, TIME, LENGTH, GONE = "TEXT", "NUMBER", "TIME", "DURATION", "…"

_ENUM = r"[A-Z][A-Z0-9_]{1,50}"
_PLACES = "us|europe|asia|australia|me|africa|northamerica|southamerica"
_SIDES = "north|south|east|west|central|northeast|northwest|southeast|southwest"
REGION = rf"(?:{_PLACES})-(?:{_SIDES})\d{{1,2}}"
ZONE = rf"{REGION}-[a-z]"
_ACCELERATOR = r"v\d{1,2}[a-z]*-\d{1,5}"
_RUNTIME = r"(?:tpu|v2-alpha)-[a-z]+[a-z0-9.-]{0,30}|v2-alpha-tpuv\d[a-z]*(?:-lite)?(?:-pod)?"
_GOOGLE = r"(?:[a-z]{2,30}\.)?googleapis\.com"
_PERMISSION = r"[a-z]{2,30}\.[A-Za-z]{2,40}\.[A-Za-z]{2,40}"
_VERB = r"create|delete|update|reset|start|stop"
# field → the form of its values that are shown
SHOWN: Mapping[str, str] = {
    **dict.fromkeys(
        ("state", "stateInitiator", "health", "symptomType", "apiVersion", "type", "mode", "status", "reason"), _ENUM
    ),
    **dict.fromkeys(("acceleratorType", "accelerator-type"), _ACCELERATOR),
    "runtimeVersion": _RUNTIME,
    **dict.fromkeys(("topology", "acceleratorTopology"), r"\d{1,3}x\d{1,3}(?:x\d{1,3})?"),
    **dict.fromkeys(("locationId", "zone", "region", "location"), rf"{ZONE}|{REGION}|global"),
    "@type": r"type\.googleapis\.com/google\.(?:[a-z]+[0-9]*\.){1,6}[A-Za-z]{1,60}",
    **dict.fromkeys(("domain", "service"), _GOOGLE),
    **dict.fromkeys(("permission", "permissions"), _PERMISSION),
    "quota_metric": r"tpu\.googleapis\.com/[a-z/_]{1,60}",
    "verb": _VERB,
    "kind": r"storage#[A-Za-z]{1,30}",
    "scope": r"https://www\.googleapis\.com/auth/[a-z._-]{1,60}",
    **dict.fromkeys(("check", "of", "header"), r"[A-Za-z][A-Za-z -]{0,40}"),  # ours: the checks of a host or `doctor`
}
# The kind of a value, as hosts report it of their metadata.
FORMS = frozenset(
    {
        "text", "number", "addresses", "triples with addresses", "lines of NAME: 'value'", "nothing", "no answer",
        "TRUE", "FALSE", "NONE",
    }
)  # fmt: skip
SHOWN_NUMBERS = frozenset(
    {"code", "nodeCount", "hosts", "slices", "pageSize", "status", "state", "stateInitiator", "health", "symptomType"}
)
# Tables with arbitrary keys: only these are shown.
_TABLES = ("labels", "metadata", "annotations", "tags", "attributes")
_KEYS = frozenset(
    {
        *(f"kinetic-{name}" for name in ("deployment", "job", "attempt", "expires", "spec", "slices", "mark")),
        "startup-script", "kinetic", "accelerator-type", "agent-worker-number", "instance-id", "tpu-env",
        "worker-network-endpoints", "agent-bootstrap-image", "agent-node-name", "cluster-name", "enable-oslogin",
        "serial-port-logging-enable", "ssh-keys", "tpu-tags", "user-data", "attached-disks",
        "service", "consumer", "permission", "resource", "quota_metric", "quota_limit", "quota_limit_value",
        "quota_location", "activationUrl", "uid", "w", "s",
        "@type", "createTime", "endTime", "target", "verb", "statusDetail", "cancelRequested", "apiVersion",
    }
)  # fmt: skip
_STAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?")
_LENGTH = re.compile(r"\d+(?:\.\d+)?s")
_RESOURCE = re.compile(r"(?://[a-z.]+/)?projects/[^/\s'\"]+(?:/[^\s'\",;)\]]+)?")
_LINK = re.compile(r"https://(?:www|compute)\.googleapis\.com/compute/[a-z0-9]+/(?=projects/)")
# Parts of a path after which a name comes, and those after which none does.
_HOLDERS = frozenset(
    {
        "projects", "locations", "queuedResources", "nodes", "operations", "secrets", "versions", "networks",
        "subnetworks", "regions", "zones", "reservations", "disks", "acceleratorTypes", "runtimeVersions",
        "serviceAccounts", "services", "b", "o", "instances", "images", "family", "machineTypes", "diskTypes",
        "instanceGroupManagers", "instanceGroups", "instanceTemplates", "resourcePolicies",
    }
)  # fmt: skip
_FIXED = frozenset(
    {
        "global", "v1", "v2", "v1beta1", "storage", "upload", "download", "resumable", "limits",
        "consumerQuotaMetrics", "rewriteTo", "compute", "aggregated", "serialPort", "testIamPermissions",
    }
)  # fmt: skip
_NAMED = {"projects": "PROJECT", "serviceAccounts": "ACCOUNT", "b": "BUCKET", "secrets": "SECRET", "o": "OBJECT"}
_ALONE = ("PROJECT", "BUCKET")  # of which a run has one: the word needs no number
_TOKEN = re.compile(r"[A-Za-z0-9_@%+=~#-]+(?:[./:][A-Za-z0-9_@%+=~#-]+)*")
_KEPT = re.compile(
    rf"{ZONE}|{REGION}|{_ACCELERATOR}|{_GOOGLE}|TPUV?\d?[A-Za-z0-9]{{0,60}}|\d{{1,4}}(?:\.\d{{1,4}}){{0,2}}|[A-Z]"
    r"|\d{4}-\d\d-\d\d|roles/[a-z]+\.[A-Za-z]+|limits\.[a-z]+"
)
_WORD = re.compile(r"[A-Za-z]+")
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_FIELD = re.compile(r"@?([A-Za-z]+(?:_[A-Za-z]+)*)\d{0,2}")


class Redactor:
    """`known`: values of this run that must never be seen, each with the word that stands for it."""

    def __init__(self, known: Mapping[str, str]) -> None:
        found = {value: word for value, word in known.items() if len(value) > 1}
        self._known = dict(sorted(found.items(), key=lambda item: -len(item[0])))
        self._numbers: dict[tuple[str, str], str] = {}
        self._pattern = re.compile("|".join(map(re.escape, self._known)), re.I) if self._known else None

    def placeholder(self, kind: str, value: str) -> str:
        """The same for the same value: NAME-1, NAME-2, …"""
        if value in self._known:
            return self._known[value]
        return self._numbers.setdefault((kind, value), f"{kind}-{1 + sum(of == kind for of, _ in self._numbers)}")

    def plain(self, value: Any, field: str = "") -> Any:
        """A structure with its shape, redacted."""
        if isinstance(value, Mapping):
            return {self.key(str(key), field): self.plain(item, str(key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain(item, field) for item in value]
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            return value if field in SHOWN_NUMBERS and abs(value) < 10_000 else NUMBER
        return self._text_of(str(value), field)

    def key(self, key: str, field: str = "") -> str:
        """The name of a field within another; in a table with arbitrary keys, only known ones."""
        shown = key in _KEYS or (field not in _TABLES and _is_a_field(key) and not self._is_known(key))
        return key if shown else self.placeholder("KEY", key)

    def _text_of(self, text: str, field: str) -> str:  # noqa: PLR0911 - a list of cases, the first that fits
        if (form := SHOWN.get(field)) and re.fullmatch(form, text) and not self._is_known(text):
            return text
        if text in FORMS:
            return text
        if field in ("message", "description", "error", "found", "failed") and text:
            return self.text(text)
        if _STAMP.fullmatch(text):
            return TIME
        if _LENGTH.fullmatch(text):
            return LENGTH
        if _RESOURCE.fullmatch(bare := _LINK.sub("", text)):
            return self.path(bare)
        return TEXT if text else ""

    def _is_known(self, text: str) -> bool:
        return text.lower() in (value.lower() for value in self._known)

    def path(self, path: str) -> str:
        """The name of a resource, or the path of a request: its collections stay, names become placeholders."""
        shown: list[str] = []
        of = ""
        for part in path.split("/"):
            named = of in _HOLDERS and part not in ("", "-", "family")
            if not named and (part in _HOLDERS or part in _FIXED or part in ("", "-")):
                shown.append(part)
                of = part
                continue
            shown.append(self._named(part, of))
            of = ""
        return "/".join(shown)

    def _named(self, part: str, of: str) -> str:
        kind = _NAMED.get(of, "NAME")
        if of in ("locations", "zones", "regions") and re.fullmatch(rf"{ZONE}|{REGION}", part):
            return part
        if re.fullmatch(rf"{_GOOGLE}|{_ACCELERATOR}|latest", part):
            return part
        bare, _, verb = part.partition(":")
        end = f":{verb}" if re.fullmatch(r"[a-z][A-Za-z]{2,30}", verb) and _is_a_field(verb) else ""
        bare = bare if end else part
        return (kind if kind in _ALONE and bare in self._known else self.placeholder(kind, bare)) + end

    def text(self, text: str) -> str:
        """Redact an error or a sentence of ours: names of resources as `path` has them, known words, small numbers."""
        text = _RESOURCE.sub(lambda found: f"\0{self.path(found[0])}\0", text)
        parts = text.split("\0")
        return "".join(part if index % 2 else self._words(part) for index, part in enumerate(parts))

    def _words(self, text: str) -> str:
        if self._pattern is not None:
            text = self._pattern.sub(lambda found: f"\1{self._word_for(found[0])}\1", text)
        parts = text.split("\1")
        shown = (part if index % 2 else _TOKEN.sub(_shown, part) for index, part in enumerate(parts))
        return "".join(shown).replace("\x1b", "")

    def _word_for(self, found: str) -> str:
        return next(word for value, word in self._known.items() if value.lower() == found.lower())

    def redact_page(self, text: str) -> str:
        """Redact a whole page again after it is written, so that no secret value is in it from any source."""
        if self._pattern is not None:
            for value, word in self._known.items():
                if len(value) > 5 and value.lower() not in _words_known():
                    text = text.replace(value, word)
        for form in _NEVER:
            text = form.sub(GONE, text)
        return text


_NEVER = (
    re.compile(r"[A-Za-z0-9_.+-]+@[A-Za-z0-9-]+\.[A-Za-z0-9.-]+"),
    re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b"),
    re.compile(r"\bya29\.[A-Za-z0-9_.-]+|\bAIza[A-Za-z0-9_-]{10,}|\beyJ[A-Za-z0-9_-]{10,}"),
    re.compile(r"-----BEGIN [A-Z ]+-----"),
)


def _shown(found: re.Match[str]) -> str:
    token = found[0]
    if _KEPT.fullmatch(token) or token in _compounds() or (_WORD.fullmatch(token) and token.lower() in _words_known()):
        return token
    return GONE


def _is_a_field(name: str) -> bool:
    """Made of words that this package knows, as Google's fields are."""
    letters = _FIELD.fullmatch(name)
    return letters is not None and all(
        len(part) > 1 and part.lower() in _words_known() for part in _PARTS.findall(letters[1])
    )


@functools.cache
def _words_known() -> frozenset[str]:
    """Also the parts of joined ones: accelerator and type of acceleratorType."""
    words = (word for source in _sources() for word in _WORD.findall(source))
    return frozenset(part.lower() for word in words for part in (word, *_PARTS.findall(word)))


@functools.cache
def _compounds() -> frozenset[str]:
    """Words that are joined, such as queued-resources, as they are written here."""
    return frozenset(token for source in _sources() for token in _TOKEN.findall(source) if not token.isdecimal())


@functools.cache
def _sources() -> tuple[str, ...]:
    folder = Path(kinetic_orchestration.__file__).parent
    return tuple(path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py")))


def known_of(values: Iterable[tuple[str, str]]) -> dict[str, str]:
    """A map of values and their parts, as they appear in messages, to words, from pairs of a word and a value."""
    found: dict[str, str] = {}
    for word, value in values:
        for part in (value, value.removeprefix("gs://"), value.partition("@")[0]):
            if part and part not in found:
                found[part] = word
    return found
