"""Google's own Python client drives the emulated Compute Engine, and the VMs that it makes are processes.

Every exchange is held against Google's discovery document of Compute Engine by the recorder of all tests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from google.api_core.client_options import ClientOptions
from google.api_core.exceptions import BadRequest, Conflict, Forbidden, NotFound
from google.auth.credentials import AnonymousCredentials

from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.api_servers import compute_api, compute_fields
from kinetic_orchestration.testing.model.compute.groups.service import VERBS
from tests.support.exchanges import documents
from tests.support.exchanges.recorder import Recorder
from tests.support.instances import IMAGES, ZONE, body
from tests.support.waits import wait_until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from google.cloud import compute_v1

ASK = r"""
ask() { python3 -c '
import os, sys, urllib.request
url = "http://%s/computeMetadata/v1/%s" % (os.environ["GCE_METADATA_HOST"], sys.argv[1])
try:
    print(urllib.request.urlopen(urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})).read().decode())
except Exception as error:
    print("status", error.code)
' "$1"; }
"""
SUICIDE = """\
#!/bin/sh
exec python3 - <<'END'
import json, os, urllib.request

def ask(url, method="GET", data=None, **headers):
    kind = {"Content-Type": "application/json"} if data else {}
    request = urllib.request.Request(url, data, {**headers, **kind}, method=method)
    return urllib.request.urlopen(request, timeout=30).read().decode()

base = f"http://{os.environ['GCE_METADATA_HOST']}/computeMetadata/v1/"
google = {"Metadata-Flavor": "Google"}
token = json.loads(ask(base + "instance/service-accounts/default/token", **google))["access_token"]
zone = ask(base + "instance/zone", **google).rpartition("/")[2]
own = f"projects/{ask(base + 'project/project-id', **google)}/zones/{zone}/instances/{ask(base + 'instance/name', **google)}"
url = f"{os.environ['KINETIC_EMULATOR']}/compute/v1/{own}"
asked = json.dumps({"permissions": ["compute.instances.delete"]}).encode()
print(ask(url + "/testIamPermissions", "POST", asked, Authorization=f"Bearer {token}"), flush=True)
ask(url, "DELETE", Authorization=f"Bearer {token}")
END
"""


class Google:
    """The clients of one emulator, as a program of Google's users has them."""

    def __init__(self, cloud: Emulator) -> None:
        from google.cloud import compute_v1  # whose import takes seconds, which no other test should have to wait for

        options = {"credentials": AnonymousCredentials(), "client_options": ClientOptions(api_endpoint=cloud.rest.url)}
        self.instances = compute_v1.InstancesClient(**options)
        self.operations = compute_v1.ZoneOperationsClient(**options)
        self.disks = compute_v1.DisksClient(**options)
        self.images = compute_v1.ImagesClient(**options)
        self.machines = compute_v1.MachineTypesClient(**options)
        self.regions = compute_v1.RegionsClient(**options)

    def insert(self, sent: dict[str, object]) -> compute_v1.Operation:
        """Insert an instance, and wait for its operation."""
        from google.cloud import compute_v1

        resource = compute_v1.Instance.from_json(json.dumps(sent))
        asked = self.instances.insert_unary(project="p", zone=ZONE, instance_resource=resource)
        return self.operations.wait(project="p", zone=ZONE, operation=asked.name)

    def delete(self, name: str = "ko-a") -> compute_v1.Operation:
        asked = self.instances.delete_unary(project="p", zone=ZONE, instance=name)
        return self.operations.wait(project="p", zone=ZONE, operation=asked.name)

    def serial(self, name: str = "ko-a") -> str:
        return str(self.instances.get_serial_port_output(project="p", zone=ZONE, instance=name).contents)

    def status(self, name: str = "ko-a") -> str:
        return str(self.instances.get(project="p", zone=ZONE, instance=name).status)


@pytest.fixture(scope="module")
def cloud() -> Iterator[Emulator]:
    with Emulator(provision_seconds=0.02) as cloud:
        yield cloud


@pytest.fixture(scope="module")
def clients(cloud: Emulator) -> Google:
    return Google(cloud)


@pytest.fixture
def google(cloud: Emulator, clients: Google) -> Iterator[Google]:
    yield clients
    cloud.sweep()
    cloud.wait_until_empty()


