"""`kinor verify` on Compute Engine: what it would make is known before, and one run proves every step and leaves nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.cli import codes, main
from kinetic_orchestration.cli.verify import budget, comparison, runner
from kinetic_orchestration.cli.verify.clouds.cloud import Slice
from kinetic_orchestration.cli.verify.clouds.compute_engine import ComputeCalls, ComputeEngine
from kinetic_orchestration.cli.verify.recording import Recorder
from kinetic_orchestration.cli.verify.redaction import Redactor
from kinetic_orchestration.cli.verify.steps import SEVERAL_SLICES, SLICE, STEPS_OF_COMPUTE, TWO_HOSTS, VM_DELETED
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.platforms.google.rest.call_listeners import Call
from tests.core.cli.verify import recorded

WRITE = os.environ.get("KINETIC_TEST_BASELINE") == "write"
WISHES = [step.wish for step in STEPS_OF_COMPUTE]
ZONE = "us-central1-a"
ZONES = (ZONE, "us-central1-b")
V6E = {"v6e": 2.7}
HERE = {
    "KINETIC_BACKEND": "compute", "KINETIC_PROJECT": "acme", "KINETIC_STORE": "gs://acme/kinetic",
    "KINETIC_ZONES": ZONE, "KINETIC_PRICES": "l4=0.8,l4:spot=0.3,a100=3",
}  # fmt: skip


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A project whose jobs run on Compute Engine, of which nothing is asked."""
    for name, value in HERE.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


# ---- before anything is made


@pytest.mark.fast
def test_the_cheapest_gpu_with_a_price_is_taken_unless_one_is_named(here: pytest.MonkeyPatch) -> None:
    assert runner.completed(runner.Wanted()).accelerator == "l4"
    assert runner.completed(runner.Wanted(accelerator="a100")).accelerator == "a100"
    here.setenv("KINETIC_PRICES", "l4=0.8,t4=0.4,l4:spot=0.1")
    assert runner.completed(runner.Wanted()).accelerator == "t4"
    assert runner.completed(runner.Wanted(spot=True)).accelerator == "l4"


@pytest.mark.fast
def test_the_hardware_chooses_the_platform_where_no_setting_does(here: pytest.MonkeyPatch) -> None:
    here.delenv("KINETIC_BACKEND")
    assert runner.settings_for(runner.Wanted("l4")).backend == "compute"
    assert runner.settings_for(runner.Wanted("v5e-1")).backend == "tpu-vm"
    assert runner.completed(runner.Wanted()).accelerator == "v5e-1"


@pytest.mark.fast
@pytest.mark.parametrize(
    ("environ", "wanted", "said"),
    [
        (
            {"KINETIC_ZONES": ""},
            runner.Wanted("l4"),
            r"no zones of l4 are known: name those that have some with --zone",
        ),
        ({"KINETIC_PRICES": ""}, runner.Wanted(), r"no price of a GPU is known.*KINETIC_PRICES=l4="),
        ({"KINETIC_PRICES": "l4=1"}, runner.Wanted(spot=True), r"no price of a GPU is known.*KINETIC_PRICES=l4:spot="),
        ({}, runner.Wanted("v5e-1"), r"v5e-1.*cannot be a VM of Compute Engine"),
        ({}, runner.Wanted("h100"), r"h100.*does not come on demand"),
    ],
)
def test_what_cannot_be_verified_is_refused_with_what_to_name(
    here: pytest.MonkeyPatch, environ: dict[str, str], wanted: runner.Wanted, said: str
) -> None:
    for name, value in environ.items():
        here.setenv(name, value)
    with pytest.raises(UsageError, match=said):
        runner.plan(wanted, runner.settings_for(runner.completed(wanted)))


@pytest.mark.fast
@pytest.mark.parametrize("usd", [0.0, 0.1, 0.3, 0.7, 1.0, 5.0])
def test_no_plan_costs_more_than_its_budget(usd: float) -> None:
    planned = budget.plan(WISHES, "l4", usd, [ZONE], prices={"l4": 0.8}, backend="compute")
    assert planned.most <= usd + 1e-9
    assert {"doctor", "api", "bucket", "reap"} <= {step.wish.name for step in planned.steps if not step.left_out}


