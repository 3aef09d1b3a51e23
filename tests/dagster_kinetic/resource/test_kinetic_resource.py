"""`KineticResource`: how settings become options, whose word holds, and what is refused before anything runs."""

import subprocess
import sys
import threading
from dataclasses import fields
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.errors import DagsterResourceFunctionError
from pydantic import ValidationError

import kinetic_orchestration as kinetic
from dagster_kinetic import KineticResource, kinetic_asset
from dagster_kinetic.resource.config import ComputeConfig, KubernetesConfig, LimitsConfig, RetryConfig, TpuVmConfig
from kinetic_orchestration import Compute, JobStatus, Kubernetes, Limits, Retry, TpuVm
from kinetic_orchestration.errors import ConflictingSettings, JobNotFound, UsageError
from kinetic_orchestration.jobs.request import settings_of
from kinetic_orchestration.plan.planner import make_plan
from tests.dagster_kinetic.assets.many_assets import Kept  # noqa: F401 - its module is read by the code server's test

HERE = Path(__file__).parent
HELD = threading.Lock()
pytestmark = pytest.mark.usefixtures("shared_home")


def add(a, b=0):
    return a + b


def unpicklable():
    return HELD


def options(resource: KineticResource, function: Any = add, accelerator: str | None = "cpu", **given: Any) -> Any:
    return resource._spec(function, ((), None), accelerator, None, given).options


def resolved(resource: KineticResource, config: dict[str, Any] | None = None) -> KineticResource:
    """The resource as a step gets it."""
    found: list[KineticResource] = []

    @dg.op
    def look(kinetic: KineticResource) -> None:
        found.append(kinetic)

    @dg.job(resource_defs={"kinetic": resource})
    def looking() -> None:
        look()

    run_config = {"resources": {"kinetic": {"config": config}}} if config else None
    assert looking.execute_in_process(run_config=run_config).success
    return found[0]


EVERYTHING: dict[str, Any] = {
    "project": "my-project",
    "zones": ["us-west4-a", "us-west4-b"],
    "store": "gs://bucket/kinetic",
    "deployment": "blue",
    "backend": "tpu-vm",
    "spot": True,
    "cloud": {"network": "lan", "external_ips": False, "labels": {"team": "ml"}},
    "limits": {"provision": "2h", "run": "8h", "cost": 40.5},
    "retry": {"user": 1, "preemption": 7},
    "requirements": ["keras"],
    "container_image": "eu.gcr.io/p/i",
    "first_party": ["mine"],
    "secrets": {"HF_TOKEN": "hf"},
    "labels": {"of": "dagster"},
    "output_dir": "gs://bucket/out",
}


def everything(found: Any) -> None:
    assert (found.project, found.store, found.deployment, found.backend) == (
        "my-project", "gs://bucket/kinetic", "blue", "tpu-vm",
    )  # fmt: skip
    assert found.spot is True
    assert found.cloud == TpuVm(
        zones=("us-west4-a", "us-west4-b"), network="lan", external_ips=False, labels={"team": "ml"}
    )
    assert found.limits == Limits(provision="2h", run="8h", cost=40.5)
    assert found.retry == Retry(user=1, preemption=7)
    assert (found.requirements, found.first_party) == (["keras"], ["mine"])
    assert (found.secrets, found.labels) == ({"HF_TOKEN": "hf"}, {"of": "dagster"})
    assert (found.container_image, found.output_dir) == ("eu.gcr.io/p/i", "gs://bucket/out")


def test_every_setting_becomes_an_option():
    everything(options(KineticResource(**EVERYTHING), accelerator="v5e-8"))


@pytest.mark.parametrize("word", ["bundled", "prebuilt"])
def test_keras_kinetics_words_for_its_own_images_name_none(word):
    cloud = {"project": "p", "store": "gs://bucket/kinetic", "backend": "tpu-vm", "container_image": word}
    spec = KineticResource(**cloud)._spec(add, ((), None), "v5e-8", None, {})
    assert make_plan(spec, settings_of(spec)).image == ""


