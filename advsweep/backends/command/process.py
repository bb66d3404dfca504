"""A command that runs below a supervisor, seen from the worker."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from advsweep.errors import TrainingError, counted, reason_of
from advsweep.machine import reserved_descriptors
from advsweep.printable import printable_line

_SUPERVISOR = Path(__file__).with_name("supervisor.py")

# Longer lines of output are cut.
LINE_BYTES = 8192
LOGGED_LINES = 2000
# Lines and characters of output that the log of a run takes; later only the last lines.
LOGGED_CHARACTERS = 1_000_000
# Last lines of the output that are kept, to say why a command failed.
TAIL_LINES = 1000
LAST_LINES = 40

_JOIN_SECONDS = 2.0
# Time beyond the grace that a supervisor has to end everything.
_MARGIN_SECONDS = 15.0


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
    """A command in its own session, whose output a thread reads.

    Args:
        argv: program and arguments.
        environment: all of its variables.
        folder: its working folder.
        grace: seconds between a request to stop and SIGKILL.
        stop_signal: number of the signal of that request.

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
    ) -> None:
        if not folder.is_dir():
            raise TrainingError(f"workdir: expected a folder, got '{folder}'")
        self._grace = grace
        self.output = Output()
        control, written = os.pipe()
        # A file closes with its object: if a request to stop interrupts this method, the
        # supervisor reads the end of the pipe and ends the command. Nobody else would.
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
                # The GPUs stay reserved until everything of the command has ended.
                pass_fds=(control, status, *reserved_descriptors()),
                # Ctrl-C goes to the terminal's group; the command must live to be asked to stop.
                start_new_session=True,
            )
        except OSError as error:
            raise TrainingError(
                f"the command cannot be started: {reason_of(error)}; an argument may be too long"
            ) from error
        finally:
            os.close(control)
            os.close(status)
        assert self._supervisor.stdout is not None
        # A thread, since a full pipe would block the command while the worker is busy.
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
            # It hangs itself, in a driver; the kernel then ends the command (PDEATHSIG).
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
        tail: the last lines.
    """

    def __init__(self) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._waiting: deque[str] = deque()
        self._lines = self._characters = self._left_out = 0

    def read(self, pipe: IO[bytes]) -> None:
        """Read until the last process that can write has ended; close the pipe."""
        is_cut = False
        with pipe:
            for piece in iter(functools.partial(pipe.readline, LINE_BYTES), b""):
                is_whole = piece.endswith(b"\n")
                if not is_cut:
                    self._add(piece, is_cut=not is_whole and len(piece) == LINE_BYTES)
                # The rest of a line that is too long is dropped; a bar goes on, however long.
                is_cut = not is_whole and b"\r" not in piece

    def _add(self, line: bytes, *, is_cut: bool) -> None:
        shown = [part for part in line.splitlines() if part.strip()]
        if not shown:
            return
        text = printable_line(shown[-1].decode("utf-8", "replace"))
        if is_cut:
            text += " ... (cut)"
        self.tail.append(text)
        if self._lines < LOGGED_LINES and self._characters < LOGGED_CHARACTERS:
            self._lines += 1
            self._characters += len(text)
            self._waiting.append(text)
        else:
            self._left_out += 1

    def take(self) -> list[str]:
        """Return the lines that came since the last call, as far as the log has room."""
        return [f"| {self._waiting.popleft()}" for _ in range(len(self._waiting))]

    def last(self) -> list[str]:
        """Return what `take` left, and the last lines of an output that was too long."""
        lines = self.take()
        if self._left_out:
            end = list(self.tail)[-min(LAST_LINES, self._left_out) :]
            of_output = counted(f"{self._left_out:,}", "line")
            lines.append(f"left out {of_output} of output; the last {len(end)}:")
            lines += [f"| {line}" for line in end]
        return lines

    def last_words(self) -> str:
        """Return the last lines, for a message."""
        last = [line.strip()[:300] for line in list(self.tail)[-3:]]
        return f"; its last lines: {' / '.join(last)}" if last else "; it wrote nothing"
