"""The users of an emulated API server, and what Roles of a namespace let them do. Pure, over the objects of a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kinetic_orchestration.testing.kubernetes.api import kinds
from kinetic_orchestration.testing.kubernetes.api.answers import Object
from kinetic_orchestration.testing.kubernetes.api.store import Store

ADMINISTRATORS = "system:masters"  # the group that may do anything
_CLUSTER_ADMIN = "cluster-admin"
_EVERYTHING = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
# What anybody may ask: about themselves.
_ABOUT_ONESELF: Sequence[Object] = (
    {
        "verbs": ["create"], "apiGroups": ["authorization.k8s.io"],
        "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
    },
    {"verbs": ["create"], "apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"]},
)  # fmt: skip


class User(NamedTuple):
    name: str
    groups: tuple[str, ...] = ()

    def to_json(self) -> Object:
        return {"username": self.name, "groups": [*self.groups, "system:authenticated"]}


ADMIN = User("admin", (ADMINISTRATORS,))


def account(namespace: str, name: str) -> User:
    """Return a service account as a user."""
    return User(f"system:serviceaccount:{namespace}:{name}", ("system:serviceaccounts",))


class Wish(NamedTuple):
    """One thing that somebody wants to do."""

    verb: str
    group: str
    resource: str  # in its plural, with its subresource
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        where = f' in the namespace "{self.namespace}"' if self.namespace else " at the cluster scope"
        return f'{self.verb} resource "{self.resource}" in API group "{self.group}"{where}'


def rules_of(store: Store, user: User, namespace: str) -> list[Object]:
    """Return all rules that hold for a user in a namespace."""
    found = list(_ABOUT_ONESELF)
    if ADMINISTRATORS in user.groups:
        return [*found, _EVERYTHING]
    for binding in store.list(kinds.BINDINGS, namespace) if namespace else ():
        if any(_is_meant(user, subject, namespace) for subject in binding.get("subjects") or ()):
            found += _granted(store, binding["roleRef"], namespace)
    return found


def is_allowed(store: Store, user: User, wish: Wish) -> bool:
    return any(_grants(rule, wish) for rule in rules_of(store, user, wish.namespace))


def escalation(store: Store, user: User, kind: kinds.Kind, namespace: str, body: Object) -> str:
    """Return what a user would grant by a Role without holding it, in the words of an API server; "" if nothing.

    https://kubernetes.io/docs/reference/access-authn-authz/rbac/#privilege-escalation-prevention
    """
    if kind is not kinds.ROLES or is_allowed(store, user, Wish("escalate", kind.group, kind.plural, namespace)):
        return ""
    wishes = (
        (group, resource, verb)
        for rule in body.get("rules") or ()
        for group in rule.get("apiGroups") or ()
        for resource in rule.get("resources") or ()
        for verb in rule.get("verbs") or ()
    )
    lacking = [each for each in wishes if not is_allowed(store, user, Wish(each[2], each[0], each[1], namespace))]
    if not lacking:
        return ""
    told = "\n".join(
        f'{{APIGroups:["{group}"], Resources:["{kind}"], Verbs:["{verb}"]}}' for group, kind, verb in lacking
    )
    groups = ", ".join(f'"{name}"' for name in (*user.groups, "system:authenticated"))
    what = "is attempting to grant RBAC permissions not currently held"
    return f'user "{user.name}" (groups=[{groups}]) {what}:\n{told}'


def _is_meant(user: User, subject: Mapping[str, Any], namespace: str) -> bool:
    if subject["kind"] == "Group":
        return subject["name"] in (*user.groups, "system:authenticated")
    if subject["kind"] == "ServiceAccount":
        return user.name == account(subject.get("namespace") or namespace, subject["name"]).name
    return bool(user.name == subject["name"])


def _granted(store: Store, role: Mapping[str, Any], namespace: str) -> Iterator[Object]:
    if role["kind"] == "ClusterRole":
        yield from [_EVERYTHING] if role["name"] == _CLUSTER_ADMIN else []
        return
    found = store.get(kinds.ROLES, namespace, role["name"])
    yield from (found or {}).get("rules") or ()


def _grants(rule: Mapping[str, Any], wish: Wish) -> bool:
    below = wish.resource.partition("/")[2]
    resources = {wish.resource, "*", *((f"*/{below}",) if below else ())}
    named = rule.get("resourceNames") or ()
    return (
        not {wish.verb, "*"}.isdisjoint(rule.get("verbs") or ())
        and not {wish.group, "*"}.isdisjoint(rule.get("apiGroups") or ())
        and not resources.isdisjoint(rule.get("resources") or ())
        and (not named or wish.name in named)
    )


def review(store: Store, user: User, kind: str, body: Object) -> Object:
    """Return the answer to what a user asks about himself."""
    spec = body.get("spec") or {}
    about = {"apiVersion": body.get("apiVersion", ""), "kind": kind, "metadata": {}}
    if kind == "SelfSubjectReview":
        return {**about, "status": {"userInfo": user.to_json()}}
    if kind == "SelfSubjectRulesReview":
        rules = rules_of(store, user, spec.get("namespace", ""))
        return {**about, "spec": {}, "status": {"resourceRules": rules, "nonResourceRules": [], "incomplete": False}}
    asked = {name: value for name, value in (spec.get("resourceAttributes") or {}).items() if value}
    resource = "/".join(filter(None, (asked.get("resource"), asked.get("subresource"))))
    wish = Wish(
        asked.get("verb", ""), asked.get("group", ""), resource, asked.get("namespace", ""), asked.get("name", "")
    )
    status = {"allowed": is_allowed(store, user, wish)}
    return {**about, "spec": {"resourceAttributes": asked}, "status": status}
