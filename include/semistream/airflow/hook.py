"""The connection type ``semistream``: where an installation is, its warehouse and its Spark
master."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cached_property
from typing import Any

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from semistream.errors import ConfigError
from semistream.paths import Paths

DEFAULT = "semistream_default"


class SemistreamHook(BaseHook):
    """A connection of the type ``semistream``. Every field is optional. Airflow's environment gives
    the values of missing fields, and all values if the default connection does not exist."""

    conn_name_attr = "semistream_conn_id"
    default_conn_name = DEFAULT
    conn_type = "semistream"
    hook_name = "Semistream"

    def __init__(self, semistream_conn_id: str = DEFAULT, **kwargs: Any):
        super().__init__(**kwargs)
        self.semistream_conn_id = semistream_conn_id

    def get_conn(self) -> Paths:
        """Return the paths and the warehouse's URL, and set them in this process's environment."""
        os.environ |= self.environment()
        return Paths.from_environment()

    @property
    def paths(self) -> Paths:
        """The paths and the warehouse's URL, for a process of Airflow that several loads share: its
        environment stays as it is."""
        return Paths.from_environment(os.environ | self.environment())

    def environment(self) -> dict[str, str]:
        """Return the environment variables SEMISTREAM_HOME and WAREHOUSE_URL, if the connection
        gives them. If neither this connection nor the environment has a URL, the connection
        ``warehouse`` gives the URL."""
        found = {"SEMISTREAM_HOME": self._field("home"), "WAREHOUSE_URL": self._warehouse()}
        return {name: value for name, value in found.items() if value}

    @property
    def master(self) -> str:
        """The URL of the Spark master; "" if the connection gives none."""
        return self._field("spark_master")

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the warehouse answers, and a message for the user. The test creates
        nothing in the warehouse."""
        from semistream.warehouse import connect

        try:
            engine = connect(self.paths.warehouse_url)
            try:
                engine.connect().close()
            finally:
                engine.dispose()
            return True, f"The warehouse is {engine.url.render_as_string()}"
        except Exception as e:
            return False, str(e)

    @cached_property
    def _connection(self) -> Connection | None:
        if self.semistream_conn_id != DEFAULT:
            return self.get_connection(self.semistream_conn_id)
        return _connection_if_any(DEFAULT)

    def _field(self, name: str) -> str:
        connection = self._connection
        return str(connection.extra_dejson.get(name) or "") if connection else ""

    def _warehouse(self) -> str:
        from sqlalchemy import URL, make_url  # imported only here: parsing a DAG needs no SQL
        from sqlalchemy.exc import ArgumentError

        connection = self._connection
        if connection and (given := connection.extra_dejson.get("warehouse")):
            try:
                url = make_url(given)
            except ArgumentError:
                raise ConfigError(
                    f"warehouse of the connection {self.semistream_conn_id!r}",
                    "must be a URL as SQLAlchemy has it",
                    None,  # it may hold a password
                    "For instance: mysql+pymysql://user@host/database.",
                ) from None
            if connection.password:
                url = url.set(password=connection.password)
        elif not os.environ.get("WAREHOUSE_URL") and (other := _connection_if_any("warehouse")):
            from semistream.warehouse.dialects import scheme_of

            url = URL.create(
                scheme_of(other.conn_type),
                other.login,
                other.password,
                other.host,
                other.port,
                other.schema,
            )
        else:
            return ""
        return url.render_as_string(hide_password=False)


def _connection_if_any(name: str) -> Connection | None:
    with suppress(AirflowNotFoundException):
        return BaseHook.get_connection(name)
    return None