@pytest.mark.parametrize(
    "group, core",
    [
        (LimitsConfig, Limits), (RetryConfig, Retry), (TpuVmConfig, TpuVm), (KubernetesConfig, Kubernetes),
        (ComputeConfig, Compute),
    ],
)  # fmt: skip
def test_a_group_of_config_has_the_names_and_defaults_of_the_cores(group, core):
    stated = {entry.name: getattr(core(), entry.name) for entry in fields(core)}
    of_vms = {"zones", "accelerator_type"} if core in (TpuVm, Compute) else set()
    left_out = {"num_slices", *of_vms}  # set elsewhere
    assert group.model_fields.keys() == stated.keys() - left_out
    for name, field in group.model_fields.items():
        default = stated[name]
        assert field.default == (list(default) if isinstance(default, tuple) else default), name


def test_the_cores_own_values_are_taken():
    cloud = TpuVm(network="lan", external_ips=False, labels={"team": "ml"}, tags=("a", "b"))
    given = {"cloud": cloud, "limits": Limits(run=3600, cost=2), "retry": Retry(infra=0)}
    found = options(KineticResource(**given), accelerator="v5e-8")
    assert found.cloud == TpuVm(network="lan", external_ips=False, labels={"team": "ml"}, tags=["a", "b"])
    assert (found.limits, found.retry) == (Limits(run="3600", cost=2.0), Retry(infra=0))


def test_options_of_vms_come_from_their_group_or_from_the_cores_own_value_and_zones_are_of_any_vms():
    place = {"project": "p", "store": "gs://bucket/kinetic", "zones": ["us-east5-a"]}
    for group in (
        {"compute": {"disk_gib": 300, "disk_type": "pd-ssd", "flex_start": True}},
        {"cloud": Compute(disk_gib=300, disk_type="pd-ssd", flex_start=True)},
    ):
        found = options(KineticResource(**place, **group), accelerator="l4")
        assert found.cloud == Compute(zones=("us-east5-a",), disk_gib=300, disk_type="pd-ssd", flex_start=True)
    resource = KineticResource(**place, compute={"disk_gib": 300})
    mine = options(resource, accelerator="l4", cloud=Compute(hosts=2))
    assert mine.cloud == Compute(zones=("us-east5-a",), disk_gib=300, hosts=2)
    others = options(resource, accelerator="l4", cloud=TpuVm(zones=["us-east5-b"]))
    assert others.cloud == Compute(zones=["us-east5-b"], disk_gib=300)
    shared = options(KineticResource(**place, cloud={"network": "lan"}), accelerator="l4", cloud=Compute(disk_gib=300))
    assert shared.cloud == Compute(zones=("us-east5-a",), network="lan", disk_gib=300)
    with pytest.raises(ValidationError, match="cloud= and compute= exclude each other"):
        options(KineticResource(**place, cloud={"network": "lan"}, compute={"disk_gib": 300}), accelerator="l4")


def test_options_of_kubernetes_come_from_their_group_or_from_the_cores_own_value():
    place = {"backend": "kubernetes", "store": "gs://bucket/kinetic", "cluster": "prod", "namespace": "ml"}
    group = {"queue": "tpus", "node_selector": {"pool": "mine"}, "tolerations": ["spare"]}
    written = options(KineticResource(**place, kubernetes=group), accelerator="v5e-8")
    assert written.cloud == Kubernetes(queue="tpus", node_selector={"pool": "mine"}, tolerations=["spare"])
    assert (written.backend, written.cluster, written.namespace) == ("kubernetes", "prod", "ml")
    core = KineticResource(
        **place, cloud=Kubernetes(queue="tpus", node_selector={"pool": "mine"}, tolerations=["spare"])
    )
    assert options(core, accelerator="v5e-8") == written
    assert options(core, accelerator="v5e-8", cloud=Kubernetes(queue="own")).cloud.queue == "own"
    assert options(core, accelerator="v5e-8", cloud=Kubernetes(queue="own")).cloud.tolerations == ["spare"]
    plain = options(KineticResource(**place), accelerator="v5e-8")
    assert plain.cloud is None
    several = Kubernetes(clusters=["east", "west"])
    assert options(KineticResource(**place), cloud=several).cluster is None
    resource = KineticResource(backend="kubernetes", kubernetes={"clusters": ["east", "west"]})
    assert options(resource, cluster="prod").cloud == Kubernetes()
    with pytest.raises(ConflictingSettings, match="keep one"):
        options(resource, cluster="prod", cloud=several)
    configured = KineticResource.configure_at_launch()
    assert options(resolved(configured, {**place, "kubernetes": group}), accelerator="v5e-8") == written


