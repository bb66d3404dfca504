"""Makes problems from rows: columns, levels, duplicates, prompts, and held-out problems."""

from __future__ import annotations

import functools
import json
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, Self

import numpy as np

from advsweep.components import option
from advsweep.errors import AdvsweepWarning, ConfigError, counted, first_of, nearest
from advsweep.tasks.base import Problem, SeededTask, Split, TaskSeed
from advsweep.tasks.dataset_answers import AnswerPart, are_equal
from advsweep.tasks.dataset_cells import brief, cell
from advsweep.tasks.dataset_columns import (
    GOLD_COLUMNS,
    QUESTION_COLUMNS,
    SOLUTION_COLUMNS,
    choose_columns,
)
from advsweep.tasks.dataset_entries import Entry, Gap, read_entry, text_hash
from advsweep.tasks.dataset_forms import FormError, shown_rows
from advsweep.tasks.dataset_rows import Rows, RowSource
from advsweep.yaml_files import read_yaml

QUESTION = "{question}"
TESTS = "{tests}"


@dataclass(frozen=True)
class Template:
    """The text around a question.

    Attributes:
        text: text with `{question}` in it, and for programs `{tests}`.
        system: the system message, as in `Problem.system`.
    """

    text: str
    system: str = ""

    def fill(self, question: str, tests: str) -> str:
        # Not str.format, because templates and questions contain braces of LaTeX.
        before, _, after = self.text.partition(QUESTION)
        return before.replace(TESTS, tests) + question + after.replace(TESTS, tests)


@functools.cache
def _templates() -> dict[str, Template]:
    document = read_yaml(Path(__file__).with_name("templates.yaml"))
    return {name: Template(**fields) for name, fields in document.items()}


def template(name: str) -> Template:
    """Return the template of a name, or a new one from a text with `{question}` in it.

    Raises:
        ConfigError: there is no template of this name.
    """
    if QUESTION in name:
        return Template(name)
    if name in _templates():
        return _templates()[name]
    raise ConfigError(
        f"prompt: expected a text with {QUESTION} in it or the name of a template, got '{name}'; "
        f"{nearest(name, _templates())}"
    )


_LAST_NUMBER = re.compile(r"[0-9]+$")
_LEVEL_DIGITS = 9  # at most; reading a number takes time quadratic in its digits
_ID_DIGITS = 12
_KEPT = 16  # sets of problems
_NAMED_ROWS = 8  # rows that a message names
# The place of an image in a text: <image>, or an image of Markdown.
_IMAGE = re.compile(r"<image(?:_\d+)?>|!\[[^\]\n]{0,200}\]\(")
_SAME = "the same as an earlier one"
_MOST_SAME = 0.05  # share of equal problems without a remark


