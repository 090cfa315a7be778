"""What DAG tasks do, how their drivers are followed, and what pages show; without Airflow."""
