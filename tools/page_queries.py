"""The queries that the numbers of the documents come from (`page_numbers.py`).

A query is a name and words: `value leaderboard/hard.csv psr pass@1`. Files are those of
`experiments/`. Words between the file and the column choose rows: `psr` is a value of the first
column, `optimizer.lr=2e-4` one of another column, `setting^=bandit` its beginning, and `!=`
excludes. `STUDY.NAME WORDS` calls the function NAME of `experiments/STUDY/answers.py`, for what is
more than a look into a table; `block` queries are such functions that return text.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import math
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
from scipy import stats

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "experiments"
LEVEL = 0.05
Value = float | str
# The names of the tables' headings, and the columns that may hold them.
ALIASES = {
    "pass@32": ("pass@32", "pass@32[above=guess]"),
    "entropy": ("entropy/right_rarefied", "entropy/right"),
}
_CONDITION = re.compile(r"(?P<column>[^=!^]+)(?P<relation>!=|\^=|=)(?P<value>.*)")


QUERIES: dict[str, Callable[..., list[Value]]] = {}


class QueryError(Exception):
    """A query names a file, row or column that is not there, or does not have one value."""


def query(function: Callable[..., list[Value]]) -> Callable[..., list[Value]]:
    """Make a function a query of its name."""
    QUERIES[function.__name__] = function
    return function


@functools.cache
def table(file: str) -> pd.DataFrame:
    """Return a committed table of a study."""
    path = FOLDER / file
    if not path.is_file():
        raise QueryError(f"there is no {file} in experiments/")
    return pd.read_csv(path, low_memory=False)


def rows(file: str, conditions: Sequence[str]) -> pd.DataFrame:
    """Return the rows of a table that fulfil all conditions.

    Raises:
        QueryError: no row does, or a column does not exist.
    """
    found = table(file)
    for condition in conditions:
        match = _CONDITION.fullmatch(condition)
        name = match["column"] if match else found.columns[0]
        wanted = match["value"] if match else condition
        relation = match["relation"] if match else "="
        if name not in found.columns:
            raise QueryError(f"{file} has no column {name}")
        found = found[_fulfils(found[name], relation, wanted)]
    if found.empty:
        raise QueryError(f"{file} has no row {' '.join(conditions)}")
    return found


def only_row(file: str, conditions: Sequence[str]) -> dict[str, Any]:
    """Return the one row of a table that fulfils all conditions, by column.

    Raises:
        QueryError: no row does.
        ValueError: several do.
    """
    (row,) = rows(file, conditions).to_dict("records")
    return {str(column): value for column, value in row.items()}


def last_step(file: str) -> float:
    """Return the step at which the runs of a table end."""
    return float(table(file)["step"].max())


def count_runs(file: str) -> int:
    """Return how many runs a table of their steps has."""
    return len(table(file)[["row", "seed"]].drop_duplicates())


def seeds_of(file: str, *conditions: str) -> int:
    """Return how many seeds the rows of a report have.

    Raises:
        QueryError: some have more than others.
    """
    counts = {int(n) for n in rows(file, conditions)["n"]}
    if len(counts) != 1:
        raise QueryError(f"the rows of {file} have {sorted(counts)} seeds")
    return counts.pop()


def _fulfils(values: pd.Series, relation: str, wanted: str) -> pd.Series:
    if relation == "^=":
        return values.astype(str).str.startswith(wanted)
    numbers = pd.to_numeric(values, errors="coerce")
    try:
        equal = (numbers - float(wanted)).abs() < 1e-9
    except ValueError:
        equal = values.astype(str).where(values.notna(), "") == wanted
    return ~equal if relation == "!=" else equal


def column_of(file: str, name: str, suffix: str = "") -> str:
    """Return the column that a heading such as `entropy` has in a table: the tested one if any."""
    candidates = ALIASES.get(name, (name,))
    tested = [one for one in candidates if f"{one}_p_adjusted" in table(file).columns]
    for candidate in (*tested, *candidates):
        if f"{candidate}{suffix}" in table(file).columns:
            return candidate
    raise QueryError(f"{file} has no column {name}{suffix}")


def _numbers(file: str, conditions: Sequence[str], name: str, suffix: str = "") -> pd.Series:
    column = f"{column_of(file, name, suffix)}{suffix}"
    return pd.to_numeric(rows(file, conditions)[column])


def _only(values: pd.Series, file: str, name: str) -> float:
    distinct = values.dropna().unique()
    if len(distinct) != 1:
        raise QueryError(f"{name} of {file} has {len(distinct)} values in these rows, not one")
    return float(distinct[0])


@query
def value(file: str, *words: str) -> list[Value]:
    """`value FILE ROWS COLUMN`: the one value that these rows have."""
    *conditions, name = words
    return [_only(_numbers(file, conditions, name), file, name)]


@query
def interval(file: str, *words: str) -> list[Value]:
    """`interval FILE ROWS COLUMN`: a value with its interval, of columns COLUMN_low, COLUMN_high.

    Tables of claims and correlations call the ends `low` and `high`.
    """
    *conditions, name = words
    ends = ("", "_low", "_high")
    if "low" in table(file).columns and f"{name}_low" not in table(file).columns:
        columns = [name, "low", "high"]
    else:
        columns = [f"{column_of(file, name, end)}{end}" for end in ends]
    return [_only(_numbers(file, conditions, column), file, column) for column in columns]


@query
def difference(file: str, *words: str) -> list[Value]:
    """`difference FILE ROWS OUTCOME`: a difference to the table's baseline, with its interval."""
    *conditions, name = words
    suffixes = ("_difference", "_difference_low", "_difference_high")
    return [_only(_numbers(file, conditions, name, end), file, name) for end in suffixes]


