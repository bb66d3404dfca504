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
from typing import IO

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
        reported, status = os.pipe()
        self._status = os.fdopen(reported, "rb", buffering=0)
        options = [str(control), str(status), str(grace), str(stop_signal)]
        try:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-E", "-P", str(_SUPERVISOR), *options, *argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=folder,
                pass_fds=(control, status),
                start_new_session=True,
            )
        except OSError as error:
            raise TrainingError(
                f"the command cannot be started: {error.strerror}; an argument may be too long"
            ) from error
        finally:
            os.close(control)
            os.close(status)
        self._reader = threading.Thread(
            target=self.output.read, args=(self._supervisor.stdout,), name="output", daemon=True
        )
        self._reader.start()
        self._ended: Ended | None = None
        self._stop_deadline: float | None = None

    def wait(self, seconds: float) -> Ended | None:
        """Return how the command ended; None if it still runs after some seconds."""
        if self._ended is None and select.select([self._status], [], [], seconds)[0]:
            # Without a report the supervisor was killed itself.
            report = json.loads(self._status.readline() or b"{}")
            self._supervisor.wait()
            self._reader.join(_JOIN_SECONDS)
            self._ended = Ended(**{"code": self._supervisor.returncode or 1, **report})
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
        self._status.close()


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
        self.lines: deque[str] = deque()
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.dropped = 0
        self.last = time.monotonic()

    def read(self, pipe: IO[bytes]) -> None:
        """Read until the last process that can write has ended; close the pipe."""
        rest, is_cut = b"", False
        with pipe:
            while block := os.read(pipe.fileno(), _BLOCK):
                self.last = time.monotonic()
                *lines, rest = (rest + block).split(b"\n")
                if lines and is_cut:
                    # The rest of a line whose beginning was taken when it became too long.
                    lines, is_cut = lines[1:], False
                for line in lines:
                    self._add(line)
                if len(rest) > LINE_BYTES:
                    # What follows a carriage return is the line as a terminal shows it.
                    rest = rest.rpartition(b"\r")[2]
                if len(rest) > LINE_BYTES and not is_cut:
                    self._add(rest)
                    is_cut = True
                if is_cut:
                    rest = b""
        self._add(rest)

    def take(self) -> list[str]:
        """Return the lines that came since the last call."""
        return [self.lines.popleft() for _ in range(len(self.lines))]

    def last_words(self) -> str:
        """Return the last lines, for a message."""
        last = [line.strip()[:300] for line in list(self.tail)[-3:]]
        return f"; its last lines: {' / '.join(last)}" if last else "; it wrote nothing"

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
