"""What a database does not take: names, columns and keys that it has no room for, said before a
table is made where that can be known, else in place of the database's own error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

from sqlalchemy import Column, Dialect, String, Table, types
from sqlalchemy.exc import DBAPIError

from semistream.errors import ConfigError
from semistream.warehouse.types import KEY_CHARACTERS, KeyString

NAME_CHARACTERS = 64  # of any name in MySQL
KEY_BYTES = 3072  # of an InnoDB index
KEY_COLUMNS = 16  # likewise; 32 in MariaDB
CHARACTER_BYTES = 4  # of utf8mb4
RENAME = "Rename the column in the source."
FEWER = ("Leave columns out of the data, or declare some as numbers or dates. SQLite takes more, "
         "and a Delta table any facts.")
TOO_MANY_COLUMNS = ("too many columns", "expression tree is too large")  # in the error's text
# by MySQL's number of the error: what a table must have
REFUSED = {
    1060: ("must not have two columns that MySQL takes for one", RENAME),
    1071: ("must have a key of at most 3,072 bytes", "Name fewer key columns that are text."),
    1070: ("must have fewer columns in a key", "Name fewer key columns."),
    1118: ("must have rows that fit half a page of InnoDB, 8,126 bytes, in which each text or blob "
           "takes up to 41 of its own", FEWER),
}


def check_table(dialect: Dialect, table: Table) -> None:
    """Raises ConfigError for a table that MySQL would refuse because of a name or a key. SQLite
    takes any."""
    if dialect.name == "sqlite":
        return
    check_name("fact_table, master.name", table.name, "Give it another name in the job.")
    for column in table.columns:
        check_name(f"{table.name}.{column.name}", column.name, RENAME)
    for index in table.indexes:
        columns = list(index.columns)
        most = KEY_COLUMNS * (2 if getattr(dialect, "is_mariadb", False) else 1)
        if len(columns) > most or sum(map(_key_bytes, columns)) > KEY_BYTES:
            raise ConfigError(
                f"a key of {table.name}", f"must have at most {most} columns and {KEY_BYTES:,} "
                "bytes in MySQL, which four columns of text are", [c.name for c in columns],
                "Name fewer key columns.")


def check_name(parameter: str, name: str, remedy: str) -> None:
    """Raises ConfigError for a name that MySQL does not have, or that is not found again by it."""
    if len(name) > NAME_CHARACTERS:
        wrong = f"must have at most {NAME_CHARACTERS} characters in MySQL"
    elif not name or name[-1] in " \t\n\v\f\r":
        wrong = "must not be empty, and not end with a blank, in MySQL"
    elif any(c > "\uffff" or c in "\0\n" for c in name):
        wrong = "must have no line break and no character beyond U+FFFF in MySQL"
    else:
        return
    raise ConfigError(parameter, wrong, name, remedy)


@contextmanager
def said(table: str) -> Iterator[None]:
    """Raise ConfigError in place of the error of a database that has no room for a table's columns
    or for one of its rows."""
    try:
        yield
    except DBAPIError as e:
        error = e.orig.args[0] if e.orig is not None and e.orig.args else None
        if error in REFUSED:
            constraint, remedy = REFUSED[error]
        elif any(text in str(e.orig).lower() for text in TOO_MANY_COLUMNS):
            constraint, remedy = ("must have at most 1,017 columns in MySQL, and in SQLite 2,000, "
                                  "or 1,000 as a dimension", FEWER)
        else:
            raise
        raise ConfigError(table, constraint, str(e.orig), remedy) from None


def indexable(columns: Sequence[Column]) -> list[Column]:
    """The first of these columns, as many as MySQL indexes together."""
    ends = accumulate(map(_key_bytes, columns[:KEY_COLUMNS]))
    return [c for c, end in zip(columns, ends, strict=False) if end <= KEY_BYTES]


def _key_bytes(column: Column) -> int:
    length = getattr(column.type, "length", None) or KEY_CHARACTERS
    if isinstance(column.type, (KeyString, String)):
        return length * CHARACTER_BYTES
    return length if isinstance(column.type, types._Binary) else 8
