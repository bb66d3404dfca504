"""Accuracy against diversity over rates and steps, and differences off the baseline's frontier.

Training trades diversity for accuracy, faster at a higher rate. Two arms that walk along one curve
at different speeds differ at the end and in nothing else; what an arm does better is how far it
lies above the curve of the baseline.

The baseline's frontier consists of the rates and steps that are best in the mean over seeds: no
other one has both a higher pass@1 and more diversity. Each seed has its own values there, as seeds
may have other base models and problems. An arm's point is compared with the frontier of its seed
at its pass@1, on the straight line between two points of the frontier that are at most `MAX_GAP`
of pass@1 apart.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from advsweep.errors import NotFoundError, ReportError
from advsweep.report.data.columns import (
    ANSWER_ENTROPY,
    RAREFIED_ENTROPY,
    RIGHT_ENTROPY,
    parse_column,
)
from advsweep.report.data.cutoffs import MAX_GAP
from advsweep.report.data.windows import Curve
from advsweep.report.figures.chart import (
    Chart,
    Options,
    add_legend,
    find_label,
    handle,
    legend_height,
)
from advsweep.report.figures.data import Arm, FigureData
from advsweep.report.figures.rate import RATE
from advsweep.report.figures.style import BLACK, RowStyle
from advsweep.statistics import Interval, student_t_interval

if TYPE_CHECKING:
    from jaxtyping import Float
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

    Pairs = Float[np.ndarray, "points 2"]

_ACCURACY = "pass@1"


@dataclass(frozen=True)
class _Point:
    """An arm at a rate and a step.

    Attributes:
        seeds: pass@1 and diversity of each seed.
        is_best: whether no other point of its arm has more of both in the mean.
        off: how far each seed lies above the baseline's frontier, where that can be told.
    """

    value: float
    step: int
    seeds: Mapping[int, tuple[float, float]]
    is_best: bool = False
    off: Mapping[int, float] | None = None

    @property
    def mean(self) -> tuple[float, float]:
        accuracy, diversity = np.mean(list(self.seeds.values()), axis=0)
        return float(accuracy), float(diversity)

    @property
    def difference(self) -> Interval:
        return student_t_interval(list((self.off or {}).values()))


@dataclass(frozen=True)
class _Cloud:
    """The points of an arm, in the order of rates and steps."""

    label: str
    style: RowStyle
    points: Sequence[_Point]

    @property
    def best(self) -> list[_Point]:
        """The points of its own frontier, by pass@1."""
        return sorted((p for p in self.points if p.is_best), key=lambda point: point.mean)

    @property
    def difference(self) -> Interval:
        """The mean over its own frontier of the differences off the baseline's, by seed."""
        by_seed: dict[int, list[float]] = {}
        for point in self.best:
            for seed, off in (point.off or {}).items():
                by_seed.setdefault(seed, []).append(off)
        return student_t_interval([float(np.mean(own)) for own in by_seed.values()])


