"""`trainer_state.json` of transformers and TRL, which is written anew with each checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from advsweep.errors import ConfigError
from advsweep.local_files import open_regular
from advsweep.logs.base import LoggedStep, MetricLog, unreadable, whole_step

FILE = "trainer_state.json"

_LARGEST = 2**30
_HISTORY = re.compile(r'"log_history"\s*:\s*\[')
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})")


class TrainerState(MetricLog):
    """The log history of a training with transformers' Trainer.

    Args:
        path: the file, or the output folder; of a folder the file of the newest checkpoint
            counts, which has the whole history, and the folder's own before it.
    """

    kind: ClassVar[str] = "trainer_state"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._seen: tuple[Path, int, int] | None = None
        self._entries: list[Any] = []

    def read_new(self) -> list[LoggedStep]:
        file = state_file(self.path)
        if file is None:
            return []
        try:
            with open_regular(file.resolve()) as stream:
                state = file.stat()
                mark = (file, state.st_mtime_ns, state.st_size)
                if mark == self._seen:
                    return []
                data = stream.read(_LARGEST + 1)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unreadable(file, error) from error
        if len(data) > _LARGEST:
            raise ConfigError(f"{file}: expected at most 1 GiB, got more")
        self._seen = mark
        entries = self._parse(data.decode("utf-8", "replace"), file)
        known = len(self._entries)
        # A training that resumed from an earlier checkpoint logs later steps again.
        new = entries[known:] if entries[:known] == self._entries else entries
        self._entries = entries
        return list(self._steps(new))

    def _parse(self, text: str, file: Path) -> list[Any]:
        try:
            state = json.loads(text)
        except (ValueError, RecursionError):
            return self._salvage(text)
        if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
            raise ConfigError(f"{file}: expected a state of a trainer with a log_history")
        self._config = {
            key: value
            for key, value in state.items()
            if isinstance(value, (str, int, float, bool)) and key not in _NO_SETTINGS
        }
        entries: list[Any] = state["log_history"]
        return entries

    def _salvage(self, text: str) -> list[Any]:
        """Returns the complete entries of a file that was cut."""
        self.left_out["incomplete files"] = 1
        entries: list[Any] = []
        if (start := _HISTORY.search(text)) is None:
            return entries
        decoder, place = json.JSONDecoder(), start.end()
        while True:
            while place < len(text) and text[place] in " \t\r\n,":
                place += 1
            try:
                entry, place = decoder.raw_decode(text, place)
            except (ValueError, RecursionError):
                return entries
            entries.append(entry)

    def _steps(self, entries: list[Any]) -> Iterator[LoggedStep]:
        for entry in entries:
            step = whole_step(entry.get("step")) if isinstance(entry, dict) else None
            if step is None:
                self.left_out["entries without a step"] += 1
                continue
            items = [(k, v) for k, v in entry.items() if k != "step" and v is not None]
            yield LoggedStep(step, self._numbers(items))


_NO_SETTINGS = frozenset(
    {
        "best_model_checkpoint",
        "epoch",
        "global_step",
        "best_global_step",
        "best_metric",
        "total_flos",
    }
)
"""Entries of a state that say how far a training is, or where its files are."""


def state_file(path: Path) -> Path | None:
    """Returns the state with the longest history: of a file, or of an output folder."""
    if not path.is_dir():
        return path if path.exists() else None
    found = [
        (int(m[1]), file)
        for file in path.glob(f"checkpoint-*/{FILE}")
        if (m := _CHECKPOINT.fullmatch(file.parent.name))
    ]
    own = path / FILE
    # Written at the end of a training, with what was logged after the last checkpoint.
    if own.is_file() and all(own.stat().st_mtime >= f.stat().st_mtime for _, f in found):
        return own
    return max(found)[1] if found else None
