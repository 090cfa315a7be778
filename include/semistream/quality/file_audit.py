"""The present files of the source, compared with the files in the ledger, as the proof has them."""

from __future__ import annotations

import os

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column

from semistream.data_files import escaped, fixed_part, is_remote
from semistream.job import FILE_FORMATS
from semistream.quality.scope import Scope, Stream
from semistream.quality.staging import Staging
from semistream.warehouse.source_files import compare
from semistream.warehouse.types import LongString


def stage_file_audit(staging: Staging, scope: Scope, of: Stream) -> sa.Table | None:
    """Stage the wrong files of the source: batch, file, finding. Return None for a source without
    files. Return None, with a note, for a source that cannot be listed from this machine.

    An entry that cannot be read is a finding, because it may be, or contain, a file that is in no
    batch. If the whole source is gone, there are no such findings; the report gets a note instead.
    """
    stream = of.spec
    if stream.format in FILE_FORMATS and stream.path and is_remote(stream.path):
        staging.reserve(
            f"Nobody looked for files of the source {stream.path} that no batch "
            "has, or that were written since: it is not on a file system here.",
            passing=True,
        )
    with staging.engine.connect() as connection:
        found = compare(connection, scope.app, stream)
    if found is None:
        return None
    if not os.path.lexists(fixed_part(os.path.abspath(stream.path or ""))):
        staging.reserve(
            f"The source {stream.path} is gone. Nobody can tell whether it had "
            "files that no batch has.",
            passing=True,
        )
    return staging.table(
        f"files_{of.name}",
        Column("batch", BigInteger),
        Column("file", LongString()),
        Column("finding", LongString()),
        rows=((batch, escaped(file), what) for batch, file, what in found.findings),
    )
