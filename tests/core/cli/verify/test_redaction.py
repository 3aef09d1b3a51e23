"""No private value comes into a report, from any part of an answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.cli.verify.recording import Recorder
from kinetic_orchestration.cli.verify.redaction import GONE, Redactor, known_of
from kinetic_orchestration.cli.verify.report import document, page, write
from kinetic_orchestration.cli.verify.runner import FAILED, Report, Result
from kinetic_orchestration.platforms.google.rest import call_listeners

pytestmark = pytest.mark.fast

PROJECT, NUMBER, OTHER_PROJECT = "acme-research-7", "918273645501", "globex-shared-vpc"
BUCKET, ACCOUNT, PERSON = "acme-bucket-x", "robot@acme-research-7.iam.gserviceaccount.com", "alice.liddell@acme.example"
TOKEN, KEY, ADDRESS, SIX = "ya29.a0AfH6SMBxxxxxxxx", "AIzaSyD4xK9xxxxxxxxxxxx", "203.0.113.77", "2001:db8::beef"
PASSWORD, NODE, HOST = "hunter2-wonderland", "kinetic-0a1b2c3d-5e6f-1", "t1v-n-5f2e1d3c-w-0"
SECRETS = (
    PROJECT, NUMBER, OTHER_PROJECT, BUCKET, ACCOUNT, PERSON, "liddell", TOKEN, KEY, ADDRESS, SIX, "beef", PASSWORD,
    "wonderland", "5e6f", HOST, "5f2e1d3c", "globex", "acme",
)  # fmt: skip


def redactor() -> Redactor:
    return Redactor(known_of([("PROJECT", PROJECT), ("BUCKET", BUCKET), ("ACCOUNT", ACCOUNT)]))


def planted(secret: str) -> dict[str, Any]:
    """An answer with it in every place that an answer has."""
    text = f"The node of {secret} ({secret}) is not there: '{secret}', see {secret}."
    return {
        "name": f"projects/{secret}/locations/us-west4-a/nodes/{secret}",
        "id": secret, "description": text, "healthDescription": text, "acceleratorType": secret, "state": secret,
        "runtimeVersion": secret, "apiVersion": secret, "health": secret, "locationId": secret,
        "labels": {secret: secret, "kinetic-job": secret, "team": secret},
        "metadata": {secret: secret, "startup-script": text, "kinetic": json.dumps({"store": secret})},
        "networkConfig": {"network": f"projects/{secret}/global/networks/{secret}", "enableExternalIps": True},
        "networkEndpoints": [{"ipAddress": secret, "port": 8470, "accessConfig": {"externalIp": secret}}],
        "serviceAccount": {"email": secret, "scope": [secret]}, "tags": [secret], "unheardOf": {secret: [secret]},
        "error": {
            "code": 7, "message": text, "status": secret,
            "details": [
                {"@type": secret, "reason": secret, "domain": secret, "metadata": {"consumer": f"projects/{secret}", secret: secret}},
                {"links": [{"url": f"https://console.example/{secret}?project={secret}", "description": text}]},
            ],
        },
        "createTime": secret, "state_data": {"failedData": {"error": {"message": text}}}, "permissions": [secret],
    }  # fmt: skip


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_in_any_place_of_an_answer_comes_into_no_file(secret: str, tmp_path: Path) -> None:
    shown = redactor()
    recorder = Recorder(shown, "kinetic-0a1b2c3d-", clock=lambda: 0.0)
    for status in ("OK", "PERMISSION_DENIED"):
        recorder.record(
            call_listeners.Call(
                "tpu", "GetNode", {"name": f"projects/{secret}/x"}, status, planted(secret), (), 0.0, 0.1
            )
        )
        for service, path in (("secretmanager", f"v1/projects/{secret}/secrets/{secret}:addVersion"),
                              ("storage", f"upload/storage/v1/b/{secret}/o"), ("iam", f"v1/{secret}/{secret}")):  # fmt: skip
            body = {"query": {"filter": secret, secret: secret}, "body": planted(secret)}
            recorder.record(call_listeners.Call(service, f"POST {path}", body, "403", planted(secret), (), 0.0, 0.1))
    recorder.add("metadata attributes", {"attributes": {"ssh-keys": secret, secret: secret}})
    assert recorder.lost == 0
    why = shown.text(
        f"JobFailed: {secret} said: could not read gs://{secret}/{secret} as {secret}, see {secret}/{secret}"
    )
    result = Result("job", "", FAILED, (why,), 0.0, 0.0, 0.0, {"message": shown.text(f"no {secret} in {secret}")})
    report = Report(
        "2026-11-23T00:00:00Z", {}, {"budget": 5.0, "accelerator": "v5e-1", "spot": False, "zones": []}, "", False,
        results=[result], entries=recorder.entries, redactor=shown,
    )  # fmt: skip
    for path in write(report, tmp_path):
        assert secret.lower() not in path.read_text().lower()
    assert secret.lower() not in page(report).lower()  # by the list of what may be shown, before the last look
    assert secret.lower() not in json.dumps(document(report), ensure_ascii=False).lower()


def test_what_is_needed_to_understand_an_answer_stays() -> None:
    shown = redactor().plain(
        {
            "name": f"projects/{PROJECT}/locations/us-west4-a/nodes/{NODE}", "state": "READY", "health": 17,
            "acceleratorType": "v5litepod-16", "runtimeVersion": "v2-alpha-tpuv5-lite", "createTime": "2026-11-23T18:00:00Z",
            "labels": {"kinetic-job": "job-1"}, "networkConfig": {"enableExternalIps": False},
            "error": {
                "code": 8,
                "message": f"Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0 in region us-east5. Project {PROJECT}",
                "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "RATE_LIMIT_EXCEEDED"}],
            },
        }
    )  # fmt: skip
    assert shown == {
        "name": "projects/PROJECT/locations/us-west4-a/nodes/NAME-1", "state": "READY", "health": 17,
        "acceleratorType": "v5litepod-16", "runtimeVersion": "v2-alpha-tpuv5-lite", "createTime": "TIME",
        "labels": {"kinetic-job": "TEXT"}, "networkConfig": {"enableExternalIps": False},
        "error": {
            "code": 8,
            "message": "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0 in region us-east5. Project PROJECT",
            "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "RATE_LIMIT_EXCEEDED"}],
        },
    }  # fmt: skip


def test_the_same_name_is_the_same_placeholder() -> None:
    shown = redactor()
    first, second = shown.path("projects/p-1/locations/us-west4-a/nodes/a"), shown.path("projects/p-2/nodes/b")
    assert first == "projects/PROJECT-1/locations/us-west4-a/nodes/NAME-1"
    assert second == "projects/PROJECT-2/nodes/NAME-2"
    assert shown.path("projects/p-1/nodes/b") == "projects/PROJECT-1/nodes/NAME-2"


def test_of_a_message_only_the_words_that_this_package_knows_stay() -> None:
    assert redactor().text("The slice of Humpty was deleted by humpty.dumpty in us-west4-a") == (
        f"The slice of {GONE} was deleted by {GONE} in us-west4-a"
    )


def test_a_listing_tells_nothing_of_other_peoples_slices() -> None:
    recorder = Recorder(redactor(), "kinetic-0a1b2c3d-", clock=lambda: 0.0)
    nodes = [{"name": f"projects/p/locations/us-west4-a/nodes/{name}", "state": "READY"} for name in (NODE, "payroll")]
    recorder.record(call_listeners.Call("tpu", "ListNodes", {}, "OK", {"nodes": nodes}, (), 0.0, 0.1))
    assert len(recorder.entries[0].answer["nodes"]) == 1


def test_a_record_that_breaks_does_not_break_the_call() -> None:
    recorder = Recorder(redactor(), "kinetic-", clock=lambda: 0.0)
    recorder.record(call_listeners.Call("tpu", "GetNode", {}, "OK", None, (), 0.0, 0.1))  # type: ignore[arg-type]
    assert recorder.lost == 1
