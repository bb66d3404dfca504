"""What a report is made of, before it is written in some format."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from advsweep.errors import counted
from advsweep.report.data.columns import Column
from advsweep.report.data.groups import Group
from advsweep.report.data.keys import key_order
from advsweep.report.data.labels import name_group
from advsweep.statistics import Comparison, RankInterval
from advsweep.store import Status
from advsweep.store.seeds import SeedKey, UnknownSeed
from advsweep.store.tuning_records import EDGE


@dataclass(frozen=True)
class Cell:
    """A number of a row: a mean with its interval.

    Attributes:
        low, high: the 95 % interval of the mean; NaN for a single value.
        n: how many values there are; NaN does not count.
        values: one for each seed of the row, NaN where it has none; one for a base model.
        over_problems: for a single value, half the 95 % interval over problems like those of
            its evaluation; NaN for several values, and for what is not evaluated.
    """

    mean: float
    low: float
    high: float
    n: int
    values: tuple[float, ...]
    over_problems: float = math.nan

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    @property
    def has_no_spread(self) -> bool:
        """Whether several seeds have the same value."""
        return self.n > 1 and self.low == self.high


class NoteKind(Enum):
    """What a note of a report is about."""

    REMARK = "remark"
    """How runs were selected and combined."""
    REPORT_CUTOFF = "cutoff of the report"
    """Where in their training the runs are compared."""
    COLUMN_CUTOFF = "cutoff of a column"
    """The same of a column that has a cutoff itself, which `about` names."""
    REVISION = "revision"
    """Runs of several revisions of a component."""
    WITHOUT_SIGNAL = "without signal"
    """Rows with runs that learned nothing from their rewards."""
    EARLY_END = "early end"
    """Runs whose numbers are of an earlier step than the others'."""
    CAUTION = "caution"
    """Numbers that say less than they seem to."""
    UNTESTED = "untested"
    """Tests that the user asked for, which the rows do not allow."""


@dataclass(frozen=True)
class Note:
    """A sentence of a report on its runs or numbers.

    Attributes:
        kind: what it is about.
        text: the sentence.
        about: the cutoff of a column, as `Cutoff.text` has it; empty for other kinds.
    """

    kind: NoteKind
    text: str
    about: str = ""


def as_remarks(texts: Iterable[str]) -> list[Note]:
    """Return sentences as notes on how runs were selected and combined."""
    return [Note(NoteKind.REMARK, text) for text in texts]


class Subject(Enum):
    """What the numbers of a row are of."""

    RUN = "run"
    BASE = "base"
    """The models that runs start from."""
    FLOOR = "floor"
    """An answerer without skill, computed by the task."""
    MODEL = "model"
    """A model that was evaluated without a run."""


@dataclass(frozen=True)
class Row:
    """The replicates of a configuration or a base, a floor, or a model without a run.

    Attributes:
        group: the config keys and values that name the row.
        n: how many seeds the row has.
        seeds: the seeds, ascending; of a base, those that have a model or problems of their own.
            Each run whose seed nobody knows has one of its own, after the others. Without
            seeds the numbers are exact: those of a single model or a floor.
        cells: the numbers, by column name, also of columns that the table does not show.
        pruned: how many replicates were stopped early; the cells are without them.
        runs: how many runs.
        models: how many models that no run trained.
        arm: the configuration of the runs, as their hash; empty without runs.
    """

    group: Group
    n: int
    seeds: tuple[SeedKey, ...]
    cells: Mapping[str, Cell]
    pruned: int = 0
    runs: int = 0
    models: int = 0
    subject: Subject = Subject.RUN
    arm: str = ""

    @property
    def is_untrained(self) -> bool:
        """Whether no run trained it: a base, a floor, a model without a run."""
        return self.subject is not Subject.RUN

    @property
    def unknown_seeds(self) -> int:
        """How many of its runs nobody knows the seed of."""
        return sum(isinstance(seed, UnknownSeed) for seed in self.seeds)

    def by_seed(self, column: str) -> dict[SeedKey, float]:
        """Return the value of each seed: the one place that says which runs of two rows pair."""
        return dict(zip(self.seeds, self.cells[column].values, strict=True))


@dataclass(frozen=True)
class Arm:
    """All runs of a configuration in a sweep, whether or not the table shows them.

    Attributes:
        name: the hash of the configuration.
        row: their numbers.
        design: the settings of the task and of the model, which arms of one design share.
        bases: the base model of each seed, as far as it was evaluated.
        sweeps: those of each seed's run.
    """

    name: str
    row: Row
    design: str
    bases: Mapping[SeedKey, str]
    sweeps: Mapping[SeedKey, frozenset[str]]

    def bases_of(self, seeds: Iterable[SeedKey]) -> dict[SeedKey, str]:
        """Return the base models of some seeds, as far as they are known."""
        return {seed: self.bases[seed] for seed in seeds if seed in self.bases}

    def starts_from(self, bases: Mapping[SeedKey, str]) -> bool:
        """Tell whether no seed is known to start from another base model."""
        return all(self.bases.get(seed, base) == base for seed, base in bases.items())

    def sweeps_of(self, seeds: Iterable[SeedKey]) -> frozenset[str]:
        """Return the sweeps that have the runs of all of some seeds."""
        listed = [self.sweeps[seed] for seed in seeds]
        return frozenset.intersection(*listed) if listed else frozenset()


