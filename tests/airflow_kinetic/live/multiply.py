"""One real deferral, many times over, as the execution API writes it to Airflow's database.

Run in Airflow's environment: multiply.py DAG RUN FROM TO, where FROM is a deferred task instance and TO a mapped task
whose instances are scheduled and find no place in their pool.
"""

from __future__ import annotations

import sys

from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from sqlalchemy import select


def multiply(dag_id: str, run_id: str, deferred: str, waiting: str) -> int:
    with create_session() as session:
        found = session.scalars(select(TaskInstance).filter_by(dag_id=dag_id, run_id=run_id)).all()
        [first] = [task for task in found if task.task_id == deferred]
        others = [task for task in found if task.task_id == waiting]
        assert first.trigger is not None, first
        fields = first.trigger.kwargs
        for task in others:
            trigger = Trigger(classpath=first.trigger.classpath, kwargs=fields, queue=first.trigger.queue)
            session.add(trigger)
            session.flush()
            task.trigger_id = trigger.id
            for name in ("try_number", "start_date", "next_method", "next_kwargs", "trigger_timeout"):
                setattr(task, name, getattr(first, name))
            task.state = TaskInstanceState.DEFERRED
    return len(others)


if __name__ == "__main__":
    print(multiply(*sys.argv[1:]))
