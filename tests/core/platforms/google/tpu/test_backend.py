"""The backend's verbs against the emulated Cloud TPU API, over gRPC and REST, through Google's own client."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from google.api_core.exceptions import InvalidArgument

from kinetic_orchestration.errors import BackendError, NoPlace, UsageError
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.values import (
    ABSENT,
    ELSEWHERE,
    GONE,
    PRESENT,
    PROVISIONING,
    QUEUED,
    UNKNOWN,
    Freed,
    Intent,
    Limits,
    Observation,
    Past,
    Plan,
    Retry,
    Staged,
)
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.google import api_errors
from kinetic_orchestration.platforms.google.rest import retries
from kinetic_orchestration.platforms.google.tpu import backend as tpu_vm
from kinetic_orchestration.platforms.google.tpu import client
from kinetic_orchestration.platforms.google.tpu import request as tpu_request
from kinetic_orchestration.platforms.google.tpu.backend import TpuVmBackend
from kinetic_orchestration.platforms.google.tpu.states import WHOM_TO_ASK
from kinetic_orchestration.platforms.registry import open_backend
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.testing import Emulator, Refusal

ZONES = ("us-east5-a", "us-east5-b", "europe-west4-a")
SPEC = "5" * 64
STAGED = Staged(None, "", "", (), (), (), (), None, "", agent="a" * 64)
WITHIN = 60.0


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(tmp_path / "cloud ä", zones=ZONES, hosts=False, creates_per_minute=None) as running:
        yield running


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "CLIENT_SECONDS", 0.3)


class Here(NamedTuple):
    """A submitter: its settings and its backend, and a job of it."""

    settings: Settings
    backend: TpuVmBackend
    plan: Plan

    def intent(self, attempt: int = 1, job: str = "job-0123456789ab", past: Past | None = None) -> Intent:
        placement = self.backend.place(self.plan, job, attempt, past)
        return Intent(attempt, f"boot-{job}-{attempt}", placement, time.time() + 3600.0, time.time())

    def submit(self, intent: Intent, job: str = "job-0123456789ab", spec: str = SPEC, **secrets: str) -> str:
        return self.backend.submit(Submission(self.plan, STAGED, job, spec, intent, secrets))

    def look(self, intent: Intent) -> Observation:
        return self.backend.observe([intent.placement])[0]

    def until(self, intent: Intent, *wanted: str) -> Observation:
        deadline = time.monotonic() + WITHIN
        while (seen := self.look(intent)).state not in wanted:
            assert time.monotonic() < deadline, seen
            time.sleep(0.02)
        return seen

    def released(self, intent: Intent) -> bool:
        deadline = time.monotonic() + WITHIN
        while not self.backend.release(intent.placement):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def here_of(emulator: Emulator, home: Path, protocol: str = "grpc", **fields: Any) -> Here:
    environ = {**emulator.environ(), "KINETIC_HOME": str(home)}
    if protocol == "rest":
        del environ["KINETIC_EMULATOR_GRPC"]
    loaded = settings.load(environ)
    plan = Plan(
        name="train",
        slice=accelerators.parse("v6e-8"),
        backend="tpu-vm",
        store=loaded.store,
        deployment=loaded.deployment,
        limits=Limits(provision=600.0, run=3600.0),
        retry=Retry(),
        project=loaded.project,
        zones=ZONES,
        zone_patience=600.0,
    )
    backend = open_backend("tpu-vm", loaded)
    assert isinstance(backend, TpuVmBackend)
    return Here(loaded, backend, replace(plan, **fields))


@pytest.fixture(params=["grpc", "rest"])
def here(request: pytest.FixtureRequest, cloud: Emulator, tmp_path: Path) -> Here:
    return here_of(cloud, tmp_path / "home", request.param)


@pytest.fixture
def one(cloud: Emulator, tmp_path: Path) -> Here:
    """A backend with one protocol, for tests in which the protocol makes no difference."""
    return here_of(cloud, tmp_path / "home")


def other(cloud: Emulator, here: Here) -> TpuVmBackend:
    """Another process' backend: it remembers nothing."""
    return TpuVmBackend(here.settings)


# ---- the way of a slice ------------------------------------------------------------------------------------------


def test_a_slice_is_made_seen_and_freed_and_nothing_is_left(cloud: Emulator, here: Here) -> None:
    intent = here.intent()
    assert here.look(intent) == Observation(ABSENT, hint=WHOM_TO_ASK)
    assert here.submit(intent) == ""
    assert here.until(intent, PRESENT).message == ""
    labels = cloud.nodes()[0]["labels"]
    assert labels["kinetic-job"] == "job-0123456789ab"
    assert cloud.nodes()[0]["name"].endswith(intent.placement["name"])
    assert here.released(intent)
    assert here.look(intent) == Observation(ABSENT, hint=WHOM_TO_ASK)
    cloud.ledger.assert_nothing_left()


