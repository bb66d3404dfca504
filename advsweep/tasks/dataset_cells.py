"""Reads the cells of a row: questions, options, answers and tests, in the forms of data sets.

A cell may be a text, a number, a list, an object, or any of these written as JSON (or as Python
writes it, which is what spreadsheets of such values hold). Nothing is executed.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

ROW = Mapping[str, Any]

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
}
_MOST_OPTIONS = 26
_EXACT_FLOATS = 2**53  # the largest whole number up to which floats hold all
_FLOAT_DIGITS = 15  # of any decimal number that a float keeps
_SHOWN = 60  # largest number of characters of a value in a message
_MOST_SPELLED = 1000
_LONGEST_DECODED = 2**24  # characters of a text that is read as a list or an object
_OPTION_MARK = re.compile(r"(?:^|(?<=[\s,;]))\(?([A-Za-z])\s?\)\s*")
_OPTION_LINE = re.compile(r"\(?(?P<letter>[A-Z])[.:)]\s*(?P<text>\S.*)")


class CellError(ValueError):
    """A cell that cannot be read; the message says what was expected."""


class RoundedError(CellError):
    """A whole number in a float that cannot hold it."""

    def __init__(self) -> None:
        super().__init__("an exact number, not a rounded float,")


class CallTestsError(CellError):
    """Inputs and outputs of a function, which are no tests of a script."""

    def __init__(self) -> None:
        super().__init__("tests of a script, not inputs and outputs of a function,")


def cell(row: ROW, column: str) -> Any:
    """Return the value of a column; a dotted name goes into objects. None if there is none.

    >>> cell({"reward_model": {"ground_truth": "7"}}, "reward_model.ground_truth")
    '7'
    >>> cell({"extra_info": '{"answer": 7}'}, "extra_info.answer")
    7
    """
    if column in row:
        return row[column]
    value: Any = row
    for key in column.split("."):
        value = _entry(value, key)
    return value


def _entry(value: Any, key: str) -> Any:
    """Return the entry of an object, or those of a list of objects."""
    value = decoded(value)
    if isinstance(value, Mapping):
        return value.get(key)
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        entries = [item.get(key) for item in value]
        return None if all(entry is None for entry in entries) else entries
    return None


def has_cell(row: ROW, column: str) -> bool:
    """Return whether a row has a column; it may be empty."""
    return column in row or cell(row, column) is not None


def decoded(value: Any) -> Any:
    """Return the list or the object that a text spells; any other value as it is.

    >>> decoded('{"a": 1}'), decoded("['x', 'y']"), decoded("[0, 1)")
    ({'a': 1}, ['x', 'y'], '[0, 1)')
    """
    if not isinstance(value, str) or len(value) > _LONGEST_DECODED:
        return value
    text = value.strip()
    if not (text.startswith("{") and text.endswith("}")) and not (
        text.startswith("[") and text.endswith("]")
    ):
        return value
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        spelled = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value
    # numpy writes ['a' 'b'] for two texts, which Python reads as one.
    is_whole = _count_quotes(repr(spelled)) == _count_quotes(text)
    return spelled if is_whole and isinstance(spelled, (list, dict)) else value


def _count_quotes(text: str) -> int:
    return text.count("'") + text.count('"')


def is_gap(value: Any) -> bool:
    """Return whether a cell holds nothing: null, NaN, a blank text, a list of such values."""
    if value is None:
        return True
    if isinstance(value, float):
        return math.isnan(value)
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, Mapping):
        return not value
    return isinstance(value, list) and all(is_gap(item) for item in value)


def only_item(value: Any) -> Any:
    """Return the item of a list of one; any other value as it is.

    A number in brackets in a text, such as "[2]", may be the text of an option.

    >>> only_item(["C"]), only_item("['C']"), only_item("[2]"), only_item(["A", "C"])
    ('C', 'C', '[2]', ['A', 'C'])
    """
    items = decoded(value)
    if not isinstance(items, list) or len(items) != 1:
        return value
    is_text_of_number = isinstance(value, str) and not isinstance(items[0], str)
    return value if is_text_of_number else items[0]


def brief(value: object) -> str:
    """Return a value on one line of bounded length, for a message."""
    line = " ".join(repr(value)[:_MOST_SPELLED].split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


# Messages


@dataclass(frozen=True)
class Message:
    """One message of a conversation; the role is system, user or assistant."""

    role: str
    text: str


def messages_of(value: Any) -> list[Message] | None:
    """Return a conversation: objects with role and content, or with from and value; else None.

    Raises:
        CellError: a message is no text, or of another role.
    """
    value = decoded(value)
    if not isinstance(value, list) or not value or not all(map(_is_message, value)):
        return None
    return [_message(item) for item in value]


def _is_message(item: Any) -> bool:
    if not isinstance(item, Mapping):
        return False
    has_text = any(key in item for key in ("content", "value", "ground_truth"))
    return has_text and isinstance(item.get("role", item.get("from")), str)


def _message(item: Mapping[str, Any]) -> Message:
    name = str(item.get("role", item.get("from")))
    role = _ROLES.get(name.lower())
    if role is None:
        raise CellError(f"messages of system, user and assistant, not of '{name[:20]}',")
    content = item.get("content", item.get("value"))
    if content is None and isinstance(item.get("ground_truth"), Mapping):
        content = item["ground_truth"].get("value")  # Open-Reasoner-Zero
    return Message(role, "" if content is None else _content_text(content))


def _content_text(content: Any) -> str:
    """Return the text of a message, which may be a list of parts."""
    if isinstance(content, (str, int, float)) and not isinstance(content, bool):
        return str(content)
    if not isinstance(content, list):
        raise CellError("messages of text")
    texts = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        text = part.get("text") if isinstance(part, Mapping) else part
        if kind != "text" or not isinstance(text, str):
            raise CellError(f"messages of text, not of '{str(kind)[:20]}',")
        texts.append(text)
    return "\n".join(texts)


# Questions


@dataclass(frozen=True)
class Question:
    """A question, with the system message before it where the data has one."""

    text: str
    system: str = ""


def read_question(value: Any) -> Question | None:
    """Return a question from a text or a conversation; None for a gap.

    The last message of a conversation is left out where it is the assistant's: an answer.

    Raises:
        CellError: the cell is neither, or the conversation has several turns.
    """
    if is_gap(value):
        return None
    conversation = messages_of(value)
    if conversation is None:
        if not isinstance(value, str):
            raise CellError("a text, or messages with role and content,")
        return Question(value.strip())
    if conversation[-1].role == "assistant":
        conversation = conversation[:-1]
    asked = [message.text.strip() for message in conversation if message.role == "user"]
    if len(asked) + sum(message.role == "system" for message in conversation) < len(conversation):
        raise CellError("one message of the user, not a conversation of several turns,")
    if len(asked) > 1:
        raise CellError("one message of the user, not several,")
    if not asked or not asked[0]:
        return None
    system = [message.text.strip() for message in conversation if message.role == "system"]
    return Question(asked[0], "\n\n".join(text for text in system if text))


def read_context(value: Any) -> str:
    """Return the text before a question; a list of texts has a line for each.

    Raises:
        CellError: the cell holds something else.
    """
    spelled = decoded(value)
    texts = spelled if isinstance(spelled, list) else [value]
    present = [text for text in texts if not is_gap(text)]
    if not all(isinstance(text, str) for text in present):
        raise CellError("a text, or a list of texts,")
    return "\n".join(text.strip() for text in present)


# Answers


def read_answers(value: Any) -> list[str | bool] | None:
    """Return the answers in a cell as texts, several for a list; None for a gap.

    Raises:
        CellError: the cell is an object, or a list of objects.
        RoundedError: a float has lost digits of a whole number.
    """
    if is_gap(value):
        return None
    conversation = messages_of(value)
    if conversation is not None:
        last = conversation[-1]
        return [last.text.strip()] if last.role == "assistant" and last.text.strip() else None
    spelled = decoded(value)
    if isinstance(spelled, Mapping):
        raise CellError("an answer, not an object,")
    # A list of numbers in a text, such as [1, 2], may be an interval; one of texts is a list.
    if isinstance(spelled, list) and all(isinstance(item, str) for item in spelled):
        value = spelled
    if not isinstance(value, list):
        return [_answer_text(value)]
    answers = [_answer_text(item) for item in value if not is_gap(item)]
    # Dollars around each item would end the formula between the items.
    return [answer if isinstance(answer, bool) else answer.replace("$", "") for answer in answers]


def _answer_text(value: Any) -> str | bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, float):
        if math.isinf(value):
            raise CellError("a finite number")
        return _whole_number(value) if value.is_integer() else str(value)
    if not isinstance(value, (str, int)):
        if not isinstance(value, list):
            raise CellError("an answer, not an object,")
        # A list within the list is one answer of several parts.
        return ", ".join(str(_answer_text(item)) for item in value)
    return str(value)


def _whole_number(value: float) -> str:
    """Return the digits of a whole number that a float holds.

    >>> _whole_number(27.0), _whole_number(1e23)
    ('27', '100000000000000000000000')

    Raises:
        RoundedError: the number has more digits than a float keeps, so that its last ones are lost.
    """
    digits = Decimal(repr(value))
    if abs(value) >= _EXACT_FLOATS and len(digits.normalize().as_tuple().digits) > _FLOAT_DIGITS:
        raise RoundedError
    return str(int(digits))


# Options


@dataclass(frozen=True)
class Options:
    """The options of a question of multiple choice, in order.

    Attributes:
        texts: what they say.
        labels: what the data calls them, such as A or 1; empty where it has no names for them.
    """

    texts: tuple[str, ...]
    labels: tuple[str, ...] = ()


def read_options(row: ROW, columns: Sequence[str]) -> Options | None:
    """Return the options in one column, or in several with an option each; None for a gap.

    Raises:
        CellError: there are no options, or more than there are letters.
    """
    if len(columns) > 1:
        return _options_of_columns(row, columns)
    value = decoded(cell(row, columns[0]))
    if is_gap(value):
        return None
    options = _options_of(value)
    if options is None or not 1 <= len(options.texts) <= _MOST_OPTIONS:
        raise CellError(f"a list of 1 to {_MOST_OPTIONS} options")
    return options


def _options_of_columns(row: ROW, columns: Sequence[str]) -> Options | None:
    values = {column: cell(row, column) for column in columns}
    if all(map(is_gap, values.values())):
        return None
    # Questions with fewer options leave the last columns empty; a gap before would shift places.
    while is_gap(values[next(reversed(values))]):
        values.popitem()
    if any(map(is_gap, values.values())):
        raise CellError("options without a gap between them")
    if not all(isinstance(value, (str, int, float)) for value in values.values()):
        raise CellError("options that are texts")
    labels = tuple(option_label(column) for column in values)
    texts = tuple(map(str, values.values()))
    return Options(texts, labels if all(labels) and len({*labels}) == len(labels) else ())


def option_label(column: str) -> str:
    """Return the label at the end of a column's name, such as A for `option_a`; else nothing."""
    match = re.search(r"(?:^|[\W_]|(?<=[a-z]))([A-Z]|[0-9]{1,2})$|(?:^|[\W_]|op)([a-z])$", column)
    return (match[1] or match[2]).upper() if match else ""


