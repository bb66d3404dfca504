"""Makes problems from rows: columns, levels, duplicates, prompts, and held-out problems."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import numpy as np

from advsweep.components import option
from advsweep.errors import AdvsweepWarning, ConfigError, counted, first_of, nearest
from advsweep.tasks.base import Problem, Split, Task
from advsweep.tasks.dataset_answers import AnswerPart, are_equal, reference_part
from advsweep.tasks.dataset_cells import (
    CellError,
    Question,
    cell,
    has_cell,
    is_gap,
    letter_place,
    place_of,
    read_answers,
    read_options,
    read_question,
    read_tests,
)
from advsweep.tasks.dataset_forms import Form, FormError, Given, recognise, shown_rows
from advsweep.tasks.dataset_rows import Rows, Source
from advsweep.yaml_files import read_yaml

QUESTION, TESTS = "{question}", "{tests}"


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
_SHOWN = 60  # largest number of characters of a value in a message
_ID_DIGITS = 12
_KEPT = 16  # sets of problems
_NAMED_ROWS = 8  # rows that a message names

# The columns of earlier versions; a data set that is given with these alone is recognised.
QUESTION_COLUMNS = ("question", "problem", "prompt")
GOLD_COLUMNS = ("answer", "solution")
SOLUTION_COLUMNS = ("solution", "answer")
_SEEN = 100  # rows in which a column is looked for


@dataclass(kw_only=True)
class DataTask(Task):
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
    seed: int = option(0, ge=0, help="chooses problems where not all are taken, and shots")


@dataclass(frozen=True)
class Problems:
    """The problems of a task.

    Attributes:
        digest: hex sha256 of all prompts, levels and reference answers in order.
    """

    splits: Mapping[Split, tuple[Problem, ...]]
    digest: str


def make_problems(task: DataTask) -> Problems:
    """Return the problems of a task; the last sets are kept until one of their files changes.

    Duplicates and unreadable levels cause warnings.

    Raises:
        ConfigError: there is no data, or it lacks something that the options require.
    """
    places = (task.data, task.held_out_data, task.level_file)
    options = tuple((field.name, getattr(task, field.name)) for field in fields(DataTask))
    return _make(options, tuple(Source(place).changed for place in places))


@functools.lru_cache(_KEPT)
def _make(options: tuple[tuple[str, Any], ...], changed: tuple[int, ...]) -> Problems:
    """Make the problems of a task with these options.

    Args:
        changed: when its files changed; a part of the cache's key alone.
    """
    task = SimpleNamespace(**dict(options))
    train, held_out = _read(task)
    levels: dict[str, int] = {}
    for row in Source(task.level_file).read("") if task.level_file else ():
        if not isinstance(row.get("level"), int) or "id" not in row:
            raise ConfigError(
                f"task.level_file: expected lines with an id and a level, a whole number, in "
                f"'{task.level_file}', got {_brief(row)}"
            )
        levels[str(row["id"])] = row["level"]
    held_out_problems = _fit(held_out, Split.HELD_OUT, task, levels)
    prompts = {problem.prompt for problem in held_out_problems}
    train_problems = _fit(train, Split.TRAIN, task, levels, prompts)
    rng = np.random.default_rng(task.seed)
    if task.held_out and not held_out_problems:
        count = len(train_problems)
        if task.held_out >= count:
            raise ConfigError(
                f"task.held_out: expected fewer than the {counted(count, 'problem')} of the data, "
                f"got {task.held_out}"
            )
        chosen = set(rng.permutation(count)[: task.held_out].tolist())
        held_out_problems = [p for i, p in enumerate(train_problems) if i in chosen]
        train_problems = [p for i, p in enumerate(train_problems) if i not in chosen]
    splits = {
        Split.TRAIN: _subset(train_problems, task.train, rng),
        Split.HELD_OUT: _subset(held_out_problems, task.held_out, rng),
    }
    material = {
        split.value: [[p.id, p.prompt, p.system, p.level, p.reference] for p in problems]
        for split, problems in splits.items()
    }
    return Problems(splits, _hash(json.dumps(material, sort_keys=True)))


def _read(task: SimpleNamespace) -> tuple[Rows, Rows]:
    """Return the rows of both splits; no held-out rows if they are cut from the training rows."""
    source, other = Source(task.data, task.subset), Source(task.held_out_data, task.subset)
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


def _fit(
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
    wanted = task.levels if is_train or not levels else ()
    columns = _choose_columns(task, rows, is_train)
    left_out = _LeftOut(noun)
    found: dict[str, Problem] = {}
    numbers: dict[str, int] = {}
    known: set[int] = set()
    for number, row in enumerate(rows, start=1):
        problem = _problem(row, columns, task, number, is_train)
        if isinstance(problem, _Gap):
            left_out.rows.setdefault(problem.what, []).append(number)
            continue
        level = levels.get(problem.id)
        if level is None and not (levels and is_train):
            level = _level(row, columns.level)
        if level is None:
            left_out.ids.setdefault("without a level", []).append(problem.id)
        elif wanted and level not in wanted:
            known.add(level)
        elif problem.prompt in found:
            left_out.ids.setdefault("the same as an earlier one", []).append(problem.id)
            earlier = found[problem.prompt]
            if not _same_reference(earlier.reference, problem.reference):
                left_out.contradictions.append((numbers[problem.prompt], number))
        elif problem.prompt in others:
            left_out.ids.setdefault("held out, too", []).append(problem.id)
        else:
            found[problem.prompt] = replace(problem, level=level)
            numbers[problem.prompt] = number
    reasons = left_out.sentences()
    if not found:
        if known:
            reasons.append(f"levels: expected some of {sorted(known)}, got {list(wanted)}")
        raise FormError(
            f"task.data: expected a {noun}, got none: {'; '.join(reasons)}",
            shown_rows(rows, list(rows[0])),
        )
    for reason in reasons:
        warnings.warn(reason, AdvsweepWarning, stacklevel=2)
    problems = list(found.values())
    ids = [problem.id for problem in problems]
    if len(set(ids)) < len(ids):
        twice = next(own for own in ids if ids.count(own) > 1)
        raise ConfigError(
            f"task.id_column: expected another '{task.id_column}' in every row, got '{twice}' for "
            "two problems; leave it empty for ids made of the questions"
        )
    return problems


@dataclass
class _LeftOut:
    """What is left out of a data set, and why.

    Attributes:
        noun: what a problem of the split is called.
        ids: ids of problems by reason.
        rows: numbers of rows without something, from 1, by what they lack.
        contradictions: numbers of two rows with one question and different answers.
    """

    noun: str
    ids: dict[str, list[str]] = field(default_factory=dict)
    rows: dict[str, list[int]] = field(default_factory=dict)
    contradictions: list[tuple[int, int]] = field(default_factory=list)

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
        if self.contradictions:
            pairs = first_of((f"{a} and {b}" for a, b in self.contradictions), _NAMED_ROWS)
            texts.append(
                f"{counted(len(self.contradictions), self.noun)} with the question of an earlier "
                f"one and another answer: rows {pairs}; the first answer counts"
            )
        return texts


def _same_reference(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    if "answer" not in first:
        return first.get("tests") == second.get("tests")
    return are_equal(str(first["answer"]), str(second["answer"]))


@dataclass(frozen=True)
class _Columns:
    """The names of the columns in use, empty where there is none; see `DataTask`."""

    question: str
    gold: str
    context: str = ""
    level: str = ""
    id: str = ""
    options: tuple[str, ...] = ()
    first_option: int | None = None
    any_answer: bool | None = None
    tests: str = ""
    setup: str = ""
    program: str = ""
    solution: str = ""


def _choose_columns(task: SimpleNamespace, rows: Rows, is_train: bool) -> _Columns:
    """Return the columns of some rows: those that the task names, or those of a known form.

    Raises:
        ConfigError: the data lacks a column that the task names, or its form is not known.
    """
    fields = ("context", "level", "id", "tests", "setup", "program")
    names = {name: _first_existing(task, name, rows) for name in fields}
    options = task.options_column
    if not isinstance(options, str):
        for column in options:
            _require_columns("options", (column,), rows)
        names["options"] = tuple(options)
    else:
        names["options"] = tuple(filter(None, (_first_existing(task, "options", rows),)))
    names["any_answer"] = {"any": True, "all": False}.get(task.gold_lists)
    names["first_option"] = task.first_option
    if is_recognised(task):
        form = recognise(
            rows,
            Given(
                context=names["context"],
                options=names["options"],
                lists=task.gold_lists,
                first_option=task.first_option,
                part=task.gold_part,
            ),
        )
        for doubt in form.doubts:
            warnings.warn(f"task.data: {doubt}", AdvsweepWarning, stacklevel=2)
        names |= _of_form(form, names)
    else:
        names["question"] = _first_existing(task, "question", rows)
        names["gold"] = "" if task.tests_column else _first_existing(task, "gold", rows)
    names["solution"] = ""
    if task.shots and is_train and not names["tests"]:
        names["solution"] = _solution_column(task, rows, names["gold"])
    return _Columns(**names)


def _solution_column(task: SimpleNamespace, rows: Rows, gold: str) -> str:
    """Return the column of worked solutions: that of the answers where none is named or usual."""
    is_default = task.solution_column == SOLUTION_COLUMNS
    usual = [name for name in SOLUTION_COLUMNS if any(has_cell(row, name) for row in rows[:_SEEN])]
    return gold if is_default and not usual else _first_existing(task, "solution", rows)


def is_recognised(task: SimpleNamespace) -> bool:
    """Return whether the columns of a task are those of the data's form, as none are given."""
    defaults = (QUESTION_COLUMNS, GOLD_COLUMNS)
    return (task.question_column, task.gold_column) == defaults and not task.tests_column