@query
def change(file: str, *words: str) -> list[Value]:
    """`change FILE ROWS OUTCOME`: a difference to the table's baseline alone."""
    return difference(file, *words)[:1]


@query
def half_width(file: str, *words: str) -> list[Value]:
    """`half_width FILE ROWS OUTCOME`: half of the width of a difference's interval."""
    _, low, high = difference(file, *words)
    return [(float(high) - float(low)) / 2]


@query
def least(file: str, *words: str) -> list[Value]:
    """`least FILE ROWS COLUMN`: the least value in these rows."""
    *conditions, name = words
    return [float(_numbers(file, conditions, name).min())]


@query
def largest(file: str, *words: str) -> list[Value]:
    """`largest FILE ROWS COLUMN`: the largest value in these rows."""
    *conditions, name = words
    return [float(_numbers(file, conditions, name).max())]


@query
def count(file: str, *conditions: str) -> list[Value]:
    """`count FILE ROWS`: how many rows fulfil the conditions."""
    return [len(rows(file, conditions))]


@query
def distinct(file: str, *words: str) -> list[Value]:
    """`distinct FILE ROWS COLUMN`: how many different values a column has in these rows."""
    *conditions, name = words
    return [int(rows(file, conditions)[name].nunique())]


@query
def claims(study: str, *conditions: str) -> list[Value]:
    """`claims STUDY CONDITIONS`: how many claims of a study have such a verdict or setting.

    `verdict^=holds` chooses by the beginning. None is a number, too.
    """
    try:
        return count(f"{study}/claims.csv", *conditions)
    except QueryError as error:
        if "has no row" in str(error):
            return [0]
        raise


@query
def claims_are(study: str, wanted: str, *claims: str) -> list[Value]:
    """`claims_are STUDY VERDICT CLAIM ...`: no value; an error unless all have this verdict."""
    for claim in claims:
        found = only_row(f"{study}/claims.csv", [f"claim={claim}"])["verdict"]
        if found != wanted:
            raise QueryError(f"{claim}: {found}")
    return []


@query
def constant(number: str) -> list[Value]:
    """`constant NUMBER`: a number of the design that the query beside it selects rows by."""
    return [float(number)]


@query
def size(*words: str) -> list[Value]:
    """`size QUERY`: the values of a query without their signs."""
    return [abs(float(found)) for found in _call(words)]


@query
def verdict(file: str, outcome: str, *arms: str) -> list[Value]:
    """`verdict FILE OUTCOME ARM ...`: whether the differences are significant, if all are alike.

    Significant: the p of the table, adjusted for all of its primary outcomes, is at most .05.
    """
    found = {_is_significant(file, outcome, arm) for arm in arms}
    if len(found) != 1:
        raise QueryError(
            f"{outcome} of {file}: some of {', '.join(arms)} are significant, some not"
        )
    return ["significant" if found.pop() else "not significant"]


def _is_significant(file: str, outcome: str, arm: str) -> bool:
    adjusted = _numbers(file, arm.split("&"), outcome, "_p_adjusted")
    return _only(adjusted, file, f"{outcome}_p_adjusted") <= LEVEL


