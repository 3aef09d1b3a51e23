"""Tests what JobSets, Jobs and pods mean for an attempt, in the form in which a real control plane has them."""

from __future__ import annotations

from typing import Any

import pytest

from kinetic_orchestration.plan.values import ABSENT, GONE, PRESENT, PROVISIONING, QUEUED, WOUNDED
from kinetic_orchestration.platforms.kubernetes import manifest
from kinetic_orchestration.platforms.kubernetes.observing import states, waiting
from kinetic_orchestration.platforms.kubernetes.observing.states import Seen, judge
from kinetic_orchestration.protocol import wire

pytestmark = pytest.mark.fast

Object = dict[str, Any]

PLACEMENT = {"zone": "context/team", "name": "x", "hosts": 2, "slices": 1}
RULE = "matching FailJob rule at index"


def jobset(*conditions: Object, suspend: bool = False) -> Object:
    return {"spec": {"suspend": suspend}, "status": {"conditions": list(conditions)}}


def condition(kind: str, reason: str, message: str = "", status: str = "True") -> Object:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def pod(phase: str, name: str = "x-s-0-0-abcde", *, node: str = "n", **status: Any) -> Object:
    began = {} if phase == "Pending" else {"startTime": "2026-11-27T19:43:18Z"}
    spec = {"nodeName": node} if node else {}
    return {"metadata": {"name": name}, "spec": spec, "status": {"phase": phase, **began, **status}}


def died(code: int, reason: str = "Error", **status: Any) -> Object:
    return pod("Failed", containerStatuses=[{"state": {"terminated": {"exitCode": code, "reason": reason}}}], **status)


FAILED = condition(
    "Failed", "FailedJobs", "jobset failed due to one or more job failures (first failed job: x-s-0)"
)  # all that a set says, whatever happened


def job(reason: str, message: str) -> Object:
    return {
        "status": {"conditions": [condition("FailureTarget", reason, message), condition("Failed", reason, message)]}
    }


def exit_of(code: int) -> Object:
    return job("PodFailurePolicy", f"Container host for pod team/x-s-0-1-abcde failed with exit code {code} {RULE} 1")


DISRUPTED = job("PodFailurePolicy", f"Pod team/x-s-0-1-abcde has condition DisruptionTarget {RULE} 0")
EVICTED = "The node was low on resource: ephemeral-storage. "
OVER = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. "