def _of_form(form: Form, names: Mapping[str, Any]) -> dict[str, Any]:
    lists = names["any_answer"]
    return {
        "question": form.question,
        "gold": form.gold,
        "context": form.context,
        "options": form.options,
        "first_option": form.first_option,
        "tests": form.tests,
        "setup": names["setup"] or form.setup,
        "program": names["program"] or form.program,
        "any_answer": form.any_answer if lists is None else lists,
    }


def _first_existing(task: SimpleNamespace, field: str, rows: Rows) -> str:
    given = getattr(task, f"{field}_column")
    return _require_columns(field, (given,) if isinstance(given, str) else given, rows)


def _require_columns(field: str, names: Sequence[str], rows: Rows) -> str:
    """Return the first of some columns that the data has; empty if none is named."""
    wanted = [name for name in names if name]
    for name in wanted:
        if any(has_cell(row, name) for row in rows[:_SEEN]):
            return name
    if not wanted:
        return ""
    expected = " or ".join(f"'{name}'" for name in wanted)
    existing = list(dict.fromkeys(key for row in rows[:_SEEN] for key in row))
    known = ", ".join(existing)
    raise FormError(
        f"task.{field}_column: the data has no column {expected}; it has {known}",
        shown_rows(rows, existing),
    )


class _Gap(NamedTuple):
    """A row that lacks something: a question, an answer, options or tests."""

    what: str


