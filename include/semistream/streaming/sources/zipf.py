"""The seeded Zipf generator as a source."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import StructType

from semistream.errors import ConfigError
from semistream.streaming.sources.ranges import NumberedSource, Range, RangeReader, option, whole
from semistream.workloads import ZipfKeys

BLOCK = 65_536  # tuples made at a time


class ZipfDataSource(DataSource):
    """``zipf``: tuples (id BIGINT, key BIGINT, value DOUBLE), ids 1, 2, 3 …, keys as
    ``workloads.ZipfKeys`` draws them.

    Options: rows (total; 0: without end), keys (R_t, default 1000000), exponent (default 1), seed,
    scattered (true: frequent keys lie apart), rowsPerBatch, rowsPerSecond (0: as fast as they are
    read), partitions.
    """

    @classmethod
    def name(cls) -> str:
        return "zipf"

    def schema(self) -> str:
        return "id BIGINT, key BIGINT, value DOUBLE"

    def streamReader(self, schema: StructType) -> ZipfReader:
        return ZipfReader(dict(self.options))


class Zipf(NumberedSource):
    formats = ("zipf",)
    data_source = ZipfDataSource


class ZipfReader(RangeReader):
    def __init__(self, options: dict[str, str]):
        super().__init__(options)
        self.rows = whole(options, "rows", 0)
        self.rate = float(option(options, "rowsPerSecond", "0"))
        self.keys = ZipfKeys(whole(options, "keys", 1_000_000, least=1),
                             float(option(options, "exponent", "1")), whole(options, "seed", 0),
                             option(options, "scattered", "false").lower() == "true")
        if not self.rows and not self.rate and not self.most:
            raise ConfigError("rows", "must be given for a Zipf stream without rowsPerSecond or "
                                      "rowsPerBatch", 0,
                              "Bound the stream in all, per second, or per micro-batch.")
        self._clock: tuple[float, int] | None = None

    def newest(self, start: int) -> int:
        newest = self.rows or start + (self.most or 2**40)
        if self.rate:
            self._clock = self._clock or (time.monotonic(), start)
            newest = min(newest,
                         self._clock[1] + int(self.rate * (time.monotonic() - self._clock[0])))
        return newest

    def prepareForTriggerAvailableNow(self) -> None:
        if not self.rows:
            raise ConfigError("rows", "must be given for a Zipf stream with trigger availableNow",
                              0, "Say how many.")
        self.target = self.rows

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        for start in range(partition.start, partition.end, BLOCK):
            yield zipf_tuples(self.keys, start, min(start + BLOCK, partition.end))


def zipf_tuples(keys: ZipfKeys, start: int, end: int) -> pa.RecordBatch:
    """The tuples with ids in (start, end]."""
    ids = np.arange(start + 1, end + 1, dtype=np.int64)
    value = ids * 0.6180339887498949 % 1.0
    columns = [pa.array(ids), pa.array(keys.draw(start, end - start)), pa.array(value)]
    return pa.record_batch(columns, names=["id", "key", "value"])
