"""Reads the question and the reference answer of a row."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from advsweep.errors import ConfigError
from advsweep.tasks.dataset_answers import AnswerPart, are_equal, reference_part
from advsweep.tasks.dataset_cells import (
    CallTestsError,
    CellError,
    Question,
    RoundedError,
    brief,
    cell,
    is_gap,
    letter_place,
    only_item,
    place_of,
    read_answers,
    read_context,
    read_options,
    read_question,
    read_tests,
)
from advsweep.tasks.dataset_columns import Columns


class Gap(NamedTuple):
    """A row that lacks something: a question, an answer, options or tests."""

    what: str


@dataclass(frozen=True)
class Entry:
    """The question and the reference answer of a row.

    Attributes:
        question: with its context and its options.
        system: the system message that the data has; empty: none.
        reference: see `Problem`; `worked` is a worked solution.
    """

    question: str
    system: str
    reference: dict[str, Any]


def read_entry(
    row: Mapping[str, Any], columns: Columns, part: AnswerPart, number: int, *, worked: bool
) -> Entry | Gap:
    """Return what a row holds.

    Args:
        number: the number of the row, from 1, for messages.
        worked: read a worked solution, too.

    Raises:
        ConfigError: the row holds something that cannot be read; the message names it.
    """
    question = _question(row, columns, number)
    if isinstance(question, Gap):
        return question
    text = question.text
    choice = _options(row, columns, number, text) if columns.options else None
    if isinstance(choice, Gap):
        return choice
    if choice is not None:
        text = choice.shown
    reference = _reference(row, columns, part, number, choice)
    if isinstance(reference, Gap):
        return reference
    if worked:
        reference["worked"] = _worked(row, columns, reference, number)
    return Entry(text, question.system, reference)


def _unfit(field: str, column: str, expected: str, row: int, got: Any) -> ConfigError:
    """Return the error about a value of a row."""
    where = f"'{column}' of row {row}"
    return ConfigError(f"task.{field}_column: expected {expected} in {where}, got {brief(got)}")


def _question(row: Mapping[str, Any], columns: Columns, number: int) -> Question | Gap:
    value = cell(row, columns.question)
    try:
        question = read_question(value)
    except CellError as error:
        raise _unfit("question", columns.question, str(error), number, value) from error
    if question is None:
        return Gap("question")
    if not columns.context:
        return question
    value = cell(row, columns.context)
    try:
        context = read_context(value)
    except CellError as error:
        raise _unfit("context", columns.context, str(error), number, value) from error
    return replace(question, text=f"{context}\n{question.text}") if context else question


@dataclass(frozen=True)
class _Choice:
    """The options of a row as they are shown.

    Attributes:
        shown: the question with its options.
        right: the place of the right option, from 0, if a column of the options says so.
    """

    shown: str
    right: int | None


def _options(row: Mapping[str, Any], columns: Columns, number: int, question: str) -> _Choice | Gap:
    names = ", ".join(columns.options)
    others = tuple(name for name in columns.options if name != columns.gold)
    try:
        options = read_options(row, others)
    except CellError as error:
        value = cell(row, others[0])
        raise _unfit("options", names, str(error), number, value) from error
    if options is None:
        return Gap("options")
    texts = list(options.texts)
    right = None
    if others != columns.options:
        # The right option has a column of its own: the question and the options draw its place.
        answer = cell(row, columns.gold)
        if is_gap(answer):
            return Gap("answer")
        texts = sorted([str(answer), *texts], key=lambda text: text_hash(f"{question}\n{text}"))
        right = texts.index(str(answer))
    lines = (f"{chr(ord('A') + place)}. {option}" for place, option in enumerate(texts))
    return _Choice("\n".join([question, *lines]), right)


def _reference(
    row: Mapping[str, Any],
    columns: Columns,
    part: AnswerPart,
    number: int,
    choice: _Choice | None,
) -> dict[str, Any] | Gap:
    if columns.tests:
        return _programs(row, columns, number)
    if choice is not None and choice.right is not None:
        return {"answer": chr(ord("A") + choice.right)}
    value = cell(row, columns.gold)
    if is_gap(value):
        return Gap("answer")
    if choice is not None:
        return {"answer": _letter(row, only_item(value), columns, part, number)}
    try:
        answers = read_answers(value)
    except RoundedError:
        return Gap("exact answer, only a rounded float")
    except CellError as error:
        raise _unfit("gold", columns.gold, str(error), number, value) from error
    if answers is None or str(answers[0]).strip().casefold() in PLACEHOLDERS:
        return Gap("answer")
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
        return {"answer": reference_part(", ".join(texts), part)}
    if len(parts) == 1:
        return {"answer": parts[0]}
    return {"answer": parts[0], "answers": parts}


# What stands for no answer: proofs and answers that were not found, in NuminaMath and others.
PLACEHOLDERS = frozenset({"proof", "notfound", "not found", "n/a", "nan", "null"})

# How people write what data sets hold as true or false; the first is the one that is shown.
_BOOLEANS = {True: ("yes", "true"), False: ("no", "false")}


def _letter(
    row: Mapping[str, Any], value: Any, columns: Columns, part: AnswerPart, number: int
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
        return text.upper()  # as the options are shown
    return chr(ord("A") + place)


def _programs(row: Mapping[str, Any], columns: Columns, number: int) -> dict[str, Any] | Gap:
    value = cell(row, columns.tests)
    entry_point = cell(row, columns.entry_point) if columns.entry_point else None
    try:
        tests = read_tests(value, entry_point)
    except CallTestsError:
        return Gap("tests of a script, only calls of a function")
    except CellError as error:
        raise _unfit("tests", columns.tests, str(error), number, value) from error
    if tests is None:
        return Gap("tests")
    setup = cell(row, columns.setup) if columns.setup else None
    setup = "\n".join(setup) if isinstance(setup, list) else setup or ""
    if entry_point:
        # A question in code, as HumanEval's, has imports that its answers may use.
        setup = "\n".join(filter(None, [_imports(cell(row, columns.question)), setup]))
    reference = {"tests": tests, "setup": setup}
    if columns.program:
        program = cell(row, columns.program)
        if entry_point and isinstance(program, str) and program.startswith((" ", "\t")):
            # HumanEval's solutions are the bodies of the functions that its questions begin.
            program = f"{cell(row, columns.question)}{program}"
        reference["program"] = program
    return reference


def _imports(question: Any) -> str:
    """Return the import statements of a question that is code; empty for any other."""
    try:
        body = ast.parse(str(question)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    return "\n".join(ast.unparse(n) for n in body if isinstance(n, ast.Import | ast.ImportFrom))


def _worked(
    row: Mapping[str, Any], columns: Columns, reference: Mapping[str, Any], number: int
) -> str:
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
    text = ", ".join(map(str, answers))
    if columns.solution == columns.gold and ("answers" in reference or len(answers) > 1):
        return ""  # a list of answers shows no steps
    # GSM8K has the answer alone behind the signs.
    return "" if text.strip() == reference["answer"] else text.partition("####")[0].strip()


def text_hash(text: str) -> str:
    """Return the hex sha256 of a text, which may have lone surrogates."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
