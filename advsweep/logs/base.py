"""What every reader of a trainer's log returns, and how it is polled.

A reader is opened on a path, before or after the trainer writes to it. `read_new` returns the
steps that were added since the last call, so that the same reader serves a log that is complete
and one that grows. What cannot be used is counted, not raised: one damaged line must not hide the
rest of a log.

    log = open_metric_log("jsonl", Path("metrics.jsonl"))
    steps = log.read_new()      # again and again while the trainer writes
    log.finish()                # the trainer has ended
    steps += log.read_new()     # what a last line without its end held
    log.left_out                # Counter({"incomplete lines": 1})
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from advsweep.errors import ConfigError
from advsweep.local_files import open_regular
from advsweep.printable import printable_line

LAST_STEP = 2**31 - 1
"""The largest step that a store holds."""

MAX_NAME = 200
"""The longest name of a metric that a store accepts, in characters."""

MAX_NAMES = 10_000
"""Names of metrics that are read from one log."""

MAX_LINE = 16 * 2**20
"""The longest line of a text log, in bytes."""

STEP_KEYS = (
    *("step", "global_step", "_step", "training/global_step", "train/global_step"),
    *("trainer/global_step", "iteration", "iter", "rollout_step", "policy_step", "update"),
)
"""Names of the step in logs, in the order in which they are looked for."""

NOT_WHOLE = f"lines whose step is no whole number from 0 to {LAST_STEP:,}"

_BLOCK = 2**20
_NAMED = 20
"""Columns of a log that counts of left out values name."""

_OTHER_FORMS = {
    b"\x1f\x8b": "gzip: unpack it first",
    b"BZh": "bzip2: unpack it first",
    b"\xfd7zXZ": "xz: unpack it first",
    b"\x28\xb5\x2f\xfd": "zstd: unpack it first",
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"PAR1": "a parquet table: save it as CSV",
    b"\xff\xfe": "UTF-16: save it as UTF-8",
    b"\xfe\xff": "UTF-16: save it as UTF-8",
}
"""What a file is that begins with these bytes, and what makes it text."""


class LoggedStep(NamedTuple):
    """What a log holds of one step; a step may be logged in several parts.

    Attributes:
        values: finite numbers by the names of the log, without control characters.
    """

    step: int
    values: dict[str, float]


class ValueReader:
    """Turns the values of a log into numbers, and counts what is none.

    Attributes:
        left_out: why lines and values were not used, with how often.
    """

    def __init__(self, left_out: Counter[str] | None = None) -> None:
        self.left_out: Counter[str] = Counter() if left_out is None else left_out
        self._names: dict[str, str | None] = {}
        self._dropped: set[str] = set()

    def _numbers(self, items: Iterable[tuple[Any, Any]]) -> dict[str, float]:
        """Return the finite numbers among names and values; count the others by name."""
        numbers: dict[str, float] = {}
        for name, value in items:
            number = value if type(value) is float else self._number(value)
            if number is None:
                self._drop(name, "that are not numbers")
            elif not math.isfinite(number):
                self._drop(name, "that are NaN or infinite")
            elif (known := self._name(name)) is not None:
                numbers[known] = number
        return numbers

    def _number(self, value: Any) -> float | None:
        """Return a number, which may be written as a text; None if it is none."""
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            return None
        try:
            # Python takes quadratic time for long integers.
            return float(value) if not isinstance(value, str) or len(value) <= 64 else None
        except OverflowError:  # An integer with more than 308 digits.
            return math.inf
        except ValueError:
            return None

    def _drop(self, name: Any, why: str, count: int = 1) -> None:
        if (known := self._name(name)) is not None:
            if len(self._dropped) < _NAMED:
                self._dropped.add(known)
            shown = known if known in self._dropped else "further metrics"
            self.left_out[f"values of {shown} {why}"] += count

    def _name(self, name: Any) -> str | None:
        """Returns the name under which a metric is kept; None, and counts it, if there is none."""
        if not isinstance(name, str):
            name = str(name)
        if name not in self._names:
            if len(self._names) >= MAX_NAMES:
                self.left_out[f"values of more than {MAX_NAMES:,} metrics"] += 1
                return None
            # Stores refuse characters that Unicode does not define, too.
            cleaned = "".join(c if c.isprintable() else "\ufffd" for c in printable_line(name))
            self._names[name] = cleaned if 0 < len(cleaned) <= MAX_NAME else None
        found = self._names[name]
        if found is None:
            self.left_out[f"values whose names are empty or have over {MAX_NAME} characters"] += 1
        return found


class MetricLog(ValueReader, ABC):
    """A log of a trainer, read as far as it has been written.

    Attributes:
        path: the file or folder; it need not exist yet.
    """

    kind: ClassVar[str]

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._config: dict[str, Any] = {}

    @abstractmethod
    def read_new(self) -> list[LoggedStep]:
        """Returns the steps that were added since the last call, in the order of the log.

        A missing log is an empty one. A last line without its end waits for a later call.

        Raises:
            ConfigError: the log is of another format, or cannot be read; the message says why.
        """

    def iter_new(self) -> Iterator[LoggedStep]:
        """Yields what `read_new` returns, without holding all of it where the format allows."""
        yield from self.read_new()

    def finish(self) -> None:
        """Says that the log will not grow: the next `read_new` also uses a last, unended line."""

    @property
    def config(self) -> Mapping[str, Any]:
        """What the log says about the settings of the run; empty if it says nothing."""
        return self._config


def whole_step(value: Any) -> int | None:
    """Returns a step as an integer from 0 to `LAST_STEP`; None if it is none.

    >>> [whole_step(value) for value in (3, 3.0, "3", " 3.0 ", 3.5, "x", -1, True, None)]
    [3, 3, 3, 3, None, None, None, None, None]
    """
    if isinstance(value, str):
        # Longer texts are no steps, and Python takes quadratic time for long integers.
        try:
            value = float(value) if len(value) <= 32 else None
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if 0 <= value <= LAST_STEP and value == int(value) else None


def read_all(log: MetricLog) -> list[LoggedStep]:
    """Reads a log that is complete: all its steps, with a last line that lacks its end."""
    return list(iter_all(log))


def iter_all(log: MetricLog) -> Iterator[LoggedStep]:
    """Yields what `read_all` returns, one step at a time."""
    yield from log.iter_new()
    log.finish()
    yield from log.iter_new()


class LineLog(MetricLog):
    """A log of lines of text.

    The text is UTF-8; other bytes become U+FFFD. A file that has become shorter was written anew
    and is read again from its start.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._offset = 0
        self._rest = b""
        self._skipping = False  # Within a line that is too long.
        self._finished = False

    @abstractmethod
    def _parse(self, line: str, *, ended: bool) -> LoggedStep | None:
        """Returns the step of a line; None for a line without one, which it counts.

        Args:
            ended: False for the last line of a log that may have been cut within it.
        """

    def _restart(self) -> None:
        """Forgets what was read of a file that is written anew."""
        self._offset, self._rest, self._skipping = 0, b"", False

    def finish(self) -> None:
        self._finished = True

    def read_new(self) -> list[LoggedStep]:
        return list(self.iter_new())

    def iter_new(self) -> Iterator[LoggedStep]:
        for line, ended in self._lines():
            if (step := self._parse(line, ended=ended)) is not None:
                yield step

    def _lines(self) -> Iterator[tuple[str, bool]]:
        """Yields each new line with whether its end was read."""
        for block in self._blocks():
            *lines, rest = (self._rest + block).split(b"\n")
            if lines and self._skipping:
                lines, self._skipping = lines[1:], False
            for line in lines:
                if text := _text(line):
                    yield text, True
            self._rest = b"" if self._skipping else rest
            if len(self._rest) > MAX_LINE:
                self.left_out[f"lines of more than {MAX_LINE // 2**20} MiB"] += 1
                self._rest, self._skipping = b"", True
        if self._finished and self._rest:
            rest, self._rest = self._rest, b""
            if text := _text(rest):
                yield text, False

    def _blocks(self) -> Iterator[bytes]:
        try:
            file = open_regular(self.path.resolve())
        except FileNotFoundError:
            return
        except OSError as error:
            raise unreadable(self.path, error) from error
        with file:
            if file.seek(0, 2) < self._offset:
                self._restart()
            file.seek(self._offset)
            while block := file.read(_BLOCK):
                for start, form in _OTHER_FORMS.items():
                    if self._offset == 0 and block.startswith(start):
                        raise ConfigError(f"{self.path}: expected lines of text, got {form}")
                self._offset += len(block)
                yield block


