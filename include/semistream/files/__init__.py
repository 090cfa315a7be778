"""Data files as streams of Arrow batches, in and out, and the join of files; bounded memory,
malformed rows set apart."""

from semistream.files.join import JoinFiles, join_files, publish_file
from semistream.files.join_streams import JoinStreams, join_streams
from semistream.files.opening import open_source

__all__ = ["JoinFiles", "JoinStreams", "join_files", "join_streams", "open_source", "publish_file"]
