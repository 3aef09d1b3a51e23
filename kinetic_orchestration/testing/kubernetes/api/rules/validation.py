"""The faults for which an API server and its webhooks refuse an object by itself. Pure.

It knows the fields of the objects that a submitter creates, and lets others pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kinetic_orchestration.testing.kubernetes.api import answers, kinds
from kinetic_orchestration.testing.kubernetes.api.answers import About, Fault, Object
from kinetic_orchestration.testing.kubernetes.api.kinds import Kind
from kinetic_orchestration.testing.kubernetes.api.objects import annotations_of, labels_of, quantity
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
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_VALUE = re.compile(rf"({_NAME.pattern})?")
_NOT_A_NAME = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    f"(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_NAME.pattern}')"
)
_NOT_A_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    f"'{_VALUE.pattern}')"
)
_LONGEST = 63  # letters of the name of a Job or of a pod, and bytes of the name and of the value of a label
_NOTES = 256 << 10  # bytes of all annotations
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


def check_body(kind: Kind, namespace: str, found: Object) -> None:
    """Refuse what a client sends if it is no object of that kind, or of another namespace. Raises Refused."""
    said, version = found.get("kind"), found.get("apiVersion")
    if kind.is_custom:
        for field, is_there in (("Kind", said), ("apiVersion", version)):
            if not is_there:
                told = json.dumps(found, separators=(",", ":"))
                what = f"the object provided is unrecognized (must be of type {kind.name})"
                raise answers.bad(f"{what}: Object '{field}' is missing in '{told}'")
        if version != kind.api_version:
            what = f"the API version in the data ({version}) does not match the expected API version"
            raise answers.bad(f"{what} ({kind.api_version})")
    elif (said or kind.name, version or kind.api_version) != (kind.name, kind.api_version):
        raise _unhandled(kind, str(said or kind.name), str(version or kind.api_version))
    metadata = found.get("metadata") or {}
    if kind.namespaced and metadata.get("namespace") not in (None, "", namespace):
        raise answers.bad("the namespace of the provided object does not match the namespace sent on the request")
    of = "ObjectMeta" if kind.is_custom else "ObjectMeta.metadata"
    values = {f"{of}.{field}": (metadata.get(field) or {}).values() for field in ("labels", "annotations")}
    if kind in (kinds.JOBS, kinds.PODS):
        spec = found.get("spec") or {}
        at, pod = ("spec", spec) if kind is kinds.PODS else ("spec.template.spec", _pod_of(spec))
        values[f"EnvVar.{at}.containers.env.value"] = _variables(pod)
    for field, each in values.items():
        if strange := _not_a_string(each):
            what = f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}'
            raise answers.bad(f"{what}: {_unmarshalled(strange, field, 'string')}")


def check_set(found: Object) -> None:
    """Refuse a JobSet that the webhook which completes it cannot read. Raises Refused."""
    for one in (found.get("spec") or {}).get("replicatedJobs") or ():
        pod = _pod_of((one.get("template") or {}).get("spec") or {})
        at = "spec.replicatedJobs.template.spec.template.spec.containers.env.value"
        for values, field, wanted in (
            ([one.get("replicas", 1)], "ReplicatedJob.spec.replicatedJobs.replicas", "int32"),
            (_variables(pod), f"EnvVar.{at}", "string"),
        ):
            strange = _not_a_string(values) if wanted == "string" else "string" if isinstance(values[0], str) else ""
            if strange:
                said = _unmarshalled(strange, field, wanted)
                raise answers.refusal(400, "", f'admission webhook "mjobset.kb.io" denied the request: {said}')


def _unhandled(kind: Kind, said: str, version: str) -> answers.Refused:
    known = any((one.name, one.api_version) == (said, version) for one in kinds.ALL if not one.is_custom)
    short = version.rpartition("/")[2]
    internal = f"{kind.group.partition('.')[0] or 'core'}.{kind.name}"
    why = (
        f"converting ({short}.{said}) to ({internal}): unknown conversion"
        if known
        else f'no kind "{said}" is registered for version "{version}" in scheme "pkg/runtime/scheme.go:111"'
    )
    return answers.bad(f'{said} in version "{short}" cannot be handled as a {kind.name}: {why}')


def _pod_of(job: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (job.get("template") or {}).get("spec") or {}
    return found


def _variables(pod: Mapping[str, Any]) -> list[Any]:
    return [entry.get("value") for one in pod.get("containers") or () for entry in one.get("env") or ()]


_GO = {bool: "bool", int: "number", float: "number", list: "array", dict: "object"}


def _not_a_string(values: Iterable[Any]) -> str:
    """Return what the first value is that is not a string, in the words of Go; "" if all are."""
    return next((_GO[type(value)] for value in values if type(value) in _GO), "")


def _unmarshalled(strange: str, field: str, wanted: str) -> str:
    return f"json: cannot unmarshal {strange} into Go struct field {field} of type {wanted}"


def check(kind: Kind, found: Object) -> None:
    """Refuse an object whose fields cannot be. Raises Refused."""
    name = found["metadata"]["name"]
    about = About(kind.group, kind.name, name)
    if faults := list(_faults_of_metadata(kind, name, found)):
        raise answers.invalid(about, faults)
    if kind is kinds.JOBSETS:
        _check_set(about, found)
    elif kind is kinds.JOBS:
        faults = list(_faults_of_job(found["spec"]))
        if faults:
            raise answers.invalid(about, faults)
    elif kind is kinds.PODS and (faults := list(_faults_of_pod(found["spec"], "spec"))):
        raise answers.invalid(about, faults)


def _faults_of_metadata(kind: Kind, name: str, found: Object) -> Iterator[Fault]:
    if not _SUBDOMAIN.fullmatch(name) and kind not in (kinds.ROLES, kinds.BINDINGS):
        yield Fault("metadata.name", f'Invalid value: "{name}": {_NOT_A_SUBDOMAIN}')
    yield from _faults_of_labels(labels_of(found), "metadata.labels")
    if sum(len(text.encode()) for note in annotations_of(found).items() for text in note) > _NOTES:
        yield Fault("metadata.annotations", f"Too long: may not be more than {_NOTES} bytes", "FieldValueTooLong")


def _faults_of_labels(labels: Mapping[str, str], field: str) -> Iterator[Fault]:
    for key, value in labels.items():
        for text, faults in ((key, _of_key(key)), (value, _of_value(value))):
            yield from (Fault(field, f'Invalid value: "{text}": {fault}') for fault in faults)


def _of_key(key: str) -> Iterator[str]:
    *prefix, name = key.split("/")
    if len(prefix) > 1:
        prefixed = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        yield f"a valid label key {_NOT_A_NAME} {prefixed}"
        return
    if prefix and not prefix[0]:
        yield "prefix part must be non-empty"
    elif prefix and not _SUBDOMAIN.fullmatch(prefix[0]):
        yield f"prefix part {_NOT_A_SUBDOMAIN}"
    if not name:
        yield "name part must be non-empty"
    if len(name.encode()) > _LONGEST:
        yield f"name part must be no more than {_LONGEST} bytes"
    if not _NAME.fullmatch(name):
        yield f"name part {_NOT_A_NAME}"


def _of_value(value: str) -> Iterator[str]:
    if len(value.encode()) > _LONGEST:
        yield f"must be no more than {_LONGEST} bytes"
    if not _VALUE.fullmatch(value):
        yield _NOT_A_VALUE


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
    yield from _faults_of_labels(spec.get("nodeSelector") or {}, f"{at}.nodeSelector")
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
