"""The faults for which an API server and its webhooks refuse an object by itself. Pure.

It knows the fields of the objects that a submitter creates, and lets others pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kinetic_orchestration.testing.kubernetes.api import answers, kinds
from kinetic_orchestration.testing.kubernetes.api.answers import About, Fault, Object
from kinetic_orchestration.testing.kubernetes.api.kinds import Kind
from kinetic_orchestration.testing.kubernetes.api.objects import labels_of, quantity
from kinetic_orchestration.testing.kubernetes.api.rules.defaults import QUEUE

_WORD = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_WORD}(\.{_WORD})*")
_LABEL = re.compile(_WORD)
_NOT_A_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    f"'{_SUBDOMAIN.pattern}')"
)
_NOT_A_LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    f"an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_WORD}')"
)
_LONGEST = 63  # letters of the name of a Job or of a pod
_ENDS = 6  # letters that a controller adds to the name of a pod

_TOP = "apiVersion kind metadata spec status"
_SET = (
    "coordinator failurePolicy managedBy network replicatedJobs startupPolicy successPolicy suspend "
    "ttlSecondsAfterFinished volumeClaimPolicies"
)
_REPLICATED = "dependsOn groupName name replicas template"
_JOB = (
    "activeDeadlineSeconds backoffLimit backoffLimitPerIndex completionMode completions managedBy manualSelector "
    "maxFailedIndexes parallelism podFailurePolicy podReplacementPolicy selector successPolicy suspend template "
    "ttlSecondsAfterFinished"
)
_POD = (
    "activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy enableServiceLinks "
    "ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers hostname hostnameOverride imagePullSecrets "
    "initContainers nodeName nodeSelector os overhead preemptionPolicy priority priorityClassName readinessGates "
    "resourceClaims resources restartPolicy runtimeClassName schedulerName schedulingGates schedulingGroup "
    "securityContext serviceAccount serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain "
    "terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes"
)
_CONTAINER = (
    "args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe resizePolicy "
    "resources restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce terminationMessagePath "
    "terminationMessagePolicy tty volumeDevices volumeMounts workingDir"
)


def unknown_fields(kind: Kind, found: Object) -> list[str]:
    """Return the fields of an object that its kind does not have."""
    if kind not in (kinds.JOBSETS, kinds.JOBS, kinds.PODS):
        return []
    spec = found.get("spec", {})
    inner = {kinds.JOBSETS: _of_set, kinds.JOBS: _of_job, kinds.PODS: _of_pod}[kind]
    return [*_strange(found, _TOP, ""), *inner(spec, "spec")]


def _strange(found: Mapping[str, Any], known: str, at: str) -> Iterator[str]:
    names = known.split()
    yield from (f"{at}.{name}".removeprefix(".") for name in found if name not in names)


def _of_set(spec: Mapping[str, Any], at: str) -> Iterator[str]:
    yield from _strange(spec, _SET, at)
    for index, one in enumerate(spec.get("replicatedJobs", ())):
        here = f"{at}.replicatedJobs[{index}]"
        yield from _strange(one, _REPLICATED, here)
        yield from _of_job(one.get("template", {}).get("spec", {}), f"{here}.template.spec")


def _of_job(spec: Mapping[str, Any], at: str) -> Iterator[str]:
    yield from _strange(spec, _JOB, at)
    yield from _of_pod(spec.get("template", {}).get("spec", {}), f"{at}.template.spec")


def _of_pod(spec: Mapping[str, Any], at: str) -> Iterator[str]:
    yield from _strange(spec, _POD, at)
    for index, one in enumerate(spec.get("containers", ())):
        yield from _strange(one, _CONTAINER, f"{at}.containers[{index}]")


def check(kind: Kind, found: Object) -> None:
    """Refuse an object whose fields cannot be. Raises Refused."""
    name = found["metadata"]["name"]
    about = About(kind.group, kind.name, name)
    if not _SUBDOMAIN.fullmatch(name) and kind not in (kinds.ROLES, kinds.BINDINGS):
        raise answers.invalid(about, [Fault("metadata.name", f'Invalid value: "{name}": {_NOT_A_SUBDOMAIN}')])
    if kind is kinds.JOBSETS:
        _check_set(about, found)
    elif kind is kinds.JOBS:
        faults = list(_faults_of_job(found["spec"]))
        if faults:
            raise answers.invalid(about, faults)
    elif kind is kinds.PODS and (faults := list(_faults_of_pod(found["spec"], "spec"))):
        raise answers.invalid(about, faults)


def _check_set(about: About, found: Object) -> None:
    queue = labels_of(found).get(QUEUE)
    if queue is not None and not _SUBDOMAIN.fullmatch(queue):
        message = f'metadata.labels[{QUEUE}]: Invalid value: "{queue}": {_NOT_A_SUBDOMAIN}'
        raise answers.denied("vjobset.kb.io", message)
    faults = list(_faults_of_set(about.name, found["spec"]))
    if faults:
        raise answers.invalid(about, faults, webhook="vjobset.kb.io")


def _faults_of_set(name: str, spec: Mapping[str, Any]) -> Iterator[Fault]:
    for index, one in enumerate(spec.get("replicatedJobs", ())):
        job = f"{name}-{one['name']}-{one['replicas'] - 1}"
        pod = f"{job}-{one['template']['spec'].get('completions', 1) - 1}"
        for what, length in (("job", len(job)), ("pod", len(pod) + _ENDS)):
            if length > _LONGEST:
                said = (
                    f"JobSet name is too long, {what} names generated for this JobSet will exceed {_LONGEST} characters"
                )
                yield Fault(f"spec.replicatedJobs[{index}].name", f'Invalid value: "{job}": {said}')


def _faults_of_job(spec: Mapping[str, Any]) -> Iterator[Fault]:
    pod = spec["template"]["spec"]
    containers = {one["name"] for one in pod.get("containers", ())}
    for index, rule in enumerate((spec.get("podFailurePolicy") or {}).get("rules", ())):
        named = rule.get("onExitCodes", {}).get("containerName")
        if named is not None and named not in containers:
            said = "must be one of the container or initContainer names in the pod template"
            field = f"spec.podFailurePolicy.rules[{index}].onExitCodes.containerName"
            yield Fault(field, f'Invalid value: "{named}": {said}')
    if pod.get("restartPolicy") not in ("Never", "OnFailure"):
        said = 'Required value: valid values: "OnFailure", "Never"'
        yield Fault("spec.template.spec.restartPolicy", said, "FieldValueRequired")
    yield from _faults_of_pod(pod, "spec.template.spec")


def _faults_of_pod(spec: Mapping[str, Any], at: str) -> Iterator[Fault]:
    for index, one in enumerate(spec.get("containers", ())):
        here = f"{at}.containers[{index}]"
        if not _LABEL.fullmatch(one.get("name", "")):
            yield Fault(f"{here}.name", f'Invalid value: "{one.get("name", "")}": {_NOT_A_LABEL}')
        resources = one.get("resources", {})
        limits = resources.get("limits") or {}
        for resource, told in (resources.get("requests") or {}).items():
            if "/" not in resource:
                continue
            if resource not in limits:
                yield Fault(
                    f"{here}.resources.limits", "Required value: Limit must be set for non overcommitable resources"
                )
            elif quantity(limits[resource]) != quantity(told):
                said = f'Invalid value: "{told}": must be equal to {resource} limit of {limits[resource]}'
                yield Fault(f"{here}.resources.requests", said)
