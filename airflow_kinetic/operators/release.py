"""Delete the slices that tasks of a DAG run have left warm, whatever became of the tasks: the run's teardown task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_kinetic.operators.reap import AtPlace

if TYPE_CHECKING:
    from airflow_kinetic._compat import Context


class KineticReleaseOperator(AtPlace):
    """Delete slices that were kept (``keep=``) by tasks of this DAG run and that no job has now.

    A teardown task of Airflow's: put it after the tasks that keep slices, as in ``evaluated >> release``. It runs when
    they are over, also if one failed or was skipped, and does not decide how the run ends. The last of consecutive
    tasks leaves no slice by itself, so this is for runs that fail before it, and for tasks side by side. Its value
    is the number of slices.

    :param store: the deployment's store; by default as set for Airflow (templated)
    :param deployment: the prefix in it; by default as set for Airflow (templated)
    :param backend: the backend of its jobs; by default as set for Airflow
    :param cluster: has no effect, since nothing is kept in a cluster (templated)
    :param namespace: has no effect (templated)
    :param project_id: by default the connection's (templated)
    :param gcp_conn_id: the connection to Google Cloud. Jobs on this machine need none (templated)
    :param impersonation_chain: the service account to act as, or a list that ends with it (templated)
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.as_teardown()

    def execute(self, context: Context) -> int:
        from airflow_kinetic.operators.request import runs_jobs
        from airflow_kinetic.shared.outcome import JOB_KEY
        from kinetic_orchestration.capacity import ledger
        from kinetic_orchestration.jobs.cleanup import kept_slices
        from kinetic_orchestration.plan.configuration import settings
        from kinetic_orchestration.platforms.registry import open_store

        task, location = context["ti"], self.location()
        ours = [name for name, each in context["dag"].task_dict.items() if runs_jobs(each)]
        told = task.xcom_pull(task_ids=ours, key=JOB_KEY) if ours else []
        jobs = {job for job in told if isinstance(job, str) and ledger.is_id(job)}
        with location.with_credentials():
            here = settings.load(None, **location.settings())
            run = "airflow", task.dag_id, task.run_id
            count = kept_slices.release_run(open_store(here.store, here.deployment), here, run, jobs)
        self.log.info("Slices that tasks of this run had left warm, and that were released: %d", count)
        return count
