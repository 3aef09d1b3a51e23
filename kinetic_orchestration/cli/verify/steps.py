"""The steps of a verification, as a table: the claim, cost and action of each, and a pure check of its observations.

A step returns its observations as plain values; `check` lists the deviations, and knows no cloud.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.cli import doctor
from kinetic_orchestration.cli.verify.budget import Wish
from kinetic_orchestration.cli.verify.clouds.cloud import JOINED, LINKED, OF_FOUR_HOSTS, Slice
from kinetic_orchestration.cli.verify.scene import RELEASE, Ended, Scene
from kinetic_orchestration.errors import KineticError
from kinetic_orchestration.jobs.cleanup import reaper
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.values import JobStatus
from kinetic_orchestration.platforms.registry import open_backend
from kinetic_orchestration.protocol.system import copies

LINES, BETWEEN = 5, 0.5  # of the job that prints: lines, and seconds between them
STEPS, HELD = 6, 3  # of the training, and after how many its first attempt goes no further
LIVE = 1.0  # seconds before a job's last line by which its first must have arrived
VARIABLE = "KINETIC_VERIFY_TOKEN"
NEVER = "kinetic-verify-never-made"
REAP_PATIENCE = 120.0
RUNS = "verify: still here"  # the line of a job that runs until it is cancelled

Seen = dict[str, Any]


class Step(NamedTuple):
    wish: Wish
    run: Callable[[Scene], Seen]
    check: Callable[[Mapping[str, Any]], list[str]]

    @property
    def name(self) -> str:
        return self.wish.name


# ---- what costs nothing


def _doctor(scene: Scene) -> Seen:
    """Check what a job needs with the accelerator that was asked for, got in the way and the zones that were."""
    here, backend = scene.settings, scene.cloud.backend
    cloud = scene.cloud.option(here.zones)
    job = JobSpec("a job", Options(accelerator=scene.accelerator, spot=scene.spot, backend=backend, cloud=cloud))
    report = doctor.examine(
        copies.environ(), job, backend=backend, zones=",".join(here.zones), store=here.store, deployment=here.deployment
    )
    checks = [{"check": check.name, "state": check.state.upper(), "found": check.found} for check in report.checks]
    return {
        "checks": checks,
        "failed": [f"{check.name}: {check.fix}" for check in report.checks if check.state == "failed"],
    }


def _is_well(seen: Mapping[str, Any]) -> list[str]:
    return [f"doctor: {problem}" for problem in seen["failed"]]


def _api(scene: Scene) -> Seen:
    """Requests for missing resources: the answers that distinguish a deleted slice from an API that does not work."""
    return {
        "zones": list(scene.cloud.zones()),
        "wanted": list(scene.settings.zones),
        "answers": scene.ask_all(scene.cloud.absent(NEVER)),
    }


def _tells_absence(seen: Mapping[str, Any]) -> list[str]:
    problems = [] if seen["zones"] else [f"none of {', '.join(seen['wanted'])} is a zone of this project"]
    for moment, answer in seen["answers"].items():
        if answer != "NotFound" and "operation" not in moment:
            problems.append(f"{moment}: the answer was {answer}, and NOT_FOUND is taken for absence")
    return problems


def _bucket(scene: Scene) -> Seen:
    """The verbs of a store, each with the answer that it must give."""
    store, name = scene.store, "probes/verify"
    first = store.create(name, b"one")
    second = store.create(name, b"two")
    stale = store.swap(name, b"three", (first or 1) - 1)
    swapped = store.swap(name, b"four", first or 0)
    record = store.read(name)
    store.signal("probes/signal", b"beat")
    listed = {signal.name: bytes(signal.data) for signal in store.signals("probes/")}
    behind = store.read(name, 1000)
    renewed = store.renew(name)
    deleted, again = store.delete(name), store.delete(name)
    store.delete("probes/signal")
    return {
        "created": first is not None, "created_again": second is not None, "stale_swap": stale is not None,
        "swapped": swapped is not None, "read": record is not None and bytes(record.data) == b"four",
        "signal": listed.get("probes/signal") == b"beat", "behind": behind is not None and not behind.data,
        "renewed": renewed, "deleted": deleted, "deleted_again": again, "gone": store.read(name) is None,
    }  # fmt: skip


def _keeps_records(seen: Mapping[str, Any]) -> list[str]:
    wanted = {**dict.fromkeys(seen, True), "created_again": False, "stale_swap": False, "deleted_again": False}
    return [f"the bucket: {what} is {seen[what]}" for what in seen if seen[what] is not wanted[what]]


# ---- on one slice


def _job(scene: Scene) -> Seen:
    handle = scene.submit(scene.jobs.tells, LINES, BETWEEN)
    ended = scene.finish(handle)
    machine = dict(ended.value or {})
    for call, answer in machine.pop("metadata", {}).items():
        scene.recorder.add(f"metadata {call}", {"attributes" if call == "attributes" else "of": answer})
    cost = handle.cost()
    return {
        **_outcome(ended), "machine": machine, "gone_after": ended.gone_after,
        "lines": [[round(at, 3), line] for at, _, line in ended.lines],
        "zone": next(iter(handle.zones()), ""), "usd": cost.usd, "most": scene.planned.usd if scene.planned else 0.0,
        "ready_seconds": cost.ready_seconds, "queued_seconds": cost.queued_seconds, "note": cost.note,
        "seen_ready": sum(slice_.seconds(time.time()) for slice_ in scene.recorder.slices.values()),
    }  # fmt: skip


def _has_value(seen: Mapping[str, Any]) -> list[str]:
    return _succeeded(seen) or ([] if seen["machine"] else ["the job's value did not come back"])


def _is_live(seen: Mapping[str, Any]) -> list[str]:
    lines = [(at, line) for at, line in seen["lines"] if line.startswith("verify: line ")]
    wanted = [f"verify: line {number}" for number in range(LINES)]
    if [line for _, line in lines] != wanted:
        return [f"{len(lines)} of {LINES} lines came, or in another order"]
    if lines[-1][0] - lines[0][0] < LIVE:
        return [f"all lines came within {lines[-1][0] - lines[0][0]:.1f} s: they were not live"]
    return []


def _is_priced(seen: Mapping[str, Any]) -> list[str]:
    if seen["usd"] is None or not seen["ready_seconds"] > 0:
        return ["the job has no cost"]
    problems = []
    if seen["usd"] > seen["most"]:
        problems.append(f"it cost ${seen['usd']:.2f}, and limits.cost allowed ${seen['most']:.2f}")
    if seen["ready_seconds"] > seen["seen_ready"] + 60.0:
        problems.append(
            f"{seen['ready_seconds']:.0f} s are charged by its records, and it was seen READY for "
            f"{seen['seen_ready']:.0f} s"
        )
    return problems


def _secrets(scene: Scene) -> Seen:
    value = secrets.token_urlsafe(24)
    os.environ[VARIABLE] = value
    try:
        handle = scene.submit(scene.jobs.has_secret, VARIABLE, capture_env_vars=[VARIABLE])
    finally:
        del os.environ[VARIABLE]
    ended = scene.finish(handle)
    return {
        **_outcome(ended),
        "arrived": ended.value == hashlib.sha256(value.encode()).hexdigest(),
        "open": value in (handle.logs() or "") or _is_in_records(scene, handle.job_id, value),
        "left": len(scene.secrets_left()),
    }


def _is_in_records(scene: Scene, job_id: str, value: str) -> bool:
    """Return True if the value is in any record of the job, which every reader of the bucket can see."""
    for entry in scene.store.list(f"jobs/{job_id}/"):
        record = scene.store.read(entry.name)
        if record is not None and value.encode() in bytes(record.data):
            return True
    return False


def _is_kept(seen: Mapping[str, Any]) -> list[str]:
    problems = _succeeded(seen)
    if not problems and not seen["arrived"]:
        problems.append("the secret did not arrive at the host")
    if seen["open"]:
        problems.append("the secret lies in the bucket in the open")
    if seen["left"]:
        problems.append(f"{seen['left']} secrets were left in Secret Manager after the job")
    return problems


def _cancel(scene: Scene) -> Seen:
    handle = scene.submit(scene.jobs.waits)
    ended = scene.finish(handle, RUNS, lambda: handle.cancel("kinor verify"))
    took = ended.seconds - ended.acted_at if ended.acted_at is not None else 0.0
    scene.measured.append(("cancelled → ended", took))
    return {**_outcome(ended), "asked": ended.acted_at is not None, "took": took, "gone_after": ended.gone_after}


def _was_cancelled(seen: Mapping[str, Any]) -> list[str]:
    if not seen["asked"]:
        return ["it never ran, so that it could not be cancelled"]
    return [] if seen["status"] == "CANCELLED" else [f"after a cancel it is {seen['status']}: {seen['message']}"]


def _deleted_by_hand(scene: Scene) -> Seen:
    """Record the API's refusals while the job runs; then delete its machine as a user at the console would."""
    handle = scene.submit(scene.jobs.waits)
    ended = scene.finish(handle, RUNS, lambda: scene.ask_all(scene.cloud.refused(scene.newest_slice())))
    with contextlib.suppress(KineticError):
        handle.result(timeout=1)
    return {**_outcome(ended), "answers": ended.acted or {}}