@dataclass(frozen=True, kw_only=True)
class Frontier(Chart):
    name: ClassVar[str] = "frontier"
    summary: ClassVar[str] = (
        "pass@1 against the entropy of correct answers (--metric) over rates (--x) and steps, and "
        "differences off the frontier of the baseline (--baseline)"
    )
    uses: ClassVar[frozenset[str]] = frozenset({"x", "metrics", "task", "baseline"})

    key: str
    metric: str
    clouds: Sequence[_Cloud]  # the baseline's first

    @classmethod
    def collect(cls, data: FigureData, options: Options) -> Self:
        key = options.x or RATE
        arms = data.arms(key)
        labels = [arm.label for arm in arms]
        first = labels[0]
        if options.baseline is not None:
            first = find_label("--baseline", options.baseline, labels)
        arms.sort(key=lambda arm: arm.label != first)
        accuracy = data.series(data.on_task(_ACCURACY))
        metric, diversity = _diversity(data, options.metric)
        diversity, fewer = _equal_samples(data, metric, diversity)
        clouds = [_cloud(arm, accuracy, diversity) for arm in arms]
        base, *others = clouds
        if len(base.points) < 3:
            raise ReportError(
                f"expected {first} with pass@1 and {metric} at three or more rates and steps, got "
                f"{len(base.points)}; evaluation.at or evaluation.every makes evaluations"
            )
        frontiers = _frontiers(base)
        compared = [
            replace(c, points=[_off(p, frontiers) for p in c.points]) for c in others if c.points
        ]
        notes = [
            f"points: means over seeds at each {key} and step; full ones: no other of the arm has "
            f"both a higher pass@1 and more {metric}",
            f"the line: that frontier of {first}, where its points are at most {MAX_GAP:g} of "
            "pass@1 apart",
            "below: how far the full points lie above it at equal pass@1, with 95 % Student t "
            "intervals over the seeds that have it there; in the legend: the mean over the points",
            *fewer,
        ]
        return cls(
            title=f"{data.name}: accuracy against diversity",
            notes=notes,
            key=key,
            metric=metric,
            clouds=[base, *compared],
        )

    def _legend(self) -> dict[str, RowStyle]:
        base, *others = self.clouds
        named = {f"{base.label} (baseline)": base.style}
        for cloud in others:
            found = cloud.difference
            off = "nowhere comparable"
            if found.n > 1:
                off = f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
            named[f"{cloud.label}: {off}"] = cloud.style
        return named

    @property
    def height(self) -> float:
        return 5.6 + legend_height(list(self._legend()))

    def draw(self, canvas: FigureBase) -> None:
        upper, lower = canvas.subplots(2, 1, sharex=True, height_ratios=[3, 2])
        for cloud in self.clouds:
            for points, alpha in ((cloud.points, 0.3), (cloud.best, 1.0)):
                x, y = zip(*(point.mean for point in points), strict=True)
                upper.plot(x, y, **cloud.style.points, linestyle="none", markersize=5, alpha=alpha)
        base, *others = self.clouds
        _draw_frontier(upper, base)
        lower.axhline(0, color=BLACK, linewidth=0.8)
        for cloud in others:
            for point in cloud.best:
                found = point.difference
                if found.n > 1:
                    lower.errorbar(
                        point.mean[0],
                        found.mean,
                        (found.high - found.low) / 2,
                        **cloud.style.points,
                        linestyle="none",
                        markersize=5,
                        elinewidth=1.1,
                        capsize=2.5,
                    )
        upper.set_ylabel(self.metric)
        lower.set_ylabel(f"off the frontier of {base.label}")
        lower.set_xlabel(_ACCURACY)
        legend = {text: handle(style, line=False) for text, style in self._legend().items()}
        add_legend(canvas, legend)

    def records(self) -> list[dict[str, Any]]:
        """Return a record for each point, and one without a step for each arm as a whole."""
        found = []
        for cloud in self.clouds:
            for point in cloud.points:
                accuracy, diversity = point.mean
                own = {self.key: point.value, "step": point.step, "seeds": len(point.seeds)}
                own |= {_ACCURACY: accuracy, self.metric: diversity, "frontier": point.is_best}
                found.append({"row": cloud.label, **own, **_off_fields(point.difference)})
            whole = dict.fromkeys((self.key, "step", "seeds", _ACCURACY, self.metric, "frontier"))
            found.append({"row": cloud.label, **whole, **_off_fields(cloud.difference)})
        return found


def _off_fields(off: Interval) -> dict[str, Any]:
    return {"off": off.mean, "low": off.low, "high": off.high, "n": off.n}


