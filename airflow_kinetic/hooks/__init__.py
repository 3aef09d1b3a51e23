from airflow_kinetic.shared.airflow_api import require_airflow

require_airflow()