def test_a_multislice_is_one_request_and_as_many_nodes(cloud: Emulator, tmp_path: Path) -> None:
    here = here_of(cloud, tmp_path / "home", slices=3)
    intent = here.intent()
    here.submit(intent)
    here.until(intent, PRESENT)
    assert len(cloud.nodes()) == 3
    assert len(cloud.queued_resources()) == 1
    assert here.released(intent)
    cloud.ledger.assert_nothing_left()


def test_a_slice_on_its_way_is_queued_and_then_provisioned(cloud: Emulator, here: Here) -> None:
    cloud.stockout(ZONES[0], "wait")
    intent = here.intent()
    here.submit(intent)
    seen = here.until(intent, QUEUED)
    assert "in us-east5-a" in seen.message
    cloud.restock(ZONES[0])
    assert here.until(intent, PROVISIONING, PRESENT).state in (PROVISIONING, PRESENT)
    assert here.released(intent)


@pytest.mark.slow
def test_a_request_that_waits_too_long_in_a_zone_is_a_stockout_there(cloud: Emulator, tmp_path: Path) -> None:
    """`valid_until`, which ends it in the cloud even if nobody looks any more."""
    cloud.stockout(ZONES[0], "wait")
    one = here_of(cloud, tmp_path / "home", zone_patience=2.0)
    intent = one.intent()
    one.submit(intent)
    seen = one.until(intent, GONE)
    assert seen.cause == wire.STOCKOUT
    following = one.intent(2, past=Past(intent.placement, seen.cause, seen.message, intent.created))
    assert following.placement["zone"] == ZONES[1]
    assert following.since == intent.created
    assert one.released(intent)


# ---- the create call: repeated, lost, refused --------------------------------------------------------------------


def test_a_repeated_create_is_one_slice(cloud: Emulator, here: Here) -> None:
    intent = here.intent()
    for _ in range(3):
        assert here.submit(intent) == ""
    assert other(cloud, here).submit(Submission(here.plan, STAGED, "job-0123456789ab", SPEC, intent, {})) == ""
    assert len(cloud.queued_resources()) == 1
    assert here.released(intent)


def test_what_is_there_already_is_adopted_by_its_labels(cloud: Emulator, here: Here) -> None:
    """Made by a submitter with another boot id, who died: the API does not know the request, and says 409."""
    intent = here.intent()
    here.submit(intent)
    again = intent._replace(boot="another")
    assert other(cloud, here).submit(Submission(here.plan, STAGED, "job-0123456789ab", SPEC, again, {})) == ""
    assert len(cloud.queued_resources()) == 1
    assert here.released(intent)


def test_what_is_there_of_another_spec_is_not_adopted(cloud: Emulator, here: Here) -> None:
    intent = here.intent()
    here.submit(intent)
    with pytest.raises(BackendError, match="belongs to job job-0123456789ab, attempt 1") as caught:
        here.submit(intent._replace(boot="another"), spec="6" * 64)
    assert caught.value.cause == wire.CONFIGURATION
    assert here.released(intent)


def test_what_is_there_of_somebody_else_is_neither_adopted_nor_freed(cloud: Emulator, here: Here) -> None:
    intent = here.intent()
    _foreign(cloud, intent.placement)
    with pytest.raises(BackendError, match="somebody else, without our labels") as caught:
        here.submit(intent)
    assert caught.value.cause == wire.CONFIGURATION
    assert here.backend.release(intent.placement) is Freed.DONE
    assert len(cloud.queued_resources()) == 1, "a foreign slice was touched"


def test_a_lost_answer_is_found_out_by_looking(cloud: Emulator, here: Here) -> None:
    cloud.lose_answer("CreateQueuedResource", times=None)
    intent = here.intent()
    assert here.submit(intent) == ""
    cloud.clear_faults()
    assert here.until(intent, PRESENT)
    assert cloud.ledger.count("created", "queued resource") == 1
    assert here.released(intent)


def test_a_create_that_nobody_heard_is_made_again(cloud: Emulator, here: Here) -> None:
    cloud.fail("CreateQueuedResource", 14, times=None)
    intent = here.intent()
    assert "made again" in here.submit(intent)
    cloud.clear_faults()
    assert here.submit(intent) == ""
    assert here.released(intent)


def test_a_create_that_is_unavailable_for_a_moment_is_repeated_at_once(
    cloud: Emulator, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "CLIENT_SECONDS", WITHIN)
    cloud.fail("CreateQueuedResource", 14, times=1)
    intent = here.intent()
    assert here.submit(intent) == ""
    assert here.released(intent)


