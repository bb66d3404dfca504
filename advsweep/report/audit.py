"""Audit a printed table of accuracies: numbers that cannot be, and what the design can show.

    table = read_cells(Path("table.csv"))
    result = audit(table)           # result.findings, result.bold

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

MOST_SIZES = 3
"""The sizes of a benchmark that are named, of those that fit all of its numbers."""


Kind = Literal["impossible", "average", "one run"]
"""What is wrong with a cell or a row."""


@dataclass(frozen=True)
class PrintedCell:
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
class AuditFinding:
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
class FittingSizes:
    """Sizes of a benchmark with which all of its numbers can be, where some cannot with the given.

    Attributes:
        numbers: how many numbers the benchmark has.
        given: the size in the table.
        sizes: the smallest that fit, ascending, without multiples of each other.
    """

    benchmark: str
    k: int
    numbers: int
    given: int
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Audit:
    """What was found in a table.

    Attributes:
        cells: the numbers of the table.
        checked: those that could have been impossible.
        fitting: sizes that fit benchmarks with impossible numbers.
        misgrouped: bold numbers below another of their group: perhaps the groups are wrong.
    """

    cells: int
    checked: int
    findings: list[AuditFinding]
    bold: list[BoldCell]
    fitting: list[FittingSizes]
    misgrouped: list[MisgroupedCell]


@dataclass(frozen=True)
class MisgroupedCell:
    """A bold number below the best of its group, benchmark and k."""

    name: str
    group: str
    benchmark: str
    k: int
    text: str
    best: str
    best_text: str


def read_cells(path: Path) -> list[PrintedCell]:
    """Read a table with a row for each number.

    Raises:
        ConfigError: it is no such table, a line is cut, a column is unknown or comes twice, a
            number is none, percent and shares are mixed, or a benchmark has no size.
    """
    table = read_table(path, most_bytes=MOST_BYTES)
    table.check_columns(known=COLUMNS, needed=("name", "benchmark", "value"), others=_OTHER_NAMES)
    cells = [_Texts(path, line, row).cell() for line, row in table.rows()]
    numbers = [cell for cell in cells if not math.isnan(cell.value)]
    if not numbers:
        raise ConfigError(f"{path}: expected numbers, got empty values")
    in_percent = max(cell.value for cell in numbers) > 1
    if in_percent:
        _refuse_shares(path, numbers)
    if max(cell.value for cell in numbers) > 100 or min(cell.value for cell in numbers) < 0:
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


def _refuse_shares(path: Path, numbers: Sequence[PrintedCell]) -> None:
    """Refuse a number among percents that is printed with more digits: it is a share of 1."""
    finest = min(cell.unit for cell in numbers if cell.value > 1)
    for cell in numbers:
        if 0 < cell.value < 1 and cell.unit < finest:
            raise ConfigError(
                f"{path}: expected all values in percent or all as shares of 1, got {cell.text} "
                f"({cell.name} on {cell.benchmark}) among percents"
            )


class _Texts:
    """The texts of one line of a table."""

    def __init__(self, path: Path, line: int, row: Mapping[str, str]) -> None:
        self._where = f"{path}: line {line}"
        self._texts = {name: row.get(name, "").strip() for name in COLUMNS}

    def cell(self) -> PrintedCell:
        """Return the cell, with numbers as they are printed.

        Raises:
            ConfigError: a text is no number of its column, or a number is missing.
        """
        texts = self._texts
        value = self._number("value")
        spread = self._number("spread")
        k = self._count("k") or 1
        size = self._count("size")
        samples = self._count("samples")
        is_average = texts["benchmark"].lower() in AVERAGES
        if size is None and not is_average:
            benchmark = texts["benchmark"] or "the benchmark"
            self._refuse("size", f"the number of problems of {benchmark}")
        if samples is not None and k > samples:
            self._refuse("k", f"at most the {counted(samples, 'sample')} of a problem")
        return PrintedCell(
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
            seeds=self._count("seeds") or 1,
            spread=None if spread is None else float(spread),
            is_bold=texts["bold"].lower() not in ("", "0", "no", "false"),
        )

    def _refuse(self, column: str, expected: str) -> NoReturn:
        text = self._texts[column]
        raise ConfigError(f"{self._where}: expected {expected} in {column}, got '{text}'")

    def _count(self, column: str) -> int | None:
        text = self._texts[column]
        if not text:
            return None
        if not (text.isdecimal() and 0 < int(text) < 10**9):
            self._refuse(column, "a whole number above 0")
        return int(text)

    def _number(self, column: str) -> Decimal | None:
        text = self._texts[column]
        if not text:
            return None
        if not _NUMBER.fullmatch(text):
            self._refuse(column, "a number")
        return Decimal(text)


def audit(cells: Sequence[PrintedCell]) -> Audit:
    """Check every cell, average, row and bold number of a table."""
    rows: dict[tuple[str, str, int], list[PrintedCell]] = defaultdict(list)
    columns: dict[tuple[str, str, int], list[PrintedCell]] = defaultdict(list)
    findings: list[AuditFinding] = []
    numbers = 0
    checked = 0
    for cell in cells:
        rows[cell.group, cell.name, cell.k].append(cell)
        if math.isnan(cell.value):
            continue
        numbers += 1
        columns[cell.group, cell.benchmark, cell.k].append(cell)
        steps = cell.steps and cell.steps * cell.seeds
        if steps and cell.tells(steps):
            checked += 1
            if not cell.can_be(steps):
                findings.append(_impossible(cell, steps))
    for row in rows.values():
        findings += _check_average(row)
        findings += _check_runs(row)
    bold: list[BoldCell] = []
    misgrouped: list[MisgroupedCell] = []
    for column in columns.values():
        bold += _compare_bold(column)
        misgrouped += _find_misgrouped(column)
    fitting = _find_fitting_sizes(cells)
    return Audit(numbers, checked, findings, _adjust(bold), fitting, misgrouped)


def _find_misgrouped(column: Sequence[PrintedCell]) -> Iterator[MisgroupedCell]:
    """Find the bold numbers of a group, benchmark and k that are below its best."""
    best = max(column, key=lambda cell: cell.value)
    for cell in column:
        if cell.is_bold and cell.value < best.value:
            yield MisgroupedCell(
                name=cell.name,
                group=cell.group,
                benchmark=cell.benchmark,
                k=cell.k,
                text=cell.text,
                best=best.name,
                best_text=best.text,
            )


def _find_fitting_sizes(cells: Sequence[PrintedCell]) -> list[FittingSizes]:
    """Find other sizes of the benchmarks that have numbers which cannot be with theirs."""
    designs: dict[tuple[str, int, int, int | None, int], list[PrintedCell]] = defaultdict(list)
    for cell in cells:
        if not math.isnan(cell.value) and cell.steps is not None:
            design = (cell.benchmark, cell.k, cell.size, cell.samples, cell.seeds)
            designs[design].append(cell)
    found = []
    for (benchmark, k, given, _, _), column in designs.items():
        sizes = [] if all(_fits(cell, given) for cell in column) else _sizes_that_fit(column)
        if sizes:
            found.append(FittingSizes(benchmark, k, len(column), given, tuple(sizes)))
    return found


def _sizes_that_fit(column: Sequence[PrintedCell]) -> list[int]:
    """Return the smallest sizes with which all numbers of a design can be.

    The search ends where numbers at random would fit one of the sizes so far with a probability
    above `CHANCE`: larger sizes say nothing.
    """
    sizes: list[int] = []
    chance = 0.0
    # So many steps are told apart by the last digit of the number that is printed the coarsest.
    coarsest = max(cell.unit for cell in column)
    steps_of_a_problem = (column[0].steps or 1) * column[0].seeds // column[0].size
    for size in range(1, math.ceil(1 / (1.5 * coarsest) / steps_of_a_problem)):
        steps = size * steps_of_a_problem
        # A number may be rounded or cut off, so that it stands for 1.5 units.
        chance += math.prod(min(1.0, 1.5 * steps * cell.unit) for cell in column)
        if chance > CHANCE or len(sizes) == MOST_SIZES:
            break
        is_multiple = any(size % other == 0 for other in sizes)
        if not is_multiple and all(_fits(cell, size) for cell in column):
            sizes.append(size)
    return sizes


def _fits(cell: PrintedCell, size: int) -> bool:
    """Tell whether a number can be with so many problems."""
    steps = replace(cell, size=size).steps
    assert steps is not None
    return not cell.tells(steps * cell.seeds) or cell.can_be(steps * cell.seeds)


def _adjust(bold: Sequence[BoldCell]) -> list[BoldCell]:
    """Correct the p-values of all bold cells of a table."""
    of_answers = holm([cell.p_answers for cell in bold])
    of_problems = holm([cell.p_problems for cell in bold])
    return [
        replace(cell, p_answers=p_answers, p_problems=p_problems)
        for cell, p_answers, p_problems in zip(bold, of_answers, of_problems, strict=True)
    ]


def _impossible(cell: PrintedCell, steps: int) -> AuditFinding:
    below = math.floor(cell.value * steps)
    neighbours = [f"{part}/{steps} = {part / steps * cell.full:.4g}" for part in (below, below + 1)]
    factors = [counted(cell.size, "problem")]
    if cell.k == 1:
        factors.append(counted(cell.samples or 1, "sample"))
    if cell.seeds > 1:
        factors.append(f"{cell.seeds} runs")
    text = (
        f"{cell.text} is no multiple of 1/{steps} ({' x '.join(factors)}): "
        f"{' and '.join(neighbours)} are beside it"
    )
    return AuditFinding("impossible", cell.name, cell.group, cell.benchmark, text)


def _check_average(row: Sequence[PrintedCell]) -> Iterator[AuditFinding]:
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
            text = (
                f"{cell.text} is not the mean of its row: ({sums}) / {len(cells)} = "
                f"{means[0] * cell.full:.4g}, and {means[1] * cell.full:.4g} by problems"
            )
            yield AuditFinding("average", cell.name, cell.group, cell.benchmark, text)


def _check_runs(row: Sequence[PrintedCell]) -> Iterator[AuditFinding]:
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
        yield AuditFinding(
            "one run",
            first.name,
            first.group,
            ", ".join(cell.benchmark for cell in cells),
            f"{', '.join(cell.text for cell in cells)} are all numbers of one run, such as "
            f"{round(first.value * (first.steps or 1))}/{first.steps}; means of {first.seeds} runs "
            f"would be so with a probability of {chance:.2g}",
        )


@dataclass(frozen=True)
class _DifferenceError:
    """The standard error of a difference, and its degrees of freedom."""

    size: float
    freedom: float

    @property
    def least(self) -> float:
        """The difference that is found significant with the power `POWER`."""
        quantiles = stats.t.ppf(1 - LEVEL / 2, self.freedom) + stats.t.ppf(POWER, self.freedom)
        return self.size * float(quantiles)

    def p_value(self, difference: float) -> float:
        """Return the two-sided p of a difference."""
        if not self.size:
            return 1.0
        return 2 * float(stats.t.sf(abs(difference) / self.size, self.freedom))


def _compare_bold(column: Sequence[PrintedCell]) -> Iterator[BoldCell]:
    """Compare the bold numbers of a column with the best of the others."""
    others = [cell for cell in column if not cell.is_bold]
    if not others:
        return
    rival = max(others, key=lambda cell: cell.value)
    for cell in column:
        if not cell.is_bold or cell.is_average:
            continue
        if cell.spread and rival.spread and min(cell.seeds, rival.seeds) > 1:
            of_answers = of_problems = _error_of_runs(cell, rival)
        elif cell.draws and rival.draws:
            of_answers = _error_of_draws(cell, cell.draws, rival, rival.draws)
            of_problems = _error_of_draws(cell, cell.size, rival, rival.size)
        else:
            continue
        difference = cell.value - rival.value
        yield BoldCell(
            name=cell.name,
            group=cell.group,
            benchmark=cell.benchmark,
            k=cell.k,
            value=cell.value,
            rival=rival.name,
            difference=difference,
            least_answers=of_answers.least,
            least_problems=of_problems.least,
            p_answers=of_answers.p_value(difference),
            p_problems=of_problems.p_value(difference),
        )


def _error_of_runs(a: PrintedCell, b: PrintedCell) -> _DifferenceError:
    """Return the standard error of a difference of means over runs (Welch)."""
    assert a.spread is not None
    assert b.spread is not None
    of_a = a.spread**2 / a.seeds
    of_b = b.spread**2 / b.seeds
    freedom = (of_a + of_b) ** 2 / (of_a**2 / (a.seeds - 1) + of_b**2 / (b.seeds - 1))
    return _DifferenceError(math.sqrt(of_a + of_b), freedom)


def _error_of_draws(a: PrintedCell, n_a: int, b: PrintedCell, n_b: int) -> _DifferenceError:
    """Return the standard error of a difference of proportions, with infinite degrees of freedom.

    Args:
        n_a, n_b: the draws that each is a mean of.
    """
    p = (a.value * n_a + b.value * n_b) / (n_a + n_b)
    return _DifferenceError(math.sqrt(p * (1 - p) * (1 / n_a + 1 / n_b)), math.inf)


def lay_out(result: Audit) -> Document:
    """Lay out the findings, then the bold numbers, for a terminal or as markdown."""
    notes = [
        f"{counted(result.cells, 'number')}, of which {result.checked} could have been impossible: "
        f"{counted(len(result.findings), 'finding')}."
    ]
    notes += [_describe_sizes(fitting) for fitting in result.fitting]
    if result.misgrouped:
        notes.append(_ask_for_groups(result.misgrouped))
    tables = []
    if result.findings:
        tables.append(_lay_out_findings(result.findings))
    if result.bold:
        tables.append(_lay_out_bold(result.bold))
        notes.append(_describe_bold(result.bold))
    return Document(tuple(tables), tuple(notes))


def _describe_sizes(fitting: FittingSizes) -> str:
    at_k = f" at k = {fitting.k}" if fitting.k > 1 else ""
    sizes = " or ".join(str(size) for size in fitting.sizes)
    problems = "problem" if fitting.sizes == (1,) else "problems"
    return (
        f"{fitting.benchmark}{at_k}: all {fitting.numbers} numbers can be with {sizes} {problems} "
        f"in place of {fitting.given}."
    )


def _ask_for_groups(cells: Sequence[MisgroupedCell]) -> str:
    """Ask for the groups of a table with bold numbers that are not the best of theirs."""
    first = cells[0]
    row = f"{first.group} {first.name}".strip()
    at_k = f" at k = {first.k}" if first.k > 1 else ""
    group = f"its group '{first.group}'" if first.group else "all rows, which have no group"
    example = (
        f"{row} has {first.text} on {first.benchmark}{at_k}, and {first.best}, the best of "
        f"{group}, {first.best_text}"
    )
    return (
        f"{counted(len(cells), 'bold number')} below the best of the group: is `group` right? "
        f"For example, {example}."
    )


def _lay_out_findings(findings: Sequence[AuditFinding]) -> Table:
    lines = []
    for finding in findings:
        row = f"{finding.group} {finding.name}".strip()
        lines.append(Line((finding.kind, row, finding.benchmark, finding.text)))
    return Table(
        names=("finding", "row", "benchmark", "arithmetic"),
        columns=(),
        sections=(tuple(lines),),
        title="Not as printed",
    )


def _lay_out_bold(bold: Sequence[BoldCell]) -> Table:
    lines = []
    for cell in bold:
        names = (f"{cell.group} {cell.name}".strip(), cell.benchmark, str(cell.k), cell.rival)
        entries = (
            Entry(f"{100 * cell.difference:+.1f}"),
            Entry(f"{100 * cell.least_answers:.1f}"),
            Entry(f"{100 * cell.least_problems:.1f}"),
            Entry(f"{cell.p_answers:.2g}"),
            Entry(f"{cell.p_problems:.2g}"),
            Entry(cell.survives),
        )
        lines.append(Line(names, entries))
    return Table(
        names=("row", "benchmark", "k", "best other"),
        columns=("points", "least", "with problems", "p", "with problems", "survives"),
        sections=(tuple(lines),),
        title="Bold numbers",
    )


def _describe_bold(bold: Sequence[BoldCell]) -> str:
    counts = Counter(cell.survives for cell in bold)
    return (
        f"Of {counted(len(bold), 'bold number')} that could be tested "
        f"{counts['no']} do not survive the noise of the answers, {counts['on these problems']} "
        f"survive on these problems and {counts['yes']} on problems of this kind (Holm's "
        f"correction at {LEVEL:g}). least: the difference in points that this design finds "
        "with a power of 80 %, before the correction."
    )
