"""pass@k over k, with the law that it follows where it follows one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from advsweep.errors import FitError
from advsweep.report.figures.chart import (
    Chart,
    Options,
    add_legend,
    cut_note,
    fill_band,
    handle,
    legend_height,
    limits,
    seeds_note,
    with_ends,
)
from advsweep.report.figures.looks import Look
from advsweep.report.figures.material import Material
from advsweep.statistics import PowerLaw, fit_pass_at_k, mean_over_problems, pass_at_k
from advsweep.statistics.bands import Band, student_t_band
from advsweep.store import EvaluationRecord

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from matplotlib.figure import FigureBase


_WITH_PARAMETERS = 8
"""So many lines have the parameters of their laws in the legend."""

_RESAMPLED_FROM = 15
"""Of fewer problems intervals of laws are of residuals."""


@dataclass(frozen=True)
class _Line:
    """One row's pass@k at each k, and its law or why it has none."""

    label: str
    look: Look
    band: Band
    law: PowerLaw | None
    refused: str | None


@dataclass(frozen=True, kw_only=True)
class PassAtK(Chart):
    name: ClassVar[str] = "passk"
    summary: ClassVar[str] = "pass@k over k after training, with shifted power laws fitted to it"
    uses: ClassVar[frozenset[str]] = frozenset({"task"})

    ks: Int[np.ndarray, " points"]
    lines: Sequence[_Line]

    @classmethod
    def collect(cls, material: Material, options: Options) -> Self:
        finals = {row.label: material.final(row) for row in material.rows_told_apart()}
        records = [record for own in finals.values() for record in own]
        records += [model.evaluation for model in material.untrained]
        ks = powers_of_two(records)
        lines = [
            _line(row.label, row.look, finals[row.label], ks)
            for row in material.rows
            if finals[row.label]
        ]
        lines += [
            _line(model.label, model.look, [model.evaluation], ks) for model in material.untrained
        ]
        counts = [len(own) for own in finals.values() if own]
        task = records[0].task
        return cls(
            title=f"{material.name}: pass@k on {task}",
            notes=[
                *seeds_note(counts, "bands"),
                *cut_note([[line.band for line in lines]]),
                "thin lines: exp(-a (k+c)^-b), fitted to the means" + _goodness(lines),
                *(f"no line for {line.label}: {line.refused}" for line in lines if line.refused),
            ],
            ks=ks,
            lines=lines,
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
            fill_band(axes, self.ks, line.band, line.look, len(self.lines), (0.0, 1.0))
            axes.plot(self.ks, line.band.mean, **line.look.points, linestyle="none", markersize=6)
            if line.law is not None:
                axes.plot(
                    dense,
                    line.law.pass_at_k(dense),
                    color=line.look.colour,
                    linestyle=line.look.linestyle,
                    linewidth=1,
                )
        add_legend(canvas, {self._legend(line): handle(line.look) for line in self.lines})

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "row": line.label,
                "k": int(k),
                "mean": float(mean),
                "low": float(low),
                "high": float(high),
                "n": int(n),
                "law": None if line.law is None else float(line.law.pass_at_k(k)),
                **with_ends("a", None if line.law is None else line.law.a),
                **with_ends("b", None if line.law is None else line.law.b),
                **with_ends("c", None if line.law is None else line.law.c),
                **{
                    name: None if line.law is None else getattr(line.law, name)
                    for name in ("mse", "r_squared", "resampled")
                },
                "refused": line.refused,
            }
            for line in self.lines
            for k, mean, low, high, n in zip(self.ks, *line.band, strict=True)
        ]


def powers_of_two(records: Sequence[EvaluationRecord]) -> Int[np.ndarray, " points"]:
    """1, 2, 4, ... up to the samples that each of some evaluations has of its problems."""
    samples = min(int(record.n.max(initial=0)) for record in records)
    return 2 ** np.arange(max(samples, 1).bit_length())


def pass_at_ks(
    records: Sequence[EvaluationRecord], ks: Int[np.ndarray, " points"]
) -> Float[np.ndarray, "records points"]:
    """The mean over problems of pass@k, of each evaluation at each k."""
    return np.array(
        [
            [mean_over_problems(pass_at_k(record.n, record.c, int(k))) for k in ks]
            for record in records
        ]
    )


def _line(
    label: str,
    look: Look,
    records: Sequence[EvaluationRecord],
    ks: Int[np.ndarray, " points"],
) -> _Line:
    band = student_t_band(pass_at_ks(records, ks))
    law, refused = None, None
    of_problems = np.mean(
        [[pass_at_k(record.n, record.c, int(k)) for k in ks] for record in records], axis=0
    ).T
    # Few problems tell nothing of others, and one without a pass@k has no row.
    whole = len(of_problems) >= _RESAMPLED_FROM and not np.isnan(of_problems).any()
    try:
        law = fit_pass_at_k(ks, of_problems if whole else band.mean)
    except FitError as error:
        refused = str(error)
    return _Line(label, look, band, law, refused)


def _goodness(lines: Sequence[_Line]) -> str:
    explained = [line.law.r_squared for line in lines if line.law is not None]
    return f" (R² from {min(explained):.4f} on)" if explained else ""
