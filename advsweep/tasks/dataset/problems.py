"""Makes problems from rows: columns, levels, duplicates, and the choice of held-out problems."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NoReturn

import numpy as np

from advsweep.errors import AdvsweepWarning, ConfigError, counted
from advsweep.tasks.base import Problem, Split
from advsweep.tasks.dataset.rows import Rows, Source, read_levels
from advsweep.tasks.dataset.templates import template
from advsweep.tasks.verifiers.extraction import last_boxed

_LAST_NUMBER = re.compile(r"[0-9]+$")
_LEVEL_DIGITS = 9  # at most; reading a number takes time quadratic in its digits
_SHOWN = 60  # largest number of characters of a value in a message
_ID_DIGITS = 12
_SCRIPT_TEST = ("input", "output")


class AnswerPart(Enum):
    """Which part of the answer column is the reference answer; a missing part cannot be read."""

    AUTO = "auto"
    WHOLE = "whole"
    HASHES = "hashes"
    BOXED = "boxed"


@dataclass(frozen=True)
class Columns:
    """Names of columns. The first existing one of several counts; the empty text means none."""

    question: tuple[str, ...]
    gold: tuple[str, ...]
    level: str
    id: str
    options: str
    tests: str
    setup: str
    program: str


@dataclass(frozen=True)
class Recipe:
    """Everything that determines the problems of a task; fields as in `Dataset`."""

    train_source: Source
    held_out_source: Source
    train_split: str
    held_out_split: str
    columns: Columns
    answer_part: AnswerPart
    prompt: str
    levels: tuple[int, ...]
    level_file: str
    train: int
    held_out: int
    seed: int


@dataclass(frozen=True)
class Problems:
    """The problems of a task.

    Attributes:
        digest: hex sha256 of all prompts, levels and reference answers in order.
    """

    splits: Mapping[Split, tuple[Problem, ...]]
    digest: str


@functools.lru_cache(maxsize=16)
def make_problems(recipe: Recipe, changed: tuple[int, ...]) -> Problems:
    """Return the problems of a recipe; times of change, `changed`, invalidate the cache.

    Duplicates and unreadable levels cause warnings.

    Raises:
        ConfigError: there is no data, or it lacks something that the recipe requires.
    """
    train, held_out = _read(recipe)
    levels = read_levels(recipe.level_file)
    held_out_problems = _fit(held_out, Split.HELD_OUT, recipe, levels)
    prompts = {problem.prompt for problem in held_out_problems}
    train_problems = _fit(train, Split.TRAIN, recipe, levels, prompts)
    rng = np.random.default_rng(recipe.seed)
    if recipe.held_out and not held_out_problems:
        held_out_problems, train_problems = _cut(train_problems, recipe.held_out, rng)
    splits = {
        Split.TRAIN: _subset(train_problems, recipe.train, rng),
        Split.HELD_OUT: _subset(held_out_problems, recipe.held_out, rng),
    }
    return Problems(splits, _digest(splits))


def _read(recipe: Recipe) -> tuple[Rows, Rows]:
    """Return the rows of both splits; no held-out rows if they are cut from the training rows."""
    source, other = recipe.train_source, recipe.held_out_source
    if not recipe.train_split:
        return [], (other if other.place else source).read(recipe.held_out_split)
    train = source.read(recipe.train_split)
    if other.place:
        return train, other.read(recipe.held_out_split)
    if recipe.held_out_split and not source.is_file:
        return train, source.read(recipe.held_out_split)
    if not recipe.held_out:
        raise ConfigError(
            "held_out: expected how many problems to hold out, as there is no split for them, "
            "got 0; or name another file or folder by held_out_data"
        )
    return train, []


def _fit(
    rows: Rows,
    split: Split,
    recipe: Recipe,
    levels: Mapping[str, int],
    others: Collection[str] = (),
) -> list[Problem]:
    """Return the distinct problems of some rows at the levels of the recipe.

    Args:
        levels: levels by id, from a file. Training problems that it does not name are left out;
            held-out ones keep their own level.
        others: prompts of the other split.
    """
    if not rows:
        return []
    where = "training" if split is Split.TRAIN else "held-out"
    chooses = recipe.levels if split is Split.TRAIN or not levels else ()
    shape, columns = template(recipe.prompt), _columns(recipe.columns, rows)
    found: dict[str, Problem] = {}
    unlevelled, repeated, shared = [], [], []
    for number, row in enumerate(rows, start=1):
        question = _question(row, columns, number)
        reference = _reference(row, columns, recipe.answer_part, number)
        problem_id = str(row.get(columns.id)) if columns.id else _hash(question)[:_ID_DIGITS]
        level = levels.get(problem_id)
        if level is None and not (levels and split is Split.TRAIN):
            level = _level(row, columns)
        if level is None:
            unlevelled.append(problem_id)
            continue
        if chooses and level not in chooses:
            continue
        prompt = shape.fill(question, "\n".join(map(_shown_test, reference.get("tests", []))))
        problem = Problem(problem_id, prompt, level, reference, shape.system)
        if prompt in found:
            repeated.append(problem)
        elif prompt in others:
            shared.append(problem)
        else:
            found[prompt] = problem
    problems = list(found.values())
    if not problems:
        _refuse(rows, columns, recipe, levels, where, shared)
    _check_ids(problems, recipe.columns)
    _warn(repeated, f"{where} problem", "the same as an earlier one")
    _warn(shared, f"{where} problem", "held out, too")
    _warn(unlevelled, f"{where} problem", "without a level")
    return problems


def _refuse(
    rows: Rows,
    columns: _Chosen,
    recipe: Recipe,
    levels: Mapping[str, int],
    where: str,
    shared: Sequence[Problem],
) -> NoReturn:
    """Raise the error that explains why no problem is left."""
    if shared:
        raise ConfigError(
            f"data: expected {where} problems, and all {len(shared)} are held out too"
        )
    own = {level for row in rows if (level := _level(row, columns)) is not None}
    if not levels and not own:
        raise ConfigError(
            f"level_column: expected levels such as 3 or 'Level 3' in '{columns.level}', got "
            f"{_brief(rows[0].get(columns.level))}"
        )
    raise ConfigError(
        f"levels: expected some of {sorted(set(levels.values()) or own)}, got "
        f"{list(recipe.levels)}; no {where} problem is left"
    )


def _warn(left_out: Sequence[Problem | str], noun: str, why: str) -> None:
    if left_out:
        first = left_out[0]
        example = first if isinstance(first, str) else f"{first.id}: {_start(first.prompt)}"
        message = f"left out {counted(len(left_out), noun)}, {why} ({example})"
        warnings.warn(message, AdvsweepWarning, stacklevel=2)


def _start(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


def _brief(value: object) -> str:
    return _start(repr(value))


def _check_ids(problems: Sequence[Problem], columns: Columns) -> None:
    ids: set[str] = set()
    for problem in problems:
        if problem.id in ids:
            raise ConfigError(
                f"id_column: expected another '{columns.id}' in every row, got "
                f"'{problem.id}' for two problems; leave it empty for ids made of the questions"
            )
        ids.add(problem.id)


@dataclass(frozen=True)
class _Chosen:
    """The columns of one data set; empty texts where there is none."""

    question: str
    gold: str
    level: str
    id: str
    options: str
    tests: str
    setup: str
    program: str


def _columns(columns: Columns, rows: Rows) -> _Chosen:
    existing = list(dict.fromkeys(key for row in rows[:100] for key in row))

    def choose(field: str, names: tuple[str, ...]) -> str:
        found = next((name for name in names if name in existing), None)
        if found is None and any(names):
            expected = " or ".join(f"'{name}'" for name in names)
            raise ConfigError(
                f"{field}_column: the data has no column {expected}; it has {', '.join(existing)}"
            )
        return found or ""

    return _Chosen(
        question=choose("question", columns.question),
        gold="" if columns.tests else choose("gold", columns.gold),
        **{
            field: choose(field, (getattr(columns, field),))
            for field in ("level", "id", "options", "tests", "setup", "program")
        },
    )


def _question(row: Mapping[str, Any], columns: _Chosen, number: int) -> str:
    question = row.get(columns.question)
    if not isinstance(question, str) or not question.strip():
        raise ConfigError(
            f"question_column: expected a text in '{columns.question}' of row {number}, "
            f"got {_brief(question)}"
        )
    if not columns.options:
        return question.strip()
    options = row.get(columns.options)
    if not isinstance(options, list) or not 1 <= len(options) <= 26:
        raise ConfigError(
            f"options_column: expected a list of 1 to 26 options in '{columns.options}' of "
            f"row {number}, got {_brief(options)}"
        )
    lines = (f"{chr(ord('A') + place)}. {option}" for place, option in enumerate(options))
    return "\n".join([question.strip(), *lines])


def _reference(
    row: Mapping[str, Any], columns: _Chosen, part: AnswerPart, number: int
) -> dict[str, Any]:
    if columns.tests:
        tests = row.get(columns.tests)
        if not isinstance(tests, list) or not tests or not all(map(_is_test, tests)):
            raise ConfigError(
                f"tests_column: expected a list of tests in '{columns.tests}' of row {number}, "
                f"each a text or an object with texts input and output, got {_brief(tests)}"
            )
        tests = [t if isinstance(t, str) else {k: t[k] for k in _SCRIPT_TEST} for t in tests]
        setup = row.get(columns.setup) if columns.setup else None
        setup = "\n".join(setup) if isinstance(setup, list) else setup or ""
        reference = {"tests": tests, "setup": setup}
        return reference | {"program": row.get(columns.program)} if columns.program else reference
    value = row.get(columns.gold)
    if value is None or isinstance(value, (bool, Mapping)) or value in ("", []):
        raise ConfigError(
            f"gold_column: expected an answer in '{columns.gold}' of row {number}, got "
            f"{_brief(value)}"
        )
    if columns.options and isinstance(value, int):
        choices = len(row[columns.options])
        if not 0 <= value < choices:
            raise ConfigError(
                f"gold_column: expected the place of an option, 0 to {choices - 1}, in "
                f"'{columns.gold}' of row {number}, got {value}"
            )
        return {"answer": chr(ord("A") + value)}
    return {"answer": _part(_text(value), part)}


def _is_test(test: Any) -> bool:
    """Return whether a value is a test in Python, or standard input and the expected output."""
    is_script_test = isinstance(test, Mapping) and all(
        isinstance(test.get(key), str) for key in _SCRIPT_TEST
    )
    return isinstance(test, str) or is_script_test


def _shown_test(test: str | Mapping[str, str]) -> str:
    """Return a test as prompts show it."""
    if isinstance(test, str):
        return test
    return f"Input:\n{test['input']}\nOutput:\n{test['output']}"


def _text(value: Any) -> str:
    """Return an answer as text: a list with commas, and 27.0 as 27."""
    if isinstance(value, list):
        # Dollars around each item would end the formula between the items.
        return ", ".join(_text(item).replace("$", "") for item in value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _part(text: str, part: AnswerPart) -> str:
    """Return the answer in a text; empty if the marked part is missing.

    The whole text does not replace a missing part, because solutions contain other numbers too.
    """
    if "\\boxed" not in text:
        text = text.replace("\\fbox", "\\boxed")  # some solutions of MATH use it
    if part is AnswerPart.AUTO:
        marked = AnswerPart.BOXED if "\\boxed" in text else AnswerPart.WHOLE
        part = AnswerPart.HASHES if "####" in text else marked
    if part is AnswerPart.HASHES:
        _, mark, after = text.rpartition("####")
        return after.strip() if mark else ""
    if part is AnswerPart.BOXED:
        return last_boxed(text) or ""
    return text.strip()


def _level(row: Mapping[str, Any], columns: _Chosen) -> int | None:
    """Return the level of a row, such as 3 for "Level 3"; 0 without a level column."""
    if not columns.level:
        return 0
    value = row.get(columns.level)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        small = abs(value) < 10**_LEVEL_DIGITS
        return int(value) if small and float(value).is_integer() else None
    # One digit more than allowed is read, to recognise numbers that are too long.
    end = value.rstrip()[-_LEVEL_DIGITS - 1 :] if isinstance(value, str) else ""
    match = _LAST_NUMBER.search(end)
    return int(match[0]) if match and len(match[0]) <= _LEVEL_DIGITS else None


def _cut(
    problems: list[Problem], count: int, rng: np.random.Generator
) -> tuple[list[Problem], list[Problem]]:
    """Split off `count` problems; both parts keep their order."""
    if count >= len(problems):
        raise ConfigError(
            f"held_out: expected fewer than the {counted(len(problems), 'problem')} of the data, "
            f"got {count}"
        )
    chosen = set(rng.permutation(len(problems))[:count].tolist())
    held_out = [problem for i, problem in enumerate(problems) if i in chosen]
    return held_out, [problem for i, problem in enumerate(problems) if i not in chosen]


def _subset(
    problems: Sequence[Problem], count: int, rng: np.random.Generator
) -> tuple[Problem, ...]:
    """Return `count` of the problems in order; all of them for 0 or if there are no more."""
    if not 0 < count < len(problems):
        return tuple(problems)
    return tuple(problems[i] for i in sorted(rng.permutation(len(problems))[:count].tolist()))


def _digest(splits: Mapping[Split, Sequence[Problem]]) -> str:
    material = {
        split.value: [[p.id, p.prompt, p.system, p.level, p.reference] for p in problems]
        for split, problems in splits.items()
    }
    return _hash(json.dumps(material, sort_keys=True))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def with_solutions(problems: Sequence[Problem], solve: Any) -> list[Problem]:
    """Return the problems with a correct completion under `solution`."""
    return [replace(p, reference={**p.reference, "solution": solve(p.reference)}) for p in problems]
