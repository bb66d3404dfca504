"""pass@k by the difficulty of problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from advsweep.errors import ReportError
from advsweep.report.figures.chart import (
    Chart,
    Options,
    add_legend,
    legend_height,
    seeds_note,
)
from advsweep.report.figures.looks import BLACK, Look
from advsweep.report.figures.material import Material
from advsweep.report.figures.passk import powers_of_two
from advsweep.statistics import mean_over_problems, pass_at_k
from advsweep.statistics.bands import Band, student_t_band
from advsweep.store import EvaluationRecord

if TYPE_CHECKING:
    from jaxtyping import Int
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase


_GREYS = ("#333333", "#bbbbbb", "#777777", "#f2f2f2")


@dataclass(frozen=True)
class _Bars:
    """One row's pass@k for each level."""

    label: str
    look: Look
    k: int
    band: Band


@dataclass(frozen=True, kw_only=True)
class Levels(Chart):
    name: ClassVar[str] = "levels"
    summary: ClassVar[str] = "pass@1 and pass@k of each difficulty level (--k: of one k alone)"
    uses: ClassVar[frozenset[str]] = frozenset({"k", "task"})

    levels: Sequence[int]
    problems: Sequence[int]  # of each level
    bars: Sequence[_Bars]

    @classmethod
    def collect(cls, material: Material, options: Options) -> Self:
        rows = [(row.label, row.look, material.final(row)) for row in material.rows_told_apart()]
        rows = [row for row in rows if row[2]]
        counts = [len(records) for *_, records in rows]
        rows += [(model.label, model.look, [model.evaluation]) for model in material.untrained]
        first = rows[0][2][0]
        levels, problems = np.unique(first.levels, return_counts=True)
        if len(levels) < 2:
            raise ReportError(
                f"all {len(first.levels)} problems of {first.task} are of level {levels[0]}, so "
                "there is nothing to tell apart"
            )
        largest = int(powers_of_two([record for *_, own in rows for record in own])[-1])
        samples = min(int(record.n.max(initial=0)) for *_, own in rows for record in own)
        if options.k is not None and options.k > samples:
            raise ReportError(
                f"--k: expected up to the {samples} samples per problem, got {options.k}; "
                "`advsweep eval --samples` draws more"
            )
        ks = sorted({1, largest}) if options.k is None else [options.k]
        return cls(
            title=f"{material.name}: pass@k by difficulty level of {first.task}",
            notes=seeds_note(counts, "intervals"),
            levels=levels.tolist(),
            problems=problems.tolist(),
            bars=[_bars(*row, k, levels) for k in ks for row in rows],
        )

    @property
    def _looks(self) -> dict[str, Look]:
        return {bars.label: bars.look for bars in self.bars}

    @property
    def _ks(self) -> list[int]:
        return list(dict.fromkeys(bars.k for bars in self.bars))

    @property
    def height(self) -> float:
        return 0.5 + 2.3 * len(self._ks) + legend_height(list(self._looks))

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
        add_legend(canvas, {label: _patch(look) for label, look in self._looks.items()})

    def _draw_bars(self, axes: Axes, bars: _Bars, place: int, among: int) -> None:
        width = 0.84 / among
        at = np.arange(len(self.levels)) + (place - (among - 1) / 2) * width
        axes.bar(at, bars.band.mean, 0.9 * width, **_fill(bars.look))
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
                "mean": float(mean),
                "low": float(low),
                "high": float(high),
                "n": int(n),
            }
            for bars in self.bars
            for level, problems, mean, low, high, n in zip(
                self.levels, self.problems, *bars.band, strict=True
            )
        ]


def _fill(look: Look) -> dict[str, Any]:
    """A bar in the colour of its row; variants are hatched, and untrained models are grey."""
    if look.colour == BLACK:
        return {"facecolor": _GREYS[look.variant], "edgecolor": BLACK, "linewidth": 0.9}
    own = {"facecolor": look.colour, "edgecolor": "white", "linewidth": 0.4}
    return {**own, "hatch": look.hatch}


def _patch(look: Look) -> Any:
    from matplotlib.patches import Patch

    return Patch(**_fill(look))


def _bars(
    label: str,
    look: Look,
    records: Sequence[EvaluationRecord],
    k: int,
    levels: Int[np.ndarray, " levels"],
) -> _Bars:
    by_problem = np.array([pass_at_k(record.n, record.c, k) for record in records])
    values = np.array(
        [
            mean_over_problems(np.where(record.levels == levels[:, None], own, np.nan))
            for record, own in zip(records, by_problem, strict=True)
        ]
    )
    return _Bars(label, look, k, student_t_band(values))
