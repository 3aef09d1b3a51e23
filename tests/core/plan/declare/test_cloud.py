"""Options of one kind of cloud: they go to the backends that have them, and are refused or ignored elsewhere."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.errors import ConflictingSettings, UsageError
from kinetic_orchestration.jobs.following.held_time import DEADLINE_ALLOWANCE, promised
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.checks.options import check_options
from kinetic_orchestration.plan.declare.cloud import (
    CloudOptions,
    Kubernetes,
    Reservation,
    Slurm,
    TpuVm,
    queues_of,
    reservation_of,
)
from kinetic_orchestration.plan.declare.limits import Limits
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.planner import describe, make_plan
from kinetic_orchestration.plan.records import PLAN
from kinetic_orchestration.plan.values import TRAITS, Plan, Traits

pytestmark = pytest.mark.fast

BUCKET = {"KINETIC_STORE": "gs://b/k", "KINETIC_DEPLOYMENT": "prod"}
PODS = {**BUCKET, "KINETIC_BACKEND": "kubernetes"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    return tmp_path


def planned(tmp_path: Path, environ: dict[str, str], **options: Any) -> Plan:
    given = check_options(Options(**{"accelerator": "v5e-16", **options}))
    home = {"KINETIC_HOME": str(tmp_path / "home"), "KINETIC_PROFILE_FILE": "/none"}
    here = settings.load({**home, **environ}, cluster=given.cluster, namespace=given.namespace)
    return make_plan(JobSpec("train", given), here, {})


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("mine", Reservation("mine")),
        ("projects/p/reservations/r", Reservation("r", "p")),
        ("projects/p/zones/us-south1-ai1b/reservations/r", Reservation("r", "p", "us-south1-ai1b")),
        ("projects/x.com:p/locations/us-east5-a/reservations/r", Reservation("r", "x.com:p", "us-east5-a")),
        ("projects/p/reservations/r/reservationBlocks/b", None),
        ("projects/p/zones/z/reservations/r/reservationBlocks/b", None),
        ("projects/p/regions/us-east5/reservations/r", None),
        ("p/r", None),
        ("Mine", None),
        ("", None),
    ],
)
def test_a_reservation_is_read_from_its_name_or_its_path(given: str, named: Reservation | None) -> None:
    assert reservation_of(given) == named


def test_options_of_pods_are_fields_of_the_plan_and_its_record(tmp_path: Path) -> None:
    asked = Kubernetes(
        clusters=["a", "b"], num_slices=2, queue="tpus", priority_class="high", node_selector={"pool": "mine"},
        tolerations=["spare=true:NoSchedule"], env_from=["s3-keys"], image_pull_secrets=["registry"], labels={"team": "ml"},
    )  # fmt: skip
    plan = planned(tmp_path, {**PODS, "KINETIC_NAMESPACE": "train"}, cloud=asked)
    assert (plan.backend, plan.zones, plan.slices, plan.labels) == (
        "kubernetes",
        ("a/train", "b/train"),
        2,
        {"team": "ml"},
    )
    assert plan.cloud == {
        "queue": "tpus", "priority_class": "high", "reservation": "", "service_account": "", "node_selector": {"pool": "mine"},
        "tolerations": ["spare=true:NoSchedule"], "env_from": ["s3-keys"], "image_pull_secrets": ["registry"],
        "run_as_user": 0, "flex_start": False, "queued_provisioning": False, "owner": "",
    }  # fmt: skip
    record = json.loads(json.dumps(plan.to_json()))
    PLAN(record)
    assert Plan.from_json(record) == plan
    for unknown in ("flex_start", "queued_provisioning", "reservation"):  # to whoever wrote it
        del record["cloud"][unknown]
    assert Plan.from_json(record) == plan


@pytest.mark.parametrize(
    ("environ", "options", "zones"),
    [
        ({}, {}, ("/",)),
        ({"KINETIC_CLUSTER": "prod", "KINETIC_NAMESPACE": "ml"}, {}, ("prod/ml",)),
        ({"KINETIC_CLUSTER": "prod"}, {"cluster": "own", "namespace": "mine"}, ("own/mine",)),
        ({"KINETIC_CLUSTER": "prod"}, {"cloud": Kubernetes(clusters=("x", "y"))}, ("x/", "y/")),
        ({"KINETIC_NAMESPACE": "ml"}, {"cloud": Kubernetes(namespaces=("a", "b", "a"))}, ("/a", "/b")),
        ({}, {"cloud": Kubernetes(clusters=("x", "y"), namespaces=["a", "b"])}, ("x/a", "x/b", "y/a", "y/b")),
    ],
)
def test_clusters_are_those_of_the_call_or_the_setting(
    tmp_path: Path, environ: dict[str, str], options: dict[str, Any], zones: tuple[str, ...]
) -> None:
    assert planned(tmp_path, {**PODS, **environ}, **options).zones == zones


def test_a_cluster_is_named_in_one_way(tmp_path: Path) -> None:
    with pytest.raises(ConflictingSettings, match=r"both cluster='a' and cloud=Kubernetes\(clusters=\['b'\]\)"):
        planned(tmp_path, PODS, cluster="a", cloud=Kubernetes(clusters=["b"]))
    with pytest.raises(ConflictingSettings, match=r"both namespace='a' and cloud=Kubernetes\(namespaces=\['b'\]\)"):
        planned(tmp_path, PODS, namespace="a", cloud=Kubernetes(namespaces=["b"]))
    with pytest.raises(UsageError, match=r"cloud=Kubernetes\(namespaces='b'\) is a list: write \['b'\]"):
        planned(tmp_path, PODS, cloud=Kubernetes(namespaces="b"))


LONG = "a" * 64


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"node_selector": {"a b": "c"}}, r"node_selector=….* has the key 'a b', .*a label's key has letters"),
        ({"node_selector": {"-x.io/pool": "c"}}, r"the key '-x.io/pool'"),
        ({"node_selector": {"/pool": "c"}}, r"the key '/pool'"),
        ({"node_selector": {LONG: "c"}}, r"has the key 'a+'.*63 letters long"),
        ({"node_selector": {"a": "b c"}}, r"has 'b c', .*a label's value has letters"),
        ({"node_selector": {"a": 1}}, r"has 1, which Kubernetes never accepts"),
        ({"namespaces": ["Training_1"]}, r"namespaces=….* has 'Training_1', .*a namespace has small letters"),
        ({"namespaces": [LONG]}, r"63 letters long at most"),
        ({"queue": "research, of_all"}, r"queue=….* has 'of_all'"),
        ({"queue": LONG}, r"63 letters long at most"),
        ({"priority_class": "High"}, r"priority_class=….* has 'High'"),
        ({"service_account": "me@project"}, r"service_account=….* has 'me@project'"),
        ({"env_from": ["S3_KEYS"]}, r"env_from=….* has 'S3_KEYS'"),
        ({"env_from": ["a" * 254]}, r"253 letters long at most"),
        ({"env_from": "s3-keys"}, r"env_from='s3-keys'.* is a list: write \['s3-keys'\]"),
        ({"image_pull_secrets": ["a..b"]}, r"image_pull_secrets=….* has 'a..b'"),
        ({"image_pull_secrets": [""]}, r"image_pull_secrets=….* has ''"),
    ],
)
def test_names_that_kubernetes_can_never_have_are_refused_where_they_are_declared(
    asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        check_options(Options(accelerator="cpu", cloud=Kubernetes(**asked)))


def test_names_that_kubernetes_can_have_are_accepted(tmp_path: Path) -> None:
    long = ".".join(["a" * 50] * 5)[:253]
    asked = Kubernetes(
        queue="q.1", priority_class="high-1", service_account=long, env_from=[long], image_pull_secrets=["registry.io"],
        node_selector={"cloud.google.com/gke-nodepool": "A_b.c-1", "pool": "", "X": "true"}, namespaces=["a-1", "1"],
    )  # fmt: skip
    assert planned(tmp_path, PODS, cloud=asked, secrets={"A": "hf/TOKEN_1.x", "B": "hf"}).zones == ("/a-1", "/1")


@pytest.mark.parametrize(
    ("environ", "options", "said"),
    [
        ({"KINETIC_NAMESPACE": "Training_1"}, {}, r"KINETIC_NAMESPACE has 'Training_1', which Kub"),
        ({"KINETIC_NAMESPACES": "a,B"}, {}, r"KINETIC_NAMESPACES has 'B'"),
        ({"KINETIC_QUEUE": "a, b_c"}, {}, r"KINETIC_QUEUE has 'b_c'"),
        ({}, {"namespace": "Training_1"}, r"^namespace has 'Training_1'"),
        ({}, {"secrets": {"HF": "My_Secret"}}, r"secrets={'HF': 'My_Secret'} has 'My_Secret'"),
        ({}, {"secrets": {"HF": "hf/a b"}}, r"has 'a b', .* a key of a Secret has"),
    ],
)
def test_names_of_settings_and_secrets_are_refused_before_anything_is_asked(
    tmp_path: Path, environ: dict[str, str], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        planned(tmp_path, {**PODS, **environ}, **options)


@pytest.mark.parametrize(
    ("asked", "queues"),
    [("", ()), ("a", ("a",)), ("a, b,", ("a", "b")), (["a", "b", "a"], ("a", "b")), ((), ())],
)
def test_queues_are_named_by_a_text_or_a_list(tmp_path: Path, asked: Any, queues: tuple[str, ...]) -> None:
    assert queues_of(asked) == queues
    record = json.loads(
        json.dumps(planned(tmp_path, PODS, cluster="a", namespace="b", cloud=Kubernetes(queue=asked)).to_json())
    )
    PLAN(record)
    assert queues_of(record["cloud"]["queue"]) == queues


@pytest.mark.parametrize(
    ("environ", "cloud", "said"),
    [
        (
            PODS,
            TpuVm(network="lan"),
            r"cloud=TpuVm\(…\) has options of tpu-vm, and this job runs on kubernetes: name backend='tpu-vm'",
        ),
        (
            {**BUCKET, "KINETIC_PROJECT": "p"},
            Kubernetes(queue="q"),
            r"cloud=Kubernetes\(…\) has options of gke and kubernetes, and this job runs on tpu-vm: name .*",
        ),
        (
            {},
            Kubernetes(queue="q"),
            r"cloud=Kubernetes\(…\) has options of gke and kubernetes, and this job runs on local: name backend='gke' or",
        ),
    ],
)
def test_options_of_another_backend_are_refused(
    tmp_path: Path, environ: dict[str, str], cloud: CloudOptions, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        planned(tmp_path, environ, cloud=cloud)


def test_a_local_backend_that_is_named_ignores_them(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"cloud=Kubernetes\(queue=…\) has no meaning on the local backend"):
        plan = planned(tmp_path, {}, backend="local", cloud=Kubernetes(queue="q"))
    assert (plan.backend, plan.cloud, plan.zones) == ("local", {}, ())


def test_a_limit_of_cost_is_kept_on_slurm_by_the_price_in_the_settings_and_refused_without_one(tmp_path: Path) -> None:
    given: dict[str, Any] = {"backend": "slurm", "limits": Limits(cost=5), "cloud": Slurm(hosts=2)}
    plan = planned(tmp_path, {"KINETIC_PRICES": "gpu=3"}, accelerator="gpu", **given)
    assert plan.affordable == 5 / (2 * 3) * 3600
    assert "cost $5.00 (pays for 0.83 h by the price in the settings)" in str(describe(plan))
    with pytest.raises(UsageError, match=r"cannot be kept, as no price is known of gpu .*KINETIC_PRICES=gpu="):
        planned(tmp_path, {}, accelerator="gpu", **given)
    with pytest.raises(UsageError, match=r"cpu is no accelerator, .*use limits.run instead"):
        planned(tmp_path, {"KINETIC_PRICES": "gpu=3"}, accelerator="cpu", **given)


def test_a_job_may_wait_in_the_queue_of_slurm_for_longer_than_it_runs(tmp_path: Path) -> None:
    """A deadline that counts from the submission would end a job that waits, unless the wait has a limit, too."""
    none: Any = None  # it asks no job of one place
    placement = {"backend": "slurm"}
    plan = planned(tmp_path, {}, accelerator="cpu", backend="slurm", limits=Limits(run=60))
    assert promised(none, plan, placement, 1, 0.0) == (0.0, 0.0)
    plan = planned(tmp_path, {}, accelerator="cpu", backend="slurm", limits=Limits(run=60, provision=600))
    assert promised(none, plan, placement, 1, 0.0) == (60 + 600 + DEADLINE_ALLOWANCE, 0.0)


@dataclass(frozen=True, slots=True)
class Theirs(CloudOptions):
    partition: str = "gpu"
    hosts_with: tuple[str, ...] = ()


def test_options_of_another_packages_platform_are_fields_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TRAITS, "theirs", Traits(options=Theirs))
    plan = planned(tmp_path, {}, backend="theirs", cloud=Theirs(hosts_with=("ssd",), num_slices=2, labels={"a": "b"}))
    assert plan.cloud == {"partition": "gpu", "hosts_with": ["ssd"]}
    assert (plan.slices, plan.labels, plan.zones, plan.project) == (2, {"a": "b"}, (), "")
    assert planned(tmp_path, {}, backend="theirs").cloud == {"partition": "gpu", "hosts_with": []}
    assert plan.where == "theirs v5e-16 of an emulated cloud"
    with pytest.raises(UsageError, match=r"cloud=Theirs\(…\) has options of theirs, and this job runs on kubernetes"):
        planned(tmp_path, PODS, cloud=Theirs())


def test_cloud_takes_options_of_a_cloud_alone() -> None:
    with pytest.raises(UsageError, match="cloud"):
        check_options(Options(accelerator="v5e-16", cloud={"queue": "q"}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("queue", "named"), [("", "usual,spare"), ("own", "own"), (" , ", "usual,spare"), (["own", "spare"], "own,spare")]
)
def test_the_queue_of_the_settings_is_for_jobs_that_name_none(
    tmp_path: Path, queue: str | list[str], named: str
) -> None:
    environ = {**PODS, "KINETIC_QUEUE": "usual, spare"}
    assert planned(tmp_path, environ, cloud=Kubernetes(queue=queue)).cloud["queue"] == named
    assert planned(tmp_path, environ).cloud["queue"] == "usual,spare"
    assert planned(tmp_path, PODS).cloud["queue"] == ""


def test_machines_that_a_queue_asks_for_take_a_queue_of_the_call_or_of_the_settings(tmp_path: Path) -> None:
    cloud = Kubernetes(flex_start=True, queued_provisioning=True)
    with pytest.raises(UsageError, match=r"queued_provisioning=True takes a queue.*or KINETIC_QUEUE"):
        planned(tmp_path, PODS, cloud=cloud)
    assert planned(tmp_path, {**PODS, "KINETIC_QUEUE": "dws"}, cloud=cloud).cloud["queue"] == "dws"


def test_every_backend_states_what_it_is() -> None:
    assert list(TRAITS)[:2] == ["local", "tpu-vm"]
    for name, traits in TRAITS.items():
        assert traits.share_machine == (name == "local")
        assert traits.options is None or issubclass(traits.options, CloudOptions)
        assert traits.share_machine or traits.service, f"users hear where {name} runs"
        assert traits.share_files or traits.stores, f"the hosts of {name} reach some store"
        assert not traits.in_zones or traits.in_project


PLACED = {**PODS, "KINETIC_CLUSTER": "prod", "KINETIC_NAMESPACE": "ml"}


def test_nodes_of_gpus_are_hosts_of_one_job(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="the 2 hosts of h100x8 are joined over plain TCP. GPUDirect-TCPX"):
        plan = planned(tmp_path, PLACED, accelerator="h100x8", cloud=Kubernetes(hosts=2))
    assert (plan.hosts, plan.slices, plan.slice.chips, plan.slice.chips_per_host) == (2, 1, 16, 8)
    assert plan.hardware == "h100x8: 16 GPUs, 2 hosts × 8 GPUs, Kubernetes h100x8 of an emulated cloud"
    assert plan.crew == "2 hosts"
    assert "hosts" not in plan.cloud
    record = json.loads(json.dumps(plan.to_json()))
    PLAN(record)
    assert Plan.from_json(record) == plan
    one = planned(tmp_path, PODS, accelerator="h100x8")
    assert (one.hosts, one.hardware) == (1, "h100x8: 8 GPUs, 1 host, Kubernetes h100x8 of an emulated cloud")


def test_eight_chips_of_a_tpu_may_be_of_two_hosts(tmp_path: Path) -> None:
    plan = planned(tmp_path, PLACED, accelerator="tpu-v6e-2x4", cloud=Kubernetes(hosts=2, num_slices=2))
    assert (plan.hosts, plan.slices, plan.slice.chips, plan.slice.chips_per_host) == (4, 2, 8, 4)
    assert "2 slices of v6e-8: 8 chips (2x4), 2 hosts × 4 chips, Kubernetes v6e-8" in plan.hardware
    record = json.loads(json.dumps(plan.to_json()))
    PLAN(record)
    assert Plan.from_json(record) == plan


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"cloud": Kubernetes(hosts=3), "accelerator": "v6e-8"},
            "v6e-8 has 1 host, or hosts=2 with 4 chips each: leave",
        ),
        ({"cloud": Kubernetes(hosts=2)}, "for nodes with GPUs, and v5e-16 has 4 hosts: .*num_slices= joins"),
        ({"cloud": Kubernetes(hosts=2), "accelerator": "cpu:4"}, "for nodes with GPUs, and cpu:4 has 1 host: leave"),
        ({"cloud": Kubernetes(hosts=0), "accelerator": "l4"}, r"hosts=0\): it is a number of nodes, from 1 to 65536"),
        ({"cloud": Kubernetes(hosts="2"), "accelerator": "l4"}, r"hosts='2'\): it is a number of nodes"),  # type: ignore[arg-type]
    ],
)
def test_only_nodes_of_gpus_are_counted(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        planned(tmp_path, PODS, **options)
