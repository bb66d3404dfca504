"""The checkpoints that a command writes by itself, and which of them a run resumes from.

A file beside the command's folder notes the checkpoints whose steps are in the store:

    command.json    {"format": 1, "steps": [50, 100]}

A worker that was killed may have missed checkpoints. One that is not noted is used if it is
complete and the log still has every step before it; else the next older one.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from advsweep.backends.command.template import CheckpointFiles
from advsweep.errors import TrainingError
from advsweep.local_files import make_private_folder, open_private, open_regular

FILE = "command.json"
FORMAT = 1
FOLDER = "output"
"""The folder of a run that belongs to the command; `{directory}`."""

_MOST_BYTES = 1 << 20
_MOST_FOUND = 10_000


class Found(NamedTuple):
    """A checkpoint of a command."""

    step: int
    path: Path


class CommandCheckpoints:
    """The checkpoints of one run.

    Args:
        options: the template's; None: the command has none.
        directory: the run's directory.
        steps: the steps of the run.
    """

    def __init__(self, options: CheckpointFiles | None, directory: Path, steps: int) -> None:
        self._options = options
        self._file = directory / FILE
        self._steps = steps
        self.folder = directory / FOLDER
        self.noted = self._read()

    def prepare(self) -> None:
        """Make the command's folder, unless it exists."""
        if self.folder.is_symlink():
            raise TrainingError(f"{self.folder}: expected a folder, got a link; remove it")
        make_private_folder(self.folder)

    def discard_all(self) -> None:
        """Delete everything that earlier processes of the command wrote."""
        self.prepare()
        for entry in self.folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        self._note(set())

    def forget_after(self, step: int) -> None:
        """Forget notes of checkpoints past a step: they are not of this store."""
        kept = {noted for noted in self.noted if noted <= step}
        if kept != self.noted:
            self._note(kept)

    def note(self, step: int) -> None:
        """Note that the store has every step up to a checkpoint."""
        if step not in self.noted:
            self._note({*self.noted, step})

    def found(self) -> list[Found]:
        """Return the complete checkpoints, the oldest first.

        One without a file that is written last counts as complete.
        """
        options = self._options
        if options is None:
            return []
        paths = {}
        for number, path in enumerate(self.folder.glob(options.glob)):
            if number >= _MOST_FOUND:
                break
            match = re.search(options.step, path.relative_to(self.folder).as_posix())
            if match is None or not match[1].isdecimal() or len(match[1]) > 9:
                continue
            whole = not options.complete or (path / options.complete).is_file()
            if whole and 0 < int(match[1]) <= self._steps and not path.is_symlink():
                paths[int(match[1])] = path
        return [Found(step, paths[step]) for step in sorted(paths)]

    def to_resume(self, logged: Collection[int], every: int) -> Found | None:
        """Return the newest checkpoint that a run can resume from without a gap in its metrics.

        Args:
            logged: the steps in the command's log.
            every: steps between two logged ones.
        """
        options = self._options
        if options is None or not options.resume:
            return None
        for found in reversed(self.found()):
            if found.step in self.noted:
                return found
            # Without a file that is written last, only a note says that it is complete.
            before = max((s for s in self.noted if s < found.step), default=0)
            if options.complete and _covers(logged, before, found.step, every):
                return found
        return None

    def last_noted(self, step: int) -> int:
        """Return the newest noted step up to a step; 0 without one."""
        return max((noted for noted in self.noted if noted <= step), default=0)

    def _read(self) -> set[int]:
        try:
            with open_regular(self._file) as file:
                content = json.loads(file.read(_MOST_BYTES))
        except (OSError, ValueError, RecursionError):
            return set()
        steps = content.get("steps") if isinstance(content, dict) else None
        if not isinstance(steps, list) or content.get("format") != FORMAT:
            return set()
        return {s for s in steps if isinstance(s, int) and not isinstance(s, bool) and s > 0}

    def _note(self, steps: set[int]) -> None:
        self.noted = steps
        new = self._file.with_name(f".{FILE}-new")
        with open_private(new, "w", encoding="utf-8") as file:
            json.dump({"format": FORMAT, "steps": sorted(steps)}, file)
        # Renamed into place, so that a killed worker leaves no half of a file.
        new.replace(self._file)


def _covers(logged: Collection[int], first: int, last: int, every: int) -> bool:
    """Return whether logged steps reach from one step to another without a gap."""
    inside = sorted(step for step in logged if first < step <= last)
    ends = [first, *inside, last]
    return all(later - earlier <= every for earlier, later in itertools.pairwise(ends))
