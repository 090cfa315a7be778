"""The query of Spark that brings an app's micro-batches, from its session to its stop."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from semistream.streaming.micro_batch import POLL, Stopped, Stream, split_frame, union_frame
from semistream.streaming.settings import AVAILABLE_NOW
from semistream.streaming.sources.base import Source
from semistream.streaming.sources.file_reader import is_local
from semistream.streaming.sources.log import SourceLog
from semistream.streaming.sources.registry import read_streams
from semistream.streaming.task import warm_up

log = logging.getLogger(__name__)
STOPPING = "asked to stop: finishing what waits"
WORKERS_READY = 30  # s
INTERRUPTED = 10_000  # ms after which a query that is to stop has been interrupted
SESSION = {
    "spark.sql.session.timeZone": "UTC",
    # partitions keep their numbers, even if they are empty
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "131072",
    "spark.sql.execution.arrow.maxBytesPerBatch": "8m",
    # otherwise Spark would not use the Python workers that were started ahead
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # Spark looks at each file of a micro-batch again. For more than 32 it starts tasks, by default
    # one for each file, which takes 5 ms.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "64",
    # no stack trace for every column expression
    "spark.sql.dataFrameQueryContext.enabled": "false",
    # Its rename is as atomic as the default's, which starts two processes for each.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
}
LISTED_BY_DRIVER = "spark.sql.sources.parallelPartitionDiscovery.threshold"  # most files


class Query:
    """The query of an app, which Spark runs. Callers must call ``open`` before ``run``."""

    def __init__(self, context: SparkContext, app: str, checkpoint: Path, trigger: str):
        """Prepare the query. trigger: the setting's value."""
        self.context, self.name = context, f"semistream {app}"
        self.checkpoint, self.trigger = checkpoint / "query", trigger
        self._failure: BaseException | None = None
        self._interrupt: BaseException | None = None  # of the query, by a stop

    @cached_property
    def spark(self) -> SparkSession:
        """A session of the query's own. Spark takes a second, and 5,000 classes, to open one, which
        is done when it is first needed."""
        spark = SparkSession.builder.getOrCreate().newSession()
        for name, value in SESSION.items():
            spark.conf.set(name, value)
        return spark

    def open(self, sources: Sequence[Source], max_files: int, max_rows: int) -> tuple[Stream, ...]:
        """Return the streams that the query reads, one for each source. Raises ConfigError for a
        source that cannot be read."""
        self._frames = self._read(sources, max_files, max_rows)
        self._streams = tuple(
            Stream(
                source,
                source.open(df),
                () if df is None else tuple(df.columns),
                SourceLog(self.checkpoint, source.spec.format, side),
            )
            for side, (source, df) in enumerate(zip(sources, self._frames, strict=True))
        )
        return self._streams

    def _read(self, sources: Sequence[Source], max_files: int, max_rows: int) -> list[DataFrame]:
        """Return a DataFrame for each source, with what Spark brings of it; None in its place if
        Spark brings nothing."""
        if all(is_local(source.spec) for source in sources):  # listing a file takes microseconds
            self.spark.conf.set(LISTED_BY_DRIVER, str(2**31 - 1))
        return read_streams(self.spark, sources, max_files, max_rows)

    def run(
        self,
        process: Callable[[int, Sequence[DataFrame]], None],
        between: Callable[[], bool],
        stopping: Callable[[], bool],
    ) -> None:
        """Run the query until the source is empty, or until it is stopped.

        process: a function that is called with the number of each micro-batch, and a DataFrame for
        each stream; it is called again with a micro-batch that the query's logs do not have as
        finished, and raises Stopped for a micro-batch after the stop.
        between: a function that is called regularly; it returns whether the query must stop.
        stopping: a function that returns whether a stop was requested.
        """

        def on_batch(df: DataFrame, batch: int) -> None:
            try:
                for stream in self._streams:
                    stream.log.flush(batch)
                one = len(self._streams) == 1
                process(batch, [df] if one else split_frame(df, self._streams))
            except Stopped:
                self._leave_batch(df)
            except BaseException as e:
                self._failure = e
                raise

        _remove_unbegun(self.checkpoint)
        frame = self._frames[0] if len(self._frames) == 1 else union_frame(self._frames)
        writer = frame.writeStream.foreachBatch(on_batch).queryName(self.name)
        trigger = (
            {"availableNow": True}
            if self.trigger == AVAILABLE_NOW
            else {"processingTime": self.trigger}
        )
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(**trigger).start()
        py4j = logging.getLogger("py4j.clientserver")
        py4j.addFilter(self._is_failure)
        logged = False
        try:
            while not query.awaitTermination(POLL):
                if between():
                    if not logged:
                        log.info(STOPPING)
                    logged = True
                    query.stop()
        except PySparkException:
            if self._failure is not None:
                raise self._failure from None
            if not stopping():  # a signal to all processes ends Spark's helper processes, too
                raise
            if not logged:
                log.info(STOPPING)
        finally:
            query.stop()
            py4j.removeFilter(self._is_failure)

    def _leave_batch(self, df: DataFrame) -> None:
        """Block a micro-batch that starts during a stop until Spark interrupts the query's thread.
        If the function returned, Spark would report the batch as finished; if it raised, Spark
        would report that the query failed."""
        jvm = df.sparkSession._jvm
        assert jvm is not None
        try:
            jvm.java.lang.Thread.sleep(INTERRUPTED)
        except Py4JJavaError as e:
            self._interrupt = e
            raise
        raise Stopped

    def _is_failure(self, record: logging.LogRecord) -> bool:
        """Return whether a log message of py4j is an error other than the interrupt of a stop."""
        return not record.exc_info or record.exc_info[1] is not self._interrupt


@contextmanager
def starting_workers(context: SparkContext, count: int) -> Iterator[None]:
    """Start Python workers, and let them import the modules that tasks need, while the driver
    prepares the first micro-batch inside the block. At its end the block waits for the workers even
    if it fails, because Spark would report workers that are not ready as crashed."""

    def start() -> None:
        with suppress(Exception):  # the tasks will report it, or the session has ended
            context.range(count, numSlices=count).foreachPartition(warm_up)

    starting = threading.Thread(target=start, daemon=True)
    starting.start()
    try:
        yield
    finally:
        starting.join(WORKERS_READY)


def _remove_unbegun(query: Path) -> None:
    """Delete a query's checkpoint if it has no batch. After a crash before the first batch, Spark
    would refuse to start from it."""
    if query.exists() and not any(path.name.isdigit() for path in (query / "offsets").glob("*")):
        shutil.rmtree(query)