@pytest.mark.fast
def test_a_dry_run_shows_the_steps_and_their_cost_and_makes_nothing(
    here: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--dry-run", "--json"]) == codes.OK
    shown = json.loads(capsys.readouterr().out)
    assert [step["step"] for step in shown["steps"] if step["accelerator"]] == [
        "job", "secrets", "self-deletion", "cancel", "VM deleted", "two hosts",
    ]  # fmt: skip
    assert {step["accelerator"] for step in shown["steps"]} == {None, "l4"}
    assert 0 < shown["most"] <= shown["budget"] == 5.0
    assert main(["verify", "--dry-run", "--json", "--backend", "compute", "--accelerator", "v6e-16"]) == codes.OK
    shown = json.loads(capsys.readouterr().out)
    assert {step["accelerator"] for step in shown["steps"]} == {None, "v6e-1", "v6e-16"}
    assert 0 < shown["most"] <= shown["budget"] == 5.0


@pytest.mark.fast
@pytest.mark.parametrize(
    ("named", "alone", "linked"),
    [
        ("v6e-1", "v6e-1", "v6e-16"),
        ("v6e-8", "v6e-8", "v6e-16"),
        ("v6e-64", "v6e-1", "v6e-64"),
        ("v5p-16", "v5p-4", "v5p-16"),
        ("tpu7x-4", "tpu7x-4", "tpu7x-8"),
        ("tpu7x-16", "tpu7x-4", "tpu7x-16"),
    ],
)
def test_tpus_are_verified_alone_and_as_slices_and_never_joined_one_by_one(named: str, alone: str, linked: str) -> None:
    prices = {**V6E, "v5p": 4.2, "tpu7x": 8.0}
    planned = budget.plan(WISHES, named, 1e6, [ZONE], prices=prices, backend="compute")
    steps = {step.wish.name: step for step in planned.steps}
    taken = {name: step.slice.name for name, step in steps.items() if step.slice is not None}
    assert {taken.pop(name) for name in (SLICE, SEVERAL_SLICES)} == {linked}
    assert set(taken.values()) == {alone}
    assert steps[TWO_HOSTS].left_out == "TPU VMs are linked as slices, and never joined one by one"
    assert [name for name, step in steps.items() if step.left_out] == [TWO_HOSTS]
    hourly = steps[SLICE].usd * 60 / steps[SLICE].wish.minutes
    found = accelerators.parse(linked)
    assert hourly == pytest.approx(found.chips * prices[found.generation])
    assert steps[SEVERAL_SLICES].usd == pytest.approx(2 * steps[SLICE].usd)


@pytest.mark.fast
def test_gpus_are_joined_and_have_no_step_for_slices() -> None:
    planned = budget.plan(WISHES, "l4", 1e6, [ZONE], prices={"l4": 0.8}, backend="compute")
    out = {step.wish.name: step.left_out for step in planned.steps if step.left_out}
    assert out == dict.fromkeys((SLICE, SEVERAL_SLICES), "VMs with GPUs are joined, and not linked as slices")


# ---- what a step makes of what it sees


def _judged(name: str, **seen: Any) -> list[str]:
    (step,) = (step for step in STEPS_OF_COMPUTE if step.name == name)
    return step.check({"attempts": 1, "message": "", **seen})


@pytest.mark.fast
def test_a_vm_that_is_deleted_by_hand_has_to_end_its_job_as_cancelled() -> None:
    """A job that goes on against the will of whoever deleted its VM costs money that nobody wants to spend."""
    answers = {"create a VM whose name is taken": "Conflict", "delete a RUNNING VM": "OK"}
    said = "VM deleted in us-central1-a by a user"
    assert _judged(VM_DELETED, status="CANCELLED", message=said, answers=answers) == []
    went_on = _judged(VM_DELETED, status="SUCCEEDED", attempts=2, value={"began": 3, "done": 6}, answers=answers)
    assert went_on == ["a machine that its owner deleted ends the job, and it is SUCCEEDED: "]
    silent = _judged(VM_DELETED, status="CANCELLED", message="cancelled", answers=answers)
    assert silent == ["the job is CANCELLED, and does not say that its machine was deleted: cancelled"]
    assert _judged(VM_DELETED, status="CANCELLED", message=said, answers={}) != []
    taken = {**answers, "create a VM whose name is taken": "OK"}
    assert _judged(VM_DELETED, status="CANCELLED", message=said, answers=taken) == [
        "a name that is taken was answered with OK"
    ]


@pytest.mark.fast
def test_a_slice_has_to_be_heard_whole_made_by_one_group_and_gone() -> None:
    said = sorted(f"verify: host {number} of 4" for number in range(4))
    well = {"status": "SUCCEEDED", "said": said, "hosts": 4, "wanted": 4, "slices": 1, "left": []}
    assert _judged(SLICE, **well) == []
    assert _judged(SLICE, **{**well, "said": said[:3]}) == ["3 of 4 hosts were heard"]
    assert _judged(SLICE, **{**well, "slices": 2}) == ["2 groups were made for 1 slices"]
    assert _judged(SLICE, **{**well, "left": ["get the policy of a group that was deleted"]}) == [
        "get the policy of a group that was deleted: it is still there"
    ]
    many = sorted(f"verify: host {number} of 16" for number in range(16))
    assert _judged(SLICE, **{**well, "said": many, "hosts": 16, "wanted": 16}) == []


@pytest.mark.slow
@pytest.mark.turn
def test_the_doctors_step_checks_what_is_asked_for(home: Path, tmp_path: Path) -> None:
    """Not a small sample of the platform: what is asked for may be in no zone while that is there."""
    with recorded.emulated(zones=ZONES, hosts=False) as cloud:
        cloud.compute.lack(ZONE, "n1-standard-4")
        cloud.compute.quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 0, "us-central1")
        cloud.deny("client", "compute.instanceTemplates.delete")
        prices = "l4=1,l4:spot=1,t4=1,v6e=1"
        environ = {**HERE, **cloud.environ(backend="compute"), "KINETIC_ZONES": ZONE, "KINETIC_PRICES": prices}

        def doctor(*asked: str) -> tuple[str, str]:
            folder = tmp_path / "-".join(asked)
            done, document, _ = recorded.verified(
                cloud, folder, "--only", "doctor", "--budget", "0", "--accelerator", *asked, **environ
            )
            (step,) = (step for step in document["steps"] if step["name"] == "doctor")
            return step["state"], f"{done.stderr} {json.dumps(step['seen'])}"

        state, said = doctor("l4")
        assert (state, "preemptible" in said.lower()) == ("passed", False), said
        state, said = doctor("l4", "--spot")
        assert (state, "preemptible" in said.lower()) == ("passed", True), said
        state, said = doctor("t4")
        assert state == "failed" and "Name zones that have it" in said, said
        state, said = doctor("t4", "--zone", ZONES[1])
        assert state == "passed", said
        state, said = doctor("v6e-1")
        assert state == "passed", said
        state, said = doctor("v6e-16")
        assert state == "failed" and "doctor: permissions" in said, said


