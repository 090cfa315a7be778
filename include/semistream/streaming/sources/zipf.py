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
from semistream.workloads import ArrivalTimes, ZipfKeys

BLOCK = 65_536  # tuples made at a time


class ZipfDataSource(DataSource):
    """``zipf``: tuples (id BIGINT, key BIGINT, value DOUBLE), with ids 1, 2, 3 … and keys drawn by
    ``workloads.ZipfKeys``.

    Options: rows (total; 0: without end), keys (R_t, default 1000000), exponent (default 1), seed,
    scattered (true: frequent keys are spread over the key range), rowsPerBatch, rowsPerSecond (0:
    as fast as they are read), partitions. Arrivals can be bursty and self-similar
    (``workloads.ArrivalTimes``): burstiness (default 0.5: steady) and burstPeriod (seconds, default
    600).
    """

    @classmethod
    def name(cls) -> str:
        return "zipf"

    def schema(self) -> str:
        return "id BIGINT, key BIGINT, value DOUBLE"

    def streamReader(self, schema: StructType) -> ZipfReader:
        return ZipfReader(dict(self.options))


class Zipf(NumberedSource):
    data_source = ZipfDataSource


class ZipfReader(RangeReader):
    def __init__(self, options: dict[str, str]):
        super().__init__(options)
        self.rows = whole(options, "rows", 0)
        self.rate = float(option(options, "rowsPerSecond", "0"))
        self.keys = ZipfKeys(
            whole(options, "keys", 1_000_000, least=1),
            float(option(options, "exponent", "1")),
            whole(options, "seed", 0),
            option(options, "scattered", "false").lower() == "true",
        )
        if not self.rows and not self.rate and not self.most:
            raise ConfigError(
                "rows",
                "must be given for a Zipf stream without rowsPerSecond or rowsPerBatch",
                0,
                "Bound the stream in all, per second, or per micro-batch.",
            )
        self.arrivals = (
            ArrivalTimes(
                self.rate,
                float(option(options, "burstiness", "0.5")),
                float(option(options, "burstPeriod", "600")),
                whole(options, "seed", 0),
            )
            if self.rate
            else None
        )
        self._began: float | None = None  # the time at which tuple 0 arrived

    def newest(self, start: int) -> int:
        newest = self.rows or start + (self.most or 2**40)
        if self.arrivals:
            now = time.monotonic()
            if self._began is None:
                self._began = now - (float(self.arrivals.of(start - 1, 1)[0]) if start else 0.0)
            newest = min(newest, self.arrivals.until(now - self._began))
        return newest

    def prepareForTriggerAvailableNow(self) -> None:
        if not self.rows:
            raise ConfigError(
                "rows",
                "must be given for a Zipf stream with trigger availableNow",
                0,
                "Say how many.",
            )
        self.target = self.rows

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        for start in range(partition.start, partition.end, BLOCK):
            yield zipf_tuples(self.keys, start, min(start + BLOCK, partition.end))


def zipf_tuples(keys: ZipfKeys, start: int, end: int) -> pa.RecordBatch:
    """Return the tuples with ids in (start, end]."""
    ids = np.arange(start + 1, end + 1, dtype=np.int64)
    value = ids * 0.6180339887498949 % 1.0
    columns = [pa.array(ids), pa.array(keys.draw(start, end - start)), pa.array(value)]
    return pa.record_batch(columns, names=["id", "key", "value"])
