"""The parts of a cluster that a new object has to fit: its namespace, account, security, topology and quota.

An object is right by itself by then: that is `validation`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kinetic_orchestration.testing.kubernetes.api import answers, kinds
from kinetic_orchestration.testing.kubernetes.api.answers import About, Object
from kinetic_orchestration.testing.kubernetes.api.kinds import Kind
from kinetic_orchestration.testing.kubernetes.api.objects import (
    amount,
    annotations_of,
    is_deleting,
    labels_of,
    namespace_of,
    phase_of,
    quantity,
    requests_of,
    with_meta,
    with_spec,
)
from kinetic_orchestration.testing.kubernetes.api.store import Store

EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
JOB_KEY = "jobset.sigs.k8s.io/job-key"
PRIORITY = "jobset.sigs.k8s.io/priority"
INDEX = "batch.kubernetes.io/job-completion-index"
_ENFORCE = "pod-security.kubernetes.io/enforce"
_ENDED = ("Succeeded", "Failed")


def admit(store: Store, kind: Kind, found: Object, about: About) -> Object:
    """Return an object as the cluster takes it. Raises Refused."""
    namespace = namespace_of(found)
    if kind.namespaced:
        _check_namespace(store, kind, namespace, about)
    if kind is kinds.PODS:
        account = found["spec"]["serviceAccountName"]
        if store.get(kinds.ACCOUNTS, namespace, account) is None:
            why = f'error looking up service account {namespace}/{account}: serviceaccount "{account}" not found'
            named = found["metadata"].get("generateName") or about.name
            raise answers.forbidden(about._replace(name=named), why)
        found = _placed(store, found)
        _check_security(store, found, about)
    _check_quota(store, kind, found, about)
    return found


def _check_namespace(store: Store, kind: Kind, namespace: str, about: About) -> None:
    there = store.get(kinds.NAMESPACES, "", namespace)
    if there is None:
        raise answers.absent(About("", "namespaces", namespace))
    if is_deleting(there) and kind is not kinds.EVENTS:
        why = f"unable to create new content in namespace {namespace} because it is being terminated"
        cause = {
            "reason": "NamespaceTerminating", "message": f"namespace {namespace} is being terminated",
            "field": "metadata.namespace",
        }  # fmt: skip
        raise answers.forbidden(about, why, causes=[cause])


# ---- a slice for itself, as JobSet's webhook for pods has it


def _placed(store: Store, pod: Object) -> Object:
    """The first pod of a Job keeps other Jobs out of its domain, and the others follow it there."""
    domain = annotations_of(pod).get(EXCLUSIVE)
    key = labels_of(pod).get(JOB_KEY)
    if domain is None or key is None:
        return pod
    pod = with_meta(pod, labels={**labels_of(pod), PRIORITY: str(pod["spec"].get("priority", 0))})
    if annotations_of(pod).get(INDEX) == "0":
        return with_spec(pod, affinity={**pod["spec"].get("affinity", {}), **_exclusive(key, domain)})
    leader = next((one for one in store.list(kinds.PODS, namespace_of(pod)) if _is_leader(one, key)), None)
    if leader is None:
        _deny_follower(f"follower pod node selector for topology domain not found. missing selector: {domain}")
        return pod
    node = store.get(kinds.NODES, "", leader["spec"].get("nodeName", ""))
    if node is None:
        _deny_follower("leader pod not yet scheduled, not creating follower pod. this is an expected, transient error")
        return pod
    chosen = {**pod["spec"].get("nodeSelector", {}), domain: labels_of(node).get(domain, "")}
    return with_spec(pod, nodeSelector=chosen)


def _deny_follower(why: str) -> None:
    raise answers.denied("vpod.kb.io", why)


def _is_leader(pod: Object, key: str) -> bool:
    return labels_of(pod).get(JOB_KEY) == key and annotations_of(pod).get(INDEX) == "0" and not is_deleting(pod)


def _exclusive(key: str, domain: str) -> Object:
    def term(*expressions: Mapping[str, Any]) -> Object:
        chosen = {"labelSelector": {"matchExpressions": list(expressions)}, "topologyKey": domain}
        return {"requiredDuringSchedulingIgnoredDuringExecution": [{**chosen, "namespaceSelector": {}}]}

    ours = {"key": JOB_KEY, "operator": "In", "values": [key]}
    theirs = {"key": JOB_KEY, "operator": "NotIn", "values": [key]}
    equals = {"key": PRIORITY, "operator": "In", "values": ["0"]}
    return {
        "podAffinity": term(ours),
        "podAntiAffinity": term({"key": JOB_KEY, "operator": "Exists"}, theirs, equals),
    }


# ---- Pod Security


def _check_security(store: Store, pod: Object, about: About) -> None:
    namespace = store.get(kinds.NAMESPACES, "", namespace_of(pod))
    level = labels_of(namespace).get(_ENFORCE, "privileged") if namespace is not None else "privileged"
    if level == "privileged":
        return
    told = [*_beyond_baseline(pod["spec"]), *(_beyond_restricted(pod["spec"]) if level == "restricted" else ())]
    if told:
        raise answers.forbidden(about, f'violates PodSecurity "{level}:latest": {", ".join(told)}')


def _beyond_baseline(spec: Mapping[str, Any]) -> Iterator[str]:
    shared = [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    if shared:
        yield f"host namespaces ({', '.join(f'{name}=true' for name in shared)})"
    for one in spec["containers"]:
        if one.get("securityContext", {}).get("privileged"):
            yield f'privileged (container "{one["name"]}" must not set securityContext.privileged=true)'


def _beyond_restricted(spec: Mapping[str, Any]) -> Iterator[str]:
    of_pod = spec.get("securityContext", {})
    for one in spec["containers"]:
        own, name = one.get("securityContext", {}), one["name"]
        if own.get("allowPrivilegeEscalation") is not False:
            yield (
                f'allowPrivilegeEscalation != false (container "{name}" must set '
                "securityContext.allowPrivilegeEscalation=false)"
            )
        if "ALL" not in own.get("capabilities", {}).get("drop", ()):
            yield f'unrestricted capabilities (container "{name}" must set securityContext.capabilities.drop=["ALL"])'
        if not own.get("runAsNonRoot", of_pod.get("runAsNonRoot")):
            yield f'runAsNonRoot != true (pod or container "{name}" must set securityContext.runAsNonRoot=true)'
        profile = own.get("seccompProfile", of_pod.get("seccompProfile", {}))
        if profile.get("type") not in ("RuntimeDefault", "Localhost"):
            yield (
                f'seccompProfile (pod or container "{name}" must set securityContext.seccompProfile.type to '
                '"RuntimeDefault" or "Localhost")'
            )


# ---- quota


def _check_quota(store: Store, kind: Kind, found: Object, about: About) -> None:
    asked = use_of(kind, found)
    for quota in store.list(kinds.QUOTAS, namespace_of(found)) if kind.namespaced else ():
        hard = {name: quantity(told) for name, told in quota["spec"]["hard"].items()}
        wanted = {name: asked[name] for name in hard if name in asked}
        used = used_of(store, quota)
        beyond = [name for name, count in wanted.items() if used[name] + count > hard[name]]
        if beyond:
            parts = (
                _listed("requested", wanted, beyond), _listed("used", used, beyond), _listed("limited", hard, beyond),
            )  # fmt: skip
            raise answers.forbidden(about, f"exceeded quota: {quota['metadata']['name']}, {', '.join(parts)}")


def _listed(word: str, amounts: Mapping[str, float], names: list[str]) -> str:
    return f"{word}: {','.join(f'{name}={amount(amounts[name])}' for name in sorted(names))}"


def use_of(kind: Kind, found: Object) -> dict[str, float]:
    """Return what an object takes of a quota."""
    counted = {f"count/{kind.qualified}": 1.0}
    if kind is not kinds.PODS:
        return counted
    if phase_of(found) in _ENDED:
        return {}
    asked = requests_of(found["spec"])
    return {**counted, "pods": 1.0, **asked, **{f"requests.{name}": value for name, value in asked.items()}}


def used_of(store: Store, quota: Object) -> dict[str, float]:
    """Return what is used of a quota, by its own names."""
    used = dict.fromkeys(quota["spec"]["hard"], 0.0)
    for kind in kinds.ALL:
        if not kind.namespaced:
            continue
        for one in store.list(kind, namespace_of(quota)):
            for name, count in use_of(kind, one).items():
                if name in used:
                    used[name] += count
    return used