# ---- what is seen of a VM


def _call(method: str, path: str, status: str = "OK", body: Any = None, **answer: Any) -> Call:
    at = float(len(path))
    return Call("compute", f"{method} compute/v1/{path}", {"body": body or {}}, status, answer, (), at, 0.5)


@pytest.mark.fast
def test_a_vm_is_charged_from_running_until_it_is_seen_gone() -> None:
    path = "projects/acme/zones/us-central1-a/instances"
    moments = iter(range(100, 200))
    recorder = Recorder(Redactor({"acme": "PROJECT"}), "kinetic-0a-", clock=lambda: 99.0, calls=ComputeCalls())
    recorder.rate = 0.1
    for call in (
        _call("POST", path, body={"name": "kinetic-0a-1"}),
        _call("POST", path, body={"name": "other"}),
        _call("GET", f"{path}/kinetic-0a-1", status="STAGING"),
        _call("GET", f"{path}/kinetic-0a-1", status="404"),
    ):
        recorder.record(call._replace(began=float(next(moments))))
    (slice_,) = recorder.slices.values()
    assert slice_.seconds(1000.0) == 0.0
    for answer in ({"status": "RUNNING"}, {"status": "STOPPING"}):
        found = Call("compute", f"GET compute/v1/{path}/kinetic-0a-1", {}, "OK", answer, (), float(next(moments)), 0.1)
        recorder.record(found)
    recorder.record(
        Call("compute", f"DELETE compute/v1/{path}/kinetic-0a-1", {}, "OK", {}, (), float(next(moments)), 0.1)
    )
    assert slice_.seconds(110.0) == 6.0
    assert recorder.deletions(slice_) == 1
    gone = Call("compute", f"GET compute/v1/{path}/kinetic-0a-1", {}, "404", {}, (), 124.0, 0.1)
    recorder.record(gone)
    assert (slice_.seconds(1000.0), recorder.lost) == (20.0, 0)
    assert {seen.name for seen in recorder.seen} == {"NAME-1"}


