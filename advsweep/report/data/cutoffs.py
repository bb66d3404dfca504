"""Where in their training runs are compared: at an equal cost, or where a number is equal."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from advsweep.errors import ConfigError, NotFoundError, ReportError, counted, first_of, nearest
from advsweep.report.data.evaluation_sources import Evaluation
from advsweep.report.data.groups import Group
from advsweep.report.data.labels import name_group
from advsweep.report.data.run_data import RunData
from advsweep.report.data.source_names import parse_source
from advsweep.report.data.sources import COSTS, Metric, Source, Total
from advsweep.report.data.windows import NUMBER, Curve, smoothed, step_at
from advsweep.store import RunRecord
from advsweep.store.seeds import seed_order
from advsweep.synonyms import COLUMNS, CUTOFFS, hint

AT_CUTOFF = "each run as it was where"

# The option of the cutoff of a whole report.
AT = "--at"

# The largest gap between two evaluations that is interpolated, as a part of the run's steps.
MAX_GAP = 0.05

_NAMED = 6  # rows in a sentence
_CUTOFF = re.compile(rf"(?!steps_to=)[A-Za-z_].*={NUMBER}")


@dataclass(frozen=True)
class Cutoff:
    """Where in their training runs are compared.

    Attributes:
        what: a cost, or the name of a column.
        value: the value to reach; None for the largest cost that all runs reach.
        source: what the value is of; None if no column is called `what`.
    """

    what: str
    value: float | None
    source: Source | None = field(compare=False)

    @property
    def is_cost(self) -> bool:
        return self.what in COSTS

    @property
    def text(self) -> str:
        return self.what if self.value is None else f"{self.what}={self.value:g}"


def parse_cutoff(text: str, option: str = AT) -> Cutoff:
    """Parse a cutoff as users write it: `rollouts`, `rollouts=50000`, `pass@1=0.5`.

    Args:
        option: the option that the text comes from, for the message.

    Raises:
        ConfigError: the text is no cutoff.
    """
    # The name of a column may have an = of its own: pass@1[level=3]=0.5.
    what, equals, written = text.strip().rpartition("=")
    if not equals:
        what = written
    value = _parse_value(written) if equals else None
    if not _can_be_cutoff(what, value):
        raise ConfigError(
            f"{option}: expected {', '.join(COSTS)}, one of these with =NUMBER, or "
            f"COLUMN=NUMBER, got {text!r}{_near_cutoff(text)}"
        )
    source = Total(what) if what in COSTS else parse_source(what)
    return Cutoff(what, value, source)


def _near_cutoff(text: str) -> str:
    """Return what ends the message on a text that is no cutoff: what may be meant."""
    if text.strip().isdecimal():
        return f"; write steps={text.strip()}"
    said = hint(CUTOFFS, text)
    return "" if said is None else f"; {said}"


def _parse_value(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _can_be_cutoff(what: str, value: float | None) -> bool:
    if value is None:
        return what in COSTS
    if not what or not math.isfinite(value):
        return False
    return value > 0 or what not in COSTS


def parse_column_cutoff(text: str) -> Cutoff | None:
    """Parse a cutoff as it stands after the @ of a column; return None if it cannot be one."""
    if _CUTOFF.fullmatch(text) is None:
        return None
    cutoff = parse_cutoff(text)
    return None if cutoff.source is None else cutoff


@dataclass(frozen=True)
class CutoffSteps:
    """The steps at which runs come to a cutoff.

    Attributes:
        steps: the step at which each run comes to it; NaN for one that never does.
        gaps: of the runs that come to it between two evaluations too far apart: the steps between
            these, and those of the run. They are not compared, as a line between two distant
            points need not be the curve.
    """

    steps: Mapping[int, float]
    gaps: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def usable(self) -> dict[int, float]:
        """The runs that are compared, with the step."""
        return {
            run_id: step
            for run_id, step in self.steps.items()
            if not math.isnan(step) and run_id not in self.gaps
        }

    def describe(self, groups: Sequence[tuple[Group, Sequence[RunRecord]]]) -> str:
        """Say at which steps runs are compared, and which runs are not, and why."""
        text = self._describe_steps()
        rows = []
        for group, runs in groups:
            never = {run.seed_key for run in runs if math.isnan(self.steps.get(run.id, math.nan))}
            if never:
                seeds = ", ".join(map(str, sorted(never, key=seed_order)))
                rows.append(f"{name_group(group)} (seeds {seeds})")
        if rows:
            text += "; runs that do not come to it are left out of its numbers: "
            text += first_of(rows, _NAMED)
        return f"{text}; {self.describe_gaps()}" if self.gaps else text

    def _describe_steps(self) -> str:
        steps = self.usable.values()
        if not steps:
            return "in no run"
        ends = dict.fromkeys([f"{min(steps):.4g}", f"{max(steps):.4g}"])
        return f"at steps {' to '.join(ends)}"

    def describe_gaps(self) -> str:
        """Say how many runs come to it in a gap between evaluations, and what to do."""
        gap, steps = max(self.gaps.values())
        return (
            f"{len(self.gaps)} of {counted(len(self.steps), 'run')} come to it between two "
            f"evaluations more than {MAX_GAP:.0%} of their steps apart ({gap} of {steps}), too far "
            f"to interpolate, and are left out of its numbers; evaluation.every="
            f"{max(1, math.floor(MAX_GAP * steps))}, or evaluation.at, makes more evaluations"
        )


def find_steps(data: RunData, cutoff: Cutoff, origin: str) -> CutoffSteps:
    """Return where each run comes to a value.

    Args:
        origin: the option or column that has the cutoff, for the message.

    Raises:
        NotFoundError: no run has the curve that the cutoff is a value of.
    """
    assert cutoff.value is not None
    curves = _cutoff_curves(data, cutoff, origin)
    steps = {run_id: step_at(curve, cutoff.value) for run_id, curve in curves.items()}
    if not isinstance(cutoff.source, Evaluation):
        # A cost only grows, and a metric has every step.
        return CutoffSteps(steps)
    # Interpolation needs the curve on both sides: a value within a wide gap could have been
    # reached anywhere in it, and the row with fewer evaluations would win or lose by that.
    lengths = {run.id: run.steps for run in data.runs}
    gaps: dict[int, tuple[int, int]] = {}
    for run_id, step in steps.items():
        if math.isnan(step):
            continue
        gap = _gap_around(step, curves[run_id])
        if gap > MAX_GAP * lengths[run_id]:
            gaps[run_id] = (gap, lengths[run_id])
    return CutoffSteps(steps, gaps)


def _gap_around(step: float, curve: Curve) -> int:
    """Return the steps between the two points of a curve around a step; 0 at a point."""
    steps, values = curve
    points = steps[~np.isnan(values)]
    after = int(np.searchsorted(points, step))
    return 0 if points[after] == step else int(points[after] - points[after - 1])


def _cutoff_curves(data: RunData, cutoff: Cutoff, origin: str) -> Mapping[int, Curve]:
    """Return the curves in which a cutoff is looked for; those of metrics are smoothed."""
    source = cutoff.source
    if source is None or (isinstance(source, Total) and not cutoff.is_cost):
        raise NotFoundError(f"{origin}: expected a metric or a pass@k, got '{cutoff.what}'")
    curves = data.curves(source)
    if not isinstance(source, Metric):
        return curves
    if not curves and data.refuses_absent:
        names = data.store.metrics.names(data.runs[0].id)
        raise NotFoundError(
            f"{origin}: no run has a metric '{cutoff.what}'; {nearest(cutoff.what, names, COLUMNS)}"
        )
    # Metrics of the training are noisy, so that a single step would decide.
    means = {run_id: smoothed(curve) for run_id, curve in curves.items()}
    return {run_id: curve for run_id, curve in means.items() if curve is not None}


@dataclass(frozen=True)
class ReportCutoff:
    """The cutoff of all columns of a report that have none themselves.

    Attributes:
        cutoff: with its value.
        steps: where each run comes to it.
        text: the cutoff in words.
    """

    cutoff: Cutoff
    steps: CutoffSteps
    text: str


def resolve_cutoff(data: RunData, at: Cutoff, hidden: Sequence[RunRecord] = ()) -> ReportCutoff:
    """Return the cutoff of `--at` with its value, and where each run comes to it.

    A cost without a value has the least that a finished run of the sweep has spent, whether or
    not the table shows that run: a filter must not change where two arms are compared.

    Args:
        hidden: the finished runs of the sweep that the table does not show.

    Raises:
        NotFoundError: no run has the metric of the cutoff.
        ReportError: no run can be compared at the cutoff.
    """
    curves = _cutoff_curves(data, at, AT)
    if all(np.isnan(values).all() for _, values in curves.values()):
        raise ReportError(f"{AT} {at.text}: no run of the table recorded what it takes")
    origin = ""
    if at.value is None:
        least, origin = _least_cost(data, at, hidden)
        at = replace(at, value=least)
    steps = find_steps(data, at, AT)
    if not steps.usable:
        why = steps.describe_gaps() if steps.gaps else _describe_range(curves.values())
        raise ReportError(f"{AT} {at.text}: {why}")
    assert at.value is not None
    if at.is_cost:
        spent = _show_cost(at.value)
        text = f"{AT_CUTOFF} it had spent {spent} {at.what}{origin}"
    else:
        text = f"{AT_CUTOFF} {at.what} first comes to {at.value:g}"
    return ReportCutoff(at, steps, text)


def _describe_range(curves: Iterable[Curve]) -> str:
    """Say that no run comes to a cutoff, and between which values the curves are."""
    values = np.concatenate([values for _, values in curves])
    bounds = f"they are from {np.nanmin(values):.6g} to {np.nanmax(values):.6g}"
    return f"no run of the table comes to it; {bounds}"


def _least_cost(data: RunData, at: Cutoff, hidden: Sequence[RunRecord]) -> tuple[float, str]:
    """Return the least that a run has spent in all, and where that is from, in words."""
    shown_least = min(_spent(data, at).values())
    others = RunData(data.store, hidden, data.evaluated, refuses_absent=False)
    spent = _spent(others, at)
    least = min([shown_least, *spent.values()])
    origin = ", the least of all of the sweep's finished runs"
    if least < shown_least:
        run = next(run for run in hidden if spent.get(run.id) == least)
        shown = _show_cost(shown_least)
        origin += (
            f" (run {run.id} of {run.estimator}, which is not shown; those shown have all "
            f"spent {shown}: {AT} {at.what}={shown})"
        )
    return least, origin


def _spent(data: RunData, at: Cutoff) -> dict[int, float]:
    """Return what each run has spent in all, by its id."""
    curves = _cutoff_curves(data, at, AT)
    return {run_id: float(values[-1]) for run_id, (_, values) in curves.items()}


def _show_cost(spent: float) -> str:
    return f"{spent:.4g}" if spent < 1000 else f"{spent:.0f}"
