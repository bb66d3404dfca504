"""What a command writes besides its metrics: checkpoints, and counts of correct answers.

A file beside the command's folder notes the checkpoints whose steps are in the store:

    command.json    {"format": 1, "steps": [50, 100]}

A worker that was killed may have missed checkpoints. One that is not noted is used if it is
complete and the log still has every step before it; else the next older one.

Counts are JSON lines; `prompt` and `level` may be missing:

    {"step": 50, "problem": "gsm8k/17", "n": 8, "correct": 3}

Of two lines about the same problem and step the last one counts. An evaluation is recorded once a
later step appears, or the command has ended.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from advsweep.backends.command.template import CheckpointFiles
from advsweep.backends.reporter import CountedProblem
from advsweep.errors import TrainingError
from advsweep.local_files import make_private_folder, open_regular, replace_file
from advsweep.logs.base import whole_step
from advsweep.printable import printable, printable_line

FILE = "command.json"
FORMAT = 1
# The folder of a run that belongs to the command; `{directory}`.
FOLDER = "output"

_MOST_BYTES = 1 << 20
_MOST_FOUND = 10_000
_MOST_PROBLEMS = 200_000
_MOST_SAMPLES = 10_000_000
_MOST_TEXT = 20_000


class CommandCheckpoints:
    """The checkpoints of one run.

    Args:
        options: the template's; None: the command has none.
        directory: the run's directory.
        steps: the steps of the run.

    Attributes:
        noted: the steps of checkpoints up to which the store has every step.
    """

    def __init__(self, options: CheckpointFiles | None, directory: Path, steps: int) -> None:
        self._options = options
        self._file = directory / FILE
        self._steps = steps
        self.folder = directory / FOLDER
        self.noted: set[int] = set()
        try:
            with open_regular(self._file) as file:
                content = json.loads(file.read(_MOST_BYTES))
            if content["format"] == FORMAT:
                self.noted = {s for s in content["steps"] if type(s) is int and s > 0}
        except (OSError, ValueError, RecursionError, TypeError, KeyError):
            pass  # a damaged note is none

    def prepare(self) -> None:
        """Make the command's folder, unless it exists."""
        # A link would lead what is deleted and written here to somewhere else.
        if self.folder.is_symlink():
            raise TrainingError(f"{self.folder}: expected a folder, got a link; remove it")
        make_private_folder(self.folder)

    def discard_all(self) -> None:
        """Delete everything that earlier processes of the command wrote."""
        for entry in self.folder.iterdir():
            delete(entry)
        self.note(set())

    def note(self, steps: set[int]) -> None:
        """Note the checkpoints up to which the store has every step."""
        if not steps or steps != self.noted:
            self.noted = steps
            # At once or not at all: half a file would make a killed worker's run start anew.
            replace_file(self._file, json.dumps({"format": FORMAT, "steps": sorted(steps)}))

    def found(self) -> dict[int, Path]:
        """Return the complete checkpoints by step, the oldest first.

        One without a file that is written last counts as complete.
        """
        options = self._options
        if options is None:
            return {}
        paths = {}
        for path in itertools.islice(self.folder.glob(options.glob), _MOST_FOUND):
            match = re.search(options.step, path.relative_to(self.folder).as_posix())
            if match is None or not match[1].isdecimal() or len(match[1]) > 9:
                continue
            whole = not options.complete or (path / options.complete).is_file()
            if whole and 0 < int(match[1]) <= self._steps and not path.is_symlink():
                paths[int(match[1])] = path
        return dict(sorted(paths.items()))

    def to_resume(self, logged: Collection[int], every: int) -> int | None:
        """Return the newest checkpoint that a run can resume from without a gap in its metrics.

        Args:
            logged: the steps in the command's log.
            every: steps between two logged ones.
        """
        options = self._options
        if options is None or not options.resume:
            return None
        for step in reversed(self.found()):
            if step in self.noted:
                return step
            # Without a file that is written last, only a note says that it is complete.
            first = self.last_noted(step)
            ends = [first, *sorted(s for s in logged if first < s <= step), step]
            if options.complete and all(b - a <= every for a, b in itertools.pairwise(ends)):
                return step
        return None

    def last_noted(self, step: int) -> int:
        """Return the newest noted step up to a step; 0 without one."""
        return max((noted for noted in self.noted if noted <= step), default=0)


def delete(path: Path) -> None:
    """Delete a file, a link or a folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class CountsFile:
    """The counts of one run, read as far as they have been written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._open: dict[int, dict[str, CountedProblem]] = {}
        self.left_out: Counter[str] = Counter()

    def read(self, *, ended: bool) -> dict[int, list[CountedProblem]]:
        """Return the evaluations of steps that are followed by a later one; all at the end."""
        try:
            file = open_regular(self._path)
        except OSError:
            return {}
        with file:
            if file.seek(0, 2) < self._offset:
                self._offset = 0
            file.seek(self._offset)
            while line := file.readline(_MOST_BYTES):
                if not line.endswith(b"\n") and len(line) < _MOST_BYTES and not ended:
                    break  # the command is writing it
                self._offset += len(line)
                self._add(line)
        last = max(self._open, default=0)
        steps = sorted(step for step in self._open if ended or step < last)
        return {step: list(self._open.pop(step).values()) for step in steps}

    def skip(self, last_step: int) -> None:
        """Forget what an earlier process wrote about later steps."""
        for step, problems in self.read(ended=True).items():
            if step <= last_step:
                self._open[step] = {problem.problem: problem for problem in problems}

    def _add(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        parsed = _counts_of(entry) if isinstance(entry, Mapping) else None
        if parsed is None:
            self.left_out["lines without step, problem, n and correct"] += bool(line.strip())
            return
        step, counted = parsed
        problems = self._open.setdefault(step, {})
        if counted.problem in problems or len(problems) < _MOST_PROBLEMS:
            problems[counted.problem] = counted
        else:
            self.left_out[f"lines of more than {_MOST_PROBLEMS:,} problems"] += 1


def _counts_of(entry: Mapping[str, Any]) -> tuple[int, CountedProblem] | None:
    """Return the step and the counts of a line; None if it does not hold them."""
    step = whole_step(entry.get("step"))
    problem = entry.get("problem")
    prompt = entry.get("prompt")
    numbers = [entry.get("n"), entry.get("correct"), entry.get("level", 0)]
    if step is None or type(problem) not in (str, int):
        return None
    if not all(type(number) is int and 0 <= number <= _MOST_SAMPLES for number in numbers):
        return None
    n, correct, level = map(int, numbers)
    if n == 0 or correct > n:
        return None
    return step, CountedProblem(
        problem=printable_line(str(problem)[:200]),
        n=n,
        correct=correct,
        prompt=printable(prompt[:_MOST_TEXT]) if isinstance(prompt, str) else "",
        level=level,
    )
