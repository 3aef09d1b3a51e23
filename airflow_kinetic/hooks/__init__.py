from airflow_kinetic._compat.versions import require_airflow

require_airflow()
