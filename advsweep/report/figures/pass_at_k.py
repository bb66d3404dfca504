"""Figures of pass@k: over k with fitted laws, by difficulty level, and against diversity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from advsweep.errors import FitError, ReportError
from advsweep.report.data.outcomes import MOST_OF_SAMPLES
from advsweep.report.figures.chart import (
    Chart,
    Options,
    add_legend,
    band_records,
    cut_note,
    estimate_fields,
    fill_band,
    handle,
    legend_height,
    limits,
    seeds_note,
)
from advsweep.report.figures.data import EvaluatedRow, FigureData
from advsweep.report.figures.floors import dotted, dotted_handle
from advsweep.report.figures.style import BLACK, RowStyle
from advsweep.statistics import Interval, mean_over_problems, pass_at_k, student_t_interval
from advsweep.statistics.intervals import Band, student_t_band
from advsweep.statistics.pass_laws import PowerLaw, fit_pass_at_k
from advsweep.store import EvaluationRecord

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

_WITH_PARAMETERS = 8
"""With at most this many lines the legend has the parameters of their laws."""

_RESAMPLED_FROM = 15
"""With fewer problems the intervals of laws come from residuals, not from resampled problems."""


@dataclass(frozen=True)
class _Line:
    """One row's pass@k at each k, and its law or the reason why it has none."""

    label: str
    style: RowStyle
    band: Band
    law: PowerLaw | None
    refused: str | None
    is_floor: bool = False

    @property
    def handle(self) -> Artist:
        return dotted_handle(self.style) if self.is_floor else handle(self.style)


@dataclass(frozen=True, kw_only=True)
class PassAtK(Chart):
    name: ClassVar[str] = "passk"
    summary: ClassVar[str] = "pass@k over k after training, with shifted power laws fitted to it"
    uses: ClassVar[frozenset[str]] = frozenset({"task"})

    ks: Int[np.ndarray, " points"]
    lines: Sequence[_Line]

    @classmethod
    def collect(cls, data: FigureData, options: Options) -> Self:
        rows = data.evaluated_rows()
        fitted = _powers_of_two(_fewest_samples(rows))
        ks = _powers_of_two(largest_k(rows))
        lines = [_line(row, ks, fitted) for row in rows]
        floors = [
            _Line(row.label, row.style, row.band(ks), None, None, is_floor=True)
            for row in data.floors
        ]
        return cls(
            title=f"{data.name}: pass@k on {rows[0].evaluations[0].task}",
            notes=[
                *seeds_note(_seed_counts(rows), "bands"),
                *cut_note([[line.band for line in lines]]),
                f"thin lines: exp(-a (k+c)^-b), fitted to the means at k = 1, 2, ..., {fitted[-1]}"
                + _goodness(lines),
                *(f"no line for {line.label}: {line.refused}" for line in lines if line.refused),
                *(f"dotted: {row.label}, {row.help}" for row in data.floors),
            ],
            ks=ks,
            lines=[*lines, *floors],
        )

    @property
    def height(self) -> float:
        return 3.6 + legend_height([self._legend(line) for line in self.lines])

    def _legend(self, line: _Line) -> str:
        if line.law is None or len(self.lines) > _WITH_PARAMETERS:
            return line.label
        a, b, c = (estimate.value for estimate in (line.law.a, line.law.b, line.law.c))
        return f"{line.label} (a {a:.3g}, b {b:.3g}, c {c:.3g})"

    def draw(self, canvas: FigureBase) -> None:
        axes = canvas.add_subplot()
        axes.set_xscale("log", base=2)
        axes.set_xticks(self.ks, [str(k) for k in self.ks])
        axes.minorticks_off()
        axes.set_xlabel("k")
        axes.set_ylabel("pass@k")
        low, high = limits([line.band for line in self.lines])
        axes.set_ylim(max(low, -0.02), min(high, 1.02))
        dense = np.geomspace(self.ks[0], self.ks[-1], 200)
        for line in self.lines:
            if line.is_floor:
                axes.plot(self.ks, line.band.mean, **dotted(line.style))
                continue
            fill_band(axes, self.ks, line.band, line.style, len(self.lines), (0.0, 1.0))
            axes.plot(self.ks, line.band.mean, **line.style.points, linestyle="none", markersize=6)
            if line.law is not None:
                own = {"color": line.style.colour, "linestyle": line.style.linestyle}
                axes.plot(dense, line.law.pass_at_k(dense), **own, linewidth=1)
        add_legend(canvas, {self._legend(line): line.handle for line in self.lines})

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "row": line.label,
                "k": int(k),
                **fields,
                "law": None if line.law is None else float(line.law.pass_at_k(k)),
                **estimate_fields(line.law, "a", "b", "c"),
                **{n: getattr(line.law, n, None) for n in ("mse", "r_squared", "resampled")},
                "refused": line.refused,
            }
            for line in self.lines
            for k, fields in zip(self.ks, band_records(line.band), strict=True)
        ]


def _seed_counts(rows: Sequence[EvaluatedRow]) -> list[int]:
    return [len(row.evaluations) for row in rows if row.trained]


