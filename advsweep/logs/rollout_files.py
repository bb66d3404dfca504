"""Rollouts that other trainers dumped: the rewards of each prompt, step by step.

    notes = RolloutNotes()
    for step in read_rollouts(Path("rollouts"), notes=notes):
        rewards, mask = step.table()        # [groups, rollouts], and which of them count
    notes.message()                         # what was left out, in one sentence

Forms, which are recognised by their files:

- `verl`: a folder of `trainer.rollout_data_dir` (or one of its files). A file `STEP.jsonl` has a
  line per rollout: `input`, `output`, `gts`, `score`, `step`, and with the V1 trainer `uid`, the
  key PROMPT_SESSION_OUTPUT. A session with several outputs counts once, with its last, as in
  verl's own GRPO; rows that only pad the batch are left out. Without `uid`, the rollouts of a
  prompt are those with the same input.
- `trl`: an output folder of GRPOTrainer with `log_completions`, its folder `completions`, or one
  file `completions_*.parquet`, with a row per rollout: `step`, `prompt`, `completion`, a column
  per reward function, `advantage`. Groups are rows in sequence with the same prompt. The same
  rollouts are logged again at every step that trains on them and count once.
- `jsonl`: JSON lines with a group per line, `{"step": 1, "prompt": "1+1", "rewards": [0, 1]}`, or
  a rollout per line with `reward`. Optional are `lengths`, `answers` and `INPUTS`, with a list of
  numbers per group or one per rollout.

Groups may differ in size. A line that is cut or damaged is counted and left out; a reward that is
not a finite number becomes NaN, an unscorable rollout.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from advsweep.errors import ConfigError, UnknownNameError, nearest
from advsweep.logs.base import whole_step
from advsweep.logs.lines import json_objects
from advsweep.logs.rollouts import (
    INPUTS,
    NO_STEP,
    NOT_FINITE,
    RolloutGroup,
    RolloutNotes,
    RolloutPart,
    RolloutStep,
    Wanted,
    as_text,
    finite,
    joined_steps,
    sum_of,
    weighted_sums,
)
from advsweep.packages import extra_command
from advsweep.printable import printable_line

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

FORMS = ("verl", "trl", "jsonl")
_LINE_ENDINGS = (".jsonl", ".ndjson")

NO_REWARD = "lines without a reward"
REPEATED = "tables with the rollouts of the table before"

# A small file may unpack to more than memory holds.
_MOST_BYTES = 4 * 2**30
_MOST_ROWS = 10**7
_BATCH_ROWS = 64


def read_rollouts(
    path: Path,
    form: str | None = None,
    *,
    rewards: Mapping[str, float] | None = None,
    weigh: Callable[[list[str]], Mapping[str, float]] | None = None,
    size: int | None = None,
    answers: bool = False,
    notes: RolloutNotes | None = None,
) -> Iterator[RolloutStep]:
    """Yield the steps of a dump in ascending order.

    Args:
        path: a file or folder of one of the forms above.
        form: one of `FORMS`; None recognises it.
        rewards: names and weights of the fields or columns whose sum is the reward. By default
            `score` (verl), `rewards` or `reward` (JSON lines), or the sum of all columns of
            reward functions (TRL).
        weigh: returns the weights of TRL's reward functions by their names (default: 1 each).
        size: rollouts of each group of TRL, which tells the groups of a prompt apart that was
            drawn twice in sequence (default: the most common number).
        answers: whether to keep the generated texts, which are most of a dump.
        notes: receives what was left out; complete after the last step.

    Raises:
        ConfigError: there is no such dump, or it is of another form or holds no rollouts.
    """
    notes = notes or RolloutNotes()
    wanted = Wanted(rewards, answers, size=size)
    if weigh is not None:
        wanted = wanted._replace(weigh=weigh)
    found = False
    for step in joined_steps(_open(path, form, wanted, notes), notes):
        found = True
        yield step
    if not found:
        why = notes.message()
        raise ConfigError(
            f"{printable_line(str(path))}: expected rollouts with rewards and a step, got none"
            + f" ({why})" * bool(why)
        )


def _open(
    path: Path, form: str | None, wanted: Wanted, notes: RolloutNotes
) -> Iterator[Iterable[RolloutPart]]:
    """Return the parts of each file of a dump."""
    if form is not None and form not in FORMS:
        raise UnknownNameError(f"form: no form of rollouts is '{form}'; {nearest(form, FORMS)}")
    shown = printable_line(str(path))
    if not path.exists():
        raise ConfigError(f"{shown}: expected a file or folder of rollouts, there is none")
    tables = _tables(path)
    if form == "trl" or (form is None and tables):
        if not tables:
            raise ConfigError(f"{shown}: expected files completions_*.parquet (TRL), got none")
        return _read_tables(tables, wanted, notes)
    files = [path]
    if path.is_dir():
        found = (f for f in path.glob("*") if f.suffix in _LINE_ENDINGS and f.is_file())
        # Those named by a step in the order of their numbers.
        files = sorted(found, key=lambda file: (_named_step(file) or 0, file.name))
    if not files:
        raise ConfigError(
            f"{shown}: expected files {', '.join(f'*{end}' for end in _LINE_ENDINGS)} or "
            "completions_*.parquet, got none"
        )
    form = form or _form_of_lines(files, shown)
    return (_read_lines(file, form, wanted, notes) for file in files)


def _tables(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix == ".parquet" else []
    for folder in (path, path / "completions"):
        if found := sorted(folder.glob("completions_*.parquet")):
            return found
    return []


# verl's V1 trainer: PROMPT_SESSION_OUTPUT, and rows without a reward that fill up a batch.
_SESSION = re.compile(r"(.+)_(\d{1,9})_(\d{1,9})", re.DOTALL)
_PADDING = re.compile(r"pad[0-9a-f]{32}")


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


def _form_of_lines(files: Iterable[Path], shown: str) -> str:
    """Recognise lines by the first that is readable."""
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


def _named_step(file: Path) -> int | None:
    return whole_step(file.stem) if file.stem.isdecimal() else None


def _read_lines(
    file: Path, form: str, wanted: Wanted, notes: RolloutNotes
) -> Iterator[RolloutPart]:
    """Yield the rollouts of a file of lines."""
    fields = _VERL if form == "verl" else _JSONL
    if wanted.rewards is not None:
        fields = fields._replace(reward=tuple(wanted.rewards))
    named = _named_step(file)
    texts: dict[str, str] = {}
    rows = (
        (whole_step(row.get("step", row.get("global_step", named))), row)
        for row in json_objects(file, notes.left_out)
    )
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


_LEFT_OUT = object()


def _group_ids(
    rows: list[dict[str, Any]], names: tuple[str, ...], notes: RolloutNotes
) -> list[object]:
    """Return what each row of a step says that its group is; None if it says nothing.

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
    """Return the rewards of a line; None, and counts it, if it has none."""
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
    """Return a finite number for each rollout; None unless the line has them all."""
    values = _listed(row.get(name), size)
    numbers = None if values is None else [finite(value) for value in values]
    return None if numbers is None or any(map(math.isnan, numbers)) else numbers


