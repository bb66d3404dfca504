"""Figures of evaluations after training: pass@k, diversity and solve rates of problems."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from advsweep.errors import FitError, ReportError, counted
from advsweep.report.data.columns import MOST_OF_SAMPLES
from advsweep.report.figures import chart
from advsweep.report.figures.data import EvaluatedRow, FigureData
from advsweep.report.figures.style import BLACK, UNTRAINED, RowStyle
from advsweep.statistics import mean_over_problems, pass_at_k, student_t_interval
from advsweep.statistics.intervals import Band, student_t_band
from advsweep.statistics.pass_laws import PowerLaw, fit_pass_at_k
from advsweep.statistics.solve_rates import fit_solve_rates
from advsweep.store import EvaluationRecord

if TYPE_CHECKING:
    from jaxtyping import Float, Int

_DESCRIBED = 8
"""With at most this many rows the caption has the parameters of their laws."""

_RESAMPLED_FROM = 15
"""With fewer problems the intervals of laws come from residuals, not from resampled problems."""

_BINS = 10


def passk(data: FigureData, options: chart.Options) -> chart.Chart:
    """Draw pass@k over k, with shifted power laws fitted to it."""
    rows = data.evaluated_rows()
    fitted = _powers_of_two(_fewest_samples(rows))
    ks = _powers_of_two(_largest_k(rows))
    dense = np.geomspace(ks[0], ks[-1], 60)
    bands: list[chart.Series] = []
    laws: list[chart.Series] = []
    records: list[chart.Record] = []
    notes: list[str] = []

    def add(series: chart.Series, law: PowerLaw | None, refused: str | None) -> None:
        bands.append(series)
        fields = chart.estimate_fields(law, "a", "b", "c")
        fields |= {name: getattr(law, name, None) for name in ("mse", "r_squared", "resampled")}
        for k, own in zip(ks, series.records, strict=True):
            value = None if law is None else float(law.pass_at_k(k))
            record = {"row": series.label, "k": int(k), **own, "law": value}
            records.append({**record, **fields, "refused": refused})

    for row in rows:
        band, law, refused = _fit_law(row, ks, fitted)
        add(chart.Series.of_band(row.label, row.style, ks, band, chart.BANDED), law, refused)
        if law is None:
            notes.append(f"no line for {row.label}: {refused}")
            continue
        laws.append(chart.Series(row.label, row.style, dense, law.pass_at_k(dense), chart.FIT))
        if len(rows) <= _DESCRIBED:
            a, b, c = (f"{estimate.value:.3g}" for estimate in (law.a, law.b, law.c))
            notes.append(f"law of {row.label}: a {a}, b {b}, c {c}, R² {law.r_squared:.4f}")
    for floor in floor_rows(data, ks):
        add(
            chart.Series.of_band(floor.label, floor.style, ks, floor.band, chart.DOTTED), None, None
        )
        notes.append(f"dotted: {floor.label}, {floor.help}")
    low, high = chart.limits(bands)
    thin = f"thin lines: exp(-a (k+c)^-b), fitted to the means at k = 1, 2, ..., {fitted[-1]}"
    panel = chart.Panel(
        series=[*bands, *laws],
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


class FloorRow(NamedTuple):
    """A floor of the problems, such as guessing, with its pass@k at each k."""

    label: str
    style: RowStyle
    help: str
    band: Band


def floor_rows(data: FigureData, ks: Int[np.ndarray, " ks"]) -> list[FloorRow]:
    """Return each floor of the problems."""
    found = list(data.evaluations.common_floors().values())
    rows = []
    for place, name in enumerate(found[0][1] if found else (), len(data.untrained)):
        means = np.mean(
            [
                [floors[name].pass_at(int(k), record.problem_ids).mean() for k in ks]
                for record, floors in found
            ],
            axis=0,
        )
        unknown = np.full(len(ks), np.nan)
        band = Band(means, unknown, unknown, np.ones(len(ks), dtype=np.int64))
        style = UNTRAINED[place % len(UNTRAINED)]
        rows.append(FloorRow(name, style, found[0][1][name].help, band))
    return rows


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
    row: EvaluatedRow, ks: Int[np.ndarray, " points"], fitted: Int[np.ndarray, " points"]
) -> tuple[Band, PowerLaw | None, str | None]:
    """Return a row's pass@k at the k that are shown, its law, and why it has none."""
    each = _pass_at_ks(row.evaluations, fitted)
    means = mean_over_problems(each)
    band = student_t_band(means[:, : len(ks)])
    of_problems = each.mean(axis=0).T
    # Resampling needs enough problems, and a pass@k of each of them.
    whole = len(of_problems) >= _RESAMPLED_FROM and not np.isnan(of_problems).any()
    try:
        return band, fit_pass_at_k(fitted, of_problems if whole else means.mean(axis=0)), None
    except FitError as error:
        return band, None, str(error)