def test_a_limited_rate_is_waited_for_and_asks_nobody_meanwhile(
    cloud: Emulator, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "_throttled", throttled := {})
    cloud.create_rate(0)
    intent = here.intent()
    assert "CreateNode requests per minute" in here.submit(intent)
    assert here.submit(intent).startswith("waiting")
    assert cloud.count("CreateQueuedResource") == 1
    cloud.create_rate(None)
    [(key, (until, pause))] = throttled.items()
    assert 0 < until - time.monotonic() <= pause == retries.THROTTLE
    throttled[key] = (until - pause, pause)  # as if it were over
    assert here.submit(intent) == ""
    assert intent.placement["zone"] == ZONES[0]
    assert here.released(intent)


@pytest.mark.parametrize(
    ("arrange", "cause"),
    [
        (lambda cloud: cloud.stockout(ZONES[0], "refuse"), wire.STOCKOUT),
        (lambda cloud: cloud.quota("us-east5", 0), wire.QUOTA),
        (lambda cloud: cloud.fail("CreateQueuedResource", 13), wire.INTERNAL),
        (lambda cloud: cloud.deny("client", "tpu.nodes.create"), wire.CONFIGURATION),
        (lambda cloud: cloud.disable(), wire.CONFIGURATION),
        (lambda cloud: cloud.remove_zone(ZONES[0]), wire.QUOTA),
    ],
)
def test_a_refused_create_tells_its_cause(
    cloud: Emulator, here: Here, arrange: Callable[[Emulator], None], cause: str
) -> None:
    arrange(cloud)
    with pytest.raises(BackendError, match="us-east5-a: ") as caught:
        here.submit(here.intent())
    assert caught.value.cause == cause
    assert cloud.queued_resources() == []


@pytest.mark.parametrize(
    ("arrange", "cause"),
    [
        (lambda cloud: cloud.stockout(ZONES[0], "fail"), wire.STOCKOUT),
        (lambda cloud: cloud.quota("us-east5-a", 0, at="provision"), wire.QUOTA),
        (lambda cloud: cloud.fail("CreateQueuedResource", 13, at="provision"), wire.INTERNAL),
    ],
)
def test_a_request_that_fails_later_tells_its_cause_and_is_freed(
    cloud: Emulator, here: Here, arrange: Callable[[Emulator], None], cause: str
) -> None:
    arrange(cloud)
    intent = here.intent()
    assert here.submit(intent) == ""
    assert here.until(intent, GONE).cause == cause
    assert here.released(intent)
    cloud.ledger.assert_nothing_left()


def test_a_stockout_of_a_reservation_is_told_as_one_and_fatal(cloud: Emulator, tmp_path: Path) -> None:
    here = here_of(cloud, tmp_path / "home", cloud={"reservation": "quarter"})
    cloud.stockout(ZONES[0], "fail")
    intent = here.intent()
    here.submit(intent)
    seen = here.until(intent, GONE)
    assert seen.cause == wire.CONFIGURATION
    assert "the reservation has not enough free" in seen.message
    assert here.released(intent)


def test_an_operation_that_failed_without_a_trace_is_found_by_the_next_create(cloud: Emulator, here: Here) -> None:
    cloud.fail("CreateQueuedResource", 3, "no such image", at="operation")
    intent = here.intent()
    here.submit(intent)
    cloud.call("DeleteQueuedResource", {"name": tpu_request.resource_of(intent.placement), "force": True})
    cloud.wait_until_empty(WITHIN)
    with pytest.raises(BackendError, match="no such image") as caught:
        here.submit(intent)
    assert caught.value.cause == wire.CONFIGURATION


@pytest.mark.parametrize(("stuck", "limit"), [(False, "SHOWN"), (True, "UNSHOWN")], ids=["made", "under way"])
def test_a_slice_that_is_not_shown_is_waited_for_and_then_told_of_with_what_nobody_here_did(
    cloud: Emulator, here: Here, monkeypatch: pytest.MonkeyPatch, stuck: bool, limit: str
) -> None:
    """Somebody deletes it before anybody saw it."""
    if stuck:
        cloud.stuck_operations("create")
    intent = here.intent()
    assert here.submit(intent) == ""
    cloud.call("DeleteQueuedResource", {"name": tpu_request.resource_of(intent.placement), "force": True})
    cloud.wait_until_empty(WITHIN)
    zone = intent.placement["zone"]
    assert here.submit(intent) == f"waiting: {zone} has taken the request and not shown it yet"
    monkeypatch.setattr(tpu_vm, limit, -1.0)
    with pytest.raises(
        BackendError, match=f"^{zone}: the slice was made, was not shown for 0 s, and nobody here saw"
    ) as it:
        here.submit(intent)
    assert it.value.cause == wire.INFRASTRUCTURE
    assert "tpu.nodes.delete" in str(it.value)


