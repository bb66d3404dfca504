"""Logs that are lines of text, read as they grow: blocks of bytes, gzip, encodings, long lines."""

from __future__ import annotations

import codecs
import gzip
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, ClassVar

from advsweep.errors import ConfigError
from advsweep.local_files import open_regular
from advsweep.logs.base import Reader, unreadable
from advsweep.logs.names import LoggedStep
from advsweep.text_files import GZIP, encoding_of, other_form, unpacked

# The longest line of a text log, in bytes.
MAX_LINE = 16 * 2**20

_BLOCK = 2**20

# Bytes between two calls of `on_read`.
_LARGE = 2**25

# Bytes of a compressed log, unpacked.
_MOST_UNPACKED = 16 * 2**30


@dataclass(kw_only=True)
class LineLog(Reader):
    """A log of lines of text.

    The text is UTF-8 or UTF-16, and may be compressed by gzip. A file that has become shorter was
    written anew and is read again from its start.

    Attributes:
        is_strict: whether bytes that are no UTF-8 are refused; else they become U+FFFD.
        line: the number of the line that was read last.
    """

    is_strict: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.on_read: Callable[[str, int, int], None] | None = None
        self._restart()

    def _restart(self) -> None:
        """Forget what was read of a file that is written anew."""
        self.line = 0
        self._offset = 0
        self._rest = b""
        self._skipping = False  # Within a line that is too long.
        self._decoder: codecs.IncrementalDecoder | None = None

    @abstractmethod
    def _parse(self, line: str, *, ended: bool) -> LoggedStep | None:
        """Return the step of a line; None for a line without one, which it counts.

        Args:
            ended: False for the last line of a log that may have been cut within it.
        """

    def poll(self) -> Iterator[LoggedStep]:
        for line, ended in self.lines():
            if (step := self._parse(line, ended=ended)) is not None:
                yield step

    def lines(self) -> Iterator[tuple[str, bool]]:
        """Yield each new line with whether its end was read."""
        # Blocks and not lines are read, since a line without an end could fill the memory.
        for block in self._blocks():
            *lines, rest = (self._rest + block).split(b"\n")
            if lines and self._skipping:
                lines, self._skipping = lines[1:], False
            for line in lines:
                self.line += 1
                if text := self._text(line):
                    yield text, True
            self._rest = b"" if self._skipping else rest
            if len(self._rest) > MAX_LINE:
                # The memory that a line takes is bounded, not only its text.
                self.left_out[f"lines of more than {MAX_LINE // 2**20} MiB"] += 1
                self._rest, self._skipping = b"", True
        if self._finished and self._rest:
            rest, self._rest = self._rest, b""
            self.line += 1
            if text := self._text(rest):
                yield text, False

    def _text(self, line: bytes) -> str:
        """Return a line as text without its end; empty for one of nothing but spaces."""
        try:
            text = line.decode("utf-8", "strict" if self.is_strict else "replace")
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{self.path}: line {self.line}: expected text in UTF-8 or UTF-16, got the byte "
                f"{line[error.start]:#04x}; save it as UTF-8, as with `iconv -f WINDOWS-1252 "
                "-t UTF-8 FILE`"
            ) from None
        text = text.rstrip("\r").lstrip("\ufeff")
        return text if text.strip() else ""

    def _blocks(self) -> Iterator[bytes]:
        """Yield what was added to the file, in UTF-8."""
        try:
            file = open_regular(self.path.resolve())
        except FileNotFoundError:
            return
        except OSError as error:
            raise unreadable(self.path, error) from error
        with file:
            # Opened anew at each poll: a trainer that restarts replaces its file.
            if (size := file.seek(0, 2)) < self._offset:
                self._restart()
            file.seek(0)
            if file.peek(2)[:2] == GZIP:
                if self._offset < size:
                    yield from self._unpacked_blocks(file)
                    self._offset = size
                return
            file.seek(self._offset)
            while block := file.read(_BLOCK):
                is_first = self._offset == 0
                self._offset += len(block)
                if self.on_read is not None and self._offset % _LARGE < len(block):
                    self.on_read(self.path.name, self._offset, size)
                yield self._recoded(block, is_first=is_first)

    def _unpacked_blocks(self, file: IO[bytes]) -> Iterator[bytes]:
        """Yield what a gzip file holds, as far as it is whole."""
        stream, size = unpacked(file), 0
        try:
            while block := stream.read(_BLOCK):
                yield self._recoded(block, is_first=size == 0)
                size += len(block)
                if size > _MOST_UNPACKED:
                    raise ConfigError(
                        f"{self.path}: expected at most {_MOST_UNPACKED >> 30} GiB, unpacked, got "
                        "more"
                    )
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self.left_out["gzip files that are cut or damaged"] += 1

    def _recoded(self, block: bytes, *, is_first: bool) -> bytes:
        """Return a block of the file in UTF-8."""
        if is_first:
            if form := other_form(block):
                raise ConfigError(f"{self.path}: expected lines of text, got {form}")
            encoding = encoding_of(block)
            is_utf_8 = encoding == "utf-8-sig"
            self._decoder = None if is_utf_8 else codecs.getincrementaldecoder(encoding)("replace")
        if self._decoder is None:
            return block
        return self._decoder.decode(block).encode("utf-8", "replace")