def _fewest_samples(rows: Sequence[EvaluatedRow]) -> int:
    """Returns the number of samples per problem that every evaluation has."""
    return min(int(record.n.max(initial=0)) for row in rows for record in row.evaluations)


def _powers_of_two(most: int) -> Int[np.ndarray, " points"]:
    """Return 1, 2, 4, ... up to a number."""
    return 2 ** np.arange(max(most, 1).bit_length())


def _pass_at_ks(
    records: Sequence[EvaluationRecord], ks: Int[np.ndarray, " points"]
) -> Float[np.ndarray, "records points"]:
    """Returns the mean over problems of pass@k, for each evaluation and k."""
    return np.array(
        [
            [mean_over_problems(pass_at_k(record.n, record.c, int(k))) for k in ks]
            for record in records
        ]
    )


def _line(
    row: EvaluatedRow, ks: Int[np.ndarray, " points"], fitted: Int[np.ndarray, " points"]
) -> _Line:
    """Return a row's line at the k that are shown, and its law of those that are fitted."""
    means = _pass_at_ks(row.evaluations, fitted)
    law, refused = None, None
    of_problems = np.mean(
        [[pass_at_k(record.n, record.c, int(k)) for k in fitted] for record in row.evaluations],
        axis=0,
    ).T
    # Resampling needs enough problems, and a pass@k of each of them.
    whole = len(of_problems) >= _RESAMPLED_FROM and not np.isnan(of_problems).any()
    try:
        law = fit_pass_at_k(fitted, of_problems if whole else student_t_band(means).mean)
    except FitError as error:
        refused = str(error)
    return _Line(row.label, row.style, student_t_band(means[:, : len(ks)]), law, refused)


def _goodness(lines: Sequence[_Line]) -> str:
    explained = [line.law.r_squared for line in lines if line.law is not None]
    return f" (R² from {min(explained):.4f} on)" if explained else ""


_GREYS = ("#333333", "#bbbbbb", "#777777", "#f2f2f2")


@dataclass(frozen=True)
class _Bars:
    """One row's pass@k for each level."""

    label: str
    style: RowStyle
    k: int
    band: Band


def largest_k(rows: Sequence[EvaluatedRow]) -> int:
    """Return the largest power of two up to a quarter of the samples per problem.

    The estimate of pass@k varies most above. Of few samples it is 2, as pass@1 shows no diversity.
    """
    samples = _fewest_samples(rows)
    most = max(int(MOST_OF_SAMPLES * samples), min(samples, 2))
    return int(_powers_of_two(most)[-1])


def _chosen_k(rows: Sequence[EvaluatedRow], options: Options) -> int:
    """Return the k of `--k`, or the largest that the samples support."""
    if (options.k or 1) > (samples := _fewest_samples(rows)):
        raise ReportError(
            f"--k: expected up to the {samples} samples per problem, got {options.k}; "
            "`advsweep eval --samples` draws more"
        )
    return options.k or largest_k(rows)


@dataclass(frozen=True, kw_only=True)
class Levels(Chart):
    name: ClassVar[str] = "levels"
    summary: ClassVar[str] = "pass@1 and pass@k of each difficulty level (--k: of one k alone)"
    uses: ClassVar[frozenset[str]] = frozenset({"k", "task"})

    levels: Sequence[int]
    problems: Sequence[int]  # of each level
    bars: Sequence[_Bars]

    @classmethod
    def collect(cls, data: FigureData, options: Options) -> Self:
        rows = data.evaluated_rows()
        first = rows[0].evaluations[0]
        levels, problems = np.unique(first.levels, return_counts=True)
        if len(levels) < 2:
            raise ReportError(
                f"all {len(first.levels)} problems of {first.task} are of level {levels[0]}, so "
                "there is nothing to tell apart"
            )
        ks = sorted({options.k or 1, _chosen_k(rows, options)})
        return cls(
            title=f"{data.name}: pass@k by difficulty level of {first.task}",
            notes=seeds_note(_seed_counts(rows), "intervals"),
            levels=levels.tolist(),
            problems=problems.tolist(),
            bars=[_bars(row, k, levels) for k in ks for row in rows],
        )

    @property
    def _styles(self) -> dict[str, RowStyle]:
        return {bars.label: bars.style for bars in self.bars}

    @property
    def _ks(self) -> list[int]:
        return list(dict.fromkeys(bars.k for bars in self.bars))

    @property
    def height(self) -> float:
        return 0.5 + 2.3 * len(self._ks) + legend_height(list(self._styles))

    def draw(self, canvas: FigureBase) -> None:
        panels = canvas.subplots(len(self._ks), 1, squeeze=False, sharex=True)[:, 0]
        for axes, k in zip(panels, self._ks, strict=True):
            own = [bars for bars in self.bars if bars.k == k]
            for i, bars in enumerate(own):
                self._draw_bars(axes, bars, i, len(own))
            axes.set_ylabel(f"pass@{k}")
            axes.set_ylim(0, 1.02)
            axes.set_xlim(-0.55, len(self.levels) - 0.45)
            axes.grid(visible=False, axis="x")
            axes.tick_params(axis="x", length=0)
        ticks = [
            f"level {v}\n{n} problem{'s' * (n > 1)}"
            for v, n in zip(self.levels, self.problems, strict=True)
        ]
        panels[-1].set_xticks(range(len(ticks)), ticks)
        add_legend(canvas, {label: _patch(style) for label, style in self._styles.items()})

    def _draw_bars(self, axes: Axes, bars: _Bars, place: int, among: int) -> None:
        width = 0.84 / among
        at = np.arange(len(self.levels)) + (place - (among - 1) / 2) * width
        axes.bar(at, bars.band.mean, 0.9 * width, **_fill(bars.style))
        half = (bars.band.high - bars.band.low) / 2
        axes.errorbar(
            at, bars.band.mean, half, fmt="none", ecolor="#222222", elinewidth=1, capsize=2
        )

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "row": bars.label,
                "k": bars.k,
                "level": level,
                "problems": problems,
                **fields,
            }
            for bars in self.bars
            for level, problems, fields in zip(
                self.levels, self.problems, band_records(bars.band), strict=True
            )
        ]