def _listed(value: Any, size: int) -> list[Any] | None:
    """Return one value for each of `size` rollouts; a line of one rollout may have no list."""
    if value is None:
        return None
    values = value if isinstance(value, list) else [value]
    return values if len(values) == size else None


class _Row(NamedTuple):
    step: int | None
    prompt: str
    completion: str
    reward: float
    advantage: float


def _read_tables(
    files: Iterable[Path], wanted: Wanted, notes: RolloutNotes
) -> Iterator[Iterable[RolloutPart]]:
    """Yield the rollouts of each table that does not repeat the table before."""
    before: list[tuple[Any, ...]] = []
    for file in files:
        rows = _table_rows(file, wanted, notes)
        # NaN equals nothing, not even itself.
        content = [
            (r.prompt, r.completion, None if math.isnan(r.reward) else r.reward) for r in rows
        ]
        if content and content == before:
            notes.left_out[REPEATED] += 1
            continue
        before = content
        yield _parts(file, rows, wanted, notes)


def _parts(
    file: Path, rows: list[_Row], wanted: Wanted, notes: RolloutNotes
) -> Iterator[RolloutPart]:
    """Yield the groups of a table: rows in sequence with the same prompt."""
    if without := sum(row.step is None for row in rows):
        notes.left_out[NO_STEP] += without
    if unscorable := sum(math.isnan(row.reward) for row in rows if row.step is not None):
        notes.left_out[NOT_FINITE] += unscorable
    runs = [list(run) for _, run in groupby(rows, key=lambda row: (row.step, row.prompt))]
    runs = [run for run in runs if run[0].step is not None]
    size = wanted.size or (Counter(map(len, runs)).most_common(1)[0][0] if runs else 1)
    number = 0
    for run in runs:
        # A prompt that is drawn twice in sequence makes two groups.
        length = size if len(run) % size == 0 else len(run)
        for start in range(0, len(run), length):
            part = run[start : start + length]
            step = part[0].step
            assert step is not None
            number += 1
            advantages = [row.advantage for row in part]
            group = RolloutGroup(
                part[0].prompt,
                [row.reward for row in part],
                answers=[row.completion for row in part] if wanted.answers else None,
                # None unless the table has them all.
                advantages=None if any(map(math.isnan, advantages)) else advantages,
            )
            yield RolloutPart(step, (str(file), number), group)


