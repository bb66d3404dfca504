"""Recognises the form of a data set: which columns hold questions, options, answers and tests.

Columns are recognised by their names alone, in the order of the lists below, and among those by
what a verifier can read; never by the length of their texts. What is not recognised is refused,
with the first rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from advsweep.errors import ConfigError
from advsweep.printable import printable_line
from advsweep.tasks.dataset_answers import AnswerPart, are_equal, is_readable, reference_part
from advsweep.tasks.dataset_cells import (
    CellError,
    brief,
    cell,
    decoded,
    is_gap,
    is_python,
    letter_place,
    messages_of,
    only_item,
    read_answers,
    read_context,
    read_options,
    read_question,
    read_tests,
)
from advsweep.tasks.dataset_names import (
    ALIASES,
    CONTEXTS,
    GOLDS,
    IMAGES,
    LEVELS,
    NESTED_GOLDS,
    OPTION_COLUMN,
    OPTIONS,
    PROGRAMS,
    QUESTIONS,
    RIGHT_OPTIONS,
    SETUPS,
    TESTS,
    WORKED,
    WRONG_OPTION,
    Rows,
    column_names,
    named,
    plain_name,
)

_LOOKED_AT = 200  # rows
_SHOWN_ROWS = 2
_MOST_SHOWN = 30  # columns
_HALF = 0.5
_DIFFERING = 0.05  # share of rows in which two columns of answers may differ


class FormError(ConfigError):
    """A data set whose form is not known; `details` shows its first rows."""

    def __init__(self, message: str, details: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.details = tuple(details)


@dataclass(frozen=True)
class Form:
    """The columns of a data set; a name is empty, or the tuple, where there is no such column.

    Attributes:
        first_option: the number of the first option where answers are places of options.
        any_answer: whether each of several answers in a list is right; None: no list has several,
            or nothing says so.
        unused: columns that are in no role.
        doubts: sentences about what the data does not decide, with the words that do.
    """

    question: str = ""
    gold: str = ""
    context: str = ""
    options: tuple[str, ...] = ()
    first_option: int | None = None
    any_answer: bool | None = None
    tests: str = ""
    program: str = ""
    setup: str = ""
    entry_point: str = ""
    level: str = ""
    unused: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Given:
    """What the user has said of the columns; empty for what is to be recognised.

    Attributes:
        context: empty: there is none; None: to be recognised.
    """

    question: str = ""
    gold: str = ""
    context: str | None = None
    options: tuple[str, ...] = ()
    tests: str = ""
    lists: str = "auto"
    first_option: int | None = None
    part: AnswerPart = "auto"


def recognise(rows: Rows, given: Given | None = None) -> Form:
    """Return the form of a data set, with the doubts that remain.

    Args:
        given: columns that are known already.

    Raises:
        FormError: no column can be the questions or the answers, or there are images.
    """
    given = given or Given()
    looked_at = rows[:_LOOKED_AT]
    columns = column_names(looked_at)
    _refuse_images(looked_at, columns)
    question = given.question or _question(looked_at, columns, given)
    tests = given.tests or _tests(looked_at, columns, given)
    used = {question, given.gold, tests}
    form = Form(question=question, tests=tests, level=_level(looked_at, columns))
    if tests:
        form = _with_programs(form, looked_at, columns)
    else:
        options = given.options or _options(looked_at, [c for c in columns if c not in used])
        unread = "" if options else _unread_options(looked_at, columns)
        form = replace(form, options=options, doubts=(unread,) if unread else ())
        form = _with_gold(form, looked_at, columns, given)
    form = _with_context(form, looked_at, columns, given)
    roles = {form.question, form.gold, form.context, form.tests, form.program, form.setup}
    roles |= {form.level, form.entry_point, *form.options}
    tops = {name.partition(".")[0] for name in roles} | roles
    unused = tuple(c for c in columns if c not in tops and c.partition(".")[0] not in tops)
    return replace(form, unused=unused)


def _share(rows: Rows, holds: Callable[..., bool], *arguments: Any) -> float:
    """Return the share of rows for which `holds(row, *arguments)` is true."""
    return sum(holds(row, *arguments) for row in rows) / len(rows) if rows else 0.0


# Questions


def _question(rows: Rows, columns: Sequence[str], given: Given) -> str:
    taken = {given.gold, given.context, given.tests, *given.options}
    candidates = [column for column in named(columns, QUESTIONS) if column not in taken]
    fitting = [column for column in candidates if _share(rows, _is_question, column) >= _HALF]
    if not fitting:
        reason = _reason(candidates[0], rows) if candidates else ""
        raise _unknown("a column of questions", rows, columns, known=reason)
    question = fitting[0]
    # `instruction` and `input` of Alpaca: the input is the question where all rows have one.
    inputs = [c for c in fitting if plain_name(c) == "input"]
    is_alpaca = plain_name(question) == "instruction" and bool(inputs)
    return inputs[0] if is_alpaca and all(_is_question(r, inputs[0]) for r in rows) else question


def _reason(column: str, rows: Rows) -> str:
    """Return why a column that is called questions has none in most rows."""
    for number, row in enumerate(rows, start=1):
        try:
            read_question(cell(row, column))
        except CellError as error:
            return (
                f"'{column}' has something else in row {number} (expected {str(error).strip(',')})"
            )
    return f"'{column}' is empty in most rows"


def _is_question(row: dict[str, Any], column: str) -> bool:
    try:
        return read_question(cell(row, column)) is not None
    except CellError:
        return False


def _with_context(form: Form, rows: Rows, columns: Sequence[str], given: Given) -> Form:
    if given.context is not None:
        return replace(form, context=given.context)
    names: tuple[str, ...] = CONTEXTS
    if plain_name(form.question) == "input":
        names = (*CONTEXTS, "instruction")
    if plain_name(form.question) == "instruction":
        names = ("input",)
    taken = {form.question, form.gold, *form.options}
    for column in named(columns, names):
        if column in taken or "." in column:
            continue
        present = [row for row in rows if not is_gap(row.get(column))]
        if not present:
            continue
        if all(_is_context(row, column) for row in present):
            return replace(form, context=column)
        doubt = (
            f"'{column}' seems to have texts before the questions that cannot be read, such as "
            f"{brief(present[0][column])}: expected a text or a list of texts; write it so, or "
            "leave it out: task.context_column="
        )
        return replace(form, doubts=(*form.doubts, doubt))
    return form


def _is_context(row: dict[str, Any], column: str) -> bool:
    try:
        read_context(row[column])
    except CellError:
        return False
    return True


def _refuse_images(rows: Rows, columns: Sequence[str]) -> None:
    for column in columns:
        name = plain_name(column.rpartition(".")[2])
        if not IMAGES.fullmatch(name):
            continue
        number = next((n for n, row in enumerate(rows, 1) if not is_gap(cell(row, column))), None)
        if number is not None:
            raise FormError(
                f"task.data: expected problems of text alone, got images in '{column}' (row "
                f"{number}); leave out such rows and the column, or take another data set",
                shown_rows(rows, list(dict.fromkeys(name for row in rows for name in row)), number),
            )


# Options


def _options(rows: Rows, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of the options, the right one first where it has its own; or none."""
    for column in named(columns, OPTIONS):
        if _share(rows, _has_options, (column,)) >= _HALF:
            return (column,)
    for column in named(columns, ("answers",)):
        # ReClor's options, beside which the label is the place of the right one.
        labels = named(columns, ("label", "correct", "answeridx", "answerindex"))
        is_plain = "." not in column and _share(rows, _has_plain_options, column) >= _HALF
        if is_plain and any(_has_places(rows, label, column) for label in labels):
            return (column,)
    return _option_columns(rows, columns) or _right_and_wrong(rows, columns)


