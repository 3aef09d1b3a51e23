"""A namespace that is set up for jobs, and taken back: what it is made of, what is there, what is made and removed.

`objects` is the table of it: a namespace, an account for pods, one for whoever submits from inside, and the Role of a
submitter (`rights`) with its binding. What is there already is kept, with what others added to it: rights and subjects
are only ever added. What was made here has the label `MARK`; nothing else is removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kinetic_orchestration.errors import BackendError, UsageError
from kinetic_orchestration.plan.configuration import cluster_names
from kinetic_orchestration.platforms.kubernetes import gke, manifest, rights
from kinetic_orchestration.platforms.kubernetes.api import answers
from kinetic_orchestration.platforms.kubernetes.api.answers import ApiError
from kinetic_orchestration.platforms.kubernetes.api.client import Api
from kinetic_orchestration.platforms.kubernetes.observing.observer import jobsets
from kinetic_orchestration.platforms.kubernetes.rights import Right
from kinetic_orchestration.platforms.shared import ownership
from kinetic_orchestration.protocol import wire

Object = dict[str, Any]

MARK: Final = ("app.kubernetes.io/managed-by", "kinor-init")
MANAGER: Final = "kinor-init"  # in whose name kubectl holds the fields of what is printed
HOSTS: Final = "kinetic-hosts"  # the account of pods, which has no rights in the cluster and no token of it
SUBMITTER: Final = f"serviceaccount:{rights.ROLE}"  # who submits, if nobody else is named
MADE, CHANGED, THERE = "made", "changed", "there"
TRIES: Final = 4  # of a change that somebody else's overtakes

_GROUPS: Final = {"Role": "apis/rbac.authorization.k8s.io/v1", "RoleBinding": "apis/rbac.authorization.k8s.io/v1"}
_PLURALS: Final = {
    "Namespace": "namespaces", "ServiceAccount": "serviceaccounts", "Role": "roles", "RoleBinding": "rolebindings",
}  # fmt: skip
_INSIDE: Final = ("RoleBinding", "Role", "ServiceAccount")  # bindings go before what they bind
# What a namespace may have that a deletion of it would take along; each cluster makes the one ConfigMap by itself.
_CONTENT: Final = (
    "api/v1/pods", "api/v1/secrets", "api/v1/configmaps", "api/v1/persistentvolumeclaims", "api/v1/services",
    "api/v1/serviceaccounts", "apis/batch/v1/jobs", "apis/batch/v1/cronjobs", "apis/apps/v1/deployments",
    "apis/apps/v1/statefulsets", "apis/apps/v1/daemonsets", "apis/rbac.authorization.k8s.io/v1/roles",
    "apis/rbac.authorization.k8s.io/v1/rolebindings", "apis/networking.k8s.io/v1/networkpolicies",
    "apis/networking.k8s.io/v1/ingresses", "apis/jobset.x-k8s.io/v1alpha2/jobsets",
)  # fmt: skip
_OF_EACH: Final = {"configmaps": "kube-root-ca.crt", "serviceaccounts": "default"}
# Of RBAC's own words: https://kubernetes.io/docs/reference/access-authn-authz/rbac/#privilege-escalation-prevention
_ESCALATES: Final = "attempting to grant RBAC permissions not currently held"


class Wish(NamedTuple):
    """The answers of whoever sets a namespace up.

    Attributes:
        namespace: Its name.
        submitters: Who submits jobs, as `rights.role` takes each; an account of the namespace itself is made.
        rights: What they need.
        google: The service account of Google that pods stand for; "": their own identity.
    """

    namespace: str
    submitters: tuple[str, ...] = (SUBMITTER,)
    rights: tuple[Right, ...] = tuple(rights.of(secrets=False, queue=False))
    google: str = ""


class Step(NamedTuple):
    """One object: what becomes of it, and how it is to be afterwards."""

    state: str  # MADE, CHANGED or THERE
    wanted: Object

    @property
    def name(self) -> str:
        return f"{self.wanted['kind']} {self.wanted['metadata']['name']}"


class Removal(NamedTuple):
    """One object of a set-up that is taken back, or the reason why it stays."""

    name: str
    path: str
    uid: str
    stays: str = ""  # why it is not removed


def checked(wish: Wish) -> Wish:
    """Return the answers. Raises UsageError for one that cannot be used."""
    cluster_names.check("--namespace", wish.namespace, cluster_names.NAMESPACE)
    if not wish.submitters:
        raise UsageError("--submitter: name at least one who submits jobs")
    for account in _own_accounts(wish):
        cluster_names.check("--submitter", account, cluster_names.OBJECT)
    if wish.google and not re.fullmatch(gke.GOOGLE_ACCOUNT, wish.google):
        raise UsageError(f"--google-account {wish.google}: give its email, NAME@PROJECT.iam.gserviceaccount.com")
    return wish._replace(submitters=tuple(dict.fromkeys(wish.submitters)))


def objects(wish: Wish) -> Sequence[Object]:
    """Return all that a set-up is made of, in the order in which it is made.

    Raises:
        UsageError: A submitter is named in another way than `rights.role` knows.
    """
    labels = dict((MARK,))
    inside = {"namespace": wish.namespace, "labels": labels}
    notes = {"annotations": {gke.STANDS_FOR: wish.google}} if wish.google else {}
    accounts = [_account(HOSTS, {**inside, **notes}), *(_account(name, inside) for name in _own_accounts(wish))]
    role, binding = rights.role(wish.rights, wish.namespace, *wish.submitters)
    granted = ({**each, "metadata": {**each["metadata"], "labels": labels}} for each in (role, binding))
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": wish.namespace, "labels": labels}}
    return [namespace, *accounts, *granted]


def _account(name: str, metadata: Mapping[str, Any]) -> Object:
    """Return an account. Pods of jobs have no token of the cluster; those of a submitter ask for theirs."""
    quiet = {"automountServiceAccountToken": False} if name == HOSTS else {}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, **metadata}, **quiet}


def _own_accounts(wish: Wish) -> list[str]:
    """The accounts of the namespace itself among the submitters."""
    named = (who.removeprefix("serviceaccount:") for who in wish.submitters if who.startswith("serviceaccount:"))
    own = (name.removeprefix(f"{wish.namespace}/") for name in named)
    return [name for name in dict.fromkeys(own) if "/" not in name and name != HOSTS]


def yaml(wish: Wish, commands: Sequence[str]) -> str:
    """Return the set-up as YAML, below the commands that it is for."""
    head = "".join(f"# {command}\n" for command in commands)
    return head + "\n---\n".join("\n".join(manifest.lines_of(each)) for each in objects(wish)) + "\n"


def commands(wish: Wish, context: str) -> list[str]:
    """Return the lines of kubectl that make a set-up from its YAML, and show that it does what it is for."""
    import shlex

    kubectl = ["kubectl", *([f"--context={context}"] if context else [])]
    subjects = [_impersonated(who, wish.namespace) for who in wish.submitters]
    right = ["create", "jobsets.jobset.x-k8s.io", f"--namespace={wish.namespace}"]
    shown = [shlex.join([*kubectl, "auth", "can-i", *right, *subject]) for subject in subjects if subject]
    return [shlex.join([*kubectl, "apply", "--server-side", f"--field-manager={MANAGER}", "-f", "-"]), *shown]


def _impersonated(who: str, namespace: str) -> list[str]:
    kind, _, name = who.partition(":")
    if kind == "group":
        return ["--as=somebody", f"--as-group={name}"]
    where, _, account = name.rpartition("/")
    return [
        f"--as=system:serviceaccount:{where or namespace}:{account}" if kind == "serviceaccount" else f"--as={name}"
    ]


# ---- what is there ---------------------------------------------------------------------------------------------


def planned(api: Api, wish: Wish) -> list[Step]:
    """Return what is to be done, by what is there. Only reads.

    Raises:
        ApiError: The cluster does not answer, or the caller may not look.
        BackendError: What is there cannot be made into what is wanted.
    """
    namespace, *inside = objects(wish)
    found = _found(api, namespace)
    if found is None:
        return [Step(MADE, each) for each in (namespace, *inside)]
    if found["metadata"].get("deletionTimestamp"):
        raise BackendError(
            f"the namespace {wish.namespace} is being deleted, with all that it has: wait until `kubectl get namespace "
            f"{wish.namespace}` finds none, or name another",
            wire.CONFIGURATION,
        )
    return [Step(THERE, namespace), *(_step(each, _found(api, each)) for each in inside)]


def _found(api: Api, wanted: Object) -> Object | None:
    try:
        return api.get(_path(wanted))
    except ApiError as error:
        if error.kind != answers.ABSENT:
            raise
        return None


def _path(wanted: Object) -> str:
    return f"{_collection(wanted)}/{wanted['metadata']['name']}"


def _collection(wanted: Object) -> str:
    kind, namespace = wanted["kind"], wanted["metadata"].get("namespace")
    inside = f"/namespaces/{namespace}" if namespace else ""
    return f"/{_GROUPS.get(kind, 'api/v1')}{inside}/{_PLURALS[kind]}"


def _step(wanted: Object, found: Object | None) -> Step:
    """Decide what becomes of an object: it is made, or given what it lacks, beside what others gave it."""
    if found is None:
        return Step(MADE, wanted)
    lacking = {"ServiceAccount": _of_account, "Role": _of_role, "RoleBinding": _of_binding}[wanted["kind"]](
        wanted, found
    )
    if not lacking:
        return Step(THERE, wanted)
    return Step(CHANGED, {**found, "apiVersion": wanted["apiVersion"], "kind": wanted["kind"], **lacking})


def _is_ours(found: Object) -> bool:
    return (found["metadata"].get("labels") or {}).get(MARK[0]) == MARK[1]


def _of_account(wanted: Object, found: Object) -> Object:
    notes = wanted["metadata"].get("annotations", {})
    there = found["metadata"].get("annotations") or {}
    changed: Object = {}
    if not notes.items() <= there.items():
        changed["metadata"] = {**found["metadata"], "annotations": {**there, **notes}}
    name = "automountServiceAccountToken"
    if _is_ours(found) and name in wanted and found.get(name) != wanted[name]:
        changed[name] = wanted[name]
    return changed


def _of_role(wanted: Object, found: Object) -> Object:
    there = list(found.get("rules") or ())
    lacking = [rule for rule in wanted["rules"] if not all(rights.is_granted(each, there) for each in _rights(rule))]
    return {"rules": [*there, *lacking]} if lacking else {}


def _rights(rule: Object) -> Iterator[Right]:
    for group in rule["apiGroups"]:
        yield from (Right(group, resource, verb, "") for resource in rule["resources"] for verb in rule["verbs"])


def _of_binding(wanted: Object, found: Object) -> Object:
    bound = found.get("roleRef") or {}
    if (bound.get("kind"), bound.get("name")) != ("Role", rights.ROLE):
        where = f"{answers.escaped(bound.get('kind'))} {answers.escaped(bound.get('name'))}"
        raise BackendError(
            f"{wanted['metadata']['namespace']} has a RoleBinding {rights.ROLE} already, to the {where}, and what one "
            f"binds cannot be changed. Look at it (kubectl get rolebinding {rights.ROLE} -o yaml "
            f"-n {wanted['metadata']['namespace']}), and delete it if nobody needs it, or name another --namespace",
            wire.CONFIGURATION,
        )
    there = list(found.get("subjects") or ())
    lacking = [each for each in wanted["subjects"] if each not in there]
    return {"subjects": [*there, *lacking]} if lacking else {}


# ---- what is made ----------------------------------------------------------------------------------------------


def lacks(api: Api, steps: Sequence[Step]) -> list[str]:
    """Return what of the steps the caller may not do, in the words of `kubectl auth can-i`."""
    asked = dict.fromkeys(
        ("create" if step.state == MADE else "update", _collection(step.wanted))
        for step in steps
        if step.state != THERE
    )
    return [f"{verb} {path.rpartition('/')[2]}" for verb, path in asked if not _may(api, verb, path)]


def _may(api: Api, verb: str, path: str) -> bool:
    group = path.split("/")[2] if path.startswith("/apis/") else ""
    namespace = path.split("/")[-2] if "/namespaces/" in path else ""
    attributes = {"verb": verb, "group": group, "resource": path.rpartition("/")[2], "namespace": namespace}
    body = {
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }  # fmt: skip
    found = api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    return bool(found.get("status", {}).get("allowed"))


def carry_out(api: Api, step: Step, wish: Wish) -> Step:
    """Do one step; the step as it was done: another client may have made or changed the same meanwhile.

    Raises:
        ApiError: The cluster refuses it, or does not answer.
        BackendError: The caller would grant what he does not have himself.
    """
    for _ in range(TRIES):
        try:
            if step.state == MADE:
                api.create(_collection(step.wanted), step.wanted)
            elif step.state == CHANGED:
                api.replace(_path(step.wanted), step.wanted)
            return step
        except ApiError as error:
            if error.kind == answers.FORBIDDEN and _ESCALATES in error.words:
                raise BackendError(_escalation(wish, error), wire.CONFIGURATION) from error
            if error.kind not in (answers.EXISTS, answers.CONFLICT):
                raise
            found = _found(api, step.wanted)
            wanted = next(each for each in objects(wish) if _path(each) == _path(step.wanted))
            step = Step(THERE, wanted) if wanted["kind"] == "Namespace" and found else _step(wanted, found)
    raise BackendError(f"{step.name} is changed by somebody else all the time: try again", wire.CONFIGURATION)


def _escalation(wish: Wish, error: ApiError) -> str:
    return (
        f"you may make Roles in {wish.namespace}, and none with rights that you do not have yourself: "
        f"{error.words} Have an administrator of the cluster run this"
    )


# ---- what is taken back ----------------------------------------------------------------------------------------


def removals(api: Api, namespace: str) -> list[Removal]:
    """Return what of a namespace was made here, in the order in which it goes, and why what stays does. Only reads.

    Raises:
        ApiError: The cluster does not answer, or the caller may not look.
        BackendError: Jobs still have hosts there.
    """
    space = {"kind": "Namespace", "metadata": {"name": namespace}}
    found = _found(api, space)
    if found is None or found["metadata"].get("deletionTimestamp"):
        return []
    if busy := _jobs(api, namespace):
        raise BackendError(
            f"{namespace} has JobSets of jobs, of which nobody could look after the hosts any more: "
            f"{', '.join(busy[:5])}{' …' if len(busy) > 5 else ''}. End them first (`kinor cancel ID`, `kinor reap`)",
            wire.CONFIGURATION,
        )
    label = "=".join(MARK)
    inside = []
    for kind in _INSIDE:
        path = _collection({"kind": kind, "metadata": {"namespace": namespace}})
        for each in api.list(path, labels=label):
            name = str(each["metadata"]["name"])
            inside.append(Removal(f"{kind} {answers.escaped(name)}", f"{path}/{name}", str(each["metadata"]["uid"])))
    stays = "it was there before, and others may use it" if not _is_ours(found) else _content(api, namespace, inside)
    return [*inside, Removal(f"Namespace {namespace}", _path(space), str(found["metadata"]["uid"]), stays)]


def _jobs(api: Api, namespace: str) -> list[str]:
    try:
        found = api.list(jobsets(namespace), labels=ownership.JOB)
    except ApiError as error:
        if error.kind in (answers.UNSERVED, answers.ABSENT):  # JobSet is not installed
            return []
        raise
    return [answers.escaped(each["metadata"]["name"]) for each in found]


def _content(api: Api, namespace: str, ours: Sequence[Removal]) -> str:
    """Return why a namespace of ours stays: what else it has, or that nobody can say; "" if it has nothing else."""
    known = {each.path for each in ours}
    for kind in _CONTENT:
        version, _, plural = kind.rpartition("/")
        path = f"/{version}/namespaces/{namespace}/{plural}"
        try:
            found = [str(each["metadata"]["name"]) for each in api.list(path)]
        except ApiError as error:
            if error.kind in (answers.UNSERVED, answers.ABSENT):
                continue
            if error.kind != answers.FORBIDDEN:
                raise
            return f"you may not look whether it has {plural}"
        others = [name for name in found if f"{path}/{name}" not in known and name != _OF_EACH.get(plural)]
        if others:
            shown = ", ".join(map(answers.escaped, others[:3]))
            return f"it has {len(others)} {plural} of others ({shown}{' …' if len(others) > 3 else ''})"
    return ""


def remove(api: Api, removal: Removal) -> bool:
    """Remove one object, if it is still the same one; False if it is gone, or another one."""
    try:
        api.delete(removal.path, uid=removal.uid)
    except ApiError as error:
        if error.kind not in (answers.ABSENT, answers.CONFLICT):
            raise
        return False
    return True