def _table_rows(file: Path, wanted: Wanted, notes: RolloutNotes) -> list[_Row]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ConfigError(
            f"{file}: a parquet file needs pyarrow, which is not installed; "
            f"install it with `{extra_command('data')}`"
        ) from error
    try:
        with ParquetFile(file) as table:
            return list(_unpacked(file, table, wanted, notes))
    except (ArrowException, OSError) as error:
        why = printable_line(str(error).strip().partition("\n")[0])[:200]
        # One damaged table must not hide the others.
        notes.left_out[f"tables that cannot be read (such as {file.name}: {why})"] += 1
        return []


def _unpacked(
    file: Path, table: ParquetFile, wanted: Wanted, notes: RolloutNotes
) -> Iterator[_Row]:
    names = table.schema_arrow.names
    if "prompt" not in names:
        got = ", ".join(printable_line(name)[:40] for name in names[:12])
        raise ConfigError(
            f"{file}: expected a table of completions with a column prompt, got {got}"
        )
    weights = wanted.rewards
    if weights is None:
        weights = wanted.weigh(_reward_columns(table))
        if not weights:
            raise ConfigError(
                f"{file}: expected a column of rewards between completion and advantage, got none"
            )
        if len(weights) > 1:
            notes.remark(f"the reward is {sum_of(weights)}")
    for name in weights:
        if name not in names:
            raise ConfigError(
                f"{file}: there is no column of rewards '{name}'; {nearest(name, names)}"
            )
    metadata = table.metadata
    groups = range(metadata.num_row_groups)
    size = sum(metadata.row_group(group).total_byte_size for group in groups)
    if size > _MOST_BYTES or metadata.num_rows > _MOST_ROWS:
        raise ConfigError(
            f"{file}: expected at most {_MOST_BYTES >> 30} GiB and {_MOST_ROWS:,} rows, the table "
            f"declares {size / 2**30:.1f} GiB and {metadata.num_rows:,}"
        )
    known = [name for name in ("step", "prompt", "completion", "advantage") if name in names]
    named = whole_step(file.stem.rpartition("_")[2])
    texts: dict[str, str] = {}
    unpacked = 0
    for batch in table.iter_batches(batch_size=_BATCH_ROWS, columns=[*known, *weights]):
        unpacked += batch.nbytes
        if unpacked > _MOST_BYTES:
            raise ConfigError(f"{file}: expected at most {_MOST_BYTES >> 30} GiB unpacked")
        columns = batch.to_pydict()
        rewards = weighted_sums([columns[name] for name in weights], list(weights.values()))
        steps = columns.get("step", [named] * len(rewards))
        completions = columns.get("completion", [None] * len(rewards))
        advantages = map(finite, columns.get("advantage", [None] * len(rewards)))
        for step, prompt, completion, reward, advantage in zip(
            steps, columns["prompt"], completions, rewards, advantages, strict=True
        ):
            text = as_text(prompt)
            text = texts.setdefault(text, text)
            yield _Row(whole_step(step), text, as_text(completion), reward, advantage)


def _reward_columns(table: ParquetFile) -> list[str]:
    """Return the columns of reward functions: of floats, between completion and advantage."""
    from pyarrow import types

    schema = table.schema_arrow
    names = schema.names
    start = names.index("completion") + 1 if "completion" in names else 0
    end = names.index("advantage") if "advantage" in names else len(names)
    return [
        name
        for name in names[start:end]
        if name not in ("step", "prompt") and types.is_floating(schema.field(name).type)
    ]
