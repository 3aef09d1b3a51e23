"""`profile=`: what can be asked for, when a trace begins and ends, what is in it, and where it is shown."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api import links
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.host.machine.bucket_records import CloudRecords
from kinetic_orchestration.host.process.frameworks import profiler, tracers, xplane
from kinetic_orchestration.plan import planner
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare import profile
from kinetic_orchestration.plan.declare.profile import Profile
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.values import Plan
from kinetic_orchestration.protocol import names
from kinetic_orchestration.testing.storage_server.server import StorageServer

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("profile_program.py")


# ---- what can be asked for ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "told", "shown"),
    [
        (20, (20, 0.0, 5, None, 0), "20 steps after 5 steps, on host 0"),
        ("20 steps", (20, 0.0, 5, None, 0), "20 steps after 5 steps, on host 0"),
        (" 30s", (0, 30.0, 5, None, 0), "30s after 5 steps, on host 0"),
        (Profile(steps=1, after=0, hosts="all"), (1, 0.0, 0, None, "all"), "1 steps after 0 steps, on all hosts"),
        (Profile(seconds=2.5, after="2m"), (0, 2.5, 0, 120.0, 0), "2.5s after 2m, on host 0"),
    ],
    ids=repr,
)
def test_what_is_asked_for_is_what_hosts_are_told(given: Any, told: tuple[Any, ...], shown: str) -> None:
    found = profile.instructions(given)
    assert tuple(found[name] for name in ("steps", "seconds", "after", "wait", "hosts")) == told
    assert profile.describe(found) == shown
    assert profiler.Request(**{name: found[name] for name in profiler.Request._fields})
    assert profile.instructions(Profile(**{"seconds": None, "steps": None, **_fields(profile.asked(given))})) == found


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


@pytest.mark.parametrize("given", [None, "", "None"])
def test_nothing_is_asked_for_also_by_a_template_of_nothing(given: Any) -> None:
    assert (profile.asked(given), profile.instructions(given), profile.describe({})) == (None, {}, "")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (0, "steps=0: give a number of steps, 1 or more"),
        (-3, "steps=-3: give a number of steps"),
        (True, r"profile is True: give a number of steps \(20\), a time \('30s'\), or kinetic.Profile"),
        (1.5, "profile is 1.5: give a number"),
        ("20", "give 20 or '20 steps' for steps, or '20s' for seconds"),
        ("soon", "profile.seconds is 'soon': give seconds, or a text such as '90s'"),
        ("0s", "seconds='0s': give a time of more than 0 s and at most 10m"),
        ("2h", "seconds='2h': give a time of more than 0 s and at most 10m"),
        (Profile(), "neither steps nor seconds: name one of them"),
        (Profile(steps=1, seconds=1), "both steps and seconds: name one of them"),
        (Profile(steps=2, after=-1), "after=-1: give how many steps come before it, or a time such as '2m'"),
        (Profile(steps=2, after="7"), "after='7': give 7 for steps, or '7s' for seconds"),
        (Profile(steps=2, after=True), "after=True"),
        (Profile(steps=2, hosts="both"), "hosts='both': give 0 for host 0 alone, or 'all'"),  # type: ignore[arg-type]
        (Profile(steps=2, hosts=1), "hosts=1: give 0"),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_what_cannot_be_is_refused_where_it_is_written_with_the_fix(given: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        kinetic.run(accelerator="cpu", profile=given)


def test_the_plan_says_it_and_keeps_it_as_json() -> None:
    settings = Settings(home=Path("/home"), store="/home/store", deployment="local", backend="local")
    made = planner.make_plan(JobSpec("train", Options(accelerator="cpu", profile=Profile(seconds="5s"))), settings, {})
    assert "profile      5s after 5 steps, on host 0" in planner.describe(made)
    assert Plan.from_json(json.loads(json.dumps(made.to_json()))) == made
    assert "profile" not in planner.describe(
        planner.make_plan(JobSpec("train", Options(accelerator="cpu")), settings, {})
    )


def test_dagsters_resource_and_a_launch_take_it_and_the_launch_has_the_last_word() -> None:
    from dagster_kinetic import KineticResource, KineticRunConfig
    from dagster_kinetic.assets.decorators import kinetic_asset
    from dagster_kinetic.resource.config import TAG, from_tag

    resource = KineticResource(profile={"steps": 3, "hosts": "all"})
    assert resource._options({}).profile == Profile(steps=3, hosts="all")
    assert resource._options({"profile": "9s"}).profile == "9s"
    for launched in (KineticRunConfig(profile="9s"), KineticRunConfig(profile=Profile(seconds="9s"))):
        assert resource.overridden_by(launched)._options({"profile": 4}).profile == Profile(seconds="9s")
        assert from_tag(launched.to_tags()[TAG], "the run").to_options() == launched.to_options()
    assert from_tag('{"profile": {"steps": 4, "after": "7"}}', "the run").to_options() == {
        "profile": Profile(steps=4, after=7)
    }
    assert resource.overridden_by(KineticRunConfig(spot=True))._options({"profile": 4}).profile == 4
    with pytest.raises(UsageError, match=r"of the run cannot be: .*profile has hosts='some'"):
        from_tag('{"profile": {"steps": 4, "hosts": "some"}}', "the run")
    with pytest.raises(UsageError, match="profile is '20': give 20"):
        kinetic_asset(accelerator="cpu", profile="20")(lambda: None)


# ---- when it begins and ends -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "counted", "waited", "begins"),
    [
        ({"steps": 3, "after": 5}, 4, 99.0, False),
        ({"steps": 3, "after": 5}, 5, 0.1, True),
        ({"steps": 3, "after": 5}, 5, None, False),  # steps of a program without a framework
        ({"steps": 3, "after": 5}, None, 99.0, False),  # nobody counts
        ({"steps": 3, "wait": 20.0}, 99, 19.0, False),
        ({"steps": 3, "wait": 20.0}, 1, 20.0, True),
        ({"seconds": 3.0, "after": 5}, None, profiler.UNCOUNTED - 1, False),
        ({"seconds": 3.0, "after": 5}, None, profiler.UNCOUNTED, True),
        ({"seconds": 3.0, "after": 5}, 4, 999.0, False),  # it may compile for as long as it likes
        ({"seconds": 3.0, "after": 5}, 5, 1.0, True),
        ({"seconds": 3.0, "wait": 0.0}, None, None, False),
        ({"seconds": 3.0, "wait": 0.0}, None, 0.0, True),
    ],
)
def test_it_begins(asked: dict[str, Any], counted: int | None, waited: float | None, begins: bool) -> None:
    assert profiler.Request(**asked).begins(counted, waited) is begins


@pytest.mark.parametrize(
    ("asked", "taken", "lasted", "ends"),
    [
        ({"steps": 3}, 2, 100.0, False),
        ({"steps": 3}, 3, 0.0, True),
        ({"steps": 3}, 2, profile.LONGEST, True),
        ({"seconds": 3.0}, 99, 2.9, False),
        ({"seconds": 3.0}, 0, 3.0, True),
    ],
)
def test_it_ends(asked: dict[str, Any], taken: int, lasted: float, ends: bool) -> None:
    assert profiler.Request(**asked).ends(taken, lasted) is ends


# ---- what is in it -----------------------------------------------------------------------------------------------------


def events(path: Path) -> Iterator[tuple[str, str, str, float]]:
    """Plane, line, event and its length in nanoseconds, as JAX reads them."""
    from jaxlib._profile_data import ProfileData

    for plane in ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            for event in line.events:
                yield plane.name, line.name, event.name, event.duration_ns


def steps(path: Path) -> list[int]:
    from jaxlib._profile_data import ProfileData

    found = [
        event for plane in ProfileData.from_file(str(path)).planes for line in plane.lines for event in line.events
    ]
    return [dict(event.stats)["step_num"] for event in found if event.name == "step"]


def test_a_trace_of_torch_becomes_one_that_xprof_reads(tmp_path: Path) -> None:
    chrome = {
        "traceEvents": [
            {"ph": "M", "name": "thread_name", "pid": 7, "tid": 1, "args": {"name": "main"}},
            {"ph": "X", "cat": "cpu_op", "name": "aten::mul", "pid": 7, "tid": 1, "ts": 5_000_002.5, "dur": 300.25},
            {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 7, "tid": 1, "ts": 5_000_001.0, "dur": 1},
            {"ph": "X", "cat": "cpu_op", "name": "aten::mul", "pid": 7, "tid": "x", "ts": 5_000_009},
            {"ph": "f", "cat": "ac2g", "name": "no event", "pid": 7, "tid": 1, "ts": 5.0},
            {
                "ph": "X", "cat": "kernel", "name": "gemm", "pid": 1, "tid": 7, "ts": 5_000_003.0, "dur": 4.0,
                "args": {"device": 1, "stream": 7},
            },
        ]
    }  # fmt: skip
    path = tmp_path / "trace.xplane.pb"
    (written := tmp_path / "trace.json").write_text(json.dumps(chrome))
    tracers.convert(str(written), str(path))
    assert path.read_bytes() == xplane.from_chrome(chrome)
    assert list(events(path)) == [
        ("/host:CPU", "main", "aten::add", 1_000.0),
        ("/host:CPU", "main", "aten::mul", 300_250.0),
        ("/host:CPU", "x", "aten::mul", 0.0),
        ("/device:GPU:1", "7", "gemm", 4_000.0),
    ]
    written.write_text('{"traceEvents": [')
    with pytest.raises(OSError, match="the trace could not be read: "):
        tracers.convert(str(written), str(path))


@pytest.mark.slow
@pytest.mark.turn(0)
@pytest.mark.timeout(600)
def test_a_profile_has_exactly_its_steps_changes_no_number_and_fails_no_program(tmp_path: Path) -> None:
    """Programs with a real JAX, one after another: what each came to is compared in there."""
    with StorageServer() as server:
        address = f"{server.make_bucket('b-profiles')}/out"
        done = subprocess.run(
            [sys.executable, "-W", "error", str(PROGRAM), str(tmp_path), address], text=True, capture_output=True,
            timeout=500, env={
                **os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "STORAGE_EMULATOR_HOST": server.url,
            },
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        os.environ["STORAGE_EMULATOR_HOST"] = server.url
        try:
            records = CloudRecords(address)
            kept = [entry.name for entry in records.list("profile/") if entry.size > 1000]
            records.close()
        finally:
            del os.environ["STORAGE_EMULATOR_HOST"]
    assert kept == ["profile/plugins/profile/bucket-2/host-0000.xplane.pb"]

    def captured(name: str) -> Path:
        return tmp_path / name / "out/profile/plugins/profile" / f"{name}-2/host-0000.xplane.pb"

    assert steps(captured("counted")) == [5, 6, 7]
    assert steps(captured("giving-way")) == [5, 6, 7]
    assert steps(captured("two-trainings")) == [5, 6]
    assert steps(captured("progress")) == [3, 4]
    ran = [event for _, _, event, _ in events(captured("counted"))]
    assert ran.count("PjitFunction(<lambda>)") in (3, 6)  # one each, or one for each of two layers of the call
    computed = [event for event in ran if event.endswith("_fusion") and not event.startswith("end: ")]
    assert computed and {computed.count(event) for event in computed} == {3}, ran
    assert any("PjitFunction(tanh)" in event for _, _, event, _ in events(captured("timed")))
    for name in ("second", "giving-way", "broken"):
        assert list((tmp_path / name / "own").rglob("*.xplane.pb")), f"the own profile of {name} is whole"
    assert sorted(path.name for path in tmp_path.glob("*/out")) == ["out"] * 9
    said = dict(re.findall(r"^([\w-]+)\n((?:kinetic: .*\n)+)", done.stderr, re.M))
    assert f": {names.xprof(str(tmp_path / 'counted/out/profile'))}\n" in said["counted"]
    assert "the profile of steps 5 to 7 is captured (" in said["counted"]
    assert (
        said["second"]
        == "kinetic: nothing was profiled, since the program profiles itself: jax.profiler runs already\n"
    )
    assert "the program begins a profile of its own" in said["giving-way"]
    assert "steps 5 to 7 (of 6 that were asked for)" in said["giving-way"]
    assert "steps 1 to 2 could not be kept: NotADirectoryError" in said["no-place"]
    assert "the profile of steps 3 to 4 is captured" in said["within"]
    assert "nothing was profiled, and the program goes on: TypeError" in said["broken"]
    assert re.search(r"the profile of [1-5]?\d\.\d s is captured", said["noticed"])  # of the minute that was asked for
    assert "memory since the profile began, so it ends: ask for less of it\nkinetic: the profile of" in said["growing"]
    assert "nobody counted steps. Train with kinetic.Training or kinetic.KineticCallback" in said["uncounted"]
    assert "6 steps were counted, and it was to begin after 100" in said["few"]
    assert f"xprof --logdir {address}/profile" in said["bucket"]
    assert re.fullmatch(r"kinetic: the profile of \d+\.\d s is captured .*\n", said["at-exit"])
    assert captured("at-exit").exists()
    assert not list(tmp_path.glob("at-exit/profile-*"))


# ---- where it is shown -------------------------------------------------------------------------------------------------


def test_without_a_framework_it_is_said_and_nothing_is_shown(home: Path) -> None:
    job = kinetic.run(accelerator="cpu", profile="1s")(int).run_async()
    assert job.result() == 0
    assert "kinetic: nothing was profiled: the program imported none of jax, torch, tensorflow" in (job.logs() or "")
    assert job.profile_dir() == ""


def test_a_page_of_a_bucket_is_the_consoles() -> None:
    assert names.profile("gs://b/out/") == "gs://b/out/profile"
    assert links.browse(names.profile("gs://b/out")).endswith("/storage/browser/b/out/profile")


@pytest.mark.slow
@pytest.mark.turn(4)
@pytest.mark.timeout(400)
def test_a_fit_with_the_callback_is_captured_at_its_steps_and_dagster_and_status_show_it(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import dagster as dg

    from dagster_kinetic import KineticResource, KineticRunConfig, kinetic_asset
    from kinetic_orchestration.cli import main

    @kinetic_asset(accelerator="cpu", keras_backend="jax")
    def model() -> None:
        import keras
        import numpy as np

        made = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)])
        made.compile("adam", "mse")
        x = np.ones((64, 8), "float32")
        made.fit(x, x[:, :1], batch_size=8, epochs=3, verbose=0, callbacks=[kinetic.KineticCallback(every=None)])

    launch = KineticRunConfig(profile=Profile(steps=4, after=6))  # over the end of the first epoch
    with dg.DagsterInstance.ephemeral() as instance:
        done = dg.materialize(
            [model], resources={"kinetic": KineticResource()}, instance=instance,
            run_config={"ops": {"model": {"config": {"profile": {"steps": 4, "after": "6"}}}}},
        )  # fmt: skip
        shown = done.asset_materializations_for_node("model")[0].metadata
    assert launch.to_options()["profile"] == Profile(steps=4, after=6)
    job_id, place = str(shown["kinetic/job_id"].value), str(shown["kinetic/profile"].value)
    assert shown["kinetic/xprof"].value == f"xprof --logdir {place}"
    assert steps(Path(place) / f"plugins/profile/{job_id}-1/host-0000.xplane.pb") == [7, 8, 9, 10]
    job = kinetic.attach(job_id)
    assert place == job.profile_dir() == f"{job.output_dir}/profile"
    assert "the profile of steps 7 to 10 is captured" in (job.logs() or "")
    capsys.readouterr()
    assert main(["status", job_id]) == 0
    assert f"xprof --logdir {place}" in capsys.readouterr().out.replace("\n", "")
    assert main(["status", job_id, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["profile"] == place
