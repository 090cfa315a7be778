"""Text files, perhaps compressed, as blocks of UTF-8."""

from __future__ import annotations

import codecs
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from lzma import LZMAError
from lzma import open as lzma_open
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.data_files import PACKED_ENDINGS
from semistream.errors import ConfigError, SemistreamError
from semistream.files.source import FileSource

BLOCK = 4 << 20  # bytes of text parsed at a time
PACKED = {
    b"\x1f\x8b": ("gzip", ".gz"),
    b"BZh": ("bzip2", ".bz2"),
    b"\x28\xb5\x2f\xfd": ("Zstandard", ".zst"),
    b"\xfd7zXZ\0": ("xz", ".xz"),
    b"\x04\x22\x4d\x18": ("LZ4", ".lz4"),
}  # by the first bytes
CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
# after "BZh" and a digit: the mark of a block, and that of an empty file
BZIP2 = (b"1AY&SY", b"\x17rE8P\x90")
BOM = b"\xef\xbb\xbf"


class TextSource(FileSource):
    """A source of text files, in any encoding that Python knows."""

    def _blocks(self, path: Path, done: int) -> Generator[tuple[bytes, bool], int, None]:
        """Yield (block of bytes in UTF-8, whether it is the last one). The consumer sends back how
        many bytes it has parsed; the next block begins with the remaining bytes.

        done: bytes of the files before this one. Raises SemistreamError for a file that cannot be
        read, ConfigError for a file in another encoding.
        """
        held, encoding = b"", self.reading.encoding
        decoder = codecs.getincrementaldecoder(encoding)() if encoding else None
        try:
            with open_text(path) as (raw, stream):
                start = True
                while block := stream.read(BLOCK):
                    if start and decoder is None:
                        check_start(self.side, path, block)
                    start = False
                    self.bytes_done = done + raw.tell()
                    data = held + (decoder.decode(block).encode() if decoder else block)
                    consumed = yield data, False
                    held = data[consumed:]
                yield held + (decoder.decode(b"", True).encode() if decoder else b""), True
        except (OSError, EOFError, LZMAError) as e:
            raise SemistreamError(f"{path} cannot be read: {e}") from None
        except UnicodeDecodeError as e:
            raise ConfigError(self.side, f"must be text in {encoding}", str(path), str(e)) from None


@contextmanager
def open_text(path: Path) -> Iterator[tuple[Any, Any]]:
    """Open a text file that may be compressed. Return (the file as stored, the decompressed
    stream)."""
    if path.suffix.lower() == ".xz":
        with open(path, "rb") as raw, lzma_open(raw) as stream:
            yield raw, stream
        return
    codec = CODECS.get(path.suffix.lower())
    with pa.OSFile(str(path)) as raw:
        if codec is None:
            yield raw, raw
            return
        with pa.CompressedInputStream(raw, codec) as stream:
            yield raw, stream


def plain_suffix(path: Path) -> str:
    """Return the ending of a file's name in lower case, without the ending of its compression."""
    packed = path.suffix.lower() in PACKED_ENDINGS[1:]
    return (Path(path.stem).suffix if packed else path.suffix).lower()


def check_start(side: str, path: Path, block: bytes) -> None:
    """Check the first bytes of a file. Raises ConfigError if they show that the file is compressed,
    or is not text in UTF-8."""
    for magic, (what, ending) in PACKED.items():
        if block.startswith(magic) and (magic != b"BZh" or block[4:10] in BZIP2):
            raise ConfigError(
                side,
                f"must be text, and this is compressed with {what}",
                str(path),
                f"Let its name end in {ending}.",
            )
    if block[:2] in (b"\xff\xfe", b"\xfe\xff") or (
        b"\0" in block[:4] and b"\0" * 4 not in block[:16]
    ):
        raise ConfigError(
            side, "must be text in UTF-8, and this is UTF-16", str(path), other_encoding("UTF-16")
        )
    # a column may be called PAR1, but text has no control characters after that
    if block.startswith(b"PAR1") and any(b < 9 or 13 < b < 32 for b in block[4:12]):
        raise ConfigError(
            side, "must be text, and this is Parquet", str(path), "Name it as what it is."
        )
    if block.startswith(b"PK\3\4"):
        raise ConfigError(
            side,
            "must be text, and this is a ZIP archive or a spreadsheet",
            str(path),
            "Export it as CSV.",
        )


def other_encoding(name: str) -> str:
    """Return what a user can do about a file in another encoding than UTF-8."""
    return (
        f"Name its encoding, for instance {name}: --stream-options encoding={name}, "
        "--master-options likewise, or encoding under the source's options in a job. Or convert "
        f"it: iconv -f {name} -t UTF-8 IN > OUT."
    )


def decode(text: bytes) -> str:
    return text.decode(errors="backslashreplace")
