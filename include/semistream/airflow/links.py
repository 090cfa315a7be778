"""The link from a task to the page of the load that it ran, also where it failed."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from airflow.configuration import conf
from airflow.sdk import BaseOperatorLink


class LoadLink(BaseOperatorLink):
    name = "Semistream"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address of the load's page; that of all loads if the task failed before its
        load had a checkpoint."""
        page = f"{conf.get('api', 'base_url', fallback='').rstrip('/')}/semistream/"
        return (
            page
            if operator.checkpoint is None
            else f"{page}loads/{quote(operator.checkpoint.name)}"
        )
