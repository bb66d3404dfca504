"""Figures over the learning rate, or another key with numbers, for each arm of a sweep.

Training trades diversity for accuracy, faster at a higher rate. Two arms that walk along one curve
at different speeds differ at the end and in nothing else; what an arm does better is how far it
lies above the curve of the baseline, its frontier. The frontier consists of the rates and steps
that are best in the mean over seeds: no other one has both a higher pass@1 and more diversity. Each
seed has its own values there, as seeds may have other base models and problems. An arm's point is
compared with the frontier of its seed at its pass@1, on the straight line between two points of
the frontier that are at most `MAX_GAP` of pass@1 apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from advsweep.errors import NotFoundError, ReportError, nearest
from advsweep.report.data.columns import label_column, parse_column
from advsweep.report.data.cutoffs import MAX_GAP
from advsweep.report.data.evaluation_sources import RAREFIED_ENTROPY, RIGHT_ENTROPY
from advsweep.report.data.labels import label_keys
from advsweep.report.data.metrics import MetricDirection
from advsweep.report.data.windows import Curve
from advsweep.report.figures import chart
from advsweep.report.figures.axes import label_axis
from advsweep.report.figures.data import ArmRows, FigureData
from advsweep.report.figures.equal_samples import with_equal_samples
from advsweep.report.figures.style import BLACK, RowStyle, choose_styles
from advsweep.statistics import student_t_interval
from advsweep.store.tuning_records import TuningRecord

RATE = "optimizer.lr"
_MOST_TICKS = 10
_ACCURACY = "pass@1"


@dataclass(frozen=True)
class _ArmScores:
    """The scores of arms over a key with numbers.

    Attributes:
        metric: what the scores are of; the lowest is best where `is_low`.
        scores: the arm, its value of the key, and the score, for each seed.
        styles: those of the arms.
        rings: what the rings are around, for the caption.
        chosen: the value that a tuning chose for each arm, if any; None to ring the best means.
    """

    key: str
    metric: str
    is_low: bool
    scores: Sequence[tuple[str, float, float]]
    styles: Mapping[str, RowStyle]
    rings: str
    chosen: Mapping[str, float | None] | None = None


def _scores_of_runs(data: FigureData, key: str, metric: str) -> _ArmScores:
    column = parse_column(metric)
    values = data.values(metric)
    arms = data.arms(key)
    scores = []
    for arm in arms:
        for value, row in arm.rows.items():
            scores += [(arm.label, value, values[r.id]) for r in row.runs if r.id in values]
    return _ArmScores(
        key=key,
        metric=metric,
        is_low=column is not None and column.direction is MetricDirection.LOWER,
        scores=scores,
        styles={arm.label: arm.style for arm in arms},
        rings="the best means",
    )


def _scores_of_tuning(tuning: TuningRecord) -> _ArmScores:
    estimators = [arm.name.partition(" ")[0] for arm in tuning.arms]
    styles = choose_styles(estimators, list(dict.fromkeys(estimators)))
    scores = []
    for arm in tuning.arms:
        for trial in arm.grid:
            scores += [(arm.name, trial.value, score) for score in trial.scores or ()]
    rings = f"the choices of the tuning ({tuning.sweep})"
    if tuning.halving:
        rings = f"{rings}; values that halving dropped have fewer seeds"
    return _ArmScores(
        key=tuning.key,
        metric=tuning.metric,
        is_low=tuning.lower,
        scores=scores,
        styles={arm.name: style for arm, style in zip(tuning.arms, styles, strict=True)},
        rings=rings,
        chosen={arm.name: arm.chosen for arm in tuning.arms},
    )


def rate(data: FigureData, x: str | None = None, metric: str | None = None) -> chart.Chart:
    """Draw pass@1 (--metric) over the learning rate (--x) of each arm; of a tuned sweep its tuning.

    The chosen rate has a ring.
    """
    tuning = data.tuning
    if tuning is None or x or metric or data.task:
        arms = _scores_of_runs(data, x or RATE, metric or data.on_task(_ACCURACY))
    elif data.where:
        raise ReportError(
            f"the tuning of {data.name} is drawn whole, without --where; `advsweep plot "
            f"{tuning.sweep} --figure rate` draws some of its runs"
        )
    else:
        arms = _scores_of_tuning(tuning)
    key = arms.key
    frame = pd.DataFrame(arms.scores, columns=["row", key, "value"])
    means = chart.means(frame, "row", key)
    if not (means.groupby("row").size() > 1).any():
        raise ReportError(
            f"expected an arm with two values of '{key}', got none in {data.name}; --x names "
            "another key"
        )
    ranked = means.sort_values("mean", ascending=arms.is_low, kind="stable")
    best = ranked.groupby("row")[key].first()
    means.insert(2, "metric", arms.metric)
    means["best"] = means[key] == means["row"].map(best)
    means["chosen"] = means[key] == means["row"].map(best if arms.chosen is None else arms.chosen)
    series: list[chart.Series] = []
    for label, curve in means.groupby("row", sort=False):
        style = arms.styles[label]
        seeds = frame[frame["row"] == label]
        ringed = curve[curve["chosen"]]
        series += [
            chart.Series(label, style, curve[key], curve["mean"], chart.JOINED),
            chart.Series("", style, seeds[key], seeds["value"], chart.FAINT),
            chart.Series("", RowStyle(BLACK, "o"), ringed[key], ringed["mean"], chart.RING),
        ]
    values = sorted(frame[key].unique())
    ticks = {value: f"{value:g}" for value in values}
    [label] = label_keys([key])
    return chart.Chart(
        title=f"{data.name}: {label_column(arms.metric)} over {label}",
        notes=[f"lines: means; small points: seeds; rings: {arms.rings}"],
        make_records=lambda: means.to_dict("records"),
        panels=[
            chart.Panel(
                series=series,
                x_label=label,
                y_label=label_axis(arms.metric),
                x_scale="log" if values[0] > 0 else "linear",
                x_ticks=ticks if len(ticks) <= _MOST_TICKS else None,
                height=3.2,
            )
        ],
    )


def frontier(
    data: FigureData,
    x: str | None = None,
    metric: str | None = None,
    baseline: str | None = None,
) -> chart.Chart:
    """Draw pass@1 against the entropy of correct answers (--metric) over rates (--x) and steps.

    Below it is how far arms lie off the frontier of the baseline (--baseline).
    """
    key = x or RATE
    arms = data.arms(key)
    first = _find_arm(baseline, arms)
    arms.sort(key=lambda arm: arm is not first)
    metric, diversity, fewer = _diversity(data, metric)
    points = _points(arms, data.series(data.on_task(_ACCURACY)), diversity)
    means = _means(points)
    if (known := int((means["arm"] == 0).sum())) < 3:
        raise ReportError(
            f"expected {first.label} with pass@1 and {metric} at three or more rates and steps, "
            f"got {known}; evaluation.at or evaluation.every makes evaluations"
        )
    _compare(points, means)
    off = {i: student_t_interval(own.dropna()) for i, own in points.groupby("point")["off"]}
    # Along the frontier y falls as x rises, so that it is a function of x.
    best = means[means["frontier"]].sort_values(["x", "y"])
    names = (key, "step", "seeds", _ACCURACY, metric, "frontier")
    upper, lower, records = [], [], []
    for place, arm in enumerate(arms):
        own, top = means[means["arm"] == place], best[best["arm"] == place]
        if own.empty:
            continue
        # The mean over the arm's own frontier, by seed.
        of_top = points[points["point"].isin(top.index)].dropna(subset=["off"])
        whole = student_t_interval(of_top.groupby("seed", sort=False)["off"].mean())
        label = f"{arm.label}: nowhere comparable"
        if place == 0:
            label = f"{arm.label} (baseline)"
        elif whole.n > 1:
            label = f"{arm.label}: {whole.mean:+.3f} [{whole.low:+.3f}, {whole.high:+.3f}]"
        upper.append(chart.Series(label, arm.style, own["x"], own["y"], chart.FAINT))
        upper.append(chart.Series(label, arm.style, top["x"], top["y"], chart.POINTS))
        told = [i for i in top.index if off[i].n > 1]
        y, low, high = ([getattr(off[i], end) for i in told] for end in ("mean", "low", "high"))
        lower.append(chart.Series(label, arm.style, top["x"][told], y, chart.POINTS, low, high))
        fields = own[["value", "step", "seeds", "x", "y", "frontier"]].itertuples(index=False)
        # The last is of the arm as a whole, without a step.
        lines = [*zip(fields, map(off.get, own.index), strict=True), ([None] * len(names), whole)]
        records += [
            {"row": arm.label, **dict(zip(names, line, strict=True))}
            | {"off": one.mean, "low": one.low, "high": one.high, "n": one.n}
            for line, one in lines
            if one is not None
        ]
    base = best.loc[best["arm"] == 0, ["x", "y"]].to_numpy()
    for ends in itertools.pairwise(base):
        if ends[1][0] - ends[0][0] <= MAX_GAP:
            xs, ys = np.transpose(ends)
            upper.append(chart.Series("", first.style, xs, ys, chart.FIT))
    pad = 0.05 * (means["x"].max() - means["x"].min()) or 0.05
    x_limits = (means["x"].min() - pad, means["x"].max() + pad)
    return chart.Chart(
        title=f"{data.name}: accuracy against diversity",
        notes=[
            f"points: means over seeds at each {label_keys([key])[0]} and step; full ones: no "
            f"other of the arm has both a higher pass@1 and more {label_column(metric)}",
            f"the line: that frontier of {first.label}, where its points are at most {MAX_GAP:g} "
            "of pass@1 apart",
            "below: how far the full points lie above it at equal pass@1, with 95 % Student t "
            "intervals over the seeds that have it there; in the legend: the mean over the points",
            *fewer,
        ],
        make_records=lambda: records,
        panels=[
            chart.Panel(series=upper, y_label=label_axis(metric), x_limits=x_limits, height=3.1),
            chart.Panel(
                series=lower,
                x_label=label_axis(_ACCURACY),
                y_label="off the frontier",
                x_limits=x_limits,
                guides=[("y", 0.0)],
            ),
        ],
    )


def _points(
    arms: Sequence[ArmRows], accuracy: Mapping[int, Curve], diversity: Mapping[int, Curve]
) -> pd.DataFrame:
    """Return pass@1 (x) and diversity (y) of each arm, value, step and seed."""
    lines = []
    for place, arm in enumerate(arms):
        for value, run in ((value, run) for value, row in arm.rows.items() for run in row.runs):
            if run.id in accuracy and run.id in diversity:
                of_step = dict(zip(*map(np.ndarray.tolist, diversity[run.id]), strict=True))
                lines += [
                    (place, value, step, run.seed, x, of_step.get(step, math.nan))
                    for step, x in zip(*map(np.ndarray.tolist, accuracy[run.id]), strict=True)
                ]
    points = pd.DataFrame(lines, columns=["arm", "value", "step", "seed", "x", "y"])
    points = points[np.isfinite(points["x"]) & np.isfinite(points["y"])]
    # The base model is that of every value.
    first = points[points["step"] == 0].groupby("arm")["value"].first().reindex(points["arm"])
    kept = (points["step"] > 0) | (points["value"] == first.to_numpy())
    points = points[kept].copy()
    points["point"] = points.groupby(["arm", "value", "step"], sort=False).ngroup()
    return points


def _means(points: pd.DataFrame) -> pd.DataFrame:
    """Return the mean of each point over its seeds, and whether it is on its arm's frontier."""
    means = points.groupby("point").agg(
        arm=("arm", "first"),
        value=("value", "first"),
        step=("step", "first"),
        x=("x", "mean"),
        y=("y", "mean"),
        seeds=("seed", "size"),
    )
    # A mean over some of the seeds is no mean of the arm.
    whole = means[means["seeds"] == means.groupby("arm")["seeds"].transform("max")]
    # From the highest pass@1 down, a point counts if its y exceeds all before it.
    falling = whole.sort_values(["x", "y"], ascending=False)
    above = falling.groupby("arm")["y"].transform(lambda y: y.cummax().shift(fill_value=-math.inf))
    means["frontier"] = (falling["y"] > above).reindex(means.index, fill_value=False)
    return means