@dataclass(kw_only=True)
class DataTask(SeededTask):
    """The options of a task with problems from data that determine the problems."""

    data: str = option("", help="a file, a folder with a file per split, or hub:OWNER/NAME[@REV]")
    held_out_data: str = option("", help="another such place for held-out problems")
    subset: str = option("", help="the hub's configuration, such as main; or a folder of data")
    train_split: str = option("train", help="split of the training problems; empty: none")
    held_out_split: str = option("test", help="split of the held-out problems; empty: cut them")
    question_column: str | tuple[str, ...] = option(
        QUESTION_COLUMNS, help="column of the question, or several to look for"
    )
    context_column: str = option(
        "", absent="", help="column of a text before the question, such as a passage"
    )
    gold_column: str | tuple[str, ...] = option(
        GOLD_COLUMNS, help="column of the gold answer, or several to look for"
    )
    level_column: str = option("", help="column of the difficulty level; empty: all are level 0")
    id_column: str = option("", help="column of the ids; empty: made of the questions")
    options_column: str | tuple[str, ...] = option(
        "", help="column of the options of multiple choice, or columns with an option each"
    )
    first_option: int | None = option(
        None, absent=None, ge=0, le=1, help="number of the first option, where answers are numbers"
    )
    tests_column: str = option("", help="column of the tests of a program")
    setup_column: str = option("", help="column of what runs before the tests of a program")
    program_column: str = option("", help="column of a program that passes the tests")
    entry_point_column: str = option(
        "", absent="", help="column of the function that tests get by check(), as in HumanEval"
    )
    gold_part: AnswerPart = option(
        "auto", help="after ####, in the last box, after 'answer is', the whole, or auto"
    )
    gold_lists: Literal["auto", "all", "any"] = option(
        "auto",
        absent="auto",
        help="of several gold answers, all are needed or any will do; auto: any if they are equal",
    )
    prompt: str = option("boxed", help="name of a template, or a text with {question} in it")
    levels: tuple[int, ...] = option((), help="difficulty levels in use; empty: all")
    level_file: str = option("", help="JSON lines with an id and a level, in place of a column")
    train: int = option(0, ge=0, help="training problems, chosen by the seed; 0: all")
    held_out: int = option(0, ge=0, help="held-out problems, chosen by the seed; 0: all")
    shots: int = option(
        0,
        ge=0,
        absent=0,
        help="solved training problems before each question, which base models need",
    )
    solution_column: str | tuple[str, ...] = option(
        SOLUTION_COLUMNS,
        absent=["solution", "answer"],
        help="column of their worked solutions, or several to look for",
    )
    seed: int | TaskSeed = option(
        0,
        ge=0,
        help="chooses problems where not all are taken, and shots; seed: that of the run, so that "
        "each seed has problems of its own",
    )


@dataclass(frozen=True)
class Problems:
    """The problems of a task, or of the pool that it draws its own from."""

    splits: Mapping[Split, tuple[Problem, ...]]

    @functools.cached_property
    def digest(self) -> str:
        """Hex sha256 of all prompts, levels and reference answers in order."""
        material = {
            split.value: [[p.id, p.prompt, p.system, p.level, p.reference] for p in problems]
            for split, problems in self.splits.items()
        }
        return text_hash(json.dumps(material, sort_keys=True))


@dataclass(frozen=True)
class _PoolKey:
    """What determines the problems of the data.

    Attributes:
        options: those of the task but its seed.
        changed: when its files changed.
    """

    options: tuple[tuple[str, Any], ...]
    changed: tuple[int, ...]

    @classmethod
    def of(cls, task: DataTask) -> Self:
        names = [field.name for field in fields(DataTask) if field.name != "seed"]
        places = (task.data, task.held_out_data, task.level_file)
        return cls(
            tuple((name, getattr(task, name)) for name in names),
            tuple(RowSource(place).changed for place in places),
        )


def make_problems(task: DataTask) -> Problems:
    """Return the problems of a task; the last sets are kept until one of their files changes.

    Duplicates and unreadable levels cause warnings.

    Raises:
        ConfigError: there is no data, it lacks something that the options require, or the seed is
            that of a run.
    """
    return _draw(_PoolKey.of(task), task.own_seed)


def read_pool(task: DataTask) -> Problems:
    """Return the problems that the seed of a task draws from, whatever the seed.

    Held-out problems that are cut from the training problems are among these.

    Raises:
        ConfigError: as of `make_problems`.
    """
    return _pool(_PoolKey.of(task))


def check_draw(task: DataTask) -> None:
    """Refuse numbers of problems by which the seeds of runs have none of their own.

    Raises:
        ConfigError: all seeds would have the same problems, or there are fewer than asked.
    """
    make_problems(task)  # refuses to hold out more than there are
    pool = read_pool(task).splits
    trained = len(pool[Split.TRAIN])
    held_out = len(pool[Split.HELD_OUT])
    if held_out:
        _check_number("held_out", task.held_out, held_out, "held-out problem")
    else:
        trained -= task.held_out  # cut from them
    _check_number("train", task.train, trained, "training problem")
    takes_all = task.train in (0, trained) and task.held_out in (0, held_out)
    if held_out and takes_all and not task.shots:
        raise ConfigError(
            f"task.seed: expected an integer, as all seeds have the "
            f"{counted(trained, 'training problem')} and {counted(held_out, 'held-out problem')} "
            f"of the data, got 'seed'; take fewer by task.train or task.held_out"
        )