@query
def above(file: str, outcome: str, *arms: str) -> list[Value]:
    """`above FILE OUTCOME ARM ...`: no value; an error unless all are significantly above 0."""
    _require_side(file, outcome, arms, sign=1)
    return []


@query
def below(file: str, outcome: str, *arms: str) -> list[Value]:
    """`below FILE OUTCOME ARM ...`: no value; an error unless all are significantly below 0."""
    _require_side(file, outcome, arms, sign=-1)
    return []


def _require_side(file: str, outcome: str, arms: Sequence[str], *, sign: int) -> None:
    for arm in arms:
        difference_to_0 = float(change(file, *arm.split("&"), outcome)[0])
        if sign * difference_to_0 <= 0 or not _is_significant(file, outcome, arm):
            side = "above" if sign > 0 else "below"
            raise QueryError(
                f"{outcome} of {arm} in {file} is not significantly {side} the baseline"
            )


@query
def equivalent(file: str, outcome: str, margin: str, *arms: str) -> list[Value]:
    """`equivalent FILE OUTCOME MARGIN ARM ...`: whether two one-sided tests say so for all arms."""
    largest_margin = max(equivalence_margin(file, outcome, arm) for arm in arms)
    return ["equivalent" if largest_margin <= float(margin) else "not equivalent"]


def equivalence_margin(file: str, outcome: str, arm: str) -> float:
    """Return the smallest margin within which an arm is equivalent to the baseline.

    Two one-sided t tests at 5 % hold within it: the 90 % interval of the difference lies between
    minus and plus the margin (Schuirmann, 1987). The table has the 95 % interval and its degrees
    of freedom.
    """
    middle, low, high = (float(end) for end in difference(file, *arm.split("&"), outcome))
    df = _degrees_of_freedom(file, arm.split("&"), outcome)
    scale = (high - low) / 2 / stats.t.ppf(1 - LEVEL / 2, df)
    return float(abs(middle) + scale * stats.t.ppf(1 - LEVEL, df))


def _degrees_of_freedom(file: str, conditions: Sequence[str], outcome: str) -> float:
    """Return those of a difference; tables from before pooled spreads have the pairs alone."""
    name = column_of(file, outcome, "_difference")
    if f"{name}_df" in table(file).columns:
        return _only(_numbers(file, conditions, name, "_df"), file, "df")
    return _only(_numbers(file, conditions, name, "_pairs"), file, "pairs") - 1


@query
def equal_within(file: str, outcome: str, *arms: str) -> list[Value]:
    """`equal_within FILE OUTCOME ARM ...`: the smallest margin within which all are equivalent.

    It is rounded up to thousandths, so that what is said of it holds.
    """
    margin = max(equivalence_margin(file, outcome, arm) for arm in arms)
    return [math.ceil(1000 * margin) / 1000]


@query
def all_equal_within(file: str, outcome: str) -> list[Value]:
    """`all_equal_within FILE OUTCOME`: the same of all arms without a significant difference."""
    found = table(file)
    name = column_of(file, outcome, "_difference")
    alike = found[found[f"{name}_p_adjusted"] > LEVEL]
    half = (alike[f"{name}_difference_high"] - alike[f"{name}_difference_low"]) / 2
    has_df = f"{name}_df" in found.columns
    df = alike[f"{name}_df"] if has_df else alike[f"{name}_pairs"] - 1
    scale = half / stats.t.ppf(1 - LEVEL / 2, df)
    margins = alike[f"{name}_difference"].abs() + scale * stats.t.ppf(1 - LEVEL, df)
    return [math.ceil(1000 * float(margins.max())) / 1000]


@query
def confidence() -> list[Value]:
    """`confidence`: the level of the intervals of reports."""
    return [1 - LEVEL]


@query
def level() -> list[Value]:
    """`level`: the adjusted p up to which a difference is significant."""
    return [LEVEL]


@query
def estimators() -> list[Value]:
    """`estimators`: how many estimators the catalogue has."""
    path = ROOT / "advsweep" / "estimators" / "catalogue.toml"
    return [len(tomllib.loads(path.read_text("utf-8"))["estimators"])]