def test_google_s_client_makes_finds_reads_and_deletes_a_vm(google: Google, cloud: Emulator) -> None:
    done = google.insert(
        body(script=f"#!/bin/sh\n{ASK}echo the script runs; ask instance/attributes/; ask instance/hostname")
    )
    assert (done.status.name, done.error.errors[:]) == ("DONE", [])
    wait_until(lambda: "internal" in google.serial())
    log = google.serial()
    assert "startup-script: the script runs" in log
    assert re.findall(r"startup-script: (\S+)\n", log)[-2:] == ["startup-script", f"ko-a.{ZONE}.c.p.internal"]
    scopes = dict(google.instances.aggregated_list(request={"project": "p", "filter": "labels.ko-managed=true"}))
    assert [one.name for one in scopes[f"zones/{ZONE}"].instances] == ["ko-a"]
    assert scopes["zones/us-east1-c"].warning.code == "NO_RESULTS_ON_PAGE"
    with pytest.raises(Conflict, match="already exists"):
        google.insert(body())
    assert google.delete().status.name == "DONE"
    with pytest.raises(NotFound):
        google.status()
    assert not cloud.leaks() or cloud.settled()


def test_a_zone_has_one_kind_of_machines_again_and_not_the_others(google: Google, cloud: Emulator) -> None:
    for machines in ("g2-*", "n1-*"):
        cloud.compute.stockout(ZONE, machines)
    assert google.insert(body()).error.errors
    cloud.compute.restock(ZONE, "g2-*")
    assert not google.insert(body()).error.errors
    [error] = google.insert(body("ko-b", "n1-standard-4")).error.errors
    assert error.code.startswith("ZONE_RESOURCE_POOL_EXHAUSTED")
    cloud.compute.restock()


def test_google_s_client_sees_a_stockout_behind_its_200(google: Google, cloud: Emulator) -> None:
    cloud.compute.stockout(ZONE, available=["us-central1-b"])
    failed = google.insert(body())
    [error] = failed.error.errors
    assert error.code == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS" and failed.http_error_status_code == 503
    assert error.error_details[-1].error_info.metadatas["zonesAvailable"] == "us-central1-b"
    cloud.compute.restock()
    cloud.compute.quota("GPUS_ALL_REGIONS", 0)
    [error] = google.insert(body()).error.errors
    assert (error.code, error.error_details[0].quota_info.limit_name) == (
        "QUOTA_EXCEEDED",
        "GPUS-ALL-REGIONS-per-project",
    )
    cloud.clear_faults()


def test_the_lines_for_a_client_lead_to_compute_engine(cloud: Emulator) -> None:
    told = cloud.environ(backend="compute")
    assert (told["KINETIC_BACKEND"], told["KINETIC_PROJECT"], told["KINETIC_EMULATOR"]) == (
        "compute",
        "emulated",
        cloud.rest.url,
    )
    with pytest.raises(ValueError, match="there is no emulated slurm: tpu-vm, compute, gke or kubernetes"):
        cloud.environ(backend="slurm")


@pytest.mark.slow
@pytest.mark.turn(0)
def test_google_s_client_finds_and_deletes_a_disk_that_was_left(google: Google, cloud: Emulator) -> None:
    sent = body()
    sent["disks"][0]["autoDelete"] = False
    google.insert(sent)
    google.delete()
    scopes = dict(google.disks.aggregated_list(project="p"))
    assert [disk.name for disk in scopes[f"zones/{ZONE}"].disks] == ["ko-a"]
    asked = google.disks.delete_unary(project="p", zone=ZONE, disk="ko-a")
    google.operations.wait(project="p", zone=ZONE, operation=asked.name)
    with pytest.raises(NotFound):
        google.disks.get(project="p", zone=ZONE, disk="ko-a")
    assert cloud.settled()


def test_google_s_client_is_refused_as_by_google(google: Google, cloud: Emulator, recorder: Recorder) -> None:
    with pytest.raises(BadRequest, match="does not exist in zone"):
        google.insert(body(machine="g2-standard-7"))
    cloud.deny("client", "compute.instances.create")
    with pytest.raises(Forbidden, match=r"Required 'compute.instances.create' permission"):
        google.insert(body())
    cloud.clear_faults()
    family = "ubuntu-accelerator-2204-amd64-with-nvidia-580"
    found = google.images.get_from_family(project="ubuntu-os-accelerator-images", family=family)
    assert (found.family, found.status) == (family, "READY")
    assert google.machines.get(project="p", zone=ZONE, machine_type="g2-standard-4").guest_cpus == 4
    assert {"NVIDIA_L4_GPUS"} <= {one.metric for one in google.regions.get(project="p", region="us-central1").quotas}


