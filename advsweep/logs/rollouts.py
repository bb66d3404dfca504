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

Groups may differ in size. A line that is cut or damaged is counted and left out; a reward that is
not a finite number becomes NaN, an unscorable rollout. A step that a file logs again after later
steps, as after a resume, replaces what was read of it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from advsweep.bounds import is_bounded
from advsweep.errors import ConfigError, counted, first_of, nearest
from advsweep.logs.base import ProblemCount, existing, whole_step
from advsweep.logs.forms import TRACES, Fields, find_dumps, rows_of, step_of
from advsweep.logs.lines import json_objects
from advsweep.packages import import_extra
from advsweep.printable import printable_line

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

# Other numbers per rollout that JSON lines may have, by the names that estimators give them.
INPUTS = ("ref_rewards", "token_entropy", "token_entropy_exact", "self_certainty", "answered")

REPEATED = "tables with the rollouts of the table before"
_NO_STEP = "lines without a step"
_NOT_FINITE = "rewards that are no finite numbers, taken as unscorable"
LINE_ENDINGS = (".jsonl", ".ndjson")

# A small file may unpack to more than memory holds.
_MOST_BYTES = 4 * 2**30
_MOST_ROWS = 10**7
_BATCH_ROWS = 64
_LONGEST_NAME = 200

_PROMPT = ("prompt", "input", "question")
_COMPLETION = ("completions", "completion", "output", "response")
_REWARD = ("rewards", "reward", "scores", "score")
# Names of the fields of a line; of several, the first that it has.
_GROUP = ("group", "uid", "prompt_id")

# verl's V1 trainer: PROMPT_SESSION_OUTPUT, and rows without a reward that fill up a batch.
_SESSION = re.compile(r"(.+)_(\d{1,9})_(\d{1,9})", re.DOTALL)
_PADDING = re.compile(r"pad[0-9a-f]{32}")


class RolloutGroup(NamedTuple):
    """The rollouts of one prompt.

    Attributes:
        prompt: its text; empty if the dump has none. A conversation is JSON.
        rewards: of each rollout; NaN for one that could not be scored.
        lengths: generated tokens of each rollout, if the dump has them.
        inputs: other numbers per rollout, by names of `INPUTS`.
        advantages: of each rollout, as the trainer logged them.
        task: the name of the set of problems, if the dump has several.
        completions: the text of each rollout, if they are read.
    """

    prompt: str
    rewards: list[float]
    lengths: list[int] | None = None
    inputs: Mapping[str, list[float]] | None = None
    advantages: list[float] | None = None
    task: str = ""
    completions: list[str] | None = None


class RolloutStep(NamedTuple):
    """The groups of one step."""

    step: int
    groups: list[RolloutGroup]


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


Weigh = Callable[[list[str]], Mapping[str, float]]
# A step, a key, and rollouts; those of a step with the same key are a group.
_Part = tuple[int, Hashable, RolloutGroup]


def read_rollouts(
    path: Path | Sequence[Path],
    *,
    rewards: Mapping[str, float] | None = None,
    weigh: Weigh = lambda names: dict.fromkeys(names, 1.0),
    size: int | None = None,
    completions: bool = False,
    notes: RolloutNotes | None = None,
) -> Iterator[RolloutStep]:
    """Yield the steps of a dump in ascending order.

    Args:
        path: a file or folder of one of the forms above, or files of lines.
        rewards: names and weights of the fields or columns whose sum is the reward. By default
            `score` (verl), `rewards` or `reward` (JSON lines), or the sum of all columns of
            reward functions (TRL).
        weigh: returns the weights of TRL's reward functions by their names.
        size: rollouts of each group of TRL, which tells the groups of a prompt apart that was
            drawn twice in sequence (default: the most common number).
        completions: read the texts of the rollouts too: of verl, TRL and other JSON lines.
        notes: receives what was left out; complete after the last step.

    Raises:
        ConfigError: there is no such dump, or it is of another form or holds no rollouts.
    """
    notes = notes or RolloutNotes()
    files: Iterator[Iterable[_Part]]
    if isinstance(path, Path) and (tables := completion_tables(existing(path))):
        files = _of_tables(tables, rewards, weigh, size, completions, notes)
    else:
        lines = _files_of(path) if isinstance(path, Path) else path
        files = (_parts(file, _objects(file, notes), rewards, completions, notes) for file in lines)
    steps: dict[int, dict[Hashable, list[RolloutGroup]]] = {}
    for parts in files:
        for step, groups in _last_of_each_step(parts, notes).items():
            known = steps.setdefault(step, {})
            for key, more in groups.items():
                known.setdefault(key, []).extend(more)
    if not steps:
        why = f" ({notes.message()})" if notes.left_out else ""
        raise ConfigError(
            f"{printable_line(str(path))}: expected completions_*.parquet (TRL) or "
            f"JSON lines of rollouts with rewards and a step, got none{why}"
        )
    for step in sorted(steps):
        yield RolloutStep(step, [_joined(parts) for parts in steps[step].values()])


