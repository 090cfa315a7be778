"""H_S with Q: the stream tuples that wait for their part of R, in three layouts.

- ``by_chunk``: a hash multimap; tuples leave chunk by chunk in the order of arrival (the scan-based
  joins).
- ``by_key``: a hash multimap; all tuples of a key leave together (the index-based joins).
- ``by_partition``: tuples grouped by the disk partition that has their key, which leave together
  (ELEVATORJOIN).
"""

from semistream.joins.stream_table.interface import NO_LIMIT, Ages, StreamTable

__all__ = ["NO_LIMIT", "Ages", "StreamTable"]
