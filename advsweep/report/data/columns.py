"""The columns of a table: one language, and one parser.

A text is parsed once, where it comes in; inside, columns are objects.

    METRIC           of the training's steps, such as `collapse/acr`: their mean
    total/COST       sum over the training: steps, rollouts, tokens, seconds
    pass@K           of the last evaluation: mean over problems of the unbiased estimate
    entropy/answer   of the last evaluation: mean over problems, in nats; also entropy/right (of the
                     correct answers alone), entropy/right_rarefied (of 8 of them, [m=16] of 16),
                     entropy/right_rarefied_share (of the problems that have so many), kl/base
    law/a, law/mse/power     laws of pass@k over k of the last evaluation (`statistics.pass_laws`)
    reached@WHAT=X   1 for a run that comes to X, and 0 for one that does not

Columns of evaluations select a task, problems or a reference:

    pass@8[gsm8k]  [level=3]  [gsm8k,level=3]  [split=train]
    pass@8[base=0.1:0.5]     the problems whose solve rate before the training is in [.1, .5)
    pass@8[above=guess]      minus that of an answerer without skill on the same problems
    pass@8[mean]             mean over the tasks, of the last evaluations alone

Without a task they measure the task that the runs were trained on. `*` stands for every k, task
or level: pass@*, pass@1[*], pass@1[level=*].

A window takes a number from the curve of a metric, or of a column over the evaluations within the
training; a cutoff says where in each run a column is measured:

    @firstN, @end    mean over the first N steps, the last 10 steps
    @last            the last value
    @min, @max, @argmin, @argmax   the extreme values, and the first steps that have them
    @slope           slope of the line of least squares, per 100 steps
    @var             variance of the values, with n - 1
    @steps_to=X      the first step at X, from whichever side
    @share>X, @share<X       the share of the steps above, or below X
    @selected        of the evaluation at the step with the best pass@1 on validation problems
    COLUMN@WHAT=X    where the run first comes to X: pass@32@pass@1=0.45, total/rollouts@pass@1=0.45

Values that are not a number are left out. Other packages add columns of stored analyses through
the entry point group `advsweep.columns` (`report.data.analyses`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from advsweep.errors import ConfigError
from advsweep.names import ANSWER_ENTROPY, ROLLOUT_COST
from advsweep.report.data.cutoffs import Cutoff, CutoffSteps, find_steps, parse_column_cutoff
from advsweep.report.data.evaluation_sources import (
    RIGHT_ENTROPY,
    Evaluation,
    PassAtK,
)
from advsweep.report.data.metrics import MetricDirection
from advsweep.report.data.run_data import RunData
from advsweep.report.data.source_names import parse_source
from advsweep.report.data.sources import Metric, Reached, Source
from advsweep.report.data.windows import Window, parse_window

if TYPE_CHECKING:
    from advsweep.report.data.evaluations import EvaluationsByTask

# The column that says whether a run comes to the cutoff of `--at`.
REACHED = "reached"

# The default column, and the one that is compared, of runs without an evaluation.
UNEVALUATED = "reward/mean@end"

# The key of a sweep file and of a list of claims that declares primary outcomes.
OUTCOMES = "outcomes"

# The largest k of pass@k as a share of the samples per problem; the estimate varies most above.
MOST_OF_SAMPLES = 1 / 4


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: the name in options and data, as it was written.
        header: its label, in tables, figures, the page and sentences.
        source: what it is a number of.
        window: what it takes from the curve; None for the mean of a metric, and for the value of
            the last evaluation.
        at: where in each run it is measured; None for the end, or the cutoff of the report.
    """

    name: str
    header: str
    source: Source
    window: Window | None = None
    at: Cutoff | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def direction(self) -> MetricDirection:
        """Which values are better."""
        keeps_unit = self.window is None or self.window.keeps_unit
        return self.source.direction if keeps_unit else MetricDirection.NEITHER

    @property
    def range(self) -> tuple[float, float] | None:
        """The bounds of its values if they are shares; None for others."""
        if self.window is None or self.window.keeps_unit:
            return self.source.range
        return (0.0, 1.0) if self.window.is_share else None

    @property
    def is_selected(self) -> bool:
        """Whether it is of the step that validation problems chose."""
        return self.window is not None and self.window.kind == "selected"

    @property
    def is_mean_of_steps(self) -> bool:
        """Whether it is the mean of a metric over all, the first or the last steps."""
        return isinstance(self.source, Metric) and not self.source.needs_curve(self.window)

    @property
    def is_mean_of_last_steps(self) -> bool:
        """Whether it is the mean of a metric over the last steps."""
        is_at_end = self.window is not None and self.window.kind == "end"
        return is_at_end and self.is_mean_of_steps

    @property
    def needs_training_curve(self) -> bool:
        """Whether it needs the values within the training; models without a run have none."""
        return self.at is not None or self.source.needs_curve(self.window)

    @property
    def of_one_evaluation(self) -> Evaluation | None:
        """Its source if a single evaluation has a value of it; None for others."""
        if isinstance(self.source, Evaluation) and not self.needs_training_curve:
            return self.source
        return None

    def values(self, data: RunData, at: CutoffSteps | None = None) -> Mapping[int, float]:
        """Return the number of each run that has one, by the run's id.

        Args:
            at: where each run is compared; None for the end of the training. A column with a
                cutoff of its own has that.

        Raises:
            NotFoundError: no run has the curve that the column's cutoff is a value of.
        """
        if self.is_selected:
            return self.source.values(data, self.window)
        if self.at is not None:
            at = find_steps(data, self.at, self.name)
        if at is None:
            return self.source.values(data, self.window)
        return self.source.values_at(data, self.window, at)


