"""What transformers' Trainer, and so TRL, writes: its state with each checkpoint, its arguments.

The arguments lie beside each model as a pickle, `training_args.bin`. A pickle is a program: here
its opcodes are read as text, nothing in it is imported or called, and what is not plain data
becomes None.
"""

from __future__ import annotations

import io
import json
import pickletools
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from advsweep.errors import ConfigError
from advsweep.local_files import open_regular
from advsweep.logs.base import Reader, whole_step
from advsweep.logs.lines import entries_of, read_whole
from advsweep.logs.names import LoggedStep
from advsweep.yaml_files import read_yaml

FILE = "trainer_state.json"
CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})")

_HISTORY = re.compile(r'"log_history"\s*:\s*\[')
_PROGRESS = (
    *("best_model_checkpoint", "epoch", "global_step", "best_global_step", "best_metric"),
    "total_flos",
)
"""Entries of a state that say how far a training is, or where its files are."""

_MOST_BYTES = 2**20
_TEXTS = ("training_args.json", "training_args.yaml")
_PICKLE = "training_args.bin"

_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_CONSTANTS = {"NEWTRUE": True, "NEWFALSE": False, "NONE": None}
_LITERALS = frozenset(
    {"BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
)
_ADDING = {"SETITEMS": 0, "SETITEM": 2, "APPENDS": 0, "APPEND": 1}
_DAMAGED = (
    *(OSError, EOFError, ValueError, LookupError, TypeError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)


class _State(NamedTuple):
    """What one file holds; of states, the greatest is the one to use."""

    is_complete: bool
    step: int
    entries: list[Any]
    config: dict[str, Any]


@dataclass(kw_only=True)
class TrainerState(Reader):
    """Reads the log history of a training: `trainer_state.json`, written with each checkpoint.

    The path is the file, or the output folder: of its own file and those of its checkpoints, the
    complete one with the greatest `global_step` counts, as each has the whole history. Times of
    change say nothing, since copying sets them.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._seen: list[tuple[Path, int, int]] = []
        self._entries: list[Any] = []

    def poll(self) -> Iterator[LoggedStep]:
        files = [self.path] if self.path.exists() else []
        if self.path.is_dir():
            # The folder's own is written at the end of a training, with what was logged after
            # the last checkpoint.
            own = [self.path / FILE] if (self.path / FILE).is_file() else []
            files = own + sorted(self.path.glob(f"checkpoint-*/{FILE}"), key=_number, reverse=True)
        try:
            marks = [(file, (s := file.stat()).st_mtime_ns, s.st_size) for file in files]
        except FileNotFoundError:  # A checkpoint that is being deleted.
            return
        if marks == self._seen:
            return
        self._seen = marks
        states: list[tuple[_State, Path]] = []
        for file in files:
            if (state := self._state(file)) is not None:
                states.append((state, file))
                # Checkpoints come newest first.
                if state.is_complete and file.parent != self.path:
                    break
        if not states:
            return
        best, _ = max(states, key=lambda pair: (*pair[0][:2], len(pair[0].entries)))
        for reason in [reason for reason in self.left_out if FILE in reason]:
            del self.left_out[reason]
        for state, file in states:
            last = max(state.step, _number(file))
            if not state.is_complete and (state is best or last > best.step):
                place = file.relative_to(self.path) if file != self.path else file.name
                self.left_out[f"steps after {best.step}, as {place} is cut"] = 1
        self._config = best.config
        known = len(self._entries)
        # A training that resumed from an earlier checkpoint logs later steps again.
        is_longer = best.entries[:known] == self._entries
        new = best.entries[known:] if is_longer else best.entries
        self._entries = best.entries
        for entry in new:
            step = whole_step(entry.get("step")) if isinstance(entry, dict) else None
            if step is None:
                self.left_out["entries without a step"] += 1
                continue
            items = [(k, v) for k, v in entry.items() if k != "step" and v is not None]
            yield LoggedStep(step, self._numbers(items))

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
            if isinstance(value, (str, int, float, bool)) and key not in _PROGRESS
        }
        entries = state["log_history"]
        step = whole_step(state.get("global_step"))
        return _State(True, _last_step(entries) if step is None else step, entries, config)


def _last_step(entries: list[Any]) -> int:
    steps = (whole_step(entry.get("step")) for entry in entries if isinstance(entry, dict))
    return max((step for step in steps if step is not None), default=0)


def _number(file: Path) -> int:
    """Return the step in the name of a file's folder; 0 unless it is a checkpoint."""
    match = CHECKPOINT.fullmatch(file.parent.name)
    return int(match[1]) if match else 0


def read_arguments(folder: Path) -> dict[str, Any]:
    """Return the arguments in an output folder or its newest checkpoint; empty if unreadable."""
    newest = sorted(folder.glob("checkpoint-*"), key=lambda f: _number(f / FILE), reverse=True)
    for place in (folder, *newest):
        for file in (place / name for name in (*_TEXTS, _PICKLE)):
            try:
                if file.name != _PICKLE:
                    found = read_yaml(file)
                else:
                    with open_regular(file.resolve()) as stream:
                        archive = zipfile.ZipFile(io.BytesIO(stream.read(_MOST_BYTES)))
                    (data,) = (n for n in archive.namelist() if n.endswith("/data.pkl"))
                    found = plain_pickle(archive.open(data).read(_MOST_BYTES))
            except _DAMAGED:
                continue
            if isinstance(found, dict) and found:
                return found
    return {}


def plain_pickle(data: bytes) -> Any:
    """Return the plain data in a pickle; the attributes of an object stand for it.

    Raises:
        ValueError, LookupError, TypeError: it is damaged, or no pickle.
    """
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    marks: list[int] = []

    for code, value, _ in pickletools.genops(data):
        name = code.name
        if name in _LITERALS:
            stack.append(value)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "MARK":
            marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if value is None else value] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[value])
        elif name in _ADDING:
            start = marks.pop() if name.endswith("S") else len(stack) - _ADDING[name]
            items, target = stack[start:], stack[start - 1]
            del stack[start:]
            if isinstance(target, dict):
                target |= zip(items[::2], items[1::2], strict=True)
            elif isinstance(target, list):
                target += items
        elif name == "BUILD":
            del stack[-2]
        elif name == "STOP":
            return stack[-1]
        else:
            before = [kind.name for kind in code.stack_before]
            if "mark" in before:
                del stack[marks.pop() :]
                before = before[: before.index("mark")]
            del stack[len(stack) - len(before) :]
            stack += [None] * len(code.stack_after)
    return None