def test_an_operation_that_never_ends_hinders_nothing(cloud: Emulator, here: Here) -> None:
    cloud.stuck_operations("create")
    intent = here.intent()
    assert here.submit(intent) == ""
    here.until(intent, PRESENT)
    assert here.submit(intent) == ""
    assert here.released(intent)


def test_captured_credentials_go_to_secret_manager_and_end_with_the_job(cloud: Emulator, one: Here) -> None:
    intent = one.intent()
    assert one.submit(intent, HF_TOKEN="hf_secret") == ""
    assert [name.rpartition("/")[2] for name in cloud.neighbours.secrets()] == ["kinetic-job-0123456789ab-HF_TOKEN"]
    assert "hf_secret" not in str(cloud.queued_resources())
    kept = list(one.backend.secrets())
    assert [job for job, _ in kept] == ["job-0123456789ab"]
    assert one.submit(one.intent(2), HF_TOKEN="hf_secret") == "", "the next attempt renews it"
    assert one.backend.forget(kept[0][1], "job-0123456789ab")
    assert one.backend.forget(kept[0][1], "job-0123456789ab"), "a second time as well"
    assert list(one.backend.secrets()) == []
    assert one.released(intent)
    assert one.released(one.intent(2))
    cloud.ledger.assert_nothing_left()


# ---- looking -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [13, 14, 8])
def test_a_read_that_fails_is_never_gone(cloud: Emulator, here: Here, code: int) -> None:
    intent = here.intent()
    here.submit(intent)
    here.until(intent, PRESENT)
    for method in ("GetQueuedResource", "GetNode", "List*"):
        cloud.fail(method, code, times=None)
    assert here.look(intent).state == UNKNOWN
    assert [seen.state for seen in here.backend.observe([intent.placement] * 2)] == [UNKNOWN, UNKNOWN]
    assert here.backend.release(intent.placement) is Freed.REFUSED
    cloud.clear_faults()
    assert here.look(intent).state == PRESENT
    assert here.released(intent)


