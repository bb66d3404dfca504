"""Rollouts in JSON lines: verl's, and those of trainers of one's own."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from advsweep.errors import ConfigError
from advsweep.logs.base import whole_step
from advsweep.logs.json_lines import json_objects
from advsweep.logs.rollout_groups import (
    INPUTS,
    NO_STEP,
    NOT_FINITE,
    RolloutGroup,
    RolloutNotes,
    RolloutPart,
    Wanted,
    as_text,
    finite,
    weighted_sums,
)
from advsweep.printable import printable_line

# verl's V1 trainer: PROMPT_SESSION_OUTPUT, and rows without a reward that fill up a batch.
_SESSION = re.compile(r"(.+)_(\d{1,9})_(\d{1,9})", re.DOTALL)
_PADDING = re.compile(r"pad[0-9a-f]{32}")
NO_REWARD = "lines without a reward"


class _Fields(NamedTuple):
    """Names of the fields of a line; of several, the first that it has."""

    prompt: tuple[str, ...]
    answer: tuple[str, ...]
    reward: tuple[str, ...]
    group: tuple[str, ...]


_VERL = _Fields(("input",), ("output",), ("score",), ("uid",))
_JSONL = _Fields(
    ("prompt", "input", "question"),
    ("answers", "answer", "completions", "completion", "output"),
    ("rewards", "reward", "scores", "score"),
    ("group", "uid", "prompt_id"),
)


def form_of_lines(files: Iterable[Path], shown: str) -> str:
    """Recognises lines by the first that is readable."""
    row = next((row for file in files for row in json_objects(file, Counter())), None)
    if row is None:
        raise ConfigError(f"{shown}: expected JSON lines, got no line with an object")
    if "score" in row and ("input" in row or "output" in row):
        return "verl"
    if any(name in row for name in _JSONL.reward):
        return "jsonl"
    got = ", ".join(printable_line(str(name))[:40] for name in list(row)[:12])
    raise ConfigError(
        f"{shown}: expected lines with input, output and score (verl) or with step, prompt and "
        f"rewards, got {got}; name the form and the reward"
    )


def named_step(file: Path) -> int | None:
    return whole_step(file.stem) if file.stem.isdecimal() else None


def read_lines(file: Path, form: str, wanted: Wanted, notes: RolloutNotes) -> Iterator[RolloutPart]:
    """Yields the rollouts of a file of lines."""
    fields = _VERL if form == "verl" else _JSONL
    if wanted.rewards is not None:
        fields = fields._replace(reward=tuple(wanted.rewards))
    named = named_step(file)
    texts: dict[str, str] = {}
    rows = ((_step_of(row, named), row) for row in json_objects(file, notes.left_out))
    for serial, (step, block) in enumerate(groupby(rows, key=lambda pair: pair[0])):
        if step is None:
            notes.left_out[NO_STEP] += sum(1 for _ in block)
            continue
        # The rollouts of a step are few; those of a file without steps in order are not.
        lines = [row for _, row in block]
        ids = _group_ids(lines, fields.group, notes)
        for number, (row, name) in enumerate(zip(lines, ids, strict=True)):
            if name is _LEFT_OUT:
                continue
            rewards = _rewards(row, fields.reward, wanted.rewards, notes)
            if rewards is None:
                continue
            prompt = as_text(_first(row, fields.prompt))
            group = _group(row, prompt, rewards, fields, wanted)
            if name is not None:
                key: Any = name
            elif isinstance(_first(row, fields.reward), list):
                key = (str(file), serial, number)  # A line is a group.
            else:
                key = (str(file), serial, prompt)
            yield RolloutPart(step, key, group._replace(prompt=texts.setdefault(prompt, prompt)))


def _step_of(row: Mapping[str, Any], named: int | None) -> int | None:
    for name in ("step", "global_step"):
        if name in row:
            return whole_step(row[name])
    return named


_LEFT_OUT = object()


def _group_ids(
    rows: list[dict[str, Any]], names: tuple[str, ...], notes: RolloutNotes
) -> list[object]:
    """Returns what each row of a step says that its group is; None if it says nothing.

    Keys of verl's V1 trainer are PROMPT_SESSION_OUTPUT, each once; of a session, all outputs but
    the last are left out.
    """
    found = [_first(row, names) for row in rows]
    keys = [None if value is None else str(value) for value in found]
    parsed = [None if key is None else _SESSION.fullmatch(key) for key in keys]
    if not all(parsed) or len(set(keys)) < len(keys):
        return list(keys)
    last: dict[tuple[str, str], tuple[int, int]] = {}
    for place, match in enumerate(parsed):
        assert match is not None
        prompt, session, output = match.groups()
        known = last.get((prompt, session), (-1, -1))
        last[prompt, session] = max(known, (int(output), place))
    ids: list[object] = [_LEFT_OUT] * len(rows)
    padding = 0
    for (prompt, _), (_, place) in last.items():
        if _PADDING.fullmatch(prompt):
            padding += 1
        else:
            ids[place] = prompt
    for number, what in (
        (padding, "rows that only fill up a batch"),
        (len(rows) - len(last), "outputs before the last of their session"),
    ):
        if number:
            notes.left_out[what] += number
    return ids


def _first(row: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _rewards(
    row: Mapping[str, Any],
    names: tuple[str, ...],
    weights: Mapping[str, float] | None,
    notes: RolloutNotes,
) -> list[float] | None:
    """Returns the rewards of a line; None, and counts it, if it has none."""
    if weights is None:
        # A null is an unscorable rollout, and not a line without a reward.
        name = next((name for name in names if name in row), None)
        columns = {} if name is None else {name: 1.0}
    else:
        columns = {name: weight for name, weight in weights.items() if name in row}
    values = [row[name] if isinstance(row[name], list) else [row[name]] for name in columns]
    if not values or not values[0] or len({len(value) for value in values}) > 1:
        notes.left_out[NO_REWARD] += 1
        return None
    rewards = weighted_sums(values, list(columns.values()))
    if unscorable := sum(map(math.isnan, rewards)):
        notes.left_out[NOT_FINITE] += unscorable
    return rewards


def _group(
    row: Mapping[str, Any],
    prompt: str,
    rewards: list[float],
    fields: _Fields,
    wanted: Wanted,
) -> RolloutGroup:
    size = len(rewards)
    inputs = {name: numbers for name in INPUTS if (numbers := _numbers(row, name, size))}
    lengths = _numbers(row, "lengths", size) or _numbers(row, "length", size)
    answers = _listed(_first(row, fields.answer), size) if wanted.answers else None
    return RolloutGroup(
        prompt,
        rewards,
        lengths=[int(length) for length in lengths] if lengths else None,
        answers=None if answers is None else [as_text(answer) for answer in answers],
        inputs=inputs or None,
    )


def _numbers(row: Mapping[str, Any], name: str, size: int) -> list[float] | None:
    """Returns a finite number for each rollout; None unless the line has them all."""
    values = _listed(row.get(name), size)
    numbers = None if values is None else [finite(value) for value in values]
    return None if numbers is None or any(map(math.isnan, numbers)) else numbers


def _listed(value: Any, size: int) -> list[Any] | None:
    """Returns one value for each of `size` rollouts; a line of one rollout may have no list."""
    if value is None:
        return None
    values = value if isinstance(value, list) else [value]
    return values if len(values) == size else None
