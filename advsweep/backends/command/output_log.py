"""Where the output of a command goes, and what its end says."""

from __future__ import annotations

import itertools
import re
import signal
from typing import TYPE_CHECKING

from advsweep.backends.command.process import Output
from advsweep.backends.command.template import OutOfMemory
from advsweep.errors import NoMemoryError, ProcessKilledError, TrainingError, counted
from advsweep.kernel import memory_kills

if TYPE_CHECKING:
    from advsweep.backends.base import Reporter

LOGGED_LINES = 2000
LOGGED_CHARACTERS = 1_000_000
"""Lines and characters of output that the log of a run takes; later only the last lines."""
LAST_LINES = 40


class OutputLog:
    """Forwards the output of a command to the log of its run, as far as there is room."""

    def __init__(self, reporter: Reporter, progress: str) -> None:
        self._reporter = reporter
        self._progress = re.compile(progress) if progress else None
        self._lines = 0
        self._characters = 0
        self._left_out = 0

    def take(self, output: Output) -> None:
        for line in output.take():
            if self._progress is not None and (match := self._progress.search(line)):
                self._report_progress(match)
            if self._lines >= LOGGED_LINES or self._characters >= LOGGED_CHARACTERS:
                self._left_out += 1
                continue
            self._lines += 1
            self._characters += len(line)
            self._reporter.log(f"| {line}")

    def finish(self, output: Output) -> None:
        """Write the last lines of an output that was too long."""
        self.take(output)
        left_out = self._left_out + output.dropped
        if not left_out:
            return
        last = list(itertools.islice(reversed(output.tail), min(LAST_LINES, left_out)))
        self._reporter.log(
            f"left out {counted(f'{left_out:,}', 'line')} of output; the last {len(last)}:"
        )
        for line in reversed(last):
            self._reporter.log(f"| {line}")

    def _report_progress(self, match: re.Match[str]) -> None:
        try:
            done, total = int(match["done"]), int(match["total"])
        except (TypeError, ValueError):
            return
        stage = match.groupdict().get("stage") or "command"
        if 0 <= done <= total:
            self._reporter.progress(stage[:40], done, total)


class CollectedLines:
    """The output of an evaluation command."""

    is_used = True

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def add(self, line: str) -> None:
        if len(self.lines) < 1_000_000:
            self.lines.append(line.encode())


def failure(
    code: int, output: Output, options: OutOfMemory, *, kills: int, where: str
) -> TrainingError:
    """Return the error of a command that failed, by its exit code and its last lines.

    Args:
        kills: the kernel's kills for lack of memory before the command started.
        where: the step that it reached, for the message.
    """
    tail, last = list(output.tail), last_words(output)
    # A shell, torchrun and the like report a signal N of their children as 128 + N.
    number = -code if code < 0 else code - 128
    known = {int(each) for each in signal.Signals}
    killed = code < 0 or (code > 128 and number in known)
    if number == signal.SIGKILL and killed and memory_kills() > kills:
        return NoMemoryError(f"the command was killed by the kernel, out of memory, {where}")
    words = [str(text) for text in options.lines]
    found = next((line for line in reversed(tail) if any(w in line for w in words)), None)
    if code in options.exit_codes or found is not None:
        why = f": {found[:300]}" if found else ""
        return NoMemoryError(f"the command ran out of memory {where} (exit code {code}){why}")
    if killed:
        name = signal.Signals(number).name if number in known else f"signal {number}"
        return ProcessKilledError(f"the command was killed by {name} {where}{last}")
    return TrainingError(f"the command ended with exit code {code} {where}{last}")


def last_words(output: Output) -> str:
    """Return the last lines of an output, for a message."""
    last = [line.strip()[:300] for line in list(output.tail)[-3:]]
    return f"; its last lines: {' / '.join(last)}" if last else "; it wrote nothing"
