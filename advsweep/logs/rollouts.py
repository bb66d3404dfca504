"""Rollouts that other trainers dumped: the rewards of each prompt, step by step.

    notes = RolloutNotes()
    for step, groups in read_rollouts(Path("rollouts"), notes=notes): ...
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
not a finite number becomes NaN, an unscorable rollout. A step that a file logs again after later
steps, as after a resume, replaces what was read of it.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from advsweep.errors import ConfigError, UnknownNameError, nearest
from advsweep.logs.base import whole_step
from advsweep.logs.lines import json_objects
from advsweep.packages import extra_command
from advsweep.printable import printable_line

if TYPE_CHECKING:
    from jaxtyping import Float
    from pyarrow.parquet import ParquetFile

FORMS = ("verl", "trl", "jsonl")
INPUTS = ("ref_rewards", "token_entropy", "token_entropy_exact", "self_certainty", "answered")
"""Other numbers per rollout that JSON lines may have, by the names that estimators give them."""

REPEATED = "tables with the rollouts of the table before"
_NO_STEP = "lines without a step"
_NOT_FINITE = "rewards that are no finite numbers, taken as unscorable"
_LINE_ENDINGS = (".jsonl", ".ndjson")

# A small file may unpack to more than memory holds.
_MOST_BYTES = 4 * 2**30
_MOST_ROWS = 10**7
_BATCH_ROWS = 64


class RolloutGroup(NamedTuple):
    """The rollouts of one prompt.

    Attributes:
        prompt: its text; empty if the dump has none. A conversation is JSON.
        rewards: of each rollout; NaN for one that could not be scored.
        lengths: generated tokens of each rollout, if the dump has them.
        answers: the generated texts, if they were asked for and the dump has them.
        inputs: other numbers per rollout, by names of `INPUTS`.
        advantages: of each rollout, as the trainer logged them.
    """

    prompt: str
    rewards: list[float]
    lengths: list[int] | None = None
    answers: list[str] | None = None
    inputs: Mapping[str, list[float]] | None = None
    advantages: list[float] | None = None


class RolloutStep(NamedTuple):
    """The groups of one step."""

    step: int
    groups: list[RolloutGroup]


def filled(rows: list[list[float]], least: int = 0) -> Float[np.ndarray, "rows longest"]:
    """Return rows as a table, filled up with NaN to the longest, or at least so far."""
    sizes = np.array([len(row) for row in rows], dtype=np.int64)
    table = np.full((len(rows), sizes.max(initial=least)), math.nan)
    places = np.arange(table.shape[1]) < sizes[:, None]
    table[places] = [value for row in rows for value in row]
    return table


@dataclass
class RolloutNotes:
    """What reading found.

    Attributes:
        left_out: why lines, rollouts and groups were not used, with how often.
        remarks: sentences on how the dump was read.
    """

    left_out: Counter[str] = field(default_factory=Counter)
    remarks: list[str] = field(default_factory=list)

    def remark(self, text: str) -> None:
        """Add a sentence once."""
        if text not in self.remarks:
            self.remarks.append(text)

    def message(self) -> str:
        """Return one sentence on what was left out; empty if nothing was."""
        counts = ", ".join(f"{what} ({number:,})" for what, number in sorted(self.left_out.items()))
        return f"left out: {counts}" if counts else ""


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
    shown = printable_line(str(path))
    if form is not None and form not in FORMS:
        raise UnknownNameError(f"form: no form of rollouts is '{form}'; {nearest(form, FORMS)}")
    if not path.exists():
        raise ConfigError(f"{shown}: expected a file or folder of rollouts, there is none")
    tables = _tables(path)
    files: Iterator[Iterable[_Block]]
    if form == "trl" or (form is None and tables):
        if not tables:
            raise ConfigError(f"{shown}: expected files completions_*.parquet (TRL), got none")
        wanted = _Wanted(rewards, answers, size, weigh or (lambda names: dict.fromkeys(names, 1.0)))
        files = _table_blocks(tables, wanted, notes)
    else:
        lines = [path]
        if path.is_dir():
            inside = (f for f in path.glob("*") if f.suffix in _LINE_ENDINGS and f.is_file())
            # Those named by a step in the order of their numbers.
            lines = sorted(inside, key=lambda file: (_named_step(file) or 0, file.name))
        if not lines:
            raise ConfigError(
                f"{shown}: expected files {', '.join(f'*{end}' for end in _LINE_ENDINGS)} or "
                "completions_*.parquet, got none"
            )
        fields = _VERL if (form or _form_of_lines(lines, shown)) == "verl" else _JSONL
        files = (_line_blocks(file, fields, rewards, answers, notes) for file in lines)
    found = False
    for step in _joined(files, notes):
        found = True
        yield step
    if not found:
        why = f" ({notes.message()})" if notes.left_out else ""
        raise ConfigError(f"{shown}: expected rollouts with rewards and a step, got none{why}")


class _Rollout(NamedTuple):
    """One rollout; those of a step with the same key are a group."""

    key: Hashable
    prompt: str
    reward: float
    length: int | None = None
    answer: str | None = None
    advantage: float | None = None
    inputs: Mapping[str, float] | None = None


_Block = tuple[int, list[_Rollout]]
"""The rollouts of one step from lines or rows in sequence."""
_Groups = dict[Hashable, list[_Rollout]]


def _joined(files: Iterable[Iterable[_Block]], notes: RolloutNotes) -> Iterator[RolloutStep]:
    """Yield the steps of all files in ascending order."""
    steps: dict[int, _Groups] = {}
    for blocks in files:
        own: dict[int, _Groups] = {}
        for step, rollouts in blocks:
            groups: _Groups = {}
            for rollout in rollouts:
                groups.setdefault(rollout.key, []).append(rollout)
            earlier = own.setdefault(step, groups)
            if earlier is groups:
                continue
            # Prompts that come again are logged again, unless their rollouts were missing.
            prompts, before = ({r[0].prompt for r in each.values()} for each in (groups, earlier))
            if prompts & before and not groups.keys() & earlier.keys():
                own[step] = groups
                notes.left_out["groups of steps that are logged again later"] += len(earlier)
            else:
                _add(earlier, groups)
        for step, groups in own.items():
            _add(steps.setdefault(step, {}), groups)
    for step in sorted(steps):
        yield RolloutStep(step, [_group(rollouts) for rollouts in steps[step].values()])


def _add(groups: _Groups, more: _Groups) -> None:
    for key, rollouts in more.items():
        groups.setdefault(key, []).extend(rollouts)


def _group(rollouts: Sequence[_Rollout]) -> RolloutGroup:
    """Return a group; what only some of its rollouts have is dropped."""

    def of_all(values: list[Any]) -> Any:
        return None if any(value is None for value in values) else values

    shared = set.intersection(*(set(rollout.inputs or ()) for rollout in rollouts))
    inputs = {n: [(r.inputs or {})[n] for r in rollouts] for n in INPUTS if n in shared}
    return RolloutGroup(
        rollouts[0].prompt,
        [rollout.reward for rollout in rollouts],
        lengths=of_all([rollout.length for rollout in rollouts]),
        answers=of_all([rollout.answer for rollout in rollouts]),
        inputs=inputs or None,
        advantages=of_all([rollout.advantage for rollout in rollouts]),
    )


def sum_of(weights: Mapping[str, float]) -> str:
    """Return a weighted sum in words, such as `right + 0.2 short`."""
    parts = [name if weight == 1 else f"{weight:g} {name}" for name, weight in weights.items()]
    return printable_line(" + ".join(parts))


def _weighted_sums(columns: list[list[Any]], weights: Sequence[float]) -> list[float]:
    """Return the weighted sum of each rollout's rewards, without those that are NaN.

    NaN where all are, as in TRL.
    """
    sums = []
    for row in zip(*columns, strict=True):
        known = [w * v for w, v in zip(weights, map(_finite, row), strict=True) if v == v]
        sums.append(_finite(math.fsum(known)) if known else math.nan)
    return sums


def _finite(value: Any) -> float:
    """Return a number as a float; NaN for anything else and for infinity."""
    if not isinstance(value, (int, float)):
        return math.nan
    try:
        number = float(value)
    except OverflowError:  # An integer with more than 308 digits.
        return math.nan
    return number if math.isfinite(number) else math.nan


def _as_text(value: Any) -> str:
    """Return a prompt or a completion as text: a conversation as JSON, nothing as ''."""
    if isinstance(value, str) or value is None:
        return value or ""
    return json.dumps(value, ensure_ascii=False, default=str)


# Lines


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

# verl's V1 trainer: PROMPT_SESSION_OUTPUT, and rows without a reward that fill up a batch.
_SESSION = re.compile(r"(.+)_(\d{1,9})_(\d{1,9})", re.DOTALL)
_PADDING = re.compile(r"pad[0-9a-f]{32}")


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


def _line_blocks(
    file: Path,
    fields: _Fields,
    weights: Mapping[str, float] | None,
    answers: bool,
    notes: RolloutNotes,
) -> Iterator[_Block]:
    named = _named_step(file)
    texts: dict[str, str] = {}
    rows = (
        (whole_step(row.get("step", row.get("global_step", named))), row)
        for row in json_objects(file, notes.left_out)
    )
    for serial, (step, sequence) in enumerate(groupby(rows, key=lambda pair: pair[0])):
        if step is None:
            notes.left_out[_NO_STEP] += sum(1 for _ in sequence)
            continue
        # The rollouts of a step are few; those of a file without steps in order are not.
        lines = [row for _, row in sequence]
        rollouts: list[_Rollout] = []
        for number, (row, name) in enumerate(zip(lines, _names(lines, fields, notes), strict=True)):
            if (
                name is _LEFT_OUT
                or (columns := _reward_fields(row, fields, weights, notes)) is None
            ):
                continue
            rewards = _weighted_sums(list(columns.values()), [*(weights or {"": 1.0}).values()])
            if unscorable := sum(map(math.isnan, rewards)):
                notes.left_out[_NOT_FINITE] += unscorable
            text = _as_text(_first(row, fields.prompt))
            prompt = texts.setdefault(text, text)
            key: Hashable = name
            if key is None:  # A line with a list is a group.
                is_group = isinstance(row[next(iter(columns))], list)
                key = (str(file), serial, number if is_group else prompt)
            size = len(rewards)
            lengths = _numbers(row, "lengths", size) or _numbers(row, "length", size)
            written = _listed(_first(row, fields.answer), size) if answers else None
            others = {name: own for name in INPUTS if (own := _numbers(row, name, size))}
            rollouts += [
                _Rollout(
                    key,
                    prompt,
                    reward,
                    length=int(lengths[place]) if lengths else None,
                    answer=None if written is None else _as_text(written[place]),
                    inputs={name: own[place] for name, own in others.items()},
                )
                for place, reward in enumerate(rewards)
            ]
        if rollouts:
            yield step, rollouts


_LEFT_OUT = object()


def _names(
    rows: Sequence[Mapping[str, Any]], fields: _Fields, notes: RolloutNotes
) -> list[Hashable]:
    """Return what each row of a step says that its group is; None if it says nothing.

    Keys of verl's V1 trainer are PROMPT_SESSION_OUTPUT, each once; of a session, all outputs but
    the last are left out.
    """
    found = [_first(row, fields.group) for row in rows]
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
    names: list[Hashable] = [_LEFT_OUT] * len(rows)
    padding = 0
    for (prompt, _), (_, place) in last.items():
        if _PADDING.fullmatch(prompt):
            padding += 1
        else:
            names[place] = prompt
    for number, what in (
        (padding, "rows that only fill up a batch"),
        (len(rows) - len(last), "outputs before the last of their session"),
    ):
        if number:
            notes.left_out[what] += number
    return names


def _first(row: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _reward_fields(
    row: Mapping[str, Any],
    fields: _Fields,
    weights: Mapping[str, float] | None,
    notes: RolloutNotes,
) -> dict[str, list[Any]] | None:
    """Return the rewards of a line by field; None, and counts it, if it has none."""
    # A null is an unscorable rollout, and not a line without a reward.
    names = [name for name in weights or fields.reward if name in row][: None if weights else 1]
    columns = {name: row[name] if isinstance(row[name], list) else [row[name]] for name in names}
    sizes = {len(column) for column in columns.values()}
    if len(sizes) != 1 or 0 in sizes:
        notes.left_out["lines without a reward"] += 1
        return None
    nothing = [None] * sizes.pop()
    return {name: columns.get(name, nothing) for name in weights or names}


def _numbers(row: Mapping[str, Any], name: str, size: int) -> list[float] | None:
    """Return a finite number for each rollout; None unless the line has them all."""
    values = _listed(row.get(name), size)
    numbers = None if values is None else [_finite(value) for value in values]
    return None if numbers is None or any(map(math.isnan, numbers)) else numbers


def _listed(value: Any, size: int) -> list[Any] | None:
    """Return one value for each of `size` rollouts; a line of one rollout may have no list."""
    if value is None:
        return None
    values = value if isinstance(value, list) else [value]
    return values if len(values) == size else None


# Tables of TRL


class _Wanted(NamedTuple):
    """The arguments of `read_rollouts`."""

    rewards: Mapping[str, float] | None
    answers: bool
    size: int | None
    weigh: Callable[[list[str]], Mapping[str, float]]


def _tables(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix == ".parquet" else []
    for folder in (path, path / "completions"):
        if found := sorted(folder.glob("completions_*.parquet")):
            return found
    return []


def _table_blocks(
    files: Iterable[Path], wanted: _Wanted, notes: RolloutNotes
) -> Iterator[Iterable[_Block]]:
    """Yield the rollouts of each table that does not repeat the table before."""
    before: list[tuple[Any, ...]] = []
    for file in files:
        rows = _table_rows(file, wanted, notes)
        # NaN equals nothing, not even itself.
        content = [
            (r.prompt, r.answer, r.reward if r.reward == r.reward else None) for _, r in rows
        ]
        if content and content == before:
            notes.left_out[REPEATED] += 1
            continue
        before = content
        if without := sum(step is None for step, _ in rows):
            notes.left_out[_NO_STEP] += without
        if unscorable := sum(math.isnan(r.reward) for step, r in rows if step is not None):
            notes.left_out[_NOT_FINITE] += unscorable
        runs = [list(run) for _, run in groupby(rows, key=lambda row: (row[0], row[1].prompt))]
        runs = [run for run in runs if run[0][0] is not None]
        size = wanted.size or (Counter(map(len, runs)).most_common(1)[0][0] if runs else 1)
        blocks: list[_Block] = []
        for number, run in enumerate(runs):
            # A prompt that is drawn twice in sequence makes two groups.
            length = size if len(run) % size == 0 else len(run)
            step = run[0][0]
            assert step is not None
            rollouts = [
                rollout._replace(
                    key=(str(file), number, place // length),
                    answer=rollout.answer if wanted.answers else None,
                )
                for place, (_, rollout) in enumerate(run)
            ]
            if blocks and blocks[-1][0] == step:
                blocks[-1][1].extend(rollouts)
            else:
                blocks.append((step, rollouts))
        yield blocks


def _table_rows(
    file: Path, wanted: _Wanted, notes: RolloutNotes
) -> list[tuple[int | None, _Rollout]]:
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
    file: Path, table: ParquetFile, wanted: _Wanted, notes: RolloutNotes
) -> Iterator[tuple[int | None, _Rollout]]:
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
        rewards = _weighted_sums([columns[name] for name in weights], [*weights.values()])
        nothing = [None] * len(rewards)
        for step, prompt, completion, reward, advantage in zip(
            columns.get("step", [named] * len(rewards)),
            columns["prompt"],
            columns.get("completion", nothing),
            rewards,
            columns.get("advantage", nothing),
            strict=True,
        ):
            text = _as_text(prompt)
            number = _finite(advantage)
            yield (
                whole_step(step),
                _Rollout(
                    None,
                    texts.setdefault(text, text),
                    reward,
                    answer=_as_text(completion),
                    advantage=number if number == number else None,
                ),
            )


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
