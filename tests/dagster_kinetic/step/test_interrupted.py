"""A step that is interrupted at an awkward moment: before its job exists, or during the submission."""

import _thread
import signal
from typing import Any

import dagster as dg
import pytest

from dagster_kinetic import KineticResource, kinetic_asset
from dagster_kinetic.step.step import left_if_interrupted, request_of, step_call_of
from dagster_kinetic.step.ticket import tickets_of
from kinetic_orchestration import JobStatus, attach, list_jobs
from kinetic_orchestration.jobs.launch import find
from kinetic_orchestration.jobs.request import draft
from tests.dagster_kinetic.stored import messages

pytestmark = pytest.mark.usefixtures("shared_home")
KINETIC = {"kinetic": KineticResource()}


class Interrupts:
    """An argument that interrupts the step while it is packaged: the job's spec is not stored yet."""

    def __init__(self, do: Any = None) -> None:
        self.do = do

    def __reduce__(self) -> Any:
        self.do()
        signal.raise_signal(signal.SIGINT)
        return (int, ())


def takes(argument: Any) -> None: ...


def sleeps() -> None:
    import time

    time.sleep(300)


class Run:
    """A run of one op that is retried twice, and is terminated in the middle."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance = instance
        self.tries = 0

    def terminate(self, context: Any) -> None:
        self.tries += 1
        self.instance.report_run_canceling(self.instance.get_run_by_id(context.run_id))

    def execute(self, body: Any) -> dg.ExecuteInProcessResult:
        @dg.op(retry_policy=dg.RetryPolicy(max_retries=2))
        def step(context: dg.OpExecutionContext, kinetic: KineticResource) -> None:
            body(context, kinetic)

        @dg.job(resource_defs=KINETIC)
        def stepping() -> None:
            step()

        return stepping.execute_in_process(instance=self.instance, raise_on_error=False)


@pytest.mark.parametrize("how", ["run", "submit"])
def test_terminate_before_the_spec_is_stored_ends_the_step_for_good(instance, how) -> None:
    run = Run(instance)
    result = run.execute(
        lambda context, kinetic: getattr(kinetic, how)(
            takes, [Interrupts(lambda: run.terminate(context))], accelerator="cpu", context=context
        )
    )
    assert run.tries == 1
    [failure] = result.get_step_failure_events()
    assert "the step was cancelled with its run" in failure.step_failure_data.error.to_string()
    assert not list_jobs()


def test_a_store_that_cannot_tell_whether_there_is_a_job_keeps_no_step_alive(instance, shared_home) -> None:
    run = Run(instance)
    broken: list[Any] = []

    def breaks(context: Any) -> None:
        newest = max((shared_home / "store").glob("*/identities/*.json"), key=lambda path: path.stat().st_mtime_ns)
        broken.append(newest)
        newest.write_text('{"wire": 99}')
        run.terminate(context)

    def body(context: Any, kinetic: KineticResource) -> None:
        kinetic.run(takes, [Interrupts(lambda: breaks(context))], accelerator="cpu", context=context)

    result = run.execute(body)
    broken[0].unlink()
    assert run.tries == 1
    [failure] = result.get_step_failure_events()
    assert "the step was cancelled with its run" in failure.step_failure_data.error.to_string()
    assert any(
        "whether 1 jobs of this step were submitted cannot be told" in line for line in messages(instance, result)
    )


def test_of_many_jobs_too(instance, shared_home, capfd) -> None:
    broken: list[Any] = []

    class Breaks:
        def __reduce__(self) -> Any:
            broken.append(
                max((shared_home / "store").glob("*/identities/*.json"), key=lambda path: path.stat().st_mtime_ns)
            )
            broken[0].write_text('{"wire": 99}')
            _thread.interrupt_main()
            raise OSError("for the test")

    run = Run(instance)
    run.execute(lambda context, kinetic: kinetic.map(takes, [Breaks()], accelerator="cpu", context=context))
    broken[0].unlink()
    assert "whether 1 jobs of this step were submitted cannot be told" in capfd.readouterr().err


def test_a_job_that_is_only_submitted_ends_with_its_run_when_that_is_terminated_meanwhile(instance) -> None:
    run, jobs = Run(instance), []

    def body(context: Any, kinetic: KineticResource) -> None:
        spec = kinetic._spec(sleeps, ((), {}), "cpu", context, {})
        with left_if_interrupted(context) as launching:
            jobs.append(launching.launch(request_of(draft(spec), step_call_of(context))))
            launching.handle = None  # as if it had not been heard of yet
            assert find(request_of(draft(spec), step_call_of(context))) is not None
            run.terminate(context)
            signal.raise_signal(signal.SIGINT)

    run.execute(body)
    assert run.tries == 1
    assert [attach(job.job_id).status() for job in jobs] == [JobStatus.CANCELLED]


def test_the_run_of_a_detached_asset_that_is_terminated_is_not_tried_again(instance) -> None:
    tries: list[str] = []

    @dg.asset
    def interrupting(context: dg.AssetExecutionContext) -> Any:
        def terminate() -> None:
            tries.append(context.run.run_id)
            instance.report_run_canceling(instance.get_run_by_id(context.run.run_id))

        return Interrupts(terminate)

    @kinetic_asset(accelerator="cpu", detached=True, retry_policy=dg.RetryPolicy(max_retries=2))
    def detached(interrupting: Any) -> None: ...

    resources = {**KINETIC, "io_manager": dg.mem_io_manager}
    result = dg.materialize([interrupting, detached], instance=instance, resources=resources, raise_on_error=False)
    assert len(tries) == 1
    assert "cancelled with its run" in result.get_step_failure_events()[0].step_failure_data.error.to_string()
    assert len(tickets_of(instance, result.run_id)) == 1


def test_what_a_launch_asks_for_and_a_job_that_is_found_again_is_not_is_told(instance) -> None:
    jobs: list[Any] = []

    def body(context: Any, kinetic: KineticResource) -> None:
        given = {"context": context, "key": "same"}
        jobs.extend(kinetic.submit(sleeps, accelerator=name, **given) for name in ("cpu", "cpu", "v5e-1"))

    result = Run(instance).execute(body)
    assert result.success and len({job.job_id for job in jobs}) == 1
    [said] = [line for line in messages(instance, result) if "goes on with job" in line]
    assert "not v5e-1" in said and f"kinetic-orchestration cancel {jobs[0].job_id}" in said
    jobs[0].cancel()