@pytest.mark.parametrize(
    "given, wanted",
    [
        ({"backend": "kubernetes", "cluster": "prod", "namespace": "ml"}, [("kubernetes", "prod", "ml")]),
        (
            {"backend": "kubernetes", "kubernetes": {"clusters": ["east", "west"]}},
            [("kubernetes", "east", None), ("kubernetes", "west", None)],
        ),
        (
            {"backend": "kubernetes", "kubernetes": {"clusters": ["east"], "namespaces": ["a", "b"]}},
            [("kubernetes", "east", "a"), ("kubernetes", "east", "b")],
        ),
        ({"backend": "pathways", "cluster": "prod", "project": "p"}, [("gke", "prod", None)]),
        ({"backend": "gke", "project": "p"}, [(None, None, None)]),
    ],
)
def test_hosts_are_looked_for_wherever_jobs_may_have_them(given, wanted):
    found = KineticResource(store="gs://bucket/kinetic", **given).hardware_places()
    assert [(place["backend"], place["cluster"], place["namespace"]) for place in found] == wanted
    assert {(place["store"], place["deployment"]) for place in found} == {("gs://bucket/kinetic", "dagster")}


def test_settings_come_from_run_config_and_from_the_environment(monkeypatch):
    monkeypatch.setenv("MY_PROJECT", "from-outside")
    monkeypatch.setenv("MY_BOUND", "3h")
    written = KineticResource(project=dg.EnvVar("MY_PROJECT"), limits={"run": dg.EnvVar("MY_BOUND")})
    found = options(resolved(written))
    assert (found.project, found.limits.run) == ("from-outside", "3h")
    everything(options(resolved(KineticResource.configure_at_launch(), EVERYTHING), accelerator="v5e-8"))


def test_the_call_has_the_last_word_then_the_decorator_then_the_resource():
    resource = KineticResource(spot=True, zones=["a"], labels={"one": "1"}, limits={"run": "8h", "stall": "5m"})

    @kinetic.run(accelerator="v5e-8", limits=Limits(run="2h"), labels={"two": "2"})
    def decorated(): ...

    found = options(resource, decorated, None)
    assert (found.accelerator, found.spot, found.limits) == ("v5e-8", True, Limits(run="2h", stall="5m"))
    assert found.labels == {"one": "1", "two": "2"}
    found = options(resource, decorated, "v6e-8", spot=False, zone="b", limits=Limits(run="1h"))
    assert (found.accelerator, found.spot, found.limits) == ("v6e-8", False, Limits(run="1h", stall="5m"))
    assert (found.zone, found.cloud.zones) == ("b", ())
    assert options(resource, cloud=TpuVm(zones=["c"])).cloud.zones == ["c"]
    assert options(resource, kinetic.run(accelerator="v5e-8", labels={})(lambda: None), None).labels == {"one": "1"}


@pytest.mark.parametrize(
    "given, says",
    [
        ({"backend": "tpu-vm", "store": "/data/kinetic"}, "name a bucket"),
        ({"limits": {"run": "soon"}}, "limits.run is 'soon'"),
        ({"retry": {"user": -1}}, "cannot be negative"),
        ({"max_concurrent": 0}, "at least one job"),
        ({"spot": True, "cloud": {"reservation": "mine"}}, "exclude each other"),
        ({"limits": {"runs": "1h"}}, "did you mean run"),
        ({"kubernetes": {"ques": "tpus"}}, "did you mean queue"),
        ({"cloud": {"network": "lan"}, "kubernetes": {"queue": "tpus"}}, "exclude each other"),
        ({"zones": ["us-west4-a"], "cloud": Kubernetes(queue="tpus")}, "exclude each other"),
        ({"cluster": "a", "kubernetes": {"clusters": ["b"]}}, "cluster='a' and cloud=Kubernetes"),
        ({"projekt": "x"}, "did you mean project"),
        ({"cloud": {"data_disks": ["corpus"]}}, r"data_disks=….: no disk is mounted.*Data\('gs://"),
    ],
)
def test_what_cannot_be_is_refused_where_the_resource_is_written(given, says):
    with pytest.raises(ValidationError, match=says):
        KineticResource(**given)