def _check_number(key: str, number: int, available: int, noun: str) -> None:
    """Refuse more problems than there are."""
    if number > available:
        raise ConfigError(
            f"task.{key}: expected at most the {counted(available, noun)} that each seed can draw, "
            f"got {number}"
        )


@functools.lru_cache(_KEPT)
def _draw(key: _PoolKey, seed: int) -> Problems:
    """Return the problems that a seed draws from a pool."""
    task = SimpleNamespace(**dict(key.options))
    return divide(_pool(key), train=task.train, held_out=task.held_out, seed=seed)


def draw_from(problems: Sequence[Problem], count: int, rng: np.random.Generator) -> list[Problem]:
    """Draw problems at random, each at most once where there are enough."""
    rows = rng.choice(len(problems), count, replace=count > len(problems))
    return [problems[row] for row in rows.tolist()]


def divide(pool: Problems, *, train: int, held_out: int, seed: int) -> Problems:
    """Return the problems that a seed draws from a pool.

    Args:
        train, held_out: how many; 0 for all. Held-out problems are cut from the training problems
            where the pool has none.

    Raises:
        ConfigError: no training problem would be left.
    """
    train_problems: Sequence[Problem] = pool.splits[Split.TRAIN]
    held_out_problems: Sequence[Problem] = pool.splits[Split.HELD_OUT]
    rng = np.random.default_rng(seed)
    if held_out and not held_out_problems:
        count = len(train_problems)
        if held_out >= count:
            raise ConfigError(
                f"task.held_out: expected fewer than the {counted(count, 'problem')} of the data, "
                f"got {held_out}"
            )
        chosen = set(rng.permutation(count)[:held_out].tolist())
        held_out_problems = [p for i, p in enumerate(train_problems) if i in chosen]
        train_problems = [p for i, p in enumerate(train_problems) if i not in chosen]
    return Problems(
        {
            Split.TRAIN: _subset(train_problems, train, rng),
            Split.HELD_OUT: _subset(held_out_problems, held_out, rng),
        }
    )


@functools.lru_cache(_KEPT)
def _pool(key: _PoolKey) -> Problems:
    """Read the problems of the data."""
    task = SimpleNamespace(**dict(key.options))
    train, held_out = read_rows(task)
    levels = _read_levels(task.level_file)
    held_out_problems = _choose_problems(held_out, Split.HELD_OUT, task, levels)
    prompts = {problem.prompt for problem in held_out_problems}
    train_problems = _choose_problems(train, Split.TRAIN, task, levels, prompts)
    return Problems({Split.TRAIN: tuple(train_problems), Split.HELD_OUT: tuple(held_out_problems)})


def read_rows(task: Any) -> tuple[Rows, Rows]:
    """Return the rows of both splits; no held-out rows if they are cut from the training rows.

    Args:
        task: the places, splits and `held_out` of a `DataTask`.

    Raises:
        ConfigError: the data is missing, or has no held-out rows and none are to be cut.
    """
    source = RowSource(task.data, task.subset)
    other = RowSource(task.held_out_data, task.subset)
    held_out = other if other.place else source
    if not task.train_split:
        return [], held_out.read(task.held_out_split)
    train = source.read(task.train_split)
    # A file has no splits.
    if other.place or (task.held_out_split and not Path(source.place).is_file()):
        return train, held_out.read(task.held_out_split)
    if not task.held_out:
        raise ConfigError(
            "task.held_out: expected how many problems to hold out, as there is no split for them, "
            "got 0; or name another file or folder by held_out_data"
        )
    return train, []


