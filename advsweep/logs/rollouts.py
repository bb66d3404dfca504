"""Rollouts that other trainers dumped: the rewards of each prompt, step by step.

    notes = RolloutNotes()
    for step, groups in read_rollouts(Path("rollouts"), notes=notes): ...
    notes.message()                         # what was left out, in one sentence

Forms, which are recognised by their files and lines:

- verl: a folder of `trainer.rollout_data_dir` (or one of its files). A file `STEP.jsonl` has a
  line per rollout: `input`, `output`, `gts`, `score`, `step`, and with the V1 trainer `uid`, the
  key PROMPT_SESSION_OUTPUT. A session with several outputs counts once, with its last, as in
  verl's own GRPO; rows that only pad the batch are left out. Without `uid`, the rollouts of a
  prompt are those with the same input.
- TRL: an output folder of GRPOTrainer with `log_completions`, its folder `completions`, or one
  file `completions_*.parquet`, with a row per rollout: `step`, `prompt`, `completion`, a column
  per reward function, `advantage`. Groups are rows in sequence with the same prompt. The same
  rollouts are logged again at every step that trains on them and count once.
- prime-rl, NeMo-RL and open-instruct: as `advsweep.logs.forms` says.
- other JSON lines: a group per line, `{"step": 1, "prompt": "1+1", "rewards": [0, 1]}`, or
  a rollout per line with `reward`. Optional are `lengths`, `advantage` and `INPUTS`, with a list of
  numbers per group or one per rollout, and their texts: `completions` or `completion`.

How dumps tell the turns of agents, `advsweep.logs.rollout_turns` says.

Groups may differ in size. A line that is cut or damaged is counted and left out; a reward that is
not a finite number becomes NaN, an unscorable rollout. A step that a file logs again after later
steps, as after a resume, replaces what was read of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from advsweep.errors import ConfigError, first_of
from advsweep.logs.base import existing
from advsweep.logs.completion_tables import TableOptions, completion_tables, read_tables
from advsweep.logs.forms import Fields, find_dumps, rows_of, step_of
from advsweep.logs.json_lines import json_objects
from advsweep.logs.rollout_records import INPUTS, RolloutGroup, RolloutNotes, RolloutStep
from advsweep.logs.rollout_rows import Part, groups_of_rows
from advsweep.logs.rollout_turns import join_turns
from advsweep.printable import printable_line

LINE_ENDINGS = (".jsonl", ".ndjson")


def read_rollouts(
    path: Path | Sequence[Path],
    *,
    rewards: Mapping[str, float] | None = None,
    tables: TableOptions | None = None,
    completions: bool = False,
    notes: RolloutNotes | None = None,
) -> Iterator[RolloutStep]:
    """Yield the steps of a dump in ascending order.

    Args:
        path: a file or folder of one of the forms above, or files of lines.
        rewards: names and weights of the fields or columns whose sum is the reward. By default
            `score` (verl), `rewards` or `reward` (JSON lines), or the sum of all columns of
            reward functions (TRL).
        tables: how tables of TRL are read.
        completions: read the texts of the rollouts too: of verl, TRL and other JSON lines.
        notes: receives what was left out; complete after the last step.

    Raises:
        ConfigError: there is no such dump, or it is of another form or holds no rollouts.
    """
    notes = notes or RolloutNotes()
    steps: dict[int, dict[Hashable, list[RolloutGroup]]] = {}
    for file, rows, weights in _sources(path, rewards, tables or TableOptions(), notes):
        parts = groups_of_rows(file, rows, notes, weights=weights, completions=completions)
        for step, groups in _last_of_each_step(parts, notes).items():
            groups_of_step = steps.setdefault(step, {})
            for key, more in groups.items():
                groups_of_step.setdefault(key, []).extend(more)
    if not steps:
        why = f" ({notes.message()})" if notes.left_out else ""
        raise ConfigError(
            f"{printable_line(str(path))}: expected completions_*.parquet (TRL) or "
            f"JSON lines of rollouts with rewards and a step, got none{why}"
        )
    for step in sorted(steps):
        yield RolloutStep(step, [_joined(parts) for parts in steps[step].values()])


def _sources(
    path: Path | Sequence[Path],
    rewards: Mapping[str, float] | None,
    tables: TableOptions,
    notes: RolloutNotes,
) -> Iterator[tuple[Path, Iterable[Fields], Mapping[str, float] | None]]:
    """Yield each file of a dump with its rows, and the weights of its rewards."""
    files: Sequence[Path]
    if isinstance(path, Path):
        table_files = completion_tables(existing(path))
        if table_files:
            yield from read_tables(table_files, rewards, tables, notes)
            return
        files = _files_of(path)
    else:
        files = path
    for file in files:
        yield file, _rows_of_lines(file, notes), rewards


def line_files(folder: Path) -> list[Path]:
    """Return the files of lines in a folder, in the order of the steps that name them."""
    files = folder.iterdir() if folder.is_dir() else ()
    lines = [file for file in files if file.suffix in LINE_ENDINGS and file.is_file()]
    return sorted(lines, key=lambda file: (step_of(file) or 0, file.name))


def _files_of(path: Path) -> list[Path]:
    """Return the files of rollouts in a folder, or the file itself."""
    if not path.is_dir():
        return [path]
    runs = find_dumps(path)
    if len(runs) > 1:
        names = first_of([printable_line(run.home.name) for run in runs], 5)
        raise ConfigError(f"{path}: expected rollouts of one run, got {names}; name one")
    return runs[0].training if runs else line_files(path)


def _rows_of_lines(file: Path, notes: RolloutNotes) -> Iterator[Fields]:
    for line in json_objects(file, notes.left_out):
        yield from rows_of(line, notes.left_out)


def _last_of_each_step(
    parts: Iterable[Part], notes: RolloutNotes
) -> dict[int, dict[Hashable, list[RolloutGroup]]]:
    """Return the groups of one file by step and key, each in parts."""
    steps: dict[int, dict[Hashable, list[RolloutGroup]]] = {}
    for step, block in groupby(parts, key=itemgetter(0)):
        groups: dict[Hashable, list[RolloutGroup]] = {}
        for _, key, part in block:
            groups.setdefault(key, []).append(part)
        earlier = steps.setdefault(step, groups)
        if earlier is groups:
            continue
        # Prompts that come again are logged again, unless their rollouts were missing.
        is_repeated = not _prompts(groups).isdisjoint(_prompts(earlier))
        if is_repeated and groups.keys().isdisjoint(earlier.keys()):
            steps[step] = groups
            notes.left_out["groups of steps that are logged again later"] += len(earlier)
            continue
        # Parts of a step that other steps interrupt, as several processes write them.
        for key, more in groups.items():
            earlier.setdefault(key, []).extend(more)
    return steps


def _prompts(groups: Mapping[Hashable, Sequence[RolloutGroup]]) -> set[str]:
    return {parts[0].prompt for parts in groups.values()}


def _joined(parts: list[RolloutGroup]) -> RolloutGroup:
    """Return the group of some parts; what only some of them have is dropped."""
    if len(parts) == 1:
        return parts[0]

    def of_all(lists: list[Any]) -> Any:
        return None if None in lists else list(chain.from_iterable(lists))

    inputs = {name: of_all([(part.inputs or {}).get(name) for part in parts]) for name in INPUTS}
    return RolloutGroup(
        prompt=parts[0].prompt,
        rewards=of_all([part.rewards for part in parts]),
        lengths=of_all([part.lengths for part in parts]),
        inputs={name: values for name, values in inputs.items() if values is not None} or None,
        advantages=of_all([part.advantages for part in parts]),
        task=parts[0].task,
        completions=of_all([part.completions for part in parts]),
        turns=join_turns([part.turns for part in parts]),
    )
