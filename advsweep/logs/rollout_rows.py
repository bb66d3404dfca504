"""Rows of a dump, which are lines of a file or rows of a table, as groups of rollouts.

A row is a rollout, or a group of them with lists in its fields.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from advsweep.bounds import is_bounded
from advsweep.logs.base import whole_step
from advsweep.logs.forms import TRACES, Fields, step_of
from advsweep.logs.rollout_records import INPUTS, GroupTurns, RolloutGroup, RolloutNotes
from advsweep.logs.rollout_turns import (
    FIELDS,
    BrokenTurnsError,
    count_in_text,
    count_messages,
    read_turns,
)

_NO_STEP = "lines without a step"
_NOT_FINITE = "rewards that are no finite numbers, taken as unscorable"
_BROKEN_TURNS = f"{', '.join(FIELDS)} that do not add up to turns of the rollouts"
_LONGEST_NAME = 200

# Names of the fields of a line; of several, the first that it has.
_PROMPT = ("prompt", "input", "question")
_COMPLETION = ("completions", "completion", "output", "response")
_REWARD = ("rewards", "reward", "scores", "score")
_GROUP = ("group", "uid", "prompt_id")

# verl's V1 trainer: PROMPT_SESSION_OUTPUT, and rows without a reward that fill up a batch.
_SESSION = re.compile(r"(.+)_(\d{1,9})_(\d{1,9})", re.DOTALL)
_PADDING = re.compile(r"pad[0-9a-f]{32}")

# A step, the key of a group within it, and some of that group's rollouts.
Part = tuple[int, Hashable, RolloutGroup]


def groups_of_rows(
    file: Path,
    rows: Iterable[Fields],
    notes: RolloutNotes,
    *,
    weights: Mapping[str, float] | None,
    completions: bool,
) -> Iterator[Part]:
    """Yield the rollouts of each row that has a step and a reward; count the others.

    Args:
        weights: as `rewards` of `read_rollouts`.
        completions: whether to read the texts of the rollouts.
    """
    texts: dict[str, str] = {}
    stepped: Iterable[tuple[int, Fields]] = _with_steps(file, rows, notes)
    if file.name == TRACES:
        # Groups of several steps end side by side: nothing of it is a step that is logged again.
        stepped = sorted(stepped, key=itemgetter(0))
    blocks = groupby(stepped, key=itemgetter(0))
    # The rollouts of a step are few; those of a file without steps in order are not.
    for serial, (step, block) in enumerate(blocks):
        named_rows = _named_rows([row for _, row in block], notes)
        for number, (name, row) in enumerate(named_rows):
            group = _group_of(row, weights, completions=completions)
            if group is None:
                notes.left_out["lines without a reward"] += 1
                continue
            unscorable = sum(map(math.isnan, group.rewards))
            if unscorable:
                notes.left_out[_NOT_FINITE] += unscorable
            turns = _turns_of(row, weights, len(group.rewards), notes)
            # One copy of each prompt: a group repeats it, and so do later epochs.
            prompt = texts.setdefault(group.prompt, group.prompt)
            key: Hashable = name
            if key is None:
                key = (str(file), serial, number if _is_group(row, weights) else prompt)
            yield step, key, group._replace(prompt=prompt, turns=turns)


def _group_of(
    row: Fields, weights: Mapping[str, float] | None, *, completions: bool
) -> RolloutGroup | None:
    """Return the rollouts of a row; None without a reward of each."""
    rewards = _rewards_of(row, weights)
    if rewards is None:
        return None
    size = len(rewards)
    lengths = _numbers(row, "lengths", size) or _numbers(row, "length", size)
    inputs = {name: _numbers(row, name, size) for name in INPUTS}
    return RolloutGroup(
        prompt=as_text(_first(row, _PROMPT)),
        rewards=rewards,
        lengths=[int(length) for length in lengths] if lengths else None,
        inputs={name: numbers for name, numbers in inputs.items() if numbers} or None,
        advantages=_numbers(row, "advantage", size),
        task=as_text(row.get("task"))[:_LONGEST_NAME],
        completions=_completions_of(row, weights, size) if completions else None,
    )


def _turns_of(
    row: Fields, weights: Mapping[str, float] | None, size: int, notes: RolloutNotes
) -> GroupTurns | None:
    """Return the turns of a row's rollouts; None if it does not tell them."""
    is_group = _is_group(row, weights)
    try:
        turns = read_turns(row, size, is_group=is_group)
    except BrokenTurnsError:
        notes.left_out[_BROKEN_TURNS] += 1
        return None
    if turns is not None:
        return turns
    written = _first(row, _COMPLETION)
    answers = _listed(written) if is_group else [written]
    counts = [_count_turns(row, answer) for answer in answers]
    known = [count for count in counts if count is not None]
    return GroupTurns(known) if len(known) == size else None


def _count_turns(row: Fields, answer: Any) -> int | None:
    if isinstance(answer, str):
        return count_in_text(answer) if "output" in row else None
    return count_messages(answer)


def _reward_names(row: Fields, weights: Mapping[str, float] | None) -> list[str]:
    """Return the fields whose weighted sum is the reward, of which the row may lack some."""
    if weights:
        return list(weights)
    if "score" in row and ("input" in row or "output" in row):  # verl
        return ["score"]
    return [name for name in _REWARD if name in row][:1]


def _rewards_of(row: Fields, weights: Mapping[str, float] | None) -> list[float] | None:
    """Return the reward of each rollout of a row; None if it has none, or not one for each."""
    names = _reward_names(row, weights)
    # A null is an unscorable rollout, and not a row without a reward.
    columns = {name: _listed(row[name]) for name in names if name in row}
    sizes = {len(column) for column in columns.values()}
    if len(sizes) != 1 or 0 in sizes:
        return None
    (size,) = sizes
    factors = weights.values() if weights else [1.0]
    return _weighted_sums([columns.get(name, [None] * size) for name in names], factors)


