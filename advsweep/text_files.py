"""Text files of strangers: what a file is by its first bytes, and its text in Unicode.

    text = read_text(Path("table.csv"), most_bytes=2**24)

Text is UTF-8 or UTF-16, with a byte order mark or without. A file that is compressed by gzip is
unpacked. Other encodings are refused: a byte of Latin-1 is a letter in most encodings, and a wrong
one in all but its own.
"""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from pathlib import Path
from typing import IO

from advsweep.errors import ConfigError, reason_of
from advsweep.local_files import open_regular
from advsweep.printable import printable_line

GZIP = b"\x1f\x8b"

# What a file is that begins with these bytes, and what makes a text of it.
_OTHER_FORMS = {
    b"PK\x03\x04": "a zip archive or an Excel workbook: unpack it, or save the table as CSV",
    b"\xd0\xcf\x11\xe0": "an Excel workbook: save the table as CSV",
    b"PAR1": "a parquet table: save it as CSV",
    b"BZh": "bzip2: unpack it first",
    b"\xfd7zXZ": "xz: unpack it first",
    b"\x28\xb5\x2f\xfd": "zstd: unpack it first",
    b"7z\xbc\xaf": "a 7z archive: unpack it first",
    b"SQLite format 3\0": "an SQLite database",
    b"\x93NUMPY": "an array of numpy: save it as CSV",
    b"\x89HDF": "an HDF5 file: save the table as CSV",
    b"\x89PNG": "an image",
    b"%PDF": "a PDF document",
    b"\x80\x02": "a pickle, which is not read, since a pickle is a program: save the table as CSV",
    b"\x80\x03": "a pickle, which is not read, since a pickle is a program: save the table as CSV",
    b"\x80\x04": "a pickle, which is not read, since a pickle is a program: save the table as CSV",
    b"\x80\x05": "a pickle, which is not read, since a pickle is a program: save the table as CSV",
    b"<!DOCTYPE": "a web page: save the table itself",
    b"<!doctype": "a web page: save the table itself",
    b"<html": "a web page: save the table itself",
}

_LATIN = "as with `iconv -f WINDOWS-1252 -t UTF-8 FILE`"


def other_form(start: bytes) -> str:
    """Return what a file is that is no text, and what to do, by its first bytes; empty for text."""
    for mark, form in _OTHER_FORMS.items():
        if start.startswith(mark):
            return form
    return ""


def encoding_of(start: bytes) -> str:
    """Return the encoding of a text by its first bytes, in Python's names.

    >>> encoding_of("step".encode("utf-16")), encoding_of("step".encode("utf-16-be"))
    ('utf-16', 'utf-16-be')
    """
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    # Headers and keys are mostly ASCII, of which every other byte is 0 in UTF-16.
    if len(start) > 1 and start[0] and not start[1]:
        return "utf-16-le"
    if len(start) > 1 and start[1] and not start[0]:
        return "utf-16-be"
    return "utf-8-sig"


def decode(data: bytes, path: Path | str) -> str:
    """Return the text of a file.

    Raises:
        ConfigError: it is no text, or in another encoding than UTF-8 and UTF-16.
    """
    name = printable_line(str(path))
    form = other_form(data)
    if form:
        raise ConfigError(f"{name}: expected text, got {form}")
    encoding = encoding_of(data)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{name}: line {line}: expected text in UTF-8 or UTF-16, got the byte "
            f"{data[error.start]:#04x}; save it as UTF-8, {_LATIN}"
        ) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ConfigError(f"{name}: line {line}: expected text, got a zero byte")
    return text


def read_text(path: Path, *, most_bytes: int) -> str:
    """Read a text file, unpacking gzip.

    Args:
        most_bytes: the largest size, unpacked.

    Raises:
        ConfigError: it cannot be read, is larger, is no text, or is in another encoding.
    """
    name = printable_line(str(path))
    try:
        with open_regular(path.resolve()) as file:
            is_packed = file.peek(2)[:2] == GZIP
            data = unpacked(file).read(most_bytes + 1) if is_packed else file.read(most_bytes + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise ConfigError(f"{name}: expected a whole gzip file, got one that is cut") from None
    except OSError as error:
        why = reason_of(error)
        raise ConfigError(f"{name}: expected a text file, got: {why}") from None
    if len(data) > most_bytes:
        raise ConfigError(f"{name}: expected at most {most_bytes:,} bytes of text, got more")
    return decode(data, path)


def unpacked(file: IO[bytes]) -> io.BufferedIOBase:
    """Return what a gzip file holds, read as far as it is asked for."""
    return gzip.GzipFile(fileobj=file)
