"""What the words of tables and figures mean: labels of columns, headings, names of rows.

`advsweep describe` looks them up here. Labels are made by `data.columns` and `data.labels`; here
they are read back: a label stands for the column that has it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from advsweep.errors import ConfigError
from advsweep.report.data.columns import Column, label_column, parse_column
from advsweep.report.data.evaluation_sources import Evaluation, PassAtK, RarefiedEntropy
from advsweep.report.data.metrics import CatalogueEntry, read_catalogue
from advsweep.report.data.sources import Reached
from advsweep.report.data.windows import END_STEPS, PER_STEPS, Window
from advsweep.yaml_files import read_yaml

_WINDOW = re.compile(
    r"(?P<body>.+) (?:1-(?P<first>\d+)"
    r"|(?P<other>end|last|min|max|argmin|argmax|slope|var|selected|steps_to=\S+|share[<>]\S+))"
)
_FLOOR = re.compile(r"(?P<body>.+) - (?P<floor>\w+)")
# What `ProblemChoice.labels` writes before the label of a number.
_PROBLEMS = re.compile(
    r"(?:(?P<task>\S+) ??)??(?:level (?P<level>-?\d+) ?)?(?P<train>train ?)?"
    r"(?:base (?P<low>[\d.]+)-(?P<high>[\d.]+))?"
)
# The row of a control: rloo (placebo).
_TITLED = re.compile(r"\S+ \((?P<title>[^()]+)\)")
_DIFFERENCE = re.compile(r"Δ (?P<label>.+?)(?: \[95 % interval\])?")
# What stands for a number in the words of the catalogue, and in its names.
_NUMBERS = {"{k}": r"(?P<K>\d+)", "{m}": r"(?P<m>\d+)", "{cost}": r"(?P<COST>[a-z]+)"}

_WINDOWS = {
    "end": f"mean over the last {END_STEPS} steps",
    "last": "the last value",
    "min": "the least value",
    "max": "the largest value",
    "argmin": "the first step with the least value",
    "argmax": "the first step with the largest value",
    "slope": f"slope of the line of least squares, per {PER_STEPS} steps",
    "var": "variance of the values",
    "selected": "at the step with the best pass@1 on validation problems",
}


@dataclass(frozen=True)
class Word:
    """A word of a table or a figure.

    Attributes:
        text: as it is printed.
        meaning: what it is.
        of: where it stands, or the subject of its metric.
        name: the column that it is the label of, as `--columns` takes it; empty for other words.
        unit: as in `CatalogueEntry`.
        better: which values are better; empty for other words.
    """

    text: str
    meaning: str
    of: str
    name: str = ""
    unit: str = ""
    better: str = ""


def find_word(text: str) -> Word | None:
    """Return the word of a table or a figure with a text; None if none prints it."""
    for place, words in read_words().items():
        if text in words:
            return Word(text, " ".join(words[text].split()), place)
    titled = _TITLED.fullmatch(text)
    if titled is not None:
        return find_word(titled["title"])
    column = find_column(text)
    if column is not None:
        return _describe_column(column)
    difference = _DIFFERENCE.fullmatch(text)
    of = None if difference is None else find_column(difference["label"])
    if of is None:
        return None
    place, meaning = "tables of a report", f"difference of {of.header} to the baseline"
    return Word(text, f"{meaning}, with its 95 % interval", place, of.name)


@functools.cache
def read_words() -> Mapping[str, Mapping[str, str]]:
    """Return the meanings of headings, rows and axes, by where they stand."""
    words: Mapping[str, Mapping[str, str]] = read_yaml(Path(__file__).with_name("words.yaml"))
    return words


def find_column(text: str) -> Column | None:
    """Return the column that has a name, or a label; None if the catalogue has none.

    >>> find_column("p@32 - guess").name
    'pass@32[above=guess]'
    """
    column = _known_column(text)
    if column is not None:
        return column
    for name in _names_of(text):
        column = _known_column(name)
        if column is not None and column.header == text:
            return column
    return None


def _known_column(name: str) -> Column | None:
    """Return a column whose numbers the catalogue describes; None for others."""
    try:
        column = parse_column(name)
    except ConfigError:  # a cutoff that no run can come to
        return None
    if column is None:
        return None
    is_known = column.source.entry is not None or isinstance(column.source, Reached)
    return column if is_known else None


def _names_of(label: str) -> Iterator[str]:
    """Yield the names of columns that may have a label."""
    body, is_cut, cutoff = label.partition(" @ ")
    at = f"@{cutoff}" if is_cut else ""
    bodies = [(body, at)]
    match = _WINDOW.fullmatch(body)
    if match is not None:
        window = f"first{match['first']}" if match["first"] else match["other"]
        bodies.append((match["body"], f"@{window}{at}"))
    for stem, end in bodies:
        floor = _FLOOR.fullmatch(stem)
        if floor is not None:
            for name in _names_of_source(floor["body"], [f"above={floor['floor']}"]):
                yield f"{name}{end}"
        for name in _names_of_source(stem, []):
            yield f"{name}{end}"


def _names_of_source(label: str, parts: list[str]) -> Iterator[str]:
    """Yield the names, without a window, of columns that may have a label.

    Args:
        parts: what the name has in its brackets beside what the label says.
    """
    for entries in read_catalogue().values():
        for entry in entries:
            match = _label_pattern(entry).fullmatch(label)
            if match is None:
                continue
            name = entry.name
            numbers = {key: text for key, text in match.groupdict().items() if text is not None}
            before = numbers.pop("before", "")
            rarefied = numbers.pop("m", None)
            for key, number in numbers.items():
                name = name.replace(key, number)
            if not entry.header:
                name = match["name"]
            chosen = _problem_parts(before.strip())
            if chosen is None:
                continue
            more = [] if rarefied is None else [f"m={rarefied}"]
            for brackets in ([*chosen, *parts], [*chosen, *parts, *more]):
                yield f"{name}[{','.join(brackets)}]" if brackets else name


@functools.cache
def _label_pattern(entry: CatalogueEntry) -> re.Pattern[str]:
    """Return what the labels of an entry look like: `before`, then its words with numbers."""
    if not entry.header:
        return re.compile(rf"(?P<before>.+ )?(?P<name>{entry.pattern.pattern})")
    words = re.escape(entry.header)
    for placeholder, pattern in _NUMBERS.items():
        words = words.replace(re.escape(placeholder), pattern)
    return re.compile(rf"(?P<before>.+ )?{words}")


def _problem_parts(label: str) -> list[str] | None:
    """Return what the brackets of a column say of the problems; None if a label is not of these."""
    match = _PROBLEMS.fullmatch(label)
    if match is None:
        return None
    parts = [match["task"]] if match["task"] else []
    if match["level"]:
        parts.append(f"level={match['level']}")
    if match["train"]:
        parts.append("split=train")
    if match["low"]:
        parts.append(f"base={match['low']}:{match['high']}")
    return parts


def _describe_column(column: Column) -> Word:
    """Return a column with its meaning: of its metric, its problems, its window and its cutoff."""
    entry = column.source.entry
    details = [*_describe_source(column), *_describe_place(column)]
    if entry is None:
        return Word(
            column.header, "; ".join(details), "Evaluations", column.name, "share", "neither"
        )
    subjects = [subject for subject, entries in read_catalogue().items() if entry in entries]
    meaning = entry.meaning
    if isinstance(column.source, PassAtK):
        meaning = re.sub(r"\bK\b", str(column.source.k), meaning)
    keeps_unit = column.window is None or column.window.keeps_unit
    return Word(
        text=label_column(column.name),
        meaning="; ".join([meaning, *details]),
        of=subjects[0],
        name=column.name,
        unit=entry.unit if keeps_unit else "",
        better=column.direction.value,
    )


def _describe_source(column: Column) -> list[str]:
    """Say which problems, answers and floor the numbers of a column are of."""
    source = column.source
    if not isinstance(source, Evaluation):
        return ["whether a run comes there"] if isinstance(source, Reached) else []
    problems = source.problems
    details = []
    if problems.is_mean:
        details.append("mean over the evaluated tasks")
    if problems.task is not None:
        details.append(f"on the task {problems.task}")
    if problems.level is not None:
        details.append(f"problems of level {problems.level}")
    if problems.is_train:
        details.append("on training problems")
    if problems.base is not None:
        low, high = problems.base
        details.append(f"problems that the base model solves at a rate from {low:g} to {high:g}")
    if isinstance(source, RarefiedEntropy) and str(source) != source.name:
        details.append(f"here of {source.m} right answers")
    if isinstance(source, PassAtK) and source.above is not None:
        details.append(f"minus that of the chance baseline `{source.above}` on the same problems")
    return details


def _describe_place(column: Column) -> list[str]:
    """Say where in the training the numbers of a column are taken."""
    details = []
    if column.window is not None:
        details.append(_describe_window(column.window))
    if column.at is not None:
        details.append(f"where the run first comes to {column.at.text}")
    return details


def _describe_window(window: Window) -> str:
    match window.kind:
        case "first":
            return f"mean over the first {window.value:.0f} steps"
        case "steps_to=":
            return f"the first step at {window.value:g}"
        case "share>":
            return f"share of the steps above {window.value:g}"
        case "share<":
            return f"share of the steps below {window.value:g}"
        case kind:
            return _WINDOWS[kind]
