"""Objects of the Kubernetes API as plain data: reading them, and making changed ones. Pure; none is ever modified."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from kinetic_orchestration.testing.kubernetes.api.answers import Object

_UNITS = {
    **{unit: 1000.0**power for power, unit in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P"), -3)},
    **{unit: 1024.0**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), 1)},
}
_QUANTITY = re.compile(r"([0-9.]+)([A-Za-z]*)")
# Keys by which a strategic merge finds the items of a list; lists of others are replaced as a whole.
_MERGED_BY = {
    "conditions": "type", "taints": "key", "addresses": "type", "podIPs": "ip", "containers": "name", "env": "name",
}  # fmt: skip


def stamp(moment: float | None = None) -> str:
    """Return a time, now if none is given, as the API writes it."""
    found = datetime.now(UTC) if moment is None else datetime.fromtimestamp(moment, UTC)
    return found.strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str | None) -> float:
    """Return a time of the API as seconds; 0 for none."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0


# ---- reading


def name_of(found: Mapping[str, Any]) -> str:
    return str(found["metadata"]["name"])


def namespace_of(found: Mapping[str, Any]) -> str:
    return str(found["metadata"].get("namespace", ""))


def uid_of(found: Mapping[str, Any]) -> str:
    return str(found["metadata"]["uid"])


def labels_of(found: Mapping[str, Any]) -> Mapping[str, str]:
    return found["metadata"].get("labels") or {}


def annotations_of(found: Mapping[str, Any]) -> Mapping[str, str]:
    return found["metadata"].get("annotations") or {}


def is_deleting(found: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in found["metadata"]


def owner_of(found: Mapping[str, Any]) -> Object | None:
    """Return the reference to the controller of an object; None if it has none."""
    return next((one for one in found["metadata"].get("ownerReferences") or () if one.get("controller")), None)


def condition(found: Mapping[str, Any], kind: str) -> Object | None:
    conditions = (found.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == kind), None)


def holds(found: Mapping[str, Any], kind: str) -> bool:
    """Return True if there is such a condition and it is true."""
    told = condition(found, kind)
    return told is not None and told["status"] == "True"


def phase_of(pod: Mapping[str, Any]) -> str:
    return str((pod.get("status") or {}).get("phase", ""))


def quantity(text: str | int | float) -> float:
    """Return a quantity such as 500m or 2Gi as a number; nothing of it counts that is none."""
    match = _QUANTITY.fullmatch(str(text))
    return float(match[1]) * _UNITS.get(match[2], 1.0) if match else 0.0


def amount(value: float) -> str:
    """Return a number as a quantity without a unit."""
    return f"{value:g}" if value != int(value) else str(int(value))


def requests_of(pod_spec: Mapping[str, Any]) -> dict[str, float]:
    """Return all that the containers of a pod ask of a node."""
    found: dict[str, float] = {}
    for container in pod_spec.get("containers", ()):
        for resource, told in (container.get("resources", {}).get("requests") or {}).items():
            found[resource] = found.get(resource, 0.0) + quantity(told)
    return found


# ---- changing


def with_meta(found: Mapping[str, Any], **fields: Any) -> Object:
    """Return an object with other metadata; None takes a field away."""
    return {**found, "metadata": _without_none({**found["metadata"], **fields})}


def with_spec(found: Mapping[str, Any], **fields: Any) -> Object:
    return {**found, "spec": _without_none({**found.get("spec", {}), **fields})}


def with_status(found: Mapping[str, Any], **fields: Any) -> Object:
    return {**found, "status": _without_none({**found.get("status", {}), **fields})}


def with_condition(found: Mapping[str, Any], kind: str, status: str, reason: str, message: str, **more: Any) -> Object:
    """Return an object with a condition, which keeps its time unless its status changes."""
    before = condition(found, kind)
    since = before["lastTransitionTime"] if before is not None and before["status"] == status else stamp()
    told = {"type": kind, "status": status, **more, "lastTransitionTime": since, "reason": reason, "message": message}
    conditions = list(found.get("status", {}).get("conditions") or ())
    at = next((index for index, one in enumerate(conditions) if one["type"] == kind), len(conditions))
    conditions[at : at + 1] = [told]
    return with_status(found, conditions=conditions)


def without_finalizer(found: Mapping[str, Any], finalizer: str) -> Object:
    left = [one for one in found["metadata"].get("finalizers") or () if one != finalizer]
    return with_meta(found, finalizers=left or None)


def reference_to(found: Mapping[str, Any]) -> Object:
    """Return the owner reference of what a controller of this object makes."""
    return {
        "apiVersion": found["apiVersion"], "kind": found["kind"], "name": name_of(found), "uid": uid_of(found),
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip


def event_name(about: str) -> str:
    """Return a name for an event about an object; names are in the order of their events."""
    return f"{about}.{time.time_ns():x}"


def _without_none(fields: Mapping[str, Any]) -> Object:
    return {name: value for name, value in fields.items() if value is not None}


def merged(found: Any, patch: Any, *, strategic: bool, name: str = "") -> Any:
    """Return a value with a patch: a merge patch, or a strategic one, which finds items of lists by their keys."""
    if isinstance(patch, Mapping):
        fields = dict(found) if isinstance(found, Mapping) else {}
        for key, value in patch.items():
            if value is None:
                fields.pop(key, None)
            else:
                fields[key] = merged(fields.get(key), value, strategic=strategic, name=key)
        return fields
    if isinstance(patch, list) and strategic and name in _MERGED_BY and isinstance(found, list):
        return _merged_items(found, patch, _MERGED_BY[name])
    if isinstance(patch, list) and name in _MERGED_BY:
        return [merged({}, item, strategic=strategic) for item in patch]
    return patch


def _merged_items(found: list[Any], patch: list[Any], key: str) -> list[Any]:
    fresh = {item[key]: item for item in patch}
    kept = [merged(item, fresh.pop(item[key], {}), strategic=True) for item in found]
    return [merged({}, item, strategic=True) for item in fresh.values()] + kept


# ---- selectors


class Unparsable(ValueError):
    """A selector that is none, with the server's sentence."""


_SET = re.compile(r"\s*([\w./-]+)\s+(in|notin)\s*\(([^)]*)\)\s*")
_PLAIN = re.compile(r"\s*(!?)\s*([\w./-]+)\s*(?:(==|=|!=)\s*([\w.-]*))?\s*")


def selects(selector: str, labels: Mapping[str, str]) -> bool:
    """Return True if labels match a selector. Raises Unparsable."""
    return all(_meets(part, labels) for part in _parts(selector))


def _parts(selector: str) -> Iterable[str]:
    return filter(str.strip, re.split(r",(?![^(]*\))", selector))


def _meets(part: str, labels: Mapping[str, str]) -> bool:
    if (match := _SET.fullmatch(part)) is not None:
        values = {value.strip() for value in match[3].split(",")}
        return (labels.get(match[1]) in values) is (match[2] == "in")
    match = _PLAIN.fullmatch(part)
    if match is None:
        raise Unparsable("unable to parse requirement: found '', expected: ',' or ')'")
    negated, key, operator, value = match.groups()
    if operator is None:
        return (key in labels) is not bool(negated)
    return (labels.get(key) == value) is (operator != "!=")


def selected_by(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return True if labels match one expression of an object's selector: a key, an operator, values."""
    value, operator = labels.get(expression["key"]), expression["operator"]
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    return (value in expression.get("values", ())) is (operator == "In")
