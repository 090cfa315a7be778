"""The query of an app whose driver lists the files of its sources itself.

A query of Spark plans each micro-batch anew: some 0.1 s pass from its look at the directory to the
beginning of the batch, and files that come meanwhile wait for the next one. Tasks read local files
themselves, so that such a plan has nothing to do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import cast

from pyspark.sql import DataFrame

from semistream.data_files import DataFile
from semistream.durations import seconds_of
from semistream.streaming.micro_batch import POLL, Stopped, Stream
from semistream.streaming.position import begun_by_query, done_by_query
from semistream.streaming.query import STOPPING, Query
from semistream.streaming.settings import AVAILABLE_NOW
from semistream.streaming.sources.base import Source
from semistream.streaming.sources.file_streams import FileStream
from semistream.streaming.sources.log import QueryLog

log = logging.getLogger(__name__)
LEAST = 0.01  # least s between two looks at the directories


class FileQuery(Query):
    """A query of files that the driver lists.

    At each trigger it looks for new files, and notes them in the logs of the query. From then on
    they are the next micro-batch, which is given again until it is finished. The logs are those
    that Spark would write.
    """

    def open(self, sources: Sequence[Source], max_files: int, max_rows: int) -> tuple[Stream, ...]:
        super().open(sources, max_files, max_rows)
        self._files = [NewFiles(stream, max_files) for stream in self._streams]
        return self._streams

    def _read(self, sources: Sequence[Source], max_files: int, max_rows: int) -> list[DataFrame]:
        return [cast(DataFrame, None)] * len(sources)  # whose own reader reads them

    def run(
        self,
        process: Callable[[int, Sequence[DataFrame]], None],
        between: Callable[[], bool],
        stopping: Callable[[], bool],
    ) -> None:
        once = self.trigger == AVAILABLE_NOW
        interval = 0.0 if once else seconds_of(self.trigger) or 0.0
        notes, due = QueryLog(self.checkpoint), 0.0
        for files in self._files:
            files.take_up(once)
        batch = begun_by_query(self.checkpoint.parent)
        try:
            if batch > done_by_query(self.checkpoint.parent):
                self._give(process, notes, batch)
            ends = [stream.log.end(batch) for stream in self._streams]
            while not between():
                _ = self.context.defaultParallelism  # fails if Spark has ended
                if (rest := due - time.monotonic()) > POLL:
                    time.sleep(POLL)
                    continue
                time.sleep(max(rest, 0.0))
                # the next trigger is at a whole multiple of the interval, as in a query of Spark
                wait = interval - time.time() % interval if interval else LEAST
                due = time.monotonic() + wait
                before, ends = ends, [files.note() for files in self._files]
                if ends != before:
                    batch += 1
                    notes.begin(batch, ends)
                    self._give(process, notes, batch)
                elif once:
                    return
        except Stopped:
            pass
        log.info(STOPPING)

    def _give(
        self, process: Callable[[int, Sequence[DataFrame]], None], notes: QueryLog, batch: int
    ) -> None:
        self.context.setJobDescription(f"{self.name}, batch {batch}")
        process(batch, self._frames)
        notes.end(batch)


class NewFiles:
    """The files of a stream that no micro-batch has yet."""

    def __init__(self, stream: Stream, max_files: int):
        """Begin with no file. max_files: the limit of a micro-batch; 0 for no limit. Raises
        ConfigError."""
        assert isinstance(stream.source, FileStream)
        self._source, self._log = stream.source, stream.log
        self._most = stream.source.most_files(max_files)

    def take_up(self, once: bool) -> None:
        """Continue from the source's log. once: whether only files that are there now are taken."""
        self._end = self._log.newest
        self._known = set(self._log.entries(-1, self._end))
        self._rest = self._new() if once else None

    def note(self) -> int:
        """Note the new files, or as many as a micro-batch may have, in the source's log. Return the
        number of the log's last entry."""
        new = self._new() if self._rest is None else self._rest
        taken = new[: self._most] if self._most else new
        if taken:
            self._log.add(self._end + 1, taken)
            self._end += 1
            self._known.update(file.path for file in taken)
        if self._rest is not None:
            self._rest = new[len(taken) :]
        return self._end

    def _new(self) -> list[DataFile]:
        """Return the new files, the oldest first."""
        new = [file for file in self._source.present() if file.path not in self._known]
        return sorted(new, key=lambda file: (file.modified, file.path))