def _problem(
    row: Mapping[str, Any], columns: _Columns, task: SimpleNamespace, number: int, is_train: bool
) -> Problem | _Gap:
    """Return the problem of a row, at level 0.

    Raises:
        ConfigError: the row holds something that cannot be read; the message names it.
    """
    question = _question(row, columns, number)
    if isinstance(question, _Gap):
        return question
    text, order = question.text, None
    if columns.options:
        options = _options(row, columns, number, text)
        if isinstance(options, _Gap):
            return options
        text, order = options.shown, options
    reference = _reference(row, columns, task.gold_part, number, order)
    if isinstance(reference, _Gap):
        return reference
    if is_train and task.shots:
        worked = _worked(row, columns, reference, number)
        if isinstance(worked, _Gap):
            return worked
        reference["worked"] = worked
    tests = "\n".join(
        test if isinstance(test, str) else f"Input:\n{test['input']}\nOutput:\n{test['output']}"
        for test in reference.get("tests", [])
    )
    shape = template(task.prompt)
    own_id = str(cell(row, columns.id)) if columns.id else _hash(text)[:_ID_DIGITS]
    system = "\n\n".join(filter(None, (shape.system, question.system)))
    return Problem(own_id, shape.fill(text, tests), 0, reference, system)


def _unfit(field: str, column: str, expected: str, row: int, got: Any) -> ConfigError:
    """Return the error about a value of a row."""
    place = f"'{column}' of row {row}"
    return ConfigError(f"task.{field}_column: expected {expected} in {place}, got {_brief(got)}")


