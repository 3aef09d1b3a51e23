"""JobSet's controller: the Jobs of each set, and what becomes of the set by them. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from kinetic_orchestration.testing.kubernetes.api import kinds
from kinetic_orchestration.testing.kubernetes.api.answers import Object
from kinetic_orchestration.testing.kubernetes.api.objects import (
    annotations_of,
    condition,
    holds,
    is_deleting,
    labels_of,
    name_of,
    namespace_of,
    reference_to,
    seconds,
    uid_of,
    with_condition,
    with_meta,
    with_spec,
    with_status,
)
from kinetic_orchestration.testing.kubernetes.api.rules.admission import EXCLUSIVE, JOB_KEY
from kinetic_orchestration.testing.kubernetes.controllers.changes import Change, Create, Delete, Replace, Tell, View

_OURS = "jobset.sigs.k8s.io"
_REPLICATED = f"{_OURS}/replicatedjob-name"
_OF_REQUESTS = f"{kinds.PROVISIONING_REQUESTS.group}/"
COMPONENT = "jobset"


def step(view: View) -> Iterator[Change]:
    jobs = view.controlled(kinds.JOBS)
    for found in view.all(kinds.JOBSETS):
        if not is_deleting(found):
            yield from _advanced(found, jobs.get(uid_of(found), []), view.now)


def is_over(found: Object) -> bool:
    return holds(found, "Completed") or holds(found, "Failed")


def _advanced(found: Object, jobs: Sequence[Object], now: float) -> Iterator[Change]:
    counted = with_status(found, restarts=0, replicatedJobsStatus=_statuses(found, jobs))
    if is_over(found):
        yield Replace(kinds.JOBSETS, counted)
        yield from (Delete(kinds.JOBS, job, "Foreground") for job in jobs if not _is_over(job) and not is_deleting(job))
        yield from _outlived(found, now)
        return
    failed = [job for job in jobs if holds(job, "Failed")]
    if failed:
        yield from _ended(counted, "Failed", "FailedJobs", _first_to_fail(failed))
        return
    wanted = _wanted(found)
    if jobs and len(jobs) == len(wanted) and all(holds(job, "Complete") for job in jobs):
        yield from _ended(counted, "Completed", "AllJobsCompleted", "jobset completed successfully")
        return
    there = {name_of(job) for job in jobs}
    for job in wanted:
        if name_of(job) not in there:
            refused = "JobCreationFailed", f'job "{name_of(job)}" creation failed with error: '
            yield Create(kinds.JOBS, job, found, refused=refused, component=COMPONENT)
    yield from _held(counted, jobs)


def _first_to_fail(failed: Sequence[Object]) -> str:
    first = min(failed, key=lambda job: str((condition(job, "Failed") or {}).get("lastTransitionTime")))
    return f"jobset failed due to one or more job failures (first failed job: {name_of(first)})"


def _ended(found: Object, kind: str, reason: str, message: str) -> Iterator[Change]:
    told = with_condition(found, kind, "True", reason, message)
    yield Replace(kinds.JOBSETS, with_status(told, terminalState=kind))
    yield Tell(found, "Warning" if kind == "Failed" else "Normal", reason, message, COMPONENT)


def _outlived(found: Object, now: float) -> Iterator[Change]:
    kept = found["spec"].get("ttlSecondsAfterFinished")
    ended = condition(found, "Failed") or condition(found, "Completed") or {}
    if kept is not None and now >= seconds(ended.get("lastTransitionTime")) + kept:
        yield Delete(kinds.JOBSETS, found, "Foreground")


def _held(found: Object, jobs: Sequence[Object]) -> Iterator[Change]:
    """Hold its Jobs back, or let them begin, as the set says."""
    suspend = bool(found["spec"].get("suspend"))
    before = condition(found, "Suspended")
    for job in jobs:
        if bool(job["spec"].get("suspend")) != suspend:
            yield Replace(kinds.JOBS, _with_pods_of(job, found, suspend))
    if not suspend and before is None:
        yield Replace(kinds.JOBSETS, found)
        return
    status, reason, message = (
        ("True", "SuspendedJobs", "jobset is suspended") if suspend else ("False", "ResumeJobs", "jobset is resumed")
    )
    if before is None or before["status"] != status:
        yield Tell(found, "Normal", reason, message, COMPONENT)
    yield Replace(kinds.JOBSETS, with_condition(found, "Suspended", status, reason, message))


def _with_pods_of(job: Object, found: Object, suspend: bool) -> Object:
    """The nodes that its pods may go to, and whose request made them, are decided while it is held back."""
    name = labels_of(job)[_REPLICATED]
    one = next(each for each in found["spec"]["replicatedJobs"] if each["name"] == name)
    wanted = one["template"]["spec"]["template"]["spec"]
    template = job["spec"]["template"]
    chosen = {key: wanted[key] for key in ("nodeSelector", "tolerations") if key in wanted}
    kept = {key: value for key, value in template["spec"].items() if key not in ("nodeSelector", "tolerations")}
    metadata = template["metadata"]
    own = {key: value for key, value in metadata["annotations"].items() if not key.startswith(_OF_REQUESTS)}
    notes = {**own, **((one["template"]["spec"]["template"].get("metadata") or {}).get("annotations") or {})}
    fresh = {**template, "metadata": {**metadata, "annotations": notes}, "spec": {**kept, **chosen}}
    return with_spec(job, suspend=suspend, template=fresh)


def _is_over(job: Object) -> bool:
    return holds(job, "Complete") or holds(job, "Failed")


def _statuses(found: Object, jobs: Sequence[Object]) -> list[Object]:
    listed = []
    for one in found["spec"]["replicatedJobs"]:
        mine = [job for job in jobs if labels_of(job).get(_REPLICATED) == one["name"]]
        living = [job for job in mine if not _is_over(job) and not is_deleting(job)]
        listed.append(
            {
                "name": one["name"],
                "active": sum(1 for job in living if job["status"].get("active")),
                "failed": sum(1 for job in mine if holds(job, "Failed")),
                "ready": sum(1 for job in living if _is_ready(job)),
                "succeeded": sum(1 for job in mine if holds(job, "Complete")),
                "suspended": sum(1 for job in living if job["spec"].get("suspend")),
            }
        )
    return listed


def _is_ready(job: Object) -> bool:
    status = job["status"]
    return int(status.get("ready", 0) + status.get("succeeded", 0)) >= int(job["spec"].get("parallelism", 1))


# ---- its Jobs


def _wanted(found: Object) -> list[Object]:
    total = sum(one["replicas"] for one in found["spec"]["replicatedJobs"])
    made: list[Object] = []
    for one in found["spec"]["replicatedJobs"]:
        for index in range(one["replicas"]):
            made.append(_job(found, one, index, len(made), total))
    return made


def _job(found: Object, one: Object, index: int, global_index: int, total: int) -> Object:
    name = f"{name_of(found)}-{one['name']}-{index}"
    key = hashlib.sha1(f"{namespace_of(found)}/{name}".encode(), usedforsecurity=False).hexdigest()
    told = {
        "global-replicas": total, "group-name": one["groupName"], "group-replicas": total, "job-index": index,
        "job-global-index": global_index, "job-group-index": global_index, "jobset-name": name_of(found),
        "jobset-uid": uid_of(found), "replicatedjob-name": one["name"], "replicatedjob-replicas": one["replicas"],
        "restart-attempt": 0,
    }  # fmt: skip
    ours = {**{f"{_OURS}/{word}": str(value) for word, value in told.items()}, JOB_KEY: key}
    domain = annotations_of(found).get(EXCLUSIVE)
    notes = {**ours, **({EXCLUSIVE: domain} if domain is not None else {})}
    template, spec = one["template"], one["template"]["spec"]
    pods = spec["template"]
    network = found["spec"]["network"]
    subdomain = network.get("subdomain") or name_of(found)
    job = {
        **spec,
        "suspend": bool(found["spec"].get("suspend")),
        "template": _marked(
            {**pods, "spec": {**pods["spec"], **({"subdomain": subdomain} if network["enableDNSHostnames"] else {})}},
            ours,
            notes,
        ),
    }
    made = _marked({"metadata": template.get("metadata") or {}, "spec": job}, ours, notes)
    return with_meta(made, name=name, namespace=namespace_of(found), ownerReferences=[reference_to(found)])


def _marked(template: Object, labels: Object, annotations: Object) -> Object:
    metadata = template.get("metadata") or {}
    return {
        **template,
        "metadata": {
            **metadata,
            "labels": {**(metadata.get("labels") or {}), **labels},
            "annotations": {**(metadata.get("annotations") or {}), **annotations},
        },
    }
