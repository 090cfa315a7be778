"""The work of DAG tasks, the supervision of their drivers, and the content of UI pages; without
Airflow."""
