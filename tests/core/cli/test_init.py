"""`kinor init` and `kinor deinit` over the wire, in a project of the emulated cloud that is as Google has new ones."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from kinetic_orchestration.cli import main
from kinetic_orchestration.platforms.google import credentials
from kinetic_orchestration.platforms.google.setup import requests, session
from kinetic_orchestration.protocol.system import copies
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.api_rules import compute_refusals, journal, refusals
from kinetic_orchestration.testing.api_rules.policies import Policy
from kinetic_orchestration.testing.api_rules.refusals import Refusal
from kinetic_orchestration.testing.model.lifecycle import Timing
from kinetic_orchestration.testing.model.state.projects import AT_FIRST
from tests.support.exchanges.recorder import Recorder
from tests.support.terminals import read_out
from tests.support.waits import wait_until

PROJECT, REGION, BUCKET = "bare-project", "us-west4", "bare-project-kinetic"
MACHINES = f"kinetic-vm@{PROJECT}.iam.gserviceaccount.com"
ADA = "user:ada@example.com"
READS = (":testIamPermissions", ":getIamPolicy")  # which are POST, and change nothing
WITH_NETWORK, WITHOUT = 30, 17  # requests of a first run
STANDARD = ("--project", PROJECT, "--region", REGION)


class Wire:
    """Requests that an emulated cloud has answered, by its journal."""

    def __init__(self, recorder: Recorder) -> None:
        self._folder = recorder.folder
        self._read: dict[str, int] = {}
        self.new()

    def new(self) -> list[str]:
        """Return those since the last time: method and path."""
        found = []
        for name in sorted(os.listdir(self._folder)):
            data = (self._folder / name).read_bytes()
            for exchange, end in journal.entries(data[self._read.get(name, 0) :]):
                found.append(f"{exchange.method} {urlsplit(exchange.target).path}")
                last = end
            self._read[name] = self._read.get(name, 0) + (last if found else 0)
            last = 0
        return found


def writes(requests: list[str]) -> list[str]:
    return [one for one in requests if not one.startswith("GET ") and not one.endswith(READS)]


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorder: Recorder, home: Path) -> Iterator[Emulator]:
    del recorder, home  # which forgets the variables of this machine
    monkeypatch.setattr(session, "FIRST_PAUSE", 0.02)
    with Emulator(tmp_path / "cloud", hosts=False, zones=["us-west4-a"], projects=[PROJECT]) as running:
        running.projects.add(PROJECT)
        for name, value in running.addresses().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("KINETIC_PROFILE_FILE", str(tmp_path / "profiles.toml"))
        yield running


@pytest.fixture
def kinor(capsys: pytest.CaptureFixture[str], home: Path) -> Callable[..., tuple[int, str, str]]:
    del home

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(words))
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


Kinor = Callable[..., tuple[int, str, str]]


def picture(cloud: Emulator) -> dict[str, Any]:
    """All of a project that a set-up is made of, as it is now."""
    project = cloud.projects.named(PROJECT)
    accounts = cloud.neighbours.accounts
    return {
        "policy": sorted(json.dumps(one, sort_keys=True) for one in project.policy.to_json().get("bindings", ())),
        "roles": {name: (role.get("deleted", False), role["includedPermissions"]) for name, role in project.roles.items()},
        "parts": sorted(cloud.compute.parts),
        "account": accounts.policy(MACHINES) if accounts.is_known(MACHINES) else None,
        "bucket": cloud.storage._policies[BUCKET].to_json() if BUCKET in cloud.storage._policies else None,
        "services": sorted(project.services or ()),
    }  # fmt: skip


def whole(kinor: Kinor, *more: str) -> dict[str, Any]:
    code, out, _ = kinor("init", *STANDARD, *more, "--check", "--json")
    found: dict[str, Any] = json.loads(out)
    assert found["whole"] is (code == 0)
    return found


def test_a_bare_project_takes_few_requests_and_a_second_run_only_reads(
    cloud: Emulator, kinor: Kinor, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "FIRST_PAUSE", 0.5)
    wire = Wire(recorder)
    code, out, err = kinor("init", *STANDARD, "--yes")
    first = wire.new()
    assert code == 0, err
    code, again, _ = kinor("init", *STANDARD)  # asks nothing, as nothing is missing
    second = wire.new()
    print(
        f"first run, network there: {len(first)} requests; second run: {len(second)}, {len(writes(second))} of them write"
    )
    assert code == 0 and "ready, as it was" in again
    assert len(first) <= WITHOUT, "\n".join(first)
    assert writes(second) == []
    assert "Google's conditions do not see the names of TPU VMs" in out and "accelerator='v5e-1'" in out
    assert tomllib.loads((tmp_path / "profiles.toml").read_text())["default"]["store"] == f"gs://{BUCKET}/kinetic"
    told = picture(cloud)
    conditions = [json.loads(one).get("condition", {}).get("expression") for one in told["policy"]]
    assert f'resource.name.startsWith("projects/{cloud.projects.named(PROJECT).number}/secrets/kinetic-")' in conditions
    assert "objectListPrefix" in json.dumps(told["bucket"])
    _, about = cloud.storage._ask_server("GET", f"/storage/v1/b/{BUCKET}")
    made = json.loads(cloud.storage._as_made(BUCKET, about))
    assert made["softDeletePolicy"] == {"retentionDurationSeconds": "0"}
    assert made["iamConfiguration"]["publicAccessPrevention"] == "enforced"


def test_a_network_is_made_where_there_is_none_and_a_submitter_gets_rights(
    cloud: Emulator, kinor: Kinor, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "FIRST_PAUSE", 0.5)
    cloud.compute.remove_default_network(PROJECT)
    wire = Wire(recorder)
    code, _, err = kinor("init", *STANDARD, "--yes", "--submitter", ADA)
    first = wire.new()
    assert code == 0, err
    assert whole(kinor, "--submitter", ADA)["missing"] == []
    second = wire.new()
    print(f"first run, with a network and a submitter: {len(first)} requests; second: {len(second)}")
    assert len(first) <= WITH_NETWORK, "\n".join(first)
    assert writes(second) == []
    assert [path.partition("/")[2].partition("/")[2] for path in sorted(cloud.compute.parts)] == [
        "global/firewalls/kinetic-internal", "global/networks/kinetic", "regions/us-west4/routers/kinetic",
        "regions/us-west4/subnetworks/kinetic",
    ]  # fmt: skip
    [router] = [part for path, part in cloud.compute.parts.items() if "/routers/" in path]
    assert router.body["nats"][0]["sourceSubnetworkIpRangesToNat"] == "ALL_SUBNETWORKS_ALL_IP_RANGES"
    account = json.dumps(cloud.neighbours.accounts.policy(MACHINES))
    assert ADA in account and "roles/iam.serviceAccountUser" in account


def test_all_that_passes_by_itself_is_waited_for(cloud: Emulator, kinor: Kinor) -> None:
    cloud.timing = Timing(enable=0.1, spread=0.3)
    cloud.compute.remove_default_network(PROJECT)
    cloud.fail("BatchEnableServices", refusal=refusals.activating())
    cloud.fail("SetIamPolicy", refusal=refusals.concurrent_policy_changes(), times=2)
    cloud.fail("SetIamPolicy", refusal=refusals.no_account(MACHINES))
    cloud.fail("subnetworks.insert", refusal=compute_refusals.not_ready("projects/p/global/networks/kinetic"))
    busy = compute_refusals.ComputeRefusal(403, "rateLimitExceeded", "Quota exceeded: queries per minute")
    cloud.fail("firewalls.insert", refusal=busy)
    cloud.lose_answer("CreateServiceAccount")
    cloud.lose_answer("networks.insert")
    cloud.storage.fail("insert *", 503)
    code, _, err = kinor("init", *STANDARD, "--yes")
    assert code == 0, err
    for told in (
        "another activation of APIs is under way", "an API that was enabled is not usable everywhere yet",
        "somebody else is changing the same policy", "the account is not known everywhere yet",
        "the network is not ready yet", "the rate of calls is limited",
    ):  # fmt: skip
        assert told in err, told
    assert whole(kinor)["whole"]


@pytest.mark.parametrize(
    "number", [4, 9, 15, *(pytest.param(number, marks=pytest.mark.slow) for number in (2, 6, 12, 18))]
)
def test_a_run_that_is_killed_at_any_request_is_mended_by_the_next(
    cloud: Emulator, kinor: Kinor, number: int, home: Path
) -> None:
    cloud.compute.remove_default_network(PROJECT)
    seen: list[str] = []
    process: list[subprocess.Popen[bytes]] = []

    def answered(found: Any) -> Any:
        seen.append("")
        if len(seen) == number:
            process[0].kill()
            process[0].wait()
        return found

    cloud.deviate("*", answer=answered)
    command = [sys.executable, "-m", "kinetic_orchestration.cli", "init", *STANDARD, "--yes", "--submitter", ADA]
    environ = {**copies.environ(), "KINETIC_HOME": str(home)}
    process.append(subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    assert process[0].wait(60) == -signal.SIGKILL
    cloud.clear_faults()
    before = picture(cloud)
    code, _, err = kinor("init", *STANDARD, "--yes", "--submitter", ADA)
    assert code == 0, err
    assert whole(kinor, "--submitter", ADA)["whole"]
    after = picture(cloud)
    assert after != before and len(after["policy"]) == len(set(after["policy"])) == 6
    code, out, _ = kinor("deinit", "--project", PROJECT, "--yes", "--json")
    assert code == 0 and json.loads(out)["stays"] == {}
    left = picture(cloud)
    assert left["parts"] == [] and left["account"] is None and all(deleted for deleted, _ in left["roles"].values())
    assert [json.loads(one)["role"] for one in left["policy"]] == ["roles/tpu.serviceAgent"]


def test_a_run_that_is_killed_before_the_manifest_is_mended(cloud: Emulator, kinor: Kinor, home: Path) -> None:
    cloud.storage.delay(f"insert {BUCKET}/*", 60.0)
    command = [sys.executable, "-m", "kinetic_orchestration.cli", "init", *STANDARD, "--yes"]
    environ = {**copies.environ(), "KINETIC_HOME": str(home)}
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: BUCKET in cloud.storage._asked)
    finally:
        process.kill()
        process.wait()
    cloud.storage.heal()
    assert kinor("init", *STANDARD, "--yes")[0] == 0
    assert whole(kinor)["whole"]
    assert json.loads(kinor("deinit", "--project", PROJECT, "--yes", "--json")[1])["stays"] == {}


def test_what_was_there_before_is_used_and_stays_and_init_after_deinit_has_roles_back(
    cloud: Emulator, kinor: Kinor, tmp_path: Path
) -> None:
    cloud.storage.make_bucket(BUCKET, PROJECT, REGION)
    cloud.storage._asked[BUCKET] = {"iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}}}
    others = Policy().with_grant("roles/viewer", ("user:eve@example.com",))
    condition = {"title": "night", "description": "", "expression": 'request.time < timestamp("2030-01-01T00:00:00Z")'}
    theirs = {"role": "roles/editor", "members": ["user:eve@example.com"], "condition": condition}
    project = cloud.projects.named(PROJECT)
    project.policy = Policy.of_json({"bindings": [*others.to_json()["bindings"], theirs]})
    before = project.policy.to_json()["bindings"]
    for _ in range(2):
        code, out, err = kinor("init", *STANDARD, "--yes")
        assert code == 0, err
        assert "can be made public" in out
        code, out, err = kinor("deinit", "--project", PROJECT, "--yes")
        assert code == 0 and "it was there before kinor init" in out, err
        assert f"bucket {BUCKET}" in out
        left = [one for one in project.policy.to_json()["bindings"] if one["role"] != "roles/tpu.serviceAgent"]
        assert left == before
    role = project.roles[f"projects/{PROJECT}/roles/kineticSlice"]
    assert role["deleted"] and BUCKET in cloud.storage._buckets
    assert (tmp_path / "profiles.toml").exists()


def test_a_bucket_with_objects_is_never_deleted_and_a_profile_never_changed(
    cloud: Emulator, kinor: Kinor, tmp_path: Path
) -> None:
    (tmp_path / "profiles.toml").write_text('# mine\n[default]\nstore = "/data"\n')
    code, out, _ = kinor("init", *STANDARD, "--yes")
    assert code == 0 and "has other settings, and stays" in out
    code, out, _ = kinor("init", *STANDARD, "--yes", "--profile", "cloud")
    assert code == 0 and "KINETIC_PROFILE=cloud python -c" in out
    text = (tmp_path / "profiles.toml").read_text()
    assert (
        text.startswith('# mine\n[default]\nstore = "/data"\n') and tomllib.loads(text)["cloud"]["project"] == PROJECT
    )
    put(cloud, "kinetic/prod/outputs/model")
    code, out, _ = kinor("deinit", "--project", PROJECT, "--yes")
    assert code == 0 and "it is not empty (kinetic/prod/outputs/model is in it)" in out
    assert BUCKET in cloud.storage._buckets and picture(cloud)["account"] is None
    assert kinor("init", *STANDARD, "--yes", "--profile", "cloud")[0] == 0  # the bucket is taken once more


def test_nothing_is_taken_back_while_machines_run_and_what_is_in_use_stays(
    cloud: Emulator, kinor: Kinor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kinor("init", *STANDARD, "--yes", "--own-network", "--network", "kinetic")[0] == 0
    node = {
        "acceleratorType": "v5litepod-8", "runtimeVersion": "v2-alpha-tpuv5-lite", "serviceAccount": {"email": MACHINES}
    }  # fmt: skip
    parent = f"projects/{PROJECT}/locations/us-west4-a"
    cloud.call("CreateNode", {"parent": parent, "nodeId": "a-stranger", "node": {**node, "serviceAccount": {}}})
    cloud.call("CreateNode", {"parent": parent, "nodeId": "kinetic-a", "node": node})
    monkeypatch.setattr(requests, "PAGE", 1)  # it is on the second one
    before = picture(cloud)
    code, _, err = kinor("deinit", "--project", PROJECT, "--yes")
    assert code == 5 and "1 machines of jobs still run" in err and "kinetic-a" in err
    assert picture(cloud) == before
    cloud.sweep()
    path = f"projects/{PROJECT}/global/networks/kinetic"
    cloud.fail("networks.delete", refusal=compute_refusals.in_use(path, "projects/p/global/addresses/theirs"))
    code, out, err = kinor("deinit", "--project", PROJECT, "--yes", "--json")
    assert code == 5 and out, err
    assert "is already being used by" in json.loads(out)["stays"]["network kinetic"]
    assert "has the manifest" in json.loads(out)["stays"][f"bucket {BUCKET}"] and BUCKET in cloud.storage._buckets
    assert kinor("deinit", "--project", PROJECT, "--yes", "--json")[0] == 0
    assert picture(cloud)["parts"] == []


def test_routers_and_subnetworks_of_each_region_are_taken_back(cloud: Emulator, kinor: Kinor) -> None:
    own = ("--yes", "--own-network", "--network", "kinetic")
    assert kinor("init", *STANDARD, *own)[0] == 0
    second = kinor("init", *STANDARD[:2], "--region", "us-central1", *own, "--range", "10.129.0.0/20", "--profile", "b")
    assert second[0] == 0, second[2]
    assert sum("/routers/" in path for path in cloud.compute.parts) == 2
    code, _, err = kinor("deinit", "--project", PROJECT, "--yes")
    assert (code, picture(cloud)["parts"]) == (0, []), err


def put(cloud: Emulator, name: str) -> None:
    target = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={name}"
    assert cloud.storage._ask_server("POST", target, b"x")[0] == 200


def no_billing(cloud: Emulator) -> None:
    cloud.projects.named(PROJECT).billing = "none"


def no_rights(cloud: Emulator) -> None:
    cloud.projects.add(PROJECT, enabled=(*AT_FIRST, "cloudresourcemanager.googleapis.com"))
    for permission in ("serviceusage.services.enable", "iam.roles.create"):
        cloud.deny("client", permission)


def foreign_bucket(cloud: Emulator) -> None:
    cloud.storage.add_foreign_bucket(BUCKET)


def other_region(cloud: Emulator) -> None:
    cloud.storage.refuse("bucket *", "org-policy")


def no_accounts(cloud: Emulator) -> None:
    text = "Service account creation is not allowed on this project. constraints/iam.disableServiceAccountCreation"
    cloud.fail("CreateServiceAccount", refusal=Refusal(9, text), times=None)


def no_strangers(cloud: Emulator) -> None:
    cloud.fail("SetIamPolicy", refusal=refusals.members_domain(), times=None)


def restricted_service(cloud: Emulator) -> None:
    refusal = refusals.organization_policy("constraints/gcp.restrictServiceUsage", PROJECT)
    cloud.fail("BatchEnableServices", refusal=refusal, times=None)


def of_gcloud(cloud: Emulator) -> None:
    refusal = refusals.api_disabled("cloudresourcemanager.googleapis.com", session.GCLOUD)
    cloud.fail("BatchGetServices", refusal=refusal, times=None)


BAD: tuple[tuple[Callable[[Emulator], None], tuple[str, ...], str], ...] = (
    (no_billing, (), f"billing/linkedaccount?project={PROJECT}"),
    (no_rights, (), "roles/serviceusage.serviceUsageAdmin"),
    (foreign_bucket, (), "--bucket kinetic-"),
    (other_region, (), "constraints/gcp.resourceLocations stops this: name a region"),
    (no_accounts, (), "--service-account"),
    (no_strangers, ("--submitter", ADA), "iam.allowedPolicyMemberDomains stops this: name users and groups"),
    (restricted_service, (), "gcp.restrictServiceUsage stops this: have the API added"),
    (of_gcloud, (), f"set-quota-project {PROJECT}"),
)


@pytest.mark.parametrize(("breaks", "more", "says"), BAD)
def test_what_stops_a_set_up_is_named_with_the_way_round_and_a_later_run_goes_on(
    cloud: Emulator, kinor: Kinor, breaks: Callable[[Emulator], None], more: tuple[str, ...], says: str
) -> None:
    breaks(cloud)
    code, _, err = kinor("init", *STANDARD, "--yes", *more)
    assert code == 5 and says in err, err
    cloud.clear_faults()
    cloud.storage.heal()
    cloud.projects.named(PROJECT).billing = "open"
    cloud.storage._owners.pop(BUCKET, None) if breaks is foreign_bucket else None
    code, _, err = kinor("init", *STANDARD, "--yes", *more)
    assert code == 0, err
    assert whole(kinor, *more)["whole"]


def test_without_rights_or_with_a_name_that_is_taken_nothing_is_made(
    cloud: Emulator, kinor: Kinor, recorder: Recorder
) -> None:
    wire = Wire(recorder)
    for breaks in (no_rights, foreign_bucket):
        breaks(cloud)
        assert kinor("init", *STANDARD, "--yes")[0] == 5
        cloud.clear_faults()
    assert writes(wire.new()) == []


def test_a_project_a_network_and_an_account_that_are_not_there_are_named(cloud: Emulator, kinor: Kinor) -> None:
    code, _, err = kinor("init", "--project", "no-such-project", "--region", REGION, "--yes")
    assert code == 5 and "There is no project no-such-project" in err and "roles/storage.admin" in err
    assert kinor("init", *STANDARD, "--yes")[0] == 0
    code, _, err = kinor("init", *STANDARD, "--yes", "--network", "nowhere")
    assert code == 5 and "no network nowhere" in err and "--own-network" in err
    account = f"nobody@{PROJECT}.iam.gserviceaccount.com"
    code, _, err = kinor("init", *STANDARD, "--yes", "--service-account", account, "--submitter", ADA)
    assert code == 5 and f"no service account {account}" in err
    code, _, err = kinor("init", "--project", PROJECT, "--region", "us-west4-a", "--yes")
    assert code == 2 and "such as 'us-west4'" in err


def test_a_bucket_that_keeps_what_is_deleted_cannot_be_a_store(cloud: Emulator, kinor: Kinor) -> None:
    cloud.storage.make_bucket(BUCKET, PROJECT, REGION)
    cloud.storage._asked[BUCKET] = {"retentionPolicy": {"retentionPeriod": "86400"}}
    code, _, err = kinor("init", *STANDARD, "--yes")
    assert code == 5 and "--clear-retention-period" in err and "--uniform-bucket-level-access" in err


def test_a_manifest_that_somebody_has_changed_takes_nothing_with_it(cloud: Emulator, kinor: Kinor) -> None:
    assert kinor("init", *STANDARD, "--yes")[0] == 0
    before = picture(cloud)
    for text in (b"{}", b'{"version": 9}', b'{"version": 1, "wishes": [{"project": "other"}], "found": []}'):
        target = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name=kinetic-setup.json"
        assert cloud.storage._ask_server("POST", target, text)[0] == 200
        code, _, err = kinor("deinit", "--project", PROJECT, "--yes")
        assert code == 5 and "kinetic-setup.json" in err, err
    assert picture(cloud) == before


def test_it_asks_on_a_terminal_and_makes_nothing_unless_told(cloud: Emulator, home: Path, tmp_path: Path) -> None:
    environ = {**copies.environ(), "KINETIC_HOME": str(home), "COLUMNS": "160", "GOOGLE_CLOUD_PROJECT": ""}
    cloud.compute.remove_default_network(PROJECT)
    for agreed, made in (("n", False), ("y\nn", False), ("y", True)):
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "kinetic_orchestration.cli", "init"],
            env=environ, stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path,
        )  # fmt: skip
        os.close(theirs)
        os.write(ours, f"{PROJECT}\n{REGION}\n{agreed}\n".encode())
        said = read_out(ours).decode()
        assert process.wait(60) == 0, said
        assert "Project (" in said and "Region of the TPUs" in said and "Make this? [y/N]" in said
        assert ("nothing was made" in said) is (agreed == "n")
        assert ("Make it, too? [y/N]" in said) is (agreed == "y\nn")  # later, the APIs tell before
        assert ("nothing else was made" in said) is (agreed == "y\nn")
        assert (BUCKET in cloud.storage._buckets) is made


def test_calls_are_counted_against_the_project_that_is_set_up(cloud: Emulator, kinor: Kinor) -> None:
    from google.oauth2.credentials import Credentials

    person: Any = Credentials
    with credentials.handed_in(person("a token of a person")):
        assert kinor("init", *STANDARD, "--yes")[0] == 0
    assert {call.billed for call in cloud.storage.calls} == {PROJECT}


def test_a_script_without_answers_is_told_what_to_say(
    cloud: Emulator, kinor: Kinor, monkeypatch: pytest.MonkeyPatch
) -> None:
    del cloud
    monkeypatch.setattr(sys, "stdin", None)
    code, _, err = kinor("init")
    assert code == 2 and "--project PROJECT" in err
    code, _, err = kinor("init", "--project", PROJECT)
    assert code == 2 and "--region REGION" in err
    code, _, err = kinor("init", *STANDARD)
    assert code == 2 and "add --yes" in err
