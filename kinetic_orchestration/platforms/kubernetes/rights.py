"""The rights of a submitter in its namespace: one table, from which they are checked and the Role is printed. Pure.

It knows no client. Pods need no right: none of them has a token.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.protocol.system import escaping

Object = Mapping[str, Any]

ROLE = "kinetic-jobs"  # name of the Role and of its binding
_RBAC = "rbac.authorization.k8s.io"
_ACCOUNT = "system:serviceaccount:"  # how names of service accounts begin: NAMESPACE:NAME follows
_NOBODY = "system:anonymous"  # a client without an identity
_REFUSED = re.compile(r'User "((?:[^"\\]|\\.)+)" cannot ')  # how what RBAC says of a request begins
_SUBJECTS = {"user": "User", "group": "Group", "serviceaccount": "ServiceAccount"}


class Right(NamedTuple):
    """One verb on one kind of object.

    Attributes:
        group: Of the API; "" for the core.
        resource: In its plural, with its subresource.
        verb: Of RBAC.
        lack: What follows without it.
        is_needed: False if jobs run without it, and only say less.
    """

    group: str
    resource: str
    verb: str
    lack: str
    is_needed: bool = True

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


_JOBSET, _KUEUE, _VISIBILITY = "jobset.x-k8s.io", "kueue.x-k8s.io", "visibility.kueue.x-k8s.io"
_ALWAYS = (
    Right(_JOBSET, "jobsets", "create", "hosts cannot be requested"),
    Right(_JOBSET, "jobsets", "delete", "hosts could be requested and not be released"),
    Right(_JOBSET, "jobsets", "get", "what was requested cannot be found again"),
    Right(_JOBSET, "jobsets", "list", "several jobs cannot be observed at once, nor leftovers found"),
    Right("", "pods", "list", "nobody sees whether hosts run"),
    Right("batch", "jobs", "list", "why hosts ended stays unknown"),
    Right("batch", "jobs", "delete", "what a JobSet left that was deleted without its Jobs stays", is_needed=False),
    Right("", "pods", "delete", "pods stay whose Job, too, was deleted without them", is_needed=False),
    Right("", "events", "list", "why the cluster refuses pods stays unknown", is_needed=False),
)
_SECRETS = (
    Right("", "secrets", "create", "captured credentials cannot be handed to pods"),
    Right("", "secrets", "delete", "those of a JobSet that was deleted without its Jobs stay", is_needed=False),
)
# What tells why the queue holds a job back.
WORKLOADS = Right(_KUEUE, "workloads", "list", "why the queue holds a job back stays unknown", is_needed=False)
_QUEUE = (
    Right(_KUEUE, "localqueues", "get", "whether the queue exists is told only by a job that waits", is_needed=False),
    WORKLOADS,
    Right(_VISIBILITY, "localqueues/pendingworkloads", "get", "places in the queue stay unknown", is_needed=False),
)

# Of whoever enters pods, and nobody else's: a Role of its own. A WebSocket is a GET, and from Kubernetes 1.35 on the
# server wants `create`, too (its feature AuthorizePodWebsocketUpgradeCreatePermission).
ENTERING = (
    Right("", "pods/exec", "get", "pods cannot be entered"),
    Right("", "pods/exec", "create", "pods cannot be entered"),
)
ENTERING_ROLE = "kinetic-shell"


def grant_entering(username: str, namespace: str) -> str:
    """Return the commands with which an administrator lets somebody enter the pods of a namespace.

    Args:
        username: As the cluster knows it; "" if it does not say.
        namespace: That of the jobs.
    """
    kind, _, name = subject_of(username).partition(":")
    who = shlex.quote(f"--{kind}={escaping.text(name.replace('/', ':', 1) if kind == 'serviceaccount' else name)}")
    verbs = ",".join(right.verb for right in ENTERING)
    where, role = f"-n {shlex.quote(namespace)}", ENTERING_ROLE
    return (
        f"kubectl create role {role} --verb={verbs} --resource={ENTERING[0].resource} {where} && "
        f"kubectl create rolebinding {role} --role={role} {who} {where}"
    )


def of(*, secrets: bool, queue: bool) -> Sequence[Right]:
    """Return the rights that a submitter needs or makes use of.

    Args:
        secrets: Jobs capture credentials.
        queue: Jobs wait in a queue of Kueue.
    """
    return (*_ALWAYS, *(_SECRETS if secrets else ()), *(_QUEUE if queue else ()))


def is_granted(right: Right, rules: Iterable[Object]) -> bool:
    """Return True if one of the rules (`resourceRules` of a SelfSubjectRulesReview) grants it for all names."""
    wanted = {right.resource, "*"} | ({f"*/{right.resource.partition('/')[2]}"} if "/" in right.resource else set())
    return any(
        not {right.verb, "*"}.isdisjoint(rule.get("verbs") or ())
        and not {right.group, "*"}.isdisjoint(rule.get("apiGroups") or ())
        and not wanted.isdisjoint(rule.get("resources") or ())
        and not rule.get("resourceNames")
        for rule in rules
    )


def role(rights: Iterable[Right], namespace: str, *who: str) -> list[dict[str, Any]]:
    """Return the Role with exactly these rights, and its binding.

    Args:
        rights: As `of` returns them.
        namespace: Where they hold.
        who: Each `user:NAME`, `group:NAME` or `serviceaccount:[NAMESPACE/]NAME`.

    Raises:
        UsageError: `who` is something else.
    """
    verbs: dict[tuple[str, str], list[str]] = {}
    for right in rights:
        verbs.setdefault((right.group, right.resource), []).append(right.verb)
    rules = [
        {"apiGroups": [group], "resources": [resource], "verbs": granted}
        for (group, resource), granted in verbs.items()
    ]
    metadata = {"name": ROLE, "namespace": namespace}
    api = f"{_RBAC}/v1"
    reference = {"apiGroup": _RBAC, "kind": "Role", "name": ROLE}
    binding = {"roleRef": reference, "subjects": [_subject(each, namespace) for each in who]}
    return [
        {"apiVersion": api, "kind": "Role", "metadata": metadata, "rules": rules},
        {"apiVersion": api, "kind": "RoleBinding", "metadata": metadata, **binding},
    ]


def subject_of(username: str) -> str:
    """Return who somebody is, as `role` takes it, by the name that the cluster knows; `user:NAME` for ""."""
    if username.startswith(_ACCOUNT):
        return f"serviceaccount:{username.removeprefix(_ACCOUNT).replace(':', '/', 1)}"
    return f"user:{username or 'NAME'}"


def named_in(words: str) -> str:
    """Return the name of whom a server refused for a lack of rights, from its words; "" if they have none, or it was
    nobody that can be granted any."""
    found = _REFUSED.match(words.partition("forbidden: ")[2])
    name = ""
    with contextlib.suppress(ValueError):
        name = str(json.loads(f'"{found[1]}"')) if found else ""  # as Go quotes it, for the most part as JSON
    return "" if name == _NOBODY else name


def grant(username: str, namespace: str, queues: Sequence[str] = ()) -> str:
    """Return the command with which an administrator grants what jobs need.

    Args:
        username: As the cluster knows it; "" if it does not say.
        namespace: That of the jobs, which need not be the administrator's.
        queues: Of Kueue, that jobs wait in.
    """
    queue = f" --queue {shlex.quote(','.join(queues))}" if queues else ""
    own = "" if username else "with NAME as 'kubectl auth whoami' shows it, "
    doctor = f"KINETIC_NAMESPACE={shlex.quote(namespace)} kinor doctor"
    return f"{own}{doctor} --role {shlex.quote(escaping.text(subject_of(username)))}{queue} | kubectl apply -f -"


def _subject(who: str, namespace: str) -> dict[str, str]:
    kind, _, name = who.partition(":")
    if kind not in _SUBJECTS or not name:
        raise UsageError(
            f"{who}: say whom the rights are for, as user:NAME, group:NAME or serviceaccount:NAMESPACE/NAME; "
            "'kubectl auth whoami' shows your own name"
        )
    if kind != "serviceaccount":
        return {"kind": _SUBJECTS[kind], "apiGroup": _RBAC, "name": name}
    where, _, account = name.rpartition("/")
    return {"kind": _SUBJECTS[kind], "namespace": where or namespace, "name": account}
