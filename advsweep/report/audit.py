"""Audit a printed table of accuracies: numbers that cannot be, and what the design can show.

    table = read_cells(Path("table.csv"))
    found = audit(table)            # found.findings, found.bold

A cell is an accuracy or a pass@k on a benchmark of N problems with n samples each, the mean of s
runs. Nothing but the table is used, and every finding gives its arithmetic.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Literal, NoReturn

import numpy as np
from scipy import stats

from advsweep.delimited import read_table
from advsweep.errors import ConfigError, counted
from advsweep.statistics import holm
from advsweep.writing import Document, Entry, Line, Table

COLUMNS = ("name", "group", "benchmark", "value", "size", "samples", "k", "seeds", "spread", "bold")
"""The columns that are read: `name`, `benchmark` and `value` are needed, others are refused."""

_OTHER_NAMES = {
    "acc": "value",
    "accuracy": "value",
    "score": "value",
    "std": "spread",
    "sd": "spread",
    "stdev": "spread",
    "std_dev": "spread",
    "best": "bold",
    "is_bold": "bold",
    "n": "samples",
    "runs": "seeds",
    "n_seeds": "seeds",
    "problems": "size",
    "n_problems": "size",
    "dataset": "benchmark",
    "task": "benchmark",
    "method": "name",
    "row": "name",
    "model": "group",
}

AVERAGES = ("avg", "average", "mean")
"""What the benchmark of an average over the other cells of its row is called."""

MOST_BYTES = 16 * 2**20
# As it is printed: an exponent could stand for a number that takes all memory.
_NUMBER = re.compile(r"[-+]?(\d{1,6}(\.\d{0,12})?|\.\d{1,12})", re.ASCII)

CHANCE = 0.05
"""A row is reported as one run if means of several would look so with at most this probability."""

LEVEL = 0.05
POWER = 0.8


Kind = Literal["impossible", "average", "one run"]
"""What is wrong with a cell or a row."""


@dataclass(frozen=True)
class Cell:
    """A number of a table, as a share.

    Attributes:
        name: of the row, such as a method.
        group: what rows are compared within, such as a model; empty if there is one.
        text: the number as printed.
        value: NaN where the cell is empty.
        unit: one unit of its last digit.
        full: what a perfect score is printed as, 100 or 1.
        size: problems of the benchmark; 0 for an average.
        samples: answers to each problem; None if it is not said.
        seeds: the runs whose mean it is.
        spread: the standard deviation over the runs; None if it is not said.
    """

    name: str
    group: str
    benchmark: str
    text: str
    value: float
    unit: float
    full: int
    size: int
    samples: int | None
    k: int
    seeds: int
    spread: float | None
    is_bold: bool

    @property
    def is_average(self) -> bool:
        return self.benchmark.lower() in AVERAGES

    @property
    def steps(self) -> int | None:
        """The number of equal steps from 0 to 1 that one run can take; None if it is unknown.

        A pass@k of n = k samples is a share of problems. With k below n its values lie too close
        together to tell.
        """
        if self.is_average or self.samples is None:
            return None
        if self.k == 1:
            return self.size * self.samples
        return self.size if self.k == self.samples else None

    @property
    def draws(self) -> int | None:
        """Independent Bernoulli draws that the number is a mean of, at least; None if unknown."""
        return self.samples and self.size * self.seeds * (self.samples // self.k)

    def tells(self, steps: int) -> bool:
        """Return whether some number of so many digits is printed for no multiple of 1/steps."""
        return 1 / steps > 1.5 * self.unit

    def can_be(self, steps: int) -> bool:
        """Return whether a multiple of 1/steps is printed so, rounded or cut off."""
        least, beyond = self.value - self.unit / 2, self.value + self.unit
        return math.ceil(least * steps - 1e-9) / steps < beyond - 1e-12


@dataclass(frozen=True)
class Finding:
    """What cannot be as it is printed, with the arithmetic."""

    kind: Kind
    name: str
    group: str
    benchmark: str
    text: str


@dataclass(frozen=True)
class BoldCell:
    """The difference of a bold number to the best of the others.

    Two tests, each by Welch's t-test where both have a spread over runs, else by the normal test of
    two proportions: `answers` with a draw for each answer, `problems` with one for each problem.
    The first is about these problems; what fails there fails more clearly with the training's own
    noise. The second is about problems of this kind, unpaired.

    Attributes:
        least_*: the difference that this design finds significant with a power of 80 %.
        p_*: after Holm's correction for all bold cells of the table.
    """

    name: str
    group: str
    benchmark: str
    k: int
    value: float
    rival: str
    difference: float
    least_answers: float
    least_problems: float
    p_answers: float
    p_problems: float

    @property
    def survives(self) -> str:
        if self.difference <= 0 or self.p_answers > LEVEL:
            return "no"
        return "yes" if self.p_problems <= LEVEL else "on these problems"


@dataclass(frozen=True)
class Audit:
    """What was found in a table.

    Attributes:
        cells: the numbers of the table.
        checked: those that could have been impossible.
    """

    cells: int
    checked: int
    findings: list[Finding]
    bold: list[BoldCell]


def read_cells(path: Path) -> list[Cell]:
    """Read a table with a row for each number.

    Raises:
        ConfigError: it is no such table, a line is cut, a column is unknown or comes twice, a
            number is none, percent and shares are mixed, or a benchmark has no size.
    """
    table = read_table(path, most_bytes=MOST_BYTES)
    table.check_columns(known=COLUMNS, needed=("name", "benchmark", "value"), others=_OTHER_NAMES)
    cells = [_cell(path, line, row) for line, row in table.rows()]
    known = [cell for cell in cells if not math.isnan(cell.value)]
    if not known:
        raise ConfigError(f"{path}: expected numbers, got empty values")
    in_percent = max(cell.value for cell in known) > 1
    shares = [cell for cell in known if 0 < cell.value < 1]
    finest = min(cell.unit for cell in known if cell.value > 1) if in_percent else 0
    if odd := next((cell for cell in shares if cell.unit < finest), None):
        raise ConfigError(
            f"{path}: expected all values in percent or all as shares of 1, got {odd.text} "
            f"({odd.name} on {odd.benchmark}) among percents"
        )
    if max(cell.value for cell in known) > 100 or min(cell.value for cell in known) < 0:
        raise ConfigError(f"{path}: expected values from 0 to 100, or to 1, got one beyond")
    full = 100 if in_percent else 1
    return [
        replace(
            cell,
            value=cell.value / full,
            unit=cell.unit / full,
            spread=None if cell.spread is None else cell.spread / full,
            full=full,
        )
        for cell in cells
    ]


def _cell(path: Path, line: int, row: Mapping[str, str]) -> Cell:
    texts = {name: row.get(name, "").strip() for name in COLUMNS}

    def refuse(column: str, expected: str) -> NoReturn:
        raise ConfigError(
            f"{path}: line {line}: expected {expected} in {column}, got '{texts[column]}'"
        )

    def count(column: str) -> int | None:
        if not texts[column]:
            return None
        if not (texts[column].isdecimal() and 0 < int(texts[column]) < 10**9):
            refuse(column, "a whole number above 0")
        return int(texts[column])

    def number(column: str) -> Decimal | None:
        if texts[column] and not _NUMBER.fullmatch(texts[column]):
            refuse(column, "a number")
        return Decimal(texts[column]) if texts[column] else None

    value, spread, k = number("value"), number("spread"), count("k") or 1
    size, samples = count("size"), count("samples")
    is_average = texts["benchmark"].lower() in AVERAGES
    if size is None and not is_average:
        refuse("size", f"the number of problems of {texts['benchmark'] or 'the benchmark'}")
    if samples is not None and k > samples:
        refuse("k", f"at most the {counted(samples, 'sample')} of a problem")
    return Cell(
        name=texts["name"],
        group=texts["group"],
        benchmark=texts["benchmark"],
        text=texts["value"],
        value=math.nan if value is None else float(value),
        unit=math.nan if value is None else 10.0 ** int(value.as_tuple().exponent),
        full=1,
        size=0 if is_average else size or 0,
        samples=samples,
        k=k,
        seeds=count("seeds") or 1,
        spread=None if spread is None else float(spread),
        is_bold=texts["bold"].lower() not in ("", "0", "no", "false"),
    )


def audit(cells: Sequence[Cell]) -> Audit:
    """Check every cell, average, row and bold number of a table."""
    rows, columns = defaultdict(list), defaultdict(list)
    findings, known, checked = [], 0, 0
    for cell in cells:
        rows[cell.group, cell.name, cell.k].append(cell)
        if math.isnan(cell.value):
            continue
        known += 1
        columns[cell.group, cell.benchmark, cell.k].append(cell)
        steps = cell.steps and cell.steps * cell.seeds
        if steps and cell.tells(steps):
            checked += 1
            if not cell.can_be(steps):
                findings.append(_impossible(cell, steps))
    for row in rows.values():
        findings += _check_average(row)
        findings += _check_runs(row)
    bold = [verdict for column in columns.values() for verdict in _compare_bold(column)]
    adjusted = (holm([b.p_answers for b in bold]), holm([b.p_problems for b in bold]))
    bold = [
        replace(verdict, p_answers=answers, p_problems=problems)
        for verdict, answers, problems in zip(bold, *adjusted, strict=True)
    ]
    return Audit(known, checked, findings, bold)


def _impossible(cell: Cell, steps: int) -> Finding:
    below = math.floor(cell.value * steps)
    beside = [f"{part}/{steps} = {part / steps * cell.full:.4g}" for part in (below, below + 1)]
    factors = [counted(cell.size, "problem")]
    factors += [counted(cell.samples or 1, "sample")] if cell.k == 1 else []
    factors += [f"{cell.seeds} runs"] if cell.seeds > 1 else []
    text = f"{cell.text} is no multiple of 1/{steps} ({' x '.join(factors)}): "
    text += f"{' and '.join(beside)} are beside it"
    return Finding("impossible", cell.name, cell.group, cell.benchmark, text)


def _check_average(row: Sequence[Cell]) -> Iterator[Finding]:
    """Compare an average with the mean of its row, over benchmarks or over their problems."""
    cells = [cell for cell in row if not cell.is_average]
    if len(cells) < 2 or any(math.isnan(cell.value) for cell in cells):
        return
    values = [cell.value for cell in cells]
    means = [np.mean(values), np.average(values, weights=[cell.size for cell in cells])]
    for cell in row:
        # Where both are rounded by half a unit, or both cut off by up to one.
        slack = max(*(other.unit for other in cells), cell.unit) + 1e-12
        if cell.is_average and min(abs(mean - cell.value) for mean in means) > slack:
            sums = " + ".join(other.text for other in cells)
            text = f"{cell.text} is not the mean of its row: ({sums}) / {len(cells)} = "
            text += f"{means[0] * cell.full:.4g}, and {means[1] * cell.full:.4g} by problems"
            yield Finding("average", cell.name, cell.group, cell.benchmark, text)


def _check_runs(row: Sequence[Cell]) -> Iterator[Finding]:
    """Find rows of means of several runs that all are numbers of one run."""
    cells = [c for c in row if 0 < c.value < 1 and c.seeds > 1 and c.steps and c.tells(c.steps)]
    chance = 1.0
    for cell in cells:
        assert cell.steps is not None
        if not cell.can_be(cell.steps):
            return
        # The sum over s runs leaves any remainder of s alike.
        ends = [
            replace(cell, value=cell.unit * round(i / (cell.steps * cell.seeds) / cell.unit))
            for i in range(cell.seeds)
        ]
        chance *= float(np.mean([end.can_be(cell.steps) for end in ends]))
    if cells and chance <= CHANCE:
        first = cells[0]
        yield Finding(
            "one run",
            first.name,
            first.group,
            ", ".join(cell.benchmark for cell in cells),
            f"{', '.join(cell.text for cell in cells)} are all numbers of one run, such as "
            f"{round(first.value * (first.steps or 1))}/{first.steps}; means of {first.seeds} runs "
            f"would be so with a probability of {chance:.2g}",
        )


def _compare_bold(column: Sequence[Cell]) -> Iterator[BoldCell]:
    """Compare the bold numbers of a column with the best of the others."""
    others = [cell for cell in column if not cell.is_bold]
    if not others:
        return
    rival = max(others, key=lambda cell: cell.value)
    for cell in column:
        if not cell.is_bold or cell.is_average:
            continue
        if cell.spread and rival.spread and min(cell.seeds, rival.seeds) > 1:
            errors = [_error_of_runs(cell, rival)] * 2
        elif cell.draws and rival.draws:
            errors = [
                _error_of_draws(cell, cell.draws, rival, rival.draws),
                _error_of_draws(cell, cell.size, rival, rival.size),
            ]
        else:
            continue
        difference = cell.value - rival.value
        yield BoldCell(
            *(cell.name, cell.group, cell.benchmark, cell.k, cell.value),
            *(rival.name, difference),
            *(
                e * float(stats.t.ppf(1 - LEVEL / 2, df) + stats.t.ppf(POWER, df))
                for e, df in errors
            ),
            *(2 * float(stats.t.sf(abs(difference) / e, df)) if e else 1.0 for e, df in errors),
        )


def _error_of_runs(a: Cell, b: Cell) -> tuple[float, float]:
    """Return the standard error of a difference with its degrees of freedom (Welch)."""
    parts = [cell.spread**2 / cell.seeds for cell in (a, b) if cell.spread]
    df = sum(parts) ** 2 / (parts[0] ** 2 / (a.seeds - 1) + parts[1] ** 2 / (b.seeds - 1))
    return math.sqrt(sum(parts)), df


def _error_of_draws(a: Cell, n_a: int, b: Cell, n_b: int) -> tuple[float, float]:
    """Return the standard error of the difference of two proportions, and no end of freedom."""
    p = (a.value * n_a + b.value * n_b) / (n_a + n_b)
    return math.sqrt(p * (1 - p) * (1 / n_a + 1 / n_b)), math.inf


def lay_out(found: Audit) -> Document:
    """Lay out the findings, then the bold numbers, for a terminal or as markdown."""
    findings = tuple(
        Line((f.kind, f"{f.group} {f.name}".strip(), f.benchmark, f.text)) for f in found.findings
    )
    bold = tuple(
        Line(
            (f"{b.group} {b.name}".strip(), b.benchmark, str(b.k), b.rival),
            (
                Entry(f"{100 * b.difference:+.1f}"),
                *(Entry(f"{100 * x:.1f}") for x in (b.least_answers, b.least_problems)),
                *(Entry(f"{p:.2g}") for p in (b.p_answers, b.p_problems)),
                Entry(b.survives),
            ),
        )
        for b in found.bold
    )
    names = ("row", "benchmark", "k", "best other")
    numbers = ("points", "least", "with problems", "p", "with problems", "survives")
    tables = (
        Table(("finding", "row", "benchmark", "arithmetic"), (), (findings,), "Not as printed"),
        Table(names, numbers, (bold,), "Bold numbers"),
    )
    notes = [
        f"{counted(found.cells, 'number')}, of which {found.checked} could have been impossible: "
        f"{counted(len(found.findings), 'finding')}."
    ]
    if bold:
        kinds = Counter(b.survives for b in found.bold)
        notes.append(
            f"Of {counted(len(bold), 'bold number')} that could be tested "
            f"{kinds['no']} do not survive the noise of the answers, {kinds['on these problems']} "
            f"survive on these problems and {kinds['yes']} on problems of this kind (Holm's "
            f"correction at {LEVEL:g}). least: the difference in points that this design finds "
            "with a power of 80 %, before the correction."
        )
    return Document(tuple(table for table in tables if table.lines), tuple(notes))