def _says_who_deleted(seen: Mapping[str, Any]) -> list[str]:
    if not seen["answers"]:
        return ["it never ran, so that its machine could not be deleted"]
    taken = next((answer for moment, answer in seen["answers"].items() if moment.endswith("whose name is taken")), "")
    problems = []
    if taken not in ("AlreadyExists", "Conflict"):
        problems.append(f"a name that is taken was answered with {taken}")
    if seen["status"] != JobStatus.CANCELLED.name:
        problems.append(f"a machine that its owner deleted ends the job, and it is {seen['status']}: {seen['message']}")
    elif "deleted" not in seen["message"]:
        problems.append(f"the job is CANCELLED, and does not say that its machine was deleted: {seen['message']}")
    return problems


def _deletes_itself(scene: Scene) -> Seen:
    """A job that nobody follows any longer once it runs."""
    before = set(scene.recorder.slices)
    handle = scene.submit(scene.jobs.tells, LINES, BETWEEN)
    took = scene.leave(handle, "verify: line 0")
    mine = [slice_ for name, slice_ in scene.recorder.slices.items() if name not in before]
    value = None
    with contextlib.suppress(KineticError, OSError):
        value = handle.result(timeout=60)
    return {
        "status": handle.status().name, "message": "", "value": isinstance(value, dict), "gone_after": took,
        "slices": len(mine), "deleted_here": sum(map(scene.recorder.deletions, mine)),
    }  # fmt: skip


