"""Data files as streams of Arrow batches, in and out, and the join of files; bounded memory,
malformed rows set apart."""

from semistream.files.join import JoinFiles, join_files, publish_file
from semistream.files.source import open_source

__all__ = ["JoinFiles", "join_files", "open_source", "publish_file"]
