"""The size of an object that a server takes: by the rules of its kind, and by those of etcd, which keeps it. Pure."""

from __future__ import annotations

import json

from kinetic_orchestration.testing.kubernetes.api import answers, kinds
from kinetic_orchestration.testing.kubernetes.api.answers import About, Fault, Object
from kinetic_orchestration.testing.kubernetes.api.kinds import Kind

_DATA = 1 << 20  # bytes of all values of a ConfigMap or a Secret
_ETCD = 3 << 19  # bytes of a request
_SENT = 2 << 20  # bytes of a message that is sent at all
_AROUND = 200  # bytes of a request that are not the object


def check_data(kind: Kind, found: Object) -> None:
    """Refuse a ConfigMap or a Secret that holds too much. Raises Refused."""
    values = found.get("data") or {}
    if kind is kinds.CONFIG_MAPS:
        size, field = sum(len(str(value).encode()) for value in values.values()), "[]"
    elif kind is kinds.SECRETS:
        size, field = sum(len(value) * 3 // 4 - value.count("=") for value in values.values()), "data"  # in base64
    else:
        return
    if size > _DATA:
        fault = Fault(field, f"Too long: may not be more than {_DATA} bytes", "FieldValueTooLong")
        raise answers.invalid(About(kind.group, kind.name, found["metadata"]["name"]), [fault])


def check_stored(found: Object) -> None:
    """Refuse an object that etcd does not take. Raises Refused."""
    size = len(json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode()) + _AROUND
    if size > _SENT:
        told = f"rpc error: code = ResourceExhausted desc = trying to send message larger than max ({size} vs. {_SENT})"
        raise answers.refusal(500, "", told)
    if size > _ETCD:
        raise answers.refusal(500, "", "etcdserver: request is too large")
