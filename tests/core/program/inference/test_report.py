"""Reports of batches: rates, latencies, start-up and cost of all hosts together; and how long a server may take."""

from __future__ import annotations

import pytest

from kinetic_orchestration.program.inference.client import Answer
from kinetic_orchestration.program.inference.report import Counts, percentiles, report
from kinetic_orchestration.program.inference.servers import engines, process

pytestmark = pytest.mark.fast


def test_percentiles_are_the_latencies_that_so_many_of_a_hundred_do_not_exceed() -> None:
    assert percentiles([n / 10 for n in range(100, 0, -1)]) == {"p50": 5.0, "p90": 9.0, "p99": 9.9}
    assert percentiles([0.3]) == {"p50": 0.3, "p90": 0.3, "p99": 0.3}
    assert percentiles([]) is None


def test_hosts_are_added_and_the_start_is_a_line_of_its_own() -> None:
    told = {}
    for host, (start, seconds) in enumerate([(60.0, 10.0), (90.0, 20.0)]):
        counts = Counts()
        for each in range(4):
            counts.add(Answer("a", tokens_in=100, tokens_out=25, seconds=1.0 + each))
        counts.add(Answer(error="the prompt is too long"))
        told[host] = {**counts.told(start_seconds=start, restarts=host), "seconds": seconds}
    found = report(told, rows=12, failed=2, engine="vllm", place="gs://b/a/", usd_per_hour=36.0)
    assert (found["answered"], found["failed"], found["reused"], found["hosts"], found["restarts"]) == (10, 2, 2, 2, 1)
    assert (found["tokens_in"], found["tokens_out"]) == (800, 200)
    assert (found["tokens_in_per_second"], found["tokens_out_per_second"]) == (40.0, 10.0), "without the start"
    assert (found["start_seconds"], found["seconds"], found["rows_per_second"]) == (90.0, 20.0, 0.5)
    assert found["latency"] == {"p50": 2.0, "p90": 4.0, "p99": 4.0}
    assert found["usd"] == pytest.approx(36 * 110 / 3600), "the start is paid for"
    assert found["usd_per_million_tokens"] == pytest.approx(1.1 / 1000 * 1e6)
    assert found["parts"] == "gs://b/a/parts"


@pytest.mark.parametrize(("told", "least"), [("tpu 4711", 45 * 60), ("gpu", 20 * 60), ("", 15 * 60)])
def test_a_server_may_compile_for_as_long_as_its_hardware_takes(
    told: str, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first compilation on a TPU takes 10 to 30 minutes."""
    monkeypatch.setenv("KINETIC_EXPECT", told)
    given = {"devices": 4, "per_chip": 1, "hosts": 1, "keep_log": lambda path, number: path, "tell": print}
    usual, own = (process.of_host(engines.VLLM, {}, "/m", patience=patience, **given) for patience in (None, 7.0))  # type: ignore[arg-type]
    try:
        assert (usual.patience, own.patience) == (least, 7.0)
    finally:
        usual.stop()
        own.stop()
