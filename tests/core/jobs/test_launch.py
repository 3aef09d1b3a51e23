"""The way of a job up to its first attempt: what an identity means now, and what Ctrl-C does not wait for."""

from __future__ import annotations

import re
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.opening import place_of
from kinetic_orchestration.errors import StoreError
from kinetic_orchestration.jobs import launch, request
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.plan import planner
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.identity import job_id, of
from kinetic_orchestration.platforms.local.backend import LocalBackend
from kinetic_orchestration.platforms.local.store import LocalStore
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.records.base import Record
from tests.support.waits import wait_until

# Asked to end, it waits until it may, and says when it has.
SLOW_TO_END = """
trap 'until [ -e "$0/may end" ]; do sleep 0.05; done; touch "$0/ended"; exit' TERM
echo up
while :; do sleep 0.05; done
"""


def test_a_job_that_ends_is_waited_for_before_its_identity_begins_anew(home: Path, tmp_path: Path) -> None:
    """Its verdict is there already, and its program may still write what the next job goes on from."""
    job = kinetic.command(["sh", "-c", SLOW_TO_END, str(tmp_path)], accelerator="cpu", key="k")
    wait_until(lambda: "up" in (job.logs() or ""))
    actions.cancel(job._job, "its task was killed", "a test", anew=True)
    wait_until(lambda: job._job.store.read(names.verdict(job.job_id, 1)) is not None)
    assert not (tmp_path / "ended").exists()
    later = threading.Timer(1.0, (tmp_path / "may end").touch)
    later.start()
    again = kinetic.command(["true"], accelerator="cpu", key="k")
    assert again.job_id != job.job_id
    assert (tmp_path / "ended").exists()
    later.join()
    assert again.result(timeout=60) is None
    assert job.follow(timeout=60) is not None


def _seven() -> int:
    return 7


def _each(number: int) -> int:
    return number


def _calls() -> dict[str, Callable[[], Any]]:
    run = kinetic.run(accelerator="cpu")
    return {
        "a blocking call": run(_seven),
        "a call that finds its job": kinetic.run(accelerator="cpu", key="found")(_seven),
        "run_async": run(_seven).run_async,
        "command": lambda: kinetic.command(["true"], accelerator="cpu"),
        "three inputs": lambda: run(_each).run_async_map([1, 2, 3]).wait(),
    }


@pytest.mark.parametrize("name", list(_calls()))
def test_a_call_is_resolved_once(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert kinetic.run(accelerator="cpu", key="found")(_seven)() == 7
    counts: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        function = getattr(module, name)

        def counted(*args: Any, **given: Any) -> Any:
            counts[name] += 1
            return function(*args, **given)

        monkeypatch.setattr(module, name, counted)

    count(settings, "load")
    count(planner, "make_plan")
    count(request, "open_store")
    _calls()[name]()
    assert counts == {"load": 1, "make_plan": 1, "open_store": 1}


class Forgetful(LocalStore):
    """A store that loses the records of an identity just before they are read, a given number of times."""

    def __init__(self, store: LocalStore, times: int) -> None:
        super().__init__(store.root, store.deployment)
        self.times = times

    def read(self, name: str, *args: Any, **how: Any) -> Record | None:
        if name.startswith("identities/") and self.times:
            self.times -= 1
            self.delete(name)
        return super().read(name, *args, **how)


def test_an_identity_that_is_removed_while_it_is_claimed_is_claimed_again(home: Path) -> None:
    job = kinetic.command(["true"], accelerator="cpu", key="k")
    assert job.result(timeout=60) is None
    store, backend, _ = place_of()
    assert isinstance(store, LocalStore)
    identity = of(settings.load().deployment, "k")
    assert launch.claim(Forgetful(store, 3), backend, identity) == (job.job_id, False)
    with pytest.raises(StoreError, match=r"was removed or changed 20 times .* Find out who"):
        launch.claim(Forgetful(store, 1000), backend, identity)
    assert launch.claim(store, backend, identity) == (job_id(identity, 1), False)


def interrupted(*_: Any) -> str:
    signal.raise_signal(signal.SIGINT)
    raise AssertionError("unreachable")


def test_ctrl_c_while_a_job_is_brought_on_its_way_waits_for_no_reaper(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as place:
        place.setattr(LocalBackend, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            kinetic.command(["true"], accelerator="cpu", key="k")
    assert not list(home.glob(".reaped-*"))
    again = kinetic.command(["true"], accelerator="cpu", key="k")
    assert again.result(timeout=60) is None
    wait_until(lambda: list(home.glob(".reaped-*")))


def test_ctrl_c_while_a_call_is_brought_on_its_way_calls_its_job_back_and_says_so(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(LocalBackend, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kinetic.run(accelerator="cpu")(interrupted)()
    told = re.search(r"kinetic: cancelling (job-\w+)\nkinetic: cancelled\n", capfd.readouterr().err)
    assert told is not None
    assert kinetic.attach(told[1]).status() is kinetic.JobStatus.CANCELLED