class TextLog(LineLog):
    """A log of lines with named values, of which some are texts.

    A text that is the same on every line is a setting of the run.

    Args:
        by: names whose values tell the runs of one file apart. They are no metrics.

    Attributes:
        tag: the values of `by` on the line of the step that `iter_new` yielded last; empty
            texts where the line has none.
    """

    def __init__(self, path: Path, *, by: Sequence[str] = ()) -> None:
        super().__init__(path)
        self.by = tuple(by)
        self.tag: tuple[str, ...] = ()
        self._texts: dict[str, tuple[str | None, int]] = {}
        """The only text of a name, with how often; None if it has numbers or other texts, too."""

    @property
    def config(self) -> Mapping[str, Any]:
        texts = {name: text for name, (text, _) in self._texts.items() if text is not None}
        return texts | self._config

    def _find_tag(self, entry: Mapping[str, Any]) -> None:
        if self.by:
            self.tag = tuple(_tag(entry.get(name)) for name in self.by)

    def _no_step(self, value: Any) -> None:
        """Count a line without a step."""
        number = self._number(value)
        self.left_out["lines without a step" if number is None else NOT_WHOLE] += 1

    def _values(self, items: Iterable[tuple[str, Any]]) -> dict[str, float]:
        """Return the numbers of a line, and keep its texts as settings."""
        numbers = []
        for name, value in items:
            if name in self.by:
                continue
            if isinstance(value, str) and self._number(value) is None:
                self._setting(name, value)
            else:
                numbers.append((name, value))
                if name in self._texts:
                    self._no_setting(name)
        return self._numbers(numbers)

    def _setting(self, name: str, text: str) -> None:
        """Keep a text that is the same on every line as a setting of the run."""
        known, count = self._texts.get(name, (text, 0))
        is_room = len(text) <= MAX_NAME and len(self._texts) < MAX_NAMES
        if known == text and (count or (is_room and name not in self._names)):
            self._texts[name] = text, count + 1
        else:
            self._no_setting(name)
            self._drop(name, "that are not numbers")

    def _no_setting(self, name: str) -> None:
        """Count the texts that were taken for a setting."""
        if count := self._texts.get(name, (None, 0))[1]:
            self._drop(name, "that are not numbers", count)
        self._texts[name] = None, 0


def _tag(value: Any) -> str:
    if value is None or isinstance(value, (dict, list)):
        return ""
    return str(value)[:MAX_NAME]


def _text(line: bytes) -> str:
    """Returns a line as text without its end; empty for one of nothing but spaces."""
    text = line.decode("utf-8", "replace").rstrip("\r").lstrip("\ufeff")
    return text if text.strip() else ""


def unreadable(path: Path, error: OSError) -> ConfigError:
    """Returns the error for a log that exists and cannot be read."""
    why = error.strerror or type(error).__name__
    return ConfigError(f"{path}: expected a log to read, got: {why}")