def _options_of(value: Any) -> Options | None:
    if isinstance(value, Mapping):
        return _options_of_object(value)
    if isinstance(value, list):
        if all(isinstance(item, Mapping) for item in value):
            labels = [item.get("label", item.get("key", item.get("id"))) for item in value]
            texts = [item.get("text", item.get("value", item.get("content"))) for item in value]
            return _labelled(labels, texts)
        if any(is_gap(item) or isinstance(item, (list, Mapping)) for item in value):
            return None
        return Options(tuple(map(str, value)))
    return _options_of_text(value) if isinstance(value, str) else None


def _options_of_object(value: Mapping[str, Any]) -> Options | None:
    """Read {"text": [...], "label": [...]}, as in ARC, or {"A": ..., "B": ...}."""
    texts = value.get("text", value.get("texts"))
    if isinstance(texts, list):
        return _labelled(value.get("label", value.get("labels")), texts)
    if all(isinstance(text, (str, int, float)) or text is None for text in value.values()):
        present = {key: text for key, text in value.items() if not is_gap(text)}
        return _labelled([*present], [*present.values()])
    return None


def _labelled(labels: Any, texts: Sequence[Any]) -> Options | None:
    if any(is_gap(text) or isinstance(text, (list, Mapping)) for text in texts):
        return None
    shown = tuple(map(str, texts))
    is_complete = isinstance(labels, list) and len(labels) == len(shown)
    if not is_complete or any(label is None for label in labels):
        return Options(shown)
    return Options(shown, tuple(str(label).strip() for label in labels))