def _choose_problems(
    rows: Rows,
    split: Split,
    task: SimpleNamespace,
    levels: Mapping[str, int],
    others: Collection[str] = (),
) -> list[Problem]:
    """Return the distinct problems of some rows at the task's levels.

    Rows without a question or an answer are left out, with a warning that names them.

    Args:
        levels: levels by id, from a file. Training problems that it does not name are left out;
            held-out ones keep their own level.
        others: prompts of the other split.
    """
    if not rows:
        return []
    is_train = split is Split.TRAIN
    noun = "training problem" if is_train else "held-out problem"
    left_out = _LeftOut(noun, len(rows))
    wanted = task.levels if is_train or not levels else ()
    selection = _Selection(left_out, wanted, others)
    shape = template(task.prompt)
    columns = choose_columns(task, rows, is_train)
    is_worked = bool(is_train and task.shots)
    takes_named_alone = bool(is_train and levels)
    for number, row in enumerate(rows, start=1):
        entry = read_entry(row, columns, task.gold_part, number, worked=is_worked)
        if isinstance(entry, Gap):
            left_out.rows.setdefault(entry.what, []).append(number)
            continue
        problem = _problem(entry, row, columns.id, shape)
        level = levels.get(problem.id)
        if level is None and not takes_named_alone:
            level = read_level(row, columns.level)
        if level is None:
            left_out.add("without a level", problem)
            continue
        has_image = _IMAGE.search(entry.question) is not None
        selection.add(replace(problem, level=level, row=number), has_image)
    if not selection.problems:
        raise FormError(
            f"task.data: expected a {noun}, got none: {'; '.join(selection.reasons())}",
            shown_rows(rows, list(rows[0])),
        )
    for reason in left_out.sentences():
        warnings.warn(reason, AdvsweepWarning, stacklevel=2)
    problems = list(selection.problems.values())
    _check_ids(problems, task.id_column)
    return problems


def _read_levels(level_file: str) -> dict[str, int]:
    """Return the levels of a file by id; empty without a file."""
    if not level_file:
        return {}
    levels: dict[str, int] = {}
    for row in RowSource(level_file).read(""):
        if not isinstance(row.get("level"), int) or "id" not in row:
            raise ConfigError(
                f"task.level_file: expected lines with an id and a level, a whole number, in "
                f"'{level_file}', got {brief(row)}"
            )
        levels[str(row["id"])] = row["level"]
    return levels


def _check_ids(problems: Sequence[Problem], id_column: str) -> None:
    """Refuse ids that are not the problems' own.

    Raises:
        ConfigError: two problems have one id.
    """
    ids: set[str] = set()
    for problem in problems:
        if problem.id in ids:
            raise ConfigError(
                f"task.id_column: expected another '{id_column}' in every row, got '{problem.id}' "
                "for two problems; leave it empty for ids made of the questions"
            )
        ids.add(problem.id)


def _problem(entry: Entry, row: Mapping[str, Any], id_column: str, shape: Template) -> Problem:
    """Return the problem of a row, at level 0."""
    tests = "\n".join(
        test if isinstance(test, str) else f"Input:\n{test['input']}\nOutput:\n{test['output']}"
        for test in entry.reference.get("tests", [])
    )
    own_id = str(cell(row, id_column)) if id_column else text_hash(entry.question)[:_ID_DIGITS]
    system = "\n\n".join(filter(None, (shape.system, entry.system)))
    return Problem(own_id, shape.fill(entry.question, tests), 0, entry.reference, system)