@pytest.mark.parametrize(
    ("seen", "cause", "told"),
    [
        (Seen(jobset(FAILED), [died(64)], [exit_of(64)]), wire.USER, "failed with exit code 64"),
        (Seen(jobset(FAILED), [], [exit_of(70)]), wire.STALL, "failed with exit code 70"),
        (Seen(jobset(FAILED), [died(69)], [exit_of(69)]), wire.CONFIGURATION, "exit code 69"),
        (Seen(jobset(FAILED), [died(137)], [exit_of(137)]), wire.INFRASTRUCTURE, "died or was deleted"),
        (Seen(jobset(FAILED), [], [exit_of(143)]), wire.INFRASTRUCTURE, "died or was deleted"),
        (Seen(jobset(FAILED), [died(137, "OOMKilled")], [exit_of(137)]), wire.USER, "more memory than there is"),
        (Seen(jobset(FAILED), [], [DISRUPTED]), wire.PREEMPTION, "a pod was taken away: Pod team/x-s-0-1-abcde"),
        (
            Seen(
                jobset(FAILED),
                [died(137, conditions=[condition("DisruptionTarget", "DeletionByTaintManager", "Taint manager: …")])],
                [DISRUPTED],
            ),
            wire.PREEMPTION,
            "taken away (DeletionByTaintManager: Taint manager: …)",
        ),
        (
            Seen(jobset(FAILED), [died(137, status_reason="Evicted", message=EVICTED)], [DISRUPTED]),
            wire.INFRASTRUCTURE,
            "(Evicted): The node was low on resource: ephemeral-storage; the job and its environment may need more disk",
        ),
        (
            Seen(jobset(FAILED), [died(137, status_reason="Evicted", message=OVER)], [DISRUPTED]),
            wire.INFRASTRUCTURE,
            "exceeds the total limit of containers 1Gi; Autopilot limits the disk of each pod, to 1 GiB in a queue",
        ),
        (
            Seen(
                jobset(FAILED),
                [died(137, status_reason="Terminated", message="Pod was terminated in response to imminent node shutdown.")],
                [DISRUPTED],
            ),
            wire.PREEMPTION,
            "in response to imminent node shutdown",
        ),
        (
            Seen(jobset(FAILED), [], [job("DeadlineExceeded", "Job was active longer than specified deadline")]),
            wire.DEADLINE,
            "Job was active longer than specified deadline",
        ),
        (
            Seen(
                jobset(FAILED),
                [died(137, status_reason="DeadlineExceeded", message="Pod was active on the node longer than the specified deadline")],
                [exit_of(137)],
            ),
            wire.DEADLINE,
            "Pod was active on the node longer",
        ),
        (
            Seen(jobset(FAILED), [], [job("BackoffLimitExceeded", "Job has reached the specified backoff limit")]),
            wire.INFRASTRUCTURE,
            "reached the specified backoff limit",
        ),
        (Seen(jobset(FAILED)), wire.INFRASTRUCTURE, "jobset failed due to"),
    ],
)  # fmt: skip
def test_a_set_that_failed_says_of_what(seen: Seen, cause: str, told: str) -> None:
    for one in seen.pods:
        if "status_reason" in one["status"]:
            one["status"]["reason"] = one["status"].pop("status_reason")
    found = judge(PLACEMENT, seen).observation
    assert (found.state, found.cause) == (GONE, cause)
    assert told in found.message
    assert "rule at index" not in found.message


def leaving(words: str, name: str = "x-s-0-1-abcde", code: int = 65) -> Object:
    terminated = {"exitCode": code, "reason": "Error", "message": words}
    return pod("Failed", name, containerStatuses=[{"state": {"terminated": terminated}}])


def test_what_a_pod_left_as_its_last_words_is_told_whether_its_set_has_failed_or_not() -> None:
    """They are all that is known of a host that could not tell the store."""
    words = "host 1 could not start: Cannot read blobs/ab (store s3://b): Access denied."
    said = f"failed with exit code 65; it said: {words}"
    found = judge(PLACEMENT, Seen(jobset(FAILED), [leaving(words)], [exit_of(65)])).observation
    assert (found.state, found.cause) == (GONE, wire.INFRASTRUCTURE)
    assert found.message.endswith(said)
    found = judge(PLACEMENT, Seen(jobset(), [leaving(words), pod("Running", "x-s-0-0-abcde")])).observation
    assert (found.state, found.cause) == (WOUNDED, wire.INFRASTRUCTURE)
    assert found.message == f"pod x-s-0-1-abcde died with exit code 65; it said: {words}"
    crashed = judge(PLACEMENT, Seen(jobset(FAILED), [leaving("a word", code=1)], [exit_of(1)])).observation
    assert crashed.message.startswith("a pod died: ") and crashed.message.endswith("; it said: a word")


def test_of_several_that_left_words_the_one_counts_that_failed_first() -> None:
    other = leaving("it received SIGTERM", "x-s-0-0-abcde")
    found = judge(PLACEMENT, Seen(jobset(FAILED), [other, leaving("the first")], [exit_of(65)])).observation
    assert found.message.endswith("; it said: the first")
    found = judge(PLACEMENT, Seen(jobset(FAILED), [other, pod("Running")], [exit_of(65)])).observation
    assert found.message.endswith("; x-s-0-0-abcde said: it received SIGTERM")  # and not the one that failed