def _last_of_each_step(
    parts: Iterable[_Part], notes: RolloutNotes
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
        prompts, before = ({own[0].prompt for own in each.values()} for each in (groups, earlier))
        if prompts & before and not groups.keys() & earlier.keys():
            steps[step] = groups
            notes.left_out["groups of steps that are logged again later"] += len(earlier)
            continue
        # Parts of a step that other steps interrupt, as several processes write them.
        for key, more in groups.items():
            earlier.setdefault(key, []).extend(more)
    return steps


def _joined(parts: list[RolloutGroup]) -> RolloutGroup:
    """Return the group of some parts; what only some of them have is dropped."""
    if len(parts) == 1:
        return parts[0]

    def of_all(lists: list[Any]) -> Any:
        return None if None in lists else [value for own in lists for value in own]

    inputs = {name: of_all([(part.inputs or {}).get(name) for part in parts]) for name in INPUTS}
    return RolloutGroup(
        parts[0].prompt,
        of_all([part.rewards for part in parts]),
        of_all([part.lengths for part in parts]),
        {name: values for name, values in inputs.items() if values is not None} or None,
        of_all([part.advantages for part in parts]),
        parts[0].task,
        of_all([part.completions for part in parts]),
    )


def sum_of(weights: Mapping[str, float]) -> str:
    """Return a weighted sum in words, such as `right + 0.2 short`."""
    parts = [name if weight == 1 else f"{weight:g} {name}" for name, weight in weights.items()]
    return printable_line(" + ".join(parts))


def _weighted_sums(columns: list[list[Any]], weights: Iterable[float]) -> list[float]:
    """Return the weighted sum of each rollout's rewards, without those that are NaN.

    NaN where all are, as in TRL.
    """
    weights, sums = list(weights), []
    for row in zip(*columns, strict=True):
        known = [w * v for w, v in zip(weights, map(_finite, row), strict=True) if v == v]
        sums.append(_finite(math.fsum(known)) if known else math.nan)
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


def _as_text(value: Any) -> str:
    """Return a prompt or a completion as text: a conversation as JSON, nothing as ''."""
    if isinstance(value, str) or value is None:
        return value or ""
    return json.dumps(value, ensure_ascii=False, default=str)


# Rows: the lines of a file, or those of a table


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


def _objects(file: Path, notes: RolloutNotes) -> Iterable[Fields]:
    lines = json_objects(file, notes.left_out)
    return chain.from_iterable(rows_of(line, notes.left_out) for line in lines)


def _parts(
    file: Path,
    rows: Iterable[Fields],
    weights: Mapping[str, float] | None,
    completions: bool,
    notes: RolloutNotes,
) -> Iterator[_Part]:
    """Yield the rollouts of each row that has a step and a reward; count the others."""
    texts: dict[str, str] = {}
    stepped: Iterable[tuple[int, Fields]] = _with_steps(file, rows, notes)
    if file.name == TRACES:
        # Groups of several steps end side by side: nothing of it is a step that is logged again.
        stepped = sorted(stepped, key=itemgetter(0))
    blocks = groupby(stepped, key=itemgetter(0))
    # The rollouts of a step are few; those of a file without steps in order are not.
    for serial, (step, block) in enumerate(blocks):
        for number, (name, row) in enumerate(_named_rows([row for _, row in block], notes)):
            is_verl = "score" in row and ("input" in row or "output" in row)
            names = list(
                weights or (["score"] if is_verl else [n for n in _REWARD if n in row][:1])
            )
            # A null is an unscorable rollout, and not a row without a reward.
            columns = {n: _listed(row[n]) for n in names if n in row}
            sizes = {len(column) for column in columns.values()}
            if len(sizes) != 1 or 0 in sizes:
                notes.left_out["lines without a reward"] += 1
                continue
            (size,) = sizes
            rewards = _weighted_sums(
                [columns.get(n, [None] * size) for n in names], (weights or {"": 1.0}).values()
            )
            if unscorable := sum(map(math.isnan, rewards)):
                notes.left_out[_NOT_FINITE] += unscorable
            # One copy of each prompt: a group repeats it, and so do later epochs.
            text = _as_text(_first(row, _PROMPT))
            prompt = texts.setdefault(text, text)
            key: Hashable = name
            is_group = isinstance(row[next(iter(columns))], list)  # A line with a list is one.
            if key is None:
                key = (str(file), serial, number if is_group else prompt)
            lengths = _numbers(row, "lengths", size) or _numbers(row, "length", size)
            written = _first(row, _COMPLETION) if completions else None
            # A completion that is a conversation is a list too.
            answers = _listed(written) if is_group else [written]
            group = RolloutGroup(
                prompt,
                rewards,
                [int(n) for n in lengths] if lengths else None,
                {n: own for n in INPUTS if (own := _numbers(row, n, size))} or None,
                _numbers(row, "advantage", size),
                _as_text(row.get("task"))[:_LONGEST_NAME],
                None if len(answers) != size or None in answers else list(map(_as_text, answers)),
            )
            yield step, key, group


def _with_steps(
    file: Path, rows: Iterable[Fields], notes: RolloutNotes
) -> Iterator[tuple[int, Fields]]:
    named = step_of(file)
    stepless: list[Fields] = []
    has_steps = False
    for row in rows:
        value = _first(row, ("step", "global_step"))
        value = named if value is None else value
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
    found = [_first(row, _GROUP) for row in rows]
    keys = [None if value is None else str(value) for value in found]
    uids = [row.get("uid") for row in rows]
    sessions = [
        match for uid in uids if isinstance(uid, str) and (match := _SESSION.fullmatch(uid))
    ]
    if len(sessions) < len(rows) or len(set(keys)) < len(keys):
        return list(zip(keys, rows, strict=True))
    # verl's GRPO takes the last output of a session, and counts it once.
    last: dict[tuple[str, str], tuple[int, int]] = {}
    for place, match in enumerate(sessions):
        prompt, session, output = match.groups()
        last[prompt, session] = max(last.get((prompt, session), (-1, -1)), (int(output), place))
    names = {place: prompt for (prompt, _), (_, place) in last.items()}
    kept = {place: name for place, name in names.items() if not _PADDING.fullmatch(name)}
    for number, what in (
        (len(names) - len(kept), "rows that only fill up a batch"),
        (len(rows) - len(names), "outputs before the last of their session"),
    ):
        if number:
            notes.left_out[what] += number
    return [(kept[place], rows[place]) for place in sorted(kept)]


def _first(row: Fields, names: Iterable[str]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _listed(value: Any) -> list[Any]:
    """Return one value for each rollout; a line of one rollout may have no list."""
    return value if isinstance(value, list) else [value]


def _numbers(row: Fields, name: str, size: int) -> list[float] | None:
    """Return a finite number for each rollout; None unless the line has them all."""
    numbers = [_finite(value) for value in _listed(row.get(name))]
    return None if len(numbers) != size or any(map(math.isnan, numbers)) else numbers


# Tables of TRL


def completion_tables(path: Path) -> list[Path]:
    """Return the tables of completions in an output folder of TRL; none elsewhere."""
    if path.is_file():
        return [path] if path.suffix == ".parquet" else []
    for folder in (path, path / "completions"):
        if found := sorted(folder.glob("completions_*.parquet")):
            return found
    return []


def _of_tables(
    files: Iterable[Path],
    rewards: Mapping[str, float] | None,
    weigh: Weigh,
    size: int | None,
    completions: bool,
    notes: RolloutNotes,
) -> Iterator[Iterable[_Part]]:
    """Yield the rollouts of each table that does not repeat the table before."""
    arrow = import_extra("pyarrow", "data", "a parquet file")
    from pyarrow.parquet import ParquetFile

    before: list[tuple[Any, ...]] = []
    for file in files:
        try:
            with ParquetFile(file) as table:
                weights = _weights_of(file, table, rewards, weigh, notes)
                rows = list(_unpacked(file, table, weights))
        except (arrow.ArrowException, OSError) as error:
            why = printable_line(str(error).strip().partition("\n")[0])[:200]
            # One damaged table must not hide the others.
            notes.left_out[f"tables that cannot be read (such as {file.name}: {why})"] += 1
            continue
        # As texts, since NaN equals nothing, not even itself.
        content = [
            (r["prompt"], r.get("completion"), *(str(r[name]) for name in weights)) for r in rows
        ]
        if content and content == before:
            notes.left_out[REPEATED] += 1
            continue
        before = content
        # TRL's tables have no group: rollouts of a prompt follow each other.
        runs = [list(own) for _, own in groupby(rows, lambda row: (row.get("step"), row["prompt"]))]
        usual = size or (Counter(map(len, runs)).most_common(1)[0][0] if runs else 1)
        for number, run in enumerate(runs):
            # A prompt that is drawn twice in sequence makes two groups.
            length = usual if len(run) % usual == 0 else len(run)
            for place, row in enumerate(run):
                row["group"] = f"{file} {number} {place // length}"
        yield _parts(file, rows, weights, completions, notes)


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
    known = table.schema_arrow.names
    columns = [name for name in ("step", "prompt", "completion", "advantage") if name in known]
    named = whole_step(file.stem.rpartition("_")[2])
    texts: dict[str, str] = {}
    unpacked = 0
    for batch in table.iter_batches(batch_size=_BATCH_ROWS, columns=[*columns, *weights]):
        # A dictionary may repeat a long text more often than the table declares.
        unpacked += batch.nbytes
        if unpacked > _MOST_BYTES:
            raise too_large
        for row in batch.to_pylist():
            prompt = _as_text(row["prompt"])
            row |= {"prompt": texts.setdefault(prompt, prompt), "step": row.get("step", named)}
            yield row | {"completion": _as_text(row.get("completion"))}


# What to know about a dump


def problem_counts(
    files: Iterable[Path], success_at: float, left_out: Counter[str]
) -> list[ProblemCount]:
    """Return n and c of the problems of each validation, a file per step.

    A problem is known by its prompt, since dumps give it another id in each validation. A sample
    is correct by its `acc`, which reward functions may return beside a score, or else by its
    reward; one without a verdict is not correct.
    """
    counts: dict[tuple[int, str, str], list[int]] = {}
    for file in files:
        for rewards, least in (({"acc": 1.0}, 1.0), (None, success_at)):
            notes = RolloutNotes()
            try:
                steps = list(read_rollouts(file, rewards=rewards, notes=notes))
            except ConfigError:
                continue  # No line has a verdict of its own; then the scores say it.
            left_out.update(notes.left_out)
            for step, groups in steps:
                for group in groups:
                    digest = hashlib.sha256(group.prompt.encode("utf-8", "replace")).hexdigest()
                    count = counts.setdefault((step, group.task, digest[:16]), [0, 0])
                    count[0] += len(group.rewards)
                    count[1] += sum(reward >= least for reward in group.rewards)
            break
        else:
            left_out["validations without a sample that can be read"] += 1
    return [ProblemCount(step, key, n, c, task) for (step, task, key), (n, c) in counts.items()]


def missing_steps(logged: Iterable[int], dumped: Iterable[int]) -> list[str]:
    """Return a sentence on logged steps without rollouts, and one on rollouts without a log."""
    log, dump = set(logged), set(dumped)
    named = ((log - dump, "of the log without rollouts"), (dump - log, "without a line of the log"))
    return [
        f"{counted(f'{len(steps):,}', 'step')} {what}, the first is {min(steps)}"
        for steps, what in named
        if steps and log
    ]


def fewer_than_usual(counts: Mapping[int, int], what: str) -> list[str]:
    """Return a sentence on steps with fewer rollouts or samples than at least half of them have."""
    times = Counter(counts.values())
    usual = max(times, key=lambda count: (times[count], count), default=0)
    fewer = sorted(step for step, count in counts.items() if count < usual)
    if not fewer or 2 * times[usual] < len(counts):
        return []
    return [
        f"{counted(f'{len(fewer):,}', 'step')} with fewer {what} than usual, the first is "
        f"{fewer[0]}: {counts[fewer[0]]:,} of {usual:,}"
    ]


def success_reward(settings: Mapping[str, Any]) -> float:
    """Return the reward from which a rollout is a success: the setting `success_at`, or 1.

    Raises:
        ConfigError: the setting is not a number.
    """
    value = settings.get("success_at", 1.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(
            f"success_at: expected the reward of a success, a number, got {str(value)[:100]!r}"
        )
    return float(value)
