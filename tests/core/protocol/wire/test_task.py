"""A task is the same on both sides of a spec, and its JSON is that of every version of the same wire."""

from __future__ import annotations

import json

import pytest

from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.wire.task import DataPiece, Environment, Hardware, Package, Task
from tests.support.wire_tasks import DIGEST, TASK

pytestmark = pytest.mark.fast

ELSEWHERE = Environment(
    DIGEST, settings={"UV_NO_INDEX": "1"}, python="3.11", platform="x86_64-manylinux_2_35", packages=2,
    secrets=("TOKEN",), warm=("jax",), compiles={"jaxlib": "0.10.2"},
)  # fmt: skip
FUNCTION = TASK._replace(
    data=(DataPiece(DIGEST, "rows.csv"), DataPiece("", url="gs://bucket/rows")), packages=(Package(DIGEST, "shared"),),
    volumes={"/data": 1}, environment=ELSEWHERE, python="", env={"A": "1"}, accelerator=Hardware("tpu", "v5e", "2x4"),
    kept=True, profile={"steps": 2, "hosts": "all"}, stall=float("inf"),
)  # fmt: skip
COMMAND = TASK._replace(
    argv=("python", "train.py"), payload=None, environment=Environment(DIGEST, "/usr/bin/python3", "/usr/bin/uv")
)
LATER = (
    *("processes", "affordable", "profile", "project", "accelerator", "slices", "secrets", "tools", "beside", "image"),
    *("owned", "kept", "compile_cache", "device_metrics"),
)


def spec_of(fields: object) -> bytes:
    return wire.encode({"name": "train", "task": fields})


@pytest.mark.parametrize("task", [TASK, FUNCTION, COMMAND])
def test_a_host_reads_what_a_client_wrote(task: Task) -> None:
    assert Task.decode(spec_of(task.to_json()), "spec.json") == task


def test_the_json_of_a_task_is_that_of_its_wire() -> None:
    assert json.dumps(FUNCTION.to_json(), separators=(",", ":")) == (
        f'{{"name":"train","argv":[],"payload":{{"digest":"{DIGEST}","size":1}},"tree":"{DIGEST}","cwd":"","path":["."],'
        f'"extra_path":[],"data":[{{"digest":"{DIGEST}","file":"rows.csv","here":"","url":""}},{{"digest":"","file":"",'
        f'"here":"","url":"gs://bucket/rows"}}],"packages":[{{"digest":"{DIGEST}","at":"shared"}}],"volumes":{{"/data":1}},'
        f'"environment":{{"lock":"{DIGEST}","interpreter":"","uv":"","settings":{{"UV_NO_INDEX":"1"}},"python":"3.11",'
        '"platform":"x86_64-manylinux_2_35","packages":2,"secrets":["TOKEN"],"uv_itself":"","warm":["jax"],"compiles":'
        '{"jaxlib":"0.10.2"}},"python":"","env":{"A":"1"},"devices":1,"emulated":false,"processes":1,"distributed":false,'
        '"output_dir":"outputs/x","checkpoint_dir":"checkpoints/x","partition_key":"","provision":900.0,"run":0.0,'
        '"affordable":0.0,"stall":Infinity,"debug":0,"profile":{"steps":2,"hosts":"all"},"project":"","accelerator":'
        '{"kind":"tpu","generation":"v5e","topology":"2x4"},"slices":1,"secrets":{},"tools":{},"beside":{},"image":"",'
        '"owned":false,"kept":true,"compile_cache":true,"device_metrics":true,"quick":true}'
    )
    told = COMMAND.to_json()
    assert (told["payload"], "kept" in told) == ({}, False)
    assert told["environment"] == {
        "lock": DIGEST,
        "interpreter": "/usr/bin/python3",
        "uv": "/usr/bin/uv",
        "settings": {},
    }


def test_a_task_of_the_first_version_has_the_defaults_of_the_fields_that_came_later() -> None:
    first = {name: value for name, value in TASK.to_json().items() if name not in LATER}
    read = Task.decode(spec_of(first), "spec.json")
    assert read._replace(accelerator=TASK.accelerator, compile_cache=True, device_metrics=True) == TASK


def test_a_task_of_a_newer_wire_and_one_with_a_field_of_another_kind_are_refused() -> None:
    with pytest.raises(wire.Newer):
        Task.decode(
            spec_of(TASK.to_json()).replace(b'"wire":1', b'"wire":99').partition(b',"sum"')[0] + b"}", "spec.json"
        )
    with pytest.raises(wire.Unreadable, match=r"its task\.devices is 'many'"):
        Task.decode(spec_of(TASK.to_json() | {"devices": "many"}), "spec.json")


def test_a_host_reads_the_task_of_the_candidate_by_which_it_was_made() -> None:
    """The spec has what differs of the others, and nothing but that."""
    other = FUNCTION._replace(
        devices=8, slices=2, run=60.0, accelerator=Hardware("gpu", "h100"), secrets={"TOKEN": "projects/p/secrets/s"}
    )
    told = FUNCTION.joined([other, FUNCTION]).to_json()
    assert [*told["choices"][0]] == ["devices", "run", "accelerator", "slices", "secrets"]
    assert told["choices"][1] == {}
    spec = spec_of(told)
    assert [Task.decode(spec, "spec.json", choice) for choice in (0, 1, 2)] == [FUNCTION, other, FUNCTION]
    for choice in (-1, 3):
        with pytest.raises(wire.Unreadable, match="has no candidate"):
            Task.decode(spec, "spec.json", choice)
    with pytest.raises(wire.Unreadable, match="has no candidate"):
        Task.decode(spec_of(FUNCTION.to_json()), "spec.json", 1)


def test_a_candidate_has_its_own_price_and_one_without_has_none() -> None:
    own, dear = FUNCTION._replace(usd_per_hour=4.8), FUNCTION._replace(usd_per_hour=21.6)
    for first, others in ((own, (dear, FUNCTION)), (FUNCTION, (dear, FUNCTION))):
        spec = spec_of(first.joined(others).to_json())
        assert [Task.decode(spec, "spec.json", choice) for choice in (0, 1, 2)] == [first, *others]


def test_a_candidate_has_its_own_environment_by_what_differs_of_it() -> None:
    """Its lock, and what follows of that; the rest stands in the spec once."""
    build = ELSEWHERE._replace(lock="c" * 64, packages=3, warm=(), compiles={})
    other = FUNCTION._replace(environment=build, devices=8)
    told = FUNCTION.joined([other, FUNCTION]).to_json()
    assert told["choices"][0] == {
        "environment": {"lock": "c" * 64, "packages": 3, "warm": (), "compiles": {}},
        "devices": 8,
    }
    assert told["choices"][1] == {}
    spec = spec_of(told)
    assert [Task.decode(spec, "spec.json", choice) for choice in (0, 1, 2)] == [FUNCTION, other, FUNCTION]
    with pytest.raises(wire.Unreadable, match=r"its task\.choices.*lock"):
        Task.decode(spec_of({**told, "choices": [{"environment": {"lock": "../x"}}]}), "spec.json", 1)
    bare = Task.decode(spec_of({**TASK.to_json(), "choices": [{"environment": {"packages": 1}}]}), "spec.json", 1)
    assert bare == TASK


def test_a_candidate_of_a_task_changes_nothing_but_hardware() -> None:
    """What a later version, or somebody else, has written beside it is no field of the task."""
    told = {**TASK.to_json(), "choices": [{"devices": 2, "argv": ["sh"]}]}
    found = Task.decode(spec_of(told), "spec.json", 1)
    assert found == TASK._replace(devices=2)