def test_last_words_are_of_others_and_shown_as_text_in_one_line_with_a_bound() -> None:
    """Any program of a pod may write them."""
    words = "first\n\x1b]0;title\x07 second\u202e" + "x" * 5000
    found = judge(PLACEMENT, Seen(jobset(FAILED), [leaving(words)], [exit_of(65)])).observation
    assert "it said: first \\x1b]0;title\\x07 second\\u202exxx" in found.message
    assert len(found.message) < 1200
    assert found.cause == wire.INFRASTRUCTURE


@pytest.mark.parametrize(("accelerator", "cause"), [("v5e-16", wire.INFRASTRUCTURE), ("v5e-16:spot", wire.PREEMPTION)])
def test_a_node_that_is_gone_is_a_preemption_only_on_spot(accelerator: str, cause: str) -> None:
    gone = condition("DisruptionTarget", "DeletionByPodGC", "PodGC: node no longer exists")
    annotations = {"annotations": {manifest.ACCELERATOR: accelerator}}
    for one in (jobset(FAILED), jobset()):
        found = judge(PLACEMENT, Seen({**one, "metadata": annotations}, [died(137, conditions=[gone])], [DISRUPTED]))
        assert found.observation.cause == cause
        assert "taken away (DeletionByPodGC: PodGC: node no longer exists)" in found.observation.message


def test_a_set_that_is_completed_is_gone_without_a_cause() -> None:
    found = judge(PLACEMENT, Seen(jobset(condition("Completed", "AllJobsCompleted")), [pod("Succeeded")])).observation
    assert (found.state, found.cause) == (GONE, "")


def test_without_a_set_there_is_nothing_unless_its_pods_are_ending() -> None:
    assert judge(PLACEMENT, Seen(None)).observation.state == ABSENT
    assert judge(PLACEMENT, Seen(None, [pod("Failed")])).observation.state == ABSENT
    assert judge(PLACEMENT, Seen(None, [pod("Running")])).observation.state == PRESENT


def test_a_set_is_present_once_all_of_its_pods_run() -> None:
    both = [pod("Running"), pod("Succeeded", "x-s-0-1-abcde")]
    assert judge(PLACEMENT, Seen(jobset(), both)).observation.state == PRESENT
    half = judge(PLACEMENT, Seen(jobset(), [*both[:1], pod("Pending", node="")])).observation
    assert (half.state, half.message) == (PROVISIONING, "context/team: 1 of 2 pods run")
    placed = judge(PLACEMENT, Seen(jobset(), [pod("Pending")])).observation
    assert placed.state == PROVISIONING
    assert judge(PLACEMENT, Seen(jobset(), [pod("Pending", node="")])).observation.state == QUEUED
    assert judge(PLACEMENT, Seen(jobset())).observation.state == QUEUED


def test_a_failed_condition_that_does_not_hold_is_no_end() -> None:
    seen = Seen(jobset(condition("Failed", "", status="False"), condition("Completed", "", status="False")))
    assert judge(PLACEMENT, seen).observation.state == QUEUED


def test_nobody_is_charged_before_the_first_pod_began() -> None:
    later = pod("Running", startTime="2026-11-27T19:44:00Z")
    found = judge(PLACEMENT, Seen(jobset(), [later, pod("Running", "x-s-0-1-abcde")])).observation
    assert found.charged == states.seconds("2026-11-27T19:43:18Z") > 0
    assert judge(PLACEMENT, Seen(jobset(), [pod("Pending")])).observation.charged == 0.0


def test_a_suspended_set_waits_in_its_queue_with_its_place() -> None:
    workload = {"spec": {"queueName": "research"}, "status": {}}
    found = judge(PLACEMENT, Seen(jobset(suspend=True), workload=workload, position=2))
    assert found.observation.state == QUEUED
    assert found.observation.message == "context/team: it waits in the queue research, place 2 in it"
    assert found.observation.hint == "kubectl describe jobset x -n team"


