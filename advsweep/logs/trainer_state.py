"""`trainer_state.json` of transformers and TRL, which is written anew with each checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from advsweep.errors import ConfigError
from advsweep.logs.base import LoggedStep, MetricLog, whole_step
from advsweep.logs.json_lines import entries_of, read_whole

FILE = "trainer_state.json"

_HISTORY = re.compile(r'"log_history"\s*:\s*\[')
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})")


class _State(NamedTuple):
    """What one file holds; of states, the greatest is the one to use."""

    is_complete: bool
    step: int
    entries: list[Any]
    config: dict[str, Any]


class TrainerState(MetricLog):
    """The log history of a training with transformers' Trainer.

    Args:
        path: the file, or the output folder: of its own file and those of its checkpoints, the
            complete one with the greatest `global_step` counts, as each has the whole history.
            Times of change say nothing, since copying sets them.
    """

    kind: ClassVar[str] = "trainer_state"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._seen: list[tuple[Path, int, int]] = []
        self._entries: list[Any] = []

    def read_new(self) -> list[LoggedStep]:
        files = _state_files(self.path)
        try:
            marks = [(file, (s := file.stat()).st_mtime_ns, s.st_size) for file in files]
        except FileNotFoundError:  # A checkpoint that is being deleted.
            return []
        if marks == self._seen:
            return []
        self._seen = marks
        states: list[tuple[_State, Path]] = []
        for file in files:
            if (state := self._state(file)) is not None:
                states.append((state, file))
                # Checkpoints come newest first.
                if state.is_complete and file.parent != self.path:
                    break
        if not states:
            return []
        best, _ = max(states, key=lambda pair: (*pair[0][:2], len(pair[0].entries)))
        for reason in [reason for reason in self.left_out if FILE in reason]:
            del self.left_out[reason]
        for state, file in states:
            last = max(state.step, _checkpoint(file))
            if not state.is_complete and (state is best or last > best.step):
                place = file.relative_to(self.path) if file != self.path else file.name
                self.left_out[f"steps after {best.step}, as {place} is cut"] = 1
        self._config = best.config
        known = len(self._entries)
        # A training that resumed from an earlier checkpoint logs later steps again.
        is_longer = best.entries[:known] == self._entries
        new = best.entries[known:] if is_longer else best.entries
        self._entries = best.entries
        return list(self._steps(new))

    def _state(self, file: Path) -> _State | None:
        """Read one file; None if it is gone."""
        if (text := read_whole(file)) is None:
            return None
        try:
            state = json.loads(text)
        except (ValueError, RecursionError):
            start = _HISTORY.search(text)
            entries = entries_of(text, start.end())[0] if start else []
            return _State(False, _last_step(entries), entries, {})
        if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
            raise ConfigError(f"{file}: expected a state of a trainer with a log_history")
        config = {
            key: value
            for key, value in state.items()
            if isinstance(value, (str, int, float, bool)) and key not in _NO_SETTINGS
        }
        entries = state["log_history"]
        step = whole_step(state.get("global_step"))
        return _State(True, _last_step(entries) if step is None else step, entries, config)

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


def _last_step(entries: list[Any]) -> int:
    steps = (whole_step(entry.get("step")) for entry in entries if isinstance(entry, dict))
    return max((step for step in steps if step is not None), default=0)


def _checkpoint(file: Path) -> int:
    match = _CHECKPOINT.fullmatch(file.parent.name)
    return int(match[1]) if match else 0


def _state_files(path: Path) -> list[Path]:
    """Return a file; or the file of an output folder, then those of its checkpoints, newest first.

    The folder's own is written at the end of a training, with what was logged after the last
    checkpoint.
    """
    if not path.is_dir():
        return [path] if path.exists() else []
    own = [path / FILE] if (path / FILE).is_file() else []
    return own + sorted(path.glob(f"checkpoint-*/{FILE}"), key=_checkpoint, reverse=True)
