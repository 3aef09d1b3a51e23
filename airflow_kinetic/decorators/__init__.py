from airflow_kinetic._compat import require_airflow

require_airflow()