def test_a_vm_may_delete_itself_and_is_told_so(google: Google, cloud: Emulator) -> None:
    google.insert(body(script=SUICIDE))
    wait_until(lambda: cloud.compute.instance("ko-a") is None)
    listed = google.operations.list(
        request={"project": "p", "zone": ZONE, "filter": "operationType=delete AND targetLink:ko-a"}
    )
    [deleted, *_] = listed
    assert deleted.user.endswith("-compute@developer.gserviceaccount.com")


def test_a_gpu_vm_has_nvidia_smi_whose_driver_may_be_late_or_miss_a_gpu(google: Google, cloud: Emulator) -> None:
    script = "#!/bin/sh\n" + "nvidia-smi -L; echo rc $?\n" * 2
    script += "nvidia-smi --query-gpu=index,name,memory.total --format=csv,noheader,nounits; nvidia-smi | head -1"
    cloud.compute.drivers("ko-b", late=1, fewer=1)
    for name in ("ko-a", "ko-b"):
        google.insert(body(name, "g2-standard-24", script=script))
        wait_until(lambda name=name: "Driver Version" in google.serial(name))
    assert re.search(r"GPU 1: NVIDIA L4 \(UUID: GPU-[0-9a-f-]{36}\)", google.serial())
    assert "startup-script: 1, NVIDIA L4, 23034" in google.serial() and "rc 9" not in google.serial()
    late = google.serial("ko-b")
    assert "couldn't communicate with the NVIDIA driver" in late and "rc 9" in late and late.count("GPU 0: ") == 1
    assert "GPU 1" not in late
    google.insert(
        body(
            "ko-c",
            script="#!/bin/sh\nnvidia-smi\necho rc $?",
            image="projects/debian-cloud/global/images/family/debian-12",
        )
    )
    wait_until(lambda: "rc 127" in google.serial("ko-c"))  # an image without the driver


def test_a_vm_with_tpus_is_told_of_them_and_any_other_only_what_was_sent(google: Google) -> None:
    keys = ("accelerator-type", "worker-id", "agent-worker-number", "worker-network-endpoints", "tpu-env")
    script = "#!/bin/sh\n" + ASK + "\n".join(f"ask instance/attributes/{key}" for key in keys) + "\necho end"
    image = f"{IMAGES}/ubuntu-accel-2404-amd64-tpu-tpu7x"
    google.insert(body(machine="tpu7x-standard-4t", image=image, disk="hyperdisk-balanced", script=script))
    google.insert(body("ko-b", script=script))
    wait_until(lambda: "startup-script: end" in google.serial() and "startup-script: end" in google.serial("ko-b"))
    told = google.serial()
    assert "startup-script: v7x-8\n" in told and "TOPOLOGY: '2x2x1'" in told and "status 404" not in told
    assert google.serial("ko-b").count("startup-script: status 404") == len(keys)


@pytest.mark.parametrize(("scopes", "status"), [([], "403"), (None, "404")])
def test_a_vm_without_scopes_or_without_an_account_has_no_token(
    google: Google, scopes: list[str] | None, status: str
) -> None:
    sent = body(script=f"#!/bin/sh\n{ASK}ask instance/service-accounts/default/token", scopes=scopes or [])
    if scopes is None:
        del sent["serviceAccounts"]
    google.insert(sent)
    wait_until(lambda: f"startup-script: status {status}" in google.serial())


def test_a_spot_vm_sees_its_notice_before_its_power_button(google: Google, cloud: Emulator) -> None:
    script = f"""#!/bin/sh
{ASK}
trap 'echo the button; exit 0' TERM
echo up
until ask instance/preempted | grep TRUE; do sleep 0.05; done
while true; do sleep 0.05; done
"""
    spot = {
        "provisioningModel": "SPOT",
        "instanceTerminationAction": "DELETE",
        "preemptionNoticeDuration": {"seconds": "120"},
    }
    cloud.compute.speed_up(60.0)
    google.insert(body(script=script, scheduling=spot))
    wait_until(lambda: "startup-script: up" in google.serial())
    cloud.compute.preempt("ko-a", grace=1.5)
    wait_until(lambda: "startup-script: TRUE" in google.serial())
    assert google.status() == "RUNNING" and "the button" not in google.serial()
    wait_until(lambda: google.status() == "STOPPING" and "the button" in google.serial())
    wait_until(lambda: cloud.compute.instance("ko-a") is None)
    cloud.compute.speed_up(1.0)


