"""The oldest Airflow that this package works with."""

from __future__ import annotations

FLOOR = (3, 3)


def require_airflow() -> None:
    """Raise one sentence where Airflow is too old: before 3.3 a trigger is not told that its task was killed."""
    try:
        from airflow import __version__ as found
    except ImportError:
        raise ImportError(
            "airflow_kinetic needs Airflow, and there is none here: pip install 'kinetic-orchestration[airflow]'."
        ) from None
    major, minor = (int(part) for part in found.split(".")[:2])
    if (major, minor) < FLOOR:
        raise ImportError(f"airflow_kinetic needs Airflow 3.3 or newer, and this is Airflow {found}: upgrade it.")
