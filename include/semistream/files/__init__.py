"""Data files as streams of Arrow batches, in and out, and the join of files; bounded memory, malformed rows set apart."""

from semistream.files.join import JoinFiles, Summary, join_files, publish_file
from semistream.files.sink import OutputFile
from semistream.files.source import Chunk, FileSource, Rejected, open_source

__all__ = ["Chunk", "FileSource", "JoinFiles", "OutputFile", "Rejected", "Summary", "join_files", "open_source", "publish_file"]
