"""The create call as data. Its print is held in golden/; that it is what the client library takes is proved on it."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.errors import Unsupported, UsageError
from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.values import Intent, Limits, Plan, Retry, Staged
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.google import vms
from kinetic_orchestration.platforms.google.tpu import request as tpu_request
from kinetic_orchestration.platforms.shared import ownership
from kinetic_orchestration.protocol.names import slice_of
from kinetic_orchestration.protocol.wire.task import Environment

pytestmark = pytest.mark.fast

GOLDEN = Path(__file__).parent / "golden"
STAGED = Staged(None, "", "", (), (), (), (), None, "", agent="a" * 64)
SPEC = "5" * 64
HOUR = 3600.0


def plan_of(name: str, **fields: Any) -> Plan:
    slice_ = accelerators.parse(name)
    plan = Plan(
        name="train",
        slice=slice_,
        backend="tpu-vm",
        store="gs://bucket/kinetic",
        deployment="Production EU",
        limits=Limits(provision=6 * HOUR, run=24 * HOUR),
        retry=Retry(),
        emulated=False,
        project="ours",
        zones=accelerators.zones(slice_),
        zone_patience=900.0,
    )
    return replace(plan, **fields)


def intent_of(plan: Plan, attempt: int = 1, **placement: Any) -> Intent:
    placed = {
        "backend": "tpu-vm",
        "project": plan.project,
        "zone": plan.zones[0],
        "name": slice_of(plan.store, plan.deployment, "job-0123456789ab", attempt),
        "hosts": plan.hosts,
        "slices": plan.slices,
        "wait": 0.0,
        "since": 0.0,
    }
    return Intent(attempt, "b007" * 4, {**placed, **placement}, 1_800_000_000.0, 1_799_900_000.0)


def render(plan: Plan, intent: Intent | None = None) -> dict[str, Any]:
    return tpu_request.render_queued_resource(
        Submission(plan, STAGED, "job-0123456789ab", SPEC, intent or intent_of(plan), {})
    )


def node(request: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = request["queuedResource"]["tpu"]["nodeSpec"][0]["node"]
    return found


EVERYTHING = {
    "reservation": "",
    "network": "shared",
    "subnetwork": "projects/host/regions/us-east5/subnetworks/tpus",
    "external_ips": False,
    "service_account": "trainer@ours.iam.gserviceaccount.com",
    "tags": ["tpu", "no-ingress"],
    "secure_boot": True,
    "owner": "Ada@Example.com",
    "pipeline": "retrain",
    "step": "Ranker/Fit",
    "run": "2026-11-21T00:00",
}

CASES = {
    "v2": plan_of("v2-4"),
    "v2-hosts": plan_of("v2-16", zones=("us-central1-b",)),
    "v3": plan_of("v3-4"),
    "v3-hosts": plan_of("v3-16", zones=("europe-west4-a",)),
    "v4": plan_of("v4-4"),
    "v4-hosts": plan_of("v4-16"),
    "v5e": plan_of("v5e-8"),
    "v5e-hosts": plan_of("v5e-16"),
    "v5p": plan_of("v5p-4"),
    "v5p-hosts": plan_of("v5p-8"),
    "v6e": plan_of("v6e-8"),
    "v6e-hosts": plan_of("v6e-256"),
    "spot": plan_of("v6e-8", spot=True),
    "reservation": plan_of("v5p-8", cloud={"reservation": "quarter"}),
    "multislice": plan_of("v6e-16", slices=2),
    "everything": plan_of("v6e-8", zones=("us-east5-a",), cloud=EVERYTHING, labels={"Team": "Rank & Reco", "9": "x"}),
    "image": plan_of("v5e-4", image="us-docker.pkg.dev/ours/images/train:7"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_create_call_is_as_it_was(name: str) -> None:
    """To change it on purpose, run with UPDATE_GOLDEN=1 and read the difference."""
    request = render(CASES[name])
    node(request)["metadata"]["startup-script"] = ""
    text = tpu_request.describe_request(request) + "\n"
    path = GOLDEN / f"request-{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_the_client_library_takes_it_and_loses_nothing(name: str) -> None:
    from google.cloud import tpu_v2
    from google.protobuf import json_format

    request = render(CASES[name])
    message = tpu_v2.CreateQueuedResourceRequest.pb(tpu_v2.CreateQueuedResourceRequest())
    json_format.ParseDict(request, message)
    assert json_format.MessageToDict(message) == request | {
        "queuedResource": _without_nothing(request["queuedResource"])
    }


def _without_nothing(value: Any) -> Any:
    """The proto3 JSON form: default values are left out, except for an empty message."""
    if isinstance(value, dict):
        return {key: _without_nothing(entry) for key, entry in value.items() if entry is not False}
    return [_without_nothing(entry) for entry in value] if isinstance(value, list) else value


def test_the_same_spec_and_intent_give_the_same_request_in_every_process() -> None:
    plan = CASES["everything"]
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert render(again) == render(plan)


def test_the_request_id_belongs_to_the_intent_so_that_a_repeated_create_is_one() -> None:
    plan = CASES["v5e"]
    first, other = intent_of(plan), intent_of(plan)._replace(boot="another")
    assert vms.request_id(first) == vms.request_id(intent_of(plan))
    assert vms.request_id(first) != vms.request_id(other)


def test_names_are_what_the_api_takes_and_differ_between_stores_deployments_jobs_and_attempts() -> None:
    names = {
        slice_of("gs://a", "prod", "job-0123456789ab", 1),
        slice_of("gs://b", "prod", "job-0123456789ab", 1),
        slice_of("gs://a", "Prod", "job-0123456789ab", 1),
        slice_of("gs://a", "prod", "job-ba9876543210", 1),
        slice_of("gs://a", "prod", "job-0123456789ab", 1_000_000),
    }
    assert len(names) == 5
    for name in names:
        assert name.replace("-", "").isalnum() and name == name.lower() and name[0] == "k" and len(name) <= 61
    assert slice_of("gs://a/", "prod", "job-0123456789ab", 1) in names


def test_hosts_are_told_digests_and_where_to_look_and_nothing_secret() -> None:
    plan = replace(CASES["multislice"], env={"PLAIN": "value"}, secrets=("TOKEN",))
    told = json.loads(node(render(plan))["metadata"]["kinetic"])
    assert told == {
        "wire": 1,
        "store": "gs://bucket/kinetic/Production EU",
        "job": "job-0123456789ab",
        "attempt": 1,
        "hosts": 8,
        "slices": 2,
        "hosts_per_slice": 4,
        "spec": SPEC,
        "agent": "a" * 64,
        "boot": "b007" * 4,
        "deadline": 1_800_000_000.0,
        "resource": f"projects/ours/locations/us-central1-b/queuedResources/{intent_of(plan).placement['name']}",
        "image": "",
        "python": "",
        "emulated": False,
    }


@pytest.mark.parametrize(
    ("argv", "environment", "told"),
    [
        ((), Environment("1" * 64, python="3.12", packages=0), "3.12"),
        ((), Environment("1" * 64, python="3.12", packages=7), None),
        (("python", "main.py"), Environment("1" * 64, python="3.12", packages=7), ""),
    ],
)
def test_hosts_are_told_in_which_python_a_program_may_start_before_anything_else(
    argv: tuple[str, ...], environment: Environment, told: str | None
) -> None:
    plan = replace(CASES["v5e"], argv=argv)
    staged = replace(STAGED, environment=environment)
    request = tpu_request.render_queued_resource(
        Submission(plan, staged, "job-0123456789ab", SPEC, intent_of(plan), {})
    )
    assert json.loads(node(request)["metadata"]["kinetic"])["python"] == told


def test_labels_tell_whose_it_is_and_cannot_be_overridden() -> None:
    plan = replace(CASES["v5e"], labels={"kinetic-job": "another", "Kinetic-Expires": "0", "team": "Rank"})
    labels = node(render(plan))["labels"]
    assert labels["team"] == "rank"
    owned = ownership.owned(labels)
    assert owned == ("production-eu", "job-0123456789ab", 1, 1_800_000_000.0, SPEC[:20], ownership.NO_RACE)


def test_labels_are_at_most_64_of_63_letters() -> None:
    plan = replace(CASES["v5e"], labels={f"Ä{index}ö-{'x' * 80}": "Ü" * 80 + "v" * 80 for index in range(99)})
    labels = node(render(plan))["labels"]
    assert len(labels) <= 64
    assert all(len(key) <= 63 and len(value) <= 63 and key[0].isascii() for key, value in labels.items())


@pytest.mark.parametrize(
    "labels", [{}, {"team": "x"}, {"kinetic-job": "job-x"}, {"kinetic-job": "j", "kinetic-attempt": "x"}]
)
def test_what_does_not_say_whose_it_is_is_not_ours(labels: dict[str, str]) -> None:
    assert ownership.owned(labels) is None


def test_a_request_waits_in_a_zone_no_longer_than_that_zone_is_worth_while_there_are_others() -> None:
    plan = plan_of("v6e-8")
    assert vms.valid_for(plan, intent_of(plan)) == 900.0
    others_dropped = intent_of(plan, dropped=list(plan.zones[1:]))
    assert vms.valid_for(plan, others_dropped) == 6 * HOUR
    assert vms.valid_for(replace(plan, cloud={"reservation": "r"}), intent_of(plan)) == 6 * HOUR


def test_a_request_waits_no_longer_than_the_job_may_still_wait_for_hardware() -> None:
    plan = replace(plan_of("v4-4"), limits=Limits(provision=2 * HOUR))
    intent = intent_of(plan)
    assert vms.valid_for(plan, intent) == 2 * HOUR
    late = intent_of(plan, since=intent.created - HOUR, wait=60.0)
    assert vms.valid_for(plan, late) == HOUR - 60.0
    too_late = intent_of(plan, since=intent.created - 3 * HOUR)
    assert vms.valid_for(plan, too_late) == vms.SHORTEST_WAIT
    assert "queueingPolicy" not in render(replace(plan, limits=Limits()))["queuedResource"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("tpu7x-8", "stops at v6e. TPU7x comes as VMs with backend='compute', and in more sizes with backend='gke'"),
        ("l4", "no TPU"),
        ("cpu", "no TPU"),
    ],
)
def test_what_the_api_cannot_make_is_refused_with_what_to_use(name: str, told: str) -> None:
    with pytest.raises(Unsupported, match=told):
        tpu_request.check(plan_of(name, zones=("z-a",)))


def test_a_slice_beyond_the_largest_of_its_generation_is_refused() -> None:
    beyond = next(one for one in accelerators.catalogue() if one.generation == "v4" and one.api == "gke")
    with pytest.raises(Unsupported, match="num_slices"):
        tpu_request.check(plan_of(beyond.name, zones=("us-central2-b",)))


@pytest.mark.parametrize(
    "given",
    [
        "quarter", "projects/ours/reservations/quarter", "projects/ours/zones/us-east5-a/reservations/quarter",
        "projects/ours/locations/us-east5-a/reservations/quarter",
    ],
)  # fmt: skip
def test_a_reservation_is_sent_in_the_form_of_the_api_however_it_was_given(given: str) -> None:
    plan = plan_of("v5p-8", zones=("us-east5-a",), cloud={"reservation": given})
    sent = render(plan)["queuedResource"]["reservationName"]
    assert sent == "projects/ours/locations/us-east5-a/reservations/quarter"


def test_spot_and_a_reservation_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        tpu_request.check(plan_of("v6e-8", spot=True, cloud={"reservation": "quarter"}))


def test_the_startup_script_is_small_and_good_for_any_shell(tmp_path: Path) -> None:
    script = vms.startup_script()
    assert len(script.encode()) < vms.METADATA_LIMIT / 2
    path = tmp_path / "script ä"
    path.write_text(script, encoding="utf-8")
    subprocess.run(["/bin/sh", "-n", str(path)], check=True)


def test_the_startup_script_runs_the_program_that_it_carries_and_again_at_the_next_boot(tmp_path: Path) -> None:
    """The program gives up immediately with a message if the metadata are empty; if no disk can be written, too."""
    root, full = tmp_path / "root ä", tmp_path / "full"
    full.mkdir()
    (full / "var").touch()
    path = tmp_path / "script"
    path.write_text(vms.startup_script(), "utf-8")
    with ThreadingHTTPServer(("127.0.0.1", 0), _KnowsNothing) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        environ = {"PATH": os.environ["PATH"], "GCE_METADATA_HOST": f"127.0.0.1:{server.server_port}"}
        for place in (root, root, full):
            done = subprocess.run(
                ["/bin/sh", str(path)], env={**environ, "KINETIC_ROOT": str(place)}, capture_output=True, text=True,
                timeout=30, check=False,
            )  # fmt: skip
            assert "told nothing by its metadata" in done.stdout, done
            assert done.returncode == 1
        server.shutdown()
    source = Path(tpu_request.__file__).parents[3] / "host" / "machine" / "bootstrap.py"
    for program in (root / "var/lib/kinetic/boot.py", full / "dev/shm/kinetic/boot.py"):
        assert program.read_text(encoding="utf-8") == source.read_text(encoding="utf-8")


class _KnowsNothing(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send_error(404)


def test_the_dry_run_shows_the_first_attempts_call_without_the_program() -> None:
    plan = plan_of("v6e-8")
    shown = tpu_request.dry_run(plan, intent_of(plan).placement)
    assert "waiting in its queue for up to 15m" in shown
    assert 'acceleratorType: "v6e-8"' in shown
    assert "bytes, sha256" in shown
    assert "def main" not in shown
