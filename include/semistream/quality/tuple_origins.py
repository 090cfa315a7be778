"""The files and lines of the source from which tuples in the warehouse came.

A tuple that waited came with an earlier batch than the batch that wrote its row, but not with a
batch before the last moment at which no tuple waited. The files of these batches are read again,
and searched for the tuple's id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy import select

from semistream.data_files import DataFile
from semistream.job import AnyJob, StreamSpec
from semistream.keys import codes
from semistream.quality.recount import batches_of, recounts, with_stream_id
from semistream.streaming.sources.contract import CannotRecount, Recount
from semistream.warehouse.ledger import app_number
from semistream.warehouse.load_ids import last_load
from semistream.warehouse.schema import load_files
from semistream.warehouse.taking_out import Stretch, stretches
from semistream.warehouse.types import stored_schema

LINE = "quality_line"


class Origins(NamedTuple):
    """The origins of tuples. files: paths; which: int64[n], the number of the file of each tuple,
    -1 if unknown; lines: int64[n], from 1, in a Parquet file the row's number, 0 if unknown."""

    files: list[str]
    which: np.ndarray
    lines: np.ndarray

    def file(self, tuple_: int) -> str | None:
        return None if self.which[tuple_] < 0 else self.files[self.which[tuple_]]

    def line(self, tuple_: int) -> int | None:
        return int(self.lines[tuple_]) or None


class _Wanted(NamedTuple):
    """Ids to look for. codes: int64[n], the codes of the ids in ascending order; positions:
    int64[n], the position of each code's id among the given ids."""

    ids: pa.Array
    codes: np.ndarray
    positions: np.ndarray

    @classmethod
    def of(cls, ids: pa.Array) -> _Wanted:
        found, _ = codes([ids], (pa.string(),))
        positions = np.argsort(found, kind="stable")
        return cls(ids, found[positions], positions)

    def among(self, texts: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of wanted ids among the texts, and their positions among the given
        ids, int64[k] both."""
        texts = texts.combine_chunks()
        found, _ = codes([texts], (pa.string(),))
        at = np.minimum(np.searchsorted(self.codes, found), len(self.codes) - 1)
        there = np.flatnonzero(self.codes[at] == found)
        which = self.positions[at[there]]
        same = pc.equal(texts.take(pa.array(there)), self.ids.take(pa.array(which)))
        is_same = np.asarray(same).astype(bool)
        return there[is_same], which[is_same]


class TupleOrigins:
    """A search for the origins of an app's tuples. schemas: the schema of each stream's tuples at
    the time of loading; most_bytes: the largest number of bytes of files that are read for a
    stretch, by default unlimited."""

    def __init__(
        self,
        engine: sa.Engine,
        app: str,
        job: AnyJob,
        schemas: Sequence[pa.Schema],
        most_bytes: int | None = None,
    ):
        self._engine, self._app, self._job = engine, app, job
        self._schemas, self._most_bytes = schemas, most_bytes
        with engine.connect() as connection:
            self._stretches = stretches(connection, app)
            number = app_number(connection, app)
        self._ends = np.array([last_load(number, of.last) for of in self._stretches], np.int64)

    def find(self, loads: np.ndarray, ids: pa.Array, side: int = 0) -> Origins:
        """Return the origins of tuples. Memory grows with the number of tuples, not with the
        source.

        loads: the load_id of each tuple, int64[n]; ids: the ``stream_id`` of each tuple; side: the
        number of the tuples' stream. If an id occurs more than once, its first origin is returned.
        For a tuple without an id, the file is returned if there is only one.
        """
        found = Origins([], np.full(len(loads), -1), np.zeros(len(loads), np.int64))
        stretch_of = np.searchsorted(self._ends, loads)
        for n in np.unique(stretch_of[stretch_of < len(self._stretches)]).tolist():
            rows = np.flatnonzero(stretch_of == n)
            self._find_in(self._stretches[n], side, rows, ids.take(pa.array(rows)), found)
        return found

    def _find_in(
        self, of: Stretch, side: int, rows: np.ndarray, ids: pa.Array, found: Origins
    ) -> None:
        """Find the origins of these rows, whose ids are given, in the files of a stretch of
        batches."""
        spec, first = self._job.streams[side], len(found.files)
        files = self._files(of, spec, side)
        found.files.extend(file.label for file in files)
        if len(files) == 1:
            found.which[rows] = first
        wanted = ids.drop_null().unique()
        if not spec.id or not len(wanted) or not self._are_few(files):
            return
        file_of, line_of = np.full(len(wanted), -1), np.zeros(len(wanted), np.int64)
        ids_wanted, left = _Wanted.of(wanted), len(wanted)
        for number, file in enumerate(files, first):
            for lines, which in self._lines(file, spec, side, ids_wanted):
                new, at = np.unique(which, return_index=True)
                at, new = at[file_of[new] < 0], new[file_of[new] < 0]
                file_of[new], line_of[new] = number, lines[at]
                left -= len(new)
                if not left:
                    break
            if not left:
                break
        which = pc.fill_null(pc.index_in(ids, value_set=wanted), -1).to_numpy()
        known = np.flatnonzero(which >= 0)
        known = known[file_of[which[known]] >= 0]
        found.which[rows[known]] = file_of[which[known]]
        found.lines[rows[known]] = line_of[which[known]]

    def _files(self, of: Stretch, spec: StreamSpec, side: int) -> list[Recount]:
        """Return the files of a stretch of batches, for reading them again. Return none if some
        files are no longer known, because a tuple may have come from those."""
        two = len(self._job.streams) > 1
        try:
            files = [
                file
                for commit in batches_of(self._engine, self._app, of)
                for file in recounts(self._engine, commit, side if two else None, spec)
            ]
        except CannotRecount:
            return []
        return files if all(file.located is not None for file in files) else []

    def _are_few(self, files: Sequence[Recount]) -> bool:
        now = (DataFile(file.label).now() for file in files)
        size = sum(file.size for file in now if file is not None)
        return self._most_bytes is None or size <= self._most_bytes

    def _lines(
        self, file: Recount, spec: StreamSpec, side: int, wanted: _Wanted
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the lines of a file's tuples whose ids are wanted, and the positions of these ids
        in ``wanted``, int64[k] both. Nothing is found in a file that was written after it was
        loaded, or that cannot be read."""
        assert file.located is not None
        stored, ids = stored_schema(self._schemas[side]), list(spec.id)
        kept = pa.schema(
            [*(stored.field(name) for name in ids), (LINE, pa.int64()), ("quality_id", pa.string())]
        )
        try:
            if self._is_changed(file.label):
                return
            for lines, rows in file.located(tuple(ids)):
                if not {*ids} <= {*rows.schema.names}:
                    return
                numbered = rows.select(ids).append_column(LINE, pa.array(lines, pa.int64()))
                these = with_stream_id(0, numbered, len(ids), kept).combine_chunks()
                there, which = wanted.among(these["quality_id"])
                if len(there):
                    yield these[LINE].to_numpy()[there], which
        except (CannotRecount, OSError):
            return

    def _is_changed(self, path: str) -> bool:
        f = load_files.c
        noted = select(f.path, f.size, f.modified).where(f.app == self._app, f.path == path)
        with self._engine.connect() as connection:
            files = [DataFile(*row) for row in connection.execute(noted)]
        return any(file.known and file.now() != file for file in files)