@dataclass(frozen=True)
class Difference:
    """A row compared with its baseline in one column.

    Attributes:
        row, baseline: indices of the report's rows.
        column: the column, which the table may not show.
        is_primary: whether it is of a primary outcome. Other differences are descriptive: their
            p is not to be shown, and they have no verdict.
        p_adjusted: p of the t-test after Benjamini and Hochberg over the primary outcomes'
            differences of the report; NaN for other differences, and where nothing varies.
        improvement: probability that a run of the row beats one of the baseline; None in a
            column without a better direction.
        seeds: the seeds that show `target` with a power of 80 %; None where nothing varies or
            the target is 0.
        target: the given difference, or else the observed one.
        margin: that of the test of equivalence; NaN without one.
        p_equal: p of this test after Benjamini and Hochberg over those of the report; NaN without
            a margin, and where nothing varies.
    """

    row: int
    baseline: int
    column: Column
    comparison: Comparison
    is_primary: bool
    p_adjusted: float
    improvement: float | None
    seeds: int | None
    target: float
    margin: float = math.nan
    p_equal: float = math.nan


@dataclass(frozen=True)
class Report:
    """A report before it is written in a format.

    Attributes:
        rows: base models and models without a run first, then the rows in the order of the
            sweep's plan, or as they were sorted.
        left_out: how many runs are not in the table, by their status.
        pruned: how many of these were stopped early, by the name of the rule.
        unscorable: share of the evaluations' samples that the verifier failed on.
        provenance: where the numbers come from (`provenance.describe_provenance`).
        unjudged: how many problems have no scores, as none of their samples could be scored.
        notes: on the runs and the numbers.
        baseline: the rows that others are compared with, in words; None without a comparison.
        outcomes: the primary outcomes; the table may not show them.
        declared_by: what declares them, if they are not the default ones.
        differences: every difference to the baseline, those of the primary outcomes first, by
            column and row.
        tuned: the key whose value each row has chosen for itself; empty for none.
        edges: the names of the rows, without that key, whose choice is the smallest or the largest
            value that was tried.
        run_ids: the runs in the table.
        arms: those of the table's sweep that lend it their spread, shown or not.
        ranks: the interval of each row's rank in a column, by row index; empty without a ranking.
        head: what its user notes of the sweep, and its tags, a line each.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    left_out: Mapping[Status, int]
    pruned: Mapping[str, int]
    unscorable: float
    provenance: Mapping[str, Any]
    unjudged: int = 0
    notes: tuple[Note, ...] = ()
    baseline: str | None = None
    outcomes: tuple[Column, ...] = ()
    declared_by: str = ""
    differences: Sequence[Difference] = ()
    tuned: str = ""
    edges: frozenset[str] = frozenset()
    run_ids: frozenset[int] = frozenset()
    arms: tuple[Arm, ...] = ()
    ranks: Mapping[int, RankInterval] = field(default_factory=dict)
    head: tuple[str, ...] = ()

    @property
    def keys(self) -> list[str]:
        """The config keys that name rows, in their fixed order."""
        return sorted({key for row in self.rows for key in row.group}, key=key_order)

    @property
    def trained(self) -> list[Row]:
        """The rows of runs."""
        return [row for row in self.rows if not row.is_untrained]

    def name_arm(self, row: Row) -> str:
        """Name a row without the key that it was tuned in, which belongs to it."""
        return name_group({key: value for key, value in row.group.items() if key != self.tuned})

    def mark_edge(self, row: Row) -> str:
        """Return what follows the tuned value of a row; empty unless it is at an edge."""
        return EDGE if self.name_arm(row) in self.edges else ""

    def texts(self, *kinds: NoteKind) -> tuple[str, ...]:
        """Return the sentences of some kinds of notes, in their order."""
        return tuple(note.text for note in self.notes if note.kind in kinds)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences on how runs were selected and combined, and where they are compared."""
        return self.texts(NoteKind.REMARK, NoteKind.REPORT_CUTOFF, NoteKind.COLUMN_CUTOFF)

    @property
    def primary(self) -> list[Difference]:
        """The differences of the primary outcomes, which have a verdict."""
        return [d for d in self.differences if d.is_primary]

    @property
    def family_size(self) -> int:
        """How many differences have a p that is corrected together."""
        return sum(not math.isnan(d.p_adjusted) for d in self.primary)

    @property
    def family(self) -> str:
        """The differences whose p values are corrected together, in words."""
        outcomes = len({d.column.name for d in self.primary})
        arms = len({d.row for d in self.primary})
        untested = outcomes * arms - self.family_size
        less = f", less {untested} without a test" if untested else ""
        parts = f"{counted(outcomes, 'primary outcome')} x {counted(arms, 'arm')}"
        return f"{counted(self.family_size, 'difference')}: {parts}{less}"


def count_states(counts: Mapping[Status, int]) -> str:
    """Describe how many runs have which status."""
    return ", ".join(f"{n} {status.value}" for status, n in counts.items())