def diversity(data: FigureData, options: chart.Options) -> chart.Chart:
    """Draw pass@1 against pass@k and against answer entropy."""
    rows = data.evaluated_rows()
    k = _largest_k(rows)
    if k == 1:
        raise ReportError(
            f"{data.name} was evaluated with one sample for each problem, which tells "
            "nothing of diversity; `advsweep eval --samples` draws more"
        )
    names = ("pass@1", f"pass@{k}", "entropy/answer")
    points: list[list[chart.Series]] = [[], []]
    records = []
    for row in rows:
        table = mean_over_problems(_pass_at_ks(row.evaluations, [1, k]))
        entropies = [float(record.answer_entropy.mean()) for record in row.evaluations]
        x, *others = (student_t_interval(own) for own in (*table.T, entropies))
        records += [
            {"row": row.label, "metric": name, **mean._asdict()}
            for name, mean in zip(names, (x, *others), strict=True)
        ]
        for series, y in zip(points, others, strict=True):
            ends = {"low": [y.low], "high": [y.high], "x_low": [x.low], "x_high": [x.high]}
            one = chart.Series(row.label, row.style, [x.mean], [y.mean], chart.POINTS, **ends)
            series.append(one)
    labels = (f"pass@{k}", "answer entropy, nats")
    return chart.Chart(
        title=f"{data.name}: accuracy and diversity",
        notes=_seeds_note(rows, "intervals"),
        records=records,
        panels=[
            chart.Panel(series=series, x_label="pass@1", y_label=label, height=2.9)
            for series, label in zip(points, labels, strict=True)
        ],
        columns=2,
    )


def difficulty(data: FigureData, options: chart.Options) -> chart.Chart:
    """Draw FADE's distribution of difficulty (arXiv:2607.01490, sec. 12) of held-out problems."""
    rows = data.evaluated_rows()
    resamples = 200 if options.intervals else 1
    goodness = ("sse", "chi_square", "degrees", "p_value")
    left: list[str] = []
    described: list[str] = []
    records: list[chart.Record] = []
    panels = []
    for row in rows:
        # The samples of all seeds together.
        n = np.sum([record.n for record in row.evaluations], axis=0)
        c = np.sum([record.c for record in row.evaluations], axis=0)
        samples = int(n.max())
        if samples == 0:
            raise ReportError(
                f"no sample of {row.label} could be scored, so that it has no solve rates"
            )
        if short := int((n < samples).sum()):
            what = counted(short, "problem")
            left.append(f"left out in {row.label}: {what} with samples that could not be scored")
        histogram = np.bincount(c[n == samples], minlength=samples + 1)
        # Whole counts of successes to a bar, as even as they come.
        number = min(_BINS, samples + 1)
        starts = np.ceil(np.arange(number + 1) * (samples + 1) / number).astype(np.int64)
        shares = np.add.reduceat(histogram / histogram.sum(), starts[:-1])
        edges = starts / (samples + 1)
        series = [chart.Series("", row.style, edges, shares, chart.BARS)]
        fit, refused, expected = None, None, [None] * number
        try:
            fit = fit_solve_rates(histogram, resamples=resamples)
        except FitError as error:
            refused = str(error)
            described.append(f"in {row.label}: no fit: {refused}")
        if fit is not None:
            y = np.add.reduceat(fit.shares, starts[:-1])
            expected = y.tolist()
            middles = (edges[:-1] + edges[1:]) / 2
            series.append(chart.Series("beta", RowStyle(BLACK, "o"), middles, y, chart.FIT))
            p = f", p = {fit.p_value:.2g}" if math.isfinite(fit.p_value) else ""
            shapes = f"Beta({fit.alpha.value:.3g}, {fit.beta.value:.3g})"
            described.append(f"in {row.label}: {shapes}{p}")
        records += [
            {
                "row": row.label,
                "problems": int(histogram.sum()),
                "samples": samples,
                "from": int(starts[i]),
                "to": int(starts[i + 1]) - 1,
                "share": float(shares[i]),
                "expected": expected[i],
                **chart.estimate_fields(fit, "alpha", "beta"),
                **{name: getattr(fit, name, None) for name in goodness},
                "refused": refused,
            }
            for i in range(number)
        ]
        panels.append((row.label, series))
    top = 1.05 * max(float(np.max(own.y)) for _, series in panels for own in series)
    note = "of each problem the samples of all seeds together; lines: beta-binomials fitted "
    return chart.Chart(
        title=f"{data.name}: solve rates of problems of {rows[0].evaluations[0].task}",
        notes=[f"{note}by least squares", *left, *(described if len(rows) <= _DESCRIBED else ())],
        records=records,
        panels=[
            chart.Panel(
                title=label,
                series=series,
                x_label="solve rate",
                y_label="share of problems",
                x_limits=(0.0, 1.0),
                y_limits=(0.0, top),
                height=1.9,
            )
            for label, series in panels
        ],
        columns=chart.grid_columns(len(panels)),
    )
