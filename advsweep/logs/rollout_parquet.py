"""Rollouts of TRL's GRPOTrainer: tables `completions_STEP.parquet`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from advsweep.errors import ConfigError, nearest
from advsweep.logs.base import whole_step
from advsweep.logs.rollout_groups import (
    NO_STEP,
    NOT_FINITE,
    RolloutGroup,
    RolloutNotes,
    RolloutPart,
    Wanted,
    as_text,
    finite,
    sum_of,
    weighted_sums,
)
from advsweep.packages import extra_command
from advsweep.printable import printable_line

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

# A small file may unpack to more than memory holds.
_MOST_BYTES = 4 * 2**30
_MOST_ROWS = 10**7
_BATCH_ROWS = 64

REPEATED = "tables with the rollouts of the table before"


class _Row(NamedTuple):
    step: int | None
    prompt: str
    completion: str
    reward: float
    advantage: float


def read_tables(
    files: Iterable[Path], wanted: Wanted, notes: RolloutNotes
) -> Iterator[Iterable[RolloutPart]]:
    """Yields the rollouts of each table that does not repeat the table before."""
    before: list[tuple[Any, ...]] = []
    for file in files:
        rows = _rows(file, wanted, notes)
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
    """Yields the groups of a table: rows in sequence with the same prompt."""
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
            group = RolloutGroup(
                part[0].prompt,
                [row.reward for row in part],
                answers=[row.completion for row in part] if wanted.answers else None,
                advantages=_advantages(part),
            )
            yield RolloutPart(step, (str(file), number), group)


def _advantages(part: list[_Row]) -> list[float] | None:
    """Returns the advantages of a group; None unless the table has them all."""
    found = [row.advantage for row in part]
    return None if any(map(math.isnan, found)) else found


def _rows(file: Path, wanted: Wanted, notes: RolloutNotes) -> list[_Row]:
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
    """Returns the columns of reward functions: of floats, between completion and advantage."""
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
