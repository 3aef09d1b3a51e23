"""Hosts that JAX has joined end together: however late one is, and not at all if one of them cannot."""

from __future__ import annotations

import functools
import threading
from pathlib import Path

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import JobFailed, JobLost
from tests.support.by_hand import intended
from tests.support.faults import events, result, start_broken, text

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("shared_home")]

TWO_HOSTS = "v4-8"
PATIENCE = 400.0  # two JAX programs on few cores that others use too
NONE = kinetic.Retry(infra=0, preemption=0)


def shuts_down_on_host_0() -> int:
    """Shut down like code that takes it for the task of one process."""
    import jax

    if jax.process_index() == 0:
        jax.distributed.shutdown()
    return 1


def cannot_say_that_it_failed() -> int:
    """Fail without room for a report, as on a full disk."""
    import resource

    import jax

    if jax.process_index() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        raise ValueError("of which nobody hears")
    return 1


def fails_on_host_1_and_shuts_down() -> int:
    import jax

    try:
        if jax.process_index() == 1:
            raise ValueError("too small")
    finally:
        jax.distributed.shutdown()
    return 1


def stuck_on_host_1(shuts_down: bool) -> int:
    """Hang as in a collective that host 0 does not join."""
    import jax

    if jax.process_index() == 1:
        threading.Event().wait()
    if shuts_down:
        jax.distributed.shutdown()
    return 1


def test_a_shutdown_that_one_host_asks_for_waits_for_the_others() -> None:
    assert kinetic.run(accelerator=TWO_HOSTS, retry=NONE)(shuts_down_on_host_0).run_async().result(PATIENCE) == 1


def test_nobody_waits_for_a_host_that_failed_and_could_not_say_so() -> None:
    job = kinetic.run(accelerator=TWO_HOSTS, retry=NONE)(cannot_say_that_it_failed).run_async()
    with pytest.raises(JobFailed, match="exit code 1"):
        job.result(PATIENCE)
    assert "of which nobody hears" in (job.logs() or "")


def test_a_host_that_fails_before_a_shutdown_says_so_at_once() -> None:
    job = kinetic.run(accelerator=TWO_HOSTS, retry=NONE)(fails_on_host_1_and_shuts_down).run_async()
    with pytest.raises(ValueError, match="too small"):
        job.result(250)  # JAX would wait five minutes


@pytest.mark.turn
@pytest.mark.parametrize("shuts_down", [False, True], ids=["at the end", "in a shutdown"])
def test_hosts_that_wait_for_one_that_shows_nothing_say_where_it_is_and_are_given_up_at_last(
    tmp_path: Path, shuts_down: bool
) -> None:
    """The limit is an hour, else their chips would cost for as long as a job may run."""
    job = intended(functools.partial(stuck_on_host_1, shuts_down), accelerator=TWO_HOSTS, retry=NONE)
    for host in range(2):
        start_broken(
            job,
            tmp_path,
            "peers.REPORT_LEFT_BEHIND, peers.BEATS_PACE, host.attempt_rules.DESERTED = 2.0, 0.5, 20.0",
            host,
        )
    heard = events(job, PATIENCE)
    assert "and the program of host 0 is done; the stacks of this host follow" in text(heard, 1, kinds="n")
    assert "in stuck_on_host_1" in text(heard, 1, kinds="n")
    with pytest.raises(
        JobLost, match=r"\(the limit is 20 s, as the program of host 0 is done and waiting for the others\)"
    ):
        result(job)