def _option_columns(rows: Rows, columns: Sequence[str]) -> tuple[str, ...]:
    """Return columns with an option each, such as A, B, C, D or option1, option2; or none."""
    families: dict[str, list[tuple[str, str]]] = {}
    for column in columns:
        match = OPTION_COLUMN.fullmatch(column)
        # Single letters are options where they are large: A, B, C, D.
        if match and (match["name"] or match["label"].isupper()):
            family = families.setdefault((match["name"] or "").lower(), [])
            family.append((match["label"].upper(), column))
    for family in families.values():
        family.sort()
        labels = [label for label, _ in family]
        ordered = [column for _, column in family]
        if _is_sequence(labels) and _has_texts(rows, ordered):
            return tuple(ordered)
    return ()


def _right_and_wrong(rows: Rows, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the column of the right option and those, or the list, of the wrong ones; or none."""
    right = named(columns, RIGHT_OPTIONS)
    wrong = [column for column in columns if WRONG_OPTION.fullmatch(plain_name(column))]
    if not right or not wrong:
        return ()
    if len(wrong) > 1:
        is_readable = _has_texts(rows, wrong)
    else:
        is_readable = isinstance(cell(rows[0], wrong[0]), list)
    return (right[0], *wrong) if is_readable else ()


def _unread_options(rows: Rows, columns: Sequence[str]) -> str:
    """Return a doubt about a column that is called options and has something else."""
    for column in named(columns, OPTIONS):
        present = [row for row in rows if not is_gap(cell(row, column))]
        if "." not in column and len(present) >= _HALF * len(rows):
            value = brief(cell(present[0], column))
            return (
                f"'{column}' seems to have options that cannot be read, such as {value}: expected "
                "a list or an object of texts; write it so, or take the column out"
            )
    return ""


def _is_sequence(labels: Sequence[str]) -> bool:
    """Return whether labels are A, B, C, ..., or 0, 1, ..., or 1, 2, ..."""
    joined = "".join(labels)
    sequences = ("ABCDEFGHIJ", "0123456789", "123456789")
    return len(labels) > 1 and any(sequence.startswith(joined) for sequence in sequences)


def _has_texts(rows: Rows, columns: Sequence[str]) -> bool:
    """Return whether most rows have texts or numbers in the first two of some columns."""
    return all(_share(rows, _has_scalar, column) >= _HALF for column in columns[:2])


def _has_scalar(row: dict[str, Any], column: str) -> bool:
    value = row.get(column)
    return isinstance(value, (str, int, float)) and not is_gap(value)


def _has_options(row: dict[str, Any], columns: tuple[str, ...]) -> bool:
    try:
        options = read_options(row, columns)
    except CellError:
        return False
    return options is not None and len(options.texts) > 1


def _has_plain_options(row: dict[str, Any], column: str) -> bool:
    value = decoded(row.get(column))
    is_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return is_list and _has_options(row, (column,))


def _has_places(rows: Rows, column: str, options: str) -> bool:
    """Return whether most rows have the place of an option in one column, or its letter."""

    def holds(row: dict[str, Any]) -> bool:
        value = str(row.get(column)).strip()
        is_place = re.fullmatch(r"[0-9]{1,2}|[A-J]", value) is not None
        return is_place and _names_an_option(row, column, (options,))

    return "." not in column and _share(rows, holds) >= _HALF


def _first_option(rows: Rows, gold: str, options: tuple[str, ...]) -> tuple[int | None, str]:
    """Return the number of the first option where answers are places of options, and a doubt."""
    places = []
    most = 0
    is_named = True
    for row in rows:
        value = only_item(cell(row, gold))
        if is_gap(value) or not _has_options(row, options):
            continue
        choices = read_options(row, options)
        text = _place_text(value)
        if choices is None or text is None:
            return None, ""
        places.append(int(text))
        most = max(most, len(choices.texts))
        is_named &= text in choices.labels or (isinstance(value, str) and text in choices.texts)
    if not places or is_named or max(places) > most:
        return None, ""  # a place beyond the options is refused with its row
    if min(places) == 0:
        return 0, ""
    if max(places) == most:
        return 1, ""
    return None, (
        f"answers in '{gold}' are numbers from {min(places)} to {max(places)}, and the first of "
        f"{most} options may be 0 or 1: task.first_option=0 or task.first_option=1 says so"
    )


def _place_text(value: Any) -> str | None:
    """Return a value as the digits of a place; None if it is none."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    is_place = not isinstance(value, bool) and re.fullmatch("[0-9]{1,2}", text) is not None
    return text if is_place else None


# Answers


def _with_gold(form: Form, rows: Rows, columns: Sequence[str], given: Given) -> Form:
    """Add the column of the answers, and how they are read."""
    gold = given.gold
    doubt = ""
    if not gold:
        gold, doubt = _gold(form, rows, columns, given)
    doubts = [doubt]
    first_option = given.first_option
    any_answer = {"any": True, "all": False}.get(given.lists)
    if form.options:
        if first_option is None and gold not in form.options:
            first_option, doubt = _first_option(rows, gold, form.options)
            doubts.append(doubt)
    elif any_answer is None:
        any_answer, doubt = _any_answer(rows, gold, given.part)
        doubts.append(doubt)
    return replace(
        form,
        gold=gold,
        first_option=first_option,
        any_answer=any_answer,
        doubts=(*form.doubts, *filter(None, doubts)),
    )


def _gold(form: Form, rows: Rows, columns: Sequence[str], given: Given) -> tuple[str, str]:
    """Return the column of the answers, and a doubt about it or nothing."""
    if len(form.options) > 1 and plain_name(form.options[0]) in RIGHT_OPTIONS:
        return form.options[0], ""  # beside the wrong ones
    used = {form.question, given.context, *form.options, *_targets(columns)}
    free = [column for column in columns if column not in used]
    final = _final_answers(rows, free)
    readable = [column for column in final if _is_verifiable(rows, column, form, given.part)]
    if readable:
        doubt = "" if form.options else _differing(readable, rows, given.part)
        return readable[0], doubt
    worked = [column for column in named(free, WORKED) if _has_answers(rows, column)]
    if _share(rows, _ends_with_answer, form.question) >= _HALF:
        worked.append(form.question)
    for column in worked:
        if _is_verifiable(rows, column, form, given.part):
            return column, ""
    if final or worked:
        column = [*final, *worked][0]
        what = "names none of the options" if form.options else "has running texts or objects"
        return column, (
            f"no column of answers can be read by a verifier: '{column}' {what}, such as "
            f"{brief(cell(rows[0], column))}; task.gold_column=COL names another"
        )
    known = f"questions are in '{form.question}'"
    raise _unknown("a column of answers", rows, columns, known=known)


def _final_answers(rows: Rows, columns: Sequence[str]) -> list[str]:
    """Return the columns with answers without a solution, the likeliest first."""
    answers = [column for column in named(columns, GOLDS) if _has_answers(rows, column)]
    nested = [c for c in NESTED_GOLDS if c in columns and _has_answers(rows, c)]
    plain = [column for column in answers if "." not in column]
    entries = [column for column in answers if "." in column and column not in nested]
    return [*plain, *nested, *entries]


def _targets(columns: Sequence[str]) -> list[str]:
    """Return columns of numbers that an expression over other numbers has to come to.

    The answer to such a problem, a countdown, is the expression, which no column has.
    """
    names = {plain_name(column.rpartition(".")[2]) for column in columns}
    if names.isdisjoint({"nums", "numbers"}):
        return []
    return named(columns, ("target",))


def _differing(candidates: Sequence[str], rows: Rows, part: AnswerPart) -> str:
    """Return a doubt about two columns of answers that differ in many rows.

    Entries of objects do not count beside a column.
    """
    first = candidates[0]
    for other in candidates[1:]:
        if ("." in other) is not ("." in first) or _holds_booleans(rows, first, other):
            continue
        number = _first_difference(rows, first, other, part)
        if number is not None:
            one, two = (brief(cell(rows[number - 1], column)) for column in (first, other))
            return (
                f"both '{first}' and '{other}' may be the answers, and differ, such as {one} and "
                f"{two} in row {number}: task.gold_column={first} or task.gold_column={other} "
                "says which"
            )
    return ""


def _has_answers(rows: Rows, column: str) -> bool:
    return _share(rows, _has_answer, column) >= _HALF


def _has_answer(row: dict[str, Any], column: str) -> bool:
    return _answers(row, column) is not None


def _answers(row: dict[str, Any], column: str) -> list[str | bool] | None:
    try:
        return read_answers(cell(row, column))
    except CellError:
        return None


def _ends_with_answer(row: dict[str, Any], column: str) -> bool:
    """Return whether a cell is a conversation that ends with the assistant's message."""
    try:
        conversation = messages_of(cell(row, column))
    except CellError:
        return False
    return conversation is not None and conversation[-1].role == "assistant"


def _is_verifiable(rows: Rows, column: str, form: Form, part: AnswerPart) -> bool:
    """Return whether most answers of a column are no running text."""

    def holds(row: dict[str, Any]) -> bool:
        answers = _answers(row, column)
        return answers is not None and all(
            isinstance(answer, bool) or is_readable(reference_part(answer, part))
            for answer in answers
        )

    if form.options:
        return _share(rows, _names_an_option, column, form.options) >= _HALF
    present = [row for row in rows if _answers(row, column) is not None]
    return _share(present, holds) >= _HALF


def _names_an_option(row: dict[str, Any], column: str, columns: tuple[str, ...]) -> bool:
    value = only_item(cell(row, column))
    if is_gap(value) or not isinstance(value, (str, int, float)):
        return False
    try:
        options = read_options(row, columns)
    except CellError:
        return False
    if options is None:
        return False
    text = str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()
    names = {name.strip().casefold() for name in (*options.labels, *options.texts)}
    is_place = bool(re.fullmatch("[0-9]{1,2}", text)) and int(text) <= len(options.texts)
    is_letter = letter_place(text, len(options.texts)) is not None
    return is_place or is_letter or text.casefold() in names


def _holds_booleans(rows: Rows, first: str, other: str) -> bool:
    """Return whether only one of two columns holds booleans: marks of answers, not answers."""
    return isinstance(cell(rows[0], first), bool) is not isinstance(cell(rows[0], other), bool)


def _first_difference(rows: Rows, first: str, other: str, part: AnswerPart) -> int | None:
    """Return the number of the first row in which two columns differ, if many do."""
    numbers = []
    for number, row in enumerate(rows, start=1):
        one = _answers(row, first)
        two = _answers(row, other)
        if one is None or two is None:
            continue
        pairs = [
            (reference_part(str(a), part), reference_part(str(b), part)) for a in one for b in two
        ]
        if not any(are_equal(a, b) for a, b in pairs):
            numbers.append(number)
    return numbers[0] if len(numbers) > _DIFFERING * len(rows) else None


def _any_answer(rows: Rows, gold: str, part: AnswerPart) -> tuple[bool | None, str]:
    """Return whether any of several answers is right, and a doubt where nothing says so."""
    several = []
    for number, row in enumerate(rows, start=1):
        answers = _answers(row, gold)
        if answers is not None and len(answers) > 1:
            texts = [reference_part(str(answer), part) for answer in answers]
            several.append((number, texts))
    if not several:
        return None, ""
    name = plain_name(gold.rpartition(".")[2])
    if name == "finalanswer":
        return False, ""
    is_same = all(all(are_equal(texts[0], text) for text in texts) for _, texts in several)
    if is_same or name in ALIASES:
        return True, ""
    number, texts = several[0]
    return None, (
        f"row {number} has several answers in '{gold}', {brief(texts)}: task.gold_lists=any if "
        "one of them is enough, task.gold_lists=all if all are needed"
    )


# Programs


def _tests(rows: Rows, columns: Sequence[str], given: Given) -> str:
    taken = {given.gold, given.question}
    if given.gold:
        return ""
    for column in named(columns, TESTS):
        is_program = _share(rows, _has_tests, column) >= _HALF
        if column not in taken and "." not in column and is_program:
            return column
    # PRIME's programs, and those of open-instruct.
    for column in ("reward_model.ground_truth", "ground_truth"):
        if column in columns and _share(rows, _has_tests, column) >= _HALF:
            return column
    return ""


def _has_tests(row: dict[str, Any], column: str) -> bool:
    """Return whether a cell has inputs and outputs, or tests in Python."""
    try:
        tests = read_tests(cell(row, column))
    except CellError:
        return False
    return tests is not None and all(not isinstance(test, str) or is_python(test) for test in tests)


def _has_text(row: dict[str, Any], column: str) -> bool:
    return isinstance(row.get(column), str)


def _with_programs(form: Form, rows: Rows, columns: Sequence[str]) -> Form:
    def texts(names: Sequence[str]) -> str:
        for column in named(columns, names):
            if _share(rows, _has_text, column) >= _HALF:
                return column
        return ""

    return replace(
        form,
        program=texts(PROGRAMS),
        setup=texts(SETUPS),
        entry_point=texts(("entrypoint",)),
    )


# Levels


def _level(rows: Rows, columns: Sequence[str]) -> str:
    """Return a column of levels that all rows have, in at least two values from 0 to 99."""
    for column in named(columns, LEVELS):
        if "." in column:
            continue
        levels = {_level_of(row.get(column)) for row in rows}
        if None not in levels and len(levels) > 1:
            return column
    return ""


def _level_of(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    match = re.fullmatch(r"(?:level\s*)?([0-9]{1,2})(?:\.0)?", str(value).strip(), re.IGNORECASE)
    return int(match[1]) if match else None


# Refusals


def _unknown(expected: str, rows: Rows, columns: Sequence[str], known: str) -> FormError:
    tops = list(dict.fromkeys(name for row in rows for name in row))
    names = ", ".join(f"'{name}'" for name in tops[:_MOST_SHOWN]) or "none"
    entries = [name for name in columns if name not in tops]
    if entries:
        names += f" (and {', '.join(repr(name) for name in entries[:_MOST_SHOWN])})"
    shown = f"{known}; " if known else ""
    return FormError(
        f"task.data: expected {expected}, got {names}; {shown}name the columns: "
        "`advsweep init --data FILE --model PATH --question COL --answer COL`, or "
        "task.question_column=COL task.gold_column=COL",
        shown_rows(rows, tops),
    )


def shown_rows(rows: Rows, columns: Sequence[str], odd: int = _SHOWN_ROWS) -> list[str]:
    """Return lines that show two rows, with all columns and cut values.

    Args:
        odd: the number of a row, from 1, that is shown beside the first one.
    """
    width = min(24, max((len(name) for name in columns), default=0))
    lines = []
    second = max(odd, _SHOWN_ROWS)
    for number in (1, second):
        if number > len(rows):
            break
        row = rows[number - 1]
        lines.append(f"row {number}:")
        present = [name for name in columns if name in row]
        lines += [f"  {name:<{width}}  {brief(row[name])}" for name in present[:_MOST_SHOWN]]
        if len(present) > _MOST_SHOWN:
            lines.append(f"  and {len(present) - _MOST_SHOWN} more columns")
    return [printable_line(line) for line in lines]