def test_a_host_error_boots_a_vm_again_with_another_boot_id(google: Google, cloud: Emulator) -> None:
    script = '#!/bin/sh\necho boot "$(cat /proc/sys/kernel/random/boot_id || cat $KINETIC_ROOT/proc/sys/kernel/random/boot_id)"'
    google.insert(body(script=script, scheduling={"automaticRestart": True}))
    boots = re.compile(r"startup-script: boot (\S+)")
    wait_until(lambda: len(boots.findall(google.serial())) == 1)
    cloud.compute.host_error("ko-a")
    wait_until(lambda: len(boots.findall(google.serial())) == 2)
    first, second = boots.findall(google.serial())
    assert first != second and google.status() == "RUNNING"


def test_a_vm_that_never_speaks_is_the_one_that_was_named(google: Google, cloud: Emulator) -> None:
    cloud.compute.never_speaks("ko-b")
    for name in ("ko-b", "ko-c"):
        google.insert(body(name, script="#!/bin/sh\necho up"))
    [vm] = cloud.vms("ko-b")
    wait_until(lambda: vm is not None and vm.alive)
    wait_until(lambda: "startup-script: up" in google.serial("ko-c"))
    assert google.serial("ko-b").endswith("(ko-b)\n")


def test_each_method_that_is_served_has_the_path_the_parameters_and_the_body_of_the_document() -> None:
    assert {route.method for route in compute_api.ROUTES} == set(VERBS)
    for route in compute_api.ROUTES:
        path = re.sub(r"\(\?P<\w+>\[\^/\]\+\)", "x", route.path.pattern)
        method = documents.find(route.verb, path)
        assert method is not None and method.id == f"compute.{route.method}", path
        query = {name for name, one in method.parameters.items() if one["location"] == "query"}
        left_out = {
            "instances.insert": {"sourceInstanceTemplate", "sourceMachineImage"},
            "subnetworks.get": {"views"}, "subnetworks.aggregatedList": {"views"},
        }  # fmt: skip
        assert set(route.parameters) == query - left_out.get(route.method, set()), route.method
        assert (method.request or {}).get("$ref", "") == route.schema, route.method


def test_the_table_of_fields_is_the_discovery_document_s() -> None:
    schemas = documents.read("compute.v1")["schemas"]
    for name, fields in compute_fields.SCHEMAS.items():
        described = _inline(schemas, name)
        assert set(compute_fields.fields(name)) == set(described["properties"]), name
        for pair in fields.split():
            field, kind = pair.split("=", 1)
            assert kind == _kind(described["properties"][field], f"{name}{field[0].upper()}{field[1:]}"), (
                f"{name}.{field}"
            )


def _inline(schemas: dict[str, dict[str, object]], name: str) -> dict[str, dict[str, object]]:
    """A schema that stands within another, under a name of ours: that of the outer one, then the field's."""
    if name in schemas:
        return schemas[name]  # type: ignore[return-value]
    for end in range(len(name) - 1, 0, -1):
        if name[end].isupper():
            try:
                outer = _inline(schemas, name[:end])
            except LookupError:
                continue
            if found := outer["properties"].get(name[end].lower() + name[end + 1 :]):
                return found.get("items", found)  # type: ignore[attr-defined,no-any-return]
    raise LookupError(name)


def _kind(described: dict[str, object], own: str) -> str:
    if "$ref" in described:
        return str(described["$ref"])
    if described["type"] == "array":
        return "[" + _kind(described["items"], own)  # type: ignore[arg-type]
    if described["type"] == "object":
        return own if "properties" in described else "{" + _kind(described["additionalProperties"], own)  # type: ignore[arg-type]
    if "enum" in described:
        return "|".join(described["enum"]) + ("|" if len(described["enum"]) == 1 else "")  # type: ignore[arg-type]
    if described["type"] == "string":
        formats = {"int64": "long", "uint64": "long", "byte": "bytes"}
        return formats.get(str(described.get("format")), "text")
    return {"integer": "int", "boolean": "bool", "number": "float"}[str(described["type"])]