def _deleted_itself(seen: Mapping[str, Any]) -> list[str]:
    problems = _succeeded(seen)
    if seen["deleted_here"] or not seen["slices"]:
        problems.append("nothing shows that the VM deleted itself: this process deleted it as well")
    return problems or ([] if seen["value"] else ["the job's value did not come back"])


def _preemption(scene: Scene) -> Seen:
    """The slice is taken away, node and queued resource, as soon as the training has kept some steps."""
    handle = scene.submit(scene.jobs.endures, STEPS, BETWEEN, HELD)
    ended = scene.finish(handle, f"verify: step {HELD} of attempt 1", scene.take_away)
    return {**_outcome(ended), "deleted": ended.acted_at is not None, "value": ended.value}


def _came_again(seen: Mapping[str, Any]) -> list[str]:
    if not seen["deleted"]:
        return ["its training never came as far as to be taken away"]
    problems = _succeeded(seen)
    if not problems and seen["attempts"] != 2:
        problems.append(f"it took {seen['attempts']} attempts, and one slice was taken away")
    return problems


def _went_on(seen: Mapping[str, Any]) -> list[str]:
    value = seen["value"]
    if not isinstance(value, dict):
        return ["the second attempt gave no value"]
    if value.get("began", 0) < HELD - 1 or value.get("done") != STEPS:
        return [f"the second attempt began at step {value.get('began')}, and {HELD} were kept before"]
    return []


