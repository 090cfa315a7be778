"""The description of this package as an Airflow provider. Every Airflow process imports this
module, so that it imports only the package's metadata."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

_PACKAGE = "semistream.airflow"
# the form of a connection: fields of the extra, each with its label and description
FIELDS = {
    "home": (
        "Home",
        "Directory of data, snapshots, checkpoints and reports [SEMISTREAM_HOME of Airflow's "
        "environment]",
    ),
    "warehouse": (
        "Warehouse",
        "URL, as SQLAlchemy has it: mysql+pymysql://user@host/database. Its password goes into the "
        "field of that name [WAREHOUSE_URL of Airflow's environment]",
    ),
    "spark_master": (
        "Spark master",
        "local[4], spark://host:7077, yarn or k8s://https://host:6443 [that of the connection of "
        "the type Spark that an operator names]",
    ),
}
HIDDEN = ["host", "port", "schema", "login", "extra"]
RELABELING = {"password": "Password of the warehouse"}


def get_provider_info() -> dict[str, Any]:
    """Return the provider info, for the entry point ``apache_airflow_provider``."""
    return {
        "package-name": "semistream",
        "name": "Semistream",
        "description": "Load a warehouse from a stream joined with master data, and prove that "
        "everything arrived.",
        "versions": [version("semistream")],
        "connection-types": [
            {
                "connection-type": "semistream",
                "hook-class-name": f"{_PACKAGE}.hook.SemistreamHook",
                "hook-name": "Semistream",
                "ui-field-behaviour": {"hidden-fields": HIDDEN, "relabeling": RELABELING},
                "conn-fields": {
                    name: {
                        "label": label,
                        "description": description,
                        "schema": {"type": ["string", "null"]},
                    }
                    for name, (label, description) in FIELDS.items()
                },
            }
        ],
        "extra-links": [
            f"{_PACKAGE}.links.{name}" for name in ("LoadLink", "ReportLink", "SparkLink")
        ],
    }