@pytest.mark.parametrize("listing", ["queued_resources", "nodes"])
def test_a_zone_of_which_a_listing_knows_nothing_just_now_is_never_empty(
    cloud: Emulator, here: Here, listing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = {job: here.intent(job=job) for job in ("job-0123456789ab", "job-111111111111")}
    for job, intent in both.items():
        here.submit(intent, job)
        here.until(intent, PRESENT)
    zone = intent.placement["zone"]
    with monkeypatch.context() as patched:
        nothing = client.Page([], (f"projects/p/locations/{zone}",))
        patched.setattr(type(here.backend._tpus), listing, lambda *_: nothing)
        seen = here.backend.observe([intent.placement for intent in both.values()])
    assert [one.state for one in seen] == [UNKNOWN, UNKNOWN]
    assert f"no answer from projects/p/locations/{zone}" in seen[0].message
    for intent in both.values():
        assert here.look(intent).state == PRESENT
        assert here.released(intent)


def test_nobody_at_the_other_end_is_never_gone(cloud: Emulator, one: Here) -> None:
    intent = one.intent()
    nowhere = TpuVmBackend(replace(one.settings, emulator_grpc="127.0.0.1:1"))
    assert nowhere.observe([intent.placement])[0].state == UNKNOWN
    assert nowhere.release(intent.placement) is Freed.REFUSED
    assert "made again" in nowhere.submit(Submission(one.plan, STAGED, "job-0123456789ab", SPEC, intent, {}))


@pytest.mark.slow
def test_an_api_that_does_not_answer_is_waited_for_no_longer_than_a_bound(
    cloud: Emulator, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Google's client has no bound of its own: each call says one."""
    first, second = here.intent(), here.intent(2)
    here.submit(first)
    here.until(first, PRESENT)
    for bound in ("READ_SECONDS", "WRITE_SECONDS"):
        monkeypatch.setattr(client, bound, 0.5)
    cloud.slow("*", 60.0)
    began = time.monotonic()
    assert here.look(first).state == UNKNOWN
    assert here.backend.release(first.placement) is Freed.REFUSED
    assert here.submit(second).startswith("waiting: ")
    with pytest.raises(BackendError):
        list(here.backend.leftovers())
    assert time.monotonic() - began < 40
    cloud.clear_faults()
    monkeypatch.undo()
    assert here.released(first)
    assert here.released(second)
    cloud.ledger.assert_nothing_left()


def test_a_preempted_slice_is_told_as_such_with_or_without_its_state(cloud: Emulator, tmp_path: Path) -> None:
    here = here_of(cloud, tmp_path / "home", spot=True)
    for attempt, state in enumerate(("PREEMPTED", "TERMINATED", "UNKNOWN", "DELETING", "STOPPED"), 1):
        intent = here.intent(attempt)
        here.submit(intent)
        here.until(intent, PRESENT)
        cloud.show(intent.placement["name"], state)
        seen = here.look(intent)
        assert (seen.state, seen.cause) == (GONE, wire.PREEMPTION), state
        cloud.show(intent.placement["name"], "READY")
        assert here.released(intent)


@pytest.mark.parametrize(("by", "cause"), [("SERVICE", wire.PREEMPTION), ("USER", wire.CANCELLED)])
def test_a_suspended_slice_was_preempted_or_cancelled(cloud: Emulator, here: Here, by: Any, cause: str) -> None:
    intent = here.intent()
    here.submit(intent)
    here.until(intent, PRESENT)
    cloud.suspend(intent.placement["name"], by)
    assert here.until(intent, GONE).cause == cause
    assert here.released(intent)
    cloud.ledger.assert_nothing_left()


def test_a_node_that_its_user_deletes_cancels_the_attempt(cloud: Emulator, here: Here) -> None:
    intent = here.intent()
    here.submit(intent)
    here.until(intent, PRESENT)
    cloud.call("DeleteNode", {"name": tpu_request.nodes_of(intent.placement)[0]})
    assert here.until(intent, GONE).cause == wire.CANCELLED
    assert here.released(intent)


def test_states_that_nobody_knows_yet_end_nothing(cloud: Emulator, here: Here) -> None:
    intent = here.intent()
    here.submit(intent)
    here.until(intent, PRESENT)
    name = intent.placement["name"]
    node, queued = f"nodes/{name}", f"queuedResources/{name}"
    parent = tpu_request.parent_of(intent.placement)
    cloud.show(f"{parent}/{queued}", 42)
    assert here.look(intent).state == PRESENT
    cloud.show(f"{parent}/{node}", 43)
    assert here.look(intent).state == ELSEWHERE
    assert here.released(intent)


def test_symptoms_and_health_are_told(cloud: Emulator, here: Here) -> None:
    intent = here.intent()
    here.submit(intent)
    here.until(intent, PRESENT)
    cloud.symptom(intent.placement["name"], "HBM_OUT_OF_MEMORY", 0, "too much")
    assert "HBM_OUT_OF_MEMORY too much" in here.look(intent).message
    assert here.released(intent)


@pytest.mark.parametrize("count", [10, 60])
def test_any_number_of_jobs_is_observed_by_two_listings_a_zone(cloud: Emulator, one: Here, count: int) -> None:
    intents = [one.intent(1, f"job-{index:012d}") for index in range(count)]
    for index, intent in enumerate(intents):
        intent.placement["zone"] = ZONES[index % 2]
        one.submit(intent, f"job-{index:012d}")
    for intent in intents[:2]:
        one.until(intent, PRESENT)
    before = len(cloud.requests)
    placements = [intent.placement for intent in intents]
    placements.append({**placements[0], "name": "kinetic-nobody"})
    seen = one.backend.observe(placements)
    assert len(cloud.requests) - before == 4
    assert {one.state for one in seen[:-1]} <= {PRESENT, PROVISIONING}
    assert seen[-1] == Observation(ABSENT, hint=WHOM_TO_ASK)
    cloud.sweep()


# ---- the end -----------------------------------------------------------------------------------------------------


def test_to_release_what_was_never_made_is_done(here: Here) -> None:
    assert here.backend.release(here.intent().placement) is Freed.DONE


def test_released_means_that_queued_resource_and_nodes_answer_404(cloud: Emulator, here: Here) -> None:
    intent = here.intent()
    here.submit(intent)
    here.until(intent, PRESENT)
    cloud.stuck_delete()
    assert [here.backend.release(intent.placement) for _ in range(3)] == [Freed.UNDER_WAY] * 3
    assert cloud.count("DeleteQueuedResource") == 1, "what is DELETING already is not asked again"
    cloud.unstick()
    assert here.released(intent)
    cloud.ledger.assert_nothing_left()


def test_a_delete_that_was_taken_and_of_which_nothing_shows_is_asked_for_again(cloud: Emulator, here: Here) -> None:
    """A client that released a SUSPENDED resource for good would leave it to the reaper, and its quota with it."""
    intent = here.intent()
    here.submit(intent)
    here.until(intent, PRESENT)
    name = intent.placement["name"]
    cloud.suspend(name)
    cloud.wait_until(lambda: cloud.queued_resource(name)["state"]["state"] == "SUSPENDED")
    answers = [{"name": f"{tpu_request.parent_of(intent.placement)}/operations/o", "done": True}]
    cloud.deviate("DeleteQueuedResource", instead=lambda _: answers.pop() if answers else None)
    assert here.backend.release(intent.placement) is Freed.REFUSED
    assert here.released(intent)
    cloud.ledger.assert_nothing_left()


@pytest.mark.parametrize("code", [8, 13, 14])
def test_a_refused_delete_is_no_exception_and_not_done(cloud: Emulator, here: Here, code: int) -> None:
    intent = here.intent()
    here.submit(intent)
    here.until(intent, PRESENT)
    cloud.fail("DeleteQueuedResource", code, times=None)
    assert here.backend.release(intent.placement) is Freed.REFUSED
    cloud.clear_faults()
    assert here.released(intent)


def test_a_delete_that_is_not_permitted_is_no_exception_and_not_done(cloud: Emulator, here: Here) -> None:
    intent = here.intent()
    here.submit(intent)
    here.until(intent, PRESENT)
    cloud.deny("client", "tpu.nodes.delete")
    assert here.backend.release(intent.placement) is Freed.REFUSED
    cloud.allow("client", "tpu.nodes.delete")
    assert here.released(intent)


def test_a_node_that_outlived_its_queued_resource_is_freed_too(cloud: Emulator, here: Here) -> None:
    intent = here.intent()
    request = tpu_request.render_queued_resource(
        Submission(here.plan, STAGED, intent=intent, job_id="job-0123456789ab", spec_digest=SPEC, secrets={})
    )
    node = request["queuedResource"]["tpu"]["nodeSpec"][0]["node"]
    cloud.call("CreateNode", {"parent": request["parent"], "nodeId": intent.placement["name"], "node": node})
    assert here.backend.release(intent.placement) is Freed.UNDER_WAY
    assert here.released(intent)
    cloud.ledger.assert_nothing_left()


# ---- what is left ------------------------------------------------------------------------------------------------


def _foreign(cloud: Emulator, placement: dict[str, Any], **labels: str) -> None:
    node = {"acceleratorType": "v6e-8", "runtimeVersion": "v2-alpha-tpuv6e", "labels": labels}
    parent = tpu_request.parent_of(placement)
    spec = {"parent": parent, "nodeId": placement["name"], "node": node}
    body = {"parent": parent, "queuedResourceId": placement["name"], "queuedResource": {"tpu": {"nodeSpec": [spec]}}}
    cloud.call("CreateQueuedResource", body)


def test_leftovers_are_those_of_this_deployment_in_all_zones_and_no_others(cloud: Emulator, here: Here) -> None:
    jobs = [f"job-{index:012d}" for index in range(3)]
    for job, zone in zip(jobs, ZONES, strict=True):
        intent = here.intent(1, job)
        intent.placement["zone"] = zone
        here.submit(intent, job)
    elsewhere = TpuVmBackend(replace(here.settings, deployment="another"))
    plan = replace(here.plan, deployment="another")
    theirs = Intent(1, "b", elsewhere.place(plan, "job-ffffffffffff", 1), time.time() + 60, time.time())
    elsewhere.submit(Submission(plan, STAGED, "job-ffffffffffff", SPEC, theirs, {}))
    place = here.intent().placement
    _foreign(cloud, {**place, "name": "somebody"})
    _foreign(
        cloud,
        {**place, "name": "pretender"},
        **{"kinetic-job": "job-0", "kinetic-attempt": "1", "kinetic-expires": "1"},
    )
    found = list(here.backend.leftovers())
    assert sorted((one["job"], one["zone"]) for one in found) == sorted(zip(jobs, ZONES, strict=True))
    for one in found:
        assert (one["attempt"], one["deployment"], one["project"]) == (1, "test", "emulated")
        assert one["state"] in ("CREATING", "ACCEPTED", "PROVISIONING", "ACTIVE")
        assert 0 <= time.time() - one["created"] < 60
        assert abs(one["expires"] - time.time() - 3600) < 60
        assert one["name"] == names.slice_of(here.plan.store, "test", one["job"], 1)
    assert [one["job"] for one in elsewhere.leftovers()] == ["job-ffffffffffff"]
    cloud.sweep()


def test_a_leftover_can_be_observed_and_released_as_it_is(cloud: Emulator, tmp_path: Path) -> None:
    here = here_of(cloud, tmp_path / "home", slices=2)
    here.submit(here.intent())
    here.until(here.intent(), PRESENT)
    (found,) = here.backend.leftovers()
    assert here.backend.observe([found])[0].state == PRESENT
    deadline = time.monotonic() + WITHIN
    while not here.backend.release(found):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    cloud.ledger.assert_nothing_left()


def test_a_node_without_its_queued_resource_is_a_leftover(cloud: Emulator, here: Here) -> None:
    intent = here.intent()
    request = tpu_request.render_queued_resource(
        Submission(here.plan, STAGED, intent=intent, job_id="job-0123456789ab", spec_digest=SPEC, secrets={})
    )
    node = request["queuedResource"]["tpu"]["nodeSpec"][0]["node"]
    cloud.call("CreateNode", {"parent": request["parent"], "nodeId": intent.placement["name"], "node": node})
    (found,) = here.backend.leftovers()
    assert (found["job"], found["attempt"], found["name"]) == ("job-0123456789ab", 1, intent.placement["name"])
    assert here.released(intent)


def test_where_all_zones_cannot_be_listed_at_once_each_one_is(cloud: Emulator, here: Here) -> None:
    here.submit(here.intent())
    cloud.fail("List*", 3, "no wildcards here", times=None, zone="-")
    assert [one["job"] for one in here.backend.leftovers()] == ["job-0123456789ab"]
    assert here.released(here.intent())


def test_a_zone_that_cannot_be_read_is_told_and_not_forgotten(cloud: Emulator, here: Here) -> None:
    cloud.fail("List*", 3, "no wildcards here", times=None, zone="-")
    cloud.fail("List*", 14, times=None, zone=ZONES[1])
    found = list(here.backend.leftovers())
    assert {one["zone"] for one in found if one.get("unread")} == {ZONES[1]}


def test_a_zone_that_may_not_be_read_or_is_not_reached_is_told_where_each_zone_is_listed(
    cloud: Emulator, here: Here
) -> None:
    cloud.fail("List*", 3, "no wildcards here", times=None, zone="-")
    cloud.fail("List*", 7, times=None, zone=ZONES[1])
    assert {one["zone"] for one in here.backend.leftovers() if one.get("unread")} == {ZONES[1]}
    unread: list[dict[str, Any]] = []

    def listing(_: str, zone: str) -> client.Page:
        if zone == "-":
            raise InvalidArgument("no wildcards here")  # type: ignore[no-untyped-call]
        return client.Page([zone], (f"projects/emulated/locations/{zone}",) if zone == ZONES[2] else ())

    assert set(here.backend._everywhere(listing, "emulated", unread)) >= set(ZONES)
    assert unread == [{"zone": ZONES[2], "unread": "no answer"}]


def test_a_zone_that_is_only_known_here_and_is_denied_may_not_exist(cloud: Emulator, one: Here) -> None:
    cloud.fail("List*", 3, "no wildcards here", times=None, zone="-")
    cloud.fail("ListLocations", 13, times=None)
    cloud.fail("List*", 7, times=None, zone=ZONES[1])
    assert [found for found in one.backend.leftovers() if found.get("zone") == ZONES[1]] == []


def test_a_listing_that_is_not_permitted_is_an_error_that_says_so(cloud: Emulator, one: Here) -> None:
    cloud.deny("client", "tpu.nodes.list")
    with pytest.raises(BackendError, match=r"tpu\.nodes\.list is missing"):
        list(one.backend.leftovers())


# ---- where and by whom -------------------------------------------------------------------------------------------


def test_the_placement_carries_all_that_the_next_choice_needs(one: Here) -> None:
    first = one.intent()
    reason = "us-east5-a: There is no more capacity in the zone (RESOURCE_EXHAUSTED)"
    placements = [first.placement]
    for attempt in (2, 3, 4):
        past = Past(placements[-1], wire.STOCKOUT, reason, first.created)
        placements.append(one.backend.place(one.plan, "job-0123456789ab", attempt, past))
    assert [placement["zone"] for placement in placements] == [*ZONES, ZONES[0]]
    assert [bool(placement["wait"]) for placement in placements] == [False, False, False, True]
    assert {placement["since"] for placement in placements[1:]} == {first.created}
    assert len({placement["name"] for placement in placements}) == 4
    resumed = one.backend.place(one.plan, "job-0123456789ab", 5, Past(placements[-1], wire.PREEMPTION, "", 1.0))
    assert (resumed["zone"], resumed["since"], resumed["wait"]) == (ZONES[0], 0.0, 0.0)


def test_a_reservation_given_by_its_whole_path_says_where(cloud: Emulator, tmp_path: Path) -> None:
    path = "projects/ours/locations/us-central2-b/reservations/quarter"
    assert here_of(cloud, tmp_path, cloud={"reservation": path}).intent().placement["zone"] == "us-central2-b"


def test_a_slice_for_which_no_zone_is_known_is_refused_with_the_fix(one: Here) -> None:
    with pytest.raises(NoPlace, match="KINETIC_ZONES"):
        one.backend.check(replace(one.plan, zones=()))


def test_without_a_project_nothing_can_be_left(one: Here) -> None:
    with pytest.raises(UsageError, match="KINETIC_PROJECT"):
        list(TpuVmBackend(replace(one.settings, project="")).leftovers())


def test_one_client_serves_all_backends_of_the_same_settings(cloud: Emulator, one: Here) -> None:
    assert client.client(one.settings) is client.client(replace(one.settings, zone="x"))
    assert client.client(one.settings) is not client.client(replace(one.settings, emulator_grpc=""))


def test_a_client_that_others_displace_goes_on_for_whoever_is_at_a_call_with_it(cloud: Emulator, here: Here) -> None:
    """One of Airflow's connections may be displaced while a task of another one begins."""
    mine = client.client(here.settings)
    listed = mine.list_locations
    for number in range(client.KEPT):
        client.client(replace(here.settings, quota_project=f"project-{number}"))
    assert client.client(here.settings) is not mine
    assert listed({"name": "projects/emulated"}).locations


def test_a_call_on_a_closed_channel_is_one_that_may_pass(cloud: Emulator, one: Here) -> None:
    closed = client._open(one.settings, None)
    closed.transport.close()
    with pytest.raises(ValueError, match="closed channel") as raised:
        closed.get_node(name="projects/p/locations/z/nodes/n")
    status = client.status_of(raised.value)
    assert status is not None
    assert status.code == api_errors.UNAVAILABLE
    assert client.status_of(ValueError("something else")) is None


def test_a_forked_process_still_speaks_to_the_api(cloud: Emulator, one: Here) -> None:
    """gRPC does not survive a fork; a Dagster or Airflow worker may be one."""
    intent = one.intent()
    one.submit(intent)
    one.until(intent, PRESENT)
    context = multiprocessing.get_context("fork")
    end, far = context.Pipe()
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of the fork, which is the point here
        child = context.Process(target=_observe, args=(far, one, intent.placement))
        child.start()
    assert end.poll(WITHIN)
    assert end.recv() == PRESENT
    child.join(WITHIN)
    assert child.exitcode == 0
    assert one.look(intent).state == PRESENT
    assert one.released(intent)


def test_a_process_that_is_forked_while_a_client_is_opened_has_clients_of_its_own(cloud: Emulator, one: Here) -> None:
    """A worker of Dagster or Airflow may be forked while a thread of its parent holds the lock."""
    mine = client.client(one.settings)
    held, enough = threading.Event(), threading.Event()

    def hold() -> None:
        with client._lock:
            held.set()
            enough.wait(WITHIN)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(WITHIN)
    context = multiprocessing.get_context("fork")
    end, far = context.Pipe()
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of the fork, which is the point here
        child = context.Process(target=_open_many, args=(far, one))
        child.start()
    try:
        assert end.poll(WITHIN), "the child waits for a lock that nobody there holds"
        assert end.recv() == ["rest"] * (client.KEPT + 2)
        child.join(WITHIN)
        assert child.exitcode == 0
    finally:
        enough.set()
        thread.join()
        if child.is_alive():
            child.kill()
    assert client.client(one.settings) is mine
    assert client.Tpus(one.settings).locations("emulated") is not None  # the child closed nothing of ours


def _open_many(end: Any, here: Here) -> None:
    """More than are kept, so that some are closed."""
    each = [replace(here.settings, quota_project=f"project-{number}") for number in range(client.KEPT + 2)]
    end.send([client.client(settings).transport.kind for settings in each])


def _observe(end: Any, here: Here, placement: dict[str, Any]) -> None:
    end.send(here.backend.observe([placement])[0].state)


def test_the_dry_run_is_the_create_call(one: Here) -> None:
    shown = one.backend.dry_run(one.plan)
    assert 'acceleratorType: "v6e-8"' in shown
    assert "projects/emulated/locations/us-east5-a" in shown


def test_a_refusal_is_something_users_can_script(cloud: Emulator, one: Here) -> None:
    cloud.fail("CreateQueuedResource", refusal=Refusal(7, "Permission 'tpu.nodes.create' denied on 'x'"))
    with pytest.raises(BackendError, match=r"tpu\.nodes\.create is missing: gcloud projects add-iam-policy-binding"):
        one.submit(one.intent())
