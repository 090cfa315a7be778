"""The page "Semistream" in Airflow's navigation."""

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from semistream.airflow.deadlines import TimeOfDay


async def page(scope: Any, receive: Any, send: Any) -> None:
    """Serve the page's app. The app and the API server's security are imported at the first
    request, because every Airflow process loads this file."""
    from semistream.airflow.page import app

    await app(scope, receive, send)


class SemistreamPlugin(AirflowPlugin):
    name = "semistream"
    deadline_references = [TimeOfDay]
    fastapi_apps = [{"app": page, "url_prefix": "/semistream", "name": "Semistream"}]
    external_views = [
        {
            "name": "Semistream",
            "href": "semistream/",
            "destination": "nav",
            "url_route": "semistream",
            "nav_top_level": True,
        }
    ]
