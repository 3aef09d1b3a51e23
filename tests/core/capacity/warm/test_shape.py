"""`keep=` is a time, is refused where no slice can be kept, and what is kept serves what wants exactly the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kinetic_orchestration.capacity.warm.shape import shape_of
from kinetic_orchestration.errors import Unsupported, UsageError
from kinetic_orchestration.jobs.launch import render_task
from kinetic_orchestration.plan import identity, planner
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.checks.options import check_options
from kinetic_orchestration.plan.declare.cloud import Compute, Kubernetes, TpuVm
from kinetic_orchestration.plan.declare.limits import Limits
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.records import PLAN, fields_of
from kinetic_orchestration.plan.values import Plan, Staged
from kinetic_orchestration.platforms.local.store import LocalStore
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.wire.task import Task

pytestmark = pytest.mark.fast
LOCAL = Settings(home=Path("/home"), store="/home/store", deployment="local", backend="local")
CLOUD = replace(LOCAL, store="gs://runs/kinetic", backend="", project="tpus", zones=("us-east5-a", "us-east5-b"))
DIGEST = "ab" * 32


def plan_of(settings: Settings = CLOUD, **given) -> Plan:
    return planner.make_plan(JobSpec("train", check_options(Options(**{"accelerator": "v6e-8", **given}))), settings)


@pytest.mark.parametrize(("given", "kept"), [("10m", 600.0), (90, 90.0), ("0s", 0.0), (0, 0.0), ("24h", 86400.0)])
def test_a_time_is_kept_as_seconds_and_survives_the_record(given, kept) -> None:
    plan = plan_of(keep=given)
    assert plan.keep == kept
    record = wire.encode(plan.to_json())
    assert Plan.from_json(fields_of(record, PLAN, "a plan")).keep == kept


def test_without_it_plan_and_task_are_what_they_were(tmp_path) -> None:
    plan = plan_of()
    assert plan.keep is None and "keep" not in plan.to_json() and "keeps" not in planner.describe(plan)
    task = rendered(plan, tmp_path)
    assert not {"keep", "shape"} & task.to_json().keys()
    assert (Task.from_json(task.to_json()).keep, task.shape) == (-1.0, "")
    assert "its own stays warm for 10m after it" in planner.describe(plan_of(keep="10m"))
    assert "it takes a warm slice, and leaves none" in planner.describe(plan_of(keep="0s"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("soon", "keep is 'soon': give seconds, or a text such as"),
        (-1, "keep is -1: it cannot be negative"),
        ("-1s", "keep is '-1s': it cannot be negative"),
        (float("nan"), "keep is nan: give seconds"),
        (True, "keep is True: give seconds, or a text such as '10m'"),
        ("25h", "keep is '25h': a slice is kept for 1d at most, since it costs money all the while"),
        (float("inf"), "a slice is kept for 1d at most"),
    ],
)
def test_what_is_no_such_time_is_refused_when_it_is_written_down(given, said) -> None:
    with pytest.raises(UsageError) as caught:
        check_options(Options(keep=given))
    assert said in str(caught.value)


def test_pods_are_refused_by_name_and_with_the_reason() -> None:
    clusters = replace(CLOUD, backend="gke", cluster="prod")
    with pytest.raises(Unsupported, match="keep= is not possible on Kubernetes: a pod ends with its") as of:
        plan_of(clusters, keep="10m", cloud=Kubernetes())
    assert "leave keep out" in str(of.value)
    with pytest.raises(Unsupported, match="keep= is not possible on the gke backend: a pod ends with its"):
        plan_of(clusters, keep="10m")
    with pytest.raises(Unsupported, match="keep= is not possible on the kubernetes backend"):
        check_options(Options(keep="10m", backend="kubernetes"))


def test_a_container_and_several_processes_on_a_machine_are_refused() -> None:
    with pytest.raises(Unsupported, match="keep= with container_image= is not possible: what a container"):
        plan_of(keep="10m", container_image="ghcr.io/a/train:7")
    vms = {"accelerator": "h100x8", "backend": "compute", "cloud": Compute(zones=["us-central1-a"])}
    with pytest.raises(Unsupported, match="keep= with processes= is not possible: no agent of several"):
        plan_of(keep="10m", processes="gpu", **vms)
    assert plan_of(keep="10m", **vms).keep == 600.0


def test_one_choice_that_cannot_be_kept_is_named() -> None:
    with pytest.raises(UsageError, match=r"in the choice of v6e-8, spot: keep= with container_image="):
        plan_of(accelerator=["v6e-8", "v6e-4"], capacity=["spot"], keep="10m", container_image="ghcr.io/a/train:7")


def test_this_machine_takes_the_option_and_has_nothing_to_keep() -> None:
    plan = plan_of(LOCAL, keep="10m", processes=None)
    assert plan.backend == "local" and plan.keep == 600.0
    assert "warm" not in planner.describe(plan)


# ---- shapes


SAME = {
    "another name": {"key": "other"},
    "another time": {"keep": "1h"},
    "other limits": {"limits": Limits(run="2h")},
    "another zone": {"zone": "us-east5-b"},
    "labels": {"labels": {"team": "a"}},
}
OTHER = {
    "another size": {"accelerator": "v6e-16"},
    "another generation": {"accelerator": "v5e-8"},
    "spot": {"spot": True},
    "several slices": {"cloud": TpuVm(num_slices=2)},
    "a runtime": {"cloud": TpuVm(runtime_version="v2-tpuv6e-of-ours")},
    "a network": {"cloud": TpuVm(network="quiet")},
    "no public addresses": {"cloud": TpuVm(external_ips=False)},
    "tags": {"cloud": TpuVm(tags=["trainers"])},
    "an account": {"cloud": TpuVm(service_account="train@tpus.iam.gserviceaccount.com")},
    "a reservation": {"cloud": TpuVm(reservation="ours")},
    "another API": {"backend": "compute", "cloud": Compute(zones=["us-east5-a"])},
}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_jobs_that_want_the_same_hardware_have_one_shape(change) -> None:
    assert shape_of(plan_of(**{"keep": "10m", **change})) == shape_of(plan_of(keep="10m"))


@pytest.mark.parametrize("change", OTHER.values(), ids=OTHER)
def test_other_hardware_or_another_account_is_another_shape(change) -> None:
    assert shape_of(plan_of(keep="10m", **change)) != shape_of(plan_of(keep="10m"))


def test_another_project_is_another_shape() -> None:
    assert shape_of(plan_of(replace(CLOUD, project="theirs"))) != shape_of(plan_of())


def test_who_asks_and_which_step_it_is_do_not_change_the_shape() -> None:
    plan = plan_of(keep="10m")
    of = identity.of("local", "a key")
    assert shape_of(planner.completed(plan, of, ())) == shape_of(plan)


def test_the_task_has_the_time_and_of_each_choice_its_own_shape(tmp_path) -> None:
    plan = plan_of(accelerator=["v6e-8", "v5e-8"], keep="10m")
    task = rendered(plan, tmp_path)
    assert (task.keep, task.shape) == (600.0, shape_of(plan.at(0)))
    data = wire.encode({"task": task.to_json()})
    assert Task.decode(data, "a spec", 1).shape == shape_of(plan.at(1)) != task.shape
    assert Task.decode(data, "a spec", 1).keep == Task.decode(data, "a spec", 0).keep == 600.0


def rendered(plan: Plan, folder: Path) -> Task:
    staged = Staged(None, DIGEST, "", (), (), (), (), None, "", DIGEST)
    return render_task(plan, staged, LocalStore(folder, "test"), "job-0123456789ab", identity.of("local", "a key"))