@pytest.mark.fast
def test_a_group_is_charged_from_its_first_vm_that_runs_until_it_is_seen_gone_itself() -> None:
    zone = "projects/acme/zones/us-central1-a"
    group, name = f"{zone}/instanceGroupManagers", "kinetic-0a-b1c2-1-0"
    recorder = Recorder(Redactor({"acme": "PROJECT"}), "kinetic-0a-", clock=lambda: 99.0, calls=ComputeCalls())
    recorder.rate = 0.1
    body = {"name": name, "targetSize": 2, "description": "{}"}
    whole = {"name": name, "zone": zone, "description": "{}"}
    moments = iter(range(100, 200))

    def record(method: str, path: str, answer: dict[str, Any] | None) -> None:
        status = "404" if answer is None else "OK"
        call = Call("compute", f"{method} compute/v1/{path}", {"body": body}, status, answer or {}, (), 0.0, 0.5)
        recorder.record(call._replace(began=float(next(moments))))

    record("POST", group, {})
    record("GET", f"{group}/{name}", {**whole, "currentActions": {"creating": 2}})
    record("GET", f"{zone}/instances/{name}-001", None)  # not there yet
    (slice_,) = recorder.slices.values()
    assert (slice_.seconds(1000.0), slice_.ended) == (0.0, None)
    record("GET", f"{zone}/instances/{name}-002", {"status": "STAGING"})
    record("GET", f"{zone}/instances/{name}-002", {"status": "RUNNING"})
    record("GET", f"{group}/{name}", whole)
    assert slice_.seconds(114.0) == 10.0
    record("DELETE", f"{group}/{name}", {})
    record("GET", f"{group}/{name}", {**whole, "currentActions": {"deleting": 2}})
    record("GET", f"{zone}/instances/{name}-001", {"status": "TERMINATED"})
    record("GET", f"{zone}/instances/{name}-002", None)
    assert slice_.ended is None, "one of its VMs is not all of it"
    record("GET", f"{group}/{name}", None)
    assert (slice_.seconds(1000.0), recorder.lost, len(recorder.slices)) == (6.0, 0, 1)
    assert [seen.word for seen in recorder.seen if seen.kind == "group"] == [
        "CREATING", "STABLE", "delete: OK", "DELETING", "404",
    ]  # fmt: skip
    assert recorder.deletions(slice_) == 1
    assert {echo.path for echo in recorder.echoes} == {"description"}