@dataclass
class _LeftOut:
    """What is left out of a data set, and why.

    Attributes:
        noun: what a problem of the split is called.
        count: how many rows the split has.
        ids: ids of problems by reason.
        rows: numbers of rows without something, from 1, by what they lack.
        images: numbers of rows whose question has the place of an image; they are kept.
        contradictions: numbers of two rows with one question and different answers.
    """

    noun: str
    count: int
    ids: dict[str, list[str]] = field(default_factory=dict)
    rows: dict[str, list[int]] = field(default_factory=dict)
    images: list[int] = field(default_factory=list)
    contradictions: list[tuple[int, int]] = field(default_factory=list)

    def add(self, reason: str, problem: Problem) -> None:
        """Leave a problem out for a reason."""
        self.ids.setdefault(reason, []).append(problem.id)

    def sentences(self) -> list[str]:
        texts = [
            f"left out {counted(len(ids), self.noun)}, {why} ({ids[0]})"
            for why, ids in self.ids.items()
        ]
        for what, numbers in self.rows.items():
            have = "has" if len(numbers) == 1 else "have"
            noun = "row" if len(numbers) == 1 else "rows"
            named = first_of(map(str, numbers), _NAMED_ROWS)
            texts.append(
                f"left out {counted(len(numbers), self.noun)}: {noun} {named} {have} no {what}"
            )
        same = len(self.ids.get(_SAME, ()))
        if same > _MOST_SAME * self.count:
            texts.append(
                f"{same / self.count * 100:.0f} % of the rows have the prompt of an earlier one; "
                "a part of the question may be in another column (task.context_column, "
                "task.options_column)"
            )
        if self.images:
            named = first_of(map(str, self.images), _NAMED_ROWS)
            texts.append(
                f"{counted(len(self.images), self.noun)} with an image, which the model does not "
                f"see: rows {named}"
            )
        if self.contradictions:
            pairs = first_of((f"{a} and {b}" for a, b in self.contradictions), _NAMED_ROWS)
            texts.append(
                f"{counted(len(self.contradictions), self.noun)} with the question of an earlier "
                f"one and another answer: rows {pairs}; the first answer counts"
            )
        return texts


@dataclass
class _Selection:
    """The distinct problems of a split, taken one after the other.

    Attributes:
        left_out: receives what is not taken.
        wanted: the levels to take; empty for all.
        others: prompts of the other split.
        problems: the problems taken, by prompt.
        other_levels: the levels of problems that are not wanted.
    """

    left_out: _LeftOut
    wanted: Collection[int]
    others: Collection[str]
    problems: dict[str, Problem] = field(default_factory=dict)
    other_levels: set[int] = field(default_factory=set)

    def add(self, problem: Problem, has_image: bool) -> None:
        earlier = self.problems.get(problem.prompt)
        if self.wanted and problem.level not in self.wanted:
            self.other_levels.add(problem.level)
        elif earlier is not None:
            self.left_out.add(_SAME, problem)
            if not _same_reference(earlier.reference, problem.reference):
                self.left_out.contradictions.append((earlier.row, problem.row))
        elif problem.prompt in self.others:
            self.left_out.add("held out, too", problem)
        else:
            self.problems[problem.prompt] = problem
            if has_image:
                self.left_out.images.append(problem.row)

    def reasons(self) -> list[str]:
        """Say why nothing is taken."""
        reasons = self.left_out.sentences()
        if self.other_levels:
            levels = sorted(self.other_levels)
            reasons.append(f"levels: expected some of {levels}, got {list(self.wanted)}")
        return reasons


def _same_reference(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    if "answer" not in first:
        return first.get("tests") == second.get("tests")
    return are_equal(str(first["answer"]), str(second["answer"]))


def read_level(row: Mapping[str, Any], column: str) -> int | None:
    """Return the level of a row, such as 3 for "Level 3"; 0 without a level column."""
    if not column:
        return 0
    value = cell(row, column)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        small = abs(value) < 10**_LEVEL_DIGITS
        return int(value) if small and float(value).is_integer() else None
    # One digit more than allowed is read, to recognise numbers that are too long.
    end = value.rstrip()[-_LEVEL_DIGITS - 1 :] if isinstance(value, str) else ""
    match = _LAST_NUMBER.search(end)
    return int(match[0]) if match and len(match[0]) <= _LEVEL_DIGITS else None


def _subset(
    problems: Sequence[Problem], count: int, rng: np.random.Generator
) -> tuple[Problem, ...]:
    """Return `count` of the problems in order; all of them for 0 or if there are no more."""
    if not 0 < count < len(problems):
        return tuple(problems)
    return tuple(problems[i] for i in sorted(rng.permutation(len(problems))[:count].tolist()))