def test_what_is_wrong_with_an_environment_variable_is_said_when_it_is_read(monkeypatch):
    monkeypatch.setenv("MY_STORE", "/data/kinetic")
    written = KineticResource(backend="tpu-vm", store=dg.EnvVar("MY_STORE"))
    with pytest.raises(DagsterResourceFunctionError) as caught:
        resolved(written)
    assert "name a bucket" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    "of_asset, of_resource",
    [
        ({"backend": "tpu-vm"}, {"store": "STORE"}),
        ({"store": "STORE"}, {"backend": "tpu-vm", "project": "p"}),
        ({"store": "STORE"}, {"backend": dg.EnvVar("MY_BACKEND"), "project": "p"}),
    ],
)
def test_a_store_here_for_hosts_elsewhere_is_refused_as_soon_as_both_halves_are_known(
    of_asset, of_resource, tmp_path, monkeypatch
):
    """Dagster shows an asset its resource when the step starts: then, and before anything is packaged or written."""
    monkeypatch.setenv("MY_BACKEND", "tpu-vm")
    store = tmp_path / "store"
    halves = [
        {name: str(store) if value == "STORE" else value for name, value in half.items()}
        for half in (of_asset, of_resource)
    ]
    asset = kinetic_asset(accelerator="v5e-8", name="halves", **halves[0])(unpicklable)
    with pytest.raises(ConflictingSettings, match="name a bucket, as store='gs://my-bucket/kinetic'"):
        dg.materialize([asset], resources={"kinetic": KineticResource(**halves[1])})
    assert not store.exists()


# ---- whose deployment it is --------------------------------------------------------------------------------


def test_the_deployment_is_dagsters_own_unless_somebody_says_otherwise(monkeypatch):
    shared = KineticResource(store="gs://bucket/kinetic")
    assert options(KineticResource()).deployment is None  # this machine's store has one
    assert options(shared).deployment == "dagster"
    monkeypatch.setenv("DAGSTER_CLOUD_DEPLOYMENT_NAME", "a1b2c3")
    assert options(shared).deployment == "a1b2c3"
    assert shared.place() == {"project": None, "store": "gs://bucket/kinetic", "deployment": "a1b2c3"}
    monkeypatch.setenv("KINETIC_DEPLOYMENT", "ours")
    assert options(shared).deployment is None  # the core reads it
    assert options(KineticResource(store="gs://b", deployment="blue")).deployment == "blue"
    assert options(KineticResource(store="gs://b", deployment="blue"), deployment="red").deployment == "red"


def test_jobs_lie_in_the_deployment_and_are_found_there(monkeypatch):
    monkeypatch.setenv("DAGSTER_CLOUD_DEPLOYMENT_NAME", "branch-7")
    resource = KineticResource()
    job = resource.submit(add, args=(1, 2), accelerator="cpu")
    assert resource.attach(job.job_id).result(timeout=60) == 3
    monkeypatch.delenv("DAGSTER_CLOUD_DEPLOYMENT_NAME")
    with pytest.raises(JobNotFound):
        resource.attach(job.job_id)
    assert kinetic.attach(job.job_id, deployment="branch-7").status() is JobStatus.SUCCEEDED


# ---- a job that nobody waits for, in a container -----------------------------------------------------------


class DockerRunLauncher(dg._core.launcher.DefaultRunLauncher):  # type: ignore[name-defined]
    """A stand-in for `dagster-docker` by its name and place in the instance: its runs are containers."""


def test_a_job_that_would_end_with_the_container_of_its_run_is_refused(instance, new_instance):
    launcher = {"module": __name__, "class": "DockerRunLauncher"}

    @dg.op
    def submits(context: dg.OpExecutionContext, kinetic: KineticResource) -> str:
        return kinetic.submit(add, args=(1,), accelerator="cpu", context=context).job_id

    @dg.job(resource_defs={"kinetic": KineticResource()})
    def submitting() -> None:
        submits()

    ends_with_it = pytest.raises(UsageError, match=r"container of this run and ends with it.*gs:// store=")
    with new_instance({"run_launcher": launcher}) as contained, ends_with_it:
        submitting.execute_in_process(instance=contained)
    made = submitting.execute_in_process(instance=instance).output_for_node("submits")
    assert kinetic.attach(made).result(timeout=60) == 1


# ---- outside of a decorated asset ---------------------------------------------------------------------------