def _brief(value: object) -> str:
    line = " ".join(repr(value).split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


def _question(row: Mapping[str, Any], columns: _Columns, number: int) -> Question | _Gap:
    value = cell(row, columns.question)
    try:
        question = read_question(value)
    except CellError as error:
        raise _unfit("question", columns.question, str(error), number, value) from error
    if question is None:
        return _Gap("question")
    if not columns.context:
        return question
    context = cell(row, columns.context)
    if is_gap(context):
        return question
    if not isinstance(context, str):
        raise _unfit("context", columns.context, "a text", number, context)
    return replace(question, text=f"{context.strip()}\n{question.text}")


@dataclass(frozen=True)
class _Choice:
    """The options of a row as they are shown.

    Attributes:
        shown: the question with its options.
        right: the place of the right option, from 0, if a column of the options says so.
    """

    shown: str
    right: int | None


def _options(
    row: Mapping[str, Any], columns: _Columns, number: int, question: str
) -> _Choice | _Gap:
    names = ", ".join(columns.options)
    others = tuple(name for name in columns.options if name != columns.gold)
    try:
        options = read_options(row, others)
    except CellError as error:
        value = cell(row, others[0])
        raise _unfit("options", names, str(error), number, value) from error
    if options is None:
        return _Gap("options")
    texts, right = list(options.texts), None
    if others != columns.options:
        # The right option has a column of its own: the question and the options draw its place.
        answer = cell(row, columns.gold)
        if is_gap(answer):
            return _Gap("answer")
        texts = sorted([str(answer), *texts], key=lambda text: _hash(f"{question}\n{text}"))
        right = texts.index(str(answer))
    lines = (f"{chr(ord('A') + place)}. {option}" for place, option in enumerate(texts))
    return _Choice("\n".join([question, *lines]), right)


def _reference(
    row: Mapping[str, Any],
    columns: _Columns,
    part: AnswerPart,
    number: int,
    choice: _Choice | None,
) -> dict[str, Any] | _Gap:
    if columns.tests:
        return _programs(row, columns, number)
    if choice is not None and choice.right is not None:
        return {"answer": chr(ord("A") + choice.right)}
    value = cell(row, columns.gold)
    if is_gap(value):
        return _Gap("answer")
    if choice is not None:
        return {"answer": _letter(row, value, columns, part, number)}
    try:
        answers = read_answers(value)
    except CellError as error:
        raise _unfit("gold", columns.gold, str(error), number, value) from error
    if answers is None:
        return _Gap("answer")
    return _answer(answers, columns.any_answer, part)


def _answer(answers: list[str | bool], any_answer: bool | None, part: AnswerPart) -> dict[str, Any]:
    """Return a reference of one answer, or of several of which any is right."""
    spellings = [_BOOLEANS[answer] if isinstance(answer, bool) else (answer,) for answer in answers]
    texts = [text for spelling in spellings for text in spelling]
    parts = list(dict.fromkeys(reference_part(text, part) for text in texts))
    is_same = all(are_equal(parts[0], text) for text in parts)
    is_boolean = len(answers) == 1 and isinstance(answers[0], bool)
    is_any = is_boolean or (is_same if any_answer is None else any_answer)
    if len(answers) > 1 and not is_any:
        # Dollars around each item would end the formula between the items.
        whole = ", ".join(str(text).replace("$", "") for text in texts)
        return {"answer": reference_part(whole, part)}
    if len(parts) == 1:
        return {"answer": parts[0]}
    return {"answer": parts[0], "answers": parts}


# How people write what data sets hold as true or false; the first is the one that is shown.
_BOOLEANS = {True: ("yes", "true"), False: ("no", "false")}


def _letter(
    row: Mapping[str, Any], value: Any, columns: _Columns, part: AnswerPart, number: int
) -> str:
    """Return the letter of the right option."""
    options = read_options(row, columns.options)
    assert options is not None
    count = len(options.texts)
    text = reference_part(value, part) if isinstance(value, str) else value
    try:
        place = None
        if isinstance(text, (str, int, float)) and not isinstance(text, bool):
            place = place_of(text, options, columns.first_option)
    except CellError as error:
        raise _unfit("gold", columns.gold, str(error), number, value) from error
    if place is None:
        first = columns.first_option or 0
        expected = (
            f"the place of an option, {first} to {count - 1 + first}, its letter or its text,"
        )
        raise _unfit("gold", columns.gold, expected, number, value)
    if isinstance(text, str) and letter_place(text.strip(), count) == place:
        return text
    return chr(ord("A") + place)


def _programs(row: Mapping[str, Any], columns: _Columns, number: int) -> dict[str, Any] | _Gap:
    value = cell(row, columns.tests)
    try:
        tests = read_tests(value)
    except CellError as error:
        raise _unfit("tests", columns.tests, str(error), number, value) from error
    if tests is None:
        return _Gap("tests")
    setup = cell(row, columns.setup) if columns.setup else None
    setup = "\n".join(setup) if isinstance(setup, list) else setup or ""
    program = {"program": cell(row, columns.program)} if columns.program else {}
    return {"tests": tests, "setup": setup, **program}


def _worked(
    row: Mapping[str, Any], columns: _Columns, reference: Mapping[str, Any], number: int
) -> str | _Gap:
    """Return the worked solution of a row; empty for a program, which is the solution."""
    if columns.tests:
        if not reference.get("program"):
            raise ConfigError(
                f"task.program_column: expected a program in row {number}, as task.shots shows "
                "solved problems, got none"
            )
        return ""
    if columns.options and columns.solution == columns.gold:
        return ""
    value = cell(row, columns.solution)
    try:
        answers = read_answers(value)
    except CellError as error:
        raise _unfit("solution", columns.solution, str(error), number, value) from error
    if answers is None:
        expected = "a solution, for task.shots,"
        raise _unfit("solution", columns.solution, expected, number, value)
    text = ", ".join(str(answer).replace("$", "") for answer in answers)
    if len(answers) == 1:
        text = str(answers[0])
    # GSM8K has the answer alone behind the signs.
    return "" if text.strip() == reference["answer"] else text.partition("####")[0].strip()


def _level(row: Mapping[str, Any], column: str) -> int | None:
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


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
