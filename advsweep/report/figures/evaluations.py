"""Figures of evaluations after training: pass@k, diversity and solve rates of problems."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from advsweep.errors import FitError, ReportError
from advsweep.names import ANSWER_ENTROPY
from advsweep.report.data.columns import MOST_OF_SAMPLES
from advsweep.report.data.evaluation_sources import PassAtK
from advsweep.report.figures import chart
from advsweep.report.figures.axes import label_axis
from advsweep.report.figures.data import EvaluatedRow, FigureData
from advsweep.statistics import mean_over_problems
from advsweep.statistics.pass_laws import PowerLaw, fit_pass_at_k
from advsweep.store import EvaluationRecord

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Ks = Int[np.ndarray, " points"]

# With at most this many rows the caption has the parameters of their laws.
_DESCRIBED = 8

# With fewer problems the intervals of laws come from residuals, not from resampled problems.
_RESAMPLED_FROM = 15


@dataclass(frozen=True)
class _FittedRow:
    """pass@k of a row over k, and the law of its mean over seeds.

    Attributes:
        means: the mean over the problems for each seed and k.
        fitted: what the law is fitted to: a line for each problem where its intervals come from
            resampled problems, or else one line.
        law: without intervals, which pictures do not show and which take most of the time; None
            where no law can be fitted.
        refused: why there is no law; empty with one.
    """

    label: str
    ks: Ks
    means: Float[np.ndarray, "seeds points"]
    fitted: Float[np.ndarray, "lines points"]
    law: PowerLaw | None
    refused: str = ""

    @classmethod
    def fit(cls, row: EvaluatedRow, ks: Ks) -> _FittedRow:
        by_seed = _pass_at_ks(row.evaluations, ks)
        means = mean_over_problems(by_seed)
        lines = by_seed.mean(axis=0).T
        # Resampling needs enough problems, and a pass@k of each of them.
        if len(lines) < _RESAMPLED_FROM or np.isnan(lines).any():
            lines = means.mean(axis=0, keepdims=True)
        try:
            law = fit_pass_at_k(ks, lines, resamples=0)
        except FitError as error:
            return cls(row.label, ks, means, lines, None, str(error))
        return cls(row.label, ks, means, lines, law)

    def law_with_intervals(self) -> PowerLaw | None:
        return None if self.law is None else fit_pass_at_k(self.ks, self.fitted)

    def describe(self) -> str:
        if self.law is None:
            return f"no line for {self.label}: {self.refused}"
        a, b, c = self.law.a.value, self.law.b.value, self.law.c.value
        return f"law of {self.label}: a {a:.3g}, b {b:.3g}, c {c:.3g}, R² {self.law.r_squared:.4f}"


def passk(data: FigureData) -> chart.Chart:
    """Draw pass@k over k after training, with shifted power laws fitted to it."""
    rows = data.evaluated_rows()
    # Laws are fitted to all samples, of which the largest k are too noisy to show.
    fitted_ks = _powers_of_two(_fewest_samples(rows))
    ks = _powers_of_two(_largest_k(rows))
    fitted = [_FittedRow.fit(row, fitted_ks) for row in rows]
    notes = [row.describe() for row in fitted if row.law is None or len(rows) <= _DESCRIBED]
    scores: list[tuple[str, int, float]] = []
    for row in fitted:
        for means in row.means:
            scores += _scores(row.label, ks, means)
    for name, (_, floors) in data.floors.items():
        values = [[f.pass_at(int(k), r.problem_ids).mean() for k in ks] for r, f in floors]
        scores += _scores(name, ks, np.mean(values, axis=0))
        notes.append(f"dotted: {name}, {floors[0][1].help}")
    table = chart.means(pd.DataFrame(scores, columns=["row", "k", "value"]), "row", "k")
    styles = {row.label: row.style for row in rows}
    styles |= {name: style for name, (style, _) in data.floors.items()}
    is_floor = table["row"].isin(list(data.floors))
    bands = chart.lines(table[~is_floor], styles, "k", chart.BANDED)
    dotted = chart.lines(table[is_floor], styles, "k", chart.DOTTED)
    dense = np.geomspace(ks[0], ks[-1], 60)
    laws = {row.label: row.law for row in fitted}
    curves = [
        chart.Series(label, styles[label], dense, law.pass_at_k(dense), chart.FIT)
        for label, law in laws.items()
        if law is not None
    ]
    low, high = chart.limits(bands)
    panel = chart.Panel(
        series=[*bands, *dotted, *curves],
        x_label="k",
        y_label="p@k",
        x_scale="log",
        x_ticks={int(k): str(k) for k in ks},
        y_limits=(max(low, -0.02), min(high, 1.02)),
        within=(0.0, 1.0),
        height=3.2,
    )
    thin = f"thin lines: exp(-a (k+c)^-b), fitted to the means at k = 1, 2, ..., {fitted_ks[-1]}"
    return chart.Chart(
        title=f"{data.name}: pass@k on {rows[0].evaluations[0].task}",
        notes=[*_seeds_note(rows, "bands"), thin, *notes],
        make_records=lambda: _passk_records(table, fitted),
        panels=[panel],
    )


def _scores(label: str, ks: Ks, means: Iterable[float]) -> Iterator[tuple[str, int, float]]:
    """Yield the mean of each k; those of larger k are left out."""
    for k, mean in zip(ks, means, strict=False):
        yield label, int(k), mean


def _passk_records(table: pd.DataFrame, fitted: Sequence[_FittedRow]) -> list[chart.Record]:
    """Return the means with the law of each row."""
    laws = {row.label: row.law_with_intervals() for row in fitted}
    refused = {row.label: row.refused or None for row in fitted}
    records = []
    for record in table.to_dict("records"):
        law = laws.get(record["row"])
        record["law"] = None if law is None else float(law.pass_at_k(record["k"]))
        record |= chart.estimate_fields(law, "a", "b", "c")
        record |= {name: getattr(law, name, None) for name in ("mse", "r_squared", "resampled")}
        records.append({**record, "refused": refused.get(record["row"])})
    return records


def _seeds_note(rows: Sequence[EvaluatedRow], what: str) -> list[str]:
    return chart.seeds_note([len(row.evaluations) for row in rows if row.trained], what)


def _fewest_samples(rows: Sequence[EvaluatedRow]) -> int:
    """Return the number of samples per problem that every evaluation has."""
    return min(int(record.n.max(initial=0)) for row in rows for record in row.evaluations)


def _powers_of_two(most: int) -> Ks:
    """Return 1, 2, 4, ... up to a number."""
    return 2 ** np.arange(max(most, 1).bit_length())


def _largest_k(rows: Sequence[EvaluatedRow]) -> int:
    """Return the largest power of two up to a quarter of the samples per problem.

    The estimate of pass@k varies most above. Of few samples it is 2, as pass@1 shows no diversity.
    """
    samples = _fewest_samples(rows)
    most = max(int(MOST_OF_SAMPLES * samples), min(samples, 2))
    return int(_powers_of_two(most)[-1])


def _pass_at_ks(
    records: Sequence[EvaluationRecord], ks: Iterable[int]
) -> Float[np.ndarray, "records points problems"]:
    """Return pass@k of each evaluation, k and problem."""
    return np.stack([PassAtK(int(k)).by_problem(records) for k in ks], axis=1)


def diversity(data: FigureData) -> chart.Chart:
    """Draw pass@1 against pass@k at a quarter of the samples, and answer entropy."""
    rows = data.evaluated_rows()
    k = _largest_k(rows)
    if k == 1:
        raise ReportError(
            f"{data.name} was evaluated with one sample for each problem, which tells "
            "nothing of diversity; `advsweep eval --samples` draws more"
        )
    names = ("pass@1", f"pass@{k}", ANSWER_ENTROPY)
    scores = []
    for row in rows:
        pass_at = mean_over_problems(_pass_at_ks(row.evaluations, [1, k]))
        entropies = [float(record.answer_entropy.mean()) for record in row.evaluations]
        for name, values in zip(names, (*pass_at.T, entropies), strict=True):
            scores += [(row.label, name, value) for value in values]
    frame = pd.DataFrame(scores, columns=["row", "metric", "value"])
    # In the order of the names, which are not sorted.
    frame["metric"] = pd.Categorical(frame["metric"], names)
    table = chart.means(frame, "row", "metric").astype({"metric": object})
    found = {(r.row, r.metric): r for r in table.itertuples()}
    panels = []
    for name in names[1:]:
        series = []
        for row in rows:
            x, y = found[row.label, names[0]], found[row.label, name]
            ends = {"low": [y.low], "high": [y.high], "x_low": [x.low], "x_high": [x.high]}
            one = chart.Series(row.label, row.style, [x.mean], [y.mean], chart.POINTS, **ends)
            series.append(one)
        panel = chart.Panel(
            series=series, x_label=label_axis(names[0]), y_label=label_axis(name), height=2.9
        )
        panels.append(panel)
    return chart.Chart(
        title=f"{data.name}: accuracy and diversity",
        notes=_seeds_note(rows, "intervals"),
        make_records=lambda: table.to_dict("records"),
        panels=panels,
        columns=2,
    )
