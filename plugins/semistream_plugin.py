"""The page "Semistream", where Airflow runs from a checkout.

An installed package is found by its entry point. Airflow refuses a second plugin of the same name,
and reports it as an import error.
"""

from importlib.metadata import entry_points

if not entry_points(group="airflow.plugins", name="semistream"):
    from semistream.airflow.plugin import SemistreamPlugin  # noqa: F401  what Airflow looks for
