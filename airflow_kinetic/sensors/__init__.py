from airflow_kinetic.floor import require_airflow

require_airflow()
