"""Restarts of runs by a click: each is an `advsweep retry` in a process of its own.

It has a session of its own, too, so that Ctrl-C, which ends the server, stops no training.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Protocol

from advsweep.errors import counted, first_of
from advsweep.printable import printable_line
from advsweep.sweep.executors.processes import STORE_VARIABLE

_LISTED = 10
_KEPT = 5
_TAIL = 4000  # bytes


@dataclass
class _Restart:
    runs: Sequence[int]
    process: subprocess.Popen[bytes]
    output: IO[bytes]

    @property
    def title(self) -> str:
        return f"retry of {_name_runs(self.runs)}"

    def describe(self) -> str:
        """Return a line on how it stands."""
        code = self.process.poll()
        if code is None:
            return f"{self.title}: in progress"
        if code == 0:
            return f"{self.title}: all are done"
        return f"{self.title}: {self._last_line() or f'ended with exit code {code}'}"

    def _last_line(self) -> str:
        size = self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, size - _TAIL))
        lines = self.output.read().decode(errors="replace").splitlines()
        said = [line.strip() for line in lines if line.strip()]
        return printable_line(said[-1]) if said else ""


class Starter(Protocol):
    """Restarts runs, and says what became of it."""

    def start(self, runs: Sequence[int]) -> str:
        """Start a retry of runs; return what was done."""

    def describe(self) -> list[str]:
        """Return a line for each of the last restarts."""


class Restarts(Starter):
    """Starts `advsweep retry`, and knows what became of it.

    Args:
        url: opens the store; children get it by their environment, as it may hold a password.
        words: options and settings for `advsweep retry`, from the command line of the server.
    """

    def __init__(self, url: str, words: Sequence[str]) -> None:
        self._url = url
        self._words = tuple(words)
        self._restarts: list[_Restart] = []

    def start(self, runs: Sequence[int]) -> str:
        """Start a retry of runs; return what was done.

        Raises:
            OSError: the process cannot be made.
        """
        # `-P`: no module of the working folder is imported in place of an installed one.
        command = [sys.executable, "-P", "-m", "advsweep", "retry", *map(str, runs), *self._words]
        output = tempfile.TemporaryFile()  # noqa: SIM115 - the process writes as long as it lives
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, STORE_VARIABLE: self._url},
            start_new_session=True,
        )
        self._restarts.append(_Restart(runs, process, output))
        self._forget_old()
        return f"Started a retry of {_name_runs(runs)}."

    def describe(self) -> list[str]:
        """Return a line for each of the last restarts."""
        return [restart.describe() for restart in self._restarts]

    def unfinished(self) -> list[int]:
        """Return the runs of restarts that go on."""
        alive = [restart for restart in self._restarts if restart.process.poll() is None]
        return sorted({run for restart in alive for run in restart.runs})

    def _forget_old(self) -> None:
        ended = [each for each in self._restarts if each.process.poll() is not None]
        for restart in ended[: max(0, len(self._restarts) - _KEPT)]:
            restart.output.close()
            self._restarts.remove(restart)


def _name_runs(runs: Sequence[int]) -> str:
    return f"{counted(len(runs), 'run')} ({first_of(map(str, runs), _LISTED)})"