@pytest.mark.fast
def test_what_is_left_of_a_slice_is_told_with_the_commands_that_remove_it(home: Path) -> None:
    region = "projects/acme/regions/us-central1"
    body = {
        "targetSize": 4, "instanceTemplate": f"{region}/instanceTemplates/kinetic-0a-b1-1",
        "resourcePolicies": {"workloadPolicy": f"{region}/resourcePolicies/kinetic-0a-b1-1"},
    }  # fmt: skip
    here = settings.load({**HERE}, deployment="verify-1")
    cloud = ComputeEngine(here)
    left = Slice("projects/acme/zones/us-central1-a/instanceGroupManagers/kinetic-0a-b1-1", 0.1, body)
    commands = cloud.command(left).split("; ")
    assert commands == [
        "gcloud compute instance-groups managed delete kinetic-0a-b1-1 --zone=us-central1-a --project=acme",
        "gcloud compute instance-templates delete kinetic-0a-b1-1 --region=us-central1 --project=acme",
        "gcloud compute resource-policies delete kinetic-0a-b1-1 --region=us-central1 --project=acme",
    ]
    assert list(cloud.deleted(left)) == [
        "get a group that was deleted", "get a VM of a group that was deleted",
        "get the disk of a group that was deleted", "get the template of a group that was deleted",
        "get the policy of a group that was deleted",
    ]  # fmt: skip
    assert len(list(cloud.polls(left, whole=True))) == len(list(cloud.removals(left))) == 1 + 4 + 4 + 2
    assert len(list(cloud.polls(left))) == 3, "as a slice may have hundreds of VMs, and requests are limited"


# ---- a whole run


@pytest.mark.slow
@pytest.mark.turn(4)
@pytest.mark.timeout(480)
def test_a_whole_verification_on_emulated_vms_passes_leaves_nothing_and_answers_as_is_shipped(
    home: Path, tmp_path: Path
) -> None:
    with recorded.emulated(zones=ZONES) as cloud:
        environ = {**HERE, **cloud.environ(backend="compute", project="quokka-42")}
        done, document, page = recorded.verified(cloud, tmp_path / "vms", within=300.0, **environ)
        others = {step["name"]: step["state"] for step in document["steps"] if step["state"] != "passed"}
        assert others == dict.fromkeys((SLICE, SEVERAL_SLICES), "not run"), done.stderr
        assert "On the emulator of Compute Engine: 12 steps passed, 0 failed" in page
        assert "quokka" not in page + json.dumps(document), "a name of the user's is in the report"
        assert cloud.ledger.chip_seconds() > 0
        by_name = {step["name"]: step["seen"] for step in document["steps"]}
        assert by_name["self-deletion"]["deleted_here"] == 0 < by_name["self-deletion"]["slices"]
        assert (by_name["reap"]["listed"], by_name["reap"]["slices"] >= 7, by_name["reap"]["left"]) == (0, True, [])
        asked = ("--backend", "compute", "--accelerator", "v6e-16", "--budget", "100")
        only = ("--only", SLICE, "--only", SEVERAL_SLICES)
        done, linked, page = recorded.verified(cloud, tmp_path / "slices", *asked, *only, within=200.0, **environ)
        steps = {step["name"]: step for step in linked["steps"] if step["state"] != "not run"}
        assert {name: step["why"] for name, step in steps.items()} == {SLICE: [], SEVERAL_SLICES: [], "reap": []}
        assert [steps[name]["seen"]["slices"] for name in (SLICE, SEVERAL_SLICES)] == [1, 2]
        assert steps["reap"]["seen"]["left"] == [] and "quokka" not in page + json.dumps(linked)
        kinds = ("instances", "disks", "instanceGroupManagers", "instanceTemplates", "resourcePolicies")
        assert {kind for kind in kinds if f"/{kind}/NAME" in json.dumps(linked["calls"])} == set(kinds)
        now = recorded.merged(comparison.from_json(document["facts"]), comparison.from_json(linked["facts"]))
        if WRITE:
            versions = document["versions"]
            with_what = ", ".join(
                f"{name} {versions[name]}" for name in ("kinetic-orchestration", "google-cloud-storage")
            )
            text = json.dumps({"recorded": with_what, "facts": now.to_json()}, indent=1, sort_keys=True)
            runner.BASELINES["compute"].write_text(text + "\n")
        shipped, _ = runner.baseline("compute")
        assert recorded.differences(now, shipped) == []
        assert comparison.unrecorded(now, shipped) == comparison.unrecorded(shipped, now) == []
