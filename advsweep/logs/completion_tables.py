"""Tables of completions that TRL writes: their rows, with the group of each rollout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advsweep.errors import ConfigError, nearest
from advsweep.logs.base import whole_step
from advsweep.logs.forms import Fields
from advsweep.logs.rollout_records import RolloutNotes
from advsweep.logs.rollout_rows import as_text
from advsweep.logs.rollout_turns import count_messages
from advsweep.packages import import_extra
from advsweep.printable import printable_line

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

REPEATED = "tables with the rollouts of the table before"

# A small file may unpack to more than memory holds.
_MOST_BYTES = 4 * 2**30
_MOST_ROWS = 10**7
_BATCH_ROWS = 64

Weigh = Callable[[list[str]], Mapping[str, float]]


@dataclass(frozen=True)
class TableOptions:
    """How tables of completions are read.

    Attributes:
        weigh: returns the weights of reward functions by their names.
        size: rollouts of each group, which tells the groups of a prompt apart that was drawn
            twice in sequence; None: the most common number.
    """

    weigh: Weigh = lambda names: dict.fromkeys(names, 1.0)
    size: int | None = None


def sum_of(weights: Mapping[str, float]) -> str:
    """Return a weighted sum in words, such as `right + 0.2 short`."""
    parts = [name if weight == 1 else f"{weight:g} {name}" for name, weight in weights.items()]
    return printable_line(" + ".join(parts))


def completion_tables(path: Path) -> list[Path]:
    """Return the tables of completions in an output folder of TRL; none elsewhere."""
    if path.is_file():
        return [path] if path.suffix == ".parquet" else []
    for folder in (path, path / "completions"):
        tables = sorted(folder.glob("completions_*.parquet"))
        if tables:
            return tables
    return []


def read_tables(
    files: Iterable[Path],
    rewards: Mapping[str, float] | None,
    options: TableOptions,
    notes: RolloutNotes,
) -> Iterator[tuple[Path, list[Fields], Mapping[str, float]]]:
    """Yield each table that does not repeat the table before, its rows and weights of rewards.

    Each row gets the field `group`, as TRL's tables have none: rollouts of a prompt follow each
    other.

    Args:
        rewards: as of `read_rollouts`.
    """
    arrow = import_extra("pyarrow", "data", "a parquet file")
    from pyarrow.parquet import ParquetFile

    content_before: list[tuple[Any, ...]] = []
    for file in files:
        try:
            with ParquetFile(file) as table:
                weights = _weights_of(file, table, rewards, options.weigh, notes)
                rows = list(_unpacked(file, table, weights))
        except (arrow.ArrowException, OSError) as error:
            why = printable_line(str(error).strip().partition("\n")[0])[:200]
            # One damaged table must not hide the others.
            notes.left_out[f"tables that cannot be read (such as {file.name}: {why})"] += 1
            continue
        content = [_content_of(row, weights) for row in rows]
        if content and content == content_before:
            notes.left_out[REPEATED] += 1
            continue
        content_before = content
        _name_groups(file, rows, options.size)
        yield file, rows, weights


def _content_of(row: Fields, weights: Iterable[str]) -> tuple[Any, ...]:
    """Return what tells a rollout from another."""
    # Rewards as texts, since NaN equals nothing, not even itself.
    return row["prompt"], row.get("completion"), *(str(row[name]) for name in weights)


def _name_groups(file: Path, rows: Iterable[Fields], size: int | None) -> None:
    """Set the field `group` of each row.

    Args:
        size: rollouts of a group; None: the most common number.
    """
    runs = [list(run) for _, run in groupby(rows, lambda row: (row.get("step"), row["prompt"]))]
    if not runs:
        return
    usual = size or Counter(map(len, runs)).most_common(1)[0][0]
    for number, run in enumerate(runs):
        # A prompt that is drawn twice in sequence makes two groups.
        length = usual if len(run) % usual == 0 else len(run)
        for place, row in enumerate(run):
            row["group"] = f"{file} {number} {place // length}"


def _weights_of(
    file: Path,
    table: ParquetFile,
    rewards: Mapping[str, float] | None,
    weigh: Weigh,
    notes: RolloutNotes,
) -> Mapping[str, float]:
    """Return the weights of the columns whose sum is the reward, which all exist.

    The columns of reward functions are those of floats, between completion and advantage.
    """
    from pyarrow import types

    schema = table.schema_arrow
    names = schema.names
    start = names.index("completion") + 1 if "completion" in names else 0
    end = names.index("advantage") if "advantage" in names else len(names)
    weights = rewards or weigh(
        [
            name
            for name in names[start:end]
            if name not in ("step", "prompt") and types.is_floating(schema.field(name).type)
        ]
    )
    if rewards is None and len(weights) > 1:
        notes.remark(f"the reward is {sum_of(weights)}")
    if "prompt" not in names or not weights:
        got = ", ".join(printable_line(name)[:40] for name in names[:12])
        raise ConfigError(
            f"{file}: expected a table of completions with a column prompt, and columns of rewards "
            f"between completion and advantage, got {got}"
        )
    for name in weights:
        if name not in names:
            raise ConfigError(
                f"{file}: there is no column of rewards '{name}'; {nearest(name, names)}"
            )
    return weights


def _unpacked(file: Path, table: ParquetFile, weights: Iterable[str]) -> Iterator[Fields]:
    too_large = ConfigError(
        f"{file}: expected at most {_MOST_BYTES >> 30} GiB and {_MOST_ROWS:,} rows, got more"
    )
    metadata = table.metadata
    groups = range(metadata.num_row_groups)
    declared = sum(metadata.row_group(group).total_byte_size for group in groups)
    if declared > _MOST_BYTES or metadata.num_rows > _MOST_ROWS:
        raise too_large
    existing = table.schema_arrow.names
    columns = [name for name in ("step", "prompt", "completion", "advantage") if name in existing]
    named = whole_step(file.stem.rpartition("_")[2])
    texts: dict[str, str] = {}
    unpacked = 0
    for batch in table.iter_batches(batch_size=_BATCH_ROWS, columns=[*columns, *weights]):
        # A dictionary may repeat a long text more often than the table declares.
        unpacked += batch.nbytes
        if unpacked > _MOST_BYTES:
            raise too_large
        for row in batch.to_pylist():
            prompt = as_text(row["prompt"])
            row |= {"prompt": texts.setdefault(prompt, prompt), "step": row.get("step", named)}
            completion = row.get("completion")
            yield row | {"completion": as_text(completion), "turns": count_messages(completion)}
