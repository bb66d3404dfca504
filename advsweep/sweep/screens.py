"""Where the progress of a sweep is shown: a terminal's last line, lines of a log, a notebook."""

from __future__ import annotations

import html
import math
import os
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from typing import Any, ClassVar, TextIO

from advsweep.printable import printable

_BAR = 12  # characters of the bar


class Screen(ABC):
    """Shows lines that stay, and the progress, which changes.

    Attributes:
        interval: seconds between two times that the progress is shown.
    """

    interval: ClassVar[float]

    @abstractmethod
    def say(self, line: str) -> None:
        """Show a line that stays."""

    @abstractmethod
    def show(self, share: float, parts: Sequence[str]) -> None:
        """Show the progress: the share that is done, and texts, the most important first."""

    @abstractmethod
    def clear(self) -> None:
        """Remove the progress where it is in the way of other output."""

    @abstractmethod
    def conclude(self, text: str) -> None:
        """Show how the sweep ended, where the progress stays to be seen."""


def screen_of(stream: TextIO) -> Screen:
    """Return the screen that fits a stream."""
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        return TerminalScreen(stream)
    return LineScreen(stream)


def screen_of_python() -> Screen:
    """Return the screen of a program of Python: the notebook that it runs in, or stderr."""
    # In a notebook it is there; a script must not pay for its import.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    # A terminal's IPython has no kernel.
    if shell is not None and hasattr(shell, "kernel"):
        return NotebookScreen(import_module("IPython.display"))
    return screen_of(sys.stderr)


def bar_line(share: float, parts: Sequence[str]) -> str:
    """Return a bar and parts of text, of which those are left out that the terminal cannot fit."""
    width = shutil.get_terminal_size().columns - 1
    done = int(_BAR * min(1, share))
    line = f"[{'=' * done}{' ' * (_BAR - done)}] {parts[0]}"
    for part in parts[1:]:
        if len(line) + 2 + len(part) <= width:
            line += f", {part}"
    return line[:width]


class TerminalScreen(Screen):
    """The progress is a last line, which is written anew."""

    interval: ClassVar[float] = 0.5

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def say(self, line: str) -> None:
        self.clear()
        self._write(f"{printable(line)}\n")

    def show(self, share: float, parts: Sequence[str]) -> None:
        # A line that wraps could not be written anew. The cursor goes back to its start, where
        # messages of others begin.
        self._write(f"\r\x1b[K{bar_line(share, parts)}\r")

    def clear(self) -> None:
        self._write("\r\x1b[K")

    def conclude(self, text: str) -> None:
        """Show nothing: the progress is gone."""

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class LineScreen(Screen):
    """The progress is a line now and then, in a file or a pipe."""

    interval: ClassVar[float] = 30.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def say(self, line: str) -> None:
        self._stream.write(f"{printable(line)}\n")
        self._stream.flush()

    def show(self, share: float, parts: Sequence[str]) -> None:
        self.say(", ".join(parts))

    def clear(self) -> None:
        """Leave everything: a line that is written stays."""

    def conclude(self, text: str) -> None:
        """Show nothing: the line of the last run's end is there."""


class NoScreen(Screen):
    """Shows nothing."""

    interval: ClassVar[float] = math.inf

    def say(self, line: str) -> None: ...

    def show(self, share: float, parts: Sequence[str]) -> None: ...

    def clear(self) -> None: ...

    def conclude(self, text: str) -> None: ...


class NotebookScreen(Screen):
    """The progress is a bar below the cell, at the end a line; other lines are left out.

    It needs no widgets, which many notebooks do not have.

    Args:
        display: the module `IPython.display`.
    """

    interval: ClassVar[float] = 0.5

    def __init__(self, display: Any) -> None:
        self._handle = display.display(_bundle(0.0, "starting"), raw=True, display_id=True)

    def say(self, line: str) -> None:
        """Show nothing: what stays is in what the cell returns, and in warnings."""

    def show(self, share: float, parts: Sequence[str]) -> None:
        self._handle.update(_bundle(share, ", ".join(parts)), raw=True)

    def clear(self) -> None:
        """Leave the bar: messages stand elsewhere."""

    def conclude(self, text: str) -> None:
        self._handle.update({"text/html": html.escape(text), "text/plain": text}, raw=True)


def _bundle(share: float, text: str) -> dict[str, str]:
    """Return what a notebook displays, and its text where that cannot be shown."""
    bar = f'<progress value="{min(1.0, share):.3f}" max="1"></progress>'
    return {"text/html": f"{bar} {html.escape(text)}", "text/plain": text}