def test_a_run_inside_any_asset_and_many_in_one_step():
    def add(a, b=0):
        return a + b

    @dg.asset
    def sums(context: dg.AssetExecutionContext, kinetic: KineticResource):
        def rank():
            import os

            print("local rank", os.environ["LOCAL_RANK"], "of", os.environ["LOCAL_WORLD_SIZE"])

        one = kinetic.run(add, args=(1,), kwargs={"b": 2}, accelerator="cpu", context=context)
        handle = kinetic.submit(add, args=(10,), accelerator="cpu", context=context)
        ranks = kinetic.submit(rank, accelerator="cpu:2", processes=2, context=context)
        ranks.result()
        return [one, kinetic.attach(handle.job_id).result(), sorted(ranks.logs().splitlines())]

    made = dg.materialize([sums], resources={"kinetic": KineticResource()}).output_for_node("sums")
    assert made == [3, 10, ["[host 0] local rank 0 of 2", "[host 1] local rank 1 of 2"]]


@pytest.mark.filterwarnings("ignore:STORY_TOKEN is the one of this environment")
def test_a_run_on_this_machine_takes_what_is_said_of_money_and_secrets_for_the_cloud(monkeypatch, tmp_path):
    for name, value in {"STORY_TOKEN": "x", "NO_GCE_CHECK": "true", "CLOUDSDK_CONFIG": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)

    @dg.asset
    def told(context: dg.AssetExecutionContext, kinetic: KineticResource):
        def read():
            import os

            return os.environ["STORY_TOKEN"]

        return kinetic.run(read, accelerator="cpu", context=context)

    resource = KineticResource(limits={"cost": 5}, secrets={"STORY_TOKEN": "story"})
    assert dg.materialize([told], resources={"kinetic": resource}).output_for_node("told") == "x"


def test_a_resource_runs_functions_outside_of_dagster_too(capfd):
    assert KineticResource().run(pow, args=(2, 5), accelerator="cpu") == 32
    assert "cost: $0.00" in capfd.readouterr().err


# ---- definitions in a code server --------------------------------------------------------------------------

LOAD = """
import os, socket, sys
def refuse(*arguments, **keywords):
    raise AssertionError(f"loading definitions asked for the network: {arguments}")
socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
watched = []
def hook(event, arguments):
    if event == "open" and isinstance(arguments[1], str) and set("wax+") & set(arguments[1]):
        watched.append(arguments[0])
    elif event in ("os.mkdir", "os.rename", "os.remove", "os.symlink", "subprocess.Popen", "os.posix_spawn", "os.fork"):
        watched.append((event, *map(str, arguments[:2])))
import dagster as dg
sys.path.insert(0, sys.argv[1])
sys.addaudithook(hook)
import tests.dagster_kinetic.assets.many_assets as many
import tests.dagster_kinetic.pipelines as pipelines
from dagster_kinetic import KineticResource
definitions = dg.Definitions(
    assets=[many.base, many.second, many.daily, many.trained, pipelines.slice_of_four],
    resources={"kinetic": KineticResource(project=dg.EnvVar("NOT_SET"), store="gs://no/such"), "kept": many.Kept()},
)
dg.Definitions.validate_loadable(definitions)
print("assets", len(definitions.resolve_asset_graph().get_all_asset_keys()))
print("wrote", watched)
print("loaded", *sorted(name for name in sys.modules if name.split(".")[0] in ("google", "jax", "cloudpickle", "uv")))
"""


def test_definitions_load_without_network_credentials_or_writes(tmp_path):
    """With an empty environment, a home that cannot be written, and no network to ask."""
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    root = HERE.parents[2]
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", LOAD, str(root)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    lines = dict(line.split(" ", 1) for line in ran.stdout.splitlines())
    assert lines["assets"] == "6", ran.stdout
    assert lines["wrote"] == "[]"
    assert set(lines["loaded"].split()) <= {"google", "google.cloud"}  # these two are nothing but folders


def test_importing_costs_no_more_than_dagster_itself():
    code = (
        "import sys, dagster; before = set(sys.modules); import dagster_kinetic; "
        "print(*sorted(set(sys.modules) - before))"
    )
    added = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {
        name for name in added if name.split(".")[0] in ("google", "jax", "rich", "uv", "cloudpickle", "platformdirs")
    }, added
    assert "dagster_kinetic.resource.kinetic_resource" in added
    plans = (
        "kinetic_orchestration.plan.emulation",
        "kinetic_orchestration.plan.values",
        "kinetic_orchestration.plan.hardware.machines",
    )
    assert not set(plans) & set(added)
