"""Field selectors: which objects of a kind they choose, by fields that differ from kind to kind. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from kinetic_orchestration.testing.kubernetes.api import answers, kinds
from kinetic_orchestration.testing.kubernetes.api.answers import Object
from kinetic_orchestration.testing.kubernetes.api.kinds import Kind

_ALWAYS = ("metadata.name", "metadata.namespace")
_OF_KINDS = {
    kinds.PODS: (
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
        "status.phase", "status.podIP", "status.podIPs", "status.nominatedNodeName",
    ),
    kinds.EVENTS: (
        "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
        "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason",
        "reportingComponent", "source", "type",
    ),
    kinds.NODES: ("spec.unschedulable",),
    kinds.NAMESPACES: ("status.phase",),
    kinds.JOBS: ("status.successful",),
    kinds.SECRETS: ("type",),
}  # fmt: skip
_NOT_SET = {"spec.hostNetwork": "false", "spec.unschedulable": "false", "status.successful": "0"}
_TERM = re.compile(r"(?:\\.|[^,\\])+\\?|\\", re.DOTALL)  # up to a comma that nothing escapes
_OPERATOR = re.compile(r"!=|==|=")


class _Term(NamedTuple):
    field: str
    value: str
    equal: bool


def chosen(kind: Kind, selector: str, found: Sequence[Object]) -> Sequence[Object]:
    """Return the objects of a kind that a selector chooses. Raises Refused."""
    terms = [_term(part, selector) for part in _TERM.findall(selector)]
    for term in terms:
        if term.field not in (*_ALWAYS, *_OF_KINDS.get(kind, ())):
            raise answers.bad(f"field label not supported: {term.field}")
    return [one for one in found if all((_value(one, it.field) == it.value) is it.equal for it in terms)]


def _term(part: str, selector: str) -> _Term:
    operator = _OPERATOR.search(part)
    if operator is None:
        raise answers.bad(f"invalid selector: '{selector}'; can't understand '{part}'")
    return _Term(part[: operator.start()], _plain(part[operator.end() :]), operator[0] != "!=")


def _plain(escaped: str) -> str:
    """Return a value without its escapes. Raises Refused."""
    if (wrong := re.search(r"\\([^\\,=]|$)", re.sub(r"\\[\\,=]", "", escaped), re.DOTALL)) is not None:
        raise answers.bad(f"invalid field selector: invalid escape sequence: {wrong[0]}")
    if (bare := re.search(r"(?<!\\)=", re.sub(r"\\\\", "", escaped))) is not None:
        raise answers.bad(f"invalid field selector: unescaped character in value: {ord(bare[0])}")
    return re.sub(r"\\(.)", r"\1", escaped)


def _value(found: Object, field: str) -> str:
    if field == "source":
        return str((found.get("source") or {}).get("component") or found.get("reportingComponent", ""))
    path = "status.succeeded" if field == "status.successful" else field
    value: Any = found
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (str, int)) else _NOT_SET.get(field, "")