def _is_group(row: Fields, weights: Mapping[str, float] | None) -> bool:
    """Return whether a row with rewards is a group: it has a list of them."""
    name = next(name for name in _reward_names(row, weights) if name in row)
    return isinstance(row[name], list)


def _completions_of(
    row: Fields, weights: Mapping[str, float] | None, size: int
) -> list[str] | None:
    """Return the text of each rollout of a row; None unless it has them all."""
    written = _first(row, _COMPLETION)
    # A completion that is a conversation is a list too.
    answers = _listed(written) if _is_group(row, weights) else [written]
    if len(answers) != size or None in answers:
        return None
    return [as_text(answer) for answer in answers]


def _weighted_sums(columns: list[list[Any]], weights: Iterable[float]) -> list[float]:
    """Return the weighted sum of each rollout's rewards, without those that are NaN.

    NaN where all are, as in TRL.
    """
    factors = list(weights)
    sums = []
    for row in zip(*columns, strict=True):
        numbers = zip(factors, map(_finite, row), strict=True)
        products = [factor * number for factor, number in numbers if not math.isnan(number)]
        sums.append(_finite(math.fsum(products)) if products else math.nan)
    return sums


def _finite(value: Any) -> float:
    """Return a number as a float; NaN for anything else, for infinity and beyond the bound."""
    if not isinstance(value, (int, float)):
        return math.nan
    try:
        number = float(value)
    except OverflowError:  # An integer with more than 308 digits.
        return math.nan
    return number if is_bounded(number) else math.nan


def as_text(value: Any) -> str:
    """Return a prompt or a completion as text: a conversation as JSON, nothing as ''."""
    if isinstance(value, str) or value is None:
        return value or ""
    return json.dumps(value, ensure_ascii=False, default=str)


def _with_steps(
    file: Path, rows: Iterable[Fields], notes: RolloutNotes
) -> Iterator[tuple[int, Fields]]:
    named = step_of(file)
    stepless: list[Fields] = []
    has_steps = False
    for row in rows:
        value = _first(row, ("step", "global_step"))
        if value is None:
            value = named
        step = whole_step(value)
        if step is not None:
            has_steps = True
            yield step, row
        elif value is None and not has_steps:
            stepless.append(row)
        else:
            notes.left_out[_NO_STEP] += 1
    if not has_steps:
        # A batch that nobody numbered.
        yield from ((0, row) for row in stepless)
    elif stepless:
        notes.left_out[_NO_STEP] += len(stepless)


def _named_rows(rows: Sequence[Fields], notes: RolloutNotes) -> list[tuple[str | None, Fields]]:
    """Return the rows of a step that count, with what each says that its group is.

    Keys of verl's V1 trainer are PROMPT_SESSION_OUTPUT, each once; of a session, all outputs but
    the last are left out.
    """
    values = [_first(row, _GROUP) for row in rows]
    keys = [None if value is None else str(value) for value in values]
    sessions = [_session_of(row) for row in rows]
    if None in sessions or len(set(keys)) < len(keys):
        return list(zip(keys, rows, strict=True))
    prompts = _last_outputs([match for match in sessions if match is not None])
    kept = {
        place: prompt for place, prompt in prompts.items() if _PADDING.fullmatch(prompt) is None
    }
    paddings = len(prompts) - len(kept)
    if paddings:
        notes.left_out["rows that only fill up a batch"] += paddings
    earlier_outputs = len(rows) - len(prompts)
    if earlier_outputs:
        notes.left_out["outputs before the last of their session"] += earlier_outputs
    turns = _turns_of_sessions(rows, [match for match in sessions if match is not None])
    return [(kept[place], {"turns": turns[place], **rows[place]}) for place in sorted(kept)]


def _turns_of_sessions(rows: Sequence[Fields], sessions: Sequence[re.Match[str]]) -> list[int]:
    """Return for each output how many turns all outputs of its session have together."""
    keys = [match.groups()[:2] for match in sessions]
    totals: Counter[Any] = Counter()
    for key, row in zip(keys, rows, strict=True):
        totals[key] += count_in_text(as_text(row.get("output")))
    return [totals[key] for key in keys]


def _session_of(row: Fields) -> re.Match[str] | None:
    uid = row.get("uid")
    return _SESSION.fullmatch(uid) if isinstance(uid, str) else None


def _last_outputs(sessions: Sequence[re.Match[str]]) -> dict[int, str]:
    """Return the prompt of the last output of each session, by its place among all outputs.

    verl's GRPO takes the last output of a session, and counts it once.
    """
    last: dict[tuple[str, str], tuple[int, int]] = {}
    for place, match in enumerate(sessions):
        prompt, session, output = match.groups()
        key = (prompt, session)
        last[key] = max(last.get(key, (-1, -1)), (int(output), place))
    return {place: prompt for (prompt, _), (_, place) in last.items()}


def _first(row: Fields, names: Iterable[str]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _listed(value: Any) -> list[Any]:
    """Return one value for each rollout; a line of one rollout may have no list."""
    return value if isinstance(value, list) else [value]


def _numbers(row: Fields, name: str, size: int) -> list[float] | None:
    """Return a finite number for each rollout; None unless the line has them all."""
    numbers = [_finite(value) for value in _listed(row.get(name))]
    return None if len(numbers) != size or any(map(math.isnan, numbers)) else numbers
