"""Figures of evaluations after training: pass@k, diversity and solve rates of problems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from advsweep.errors import FitError, ReportError
from advsweep.report.data.columns import MOST_OF_SAMPLES
from advsweep.report.figures import chart
from advsweep.report.figures.data import EvaluatedRow, FigureData
from advsweep.statistics import mean_over_problems, pass_at_k
from advsweep.statistics.pass_laws import PowerLaw, fit_pass_at_k
from advsweep.store import EvaluationRecord

if TYPE_CHECKING:
    from jaxtyping import Float, Int

# With at most this many rows the caption has the parameters of their laws.
_DESCRIBED = 8

# With fewer problems the intervals of laws come from residuals, not from resampled problems.
_RESAMPLED_FROM = 15


def passk(data: FigureData) -> chart.Chart:
    """Draw pass@k over k after training, with shifted power laws fitted to it."""
    rows = data.evaluated_rows()
    # Laws are fitted to all samples, of which the largest k are too noisy to show.
    fitted = _powers_of_two(_fewest_samples(rows))
    ks = _powers_of_two(_largest_k(rows))
    scores: list[tuple[str, int, float]] = []
    laws: dict[str, PowerLaw | None] = {}
    refused: dict[str, str] = {}
    notes: list[str] = []
    for row in rows:
        each = _pass_at_ks(row.evaluations, fitted)
        means = mean_over_problems(each)
        scores += [(row.label, int(k), v) for own in means for k, v in zip(ks, own, strict=False)]
        try:
            law = laws[row.label] = _fit_law(fitted, each, means)
        except FitError as error:
            laws[row.label], refused[row.label] = None, str(error)
            notes.append(f"no line for {row.label}: {error}")
            continue
        if len(rows) <= _DESCRIBED:
            a, b, c = (f"{estimate.value:.3g}" for estimate in (law.a, law.b, law.c))
            notes.append(f"law of {row.label}: a {a}, b {b}, c {c}, R² {law.r_squared:.4f}")
    for name, (_, floors) in data.floors.items():
        values = [[f.pass_at(int(k), r.problem_ids).mean() for k in ks] for r, f in floors]
        scores += [(name, int(k), v) for k, v in zip(ks, np.mean(values, axis=0), strict=True)]
        notes.append(f"dotted: {name}, {floors[0][1].help}")
    table = chart.means(pd.DataFrame(scores, columns=["row", "k", "value"]), "row", "k")
    records = []
    for record in table.to_dict("records"):
        fit = laws.get(record["row"])
        record["law"] = None if fit is None else float(fit.pass_at_k(record["k"]))
        record |= chart.estimate_fields(fit, "a", "b", "c")
        record |= {name: getattr(fit, name, None) for name in ("mse", "r_squared", "resampled")}
        records.append({**record, "refused": refused.get(record["row"])})
    styles = {row.label: row.style for row in rows}
    styles |= {name: style for name, (style, _) in data.floors.items()}
    is_floor = table["row"].isin(list(data.floors))
    bands = chart.lines(table[~is_floor], styles, "k", chart.BANDED)
    dense = np.geomspace(ks[0], ks[-1], 60)
    series = [
        *bands,
        *chart.lines(table[is_floor], styles, "k", chart.DOTTED),
        *(
            chart.Series(label, styles[label], dense, law.pass_at_k(dense), chart.FIT)
            for label, law in laws.items()
            if law is not None
        ),
    ]
    low, high = chart.limits(bands)
    thin = f"thin lines: exp(-a (k+c)^-b), fitted to the means at k = 1, 2, ..., {fitted[-1]}"
    panel = chart.Panel(
        series=series,
        x_label="k",
        y_label="pass@k",
        x_scale="log",
        x_ticks={int(k): str(k) for k in ks},
        y_limits=(max(low, -0.02), min(high, 1.02)),
        within=(0.0, 1.0),
        height=3.2,
    )
    return chart.Chart(
        title=f"{data.name}: pass@k on {rows[0].evaluations[0].task}",
        notes=[*_seeds_note(rows, "bands"), thin, *notes],
        records=records,
        panels=[panel],
    )


def _seeds_note(rows: Sequence[EvaluatedRow], what: str) -> list[str]:
    return chart.seeds_note([len(row.evaluations) for row in rows if row.trained], what)


def _fewest_samples(rows: Sequence[EvaluatedRow]) -> int:
    """Return the number of samples per problem that every evaluation has."""
    return min(int(record.n.max(initial=0)) for row in rows for record in row.evaluations)


def _powers_of_two(most: int) -> Int[np.ndarray, " points"]:
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
    records: Sequence[EvaluationRecord], ks: Sequence[int] | Int[np.ndarray, " points"]
) -> Float[np.ndarray, "records points problems"]:
    """Return pass@k of each evaluation, k and problem."""
    return np.array([[pass_at_k(r.n, r.c, int(k)) for k in ks] for r in records])


def _fit_law(
    ks: Int[np.ndarray, " points"],
    each: Float[np.ndarray, "records points problems"],
    means: Float[np.ndarray, "records points"],
) -> PowerLaw:
    """Fit a law to the mean over seeds, by problem where that is possible."""
    of_problems = each.mean(axis=0).T
    # Resampling needs enough problems, and a pass@k of each of them.
    whole = len(of_problems) >= _RESAMPLED_FROM and not np.isnan(of_problems).any()
    return fit_pass_at_k(ks, of_problems if whole else means.mean(axis=0))


def diversity(data: FigureData) -> chart.Chart:
    """Draw pass@1 against pass@k at a quarter of the samples, and answer entropy."""
    rows = data.evaluated_rows()
    k = _largest_k(rows)
    if k == 1:
        raise ReportError(
            f"{data.name} was evaluated with one sample for each problem, which tells "
            "nothing of diversity; `advsweep eval --samples` draws more"
        )
    names = ("pass@1", f"pass@{k}", "entropy/answer")
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
    for name, label in zip(names[1:], (f"pass@{k}", "answer entropy, nats"), strict=True):
        series = []
        for row in rows:
            x, y = found[row.label, names[0]], found[row.label, name]
            ends = {"low": [y.low], "high": [y.high], "x_low": [x.low], "x_high": [x.high]}
            one = chart.Series(row.label, row.style, [x.mean], [y.mean], chart.POINTS, **ends)
            series.append(one)
        panels.append(chart.Panel(series=series, x_label="pass@1", y_label=label, height=2.9))
    return chart.Chart(
        title=f"{data.name}: accuracy and diversity",
        notes=_seeds_note(rows, "intervals"),
        records=table.to_dict("records"),
        panels=panels,
        columns=2,
    )