def _several_hosts(words: str, vms: int = 1, slices: int = 1) -> Callable[[Scene], Seen]:
    """Return a step in which hosts meet: those of so many slices, or so many VMs that are joined."""

    def step(scene: Scene) -> Seen:
        assert scene.planned is not None and scene.planned.slice is not None
        before = set(scene.recorder.slices)
        handle = scene.submit(scene.jobs.among_others, hosts=vms, slices=slices)
        ended = scene.finish(handle)
        spoken = sorted({line for _, _, line in ended.lines if line.startswith("verify: host ")})
        machine = dict(ended.value or {})
        for call, answer in machine.pop("metadata", {}).items():
            field = "attributes" if call == "attributes" else "of"
            scene.recorder.add(f"metadata {call}, of {words}", {field: answer})
        mine = [slice_ for name, slice_ in scene.recorder.slices.items() if name not in before]
        if scene.planned.wish.kind == LINKED:
            scene.until(lambda: _cleaned(scene, handle, mine), RELEASE, "the deletion of template and policy")
        return {
            **_outcome(ended), "said": spoken, "hosts": machine.get("hosts", 0),
            "wanted": scene.planned.slice.hosts * vms * slices, "slices": len(mine),
            "left": [
                moment for slice_ in mine for moment, question in scene.cloud.deleted(slice_).items()
                if scene.ask(moment, question) != "NotFound"
            ],
        }  # fmt: skip

    return step


def _cleaned(scene: Scene, handle: JobHandle[Any], slices: Sequence[Slice]) -> bool:
    """Free what costs nothing and can go last, for which a job waits a moment alone. True if all of it is gone."""
    handle.cleanup()
    return all(scene.poll(slice_, whole=True) for slice_ in slices)


def _all_spoke(seen: Mapping[str, Any]) -> list[str]:
    problems, hosts = _succeeded(seen), seen["wanted"]
    wanted = [f"verify: host {number} of {hosts}" for number in range(hosts)]
    if not problems and (sorted(wanted) != seen["said"] or seen["hosts"] != hosts):
        problems.append(f"{len(seen['said'])} of {hosts} hosts were heard")
    return problems + [f"{moment}: it is still there" for moment in seen["left"]]


def _were_linked(slices: int) -> Callable[[Mapping[str, Any]], list[str]]:
    """Return the check of a step on slices, each of which one group is: no more were asked for, and each was seen."""

    def check(seen: Mapping[str, Any]) -> list[str]:
        problems = _all_spoke(seen)
        if not problems and seen["slices"] != slices:
            problems.append(f"{seen['slices']} groups were made for {slices} slices")
        return problems

    return check


# ---- the end


def _reap(scene: Scene) -> Seen:
    """Remove every resource of this run, first with the reaper, as a user would."""
    settings, backend = scene.settings, scene.cloud.backend
    reaped = reaper.reap(scene.store, open_backend(backend, settings), settings, patience=REAP_PATIENCE)
    left = scene.clear()
    answers: dict[str, list[str]] = {}
    for slice_ in scene.recorder.slices.values():
        for moment, question in scene.cloud.deleted(slice_).items():
            answers.setdefault(moment, []).append(scene.ask(moment, question))
    listed = list(open_backend(backend, settings).leftovers())
    return {
        "reaped": [f"{item.what}: {item.result}" for item in reaped], "left": left, "answers": answers,
        "listed": len([entry for entry in listed if "unread" not in entry]),
        "objects": sum(1 for _ in scene.store.list("")), "secrets": len(scene.secrets_left()),
        "slices": len(scene.recorder.slices),
    }  # fmt: skip


def _nothing_left(seen: Mapping[str, Any]) -> list[str]:
    problems = [f"left behind: {command}" for command in seen["left"]]
    for moment, answers in seen["answers"].items():
        others = sorted({answer for answer in answers if answer != "NotFound"})
        if others:
            problems.append(f"{moment}: the answer was {' or '.join(others)}, and only NOT_FOUND says that it is gone")
    counts = {"slices": seen["listed"], "objects": seen["objects"], "secrets": seen["secrets"]}
    return problems + [f"{count} {what} of this run are still there" for what, count in counts.items() if count]


def _outcome(ended: Ended) -> Seen:
    return {
        "status": ended.status.name, "attempts": ended.attempts, "message": ended.message,
        "seconds": round(ended.seconds, 3), "first_line": round(ended.lines[0][0], 3) if ended.lines else None,
    }  # fmt: skip


def _succeeded(seen: Mapping[str, Any]) -> list[str]:
    if seen["status"] == JobStatus.SUCCEEDED.name:
        return []
    return [f"the job is {seen['status']}: {seen['message']}"]


