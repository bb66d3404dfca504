"""A command that runs below a supervisor, seen from the worker."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advsweep.errors import TrainingError
from advsweep.printable import printable_line

_SUPERVISOR = Path(__file__).with_name("supervisor.py")

LINE_BYTES = 8192
"""Longer lines of output are cut."""
WAITING_LINES = 20_000
"""Lines that wait for the worker's main thread; further ones are counted, not kept."""
TAIL_LINES = 1000
"""Last lines of the output that are kept, to say why a command failed."""

_BLOCK = 65536
_JOIN_SECONDS = 2.0
_MARGIN_SECONDS = 15.0
"""Time beyond the grace that a supervisor has to end everything."""


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        code: its exit code, negative for the signal that ended it.
        left: processes that it left behind, and that were ended.
        error: why it could not be started; empty if it was.
    """

    code: int
    left: int = 0
    error: str = ""


class RunningCommand:
    """A command in a session of its own, whose output a thread reads.

    Args:
        argv: program and arguments.
        environment: all of its variables.
        folder: its working folder.
        grace: seconds between a request to stop and SIGKILL.
        stop_signal: number of the signal of that request.
        on_line: gets each line of output in the reading thread, before lines are dropped.

    Raises:
        TrainingError: the working folder does not exist, or no process can be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        grace: float,
        stop_signal: int,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        if not folder.is_dir():
            raise TrainingError(f"workdir: expected a folder, got '{folder}'")
        self._grace = grace
        self.output = Output(on_line)
        control, written = os.pipe()
        # A file closes with its object: if a request to stop interrupts this method, the
        # supervisor then ends the command.
        self._control = os.fdopen(written, "wb", buffering=0)
        self._status, status = os.pipe()
        read, write = os.pipe()
        options = [str(control), str(status), str(grace), str(stop_signal)]
        try:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", str(_SUPERVISOR), *options, *argv],
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=write,
                env=dict(environment),
                cwd=folder,
                pass_fds=(control, status),
                start_new_session=True,
            )
        except OSError as error:
            self._control.close()
            for descriptor in (self._status, read):
                os.close(descriptor)
            raise TrainingError(
                f"the command cannot be started: {error.strerror}; an argument may be too long"
            ) from error
        finally:
            for descriptor in (control, status, write):
                os.close(descriptor)
        self._reader = threading.Thread(
            target=self.output.read, args=(read,), name="output", daemon=True
        )
        self._reader.start()
        self._ended: Ended | None = None
        self._stop_deadline: float | None = None

    def wait(self, seconds: float) -> Ended | None:
        """Return how the command ended; None if it still runs after some seconds."""
        if self._ended is None and select.select([self._status], [], [], seconds)[0]:
            self._ended = self._end()
        elif self._stop_deadline is not None and time.monotonic() > self._stop_deadline:
            self._supervisor.kill()
        return self._ended

    def stop(self) -> None:
        """Ask the command to end; it is killed after its grace. May be repeated."""
        if self._stop_deadline is None:
            self._stop_deadline = time.monotonic() + self._grace + _MARGIN_SECONDS
            with contextlib.suppress(OSError):
                self._control.write(b"s")

    def close(self) -> None:
        """End the command if it still runs, and wait until all of its processes have ended."""
        self.stop()
        while self.wait(0.2) is None:
            pass
        self._control.close()
        os.close(self._status)

    def _end(self) -> Ended:
        """Read the supervisor's report; without one it was killed itself."""
        report = _report(_read_line(self._status))
        self._supervisor.wait()
        self._reader.join(_JOIN_SECONDS)
        code = report.get("code")
        if not isinstance(code, int):
            return Ended(code=self._supervisor.returncode or 1)
        return Ended(code, int(report.get("left", 0)), str(report.get("error", "")))


class Output:
    """The output of a command as lines of printable text.

    A carriage return within a line starts it anew, as on a terminal: progress bars become one
    line. Nothing here grows with the output.

    Attributes:
        lines: lines that the main thread has not taken yet.
        tail: the last lines.
        dropped: lines that were not kept, as the main thread did not take the others.
        last: when the last output came, by `time.monotonic`.
    """

    def __init__(self, on_line: Callable[[str], None] | None = None) -> None:
        self._on_line = on_line
        self._rest = b""
        self._cut = False
        self.lines: deque[str] = deque()
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.dropped = 0
        self.last = time.monotonic()

    def read(self, descriptor: int) -> None:
        """Read until the last process that can write has ended; close the descriptor."""
        with open(descriptor, "rb", buffering=0) as pipe:
            while block := pipe.read(_BLOCK):
                self.last = time.monotonic()
                self.feed(block)
        self.finish()

    def feed(self, block: bytes) -> None:
        """Take a piece of the output."""
        *lines, rest = (self._rest + block).split(b"\n")
        if lines and self._cut:
            lines, self._cut = lines[1:], False
        for line in lines:
            self._add(line)
        if len(rest) > LINE_BYTES:
            # What follows a carriage return is the line as a terminal shows it.
            rest = rest.rpartition(b"\r")[2]
        if len(rest) > LINE_BYTES and not self._cut:
            self._add(rest)
            self._cut = True
        self._rest = b"" if self._cut else rest

    def finish(self) -> None:
        """Take a last line that has no end."""
        rest, self._rest = self._rest, b""
        if rest:
            self._add(rest)

    def take(self) -> list[str]:
        """Return the lines that came since the last call."""
        return [self.lines.popleft() for _ in range(len(self.lines))]

    def _add(self, line: bytes) -> None:
        shown = [part for part in line.split(b"\r") if part.strip()]
        if not shown:
            return
        text = printable_line(shown[-1][:LINE_BYTES].decode("utf-8", "replace"))
        if len(shown[-1]) > LINE_BYTES:
            text += " ... (cut)"
        self.tail.append(text)
        if self._on_line is not None:
            self._on_line(text)
        if len(self.lines) < WAITING_LINES:
            self.lines.append(text)
        else:
            self.dropped += 1


def _read_line(descriptor: int) -> bytes:
    found = b""
    while not found.endswith(b"\n"):
        block = os.read(descriptor, 4096)
        if not block:
            break
        found += block
    return found


def _report(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