def _options_of_text(text: str) -> Options | None:
    """Read "a ) 38 , b ) 27 , c ) 30", as in MathQA, or a line such as "A. 38" for each option."""
    lines = [_OPTION_LINE.fullmatch(line.strip()) for line in text.strip().splitlines()]
    labelled = [line for line in lines if line is not None]
    letters = "".join(line["letter"] for line in labelled)
    if len(lines) == len(labelled) > 1 and _is_alphabet(letters):
        return Options(tuple(line["text"] for line in labelled), tuple(letters))
    marks = [*_OPTION_MARK.finditer(text)]
    letters = "".join(mark[1].upper() for mark in marks)
    if len(marks) < 2 or text[: marks[0].start()].strip() or not _is_alphabet(letters):
        return None
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    texts = [
        text[mark.end() : end].strip().rstrip(",;").strip()
        for mark, end in zip(marks, ends, strict=True)
    ]
    return Options(tuple(texts), tuple(letters)) if all(texts) else None


def _is_alphabet(letters: str) -> bool:
    return letters == "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(letters)]


def place_of(value: Any, options: Options, first_option: int | None) -> int | None:
    """Return the place of the right option, from 0; None where the value names none of them.

    Args:
        value: a letter, a label, the text of an option, or its place.
        first_option: the number of the first option where values are places; None: a whole number
            that is no text is a place from 0.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    count = len(options.texts)
    text = str(value).strip()
    is_number = re.fullmatch("[0-9]{1,2}", text) is not None
    if first_option is not None and is_number:
        place = int(text) - first_option
        return place if 0 <= place < count else None
    if isinstance(value, int) and not options.labels:
        return value if 0 <= value < count else _only(options.texts, text)
    label = _only([name.casefold() for name in options.labels], text.casefold())
    if label is not None:
        return label
    same = _only([option.strip().casefold() for option in options.texts], text.casefold())
    letter = letter_place(text, count)
    if letter is None:
        is_place = same is None and is_number and int(text) < count
        return int(text) if is_place else same
    if same is not None and same != letter:
        raise CellError("an answer that is either a letter or the text of an option, not both,")
    return letter


def letter_place(text: str, count: int) -> int | None:
    """Return the place that a letter names, as in C, (C) or C.; None if it names none."""
    match = re.fullmatch(r"\(?([A-Za-z])[).:]?", text)
    place = ord(match[1].upper()) - ord("A") if match else count
    return place if place < count else None


def _only(names: Sequence[str], name: str) -> int | None:
    places = [place for place, each in enumerate(names) if each == name]
    return places[0] if len(places) == 1 else None


# Tests of programs

_SCRIPT_TEST = ("input", "output")


def read_tests(value: Any, entry_point: Any = None) -> list[str | dict[str, str]] | None:
    """Return the tests of a program: texts of Python, or inputs and outputs; None for a gap.

    Args:
        entry_point: the name of the function that the tests' `check` is called with.

    Raises:
        CellError: the cell holds no tests.
        CallTestsError: it holds inputs and outputs of a function.
    """
    if is_gap(value):
        return None
    value = decoded(value)
    if isinstance(value, Mapping):
        value = _tests_of_object(value)
        if not value:
            return None
    if isinstance(value, str) and is_python(value):
        value = [value]
    if not isinstance(value, list) or not value:
        raise CellError(_TESTS)
    tests = [_test(item) for item in value]
    if isinstance(entry_point, str) and len(tests) == 1 and isinstance(tests[0], str):
        if not entry_point.isidentifier():
            raise CellError(f"tests of a function, not of {entry_point[:20]!r},")
        # Other sets have the column too, and tests that call the function by its name.
        if _UNCALLED_CHECK.search(tests[0]) and not _CALL_OF_CHECK.search(tests[0]):
            tests = [f"{tests[0].rstrip()}\n\ncheck({entry_point})"]
    return tests


_UNCALLED_CHECK = re.compile(r"^def check\(", re.MULTILINE)
_CALL_OF_CHECK = re.compile(r"^(?:    )*check\(", re.MULTILINE)


_TESTS = "a list of tests, each a text or an object with texts input and output,"


def is_python(text: str) -> bool:
    """Return whether a text may be tests in Python, and not a word or a number."""
    return any(word in text for word in ("assert", "def ", "import ", "check("))


def _tests_of_object(value: Mapping[str, Any]) -> list[Any]:
    """Read {"inputs": [...], "outputs": [...]}, as in APPS, or those of CodeContests."""
    if value.get("fn_name"):
        raise CallTestsError
    for first, second in (("inputs", "outputs"), _SCRIPT_TEST):
        inputs = value.get(first)
        outputs = value.get(second)
        if isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs):
            return [
                {"input": _lines(given), "output": _lines(printed)}
                for given, printed in zip(inputs, outputs, strict=True)
            ]
    raise CellError(_TESTS)


def _lines(value: Any) -> Any:
    """Join a list of lines, in which form some tests of APPS are."""
    is_list = isinstance(value, list) and all(isinstance(line, str) for line in value)
    return "\n".join(value) if is_list else value


def _test(test: Any) -> str | dict[str, str]:
    if isinstance(test, str):
        return test
    if isinstance(test, Mapping) and (test.get("fn_name") or test.get("testtype") == "functional"):
        raise CallTestsError
    if not isinstance(test, Mapping) or not all(isinstance(test.get(k), str) for k in _SCRIPT_TEST):
        raise CellError(_TESTS)
    return {key: test[key] for key in _SCRIPT_TEST}