def parse_column(text: str) -> Column | None:
    """Parse the name of a column; return None if it cannot be one.

    Raises:
        ConfigError: it has a cutoff that no run can come to.
        PluginError: the package of such columns cannot be used.
    """
    # Columns have an @ of their own, so each is tried: pass@8@pass@1=0.5.
    for i, character in enumerate(text):
        column = _parse_at_cutoff(text[:i], text[i + 1 :]) if character == "@" else None
        if column is not None:
            return column
    before, _, after = text.rpartition("@")
    window = parse_window(after) if before else None
    if window is None:
        return _make_column(text, parse_source(text))
    source = parse_source(before)
    if source is None or not source.takes(window):
        return None
    return _make_column(text, source, window)


def _parse_at_cutoff(before: str, after: str) -> Column | None:
    """Parse a column and its cutoff; return None if they are not that."""
    cutoff = parse_column_cutoff(after)
    if cutoff is None:
        return None
    if before == REACHED:
        return reached_column(cutoff, f"{before}@{after}")
    column = parse_column(before)
    if column is None or column.at is not None or not column.source.has_curve:
        return None
    header = f"{column.header} @ {cutoff.text}"
    return replace(column, name=f"{before}@{after}", header=header, at=cutoff)


def _make_column(text: str, source: Source | None, window: Window | None = None) -> Column | None:
    if source is None:
        return None
    header = source.label if window is None else source.label_in(window)
    return Column(text, header, source, window)


def label_column(text: str) -> str:
    """Return what tables and figures call a column; a name that cannot be one itself."""
    column = parse_column(text)
    return text if column is None else column.header


def range_of(text: str) -> tuple[float, float] | None:
    """Return the bounds of a metric or column that is a share; None for others."""
    column = parse_column(text)
    return None if column is None else column.range


def column_of(source: Source) -> Column:
    """Return the column of a source without a window and a cutoff."""
    return Column(str(source), source.label, source)


def reached_column(cutoff: Cutoff, name: str = REACHED) -> Column:
    """Return the column that says which runs come to a cutoff."""
    return Column(name, name, Reached(), at=cutoff)


def within_steps(column: Column, steps: int) -> Column:
    """Return a column of the first steps, named after those that runs of so many steps have."""
    window = column.window
    if window is None or window.kind != "first" or window.value <= steps:
        return column
    if not column.is_mean_of_steps:
        return column
    return replace(column, header=column.source.label_in(Window("first", steps)))


def logged_metric(column: Column, evaluated: EvaluationsByTask) -> str | None:
    """Return the metric that stands for a pass@k of runs that have no evaluation; None without one.

    Trainers log pass@k as a number, without its problems: an import calls it `pass_at_K`.
    """
    if column.window is not None or column.at is not None:
        return None
    return column.source.logged_metric(evaluated) if isinstance(column.source, PassAtK) else None


def standard_columns(ks: Sequence[int], others: Sequence[str] = ()) -> list[str]:
    """Return the names of the default columns of a table: collapse, pass@k, entropies, cost.

    Args:
        ks: the k of pass@k on the runs' own task.
        others: the other evaluated tasks.
    """
    names = [
        "collapse/acr@first100",
        "collapse/acr@end",
        "collapse/all_wrong@end",
        "collapse/all_correct@end",
    ]
    names += [f"pass@{k}" for k in ks]
    if not ks and not others:
        # Without an evaluation the rewards of the training have to do.
        names.append(UNEVALUATED)
    names += [f"pass@1[{task}]" for task in others]
    return [*names, "entropy/token@end", ANSWER_ENTROPY, ROLLOUT_COST]


def find_outcome(column: Column, outcomes: Sequence[Column]) -> Column | None:
    """Return the outcome whose differences between rows a column has; None if it is of none.

    A floor that is subtracted from both rows cancels.
    """
    compared = _compared(column)
    return next((outcome for outcome in outcomes if _compared(outcome) == compared), None)


def _compared(column: Column) -> tuple[object, ...]:
    """Return what decides the differences of a column between rows."""
    source = column.source
    if isinstance(source, PassAtK):
        source = replace(source, above=None)
    return source, column.window, column.at


def parse_outcomes(names: Any, where: str) -> list[Column]:
    """Parse declared primary outcomes; none if nothing is declared.

    Args:
        where: the key that has them, for messages.

    Raises:
        ConfigError: they are no list of columns.
    """
    if names is None:
        return []
    if not isinstance(names, list) or not names:
        raise _no_outcome(names, where)
    outcomes: list[Column] = []
    for name in names:
        if not isinstance(name, str) or "*" in name:
            raise _no_outcome(name, where)
        column = parse_column(name)
        if column is None or isinstance(column.source, Reached):
            raise _no_outcome(name, where)
        # A floor changes no difference.
        if find_outcome(column, outcomes) is not None:
            raise _no_outcome(name, where)
        outcomes.append(column)
    return outcomes


def _no_outcome(got: Any, where: str) -> ConfigError:
    return ConfigError(
        f"{where}: expected a list of columns, each once, such as [pass@1, "
        f"pass@8[above=guess], {RIGHT_ENTROPY}], got {got!r}"
    )