DOCTOR, API, BUCKET, JOB, LOGS, COST = "doctor", "api", "bucket", "job", "logs", "cost"
SECRETS, CANCEL, NODE, PREEMPTION, RESUME = "secrets", "cancel", "node deleted", "preemption", "resume"
SELF, VM_DELETED, SLICE, SEVERAL_SLICES = "self-deletion", "VM deleted", "slice", "two slices"
FOUR_HOSTS, TWO_HOSTS, REAP = "four hosts", "two hosts", "reap"

_FREE = (
    Step(Wish(DOCTOR, "credentials, APIs, permissions and the bucket are as a submit needs them"), _doctor, _is_well),
    Step(Wish(API, "what is not there answers NOT_FOUND, and the zones exist"), _api, _tells_absence),
    Step(Wish(BUCKET, "conditional writes, listings and deletions of the bucket"), _bucket, _keeps_records),
)
_OF_JOB = (
    Step(Wish(LOGS, "lines come while the job runs, in order", needs=(JOB,)), lambda scene: scene.results[JOB],
         _is_live),
    Step(Wish(COST, "the estimate is there, within its limit, for the time that was seen", needs=(JOB,)),
         lambda scene: scene.results[JOB], _is_priced),
    Step(Wish(SECRETS, "a credential travels by Secret Manager alone, and is removed", 1, 10), _secrets, _is_kept),
)  # fmt: skip

STEPS_OF_CLOUD_TPU: tuple[Step, ...] = (
    *_FREE,
    Step(Wish(JOB, "a function runs on a slice, its value comes back, the slice is gone", 1, 10), _job, _has_value),
    *_OF_JOB,
    Step(Wish(CANCEL, "a running job is cancelled, and its slice is gone", 1, 8), _cancel, _was_cancelled),
    Step(Wish(NODE, "what the API refuses while a slice is there; a slice deleted by hand ends its job", 1, 8),
         _deleted_by_hand, _says_who_deleted),
    Step(Wish(PREEMPTION, "a slice that is taken away is followed by another", 2, 8), _preemption, _came_again),
    Step(Wish(RESUME, "the next attempt goes on from the checkpoint", needs=(PREEMPTION,)),
         lambda scene: scene.results[PREEMPTION], _went_on),
    Step(Wish(FOUR_HOSTS, "four hosts meet, run and are heard", 1, 10, OF_FOUR_HOSTS),
         _several_hosts(FOUR_HOSTS), _all_spoke),
    Step(Wish(REAP, "nothing is left: slices, nodes, secrets, objects"), _reap, _nothing_left),
)  # fmt: skip
"""The steps on Cloud TPU."""

STEPS_OF_COMPUTE: tuple[Step, ...] = (
    *_FREE,
    Step(Wish(JOB, "a function runs on a VM, its value comes back, the VM is gone", 1, 10), _job, _has_value),
    *_OF_JOB,
    Step(Wish(SELF, "a VM whose job has ended deletes itself, though nobody looks", 1, 10), _deletes_itself,
         _deleted_itself),
    Step(Wish(CANCEL, "a running job is cancelled, and its VM is gone", 1, 8), _cancel, _was_cancelled),
    Step(Wish(VM_DELETED, "what the API refuses while a VM is there; a VM deleted by hand ends its job, which says so",
              1, 8), _deleted_by_hand, _says_who_deleted),
    Step(Wish(TWO_HOSTS, "two VMs meet, run and are heard", 2, 10, JOINED),
         _several_hosts(TWO_HOSTS, vms=2), _all_spoke),
    Step(Wish(SLICE, "the hosts of one slice meet, run and are heard; its group, VMs, template and policy are gone", 1,
              10, LINKED), _several_hosts(SLICE), _were_linked(1)),
    Step(Wish(SEVERAL_SLICES, "the hosts of two slices, which share template and policy, meet, run and are heard, and "
              "nothing of them is left", 2, 10, LINKED),
         _several_hosts(SEVERAL_SLICES, slices=2), _were_linked(2)),
    Step(Wish(REAP, "nothing is left: VMs, disks, groups, templates, policies, secrets, objects"), _reap,
         _nothing_left),
)  # fmt: skip


def steps_of(backend: str) -> tuple[Step, ...]:
    """Return the steps of a verification on a backend, in their order."""
    return STEPS_OF_COMPUTE if backend == "compute" else STEPS_OF_CLOUD_TPU
