"""Google's standard query parameters, which every face of the emulated cloud takes, and the masks and filters in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from google.cloud.tpu_v2.types import cloud_tpu

from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.api_rules import field_masks, filters
from kinetic_orchestration.testing.api_rules.refusals import Refusal
from kinetic_orchestration.testing.api_servers.billing_skus import SERVICE
from kinetic_orchestration.testing.api_servers.server import token
from tests.support.exchanges.recorder import Recorder

ZONE = "us-east5-a"
PLACE = f"/v2/projects/p/locations/{ZONE}"
NODES = cloud_tpu.ListNodesResponse.pb().DESCRIPTOR


@pytest.fixture(scope="module")
def cloud() -> Iterator[Emulator]:
    with Emulator(zones=[ZONE], hosts=False, provision_seconds=0.0) as cloud:
        cloud.storage.make_bucket("bucket")
        cloud.add_secret("s", "value", project="p")
        yield cloud


FACES = {
    "tpu": f"{PLACE}/runtimeVersions?pageSize=1",
    "secrets": "/v1/projects/p/secrets",
    "service": "/v1/projects/p/services/tpu.googleapis.com",
    "billing": f"/v1/services/{SERVICE}/skus?pageSize=1",
    "storage": "/storage/v1/b/bucket",
}


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest, cloud: Emulator) -> Any:
    """Asks one face for something that there is, with more parameters."""
    base = (cloud.storage if request.param == "storage" else cloud.rest).url

    def ask(query: str = "", **headers: str) -> requests.Response:
        address = base + FACES[request.param]
        return requests.get(f"{address}{'&' if '?' in address else '?'}{query}", headers=headers, timeout=60)

    ask.of = request.param  # type: ignore[attr-defined]
    return ask


def test_what_changes_nothing_is_taken_by_every_face(face: Any) -> None:
    plain = face("prettyPrint=false")
    assert plain.status_code == 200, plain.text
    harmless = "alt=json&$.xgafv=1&quotaUser=me&uploadType=media&upload_protocol=raw&prettyPrint=false"
    assert face(harmless).content == plain.content
    assert face("$alt=JSON&$prettyPrint=false").content == plain.content


def test_fields_selects_in_each_of_its_spellings(face: Any) -> None:
    whole = face().json()
    key = next(iter(whole))
    assert face(f"fields={key}").json() == {key: whole[key]}
    assert face("fields=*").json() == whole
    items = next(((name, value) for name, value in whole.items() if isinstance(value, list)), None)
    if items is not None:
        name, wanted = items[0], {items[0]: [{"name": one["name"]} for one in items[1]]}
        for spelling in (f"{name}(name)", f"{name}/name", f"{name}.name", f"{name}(name),"):
            assert face(f"fields={spelling}").json() == wanted


def test_answers_are_printed_as_was_asked(face: Any) -> None:
    short, long = face("prettyPrint=false").text, face("prettyPrint=true").text
    found = json.loads(short)
    assert long == json.dumps(found, ensure_ascii=False, indent=2) + "\n"
    assert "\n" not in short.strip()
    if face.of != "storage":  # whose server answers in one line unless it is asked for another shape
        assert face().text == long


def test_an_alt_that_is_not_served_is_refused(face: Any, recorder: Recorder) -> None:
    for query, message in (
        ("alt=zzz", "Invalid value \"zzz\" for query parameter 'alt'"),
        ("alt=proto", "Invalid value \"proto\" for query parameter 'alt'"),
        ("alt=media", 'Unsupported alt type "media" for non byte stream request.'),
    ):
        named = query != "alt=media" and (query == "alt=zzz" or face.of == "storage")
        with recorder.wrong(*[rf'request alt: "{query[4:]}": it is one of'] if named else []):
            answer = face(query)
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)


def test_a_callback_wraps_the_answer_and_must_be_a_name(face: Any) -> None:
    answer = face("callback=told.to&prettyPrint=false")
    assert answer.headers["content-type"] == "text/javascript; charset=UTF-8"
    assert answer.text == f"// API callback\ntold.to({face('prettyPrint=false').text.strip()});"
    refused = face("callback=alert(1)")
    assert refused.status_code == 400
    assert refused.headers["content-type"] == "application/json; charset=UTF-8"


def test_the_first_format_of_errors_has_a_list_of_them(face: Any, recorder: Recorder) -> None:
    with recorder.wrong(r'request \$.xgafv: "3": it is one of 1, 2', 'request alt: "zzz": it is one of'):
        assert face("$.xgafv=3").status_code == 400
        [error] = face("$.xgafv=1&alt=zzz").json()["error"]["errors"]
        assert (error["reason"], error["domain"]) == ("badRequest", "global")
        if face.of != "storage":  # which has that list in each error
            assert "errors" not in face("alt=zzz").json()["error"]


def test_a_token_in_the_query_says_who_calls(cloud: Emulator) -> None:
    cloud.deny("vm", "tpu.runtimeversions.list")
    address = cloud.rest.url + FACES["tpu"]
    for name in ("access_token", "oauth_token"):
        assert requests.get(f"{address}&{name}={token('n', 0)}", timeout=60).status_code == 403
    assert requests.get(f"{address}&access_token=else", timeout=60).status_code == 200
    cloud.allow("vm", "tpu.runtimeversions.list")
    cloud.storage.forbid("list bucket/*", caller=token("n", 0))
    listing = f"{cloud.storage.url}/storage/v1/b/bucket/o"
    assert requests.get(f"{listing}?access_token={token('n', 0)}", timeout=60).status_code == 403
    assert requests.get(listing, timeout=60).status_code == 200
    cloud.storage.heal()


def test_a_parameter_that_no_method_has_is_refused_by_name(cloud: Emulator, recorder: Recorder) -> None:
    with recorder.wrong(
        "nonsense: .* no such parameter", "page_size: .* no such parameter", "pageSize: .* whole number"
    ):
        answer = requests.get(f"{cloud.rest.url}{PLACE}/nodes?nonsense=1", timeout=60)
        assert answer.status_code == 400
        assert 'Unknown name "nonsense": Cannot bind query parameter.' in answer.json()["error"]["message"]
        assert requests.get(f"{cloud.rest.url}{PLACE}/nodes?page_size=1", timeout=60).status_code == 200
        assert requests.get(f"{cloud.rest.url}{PLACE}/nodes?pageSize=many", timeout=60).status_code == 400


def test_an_unknown_field_of_a_known_message_is_refused_as_google_does(cloud: Emulator) -> None:
    answer = requests.get(f"{cloud.rest.url}{PLACE}/nodes?fields=nodes(name,nonsense)", timeout=60)
    error = answer.json()["error"]
    assert (answer.status_code, error["message"]) == (400, "Request contains an invalid argument.")
    [violation] = error["details"][0]["fieldViolations"]
    assert violation == {
        "field": "nodes(name,nonsense)",
        "description": "Error expanding 'fields' parameter. Cannot find matching fields for path 'nodes.nonsense'.",
    }


def test_nothing_is_done_for_an_answer_that_cannot_be_given(cloud: Emulator, recorder: Recorder) -> None:
    replication = {"replication": {"automatic": {}}}
    with recorder.wrong(r"request alt: \"zzz\"", r"request \$.xgafv: \"0\""):
        for query in ("alt=zzz", "fields=((", "$.xgafv=0"):
            made = requests.post(
                f"{cloud.rest.url}/v1/projects/p/secrets?secretId=t&{query}", json=replication, timeout=60
            )
            assert made.status_code == 400
            upload = f"{cloud.storage.url}/upload/storage/v1/b/bucket/o?uploadType=media&name=t&{query}"
            assert requests.post(upload, data=b"x", timeout=60).status_code == 400
        node = {"acceleratorType": "v6e-8", "runtimeVersion": "v2-alpha-tpuv6e"}
        made = requests.post(f"{cloud.rest.url}{PLACE}/nodes?nodeId=n&fields=nonsense", json=node, timeout=60)
        assert made.status_code == 400
    assert cloud.nodes() == [] and cloud.neighbours.secrets() == ["projects/p/secrets/s"]
    listing = requests.get(f"{cloud.storage.url}/storage/v1/b/bucket/o", timeout=60)
    assert "items" not in listing.json()


def test_what_no_face_serves_is_an_error_in_json_whatever_the_method(cloud: Emulator, recorder: Recorder) -> None:
    with recorder.wrong("there is no such method"):
        for base in (cloud.rest.url, cloud.storage.url):
            for method in ("PUT", "DELETE", "PATCH", "POST", "LINK"):
                answer = requests.request(method, f"{base}/v2/nowhere", json={}, timeout=60)
                assert answer.status_code >= 400
                assert answer.headers["content-type"] == "application/json; charset=UTF-8", (base, method)
                assert answer.json()["error"]["code"] == answer.status_code
        answer = requests.put(f"{cloud.rest.url}{PLACE}/nodes", json={}, timeout=60)
        assert answer.json()["error"]["status"] == "NOT_FOUND"
    assert requests.head(f"{cloud.rest.url}{PLACE}/nodes", timeout=60).content == b""


# ---- masks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "tree"),
    [
        ("nodes.name,next_page_token", {"nodes": {"name": {}}, "nextPageToken": {}}),
        ("nodes(name,scheduling_config/spot)", {"nodes": {"name": {}, "schedulingConfig": {"spot": {}}}}),
        ("nodes.labels.my_label", {"nodes": {"labels": {"my_label": {}}}}),
        ("nodes.*", {"nodes": {}}),
        ("nodes(name),nodes.state", {"nodes": {"name": {}, "state": {}}}),
        ("nodes.name,nodes", {"nodes": {}}),
        ("nodes,nodes.name", {"nodes": {}}),
        ("", {}),
    ],
)
def test_a_mask_is_a_tree_of_the_names_in_json(mask: str, tree: Any) -> None:
    assert field_masks.tree(mask, NODES) == tree


def test_a_star_on_the_way_is_every_name_of_a_map() -> None:
    found = {"items": {"a": {"one": [{"x": 1, "y": 2}], "other": 3}, "b": {"other": 4}}, "more": 5}
    assert field_masks.select(found, field_masks.tree("items/*/one(x)")) == {
        "items": {"a": {"one": [{"x": 1}]}, "b": {}}
    }
    assert field_masks.select(found, field_masks.tree("items(*/other,b)")) == {
        "items": {"a": {"other": 3}, "b": {"other": 4}},
    }  # fmt: skip
    assert field_masks.tree("nodes.*.name", NODES) == {"nodes": {}}


@pytest.mark.parametrize(
    "mask",
    [
        "nodes(name",
        "nodes)",
        "(name)",
        "nodes()",
        ".",
        "nodes..name",
        "nodes.name.more",
        ",",
        "nonsense",
        "nodes(" * 5000,
    ],
)
def test_what_is_no_mask_of_the_message_is_refused(mask: str) -> None:
    with pytest.raises(Refusal) as refused:
        field_masks.tree(mask, NODES)
    assert refused.value.code == 3


# ---- filters -----------------------------------------------------------------------------------------------

ITEMS = [
    {"name": "a", "done": True, "size": 2, "labels": {"k": "v"}, "metadata": {"verb": "create", "createTime": "2026-01-01"}},
    {"name": "b", "size": 10, "metadata": {"verb": "delete", "createTime": "2026-02-01"}},
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "ab"),
        ("done=true", "a"),
        ("done = false", "b"),
        ("NOT done=true", "b"),
        ("-done=true", "b"),
        ('metadata.verb="create"', "a"),
        ("metadata.verb=*te", "ab"),
        ("metadata.verb!=create", "b"),
        ("size>5", "b"),
        ("size<=2", "a"),
        ('metadata.create_time>="2026-01-15"', "b"),
        ("labels:k", "a"),
        ("labels.k:*", "a"),
        ("name=a OR name=b", "ab"),
        ("name=a name=b", ""),
        ("name=a AND size=2", "a"),
        ("name=b OR name=a AND size=2", "a"),
        ("(name=a AND size=3) OR name=b", "b"),
    ],
)
def test_a_filter_lets_through_what_it_says(text: str, names: str) -> None:
    assert "".join(item["name"] for item in filters.chosen(ITEMS, text)) == names


@pytest.mark.parametrize(
    "text", ["name", "name=", "(name=a", "name=a)", "=a", "name=a OR", 'name="a', "f(name)", "(" * 9000]
)
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        filters.chosen(ITEMS, text)
    assert refused.value.code == 3