@query
def python_version() -> list[Value]:
    """`python_version`: the least Python of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return [float(project["requires-python"].removeprefix(">="))]


# Texts of the tables that studies make


def share_text(value: float) -> str:
    """Write a share as pages have it, such as `.526`; nothing for NaN."""
    return "" if math.isnan(value) else f"{value:.3f}".removeprefix("0")


def signed_text(value: float) -> str:
    sign = "-" if value < 0 else "+"
    return sign + share_text(abs(value))


def rate_text(value: float, digits: int = 0) -> str:
    """Write a learning rate, such as `2e-4`, with digits behind the point that are not zero."""
    mantissa, _, power = f"{value:.{digits}e}".partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(power)}"


def difference_text(row: Mapping[str, float], outcome: str) -> str:
    """Write a difference with its interval, bold where it is significant; nothing for NaN."""
    value, low, high = (row[f"{outcome}_difference{end}"] for end in ("", "_low", "_high"))
    if math.isnan(value):
        return ""
    is_significant = row[f"{outcome}_p_adjusted"] <= LEVEL
    return interval_text(value, low, high, is_significant=is_significant)


def interval_text(value: float, low: float, high: float, *, is_significant: bool) -> str:
    """Write a difference with its interval, bold where it is significant."""
    written = signed_text(value)
    if is_significant:
        written = f"**{written}**"
    return f"{written} [{signed_text(low)}, {signed_text(high)}]"


# Columns of a table of arms after those of pass@k, with their headings.
_OF_ARMS = {
    "entropy/answer": "entropy of answers",
    "collapse/acr@end": "ACR",
    "entropy/token@end": "token entropy",
}


def arms_table(arms: Iterable[tuple[str, Mapping[str, float]]], best_of: str) -> str:
    """Return arms with rate, pass@1, its difference to the baseline, and what else changes.

    Args:
        arms: names of rows of a report, and the rows.
        best_of: a further pass@k.
    """
    headings = {best_of: best_of, **_OF_ARMS}
    headers = ["", "rate", "pass@1", "Δ pass@1", *headings.values()]
    lines = [f"| {' | '.join(headers)} |", f"| :-- |{' --: |' * (len(headers) - 1)}"]
    for name, row in arms:
        rate = row["optimizer.lr"]
        cells = [name, "" if math.isnan(rate) else rate_text(rate)]
        cells.append(share_text(row["pass@1"]))
        cells.append(difference_text(row, "pass@1"))
        cells += [share_text(row[column]) for column in headings]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


@functools.cache
def evaluate(queries: str) -> tuple[Value, ...]:
    """Return the values of queries that are parted by semicolons, and of each one that braces make.

    Raises:
        QueryError: the query, its file, rows or columns do not exist.
    """
    found: list[Value] = []
    for part in queries.split(";"):
        found += _evaluate_part(part)
    return tuple(found)


def _evaluate_part(part: str) -> list[Value]:
    found: list[Value] = []
    for words in _expand(shlex.split(part)):
        found += _call(words)
    if any(isinstance(one, float) and math.isnan(one) for one in found):
        raise QueryError(f"{part.strip()}: no number")
    verdicts = sorted({one for one in found if isinstance(one, str)})
    if len(verdicts) > 1:
        raise QueryError(f"{part.strip()}: {' and '.join(verdicts)}")
    # One word of the text stands for all of them.
    return [*verdicts] if verdicts else found


def _expand(words: Sequence[str]) -> list[list[str]]:
    choices = []
    for word in words:
        match = re.fullmatch(r"(.*)\{(.*)\}(.*)", word)
        if match is None:
            choices.append([word])
            continue
        before, inside, after = match.groups()
        choices.append([f"{before}{part}{after}" for part in inside.split(",")])
    return [list(combination) for combination in itertools.product(*choices)]


def _call(words: Sequence[str]) -> list[Value]:
    name, *arguments = words
    function = QUERIES.get(name) or _function_of_study(name)
    if function is None:
        raise QueryError(f"there is no query {name}; there are {', '.join(QUERIES)}")
    return list(function(*arguments))


@functools.cache
def generate(words: str) -> str:
    """Return the text of a block, which a function of a study makes."""
    name, *arguments = shlex.split(words)
    function = _function_of_study(name)
    if function is None:
        raise QueryError(f"there is no block {name}")
    return str(function(*arguments))


def _function_of_study(name: str) -> Callable[..., list[Value]] | None:
    study, _, function = name.partition(".")
    if not (FOLDER / study / "answers.py").is_file():
        return None
    return getattr(_answers(study), function, None)


@functools.cache
def _answers(study: str) -> ModuleType:
    path = FOLDER / study / "answers.py"
    spec = importlib.util.spec_from_file_location(f"answers_of_{study}", path)
    if spec is None or spec.loader is None:
        raise QueryError(f"{path} cannot be read")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