def _fill(style: RowStyle) -> dict[str, Any]:
    """Fills a bar with the colour of its row; variants are hatched, untrained models are grey."""
    if style.colour == BLACK:
        return {"facecolor": _GREYS[style.variant], "edgecolor": BLACK, "linewidth": 0.9}
    own = {"facecolor": style.colour, "edgecolor": "white", "linewidth": 0.4}
    return {**own, "hatch": style.hatch}


def _patch(style: RowStyle) -> Any:
    from matplotlib.patches import Patch

    return Patch(**_fill(style))


def _bars(row: EvaluatedRow, k: int, levels: Int[np.ndarray, " levels"]) -> _Bars:
    values = [
        mean_over_problems(
            np.where(record.levels == levels[:, None], pass_at_k(record.n, record.c, k), np.nan)
        )
        for record in row.evaluations
    ]
    return _Bars(row.label, row.style, k, student_t_band(np.array(values)))


@dataclass(frozen=True)
class _Cross:
    """A row in the plane of accuracy and diversity."""

    label: str
    style: RowStyle
    accuracy: Interval
    reach: Interval
    entropy: Interval


@dataclass(frozen=True, kw_only=True)
class Diversity(Chart):
    name: ClassVar[str] = "diversity"
    summary: ClassVar[str] = (
        "pass@1 against pass@k (--k, or a quarter of the samples) and answer entropy"
    )
    uses: ClassVar[frozenset[str]] = frozenset({"k", "task"})

    k: int
    crosses: Sequence[_Cross]

    @classmethod
    def collect(cls, data: FigureData, options: Options) -> Self:
        rows = data.evaluated_rows()
        k = _chosen_k(rows, options)
        if k == 1 and options.k is None:
            raise ReportError(
                f"{data.name} was evaluated with one sample for each problem, which tells "
                "nothing of diversity; `advsweep eval --samples` draws more"
            )
        return cls(
            title=f"{data.name}: accuracy and diversity",
            notes=seeds_note(_seed_counts(rows), "intervals"),
            k=k,
            crosses=[_cross(row, k) for row in rows],
        )

    @property
    def height(self) -> float:
        return 3.3 + legend_height([cross.label for cross in self.crosses])

    def draw(self, canvas: FigureBase) -> None:
        left, right = canvas.subplots(1, 2)
        for cross in self.crosses:
            _draw_cross(left, cross.accuracy, cross.reach, cross.style)
            _draw_cross(right, cross.accuracy, cross.entropy, cross.style)
        left.set_ylabel(f"pass@{self.k}")
        right.set_ylabel("answer entropy, nats")
        for axes in (left, right):
            axes.set_xlabel("pass@1")
        add_legend(canvas, {cross.label: handle(cross.style, line=False) for cross in self.crosses})

    def records(self) -> list[dict[str, Any]]:
        names = {"accuracy": "pass@1", "reach": f"pass@{self.k}", "entropy": "entropy/answer"}
        return [
            {"row": cross.label, "metric": metric, **getattr(cross, attribute)._asdict()}
            for cross in self.crosses
            for attribute, metric in names.items()
        ]


def _cross(row: EvaluatedRow, k: int) -> _Cross:
    accuracy, reach = map(student_t_interval, _pass_at_ks(row.evaluations, np.array([1, k])).T)
    entropies = [float(record.answer_entropy.mean()) for record in row.evaluations]
    return _Cross(row.label, row.style, accuracy, reach, student_t_interval(entropies))


def _draw_cross(axes: Axes, x: Interval, y: Interval, style: RowStyle) -> None:
    axes.errorbar(
        x.mean,
        y.mean,
        xerr=None if x.n < 2 else (x.high - x.low) / 2,
        yerr=None if y.n < 2 else (y.high - y.low) / 2,
        **style.points,
        linestyle="none",
        markersize=6.5,
        elinewidth=1.1,
        capsize=2.5,
    )