def _compare(points: pd.DataFrame, means: pd.DataFrame) -> None:
    """Set `off`: how far each point lies above the baseline's frontier of its seed, or NaN.

    The base model is a point of the frontiers.
    """
    base = means.index[means["frontier"] & (means["arm"] == 0)]
    frontiers = {
        seed: own.sort_values(["x", "y"])[["x", "y"]].to_numpy()
        for seed, own in points[points["point"].isin(base)].groupby("seed")
    }

    def off(arm: int, step: int, seed: int, x: float, y: float) -> float:
        known = frontiers.get(seed)
        if not arm or not step or known is None or not known[0, 0] <= x <= known[-1, 0]:
            return math.nan
        # A chord over a wide gap would lie below a frontier that is concave.
        after = int(np.searchsorted(known[:, 0], x))
        if known[after, 0] != x and known[after, 0] - known[after - 1, 0] > MAX_GAP:
            return math.nan
        return y - float(np.interp(x, known[:, 0], known[:, 1]))

    names = ["arm", "step", "seed", "x", "y"]
    points["off"] = list(itertools.starmap(off, points[names].itertuples(index=False)))


def _find_arm(name: str | None, arms: Sequence[ArmRows]) -> ArmRows:
    """Return the arm with a label, in full or by its first word; by default the first.

    Raises:
        NotFoundError: no arm, or several.
    """
    if name is None:
        return arms[0]
    found = [arm for arm in arms if arm.label == name]
    found = found or [arm for arm in arms if arm.label.split()[0] == name]
    if len(found) != 1:
        how = f"several rows are called '{name}'" if found else f"no row is called '{name}'"
        raise NotFoundError(f"--baseline: {how}; {nearest(name, [arm.label for arm in arms])}")
    return found[0]


def _diversity(
    data: FigureData, metric: str | None
) -> tuple[str, Mapping[int, Curve], Sequence[str]]:
    """Return the measure of diversity, its curves, and a note on evaluations that are left out.

    The default is that of the primary outcomes.
    """
    for name in [metric] if metric else map(data.on_task, (RAREFIED_ENTROPY, RIGHT_ENTROPY)):
        try:
            curves = data.series(name)
        except NotFoundError:
            if metric:
                raise
            continue
        if any(np.isfinite(values).any() for _, values in curves.values()):
            break
    else:
        raise ReportError(
            f"no evaluation of {data.name} has correct answers; --metric names another"
        )
    return (name, *with_equal_samples(data, name, curves))
