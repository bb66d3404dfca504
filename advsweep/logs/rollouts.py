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
not a finite number becomes NaN, an unscorable rollout. A step that a file logs again after later
steps, as after a resume, replaces what was read of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from advsweep.errors import ConfigError, UnknownNameError, nearest
from advsweep.logs.rollout_groups import (
    INPUTS,
    RolloutGroup,
    RolloutNotes,
    RolloutPart,
    RolloutStep,
    Wanted,
    filled,
    sum_of,
)
from advsweep.logs.rollout_lines import form_of_lines, named_step, read_lines
from advsweep.printable import printable_line

__all__ = [
    "FORMS",
    "INPUTS",
    "RolloutGroup",
    "RolloutNotes",
    "RolloutStep",
    "filled",
    "read_rollouts",
    "sum_of",
]

FORMS = ("verl", "trl", "jsonl")
_LINE_ENDINGS = (".jsonl", ".ndjson")


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
    """Yields the steps of a dump in ascending order.

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
    steps: dict[int, _Block] = {}
    wanted = Wanted(rewards, answers, size=size)
    if weigh is not None:
        wanted = wanted._replace(weigh=weigh)
    files = _open(path, form, wanted, notes)
    for parts in files:
        for step, block in _blocks_of_file(parts, notes).items():
            known = steps.setdefault(step, block)
            if known is not block:
                for key, group in block.groups.items():
                    known.add(key, group)
    if not steps:
        why = notes.message()
        raise ConfigError(
            f"{printable_line(str(path))}: expected rollouts with rewards and a step, got none"
            + f" ({why})" * bool(why)
        )
    yield from (RolloutStep(step, list(steps[step].groups.values())) for step in sorted(steps))


def _open(
    path: Path, form: str | None, wanted: Wanted, notes: RolloutNotes
) -> Iterator[Iterable[RolloutPart]]:
    """Returns the parts of each file of a dump."""
    if form is not None and form not in FORMS:
        raise UnknownNameError(f"form: no form of rollouts is '{form}'; {nearest(form, FORMS)}")
    shown = printable_line(str(path))
    if not path.exists():
        raise ConfigError(f"{shown}: expected a file or folder of rollouts, there is none")
    tables = _tables(path)
    if form == "trl" or (form is None and tables):
        if not tables:
            raise ConfigError(f"{shown}: expected files completions_*.parquet (TRL), got none")
        from advsweep.logs.rollout_parquet import read_tables

        return read_tables(tables, wanted, notes)
    files = _line_files(path)
    if not files:
        raise ConfigError(
            f"{shown}: expected files {', '.join(f'*{end}' for end in _LINE_ENDINGS)} or "
            "completions_*.parquet, got none"
        )
    form = form or form_of_lines(files, shown)
    return (read_lines(file, form, wanted, notes) for file in files)


def _tables(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix == ".parquet" else []
    for folder in (path, path / "completions"):
        if found := sorted(folder.glob("completions_*.parquet")):
            return found
    return []


def _line_files(path: Path) -> list[Path]:
    """Returns the files of lines; those named by a step in the order of their numbers."""
    if path.is_file():
        return [path]
    found = [file for file in path.glob("*") if file.suffix in _LINE_ENDINGS and file.is_file()]
    return sorted(found, key=lambda file: (named_step(file) or 0, file.name))


@dataclass
class _Block:
    """Groups of one step from lines in sequence."""

    groups: dict[Hashable, RolloutGroup] = field(default_factory=dict)
    prompts: set[str] = field(default_factory=set)

    def add(self, key: Hashable, group: RolloutGroup) -> None:
        self.groups[key] = _joined(self.groups[key], group) if key in self.groups else group
        self.prompts.add(group.prompt)

    def repeats(self, earlier: _Block) -> bool:
        """Whether this logs prompts of an earlier block again, and not rollouts missing there."""
        return not self.prompts.isdisjoint(earlier.prompts) and self.groups.keys().isdisjoint(
            earlier.groups
        )


def _blocks_of_file(parts: Iterable[RolloutPart], notes: RolloutNotes) -> dict[int, _Block]:
    """Returns the groups of a file by step; a step that is logged again counts as its last."""
    found: dict[int, _Block] = {}
    for step, sequence in groupby(parts, key=lambda part: part.step):
        block = _Block()
        for part in sequence:
            block.add(part.key, part.group)
        earlier = found.setdefault(step, block)
        if earlier is block:
            continue
        if block.repeats(earlier):
            found[step] = block
            notes.left_out["groups of steps that are logged again later"] += len(earlier.groups)
        else:
            for key, group in block.groups.items():
                earlier.add(key, group)
    return found


def _joined(first: RolloutGroup, second: RolloutGroup) -> RolloutGroup:
    """Adds the rollouts of a second part to the first; what only one of them has is dropped."""
    # In place, as a group may have a part per rollout.
    first.rewards.extend(second.rewards)
    lengths, answers, inputs = first.lengths, first.answers, first.inputs
    advantages = first.advantages
    if lengths is not None and second.lengths is not None:
        lengths.extend(second.lengths)
    if answers is not None and second.answers is not None:
        answers.extend(second.answers)
    if advantages is not None and second.advantages is not None:
        advantages.extend(second.advantages)
    shared = [name for name in inputs or () if name in (second.inputs or ())]
    for name in shared:
        assert inputs is not None
        assert second.inputs is not None
        inputs[name].extend(second.inputs[name])
    return first._replace(
        lengths=None if second.lengths is None else lengths,
        answers=None if second.answers is None else answers,
        inputs={name: inputs[name] for name in shared} if inputs and shared else None,
        advantages=None if second.advantages is None else advantages,
    )