def test_a_set_without_a_workload_names_the_class_that_kueue_may_lack() -> None:
    made = "2026-01-01T00:00:00Z"
    labels = {"kueue.x-k8s.io/queue-name": "research", "kueue.x-k8s.io/priority-class": "high"}
    one = {**jobset(suspend=True), "metadata": {"creationTimestamp": made, "labels": labels}}

    def told(after: float) -> str:
        return judge(PLACEMENT, Seen(one, now=states.seconds(made) + after)).observation.message

    assert "no WorkloadPriorityClass high" not in told(waiting.SOON - 1)
    assert "no WorkloadPriorityClass high" in told(waiting.SOON)


def test_why_hosts_are_waited_for_is_told_beside_how_many_there_are() -> None:
    unscheduled = pod("Pending", node="", conditions=[condition("PodScheduled", "Unschedulable", "no", "False")])
    found = judge(PLACEMENT, Seen(jobset(), [pod("Running", "x-s-0-1-abcde"), unscheduled]))
    held = "hosts that run hold chips while others have no node"
    assert found.observation.message == f"context/team: 1 of 2 pods run; {held}; no node for pod x-s-0-0-abcde: no"
    assert found.why is not None and (found.why.cause, found.why.patience) == (wire.STOCKOUT, waiting.GANG)
    alone = judge(PLACEMENT, Seen(jobset(), [unscheduled]))
    assert alone.why is not None and not alone.why.cause


QUOTA = "forbidden: exceeded quota: q, requested: google.com/tpu=4, used: google.com/tpu=8, limited: google.com/tpu=8"


def test_what_once_kept_pods_from_being_created_is_over_when_all_are_there() -> None:
    quota = {"reason": "FailedCreate", "message": QUOTA}
    unscheduled = pod("Pending", node="", conditions=[condition("PodScheduled", "Unschedulable", "no", "False")])
    lacking = judge(PLACEMENT, Seen(jobset(), [unscheduled], events=[quota]))
    whole = judge(PLACEMENT, Seen(jobset(), [unscheduled, unscheduled], events=[quota]))
    assert lacking.why is not None and lacking.why.cause == wire.QUOTA
    assert whole.why is not None and not whole.why.cause


def test_a_pod_that_was_taken_back_before_it_began_is_no_death() -> None:
    taken = pod("Failed")
    taken["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert judge(PLACEMENT, Seen(jobset(), [taken])).observation.state != WOUNDED
    assert judge(PLACEMENT, Seen(jobset(), [pod("Failed")])).observation.state == WOUNDED


def test_nothing_is_to_be_explained_once_all_pods_run() -> None:
    running, ended = pod("Running"), pod("Succeeded")
    assert states.all_run(PLACEMENT, Seen(jobset(), [running, running]))
    for seen in (
        Seen(None, [running, running]),
        Seen(jobset(), [running]),
        Seen(jobset(), [running, ended]),
        Seen(jobset(), [running, running, pod("Pending")]),
    ):
        assert not states.all_run(PLACEMENT, seen)


def test_a_set_has_waited_since_it_was_created_or_evicted_and_not_while_its_pods_end() -> None:
    created, later = "2026-01-01T00:00:00Z", "2026-01-01T03:00:00Z"
    now = states.seconds(later) + 60.0
    waiting_set = {"metadata": {"creationTimestamp": created}, "spec": {"suspend": True}}
    evicted = {"status": {"conditions": [{"type": "Evicted", "status": "True", "lastTransitionTime": later}]}}
    assert states.waited(Seen(waiting_set, now=now)) == 3 * 3600.0 + 60.0
    assert states.waited(Seen(waiting_set, workload=evicted, now=now)) == 60.0
    ending = {"metadata": {"name": "p"}, "status": {"phase": "Running"}}
    assert states.waited(Seen(waiting_set, [ending], workload=evicted, now=now)) == 0.0
    assert states.waited(Seen(None, now=now)) == 0.0
