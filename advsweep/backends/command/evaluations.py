"""Counts of correct answers that a command writes: JSON lines of step, problem, n and correct.

    {"step": 50, "problem": "gsm8k/17", "n": 8, "correct": 3}

A line may also have `prompt` and `level`. Of two lines about the same problem and step the last
one counts. An evaluation is recorded once a later step appears, or the command has ended.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from advsweep.backends.base import CountedProblem
from advsweep.local_files import open_regular
from advsweep.logs.base import whole_step
from advsweep.printable import printable, printable_line

_MOST_PROBLEMS = 200_000
_MOST_SAMPLES = 10_000_000
_MOST_TEXT = 20_000
_MOST_LINE = 1 << 20
_BLOCK = 1 << 20

Counts = dict[int, list[CountedProblem]]
"""Counts of each problem, by step."""


class CountsFile:
    """The counts of one run, read as far as they have been written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        self._open: dict[int, dict[str, CountedProblem]] = {}
        self.left_out: Counter[str] = Counter()

    def read(self) -> Counts:
        """Return the evaluations of steps that are followed by a later one."""
        self._read()
        return self._take(max(self._open, default=0))

    def finish(self) -> Counts:
        """Return the rest of a file that will not grow."""
        self._read()
        rest, self._rest = self._rest, b""
        self._add(rest)
        return self._take(None)

    def skip(self, last_step: int) -> None:
        """Forget what an earlier process wrote about later steps."""
        self._read()
        self._rest = b""
        self._open = {step: own for step, own in self._open.items() if step <= last_step}

    def _read(self) -> None:
        try:
            file = open_regular(self._path)
        except OSError:
            return
        with file:
            if file.seek(0, 2) < self._offset:
                self._offset, self._rest = 0, b""
            file.seek(self._offset)
            while block := file.read(_BLOCK):
                self._offset += len(block)
                *lines, self._rest = (self._rest + block).split(b"\n")
                for line in lines:
                    self._add(line)
                if len(self._rest) > _MOST_LINE:
                    self.left_out["lines that are too long"] += 1
                    self._rest = b""

    def _add(self, line: bytes) -> None:
        if not line.strip():
            return
        parsed = parse_counts(line)
        if parsed is None:
            self.left_out["lines without step, problem, n and correct"] += 1
            return
        step, counted = parsed
        own = self._open.setdefault(step, {})
        if counted.problem in own or len(own) < _MOST_PROBLEMS:
            own[counted.problem] = counted
        else:
            self.left_out[f"lines of more than {_MOST_PROBLEMS:,} problems"] += 1

    def _take(self, before: int | None) -> Counts:
        steps = sorted(step for step in self._open if before is None or step < before)
        return {step: list(self._open.pop(step).values()) for step in steps}


def counts_of_lines(lines: Iterable[bytes], step: int) -> tuple[list[CountedProblem], int]:
    """Return the counts of an evaluation command's output, and the lines that were not used.

    Args:
        step: the step that was evaluated; lines may leave it out.
    """
    own: dict[str, CountedProblem] = {}
    left_out = 0
    for line in lines:
        parsed = parse_counts(line, step)
        if parsed is None or parsed[0] != step or len(own) >= _MOST_PROBLEMS:
            left_out += bool(line.strip())
        else:
            own[parsed[1].problem] = parsed[1]
    return list(own.values()), left_out


def parse_counts(line: bytes, step: int | None = None) -> tuple[int, CountedProblem] | None:
    """Return the step and the counts of a line; None if it does not hold them.

    Args:
        step: the step of lines that name none.
    """
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, Mapping):
        return None
    found = whole_step(entry.get("step", step))
    numbers = list(_whole(entry, "n", "correct", "level"))
    problem = entry.get("problem")
    if found is None or len(numbers) != 3 or not isinstance(problem, (str, int)):
        return None
    n, correct, level = numbers
    if isinstance(problem, bool) or not 0 <= correct <= n or n == 0:
        return None
    prompt = entry.get("prompt", "")
    return found, CountedProblem(
        problem=printable_line(str(problem)[:200]),
        n=n,
        correct=correct,
        prompt=printable(prompt[:_MOST_TEXT]) if isinstance(prompt, str) else "",
        level=level,
    )


def _whole(entry: Mapping[str, Any], *keys: str) -> Iterator[int]:
    for key in keys:
        value = entry.get(key, 0 if key == "level" else None)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_SAMPLES:
            yield value
