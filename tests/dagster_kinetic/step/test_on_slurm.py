"""A step whose hosts are nodes of a real Slurm: it follows them, logs, can be ended, and leaves nothing."""

import signal
import threading
from pathlib import Path

import dagster as dg
import pytest

from dagster_kinetic import HostContext, KineticResource, kinetic_asset
from kinetic_orchestration import Slurm
from tests.dagster_kinetic.stored import captured, made_of
from tests.support.slurm.cluster import Cluster
from tests.support.slurm.fixtures import on_slurm, slurm
from tests.support.slurm.jobs import check_nothing_left
from tests.support.waits import wait_until

__all__ = ["on_slurm", "slurm"]

pytestmark = [pytest.mark.usefixtures("on_slurm"), pytest.mark.slow, pytest.mark.turn, pytest.mark.conformance]
WITHIN = 90.0


def trains(host: HostContext) -> int:
    print(f"host {host.host_index} trains")
    host.log_metrics(step=1, loss=0.5)
    return host.host_count


def waits(folder: str) -> None:
    import time

    Path(folder, "runs").touch()
    time.sleep(600)


def test_an_asset_is_made_on_two_nodes_whose_lines_it_logs(
    slurm: Cluster,
    home: Path,
    instance: dg.DagsterInstance,
) -> None:
    asset = kinetic_asset(accelerator="cpu", cloud=Slurm(hosts=2), name="model")(trains)
    result = dg.materialize([asset], instance=instance, resources={"kinetic": KineticResource()})
    assert result.output_for_node("model") == 2
    told = captured(instance, result)
    assert "host 0 trains" in told and "host 1 trains" in told
    assert made_of(result, "model")["kinetic/accelerator"] == "cpu"
    check_nothing_left(slurm, home)


def test_a_run_that_is_terminated_ends_its_job_of_slurm(
    slurm: Cluster,
    home: Path,
    tmp_path: Path,
    instance: dg.DagsterInstance,
) -> None:
    @dg.op
    def step(context: dg.OpExecutionContext, kinetic: KineticResource) -> None:
        def terminate() -> None:
            wait_until((tmp_path / "runs").exists, "the program runs", within=WITHIN)
            instance.report_run_canceling(instance.get_run_by_id(context.run_id))
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        thread = threading.Thread(target=terminate)
        thread.start()
        try:
            kinetic.run(waits, [str(tmp_path)], accelerator="cpu", context=context)
        finally:
            thread.join()

    @dg.job(resource_defs={"kinetic": KineticResource()})
    def stepping() -> None:
        step()

    result = stepping.execute_in_process(instance=instance, raise_on_error=False)
    [failure] = result.get_step_failure_events()
    assert "cancelled with its run" in failure.step_failure_data.error.to_string()
    check_nothing_left(slurm, home)
