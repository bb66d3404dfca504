"""Makes problems from rows: columns, levels, duplicates, prompts, and held-out problems."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from advsweep.components import option
from advsweep.errors import AdvsweepWarning, ConfigError, counted, nearest
from advsweep.tasks.base import Problem, Split, Task
from advsweep.tasks.dataset_rows import Rows, Source
from advsweep.tasks.verifiers.answers import last_boxed
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
_SCRIPT_TEST = ("input", "output")


# Which part of the answer column is the reference answer; a missing part cannot be read.
AnswerPart = Literal["auto", "whole", "hashes", "boxed"]


@dataclass(kw_only=True)
class DataTask(Task):
    """The options of a task with problems from data that determine the problems."""

    data: str = option("", help="a file, a folder with a file per split, or hub:OWNER/NAME[@REV]")
    held_out_data: str = option("", help="another such place for held-out problems")
    subset: str = option("", help="the hub's configuration, such as main; or a folder of data")
    train_split: str = option("train", help="split of the training problems; empty: none")
    held_out_split: str = option("test", help="split of the held-out problems; empty: cut them")
    question_column: str | tuple[str, ...] = option(
        ("question", "problem", "prompt"), help="column of the question, or several to look for"
    )
    gold_column: str | tuple[str, ...] = option(
        ("answer", "solution"), help="column of the gold answer, or several to look for"
    )
    level_column: str = option("", help="column of the difficulty level; empty: all are level 0")
    id_column: str = option("", help="column of the ids; empty: made of the questions")
    options_column: str = option("", help="column of the options of multiple choice")
    tests_column: str = option("", help="column of the tests of a program")
    setup_column: str = option("", help="column of what runs before the tests of a program")
    program_column: str = option("", help="column of a program that passes the tests")
    gold_part: AnswerPart = option(
        "auto", help="after ####, in the last box, the whole, or auto: what there is"
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
        ("solution", "answer"),
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
    shape, columns = template(task.prompt), _choose_columns(task, rows, is_train)
    found: dict[str, Problem] = {}
    known: set[int] = set()
    left_out: dict[str, list[str]] = {}
    for number, row in enumerate(rows, start=1):
        question = _question(row, columns, number)
        reference = _reference(row, columns, task.gold_part, number)
        if is_train and task.shots:
            reference["worked"] = _worked(row, columns, reference, number)
        own_id = str(row.get(columns["id"])) if columns["id"] else _hash(question)[:_ID_DIGITS]
        level = levels.get(own_id)
        if level is None and not (levels and is_train):
            level = _level(row, columns["level"])
        tests = "\n".join(
            test if isinstance(test, str) else f"Input:\n{test['input']}\nOutput:\n{test['output']}"
            for test in reference.get("tests", [])
        )
        prompt = shape.fill(question, tests)
        if level is None:
            left_out.setdefault("without a level", []).append(own_id)
        elif wanted and level not in wanted:
            known.add(level)
        elif prompt in found:
            left_out.setdefault("the same as an earlier one", []).append(own_id)
        elif prompt in others:
            left_out.setdefault("held out, too", []).append(own_id)
        else:
            found[prompt] = Problem(own_id, prompt, level, reference, shape.system)
    reasons = [
        f"left out {counted(len(ids), noun)}, {why} ({ids[0]})" for why, ids in left_out.items()
    ]
    if not found:
        if known:
            reasons.append(f"levels: expected some of {sorted(known)}, got {list(wanted)}")
        raise ConfigError(f"task.data: expected a {noun}, got none: {'; '.join(reasons)}")
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


def _choose_columns(task: SimpleNamespace, rows: Rows, is_train: bool) -> dict[str, str]:
    """Return the name of each column; empty where there is none."""
    existing = list(dict.fromkeys(key for row in rows[:100] for key in row))
    columns = {}
    fields = ("question", "gold", "level", "id", "options", "tests", "setup", "program")
    for field in (*fields, "solution") if task.shots and is_train else fields:
        given = getattr(task, f"{field}_column")
        names = (given,) if isinstance(given, str) else given
        if field in ("gold", "solution") and task.tests_column:
            names = ()
        columns[field] = next((name for name in names if name in existing), "")
        if not columns[field] and any(names):
            expected = " or ".join(f"'{name}'" for name in names)
            known = ", ".join(existing)
            raise ConfigError(
                f"task.{field}_column: the data has no column {expected}; it has {known}"
            )
    return columns


def _unfit(
    field: str, expected: str, columns: Mapping[str, str], row: int, got: Any
) -> ConfigError:
    """Return the error about a value of a row."""
    place = f"'{columns[field]}' of row {row}"
    return ConfigError(f"task.{field}_column: expected {expected} in {place}, got {_brief(got)}")


def _brief(value: object) -> str:
    line = " ".join(repr(value).split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


def _question(row: Mapping[str, Any], columns: Mapping[str, str], number: int) -> str:
    question = row.get(columns["question"])
    if not isinstance(question, str) or not question.strip():
        raise _unfit("question", "a text", columns, number, question)
    if not columns["options"]:
        return question.strip()
    options = row.get(columns["options"])
    if not isinstance(options, list) or not 1 <= len(options) <= 26:
        raise _unfit("options", "a list of 1 to 26 options", columns, number, options)
    lines = (f"{chr(ord('A') + place)}. {option}" for place, option in enumerate(options))
    return "\n".join([question.strip(), *lines])


def _reference(
    row: Mapping[str, Any], columns: Mapping[str, str], part: AnswerPart, number: int
) -> dict[str, Any]:
    if columns["tests"]:
        tests = row.get(columns["tests"])
        if not isinstance(tests, list) or not tests or not all(map(_is_test, tests)):
            expected = "a list of tests, each a text or an object with texts input and output,"
            raise _unfit("tests", expected, columns, number, tests)
        tests = [t if isinstance(t, str) else {k: t[k] for k in _SCRIPT_TEST} for t in tests]
        setup = row.get(columns["setup"]) if columns["setup"] else None
        setup = "\n".join(setup) if isinstance(setup, list) else setup or ""
        program = {"program": row.get(columns["program"])} if columns["program"] else {}
        return {"tests": tests, "setup": setup, **program}
    value = row.get(columns["gold"])
    if value is None or isinstance(value, (bool, Mapping)) or value in ("", []):
        raise _unfit("gold", "an answer", columns, number, value)
    if columns["options"] and isinstance(value, int):
        choices = len(row[columns["options"]])
        if not 0 <= value < choices:
            expected = f"the place of an option, 0 to {choices - 1},"
            raise _unfit("gold", expected, columns, number, value)
        return {"answer": chr(ord("A") + value)}
    return {"answer": reference_part(_text(value), part)}


def _worked(
    row: Mapping[str, Any], columns: Mapping[str, str], reference: Mapping[str, Any], number: int
) -> str:
    """Return the worked solution of a row; empty for a program, which is the solution."""
    if columns["tests"]:
        if not reference.get("program"):
            raise ConfigError(
                f"task.program_column: expected a program in row {number}, as task.shots shows "
                "solved problems, got none"
            )
        return ""
    worked = row.get(columns["solution"])
    if worked is None or isinstance(worked, (bool, Mapping)) or not (text := _text(worked).strip()):
        raise _unfit("solution", "a solution, for task.shots,", columns, number, worked)
    # GSM8K has the answer alone behind the signs.
    return "" if text == reference["answer"] else text.partition("####")[0].strip()


def _is_test(test: Any) -> bool:
    """Return whether a value is a test in Python, or standard input and the expected output."""
    is_script_test = isinstance(test, Mapping) and all(
        isinstance(test.get(key), str) for key in _SCRIPT_TEST
    )
    return isinstance(test, str) or is_script_test


def _text(value: Any) -> str:
    """Return an answer as text: a list with commas, and 27.0 as 27."""
    if isinstance(value, list):
        # Dollars around each item would end the formula between the items.
        return ", ".join(_text(item).replace("$", "") for item in value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def reference_part(text: str, part: AnswerPart = "auto") -> str:
    """Return the answer in a text; empty if the marked part is missing.

    The whole text does not replace a missing part, because solutions contain other numbers too.
    """
    if "\\boxed" not in text:
        text = text.replace("\\fbox", "\\boxed")  # some solutions of MATH use it
    if part == "hashes" or (part == "auto" and "####" in text):
        _, mark, after = text.rpartition("####")
        return after.strip() if mark else ""
    if part == "boxed" or (part == "auto" and "\\boxed" in text):
        return last_boxed(text) or ""
    return text.strip()


def _level(row: Mapping[str, Any], column: str) -> int | None:
    """Return the level of a row, such as 3 for "Level 3"; 0 without a level column."""
    if not column:
        return 0
    value = row.get(column)
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