def _diversity(data: FigureData, metric: str | None) -> tuple[str, Mapping[int, Curve]]:
    """Return the measure of diversity and its curves: that of the primary outcomes by default."""
    for name in [metric] if metric else map(data.on_task, (RAREFIED_ENTROPY, RIGHT_ENTROPY)):
        try:
            found = data.series(name)
        except NotFoundError:
            if metric:
                raise
            continue
        if any(np.isfinite(values).any() for _, values in found.values()):
            return name, found
    raise ReportError(f"no evaluation of {data.name} has correct answers; --metric names another")


def _equal_samples(
    data: FigureData, metric: str, curves: Mapping[int, Curve]
) -> tuple[Mapping[int, Curve], list[str]]:
    """Keep evaluations of one number of samples where a metric depends on it, and say so.

    The entropy of the answers that were drawn rises with their number. Rarefied entropy does not.
    """
    samples = data.samples_along()
    counts = Counter(n for run in curves for n in samples.get(run, {}).values())
    column = parse_column(metric)
    if len(counts) < 2 or column is None or column.quantity not in (ANSWER_ENTROPY, RIGHT_ENTROPY):
        return curves, []
    [(usual, _)] = counts.most_common(1)
    kept = {}
    for run, (steps, values) in curves.items():
        alike = np.array([samples[run].get(int(step)) == usual for step in steps])
        kept[run] = steps[alike], values[alike]
    note = (
        f"only evaluations of {usual} samples per problem: {metric} of unequal numbers of samples "
        f"is not comparable, {RAREFIED_ENTROPY} is"
    )
    return kept, [note]


def _cloud(arm: Arm, accuracy: Mapping[int, Curve], diversity: Mapping[int, Curve]) -> _Cloud:
    points = []
    has_base = False
    for value, row in arm.rows.items():
        by_step: dict[int, dict[int, tuple[float, float]]] = {}
        for run in row.runs:
            if run.id not in accuracy or run.id not in diversity:
                continue
            of_step = dict(zip(*map(np.ndarray.tolist, diversity[run.id]), strict=True))
            for step, x in zip(*map(np.ndarray.tolist, accuracy[run.id]), strict=True):
                if np.isfinite([x, of_step.get(step, np.nan)]).all():
                    by_step.setdefault(step, {})[run.seed] = x, of_step[step]
        # The base model is that of every rate.
        points += [
            _Point(value, step, own) for step, own in by_step.items() if step or not has_base
        ]
        has_base = has_base or 0 in by_step
    # A mean over some of the seeds is no mean of the arm.
    most = max((len(point.seeds) for point in points), default=0)
    best: list[_Point] = []
    for point in sorted(points, key=lambda point: point.mean, reverse=True):
        if len(point.seeds) == most and (not best or point.mean[1] > best[-1].mean[1]):
            best.append(point)
    return _Cloud(arm.label, arm.style, [replace(p, is_best=p in best) for p in points])


def _frontiers(base: _Cloud) -> dict[int, Pairs]:
    """Return the baseline's frontier of each seed, by pass@1."""
    seeds = base.best[0].seeds
    return {seed: np.array(sorted(point.seeds[seed] for point in base.best)) for seed in seeds}


def _off(point: _Point, frontiers: Mapping[int, Pairs]) -> _Point:
    """Compare a point with the frontiers; the base model is a point of them."""
    off: dict[int, float] = {}
    for seed, (x, y) in point.seeds.items() if point.step else ():
        known = frontiers.get(seed)
        if known is None or not known[0, 0] <= x <= known[-1, 0]:
            continue
        after = int(np.searchsorted(known[:, 0], x))
        if known[after, 0] == x or known[after, 0] - known[after - 1, 0] <= MAX_GAP:
            off[seed] = y - float(np.interp(x, known[:, 0], known[:, 1]))
    return replace(point, off=off)


def _draw_frontier(axes: Axes, base: _Cloud) -> None:
    means = [point.mean for point in base.best]
    for one, other in itertools.pairwise(means):
        if other[0] - one[0] <= MAX_GAP:
            x, y = zip(one, other, strict=True)
            axes.plot(x, y, color=base.style.colour, linewidth=1.6)
