"""What was sent of a run to a tracker: a small file in the run's folder.

It lies there, and not in the store, as it goes where the folder goes: `rm` removes it and
`merge` copies it. Losing it costs no more than sending the run again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from filelock import FileLock

from advsweep.local_files import FILE_MODE, make_private_folder, open_private

Points = Iterable[tuple[str, int, float]]


@dataclass
class Ledger:
    """How much of a run is in a tracker.

    Attributes:
        steps: the last step that was sent of each metric, by name.
        end: the end of the run that the tracker was told of; None before.
    """

    steps: dict[str, int] = field(default_factory=dict)
    end: str | None = None

    @property
    def last_step(self) -> int:
        """The last step of which anything was sent; -1 when nothing was."""
        return max(self.steps.values(), default=-1)

    def rows_to_send(self, points: Points) -> list[tuple[int, dict[str, float]]]:
        """The points (name, step, value) that are not sent yet, together by step.

        A step that a resumed run made once more is not sent again: trackers do not take
        back what they have.
        """
        rows: dict[int, dict[str, float]] = {}
        for name, step, value in points:
            if step > self.steps.get(name, -1):
                rows.setdefault(step, {})[name] = value
        return sorted(rows.items())

    def add(self, step: int, values: Iterable[str]) -> None:
        """Notes that metrics of a step were logged."""
        self.steps.update(dict.fromkeys(values, step))


class LedgerFile:
    """The file that keeps it; whoever has its lock feeds the tracker, one process at a time."""

    def __init__(self, directory: Path, name: str, destination: str) -> None:
        digest = hashlib.sha256(destination.encode()).hexdigest()[:8]
        self._path = directory / "tracking" / f"{name}-{digest}.json"
        self._destination = destination
        self._lock = FileLock(self._path.with_suffix(".lock"), mode=FILE_MODE)

    def acquire(self) -> None:
        """Takes the lock.

        Raises:
            filelock.Timeout: another process has it.
            OSError: the folder cannot be written to.
        """
        make_private_folder(self._path.parent)
        self._lock.acquire(timeout=0)

    def release(self) -> None:
        self._lock.release()

    def read(self) -> Ledger:
        """What it says; nothing was sent where there is none, or it cannot be read."""
        try:
            known = json.loads(self._path.read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return Ledger()
        return Ledger(steps=known["steps"], end=known["end"])

    def write(self, sent: Ledger) -> None:
        new = self._path.with_suffix(".new")
        text = json.dumps({"destination": self._destination, **asdict(sent)})
        with open_private(new, "w", encoding="utf-8") as file:
            file.write(text)
        new.replace(self._path)
