"""Links of the operators in Airflow's UI: a load's page, its Spark UI, a proof's report."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from airflow.configuration import conf
from airflow.sdk import BaseOperatorLink


class LoadLink(BaseOperatorLink):
    """A link to the page of the load that a task runs or verifies. If the task failed before it
    knew the load's name, the link leads to the page of all loads."""

    name = "Load"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        return _page("loads", operator.app_name) or _page()


class SparkLink(BaseOperatorLink):
    """A link to the Spark UI of the load's driver, while the driver runs."""

    name = "Spark UI"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        return _page("spark", operator.app_name)


class ReportLink(BaseOperatorLink):
    """A link to the report of a verification."""

    name = "Report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        return _page("report", operator.report)


def _page(kind: str = "", name: str = "") -> str:
    """Return the URL of a page of this package. Without a kind, this is the page of all loads. If
    the kind's object has no name, return ""."""
    base = f"{conf.get('api', 'base_url', fallback='').rstrip('/')}/semistream/"
    if not kind:
        return base
    return f"{base}{kind}/{quote(name)}" if name else ""
