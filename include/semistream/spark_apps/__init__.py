"""Apps for spark-submit. ``semistream.airflow.spark_app`` returns the path of an app."""
