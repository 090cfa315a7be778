"""The range of commits that one verification verifies, as conditions for rows of the warehouse."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, FromClause, and_, or_

from semistream.positions import START, Position, ordinal
from semistream.warehouse.load_ids import first_load, last_load


@dataclass(frozen=True)
class Range:
    """The batches of one app after `first` and up to `last`. If `first` is None, the range begins
    with the first batch. news: the part of it that was in no verification that succeeded; None if
    that is all of it."""

    app: str
    number: int  # the app's number in its load_ids
    first: Position | None
    last: Position
    # the last position at or before `first` after which no tuple waited
    source_first: Position | None
    commits: int
    rejoins: bool  # whether one of its loads has joined tuples of ``unmatched`` again
    news: Range | None

    def _within(self, table: FromClause, first: Position) -> ColumnElement[bool]:
        """Return the condition for rows of this app after `first` and up to `last`. The table has
        load_id, or app, batch and drain."""
        if "load_id" in table.c:
            return table.c.load_id.between(*self._loads(first))
        return and_(
            table.c.app == self.app,
            table.c.batch.between(first[0], self.last[0]),
            ordinal(table.c.batch, table.c.drain) > ordinal(*first),
            ordinal(table.c.batch, table.c.drain) <= ordinal(*self.last),
        )

    def _loads(self, first: Position) -> tuple[int, int]:
        return last_load(self.number, first) + 1, last_load(self.number, self.last)

    @property
    def loads(self) -> tuple[int, int]:
        """The least and the greatest load_id of the verified batches."""
        return self._loads(self.first or START)

    def is_open(self, unmatched: FromClause) -> ColumnElement[bool]:
        """Return the condition for rows of ``unmatched`` that no load up to `last` has
        resolved."""
        resolved = unmatched.c.resolved_by
        return or_(resolved.is_(None), resolved > self.loads[1])

    def until(self, table: FromClause) -> ColumnElement[bool]:
        """Return the condition for rows of this app up to `last`."""
        return self._within(table, START)

    def holds(self, table: FromClause) -> ColumnElement[bool]:
        """Return the condition for rows of the verified batches."""
        return self._within(table, self.first or START)

    def after(self, table: FromClause) -> ColumnElement[bool]:
        """Return the condition for rows after `first`. The table has batch and drain."""
        return ordinal(table.c.batch, table.c.drain) > ordinal(*(self.first or START))

    def recounted(self, table: FromClause) -> ColumnElement[bool]:
        """Return the condition for rows of loads that may contain tuples of the recounted part of
        the source.

        Such rows are looked up by their stream ids. `+ 0` keeps SQLite, which has no statistics,
        from using the primary key instead.
        """
        return (table.c.load_id + 0).between(*self.later_loads)

    def before(self, table: FromClause) -> ColumnElement[bool]:
        """Return the condition for rows of loads before the recounted part of the source."""
        return (table.c.load_id + 0).between(
            first_load(self.number, START), self.last_complete_load
        )

    @property
    def last_complete_load(self) -> int:
        """The last load_id before the first verified load after which no tuple waited."""
        return last_load(self.number, self.source_first or START)

    @property
    def later_loads(self) -> tuple[int, int]:
        """The first and the last of the load_ids after `last_complete_load`, up to `last`."""
        return self.last_complete_load + 1, last_load(self.number, self.last)
